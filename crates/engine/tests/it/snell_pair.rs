//! An adit client and an adit server, over loopback, as applications and targets see them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adit_model::{HalfClose, Limits, Reply};
use adit_testkit::{has_ipv6, in_time, unused_addr};

use crate::common::{
    Obfs, Pattern, Setup, Target, bulk_both_ways, connect, echo, exchange, expect_end, expect_pattern,
    expect_reset, mix, reset, send_pattern, socks5, wait_for, within,
};

const MIB: usize = 1 << 20;

fn every_kind() -> Vec<Setup> {
    let mut all = Vec::new();
    for obfs in [Obfs::Off, Obfs::Http, Obfs::Tls] {
        for reuse in [false, true] {
            all.push(Setup { obfs, reuse, half_close: HalfClose::On, ..Setup::default() });
        }
    }
    all
}

#[test]
fn echo_over_every_kind() {
    within(60, || {
        for setup in every_kind() {
            let pair = setup.pair_after_exchanges();
            let status = pair.server.running().status();
            let bytes = 305_101;
            assert_eq!((status.inbounds[0].up_bytes, status.inbounds[0].down_bytes), (bytes, bytes));
        }
    });
}

#[test]
fn bulk_in_each_direction() {
    within(100, || {
        for setup in every_kind() {
            if setup.reuse && setup.obfs == Obfs::Http {
                continue;
            }
            let len = if setup.obfs == Obfs::Off { 64 * MIB } else { 16 * MIB };
            let pair = setup.pair();
            bulk_both_ways(|target| pair.client.tunnel(target), len);
            let both = Target::echo();
            let stream = pair.client.tunnel(both.addr);
            exchange(&stream, (9, 4 * MIB), (9, 4 * MIB));
        }
    });
}

#[test]
fn two_hundred_connections_at_once() {
    if !adit_testkit::descriptors(4096) {
        return;
    }
    within(60, || {
        for reuse in [false, true] {
            let setup = Setup { cores: 2, reuse, half_close: HalfClose::On, ..Setup::default() };
            let (pair, target) = (setup.pair(), Target::echo());
            thread::scope(|scope| {
                for n in 0..200 {
                    let (pair, target) = (&pair, &target);
                    scope.spawn(move || {
                        let len = usize::try_from(mix(n) % 200_000).unwrap();
                        let stream = pair.client.tunnel(target.addr);
                        exchange(&stream, (n, len), (n, len));
                    });
                }
            });
            pair.wait_until_idle();
            assert_eq!(target.accepted(), 200);
        }
    });
}

#[test]
fn targets_by_name_and_by_address_of_either_family() {
    within(30, || {
        let pair = Setup { half_close: HalfClose::On, ..Setup::default() }.pair();
        let v4 = Target::echo();
        let mut targets = vec![("127.0.0.1", v4.addr.port()), ("localhost", v4.addr.port())];
        let v6 = has_ipv6().then(|| Target::on("::1", echo));
        if let Some(v6) = &v6 {
            targets.push(("::1", v6.addr.port()));
        }
        for (host, port) in targets {
            let stream = pair.client.tunnel_to(host, port);
            exchange(&stream, (1, 1000), (1, 1000));
        }
    });
}

#[test]
fn either_side_may_speak_first() {
    within(30, || {
        for setup in every_kind() {
            let pair = setup.pair();
            let server_first = Target::new(|mut stream| {
                stream.write_all(b"220 ready\r\n").unwrap();
                echo(stream);
            });
            let mut stream = pair.client.tunnel(server_first.addr);
            let mut greeting = [0; 11];
            stream.read_exact(&mut greeting).unwrap();
            assert_eq!(&greeting, b"220 ready\r\n");
            stream.write_all(b"EHLO").unwrap();
            stream.read_exact(&mut greeting[..4]).unwrap();
            assert_eq!(&greeting[..4], b"EHLO");
            // A long pause, longer than the wait for first bytes.
            let target = Target::echo();
            let mut stream = pair.client.tunnel(target.addr);
            thread::sleep(Duration::from_millis(60));
            stream.write_all(b"late").unwrap();
            stream.read_exact(&mut greeting[..4]).unwrap();
            assert_eq!(&greeting[..4], b"late");
        }
    });
}

