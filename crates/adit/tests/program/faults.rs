//! Faults of the network and of the other end: the first line about trouble names the cause.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::{skipped, unused_addr, unused_localhost};
use serde_json::Value;

use crate::support::{
    Dir, PATIENCE, Running, echo, is_within_namespace, round_trip, socks5, within_namespace,
};
use crate::test_server::clock_shim;

const KEY: &str = "AAECAwQFBgcICQoLDA0ODw==";
const OTHER_KEY: &str = "EBESExQVFhcYGRobHB0eHw==";

/// The first line about trouble, once there is one.
pub(crate) fn first(running: &Running) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let log = running.log();
        let found = log.lines().find(|line| is_trouble(line)).map(str::to_owned);
        if let Some(line) = found {
            return line;
        }
        assert!(Instant::now() < until, "no trouble in:\n{log}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a line is about trouble: remarks of a start are not.
fn is_trouble(line: &str) -> bool {
    [" WARN ", "ERROR ", "error: ", "ADIT-"].iter().any(|mark| line.contains(mark))
}

/// A Shadowsocks server.
fn server(dir: &Dir, at: SocketAddr, network: &str, shim: Option<&std::path::Path>) -> Running {
    let text = format!(
        "[[inbound]]\nprotocol = \"shadowsocks\"\nname = \"in\"\nlisten = \"{at}\"\nnetwork = \"{network}\"\n\
         method = \"2022-blake3-aes-128-gcm\"\npassword = \"{KEY}\"\nallow-private = true\n"
    );
    let file = dir.file("server.toml", &text);
    let mut command = dir.adit(&["run", "-c", file.to_str().unwrap()]);
    if let Some(shim) = shim {
        command.env("LD_PRELOAD", shim).env("CLOCK_SHIFT", "300");
    }
    let running = Running::start(command);
    running.line("listening");
    running
}

/// A local port that goes through outbounds of this text, the first by default.
pub(crate) fn client(dir: &Dir, rest: &str) -> Running {
    let text = format!(
        "[admin]\nsocket = \"{}\"\n[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n{rest}",
        dir.path().join("client.sock").display()
    );
    let file = dir.file("client.toml", &text);
    Running::start(dir.adit(&["run", "-c", file.to_str().unwrap()]))
}

fn through(server: impl std::fmt::Display, key: &str) -> String {
    format!(
        "[[outbound]]\nname = \"far\"\nprotocol = \"shadowsocks\"\nserver = \"{server}\"\n\
         method = \"2022-blake3-aes-128-gcm\"\nnetwork = \"tcp-and-udp\"\npassword = \"{key}\"\n"
    )
}

/// Asks for connections, with a few bytes over each; the answers do not matter.
pub(crate) fn knock(proxy: SocketAddr, count: usize) -> Vec<TcpStream> {
    let knock = |_| {
        let mut stream = TcpStream::connect(proxy).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        // Method and request in one, for a port that nobody looks at.
        stream.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 0, 9]).unwrap();
        stream.write_all(b"hello").ok();
        // Nothing may come.
        stream.read_exact(&mut [0; 2]).ok();
        stream
    };
    (0..count).map(knock).collect()
}

