//! Coming and going, and when the memory that is free behind it is worth returning.

use std::cell::Cell;

/// So many ends are worth it, if they are more than what is left.
const MANY: usize = 256;
/// So many are worth it once nothing is left.
const SOME: usize = 16;

/// Connections or flows that are open, and those that have ended lately.
#[derive(Debug, Default)]
pub(crate) struct Turnover {
    live: Cell<usize>,
    ended: Cell<usize>,
}

impl Turnover {
    /// One begins.
    pub(crate) fn begin(&self) {
        self.live.set(self.live.get() + 1);
    }

    /// One ends.
    pub(crate) fn end(&self) {
        self.live.set(self.live.get().saturating_sub(1));
        self.ended.set(self.ended.get() + 1);
    }

    /// Those that are open.
    #[cfg(test)]
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    /// Whether so many have ended since this was true last that freed memory is worth returning.
    pub(crate) fn take_worth_trimming(&self) -> bool {
        let (live, ended) = (self.live.get(), self.ended.get());
        let worth = ended >= MANY && live < ended || live == 0 && ended >= SOME;
        if worth {
            self.ended.set(0);
        }
        worth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_behind_many_ends() {
        let turnover = Turnover::default();
        (0..1000).for_each(|_| turnover.begin());
        (0..499).for_each(|_| turnover.end());
        assert!(!turnover.take_worth_trimming(), "more are left");
        (0..2).for_each(|_| turnover.end());
        assert!(turnover.take_worth_trimming() && !turnover.take_worth_trimming());
        (0..499).for_each(|_| turnover.end());
        assert!(turnover.live() == 0 && turnover.take_worth_trimming());
        (0..MANY).for_each(|_| turnover.begin());
        (0..SOME - 1).for_each(|_| turnover.end());
        assert!(!turnover.take_worth_trimming());
    }
}
