use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_testkit::epoch;
use bytes::Bytes;
use sctp_proto::{
    AssociationHandle, ClientConfig, DatagramEvent, Endpoint, EndpointConfig, Payload,
    PayloadProtocolIdentifier as Kind, ServerConfig, StreamEvent,
};

use super::packet::MAX_PAYLOAD;
use super::*;
use crate::rtc::tests::{Simulation, TestRng};

const MS: Duration = Duration::from_millis(1);
const WINDOW: usize = 256 << 10;

/// One end: ours, or that of another implementation.
enum End {
    Ours(Box<Association>),
    Other(Box<Other>),
}

struct Other {
    endpoint: Endpoint,
    association: Option<(AssociationHandle, sctp_proto::Association)>,
    is_up: bool,
    has_ended: bool,
}

fn far() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 5000))
}

impl Other {
    fn new() -> Self {
        let endpoint =
            Endpoint::new(Arc::new(EndpointConfig::new()), Some(Arc::new(ServerConfig::default())));
        Self { endpoint, association: None, is_up: false, has_ended: false }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "of no use here")]
    fn take_events(&mut self) {
        let Some((_, association)) = &mut self.association else { return };
        while let Some(event) = association.poll() {
            match event {
                sctp_proto::Event::Connected => self.is_up = true,
                sctp_proto::Event::Stream(StreamEvent::Finished { .. })
                | sctp_proto::Event::AssociationLost { .. } => self.has_ended = true,
                _ => {}
            }
        }
    }

    fn packets(&mut self, now: Instant) -> Vec<Bytes> {
        let mut packets = Vec::new();
        while let Some(transmit) = self.endpoint.poll_transmit() {
            if let Payload::RawEncode(more) = transmit.payload {
                packets.extend(more);
            }
        }
        if let Some((handle, association)) = &mut self.association {
            while let Some(event) = association.poll_endpoint_event() {
                if let Some(event) = self.endpoint.handle_event(*handle, event) {
                    association.handle_event(event);
                }
            }
            while let Some(transmit) = association.poll_transmit(now) {
                if let Payload::RawEncode(more) = transmit.payload {
                    packets.extend(more);
                }
            }
        }
        packets
    }
}

impl End {
    fn ours(seed: u64, now: Instant) -> Self {
        Self::Ours(Box::new(Association::new(WINDOW, WINDOW, &mut TestRng::new(seed), now)))
    }

    fn connect(&mut self) {
        match self {
            Self::Ours(association) => association.connect(),
            Self::Other(other) => {
                other.association = Some(other.endpoint.connect(ClientConfig::new(), far()).unwrap());
            }
        }
    }

    fn is_up(&self) -> bool {
        match self {
            Self::Ours(association) => association.is_up(),
            Self::Other(other) => other.is_up,
        }
    }

    /// Sends what there is room for, in messages of at most `len` bytes; returns how much.
    fn send(&mut self, bytes: &[u8], len: usize) -> usize {
        let piece = &bytes[..bytes.len().min(len)];
        match self {
            Self::Ours(association) if association.room() >= piece.len() => {
                usize::from(association.send(1, BINARY, piece)) * piece.len()
            }
            Self::Ours(_) => 0,
            Self::Other(other) => {
                let Some((_, association)) = &mut other.association else { return 0 };
                drop(association.open_stream(1, Kind::Binary));
                let Ok(mut stream) = association.stream(1) else { return 0 };
                if stream.buffered_amount().unwrap() > WINDOW {
                    return 0;
                }
                stream.write_with_ppi(piece, Kind::Binary).unwrap_or(0)
            }
        }
    }

    fn recv(&mut self) -> Vec<u8> {
        let mut read = Vec::new();
        match self {
            Self::Ours(association) => {
                while let Some(piece) = association.pop() {
                    assert_eq!((piece.stream, piece.kind), (1, BINARY));
                    read.extend(piece.data);
                }
            }
            Self::Other(other) => {
                let Some((_, association)) = &mut other.association else { return read };
                while association.accept_stream().is_some() {}
                let Ok(mut stream) = association.stream(1) else { return read };
                while let Ok(Some(message)) = stream.read_sctp() {
                    let start = read.len();
                    read.resize(start + message.len(), 0);
                    message.read(&mut read[start..]).unwrap();
                }
                other.take_events();
            }
        }
        read
    }

