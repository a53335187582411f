//! Against sing-box, over loopback: its Snell 5 server and its Snell 4 client.
//!
//! The binary is `$ADIT_SING_BOX` or `sing-box` in the path; where there is none these tests say so and pass.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Duration;

use adit_model::HalfClose;
use adit_testkit::peer::sing_box;

use crate::common::{
    Obfs, Setup, Target, echo, exchange, expect_end, expect_pattern, send_pattern, wait_for, within,
};
use crate::sing_box::{SingBox, assert_refused, assert_reset, bulk_and_many};

const MIB: usize = 1 << 20;

/// A server of version 5.
fn sing_box_server(program: &OsString, obfs: Obfs) -> SingBox {
    let mode = if obfs == Obfs::Http { r#","obfs_mode":"http""# } else { "" };
    SingBox::server(program, &format!(r#""version":5{mode}"#))
}

/// A client of version 5, which is called 4 there.
fn sing_box_client(program: &OsString, server: SocketAddr, obfs: Obfs, reuse: bool) -> SingBox {
    let mode = if obfs == Obfs::Http { r#","obfs_mode":"http","obfs_host":"www.example.com""# } else { "" };
    SingBox::client(program, server, &format!(r#""version":4{mode}"#), reuse)
}

fn every_kind() -> Vec<(Obfs, bool)> {
    vec![(Obfs::Off, false), (Obfs::Off, true), (Obfs::Http, false), (Obfs::Http, true)]
}

/// Answers the 4 bytes of a request with `len` bytes after a pause, in `parts` with the same pause between them.
fn answers(len: usize, pause: Duration, parts: usize) -> Target {
    Target::new(move |mut stream| {
        let mut request = [0; 4];
        if stream.read_exact(&mut request).is_err() {
            return;
        }
        let mut pattern = crate::common::Pattern::new(6);
        for _ in 0..parts {
            thread::sleep(pause);
            let mut block = vec![0; len / parts];
            pattern.fill(&mut block);
            stream.write_all(&block).unwrap();
        }
    })
}

#[test]
#[ignore = "needs sing-box"]
fn interop_adit_client_bulk_and_many() {
    let Some(program) = sing_box() else { return };
    within(110, move || {
        for (obfs, reuse) in every_kind() {
            let server = sing_box_server(&program, obfs);
            let client = Setup { obfs, reuse, ..Setup::default() }.client(server.addr);
            bulk_and_many(|target| client.tunnel(target), 32 * MIB, 100);
            wait_for("nothing is left", || client.open() == 0);
        }
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_adit_server_bulk_and_many() {
    let Some(program) = sing_box() else { return };
    within(110, move || {
        for (obfs, reuse) in every_kind() {
            let server = Setup { obfs, ..Setup::default() }.server();
            let client = sing_box_client(&program, server.addr, obfs, reuse);
            bulk_and_many(|target| client.tunnel(target), 32 * MIB, 100);
        }
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_adit_client_reuses_one_connection() {
    let Some(program) = sing_box() else { return };
    within(110, move || {
        for obfs in [Obfs::Off, Obfs::Http] {
            for client_first in [false, true] {
                let server = sing_box_server(&program, obfs);
                let client = Setup { obfs, ..Setup::default() }.client(server.addr);
                let target = if client_first {
                    Target::new(|mut stream| {
                        let mut request = [0; 4];
                        while stream.read_exact(&mut request).is_ok() {
                            send_pattern(&stream, 6, 200).unwrap();
                        }
                    })
                } else {
                    answers(200, Duration::ZERO, 1)
                };
                for _ in 0..1000 {
                    let mut stream = client.tunnel(target.addr);
                    stream.write_all(b"GET!").unwrap();
                    expect_pattern(&stream, 6, 200);
                    if !client_first {
                        expect_end(&stream);
                    }
                    drop(stream);
                    wait_for("the exchange has ended", || client.open() == 0);
                }
                let out = client.out();
                eprintln!("{obfs:?}, client first {client_first}: {} connections", out.dialled);
                assert!(out.dialled <= 2, "{obfs:?}, client first {client_first}: {out:?}");
            }
        }
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_adit_server_is_reused() {
    let Some(program) = sing_box() else { return };
    within(110, move || {
        let server = Setup::default().server();
        let client = sing_box_client(&program, server.addr, Obfs::Off, true);
        let target = answers(200, Duration::ZERO, 1);
        for _ in 0..1000 {
            let mut stream = client.tunnel(target.addr);
            stream.write_all(b"GET!").unwrap();
            expect_pattern(&stream, 6, 200);
            expect_end(&stream);
            drop(stream);
        }
        let status = server.running().status();
        let (accepted, requests) = (status.inbounds[0].accepted, status.inbounds[0].requests);
        eprintln!("sing-box made {accepted} connections for {requests} requests");
        // Its client opens another one when a request comes before it has taken the last connection back.
        assert!(requests == 1000 && accepted <= 20);
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_late_half_close_loses_no_byte() {
    let Some(program) = sing_box() else { return };
    within(110, move || {
        for (obfs, reuse) in every_kind() {
            let server = sing_box_server(&program, obfs);
            let setup = Setup { obfs, reuse, half_close: HalfClose::Late, ..Setup::default() };
            let client = setup.client(server.addr);
            let target = answers(MIB, Duration::from_millis(300), 1);
            for _ in 0..3 {
                let mut stream = client.tunnel(target.addr);
                stream.write_all(b"GET!").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                expect_pattern(&stream, 6, MIB);
                expect_end(&stream);
            }
        }
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_late_half_close_survives_pauses_in_the_answer() {
    let Some(program) = sing_box() else { return };
    within(110, move || {
        for reuse in [false, true] {
            let server = sing_box_server(&program, Obfs::Off);
            let client = Setup { reuse, ..Setup::default() }.client(server.addr);
            let target = answers(3000, Duration::from_secs(4), 3);
            let mut stream = client.tunnel(target.addr);
            stream.write_all(b"GET!").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            expect_pattern(&stream, 6, 3000);
            expect_end(&stream);
        }
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_half_close_at_once() {
    let Some(program) = sing_box() else { return };
    within(60, move || {
        // The sing-box client half-closes, the adit server carries it on.
        let server = Setup::default().server();
        let client = sing_box_client(&program, server.addr, Obfs::Off, false);
        let target = Target::echo();
        let stream = client.tunnel(target.addr);
        exchange(&stream, (1, 100_000), (1, 100_000));
        // And the other way round, as far as the sing-box server does: this is what the default avoids.
        let server = sing_box_server(&program, Obfs::Off);
        let client = Setup { half_close: HalfClose::On, ..Setup::default() }.client(server.addr);
        let late = Target::on("127.0.0.1", echo);
        let mut stream = client.tunnel(late.addr);
        stream.write_all(b"1234").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        eprintln!("half-close = on against sing-box: {} of 4 bytes, {end:?}", answer.len());
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_errors_reach_the_local_side() {
    let Some(program) = sing_box() else { return };
    within(60, move || {
        for reuse in [false, true] {
            let server = sing_box_server(&program, Obfs::Off);
            let client = Setup { reuse, ..Setup::default() }.client(server.addr);
            for _ in 0..3 {
                assert_reset(|target| client.tunnel(target));
            }
            wait_for("nothing is left", || client.open() == 0);
            let server = Setup::default().server();
            let client = sing_box_client(&program, server.addr, Obfs::Off, reuse);
            assert_refused(&client, &format!("reuse {reuse}"));
            assert_eq!(server.out().failed, 1);
        }
    });
}
