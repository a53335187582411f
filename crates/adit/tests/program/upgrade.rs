//! `adit upgrade`: a new process takes over while flows of every kind go on, and what happens when it does not.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::support::{Dir, PATIENCE, Running, echo, finish, round_trip, signal, socks5};

const KEY: &str = "AAECAwQFBgcICQoLDA0ODw==";
const BOB: &str = "EBESExQVFhcYGRobHB0eHw==";
const ANN: &str = "the very own key of ann";

/// Processes that were started by another process: killed when dropped.
#[derive(Default)]
pub(crate) struct Successors(Vec<u32>);

impl Successors {
    /// The process that an answer of `adit upgrade` names.
    pub(crate) fn note(&mut self, out: &str) -> u32 {
        let pid = out.split_once("process ").unwrap_or_else(|| panic!("{out}")).1;
        let pid = pid.split(' ').next().unwrap().parse().unwrap();
        self.0.push(pid);
        pid
    }
}

impl Drop for Successors {
    fn drop(&mut self) {
        for pid in &self.0 {
            drop(std::process::Command::new("kill").args(["-9", &pid.to_string()]).output());
        }
    }
}

pub(crate) fn is_alive(pid: u32) -> bool {
    // A process that has ended and that nobody has asked for stays as a zombie.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "not in time: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A server of several protocols, which is upgraded, and a client, which is not.
struct Site {
    dir: Dir,
    server: Running,
    client: Running,
    successors: Successors,
    plain: SocketAddr,
}

/// The inbounds of the client, by the protocol that they lead to.
const WAYS: [&str; 3] = ["snell", "ss", "kcp"];

impl Site {
    fn start() -> Self {
        let dir = Dir::new();
        let ports: Vec<SocketAddr> = (0..4).map(|_| adit_testkit::unused_addr()).collect();
        let [snell, ss, kcp, plain] = ports[..] else { panic!() };
        let parts = [
            (
                "snell",
                snell,
                format!("protocol = \"snell\"\nusers = [ {{ name = \"ann\", password = \"{ANN}\" }} ]\n"),
                format!("protocol = \"snell\"\npsk = \"{ANN}\"\n"),
            ),
            (
                "ss",
                ss,
                format!(
                    "protocol = \"shadowsocks\"\nmethod = \"2022-blake3-aes-128-gcm\"\npassword = \"{KEY}\"\n\
                     users = [ {{ name = \"bob\", password = \"{BOB}\" }} ]\n"
                ),
                format!(
                    "protocol = \"shadowsocks\"\nmethod = \"2022-blake3-aes-128-gcm\"\npassword = \"{KEY}:{BOB}\"\n"
                ),
            ),
            (
                "kcp",
                kcp,
                "protocol = \"snell\"\npsk = \"k\"\ncarrier = \"kcp\"\ncarrier-key = \"k\"\n".to_owned(),
                "protocol = \"snell\"\npsk = \"k\"\ncarrier = \"kcp\"\ncarrier-key = \"k\"\n".to_owned(),
            ),
        ];
        let mut server = format!(
            "state = \"users.state\"\ncores = 2\n[admin]\nsocket = \"adit.sock\"\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n\
             [[inbound]]\nname = \"plain\"\nprotocol = \"mixed\"\nlisten = \"{plain}\"\noutbound = \"direct\"\n"
        );
        let mut client = "[admin]\nsocket = \"client.sock\"\n".to_owned();
        for (name, port, at_server, at_client) in &parts {
            let network = if *name == "ss" { "network = \"tcp-and-udp\"\n" } else { "" };
            server += &format!(
                "[[inbound]]\nname = \"{name}\"\nlisten = \"{port}\"\noutbound = \"direct\"\nallow-private = true\n{at_server}{network}"
            );
            client += &format!(
                "[[inbound]]\nname = \"{name}\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"to-{name}\"\n\
                 [[outbound]]\nname = \"to-{name}\"\nserver = \"{port}\"\n{at_client}{network}"
            );
        }
        dir.file("adit.toml", &server);
        dir.file("client.toml", &client);
        let server = Running::start(dir.adit(&["run", "-v", "-c", "adit.toml"]));
        server.line("inbound=kcp");
        let client = Running::start(dir.adit(&["run", "-c", "client.toml"]));
        client.line("inbound=kcp");
        Self { dir, server, client, successors: Successors::default(), plain }
    }

    /// The client's port for a protocol.
    fn local(&self, way: &str) -> SocketAddr {
        let line = self.client.line(&format!("inbound={way} "));
        line.split("address=").nth(1).unwrap().trim().parse().unwrap()
    }

    /// Waits until no process has the state file: a killed process ends thread by thread.
    fn wait_for_files(&self) {
        let lock = self.dir.path().join("users.state.lock");
        wait_until("the files are free", || {
            let lock = std::fs::File::open(&lock).unwrap();
            adit_net::try_lock(&lock).unwrap()
        });
    }

    fn try_upgrade(&self, args: &[&str]) -> (i32, String, String) {
        self.dir.run(&[&["upgrade", "-c", "adit.toml"], args].concat())
    }

    /// The number of the process that serves afterwards.
    fn upgrade(&mut self, args: &[&str]) -> u32 {
        let (status, out, err) = self.try_upgrade(args);
        assert_eq!(status, 0, "{err}\n{}", self.server.log());
        self.successors.note(&out)
    }

    fn status(&self) -> serde_json::Value {
        let (status, out, err) = self.dir.run(&["status", "--json", "--socket", "adit.sock"]);
        assert_eq!(status, 0, "{err}\n{}", self.server.log());
        serde_json::from_str(&out).unwrap()
    }

    /// Bytes up and down of a user.
    fn bytes_of(&self, user: &str) -> (u64, u64) {
        let status = self.status();
        let inbounds = status["inbounds"].as_array().unwrap().iter();
        let mut users = inbounds.flat_map(|inbound| inbound["users"].as_array().cloned().unwrap_or_default());
        let found = users.find(|found| found["name"] == user).unwrap_or_else(|| panic!("{status}"));
        (found["up_bytes"].as_u64().unwrap(), found["down_bytes"].as_u64().unwrap())
    }
}

/// A flow of datagrams through a SOCKS port.
struct Flow {
    _control: TcpStream,
    socket: UdpSocket,
    header: Vec<u8>,
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
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect((ip, u16::from_be_bytes([answer[10], answer[11]]))).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut header = vec![0, 0, 0, 1, 127, 0, 0, 1];
        header.extend(target.port().to_be_bytes());
        Self { _control: control, socket, header }
    }

    /// Sends a number and waits for the answer to it: number and the port by which the target knows the flow. None is lost.
    /// Datagrams of other programs of this machine, which may come through as well, are passed over.
    fn exchange(&self, number: u32) -> u16 {
        self.socket.send(&[&*self.header, &number.to_be_bytes()].concat()).unwrap();
        let mut answer = [0; 2000];
        loop {
            let len =
                self.socket.recv(&mut answer).unwrap_or_else(|error| panic!("datagram {number}: {error}"));
            if let [.., a, b, c, d, high, low] = answer[..len]
                && [a, b, c, d] == number.to_be_bytes()
            {
                return u16::from_be_bytes([high, low]);
            }
        }
    }
}