#[test]
fn data_right_behind_the_request() {
    within(30, || {
        for len in [1, 900, 5000, 60_000, 200_000] {
            let (pair, target) = (Setup::default().pair(), Target::echo());
            for _ in 0..2 {
                let mut stream = connect(pair.client.addr);
                let mut bytes = vec![5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1];
                bytes.extend(target.addr.port().to_be_bytes());
                bytes.extend(Pattern::bytes(3, len));
                thread::scope(|scope| {
                    scope.spawn(|| (&stream).write_all(&bytes).unwrap());
                    let mut replies = [0; 12];
                    (&stream).read_exact(&mut replies).unwrap();
                    expect_pattern(&stream, 3, len);
                });
                stream.write_all(b"x").unwrap();
            }
        }
    });
}

/// The end of a request, and then an answer that takes its time.
fn answers_after_the_end(len: usize, pause: Duration) -> Target {
    Target::new(move |mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        // The answer takes its time.
        thread::sleep(pause);
        let seed = request.len() as u64;
        send_pattern(&stream, seed, len).unwrap();
    })
}

#[test]
fn half_close_is_carried_end_to_end() {
    within(60, || {
        for setup in every_kind() {
            let setup = Setup { half_close: HalfClose::On, ..setup };
            let (pair, target) = (setup.pair(), answers_after_the_end(3 * MIB, Duration::from_millis(100)));
            for len in [0, 1, 100_000, 2 * MIB] {
                let stream = pair.client.tunnel(target.addr);
                send_pattern(&stream, 5, len).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                expect_pattern(&stream, len as u64, 3 * MIB);
                expect_end(&stream);
            }
            pair.wait_until_idle();
            assert_eq!(pair.client.out().dialled, if setup.reuse { 1 } else { 4 });
        }
    });
}

/// Answers `len` bytes after a pause, when the request's 4 bytes are there; then waits for the end.
fn answers_at_once(len: usize, pause: Duration) -> Target {
    Target::new(move |mut stream| {
        let mut request = [0; 4];
        stream.read_exact(&mut request).unwrap();
        // The answer takes its time.
        thread::sleep(pause);
        send_pattern(&stream, 6, len).unwrap();
    })
}

/// Answers 200 bytes when `len` bytes are there.
fn gulps(len: usize) -> Target {
    Target::new(move |mut stream| {
        stream.read_exact(&mut vec![0; len]).unwrap();
        send_pattern(&stream, 6, 200).unwrap();
    })
}

#[test]
fn late_half_close_loses_nothing_and_keeps_the_connection() {
    within(60, || {
        for obfs in [Obfs::Off, Obfs::Http, Obfs::Tls] {
            let setup = Setup { obfs, ..Setup::default() };
            let (pair, target) = (setup.pair(), answers_at_once(MIB, Duration::from_millis(100)));
            for _ in 0..5 {
                let mut stream = pair.client.tunnel(target.addr);
                stream.write_all(b"GET!").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                expect_pattern(&stream, 6, MIB);
                expect_end(&stream);
            }
            pair.wait_until_idle();
            let out = pair.client.out();
            assert_eq!((out.dialled, out.reused), (1, 4), "{obfs:?}");
        }
    });
}

