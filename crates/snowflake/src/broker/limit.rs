//! The rate of polls: one per interval, source address and pool.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Interval unless a file says otherwise.
pub(super) const USUAL: Duration = Duration::from_secs(20);
/// Sources that are remembered; polls of others pass while there are so many.
const MAX_SOURCES: usize = 1 << 20;

/// An address under two keys that end with the process: the address cannot be had back.
pub(super) type Hidden = (u64, u64);

/// Hides addresses.
#[derive(Debug, Default)]
pub(super) struct Veil(RandomState, RandomState);

impl Veil {
    pub(super) fn hide(&self, source: Option<IpAddr>) -> Hidden {
        (self.0.hash_one(source), self.1.hash_one(source))
    }
}

/// When each source may poll again.
#[derive(Debug)]
pub(super) struct PollLimit {
    pub(super) interval: Duration,
    next: HashMap<Hidden, Instant>,
    by_time: BTreeMap<(Instant, Hidden), ()>,
}

impl Default for PollLimit {
    fn default() -> Self {
        Self { interval: USUAL, next: HashMap::new(), by_time: BTreeMap::new() }
    }
}

impl PollLimit {
    /// Takes a poll: when the next one is due, and whether this one was.
    pub(super) fn poll(&mut self, source: Hidden, now: Instant) -> (Instant, bool) {
        while let Some(entry) = self.by_time.first_entry()
            && entry.key().0 < now
        {
            let ((_, source), ()) = entry.remove_entry();
            self.next.remove(&source);
        }
        if let Some(next) = self.next.get(&source) {
            return (*next, false);
        }
        let next = now + self.interval;
        if self.next.len() < MAX_SOURCES {
            self.next.insert(source, next);
            self.by_time.insert((next, source), ());
        }
        (next, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_poll_per_interval_and_source() {
        let (veil, mut limit, now) = (Veil::default(), PollLimit::default(), adit_net::rt::now());
        let [a, b] = [1, 2].map(|last| veil.hide(Some(IpAddr::from([192, 0, 2, last]))));
        let later = |ms| now + Duration::from_millis(ms);
        assert_eq!(limit.poll(a, now), (later(20_000), true));
        assert_eq!(limit.poll(a, later(19_999)), (later(20_000), false));
        assert_eq!(limit.poll(b, later(1)), (later(20_001), true));
        // At the very instant it is too soon (upstream asks for later).
        assert_eq!(limit.poll(a, later(20_000)), (later(20_000), false));
        assert_eq!(limit.poll(a, later(20_002)), (later(40_002), true));
        assert_eq!(limit.next.len(), 1, "those that are over are forgotten");
        limit.interval = Duration::from_secs(3);
        assert_eq!(limit.poll(b, later(20_003)), (later(23_003), true));
    }
}
