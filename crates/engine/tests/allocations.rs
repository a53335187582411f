//! Nothing is allocated for bytes that pass.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]
#![allow(clippy::disallowed_methods, reason = "clients and targets of this test are plain ones")]
#![allow(dead_code, reason = "the helpers serve several tests")]

#[path = "it/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use adit_model::{SnellMode, SnellVersion, SnellVersions};
use adit_sys::CountingAlloc;
use adit_sys::alloc::total_allocations;
use common::{Obfs, Setup, Target, within};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

const WARM_UP: usize = 16 << 20;
const MEASURED: usize = 256 << 20;
/// Bytes that pass in the versions that share most of their way with others.
const MEASURED_SHORT: usize = 64 << 20;

/// Both ends of the test own one block each, made before anything is counted.
fn send(mut stream: &TcpStream, block: &[u8], len: usize) {
    for _ in 0..len / block.len() {
        stream.write_all(block).unwrap();
    }
}

fn receive(mut stream: &TcpStream, block: &mut [u8], len: usize) {
    let mut left = len;
    while left > 0 {
        let wanted = left.min(block.len());
        let received = stream.read(&mut block[..wanted]).unwrap();
        assert_ne!(received, 0);
        left -= received;
    }
}

/// Allocations of the whole process while `move_bytes` moves `len` bytes, per MiB. Some are made when more has to wait than
/// ever before; one for each record or read would be 16 to 64.
fn measure(what: &str, len: usize, move_bytes: impl FnOnce()) {
    let before = total_allocations();
    move_bytes();
    let calls = total_allocations() - before;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let per_mib = calls as f64 / (len >> 20) as f64;
    assert!(per_mib < 0.5, "{what}: {calls} allocations, {per_mib:.3} per MiB");
}

fn every_kind() -> Vec<(Setup, usize)> {
    let with =
        |obfs, version| Setup { obfs, version, versions: SnellVersions::Only(version), ..Setup::default() };
    let shaped = SnellVersion::V6(SnellMode::Default);
    let unshaped = SnellVersion::V6(SnellMode::Unshaped);
    vec![
        (with(Obfs::Off, SnellVersion::V5), MEASURED),
        (with(Obfs::Tls, SnellVersion::V5), MEASURED),
        (with(Obfs::Off, shaped), MEASURED_SHORT),
        (with(Obfs::Off, unshaped), MEASURED_SHORT),
    ]
}

/// One test alone in this file: others would be counted as well.
#[test]
fn bytes_pass_without_allocations() {
    within(110, || {
        for (setup, measured) in every_kind() {
            let (pair, what) = (setup.pair(), format!("{:?}, {:?}", setup.version, setup.obfs));
            let source = Target::new(move |stream| {
                let block = vec![7; 1 << 20];
                send(&stream, &block, WARM_UP + measured);
                drop((&stream).read(&mut [0]));
            });
            let mut block = vec![0; 1 << 20];
            let down = pair.client.tunnel(source.addr);
            receive(&down, &mut block, WARM_UP);
            measure(&format!("down, {what}"), measured, || receive(&down, &mut block, measured));

            let sink = Target::new(move |mut stream| {
                let mut block = vec![0; 1 << 20];
                for part in [WARM_UP, measured] {
                    receive(&stream, &mut block, part);
                    stream.write_all(&[1]).unwrap();
                }
                drop(stream.read(&mut [0]));
            });
            let mut up = pair.client.tunnel(sink.addr);
            let mut done = [0];
            send(&up, &block, WARM_UP);
            up.read_exact(&mut done).unwrap();
            measure(&format!("up, {what}"), measured, || {
                send(&up, &block, measured);
                (&up).read_exact(&mut done).unwrap();
            });
        }
    });
}
