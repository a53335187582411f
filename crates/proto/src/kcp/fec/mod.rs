//! Forward error correction of kcp-go: parity packets from which lost data packets are computed.
//!
//! ```text
//! 0 seqid u32 | 4 type u16 | 6 size u16 | 8 KCP bytes                type 0xf1, data
//! 0 seqid u32 | 4 type u16 | 6 parity ...                            type 0xf2, parity
//! 0 ff ff ff ff | 4 type u16 | 6 size u16 | 8 conv u32 | 12 bytes    type 0xf3, out of band (new only)
//! ```
//!
//! `size` counts itself and what follows it. A packet without this header is told apart by its type: bytes 4 and 5 of a
//! bare KCP packet are a command (81 to 84) and a fragment number. Receivers take both forms at any time, so that each
//! side may do as it likes.
//!
//! `seqid` counts data and parity packets alike. With `k` data and `m` parity packets, a group is `seqid / (k + m)`, a
//! place in it `seqid % (k + m)`: the first `k` are data. The counter goes back to 0 at the last multiple of `k + m`
//! below 2^32. Shards are the bytes from `size` to the end, filled up with zeros to the longest of the group. Data
//! packets leave at once; parity follows when the group is full, and no timer completes one.

mod code;
mod decoder;
mod encoder;
mod rate;
mod sending;
mod tuning;

#[doc(hidden)]
pub use self::decoder::fuzz_decoder;
pub use self::decoder::{FecDecoder, FecPacketKind};
pub use self::encoder::FecEncoder;
pub use self::rate::FecCounters;
pub use self::sending::Sending;

/// Bytes in front of the KCP bytes of a data packet.
pub const HEADER_LEN: usize = 8;

/// Offset of shards: they begin at the size field.
const SHARD_AT: usize = 6;

/// Kind of a packet at offset 4: data.
pub const TYPE_DATA: u16 = 0x00f1;
/// The same: parity.
pub const TYPE_PARITY: u16 = 0x00f2;
/// The same: bytes beside the stream.
pub const TYPE_OUT_OF_BAND: u16 = 0x00f3;

/// Number of data and parity packets in a group: 1 to 255 of each, 256 at most together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shards {
    data: u8,
    parity: u8,
}

impl Shards {
    /// The default of kcptun: 10 and 3.
    pub const USUAL: Self = Self { data: 10, parity: 3 };

    /// `None` for numbers that no group can have.
    pub fn new(data: usize, parity: usize) -> Option<Self> {
        let shards = Self { data: u8::try_from(data).ok()?, parity: u8::try_from(parity).ok()? };
        (data > 0 && parity > 0 && data + parity <= code::MAX_SHARDS).then_some(shards)
    }

    /// Data packets in a group.
    pub fn data(self) -> usize {
        self.data.into()
    }

    /// Parity packets in a group.
    pub fn parity(self) -> usize {
        self.parity.into()
    }

    fn total(self) -> u32 {
        u32::from(self.data) + u32::from(self.parity)
    }

    /// The number at which the counter goes back to 0.
    fn wrap(self) -> u32 {
        u32::MAX / self.total() * self.total()
    }
}

#[cfg(test)]
mod tests;
