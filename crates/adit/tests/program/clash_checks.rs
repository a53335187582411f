//! Checks of rules, groups and the control interface of mihomo, over the whole program. Most of them hold for mihomo, too:
//! `ADIT_TEST_IN_PLACE=PATH` puts it in the place of adit.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::{unused_localhost, wait_for};
use serde_json::Value;

use crate::clash_api::{ask, core, get, is_about_adit, mihomo, peer, put, websocket};
use crate::support::{Dir, Running, echo, link, round_trip, socks5};

const SECRET: (&str, &str) = ("Authorization", "Bearer s3cret");

/// Check 4: a choice is kept over a restart, and one that is not possible changes nothing.
#[test]
fn the_cycle_of_a_choice() {
    let core = core();
    let at = core.at;
    let now = |group: &str| get(at, &format!("/proxies/{group}"))["now"].clone();
    assert_eq!(now("Proxy"), "p-ss");
    assert_eq!(put(at, "PUT", "/proxies/Proxy", r#"{"name":"p-snell"}"#), 204);
    assert_eq!(now("Proxy"), "p-snell");
    let answer = ask(at, "PUT", "/proxies/Proxy", &[SECRET], r#"{"name":"nobody"}"#);
    assert_eq!((answer.status, now("Proxy")), (400, "p-snell".into()), "{}", answer.body);
    assert_eq!(put(at, "PUT", "/proxies/Auto", r#"{"name":"p-http"}"#), 204);
    assert_eq!(get(at, "/proxies/Auto")["fixed"], "p-http");
    assert_eq!(put(at, "DELETE", "/proxies/Auto", ""), 204);
    assert_eq!(get(at, "/proxies/Auto")["fixed"], "");
    drop(core.running);
    let running = mihomo(&core.dir, &[]);
    running.line("RESTful API listening at");
    assert_eq!(now("Proxy"), "p-snell");
}

/// Check 4, further: a restart that a control program asks for keeps the process and the choice, and ends connections.
#[test]
fn a_restart_from_a_dashboard() {
    let core = core();
    assert_eq!(put(core.at, "PUT", "/proxies/Proxy", r#"{"name":"p-snell"}"#), 204);
    let mut held = websocket(core.at, "/traffic?token=s3cret");
    let answer = ask(core.at, "POST", "/restart", &[SECRET], "");
    assert_eq!((answer.status, &answer.json()["status"]), (200, &"ok".into()), "{}", answer.body);
    let begins = || core.running.log().matches("RESTful API listening at").count();
    wait_for("the second start", || begins() == 2);
    let now = || ask(core.at, "GET", "/proxies/Proxy", &[SECRET], "").json()["now"].clone();
    wait_for("the choice", || now() == "p-snell");
    held.set_nonblocking(false).unwrap();
    std::io::copy(&mut held, &mut std::io::sink()).ok();
    // mihomo takes signals a moment after its last line only.
    thread::sleep(before_signals());
    core.running.signal("TERM");
    let (status, log) = core.running.end();
    assert!(status.success(), "{status} {log}");
}

/// Check 5: delays of targets that are fast, slow, absent, or answer with errors.
#[test]
fn delays() {
    let core = core();
    let delay = |name: &str, target: SocketAddr, path: &str, query: &str| {
        let path = format!("/proxies/{name}/delay?url=http://{target}{path}&{query}");
        let answer = ask(core.at, "GET", &path, &[SECRET], "");
        (answer.status, answer.json()["delay"].as_u64())
    };
    let (status, slow) = delay("p-direct", core.origin, "/slow", "timeout=5000");
    assert!(status == 200 && (200..5000).contains(&slow.unwrap()), "{status} {slow:?}");
    let (status, fast) = delay("p-direct", core.origin, "/generate_204", "timeout=5000");
    // mihomo measures 0 here, which it takes for a failure.
    assert!(peer().is_some() || status == 200 && (1..5000).contains(&fast.unwrap()), "{status} {fast:?}");
    assert_eq!(delay("p-direct", core.origin, "/slow", "timeout=50").0, 504);
    assert_eq!(delay("p-direct", core.dead, "/", "timeout=5000").0, 503);
    assert_eq!(delay("p-socks", core.origin, "/", "timeout=5000").0, 503, "a dead proxy");
    assert_eq!(get(core.at, "/proxies/p-socks")["alive"], false);
    // A status that is not expected has a delay all the same; groups take it for a failure, and the proxy lives.
    let (status, _) = delay("p-direct", core.origin, "/slow", "timeout=5000&expected=500");
    let seen = get(core.at, "/proxies/p-direct");
    let of = &seen["extra"][&format!("http://{}/slow", core.origin)];
    assert_eq!((status, &seen["alive"], &of["alive"]), (200, &true.into(), &false.into()), "{seen}");
}

/// A HTTP proxy whose answers take a time that a test sets; nothing at all while it is dead. It counts requests that are
/// under way.
struct Member {
    at: SocketAddr,
    delay: AtomicU64,
    dead: AtomicBool,
    requests: AtomicUsize,
}

impl Member {
    fn start(delay: u64) -> Arc<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let member = Arc::new(Self {
            at: listener.local_addr().unwrap(),
            delay: AtomicU64::new(delay),
            dead: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
        });
        let shared = member.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let member = shared.clone();
                thread::spawn(move || member.serve(stream));
            }
        });
        member
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        for answer in ["200 OK", "204 No Content"] {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                (reader.read_line(&mut head).ok()? > 0).then_some(())?;
            }
            if self.dead.load(Ordering::SeqCst) {
                return None;
            }
            if answer.starts_with("204") {
                self.requests.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(self.delay.load(Ordering::SeqCst)));
            }
            stream.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).ok()?;
        }
        Some(())
    }
}

