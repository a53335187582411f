use adit_model::Udp;
use adit_model::rule::{Fact, FileLine, Matcher, PortRange, RejectMethod, Rule, Verdict};
use adit_sys::udp::{Head, Receiver, Sender, report_class};

use super::*;

fn run_with(udp: &Udp, inbound: InboundProtocol, outbound: OutboundProtocol) -> (Running, SocketAddr) {
    let running = start(&Config { udp: udp.clone(), ..config(inbound, outbound, 1) }).unwrap();
    let at = running.addresses()[0].1;
    (running, at)
}

fn send_marked(socket: &UdpSocket, to: SocketAddr, class: u8) {
    let head = Head { to: Some(to), from: None, class, segment: None };
    let message = (head, std::iter::once(&b"marked"[..]));
    assert_eq!(Sender::new(1).send(socket, std::iter::once(message)).unwrap(), 1);
}

/// Waits for one datagram, and returns its traffic class.
fn class_of(socket: &UdpSocket) -> u8 {
    socket.peek(&mut [0; 10]).expect("a datagram in time");
    let mut receiver = Receiver::new(1);
    let mut bytes = [0; 100];
    receiver.receive(socket, std::iter::once(&mut bytes[..])).unwrap();
    receiver.meta(0).unwrap().class
}

#[test]
fn marks_of_congestion_are_carried_both_ways_where_that_is_asked_for() {
    const METHOD: &str = "2022-blake3-aes-128-gcm";
    for ecn in [false, true] {
        let udp = Udp { ecn, dscp: 46, ..Udp::default() };
        let (one, target) = (socket(), socket());
        let (far, server_at) = run_with(&udp, server(METHOD), OutboundProtocol::Direct);
        let (near, at) = run_with(&udp, tunnel(addr(&target)), client(METHOD, server_at));
        for socket in [&one, &target] {
            report_class(socket, false).unwrap();
        }
        for mark in [0b00, 0b10, 0b11, 0b01] {
            // The service that the application asks of its own network is not the tunnel's, nor the target's.
            send_marked(&one, at, 0b0010_1000 | mark);
            let mut bytes = [0; 10];
            target.peek(&mut bytes).unwrap();
            let (_, relay) = target.peek_from(&mut bytes).unwrap();
            let expected = if ecn { mark } else { 0 };
            assert_eq!(class_of(&target), expected, "to the target, {ecn}");
            send_marked(&target, relay, mark);
            assert_eq!(class_of(&one), expected, "to the client, {ecn}");
        }
        near.end();
        far.end();
    }
}

#[test]
fn sealed_datagrams_carry_the_code_point_that_is_configured() {
    let udp = Udp { dscp: 46, ..Udp::default() };
    let server = socket();
    report_class(&server, false).unwrap();
    let (near, at) = run_with(&udp, tunnel(LOOPBACK), client("aes-128-gcm", addr(&server)));
    socket().send_to(b"sealed", at).unwrap();
    assert_eq!(class_of(&server), 46 << 2);
    near.end();
}

#[test]
fn what_is_larger_than_the_configured_path_is_dropped_and_counted() {
    let udp = Udp { mtu: Some(1400), ..Udp::default() };
    let server = socket();
    let (near, at) = run_with(&udp, tunnel(LOOPBACK), client("aes-128-gcm", addr(&server)));
    let one = socket();
    // 28 of IP and UDP, 39 of the method: docs/udp.md.
    for len in [1400 - 28 - 39 + 1, 1400 - 28 - 39] {
        one.send_to(&vec![1; len], at).unwrap();
    }
    assert_eq!(server.recv(&mut [0; 2000]).unwrap(), 1400 - 28);
    let status = eventually(&near, |status| status.dropped.contains_key("too-big"));
    assert_eq!(status.dropped["too-big"], 1);
    near.end();
}

#[test]
fn a_full_table_lets_the_oldest_flow_go() {
    let udp = Udp { flows: 2, ..Udp::default() };
    let target = echo();
    let (near, at) = run_with(&udp, tunnel(target), OutboundProtocol::Direct);
    let clients = [socket(), socket(), socket()];
    for client in &clients {
        check_echo(client, at, &[5]);
    }
    let status = eventually(&near, |status| status.evicted == 1);
    assert_eq!((status.flows, status.begun), (2, 3));
    near.end();
}

/// Rules may ask for the mark of a flow's first datagram, though marks are not carried on.
#[test]
fn rules_see_the_code_point_of_clients() {
    let target = socket();
    let at = FileLine { file: "t".into(), line: 1, column: 1 };
    let matcher = Matcher::Fact(Fact::Dscp(vec![PortRange { first: 46, last: 46 }]));
    let rules = vec![Rule { matcher, verdict: Verdict::Reject(RejectMethod::Protocol), at }];
    let running =
        start(&Config { rules, ..config(tunnel(addr(&target)), OutboundProtocol::Direct, 1) }).unwrap();
    let near = running.addresses()[0].1;
    send_marked(&socket(), near, 46 << 2 | 1);
    eventually(&running, |status| status.dropped.get("rule") == Some(&1));
    send_marked(&socket(), near, 45 << 2);
    let mut bytes = [0; 10];
    assert_eq!(target.recv(&mut bytes).unwrap(), 6, "another mark passes");
    running.end();
}
