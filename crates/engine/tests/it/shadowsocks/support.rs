//! Servers, clients and targets on loopback.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{Running, StartError, start};
use adit_model::{
    ClientCover, Config, Inbound, InboundProtocol, KeyForm, Limits, Outbound, OutboundProtocol, ReplayPolicy,
    Secret, ServerCover, ShadowsocksClient, ShadowsocksKey, ShadowsocksServer, ShadowsocksServerKey,
    Transports,
};
use adit_proto::shadowsocks::{Generation, ShadowsocksMethod};
use adit_proto::wire::Target;
pub(crate) use adit_testkit::peer::{Peer, has};
pub(crate) use adit_testkit::{Lines, wait_for};

pub(crate) use crate::common::{IO_LIMIT, addrs, connect, datagram_echo, status, wait_refused};
use crate::common::{inbound, outbound};

pub(crate) fn method(name: &str) -> ShadowsocksMethod {
    name.parse().unwrap()
}

/// A password that fits `method`: for 2022, a key made of `seed`.
pub(crate) fn password(method: ShadowsocksMethod, seed: u8) -> String {
    use base64::Engine as _;

    if method.generation() == Generation::Aead2022 {
        return base64::engine::general_purpose::STANDARD.encode(vec![seed; method.key_len()]);
    }
    format!("loopback password {seed}")
}

pub(crate) fn key(method: ShadowsocksMethod, password: &str) -> ShadowsocksKey {
    ShadowsocksKey::new(method, Secret::new(password), KeyForm::Password).unwrap()
}

pub(crate) fn server(method: ShadowsocksMethod, password: &str) -> ShadowsocksServer {
    ShadowsocksServer {
        key: ShadowsocksServerKey::new(key(method, password)).unwrap(),
        transports: Transports::Tcp,
        cover: ServerCover::default(),
        replay: ReplayPolicy::Refuse,
    }
}

pub(crate) fn client(server: SocketAddr, method: ShadowsocksMethod, password: &str) -> ShadowsocksClient {
    ShadowsocksClient {
        server: destination(server),
        key: key(method, password),
        transports: Transports::Tcp,
        cover: ClientCover::default(),
    }
}

pub(crate) fn destination(addr: SocketAddr) -> Target {
    Target::new(addr.ip().to_string().as_bytes(), addr.port()).unwrap()
}

fn config(inbounds: Vec<Inbound>, outbounds: Vec<Outbound>) -> Config {
    let limits = Limits {
        drain: Duration::from_millis(300),
        unauthenticated_per_source: Some(4096),
        ..Limits::default()
    };
    Config { cores: Some(1), limits, inbounds, outbounds, ..Config::default() }
}

/// Servers in one process.
pub(crate) fn run_servers(servers: impl IntoIterator<Item = ShadowsocksServer>) -> Running {
    let servers = servers.into_iter().enumerate();
    let inbounds = servers
        .map(|(i, s)| inbound(&format!("server{i}"), "direct", InboundProtocol::Shadowsocks(s)))
        .collect();
    start(&config(inbounds, vec![outbound("direct", OutboundProtocol::Direct)])).unwrap()
}

/// A server at `addr`.
pub(crate) fn run_server_at(addr: SocketAddr, server: ShadowsocksServer) -> Running {
    let inbound =
        Inbound { listen: vec![addr], ..inbound("server", "direct", InboundProtocol::Shadowsocks(server)) };
    start(&config(vec![inbound], vec![outbound("direct", OutboundProtocol::Direct)])).unwrap()
}

/// Clients in one process, each behind a port from which all connections go to `target`.
pub(crate) fn run_clients(
    clients: impl IntoIterator<Item = ShadowsocksClient>,
    target: SocketAddr,
) -> Running {
    try_run_clients(clients, target).unwrap()
}

pub(crate) fn try_run_clients(
    clients: impl IntoIterator<Item = ShadowsocksClient>,
    target: SocketAddr,
) -> Result<Running, StartError> {
    let (mut inbounds, mut outbounds) = (Vec::new(), Vec::new());
    for (i, client) in clients.into_iter().enumerate() {
        let target = destination(target);
        inbounds.push(inbound(
            &format!("tunnel{i}"),
            &format!("client{i}"),
            InboundProtocol::Tunnel { target, transports: Transports::Tcp },
        ));
        outbounds.push(outbound(&format!("client{i}"), OutboundProtocol::Shadowsocks(client)));
    }
    start(&config(inbounds, outbounds))
}

