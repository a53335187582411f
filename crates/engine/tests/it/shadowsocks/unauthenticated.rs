//! Clients without the key, replayed requests, and clocks that are a minute off.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use adit_model::{ObfsServer, ReplayPolicy, ServerCover};
use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::{
    Accept, NoFilter, ServerKey, ShadowsocksAcceptor, ShadowsocksClientStream, ShadowsocksMethod, WallClock,
};
use adit_proto::wire::{Host, Layer, Opened, Rng, Target};

use super::support::{
    Lines, Service, addrs, client, connect, destination, key, method, password, pattern, round_trip,
    run_clients, run_servers, server, status, wait_for, wait_refused,
};

const GENERATIONS: [&str; 3] = ["2022-blake3-aes-128-gcm", "chacha20-ietf-poly1305", "aes-256-cfb"];

/// Different in every call.
struct Clockwork;

impl Rng for Clockwork {
    fn fill(&mut self, out: &mut [u8]) {
        let mut seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
        out.fill_with(|| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            seed.to_le_bytes()[5]
        });
    }
}

fn clock(offset_s: i64) -> WallClock {
    let unix_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    WallClock::new(Instant::now(), unix_s.checked_add_signed(offset_s).unwrap())
}

/// A client whose bytes are at hand.
struct Hand {
    client: ShadowsocksClientStream,
    request: Vec<u8>,
}

impl Hand {
    fn new(
        method: ShadowsocksMethod,
        password: &str,
        target: &Target,
        payload: &[u8],
        offset_s: i64,
    ) -> Self {
        let key = key(method, password).derive();
        let mut client = ShadowsocksClientStream::new(&key, target, clock(offset_s), &mut Clockwork);
        let head = client.plan(Instant::now()).first.head;
        let mut block = vec![0; head + payload.len() + 64];
        block[head..head + payload.len()].copy_from_slice(payload);
        let sealed = client.seal(&mut block, head..head + payload.len(), Instant::now()).unwrap();
        Self { client, request: block[sealed].to_vec() }
    }

    /// Sends the request; returns the answer as it came, and as it reads.
    fn exchange(&mut self, addr: SocketAddr) -> (Vec<u8>, Vec<u8>) {
        let mut stream = connect(addr);
        stream.write_all(&self.request).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut raw = Vec::new();
        stream.read_to_end(&mut raw).unwrap();
        let mut wire = RecvBuf::with_len(raw.len().max(1));
        wire.extend(&raw);
        let mut plain = Vec::new();
        while let Opened::Payload(range) = self.client.open(&mut wire, Instant::now()).unwrap() {
            plain.extend(&wire.block()[range]);
        }
        (raw, plain)
    }
}

/// Nothing comes, and the connection stays.
fn assert_silent(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let error = stream.read(&mut [0; 16]).expect_err("no byte and no end");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
}

/// The same, and a client that gives up first gets an end in order.
fn assert_left_alone(mut stream: TcpStream) {
    assert_silent(&mut stream);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
}

/// A client that has shown its key and asks for a host that is none sees the end at once. Its recording meets silence, and
/// so does everything that nobody has sealed.
#[test]
fn a_request_for_nothing_ends_the_connection_of_a_client_alone() {
    for name in GENERATIONS {
        let (m, p) = (method(name), password(method(name), 1));
        let servers = run_servers([server(m, &p)]);
        let addr = addrs(&servers)[0];
        let mut count = 0;
        for host in ["a b", "a\0b", ".", "[x"] {
            let target = Target { host: Host::Name(host.into()), port: 80 };
            let request = Hand::new(m, &p, &target, b"hello", 0).request;
            let mut stream = connect(addr);
            stream.write_all(&request).unwrap();
            if m.is_deprecated() {
                assert_left_alone(stream);
                continue;
            }
            count += 1;
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            assert_eq!(stream.read(&mut [0; 16]).expect("an end in order"), 0, "{name}: {host:?}");
            wait_refused(&servers, "malformed", count);
            let mut again = connect(addr);
            again.write_all(&request).unwrap();
            wait_refused(&servers, "replay", count);
            assert_left_alone(again);
        }
        assert_eq!(status(&servers).requests, 0, "{name}");
        servers.end();
    }
}

