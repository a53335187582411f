use std::fmt;

use chacha20::{ChaCha20Legacy, KeyIvInit};
use cipher::StreamCipher;

use crate::wire::Rng;

/// A random source of one connection, for paddings: seeded once, it needs no [`Rng`] later.
pub struct Noise(ChaCha20Legacy);

impl Noise {
    /// Draws a seed of 32 bytes.
    pub fn draw(rng: &mut dyn Rng) -> Self {
        let mut seed = [0; 32];
        rng.fill(&mut seed);
        Self(ChaCha20Legacy::new(&seed.into(), &[0; 8].into()))
    }
}

impl Rng for Noise {
    fn fill(&mut self, out: &mut [u8]) {
        out.fill(0);
        // The 64-bit counter of blocks does not run out.
        self.0.apply_keystream(out);
    }
}

impl fmt::Debug for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Noise").finish_non_exhaustive()
    }
}
