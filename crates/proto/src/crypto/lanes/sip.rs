//! SipHash-1-3 of eight messages at a time.
//!
//! ```text
//!   two vectors for word w   word w of message 0 | 1 | 2 | 3   and   of message 4 | 5 | 6 | 7        64 bits each
//! ```

#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array;
use std::fmt;

use fearless_simd::{Avx2, Level, SimdInto, u8x32};
use zeroize::Zeroize;

use super::super::LANES;
use super::{Words, in_step};

/// Bytes that are turned at a time: four words of each lane.
const CHUNK_LEN: usize = 32;
const WORD_LEN: usize = 8;
/// "somepseudorandomlygeneratedbytes", big-endian.
const INIT: [u64; 4] =
    [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];

type Chunk = [u8; CHUNK_LEN];

/// Up to [`LANES`] keys of SipHash-1-3 with a 64-bit result in little-endian order, ready to make tags.
pub struct Sip13Lanes {
    avx2: Avx2,
    state: Words<u64, 4>,
}

impl Sip13Lanes {
    /// A key of 16 bytes for each lane. `None` if the processor cannot.
    pub fn new(keys: &[[u8; 16]]) -> Option<Self> {
        let avx2 = Level::new().as_avx2()?;
        let mut state = [[0; LANES]; 4];
        for (lane, key) in keys.iter().take(LANES).enumerate() {
            for (n, init) in INIT.iter().enumerate() {
                state[n][lane] = init ^ word(key, n % 2);
            }
        }
        Some(Self { avx2, state })
    }

    /// The tag of each of `messages` under the key of its lane; those behind the last message mean nothing.
    pub fn tags(&self, messages: &[&[u8]]) -> [[u8; 8]; LANES] {
        let messages: [&[u8]; LANES] = array::from_fn(|lane| messages.get(lane).copied().unwrap_or_default());
        let chunks: [&[Chunk]; LANES] = messages.map(|message| message.as_chunks().0);
        let mut state = self.state;
        in_step(&mut state, &chunks.map(<[Chunk]>::len), |state, stretch, sources| {
            absorb(self.avx2, state, &sources.map(|source| &chunks[source][stretch.clone()]));
        });
        array::from_fn(|lane| {
            let state = array::from_fn(|n| state[n][lane]);
            finish(state, messages[lane].as_chunks::<CHUNK_LEN>().1, messages[lane].len()).to_le_bytes()
        })
    }
}

impl Drop for Sip13Lanes {
    fn drop(&mut self) {
        self.state.zeroize();
    }
}

/// Shows no key material.
impl fmt::Debug for Sip13Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sip13Lanes").finish_non_exhaustive()
    }
}

/// Word `at` of `bytes`, little-endian.
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[WORD_LEN * at..].first_chunk().expect("the word is there"))
}

/// The end of a message of `len` bytes, of which `rest` (less than a chunk) is not absorbed.
fn finish(mut state: [u64; 4], rest: &[u8], len: usize) -> u64 {
    let (words, tail) = rest.as_chunks::<WORD_LEN>();
    let mut last = [0; WORD_LEN];
    last[..tail.len()].copy_from_slice(tail);
    [last[WORD_LEN - 1], ..] = len.to_le_bytes();
    for word in words.iter().chain([&last]) {
        let word = u64::from_le_bytes(*word);
        state[3] ^= word;
        round(&mut state);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut state);
    }
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

fearless_simd::kernel!(
    /// As many chunks in each lane as the first lane has.
    fn absorb(avx2: Avx2, state: &mut Words<u64, 4>, chunks: &[&[Chunk]; LANES]) {
        let [mut near, mut far] = [half(state, 0), half(state, 4)];
        for at in 0..chunks[0].len() {
            let near_words =
                turned(load(chunks[0], at), load(chunks[1], at), load(chunks[2], at), load(chunks[3], at));
            let far_words =
                turned(load(chunks[4], at), load(chunks[5], at), load(chunks[6], at), load(chunks[7], at));
            for n in 0..4 {
                near[3] = _mm256_xor_si256(near[3], near_words[n]);
                far[3] = _mm256_xor_si256(far[3], far_words[n]);
                near = wide_round(near);
                far = wide_round(far);
                near[0] = _mm256_xor_si256(near[0], near_words[n]);
                far[0] = _mm256_xor_si256(far[0], far_words[n]);
            }
        }
        for (half, at) in [near, far].into_iter().zip([0, 4]) {
            for (n, vector) in half.into_iter().enumerate() {
                let vector: u8x32<Avx2> = vector.simd_into(avx2);
                let bytes: Chunk = vector.into();
                (0..4).for_each(|lane| state[n][at + lane] = word(&bytes, lane));
            }
        }
    }
);