#[test]
fn every_error_meets_the_same_silence() {
    for name in GENERATIONS {
        let (m, p) = (method(name), password(method(name), 1));
        let echo = Service::echo();
        let servers = run_servers([server(m, &p)]);
        let addr = addrs(&servers)[0];
        let target = destination(echo.addr);
        let good = Hand::new(m, &p, &target, b"hello", 0).request;
        let mut flipped = good.clone();
        flipped[m.salt_len() + 1] ^= 0x40;
        let probes: Vec<Vec<u8>> = vec![
            pattern(1),
            pattern(m.salt_len()),
            // The first byte behind the IV is no address type for the fixed bytes of this pattern.
            pattern(200),
            pattern(5000),
            good[..good.len() - 7].to_vec(),
            flipped,
            Hand::new(m, &password(m, 2), &target, b"hello", 0).request,
            b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_vec(),
        ];
        for (i, probe) in probes.into_iter().enumerate() {
            // Bytes without authentication may be read as an address: that is their weakness, not silence's.
            if m.is_deprecated() && ![0, 1, 7].contains(&i) {
                continue;
            }
            println!("{name} probe {i}");
            let mut stream = connect(addr);
            stream.write_all(&probe).unwrap();
            assert_left_alone(stream);
        }
        assert_eq!(status(&servers).requests, 0, "{name}");
        assert_eq!(echo.accepted(), 0, "{name}");
        servers.end();
    }
}

#[test]
fn a_wrong_key_is_counted() {
    let m = method("aes-128-gcm");
    let echo = Service::echo();
    let lines = Lines::from_here();
    let servers = run_servers([server(m, "right")]);
    let clients = run_clients([client(addrs(&servers)[0], m, "wrong")], echo.addr);
    let mut stream = connect(addrs(&clients)[0]);
    stream.write_all(b"hello").unwrap();
    wait_refused(&servers, "authentication", 1);
    assert_silent(&mut stream);
    lines.wait_for("authentication failed: wrong key, another protocol or version, or a probe");
}

#[test]
fn a_replay_is_refused() {
    for name in GENERATIONS {
        let (m, p) = (method(name), password(method(name), 1));
        let echo = Service::echo();
        let servers = run_servers([server(m, &p)]);
        let addr = addrs(&servers)[0];
        let mut hand = Hand::new(m, &p, &destination(echo.addr), b"hello", 0);
        assert_eq!(hand.exchange(addr).1, b"hello");
        for again in 1..3 {
            let mut stream = connect(addr);
            stream.write_all(&hand.request).unwrap();
            assert_left_alone(stream);
            wait_refused(&servers, "replay", again);
        }
        assert_eq!(echo.accepted(), 1, "{name}");
    }
}

#[test]
fn a_replay_is_served_where_the_policy_says_so() {
    for (name, policy, served) in [
        ("aes-128-gcm", ReplayPolicy::Ignore, true),
        ("aes-128-gcm", ReplayPolicy::Report, true),
        ("aes-128-ctr", ReplayPolicy::Report, true),
        ("2022-blake3-aes-128-gcm", ReplayPolicy::Ignore, false),
    ] {
        let (m, p) = (method(name), password(method(name), 1));
        let echo = Service::echo();
        let mut lenient = server(m, &p);
        lenient.replay = policy;
        let servers = run_servers([lenient]);
        let addr = addrs(&servers)[0];
        let mut hand = Hand::new(m, &p, &destination(echo.addr), b"hello", 0);
        hand.exchange(addr);
        let mut stream = connect(addr);
        stream.write_all(&hand.request).unwrap();
        if served {
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert!(!answer.is_empty(), "{name}");
        } else {
            assert_left_alone(stream);
        }
        assert_eq!(echo.accepted(), 1 + usize::from(served), "{name}");
    }
}

#[test]
fn our_own_answer_is_no_request() {
    for name in ["aes-256-gcm", "chacha20-ietf"] {
        let (m, p) = (method(name), password(method(name), 1));
        let echo = Service::echo();
        let servers = run_servers([server(m, &p)]);
        let addr = addrs(&servers)[0];
        // The bytes that the echo sends back read as the address of the echo itself.
        let SocketAddr::V4(v4) = echo.addr else { panic!("IPv4") };
        let mut payload = vec![1];
        payload.extend(v4.ip().octets());
        payload.extend(v4.port().to_be_bytes());
        payload.extend(b"hello");
        let (raw, plain) = Hand::new(m, &p, &destination(echo.addr), &payload, 0).exchange(addr);
        assert_eq!(plain, payload);
        let mut stream = connect(addr);
        stream.write_all(&raw).unwrap();
        assert_left_alone(stream);
        wait_refused(&servers, "replay", 1);
        assert_eq!(echo.accepted(), 1, "{name}");
    }
}

