use std::fmt;
use std::ops::Range;

use crate::buf::RecvBuf;
use crate::crypto::Noise;
use crate::wire::{Opened, Rng, WireError};

/// Both directions of one protocol, behind its header.
///
/// A sender lays packets one behind the other in front of and over their payload: `seal` is given where the packet
/// begins (`at`) and where its payload lies (`data`, further behind), and moves the latter.
pub(super) trait Codec: fmt::Debug {
    /// Longest payload of a packet, in bytes.
    fn unit(&self) -> usize;

    /// Most bytes around a payload of `unit` bytes.
    fn full_overhead(&self) -> usize;

    /// Most bytes around any other payload.
    fn max_overhead(&self) -> usize;

    /// Most bytes of the client's header that has not left.
    fn header_overhead(&self) -> usize {
        0
    }

    /// Writes the client's header with the first bytes of `data` in it; returns its end, and how many bytes it took.
    fn seal_header(
        &mut self,
        _block: &mut [u8],
        at: usize,
        _data: Range<usize>,
        _address_len: usize,
        _unix_s: u64,
    ) -> (usize, usize) {
        (at, 0)
    }

    /// Writes one packet of a write of `write_len` bytes and returns its end. `data` has at most `unit` bytes.
    fn seal(&mut self, block: &mut [u8], at: usize, data: Range<usize>, write_len: usize) -> usize;

    /// Writes packets around all of `data`, from `at` on, and returns the end of the last one.
    fn seal_all(&mut self, block: &mut [u8], mut at: usize, data: Range<usize>) -> usize {
        let len = data.len();
        for piece in pieces(data, self.unit()) {
            at = self.seal(block, at, piece, len);
        }
        at
    }

    /// Opens one packet at the front of `unread`, of which there is at least one byte.
    fn open(&mut self, unread: &mut [u8]) -> Result<Step, WireError>;

    /// As `open`, for codecs whose payload is longer than the packet.
    fn open_into(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        let position = wire.position();
        if wire.unread().is_empty() {
            return Ok(Opened::NeedMore(1));
        }
        match self.open(wire.unread_mut())? {
            Step::NeedMore(missing) => Ok(Opened::NeedMore(missing)),
            Step::Packet { len, data } => {
                wire.consume(len);
                Ok(Opened::Payload(position + data.start..position + data.end))
            }
        }
    }

    /// As [`Layer::has_backlog`](crate::wire::Layer::has_backlog).
    fn has_backlog(&self) -> bool {
        false
    }

    /// As [`Layer::most_received`](crate::wire::Layer::most_received).
    fn most_received(&self) -> usize {
        usize::MAX
    }
}

/// `data` in pieces of `unit` bytes and what is left.
pub(super) fn pieces(data: Range<usize>, unit: usize) -> impl Iterator<Item = Range<usize>> {
    let mut from = data.start;
    std::iter::from_fn(move || {
        let piece = from..data.end.min(from.saturating_add(unit));
        from = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The front of the unread bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// At least so many further bytes are missing.
    NeedMore(usize),
    /// A packet of `len` bytes with its payload at `data`.
    Packet { len: usize, data: Range<usize> },
}

/// Everything that is there, as it is.
pub(super) fn pass(wire: &mut RecvBuf) -> Opened {
    let range = wire.position()..wire.position() + wire.unread().len();
    if range.is_empty() {
        return Opened::NeedMore(1);
    }
    wire.consume(range.len());
    Opened::Payload(range)
}

/// Number of bytes that `unread` is short of `len`, if any.
pub(super) fn short(unread: &[u8], len: usize) -> Option<Step> {
    len.checked_sub(unread.len()).filter(|missing| *missing > 0).map(Step::NeedMore)
}

/// A length field that says the impossible.
pub(super) fn bad_len(len: usize) -> WireError {
    WireError::Malformed { what: "length of a packet", got: len as u64 }
}

/// A checksum or tag that does not fit.
pub(super) const BAD_TAG: WireError = WireError::Authentication { what: "packet" };

/// Byte order of the lengths of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Big,
    Little,
}

impl Order {
    pub(super) fn put(self, out: &mut [u8], value: usize) {
        let value = u16::try_from(value).expect("lengths stay below 64 KiB");
        out[..2].copy_from_slice(&match self {
            Self::Big => value.to_be_bytes(),
            Self::Little => value.to_le_bytes(),
        });
    }

    pub(super) fn get(self, bytes: &[u8]) -> usize {
        let bytes = [bytes[0], bytes[1]];
        usize::from(match self {
            Self::Big => u16::from_be_bytes(bytes),
            Self::Little => u16::from_le_bytes(bytes),
        })
    }
}

/// Longest padding field of a packet that is sent, in bytes.
pub(super) const MAX_PADDING: usize = 512;

/// Draws the length of a packet's padding field, 1 to [`MAX_PADDING`]: none for long writes, up to 256 or 512 for shorter
/// ones (as the C clients do).
pub(super) fn draw_padding(write_len: usize, noise: &mut Noise) -> usize {
    let bound = match write_len {
        0..=400 => 512,
        401..=1200 => 256,
        _ => return 1,
    };
    1 + noise.below(bound) as usize
}

/// Writes a padding field of `out.len()` bytes (1 at least): its length in one byte below 255, else 255 and a u16; then
/// random bytes.
pub(super) fn put_padding(out: &mut [u8], order: Order, noise: &mut Noise) {
    let len = out.len();
    let head = if len < 255 { 1 } else { 3 };
    noise.fill(&mut out[head..]);
    match u8::try_from(len) {
        Ok(short) if short < 255 => out[0] = short,
        Ok(_) | Err(_) => {
            out[0] = 255;
            order.put(&mut out[1..], len);
        }
    }
}

/// Length of the padding field at the front of `bytes`, if it lies in them.
pub(super) fn padding_len(bytes: &[u8], order: Order) -> Option<usize> {
    let len = match *bytes.first()? {
        255 => order.get(bytes.get(1..3)?),
        short => usize::from(short),
    };
    (len > 0 && len <= bytes.len()).then_some(len)
}
