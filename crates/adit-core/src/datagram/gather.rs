//! When a core lets datagrams gather before it looks for the next ones, as network cards do with their interrupts.
//!
//! Waking a thread costs several times what a datagram in a batch costs, in a virtual machine thirty times. Under bulk
//! the core therefore pauses after a turn: 0.8 ms at most, so that two relays on a path add less than 2 ms. The first of
//! them, where fast flows come in the clear, waits up to 1.6 ms, for batches that the second need not gather again; it
//! does not while a call or a game, a flow of few datagrams, passes the same core.
//!
//! It does so as long as nobody waits for it: a rate that falls because of the pauses is that of peers who wait for
//! answers. They are left alone then, for longer each time; and who is not is looked at again every other second, without
//! pauses, since a flow that began slowly may have become faster but for them.

use std::time::{Duration, Instant};

/// Time over which a rate is measured.
const WINDOW: Duration = Duration::from_millis(5);
/// Windows before the second trial; doubles from one to the next.
const FIRST_WAIT: u32 = 64;
/// Longest wait: at bulk some five seconds.
const LONGEST_WAIT: u32 = 1024;
/// Windows after which a rate that falls says nothing about the pauses.
const PROVEN: u32 = 32;
/// Pauses in a row that bring too little until then: one may be the sender's own.
const VAIN: u32 = 2;
/// Windows from one look at the rate without pauses to the next: somewhat more than a second.
const RETEST: u32 = 256;
/// Windows without pauses that such a look takes.
const FREE: u32 = 2;
/// Datagrams of a flow in one window below which it is a call rather than bulk.
const FEW: u32 = 4;
/// Windows for which a flow of few datagrams is looked out for: longer than a call is silent between two of them.
const ATTENTION: u32 = 64;

/// How long a core gathers.
#[derive(Debug)]
struct Measure {
    /// Longest pause.
    longest: Duration,
    /// Datagrams per second below which a pause would gather too little.
    least: u64,
    /// Datagrams per turn, or in one message, that are a good batch without any pause.
    plenty: u64,
    /// Datagrams that one pause is to gather.
    wanted: u64,
}

/// Where flows of few datagrams pass as well, the rate is not high, or another relay has come before.
const SHORT: Measure = Measure { longest: Duration::from_micros(800), least: 4000, plenty: 16, wanted: 32 };
/// For bulk in the clear, at rates where the longest pause gathers what the next relay has plenty of: it makes none.
const LONG: Measure = Measure { longest: Duration::from_micros(1600), least: 25_000, plenty: 48, wanted: 56 };

/// When datagrams of a flow have passed.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// The last window in which any has, and how many.
    window: u32,
    count: u32,
}

/// A relay's turn.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) datagrams: u64,
    /// In how many messages they came.
    pub(super) messages: u64,
    /// Nothing waits for the core.
    pub(super) may_pause: bool,
}

/// What has passed within a window.
#[derive(Debug, Default)]
struct Counts {
    datagrams: u64,
    /// Those of them that came in the clear.
    plain: u64,
    messages: u64,
    turns: u64,
}

/// What a window has shown.
#[derive(Debug)]
struct Seen {
    measure: &'static Measure,
    rate: u64,
    /// The lower and the higher rate of two windows: what has piled up in a moment of standstill comes at once.
    least: u64,
    most: u64,
    /// Turns bring too little.
    is_scattered: bool,
    /// Messages bring enough: who sent them has gathered.
    is_merged: bool,
    /// Nothing came for so long that nobody waits for an answer.
    is_idle: bool,
}

/// Pauses are being made.
#[derive(Debug)]
struct On {
    /// For so many windows, those of looks at the rate without pauses included.
    windows: u32,
    /// The rate without pauses.
    free_rate: u64,
}

impl On {
    /// Windows since the last look began.
    fn phase(&self) -> u32 {
        self.windows % RETEST
    }
}

