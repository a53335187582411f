//! A store that can be killed, cut off and slowed down; nodes that share it; clients of many addresses.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Dir, PATIENCE, Running, socks5};

/// Sources that a client has: 127.0.0.1 and on.
pub(super) const SOURCES: usize = 4;
pub(super) const KEY: &str = "the own key of ann";

/// The program that these tests run, where it is not this build: that of `ADIT_FLEET_BINARY`.
pub(super) fn binary() -> Option<String> {
    std::env::var("ADIT_FLEET_BINARY").ok()
}

/// A command with the program that is tested.
pub(super) fn program(dir: &Dir, args: &[&str]) -> Command {
    match binary() {
        Some(path) => dir.command(path, args),
        None => dir.adit(args),
    }
}

/// A redis-server on a unix socket in a folder of its own.
pub(super) struct Redis {
    child: Child,
    dir: Dir,
}

/// Variables for a process.
pub(super) type Env = Vec<(&'static str, String)>;

impl Redis {
    pub(super) fn start() -> Self {
        let dir = Dir::new();
        let child = Self::spawn(&dir);
        Self { child, dir }
    }

    fn spawn(dir: &Dir) -> Child {
        std::fs::remove_file(dir.path().join("r.sock")).ok();
        let args =
            ["--port", "0", "--unixsocket", "r.sock", "--appendonly", "yes", "--appendfsync", "everysec"];
        let mut command = dir.command("redis-server", &args);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for("redis", || cli(dir, &["PING"]) == "PONG");
        child
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("r.sock")
    }

    /// Its address for nodes.
    pub(super) fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// kill -9, and a start of what is on disk.
    pub(super) fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // It is away for a while.
        thread::sleep(Duration::from_millis(500));
        self.child = Self::spawn(&self.dir);
    }

    pub(super) fn signal(&self, name: &str) {
        crate::support::signal(self.child.id(), name);
    }

    pub(super) fn cli(&self, args: &[&str]) -> String {
        cli(&self.dir, args)
    }

    /// The same, where it asks for a password.
    pub(super) fn asks(&self, password: &str, args: &[&str]) -> String {
        let out = self
            .dir
            .command("redis-cli", &["-s", "r.sock", "--no-auth-warning", "-a", password])
            .args(args)
            .output();
        String::from_utf8(out.unwrap().stdout).unwrap().trim().to_owned()
    }

    /// The folder of its files.
    pub(super) fn folder(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// The total of a user over all nodes, of all buckets.
    pub(super) fn total(&self, user: &str) -> u64 {
        let keys = self.cli(&["--scan", "--pattern", "adit:test:use:*"]);
        keys.lines().filter_map(|key| self.cli(&["HGET", key, user]).parse::<u64>().ok()).sum()
    }

    /// Totals of users of panels over all nodes, by name.
    pub(super) fn totals(&self) -> BTreeMap<String, u64> {
        let keys = self.cli(&["--scan", "--pattern", "adit:test:use:*"]);
        let mut totals = BTreeMap::new();
        for key in keys.lines() {
            let all = self.cli(&["HGETALL", key]);
            let lines: Vec<&str> = all.lines().collect();
            // A node's own total has the node behind the name.
            for pair in lines.chunks(2).filter(|pair| pair[0].matches('/').count() == 1) {
                *totals.entry(pair[0].to_owned()).or_default() += pair[1].parse::<u64>().unwrap();
            }
        }
        totals
    }

    /// A key as the store dumps it.
    pub(super) fn dump(&self, key: &str) -> Vec<u8> {
        let mut stream = self.send(&[b"DUMP", key.as_bytes()]);
        let (mut head, mut byte) = (String::new(), [0]);
        while !head.ends_with("\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(char::from(byte[0]));
        }
        let mut bytes = vec![0; head.trim().trim_start_matches('$').parse().unwrap()];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Puts a key back as it was dumped.
    pub(super) fn undump(&self, key: &str, bytes: &[u8]) {
        let mut answer = [0; 5];
        self.send(&[b"RESTORE", key.as_bytes(), b"0", bytes, b"REPLACE"]).read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+OK\r\n");
    }

    /// A command of bytes that need not be text; the connection that has the answer.
    fn send(&self, words: &[&[u8]]) -> UnixStream {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(&[word, &b"\r\n"[..]].concat());
        }
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&bytes).unwrap();
        stream
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn cli(dir: &Dir, args: &[&str]) -> String {
    let out = dir.command("redis-cli", &["-s", "r.sock"]).args(args).output().unwrap();
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

/// The way of one node to the store, which can be cut and slowed down.
#[derive(Clone)]
pub(super) struct Way {
    port: u16,
    is_cut: Arc<AtomicBool>,
    delay_ms: Arc<AtomicU64>,
}

impl Way {
    pub(super) fn to(redis: &Redis) -> Self {
        let socket = redis.socket();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Self {
            port: listener.local_addr().unwrap().port(),
            is_cut: Arc::default(),
            delay_ms: Arc::default(),
        };
        let own = way.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if own.is_cut.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(far) = UnixStream::connect(&socket) else { continue };
                near.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                far.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                let (up, down) = (own.clone(), own.clone());
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                thread::spawn(move || {
                    up.pass(&near, &far);
                    drop((near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both)));
                });
                thread::spawn(move || {
                    down.pass(&far_too, &near_too);
                    drop((near_too.shutdown(Shutdown::Both), far_too.shutdown(Shutdown::Both)));
                });
            }
        });
        way
    }

    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }

    pub(super) fn delay(&self, ms: u64) {
        self.delay_ms.store(ms, Ordering::Relaxed);
    }

    /// Its address for nodes.
    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn pass(&self, mut from: impl Read, mut to: impl Write) {
        let mut bytes = [0; 16 << 10];
        while !self.is_cut.load(Ordering::Relaxed) {
            match from.read(&mut bytes) {
                Ok(len @ 1..) => {
                    thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed)));
                    if to.write_all(&bytes[..len]).is_err() {
                        return;
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                _ => return,
            }
        }
    }
}

