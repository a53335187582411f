//! Padding of a direction's first frame: how long it is and how many of its bits are set.
//!
//! Sealed bytes have four set bits of eight on average, and a published censor rule picks out first segments whose
//! average lies between 3.4 and 4.6. Peers therefore draw 256 to 511 padding bytes whose set bits push the whole
//! frame out of that band (`docs/protocols/snell.md` 1.6). Their rule gives up as the first payload grows; here a
//! long first payload gets a padding from the upper end of the same range, with the bits turned up, so that
//! every first segment is out of the band. Receivers check none of this.

use super::kdf::MARK_LEN;
use crate::crypto::{Aead, AeadAlgorithm, TAG_LEN};
use crate::wire::Rng;

/// Shortest padding, in bytes.
pub(super) const MIN_LEN: usize = 256;
/// Longest padding, in bytes.
pub(super) const MAX_LEN: usize = 511;
/// Shortest padding of a long first payload: from here on the ones fit in even when the frame is full.
const LONG_MIN_LEN: usize = 480;
/// Payloads up to this length always balance under the peers' own rule.
const SHORT_PAYLOAD: usize = 300;

/// Writes `mark` to padding bytes at odd offsets: those stay where they are and no receiver looks at them, so a
/// peer that knows the key can be told something that nobody else can see.
pub(super) fn put_mark(padding: &mut [u8], mark: &[u8; MARK_LEN]) {
    for (byte, mark) in padding.iter_mut().skip(1).step_by(2).zip(mark) {
        *byte = *mark;
    }
}

/// Whether [`put_mark`] has been here, in a padding of v4.
pub(super) fn has_mark(padding: &[u8], mark: &[u8; MARK_LEN]) -> bool {
    padding.len() >= MIN_LEN && shows_mark(padding, mark)
}

/// Whether [`put_mark`] has been here.
pub(super) fn shows_mark(padding: &[u8], mark: &[u8; MARK_LEN]) -> bool {
    padding.len() >= 2 * MARK_LEN
        && padding.iter().skip(1).step_by(2).zip(mark).all(|(byte, mark)| byte == mark)
}

/// The lengths and the random seed of one direction's first padding, drawn when the direction is made.
#[derive(Debug)]
pub(super) struct FirstPadding {
    short_len: u16,
    long_len: u16,
    seed: [u8; 16],
}

impl FirstPadding {
    pub(super) fn draw(rng: &mut dyn Rng) -> Self {
        let draw = |rng: &mut dyn Rng, min: usize, max: usize| {
            let spread = u32::try_from(max - min + 1).expect("below 512");
            u16::try_from(min).expect("below 512") + u16::try_from(rng.below(spread)).expect("below 512")
        };
        let short_len = draw(rng, MIN_LEN, MAX_LEN);
        let long_len = draw(rng, LONG_MIN_LEN, MAX_LEN);
        let mut seed = [0; 16];
        rng.fill(&mut seed);
        Self { short_len, long_len, seed }
    }

    /// Padding length for the longest first payload.
    pub(super) fn long_len(&self) -> usize {
        usize::from(self.long_len)
    }

    /// Padding length for a first payload of `payload_len` bytes.
    pub(super) fn len_for(&self, payload_len: usize) -> usize {
        usize::from(if is_long(payload_len) { self.long_len } else { self.short_len })
    }

    /// Fills `padding` for the sealed payload `cipher` that follows it.
    pub(super) fn fill(&self, padding: &mut [u8], cipher: &[u8]) {
        let mut bits = Keystream::new(&self.seed);
        let draw = f64::from(bits.next_u16()) / 65536.0;
        match wanted_ones(padding.len(), cipher, draw) {
            Some(ones) => fill_with_ones(padding, ones, &mut bits),
            None => padding.iter_mut().for_each(|byte| *byte = bits.next_u16().to_le_bytes()[0]),
        }
    }
}

