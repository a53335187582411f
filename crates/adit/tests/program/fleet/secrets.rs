//! Check 15, of secrets: neither log nor status nor files of a node, nor the store, hold what lets somebody in.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::rig::{Fate, Panel, SERVER_KEY, users, uuid};
use super::support::{Redis, Way, echoed, program, wait_for};
use crate::support::{Dir, Running, echo, socks5};

const TOKEN: &str = "t0ken+of/the=panel 17&x";
const STORE: &str = "s3cret-of-the-store";
const ADMIN: &str = "t0ken-of-the-admin-0123456789abcdef";
const MANAGE: &str = "s3cret-of-the-manager-0123456789";
const REPLAY: &str = "cmVwbGF5LWtleS1vZi10aGUtZ3JvdXAtMDEyMzQ1Njc=";
const CLASSIC: &str = "the own key of ann";
const USERS: usize = 6;

/// A text that must not be found, in the forms in which it might be.
struct Secret {
    name: String,
    forms: Vec<Vec<u8>>,
}

impl Secret {
    /// `text` as it is, and encoded.
    fn new(name: &str, text: &str) -> Self {
        let mut secret = Self { name: name.to_owned(), forms: Vec::new() };
        secret.add(text.as_bytes());
        let encoded = text.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D").replace('&', "%26");
        secret.forms.extend(["%20", "+"].map(|blank| encoded.replace(' ', blank).into_bytes()));
        secret
    }

    /// A UUID too is written in several ways, and its first characters are a key.
    fn uuid(text: &str) -> Self {
        let mut secret = Self::new(text, text);
        let digits = text.replace('-', "");
        let bytes: Vec<u8> =
            (0..16).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect();
        for bytes in [digits.as_bytes(), &bytes, &text.as_bytes()[..32], &text.as_bytes()[..16]] {
            secret.add(bytes);
        }
        secret
    }

    /// Whether `bytes` end with it.
    fn ends(&self, bytes: &[u8]) -> bool {
        self.forms.iter().any(|form| bytes.ends_with(form))
    }

    /// Bytes as they are, in hexadecimal, as JSON lists them, and in base64 wherever they begin in it.
    fn add(&mut self, bytes: &[u8]) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let list: Vec<String> = bytes.iter().map(u8::to_string).collect();
        self.forms.extend([bytes.to_vec(), hex.to_uppercase().into(), hex.into()]);
        self.forms.extend([list.join(",").into(), list.join(", ").into()]);
        for before in 0..3 {
            let text = STANDARD_NO_PAD.encode([&[0; 2][..before], bytes].concat());
            // The characters that no other byte has a part in.
            let (from, to) = ((before * 8).div_ceil(6), (before + bytes.len()) * 8 / 6);
            let text = &text[from..to];
            self.forms
                .extend([text.to_owned(), text.replace('+', "-").replace('/', "_")].map(String::into_bytes));
        }
    }
}

/// The names of those of `secrets` that are in `bytes`. Files are large: few of their places end as a secret does.
fn found<'a>(secrets: &'a [Secret], bytes: &[u8]) -> Vec<&'a str> {
    let mut ends = vec![false; 1 << 16];
    let two = |bytes: &[u8]| usize::from(bytes[bytes.len() - 2]) << 8 | usize::from(bytes[bytes.len() - 1]);
    secrets.iter().flat_map(|secret| &secret.forms).for_each(|form| ends[two(form)] = true);
    let places = bytes.windows(2).enumerate().filter(|(_, pair)| ends[two(pair)]);
    let names: BTreeSet<&str> = places
        .flat_map(|(at, _)| secrets.iter().filter(move |secret| secret.ends(&bytes[..at + 2])))
        .map(|secret| &*secret.name)
        .collect();
    names.into_iter().collect()
}

#[test]
fn a_secret_is_found_in_every_form() {
    let secrets = [Secret::uuid(&uuid(0xfb)), Secret::new("token", TOKEN)];
    for text in [
        "id=000000fb-1111-4222-8333-444455556666;",
        "000000fb111142228333444455556666",
        "MDAwMDAwZmItMTExMS00MjIyLTgzMzMtNDQ0NDU1NTU=",
        "MDAwMDAwZmItMTExMS00Mg==",
        "eDAwMDAwMGZiLTExMTEtNDIyMi04MzMzLTQ0NDQ1NTU1NjY2Ng==",
        "30303030303066622d313131312d3432",
        "[48,48,48,48,48,48,102,98,45,49,49,49,49,45,52,50]",
    ] {
        assert_eq!(found(&secrets, text.as_bytes()), [uuid(0xfb)], "{text}");
    }
    let bytes = [0, 0, 0, 0xfb, 0x11, 0x11, 0x42, 0x22, 0x83, 0x33, 0x44, 0x44, 0x55, 0x55, 0x66, 0x66];
    assert_eq!(found(&secrets, &[&[1], &bytes[..]].concat()), [uuid(0xfb)]);
    assert!(found(&secrets, &bytes[1..]).is_empty() && found(&secrets, uuid(0xfa).as_bytes()).is_empty());
    let request = b"GET /?token=t0ken%2Bof%2Fthe%3Dpanel+17%26x&node_id=1";
    assert_eq!(found(&secrets, request), ["token"]);
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            all.extend(files(&entry.path()));
        } else if entry.file_type().unwrap().is_file() {
            all.push((entry.path(), std::fs::read(entry.path()).unwrap()));
        }
    }
    all
}