fn members(delays: &[u64]) -> Vec<Arc<Member>> {
    delays.iter().map(|delay| Member::start(*delay)).collect()
}

/// A file with these members, by the names m0, m1 and so on.
fn file(at: SocketAddr, members: &[Arc<Member>], groups: &str) -> String {
    let entry = |(n, member): (usize, &Arc<Member>)| {
        format!("- {{name: m{n}, type: http, server: 127.0.0.1, port: {}}}\n", member.at.port())
    };
    let entries: String = members.iter().enumerate().map(entry).collect();
    format!(
        "mixed-port: 0\nexternal-controller: {at}\nsecret: s3cret\nproxies:\n{entries}proxy-groups:\n{groups}rules: ['MATCH,DIRECT']\n"
    )
}

/// A controller with that file.
fn start(members: &[Arc<Member>], groups: &str) -> (Running, Dir, SocketAddr) {
    let (dir, at) = (Dir::new(), unused_localhost());
    dir.file("config.yaml", &file(at, members, groups));
    let running = mihomo(&dir, &[]);
    running.line("RESTful API listening at");
    (running, dir, at)
}

/// Check 5, further: ten tests at a time, and none for a group that nobody uses.
#[test]
fn a_round_of_fifty() {
    // One origin behind all of them would be the bottleneck; the members themselves answer.
    static BUSY: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    static ALL: AtomicUsize = AtomicUsize::new(0);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let origin = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let now = BUSY.fetch_add(1, Ordering::SeqCst) + 1;
                MOST.fetch_max(now, Ordering::SeqCst);
                ALL.fetch_add(1, Ordering::SeqCst);
                let mut head = String::new();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while reader.read_line(&mut head).unwrap_or(0) > 2 {}
                thread::sleep(Duration::from_millis(50));
                BUSY.fetch_sub(1, Ordering::SeqCst);
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok();
            });
        }
    });
    let (dir, at) = (Dir::new(), unused_localhost());
    let names: Vec<String> = (0..50).map(|n| format!("d{n}")).collect();
    let entries: String = names.iter().map(|name| format!("- {{name: {name}, type: direct}}\n")).collect();
    dir.file(
        "config.yaml",
        &format!(
            "mixed-port: 0\nexternal-controller: {at}\nsecret: s3cret\nproxies:\n{entries}proxy-groups:\n\
             - {{name: G, type: fallback, proxies: [{}], url: 'http://{origin}/', interval: 1}}\nrules: ['MATCH,DIRECT']\n",
            names.join(", ")
        ),
    );
    let running = mihomo(&dir, &[]);
    running.line("RESTful API listening at");
    wait_for("a round", || ALL.load(Ordering::SeqCst) >= 50);
    // More than two rounds.
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(ALL.load(Ordering::SeqCst), 50, "a lazy group that nobody uses rests after the first round");
    let most = MOST.load(Ordering::SeqCst);
    assert!((2..=10).contains(&most), "{most} at a time");
}

