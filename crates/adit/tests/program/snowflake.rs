//! Snowflake's programs: the word to Tor when they cannot start, and memory for each client at rest.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Dir, PATIENCE, Running, echo, finish, memory, socks5};
use crate::upgrade::{Successors, is_alive, wait_until};

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

/// The words of a program for Tor that Tor reads: who it is, where it listens, and what happens, each in a line of its form.
#[test]
fn tor_reads_who_the_client_is_and_what_happens() {
    let dir = Dir::new();
    // Nobody is there.
    let url = format!("http://{}/", adit_testkit::unused_addr());
    let mut command = dir.adit(&["snowflake-client", "-url", &url, "-covertdtls-config", "mimic"]);
    command.env("TOR_PT_MANAGED_TRANSPORT_VER", "1,2").env("TOR_PT_CLIENT_TRANSPORTS", "other,snowflake");
    command.env("TOR_PT_EXIT_ON_STDIN_CLOSE", "1").stdin(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut next = || lines.next().expect("one more line");
    assert_eq!(next(), "VERSION 1");
    let status = next();
    let version = status.strip_prefix("STATUS TYPE=version IMPLEMENTATION=\"snowflake-client\" VERSION=\"");
    let version = version.and_then(|rest| rest.strip_suffix('"')).unwrap_or_else(|| panic!("{status}"));
    assert!(version.split('.').count() == 3 && version.split('.').all(|part| part.parse::<u32>().is_ok()));
    assert_eq!(next(), "CMETHOD-ERROR other no such method");
    let method = next();
    let address = method.strip_prefix("CMETHOD snowflake socks5 ").unwrap_or_else(|| panic!("{method}"));
    let address: SocketAddr = address.parse().unwrap();
    assert!(address.ip().is_loopback());
    assert_eq!(next(), "CMETHODS DONE");
    let _stream = socks5(address, "192.0.2.3", 80);
    let mimic =
        "LOG SEVERITY=warning MESSAGE=\"covertdtls-config is not obeyed: the DTLS hello is adit's own\"";
    assert_eq!(next(), mimic);
    assert_eq!(next(), "LOG SEVERITY=notice MESSAGE=\"offer created\"");
    let failure = next();
    assert!(failure.starts_with("LOG SEVERITY=notice MESSAGE=\"broker failure "), "{failure}");
    assert!(!failure.contains("127.0.0.1"), "the broker's address is shown: {failure}");
    // Tor goes.
    drop(child.stdin.take());
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it does not end with its input");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The answer to a request of the broker, once it has come.
fn ask(broker: SocketAddr, path: &str, body: &str) -> thread::JoinHandle<String> {
    let mut stream = TcpStream::connect(broker).unwrap();
    let len = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: b\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    thread::spawn(move || {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    })
}

const POLL: &str = "{\"Sid\":\"a\",\"Version\":\"1.3\",\"Type\":\"standalone\",\"NAT\":\"unrestricted\",\
                    \"Clients\":0,\"AcceptedRelayPattern\":\"$\"}";

/// A proxy and a client wait at the broker when the next process takes its port: both have their answers from the old one,
/// which then ends, and the new one serves all who come later.
#[test]
#[ignore = "takes 11 s: a poll waits for 10"]
fn polls_that_wait_at_the_broker_outlast_an_upgrade() {
    let dir = Dir::new();
    let mut broker = Running::start(dir.adit(&[
        "snowflake-broker",
        "-addr",
        "127.0.0.1:0",
        "-disable-tls",
        "-disable-geoip",
    ]));
    let at = behind(&broker, "listening on ");
    let proxy = ask(at, "/proxy", POLL);
    let is_waiting = || ask(at, "/debug", "").join().unwrap().contains("current snowflakes available: 1");
    wait_until("the proxy waits", is_waiting);
    broker.signal("USR2");
    let line = broker.line("upgraded");
    let next: u32 = line.split("pid=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let mut successors = Successors::default();
    successors.note(&format!("process {next} "));
    let new_proxy = ask(at, "/proxy", POLL);
    wait_until("the new process serves", is_waiting);
    assert!(is_alive(next));
    assert!(!proxy.is_finished(), "the old process keeps the poll that waits");
    for poll in [proxy, new_proxy] {
        let text = poll.join().unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"Status\":\"no match\""), "{text}");
    }
    broker.line("stopped");
    wait_until("the old process ends", || !broker.is_running());
    assert!(is_alive(next));
}

/// A broker that is stopped gives up its port at once, though a poll still waits.
#[test]
fn a_broker_that_drains_leaves_its_port() {
    let dir = Dir::new();
    let flags = ["snowflake-broker", "-addr", "127.0.0.1:0", "-disable-tls", "-disable-geoip"];
    let broker = Running::start(dir.adit(&flags));
    let at = behind(&broker, "listening on ");
    let proxy = ask(at, "/proxy", POLL);
    let is_waiting = || ask(at, "/debug", "").join().unwrap().contains("current snowflakes available: 1");
    wait_until("the proxy waits", is_waiting);
    broker.signal("TERM");
    wait_until("the port is free", || TcpListener::bind(at).is_ok());
    assert!(!proxy.is_finished(), "the poll goes on");
}

/// A start that fails changes nothing.
#[test]
fn a_broker_whose_successor_fails_goes_on() {
    let dir = Dir::new();
    let bridges = dir.file("bridges", "");
    let flags =
        ["snowflake-broker", "-addr", "127.0.0.1:0", "-disable-tls", "-disable-geoip", "-bridge-list-path"];
    let mut command = dir.adit(&flags);
    command.arg(&bridges);
    let broker = Running::start(command);
    let at = behind(&broker, "listening on ");
    std::fs::remove_file(bridges).unwrap();
    broker.signal("USR2");
    broker.line("not upgraded, this process goes on");
    assert!(ask(at, "/debug", "").join().unwrap().starts_with("HTTP/1.1 200"));
}

/// The server says on request how much memory there may be, and how much of it is taken.
#[test]
fn a_server_tells_its_memory() {
    let dir = Dir::new();
    let mut words =
        vec!["snowflake-server", "-disable-tls", "-listen", "127.0.0.1:0", "-target", "127.0.0.1:9"];
    words.extend(["-session-memory", "1M", "-total-memory", "32M"]);
    let server = Running::start(dir.adit(&words));
    let bounds = server.line("bounds of sessions");
    assert!(
        bounds.contains("session_memory=1048576") && bounds.contains("total_memory=33554432"),
        "{bounds}"
    );
    behind(&server, "listening on ");
    server.signal("USR1");
    let line = server.line("bytes that sessions hold or have reserved");
    for word in
        ["sessions=0", "largest=0", "session_memory=1048576", "used=0", "peak=0", "total_memory=33554432"]
    {
        assert!(line.split(' ').any(|found| found == word), "{word}: {line}");
    }
}

/// Connections that begin the handshake of a WebSocket and leave it there hold little, and keep nobody out.
#[test]
#[ignore = "holds 10,000 connections"]
fn ten_thousand_half_open_handshakes() {
    const HALF_OPEN: usize = 10_000;
    const MOST: usize = 100 << 20;
    let limit = adit_net::raise_fd_limit().unwrap().1;
    if limit < 12_000 {
        return adit_testkit::skipped(format_args!("{limit} descriptors are too few"));
    }
    let dir = Dir::new();
    let words = ["snowflake-server", "-disable-tls", "-listen", "127.0.0.1:0", "-target", "127.0.0.1:9"];
    let server = Running::start(dir.adit(&words));
    let at = behind(&server, "listening on ");
    let fresh = memory(&server);
    let held: Vec<TcpStream> = (0..HALF_OPEN)
        .map(|number| {
            let mut stream = TcpStream::connect(at).unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n").unwrap();
            }
            stream
        })
        .collect();
    let began = Instant::now();
    let mut stream = TcpStream::connect(at).unwrap();
    let request = "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 101 Switching Protocols\r\n");
    let (answered, took) = (began.elapsed(), memory(&server).saturating_sub(fresh));
    println!("{} held: answered after {answered:?}, {} KiB each", held.len(), took / 1024 / HALF_OPEN);
    assert!(answered < Duration::from_secs(5), "{answered:?}");
    assert!(took < MOST, "{took} bytes");
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

