//! Lists of proxies and rules from servers that answer well, badly, or not at all.

mod geo;
mod outside;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::unused_addr;

use crate::support::{Dir, Running, echo, memory};

const PATIENCE: Duration = Duration::from_secs(120);

/// The next answers of a server.
#[derive(Clone)]
enum Script {
    Document(String),
    /// Bytes, with a version.
    Bytes(Vec<u8>),
    Status(u16),
    /// Bytes without an end, in chunks.
    Endless,
    /// Two gigabytes are announced.
    Huge,
    /// Half of what is announced.
    Cut(String),
    Hang,
}

/// A server of lists.
struct Server {
    at: SocketAddr,
    script: Mutex<Script>,
    requests: Mutex<Vec<String>>,
    sent: AtomicU64,
}

impl Server {
    fn start(script: Script) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Arc::new(Self {
            at: listener.local_addr().unwrap(),
            script: Mutex::new(script),
            requests: Mutex::default(),
            sent: AtomicU64::new(0),
        });
        let shared = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = shared.clone();
                thread::spawn(move || server.serve(stream).ok());
            }
        });
        server
    }

    fn set(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            request.push(byte[0]);
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        let known = request.lines().find(|line| line.to_lowercase().starts_with("if-none-match: "));
        let known = known.unwrap_or_default().to_owned();
        let is_known = known.contains("\"v1\"");
        self.requests.lock().unwrap().push(request);
        let script = self.script.lock().unwrap().clone();
        match script {
            Script::Document(text) if is_known && text.contains("#v1") => {
                stream.write_all(b"HTTP/1.1 304 X\r\n\r\n")
            }
            Script::Document(text) => {
                let version = if text.contains("#v1") { "ETag: \"v1\"\r\n" } else { "" };
                let usage = "subscription-userinfo: upload=1; download=2; total=3; expire=4\r\n";
                let len = text.len();
                let head = format!("HTTP/1.1 200 OK\r\n{version}{usage}Content-Length: {len}\r\n\r\n");
                stream.write_all(format!("{head}{text}").as_bytes())
            }
            Script::Bytes(bytes) => {
                let sum = bytes.iter().fold(0_u64, |sum, byte| sum * 31 % 1_000_003 + u64::from(*byte));
                if known.contains(&format!("\"{sum}\"")) {
                    return stream.write_all(b"HTTP/1.1 304 X\r\n\r\n");
                }
                let len = bytes.len();
                let head = format!("HTTP/1.1 200 OK\r\nETag: \"{sum}\"\r\nContent-Length: {len}\r\n\r\n");
                stream.write_all(&[head.as_bytes(), &bytes].concat())
            }
            Script::Status(status) => {
                stream.write_all(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").as_bytes())
            }
            Script::Cut(text) => {
                let len = text.len() * 2;
                stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{text}").as_bytes())
            }
            Script::Huge => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n")?;
                self.flood(&mut stream, &[b'x'; 65536])
            }
            Script::Endless => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                let chunk = format!("10000\r\n{}\r\n", "x".repeat(65536));
                self.flood(&mut stream, chunk.as_bytes())
            }
            Script::Hang => {
                // Longer than anybody waits.
                thread::sleep(Duration::from_secs(120));
                Ok(())
            }
        }
    }

    /// Sends until nobody takes it, 2 GB at most.
    fn flood(&self, stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
        for _ in 0..32_768 {
            stream.write_all(bytes)?;
            self.sent.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// A SOCKS5 proxy that answers every stream with its name, but for those to `list.test`, which it takes to `lists`.
fn proxy(name: &'static str, lists: Option<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = [0; 512];
                stream.read_exact(&mut bytes[..3])?;
                stream.write_all(&[5, 0])?;
                let len = stream.read(&mut bytes)?;
                let is_list = bytes[..len].windows(9).any(|window| window == b"list.test");
                stream.write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 1])?;
                if let (true, Some(lists)) = (is_list, lists) {
                    let mut far = TcpStream::connect(lists)?;
                    let (mut near, mut back) = (stream.try_clone()?, far.try_clone()?);
                    thread::spawn(move || std::io::copy(&mut near, &mut far).ok());
                    std::io::copy(&mut back, &mut stream)?;
                    return stream.shutdown(std::net::Shutdown::Both);
                }
                while stream.read(&mut bytes)? > 0 {
                    stream.write_all(name.as_bytes())?;
                }
                Ok(())
            });
        }
    });
    at
}