/// A node with a panel, a store and everything else that has a secret, at three ports for users.
fn node(dir: &Dir, panel: &Panel, store: &str, ports: &[std::net::SocketAddr; 3]) {
    let [metrics, manage] = [0; 2].map(|_| adit_testkit::unused_addr());
    let [shared, snell, classic] = ports;
    dir.file(
        "adit.toml",
        &format!(
            "[admin]\nsocket = \"adit.sock\"\nhttp = \"{metrics}\"\ntoken = \"{ADMIN}\"\n\
             manage = \"{manage}\"\nmanage-secret = \"{MANAGE}\"\nmanage-inbound = \"classic\"\n\
             [store]\nurl = \"{store}\"\nfleet = \"test\"\nevery = \"1s\"\nreplay-key = \"{REPLAY}\"\n\
             [[panel]]\nname = \"home\"\nkind = \"uniproxy\"\nurl = \"{}\"\ntoken = \"{TOKEN}\"\nnode = \"1\"\n\
             pull = \"2s\"\npush = \"2s\"\n\
             [[inbound]]\nname = \"shared\"\nprotocol = \"shadowsocks\"\nlisten = \"{shared}\"\noutbound = \"direct\"\n\
             method = \"2022-blake3-aes-256-gcm\"\npanel = \"home\"\nallow-private = true\n\
             [[inbound]]\nname = \"snell\"\nprotocol = \"snell\"\nlisten = \"{snell}\"\noutbound = \"direct\"\n\
             panel = \"home\"\nallow-private = true\n\
             [[inbound]]\nname = \"classic\"\nprotocol = \"shadowsocks\"\nlisten = \"{classic}\"\noutbound = \"direct\"\n\
             method = \"chacha20-ietf-poly1305\"\nallow-private = true\n\
             users = [{{ name = \"ann\", password = \"{CLASSIC}\", quota = \"1GiB\" }}]\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n",
            panel.url()
        ),
    );
}

/// A client with a local port for each pair of a user and a port of the node, and for one with a wrong key.
fn client(dir: &Dir, [shared, snell, classic]: &[std::net::SocketAddr; 3]) -> Running {
    let outbound = |name: &str, protocol: &str, server, more: String| {
        format!(
            "[[inbound]]\nname = \"l{name}\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"o{name}\"\n\
             [[outbound]]\nname = \"o{name}\"\nprotocol = \"{protocol}\"\nserver = \"{server}\"\n{more}\n"
        )
    };
    let mut text = String::new();
    for id in 0..USERS {
        let key = super::rig::key(id);
        let method = "method = \"2022-blake3-aes-256-gcm\"\n";
        text += &outbound(
            &format!("shared{id}"),
            "shadowsocks",
            shared,
            format!("{method}password = \"{SERVER_KEY}:{key}\""),
        );
        text += &outbound(&format!("snell{id}"), "snell", snell, format!("psk = \"{}\"", uuid(id)));
    }
    let method = "method = \"chacha20-ietf-poly1305\"\n";
    text += &outbound("wrong", "shadowsocks", classic, format!("{method}password = \"nobody's\""));
    text += &outbound("classic", "shadowsocks", classic, format!("{method}password = \"{CLASSIC}\""));
    dir.file("client.toml", &text);
    let running = Running::start(program(dir, &["run", "-c", "client.toml"]));
    running.line("inbound=lclassic");
    running
}

/// Everything that a node says of itself, with its log at the most talkative level.
struct Said(Vec<(String, Vec<u8>)>);

impl Said {
    fn add(&mut self, name: &str, bytes: impl Into<Vec<u8>>) {
        self.0.push((name.to_owned(), bytes.into()));
    }

    /// The answers to all questions that show a state.
    fn ask(&mut self, dir: &Dir) {
        for args in [
            &["status"][..],
            &["status", "--users"],
            &["status", "--json", "--users"],
            &["status", "--json", "--connections"],
            &["panel", "doubt"],
        ] {
            let out = program(dir, args).args(["--socket", "adit.sock"]).output().unwrap();
            self.add(&args.join(" "), [out.stdout, out.stderr].concat());
        }
    }
}

