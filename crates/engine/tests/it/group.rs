//! Groups over loopback: servers in processes of their own threads, of which some go away.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{GroupStatus, Running, start};
use adit_model::{
    Check, ClientCover, Config, Group, Inbound, InboundProtocol, KeyForm, Limits, Member, Outbound,
    OutboundProtocol, ReplayPolicy, Secret, ServerCover, ShadowsocksClient, ShadowsocksKey,
    ShadowsocksServer, ShadowsocksServerKey, Transports,
};
use adit_testkit::unused_addr;

use crate::common::{bind_both, inbound, outbound};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);

fn key() -> ShadowsocksKey {
    let method = "aes-128-gcm".parse().unwrap();
    ShadowsocksKey::new(method, Secret::new("loopback"), KeyForm::Password).unwrap()
}

fn config(inbounds: Vec<Inbound>, outbounds: Vec<Outbound>) -> Config {
    let outbound = &outbounds[0].name;
    let inbounds =
        inbounds.into_iter().map(|inbound| Inbound { outbound: outbound.clone(), ..inbound }).collect();
    let limits = Limits { drain: Duration::from_millis(100), ..Limits::default() };
    Config { cores: Some(1), limits, inbounds, outbounds, ..Config::default() }
}

/// A server at `listen`.
fn server(listen: SocketAddr) -> Running {
    let server = ShadowsocksServer {
        key: ShadowsocksServerKey::new(key()).unwrap(),
        transports: Transports::Both,
        cover: ServerCover::default(),
        replay: ReplayPolicy::Refuse,
    };
    let inbound = inbound("in", "direct", InboundProtocol::Shadowsocks(server));
    let inbound = Inbound { listen: vec![listen], ..inbound };
    start(&config(vec![inbound], vec![outbound("direct", OutboundProtocol::Direct)])).unwrap()
}

fn member(name: &str, server: SocketAddr) -> Outbound {
    let client = ShadowsocksClient {
        server: server.into(),
        key: key(),
        transports: Transports::Both,
        cover: ClientCover::default(),
    };
    outbound(name, OutboundProtocol::Shadowsocks(client))
}

/// A tunnel to `target` through a group of servers at these addresses.
fn client(servers: &[SocketAddr], target: SocketAddr, check: Check, grows: bool) -> Running {
    let members = (0..servers.len()).map(|i| Member::new(format!("server-{i}"))).collect();
    let group = OutboundProtocol::Group(Group { members, grows, check });
    let mut outbounds = vec![outbound("servers", group)];
    outbounds.extend(servers.iter().enumerate().map(|(i, at)| member(&format!("server-{i}"), *at)));
    let tunnel = InboundProtocol::Tunnel { target: target.into(), transports: Transports::Both };
    start(&config(vec![inbound("in", "direct", tunnel)], outbounds)).unwrap()
}

fn quick(page: SocketAddr, dns: SocketAddr) -> Check {
    Check {
        url: format!("http://{page}/x").into(),
        dns,
        interval: Duration::from_millis(500),
        interval_in_use: Duration::from_millis(500),
        timeout: Duration::from_secs(5),
        // On loopback nothing is better than anything else.
        tolerance: Duration::from_secs(60),
    }
}

/// Answers each connection's first bytes with an empty page.
fn page() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let read = stream.read(&mut [0; 1024])?;
                if read > 0 {
                    stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    at
}

/// Sends every stream's bytes and every datagram back; a question comes back as an answer.
fn echo() -> SocketAddr {
    let (listener, socket) = bind_both();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || crate::common::echo(stream));
        }
    });
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            if len > 2 {
                bytes[2] |= 0x80;
            }
            socket.send_to(&bytes[..len], from).ok();
        }
    });
    at
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "still not true: {what}");
        thread::sleep(Duration::from_millis(10));
    }
    begun.elapsed()
}

fn status(running: &Running) -> GroupStatus {
    running.status().groups.remove(0)
}

fn state(running: &Running, member: usize) -> (String, String) {
    let member = status(running).members.remove(member);
    (member.tcp.unwrap().state, member.udp.unwrap().state)
}

/// Whether bytes come back through the tunnel at `at`.
fn echoes(at: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(at) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut back = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut back).is_ok() && back == *b"ping"
}

/// Whether a datagram of a new flow comes back.
fn echoes_datagram(at: SocketAddr) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket.send_to(b"ping", at).unwrap();
    socket.recv(&mut [0; 64]).is_ok()
}

