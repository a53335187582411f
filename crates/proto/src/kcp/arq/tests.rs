use std::time::Instant;

use adit_testkit::epoch;
use adit_testkit::netem::{Conditions, Link, Loss};
use proptest::{prop_assert, proptest};

use super::*;

/// Two conversations and the links between them.
struct Pair {
    now: Instant,
    ends: [Arq; 2],
    /// From end 0 to end 1, and back.
    links: [Link; 2],
    received: [Vec<u8>; 2],
}

fn settings() -> ArqSettings {
    ArqSettings {
        nodelay: true,
        interval: Duration::from_millis(20),
        resend: 2,
        congestion: false,
        send_window: 128,
        recv_window: 128,
        mtu: 500,
        ..ArqSettings::default()
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 7 + at / 256) % 256).unwrap()).collect()
}

impl Pair {
    fn new(settings: &ArqSettings, conditions: Conditions) -> Self {
        let now = epoch();
        Self {
            now,
            ends: [Arq::new(9, settings.clone(), now), Arq::new(9, settings.clone(), now)],
            links: [Link::new(conditions, 1), Link::new(conditions, 2)],
            received: Default::default(),
        }
    }

    fn transmit(&mut self) {
        for (end, link) in self.ends.iter_mut().zip(&mut self.links) {
            let mut datagram = Vec::new();
            while end.poll_transmit(self.now, &mut datagram) {
                link.send(std::mem::take(&mut datagram), self.now);
            }
        }
    }

    /// Goes to the next thing that happens; false if nothing ever will.
    fn step(&mut self) -> bool {
        self.transmit();
        let times = self.ends.iter().map(Arq::poll_timeout).chain(self.links.iter().map(Link::poll_timeout));
        let Some(next) = times.flatten().min() else { return false };
        self.now = self.now.max(next);
        for (from, to) in [(0, 1), (1, 0)] {
            while let Some(datagram) = self.links[from].poll(self.now) {
                self.ends[to].handle_datagram(&datagram, Arrival::Received, self.now).unwrap();
            }
        }
        true
    }

    fn read(&mut self) {
        for (end, received) in self.ends.iter_mut().zip(&mut self.received) {
            while !end.peek().is_empty() {
                let len = end.peek().len();
                received.extend(end.peek());
                end.consume(len);
            }
        }
    }

    /// Moves both texts across, in at most `limit` of simulated time.
    fn exchange(&mut self, texts: [&[u8]; 2], limit: Duration) {
        let deadline = self.now + limit;
        let mut sent = [0, 0];
        while self.received[1].len() < texts[0].len() || self.received[0].len() < texts[1].len() {
            for end in 0..2 {
                sent[end] += self.ends[end].send(&texts[end][sent[end]..]);
            }
            assert!(self.step() && self.now < deadline, "stuck with {sent:?} sent");
            self.read();
        }
        assert!(self.received[1] == texts[0] && self.received[0] == texts[1]);
    }
}

fn lossy(loss: Loss) -> Conditions {
    Conditions { delay: Duration::from_millis(20), loss, ..Conditions::default() }
}

