//! Downloads over a simulated link, between two peers and nothing else: the figures of SCTP and DTLS alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use adit_testkit::epoch;
use adit_testkit::netem::{Conditions, Link, Loss};

use super::sdp::SdpDescription;
use super::tests::{TestRng, UNIX, addr};
use super::*;

/// Bits per second of the link, and its round trip.
const RATE: u64 = 50_000_000;
const RTT: Duration = Duration::from_millis(100);
/// Bytes of one round trip.
const PRODUCT: usize = 625_000;
/// Headers of IP and UDP.
const OVERHEAD: usize = 28;

/// A transfer from the answerer, the proxy, to the offerer.
struct Path {
    ends: [Peer; 2],
    /// From each end to the other.
    links: [Link; 2],
    now: Instant,
    got: usize,
    is_idle: bool,
    /// Another flow on the way to the offerer.
    cubic: Option<Cubic>,
}

/// A flow of TCP with CUBIC (RFC 9438) that always has something to send. Its windows count packets.
struct Cubic {
    window: f64,
    threshold: f64,
    /// The window at the last loss, and the one before which it is reached again, and when that loss was.
    highest: f64,
    reno: f64,
    lost_at: Option<Instant>,
    next: u64,
    recover: u64,
    under_way: VecDeque<u64>,
    /// Acknowledgements on their way back.
    acks: VecDeque<(Instant, u64)>,
    heard_at: Instant,
    got: usize,
}

/// A packet of that flow, headers of IP left out.
const CUBIC_LEN: usize = 1472;

impl Cubic {
    fn new(now: Instant) -> Self {
        Self {
            window: 10.0,
            threshold: f64::MAX,
            highest: 0.0,
            reno: 0.0,
            lost_at: None,
            next: 0,
            recover: 0,
            under_way: VecDeque::new(),
            acks: VecDeque::new(),
            heard_at: now,
            got: 0,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "windows are small")]
    fn send(&mut self, link: &mut Link, now: Instant) {
        while (self.under_way.len() as f64) < self.window.max(2.0) {
            let mut packet = vec![0xff; CUBIC_LEN];
            packet[1..9].copy_from_slice(&self.next.to_be_bytes());
            self.under_way.push_back(self.next);
            self.next += 1;
            link.send(packet, now);
        }
    }

    fn arrive(&mut self, packet: &[u8], now: Instant) {
        self.got += packet.len();
        self.acks.push_back((now + RTT / 2, u64::from_be_bytes(packet[1..9].try_into().unwrap())));
    }

    fn turn(&mut self, now: Instant) {
        while self.acks.front().is_some_and(|(at, _)| *at <= now) {
            let (_, number) = self.acks.pop_front().unwrap();
            let Ok(at) = self.under_way.binary_search(&number) else { continue };
            self.heard_at = now;
            self.under_way.remove(at);
            self.grow(now);
            while self.under_way.front().is_some_and(|oldest| oldest + 3 < number) {
                let lost = self.under_way.pop_front().unwrap();
                self.lose(lost, now);
            }
        }
        if now > self.heard_at + 10 * RTT && !self.under_way.is_empty() {
            self.under_way.clear();
            (self.window, self.heard_at, self.recover) = (2.0, now, self.next);
        }
    }

    fn grow(&mut self, now: Instant) {
        let Some(lost_at) = self.lost_at.filter(|_| self.window >= self.threshold) else {
            self.window += 1.0;
            return;
        };
        let center = (self.highest * 0.3 / 0.4).cbrt();
        let time = (now + RTT - lost_at).as_secs_f64();
        let target = 0.4 * (time - center).powi(3) + self.highest;
        self.reno += 0.53 / self.window;
        self.window += ((target - self.window) / self.window).clamp(0.0, 0.5);
        self.window = self.window.max(self.reno);
    }

    fn lose(&mut self, number: u64, now: Instant) {
        if number < self.recover {
            return;
        }
        self.recover = self.next;
        self.highest = if self.window < self.highest { self.window * 0.85 } else { self.window };
        self.window = (self.window * 0.7).max(2.0);
        (self.threshold, self.reno, self.lost_at) = (self.window, self.window, Some(now));
    }
}

