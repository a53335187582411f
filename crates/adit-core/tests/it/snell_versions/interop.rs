//! With sing-box: its clients of 4 and 6, its servers of 5 and 6, each mode, reuse on and off.
//!
//! The binary is `$ADIT_SING_BOX` or `sing-box` in the path; where there is none these tests say so and pass.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use adit_config::model::SnellVersion;
use adit_testkit::peer::{Peer, sing_box};
use adit_testkit::unused_addr;

use super::{RAW, UNSHAPED, V6, auto, only};
use crate::common::{
    PSK, Setup, Target, expect_end, expect_pattern, expect_reset, mix, send_pattern, socks5, wait_for, within,
};

const MIB: usize = 1 << 20;

/// A running sing-box.
struct SingBox {
    addr: SocketAddr,
    _peer: Peer,
}

/// The fields of its configuration for a version; `as_client` since it is called 4 there and 5 in servers.
fn fields(version: SnellVersion, as_client: bool) -> String {
    match version.mode() {
        Some(mode) => format!(r#""version":6,"mode":"{}""#, mode.name()),
        None => format!(r#""version":{}"#, if as_client { 4 } else { 5 }),
    }
}

impl SingBox {
    fn start(program: &OsString, addr: SocketAddr, config: &str) -> Self {
        Self { addr, _peer: Peer::with_config(program, &["run", "-c"], config, addr) }
    }

    fn server(program: &OsString, version: SnellVersion) -> Self {
        let addr = unused_addr();
        let config = format!(
            r#"{{"log":{{"level":"fatal"}},
            "inbounds":[{{"type":"snell","listen":"{}","listen_port":{},"psk":"{PSK}",{}}}],
            "outbounds":[{{"type":"direct"}}]}}"#,
            addr.ip(),
            addr.port(),
            fields(version, false)
        );
        Self::start(program, addr, &config)
    }

    fn client(program: &OsString, server: SocketAddr, version: SnellVersion, reuse: bool) -> Self {
        let addr = unused_addr();
        let config = format!(
            r#"{{"log":{{"level":"fatal"}},
            "inbounds":[{{"type":"mixed","listen":"{}","listen_port":{}}}],
            "outbounds":[{{"type":"snell","server":"{}","server_port":{},"psk":"{PSK}","reuse":{reuse},{}}}]}}"#,
            addr.ip(),
            addr.port(),
            server.ip(),
            server.port(),
            fields(version, true)
        );
        Self::start(program, addr, &config)
    }

    fn tunnel(&self, target: SocketAddr) -> TcpStream {
        let (stream, code) = socks5(self.addr, &target.ip().to_string(), target.port());
        assert_eq!(code, 0);
        stream
    }
}

fn every_kind() -> Vec<(SnellVersion, bool)> {
    [SnellVersion::V4, V6, UNSHAPED, RAW].into_iter().flat_map(|v| [(v, false), (v, true)]).collect()
}