/// A proxy whose SCTP waits for its timer delivers everything, seconds later.
#[test]
fn a_stream_that_stands_still_is_waited_for_and_a_new_one_gets_all_at_once() {
    let settings = ArqSettings { steady: true, tuning: Some(1 << 20), ..settings() };
    let mut pair = Pair::new(&settings, lossy(Loss::None));
    let text = bytes(200_000);
    pair.exchange([&text[..60_000], &[]], Duration::from_secs(30));
    assert_eq!(pair.ends[0].stats().sent_again, 0);
    // Everything that is under way comes 4 s later.
    let mut sent = 60_000;
    sent += pair.ends[0].send(&text[sent..]);
    pair.transmit();
    let still = pair.now + Duration::from_secs(4);
    while pair.ends[0].poll_timeout().is_some_and(|at| at < still) {
        pair.now = pair.ends[0].poll_timeout().unwrap().max(pair.now);
        pair.transmit();
    }
    pair.now = still;
    assert!(pair.step());
    pair.read();
    assert_eq!(pair.ends[0].stats().sent_again, 0);
    // All that is under way is lost with its stream: what follows needs no timeout.
    loop {
        sent += pair.ends[0].send(&text[sent..]);
        let before = pair.ends[0].stats().sent;
        pair.transmit();
        if pair.ends[0].stats().sent > before && sent >= 100_000 {
            break;
        }
        assert!(pair.step());
        pair.read();
    }
    let conditions = lossy(Loss::None);
    pair.links = [Link::new(conditions, 3), Link::new(conditions, 4)];
    pair.ends.iter_mut().for_each(Arq::handle_new_stream);
    let began = pair.now;
    while pair.received[1].len() < sent {
        assert!(pair.step());
        pair.read();
    }
    assert!(pair.now - began < Duration::from_secs(2), "{:?}", pair.now - began);
    assert!(pair.received[1] == text[..sent]);
    let stats = pair.ends[0].stats();
    assert!(stats.sent_again > 0 && stats.timed_out == 0, "{stats:?}");
}

#[test]
fn every_mode_over_a_bad_link() {
    let jitter = Duration::from_millis(9);
    let conditions = Conditions { jitter, duplicates: 0.02, ..lossy(Loss::Random(0.1)) };
    for (nodelay, interval, resend, congestion) in [
        (false, 40, 2, false),
        (false, 30, 2, false),
        (true, 20, 2, false),
        (true, 10, 2, false),
        (false, 50, 0, true),
        (true, 10, 1, true),
    ] {
        for (stream, tuning) in [(true, None), (false, None), (true, Some(1 << 20))] {
            let settings = ArqSettings {
                nodelay,
                interval: Duration::from_millis(interval),
                resend,
                congestion,
                stream,
                tuning,
                ..settings()
            };
            let mut pair = Pair::new(&settings, conditions);
            pair.exchange([&bytes(40_000), &bytes(20_000)], Duration::from_secs(60));
        }
    }
}

/// A peer that was started anew shows within seconds, whether what comes lies in its window or beyond.
#[test]
fn a_peer_that_has_forgotten_shows() {
    for len in [10_000, 400_000] {
        let mut pair = Pair::new(&settings(), lossy(Loss::None));
        pair.exchange([&bytes(len), &bytes(1000)], Duration::from_secs(60));
        while !pair.ends[0].is_flushed() && pair.step() {}
        pair.now += Duration::from_micros(LATE_US) + Duration::from_secs(1);
        pair.ends[1] = Arq::new(9, settings(), pair.now);
        pair.ends[0].send(b"more");
        let until = pair.now + Duration::from_secs(4);
        while !pair.ends[0].is_forgotten() {
            assert!(pair.step() && pair.now < until, "{len}: {:?}", pair.ends[0].memory);
            pair.read();
        }
    }
}

/// A datagram that the peer sent long ago ends nothing when somebody repeats it.
#[test]
fn an_old_datagram_is_no_news() {
    let mut pair = Pair::new(&settings(), lossy(Loss::None));
    pair.ends[1].send(b"first");
    let mut old = Vec::new();
    assert!(pair.ends[1].poll_transmit(pair.now, &mut old));
    pair.exchange([&bytes(10_000), &[]], Duration::from_secs(60));
    pair.now += Duration::from_micros(2 * LATE_US);
    for _ in 0..10 {
        pair.ends[0].handle_datagram(&old, Arrival::Received, pair.now).unwrap();
        let until = pair.now + Duration::from_secs(1);
        while pair.now < until && pair.step() {
            pair.read();
        }
        assert!(!pair.ends[0].is_forgotten());
    }
}

#[test]
fn numbers_wrap() {
    let mut pair = Pair::new(&settings(), lossy(Loss::Random(0.05)));
    let start = 0_u32.wrapping_sub(20);
    for end in &mut pair.ends {
        end.sender.start_at(start);
        end.receiver.start_at(start);
        // The clock wraps as well, 200 ms from here.
        end.epoch = pair.now;
    }
    pair.now += Duration::from_millis(u64::from(u32::MAX) - 200);
    pair.exchange([&bytes(60_000), &bytes(60_000)], Duration::from_secs(20));
    assert!(pair.ends[0].sender.una() < 1000);
}

