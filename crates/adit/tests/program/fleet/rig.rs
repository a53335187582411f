//! A panel for any number of nodes, with faults that a test chooses; those nodes; and a client with a local port for each
//! pair of a node and a user.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{program, wait_for};
use crate::support::{Dir, PATIENCE, Running, socks5};

pub(super) const SERVER_KEY: &str = "c2VydmVyLWtleS1vZi1hLXBhbmVsLTAxMjM0NTY3ODk=";
const METHOD: &str = "2022-blake3-aes-256-gcm";
const QUOTA: u64 = 1 << 40;
/// Inbounds that a client has: a file may have 256.
const MOST_ENTRIES: usize = 250;
/// A node gives an answer up after 30 s.
const LATE: Duration = Duration::from_secs(40);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    UniProxy,
    Xboard,
    Hooks,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::UniProxy => "uniproxy",
            Self::Xboard => "xboard",
            Self::Hooks => "hooks",
        }
    }
}

/// The fate of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    /// 503, nothing done.
    Refused,
    /// Done, and answered when the node has given up.
    Late,
    /// A reset after the request, which was done.
    ResetDone,
    /// A reset after the request, which was lost.
    ResetLost,
}

#[derive(Debug, Clone)]
pub(super) struct User {
    pub(super) id: usize,
    /// Limit of its rate in Mbit/s.
    pub(super) mbit: Option<u32>,
}

pub(super) fn users(ids: std::ops::Range<usize>) -> Vec<User> {
    ids.map(|id| User { id, mbit: None }).collect()
}

pub(super) fn uuid(id: usize) -> String {
    format!("{id:08x}-1111-4222-8333-444455556666")
}

/// The key that panels of UniProxy make of a UUID, and adit of a secret: base64 of its first 32 characters.
pub(super) fn key(id: usize) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(&uuid(id)[..32])
}

/// Bytes up and down.
pub(super) type Bytes = [u64; 2];

#[derive(Default)]
pub(super) struct State {
    users: Vec<User>,
    version: u64,
    /// Requests by operation.
    pub(super) requests: BTreeMap<&'static str, u64>,
    /// Bytes by node and user.
    pub(super) taken: BTreeMap<(String, usize), Bytes>,
    /// Fates of the next pushes, the last one first.
    pub(super) fates: Vec<Fate>,
    /// Pushes without an answer: node, bytes, and whether they were done.
    pub(super) doubtful: Vec<(String, Bytes, bool)>,
    is_away: bool,
}

