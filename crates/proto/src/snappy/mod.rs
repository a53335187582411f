//! Snappy's framing format, as one endless stream per direction.
//!
//! ```text
//! 0 type u8 | 1 length u24 | 4 body                                                     little-endian
//!
//! ff, length 6: "sNaPpY", first of all, and allowed again    80 to fd: to be skipped    fe: padding
//! 00: 4 checksum u32 | 8 compressed bytes                    01: 4 checksum u32 | 8 bytes
//! 02 to 7f: an error
//! ```
//!
//! The checksum is CRC-32C of the plain bytes, rotated right by 15 and increased by a constant. A chunk holds at most
//! 65536 plain bytes. Source: framing_format.txt of google/snappy; checked against recorded sessions of kcptun.
//!
//! Peers flush after every write, so that each write is a chunk; readers do not rely on it.

use std::fmt;

use crate::wire::WireError;

/// Plain bytes in a chunk, at most.
const MAX_PLAIN: usize = 1 << 16;

/// Type and length.
const CHUNK_HEADER_LEN: usize = 4;

/// Length of a checksum.
const CRC_LEN: usize = 4;

/// Body of a chunk that makes sense, at most: what 65536 bytes that do not compress can become, and the checksum.
const MAX_BODY: usize = CRC_LEN + 32 + MAX_PLAIN + MAX_PLAIN / 6;

const COMPRESSED: u8 = 0x00;
const PLAIN: u8 = 0x01;
const SKIPPABLE: u8 = 0x80;
const IDENTIFIER: u8 = 0xff;

const MAGIC: &[u8] = b"sNaPpY";

/// The sending side.
#[derive(Default)]
pub struct SnappyEncoder {
    has_begun: bool,
    /// Up to 34 KiB of tables, made when first needed.
    snappy: Option<snap::raw::Encoder>,
    scratch: Vec<u8>,
}

impl SnappyEncoder {
    /// At the start of the stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the chunks that carry `plain` to `out`; the first call begins the stream.
    pub fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        if plain.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            emit_header(IDENTIFIER, MAGIC.len(), out);
            out.extend(MAGIC);
        }
        for plain in plain.chunks(MAX_PLAIN) {
            self.scratch.resize(snap::raw::max_compress_len(plain.len()), 0);
            let snappy = self.snappy.get_or_insert_with(snap::raw::Encoder::new);
            let len = snappy.compress(plain, &mut self.scratch).expect("room for the worst case");
            // As Go's encoder: less than an eighth saved is not worth the receiver's time.
            let (kind, body) = if len >= plain.len() - plain.len() / 8 {
                (PLAIN, plain)
            } else {
                (COMPRESSED, &self.scratch[..len])
            };
            emit_header(kind, CRC_LEN + body.len(), out);
            out.extend(checksum(plain).to_le_bytes());
            out.extend(body);
        }
    }

    /// Gives back what a stream at rest does not need.
    pub fn rest(&mut self) {
        self.scratch = Vec::new();
        self.snappy = None;
    }
}

impl fmt::Debug for SnappyEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("has_begun", &self.has_begun).finish_non_exhaustive()
    }
}

/// The receiving side. It holds at most one chunk.
#[derive(Debug, Default)]
pub struct SnappyDecoder {
    has_begun: bool,
    header: [u8; CHUNK_HEADER_LEN],
    header_len: usize,
    /// The part of the body that has arrived.
    body: Vec<u8>,
    /// Bytes of a chunk that are still to be skipped.
    skip: usize,
    snappy: snap::raw::Decoder,
}

