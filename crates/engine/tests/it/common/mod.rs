//! Proxies, targets and clients on loopback, for the tests of this crate.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use adit_engine::{InboundStatus, OutboundStatus, Running, start};
use adit_model::{
    Config, Dial, HalfClose, Inbound, InboundProtocol, Limits, Local, LocalProtocols, ObfsClient, ObfsServer,
    Outbound, OutboundProtocol, Quic, Reply, Secret, SnellClient, SnellServer, SnellVersion, SnellVersions,
    SocketOptions,
};
use adit_proto::wire::{Host, Target as Destination};
pub(crate) use adit_testkit::wait_for;
use adit_testkit::{has_ipv6, unused_addr};

pub(crate) const PSK: &str = "loopback-psk-0123456789";
/// No read or write of a test's client or target takes longer.
pub(crate) const IO_LIMIT: Duration = Duration::from_secs(120);

/// Runs a test on a thread of its own and fails it when it hangs: when it takes more than five times the `seconds` that are
/// plenty for it on an idle machine.
pub(crate) fn within(seconds: u64, test: impl FnOnce() + Send + 'static) {
    adit_testkit::descriptors(0);
    let (done, over) = channel::<()>();
    let name = thread::current().name().unwrap_or_default().to_owned();
    let run = move || {
        // Dropped by a panic as well.
        let _done = done;
        test();
    };
    let thread = thread::Builder::new().name(name).spawn(run).unwrap();
    match over.recv_timeout(Duration::from_secs(5 * seconds)) {
        Err(RecvTimeoutError::Timeout) => panic!("the test still runs after {} s", 5 * seconds),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Bytes that depend on a seed and their place.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    seed: u64,
    at: u64,
}

impl Pattern {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, at: 0 }
    }

    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let word = mix(self.seed ^ (self.at / 8)).to_le_bytes();
            let skip = usize::try_from(self.at % 8).unwrap();
            let len = (8 - skip).min(out.len() - done);
            out[done..done + len].copy_from_slice(&word[skip..skip + len]);
            done += len;
            self.at += len as u64;
        }
    }

    pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        Self::new(seed).fill(&mut out);
        out
    }
}

/// A number that looks random (SplitMix64's finish).
pub(crate) fn mix(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// Sends `len` bytes of a pattern.
pub(crate) fn send_pattern(mut stream: &TcpStream, seed: u64, len: usize) -> std::io::Result<()> {
    let mut pattern = Pattern::new(seed);
    let mut block = vec![0; 64 * 1024];
    let mut left = len;
    while left > 0 {
        let now = left.min(block.len());
        pattern.fill(&mut block[..now]);
        stream.write_all(&block[..now])?;
        left -= now;
    }
    Ok(())
}

/// Receives `len` bytes of a pattern.
pub(crate) fn expect_pattern(mut stream: &TcpStream, seed: u64, len: usize) {
    let mut pattern = Pattern::new(seed);
    let mut block = vec![0; 64 * 1024];
    let mut wanted = block.clone();
    let mut left = len;
    while left > 0 {
        let now = left.min(block.len());
        let received = stream.read(&mut block[..now]).unwrap_or_else(|e| panic!("{left} of {len} left: {e}"));
        assert_ne!(received, 0, "ended with {left} of {len} bytes left");
        pattern.fill(&mut wanted[..received]);
        assert!(block[..received] == wanted[..received], "wrong bytes {left} before the end of {len}");
        left -= received;
    }
}

/// Expects an orderly end of the stream.
pub(crate) fn expect_end(mut stream: &TcpStream) {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("an orderly end");
    assert!(rest.is_empty(), "{} bytes before the end", rest.len());
}

/// Expects a reset, after any bytes.
pub(crate) fn expect_reset(mut stream: &TcpStream) {
    let mut block = [0; 4096];
    loop {
        match stream.read(&mut block) {
            Ok(0) => panic!("an orderly end in place of a reset"),
            Ok(_) => {}
            Err(error) => return assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }
}

/// Closes with a reset: at least one byte must be on its way to `stream`, which stays unread.
pub(crate) fn reset(stream: TcpStream) {
    assert_eq!(stream.peek(&mut [0]).unwrap(), 1, "a byte to leave unread");
    drop(stream);
}

pub(crate) fn tune(stream: &TcpStream) {
    stream.set_read_timeout(Some(IO_LIMIT)).unwrap();
    stream.set_write_timeout(Some(IO_LIMIT)).unwrap();
    stream.set_nodelay(true).unwrap();
}

pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    // Without a limit: the call that has one reports a reset that comes right behind the handshake.
    let stream = TcpStream::connect(addr).unwrap();
    tune(&stream);
    stream
}

/// The addresses that the inbounds listen on, in their order.
pub(crate) fn addrs(running: &Running) -> Vec<SocketAddr> {
    running.addresses().into_iter().map(|(_, addr)| addr).collect()
}

/// The status of the first inbound.
pub(crate) fn status(running: &Running) -> InboundStatus {
    running.status().inbounds.remove(0)
}

/// Waits until the first inbound has counted a cause of refusal so often.
pub(crate) fn wait_refused(running: &Running, cause: &str, count: u64) {
    wait_for(&format!("{count} refused: {cause}"), || status(running).refused.get(cause) == Some(&count));
}

/// A server for the proxies to reach: a thread per connection. It stops listening when dropped.
pub(crate) struct Target {
    pub(crate) addr: SocketAddr,
    accepted: Arc<AtomicUsize>,
    panics: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

struct CountPanic(Arc<AtomicUsize>);

impl Drop for CountPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Target {
    pub(crate) fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        Self::on("127.0.0.1", serve)
    }

    pub(crate) fn on(ip: &str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let (accepted, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, stopped, serve) = (accepted.clone(), stop.clone(), Arc::new(serve));
        let panics = Arc::new(AtomicUsize::new(0));
        let panicked = panics.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                tune(&stream);
                counter.fetch_add(1, Ordering::Relaxed);
                let (serve, panicked) = (serve.clone(), CountPanic(panicked.clone()));
                thread::spawn(move || {
                    let _panicked = panicked;
                    serve(stream);
                });
            }
        });
        Self { addr, accepted, panics, stop }
    }

    /// Sends back what comes, until the end.
    pub(crate) fn echo() -> Self {
        Self::new(echo)
    }

    /// Connections on which the target did not find what it expects.
    pub(crate) fn panics(&self) -> usize {
        self.panics.load(Ordering::Relaxed)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.addr));
    }
}

