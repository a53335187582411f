//! SEED (RFC 4269), a block cipher of 128-bit blocks and keys, in CFB128: a relic that needs no speed.

use std::sync::{Arc, LazyLock};

use zeroize::Zeroize;

use super::Direction;

/// Bytes of a block.
const BLOCK_LEN: usize = 16;
const ROUNDS: usize = 16;
/// The first round constant; each later one is this one, rotated left by one bit more (RFC 4269, section 2.2).
const ROUND_CONSTANT: u32 = 0x9e37_79b9;
/// Bits of an S-box's output for each byte of G's (RFC 4269, section 2.2, `m0` to `m3`).
const MASKS: [u8; 4] = [0xfc, 0xf3, 0xcf, 0x3f];

/// The two S-boxes: a power in GF(2^8) modulo x^8+x^6+x^5+x+1, then an affine map (RFC 4269, appendix A, whose tables
/// have been compared with these).
static S_BOXES: LazyLock<[[u8; 256]; 2]> = LazyLock::new(|| {
    [
        s_box(247, 169, [0x2c, 0xd0, 0x69, 0xc2, 0x41, 0x44, 0x58, 0xe2]),
        s_box(251, 56, [0xd0, 0x2a, 0xe1, 0x2c, 0x21, 0x30, 0xa2, 0x6c]),
    ]
});

fn s_box(exponent: u32, constant: u8, columns: [u8; 8]) -> [u8; 256] {
    std::array::from_fn(|x| {
        let x = x.to_le_bytes()[0];
        let power = (0..exponent).fold(1, |power, _| multiply(power, x));
        (0..8).filter(|bit| (power >> bit) & 1 == 1).fold(constant, |sum, bit| sum ^ columns[bit])
    })
}

/// Product in GF(2^8) modulo x^8+x^6+x^5+x+1.
fn multiply(a: u8, b: u8) -> u8 {
    let double = |value: u8| (value << 1) ^ if value & 0x80 == 0 { 0 } else { 0x63 };
    let step = |(sum, a): (u8, u8), bit: u32| (if (b >> bit) & 1 == 1 { sum ^ a } else { sum }, double(a));
    (0..8).fold((0, a), step).0
}

/// The round keys.
pub(super) struct Seed([[u32; 2]; ROUNDS]);

impl Seed {
    /// `key` has 16 bytes.
    pub(super) fn new(key: &[u8]) -> Self {
        let words = words(key);
        let [mut left, mut right] = [join(words[0], words[1]), join(words[2], words[3])];
        let mut keys = [[0; 2]; ROUNDS];
        for (round, pair) in (0_u32..).zip(&mut keys) {
            let constant = ROUND_CONSTANT.rotate_left(round);
            let ([a, b], [c, d]) = (split(left), split(right));
            *pair =
                [g(a.wrapping_add(c).wrapping_sub(constant)), g(b.wrapping_sub(d).wrapping_add(constant))];
            if round % 2 == 0 {
                left = left.rotate_right(8);
            } else {
                right = right.rotate_left(8);
            }
        }
        Self(keys)
    }

    fn encrypt(&self, block: &mut [u8; BLOCK_LEN]) {
        let [mut l0, mut l1, mut r0, mut r1] = words(block);
        for key in &self.0 {
            let [f0, f1] = f(r0 ^ key[0], r1 ^ key[1]);
            (l0, l1, r0, r1) = (r0, r1, l0 ^ f0, l1 ^ f1);
        }
        // The halves are not swapped after the last round.
        for (out, word) in block.as_chunks_mut::<4>().0.iter_mut().zip([r0, r1, l0, l1]) {
            *out = word.to_be_bytes();
        }
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        self.0.as_flattened_mut().zeroize();
    }
}

fn words(bytes: &[u8]) -> [u32; 4] {
    let (chunks, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|i| u32::from_be_bytes(chunks[i]))
}

fn join(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn split(value: u64) -> [u32; 2] {
    let bytes = value.to_be_bytes();
    let [a, b, c, d, e, f, g, h] = bytes;
    [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])]
}

/// The round function behind the round key.
fn f(c: u32, d: u32) -> [u32; 2] {
    let mixed = g(c ^ d);
    let inner = g(mixed.wrapping_add(c));
    let outer = g(inner.wrapping_add(mixed));
    [outer.wrapping_add(inner), outer]
}

fn g(x: u32) -> u32 {
    let boxes = &*S_BOXES;
    let mut out = [0; 4];
    for (at, byte) in x.to_le_bytes().into_iter().enumerate() {
        let substituted = boxes[at % 2][usize::from(byte)];
        for (to, out) in out.iter_mut().enumerate() {
            *out ^= substituted & MASKS[(at + to) % 4];
        }
    }
    u32::from_le_bytes(out)
}

/// One direction in CFB128.
pub(super) struct SeedCfb {
    cipher: Arc<Seed>,
    direction: Direction,
    /// With `used == 0` the next input of the cipher. Otherwise `used` bytes of ciphertext and a rest of keystream.
    register: [u8; BLOCK_LEN],
    used: usize,
}

impl SeedCfb {
    /// `iv` has 16 bytes.
    pub(super) fn new(cipher: Arc<Seed>, direction: Direction, iv: &[u8]) -> Self {
        Self { cipher, direction, register: iv.try_into().expect("an IV of one block"), used: 0 }
    }

    pub(super) fn apply(&mut self, data: &mut [u8]) {
        for byte in data {
            if self.used == 0 {
                self.cipher.encrypt(&mut self.register);
            }
            let register = &mut self.register[self.used];
            let other = *byte ^ *register;
            *register = match self.direction {
                Direction::Encrypt => other,
                Direction::Decrypt => *byte,
            };
            *byte = other;
            self.used = (self.used + 1) % BLOCK_LEN;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4269, appendix B.1 and B.2.
    #[test]
    fn rfc_4269() {
        let count = std::array::from_fn(|i| i.to_le_bytes()[0]);
        for (key, plain, sealed) in [
            ([0; 16], count, 0x5eba_c6e0_054e_1668_19af_f1cc_6d34_6cdb_u128),
            (count, [0; 16], 0xc11f_22f2_0140_5050_8448_3597_e437_0f43),
        ] {
            let mut block = plain;
            Seed::new(&key).encrypt(&mut block);
            assert_eq!(u128::from_be_bytes(block), sealed);
        }
    }
}