/// Number of bits to set in a padding of `len` bytes; `None` for plain random bytes. `draw` is uniform in
/// `0.0..1.0`.
fn wanted_ones(len: usize, cipher: &[u8], draw: f64) -> Option<usize> {
    // Peers count whole 32-bit words only: the tail's bits all pass for zeros.
    let counted = &cipher[..cipher.len() / 4 * 4];
    let ones: u32 = counted.iter().map(|byte| byte.count_ones()).sum();
    let ones = f64::from(ones);
    let zeros = bits_of(cipher.len()) - ones;
    if zeros <= 0.0 || ones / zeros <= 0.5 || ones / zeros >= 1.6 {
        return None;
    }
    let total = bits_of(len + cipher.len());
    let want = |ratio: f64| (total * ratio / (ratio + 1.0) - ones).trunc();
    let fits = |want: f64| (0.0..=bits_of(len)).contains(&want);
    let base = if zeros < ones { 0.4 } else { 1.6 };
    let drawn = want(base + draw / 10.0);
    // With a long payload the low base is out of reach and the high one must carry a further frame in the same
    // segment: 1.8 keeps 1400 bytes of early data at 4.7 set bits per byte or more.
    let wanted = if !is_long(cipher.len() - TAG_LEN) && fits(drawn) {
        drawn
    } else {
        want(1.8 + draw / 10.0).min(bits_of(len))
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 <= wanted <= 8 * 511")]
    fits(wanted).then_some(wanted as usize)
}

fn is_long(payload_len: usize) -> bool {
    payload_len > SHORT_PAYLOAD
}

fn bits_of(bytes: usize) -> f64 {
    f64::from(u32::try_from(bytes * 8).unwrap_or(u32::MAX))
}

/// Writes a uniformly drawn bit string with exactly `ones` set bits.
///
/// Every bit is first set with probability `ones / bits` (to 8 binary digits), then randomly chosen bits are
/// flipped until the count is right; both steps treat all positions alike, so the result is uniform.
fn fill_with_ones(padding: &mut [u8], ones: usize, bits: &mut Keystream) {
    let total = padding.len() * 8;
    let density = ones * 256 / total.max(1);
    for byte in padding.iter_mut() {
        *byte = biased_byte(density, bits);
    }
    let mut count: usize = padding.iter().map(|byte| byte.count_ones() as usize).sum();
    while count != ones {
        let at = usize::from(bits.next_u16()) % total;
        let mask = 1 << (at % 8);
        let is_set = padding[at / 8] & mask != 0;
        if is_set == (count > ones) {
            padding[at / 8] ^= mask;
            count = if is_set { count - 1 } else { count + 1 };
        }
    }
}

/// A byte whose bits are set independently with probability `density / 256`: one random byte per binary digit,
/// least significant first, joined by OR for a 1 and AND for a 0.
fn biased_byte(density: usize, bits: &mut Keystream) -> u8 {
    if density >= 256 {
        return 0xff;
    }
    let mut byte = 0;
    for digit in 0..4 {
        let pair = bits.next_u16().to_le_bytes();
        for (half, random) in pair.into_iter().enumerate() {
            byte = if density >> (2 * digit + half) & 1 == 1 { byte | random } else { byte & random };
        }
    }
    byte
}

/// Random bytes from a 16-byte seed: AES-128-GCM over zeros, a kilobyte at a time.
struct Keystream {
    cipher: Aead,
    block: [u8; 1024],
    used: usize,
    count: u8,
}

impl Keystream {
    fn new(seed: &[u8; 16]) -> Self {
        Self { cipher: Aead::new(AeadAlgorithm::Aes128Gcm, seed), block: [0; 1024], used: 1024, count: 0 }
    }

    fn next_u16(&mut self) -> u16 {
        if self.used == self.block.len() {
            let mut nonce = [0; 12];
            nonce[0] = self.count;
            // 256 blocks serve 200 times what one padding asks for; a repeat would only repeat padding bits.
            self.count = self.count.wrapping_add(1);
            self.block.fill(0);
            let mut tag = [0; 16];
            self.cipher.seal(nonce, &[], &mut self.block, &mut tag).expect("a kilobyte is no limit");
            self.used = 0;
        }
        let value = u16::from_le_bytes([self.block[self.used], self.block[self.used + 1]]);
        self.used += 2;
        value
    }
}
