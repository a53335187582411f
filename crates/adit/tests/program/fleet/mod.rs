//! Nodes of a fleet with a real redis-server, a panel that misbehaves, and faults between them: the checks of the fleet
//! notes, section 9, that speak of a node.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use self::support::{Client, KEY, Load, Node, Redis, Way, echoed, wait_for};
use crate::support::echo;

mod addresses;
mod changes;
mod clock;
mod cost;
mod exact;
mod hundred;
mod memory;
mod prometheus;
mod replay;
mod restart;
mod rig;
mod rolling;
mod secrets;
mod support;
mod table;
mod users;

pub(crate) use self::support::http_date;

const MIB: u64 = 1 << 20;

fn connects(
    client: &Arc<Client>,
    node: usize,
    target: std::net::SocketAddr,
) -> impl Fn() -> std::net::TcpStream + Send + use<> {
    let client = client.clone();
    move || client.connect(node, 0, target)
}

/// Checks 1 and 5: the store is killed four times under load; its total is that of the generator, and no connection waits.
#[test]
#[ignore = "needs redis-server"]
fn totals_are_exact_over_kills_of_the_store() {
    let mut redis = Redis::start();
    let nodes: Vec<Node> = (0..3).map(|_| Node::new(&redis.url(), "quota = \"100GiB\"", "")).collect();
    let (client, target) = (Arc::new(Client::new(&nodes.iter().collect::<Vec<_>>())), echo());
    let loads: Vec<Load> = (0..3).map(|n| Load::start(50_000, connects(&client, n, target))).collect();
    // The time over which it is measured.
    thread::sleep(Duration::from_secs(10));
    let quiet = loads[0].p99();
    for _ in 0..4 {
        redis.restart();
        thread::sleep(Duration::from_secs(2));
    }
    let killed = loads[0].p99();
    println!("p99 of a connection and 50 kB there and back: quiet {quiet:?}, store killed {killed:?}");
    // A call of the store takes up to 250 ms: none of them stands in the way of a connection.
    assert!(killed.0 < quiet.0.mul_f64(1.2) + Duration::from_millis(100), "{killed:?} {quiet:?}");
    let truth: u64 = loads.into_iter().map(Load::stop).sum();
    wait_for("the store has every byte", || redis.total("ann") == truth);
    assert_eq!(nodes.iter().map(Node::used).sum::<u64>(), truth);
    // Check 8: all of its data is lost.
    let target_bytes = 1000;
    assert!(echoed(&mut client.connect(0, 0, target), target_bytes));
    redis.cli(&["FLUSHALL"]);
    wait_for("totals after the loss", || redis.total("ann") == truth + 2 * target_bytes as u64);
    // Nothing more comes.
    thread::sleep(Duration::from_secs(3));
    let truth = truth + 2 * target_bytes as u64;
    assert_eq!(redis.total("ann"), truth, "never above the truth");
    // Totals come back as they were before the last bytes of all nodes.
    let keys = redis.cli(&["--scan", "--pattern", "adit:test:use:*"]);
    let copies: Vec<(&str, Vec<u8>)> = keys.lines().map(|key| (key, redis.dump(key))).collect();
    let move_on_all = |len| (0..3).for_each(|n| assert!(echoed(&mut client.connect(n, 0, target), len)));
    move_on_all(5000);
    wait_for("more", || redis.total("ann") == truth + 30_000);
    copies.iter().for_each(|(key, copy)| redis.undump(key, copy));
    assert_eq!(redis.total("ann"), truth);
    move_on_all(10);
    wait_for("totals after an older copy", || {
        let total = redis.total("ann");
        assert!(total <= truth + 30_060, "never above the truth");
        total == truth + 30_060
    });
}

