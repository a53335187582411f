//! The store's thread against a real redis-server.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adit_config::map::Map;
use adit_config::model::{Secret, Store, StoreAway};

use super::*;

const QUOTA: u64 = 300_000_000;

struct Redis {
    child: Child,
    dir: PathBuf,
}

impl Redis {
    fn start(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("adit-redis-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).unwrap();
        let child = Self::spawn(&dir);
        Self { child, dir }
    }

    fn spawn(dir: &PathBuf) -> Child {
        let socket = dir.join("r.sock");
        drop(std::fs::remove_file(&socket));
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--appendonly", "yes", "--appendfsync", "everysec", "--unixsocket"]);
        let child = command.arg(&socket).arg("--dir").arg(dir).stdout(Stdio::null()).spawn().unwrap();
        wait_for("redis", || socket.exists());
        child
    }

    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        thread::sleep(Duration::from_millis(700));
        self.child = Self::spawn(&self.dir);
    }

    fn cli(&self, args: &[&str]) -> String {
        let out =
            Command::new("redis-cli").arg("-s").arg(self.dir.join("r.sock")).args(args).output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    fn total(&self, user: &str) -> u64 {
        self.cli(&["HGET", &script::key("f", user, None, 0), user]).parse().unwrap_or(0)
    }

    fn store(&self) -> Store {
        Store {
            url: Secret::new(format!("unix://{}", self.dir.join("r.sock").display())),
            fleet: "f".into(),
            away: StoreAway::Allowance,
            every: Duration::from_secs(1),
            sentinel: None,
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

/// Accounts of one node: bytes that were used, and that may be.
#[derive(Default)]
struct Accounts {
    used: Map<Box<str>, u64>,
    may: Map<Box<str>, u64>,
    skews: Vec<i64>,
}

#[derive(Clone, Default)]
struct Node(Arc<Mutex<Accounts>>);

impl Node {
    /// Uses up to `bytes` more; the bytes that were left.
    fn spend(&self, user: &str, bytes: u64) -> u64 {
        let mut accounts = self.0.lock().unwrap();
        let may = accounts.may.get(user).copied().unwrap_or(QUOTA);
        let used = accounts.used.entry(user.into()).or_default();
        let spent = bytes.min(may.saturating_sub(*used));
        *used += spent;
        spent
    }

    fn used(&self, user: &str) -> u64 {
        self.0.lock().unwrap().used.get(user).copied().unwrap_or(0)
    }
}

impl StoreHost for Node {
    fn uses(&mut self) -> Map<Box<str>, Use> {
        let accounts = self.0.lock().unwrap();
        let usage = |used: &u64| Use { quota: QUOTA, used: *used, reset_day: None, period: 0 };
        accounts.used.iter().map(|(user, used)| (user.clone(), usage(used))).collect()
    }

    fn allow(&mut self, allowances: &Map<Box<str>, Option<u64>>) {
        let mut accounts = self.0.lock().unwrap();
        for (user, allowance) in allowances {
            let used = accounts.used.get(user).copied().unwrap_or(0);
            let may = allowance.map_or(QUOTA, |bytes| (used + bytes).min(QUOTA));
            accounts.may.insert(user.clone(), may);
        }
    }

    fn skew(&mut self, seconds: i64) {
        self.0.lock().unwrap().skews.push(seconds);
    }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = adit_net::rt::now() + Duration::from_secs(30);
    while !condition() {
        assert!(adit_net::rt::now() < until, "still not true: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn begin(redis: &Redis, node: &Node, id: &str) -> (Arc<StoreShared>, adit_net::rt::OrderSender<()>) {
    let shared = Arc::new(StoreShared::default());
    let stop = start(redis.store(), (id.into(), 1), shared.clone(), node.clone()).unwrap();
    (shared, stop)
}

#[test]
#[ignore = "needs redis-server"]
fn a_quota_holds_over_five_nodes_while_the_store_is_killed() {
    let mut redis = Redis::start("quota");
    let nodes: Vec<Node> = (0..5).map(|_| Node::default()).collect();
    let threads: Vec<_> =
        nodes.iter().enumerate().map(|(n, node)| begin(&redis, node, &format!("node{n}"))).collect();
    let begun: Instant = adit_net::rt::now();
    let mut kills = 0;
    // 20 MB/s each, together past the quota in three seconds; the store is killed twice.
    while adit_net::rt::now() < begun + Duration::from_secs(25) {
        let _moved: u64 = nodes.iter().map(|node| node.spend("ann", 1_000_000)).sum();
        thread::sleep(Duration::from_millis(50));
        let all: u64 = nodes.iter().map(|node| node.used("ann")).sum();
        if kills < 2 && all > QUOTA / 4 * (kills + 1) {
            redis.restart();
            kills += 1;
        }
    }
    let all = || nodes.iter().map(|node| node.used("ann")).sum::<u64>();
    wait_for("the store has every byte", || redis.total("ann") == all());
    assert_eq!(kills, 2);
    // Five nodes at 20 MB/s for a look of 0.25 s and a sync, and an allowance of 16 MiB while it is away.
    assert!(all() >= QUOTA - 5 * (64 << 10) && all() <= QUOTA + 5 * (20_000_000 + (16 << 20)), "{}", all());
    assert!(threads.iter().all(|(shared, _)| shared.report().away_since.is_none()));
    assert!(nodes[0].0.lock().unwrap().skews.iter().all(|skew| skew.abs() <= 1));
}

#[test]
#[ignore = "needs redis-server"]
fn a_store_that_lost_its_data_and_a_copy_that_is_older_heal() {
    let redis = Redis::start("heal");
    let nodes = [Node::default(), Node::default()];
    let (first, stop) = begin(&redis, &nodes[0], "a");
    let (_second, _stop) = begin(&redis, &nodes[1], "b");
    nodes[0].spend("ann", 1_000_000);
    nodes[1].spend("ann", 2_000_000);
    nodes[1].spend("bob", 500);
    wait_for("totals", || redis.total("ann") == 3_000_000 && redis.total("bob") == 500);
    redis.cli(&["FLUSHALL"]);
    nodes[0].spend("ann", 10);
    nodes[1].spend("ann", 10);
    nodes[1].spend("bob", 1);
    wait_for("totals after the loss", || redis.total("ann") == 3_000_020 && redis.total("bob") == 501);
    assert!(first.report().resyncs <= 1);
    // The first node comes back with an older copy of its state.
    drop(stop);
    thread::sleep(Duration::from_millis(600));
    nodes[0].0.lock().unwrap().used.insert("ann".into(), 400_000);
    let (_again, _stop) = begin(&redis, &nodes[0], "a");
    thread::sleep(Duration::from_secs(3));
    nodes[0].spend("ann", 100);
    wait_for("new bytes count on top", || redis.total("ann") == 3_000_120);
}

#[test]
#[ignore = "needs redis-server"]
fn a_clone_stops_telling() {
    let redis = Redis::start("clone");
    let nodes = [Node::default(), Node::default()];
    let (first, _stop) = begin(&redis, &nodes[0], "same");
    nodes[0].spend("ann", 1000);
    wait_for("the first tells", || redis.total("ann") == 1000);
    let (second, _other) = begin(&redis, &nodes[1], "same");
    nodes[1].spend("ann", 5000);
    wait_for("the clone is found", || second.report().is_clone);
    assert!(!first.report().is_clone);
    assert_eq!(redis.total("ann"), 1000);
}
