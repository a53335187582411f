//! One direction of a simulated link: rate, queue, delay, jitter, loss, reordering and duplication, without a socket
//! and without a clock.
//!
//! ```text
//! packet → queue of `queue_len` bytes, tail drop → rate → loss → delay + jitter → [duplicate] → out
//! ```
//!
//! Loss comes after the queue, so that a lost packet has used the link. The same seed and the same calls give the same
//! result; nothing in it depends on when it runs.
//!
//! A crate of its own, without dependencies, for simulations in tests and the lab's emulator share it, and neither may
//! depend on the other.

#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// The effect of a link on packets. The default has none.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    /// Bits per second; 0 is without limit.
    pub rate: u64,
    /// Bytes that wait for the rate, at most.
    pub queue_len: usize,
    /// Bytes added to each packet's length: the headers below.
    pub overhead: usize,
    /// Time from leaving the queue to arriving.
    pub delay: Duration,
    /// At most this much more, evenly spread. Packets overtake each other if it exceeds their distance.
    pub jitter: Duration,
    /// Rule for the packets that are lost.
    pub loss: Loss,
    /// Share of packets that come twice.
    pub duplicates: f64,
    /// Share of packets that are held back by `reorder_by`.
    pub reordered: f64,
    /// Time for which those are held back.
    pub reorder_by: Duration,
}

/// Rule for the packets that are lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// None.
    None,
    /// Each with this probability.
    Random(f64),
    /// All while the link is in a bad state (Gilbert and Elliott): mean loss `enter / (enter + leave)`, mean burst
    /// `1 / leave` packets.
    Burst {
        /// Probability per packet of going bad.
        enter: f64,
        /// Probability per packet of recovering.
        leave: f64,
    },
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            rate: 0,
            queue_len: usize::MAX,
            overhead: 0,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: Loss::None,
            duplicates: 0.0,
            reordered: 0.0,
            reorder_by: Duration::ZERO,
        }
    }
}

/// Counters of packets by their fate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fates {
    /// Packets that were given to the link.
    pub sent: u64,
    /// Packets that found the queue full.
    pub overflowed: u64,
    /// Packets that were lost behind it.
    pub lost: u64,
    /// Bytes that came out, duplicates and overhead included.
    pub delivered_len: u64,
}

/// The fate of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It comes out, perhaps twice.
    Carried,
    /// It found the queue full.
    Overflowed,
    /// It was lost behind the queue.
    Lost,
}

/// One direction, for packets of the type `P`.
#[derive(Debug)]
pub struct Link<P = Vec<u8>> {
    conditions: Conditions,
    rng: Random,
    busy_until: Option<Instant>,
    is_bad: bool,
    /// Earliest first; the number keeps packets of one moment in order.
    on_the_way: BinaryHeap<Reverse<(Instant, u64, P)>>,
    number: u64,
    queue_peak: usize,
    fates: Fates,
}

impl<P: AsRef<[u8]> + Clone + Ord> Link<P> {
    /// An idle link.
    pub fn new(conditions: Conditions, seed: u64) -> Self {
        Self {
            conditions,
            rng: Random(seed),
            busy_until: None,
            is_bad: false,
            on_the_way: BinaryHeap::new(),
            number: 0,
            queue_peak: 0,
            fates: Fates::default(),
        }
    }

    /// Takes a packet.
    pub fn send(&mut self, packet: P, now: Instant) -> Fate {
        self.fates.sent += 1;
        let Some(leaves_at) = self.enqueue(packet.as_ref().len() + self.conditions.overhead, now) else {
            self.fates.overflowed += 1;
            return Fate::Overflowed;
        };
        if self.is_lost() {
            self.fates.lost += 1;
            return Fate::Lost;
        }
        if self.rng.unit() < self.conditions.duplicates {
            let arrives_at = self.arrival(leaves_at);
            self.push(arrives_at, packet.clone());
        }
        let arrives_at = self.arrival(leaves_at);
        self.push(arrives_at, packet);
        Fate::Carried
    }

