//! Sources of users over several nodes.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use super::super::UserSources;
use super::support::{Node, Redis, begin, wait_for};

fn here(node: &Node, user: &str, sources: &[(&str, u64, u64)], is_waiting: bool) {
    let sources = sources.iter().map(|(ip, silent, age)| (ip.parse().unwrap(), *silent, *age)).collect();
    node.0.lock().unwrap().here.insert(user.into(), UserSources { most: 2, sources, is_waiting });
}

fn everywhere(node: &Node, user: &str) -> Vec<IpAddr> {
    let accounts = node.0.lock().unwrap();
    accounts.everywhere.get(user).into_iter().flatten().map(|(source, _)| *source).collect()
}

#[test]
#[ignore = "needs redis-server"]
fn sources_of_all_nodes_come_in_order_of_arrival() {
    let mut redis = Redis::start("sources");
    let nodes = [Node::default(), Node::default(), Node::default()];
    here(&nodes[0], "ann", &[("192.0.2.1", 0, 5)], false);
    here(&nodes[1], "ann", &[("192.0.2.2", 1, 50), ("2001:db8::", 0, 20)], false);
    let wanted: [IpAddr; 3] = ["192.0.2.2", "2001:db8::", "192.0.2.1"].map(|ip| ip.parse().unwrap());
    let _first = begin(&redis, &nodes[0], "a");
    wait_for("its own", || everywhere(&nodes[0], "ann") == wanted[2..]);
    let _second = begin(&redis, &nodes[1], "b");
    wait_for("all sources", || everywhere(&nodes[1], "ann") == wanted);
    // There was room, as far as the first node knew. It asks again when its own sources change, and at each
    // synchronisation from then on, since there are as many as may be.
    here(&nodes[0], "ann", &[("192.0.2.1", 0, 6), ("192.0.2.3", 0, 0)], false);
    wait_for("the others", || everywhere(&nodes[0], "ann").len() == 4);
    here(&nodes[0], "ann", &[("192.0.2.1", 0, 7)], false);
    // A node without sources of the user asks when one is refused.
    here(&nodes[2], "ann", &[], true);
    let _third = begin(&redis, &nodes[2], "c");
    wait_for("the third node knows", || everywhere(&nodes[2], "ann").starts_with(&wanted));
    here(&nodes[2], "ann", &[], false);
    // A store that has lost everything is told again; silence is that of the store's clock.
    here(&nodes[0], "ann", &[("192.0.2.1", 30, 35)], false);
    redis.cli(&["FLUSHALL"]);
    wait_for("silence", || {
        let accounts = nodes[1].0.lock().unwrap();
        let ann = accounts.everywhere["ann"].iter().find(|(source, _)| *source == wanted[2]);
        ann.is_some_and(|(_, silent)| (30..40).contains(silent))
    });
    // Without the store each node counts its own.
    redis.stop();
    wait_for("alone", || nodes.iter().all(|node| node.0.lock().unwrap().is_alone));
}

/// A node that tells its source first does not know of sources that came before on other nodes, and were told later.
#[test]
#[ignore = "needs redis-server"]
fn a_source_that_was_told_too_early_is_looked_at_again() {
    let redis = Redis::start("early");
    let nodes = [Node::default(), Node::default(), Node::default()];
    let threads: Vec<_> =
        nodes.iter().enumerate().map(|(n, node)| begin(&redis, node, &format!("node{n}"))).collect();
    wait_for("in step", || threads.iter().all(|(shared, _)| shared.report().synced_at.is_some()));
    here(&nodes[2], "ann", &[("192.0.2.3", 0, 0)], false);
    wait_for("its own", || everywhere(&nodes[2], "ann").len() == 1);
    let told = adit_net::rt::now();
    // Both came before it, by more than it takes a busy machine to tell.
    here(&nodes[0], "ann", &[("192.0.2.1", 0, 30)], false);
    here(&nodes[1], "ann", &[("192.0.2.2", 0, 30)], false);
    wait_for("the third knows that it is one too many", || everywhere(&nodes[2], "ann").len() == 3);
    let took = adit_net::rt::now() - told;
    println!("one source too many was known after {took:?}");
    assert!(took < Duration::from_secs(4), "{took:?}");
    let [third] = ["192.0.2.3"].map(|ip| ip.parse::<IpAddr>().unwrap());
    assert_eq!(everywhere(&nodes[2], "ann").last(), Some(&third));
    // A limit that was lowered is held, too.
    for node in &nodes {
        here(node, "bob", &[], false);
    }
    let many = |node: &Node, ip: &str, most: u32| {
        let sources = vec![(ip.parse().unwrap(), 0, 100)];
        let here = UserSources { most, sources, is_waiting: false };
        node.0.lock().unwrap().here.insert("bob".into(), here);
    };
    let [ip0, ip1, ip2] = ["192.0.2.10", "192.0.2.11", "192.0.2.12"];
    many(&nodes[2], ip2, 9);
    wait_for("its own", || everywhere(&nodes[2], "bob").len() == 1);
    // More than it takes a busy machine to tell.
    thread::sleep(Duration::from_secs(4));
    many(&nodes[0], ip0, 9);
    many(&nodes[1], ip1, 9);
    // More than it takes a busy machine to tell.
    thread::sleep(Duration::from_secs(4));
    assert_eq!(everywhere(&nodes[2], "bob").len(), 1, "there is room, and nobody asks");
    many(&nodes[2], ip2, 2);
    let lowered = adit_net::rt::now();
    wait_for("the others under the lower limit", || everywhere(&nodes[2], "bob").len() == 3);
    assert!(adit_net::rt::now() - lowered < Duration::from_secs(3));
}
