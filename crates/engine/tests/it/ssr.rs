//! ShadowsocksR on loopback, both ends adit.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{Running, start};
use adit_model::{
    Config, Inbound, InboundProtocol, Limits, Outbound, OutboundProtocol, Secret, SsrClient, SsrServer,
    SsrUsers, Transports, User, UserLimits,
};
use adit_proto::ssr::{Obfs, SsrMethod, SsrProtocol};
use adit_proto::wire::Target;
use adit_testkit::wait_for;

use crate::common::{IO_LIMIT, addrs, connect, echo_both, inbound, outbound, status, wait_refused};

const PASSWORD: &str = "loopback password";
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn method(name: &str) -> SsrMethod {
    name.parse().unwrap()
}

fn server(method: SsrMethod, protocol: SsrProtocol, obfs: Obfs) -> SsrServer {
    SsrServer { obfs, ..SsrServer::new(method, Secret::new(PASSWORD), protocol) }
}

/// The client that fits `server` at `addr`.
fn client(server: &SsrServer, addr: SocketAddr) -> SsrClient {
    let SsrServer { method, password, protocol, obfs, .. } = server;
    let client = SsrClient::new(destination(addr), *method, password.clone(), *protocol);
    SsrClient { obfs: *obfs, obfs_param: "cloud.example".into(), ..client }
}

fn destination(addr: SocketAddr) -> Target {
    Target::new(addr.ip().to_string().as_bytes(), addr.port()).unwrap()
}

fn run(inbounds: Vec<Inbound>, outbounds: Vec<Outbound>) -> Running {
    let limits = Limits {
        drain: Duration::from_millis(300),
        unauthenticated_per_source: Some(4096),
        ..Limits::default()
    };
    start(&Config { cores: Some(1), limits, inbounds, outbounds, ..Config::default() }).unwrap()
}

/// Servers in one process.
fn run_servers(servers: &[SsrServer]) -> Running {
    let servers = servers.iter().enumerate();
    let inbounds = servers
        .map(|(i, server)| inbound(&format!("server{i}"), "direct", InboundProtocol::Ssr(server.clone())));
    run(inbounds.collect(), vec![outbound("direct", OutboundProtocol::Direct)])
}

/// Clients in one process, each behind a port from which everything goes to `target`.
fn run_clients(clients: Vec<SsrClient>, target: SocketAddr) -> Running {
    run_clients_to(clients, &destination(target))
}

fn run_clients_to(clients: Vec<SsrClient>, target: &Target) -> Running {
    let (mut inbounds, mut outbounds) = (Vec::new(), Vec::new());
    for (i, client) in clients.into_iter().enumerate() {
        let tunnel = InboundProtocol::Tunnel { target: target.clone(), transports: Transports::Both };
        inbounds.push(inbound(&format!("tunnel{i}"), &format!("client{i}"), tunnel));
        outbounds.push(outbound(&format!("client{i}"), OutboundProtocol::Ssr(client)));
    }
    run(inbounds, outbounds)
}

/// The ports for streams, in the order of the configuration.
/// Bytes without a short period.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// Sends `len` bytes through a port that leads to an echo, ends, and expects them back with the end.
fn round_trip(port: SocketAddr, len: usize, what: &str) {
    echoed(port, pattern(len), what);
}

fn echoed(port: SocketAddr, data: Vec<u8>, what: &str) {
    let (stream, len) = (connect(port), data.len());
    let (mut writer, sent) = (stream.try_clone().unwrap(), data.clone());
    let write = thread::spawn(move || {
        writer.write_all(&sent)?;
        writer.shutdown(Shutdown::Write)
    });
    let mut back = Vec::new();
    let read = (&stream).read_to_end(&mut back);
    write.join().unwrap().unwrap_or_else(|error| panic!("{what}: {len} bytes: {error}"));
    read.unwrap_or_else(|error| panic!("{what}: {} of {len} bytes: {error}", back.len()));
    assert!(back == data, "{what}: {} of {len} bytes came back", back.len());
}