#[test]
fn late_half_close_bears_pauses_in_the_answer() {
    within(30, || {
        let pair = Setup::default().pair();
        // Many servers drop what follows the client's end: it must not be seen before the answer's.
        let target = Target::new(|mut stream| {
            let mut request = [0; 4];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(b"head").unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
            let end = stream.read(&mut request).map_err(|error| error.kind());
            assert_eq!(end, Err(std::io::ErrorKind::WouldBlock));
            stream.write_all(b"tail").unwrap();
        });
        let mut stream = pair.client.tunnel(target.addr);
        stream.write_all(b"GET!").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!((&answer[..], target.panics()), (&b"headtail"[..], 0));
    });
}

#[test]
fn a_local_client_that_goes_after_its_end_is_noticed() {
    within(30, || {
        let pair = Setup::default().pair();
        let target = Target::echo();
        let mut stream = pair.client.tunnel(target.addr);
        stream.write_all(b"ping").unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // The end alone ends nothing.
        thread::sleep(Duration::from_millis(1500));
        assert_eq!(pair.client.open(), 1);
        drop(stream);
        wait_for("the exchange has ended", || pair.client.open() == 0);
        assert_eq!(pair.client.out().idle, 1);
    });
}

#[test]
fn an_end_without_any_data_still_makes_the_request() {
    within(120, || {
        in_time(|| {
            for half_close in [HalfClose::On, HalfClose::Late] {
                let pair = Setup { half_close, ..Setup::default() }.pair();
                let target = Target::new(|stream| send_pattern(&stream, 1, 1000).unwrap());
                let started = Instant::now();
                let stream = pair.client.tunnel(target.addr);
                stream.shutdown(Shutdown::Write).unwrap();
                expect_pattern(&stream, 1, 1000);
                expect_end(&stream);
                assert!(
                    started.elapsed() < Duration::from_secs(1),
                    "{half_close:?}: {:?}",
                    started.elapsed()
                );
            }
        });
    });
}

#[test]
fn a_local_client_that_is_gone_ends_the_exchange() {
    within(240, || {
        in_time(|| {
            let (pair, target) = (Setup::default().pair(), Target::echo());
            for n in 0..200 {
                let mut stream = pair.client.tunnel(target.addr);
                stream.write_all(b"ping").unwrap();
                let mut answer = [0; 4];
                stream.read_exact(&mut answer).unwrap();
                let closed = Instant::now();
                drop(stream);
                wait_for("the exchange has ended", || pair.client.open() == 0);
                assert!(closed.elapsed() < Duration::from_millis(900), "{n}: {:?}", closed.elapsed());
            }
            let out = pair.client.out();
            assert_eq!((out.dialled, out.reused), (1, 199));
        });
    });
}

#[test]
fn a_target_that_says_nothing_ends_cleanly() {
    within(30, || {
        for setup in every_kind() {
            let pair = setup.pair();
            let target = Target::new(|mut stream| {
                let mut request = [0; 4];
                stream.read_exact(&mut request).unwrap();
            });
            for _ in 0..3 {
                let mut stream = pair.client.tunnel(target.addr);
                stream.write_all(b"GET!").unwrap();
                expect_end(&stream);
            }
            pair.wait_until_idle();
            assert_eq!(pair.client.out().dialled, if setup.reuse { 1 } else { 3 }, "{setup:?}");
        }
    });
}

#[test]
fn a_target_that_cannot_be_reached() {
    within(30, || {
        for setup in every_kind() {
            let pair = setup.pair();
            let dead = unused_addr();
            expect_reset(&pair.client.tunnel(dead));
            expect_reset(&pair.client.tunnel_to("no-such-name.invalid", 80));
            let mut stream = pair.client.tunnel(dead);
            stream.write_all(&[7; 3000]).unwrap();
            expect_reset(&stream);
            wait_for("no connection is left", || pair.client.open() == 0 && pair.server.open() == 0);
            assert_eq!(pair.server.out().failed, 3);
        }
        // The dial to the server is known to have worked: success; without tunnel the real code.
        let pair = Setup { reply: Reply::Connected, ..Setup::default() }.pair();
        expect_reset(&pair.client.tunnel(unused_addr()));
        let direct = Setup { reply: Reply::Connected, ..Setup::default() }.direct();
        let dead = unused_addr();
        assert_eq!(socks5(direct.addr, &dead.ip().to_string(), dead.port()).1, 5);
        assert_eq!(socks5(direct.addr, "no-such-name.invalid", 80).1, 4);
        let orphan = Setup { reply: Reply::Connected, ..Setup::default() }.client(unused_addr());
        assert_eq!(socks5(orphan.addr, "127.0.0.1", 80).1, 5);
        let orphan = Setup::default().client(unused_addr());
        expect_reset(&orphan.tunnel(unused_addr()));
    });
}

