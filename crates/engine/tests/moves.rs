//! A port moves between one address and the wildcard while connections, flows and sessions are open over it, and while
//! others come.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "these tests are the world outside")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{Running, start};
use adit_formats::adit_toml;
use adit_model::Config;
use adit_net::listen::{ListenOptions, listen_many};
use adit_testkit::peer::echo;
use adit_testkit::{unused_addr, unused_port, wait_for};

const TIME: Duration = Duration::from_secs(120);
/// Longest time in which a client waits for an answer while a port moves: far less than a lost segment costs (1 s).
const PROMPT: Duration = Duration::from_millis(900);
const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAA==";

/// The kinds of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A port of its own for streams and datagrams.
    Tunnel,
    /// The same behind a server, which is what moves.
    Shadowsocks,
    /// The same for streams over KCP.
    Kcp,
}

/// A port that moves, and the address at which its clients find it.
struct Scene {
    kind: Kind,
    port: u16,
    /// The port before it, where that is another one.
    front: SocketAddr,
    echo: SocketAddr,
    cores: usize,
}

impl Scene {
    fn new(kind: Kind, cores: usize) -> Self {
        Self { kind, port: unused_port(), front: unused_addr(), echo: echo(), cores }
    }

    /// The configuration in which the port listens at `listen`, reached at `ip`.
    fn config(&self, listen: &str, ip: IpAddr) -> Config {
        let Self { kind, front, echo, port, cores } = self;
        let (listen, at) = (listen.replace('P', &port.to_string()), SocketAddr::new(ip, *port));
        let head = format!("cores = {cores}\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n");
        let direct = "[[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n";
        let carrier = "carrier = \"kcp\"\ncarrier-key = \"k\"\n";
        let (network, carrier) = match kind {
            Kind::Kcp => ("tcp", carrier),
            Kind::Tunnel | Kind::Shadowsocks => ("tcp-and-udp", ""),
        };
        let tunnel = |listen: &str, outbound: &str| {
            format!(
                "[[inbound]]\nname = \"tunnel\"\nprotocol = \"tunnel\"\nlisten = {listen}\ntarget = \"{echo}\"\n\
                 network = \"{network}\"\noutbound = \"{outbound}\"\n"
            )
        };
        let text = match kind {
            Kind::Tunnel => tunnel(&listen, "direct"),
            Kind::Shadowsocks | Kind::Kcp => {
                let secrets = format!("method = \"2022-blake3-aes-128-gcm\"\npassword = \"{KEY}\"\n");
                format!(
                    "{}[[inbound]]\nname = \"server\"\nprotocol = \"shadowsocks\"\nlisten = {listen}\n{secrets}\
                     network = \"{network}\"\noutbound = \"direct\"\nallow-private = true\n{carrier}\
                     [[outbound]]\nname = \"out\"\nprotocol = \"shadowsocks\"\nserver = \"{at}\"\n{secrets}\
                     network = \"{network}\"\n{carrier}",
                    tunnel(&format!("\"{front}\""), "out")
                )
            }
        };
        let text = head + &text + direct;
        adit_toml::parse("moves.toml", &text).unwrap_or_else(|found| panic!("{found}\n{text}")).config
    }

    /// The address at which clients come.
    fn entry(&self, ip: IpAddr) -> SocketAddr {
        if self.kind == Kind::Tunnel { SocketAddr::new(ip, self.port) } else { self.front }
    }

    /// Whether the port itself takes connections at `ip`.
    fn is_open(&self, ip: IpAddr) -> bool {
        let at = SocketAddr::new(ip, self.port);
        if self.kind == Kind::Kcp {
            // Nothing listens for streams; the address is free for datagrams if the port is closed there.
            return UdpSocket::bind(at).is_err();
        }
        TcpStream::connect(at).is_ok()
    }
}

