//! `Argon2id(version 0x13, t = 3, m = 8 KiB, p = 1)` with 32 bytes of output (RFC 9106), for processors with AVX2.
//!
//! ```text
//!   first     BLAKE2b(parameters, password, salt), 64 bytes
//!   block 0   first 32 bytes of each of 30 BLAKE2b, then all of one more; each hashes the one before, the first of them
//!             hashes `first`
//!   block 1   likewise
//!   pass 0    blocks 2 to 7: G(block before, an earlier one)
//!   pass 1    blocks 0 to 7: itself ^ G(block before, another one)
//!   pass 2    likewise
//!   output    BLAKE2b(block 7), 32 bytes
//! ```
//!
//! With so little memory half of the time is that of BLAKE2b, which waits for itself. So the hashes of blocks 0 and 1 go side by
//! side: each vector has a word of either. G has four words of a block in a vector.

use std::arch::x86_64::*;

use blake2::{Blake2b256, Blake2b512, Digest as _};
use fearless_simd::Level;
use zeroize::Zeroizing;

/// Length of a salt, in bytes.
const SALT_LEN: usize = 16;
/// Length of the output, in bytes.
const OUTPUT_LEN: usize = 32;
const PASSES: usize = 3;
/// Blocks of 1,024 bytes.
const MEMORY: usize = 8;
const BLOCK_LEN: usize = 1024;
/// Blocks of a slice: a pass has four.
const SLICE: usize = MEMORY / 4;
/// The blocks that go into blocks 2 and 3 in pass 0. They are the same for every password, as those of the first half of that
/// pass are.
const FIRST: [usize; SLICE] = [0, 1];
/// Hashes that make a block.
const CHAIN: usize = 31;
/// Length of a hash, in bytes.
const HASH_LEN: u64 = 64;

/// A block's 128 words, in their order.
type Block = [__m256i; 32];
/// Sixteen words, as rows of four.
type Rows = [__m256i; 4];
/// A hash of either chain: word `n` of both is vector `n`.
type Pair = [__m128i; 8];

/// RFC 7693, 2.6.
const IV: [u64; 8] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];

macro_rules! rounds {
    ($v:ident, $m:ident, $([$a:literal $b:literal $c:literal $d:literal $e:literal $f:literal $g:literal
        $h:literal $i:literal $j:literal $k:literal $l:literal $n:literal $o:literal $p:literal $q:literal])*) => {
        $(
            step::<$a, $b>(&mut $v, [0, 4, 8, 12], $m);
            step::<$c, $d>(&mut $v, [1, 5, 9, 13], $m);
            step::<$e, $f>(&mut $v, [2, 6, 10, 14], $m);
            step::<$g, $h>(&mut $v, [3, 7, 11, 15], $m);
            step::<$i, $j>(&mut $v, [0, 5, 10, 15], $m);
            step::<$k, $l>(&mut $v, [1, 6, 11, 12], $m);
            step::<$n, $o>(&mut $v, [2, 7, 8, 13], $m);
            step::<$p, $q>(&mut $v, [3, 4, 9, 14], $m);
        )*
    };
}

/// The output for `password` and `salt`; `None` if the processor cannot, or the password is longer than 4 GiB.
pub(super) fn derive(password: &[u8], salt: &[u8; SALT_LEN]) -> Option<Zeroizing<[u8; OUTPUT_LEN]>> {
    let avx2 = Level::new().as_avx2()?;
    u32::try_from(password.len()).ok()?;
    let mut first = Blake2b512::new();
    // Lanes, lengths of output and memory, passes, version, kind.
    for number in [1, OUTPUT_LEN, MEMORY, PASSES, 0x13, 2, password.len()] {
        first.update(le32(number));
    }
    first.update(password);
    first.update(le32(SALT_LEN));
    first.update(salt);
    // Neither a secret nor associated data.
    first.update([0; 8]);
    let first = first.finalize();
    // The numbers of block and lane stand behind.
    let begun = [0_u64, 1].map(|number| {
        let hash = Blake2b512::new().chain_update(le32(BLOCK_LEN)).chain_update(first);
        hash.chain_update(number.to_le_bytes()).finalize().into()
    });
    let mut last = [0; BLOCK_LEN];
    run(avx2, &begun, &mut last);
    let output = Blake2b256::new().chain_update(le32(OUTPUT_LEN)).chain_update(last).finalize();
    Some(Zeroizing::new(output.into()))
}