/// Datagrams through a port come back; each is asked for again until it does.
fn datagrams_come_back(port: SocketAddr, what: &str) {
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    for len in [1, 100, 1000] {
        let (sent, until) = (pattern(len), Instant::now() + IO_LIMIT);
        let mut bytes = [0; 2048];
        loop {
            socket.send_to(&sent, port).unwrap();
            if socket.recv(&mut bytes).is_ok_and(|got| bytes[..got] == *sent) {
                break;
            }
            assert!(Instant::now() < until, "{what}: {len} bytes");
        }
    }
}

/// Every server with its client: streams of several lengths, and datagrams.
fn pairs_carry(servers: &[SsrServer], lens: &[usize]) {
    let echo = echo_both();
    let running = run_servers(servers);
    let clients = servers.iter().zip(addrs(&running)).map(|(server, addr)| client(server, addr));
    let clients = run_clients(clients.collect(), echo);
    for (port, server) in addrs(&clients).into_iter().zip(servers) {
        let what = format!("{} {} {}", server.method.name(), server.protocol, server.obfs);
        for len in lens {
            round_trip(port, *len, &what);
        }
        datagrams_come_back(port, &what);
    }
}

#[test]
fn every_protocol_in_every_obfs() {
    let combinations = SsrProtocol::all().flat_map(|protocol| Obfs::all().map(move |obfs| (protocol, obfs)));
    let servers: Vec<_> =
        combinations.map(|(protocol, obfs)| server(method("aes-256-ctr"), protocol, obfs)).collect();
    for some in servers.chunks(8) {
        pairs_carry(some, &[0, 1, 3_000, 300_000]);
    }
}

/// Packets of verify_deflate hold a thousand times their length: the relay reads on only when what they held has left.
#[test]
fn payload_that_is_much_longer_than_its_packets() {
    let servers: Vec<_> =
        Obfs::all().map(|obfs| server(method("aes-256-ctr"), SsrProtocol::VerifyDeflate, obfs)).collect();
    let running = run_servers(&servers);
    let clients = servers.iter().zip(addrs(&running)).map(|(server, addr)| client(server, addr));
    let clients = run_clients(clients.collect(), echo_both());
    for (port, server) in addrs(&clients).into_iter().zip(&servers) {
        echoed(port, vec![0; 8_000_000], server.obfs.name());
    }
}

#[test]
fn every_method() {
    let servers: Vec<_> =
        SsrMethod::all().map(|method| server(method, SsrProtocol::Origin, Obfs::Plain)).collect();
    for some in servers.chunks(12) {
        pairs_carry(some, &[1, 100_000]);
    }
}

fn over_tcp(server: &SsrServer, addr: SocketAddr) -> SsrClient {
    SsrClient { datagrams_over_tcp: true, ..client(server, addr) }
}

#[test]
fn datagrams_travel_in_streams() {
    let combinations = SsrProtocol::all()
        .map(|protocol| (protocol, Obfs::Plain))
        .chain(Obfs::all().map(|obfs| (SsrProtocol::AuthAes128Md5, obfs)));
    let servers: Vec<_> =
        combinations.map(|(protocol, obfs)| server(method("aes-128-ctr"), protocol, obfs)).collect();
    let echo = echo_both();
    for some in servers.chunks(8) {
        let running = run_servers(some);
        let clients = some.iter().zip(addrs(&running)).map(|(server, addr)| over_tcp(server, addr));
        let clients = run_clients(clients.collect(), echo);
        for (port, server) in addrs(&clients).into_iter().zip(some) {
            datagrams_come_back(port, &format!("{} {}", server.protocol, server.obfs));
        }
        // Nothing has come to a port for datagrams: each flow is a connection with one request.
        for inbound in running.status().inbounds {
            let flows = inbound.datagrams.map(|datagrams| datagrams.flows);
            assert_eq!((inbound.requests, flows), (1, Some(1)), "{}", inbound.name);
        }
    }
}