/// The rate of datagrams on a core, and what follows from it.
#[derive(Debug)]
pub(super) struct Gather {
    /// When the window began, and its number.
    began: Option<Instant>,
    number: u32,
    counts: Counts,
    /// The rate of the window before.
    rate: u64,
    /// Relays that had a turn in this window, and in the one before.
    relays: (u32, u32),
    /// Turns and datagrams since the last pause, and how many it should have brought.
    since: u32,
    gathered: u64,
    expected: u64,
    /// Pauses in a row that brought less than half of it.
    vain: u32,
    /// Windows for which flows of few datagrams are still looked out for.
    attention: u32,
    on: Option<On>,
    pause: Duration,
    /// Windows before the next trial, and before the one after that if it fails.
    wait: u32,
    next_wait: u32,
}

impl Default for Gather {
    fn default() -> Self {
        Self {
            began: None,
            number: 1,
            counts: Counts::default(),
            rate: 0,
            relays: (0, 0),
            since: 0,
            gathered: 0,
            expected: 0,
            vain: 0,
            attention: 0,
            on: None,
            pause: Duration::ZERO,
            wait: 0,
            next_wait: FIRST_WAIT,
        }
    }
}

impl Gather {
    /// A datagram of the flow with this `pulse` has passed; `is_plain` if it came in the clear.
    pub(super) fn passed(&mut self, pulse: &mut Pulse, is_plain: bool) {
        self.counts.plain += u64::from(is_plain);
        if pulse.window == self.number {
            pulse.count = pulse.count.saturating_add(1);
            return;
        }
        let was_bulk = pulse.count >= FEW && self.number.wrapping_sub(pulse.window) == 1;
        if !was_bulk {
            self.attention = ATTENTION;
        }
        *pulse = Pulse { window: self.number, count: 1 };
    }

    /// A relay has had its turn; `seen` is the relay's own and starts at 0. Returns how long the core is to pause.
    pub(super) fn note(&mut self, turn: &Turn, seen: &mut u32, now: Instant) -> Duration {
        if std::mem::replace(seen, self.number) != self.number {
            self.relays.0 += 1;
        }
        self.counts.datagrams += turn.datagrams;
        self.counts.messages += turn.messages;
        self.counts.turns += 1;
        self.since = self.since.saturating_add(1);
        self.gathered += turn.datagrams;
        let elapsed = now.saturating_duration_since(*self.began.get_or_insert(now));
        if elapsed >= WINDOW {
            let seen = self.look(elapsed);
            self.judge(&seen);
            (self.began, self.number) = (Some(now), self.number.wrapping_add(1).max(1));
            self.relays = (0, self.relays.0);
        }
        if self.pause.is_zero() || self.since < self.relays.1.max(1) || !turn.may_pause {
            return Duration::ZERO;
        }
        let expected = self.rate.saturating_mul(micros(self.pause)) / 1_000_000;
        let is_vain = self.gathered * 2 < std::mem::replace(&mut self.expected, expected);
        self.vain = if is_vain { self.vain.saturating_add(1) } else { 0 };
        if self.vain >= VAIN && self.on.take_if(|on| on.phase() < PROVEN).is_some() {
            self.give_up();
            return Duration::ZERO;
        }
        (self.since, self.gathered) = (0, 0);
        self.pause
    }

    /// The pauses have slowed somebody down: the next trial is later.
    fn give_up(&mut self) {
        self.pause = Duration::ZERO;
        self.wait = self.next_wait;
        self.next_wait = (self.next_wait * 2).min(LONGEST_WAIT);
        tracing::debug!(windows = self.wait, "datagrams are left alone");
    }

    /// Ends a window.
    fn look(&mut self, elapsed: Duration) -> Seen {
        let Counts { datagrams, plain, messages, turns } = std::mem::take(&mut self.counts);
        let per_second = |count: u64| count.saturating_mul(1_000_000) / micros(elapsed).max(1);
        let rate = per_second(datagrams);
        let before = std::mem::replace(&mut self.rate, rate);
        self.wait = self.wait.saturating_sub(1);
        self.attention = self.attention.saturating_sub(1);
        let is_first = self.attention == 0 && per_second(plain) >= LONG.least;
        let measure = if is_first { &LONG } else { &SHORT };
        Seen {
            measure,
            rate,
            least: rate.min(before),
            most: rate.max(before),
            is_scattered: datagrams < turns * measure.plenty,
            is_merged: datagrams >= messages * measure.plenty,
            is_idle: elapsed >= WINDOW * 4,
        }
    }

