//! Signs of queues in round trips and acknowledgements, here and on the way.

use super::{OVERFLOW_GAIN, RATE_ROUNDS, to_float};

/// Waiting time of packets in a queue.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The newest round trip, and whether it was long.
    pub(super) newest_us: u64,
    pub(super) is_long: bool,
    /// The longest of this cycle, and of the one before.
    pub(super) longest_us: u64,
    pub(super) longest_before_us: u64,
    /// The newest acknowledgement, and the longest time between two of late: what waits at the peer is in no queue.
    acked_us: Option<u64>,
    gap_us: u64,
    /// A queue stood all through the last round, however short.
    pub(super) all_along: bool,
}

/// Back to the rate at which a queue has overflowed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retreat {
    /// Bytes per second.
    pub(super) rate: f64,
    pub(super) from_us: u64,
    pub(super) until_us: u64,
    /// The rate that is allowed now, in bytes per second.
    pub(super) ceiling: f64,
}

#[derive(Debug, Default)]
pub(super) struct Bursts {
    pub(super) since_us: u64,
    pub(super) bytes: u64,
    pub(super) highest: u64,
    pub(super) highest_before: u64,
    pub(super) rounds: usize,
}

/// Acknowledgements every few milliseconds are not late, and none is later than kcptun's modes make it, in microseconds.
const SOON_US: u64 = 4_000;
const MOST_LATE_US: u64 = 50_000;

impl Waits {
    /// An acknowledgement came at `now_us`, after which `in_flight` bytes are under way.
    pub(super) fn note_ack(&mut self, now_us: u64, in_flight: u64) {
        let gap_us = self.acked_us.map_or(0, |before_us| now_us.saturating_sub(before_us));
        self.gap_us = (self.gap_us - self.gap_us / 64).max(gap_us.min(MOST_LATE_US));
        // Nothing comes while there is nothing to tell.
        self.acked_us = (in_flight > 0).then_some(now_us);
    }

    /// Time by which a round trip may be longer because the peer acknowledges seldom, in microseconds.
    pub(super) fn late_us(&self) -> u64 {
        self.gap_us.saturating_sub(SOON_US)
    }

    pub(super) fn sample(&mut self, rtt_us: u64, is_long: bool) {
        self.newest_us = rtt_us;
        self.is_long = is_long;
        self.longest_us = self.longest_us.max(rtt_us);
    }

    /// Whether the queue is about as long as it gets, if the path alone takes `least_us`.
    pub(super) fn is_full(&self, least_us: u64) -> bool {
        let longest_us = self.longest_us.max(self.longest_before_us);
        self.is_long && self.newest_us.saturating_sub(least_us) * 4 > longest_us.saturating_sub(least_us) * 3
    }

    pub(super) fn turn(&mut self) {
        self.longest_before_us = std::mem::take(&mut self.longest_us);
    }
}

impl Retreat {
    /// Along a cubic: quickly at first, slowly near what was too much.
    pub(super) fn turn(&mut self, now_us: u64) {
        let left = to_float(self.until_us.saturating_sub(now_us)) / to_float(self.until_us - self.from_us);
        self.ceiling = self.rate * (1.0 - (1.0 - OVERFLOW_GAIN) * left.powi(3));
    }
}

impl Bursts {
    pub(super) fn highest(&self) -> u64 {
        self.highest.max(self.highest_before)
    }

    /// Never more than what fits, nor than acknowledgements every [`super::ACK_INTERVAL_S`] explain: beyond is what was lost
    /// and has been made good.
    pub(super) fn note(&mut self, bytes: u64, most: u64) {
        self.highest = self.highest.max(bytes.min(most));
    }

    pub(super) fn turn(&mut self) {
        self.rounds += 1;
        if self.rounds == RATE_ROUNDS {
            self.rounds = 0;
            self.highest_before = std::mem::take(&mut self.highest);
        }
    }
}