    fn handle(&mut self, packet: Vec<u8>, now: Instant) {
        match self {
            Self::Ours(association) => association.handle_packet(&packet, now),
            Self::Other(other) => {
                match other.endpoint.handle(now, far(), None, None, packet.into()) {
                    Some((handle, DatagramEvent::NewAssociation(association))) => {
                        other.association.get_or_insert((handle, association));
                    }
                    Some((_, DatagramEvent::AssociationEvent(event))) => {
                        if let Some((_, association)) = &mut other.association {
                            association.handle_event(event);
                        }
                    }
                    None => {}
                }
                other.take_events();
            }
        }
    }

    fn packets(&mut self, now: Instant) -> Vec<Vec<u8>> {
        match self {
            Self::Ours(association) => {
                association.handle_timeout(now);
                let (mut packets, mut out) = (Vec::new(), Vec::new());
                while association.poll_packet(now, &mut out) {
                    assert!(out.len() <= MTU && SctpPacket::parse(&out).is_some());
                    packets.push(out.clone());
                }
                packets
            }
            Self::Other(other) => {
                if let Some((_, association)) = &mut other.association {
                    association.handle_timeout(now);
                }
                other.packets(now).iter().map(|packet| packet.to_vec()).collect()
            }
        }
    }

    fn timeout(&self) -> Option<Instant> {
        match self {
            Self::Ours(association) => association.poll_timeout(),
            Self::Other(other) => other.association.as_ref()?.1.poll_timeout(),
        }
    }
}

struct Pair {
    ends: [End; 2],
    wire: VecDeque<(Instant, usize, Vec<u8>)>,
    now: Instant,
    rng: TestRng,
    /// Packets of 256 that are lost, and that come late.
    loss: u8,
    late: u8,
    /// Packets that are lost for certain, by their numbers.
    drops: Vec<usize>,
    count: usize,
    /// One-way delay, and the time that a packet takes on the wire.
    delay: Duration,
    spacing: Duration,
    free_at: [Instant; 2],
    got: [Vec<u8>; 2],
    /// Every packet, and the end that it went to.
    seen: Vec<(usize, Vec<u8>)>,
}

impl Pair {
    fn new(ends: [End; 2]) -> Self {
        let now = epoch();
        Self {
            ends,
            wire: VecDeque::new(),
            now,
            rng: TestRng::new(11),
            loss: 0,
            late: 0,
            drops: Vec::new(),
            count: 0,
            delay: 10 * MS,
            spacing: Duration::ZERO,
            free_at: [now; 2],
            got: Default::default(),
            seen: Vec::new(),
        }
    }

    fn ours() -> Self {
        Self::new([End::ours(1, epoch()), End::ours(2, epoch())])
    }

    fn connect(&mut self, asks: [bool; 2]) {
        for (end, asks) in self.ends.iter_mut().zip(asks) {
            if asks {
                end.connect();
            }
        }
    }

    /// Puts what an end sends on the wire.
    fn post(&mut self, at: usize) {
        for packet in self.ends[at].packets(self.now) {
            let mut draws = [0; 2];
            self.rng.fill(&mut draws);
            let is_lost = draws[0] < self.loss || self.drops.contains(&self.count);
            self.count += 1;
            self.seen.push((1 - at, packet.clone()));
            // The wire takes one packet after the other.
            self.free_at[at] = self.free_at[at].max(self.now) + self.spacing;
            if !is_lost {
                let late = if draws[1] < self.late { 4 * MS } else { Duration::ZERO };
                self.wire.push_back((self.free_at[at] + self.delay + late, 1 - at, packet));
            }
        }
    }

    fn open(&mut self) {
        let is_up = |pair: &mut Self| pair.ends.iter().all(End::is_up);
        assert!(self.run(Duration::from_secs(60), is_up));
    }

