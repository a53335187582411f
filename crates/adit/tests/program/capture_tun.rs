//! `[capture]` with an interface: mode `tun`, mode `auto` where the interface takes UDP and ICMP, questions for names, and
//! `snell-client -tun`. The networks are those of `capture`.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use adit_net::ping::PingSocket;
use adit_net::rt::{self, Cores};

use crate::capture::{C, H, Nets, PORT, R, TARGETS, stop};
use crate::support::{Running, finish, link};

/// Tells this program its role when it is started again in one of the networks.
const INSIDE: &str = "ADIT_TEST_CAPTURE_TUN";
/// A name server that is nowhere: its questions are hijacked.
pub(crate) const RESOLVER: &str = "8.8.8.8:53";
const RESOLVER6: &str = "[2001:db8::53]:53";
pub(crate) const NAME: &str = "target.test";
pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;

/// Questions are answered with fake addresses.
pub(crate) const NAMES: &str = "[dns.fake]\n[[inbound]]\nname = \"names\"\nprotocol = \"dns\"\nlisten = \"[::]:0\"\n\
                                allow = [\"10.1.0.0/24\", \"fd01::/64\", \"127.0.0.0/8\", \"::1\"]\n";

impl Nets {
    pub(crate) fn tun_role(&self, at: usize, role: &str) -> Command {
        let program = std::env::current_exe().unwrap();
        let args = ["capture_tun::inside", "--exact", "--ignored", "--nocapture"];
        let mut command = self.command(at, program.to_str().unwrap(), &args);
        command.env(INSIDE, role);
        command
    }

    /// The answer of a role of this file.
    pub(crate) fn tun_ask(&self, at: usize, role: &str) -> String {
        let (_, out, err) = finish(self.tun_role(at, role), "");
        let line = out.lines().find_map(|line| line.split_once("answer: "));
        line.unwrap_or_else(|| panic!("{role}:\n{out}{err}")).1.to_owned()
    }

    /// A capture with settings, further tables and variables of the environment.
    pub(crate) fn capture_more(&self, settings: &str, more: &str, variable: &str) -> Running {
        self.capture_text(&format!("{}{more}", self.config(settings)), variable)
    }

    /// The capture of a whole file, with variables of the environment.
    pub(crate) fn capture_text(&self, text: &str, variable: &str) -> Running {
        let file = self.dir.file("host.toml", text);
        let mut args = vec![env!("CARGO_BIN_EXE_adit"), "run", "-c", file.to_str().unwrap()];
        if !variable.is_empty() {
            args.insert(0, variable);
        }
        let running = Running::start(self.command(H, "env", &args));
        running.line("capturing, ");
        running.line("listening");
        running
    }

    pub(crate) fn allow_pings(&self, at: usize) {
        assert!(self.set(at, "ipv4/ping_group_range", "0 2147483647"));
    }
}

#[test]
fn mode_tun_captures_everything_and_leaves_nothing() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let settings = "mode = \"tun\"\nlan = \"hc\"\nexclude-uid = [\"nobody\", 1000]";
    let running = nets.capture(settings);
    let line = running.line("capturing, ");
    assert!(
        line.contains("mode=tun") && line.contains("tcp=tun") && line.contains("udp=\"by tun\""),
        "{line}"
    );
    assert!(line.contains("fail-open"), "{line}");
    for at in [H, C] {
        nets.assert_captured(at, &["tcp", "udp"]);
    }
    // A service that answers from the address that was asked goes its way.
    for (host, remote) in [("10.2.0.1", "10.2.0.2"), ("fd02::1", "fd02::2")] {
        assert_eq!(nets.ask(R, &format!("tcp {host} 9")), remote);
    }
    for (user, from) in [("nobody", "10.2.0.1"), ("daemon", "10.9.9.9")] {
        assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT} {user}")), from, "{user}");
    }
    let shown = nets.adit(&["capture", "status"]).1;
    assert!(shown.contains("table adit: captures, of adit (pid ") && shown.contains("table 2022"), "{shown}");
    assert!(nets.sh(H, "ip route show table 2022").contains("congctl cubic"));
    // Nobody else may capture beside it.
    let (status, said) = nets.adit(&["run", "-c", "host.toml"]);
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("another process captures already: adit (pid "), "{said}");
    nets.assert_captured(H, &["tcp"]);
    stop(running);
    nets.assert_as(&before, "after the end");
    // Targets and users that alone are taken.
    let settings = "mode = \"tun\"\ninclude-address = [\"10.9.9.0/24\"]\nexclude-address = \"10.9.9.8\"";
    let running = nets.capture(settings);
    assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")), "10.9.9.9");
    assert_eq!(nets.ask(H, &format!("tcp fd09::9 {PORT}")), "fd02::1", "another family");
    let said = nets.sh(H, "ip route get 10.9.9.8; ip route get 10.9.9.7; ip route get 10.8.8.8");
    let ways: Vec<&str> =
        said.lines().filter_map(|line| line.split(" dev ").nth(1)?.split(' ').next()).collect();
    assert_eq!(ways, ["hr", "adit0", "hr"], "{said}");
    stop(running);
    nets.assert_as(&before, "after the end");
    let file = nets.dir.file("host.toml", &nets.config("mode = \"tun\"\nexclude-gid = 5"));
    let (status, said) = nets.adit(&["run", "-c", file.to_str().unwrap()]);
    assert!(status == 1 && said.contains("mode tun cannot select by group"), "{said}");
}