fn entry(name: &str, at: SocketAddr) -> String {
    format!("- {{name: {name}, type: socks5, server: {}, port: {}}}\n", at.ip(), at.port())
}

fn list(entries: &[(&str, SocketAddr)]) -> String {
    entries.iter().fold("proxies:\n".to_owned(), |text, (name, at)| text + &entry(name, *at))
}

/// A stream through the port of `adit`; `None` if it is refused.
fn open(port: SocketAddr, host: &str, target: u16) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(port).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[5, 1, 0]).ok()?;
    stream.read_exact(&mut [0; 2]).ok()?;
    let mut request = vec![5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
    request.extend_from_slice(host.as_bytes());
    request.extend_from_slice(&target.to_be_bytes());
    stream.write_all(&request).ok()?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).ok()?;
    (reply[1] == 0).then_some(stream)
}

/// The answer to a word; empty if the connection is refused.
fn ask(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 64];
    stream.write_all(b"who").ok();
    let len = stream.read(&mut bytes).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

fn who(port: SocketAddr) -> String {
    open(port, "who.test", 7).map(|mut stream| ask(&mut stream)).unwrap_or_default()
}

fn wait_for(what: &str, log: impl Fn() -> String, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "still not true: {what}\n{}", log());
        thread::sleep(Duration::from_millis(20));
    }
}

fn start(dir: &Dir, config: &str) -> (Running, SocketAddr) {
    let port = unused_addr();
    let head = format!("mixed-port: {}\nallow-lan: true\nbind-address: {}\n", port.port(), port.ip());
    dir.file("config.yaml", &format!("{head}{config}"));
    let running = Running::start(dir.adit(&["mihomo", "-d", "."]));
    running.line("listening");
    (running, port)
}

