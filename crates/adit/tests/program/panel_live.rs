//! The WebSocket of a panel of version 2 of Xboard: changes of users at once, and hostile messages.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adit_net::websocket::accept_key;
use serde_json::{Value, json};

use crate::panel::{Node, Panel, UUID, wait_for};
use crate::support::PATIENCE;

const OTHER: &str = "99999999-1111-4222-8333-444455556666";
/// A change holds a second after it has come; the debug build, on a machine that does other things, has a minute, which is
/// far from the next pull.
const BOUND: Duration = Duration::from_secs(if cfg!(debug_assertions) { 60 } else { 1 });
const KEYS: &str = "kind = \"xboard\"\nmachine = \"3\"\npull = \"300s\"";
const KNOWN: &str = r#"{"event":"auth.success","data":{"machine_id":3,"node_ids":[17,18]}}"#;

/// The WebSocket of the stub.
pub(crate) struct Line {
    url: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The connection, and the request that opened it.
    stream: Option<TcpStream>,
    request: String,
    opened: u64,
    heard: Vec<Value>,
    /// The bytes that greet a node, in the place of [`KNOWN`].
    greeting: Option<Vec<u8>>,
}

impl Line {
    fn new(url: String) -> Arc<Self> {
        Arc::new(Self { url, state: Mutex::default() })
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Answers the request that opens it, and hears what the node says until it ends.
    pub(crate) fn serve(&self, mut stream: TcpStream, head: &str) {
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap_or_default();
        let accept = accept_key(key.trim().as_bytes());
        write!(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        )
        .unwrap();
        let greeting = {
            let mut state = self.state.lock().unwrap();
            state.request = head.lines().next().unwrap_or_default().to_owned();
            state.opened += 1;
            state.stream = Some(stream.try_clone().unwrap());
            state.greeting.clone().unwrap_or_else(|| frame(KNOWN.as_bytes()))
        };
        stream.write_all(&greeting).ok();
        while let Some(text) = read_frame(&mut stream) {
            self.state.lock().unwrap().heard.extend(serde_json::from_slice(&text));
        }
    }

    fn send(&self, bytes: &[u8]) {
        self.state.lock().unwrap().stream.as_ref().unwrap().write_all(bytes).unwrap();
    }

    fn tell(&self, event: &str, data: &Value) {
        self.send(&frame(json!({ "event": event, "data": data, "timestamp": 1 }).to_string().as_bytes()));
    }

    fn opened(&self) -> u64 {
        self.state.lock().unwrap().opened
    }

    /// The data of the last event of this name that the node has sent.
    fn heard(&self, event: &str) -> Option<Value> {
        let state = self.state.lock().unwrap();
        state.heard.iter().rfind(|heard| heard["event"] == event).map(|heard| heard["data"].clone())
    }

    fn forget(&self) {
        self.state.lock().unwrap().heard.clear();
    }
}

/// A text in one frame of a server (RFC 6455, 5.2).
fn frame(text: &[u8]) -> Vec<u8> {
    let mut out = vec![0x81];
    match u16::try_from(text.len()) {
        Ok(len @ 0..126) => out.push(u8::try_from(len).unwrap()),
        Ok(len) => out.extend([&[126][..], &len.to_be_bytes()].concat()),
        Err(_) => out.extend([&[127][..], &(text.len() as u64).to_be_bytes()].concat()),
    }
    out.extend_from_slice(text);
    out
}

/// The payload of a client's text; `None` at the end and for a close.
fn read_frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).ok()?;
    let len = match head[1] & 0x7f {
        126 => {
            let mut len = [0; 2];
            stream.read_exact(&mut len).ok()?;
            usize::from(u16::from_be_bytes(len))
        }
        127 => return None,
        len => usize::from(len),
    };
    assert!(head[1] & 0x80 != 0, "a client masks");
    let (mut mask, mut payload) = ([0; 4], vec![0; len]);
    stream.read_exact(&mut mask).ok()?;
    stream.read_exact(&mut payload).ok()?;
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    (head[0] & 15 == 1).then_some(payload)
}

fn start() -> (Panel, Arc<Line>) {
    let panel = Panel::start(&[(5, UUID)]);
    let line = Line::new(format!("ws://{}/ws", panel.at));
    panel.stub().line = Some(line.clone());
    (panel, line)
}