/// Check 6: a store that stands still for 30 s, then one that answers after 400 ms. Allowances hold, and no connection waits.
#[test]
#[ignore = "needs redis-server"]
fn a_slow_store_stands_in_nobodys_way() {
    let redis = Redis::start();
    let way = Way::to(&redis);
    let node = Node::new(&way.url(), "quota = \"1GiB\"", "");
    let heavy = Node::new(&redis.url(), "quota = \"1GiB\"", "");
    let (client, target) = (Arc::new(Client::new(&[&node, &heavy])), echo());
    wait_for("global", || node.scope() == "global" && heavy.scope() == "global");
    // Little enough for the allowance of 16 MiB, however long the store is away: one that ends would cut connections, and
    // their bytes count for nothing here.
    let load = Load::start(500, connects(&client, 0, target));
    // The time over which it is measured.
    thread::sleep(Duration::from_secs(6));
    let quiet = load.p99();
    redis.signal("STOP");
    let since = Instant::now();
    wait_for("local", || node.scope().starts_with("local since") && heavy.scope().starts_with("local since"));
    // A node whose user spends what it may.
    let (before, spend) = (heavy.used(), Load::start(1 << 20, connects(&client, 1, target)));
    wait_for("the allowance ends", || heavy.status()["inbounds"][0]["users"][0]["limited"].is_string());
    // It stands still for 30 s.
    thread::sleep(Duration::from_secs(30).saturating_sub(since.elapsed()));
    let (stopped, spent) = (load.p99(), heavy.used() - before);
    redis.signal("CONT");
    wait_for("global again", || node.scope() == "global" && heavy.scope() == "global");
    spend.stop();
    println!("{:.2} MiB spent of an allowance of 16", spent as f64 / MIB as f64);
    assert!(spent <= 16 * MIB + MIB / 4, "{spent}");
    way.delay(200);
    wait_for("local again", || node.scope().starts_with("local since"));
    // The time over which it is measured.
    thread::sleep(Duration::from_secs(10));
    let slow = load.p99();
    println!("p99: quiet {quiet:?}, store stopped {stopped:?}, 400 ms late {slow:?}");
    for other in [stopped, slow] {
        assert!(other.0 < quiet.0.mul_f64(1.2) + Duration::from_millis(100), "{other:?} {quiet:?}");
    }
    way.delay(0);
    let truth = load.stop();
    wait_for("every byte", || redis.total("ann") == truth + heavy.used());
    // Calls end at 250 ms.
    let store = node.store();
    let late = |of: &serde_json::Value| of[1] == "late";
    let calls = store["calls"].as_array().unwrap();
    assert!(calls.iter().filter(|call| late(call)).any(|call| call[2].as_u64().unwrap() > 0), "{store}");
}

/// Check 7: two of five nodes are cut off while one user spends its quota on all of them.
#[test]
#[ignore = "needs redis-server"]
fn a_partition_overshoots_within_its_bound() {
    const QUOTA: u64 = 256 * MIB;
    const RATE: u64 = 4 * MIB;
    let redis = Redis::start();
    let ways: Vec<Way> = (0..5).map(|_| Way::to(&redis)).collect();
    let limits = format!("quota = \"{}MiB\", rate = \"{}MiB\"", QUOTA / MIB, RATE / MIB);
    let nodes: Vec<Node> = ways.iter().map(|way| Node::new(&way.url(), &limits, "")).collect();
    let (client, target) = (Arc::new(Client::new(&nodes.iter().collect::<Vec<_>>())), echo());
    wait_for("all are global", || nodes.iter().all(|node| node.scope() == "global"));
    let loads: Vec<Load> = (0..5).map(|n| Load::start(1 << 20, connects(&client, n, target))).collect();
    wait_for("a fifth is used", || nodes.iter().map(Node::used).sum::<u64>() > QUOTA / 5);
    ways[..2].iter().for_each(|way| way.cut(true));
    wait_for("the cut is seen", || nodes[..2].iter().all(|node| node.scope().starts_with("local since")));
    assert!(nodes[2..].iter().all(|node| node.scope() == "global"));
    let is_over = |node: &Node| node.status()["inbounds"][0]["users"][0]["limited"].is_string();
    wait_for("the quota ends everywhere", || nodes.iter().all(is_over));
    let used: u64 = nodes.iter().map(Node::used).sum();
    // Three nodes reach the store, each at the rate both ways for a second; two have an allowance of 16 MiB.
    let bound = QUOTA + 3 * 2 * RATE + 2 * 16 * MIB;
    println!("used {:.1} MiB of 256, bound {:.1}", used as f64 / MIB as f64, bound as f64 / MIB as f64);
    assert!(used <= bound, "{used} {bound}");
    ways[..2].iter().for_each(|way| way.cut(false));
    wait_for("healed", || nodes.iter().all(|node| node.scope() == "global"));
    let used = || nodes.iter().map(Node::used).sum::<u64>();
    wait_for("the store has it all", || redis.total("ann") == used());
    assert!(nodes.iter().all(is_over));
    for load in loads {
        load.stop();
    }
}

