use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Mutex;

/// A bounded memory of proofs that have been accepted, shared by the connections of a server.
///
/// It remembers each for `window_s` seconds at least, unless more than `capacity` come in that time: then the oldest
/// half is forgotten early. 8 bytes are kept of each (a keyed hash; a false alarm is one in 2^64 per entry).
#[derive(Debug)]
pub struct SeenProofs {
    window_s: u64,
    capacity: usize,
    hasher: RandomState,
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    newer: HashSet<u64>,
    older: HashSet<u64>,
    turned_s: u64,
}

impl SeenProofs {
    /// An empty memory; at most `capacity` entries (never 0) of about 20 bytes each.
    pub fn new(window_s: u64, capacity: usize) -> Self {
        Self {
            window_s,
            capacity: capacity.max(2),
            hasher: RandomState::new(),
            generations: Mutex::default(),
        }
    }

    /// Remembers `proof` at `unix_s`; false if it was there already.
    pub fn insert(&self, proof: &[u8], unix_s: u64) -> bool {
        let hash = self.hasher.hash_one(proof);
        let mut generations = self.generations.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        generations.turn(unix_s, self.window_s, self.capacity / 2);
        !generations.older.contains(&hash) && generations.newer.insert(hash)
    }
}

impl Generations {
    /// Makes room: what is older than the window goes, and what is too much.
    fn turn(&mut self, unix_s: u64, window_s: u64, half: usize) {
        let age = unix_s.saturating_sub(self.turned_s);
        if age < window_s && self.newer.len() < half {
            return;
        }
        let newer = std::mem::take(&mut self.newer);
        self.older = if age < 2 * window_s { newer } else { HashSet::new() };
        self.turned_s = unix_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_for_the_window_and_is_bounded() {
        let seen = SeenProofs::new(100, 8);
        assert!(seen.insert(b"a", 1_000));
        assert!(!seen.insert(b"a", 1_000));
        assert!(seen.insert(b"b", 1_099));
        assert!(!seen.insert(b"a", 1_100), "100 s later");
        assert!(!seen.insert(b"b", 1_199));
        assert!(seen.insert(b"a", 1_400), "long forgotten");
        for number in 0..1_000_u32 {
            assert!(seen.insert(&number.to_le_bytes(), 1_401));
            let generations = seen.generations.lock().unwrap();
            assert!(generations.newer.len() + generations.older.len() <= 8);
        }
        assert!(!seen.insert(&999_u32.to_le_bytes(), 1_401));
    }
}
