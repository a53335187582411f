//! HKDF-SHA1 of eight salts at a time, where the processor has AVX2.
//!
//! ```text
//!   vector w of a block's 16   word w of salt 0's block | of salt 1's | ... | of salt 7's        32 bits each
//! ```
//!
//! The processor's own instructions for SHA-1 work on one block at a time, and one derivation is a chain of eight. Eight
//! chains side by side take three fifths of the time per key.

#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array;

use fearless_simd::{Avx2, Level, SimdInto, u32x8};

use super::LANES;
use super::kdf::{SHA1_INIT, padded};

/// A block of each lane, or the five words of its state.
type Block = [__m256i; 16];
type State = [__m256i; 5];
/// Words, each of all lanes.
type Words<const N: usize> = [[u32; LANES]; N];

/// HKDF-SHA1 (RFC 5869) for [`LANES`] salts under one key.
#[derive(Debug, Clone, Copy)]
pub struct HkdfSha1Wide(Avx2);

impl HkdfSha1Wide {
    /// `None` if the processor cannot.
    pub fn new() -> Option<Self> {
        Level::new().as_avx2().map(Self)
    }

    /// For each of `salts`, zeros behind shorter ones, `len` bytes of key in the same place of `keys`: as
    /// [`hkdf_sha1`](super::hkdf_sha1) derives them. No allocation.
    ///
    /// # Panics
    /// If `ikm` is longer than 55 bytes, `info` than 34, or `len` is above 32.
    pub fn derive(
        self,
        ikm: &[u8],
        salts: &[[u8; 32]; LANES],
        info: &[u8],
        len: usize,
        keys: &mut [[u8; 32]; LANES],
    ) {
        assert!(len <= 32, "keys of up to 32 bytes");
        let word = |bytes: &[u8; 32], at: usize| {
            u32::from_be_bytes(*bytes[4 * at..].first_chunk().expect("eight words"))
        };
        let salts: Words<8> = array::from_fn(|at| array::from_fn(|lane| word(&salts[lane], at)));
        let messages = [padded(&[ikm]), padded(&[info, &[1]]), padded(&[&[0; 20], info, &[2]])];
        let mut derived: Words<10> = [[0; LANES]; 10];
        derive(self.0, &salts, &messages, len > 20, &mut derived);
        for (lane, key) in keys.iter_mut().enumerate() {
            for (at, piece) in key[..len].chunks_mut(4).enumerate() {
                piece.copy_from_slice(&derived[at][lane].to_be_bytes()[..piece.len()]);
            }
        }
    }
}

fearless_simd::kernel!(
    /// Five words of key for each lane, or ten if it is to be `long`. Of the last message the first five words are made
    /// here.
    fn derive(avx2: Avx2, salts: &Words<8>, messages: &[[u8; 64]; 3], long: bool, derived: &mut Words<10>) {
        let mut block = [_mm256_setzero_si256(); 16];
        for (vector, words) in block.iter_mut().zip(salts) {
            let words: u32x8<Avx2> = (*words).simd_into(avx2);
            *vector = words.into();
        }
        let [extract, first, second] = messages.map(|words| all_lanes(&words));
        let key = tag(&keyed(&block), &extract);
        block = [_mm256_setzero_si256(); 16];
        block[..5].copy_from_slice(&key);
        let key = keyed(&block);
        let one = tag(&key, &first);
        store(avx2, &one, &mut derived[..5]);
        if long {
            block = second;
            block[..5].copy_from_slice(&one);
            store(avx2, &tag(&key, &block), &mut derived[5..]);
        }
    }
);

