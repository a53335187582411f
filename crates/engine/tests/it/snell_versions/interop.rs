//! With sing-box: its clients of 4 and 6, its servers of 5 and 6, each mode, reuse on and off.
//!
//! The binary is `$ADIT_SING_BOX` or `sing-box` in the path; where there is none these tests say so and pass.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use adit_model::SnellVersion;
use adit_testkit::peer::sing_box;

use super::{RAW, UNSHAPED, V6, auto, only};
use crate::common::{Setup, Target, expect_end, expect_pattern, send_pattern, wait_for, within};
use crate::sing_box::{SingBox, assert_refused, assert_reset, bulk_and_many, fields};

const MIB: usize = 1 << 20;

fn every_kind() -> Vec<(SnellVersion, bool)> {
    [SnellVersion::V4, V6, UNSHAPED, RAW].into_iter().flat_map(|v| [(v, false), (v, true)]).collect()
}

#[test]
#[ignore = "needs sing-box"]
fn interop_adit_client() {
    let Some(program) = sing_box() else { return };
    within(200, move || {
        for (version, reuse) in every_kind() {
            eprintln!("{version:?}, reuse {reuse}");
            let server = SingBox::server(&program, &fields(version, false));
            let client = Setup { reuse, ..only(version) }.client(server.addr);
            bulk_and_many(|target| client.tunnel(target), 16 * MIB, 60);
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
            let client = SingBox::client(&program, server.addr, &fields(version, true), reuse);
            bulk_and_many(|target| client.tunnel(target), 16 * MIB, 60);
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
            let client = SingBox::client(&program, server.addr, &fields(version, true), reuse);
            bulk_and_many(|target| client.tunnel(target), 16 * MIB, 60);
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
            let server = SingBox::server(&program, &fields(version, false));
            let client = only(version).client(server.addr);
            for _ in 0..300 {
                ask(&|target| client.tunnel(target));
                wait_for("the exchange has ended", || client.open() == 0);
            }
            assert!(client.out().dialled <= 2, "{version:?}: {:?}", client.out());
            let server = only(version).server();
            let client = SingBox::client(&program, server.addr, &fields(version, true), true);
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
            let server = SingBox::server(&program, &fields(version, false));
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
            assert_reset(|target| client.tunnel(target));
            let server = only(version).server();
            let client = SingBox::client(&program, server.addr, &fields(version, true), reuse);
            assert_refused(&client, &format!("{version:?}"));
        }
    });
}
