//! Check 14: three nodes behind a balancer by source are started anew, one after the other, under load.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::support::{binary, echoed, program, wait_for};
use crate::ssr::udp_echo;
use crate::support::{Dir, Running, echo, is_within_namespace, socks5, within_namespace};

const NODES: usize = 3;
const SOURCES: usize = 6;
const USERS: usize = 10_000;

/// Sends the sources of clients to nodes by their hash; a node that is out has its place taken by the next one.
fn balance(out: Option<usize>) {
    let node = |n: usize| if out == Some(n) { (n + 1) % NODES } else { n } + 1;
    let places: Vec<String> = (0..NODES).map(|n| format!("{n} : 10.77.0.{}", node(n))).collect();
    let way = format!("dnat to jhash ip saddr mod {NODES} map {{ {} }}", places.join(", "));
    let script = format!(
        "table ip adit {{\nchain way {{\ntype nat hook output priority -100;\n}}\n}}\nflush chain ip adit way\n\
         add rule ip adit way ip daddr 10.77.0.9 tcp dport 8443 {way}\n\
         add rule ip adit way ip daddr 10.77.0.9 udp dport 8443 {way}\n"
    );
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success(), "{script}");
}

/// Known sources are served again after this; a debug build on a busy machine has four times that.
fn bound() -> Duration {
    Duration::from_secs(if binary().is_none() && cfg!(debug_assertions) { 20 } else { 5 })
}

fn key(user: usize) -> String {
    format!("the own key of user {user}")
}

/// A node with 10,000 keys that are found by trial.
fn node(dir: &Dir, n: usize) -> Running {
    let at = format!("10.77.0.{}", n + 1);
    let users: Vec<String> =
        (0..USERS).map(|user| format!("{{ name = \"u{user}\", password = \"{}\" }}", key(user))).collect();
    let name = format!("n{n}.toml");
    let path = dir.path().join(&name);
    if !path.exists() {
        let text = format!(
            "state = \"n{n}.state\"\n[admin]\nhttp = \"{at}:9466\"\ntoken = \"0123456789abcdef0123456789abcdef\"\n\
             [limits]\ndrain = \"5s\"\n\
             [[inbound]]\nname = \"in\"\nprotocol = \"shadowsocks\"\nlisten = \"{at}:8443\"\noutbound = \"direct\"\n\
             method = \"chacha20-ietf-poly1305\"\nnetwork = \"tcp-and-udp\"\nallow-private = true\n\
             users = [\n{}\n]\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n",
            users.join(",\n")
        );
        std::fs::write(path, text).unwrap();
    }
    let running = Running::start(program(dir, &["run", "-c", &name]));
    running.line("inbound=in");
    running
}

/// A client with a source for each local port, of streams and of datagrams, whose user is one of the last in the list.
fn client(dir: &Dir, datagrams: SocketAddr) -> Running {
    let mut text = String::new();
    for s in 0..SOURCES {
        text += &format!(
            "[[inbound]]\nname = \"l{s}\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"o{s}\"\n\
             [[inbound]]\nname = \"t{s}\"\nprotocol = \"tunnel\"\nlisten = \"127.0.0.1:0\"\noutbound = \"o{s}\"\n\
             network = \"udp\"\ntarget = \"{datagrams}\"\n\
             [[outbound]]\nname = \"o{s}\"\nprotocol = \"shadowsocks\"\nserver = \"10.77.0.9:8443\"\n\
             network = \"tcp-and-udp\"\nmethod = \"chacha20-ietf-poly1305\"\npassword = \"{}\"\n\
             bind-address = \"10.77.1.{}\"\n",
            key(USERS - 1 - s),
            s + 1
        );
    }
    dir.file("client.toml", &text);
    let running = Running::start(program(dir, &["run", "-c", "client.toml"]));
    running.line(&format!("inbound=t{} ", SOURCES - 1));
    running
}

/// Moves bytes there and back. A connection that is slow, on a busy machine, is not one that is refused or reset.
fn serve(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(bound()))?;
    stream.write_all(&[7; 1000])?;
    stream.read_exact(&mut [0; 1000])
}

/// New connections of a source, one after the other, and the errors of those that failed.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    /// Milliseconds that the slowest took.
    longest: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(ports: &[SocketAddr], target: SocketAddr) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (done, longest) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let threads = ports.iter().map(|at| {
            let (at, stop, done, longest) = (*at, stop.clone(), done.clone(), longest.clone());
            thread::spawn(move || {
                let mut failed = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let since = Instant::now();
                    let end = serve(&mut socks5(at, &target.ip().to_string(), target.port()));
                    if let Err(error) = end {
                        failed.push(format!("after {:?}: {error}", since.elapsed()));
                    }
                    let took = u64::try_from(since.elapsed().as_millis()).unwrap();
                    longest.fetch_max(took, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(20));
                }
                failed
            })
        });
        let threads = threads.collect();
        Self { stop, done, longest, threads }
    }

    fn stop(self) -> (u64, Vec<String>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        let longest = Duration::from_millis(self.longest.load(Ordering::Relaxed));
        (self.done.load(Ordering::Relaxed), failed, longest)
    }
}

/// Time until a datagram of a source came back. It is sent anew each half second.
fn first_answer(at: SocketAddr) -> Duration {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let since = Instant::now();
    wait_for("a datagram comes back", || {
        socket.send_to(b"who is it", at).unwrap();
        socket.recv(&mut [0; 100]).is_ok_and(|len| len == 9)
    });
    since.elapsed()
}

