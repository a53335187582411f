use zeroize::Zeroizing;

use super::SUBKEY_INFO;
use crate::crypto::{HkdfSha1Wide, LANES};
use crate::shadowsocks::{AeadKey, Salt};
use crate::wire::Rng;

/// Subkeys that are derived together, [`LANES`] at a time, before each is asked for.
pub(super) struct Ahead {
    wide: HkdfSha1Wide,
    salts: [[u8; 32]; LANES],
    keys: Zeroizing<[[u8; 32]; LANES]>,
    /// The first that has not been used, and behind the last one.
    next: usize,
    end: usize,
}

impl Ahead {
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

    fn derive(&mut self, key: &AeadKey, count: usize) {
        let len = key.method.key_len();
        self.wide.derive(key.master.expose(), &self.salts, SUBKEY_INFO, len, &mut self.keys);
        (self.next, self.end) = (0, count);
    }

    /// A fresh salt, which is not given out again, and its subkey.
    pub(super) fn take(&mut self, key: &AeadKey, rng: &mut dyn Rng) -> (Salt, Zeroizing<[u8; 32]>) {
        let len = key.method.key_len();
        if self.next == self.end {
            self.salts.iter_mut().for_each(|salt| rng.fill(&mut salt[..len]));
            self.derive(key, LANES);
        }
        let at = self.next;
        self.next += 1;
        (Salt::from_slice(&self.salts[at][..len]), Zeroizing::new(self.keys[at]))
    }

    /// Derives the subkeys of datagrams that are about to be opened, if there are enough of them.
    pub(super) fn expect<'a>(&mut self, key: &AeadKey, datagrams: impl Iterator<Item = &'a [u8]>) {
        let len = key.method.key_len();
        let mut count = 0;
        for (place, salt) in self.salts.iter_mut().zip(datagrams.filter_map(|datagram| datagram.get(..len))) {
            place[..len].copy_from_slice(salt);
            count += 1;
        }
        (self.next, self.end) = (0, 0);
        // Fewer are as fast one by one.
        if count > LANES / 2 {
            self.derive(key, count);
        }
    }

    /// The subkey of `salt`, if it was expected: once each, and in their order, but for some that are left out.
    pub(super) fn find(&mut self, salt: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
        let at = (self.next..self.end).find(|&at| self.salts[at][..salt.len()] == *salt)?;
        self.next = at + 1;
        Some(Zeroizing::new(self.keys[at]))
    }
}
