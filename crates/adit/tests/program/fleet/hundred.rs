//! Check 15: a hundred nodes, each a process with one inbound and one event loop, against one panel and one store.
//!
//! ```text
//!   ADIT_FLEET_BINARY=/path/to/release/adit cargo test -p adit --test program -- --ignored --nocapture fleet::hundred
//! ```

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::rig::{Fleet, Kind, Plan, meter, moves, users};
use super::support::Redis;

const NODES: usize = 100;
/// Users that move bytes on each node.
const USERS: usize = 10;
/// Time between two requests to the panel, two reports of addresses, two synchronisations, and two words about a source that
/// stays, in seconds.
const PANEL_S: f64 = 60.0;
const ALIVE_S: f64 = 50.0;
const STORE_S: f64 = 5.0;
const SOURCE_S: f64 = 60.0;
const WARM: Duration = Duration::from_secs(75);
const WINDOW: Duration = Duration::from_secs(180);

/// Calls of commands so far.
fn commands(redis: &Redis) -> BTreeMap<String, u64> {
    let calls = |line: &str| -> Option<(String, u64)> {
        let (name, rest) = line.trim().strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    redis.cli(&["INFO", "commandstats"]).lines().filter_map(calls).collect()
}

/// Every user of every node moves some bytes between two synchronisations, until it is told to stop.
fn keep_moving(mut streams: Vec<TcpStream>, stop: Arc<AtomicBool>) -> thread::JoinHandle<bool> {
    thread::spawn(move || {
        let mut all = true;
        while !stop.load(Ordering::Relaxed) {
            let next = Instant::now() + Duration::from_secs(4);
            all &= streams.iter_mut().all(|stream| moves(stream, [20, 20]));
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        all
    })
}

/// Requests by operation and calls of the store per second beside those that are planned, as lines for a person; and those that
/// are off by more than a fifth.
fn run(kind: Kind, expected: &[(&str, f64)]) -> (String, Vec<String>) {
    let redis = Redis::start();
    let head = format!("cores = 1\n[store]\nurl = \"{}\"\nfleet = \"test\"\n", redis.url());
    let plan = Plan { kind, nodes: NODES, users: users(0..USERS), driven: USERS, head: &head, keys: "" };
    let fleet = Fleet::start(plan);
    let (target, stop) = (meter(), Arc::<AtomicBool>::default());
    let streams = (0..NODES).flat_map(|n| (0..USERS).map(move |u| (n, u)));
    let moving = keep_moving(streams.map(|(n, u)| fleet.connect(n, u, target)).collect(), stop.clone());
    // The beginning is not measured.
    thread::sleep(WARM);
    let before = (fleet.panel.state().requests.clone(), commands(&redis), Instant::now());
    // The time over which it is measured.
    thread::sleep(WINDOW);
    let after = (fleet.panel.state().requests.clone(), commands(&redis));
    let seconds = before.2.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    assert!(moving.join().unwrap(), "everybody was served all the time");
    let (mut lines, mut wrong) = (String::new(), Vec::new());
    let mut compare = |what: &str, rate: f64, planned: f64| {
        let off = (rate / planned - 1.0) * 100.0;
        lines += &format!("{kind:?} {what}: {rate:.2}/s, planned {planned:.2}/s ({off:+.1} %)\n");
        if off.abs() > 20.0 {
            wrong.push(what.to_owned());
        }
    };
    let count = |all: &BTreeMap<&str, u64>, name: &str| all.get(name).copied().unwrap_or(0);
    for (operation, every) in expected {
        let requests = count(&after.0, operation) - count(&before.0, operation);
        compare(operation, requests as f64 / seconds, NODES as f64 / every);
    }
    let all = (after.0.values().sum::<u64>() - before.0.values().sum::<u64>()) as f64 / seconds;
    let planned: f64 = expected.iter().map(|(_, every)| NODES as f64 / every).sum();
    compare("requests to the panel", all, planned);
    let rate = |name: &str| {
        let of = |all: &BTreeMap<String, u64>| all.get(name).copied().unwrap_or(0);
        (of(&after.1) - of(&before.1)) as f64 / seconds
    };
    compare("synchronisations", rate("zadd"), NODES as f64 / STORE_S);
    // One call for each bucket whose users have moved, and one each minute for each bucket with sources. With 1,000 users in
    // motion that is 64 of 64 buckets: 14 calls a second and node.
    let buckets = |of: &str| {
        let keys = redis.cli(&["--scan", "--pattern", &format!("adit:test:{of}:*")]);
        let bucket = |key: &str| key.split(':').nth(3).map(str::to_owned);
        keys.lines().filter_map(bucket).collect::<std::collections::BTreeSet<_>>().len() as f64
    };
    let (merged, seen) = (buckets("use"), buckets("src"));
    assert!(seen > 0.0 && (kind != Kind::Hooks || merged > 0.0));
    compare("script calls", rate("evalsha"), NODES as f64 * (merged / STORE_S + seen / SOURCE_S));
    (lines, wrong)
}

/// Four of the six requests that are usual a minute: adit asks for no counts of addresses and tells no load.
#[test]
#[ignore = "needs redis-server, a release binary and five minutes"]
fn a_hundred_nodes_at_a_panel_of_uniproxy() {
    let (lines, wrong) =
        run(Kind::UniProxy, &[("config", PANEL_S), ("user", PANEL_S), ("push", PANEL_S), ("alive", ALIVE_S)]);
    println!("{lines}");
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
#[ignore = "needs redis-server, a release binary and five minutes"]
fn a_hundred_nodes_at_a_panel_of_version_2() {
    let (lines, wrong) = run(Kind::Xboard, &[("config", PANEL_S), ("user", PANEL_S), ("report", PANEL_S)]);
    println!("{lines}");
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
#[ignore = "needs redis-server, a release binary and five minutes"]
fn a_hundred_nodes_with_quotas_at_a_panel_of_hooks() {
    let (lines, wrong) = run(Kind::Hooks, &[("users", PANEL_S), ("usage", PANEL_S)]);
    println!("{lines}");
    assert!(wrong.is_empty(), "{wrong:?}");
}