/// A node runs with panel, store and clients, whose faults it logs: neither answers, nor a wrong key, nor a panel and store
/// that are away may bring a secret out. The copy of the panel's list holds the users, as its mode says, and nothing else.
#[test]
#[ignore = "needs redis-server"]
fn no_surface_shows_a_secret() {
    let (mut redis, panel) = (Redis::start(), Panel::start(users(0..USERS)));
    redis.cli(&["CONFIG", "SET", "requirepass", STORE]);
    let way = Way::to(&redis);
    let (dir, ports) = (Dir::new(), [0; 3].map(|_| adit_testkit::unused_addr()));
    node(&dir, &panel, &way.url().replace("redis://", &format!("redis://:{STORE}@")), &ports);
    let mut said = Said(Vec::new());
    let start = || Running::start(program(&dir, &["--log-level", "trace", "run", "-c", "adit.toml"]));
    let running = start();
    wait_for("users are served", || running.log().contains("lists are in use"));
    let (clients, target) = (Dir::new(), echo());
    let client = client(&clients, &ports);
    let connect = |name: &str| {
        let line = client.line(&format!("inbound=l{name} "));
        socks5(line.split("address=").nth(1).unwrap().trim().parse().unwrap(), "127.0.0.1", target.port())
    };
    for id in 0..USERS {
        for port in ["shared", "snell"] {
            wait_for(port, || echoed(&mut connect(&format!("{port}{id}")), 1000));
        }
    }
    assert!(echoed(&mut connect("classic"), 1000));
    drop(connect("wrong"));
    wait_for("the store has the totals", || {
        redis.asks(STORE, &["--scan", "--pattern", "adit:test:use:*"]).len() > 10
    });
    said.ask(&dir);
    // Pushes are refused and lost, a user goes, and both panel and store go away and come back.
    panel.state().fates = vec![Fate::ResetLost, Fate::Refused];
    panel.list(users(1..USERS));
    wait_for("a push is lost", || {
        echoed(&mut connect("shared1"), 1000);
        !panel.state().doubtful.is_empty()
    });
    said.ask(&dir);
    let store: Vec<u8> = files(redis.folder()).into_iter().flat_map(|(_, bytes)| bytes).collect();
    panel.set_away(true);
    // It comes back without a password, so that the node's is refused.
    redis.restart();
    // Some failures of both.
    thread::sleep(Duration::from_secs(5));
    said.ask(&dir);
    panel.set_away(false);
    running.signal("HUP");
    // Some calls of both.
    thread::sleep(Duration::from_secs(3));
    running.signal("TERM");
    said.add("log", running.end().1);
    // It has the users of its copy.
    let running = start();
    running.line("inbound=classic");
    said.ask(&dir);
    running.signal("KILL");
    said.add("log after a restart", running.end().1);

    let mut secrets = vec![
        Secret::new("token of the panel", TOKEN),
        Secret::new("password of the store", STORE),
        Secret::new("token of the admin port", ADMIN),
        Secret::new("secret of the manager's port", MANAGE),
        Secret::new("key of the replay group", REPLAY),
        Secret::new("key of a user of the file", CLASSIC),
        Secret::new("key of the server", SERVER_KEY),
    ];
    let kept = secrets.len();
    secrets.extend((0..USERS).map(|id| Secret::uuid(&uuid(id))));
    for (name, bytes) in &said.0 {
        assert_eq!(found(&secrets, bytes), [""; 0], "{name}: {}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(found(&secrets, &store), [""; 0], "the store");
    // They can be found: the file of the node has them, but for those of the panel.
    let own = std::fs::read(dir.path().join("adit.toml")).unwrap();
    assert_eq!(found(&secrets, &own).len(), kept - 1);
    let state: Vec<_> = files(&dir.path().join("adit"));
    assert!(state.len() > 3, "{state:?}");
    let mut copies = 0;
    for (path, bytes) in &state {
        let is_copy = path.extension().is_some_and(|name| name == "panel-home");
        println!("{}: {} bytes", path.display(), bytes.len());
        copies += usize::from(is_copy);
        // The copy has the users and the server's key, or a start without the panel would not know them: its mode says so.
        if is_copy {
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(found(&secrets, bytes).len(), USERS, "{}", path.display());
        }
        let secrets = if is_copy { &secrets[..kept - 1] } else { &secrets[..] };
        assert_eq!(found(secrets, bytes), [""; 0], "{}", path.display());
    }
    assert_eq!(copies, 1);
    let length: usize = said.0.iter().map(|(_, bytes)| bytes.len()).sum();
    println!("{length} bytes of logs and answers, {} files of state, {copies} copies of a list", state.len());
    let log = said.0.iter().find(|(name, _)| name == "log").map(|(_, bytes)| String::from_utf8_lossy(bytes));
    assert!(log.is_some_and(|log| log.contains("DEBUG")), "the log is a talkative one");
}
