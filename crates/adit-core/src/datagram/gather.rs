//! When a core lets datagrams gather before it looks for the next ones, as network cards do with their interrupts.
//!
//! Waking a thread costs several times what a datagram in a batch costs. Under bulk the core therefore pauses after a
//! turn: half a millisecond at most, so that two relays on a path add less than what a voice call notices. It does
//! so as long as nobody waits for it: a rate that falls because of the pauses is that of peers who wait for answers.
//! They are left alone then, for longer each time.

use std::time::{Duration, Instant};

/// Time over which a rate is measured.
const WINDOW: Duration = Duration::from_millis(5);
/// Longest pause.
const LONGEST: Duration = Duration::from_micros(500);
/// Datagrams per second below which a pause would gather too little.
const LEAST: u64 = 4000;
/// Datagrams per turn that are a good batch without any pause.
const PLENTY: u64 = 16;
/// Datagrams that one pause is to gather.
const WANTED: u32 = 32;
/// Windows before the second trial; doubles from one to the next.
const FIRST_WAIT: u32 = 64;
/// Longest wait: at bulk some five seconds.
const LONGEST_WAIT: u32 = 1024;
/// Windows after which a rate that falls says nothing about the pauses.
const PROVEN: u32 = 32;

/// The rate of datagrams on a core, and what follows from it.
#[derive(Debug)]
pub(super) struct Gather {
    /// When the window began, and its number.
    began: Option<Instant>,
    number: u32,
    datagrams: u64,
    turns: u64,
    /// Relays that had a turn in this window, and in the one before.
    relays: (u32, u32),
    /// Turns since the last pause.
    since: u32,
    /// Pauses are made, for so many windows now, since the rate was this.
    on: Option<(u32, u64)>,
    pause: Duration,
    wait: u32,
    next_wait: u32,
}

impl Default for Gather {
    fn default() -> Self {
        Self {
            began: None,
            number: 1,
            datagrams: 0,
            turns: 0,
            relays: (0, 0),
            since: 0,
            on: None,
            pause: Duration::ZERO,
            wait: 0,
            next_wait: FIRST_WAIT,
        }
    }
}

impl Gather {
    /// A relay has had its turn with so many datagrams; `seen` is the relay's own and starts at 0. Returns how long the
    /// core is to pause.
    pub(super) fn note(&mut self, datagrams: u64, seen: &mut u32, now: Instant) -> Duration {
        if std::mem::replace(seen, self.number) != self.number {
            self.relays.0 += 1;
        }
        self.datagrams += datagrams;
        self.turns += 1;
        self.since = self.since.saturating_add(1);
        let elapsed = now.saturating_duration_since(*self.began.get_or_insert(now));
        if elapsed >= WINDOW {
            self.judge(elapsed);
            (self.began, self.number) = (Some(now), self.number.wrapping_add(1).max(1));
            (self.datagrams, self.turns, self.relays) = (0, 0, (0, self.relays.0));
        }
        if self.pause.is_zero() || self.since < self.relays.1.max(1) {
            return Duration::ZERO;
        }
        self.since = 0;
        self.pause
    }