#[test]
fn bad_answers_leave_the_list_that_was_there() {
    let (a, b) = (proxy("a", None), proxy("b", None));
    let server = Server::start(Script::Status(500));
    let dir = Dir::new();
    let config = format!(
        "proxy-providers:\n  p: {{type: http, url: 'http://user:pw@{}/list?token=hunter2', interval: 1, proxy: DIRECT}}\n\
         proxy-groups:\n- {{name: G, type: select, use: [p]}}\nrules: ['MATCH,G']\n",
        server.at
    );
    let (running, port) = start(&dir, &config);
    running.line("the server answered with status 500");
    assert_eq!(who(port), "", "an empty group refuses");
    server.set(Script::Document(list(&[("a", a)]) + "#v1\n"));
    wait_for("the first list", || running.log(), || who(port) == "a");
    // The same version is not sent again.
    let before = server.requests();
    wait_for("more requests", || running.log(), || server.requests() > before + 1);
    assert!(server.requests.lock().unwrap().last().unwrap().contains("\"v1\""));
    let head = server.requests.lock().unwrap()[0].to_lowercase();
    assert!(
        head.starts_with("get /list?token=hunter2 ") && head.contains("authorization: basic dxnlcjpwdw=="),
        "{head}"
    );
    assert!(head.contains("user-agent: clash.meta/"), "{head}");
    let mut held = open(port, "who.test", 7).unwrap();
    assert_eq!(ask(&mut held), "a");

    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned()
        + &(b'b'..b'k')
            .map(|c| {
                let (name, last) = (char::from(c), char::from(c - 1));
                format!("{name}: &{name} [{}]\n", vec![format!("*{last}"); 9].join(","))
            })
            .collect::<String>()
        + "proxies: *j\n";
    for (script, wants) in [
        (Script::Status(404), "the server answered with status 404"),
        (Script::Huge, "longer than 16777216 bytes"),
        (Script::Endless, "longer than 16777216 bytes"),
        (Script::Cut(list(&[("b", b)])), "bad answer"),
        (
            Script::Document("<html><body>please log in</body></html>".into()),
            "a page of HTML in the place of a list",
        ),
        (Script::Document("proxies:\n- {name: b, type: socks5, server: 127".into()), "line 2"),
        (Script::Document("proxies: []\n".into()), "file doesn't have any proxy"),
        (Script::Document(bomb), "too many values"),
        (Script::Document("\u{0}\u{1}\u{2}".into()), "neither YAML"),
    ] {
        server.set(script);
        running.line(wants);
        assert_eq!(who(port), "a", "{wants}");
    }
    let sent = server.sent.load(Ordering::SeqCst);
    assert!(sent < 100 << 20, "{sent} bytes were taken");
    assert!(memory(&running) < 200 << 20, "{} bytes", memory(&running));

    // Another list, without a gap and without an end to open connections.
    server.set(Script::Document(list(&[("b", b)])));
    wait_for(
        "the other list",
        || running.log(),
        || {
            let found = who(port);
            assert!(found == "a" || found == "b", "{found}");
            found == "b"
        },
    );
    assert_eq!(ask(&mut held), "a");
    let log = running.log();
    assert!(!log.contains("hunter2") && !log.contains("user:pw"), "{log}");
    // It is saved once it is in use.
    let copies = || fs::read_dir(dir.path().join("proxies")).unwrap().flatten();
    // It lies beside the one before until it takes its place.
    let has = |name: &str| {
        copies().any(|file| fs::read_to_string(file.path()).is_ok_and(|text| text.contains(name)))
    };
    let is_saved = || has("name: b") && !has("name: a");
    wait_for("the copy of the other list", || running.log(), is_saved);
    drop(running);

    // The server is away: the copy is used from the start, with what the server told about the subscriber.
    server.set(Script::Status(500));
    let (running, port) = start(&dir, &config);
    assert_eq!(who(port), "b", "{}", running.log());
    let beside = copies().map(|file| file.path()).find(|path| path.extension().is_some()).unwrap();
    assert!(fs::read_to_string(beside).unwrap().contains("\"total\":3"));
}

/// While one server hangs, traffic goes on, and so do other lists.
#[test]
fn a_server_that_hangs() {
    let (a, b) = (proxy("a", None), proxy("b", None));
    let (hanging, good) = (Server::start(Script::Hang), Server::start(Script::Document(list(&[("a", a)]))));
    let dir = Dir::new();
    let config = format!(
        "proxy-providers:\n  h: {{type: http, url: 'http://{}/', interval: 1, path: ./h.yaml}}\n  \
         g: {{type: http, url: 'http://{}/', interval: 1, path: ./g.yaml}}\n\
         proxy-groups:\n- {{name: G, type: select, use: [h, g]}}\n\
         rules: ['IP-CIDR,127.0.0.1/32,DIRECT,no-resolve', 'MATCH,G']\n",
        hanging.at, good.at
    );
    let (running, port) = start(&dir, &config);
    wait_for("the good list", || running.log(), || who(port) == "a");
    good.set(Script::Document(list(&[("b", b)])));
    wait_for("the next good list", || running.log(), || who(port) == "b");
    assert_eq!(hanging.requests(), 1);
}

