use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use adit_testkit::{epoch, load};

use super::channel::{ACK_MESSAGE, Control, open_message};
use super::sdp::{CandidateKind, MAX_CANDIDATES, MAX_SDP_LEN, SdpCandidate, SdpDescription, SdpError, Setup};
use super::stun::{Answer, TransactionId, request};
use super::*;
use crate::wire::Rng;

pub(super) const UNIX: u64 = 1_795_224_005;
const MS: Duration = Duration::from_millis(1);

#[test]
fn recorded_descriptions_are_read() {
    let rows = load("snowflake/sdp_examples.json");
    let mut seen = 0;
    for program in ["pion_webrtc_v3_1_41", "pion_webrtc_v4_2_18", "str0m_0_24_0"] {
        for kind in ["offer", "answer"] {
            let text = rows[program][kind]["sdp"].as_str().unwrap();
            let read = SdpDescription::parse(text).unwrap();
            let lines = text.lines().filter(|line| line.contains(" 1 udp ")).count();
            assert_eq!(read.candidates.len(), lines, "{program} {kind}");
            assert_eq!(SdpDescription::parse(&read.emit(7, UNIX)).as_ref(), Ok(&read), "{program} {kind}");
            seen += 1;
        }
    }
    assert_eq!(seen, 6);
    let offer = SdpDescription::parse(rows["pion_webrtc_v3_1_41"]["offer"]["sdp"].as_str().unwrap()).unwrap();
    assert_eq!((offer.setup, &*offer.ufrag, &*offer.mid), (Setup::ActPass, "FepHsIveCdLuFgfS", "0"));
    assert_eq!(offer.fingerprint[..4], [0xb4, 0xec, 0x59, 0xd7]);
    let first = SdpCandidate {
        addr: "203.0.113.1:43317".parse().unwrap(),
        kind: CandidateKind::Host,
        priority: 2_130_706_431,
    };
    assert_eq!(offer.candidates[0], first);
    let answer = SdpDescription::parse(rows["str0m_0_24_0"]["answer"]["sdp"].as_str().unwrap()).unwrap();
    assert_eq!(answer.setup, Setup::Passive);
}

#[test]
fn our_lines_are_those_of_the_peers() {
    let description = SdpDescription {
        fingerprint: [0xab; 32],
        setup: Setup::Active,
        ufrag: "u".repeat(16),
        password: "p".repeat(32),
        mid: "5IP".to_owned(),
        candidates: vec![
            SdpCandidate { addr: "203.0.113.7:9".parse().unwrap(), kind: CandidateKind::Host, priority: 5 },
            SdpCandidate {
                addr: "[2001:db8::1]:8".parse().unwrap(),
                kind: CandidateKind::Reflexive,
                priority: 4,
            },
        ],
    };
    let text = description.emit(2, 3);
    for line in [
        "o=- 1 3 IN IP4 0.0.0.0",
        "a=group:BUNDLE 5IP",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "a=setup:active",
        "a=mid:5IP",
        "a=sctp-port:5000",
        "a=candidate:1 1 udp 5 203.0.113.7 9 typ host",
        "a=candidate:2 1 udp 4 2001:db8::1 8 typ srflx raddr :: rport 0",
        "a=end-of-candidates",
    ] {
        assert!(text.split("\r\n").any(|found| found == line), "{line}\n{text}");
    }
    let fingerprint = format!("a=fingerprint:sha-256 {}", vec!["AB"; 32].join(":"));
    assert!(text.contains(&fingerprint));
}

