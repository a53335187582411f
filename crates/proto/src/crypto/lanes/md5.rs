//! HMAC-MD5 of eight messages at a time.
//!
//! ```text
//!   vector w of a block's 16   word w of message 0's block | of message 1's | ... | of message 7's        32 bits each
//! ```

#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array;
use std::fmt;

use fearless_simd::{Avx2, Level, SimdInto, u32x8};
use zeroize::Zeroize;

use super::super::LANES;
use super::{Words, in_step};

const BLOCK_LEN: usize = 64;
/// Bytes of a block in front of the message's length in bits.
const LENGTH_AT: usize = 56;
const INIT: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

type Vectors<const N: usize> = [__m256i; N];
type Block = [u8; BLOCK_LEN];

/// Up to [`LANES`] keys of HMAC-MD5 (RFC 2104), ready to make tags.
pub struct HmacMd5Lanes {
    avx2: Avx2,
    inner: Words<u32, 4>,
    outer: Words<u32, 4>,
}

impl HmacMd5Lanes {
    /// Key `n` is `prefix` and then `suffixes[n]`; lanes without a suffix have the first one's. `None` if the processor
    /// cannot.
    ///
    /// # Panics
    /// If the prefix is longer than 60 bytes, or there is no suffix, or more than [`LANES`].
    pub fn new(prefix: &[u8], suffixes: &[[u8; 4]]) -> Option<Self> {
        let avx2 = Level::new().as_avx2()?;
        assert!((1..=LANES).contains(&suffixes.len()), "keys for some lanes");
        let mut keys = [[0; BLOCK_LEN]; LANES];
        for (lane, key) in keys.iter_mut().enumerate() {
            key[..prefix.len()].copy_from_slice(prefix);
            let suffix = suffixes.get(lane).unwrap_or(&suffixes[0]);
            key[prefix.len()..prefix.len() + 4].copy_from_slice(suffix);
        }
        let absorbed = |pad: u8| {
            let mut padded = keys.map(|key| [key.map(|byte| byte ^ pad)]);
            let mut state = INIT.map(|word| [word; LANES]);
            absorb(avx2, &mut state, &array::from_fn(|lane| &padded[lane][..]));
            padded.iter_mut().for_each(|blocks| blocks[0].zeroize());
            state
        };
        let ready = Self { avx2, inner: absorbed(0x36), outer: absorbed(0x5c) };
        keys.zeroize();
        Some(ready)
    }

    /// The tag of each of `messages` under the key of its lane; those behind the last message mean nothing.
    ///
    /// # Panics
    /// If there are no messages, or more than [`LANES`].
    pub fn tags(&self, messages: &[&[u8]]) -> [[u8; 16]; LANES] {
        assert!((1..=LANES).contains(&messages.len()), "messages for some lanes");
        let messages: [&[u8]; LANES] =
            array::from_fn(|lane| messages.get(lane).copied().unwrap_or(messages[0]));
        let digests = self.finish(self.inner, &messages);
        self.finish(self.outer, &array::from_fn(|lane| &digests[lane][..]))
    }

    /// Absorbs the messages and their padding behind one block, and returns the digests.
    fn finish(&self, mut state: Words<u32, 4>, messages: &[&[u8]; LANES]) -> [[u8; 16]; LANES] {
        let blocks: [&[Block]; LANES] = messages.map(|message| message.as_chunks().0);
        self.absorb(&mut state, &blocks);
        let mut last = [[[0; BLOCK_LEN]; 2]; LANES];
        let mut counts = [1; LANES];
        for lane in 0..LANES {
            let rest = messages[lane].as_chunks::<BLOCK_LEN>().1;
            let bits = 8 * (BLOCK_LEN + messages[lane].len()) as u64;
            let last = &mut last[lane];
            last[0][..rest.len()].copy_from_slice(rest);
            last[0][rest.len()] = 0x80;
            counts[lane] = if rest.len() < LENGTH_AT { 1 } else { 2 };
            last[counts[lane] - 1][LENGTH_AT..].copy_from_slice(&bits.to_le_bytes());
        }
        self.absorb(&mut state, &array::from_fn(|lane| &last[lane][..counts[lane]]));
        array::from_fn(|lane| {
            let mut digest = [0; 16];
            digest
                .as_chunks_mut()
                .0
                .iter_mut()
                .zip(&state)
                .for_each(|(out, word)| *out = word[lane].to_le_bytes());
            digest
        })
    }

    fn absorb(&self, state: &mut Words<u32, 4>, blocks: &[&[Block]; LANES]) {
        in_step(state, &blocks.map(<[Block]>::len), |state, stretch, sources| {
            absorb(self.avx2, state, &sources.map(|source| &blocks[source][stretch.clone()]));
        });
    }
}

impl Drop for HmacMd5Lanes {
    fn drop(&mut self) {
        self.inner.zeroize();
        self.outer.zeroize();
    }
}

/// Shows no key material.
impl fmt::Debug for HmacMd5Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HmacMd5Lanes").finish_non_exhaustive()
    }
}