/// A node with a port for users of its file.
pub(super) struct Node {
    pub(super) dir: Dir,
    pub(super) port: SocketAddr,
    running: Option<Running>,
    env: Env,
}

impl Node {
    /// `limits` are those of the user `ann`; `more` is put at the end of the file.
    pub(super) fn new(store: &str, limits: &str, more: &str) -> Self {
        Self::under(store, limits, more, Env::new())
    }

    pub(super) fn under(store: &str, limits: &str, more: &str, env: Env) -> Self {
        let (dir, port) = (Dir::new(), adit_testkit::unused_addr());
        let text = format!(
            "[admin]\nsocket = \"adit.sock\"\n\
             [store]\nurl = \"{store}\"\nfleet = \"test\"\nevery = \"1s\"\n\
             [[inbound]]\nname = \"in\"\nprotocol = \"shadowsocks\"\nlisten = \"{port}\"\noutbound = \"direct\"\n\
             method = \"chacha20-ietf-poly1305\"\nallow-private = true\n\
             users = [{{ name = \"ann\", password = \"{KEY}\", {limits} }}]\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n{more}"
        );
        dir.file("adit.toml", &text);
        let mut node = Self { dir, port, running: None, env };
        node.start();
        node
    }

    pub(super) fn start(&mut self) {
        let mut command = program(&self.dir, &["--log-level", "trace", "run", "-c", "adit.toml"]);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let running = Running::start(command);
        running.line("inbound=in");
        self.running = Some(running);
    }

    /// Ends it by a signal; its log.
    pub(super) fn end(&mut self, signal: &str) -> String {
        let running = self.running.take().unwrap();
        running.signal(signal);
        running.end().1
    }

    pub(super) fn status(&self) -> Value {
        let (code, out, err) = self.dir.run(&["status", "--json", "--users", "--socket", "adit.sock"]);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// Bytes of ann, both ways together.
    pub(super) fn used(&self) -> u64 {
        let status = self.status();
        let ann = &status["inbounds"][0]["users"][0];
        ann["up_bytes"].as_u64().unwrap() + ann["down_bytes"].as_u64().unwrap()
    }

    pub(super) fn store(&self) -> Value {
        self.status()["fleet"]["store"].clone()
    }

    /// The scope of quotas.
    pub(super) fn scope(&self) -> String {
        self.store()["scopes"][0][1].as_str().unwrap_or_default().to_owned()
    }

    /// The files beside the configuration that a copy of this machine would have.
    pub(super) fn save(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = self.dir.path().join("adit/users");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.is_file()).map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
    }

    pub(super) fn restore(&self, files: &[(PathBuf, Vec<u8>)]) {
        files.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    }
}

/// A client of several addresses, with a local port for each pair of a node and a source.
pub(super) struct Client {
    running: Running,
    _dir: Dir,
}

impl Client {
    pub(super) fn new(nodes: &[&Node]) -> Self {
        let (dir, mut text) = (Dir::new(), String::new());
        for (n, node) in nodes.iter().enumerate() {
            for s in 0..SOURCES {
                text += &format!(
                    "[[inbound]]\nname = \"l{n}-{s}\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n\
                     outbound = \"o{n}-{s}\"\n\
                     [[outbound]]\nname = \"o{n}-{s}\"\nprotocol = \"shadowsocks\"\nserver = \"{}\"\n\
                     method = \"chacha20-ietf-poly1305\"\npassword = \"{KEY}\"\nbind-address = \"127.0.0.{}\"\n",
                    node.port,
                    s + 1
                );
            }
        }
        dir.file("client.toml", &text);
        let running = Running::start(program(&dir, &["run", "-c", "client.toml"]));
        running.line(&format!("inbound=l{}-{}", nodes.len() - 1, SOURCES - 1));
        Self { running, _dir: dir }
    }

