//! With icpz/open-snell, which speaks versions 1 to 3.
//!
//! The binaries are `$ADIT_OLD_SNELL_SERVER` and `$ADIT_OLD_SNELL_CLIENT`; without them these tests say so and pass.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use adit_model::SnellVersion;
use adit_testkit::peer::{Peer, program_of};
use adit_testkit::unused_addr;

use super::only;
use crate::common::{PSK, Target, expect_pattern, mix, send_pattern, socks5, wait_for, within};

fn start(program: &OsString, addr: SocketAddr, config: &str) -> Peer {
    Peer::with_config(program, &["-c"], config, addr)
}

/// A target that sends back as many bytes as it has been told to expect.
fn mirror() -> Target {
    Target::new(|mut stream| {
        let mut len = [0; 4];
        while stream.read_exact(&mut len).is_ok() {
            let mut bytes = vec![0; usize::try_from(u32::from_le_bytes(len)).unwrap()];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    })
}

fn many(tunnel: impl Fn(SocketAddr) -> TcpStream + Sync) {
    let target = mirror();
    thread::scope(|scope| {
        for n in 0..20 {
            let (tunnel, target) = (&tunnel, &target);
            scope.spawn(move || {
                for round in 0..5 {
                    let len = usize::try_from(mix(n + round) % 200_000).unwrap();
                    let mut stream = tunnel(target.addr);
                    stream.write_all(&u32::try_from(len).unwrap().to_le_bytes()).unwrap();
                    send_pattern(&stream, n, len).unwrap();
                    expect_pattern(&stream, n, len);
                }
            });
        }
    });
}

#[test]
#[ignore = "needs icpz/open-snell"]
fn interop_old_server() {
    let Some(program) = program_of("ADIT_OLD_SNELL_SERVER") else { return };
    within(100, move || {
        let addr = unused_addr();
        let _server = start(&program, addr, &format!("[snell-server]\nlisten = {addr}\npsk = {PSK}\n"));
        for version in [SnellVersion::V1, SnellVersion::V2, SnellVersion::V3] {
            let client = only(version).client(addr);
            many(|target| client.tunnel(target));
            wait_for("nothing is left", || client.open() == 0);
            eprintln!("{version:?}: {:?}", client.out());
        }
    });
}

#[test]
#[ignore = "needs icpz/open-snell"]
fn interop_old_client() {
    let Some(program) = program_of("ADIT_OLD_SNELL_CLIENT") else { return };
    within(100, move || {
        for (version, number) in [(SnellVersion::V1, 1), (SnellVersion::V2, 2)] {
            let server = only(version).server();
            let addr = unused_addr();
            let config = format!(
                "[snell-client]\nlisten = {addr}\nserver = {}\npsk = {PSK}\nversion = {number}\n",
                server.addr
            );
            let _client = start(&program, addr, &config);
            many(|target| {
                let (stream, code) = socks5(addr, &target.ip().to_string(), target.port());
                assert_eq!(code, 0);
                stream
            });
            let inbound = &server.running().status().inbounds[0];
            eprintln!("{version:?}: {} connections for {} requests", inbound.accepted, inbound.requests);
        }
    });
}
