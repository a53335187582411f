//! Lines about errors in one minute: ten at most, and the rest as a sum.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Length of a turn.
const TURN: Duration = Duration::from_secs(60);
/// Lines in a turn.
const LINES: u32 = 10;

/// Lets ten lines a minute through.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    passed: u32,
    held_back: u64,
    /// Lines held back in turns that are over.
    sum: u64,
}

impl State {
    fn turn(&mut self, now: Instant) {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= TURN) {
            (self.since, self.passed) = (Some(now), 0);
            self.sum += std::mem::take(&mut self.held_back);
        }
    }
}

impl Gate {
    /// Whether a line may be written.
    pub(crate) fn passes(&self, now: Instant) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.turn(now);
        let passes = state.passed < LINES;
        if passes {
            state.passed += 1;
        } else {
            state.held_back += 1;
        }
        passes
    }

    /// Lines that were held back in the turn before, once it is over, or at the end of everything.
    pub(crate) fn take_sum(&self, now: Instant, is_end: bool) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.turn(now);
        let mut sum = std::mem::take(&mut state.sum);
        if is_end {
            sum += std::mem::take(&mut state.held_back);
        }
        (sum > 0).then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use adit_net::rt;

    use super::*;

    #[test]
    fn ten_lines_a_minute_and_the_sum_of_the_rest() {
        let (gate, now) = (Gate::default(), rt::now());
        assert_eq!((0..15).filter(|_| gate.passes(now)).count(), 10);
        assert_eq!(gate.take_sum(now, false), None, "the minute is not over");
        assert_eq!(gate.take_sum(now + TURN, false), Some(5));
        assert!(gate.passes(now + TURN));
        assert_eq!((0..10).filter(|_| gate.passes(now + TURN)).count(), 9);
        assert_eq!(gate.take_sum(now + TURN, true), Some(1), "the process ends");
    }
}
