//! ShadowsocksR against programs of others: the Python server and client, the libev fork's client, and
//! shadowsocksr-native. Each carries streams and datagrams; the whole matrix is `adit bench run ssr-matrix`.
//!
//! The programs are found in the path under the names that the subjects of the lab use (`bench/subjects/ssr-*.toml`).

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::plugin::missing;
use crate::ssr::{datagrams_come_back, free_port, is_served, udp_echo};
use crate::support::{Dir, PATIENCE, Running, echo, round_trip, socks5};

/// Method, protocol and obfs of the tests; two that every program knows.
const COMBINATIONS: [(&str, &str, &str); 2] = [
    ("aes-256-cfb", "auth_aes128_md5", "tls1.2_ticket_auth"),
    ("aes-128-ctr", "auth_chain_a", "http_simple"),
];

/// The file of a server or client of the Python programs and the fork.
fn file(server: u16, local: u16, (method, protocol, obfs): (&str, &str, &str)) -> String {
    format!(
        "{{\"server\": \"127.0.0.1\", \"server_port\": {server}, \"local_address\": \"127.0.0.1\", \"local_port\": {local},\n\
         \"method\": \"{method}\", \"password\": \"hunter2\", \"protocol\": \"{protocol}\", \"obfs\": \"{obfs}\",\n\
         \"forbidden_ip\": \"\", \"timeout\": 60}}"
    )
}

fn wait_open(port: u16, running: &Running) {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        assert!(Instant::now() < deadline, "port {port} is not open\n{}", running.log());
        thread::sleep(Duration::from_millis(20));
    }
}

/// A datagram there and back through an association of SOCKS5, asked for again while sockets are opened.
fn associated_datagram(proxy: SocketAddr, target: SocketAddr) {
    let mut control = TcpStream::connect(proxy).unwrap();
    control.set_read_timeout(Some(PATIENCE)).unwrap();
    control.write_all(&[5, 1, 0]).unwrap();
    control.read_exact(&mut [0; 2]).unwrap();
    control.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 10];
    control.read_exact(&mut reply).unwrap();
    let relay = SocketAddr::new(proxy.ip(), u16::from_be_bytes([reply[8], reply[9]]));
    let SocketAddr::V4(to) = target else { panic!("an IPv4 target") };
    let head = [&[0, 0, 0, 1][..], &to.ip().octets(), &to.port().to_be_bytes()].concat();
    let packet = [&head[..], b"datagram"].concat();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut answer = [0; 1500];
    for _ in 0..240 {
        socket.send_to(&packet, relay).unwrap();
        if let Ok(len) = socket.recv(&mut answer) {
            assert!(answer[..len].ends_with(b"datagram"), "{:?}", &answer[..len]);
            return;
        }
    }
    panic!("no datagram comes back");
}

/// A real server with `adit ssr-local` and `adit ssr-tunnel`.
fn behind_server(program: &str, file_of: impl Fn(u16, (&str, &str, &str)) -> String) {
    if let Some(program) = missing(&[program]) {
        adit_testkit::skipped(format_args!("{program} is not installed"));
        return;
    }
    let dir = Dir::new();
    let target = echo();
    for combination in COMBINATIONS {
        let port = free_port();
        let path = dir.file("server.json", &file_of(port, combination));
        let server = Running::start(dir.command(program, &["-c", path.to_str().unwrap()]));
        wait_open(port, &server);
        dir.file("client.json", &file(port, 0, combination));
        let local = Running::start(dir.adit(&["ssr-local", "-c", "client.json", "-u"]));
        let address = local.address();
        assert!(is_served(address, target, 100), "{program} {combination:?}\n{}", server.log());
        for len in [1, 1_000_000] {
            round_trip(&mut socks5(address, "127.0.0.1", target.port()), len);
        }
        associated_datagram(address, udp_echo());
        local.signal("TERM");
        local.end();
        server.signal("TERM");
        server.end();
    }
}

