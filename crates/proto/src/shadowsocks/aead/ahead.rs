use zeroize::Zeroizing;

use super::SUBKEY_INFO;
use crate::crypto::{HkdfSha1Wide, LANES};
use crate::shadowsocks::{AeadKey, Salt};
use crate::wire::Rng;

/// Subkeys that are derived together, [`LANES`] at a time, before each is asked for.
pub(super) struct SubkeysAhead {
    wide: HkdfSha1Wide,
    salts: [[u8; 32]; LANES],
    keys: Zeroizing<[[u8; 32]; LANES]>,
    /// The first that has not been used, and behind the last one.
    next: usize,
    end: usize,
}

impl SubkeysAhead {
    /// Nothing yet; `None` where one at a time is as fast.
    pub(super) fn new() -> Option<Box<Self>> {
        let wide = HkdfSha1Wide::new()?;
        Some(Box::new(Self {
            wide,
            salts: [[0; 32]; LANES],
            keys: Zeroizing::new([[0; 32]; LANES]),
            next: 0,
            end: 0,
        }))
    }

    /// Derives the subkeys of the first `count` of `salts`, zeros behind shorter ones.
    pub(super) fn derive(&mut self, key: &AeadKey, salts: [[u8; 32]; LANES], count: usize) {
        self.salts = salts;
        let len = key.method.key_len();
        self.wide.derive(key.master.expose(), &self.salts, SUBKEY_INFO, len, &mut self.keys);
        (self.next, self.end) = (0, count);
    }

    /// A fresh salt, which is not given out again, and its subkey.
    pub(super) fn take(&mut self, key: &AeadKey, rng: &mut dyn Rng) -> (Salt, Zeroizing<[u8; 32]>) {
        let len = key.method.key_len();
        if self.next == self.end {
            let mut salts = [[0; 32]; LANES];
            salts.iter_mut().for_each(|salt| rng.fill(&mut salt[..len]));
            self.derive(key, salts, LANES);
        }
        let at = self.next;
        self.next += 1;
        (Salt::from_slice(&self.salts[at][..len]), Zeroizing::new(self.keys[at]))
    }

    /// The subkey of `salt`, if it is among those derived: once each, and in their order, but for some that are left out.
    pub(super) fn find(&mut self, salt: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
        let at = (self.next..self.end).find(|&at| self.salts[at][..salt.len()] == *salt)?;
        self.next = at + 1;
        Some(Zeroizing::new(self.keys[at]))
    }
}
