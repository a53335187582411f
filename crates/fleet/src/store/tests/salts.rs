//! Salts of a replay group.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use adit_model::{ReplayGroup, Secret, Store};

use super::super::*;
use super::support::{Node, Redis, begin_at, wait_for};

const KEY: &str = "adit:f:salt:eu";

fn store_of(redis: &Redis, group: &str) -> Store {
    let key = Secret::new("bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=");
    Store { replay: Some(ReplayGroup { name: group.into(), key }), ..redis.store() }
}

fn accept(node: &Node, recent: impl IntoIterator<Item = u64>, lasting: impl IntoIterator<Item = u64>) {
    let mut accounts = node.0.lock().unwrap();
    accounts.salts.recent.extend(recent);
    accounts.salts.lasting.extend(lasting);
}

fn learned(node: &Node) -> BTreeSet<(bool, u64)> {
    node.0.lock().unwrap().learned.clone()
}

#[test]
#[ignore = "needs redis-server"]
fn salts_are_told_to_the_group_and_read_back() {
    let redis = Redis::start("salts");
    let store = store_of(&redis, "eu");
    let [a, b, other] = [Node::default(), Node::default(), Node::default()];
    let (first, stop) = begin_at(store.clone(), &a, "a");
    let (_second, _stop_b) = begin_at(store.clone(), &b, "b");
    let (_third, _stop_c) = begin_at(store_of(&redis, "us"), &other, "c");
    accept(&a, [1, 2], [3]);
    accept(&b, [], [u64::MAX]);
    wait_for("b knows the salts of a", || learned(&b) == BTreeSet::from([(true, 1), (true, 2), (false, 3)]));
    wait_for("a knows that of b", || learned(&a) == BTreeSet::from([(false, u64::MAX)]));
    let report = |shared: &StoreShared| shared.report().replay.clone().unwrap();
    wait_for("the report", || report(&first).told == 3);
    assert!(report(&first).is_whole && report(&first).nodes == 1 && report(&first).learned == 1);
    assert!(learned(&other).is_empty(), "another group");
    // Entries that others leave there do no harm.
    for entry in [["n", "x"], ["l", "short"], ["i", ""]] {
        redis.cli(&["XADD", KEY, "*", entry[0], entry[1]]);
    }
    // A start reads all of it back, own salts too.
    drop(stop);
    let again = Node::default();
    let (_again, _stop) = begin_at(store, &again, "a");
    let all = BTreeSet::from([(true, 1), (true, 2), (false, 3), (false, u64::MAX)]);
    wait_for("the stream is read back", || learned(&again) == all);
}

#[test]
#[ignore = "needs redis-server"]
fn salts_wait_for_a_store_that_is_away() {
    let mut redis = Redis::start("salts-away");
    let store = store_of(&redis, "eu");
    let [a, b] = [Node::default(), Node::default()];
    let (first, _stop) = begin_at(store.clone(), &a, "a");
    let (_second, _stop_b) = begin_at(store, &b, "b");
    accept(&a, [1], []);
    wait_for("b knows it", || learned(&b).len() == 1);
    redis.stop();
    accept(&a, [2], [3]);
    wait_for("it is away", || first.report().away_since.is_some());
    assert!(first.report().replay.as_ref().unwrap().counts.queued <= 2);
    redis.restart();
    wait_for("b knows the others", || {
        learned(&b).is_superset(&BTreeSet::from([(true, 1), (true, 2), (false, 3)]))
    });
    // A store whose clock was set back, or that is another one: its entries are older than those that were read.
    redis.cli(&["XADD", KEY, "99999999999999-0", "l", "12345678"]);
    wait_for("the entry of the time to come", || {
        learned(&b).contains(&(false, u64::from_le_bytes(*b"12345678")))
    });
    redis.cli(&["DEL", KEY]);
    accept(&a, [4], []);
    accept(&b, [5], []);
    wait_for("both begin anew", || learned(&b).contains(&(true, 4)) && learned(&a).contains(&(true, 5)));
}

/// 300,000 salts at once: each node tells some ten thousand at a time, and the stream is trimmed.
#[test]
#[ignore = "needs redis-server"]
fn a_flood_of_salts_is_bounded() {
    let redis = Redis::start("salts-flood");
    let store = store_of(&redis, "eu");
    let [a, b] = [Node::default(), Node::default()];
    let (_first, _stop) = begin_at(store.clone(), &a, "a");
    let (second, _stop_b) = begin_at(store, &b, "b");
    accept(&a, 0..300_000, []);
    wait_for("b knows all of them", || learned(&b).len() == 300_000);
    // 128 in an entry, 64 entries at a time.
    let entries: u64 = redis.cli(&["XLEN", KEY]).parse().unwrap();
    assert!((300_000_u64.div_ceil(128)..2500).contains(&entries), "{entries}");
    let bytes: u64 = redis.cli(&["MEMORY", "USAGE", KEY]).parse().unwrap();
    println!("{entries} entries take {bytes} bytes, {:.1} a salt", bytes as f64 / 300_000.0);
    assert!(bytes < 12 * 300_000, "{bytes}");
    // One who writes more: the stream ends at its bound with the next entry of a node.
    let script = "for i = 1, 70000 do redis.call('XADD', KEYS[1], '*', 'l', '12345678') end";
    redis.cli(&["EVAL", script, "1", KEY]);
    accept(&a, [], [7]);
    wait_for("the entry of a", || learned(&b).contains(&(false, 7)));
    let entries: u64 = redis.cli(&["XLEN", KEY]).parse().unwrap();
    assert!(entries < 65_536 + 200, "{entries}");
    assert!(second.report().away_since.is_none());
}

/// Rights for totals alone: the replay group says so, and the rest goes on.
#[test]
#[ignore = "needs redis-server"]
fn a_refusal_of_salts_is_shown_and_stops_nothing_else() {
    let redis = Redis::start("salts-acl");
    let refuse = ["ACL", "SETUSER", "default", "-xadd", "-xrange"];
    assert_eq!(redis.cli(&refuse), "OK");
    let node = Node::default();
    let (shared, _stop) = begin_at(store_of(&redis, "eu"), &node, "a");
    accept(&node, [1], []);
    node.spend("ann", 1000);
    wait_for("the refusal", || {
        shared.report().replay.as_ref().is_some_and(|replay| {
            replay.refused.as_ref().is_some_and(|why| why.contains("NOPERM")) && !replay.is_whole
        })
    });
    wait_for("totals", || redis.total("ann") == 1000);
    // The store does not count as away for it.
    thread::sleep(Duration::from_millis(600));
    assert!(shared.report().away_since.is_none());
}
