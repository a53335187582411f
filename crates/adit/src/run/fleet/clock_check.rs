//! Clocks of others. A new period of a quota needs two that agree, where there is another one: a clock that is wrong would
//! give quotas away, or take them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_model::map::Map;
use adit_net::rt;

/// Clocks that differ by more do not agree, in seconds.
const MOST_S: i64 = 300;
/// A clock that is off by more breaks protocols with timestamps, in seconds.
const BROKEN_S: i64 = 30;
/// So long after the start a witness is waited for; then this machine's clock is believed.
const PATIENCE: Duration = Duration::from_secs(600);

/// This clock jumps when it goes forwards or backwards by more, in seconds, between two looks at a witness.
const JUMP_S: i64 = 2;

/// The witnesses of a process.
pub(super) struct Witnesses {
    since: Instant,
    skews: Mutex<Map<&'static str, Skew>>,
}

/// A witness is ahead of this machine.
#[derive(Clone, Copy)]
struct Skew {
    seconds: i64,
    /// This machine's clock then, without the time that had passed since the start: it changes when the clock is set.
    base: i64,
}

impl Skew {
    /// The seconds with this machine's clock as it is: a clock that has been set since then is off by that much.
    fn now(self, base: i64) -> i64 {
        let jump = base - self.base;
        if jump.abs() > JUMP_S { self.seconds - jump } else { self.seconds }
    }
}

impl Witnesses {
    pub(super) fn new() -> Self {
        Self { since: rt::now(), skews: Mutex::default() }
    }

    fn base(&self) -> i64 {
        let passed = rt::now().saturating_duration_since(self.since).as_secs();
        rt::unix_time().cast_signed() - passed.cast_signed()
    }

    /// A witness is ahead of this machine by so many seconds.
    pub(super) fn note(&self, witness: &'static str, seconds: i64) {
        let skew = Skew { seconds, base: self.base() };
        let before = self.skews.lock().unwrap_or_else(PoisonError::into_inner).insert(witness, skew);
        if seconds.abs() > BROKEN_S && before.is_none_or(|before| before.seconds.abs() <= BROKEN_S) {
            tracing::error!(
                witness,
                seconds,
                "the clocks differ: protocols with timestamps fail, and no period of a quota begins"
            );
        }
    }

    /// Whether no period begins.
    pub(super) fn is_held(&self) -> bool {
        let (skews, base) = (self.skews.lock().unwrap_or_else(PoisonError::into_inner), self.base());
        is_held(skews.values().map(|skew| skew.now(base)), rt::now().saturating_duration_since(self.since))
    }

    pub(super) fn skews(&self) -> Vec<(String, i64)> {
        let (skews, base) = (self.skews.lock().unwrap_or_else(PoisonError::into_inner), self.base());
        skews.iter().map(|(witness, skew)| ((*witness).to_owned(), skew.now(base))).collect()
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
        // A clock that is set between two looks at a witness is no longer where the witness saw it.
        let skew = Skew { seconds: 1, base: 1000 };
        assert_eq!((skew.now(1002), skew.now(1000 + 40 * 86_400)), (1, 1 - 40 * 86_400));
    }
}
