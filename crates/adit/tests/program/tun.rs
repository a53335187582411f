//! A virtual interface between two networks of this machine: the near one has adit and the applications, the far one the
//! targets. Routes are set here, as people do who use the inbound alone.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::process::Command;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use adit_net::rt::Cores;
use adit_net::udp::{Ability, DatagramBatch, Outgoing, Socket};
use adit_testkit::{has_tun, in_time, may_make_networks, skipped};

use crate::support::{Dir, PATIENCE, Running, signal};

/// Targets, which no interface of the near network has a network of.
const TARGETS: [&str; 2] = ["203.0.113.7", "[2001:db8:7::7]"];
/// Ports of the far end: streams, echoes of datagrams, and one that nobody listens on.
const STREAMS: u16 = 7001;
const ECHOES: u16 = 7002;
const CLOSED: u16 = 7009;
/// Ports that the configuration treats in another way.
const REFUSED: u16 = 7010;
const SILENT: u16 = 7011;
const QUIC: u16 = 443;
/// The variable that tells this program its role when it is started again, in one of the networks.
const INSIDE: &str = "ADIT_TEST_INSIDE";
/// The mark of adit's own connections, which the rules lead past the interface.
const MARK: &str = "0x2024";

/// The interface and what the outbound carries; `mtu` is small, so that a packet beyond it stands for many.
fn config(offload: &str) -> String {
    format!(
        r#"
[[inbound]]
name = "interface"
protocol = "tun"
mtu = 1500
offload = "{offload}"
[[outbound]]
name = "direct"
protocol = "direct"
fwmark = 0x2024
[[outbound]]
name = "streams"
protocol = "snell"
server = "192.0.2.1:1"
psk = "a pre-shared key"
udp = false
[[rule]]
port = {REFUSED}
reject = "reset"
[[rule]]
port = {SILENT}
reject = "drop"
[[rule]]
network = "udp"
port = {QUIC}
outbound = "streams"
"#
    )
}

/// Two networks with a link between them, removed when dropped.
struct Networks([String; 2]);

impl Networks {
    fn new() -> Option<Self> {
        if !may_make_networks() || !has_tun() {
            return None;
        }
        let pid = format!("{}-{:?}", std::process::id(), thread::current().id());
        let pid: String = pid.chars().filter(char::is_ascii_digit).collect();
        let made = Self(["n", "f"].map(|end| format!("adt{pid}{end}")));
        let [near, far] = &made.0;
        let steps = [
            format!("netns add {near}"),
            format!("netns add {far}"),
            format!("link add v0 netns {near} type veth peer name v0 netns {far}"),
            format!("-n {near} link set lo up"),
            format!("-n {far} link set lo up"),
            format!("-n {near} addr add 10.77.0.1/24 dev v0"),
            format!("-n {far} addr add 10.77.0.2/24 dev v0"),
            format!("-n {near} -6 addr add fd77::1/64 dev v0 nodad"),
            format!("-n {far} -6 addr add fd77::2/64 dev v0 nodad"),
            format!("-n {far} addr add 203.0.113.7/32 dev lo"),
            format!("-n {far} -6 addr add 2001:db8:7::7/128 dev lo nodad"),
            // Once a backlog is full, a SYN cookie may lose the first bytes of a stream without a word: it has no room for
            // the sequence number, and takes one that is a little higher for another MSS.
            format!("netns exec {far} sh -c echo\u{a0}0\u{a0}>/proc/sys/net/ipv4/tcp_syncookies"),
            format!("-n {near} link set v0 up"),
            format!("-n {far} link set v0 up"),
            format!("-n {near} route add default via 10.77.0.2"),
            format!("-n {near} -6 route add default via fd77::2"),
        ];
        let refused = steps.iter().find(|step| !ip(step));
        if let Some(step) = refused {
            skipped(format_args!("networks cannot be made: ip {step}"));
        }
        refused.is_none().then_some(made)
    }

