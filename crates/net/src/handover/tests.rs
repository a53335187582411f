use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::listen::{ListenOptions, listen_datagrams, listen_many};
use crate::udp::divert::{self, Passing, Switch, set_diversion};
use crate::udp::{DatagramBatch, Socket};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn options(owner: &str) -> ListenOptions {
    ListenOptions { owner: owner.into(), ..ListenOptions::default() }
}

#[test]
fn labels_as_text() {
    let label = Label { kind: Kind::Datagrams, key: key(&["a", "b"]), index: 3 };
    assert_eq!(Label::parse(&label.to_string()), Some(label));
    assert_ne!(key(&["a", "b"]), key(&["ab", ""]));
    assert_eq!(key(&[]), 0xcbf2_9ce4_8422_2325);
    let text = label.to_string();
    for at in 0..text.len() {
        let mut flipped = text.clone().into_bytes();
        flipped[at] ^= 1;
        let flipped = String::from_utf8(flipped).unwrap();
        assert_ne!(Label::parse(&flipped), Some(label), "{flipped}");
        assert_eq!(Label::parse(&text[..at]), None, "{at}");
    }
    for text in ["adit.tcp.0.+1", "adit.tcp.00.0000000000000001", "adit.x.0.0000000000000001", "adit"] {
        assert_eq!(Label::parse(text), None, "{text}");
    }
}