/// The state of four lanes from lane `at` on.
#[target_feature(enable = "avx2")]
#[inline]
fn half(state: &Words<u64, 4>, at: usize) -> [__m256i; 4] {
    let mut half = [_mm256_setzero_si256(); 4];
    for (vector, words) in half.iter_mut().zip(state) {
        let words = &words[at..at + 4];
        *vector = _mm256_setr_epi64x(
            words[0].cast_signed(),
            words[1].cast_signed(),
            words[2].cast_signed(),
            words[3].cast_signed(),
        );
    }
    half
}

/// Chunk `at` of a lane: the compiler makes one load of it.
#[target_feature(enable = "avx2")]
#[inline]
fn load(chunks: &[Chunk], at: usize) -> __m256i {
    let (words, _) = chunks[at].as_chunks();
    _mm256_setr_epi64x(
        i64::from_le_bytes(words[0]),
        i64::from_le_bytes(words[1]),
        i64::from_le_bytes(words[2]),
        i64::from_le_bytes(words[3]),
    )
}

/// Four rows of four words become four columns.
#[target_feature(enable = "avx2")]
#[inline]
fn turned(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> [__m256i; 4] {
    let (low, high) = (_mm256_unpacklo_epi64(a, b), _mm256_unpacklo_epi64(c, d));
    let (odd_low, odd_high) = (_mm256_unpackhi_epi64(a, b), _mm256_unpackhi_epi64(c, d));
    [
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x20>(odd_low, odd_high),
        _mm256_permute2x128_si256::<0x31>(low, high),
        _mm256_permute2x128_si256::<0x31>(odd_low, odd_high),
    ]
}

/// Words of 64 bits rotated left.
macro_rules! turn {
    ($v:expr, $n:literal) => {{
        let v = $v;
        _mm256_or_si256(_mm256_slli_epi64::<$n>(v), _mm256_srli_epi64::<{ 64 - $n }>(v))
    }};
}

#[target_feature(enable = "avx2")]
#[inline]
fn wide_round([mut a, mut b, mut c, mut d]: [__m256i; 4]) -> [__m256i; 4] {
    /// Exchanges the halves of each word.
    const HALVES: i32 = 0b10_11_00_01;

    let by_16 = _mm256_setr_epi8(
        6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13, 6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11,
        12, 13,
    );
    a = _mm256_add_epi64(a, b);
    b = _mm256_xor_si256(turn!(b, 13), a);
    a = _mm256_shuffle_epi32::<HALVES>(a);
    c = _mm256_add_epi64(c, d);
    d = _mm256_xor_si256(_mm256_shuffle_epi8(d, by_16), c);
    a = _mm256_add_epi64(a, d);
    d = _mm256_xor_si256(turn!(d, 21), a);
    c = _mm256_add_epi64(c, b);
    b = _mm256_xor_si256(turn!(b, 17), c);
    c = _mm256_shuffle_epi32::<HALVES>(c);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::siphash13;

    /// Every length around the borders of words and chunks in every lane, and lanes that differ by much.
    #[test]
    fn as_one_by_one() {
        let data: Vec<u8> = (0..9000_usize).map(|n| u8::try_from(n * 7 % 251).expect("below 251")).collect();
        for round in 0..150 {
            for count in [1, 2, 5, LANES] {
                let keys: Vec<[u8; 16]> =
                    (0..count).map(|n| *data[round + 16 * n..].first_chunk().unwrap()).collect();
                let Some(lanes) = Sip13Lanes::new(&keys) else { return };
                let len = |lane: usize| if lane == 3 { round * 60 } else { round + lane * (round % 3) };
                let messages: Vec<&[u8]> = (0..count).map(|lane| &data[lane..lane + len(lane)]).collect();
                let tags = lanes.tags(&messages);
                for (lane, message) in messages.iter().enumerate() {
                    let expected = siphash13(&keys[lane], message);
                    assert_eq!(tags[lane], expected, "lane {lane} of {count}, {} bytes", message.len());
                }
            }
        }
    }
}
