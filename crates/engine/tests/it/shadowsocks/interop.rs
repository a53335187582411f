//! The programs that are replaced, at either end. They lead to a fixed target, as our own clients do.

use std::net::SocketAddr;
use std::process::Command;

use adit_model::{Secret, ShadowsocksServer, ShadowsocksServerKey, Transports};
use adit_proto::shadowsocks::ShadowsocksMethod;
use adit_testkit::{skipped, unused_addr};

use super::support::{
    Peer, Service, addrs, client, datagram_echo, datagrams_come_back, has, key, method, password, round_trip,
    round_trip_without_end, run_clients, run_datagram_clients, run_servers, server,
};

/// Methods of shadowsocks-libev 3.3.5 as Debian builds it.
const LIBEV: &[&str] = &[
    "rc4-md5",
    "aes-128-gcm",
    "aes-192-gcm",
    "aes-256-gcm",
    "aes-128-cfb",
    "aes-192-cfb",
    "aes-256-cfb",
    "aes-128-ctr",
    "aes-192-ctr",
    "aes-256-ctr",
    "camellia-128-cfb",
    "camellia-192-cfb",
    "camellia-256-cfb",
    "bf-cfb",
    "chacha20-ietf-poly1305",
    "xchacha20-ietf-poly1305",
    "salsa20",
    "chacha20",
    "chacha20-ietf",
];
const SIZES: [usize; 3] = [1, 5_000, 200_000];

/// `ends`: the peer passes the end of one direction on and goes on with the other.
fn exercise(port: SocketAddr, method: ShadowsocksMethod, ends: bool) {
    let round_trip = if ends { round_trip } else { round_trip_without_end };
    for len in SIZES {
        // One bit at a time is too slow for much, without optimization.
        round_trip(port, if method.name().ends_with("cfb1") { len.min(20_000) } else { len });
    }
}

/// Our client, their server.
fn to_peer(
    method: ShadowsocksMethod,
    echo: &Service,
    ends: bool,
    peer: impl Fn(SocketAddr, &str) -> Command,
) {
    println!("{method}: our client");
    let (addr, password) = (unused_addr(), password(method, 1));
    let _peer = Peer::start(&mut peer(addr, &password), addr);
    let clients = run_clients([client(addr, method, &password)], echo.addr);
    exercise(addrs(&clients)[0], method, ends);
    clients.end();
    let packets = run_datagram_clients(client(addr, method, &password), echo.addr);
    datagrams_come_back(addrs(&packets)[0]);
    packets.end();
}

/// Their client, our server. The peer is told where to listen, and where our server is.
fn from_peer(method: ShadowsocksMethod, ends: bool, peer: impl Fn(SocketAddr, SocketAddr, &str) -> Command) {
    println!("{method}: our server");
    let password = password(method, 1);
    let both = ShadowsocksServer { transports: Transports::Both, ..server(method, &password) };
    let servers = run_servers([both]);
    let local = unused_addr();
    let _peer = Peer::start(&mut peer(local, addrs(&servers)[0], &password), local);
    exercise(local, method, ends);
    datagrams_come_back(local);
    servers.end();
}

fn libev(program: &str, server: SocketAddr, method: ShadowsocksMethod, password: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-s", &server.ip().to_string(), "-p", &server.port().to_string()]);
    command.args(["-k", password, "-m", method.name(), "-t", "60", "-u"]);
    command
}

#[test]
#[ignore = "needs shadowsocks-libev"]
fn libev_both_ways() {
    if !has("ss-server") || !has("ss-tunnel") {
        return;
    }
    let echo = Service::echo();
    datagram_echo(echo.addr);
    for m in LIBEV.iter().map(|name| method(name)) {
        // It closes a connection as soon as one direction has ended.
        to_peer(m, &echo, false, |addr, password| libev("ss-server", addr, m, password));
        from_peer(m, false, |local, server, password| {
            let mut command = libev("ss-tunnel", server, m, password);
            command.args(["-b", &local.ip().to_string(), "-l", &local.port().to_string()]);
            command.args(["-L", &echo.addr.to_string()]);
            command
        });
    }
}

/// The methods that shadowsocks-rust has been built with, as its help lists them.
fn rust_methods() -> Vec<ShadowsocksMethod> {
    let help = Command::new("ssserver").arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let names: Vec<_> = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
    ShadowsocksMethod::all()
        .filter(|method| {
            let found = names.contains(&method.name());
            if !found {
                skipped(format_args!("the installed ssserver has no {method}"));
            }
            found
        })
        .collect()
}

fn rust_server(addr: SocketAddr, method: ShadowsocksMethod, password: &str) -> Command {
    let mut command = Command::new("ssserver");
    command.args(["-s", &addr.to_string(), "-m", method.name(), "-U"]);
    if method != ShadowsocksMethod::None {
        command.args(["-k", password]);
    }
    command
}

fn rust_tunnel(
    local: SocketAddr,
    to: SocketAddr,
    server: SocketAddr,
    method: ShadowsocksMethod,
    password: &str,
) -> Command {
    let mut command = Command::new("sslocal");
    command.args(["-b", &local.to_string(), "--protocol", "tunnel", "-f", &to.to_string()]);
    command.args(["-s", &server.to_string(), "-m", method.name(), "-U"]);
    if method != ShadowsocksMethod::None {
        command.args(["-k", password]);
    }
    command
}

#[test]
#[ignore = "needs shadowsocks-rust"]
fn rust_both_ways() {
    if !has("ssserver") || !has("sslocal") {
        return;
    }
    let echo = Service::echo();
    datagram_echo(echo.addr);
    for m in rust_methods() {
        to_peer(m, &echo, true, |addr, password| rust_server(addr, m, password));
        from_peer(m, true, |local, server, password| rust_tunnel(local, echo.addr, server, m, password));
    }
}

#[test]
#[ignore = "needs shadowsocks-rust"]
fn rust_with_users() {
    if !has("ssserver") || !has("sslocal") {
        return;
    }
    let echo = Service::echo();
    datagram_echo(echo.addr);
    for m in ["2022-blake3-aes-128-gcm", "2022-blake3-aes-256-gcm"].map(method) {
        let [own, alice, bob] = [1, 2, 3].map(|seed| password(m, seed));
        let users = [("alice", &alice), ("bob", &bob)];
        let users = users.map(|(name, key)| (name.into(), Secret::new(&**key))).to_vec();
        let mut many = server(m, &own);
        many.key = ShadowsocksServerKey::with_users(key(m, &own), users).unwrap();
        let servers = run_servers([many]);
        let local = unused_addr();
        let identity = format!("{own}:{bob}");
        let mut command = rust_tunnel(local, echo.addr, addrs(&servers)[0], m, &identity);
        let _peer = Peer::start(&mut command, local);
        exercise(local, m, true);

        let addr = unused_addr();
        let file = std::env::temp_dir().join(format!("adit-ssserver-{}.json", std::process::id()));
        let text = format!(
            r#"{{"servers":[{{"server":"{}","server_port":{},"method":"{m}","password":"{own}","users":[{{"name":"alice","password":"{alice}"}}]}}]}}"#,
            addr.ip(),
            addr.port()
        );
        std::fs::write(&file, text).unwrap();
        let _server = Peer::start(Command::new("ssserver").arg("-c").arg(&file), addr);
        let clients = run_clients([client(addr, m, &format!("{own}:{alice}"))], echo.addr);
        exercise(addrs(&clients)[0], m, true);
        drop(std::fs::remove_file(&file));
    }
}
