//! Users from the store, in the program: added by a command, served by two nodes, removed again.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::support::{Redis, echoed, wait_for};
use crate::support::{Dir, Running, echo};

const KEY: &str = "bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=";

/// A node whose users come from the store.
struct Listener {
    dir: Dir,
    port: SocketAddr,
    running: Option<Running>,
}

impl Listener {
    fn new(store: &str) -> Self {
        let (dir, port) = (Dir::new(), adit_testkit::unused_addr());
        let text = format!(
            "[admin]\nsocket = \"adit.sock\"\n\
             [store]\nurl = \"{store}\"\nfleet = \"test\"\nevery = \"1s\"\nusers-key = \"{KEY}\"\n\
             [[inbound]]\nname = \"in\"\nprotocol = \"shadowsocks\"\nlisten = \"{port}\"\npanel = \"store\"\n\
             method = \"2022-blake3-aes-256-gcm\"\npassword = \"{KEY}\"\nallow-private = true\n"
        );
        dir.file("adit.toml", &text);
        let mut node = Self { dir, port, running: None };
        node.start();
        node
    }

    fn start(&mut self) {
        let running = Running::start(self.dir.adit(&["--log-level", "trace", "run", "-c", "adit.toml"]));
        running.line("inbound=in");
        self.running = Some(running);
    }

    fn end(&mut self, signal: &str) -> String {
        let running = self.running.take().unwrap();
        running.signal(signal);
        running.end().1
    }

    fn store(&self, args: &[&str]) -> (i32, String, String) {
        self.dir.run(&[&["store"], args, &["-c", "adit.toml"]].concat())
    }
}

/// A client with the key of a user.
struct Device {
    running: Running,
    _dir: Dir,
}

impl Device {
    fn new(node: &Listener, key: &str) -> Self {
        let dir = Dir::new();
        let text = format!(
            "[[inbound]]\nname = \"local\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n\
             [[outbound]]\nname = \"out\"\nprotocol = \"shadowsocks\"\nserver = \"{}\"\n\
             method = \"2022-blake3-aes-256-gcm\"\npassword = \"{KEY}:{key}\"\n",
            node.port
        );
        dir.file("client.toml", &text);
        let running = Running::start(dir.adit(&["run", "-c", "client.toml"]));
        running.line("inbound=local");
        Self { running, _dir: dir }
    }

    fn connect(&self, target: SocketAddr) -> TcpStream {
        let line = self.running.line("inbound=local ");
        let at: SocketAddr = line.split("address=").nth(1).unwrap().trim().parse().unwrap();
        crate::support::socks5(at, "127.0.0.1", target.port())
    }

    fn is_served(&self, target: SocketAddr) -> bool {
        echoed(&mut self.connect(target), 1000)
    }
}

#[test]
#[ignore = "needs redis-server"]
fn users_of_the_store_are_served_by_all_nodes() {
    let redis = Redis::start();
    let url = redis.url();
    let mut nodes = [Listener::new(&url), Listener::new(&url)];
    let added = nodes[0].store(&["add", "ann", "--quota", "1GB", "--addresses", "2"]);
    assert_eq!(added.0, 0, "{}", added.2);
    let key = added.1.lines().find_map(|line| line.strip_prefix("key: ")).unwrap().to_owned();
    assert_eq!(nodes[1].store(&["list"]).1, "ann\n");
    let target = echo();
    let devices = [Device::new(&nodes[0], &key), Device::new(&nodes[1], &key)];
    for device in &devices {
        wait_for("ann is served", || device.is_served(target));
    }
    // The user's account and limits are those of any user.
    let (_, status, _) = nodes[0].dir.run(&["status", "--json", "--users", "--socket", "adit.sock"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let ann = &status["inbounds"][0]["users"][0];
    assert_eq!(ann["name"], "store/ann");
    assert!(ann["up_bytes"].as_u64().unwrap() >= 1000, "{ann}");
    assert_eq!(status["fleet"]["store"]["users"], 1);
    // A start without the store knows its users.
    drop(redis);
    nodes[0].end("TERM");
    nodes[0].start();
    wait_for("ann is served without the store", || devices[0].is_served(target));
    let logs = nodes.each_mut().map(|node| node.end("TERM")).concat();
    assert!(!logs.contains(&key) && !logs.contains(KEY), "no key in a log");
}

#[test]
#[ignore = "needs redis-server"]
fn a_removed_user_of_the_store_is_cut_off() {
    let redis = Redis::start();
    let node = Listener::new(&redis.url());
    for user in ["ann", "bob"] {
        let added = node.store(&["add", user, "--key-file", "/dev/null"]);
        assert_ne!(added.0, 0, "an empty key is none");
    }
    let keys = ["ann", "bob"].map(|user| {
        let added = node.store(&["add", user]);
        assert_eq!(added.0, 0, "{}", added.2);
        added.1.lines().find_map(|line| line.strip_prefix("key: ")).unwrap().to_owned()
    });
    let target = echo();
    let devices = keys.each_ref().map(|key| Device::new(&node, key));
    for device in &devices {
        wait_for("both are served", || device.is_served(target));
    }
    let mut open = devices.each_ref().map(|device| device.connect(target));
    assert!(open.iter_mut().all(|stream| echoed(stream, 10)));
    let since = std::time::Instant::now();
    assert_eq!(node.store(&["rm", "ann"]).0, 0);
    assert_ne!(node.store(&["rm", "ann"]).0, 0, "it is gone already");
    wait_for("ann's connection ends", || !echoed(&mut open[0], 10));
    println!("removed after {:?}", since.elapsed());
    assert!(since.elapsed() < Duration::from_secs(10));
    assert!(!devices[0].is_served(target));
    assert!(echoed(&mut open[1], 10), "bob's connection stays");
}