/// Bulk both ways, then many small ones at once.
fn bulk_and_many(tunnel: impl Fn(SocketAddr) -> TcpStream + Sync) {
    let source = Target::new(|stream| send_pattern(&stream, 7, 16 * MIB).unwrap());
    let stream = tunnel(source.addr);
    expect_pattern(&stream, 7, 16 * MIB);
    expect_end(&stream);
    let sink = Target::new(|mut stream| {
        expect_pattern(&stream, 8, 16 * MIB);
        stream.write_all(b"whole").unwrap();
    });
    let mut stream = tunnel(sink.addr);
    send_pattern(&stream, 8, 16 * MIB).unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((&answer, sink.panics()), (b"whole", 0));
    let target = Target::new(|mut stream| {
        let mut len = [0; 4];
        stream.read_exact(&mut len).unwrap();
        let mut bytes = vec![0; usize::try_from(u32::from_le_bytes(len)).unwrap()];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    thread::scope(|scope| {
        for n in 0..60 {
            let (tunnel, target) = (&tunnel, &target);
            scope.spawn(move || {
                let len = usize::try_from(mix(n) % 50_000).unwrap();
                let mut stream = tunnel(target.addr);
                stream.write_all(&u32::try_from(len).unwrap().to_le_bytes()).unwrap();
                send_pattern(&stream, n, len).unwrap();
                expect_pattern(&stream, n, len);
                expect_end(&stream);
            });
        }
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_adit_client() {
    let Some(program) = sing_box() else { return };
    within(200, move || {
        for (version, reuse) in every_kind() {
            eprintln!("{version:?}, reuse {reuse}");
            let server = SingBox::server(&program, version);
            let client = Setup { reuse, ..only(version) }.client(server.addr);
            bulk_and_many(|target| client.tunnel(target));
            wait_for("nothing is left", || client.open() == 0);
        }
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_adit_server() {
    let Some(program) = sing_box() else { return };
    within(200, move || {
        for (version, reuse) in every_kind() {
            eprintln!("{version:?}, reuse {reuse}");
            let server = only(version).server();
            let client = SingBox::client(&program, server.addr, version, reuse);
            bulk_and_many(|target| client.tunnel(target));
        }
    });
}

/// Three kinds of client on one port.
#[test]
#[ignore = "needs sing-box"]
fn interop_adit_server_tells_versions_apart() {
    let Some(program) = sing_box() else { return };
    within(200, move || {
        let server = auto(V6).server();
        for (version, reuse) in every_kind().into_iter().filter(|(version, _)| *version != RAW) {
            eprintln!("{version:?}, reuse {reuse}");
            let client = SingBox::client(&program, server.addr, version, reuse);
            bulk_and_many(|target| client.tunnel(target));
        }
        assert_eq!(server.refused("authentication"), 0);
    });
}

/// A thousand requests, and how many connections they took.
#[test]
#[ignore = "needs sing-box"]
fn interop_reuse() {
    let Some(program) = sing_box() else { return };
    within(200, move || {
        let target = Target::new(|mut stream| {
            let mut request = [0; 4];
            if stream.read_exact(&mut request).is_ok() {
                send_pattern(&stream, 6, 200).unwrap();
            }
        });
        let ask = |tunnel: &dyn Fn(SocketAddr) -> TcpStream| {
            let mut stream = tunnel(target.addr);
            stream.write_all(b"GET!").unwrap();
            expect_pattern(&stream, 6, 200);
            expect_end(&stream);
        };
        for version in [V6, UNSHAPED, RAW] {
            let server = SingBox::server(&program, version);
            let client = only(version).client(server.addr);
            for _ in 0..300 {
                ask(&|target| client.tunnel(target));
                wait_for("the exchange has ended", || client.open() == 0);
            }
            assert!(client.out().dialled <= 2, "{version:?}: {:?}", client.out());
            let server = only(version).server();
            let client = SingBox::client(&program, server.addr, version, true);
            for _ in 0..300 {
                ask(&|target| client.tunnel(target));
            }
            let inbound = &server.running().status().inbounds[0];
            eprintln!("{version:?}: {} connections for {} requests", inbound.accepted, inbound.requests);
            assert!(inbound.requests == 300 && inbound.accepted <= 20);
        }
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_late_answers_and_errors() {
    let Some(program) = sing_box() else { return };
    within(200, move || {
        for (version, reuse) in every_kind() {
            let server = SingBox::server(&program, version);
            let client = Setup { reuse, ..only(version) }.client(server.addr);
            let target = Target::new(|mut stream| {
                let mut request = [0; 4];
                stream.read_exact(&mut request).unwrap();
                thread::sleep(Duration::from_millis(300));
                send_pattern(&stream, 6, MIB).unwrap();
            });
            let mut stream = client.tunnel(target.addr);
            stream.write_all(b"GET!").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            expect_pattern(&stream, 6, MIB);
            expect_end(&stream);
            let mut stream = client.tunnel(unused_addr());
            stream.write_all(b"GET!").unwrap();
            expect_reset(&stream);
            let server = only(version).server();
            let client = SingBox::client(&program, server.addr, version, reuse);
            let dead = unused_addr();
            let (mut stream, code) = socks5(client.addr, &dead.ip().to_string(), dead.port());
            drop(stream.write_all(b"GET!"));
            let end = stream.read(&mut [0; 1]);
            assert!(code != 0 || !matches!(end, Ok(1..)), "{version:?}: {code} {end:?}");
        }
    });
}