#[test]
fn bursts_and_one_way_loss() {
    let mut pair = Pair::new(&settings(), lossy(Loss::Burst { enter: 0.02, leave: 0.1 }));
    pair.exchange([&bytes(100_000), &[]], Duration::from_secs(60));
    let mut pair = Pair::new(&settings(), lossy(Loss::None));
    pair.links[1].set_conditions(lossy(Loss::Random(0.5)));
    pair.exchange([&bytes(100_000), &[]], Duration::from_secs(60));
}

#[test]
fn long_gaps_count_once() {
    let mut sender = ArqSender::new();
    let rto = Rto::new(false, 30, true);
    sender.enqueue(&bytes(3000), 100, false);
    for _ in 0..30 {
        assert!(sender.send_new(Sent::default(), &rto).is_some());
    }
    // Missing are 0, 2, and 5 to 24.
    let mut acks: Vec<_> = [1, 3, 4].into_iter().chain(25..30).map(|sn| (sn, 0)).collect();
    for &(sn, ts) in &acks {
        sender.acknowledge(sn, ts, &mut Delivery::default());
    }
    let len = 100 + SEGMENT_HEADER_LEN;
    assert_eq!(sender.overtake(&mut acks, 2), Overtaken { bytes: 22 * len, scattered: 6 * len });
    assert_eq!(sender.overtake(&mut acks, 2), Overtaken::default());
}

#[test]
fn timeouts_alone_are_not_sent_twice() {
    let mut arq = Arq::new(9, ArqSettings { tuning: Some(1 << 20), ..settings() }, epoch());
    arq.send(&bytes(400));
    let mut now = epoch();
    let mut sent = Vec::new();
    for _ in 0..3 {
        let mut datagram = Vec::new();
        while arq.poll_transmit(now, &mut datagram) {
            sent.push(now - epoch());
        }
        now += Duration::from_secs(1);
    }
    assert_eq!(sent.len(), 3, "{sent:?}");
    assert!(!arq.sender.was_lost_again());
}

#[test]
fn reader_that_pauses() {
    let mut pair = Pair::new(&settings(), lossy(Loss::Random(0.02)));
    let text = bytes(300_000);
    let mut sent = 0;
    let until = pair.now + Duration::from_secs(20);
    while pair.now < until {
        sent += pair.ends[0].send(&text[sent..]);
        pair.step();
    }
    // The data that it holds is bounded by the two windows, and the sender has come to a halt.
    assert!(pair.ends[1].held() <= 2 * 128 * 476, "{}", pair.ends[1].held());
    assert!(pair.ends[0].held() <= 128 * 476 + MAX_QUEUED);
    assert_eq!(pair.ends[0].remote_window, 0);
    pair.read();
    while pair.received[1].len() < text.len() {
        sent += pair.ends[0].send(&text[sent..]);
        assert!(pair.step() && pair.now < until + Duration::from_secs(20));
        pair.read();
    }
    assert!(pair.received[1] == text);
}

#[test]
fn closed_window_is_asked_for() {
    let now = epoch();
    let mut arq = Arq::new(1, settings(), now);
    let closed = ArqSegment { conv: 1, cmd: TELL, frg: 0, wnd: 0, ts: 0, sn: 0, una: 0, data: &[] };
    let mut datagram = Vec::new();
    closed.emit(&mut datagram);
    arq.handle_datagram(&datagram, Arrival::Received, now).unwrap();
    assert_eq!(arq.room(), 0);
    let mut asked = Vec::new();
    let mut at = now;
    for _ in 0..4 {
        let mut out = Vec::new();
        if arq.poll_transmit(at, &mut out) {
            assert_eq!(ArqSegment::parse(&out).unwrap().0.cmd, ASK);
            asked.push((at - now).as_millis());
        }
        at = arq.poll_timeout().unwrap();
    }
    assert_eq!(asked, [500, 1250, 2375]);
}