/// Check 6: url-test keeps a member within the tolerance; fallback follows the first that lives.
#[test]
fn groups_follow_their_members() {
    let all = members(&[500, 250, 20, 800]);
    let test = "url: 'http://x.test/', interval: 3600, timeout: 3000";
    let (_running, _dir, at) = start(
        &all,
        &format!(
            "- {{name: U, type: url-test, proxies: [m0, m1, m2, m3], tolerance: 200, {test}}}\n\
             - {{name: F, type: fallback, proxies: [m0, m1], {test}}}\n"
        ),
    );
    let now = |group: &str| get(at, &format!("/proxies/{group}"))["now"].clone();
    let round = |group: &str| {
        let path = format!("/group/{group}/delay?url=http://x.test/&timeout=3000");
        ask(at, "GET", &path, &[SECRET], "").status
    };
    wait_for("the fastest", || now("U") == "m2");
    // Slower, but within the tolerance.
    all[2].delay.store(320, Ordering::SeqCst);
    assert_eq!(round("U"), 200);
    assert_eq!(now("U"), "m2");
    all[2].delay.store(1200, Ordering::SeqCst);
    assert_eq!(round("U"), 200);
    wait_for("another one", || now("U") == "m1");
    all[1].dead.store(true, Ordering::SeqCst);
    assert_eq!(round("U"), 200);
    wait_for("one that lives", || now("U") == "m0");

    assert_eq!(now("F"), "m0");
    all[1].dead.store(false, Ordering::SeqCst);
    all[0].dead.store(true, Ordering::SeqCst);
    round("F");
    wait_for("the second", || now("F") == "m1");
    all[0].dead.store(false, Ordering::SeqCst);
    round("F");
    wait_for("the first again", || now("F") == "m0");
}

/// Check 7, a part: one bad entry of 1,000 costs that entry, and is named. mihomo leaves the whole list out.
#[test]
fn one_bad_entry_of_a_thousand() {
    if is_about_adit() {
        return;
    }
    let (dir, at) = (Dir::new(), unused_localhost());
    let entry = |n: usize| match n {
        500 => "- {name: bad, type: ss, server: a.test, port: 1, cipher: nosuch, password: x}\n".to_owned(),
        n => format!("- {{name: e{n}, type: socks5, server: a.test, port: 1}}\n"),
    };
    dir.file("list.yaml", &format!("proxies:\n{}", (0..1000).map(entry).collect::<String>()));
    dir.file(
        "config.yaml",
        &format!(
            "mixed-port: 0\nexternal-controller: {at}\nsecret: s3cret\n\
             proxy-providers: {{p: {{type: file, path: ./list.yaml}}}}\n\
             proxy-groups: [{{name: G, type: select, use: [p]}}]\nrules: ['MATCH,G']\n"
        ),
    );
    let running = mihomo(&dir, &[]);
    running.line("RESTful API listening at");
    let all = get(at, "/proxies/G")["all"].as_array().unwrap().len();
    assert!((999..=1000).contains(&all), "{all}");
    assert_eq!(get(at, "/proxies/e999")["type"], "Socks5");
    assert!(running.log().contains("nosuch"), "{}", running.log());
}