    /// Decides about the next window.
    fn judge(&mut self, seen: &Seen) {
        let was_on = self.on.is_some();
        self.on = match self.on.take() {
            None => self.begin(seen),
            Some(_) if seen.is_merged => None,
            Some(on) => self.go_on(on, seen),
        };
        if self.on.is_some() != was_on {
            tracing::debug!(is_on = !was_on, ?seen, wait = self.wait, "datagrams gather");
        }
        let gathering = Duration::from_micros(seen.measure.wanted * 1_000_000 / seen.rate.max(1));
        self.pause = match &self.on {
            Some(on) if on.phase() >= FREE => gathering.min(seen.measure.longest),
            _ => Duration::ZERO,
        };
    }

    fn begin(&self, seen: &Seen) -> Option<On> {
        let is_steady = seen.least * 4 > seen.most * 3;
        let is_wanted = seen.least >= seen.measure.least && seen.is_scattered;
        (is_wanted && is_steady && self.wait == 0).then_some(On { windows: FREE, free_rate: seen.least })
    }

    fn go_on(&mut self, mut on: On, seen: &Seen) -> Option<On> {
        if seen.is_idle {
            return None;
        }
        if seen.most < SHORT.least || seen.most * 4 <= on.free_rate * 3 {
            if on.phase() < PROVEN {
                self.give_up();
            }
            return None;
        }
        on.windows = on.windows.wrapping_add(1);
        match on.phase() {
            FREE => on.free_rate = seen.least,
            PROVEN => self.next_wait = FIRST_WAIT,
            _ => {}
        }
        Some(on)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
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
        /// What comes is in the clear.
        is_plain: bool,
        bulk: Pulse,
        /// A call of 50 datagrams a second, and when its last one came.
        call: Option<(Pulse, Duration)>,
        longest: Duration,
        start: Instant,
        at: Duration,
        turns: u32,
        pauses: u32,
    }

    impl Core {
        fn new(relays: usize) -> Self {
            Self {
                gather: Gather::default(),
                seen: vec![0; relays],
                is_plain: true,
                bulk: Pulse::default(),
                call: None,
                longest: Duration::ZERO,
                start: rt::now(),
                at: Duration::ZERO,
                turns: 0,
                pauses: 0,
            }
        }

        fn turn(&mut self, relay: usize, datagrams: u64) {
            self.merged_turn(relay, datagrams, datagrams);
        }

        fn merged_turn(&mut self, relay: usize, datagrams: u64, messages: u64) {
            for _ in 0..datagrams {
                self.gather.passed(&mut self.bulk, self.is_plain);
            }
            if let Some((call, last)) = &mut self.call
                && self.at - *last >= 20 * MILLI
            {
                self.gather.passed(call, self.is_plain);
                *last = self.at;
            }
            let turn = Turn { datagrams, messages, may_pause: true };
            let pause = self.gather.note(&turn, &mut self.seen[relay], self.start + self.at);
            assert!(pause <= LONG.longest);
            self.turns += 1;
            self.pauses += u32::from(!pause.is_zero());
            self.longest = self.longest.max(pause);
            self.at += pause;
        }

