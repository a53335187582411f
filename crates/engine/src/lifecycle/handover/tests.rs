use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::Duration;

use adit_net::handover::{HandoverLink, Kind, Label};

use super::wire::{self, Message, SuccessorMessage, VERSION};
use super::{HandoverError, Taking};

fn hello(version: u32, sockets: Vec<String>) -> Message {
    Message::Hello { version, program: "9.9.9".into(), cores: 2, sockets }
}

/// A description that fits nothing is an error, and no panic: the process that hands over goes on.
#[test]
#[expect(clippy::disallowed_methods, reason = "a socket of the wrong kind")]
fn garbage_in_the_place_of_a_description() {
    let label = Label { kind: Kind::Streams, key: 1, index: 0 }.to_string();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let good = serde_json::to_vec(&hello(VERSION, vec![label.clone()])).unwrap();
    let mut cases: Vec<(Vec<u8>, usize, &str)> = vec![
        (b"".to_vec(), 0, "another version"),
        (b"\xff\x00{".to_vec(), 0, "another version"),
        (b"{\"message\":\"bye\"}".to_vec(), 0, "wrong time"),
        (serde_json::to_vec(&hello(VERSION + 1, Vec::new())).unwrap(), 0, "version 2"),
        (serde_json::to_vec(&hello(VERSION, vec!["x".into()])).unwrap(), 1, "makes no sense"),
        (good.clone(), 1, "another kind"),
        (good.clone(), 2, "do not match"),
    ];
    cases.extend((0..good.len()).map(|len| (good[..len].to_vec(), 0, "another version")));
    for (bytes, sockets, want) in cases {
        let (ours, theirs) = HandoverLink::pair().unwrap();
        theirs.send(&bytes, &[]).unwrap();
        if sockets > 0 {
            wire::send_all(&theirs, &vec![socket.as_fd(); sockets]).unwrap();
        }
        drop(theirs);
        let error = Taking::begin(&ours).unwrap_err();
        let text = if let HandoverError::Link { source, .. } = &error {
            format!("{error}: {source}")
        } else {
            error.to_string()
        };
        assert!(text.contains(want), "{}: {text}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn prints_and_clients_arrive_as_they_were_sent() {
    let (one, other) = HandoverLink::pair().unwrap();
    let prints: Vec<_> =
        (0..3_u8).map(|n| crate::replay::Print::parse([n % 2, n, 1, 2, 3, 4, 5, 6, 7])).collect();
    let peers: Vec<SocketAddr> = vec!["192.0.2.1:5".parse().unwrap(), "[2001:db8::1]:6".parse().unwrap()];
    let go = Message::Go {
        datagrams: vec![wire::SocketClients {
            socket: 3,
            peers: peers.clone(),
            led: vec![(10_007, peers[0], peers[0])],
        }],
        names: vec![(7, "a.test".into())],
        prints: wire::frames_of(&prints),
        has_verdicts: false,
    };
    wire::send(&one, &go, &[]).unwrap();
    wire::send_prints(&one, &prints).unwrap();
    one.send(&[0; 10], &[]).unwrap();
    let patience = Duration::from_secs(10);
    let (message, _) = wire::receive::<Message>(&other, Some(patience)).unwrap();
    let Message::Go { datagrams, names, prints: frames, has_verdicts: false } = message else {
        panic!("{message:?}")
    };
    assert_eq!((datagrams[0].socket, &datagrams[0].peers, frames), (3, &peers, 1));
    assert_eq!(datagrams[0].led, [(10_007, peers[0], peers[0])]);
    assert_eq!(names, [(7, "a.test".to_owned())]);
    let mut got = Vec::new();
    wire::receive_prints(&other, frames, patience, |print| got.push(print)).unwrap();
    assert_eq!(got, prints);
    assert!(wire::receive_prints(&other, 1, patience, |_| {}).is_err(), "cut");
}

/// Every message can be written, and is read as it was: some forms of enumerations have no JSON.
#[test]
fn messages_of_both_sides() {
    let (one, other) = HandoverLink::pair().unwrap();
    let patience = Some(Duration::from_secs(10));
    for message in [
        hello(VERSION, vec!["x".into()]),
        Message::Sockets,
        Message::Stores { salts: Some([7; 16]), capture: None },
        Message::Announced,
        Message::Credits { users: Vec::new() },
        Message::Bye,
    ] {
        wire::send(&one, &message, &[]).unwrap();
        let (read, _) = wire::receive::<Message>(&other, patience).unwrap();
        assert_eq!(format!("{read:?}"), format!("{message:?}"));
    }
    for answer in [
        SuccessorMessage::Prepared,
        SuccessorMessage::Ready { taken: vec![1, 2], has_capture: true },
        SuccessorMessage::Serving { program: "1".into() },
        SuccessorMessage::Failed { cause: "x".into() },
        SuccessorMessage::Changes { users: Vec::new() },
    ] {
        wire::send(&one, &answer, &[]).unwrap();
        let (read, _) = wire::receive::<SuccessorMessage>(&other, patience).unwrap();
        assert_eq!(format!("{read:?}"), format!("{answer:?}"));
    }
}