#[test]
fn bad_descriptions_are_refused() {
    let good = sample().emit(1, UNIX);
    assert!(SdpDescription::parse(&good).is_ok());
    let without = |start: &str| {
        let lines: Vec<&str> = good.lines().filter(|line| !line.starts_with(start)).collect();
        SdpDescription::parse(&lines.join("\n"))
    };
    for (start, what) in [
        ("a=fingerprint", "SHA-256 fingerprint"),
        ("a=ice-ufrag", "ice-ufrag"),
        ("a=ice-pwd", "ice-pwd"),
        ("m=", "data channel section"),
    ] {
        assert_eq!(without(start), Err(SdpError::Missing(what)));
    }
    assert!(without("a=candidate").is_ok_and(|read| read.candidates.is_empty()));
    for (from, to) in [
        ("sha-256", "sha-1"),
        ("a=fingerprint:sha-256 AB:", "a=fingerprint:sha-256 XY:"),
        ("a=ice-pwd:p", "a=ice-pwd:\u{1}"),
        ("a=ice-ufrag:uuuuuuuuuuuuuuuu", "a=ice-ufrag:uuu"),
    ] {
        assert!(good.contains(from), "{from}");
        assert!(SdpDescription::parse(&good.replace(from, to)).is_err(), "{from}");
    }
    let long = format!("{good}{}", "a=x\r\n".repeat(MAX_SDP_LEN / 5));
    assert_eq!(SdpDescription::parse(&long), Err(SdpError::TooLong));
    let mut many = good.clone();
    for port in 1..200 {
        many.push_str(&format!("a=candidate:1 1 udp 5 203.0.113.8 {port} typ host\r\n"));
    }
    assert_eq!(SdpDescription::parse(&many).unwrap().candidates.len(), MAX_CANDIDATES);
    // Candidates that no UDP socket reaches are passed over.
    for line in [
        "1 2 udp 5 203.0.113.8 9 typ host",
        "1 1 tcp 5 203.0.113.8 9 typ host",
        "1 1 udp 5 name.local 9 typ host",
        "1 1 udp 5 0.0.0.0 9 typ host",
        "1 1 udp 5 203.0.113.8 0 typ host",
        "1 1 udp 5 203.0.113.8",
        "1 1 udp 99999999999 203.0.113.8 9 typ host",
    ] {
        let read = SdpDescription::parse(&format!("{good}a=candidate:{line}\r\n")).unwrap();
        assert_eq!(read.candidates.len(), 1, "{line}");
    }
    for len in 0..good.len() {
        drop(SdpDescription::parse(&good[..len]));
    }
}

fn sample() -> SdpDescription {
    SdpDescription {
        fingerprint: [0xab; 32],
        setup: Setup::ActPass,
        ufrag: "u".repeat(16),
        password: "p".repeat(32),
        mid: "0".to_owned(),
        candidates: vec![SdpCandidate {
            addr: "203.0.113.7:9".parse().unwrap(),
            kind: CandidateKind::Host,
            priority: 5,
        }],
    }
}

#[test]
fn stun_answers_are_read() {
    let mut rng = TestRng::new(1);
    let id = TransactionId::draw(&mut rng);
    let plain = request(id, false);
    assert_eq!((plain.len(), &plain[..8]), (20, &[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..]));
    let change = request(id, true);
    assert_eq!(change[20..], [0, 3, 0, 4, 0, 0, 0, 6]);
    // RFC 5769, section 2.2: XOR-MAPPED-ADDRESS 192.0.2.1:32853.
    let mut answer = vec![1, 1, 0, 24, 0x21, 0x12, 0xa4, 0x42];
    answer.extend(&plain[8..20]);
    answer.extend([0, 0x20, 0, 8, 0, 1, 0xa1, 0x47, 0xe1, 0x12, 0xa6, 0x43]);
    answer.extend([0x80, 0x2c, 0, 8, 0, 1, 0x0d, 0x97, 203, 0, 113, 9]);
    let read = Answer::parse(&answer).unwrap();
    assert_eq!(read.id, id);
    assert_eq!(read.mapped, "192.0.2.1:32853".parse().unwrap());
    assert_eq!(read.other, Some("203.0.113.9:3479".parse().unwrap()));
    for len in 0..answer.len() {
        assert!(Answer::parse(&answer[..len]).is_err(), "{len}");
    }
    for (at, value) in [(0, 0), (1, 0x11), (4, 0), (3, 23), (21, 0x21), (25, 3)] {
        let mut wrong = answer.clone();
        wrong[at] = value;
        assert!(Answer::parse(&wrong).is_err(), "{at}");
    }
}