    /// Leads everything but adit's own connections to the interface.
    fn capture(&self) {
        let near = &self.0[0];
        for family in ["-4", "-6"] {
            for step in [
                "route add default dev adit0 table 2022".to_owned(),
                format!("rule add pref 9000 fwmark {MARK} lookup main"),
                "rule add pref 9001 lookup main suppress_prefixlength 0".to_owned(),
                "rule add pref 9002 lookup 2022".to_owned(),
            ] {
                let output = Command::new("ip")
                    .args(format!("-n {near} {family} {step}").split(' '))
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{family} {step}: {output:?}");
            }
        }
    }

    fn command(&self, dir: &Dir, at: usize, program: &str, args: &[&str]) -> Command {
        dir.command("ip", &[&["netns", "exec", &self.0[at], program], args].concat())
    }

    /// This program in one of them, to the end of its role.
    fn inside(&self, dir: &Dir, at: usize, role: &str) -> Command {
        let program = std::env::current_exe().unwrap();
        let args = ["tun::inside", "--exact", "--ignored", "--nocapture"];
        let mut command = self.command(dir, at, program.to_str().unwrap(), &args);
        command.env(INSIDE, role);
        command
    }

    /// A counter of the interface.
    fn counter(&self, dir: &Dir, name: &str) -> u64 {
        let path = format!("/sys/class/net/adit0/statistics/{name}");
        let output = self.command(dir, 0, "cat", &[&path]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns del {name}"));
        }
    }
}

/// Runs ip(8); a no-break space stands for one within an argument.
fn ip(args: &str) -> bool {
    let args = args.split(' ').map(|word| word.replace('\u{a0}', " "));
    Command::new("ip").args(args).output().is_ok_and(|output| output.status.success())
}

/// Both networks, the targets, and adit with the interface.
struct Scene {
    dir: Dir,
    networks: Networks,
    _targets: Running,
    adit: Running,
}

impl Scene {
    /// `None` without the right to make networks, which is said.
    fn new(offload: &str) -> Option<Self> {
        let networks = Networks::new()?;
        let dir = Dir::new();
        let targets = Running::start(networks.inside(&dir, 1, "targets"));
        targets.line("targets are up");
        let file = dir.file("adit.toml", &config(offload));
        let args = ["run", "-c", file.to_str().unwrap()];
        let adit = Running::start(networks.command(&dir, 0, env!("CARGO_BIN_EXE_adit"), &args));
        adit.line("fdad:17:ad17::1");
        networks.capture();
        Some(Self { dir, networks, _targets: targets, adit })
    }

    /// Has the near network play a role to its end.
    fn play(&self, role: &str) -> String {
        let (status, out) = Running::start(self.networks.inside(&self.dir, 0, role)).end();
        assert!(status.success(), "{role}: {out}\nadit: {}", self.adit.log());
        out
    }

    /// Mean length of the packets that went one way since `before`.
    fn mean(&self, way: &str, before: (u64, u64)) -> u64 {
        let (packets, bytes) = self.counters(way);
        (bytes - before.1) / (packets - before.0).max(1)
    }

    fn counters(&self, way: &str) -> (u64, u64) {
        let counter = |what: &str| self.networks.counter(&self.dir, &format!("{way}_{what}"));
        (counter("packets"), counter("bytes"))
    }
}

#[test]
fn streams_pass_both_ways_in_packets_that_stand_for_many() {
    let Some(scene) = Scene::new("on") else { return };
    let before = (scene.counters("tx"), scene.counters("rx"));
    scene.play("streams 100");
    // Acknowledgements are among them.
    let (sent, received) = (scene.mean("tx", before.0), scene.mean("rx", before.1));
    assert!(sent > 3000 && received > 3000, "{sent} and {received} bytes a packet with an mtu of 1500");
}