#[test]
fn many_slow_readers_do_not_stop_the_others() {
    if !adit_testkit::descriptors(4096) {
        return;
    }
    within(100, || {
        let setup = Setup { half_close: HalfClose::On, ..Setup::default() };
        let (pair, quick) = (setup.pair(), Target::echo());
        let flood = Target::new(|mut stream| {
            let block = vec![9; 256 * 1024];
            while stream.write_all(&block).is_ok() {}
        });
        let slow: Vec<_> = (0..300).map(|_| pair.client.tunnel(flood.addr)).collect();
        for stream in &slow {
            assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
        }
        // Buffers fill until the flood stands still.
        thread::sleep(Duration::from_secs(2));
        let stream = pair.client.tunnel(quick.addr);
        exchange(&stream, (1, 100_000), (1, 100_000));
    });
}

#[test]
fn an_abort_of_either_side_reaches_the_other() {
    within(60, || {
        for setup in every_kind() {
            // Without reuse; a connection that is to be kept ends the exchange in order instead.
            let setup = Setup { reuse: false, ..setup };
            let pair = setup.pair();
            let ends = Arc::new(Mutex::new(Vec::new()));
            let seen = ends.clone();
            let target = Target::new(move |mut stream| {
                stream.write_all(b"hello").unwrap();
                let mut block = [0; 1024];
                let end = loop {
                    match stream.read(&mut block) {
                        Ok(0) => break "end",
                        Ok(_) => {}
                        Err(_) => break "reset",
                    }
                };
                seen.lock().unwrap().push(end);
            });
            let mut stream = pair.client.tunnel(target.addr);
            stream.write_all(b"upload").unwrap();
            reset(stream);
            wait_for("the target sees the end", || !ends.lock().unwrap().is_empty());
            assert_eq!(*ends.lock().unwrap(), ["reset"], "{setup:?}");

            let breaks = Target::new(|mut stream| {
                stream.write_all(b"half an ans").unwrap();
                reset(stream);
            });
            let mut stream = pair.client.tunnel(breaks.addr);
            stream.write_all(b"x").unwrap();
            expect_reset(&stream);
            wait_for("nothing is left", || pair.client.open() == 0 && pair.server.open() == 0);
        }
    });
}

#[test]
fn a_target_that_resets_without_an_answer_is_asked_once() {
    within(30, || {
        let pair = Setup { half_close: HalfClose::On, ..Setup::default() }.pair();
        let (echo, breaks) = (Target::echo(), Target::new(reset));
        for _ in 0..3 {
            let stream = pair.client.tunnel(echo.addr);
            exchange(&stream, (1, 10), (1, 10));
            wait_for("a kept connection", || pair.client.out().idle == 1);
            let mut stream = pair.client.tunnel(breaks.addr);
            stream.write_all(b"POST").unwrap();
            expect_reset(&stream);
        }
        assert_eq!(breaks.accepted(), 3);
    });
}