/// The panel. It speaks all three interfaces.
pub(super) struct Panel {
    at: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Panel {
    pub(super) fn start(users: Vec<User>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = State { users, version: 1, ..State::default() };
        let panel = Self { at: listener.local_addr().unwrap(), state: Arc::new(Mutex::new(state)) };
        panel.accept(listener);
        panel
    }

    fn accept(&self, listener: TcpListener) {
        let state = self.state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = state.clone();
                if state.lock().unwrap().is_away {
                    return;
                }
                thread::spawn(move || serve(stream, &state));
            }
        });
    }

    /// Its address for nodes.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// Refuses connections, or takes them again.
    pub(super) fn set_away(&self, is_away: bool) {
        self.state().is_away = is_away;
        if is_away {
            drop(TcpStream::connect(self.at));
            wait_for("the panel is away", || TcpStream::connect(self.at).is_err());
        } else {
            self.accept(TcpListener::bind(self.at).unwrap());
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn list(&self, users: Vec<User>) {
        let mut state = self.state();
        state.users = users;
        state.version += 1;
    }

    /// Bytes by user over all nodes.
    pub(super) fn sums(&self, users: usize) -> Vec<Bytes> {
        let mut sums = vec![[0; 2]; users];
        for ((_, user), [up, down]) in &self.state().taken {
            sums[*user] = [sums[*user][0] + up, sums[*user][1] + down];
        }
        sums
    }
}

/// Reads a request without taking it from the socket: a socket that is closed then is reset.
fn peek(stream: &TcpStream) -> Option<(usize, String, String)> {
    let mut bytes = vec![0; 256 << 10];
    loop {
        let len = stream.peek(&mut bytes).ok().filter(|len| *len > 0)?;
        let text = String::from_utf8_lossy(&bytes[..len]);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some((len, head.to_owned(), body.to_owned()));
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let Some((len, head, body)) = peek(&stream) else { return };
    let path = head.split_whitespace().nth(1).unwrap_or_default();
    let (fate, answer) = answer(path, &body, &mut state.lock().unwrap());
    match fate {
        Fate::ResetDone | Fate::ResetLost => return,
        // The answer takes its time.
        Fate::Late => thread::sleep(LATE),
        Fate::Done | Fate::Refused => {}
    }
    if stream.read_exact(&mut vec![0; len]).is_ok() {
        let status = if fate == Fate::Refused { 503 } else { 200 };
        let answer = answer.to_string();
        write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()).ok();
    }
}

fn answer(path: &str, body: &str, state: &mut State) -> (Fate, Value) {
    let (operation, query) = path.split_once('?').unwrap_or((path, ""));
    let operation = operation.rsplit('/').next().unwrap_or_default();
    let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
    let node = value("node_id").or_else(|| value("node")).unwrap_or_default();
    let known =
        ["config", "user", "push", "alive", "handshake", "report", "users", "usage"].map(|name| (name, name));
    let name = known.into_iter().find(|(name, _)| *name == operation).map_or("other", |(_, name)| name);
    *state.requests.entry(name).or_default() += 1;
    let done = json!({ "data": true });
    match operation {
        "config" => {
            let every = json!({ "push_interval": 60, "pull_interval": 60 });
            let key = json!({ "server_port": 443, "cipher": METHOD, "server_key": SERVER_KEY, "base_config": every });
            (Fate::Done, key)
        }
        "user" => {
            let row = |user: &User| json!({ "id": user.id, "uuid": uuid(user.id), "speed_limit": user.mbit, "device_limit": 3 });
            (Fate::Done, json!({ "users": state.users.iter().map(row).collect::<Vec<_>>() }))
        }
        "handshake" => (Fate::Done, json!({ "websocket": { "enabled": false } })),
        "users" => {
            let version = state.version.to_string();
            if value("since") == Some(&*version) {
                return (Fate::Done, json!({ "version": version, "users": [] }));
            }
            let row = |user: &User| json!({ "id": user.id.to_string(), "secret": uuid(user.id), "quota": QUOTA, "addresses": 3 });
            let users: Vec<Value> = state.users.iter().map(row).collect();
            (Fate::Done, json!({ "version": version, "full": true, "users": users }))
        }
        "usage" => {
            let told: Value = serde_json::from_str(body).unwrap();
            for row in told["users"].as_array().unwrap() {
                let total = [row[1].as_u64().unwrap(), row[2].as_u64().unwrap()];
                let user = row[0].as_str().unwrap().parse().unwrap();
                let taken = state.taken.entry((node.to_owned(), user)).or_default();
                *taken = [taken[0].max(total[0]), taken[1].max(total[1])];
            }
            (Fate::Done, json!({ "seq": told["seq"] }))
        }
        "push" => (add(&serde_json::from_str(body).unwrap(), node, state), done),
        "report" => {
            let report: Value = serde_json::from_str(body).unwrap();
            (add(&report["traffic"], node, state), done)
        }
        _ => (Fate::Done, done),
    }
}

/// Adds differences up, as their fate says.
fn add(rows: &Value, node: &str, state: &mut State) -> Fate {
    let Some(rows) = rows.as_object() else { return Fate::Done };
    let fate = state.fates.pop().unwrap_or(Fate::Done);
    let mut sum = [0; 2];
    for (user, bytes) in rows {
        let bytes = [bytes[0].as_u64().unwrap(), bytes[1].as_u64().unwrap()];
        sum = [sum[0] + bytes[0], sum[1] + bytes[1]];
        if matches!(fate, Fate::Done | Fate::Late | Fate::ResetDone) {
            let taken = state.taken.entry((node.to_owned(), user.parse().unwrap())).or_default();
            *taken = [taken[0] + bytes[0], taken[1] + bytes[1]];
        }
    }
    if !matches!(fate, Fate::Done | Fate::Refused) {
        state.doubtful.push((node.to_owned(), sum, fate != Fate::ResetLost));
    }
    fate
}

/// The nodes and users that a test asks for.
pub(super) struct Plan<'a> {
    pub(super) kind: Kind,
    pub(super) nodes: usize,
    pub(super) users: Vec<User>,
    /// Users for whom the client has ports: the first ones.
    pub(super) driven: usize,
    /// Keys at the begin of a node's file, and a store.
    pub(super) head: &'a str,
    /// Further keys of the panel.
    pub(super) keys: &'a str,
}