#[test]
fn mode_auto_has_an_interface_for_what_redirect_leaves() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let running = nets.capture("lan = \"hc\"");
    let line = running.line("capturing, ");
    assert!(line.contains("tcp=redirect") && line.contains("udp=\"by tun\""), "{line}");
    for at in [H, C] {
        nets.assert_captured(at, &["tcp", "udp"]);
    }
    nets.assert_services();
    // Echoes go straight, where the system lets adit ask for them.
    nets.allow_pings(C);
    assert!(nets.tun_ask(C, "ping 10.9.9.9").starts_with("error: "), "adit has no right to ask");
    nets.allow_pings(H);
    for target in TARGETS {
        assert_eq!(nets.tun_ask(H, &format!("ping {target}")), "pong", "{target}");
        assert_eq!(nets.tun_ask(C, &format!("ping {target}")), "pong", "{target}");
    }
    assert!(nets.tun_ask(H, "ping 10.7.7.7").starts_with("error: "), "nobody is there");
    // Rules hold for them too.
    let rules = "[[rule]]\nip-cidr = \"10.9.9.9\"\nreject = \"reset\"\n[[rule]]\nip-cidr = \"fd09::9\"\nreject = \"drop\"\n";
    let text = format!("{}{rules}", nets.config("lan = \"hc\""));
    nets.dir.file("host.toml", &text);
    let (status, said) = nets.adit(&["reload", "-c", "host.toml"]);
    assert_eq!(status, 0, "{said}");
    for target in TARGETS {
        assert!(nets.tun_ask(H, &format!("ping {target}")).starts_with("error: "), "{target}");
    }
    assert_eq!(nets.tun_ask(H, "ping 10.2.0.2"), "pong", "another host");
    let marks = nets.sh(H, "nft list chain inet adit out_mark");
    assert!(
        marks.contains("icmp type echo-request") && marks.contains("icmpv6 type echo-request"),
        "{marks}"
    );
    stop(running);
    assert!(nets.set(H, "ipv4/ping_group_range", "1 0"));
    nets.assert_as(&before, "after the end");
}

#[test]
fn questions_for_names_are_hijacked() {
    let Some(nets) = Nets::with_peers() else { return };
    nets.allow_pings(H);
    for (mode, variable) in [("auto", ""), ("tun", ""), ("auto", "ADIT_TEST_WITHOUT_TABLES=1")] {
        let running = nets.capture_more(&format!("mode = \"{mode}\"\nlan = \"hc\""), NAMES, variable);
        let port = running.address().port();
        let mut fake = String::new();
        for at in [H, C] {
            // Answers are taken from the address that was asked alone.
            for how in ["udp", "tcp"] {
                for server in [RESOLVER, RESOLVER6, "10.2.0.2:53"] {
                    let answer = nets.tun_ask(at, &format!("name {how} {server} {NAME} {A}"));
                    assert!(
                        answer.starts_with("198.18.1"),
                        "{mode} {variable} {at} {how} {server}: {answer}"
                    );
                    fake = answer;
                }
            }
            assert_eq!(nets.tun_ask(at, &format!("name udp {RESOLVER} {NAME} {AAAA}")), "none");
            // The name goes to the server, which knows its addresses.
            let from = nets.ask(at, &format!("tcp {fake} {PORT}"));
            assert!(TARGETS.contains(&&*from), "{mode} {variable} {at}: {from}");
            let from = nets.ask(at, &format!("udp {fake} {PORT}"));
            assert!(TARGETS.contains(&&*from), "{mode} {variable} {at}: {from}");
            let begun = Instant::now();
            let answer = nets.ask(at, &format!("tcp 198.18.255.1 {PORT}"));
            assert!(answer.starts_with("error: ") && begun.elapsed() < Duration::from_secs(20), "{answer}");
        }
        assert_eq!(nets.tun_ask(H, &format!("ping {fake}")), "pong", "a fake address answers");
        assert!(nets.tun_ask(H, "ping 198.18.255.1").starts_with("error: "), "one without a name does not");
        for port in [53, port] {
            for how in ["udp once", "tcp once"] {
                let answer = nets.tun_ask(R, &format!("name {how} 10.2.0.1:{port} {NAME} {A}"));
                assert!(answer.starts_with("error: "), "{mode} {how} {port}: {answer}");
            }
        }
        stop(running);
    }
}

