//! The addresses to which a server leads its clients: public ones alone, unless its inbound or a rule says otherwise.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{Running, start};
use adit_formats::adit_toml;
use adit_model::Config;
use adit_testkit::unused_addr;

const TIME: Duration = Duration::from_secs(120);
/// A target that is private in one of many ways. All that lead to this machine would be answered.
const PRIVATE: &[&str] = &[
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "fe80::1",
    "fc00::1",
    "fd12::1",
    "224.0.0.1",
    "ff02::1",
    "255.255.255.255",
    "64:ff9b::7f00:1",
    "2002:7f00:1::1",
    "localhost",
    "a.localhost",
];

/// Says a byte to each stream and datagram, on both families of loopback and all addresses of this machine.
fn target() -> u16 {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let at = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(at).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                stream.write_all(&[7]).ok();
                let mut bytes = [0; 16];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..len]).ok();
                }
            });
        }
    });
    thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&[7], from).ok();
        }
    });
    at.port()
}

/// Servers with their local ports in front of them, by protocol.
struct Place {
    servers: [(&'static str, SocketAddr); 4],
    locals: [SocketAddr; 4],
}

const AEAD: &str = "method = \"aes-128-gcm\"\npassword = \"a key of the tests\"\nnetwork = \"tcp-and-udp\"\n";
const SIP022: &str = "method = \"2022-blake3-aes-128-gcm\"\npassword = \"AAAAAAAAAAAAAAAAAAAAAA==\"\n\
                      network = \"tcp-and-udp\"\n";

impl Place {
    fn new() -> Self {
        let servers = ["snell", "shadowsocks", "shadowsocks", "ssr"].map(|name| (name, unused_addr()));
        Self { servers, locals: [(); 4].map(|()| unused_addr()) }
    }

    fn keys(at: usize) -> &'static str {
        [
            "psk = \"a key of the tests\"\n",
            AEAD,
            SIP022,
            "method = \"aes-128-ctr\"\npassword = \"p\"\nnetwork = \"tcp-and-udp\"\n",
        ][at]
    }

    fn clients(&self) -> Config {
        let mut text = String::from("cores = 1\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n");
        for (n, ((protocol, server), local)) in self.servers.iter().zip(&self.locals).enumerate() {
            text += &format!(
                "[[inbound]]\nname = \"local-{n}\"\nprotocol = \"socks\"\nlisten = \"{local}\"\noutbound = \"to-{n}\"\n\
                 [[outbound]]\nname = \"to-{n}\"\nprotocol = \"{protocol}\"\nserver = \"{server}\"\n{}",
                Self::keys(n)
            );
        }
        parse(&text)
    }

    fn servers(&self, more: &str, rules: &str) -> Config {
        let mut text = String::from("cores = 1\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n");
        for (n, (protocol, server)) in self.servers.iter().enumerate() {
            text += &format!(
                "[[inbound]]\nname = \"in-{n}\"\nprotocol = \"{protocol}\"\nlisten = \"{server}\"\n\
                 outbound = \"home\"\n{}{more}",
                Self::keys(n)
            );
        }
        parse(&format!("{text}[[outbound]]\nname = \"home\"\nprotocol = \"direct\"\n{rules}"))
    }
}

fn parse(text: &str) -> Config {
    adit_toml::parse("reach.toml", text).unwrap_or_else(|found| panic!("{found}\n{text}")).config
}

fn run(config: &Config) -> Running {
    start(config).unwrap_or_else(|error| panic!("{error}"))
}

/// Type, address and port as SOCKS has them.
fn address(host: &str, port: u16) -> Vec<u8> {
    let mut out = match host.parse() {
        Ok(IpAddr::V4(ip)) => [&[1][..], &ip.octets()].concat(),
        Ok(IpAddr::V6(ip)) => [&[4][..], &ip.octets()].concat(),
        Err(_) => [&[3, u8::try_from(host.len()).unwrap()][..], host.as_bytes()].concat(),
    };
    out.extend(port.to_be_bytes());
    out
}

/// A stream to the target, if it is reached.
fn connect(socks: SocketAddr, host: &str, port: u16) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(socks).unwrap();
    stream.set_read_timeout(Some(TIME)).unwrap();
    stream.write_all(&[&[5, 1, 0, 5, 1, 0][..], &address(host, port)].concat()).unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).ok()?;
    let mut byte = [0];
    (reply[3] == 0 && stream.read_exact(&mut byte).is_ok() && byte == [7]).then_some(stream)
}

/// An association, and the socket for its datagrams.
fn associate(socks: SocketAddr) -> (TcpStream, UdpSocket) {
    let mut stream = TcpStream::connect(socks).unwrap();
    stream.set_read_timeout(Some(TIME)).unwrap();
    stream.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect((socks.ip(), u16::from_be_bytes([reply[10], reply[11]]))).unwrap();
    (stream, socket)
}

