//! A server shows nothing to clients that have no key, or an old recording (`docs/protocols/snell.md` 6).

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adit_model::{HalfClose, Limits};
use adit_testkit::{has_ipv6, hex, load, text};

use crate::common::{
    Obfs, Pattern, Proxy, Setup, Target, assert_all_silent, assert_closed_after_fin, assert_silent, connect,
    echo, exchange, expect_end, wait_for, within,
};

/// The key of the vectors.
const VECTOR_PSK: &str = "adit-vector-psk-0001";
/// So long nothing at all must come.
const SILENCE: Duration = Duration::from_secs(2);

fn setup() -> Setup {
    Setup { half_close: HalfClose::On, ..Setup::default() }
}

fn assert_serves(client: &Proxy, target: &Target) {
    let stream = client.tunnel(target.addr);
    exchange(&stream, (1, 20_000), (1, 20_000));
}

const LENGTHS: [usize; 12] = [0, 15, 16, 38, 39, 40, 55, 221, 1460, 16_000, 65_000, 200_000];

#[test]
fn random_bytes_of_any_length_meet_silence() {
    within(60, || {
        for obfs in [Obfs::Off, Obfs::Tls] {
            let setup = Setup { obfs, ..setup() };
            let (pair, target) = (setup.pair(), Target::echo());
            let mut streams = Vec::new();
            for len in LENGTHS {
                let mut whole = connect(pair.server.addr);
                whole.write_all(&Pattern::bytes(len as u64, len)).unwrap();
                streams.push((format!("{len} bytes"), whole));
                let mut piecewise = connect(pair.server.addr);
                for byte in Pattern::bytes(len as u64 + 1, len.min(1460)) {
                    piecewise.write_all(&[byte]).unwrap();
                }
                streams.push((format!("{len} bytes, one by one"), piecewise));
            }
            thread::sleep(SILENCE);
            assert_all_silent(&streams);
            assert_serves(&pair.client, &target);
            wait_for("all are there", || pair.server.open() == 25);
            if obfs == Obfs::Off {
                wait_for("all are refused", || pair.server.refused("authentication") == 16);
            }
            assert_closed_after_fin(streams);
            wait_for("all are gone", || pair.server.open() == 1);
            if obfs == Obfs::Off {
                wait_for("the rest counts as aborted", || pair.server.refused("aborted") == 8);
            }
        }
    });
}

#[test]
fn an_unauthenticated_peer_that_never_stops_is_read_at_a_bounded_rate() {
    within(60, || {
        let server = setup().server();
        let mut stream = connect(server.addr);
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let block = Pattern::bytes(1, 1 << 16);
        let (mut sent, since) = (0, Instant::now());
        while since.elapsed() < Duration::from_secs(8) {
            sent += stream.write(&block).unwrap_or(0);
        }
        // The sum of what a core reads at once, what it reads in this time, and what the system holds.
        let seconds = usize::try_from(since.elapsed().as_secs()).unwrap();
        assert!(sent < (64 + 4 * seconds + 24) << 20, "{sent} bytes: all is read");
        assert!(sent > 32 << 20, "{sent}");
        assert_silent("flood", &stream);
        assert_eq!(server.open(), 1);
    });
}

#[test]
fn an_end_behind_any_number_of_bytes_is_answered_by_an_end() {
    within(60, || {
        let server = setup().server();
        for len in [20, 600, 1 << 20, 3 << 20, 20 << 20] {
            let mut stream = connect(server.addr);
            stream.write_all(&Pattern::bytes(len as u64, len)).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let read = stream.read(&mut [0; 64]).map_err(|error| error.kind());
            assert_eq!(read, Ok(0), "{len} bytes");
        }
    });
}

#[test]
fn a_peer_that_makes_room_sees_a_fin_after_any_bytes() {
    within(60, || {
        let setup = Setup { limits: limits(100, 1), ..setup() };
        let server = setup.server();
        for len in [20, 600, 3 << 20] {
            let mut stream = connect(server.addr);
            stream.write_all(&Pattern::bytes(len as u64, len)).unwrap();
            // One per core may stay.
            let others: Vec<_> = (0..16).map(|_| connect(server.addr)).collect();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let read = stream.read(&mut [0; 64]).map_err(|error| error.kind());
            assert_eq!(read, Ok(0), "{len} bytes");
            drop(others);
        }
    });
}