impl Path {
    fn new(loss: f64, queue_len: usize, seed: u64, settings: &PeerSettings) -> Self {
        let now = epoch();
        let mut rng = TestRng::new(seed);
        let mut make = |role, at| {
            let mut peer = Peer::new(role, settings.clone(), "snowflake-x", &mut rng, now, UNIX).unwrap();
            peer.add_host(addr(at), true);
            peer
        };
        let mut ends = [make(PeerRole::Offerer, 0), make(PeerRole::Answerer, 1)];
        let offer = SdpDescription::parse(&ends[0].describe()).unwrap();
        ends[1].set_remote(&offer, now).unwrap();
        let answer = SdpDescription::parse(&ends[1].describe()).unwrap();
        ends[0].set_remote(&answer, now).unwrap();
        let conditions = Conditions {
            rate: RATE,
            queue_len,
            overhead: OVERHEAD,
            delay: RTT / 2,
            loss: if loss > 0.0 { Loss::Random(loss) } else { Loss::None },
            ..Conditions::default()
        };
        let links = [seed, seed + 1].map(|seed| Link::new(conditions, seed));
        Self { ends, links, now, got: 0, is_idle: false, cubic: None }
    }

    fn step(&mut self) {
        let mut out = Outbox::default();
        while !self.is_idle && self.ends[1].send(&[7; 1402]) {}
        for at in 0..2 {
            self.ends[at].poll_transmit(self.now, &mut out);
            for datagram in &out.datagrams {
                let bytes = out.block[datagram.start..datagram.start + datagram.len].to_vec();
                self.links[at].send(bytes, self.now);
            }
            out.clear();
        }
        if let Some(cubic) = &mut self.cubic {
            cubic.turn(self.now);
            cubic.send(&mut self.links[1], self.now);
        }
        let ack = self.cubic.as_ref().and_then(|cubic| cubic.acks.front().map(|(at, _)| *at));
        let timers = self.ends.iter_mut().filter_map(Peer::poll_timeout).min();
        let next = self.links.iter().filter_map(Link::poll_timeout).chain(timers).chain(ack).min();
        let floor = self.now + Duration::from_micros(50);
        self.now = next.unwrap_or(floor).max(floor);
        for at in 0..2 {
            while let Some(bytes) = self.links[1 - at].poll(self.now) {
                if let Some(cubic) = self.cubic.as_mut().filter(|_| bytes.len() == CUBIC_LEN) {
                    cubic.arrive(&bytes, self.now);
                    continue;
                }
                self.ends[at].handle_datagram(&bytes, addr(1 - at), addr(at), self.now);
            }
            self.ends[at].handle_timeout(self.now);
        }
        let mut read = Vec::new();
        self.ends[0].recv(&mut read, usize::MAX);
        self.got += read.len();
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// Share of the link that a download of `seconds` reaches, behind the first 5 s.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    fn share(&mut self, seconds: u64) -> f64 {
        self.run(Duration::from_secs(5));
        let before = self.got;
        self.run(Duration::from_secs(seconds));
        assert!(self.ends.iter().all(Peer::is_open), "{:?}", self.ends);
        (self.got - before) as f64 * 8.0 / seconds as f64 / RATE as f64
    }
}

#[test]
fn a_path_is_filled_in_spite_of_losses() {
    for (loss, least) in [(0.0, 0.85), (0.01, 0.8), (0.03, 0.75)] {
        let share = Path::new(loss, PRODUCT / 4, 3, &PeerSettings::default()).share(3);
        assert!(share >= least, "{share:.3} of the link at a loss of {loss}");
    }
}

