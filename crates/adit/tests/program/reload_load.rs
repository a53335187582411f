//! Flows that are held open and under load while users, files and the process change.

#![expect(clippy::print_stdout, reason = "a measurement prints its figures")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Dir, PATIENCE, Running, echo, round_trip, socks5};
use crate::upgrade::Successors;

const KEY: &str = "the very own key of ann";

/// The size of a run.
struct Size {
    tcp: usize,
    udp: usize,
    changes: usize,
    reloads: usize,
    upgrades: usize,
    requests: usize,
}

struct Server {
    dir: Dir,
    local: SocketAddr,
    plain: SocketAddr,
    running: Running,
    successors: Mutex<Successors>,
}

impl Server {
    fn start() -> Self {
        let (dir, listen) = (Dir::new(), adit_testkit::unused_addr());
        let (local, plain) = (adit_testkit::unused_addr(), adit_testkit::unused_addr());
        dir.file(
            "adit.toml",
            &format!(
                "state = \"users.state\"\n[admin]\nsocket = \"adit.sock\"\n\
                 [[inbound]]\nname = \"in\"\nprotocol = \"snell\"\nlisten = \"{listen}\"\noutbound = \"direct\"\n\
                 allow-private = true\nusers = [\n  {{ name = \"ann\", password = \"{KEY}\" }},\n]\n\
                 [[inbound]]\nname = \"local\"\nprotocol = \"mixed\"\nlisten = \"{local}\"\noutbound = \"home\"\n\
                 [[inbound]]\nname = \"plain\"\nprotocol = \"mixed\"\nlisten = \"{plain}\"\noutbound = \"direct\"\n\
                 [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n\
                 [[outbound]]\nname = \"home\"\nprotocol = \"snell\"\nserver = \"{listen}\"\npsk = \"{KEY}\"\n"
            ),
        );
        let running = Running::start(dir.adit(&["run", "-v", "-c", "adit.toml"]));
        running.line("inbound=plain");
        Self { dir, local, plain, running, successors: Mutex::default() }
    }

    fn adit(&self, args: &[&str]) {
        let (status, _, err) = self.dir.run(&[args, &["-c", "adit.toml"]].concat());
        assert_eq!(status, 0, "{args:?}: {err}");
    }

    /// Another process takes over; this one and those before it finish their flows.
    fn upgrade(&self) {
        let (status, out, err) = self.dir.run(&["upgrade", "-c", "adit.toml", "--drain", "1h"]);
        assert_eq!(status, 0, "{err}\n{}", self.running.log());
        self.successors.lock().unwrap().note(&out);
    }

    /// Another outbound comes or goes, and another rule with it.
    fn reload(&self, turn: usize) {
        let path = self.dir.path().join("adit.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let mark = "# more\n";
        let base = text.split(mark).next().unwrap();
        let more = format!("{base}{mark}[[outbound]]\nname = \"more-{turn}\"\nprotocol = \"reject\"\n");
        std::fs::write(&path, more).unwrap();
        self.adit(&["reload"]);
    }

    fn bytes_of_ann(&self) -> (u64, u64) {
        let (_, out, _) = self.dir.run(&["status", "--json", "--socket", "adit.sock"]);
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        let ann = &json["inbounds"][0]["users"][0];
        assert_eq!(ann["name"], "ann");
        (ann["up_bytes"].as_u64().unwrap(), ann["down_bytes"].as_u64().unwrap())
    }
}

/// Load over all flows until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    /// A few threads send over all connections in turn; every byte comes back.
    fn start(tcp: Vec<TcpStream>, udp: Vec<Flow>) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (mut threads, mut tcp, mut udp) = (Vec::new(), tcp, udp);
        for part in 0..4 {
            let mut streams = tcp.split_off(tcp.len() - tcp.len() / (4 - part));
            let mut flows = udp.split_off(udp.len() - udp.len() / (4 - part));
            let (stop, sent) = (stop.clone(), sent.clone());
            threads.push(thread::spawn(move || {
                let block = [7; 1000];
                let mut back = [0; 1000];
                while !stop.load(Ordering::Relaxed) {
                    for stream in &mut streams {
                        stream.write_all(&block).unwrap();
                        let got = stream.read_exact(&mut back);
                        got.unwrap_or_else(|error| panic!("{error} on {:?}", stream.local_addr()));
                        assert!(back == block, "other bytes came back");
                        sent.fetch_add(1000, Ordering::Relaxed);
                    }
                    flows.iter_mut().for_each(Flow::exchange);
                    thread::sleep(Duration::from_millis(5));
                }
                // Each is still the one that it was.
                flows.iter_mut().for_each(Flow::exchange);
            }));
        }
        assert!(tcp.is_empty() && udp.is_empty());
        Self { stop, sent, threads }
    }

    /// Ends it; the bytes that went each way, if no flow was lost.
    fn stop(self) -> thread::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self.threads.into_iter().try_for_each(thread::JoinHandle::join);
        joined.map(|()| self.sent.load(Ordering::Relaxed))
    }
}

/// A flow of datagrams over SOCKS5.
struct Flow {
    _control: TcpStream,
    socket: UdpSocket,
    header: Vec<u8>,
    /// The port by which the target knows the flow; it stays as long as the flow does.
    known_as: Option<u16>,
}