/// Check 10: each client of a stream gets one text a second, and all of them together tell what has passed. Lines come to those
/// who ask for more than the log has, and a client that does not read holds nobody up.
#[test]
fn streams_tell_what_has_passed() {
    const LEN: usize = 100_000;
    if is_about_adit() {
        return;
    }
    let (dir, at, mixed, target) = (Dir::new(), unused_localhost(), unused_localhost(), echo());
    let text = format!(
        "mixed-port: {}\nexternal-controller: {at}\nsecret: s3cret\nlog-level: error\nrules: ['MATCH,DIRECT']\n",
        mixed.port()
    );
    dir.file("config.yaml", &text);
    let _running = mihomo(&dir, &[]);
    wait_for("the interface", || TcpStream::connect(at).is_ok());
    let open = |path: &str| websocket(at, &format!("{path}token=s3cret"));
    let begun = Instant::now();
    let _never_reads = open("/logs?level=debug&");
    let (mut lines, mut traffic) = (open("/logs?level=debug&"), [0; 3].map(|_| open("/traffic?")));
    for _ in 0..100 {
        round_trip(&mut socks5(mixed, "127.0.0.1", target.port()), LEN / 100);
    }
    for stream in &mut traffic {
        let (mut sums, mut count) = ([0, 0], 0);
        while sums.iter().min() < Some(&LEN) || count < 4 {
            let text: Value = serde_json::from_str(&crate::clash_api::frame(stream)).unwrap();
            for (sum, key) in sums.iter_mut().zip(["up", "down"]) {
                *sum += usize::try_from(text[key].as_u64().unwrap()).unwrap();
            }
            count += 1;
        }
        assert_eq!(sums, [LEN; 2]);
        assert!(begun.elapsed() > Duration::from_millis(3500), "four texts after {:?}", begun.elapsed());
    }
    let want = format!("127.0.0.1:{} match Match using DIRECT", target.port());
    wait_for("lines", || crate::clash_api::frame(&mut lines).contains(&want));
}

/// Descriptors that a program has open.
#[cfg(target_os = "linux")]
fn descriptors(running: &Running) -> usize {
    fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().count()
}

/// Check 9: reloads, changes of mode and ends of all connections, while others come all the time.
#[cfg(target_os = "linux")]
#[test]
fn a_storm_of_reloads() {
    storm(50, 10);
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "100,000 connections"]
fn a_storm_of_reloads_at_full_size() {
    if adit_testkit::descriptors(4_000) {
        storm(200, 500);
    }
}

/// Rounds of reloads, changes of mode and ends of so many connections.
#[cfg(target_os = "linux")]
fn storm(rounds: usize, connections: usize) {
    let (dir, at, other, target) = (Dir::new(), unused_localhost(), unused_localhost(), echo());
    let text = format!(
        "mixed-port: {}\nexternal-controller: {at}\nsecret: s3cret\n\
         listeners: [{{name: steady, type: socks, listen: 127.0.0.1, port: {}}}]\nrules: ['MATCH,DIRECT']\n",
        unused_localhost().port(),
        other.port()
    );
    dir.file("config.yaml", &text);
    let running = mihomo(&dir, &[]);
    running.line("RESTful API listening at");
    wait_for("the port", || TcpStream::connect(other).is_ok());
    let mut streams: Vec<TcpStream> = ["/traffic", "/memory", "/logs", "/connections"]
        .map(|path| websocket(at, &format!("{path}?token=s3cret")))
        .into();
    let before = descriptors(&running);
    let (stop, refused, taken) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let whole = serde_json::json!({ "payload": text }).to_string();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let counter = if TcpStream::connect(other).is_ok() { &taken } else { &refused };
                counter.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(5));
            }
        });
        for round in 0..rounds {
            let mut held: Vec<TcpStream> =
                (0..connections).map(|_| socks5(other, "127.0.0.1", target.port())).collect();
            round_trip(&mut held[0], 100);
            let mode = if round % 2 == 0 { "direct" } else { "rule" };
            assert_eq!(put(at, "PUT", "/configs?force=true", &whole), 204, "{}", running.log());
            assert_eq!(put(at, "PATCH", "/configs", &format!("{{\"mode\":\"{mode}\"}}")), 204);
            assert_eq!(put(at, "DELETE", "/connections", ""), 204);
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(refused.load(Ordering::SeqCst), 0, "of {}", taken.load(Ordering::SeqCst));
    wait_for("the end of all connections", || get(at, "/connections")["connections"].is_null());
    wait_for("as many descriptors as before", || descriptors(&running) <= before + 4);
    // The streams go on.
    for stream in &mut streams[..2] {
        stream.set_nonblocking(false).unwrap();
        assert!(crate::clash_api::frame(stream).starts_with('{'));
    }
    round_trip(&mut socks5(other, "127.0.0.1", target.port()), 1000);
}