pub(crate) fn echo(mut stream: TcpStream) {
    let mut block = [0; 16 * 1024];
    while let Ok(len @ 1..) = stream.read(&mut block) {
        if stream.write_all(&block[..len]).is_err() {
            return;
        }
    }
}

/// Neither a byte nor an end has come.
pub(crate) fn assert_silent(name: &str, mut stream: &TcpStream) {
    stream.set_nonblocking(true).unwrap();
    let read = stream.read(&mut [0; 64]).map_err(|error| error.kind());
    assert_eq!(read, Err(std::io::ErrorKind::WouldBlock), "{name}");
    stream.set_nonblocking(false).unwrap();
}

/// The same of all of these connections.
pub(crate) fn assert_all_silent(streams: &[(String, TcpStream)]) {
    streams.iter().for_each(|(name, stream)| assert_silent(name, stream));
}

/// Ends all of these connections and expects each to be closed in order.
pub(crate) fn assert_closed_after_fin(streams: Vec<(String, TcpStream)>) {
    for (name, mut stream) in streams {
        stream.shutdown(Shutdown::Write).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let read = stream.read(&mut [0; 64]).map_err(|error| error.kind());
        assert_eq!(read, Ok(0), "{name}");
    }
}

/// Bulk from a target, and to one that has compared all of it.
pub(crate) fn bulk_both_ways(tunnel: impl Fn(SocketAddr) -> TcpStream, len: usize) {
    let source = Target::new(move |stream| send_pattern(&stream, 7, len).unwrap());
    let stream = tunnel(source.addr);
    expect_pattern(&stream, 7, len);
    expect_end(&stream);
    drop(stream);
    let sink = Target::new(move |mut stream| {
        expect_pattern(&stream, 8, len);
        stream.write_all(b"whole").unwrap();
    });
    let mut stream = tunnel(sink.addr);
    send_pattern(&stream, 8, len).unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((&answer, sink.panics()), (b"whole", 0));
}

/// A port of 127.0.0.1 for streams and datagrams.
pub(crate) fn bind_both() -> (TcpListener, UdpSocket) {
    // The number that TCP gives may be another process's for UDP.
    let bound = (0..1000).find_map(|_| {
        let listener = TcpListener::bind(loopback()).unwrap();
        let socket = UdpSocket::bind(listener.local_addr().unwrap()).ok()?;
        Some((listener, socket))
    });
    bound.expect("a port that is free for both")
}

/// Sends each datagram back, until the process ends.
pub(crate) fn echo_datagrams(socket: UdpSocket) {
    thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&bytes[..len], from).ok();
        }
    });
}

/// The same at this address.
pub(crate) fn datagram_echo(at: SocketAddr) -> SocketAddr {
    let socket = UdpSocket::bind(at).unwrap();
    let at = socket.local_addr().unwrap();
    echo_datagrams(socket);
    at
}

