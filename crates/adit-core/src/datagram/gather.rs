//! When a core lets datagrams gather before it looks for the next ones, as network cards do with their interrupts.
//!
//! Waking a thread costs several times what a datagram in a batch costs, in a virtual machine thirty times. Under bulk
//! the core therefore pauses after a turn: 0.8 ms at most, so that two relays on a path add less than 2 ms. It does so
//! as long as nobody waits for it: a rate that falls because of the pauses is that of peers who wait for answers. They
//! are left alone then, for longer each time.

use std::time::{Duration, Instant};

/// Time over which a rate is measured.
const WINDOW: Duration = Duration::from_millis(5);
/// Longest pause.
const LONGEST: Duration = Duration::from_micros(800);
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
                // Who pauses for so long has stopped: an answer would have come before.
                if *windows < PROVEN && elapsed < WINDOW * 4 {
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
    use adit_net::rt;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const MICRO: Duration = Duration::from_micros(1);

    /// A core with relays that take turns.
    struct Core {
        gather: Gather,
        seen: Vec<u32>,
        start: Instant,
        at: Duration,
        turns: u32,
        pauses: u32,
    }

    impl Core {
        fn new(relays: usize) -> Self {
            let (gather, seen) = (Gather::default(), vec![0; relays]);
            Self { gather, seen, start: rt::now(), at: Duration::ZERO, turns: 0, pauses: 0 }
        }

        fn turn(&mut self, relay: usize, datagrams: u64) {
            let pause = self.gather.note(datagrams, &mut self.seen[relay], self.start + self.at);
            assert!(pause <= LONGEST);
            self.turns += 1;
            self.pauses += u32::from(!pause.is_zero());
            self.at += pause;
        }

        /// Each relay gets `rate` datagrams a second, whatever it does. Returns turns and pauses.
        fn get(&mut self, rate: u64, time: Duration) -> (u32, u32) {
            let (begin, turns, pauses) = (self.at, self.turns, self.pauses);
            let mut taken = vec![0; self.seen.len()];
            while self.at - begin < time {
                for (relay, taken) in taken.iter_mut().enumerate() {
                    self.at += 10 * MICRO;
                    let since = u64::try_from((self.at - begin).as_micros()).unwrap();
                    let new = rate * since / 1_000_000 - *taken;
                    if new > 0 {
                        *taken += new;
                        self.turn(relay, new);
                    }
                }
            }
            (self.turns - turns, self.pauses - pauses)
        }
    }

    #[test]
    fn bulk_gathers_and_little_does_not() {
        let (turns, pauses) = Core::new(1).get(40_000, 1000 * MILLI);
        assert!(turns < 1500 && pauses > 1000, "{turns} {pauses}");
        let (turns, pauses) = Core::new(1).get(5000, 1000 * MILLI);
        assert!(turns < 1500 && pauses > 1000, "{turns} {pauses}");
        let (_, pauses) = Core::new(1).get(3000, 1000 * MILLI);
        assert_eq!(pauses, 0);
    }

    #[test]
    fn it_stops_with_the_bulk() {
        let mut core = Core::new(1);
        for _ in 0..3 {
            let (_, pauses) = core.get(40_000, 100 * MILLI);
            assert!(pauses > 100, "{pauses}");
            let (_, pauses) = core.get(50, 1000 * MILLI);
            assert_eq!(pauses, 0);
        }
    }

    /// A peer that sends the next datagram 50 us after the answer.
    #[test]
    fn who_waits_for_answers_is_left_alone() {
        let mut core = Core::new(1);
        while core.at < 5000 * MILLI {
            core.at += 50 * MICRO;
            core.turn(0, 1);
        }
        let Core { turns, pauses, .. } = core;
        assert!(turns > 90_000 && pauses > 0 && pauses < 100, "{pauses} of {turns}");
    }

    #[test]
    fn relays_of_one_core_share_their_pauses() {
        let (turns, pauses) = Core::new(3).get(10_000, 1000 * MILLI);
        assert!(pauses > 800 && pauses * 3 <= turns + 100, "{pauses} of {turns}");
    }

    #[test]
    fn large_batches_need_no_pauses() {
        let mut core = Core::new(1);
        while core.at < 1000 * MILLI {
            core.at += 200 * MICRO;
            core.turn(0, 32);
        }
        assert_eq!(core.pauses, 0);
    }
}