/// A client behind a port from which all datagrams go to `target`.
pub(crate) fn run_datagram_clients(client: ShadowsocksClient, target: SocketAddr) -> Running {
    run_tunnel(client, target, Transports::Udp)
}

/// A client behind a port from which what `transports` says goes to `target`.
pub(crate) fn run_tunnel(
    mut client: ShadowsocksClient,
    target: SocketAddr,
    transports: Transports,
) -> Running {
    client.transports = Transports::Both;
    let tunnel = InboundProtocol::Tunnel { target: destination(target), transports };
    let outbound = outbound("client", OutboundProtocol::Shadowsocks(client));
    start(&config(vec![inbound("tunnel", "client", tunnel)], vec![outbound])).unwrap()
}

/// Any port of loopback.
pub(crate) const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Datagrams through a port come back; each is asked for again until it does.
pub(crate) fn datagrams_come_back(port: SocketAddr) {
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    for len in [1, 100, 1000] {
        let (sent, until) = (vec![7; len], Instant::now() + IO_LIMIT);
        let mut bytes = [0; 2048];
        loop {
            socket.send_to(&sent, port).unwrap();
            if socket.recv(&mut bytes).is_ok_and(|got| bytes[..got] == *sent) {
                break;
            }
            assert!(Instant::now() < until, "{len} bytes through {port}");
        }
    }
}

/// A server for the proxies to reach: a thread per connection, until the process ends.
pub(crate) struct Service {
    pub(crate) addr: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Service {
    fn new(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (accepted, serve) = (Arc::new(AtomicUsize::new(0)), Arc::new(serve));
        let counter = accepted.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counter.fetch_add(1, Ordering::Relaxed);
                let serve = serve.clone();
                thread::spawn(move || serve(stream));
            }
        });
        Self { addr, accepted }
    }

    /// Sends back what comes.
    pub(crate) fn echo() -> Self {
        Self::new(|stream| {
            crate::common::echo(stream);
            Ok(())
        })
    }

    /// Says how much has come when it has ended.
    pub(crate) fn count() -> Self {
        Self::new(|mut stream| {
            let mut all = Vec::new();
            stream.read_to_end(&mut all)?;
            stream.write_all(format!("{} bytes", all.len()).as_bytes())
        })
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// Bytes without a short period.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// Sends `len` bytes through a port that leads to an echo, ends, and expects them back with the end.
pub(crate) fn round_trip(port: SocketAddr, len: usize) {
    if let Err(error) = try_round_trip(port, len) {
        panic!("{len} bytes through {port}: {error}");
    }
}

pub(crate) fn try_round_trip(port: SocketAddr, len: usize) -> io::Result<()> {
    let stream = connect(port);
    let data = pattern(len);
    let (mut writer, sent) = (stream.try_clone()?, data.clone());
    let write = thread::spawn(move || {
        writer.write_all(&sent)?;
        writer.shutdown(Shutdown::Write)
    });
    let mut back = Vec::new();
    let read = (&stream).read_to_end(&mut back);
    write.join().unwrap()?;
    read?;
    if back == data { Ok(()) } else { Err(io::Error::other(format!("{} bytes came back", back.len()))) }
}

/// The same with the end last: for peers that close both directions when one has ended.
pub(crate) fn round_trip_without_end(port: SocketAddr, len: usize) {
    let mut stream = connect(port);
    let data = pattern(len);
    let (mut writer, sent) = (stream.try_clone().unwrap(), data.clone());
    let write = thread::spawn(move || writer.write_all(&sent));
    let mut back = vec![0; len];
    stream.read_exact(&mut back).unwrap_or_else(|error| panic!("{len} bytes through {port}: {error}"));
    write.join().unwrap().unwrap();
    assert!(back == data, "{len} bytes through {port} came back changed");
}
