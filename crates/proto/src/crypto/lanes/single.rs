//! In the place of codes side by side, for processors without AVX2.

use std::convert::Infallible;

/// HMAC-MD5 of several messages, which this processor cannot.
#[derive(Debug, Clone, Copy)]
pub struct HmacMd5Lanes(Infallible);

/// SipHash-1-3 of several messages, which this processor cannot.
#[derive(Debug, Clone, Copy)]
pub struct Sip13Lanes(Infallible);

impl HmacMd5Lanes {
    /// `None`.
    pub fn new(_: &[u8], _: &[[u8; 4]]) -> Option<Self> {
        None
    }

    /// Cannot be called.
    pub fn tags(&self, _: &[&[u8]]) -> [[u8; 16]; super::LANES] {
        match self.0 {}
    }
}

impl Sip13Lanes {
    /// `None`.
    pub fn new(_: &[[u8; 16]]) -> Option<Self> {
        None
    }

    /// Cannot be called.
    pub fn tags(&self, _: &[&[u8]]) -> [[u8; 8]; super::LANES] {
        match self.0 {}
    }
}
