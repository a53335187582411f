//! `[capture]`, `ss-redir` and `ss-nat` between three networks on this machine.
//!
//! ```text
//!   lan client (c) ── host with adit (h) ── remote (r): a Shadowsocks server, and targets at 10.9.9.9 and fd09::9
//! ```
//!
//! A target says where a connection came from: from itself (the server) if it was captured, else from the host or client.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::{has_nftables, has_tun, may_make_networks, skipped};

use crate::support::{Dir, PATIENCE, Running, finish, link, signal};
use crate::upgrade::{Successors, is_alive, wait_until};

/// Tells this program its role when it is started again in one of the networks.
const INSIDE: &str = "ADIT_TEST_CAPTURE";
pub(crate) const TARGETS: [&str; 2] = ["10.9.9.9", "fd09::9"];
pub(crate) const PORT: u16 = 7;
pub(crate) const SERVICE: u16 = 9;
const LEN: usize = 200_000;

/// Three networks, removed when dropped.
pub(crate) struct Nets {
    pub(crate) names: [String; 3],
    pub(crate) dir: Dir,
    pub(crate) running: Vec<Running>,
}

pub(crate) const C: usize = 0;
pub(crate) const H: usize = 1;
pub(crate) const R: usize = 2;

pub(crate) fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split(' ')).output().is_ok_and(|output| output.status.success())
}