/// Sends back what comes, over streams and datagrams, until the process ends.
pub(crate) fn echo_both() -> SocketAddr {
    let (listener, socket) = bind_both();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo(stream));
        }
    });
    echo_datagrams(socket);
    at
}

/// An inbound at an address that no other test knows: late packets for one that the system chose reach the next to have it.
pub(crate) fn inbound(name: &str, outbound: &str, protocol: InboundProtocol) -> Inbound {
    Inbound {
        name: name.into(),
        listen: vec![unused_addr()],
        socket: SocketOptions::default(),
        outbound: outbound.into(),
        allow_private: true,
        protocol,
    }
}

pub(crate) fn outbound(name: &str, protocol: OutboundProtocol) -> Outbound {
    Outbound { name: name.into(), dial: Dial::default(), protocol }
}

/// The obfs that a client uses and a server expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obfs {
    Off,
    Http,
    Tls,
}

/// Configuration of a pair of proxies.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) psk: &'static str,
    /// Versions that the server takes.
    pub(crate) versions: SnellVersions,
    /// Version that the client speaks.
    pub(crate) version: SnellVersion,
    pub(crate) obfs: Obfs,
    pub(crate) reuse: bool,
    pub(crate) half_close: HalfClose,
    pub(crate) reply: Reply,
    pub(crate) cores: usize,
    pub(crate) udp: bool,
    /// Whether the server takes QUIC on its UDP port, and what the client does with it.
    pub(crate) quic_port: bool,
    pub(crate) quic: Quic,
    pub(crate) limits: Limits,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            psk: PSK,
            versions: SnellVersions::default(),
            version: SnellVersion::default(),
            obfs: Obfs::Off,
            reuse: true,
            half_close: HalfClose::Late,
            reply: Reply::Early,
            cores: 1,
            udp: true,
            quic_port: false,
            quic: Quic::Off,
            limits: Limits {
                drain: Duration::from_millis(200),
                unauthenticated_per_source: Some(4096),
                ..Limits::default()
            },
        }
    }
}

impl Setup {
    pub(crate) fn config(
        &self,
        inbound: InboundProtocol,
        listen: Vec<SocketAddr>,
        outbound: OutboundProtocol,
    ) -> Config {
        Config {
            cores: Some(self.cores),
            limits: self.limits.clone(),
            inbounds: vec![Inbound { listen, ..self::inbound("in", "out", inbound) }],
            outbounds: vec![self::outbound("out", outbound)],
            ..Config::default()
        }
    }

    /// The Snell server of the pair.
    pub(crate) fn snell_in(&self) -> InboundProtocol {
        let obfs = match self.obfs {
            Obfs::Off => ObfsServer::Off,
            Obfs::Http => ObfsServer::Http,
            Obfs::Tls => ObfsServer::Tls,
        };
        InboundProtocol::Snell(SnellServer {
            psk: Secret::new(self.psk).into(),
            versions: self.versions,
            obfs,
            udp: self.udp,
            quic: self.quic_port,
        })
    }

    /// A Snell server on both loopback addresses, as far as they exist.
    pub(crate) fn server(&self) -> Proxy {
        let mut listen = vec![unused_addr()];
        if has_ipv6() {
            listen.push("[::1]:0".parse().unwrap());
        }
        Proxy::start(&self.config(self.snell_in(), listen, OutboundProtocol::Direct))
    }

    pub(crate) fn snell_out(&self, server: SocketAddr) -> OutboundProtocol {
        let obfs = match self.obfs {
            Obfs::Off => ObfsClient::Off,
            Obfs::Http => ObfsClient::Http("www.example.com".into()),
            Obfs::Tls => ObfsClient::Tls("www.example.com".into()),
        };
        OutboundProtocol::Snell(SnellClient {
            server: Destination { host: Host::Ip(server.ip()), port: server.port() },
            psk: Secret::new(self.psk),
            client_id: None,
            version: self.version,
            obfs,
            reuse: self.reuse,
            half_close: self.half_close,
            udp: self.udp,
            quic: self.quic,
        })
    }

    /// A local port that leads to a Snell server.
    pub(crate) fn client(&self, server: SocketAddr) -> Proxy {
        Proxy::start(&self.config(self.local(), vec![unused_addr()], self.snell_out(server)))
    }

    /// A local port that leads straight to targets.
    pub(crate) fn direct(&self) -> Proxy {
        Proxy::start(&self.config(self.local(), vec![unused_addr()], OutboundProtocol::Direct))
    }