    /// The next packet that has arrived by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<P> {
        if self.poll_timeout()? > now {
            return None;
        }
        let Reverse((_, _, packet)) = self.on_the_way.pop()?;
        self.fates.delivered_len +=
            u64::try_from(packet.as_ref().len() + self.conditions.overhead).unwrap_or(u64::MAX);
        Some(packet)
    }

    /// When the next packet arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.on_the_way.peek().map(|Reverse((at, ..))| *at)
    }

    /// The counters so far.
    pub fn fates(&self) -> Fates {
        self.fates
    }

    /// Most bytes that have waited for the rate at once since the last call.
    pub fn take_queue_peak(&mut self) -> usize {
        std::mem::take(&mut self.queue_peak)
    }

    /// Changes the link from now on. Packets on their way are not affected.
    pub fn set_conditions(&mut self, conditions: Conditions) {
        self.conditions = conditions;
    }

    /// When a packet of `len` bytes leaves the queue; `None` if it does not fit.
    fn enqueue(&mut self, len: usize, now: Instant) -> Option<Instant> {
        let rate = self.conditions.rate;
        if rate == 0 {
            return Some(now);
        }
        let free_at = self.busy_until.filter(|until| *until > now).unwrap_or(now);
        let backlog = (free_at - now).as_nanos() * u128::from(rate) / 8_000_000_000;
        if backlog + len as u128 > self.conditions.queue_len as u128 {
            return None;
        }
        let waiting = usize::try_from(backlog).unwrap_or(usize::MAX).saturating_add(len);
        self.queue_peak = self.queue_peak.max(waiting);
        let nanos = len as u128 * 8_000_000_000 / u128::from(rate);
        let leaves_at = free_at + Duration::from_nanos(u64::try_from(nanos).expect("packets are short"));
        self.busy_until = Some(leaves_at);
        Some(leaves_at)
    }

    fn is_lost(&mut self) -> bool {
        let draw = self.rng.unit();
        match self.conditions.loss {
            Loss::None => false,
            Loss::Random(share) => draw < share,
            Loss::Burst { enter, leave } => {
                self.is_bad = if self.is_bad { draw >= leave } else { draw < enter };
                self.is_bad
            }
        }
    }

    fn arrival(&mut self, leaves_at: Instant) -> Instant {
        let held_back = self.rng.unit() < self.conditions.reordered;
        let extra = if held_back { self.conditions.reorder_by } else { Duration::ZERO };
        leaves_at + self.conditions.delay + self.conditions.jitter.mul_f64(self.rng.unit()) + extra
    }

    fn push(&mut self, at: Instant, packet: P) {
        self.number += 1;
        self.on_the_way.push(Reverse((at, self.number, packet)));
    }
}

/// `SplitMix64`.
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// A number from 0 to below 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are what a float holds")]
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "the standard library offers no other way to an Instant")]
    fn epoch() -> Instant {
        Instant::now()
    }

    /// Sends `count` packets of 1,000 bytes, `gap` apart, and returns when each that arrived did.
    fn run(conditions: Conditions, count: u32, gap: Duration) -> (Fates, Vec<(u32, Duration)>) {
        let start = epoch();
        let mut link = Link::new(conditions, 1);
        for number in 0..count {
            let mut packet = vec![0; 1000];
            packet[..4].copy_from_slice(&number.to_le_bytes());
            link.send(packet, start + gap * number);
        }
        let mut arrivals = Vec::new();
        while let Some(at) = link.poll_timeout() {
            let packet = link.poll(at).unwrap();
            arrivals.push((u32::from_le_bytes([packet[0], packet[1], packet[2], packet[3]]), at - start));
        }
        (link.fates(), arrivals)
    }

    #[test]
    fn rate_queue_and_delay() {
        let delay = Duration::from_millis(5);
        let conditions = Conditions { rate: 8_000_000, queue_len: 4000, delay, ..Conditions::default() };
        let (fates, arrivals) = run(conditions, 6, Duration::ZERO);
        assert_eq!(fates.overflowed, 2);
        let expected: Vec<_> = (0..4).map(|n| (n, Duration::from_millis(6 + u64::from(n)))).collect();
        assert_eq!(arrivals, expected);
    }

    #[test]
    fn loss_has_the_mean_that_was_asked_for() {
        for loss in [Loss::Random(0.05), Loss::Burst { enter: 0.01, leave: 0.19 }] {
            let conditions = Conditions { loss, ..Conditions::default() };
            let (fates, _) = run(conditions, 20_000, Duration::from_millis(1));
            assert!((800..1200).contains(&fates.lost), "{loss:?}: {}", fates.lost);
        }
    }

    #[test]
    fn losses_come_in_bursts_of_the_length_that_was_asked_for() {
        let conditions =
            Conditions { loss: Loss::Burst { enter: 0.01, leave: 0.2 }, ..Conditions::default() };
        let (fates, arrivals) = run(conditions, 20_000, Duration::from_millis(1));
        let bursts = arrivals.windows(2).filter(|pair| pair[1].0 - pair[0].0 > 1).count() as u64;
        assert!((4 * bursts..6 * bursts).contains(&fates.lost), "{} in {bursts}", fates.lost);
    }

    #[test]
    fn a_caller_learns_what_became_of_a_packet() {
        let conditions =
            Conditions { rate: 8000, queue_len: 100, loss: Loss::Random(1.0), ..Conditions::default() };
        let mut link = Link::new(conditions, 1);
        assert_eq!(link.send(vec![0; 100], epoch()), Fate::Lost);
        assert_eq!((link.take_queue_peak(), link.take_queue_peak()), (100, 0));
        assert_eq!(link.send(vec![0; 101], epoch()), Fate::Overflowed);
        link.set_conditions(Conditions::default());
        assert_eq!(link.send(vec![0; 101], epoch()), Fate::Carried);
    }

    #[test]
    fn duplicates_and_reordering() {
        let (_, arrivals) =
            run(Conditions { duplicates: 0.5, ..Conditions::default() }, 1000, Duration::from_millis(1));
        assert!((1400..1600).contains(&arrivals.len()), "{}", arrivals.len());
        let jitter = Duration::from_millis(10);
        let (_, arrivals) =
            run(Conditions { jitter, ..Conditions::default() }, 1000, Duration::from_millis(1));
        assert!(!arrivals.is_sorted());
        assert_eq!(arrivals.len(), 1000);
    }
}