#[test]
fn an_answer_arrives_although_the_target_takes_no_more() {
    within(60, || {
        for setup in every_kind() {
            let pair = setup.pair();
            // Too large an upload, refused at once: the answer, then perhaps an end, then the close, which is a reset
            // over the bytes that are unread.
            let ends = AtomicUsize::new(0);
            let target = Target::new(move |mut stream| {
                let mut request = [0; 4];
                stream.read_exact(&mut request).unwrap();
                thread::sleep(Duration::from_millis(20));
                stream.write_all(&Pattern::bytes(2, 10_000)).unwrap();
                if ends.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                    stream.shutdown(Shutdown::Write).unwrap();
                    thread::sleep(Duration::from_millis(50));
                }
            });
            for _ in 0..6 {
                let stream = pair.client.tunnel(target.addr);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        let block = [1; 10_000];
                        while (&stream).write_all(&block).is_ok() {
                            thread::sleep(Duration::from_millis(2));
                        }
                    });
                    thread::sleep(Duration::from_millis(100));
                    expect_pattern(&stream, 2, 10_000);
                    drop(stream.shutdown(Shutdown::Both));
                });
            }
        }
    });
}

#[test]
fn idle_connections_end() {
    within(30, || {
        let limits = Limits { idle: Some(Duration::from_secs(2)), ..Setup::default().limits };
        for (reuse, half_close) in [(false, HalfClose::Late), (true, HalfClose::On)] {
            let setup = Setup { reuse, half_close, limits: limits.clone(), ..Setup::default() };
            let (pair, target) = (setup.pair(), Target::echo());
            let mut quiet = pair.client.tunnel(target.addr);
            quiet.write_all(b"once").unwrap();
            quiet.read_exact(&mut [0; 4]).unwrap();
            let mut busy = pair.client.tunnel(target.addr);
            let since = Instant::now();
            quiet.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let mut has_ended = false;
            wait_for("the quiet one has ended, and the busy one has not", || {
                busy.write_all(b"more").unwrap();
                busy.read_exact(&mut [0; 4]).unwrap();
                let read = quiet.read(&mut [0; 1]).map_err(|error| error.kind());
                has_ended |= matches!(read, Ok(0) | Err(std::io::ErrorKind::ConnectionReset));
                // Between two exchanges.
                thread::sleep(Duration::from_millis(100));
                has_ended && since.elapsed() > Duration::from_secs(6)
            });
            assert_eq!(pair.client.open(), 1);
        }
    });
}

/// `rounds` requests, one after the other; `close` says what the client does behind the answer.
fn sequential(setup: &Setup, rounds: u64, target: &Target, close: impl Fn(TcpStream)) {
    let pair = setup.pair();
    for n in 0..rounds {
        let mut stream = pair.client.tunnel(target.addr);
        stream.write_all(b"GET!").unwrap();
        expect_pattern(&stream, 6, 200);
        close(stream);
        wait_for("the exchange has ended", || pair.client.open() == 0);
        assert_eq!(pair.client.out().dialled + pair.client.out().reused, n + 1);
    }
    let out = pair.client.out();
    assert_eq!((out.dialled, out.reused, out.failed), (1, rounds - 1, 0), "{setup:?}");
    pair.wait_until_idle();
}

#[test]
fn a_thousand_requests_over_one_connection_target_first() {
    within(60, || {
        let target = answers_at_once(200, Duration::ZERO);
        for half_close in [HalfClose::On, HalfClose::Late] {
            let setup = Setup { half_close, ..Setup::default() };
            sequential(&setup, 1000, &target, |stream| expect_end(&stream));
        }
    });
}

#[test]
fn a_thousand_requests_over_one_connection_client_first() {
    within(100, || {
        let target = Target::new(|mut stream| {
            let mut request = [0; 4];
            while stream.read_exact(&mut request).is_ok() {
                stream.write_all(&Pattern::bytes(6, 200)).unwrap();
            }
        });
        for half_close in [HalfClose::On, HalfClose::Late] {
            let setup = Setup { half_close, ..Setup::default() };
            sequential(&setup, 1000, &target, drop);
        }
        for obfs in [Obfs::Http, Obfs::Tls] {
            sequential(&Setup { obfs, ..Setup::default() }, 100, &target, drop);
        }
    });
}