#[test]
fn recovered_datagrams_tell_no_window() {
    let now = epoch();
    let mut arq = Arq::new(1, settings(), now);
    let mut datagram = Vec::new();
    ArqSegment { conv: 1, cmd: PUSH, frg: 0, wnd: 0, ts: 0, sn: 0, una: 0, data: b"hi" }.emit(&mut datagram);
    arq.handle_datagram(&datagram, Arrival::Recovered, now).unwrap();
    assert_eq!((arq.remote_window, arq.peek()), (INITIAL_REMOTE_WINDOW, &b"hi"[..]));
}

#[test]
fn acknowledgements_are_thinned() {
    let now = epoch();
    let mut arq = Arq::new(1, ArqSettings { ack_no_delay: true, ..settings() }, now);
    let mut datagram = Vec::new();
    for sn in [0, 1, 2, 5, 6, 0] {
        ArqSegment { conv: 1, cmd: PUSH, frg: 0, wnd: 9, ts: sn + 50, sn, una: 0, data: b"x" }
            .emit(&mut datagram);
    }
    arq.handle_datagram(&datagram, Arrival::Received, now).unwrap();
    let mut out = Vec::new();
    assert!(arq.poll_transmit(now, &mut out));
    let mut rest = &out[..];
    let mut told = Vec::new();
    while !rest.is_empty() {
        let (segment, more) = ArqSegment::parse(rest).unwrap();
        told.push((segment.cmd, segment.sn, segment.ts, segment.una));
        rest = more;
    }
    // Of what `una` covers only the last, which came twice.
    assert_eq!(told, [(ACK, 5, 55, 3), (ACK, 6, 56, 3), (ACK, 0, 50, 3)]);
}

#[test]
fn other_conversations_are_refused() {
    let now = epoch();
    let mut arq = Arq::new(1, settings(), now);
    let mut datagram = Vec::new();
    ArqSegment { conv: 1, cmd: PUSH, frg: 0, wnd: 9, ts: 0, sn: 0, una: 0, data: b"mine" }
        .emit(&mut datagram);
    ArqSegment { conv: 2, cmd: PUSH, frg: 0, wnd: 9, ts: 0, sn: 1, una: 0, data: b"stale" }
        .emit(&mut datagram);
    let error = arq.handle_datagram(&datagram, Arrival::Received, now).unwrap_err();
    assert_eq!(error, WireError::Malformed { what: "kcp conversation", got: 2 });
    assert_eq!(arq.peek(), b"mine");
    for len in 1..SEGMENT_HEADER_LEN + 4 {
        let cut = arq.handle_datagram(&datagram[..len], Arrival::Received, now);
        assert_eq!(cut, Err(WireError::Truncated { what: "kcp segment" }), "cut to {len}");
    }
    datagram[4] = 80;
    assert!(arq.handle_datagram(&datagram, Arrival::Received, now).is_err());
}

#[test]
fn dead_link_shows() {
    let mut pair = Pair::new(&settings(), lossy(Loss::Random(1.0)));
    pair.ends[0].send(b"into the void");
    while !pair.ends[0].is_dead() {
        assert!(pair.step());
    }
    assert_eq!(pair.ends[0].stats().sent, u64::from(DEAD_LINK));
}

#[test]
fn idle_sessions_hold_little() {
    let mut pair = Pair::new(&settings(), lossy(Loss::Random(0.02)));
    pair.exchange([&bytes(500_000), &bytes(500_000)], Duration::from_secs(60));
    while !pair.ends.iter().all(Arq::is_flushed) {
        assert!(pair.step());
    }
    assert!(pair.ends.iter().all(|end| end.held() == 0));
    while pair.step() {}
    for end in &pair.ends {
        let spare = (end.sender.spare(), end.receiver.spare());
        assert!(spare.0 <= 2 && spare.1 <= 2, "{spare:?}");
    }
}

