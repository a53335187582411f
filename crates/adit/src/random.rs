//! Randomness from the system.

use adit_formats::share::Rng;

/// The system's random source.
pub(crate) struct SystemRng;

impl Rng for SystemRng {
    fn fill(&mut self, out: &mut [u8]) {
        getrandom::fill(out).expect("the system has a random source");
    }
}