#[test]
fn channel_messages() {
    let open = open_message("snowflake-0123456789abcdef");
    // As recorded from pion: open, reliable, priority 0, no parameter, 26 bytes of label, no protocol.
    assert_eq!(open[..12], [3, 0, 0, 0, 0, 0, 0, 0, 0, 26, 0, 0]);
    assert_eq!(Control::parse(&open), Ok(Control::Open("snowflake-0123456789abcdef".to_owned())));
    assert_eq!(Control::parse(&ACK_MESSAGE), Ok(Control::Ack));
    for len in 0..open.len() {
        assert!(Control::parse(&open[..len]).is_err(), "{len}");
    }
}

/// The same bytes for the same seed.
pub(super) struct TestRng(u64);

impl TestRng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl Rng for TestRng {
    fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = self.0.to_be_bytes()[0];
        }
    }
}

/// Something that goes on by itself on a clock of its own.
pub(super) trait Simulation {
    /// The time of that clock.
    fn now(&self) -> Instant;

    /// Goes to the next thing that happens.
    fn step(&mut self);

    /// Goes on until it is as wanted, for `limit` at most; whether it is.
    fn run(&mut self, limit: Duration, mut until: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now() + limit;
        while self.now() < end {
            if until(self) {
                return true;
            }
            self.step();
        }
        until(self)
    }
}

/// Two ends with a wire between them.
struct Pair {
    ends: [Peer; 2],
    wire: VecDeque<(Instant, usize, Vec<u8>, SocketAddr, SocketAddr)>,
    now: Instant,
    rng: TestRng,
    /// Datagrams of 256 that are lost.
    loss: u8,
    /// One-way delay.
    delay: Duration,
    got: [Vec<u8>; 2],
}

pub(super) fn addr(at: usize) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 1 + u8::try_from(at).unwrap()], 4000))
}

impl Pair {
    fn new(loss: u8) -> Self {
        let now = epoch();
        let mut rng = TestRng::new(7);
        let mut make = |role, at| {
            let mut peer =
                Peer::new(role, PeerSettings::default(), "snowflake-x", &mut rng, now, UNIX).unwrap();
            peer.add_host(addr(at), true);
            peer
        };
        let ends = [make(PeerRole::Offerer, 0), make(PeerRole::Answerer, 1)];
        let mut pair = Self {
            ends,
            wire: VecDeque::new(),
            now,
            rng: TestRng::new(9),
            loss,
            delay: 10 * MS,
            got: [Vec::new(), Vec::new()],
        };
        let offer = SdpDescription::parse(&pair.ends[0].describe()).unwrap();
        pair.ends[1].set_remote(&offer, now).unwrap();
        let answer = SdpDescription::parse(&pair.ends[1].describe()).unwrap();
        assert_eq!(answer.setup, Setup::Active);
        pair.ends[0].set_remote(&answer, now).unwrap();
        pair
    }

    fn send(&mut self) {
        let mut out = Outbox::default();
        for at in 0..2 {
            self.ends[at].poll_transmit(self.now, &mut out);
            for datagram in &out.datagrams {
                let mut byte = [0];
                self.rng.fill(&mut byte);
                if byte[0] >= self.loss {
                    let bytes = out.block[datagram.start..datagram.start + datagram.len].to_vec();
                    let when = self.now + self.delay;
                    self.wire.push_back((when, 1 - at, bytes, datagram.from, datagram.to));
                }
            }
            out.clear();
        }
    }