/// A target that sends each datagram back, with the sender's port behind it.
fn teller() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 2000];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            bytes[len..len + 2].copy_from_slice(&from.port().to_be_bytes());
            socket.send_to(&bytes[..len + 2], from).ok();
        }
    });
    address
}

/// Two upgrades in a row: streams, sessions and flows of each process go on, new ones reach the last, and every byte is
/// counted once.
#[test]
fn everything_goes_on_and_new_connections_reach_the_new_process() {
    let mut site = Site::start();
    let (target, teller) = (echo(), teller());
    let first = site.server.pid();
    let mut held: Vec<(TcpStream, &str)> = Vec::new();
    let (mut of_ann, mut of_bob) = (0, 0);
    let mut flows: Vec<(Flow, u16)> = Vec::new();
    let mut processes = vec![first];
    for turn in 0..3_u32 {
        for way in WAYS {
            let mut stream = socks5(site.local(way), "127.0.0.1", target.port());
            round_trip(&mut stream, 1000);
            held.push((stream, way));
        }
        let mut stream = socks5(site.plain, "127.0.0.1", target.port());
        round_trip(&mut stream, 1000);
        held.push((stream, "plain"));
        for proxy in [site.local("ss"), site.plain] {
            let flow = Flow::new(proxy, teller);
            let known_as = flow.exchange(0);
            flows.push((flow, known_as));
        }
        of_ann += 1000;
        of_bob += 1000;
        if turn < 2 {
            let pid = site.upgrade(&[]);
            processes.push(pid);
            assert_eq!(site.status()["pid"], pid, "the socket is the new process's");
            assert!(is_alive(processes[turn as usize]), "it finishes what is open");
        }
        for (stream, way) in &mut held {
            round_trip(stream, 2000);
            match *way {
                "snell" => of_ann += 2000,
                "ss" => of_bob += 2000,
                _ => {}
            }
        }
        for (flow, known_as) in &flows {
            for number in 0..50 {
                assert_eq!(flow.exchange(number), *known_as, "the flow began anew");
            }
        }
    }
    let log = site.server.log();
    // Bob's datagrams are counted as well: three flows, with one exchange of 4 and 6 bytes each time.
    let exchanges = 3 + 50 * (1 + 2 + 3);
    wait_until("every byte is counted", || {
        let (ann, bob) = (site.bytes_of("ann"), site.bytes_of("bob"));
        ann == (of_ann, of_ann) && bob == (of_bob + 4 * exchanges, of_bob + 6 * exchanges)
    });
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
    // A signal ends those that only finish at once: what they have not reported arrives.
    for (stream, way) in &mut held {
        round_trip(stream, 10);
        match *way {
            "snell" => of_ann += 10,
            "ss" => of_bob += 10,
            _ => {}
        }
    }
    site.server.signal("TERM");
    wait_until("the first process ends", || !site.server.is_running());
    signal(processes[1], "TERM");
    wait_until("the second process ends", || !is_alive(processes[1]));
    wait_until("the last bytes are counted", || site.bytes_of("ann") == (of_ann, of_ann));
    drop((held, flows));
    let pid = site.status()["pid"].as_u64().unwrap();
    assert_eq!(pid, u64::from(processes[2]));
    // All of it is in the file.
    signal(processes[2], "TERM");
    wait_until("the last process ends", || !is_alive(processes[2]));
    site.wait_for_files();
    let again = Running::start(site.dir.adit(&["run", "-c", "adit.toml"]));
    again.line("inbound=kcp");
    assert_eq!(site.bytes_of("ann"), (of_ann, of_ann));
    assert_eq!(site.bytes_of("bob"), (of_bob + 4 * exchanges, of_bob + 6 * exchanges));
}

