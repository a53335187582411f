//! The last fingerprints, first in first out.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, and steps in which memory grows. With 20, a million fingerprints take 20 MB: each shard's table is as full as a
/// table gets.
const SHARDS: usize = 20;

/// Remembers fingerprints in the order in which they came. All cores share it.
#[derive(Debug)]
pub(super) struct Fingerprints {
    shards: [Mutex<Shard>; SHARDS],
    per_shard: usize,
    /// Bytes that the shards take, so that nobody locks them to know.
    memory: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    known: HashSet<u64, Plain>,
    order: VecDeque<u64>,
}

impl Fingerprints {
    /// Remembers the last `count` at least. Shards fill unevenly: each has room for six standard deviations more.
    pub(super) fn new(count: usize) -> Self {
        let even = count.div_ceil(SHARDS);
        let memory = AtomicUsize::new(0);
        Self { shards: Default::default(), per_shard: even + 6 * even.isqrt() + 16, memory }
    }

    /// Remembers `print`; false if it was known. Checking and remembering are one step.
    pub(super) fn insert(&self, print: u64) -> bool {
        let mut shard = self.shard(print);
        let Shard { known, order } = &mut *shard;
        if known.contains(&print) {
            return false;
        }
        let before = shard_memory(known, order);
        if order.len() >= self.per_shard
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
        known.insert(print);
        order.push_back(print);
        let after = shard_memory(known, order);
        if after != before {
            // The order of additions does not matter, and so a step down may wrap around.
            self.memory.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
        true
    }

    /// Bytes of memory that they take.
    pub(super) fn memory(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    /// Whether `print` is remembered.
    pub(super) fn contains(&self, print: u64) -> bool {
        self.shard(print).known.contains(&print)
    }

    fn shard(&self, print: u64) -> MutexGuard<'_, Shard> {
        // Tables use the lowest and the highest bits.
        let middle = (print >> 16) & u64::from(u32::MAX);
        let index = usize::try_from((middle * SHARDS as u64) >> 32).expect("below 20");
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All fingerprints, oldest first in each shard.
    pub(super) fn all(&self) -> Vec<u64> {
        let of = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.order.iter().copied().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// The number of fingerprints that are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().order.len()).sum()
    }
}

fn shard_memory(known: &HashSet<u64, Plain>, order: &VecDeque<u64>) -> usize {
    table_memory(known) + order.capacity() * size_of::<u64>()
}

/// Bytes of memory that a table takes: a power of two of places, each with a byte more, of which seven in eight are used.
pub(super) fn table_memory(table: &HashSet<u64, Plain>) -> usize {
    match table.capacity() {
        0 => 0,
        capacity => (capacity * 8 / 7).next_power_of_two() * (size_of::<u64>() + 1),
    }
}

/// Takes fingerprints for hashes, which they are.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Plain(u64);

impl BuildHasher for Plain {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for Plain {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, print: u64) {
        self.0 = print;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