    fn judge(&mut self, elapsed: Duration) {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
        let rate = self.datagrams.saturating_mul(1_000_000) / micros;
        self.wait = self.wait.saturating_sub(1);
        let is_on = match &mut self.on {
            None => {
                let is_on = rate >= LEAST && self.datagrams < self.turns * PLENTY && self.wait == 0;
                self.on = is_on.then_some((0, rate));
                is_on
            }
            Some((windows, before)) if rate >= LEAST && rate > *before / 2 => {
                *windows = windows.saturating_add(1);
                if *windows > PROVEN {
                    self.next_wait = FIRST_WAIT;
                }
                true
            }
            Some((windows, _)) => {
                if *windows < PROVEN {
                    self.wait = self.next_wait;
                    self.next_wait = (self.next_wait * 2).min(LONGEST_WAIT);
                }
                self.on = None;
                false
            }
        };
        let gathering = Duration::from_micros(u64::from(WANTED) * 1_000_000 / rate.max(1));
        self.pause = if is_on { gathering.min(LONGEST) } else { Duration::ZERO };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// What one relay does for a time: each turn takes what has come until then. Returns turns and paused turns.
    fn relay(gather: &mut Gather, time: Duration, mut arrived: impl FnMut(Duration) -> u64) -> (u32, u32) {
        let (start, mut at, mut seen) = (Instant::now(), Duration::ZERO, 0);
        let (mut taken, mut turns, mut paused) = (0, 0, 0);
        while at < time {
            at += Duration::from_micros(10);
            let new = arrived(at) - taken;
            if new == 0 {
                continue;
            }
            taken += new;
            let pause = gather.note(new, &mut seen, start + at);
            turns += 1;
            paused += u32::from(!pause.is_zero());
            assert!(pause <= LONGEST);
            at += pause;
        }
        (turns, paused)
    }

    fn steady(rate: u64) -> impl FnMut(Duration) -> u64 {
        move |at| rate * u64::try_from(at.as_micros()).unwrap() / 1_000_000
    }

    #[test]
    fn bulk_gathers_and_little_does_not() {
        let (turns, paused) = relay(&mut Gather::default(), 1000 * MILLI, steady(40_000));
        assert!(turns < 2600 && paused > 1800, "{turns} {paused}");
        let (turns, paused) = relay(&mut Gather::default(), 1000 * MILLI, steady(5000));
        assert!(turns < 2100 && paused > 1800, "{turns} {paused}");
        let (_, paused) = relay(&mut Gather::default(), 1000 * MILLI, steady(3000));
        assert_eq!(paused, 0);
    }

    #[test]
    fn it_stops_with_the_bulk() {
        let mut gather = Gather::default();
        let (_, paused) = relay(&mut gather, 100 * MILLI, steady(40_000));
        assert!(paused > 100, "{paused}");
        let (_, paused) = relay(&mut gather, 1000 * MILLI, steady(50));
        assert_eq!(paused, 0);
        let (_, paused) = relay(&mut gather, 100 * MILLI, steady(40_000));
        assert!(paused > 100, "{paused}");
    }

    /// A peer that sends the next datagram 50 us after the answer.
    #[test]
    fn who_waits_for_answers_is_left_alone() {
        let (start, mut at, mut seen) = (Instant::now(), Duration::ZERO, 0);
        let (mut gather, mut turns, mut paused) = (Gather::default(), 0, 0);
        while at < 5000 * MILLI {
            at += Duration::from_micros(50);
            let pause = gather.note(1, &mut seen, start + at);
            turns += 1;
            paused += u32::from(!pause.is_zero());
            at += pause;
        }
        assert!(turns > 90_000 && paused > 0 && paused < 100, "{paused} of {turns}");
    }

    #[test]
    fn relays_of_one_core_share_their_pauses() {
        let mut gather = Gather::default();
        let (start, mut at, mut seen) = (Instant::now(), Duration::ZERO, [0; 3]);
        let (mut turns, mut paused) = (0, 0);
        while at < 200 * MILLI {
            for seen in &mut seen {
                at += Duration::from_micros(50);
                let pause = gather.note(5, seen, start + at);
                turns += 1;
                paused += u32::from(!pause.is_zero());
                at += pause;
            }
        }
        assert!(paused > 100 && paused * 3 <= turns + 3, "{paused} of {turns}");
    }

    #[test]
    fn large_batches_need_no_pauses() {
        let (start, mut at, mut seen, mut gather) = (Instant::now(), Duration::ZERO, 0, Gather::default());
        while at < 1000 * MILLI {
            at += Duration::from_micros(200);
            assert!(gather.note(32, &mut seen, start + at).is_zero());
        }
    }
}
