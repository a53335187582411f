//! Results of delay tests, by outbound and by the address that was asked: the newest few of each.
//!
//! ```text
//!   test ─→ Board ─ outbound ─→ Record: alive, history ─ url ─→ Mark: alive, latest delay (read by groups), history
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_model::Tag;
use adit_model::map::Map;

/// Results that are kept of each outbound, and of each of its addresses; mihomo keeps as many.
pub(crate) const HISTORY: usize = 10;
/// Addresses that are kept of each outbound. A person may ask for any; the oldest is forgotten first.
const MAX_URLS: usize = 16;
/// A delay that stands for none.
pub(super) const NEVER: u32 = u32::MAX;

/// One result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelaySample {
    /// Seconds since 1970.
    pub unix_s: u64,
    /// The delay in whole milliseconds, at least 1; 0 for a test that failed.
    pub delay_ms: u32,
}

/// Results of one outbound.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DelayHistory {
    /// Whether the latest test of any address got a response; true before the first test.
    pub alive: bool,
    /// The latest results of all addresses, oldest first, at most 10.
    pub samples: Vec<DelaySample>,
    /// The same for each address, with whether its latest response was a good one.
    pub by_url: Map<String, (bool, Vec<DelaySample>)>,
}

/// All results of the process.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Map<Tag, Arc<TestResults>>>);

/// Results of one outbound.
#[derive(Debug)]
pub(super) struct TestResults {
    is_alive: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    samples: VecDeque<DelaySample>,
    /// Oldest address first.
    urls: Vec<(Box<str>, Arc<Mark>, VecDeque<DelaySample>)>,
}

/// The latest result of one outbound for one address, as groups read it.
#[derive(Debug)]
pub(super) struct Mark {
    state: AtomicU8,
    delay: AtomicU32,
    /// When the latest test began or ended.
    tested_at: Mutex<Option<Instant>>,
}

const UNTESTED: u8 = 0;
const ALIVE: u8 = 1;
const DEAD: u8 = 2;

/// Outcome of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A good response after this time.
    Good(Duration),
    /// A response after this time, with a status that is not expected.
    Unexpected(Duration),
    /// No response.
    Failed,
}

impl Board {
    /// The record of an outbound.
    pub(super) fn record(&self, name: &Tag) -> Arc<TestResults> {
        let fresh = || Arc::new(TestResults { is_alive: AtomicBool::new(true), log: Mutex::default() });
        self.all().entry(name.clone()).or_insert_with(fresh).clone()
    }

    /// The results of an outbound; those of one that was never tested are empty.
    pub(crate) fn history(&self, name: &str) -> DelayHistory {
        let record = self.all().get(name).cloned();
        record.map_or_else(
            || DelayHistory { alive: true, ..DelayHistory::default() },
            |record| record.history(),
        )
    }

    /// Forgets outbounds that are gone.
    pub(crate) fn retain(&self, is_there: impl Fn(&Tag) -> bool) {
        self.all().retain(|name, _| is_there(name));
    }

    fn all(&self) -> MutexGuard<'_, Map<Tag, Arc<TestResults>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TestResults {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest result for `url`.
    pub(super) fn mark(&self, url: &str) -> Arc<Mark> {
        let mut log = self.log();
        let place = log.place(url);
        log.urls[place].1.clone()
    }

    /// Whether it counts as alive for a group that asks for `mark`: by the latest result for that address, else by the
    /// latest of any.
    pub(super) fn is_alive(&self, mark: &Mark) -> bool {
        match mark.state.load(Ordering::Relaxed) {
            ALIVE => true,
            DEAD => false,
            _ => self.is_alive.load(Ordering::Relaxed),
        }
    }

    /// Notes the result of a test for `url`, and gives the delay that is noted.
    pub(super) fn note(&self, url: &str, verdict: Verdict, unix_s: u64) -> u32 {
        let (good, any) = match verdict {
            Verdict::Good(time) => (milliseconds(time), milliseconds(time)),
            // The outbound works, but not for those who ask for this address.
            Verdict::Unexpected(time) => (0, milliseconds(time)),
            Verdict::Failed => (0, 0),
        };
        let mut log = self.log();
        push(&mut log.samples, DelaySample { unix_s, delay_ms: any });
        let place = log.place(url);
        let (_, mark, samples) = &mut log.urls[place];
        push(samples, DelaySample { unix_s, delay_ms: good });
        mark.state.store(if good > 0 { ALIVE } else { DEAD }, Ordering::Relaxed);
        mark.delay.store(if good > 0 { good } else { NEVER }, Ordering::Relaxed);
        self.is_alive.store(any > 0, Ordering::Relaxed);
        any
    }

