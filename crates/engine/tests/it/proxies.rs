//! Outbounds through SOCKS5 and HTTP proxies: adit's own ports, and servers that answer by a script.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use adit_engine::{Running, start};
use adit_model::{
    Config, Dial, InboundProtocol, Limits, Local, LocalProtocols, Outbound, OutboundProtocol, ProxyClient,
    ProxyKind, ProxyTls, Reply, Secret, Transports, User, Verify,
};
use adit_proto::crypto::sha256;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::common::{echo_both, inbound};

fn run(protocol: InboundProtocol, outbounds: Vec<Outbound>) -> Running {
    let inbound = inbound("in", &outbounds[0].name, protocol);
    let limits = Limits { drain: Duration::from_millis(100), ..Limits::default() };
    let config = Config { cores: Some(1), limits, inbounds: vec![inbound], outbounds, ..Config::default() };
    start(&config).unwrap()
}

fn outbound(name: &str, protocol: OutboundProtocol) -> Outbound {
    let dial = Dial { timeout: Duration::from_secs(2), ..Dial::default() };
    Outbound { dial, ..crate::common::outbound(name, protocol) }
}

/// A port of adit as the proxy, with a user.
fn server() -> (Running, SocketAddr) {
    let users = vec![User::from(("ann".into(), Secret::new("secret")))];
    let local = Local { accepts: LocalProtocols::Mixed, users, reply: Reply::Connected, open_to: Vec::new() };
    let running = run(InboundProtocol::Local(local), vec![outbound("direct", OutboundProtocol::Direct)]);
    let at = running.addresses()[0].1;
    (running, at)
}

fn client(kind: ProxyKind, server: SocketAddr, password: &str, tls: Option<ProxyTls>) -> ProxyClient {
    let credentials = Some(("ann".into(), Secret::new(password)));
    ProxyClient { server: server.into(), kind, credentials, tls }
}

fn tunnel(client: ProxyClient, target: SocketAddr) -> (Running, SocketAddr) {
    let transports = if client.udp() { Transports::Both } else { Transports::Tcp };
    let protocol = InboundProtocol::Tunnel { target: target.into(), transports };
    let running = run(protocol, vec![outbound("proxy", OutboundProtocol::Proxy(client))]);
    let at = running.addresses()[0].1;
    (running, at)
}

/// Whether so many bytes come back.
fn echoes(at: SocketAddr, len: usize) -> bool {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let bytes: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let (mut writer, sent) = (stream.try_clone().unwrap(), bytes.clone());
    thread::spawn(move || writer.write_all(&sent).ok());
    let mut back = vec![0; len];
    stream.read_exact(&mut back).is_ok() && back == bytes
}

#[test]
fn streams_and_datagrams_through_socks5() {
    let (target, (server, at)) = (echo_both(), server());
    let (running, port) = tunnel(client(ProxyKind::Socks5 { udp: true }, at, "secret", None), target);
    assert!(echoes(port, 4) && echoes(port, 1 << 20));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for len in [1, 2, 1200] {
        let sent = vec![7; len];
        socket.send_to(&sent, port).unwrap();
        let mut back = [0; 2048];
        let received = socket.recv(&mut back).unwrap();
        assert_eq!(&back[..received], sent);
    }
    running.end();
    // A wrong password is refused, and nothing goes another way.
    let (running, port) = tunnel(client(ProxyKind::Socks5 { udp: false }, at, "wrong", None), target);
    assert!(!echoes(port, 4));
    running.end();
    server.end();
}

#[test]
fn streams_through_http() {
    let (target, (server, at)) = (echo_both(), server());
    let kind = || ProxyKind::Http { headers: vec![("X-Token".into(), Secret::new("t"))] };
    let (running, port) = tunnel(client(kind(), at, "secret", None), target);
    assert!(echoes(port, 4) && echoes(port, 1 << 20));
    running.end();
    let (running, port) = tunnel(client(kind(), at, "wrong", None), target);
    assert!(!echoes(port, 4));
    running.end();
    server.end();
}

/// A server that gives each connection this answer, in pieces, and echoes behind it.
fn scripted(answer: &'static [u8], piece: usize, tls: Option<Arc<ServerConfig>>) -> SocketAddr {
    fn serve(mut stream: impl Read + Write, answer: &[u8], piece: usize) -> std::io::Result<()> {
        let mut bytes = [0; 4096];
        let mut len = 0;
        while !bytes[..len].ends_with(b"\r\n\r\n") {
            match stream.read(&mut bytes[len..])? {
                0 => return Ok(()),
                read => len += read,
            }
        }
        for part in answer.chunks(piece) {
            stream.write_all(part)?;
            stream.flush()?;
        }
        loop {
            match stream.read(&mut bytes)? {
                0 => return Ok(()),
                read => stream.write_all(&bytes[..read])?,
            }
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tls = tls.clone();
            thread::spawn(move || match tls {
                Some(tls) => {
                    let session = ServerConnection::new(tls).unwrap();
                    serve(StreamOwned::new(session, stream), answer, piece).ok()
                }
                None => serve(stream, answer, piece).ok(),
            });
        }
    });
    at
}

#[test]
fn answers_of_http_proxies() {
    const OK: &[u8] = b"HTTP/1.1 200 Connection established\r\nX: y\r\n\r\n";
    let long: &'static [u8] = Vec::leak([b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &[b'x'; 200_000]].concat());
    for (answer, piece, wants) in [
        (OK, 1, true),
        (OK, 1000, true),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\n", 7, true),
        (b"HTTP/1.1 407 No\r\n\r\n", 1000, false),
        (b"HTTP/1.1 502 No\r\n\r\n", 1000, false),
        (b"SSH-2.0-x\r\n\r\n", 1000, false),
        (b"", 1, false),
        (&OK[..OK.len() - 1], 1000, false),
        (long, 1000, false),
    ] {
        let at = scripted(answer, piece, None);
        let kind = ProxyKind::Http { headers: Vec::new() };
        let (running, port) = tunnel(client(kind, at, "secret", None), at);
        assert_eq!(echoes(port, 4), wants, "{:?}", String::from_utf8_lossy(&answer[..answer.len().min(40)]));
        running.end();
    }
}

/// A certificate that nobody signed: refused, unless its digest is known or nothing is checked.
#[test]
fn tls_to_the_proxy() {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["proxy.example".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let digest = sha256(&[&certificate]);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    let at = scripted(b"HTTP/1.1 200 OK\r\n\r\n", 1000, Some(Arc::new(config)));
    let mut wrong = digest;
    wrong[0] ^= 1;
    for (verify, wants) in [
        (Verify::Chain, false),
        (Verify::Fingerprint(digest), true),
        (Verify::Fingerprint(wrong), false),
        (Verify::Nothing, true),
    ] {
        let tls = ProxyTls { name: Some("proxy.example".into()), verify: verify.clone() };
        let kind = ProxyKind::Http { headers: Vec::new() };
        let (running, port) = tunnel(client(kind, at, "secret", Some(tls)), at);
        assert_eq!(echoes(port, 1 << 18), wants, "{verify:?}");
        running.end();
    }
    // A proxy without TLS.
    let plain = scripted(b"HTTP/1.1 200 OK\r\n\r\n", 1000, None);
    let tls = ProxyTls { name: None, verify: Verify::Nothing };
    let kind = ProxyKind::Http { headers: Vec::new() };
    let (running, port) = tunnel(client(kind, plain, "secret", Some(tls)), plain);
    assert!(!echoes(port, 4));
    running.end();
}
