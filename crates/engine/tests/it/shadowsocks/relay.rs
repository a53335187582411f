//! Relays of SIP023, and several users: ours behind ours, and ours with sing-box's.

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use adit_model::{Secret, ShadowsocksServer, ShadowsocksServerKey, Transports, UserLimits};
use adit_proto::shadowsocks::ShadowsocksMethod;
use adit_testkit::peer::{Peer, sing_box};
use adit_testkit::unused_addr;

use super::support::{
    LOOPBACK, Service, addrs, client, connect, datagram_echo, datagrams_come_back, destination, key, method,
    password, round_trip, round_trip_without_end, run_clients, run_datagram_clients, run_servers, server,
    status, wait_for, wait_refused,
};

/// A relay that passes the clients of one user on.
fn relay(method: ShadowsocksMethod, own: &str, user: &str, to: SocketAddr) -> ShadowsocksServer {
    let hops = vec![("next".into(), Secret::new(user), destination(to))];
    ShadowsocksServer {
        key: ShadowsocksServerKey::with_hops(key(method, own), hops).unwrap(),
        transports: Transports::Both,
        ..server(method, own)
    }
}

fn both(mut server: ShadowsocksServer) -> ShadowsocksServer {
    server.transports = Transports::Both;
    server
}

fn with_user(method: ShadowsocksMethod, own: &str, user: &str) -> ShadowsocksServer {
    let key = key(method, own);
    let users = vec![("alice".into(), Secret::new(user))];
    ShadowsocksServer { key: ShadowsocksServerKey::with_users(key, users).unwrap(), ..server(method, own) }
}

#[test]
fn two_relays_in_a_row() {
    let (echo, datagrams) = (Service::echo(), datagram_echo(LOOPBACK));
    for m in ["2022-blake3-aes-128-gcm", "2022-blake3-aes-256-gcm"].map(method) {
        let [first, second, own, user] = [1, 2, 3, 4].map(|seed| password(m, seed));
        let last = run_servers([both(with_user(m, &own, &user))]);
        let middle = run_servers([relay(m, &second, &own, addrs(&last)[0])]);
        let front = run_servers([relay(m, &first, &second, addrs(&middle)[0])]);
        let text = format!("{first}:{second}:{own}:{user}");
        let clients = run_clients([client(addrs(&front)[0], m, &text)], echo.addr);
        for len in [1, 5_000, 300_000] {
            round_trip(addrs(&clients)[0], len);
        }
        let users = status(&front).users;
        assert_eq!((users.len(), &*users[0].name), (1, "next"));
        let packets = run_datagram_clients(client(addrs(&front)[0], m, &text), datagrams);
        datagrams_come_back(addrs(&packets)[0]);
        for running in [packets, clients, front, middle, last] {
            running.end();
        }
    }
}

/// A relay's users are the servers behind it. It cannot tell payload from what seals it, so what it passes on is counted.
#[test]
fn what_is_passed_on_is_counted_for_the_server_that_it_goes_to() {
    let (echo, datagrams) = (Service::echo(), datagram_echo(LOOPBACK));
    let m = method("2022-blake3-aes-128-gcm");
    let [front, one, two] = [1, 2, 3].map(|seed| password(m, seed));
    let last = run_servers([both(server(m, &one)), both(server(m, &two))]);
    let hop = |name: &str, user: &String, at| (name.into(), Secret::new(&**user), destination(at));
    let hops = vec![hop("one", &one, addrs(&last)[0]), hop("two", &two, addrs(&last)[1])];
    let limits = UserLimits { quota: Some(20_000), ..UserLimits::default() };
    let hops = ShadowsocksServerKey::with_hops(key(m, &front), hops).unwrap();
    let relay = ShadowsocksServer {
        key: hops.with_limits(vec![UserLimits::default(), limits]),
        ..both(server(m, &front))
    };
    let ours = run_servers([relay]);
    let users = || status(&ours).users;
    let text = |user| format!("{front}:{user}");
    let clients = run_clients([client(addrs(&ours)[0], m, &text(&one))], echo.addr);
    round_trip(addrs(&clients)[0], 5_000);
    wait_for("the answer is counted", || users()[0].down_bytes >= 5_000);
    let streams = users();
    assert!((5_000..7_000).contains(&streams[0].up_bytes), "{streams:?}");
    assert_eq!((streams[0].requests, streams[1].up_bytes, streams[1].down_bytes), (1, 0, 0));

    let packets = run_datagram_clients(client(addrs(&ours)[0], m, &text(&two)), datagrams);
    datagrams_come_back(addrs(&packets)[0]);
    let counted = users();
    assert!(counted[1].up_bytes >= 1_101 && counted[1].down_bytes >= 1_101, "{counted:?}");
    assert_eq!((counted[0].up_bytes, counted[0].down_bytes), (streams[0].up_bytes, streams[0].down_bytes));
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    wait_for("the quota is used up, and what is beyond it dropped", || {
        socket.send_to(&[7; 1000], addrs(&packets)[0]).unwrap();
        let datagrams = status(&ours).datagrams.unwrap();
        let dropped = datagrams.dropped.get("user-limit").is_some_and(|dropped| *dropped > 0);
        assert!(users()[1].used_bytes <= 20_000);
        dropped
    });
    for running in [packets, clients, ours, last] {
        running.end();
    }
}

