//! Replay groups: a connection that was recorded at one node is refused by the others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::support::{Redis, Way, echoed, wait_for};
use crate::support::{Dir, Running, socks5};

const KEY: &str = "bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=";
/// Shadowsocks with a time in its requests, and without one.
const METHODS: [&str; 2] = ["2022-blake3-aes-256-gcm", "chacha20-ietf-poly1305"];

/// A node with a port for each method, all under one key.
struct Sibling {
    dir: Dir,
    ports: [SocketAddr; 2],
    running: Running,
}

impl Sibling {
    /// `store` stands in its file as it is.
    fn new(store: &str) -> Self {
        let (dir, ports) = (Dir::new(), METHODS.map(|_| adit_testkit::unused_addr()));
        let mut text = format!("[admin]\nsocket = \"adit.sock\"\n{store}");
        for (n, (method, port)) in METHODS.iter().zip(ports).enumerate() {
            text += &format!(
                "[[inbound]]\nname = \"in{n}\"\nprotocol = \"shadowsocks\"\nlisten = \"{port}\"\n\
                 method = \"{method}\"\npassword = \"{KEY}\"\nallow-private = true\n"
            );
        }
        dir.file("adit.toml", &text);
        let running = Running::start(dir.adit(&["--log-level", "trace", "run", "-c", "adit.toml"]));
        running.line("inbound=in1");
        Self { dir, ports, running }
    }

    fn in_group(store: &str) -> Self {
        Self::new(&format!(
            "[store]\nurl = \"{store}\"\nfleet = \"test\"\nevery = \"1s\"\nreplay-group = \"eu\"\nreplay-key = \"{KEY}\"\n"
        ))
    }

    fn store(&self) -> serde_json::Value {
        let (code, out, err) = self.dir.run(&["status", "--json", "--socket", "adit.sock"]);
        assert_eq!(code, 0, "{err}");
        let status: serde_json::Value = serde_json::from_str(&out).unwrap();
        status["fleet"]["store"].clone()
    }

    fn scope(&self) -> String {
        let store = self.store();
        let scopes = store["scopes"].as_array().into_iter().flatten();
        let of_replay = scopes.filter(|scope| scope[0] == "replay").find_map(|scope| scope[1].as_str());
        of_replay.unwrap_or_default().to_owned()
    }

    fn count(&self, name: &str) -> u64 {
        self.store()["replay"][name].as_u64().unwrap_or(0)
    }

    /// Sends recorded bytes to the port of a method. The connection has to stay until there is an answer.
    fn replay(&self, method: usize, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.ports[method]).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }
}

/// Somebody on the way to a port, who writes down what clients send.
struct Recorder {
    at: SocketAddr,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let recorder = Self { at: listener.local_addr().unwrap(), bytes: Arc::default() };
        let bytes = recorder.bytes.clone();
        thread::spawn(move || {
            for mut near in listener.incoming().map_while(Result::ok) {
                let Ok(mut far) = TcpStream::connect(server) else { continue };
                bytes.lock().unwrap().clear();
                let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
                let bytes = bytes.clone();
                thread::spawn(move || {
                    let mut block = [0; 4096];
                    while let Ok(len @ 1..) = near.read(&mut block) {
                        bytes.lock().unwrap().extend_from_slice(&block[..len]);
                        if far.write_all(&block[..len]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        recorder
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

/// An echo that counts its connections.
struct Target {
    at: SocketAddr,
    connections: Arc<AtomicU64>,
}

impl Target {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Self { at: listener.local_addr().unwrap(), connections: Arc::default() };
        let connections = target.connections.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                connections.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
        target
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

/// A client whose outbounds are watched.
fn client(recorders: &[Recorder; 2]) -> (Running, Dir) {
    let (dir, mut text) = (Dir::new(), String::new());
    for (n, (method, recorder)) in METHODS.iter().zip(recorders).enumerate() {
        text += &format!(
            "[[inbound]]\nname = \"l{n}\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"o{n}\"\n\
             [[outbound]]\nname = \"o{n}\"\nprotocol = \"shadowsocks\"\nserver = \"{}\"\nmethod = \"{method}\"\n\
             password = \"{KEY}\"\n",
            recorder.at
        );
    }
    dir.file("client.toml", &text);
    let running = Running::start(dir.adit(&["run", "-c", "client.toml"]));
    running.line("inbound=l1");
    (running, dir)
}

/// A connection over a method, from its first byte to its end; the bytes that a recorder has of it.
fn record(client: &Running, method: usize, recorder: &Recorder, target: &Target) -> Vec<u8> {
    let line = client.line(&format!("inbound=l{method} "));
    let at: SocketAddr = line.split("address=").nth(1).unwrap().trim().parse().unwrap();
    let mut stream = socks5(at, "127.0.0.1", target.at.port());
    assert!(echoed(&mut stream, 100));
    recorder.bytes()
}

#[test]
#[ignore = "needs redis-server"]
fn a_recorded_connection_is_refused_by_the_siblings() {
    let redis = Redis::start();
    let (way, target) = (Way::to(&redis), Target::start());
    let [first, second] = [Sibling::in_group(&redis.url()), Sibling::in_group(&way.url())];
    let apart = Sibling::new("");
    let recorders = first.ports.map(Recorder::before);
    let (client, _dir) = client(&recorders);
    wait_for("global", || first.scope() == "global" && second.scope() == "global");
    for method in 0..2 {
        let learned = second.count("learned");
        let bytes = record(&client, method, &recorders[method], &target);
        wait_for("the sibling knows the salt", || second.count("learned") > learned);
        // The recording is good: a node with the same key that is in no group serves it.
        let (connections, refused) = (target.connections(), second.count("refused"));
        let _served = apart.replay(method, &bytes);
        wait_for("a node without the group serves it", || target.connections() == connections + 1);
        let _refused = second.replay(method, &bytes);
        wait_for("the sibling refuses it", || second.count("refused") == refused + 1);
        assert_eq!(target.connections(), connections + 1, "{}", METHODS[method]);
    }
    assert!(first.count("told") > 0 && second.count("nodes") == 1 && second.count("dropped") == 0);
    // Without the store each node knows its own salts alone, and says so.
    way.cut(true);
    wait_for("local", || second.scope().starts_with("local since"));
    assert_eq!(first.scope(), "global");
    let bytes = record(&client, 0, &recorders[0], &target);
    let connections = target.connections();
    let _served = second.replay(0, &bytes);
    wait_for("it is served once", || target.connections() == connections + 1);
    let mut again = second.replay(0, &bytes);
    drop(again.shutdown(std::net::Shutdown::Write));
    drop(again.read_to_end(&mut Vec::new()));
    assert_eq!(target.connections(), connections + 1, "a node's own memory holds");
    // The first one's salt is learned late, and what this one took meanwhile is told.
    let (learned, told) = (first.count("learned"), second.count("told"));
    way.cut(false);
    wait_for("global again", || second.scope() == "global");
    wait_for("both know all", || first.count("learned") > learned && second.count("told") > told);
    // A process that starts without its replay file reads the group's salts back.
    let told = first.count("told");
    let bytes = record(&client, 1, &recorders[1], &target);
    wait_for("the salt is in the store", || first.count("told") > told);
    let third = Sibling::in_group(&redis.url());
    wait_for("it has read all of it", || third.scope() == "global");
    let connections = target.connections();
    let _refused = third.replay(1, &bytes);
    wait_for("it refuses what others have seen", || third.count("refused") == 1);
    assert_eq!(target.connections(), connections);
    assert!(third.running.log().contains("inbound=in1"));
}