/// A number that 32 bits hold, as it is hashed.
fn le32(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

fearless_simd::kernel!(
    /// From the first hash of either chain to the last block.
    fn run(avx2: Avx2, begun: &[[u8; 64]; 2], last: &mut [u8; BLOCK_LEN]) {
        let _ = avx2;
        let mut memory = [[_mm256_setzero_si256(); 32]; MEMORY];
        let [zero, one, ..] = &mut memory;
        start(begun, [zero, one]);
        for pass in 0..PASSES {
            for at in if pass == 0 { 2 } else { 0 }..MEMORY {
                let before = (at + MEMORY - 1) % MEMORY;
                let mut next = mix(&memory[before], &memory[reference(pass, at, &memory[before])]);
                if pass > 0 {
                    xor(&mut next, &memory[at]);
                }
                memory[at] = next;
            }
        }
        for (bytes, vector) in last.as_chunks_mut::<32>().0.iter_mut().zip(&memory[MEMORY - 1]) {
            let words = [
                _mm256_extract_epi64::<0>(*vector),
                _mm256_extract_epi64::<1>(*vector),
                _mm256_extract_epi64::<2>(*vector),
                _mm256_extract_epi64::<3>(*vector),
            ];
            for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *bytes = word.to_le_bytes();
            }
        }
    }
);

// Loops instead of closures from here on: the standard library, which calls those, is compiled without AVX2.

/// The number of the block that goes into block `at`.
#[target_feature(enable = "avx2")]
#[inline]
fn reference(pass: usize, at: usize, before: &Block) -> usize {
    let (slice, index) = (at / SLICE, at % SLICE);
    if pass == 0 && slice < 2 {
        return FIRST[index];
    }
    // All but the block before and those that are to be filled together with this one.
    let area = if pass == 0 { at - 1 } else { MEMORY - SLICE + index - 1 };
    let start = if pass == 0 { 0 } else { (slice + 1) * SLICE };
    let random = _mm256_cvtsi256_si32(before[0]).cast_unsigned() as usize;
    let far = (area * ((random * random) >> 32)) >> 32;
    (start + area - 1 - far) % MEMORY
}

/// G: rows, then columns, and both blocks on top.
#[target_feature(enable = "avx2")]
#[inline]
fn mix(left: &Block, right: &Block) -> Block {
    let mut sum = *left;
    xor(&mut sum, right);
    let mut mixed = sum;
    for pair in mixed.as_chunks_mut::<8>().0 {
        let [a, b, c, d, e, f, g, h] = *pair;
        let [[a, b, c, d], [e, f, g, h]] = permute([[a, b, c, d], [e, f, g, h]]);
        *pair = [a, b, c, d, e, f, g, h];
    }
    for column in 0..4 {
        let (mut near, mut far) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
        for row in 0..4 {
            let (low, high) = (mixed[column + 8 * row], mixed[column + 8 * row + 4]);
            near[row] = _mm256_permute2x128_si256::<0x20>(low, high);
            far[row] = _mm256_permute2x128_si256::<0x31>(low, high);
        }
        let [near, far] = permute([near, far]);
        for row in 0..4 {
            mixed[column + 8 * row] = _mm256_permute2x128_si256::<0x20>(near[row], far[row]);
            mixed[column + 8 * row + 4] = _mm256_permute2x128_si256::<0x31>(near[row], far[row]);
        }
    }
    xor(&mut mixed, &sum);
    mixed
}

