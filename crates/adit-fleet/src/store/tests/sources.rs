//! Sources of users over several nodes.

use std::net::IpAddr;

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