#[test]
fn a_long_request_in_one_piece_with_the_end_of_the_one_before() {
    within(60, || {
        let setup = Setup { half_close: HalfClose::On, ..Setup::default() };
        let server = setup.server();
        let upstream = server.addr;
        // On the way a zero chunk, 23 bytes, waits for what comes behind it.
        let front = Target::new(move |near| {
            let far = connect(upstream);
            thread::scope(|scope| {
                scope.spawn(|| drop(std::io::copy(&mut &far, &mut &near)));
                let mut block = vec![0; 65536];
                let mut held = Vec::new();
                while let Ok(len @ 1..) = (&near).read(&mut block) {
                    held.extend(&block[..len]);
                    if len == 23 {
                        // The client may send its next request at once: the server has ended before.
                        near.peek(&mut [0]).unwrap();
                        thread::sleep(Duration::from_millis(20));
                        continue;
                    }
                    if (&far).write_all(&held).is_err() {
                        break;
                    }
                    held.clear();
                }
                drop((near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both)));
            });
        });
        let client = setup.client(front.addr);
        let (quick, target) = (answers_at_once(200, Duration::ZERO), gulps(50_000));
        for n in 0..20 {
            let mut stream = client.tunnel(quick.addr);
            stream.write_all(b"GET!").unwrap();
            expect_pattern(&stream, 6, 200);
            expect_end(&stream);
            drop(stream);
            wait_for("a kept connection", || client.out().idle == 1);
            let stream = client.tunnel(target.addr);
            send_pattern(&stream, n, 50_000).unwrap();
            expect_pattern(&stream, 6, 200);
            expect_end(&stream);
            drop(stream);
            wait_for("a kept connection", || client.out().idle == 1);
        }
        assert_eq!(client.out().dialled, 1);
    });
}

#[test]
fn a_kept_connection_that_the_server_has_closed_is_no_failure() {
    within(60, || {
        let limits = Limits { idle: Some(Duration::from_secs(2)), ..Setup::default().limits };
        let setup = Setup { half_close: HalfClose::On, ..Setup::default() };
        let server = Setup { limits, ..setup.clone() }.server();
        let client = setup.client(server.addr);
        let target = Target::echo();
        for n in 0..3 {
            let stream = client.tunnel(target.addr);
            exchange(&stream, (n, 1000), (n, 1000));
            wait_for("the server has closed", || server.open() == 0);
        }
        assert_eq!(client.out().dialled, 3);
        server.end();
        expect_reset(&client.tunnel(target.addr));
    });
}

#[test]
fn a_kept_connection_that_breaks_under_the_request_is_replaced() {
    within(60, || {
        let setup = Setup::default();
        let server = setup.server();
        // In front of the server: every first connection is cut when its second request comes.
        let (upstream, cut) = (server.addr, Arc::new(AtomicUsize::new(0)));
        let cuts = cut.clone();
        let front = Target::new(move |near| {
            let far = connect(upstream);
            let first = cuts.fetch_add(1, Ordering::Relaxed) == 0;
            thread::scope(|scope| {
                scope.spawn(|| {
                    drop(std::io::copy(&mut &far, &mut &near));
                    drop(near.shutdown(Shutdown::Both));
                });
                let mut block = vec![0; 65536];
                let mut is_kept = false;
                while let Ok(len @ 1..) = (&near).read(&mut block) {
                    if first && is_kept && len > 23 {
                        // Close without a word, as a server does that has given the connection up.
                        break;
                    }
                    // A zero chunk on its own ends the first exchange.
                    is_kept |= len == 23;
                    if (&far).write_all(&block[..len]).is_err() {
                        break;
                    }
                }
                drop((near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both)));
            });
        });
        let client = setup.client(front.addr);
        let target = answers_at_once(200, Duration::ZERO);
        for _ in 0..4 {
            let mut stream = client.tunnel(target.addr);
            stream.write_all(b"GET!").unwrap();
            expect_pattern(&stream, 6, 200);
            expect_end(&stream);
            drop(stream);
            wait_for("the exchange has ended", || client.open() == 0);
        }
        assert_eq!((client.out().dialled, target.accepted()), (2, 4));
    });
}