impl Nets {
    /// `None` without the right to make networks, rules and interfaces, which is said.
    fn new() -> Option<Self> {
        if !may_make_networks() || !has_nftables() || !has_tun() {
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let names = ["c", "h", "r"].map(|end| format!("adcap{id}{end}"));
        let nets = Self { names, dir: Dir::new(), running: Vec::new() };
        let [c, h, r] = &nets.names;
        let mut steps: Vec<String> = Vec::new();
        for name in &nets.names {
            steps.extend([format!("netns add {name}"), format!("-n {name} link set lo up")]);
        }
        steps.extend([
            format!("link add hc netns {h} type veth peer name ch netns {c}"),
            format!("link add hr netns {h} type veth peer name rh netns {r}"),
        ]);
        for (name, link, v4, v6) in [
            (h, "hc", "10.1.0.1", "fd01::1"),
            (c, "ch", "10.1.0.2", "fd01::2"),
            (h, "hr", "10.2.0.1", "fd02::1"),
            (r, "rh", "10.2.0.2", "fd02::2"),
        ] {
            steps.extend([
                format!("-n {name} addr add {v4}/24 dev {link}"),
                format!("-n {name} addr add {v6}/64 dev {link} nodad"),
                format!("-n {name} link set {link} up"),
            ]);
        }
        for (name, via4, via6) in
            [(c, "10.1.0.1", "fd01::1"), (r, "10.2.0.1", "fd02::1"), (h, "10.2.0.2", "fd02::2")]
        {
            steps.extend([
                format!("-n {name} route add default via {via4}"),
                format!("-n {name} -6 route add default via {via6}"),
            ]);
        }
        steps.extend([
            format!("-n {r} addr add 10.9.9.9/32 dev lo"),
            format!("-n {r} addr add fd09::9/128 dev lo nodad"),
        ]);
        for step in &steps {
            if !ip(step) {
                skipped(format_args!("networks cannot be made: ip {step}"));
                return None;
            }
        }
        let has_forwarding =
            nets.set(H, "ipv4/ip_forward", "1") && nets.set(H, "ipv6/conf/all/forwarding", "1");
        if !has_forwarding {
            skipped("settings of a network cannot be written in /proc/sys");
        }
        has_forwarding.then_some(nets)
    }

    /// The networks with the server, the targets and the services of the host.
    pub(crate) fn with_peers() -> Option<Self> {
        let mut nets = Self::new()?;
        let server = "[[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \":8388\"\nmethod = \"aes-128-gcm\"\n\
                      password = \"x\"\nnetwork = \"tcp-and-udp\"\nallow-private = true\n\
                      [[dns.hosts]]\nname = \"target.test\"\naddress = [\"10.9.9.9\", \"fd09::9\"]\n";
        let file = nets.dir.file("server.toml", server);
        nets.start(R, env!("CARGO_BIN_EXE_adit"), &["run", "-c", file.to_str().unwrap()]).line("listening");
        for (at, port) in [(R, PORT), (H, SERVICE)] {
            let role = nets.role(at, &format!("serve {port}"));
            let running = Running::start(role);
            running.line("serving");
            nets.running.push(running);
        }
        Some(nets)
    }

    pub(crate) fn command(&self, at: usize, program: &str, args: &[&str]) -> Command {
        self.dir.command("ip", &[&["netns", "exec", &self.names[at], program], args].concat())
    }

    /// A program that runs as long as the networks.
    pub(crate) fn start(&mut self, at: usize, program: &str, args: &[&str]) -> &Running {
        let running = Running::start(self.command(at, program, args));
        self.running.push(running);
        self.running.last().unwrap()
    }

    pub(crate) fn sh(&self, at: usize, text: &str) -> String {
        let (_, out, err) = finish(self.command(at, "sh", &["-c", text]), "");
        out + &err
    }

    /// Writes a setting of a network, named from `/proc/sys/net`; false if it cannot be written.
    pub(crate) fn set(&self, at: usize, name: &str, value: &str) -> bool {
        let text = format!("echo '{value}' > /proc/sys/net/{name}");
        finish(self.command(at, "sh", &["-c", &text]), "").0 == 0
    }

    pub(crate) fn adit(&self, args: &[&str]) -> (i32, String) {
        let (status, out, err) = finish(self.command(H, env!("CARGO_BIN_EXE_adit"), args), "");
        (status, out + &err)
    }

    fn role(&self, at: usize, role: &str) -> Command {
        let program = std::env::current_exe().unwrap();
        let args = ["capture::inside", "--exact", "--ignored", "--nocapture"];
        let mut command = self.command(at, program.to_str().unwrap(), &args);
        command.env(INSIDE, role);
        command
    }

    /// A program that starts the plugin of this file.
    pub(crate) fn plugin(&self) -> PathBuf {
        let test = std::env::current_exe().unwrap();
        let text = format!(
            "#!/bin/sh\nexec env {INSIDE}=plugin {test:?} capture::inside --exact --ignored --nocapture\n"
        );
        let path = self.dir.file("plugin", &text);
        std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        path
    }

    /// The answer of a role: the source that the target saw, or an error.
    pub(crate) fn ask(&self, at: usize, role: &str) -> String {
        let (_, out, err) = finish(self.role(at, role), "");
        let line = out.lines().find_map(|line| line.split_once("answer: "));
        line.unwrap_or_else(|| panic!("{role}:\n{out}{err}")).1.to_owned()
    }

    /// The host's rules, routes and settings; link-local addresses come late by themselves.
    pub(crate) fn snapshot(&self) -> Vec<String> {
        let text = self.sh(
            H,
            "nft list ruleset; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; \
             for name in rp_filter forwarding route_localnet src_valid_mark accept_local; do \
             grep -s . /proc/sys/net/ipv[46]/conf/*/$name; done",
        );
        text.lines().filter(|line| !line.contains("fe80")).map(str::to_owned).collect()
    }

    /// Nothing has changed since the snapshot `before`.
    pub(crate) fn assert_as(&self, before: &[String], when: &str) {
        let now = self.snapshot();
        let only = |a: &[String], b: &[String]| -> Vec<String> {
            a.iter().filter(|line| !b.contains(line)).cloned().collect()
        };
        assert_eq!((only(&now, before), only(before, &now)), (Vec::new(), Vec::new()), "{when}");
    }

    /// Starts a capture with these settings.
    pub(crate) fn capture(&self, settings: &str) -> Running {
        self.capture_with(settings, "")
    }

    pub(crate) fn capture_with(&self, settings: &str, variable: &str) -> Running {
        let file = self.dir.file("host.toml", &self.config(settings));
        let args = [variable, env!("CARGO_BIN_EXE_adit"), "run", "-c", file.to_str().unwrap()];
        let args = if variable.is_empty() { &args[1..] } else { &args[..] };
        let running = Running::start(self.command(H, "env", args));
        running.line("capturing, ");
        running.line("listening");
        running
    }

    pub(crate) fn config(&self, settings: &str) -> String {
        let socket = self.dir.path().join("host.sock");
        format!(
            "cores = 2\n[admin]\nsocket = {socket:?}\n[capture]\n{settings}\n[[outbound]]\nname = \"home\"\n\
             protocol = \"shadowsocks\"\nserver = \"10.2.0.2:8388\"\nmethod = \"aes-128-gcm\"\npassword = \"x\"\n\
             network = \"tcp-and-udp\"\n"
        )
    }

    pub(crate) fn assert_captured(&self, at: usize, networks: &[&str]) {
        for target in TARGETS {
            for network in networks {
                assert_eq!(self.ask(at, &format!("{network} {target} {PORT}")), target, "{network} {at}");
            }
        }
    }

    /// Services of the host answer the remote, by TCP and from wildcard sockets by UDP.
    pub(crate) fn assert_services(&self) {
        for (host, remote) in [("10.2.0.1", "10.2.0.2"), ("fd02::1", "fd02::2")] {
            for network in ["tcp", "udp"] {
                assert_eq!(self.ask(R, &format!("{network} {host} {SERVICE}")), remote, "{network}");
            }
        }
    }
}

impl Drop for Nets {
    fn drop(&mut self) {
        self.running.clear();
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

/// The process of adit that a command in a network has become.
pub(crate) fn stop(running: Running) -> String {
    running.signal("TERM");
    running.end().1
}

#[test]
fn each_mode_captures_and_leaves_nothing() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let target = |network: &str, more: &str| format!("{network} 10.9.9.9 {PORT}{more}");
    assert_eq!(nets.ask(H, &target("tcp", "")), "10.2.0.1", "nothing is captured yet");
    for (mode, networks) in
        [("redirect", &["tcp"][..]), ("tproxy", &["tcp", "udp"]), ("auto", &["tcp", "udp"])]
    {
        let running =
            nets.capture(&format!("mode = \"{mode}\"\nlan = \"hc\"\nexclude-uid = [\"nobody\", 1000]"));
        let line = running.line("capturing, ");
        assert!(line.contains("fail-open") && line.contains(&format!("mode={mode}")), "{line}");
        let listening = running.line("listening");
        assert!(!listening.contains("network="), "an absent fact is in the line: {listening}");
        nets.assert_captured(H, networks);
        nets.assert_captured(C, networks);
        nets.assert_services();
        // The excluded user exactly, and sockets that are bound to an interface.
        assert_eq!(nets.ask(H, &target("tcp", " nobody")), "10.2.0.1", "{mode}");
        assert_eq!(nets.ask(H, &target("tcp", " daemon")), "10.9.9.9", "{mode}");
        assert_eq!(nets.ask(H, &target("tcp", " dev:hr")), "10.9.9.9", "{mode}");
        assert_eq!(nets.ask(H, &format!("tcp fd09::9 {PORT} dev:hr")), "fd09::9", "{mode}");
        // Nobody who asks the listener itself is answered.
        let own = running.address().port();
        for (at, host) in [(R, "10.2.0.1"), (C, "10.1.0.1"), (H, "127.0.0.1"), (H, "10.2.0.1")] {
            let answer = nets.ask(at, &format!("tcp {host} {own}"));
            assert!(answer.starts_with("error: "), "{mode}: {host}: {answer}");
        }
        let (_, shown) = nets.adit(&["capture", "status"]);
        assert!(shown.contains("table adit: captures, of adit (pid "), "{shown}");
        stop(running);
        nets.assert_as(&before, mode);
    }
}

/// Forwarded traffic is captured from all interfaces, but for what stays between networks of this machine's routes: a peer
/// outside reaches a service behind it as before.
#[test]
fn forwarded_traffic_of_all_interfaces_is_captured() {
    let Some(mut nets) = Nets::with_peers() else { return };
    let role = Running::start(nets.role(C, &format!("serve {SERVICE}")));
    role.line("serving");
    nets.running.push(role);
    let before = nets.snapshot();
    let straight = [("10.9.9.9", "10.1.0.2"), ("fd09::9", "fd01::2")];
    for (mode, networks) in [
        ("redirect", &["tcp"][..]),
        ("tproxy", &["tcp", "udp"]),
        ("auto", &["tcp", "udp"]),
        ("tun", &["tcp", "udp"]),
    ] {
        let running = nets.capture(&format!("mode = \"{mode}\"\nlan = \"*\""));
        assert!(running.line("capturing, ").contains("lan=all"), "{mode}");
        nets.assert_captured(C, networks);
        nets.assert_captured(H, networks);
        // The remote's own address serves TCP alone.
        for (from, network, to, port, seen) in [
            (C, "tcp", "10.2.0.2", PORT, "10.1.0.2"),
            (C, "tcp", "fd02::2", PORT, "fd01::2"),
            (R, "tcp", "10.1.0.2", SERVICE, "10.2.0.2"),
            (R, "tcp", "fd01::2", SERVICE, "fd02::2"),
            (R, "udp", "10.1.0.2", SERVICE, "10.2.0.2"),
            (R, "udp", "fd01::2", SERVICE, "fd02::2"),
        ] {
            assert_eq!(nets.ask(from, &format!("{network} {to} {port}")), seen, "{mode} {network} {to}");
        }
        for (host, remote) in [("10.2.0.1", "10.2.0.2"), ("fd02::1", "fd02::2")] {
            assert_eq!(nets.ask(R, &format!("tcp {host} {SERVICE}")), remote, "{mode}");
        }
        stop(running);
        nets.assert_as(&before, mode);
        let running = nets.capture(&format!("mode = \"{mode}\"\nlan = \"*\"\nexclude-lan = \"hc\""));
        for (target, seen) in straight {
            assert_eq!(nets.ask(C, &format!("tcp {target} {PORT}")), seen, "{mode}: excluded");
        }
        nets.assert_captured(H, &["tcp"]);
        stop(running);
        nets.assert_as(&before, mode);
        let running = nets.capture(&format!("mode = \"{mode}\"\nlan = \"*\"\nlocal = false"));
        nets.assert_captured(C, &["tcp"]);
        assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")), "10.2.0.1", "{mode}: not local");
        stop(running);
        nets.assert_as(&before, mode);
    }
}

/// An interface that is not there is named, and again when it comes and goes.
#[test]
fn interfaces_that_are_not_there_are_named() {
    let Some(nets) = Nets::with_peers() else { return };
    let host = nets.names[H].clone();
    for mode in ["auto", "tun"] {
        let more = if mode == "auto" { "\nexclude-interface = \"wg9\"" } else { "" };
        let running = nets.capture(&format!("mode = \"{mode}\"\nlan = [\"hc\", \"br9\"]{more}"));
        let absent = |count: usize| {
            let said = |log: &str| log.matches("capture.lan: no such interface on this machine: br9").count();
            wait_until("br9 is missed", || said(&running.log()) == count);
        };
        absent(1);
        assert_eq!(running.log().contains("capture.exclude-interface: no such interface"), mode == "auto");
        assert!(!running.log().contains("machine: hc"), "{}", running.log());
        assert!(ip(&format!("-n {host} link add br9 type veth peer name br9p")));
        running.line("capture.lan: interface br9 is there now");
        assert!(ip(&format!("-n {host} link del br9")));
        absent(2);
        let (_, said) = nets.adit(&["check", "-c", "host.toml"]);
        assert!(said.contains("capture.lan: no such interface on this machine: br9"), "{said}");
        let (_, said) = nets.adit(&["doctor", "--offline", "-c", "host.toml"]);
        assert!(said.contains("capture.lan: no such interface on this machine: br9"), "{said}");
        stop(running);
    }
    // Without a word about others' traffic, it is told that it goes straight.
    let running = nets.capture("");
    running.line("this machine forwards traffic of others, which is not captured");
    stop(running);
}

#[test]
fn a_strict_reverse_path_filter_disturbs_nothing() {
    let Some(nets) = Nets::with_peers() else { return };
    for name in ["all", "hc", "hr"] {
        assert!(nets.set(H, &format!("ipv4/conf/{name}/rp_filter"), "1"), "{name}");
    }
    for mode in ["tproxy", "auto"] {
        let running = nets.capture(&format!("mode = \"{mode}\"\nlan = \"hc\""));
        nets.assert_captured(H, &["tcp", "udp"]);
        nets.assert_captured(C, &["tcp", "udp"]);
        stop(running);
    }
}

#[test]
fn a_kill_leaves_nothing_that_cuts_the_host_off() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let straight = |nets: &Nets| {
        assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")), "10.2.0.1");
        assert_eq!(nets.ask(H, &format!("tcp fd09::9 {PORT}")), "fd02::1");
    };
    // With an owner, and by the second process where the kernel knows none.
    for variable in ["", "ADIT_TEST_WITHOUT_TABLE_OWNER=1"] {
        let running = nets.capture_with("lan = \"hc\"", variable);
        nets.assert_captured(H, &["tcp"]);
        let others = nets.adit(&["capture", "clean"]);
        if variable.is_empty() {
            assert_eq!(others.0, 1, "one that runs is left alone: {}", others.1);
            assert!(others.1.contains("another process captures already: adit (pid "), "{}", others.1);
            // Other programs cannot take the rules away either.
            nets.sh(H, "nft flush ruleset");
            nets.assert_captured(H, &["tcp", "udp"]);
        }
        running.signal("KILL");
        running.end();
        let deadline = Instant::now() + PATIENCE;
        while nets.sh(H, "nft list tables").contains("adit") {
            assert!(Instant::now() < deadline, "{variable}: the table stays");
            thread::sleep(Duration::from_millis(20));
        }
        straight(&nets);
    }
    let running = nets.capture("lan = \"hc\"");
    nets.assert_captured(H, &["tcp"]);
    let second = nets.adit(&["run", "-c", "host.toml"]);
    assert_eq!(second.0, 1, "{}", second.1);
    assert!(second.1.contains("another process captures already: adit (pid "), "{}", second.1);
    nets.assert_captured(H, &["tcp", "udp"]);
    stop(running);
    nets.assert_as(&before, "after the end");
}

/// The socket that owns the table goes from one process to the next: nothing in the kernel changes. `capture_upgrade` has the
/// modes with an interface.
#[test]
fn an_upgrade_leaves_the_rules_as_they_are() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let mut running = nets.capture("lan = \"hc\"\nmode = \"tproxy\"");
    nets.assert_captured(H, &["tcp", "udp"]);
    // `nft` names the process that the owner's number is, which ends.
    let shown = |nets: &Nets| -> Vec<String> {
        nets.snapshot().into_iter().filter(|line| !line.contains("progname")).collect()
    };
    let captured = shown(&nets);
    // A configuration that captures something else is refused.
    let file = nets.dir.path().join("host.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("[capture]", "[capture]\nexclude-address = \"198.51.100.0/24\""))
        .unwrap();
    let (status, out) = nets.adit(&["upgrade", "-c", "host.toml"]);
    assert!(status == 1 && out.contains("`adit reload` first"), "{out}");
    assert_eq!(shown(&nets), captured);
    std::fs::write(&file, text).unwrap();
    let (status, out) = nets.adit(&["upgrade", "-c", "host.toml", "--drain", "1s"]);
    assert_eq!(status, 0, "{out}");
    let mut successors = Successors::default();
    let pid = successors.note(&out);
    assert_eq!(shown(&nets), captured, "the new process has changed nothing");
    wait_until("the old process ends", || !running.is_running());
    assert_eq!(shown(&nets), captured, "nor has the end of the old one");
    nets.assert_captured(H, &["tcp", "udp"]);
    nets.assert_captured(C, &["tcp", "udp"]);
    signal(pid, "TERM");
    wait_until("the new process ends", || !is_alive(pid));
    nets.assert_as(&before, "a clean stop leaves nothing");
}

