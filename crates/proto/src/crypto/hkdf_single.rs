//! In the place of HKDF-SHA1 of eight salts at a time, for processors without AVX2.

use std::convert::Infallible;

use super::LANES;

/// HKDF-SHA1 for [`LANES`] salts under one key, which this processor cannot.
#[derive(Debug, Clone, Copy)]
pub struct HkdfSha1Wide(Infallible);

impl HkdfSha1Wide {
    /// `None`.
    pub fn new() -> Option<Self> {
        None
    }

    /// Cannot be called.
    pub fn derive(self, _: &[u8], _: &[[u8; 32]; LANES], _: &[u8], _: usize, _: &mut [[u8; 32]; LANES]) {
        match self.0 {}
    }
}