    /// Both ends send `len` bytes, in messages of at most `message`.
    fn exchange(&mut self, len: usize, message: usize) {
        let sent = [21, 22].map(|seed| {
            let mut bytes = vec![0; len];
            TestRng::new(seed).fill(&mut bytes);
            bytes
        });
        let mut at = [0, 0];
        let done = self.run(Duration::from_secs(300), |pair| {
            for end in 0..2 {
                at[end] += pair.ends[end].send(&sent[end][at[end]..], message);
            }
            pair.got[0].len() >= len && pair.got[1].len() >= len
        });
        assert!(done, "{:?} of {len}", [self.got[0].len(), self.got[1].len()]);
        assert!(self.got[0] == sent[1] && self.got[1] == sent[0]);
    }
}

impl Simulation for Pair {
    fn now(&self) -> Instant {
        self.now
    }

    fn step(&mut self) {
        self.post(0);
        self.post(1);
        self.wire.make_contiguous().sort_by_key(|(at, ..)| *at);
        let timers = self.ends.iter().filter_map(End::timeout).min();
        let next = self.wire.front().map(|(at, ..)| *at).into_iter().chain(timers).min();
        self.now = next.unwrap_or(self.now + MS).max(self.now + MS / 10);
        while self.wire.front().is_some_and(|(at, ..)| *at <= self.now) {
            let (_, end, packet) = self.wire.pop_front().unwrap();
            self.ends[end].handle(packet, self.now);
            if matches!(self.ends[end], End::Other(_)) {
                // The original answers each packet by itself, since it has a thread for that.
                self.post(end);
            }
        }
        for at in 0..2 {
            let read = self.ends[at].recv();
            self.got[at].extend(read);
        }
    }
}

#[test]
fn another_implementation_understands() {
    for (asks, loss, message) in [
        ([true, false], 0, 16 << 10),
        ([false, true], 0, 1402),
        ([true, true], 0, 100),
        ([true, true], 8, 5000),
    ] {
        let now = epoch();
        let mut pair = Pair::new([End::ours(3, now), End::Other(Box::new(Other::new()))]);
        pair.loss = loss;
        pair.connect(asks);
        pair.open();
        pair.exchange(300_000, message);
        // It ends the stream, and we hear of it; or the other way round.
        let End::Other(other) = &mut pair.ends[1] else { unreachable!() };
        other.association.as_mut().unwrap().1.stream(1).unwrap().close().unwrap();
        let heard = pair.run(Duration::from_secs(20), |pair| {
            let End::Ours(ours) = &mut pair.ends[0] else { unreachable!() };
            std::iter::from_fn(|| ours.poll_event()).any(|event| event == SctpEvent::Ended(Some(1)))
        });
        assert!(heard, "{asks:?} {loss}");
    }
    let mut pair = Pair::new([End::ours(4, epoch()), End::Other(Box::new(Other::new()))]);
    pair.ends[0].connect();
    pair.open();
    pair.exchange(1000, 1000);
    let End::Ours(ours) = &mut pair.ends[0] else { unreachable!() };
    ours.end_stream(1);
    let is_told = |pair: &mut Pair| matches!(&pair.ends[1], End::Other(other) if other.has_ended);
    assert!(pair.run(Duration::from_secs(5), is_told));
}

#[test]
fn every_message_of_the_handshake_may_be_lost() {
    for asks in [[true, false], [true, true]] {
        for lost in 0..8 {
            let mut pair = Pair::ours();
            pair.drops = vec![lost];
            pair.connect(asks);
            pair.open();
            pair.exchange(20_000, 1402);
        }
    }
}

#[test]
fn losses_and_reordering() {
    for (loss, late) in [(0, 0), (3, 0), (26, 0), (0, 40), (5, 90)] {
        let mut pair = Pair::ours();
        (pair.loss, pair.late) = (loss, late);
        pair.ends[0].connect();
        pair.open();
        pair.exchange(2_000_000, 1402);
        let is_empty = |pair: &mut Pair| matches!(&pair.ends[0], End::Ours(ours) if ours.buffered() == 0);
        assert!(pair.run(Duration::from_secs(5), is_empty));
        let End::Ours(ours) = &pair.ends[0] else { unreachable!() };
        let chunks = 2_000_000 / MAX_PAYLOAD as u64;
        let most = if late > 0 && loss == 0 { chunks / 10 } else { chunks * u64::from(loss) / 100 + 8 };
        assert!(ours.repeated() <= most, "{} of {chunks} sent again, {loss} {late}", ours.repeated());
    }
}