/// A release build to measure in the place of the build that is tested.
fn release() -> Option<std::path::PathBuf> {
    std::env::var_os("ADIT_TEST_RELEASE").map(Into::into)
}

fn program(dir: &Dir, words: &[&str]) -> std::process::Command {
    release().map_or_else(|| dir.adit(words), |path| dir.command(&path, words))
}

#[test]
#[ignore = "measures; takes some minutes"]
fn a_client_at_rest_takes_little() {
    let dir = Dir::new();
    let target = echo().to_string();
    let words = ["snowflake-server", "-disable-tls", "-listen", "127.0.0.1:0", "-target", &target];
    let server = Running::start(program(&dir, &words));
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
    let broker = Running::start(program(&dir, &words));
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
    let proxy = Running::start(program(&dir, &words));
    proxy.line("connected to relay");
    let words = ["snowflake-client", "-socks", "127.0.0.1:0", "-url", &url, "-keep-local-addresses"];
    let local = Running::start(program(&dir, &words));
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
    // Pages of the program itself count, and other builds have more of them.
    if release().is_some() {
        assert!(fresh.iter().all(|&kib| kib <= FRESH), "{fresh:?} KiB are more than {FRESH}");
    }
    assert!(each(1) <= PROXY, "proxy: {} KiB for each client are more than {PROXY}", each(1));
    assert!(each(2) <= SERVER, "server: {} KiB for each client are more than {SERVER}", each(2));
}