#[test]
fn every_bad_stream_meets_silence() {
    within(60, || {
        let server = Setup { psk: VECTOR_PSK, ..setup() }.server();
        let vectors = load("snell/bad_input.json");
        let mut streams = Vec::new();
        let mut replies = 0;
        for row in vectors["cases"].as_array().unwrap() {
            let bytes = hex(text(row, "c2s_stream"));
            let mut stream = connect(server.addr);
            stream.write_all(&bytes).unwrap();
            // The recorded server ends these without a word; a client that has the key learns why.
            let asks_for_nothing = ["request-unknown-command-9", "request-command-2", "request-host-len-0"]
                .contains(&text(row, "name"));
            let expects_reply = !row["observed_reply_payloads"].as_array().unwrap().is_empty();
            if expects_reply || asks_for_nothing {
                replies += 1;
                assert_eq!(stream.read(&mut [0]).unwrap(), 1, "{}", text(row, "name"));
                continue;
            }
            streams.push((text(row, "name").to_owned(), stream));
            // A cut version of it is no different.
            let mut cut = connect(server.addr);
            cut.write_all(&bytes[..bytes.len() - 1]).unwrap();
            streams.push((format!("{} cut", text(row, "name")), cut));
        }
        assert!(replies > 5 && streams.len() > 20);
        for cause in ["authentication", "malformed", "unsupported"] {
            wait_for(cause, || server.refused(cause) > 0);
        }
        // Nothing comes.
        thread::sleep(SILENCE);
        assert_all_silent(&streams);
        assert_closed_after_fin(streams);
        wait_for("all are gone", || server.open() == 0);
    });
}

/// A relay that remembers what went through, both ways.
fn recorder(server: SocketAddr) -> (Target, Arc<Mutex<[Vec<u8>; 2]>>) {
    let tape = Arc::new(Mutex::new([Vec::new(), Vec::new()]));
    let shared = tape.clone();
    let copy = move |mut from: &TcpStream, mut to: &TcpStream, track: usize| {
        let mut block = vec![0; 65536];
        while let Ok(len @ 1..) = from.read(&mut block) {
            shared.lock().unwrap()[track].extend(&block[..len]);
            if to.write_all(&block[..len]).is_err() {
                break;
            }
        }
        drop(to.shutdown(Shutdown::Write));
    };
    let target = Target::new(move |near| {
        let far = connect(server);
        thread::scope(|scope| {
            scope.spawn(|| copy(&far, &near, 1));
            copy(&near, &far, 0);
        });
    });
    (target, tape)
}

#[test]
fn recordings_meet_silence() {
    within(60, || {
        for (obfs, reuse) in [(Obfs::Off, true), (Obfs::Off, false), (Obfs::Http, true), (Obfs::Tls, true)] {
            let setup = Setup { obfs, reuse, ..setup() };
            let server = setup.server();
            let (front, tape) = recorder(server.addr);
            let client = setup.client(front.addr);
            let target = Target::echo();
            assert_serves(&client, &target);
            client.end();
            wait_for("the server is done", || server.open() == 0);
            let [c2s, s2c] = tape.lock().unwrap().clone();
            assert!(c2s.len() > 20_000 && s2c.len() > 20_000);
            let mut streams = Vec::new();
            let mut again = vec![("whole", &c2s[..]), ("beginning", &c2s[..3000]), ("changed", &c2s[..])];
            if obfs == Obfs::Off {
                again.push(("reflected", &s2c[..]));
            }
            for (name, bytes) in again {
                let mut bytes = bytes.to_vec();
                if name == "changed" {
                    // Behind the request: what a censor's mutated replay does.
                    *bytes.last_mut().unwrap() ^= 1;
                }
                let mut stream = connect(server.addr);
                drop(stream.write_all(&bytes));
                if obfs != Obfs::Http {
                    streams.push((format!("{name}, {obfs:?}"), stream));
                }
            }
            thread::sleep(SILENCE);
            assert_all_silent(&streams);
            assert_eq!(target.accepted(), 1, "{obfs:?}");
            wait_for("the replays are refused", || server.refused("replay") >= 3);
            assert_closed_after_fin(streams);
        }
    });
}

