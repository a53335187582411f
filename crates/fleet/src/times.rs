//! Times of calls, by class.

use std::time::Duration;

/// Upper ends of the classes but the last, in microseconds: a store nearby answers within the first, a panel far away within
/// the last ones.
const ENDS_US: [u64; 12] =
    [1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000];

/// Calls by the time that they took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    counts: [u64; ENDS_US.len() + 1],
    sum_us: u64,
}

impl Times {
    /// Upper ends of the classes of [`Self::counts`] but the last, in microseconds.
    pub const ENDS_US: &[u64] = &ENDS_US;

    /// Notes a call.
    pub(crate) fn note(&mut self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.counts[ENDS_US.iter().take_while(|end| took > **end).count()] += 1;
        self.sum_us = self.sum_us.saturating_add(took);
    }

    /// Calls by class; the last one is for those that took longer.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Time of all calls together, in microseconds.
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_in_the_class_of_the_next_end() {
        let mut times = Times::default();
        for micros in [1_000, 1_001, 5_000_001] {
            times.note(Duration::from_micros(micros));
        }
        assert_eq!(
            (times.counts[0], times.counts[1], times.counts[12], times.sum_us()),
            (1, 1, 1, 5_002_002)
        );
        times.note(Duration::MAX);
        assert_eq!((times.counts()[12], times.sum_us()), (2, u64::MAX));
    }
}