fn status(dir: &Dir) -> Value {
    let (code, out, err) = dir.run(&["status", "--json", "--socket", "client.sock"]);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn server_down_and_back() {
    let dir = Dir::new();
    let at = unused_addr();
    let client = client(&dir, &through(at, KEY));
    knock(client.address(), 3);
    let line = first(&client);
    let want = format!("cannot reach shadowsocks {at}: connection to {at} refused");
    assert!(line.contains(&want) && line.contains("code=ADIT-NET-01"), "{line}");
    assert_eq!(client.log().matches("ADIT-NET-01").count(), 1, "once a minute: {}", client.log());
    let error = status(&dir)["outbounds"][0]["last_error"].clone();
    assert_eq!(
        (&error["code"], &error["count"], &error["active"]),
        (&"ADIT-NET-01".into(), &3.into(), &true.into())
    );
    let (_, text, _) = dir.run(&["status", "--socket", "client.sock"]);
    assert!(text.contains("ADIT-NET-01, 3 times since ") && text.contains(", goes on\n"), "{text}");

    let _server = server(&dir, at, "tcp", None);
    round_trip(&mut socks5(client.address(), "127.0.0.1", echo().port()), 1000);
    let line = client.line("works again");
    assert!(line.contains(" INFO ") && line.contains("count=3"), "{line}");
    assert_eq!(status(&dir)["outbounds"][0]["last_error"]["active"], false);
    // The rest is told at the end.
    client.signal("TERM");
    let (_, log) = client.end();
    assert!(!log.contains("127.0.0.1:9"), "no destination: {log}");
}

#[test]
fn name_servers_that_are_dead() {
    let dir = Dir::new();
    let dead = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dns = format!("dns = [\"{}\"]\n", dead.local_addr().unwrap());
    let client = client(&dir, &(through("server.example:8388", KEY) + &dns));
    knock(client.address(), 1);
    let line = first(&client);
    assert!(line.contains("code=ADIT-DNS-01") && line.contains("shadowsocks server.example:8388"), "{line}");
    assert!(line.contains("name servers did not answer in time"), "{line}");
}

#[test]
fn a_name_that_does_not_exist() {
    let dir = Dir::new();
    let client = client(&dir, &through("nosuch-host.invalid:6160", KEY));
    knock(client.address(), 1);
    let line = first(&client);
    let want = "cannot reach shadowsocks nosuch-host.invalid:6160: name does not resolve";
    // Without any name server this machine cannot know.
    assert!(line.contains(want) || line.contains("ADIT-DNS-"), "{line}");
}

#[test]
fn a_wrong_key_seen_from_both_ends() {
    let dir = Dir::new();
    let at = unused_addr();
    let server = server(&dir, at, "tcp", None);
    let client = client(&dir, &through(at, OTHER_KEY));
    let open = knock(client.address(), 4);
    let line = first(&client);
    assert!(line.contains("4 connections got no byte back: key, method"), "{line}");
    assert!(line.contains("code=ADIT-AUTH-01"), "{line}");
    let line = first(&server);
    assert!(line.contains("authentication failed: wrong key") && line.contains("source=127.0.0.1"), "{line}");
    assert!(line.contains("code=ADIT-AUTH-02"), "{line}");
    drop(open);
}

#[test]
fn clocks_that_differ_by_five_minutes() {
    let dir = Dir::new();
    let Some(shim) = clock_shim(&dir) else { return skipped("no C compiler") };
    let at = unused_addr();
    let server = server(&dir, at, "tcp", Some(&shim));
    let client = client(&dir, &through(at, KEY));
    let open = knock(client.address(), 3);
    let line = first(&server);
    assert!(line.contains("code=ADIT-CLOCK-02"), "{line}");
    let offset = ["300 s behind ours", "301 s behind ours"];
    assert!(offset.iter().any(|offset| line.contains(offset)), "{line}");
    // The client cannot know, and says that the clock may be it.
    let line = first(&client);
    assert!(line.contains("clock differ"), "{line}");
    drop(open);
}

/// A SOCKS association: its connection, and the address that takes datagrams.
pub(crate) fn associate(proxy: SocketAddr) -> (TcpStream, SocketAddr) {
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], [5, 0, 5, 0]);
    let port = u16::from_be_bytes([reply[10], reply[11]]);
    (stream, SocketAddr::new(proxy.ip(), port))
}

/// A datagram of so many bytes for a target.
pub(crate) fn datagram(proxy: SocketAddr, target: SocketAddr, len: usize) -> (TcpStream, UdpSocket) {
    let (stream, relay) = associate(proxy);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut bytes = vec![0, 0, 0, 1, 127, 0, 0, 1];
    bytes.extend(target.port().to_be_bytes());
    bytes.resize(bytes.len() + len, 7);
    socket.send_to(&bytes, relay).unwrap();
    (stream, socket)
}