#[test]
fn a_user_is_counted_for_datagrams_in_streams() {
    let server = with_users("auth_chain_a".parse().unwrap());
    let running = run_servers(std::slice::from_ref(&server));
    let alice = as_user(over_tcp(&server, addrs(&running)[0]), 1001, "wonder");
    let clients = run_clients(vec![alice], echo_both());
    datagrams_come_back(addrs(&clients)[0], "datagrams of alice");
    wait_for("datagrams are counted", || {
        let user = status(&running).users.remove(0);
        (user.requests, user.open) == (1, 1) && user.up_bytes >= 1101 && user.down_bytes >= 1101
    });
    drop(clients);
    wait_for("the place is free again", || status(&running).users.remove(0).open == 0);
}

#[test]
fn a_server_without_datagrams_takes_none_in_streams() {
    let server = SsrServer {
        transports: Transports::Tcp,
        ..server(method("aes-128-ctr"), SsrProtocol::AuthAes128Md5, Obfs::Plain)
    };
    let running = run_servers(std::slice::from_ref(&server));
    let clients = run_clients(vec![over_tcp(&server, addrs(&running)[0])], echo_both());
    UdpSocket::bind(LOOPBACK).unwrap().send_to(b"hello", addrs(&clients)[0]).unwrap();
    wait_refused(&running, "unsupported", 1);
    assert_eq!(status(&running).requests, 0);
}

#[test]
fn servers_speak_first() {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let target = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.write_all(b"220 ready").unwrap();
        }
    });
    let servers: Vec<_> =
        Obfs::all().map(|obfs| server(method("rc4-md5"), "auth_chain_a".parse().unwrap(), obfs)).collect();
    let running = run_servers(&servers);
    let clients = servers.iter().zip(addrs(&running)).map(|(server, addr)| client(server, addr));
    let clients = run_clients(clients.collect(), target);
    for (port, server) in addrs(&clients).into_iter().zip(&servers) {
        let mut greeting = [0; 9];
        connect(port).read_exact(&mut greeting).unwrap_or_else(|error| panic!("{}: {error}", server.obfs));
        assert_eq!(&greeting, b"220 ready");
    }
}

#[test]
fn compatible_servers_take_plain_clients() {
    let plain = server(method("aes-128-ctr"), SsrProtocol::Origin, Obfs::Plain);
    let servers: Vec<_> = Obfs::all()
        .filter(|obfs| obfs.can_be_compatible())
        .map(|obfs| SsrServer {
            protocol_compatible: true,
            obfs_compatible: true,
            ..server(plain.method, SsrProtocol::AuthSha1V4, obfs)
        })
        .collect();
    let running = run_servers(&servers);
    let clients = addrs(&running).into_iter().map(|addr| client(&plain, addr));
    let clients = run_clients(clients.collect(), echo_both());
    for (port, server) in addrs(&clients).into_iter().zip(&servers) {
        // Long enough for random_head and TLS to see that this is neither.
        round_trip(port, 5_000, server.obfs.name());
    }
}

fn with_users(protocol: SsrProtocol) -> SsrServer {
    let user = |id, name: &str, key: &str| (id, User::from((name.into(), Secret::new(key))));
    let users = vec![user(1001, "alice", "wonder"), user(7, "bob", "builder")];
    let users = SsrUsers::new(protocol, users).unwrap();
    SsrServer { users, ..server(method("aes-128-ctr"), protocol, Obfs::HttpSimple) }
}

fn as_user(client: SsrClient, id: u32, secret: &str) -> SsrClient {
    SsrClient { user: Some((id, Secret::new(secret))), ..client }
}

#[test]
fn users_are_told_apart_and_counted() {
    for protocol in SsrProtocol::all().filter(|protocol| protocol.has_users()) {
        let server = with_users(protocol);
        let running = run_servers(std::slice::from_ref(&server));
        let base = client(&server, addrs(&running)[0]);
        let clients =
            vec![as_user(base.clone(), 1001, "wonder"), as_user(base.clone(), 7, "builder"), base.clone()];
        let clients = run_clients(clients, echo_both());
        let ports = addrs(&clients);
        round_trip(ports[0], 10, protocol.name());
        round_trip(ports[1], 3_200, protocol.name());
        let counted = || -> Vec<_> {
            let users = status(&running).users.into_iter();
            users.map(|user| (user.name, user.requests, user.up_bytes, user.down_bytes)).collect()
        };
        let expected = vec![("alice".into(), 1, 10, 10), ("bob".into(), 1, 3200, 3200)];
        wait_for("all is counted", || counted() == expected);
        datagrams_come_back(ports[0], protocol.name());
        wait_for("datagrams are counted", || counted()[0].2 >= 1111);
        // Nobody without an id is served, and nothing is said.
        connect(ports[2]).write_all(b"hello").unwrap();
        wait_refused(&running, "authentication", 1);
    }
}