/// `adit ssr-server` with a real client.
fn before_client(program: &str, args: &[&str], file_of: impl Fn(u16, u16, (&str, &str, &str)) -> String) {
    if let Some(program) = missing(&[program]) {
        adit_testkit::skipped(format_args!("{program} is not installed"));
        return;
    }
    let dir = Dir::new();
    let target = echo();
    for combination in COMBINATIONS {
        let (port, local) = (free_port(), free_port());
        dir.file("server.json", &file(port, 0, combination));
        let server = Running::start(dir.adit(&["ssr-server", "-c", "server.json"]));
        wait_open(port, &server);
        let path = dir.file("client.json", &file_of(port, local, combination));
        let client = Running::start(dir.command(program, &[&["-c", path.to_str().unwrap()], args].concat()));
        wait_open(local, &client);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, local));
        for len in [1, 300_000] {
            assert!(is_served(address, target, len), "{program} {combination:?}\n{}", client.log());
        }
        associated_datagram(address, udp_echo());
        client.signal("TERM");
        client.end();
        server.signal("TERM");
        server.end();
    }
}

/// The file of a server or client of shadowsocksr-native.
fn native_file(server: u16, local: Option<u16>, (method, protocol, obfs): (&str, &str, &str)) -> String {
    let ends = match local {
        None => {
            format!("\"server_settings\": {{\"listen_address\": \"127.0.0.1\", \"listen_port\": {server}}}")
        }
        Some(local) => format!(
            "\"client_settings\": {{\"server\": \"127.0.0.1\", \"server_port\": {server},\n\
             \"listen_address\": \"127.0.0.1\", \"listen_port\": {local}}}"
        ),
    };
    format!(
        "{{\"method\": \"{method}\", \"password\": \"hunter2\", \"protocol\": \"{protocol}\", \"protocol_param\": \"\",\n\
         \"obfs\": \"{obfs}\", \"obfs_param\": \"a.example\", \"udp\": true, \"idle_timeout\": 300,\n\
         \"connect_timeout\": 6, \"udp_timeout\": 60, {ends}}}"
    )
}

#[test]
#[ignore = "needs ssr-python-server"]
fn the_python_server() {
    behind_server("ssr-python-server", |port, combination| file(port, 0, combination));
}

#[test]
#[ignore = "needs ssr-python-local"]
fn the_python_client() {
    before_client("ssr-python-local", &[], file);
}

#[test]
#[ignore = "needs ssr-fork-local"]
fn the_client_of_the_fork() {
    before_client("ssr-fork-local", &["-u"], file);
}

#[test]
#[ignore = "needs ssr-native-server"]
fn the_native_server() {
    behind_server("ssr-native-server", |port, combination| native_file(port, None, combination));
}

#[test]
#[ignore = "needs ssr-native-client"]
fn the_native_client() {
    before_client("ssr-native-client", &[], |server, local, combination| {
        native_file(server, Some(local), combination)
    });
}

/// Connections alone reach `port`: there is no way for datagrams.
fn streams_only(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                thread::spawn(move || {
                    std::io::copy(&mut from, &mut to).ok();
                    to.shutdown(std::net::Shutdown::Write).ok();
                });
            }
        }
    });
    own
}

#[test]
#[ignore = "needs ssr-python-server"]
fn datagrams_over_streams_to_the_python_server() {
    if let Some(program) = missing(&["ssr-python-server"]) {
        adit_testkit::skipped(format_args!("{program} is not installed"));
        return;
    }
    let dir = Dir::new();
    for (method, protocol, obfs) in COMBINATIONS.into_iter().chain([("rc4-md5", "origin", "plain")]) {
        let port = free_port();
        let path = dir.file("server.json", &file(port, 0, (method, protocol, obfs)));
        let server = Running::start(dir.command("ssr-python-server", &["-c", path.to_str().unwrap()]));
        wait_open(port, &server);
        let (target, reach) = (udp_echo(), streams_only(port));
        let text = format!(
            "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"127.0.0.1:0\"\ntarget = \"{target}\"\nnetwork = \"udp\"\n\
             [[outbound]]\nprotocol = \"ssr\"\nserver = \"127.0.0.1:{reach}\"\nmethod = \"{method}\"\n\
             password = \"hunter2\"\nssr-protocol = \"{protocol}\"\nssr-obfs = \"{obfs}\"\n\
             ssr-obfs-param = \"a.example\"\nnetwork = \"tcp-and-udp\"\nudp-over-tcp = true\n"
        );
        let file = dir.file("adit.toml", &text);
        let client = Running::start(dir.adit(&["run", "-c", file.to_str().unwrap()]));
        for len in [1, 1000, 1400] {
            datagrams_come_back(client.address(), len);
        }
        client.signal("TERM");
        client.end();
        server.signal("TERM");
        server.end();
    }
}