impl Flow {
    fn new(proxy: SocketAddr, target: SocketAddr) -> Self {
        let mut control = TcpStream::connect(proxy).unwrap();
        control.set_read_timeout(Some(PATIENCE)).unwrap();
        control.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
        let mut answer = [0; 12];
        control.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..4], [5, 0, 5, 0]);
        let ip = Ipv4Addr::new(answer[6], answer[7], answer[8], answer[9]);
        let port = u16::from_be_bytes([answer[10], answer[11]]);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect((ip, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut header = vec![0, 0, 0, 1, 127, 0, 0, 1];
        header.extend(target.port().to_be_bytes());
        Self { _control: control, socket, header, known_as: None }
    }

    /// Sends until there is an answer: datagrams may be lost under load. A datagram of some other program of this machine may
    /// come through as well; a flow that began anew has another port in every answer.
    fn exchange(&mut self) {
        let (mut answer, mut others) = ([0; 100], Vec::new());
        for _ in 0..60 {
            self.socket.send(&[&*self.header, &[9; 20]].concat()).unwrap();
            let Ok(len) = self.socket.recv(&mut answer) else { continue };
            let port = u16::from_be_bytes([answer[len - 2], answer[len - 1]]);
            if *self.known_as.get_or_insert(port) == port {
                return;
            }
            others.push(port);
        }
        assert!(
            others.is_empty(),
            "the flow was cut and began anew, known as {:?}, then as {others:?}",
            self.known_as
        );
        panic!("no answer to any of 20 datagrams");
    }
}

/// A target that tells each sender its own port.
fn port_teller() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 2000];
        while let Ok((_, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&from.port().to_be_bytes(), from).ok();
        }
    });
    address
}

/// The time within which 99 of 100 requests are done, of connections of their own.
fn p99(
    server: &Server,
    target: SocketAddr,
    requests: usize,
    mut is_over: impl FnMut() -> bool,
) -> (Duration, usize) {
    let mut times = Vec::new();
    while times.len() < requests || !is_over() {
        let begin = Instant::now();
        round_trip(&mut socks5(server.plain, "127.0.0.1", target.port()), 100);
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    (times[times.len() * 99 / 100], times.len())
}

fn run(size: &Size) -> (Duration, Duration) {
    adit_net::raise_fd_limit().unwrap();
    let server = Server::start();
    let (target, teller) = (echo(), port_teller());
    // One after the other: a server holds back many from one address that have not authenticated yet.
    let held = |_| {
        let mut stream = socks5(server.local, "127.0.0.1", target.port());
        round_trip(&mut stream, 1000);
        stream
    };
    let tcp: Vec<TcpStream> = (0..size.tcp).map(held).collect();
    let first = 1000 * u64::try_from(size.tcp).unwrap();
    let udp = (0..size.udp).map(|_| Flow::new(server.plain, teller)).collect();
    let load = Load::start(tcp, udp);
    let (before, count) = p99(&server, target, size.requests, || true);
    println!("before: p99 {before:?} of {count} requests");
    let is_over = AtomicBool::new(false);
    let (during, count) = thread::scope(|scope| {
        scope.spawn(|| {
            let every = (size.changes / size.reloads).max(1);
            let upgrade_every = (size.changes / size.upgrades.max(1)).max(1);
            for turn in 0..size.changes {
                if size.upgrades > 0 && turn % upgrade_every == upgrade_every / 2 {
                    server.upgrade();
                }
                let name = format!("user-{}", turn / 2);
                if turn % 2 == 0 {
                    server.adit(&["user", "add", &name]);
                } else {
                    server.adit(&["user", "rm", &name]);
                }
                if turn % every == 0 {
                    server.reload(turn);
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        p99(&server, target, size.requests, || is_over.load(Ordering::Relaxed))
    });
    println!(
        "during: p99 {during:?} of {count} requests, {} changes of users, {} reloads, {} upgrades",
        size.changes, size.reloads, size.upgrades
    );
    let Ok(sent) = load.stop().map(|sent| sent + first) else {
        panic!("a flow was lost:\n{}", server.running.log())
    };
    let until = Instant::now() + PATIENCE;
    while server.bytes_of_ann() != (sent, sent) {
        assert!(Instant::now() < until, "{sent} sent, {:?} counted", server.bytes_of_ann());
        thread::sleep(Duration::from_millis(50));
    }
    println!("{} TCP and {} UDP flows held, {sent} bytes each way, all counted", size.tcp, size.udp);
    assert!(!server.running.log().contains("ERROR"), "{}", server.running.log());
    (before, during)
}

#[test]
fn flows_are_held_while_users_and_files_change() {
    run(&Size { tcp: 40, udp: 8, changes: 6, reloads: 3, upgrades: 0, requests: 50 });
}

#[test]
fn flows_are_held_while_the_process_changes_too() {
    run(&Size { tcp: 40, udp: 8, changes: 6, reloads: 3, upgrades: 2, requests: 50 });
}

#[test]
#[ignore = "takes a minute, and a machine with nothing else to do"]
fn a_thousand_flows_are_held_while_users_and_files_change() {
    let size = Size { tcp: 1000, udp: 200, changes: 100, reloads: 20, upgrades: 0, requests: 1000 };
    let (before, during) = run(&size);
    let limit = (before * 2).max(before + Duration::from_millis(5));
    assert!(during <= limit, "p99 was {before:?} before, {during:?} during");
}

#[test]
#[ignore = "takes some minutes, and a machine with nothing else to do"]
fn a_thousand_flows_are_held_while_the_process_changes_too() {
    run(&Size { tcp: 1000, udp: 200, changes: 100, reloads: 20, upgrades: 3, requests: 1000 });
}
