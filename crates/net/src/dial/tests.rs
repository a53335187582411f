use std::net::TcpListener as StdListener;

use socket2::SockRef;
use tokio::io::Interest;

use super::*;
use crate::listen::{ListenOptions, Listeners, listen_many};
use crate::testing::{A, AAAA, NameServer, TestReply, in_time};

fn on(interface: &str) -> Dial {
    let egress = Egress { interface: Some(interface.into()), ..Egress::default() };
    Dial { egress, ..plan(AddressFamilies::Any) }
}

fn plan(family: AddressFamilies) -> Dial {
    Dial { family, timeout: Duration::from_secs(5), ..Dial::default() }
}

fn dialer(dial: &Dial, server: Option<&NameServer>) -> Dialer {
    match server {
        Some(server) => Dialer::new(dial, server.resolver()),
        None => Dialer::by_system(dial),
    }
}

fn listener(addr: &str) -> Listeners {
    listen_many(addr.parse().unwrap(), &ListenOptions::default(), 1).unwrap()
}

/// A port on loopback on which nobody listens, of the dynamic range but held by a socket that does not listen.
fn closed_port(ip: &str) -> (socket2::Socket, SocketAddr) {
    let addr: SocketAddr = SocketAddr::new(ip.parse().unwrap(), 0);
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None).unwrap();
    socket.bind(&addr.into()).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, addr)
}

/// A listener whose queue is full, so that the system ignores every further connection.
struct BlackHole {
    addr: SocketAddr,
    _listener: StdListener,
    _inside: Vec<socket2::Socket>,
}

fn black_hole() -> BlackHole {
    let options = ListenOptions { backlog: 0, ..ListenOptions::default() };
    let made = listen_many("127.0.0.1:0".parse().unwrap(), &options, 1).unwrap();
    let inside = (0..4).map(|_| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        // Most of them stay in progress.
        drop(socket.connect(&made.addr.into()));
        socket
    });
    let inside = inside.collect();
    BlackHole { addr: made.addr, _listener: made.sockets.into_iter().next().unwrap(), _inside: inside }
}

fn near(elapsed: Duration, wanted: Duration) {
    // Generous, since the machine may be busy.
    let late = Duration::from_millis(900);
    assert!(
        elapsed + Duration::from_millis(2) >= wanted && elapsed < wanted + late,
        "{elapsed:?}, not {wanted:?}"
    );
}

#[tokio::test(flavor = "local")]
async fn a_name_and_an_address_are_connected_to() {
    let server = NameServer::default();
    server.set_ips("web.test", A, &["127.0.0.1"]);
    let listener = listener("127.0.0.1:0");
    let dialer = dialer(&plan(AddressFamilies::Any), Some(&server));
    for target in [Target::from(listener.addr), Target::new(b"web.test", listener.addr.port()).unwrap()] {
        let stream = dialer.dial(&target).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.addr);
        assert!(stream.nodelay().unwrap());
        assert_eq!(SockRef::from(&stream).tcp_keepalive_time().unwrap(), TcpOptions::default().keep_alive);
        assert_eq!(
            SockRef::from(&stream).tcp_keepalive_interval().unwrap(),
            TcpOptions::default().keep_alive
        );
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "local")]
async fn connections_have_what_is_asked_of_tcp() {
    let keep_alive = Duration::from_secs(9);
    let tcp = TcpOptions { keep_alive, send_buffer: Some(70_000), receive_buffer: None, multipath: true };
    let options = ListenOptions { tcp, ..ListenOptions::default() };
    let made = listen_many("127.0.0.1:0".parse().unwrap(), &options, 1).unwrap();
    let stream =
        dialer(&Dial { tcp, ..plan(AddressFamilies::Any) }, None).dial(&made.addr.into()).await.unwrap();
    let socket = SockRef::from(&stream);
    assert_eq!(socket.tcp_keepalive_time().unwrap(), keep_alive);
    assert_eq!(socket.send_buffer_size().unwrap(), 140_000);
    // A system without it has said so, and connects all the same.
    let has_multipath = made.warnings.is_empty();
    let (protocol, listening) =
        (socket.protocol().unwrap(), SockRef::from(&made.sockets[0]).protocol().unwrap());
    let wanted = if has_multipath { socket2::Protocol::MPTCP } else { socket2::Protocol::TCP };
    assert_eq!((protocol, listening), (Some(wanted), Some(wanted)));
}