#[test]
fn a_machine_that_lacks_a_part_is_captured_all_the_same() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    for (variable, tcp, udp) in [
        ("ADIT_TEST_WITHOUT_TABLES=1", "tcp=tun", "udp=\"by tun\""),
        ("ADIT_TEST_WITHOUT_INTERFACES=1", "tcp=redirect", "udp=\"by tproxy\""),
    ] {
        let running = nets.capture_more("lan = \"hc\"", "", variable);
        let line = running.line("capturing, ");
        assert!(line.contains(tcp) && line.contains(udp), "{line}");
        for at in [H, C] {
            nets.assert_captured(at, &["tcp", "udp"]);
        }
        stop(running);
        nets.assert_as(&before, variable);
    }
}

/// Forwarded traffic, too, is captured by `tun` of mihomo's files, from the interfaces that they say.
#[test]
fn a_file_of_mihomo_captures_what_is_forwarded() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let program = link(&nets.dir, "mihomo");
    for way in ["auto-route: true", "auto-redirect: true"] {
        for (more, local, forwarded) in [
            ("", true, true),
            (", exclude-interface: [hc]", true, false),
            (", include-interface: [hc]", false, true),
            (", include-interface: [hc, lo]", true, true),
        ] {
            let text = format!(
                "log-level: info\nipv6: true\ntun: {{enable: true, device: adit7, {way}{more}}}\nproxies: [{{name: s, type: ss, \
                 server: 10.2.0.2, port: 8388, cipher: aes-128-gcm, password: x, udp: true}}]\nrules: ['MATCH,s']\n"
            );
            let file = nets.dir.file("config.yaml", &text);
            let (home, file) = (nets.dir.path().to_str().unwrap(), file.to_str().unwrap());
            let running =
                Running::start(nets.command(H, program.to_str().unwrap(), &["-d", home, "-f", file]));
            running.line("capturing, ");
            for (at, is_captured, own) in [(H, local, "10.2.0.1"), (C, forwarded, "10.1.0.2")] {
                let seen = if is_captured { "10.9.9.9" } else { own };
                for network in ["tcp", "udp"] {
                    let asked = nets.ask(at, &format!("{network} 10.9.9.9 {PORT}"));
                    assert_eq!(asked, seen, "{way}{more}: {network} {at}: {}", running.log());
                }
            }
            if !more.contains("include") {
                let seen = nets.ask(C, &format!("tcp 10.2.0.2 {PORT}"));
                assert_eq!(seen, "10.1.0.2", "{way}{more}: between networks");
            }
            stop(running);
            nets.assert_as(&before, way);
        }
    }
}

