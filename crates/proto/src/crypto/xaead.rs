//! AEADs with 24-byte nonces, built from those with 12 (draft-irtf-cfrg-xchacha, "AEAD_XChaCha20_Poly1305").
//!
//! ```text
//!   subkey = HChaCha(key, nonce[0..16])      inner nonce = 00 00 00 00 || nonce[16..24]
//! ```

use std::fmt;

use chacha20::{R8, R20, hchacha};
use zeroize::Zeroizing;

use super::{Aead, AeadAlgorithm, NONCE_LEN, TAG_LEN};
use crate::wire::WireError;

/// Length of an extended nonce, in bytes.
pub const XNONCE_LEN: usize = 24;

/// An AEAD with 24-byte nonces, 32-byte keys and 16-byte tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum XAlgorithm {
    /// XChaCha20-Poly1305.
    Xchacha20Poly1305,
    /// The same with 8 rounds throughout, also in the derivation of the subkey.
    Xchacha8Poly1305,
}

/// A key for an [`XAlgorithm`]. Each message has a subkey of its own, so there is nothing else to prepare.
#[derive(Clone)]
pub struct XAead {
    algorithm: XAlgorithm,
    key: Zeroizing<[u8; 32]>,
}

impl XAead {
    /// Keeps `key`.
    ///
    /// # Panics
    /// If `key` is not 32 bytes long.
    pub fn new(algorithm: XAlgorithm, key: &[u8]) -> Self {
        Self { algorithm, key: Zeroizing::new(key.try_into().expect("key of 32 bytes")) }
    }

    fn message(&self, nonce: [u8; XNONCE_LEN]) -> (Aead, [u8; NONCE_LEN]) {
        let (prefix, suffix) = nonce.split_at(16);
        let prefix: &[u8; 16] = prefix.try_into().expect("16 of 24 bytes");
        let key = (*self.key).into();
        let (inner, subkey) = match self.algorithm {
            XAlgorithm::Xchacha20Poly1305 => {
                (AeadAlgorithm::Chacha20Poly1305, hchacha::<R20>(&key, &(*prefix).into()))
            }
            XAlgorithm::Xchacha8Poly1305 => {
                (AeadAlgorithm::Chacha8Poly1305, hchacha::<R8>(&key, &(*prefix).into()))
            }
        };
        let mut short = [0; NONCE_LEN];
        short[4..].copy_from_slice(suffix);
        (Aead::new(inner, &subkey), short)
    }

    /// As [`Aead::seal`].
    ///
    /// # Errors
    /// As [`Aead::seal`].
    pub fn seal(
        &self,
        nonce: [u8; XNONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &mut [u8; TAG_LEN],
    ) -> Result<(), WireError> {
        let (aead, nonce) = self.message(nonce);
        aead.seal(nonce, aad, data, tag)
    }

    /// As [`Aead::open`].
    #[expect(clippy::result_unit_err, reason = "only the caller knows which part failed")]
    pub fn open(&self, nonce: [u8; XNONCE_LEN], aad: &[u8], sealed: &mut [u8]) -> Result<(), ()> {
        let (aead, nonce) = self.message(nonce);
        aead.open(nonce, aad, sealed)
    }
}

/// Shows no key material.
impl fmt::Debug for XAead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("XAead").field(&self.algorithm).finish_non_exhaustive()
    }
}
