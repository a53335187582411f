use adit_proto::wire::Rng;

/// A random source that gives the same bytes for the same seed (SplitMix64); of no use outside tests.
#[derive(Debug, Clone)]
pub struct FixedRng(u64);

impl FixedRng {
    /// A source that starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 to below 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are what a float holds")]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Rng for FixedRng {
    fn fill(&mut self, out: &mut [u8]) {
        for part in out.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
    }
}

/// Gives out the bytes of a recording, in order.
#[derive(Debug, Clone)]
pub struct ScriptedRng(std::collections::VecDeque<u8>);

impl ScriptedRng {
    /// A source of exactly `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.iter().copied().collect())
    }
}

impl Rng for ScriptedRng {
    /// # Panics
    /// When the recording has run out: more was drawn than the recorded program drew.
    fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            *byte = self.0.pop_front().expect("recorded random bytes suffice");
        }
    }
}