#[test]
fn clocks_that_differ_too_much() {
    let m = method("2022-blake3-aes-256-gcm");
    let p = password(m, 1);
    let echo = Service::echo();
    let servers = run_servers([server(m, &p)]);
    let addr = addrs(&servers)[0];
    let lines = Lines::from_here();
    for (offset_s, count) in [(40, 1), (-40, 2)] {
        let request = Hand::new(m, &p, &destination(echo.addr), b"hello", offset_s).request;
        let mut stream = connect(addr);
        stream.write_all(&request).unwrap();
        assert_left_alone(stream);
        wait_refused(&servers, "clock", count);
    }
    lines.wait_for("the client's clock is 40 s ahead of ours, and no more than 30 s are accepted");
    for offset_s in [-25, 25] {
        let (_, plain) = Hand::new(m, &p, &destination(echo.addr), b"hello", offset_s).exchange(addr);
        assert_eq!(plain, b"hello");
    }
}

/// Answers one request with `answer`, from a clock that is off by `offset_s`.
fn skewed_server(m: ShadowsocksMethod, password: &str, offset_s: i64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let key = ServerKey::new(key(m, password).derive());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut wire = RecvBuf::with_len(4096);
        let mut acceptor = ShadowsocksAcceptor::new(&key);
        loop {
            let received = stream.read(wire.free_mut()).unwrap();
            wire.filled(received);
            let now = clock(0).unix_s(Instant::now());
            if let Accept::Accepted(_) = acceptor.accept(&mut wire, now, &mut NoFilter).unwrap() {
                break;
            }
        }
        let mut server = acceptor.into_server(clock(offset_s), &mut Clockwork);
        let head = server.plan(Instant::now()).first.head;
        let mut block = vec![0; head + 5 + 64];
        let sealed = server.seal(&mut block, head..head + 5, Instant::now()).unwrap();
        stream.write_all(&block[sealed]).unwrap();
        // Until the client has gone.
        drop(stream.read_to_end(&mut Vec::new()));
    });
    addr
}

#[test]
fn a_client_takes_no_answer_from_another_minute() {
    let m = method("2022-blake3-aes-128-gcm");
    let p = password(m, 1);
    let lines = Lines::from_here();
    for (offset_s, fits) in [(0, true), (47, false), (-47, false)] {
        let clients =
            run_clients([client(skewed_server(m, &p, offset_s), m, &p)], "127.0.0.1:9".parse().unwrap());
        let mut stream = connect(addrs(&clients)[0]);
        stream.write_all(b"hello").unwrap();
        let read = stream.read(&mut [0; 5]);
        assert_eq!(read.ok(), fits.then_some(5), "{offset_s}");
    }
    lines.wait_for("the server's clock is 47 s ahead of ours, and no more than 30 s are accepted");
    lines.wait_for("the server's clock is 47 s behind ours, and no more than 30 s are accepted");
}

#[test]
fn a_header_in_pieces_is_a_probe_unless_obfs_cuts_it() {
    let m = method("2022-blake3-aes-128-gcm");
    let p = password(m, 1);
    let echo = Service::echo();
    let mut with_obfs = server(m, &p);
    with_obfs.cover = ServerCover::Obfs(ObfsServer::Http);
    let servers = run_servers([server(m, &p), with_obfs]);
    let request = Hand::new(m, &p, &destination(echo.addr), b"hello", 0).request;
    let pieces = |addr: SocketAddr, head: &[u8], apart: &dyn Fn()| {
        let mut stream = connect(addr);
        stream.set_nodelay(true).unwrap();
        stream.write_all(head).unwrap();
        stream.write_all(&request[..20]).unwrap();
        apart();
        stream.write_all(&request[20..]).unwrap();
        stream
    };
    let is_refused = || wait_for("it is refused", || status(&servers).refused.values().sum::<u64>() == 1);
    assert_left_alone(pieces(addrs(&servers)[0], b"", &is_refused));
    let head = "GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: curl/7.88.1\r\nUpgrade: websocket\r\n\
                Connection: Upgrade\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nContent-Length: 20\r\n\r\n";
    let apart = || std::thread::sleep(Duration::from_millis(100)); // If they come as one, that is accepted, too.
    let mut stream = pieces(addrs(&servers)[1], head.as_bytes(), &apart);
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    round_trip_is_untouched(&servers, m, &p, echo.addr);
}

/// Earlier probes have cost other clients nothing.
fn round_trip_is_untouched(servers: &adit_engine::Running, m: ShadowsocksMethod, p: &str, echo: SocketAddr) {
    let clients = run_clients([client(addrs(servers)[0], m, p)], echo);
    round_trip(addrs(&clients)[0], 1000);
}
