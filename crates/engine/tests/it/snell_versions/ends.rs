//! The end of unauthenticated connections, measured: bytes that came back, FIN or RST, and after how long.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use adit_model::SnellVersion;

use super::unauthenticated::{recorder, servers};
use super::{RAW, UNSHAPED, V6, only};
use crate::common::{Pattern, Setup, Target, connect, exchange, wait_for, within};

/// Ends of one server may differ by so much on a machine that has other things to do.
const SPREAD: Duration = Duration::from_secs(5);

/// The reaction that one probe has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    bytes: usize,
    end: End,
    after: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Fin,
    Rst,
    Other(ErrorKind),
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:3} bytes, {:?} after {:.1} s", self.bytes, self.end, self.after.as_secs_f64())
    }
}

/// Sends `bytes` and waits for the end.
fn probe(server: SocketAddr, bytes: &[u8]) -> Seen {
    let since = Instant::now();
    let mut stream = connect(server);
    stream.set_read_timeout(None).unwrap();
    // It may have been closed before all was written, which the end then says.
    drop(stream.write_all(bytes));
    let (mut block, mut received) = ([0; 4096], 0);
    let end = loop {
        match stream.read(&mut block) {
            Ok(0) => break End::Fin,
            Ok(len) => received += len,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break End::Rst,
            Err(error) => break End::Other(error.kind()),
        }
    };
    Seen { bytes: received, end, after: since.elapsed() }
}

/// The bytes that a client sends and receives when it talks to the server at `addr`.
fn record(setup: &Setup, addr: SocketAddr) -> [Vec<u8>; 2] {
    let reuse = setup.version.fixed_reuse().unwrap_or(false);
    let (tap, recorded) = recorder(addr);
    let target = Target::echo();
    let client = Setup { reuse, ..setup.clone() }.client(tap.addr);
    exchange(&client.tunnel(target.addr), (3, 5000), (3, 5000));
    wait_for("both directions are recorded", || recorded.lock().unwrap().iter().all(|way| way.len() > 5000));
    recorded.lock().unwrap().clone()
}

/// Every kind of probe that a server of `setup` at `addr` may meet, by name.
fn probes(setup: &Setup, addr: SocketAddr) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = [0, 1, 16, 38, 39, 40, 100, 300, 1460, 70_000]
        .map(|len| (format!("garbage of {len}"), Pattern::bytes(len as u64, len)))
        .into();
    let other = Setup { psk: "another key of good length", ..setup.clone() };
    let [opening, _] = record(&other, other.server().addr);
    all.push(("wrong key".to_owned(), opening));
    for version in [SnellVersion::V1, SnellVersion::V3, SnellVersion::V4, V6, UNSHAPED, RAW] {
        let fits = match setup.versions {
            adit_model::SnellVersions::Auto => matches!(version, SnellVersion::V4 | V6 | UNSHAPED),
            adit_model::SnellVersions::Only(SnellVersion::V4) => {
                matches!(version, SnellVersion::V4 | UNSHAPED)
            }
            adit_model::SnellVersions::Only(own) => own == version,
        };
        if !fits {
            let other = Setup { psk: setup.psk, half_close: setup.half_close, ..only(version) };
            let [opening, _] = record(&other, other.server().addr);
            all.push((format!("{version:?}"), opening));
        }
    }
    // Said to another server with the same key, so that this one has not met it; too little to be a request.
    let [fresh, _] = record(setup, setup.server().addr);
    for len in [15, 30] {
        all.push((format!("right opening, {len} bytes"), fresh[..len].to_vec()));
    }
    let [question, answer] = record(setup, addr);
    for len in [question.len(), 1000] {
        all.push((format!("replay of {len}"), question[..len].to_vec()));
    }
    for len in [answer.len(), 1000, 20] {
        all.push((format!("reflection of {len}"), answer[..len].to_vec()));
    }
    all
}

#[test]
#[ignore = "waits for the deadline of unauthenticated connections, up to three minutes"]
fn every_probe_meets_the_same_silence() {
    within(400, || {
        let rows: Vec<_> = servers()
            .into_iter()
            .map(|(name, setup)| {
                let server = setup.server();
                let sent = probes(&setup, server.addr);
                (name, server, sent)
            })
            .collect();
        let measured: Vec<(String, Vec<(String, Seen)>)> = thread::scope(|scope| {
            let probes: Vec<_> = rows
                .iter()
                .map(|(name, server, sent)| {
                    let addr = server.addr;
                    let probes: Vec<_> = sent
                        .iter()
                        .map(|(what, bytes)| (what.clone(), scope.spawn(move || probe(addr, bytes))))
                        .collect();
                    (name.clone(), probes)
                })
                .collect();
            let join =
                |(what, probe): (String, thread::ScopedJoinHandle<'_, Seen>)| (what, probe.join().unwrap());
            probes.into_iter().map(|(name, probes)| (name, probes.into_iter().map(join).collect())).collect()
        });
        for (name, seen) in &measured {
            for (what, seen) in seen {
                println!("{name:>12}  {what:<28} {seen}");
            }
        }
        for (name, seen) in measured {
            let first = seen[0].1.after;
            assert!((59..=190).contains(&first.as_secs()), "{name}: {first:?}");
            for (what, seen) in seen {
                assert_eq!((seen.bytes, seen.end), (0, End::Fin), "{name}: {what}: {seen}");
                assert!(seen.after.abs_diff(first) < SPREAD, "{name}: {what}: {seen}, and not {first:?}");
            }
        }
    });
}

/// The table above is worth something only if its rows are what they say.
#[test]
fn probes_are_what_their_names_say() {
    within(100, || {
        let setup = only(SnellVersion::V4);
        let setup = Setup { half_close: adit_model::HalfClose::On, ..setup };
        let server = setup.server();
        let all = probes(&setup, server.addr);
        let names: std::collections::BTreeSet<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.len() > 18, "{names:?}");
        let replay = all.iter().find(|(name, _)| name.starts_with("replay")).unwrap();
        let mut stream = connect(server.addr);
        stream.write_all(&replay.1).unwrap();
        wait_for("the replay is known as one", || server.refused("replay") == 1);
    });
}
