use std::ops::Range;

use super::{MethodKey, NoFilter, SaltFilter, ServerKey, aead, aead2022, stream};
use crate::crypto::LANES;
use crate::wire::{Address, Rng, Room, Target, WireError, parse_address};

/// A datagram that has been opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowsocksPacket {
    /// Client to server: where it is to go. Server to client: where it came from.
    pub target: Target,
    /// The payload, as a range into the datagram.
    pub payload: Range<usize>,
}

/// Most datagrams that are worth announcing at a time; see [`PacketCodec::expect`].
pub const TOGETHER: usize = LANES;

/// One datagram in, one datagram out, in place.
pub trait PacketCodec {
    /// Free bytes that [`PacketCodec::seal`] needs around the payload, at most.
    fn room(&self, peer: &Target) -> Room;

    /// Seals the payload at `payload` in `block` and returns the range of the datagram. `peer` is where it is to go
    /// (client) or where it came from (server).
    ///
    /// # Errors
    /// [`WireError::Exhausted`] when the cipher cannot seal so much.
    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        peer: &Target,
        unix_s: u64,
        rng: &mut dyn Rng,
    ) -> Result<Range<usize>, WireError>;

    /// Opens `datagram` in place. `filter` is asked about the salt after authentication and before the return.
    ///
    /// # Errors
    /// An error in the datagram, which is to be dropped without an answer.
    fn open(
        &mut self,
        datagram: &mut [u8],
        unix_s: u64,
        filter: &mut dyn SaltFilter,
    ) -> Result<ShadowsocksPacket, WireError>;

    /// These datagrams are about to be opened, in this order, [`TOGETHER`] at most: what they need may be derived
    /// together. Nothing depends on it but speed.
    fn expect(&mut self, _datagrams: &mut dyn Iterator<Item = &[u8]>) {}

    /// Gives up what can be derived again: for codecs that are silent.
    fn rest(&mut self) {}
}

/// The codec of a client's datagrams. Servers use [`stream::StreamCipherPackets`], [`aead::AeadPackets`] and
/// [`aead2022::Aead2022ServerPackets`].
pub fn client_packets(key: &MethodKey, rng: &mut dyn Rng) -> Box<dyn PacketCodec> {
    match key {
        MethodKey::Stream(key) => Box::new(stream::StreamCipherPackets::new(key)),
        MethodKey::Aead(key) => Box::new(aead::AeadPackets::new(key)),
        MethodKey::Aead2022(keys) => Box::new(aead2022::Aead2022ClientPackets::new(keys, rng)),
    }
}

/// Splits plaintext that begins with an address; `at` is its offset in the datagram.
pub(super) fn parse_packet(plain: &[u8], at: usize) -> Result<ShadowsocksPacket, WireError> {
    match parse_address(plain)? {
        Address::Whole(target, len) => Ok(ShadowsocksPacket { target, payload: at + len..at + plain.len() }),
        Address::NeedMore(_) => Err(WireError::Truncated { what: "the address" }),
    }
}

/// Fuzz target: a server that receives `bytes` as a datagram, and a client that does.
#[doc(hidden)]
pub fn fuzz_packets(key: &ServerKey, unix_s: u64, bytes: &[u8], rng: &mut dyn Rng) {
    let mut datagram = bytes.to_vec();
    let opened = match &key.key {
        MethodKey::Stream(key) => {
            stream::StreamCipherPackets::new(key).open(&mut datagram, unix_s, &mut NoFilter)
        }
        MethodKey::Aead(key) => aead::AeadPackets::new(key).open(&mut datagram, unix_s, &mut NoFilter),
        MethodKey::Aead2022(keys) => {
            let server = aead2022::Aead2022ServerPackets::new(keys, &key.users);
            server.read_header(&mut datagram).and_then(|header| {
                let mut session = server.new_session(&header, rng);
                session.open(&header, &mut datagram, unix_s)
            })
        }
    };
    if let Ok(packet) = opened {
        assert!(packet.payload.start <= packet.payload.end && packet.payload.end <= bytes.len());
    }
    let mut datagram = bytes.to_vec();
    let mut client = client_packets(&key.key, rng);
    client.expect(&mut bytes.chunks(1 + bytes.len() / TOGETHER));
    if let Ok(packet) = client.open(&mut datagram, unix_s, &mut NoFilter) {
        assert!(packet.payload.start <= packet.payload.end && packet.payload.end <= bytes.len());
    }
}