fn stream_at(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(TIME)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn exchange(stream: &mut TcpStream, what: &str) {
    stream.write_all(b"hello").unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(&answer, b"hello", "{what}");
}

/// The port by which a flow's datagrams reach the target: the same as long as the flow is the same.
fn port_of(flow: &UdpSocket, what: &str) -> u16 {
    flow.send(b"?").unwrap();
    let mut answer = [0; 2];
    let len = flow.recv(&mut answer).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(len, 2, "{what}");
    u16::from_be_bytes(answer)
}

/// Clients that come all the time, one after the other.
struct Hammer {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU32>,
    thread: thread::JoinHandle<Duration>,
}

impl Hammer {
    fn start(at: SocketAddr) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (over, count) = (stop.clone(), served.clone());
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                exchange(&mut stream_at(at), "a client that comes meanwhile");
                longest = longest.max(began.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
            }
            longest
        });
        Self { stop, served, thread }
    }

    /// Waits until some more have been served.
    fn wait(&self) {
        let before = self.served.load(Ordering::Relaxed);
        wait_for("clients go on coming", || {
            self.thread.is_finished() || self.served.load(Ordering::Relaxed) > before + 5
        });
    }

    fn end(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// The same at a port that moves, beside others at one that stays: on a busy machine these wait as well.
struct Hammers {
    moving: Hammer,
    staying: Hammer,
    _running: Running,
}

impl Hammers {
    fn start(at: SocketAddr) -> Self {
        let scene = Scene::new(Kind::Tunnel, 1);
        let near = IpAddr::from(Ipv4Addr::LOCALHOST);
        let running = start(&scene.config("\"127.0.0.1:P\"", near)).unwrap();
        let staying = Hammer::start(scene.entry(near));
        Self { moving: Hammer::start(at), staying, _running: running }
    }

    fn wait(&self) {
        self.moving.wait();
    }

    fn end(self, what: &str) {
        let (moving, staying) = (self.moving.end(), self.staying.end());
        assert!(
            moving < PROMPT.max(3 * staying),
            "{what}: a client waited for {moving:?}, elsewhere {staying:?}"
        );
    }
}

fn has_v6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// The port goes through all addresses in which clients at 127.0.0.1 find it, and back.
fn each_move(kind: Kind, cores: usize) {
    let scene = Scene::new(kind, cores);
    let near = IpAddr::from(Ipv4Addr::LOCALHOST);
    let far = IpAddr::from([127, 0, 0, 2]);
    let mut steps = vec![
        ("\"0.0.0.0:P\"", true),
        ("\"127.0.0.1:P\"", false),
        ("[\"127.0.0.1:P\", \"127.0.0.2:P\"]", true),
        ("\"0.0.0.0:P\"", true),
        ("\"127.0.0.1:P\"", false),
    ];
    if has_v6() {
        steps.extend([
            ("\"[::]:P\"", true),
            ("\"0.0.0.0:P\"", true),
            ("[\"[::]:P\", \"0.0.0.0:P\"]", true),
            ("\"[::]:P\"", true),
            ("[\"127.0.0.1:P\", \"[::1]:P\"]", false),
            ("\"[::]:P\"", true),
            ("\"127.0.0.1:P\"", false),
        ]);
    }
    let running = start(&scene.config("\"127.0.0.1:P\"", near)).unwrap();
    let entry = scene.entry(near);
    let mut streams: Vec<TcpStream> = (0..8).map(|_| stream_at(entry)).collect();
    streams.iter_mut().for_each(|stream| exchange(stream, "at first"));
    let has_flows = kind != Kind::Kcp;
    let flow = UdpSocket::bind("127.0.0.1:0").unwrap();
    flow.connect(entry).unwrap();
    flow.set_read_timeout(Some(TIME)).unwrap();
    let mut port = if has_flows { port_of(&flow, "at first") } else { 0 };
    let hammer = Hammers::start(entry);
    for (listen, is_wide) in steps {
        let what = &format!("{kind:?}, {cores} loops, to {listen}");
        hammer.wait();
        let changes =
            running.apply(&scene.config(listen, near)).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        assert_eq!((changes.errors, changes.closed.len()), (Vec::new(), 0), "{what}");
        hammer.wait();
        streams.iter_mut().for_each(|stream| exchange(stream, what));
        if has_flows {
            let after = port_of(&flow, what);
            // The kernel may lead a flow to another loop.
            assert!(cores > 1 || after == port, "{what}: another flow");
            port = after;
        }
        assert_eq!(scene.is_open(far), is_wide, "{what}");
        let moved: Vec<SocketAddr> = running.addresses().into_iter().map(|(_, at)| at).collect();
        assert_eq!(
            moved.iter().any(|at| at.ip().is_unspecified())
                || moved.contains(&SocketAddr::new(far, scene.port)),
            is_wide,
            "{what}: {moved:?}"
        );
    }
    hammer.end(&format!("{kind:?}, {cores} loops"));
    running.end();
}

#[test]
fn a_port_for_streams_and_datagrams() {
    each_move(Kind::Tunnel, 1);
}

#[test]
fn a_port_for_streams_and_datagrams_on_several_loops() {
    each_move(Kind::Tunnel, 3);
}

#[test]
fn a_server() {
    each_move(Kind::Shadowsocks, 1);
}

#[test]
fn a_server_on_several_loops() {
    each_move(Kind::Shadowsocks, 3);
}

#[test]
fn a_carrier() {
    each_move(Kind::Kcp, 1);
}

/// The kernel leads a client of a wildcard to another loop than one of a single address, so sessions may have to begin
/// again.
#[test]
fn a_carrier_on_several_loops() {
    let scene = Scene::new(Kind::Kcp, 3);
    let near = IpAddr::from(Ipv4Addr::LOCALHOST);
    let running = start(&scene.config("\"127.0.0.1:P\"", near)).unwrap();
    exchange(&mut stream_at(scene.entry(near)), "at first");
    for (listen, is_wide) in [("\"0.0.0.0:P\"", true), ("\"127.0.0.1:P\"", false), ("\"0.0.0.0:P\"", true)] {
        running.apply(&scene.config(listen, near)).unwrap();
        assert_eq!(scene.is_open([127, 0, 0, 2].into()), is_wide, "{listen}");
        wait_for("a client is served", || {
            let mut stream = stream_at(scene.entry(near));
            let mut answer = [0; 5];
            stream.write_all(b"hello").is_ok() && stream.read_exact(&mut answer).is_ok()
        });
    }
    running.end();
}

#[test]
fn clients_of_ipv6() {
    if !has_v6() {
        return adit_testkit::skipped("IPv6 is off");
    }
    let scene = Scene::new(Kind::Tunnel, 2);
    let near = IpAddr::from(Ipv6Addr::LOCALHOST);
    let running = start(&scene.config("\"[::1]:P\"", near)).unwrap();
    let mut stream = stream_at(scene.entry(near));
    exchange(&mut stream, "at first");
    let hammer = Hammers::start(scene.entry(near));
    for (listen, is_wide) in [("\"[::]:P\"", true), ("\"[::1]:P\"", false), ("\"[::]:P\"", true)] {
        hammer.wait();
        running.apply(&scene.config(listen, near)).unwrap();
        hammer.wait();
        exchange(&mut stream, listen);
        assert_eq!(scene.is_open(Ipv4Addr::LOCALHOST.into()), is_wide, "{listen}");
    }
    hammer.end("IPv6");
    running.end();
}

/// The narrow address cannot be had: the wide one closes, connections go on, and the next try opens it.
fn narrow_fails(cores: usize, kind: Kind) {
    let scene = Scene::new(kind, cores);
    let near = IpAddr::from(Ipv4Addr::LOCALHOST);
    let running = start(&scene.config("\"0.0.0.0:P\"", near)).unwrap();
    let mut stream = stream_at(scene.entry(near));
    exchange(&mut stream, "at first");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = taken.local_addr().unwrap();
    let _datagrams = UdpSocket::bind(other).unwrap();
    // Another port is another listener, and the change is refused.
    running.apply(&scene.config(&format!("\"{other}\""), near)).unwrap_err();
    assert!(!scene.is_open([127, 0, 0, 2].into()), "the wide socket is open");
    if kind != Kind::Kcp {
        exchange(&mut stream, "another port");
    }
    running.apply(&scene.config("\"0.0.0.0:P\"", near)).unwrap();
    assert!(scene.is_open([127, 0, 0, 2].into()));
    for narrow in ["\"203.0.113.77:P\"".into(), format!("[\"127.0.0.1:P\", \"{other}\"]")] {
        let what = format!("{cores} loops, {kind:?}, {narrow}");
        let changes = running.apply(&scene.config(&narrow, near)).unwrap();
        assert_eq!(changes.errors.len(), 1, "{what}: {:?}", changes.errors);
        let error = &changes.errors[0];
        assert!(error.contains("cannot listen on") && error.contains("closed all the same"), "{error}");
        assert!(!scene.is_open([127, 0, 0, 2].into()), "{what}: the wide socket is open");
        // The address that could be had is open.
        assert_eq!(scene.is_open(near), narrow.contains("127.0.0.1:P"), "{what}");
        if kind != Kind::Kcp {
            exchange(&mut stream, &what);
        }
        // It is tried again, and goes back.
        let again = running.apply(&scene.config(&narrow, near)).unwrap();
        assert_eq!(again.errors.len(), 1, "{what}: {:?}", again.errors);
        running.apply(&scene.config("\"0.0.0.0:P\"", near)).unwrap();
        assert!(scene.is_open([127, 0, 0, 2].into()), "{what}");
    }
    let changes = running.apply(&scene.config("\"127.0.0.1:P\"", near)).unwrap();
    assert_eq!(changes.errors, Vec::<String>::new());
    assert!(!scene.is_open([127, 0, 0, 2].into()) && scene.is_open(near));
    if kind != Kind::Kcp {
        exchange(&mut stream, "at last");
    }
    running.end();
}

#[test]
fn a_narrow_address_that_cannot_be_had_closes_the_wide_one() {
    narrow_fails(1, Kind::Tunnel);
    narrow_fails(3, Kind::Tunnel);
    narrow_fails(1, Kind::Kcp);
}

/// Another program shares the port on the narrow address, as one may that runs as the same user and asks for it.
#[test]
fn another_socket_has_the_narrow_address() {
    let scene = Scene::new(Kind::Tunnel, 3);
    let near = IpAddr::from(Ipv4Addr::LOCALHOST);
    let running = start(&scene.config("\"0.0.0.0:P\"", near)).unwrap();
    let shared = ListenOptions { reuse_port: true, ..ListenOptions::default() };
    let _other = listen_many(SocketAddr::new(near, scene.port), &shared, 1).unwrap();
    let changes = running.apply(&scene.config("\"127.0.0.1:P\"", near)).unwrap();
    assert_eq!(changes.errors.len(), 1, "{:?}", changes.errors);
    assert!(!scene.is_open([127, 0, 0, 2].into()), "the wide socket is open");
    running.end();
}

/// An inbound of another name takes the port: its predecessor closes first, and does not come back wide.
#[test]
fn an_inbound_of_another_name() {
    let scene = Scene::new(Kind::Tunnel, 2);
    let near = IpAddr::from(Ipv4Addr::LOCALHOST);
    let renamed = |listen: &str| {
        let mut config = scene.config(listen, near);
        config.inbounds[0].name = "renamed".into();
        config
    };
    let running = start(&scene.config("\"0.0.0.0:P\"", near)).unwrap();
    running.apply(&renamed("\"127.0.0.1:P\"")).unwrap();
    exchange(&mut stream_at(scene.entry(near)), "narrow");
    assert!(!scene.is_open([127, 0, 0, 2].into()));
    running.apply(&scene.config("\"0.0.0.0:P\"", near)).unwrap();
    exchange(&mut stream_at(scene.entry([127, 0, 0, 2].into())), "wide");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("[\"127.0.0.1:P\", \"{}\"]", taken.local_addr().unwrap());
    running.apply(&renamed(&both)).unwrap_err();
    assert!(!scene.is_open([127, 0, 0, 2].into()), "the wide socket is open");
    drop(taken);
    running.apply(&renamed(&both)).unwrap();
    exchange(&mut stream_at(scene.entry(near)), "at last");
    running.end();
}

/// Another part of the change fails: the port is where it was, with all that is open over it.
#[test]
fn a_change_that_is_refused_moves_nothing() {
    let scene = Scene::new(Kind::Tunnel, 2);
    let near = IpAddr::from(Ipv4Addr::LOCALHOST);
    let running: Running = start(&scene.config("\"127.0.0.1:P\"", near)).unwrap();
    let mut stream = stream_at(scene.entry(near));
    exchange(&mut stream, "at first");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("[\"0.0.0.0:P\", \"{}\"]", taken.local_addr().unwrap());
    running.apply(&scene.config(&both, near)).unwrap_err();
    assert!(!scene.is_open([127, 0, 0, 2].into()));
    exchange(&mut stream, "the same connection");
    exchange(&mut stream_at(scene.entry(near)), "another connection");
    // Nobody else gets the port, which was shared meanwhile.
    assert!(TcpListener::bind(SocketAddr::new(near, scene.port)).is_err());
    running.end();
}

/// A question of DNS for a name below `test`.
fn question(id: u8, label: &str) -> Vec<u8> {
    let mut bytes = vec![0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, u8::try_from(label.len()).unwrap()];
    bytes.extend(label.as_bytes());
    bytes.extend(b"\x04test\x00\x00\x01\x00\x01");
    bytes
}

/// A port for questions moves; one that waits for its name server is answered over the socket that follows.
fn questions(cores: usize) {
    let upstream = UdpSocket::bind("127.0.0.1:0").unwrap();
    upstream.set_read_timeout(Some(TIME)).unwrap();
    let port = unused_port();
    let near = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let config = |ip: &str| {
        let text = format!(
            "cores = {cores}\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n[dns]\n[[dns.upstream]]\nserver = \"{}\"\n\
             [[dns.hosts]]\nname = \"host.test\"\naddress = \"192.0.2.7\"\n[[inbound]]\nname = \"questions\"\n\
             protocol = \"dns\"\nlisten = \"{ip}:{port}\"\n[[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n",
            upstream.local_addr().unwrap()
        );
        adit_toml::parse("moves.toml", &text).unwrap_or_else(|found| panic!("{found}\n{text}")).config
    };
    let running = start(&config("127.0.0.1")).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(near).unwrap();
    client.set_read_timeout(Some(TIME)).unwrap();
    let mut bytes = [0; 512];
    let ends_with = |len: usize, bytes: &[u8], ip: [u8; 4]| bytes[..len].ends_with(&ip);
    for (id, ip) in (1..).zip(["0.0.0.0", "127.0.0.1", "0.0.0.0", "127.0.0.1"]) {
        // This one waits.
        client.send(&question(id, &format!("late{id}"))).unwrap();
        let mut asked = [0; 512];
        let (len, from) = upstream.recv_from(&mut asked).unwrap();
        assert_eq!(running.apply(&config(ip)).unwrap().errors, Vec::<String>::new());
        let wide = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2), port)).is_err();
        assert_eq!(wide, ip == "0.0.0.0", "{ip}");
        client.send(&question(100, "host")).unwrap();
        let len_now = client.recv(&mut bytes).unwrap();
        assert!(bytes[1] == 100 && ends_with(len_now, &bytes, [192, 0, 2, 7]), "{ip}");
        let end = 12 + asked[12..len].iter().position(|byte| *byte == 0).unwrap() + 5;
        let mut answer = asked[..end].to_vec();
        answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4, 192, 0, 2, 9]);
        upstream.send_to(&answer, from).unwrap();
        let len = client.recv(&mut bytes).unwrap();
        assert!(bytes[1] == id && ends_with(len, &bytes, [192, 0, 2, 9]), "{ip}: {:?}", &bytes[..len]);
    }
    running.end();
}

#[test]
fn a_port_for_questions() {
    questions(1);
    questions(3);
}
