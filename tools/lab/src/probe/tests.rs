use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use socket2::SockRef;

use super::*;

/// A server that reads until it has 39 bytes and ends then; unread bytes make the kernel reset. It answers and
/// counts every stream that begins with the recorded bytes, and its own answers are like anything else.
fn threshold_server(dialled: &Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let dialled = Arc::clone(dialled);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let dialled = Arc::clone(&dialled);
            thread::spawn(move || serve(stream, &dialled));
        }
    });
    address
}

fn serve(mut stream: TcpStream, dialled: &AtomicU64) -> Option<()> {
    let mut bytes = Vec::new();
    while bytes.len() < 39 {
        let mut more = [0; 64];
        match stream.read(&mut more).ok()? {
            0 => return None,
            len => bytes.extend(&more[..len]),
        }
    }
    if bytes.starts_with(&recorded().up) {
        dialled.fetch_add(1, Ordering::Relaxed);
        stream.write_all(b"answer").ok()?;
        // Until the prober goes.
        while stream.read(&mut [0; 64]).ok()? > 0 {}
    } else if bytes.len() > 60 {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).ok()?;
    }
    Some(())
}

fn recorded() -> Flight {
    Flight { up: (0..50).collect(), down: vec![9; 50] }
}

/// Whether the probes came out as the server is made. A machine that stands still for a second spoils a try.
fn is_as_made(probed: &Probed) -> bool {
    let tally = |kind: Kind| probed.rows.iter().find(|row| row.kind == kind).unwrap().tally.clone();
    let ends = |kind: Kind, end: fn(&Tally) -> usize| end(&tally(kind)) == 3;
    let verdict = probed.verdict().join("\n");
    ends(Kind::Random(38), |tally| tally.open)
        && ends(Kind::Random(39), |tally| tally.fin)
        && ends(Kind::Random(2000), |tally| tally.rst)
        && tally(Kind::OneByOne).closed_at.is_some_and(|(least, _)| least >= 39)
        // Fewer than 39 bytes and the end: the server goes as well.
        && ends(Kind::Ended(16), |tally| tally.fin)
        && ends(Kind::Replay, |tally| tally.answered)
        && tally(Kind::Replay).received == (6, 6)
        && ends(Kind::Changed(0), |tally| tally.fin)
        && ends(Kind::Reflection, |tally| tally.fin)
        && verdict.contains("10-38 B: open; 39-50 B: FIN; 64-2000 B: RST")
        && verdict.contains("the server ended the connection behind byte")
        && verdict.contains("answered on 3 of 3 connections, the target reached 3 times")
        && verdict.contains("what the server had sent met the same reaction as so many random bytes")
}

#[test]
fn thresholds_replay_and_reflection_are_seen() {
    let dialled = Arc::new(AtomicU64::new(0));
    let server = threshold_server(&dialled);
    let mut plan = Plan {
        connections: 3,
        patience: Duration::from_secs(1),
        lengths: vec![0, 10, 38, 39, 50, 64, 2000],
        at_once: 64,
        seed: 7,
    };
    let count = || Some(dialled.load(Ordering::Relaxed));
    let mut last = None;
    for _ in 0..8 {
        let probed = run(server, &plan, &[recorded()], &count).unwrap();
        if is_as_made(&probed) {
            let mut text = Vec::new();
            probed.print("threshold", &mut text).unwrap();
            assert!(String::from_utf8(text).unwrap().contains("random, 39-50 B"));
            return;
        }
        last = Some(probed);
        plan.patience = (plan.patience * 2).min(Duration::from_secs(10));
    }
    panic!("{last:#?}");
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let plan =
        Plan { connections: 1, patience: Duration::from_millis(100), lengths: vec![1], at_once: 4, seed: 1 };
    let error = run(adit_testkit::unused_addr(), &plan, &[], &|| None).unwrap_err();
    assert!(error.to_string().contains("no connection"), "{error}");
}

fn reaction(end: End, millis: u64) -> Reaction {
    Reaction { end, after: Duration::from_millis(millis), sent: 5, received: 0 }
}

#[test]
fn reactions_are_told_apart_by_kind_and_time() {
    let tally = |end: End, millis: u64| Tally::of(&vec![reaction(end, millis); 10]);
    assert!(tally(End::Fin, 1).is_like(&tally(End::Fin, 900)));
    assert!(!tally(End::Fin, 1).is_like(&tally(End::Fin, 60_000)));
    assert!(tally(End::Fin, 50_000).is_like(&tally(End::Fin, 60_000)));
    assert!(!tally(End::Fin, 1).is_like(&tally(End::Rst, 1)));
    // A few of many may be accidents, or probes that were taken for a request.
    let mut mixed = vec![reaction(End::Open, 1); 7];
    mixed.extend([reaction(End::Fin, 60_000); 3]);
    let mixed = Tally::of(&mixed);
    assert_eq!(mixed.usual(), (Usual::Open, 0.7));
    assert!(mixed.is_like(&tally(End::Open, 1)) && !mixed.is_like(&tally(End::Fin, 60_000)));
    // An answer counts as an answer, whether the connection is open or closed.
    let answered = Tally::of(&[Reaction { received: 3, ..reaction(End::Fin, 1) }]);
    assert_eq!(answered.usual(), (Usual::Answer, 1.0));
    assert!(!answered.is_like(&tally(End::Fin, 1)));
}

#[test]
fn a_hello_is_one() {
    let hello = hello(&[1; 32]);
    let word = |at: usize| usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    assert_eq!((word(3) + 5, word(7) + 9), (hello.len(), hello.len()));
    let extensions = 9 + 2 + 32 + 1 + 4 + 2;
    assert_eq!(word(extensions) + extensions + 2, hello.len());
}
