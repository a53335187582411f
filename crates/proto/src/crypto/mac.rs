//! Authentication codes and checksums of old protocols.
//!
//! [`HmacMd5`] and [`HmacSha1`] hold a key with both of its padded blocks absorbed: a tag costs the blocks of the message
//! and one or two more, and nothing is allocated.

use std::fmt;
use std::marker::PhantomData;

use md5::block_api::compress as compress_md5;
use sha1::block_api::compress as compress_sha1;
use siphasher::sip::SipHasher13;
use zeroize::Zeroize;

use super::kdf::SHA1_INIT;

/// Bytes of a block of both hashes.
const BLOCK_LEN: usize = 64;

/// HMAC (RFC 2104) with MD5; tags of 16 bytes.
pub type HmacMd5 = Hmac<Md5, 4, 16>;
/// HMAC (RFC 2104) with SHA-1; tags of 20 bytes.
pub type HmacSha1 = Hmac<Sha1, 5, 20>;

/// A hash of 64-byte blocks, for [`Hmac`].
pub trait Compress<const WORDS: usize, const LEN: usize> {
    /// The state in front of the first block.
    const INIT: [u32; WORDS];
    /// Absorbs whole blocks.
    fn compress(state: &mut [u32; WORDS], blocks: &[[u8; BLOCK_LEN]]);
    /// The state as it is written out.
    fn output(state: &[u32; WORDS]) -> [u8; LEN];
    /// The length of the message in bits, as the last eight bytes hold it.
    fn bits(bits: u64) -> [u8; 8];
}

/// MD5, see [`HmacMd5`].
pub enum Md5 {}
/// SHA-1, see [`HmacSha1`].
pub enum Sha1 {}

impl Compress<4, 16> for Md5 {
    const INIT: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

    fn compress(state: &mut [u32; 4], blocks: &[[u8; BLOCK_LEN]]) {
        compress_md5(state, blocks);
    }

    fn output(state: &[u32; 4]) -> [u8; 16] {
        let mut out = [0; 16];
        out.as_chunks_mut().0.iter_mut().zip(state).for_each(|(out, word)| *out = word.to_le_bytes());
        out
    }

    fn bits(bits: u64) -> [u8; 8] {
        bits.to_le_bytes()
    }
}

impl Compress<5, 20> for Sha1 {
    const INIT: [u32; 5] = SHA1_INIT;

    fn compress(state: &mut [u32; 5], blocks: &[[u8; BLOCK_LEN]]) {
        compress_sha1(state, blocks);
    }

    fn output(state: &[u32; 5]) -> [u8; 20] {
        let mut out = [0; 20];
        out.as_chunks_mut().0.iter_mut().zip(state).for_each(|(out, word)| *out = word.to_be_bytes());
        out
    }

    fn bits(bits: u64) -> [u8; 8] {
        bits.to_be_bytes()
    }
}

/// A key that is ready to make tags of `LEN` bytes.
pub struct Hmac<H: Compress<WORDS, LEN>, const WORDS: usize, const LEN: usize> {
    inner: [u32; WORDS],
    outer: [u32; WORDS],
    hash: PhantomData<H>,
}