fn send(socket: &UdpSocket, host: &str, port: u16) {
    socket.send(&[&[0, 0, 0][..], &address(host, port), b"?"].concat()).unwrap();
}

/// Whether something comes back within this time.
fn hears(socket: &UdpSocket, time: Duration) -> bool {
    socket.set_read_timeout(Some(time)).unwrap();
    match socket.recv(&mut [0; 64]) {
        Ok(_) => true,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Streams and datagrams that an inbound has refused by rule.
fn refused(running: &Running, at: usize) -> (u64, u64) {
    let inbound = running.status().inbounds.swap_remove(at);
    let datagrams = inbound.datagrams.unwrap_or_default();
    let of = |counts: &adit_model::map::Map<String, u64>| counts.get("rule").copied().unwrap_or(0);
    (of(&inbound.refused), of(&datagrams.dropped))
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + TIME;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// An address of this machine that is not loopback, if it has one.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().unwrap().ip();
    (!ip.is_loopback()).then_some(ip)
}

#[test]
fn each_class_of_private_addresses_is_refused_for_streams_and_datagrams() {
    let (place, port) = (Place::new(), target());
    let (server, client) = (run(&place.servers("", "")), run(&place.clients()));
    let own = own_address().map(|ip| ip.to_string());
    let hosts: Vec<&str> = PRIVATE.iter().copied().chain(own.as_deref()).collect();
    for (at, local) in place.locals.iter().enumerate() {
        let (_control, socket) = associate(*local);
        for (n, host) in hosts.iter().enumerate() {
            let want = u64::try_from(n).unwrap() + 1;
            assert!(connect(*local, host, port).is_none(), "{:?} to {host}", place.servers[at]);
            send(&socket, host, port);
            wait_for(&format!("{:?} to {host}", place.servers[at]), || refused(&server, at) == (want, want));
        }
        assert!(!hears(&socket, Duration::from_millis(100)));
    }
    client.end();
    server.end();
}

#[test]
fn an_inbound_that_allows_it_and_a_rule_lead_there() {
    let (place, port, has_ipv6) = (Place::new(), target(), adit_testkit::has_ipv6());
    let client = run(&place.clients());
    // Its own key, a rule that matches, and no more than that rule.
    let rule = format!("[[rule]]\nport = [{port}]\noutbound = \"home\"\n");
    for (more, rules) in [("allow-private = true\n", ""), ("", &*rule)] {
        let server = run(&place.servers(more, rules));
        for local in place.locals {
            for host in
                ["127.0.0.1", "localhost", "::1"].into_iter().filter(|host| *host != "::1" || has_ipv6)
            {
                let (_control, socket) = associate(local);
                assert!(connect(local, host, port).is_some(), "{host}");
                send(&socket, host, port);
                assert!(hears(&socket, TIME), "{host}");
            }
        }
        server.end();
    }
    let other = target();
    let server = run(&place.servers("", &rule));
    for (at, local) in place.locals.iter().enumerate() {
        assert!(connect(*local, "127.0.0.1", other).is_none());
        assert_eq!(refused(&server, at).0, 1, "no rule matches this port");
    }
    server.end();
    client.end();
}

#[test]
fn apply_toggles_it_for_what_begins_and_cuts_nothing() {
    let (place, port) = (Place::new(), target());
    let (allows, refuses) = (place.servers("allow-private = true\n", ""), place.servers("", ""));
    let (server, client) = (run(&refuses), run(&place.clients()));
    let (_control, socket) = associate(place.locals[1]);
    let (_other, stream_socket) = associate(place.locals[0]);
    for _ in 0..2 {
        assert!(connect(place.locals[0], "127.0.0.1", port).is_none());
        let before = (refused(&server, 0).1, refused(&server, 1).1);
        send(&socket, "127.0.0.1", port);
        send(&stream_socket, "127.0.0.1", port);
        wait_for("refused", || {
            (refused(&server, 0).1, refused(&server, 1).1) == (before.0 + 1, before.1 + 1)
        });
        let changes = server.apply(&allows).unwrap();
        assert_eq!((changes.updated.len(), changes.opened.len()), (4, 0), "no port is bound anew");
        let mut held = connect(place.locals[0], "127.0.0.1", port).unwrap();
        send(&socket, "127.0.0.1", port);
        send(&stream_socket, "127.0.0.1", port);
        assert!(hears(&socket, TIME) && hears(&stream_socket, TIME), "the same associations");
        server.apply(&refuses).unwrap();
        held.write_all(b"on").unwrap();
        held.read_exact(&mut [0; 2]).unwrap();
    }
    client.end();
    server.end();
}

#[test]
fn a_tunnel_leads_where_its_configuration_says() {
    let (at, port) = (unused_addr(), target());
    let text = format!(
        "cores = 1\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n\
         [[inbound]]\nprotocol = \"tunnel\"\nlisten = \"{at}\"\ntarget = \"127.0.0.1:{port}\"\n"
    );
    let running = run(&parse(&text));
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(TIME)).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    running.end();
}