fearless_simd::kernel!(
    /// MD5's compression of as many blocks in each lane as the first lane has.
    fn absorb(avx2: Avx2, state: &mut Words<u32, 4>, blocks: &[&[Block]; LANES]) {
        let mut vectors = state.map(|words| {
            let words: u32x8<Avx2> = words.simd_into(avx2);
            words.into()
        });
        for at in 0..blocks[0].len() {
            let w = block(blocks, at);
            vectors = compress(vectors, &w);
        }
        for (words, vector) in state.iter_mut().zip(vectors) {
            let vector: u32x8<Avx2> = vector.simd_into(avx2);
            *words = vector.into();
        }
    }
);

/// Block `at` of each lane, turned so that each vector has one word of all lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn block(lanes: &[&[Block]; LANES], at: usize) -> Vectors<16> {
    let mut words = [_mm256_setzero_si256(); 16];
    for half in 0..2 {
        let mut rows = [_mm256_setzero_si256(); LANES];
        for (row, blocks) in rows.iter_mut().zip(lanes) {
            *row = load(&blocks[at], half);
        }
        words[8 * half..8 * half + 8].copy_from_slice(&turned(rows));
    }
    words
}

/// Half a block: the compiler makes one load of it.
#[target_feature(enable = "avx2")]
#[inline]
fn load(block: &Block, half: usize) -> __m256i {
    let (words, _) = block[32 * half..32 * half + 32].as_chunks();
    _mm256_setr_epi32(
        i32::from_le_bytes(words[0]),
        i32::from_le_bytes(words[1]),
        i32::from_le_bytes(words[2]),
        i32::from_le_bytes(words[3]),
        i32::from_le_bytes(words[4]),
        i32::from_le_bytes(words[5]),
        i32::from_le_bytes(words[6]),
        i32::from_le_bytes(words[7]),
    )
}

/// Eight rows of eight words become eight columns.
#[target_feature(enable = "avx2")]
#[inline]
fn turned(rows: Vectors<8>) -> Vectors<8> {
    let (low, high) =
        (turned_half(rows[0], rows[1], rows[2], rows[3]), turned_half(rows[4], rows[5], rows[6], rows[7]));
    [
        _mm256_permute2x128_si256::<0x20>(low[0], high[0]),
        _mm256_permute2x128_si256::<0x20>(low[1], high[1]),
        _mm256_permute2x128_si256::<0x20>(low[2], high[2]),
        _mm256_permute2x128_si256::<0x20>(low[3], high[3]),
        _mm256_permute2x128_si256::<0x31>(low[0], high[0]),
        _mm256_permute2x128_si256::<0x31>(low[1], high[1]),
        _mm256_permute2x128_si256::<0x31>(low[2], high[2]),
        _mm256_permute2x128_si256::<0x31>(low[3], high[3]),
    ]
}

/// Of four rows: words 0 and 4, 1 and 5, 2 and 6, 3 and 7.
#[target_feature(enable = "avx2")]
#[inline]
fn turned_half(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> Vectors<4> {
    let (front, back) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (other_front, other_back) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(front, other_front),
        _mm256_unpackhi_epi64(front, other_front),
        _mm256_unpacklo_epi64(back, other_back),
        _mm256_unpackhi_epi64(back, other_back),
    ]
}

/// Four steps (RFC 1321, section 3.4), after which the words of the state are where they were. Each has the index of its
/// word of the block, and its constant.
macro_rules! four_steps {
    (
        $w:ident, $f:ident, [$r:literal, $s:literal, $t:literal, $u:literal],
        [$i:literal, $k:literal], [$j:literal, $l:literal], [$m:literal, $n:literal], [$o:literal, $p:literal],
        $a:ident, $b:ident, $c:ident, $d:ident
    ) => {
        step!($w[$i], $k, $f, $r, $a, $b, $c, $d);
        step!($w[$j], $l, $f, $s, $d, $a, $b, $c);
        step!($w[$m], $n, $f, $t, $c, $d, $a, $b);
        step!($w[$o], $p, $f, $u, $b, $c, $d, $a);
    };
}

macro_rules! step {
    ($w:expr, $k:literal, $f:ident, $s:literal, $a:ident, $b:ident, $c:ident, $d:ident) => {
        let known = _mm256_add_epi32(_mm256_add_epi32($w, _mm256_set1_epi32(u32::cast_signed($k))), $a);
        $a = _mm256_add_epi32(rotate!(_mm256_add_epi32(known, $f($b, $c, $d)), $s), $b);
    };
}

