use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use adit_model::Egress;
use adit_sys::udp as sys;
use adit_testkit::{has_ipv6, skipped};

use super::*;
use crate::listen::{ListenOptions, listen_datagrams};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn listener() -> (Socket, SocketAddr) {
    let made = listen_datagrams(LOOPBACK, &ListenOptions::default(), 1).unwrap();
    (Socket::from_std(made.sockets.into_iter().next().unwrap()).unwrap(), made.addr)
}

/// A socket without any of what is tested.
fn plain() -> (StdSocket, SocketAddr) {
    let socket = StdSocket::bind(LOOPBACK).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    sys::set_receive_buffer(&socket, 4 << 20).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

/// Writes datagrams of these lengths into the slots of `batch`, each with bytes of its own.
fn outgoing(batch: &mut DatagramBatch, to: SocketAddr, lens: &[usize]) -> Vec<Outgoing> {
    let mut at = 0;
    let mut all = Vec::new();
    for (n, len) in lens.iter().enumerate() {
        batch.block[at..at + len].fill(u8::try_from(n % 251).unwrap());
        all.push(Outgoing { key: 0, to, from: None, class: 0, start: at, len: *len });
        // Not one behind the other: the kernel gathers them.
        at += len + n % 3;
    }
    all
}

fn received_plainly(socket: &StdSocket, count: usize) -> Vec<(usize, u8)> {
    let mut buffer = vec![0; 65_536];
    let one = |_| {
        let len = socket.recv(&mut buffer).unwrap();
        let byte = buffer[..len].first().copied().unwrap_or(0);
        assert!(buffer[..len].iter().all(|b| *b == byte), "a datagram holds bytes of another one");
        (len, byte)
    };
    (0..count).map(one).collect()
}

async fn received(socket: &Socket, batch: &mut DatagramBatch, count: usize) -> Vec<(usize, u8)> {
    let mut all = Vec::new();
    while all.len() < count {
        let receive = poll_fn(|cx| socket.poll_receive(cx, batch, &mut 0));
        tokio::time::timeout(Duration::from_secs(60), receive).await.expect("in time").unwrap();
        for at in 0..batch.len() {
            let bytes = &batch.block[batch.get(at).unwrap().range()];
            let byte = bytes.first().copied().unwrap_or(0);
            assert!(bytes.iter().all(|b| *b == byte), "a datagram holds bytes of another one");
            all.push((bytes.len(), byte));
        }
    }
    all
}

/// Sizes that try every rule of grouping: equal, falling, rising, empty, and larger than a link's.
fn sizes() -> Vec<usize> {
    let mut lens = vec![100; 70];
    lens.extend([99, 100, 101, 0, 0, 1, 1, 2000, 2000, 2000, 1400, 9000, 65_507, 5]);
    lens.extend((0..40).map(|n| if n % 7 == 0 { 60 } else { 64 }));
    lens
}

fn expected(lens: &[usize]) -> Vec<(usize, u8)> {
    let byte = |n: usize| u8::try_from(n % 251).unwrap();
    lens.iter().enumerate().map(|(n, len)| (*len, if *len == 0 { 0 } else { byte(n) })).collect()
}

#[tokio::test(flavor = "local")]
async fn boundaries_survive_every_way_of_sending_and_receiving() {
    let lens = sizes();
    for ability in [Ability::Segments, Ability::Batches, Ability::Single] {
        let mut batch = DatagramBatch::new();
        let sender = Socket::open(&Egress::default()).unwrap();
        sender.limit_ability(ability);
        let (sink, to) = plain();
        let all = outgoing(&mut batch, to, &lens);
        let sent = sender.send(&mut batch, &all);
        assert_eq!((sent.sent, sent), (lens.len(), Sent { sent: lens.len(), ..Sent::default() }));
        assert_eq!(received_plainly(&sink, lens.len()), expected(&lens), "{ability:?} to a plain socket");

        let (socket, to) = listener();
        socket.limit_ability(ability);
        let all = outgoing(&mut batch, to, &lens);
        sender.send(&mut batch, &all);
        assert_eq!(received(&socket, &mut batch, lens.len()).await, expected(&lens), "{ability:?}");
        sys::set_gro(socket_fd(&socket), true).unwrap();
        let all = outgoing(&mut batch, to, &lens);
        sender.send(&mut batch, &all);
        assert_eq!(received(&socket, &mut batch, lens.len()).await, expected(&lens), "{ability:?} merged");
    }
}

fn socket_fd(socket: &Socket) -> StdSocket {
    use std::os::fd::AsFd;
    socket.fd().as_fd().try_clone_to_owned().unwrap().into()
}

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A socket that nobody watches gives what has come, wakes nobody, and loses nothing of a pause.
#[tokio::test(flavor = "local")]
async fn a_pause_wakes_nobody_and_loses_nothing() {
    let (socket, to) = listener();
    let (sender, _) = plain();
    let mut batch = DatagramBatch::new();
    let send = |byte: u8| sender.send_to(&[byte], to).unwrap();
    assert!(!socket.set_watched(true).unwrap() && socket.set_watched(false).unwrap());
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let mut cx = Context::from_waker(&waker);
    assert!(socket.poll_receive(&mut cx, &mut batch, &mut 0).is_pending());
    send(1);
    // On this machine a datagram is there when its call is over. The loop has its turns meanwhile.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "a datagram of a pause wakes nobody");
    assert!(socket.poll_receive(&mut cx, &mut batch, &mut 0).is_ready());
    assert_eq!(batch.len(), 1);
    send(2);
    assert!(socket.set_watched(true).unwrap());
    assert_eq!(received(&socket, &mut batch, 1).await, [(1, 2)]);
}

#[tokio::test(flavor = "local")]
async fn bulk_of_a_segmenting_sender_is_merged_and_of_a_plain_one_is_not() {
    let (socket, to) = listener();
    let mut batch = DatagramBatch::new();
    let sender = Socket::connect(to, &Egress::default()).unwrap();
    let send = |batch: &mut DatagramBatch| {
        let all = outgoing(batch, to, &[1200; 40]);
        assert_eq!(sender.send(batch, &all).sent, 40);
    };
    for _ in 0..8 {
        send(&mut batch);
        received(&socket, &mut batch, 40).await;
    }
    assert!(socket.merges());
    send(&mut batch);
    received(&socket, &mut batch, 40).await;
    assert_eq!(batch.len(), 40, "one message holds all of them");
    sender.limit_ability(Ability::Batches);
    for _ in 0..8 {
        send(&mut batch);
        received(&socket, &mut batch, 40).await;
    }
    assert!(!socket.merges());
}

#[tokio::test(flavor = "local")]
async fn datagrams_come_from_the_address_that_was_asked_for() {
    let own = Ipv4Addr::new(127, 9, 9, 9);
    let egress = Egress { v4: Some(own), ..Egress::default() };
    let (sink, to) = plain();
    let mut batch = DatagramBatch::new();
    for socket in [Socket::open(&egress).unwrap(), Socket::connect(to, &egress).unwrap()] {
        let all = outgoing(&mut batch, to, &[10, 10, 7]);
        assert_eq!(socket.send(&mut batch, &all).sent, 3);
        for _ in 0..3 {
            assert_eq!(sink.recv_from(&mut [0; 64]).unwrap().1.ip(), own);
        }
    }
}

#[tokio::test(flavor = "local")]
async fn both_families_through_one_socket() {
    if !has_ipv6() {
        return;
    }
    let sink6 = StdSocket::bind("[::1]:0").unwrap();
    let (sink4, to4) = plain();
    let mut batch = DatagramBatch::new();
    let socket = Socket::open(&Egress::default()).unwrap();
    for to in [to4, sink6.local_addr().unwrap()] {
        let all = outgoing(&mut batch, to, &[10, 10, 7]);
        assert_eq!(socket.send(&mut batch, &all).sent, 3);
    }
    assert_eq!(received_plainly(&sink4, 3).len() + received_plainly(&sink6, 3).len(), 6);
    let port = socket.local_addr().unwrap().port();
    sink4.send_to(b"x", (Ipv4Addr::LOCALHOST, port)).unwrap();
    assert_eq!(received(&socket, &mut batch, 1).await.len(), 1);
    assert_eq!(batch.get(0).unwrap().from, to4, "not in mapped form");
}

#[tokio::test(flavor = "local")]
async fn an_unreachable_peer_is_named() {
    let (gone, dead) = plain();
    let mut batch = DatagramBatch::new();
    let socket = Socket::connect(dead, &Egress::default()).unwrap();
    let all = outgoing(&mut batch, dead, &[1]);
    assert_eq!(socket.send(&mut batch, &all).unreachable, None);
    drop(gone);
    assert_eq!(socket.send(&mut batch, &all).unreachable, None);
    let sent = socket.send(&mut batch, &all);
    assert_eq!((sent.sent, sent.failed, sent.unreachable), (1, 0, Some(dead)));
}

#[tokio::test(flavor = "local")]
async fn an_unreachable_destination_is_named_and_harms_no_other() {
    let dead = {
        let (gone, dead) = plain();
        drop(gone);
        dead
    };
    let (sink, alive) = plain();
    let mut batch = DatagramBatch::new();
    let socket = Socket::open(&Egress::default()).unwrap();
    let all = outgoing(&mut batch, dead, &[1]);
    assert_eq!(socket.send(&mut batch, &all).unreachable, None);
    let all = outgoing(&mut batch, alive, &[2, 2, 3]);
    let sent = socket.send(&mut batch, &all);
    assert_eq!((sent.sent, sent.failed, sent.unreachable), (3, 0, Some(dead)));
    assert_eq!(received_plainly(&sink, 3).len(), 3);
    assert_eq!(socket.ability(), Ability::Segments, "nothing is blamed on segments");
}

#[tokio::test(flavor = "local")]
async fn a_destination_that_cannot_be_is_dropped_alone() {
    let (sink, alive) = plain();
    let mut batch = DatagramBatch::new();
    let socket = Socket::open(&Egress::default()).unwrap();
    let mut all = outgoing(&mut batch, alive, &[5, 5, 5, 5, 5, 5]);
    all[2].to.set_port(0);
    all[3].to.set_port(0);
    let sent = socket.send(&mut batch, &all);
    assert_eq!((sent.sent, sent.failed), (4, 2));
    assert_eq!(received_plainly(&sink, 4).len(), 4);
    assert_eq!(socket.ability(), Ability::Segments);
}

#[tokio::test(flavor = "local")]
async fn what_is_too_large_is_reported_with_what_would_fit() {
    let (sink, to) = plain();
    let mut batch = DatagramBatch::new();
    let socket = Socket::connect(to, &Egress::default()).unwrap();
    socket.set_fragmentation(Fragmentation::Forbid).unwrap();
    let all = outgoing(&mut batch, to, &[65_508, 5]);
    let sent = socket.send(&mut batch, &all);
    assert_eq!((sent.sent, sent.too_big, sent.too_big_to), (1, 1, Some((to, 65_508))));
    assert_eq!(received_plainly(&sink, 1)[0].0, 5);
    assert!(Socket::largest_payload(to).unwrap() >= 1472);
}

#[tokio::test(flavor = "local")]
async fn the_kernels_drops_are_counted_once() {
    let (socket, to) = listener();
    sys::set_receive_buffer(socket_fd(&socket), 4096).unwrap();
    let mut batch = DatagramBatch::new();
    let sender = Socket::connect(to, &Egress::default()).unwrap();
    sender.limit_ability(Ability::Batches);
    let (mut lost, mut got) = (0, 0);
    for _ in 0..3 {
        let all = outgoing(&mut batch, to, &[100; 50]);
        assert_eq!(sender.send(&mut batch, &all).sent, 50);
        poll_fn(|cx| socket.poll_receive(cx, &mut batch, &mut lost)).await.unwrap();
        got += batch.len();
    }
    let all = outgoing(&mut batch, to, &[100]);
    sender.send(&mut batch, &all);
    poll_fn(|cx| socket.poll_receive(cx, &mut batch, &mut lost)).await.unwrap();
    assert!(lost > 0);
    assert_eq!(usize::try_from(lost).unwrap() + got, 150);
}

#[test]
fn a_kernel_that_refuses_batches_is_served_one_by_one() {
    // The trial of the system holds for the process: what is tried here is a call that fails later.
    assert_eq!(trial::result().ability, Ability::Segments);
    let run = || {
        // For this thread, for good.
        if let Err(error) = sys::refuse_batches() {
            return skipped(format_args!("no seccomp filter: {error}"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lens = sizes();
            let (socket, to) = listener();
            let mut batch = DatagramBatch::new();
            let sender = Socket::open(&Egress::default()).unwrap();
            let all = outgoing(&mut batch, to, &lens);
            assert_eq!(sender.send(&mut batch, &all).sent, lens.len());
            assert_eq!(received(&socket, &mut batch, lens.len()).await, expected(&lens));
            assert_eq!((sender.ability(), socket.ability()), (Ability::Single, Ability::Single));
            assert_eq!(trial::run(), trial::Trial { ability: Ability::Single, merges: false });
        });
    };
    std::thread::spawn(run).join().unwrap();
}

#[tokio::test(flavor = "local")]
async fn a_route_that_refuses_segments_gets_none_and_loses_nothing() {
    let lens = sizes();
    let mut batch = DatagramBatch::new();
    let (sink, to) = plain();
    let sender = Socket::connect(to, &Egress::default()).unwrap();
    sys::refuse_segments(socket_fd(&sender)).unwrap();
    let all = outgoing(&mut batch, to, &lens);
    assert_eq!(sender.send(&mut batch, &all).sent, lens.len());
    assert_eq!(received_plainly(&sink, lens.len()), expected(&lens));
    assert_eq!(sender.ability(), Ability::Batches, "for good");
}

/// Two network namespaces with a cable between them, gone with this value.
struct Cable {
    left: String,
    right: String,
}

impl Cable {
    /// `None` without the privileges or the program for it.
    fn new(mtu: &str) -> Option<Self> {
        let id = std::process::id();
        let cable = Self { left: format!("adit-udp-l{id}-{mtu}"), right: format!("adit-udp-r{id}-{mtu}") };
        let (l, r) = (cable.left.as_str(), cable.right.as_str());
        let ok = ip(&["netns", "add", l])
            && ip(&["netns", "add", r])
            && ip(&[
                "-n", l, "link", "add", "v", "mtu", mtu, "type", "veth", "peer", "name", "v", "netns", r,
            ])
            && ip(&["-n", r, "link", "set", "v", "mtu", mtu])
            && ip(&["-n", l, "addr", "add", "198.18.0.1/24", "dev", "v"])
            && ip(&["-n", r, "addr", "add", "198.18.0.2/24", "dev", "v"])
            // The trial of what the system can do goes over loopback.
            && ip(&["-n", l, "link", "set", "lo", "up"])
            && ip(&["-n", l, "link", "set", "v", "up"])
            && ip(&["-n", r, "link", "set", "v", "up"]);
        ok.then_some(cable)
    }

    /// Runs one of the roles below in a namespace.
    fn run(&self, namespace: &str, role: &str, offload: bool) -> std::process::Child {
        if !offload {
            // With any device, it is given no more than one segment at a time.
            assert!(ip(&["-n", namespace, "link", "set", "v", "gso_max_segs", "1"]));
            for what in ["tx-udp-segmentation", "gso", "gro", "tx"] {
                // If the program is installed, and for the features that the device has.
                let args = ["netns", "exec", namespace, "ethtool", "-K", "v", what, "off"];
                drop(std::process::Command::new("ip").args(args).output());
            }
        }
        let program = std::env::current_exe().unwrap();
        std::process::Command::new("ip")
            .args(["netns", "exec", namespace])
            .arg(program)
            .env(IN_NAMESPACE, "1")
            .args(["--exact", &format!("udp::tests::{role}"), "--ignored", "--nocapture"])
            .spawn()
            .unwrap()
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.left]);
        ip(&["netns", "del", &self.right]);
    }
}