    fn history(&self) -> DelayHistory {
        let log = self.log();
        let by_url =
            log.urls.iter().filter(|(_, _, samples)| !samples.is_empty()).map(|(url, mark, samples)| {
                let is_alive = mark.state.load(Ordering::Relaxed) != DEAD;
                (url.to_string(), (is_alive, samples.iter().copied().collect()))
            });
        DelayHistory {
            alive: self.is_alive.load(Ordering::Relaxed),
            samples: log.samples.iter().copied().collect(),
            by_url: by_url.collect(),
        }
    }
}

impl Log {
    /// The place of an address, which is made if it is new.
    fn place(&mut self, url: &str) -> usize {
        if let Some(place) = self.urls.iter().position(|(known, _, _)| **known == *url) {
            return place;
        }
        if self.urls.len() >= MAX_URLS {
            // Groups hold the marks that they read: one that nobody holds goes first.
            let unused = self.urls.iter().position(|(_, mark, _)| Arc::strong_count(mark) == 1);
            self.urls.remove(unused.unwrap_or(0));
        }
        self.urls.push((url.into(), Arc::new(Mark::new()), VecDeque::new()));
        self.urls.len() - 1
    }
}

impl Mark {
    fn new() -> Self {
        Self { state: AtomicU8::new(UNTESTED), delay: AtomicU32::new(NEVER), tested_at: Mutex::new(None) }
    }

    /// The latest delay in milliseconds; [`NEVER`] if there is none.
    pub(super) fn delay(&self) -> u32 {
        self.delay.load(Ordering::Relaxed)
    }

    /// Begins a test, unless one has begun within `pause`: several groups may ask for the same.
    pub(super) fn begin(&self, now: Instant, pause: Duration) -> bool {
        let mut tested_at = self.tested_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = tested_at.is_none_or(|at| now.saturating_duration_since(at) >= pause);
        if is_due {
            *tested_at = Some(now);
        }
        is_due
    }
}

fn push(samples: &mut VecDeque<DelaySample>, sample: DelaySample) {
    if samples.len() >= HISTORY {
        samples.pop_front();
    }
    samples.push_back(sample);
}

/// Whole milliseconds, rounded up.
pub(super) fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(NEVER - 1).clamp(1, NEVER - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://a.example/";

    fn good(ms: u64) -> Verdict {
        Verdict::Good(Duration::from_millis(ms))
    }

    #[test]
    fn ten_results_are_kept() {
        let board = Board::default();
        let record = board.record(&"a".into());
        assert!(board.history("a").alive && board.history("nobody").alive);
        for n in 1..=25 {
            assert_eq!(record.note(URL, good(n), n), u32::try_from(n).unwrap());
        }
        let found = board.history("a");
        let delays: Vec<u32> = found.samples.iter().map(|sample| sample.delay_ms).collect();
        assert_eq!(delays, (16..=25).collect::<Vec<u32>>());
        assert_eq!(found.by_url[URL].1, found.samples);
        board.retain(|name| &**name != "a");
        assert!(board.history("a").samples.is_empty());
    }

    /// A response that is not expected: the outbound is alive, but not for groups that ask for the address.
    #[test]
    fn unexpected_responses() {
        let board = Board::default();
        let record = board.record(&"a".into());
        let (mark, other) = (record.mark(URL), record.mark("http://b.example/"));
        record.note(URL, Verdict::Unexpected(Duration::from_millis(7)), 1);
        assert!(!record.is_alive(&mark) && record.is_alive(&other));
        let found = board.history("a");
        assert!(found.alive);
        assert_eq!(found.samples, [DelaySample { unix_s: 1, delay_ms: 7 }]);
        assert_eq!(found.by_url[URL], (false, vec![DelaySample { unix_s: 1, delay_ms: 0 }]));
        // For an address that was not asked, the latest result of any other counts.
        record.note(URL, Verdict::Failed, 2);
        assert!(!record.is_alive(&other));
        record.note(URL, good(3), 3);
        assert!(record.is_alive(&mark) && record.is_alive(&other));
        assert_eq!((mark.delay(), other.delay()), (3, NEVER));
    }

    #[test]
    fn addresses_are_bounded() {
        let board = Board::default();
        let record = board.record(&"a".into());
        let held = record.mark(URL);
        for n in 0..1000 {
            record.note(&format!("http://{n}.example/"), good(1), n);
        }
        record.note(URL, good(9), 1000);
        // The one that somebody reads has stayed.
        assert_eq!((board.history("a").by_url.len(), held.delay()), (MAX_URLS, 9));
    }

    #[test]
    fn delays_are_rounded_up() {
        for (time, want) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (2_000_000, 2000)] {
            assert_eq!(milliseconds(Duration::from_micros(time)), want);
        }
    }
}