/// mihomo takes signals a moment after its last line only; earlier ones end it.
fn before_signals() -> Duration {
    if peer().is_some() { Duration::from_millis(500) } else { Duration::ZERO }
}

/// Check 12: what graphical programs that start a core wait for, on standard output alone.
#[test]
fn the_contract_with_graphical_programs() {
    let dir = Dir::new();
    let (socket, mixed) = (dir.path().join("core.sock"), unused_localhost());
    dir.file(
        "config.yaml",
        &format!(
            "mixed-port: {}\nproxy-providers: {{pp: {{type: inline, payload: [{{name: a, type: direct}}]}}}}\n\
             rule-providers: {{rp: {{type: inline, behavior: domain, payload: [a.test]}}}}\nrules: ['MATCH,DIRECT']\n",
            mixed.port()
        ),
    );
    let begin = || {
        let peer = peer();
        let own = dir.path().join("mihomo");
        let program = peer.unwrap_or_else(|| if own.exists() { own } else { link(&dir, "mihomo") });
        let script = "exec \"$0\" \"$@\" 2>/dev/null";
        let (program, socket) = (program.to_str().unwrap(), socket.to_str().unwrap());
        Running::start(dir.command("sh", &["-c", script, program, "-d", ".", "-ext-ctl-unix", socket]))
    };
    for signal in ["INT", "TERM"] {
        let running = begin();
        running.line("RESTful API unix listening at: ");
        // mihomo wrote a capital letter before; programs look for either.
        let line = running.line("Start initial compatible provider default");
        if peer().is_none() {
            running.line("Start initial Compatible provider default");
        }
        // Programs whose file has lists wait for all of these, with the quotation mark behind.
        running.line("Start initial provider pp\"");
        running.line("Start initial provider rp\"");
        assert!(line.starts_with("time=\"20") && line.contains(" level=info msg=\"Start"), "{line}");
        running.line(&format!("Mixed(http+socks) proxy listening at: {mixed}"));
        let log = running.log();
        let order = ["RESTful API unix listening at: ", "Start initial compatible provider default"];
        let [first, second] = order.map(|text| log.find(text).unwrap());
        assert!(first < second, "{log}");
        // See above.
        thread::sleep(before_signals());
        let begun = Instant::now();
        running.signal(signal);
        let (status, log) = running.end();
        assert!(status.success() && begun.elapsed() < Duration::from_secs(20), "{signal}: {status} {log}");
        assert!(log.contains("Mihomo shutting down"), "{log}");
    }
    // A port that is in use: the rest runs.
    let taken = TcpListener::bind(mixed).unwrap();
    let mut running = begin();
    let line = running.line("server error");
    assert!(line.contains(" level=error ") && line.contains(&mixed.to_string()), "{line}");
    running.line("Start initial compatible provider default");
    // A file that is broken: what there is runs on.
    dir.file("config.yaml", "rules: ['NOSUCH,x,DIRECT']\n");
    // See above.
    thread::sleep(before_signals());
    running.signal("HUP");
    running.line("unsupported rule type: NOSUCH");
    assert!(running.is_running());
    drop(taken);
    drop(running);
    // A start that fails says so in the words that they look for.
    let (status, log) = begin().end();
    assert_eq!(status.code(), Some(1));
    assert!(log.contains("level=fatal msg=\"Parse config error: "), "{log}");
}

/// A whole configuration in the command line or in a variable.
#[test]
fn a_configuration_without_a_file() {
    let dir = Dir::new();
    // `mixed-port: 0`, then a line that is wrong.
    let (good, bad) = ("bWl4ZWQtcG9ydDogMAo=", "cnVsZXM6IFsnTk9TVUNILHgsRElSRUNUJ10K");
    let (status, out, _) = dir.run(&["mihomo", "-d", ".", "-t", "-config", good]);
    assert!(status == 0 && out.contains("test is successful"), "{out}");
    let (status, out, _) = dir.run(&["mihomo", "-d", ".", "-t", "-config", bad]);
    assert!(status == 1 && out.contains("unsupported rule type: NOSUCH"), "{out}");
    let (status, out, _) = dir.run(&["mihomo", "-d", ".", "-t", "-config", "%%%"]);
    assert!(status == 1 && out.contains("no base64"), "{out}");
    let mut command = dir.adit(&["mihomo", "-d", ".", "-t"]);
    command.env("CLASH_CONFIG_STRING", bad);
    let (status, out, _) = crate::support::finish(command, "");
    assert!(status == 1 && out.contains("unsupported rule type: NOSUCH"), "{out}");
}