#[test]
fn frames_carry_bytes_and_descriptors() {
    let (one, other) = HandoverLink::pair().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let long = vec![7; 300_000];
    let sent = long.clone();
    let sending = std::thread::spawn(move || {
        one.send(b"a", &[socket.as_fd(), socket.as_fd()]).unwrap();
        one.send(&sent, &[]).unwrap();
        one.send(b"", &[]).unwrap();
    });
    let (bytes, passed) = other.receive(PATIENCE).unwrap();
    assert_eq!((bytes.as_slice(), passed.len()), (&b"a"[..], 2));
    let (bytes, passed) = other.receive(PATIENCE).unwrap();
    assert!(bytes == long && passed.is_empty());
    assert!(other.receive(PATIENCE).unwrap().0.is_empty());
    sending.join().unwrap();
    assert_eq!(other.receive(PATIENCE).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    let (one, other) = HandoverLink::pair().unwrap();
    assert_eq!(one.receive(Some(Duration::from_millis(1))).unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(one.send(&vec![0; (16 << 20) + 1], &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    // A length that never comes costs no memory, and one beyond the limit is refused.
    adit_sys::pass::send_with(&other.0, &(16_u32 << 20).to_le_bytes(), &[]).unwrap();
    assert_eq!(one.receive(Some(Duration::from_millis(1))).unwrap_err().kind(), io::ErrorKind::TimedOut);
    let (one, other) = HandoverLink::pair().unwrap();
    adit_sys::pass::send_with(&other.0, &u32::MAX.to_le_bytes(), &[]).unwrap();
    assert_eq!(one.receive(PATIENCE).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_listener_is_taken_for_its_purpose_alone() {
    let made = listen_many(any(), &options("taken"), 2).unwrap();
    let addr = made.addr;
    let mut kept = made.keep().unwrap();
    kept.reverse();
    for (number, kept) in kept.into_iter().enumerate() {
        let adopted = Adopted { label: Some(kept.label()), number: 100 + number };
        adopt(kept.fd, adopted).unwrap();
    }
    // A connection waits in the queue.
    let waiting = TcpStream::connect(addr).unwrap();
    drop(made);
    assert_ne!(listen_many(any(), &options("other"), 1).unwrap().addr, addr, "another owner");
    let again = listen_many(any(), &options("taken"), 3).unwrap();
    assert_eq!((again.addr, again.sockets.len()), (addr, 3));
    let mut taken = taken();
    taken.sort_unstable();
    assert!(taken.windows(2).any(|pair| pair == [100, 101]), "{taken:?}");
    let accepted = again.sockets.iter().find_map(|socket| socket.accept().ok()).unwrap();
    assert_eq!(accepted.1, waiting.local_addr().unwrap());
    let socket = UdpSocket::bind(any()).unwrap();
    let label = Some(Label { kind: Kind::Streams, key: 1, index: 0 });
    assert!(adopt(socket.into(), Adopted { label, number: 0 }).is_err(), "no listener");
    let (pipe, _other) = io::pipe().unwrap();
    assert!(adopt(pipe.into(), Adopted { label: None, number: 0 }).is_err(), "no socket");
    let stream = TcpStream::connect(addr).unwrap();
    assert!(adopt(stream.into(), Adopted { label: None, number: 0 }).is_err(), "a connection");
}

#[test]
fn a_socket_of_a_manager_is_taken_by_its_address() {
    let listener = TcpListener::bind(any()).unwrap();
    let addr = listener.local_addr().unwrap();
    adopt(listener.into(), Adopted { label: None, number: 7 }).unwrap();
    let made = listen_many(addr, &options(""), 1).unwrap();
    assert_eq!(made.addr, addr);
    assert!(listen_many(addr, &options(""), 1).is_err(), "once");
}

/// A socket that has been passed on, from both sides: the datagrams of known clients go to the process that knows them.
#[tokio::test(flavor = "local")]
async fn datagrams_go_to_the_process_that_knows_the_client() {
    let made = listen_datagrams(any(), &options("divert"), 1).unwrap();
    let (addr, kept) = (made.addr, made.keep().unwrap().remove(0));
    let old = Socket::from_std(made.sockets.into_iter().next().unwrap()).unwrap();
    let [known, fresh] = [0; 2].map(|_| UdpSocket::bind(any()).unwrap());
    let (sender, passed) = channel();
    let switch = Switch::default();
    switch.pass(Passing::new(200, sender).unwrap());
    assert_eq!(switch.left(), 1);
    let passing = std::future::poll_fn(|cx| std::task::Poll::Ready(switch.take(cx))).await.unwrap();
    let peers = vec![known.local_addr().unwrap()];
    passing.follow(peers.clone(), |pair, peers| old.pass_on(pair, peers).map(|()| Vec::new())).unwrap();
    let (number, diversion) = passed.recv().unwrap();
    assert_eq!((number, &diversion.peers), (200, &peers));
    let adopted = Adopted { label: Some(kept.label()), number: 200 };
    adopt(kept.fd, adopted).unwrap();
    let taken = listen_datagrams(any(), &options("divert"), 1).unwrap();
    assert_eq!(taken.addr, addr);
    set_diversion(200, diversion).unwrap();
    let socket = taken.sockets.into_iter().next().unwrap();
    let raw = socket.as_raw_fd();
    let new = Socket::listening(socket).unwrap();
    assert!(divert::outlet_of(raw).unwrap().is_none(), "it is the socket's");
    async fn next(socket: &Socket, batch: &mut DatagramBatch) -> Vec<(SocketAddr, Vec<u8>)> {
        std::future::poll_fn(|cx| socket.poll_receive(cx, batch, &mut 0)).await.unwrap();
        let one = |at| batch.get(at).map(|got| (got.from, batch.block[got.range()].to_vec()));
        (0..batch.len()).filter_map(one).collect()
    }
    let (mut batch, mut got_old, mut got_new) = (DatagramBatch::new(), Vec::new(), Vec::new());
    for number in 0..100_u8 {
        known.send_to(&[number; 1300], addr).unwrap();
        fresh.send_to(&[number], addr).unwrap();
        while got_new.len() <= usize::from(number) {
            got_new.extend(next(&new, &mut batch).await);
        }
    }
    while got_old.len() < 100 {
        got_old.extend(next(&old, &mut batch).await);
    }
    let want = |from: &UdpSocket, len: usize| -> Vec<(SocketAddr, Vec<u8>)> {
        (0..100).map(|number| (from.local_addr().unwrap(), vec![number; len])).collect()
    };
    assert!(got_old == want(&known, 1300), "in order, and whole");
    assert!(got_new == want(&fresh, 1));
    assert_eq!(new.follow_earlier(), 1);
    // The client is gone from the old process, which says so.
    old.keep_peers(std::collections::HashSet::new());
    assert_eq!(new.follow_earlier(), 0);
    known.send_to(b"again", addr).unwrap();
    assert_eq!(next(&new, &mut batch).await, [(peers[0], b"again".to_vec())]);
    // The new process dies before it serves: the old one reads again.
    drop(new);
    known.send_to(b"back", addr).unwrap();
    assert_eq!(next(&old, &mut batch).await, [(peers[0], b"back".to_vec())]);
}
