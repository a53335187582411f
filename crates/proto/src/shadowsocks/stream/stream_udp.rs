use std::ops::Range;

use crate::crypto::stream::Direction;
use crate::shadowsocks::packet::{PacketCodec, ShadowsocksPacket, parse_packet};
use crate::shadowsocks::{Salt, SaltFilter, StreamKey};
use crate::wire::{Rng, Room, Target, WireError, address_len, emit_address};

/// Datagrams of `none` and the stream ciphers; both ends do the same.
#[derive(Debug, Clone)]
pub struct StreamCipherPackets {
    key: StreamKey,
}

impl StreamCipherPackets {
    /// Datagrams under `key`.
    pub fn new(key: &StreamKey) -> Self {
        Self { key: key.clone() }
    }
}

impl PacketCodec for StreamCipherPackets {
    fn room(&self, peer: &Target) -> Room {
        let head = self.key.iv_len() + address_len(peer);
        Room { head, tail: 0, max_payload: usize::from(u16::MAX) - head }
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        peer: &Target,
        _unix_s: u64,
        rng: &mut dyn Rng,
    ) -> Result<Range<usize>, WireError> {
        let iv = Salt::random(self.key.iv_len(), rng);
        let plain = payload.start - address_len(peer);
        emit_address(peer, &mut block[plain..]);
        if let Some(mut cipher) = self.key.cipher(iv.as_slice(), Direction::Encrypt) {
            cipher.apply(&mut block[plain..payload.end])?;
        }
        let start = plain - iv.len();
        block[start..plain].copy_from_slice(iv.as_slice());
        Ok(start..payload.end)
    }

    fn open(
        &mut self,
        datagram: &mut [u8],
        _unix_s: u64,
        filter: &mut dyn SaltFilter,
    ) -> Result<ShadowsocksPacket, WireError> {
        let iv_len = self.key.iv_len();
        if datagram.len() <= iv_len {
            return Err(WireError::Truncated { what: "the IV" });
        }
        let (iv, data) = datagram.split_at_mut(iv_len);
        if let Some(mut cipher) = self.key.cipher(iv, Direction::Decrypt) {
            cipher.apply(data)?;
        }
        let packet = parse_packet(data, iv_len)?;
        if iv_len > 0 && !filter.insert(iv) {
            return Err(WireError::Replayed { what: "IV" });
        }
        Ok(packet)
    }
}
