//! The log of a ShadowsocksR server, and of its client, about clients that are refused.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "these tests are the world outside")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fmt::{Debug, Write as _};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use adit_engine::{Running, start};
use adit_model::{
    Config, Dial, Egress, Inbound, InboundProtocol, Outbound, OutboundProtocol, Secret, SocketOptions,
    SsrClient, SsrServer, SsrUsers, Transports, User,
};
use adit_proto::ssr::{CipherLayer, SsrKey, SsrProtocol, protocol};
use adit_proto::wire::{Layer, Rng, Target, WallClock};
use adit_testkit::wait_for;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const PASSWORD: &str = "loopback password";
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const HOUR_S: i64 = 3600;

/// Warnings of all tests of this file.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The warnings that name `tag`.
fn lines(tag: &str) -> Vec<String> {
    let quoted = format!("\"{tag}\"");
    LINES.lock().unwrap().iter().filter(|line| line.contains(&quoted)).cloned().collect()
}

fn listen_to_log() {
    // The other test may have been first.
    tracing::subscriber::set_global_default(Log).ok();
}

fn server(protocol: SsrProtocol) -> SsrServer {
    let mut server = SsrServer::new("aes-128-ctr".parse().unwrap(), Secret::new(PASSWORD), protocol);
    if protocol.has_users() {
        let alice = User::from(("alice".into(), Secret::new("wonder")));
        server.users = SsrUsers::new(protocol, vec![(1001, alice)]).unwrap();
    }
    server
}

fn inbound(name: &str, outbound: &str, protocol: InboundProtocol) -> Inbound {
    Inbound {
        name: name.into(),
        listen: vec![LOOPBACK],
        socket: SocketOptions::default(),
        outbound: outbound.into(),
        protocol,
        allow_private: true,
    }
}

fn run(inbounds: Vec<Inbound>, outbounds: Vec<Outbound>) -> Running {
    start(&Config { cores: Some(1), inbounds, outbounds, ..Config::default() }).unwrap()
}

/// A server called `name`, and its port.
fn run_server(name: &str, server: &SsrServer) -> (Running, SocketAddr) {
    let direct =
        Outbound { name: "direct".into(), dial: Dial::default(), protocol: OutboundProtocol::Direct };
    let running = run(vec![inbound(name, "direct", InboundProtocol::Ssr(server.clone()))], vec![direct]);
    let address = running.addresses()[0].1;
    (running, address)
}

/// Differs from call to call.
struct Draw(u64);

impl Rng for Draw {
    fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = self.0.to_be_bytes()[0];
        }
    }
}

/// A client that is refused, or not.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    protocol: &'static str,
    user: u32,
    secret: &'static str,
    password: &'static str,
    clock_s: i64,
    /// Changes the header that the client sends.
    change: fn(&mut Vec<u8>),
    /// Text of the one line about it; `None` for a client that is served.
    says: Option<&'static str>,
}

const GOOD: Case = Case {
    name: "",
    protocol: "auth_aes128_md5",
    user: 1001,
    secret: "wonder",
    password: PASSWORD,
    clock_s: 0,
    change: |_| {},
    says: None,
};

const CASES: [Case; 10] = [
    Case { name: "user", user: 8, says: Some("unknown user id: 8"), ..GOOD },
    Case { name: "secret", secret: "another", says: Some("wrong secret of user id: 1001"), ..GOOD },
    Case { name: "password", password: "another", says: Some("wrong password, method or protocol"), ..GOOD },
    Case { name: "hour", clock_s: -HOUR_S, ..GOOD },
    Case { name: "days", clock_s: -48 * HOUR_S, says: Some("clock is 1728"), ..GOOD },
    Case {
        name: "hours",
        protocol: "auth_sha1",
        clock_s: HOUR_S + 100,
        says: Some("s ahead of ours, and no more than 3600 s"),
        ..GOOD
    },
    Case { name: "flipped", change: |flight| flight[20] ^= 1, says: Some("wrong password"), ..GOOD },
    Case {
        name: "flipped id",
        change: |flight| flight[16 + 8] ^= 1,
        says: Some("bad tag of the user id"),
        ..GOOD
    },
    Case {
        name: "truncated",
        change: |flight| flight.truncate(16 + 31 + 3),
        says: Some("ended before the header was complete"),
        ..GOOD
    },
    Case { name: "chain", protocol: "auth_chain_a", user: 8, says: Some("unknown user id: 8"), ..GOOD },
];