#[test]
fn strict_refuses_after_a_kill() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let running = nets.capture("strict = true\nlan = \"hc\"\nmode = \"tproxy\"");
    assert!(running.line("capturing, ").contains("fail-closed"));
    nets.assert_captured(H, &["tcp", "udp"]);
    nets.assert_captured(C, &["tcp", "udp"]);
    running.signal("KILL");
    running.end();
    for at in [H, C] {
        for network in ["tcp", "udp"] {
            let answer = nets.ask(at, &format!("{network} 10.9.9.9 {PORT}"));
            assert!(answer.starts_with("error: "), "{network}: {answer}");
        }
    }
    nets.assert_services();
    let (status, said) = nets.adit(&["capture", "clean"]);
    assert_eq!(status, 0, "{said}");
    assert!(said.starts_with("removed:\n") && said.contains("adit_strict"), "{said}");
    nets.assert_as(&before, "after the end");
    assert_eq!(nets.adit(&["capture", "clean"]).1, "nothing was left\n");
    let running = nets.capture("strict = true");
    nets.assert_captured(H, &["tcp", "udp"]);
    stop(running);
    nets.assert_as(&before, "a clean stop leaves nothing");
}

#[test]
fn a_reload_changes_the_rules_of_the_same_socket() {
    let Some(nets) = Nets::with_peers() else { return };
    let running = nets.capture("");
    let owner = |nets: &Nets| nets.adit(&["capture", "status"]).1.lines().next().unwrap().to_owned();
    let before = owner(&nets);
    nets.dir.file("host.toml", &nets.config("exclude-address = \"10.9.9.9\""));
    let (status, said) = nets.adit(&["reload", "-c", "host.toml"]);
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("settings changed: capture"), "{said}");
    assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")), "10.2.0.1");
    assert_eq!(nets.ask(H, &format!("tcp fd09::9 {PORT}")), "fd09::9");
    assert_eq!(owner(&nets), before);
    let (_, said) = nets.adit(&["explain", "-c", "host.toml", "--to", "10.9.9.9:443"]);
    assert!(said.contains("not captured: capture.exclude-address has 10.9.9.9\n"), "{said}");
    let (_, said) = nets.adit(&["explain", "-c", "host.toml", "--to", "10.9.9.8:443"]);
    assert!(said.contains("from an application of this machine: captured by redirect"), "{said}");
    // Without the right, the capture tells what helps, and nothing is left.
    stop(running);
    let snapshot = nets.snapshot();
    let adit = env!("CARGO_BIN_EXE_adit");
    let args = ["--bounding-set=-net_admin", "--inh-caps=-net_admin", adit, "run", "-c", "host.toml"];
    let (status, out, err) = finish(nets.command(H, "setpriv", &args), "");
    assert_eq!(status, 1, "{out}{err}");
    assert!(err.contains("no right to administer the network (CAP_NET_ADMIN)"), "{err}");
    assert!(err.contains("hint: run as root, or `sudo setcap cap_net_admin+ep"), "{err}");
    nets.assert_as(&snapshot, "a start without the right");
}

