//! The account of descriptors that connections of all cores draw on.
//!
//! Streams and UDP flows draw on the same sum. Each kind has a bound of its own below that sum, so that the other always
//! has something left. A stream is always counted: it has been accepted already, and the caller then makes somebody
//! give way. A flow begins only if there is room.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use super::shares::Shares;

/// Streams in the upper half, flows in the lower one, so that both are seen at one time.
const STREAM: u64 = 1 << 32;
const FLOWS: u64 = STREAM - 1;

/// The numbers of descriptors in use.
#[derive(Debug)]
pub(super) struct Descriptors {
    free: usize,
    streams: usize,
    flows: usize,
    used: AtomicU64,
    peak: AtomicU64,
    /// Those who wait until streams are within their bound.
    waiting: Mutex<Vec<Waker>>,
    is_waited_for: AtomicBool,
    /// Flows that did not begin for want of room since somebody made some.
    pub(super) flows_refused: AtomicU64,
}

/// A descriptor of a stream; it is given back when dropped.
#[derive(Debug)]
pub(crate) struct StreamSlot(Arc<super::Budget>);

/// A descriptor of a flow; it is given back when dropped.
#[derive(Debug)]
pub(crate) struct FlowSlot(Arc<super::Budget>);

fn split(used: u64) -> (usize, usize) {
    let part = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    (part(used / STREAM), part(used & FLOWS))
}

impl Descriptors {
    pub(super) fn new(shares: &Shares) -> Self {
        Self {
            free: shares.free(),
            streams: shares.streams,
            flows: shares.flows,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            waiting: Mutex::default(),
            is_waited_for: AtomicBool::new(false),
            flows_refused: AtomicU64::new(0),
        }
    }

    /// Streams and flows in use, and the most that both ever were together.
    pub(super) fn used(&self) -> (usize, usize, usize) {
        let (streams, flows) = split(self.used.load(Ordering::Relaxed));
        (streams, flows, usize::try_from(self.peak.load(Ordering::Relaxed)).unwrap_or(usize::MAX))
    }

    /// The number of streams beyond those that there is room for.
    pub(super) fn excess(&self) -> usize {
        self.excess_of(split(self.used.load(Ordering::Relaxed)))
    }

    fn excess_of(&self, (streams, flows): (usize, usize)) -> usize {
        streams.saturating_sub(self.streams.min(self.free.saturating_sub(flows)))
    }

    /// Counts a stream.
    pub(super) fn add_stream(budget: &Arc<super::Budget>) -> StreamSlot {
        let this = &budget.descriptors;
        this.note(this.used.fetch_add(STREAM, Ordering::Relaxed) + STREAM);
        StreamSlot(budget.clone())
    }

    /// Counts a flow, if there is room.
    pub(super) fn add_flow(budget: &Arc<super::Budget>) -> Option<FlowSlot> {
        let this = &budget.descriptors;
        let add = |used: u64| {
            let (streams, flows) = split(used);
            (flows < this.flows && streams + flows < this.free).then_some(used + 1)
        };
        match this.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(before) => {
                this.note(before + 1);
                Some(FlowSlot(budget.clone()))
            }
            Err(_) => {
                this.flows_refused.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    fn note(&self, used: u64) {
        let (streams, flows) = split(used);
        let all = u64::try_from(streams + flows).unwrap_or(u64::MAX);
        if all > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(all, Ordering::Relaxed);
        }
    }

    fn give_back(&self, what: u64) {
        let used = self.used.fetch_sub(what, Ordering::Relaxed) - what;
        if self.is_waited_for.load(Ordering::Acquire) && self.excess_of(split(used)) == 0 {
            self.is_waited_for.store(false, Ordering::Release);
            let waiting = std::mem::take(&mut *self.waiting());
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Wakes `waker` once streams are within their bound. They may be already.
    pub(super) fn wait(&self, waker: &Waker) {
        let mut waiting = self.waiting();
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        self.is_waited_for.store(true, Ordering::Release);
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.descriptors.give_back(STREAM);
    }
}

impl Drop for FlowSlot {
    fn drop(&mut self) {
        self.0.descriptors.give_back(1);
    }
}