/// Questions for names of forwarded traffic are answered with the file's fake addresses.
#[test]
fn a_file_of_mihomo_answers_questions_that_are_forwarded() {
    let Some(nets) = Nets::with_peers() else { return };
    let program = link(&nets.dir, "mihomo");
    for way in ["auto-route: true", "auto-redirect: true"] {
        let text = format!(
            "log-level: info\nipv6: true\ndns: {{enable: true, enhanced-mode: fake-ip, nameserver: [10.2.0.2]}}\n\
             tun: {{enable: true, device: adit7, {way}, dns-hijack: ['any:53']}}\nproxies: [{{name: s, type: ss, \
             server: 10.2.0.2, port: 8388, cipher: aes-128-gcm, password: x, udp: true}}]\nrules: ['MATCH,s']\n"
        );
        let file = nets.dir.file("config.yaml", &text);
        let (home, file) = (nets.dir.path().to_str().unwrap(), file.to_str().unwrap());
        let running = Running::start(nets.command(H, program.to_str().unwrap(), &["-d", home, "-f", file]));
        running.line("capturing, ");
        for at in [H, C] {
            for how in ["udp", "tcp"] {
                let answer = nets.tun_ask(at, &format!("name {how} {RESOLVER} {NAME} {A}"));
                assert!(answer.starts_with("198.18."), "{way} {at} {how}: {answer}: {}", running.log());
                let from = nets.ask(at, &format!("tcp {answer} {PORT}"));
                assert!(TARGETS.contains(&&*from), "{way} {at} {how}: {from}");
            }
        }
        // Nobody outside is answered.
        for how in ["udp once", "tcp once"] {
            let answer = nets.tun_ask(R, &format!("name {how} 10.2.0.1:53 {NAME} {A}"));
            assert!(answer.starts_with("error: "), "{way} {how}: {answer}");
        }
        stop(running);
    }
}

/// A resolver of this machine that adit asks, and whose own questions adit would take: both would ask without end.
#[test]
fn a_resolver_of_this_machine_makes_no_loop() {
    let Some(mut nets) = Nets::with_peers() else { return };
    let names = Running::start(nets.tun_role(R, "names 10.9.9.9:53"));
    names.line("serving");
    let role = nets.tun_role(H, "resolver 127.0.0.1:5300 daemon 10.9.9.9:53");
    let resolver = Running::start(role);
    resolver.line("serving");
    nets.running.push(resolver);
    let upstream = "[[dns.upstream]]\nserver = \"127.0.0.1:5300\"\n[[inbound]]\nprotocol = \"dns\"\nlisten = \"127.0.0.1:0\"\n";
    for mode in ["auto", "tun"] {
        let running = nets.capture_more(&format!("mode = \"{mode}\""), upstream, "");
        let name = format!("{mode}.test");
        assert_eq!(nets.tun_ask(H, &format!("name udp {RESOLVER} {name} {A}")), "10.9.9.9", "{mode}");
        let line = format!("question {name}");
        let asked = names.log().lines().filter(|said| **said == line).count();
        assert!((1..=4).contains(&asked), "{mode}: {asked} questions: {}", names.log());
        stop(running);
    }
}

/// The server has a name whose address holds for a second: it is found again while the capture runs, by adit's own questions
/// and not by the fake addresses that others get.
#[test]
fn a_server_whose_name_is_looked_up_again_is_never_captured() {
    let Some(nets) = Nets::with_peers() else { return };
    let names = Running::start(nets.tun_role(R, "names 10.9.9.9:53"));
    names.line("serving");
    let upstream = "[[dns.upstream]]\nserver = \"10.9.9.9\"\n";
    for mode in ["auto", "tun", "tproxy"] {
        let server = format!("{mode}.server.test");
        let config = nets.config(&format!("mode = \"{mode}\""));
        let config = config.replace("10.2.0.2:8388", &format!("{server}:8388"));
        let running = nets.capture_text(&format!("{config}{upstream}{NAMES}"), "");
        let line = format!("question {server}");
        let asked = || names.log().lines().filter(|said| **said == line).count();
        nets.assert_captured(H, &["tcp", "udp"]);
        let (first, deadline) = (asked(), Instant::now() + Duration::from_secs(60));
        while asked() < first + 2 {
            assert!(Instant::now() < deadline, "{mode}: the server is not looked up again");
            thread::sleep(Duration::from_millis(1100));
            nets.assert_captured(H, &["tcp", "udp"]);
        }
        assert!(first > 0, "{mode}");
        // Others that ask for it get its real address too.
        assert_eq!(nets.tun_ask(H, &format!("name udp {RESOLVER} {server} {A}")), "10.9.9.9", "{mode}");
        assert!(nets.tun_ask(H, &format!("name udp {RESOLVER} {NAME} {A}")).starts_with("198.18."), "{mode}");
        stop(running);
    }
}