    /// A Snell server that passes everything on to another one.
    pub(crate) fn chained(&self, server: SocketAddr) -> Proxy {
        let snell = InboundProtocol::Snell(SnellServer {
            psk: Secret::new(self.psk).into(),
            versions: self.versions,
            obfs: ObfsServer::Off,
            udp: self.udp,
            quic: false,
        });
        Proxy::start(&self.config(snell, vec![unused_addr()], self.snell_out(server)))
    }

    pub(crate) fn local(&self) -> InboundProtocol {
        let accepts = LocalProtocols::Mixed;
        InboundProtocol::Local(Local { accepts, users: Vec::new(), reply: self.reply, open_to: Vec::new() })
    }

    pub(crate) fn pair(&self) -> Pair {
        let server = self.server();
        let client = self.client(server.addr);
        Pair { server, client }
    }

    /// A pair that has carried four exchanges of 305,101 bytes each way in all, over one connection if it reuses them.
    pub(crate) fn pair_after_exchanges(&self) -> Pair {
        let (pair, target) = (self.pair(), Target::echo());
        for (round, len) in [1, 100, 5000, 300_000].into_iter().enumerate() {
            let seed = round as u64;
            exchange(&pair.client.tunnel(target.addr), (seed, len), (seed, len));
        }
        pair.wait_until_idle();
        let out = pair.client.out();
        let expected = if self.reuse { (1, 3) } else { (4, 0) };
        assert_eq!((out.dialled, out.reused), expected, "{self:?}");
        pair
    }
}

/// One configuration that runs; it ends when dropped.
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    running: Option<Running>,
}

impl Proxy {
    pub(crate) fn start(config: &Config) -> Self {
        let running = start(config).unwrap();
        let addr = running.addresses()[0].1;
        Self { addr, running: Some(running) }
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(crate) fn out(&self) -> OutboundStatus {
        self.running().status().outbounds.remove(0)
    }

    pub(crate) fn open(&self) -> i64 {
        self.running().status().inbounds[0].open
    }

    pub(crate) fn refused(&self, cause: &str) -> u64 {
        self.running().status().inbounds[0].refused.get(cause).copied().unwrap_or(0)
    }

    /// Opens a tunnel through this local port.
    pub(crate) fn tunnel(&self, target: SocketAddr) -> TcpStream {
        self.tunnel_to(&target.ip().to_string(), target.port())
    }

    pub(crate) fn tunnel_to(&self, host: &str, port: u16) -> TcpStream {
        let (stream, code) = socks5(self.addr, host, port);
        assert_eq!(code, 0, "SOCKS5 reply");
        stream
    }

    /// Lets open connections finish.
    pub(crate) fn drain(mut self) {
        self.running.take().unwrap().drain();
    }

    /// Ends the event loops at once.
    pub(crate) fn end(mut self) {
        self.running.take().unwrap().end();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.end();
        }
    }
}

/// A client and its server.
pub(crate) struct Pair {
    pub(crate) server: Proxy,
    pub(crate) client: Proxy,
}

impl Pair {
    /// Waits until every connection has ended on both sides; kept ones may stay with the server.
    pub(crate) fn wait_until_idle(&self) {
        wait_for("no open local connection", || self.client.open() == 0);
        wait_for("the server serves kept connections only", || self.server.open() <= self.client.out().idle);
    }
}

/// A SOCKS5 request; the connection and the reply's code.
pub(crate) fn socks5(proxy: SocketAddr, host: &str, port: u16) -> (TcpStream, u8) {
    let mut stream = connect(proxy);
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer[..2]).unwrap();
    assert_eq!(answer[..2], [5, 0]);
    let mut request = vec![5, 1, 0];
    match host.parse() {
        Ok(IpAddr::V4(ip)) => {
            request.push(1);
            request.extend(ip.octets());
        }
        Ok(IpAddr::V6(ip)) => {
            request.push(4);
            request.extend(ip.octets());
        }
        Err(_) => {
            request.extend([3, u8::try_from(host.len()).unwrap()]);
            request.extend(host.as_bytes());
        }
    }
    request.extend(port.to_be_bytes());
    stream.write_all(&request).unwrap();
    stream.read_exact(&mut answer[..4]).unwrap();
    let rest = if answer[3] == 4 { 18 } else { 6 };
    stream.read_exact(&mut vec![0; rest]).unwrap();
    (stream, answer[1])
}

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Both directions at once: sends a pattern and checks another one.
pub(crate) fn exchange(stream: &TcpStream, send: (u64, usize), receive: (u64, usize)) {
    thread::scope(|scope| {
        scope.spawn(|| {
            send_pattern(stream, send.0, send.1).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        expect_pattern(stream, receive.0, receive.1);
        expect_end(stream);
    });
}