#[test]
fn a_user_with_a_wrong_secret_or_no_such_id_is_left_alone() {
    for protocol in ["auth_aes128_md5", "auth_aes128_fast", "auth_chain_a"] {
        let server = with_users(protocol.parse().unwrap());
        let running = run_servers(std::slice::from_ref(&server));
        let base = client(&server, addrs(&running)[0]);
        let clients = vec![as_user(base.clone(), 1001, "builder"), as_user(base.clone(), 8, "wonder")];
        let clients = run_clients(clients, echo_both());
        for (n, port) in (1..).zip(addrs(&clients)) {
            let mut stream = connect(port);
            stream.write_all(b"hello").unwrap();
            wait_refused(&running, "authentication", n);
            is_silent(&mut stream);
        }
        assert!(status(&running).users.iter().all(|user| user.requests == 0));
    }
}

/// Nothing comes, and no end either.
fn is_silent(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let error = stream.read(&mut [0; 16]).expect_err("nothing is said");
    assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
}

#[test]
fn a_user_that_may_use_no_more_is_reset() {
    let protocol = SsrProtocol::AuthAes128Sha1;
    let limits = UserLimits { connections: Some(1), ..UserLimits::default() };
    let user = User { limits, ..User::from(("alice".into(), Secret::new("wonder"))) };
    let users = SsrUsers::new(protocol, vec![(1, user)]).unwrap();
    let server = SsrServer { users, ..server(method("aes-128-ctr"), protocol, Obfs::Plain) };
    let running = run_servers(std::slice::from_ref(&server));
    let client = as_user(client(&server, addrs(&running)[0]), 1, "wonder");
    let clients = run_clients(vec![client], echo_both());
    let port = addrs(&clients)[0];
    let mut first = connect(port);
    first.write_all(b"x").unwrap();
    first.read_exact(&mut [0; 1]).unwrap();
    let mut second = connect(port);
    second.write_all(b"x").unwrap();
    assert!(!second.read(&mut [0; 1]).is_ok_and(|len| len > 0), "there is no second place");
    drop(first);
    wait_for("the place is free again", || {
        let mut third = connect(port);
        third.write_all(b"x").is_ok() && third.read(&mut [0; 1]).is_ok_and(|len| len == 1)
    });
}

#[test]
fn a_wrong_password_meets_silence_in_every_protocol() {
    let servers: Vec<_> =
        SsrProtocol::all().map(|protocol| server(method("aes-256-ctr"), protocol, Obfs::Plain)).collect();
    for server in servers {
        let running = run_servers(std::slice::from_ref(&server));
        let mut wrong = client(&server, addrs(&running)[0]);
        wrong.password = Secret::new("another");
        let clients = run_clients(vec![wrong], echo_both());
        let mut stream = connect(addrs(&clients)[0]);
        // Long enough for every length that garbage may announce.
        stream.write_all(&vec![b'x'; 70_000]).unwrap();
        is_silent(&mut stream);
        assert_eq!(status(&running).requests, 0, "{}", server.protocol);
    }
}

