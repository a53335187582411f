//! The parameters that the pre-shared key alone decides.

use std::fmt;

use super::super::frame::SEALED_HEADER_LEN;
use super::super::kdf::{SALT_LEN, Salt, SnellPsk};
use super::fill::Filler;
use crate::crypto::blake2b_256;
use crate::wire::Rng;

/// Prefixed to the pre-shared key before it is hashed.
const DOMAIN: [u8; 24] = [
    0x8D, 0x41, 0xA7, 0x13, 0x5C, 0xE2, 0x09, 0xBB, 0x70, 0x2F, 0xD6, 0x94, 0x33, 0x18, 0xC0, 0x6E, 0x4A,
    0x91, 0x25, 0xFD, 0xB8, 0x03, 0x77, 0xAC,
];

// Odd constants of the mixing functions (`docs/protocols/snell-v6.md` 2.1).
pub(super) const G: u64 = 0x9E37_79B9_7F4A_7C15;
const CB: u64 = 0x5899_65CC_7537_4CC3;
const AB: u64 = 0x33A2_13EC_50FF_E2E9;
const CA: u64 = 0xE703_7ED1_A0B4_28DB;
const AA: u64 = 0x8F39_07F7_B2B8_0C35;
const SX: u64 = 0xDAA6_6D2C_7DDF_743F;
pub(super) const DM: u64 = 0xD6E8_FEB8_6659_FD93;
const NA: u64 = 0xA076_1D64_78BD_642F;

/// Index of the values that belong to the salt block.
const SALT_DOMAIN: u64 = 0x51A7;
/// Index of the values that belong to its filler.
const SALT_PREFIX: u64 = 0x7053;
/// Longest filler in front of a header, in bytes.
const MAX_PREFIX_LEN: u64 = 128;
/// Padding, before what a write target adds, and that addition, are at most this long, in bytes.
pub(super) const MAX_PADDING_PART: u64 = 730;
/// Longest first segment, in bytes.
pub(super) const SEGMENT: u64 = 1460;

/// The bijective finaliser of `SplitMix64`.
pub(super) fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
fn fold(y: u64) -> u32 {
    (y ^ (y >> 32)) as u32
}

/// A pseudo-random number from a namespace, a label and two indices.
pub(super) fn prf(namespace: u64, label: u64, a: u64, b: u64) -> u32 {
    fold(mix64(
        namespace
            ^ b.wrapping_mul(CB).wrapping_add(AB)
            ^ label.wrapping_mul(G)
            ^ a.wrapping_mul(CA).wrapping_add(AA),
    ))
}

/// The draw of the salt block's shuffle: `index` in round `domain`.
pub(super) fn shuffle_prf(namespace: u64, domain: u64, index: u64) -> u32 {
    fold(mix64(
        index.wrapping_mul(CB).wrapping_add(AB) ^ (namespace ^ SX) ^ domain.wrapping_mul(CA).wrapping_add(AA),
    ))
}

/// Keys of the groups of numbers.
#[derive(Clone, Copy)]
pub(super) struct Namespaces {
    pub(super) profile: u64,
    pub(super) prefix: u64,
    pub(super) motif: u64,
    pub(super) salt: u64,
    pub(super) mix: u64,
    pub(super) chunk: u64,
    pub(super) write: u64,
}

impl Namespaces {
    fn new(secret: &[u8; 32]) -> Self {
        let word = |i: usize| u64::from_le_bytes(secret[8 * i..8 * i + 8].try_into().expect("8 bytes"));
        let shared = word(0) ^ word(1).wrapping_add(G) ^ word(2).rotate_left(17) ^ word(3).rotate_right(11);
        let namespace =
            |label: u64, seed: u64| mix64(label.wrapping_mul(DM) ^ seed.wrapping_add(NA) ^ shared);
        Self {
            profile: namespace(5, 0xB46C_2E7D_9A15_38F1),
            prefix: namespace(0, 0x5D92_17C0_83E6_4AB9),
            motif: namespace(2, 0xA71F_0C54_D839_6E2B),
            salt: namespace(3, 0x3E8A_91B5_2740_F6CD),
            mix: namespace(16, 0xC9F4_260B_7D1E_835A),
            chunk: namespace(21, 0x62D0_B5E1_9C4A_783F),
            write: namespace(28, 0x917B_3C48_E6A2_05D4),
        }
    }

    /// The namespace that serves a label.
    fn of(&self, label: u64) -> u64 {
        match label {
            0 | 1 | 14 | 15 | 33 | 34 => self.prefix,
            2 => self.motif,
            3 | 16..=20 => self.mix,
            21..=26 | 38 | 39 => self.chunk,
            28..=32 | 35..=37 => self.write,
            _ => self.profile,
        }
    }

    pub(super) fn draw(&self, label: u64, a: u64, b: u64) -> u32 {
        prf(self.of(label), label, a, b)
    }