impl SnappyDecoder {
    /// At the start of the stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes, in any pieces, until one chunk is complete, and appends what it holds to `out`. Returns how many
    /// bytes it took: call again with the others.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for what the format forbids, [`WireError::Authentication`] for a wrong checksum. The
    /// stream is then over.
    pub fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, WireError> {
        let mut rest = input;
        while !rest.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(rest.len());
                self.skip -= skipped;
                rest = &rest[skipped..];
                continue;
            }
            let missing = CHUNK_HEADER_LEN - self.header_len;
            if missing > 0 {
                let (head, after) = rest.split_at(missing.min(rest.len()));
                self.header[self.header_len..][..head.len()].copy_from_slice(head);
                self.header_len += head.len();
                rest = after;
                if self.header_len == CHUNK_HEADER_LEN {
                    self.begin_chunk()?;
                }
                continue;
            }
            let missing = self.body_len() - self.body.len();
            let (head, after) = rest.split_at(missing.min(rest.len()));
            rest = after;
            // A chunk that lies there as a whole is not copied first.
            if self.body.is_empty() && head.len() == missing {
                self.finish_chunk(head, out)?;
                break;
            }
            self.body.extend(head);
            if head.len() == missing {
                let body = std::mem::take(&mut self.body);
                self.finish_chunk(&body, out)?;
                break;
            }
        }
        Ok(input.len() - rest.len())
    }

    /// The header is complete.
    fn begin_chunk(&mut self) -> Result<(), WireError> {
        let (kind, len) = (self.header[0], self.body_len());
        let data_len = CRC_LEN + 1..=MAX_BODY;
        let legal = match kind {
            IDENTIFIER => len == MAGIC.len(),
            COMPRESSED | PLAIN => data_len.contains(&len),
            _ => kind >= SKIPPABLE,
        };
        if !legal {
            let what =
                if kind < SKIPPABLE && kind > PLAIN { "snappy chunk type" } else { "snappy chunk length" };
            let got =
                if what.ends_with("type") { u64::from(kind) } else { u64::try_from(len).unwrap_or(u64::MAX) };
            return Err(WireError::Malformed { what, got });
        }
        if !self.has_begun && kind != IDENTIFIER {
            return Err(WireError::Malformed { what: "snappy stream identifier", got: kind.into() });
        }
        self.has_begun = true;
        if (SKIPPABLE..IDENTIFIER).contains(&kind) {
            self.skip = len;
            self.header_len = 0;
        }
        Ok(())
    }

    fn finish_chunk(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
        self.header_len = 0;
        if self.header[0] == IDENTIFIER {
            return if body == MAGIC {
                Ok(())
            } else {
                Err(WireError::Malformed { what: "snappy stream identifier", got: body[0].into() })
            };
        }
        let Some((crc, data)) = body.split_first_chunk::<CRC_LEN>() else {
            return Err(WireError::Truncated { what: "snappy chunk" });
        };
        let start = out.len();
        if self.header[0] == PLAIN {
            out.extend(data);
        } else {
            self.decompress(data, out)?;
        }
        if out.len() - start > MAX_PLAIN {
            let got = u64::try_from(out.len() - start).unwrap_or(u64::MAX);
            return Err(WireError::Malformed { what: "snappy chunk length", got });
        }
        if checksum(&out[start..]) != u32::from_le_bytes(*crc) {
            return Err(WireError::Authentication { what: "snappy checksum" });
        }
        Ok(())
    }

    fn decompress(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
        const BAD: WireError = WireError::Malformed { what: "snappy data", got: 0 };
        // The length is the peer's word: it bounds what is reserved.
        let len = snap::raw::decompress_len(data).ok().filter(|len| *len <= MAX_PLAIN).ok_or(BAD)?;
        let start = out.len();
        out.resize(start + len, 0);
        self.snappy.decompress(data, &mut out[start..]).map_err(|_| BAD)?;
        Ok(())
    }

    fn body_len(&self) -> usize {
        let [_, low, middle, high] = self.header;
        u32::from_le_bytes([low, middle, high, 0]) as usize
    }
}

fn emit_header(kind: u8, len: usize, out: &mut Vec<u8>) {
    let len = u32::try_from(len).expect("chunks are short").to_le_bytes();
    out.extend([kind, len[0], len[1], len[2]]);
}

