//! The memory of salts: a salt that has opened a stream once must not do so again.
//!
//! Streams of Snell, and of Shadowsocks before 2022, carry no time, so a recording stays valid as long as nobody
//! remembers its salt. Two generations of fingerprints are kept; when the younger one is full it becomes the older
//! one and the oldest are forgotten. All cores share one filter per key. It does not survive a restart.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};

/// Salts of one generation. The official server keeps 500,000 as well.
const GENERATION: usize = 500_000;
/// Locks, and steps in which memory grows.
const SHARDS: usize = 16;

/// A filter for the salts of one key.
#[derive(Debug)]
pub(crate) struct SaltFilter {
    /// Keyed by a secret of the process, so that nobody can aim for a collision.
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    per_shard: usize,
}

#[derive(Debug, Default)]
struct Shard {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Default for SaltFilter {
    fn default() -> Self {
        Self::with_generation(GENERATION)
    }
}

impl SaltFilter {
    /// A filter that remembers between one and two times so many.
    pub(crate) fn with_generation(salts: usize) -> Self {
        Self { hasher: RandomState::new(), shards: Default::default(), per_shard: salts / SHARDS }
    }

    /// Remembers `salt`; false if it was known. Checking and remembering are one step.
    pub(crate) fn insert(&self, salt: &[u8]) -> bool {
        let print = self.hasher.hash_one(salt);
        let index = usize::try_from(print % SHARDS as u64).expect("below 16");
        let mut shard = self.shards[index].lock().unwrap_or_else(PoisonError::into_inner);
        if shard.old.contains(&print) || !shard.young.insert(print) {
            return false;
        }
        if shard.young.len() >= self.per_shard {
            shard.old = std::mem::take(&mut shard.young);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn salt(n: u32) -> [u8; 16] {
        let mut salt = [0; 16];
        salt[..4].copy_from_slice(&n.to_le_bytes());
        salt
    }

    #[test]
    fn salts_are_taken_once_and_forgotten_two_generations_later() {
        let filter = SaltFilter::with_generation(1600);
        assert!(filter.insert(&salt(0)));
        assert!(!filter.insert(&salt(0)));
        for n in 1..800 {
            assert!(filter.insert(&salt(n)), "{n}");
        }
        assert!((0..800).all(|n| !filter.insert(&salt(n))));
        for n in 800..10_000 {
            assert!(filter.insert(&salt(n)), "{n}");
        }
        let kept = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap();
            shard.old.len() + shard.young.len()
        };
        let kept: usize = filter.shards.iter().map(kept).sum();
        assert!(kept <= 3200, "{kept}");
    }

    #[test]
    fn one_of_many_threads_wins() {
        let filter = SaltFilter::default();
        let wins: usize = std::thread::scope(|scope| {
            let race = || (0..1000).filter(|n| filter.insert(&salt(*n))).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(race)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(wins, 1000);
    }
}