#[test]
fn ss_redir_serves_rules_of_ss_nat() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let redir = link(&nets.dir, "ss-redir");
    let nat = link(&nets.dir, "ss-nat");
    let args = "-s 10.2.0.2 -p 8388 -l 1080 -b 0.0.0.0 -k x -m aes-128-gcm -u";
    let args: Vec<&str> = args.split(' ').collect();
    let running = Running::start(nets.command(H, redir.to_str().unwrap(), &args));
    running.line("listening");
    let rules = |flags: &str| {
        let flags: Vec<&str> = flags.split(' ').collect();
        let (status, out, err) = finish(nets.command(H, nat.to_str().unwrap(), &flags), "");
        assert_eq!(status, 0, "{out}{err}");
    };
    rules("-s 10.2.0.2 -l 1080 -I hc -w 10.9.0.0/16 -o -u");
    for at in [H, C] {
        assert_eq!(nets.ask(at, &format!("tcp 10.9.9.9 {PORT}")), "10.9.9.9");
    }
    assert_eq!(nets.ask(C, &format!("udp 10.9.9.9 {PORT}")), "10.9.9.9");
    assert_eq!(nets.ask(H, &format!("udp 10.9.9.9 {PORT}")), "10.2.0.1", "datagrams of clients alone");
    // A client that asks the port itself gets nothing, and starts no loop.
    for (at, host) in [(R, "10.2.0.1"), (C, "10.1.0.1"), (H, "127.0.0.1")] {
        let answer = nets.ask(at, &format!("tcp {host} 1080"));
        assert!(answer.starts_with("error: "), "{answer}");
    }
    nets.assert_services();
    rules("-s 10.2.0.2 -l 1080 -I hc -w 10.9.0.0/16 -a b10.1.0.2");
    assert_eq!(nets.ask(C, &format!("tcp 10.9.9.9 {PORT}")), "10.1.0.2", "a client that is exempt");
    assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")), "10.2.0.1");
    rules("-f");
    stop(running);
    nets.assert_as(&before, "after the end");
}

