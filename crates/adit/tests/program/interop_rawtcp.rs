//! Datagrams that look like segments of TCP (`-tcp`), between two networks on this machine: adit with itself, and with
//! Debian's kcptun at either end.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::skipped;

use crate::support::{Dir, PATIENCE, Running, link, round_trip};

const TARGET: &str = "127.0.0.1:7000";
const LOCAL: &str = "127.0.0.1:8000";
const PORT: u16 = 29900;
/// The variable that tells this program its role when it is started again, in one of the networks.
const INSIDE: &str = "ADIT_TEST_INSIDE";

/// Two networks with a link between them, removed when dropped.
struct Networks([String; 2]);

impl Networks {
    fn new() -> Option<Self> {
        let pid = std::process::id();
        let made = Self(["a", "b"].map(|end| format!("adit-{pid}-{end}")));
        let [a, b] = &made.0;
        let (near, far) = (format!("v{pid}a"), format!("v{pid}b"));
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {near} netns {a} type veth peer name {far} netns {b}"),
            format!("-n {a} addr add 10.213.0.1/24 dev {near}"),
            format!("-n {b} addr add 10.213.0.2/24 dev {far}"),
            format!("-n {a} -6 addr add fd13::1/64 dev {near} nodad"),
            format!("-n {b} -6 addr add fd13::2/64 dev {far} nodad"),
            format!("-n {a} link set {near} up"),
            format!("-n {b} link set {far} up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ];
        steps.iter().all(|step| ip(step)).then_some(made)
    }

    /// A command in one of them.
    fn command(&self, dir: &Dir, at: usize, program: &str, args: &[&str]) -> Command {
        dir.command("ip", &[&["netns", "exec", &self.0[at], program], args].concat())
    }

    /// This program in one of them.
    fn inside(&self, dir: &Dir, at: usize, what: &str) -> Command {
        let program = std::env::current_exe().unwrap();
        let args = ["interop_rawtcp::inside", "--exact", "--ignored", "--nocapture"];
        let mut command = self.command(dir, at, program.to_str().unwrap(), &args);
        command.env(INSIDE, what);
        command
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns del {name}"));
        }
    }
}

fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split(' ')).output().is_ok_and(|output| output.status.success())
}

/// Whether a socket in the network of a process has this port and state there.
fn has_socket(pid: u32, table: &str, port: u16, state: &str) -> bool {
    let port = format!(":{port:04X}");
    ["", "6"].iter().any(|family| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}{family}")).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            fields.len() > 3 && fields[1].ends_with(&port) && fields[3] == state
        })
    })
}

fn wait_for(what: &str, running: &mut Running, condition: impl Fn(u32) -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition(running.pid()) {
        assert!(running.is_running() && Instant::now() < until, "not true: {what}\n{}", running.log());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs root, iproute2, and kcptun-client and kcptun-server with iptables"]
fn segments_of_tcp_pass_both_ways() {
    let Some(networks) = Networks::new() else {
        skipped("no networks can be made");
        return;
    };
    let dir = Dir::new();
    let ours = ["kcptun-client", "kcptun-server"].map(|name| link(&dir, name).to_str().unwrap().to_owned());
    let theirs = ["/usr/bin/kcptun-client", "/usr/bin/kcptun-server"];
    let has_theirs = theirs.iter().all(|path| std::path::Path::new(path).exists());
    let mut echo = Running::start(networks.inside(&dir, 1, "echo"));
    wait_for("the target listens", &mut echo, |pid| has_socket(pid, "tcp", 7000, "0A"));
    for (client, server) in [(&*ours[0], &*ours[1]), (theirs[0], &*ours[1]), (&*ours[0], theirs[1])] {
        if !has_theirs && (client == theirs[0] || server == theirs[1]) {
            skipped("kcptun is not installed");
            continue;
        }
        for host in ["10.213.0.2", "[fd13::2]"] {
            println!("{client} to {server} at {host}");
            let common = ["-tcp", "-key", "k", "-crypt", "aes-128", "-nocomp"];
            let args = [&["-l", ":29900", "-t", TARGET][..], &common].concat();
            let mut server = Running::start(networks.command(&dir, 1, server, &args));
            wait_for("the server listens", &mut server, |pid| has_socket(pid, "tcp", PORT, "0A"));
            let remote = format!("{host}:{PORT}");
            let args = [&["-l", LOCAL, "-r", &remote][..], &common].concat();
            let mut client = Running::start(networks.command(&dir, 0, client, &args));
            wait_for("the client listens", &mut client, |pid| has_socket(pid, "tcp", 8000, "0A"));
            let (status, out) = Running::start(networks.inside(&dir, 0, "client")).end();
            assert!(status.success(), "{out}\nclient: {}\nserver: {}", client.log(), server.log());
            let udp = std::fs::read_to_string(format!("/proc/{}/net/udp", client.pid())).unwrap();
            assert_eq!(udp.lines().count(), 1, "no datagrams went by UDP: {udp}");
        }
    }
}

/// The part that runs in the networks.
#[test]
#[ignore = "is started by the other one"]
fn inside() {
    match std::env::var(INSIDE).as_deref() {
        Ok("echo") => {
            let listener = TcpListener::bind(TARGET).unwrap();
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut block = [0; 65_536];
                    while let Ok(len @ 1..) = stream.read(&mut block) {
                        if stream.write_all(&block[..len]).is_err() {
                            return;
                        }
                    }
                });
            }
        }
        Ok("client") => {
            for len in [1, 30_000, 1_000_000] {
                let mut stream = TcpStream::connect(LOCAL).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                round_trip(&mut stream, len);
            }
        }
        _ => {}
    }
}
