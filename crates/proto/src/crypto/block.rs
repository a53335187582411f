use std::fmt;

use aes::{Aes128, Aes256};
use cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

/// AES on single blocks, for headers that are enciphered without a mode.
#[derive(Clone)]
pub struct AesBlock(Inner);

#[derive(Clone)]
enum Inner {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
}

impl AesBlock {
    /// Expands a key of 16 or 32 bytes.
    ///
    /// # Panics
    /// For keys of other lengths.
    pub fn new(key: &[u8]) -> Self {
        const LEN: &str = "an AES key of 16 or 32 bytes";
        Self(if key.len() == 16 {
            Inner::Aes128(Box::new(Aes128::new_from_slice(key).expect(LEN)))
        } else {
            Inner::Aes256(Box::new(Aes256::new_from_slice(key).expect(LEN)))
        })
    }

    /// Enciphers one block in place.
    pub fn encrypt(&self, block: &mut [u8; 16]) {
        match &self.0 {
            Inner::Aes128(aes) => aes.encrypt_block(block.into()),
            Inner::Aes256(aes) => aes.encrypt_block(block.into()),
        }
    }

    /// Deciphers one block in place.
    pub fn decrypt(&self, block: &mut [u8; 16]) {
        match &self.0 {
            Inner::Aes128(aes) => aes.decrypt_block(block.into()),
            Inner::Aes256(aes) => aes.decrypt_block(block.into()),
        }
    }
}

/// Shows no key material.
impl fmt::Debug for AesBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AesBlock").finish_non_exhaustive()
    }
}