#[test]
fn a_wrong_key_is_silence_and_counted() {
    within(30, || {
        let server = setup().server();
        let client = Setup { psk: "another key", reuse: false, ..setup() }.client(server.addr);
        let target = Target::echo();
        let mut stream = client.tunnel(target.addr);
        stream.write_all(&[1; 1000]).unwrap();
        wait_for("it is refused", || server.refused("authentication") > 0);
        // Nothing comes.
        thread::sleep(Duration::from_secs(1));
        assert_silent("wrong key", &stream);
        assert_eq!((server.refused("authentication"), target.accepted()), (1, 0));
        // The local side gives up: so does the client, and then the server.
        stream.shutdown(Shutdown::Write).unwrap();
        drop(stream);
        wait_for("nothing is left", || server.open() == 0);
    });
}

fn limits(total: usize, per_source: usize) -> Limits {
    Limits {
        unauthenticated: Some(total),
        unauthenticated_per_source: Some(per_source),
        ..Setup::default().limits
    }
}

#[test]
fn slow_unauthenticated_connections_make_room() {
    within(60, || {
        for limits in [limits(20, 1000), limits(1000, 20)] {
            let setup = Setup { limits, ..setup() };
            let (pair, target) = (setup.pair(), Target::echo());
            let slow: Vec<_> = (0..100)
                .map(|n| {
                    let mut stream = connect(pair.server.addr);
                    stream.write_all(&Pattern::bytes(n, 30)).unwrap();
                    stream
                })
                .collect();
            wait_for("the older ones are gone", || pair.server.refused("overload") == 80);
            assert_eq!(pair.server.open(), 20);
            for stream in &slow[..80] {
                expect_end(stream);
            }
            for _ in 0..3 {
                assert_serves(&pair.client, &target);
            }
            // One unauthenticated connection had to go for the first of these.
            assert_eq!(pair.server.refused("overload"), 81);
        }
    });
}

#[test]
fn a_flood_of_garbage_does_not_stop_those_who_have_the_key() {
    within(60, || {
        let setup = Setup { reuse: false, limits: limits(512, 256), ..setup() };
        let (pair, target) = (setup.pair(), Target::echo());
        assert_serves(&pair.client, &target);
        let over = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (over, addr) = (over.clone(), pair.server.addr);
                thread::spawn(move || {
                    let mut count = 0;
                    while !over.load(Ordering::Relaxed) {
                        if let Ok(mut stream) = TcpStream::connect(addr) {
                            drop(stream.write_all(&Pattern::bytes(n * 100_000 + count, 300)));
                        }
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        // From the very address that the flood comes from.
        let since = Instant::now();
        for _ in 0..50 {
            assert_serves(&pair.client, &target);
        }
        let took = since.elapsed();
        over.store(true, Ordering::Relaxed);
        let count: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(count > 200, "{count} floods in {took:?}");
        wait_for("many are refused", || pair.server.refused("authentication") > 100);
    });
}

#[test]
fn a_new_source_is_served_while_another_one_floods() {
    if !has_ipv6() {
        return;
    }
    within(60, || {
        let setup = Setup { limits: limits(64, 32), ..setup() };
        let server = setup.server();
        let v6 = server.running().addresses()[1].1;
        for n in 0..200 {
            let mut stream = connect(server.addr);
            stream.write_all(&Pattern::bytes(n, 300)).unwrap();
        }
        let client = setup.client(v6);
        let target = Target::on("127.0.0.1", echo);
        assert_serves(&client, &target);
    });
}

#[test]
fn malformed_obfs_is_answered_like_a_web_server() {
    within(30, || {
        let server = Setup { obfs: Obfs::Http, ..setup() }.server();
        for bytes in
            [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"GARBAGE\r\n\r\n", b"GET /\r\n\r\n"]
        {
            let mut stream = connect(server.addr);
            stream.write_all(bytes).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 400 "), "{bytes:?}: {answer}");
        }
        let mut random = connect(server.addr);
        random.write_all(&Pattern::bytes(1, 5000)).unwrap();
        let mut answer = Vec::new();
        random.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 400 "));
        wait_for("all are gone", || server.open() == 0);
    });
}