fn ip(args: &[&str]) -> bool {
    std::process::Command::new("ip").args(args).output().is_ok_and(|output| output.status.success())
}

const SINK: &str = "198.18.0.2:4000";

/// Tells the roles that they have a cable.
const IN_NAMESPACE: &str = "ADIT_TEST_IN_NAMESPACE";

fn is_in_namespace() -> bool {
    let is_in_namespace = std::env::var_os(IN_NAMESPACE).is_some();
    if !is_in_namespace {
        skipped("not in a namespace");
    }
    is_in_namespace
}

#[test]
#[ignore = "needs root and ip"]
fn boundaries_survive_a_real_path_with_and_without_offload() {
    for (mtu, offload) in [("1500", true), ("1500", false), ("1280", true), ("1280", false)] {
        let Some(cable) = Cable::new(mtu) else { return skipped("no network namespaces") };
        let mut sink = cable.run(&cable.right, "role_sink", offload);
        std::thread::sleep(Duration::from_millis(300));
        let sent = cable.run(&cable.left, "role_sender", offload).wait().unwrap();
        assert!(sent.success() && sink.wait().unwrap().success(), "MTU {mtu}, offload {offload}");
    }
}

#[test]
#[ignore = "a part of the test above"]
fn role_sink() {
    if !is_in_namespace() {
        return;
    }
    let sink = StdSocket::bind(SINK).unwrap();
    sink.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    sys::set_receive_buffer(&sink, 4 << 20).unwrap();
    assert_eq!(received_plainly(&sink, sizes().len()), expected(&sizes()));
}

#[tokio::test(flavor = "local")]
#[ignore = "a part of the test above"]
async fn role_sender() {
    if !is_in_namespace() {
        return;
    }
    let to = SINK.parse().unwrap();
    let mut batch = DatagramBatch::new();
    let sender = Socket::open(&Egress::default()).unwrap();
    let lens = sizes();
    let fits = Socket::largest_payload(to).unwrap();
    assert!(fits == 1472 || fits == 1252, "{fits}");
    let all = outgoing(&mut batch, to, &lens);
    let sent = sender.send(&mut batch, &all);
    assert_eq!((sent.sent, sent), (lens.len(), Sent { sent: lens.len(), ..Sent::default() }));
    assert_eq!(sender.ability(), Ability::Segments, "sizes above the path's are no reason to give up");
    // If fragments are forbidden, the large ones are refused, the others leave.
    let strict = Socket::connect(to, &Egress::default()).unwrap();
    strict.set_fragmentation(Fragmentation::Forbid).unwrap();
    let large = lens.iter().filter(|len| **len > fits).count();
    let sent = strict.send(&mut batch, &all);
    assert_eq!((sent.too_big, sent.sent), (large, lens.len() - large));
}