#[target_feature(enable = "avx2")]
#[inline]
fn xor(block: &mut Block, other: &Block) {
    for at in 0..block.len() {
        block[at] = _mm256_xor_si256(block[at], other[at]);
    }
}

/// The permutation P of two times 16 words.
#[target_feature(enable = "avx2")]
#[inline]
fn permute(mut both: [Rows; 2]) -> [Rows; 2] {
    for turned in [false, true] {
        for rows in &mut both {
            if turned {
                diagonal(rows);
            }
            let [a, b, c, d] = *rows;
            let a = multiplied(a, b);
            let d = _mm256_shuffle_epi32::<0xb1>(_mm256_xor_si256(d, a));
            let c = multiplied(c, d);
            let b = right_24(_mm256_xor_si256(b, c));
            let a = multiplied(a, b);
            let d = right_16(_mm256_xor_si256(d, a));
            let c = multiplied(c, d);
            let b = right_63(_mm256_xor_si256(b, c));
            *rows = [a, b, c, d];
            if turned {
                upright(rows);
            }
        }
    }
    both
}

/// `a + b + 2 * low half of a * low half of b`.
#[target_feature(enable = "avx2")]
#[inline]
fn multiplied(a: __m256i, b: __m256i) -> __m256i {
    let product = _mm256_mul_epu32(a, b);
    _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(product, product))
}

#[target_feature(enable = "avx2")]
#[inline]
fn diagonal([_, b, c, d]: &mut Rows) {
    *b = _mm256_permute4x64_epi64::<0x39>(*b);
    *c = _mm256_permute4x64_epi64::<0x4e>(*c);
    *d = _mm256_permute4x64_epi64::<0x93>(*d);
}

#[target_feature(enable = "avx2")]
#[inline]
fn upright([_, b, c, d]: &mut Rows) {
    *b = _mm256_permute4x64_epi64::<0x93>(*b);
    *c = _mm256_permute4x64_epi64::<0x4e>(*c);
    *d = _mm256_permute4x64_epi64::<0x39>(*d);
}

#[target_feature(enable = "avx2")]
#[inline]
fn right_24(x: __m256i) -> __m256i {
    _mm256_shuffle_epi8(x, order_24())
}

#[target_feature(enable = "avx2")]
#[inline]
fn order_24() -> __m256i {
    _mm256_setr_epi8(
        3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10, 3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8,
        9, 10,
    )
}

#[target_feature(enable = "avx2")]
#[inline]
fn right_16(x: __m256i) -> __m256i {
    _mm256_shuffle_epi8(x, order_16())
}

#[target_feature(enable = "avx2")]
#[inline]
fn order_16() -> __m256i {
    _mm256_setr_epi8(
        2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9, 2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15,
        8, 9,
    )
}

#[target_feature(enable = "avx2")]
#[inline]
fn right_63(x: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_add_epi64(x, x), _mm256_srli_epi64::<63>(x))
}

/// Blocks 0 and 1.
#[target_feature(enable = "avx2")]
#[inline]
fn start([left, right]: &[[u8; 64]; 2], [zero, one]: [&mut Block; 2]) {
    let mut pair = [_mm_setzero_si128(); 8];
    for (at, (left, right)) in left.as_chunks().0.iter().zip(right.as_chunks().0).enumerate() {
        pair[at] = _mm_set_epi64x(i64::from_le_bytes(*right), i64::from_le_bytes(*left));
    }
    for at in 0..CHAIN - 1 {
        (zero[at], one[at]) = parted(&pair, 0);
        pair = next(&pair);
    }
    (zero[CHAIN - 1], one[CHAIN - 1]) = parted(&pair, 0);
    (zero[CHAIN], one[CHAIN]) = parted(&pair, 4);
}

