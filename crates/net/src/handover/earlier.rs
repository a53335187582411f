//! Processes before this one that have connections left: they report to this one.

use std::sync::atomic::{AtomicUsize, Ordering};

static EARLIER: AtomicUsize = AtomicUsize::new(0);

/// The number of processes before this one that are left.
pub fn earlier() -> usize {
    EARLIER.load(Ordering::Acquire)
}

/// A process before this one, until it is dropped.
#[derive(Debug)]
pub struct Earlier(());

impl Earlier {
    /// One more.
    pub fn begin() -> Self {
        EARLIER.fetch_add(1, Ordering::AcqRel);
        Self(())
    }
}

impl Drop for Earlier {
    fn drop(&mut self) {
        EARLIER.fetch_sub(1, Ordering::AcqRel);
    }
}
