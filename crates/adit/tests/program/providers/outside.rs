//! Input from outside that is bad, missing, endless, a pipe, or under a name that is taken. Each time traffic goes on, a
//! later good change is taken, and another start works.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::clash_api;
use crate::support::{link, round_trip, socks5};

/// The kind of a bad file or document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bad {
    Garbage,
    Nothing,
    Endless,
    Pipe,
}

const BAD: [Bad; 4] = [Bad::Garbage, Bad::Nothing, Bad::Endless, Bad::Pipe];
const GARBAGE: &[u8] = b"\x00\xff{[: not what it was\n\t'";

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Puts something bad in the place of a file.
fn spoil(path: &Path, bad: Bad) {
    fs::remove_file(path).ok();
    match bad {
        Bad::Garbage => fs::write(path, GARBAGE).unwrap(),
        Bad::Nothing => fs::write(path, "").unwrap(),
        Bad::Endless => symlink("/dev/zero", path).unwrap(),
        Bad::Pipe => pipe(path),
    }
}

/// Puts a good file in its place, in one step.
fn mend(path: &Path, text: impl AsRef<[u8]>) {
    let new = path.with_extension("mended");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// The script of a server that is as bad.
fn script(bad: Bad) -> Script {
    match bad {
        Bad::Garbage => Script::Bytes(GARBAGE.to_vec()),
        Bad::Nothing => Script::Document(String::new()),
        Bad::Endless => Script::Endless,
        Bad::Pipe => Script::Hang,
    }
}

fn count(running: &Running, text: &str) -> usize {
    running.log().matches(text).count()
}

/// Sends a signal, and waits for one more line with `text`.
fn signal_until(running: &Running, name: &str, text: &str) {
    let before = count(running, text);
    running.signal(name);
    wait_for(text, || running.log(), || count(running, text) > before);
}

/// Starts what [`start`] has written before.
fn start_again(dir: &Dir) -> Running {
    let running = Running::start(dir.adit(&["mihomo", "-d", "."]));
    running.line("listening");
    running
}

const REFUSED: &str = "was not reloaded: what runs stays as it is";

/// A configuration with two proxies and a group; the group leads to one of them.
struct Clash {
    dir: Dir,
    port: SocketAddr,
    control: SocketAddr,
    proxies: [SocketAddr; 2],
    running: Option<Running>,
}

impl Clash {
    fn new(more: &str) -> Self {
        let proxies = [proxy("a", None), proxy("b", None)];
        let mut clash =
            Self { dir: Dir::new(), port: unused_addr(), control: unused_addr(), proxies, running: None };
        clash.dir.file("config.yaml", &clash.text("a", more));
        clash.start();
        clash
    }

    fn start(&mut self) {
        self.running = None;
        let running = start_again(&self.dir);
        running.line("RESTful API listening");
        self.running = Some(running);
    }

    /// A text whose group begins with this proxy.
    fn text(&self, first: &str, more: &str) -> String {
        let [a, b] = self.proxies;
        let second = if first == "a" { "b" } else { "a" };
        format!(
            "mixed-port: {}\nbind-address: {}\nallow-lan: true\nexternal-controller: {}\nsecret: s3cret\n\
             profile: {{store-selected: false}}\nproxies:\n{}{}\
             proxy-groups:\n- {{name: G, type: select, proxies: [{first}, {second}]}}\n{more}",
            self.port.port(),
            self.port.ip(),
            self.control,
            entry("a", a),
            entry("b", b),
        )
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn who(&self) -> String {
        who(self.port)
    }

    fn becomes(&self, name: &str, what: &str) {
        wait_for(what, || self.running().log(), || self.who() == name);
    }

    fn put(&self, body: &Value) -> (u16, String) {
        let fields = [("Authorization", "Bearer s3cret")];
        let answer = clash_api::ask(self.control, "PUT", "/configs?force=true", &fields, &body.to_string());
        (answer.status, answer.body)
    }

    fn put_text(&self, text: &str) -> (u16, String) {
        self.put(&json!({ "payload": text }))
    }

    fn update(&self, kind: &str, name: &str) -> u16 {
        clash_api::put(self.control, "PUT", &format!("/providers/{kind}/{name}"), "")
    }
}

use serde_json::{Value, json};

const MATCH: &str = "rules: ['MATCH,G']\n";

#[test]
fn the_file_itself() {
    let mut clash = Clash::new(MATCH);
    let file = clash.file("config.yaml");
    let taken = clash.text("a", MATCH).replace("name: b,", "name: G,");
    let cases = BAD.map(Some).into_iter().chain([None]);
    for (n, bad) in cases.enumerate() {
        let [was, next] = if n % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
        match bad {
            Some(bad) => spoil(&file, bad),
            None => mend(&file, &taken),
        }
        signal_until(clash.running(), "HUP", REFUSED);
        assert_eq!(clash.who(), was, "{bad:?}: {}", clash.running().log());
        mend(&file, clash.text(next, MATCH));
        clash.running().signal("HUP");
        clash.becomes(next, &format!("a good file after {bad:?}"));
    }
    clash.start();
    assert_eq!(clash.who(), "b");
}

/// Files of other programs, which listen on another port after a good change.
#[test]
fn files_of_other_programs() {
    type Text = fn(SocketAddr) -> String;
    let rows: [(&str, &str, &str, Text); 3] = [
        ("adit run -c", "adit.toml", "HUP", |at| {
            format!(
                "[[inbound]]\nname = \"in\"\nprotocol = \"mixed\"\nlisten = \"{at}\"\noutbound = \"out\"\n\
                 [[outbound]]\nname = \"out\"\nprotocol = \"direct\"\n"
            )
        }),
        ("sslocal -c", "config.json", "USR1", |at| {
            format!(
                "{{\"server\": \"127.0.0.1\", \"server_port\": 1, \"password\": \"k\", \"method\": \"aes-128-gcm\",\n\
                 \"local_address\": \"{}\", \"local_port\": {}}}",
                at.ip(),
                at.port()
            )
        }),
        ("snell-server -c", "snell.conf", "HUP", |at| {
            format!("[snell-server]\nlisten = {at}\npsk = {}\nipv6 = false\n", crate::support::PSK)
        }),
    ];
    for (program, name, signal, text) in rows {
        let dir = Dir::new();
        let mut at = unused_addr();
        let file = dir.file(name, &text(at));
        let words: Vec<&str> = program.split(' ').filter(|word| *word != "adit").chain([name]).collect();
        let running = Running::start(dir.adit(&words));
        running.line("listening");
        for bad in BAD {
            // Without a text these programs have their defaults.
            if bad == Bad::Nothing && name == "adit.toml" {
                continue;
            }
            spoil(&file, bad);
            signal_until(&running, signal, REFUSED);
            TcpStream::connect(at).unwrap();
            at = unused_addr();
            mend(&file, text(at));
            running.signal(signal);
            let what = format!("{program}: a good file after {bad:?}");
            wait_for(&what, || running.log(), || TcpStream::connect(at).is_ok());
        }
        drop(running);
        let running = Running::start(dir.adit(&words));
        running.line("listening");
        TcpStream::connect(at).unwrap();
    }
}

#[test]
fn changes_by_the_interface() {
    let mut clash = Clash::new(MATCH);
    let file = clash.file("other.yaml");
    let taken = clash.text("b", MATCH).replace("name: b,", "name: G,");
    let long = format!("{}# {}\n", clash.text("b", MATCH), "x".repeat(17 << 20));
    let mut bad: Vec<(String, Value)> = vec![
        ("garbage".into(), json!({ "payload": String::from_utf8_lossy(GARBAGE) })),
        ("blanks".into(), json!({ "payload": " \n" })),
        ("a text without an end".into(), json!({ "payload": long })),
        ("a taken name".into(), json!({ "payload": taken })),
        ("a wrong type".into(), json!({ "payload": [1] , "path": "relative"})),
    ];
    bad.extend(["none.yaml", "garbage", "nothing", "endless", "pipe", "taken"].map(|name| {
        let path = clash.file(name);
        (name.to_owned(), json!({ "path": path }))
    }));
    for (name, kind) in
        [("garbage", Bad::Garbage), ("nothing", Bad::Nothing), ("endless", Bad::Endless), ("pipe", Bad::Pipe)]
    {
        spoil(&clash.file(name), kind);
    }
    fs::write(clash.file("taken"), &taken).unwrap();
    for (n, (name, body)) in bad.iter().enumerate() {
        let [was, next] = if n % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
        let (status, answer) = clash.put(body);
        assert!((400..500).contains(&status), "{name}: {status} {answer}");
        assert_eq!(clash.who(), was, "{name}");
        mend(&file, clash.text(next, MATCH));
        let good =
            if n % 3 == 0 { json!({ "path": file }) } else { json!({ "payload": clash.text(next, MATCH) }) };
        assert_eq!(clash.put(&good).0, 204, "{name}");
        assert_eq!(clash.who(), next, "a good change after {name}");
    }
    let was = clash.who();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    for body in [
        "\u{0}{".to_owned(),
        String::new(),
        json!({ "mode": 7 }).to_string(),
        json!({ "mixed-port": 70_000 }).to_string(),
        json!({ "socks-port": held.local_addr().unwrap().port(), "bind-address": "127.0.0.1" }).to_string(),
        format!("{{\"mode\": \"{}\"}}", "x".repeat(3 << 20)),
    ] {
        let status = clash_api::put(clash.control, "PATCH", "/configs", &body);
        assert!((400..500).contains(&status), "{status}: {}", &body[..body.len().min(80)]);
        assert_eq!(clash.who(), was);
    }
    assert_eq!(clash_api::put(clash.control, "PATCH", "/configs", "{\"mode\": \"direct\"}"), 204);
    assert_eq!(clash_api::put(clash.control, "PATCH", "/configs", "{\"mode\": \"rule\"}"), 204);
    assert_eq!(clash.who(), was);
    clash.start();
    assert_eq!(clash.who(), "a");
}

/// A subscription and a list of rules, from servers.
#[test]
fn lists_from_servers() {
    let proxies = [proxy("a", None), proxy("b", None)];
    let servers = [list(&[("p", proxies[0])]), "DOMAIN,blocked.test\n".to_owned()]
        .map(|text| Server::start(Script::Document(text)));
    let more = |group: &str| {
        format!(
            "proxy-providers:\n  s: {{type: http, url: 'http://{}/', interval: 3600, path: ./s.yaml, proxy: DIRECT}}\n\
             rule-providers:\n  r: {{type: http, behavior: classical, format: text, url: 'http://{}/', interval: 3600, path: ./r.txt, proxy: DIRECT}}\n\
             rules: ['RULE-SET,r,REJECT', 'MATCH,{group}']\n",
            servers[0].at, servers[1].at
        )
    };
    let mut clash = Clash::new(&more("G"));
    let text = clash
        .text("a", &more("S"))
        .replace("proxy-groups:\n", "proxy-groups:\n- {name: S, type: select, use: [s]}\n");
    mend(&clash.file("config.yaml"), text);
    clash.start();
    clash.becomes("a", "the first subscription");
    let blocked = || open(clash.port, "blocked.test", 7).is_none_or(|mut stream| ask(&mut stream).is_empty());
    wait_for("the first list", || clash.running().log(), blocked);
    let copies = ["s.yaml", "r.txt"].map(|name| clash.file(name));
    wait_for("the copies", || clash.running().log(), || copies.iter().all(|copy| copy.exists()));
    for bad in BAD.into_iter().filter(|bad| *bad != Bad::Pipe) {
        for (n, kind) in ["proxies", "rules"].into_iter().enumerate() {
            let before = fs::read(&copies[n]).unwrap();
            servers[n].set(script(bad));
            let status = clash.update(kind, ["s", "r"][n]);
            assert_eq!(status, 503, "{kind} {bad:?}");
            assert_eq!(fs::read(&copies[n]).unwrap(), before, "{kind} {bad:?}");
            assert!(clash.who() == "a" && blocked(), "{kind} {bad:?}");
        }
    }
    for (n, other) in
        [list(&[("p", proxies[1])]), "DOMAIN,blocked.test\nDOMAIN,x.test\n".into()].into_iter().enumerate()
    {
        servers[n].set(Script::Document(other));
        assert_eq!(clash.update(["proxies", "rules"][n], ["s", "r"][n]), 204);
    }
    assert!(clash.who() == "b" && blocked());
    // Copies that are damaged, and servers that are away.
    for bad in BAD {
        servers.iter().for_each(|server| server.set(Script::Status(500)));
        copies.iter().for_each(|copy| spoil(copy, bad));
        clash.start();
        let file = clash.file("config.yaml");
        let (status, out, _) = clash.dir.run(&["mihomo", "-d", ".", "-t"]);
        assert_eq!(status, 0, "{bad:?}: {out}");
        assert_eq!(clash.who(), "", "an empty group refuses");
        servers[0].set(Script::Document(list(&[("p", proxies[1])])));
        servers[1].set(Script::Document("DOMAIN,blocked.test\n".into()));
        assert_eq!([clash.update("proxies", "s"), clash.update("rules", "r")], [204, 204], "{bad:?}");
        assert_eq!(clash.who(), "b", "{bad:?}");
        clash.start();
        assert_eq!(clash.who(), "b", "{bad:?}: {}", fs::read_to_string(&file).unwrap());
    }
}

/// A member with the name of anything else, and a document that the file cannot be used with.
#[test]
fn names_of_a_subscription() {
    let [a, b] = [proxy("a", None), proxy("b", None)];
    let server = Server::start(Script::Document(list(&[("HK", b)])));
    let more = format!(
        "proxy-providers:\n  t: {{type: inline, payload: [{{name: T, type: socks5, server: 127.0.0.1, port: 1}}]}}\n  \
         s: {{type: http, url: 'http://{}/', interval: 3600, path: ./s.yaml, proxy: DIRECT}}\n{MATCH}",
        server.at
    );
    let groups = "proxy-groups:\n- {name: S, type: select, use: [s]}\n- {name: T2, type: select, use: [t]}\n";
    let mut clash = Clash::new(&more);
    let text = clash.text("a", &more).replace("proxy-groups:\n", groups);
    mend(&clash.file("config.yaml"), &text);
    clash.start();
    let members = |clash: &Clash, group: &str| {
        clash_api::get(clash.control, &format!("/proxies/{group}"))["all"].as_array().unwrap().clone()
    };
    let wait_members = |clash: &Clash, count| {
        wait_for("members", || clash.running().log(), || members(clash, "S").len() == count);
    };
    wait_members(&clash, 1);
    let names = ["G", "S", "GLOBAL", "DIRECT", "REJECT", "REJECT-DROP", "PASS", "COMPATIBLE", "a", "T"];
    let entries: Vec<(&str, SocketAddr)> = names.iter().map(|name| (*name, b)).collect();
    server.set(Script::Document(list(&entries)));
    assert_eq!(clash.update("proxies", "s"), 204, "{}", clash.running().log());
    assert_eq!(members(&clash, "S").len(), names.len());
    assert_eq!(members(&clash, "S")[0], "G (s)");
    assert_eq!(members(&clash, "T2"), ["T"]);
    assert_eq!(clash.who(), "a", "the group is the one of the file");
    let chosen = clash_api::get(clash.control, "/proxies/G");
    assert_eq!(chosen["type"], "Selector");
    // The copy is saved, and the next start takes it.
    let saved = fs::read_to_string(clash.file("s.yaml")).unwrap();
    assert!(saved.contains("GLOBAL"), "{saved}");
    clash.start();
    assert_eq!(clash.who(), "a");
    assert!(
        clash.running().log().contains("names of 10 of its members are taken: G is G (s)"),
        "{}",
        clash.running().log()
    );
    let (status, out, _) = clash.dir.run(&["mihomo", "-d", ".", "-t"]);
    assert_eq!(status, 0, "{out}");

    // Members that dial through what is not there, or through themselves.
    let through =
        |name: &str, through: &str| entry(name, b).replace('}', &format!(", dialer-proxy: {through}}}"));
    let text_of =
        ["proxies:\n", &entry("p", b), &through("q", "none"), &through("r", "r"), &through("x", "S")]
            .concat();
    server.set(Script::Document(text_of));
    assert_eq!(clash.update("proxies", "s"), 204, "{}", clash.running().log());
    assert_eq!(clash.who(), "a");
    clash.start();
    assert_eq!((clash.who(), members(&clash, "S").len()), ("a".to_owned(), 4));

    // The file names a member, so that a document without it is refused as a whole.
    server.set(Script::Document(list(&[("HK", a)])));
    assert_eq!(clash.update("proxies", "s"), 204);
    mend(&clash.file("config.yaml"), text.replace("MATCH,G", "MATCH,HK"));
    signal_until(clash.running(), "HUP", "reloaded");
    assert_eq!(clash.who(), "a");
    let before = fs::read(clash.file("s.yaml")).unwrap();
    server.set(Script::Document(list(&[("JP", b)])));
    assert_eq!(clash.update("proxies", "s"), 503);
    clash.running().line("the configuration cannot be used with it");
    assert_eq!(fs::read(clash.file("s.yaml")).unwrap(), before);
    assert_eq!(clash.who(), "a");
    clash.start();
    assert_eq!(clash.who(), "a");
    server.set(Script::Document(list(&[("HK", b), ("JP", b)])));
    assert_eq!(clash.update("proxies", "s"), 204);
    assert_eq!(clash.who(), "b");
}

/// A list that is good by itself, and with which rules are nested deeper than they can be. The copy of an earlier version stops
/// no start.
#[test]
fn a_copy_that_nothing_can_run_with() {
    let nested = |levels: usize, inner: &str| {
        (0..levels).fold(inner.to_owned(), |inner, _| format!("AND,((NETWORK,tcp),({inner}))"))
    };
    let server = Server::start(Script::Status(500));
    let more = format!(
        "rule-providers:\n  r: {{type: http, behavior: classical, format: text, url: 'http://{}/', interval: 3600, path: ./r.txt, proxy: DIRECT}}\n\
         rules: ['{},REJECT', 'MATCH,G']\n",
        server.at,
        nested(20, "RULE-SET,r")
    );
    let mut clash = Clash::new(MATCH);
    mend(&clash.file("config.yaml"), clash.text("a", &more));
    let bad = nested(47, "DOMAIN,x.test") + "\n";
    clash.running = None;
    fs::write(clash.file("r.txt"), &bad).unwrap();
    let passed = "this copy of a list is passed over";
    let (status, out, _) = clash.dir.run(&["mihomo", "-d", ".", "-t"]);
    assert!(status == 0 && out.contains(passed) && clash.file("r.txt").exists(), "{out}");
    clash.start();
    assert_eq!(clash.who(), "a", "{}", clash.running().log());
    let line = clash.running().line(passed);
    assert!(line.contains("nested deeper than 64 levels"), "{line}");
    assert!(!clash.file("r.txt").exists());
    assert_eq!(fs::read_to_string(clash.file("r.txt.refused")).unwrap(), bad);
    server.set(Script::Document(bad));
    assert_eq!(clash.update("rules", "r"), 503);
    assert!(!clash.file("r.txt").exists());
    assert_eq!(clash.who(), "a");
    server.set(Script::Document("DOMAIN,who.test\n".into()));
    assert_eq!(clash.update("rules", "r"), 204, "{}", clash.running().log());
    assert_eq!(clash.who(), "");
    clash.start();
    assert_eq!(clash.who(), "");
}

/// Lists and databases in files of a person.
#[test]
fn lists_in_files() {
    let sites = |name: &str| {
        let message = |tag: u8, bytes: &[u8]| [&[tag, u8::try_from(bytes.len()).unwrap()], bytes].concat();
        let domain = [&[8, 3][..], &message(0x12, name.as_bytes())].concat();
        message(0x0a, &[message(0x0a, b"LIST"), message(0x12, &domain)].concat())
    };
    let more = "proxy-providers:\n  s: {type: file, path: ./s.yaml}\n\
                rule-providers:\n  r: {type: file, behavior: classical, format: text, path: ./r.txt}\n\
                rules: ['RULE-SET,r,S', 'GEOSITE,list,REJECT', 'MATCH,G']\n";
    let mut clash = Clash::new(MATCH);
    let [a, b] = clash.proxies;
    let files = ["s.yaml", "r.txt", "GeoSite.dat"].map(|name| clash.file(name));
    mend(&files[0], list(&[("p", b)]));
    mend(&files[1], "DOMAIN,who.test\n");
    mend(&files[2], sites("x.test"));
    let groups = "proxy-groups:\n- {name: S, type: select, use: [s], empty-fallback: REJECT}\n";
    mend(&clash.file("config.yaml"), clash.text("a", more).replace("proxy-groups:\n", groups));
    clash.start();
    assert_eq!(clash.who(), "b");
    for bad in BAD {
        for (n, file) in files.iter().enumerate() {
            let good = fs::read(file).unwrap();
            spoil(file, bad);
            if n == 2 {
                signal_until(clash.running(), "HUP", REFUSED);
                assert_eq!(clash.who(), "b", "{bad:?}");
                mend(file, &good);
                continue;
            }
            // A list is looked at by itself. One that cannot be read has nothing in it.
            let without = ["", "a"][n];
            clash.becomes(without, &format!("{} without {bad:?}", file.display()));
            clash.start();
            assert_eq!(clash.who(), without, "another start with {bad:?}");
            mend(file, &good);
            clash.becomes("b", &format!("a good list after {bad:?}"));
        }
    }
    mend(&files[0], list(&[("p", a), ("G", b), ("DIRECT", b)]));
    clash.becomes("a", "another list, with names that are taken");
    clash.start();
    assert_eq!(clash.who(), "a");
}

/// A list of access of sslocal. Text that is none has no rules.
#[test]
fn a_list_of_access() {
    let dir = Dir::new();
    let (at, target) = (unused_addr(), echo());
    let list = dir.file("list.acl", "[bypass_all]\n");
    dir.file(
        "config.json",
        &format!(
            "{{\"server\": \"127.0.0.1\", \"server_port\": 1, \"password\": \"k\", \"method\": \"aes-128-gcm\",\n\
             \"local_address\": \"{}\", \"local_port\": {}, \"acl\": \"list.acl\"}}",
            at.ip(),
            at.port()
        ),
    );
    let words = ["sslocal", "-c", "config.json"];
    let running = Running::start(dir.adit(&words));
    running.line("listening");
    for bad in [Bad::Endless, Bad::Pipe] {
        spoil(&list, bad);
        signal_until(&running, "USR1", REFUSED);
        round_trip(&mut socks5(at, "127.0.0.1", target.port()), 1000);
        mend(&list, "[bypass_all]\n[proxy_list]\n192.0.2.0/24\n");
        signal_until(&running, "USR1", "reloaded");
        round_trip(&mut socks5(at, "127.0.0.1", target.port()), 1000);
    }
    drop(running);
    let running = Running::start(dir.adit(&words));
    running.line("listening");
    round_trip(&mut socks5(at, "127.0.0.1", target.port()), 1000);
}

/// The database of users of ShadowsocksR, which is read once a second here.
#[test]
fn a_database_of_users() {
    let dir = Dir::new();
    dir.file("userapiconfig.py", "UPDATE_TIME = 1\n");
    dir.file("user-config.json", "{\"server\": \"127.0.0.1\", \"method\": \"aes-256-ctr\"}");
    let rows = |port: u16| {
        format!(
            "[{{\"user\": \"ann\", \"port\": {port}, \"passwd\": \"hunter2\", \"enable\": 1, \"transfer_enable\": 99999999}}]"
        )
    };
    let port = || adit_testkit::unused_localhost().port();
    let is_open = |port: u16| TcpStream::connect(("127.0.0.1", port)).is_ok();
    let mut at = port();
    let file = dir.file("mudb.json", &rows(at));
    let words = ["-c", "mudb.json"];
    let program = link(&dir, "ssr-server");
    let server = Running::start(dir.command(&program, &words));
    server.line("listening");
    for bad in BAD {
        let before = count(&server, "is not up to date");
        spoil(&file, bad);
        wait_for("a complaint", || server.log(), || count(&server, "is not up to date") > before);
        assert!(is_open(at), "{bad:?}");
        at = port();
        mend(&file, rows(at));
        wait_for(&format!("the other port after {bad:?}"), || server.log(), || is_open(at));
    }
    drop(server);
    let server = Running::start(dir.command(&program, &words));
    server.line("listening");
    assert!(is_open(at));
}

/// Files that adit keeps for itself: however damaged they are, the next start works.
#[test]
fn files_that_were_kept() {
    let dir = Dir::new();
    let (at, ss, panel, target) = (unused_addr(), unused_addr(), unused_addr(), echo());
    dir.file("panel.token", "token\n");
    dir.file(
        "adit.toml",
        &format!(
            "state = \"kept\"\n\
             [store]\nurl = \"redis://{panel}\"\nfleet = \"test\"\n\
             [[panel]]\nname = \"home\"\nurl = \"http://{panel}\"\ntoken-file = \"panel.token\"\nnode = \"17\"\nkind = \"uniproxy\"\n\
             [[provider]]\nname = \"list\"\npath = \"list.yaml\"\nurl = \"http://{panel}/\"\n\
             [[set]]\nname = \"set\"\npath = \"set.txt\"\nurl = \"http://{panel}/\"\n\
             [[rule]]\nset = \"set\"\noutbound = \"group\"\n\
             [[inbound]]\nname = \"in\"\nprotocol = \"mixed\"\nlisten = \"{at}\"\noutbound = \"out\"\n\
             [[inbound]]\nname = \"ss\"\nprotocol = \"shadowsocks\"\nlisten = \"{ss}\"\noutbound = \"out\"\nmethod = \"2022-blake3-aes-128-gcm\"\n\
             password = \"MjQ5MjBkZWNmODNmNjk2MA==\"\n\
             [[outbound]]\nname = \"out\"\nprotocol = \"direct\"\n\
             [[outbound]]\nname = \"group\"\nprotocol = \"select\"\nuse = \"list\"\n"
        ),
    );
    let run = |what: &str| {
        let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
        running.line(&format!("address={at}"));
        round_trip(&mut socks5(at, "127.0.0.1", target.port()), 1000);
        running.signal("TERM");
        let (status, log) = running.end();
        assert!(status.success(), "{what}: {log}");
    };
    run("nothing is kept yet");
    let kept = [
        "kept",
        "kept.salts",
        "kept.sources",
        "kept.fleet",
        "kept.fleet-done",
        "kept.panel-home",
        "kept.panel-store",
    ];
    let kept =
        kept.into_iter().chain(["list.yaml", "list.yaml.adit", "set.txt", "set.txt.adit", "adit/choices"]);
    for name in kept {
        let file = dir.path().join(name);
        for bad in BAD {
            // Nobody but a person makes a link or a pipe of the file that a person has named.
            if matches!(bad, Bad::Endless | Bad::Pipe) && ["kept", "kept.salts"].contains(&name) {
                continue;
            }
            if file.is_dir() {
                continue;
            }
            spoil(&file, bad);
            run(&format!("{name} {bad:?}"));
        }
        if !file.is_dir() {
            fs::remove_file(&file).ok();
        }
    }
}

/// Files that stand for those of mihomo in its home folder.
#[test]
fn files_that_were_kept_at_home() {
    let more = "dns: {enable: true, enhanced-mode: fake-ip, nameserver: [127.0.0.1]}\nrules: ['MATCH,G']\n";
    let mut clash = Clash::new(more);
    let file = clash.file("config.yaml");
    mend(
        &file,
        clash.text("a", more).replace("store-selected: false", "store-selected: true, store-fake-ip: true"),
    );
    clash.start();
    assert_eq!(clash_api::put(clash.control, "PUT", "/proxies/G", "{\"name\": \"b\"}"), 204);
    for name in ["adit-choices.json", "adit-fake-ip"] {
        for bad in BAD {
            clash.running = None;
            spoil(&clash.file(name), bad);
            clash.start();
            assert!(["a", "b"].contains(&&*clash.who()), "{name} {bad:?}: {}", clash.running().log());
        }
        clash.running = None;
        fs::remove_file(clash.file(name)).ok();
    }
}

/// Texts of clients name files in the home folder alone.
#[test]
fn clients_name_no_files_of_others() {
    let outside = Dir::new();
    let secret = outside.file("shadow", "root:$6$hunter2:1::\nother:hunter2:\n");
    fs::create_dir(outside.path().join("safe")).unwrap();
    fs::write(outside.path().join("safe/list"), "DOMAIN,x.test\n").unwrap();
    let mut clash = Clash::new(MATCH);
    clash.running = None;
    let mut command = clash.dir.adit(&["mihomo", "-d", "."]);
    command.env("SAFE_PATHS", outside.path().join("safe"));
    let running = Running::start(command);
    running.line("RESTful API listening");
    clash.running = Some(running);
    symlink(&secret, clash.file("link")).unwrap();
    symlink(outside.path(), clash.file("folder")).unwrap();
    fs::write(clash.file("good"), "DOMAIN,x.test\n").unwrap();
    let up = format!("{}{}", "../".repeat(20), secret.display());
    let rules = |kind: &str, path: &str| {
        let url = if kind == "http" { ", url: 'http://127.0.0.1:1/'" } else { "" };
        format!(
            "rule-providers:\n  r: {{type: {kind}, behavior: domain, format: text, path: '{path}'{url}}}\nrules: ['RULE-SET,r,DIRECT', 'MATCH,G']\n"
        )
    };
    let proxies = |kind: &str, path: &str| {
        rules(kind, path).replace("rule-providers:", "proxy-providers:").replace("'RULE-SET,r,DIRECT', ", "")
    };
    let secret = secret.display().to_string();
    for path in [&*secret, &up, "link", "folder/shadow", "./folder/../link", "/proc/kmsg", "/dev/stdin"] {
        for kind in ["file", "http"] {
            for more in [rules(kind, path), proxies(kind, path)] {
                let (status, answer) = clash.put_text(&clash.text("b", &more));
                assert!(
                    status == 400 && answer.contains("not subpath of home directory"),
                    "{path} {kind}: {status} {answer}"
                );
                // The same in a file of the home folder that is not the process's own.
                fs::write(clash.file("sent.yaml"), clash.text("b", &more)).unwrap();
                let (status, answer) = clash.put(&json!({ "path": clash.file("sent.yaml") }));
                assert!(status == 400 && !answer.contains("hunter2"), "{path} {kind}: {status} {answer}");
                assert_eq!(clash.who(), "a");
            }
        }
    }
    for key in [
        format!("external-ui: {}\n", outside.path().display()),
        "external-ui: folder\n".into(),
        "external-ui: .\nexternal-ui-name: ../..\n".into(),
    ] {
        let (status, answer) = clash.put_text(&clash.text("b", &format!("{key}{MATCH}")));
        assert!(status == 400 && answer.contains("not subpath"), "{key}: {status} {answer}");
    }
    let (status, answer) = clash.put_text(&clash.text("b", &rules("http", "config.yaml")));
    assert!(status == 400 && answer.contains("the configuration itself"), "{status} {answer}");
    // A plugin of a client runs only if the file of the person allows it.
    fs::write(clash.file("links"), "ss://YWVzLTEyOC1nY206c2VjcmV0@127.0.0.1:1?plugin=sh%3Ba#c\n").unwrap();
    let plugin =
        format!("plugins-allowed: [sh]\nproxy-providers: {{p: {{type: file, path: links}}}}\n{MATCH}");
    assert_eq!(clash.put_text(&clash.text("b", &plugin)).0, 204);
    clash.running().line("plugin sh is neither built in nor in plugins-allowed");
    assert_eq!(clash.put_text(&clash.text("a", MATCH)).0, 204);
    // Files in the folders are good.
    let safe = outside.path().join("safe/list").display().to_string();
    for path in ["good", &safe] {
        let (status, answer) = clash.put_text(&clash.text("b", &rules("file", path)));
        assert_eq!((status, answer.as_str(), &*clash.who()), (204, "", "b"), "{path}");
        assert_eq!(clash.put_text(&clash.text("a", MATCH)).0, 204);
    }
    let log = clash.running().log();
    assert!(!log.contains("hunter2") && !log.contains("root:"), "{log}");
}

/// A file of a person may name any file; its lines are not shown, and one that would be waited for has none.
#[test]
fn a_persons_file_names_others() {
    let outside = Dir::new();
    let secret =
        outside.file("shadow", "# x\nroot:$6$hunter2:1::\nproxies:\n- {name: hunter2, type: [hunter2}\n");
    pipe(&outside.path().join("pipe"));
    let mut clash = Clash::new(MATCH);
    for (path, warns) in
        [(secret.clone(), true), ("/proc/kmsg".into(), false), (outside.path().join("pipe"), false)]
    {
        let path = path.display();
        let more = format!(
            "rule-providers:\n  d: {{type: file, behavior: domain, format: text, path: {path}}}\n  \
             c: {{type: file, behavior: classical, format: text, path: {path}}}\n  \
             i: {{type: file, behavior: ipcidr, format: text, path: {path}}}\n  \
             y: {{type: file, behavior: domain, format: yaml, path: {path}}}\n\
             proxy-providers:\n  p: {{type: file, path: {path}}}\n\
             rules: ['RULE-SET,d,DIRECT', 'RULE-SET,c,DIRECT', 'RULE-SET,i,DIRECT', 'RULE-SET,y,DIRECT', 'MATCH,G']\n"
        );
        mend(&clash.file("config.yaml"), clash.text("a", &more));
        clash.start();
        assert_eq!(clash.who(), "a");
        clash.running().line("lies outside of the home folder");
        if warns {
            clash.running().line("the first: line 2");
        }
        let log = clash.running().log();
        assert!(!log.contains("hunter2") && !log.contains("root"), "{log}");
        signal_until(clash.running(), "HUP", "reloaded");
        assert_eq!(clash.put_text(&clash.text("b", MATCH)).0, 204);
        assert_eq!(clash.who(), "b");
    }
}

/// The first text may come through a pipe, as from a shell's `<(...)`.
#[test]
fn a_first_text_through_a_pipe() {
    let dir = Dir::new();
    let (at, target, file) = (unused_addr(), echo(), dir.path().join("pipe"));
    pipe(&file);
    let text = format!(
        "[[inbound]]\nname = \"in\"\nprotocol = \"mixed\"\nlisten = \"{at}\"\noutbound = \"out\"\n\
         [[outbound]]\nname = \"out\"\nprotocol = \"direct\"\n"
    );
    let running = Running::start(dir.adit(&["run", "-c", "pipe"]));
    fs::write(&file, text).unwrap();
    running.line("listening");
    round_trip(&mut socks5(at, "127.0.0.1", target.port()), 1000);
    // Nobody writes a second time, and nothing waits for it.
    signal_until(&running, "HUP", REFUSED);
    round_trip(&mut socks5(at, "127.0.0.1", target.port()), 1000);
}
