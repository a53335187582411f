//! One budget for what the process has: descriptors and memory.
//!
//! ```text
//!   RLIMIT_NOFILE ─┐            ┌─ streams: unauthenticated < unanswered < answered, idle before busy   [Places]
//!   cgroup v1, v2 ─┼─ Shares ───┼─ UDP flows                                                            [FlowSlot]
//!   machine ───────┘            ├─ blocks under way and rests that wait for slow readers                [Buffers]
//!                               └─ sessions of carriers
//! ```
//!
//! It is divided once at start ([`Shares`]). When something runs short, the holder that has proven least gives way
//! ([`ledger`]). The sums of all cores are atomics; the ledger of a core is its own. A core where nobody can give way
//! asks the one whose holders have proven less.

mod crowd;
mod descriptors;
mod eviction_queue;
pub(crate) mod guard;
mod places;
mod shares;
mod system;
mod turnover;

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Instant;

use adit_model::Limits;
use adit_model::codes;
use adit_net::rt::Buffers;
use adit_proto::wire::Rng as _;
use serde::{Deserialize, Serialize};
use tracing::warn;

use self::descriptors::Descriptors;
use self::shares::{ASSUMED, PER_SOURCE, Resources};
use crate::log_throttle::LogThrottle;
use crate::rng::OsRng;

pub(crate) use self::crowd::{Crowd, CrowdPlace};
pub(crate) use self::descriptors::{FlowSlot, StreamSlot};
pub(crate) use self::eviction_queue::{EvictionQueue, EvictionRank, HolderId, Tick, prefix};
pub(crate) use self::places::{HeldPlace, Holder, Places};
pub use self::shares::Shares;
pub use self::system::MemorySource;
pub(crate) use self::turnover::Turnover;

/// The [`turn`] of a core without holders.
const NOBODY: u64 = u64::MAX;

/// The turn at which a core has somebody give way, whose first holders to go are `count` of this rank: the least is first. Of
/// two cores with the same rank it is the one that has more of them.
fn turn(rank: EvictionRank, count: usize) -> u64 {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    u64::from(rank as u8) << 32 | u64::from(u32::MAX - count)
}

/// The resources of the process, divided, and how much of them is in use.
#[derive(Debug)]
pub(crate) struct Budget {
    shares: Shares,
    /// The bounds on unauthenticated connections that hold now, in all and per source.
    bounds: [AtomicUsize; 2],
    /// The bound per source that this start has drawn.
    drawn: usize,
    descriptors: Descriptors,
    buffers: Arc<Buffers>,
    /// One for each core.
    desks: Box<[Desk]>,
    /// Holders that have been told to give way, or are about to be, and are not gone yet.
    leaving: AtomicUsize,
    /// Holders that were told to give way for want of descriptors or memory, since the start.
    evicted: AtomicU64,
    shortage: LogThrottle,
}

/// The place at which a core is asked to make room. No other core's is in the same line of a cache.
#[derive(Debug)]
#[repr(align(64))]
struct Desk {
    /// See [`turn`].
    turn: AtomicU64,
    asked: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

impl Desk {
    fn register(&self, waker: &Waker) {
        let mut slot = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }
}

/// The budget, as `adit status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetStatus {
    /// Its division into shares.
    pub shares: Shares,
    /// Descriptors of streams in use.
    pub streams: usize,
    /// Descriptors of UDP flows in use.
    pub flows: usize,
    /// The most that both ever were together.
    pub descriptors_peak: usize,
    /// Bytes in rests.
    pub rests: usize,
    /// The most that they ever were.
    pub rests_peak: usize,
    /// Connections that had to end for want of descriptors or memory, since the start.
    pub evicted: u64,
}

