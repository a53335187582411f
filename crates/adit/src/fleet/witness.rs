//! Clocks of others. A new period of a quota needs two that agree, where there is another one: a clock that is wrong would
//! give quotas away, or take them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_config::map::Map;
use adit_core::Usage;
use adit_net::rt;

/// Clocks that differ by more do not agree, in seconds.
const MOST_S: i64 = 300;
/// A clock that is off by more breaks protocols with timestamps, in seconds.
const BROKEN_S: i64 = 30;
/// So long after the start a witness is waited for; then this machine's clock is believed.
const PATIENCE: Duration = Duration::from_secs(600);

/// The witnesses of a process.
pub(super) struct Witnesses {
    usage: Usage,
    since: Instant,
    skews: Mutex<Map<&'static str, i64>>,
}

impl Witnesses {
    pub(super) fn new(usage: Usage) -> Self {
        Self { usage, since: rt::now(), skews: Mutex::default() }
    }

    /// A witness is ahead of this machine by so many seconds.
    pub(super) fn note(&self, witness: &'static str, seconds: i64) {
        let before = self.skews.lock().unwrap_or_else(PoisonError::into_inner).insert(witness, seconds);
        if seconds.abs() > BROKEN_S && before.is_none_or(|before| before.abs() <= BROKEN_S) {
            tracing::error!(
                witness,
                seconds,
                "the clocks differ: protocols with timestamps fail, and no period of a quota begins"
            );
        }
        self.look();
    }

    /// Holds periods, or lets them begin.
    pub(super) fn look(&self) {
        self.usage.hold_periods(self.is_held());
    }

    /// Whether no period begins.
    pub(super) fn is_held(&self) -> bool {
        let skews = self.skews.lock().unwrap_or_else(PoisonError::into_inner);
        is_held(skews.values().copied(), rt::now().saturating_duration_since(self.since))
    }

    pub(super) fn skews(&self) -> Vec<(String, i64)> {
        let skews = self.skews.lock().unwrap_or_else(PoisonError::into_inner);
        skews.iter().map(|(witness, seconds)| ((*witness).to_owned(), *seconds)).collect()
    }
}

/// Whether periods wait: no witness agrees with this machine's clock, and there is one, or there may be one soon.
fn is_held(skews: impl Iterator<Item = i64>, running: Duration) -> bool {
    let skews: Vec<i64> = skews.collect();
    if skews.is_empty() { running < PATIENCE } else { skews.iter().all(|skew| skew.abs() > MOST_S) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_needs_a_second_clock_where_there_is_one() {
        let of = |skews: &[i64], running: u64| is_held(skews.iter().copied(), Duration::from_secs(running));
        assert!(of(&[], 1) && !of(&[], 601));
        assert!(!of(&[3], 1) && !of(&[-300], 1) && of(&[40 * 86_400], 10_000));
        // Of two witnesses one is enough.
        assert!(!of(&[40 * 86_400, 1], 1));
    }
}
