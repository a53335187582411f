//! Access control lists: past the server, and not at all.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::unused_addr;

use crate::support::{Dir, PATIENCE, Running, echo, round_trip, socks5};

/// A target for datagrams that sends them back, on this address of the loopback block.
fn datagram_echo(host: &str) -> SocketAddr {
    let socket = UdpSocket::bind((host, 0)).unwrap();
    let at = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&bytes[..len], from).ok();
        }
    });
    at
}

/// Asks again until an answer comes: a datagram may be lost.
fn answered(via: SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        socket.send_to(b"hello", via).unwrap();
        let mut bytes = [0; 16];
        if matches!(socket.recv(&mut bytes), Ok(5)) {
            return;
        }
        assert!(Instant::now() < deadline, "no datagram came back");
    }
}

#[test]
fn targets_past_a_server_that_is_not_there() {
    let dir = Dir::new();
    dir.file("c.acl", "[proxy_all]\n[bypass_list]\n127.0.0.0/8\n::1\n");
    dir.file("n.acl", "[proxy_all]\n[bypass_list]\n(^|\\.)localhost$\n");
    let dead = unused_addr();
    let (ip, port, target) = (dead.ip().to_string(), dead.port().to_string(), echo());
    for (list, host) in [("c.acl", "127.0.0.1"), ("c.acl", "localhost"), ("n.acl", "localhost")] {
        let line = ["-s", &ip, "-p", &port, "-l", "0", "-k", "k", "-m", "aes-128-gcm", "--acl", list, "-v"];
        let local = Running::start(dir.adit(&[["ss-local"].as_slice(), &line].concat()));
        let mut stream = socks5(local.address(), host, target.port());
        round_trip(&mut stream, 100_000);
        drop(stream);
        let record = local.line("connection ended");
        assert!(record.contains("outbound=direct"), "{record}");
    }
    let line = [
        "ss-local",
        "-s",
        &ip,
        "-p",
        &port,
        "-l",
        "0",
        "-k",
        "k",
        "-m",
        "aes-128-gcm",
        "--acl",
        "n.acl",
        "-v",
    ];
    let local = Running::start(dir.adit(&line));
    let mut stream = TcpStream::connect(local.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let [high, low] = target.port().to_be_bytes();
    stream.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, high, low]).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).ok();
    assert!(local.line("could not be opened").contains("outbound=server"), "an address that no rule names");
}

#[test]
fn datagrams_past_a_server_that_is_not_there() {
    let dir = Dir::new();
    dir.file("c.acl", "[bypass_all]\n[proxy_list]\n||example.com\n192.0.2.0/24\n");
    let dead = unused_addr().to_string();
    let target = datagram_echo("127.0.0.1").port();
    for host in ["127.0.0.1", "localhost"] {
        let at = unused_addr();
        let (whole, to) = (at.to_string(), format!("{host}:{target}"));
        let line = ["-b", &whole, "-s", &dead, "-m", "aes-128-gcm", "-k", "k", "--protocol", "tunnel", "-U"];
        let rest = ["-f", &to, "--acl", "c.acl"];
        let local = Running::start(dir.adit(&[["sslocal"].as_slice(), &line, &rest].concat()));
        local.address();
        answered(at);
    }
}

#[test]
fn a_server_that_refuses_targets_and_clients() {
    let dir = Dir::new();
    dir.file("block.acl", "[outbound_block_list]\n127.0.0.1\n||blocked.example\n");
    dir.file("reject.acl", "[reject_all]\n[white_list]\n192.0.2.0/24\n");
    let target = echo();
    let server = |list: &str| {
        let line =
            ["ss-server", "-s", "127.0.0.1", "-p", "0", "-k", "k", "-m", "aes-128-gcm", "-v", "--acl", list];
        Running::start(dir.adit(&line))
    };
    let refusing = server("block.acl");
    let port = refusing.address().port().to_string();
    let line = ["ss-local", "-s", "127.0.0.1", "-p", &port, "-l", "0", "-k", "k", "-m", "aes-128-gcm"];
    let local = Running::start(dir.adit(&line));
    for host in ["127.0.0.1", "localhost", "a.blocked.example"] {
        let mut stream = socks5(local.address(), host, target.port());
        stream.write_all(b"hello").ok();
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "{host}");
    }
    refusing.line("refused by a rule");
    let rejecting = server("reject.acl");
    let mut stream = TcpStream::connect(rejecting.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "closed at once");
    rejecting.line("refused by the access control list");
}

#[test]
fn a_list_of_one_port_and_one_for_the_others() {
    let dir = Dir::new();
    dir.file("past.acl", "[proxy_all]\n[bypass_list]\n127.0.0.0/8\n");
    dir.file("all.acl", "[proxy_all]\n");
    let (dead, own, other) = (unused_addr(), unused_addr(), unused_addr());
    let locals = format!(
        "{{local_address: '{}', local_port: {}, acl: 'past.acl'}}, {{local_address: '{}', local_port: {}}}",
        own.ip(),
        own.port(),
        other.ip(),
        other.port()
    );
    let text = format!(
        "{{server: '{}', server_port: {}, method: 'aes-128-gcm', password: 'k', acl: 'all.acl', locals: [{locals}]}}",
        dead.ip(),
        dead.port()
    );
    dir.file("c.json", &text);
    let local = Running::start(dir.adit(&["sslocal", "-c", "c.json"]));
    local.line("listening");
    let target = echo();
    round_trip(&mut socks5(own, "127.0.0.1", target.port()), 1000);
    let mut through = socks5(other, "127.0.0.1", target.port());
    through.write_all(b"hello").ok();
    assert!(matches!(through.read(&mut [0]), Ok(0) | Err(_)), "nobody serves it");
    drop(local);
}

#[test]
fn a_server_that_refuses_datagrams() {
    let dir = Dir::new();
    dir.file("s.acl", "[outbound_block_all]\n[outbound_allow_list]\n127.0.0.1\n");
    let (allowed, blocked) = (datagram_echo("127.0.0.1"), UdpSocket::bind("127.0.0.2:0").unwrap());
    blocked.set_nonblocking(true).unwrap();
    let at = unused_addr().to_string();
    let line =
        ["ssserver", "-s", &at, "-m", "2022-blake3-aes-128-gcm", "-k", "MDEyMzQ1Njc4OWFiY2RlZg==", "-U"];
    let server = Running::start(dir.adit(&[line.as_slice(), &["--acl", "s.acl"]].concat()));
    server.address();
    let client = |target: SocketAddr| {
        let own = unused_addr();
        let (whole, to) = (own.to_string(), target.to_string());
        let line = ["sslocal", "-b", &whole, "-s", &at, "-m", "2022-blake3-aes-128-gcm", "-U", "-f", &to];
        let rest = ["-k", "MDEyMzQ1Njc4OWFiY2RlZg==", "--protocol", "tunnel"];
        let running = Running::start(dir.adit(&[line.as_slice(), &rest].concat()));
        running.address();
        (own, running)
    };
    let (to_blocked, _one) = client(blocked.local_addr().unwrap());
    let (to_allowed, _two) = client(allowed);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for _ in 0..3 {
        socket.send_to(b"hello", to_blocked).unwrap();
        answered(to_allowed);
    }
    assert!(blocked.recv(&mut [0; 16]).is_err(), "nothing has come there");
}
