use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use crate::support::{Dir, PATIENCE, PSK, Running, echo, link, round_trip, socks5};

/// A server for users, a local port that leads to it as ann, and one that leads out directly.
struct Pair {
    dir: Dir,
    listen: SocketAddr,
    local: SocketAddr,
    direct: SocketAddr,
}

const ANN: &str = "the very own key of ann";
const BOB: &str = "the very own key of bob";

impl Pair {
    fn new() -> Self {
        let port = adit_testkit::unused_addr;
        Self { dir: Dir::new(), listen: port(), local: port(), direct: port() }
    }

    fn text(&self, users: &[(&str, &str)]) -> String {
        let Self { listen, local, direct, .. } = self;
        let users: Vec<String> = users
            .iter()
            .map(|(name, key)| format!("  {{ name = \"{name}\", password = \"{key}\" }}, # {name}\n"))
            .collect();
        format!(
            "# kept\nstate = \"off\"\n[admin]\nsocket = \"adit.sock\" # here\n\
             [[inbound]]\nname = \"in\"\nprotocol = \"snell\"\nlisten = \"{listen}\"\noutbound = \"direct\"\n\
             allow-private = true\nusers = [\n{}]\n\
             [[inbound]]\nname = \"local\"\nprotocol = \"mixed\"\nlisten = \"{local}\"\noutbound = \"home\"\n\
             [[inbound]]\nname = \"plain\"\nprotocol = \"mixed\"\nlisten = \"{direct}\"\noutbound = \"direct\"\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n\
             [[outbound]]\nname = \"home\"\nprotocol = \"snell\"\nserver = \"{listen}\"\npsk = \"{ANN}\"\n",
            users.concat()
        )
    }

    fn write(&self, text: &str) {
        self.dir.file("adit.toml", text);
    }

