//! The beat of an event loop: whether it still turns, and how late it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper ends of the classes of lateness, in microseconds.
pub(crate) const LAG_ENDS_US: [u64; 9] =
    [500, 1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000];
/// An event loop that has not beaten for this long is stuck.
const STUCK: Duration = Duration::from_secs(5);

/// The beat of one event loop: one a second.
#[derive(Debug, Default)]
pub(crate) struct LoopLag {
    /// Milliseconds from the start of the process to the last beat.
    beat_ms: AtomicU64,
    has_ended: AtomicBool,
    /// Beats by lateness; the last one for those that were later still.
    lags: [AtomicU64; LAG_ENDS_US.len() + 1],
    lag_sum_us: AtomicU64,
}

/// Lateness of the beats of one event loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lags {
    /// Beats by class.
    pub(crate) counts: [u64; LAG_ENDS_US.len() + 1],
    /// All of them together, in microseconds.
    pub(crate) sum_us: u64,
}

impl LoopLag {
    /// The loop turns, `late` after it should have, in a process that runs `since` then.
    pub(crate) fn beat(&self, since: Instant, now: Instant, late: Duration) {
        self.beat_ms.store(millis(now.saturating_duration_since(since)), Ordering::Relaxed);
        let late_us = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        let class = LAG_ENDS_US.iter().position(|end| late_us <= *end).unwrap_or(LAG_ENDS_US.len());
        self.lags[class].fetch_add(1, Ordering::Relaxed);
        self.lag_sum_us.fetch_add(late_us, Ordering::Relaxed);
    }

    /// The loop has ended.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Whether the loop has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Whether the loop should turn and has not for a while, in a process that runs `since` then.
    pub(crate) fn is_stuck(&self, since: Instant, now: Instant) -> bool {
        let age =
            millis(now.saturating_duration_since(since)).saturating_sub(self.beat_ms.load(Ordering::Relaxed));
        !self.has_ended() && Duration::from_millis(age) > STUCK
    }

    /// Lateness so far.
    pub(crate) fn lags(&self) -> Lags {
        let counts = std::array::from_fn(|class| self.lags[class].load(Ordering::Relaxed));
        Lags { counts, sum_us: self.lag_sum_us.load(Ordering::Relaxed) }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test needs a first instant")]
    fn a_loop_that_does_not_beat_is_stuck_until_it_does() {
        let (pulse, since) = (LoopLag::default(), Instant::now());
        let at = |seconds| since + Duration::from_secs(seconds);
        assert!(!pulse.is_stuck(since, at(5)) && pulse.is_stuck(since, at(6)));
        pulse.beat(since, at(6), Duration::from_micros(700));
        assert!(!pulse.is_stuck(since, at(11)) && pulse.is_stuck(since, at(12)));
        pulse.beat(since, at(12), Duration::from_secs(9));
        let lags = pulse.lags();
        assert_eq!((lags.counts[1], lags.counts[9], lags.sum_us), (1, 1, 9_000_700));
        pulse.end();
        assert!(!pulse.is_stuck(since, at(100)));
    }
}
