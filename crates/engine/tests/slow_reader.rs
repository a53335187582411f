//! A reader that stops, with the memory that this costs: alone in its process, so that nobody else's counts.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]
#![allow(clippy::disallowed_methods, reason = "clients and targets of this test are plain ones")]
#![allow(dead_code, reason = "the helpers serve several tests")]

#[path = "it/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{Setup, Target, wait_for, within};

const MIB: usize = 1 << 20;

#[test]
fn a_slow_reader_stops_the_writer() {
    within(60, || {
        let pair = Setup::default().pair();
        let sent = Arc::new(AtomicUsize::new(0));
        let counter = sent.clone();
        let target = Target::new(move |mut stream| {
            let block = vec![9; 64 * 1024];
            while counter.load(Ordering::Relaxed) < 256 * MIB && stream.write_all(&block).is_ok() {
                counter.fetch_add(block.len(), Ordering::Relaxed);
            }
        });
        let before = resident();
        let mut stream = pair.client.tunnel(target.addr);
        wait_for("data flows", || sent.load(Ordering::Relaxed) > 0);
        let mut last = usize::MAX;
        wait_for("the target is stopped", || {
            // Nothing moves for so long.
            thread::sleep(Duration::from_millis(500));
            std::mem::replace(&mut last, sent.load(Ordering::Relaxed)) == sent.load(Ordering::Relaxed)
        });
        assert!(last < 64 * MIB, "{last} bytes are under way");
        let grown = resident().saturating_sub(before);
        assert!(grown < 8 * MIB as u64, "{grown} bytes of memory more");
        // And it goes on.
        let mut received = 0;
        let mut block = vec![0; 256 * 1024];
        while received < 128 * MIB {
            received += stream.read(&mut block).unwrap();
        }
    });
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    1024 * line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
}
