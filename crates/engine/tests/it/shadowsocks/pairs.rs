//! Both ends are ours.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use adit_model::{
    ClientCover, ObfsClient, ObfsServer, Secret, ServerCover, ShadowsocksServerKey, Transports,
};
use adit_proto::shadowsocks::ShadowsocksMethod;
use adit_testkit::unused_addr;

use super::support::{
    Service, addrs, client, connect, key, method, password, round_trip, run_clients, run_server_at,
    run_servers, server, status, wait_for,
};

#[test]
fn every_method() {
    let echo = Service::echo();
    let methods: Vec<ShadowsocksMethod> = ShadowsocksMethod::all().collect();
    let servers = run_servers(methods.iter().map(|m| server(*m, &password(*m, 1))));
    let clients = addrs(&servers).into_iter().zip(&methods);
    let clients = run_clients(clients.map(|(addr, m)| client(addr, *m, &password(*m, 1))), echo.addr);
    for (port, method) in addrs(&clients).into_iter().zip(&methods) {
        println!("{method}");
        // One bit at a time is too slow for much, without optimization.
        let much = if method.name().ends_with("cfb1") { 20_000 } else { 200_000 };
        for len in [1, 5_000, much] {
            round_trip(port, len);
        }
    }
    assert_eq!(echo.accepted(), 3 * methods.len());
    clients.end();
    servers.end();
}

#[test]
fn an_end_without_a_byte_carries_the_request() {
    let count = Service::count();
    for name in ["2022-blake3-aes-256-gcm", "aes-128-gcm", "aes-256-ctr", "none"] {
        let (m, p) = (method(name), password(method(name), 1));
        let servers = run_servers([server(m, &p)]);
        let clients = run_clients([client(addrs(&servers)[0], m, &p)], count.addr);
        for len in [0, 70_000] {
            let mut stream = connect(addrs(&clients)[0]);
            stream.write_all(&vec![1; len]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, format!("{len} bytes"), "{name}");
        }
    }
}

#[test]
fn obfs_modes() {
    let echo = Service::echo();
    for name in ["2022-blake3-chacha20-poly1305", "chacha20-ietf-poly1305", "aes-128-cfb"] {
        let (m, p) = (method(name), password(method(name), 1));
        let servers = [ObfsServer::Http, ObfsServer::Tls].map(|obfs| {
            let mut server = server(m, &p);
            server.cover = ServerCover::Obfs(obfs);
            server
        });
        let servers = run_servers(servers);
        let modes = [ObfsClient::Http("a.example".into()), ObfsClient::Tls("a.example".into())];
        let clients = addrs(&servers).into_iter().zip(modes).map(|(addr, obfs)| {
            let mut client = client(addr, m, &p);
            client.cover = ClientCover::Obfs(obfs);
            client
        });
        let clients = run_clients(clients, echo.addr);
        for port in addrs(&clients) {
            for len in [1, 3_000, 300_000] {
                round_trip(port, len);
            }
        }
    }
}

#[test]
fn users_are_told_apart_and_counted() {
    let echo = Service::echo();
    for m in ["2022-blake3-aes-128-gcm", "2022-blake3-aes-256-gcm"].map(method) {
        let keys = [1, 2, 3, 4].map(|seed| password(m, seed));
        let users = ["alice", "bob"].into_iter().zip(&keys[1..]);
        let users = users.map(|(name, key)| (name.into(), Secret::new(&**key))).collect();
        let mut many = server(m, &keys[0]);
        many.key = ShadowsocksServerKey::with_users(key(m, &keys[0]), users).unwrap();
        let servers = run_servers([many]);
        let addr = addrs(&servers)[0];
        let passwords = keys[1..].iter().map(|user| format!("{}:{user}", keys[0]));
        let clients = run_clients(passwords.map(|password| client(addr, m, &password)), echo.addr);
        let ports = addrs(&clients);
        round_trip(ports[0], 10);
        round_trip(ports[1], 200);
        round_trip(ports[1], 3000);
        wait_for("all is counted", || {
            status(&servers).users.iter().map(|user| user.requests).sum::<u64>() == 3
        });
        let counted: Vec<_> = status(&servers)
            .users
            .into_iter()
            .map(|u| (u.name, u.requests, u.up_bytes, u.down_bytes))
            .collect();
        assert_eq!(counted, [("alice".into(), 1, 10, 10), ("bob".into(), 2, 3200, 3200)]);
        // The third has a key that the server does not know: nothing comes back, and nothing is said.
        let mut prober = connect(ports[2]);
        prober.write_all(b"hello").unwrap();
        super::support::wait_refused(&servers, "authentication", 1);
    }
}

#[test]
fn without_streams_nothing_listens_and_nothing_connects() {
    let m = method("aes-128-gcm");
    let mut silent = server(m, "p");
    silent.transports = Transports::Udp;
    // No other test listens at such an address.
    let unused = unused_addr();
    let _silent = run_server_at(unused, silent);
    let servers = run_servers([server(m, "p")]);
    let server = addrs(&servers)[0];
    assert_eq!(TcpStream::connect(unused).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let mut quiet = client(server, m, "p");
    quiet.transports = Transports::Udp;
    let clients = run_clients([quiet], "127.0.0.1:9".parse().unwrap());
    let read = connect(addrs(&clients)[0]).read(&mut [0]);
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}