#[test]
fn snell_client_captures_as_its_section_says() {
    let Some(mut nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let (server, client) = (link(&nets.dir, "snell-server"), link(&nets.dir, "snell-client"));
    let text = "[snell-server]\nlisten = 10.2.0.2:6160\npsk = a shared key of a test\n";
    let file = nets.dir.file("server.conf", text);
    // The server's machine knows the name by its hosts.
    let hosts = format!(
        "mount --bind {0} /etc/hosts && exec {1} -c {2}",
        nets.dir.file("hosts", "10.9.9.9 target.test\n").display(),
        server.display(),
        file.display()
    );
    nets.start(R, "unshare", &["-m", "sh", "-c", &hosts]).line("listening");
    let config = "[snell-client]\nlisten = off\nserver = 10.2.0.2:6160\npsk = a shared key of a test\n\
                  [snell-tun]\nexclude-uid = 1000, nobody\nipv6 = false\nlan = hc\ndirect-ip = 10.8.0.0/16\n";
    let file = nets.dir.file("client.conf", config);
    let begin = || {
        let args = ["-tun", "-c", file.to_str().unwrap()];
        let running = Running::start(nets.command(H, client.to_str().unwrap(), &args));
        running.line("capturing, ");
        running
    };
    let running = begin();
    for at in [H, C] {
        assert_eq!(nets.ask(at, &format!("tcp 10.9.9.9 {PORT}")), "10.9.9.9");
        assert_eq!(nets.ask(at, &format!("udp 10.9.9.9 {PORT}")), "10.9.9.9");
        let fake = nets.tun_ask(at, &format!("name udp {RESOLVER} {NAME} {A}"));
        assert_eq!(fake, "198.18.128.16", "the first of the pool");
        assert_eq!(nets.ask(at, &format!("tcp {fake} {PORT}")), "10.9.9.9");
        // Without IPv6 it fails at once.
        let answer = nets.tun_ask(at, &format!("refused [fd09::9]:{PORT}"));
        let millis: u64 = answer.parse().unwrap_or_else(|_| panic!("{answer}"));
        assert!(millis < 1000, "{millis} ms");
    }
    assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT} nobody")), "10.2.0.1");
    assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT} daemon")), "10.9.9.9");
    assert!(nets.sh(H, "ip addr show snell0").contains("198.18.128.1/17"));
    assert!(nets.sh(H, "nft list set inet adit exclude4").contains("10.8.0.0/16"));
    running.signal("KILL");
    running.end();
    assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")), "10.2.0.1", "straight at once");
    let again = begin();
    assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")), "10.9.9.9");
    stop(again);
    nets.assert_as(&before, "after a kill, a start and a clean end");
}

/// The bar is 10,000 in 64 MB; each takes two descriptors of the process, and many machines allow 20,000.
#[test]
#[ignore = "8,000 connections, some 20 s"]
fn thousands_of_connections_take_little_memory() {
    const COUNT: usize = 8000;
    let Some(nets) = Nets::with_peers() else { return };
    let hold = Running::start(nets.tun_role(R, &format!("hold [::]:{}", PORT + 1)));
    hold.line("serving");
    let running = nets.capture("mode = \"tun\"");
    let before = memory_of(running.pid());
    let target = format!("10.9.9.9:{}", PORT + 1);
    let many = Running::start(nets.tun_role(H, &format!("many {target} {COUNT}")));
    for part in 1..=8 {
        many.line(&format!("answered: {}", COUNT / 8 * part));
    }
    let after = memory_of(running.pid());
    let ((anonymous, all), (_, fresh)) = (after, before);
    println!("{COUNT} connections: {all} KiB, {anonymous} of them anonymous; fresh {fresh}");
    assert!(anonymous * 10_000 / COUNT < 64 * 1024, "{anonymous} KiB");
    assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")), "10.9.9.9", "one more is served");
    many.signal("KILL");
    many.end();
    stop(running);
}

/// Anonymous and all resident memory of a process in KiB.
fn memory_of(pid: u32) -> (usize, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_end_matches(" kB").trim().parse().unwrap()
    };
    (field("RssAnon:"), field("VmRSS:"))
}