/// Check 14: values at the edge are an error or do what they say, and never end the program.
#[test]
fn values_at_the_edge() {
    let dir = Dir::new();
    let test = |rule: &str| {
        dir.file("config.yaml", &format!("mixed-port: 7000\nrules:\n- {rule}\n- MATCH,DIRECT\n"));
        let (status, out, err) = dir.run(&["mihomo", "-d", ".", "-t"]);
        assert!(!out.contains("panicked") && !err.contains("panicked"), "{out}{err}");
        assert!(status == 0 || status == 1, "{status}: {out}{err}");
        (status, out)
    };
    let numbers = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join("/");
    let nested = |depth: usize| {
        let (open, close) = ("NOT,((".repeat(depth), "))".repeat(depth));
        // Each level but the outermost stands in parentheses of its own already.
        format!("'{open}DOMAIN,a.test{close},DIRECT'")
    };
    for (rule, status, says) in [
        ("IP-SUFFIX,192.0.2.7/32,REJECT".to_owned(), 0, ""),
        ("IP-SUFFIX,2001:db8::7/128,REJECT".to_owned(), 0, ""),
        ("IP-SUFFIX,192.0.2.7/33,REJECT".to_owned(), 1, "payloadRule error"),
        ("DST-PORT,70000,REJECT".to_owned(), 1, "no number from 0 to 65535"),
        ("DSCP,0,REJECT".to_owned(), 0, ""),
        ("DSCP,46,REJECT".to_owned(), 0, ""),
        ("DSCP,64,REJECT".to_owned(), 1, "no number from 0 to 63"),
        (format!("DST-PORT,{},REJECT", numbers(28)), 0, ""),
        (format!("DST-PORT,{},REJECT", numbers(29)), 1, "too many ranges to use"),
        (nested(40), 0, ""),
        (nested(64), 1, "nested deeper than"),
        (nested(10_000), 1, ""),
        (format!("DOMAIN-REGEX,{},REJECT", "a".repeat(1 << 20)), 1, ""),
        (format!("DOMAIN-REGEX,{},REJECT", "(a|b)*".repeat(10_000)), 1, ""),
        ("DOMAIN,,REJECT".to_owned(), 1, "payloadRule error"),
    ] {
        let (found, out) = test(&rule);
        let short: String = rule.chars().take(60).collect();
        assert_eq!(found, status, "{short}: {}", out.chars().take(2000).collect::<String>());
        assert!(out.contains(says), "{short}: {}", out.chars().take(2000).collect::<String>());
    }
    // A suffix of full length is equality: the reference build ends there.
    dir.file("config.yaml", "mixed-port: 7000\nrules: ['IP-SUFFIX,192.0.2.7/32,REJECT', 'MATCH,DIRECT']\n");
    let case = |host: &str| format!("{{\"network\":\"tcp\",\"host\":\"{host}\",\"port\":1}}\n");
    dir.file("cases", &["192.0.2.7", "192.0.2.8"].map(case).concat());
    let (_, out, err) = dir.run(&["explain", "-c", "config.yaml", "--batch", "cases"]);
    let found: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&found[0]["target"], &found[1]["target"]),
        (&"REJECT".into(), &"DIRECT".into()),
        "{out}{err}"
    );
    // Filters that leave nothing: the group refuses.
    dir.file(
        "config.yaml",
        "mixed-port: 7000\nproxies: [{name: a, type: direct}]\n\
         proxy-groups: [{name: G, type: select, include-all: true, filter: 'none', exclude-filter: ''}]\nrules: ['MATCH,G']\n",
    );
    let (status, out, _) = dir.run(&["mihomo", "-d", ".", "-t"]);
    assert_eq!(status, 0, "{out}");
    let (_, out, _) = dir.run(&["explain", "-c", "config.yaml", "--to", "a.test:1"]);
    assert!(out.contains("refused"), "{out}");
}