impl<H: Compress<WORDS, LEN>, const WORDS: usize, const LEN: usize> Hmac<H, WORDS, LEN> {
    /// Prepares the concatenation of `parts` as key, of any length. Two compressions up to 64 bytes.
    pub fn new(parts: &[&[u8]]) -> Self {
        let mut key = [0; BLOCK_LEN];
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len <= BLOCK_LEN {
            let mut at = 0;
            for part in parts {
                key[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
        } else {
            let whole = zeroize::Zeroizing::new(parts.concat());
            key[..LEN].copy_from_slice(&finish::<H, WORDS, LEN>(H::INIT, &whole, 0));
        }
        let absorb = |pad: u8| {
            let mut state = H::INIT;
            H::compress(&mut state, &[key.map(|byte| byte ^ pad)]);
            state
        };
        let ready = Self { inner: absorb(0x36), outer: absorb(0x5c), hash: PhantomData };
        key.zeroize();
        ready
    }

    /// The tag of `message`.
    pub fn tag(&self, message: &[u8]) -> [u8; LEN] {
        let inner = finish::<H, WORDS, LEN>(self.inner, message, BLOCK_LEN);
        finish::<H, WORDS, LEN>(self.outer, &inner, BLOCK_LEN)
    }
}

/// Absorbs `message` and the padding behind `before` bytes, a multiple of 64, and returns the digest.
fn finish<H: Compress<WORDS, LEN>, const WORDS: usize, const LEN: usize>(
    mut state: [u32; WORDS],
    message: &[u8],
    before: usize,
) -> [u8; LEN] {
    let (blocks, rest) = message.as_chunks::<BLOCK_LEN>();
    H::compress(&mut state, blocks);
    let mut last = [[0; BLOCK_LEN]; 2];
    last[0][..rest.len()].copy_from_slice(rest);
    last[0][rest.len()] = 0x80;
    let count = if rest.len() < BLOCK_LEN - 8 { 1 } else { 2 };
    let bits = 8 * (before + message.len()) as u64;
    last[count - 1][BLOCK_LEN - 8..].copy_from_slice(&H::bits(bits));
    H::compress(&mut state, &last[..count]);
    H::output(&state)
}

impl<H: Compress<WORDS, LEN>, const WORDS: usize, const LEN: usize> Drop for Hmac<H, WORDS, LEN> {
    fn drop(&mut self) {
        self.inner.zeroize();
        self.outer.zeroize();
    }
}

/// Shows no key material.
impl<H: Compress<WORDS, LEN>, const WORDS: usize, const LEN: usize> fmt::Debug for Hmac<H, WORDS, LEN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hmac").finish_non_exhaustive()
    }
}

/// SipHash-1-3 with a 64-bit result, written in little-endian order.
pub fn siphash13(key: &[u8; 16], message: &[u8]) -> [u8; 8] {
    SipHasher13::new_with_key(key).hash(message).to_le_bytes()
}

/// CRC-32 (IEEE 802.3) of `data`.
pub fn crc32(data: &[u8]) -> u32 {
    crc32fast::hash(data)
}

/// Adler-32 (RFC 1950) of `data`.
pub fn adler32(data: &[u8]) -> u32 {
    simd_adler32::adler32(&data)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac;

    use super::*;
    use crate::crypto::md5;

    #[test]
    fn hmac_md5_of_rfc_2202() {
        let tag = |key: &[u8], message: &[u8]| u128::from_be_bytes(HmacMd5::new(&[key]).tag(message));
        assert_eq!(tag(&[0x0b; 16], b"Hi There"), 0x9294_727a_3638_bb1c_13f4_8ef8_158b_fc9d);
        assert_eq!(tag(b"Jefe", b"what do ya want for nothing?"), 0x750c_783e_6ab0_b503_eaa8_6e31_0a5d_b738);
        let long = b"Test Using Larger Than Block-Size Key and Larger Than One Block-Size Data";
        assert_eq!(tag(&[0xaa; 80], long), 0x6f63_0fad_67cd_a0ee_1fb1_f562_db3a_a53e);
    }

    /// Every length around the block borders, against another implementation.
    #[test]
    fn lengths() {
        let data: Vec<u8> = (0..=255).collect();
        for len in 0..=200 {
            let (key, message) = (&data[..len % 90], &data[..len]);
            let theirs = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key), message);
            assert_eq!(
                HmacSha1::new(&[&key[..key.len() / 2], &key[key.len() / 2..]]).tag(message),
                theirs.as_ref()
            );
            let plain = finish::<Md5, 4, 16>(Md5::INIT, message, 0);
            assert_eq!(plain, md5(&[message]), "{len}");
        }
    }

    #[test]
    fn checksums() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    }
}
