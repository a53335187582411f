//! Salsa20, eight blocks at a time, where the processor has AVX2.
//!
//! ```text
//!   vector w of 16   word w of block 0 | of block 1 | ... | of block 7        32 bits each
//! ```
//!
//! Every vector holds one word of eight blocks. A round is then additions, exclusive ors and rotations of whole vectors.
//! The result is transposed at the end. The salsa20 crate handles one block at a time.

#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array;

use fearless_simd::{Avx2, Level, SimdInto, u8x32};

const BLOCK_LEN: usize = 64;
/// Eight blocks, in bytes.
const GROUP_LEN: usize = 8 * BLOCK_LEN;

/// "expand 32-byte k", little-endian.
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// A keystream at some byte of it.
pub(super) struct Salsa {
    avx2: Avx2,
    /// The input of all blocks; the counter's two words do not matter.
    words: [u32; 16],
    /// Bytes of keystream before the next, below `u64::MAX`.
    position: u64,
}

impl Salsa {
    /// Salsa20 with 8-byte nonce; `None` if the processor has no AVX2.
    pub(super) fn new(key: &[u8; 32], nonce: &[u8; 8]) -> Option<Box<Self>> {
        let avx2 = Level::new().as_avx2()?;
        let key: [u32; 8] = words(key);
        let nonce: [u32; 2] = words(nonce);
        let mut input = [0; 16];
        (0..4).for_each(|n| input[5 * n] = CONSTANTS[n]);
        input[1..5].copy_from_slice(&key[..4]);
        input[6..8].copy_from_slice(&nonce);
        input[11..15].copy_from_slice(&key[4..]);
        Some(Box::new(Self { avx2, words: input, position: 0 }))
    }

    /// `Err` when the keystream ends before `data` does, which is then unchanged.
    pub(super) fn apply(&mut self, data: &mut [u8]) -> Result<(), ()> {
        if data.len() as u64 > u64::MAX - self.position {
            return Err(());
        }
        let done = self.position_in_block();
        let head_len = if done == 0 { 0 } else { data.len().min(GROUP_LEN - done) };
        let (head, rest) = data.split_at_mut(head_len);
        let (groups, tail) = rest.split_at_mut(rest.len() - rest.len() % GROUP_LEN);
        self.apply_part(head);
        self.apply_groups(groups);
        self.position += groups.len() as u64;
        self.apply_part(tail);
        Ok(())
    }

    fn position_in_block(&self) -> usize {
        usize::try_from(self.position % BLOCK_LEN as u64).expect("less than a block")
    }

    /// Fewer bytes than a group has from here on: they are enciphered in a copy at their place in the group.
    fn apply_part(&mut self, data: &mut [u8]) {
        if data.is_empty() {
            return;
        }
        let at = self.position_in_block();
        let mut group = [0; GROUP_LEN];
        group[at..at + data.len()].copy_from_slice(data);
        self.apply_groups(&mut group);
        data.copy_from_slice(&group[at..at + data.len()]);
        self.position += data.len() as u64;
    }

    /// Whole groups, the first from the block on that `position` lies in.
    fn apply_groups(&self, data: &mut [u8]) {
        salsa(self.avx2, &self.words, self.position / BLOCK_LEN as u64, data);
    }
}

/// Little-endian words of as many bytes.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let (words, _) = bytes.as_chunks();
    array::from_fn(|n| u32::from_le_bytes(words[n]))
}

/// A quarter of a quarter round of Salsa: `a ^= (b + c) <<< n`.
macro_rules! salsa_step {
    ($x:ident, $n:literal, $([$a:literal, $b:literal, $c:literal]),*) => {
        $($x[$a] = _mm256_xor_si256($x[$a], rotate!(_mm256_add_epi32($x[$b], $x[$c]), $n));)*
    };
}

fearless_simd::kernel!(
    /// Lays the keystream of Salsa20 over whole groups.
    fn salsa(avx2: Avx2, words: &[u32; 16], counter: u64, data: &mut [u8]) {
        let mut input = words.map(|word| _mm256_set1_epi32(word.cast_signed()));
        let mut counter = counter;
        for group in data.as_chunks_mut().0 {
            [input[8], input[9]] = counters(counter);
            let mut x = input;
            for _ in 0..10 {
                // Columns, then rows.
                salsa_step!(x, 7, [4, 0, 12], [9, 5, 1], [14, 10, 6], [3, 15, 11]);
                salsa_step!(x, 9, [8, 4, 0], [13, 9, 5], [2, 14, 10], [7, 3, 15]);
                salsa_step!(x, 13, [12, 8, 4], [1, 13, 9], [6, 2, 14], [11, 7, 3]);
                salsa_step!(x, 18, [0, 12, 8], [5, 1, 13], [10, 6, 2], [15, 11, 7]);

                salsa_step!(x, 7, [1, 0, 3], [6, 5, 4], [11, 10, 9], [12, 15, 14]);
                salsa_step!(x, 9, [2, 1, 0], [7, 6, 5], [8, 11, 10], [13, 12, 15]);
                salsa_step!(x, 13, [3, 2, 1], [4, 7, 6], [9, 8, 11], [14, 13, 12]);
                salsa_step!(x, 18, [0, 3, 2], [5, 4, 7], [10, 9, 8], [15, 14, 13]);
            }
            finish(avx2, x, &input, group);
            counter = counter.wrapping_add(8);
        }
    }
);