    /// One of `lo..=hi`.
    pub(super) fn pick(&self, label: u64, a: u64, b: u64, lo: u64, hi: u64) -> u64 {
        lo + u64::from(self.draw(label, a, b)) % (hi - lo + 1)
    }
}

/// The numbers that shape a deployment, named as in `docs/protocols/snell-v6.md` 2.3. Lengths are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) generator: u64,
    pub(super) pad_min: u64,
    pub(super) pad_max: u64,
    pub(super) pad_count: u64,
    pub(super) pad_interval: u64,
    pub(super) small_limit: u64,
    pub(super) bit_min: u64,
    pub(super) bit_max: u64,
    pub(super) salt_prefix_len: u64,
    pub(super) salt_shuffle_rounds: u64,
    pub(super) salt_mask_stride: u64,
    pub(super) prefix_min: u64,
    pub(super) prefix_max: u64,
    pub(super) mix_mode: u64,
    pub(super) mix_rounds: u64,
    pub(super) mix_stride: u64,
    pub(super) mix_offset: u64,
    pub(super) mix_block: u64,
    pub(super) chunk_policy: u64,
    pub(super) chunk_initial: u64,
    pub(super) first_record_cap: u64,
    pub(super) chunk_max: u64,
    pub(super) chunk_step: u64,
    pub(super) chunk_jitter: u64,
    pub(super) idle_reset_sec: u64,
    pub(super) write_policy: u64,
    pub(super) write_first: u64,
    pub(super) write_jitter: u64,
    pub(super) write_jitter_pct: u64,
    pub(super) chunk_buckets: [u64; 8],
    pub(super) write_buckets: [u64; 8],
    pub(super) write_seq: [u64; 8],
    /// Parameters of the generators, `g[0]` unused.
    pub(super) g: [u64; 7],
}

impl Params {
    #[rustfmt::skip]
    fn new(ns: &Namespaces) -> Self {
        let pick = |label, b, lo, hi| ns.pick(label, 0, b, lo, hi);
        let rest = |label, n: u64| u64::from(ns.draw(label, 0, 0)) % n;
        let eight = |label, lo, hi| std::array::from_fn(|i| ns.pick(label, 0, i as u64, lo, hi));
        let pad_min = pick(7, 0, 24, 160);
        let prefix_min = pick(14, 0, 8, 80);
        let hs_prefix_min = pick(14, SALT_PREFIX, 16, 96);
        let hs_prefix_max = (pick(15, SALT_PREFIX, 16, 160) + hs_prefix_min).min(MAX_PREFIX_LEN);
        let chunk_initial = pick(22, 0, 512, SEGMENT);
        let chunk_max = pick(23, 0, 8192, 16383);
        Self {
            generator: rest(6, 4),
            pad_min,
            pad_max: (pick(8, 0, 160, 960) + pad_min).min(MAX_PADDING_PART),
            pad_count: pick(9, 0, 2, 8),
            pad_interval: pick(10, 0, 2, 11),
            small_limit: pick(11, 0, 96, 768),
            bit_min: pick(12, 0, 24, 41),
            bit_max: pick(13, 0, 58, 76),
            salt_prefix_len: ns.pick(33, 0, SALT_PREFIX, hs_prefix_min, hs_prefix_max),
            salt_shuffle_rounds: pick(17, SALT_DOMAIN, 1, 4),
            salt_mask_stride: pick(18, SALT_DOMAIN, 17, 251),
            prefix_min,
            prefix_max: (pick(15, 0, 16, 160) + prefix_min).min(MAX_PREFIX_LEN),
            mix_mode: rest(16, 3),
            mix_rounds: pick(17, 0, 1, 3),
            mix_stride: pick(18, 0, 2, 13),
            mix_offset: pick(19, 0, 0, 15),
            mix_block: pick(20, 0, 8, 64),
            chunk_policy: rest(21, 3),
            chunk_initial,
            first_record_cap: pick(22, 0xF17C, 256, 768).min(chunk_initial).max(256),
            chunk_max,
            chunk_step: pick(24, 0, 1024, 4096).min(2920),
            chunk_jitter: pick(25, 0, 16, 192).min(182),
            idle_reset_sec: pick(27, 0, 12, 90),
            write_policy: rest(28, 3),
            write_first: pick(29, 0, 4, 8),
            write_jitter: pick(32, 0, 8, 96),
            write_jitter_pct: pick(28, 0x504C, 8, 48),
            chunk_buckets: eight(26, 4096, chunk_max),
            write_buckets: eight(30, 320, SEGMENT),
            write_seq: eight(31, 360, SEGMENT),
            g: [0, pick(6, 1, 24, 128), pick(6, 2, 16, 96), pick(6, 3, 16, 96), pick(6, 4, 0, 9),
                pick(6, 5, 1, 8), pick(6, 6, 7, 23)],
        }
    }
}