#[test]
#[ignore = "a part of the tests above"]
fn inside() {
    let Some(role) = std::env::var_os(INSIDE) else { return };
    let role = role.into_string().unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    if words[0] == "serve" {
        return serve(words[1].parse().unwrap());
    }
    if words[0] == "plugin" {
        return plugin();
    }
    let target = SocketAddr::new(words[1].parse().unwrap(), words[2].parse().unwrap());
    let answer = match words[0] {
        "tcp" => ask_tcp(target, words.get(3).copied()),
        _ => ask_udp(target),
    };
    match answer {
        Ok(source) => println!("\nanswer: {source}"),
        Err(error) => println!("\nanswer: error: {error}"),
    }
}

/// Tells each client its address, and sends back what it sends.
fn serve(port: u16) {
    // The host's service has a wildcard socket; a target answers from the address that was asked.
    let targets: Vec<UdpSocket> =
        TARGETS.iter().filter_map(|target| UdpSocket::bind((*target, port)).ok()).collect();
    let sockets = if targets.is_empty() { vec![UdpSocket::bind(("::", port)).unwrap()] } else { targets };
    for udp in sockets {
        thread::spawn(move || {
            let mut bytes = vec![0; 65_536];
            while let Ok((len, from)) = udp.recv_from(&mut bytes) {
                let answer = format!("{} {len}", from.ip().to_canonical());
                udp.send_to(answer.as_bytes(), from).ok();
            }
        });
    }
    let listener = TcpListener::bind(("::", port)).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let from = stream.peer_addr().unwrap().ip().to_canonical();
                stream.write_all(format!("{from}\n").as_bytes()).ok();
                let mut reader = stream.try_clone().unwrap();
                std::io::copy(&mut reader, &mut stream).ok();
            });
        }
    });
    std::io::stdout().write_all(b"\nserving\n").unwrap();
    // Until it is killed.
    thread::sleep(Duration::from_secs(600));
}

