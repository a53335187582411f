//! QPP, the "quantum permutation pad" of new kcptun: a second cipher around the payload of each stream.
//!
//! A set of permutations of the 256 bytes is shuffled from the key. A generator, started from the key as well, picks a
//! permutation for every 8 bytes and a mask for each of them; groups of 8 run on across writes. Every stream and
//! direction starts from the same state, so that all pads repeat: this hides nothing that the crypt layer does not.
//!
//! ```text
//! r = xoshiro256**()                         one per 8 bytes
//! sealed[i] = pad[(r & 0xffff) mod count][plain[i] ^ byte i of r (little-endian)]
//! ```
//!
//! Construction read from qpp 1.1.25 and checked against two recorded sessions (`testdata/kcp/qpp.json`).

use std::sync::Arc;
use std::{fmt, iter};

use aes::Aes256Enc;
use cipher::{BlockCipherEncrypt, KeyInit};
use zeroize::Zeroizing;

use crate::crypto::{hmac_sha256, pbkdf2_sha1};

/// Pieces that the seed is stretched to: those that hold 256 * 255! at 32 bytes each.
const CHUNKS: usize = 7;

/// Length of a piece, and the least length of a seed.
const CHUNK_LEN: usize = 32;

const SEED_SALT: &[u8] = b"___QUANTUM_PERMUTATION_PAD_SEED_DERIVE___";
const SHUFFLE_SALT: &[u8] = b"___QUANTUM_PERMUTATION_PAD_SHUFFLE_SALT___";
const GENERATOR_SALT: &[u8] = b"___QUANTUM_PERMUTATION_PAD_PRNG_SALT___";
const SELECTOR: &[u8] = b"PERMUTATION_MATRIX_SELECTOR";

type Pad = [u8; 256];

/// The permutations of a key, which all streams share.
#[derive(Clone)]
pub struct Pads {
    /// Each with its inverse.
    pads: Arc<[(Pad, Pad)]>,
    start: [u64; 4],
}

impl Pads {
    /// Shuffles `count` permutations from `key`, the text as people type it; a count of 0 is taken for 1. Each costs
    /// 512 bytes and some 3,600 AES blocks.
    pub fn derive(key: &[u8], count: u16) -> Self {
        let chunks = chunks(key);
        let ciphers: Vec<Aes256Enc> = chunks.iter().map(|chunk| shuffle_cipher(chunk)).collect();
        let pads = (0..usize::from(count.max(1))).map(|number| {
            let pad = shuffle(&chunks[number % CHUNKS][..], number, &ciphers);
            (pad, inverse(&pad))
        });
        Self { pads: pads.collect(), start: generator_start(key) }
    }

    /// One direction of one stream.
    pub fn stream(&self) -> Qpp {
        Qpp { pads: self.clone(), generator: Generator(self.start), group: 0, used: 0 }
    }
}

/// Shows no key material.
impl fmt::Debug for Pads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pads").field("count", &self.pads.len()).finish_non_exhaustive()
    }
}

/// One direction of one stream: either sealing or opening.
#[derive(Debug)]
pub struct Qpp {
    pads: Pads,
    generator: Generator,
    /// Output of the generator for the current 8 bytes.
    group: u64,
    /// `used < 8`: bytes of the group that have passed; 0 asks the generator first.
    used: u32,
}

impl Qpp {
    /// Seals `data` in place.
    pub fn seal(&mut self, data: &mut [u8]) {
        self.apply(data, |pad, mask, byte| pad.0[usize::from(byte ^ mask)]);
    }

    /// Opens `data` in place.
    pub fn open(&mut self, data: &mut [u8]) {
        self.apply(data, |pad, mask, byte| pad.1[usize::from(byte)] ^ mask);
    }

    fn apply(&mut self, data: &mut [u8], step: impl Fn(&(Pad, Pad), u8, u8) -> u8) {
        for byte in data {
            if self.used == 0 {
                self.group = self.generator.advance();
            }
            let [low, high, ..] = self.group.to_le_bytes();
            let pad = &self.pads.pads[usize::from(u16::from_le_bytes([low, high])) % self.pads.pads.len()];
            let mask = self.group.to_le_bytes()[self.used as usize];
            *byte = step(pad, mask, *byte);
            self.used = (self.used + 1) % 8;
        }
    }
}

/// xoshiro256**.
struct Generator([u64; 4]);

impl Generator {
    fn advance(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        out
    }
}

/// Shows no state.
impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Generator")
    }
}

/// Stretches the key to pieces, each taken in turn from the seed around its end.
fn chunks(key: &[u8]) -> [Zeroizing<[u8; CHUNK_LEN]>; CHUNKS] {
    let mut seed = Zeroizing::new(key.to_vec());
    if seed.len() < CHUNK_LEN {
        let mut longer = Zeroizing::new(vec![0; CHUNK_LEN]);
        pbkdf2_sha1(key, SEED_SALT, 128, &mut longer);
        seed = longer;
    }
    let mut bytes = iter::repeat(&*seed).flatten();
    std::array::from_fn(|_| {
        let raw: Zeroizing<Vec<u8>> = Zeroizing::new(bytes.by_ref().take(CHUNK_LEN).copied().collect());
        let mut chunk = Zeroizing::new([0; CHUNK_LEN]);
        pbkdf2_sha1(&raw, SEED_SALT, 1024, &mut chunk[..]);
        chunk
    })
}

fn shuffle_cipher(chunk: &[u8; CHUNK_LEN]) -> Aes256Enc {
    let mut key = Zeroizing::new([0; 32]);
    pbkdf2_sha1(chunk, SHUFFLE_SALT, 128, &mut key[..]);
    Aes256Enc::new_from_slice(&key[..]).expect("AES-256 takes 32 bytes")
}

/// Fisher and Yates, with indices from a value that is enciphered over and over.
fn shuffle(chunk: &[u8], number: usize, ciphers: &[Aes256Enc]) -> Pad {
    let mut value = hmac_sha256(chunk, format!("QPP_{number:b}").as_bytes());
    let mut pad = identity();
    for at in (1..=255_u16).rev() {
        for cipher in ciphers {
            for half in value.as_chunks_mut::<16>().0 {
                cipher.encrypt_block(half.into());
            }
        }
        let other = value.iter().fold(0, |rest, byte| (rest << 8 | u32::from(*byte)) % u32::from(at + 1));
        pad.swap(usize::from(at), other as usize);
    }
    pad
}

fn identity() -> Pad {
    let mut pad = [0; 256];
    pad.iter_mut().zip(0..=255).for_each(|(entry, byte)| *entry = byte);
    pad
}

fn inverse(pad: &Pad) -> Pad {
    let mut inverse = [0; 256];
    for (byte, image) in (0..=255).zip(pad) {
        inverse[usize::from(*image)] = byte;
    }
    inverse
}

fn generator_start(key: &[u8]) -> [u64; 4] {
    let mut bytes = Zeroizing::new([0; 32]);
    pbkdf2_sha1(&hmac_sha256(key, SELECTOR), GENERATOR_SALT, 128, &mut bytes[..]);
    let words = bytes.as_chunks::<8>().0;
    std::array::from_fn(|i| u64::from_le_bytes(words[i]))
}

#[cfg(test)]
impl Pads {
    pub(super) fn forward(&self, pad: usize) -> &[u8] {
        &self.pads[pad].0
    }

    pub(super) fn start(&self) -> [u64; 4] {
        self.start
    }
}