#[test]
fn a_reader_that_stands_still_bounds_both_ends() {
    let mut pair = Pair::ours();
    pair.ends[0].connect();
    pair.open();
    let mut sent = 0;
    let end = pair.now + Duration::from_secs(20);
    while pair.now < end {
        sent += pair.ends[0].send(&[7; 1402], 1402);
        for at in 0..2 {
            for packet in pair.ends[at].packets(pair.now) {
                let now = pair.now;
                pair.ends[1 - at].handle(packet, now);
            }
        }
        pair.now += 4 * MS;
    }
    let End::Ours(reader) = &pair.ends[1] else { unreachable!() };
    assert!(reader.held() <= WINDOW + SLACK_AND_A_CHUNK, "{}", reader.held());
    assert!(sent <= 2 * WINDOW + 3000 && sent > WINDOW, "{sent}");
    // It goes on when the reader does.
    assert!(
        pair.run(Duration::from_secs(30), |pair| pair.got[1].len() == sent),
        "{} of {sent}",
        pair.got[1].len()
    );
}

const SLACK_AND_A_CHUNK: usize = 4096;

/// A packet for `association`, of one chunk.
fn packet_for(association: &Association, kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    packet::begin(&mut out, association.tag);
    packet::push_chunk(&mut out, kind, flags, body, &[]);
    packet::finish(&mut out);
    out
}

fn data(tsn: u32, len: usize) -> Vec<u8> {
    let mut body = tsn.to_be_bytes().to_vec();
    body.extend([0, 1, 0, 0, 0, 0, 0, 53]);
    body.resize(12 + len, 9);
    body
}

#[test]
fn hostile_data_is_held_within_bounds() {
    let mut pair = Pair::ours();
    pair.ends[0].connect();
    pair.open();
    let now = pair.now;
    let End::Ours(ours) = &mut pair.ends[0] else { unreachable!() };
    // Never the first one: all the others wait. Then numbers far away, twice, and empty.
    for ahead in (2..40_000).chain([1 << 20, u32::MAX / 2, u32::MAX, 5, 5]) {
        let next = ours.receiver.as_ref().map(SctpReceiver::next).unwrap();
        for len in [0, 1, 1200] {
            let packet = packet_for(ours, packet::DATA, 3, &data(next.wrapping_add(ahead), len));
            ours.handle_packet(&packet, now);
        }
    }
    assert!(ours.held() <= WINDOW + (256 << 10) + 2048, "{}", ours.held());
    let mut out = Vec::new();
    assert!(ours.poll_packet(now, &mut out) && out.len() <= MTU);
    assert!(ours.front().is_none());
}

#[test]
fn acknowledgements_of_nothing_are_passed_over() {
    let mut pair = Pair::ours();
    pair.ends[0].connect();
    pair.open();
    let now = pair.now;
    let End::Ours(ours) = &mut pair.ends[0] else { unreachable!() };
    let mut out = Vec::new();
    for _ in 0..8 {
        assert!(ours.send(1, BINARY, &[1; MAX_PAYLOAD]));
        assert!(ours.poll_packet(now, &mut out));
    }
    let before = ours.buffered();
    let sack = |cumulative: u32, gaps: &[(u16, u16)]| {
        let mut body = cumulative.to_be_bytes().to_vec();
        body.extend(100_000_u32.to_be_bytes());
        body.extend(u16::try_from(gaps.len()).unwrap().to_be_bytes());
        body.extend([0; 2]);
        for (first, last) in gaps {
            body.extend(first.to_be_bytes());
            body.extend(last.to_be_bytes());
        }
        body
    };
    let last = ours.sender.last();
    for body in [
        sack(last.wrapping_add(1), &[]),
        sack(last.wrapping_sub(9), &[(1, 5)]),
        sack(last.wrapping_sub(8), &[(0, 65535), (9, 10), (5, 3)]),
        sack(last.wrapping_sub(8), &[(65535, 65535)]),
        sack(last, &[])[..11].to_vec(),
    ] {
        let packet = packet_for(ours, packet::SACK, 0, &body);
        ours.handle_packet(&packet, now);
        assert_eq!(ours.buffered(), before, "{body:?}");
    }
    // The second and third have arrived, then the whole.
    let packet = packet_for(ours, packet::SACK, 0, &sack(last.wrapping_sub(8), &[(2, 3), (3, 4), (2, 2)]));
    ours.handle_packet(&packet, now);
    assert_eq!(ours.buffered(), before - 2 * MAX_PAYLOAD);
    let packet = packet_for(ours, packet::SACK, 0, &sack(last, &[(1, 65535)]));
    ours.handle_packet(&packet, now);
    assert_eq!(ours.buffered(), 0);
}