/// A list of rules, fetched through the proxy that the file names.
#[test]
fn rules_from_a_server() {
    let server = Server::start(Script::Status(503));
    let (relay, target) = (proxy("relay", Some(server.at)), echo());
    let dir = Dir::new();
    let config = format!(
        "hosts: {{echo.test: 127.0.0.1}}\nproxies:\n{}\
         rule-providers:\n  r: {{type: http, behavior: domain, format: text, url: 'http://list.test/r', interval: 1, proxy: relay}}\n\
         rules: ['RULE-SET,r,REJECT', 'MATCH,DIRECT']\n",
        entry("relay", relay)
    );
    let (running, port) = start(&dir, &config);
    let reaches =
        || open(port, "echo.test", target.port()).is_some_and(|mut stream| ask(&mut stream) == "who");
    running.line("the server answered with status 503");
    assert!(reaches(), "an empty list matches nothing");
    server.set(Script::Document("# names\necho.test\n".into()));
    wait_for("the list", || running.log(), || !reaches());
    for (script, wants) in [
        (Script::Status(500), "status 500"),
        (Script::Document("<html>\n".into()), "a page of HTML"),
        (Script::Document("a b\n".into()), "no name"),
        (Script::Endless, "longer than 67108864 bytes"),
    ] {
        server.set(script);
        running.line(wants);
        assert!(!reaches(), "{wants}");
    }
    server.set(Script::Document("other.test\n".into()));
    wait_for("the other list", || running.log(), reaches);
}

#[test]
fn files_of_somebody_else() {
    let (a, b) = (proxy("a", None), proxy("b", None));
    let dir = Dir::new();
    dir.file("list.yaml", &list(&[("a", a)]));
    let config = "proxy-providers:\n  p: {type: file, path: ./list.yaml}\n\
         proxy-groups:\n- {name: G, type: select, use: [p]}\nrules: ['MATCH,G']\n";
    let (running, port) = start(&dir, config);
    assert_eq!(who(port), "a");
    // By a replacement, by writing in place, and by nothing at all.
    dir.file("list.new", &list(&[("b", b)]));
    fs::rename(dir.path().join("list.new"), dir.path().join("list.yaml")).unwrap();
    wait_for("the replaced file", || running.log(), || who(port) == "b");
    dir.file("list.yaml", &list(&[("a", a)]));
    wait_for("the written file", || running.log(), || who(port) == "a");
}

/// Files that lead in circles or out of the folder.
#[test]
fn files_that_do_not_start_or_warn() {
    let dir = Dir::new();
    let test = |text: &str| {
        dir.file("config.yaml", text);
        dir.run(&["mihomo", "-d", ".", "-t"])
    };
    let groups = "proxy-groups:\n- {name: a, type: select, proxies: [b]}\n- {name: b, type: fallback, proxies: [c]}\n\
         - {name: c, type: url-test, proxies: [a]}\n";
    let (status, err, _) = test(groups);
    assert!(status == 1 && err.contains("loop is detected in ProxyGroup"), "{err}");
    let (status, err, _) = test("proxy-groups:\n- {name: a, type: select, proxies: [a, DIRECT]}\n");
    assert!(status == 1 && err.contains("loop is detected"), "{err}");
    let escape = "proxy-providers:\n  p: {type: http, url: 'http://a.test/', path: ../../etc/x}\n";
    let (status, err, _) = test(escape);
    assert!(status == 1 && err.contains("path is not subpath of home directory"), "{err}");
    let chain = "proxies:\n- {name: a, type: socks5, server: a.test, port: 1, dialer-proxy: G}\n\
         proxy-groups:\n- {name: G, type: select, proxies: [a]}\nrules: ['MATCH,G']\n";
    let (status, err, _) = test(chain);
    assert!(status == 0 && err.contains("its dialer-proxy leads back to it"), "{err}");
    let bomb = format!("p: &p [{}]\nproxies: [{}]\n", "x,".repeat(5000), "*p,".repeat(5000));
    let (status, err, _) = test(&bomb);
    assert!(status == 1 && err.contains("too many values"), "{err}");
}

