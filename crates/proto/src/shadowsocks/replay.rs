//! Memories of salts that have been seen.
//!
//! A codec asks once per connection or datagram, after the first sealed part has authenticated and before anything is
//! made of it: a peer without the key can neither fill the memory nor learn from it.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::f64::consts::LN_2;
use std::hash::Hasher;

use crate::wire::Rng;

/// Remembers salts (for stream ciphers: IVs).
pub trait SaltFilter {
    /// Remembers `salt`; false if it was there already and the connection has to be refused.
    fn insert(&mut self, salt: &[u8]) -> bool;
}

/// Takes everything for new (the default of shadowsocks-rust for stream and SIP004 methods).
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFilter;

impl SaltFilter for NoFilter {
    fn insert(&mut self, _salt: &[u8]) -> bool {
        true
    }
}

/// An exact memory of the salts of the last minute, as SIP022 asks ("Replay Protection"): with timestamps checked to
/// 30 s either way, no older salt can come back.
#[derive(Debug)]
pub struct RecentSalts {
    newer: HashSet<[u8; 32]>,
    older: HashSet<[u8; 32]>,
    turned_s: u64,
    now_s: u64,
    capacity: usize,
}

/// Time that [`RecentSalts`] remembers at least, in seconds.
pub const SALT_LIFE_S: u64 = 60;

impl RecentSalts {
    /// A memory that refuses every salt rather than forget one early when it holds `capacity` of them.
    pub fn new(capacity: usize) -> Self {
        Self { newer: HashSet::new(), older: HashSet::new(), turned_s: 0, now_s: 0, capacity }
    }

    /// The filter as of `now_s`, in seconds of a clock that never steps back.
    pub fn at(&mut self, now_s: u64) -> &mut Self {
        self.now_s = now_s;
        if now_s.saturating_sub(self.turned_s) >= SALT_LIFE_S {
            let expired = now_s - self.turned_s >= 2 * SALT_LIFE_S;
            self.older = if expired { HashSet::new() } else { std::mem::take(&mut self.newer) };
            self.newer.clear();
            self.turned_s = now_s;
        }
        self
    }
}

impl SaltFilter for RecentSalts {
    fn insert(&mut self, salt: &[u8]) -> bool {
        let mut key = [0; 32];
        key[..salt.len()].copy_from_slice(salt);
        !self.older.contains(&key)
            && self.newer.len() + self.older.len() < self.capacity
            && self.newer.insert(key)
    }
}

/// Two Bloom filters in turn: when the current one has taken half of the capacity, the other is emptied and becomes
/// current (the scheme of shadowsocks-libev 3.3.5). Bounded memory, rare false alarms, no clock.
#[derive(Debug)]
pub struct PingPongBloom {
    current: Bloom,
    other: Bloom,
    half: usize,
}

impl PingPongBloom {
    /// A server's filter of shadowsocks-libev: a million salts, one false alarm in 10^10. Memory is touched as it
    /// fills.
    pub fn server(rng: &mut dyn Rng) -> Self {
        Self::new(1_000_000, 1e-10, rng)
    }

    /// A client's filter of shadowsocks-libev: ten thousand salts, one false alarm in 10^15.
    pub fn client(rng: &mut dyn Rng) -> Self {
        Self::new(10_000, 1e-15, rng)
    }

    /// Remembers the last `capacity / 2` to `capacity` salts with false alarms at a rate of `error`. `rng` gives
    /// the hash key.
    pub fn new(capacity: usize, error: f64, rng: &mut dyn Rng) -> Self {
        let half = (capacity / 2).max(1);
        Self { current: Bloom::new(half, error, rng), other: Bloom::new(half, error, rng), half }
    }
}

impl SaltFilter for PingPongBloom {
    fn insert(&mut self, salt: &[u8]) -> bool {
        if self.current.contains(salt) || self.other.contains(salt) {
            return false;
        }
        if self.current.len >= self.half {
            std::mem::swap(&mut self.current, &mut self.other);
            self.current.clear();
        }
        self.current.insert(salt);
        true
    }
}

#[derive(Debug)]
struct Bloom {
    bits: Box<[u64]>,
    hashes: u32,
    key: [u8; 16],
    len: usize,
}

impl Bloom {
    fn new(capacity: usize, error: f64, rng: &mut dyn Rng) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive numbers")]
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let (words, hashes) = {
            let per_item = -error.ln() / (LN_2 * LN_2);
            ((capacity as f64 * per_item / 64.0).ceil() as usize, (per_item * LN_2).ceil() as u32)
        };
        let mut key = [0; 16];
        rng.fill(&mut key);
        Self { bits: vec![0; words].into(), hashes, key, len: 0 }
    }

    /// The positions of `salt`, by double hashing.
    fn positions(&self, salt: &[u8]) -> impl Iterator<Item = (usize, u64)> + use<> {
        let hash = |suffix: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write(&self.key);
            hasher.write(salt);
            hasher.write_u8(suffix);
            hasher.finish()
        };
        let (start, step, bits) = (hash(0), hash(1) | 1, self.bits.len() as u64 * 64);
        (0..u64::from(self.hashes)).map(move |i| {
            let bit = start.wrapping_add(i.wrapping_mul(step)) % bits;
            let word = usize::try_from(bit / 64).expect("an index into memory");
            (word, 1 << (bit % 64))
        })
    }

    fn contains(&self, salt: &[u8]) -> bool {
        self.positions(salt).all(|(word, bit)| self.bits[word] & bit != 0)
    }

    fn insert(&mut self, salt: &[u8]) {
        self.positions(salt).for_each(|(word, bit)| self.bits[word] |= bit);
        self.len += 1;
    }

    fn clear(&mut self) {
        self.bits.fill(0);
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(u8);

    impl Rng for Count {
        fn fill(&mut self, out: &mut [u8]) {
            out.fill_with(|| {
                self.0 = self.0.wrapping_mul(5).wrapping_add(17);
                self.0
            });
        }
    }

    #[test]
    fn recent_salts_last_a_minute_and_are_bounded() {
        let mut salts = RecentSalts::new(3);
        assert!(salts.at(1_000).insert(&[1; 16]));
        assert!(!salts.at(1_000).insert(&[1; 16]));
        assert!(salts.at(1_059).insert(&[2; 32]));
        assert!(!salts.at(1_119).insert(&[2; 32]), "60 s later");
        assert!(salts.at(1_120).insert(&[3; 16]));
        assert!(!salts.at(1_121).insert(&[4; 16]), "full: refuse rather than forget");
        assert!(salts.at(1_180).insert(&[5; 16]), "two have expired");
        assert!(salts.at(1_300).insert(&[1; 16]), "long forgotten");
    }

    #[test]
    fn bloom_remembers_half_of_its_capacity() {
        let mut bloom = PingPongBloom::new(200, 1e-9, &mut Count(1));
        let salt = |i: u32| i.to_le_bytes();
        for i in 0..1_000 {
            assert!(bloom.insert(&salt(i)), "{i}");
            for back in 0..i.min(100) {
                assert!(!bloom.insert(&salt(i - back)), "{i} {back}");
            }
        }
        assert!(bloom.insert(&salt(0)), "forgotten");
    }
}
