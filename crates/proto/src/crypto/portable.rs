use aes::{Aes128, Aes256};
use aes_gcm::AesGcm;
use aes_gcm::aead::{AeadInOut, Tag};
use ccm::Ccm;
use chacha20poly1305::ChaCha8Poly1305;
use cipher::KeyInit;
use cipher::consts::{U12, U16};
use sm4::Sm4;

use super::{NONCE_LEN, TAG_LEN};

/// The AEADs that aws-lc does not have, with 12-byte nonces and 16-byte tags.
#[expect(clippy::large_enum_variant, reason = "lives in a box of its own")]
pub(super) enum Portable {
    Chacha8(ChaCha8Poly1305),
    Aes128Ccm(Ccm<Aes128, U16, U12>),
    Aes256Ccm(Ccm<Aes256, U16, U12>),
    Sm4Gcm(AesGcm<Sm4, U12>),
    Sm4Ccm(Ccm<Sm4, U16, U12>),
}

/// Prepares a key whose length the caller has checked.
fn keyed<C: KeyInit>(key: &[u8]) -> C {
    C::new_from_slice(key).expect("key of the algorithm's length")
}

impl Portable {
    pub(super) fn chacha8(key: &[u8]) -> Self {
        Self::Chacha8(keyed(key))
    }

    pub(super) fn aes_128_ccm(key: &[u8]) -> Self {
        Self::Aes128Ccm(keyed(key))
    }

    pub(super) fn aes_256_ccm(key: &[u8]) -> Self {
        Self::Aes256Ccm(keyed(key))
    }

    pub(super) fn sm4_gcm(key: &[u8]) -> Self {
        Self::Sm4Gcm(keyed(key))
    }

    pub(super) fn sm4_ccm(key: &[u8]) -> Self {
        Self::Sm4Ccm(keyed(key))
    }

    pub(super) fn seal(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; TAG_LEN], ()> {
        let nonce = &nonce.into();
        let tag = match self {
            Self::Chacha8(key) => key.encrypt_inout_detached(nonce, aad, data.into()),
            Self::Aes128Ccm(key) => key.encrypt_inout_detached(nonce, aad, data.into()),
            Self::Aes256Ccm(key) => key.encrypt_inout_detached(nonce, aad, data.into()),
            Self::Sm4Gcm(key) => key.encrypt_inout_detached(nonce, aad, data.into()),
            Self::Sm4Ccm(key) => key.encrypt_inout_detached(nonce, aad, data.into()),
        };
        tag.map(Into::into).map_err(|_| ())
    }

    pub(super) fn open(&self, nonce: [u8; NONCE_LEN], aad: &[u8], sealed: &mut [u8]) -> Result<(), ()> {
        let nonce = &nonce.into();
        let (data, tag) = sealed.split_last_chunk_mut::<TAG_LEN>().ok_or(())?;
        let tag: &Tag<ChaCha8Poly1305> = &(*tag).into();
        let opened = match self {
            Self::Chacha8(key) => key.decrypt_inout_detached(nonce, aad, data.into(), tag),
            Self::Aes128Ccm(key) => key.decrypt_inout_detached(nonce, aad, data.into(), tag),
            Self::Aes256Ccm(key) => key.decrypt_inout_detached(nonce, aad, data.into(), tag),
            Self::Sm4Gcm(key) => key.decrypt_inout_detached(nonce, aad, data.into(), tag),
            Self::Sm4Ccm(key) => key.decrypt_inout_detached(nonce, aad, data.into(), tag),
        };
        opened.map_err(|_| ())
    }
}