#[test]
fn without_offload_it_is_one_packet_at_a_time() {
    let Some(scene) = Scene::new("off") else { return };
    scene.play("streams 20");
    scene.play("datagrams");
    scene.play("refusals");
    let (sent, received) = (scene.mean("tx", (0, 0)), scene.mean("rx", (0, 0)));
    assert!(sent <= 1500 && received <= 1500, "{sent} and {received} bytes a packet");
}

#[test]
fn datagrams_pass_both_ways_many_at_a_time() {
    let Some(scene) = Scene::new("on") else { return };
    scene.play("datagrams");
    let before = (scene.counters("tx"), scene.counters("rx"));
    scene.play("bulk");
    let (sent, received) = (scene.mean("tx", before.0), scene.mean("rx", before.1));
    println!("{sent} and {received} bytes a packet");
    assert!(sent > 3000, "{sent} bytes a packet: the kernel cut what it need not cut");
    assert!(received > 1500, "{received} bytes a packet: answers were written one by one");
}

#[test]
fn refusals_come_at_once() {
    let Some(scene) = Scene::new("on") else { return };
    scene.play("refusals");
}

#[test]
fn hundreds_of_connections_at_once() {
    let Some(scene) = Scene::new("on") else { return };
    // Each is a descriptor of two programs here: no more than the usual limit of 1024 lets them have.
    scene.play("many 400");
}

#[test]
fn nothing_is_left_behind_by_a_kill() {
    let Some(mut scene) = Scene::new("on") else { return };
    let [near, _] = &scene.networks.0;
    assert!(ip(&format!("-n {near} link show adit0")));
    signal(scene.adit.pid(), "KILL");
    while scene.adit.is_running() {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!ip(&format!("-n {near} link show adit0")), "the interface goes with the process");
    scene.play("direct");
}

#[test]
fn an_interface_that_is_removed_is_named() {
    let Some(scene) = Scene::new("on") else { return };
    let [near, _] = &scene.networks.0;
    assert!(ip(&format!("-n {near} link del adit0")));
    scene.adit.line("interface adit0 is gone");
}

/// The part that runs in the networks.
#[test]
#[ignore = "is started by the others"]
fn inside() {
    let Ok(role) = std::env::var(INSIDE) else { return };
    let (role, number) = role.split_once(' ').unwrap_or((&role, "0"));
    let number: usize = number.parse().unwrap();
    match role {
        "targets" => targets(),
        "streams" => streams(number << 20),
        "datagrams" => datagrams(),
        "bulk" => bulk(),
        "refusals" => refusals(),
        "many" => many(number),
        "direct" => drop(connect(TARGETS[0], STREAMS).unwrap()),
        _ => panic!("{role}"),
    }
}

/// A line of the test's output.
fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn addr(host: &str, port: u16) -> SocketAddr {
    format!("{host}:{port}").parse().unwrap()
}

fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr(host, port), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Byte `at` of every transfer: no part of it can stand for another.
fn pattern(at: usize) -> u8 {
    u8::try_from((at ^ at >> 8 ^ at >> 16) & 0xff).unwrap()
}

/// Calls `act` with the bytes of a transfer from `start` on, in parts, and where each lies among `len`.
fn each_part(start: usize, len: usize, mut act: impl FnMut(Range<usize>, &[u8])) {
    // A length that no buffer's is a multiple of.
    const PERIOD: usize = 65_521;
    static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| (0..PERIOD).map(pattern).collect());
    let mut at = 0;
    while at < len {
        let from = (start + at) % PERIOD;
        let part = (PERIOD - from).min(len - at);
        act(at..at + part, &PATTERN[from..from + part]);
        at += part;
    }
}