#[tokio::test(flavor = "local")]
async fn refusal_comes_with_address_and_number() {
    let (_held, addr) = closed_port("127.0.0.1");
    let error = dialer(&plan(AddressFamilies::Any), None).dial(&addr.into()).await.unwrap_err();
    assert!(matches!(error, DialError::Refused { .. }), "{error:?}");
    assert_eq!((error.addr(), error.to_string()), (Some(addr), format!("connection to {addr} refused")));
    assert_eq!(
        error.errno().map(|number| io::Error::from_raw_os_error(number).kind()),
        Some(io::ErrorKind::ConnectionRefused)
    );
}

#[tokio::test(flavor = "local")]
async fn port_zero_and_excluded_families_are_not_dialled() {
    let dialer = dialer(&plan(AddressFamilies::V6Only), None);
    let zero = "example.test:0".parse().unwrap();
    assert!(matches!(dialer.dial(&zero).await, Err(DialError::Port)));
    assert!(matches!(dialer.dial_addrs(&["[::1]:0".parse().unwrap()]).await, Err(DialError::Port)));
    let v4 = "127.0.0.1:1".parse().unwrap();
    assert!(matches!(dialer.dial(&v4).await, Err(DialError::Resolve(ResolveError::NoAddress))));
    assert!(matches!(dialer.dial_addrs(&[]).await, Err(DialError::Resolve(ResolveError::NoAddress))));
}

#[test]
fn a_dead_v6_falls_back_to_v4_at_once() {
    in_time(async || {
        let server = NameServer::default();
        server.set_ips("web.test", A, &["127.0.0.1"]);
        server.set_ips("web.test", AAAA, &["::1"]);
        let listener = listener("127.0.0.1:0");
        let target = Target::new(b"web.test", listener.addr.port()).unwrap();
        let start = Instant::now();
        let stream = dialer(&plan(AddressFamilies::Any), Some(&server)).dial(&target).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.addr);
        assert!(start.elapsed() < ATTEMPT_DELAY, "{:?}", start.elapsed());
    });
}

#[test]
fn a_black_hole_delays_the_next_attempt_by_the_stagger() {
    in_time(async || {
        let (hole, listener) = (black_hole(), listener("127.0.0.2:0"));
        let dialer = dialer(&plan(AddressFamilies::Any), None);
        for holes in 1..=2u32 {
            let mut addrs = vec![hole.addr; holes as usize];
            addrs.push(listener.addr);
            let start = Instant::now();
            let stream = dialer.dial_addrs(&addrs).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), listener.addr);
            near(start.elapsed(), ATTEMPT_DELAY * holes);
        }
    });
}

#[test]
fn time_runs_out_for_all_attempts_together() {
    in_time(async || {
        let hole = black_hole();
        let (_held, refused) = closed_port("127.0.0.1");
        let dial = Dial { timeout: Duration::from_millis(400), ..plan(AddressFamilies::Any) };
        let dialer = dialer(&dial, None);
        for addrs in [vec![hole.addr; 8], vec![refused, hole.addr]] {
            let start = Instant::now();
            let error = dialer.dial_addrs(&addrs).await.unwrap_err();
            assert!(matches!(error, DialError::Timeout { addr } if addr == hole.addr), "{error:?}");
            assert_eq!(error.errno(), None);
            near(start.elapsed(), dial.timeout);
        }
    });
}

