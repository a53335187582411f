use std::ops::Range;

use super::subkey;
use crate::crypto::{Aead, NONCE_LEN, TAG_LEN, XAead, XNONCE_LEN};
use crate::shadowsocks::packet::{Packet, PacketCodec, parse_packet};
use crate::shadowsocks::{AeadKey, AeadMethod, Salt, SaltFilter};
use crate::wire::{Rng, Room, Target, WireError, address_len, emit_address};

/// Datagrams of SIP004; both ends do the same. Each has a subkey of its own, hence nothing is cached.
#[derive(Debug, Clone)]
pub struct Packets {
    key: AeadKey,
}

impl Packets {
    /// Datagrams under `key`.
    pub fn new(key: &AeadKey) -> Self {
        Self { key: key.clone() }
    }

    fn salt_len(&self) -> usize {
        self.key.method.key_len()
    }
}

impl PacketCodec for Packets {
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
        let salt = Salt::random(self.salt_len(), rng);
        let plain = payload.start - address_len(peer);
        emit_address(peer, &mut block[plain..]);
        let subkey = subkey(&self.key, salt.as_slice());
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
    ) -> Result<Packet, WireError> {
        let salt_len = self.salt_len();
        if datagram.len() <= salt_len + TAG_LEN {
            return Err(WireError::Truncated { what: "a datagram" });
        }
        let (salt, sealed) = datagram.split_at_mut(salt_len);
        let subkey = subkey(&self.key, salt);
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
}
