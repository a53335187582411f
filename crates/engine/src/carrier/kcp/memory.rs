//! The memory budget of all sessions of the process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::log_throttle::LogThrottle;

/// Bytes reserved for each session, even if the others have used up the rest: half of it for each direction. A session
/// at rest holds half of this at most.
pub(super) const RESERVED: usize = 128 << 10;

/// The memory that the carriers of all cores take from.
///
/// A session takes what it holds, and never less than [`RESERVED`]. Once little is left, sessions that have more than
/// that take in no more than they give out, and no new ones are begun by peers, so that what is held stays below
/// [`Memory::most`]: a writer reserves what it adds beforehand ([`Memory::reserve`]), and data that arrives between two
/// looks at the account is less than what [`Memory::is_short`] keeps back.
#[derive(Debug)]
pub(crate) struct Memory {
    most: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    notice: LogThrottle,
}

/// Memory held by carriers, all sessions together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Bytes that sessions hold or have reserved.
    pub used: usize,
    /// The most that it ever was.
    pub peak: usize,
    /// Upper bound of those bytes.
    pub most: usize,
}

impl Memory {
    /// `most` bytes for all sessions.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, used: AtomicUsize::new(0), peak: AtomicUsize::new(0), notice: LogThrottle::default() }
    }

    /// Whether sessions are to take no more: an eighth is kept back for what is under way on all cores.
    pub(super) fn is_short(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.most - self.most / 8
    }

    /// Whether there is room for another session.
    pub(super) fn admits(&self) -> bool {
        self.used.load(Ordering::Relaxed) + RESERVED <= self.most - self.most / 8
    }

    /// Reserves up to `wanted` bytes, as far as they leave the account below the level at which memory is short, and
    /// returns how many.
    pub(super) fn reserve(&self, wanted: usize) -> usize {
        let level = self.most - self.most / 8;
        let room = |used: usize| wanted.min(level.saturating_sub(used));
        let before =
            self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used + room(used)));
        let used = before.unwrap_or_else(|used| used);
        self.peak.fetch_max(used + room(used), Ordering::Relaxed);
        room(used)
    }

    /// A session takes `now` bytes in the place of `before`.
    pub(super) fn change(&self, before: usize, now: usize) {
        if now > before {
            let used = self.used.fetch_add(now - before, Ordering::Relaxed) + (now - before);
            self.peak.fetch_max(used, Ordering::Relaxed);
        } else if now < before {
            self.used.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Number of times that memory was short since the last report, if a report is due.
    pub(super) fn tell_shortage(&self, now: Instant) -> Option<u64> {
        self.notice.due(now)
    }

    /// Upper bound of all sessions together in bytes.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn status(&self) -> MemoryStatus {
        let [used, peak] = [&self.used, &self.peak].map(|number| number.load(Ordering::Relaxed));
        MemoryStatus { used, peak, most: self.most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_take_from_one_account() {
        let memory = Memory::new(16 << 20);
        let mut sessions = 0;
        while memory.admits() {
            memory.change(0, RESERVED);
            sessions += 1;
        }
        assert_eq!((sessions, memory.is_short()), (112, true));
        memory.change(RESERVED, 0);
        assert!(!memory.is_short() && memory.admits());
        memory.change(RESERVED, 3 * RESERVED);
        assert!(memory.is_short() && !memory.admits());
        memory.change(3 * RESERVED, RESERVED);
        assert_eq!(memory.reserve(RESERVED), RESERVED);
        assert_eq!((memory.reserve(RESERVED), memory.is_short()), (0, true));
        memory.change(RESERVED, RESERVED - 5);
        assert_eq!((memory.reserve(RESERVED), memory.is_short()), (5, true));
        memory.change(RESERVED, 0);
        let status = memory.status();
        assert_eq!((status.used, status.peak, status.most), (111 * RESERVED, 113 * RESERVED, 16 << 20));
    }
}