/// Datagrams of sources, one flow each; the longest time without an answer.
struct Flows {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<Duration>>,
}

impl Flows {
    fn start(ports: &[SocketAddr]) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let threads = ports.iter().map(|at| {
            let (at, stop) = (*at, stop.clone());
            thread::spawn(move || {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let (mut answered, mut longest) = (Instant::now(), Duration::ZERO);
                while !stop.load(Ordering::Relaxed) {
                    socket.send_to(b"on we go", at).unwrap();
                    if socket.recv(&mut [0; 100]).is_ok() {
                        longest = longest.max(answered.elapsed());
                        answered = Instant::now();
                        thread::sleep(Duration::from_millis(50));
                    }
                }
                longest.max(answered.elapsed())
            })
        });
        Self { threads: threads.collect(), stop }
    }

    fn stop(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    }
}

/// A connection that is served, once it is.
fn hold(at: SocketAddr, target: SocketAddr) -> TcpStream {
    let mut held = None;
    wait_for("the source is served", || {
        let mut stream = socks5(at, &target.ip().to_string(), target.port());
        let is_served = echoed(&mut stream, 100);
        held = is_served.then_some(stream);
        is_served
    });
    held.unwrap()
}

/// Connections whose user is being looked for; `None` for a node that has had no client.
fn waiting(n: usize) -> Option<u64> {
    let mut stream = TcpStream::connect(format!("10.77.0.{}:9466", n + 1)).unwrap();
    let head = "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\nConnection: close\r\n\r\n";
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: a\r\n{head}").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find(|line| line.starts_with("adit_trial_waiting{"))?;
    Some(line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
#[ignore = "needs network namespaces, nft and ip"]
fn nodes_behind_a_balancer_are_started_anew() {
    let addresses: Vec<String> = (1..=NODES)
        .map(|n| format!("10.77.0.{n}"))
        .chain(["10.77.0.9".to_owned()])
        .chain((1..=SOURCES).map(|s| format!("10.77.1.{s}")))
        .map(|address| format!("ip addr add {address}/32 dev lo"))
        .collect();
    let before = format!("ip link set lo up && {}", addresses.join(" && "));
    let test = "fleet::rolling::in_a_namespace_with_a_balancer";
    assert!(within_namespace(test, &before), "a network namespace cannot be made");
}

#[test]
#[ignore = "runs in a network namespace of its own, by the test before"]
fn in_a_namespace_with_a_balancer() {
    if !is_within_namespace() {
        return;
    }
    balance(None);
    let (dir, target) = (Dir::new(), echo());
    let mut nodes: Vec<Option<Running>> = (0..NODES).map(|n| Some(node(&dir, n))).collect();
    let client = client(&dir, udp_echo());
    let port = |name: String| -> SocketAddr {
        let line = client.line(&format!("inbound={name} "));
        line.split("address=").nth(1).unwrap().trim().parse().unwrap()
    };
    let ports: Vec<SocketAddr> = (0..SOURCES).map(|s| port(format!("l{s}"))).collect();
    let tunnels: Vec<SocketAddr> = (0..SOURCES).map(|s| port(format!("t{s}"))).collect();
    // Nobody knows these sources yet, nor has a stream shown who they are.
    let first: Vec<Duration> = tunnels.iter().map(|at| first_answer(*at)).collect();
    println!("datagrams of unknown sources are answered after {first:?}");
    // Every node learns every source: any of them may have to stand in for the one before it.
    for out in (0..NODES).map(Some).chain([None]) {
        balance(out);
        ports.iter().for_each(|at| drop(hold(*at, target)));
    }
    let (load, flows, begin) = (Load::start(&ports, target), Flows::start(&tunnels), Instant::now());
    let mut held: Vec<TcpStream> = ports.iter().map(|at| hold(*at, target)).collect();
    let mut asked = 0;
    for (n, place) in nodes.iter_mut().enumerate() {
        balance(Some(n));
        thread::sleep(Duration::from_millis(500));
        assert!(held.iter_mut().all(|stream| echoed(stream, 100)), "old connections stay where they are");
        let running = place.take().unwrap();
        let since = Instant::now();
        println!("node {n} is told to end at {:?}", begin.elapsed());
        running.signal("TERM");
        while since.elapsed() < Duration::from_secs(3) {
            assert!(held.iter_mut().all(|stream| echoed(stream, 100)), "old connections have the drain");
            thread::sleep(Duration::from_millis(100));
        }
        let (status, log) = running.end();
        assert_eq!(status.code(), Some(0), "{log}");
        *place = Some(node(&dir, n));
        println!("node {n} is back at {:?}", begin.elapsed());
        balance(None);
        let since = Instant::now();
        for (stream, at) in held.iter_mut().zip(&ports) {
            if !echoed(stream, 100) {
                *stream = hold(*at, target);
            }
        }
        wait_for("nobody is looked for", || waiting(n).unwrap_or(0) == 0);
        asked += usize::from(waiting(n).is_some());
        println!("node {n}: known sources are served again after {:?}", since.elapsed());
        assert!(since.elapsed() < bound());
    }
    let ((done, failed, slowest), longest) = (load.stop(), flows.stop());
    println!(
        "{done} connections, {failed:?} failed, the slowest took {slowest:?}; flows had no answer for {longest:?} at most"
    );
    assert!(asked > 0, "no node had a client");
    assert_eq!(failed, [""; 0], "of {done}");
    assert!(done > 100);
    assert!(longest < bound() / 4, "flows begin anew at another node");
}