#[test]
fn broken_packets_change_nothing() {
    let mut pair = Pair::ours();
    pair.ends[0].connect();
    pair.ends[1].connect();
    pair.open();
    pair.exchange(20_000, 900);
    let packets = std::mem::take(&mut pair.seen);
    assert!(packets.len() > 20);
    let now = pair.now;
    for (end, packet) in packets.iter().take(60) {
        for len in 0..packet.len() {
            pair.ends[*end].handle(packet[..len].to_vec(), now);
        }
        for at in 0..packet.len().min(80) {
            let mut flipped = packet.clone();
            flipped[at] ^= 1 << (at % 8);
            pair.ends[*end].handle(flipped, now);
        }
        // Another tag, with the right checksum.
        let mut other = packet.clone();
        other[4] ^= 1;
        packet::finish(&mut other);
        pair.ends[*end].handle(other, now);
    }
    pair.run(Duration::from_secs(5), |_| false);
    pair.got = Default::default();
    pair.exchange(50_000, 1402);
}

#[test]
fn fuzz_target_takes_anything() {
    let now = epoch();
    for kept in [
        &include_bytes!("../../../../../tools/fuzz/corpus/rtc_sctp/handshake")[..],
        include_bytes!("../../../../../tools/fuzz/corpus/rtc_sctp/data"),
        include_bytes!("../../../../../tools/fuzz/corpus/rtc_sctp/end"),
    ] {
        fuzz_sctp(kept, now);
    }
    let mut rng = TestRng::new(6);
    for round in 0..60_u8 {
        let mut bytes = vec![0; 600];
        rng.fill(&mut bytes);
        bytes[0] = round;
        // Chunks of all kinds, at the places where they begin.
        for at in (1..bytes.len() - 20).step_by(40) {
            bytes[at] = 10;
            bytes[at + 13] = [0, 1, 2, 3, 4, 6, 10, 130, 192][at / 40 % 9];
            bytes[at + 15] = 0;
            bytes[at + 16] = 24;
        }
        fuzz_sctp(&bytes, now);
    }
}

/// Bytes that a sender as those of other programs (Reno) brings to `receiver` within a minute over 100 ms. With no
/// spacing, packets that were sent together are there together.
fn reno_brings(receiver: End, loss: u8, spacing: Duration, seed: u64) -> usize {
    let mut pair = Pair::new([End::Other(Box::new(Other::new())), receiver]);
    pair.connect([false, true]);
    (pair.delay, pair.spacing) = (50 * MS, spacing);
    pair.open();
    (pair.loss, pair.rng) = (loss, TestRng::new(seed));
    let message = [7; 1402];
    pair.run(Duration::from_secs(60), |pair| {
        while pair.ends[0].send(&message, message.len()) > 0 {}
        pair.seen.clear();
        false
    });
    pair.got[1].len()
}

/// A sender that counts acknowledgements needs three of them to know of a loss. Otherwise it waits for a second and more.
#[test]
fn reno_gets_as_many_acknowledgements_as_from_its_own_kind() {
    // 50 Mbit/s, and a driver that takes many packets at one time.
    for (loss, spacing_us) in [(3, 200), (3, 0), (8, 200), (8, 0)] {
        let sum = |receiver: fn() -> End| -> usize {
            let spacing = Duration::from_micros(spacing_us);
            (0..6).map(|seed| reno_brings(receiver(), loss, spacing, 30 + seed)).sum::<usize>() / 6
        };
        let ours = sum(|| End::ours(9, epoch()));
        let own = sum(|| End::Other(Box::new(Other::new())));
        let figures = format!("loss {loss} of 256, {spacing_us} us: {ours} bytes, its own kind {own}");
        println!("{figures}");
        assert!(ours * 100 >= own * 90, "{figures}");
    }
}
