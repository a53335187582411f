use std::fmt;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_128_GCM_SIV, AES_192_GCM, AES_256_GCM, AES_256_GCM_SIV, Aad, CHACHA20_POLY1305,
    LessSafeKey, Nonce, UnboundKey,
};

use super::portable::Portable;
use crate::wire::WireError;

/// Length of a nonce, in bytes.
pub const NONCE_LEN: usize = 12;
/// Length of an authentication tag, in bytes.
pub const TAG_LEN: usize = 16;

/// An AEAD with 12-byte nonces and 16-byte tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AeadAlgorithm {
    /// AES-128-GCM, 16-byte key.
    Aes128Gcm,
    /// AES-192-GCM, 24-byte key.
    Aes192Gcm,
    /// AES-256-GCM, 32-byte key.
    Aes256Gcm,
    /// ChaCha20-Poly1305 (RFC 8439), 32-byte key.
    Chacha20Poly1305,
    /// ChaCha20-Poly1305 cut to 8 rounds, 32-byte key.
    Chacha8Poly1305,
    /// AES-128-CCM (RFC 5116), 16-byte key.
    Aes128Ccm,
    /// AES-256-CCM (RFC 5116), 32-byte key.
    Aes256Ccm,
    /// AES-128-GCM-SIV (RFC 8452), 16-byte key.
    Aes128GcmSiv,
    /// AES-256-GCM-SIV (RFC 8452), 32-byte key.
    Aes256GcmSiv,
    /// SM4-GCM (RFC 8998), 16-byte key.
    Sm4Gcm,
    /// SM4-CCM (RFC 8998), 16-byte key.
    Sm4Ccm,
}

impl AeadAlgorithm {
    /// Key length in bytes.
    pub fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::Aes128Ccm | Self::Aes128GcmSiv | Self::Sm4Gcm | Self::Sm4Ccm => 16,
            Self::Aes192Gcm => 24,
            Self::Aes256Gcm
            | Self::Chacha20Poly1305
            | Self::Chacha8Poly1305
            | Self::Aes256Ccm
            | Self::Aes256GcmSiv => 32,
        }
    }
}

/// A key made ready for sealing or opening in place.
pub struct Aead(Inner);

enum Inner {
    AwsLc(LessSafeKey),
    Portable(Box<Portable>),
}

impl Aead {
    /// Prepares `key`.
    ///
    /// # Panics
    /// If `key` is not [`AeadAlgorithm::key_len`] bytes long.
    pub fn new(algorithm: AeadAlgorithm, key: &[u8]) -> Self {
        assert_eq!(key.len(), algorithm.key_len(), "key of the algorithm's length");
        let algorithm = match algorithm {
            AeadAlgorithm::Aes128Gcm => &AES_128_GCM,
            AeadAlgorithm::Aes192Gcm => &AES_192_GCM,
            AeadAlgorithm::Aes256Gcm => &AES_256_GCM,
            AeadAlgorithm::Chacha20Poly1305 => &CHACHA20_POLY1305,
            AeadAlgorithm::Aes128GcmSiv => &AES_128_GCM_SIV,
            AeadAlgorithm::Aes256GcmSiv => &AES_256_GCM_SIV,
            AeadAlgorithm::Chacha8Poly1305 => return Self::portable(Portable::chacha8(key)),
            AeadAlgorithm::Aes128Ccm => return Self::portable(Portable::aes_128_ccm(key)),
            AeadAlgorithm::Aes256Ccm => return Self::portable(Portable::aes_256_ccm(key)),
            AeadAlgorithm::Sm4Gcm => return Self::portable(Portable::sm4_gcm(key)),
            AeadAlgorithm::Sm4Ccm => return Self::portable(Portable::sm4_ccm(key)),
        };
        let key = UnboundKey::new(algorithm, key).expect("key of the algorithm's length");
        Self(Inner::AwsLc(LessSafeKey::new(key)))
    }

    fn portable(key: Portable) -> Self {
        Self(Inner::Portable(Box::new(key)))
    }

    /// Encrypts `data` in place and writes the tag to `tag`.
    ///
    /// # Errors
    /// [`WireError::Exhausted`] if `data` exceeds what the algorithm may seal at once (64 GiB; 16 MiB for CCM).
    pub fn seal(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &mut [u8; TAG_LEN],
    ) -> Result<(), WireError> {
        let sealed = match &self.0 {
            Inner::AwsLc(key) => key
                .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(aad), data)
                .map(|sealed| tag.copy_from_slice(sealed.as_ref()))
                .map_err(|_| ()),
            Inner::Portable(key) => key.seal(nonce, aad, data).map(|sealed| *tag = sealed),
        };
        sealed.map_err(|()| WireError::Exhausted { what: "AEAD message length" })
    }

    /// Decrypts `sealed` (ciphertext, then tag) in place; `Err(())` when it does not authenticate, with the
    /// content of `sealed` then unspecified. On success the plaintext is all but the last [`TAG_LEN`] bytes.
    #[expect(clippy::result_unit_err, reason = "only the caller knows which part failed")]
    pub fn open(&self, nonce: [u8; NONCE_LEN], aad: &[u8], sealed: &mut [u8]) -> Result<(), ()> {
        match &self.0 {
            Inner::AwsLc(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, Aad::from(aad), sealed).map(|_| ()).map_err(|_| ())
            }
            Inner::Portable(key) => key.open(nonce, aad, sealed),
        }
    }
}

/// Shows no key material.
impl fmt::Debug for Aead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aead").finish_non_exhaustive()
    }
}

/// A nonce that counts up from 0, little-endian over all 12 bytes, one per AEAD operation (Snell, Shadowsocks).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CounterNonce(u64, u32);

impl CounterNonce {
    /// The current value; the counter then moves on.
    pub fn advance(&mut self) -> [u8; NONCE_LEN] {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.0.to_le_bytes());
        nonce[8..].copy_from_slice(&self.1.to_le_bytes());
        let (low, carry) = self.0.overflowing_add(1);
        self.0 = low;
        self.1 = self.1.wrapping_add(u32::from(carry));
        nonce
    }
}
