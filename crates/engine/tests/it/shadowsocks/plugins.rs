//! Plugins of SIP003 in both directions: our two ends with Debian's programs between them, and each of these programs
//! against the built-in obfs.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

use adit_engine::Running;
use adit_model::{ClientCover, ObfsClient, ObfsServer, Plugin, ServerCover, Transports};
use adit_testkit::unused_addr;

use super::support::{
    LOOPBACK, Service, addrs, client, connect, datagram_echo, datagrams_come_back, has, method, password,
    round_trip_without_end, run_clients, run_datagram_clients, run_server_at, run_servers, server,
    try_run_clients, wait_for,
};

fn plugin(program: &str, options: &str) -> Plugin {
    Plugin { program: program.into(), options: options.into(), args: Vec::new(), transports: Transports::Tcp }
}

fn pair(
    server_cover: ServerCover,
    client_cover: ClientCover,
    name: &str,
    echo: &Service,
) -> (Running, Running) {
    let (m, p) = (method(name), password(method(name), 1));
    let mut server = server(m, &p);
    server.cover = server_cover;
    let servers = run_servers([server]);
    let mut client = client(addrs(&servers)[0], m, &p);
    client.cover = client_cover;
    let clients = run_clients([client], echo.addr);
    (servers, clients)
}

fn exercise(server_cover: ServerCover, client_cover: ClientCover) {
    for name in ["2022-blake3-aes-128-gcm", "aes-256-gcm", "aes-128-ctr"] {
        println!("{name}: {server_cover:?} {client_cover:?}");
        let echo = Service::echo();
        let (servers, clients) = pair(server_cover.clone(), client_cover.clone(), name, &echo);
        let port = addrs(&clients)[0];
        for len in [1, 3_000, 300_000] {
            round_trip_without_end(port, len);
        }
        clients.end();
        servers.end();
    }
}

#[test]
#[ignore = "needs obfs-local and obfs-server"]
fn simple_obfs() {
    if !has("obfs-local") || !has("obfs-server") {
        return;
    }
    for mode in ["http", "tls"] {
        let server_plugin = || ServerCover::Plugin(plugin("obfs-server", &format!("obfs={mode}")));
        let client_plugin =
            || ClientCover::Plugin(plugin("obfs-local", &format!("obfs={mode};obfs-host=www.example.com")));
        let (server_own, client_own) = match mode {
            "http" => (ObfsServer::Http, ObfsClient::Http("www.example.com".into())),
            _ => (ObfsServer::Tls, ObfsClient::Tls("www.example.com".into())),
        };
        exercise(server_plugin(), client_plugin());
        exercise(ServerCover::Obfs(server_own), client_plugin());
        exercise(server_plugin(), ClientCover::Obfs(client_own));
    }
}

#[test]
#[ignore = "needs v2ray-plugin"]
fn v2ray() {
    // Debian's name for it.
    let program = "ss-v2ray-plugin";
    if !has(program) {
        return;
    }
    // Several streams in one connection, and one each.
    for mux in ["", ";mux=0"] {
        exercise(
            ServerCover::Plugin(plugin(program, &format!("server;path=/way{mux}"))),
            ClientCover::Plugin(plugin(program, &format!("path=/way;host=www.example.com{mux}"))),
        );
    }
}

/// This very program as a plugin: see [`forwards_for_another_test`].
fn forwarder(transports: Transports, options: &str) -> Plugin {
    let program = std::env::current_exe().unwrap().to_str().unwrap().into();
    let args = ["shadowsocks::plugins::forwards_for_another_test", "--exact", "--ignored", "--nocapture"];
    Plugin { program, options: options.into(), args: args.map(Into::into).to_vec(), transports }
}

#[test]
fn datagrams_go_through_a_plugin() {
    for (transports, words) in
        [(Transports::Udp, "udp"), (Transports::Both, "tcp udp"), (Transports::Tcp, "tcp")]
    {
        let (m, p) = (method("2022-blake3-aes-128-gcm"), password(method("2022-blake3-aes-128-gcm"), 1));
        let mut server = server(m, &p);
        server.transports = Transports::Both;
        server.cover = ServerCover::Plugin(forwarder(transports, &format!("server {words}")));
        let servers = run_server_at(unused_addr(), server);
        let mut client = client(addrs(&servers)[0], m, &p);
        client.transports = Transports::Both;
        client.cover = ClientCover::Plugin(forwarder(transports, &format!("client {words}")));
        let clients = run_datagram_clients(client.clone(), datagram_echo(LOOPBACK));
        datagrams_come_back(addrs(&clients)[0]);
        clients.end();
        let echo = Service::echo();
        let clients = run_clients([client], echo.addr);
        let port = addrs(&clients)[0];
        // On a busy machine the plugins may come late.
        wait_for("a stream passes", || {
            let (mut stream, mut back) = (connect(port), [0; 5]);
            stream
                .write_all(b"hello")
                .and_then(|()| stream.read_exact(&mut back))
                .is_ok_and(|()| back == *b"hello")
        });
        round_trip_without_end(port, 30_000);
        clients.end();
        servers.end();
    }
}

