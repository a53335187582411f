use std::fmt;
use std::ops::Range;

use zeroize::Zeroizing;

use super::ahead::SubkeysAhead;
use super::subkey;
use crate::crypto::{Aead, LANES, NONCE_LEN, TAG_LEN, XAead, XNONCE_LEN};
use crate::shadowsocks::packet::{PacketCodec, ShadowsocksPacket, parse_packet};
use crate::shadowsocks::{AeadKey, AeadMethod, Salt, SaltFilter};
use crate::wire::{Rng, Room, Target, WireError, address_len, emit_address};

/// Datagrams sealed one by one before subkeys are derived ahead of need.
const FEW: u32 = 16;

/// Datagrams of SIP004; both ends do the same. Each has a subkey of its own, hence nothing is cached; where there are
/// many, subkeys are derived eight at a time.
pub struct AeadPackets {
    key: AeadKey,
    sealed: u32,
    own: Option<Box<SubkeysAhead>>,
    expected: Option<Box<SubkeysAhead>>,
}

impl fmt::Debug for AeadPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packets").field("key", &self.key).finish_non_exhaustive()
    }
}

impl AeadPackets {
    /// Datagrams under `key`.
    pub fn new(key: &AeadKey) -> Self {
        Self { key: key.clone(), sealed: 0, own: None, expected: None }
    }

    /// A fresh salt and its subkey.
    fn fresh(&mut self, rng: &mut dyn Rng) -> (Salt, Zeroizing<[u8; 32]>) {
        if let Some(own) = &mut self.own {
            return own.take(&self.key, rng);
        }
        self.sealed = self.sealed.saturating_add(1);
        if self.sealed == FEW {
            self.own = SubkeysAhead::new();
        }
        let salt = Salt::random(self.salt_len(), rng);
        let subkey = subkey(&self.key, salt.as_slice());
        (salt, subkey)
    }

    fn salt_len(&self) -> usize {
        self.key.method.key_len()
    }
}

impl PacketCodec for AeadPackets {
    fn room(&self, peer: &Target) -> Room {
        let head = self.salt_len() + address_len(peer);
        Room { head, tail: TAG_LEN, max_payload: usize::from(u16::MAX) - head - TAG_LEN }
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        peer: &Target,
        _unix_s: u64,
        rng: &mut dyn Rng,
    ) -> Result<Range<usize>, WireError> {
        let (salt, subkey) = self.fresh(rng);
        let plain = payload.start - address_len(peer);
        emit_address(peer, &mut block[plain..]);
        let subkey = &subkey[..salt.len()];
        let (data, behind) = block[plain..].split_at_mut(payload.end - plain);
        let tag = behind.first_chunk_mut().expect("room for the tag");
        match self.key.method {
            AeadMethod::Short(method) => Aead::new(method, subkey).seal([0; NONCE_LEN], &[], data, tag)?,
            AeadMethod::Long(method) => XAead::new(method, subkey).seal([0; XNONCE_LEN], &[], data, tag)?,
        }
        let start = plain - salt.len();
        block[start..plain].copy_from_slice(salt.as_slice());
        Ok(start..payload.end + TAG_LEN)
    }

    fn open(
        &mut self,
        datagram: &mut [u8],
        _unix_s: u64,
        filter: &mut dyn SaltFilter,
    ) -> Result<ShadowsocksPacket, WireError> {
        let salt_len = self.salt_len();
        if datagram.len() <= salt_len + TAG_LEN {
            return Err(WireError::Truncated { what: "a datagram" });
        }
        let (salt, sealed) = datagram.split_at_mut(salt_len);
        let expected = self.expected.as_mut().and_then(|expected| expected.find(salt));
        let subkey = expected.unwrap_or_else(|| subkey(&self.key, salt));
        let subkey = &subkey[..salt_len];
        let opened = match self.key.method {
            AeadMethod::Short(method) => Aead::new(method, subkey).open([0; NONCE_LEN], &[], sealed),
            AeadMethod::Long(method) => XAead::new(method, subkey).open([0; XNONCE_LEN], &[], sealed),
        };
        opened.map_err(|()| WireError::Authentication { what: "datagram" })?;
        if !filter.insert(salt) {
            return Err(WireError::Replayed { what: "salt" });
        }
        parse_packet(&sealed[..sealed.len() - TAG_LEN], salt_len)
    }

    fn expect(&mut self, datagrams: &mut dyn Iterator<Item = &[u8]>) {
        let (len, mut salts, mut count) = (self.salt_len(), [[0; 32]; LANES], 0);
        for (place, salt) in salts.iter_mut().zip(datagrams.filter_map(|datagram| datagram.get(..len))) {
            place[..len].copy_from_slice(salt);
            count += 1;
        }
        // Fewer are as fast one by one.
        if count <= LANES / 2 {
            return;
        }
        if self.expected.is_none() {
            self.expected = SubkeysAhead::new();
        }
        if let Some(expected) = &mut self.expected {
            expected.derive(&self.key, salts, count);
        }
    }

    fn rest(&mut self) {
        (self.sealed, self.own, self.expected) = (0, None, None);
    }
}
