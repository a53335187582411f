//! Real connections of QUIC, and of HTTP/3 upon it, through a Snell client and server, on their way as raw datagrams.

mod http3;

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{DatagramStatus, Running};
use adit_model::{
    ClientCover, HalfClose, InboundProtocol, KeyForm, OutboundProtocol, Quic, ReplayPolicy, Secret,
    ServerCover, ShadowsocksClient, ShadowsocksKey, ShadowsocksServer, ShadowsocksServerKey, Transports,
};
use adit_testkit::unused_addr;
use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
    FinishError, ReadError, ServerConfig, StreamEvent, StreamId, WriteError,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::common::{PSK, Pattern, Setup, loopback, within};

/// Bytes that one connection moves in each direction.
const LEN: usize = 1 << 20;

/// One end: a state machine of QUIC on a plain socket.
struct Peer {
    socket: UdpSocket,
    endpoint: Endpoint,
    connections: BTreeMap<ConnectionHandle, Connection>,
    events: Vec<(ConnectionHandle, Event)>,
    buf: Vec<u8>,
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/../../testdata/quic/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn server_config() -> ServerConfig {
    let certificate = CertificateDer::from(file("certificate.der"));
    ServerConfig::with_single_cert(vec![certificate], PrivatePkcs8KeyDer::from(file("key.der")).into())
        .unwrap()
}

fn client_config() -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(file("certificate.der"))).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

impl Peer {
    fn new(server: Option<ServerConfig>) -> Self {
        let socket = loopback_socket();
        let endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), server.map(Arc::new), true, None);
        Self { socket, endpoint, connections: BTreeMap::new(), events: Vec::new(), buf: Vec::new() }
    }

    /// One turn: takes what has come or is due, and sends what is to be sent.
    fn turn(&mut self) {
        let mut bytes = [0; 2048];
        self.socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        while let Ok((len, from)) = self.socket.recv_from(&mut bytes) {
            self.handle(from, &bytes[..len]);
            self.socket.set_nonblocking(true).unwrap();
        }
        self.socket.set_nonblocking(false).unwrap();
        let now = Instant::now();
        for (handle, connection) in &mut self.connections {
            if connection.poll_timeout().is_some_and(|at| at <= now) {
                connection.handle_timeout(now);
            }
            while let Some(event) = connection.poll() {
                self.events.push((*handle, event));
            }
            while let Some(event) = connection.poll_endpoint_events() {
                if let Some(event) = self.endpoint.handle_event(*handle, event) {
                    connection.handle_event(event);
                }
            }
            self.buf.clear();
            while let Some(transmit) = connection.poll_transmit(now, 1, &mut self.buf) {
                self.socket.send_to(&self.buf[..transmit.size], transmit.destination).unwrap();
                self.buf.clear();
            }
        }
    }

    fn handle(&mut self, from: SocketAddr, datagram: &[u8]) {
        let now = Instant::now();
        self.buf.clear();
        match self.endpoint.handle(now, from, None, None, BytesMut::from(datagram), &mut self.buf) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(connection) = self.connections.get_mut(&handle) {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let (handle, connection) = self.endpoint.accept(incoming, now, &mut self.buf, None).unwrap();
                self.connections.insert(handle, connection);
            }
            Some(DatagramEvent::Response(transmit)) => {
                self.socket.send_to(&self.buf[..transmit.size], transmit.destination).unwrap();
            }
            None => {}
        }
    }
}

/// A socket for a library that drives it itself.
fn loopback_socket() -> UdpSocket {
    UdpSocket::bind(loopback()).unwrap()
}

/// One stream of a connection, with what it still has to say.
#[derive(Default)]
struct Talk {
    out: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    has_ended: bool,
    is_finished: bool,
}