#[test]
fn a_client_that_names_no_server_is_refused_in_silence() {
    let echo = Service::echo();
    let m = method("2022-blake3-aes-128-gcm");
    let [own, user, other] = [1, 2, 3].map(|seed| password(m, seed));
    let last = run_servers([server(m, &user)]);
    let front = run_servers([relay(m, &own, &user, addrs(&last)[0])]);
    let wrong = format!("{own}:{other}");
    let clients = run_clients([client(addrs(&front)[0], m, &wrong)], echo.addr);
    let mut stream = connect(addrs(&clients)[0]);
    stream.write_all(b"question").unwrap();
    wait_refused(&front, "authentication", 1);
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(stream.read(&mut [0]).is_err(), "silence, and no end");
    assert_eq!(status(&last).accepted, 0);
    drop(stream);
    for running in [clients, front, last] {
        running.end();
    }
}

/// sing-box with one inbound and one outbound; `None` where there is none.
fn sing(at: SocketAddr, inbound: &str, outbound: &str) -> Option<Peer> {
    let program = sing_box()?;
    let listen = format!("\"listen\":\"{}\",\"listen_port\":{}", at.ip(), at.port());
    let text = format!("{{\"inbounds\":[{{{listen},{inbound}}}],\"outbounds\":[{{{outbound}}}]}}");
    Some(Peer::with_config(&program, &["run", "-c"], &text, at))
}

fn sing_server(at: SocketAddr, m: ShadowsocksMethod, own: &str, rest: &str) -> Option<Peer> {
    let inbound = format!("\"type\":\"shadowsocks\",\"method\":\"{m}\",\"password\":\"{own}\",{rest}");
    sing(at, &inbound, "\"type\":\"direct\"")
}

fn sing_client(
    at: SocketAddr,
    to: SocketAddr,
    server: SocketAddr,
    m: ShadowsocksMethod,
    text: &str,
) -> Option<Peer> {
    let inbound =
        format!("\"type\":\"direct\",\"override_address\":\"{}\",\"override_port\":{}", to.ip(), to.port());
    let (ip, port) = (server.ip(), server.port());
    let outbound = format!(
        "\"type\":\"shadowsocks\",\"server\":\"{ip}\",\"server_port\":{port},\"method\":\"{m}\",\"password\":\"{text}\""
    );
    sing(at, &inbound, &outbound)
}

#[test]
#[ignore = "needs sing-box"]
fn interop_users_and_relays_with_sing_box() {
    // It closes a connection as soon as one direction has ended.
    let (echo, datagrams) = (Service::echo(), datagram_echo(LOOPBACK));
    for m in ["2022-blake3-aes-128-gcm", "2022-blake3-aes-256-gcm"].map(method) {
        let [front, own, user] = [1, 2, 3].map(|seed| password(m, seed));
        let (chain, text) = (format!("{front}:{own}:{user}"), format!("{own}:{user}"));
        let users = format!("\"users\":[{{\"name\":\"alice\",\"password\":\"{user}\"}}]");

        println!("{m}: our client and relay, their server");
        let theirs = unused_addr();
        let Some(_server) = sing_server(theirs, m, &own, &users) else { return };
        let ours = run_servers([relay(m, &front, &own, theirs)]);
        for (at, text) in [(theirs, &text), (addrs(&ours)[0], &chain)] {
            let clients = run_clients([client(at, m, text)], echo.addr);
            round_trip_without_end(addrs(&clients)[0], 100_000);
            let packets = run_datagram_clients(client(at, m, text), datagrams);
            datagrams_come_back(addrs(&packets)[0]);
            clients.end();
            packets.end();
        }

        println!("{m}: their client, our relay and server");
        let last = run_servers([both(with_user(m, &own, &user))]);
        let ours = run_servers([relay(m, &front, &own, addrs(&last)[0])]);
        for (server, text) in [(addrs(&last)[0], &text), (addrs(&ours)[0], &chain)] {
            let (stream_at, datagram_at) = (unused_addr(), unused_addr());
            let _streams = sing_client(stream_at, echo.addr, server, m, text).unwrap();
            round_trip_without_end(stream_at, 100_000);
            let _datagrams = sing_client(datagram_at, datagrams, server, m, text).unwrap();
            datagrams_come_back(datagram_at);
        }

        println!("{m}: our client, their relay, our server");
        let (theirs, next) = (unused_addr(), addrs(&last)[0]);
        let destinations = format!(
            "\"destinations\":[{{\"name\":\"n\",\"server\":\"{}\",\"server_port\":{},\"password\":\"{own}\"}}]",
            next.ip(),
            next.port()
        );
        let _relay = sing_server(theirs, m, &front, &destinations).unwrap();
        let clients = run_clients([client(theirs, m, &chain)], echo.addr);
        round_trip_without_end(addrs(&clients)[0], 100_000);
        let packets = run_datagram_clients(client(theirs, m, &chain), datagrams);
        datagrams_come_back(addrs(&packets)[0]);
        for running in [packets, clients, ours, last] {
            running.end();
        }
    }
}