/// Serves both families until it is killed.
fn targets() {
    for host in TARGETS {
        let listener = TcpListener::bind(addr(host, STREAMS)).unwrap();
        thread::spawn(move || {
            listener.incoming().flatten().for_each(|stream| drop(thread::spawn(|| serve(stream))))
        });
        let socket = UdpSocket::bind(addr(host, ECHOES)).unwrap();
        thread::spawn(move || {
            let mut block = [0; 65_536];
            while let Ok((len, from)) = socket.recv_from(&mut block) {
                socket.send_to(&block[..len], from).ok();
            }
        });
    }
    say("targets are up");
    thread::park();
}

/// `u` and a length: takes so many bytes and answers with one that says whether they are right. `d` and a length: sends so
/// many. Everything else comes back.
fn serve(mut stream: TcpStream) {
    let mut order = [0; 9];
    if stream.read_exact(&mut order[..1]).is_err() {
        return;
    }
    if !matches!(order[0], b'u' | b'd') {
        stream.write_all(&order[..1]).ok();
        std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).ok();
        return;
    }
    stream.read_exact(&mut order[1..]).unwrap();
    let len = usize::try_from(u64::from_be_bytes(order[1..].try_into().unwrap())).unwrap();
    if order[0] == b'd' {
        send(&mut stream, len);
    } else {
        let is_right = receive(&mut stream, len);
        stream.write_all(&[is_right.into()]).unwrap();
    }
}

fn send(stream: &mut TcpStream, len: usize) {
    let mut block = vec![0; 1 << 20];
    for start in (0..len).step_by(block.len()) {
        let part = block.len().min(len - start);
        each_part(start, part, |range, pattern| block[range].copy_from_slice(pattern));
        stream.write_all(&block[..part]).unwrap();
    }
}

fn receive(stream: &mut TcpStream, len: usize) -> bool {
    let (mut block, mut at, mut is_right) = (vec![0; 1 << 20], 0, true);
    while at < len {
        let most = block.len().min(len - at);
        let read = stream.read(&mut block[..most]).unwrap();
        assert!(read > 0, "ended after {at} bytes");
        each_part(at, read, |range, pattern| is_right &= block[range] == *pattern);
        at += read;
    }
    is_right
}

fn streams(len: usize) {
    for host in TARGETS {
        for order in [b'u', b'd'] {
            let mut stream = connect(host, STREAMS).unwrap();
            stream.write_all(&[&[order][..], &(len as u64).to_be_bytes()].concat()).unwrap();
            if order == b'd' {
                assert!(receive(&mut stream, len), "{host} down");
                continue;
            }
            send(&mut stream, len);
            let mut is_right = [0];
            stream.read_exact(&mut is_right).unwrap();
            assert_eq!(is_right, [1], "{host} up");
        }
    }
}

