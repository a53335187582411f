//! Users that the store lists.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use adit_model::{Secret, Store};
use adit_net::rt;

use super::super::*;
use super::support::{Node, Redis, begin_at, wait_for};
use crate::panel::{Listed, UserList};

const KEY: &str = "bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=";

fn store_of(redis: &Redis) -> Store {
    Store { users_key: Some(Secret::new(KEY)), ..redis.store() }
}

fn put(store: &Store, name: &str, secret: &str) {
    let user = Listed { secret: secret.into(), ..Listed::default() };
    change(store, name, &StoreChange::Put(user)).unwrap();
}

fn listed(shared: &StoreShared) -> Arc<UserList> {
    shared.report().list.clone().unwrap()
}

fn secret(shared: &StoreShared, name: &str) -> Option<String> {
    listed(shared).users.get(name).map(|user| user.secret.to_string())
}

fn forget_copy(id: &str) {
    let path = std::env::temp_dir().join(format!("adit-store-users-{id}-{}", std::process::id()));
    drop(std::fs::remove_file(path));
}

#[test]
#[ignore = "needs redis-server"]
fn users_of_the_store_and_their_changes() {
    let mut redis = Redis::start("users");
    let store = store_of(&redis);
    for n in 0..300 {
        put(&store, &format!("u{n}"), &format!("secret {n}"));
    }
    let node = Node::default();
    let (shared, stop) = begin_at(store.clone(), &node, "users");
    wait_for("all users", || listed(&shared).users.len() == 300);
    assert_eq!(secret(&shared, "u7").unwrap(), "secret 7");
    // Nothing in the store tells a secret.
    let dump = redis.cli(&["HGETALL", "adit:f:u:{5}"]);
    assert!(dump.contains("credential") && !dump.contains("secret "), "{dump}");
    // A change, a new one and one less hold within two looks.
    let since = rt::now();
    put(&store, "u7", "another");
    put(&store, "new", "n");
    assert_eq!(change(&store, "u8", &StoreChange::Remove), Ok(true));
    assert_eq!(change(&store, "nobody", &StoreChange::Remove), Ok(false));
    wait_for("changes", || secret(&shared, "u7").as_deref() == Some("another"));
    wait_for("changes", || secret(&shared, "new").is_some() && secret(&shared, "u8").is_none());
    let took = rt::now() - since;
    println!("changes held after {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    let lists = node.0.lock().unwrap().lists;
    assert!(lists <= 4, "whole lists are not read for a change: {lists}");
    // A log that was trimmed past the last entry that is known: all users are read anew.
    put(&store, "late", "l");
    redis.cli(&["DEL", "adit:f:log"]);
    wait_for("the list after the loss of the log", || secret(&shared, "late").is_some());
    // A record that somebody without the key has written changes nothing.
    let forged = redis.cli(&["HGET", &record::user_key("f", "u1"), "u1"]);
    redis.cli(&["HSET", &record::user_key("f", "u2"), "u2", &forged]);
    redis.cli(&["XADD", "adit:f:log", "*", "user", "u2", "version", "9", "op", "put"]);
    // More than two looks: nothing changes.
    thread::sleep(Duration::from_secs(5));
    assert_eq!(secret(&shared, "u2").unwrap(), "secret 2");
    // A store that has lost everything lists nobody, and takes nobody away.
    redis.cli(&["FLUSHALL"]);
    // More than two looks: nothing changes.
    thread::sleep(Duration::from_secs(5));
    assert_eq!(listed(&shared).users.len(), 301);
    // Away: users stay, and a start knows them.
    redis.stop();
    drop((stop, shared));
    let (shared, _stop) = begin_at(store, &Node::default(), "users");
    assert_eq!(listed(&shared).users.len(), 301);
    wait_for("away", || shared.report().away_since.is_some());
    assert_eq!(secret(&shared, "new").unwrap(), "n");
    forget_copy("users");
}

#[test]
#[ignore = "needs redis-server"]
fn another_key_opens_nothing_and_totals_go_on() {
    let redis = Redis::start("users-key");
    put(&store_of(&redis), "ann", "a");
    let other = Secret::new("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    let wrong = Store { users_key: Some(other), ..store_of(&redis) };
    assert_eq!(list(&wrong).unwrap().1, 1);
    let node = Node::default();
    let (shared, _stop) = begin_at(wrong, &node, "other");
    node.spend("ann", 1000);
    wait_for("totals", || redis.total("ann") == 1000);
    assert_eq!(listed(&shared).users.len(), 0);
    assert!(shared.report().away_since.is_none());
    // Another format is left alone.
    redis.cli(&["HSET", "adit:f:meta", "format", "2"]);
    let refused = change(&store_of(&redis), "bob", &StoreChange::Remove).unwrap_err();
    assert!(refused.contains("another format"), "{refused}");
    let (found, left_out) = list(&store_of(&redis)).unwrap();
    assert_eq!((found.len(), left_out), (1, 0));
    forget_copy("other");
}

/// An empty list, and one that has lost more than half of many users, waits for another reading a minute later.
#[test]
#[ignore = "needs redis-server; over a minute"]
fn a_list_that_lost_many_waits() {
    let redis = Redis::start("users-lost");
    let store = store_of(&redis);
    (0..120).for_each(|n| put(&store, &format!("u{n}"), "s"));
    let (shared, _stop) = begin_at(store.clone(), &Node::default(), "lost");
    wait_for("all users", || listed(&shared).users.len() == 120);
    for bucket in 0..64 {
        redis.cli(&["DEL", &record::bucket_key("f", bucket)]);
    }
    put(&store, "last", "l");
    redis.cli(&["DEL", "adit:f:log"]);
    let since = rt::now();
    wait_for("the wait", || shared.report().list_waits_since.is_some());
    assert_eq!(listed(&shared).users.len(), 120);
    while listed(&shared).users.len() == 120 {
        assert!(rt::now() < since + Duration::from_secs(90));
        thread::sleep(Duration::from_millis(200));
    }
    let took = rt::now() - since;
    assert!(took > Duration::from_secs(55), "{took:?}");
    assert_eq!(listed(&shared).users.keys().map(|name| &**name).collect::<Vec<_>>(), ["last"]);
    forget_copy("lost");
}

/// The access lists of docs/fleet.md are enough for a node, and for `adit store`.
#[test]
#[ignore = "needs redis-server"]
fn the_documented_access_list_is_enough() {
    let redis = Redis::start("users-acl");
    let store = store_of(&redis);
    put(&store, "ann", "a");
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fleet.md"));
    let commands = |begin: &str| -> Vec<String> {
        let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("{begin}"));
        let (_, rest) = rest.split_once('`').unwrap();
        let (list, _) = rest.split_once('`').unwrap();
        list.split_whitespace().map(str::to_owned).collect()
    };
    let of_nodes = [
        commands("With an access list, a node needs"),
        commands("A node of a replay group needs"),
        commands("A node needs"),
    ]
    .concat();
    let allow = |more: &[String]| {
        let fixed = ["ACL", "SETUSER", "default", "resetkeys", "~adit:f:*", "-@all", "+acl"];
        let words = fixed.into_iter().chain(of_nodes.iter().chain(more).map(String::as_str));
        assert_eq!(redis.cli(&words.collect::<Vec<_>>()), "OK");
    };
    allow(&[]);
    let node = Node::default();
    let (shared, _stop) = begin_at(store.clone(), &node, "acl");
    node.spend("bob", 1000);
    wait_for("users", || secret(&shared, "ann").as_deref() == Some("a"));
    wait_for("totals", || node.0.lock().unwrap().may("bob").is_some());
    assert!(shared.report().calls.keys().all(|(_, result)| *result == "ok"), "{:?}", shared.report().calls);
    let user = Listed { secret: "x".into(), ..Listed::default() };
    let refused = change(&store, "eve", &StoreChange::Put(user)).unwrap_err();
    assert!(refused.contains("NOPERM"), "{refused}");
    allow(&commands("the machine with `adit store` needs"));
    put(&store, "eve", "e");
    wait_for("the new user", || secret(&shared, "eve").is_some());
    forget_copy("acl");
}