#[target_feature(enable = "avx2")]
#[inline]
fn store(avx2: Avx2, state: &State, to: &mut [[u32; LANES]]) {
    for (words, vector) in to.iter_mut().zip(state) {
        let vector: u32x8<Avx2> = (*vector).simd_into(avx2);
        *words = vector.into();
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn all_lanes(block: &[u8; 64]) -> Block {
    let (words, _) = block.as_chunks();
    array::from_fn(|at| _mm256_set1_epi32(i32::from_be_bytes(words[at])))
}

/// HMAC-SHA1 with both padded blocks of the key absorbed.
#[target_feature(enable = "avx2")]
#[inline]
fn keyed(key: &Block) -> [State; 2] {
    [0x3636_3636, 0x5c5c_5c5c].map(|pad: i32| {
        let block = key.map(|word| _mm256_xor_si256(word, _mm256_set1_epi32(pad)));
        compress(&SHA1_INIT.map(|word| _mm256_set1_epi32(word.cast_signed())), &block)
    })
}

#[target_feature(enable = "avx2")]
#[inline]
fn tag(key: &[State; 2], message: &Block) -> State {
    let mut block = all_lanes(&padded(&[&[0; 20]]));
    block[..5].copy_from_slice(&compress(&key[0], message));
    compress(&key[1], &block)
}

/// Five rounds from round `$t` on, after which the words of the state are where they were.
macro_rules! five_rounds {
    ($w:ident, $t:expr, $k:ident, $f:ident, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident) => {
        round!($w, $t, $k, $f, $a, $b, $c, $d, $e);
        round!($w, $t + 1, $k, $f, $e, $a, $b, $c, $d);
        round!($w, $t + 2, $k, $f, $d, $e, $a, $b, $c);
        round!($w, $t + 3, $k, $f, $c, $d, $e, $a, $b);
        round!($w, $t + 4, $k, $f, $b, $c, $d, $e, $a);
    };
}

/// One round. Of the message's 80 words `$w` has the last 16.
macro_rules! round {
    ($w:ident, $t:expr, $k:ident, $f:ident, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident) => {
        if $t >= 16 {
            let near = _mm256_xor_si256($w[($t + 13) % 16], $w[($t + 8) % 16]);
            let far = _mm256_xor_si256($w[($t + 2) % 16], $w[$t % 16]);
            $w[$t % 16] = rotate!(_mm256_xor_si256(near, far), 1);
        }
        let sum = _mm256_add_epi32(_mm256_add_epi32($e, $k), $w[$t % 16]);
        $e = _mm256_add_epi32(_mm256_add_epi32(sum, $f($b, $c, $d)), rotate!($a, 5));
        $b = rotate!($b, 30);
    };
}

/// Twenty rounds.
macro_rules! twenty_rounds {
    ($w:ident, $t:expr, $k:literal, $f:ident, $($word:ident),*) => {
        let k = _mm256_set1_epi32(u32::cast_signed($k));
        five_rounds!($w, $t, k, $f, $($word),*);
        five_rounds!($w, $t + 5, k, $f, $($word),*);
        five_rounds!($w, $t + 10, k, $f, $($word),*);
        five_rounds!($w, $t + 15, k, $f, $($word),*);
    };
}

/// SHA-1's compression of one block in each lane. The rounds are written out: what a word of the message waits for is
/// then done beside the rounds.
#[target_feature(enable = "avx2")]
#[inline(never)]
fn compress(before: &State, block: &Block) -> State {
    let mut w = *block;
    let [mut a, mut b, mut c, mut d, mut e] = *before;
    twenty_rounds!(w, 0, 0x5a82_7999, choose, a, b, c, d, e);
    twenty_rounds!(w, 20, 0x6ed9_eba1, parity, a, b, c, d, e);
    twenty_rounds!(w, 40, 0x8f1b_bcdc, majority, a, b, c, d, e);
    twenty_rounds!(w, 60, 0xca62_c1d6, parity, a, b, c, d, e);
    let after = [a, b, c, d, e];
    array::from_fn(|n| _mm256_add_epi32(before[n], after[n]))
}

#[target_feature(enable = "avx2")]
#[inline]
fn choose(b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    _mm256_xor_si256(d, _mm256_and_si256(b, _mm256_xor_si256(c, d)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn parity(b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    _mm256_xor_si256(_mm256_xor_si256(b, c), d)
}

#[target_feature(enable = "avx2")]
#[inline]
fn majority(b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_and_si256(b, c), _mm256_and_si256(d, _mm256_or_si256(b, c)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::hkdf_sha1;

    #[test]
    fn as_one_by_one() {
        let Some(wide) = HkdfSha1Wide::new() else { return };
        let byte = |n: usize| u8::try_from(n % 251).expect("below 251");
        let ikm: [u8; 32] = array::from_fn(byte);
        for (len, info) in
            [(16, &b"ss-subkey"[..]), (24, b"ss-subkey"), (32, b"ss-subkey"), (5, b""), (32, &[7; 34])]
        {
            let salt_len = len.max(16);
            let salts: [[u8; 32]; LANES] = array::from_fn(|lane| {
                array::from_fn(|at| if at < salt_len { byte(lane * 37 + at * 11) } else { 0 })
            });
            let mut keys = [[0; 32]; LANES];
            wide.derive(&ikm[..salt_len], &salts, info, len, &mut keys);
            for (salt, key) in salts.iter().zip(&keys) {
                let mut expected = [0; 32];
                hkdf_sha1(&ikm[..salt_len], &salt[..salt_len], info, &mut expected[..len]);
                assert_eq!(*key, expected, "{len} bytes");
            }
        }
    }
}
