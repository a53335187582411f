//! When an engine lets datagrams gather before it looks at its sockets again, as network cards do with their interrupts.
//!
//! Waking a task and asking the system for one datagram costs more than a datagram in a batch. Under bulk an engine
//! therefore waits [`WAIT`] after a turn. The wait is a timer that the event loop polls together with its sockets:
//! everything else on the core runs meanwhile.
//!
//! If the loop does not watch the socket meanwhile (a port that answers questions), a wait pays from half that rate on.
//!
//! It waits as long as nobody waits for it. If the rate falls because of the waits, the peers were waiting for answers:
//! the engine stops, and waits longer before the next try.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use adit_net::rt::FineTimer;

/// Time that an engine waits: a relay adds this much at most.
const WAIT: Duration = Duration::from_micros(200);
/// Time over which a rate is measured.
const WINDOW: Duration = Duration::from_millis(5);
/// Datagrams per second from which on a wait gathers enough: four.
const LEAST: u64 = 20_000;
/// The same where nothing wakes the loop during a wait: two.
const LEAST_UNWATCHED: u64 = 8_000;
/// Datagrams per turn that are a good batch without any wait.
const PLENTY: u64 = 8;
/// Windows with waits after which a rate that falls says nothing about the waits.
const PROVEN: u32 = 32;
/// Windows before the second try after one that failed; doubles from one to the next.
const FIRST_PAUSE: u32 = 64;
/// Longest time between two tries, in windows: at bulk some five seconds.
const LONGEST_PAUSE: u32 = 1024;

/// The rate of datagrams at one listener, and whether it waits for more of them.
#[derive(Debug)]
pub(crate) struct Gather {
    pace: Pace,
    timer: Option<FineTimer>,
    is_waiting: bool,
}

impl Gather {
    /// As the configuration says.
    pub(super) fn new(is_allowed: bool) -> Self {
        Self { pace: Pace::new(is_allowed, LEAST), timer: None, is_waiting: false }
    }

    /// For a listener that takes its socket out of the event loop while [`Gather::is_on`].
    pub(crate) fn unwatched() -> Self {
        Self { pace: Pace::new(true, LEAST_UNWATCHED), timer: None, is_waiting: false }
    }

    /// Whether turns are followed by waits.
    pub(crate) fn is_on(&self) -> bool {
        self.pace.is_on
    }

    /// A turn at `now` has passed so many datagrams.
    pub(crate) fn note(&mut self, datagrams: u64, now: Instant) {
        self.pace.note(datagrams, now);
    }

    /// Begins a wait; false if the system has no timer for it.
    pub(crate) fn begin_wait(&mut self, cx: &mut Context<'_>) -> bool {
        if self.timer.is_none() {
            match FineTimer::new() {
                Ok(timer) => self.timer = Some(timer),
                Err(error) => {
                    tracing::debug!(%error, "no timer: datagrams do not gather");
                    self.pace = Pace::new(false, LEAST);
                    return false;
                }
            }
        }
        let is_set = self.timer.as_mut().is_some_and(|timer| timer.set(WAIT).is_ok());
        self.is_waiting = is_set;
        is_set && self.poll_wait(cx).is_pending()
    }

    /// Ready unless a wait is under way.
    pub(crate) fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_waiting
            && let Some(timer) = &mut self.timer
            && timer.poll(cx).is_pending()
        {
            return Poll::Pending;
        }
        self.is_waiting = false;
        Poll::Ready(())
    }
}

/// The decision, without any timer.
#[derive(Debug)]
struct Pace {
    is_allowed: bool,
    /// Datagrams per second from which on a wait is tried; it is given up below half of them.
    least: u64,
    is_on: bool,
    /// When the window began.
    began: Option<Instant>,
    datagrams: u64,
    turns: u64,
    /// The rate before the waits, and the windows since.
    free_rate: u64,
    windows: u32,
    /// Windows before the next try, and before the one after that if it fails.
    pause: u32,
    next_pause: u32,
}

impl Pace {
    fn new(is_allowed: bool, least: u64) -> Self {
        Self {
            is_allowed,
            least,
            is_on: false,
            began: None,
            datagrams: 0,
            turns: 0,
            free_rate: 0,
            windows: 0,
            pause: 0,
            next_pause: FIRST_PAUSE,
        }
    }