#[test]
fn a_server_behind_a_server() {
    within(60, || {
        for (reuse, half_close, rounds) in
            [(false, HalfClose::On, 10), (true, HalfClose::On, 10), (true, HalfClose::Late, 0)]
        {
            let setup = Setup { reuse, half_close, ..Setup::default() };
            let last = setup.server();
            let middle = setup.chained(last.addr);
            let client = setup.client(middle.addr);
            let target = Target::echo();
            for n in 0..rounds {
                let stream = client.tunnel(target.addr);
                exchange(&stream, (n, 300_000), (n, 300_000));
            }
            let silent = answers_at_once(MIB, Duration::from_millis(50));
            let mut stream = client.tunnel(silent.addr);
            stream.write_all(b"GET!").unwrap();
            expect_pattern(&stream, 6, MIB);
            expect_end(&stream);
        }
    });
}

#[test]
fn a_drain_ends_kept_connections_at_once() {
    within(30, || {
        let limits = Limits { drain: Duration::from_secs(400), ..Limits::default() };
        let setup = Setup { limits, half_close: HalfClose::On, ..Setup::default() };
        let (server, target) = (setup.server(), Target::echo());
        let client = setup.client(server.addr);
        let stream = client.tunnel(target.addr);
        exchange(&stream, (1, 1000), (1, 1000));
        let mut busy = client.tunnel(target.addr);
        busy.write_all(b"x").unwrap();
        busy.read_exact(&mut [0]).unwrap();
        let started = Instant::now();
        let draining = thread::spawn(move || server.drain());
        // The drain waits for the exchange.
        thread::sleep(Duration::from_millis(200));
        busy.write_all(b"y").unwrap();
        busy.read_exact(&mut [0]).unwrap();
        drop(busy);
        draining.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(100), "{:?}", started.elapsed());
    });
}

#[test]
fn a_drain_does_not_wait_for_those_who_have_asked_for_nothing() {
    within(30, || {
        let limits = Limits { drain: Duration::from_secs(400), ..Limits::default() };
        let setup = Setup { limits, ..Setup::default() };
        let server = setup.server();
        let client = setup.client(server.addr);
        let silent = [connect(server.addr), connect(server.addr), connect(client.addr)];
        (&silent[0]).write_all(&[7; 100]).unwrap();
        wait_for("all are open", || server.open() == 2 && client.open() == 1);
        let started = Instant::now();
        server.drain();
        client.drain();
        assert!(started.elapsed() < Duration::from_secs(100), "{:?}", started.elapsed());
    });
}

#[test]
fn what_an_ending_process_breaks_off_is_reset() {
    within(30, || {
        for ends_server in [true, false] {
            let (ended, seen) = std::sync::mpsc::channel();
            let ended = Mutex::new(ended);
            let target = Target::new(move |mut stream| {
                stream.write_all(b"half an answer").unwrap();
                let result = stream.read_to_end(&mut Vec::new());
                ended.lock().unwrap().send(result.map_err(|error| error.kind())).unwrap();
            });
            let setup = Setup::default();
            let server = setup.server();
            let client = setup.client(server.addr);
            let mut stream = client.tunnel(target.addr);
            stream.write_all(b"half a request").unwrap();
            stream.read_exact(&mut [0; 14]).unwrap();
            if ends_server {
                server.end()
            } else {
                client.end()
            }
            expect_reset(&stream);
            assert_eq!(seen.recv().unwrap(), Err(std::io::ErrorKind::ConnectionReset));
        }
    });
}