/// Datagrams with numbers at a steady rate, and connections one after the other, while three processes follow each other.
#[test]
fn nothing_is_lost_or_refused_under_load() {
    let mut site = Site::start();
    let (target, teller) = (echo(), teller());
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for proxy in [site.local("ss"), site.plain] {
        let (flow, stop) = (Flow::new(proxy, teller), stop.clone());
        threads.push(thread::spawn(move || {
            let known_as = flow.exchange(0);
            for number in 1.. {
                assert_eq!(flow.exchange(number), known_as);
                if stop.load(Ordering::Relaxed) {
                    assert!(number > 100, "{number} datagrams are no load");
                    return;
                }
            }
        }));
    }
    let requests = Arc::new(AtomicU64::new(0));
    for proxy in [site.local("snell"), site.local("ss"), site.local("kcp"), site.plain] {
        let (stop, requests) = (stop.clone(), requests.clone());
        threads.push(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                round_trip(&mut socks5(proxy, "127.0.0.1", target.port()), 5000);
                requests.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for _ in 0..3 {
        let before = requests.load(Ordering::Relaxed);
        wait_until("there is load", || requests.load(Ordering::Relaxed) > before + 20);
        site.upgrade(&["--drain", "1m"]);
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap_or_else(|_| panic!("{}", site.server.log()));
    }
    assert!(!site.server.log().contains("ERROR"), "{}", site.server.log());
}

#[test]
fn a_process_that_cannot_take_over_changes_nothing() {
    let mut site = Site::start();
    let target = echo();
    let mut stream = socks5(site.local("snell"), "127.0.0.1", target.port());
    round_trip(&mut stream, 1000);
    let script = |name: &str, text: &str| -> PathBuf {
        let path = site.dir.file(name, &format!("#!/bin/bash\n{text}\n"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let good = std::fs::read_to_string(site.dir.path().join("adit.toml")).unwrap();
    let bad = good.replace("[[outbound]]\nname = \"direct\"", "[[outbound]]\nname = \"elsewhere\"");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let more = format!(
        "{good}[[inbound]]\nname = \"more\"\nprotocol = \"mixed\"\nlisten = \"{}\"\noutbound = \"direct\"\n",
        taken.local_addr().unwrap()
    );
    let garbage =
        "eval \"printf '\\\\005\\\\000\\\\000\\\\000{\\\"x\\\":' >&${ADIT_HANDOVER%%:*}\"; exec sleep 60";
    let oversized = "eval \"printf 'garbage without end' >&${ADIT_HANDOVER%%:*}\"; exec sleep 60";
    let cases = [
        ("/no/such/binary".into(), &good, "cannot start /no/such/binary"),
        (script("ends", "exit 3"), &good, "has ended (exit status: 3)"),
        (script("dies", "kill -9 $$"), &good, "has ended (signal: 9"),
        (script("garbage", garbage), &good, "another version"),
        (script("oversized", oversized), &good, "a frame is too long"),
        (PathBuf::from(env!("CARGO_BIN_EXE_adit")), &bad, "direct"),
        (PathBuf::from(env!("CARGO_BIN_EXE_adit")), &more, "inbound more"),
    ];
    for (binary, text, want) in cases {
        site.dir.file("adit.toml", text);
        // The configuration may be no good: the socket is named.
        let (status, out, err) =
            site.dir.run(&["upgrade", "--socket", "adit.sock", "--binary", &binary.display().to_string()]);
        assert!(status == 1 && out.is_empty() && err.contains(want), "{want}: {status} {out}{err}");
        round_trip(&mut stream, 1000);
        round_trip(&mut socks5(site.local("ss"), "127.0.0.1", target.port()), 1000);
        assert_eq!(site.status()["pid"], site.server.pid());
    }
    site.dir.file("adit.toml", &good);
    // The files are this process's again.
    // The file is absent for a moment while the next one takes its place.
    let state =
        || std::fs::metadata(site.dir.path().join("users.state")).and_then(|file| file.modified()).ok();
    let mut before = None;
    wait_until("the counters have been written", || {
        before = state();
        before.is_some()
    });
    round_trip(&mut stream, 1000);
    wait_until("the counters are written", || state() > before);
    let counted = site.bytes_of("ann");
    let pid = site.upgrade(&[]);
    assert_eq!((site.status()["pid"].as_u64().unwrap(), site.bytes_of("ann")), (pid.into(), counted));
    round_trip(&mut stream, 1000);
}

#[test]
fn a_signal_upgrades_and_the_drain_has_an_end() {
    let mut site = Site::start();
    let target = echo();
    let mut stream = socks5(site.plain, "127.0.0.1", target.port());
    round_trip(&mut stream, 10);
    site.server.signal("USR2");
    let line = site.server.line("upgraded: the new process serves");
    let pid: u32 = line.split("pid=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    site.successors.0.push(pid);
    assert!(line.contains("drain_s=600") && line.contains("open=1"), "{line}");
    round_trip(&mut stream, 10);
    // From the second process to the third, with little time.
    let mut second = socks5(site.plain, "127.0.0.1", target.port());
    round_trip(&mut second, 10);
    let last = site.upgrade(&["--drain", "1s"]);
    wait_until("the second process ends", || !is_alive(pid));
    assert!(second.read(&mut [0; 10]).is_err(), "it is reset, so that nobody takes a part for the whole");
    round_trip(&mut stream, 10);
    assert_eq!(site.status()["pid"], last);
    let (status, _, err) = site.dir.run(&["upgrade", "--socket", "adit.sock", "--drain", "5"]);
    assert!(status == 2 && err.contains("the unit is ms, s, m or h"), "{err}");
}

/// A user who is removed from the new process is cut in the old one too.
#[test]
fn a_removed_user_is_cut_in_both_processes() {
    let mut site = Site::start();
    let target = echo();
    let mut stream = socks5(site.local("snell"), "127.0.0.1", target.port());
    round_trip(&mut stream, 10);
    site.upgrade(&[]);
    let path = site.dir.path().join("adit.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("name = \"ann\"", "name = \"eve\"").replace(ANN, "another key"))
        .unwrap();
    let (status, _, err) = site.dir.run(&["reload", "-c", "adit.toml"]);
    assert_eq!(status, 0, "{err}");
    let until = Instant::now() + PATIENCE;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut block = [0; 10];
    while stream.write_all(&[1; 10]).is_ok() && stream.read_exact(&mut block).is_ok() {
        assert!(Instant::now() < until, "the user goes on in the old process");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The counters of a process that is killed lack a second at most, and the file opens.
#[test]
fn a_kill_costs_a_second_of_counters_at_most() {
    let site = Site::start();
    let target = echo();
    let mut stream = socks5(site.local("snell"), "127.0.0.1", target.port());
    // When the image was written, by the system's clock.
    let image = site.dir.path().join("users.state");
    let written = || std::fs::metadata(&image).and_then(|found| found.modified()).ok();
    let (mut moved, mut images) = (Vec::new(), std::collections::BTreeSet::new());
    let mut sum = 0_u64;
    // A disk with much to do delays an image, however often it is due.
    while images.len() < 8 {
        round_trip(&mut stream, 10_000);
        sum += 10_000;
        moved.push((SystemTime::now(), sum));
        images.extend(written());
        // The pace of the client.
        thread::sleep(Duration::from_millis(20));
    }
    site.server.signal("KILL");
    site.wait_for_files();
    let last = written().unwrap();
    let again = Running::start(site.dir.adit(&["run", "-c", "adit.toml"]));
    again.line("inbound=kcp");
    assert!(!again.log().contains("damaged"), "{}", again.log());
    let (up, down) = site.bytes_of("ann");
    // The image has the bytes of the time when it was made, not much before it was written.
    let age = Duration::from_secs(5);
    let counted = moved.iter().rev().find(|(at, _)| last.duration_since(*at).is_ok_and(|since| since > age));
    let least = counted.map_or(0, |(_, sum)| *sum);
    assert!(
        (least..=sum).contains(&up) && (least..=sum).contains(&down) && down > 0,
        "{up} {down} of {sum}, least {least}"
    );
}

/// Children of the new process, and of the old one, inherit none of the sockets.
#[test]
fn plugins_inherit_no_sockets() {
    let mut site = Site::start();
    let script = "#!/bin/sh\nls -l /proc/self/fd > \"$PWD/fds\"\nexec sleep 60\n";
    let path = site.dir.file("plugin", script);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text = std::fs::read_to_string(site.dir.path().join("adit.toml")).unwrap();
    let more = format!(
        "{text}[[outbound]]\nname = \"out\"\nprotocol = \"shadowsocks\"\nserver = \"192.0.2.1:1\"\n\
         method = \"aes-128-gcm\"\npassword = \"k\"\nplugin = \"{}\"\n",
        path.display()
    );
    site.dir.file("adit.toml", &more);
    site.upgrade(&[]);
    let fds = site.dir.path().join("fds");
    wait_until("the plugin runs", || {
        std::fs::read_to_string(&fds).is_ok_and(|text| text.lines().count() > 2)
    });
    let text = std::fs::read_to_string(&fds).unwrap();
    assert!(!text.contains("socket:"), "{text}");
}

#[test]
fn help_names_the_time_and_the_signal() {
    let dir = Dir::new();
    let (status, out, _) = finish(dir.adit(&["upgrade", "--help"]), "");
    assert!(status == 0 && out.contains("SIGUSR2") && out.contains("[default: 10m]"), "{out}");
}

/// The control interfaces of both processes share one queue of connections: no request is refused or cut meanwhile.
#[test]
fn control_interfaces_answer_every_request() {
    let dir = Dir::new();
    let [clash, http, manage] = [(); 3].map(|()| adit_testkit::unused_addr());
    dir.file(
        "adit.toml",
        &format!(
            "state = \"state\"\n[admin]\nsocket = \"adit.sock\"\nclash = \"{clash}\"\n\
             http = \"{http}\"\nmanage = \"{manage}\"\nmanage-secret = \"0123456789abcdefghijkl\"\n\
             [[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:0\"\nmethod = \"aes-256-gcm\"\npassword = \"p\"\n"
        ),
    );
    let mut server = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    server.line("users can be managed");
    let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let threads = [(clash, "/version"), (http, "/live"), (manage, "")].map(|(at, path)| {
        let (stop, answers) = (stop.clone(), answers.clone());
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect(at).unwrap_or_else(|error| panic!("{at}{path}: {error}"));
                if path.is_empty() {
                    continue;
                }
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{path}: {error}"));
                assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
                answers.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let mut successors = Successors::default();
    for _ in 0..2 {
        let before = answers.load(Ordering::Relaxed);
        wait_until("there are requests", || answers.load(Ordering::Relaxed) > before + 20);
        let (status, out, err) = dir.run(&["upgrade", "-c", "adit.toml"]);
        assert_eq!(status, 0, "{err}\n{}", server.log());
        successors.note(&out);
    }
    wait_until("the first process ends", || !server.is_running());
    let before = answers.load(Ordering::Relaxed);
    wait_until("the last process answers", || answers.load(Ordering::Relaxed) > before + 20);
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap_or_else(|_| panic!("{}", server.log()));
    }
}
