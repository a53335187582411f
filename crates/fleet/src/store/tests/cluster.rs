//! A Cluster of three masters, and a Sentinel whose master fails.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use adit_model::{Secret, Store, StoreAway};

use super::super::script;
use super::support::{Node, QUOTA, begin_at, wait_for};

/// Servers on ports of loopback, and their folder.
struct Servers {
    ports: Vec<u16>,
    children: Vec<Child>,
    dir: PathBuf,
}

impl Servers {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("adit-redis-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).unwrap();
        Self { ports: Vec::new(), children: Vec::new(), dir }
    }

    fn spawn(&mut self, args: &[&str]) -> u16 {
        let port = port();
        let own = self.dir.join(port.to_string());
        std::fs::create_dir_all(&own).unwrap();
        let mut command = Command::new("redis-server");
        command.args(args).args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(&own);
        self.children.push(command.stdout(Stdio::null()).spawn().unwrap());
        self.ports.push(port);
        wait_for("redis", || cli(port, &["PING"]) == "PONG");
        port
    }

    fn kill(&mut self, index: usize) {
        self.children[index].kill().unwrap();
        self.children[index].wait().unwrap();
    }

    fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.kill());
            drop(child.wait());
        }
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

/// A free port whose Cluster port, 10,000 above, is a port too.
#[expect(clippy::disallowed_methods, reason = "a port for another process")]
fn port() -> u16 {
    loop {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        if let Some(bus) = port.checked_add(10_000)
            && std::net::TcpListener::bind(("127.0.0.1", bus)).is_ok()
        {
            return port;
        }
    }
}

fn cli(port: u16, args: &[&str]) -> String {
    let out = Command::new("redis-cli").args(["-c", "-p", &port.to_string()]).args(args).output().unwrap();
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

fn store(port: u16, sentinel: Option<&str>) -> Store {
    Store {
        url: Secret::new(format!("redis://127.0.0.1:{port}")),
        fleet: "f".into(),
        away: StoreAway::Allowance,
        every: Duration::from_secs(1),
        sentinel: sentinel.map(Into::into),
        users_key: None,
        replay: None,
    }
}

fn total(port: u16, user: &str) -> u64 {
    cli(port, &["HGET", &script::key("f", user, None, 0), user]).parse().unwrap_or(0)
}

#[test]
#[ignore = "needs redis-server"]
fn a_cluster_is_followed_from_server_to_server() {
    let mut servers = Servers::new("cluster");
    for _ in 0..3 {
        servers.spawn(&["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]);
    }
    let all: Vec<String> = servers.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut create = Command::new("redis-cli");
    create.args(["--cluster", "create"]).args(&all).arg("--cluster-yes").stdout(Stdio::null());
    assert!(create.status().unwrap().success());
    wait_for("the cluster", || cli(servers.ports[0], &["CLUSTER", "INFO"]).contains("cluster_state:ok"));
    let nodes = [Node::default(), Node::default()];
    let users: Vec<String> = (0..300).map(|n| format!("user{n}")).collect();
    for (node, bytes) in nodes.iter().zip([1000, 500]) {
        let spent: u64 = users.iter().map(|user| node.spend(user, bytes)).sum();
        assert_eq!(spent, 300 * bytes);
    }
    let threads = [0, 1].map(|n| begin_at(store(servers.ports[n], None), &nodes[n], &format!("n{n}")));
    wait_for("all totals", || users.iter().step_by(29).all(|user| total(servers.ports[2], user) == 1500));
    assert!(threads.iter().all(|(shared, _)| shared.report().away_since.is_none()));
    // All three servers have a part of it.
    let sizes: Vec<String> = servers
        .ports
        .iter()
        .map(|port| {
            let out = Command::new("redis-cli").args(["-p", &port.to_string(), "DBSIZE"]).output().unwrap();
            String::from_utf8(out.stdout).unwrap().trim().to_owned()
        })
        .collect();
    assert!(sizes.iter().all(|size| *size != "0"), "{sizes:?}");
    // A slot goes to another server while nodes are told.
    let slot = script::slot(&script::key("f", "user0", None, 0)).to_string();
    let mut reshard = Command::new("redis-cli");
    let ids: Vec<String> = servers.ports.iter().map(|port| cli(*port, &["CLUSTER", "MYID"])).collect();
    let owner = cli(servers.ports[0], &["CLUSTER", "NODES"]);
    let from =
        (0..3).find(|n| owner.lines().any(|line| line.starts_with(&ids[*n]) && holds(line, &slot))).unwrap();
    let to = (from + 1) % 3;
    reshard.args(["--cluster", "reshard", &all[0], "--cluster-from", &ids[from], "--cluster-to", &ids[to]]);
    reshard.args(["--cluster-slots", "2000", "--cluster-yes"]).stdout(Stdio::null());
    let mut moving = reshard.spawn().unwrap();
    for _ in 0..20 {
        let spent: u64 = users.iter().map(|user| nodes[0].spend(user, 10)).sum();
        assert_eq!(spent, 3000);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(moving.wait().unwrap().success());
    wait_for("totals after the move", || users.iter().all(|user| total(servers.ports[2], user) == 1700));
}

/// Whether a line of `CLUSTER NODES` has the slot.
fn holds(line: &str, slot: &str) -> bool {
    let slot: u32 = slot.parse().unwrap();
    line.split(' ').skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse().is_ok_and(|first: u32| first <= slot)
            && last.parse().is_ok_and(|last: u32| slot <= last)
    })
}

#[test]
#[ignore = "needs redis-server"]
fn a_sentinel_names_the_next_master() {
    let mut servers = Servers::new("sentinel");
    let master = servers.spawn(&["--appendonly", "no"]);
    let replica = servers.spawn(&["--replicaof", "127.0.0.1", &master.to_string()]);
    wait_for("the replica", || cli(replica, &["INFO", "replication"]).contains("master_link_status:up"));
    let mut watchers = Vec::new();
    for n in 0..3 {
        let at = port();
        let file = servers.path().join(format!("sentinel{n}.conf"));
        let text = format!(
            "port {at}\nbind 127.0.0.1\nsentinel monitor m 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds m 1000\nsentinel failover-timeout m 5000\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("redis-server");
        command.arg(&file).arg("--sentinel").stdout(Stdio::null());
        servers.children.push(command.spawn().unwrap());
        watchers.push(at);
    }
    let knows = |at: u16| cli(at, &["SENTINEL", "MASTER", "m"]).contains("num-other-sentinels\n2");
    wait_for("the sentinels know each other", || watchers.iter().all(|at| knows(*at)));
    wait_for("the sentinels know the replica", || {
        watchers.iter().all(|at| cli(*at, &["SENTINEL", "REPLICAS", "m"]).contains(&replica.to_string()))
    });
    let node = Node::default();
    node.spend("ann", 1000);
    let (shared, _stop) = begin_at(store(watchers[0], Some("m")), &node, "n");
    wait_for("the total", || total(master, "ann") == 1000);
    servers.kill(0);
    node.spend("ann", 500);
    wait_for("the next master has it", || total(replica, "ann") == 1500);
    wait_for("the store is there", || shared.report().away_since.is_none());
    assert!(node.used("ann") < QUOTA);
}