/// A list tests its entries by time, used or not. A lazy one rests while nobody does.
#[test]
fn timers_of_lists() {
    let (busy, lazy) = (Server::start(Script::Status(204)), Server::start(Script::Status(204)));
    let (a, b) = (proxy("a", Some(busy.at)), proxy("b", Some(lazy.at)));
    let dir = Dir::new();
    dir.file("a.yaml", &list(&[("a", a)]));
    dir.file("b.yaml", &list(&[("b", b)]));
    let check = |lazy: bool| {
        format!(
            "health-check: {{enable: true, url: 'http://list.test/', interval: 1, lazy: {lazy}, expected-status: 204}}"
        )
    };
    let config = format!(
        "proxy-providers:\n  a: {{type: file, path: ./a.yaml, {}}}\n  b: {{type: file, path: ./b.yaml, {}}}\n\
         rules: ['MATCH,DIRECT']\n",
        check(false),
        check(true)
    );
    let (running, _) = start(&dir, &config);
    wait_for("tests by time", || running.log(), || busy.requests() >= 3);
    assert_eq!(lazy.requests(), 1, "at the start alone");
    assert!(busy.requests.lock().unwrap().iter().all(|head| head.starts_with("HEAD / ")));
    // An entry that is new is tested, and one that is gone is not.
    dir.file("a.yaml", &list(&[("c", b)]));
    wait_for("tests of another entry", || running.log(), || lazy.requests() >= 3);
    let before = busy.requests();
    let later = lazy.requests();
    wait_for("more tests", || running.log(), || lazy.requests() >= later + 2);
    assert!(busy.requests() <= before + 1);
}

/// `[[provider]]` of adit.toml: a subscription that is fetched, kept and put to use.
#[test]
fn subscriptions_of_adit_toml() {
    let (a, b) = (proxy("a", None), proxy("b", None));
    let server = Server::start(Script::Status(500));
    let dir = Dir::new();
    let port = unused_addr();
    dir.file(
        "adit.toml",
        &format!(
            "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"{port}\"\noutbound = \"pool\"\n\
             [[outbound]]\nname = \"out\"\nprotocol = \"direct\"\n\
             [[outbound]]\nname = \"pool\"\nprotocol = \"select\"\nuse = \"sub\"\nexclude = \"expire\"\n\
             [[provider]]\nname = \"sub\"\npath = \"sub.yaml\"\nurl = \"http://{}/list\"\ninterval = \"1s\"\n\
             through = \"out\"\n",
            server.at
        ),
    );
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    running.line("the server answered with status 500");
    assert_eq!(who(port), "", "an empty group refuses");
    server.set(Script::Document(list(&[("expire 1 January", b), ("a", a)])));
    wait_for("the first list", || running.log(), || who(port) == "a");
    server.set(Script::Document(list(&[("b", b)])));
    wait_for("the next list", || running.log(), || who(port) == "b");
    server.set(Script::Huge);
    running.line("longer than");
    assert_eq!(who(port), "b");
    drop(running);
    let (status, out, err) = dir.run(&["explain", "-c", "adit.toml", "--to", "a.test:1"]);
    assert!(status == 0 && out.contains("one of its members: b"), "{out}{err}");
}

/// An address in the place of a file is fetched; messages do not show it.
#[test]
fn addresses_of_subscriptions() {
    let (a, server) = (proxy("a", None), Server::start(Script::Status(404)));
    let (dir, address) = (Dir::new(), format!("http://{}/sub?token=hunter2", server.at));
    let (status, out, err) = dir.run(&["import", &address]);
    assert!(status != 0 && out.is_empty() && err.contains("the server answered with status 404"), "{err}");
    assert!(!err.contains("hunter2"), "{err}");
    // A list of links in base64: c3M6Ly8... is ss://aes-128-gcm:pw@127.0.0.1:1#one.
    let links = "c3M6Ly9ZV1Z6TFRFeU9DMW5ZMjA2Y0hjPUAxMjcuMC4wLjE6MSNvbmUK";
    for (text, wants) in [
        (links.to_owned(), "name = \"one\""),
        ("mixed-port: 7\n".to_owned() + &list(&[("a", a)]) + "rules: ['MATCH,a']\n", "protocol = \"socks5\""),
    ] {
        server.set(Script::Document(text));
        let (status, out, err) = dir.run(&["import", &address]);
        assert!(status == 0 && out.contains(wants) && !err.contains("hunter2"), "{out}{err}");
        assert_eq!(dir.run(&["check", &address]).0, 0);
    }
    assert!(server.requests.lock().unwrap()[0].to_lowercase().contains("user-agent: clash.meta/"));
}