/// A plugin that turns every bit round, so that nothing passes if one end goes past it.
#[test]
#[ignore = "is a plugin that other tests start; does nothing by itself"]
fn forwards_for_another_test() {
    let Some([remote, local]) = ["REMOTE", "LOCAL"]
        .map(|end| {
            let host = std::env::var(format!("SS_{end}_HOST")).ok()?;
            format!("{host}:{}", std::env::var(format!("SS_{end}_PORT")).ok()?).parse::<SocketAddr>().ok()
        })
        .into_iter()
        .collect::<Option<Vec<_>>>()
        .and_then(|ends| <[_; 2]>::try_from(ends).ok())
    else {
        return;
    };
    let words = std::env::var("SS_PLUGIN_OPTIONS").unwrap();
    let (from, to) = if words.contains("server") { (remote, local) } else { (local, remote) };
    if words.contains("tcp") {
        let listener = TcpListener::bind(from).unwrap();
        thread::spawn(move || listener.incoming().flatten().for_each(|near| join_streams(near, to)));
    }
    if words.contains("udp") {
        forward_datagrams(&UdpSocket::bind(from).unwrap(), to);
    }
    loop {
        thread::park();
    }
}

fn turn(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
}

fn join_streams(near: TcpStream, to: SocketAddr) {
    let far = TcpStream::connect(to).unwrap();
    let ways = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
    for (mut from, mut to) in ways {
        thread::spawn(move || {
            let mut bytes = [0; 16_384];
            while let Ok(len @ 1..) = from.read(&mut bytes) {
                turn(&mut bytes[..len]);
                to.write_all(&bytes[..len]).ok();
            }
            to.shutdown(Shutdown::Both).ok();
        });
    }
}

/// A socket and a thread for each source.
fn forward_datagrams(near: &UdpSocket, to: SocketAddr) {
    let mut flows: HashMap<SocketAddr, UdpSocket> = HashMap::new();
    let mut bytes = [0; 2048];
    loop {
        let Ok((len, source)) = near.recv_from(&mut bytes) else { continue };
        turn(&mut bytes[..len]);
        let flow = flows.entry(source).or_insert_with(|| {
            let far = UdpSocket::bind(LOOPBACK).unwrap();
            far.connect(to).unwrap();
            let (back, near) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || {
                let mut bytes = [0; 2048];
                loop {
                    let Ok(len) = back.recv(&mut bytes) else { continue };
                    turn(&mut bytes[..len]);
                    near.send_to(&bytes[..len], source).ok();
                }
            });
            far
        });
        flow.send(&bytes[..len]).ok();
    }
}

/// The running instances of `program` for the server at `addr`.
fn instances(program: &str, addr: SocketAddr) -> Vec<String> {
    let wanted = format!("SS_REMOTE_PORT={}", addr.port());
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let ours = processes.filter(|process| {
        let read = |file| std::fs::read(process.join(file)).unwrap_or_default();
        read("comm") == format!("{program}\n").as_bytes()
            && read("environ").split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    });
    ours.filter_map(|process| Some(process.file_name()?.to_str()?.to_owned())).collect()
}

#[test]
#[ignore = "needs obfs-local and obfs-server"]
fn a_plugin_that_is_killed_comes_back_and_all_go_at_the_end() {
    if !has("obfs-local") || !has("obfs-server") {
        return;
    }
    let echo = Service::echo();
    let (servers, clients) = pair(
        ServerCover::Plugin(plugin("obfs-server", "obfs=http")),
        ClientCover::Plugin(plugin("obfs-local", "obfs=http;obfs-host=a.example")),
        "aes-128-gcm",
        &echo,
    );
    let (port, public) = (addrs(&clients)[0], addrs(&servers)[0]);
    round_trip_without_end(port, 1000);
    for program in ["obfs-local", "obfs-server"] {
        let before = instances(program, public);
        assert_eq!(before.len(), 1, "{program}");
        Command::new("kill").args(["-9", &before[0]]).status().unwrap();
        wait_for("another one runs", || {
            instances(program, public).first().is_some_and(|pid| *pid != before[0])
        });
        thread::sleep(Duration::from_millis(300));
        round_trip_without_end(port, 1000);
    }
    clients.drain();
    assert!(instances("obfs-local", public).is_empty());
    servers.drain();
    assert!(instances("obfs-server", public).is_empty());
}

#[test]
fn a_plugin_that_cannot_start_is_an_error_at_the_start() {
    let mut broken = client("127.0.0.1:9".parse().unwrap(), method("aes-128-gcm"), "p");
    broken.cover = ClientCover::Plugin(plugin("no-such-plugin", ""));
    let error = try_run_clients([broken], "127.0.0.1:9".parse().unwrap()).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.starts_with("plugin no-such-plugin: cannot be started"), "{cause}");
}