#[test]
#[ignore = "a part of the tests above"]
fn inside() {
    let Some(role) = std::env::var_os(INSIDE) else { return };
    let role = role.into_string().unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    let answer = match *words {
        ["ping", host] => ping(host.parse().unwrap()),
        ["name", how, ref once @ .., server, name, kind] => {
            let tries = if once.is_empty() { 5 } else { 1 };
            ask_name(how == "tcp", tries, server.parse().unwrap(), name, kind.parse().unwrap())
        }
        ["refused", target] => refused(target.parse().unwrap()),
        ["unreachable", target] => unreachable(target.parse().unwrap()),
        ["names", at] => return names(at.parse().unwrap()),
        ["resolver", at, user, to] => return resolve(at.parse().unwrap(), user, to.parse().unwrap()),
        ["stream", target] => return stream(target.parse().unwrap()),
        ["hold", at] => return hold(at.parse().unwrap()),
        ["many", target, count] => return many(target.parse().unwrap(), count.parse().unwrap()),
        _ => panic!("{role}"),
    };
    match answer {
        Ok(answer) => println!("\nanswer: {answer}"),
        Err(error) => println!("\nanswer: error: {error}"),
    }
}

fn say(line: &str) {
    std::io::stdout().write_all(format!("\n{line}\n").as_bytes()).unwrap();
}

/// Answers each connection with one byte and keeps it.
fn hold(at: SocketAddr) {
    let listener = std::net::TcpListener::bind(at).unwrap();
    say("serving");
    let mut kept = Vec::new();
    while let Ok((mut stream, _)) = listener.accept() {
        if stream.write_all(b"x").is_ok() {
            kept.push(stream);
        }
    }
}

/// Opens so many connections, and keeps them until it is killed.
fn many(target: SocketAddr, count: usize) {
    let open = |number| {
        let mut stream = TcpStream::connect(target).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        if number % (count / 8) == 0 {
            say(&format!("answered: {number}"));
        }
        stream
    };
    let kept: Vec<TcpStream> = (1..=count).map(open).collect();
    // Until it is killed.
    thread::sleep(Duration::from_secs(600));
    drop(kept);
}

/// Milliseconds until a connection is refused, or reset before a byte has come.
fn refused(target: SocketAddr) -> std::io::Result<String> {
    let (begun, patience) = (Instant::now(), Duration::from_secs(5));
    let connected = TcpStream::connect_timeout(&target, patience);
    let received = connected.and_then(|mut stream| {
        stream.set_read_timeout(Some(patience))?;
        stream.read(&mut [0; 100])
    });
    match received {
        Ok(len) if len > 0 => Err(std::io::Error::other("it is answered")),
        _ => Ok(begun.elapsed().as_millis().to_string()),
    }
}

/// Milliseconds until a datagram is refused.
fn unreachable(target: SocketAddr) -> std::io::Result<String> {
    let socket = UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(target)?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let begun = Instant::now();
    socket.send(b"hello")?;
    match socket.recv(&mut [0; 100]) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            Ok(begun.elapsed().as_millis().to_string())
        }
        Err(error) => Err(error),
        Ok(_) => Err(std::io::Error::other("it is answered")),
    }
}

/// One question for an echo.
fn ping(host: IpAddr) -> std::io::Result<String> {
    let kind = if host.is_ipv4() { [8, 0] } else { [128, 129] };
    let asked = async {
        let socket = PingSocket::connect(host)?;
        socket.send(&[&[kind[0], 0, 0, 0, 0, 0, 0, 1][..], b"echo of a test"].concat())?;
        let mut answer = [0; 100];
        let patience = Duration::from_millis(1500);
        let received = rt::timeout(patience, socket.recv(&mut answer)).await;
        let len = received.unwrap_or_else(|rt::Elapsed| Err(std::io::ErrorKind::TimedOut.into()))?;
        let is_whole = len == 22 && answer[0] == kind[1] && &answer[8..len] == b"echo of a test";
        if is_whole { Ok("pong".to_owned()) } else { Err(std::io::Error::other("another message")) }
    };
    Cores::block_on(asked)?
}

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut out = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out.extend(kind.to_be_bytes());
    out.extend([0, 1]);
    out
}