#[test]
fn datagrams_that_are_blocked() {
    let dir = Dir::new();
    let at = unused_addr();
    let _server = server(&dir, at, "tcp", None);
    // Somebody has the port, and says nothing: no error comes back.
    let _silent = UdpSocket::bind(at).unwrap();
    let client = client(&dir, &through(at, KEY));
    round_trip(&mut socks5(client.address(), "127.0.0.1", echo().port()), 1000);
    let open: Vec<_> = (0..4).map(|_| datagram(client.address(), unused_addr(), 20)).collect();
    let line = first(&client);
    assert!(line.contains("4 UDP flows got no datagram back: UDP is blocked"), "{line}");
    assert!(line.contains("code=ADIT-UDP-01") && line.contains("outbound=far"), "{line}");
    drop(open);
}

#[test]
fn a_group_without_a_member_that_works() {
    let dir = Dir::new();
    let (one, two) = (unused_addr(), unused_addr());
    let group = format!(
        "outbound = \"best\"\n{}{}[[outbound]]\nname = \"best\"\nprotocol = \"group\"\nmembers = [{{ name = \"far\" }}, {{ name = \"other\" }}]\n",
        through(one, KEY),
        through(two, KEY).replace("\"far\"", "\"other\"")
    );
    let client = client(&dir, &group);
    knock(client.address(), 1);
    let line = client.line("ADIT-GRP-01");
    assert!(line.contains("no member of the group can be used; the last one, "), "{line}");
    assert!(line.contains("refused") && line.contains("outbound=best"), "{line}");
    let status = status(&dir);
    let codes = status["outbounds"].as_array().unwrap().iter().map(|out| out["last_error"]["code"].clone());
    let mut codes: Vec<_> = codes.map(|code| code.as_str().unwrap_or_default().to_owned()).collect();
    codes.sort();
    assert_eq!(codes, ["ADIT-GRP-01", "ADIT-NET-01", "ADIT-NET-01"]);
}

#[test]
fn a_certificate_of_somebody_else() {
    let dir = Dir::new();
    let make =
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 2 -subj /CN=other.example";
    let made = dir.command("sh", &["-c", &format!("{make} 2>/dev/null")]).status();
    if !made.is_ok_and(|status| status.success()) {
        return skipped("no openssl");
    }
    let port = unused_localhost().port().to_string();
    let args = ["s_server", "-accept", &port, "-cert", "c.pem", "-key", "k.pem", "-quiet"];
    let _tls = Running::start(dir.command("openssl", &args));
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).is_err() {
        thread::sleep(Duration::from_millis(20));
    }
    let upstream =
        format!("[[dns.upstream]]\nserver = \"tls://dns.example:{port}\"\naddress = \"127.0.0.1\"\n");
    let client = client(&dir, &(through("server.example:8388", KEY) + &upstream));
    knock(client.address(), 1);
    let line = first(&client);
    assert!(line.contains("certificate") && line.contains("code=ADIT-TLS-01"), "{line}");
}

#[test]
fn a_path_with_a_small_mtu() {
    if !within_namespace("faults::in_a_namespace_with_a_small_mtu", "ip link set lo mtu 1280 up") {
        skipped("a network namespace with a small MTU cannot be made");
    }
}

#[test]
#[ignore = "runs in a network namespace of its own, by the test before"]
fn in_a_namespace_with_a_small_mtu() {
    if !is_within_namespace() {
        return;
    }
    let dir = Dir::new();
    let at = unused_addr();
    let _server = server(&dir, at, "tcp-and-udp", None);
    let client = client(&dir, &through(at, KEY));
    // It reaches the client in fragments, and must not leave in such.
    let _open = datagram(client.address(), unused_addr(), 1240);
    let line = first(&client);
    assert!(line.contains("code=ADIT-UDP-02") && line.contains("MTU"), "{line}");
    assert!(line.contains("no more than 1252"), "{line}");
}