/// The shape of one pre-shared key's connections, shared by all of them and by both directions.
pub struct Profile {
    pub(super) ns: Namespaces,
    pub(super) params: Params,
    /// Positions of the salt's bytes in the salt block.
    pub(super) salt_at: [u8; SALT_LEN],
    pub(super) mask: [u8; SALT_LEN],
    pub(super) filler: Filler,
}

impl Profile {
    /// Derives the shape; `rng` gives what filler is drawn from.
    pub fn new(psk: &SnellPsk, rng: &mut dyn Rng) -> Self {
        Self::with_filler(psk, Filler::drawn(rng))
    }

    pub(super) fn with_filler(psk: &SnellPsk, filler: Filler) -> Self {
        let secret = Self::secret(psk);
        let ns = Namespaces::new(&secret);
        let params = Params::new(&ns);
        let salt_at = positions(&ns, &params);
        let mask = std::array::from_fn(|i| {
            let i = i as u64;
            low_byte(i.wrapping_mul(params.salt_mask_stride) ^ u64::from(prf(ns.salt, 2, SALT_DOMAIN, i)))
        });
        Self { ns, params, salt_at, mask, filler }
    }

    pub(super) fn secret(psk: &SnellPsk) -> [u8; 32] {
        blake2b_256(&[&DOMAIN, psk.bytes()])
    }

    /// Length of the salt block, in bytes: 32 to 144.
    pub(super) fn salt_block_len(&self) -> usize {
        SALT_LEN + len(self.params.salt_prefix_len)
    }

    /// Length of the filler in front of a frame's header, in bytes: 8 to 128.
    pub(super) fn prefix_len(&self, seq: u32) -> usize {
        len(self.ns.pick(33, seq.into(), 0, self.params.prefix_min, self.params.prefix_max))
    }

    /// Salt block, filler and first sealed header: nothing can be decided about a direction before that many bytes,
    /// 63 to 295.
    pub fn opening_len(&self) -> usize {
        self.salt_block_len() + self.prefix_len(0) + SEALED_HEADER_LEN
    }

    /// Puts `salt` into a salt block that is full of filler.
    pub(super) fn put_salt(&self, block: &mut [u8], salt: &Salt) {
        for ((at, salt), mask) in self.salt_at.iter().zip(salt).zip(self.mask) {
            block[usize::from(*at)] = salt ^ mask;
        }
    }

    /// The salt in a salt block.
    pub(super) fn read_salt(&self, block: &[u8]) -> Salt {
        std::array::from_fn(|i| block[usize::from(self.salt_at[i])] ^ self.mask[i])
    }

    /// Exchanges bytes of the padding of frame `seq` with those of the sealed payload; doing it twice changes nothing.
    pub(super) fn exchange(&self, seq: u32, padding: &mut [u8], cipher: &mut [u8]) {
        let n = padding.len().min(cipher.len());
        let (padding, cipher) = (&mut padding[..n], &mut cipher[..n]);
        let params = &self.params;
        for round in 0..params.mix_rounds {
            let stride = params.mix_stride + round;
            let start = match params.mix_mode {
                0 => params.mix_offset % stride,
                1 => {
                    exchange_blocks(padding, cipher, len(params.mix_block), round % 2 == 1);
                    continue;
                }
                _ => (u64::from(self.ns.draw(3, seq.into(), round)) + params.mix_offset) % stride,
            };
            let pairs = padding.iter_mut().zip(cipher.iter_mut());
            pairs.skip(len(start)).step_by(len(stride)).for_each(|(a, b)| std::mem::swap(a, b));
        }
    }
}

/// Shows nothing that the pre-shared key could be guessed against.
impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Profile(..)")
    }
}

/// Every second whole block.
fn exchange_blocks(padding: &mut [u8], cipher: &mut [u8], block: usize, from_second: bool) {
    let pairs = padding.chunks_exact_mut(block).zip(cipher.chunks_exact_mut(block));
    pairs.skip(usize::from(from_second)).step_by(2).for_each(|(a, b)| a.swap_with_slice(b));
}

/// A shuffle of the block's offsets, of which the first 16 count.
fn positions(ns: &Namespaces, params: &Params) -> [u8; SALT_LEN] {
    let mut places = [0_u8; SALT_LEN + 128];
    let n = SALT_LEN + len(params.salt_prefix_len);
    places.iter_mut().zip(0..).for_each(|(place, i)| *place = i);
    for round in 0..params.salt_shuffle_rounds {
        for i in 0..n {
            let draw = shuffle_prf(ns.salt, SALT_DOMAIN + round, i as u64);
            places.swap(i, i + len(u64::from(draw) % (n - i) as u64));
        }
    }
    std::array::from_fn(|i| places[i])
}

/// Lengths here are below 2^17, by construction.
pub(super) fn len(value: u64) -> usize {
    usize::try_from(value).expect("a length of at most some 128 KiB")
}

pub(super) fn low_byte(value: u64) -> u8 {
    value.to_le_bytes()[0]
}
