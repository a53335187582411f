//! TEA and XTEA as kcp-go uses them: 64-bit blocks and 128-bit keys of big-endian words, encryption only (CFB needs
//! no more). No crate has TEA, and the one for XTEA takes its words in the other byte order.

use cipher::array::Array;
use cipher::consts::{U1, U8, U16};
use cipher::{
    BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser, InOut, Key, KeyInit,
    KeySizeUser, ParBlocksSizeUser,
};

/// 2^32 divided by the golden ratio.
const DELTA: u32 = 0x9e37_79b9;

/// kcp-go asks for 16 rounds; two rounds are a cycle. (Everybody else's TEA has 32 cycles.)
const TEA_CYCLES: u32 = 8;

/// As everybody else's.
const XTEA_CYCLES: u32 = 32;

/// TEA of 8 cycles.
#[derive(Clone, Copy)]
pub(super) struct Tea([u32; 4]);

impl Tea {
    fn mix(&self, [mut left, mut right]: [u32; 2]) -> [u32; 2] {
        let [k0, k1, k2, k3] = self.0;
        for cycle in 1..=TEA_CYCLES {
            let sum = DELTA.wrapping_mul(cycle);
            let round = |half: u32, a: u32, b: u32| {
                (half << 4).wrapping_add(a) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(b)
            };
            left = left.wrapping_add(round(right, k0, k1));
            right = right.wrapping_add(round(left, k2, k3));
        }
        [left, right]
    }
}

/// XTEA.
#[derive(Clone, Copy)]
pub(super) struct Xtea([u32; 4]);

impl Xtea {
    fn mix(&self, [mut left, mut right]: [u32; 2]) -> [u32; 2] {
        let part = |sum: u32, shift: u32| sum.wrapping_add(self.0[(sum >> shift & 3) as usize]);
        let round = |half: u32| ((half << 4) ^ (half >> 5)).wrapping_add(half);
        let mut sum = 0_u32;
        for _ in 0..XTEA_CYCLES {
            left = left.wrapping_add(round(right) ^ part(sum, 0));
            sum = sum.wrapping_add(DELTA);
            right = right.wrapping_add(round(left) ^ part(sum, 11));
        }
        [left, right]
    }
}

macro_rules! block_cipher {
    ($name:ident) => {
        impl KeySizeUser for $name {
            type KeySize = U16;
        }

        impl BlockSizeUser for $name {
            type BlockSize = U8;
        }

        impl ParBlocksSizeUser for $name {
            type ParBlocksSize = U1;
        }

        impl KeyInit for $name {
            fn new(key: &Key<Self>) -> Self {
                Self(std::array::from_fn(|i| word(&key[4 * i..])))
            }
        }

        impl BlockCipherEncBackend for $name {
            #[inline]
            fn encrypt_block(&self, mut block: InOut<'_, '_, Array<u8, U8>>) {
                let words = block.get_in();
                let [left, right] = self.mix([word(&words[..4]), word(&words[4..])]);
                let out = block.get_out();
                out[..4].copy_from_slice(&left.to_be_bytes());
                out[4..].copy_from_slice(&right.to_be_bytes());
            }
        }

        impl BlockCipherEncrypt for $name {
            fn encrypt_with_backend(&self, f: impl BlockCipherEncClosure<BlockSize = U8>) {
                f.call(self);
            }
        }
    };
}

block_cipher!(Tea);
block_cipher!(Xtea);

/// The first four bytes, big-endian.
fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of 0 to 15 and the text "ABCDEFGH", a published vector of XTEA.
    #[test]
    fn xtea_with_published_vector() {
        let key: [u8; 16] = std::array::from_fn(|i| u8::try_from(i).unwrap());
        let mut block = Array(*b"ABCDEFGH");
        BlockCipherEncrypt::encrypt_block(&Xtea::new(&Array(key)), &mut block);
        assert_eq!(block.0, [0x49, 0x7d, 0xf3, 0xd0, 0x72, 0x61, 0x2c, 0xb5]);
    }
}