#[test]
fn v4_waits_a_little_for_v6() {
    if !adit_testkit::has_ipv6() {
        return;
    }
    in_time(async || {
        let server = NameServer::default();
        let v4 = listener("127.0.0.1:0");
        let v6 = listener(&format!("[::1]:{}", v4.addr.port()));
        let late = |by: u64| {
            let reply = TestReply::Ips(vec!["::1".parse().unwrap()]);
            TestReply::Late(Duration::from_millis(by), Box::new(reply))
        };
        for (name, reply, winner) in [
            ("soon.test", late(5), v6.addr),
            ("late.test", late(2000), v4.addr),
            ("never.test", TestReply::Silence, v4.addr),
            ("none.test", TestReply::Empty, v4.addr),
        ] {
            server.set_ips(name, A, &["127.0.0.1"]);
            server.set(name, AAAA, reply);
            let target = Target::new(name.as_bytes(), v4.addr.port()).unwrap();
            let start = Instant::now();
            let stream = dialer(&plan(AddressFamilies::Any), Some(&server)).dial(&target).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), winner, "{name}");
            if name == "late.test" || name == "never.test" {
                near(start.elapsed(), RESOLUTION_DELAY);
            }
        }
        let target = Target::new(b"soon.test", v4.addr.port()).unwrap();
        let stream = dialer(&plan(AddressFamilies::PreferV4), Some(&server)).dial(&target).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), v4.addr);
    });
}

#[test]
fn names_without_addresses_are_resolve_errors() {
    in_time(async || {
        let server = NameServer::default();
        server.set("silent.test", A, TestReply::Silence);
        let dial = Dial { timeout: Duration::from_millis(200), ..plan(AddressFamilies::V4Only) };
        let dialer = dialer(&dial, Some(&server));
        let error = dialer.dial(&"gone.test:80".parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, DialError::Resolve(ResolveError::NotFound)), "{error:?}");
        let start = Instant::now();
        let error = dialer.dial(&"silent.test:80".parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, DialError::Resolve(ResolveError::Timeout)), "{error:?}");
        near(start.elapsed(), dial.timeout);
    });
}

#[test]
fn families_take_turns() {
    let addrs: Vec<SocketAddr> = ["[::1]:1", "[::1]:2", "[::1]:3", "127.0.0.1:4", "127.0.0.1:5"]
        .iter()
        .map(|addr| addr.parse().unwrap())
        .collect();
    for (family, order) in [
        (AddressFamilies::Any, &[1, 4, 2, 5, 3][..]),
        (AddressFamilies::PreferV4, &[4, 1, 5, 2, 3]),
        (AddressFamilies::V4Only, &[4, 5]),
        (AddressFamilies::V6Only, &[1, 2, 3]),
    ] {
        let dialer = dialer(&plan(family), None);
        let mut attempts = Attempts::new(&dialer, 0, Reach::Anywhere);
        attempts.add(addrs.iter().copied());
        let ports: Vec<u16> = std::iter::from_fn(|| attempts.pop()).map(|addr| addr.port()).collect();
        assert_eq!(ports, order, "{family:?}");
    }
    let dialer = dialer(&plan(AddressFamilies::Any), None);
    let mut attempts = Attempts::new(&dialer, 0, Reach::Anywhere);
    attempts.add(addrs.iter().copied().cycle().take(100));
    assert_eq!(attempts.taken, [MAX_ADDRS, MAX_ADDRS]);
}

#[test]
fn a_failure_brings_the_next_attempt_forward() {
    let dialer = dialer(&plan(AddressFamilies::Any), None);
    let mut attempts = Attempts::new(&dialer, 0, Reach::Anywhere);
    assert_eq!(attempts.next_start(), None);
    attempts.add((1..=3).map(|port| SocketAddr::new([127, 0, 0, 1].into(), port)));
    assert!(attempts.next_start().unwrap() <= Instant::now());
    for _ in 0..2 {
        attempts.start();
        let (started, addr) = attempts.last_start.unwrap();
        assert_eq!(attempts.next_start(), Some(started + ATTEMPT_DELAY));
        attempts.note(DialError::connect(addr, io::ErrorKind::ConnectionRefused.into()));
        assert!(!attempts.running.is_empty());
        assert!(attempts.next_start().unwrap() < started + ATTEMPT_DELAY);
    }
}