        /// Each relay gets `rate` datagrams a second, whatever it does. Returns turns and pauses.
        fn get(&mut self, rate: u64, time: Duration) -> (u32, u32) {
            let (begin, turns, pauses) = (self.at, self.turns, self.pauses);
            let mut taken = vec![0; self.seen.len()];
            while self.at - begin < time {
                for (relay, taken) in taken.iter_mut().enumerate() {
                    self.at += 10 * MICRO;
                    let since = micros(self.at - begin);
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
        assert!(turns < 1300 && pauses > 500 && pauses < 900, "{turns} {pauses}");
        let (turns, pauses) = Core { is_plain: false, ..Core::new(1) }.get(40_000, 1000 * MILLI);
        assert!(turns < 1800 && pauses > 1000, "{turns} {pauses}");
        let (turns, pauses) = Core::new(1).get(20_000, 1000 * MILLI);
        assert!(turns < 1500 && pauses > 1000, "{turns} {pauses}");
        let (turns, pauses) = Core::new(1).get(5000, 1000 * MILLI);
        assert!(turns < 1500 && pauses > 1000, "{turns} {pauses}");
        let (_, pauses) = Core::new(1).get(3000, 1000 * MILLI);
        assert_eq!(pauses, 0);
    }

    #[test]
    fn bulk_beside_a_call_pauses_for_less() {
        let mut core = Core::new(1);
        for call in [false, true, false] {
            core.call = call.then(|| (Pulse::default(), core.at));
            core.get(40_000, 500 * MILLI);
            core.longest = Duration::ZERO;
            core.get(40_000, 500 * MILLI);
            let longest = core.longest;
            assert_eq!(longest <= SHORT.longest, call, "{longest:?}");
        }
    }

    #[test]
    fn what_comes_gathered_is_not_gathered_again() {
        let mut core = Core::new(1);
        let (_, pauses) = core.get(40_000, 100 * MILLI);
        assert!(pauses > 50, "{pauses}");
        let before = core.pauses;
        for _ in 0..500 {
            core.at += 1600 * MICRO;
            core.merged_turn(0, 64, 2);
        }
        assert!(core.pauses - before < 8, "{}", core.pauses - before);
    }

    /// Peers with so many datagrams on their way, which the other end sends back after 500 us.
    #[test]
    fn a_window_of_datagrams_is_not_slowed_down() {
        for first in [64, 8] {
            let mut core = Core::new(1);
            let turns = |core: &mut Core, window: u64, time: Duration| {
                let (begin, mut count) = (core.at, 0);
                while core.at - begin < time {
                    // In four turns, as they come.
                    for _ in 0..4 {
                        core.at += 150 * MICRO;
                        core.turn(0, window / 4);
                        count += window / 4;
                    }
                }
                count
            };
            turns(&mut core, first, 100 * MILLI);
            turns(&mut core, 64, 3000 * MILLI);
            let count = turns(&mut core, 64, 3000 * MILLI);
            assert!(count > 300_000, "{first}: {count}, without pauses 320,000");
        }
    }

    /// All that a moment of standstill has held up comes in one window.
    #[test]
    fn a_standstill_does_not_end_it() {
        let mut core = Core::new(1);
        core.get(40_000, 500 * MILLI);
        for _ in 0..10 {
            core.at += 10 * MILLI;
            core.turn(0, 400);
            let (_, pauses) = core.get(40_000, 100 * MILLI);
            assert!(pauses > 50, "{pauses}");
        }
    }

    #[test]
    fn it_stops_with_the_bulk() {
        let mut core = Core::new(1);
        for _ in 0..3 {
            let (_, pauses) = core.get(40_000, 100 * MILLI);
            assert!(pauses > 50, "{pauses}");
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
        assert!(turns > 95_000 && pauses > 0 && pauses <= 12, "{pauses} of {turns}");
    }

    #[test]
    fn relays_of_one_core_share_their_pauses() {
        let (turns, pauses) = Core::new(3).get(10_000, 1000 * MILLI);
        assert!(pauses > 500 && pauses * 3 <= turns + 200, "{pauses} of {turns}");
    }

    #[test]
    fn large_batches_need_no_pauses() {
        let mut core = Core::new(1);
        while core.at < 1000 * MILLI {
            core.at += 200 * MICRO;
            core.turn(0, 64);
        }
        assert_eq!(core.pauses, 0);
        let mut core = Core { is_plain: false, ..Core::new(1) };
        while core.at < 1000 * MILLI {
            core.at += 400 * MICRO;
            core.turn(0, 32);
        }
        assert_eq!(core.pauses, 0);
    }
}