/// A client that has shown its key and asks for a host that is none sees the end at once. Its recording meets silence.
#[test]
fn a_request_for_nothing_ends_the_connection_of_a_user_alone() {
    for name in ["auth_sha1_v4", "auth_aes128_md5", "auth_aes128_sha1", "auth_chain_a", "auth_chain_f"] {
        let server = server(method("aes-256-ctr"), name.parse().unwrap(), Obfs::Plain);
        let flight = record_to(&server, nothing());
        let running = run_servers(std::slice::from_ref(&server));
        let mut stream = connect(addrs(&running)[0]);
        stream.write_all(&flight).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).expect("an end in order"), 0, "{name}");
        wait_refused(&running, "malformed", 1);
        let mut again = connect(addrs(&running)[0]);
        again.write_all(&flight).unwrap();
        wait_refused(&running, "replay", 1);
        is_silent(&mut again);
        assert_eq!(status(&running).requests, 0, "{name}");
    }
    // Nobody can tell whose these are.
    for name in ["origin", "verify_simple"] {
        let server = server(method("aes-256-ctr"), name.parse().unwrap(), Obfs::Plain);
        let flight = record_to(&server, nothing());
        let running = run_servers(std::slice::from_ref(&server));
        let mut stream = connect(addrs(&running)[0]);
        stream.write_all(&flight).unwrap();
        is_silent(&mut stream);
    }
}

/// A host with a blank in it, which no local port would take.
fn nothing() -> Target {
    Target { host: adit_proto::wire::Host::Name("a b".into()), port: 80 }
}

/// The first bytes that a client sends to its server, recorded in between.
fn record(server: &SsrServer) -> Vec<u8> {
    record_to(server, destination(echo_both()))
}

/// The same of a client that asks for `target`.
fn record_to(server: &SsrServer, target: Target) -> Vec<u8> {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let clients = run_clients_to(vec![client(server, listener.local_addr().unwrap())], &target);
    let mut near = connect(addrs(&clients)[0]);
    near.write_all(b"hello").unwrap();
    let (mut far, _) = listener.accept().unwrap();
    far.set_read_timeout(Some(IO_LIMIT)).unwrap();
    let mut bytes = vec![0; 8192];
    let len = far.read(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn a_flight_is_accepted_once() {
    for name in ["origin", "verify_simple", "verify_sha1", "auth_sha1_v4", "auth_aes128_md5", "auth_chain_a"]
    {
        let server = server(method("aes-256-ctr"), name.parse().unwrap(), Obfs::Plain);
        // Its target is not there for long, which does not matter here.
        let flight = record(&server);
        let running = run_servers(std::slice::from_ref(&server));
        let mut first = connect(addrs(&running)[0]);
        first.write_all(&flight).unwrap();
        wait_for("the first is served", || status(&running).requests == 1);
        let mut again = connect(addrs(&running)[0]);
        again.write_all(&flight).unwrap();
        wait_refused(&running, "replay", 1);
        is_silent(&mut again);
        assert_eq!(status(&running).requests, 1, "{name}");
    }
}

#[test]
fn a_flight_that_comes_byte_by_byte_is_accepted() {
    for (protocol, obfs) in
        [("auth_aes128_sha1", "http_post"), ("auth_chain_b", "plain"), ("origin", "plain")]
    {
        let server = server(method("chacha20-ietf"), protocol.parse().unwrap(), obfs.parse().unwrap());
        let flight = record(&server);
        let running = run_servers(std::slice::from_ref(&server));
        let mut stream = connect(addrs(&running)[0]);
        stream.set_nodelay(true).unwrap();
        for byte in flight {
            stream.write_all(&[byte]).unwrap();
            thread::yield_now();
        }
        wait_for("it is served", || status(&running).requests == 1);
    }
}

#[test]
fn changed_flights_are_not_served() {
    let server = server(method("aes-256-ctr"), SsrProtocol::AuthAes128Md5, Obfs::Plain);
    let flight = record(&server);
    let running = run_servers(std::slice::from_ref(&server));
    let addr = addrs(&running)[0];
    // The IV, the header's parts in turn, and its end.
    let mut streams = Vec::new();
    for at in [0, 15, 16, 17, 22, 23, 26, 27, 42, 43, 46, flight.len() - 1] {
        let mut changed = flight.clone();
        changed[at] ^= 1;
        // Some are only judged once more has come.
        changed.resize(changed.len() + 3000, 0);
        let mut stream = connect(addr);
        stream.write_all(&changed).unwrap();
        streams.push(stream);
    }
    // The protocol decides whether a packet shows as a wrong key or as a bad field.
    wait_for("all are refused", || status(&running).refused.values().sum::<u64>() == 12);
    assert_eq!(status(&running).requests, 0);
}
