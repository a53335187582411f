//! Downloads over a simulated link, between two peers and nothing else: the figures of SCTP and DTLS alone.

use std::time::{Duration, Instant};

use adit_testkit::epoch;
use adit_testkit::netem::{Conditions, Link, Loss};

use super::sdp::Description;
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
}

impl Path {
    fn new(loss: f64, queue_len: usize, seed: u64, settings: &Settings) -> Self {
        let now = epoch();
        let mut rng = TestRng::new(seed);
        let mut make = |role, at| {
            let mut peer = Peer::new(role, settings.clone(), "snowflake-x", &mut rng, (now, UNIX)).unwrap();
            peer.add_host(addr(at), true);
            peer
        };
        let mut ends = [make(Role::Offerer, 0), make(Role::Answerer, 1)];
        let offer = Description::parse(&ends[0].describe()).unwrap();
        ends[1].set_remote(&offer, now).unwrap();
        let answer = Description::parse(&ends[1].describe()).unwrap();
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
        Self { ends, links, now, got: 0 }
    }

    fn step(&mut self) {
        let mut out = Outbox::default();
        while self.ends[1].send(&[7; 1402]) {}
        for at in 0..2 {
            self.ends[at].poll_transmit(self.now, &mut out);
            for datagram in &out.datagrams {
                let bytes = out.block[datagram.start..datagram.start + datagram.len].to_vec();
                self.links[at].send(bytes, self.now);
            }
            out.clear();
        }
        let timers = self.ends.iter_mut().filter_map(Peer::poll_timeout).min();
        let next = self.links.iter().filter_map(Link::poll_timeout).chain(timers).min();
        let floor = self.now + Duration::from_micros(50);
        self.now = next.unwrap_or(floor).max(floor);
        for at in 0..2 {
            while let Some(bytes) = self.links[1 - at].poll(self.now) {
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
fn a_path_without_losses_is_filled() {
    let share = Path::new(0.0, PRODUCT, 3, &Settings::default()).share(3);
    assert!(share >= 0.85, "{share:.3} of the link");
}

#[test]
#[ignore = "prints figures: 50 Mbit/s, 100 ms, by loss, queue and send buffer"]
fn download_over_a_long_path() {
    println!("loss %  queue KB  send buffer KiB  Mbit/s");
    for loss in [0.0, 0.01] {
        for queue in [PRODUCT / 4, PRODUCT] {
            for send_buffer in [512 << 10, 1 << 20, 2 << 20] {
                let settings = Settings { send_buffer, ..Settings::default() };
                let mean = Path::new(loss, queue, 3, &settings).share(5) * 50.0;
                println!("{:>6} {:>9} {:>16} {mean:>7.2}", loss * 100.0, queue / 1000, send_buffer >> 10);
            }
        }
    }
}