fn socket_for(host: &str) -> UdpSocket {
    let any = if host.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Echoes of all lengths that an mtu of 1500 takes, from one socket to both ports of the far end.
fn datagrams() {
    for host in TARGETS {
        let (socket, target) = (socket_for(host), addr(host, ECHOES));
        for len in [0, 1, 2, 500, 1400, 1452] {
            let bytes: Vec<u8> = (0..len).map(pattern).collect();
            socket.send_to(&bytes, target).unwrap();
            let mut block = [0; 2000];
            let (read, from) = socket.recv_from(&mut block).unwrap();
            assert_eq!((&block[..read], from), (&bytes[..], target), "{host} {len}");
        }
    }
}

/// Bursts that leave as few packets, and come back.
fn bulk() {
    const LEN: usize = 1200;
    const BURST: usize = 32;
    for host in TARGETS {
        let target = addr(host, ECHOES);
        Cores::block_on(async {
            let socket = Socket::connect(target, &adit_model::Egress::default()).unwrap();
            assert_eq!(socket.ability(), Ability::Segments, "the kernel of the test has segments");
            let (mut batch, mut came) = (DatagramBatch::new(), 0);
            for burst in 0..40_usize {
                for (at, byte) in batch.block[..BURST * LEN].iter_mut().enumerate() {
                    *byte = pattern(at / LEN + burst);
                }
                let to_send: Vec<Outgoing> = (0..BURST)
                    .map(|at| Outgoing {
                        key: 0,
                        to: target,
                        from: None,
                        class: 0,
                        start: at * LEN,
                        len: LEN,
                    })
                    .collect();
                assert_eq!(socket.send(&mut batch, &to_send).sent, BURST);
                let until = Instant::now() + Duration::from_secs(2);
                let mut back = 0;
                while back < BURST && Instant::now() < until {
                    let wait = std::future::poll_fn(|cx| socket.poll_receive(cx, &mut batch, &mut 0));
                    if adit_net::rt::timeout(Duration::from_secs(1), wait).await.is_err() {
                        break;
                    }
                    for at in 0..batch.len() {
                        let bytes = &batch.block[batch.get(at).unwrap().range()];
                        assert!(bytes.len() == LEN && bytes.iter().all(|byte| *byte == bytes[0]));
                    }
                    back += batch.len();
                }
                came += back;
            }
            assert!(came >= 40 * BURST * 9 / 10, "{host}: {came} of {} came back", 40 * BURST);
        })
        .unwrap();
    }
}

/// Requests that cannot be carried fail within a second.
fn refusals() {
    let at_once = |what: &str, attempt: &dyn Fn() -> ErrorKind, expected: &[ErrorKind]| {
        in_time(|| {
            let start = Instant::now();
            let kind = attempt();
            assert!(expected.contains(&kind), "{what}: {kind:?}");
            assert!(start.elapsed() < Duration::from_secs(1), "{what}: after {:?}", start.elapsed());
        });
    };
    for host in TARGETS {
        // The link between the networks has just begun, and its first packets may be lost.
        drop(connect(host, STREAMS).and_then(|mut stream| {
            stream.write_all(b"e")?;
            stream.read_exact(&mut [0])
        }));
        for port in [CLOSED, REFUSED] {
            let attempt = || {
                let result = connect(host, port).and_then(|mut stream| stream.read(&mut [0]));
                result.err().map_or(ErrorKind::Other, |error| error.kind())
            };
            let expected = [ErrorKind::ConnectionReset, ErrorKind::ConnectionRefused];
            at_once(&format!("stream to {host} {port}"), &attempt, &expected);
        }
        for port in [QUIC, REFUSED] {
            let attempt = || {
                let socket = socket_for(host);
                socket.connect(addr(host, port)).unwrap();
                socket.send(b"hello").unwrap();
                socket.recv(&mut [0; 9]).err().map_or(ErrorKind::Other, |error| error.kind())
            };
            at_once(&format!("datagram to {host} {port}"), &attempt, &[ErrorKind::ConnectionRefused]);
        }
    }
    let socket = socket_for(TARGETS[0]);
    socket.connect(addr(TARGETS[0], SILENT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket.send(b"hello").unwrap();
    assert_eq!(socket.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock, "nobody is told");
    // The neighbour itself serves nothing.
    let attempt = || connect("198.18.0.2", 80).err().map_or(ErrorKind::Other, |error| error.kind());
    at_once("the neighbour", &attempt, &[ErrorKind::ConnectionRefused]);
}

fn many(count: usize) {
    let open = |at: usize| {
        let mut stream = connect(TARGETS[at % 2], STREAMS).unwrap();
        stream.write_all(b"e").unwrap();
        stream
    };
    let mut all: Vec<TcpStream> = (0..count).map(open).collect();
    for (at, stream) in all.iter_mut().enumerate() {
        let number = u32::try_from(at).unwrap().to_be_bytes();
        stream.write_all(&number).unwrap();
    }
    for (at, stream) in all.iter_mut().enumerate() {
        let mut back = [0; 5];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back[0], b'e');
        assert_eq!(u32::from_be_bytes(back[1..].try_into().unwrap()), u32::try_from(at).unwrap());
    }
}