fn checksum(plain: &[u8]) -> u32 {
    crc32c::crc32c(plain).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// First byte: length of the pieces; the rest: a stream. Any pieces give the same as the whole.
#[doc(hidden)]
pub fn fuzz_snappy(data: &[u8]) {
    let Some((&piece, stream)) = data.split_first() else { return };
    let run = |piece: usize| {
        let mut decoder = SnappyDecoder::new();
        let mut out = Vec::new();
        for mut piece in stream.chunks(piece) {
            while !piece.is_empty() {
                match decoder.decode(piece, &mut out) {
                    Ok(taken) => piece = &piece[taken..],
                    // The part of the chunk before an error may have been given out.
                    Err(error) => return Err(error),
                }
            }
            assert!(decoder.body.len() <= MAX_BODY);
        }
        Ok(out)
    };
    assert_eq!(run(usize::from(piece).max(1)), run(stream.len().max(1)));
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert_eq, proptest};

    use super::*;

    fn decoded(stream: &[u8], piece: usize) -> Result<Vec<u8>, WireError> {
        let mut decoder = SnappyDecoder::new();
        let mut out = Vec::new();
        for mut piece in stream.chunks(piece) {
            while !piece.is_empty() {
                let taken = decoder.decode(piece, &mut out)?;
                piece = &piece[taken..];
            }
        }
        Ok(out)
    }

    fn stream(plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        SnappyEncoder::new().encode(plain, &mut out);
        out
    }

    #[test]
    fn every_split_of_a_stream() {
        let mut encoder = SnappyEncoder::new();
        let mut wire = Vec::new();
        encoder.encode(b"short", &mut wire);
        encoder.encode(&b"compressible ".repeat(20), &mut wire);
        wire.extend([0xfe, 3, 0, 0, 1, 2, 3, 0x80, 0, 0, 0]);
        wire.extend(b"\xff\x06\x00\x00sNaPpY");
        encoder.rest();
        encoder.encode(b"end", &mut wire);
        let plain = [b"short".to_vec(), b"compressible ".repeat(20), b"end".to_vec()].concat();
        for piece in 1..=wire.len() {
            assert_eq!(decoded(&wire, piece).unwrap(), plain, "pieces of {piece}");
        }
    }

    #[test]
    fn both_kinds_of_chunk() {
        let noise: Vec<u8> =
            (0..600_u32).map(|i| (i.wrapping_mul(i).wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        assert_eq!(stream(&noise)[10], PLAIN);
        assert_eq!(stream(&[b'a'; 600])[10], COMPRESSED);
        assert!(stream(&[]).is_empty());
        let long = vec![b'x'; 3 * MAX_PLAIN + 1];
        assert_eq!(decoded(&stream(&long), 4096).unwrap(), long);
    }

    #[test]
    fn every_flipped_bit_shows() {
        let wire = stream(&b"a text that compresses, compresses, compresses".repeat(3));
        let plain = decoded(&wire, 1000).unwrap();
        for at in 0..wire.len() * 8 {
            let mut wire = wire.clone();
            wire[at / 8] ^= 1 << (at % 8);
            // A chunk that became skippable, or longer, gives less; nothing gives anything else.
            if let Ok(out) = decoded(&wire, 1000) {
                assert!(out.is_empty() || out == plain, "bit {at}");
            }
        }
    }

    #[test]
    fn forbidden() {
        let begun = |more: &[u8]| [b"\xff\x06\x00\x00sNaPpY", more].concat();
        for (wire, what) in [
            (vec![0, 5, 0, 0], "snappy stream identifier"),
            (b"\xff\x06\x00\x00sNaPpy".to_vec(), "snappy stream identifier"),
            (begun(&[2, 5, 0, 0]), "snappy chunk type"),
            (begun(&[0x7f, 5, 0, 0]), "snappy chunk type"),
            (begun(&[0, 4, 0, 0]), "snappy chunk length"),
            (begun(&[1, 0, 0, 2]), "snappy chunk length"),
            // A bomb: four bytes that claim to hold 4 GiB.
            (begun(&[0, 9, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]), "snappy data"),
        ] {
            let error = decoded(&wire, 1000).unwrap_err();
            assert!(
                matches!(error, WireError::Malformed { what: is, .. } if is == what),
                "{wire:?}: {error}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes(data: Vec<u8>) {
            fuzz_snappy(&data);
        }

        #[test]
        fn any_text(text: Vec<u8>, piece in 1_usize..50) {
            prop_assert_eq!(decoded(&stream(&text), piece).unwrap(), text);
        }
    }
}
