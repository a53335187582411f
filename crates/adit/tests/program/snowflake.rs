//! Snowflake's programs: the word to Tor when they cannot start, and memory for each client at rest.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Dir, PATIENCE, Running, echo, finish, memory, socks5};

/// Clients that come first, and fill the pools.
const FIRST: usize = 5;
/// Clients that are counted.
const COUNTED: usize = 30;
/// The most that a fresh process may have, in KiB.
const FRESH: usize = 12 << 10;
/// The most for each client at rest, in KiB.
const PROXY: usize = 120;
const SERVER: usize = 40;

/// Tor shows no standard error: flags of the replaced program that adit refuses would look like a crash.
#[test]
fn tor_is_told_why_a_program_does_not_start() {
    let dir = Dir::new();
    let acme = ["snowflake-server", "--acme-hostnames", "bridge", "--acme-email", "me@example.org"];
    let log = ["snowflake-client", "-url", "https://b.example/", "-log", "/nowhere/at all/log"];
    for (words, status, line) in [
        (&acme[..], 2, "ENV-ERROR invalid value \"bridge\" for flag -acme-hostnames: \"bridge\" is no name"),
        (&["snowflake-server", "-no\nsuch"], 2, "ENV-ERROR flag provided but not defined: -no such"),
        (&["snowflake-client", "-max", "many"], 2, "ENV-ERROR "),
        (&log[..], 1, "ENV-ERROR "),
    ] {
        let mut command = dir.adit(words);
        command.env("TOR_PT_MANAGED_TRANSPORT_VER", "1");
        let (found, out, error) = finish(command, "");
        assert_eq!(found, status, "{words:?}: {error}");
        assert!(out.starts_with(line) && out.lines().count() == 1, "{words:?}: {out}");
        let (found, out, _) = dir.run(words);
        assert!(found != 0 && !out.contains(line), "without Tor: {out}");
    }
}

/// An address behind `words` in the first line that has them.
fn behind(running: &Running, words: &str) -> SocketAddr {
    let line = running.line(words);
    let rest = line.split_once(words).unwrap().1;
    rest.split([' ', '/']).next().unwrap().parse().unwrap()
}

/// A client that has had 5 bytes sent back, and says no more.
fn client(socks: SocketAddr) -> TcpStream {
    let mut stream = socks5(socks, "192.0.2.3", 80);
    stream.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"hello");
    stream
}

/// Some of them, one after the other: a poll of the proxy takes one.
fn clients(socks: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| client(socks)).collect()
}

/// KiB of a process, once they have stayed the same for a second.
fn settled(running: &Running) -> usize {
    let deadline = Instant::now() + PATIENCE;
    let (mut last, mut since) = (memory(running), Instant::now());
    while since.elapsed() < Duration::from_secs(1) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
        let now = memory(running);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last / 1024
}

#[test]
#[ignore = "measures; takes some minutes"]
fn a_client_at_rest_takes_little() {
    let dir = Dir::new();
    let target = echo().to_string();
    let words = ["snowflake-server", "-disable-tls", "-listen", "127.0.0.1:0", "-target", &target];
    let server = Running::start(dir.adit(&words));
    let relay = format!("ws://{}/", behind(&server, "listening on "));
    let bridge = format!(
        "{{\"displayName\":\"t\",\"webSocketAddress\":\"{relay}\",\"fingerprint\":\
         \"2B280B23E1107BB62ABFC40DDCC8824814F80A72\"}}"
    );
    dir.file("bridges", &bridge);
    dir.file(
        "polls",
        "{\"open_poll_interval\":50,\"moderate_poll_interval\":50,\"strict_poll_interval\":50}",
    );
    let mut words = vec!["snowflake-broker", "-addr", "127.0.0.1:0", "-disable-tls", "-disable-geoip"];
    words.extend(["-bridge-list-path", "bridges", "-poll-interval-filepath", "polls"]);
    let broker = Running::start(dir.adit(&words));
    let url = format!("http://{}/", behind(&broker, "listening on "));
    let mut words = vec!["snowflake-proxy", "-broker", &url, "-relay", &relay, "-stun", ""];
    words.extend(["-nat-probe-server", "", "-nat-type-force-unrestricted", "-allow-non-tls-relay"]);
    words.extend(["-allowed-relay-hostname-pattern", "$", "-allow-proxying-to-private-addresses"]);
    words.extend([
        "-poll-interval",
        "2s",
        "-keep-local-addresses",
        "-nat-retest-interval",
        "0s",
        "-verbose",
        "-unsafe-logging",
    ]);
    let proxy = Running::start(dir.adit(&words));
    proxy.line("connected to relay");
    let words = ["snowflake-client", "-socks", "127.0.0.1:0", "-url", &url, "-keep-local-addresses"];
    let local = Running::start(dir.adit(&words));
    let socks = behind(&local, "SOCKS listener at ");

    let programs = [("client", &local), ("proxy", &proxy), ("server", &server), ("broker", &broker)];
    let measure = || programs.map(|(_, running)| settled(running));
    let fresh = measure();
    let first = clients(socks, FIRST);
    let before = measure();
    let counted = clients(socks, COUNTED);
    let after = measure();
    drop((first, counted));
    let each = |at: usize| after[at].saturating_sub(before[at]) / COUNTED;
    for (at, (name, _)) in programs.iter().enumerate() {
        println!("{name}: fresh {} KiB, each client {} KiB", fresh[at], each(at));
    }
    // An unoptimised program is larger by itself.
    if !cfg!(debug_assertions) {
        assert!(fresh.iter().all(|&kib| kib <= FRESH), "{fresh:?} KiB are more than {FRESH}");
    }
    assert!(each(1) <= PROXY, "proxy: {} KiB for each client are more than {PROXY}", each(1));
    assert!(each(2) <= SERVER, "server: {} KiB for each client are more than {SERVER}", each(2));
}