    fn read(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("adit.toml")).unwrap()
    }

    fn start(&self) -> Running {
        self.write(&self.text(&[("ann", ANN)]));
        let running = Running::start(self.dir.adit(&["run", "-c", "adit.toml"]));
        running.line("inbound=plain");
        running
    }

    /// The user's bytes up and down.
    fn used(&self, name: &str) -> Option<(u64, u64)> {
        let (status, out, err) = self.dir.run(&["status", "--json", "--socket", "adit.sock"]);
        assert_eq!((status, &*err), (0, ""));
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        let users = json["inbounds"][0]["users"].as_array().unwrap();
        let user = users.iter().find(|user| user["name"] == name)?;
        Some((user["up_bytes"].as_u64().unwrap(), user["down_bytes"].as_u64().unwrap()))
    }

    fn wait_used(&self, name: &str, bytes: u64) {
        let until = Instant::now() + PATIENCE;
        while self.used(name) != Some((bytes, bytes)) {
            assert!(Instant::now() < until, "{bytes} wanted, {:?} counted", self.used(name));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A client of the server with a key, in its own process.
fn client(pair: &Pair, name: &str, key: &str) -> (Running, SocketAddr) {
    let file = format!("{name}.toml");
    pair.dir.file(
        &file,
        &format!(
            "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n\
             [[outbound]]\nprotocol = \"snell\"\nserver = \"{}\"\npsk = \"{key}\"\n",
            pair.listen
        ),
    );
    let running = Running::start(pair.dir.adit(&["run", "-c", &file]));
    let address = running.address();
    (running, address)
}

/// Whether a connection ends within `limit`.
fn ends(stream: &mut TcpStream, limit: Duration) -> bool {
    stream.set_read_timeout(Some(limit)).unwrap();
    match stream.read(&mut [0; 16]) {
        Ok(len) => len == 0,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

#[test]
fn a_reload_cuts_nothing_that_stays() {
    let pair = Pair::new();
    let running = pair.start();
    let target = echo();
    let mut kept = socks5(pair.local, "127.0.0.1", target.port());
    let mut cut = socks5(pair.direct, "127.0.0.1", target.port());
    round_trip(&mut kept, 100_000);
    round_trip(&mut cut, 1000);
    let moved = adit_testkit::unused_addr();
    let new = pair.text(&[("ann", ANN), ("bob", BOB)]).replace(&pair.direct.to_string(), &moved.to_string());
    pair.write(&new);

    // First what would change, which changes nothing.
    let (status, out, err) = pair.dir.run(&["diff", "-c", "adit.toml"]);
    assert_eq!((status, &*err), (0, ""));
    for word in
        ["closed and opened anew: plain", "changed, connections stay: in", "users added: in/bob", "plain (1)"]
    {
        assert!(out.contains(word), "{word}: {out}");
    }
    let (_, out, _) = pair.dir.run(&["diff", "--json", "-c", "adit.toml"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["cuts"], serde_json::json!([{ "of": "plain", "connections": 1 }]));
    assert!(!out.contains("own key"), "{out}");
    round_trip(&mut cut, 1000);

    let (status, out, err) = pair.dir.run(&["reload", "-c", "adit.toml"]);
    assert_eq!((status, &*err), (0, ""));
    assert!(out.contains("users added: in/bob"), "{out}");
    running.line("reloaded: inbounds changed");
    assert!(ends(&mut cut, PATIENCE), "its inbound has another address");
    round_trip(&mut kept, 100_000);
    round_trip(&mut socks5(moved, "127.0.0.1", target.port()), 1000);
    pair.wait_used("ann", 200_000);
    let (_other, local) = client(&pair, "bob", BOB);
    round_trip(&mut socks5(local, "127.0.0.1", target.port()), 5000);
    pair.wait_used("bob", 5000);
    pair.wait_used("ann", 200_000);

    // The same file again, by a signal: no difference.
    running.signal("HUP");
    running.line("nothing has changed");
    let (_, out, _) = pair.dir.run(&["diff", "-c", "adit.toml"]);
    assert_eq!(out, "compared: no difference\n");
    pair.write(&new.replace("state = \"off\"", "state = \"off\"\ncores = 3"));
    let (status, out, _) = pair.dir.run(&["reload", "-c", "adit.toml"]);
    assert!(status == 0 && out.contains("needs a restart: cores"), "{out}");
    round_trip(&mut kept, 1000);
    let names = "state = \"off\"\n[log]\nlevel = \"debug\"\n[limits]\nunauthenticated = 77\n[[dns.hosts]]\n\
                 name = \"reloaded.test\"\naddress = \"127.0.0.1\"\n";
    let with_names = new.replace("state = \"off\"\n", names);
    pair.write(&with_names);
    let (status, out, _) = pair.dir.run(&["diff", "-c", "adit.toml"]);
    assert!(status == 0 && out.contains("settings changed: log, limits, dns.hosts\n"), "{out}");
    let (status, out, _) = pair.dir.run(&["reload", "-c", "adit.toml"]);
    assert!(status == 0 && !out.contains("needs a restart"), "{out}");
    round_trip(&mut socks5(moved, "reloaded.test", target.port()), 1000);
    running.line("DEBUG");
    let (_, out, _) = pair.dir.run(&["status", "--json", "-c", "adit.toml"]);
    assert!(out.contains("\"unauthenticated\":77") || out.contains("\"unauthenticated\": 77"), "{out}");
    round_trip(&mut kept, 1000);
}

#[test]
fn a_bad_file_changes_nothing_and_every_error_has_its_place() {
    let pair = Pair::new();
    let mut running = pair.start();
    let target = echo();
    let mut kept = socks5(pair.local, "127.0.0.1", target.port());
    round_trip(&mut kept, 1000);
    let good = pair.text(&[("ann", ANN)]);
    let line_of = |text: &str, part: &str| text[..text.find(part).unwrap()].matches('\n').count() + 1;

    let bad = good
        .replace("protocol = \"mixed\"", "protocol = \"mixde\"")
        .replace("name = \"home\"", "nmae = \"home\"");
    pair.write(&bad);
    let (status, out, err) = pair.dir.run(&["reload", "-c", "adit.toml"]);
    assert_eq!((status, &*out), (1, ""));
    for part in ["protocol = \"mixde\"", "nmae"] {
        assert!(err.contains(&format!("adit.toml:{}:", line_of(&bad, part))), "{part}: {err}");
    }
    assert!(err.contains("the configuration that runs stays as it is"), "{err}");
    running.line("what runs stays as it is");
    let log = running.log();
    assert!(log.contains("nmae") && log.contains("mixde"), "{log}");
    let (status, _, err) = pair.dir.run(&["diff", "--socket", "adit.sock", "-c", "adit.toml"]);
    assert!(status == 1 && err.contains("nmae"), "{err}");
    running.signal("HUP");

    // An address that is taken: the part that wants it is named with its line.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let bad = good.replace(&pair.direct.to_string(), &taken.local_addr().unwrap().to_string());
    pair.write(&bad);
    let (status, _, err) = pair.dir.run(&["reload", "--socket", "adit.sock"]);
    let line = line_of(&bad, "name = \"plain\"") - 1;
    assert!(
        status == 1 && err.contains(&format!("adit.toml:{line}:1: inbound plain: cannot listen")),
        "{err}"
    );

    std::fs::remove_file(pair.dir.path().join("adit.toml")).unwrap();
    let (status, _, err) = pair.dir.run(&["reload", "--socket", "adit.sock"]);
    assert!(status == 1 && err.contains("cannot read"), "{err}");
    round_trip(&mut kept, 1000);
    round_trip(&mut socks5(pair.direct, "127.0.0.1", target.port()), 1000);
    pair.wait_used("ann", 2000);
    pair.write(&good);
    assert_eq!(pair.dir.run(&["reload", "-c", "adit.toml"]).0, 0);
    assert!(running.is_running());
    let (status, _, err) = pair.dir.run(&["reload", "--socket", "nobody.sock"]);
    assert!(status == 1 && err.contains("no answer on nobody.sock"), "{err}");
}

#[test]
fn a_user_signal_never_kills() {
    let dir = Dir::new();
    dir.file("adit.toml", "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n");
    let snell = format!("[snell-server]\nlisten = 127.0.0.1:0\npsk = {PSK}\n");
    dir.file("snell.conf", &snell);
    let port = adit_testkit::unused_addr().port();
    let server = |port: u16| {
        format!(
            "{{\"server\":\"127.0.0.1\",\"server_port\":{port},\"method\":\"aes-256-gcm\",\"password\":\"p\""
        )
    };
    dir.file("ss.json", &format!("{}}}", server(port)));
    for (name, args) in [
        ("adit", vec!["run", "-c", "adit.toml"]),
        ("snell-server", vec!["-c", "snell.conf"]),
        ("ss-server", vec!["-c", "ss.json"]),
        ("ssserver", vec!["-c", "ss.json"]),
    ] {
        let program = if name == "adit" { env!("CARGO_BIN_EXE_adit").into() } else { link(&dir, name) };
        let mut running = Running::start(dir.command(program, &args));
        running.line("listening");
        running.signal("USR1");
        running.line("uptime_s");
        assert!(running.is_running(), "{name}");
        running.signal("TERM");
        assert_eq!(running.end().0.code(), Some(0), "{name}");
    }
}

#[test]
fn sslocal_takes_another_server_at_a_user_signal() {
    let dir = Dir::new();
    let (one, two) = (adit_testkit::unused_addr(), adit_testkit::unused_addr());
    let local = adit_testkit::unused_addr();
    let file = |server: SocketAddr, more: &str| {
        dir.file(
            "sl.json",
            &format!(
                "{{\"server\":\"{}\",\"server_port\":{},\"method\":\"aes-256-gcm\",\"password\":\"p\",\
                 \"local_address\":\"{}\",\"local_port\":{}{more}}}",
                server.ip(),
                server.port(),
                local.ip(),
                local.port()
            ),
        );
    };
    let server = |at: SocketAddr| {
        let name = format!("{}.json", at.port());
        dir.file(
            &name,
            &format!(
                "{{\"server\":\"{}\",\"server_port\":{},\"method\":\"aes-256-gcm\",\"password\":\"p\"}}",
                at.ip(),
                at.port()
            ),
        );
        let running = Running::start(dir.adit(&["ssserver", "-c", &name]));
        running.line("listening");
        running
    };
    let (first, _second) = (server(one), server(two));
    file(one, "");
    let running = Running::start(dir.adit(&["sslocal", "-c", "sl.json"]));
    running.line("listening");
    let target = echo();
    let mut kept = socks5(local, "127.0.0.1", target.port());
    round_trip(&mut kept, 1000);
    file(two, "");
    running.signal("USR1");
    running.line("reloaded");
    round_trip(&mut kept, 1000);
    first.signal("KILL");
    first.end();
    round_trip(&mut socks5(local, "127.0.0.1", target.port()), 1000);
    file(one, ",\"method\":\"no-such\"");
    running.signal("HUP");
    running.line("what runs stays as it is");
    round_trip(&mut socks5(local, "127.0.0.1", target.port()), 1000);
}

#[test]
fn a_watched_file_is_followed() {
    let pair = Pair::new();
    let text = |users: &[(&str, &str)]| pair.text(users).replace("# here\n", "# here\nwatch = true\n");
    pair.write(&text(&[("ann", ANN)]));
    let running = Running::start(pair.dir.adit(&["run", "-c", "adit.toml"]));
    running.line("inbound=plain");
    // As editors do: a new file in its place.
    let new = pair.dir.file("new.toml", &text(&[("ann", ANN), ("bob", BOB)]));
    std::fs::rename(new, pair.dir.path().join("adit.toml")).unwrap();
    running.line("users added: in/bob");
    pair.write("x = [");
    running.line("what runs stays as it is");
    assert_eq!(pair.used("bob"), Some((0, 0)));
}

#[test]
fn users_come_and_go_while_it_runs() {
    let pair = Pair::new();
    let running = pair.start();
    let path = pair.dir.path().join("adit.toml");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let target = echo();
    let mut kept = socks5(pair.local, "127.0.0.1", target.port());
    round_trip(&mut kept, 10_000);

    let (status, out, err) = pair.dir.run(&[
        "user",
        "add",
        "bob",
        "-c",
        "adit.toml",
        "--quota",
        "1GB",
        "--host",
        "proxy.example.com",
    ]);
    assert_eq!((status, &*err), (0, ""));
    assert!(
        out.contains("snell://") && out.contains("proxy.example.com") && out.contains('\u{2588}'),
        "{out}"
    );
    let added = pair.read();
    for comment in ["# kept", "# here", "# ann"] {
        assert!(added.contains(comment), "{comment}: {added}");
    }
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    let key_of = |text: &str| {
        let line = text.lines().find(|line| line.contains("name = \"bob\"")).unwrap().to_owned();
        line.split("password = \"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    let key = key_of(&added);
    assert_eq!(key.len(), 32);
    assert!(out.contains(&key), "{out}");
    assert!(!running.log().contains(&key), "{}", running.log());

    // It counts at once.
    let (_bob, local) = client(&pair, "bob", &key);
    let mut of_bob = socks5(local, "127.0.0.1", target.port());
    round_trip(&mut of_bob, 5000);
    pair.wait_used("bob", 5000);
    let (status, out, _) = pair.dir.run(&["user", "list", "-c", "adit.toml"]);
    assert!(status == 0 && out.contains("bob") && out.contains("1.0 GB") && !out.contains(&key), "{out}");
    let (_, out, _) = pair.dir.run(&["user", "list", "--json", "-c", "adit.toml"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json[1]["name"], &json[1]["quota_bytes"]), (&"bob".into(), &1_000_000_000.into()));
    assert_eq!(json[1]["status"]["up_bytes"], 5000);

    // Limits change in place.
    let (status, _, err) =
        pair.dir.run(&["user", "limit", "bob", "--quota", "none", "--connections", "9", "-c", "adit.toml"]);
    assert_eq!((status, &*err), (0, ""));
    round_trip(&mut of_bob, 5000);
    assert!(pair.read().contains("connections = 9") && !pair.read().contains("1GB"), "{}", pair.read());

    // Another key ends what the one before has opened, removal the rest; ann is not touched.
    let (status, out, err) =
        pair.dir.run(&["user", "rotate", "bob", "-c", "adit.toml", "--no-qr", "--host", "a.example"]);
    assert_eq!((status, &*err), (0, ""));
    let second = key_of(&pair.read());
    assert!(second != key && out.contains(&second) && !out.contains('\u{2588}'), "{out}");
    let begin = Instant::now();
    assert!(
        ends(&mut of_bob, PATIENCE) && begin.elapsed() < Duration::from_secs(60),
        "{:?}",
        begin.elapsed()
    );
    let (_again, local) = client(&pair, "bob2", &second);
    let mut of_bob = socks5(local, "127.0.0.1", target.port());
    round_trip(&mut of_bob, 100);
    let (status, _, err) = pair.dir.run(&["user", "rm", "bob", "-c", "adit.toml"]);
    assert_eq!((status, &*err), (0, ""));
    assert!(ends(&mut of_bob, PATIENCE));
    assert_eq!(pair.used("bob"), None);
    round_trip(&mut kept, 10_000);
    pair.wait_used("ann", 20_000);
    assert_eq!(pair.read().lines().next(), Some("# kept"));
}

#[test]
fn users_that_cannot_be_change_nothing() {
    let pair = Pair::new();
    let running = pair.start();
    let before = pair.read();
    let refused = |args: &[&str], word: &str| {
        let (status, _, err) = pair.dir.run(&[args, &["-c", "adit.toml"]].concat());
        assert!(status == 1 && err.contains(word), "{args:?}: {status} {err}");
        assert_eq!(pair.read(), before, "{args:?}");
    };
    refused(&["user", "add", "ann"], "has a user of that name already: ann");
    refused(&["user", "rm", "bob"], "no user of that name: bob");
    refused(&["user", "rm", "ann"], "is the last user of inbound in");
    refused(&["user", "add", "bob", "--quota", "much"], "quota");
    refused(&["user", "add", "bob", "--addresses", "x"], "addresses is a whole number");
    refused(&["user", "add", "bob", "--inbound", "out"], "no inbound of that name takes users: out");
    refused(&["user", "add", ""], "name");
    refused(&["user", "limit", "ann"], "no limit is named");
    // A file that the process cannot follow is put back as it was.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = before.replace(&pair.direct.to_string(), &taken.local_addr().unwrap().to_string());
    pair.write(&other);
    let (status, _, err) = pair.dir.run(&["user", "add", "bob", "-c", "adit.toml"]);
    assert!(status == 1 && err.contains("cannot listen") && err.contains("is as it was"), "{err}");
    assert_eq!(pair.read(), other);
    pair.write(&before);
    // Without a process the file alone changes.
    running.signal("TERM");
    running.end();
    let (status, _, err) = pair.dir.run(&["user", "add", "bob", "-c", "adit.toml"]);
    assert!(status == 0 && err.contains("from the next start on"), "{err}");
    assert!(pair.read().contains("\"bob\""));
    pair.dir.file("ss.json", "{\"server_port\":1}");
    let (status, _, err) = pair.dir.run(&["user", "add", "bob", "-c", "ss.json"]);
    assert!(status == 1 && err.contains("ss.json:1:1"), "{err}");
}

#[test]
fn a_key_of_2022_has_the_length_of_its_method() {
    let dir = Dir::new();
    for (method, len) in [("2022-blake3-aes-128-gcm", 24), ("2022-blake3-aes-256-gcm", 44)] {
        let key = if len == 24 {
            "AAAAAAAAAAAAAAAAAAAAAA=="
        } else {
            "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
        };
        dir.file(
            "ss.toml",
            &format!(
                "[[inbound]]\nname = \"in\"\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:9\"\n\
                 method = \"{method}\"\npassword = \"{key}\"\n"
            ),
        );
        let (status, _, err) = dir.run(&["user", "add", "ann", "-c", "ss.toml"]);
        assert!(status == 1 && err.contains("--first"), "{err}");
        let (status, out, err) = dir.run(&["user", "add", "ann", "-c", "ss.toml", "--first"]);
        assert!(status == 0 && out.contains("ss://"), "{out} {err}");
        let text = std::fs::read_to_string(dir.path().join("ss.toml")).unwrap();
        let of_ann = text.split("{ name = \"ann\", password = \"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(of_ann.len(), len, "{text}");
    }
}

/// The number of a process's threads that have this name.
fn threads(running: &Running, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
    tasks
        .filter(|task| {
            let name_of = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
            task.as_ref().is_ok_and(|task| name_of(task).is_ok_and(|found| found.trim_end() == name))
        })
        .count()
}

/// A connection keeps its own user, not all users of its time with the thread that tries their keys.
#[cfg(target_os = "linux")]
#[test]
fn open_connections_hold_no_users_of_before() {
    let pair = Pair::new();
    let running = pair.start();
    let target = echo();
    let users = [("ann", ANN), ("bob", BOB)];
    let mut held = Vec::new();
    for generation in 1..6 {
        let mut stream = socks5(pair.local, "127.0.0.1", target.port());
        round_trip(&mut stream, 1000);
        held.push(stream);
        pair.write(&pair.text(&users[..1 + generation % 2]));
        let (status, out, err) = pair.dir.run(&["reload", "--socket", "adit.sock"]);
        assert_eq!(status, 0, "{out}{err}");
    }
    let until = Instant::now() + PATIENCE;
    while threads(&running, "adit-trial") != 1 {
        assert!(Instant::now() < until, "{} threads try keys", threads(&running, "adit-trial"));
        std::thread::sleep(Duration::from_millis(100));
    }
    for stream in &mut held {
        round_trip(stream, 1000);
    }
    pair.wait_used("ann", 10_000);
}