/// A plugin of SIP003 that changes nothing.
fn plugin() {
    let end = |end: &str| {
        let word = |what: &str| std::env::var(format!("SS_{end}_{what}")).unwrap();
        SocketAddr::new(word("HOST").parse().unwrap(), word("PORT").parse().unwrap())
    };
    let (listener, remote) = (TcpListener::bind(end("LOCAL")).unwrap(), end("REMOTE"));
    for near in listener.incoming().map_while(Result::ok) {
        // One that is refused ends the client's connection.
        let Ok(far) = TcpStream::connect_timeout(&remote, Duration::from_secs(3)) else { continue };
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            thread::spawn(move || {
                std::io::copy(&mut from, &mut to).ok();
                to.shutdown(Shutdown::Write).ok();
            });
        }
    }
}

/// Connects as a user, or from an interface (`dev:NAME`), and sends some bytes there and back.
fn ask_tcp(target: SocketAddr, how: Option<&str>) -> std::io::Result<String> {
    let timeout = Duration::from_secs(3);
    let stream = match how.map(|how| how.strip_prefix("dev:").ok_or(how)) {
        Some(Ok(interface)) => return ask_bound(target, interface),
        Some(Err(user)) => {
            adit_net::User::find(user)?.assume()?;
            TcpStream::connect_timeout(&target, timeout)?
        }
        None => TcpStream::connect_timeout(&target, timeout)?,
    };
    exchange(stream)
}

