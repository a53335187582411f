//! Filler: bytes of a shape that the pre-shared key chooses.

use super::profile::{Profile, len, low_byte};
use crate::crypto::{Aead, AeadAlgorithm};
use crate::wire::Rng;

/// Number under which the filler of the salt block is made.
pub(super) const SALT_BLOCK_SEQ: u32 = 0xFFFF_FFFF;
/// Longest motif, in bytes.
const MOTIF_LEN: usize = 32;

/// Bytes with 1 to 7 bits set, 16 for each count.
#[rustfmt::skip]
const BITS: [[u8; 16]; 7] = [
    [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80],
    [0x03, 0x05, 0x09, 0x11, 0x21, 0x41, 0x81, 0x06, 0x0A, 0x12, 0x22, 0x42, 0x82, 0x0C, 0x18, 0x24],
    [0x07, 0x0B, 0x13, 0x23, 0x43, 0x83, 0x0D, 0x19, 0x31, 0x61, 0xC1, 0x0E, 0x1C, 0x38, 0x70, 0xE0],
    [0x0F, 0x17, 0x27, 0x47, 0x87, 0x1B, 0x33, 0x63, 0xC3, 0x1D, 0x39, 0x71, 0xE1, 0x3C, 0x78, 0xF0],
    [0xF8, 0xF4, 0xEC, 0xDC, 0xBC, 0x7C, 0xF2, 0xE6, 0xCE, 0x9E, 0x3E, 0xF1, 0xE3, 0xC7, 0x8F, 0x1F],
    [0xFC, 0xFA, 0xF6, 0xEE, 0xDE, 0xBE, 0x7E, 0xF9, 0xF5, 0xED, 0xDD, 0xBD, 0x7D, 0xF3, 0xE7, 0xDB],
    [0xFE, 0xFD, 0xFB, 0xF7, 0xEF, 0xDF, 0xBF, 0x7F, 0xFE, 0xFD, 0xFB, 0xF7, 0xEF, 0xDF, 0xBF, 0x7F],
];

/// Source of filler.
pub(super) enum Filler {
    /// From a key of this process: never the same twice.
    Drawn(Aead),
    /// From the pre-shared key and the frame number, as other programs do it.
    #[cfg(test)]
    Expanded,
}

impl Filler {
    pub(super) fn drawn(rng: &mut dyn Rng) -> Self {
        let mut key = [0; 16];
        rng.fill(&mut key);
        Self::Drawn(Aead::new(AeadAlgorithm::Aes128Gcm, &key))
    }
}

/// Purpose of bytes without a shape.
#[derive(Clone, Copy)]
enum Kind {
    Fill,
    Motif,
}

/// The values that one direction has drawn so far.
#[derive(Debug)]
pub(super) struct Draws {
    id: [u8; 8],
    count: u32,
}

impl Draws {
    pub(super) fn new(rng: &mut dyn Rng) -> Self {
        let mut id = [0; 8];
        rng.fill(&mut id);
        Self { id, count: 0 }
    }

    /// After 2^32 draws, some 8 TiB, filler would begin to repeat, and nothing else.
    fn nonce(&mut self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.id);
        nonce[8..].copy_from_slice(&self.count.to_le_bytes());
        self.count = self.count.wrapping_add(1);
        nonce
    }
}

impl Profile {
    /// Fills `out` with filler for frame `seq`.
    pub(super) fn fill(&self, seq: u32, draws: &mut Draws, out: &mut [u8]) {
        self.raw(Kind::Fill, seq, draws, out);
        let g = &self.params.g;
        match self.params.generator {
            0 => self.fill_bits(seq, out),
            1 => fill_text(g, out),
            2 => fill_digits(g, out),
            _ => {
                let mut motif = [0; MOTIF_LEN];
                self.raw(Kind::Motif, seq, draws, &mut motif);
                fill_motif(g, &motif, out);
            }
        }
    }