/// A node.
pub(super) struct Site {
    pub(super) dir: Dir,
    port: SocketAddr,
    running: Option<Running>,
}

impl Site {
    pub(super) fn start(&mut self) {
        self.running = Some(Running::start(program(&self.dir, &["run", "-c", "adit.toml"])));
    }

    /// Waits until it has a list of users.
    pub(super) fn wait(&self) {
        let running = self.running.as_ref().unwrap();
        wait_for("users are served", || running.log().contains("lists are in use"));
    }

    /// Waits until it listens, with the users of its copy.
    pub(super) fn listens(&self) {
        self.running.as_ref().unwrap().line("inbound=in");
    }

    pub(super) fn end(&mut self, signal: &str) {
        let running = self.running.take().unwrap();
        running.signal(signal);
        running.end();
    }

    /// Runs a command on it.
    pub(super) fn run(&self, args: &[&str]) -> Value {
        let args = [args, &["--socket", "adit.sock"]].concat();
        let out = program(&self.dir, &args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap_or_default()
    }

    /// The state of its panel.
    pub(super) fn panel(&self) -> Value {
        self.run(&["status", "--json"])["fleet"]["panels"][0].clone()
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.panel()[name].as_u64().unwrap()
    }
}

pub(super) struct Fleet {
    pub(super) panel: Panel,
    pub(super) sites: Vec<Site>,
    /// Local ports by node and user.
    pub(super) ports: Vec<Vec<SocketAddr>>,
    _clients: Vec<(Running, Dir)>,
}

impl Fleet {
    pub(super) fn start(plan: Plan<'_>) -> Self {
        let (panel, driven) = (Panel::start(plan.users.clone()), plan.driven);
        let mut sites: Vec<Site> = (0..plan.nodes).map(|n| site(&plan, n, panel.at)).collect();
        sites.iter_mut().for_each(Site::start);
        sites.iter().for_each(Site::wait);
        let pairs: Vec<(usize, usize)> =
            (0..plan.nodes).flat_map(|n| (0..driven).map(move |u| (n, u))).collect();
        let clients: Vec<(Running, Dir)> =
            pairs.chunks(MOST_ENTRIES).map(|pairs| client(&sites, pairs)).collect();
        let mut at = BTreeMap::new();
        for ((client, _), pairs) in clients.iter().zip(pairs.chunks(MOST_ENTRIES)) {
            let (n, u) = pairs[pairs.len() - 1];
            client.line(&format!("inbound=l{n}-{u} "));
            for line in client.log().lines() {
                let word =
                    |name: &str| line.split(name).nth(1).and_then(|rest| rest.split_whitespace().next());
                if let (Some(name), Some(address)) = (word("inbound="), word("address=")) {
                    at.insert(name.to_owned(), address.parse().unwrap());
                }
            }
        }
        let of = |n: usize| (0..driven).map(|u| at[&format!("l{n}-{u}")]).collect();
        Self { panel, ports: (0..plan.nodes).map(of).collect(), sites, _clients: clients }
    }