/// A window may be empty between two writes.
#[test]
fn buffers_are_used_again_while_data_flows() {
    let mut pair =
        Pair::new(&settings(), Conditions { delay: Duration::from_millis(1), ..Conditions::default() });
    for _ in 0..10 {
        pair.received = Default::default();
        pair.exchange([&bytes(10_000), &[]], Duration::from_secs(60));
        while !pair.ends[0].is_flushed() {
            assert!(pair.step());
        }
    }
    assert!(pair.ends[0].sender.spare() > 8, "{}", pair.ends[0].sender.spare());
}

/// Segments that were cut for longer datagrams arrive too.
#[test]
fn datagrams_that_become_shorter() {
    let mut pair = Pair::new(&settings(), lossy(Loss::Random(0.1)));
    let text = bytes(30_000);
    let mut sent = pair.ends[0].send(&text);
    pair.ends[0].set_mtu(300);
    while pair.received[1].len() < text.len() {
        sent += pair.ends[0].send(&text[sent..]);
        let mut datagram = Vec::new();
        while pair.ends[0].poll_transmit(pair.now, &mut datagram) {
            let is_single = ArqSegment::parse(&datagram).unwrap().1.is_empty();
            assert!(datagram.len() <= 300 || is_single && datagram.len() <= 500);
            pair.links[0].send(std::mem::take(&mut datagram), pair.now);
        }
        assert!(pair.step());
        pair.read();
    }
    assert!(pair.received[1] == text);
}

#[test]
fn a_full_window_is_what_limits() {
    let mut pair = Pair::new(&ArqSettings { tuning: Some(1 << 20), ..settings() }, lossy(Loss::None));
    assert_eq!(pair.ends[0].limit(), Limit::Source);
    let text = bytes(2_000_000);
    let mut sent = 0;
    for _ in 0..2000 {
        sent += pair.ends[0].send(&text[sent..]);
        assert!(pair.step());
        pair.read();
        let (under_way, window) = pair.ends[0].under_way();
        if under_way == window && window == 128 {
            let limit = pair.ends[0].limit();
            assert!(matches!(limit, Limit::SendWindow | Limit::RemoteWindow), "{limit:?}");
            return;
        }
    }
    panic!("the window was never full");
}

proptest! {
    #[test]
    fn any_bytes(data: Vec<u8>) {
        fuzz_arq(&data, epoch());
    }

    #[test]
    fn any_order(seed: u64, loss in 0.0..0.3) {
        let conditions = Conditions {
            loss: Loss::Random(loss),
            jitter: Duration::from_millis(60),
            duplicates: 0.1,
            ..lossy(Loss::None)
        };
        let mut pair = Pair::new(&settings(), conditions);
        pair.links[0] = Link::new(conditions, seed);
        pair.exchange([&bytes(20_000), &bytes(2_000)], Duration::from_secs(60));
        prop_assert!(pair.received[0].len() == 2_000);
    }
}

/// Data that is not admitted is treated as lost: the other end sends it again, and everything arrives once it may.
#[test]
fn a_receiver_takes_no_more_than_it_admits() {
    let mut pair = Pair::new(&settings(), Conditions::default());
    pair.ends[1].set_admission(Admission::Nothing);
    let sent = bytes(60_000);
    let mut left = &sent[..];
    let mut offer = |end: &mut Arq| left = &left[end.send(left)..];
    for _ in 0..200 {
        offer(&mut pair.ends[0]);
        pair.step();
    }
    assert_eq!((pair.ends[1].held(), pair.ends[1].receiver.free_window()), (0, 0));
    // Segments that come out of order are not kept, those in order are; the peer is given a narrow window.
    pair.ends[1].set_admission(Admission::Next);
    assert_eq!(pair.ends[1].receiver.free_window(), 32);
    let next = pair.ends[1].receiver.next();
    pair.ends[1].receiver.push(next.wrapping_add(1), 0, &[1; 100]);
    assert_eq!((pair.ends[1].receiving_footprint(), pair.ends[1].receiver.acks.len()), (0, 0));
    while pair.received[1].len() < sent.len() {
        offer(&mut pair.ends[0]);
        assert!(pair.step(), "it goes on");
        pair.read();
        assert_eq!(pair.ends[1].receiver.held(), pair.ends[1].readable(), "nothing waits for gaps");
    }
    assert!(pair.received[1] == sent);
}