    fn note(&mut self, datagrams: u64, now: Instant) {
        self.datagrams += datagrams;
        self.turns += u64::from(datagrams > 0);
        let elapsed = now.saturating_duration_since(*self.began.get_or_insert(now));
        if elapsed < WINDOW || !self.is_allowed {
            return;
        }
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
        let rate = self.datagrams.saturating_mul(1_000_000) / micros;
        let is_scattered = self.datagrams < self.turns * PLENTY;
        (self.began, self.datagrams, self.turns) = (Some(now), 0, 0);
        self.pause = self.pause.saturating_sub(1);
        if self.is_on { self.go_on(rate) } else { self.begin(rate, is_scattered) }
    }

    fn begin(&mut self, rate: u64, is_scattered: bool) {
        if rate >= self.least && is_scattered && self.pause == 0 {
            (self.is_on, self.free_rate, self.windows) = (true, rate, 0);
            tracing::debug!(rate, "datagrams gather");
        }
    }

    fn go_on(&mut self, rate: u64) {
        self.windows = self.windows.saturating_add(1);
        let is_slower = rate * 4 < self.free_rate * 3;
        if self.windows < PROVEN && is_slower {
            (self.is_on, self.pause) = (false, self.next_pause);
            self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
            tracing::debug!(rate, windows = self.pause, "datagrams do not gather: somebody waits for them");
        } else if rate < self.least / 2 {
            self.is_on = false;
            tracing::debug!(rate, "datagrams gather no more");
        } else if self.windows == PROVEN {
            self.next_pause = FIRST_PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use adit_net::rt;

    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    /// A listener that takes turns.
    struct Line {
        pace: Pace,
        start: Instant,
        at: Duration,
        turns: u32,
        waits: u32,
    }

    impl Line {
        fn new(is_allowed: bool) -> Self {
            Self::with(Pace::new(is_allowed, LEAST))
        }

        fn with(pace: Pace) -> Self {
            Self { pace, start: rt::now(), at: Duration::ZERO, turns: 0, waits: 0 }
        }

        fn turn(&mut self, datagrams: u64) {
            self.pace.note(datagrams, self.start + self.at);
            self.turns += 1;
            if self.pace.is_on {
                self.waits += 1;
                self.at += WAIT;
            }
        }

        /// `rate` datagrams a second come, independent of the engine. Returns turns and waits.
        fn get(&mut self, rate: u64, time: Duration) -> (u32, u32) {
            let (begin, turns, waits, mut taken) = (self.at, self.turns, self.waits, 0);
            while self.at - begin < time {
                self.at += 10 * MICRO;
                let since = u64::try_from((self.at - begin).as_micros()).unwrap();
                let new = rate * since / 1_000_000 - taken;
                if new > 0 {
                    taken += new;
                    self.turn(new);
                }
            }
            (self.turns - turns, self.waits - waits)
        }
    }

    #[test]
    fn bulk_gathers_and_little_does_not() {
        let second = Duration::from_secs(1);
        let (turns, waits) = Line::new(true).get(40_000, second);
        assert!(turns < 5500 && waits > 4000, "{turns} {waits}");
        let (turns, waits) = Line::new(true).get(15_000, second);
        assert!(turns > 14_000 && waits == 0, "{turns} {waits}");
        let (_, waits) = Line::new(false).get(40_000, second);
        assert_eq!(waits, 0, "the configuration says no");
    }

    #[test]
    fn an_unwatched_socket_gathers_from_a_lower_rate_on() {
        let mut line = Line::with(Pace::new(true, LEAST_UNWATCHED));
        let second = Duration::from_secs(1);
        let (turns, waits) = line.get(10_000, second);
        assert!(turns < 5500 && waits > 4000, "{turns} {waits}");
        let (_, waits) = line.get(3000, second);
        assert!(waits < 100, "{waits}");
    }

    #[test]
    fn it_stops_with_the_bulk_and_begins_again() {
        let mut line = Line::new(true);
        for _ in 0..3 {
            let (_, waits) = line.get(40_000, Duration::from_millis(200));
            assert!(waits > 500, "{waits}");
            let (_, waits) = line.get(2000, Duration::from_millis(200));
            assert!(waits < 30, "{waits}");
        }
    }

    #[test]
    fn large_batches_need_no_waits() {
        let mut line = Line::new(true);
        while line.at < Duration::from_secs(1) {
            line.at += 200 * MICRO;
            line.turn(16);
        }
        assert_eq!(line.waits, 0);
    }

    /// A peer that sends the next datagram 30 us after the answer.
    #[test]
    fn peers_that_wait_for_answers_are_left_alone() {
        let mut line = Line::new(true);
        while line.at < Duration::from_secs(5) {
            line.at += 30 * MICRO;
            line.turn(1);
        }
        let Line { turns, waits, .. } = line;
        assert!(turns > 150_000 && waits > 0 && waits < 300, "{waits} of {turns}");
    }
}