fn is_served(node: &Node) -> bool {
    let mut stream = node.connect("local-b");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

/// Check 12, of Xboard: a change holds within a second, with no pull between; addresses and a pong go back; the end of the
/// WebSocket leaves users as they are.
#[test]
fn changes_of_users_come_over_the_websocket() {
    let (panel, line) = start();
    let node = Node::new(&panel, KEYS);
    node.serves(1);
    wait_for("the node tells its addresses first", || line.heard("report.devices").is_some());
    assert_eq!(line.heard("report.devices").unwrap(), json!({ "node_id": 17, "devices": {} }));
    let request = line.state.lock().unwrap().request.clone();
    assert!(request.starts_with("GET /ws?machine_id=3&node_id=17&token="), "{request}");
    assert!(panel.stub().handshake.contains("machine_id=3"));
    let pulls = panel.stub().pulls;
    let mut held = node.connect("local-b");
    // Changes of another node of the machine are none of its business. Numbers may be text.
    line.tell("sync.user.delta", &json!({"action": "remove", "node_id": 18, "users": [{"id": 5}]}));
    line.tell(
        "sync.user.delta",
        &json!({"action": "add", "node_id": "17", "users": [{"id": "7", "uuid": OTHER}]}),
    );
    let since = Instant::now();
    node.serves(2);
    println!("a new user is served {:?} after the change", since.elapsed());
    assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
    assert!(is_served(&node));
    line.tell("ping", &Value::Null);
    wait_for("the answer to a ping", || {
        line.state.lock().unwrap().heard.iter().any(|it| it["event"] == "pong")
    });
    // Counters go with one report; addresses over the WebSocket.
    node.move_bytes("local-a", 1000);
    wait_for("all bytes are told", || panel.taken("5")[0] >= 1000);
    line.forget();
    wait_for("an address", || {
        line.heard("report.devices").is_some_and(|it| it["devices"]["5"][0] == "127.0.0.1")
    });
    assert_eq!(panel.stub().alive, None);
    wait_for("the state", || line.heard("node.status").is_some_and(|it| it["total_users"] == 2));
    let since = Instant::now();
    line.tell("sync.user.delta", &json!({"action": "remove", "node_id": 17, "users": [{"id": 5}]}));
    held.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(held.read(&mut [0]), Ok(0) | Err(_)));
    println!("the removed user's connection ends {:?} after the change", since.elapsed());
    assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
    assert_eq!(panel.stub().pulls, pulls, "no list has been pulled meanwhile");
    // The last user may go too: it is named. A whole list without anybody waits.
    line.tell("sync.user.delta", &json!({"action": "remove", "node_id": 17, "users": [{"id": 7}]}));
    node.serves(0);
    line.tell("sync.users", &json!({"users": [{"id": 7, "uuid": OTHER}, {"id": 5, "uuid": UUID}]}));
    node.serves(2);
    line.tell("sync.users", &json!({"users": []}));
    wait_for("the wait is shown", || node.panel()["waiting_since"].as_u64().is_some());
    node.serves(2);
}

#[test]
fn a_hostile_websocket_leaves_users_as_they_are() {
    let (panel, line) = start();
    let long = [&[0x81, 127][..], &(1_u64 << 40).to_be_bytes(), b"{"].concat();
    let deep = frame("[".repeat(100_000).as_bytes());
    let many = format!(r#"{{"event":"sync.users","data":{{"users":[{}{{}}]}}}}"#, "{},".repeat(100_001));
    let greetings: [(&str, Vec<u8>); 6] = [
        ("a message of 1 TiB", long),
        ("a message that is nested deep", deep),
        ("more rows than there may be", frame(many.as_bytes())),
        ("bytes in the place of text", [&[0x82, 1][..], b"x"].concat()),
        ("a masked frame of a server", vec![0x81, 0x81, 1, 2, 3, 4, 5]),
        ("a refusal", frame(br#"{"event":"error","data":{"message":"invalid machine credentials"}}"#)),
    ];
    line.state.lock().unwrap().greeting = Some(greetings[0].1.clone());
    let node = Node::new(&panel, "kind = \"xboard\"\npull = \"1s\"");
    node.serves(1);
    for (index, (what, bytes)) in greetings.iter().enumerate() {
        line.state.lock().unwrap().greeting = Some(bytes.clone());
        let before = line.opened();
        wait_for(what, || line.opened() > before + u64::from(index > 0));
        assert!(is_served(&node), "{what}");
    }
    // A good one at last: users come by it again.
    line.state.lock().unwrap().greeting = None;
    line.forget();
    wait_for("the node is known", || line.heard("report.devices").is_some());
    let rss = std::fs::read_to_string(format!("/proc/{}/status", node.running().pid())).unwrap();
    let peak = rss.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
    println!("peak of memory: {peak}");
    let peak: u64 = peak.trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 200_000, "{peak} kB");
    assert!(is_served(&node));
}

/// The token does not go to the host that the panel names, unless it is its own.
#[test]
fn another_host_gets_no_token() {
    let panel = Panel::start(&[(5, UUID)]);
    let other: SocketAddr = Panel::start(&[]).at;
    let line = Line::new(format!("ws://localhost:{}/ws", other.port()));
    panel.stub().line = Some(line.clone());
    let node = Node::new(&panel, "kind = \"xboard\"\npull = \"1s\"");
    node.serves(1);
    wait_for("handshakes", || !panel.stub().handshake.is_empty());
    node.running().line("its WebSocket is on another host");
    // It is not asked later either.
    thread::sleep(Duration::from_secs(2));
    assert_eq!(line.opened(), 0);
}