/// Lower and upper words of eight counters.
#[target_feature(enable = "avx2")]
#[inline]
fn counters(first: u64) -> [__m256i; 2] {
    let counters: [[u32; 2]; 8] = array::from_fn(|n| words(&first.wrapping_add(n as u64).to_le_bytes()));
    [0, 1].map(|half| {
        let word = |n: usize| counters[n][half].cast_signed();
        _mm256_setr_epi32(word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7))
    })
}

/// Adds the input to what the rounds have made of it, turns words of blocks into blocks, and lays them over `group`.
#[target_feature(enable = "avx2")]
#[inline]
fn finish(avx2: Avx2, x: [__m256i; 16], input: &[__m256i; 16], group: &mut [u8; GROUP_LEN]) {
    let (pieces, _) = group.as_chunks_mut::<32>();
    for half in 0..2 {
        let (low, high) = (turned(&x, input, 8 * half), turned(&x, input, 8 * half + 4));
        for block in 0..4 {
            lay(
                avx2,
                _mm256_permute2x128_si256::<0x20>(low[block], high[block]),
                &mut pieces[2 * block + half],
            );
            let behind = &mut pieces[2 * (block + 4) + half];
            lay(avx2, _mm256_permute2x128_si256::<0x31>(low[block], high[block]), behind);
        }
    }
}

/// Four words of every block from word `at` on: vector `n` has those of block `n`, then those of block `n + 4`.
#[target_feature(enable = "avx2")]
#[inline]
fn turned(x: &[__m256i; 16], input: &[__m256i; 16], at: usize) -> [__m256i; 4] {
    let v: [__m256i; 4] = array::from_fn(|n| _mm256_add_epi32(x[at + n], input[at + n]));
    let (a, b) = (_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    let (c, d) = (_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    [
        _mm256_unpacklo_epi64(a, c),
        _mm256_unpackhi_epi64(a, c),
        _mm256_unpacklo_epi64(b, d),
        _mm256_unpackhi_epi64(b, d),
    ]
}

#[target_feature(enable = "avx2")]
#[inline]
fn lay(avx2: Avx2, keystream: __m256i, over: &mut [u8; 32]) {
    let data: u8x32<Avx2> = (*over).simd_into(avx2);
    let keystream: u8x32<Avx2> = keystream.simd_into(avx2);
    *over = (data ^ keystream).into();
}

#[cfg(test)]
mod tests {
    use cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
    use salsa20::Salsa20;

    use super::*;

    const KEY: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";
    const NONCE: [u8; 8] = *b"a nonce!";

    /// `len` bytes from byte `at` of the keystream, by the crate.
    fn expected(at: u64, len: usize) -> Vec<u8> {
        let mut salsa = Salsa20::new(&KEY.into(), &NONCE.into());
        let mut keystream = vec![0; len];
        salsa.seek(at);
        salsa.apply_keystream(&mut keystream);
        keystream
    }

    #[test]
    fn any_lengths_from_any_byte() {
        let Some(mut own) = Salsa::new(&KEY, &NONCE) else { return };
        for at in [0, 1, 63, 64, 511, (1 << 38) - 5_000, (1 << 38) - 100] {
            for len in [0, 1, 64, 448, 511, 512, 513, 1_100, 4_096] {
                own.position = at;
                let mut data = vec![0; len];
                own.apply(&mut data).expect("not at its end");
                assert!(data == expected(at, len), "{len} bytes from {at}");
                assert_eq!(own.position, at + len as u64);
            }
        }
    }

    #[test]
    fn ends_where_its_position_does() {
        let Some(mut own) = Salsa::new(&KEY, &NONCE) else { return };
        own.position = u64::MAX - 100;
        let mut data = [7; 101];
        assert_eq!(own.apply(&mut data), Err(()));
        assert_eq!(data, [7; 101]);
        assert_eq!(own.apply(&mut data[..100]), Ok(()));
        assert_eq!(own.apply(&mut [0; 1]), Err(()));
    }
}