/// Four words of each chain.
#[target_feature(enable = "avx2")]
#[inline]
fn parted(pair: &Pair, at: usize) -> (__m256i, __m256i) {
    let left = (_mm_unpacklo_epi64(pair[at], pair[at + 1]), _mm_unpacklo_epi64(pair[at + 2], pair[at + 3]));
    let right = (_mm_unpackhi_epi64(pair[at], pair[at + 1]), _mm_unpackhi_epi64(pair[at + 2], pair[at + 3]));
    (_mm256_set_m128i(left.1, left.0), _mm256_set_m128i(right.1, right.0))
}

/// The hash of either chain's latest.
#[target_feature(enable = "avx2")]
fn next(pair: &Pair) -> Pair {
    let mut chain = [_mm_setzero_si128(); 8];
    let mut v = [_mm_setzero_si128(); 16];
    for at in 0..8 {
        // The first word of the parameters: no key, one of one.
        chain[at] = twice(if at == 0 { IV[0] ^ 0x0101_0000 ^ HASH_LEN } else { IV[at] });
        v[at] = chain[at];
        // So many bytes are hashed, in one block, which is the last.
        v[at + 8] = twice(match at {
            4 => IV[4] ^ HASH_LEN,
            6 => !IV[6],
            _ => IV[at],
        });
    }
    rounds!(v, pair,
        [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
        [14 10 4 8 9 15 13 6 1 12 0 2 11 7 5 3]
        [11 8 12 0 5 2 15 13 10 14 3 6 7 1 9 4]
        [7 9 3 1 13 12 11 14 2 6 5 10 4 0 15 8]
        [9 0 5 7 2 4 10 15 14 1 11 12 6 8 3 13]
        [2 12 6 10 0 11 8 3 4 13 7 5 15 14 1 9]
        [12 5 1 15 14 13 4 10 0 7 6 3 9 2 8 11]
        [13 11 7 14 12 1 3 9 5 0 15 4 8 6 2 10]
        [6 15 14 9 11 3 0 8 12 2 13 7 1 4 10 5]
        [10 2 8 4 7 6 1 5 15 11 9 14 3 12 13 0]
        [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
        [14 10 4 8 9 15 13 6 1 12 0 2 11 7 5 3]
    );
    for at in 0..8 {
        chain[at] = _mm_xor_si128(chain[at], _mm_xor_si128(v[at], v[at + 8]));
    }
    chain
}

/// G of BLAKE2b with words `X` and `Y` of messages, of which there are eight: the others are zero.
#[target_feature(enable = "avx2")]
#[inline]
fn step<const X: usize, const Y: usize>(v: &mut [__m128i; 16], [a, b, c, d]: [usize; 4], message: &Pair) {
    v[a] = _mm_add_epi64(plus::<X>(v[a], message), v[b]);
    v[d] = _mm_shuffle_epi32::<0xb1>(_mm_xor_si128(v[d], v[a]));
    v[c] = _mm_add_epi64(v[c], v[d]);
    v[b] = _mm_shuffle_epi8(_mm_xor_si128(v[b], v[c]), _mm256_castsi256_si128(order_24()));
    v[a] = _mm_add_epi64(plus::<Y>(v[a], message), v[b]);
    v[d] = _mm_shuffle_epi8(_mm_xor_si128(v[d], v[a]), _mm256_castsi256_si128(order_16()));
    v[c] = _mm_add_epi64(v[c], v[d]);
    let turned = _mm_xor_si128(v[b], v[c]);
    v[b] = _mm_or_si128(_mm_add_epi64(turned, turned), _mm_srli_epi64::<63>(turned));
}

#[target_feature(enable = "avx2")]
#[inline]
fn plus<const AT: usize>(sum: __m128i, message: &Pair) -> __m128i {
    if AT < message.len() { _mm_add_epi64(sum, message[AT]) } else { sum }
}

#[target_feature(enable = "avx2")]
#[inline]
fn twice(word: u64) -> __m128i {
    _mm_set1_epi64x(word.cast_signed())
}