#[test]
fn the_most_telling_error_is_kept() {
    let addr = "[::1]:1".parse().unwrap();
    let dialer = dialer(&plan(AddressFamilies::Any), None);
    let mut attempts = Attempts::new(&dialer, 0, Reach::Anywhere);
    for (kind, kept) in [
        (io::ErrorKind::NetworkUnreachable, "[::1]:1 is unreachable"),
        (io::ErrorKind::ConnectionReset, "connection to [::1]:1 failed"),
        (io::ErrorKind::ConnectionRefused, "connection to [::1]:1 refused"),
        (io::ErrorKind::TimedOut, "connection to [::1]:1 refused"),
        (io::ErrorKind::HostUnreachable, "connection to [::1]:1 refused"),
    ] {
        attempts.note(DialError::connect(addr, kind.into()));
        assert_eq!(attempts.error.as_ref().unwrap().to_string(), kept);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "local")]
async fn sockets_are_bound_to_the_interface() {
    let listener = listener("127.0.0.1:0");
    let dial = on("lo");
    let stream = dialer(&dial, None).dial(&listener.addr.into()).await.unwrap();
    assert_eq!(SockRef::from(&stream).device().unwrap().as_deref(), Some(&b"lo"[..]));

    let dial = on("no-such-if0");
    let warnings = Dialer::by_system(&dial).warnings();
    assert!(matches!(&*warnings, [Warning::Interface(name, _)] if **name == *"no-such-if0"), "{warnings:?}");
    let error = dialer(&dial, None).dial(&listener.addr.into()).await.unwrap_err();
    assert!(matches!(error, DialError::Socket { .. }) && error.errno().is_some(), "{error:?}");
}

#[tokio::test(flavor = "local")]
async fn sockets_are_bound_to_the_address() {
    let listener = listener("127.0.0.1:0");
    let own = Egress { v4: Some([127, 9, 9, 9].into()), ..Egress::default() };
    let stream = dialer(&Dial { egress: own, ..plan(AddressFamilies::Any) }, None)
        .dial(&listener.addr.into())
        .await
        .unwrap();
    assert_eq!(stream.local_addr().unwrap().ip(), IpAddr::from([127, 9, 9, 9]));
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "local")]
async fn fast_open_is_asked_for_and_carries_data() {
    let options = ListenOptions { fast_open: true, ..ListenOptions::default() };
    let listener = listen_many("127.0.0.1:0".parse().unwrap(), &options, 1).unwrap();
    let dial = Dial { fast_open: true, ..plan(AddressFamilies::Any) };
    let dialer = dialer(&dial, None);
    let allowed = adit_sys::tcp::fast_open_support().is_none_or(|support| support.client);
    assert_eq!(dialer.warnings().is_empty(), allowed);
    // The first connection fetches the cookie that a second one may use.
    for _ in 0..3 {
        let stream = dialer.dial(&listener.addr.into()).await.unwrap();
        assert_eq!(adit_sys::tcp::fast_open_connect(&stream).unwrap(), allowed);
        stream.ready(Interest::WRITABLE).await.unwrap();
        assert_eq!(stream.try_write(b"hello").unwrap(), 5);
        let accepted = tokio::net::TcpListener::from_std(listener.sockets[0].try_clone().unwrap()).unwrap();
        let (peer, _) = accepted.accept().await.unwrap();
        peer.readable().await.unwrap();
        let mut data = [0; 8];
        assert_eq!(peer.try_read(&mut data).unwrap(), 5);
    }
}
