use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use adit_testkit::{has_ipv6, skipped};

use super::*;

fn v4() -> UdpSocket {
    #[expect(clippy::disallowed_methods, reason = "tests of the calls below adit-net")]
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

fn v6() -> Option<UdpSocket> {
    #[expect(clippy::disallowed_methods, reason = "tests of the calls below adit-net")]
    UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok()
}

fn addr(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().unwrap()
}

fn head(to: SocketAddr) -> Head {
    Head { to: Some(to), from: None, class: 0, segment: None }
}

/// Receives until `count` messages are there: loopback delivers at once, other paths do not.
fn receive(socket: &UdpSocket, receiver: &mut Receiver, count: usize) -> Vec<(Meta, Vec<u8>)> {
    let mut all = Vec::new();
    for _ in 0..500 {
        let mut block = vec![vec![0; 65_536]; 8];
        let received = receiver.receive(socket, block.iter_mut().map(|b| &mut b[..])).unwrap_or(0);
        for (at, bytes) in block.into_iter().enumerate().take(received) {
            let meta = receiver.meta(at).unwrap();
            all.push((meta, bytes[..meta.len].to_vec()));
        }
        if all.len() >= count {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    all
}

#[test]
fn many_messages_in_one_call_keep_their_boundaries() {
    let (a, b) = (v4(), v4());
    let (mut sender, mut receiver) = (Sender::new(8), Receiver::new(8));
    let payloads: [&[u8]; 4] = [b"one", b"", b"three", &[7; 9000]];
    let messages = payloads.iter().map(|p| (head(addr(&b)), std::iter::once(*p)));
    assert_eq!(sender.send(&a, messages).unwrap(), 4);
    let got = receive(&b, &mut receiver, 4);
    assert_eq!(got.len(), 4);
    for ((meta, bytes), payload) in got.iter().zip(payloads) {
        assert_eq!((meta.from, &bytes[..]), (addr(&a), payload));
        assert_eq!((meta.stride, meta.truncated, meta.dropped), (None, false, None));
    }
    let nothing = receiver.receive(&b, std::iter::once(&mut [0; 10][..])).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn one_message_at_a_time() {
    let (a, b) = (v4(), v4());
    let (mut sender, mut receiver) = (Sender::new(8), Receiver::new(8));
    a.connect(addr(&b)).unwrap();
    let connected = Head { to: None, from: None, class: 0, segment: None };
    let parts = [&b"he"[..], b"llo"];
    assert_eq!(sender.send_one(&a, std::iter::once((connected, parts.into_iter()))).unwrap(), 1);
    let mut buffer = [0; 4];
    b.peek_from(&mut buffer).unwrap();
    assert_eq!(receiver.receive_one(&b, &mut buffer).unwrap(), 1);
    let meta = receiver.meta(0).unwrap();
    assert_eq!((&buffer, meta.len, meta.truncated), (b"hell", 4, true));
}

#[test]
fn segments_are_cut_and_merged_at_their_boundaries() {
    let (a, b) = (v4(), v4());
    if !knows_segments(&a) {
        return skipped("no UDP_SEGMENT on this kernel");
    }
    let (mut sender, mut receiver) = (Sender::new(8), Receiver::new(8));
    let whole: Vec<u8> = (0..350).map(|n| (n % 251) as u8).collect();
    let parts = [&whole[..100], &whole[100..200], &whole[200..300], &whole[300..]];
    let cut = Head { segment: Some(100), ..head(addr(&b)) };
    assert_eq!(sender.send(&a, std::iter::once((cut, parts.into_iter()))).unwrap(), 1);
    let got = receive(&b, &mut receiver, 4);
    assert_eq!(got.iter().map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>(), parts);

    set_gro(&b, true).unwrap();
    assert_eq!(sender.send(&a, std::iter::once((cut, parts.into_iter()))).unwrap(), 1);
    let got = receive(&b, &mut receiver, 1);
    assert_eq!((got[0].0.stride, &got[0].1), (Some(100), &whole));
    set_gro(&b, false).unwrap();
    assert_eq!(sender.send(&a, std::iter::once((cut, parts.into_iter()))).unwrap(), 1);
    assert_eq!(receive(&b, &mut receiver, 4).len(), 4);
}

#[test]
fn destination_class_and_source_are_carried() {
    let (a, b) = (v4(), v4());
    report_destination(&b, false).unwrap();
    report_class(&b, false).unwrap();
    let (mut sender, mut receiver) = (Sender::new(1), Receiver::new(1));
    let marked = Head { class: 0b1010_0010, from: Some(Ipv4Addr::LOCALHOST.into()), ..head(addr(&b)) };
    sender.send(&a, std::iter::once((marked, std::iter::once(&b"x"[..])))).unwrap();
    let (meta, _) = receive(&b, &mut receiver, 1)[0];
    assert_eq!((meta.class, meta.to), (0b1010_0010, Some(Ipv4Addr::LOCALHOST.into())));

    let Some(c) = v6() else { return skipped("no sockets of IPv6") };
    report_destination(&c, true).unwrap();
    report_class(&c, true).unwrap();
    let port = addr(&c).port();
    let to_v4 = Head { class: 2, ..head((Ipv4Addr::LOCALHOST, port).into()) };
    sender.send(&a, std::iter::once((to_v4, std::iter::once(&b"x"[..])))).unwrap();
    let (meta, _) = receive(&c, &mut receiver, 1)[0];
    assert_eq!((meta.class, meta.to), (2, Some(Ipv4Addr::LOCALHOST.into())));
    // The answer leaves from that address, in mapped form.
    let back = Head { from: Some(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()), class: 1, ..head(meta.from) };
    report_class(&a, false).unwrap();
    sender.send(&c, std::iter::once((back, std::iter::once(&b"y"[..])))).unwrap();
    let (meta, _) = receive(&a, &mut receiver, 1)[0];
    assert_eq!((meta.from, meta.class), (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), 1));
}

#[test]
fn drops_are_counted() {
    let (a, b) = (v4(), v4());
    report_drops(&b).unwrap();
    let room = set_receive_buffer(&b, 4096).unwrap();
    assert!(room >= 4096, "{room}");
    let (mut sender, mut receiver) = (Sender::new(64), Receiver::new(8));
    let sent = sender.send(&a, (0..50).map(|_| (head(addr(&b)), std::iter::once(&[0; 100][..])))).unwrap();
    assert_eq!(sent, 50);
    let got = receive(&b, &mut receiver, 50);
    // The count comes with what was queued after the loss.
    sender.send(&a, std::iter::once((head(addr(&b)), std::iter::once(&b"x"[..])))).unwrap();
    let (last, _) = receive(&b, &mut receiver, 1)[0];
    assert_eq!(last.dropped.unwrap() as usize, 50 - got.len());
}

#[test]
fn buffers_report_what_is_effective() {
    let socket = v4();
    let larger = set_receive_buffer(&socket, 1 << 20).unwrap();
    assert!(larger >= 212_992, "{larger}");
    assert!(set_send_buffer(&socket, 1 << 20).unwrap() >= 212_992);
}

#[test]
fn the_error_queue_names_the_destination() {
    let (a, gone) = (v4(), v4());
    let dead = addr(&gone);
    drop(gone);
    queue_errors(&a, false).unwrap();
    let mut sender = Sender::new(1);
    sender.send(&a, std::iter::once((head(dead), std::iter::once(&b"x"[..])))).unwrap();
    let alive = v4();
    // The pending error fails a call to somebody else, once.
    let error =
        sender.send(&a, std::iter::once((head(addr(&alive)), std::iter::once(&b"x"[..])))).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    let queued = take_error(&a).unwrap().unwrap();
    assert_eq!((queued.error.kind(), queued.to, queued.mtu), (error.kind(), Some(dead), None));
    assert!(take_error(&a).unwrap().is_none());
    sender.send(&a, std::iter::once((head(addr(&alive)), std::iter::once(&b"x"[..])))).unwrap();
}

#[test]
fn sizes_are_refused_where_fragments_are_forbidden() {
    let (a, b) = (v4(), v4());
    a.connect(addr(&b)).unwrap();
    assert!(path_mtu(&a, false).unwrap() >= 1500);
    set_fragmentation(&a, false, Fragmentation::Forbid).unwrap();
    let mut sender = Sender::new(1);
    let connected = Head { to: None, from: None, class: 0, segment: None };
    let whole = vec![0; MAX_PAYLOAD + 1];
    let error = sender.send(&a, std::iter::once((connected, std::iter::once(&whole[..])))).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    assert!(path_mtu(v4(), false).is_err());
}

#[test]
fn the_address_that_was_asked_is_told_with_its_port() {
    let (a, b) = (v4(), v4());
    report_original(&b, false).unwrap();
    let mut receiver = Receiver::new(2);
    a.send_to(b"x", addr(&b)).unwrap();
    let (meta, _) = receive(&b, &mut receiver, 1).remove(0);
    assert_eq!(meta.original, Some(addr(&b)));
    let Some(both) = v6() else { return skipped("no sockets of IPv6") };
    report_original(&both, true).unwrap();
    let port = addr(&both).port();
    a.send_to(b"x", (Ipv4Addr::LOCALHOST, port)).unwrap();
    let (meta, _) = receive(&both, &mut receiver, 1).remove(0);
    assert_eq!(meta.original, Some((Ipv4Addr::LOCALHOST, port).into()));
    if !has_ipv6() {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "tests of the calls below adit-net")]
    let c = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    c.send_to(b"x", (Ipv6Addr::LOCALHOST, port)).unwrap();
    let (meta, _) = receive(&both, &mut receiver, 1).remove(0);
    assert_eq!(meta.original, Some((Ipv6Addr::LOCALHOST, port).into()));
}