    /// A connection of a user to a node, and over it to `target`.
    pub(super) fn connect(&self, node: usize, user: usize, target: SocketAddr) -> TcpStream {
        socks5(self.ports[node][user], "127.0.0.1", target.port())
    }
}

/// A client for these pairs of a node and a user.
fn client(sites: &[Site], pairs: &[(usize, usize)]) -> (Running, Dir) {
    let (dir, mut text) = (Dir::new(), String::new());
    for (n, u) in pairs {
        text += &format!(
            "[[inbound]]\nname = \"l{n}-{u}\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"o{n}-{u}\"\n\
             [[outbound]]\nname = \"o{n}-{u}\"\nprotocol = \"shadowsocks\"\nserver = \"{}\"\nmethod = \"{METHOD}\"\n\
             password = \"{SERVER_KEY}:{}\"\n",
            sites[*n].port,
            key(*u)
        );
    }
    dir.file("client.toml", &text);
    (Running::start(program(&dir, &["run", "-c", "client.toml"])), dir)
}

fn site(plan: &Plan<'_>, n: usize, panel: SocketAddr) -> Site {
    let (dir, port) = (Dir::new(), adit_testkit::unused_addr());
    let password =
        if plan.kind == Kind::Hooks { format!("password = \"{SERVER_KEY}\"\n") } else { String::new() };
    let text = format!(
        "{}\n[admin]\nsocket = \"adit.sock\"\n\
         [[panel]]\nname = \"home\"\nkind = \"{}\"\nurl = \"http://{panel}\"\ntoken = \"t\"\nnode = \"{}\"\n{}\n\
         [[inbound]]\nname = \"in\"\nprotocol = \"shadowsocks\"\nlisten = \"{port}\"\nmethod = \"{METHOD}\"\n{password}\
         outbound = \"direct\"\npanel = \"home\"\nallow-private = true\n\
         [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n",
        plan.head,
        plan.kind.name(),
        n + 1,
        plan.keys
    );
    dir.file("adit.toml", &text);
    Site { dir, port, running: None }
}

/// A target that takes and gives as many bytes as each request says: two numbers of four bytes, then those that it takes.
pub(super) fn meter() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut head = [0; 8];
                while stream.read_exact(&mut head).is_ok() {
                    let [up, down] =
                        [0, 4].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().unwrap()) as usize);
                    if stream.read_exact(&mut vec![0; up]).is_err()
                        || stream.write_all(&vec![7; down]).is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    at
}

/// Moves so many bytes over a connection to a [`meter`], those that say so included; false if it ends before.
pub(super) fn moves(stream: &mut TcpStream, [up, down]: Bytes) -> bool {
    let [up, down] = [up - 8, down].map(|len| u32::try_from(len).unwrap());
    let mut sent = [up.to_be_bytes(), down.to_be_bytes()].concat();
    sent.resize(sent.len() + up as usize, 1);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&sent).is_ok() && stream.read_exact(&mut vec![0; down as usize]).is_ok()
}

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        usize::try_from((mixed >> 11) % most as u64).unwrap()
    }
}

/// Connections of users and nodes that chance chooses, each with bytes up and down, until it is stopped.
pub(super) struct Traffic {
    stop: Arc<AtomicBool>,
    truth: Arc<[[AtomicU64; 2]]>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Traffic {
    pub(super) fn start(fleet: &Fleet, threads: u64) -> Self {
        let (stop, target, ports) = (Arc::<AtomicBool>::default(), meter(), Arc::new(fleet.ports.clone()));
        let truth: Arc<[[AtomicU64; 2]]> = ports[0].iter().map(|_| Default::default()).collect();
        let threads = (0..threads).map(|seed| {
            let (stop, truth, ports) = (stop.clone(), truth.clone(), ports.clone());
            thread::spawn(move || {
                let mut random = Random(seed);
                while !stop.load(Ordering::Relaxed) {
                    let (node, user) = (random.below(ports.len()), random.below(ports[0].len()));
                    let bytes = [8 + random.below(4000) as u64, random.below(20_000) as u64];
                    // Before they move: nobody may have more than that.
                    for (all, of) in truth[user].iter().zip(bytes) {
                        all.fetch_add(of, Ordering::SeqCst);
                    }
                    let mut stream = socks5(ports[node][user], "127.0.0.1", target.port());
                    assert!(moves(&mut stream, bytes), "nobody is refused");
                    thread::sleep(Duration::from_millis(5));
                }
            })
        });
        let threads = threads.collect();
        Self { stop, truth, threads }
    }

    /// Bytes so far, by user.
    pub(super) fn truth(&self) -> Vec<Bytes> {
        self.truth.iter().map(|of| [0, 1].map(|way: usize| of[way].load(Ordering::SeqCst))).collect()
    }

    /// Ends it; the bytes by user.
    pub(super) fn stop(&mut self) -> Vec<Bytes> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        self.truth()
    }
}

pub(super) fn sum(all: &[Bytes]) -> u64 {
    all.iter().flatten().sum()
}