/// Checks 3 and 9: a node is killed at many moments, then goes on from an older copy of itself, then has a clone.
#[test]
#[ignore = "needs redis-server"]
fn killed_older_and_cloned_nodes_count_every_byte_once() {
    let redis = Redis::start();
    let mut node = Node::new(&redis.url(), "quota = \"100GiB\"", "");
    let (client, target) = (Client::new(&[&node]), echo());
    // Bytes that were moved, and those that the node had after its last start.
    let (mut truth, mut kept) = (0, 0);
    for kill in 0..20_u64 {
        assert!(echoed(&mut client.connect(0, 0, target), 30_000));
        truth += 60_000;
        // Between nothing and more than the second after which counters are on disk.
        let pause = Duration::from_millis(150 * (kill % 8) + 7 * kill);
        thread::sleep(pause);
        node.end("KILL");
        node.start();
        let used = node.used();
        assert!(used <= truth, "no byte twice");
        // Bytes of the last second alone may be lost; the machine may be late by half of one.
        assert!(used >= kept, "{used} {kept}");
        assert!(pause < Duration::from_millis(1500) || used == kept + 60_000, "{pause:?}: {used} {kept}");
        kept = used;
        truth = node.used().max(redis.total("ann"));
    }
    wait_for("all is told", || redis.total("ann") >= node.used());
    let (before, used) = (redis.total("ann"), node.used());
    assert!(before >= used && before <= truth, "{before} {used} {truth}");
    // An older copy: new bytes count on top of what the store has.
    node.end("TERM");
    let older = node.save();
    node.start();
    assert!(echoed(&mut client.connect(0, 0, target), 100_000));
    wait_for("more", || redis.total("ann") == before + 200_000);
    node.end("KILL");
    node.restore(&older);
    node.start();
    wait_for("global", || node.scope() == "global");
    assert!(echoed(&mut client.connect(0, 0, target), 500));
    wait_for("on top", || redis.total("ann") == before + 201_000);
    // A machine that was copied while it ran: one of both stops telling, and says so.
    let mut clone = Node::new(&redis.url(), "quota = \"100GiB\"", "");
    clone.end("TERM");
    let files = node.save();
    let names: Vec<_> = clone.save().into_iter().map(|(path, _)| path).collect();
    for (path, bytes) in files {
        let ending =
            |path: &std::path::Path| path.to_string_lossy().split(".state").nth(1).map(str::to_owned);
        let own = names.iter().find(|own| ending(own) == ending(&path));
        own.iter().for_each(|own| std::fs::write(own, &bytes).unwrap());
    }
    let began = Instant::now();
    clone.start();
    wait_for("the clone is found", || clone.scope() == "local" || node.scope() == "local");
    assert!(began.elapsed() < Duration::from_secs(30));
    let second = Client::new(&[&clone]);
    assert!(echoed(&mut second.connect(0, 0, target), 40_000), "it goes on serving");
    // Nothing more comes.
    thread::sleep(Duration::from_secs(3));
    assert_eq!(redis.total("ann"), before + 201_000, "and tells nothing");
}

/// Check 15, of one node: metrics are well formed and few; neither log nor status nor files show the store's password.
#[test]
#[ignore = "needs redis-server and prometheus"]
fn surfaces_show_no_secret_and_well_formed_metrics() {
    let redis = Redis::start();
    let way = Way::to(&redis);
    redis.cli(&["CONFIG", "SET", "requirepass", "s3cret-of-the-store"]);
    let metrics = adit_testkit::unused_addr();
    let mut node = Node::new(&way.url(), "quota = \"1GiB\", addresses = 2", "");
    let path = node.dir.path().join("adit.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    node.end("TERM");
    let text = text.replace("redis://", "redis://:s3cret-of-the-store@");
    std::fs::write(&path, text.replace("[admin]\n", &format!("[admin]\nhttp = \"{metrics}\"\n"))).unwrap();
    node.start();
    let (client, target) = (Client::new(&[&node]), echo());
    wait_for("global", || node.scope() == "global");
    assert!(echoed(&mut client.connect(0, 0, target), 1000));
    let since = Instant::now();
    let text = get(metrics, "/metrics");
    let took = since.elapsed();
    let series = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count();
    println!("{series} series in {took:?}");
    assert!(
        series < 2000 && text.contains("adit_limit_scope{limit=\"addresses\",scope=\"global\"} 1"),
        "{text}"
    );
    let (code, out, err) = crate::support::finish(node.dir.command("promtool", &["check", "metrics"]), &text);
    assert_eq!(code, 0, "{out}{err}");
    prometheus::takes(metrics);
    let status = node.status().to_string();
    let log = node.end("TERM");
    for secret in ["s3cret-of-the-store", KEY] {
        assert!(!log.contains(secret) && !status.contains(secret) && !text.contains(secret), "{secret}");
        for (path, bytes) in node.save() {
            let found = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!found, "{secret} in {}", path.display());
        }
    }
}

fn get(at: std::net::SocketAddr, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split_once("\r\n\r\n").unwrap().1.to_owned()
}