/// MD5's compression of one block in each lane.
#[target_feature(enable = "avx2")]
#[inline]
#[rustfmt::skip]
fn compress(before: Vectors<4>, w: &Vectors<16>) -> Vectors<4> {
    let [mut a, mut b, mut c, mut d] = before;
    four_steps!(w, first, [7, 12, 17, 22], [0, 0xd76a_a478], [1, 0xe8c7_b756], [2, 0x2420_70db], [3, 0xc1bd_ceee], a, b, c, d);
    four_steps!(w, first, [7, 12, 17, 22], [4, 0xf57c_0faf], [5, 0x4787_c62a], [6, 0xa830_4613], [7, 0xfd46_9501], a, b, c, d);
    four_steps!(w, first, [7, 12, 17, 22], [8, 0x6980_98d8], [9, 0x8b44_f7af], [10, 0xffff_5bb1], [11, 0x895c_d7be], a, b, c, d);
    four_steps!(w, first, [7, 12, 17, 22], [12, 0x6b90_1122], [13, 0xfd98_7193], [14, 0xa679_438e], [15, 0x49b4_0821], a, b, c, d);
    four_steps!(w, second, [5, 9, 14, 20], [1, 0xf61e_2562], [6, 0xc040_b340], [11, 0x265e_5a51], [0, 0xe9b6_c7aa], a, b, c, d);
    four_steps!(w, second, [5, 9, 14, 20], [5, 0xd62f_105d], [10, 0x0244_1453], [15, 0xd8a1_e681], [4, 0xe7d3_fbc8], a, b, c, d);
    four_steps!(w, second, [5, 9, 14, 20], [9, 0x21e1_cde6], [14, 0xc337_07d6], [3, 0xf4d5_0d87], [8, 0x455a_14ed], a, b, c, d);
    four_steps!(w, second, [5, 9, 14, 20], [13, 0xa9e3_e905], [2, 0xfcef_a3f8], [7, 0x676f_02d9], [12, 0x8d2a_4c8a], a, b, c, d);
    four_steps!(w, third, [4, 11, 16, 23], [5, 0xfffa_3942], [8, 0x8771_f681], [11, 0x6d9d_6122], [14, 0xfde5_380c], a, b, c, d);
    four_steps!(w, third, [4, 11, 16, 23], [1, 0xa4be_ea44], [4, 0x4bde_cfa9], [7, 0xf6bb_4b60], [10, 0xbebf_bc70], a, b, c, d);
    four_steps!(w, third, [4, 11, 16, 23], [13, 0x289b_7ec6], [0, 0xeaa1_27fa], [3, 0xd4ef_3085], [6, 0x0488_1d05], a, b, c, d);
    four_steps!(w, third, [4, 11, 16, 23], [9, 0xd9d4_d039], [12, 0xe6db_99e5], [15, 0x1fa2_7cf8], [2, 0xc4ac_5665], a, b, c, d);
    four_steps!(w, fourth, [6, 10, 15, 21], [0, 0xf429_2244], [7, 0x432a_ff97], [14, 0xab94_23a7], [5, 0xfc93_a039], a, b, c, d);
    four_steps!(w, fourth, [6, 10, 15, 21], [12, 0x655b_59c3], [3, 0x8f0c_cc92], [10, 0xffef_f47d], [1, 0x8584_5dd1], a, b, c, d);
    four_steps!(w, fourth, [6, 10, 15, 21], [8, 0x6fa8_7e4f], [15, 0xfe2c_e6e0], [6, 0xa301_4314], [13, 0x4e08_11a1], a, b, c, d);
    four_steps!(w, fourth, [6, 10, 15, 21], [4, 0xf753_7e82], [11, 0xbd3a_f235], [2, 0x2ad7_d2bb], [9, 0xeb86_d391], a, b, c, d);
    let after = [a, b, c, d];
    array::from_fn(|n| _mm256_add_epi32(before[n], after[n]))
}

#[target_feature(enable = "avx2")]
#[inline]
fn first(b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    _mm256_xor_si256(d, _mm256_and_si256(b, _mm256_xor_si256(c, d)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn second(b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_and_si256(d, b), _mm256_andnot_si256(d, c))
}

#[target_feature(enable = "avx2")]
#[inline]
fn third(b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    _mm256_xor_si256(b, _mm256_xor_si256(c, d))
}

#[target_feature(enable = "avx2")]
#[inline]
fn fourth(b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    _mm256_xor_si256(c, _mm256_or_si256(b, _mm256_xor_si256(d, _mm256_set1_epi32(-1))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::HmacMd5;

    /// Every length around the block borders in every lane, and lanes that differ by much.
    #[test]
    fn as_one_by_one() {
        let data: Vec<u8> = (0..9000_usize).map(|n| u8::try_from(n * 7 % 251).expect("below 251")).collect();
        for round in 0..150 {
            for count in [1, 2, 5, LANES] {
                let suffixes: Vec<[u8; 4]> =
                    (0..count).map(|n| (round * 8 + n).to_le_bytes()[..4].try_into().unwrap()).collect();
                let prefix = &data[..round % 61];
                let Some(lanes) = HmacMd5Lanes::new(prefix, &suffixes) else { return };
                let len = |lane: usize| if lane == 3 { round * 60 } else { round + lane * (round % 3) };
                let messages: Vec<&[u8]> = (0..count).map(|lane| &data[lane..lane + len(lane)]).collect();
                let tags = lanes.tags(&messages);
                for (lane, message) in messages.iter().enumerate() {
                    let expected = HmacMd5::new(&[prefix, &suffixes[lane]]).tag(message);
                    assert_eq!(tags[lane], expected, "lane {lane} of {count}, {} bytes", message.len());
                }
            }
        }
    }
}