/// The first address of an answer, `none` for an answer without one. As a resolver does, it asks again when no answer
/// comes, `tries` times in all: a datagram may be lost.
fn ask_name(is_tcp: bool, tries: u32, server: SocketAddr, name: &str, kind: u16) -> std::io::Result<String> {
    let (question, patience) = (question(name, kind), Duration::from_secs(2));
    let answer = if is_tcp {
        let patience = patience * tries;
        let mut stream = TcpStream::connect_timeout(&server, patience)?;
        stream.set_read_timeout(Some(patience))?;
        let len = u16::try_from(question.len()).unwrap().to_be_bytes();
        stream.write_all(&[&len[..], &question].concat())?;
        let mut len = [0; 2];
        stream.read_exact(&mut len)?;
        let mut answer = vec![0; u16::from_be_bytes(len).into()];
        stream.read_exact(&mut answer)?;
        answer
    } else {
        let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(patience))?;
        let mut answer = vec![0; 2000];
        let mut ask = || socket.send(&question).and_then(|_| socket.recv(&mut answer));
        let received = (1..tries).find_map(|_| ask().ok()).map_or_else(&mut ask, Ok);
        answer.truncate(received?);
        answer
    };
    if answer.len() < question.len() || answer[..2] != question[..2] || answer[3] & 15 != 0 {
        return Err(std::io::Error::other(format!("code {:?}", answer.get(3).map(|byte| byte & 15))));
    }
    // The record of the answer: name 2, kind 2, class 2, TTL 4, length 2, address.
    let record = answer.get(question.len() + 12..).filter(|_| answer[7] > 0);
    let four = record.filter(|_| kind != AAAA).and_then(|bytes| bytes.first_chunk::<4>());
    let six = record.filter(|_| kind == AAAA).and_then(|bytes| bytes.first_chunk::<16>());
    let address =
        four.map(|octets| IpAddr::from(*octets)).or_else(|| six.map(|octets| IpAddr::from(*octets)));
    Ok(address.map_or_else(|| "none".to_owned(), |address| address.to_string()))
}

/// A name server that knows one address, and in turns another one for names that move. It says what it is asked.
fn names(at: SocketAddr) {
    let socket = UdpSocket::bind(at).unwrap();
    say("serving");
    let (mut bytes, mut is_there) = ([0; 2000], false);
    while let Ok((len, from)) = socket.recv_from(&mut bytes) {
        let (asked, mut name, mut at) = (&bytes[..len], String::new(), 12);
        while asked[at] != 0 {
            let label = usize::from(asked[at]);
            name += &format!("{}.", String::from_utf8_lossy(&asked[at + 1..at + 1 + label]));
            at += 1 + label;
        }
        let kind = u16::from_be_bytes([asked[at + 1], asked[at + 2]]);
        say(&format!("question {}", name.trim_end_matches('.')));
        let mut answer = asked[..at + 5].to_vec();
        (answer[2], answer[3]) = (0x81, 0x80);
        answer[4..12].copy_from_slice(&[0, 1, 0, u8::from(kind == A), 0, 0, 0, 0]);
        if kind == A {
            is_there = !is_there && name.starts_with("moving.");
            let address = if is_there { [10, 2, 0, 2] } else { [10, 9, 9, 9] };
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
            answer.extend(address);
        }
        socket.send_to(&answer, from).unwrap();
    }
}

/// A resolver that passes questions on, as a user of its own.
fn resolve(at: SocketAddr, user: &str, to: SocketAddr) {
    let socket = UdpSocket::bind(at).unwrap();
    adit_net::User::find(user).unwrap().assume().unwrap();
    say("serving");
    let mut bytes = [0; 2000];
    while let Ok((len, from)) = socket.recv_from(&mut bytes) {
        let (question, socket) = (bytes[..len].to_vec(), socket.try_clone().unwrap());
        thread::spawn(move || {
            let further = UdpSocket::bind("0.0.0.0:0").unwrap();
            further.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            further.send_to(&question, to).unwrap();
            let mut answer = [0; 2000];
            if let Ok((len, _)) = further.recv_from(&mut answer) {
                socket.send_to(&answer[..len], from).unwrap();
            }
        });
    }
}

/// Sends and gets back bytes until that fails.
fn stream(target: SocketAddr) {
    let stream = TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (mut reader, mut writer) = (stream.try_clone().unwrap(), stream);
    thread::spawn(move || while writer.write_all(&[7; 16_384]).is_ok() {});
    let (mut bytes, mut received, mut is_said) = ([0; 16_384], 0, false);
    while let Ok(len) = reader.read(&mut bytes) {
        received += len;
        if len == 0 {
            break;
        }
        if received > 1 << 20 && !is_said {
            say("streaming");
            is_said = true;
        }
    }
    say("ended");
}