impl Budget {
    /// Reads what this process has and divides it among so many cores.
    pub(crate) fn new(limits: &Limits, cores: usize) -> Arc<Self> {
        let (memory, memory_from) =
            system::memory(Path::new("/")).unwrap_or((ASSUMED, MemorySource::Assumed));
        // A system that does not tell is one that does not limit.
        let descriptors = adit_net::fd_limit().map_or(1024, |(soft, _)| soft);
        let resources = Resources { descriptors, memory, memory_from, cores };
        let (least, most) = PER_SOURCE;
        let drawn = least + OsRng.below(most - least + 1);
        let drawn = usize::try_from(drawn).unwrap_or(usize::MAX);
        Self::drawn(Shares::divide(&resources, limits, drawn), cores, drawn)
    }

    /// One that is divided already.
    #[cfg(test)]
    pub(crate) fn of(shares: Shares, cores: usize) -> Arc<Self> {
        Self::drawn(shares, cores, shares.unauthenticated_per_source)
    }

    fn drawn(shares: Shares, cores: usize, drawn: usize) -> Arc<Self> {
        let desk =
            |_| Desk { turn: AtomicU64::new(NOBODY), asked: AtomicUsize::new(0), waker: Mutex::default() };
        Arc::new(Self {
            descriptors: Descriptors::new(&shares),
            buffers: Arc::new(Buffers::new(shares.rests)),
            desks: (0..cores).map(desk).collect(),
            leaving: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            shortage: LogThrottle::default(),
            bounds: [shares.unauthenticated, shares.unauthenticated_per_source].map(AtomicUsize::new),
            drawn,
            shares,
        })
    }

    /// The bounds on unauthenticated connections, in all and per source.
    pub(crate) fn bounds(&self) -> [usize; 2] {
        self.bounds.each_ref().map(|bound| bound.load(Ordering::Relaxed))
    }

    /// From now on these limits hold for unauthenticated connections; the shares of memory stay. Gives the bounds.
    pub(crate) fn follow(&self, limits: &Limits) -> [usize; 2] {
        let bounds = shares::bounds(self.shares.streams, limits, self.drawn);
        for (held, bound) in self.bounds.iter().zip(bounds) {
            held.store(bound, Ordering::Relaxed);
        }
        bounds
    }

    /// Reports that descriptors are short, once a minute.
    fn report_shortage(&self, now: Instant) {
        if let Some(times) = self.shortage.due(now) {
            let (streams, flows, _) = self.descriptors.used();
            warn!(
                code = codes::SYS_DESCRIPTORS.id,
                times,
                streams,
                flows,
                "too few descriptors: connections that have proven least make room; raise the limit (ulimit -n, LimitNOFILE=)"
            );
        }
    }

    /// Whether more waits for slow readers than may.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.buffers.is_exhausted()
    }

    /// Its division into shares.
    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The account of rests.
    pub(crate) fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    pub(crate) fn status(&self) -> BudgetStatus {
        let (streams, flows, descriptors_peak) = self.descriptors.used();
        let [unauthenticated, unauthenticated_per_source] = self.bounds();
        BudgetStatus {
            shares: Shares { unauthenticated, unauthenticated_per_source, ..self.shares },
            streams,
            flows,
            descriptors_peak,
            rests: self.buffers.used(),
            rests_peak: self.buffers.peak(),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Flows that found no room since the last call.
    pub(crate) fn take_refused_flows(&self) -> u64 {
        let refused = &self.descriptors.flows_refused;
        if refused.load(Ordering::Relaxed) == 0 { 0 } else { refused.swap(0, Ordering::Relaxed) }
    }

    fn leaving(&self) -> usize {
        self.leaving.load(Ordering::Relaxed)
    }

    /// The core besides `core` whose turn to make room is first, with its turn.
    fn first_but(&self, core: usize) -> Option<(u64, usize)> {
        let others = self.desks.iter().enumerate().filter(|(at, _)| *at != core);
        others.map(|(at, desk)| (desk.turn.load(Ordering::Relaxed), at)).min()
    }

    /// Asks another core to make somebody give way.
    fn ask(&self, core: usize) {
        self.leaving.fetch_add(1, Ordering::Relaxed);
        let desk = &self.desks[core];
        desk.asked.fetch_add(1, Ordering::AcqRel);
        let waker = desk.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
