//! A panel that misbehaves, and counters that stay exact all the same.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fleet::http_date;
use crate::panel_live::Line;
use crate::support::{Dir, PATIENCE, Running, round_trip, socks5};

pub(crate) const UUID: &str = "00000000-1111-4222-8333-444455556666";
const USER_KEY: &str = "MDAwMDAwMDAtMTExMS00Mg==";
const SERVER_KEY: &str = "MjQ5MjBkZWNmODNmNjk2MA==";
const TOKEN: &str = "t0ken-of-the-panel";
/// Keys of the file for UniProxy, and for version 2 of Xboard.
const UNIPROXY: &str = "kind = \"uniproxy\"\npull = \"1s\"";
const XBOARD: &str = "kind = \"xboard\"\npull = \"1s\"";

/// The fate of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// 503, nothing done.
    Refuse,
    /// Done, and no answer.
    DropApplied,
    /// Not done, and no answer.
    DropLost,
    /// Done, with a gateway's error.
    Gateway,
    /// Not done: a page of somebody else.
    Captive,
    /// Nothing at all, for ever.
    Hang,
}

#[derive(Default)]
pub(crate) struct Stub {
    pub(crate) users: Vec<(u64, &'static str)>,
    /// Requests for users, and the last handshake.
    pub(crate) pulls: u64,
    pub(crate) handshake: String,
    /// The WebSocket of version 2, if there is one.
    pub(crate) line: Option<Arc<Line>>,
    /// Bytes that were applied.
    taken: BTreeMap<String, [u64; 2]>,
    /// Bytes of pushes that were lost.
    lost: BTreeMap<String, [u64; 2]>,
    faults: VecDeque<Fault>,
    pushes: u64,
    pub(crate) alive: Option<Value>,
    is_away: bool,
    is_broken: bool,
    /// It asks for pushes each two seconds.
    is_quick: bool,
}

/// UniProxy V1 with the quirks of v2board: rows in another order each time, numbers as text, no ETag.
pub(crate) struct Panel {
    pub(crate) at: SocketAddr,
    stub: Arc<Mutex<Stub>>,
}

impl Panel {
    pub(crate) fn start(users: &[(u64, &'static str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let stub = Arc::new(Mutex::new(Stub { users: users.to_vec(), ..Stub::default() }));
        let held = stub.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let stub = held.clone();
                thread::spawn(move || serve(stream, &stub));
            }
        });
        Self { at, stub }
    }

    pub(crate) fn stub(&self) -> MutexGuard<'_, Stub> {
        self.stub.lock().unwrap()
    }

    pub(crate) fn taken(&self, id: &str) -> [u64; 2] {
        self.stub().taken.get(id).copied().unwrap_or_default()
    }
}