    /// A connection by node and source to `target`.
    pub(super) fn connect(&self, node: usize, source: usize, target: SocketAddr) -> TcpStream {
        let line = self.running.line(&format!("inbound=l{node}-{source} "));
        let at: SocketAddr = line.split("address=").nth(1).unwrap().trim().parse().unwrap();
        let stream = socks5(at, "127.0.0.1", target.port());
        stream.set_nodelay(true).unwrap();
        stream
    }
}

/// Sends `len` bytes and reads them back; false if the connection ends before.
pub(super) fn echoed(stream: &mut TcpStream, len: usize) -> bool {
    let (sent, mut back) = (vec![7; len], vec![0; len]);
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    stream.write_all(&sent).is_ok() && stream.read_exact(&mut back).is_ok()
}

pub(super) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "still not true: {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Traffic in the background over one connection at a time, until it is stopped.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    moved: Arc<AtomicU64>,
    times: Arc<Mutex<Vec<Duration>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Load {
    /// `connect` makes a connection; each brings `len` bytes there and back.
    pub(super) fn start(len: usize, connect: impl Fn() -> TcpStream + Send + 'static) -> Self {
        let (stop, moved) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let times = Arc::<Mutex<Vec<Duration>>>::default();
        let (until, count, took) = (stop.clone(), moved.clone(), times.clone());
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                let since = Instant::now();
                if echoed(&mut connect(), len) {
                    count.fetch_add(2 * len as u64, Ordering::Relaxed);
                    took.lock().unwrap().push(since.elapsed());
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        Self { stop, moved, times, thread: Some(thread) }
    }

    /// The 99th percentile of the times since the last question, and their number.
    pub(super) fn p99(&self) -> (Duration, usize) {
        let mut times = std::mem::take(&mut *self.times.lock().unwrap());
        times.sort_unstable();
        let index = times.len() * 99 / 100;
        (times.get(index).copied().unwrap_or_default(), times.len())
    }

    pub(super) fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.moved.load(Ordering::Relaxed)
    }
}

/// A panel of hooks, which lists what it is told to.
pub(super) struct Hooks {
    pub(super) at: SocketAddr,
    state: Arc<Mutex<Listing>>,
}

#[derive(Default)]
struct Listing {
    version: u64,
    users: String,
    /// When this version was first told.
    told_at: Option<Instant>,
    /// Days by which the panel's clock is ahead.
    days: u32,
}

impl Hooks {
    pub(super) fn start(users: &[String]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hooks = Self { at: listener.local_addr().unwrap(), state: Arc::default() };
        hooks.list(users);
        let state = hooks.state.clone();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                answer_hook(&mut stream, &state);
            }
        });
        hooks
    }

    /// Other users from now on: one JSON object each.
    pub(super) fn list(&self, users: &[String]) {
        let mut state = self.state.lock().unwrap();
        *state =
            Listing { version: state.version + 1, users: users.join(","), told_at: None, days: state.days };
    }

    /// Sets its clock so many days ahead.
    pub(super) fn set_clock(&self, days: u32) {
        self.state.lock().unwrap().days = days;
    }

    /// When the present list was first told.
    pub(super) fn told_at(&self) -> Option<Instant> {
        self.state.lock().unwrap().told_at
    }
}

fn answer_hook(stream: &mut TcpStream, state: &Mutex<Listing>) {
    let (mut request, mut bytes) = (String::new(), [0; 4096]);
    while !request.contains("\r\n\r\n") {
        let Ok(len @ 1..) = stream.read(&mut bytes) else { return };
        request += &String::from_utf8_lossy(&bytes[..len]);
    }
    let mut state = state.lock().unwrap();
    let Listing { version, users, .. } = &*state;
    let body = match () {
        () if request.contains(&format!("since={version} ")) => {
            format!("{{\"version\":\"{version}\",\"users\":[]}}")
        }
        () if request.starts_with("GET") => {
            let body = format!("{{\"version\":\"{version}\",\"full\":true,\"users\":[{users}]}}");
            state.told_at = state.told_at.or_else(|| Some(Instant::now()));
            body
        }
        () => "{\"seq\":1}".to_owned(),
    };
    let date = http_date(state.days);
    write!(stream, "HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok();
}

/// The present time so many days ahead, as HTTP has it.
pub(crate) fn http_date(days: u32) -> String {
    let ahead = format!("+{days} days");
    let args = ["-u", "-d", &ahead, "+%a, %d %b %Y %H:%M:%S GMT"];
    let out = Command::new("date").args(args).env("LC_ALL", "C").output().unwrap();
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}