    /// Bytes without a shape.
    #[cfg_attr(
        not(test),
        expect(unused_variables, reason = "only what others do depends on kind and number")
    )]
    fn raw(&self, kind: Kind, seq: u32, draws: &mut Draws, out: &mut [u8]) {
        match &self.filler {
            Filler::Drawn(key) => {
                out.fill(0);
                key.seal(draws.nonce(), &[], out, &mut [0; 16]).expect("filler is short");
            }
            #[cfg(test)]
            Filler::Expanded => match kind {
                Kind::Fill => super::tests::expand(self.ns.prefix, 0, seq.into(), out),
                Kind::Motif => super::tests::expand(self.ns.motif, 2, seq.into(), out),
            },
        }
    }

    /// Whether bytes at these offsets of the filler for frame `seq` could be filler.
    ///
    /// All programs that are known make filler of this shape, and random bytes seldom have it: of 24 bytes, which is the
    /// least that stands in front of a first header, one in 25 at the worst shape, and of usual lengths one in millions.
    pub(super) fn has_shape(&self, seq: u32, bytes: impl IntoIterator<Item = (usize, u8)>) -> bool {
        let g = &self.params.g;
        let (ones, period) = (self.ones(seq), len(g[6]));
        bytes.into_iter().all(|(at, byte)| match self.params.generator {
            0 => byte.count_ones() == ones,
            1 => byte >= 0x20 && byte != 0x7f,
            2 => byte & 15 < 10,
            _ => !(period - 3..period - 1).contains(&(at % period)) || byte.is_ascii_digit(),
        })
    }

    /// Bits that are set in every byte of filler that has the same number of them in each.
    fn ones(&self, seq: u32) -> u32 {
        let share = 8 * self.ns.pick(1, seq.into(), 0, self.params.bit_min, self.params.bit_max);
        match share {
            0..=49 => 1,
            50..=749 => u32::try_from((share + 50) / 100).expect("at most 7"),
            _ => 7,
        }
    }

    /// Every byte has the same number of bits set.
    fn fill_bits(&self, seq: u32, out: &mut [u8]) {
        let row = &BITS[self.ones(seq) as usize - 1];
        for (byte, i) in out.iter_mut().zip(0_u64..) {
            let v = *byte;
            let t = v.wrapping_add(low_byte(i));
            *byte = row[usize::from((t ^ v) & 15)].rotate_left(u32::from((t ^ (v >> 4)) & 7));
        }
    }
}

/// Printable bytes and bytes from 0x80 on, as in text of some encoding.
fn fill_text(g: &[u64; 7], out: &mut [u8]) {
    let sum = low_u16(g[1] + g[2] + g[3]);
    let (ascii, low) = (low_u16(g[1]), low_u16(g[1] + g[2]));
    // A number below 256, modulo a sum of at least 56, without a division.
    let reduce = |v: u16| (0..4).fold(v, |v, _| if v >= sum { v - sum } else { v });
    let mut i = 0_u8;
    for byte in out {
        let v = *byte;
        let class = reduce(v.into());
        let text = 0x20 + v.wrapping_add(i) % 95;
        let tail = 0x80 + (v ^ i) % 64;
        let lead = 0xC0 + v.wrapping_add(i.wrapping_mul(7)) % 64;
        *byte = if class < ascii {
            text
        } else if class < low {
            tail
        } else {
            lead
        };
        i = i.wrapping_add(1);
    }
}

/// Low halves of 0 to 9.
fn fill_digits(g: &[u64; 7], out: &mut [u8]) {
    let step = low_byte(g[4]);
    let mut i = 0_u8;
    for byte in out {
        let v = *byte;
        let high = v.wrapping_add((i & 3) << 4).wrapping_add(0x30) & 0xF0;
        *byte = high | (((v & 15) + step + (i & 1)) % 10);
        i = i.wrapping_add(1);
    }
}

/// A motif that repeats, with two digits and a free byte after each.
fn fill_motif(g: &[u64; 7], motif: &[u8; MOTIF_LEN], out: &mut [u8]) {
    let (factor, period, motif) = (low_byte(g[5] + 3), len(g[6]), &motif[..len(4 * g[5])]);
    // The motif goes on below the bytes between, and `product` is that of the factor and the offset.
    let (mut product, mut at) = (0_u8, 0);
    for piece in out.chunks_mut(period) {
        for (place, byte) in piece.iter_mut().enumerate() {
            if place < period - 3 {
                *byte = product ^ motif[at];
            } else if place < period - 1 {
                *byte = 0x30 + *byte % 10;
            }
            product = product.wrapping_add(factor);
            at = if at + 1 == motif.len() { 0 } else { at + 1 };
        }
    }
}

/// Sums of generator parameters are at most 320.
fn low_u16(value: u64) -> u16 {
    u16::try_from(value).expect("a sum of three bytes")
}