fn serve(mut stream: TcpStream, stub: &Mutex<Stub>) {
    let mut request = Vec::new();
    let mut byte = [0; 4096];
    let (head, body) = loop {
        let Ok(len @ 1..) = stream.read(&mut byte) else { return };
        request.extend_from_slice(&byte[..len]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let path = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
    if path.starts_with("/ws?") {
        let line = stub.lock().unwrap().line.clone();
        line.inspect(|line| line.serve(stream, &head));
        return;
    }
    let answer = answer(&path, &body, stub);
    match answer {
        Some((status, body)) => {
            let date = "Date: ".to_owned() + &http_date(0) + "\r\n";
            write!(stream, "HTTP/1.1 {status} X\r\n{date}Content-Length: {}\r\n\r\n{body}", body.len()).ok();
        }
        None => {
            // Held open without an answer, or closed.
            if stub.lock().unwrap().faults.front() == Some(&Fault::Hang) {
                // Until the test is over.
                thread::sleep(PATIENCE * 4);
            }
        }
    }
}

fn answer(path: &str, body: &str, stub: &Mutex<Stub>) -> Option<(u16, String)> {
    let mut stub = stub.lock().unwrap();
    if stub.is_away {
        return None;
    }
    let is_right = path.contains(&format!("?token={TOKEN}&node_id=17&node_type=shadowsocks"))
        || path.starts_with("/api/v2/server/") && path.contains(&format!("node_id=17&token={TOKEN}"));
    if !is_right {
        return Some((500, r#"{"message":"token is error"}"#.into()));
    }
    if path.contains("/handshake?") {
        let url = stub.line.as_ref().map(|line| line.url());
        stub.handshake = path.to_owned();
        let answer = serde_json::json!({ "websocket": { "enabled": url.is_some(), "ws_url": url } });
        return Some((200, answer.to_string()));
    }
    if stub.is_broken {
        return Some((200, "<html>please log in</html>".into()));
    }
    if path.contains("/config?") {
        return Some((
            200,
            format!(
                r#"{{"server_port":"443","cipher":"2022-blake3-aes-128-gcm","server_key":"{SERVER_KEY}","base_config":{{"push_interval":"{}","pull_interval":60}}}}"#,
                if stub.is_quick { 2 } else { 60 }
            ),
        ));
    }
    if path.contains("/user?") {
        stub.pulls += 1;
        let by = 1.min(stub.users.len());
        stub.users.rotate_left(by);
        let rows: Vec<String> = stub
            .users
            .iter()
            .map(|(id, uuid)| format!(r#"{{"id":"{id}","uuid":"{uuid}","speed_limit":null}}"#))
            .collect();
        return Some((200, format!(r#"{{"users":[{}]}}"#, rows.join(","))));
    }
    if path.contains("/alive?") {
        stub.alive = serde_json::from_str(body).ok();
        return Some((200, r#"{"data":true}"#.into()));
    }
    if !path.contains("/report?") {
        return push(&mut stub, body);
    }
    let report: Value = serde_json::from_str(body).unwrap();
    if !report["alive"].is_null() {
        stub.alive = Some(report["alive"].clone());
    }
    if report["traffic"].is_null() {
        return Some((200, r#"{"data":true}"#.into()));
    }
    push(&mut stub, &report["traffic"].to_string())
}

fn push(stub: &mut Stub, body: &str) -> Option<(u16, String)> {
    stub.pushes += 1;
    let rows: BTreeMap<String, [u64; 2]> = serde_json::from_str(body).unwrap();
    let fault =
        if stub.faults.front() == Some(&Fault::Hang) { Some(Fault::Hang) } else { stub.faults.pop_front() };
    let is_applied = matches!(fault, None | Some(Fault::DropApplied | Fault::Gateway));
    let is_lost = matches!(fault, Some(Fault::DropLost | Fault::Captive | Fault::Hang));
    for (id, [up, down]) in rows {
        let to = match (is_applied, is_lost) {
            (true, _) => stub.taken.entry(id).or_default(),
            (_, true) => stub.lost.entry(id).or_default(),
            _ => continue,
        };
        *to = [to[0] + up, to[1] + down];
    }
    match fault {
        None => Some((200, r#"{"data":true}"#.into())),
        Some(Fault::Refuse) => Some((503, String::new())),
        Some(Fault::Gateway) => Some((502, "<html>bad gateway</html>".into())),
        Some(Fault::Captive) => Some((200, "<html>please log in</html>".into())),
        Some(Fault::DropApplied | Fault::DropLost | Fault::Hang) => None,
    }
}

/// A node with a Shadowsocks and a Snell port of one panel, and local ports that lead to them as its user.
pub(crate) struct Node {
    dir: Dir,
    running: Option<Running>,
}

impl Node {
    /// `keys` are further keys of the panel in the file.
    pub(crate) fn new(panel: &Panel, keys: &str) -> Self {
        Self::pushing(panel, &format!("push = \"1s\"\n{keys}"))
    }

    /// The same, which pushes as often as `keys` or the panel say.
    fn pushing(panel: &Panel, keys: &str) -> Self {
        let dir = Dir::new();
        let [ss, snell] = [adit_testkit::unused_addr(), adit_testkit::unused_addr()];
        dir.file("panel.token", &format!("{TOKEN}\n"));
        let text = format!(
            "[admin]\nsocket = \"adit.sock\"\n\
             [[panel]]\nname = \"home\"\nurl = \"http://{}\"\ntoken-file = \"panel.token\"\nnode = \"17\"\n{keys}\n\
             [[inbound]]\nname = \"ss\"\nprotocol = \"shadowsocks\"\nlisten = \"{ss}\"\noutbound = \"direct\"\n\
             method = \"2022-blake3-aes-128-gcm\"\npanel = \"home\"\nallow-private = true\n\
             [[inbound]]\nname = \"sn\"\nprotocol = \"snell\"\nlisten = \"{snell}\"\noutbound = \"direct\"\n\
             panel = \"home\"\nallow-private = true\n\
             [[inbound]]\nname = \"local-a\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"a\"\n\
             [[inbound]]\nname = \"local-b\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"b\"\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n\
             [[outbound]]\nname = \"a\"\nprotocol = \"shadowsocks\"\nserver = \"{ss}\"\n\
             method = \"2022-blake3-aes-128-gcm\"\npassword = \"{SERVER_KEY}:{USER_KEY}\"\n\
             [[outbound]]\nname = \"b\"\nprotocol = \"snell\"\nserver = \"{snell}\"\npsk = \"{UUID}\"\n",
            panel.at
        );
        dir.file("adit.toml", &text);
        let mut node = Self { dir, running: None };
        node.start();
        node
    }

    fn start(&mut self) {
        let running = Running::start(self.dir.adit(&["--log-level", "debug", "run", "-c", "adit.toml"]));
        running.line("inbound=local-b");
        self.running = Some(running);
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn kill(&mut self) {
        let running = self.running.take().unwrap();
        running.signal("KILL");
        running.end();
    }

    fn status(&self) -> Value {
        let (code, out, err) = self.dir.run(&["status", "--json", "--socket", "adit.sock"]);
        assert_eq!(code, 0, "{err}");
        assert!(!out.contains(UUID) && !out.contains(TOKEN) && !out.contains(USER_KEY), "{out}");
        serde_json::from_str(&out).unwrap()
    }

    pub(crate) fn panel(&self) -> Value {
        self.status()["fleet"]["panels"][0].clone()
    }

    fn number(&self, key: &str) -> u64 {
        self.panel()[key].as_u64().unwrap()
    }

    /// Waits until the engine serves so many users on each port of the panel.
    pub(crate) fn serves(&self, count: usize) {
        wait_for("the users are there", || {
            let status = self.status();
            let users = status["inbounds"][0]["users"].as_array().cloned().unwrap_or_default();
            users.iter().filter(|user| user["name"] != "nobody").count() == count
        });
    }

    pub(crate) fn move_bytes(&self, local: &str, bytes: usize) {
        round_trip(&mut self.connect(local), bytes);
    }

    /// A connection to somebody who sends everything back.
    pub(crate) fn connect(&self, local: &str) -> TcpStream {
        let line = self.running().line(&format!("inbound={local} "));
        let at: SocketAddr = line.split("address=").nth(1).unwrap().trim().parse().unwrap();
        socks5(at, "127.0.0.1", crate::support::echo().port())
    }

    fn doubt(&self, args: &[&str]) -> Vec<Value> {
        let args = [&["panel", "doubt", "--json", "--socket", "adit.sock"], args].concat();
        let (code, out, err) = self.dir.run(&args);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    }
}

pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "still not true: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_panel_lists_users_and_takes_counters_to_the_byte() {
    let panel = Panel::start(&[(5, UUID), (7, "99999999-1111-4222-8333-444455556666")]);
    let mut node = Node::new(&panel, UNIPROXY);
    node.serves(2);
    // The first push begins the book.
    wait_for("the book", || node.panel()["age_s"].as_u64().is_some());
    node.move_bytes("local-a", 100_000);
    node.move_bytes("local-b", 50_000);
    wait_for("all bytes are told", || panel.taken("5") == [150_000, 150_000]);
    assert_eq!(panel.taken("7"), [0, 0]);
    // Another start goes on from there.
    node.running().signal("TERM");
    node.running.take().unwrap().end();
    node.start();
    node.serves(2);
    node.move_bytes("local-b", 1000);
    wait_for("the rest", || panel.taken("5") == [151_000, 151_000]);
    // Some pushes.
    thread::sleep(Duration::from_secs(3));
    assert_eq!(panel.taken("5"), [151_000, 151_000], "and nothing twice");
    // A user that is gone is served no more; an empty list is not believed at once.
    panel.stub().users.retain(|(id, _)| *id == 7);
    node.serves(1);
    panel.stub().users.clear();
    wait_for("the wait is shown", || node.panel()["waiting_since"].as_u64().is_some());
    node.serves(1);
    // Neither the log nor the folder shows the token or a secret, but for the copy that is for nobody else.
    let running = node.running.take().unwrap();
    running.signal("TERM");
    let log = running.end().1;
    for secret in [UUID, TOKEN, USER_KEY, SERVER_KEY] {
        assert!(!log.contains(secret), "{secret}");
    }
}

#[test]
fn a_panel_says_how_often_counters_come() {
    let panel = Panel::start(&[(5, UUID)]);
    panel.stub().is_quick = true;
    let node = Node::pushing(&panel, UNIPROXY);
    node.serves(1);
    let since = Instant::now();
    node.move_bytes("local-a", 1000);
    wait_for("the bytes", || panel.taken("5") == [1000, 1000]);
    // The usual time is a minute.
    assert!(since.elapsed() < Duration::from_secs(50), "the first time, too: {:?}", since.elapsed());
}

#[test]
fn faults_of_a_panel_leave_no_byte_out_and_none_twice() {
    faults(UNIPROXY);
}

#[test]
fn faults_of_an_xboard_panel_leave_no_byte_out_and_none_twice() {
    faults(XBOARD);
}

fn faults(kind: &str) {
    use Fault::{Captive, DropApplied, DropLost, Gateway, Refuse};
    let panel = Panel::start(&[(5, UUID)]);
    let node = Node::new(&panel, kind);
    node.serves(1);
    node.move_bytes("local-a", 1000);
    wait_for("the first bytes", || panel.taken("5") == [1000, 1000]);
    panel.stub().faults = [Refuse, DropApplied, Refuse, DropLost, Gateway, Captive].into();
    let mut truth = 1000;
    while !panel.stub().faults.is_empty() {
        node.move_bytes("local-a", 777);
        truth += 777;
        thread::sleep(Duration::from_millis(300));
        assert!(panel.taken("5")[0] <= truth);
    }
    let settled = || {
        node.number("unsent_bytes") == 0 && panel.taken("5")[0] + node.number("in_doubt_bytes") / 2 >= truth
    };
    wait_for("all is told or in doubt", settled);
    let doubts = node.doubt(&[]);
    assert_eq!(doubts.len(), 4, "{doubts:?}");
    let lost = panel.stub().lost["5"];
    // The panel has two of the four batches; the other two are sent again by hand.
    let mut left = lost[0];
    for doubt in &doubts {
        let seq = doubt["seq"].to_string();
        let is_lost =
            doubt["up_bytes"].as_u64().unwrap() <= left && [1, 3].contains(&index_of(&doubts, doubt));
        if is_lost {
            left -= doubt["up_bytes"].as_u64().unwrap();
            node.doubt(&["home", &seq, "--resend"]);
        } else {
            node.doubt(&["home", &seq, "--drop"]);
        }
    }
    assert_eq!(left, 0);
    wait_for("the panel has all", || panel.taken("5") == [truth, truth]);
    assert_eq!(node.number("in_doubt_bytes"), 0);
}

fn index_of(all: &[Value], one: &Value) -> usize {
    all.iter().position(|other| other == one).unwrap()
}

#[test]
fn a_kill_between_request_and_answer_is_a_doubt() {
    let panel = Panel::start(&[(5, UUID)]);
    let mut node = Node::new(&panel, UNIPROXY);
    node.serves(1);
    node.move_bytes("local-a", 1000);
    wait_for("the first bytes", || panel.taken("5") == [1000, 1000]);
    panel.stub().faults = [Fault::Hang].into();
    let before = panel.stub().pushes;
    node.move_bytes("local-a", 5000);
    wait_for("a request that is not answered", || panel.stub().pushes > before);
    // A write that begins behind another byte has all the bytes of before.
    let writes = || node.status()["state_file"]["writes"].as_u64().unwrap();
    let written = writes();
    node.move_bytes("local-a", 1);
    wait_for("the counters are on disk", || writes() > written);
    node.kill();
    panel.stub().faults.clear();
    // The panel is away at the start: the copy serves.
    panel.stub().is_away = true;
    node.start();
    node.serves(1);
    let doubts = node.doubt(&[]);
    // The other byte may have met the panel that is away by then.
    assert_eq!(doubts[0]["up_bytes"].as_u64(), Some(5000), "{doubts:?}");
    // This one takes requests and hangs up: bytes of now are in doubt as well.
    node.move_bytes("local-b", 200);
    let in_doubt = || node.doubt(&[]).iter().filter_map(|doubt| doubt["up_bytes"].as_u64()).sum::<u64>();
    wait_for("the bytes are in doubt", || in_doubt() == 5201);
    wait_for("the error is shown", || node.panel()["error"].is_string());
    assert!(node.panel()["age_s"].as_u64().is_some());
    panel.stub().is_away = false;
    panel.stub().is_broken = true;
    // A push or two.
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(panel.taken("5"), [1000, 1000]);
    panel.stub().is_broken = false;
    node.move_bytes("local-b", 300);
    wait_for("the new bytes", || panel.taken("5") == [1300, 1300]);
    node.doubt(&["home", "--resend"]);
    wait_for("the bytes in doubt", || panel.taken("5") == [6501, 6501]);
    // The panel was restored from a backup of before: a replay tells it again.
    panel.stub().taken.clear();
    let (code, _, err) = node.dir.run(&["panel", "replay", "home", "--since", "1h", "--socket", "adit.sock"]);
    assert_eq!(code, 0, "{err}");
    wait_for("the replay", || panel.taken("5") == [6501, 6501]);
}

/// Check 4: the panel is away from the start; users that were deleted meanwhile go with the first list after its return.
#[test]
fn users_deleted_while_the_panel_was_away_go_when_it_is_back() {
    let panel = Panel::start(&[(5, UUID), (7, "99999999-1111-4222-8333-444455556666")]);
    let mut node = Node::new(&panel, UNIPROXY);
    node.serves(2);
    node.move_bytes("local-a", 1000);
    wait_for("the bytes", || panel.taken("5") == [1000, 1000]);
    // A kill before the answer is on disk leaves these bytes in doubt as well.
    wait_for("the answer is noted", || node.number("unsent_bytes") == 0);
    node.kill();
    panel.stub().is_away = true;
    node.start();
    node.serves(2);
    wait_for("the error is shown", || node.panel()["error"].is_string());
    assert!(node.panel()["age_s"].as_u64().is_some(), "and the age of the copy");
    let mut held = node.connect("local-a");
    round_trip(&mut held, 500);
    panel.stub().users.retain(|(id, _)| *id == 7);
    // The node asks meanwhile, and is not answered.
    thread::sleep(Duration::from_secs(2));
    node.serves(2);
    panel.stub().is_away = false;
    node.serves(1);
    let mut byte = [0];
    assert!(matches!(held.read(&mut byte), Ok(0) | Err(_)), "the deleted user's connection ends");
    // A request to a panel that hangs up may have been taken: those bytes are shown as in doubt, and none is told twice.
    let told = || panel.taken("5")[0] + node.number("in_doubt_bytes") / 2;
    wait_for("the bytes of meanwhile are told or in doubt", || told() == 1500);
    node.doubt(&["home", "--resend"]);
    wait_for("the panel has all", || panel.taken("5") == [1500, 1500]);
}

#[test]
fn a_node_joins_a_panel_with_one_command() {
    let panel = Panel::start(&[(5, UUID)]);
    let dir = Dir::new();
    let url = format!("http://{}", panel.at);
    let join = |token: &str, output: &str| {
        let args = ["node", "join", "--panel", &url, "--token-file", "-", "--node", "17", "-o", output];
        crate::support::finish(dir.adit(&args), token)
    };
    let (code, _, err) = join("another token", "wrong.toml");
    assert!(code != 0 && err.contains("token is error"), "{err}");
    assert!(!dir.path().join("wrong.toml").exists());
    let (code, out, err) = join(&format!("{TOKEN}\n"), "adit.toml");
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("1 users") && out.contains(":443"), "{out}");
    let text = std::fs::read_to_string(dir.path().join("adit.toml")).unwrap();
    assert!(!text.contains(TOKEN), "{text}");
    let (code, out, err) = dir.run(&["check", "adit.toml"]);
    assert_eq!(code, 0, "{out}{err}");
    let (code, _, err) = join(TOKEN, "adit.toml");
    assert!(code != 0 && err.contains("--force"), "{err}");
}
