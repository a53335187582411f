//! A hash table of small numbers: which slot has a name. The names themselves are the caller's.
//!
//! Open addressing with linear probing in a table of a power of two, at most 3/4 full, so that an entry takes 5.3 to
//! 10.7 bytes. Removing shifts what follows back, so that no marks are left behind.

/// No slot.
const NONE: u32 = u32::MAX;
/// Least size of a table.
const LEAST: usize = 16;

/// Slots by the hash of what they hold.
#[derive(Debug, Default)]
pub(super) struct Index {
    table: Box<[u32]>,
    len: usize,
}

impl Index {
    /// The slot with this hash for which `is_it` holds.
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.table.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            match self.table[at] {
                NONE => return None,
                slot if is_it(slot) => return Some(slot),
                _ => at = self.next(at),
            }
        }
    }

    /// Adds a slot that is not there. `hash_of` gives the hash of every slot that is.
    pub(super) fn insert(&mut self, slot: u32, hash: u64, hash_of: impl Fn(u32) -> u64) {
        if (self.len + 1) * 4 > self.table.len() * 3 {
            let old = std::mem::take(&mut self.table);
            self.table = vec![NONE; (old.len() * 2).max(LEAST)].into();
            for slot in old.into_iter().filter(|slot| *slot != NONE) {
                self.put(slot, hash_of(slot));
            }
        }
        self.put(slot, hash);
        self.len += 1;
    }

    /// Removes a slot that is there under this hash.
    pub(super) fn remove(&mut self, slot: u32, hash: u64, hash_of: impl Fn(u32) -> u64) {
        if self.table.is_empty() {
            return;
        }
        let mut hole = self.home(hash);
        while self.table[hole] != slot {
            if self.table[hole] == NONE {
                return;
            }
            hole = self.next(hole);
        }
        self.len -= 1;
        let mut at = hole;
        loop {
            at = self.next(at);
            if self.table[at] == NONE {
                break;
            }
            // One that would be found from the hole as well moves there.
            let home = self.home(hash_of(self.table[at]));
            let mask = self.table.len() - 1;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.table[hole] = self.table[at];
                hole = at;
            }
        }
        self.table[hole] = NONE;
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.table = Box::default();
        self.len = 0;
    }

    fn put(&mut self, slot: u32, hash: u64) {
        let mut at = self.home(hash);
        while self.table[at] != NONE {
            at = self.next(at);
        }
        self.table[at] = slot;
    }

    fn home(&self, hash: u64) -> usize {
        usize::try_from(hash & (self.table.len() as u64 - 1)).unwrap_or(0)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.table.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// Few hashes, so that chains are long and wrap around.
    fn hash(slot: u32) -> u64 {
        u64::from(slot % 7) + 13
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_a_set(steps in proptest::collection::vec((any::<bool>(), 0..40u32), 0..300)) {
            let (mut index, mut model) = (Index::default(), HashSet::new());
            for (adds, slot) in steps {
                if adds && model.insert(slot) {
                    index.insert(slot, hash(slot), hash);
                } else if !adds {
                    model.remove(&slot);
                    index.remove(slot, hash(slot), hash);
                }
                for slot in 0..40 {
                    let found = index.find(hash(slot), |other| other == slot);
                    prop_assert_eq!(found.is_some(), model.contains(&slot));
                }
                prop_assert_eq!(index.len, model.len());
            }
        }
    }
}