    fn open(&mut self) {
        let began = self.now;
        let is_open = |pair: &mut Self| pair.ends.iter().all(Peer::is_open);
        assert!(self.run(Duration::from_secs(20), is_open), "{:?}", self.ends);
        assert!(self.loss > 0 || self.now - began < Duration::from_secs(3));
    }
}

impl Simulation for Pair {
    fn now(&self) -> Instant {
        self.now
    }

    fn step(&mut self) {
        self.send();
        let timers = self.ends.iter_mut().filter_map(Peer::poll_timeout).min();
        let next = self.wire.front().map(|(at, ..)| *at).into_iter().chain(timers).min();
        self.now = next.unwrap_or(self.now + MS).max(self.now + MS / 10);
        while self.wire.front().is_some_and(|(at, ..)| *at <= self.now) {
            let (_, end, bytes, from, to) = self.wire.pop_front().unwrap();
            self.ends[end].handle_datagram(&bytes, from, to, self.now);
        }
        for at in 0..2 {
            self.ends[at].handle_timeout(self.now);
            let mut read = Vec::new();
            self.ends[at].recv(&mut read, usize::MAX);
            self.got[at].extend(read);
        }
    }
}

#[test]
fn bytes_go_both_ways_through_losses() {
    for loss in [0, 13] {
        let mut pair = Pair::new(loss);
        pair.open();
        let sent: [Vec<u8>; 2] = [0, 1].map(|at| {
            let mut bytes = vec![0; 300_000];
            TestRng::new(20 + at).fill(&mut bytes);
            bytes
        });
        let mut at = [0, 0];
        let done = pair.run(Duration::from_secs(300), |pair| {
            for end in 0..2 {
                let rest = &sent[end][at[end]..];
                let message = &rest[..rest.len().min(1402)];
                if pair.ends[end].send(message) {
                    at[end] += message.len();
                }
            }
            pair.got[0].len() >= sent[1].len() && pair.got[1].len() >= sent[0].len()
        });
        assert!(done, "loss {loss}: {} and {} bytes", pair.got[0].len(), pair.got[1].len());
        assert!(pair.got[0] == sent[1] && pair.got[1] == sent[0]);
    }
}

#[test]
fn a_dead_path_is_noticed_within_5_s_and_an_idle_one_lives() {
    let mut pair = Pair::new(0);
    pair.open();
    pair.run(Duration::from_secs(60), |_| false);
    assert!(pair.ends.iter().all(Peer::is_open), "{:?}", pair.ends);
    pair.loss = 255;
    let died = pair.now;
    assert!(pair.run(Duration::from_secs(10), |pair| !pair.ends.iter().any(Peer::is_open)));
    assert!(pair.now - died <= Duration::from_secs(5), "{:?}", pair.now - died);
    assert_eq!(pair.ends[0].failure(), Some(&PeerFailure::Silence));
}

#[test]
fn closing_is_told() {
    for closer in 0..2 {
        let mut pair = Pair::new(0);
        pair.open();
        assert!(pair.ends[closer].send(b"last words"));
        pair.step();
        pair.ends[closer].close(pair.now);
        let other = 1 - closer;
        assert!(pair.run(Duration::from_secs(2), |pair| pair.ends[other].failure().is_some()));
        assert_eq!(pair.ends[other].failure(), Some(&PeerFailure::ClosedByPeer));
        assert_eq!(pair.got[other], b"last words");
    }
}

#[test]
fn another_certificate_is_refused() {
    let mut pair = Pair::new(0);
    let mut offer = SdpDescription::parse(&pair.ends[0].describe()).unwrap();
    offer.fingerprint[0] ^= 1;
    pair.ends[1].set_remote(&offer, pair.now).unwrap();
    let is_refused = |pair: &mut Pair| pair.ends[1].failure() == Some(&PeerFailure::Fingerprint);
    assert!(pair.run(Duration::from_secs(5), is_refused), "{:?}", pair.ends);
    assert!(!pair.ends[1].is_open());
}

