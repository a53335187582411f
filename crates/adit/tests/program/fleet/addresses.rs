//! Check 13: addresses of a user over three nodes.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::support::{Client, Node, Redis, Way, echoed, wait_for};
use crate::support::echo;

/// A device: one source, which moves bytes over a connection while it is there.
struct Device<'a> {
    client: &'a Client,
    source: usize,
    target: SocketAddr,
    stream: Option<TcpStream>,
}

impl<'a> Device<'a> {
    fn new(client: &'a Client, source: usize, target: SocketAddr) -> Self {
        Self { client, source, target, stream: None }
    }

    /// Moves bytes through a node, over its connection or a new one; whether they came back.
    fn moves(&mut self, node: usize) -> bool {
        if !self.stream.as_mut().is_some_and(|stream| echoed(stream, 100)) {
            let mut stream = self.client.connect(node, self.source, self.target);
            self.stream = echoed(&mut stream, 100).then_some(stream);
        }
        self.stream.is_some()
    }

    /// Whether the connection still passes bytes, without another one.
    fn is_open(&mut self) -> bool {
        self.stream.as_mut().is_some_and(|stream| echoed(stream, 100))
    }
}

#[test]
#[ignore = "needs redis-server"]
fn addresses_hold_over_three_nodes() {
    let redis = Redis::start();
    let ways: Vec<Way> = (0..3).map(|_| Way::to(&redis)).collect();
    let nodes: Vec<Node> = ways.iter().map(|way| Node::new(&way.url(), "addresses = 2", "")).collect();
    let (client, target) = (Client::new(&nodes.iter().collect::<Vec<_>>()), echo());
    let scope = |n: usize| nodes[n].store()["scopes"][1][1].as_str().unwrap_or_default().to_owned();
    wait_for("global", || (0..3).all(|n| scope(n) == "global"));
    let [mut home, mut phone, mut third] = [0, 1, 2].map(|source| Device::new(&client, source, target));
    assert!(home.moves(0) && phone.moves(1));
    // A hundred reconnects are one source.
    for _ in 0..100 {
        assert!(echoed(&mut client.connect(0, 0, target), 10));
    }
    // More than a synchronisation: both stay.
    thread::sleep(Duration::from_secs(2));
    assert!(home.moves(0) && phone.moves(1));
    // A third person comes to the third node: its connection ends within a synchronisation, and it stays out.
    let came = Instant::now();
    let was_let_in = third.moves(2);
    wait_for("the third is cut off", || {
        assert!(home.is_open() && phone.is_open(), "the first ones stay");
        !third.is_open()
    });
    println!("third person: let in {was_let_in}, out after {:?}", came.elapsed());
    assert!(came.elapsed() < Duration::from_secs(4));
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(500));
        assert!(home.is_open() && phone.is_open() && !third.moves(2));
    }
    // The phone goes from Wi-Fi to mobile, and from the second node to the third.
    phone.stream = None;
    let left = Instant::now();
    let mut mobile = Device::new(&client, 3, target);
    wait_for("the phone is there again", || home.is_open() && mobile.moves(2));
    println!("switch of network and node: {:?}", left.elapsed());
    assert!(left.elapsed() < Duration::from_secs(14));
    for _ in 0..4 {
        thread::sleep(Duration::from_secs(1));
        assert!(home.is_open(), "the other device stays");
        assert!(mobile.is_open(), "and this one");
    }
    // Without the store each node counts its own.
    ways.iter().for_each(|way| way.cut(true));
    wait_for("local", || (0..3).all(|n| scope(n).starts_with("local since")));
    assert!(third.moves(1) && home.is_open() && mobile.is_open());
    // With it one of both has to go: the one that came last, and the third had come before, two minutes ago at most.
    ways.iter().for_each(|way| way.cut(false));
    let mut open = [true, true];
    wait_for("one of three is cut off", || {
        assert!(home.is_open());
        open = [mobile.is_open(), third.is_open()];
        open != [true, true]
    });
    assert_ne!(open, [false, false]);
}
