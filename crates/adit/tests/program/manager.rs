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

/// Whether the server at `at` leads a client to the target: bytes come back.
fn leads(local: &Running, host: &str, port: u16) -> bool {
    let mut stream = socks5(local.address(), host, port);
    std::io::Write::write_all(&mut stream, b"hello").ok();
    matches!(stream.read(&mut [0; 5]), Ok(1..))
}

/// A list holds for every port that a manager opens, and for those of its file; a list that has changed is taken.
fn exercise_list(
    dir: &Dir,
    running: &Running,
    manager: &Client,
    (ip, ok): (std::net::IpAddr, &str),
    list: &str,
) {
    let target = echo();
    let other = TcpListenerOn::new("127.0.0.2");
    let server = |port: u16| SocketAddr::new(ip, port);
    for port in [20_011, 20_012] {
        assert_eq!(manager.ask(&add(port, "pw", "aes-128-gcm")), ok);
        let client = local(dir, server(port), "aes-128-gcm", "pw");
        for (host, to) in
            [("127.0.0.2", other.port), ("localhost.blocked.example", target.port()), ("10.1.1.1", 80)]
        {
            assert!(!leads(&client, host, to), "{port}: {host}");
            running.line("refused by a rule");
        }
        assert!(leads(&client, "127.0.0.1", target.port()), "{port}: nothing is said of it");
    }
    // In the place of the first one.
    assert_eq!(manager.ask(&add(20_011, "pw", "aes-256-gcm")), ok);
    let client = local(dir, server(20_011), "aes-256-gcm", "pw");
    assert!(!leads(&client, "127.0.0.2", other.port));
    // Reloads, first of the same list.
    for (blocked, allowed) in [("127.0.0.2", "127.0.0.1"), ("127.0.0.1", "127.0.0.2")] {
        dir.file(list, &format!("[outbound_block_list]\n{blocked}\n"));
        let before = running.log().matches("reloaded: ").count();
        running.signal("HUP");
        adit_testkit::wait_for("the list is read again", || {
            running.log().matches("reloaded: ").count() > before
        });
        let port = |host: &str| if host == "127.0.0.1" { target.port() } else { other.port };
        assert!(!leads(&client, blocked, port(blocked)), "{blocked}");
        assert!(leads(&client, allowed, port(allowed)), "{allowed}");
    }
    assert_eq!(other.accepted.load(std::sync::atomic::Ordering::Relaxed), 1, "those who were led there");
}

/// An echo on another address of this machine, which counts.
struct TcpListenerOn {
    port: u16,
    accepted: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl TcpListenerOn {
    fn new(host: &str) -> Self {
        let listener = std::net::TcpListener::bind((host, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepted = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
        let count = accepted.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                std::thread::spawn(move || {
                    let mut bytes = [0; 64];
                    while let Ok(len @ 1..) = stream.read(&mut bytes) {
                        if std::io::Write::write_all(&mut stream, &bytes[..len]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { port, accepted }
    }
}

const LIST: &str = "[outbound_block_list]\n127.0.0.2\n10.0.0.0/8\n||blocked.example\n";

#[test]
fn a_list_holds_for_ports_that_the_manager_of_libev_opens() {
    for in_file in [true, false] {
        let dir = Dir::new();
        let host = unused_addr();
        dir.file("m.acl", LIST);
        let acl = if in_file { ",\"acl\":\"m.acl\"" } else { "" };
        let file = format!("{{\"server\":\"{}\",\"method\":\"aes-128-gcm\"{acl}}}", host.ip());
        dir.file("manager.json", &file);
        let mut line = vec!["-c", "manager.json", "--manager-address", "m.sock", "-v"];
        if !in_file {
            line.extend(["--acl", "m.acl"]);
        }
        let running = Running::start(dir.command(link(&dir, "ss-manager"), &line));
        running.line("accepting manager commands");
        exercise_list(&dir, &running, &Client::unix(&dir, "m.sock"), (host.ip(), "ok"), "m.acl");
        stop(running);
    }
}

#[test]
fn a_list_holds_for_ports_that_the_manager_of_rust_opens() {
    let dir = Dir::new();
    let host = unused_addr();
    dir.file("m.acl", LIST);
    let (at, ip) = (host.to_string(), host.ip().to_string());
    // No file but the list.
    let line = ["--manager-addr", &at, "-s", &ip, "-m", "aes-128-gcm", "--acl", "m.acl", "-v"];
    let running = Running::start(dir.command(link(&dir, "ssmanager"), &line));
    running.line("accepting manager commands");
    exercise_list(&dir, &running, &Client::udp(host), (host.ip(), "ok\n"), "m.acl");
    stop(running);
}

#[test]
fn lists_of_single_servers_of_a_manager() {
    let dir = Dir::new();
    let host = unused_addr();
    dir.file("all.acl", "[outbound_block_list]\n127.0.0.1\n");
    dir.file("own.acl", LIST);
    let (at, ip) = (host.to_string(), host.ip().to_string());
    let servers = format!(
        "{{server:'{ip}',server_port:20021,method:'aes-128-gcm',password:'pw',acl:'own.acl'}},\
         {{server:'{ip}',server_port:20022,method:'aes-128-gcm',password:'pw'}}"
    );
    dir.file("m.json", &format!("{{servers:[{servers}],method:'aes-128-gcm',acl:'all.acl'}}"));
    let line = ["-c", "m.json", "--manager-addr", &at, "-s", &ip];
    let running = Running::start(dir.command(link(&dir, "ssmanager"), &line));
    running.line("accepting manager commands");
    let manager = Client::udp(host);
    let (target, other) = (echo(), TcpListenerOn::new("127.0.0.2"));
    let check = |port: u16, is_own: bool| {
        let client = local(&dir, SocketAddr::new(host.ip(), port), "aes-128-gcm", "pw");
        assert_eq!(leads(&client, "127.0.0.1", target.port()), is_own, "{port}");
        assert_eq!(leads(&client, "127.0.0.2", other.port), !is_own, "{port}");
    };
    check(20_021, true);
    check(20_022, false);
    for port in [20_021, 20_023] {
        assert_eq!(manager.ask(&add(port, "pw", "aes-128-gcm")), "ok\n");
    }
    check(20_021, true);
    check(20_023, false);
    stop(running);
}

#[test]
fn a_manager_with_a_list_that_cannot_be_read_does_not_start() {
    let dir = Dir::new();
    dir.file("bad.acl", "[outbound_block_list]\n(\n");
    for (program, list, want) in [
        ("ss-manager", "none.acl", "none.acl"),
        ("ssmanager", "none.acl", "none.acl"),
        ("ss-manager", "bad.acl", "bad.acl:2"),
        ("ssmanager", "bad.acl", "bad.acl:2"),
    ] {
        let at = if program == "ss-manager" { "--manager-address" } else { "--manager-addr" };
        let (status, out, log) = dir.run(&[program, at, "m.sock", "-m", "aes-128-gcm", "--acl", list]);
        assert!(
            status != 0 && (log.contains(want) || out.contains(want)),
            "{program} {list}: {status} {out}{log}"
        );
    }
}
