//! `ss-manager` and `ssmanager`: orders by datagram, and real bytes through what was added.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use adit_testkit::unused_addr;

use crate::support::{Dir, PATIENCE, Running, echo, link, round_trip, socks5};

/// Someone who gives orders.
enum Client {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl Client {
    fn udp(manager: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(manager).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::Udp(socket)
    }

    fn unix(dir: &Dir, manager: &str) -> Self {
        let socket = UnixDatagram::bind(dir.path().join("client.sock")).unwrap();
        socket.connect(dir.path().join(manager)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::Unix(socket)
    }

    fn ask(&self, order: &str) -> String {
        let mut buffer = vec![0; 65_536];
        let len = match self {
            Self::Udp(socket) => socket.send(order.as_bytes()).and_then(|_| socket.recv(&mut buffer)),
            Self::Unix(socket) => socket.send(order.as_bytes()).and_then(|_| socket.recv(&mut buffer)),
        };
        String::from_utf8(buffer[..len.unwrap_or_else(|error| panic!("{order}: {error}"))].to_vec()).unwrap()
    }

    /// The bytes through a port, once there are at least `least`. The last bytes of a relay are counted at its
    /// next turn.
    fn bytes(&self, port: u16, least: u64) -> u64 {
        let until = Instant::now() + PATIENCE;
        loop {
            let bytes = self.bytes_now(port);
            if bytes >= least || Instant::now() > until {
                return bytes;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn bytes_now(&self, port: u16) -> u64 {
        let answer = self.ask("ping");
        let json = answer.trim().strip_prefix("stat: ").unwrap_or_else(|| panic!("{answer}"));
        let stat: serde_json::Value = serde_json::from_str(json).unwrap();
        stat[port.to_string()].as_u64().unwrap_or_else(|| panic!("{answer}"))
    }
}

/// A client of a server that a manager runs.
fn local(dir: &Dir, server: SocketAddr, method: &str, password: &str) -> Running {
    let (ip, port) = (server.ip().to_string(), server.port().to_string());
    let line = ["ss-local", "-s", &ip, "-p", &port, "-l", "0", "-m", method, "-k", password];
    Running::start(dir.adit(&line))
}

fn add(port: u16, password: &str, method: &str) -> String {
    format!("add: {{\"server_port\":{port},\"password\":\"{password}\",\"method\":\"{method}\"}}")
}

/// Adds, uses and removes servers, while one of them stays.
fn exercise(dir: &Dir, manager: &Client, host: SocketAddr, ok: &str) {
    let target = echo();
    let at = |port| SocketAddr::new(host.ip(), port);
    assert_eq!(manager.ask("ping").trim(), "stat: {}");
    for (port, method) in [(20_001, "aes-128-gcm"), (20_002, "chacha20-ietf-poly1305")] {
        assert_eq!(manager.ask(&add(port, "pw", method)), ok);
    }
    let stays = local(dir, at(20_001), "aes-128-gcm", "pw");
    let mut open = socks5(stays.address(), "127.0.0.1", target.port());
    round_trip(&mut open, 100_000);
    let goes = local(dir, at(20_002), "chacha20-ietf-poly1305", "pw");
    let mut cut = socks5(goes.address(), "127.0.0.1", target.port());
    round_trip(&mut cut, 50_000);
    assert!(manager.bytes(20_001, 200_000) >= 200_000);
    let moved = manager.bytes(20_002, 100_000);
    assert!((100_000..200_000).contains(&moved), "{moved}");
    assert_eq!(manager.ask("remove: {\"server_port\":20002}"), ok);
    assert!(matches!(cut.read(&mut [0]), Ok(0) | Err(_)), "its connections end");
    assert!(TcpStream::connect(at(20_002)).is_err(), "its port is closed");
    round_trip(&mut open, 100_000);
    assert_eq!(manager.ask(&add(20_002, "other", "aes-256-gcm")), ok);
    let again = local(dir, at(20_002), "aes-256-gcm", "other");
    round_trip(&mut socks5(again.address(), "127.0.0.1", target.port()), 10_000);
    round_trip(&mut open, 1000);
    assert!(manager.ask("list").contains("20002"));
}

fn stop(running: Running) -> String {
    running.signal("TERM");
    let (status, log) = running.end();
    assert_eq!(status.code(), Some(0), "{log}");
    log
}

#[test]
fn the_manager_of_libev_on_a_unix_socket() {
    let dir = Dir::new();
    let host = unused_addr();
    let file = format!(
        "{{\"server\":\"{}\",\"port_password\":{{\"20003\":\"first\"}},\"method\":\"aes-128-gcm\",\"timeout\":60}}",
        host.ip()
    );
    dir.file("manager.json", &file);
    let line =
        ["-c", "manager.json", "--manager-address", "m.sock", "-u", "--executable", "/usr/bin/ss-server"];
    let running = Running::start(dir.command(link(&dir, "ss-manager"), &line));
    assert_eq!(running.address().port(), 20_003);
    let mode = std::fs::metadata(dir.path().join("m.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let manager = Client::unix(&dir, "m.sock");
    let first = local(&dir, SocketAddr::new(host.ip(), 20_003), "aes-128-gcm", "first");
    round_trip(&mut socks5(first.address(), "127.0.0.1", echo().port()), 1000);
    assert!(manager.bytes(20_003, 2000) >= 2000);
    assert_eq!(manager.ask("remove: {\"server_port\":\"20003\"}"), "ok");
    exercise(&dir, &manager, host, "ok");
    assert_eq!(manager.ask("add: nonsense"), "err");
    let log = stop(running);
    assert!(!log.contains("first") && !log.contains("other"), "{log}");
    assert!(!dir.path().join("m.sock").exists());
}

#[test]
fn the_manager_of_rust_on_a_port() {
    let dir = Dir::new();
    let host = unused_addr();
    let at = host.to_string();
    let ip = host.ip().to_string();
    let line = ["manager", "--manager-addr", &at, "-s", &ip, "-m", "aes-128-gcm", "-U"];
    let running = Running::start(dir.command(link(&dir, "ssservice"), &line));
    running.line("accepting manager commands");
    exercise(&dir, &Client::udp(host), host, "ok\n");
    stop(running);
}

#[test]
#[ignore = "full suite: a report comes every five seconds"]
fn servers_report_to_a_manager() {
    let dir = Dir::new();
    let manager = UnixDatagram::bind(dir.path().join("m.sock")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let server = Running::start(dir.adit(&[
        "ss-server",
        "-s",
        "127.0.0.1",
        "-p",
        "0",
        "-m",
        "aes-128-gcm",
        "-k",
        "pw",
        "--manager-address",
        "m.sock",
    ]));
    let port = server.address().port();
    let client = local(&dir, server.address(), "aes-128-gcm", "pw");
    round_trip(&mut socks5(client.address(), "127.0.0.1", echo().port()), 1000);
    let mut buffer = [0; 256];
    let deadline = Instant::now() + PATIENCE;
    loop {
        let len = manager.recv(&mut buffer).unwrap();
        let text = std::str::from_utf8(&buffer[..len]).unwrap();
        let number = text.strip_prefix(&format!("stat: {{\"{port}\":")).unwrap_or_else(|| panic!("{text:?}"));
        let number: u64 = number.strip_suffix("}\0").unwrap_or_else(|| panic!("{text:?}")).parse().unwrap();
        if number >= 2000 {
            break;
        }
        assert!(Instant::now() < deadline, "{number}");
    }
    stop(server);
}

/// Orders that the program of shadowsocks-libev is given and adit's are answered alike.
#[test]
#[ignore = "full suite: needs ss-manager and ss-server of shadowsocks-libev, and takes seconds"]
fn interop_the_same_answers_as_ss_manager() {
    let orders = |port: u16| {
        [
            "ping".to_owned(),
            "list".to_owned(),
            add(port, "pw1", "aes-128-gcm"),
            format!(
                "add: {{\"server_port\":\"{}\",\"password\":\"pw2\",\"mode\":\"tcp_and_udp\"}}",
                port + 1
            ),
            format!("add:{{\"server_port\":{},\"password\":\"pw\"}}", port + 2),
            "list\n".to_owned(),
            "ping\n".to_owned(),
            "remove: {\"server_port\":1}".to_owned(),
            format!("remove: {{\"server_port\":{port}}}"),
            "add: {\"password\":\"x\"}".to_owned(),
            "list".to_owned(),
            format!("remove: {{\"server_port\":{}}}", port + 1),
            "list".to_owned(),
        ]
    };
    let mut answers = Vec::new();
    for is_adit in [false, true] {
        let dir = Dir::new();
        let host = unused_addr();
        let (at, ip) = (host.to_string(), host.ip().to_string());
        let work = dir.path().to_str().unwrap().to_owned();
        let line = ["--manager-address", &at, "-s", &ip, "-m", "chacha20-ietf-poly1305", "-D", &work, "-u"];
        let command = if is_adit {
            dir.command(link(&dir, "ss-manager"), &line)
        } else {
            let mut command = dir.command("ss-manager", &line);
            command.args(["--executable", "ss-server"]);
            command
        };
        let running = Running::start(command);
        let client = Client::udp(host);
        let Client::Udp(socket) = &client else { unreachable!() };
        let deadline = Instant::now() + PATIENCE;
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        while socket.send(b"ping").and_then(|_| socket.recv(&mut [0; 64])).is_err() {
            assert!(Instant::now() < deadline);
        }
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // Orders that ask about counters are answered before a server has reported any.
        let got: Vec<String> = orders(20_100).iter().map(|order| client.ask(order)).collect();
        for port in [20_100, 20_101] {
            client.ask(&format!("remove: {{\"server_port\":{port}}}"));
        }
        answers.push(got);
        drop(running);
    }
    for (order, (theirs, ours)) in orders(20_100).iter().zip(answers[0].iter().zip(&answers[1])) {
        // Their list is in the order of a hash table.
        let sorted = |text: &str| {
            let mut lines: Vec<&str> = text.lines().map(|line| line.trim_end_matches(',')).collect();
            lines.sort_unstable();
            lines.join("\n")
        };
        assert_eq!(sorted(theirs), sorted(ours), "{order}");
    }
}