/// Shares of the link of a flow with CUBIC and of the download beside it, once both run.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn beside_cubic(queue: usize, lead: u64, seconds: u64) -> (f64, f64) {
    let mut path = Path::new(0.0, queue, 5, &PeerSettings::default());
    // The one that comes second has to be let in.
    path.run(Duration::from_secs(lead));
    path.cubic = Some(Cubic::new(path.now));
    path.run(Duration::from_secs(15));
    let before = (path.cubic.as_ref().unwrap().got, path.got);
    path.run(Duration::from_secs(seconds));
    let after = (path.cubic.as_ref().unwrap().got, path.got);
    let share = |bytes: usize| bytes as f64 * 8.0 / seconds as f64 / RATE as f64;
    (share(after.0 - before.0), share(after.1 - before.1))
}

#[test]
fn a_flow_with_cubic_gets_a_quarter() {
    let (cubic, ours) = beside_cubic(PRODUCT, 5, 20);
    assert!(cubic >= 0.25, "CUBIC {cubic:.3}, beside {ours:.3}");
}

#[test]
#[ignore = "prints figures: shares of 50 Mbit/s, 100 ms, with a flow of CUBIC beside"]
fn download_beside_cubic() {
    println!("queue KB  lead s  CUBIC  download");
    for queue in [PRODUCT / 4, PRODUCT, 2 * PRODUCT] {
        for lead in [1, 10] {
            let (cubic, ours) = beside_cubic(queue, lead, 30);
            println!("{:>8} {lead:>7} {cubic:>6.3} {ours:>9.3}", queue / 1000);
        }
    }
}

#[test]
#[ignore = "prints figures: 50 Mbit/s, 100 ms, by loss, queue and send buffer"]
fn download_over_a_long_path() {
    println!("loss %  queue KB  send buffer KiB  Mbit/s");
    for loss in [0.0, 0.01, 0.03] {
        for queue in [PRODUCT / 4, PRODUCT] {
            for send_buffer in [512 << 10, 1 << 20] {
                let settings = PeerSettings { send_buffer, ..PeerSettings::default() };
                let mean = Path::new(loss, queue, 3, &settings).share(10) * 50.0;
                println!("{:>6} {:>9} {:>16} {mean:>7.2}", loss * 100.0, queue / 1000, send_buffer >> 10);
            }
        }
    }
}

/// Resident bytes of this process.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "prints figures: KiB of a connection that is half open, and of one that is idle after a megabyte"]
fn memory_of_connections() {
    const HALF_OPEN: usize = 10_000;
    const IDLE: usize = 50;
    // First, so that nothing that was given back is used again.
    let before = resident();
    let paths: Vec<Path> = (0..IDLE)
        .map(|at| {
            let mut path = Path::new(0.0, PRODUCT, at as u64, &PeerSettings::default());
            path.run(Duration::from_secs(2));
            let has_sent = path.got > 1_000_000;
            // Nothing more is sent.
            path.is_idle = true;
            path.run(Duration::from_secs(5));
            assert!(has_sent && path.ends.iter().all(Peer::is_open));
            path
        })
        .collect();
    println!("idle, both ends and two links: {} KiB", (resident() - before) / IDLE / 1024);
    assert_eq!(paths.len(), IDLE);
    let (now, mut rng) = (epoch(), TestRng::new(8));
    let mut offerer =
        Peer::new(PeerRole::Offerer, PeerSettings::default(), "snowflake-x", &mut rng, now, UNIX).unwrap();
    offerer.add_host(addr(0), true);
    let offer = SdpDescription::parse(&offerer.describe()).unwrap();
    let before = resident();
    let mut half_open = Vec::new();
    let mut out = Outbox::default();
    for _ in 0..HALF_OPEN {
        let mut peer =
            Peer::new(PeerRole::Answerer, PeerSettings::default(), "", &mut rng, now, UNIX).unwrap();
        peer.add_host(addr(1), true);
        peer.set_remote(&offer, now).unwrap();
        peer.poll_transmit(now, &mut out);
        out.clear();
        half_open.push(peer);
    }
    println!("half open: {} KiB", (resident() - before) / HALF_OPEN / 1024);
    assert_eq!(half_open.len(), HALF_OPEN);
}
