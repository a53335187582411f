//! The store's thread against a real redis-server.

mod cluster;
mod fleet;
mod salts;
mod sources;
pub(super) mod support;
mod users;

use std::thread;
use std::time::{Duration, Instant};

use self::support::{Node, QUOTA, Redis, begin, wait_for};

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
    assert_eq!(first.report().resyncs, 1);
    // The first node comes back with an older copy of its state.
    drop(stop);
    wait_for("its end", || std::sync::Arc::strong_count(&nodes[0].0) == 1);
    nodes[0].0.lock().unwrap().used.insert("ann".into(), 400_000);
    let (_again, _stop) = begin(&redis, &nodes[0], "a");
    // Bytes of before the first word of the store count, too.
    thread::sleep(Duration::from_millis(200));
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