fn exchange(stream: TcpStream) -> std::io::Result<String> {
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut source = String::new();
    reader.read_line(&mut source)?;
    if source.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let mut writer = stream;
    let sending = thread::spawn(move || writer.write_all(&vec![7; LEN]));
    let mut back = vec![0; LEN];
    reader.read_exact(&mut back)?;
    sending.join().unwrap()?;
    Ok(source.trim_end().to_owned())
}

/// The same by a socket that is bound to an interface: adit's own dialler has such.
fn ask_bound(target: SocketAddr, interface: &str) -> std::io::Result<String> {
    use adit_model::{Dial, Egress};
    use adit_net::rt::Cores;

    let egress = Egress { interface: Some(interface.into()), ..Egress::default() };
    let dial = Dial { egress, timeout: Duration::from_secs(3), ..Dial::default() };
    let stream = Cores::block_on(async {
        let dialled = adit_net::dial::Dialer::by_system(&dial).dial_addrs(&[target]).await;
        dialled.map_err(std::io::Error::other)?.into_std()
    })??;
    stream.set_nonblocking(false)?;
    exchange(stream)
}

/// Three datagrams from one socket, each answered from the address that was asked.
fn ask_udp(target: SocketAddr) -> std::io::Result<String> {
    let any: IpAddr = if target.is_ipv4() { "0.0.0.0".parse().unwrap() } else { "::".parse().unwrap() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut source = String::new();
    for len in [10, 1200, 1] {
        socket.send_to(&vec![1; len], target)?;
        let mut bytes = [0; 100];
        let (received, from) = socket.recv_from(&mut bytes)?;
        let answer = String::from_utf8_lossy(&bytes[..received]).into_owned();
        let (at, echoed) = answer.split_once(' ').unwrap_or_default();
        if from != target || echoed != len.to_string() {
            return Err(std::io::Error::other(format!("from {from}: {answer}")));
        }
        source = at.to_owned();
    }
    Ok(source)
}
