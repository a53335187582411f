//! The division of what the process has, made once at start.

use adit_model::Limits;
use serde::{Deserialize, Serialize};

use super::Budget;
use super::system::MemorySource;

/// Most unauthenticated connections without a number in the configuration.
const UNAUTHENTICATED: usize = 4096;
/// So many streams may be unauthenticated even if they are more than a quarter, up to a half of them, so that a client has
/// time for its handshake while others come.
const FEW_UNAUTHENTICATED: usize = 16;
/// The limit per source is drawn between these, both included, so that it does not tell one program from another.
pub(super) const PER_SOURCE: (u32, u32) = (128, 512);
/// Bytes of memory that one stream's descriptor costs, the kernel's part included: 10 KiB for a relayed connection.
const STREAM_LEN: usize = 5 << 10;
/// The least memory that buffers need to work: a few blocks on each core.
const LEAST_BUFFERS: usize = 4 << 20;
/// Memory that is assumed where the system does not say.
pub(super) const ASSUMED: u64 = 256 << 20;
/// One in so many descriptors is for ports that serve HTTP: each of them takes no more (`adit_net::share`).
const HTTP_PART: usize = 32;
/// Descriptors that a process has that does nothing but listen at a port, without and for each of its event loops, and a few.
const LEAST_OWN: usize = 18;
const LEAST_OWN_OF_CORE: usize = 8;
/// More descriptors than this are of no use, even if the system allows them.
const MOST_DESCRIPTORS: u64 = 1 << 26;

/// The resources of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resources {
    /// The soft limit of open descriptors.
    pub(crate) descriptors: u64,
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// The source of that number.
    pub(crate) memory_from: MemorySource,
    /// Event loops.
    pub(crate) cores: usize,
}

/// The parts of the budget. Descriptors are counted one by one, memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// The limit of open descriptors.
    pub descriptors: usize,
    /// Descriptors for listeners, timers, files, ports that serve HTTP, and what is made in passing.
    pub own: usize,
    /// Most descriptors of streams, accepted and dialled.
    pub streams: usize,
    /// Most descriptors of UDP flows.
    pub flows: usize,
    /// Most connections that have not authenticated yet.
    pub unauthenticated: usize,
    /// The same for one source.
    pub unauthenticated_per_source: usize,
    /// Bytes of memory that the process may use.
    pub memory: usize,
    /// The source of that number.
    pub memory_from: MemorySource,
    /// Bytes for blocks under way in relays.
    pub blocks: usize,
    /// Bytes for rests of blocked writes and of cut frames.
    pub rests: usize,
    /// Bytes for the sessions of carriers.
    pub carriers: usize,
}

impl Shares {
    /// The parts of what this process has, on one event loop and without limits of a configuration.
    pub fn of_process() -> Self {
        *Budget::new(&Limits::default(), 1).shares()
    }

    /// Divides `resources`. Numbers of the configuration win; a limit per source that is not there is `drawn`.
    ///
    /// Of the descriptors that are left for connections, TCP keeps a half that UDP cannot take and UDP an eighth that
    /// TCP cannot take. Memory: half for connections, a quarter for carriers, a fifth for buffers.
    pub(crate) fn divide(resources: &Resources, limits: &Limits, drawn: usize) -> Self {
        let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let descriptors = number(resources.descriptors.min(MOST_DESCRIPTORS));
        let memory = number(resources.memory);
        // With few, no less than a process has that only listens, or nobody's connection could be opened any more.
        let least = (LEAST_OWN + LEAST_OWN_OF_CORE * resources.cores).min(descriptors / 4 * 3);
        let own = (40 + 12 * resources.cores + descriptors / HTTP_PART).min((descriptors / 3).max(least));
        let free = descriptors - own;
        let streams = (free - free / 8).min(memory / 2 / STREAM_LEN).max(8);
        let [unauthenticated, unauthenticated_per_source] = bounds(streams, limits, drawn);
        let buffers = (memory / 5).max(LEAST_BUFFERS);
        let carriers = (memory / 4).max(Limits::MIN_CARRIER_MEMORY);
        Self {
            descriptors,
            own,
            streams,
            flows: (free / 2).max(1),
            unauthenticated,
            unauthenticated_per_source,
            memory,
            memory_from: resources.memory_from,
            blocks: buffers / 2,
            rests: buffers / 2,
            carriers: limits.carrier_memory.unwrap_or(carriers),
        }
    }

    /// Descriptors that streams and flows share.
    pub(super) fn free(&self) -> usize {
        self.descriptors - self.own
    }
}

/// The bounds on unauthenticated connections, in all and per source, of a process with so many descriptors of streams.
pub(super) fn bounds(streams: usize, limits: &Limits, drawn: usize) -> [usize; 2] {
    let total = limits.unauthenticated.unwrap_or(UNAUTHENTICATED);
    [
        total.min((streams / 4).max(FEW_UNAUTHENTICATED.min(streams / 2)).max(2)),
        limits.unauthenticated_per_source.unwrap_or(drawn),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divide(descriptors: u64, memory: u64, limits: &Limits) -> Shares {
        let resources = Resources { descriptors, memory, memory_from: MemorySource::Machine, cores: 2 };
        Shares::divide(&resources, limits, 300)
    }

    #[test]
    fn parts_fit_into_the_whole() {
        for descriptors in [0, 1, 10, 64, 256, 1024, 4096, 20_000, 1 << 20, u64::MAX] {
            for memory in [0, 16 << 20, 128 << 20, 1 << 30, 1 << 40] {
                let shares = divide(descriptors, memory, &Limits::default());
                let case = format!("{descriptors} descriptors, {memory} bytes: {shares:?}");
                assert!(shares.own <= shares.descriptors, "{case}");
                if descriptors >= 64 {
                    assert!(shares.streams < shares.free() && shares.flows < shares.free(), "{case}");
                    assert!(shares.unauthenticated <= shares.streams / 2, "{case}");
                }
                if memory >= 128 << 20 {
                    let parts = shares.blocks + shares.rests + shares.carriers + shares.streams * STREAM_LEN;
                    assert!(parts <= shares.memory, "{case}");
                }
            }
        }
    }

    #[test]
    fn both_kinds_keep_a_reserve() {
        let shares = divide(1024, 1 << 30, &Limits::default());
        assert_eq!((shares.own, shares.free()), (96, 928));
        assert_eq!((shares.streams, shares.flows), (812, 464));
        assert_eq!(shares.unauthenticated, 203);
        assert_eq!(divide(20_000, 128 << 20, &Limits::default()).unauthenticated, 3276);
        assert_eq!(divide(1 << 20, 1 << 40, &Limits::default()).unauthenticated, UNAUTHENTICATED);
        let few = divide(64, 1 << 30, &Limits::default());
        assert_eq!((few.own, few.streams, few.unauthenticated), (34, 27, 13));
    }

    #[test]
    fn numbers_of_the_configuration_win() {
        let limits = Limits {
            unauthenticated: Some(100),
            unauthenticated_per_source: Some(7),
            carrier_memory: Some(20 << 20),
            ..Limits::default()
        };
        let shares = divide(20_000, 1 << 30, &limits);
        assert_eq!((shares.unauthenticated, shares.unauthenticated_per_source), (100, 7));
        assert_eq!(shares.carriers, 20 << 20);
        let few = divide(256, 1 << 30, &Limits { unauthenticated: Some(4096), ..Limits::default() });
        assert_eq!(few.unauthenticated, 40, "never more than there are descriptors for");
        assert_eq!(divide(256, 1 << 30, &Limits::default()).unauthenticated_per_source, 300);
    }
}
