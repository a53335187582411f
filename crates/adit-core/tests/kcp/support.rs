//! Servers, clients and targets on loopback.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use adit_config::model::{
    Config, Dial, Inbound, InboundProtocol, Kcp, KcpClient, Limits, Outbound, OutboundProtocol, Secret,
    SocketOptions, Transports,
};
use adit_core::{KcpStatus, Running, start};
use adit_proto::kcp::crypt::Method;
use adit_proto::wire::Target;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// No read or write of a test takes longer.
pub(crate) const IO_LIMIT: Duration = Duration::from_secs(30);
pub(crate) const KEY: &str = "loopback key";

pub(crate) fn kcp(crypt: Method) -> Kcp {
    Kcp::new(Secret::new(KEY), crypt)
}

pub(crate) fn destination(addr: SocketAddr) -> Target {
    Target::new(addr.ip().to_string().as_bytes(), addr.port()).unwrap()
}

pub(crate) fn tunnel(target: SocketAddr) -> InboundProtocol {
    InboundProtocol::Tunnel { target: destination(target), transports: Transports::Tcp }
}

pub(crate) fn config(
    inbound: InboundProtocol,
    socket: SocketOptions,
    outbound: OutboundProtocol,
    dial: Dial,
) -> Config {
    Config {
        cores: Some(1),
        limits: Limits { drain: Duration::from_secs(5), ..Limits::default() },
        inbounds: vec![Inbound {
            name: "in".into(),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            socket,
            outbound: 0,
            protocol: inbound,
        }],
        outbounds: vec![Outbound { name: "out".into(), dial, protocol: outbound }],
        ..Config::default()
    }
}

/// Takes sessions and leads each stream to `target`.
pub(crate) fn server(kcp: &Kcp, target: SocketAddr) -> Running {
    server_at("127.0.0.1:0".parse().unwrap(), kcp, target)
}

/// The same at an address of the caller's.
pub(crate) fn server_at(listen: SocketAddr, kcp: &Kcp, target: SocketAddr) -> Running {
    server_with(kcp, target, |config| config.inbounds[0].listen = vec![listen])
}

/// The same with a configuration that differs.
pub(crate) fn server_with(kcp: &Kcp, target: SocketAddr, change: impl FnOnce(&mut Config)) -> Running {
    let socket = SocketOptions { carrier: Some(Box::new(kcp.clone())), ..SocketOptions::default() };
    let mut config = config(tunnel(target), socket, OutboundProtocol::Direct, Dial::default());
    change(&mut config);
    start(&config).unwrap()
}

/// Makes sessions with `server` and leads connections there.
pub(crate) fn client(client: KcpClient) -> Running {
    let nowhere = "127.0.0.1:9".parse().unwrap();
    let dial = Dial { carrier: Some(Box::new(client)), ..Dial::default() };
    start(&config(tunnel(nowhere), SocketOptions::default(), OutboundProtocol::Direct, dial)).unwrap()
}

pub(crate) fn addr(running: &Running) -> SocketAddr {
    running.addresses()[0].1
}

pub(crate) fn server_status(running: &Running) -> KcpStatus {
    running.status().inbounds[0].carrier.clone().unwrap()
}

pub(crate) fn client_status(running: &Running) -> KcpStatus {
    running.status().outbounds[0].carrier.clone().unwrap()
}

pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + IO_LIMIT;
    while !condition() {
        assert!(Instant::now() < until, "still not true: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(IO_LIMIT)).unwrap();
    stream.set_write_timeout(Some(IO_LIMIT)).unwrap();
    stream
}

/// A server for the proxies to reach: a thread per connection, until the process ends.
pub(crate) fn service(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    addr
}

/// Sends back what comes.
pub(crate) fn echo() -> SocketAddr {
    service(|mut stream| {
        let mut buffer = vec![0; 65536];
        loop {
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                return stream.shutdown(Shutdown::Write);
            }
            stream.write_all(&buffer[..read])?;
        }
    })
}

/// Bytes without a short period; the second half compresses well.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = |i: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if i < len / 2 { state.to_be_bytes()[0] } else { b'a' }
    };
    (0..len).map(&mut next).collect()
}

/// Sends `len` bytes through a port that leads to an echo and expects them back; with `ends` the end too.
pub(crate) fn round_trip(port: SocketAddr, len: usize, ends: bool) {
    let mut stream = connect(port);
    let data = pattern(len);
    let (mut writer, sent) = (stream.try_clone().unwrap(), data.clone());
    let write = thread::spawn(move || {
        writer.write_all(&sent)?;
        if ends { writer.shutdown(Shutdown::Write) } else { Ok(()) }
    });
    let mut back = vec![0; len];
    stream.read_exact(&mut back).unwrap_or_else(|error| panic!("{len} bytes through {port}: {error}"));
    write.join().unwrap().unwrap();
    assert!(back == data, "{len} bytes through {port} came back changed");
    if ends {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "an orderly end");
    }
}

/// What is logged from a moment on, by all tests together.
pub(crate) struct Lines(usize);

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Lines {
    pub(crate) fn from_here() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Recorder).unwrap());
        Self(LINES.lock().unwrap().len())
    }

    /// Waits until one holds `part`.
    pub(crate) fn wait_for(&self, part: &str) {
        wait_for(part, || LINES.lock().unwrap()[self.0..].iter().any(|line| line.contains(part)));
    }
}

/// Keeps the lines from level info up.
struct Recorder;

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        LINES.lock().unwrap().push(message.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Another program, killed when dropped.
pub(crate) struct Peer(Child);

impl Peer {
    /// Starts `command` and waits until it listens on `addr`, as the table of its protocol tells.
    pub(crate) fn start(command: &mut Command, addr: SocketAddr, table: &str) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let peer = Self(child);
        wait_for(&format!("{command:?} listens"), || listens(addr, table));
        peer
    }
}

fn listens(addr: SocketAddr, table: &str) -> bool {
    let port = format!(":{:04X}", addr.port());
    ["", "6"].iter().any(|family| {
        let text = std::fs::read_to_string(format!("/proc/net/{table}{family}")).unwrap_or_default();
        text.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let (local, _, state) = (fields.next(), fields.next(), fields.next());
            local.is_some_and(|local| local.ends_with(&port)) && (table == "udp" || state == Some("0A"))
        })
    })
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Whether a program is there; says so if not.
pub(crate) fn has(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|dir| dir.join(program).is_file());
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    found
}