impl Talk {
    /// Reads and writes as far as the stream allows; with `ends` it is finished when everything is written.
    fn go_on(&mut self, connection: &mut Connection, id: StreamId, ends: bool) {
        while !self.has_ended {
            let mut stream = connection.recv_stream(id);
            let Ok(mut chunks) = stream.read(true) else { break };
            let next = chunks.next(usize::MAX);
            // Acknowledgements leave with the next turn.
            let _transmits = chunks.finalize();
            match next {
                Ok(Some(chunk)) => self.received.extend(&chunk.bytes),
                Ok(None) => self.has_ended = true,
                Err(ReadError::Blocked) => break,
                Err(error) => panic!("{error}"),
            }
        }
        while self.sent < self.out.len() {
            match connection.send_stream(id).write(&self.out[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(WriteError::Blocked) => return,
                Err(error) => panic!("{error}"),
            }
        }
        if ends && !std::mem::replace(&mut self.is_finished, true) {
            match connection.send_stream(id).finish() {
                Ok(()) | Err(FinishError::ClosedStream) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A server that sends back what comes, until the test ends.
fn echo(stop: Arc<AtomicBool>) -> SocketAddr {
    let mut peer = Peer::new(Some(server_config()));
    let at = peer.socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut talks: BTreeMap<(ConnectionHandle, StreamId), Talk> = BTreeMap::new();
        while !stop.load(Ordering::Relaxed) {
            peer.turn();
            for (handle, event) in std::mem::take(&mut peer.events) {
                if let Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) = event
                    && let Some(id) = peer.connections.get_mut(&handle).unwrap().streams().accept(Dir::Bi)
                {
                    talks.insert((handle, id), Talk::default());
                }
            }
            for ((handle, id), talk) in &mut talks {
                let received = std::mem::take(&mut talk.received);
                talk.out.extend(received);
                let has_ended = talk.has_ended;
                talk.go_on(peer.connections.get_mut(handle).unwrap(), *id, has_ended);
            }
        }
    });
    at
}

/// Connects to `at` by the name of the certificate, sends a pattern and expects it back.
fn check(at: SocketAddr, seed: u64) {
    let mut peer = Peer::new(None);
    let (handle, connection) =
        peer.endpoint.connect(Instant::now(), client_config(), at, "localhost").unwrap();
    peer.connections.insert(handle, connection);
    let mut talk = Talk { out: Pattern::bytes(seed, LEN), ..Talk::default() };
    let mut id = None;
    while !talk.has_ended {
        peer.turn();
        for (_, event) in std::mem::take(&mut peer.events) {
            match event {
                Event::Connected => {
                    id = peer.connections.get_mut(&handle).unwrap().streams().open(Dir::Bi);
                }
                Event::ConnectionLost { reason } => panic!("lost: {reason}"),
                Event::HandshakeDataReady
                | Event::Stream(_)
                | Event::DatagramReceived
                | Event::DatagramsUnblocked => {}
            }
        }
        if let Some(id) = id {
            talk.go_on(peer.connections.get_mut(&handle).unwrap(), id, true);
        }
    }
    assert!(talk.received == talk.out, "{} bytes came back", talk.received.len());
}

fn datagrams(running: &Running) -> DatagramStatus {
    running.status().inbounds[0].datagrams.clone().unwrap_or_default()
}

/// Has `check` connect to `target` through a pair, three times.
fn through(quic: Quic, target: SocketAddr, check: impl Fn(SocketAddr, u64)) {
    let setup = Setup { quic_port: true, quic, half_close: HalfClose::Auto, ..Setup::default() };
    let streams = through_pair(setup.snell_in(), |server| setup.snell_out(server), target, check);
    // Raw datagrams make no connection to the server, and the stream is one.
    let is_raw = quic != Quic::Off;
    assert_eq!(streams == 0, is_raw, "{streams} streams");
}

/// The same through any pair. Gives the number of connections that the server has accepted.
fn through_pair(
    server: InboundProtocol,
    client: impl FnOnce(SocketAddr) -> OutboundProtocol,
    target: SocketAddr,
    check: impl Fn(SocketAddr, u64),
) -> u64 {
    let setup = Setup::default();
    let config = setup.config(server, vec![unused_addr()], OutboundProtocol::Direct);
    let server = crate::common::Proxy::start(&config);
    let client = client(server.addr);
    let tunnel = InboundProtocol::Tunnel { target: target.into(), transports: Transports::Udp };
    let near = crate::common::Proxy::start(&setup.config(tunnel, vec![unused_addr()], client));
    for seed in 0..3 {
        check(near.addr, seed);
    }
    let streams = server.running().status().inbounds[0].accepted;
    let flows = datagrams(server.running());
    assert_eq!((flows.begun, datagrams(near.running()).begun), (3, 3), "{flows:?}");
    near.end();
    server.end();
    streams
}

/// [`through`] to a plain echo over QUIC.
fn through_echo(quic: Quic) {
    let stop = Arc::new(AtomicBool::new(false));
    through(quic, echo(stop.clone()), check);
    stop.store(true, Ordering::Relaxed);
}

#[test]
fn quic_connects_and_moves_bytes_as_raw_datagrams() {
    within(100, || through_echo(Quic::On));
}

#[test]
fn quic_connects_and_moves_bytes_over_the_stream() {
    within(100, || through_echo(Quic::Off));
}

fn through_shadowsocks(method: &str, password: &str) {
    let key =
        || ShadowsocksKey::new(method.parse().unwrap(), Secret::new(password), KeyForm::Password).unwrap();
    let server = InboundProtocol::Shadowsocks(ShadowsocksServer {
        key: ShadowsocksServerKey::new(key()).unwrap(),
        transports: Transports::Both,
        cover: ServerCover::default(),
        replay: ReplayPolicy::Refuse,
    });
    let client = |server: SocketAddr| {
        OutboundProtocol::Shadowsocks(ShadowsocksClient {
            server: server.into(),
            key: key(),
            transports: Transports::Both,
            cover: ClientCover::default(),
        })
    };
    let stop = Arc::new(AtomicBool::new(false));
    let streams = through_pair(server, client, echo(stop.clone()), check);
    assert_eq!(streams, 0);
    stop.store(true, Ordering::Relaxed);
}

#[test]
fn quic_connects_and_moves_bytes_through_shadowsocks() {
    within(100, || through_shadowsocks("2022-blake3-aes-128-gcm", "AAECAwQFBgcICQoLDA0ODw=="));
    within(100, || through_shadowsocks("chacha20-ietf-poly1305", PSK));
}