#[test]
fn a_server_that_goes_away_is_left_for_the_other_one() {
    let (echo, page) = (echo(), page());
    let (first, second) = (unused_addr(), unused_addr());
    let servers = [server(first), server(second)];
    let running = client(&[first, second], echo, quick(page, echo), false);
    let at = running.addresses()[0].1;
    let alive = ("alive".to_owned(), "alive".to_owned());
    assert_eq!(state(&running, 0).1, "unknown");
    wait_for("a datagram comes back", || echoes_datagram(at));
    wait_for("both answer", || state(&running, 0) == alive && state(&running, 1) == alive);
    assert!(echoes(at));
    let before = status(&running);
    let chosen = before.tcp.unwrap().member;
    let (gone, other) = if chosen == "server-0" { (0, "server-1") } else { (1, "server-0") };

    let mut servers: Vec<Running> = servers.into();
    servers.remove(gone).end();
    // Not one connection fails: those that the first server does not take go to the second.
    let took = wait_for("streams leave the dead server", || {
        assert!(echoes(at));
        status(&running).tcp.unwrap().member == other
    });
    println!("streams left the dead server after {took:?}");
    let took = wait_for("datagrams leave the dead server", || {
        echoes_datagram(at) && status(&running).udp.unwrap().member == other
    });
    println!("datagrams left the dead server after {took:?} more");
    let after = status(&running);
    assert!(!after.tcp.unwrap().why.is_empty());
    wait_for("it is seen that nobody is there", || {
        let dead = status(&running).members[gone].tcp.clone().unwrap();
        dead.state == "dead" && dead.failure.as_deref() == Some("no-connection") && dead.loss_percent > 0
    });

    let back = server([first, second][gone]);
    wait_for("it is seen again", || state(&running, gone).0 == "alive");
    running.end();
    back.end();
    servers.remove(0).end();
}

#[test]
fn with_every_server_away_the_first_that_comes_back_is_used() {
    let (echo, page) = (echo(), page());
    let (first, second) = (unused_addr(), unused_addr());
    let running = client(&[first, second], echo, quick(page, echo), false);
    let at = running.addresses()[0].1;
    wait_for("both are dead", || state(&running, 0).0 == "dead" && state(&running, 1).0 == "dead");
    assert!(!echoes(at));
    let back = server(second);
    let took = wait_for("a connection comes through", || echoes(at));
    println!("through after {took:?}");
    wait_for("it is chosen", || status(&running).tcp.unwrap().member == "server-1");
    running.end();
    back.end();
}

#[test]
fn a_check_that_fails_everywhere_does_not_stop_what_works() {
    let echo = echo();
    let (first, second) = (unused_addr(), unused_addr());
    let servers = [server(first), server(second)];
    // Nobody answers there.
    let running = client(&[first, second], echo, quick(unused_addr(), unused_addr()), false);
    let at = running.addresses()[0].1;
    wait_for("both are in doubt", || state(&running, 0).0 == "dead" && state(&running, 1).0 == "dead");
    assert!(echoes(at));
    let gone = usize::from(status(&running).tcp.unwrap().member == "server-1");
    let mut servers: Vec<Running> = servers.into();
    servers.remove(gone).end();
    wait_for("the dead server is left", || {
        assert!(echoes(at));
        status(&running).tcp.unwrap().member == format!("server-{}", 1 - gone)
    });
    running.end();
    servers.remove(0).end();
}

#[test]
fn members_come_and_go_and_connections_stay() {
    let (echo, page) = (echo(), page());
    let (first, second) = (unused_addr(), unused_addr());
    let servers = [server(first), server(second)];
    let running = client(&[], echo, quick(page, echo), true);
    let at = running.addresses()[0].1;
    assert!(!echoes(at));
    assert_eq!(status(&running).tcp, None);
    let group = running.group("servers").unwrap();
    assert!(running.group("other").is_none());
    group.replace(vec![(member("a", first), [100, 100])]).unwrap();
    assert!(echoes(at));
    wait_for("a datagram comes back", || echoes_datagram(at));
    let mut open = TcpStream::connect(at).unwrap();
    open.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut exchange = |text: &[u8]| {
        open.write_all(text).unwrap();
        let mut back = vec![0; text.len()];
        open.read_exact(&mut back).unwrap();
        assert_eq!(back, text);
    };
    exchange(b"before");
    wait_for("it answers", || state(&running, 0).0 == "alive");
    // With another one beside it, it keeps what is known of it.
    group.replace(vec![(member("b", second), [100, 100]), (member("a", first), [100, 100])]).unwrap();
    assert_eq!(status(&running).tcp.unwrap().member, "a");
    assert_ne!(state(&running, 1).0, "unknown");
    group.replace(vec![(member("b", second), [100, 100])]).unwrap();
    assert_eq!(status(&running).tcp.unwrap().member, "b");
    exchange(b"after");
    assert!(echoes(at));
    wait_for("a datagram comes back", || echoes_datagram(at));
    group.replace(Vec::new()).unwrap();
    assert!(!echoes(at));
    exchange(b"at last");
    running.end();
    for server in servers {
        server.end();
    }
}