#[test]
fn a_reader_that_stands_still_bounds_the_sender() {
    let mut pair = Pair::new(0);
    pair.open();
    let mut sent = 0;
    for _ in 0..20_000 {
        while pair.ends[0].send(&[0; 1402]) {
            sent += 1402;
        }
        // As `step`, but nobody reads at the other end.
        pair.send();
        pair.now += MS;
        while pair.wire.front().is_some_and(|(at, ..)| *at <= pair.now) {
            let (_, end, bytes, from, to) = pair.wire.pop_front().unwrap();
            pair.ends[end].handle_datagram(&bytes, from, to, pair.now);
        }
        pair.ends.iter_mut().for_each(|end| end.handle_timeout(pair.now));
    }
    let settings = PeerSettings::default();
    let most = settings.receive_window as usize + settings.send_buffer;
    assert!(sent <= most + 3000 && sent > most / 2, "{sent} of {most}");
    assert!(pair.ends.iter().all(Peer::is_open), "{:?}", pair.ends);
    // It goes on when the reader does.
    let done = pair.run(Duration::from_secs(60), |pair| pair.got[1].len() == sent);
    assert!(done, "{} of {sent}", pair.got[1].len());
}

/// Handshakes that others begin and leave: nobody answers them, and they keep nobody out.
#[test]
fn half_open_handshakes_of_others_cost_nothing() {
    const CLIENT_HELLO: u8 = 22;
    let mut pair = Pair::new(0);
    let hello = loop {
        pair.send();
        if let Some((.., bytes, _, _)) = pair.wire.iter().find(|(.., bytes, _, _)| bytes[0] == CLIENT_HELLO) {
            break bytes.clone();
        }
        assert!(!pair.ends.iter().any(Peer::is_open));
        pair.step();
    };
    let mut out = Outbox::default();
    for number in 0..10_000_u16 {
        // Another random of the client, behind the headers of record and message, and the version.
        let mut bytes = hello.clone();
        bytes[13 + 12 + 2..][..2].copy_from_slice(&number.to_be_bytes());
        let [a, b] = number.to_be_bytes();
        let from = SocketAddr::from(([198, 51, a, b], 4000));
        for at in 0..2 {
            pair.ends[at].handle_datagram(&bytes, from, addr(at), pair.now);
            pair.ends[at].poll_transmit(pair.now, &mut out);
        }
    }
    assert!(out.datagrams.iter().all(|datagram| datagram.to == addr(0) || datagram.to == addr(1)));
    assert!(out.block.len() < 100_000, "{} bytes", out.block.len());
    pair.open();
    assert!(pair.ends[0].send(b"still here"));
    assert!(pair.run(Duration::from_secs(2), |pair| pair.got[1] == b"still here"));
}

#[test]
fn noise_changes_nothing() {
    let mut pair = Pair::new(0);
    pair.open();
    let mut rng = TestRng::new(3);
    for first in 0..=255_u8 {
        for len in [1, 12, 13, 20, 60, 1200] {
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            bytes[0] = first;
            let now = pair.now;
            pair.ends[0].handle_datagram(&bytes, addr(1), addr(0), now);
            pair.ends[1].handle_datagram(&bytes, addr(5), addr(1), now);
        }
        pair.step();
    }
    assert!(pair.ends.iter().all(Peer::is_open), "{:?}", pair.ends);
    assert!(pair.ends[0].send(b"still here"));
    assert!(pair.run(Duration::from_secs(2), |pair| pair.got[1] == b"still here"));
}

#[test]
fn fuzz_targets_take_anything() {
    let now = epoch();
    let mut rng = TestRng::new(5);
    for round in 0..40_u8 {
        let mut bytes = vec![0; 400];
        rng.fill(&mut bytes);
        bytes[0] = round;
        fuzz_peer(&bytes, now);
        fuzz_dcep(&bytes);
        stun::fuzz_stun(&bytes);
    }
    sdp::fuzz_sdp(sample().emit(1, 2).as_bytes());
}