/// The first bytes of the client of `case`.
fn flight(case: &Case, seed: u64) -> Vec<u8> {
    let (now, mut rng) = (Instant::now(), Draw(seed));
    let key = SsrKey::from_password("aes-128-ctr".parse().unwrap(), case.password.as_bytes());
    let config = protocol::SsrClientConfig::new(case.protocol.parse().unwrap(), &key, 0)
        .with_user(case.user, case.secret.as_bytes());
    let mut cipher = CipherLayer::client(&key, &mut rng);
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let clock = WallClock::new(now, unix_s.checked_add_signed(case.clock_s).unwrap());
    let target: Target = "127.0.0.1:9".parse().unwrap();
    let mut client = protocol::SsrClientStream::new(&config, &cipher.client_iv(), &target, clock, &mut rng);
    let head = client.plan(now).first.head + cipher.plan(now).first.head;
    let mut block = [vec![0; head], b"hello".to_vec()].concat();
    let sealed = client.seal(&mut block, head..head + 5, now).unwrap();
    let sealed = cipher.seal(&mut block, sealed, now).unwrap();
    let mut flight = block[sealed].to_vec();
    (case.change)(&mut flight);
    flight
}

/// Counts of connections that `running` has served and refused.
fn counts(running: &Running) -> (u64, u64) {
    let status = running.status().inbounds.remove(0);
    (status.requests, status.refused.values().sum())
}

#[test]
fn one_line_for_each_source_names_the_likely_cause() {
    listen_to_log();
    for (seed, case) in (1..).zip(&CASES) {
        let (running, address) = run_server(case.name, &server(case.protocol.parse().unwrap()));
        for n in 0..3 {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&flight(case, 1000 * seed + n)).unwrap();
            drop(stream);
            wait_for(case.name, || {
                let (served, refused) = counts(&running);
                served + refused == n + 1
            });
        }
        let found = lines(case.name);
        match case.says {
            Some(says) => {
                assert_eq!(found.len(), 1, "{found:?}");
                assert!(found[0].contains(says) && found[0].contains("127.0.0.1"), "{found:?}");
                assert_eq!(counts(&running), (0, 3), "{}", case.name);
            }
            None => assert_eq!((counts(&running), found), ((3, 0), vec![]), "{}", case.name),
        }
    }
}

#[test]
fn a_replay_is_named() {
    listen_to_log();
    for (name, protocol) in
        [("replay", "auth_aes128_md5"), ("replay chain", "auth_chain_a"), ("iv", "origin")]
    {
        let (running, address) = run_server(name, &server(protocol.parse().unwrap()));
        let flight = flight(&Case { protocol, ..GOOD }, 77);
        for n in 0..3 {
            TcpStream::connect(address).unwrap().write_all(&flight).unwrap();
            wait_for(name, || counts(&running) == (1, n));
        }
        let found = lines(name);
        assert!(found.len() == 1 && found[0].contains("repeated connection (a replay)"), "{found:?}");
    }
}

/// Twelve clients from addresses of their own, three connections each.
#[test]
fn lines_are_ten_a_minute_at_most_and_clients_say_it_too() {
    const CLIENTS: u8 = 12;
    listen_to_log();
    let server = server(SsrProtocol::AuthAes128Sha1);
    let (running, address) = run_server("many", &server);
    let (mut inbounds, mut outbounds) = (Vec::new(), Vec::new());
    for n in 0..CLIENTS {
        let name = format!("client{n}");
        let target: Target = address.to_string().parse().unwrap();
        let client = SsrClient::new(target.clone(), server.method, Secret::new("wrong"), server.protocol);
        let egress = Egress { v4: Some(Ipv4Addr::new(127, 0, 1, n + 1)), ..Egress::default() };
        let dial = Dial { egress, ..Dial::default() };
        let tunnel = InboundProtocol::Tunnel { target, transports: Transports::Tcp };
        inbounds.push(inbound(&format!("tunnel{n}"), &name, tunnel));
        outbounds.push(Outbound { name: (*name).into(), dial, protocol: OutboundProtocol::Ssr(client) });
    }
    let clients = run(inbounds, outbounds);
    for round in 0..3 {
        for (_, port) in clients.addresses() {
            TcpStream::connect(port).unwrap().write_all(&[b'x'; 3000]).unwrap();
        }
        let all = u64::from(CLIENTS) * (round + 1);
        wait_for("all are refused", || counts(&running) == (0, all));
    }
    let found = lines("many");
    assert_eq!(found.len(), 10, "{found:?}");
    assert!(found.iter().all(|line| line.contains("wrong password")), "{found:?}");
    // All clients are one process: ten lines a minute there too, and every outbound has its error.
    let said = || (0..CLIENTS).flat_map(|n| lines(&format!("client{n}"))).collect::<Vec<_>>();
    let outbounds = || clients.status().outbounds;
    wait_for("the clients say it", || outbounds().iter().all(|outbound| outbound.last_error.is_some()));
    let found = said();
    assert_eq!(found.len(), 10, "{found:?}");
    assert!(found.iter().all(|line| line.contains("key, method, protocol or clock differ")), "{found:?}");
    for outbound in outbounds() {
        let error = outbound.last_error.unwrap();
        assert_eq!((&*error.code, error.active), ("ADIT-AUTH-01", true), "{error:?}");
    }
}
