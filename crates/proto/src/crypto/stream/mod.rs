//! Stream ciphers of old protocols: confidentiality of a sort, no authentication.
//!
//! A [`Cipher`] is one direction with one keystream that continues at byte granularity from call to call.
//!
//! | algorithm | key | IV | notes |
//! |---|--:|--:|---|
//! | [`StreamAlgorithm::Table`] | any | 0 | substitution of bytes; the key is the raw password |
//! | [`StreamAlgorithm::Rc4`] | 16 | 0 | |
//! | [`StreamAlgorithm::Rc4Md5`], [`StreamAlgorithm::Rc4Md5Short`] | 16 | 16, 6 | RC4 under `MD5(key, IV)` |
//! | [`StreamAlgorithm::Block`], CTR | cipher's | 16 | the IV is the first big-endian counter block |
//! | [`StreamAlgorithm::Block`], CFB, CFB8, CFB1, OFB | cipher's | block | CFB1 takes the most significant bit first |
//! | [`StreamAlgorithm::BlowfishCfb`], [`StreamAlgorithm::Cast5Cfb`], [`StreamAlgorithm::Rc2Cfb`] | 16 | 8 | CFB64 |
//! | [`StreamAlgorithm::DesCfb`] | 8 | 8 | CFB64 |
//! | [`StreamAlgorithm::SeedCfb`] | 16 | 16 | CFB128 |
//! | [`StreamAlgorithm::Salsa20`], [`StreamAlgorithm::Chacha20`] | 32 | 8 | the original variants, 64-bit block counter |
//! | [`StreamAlgorithm::Chacha20Ietf`] | 32 | 12 | RFC 8439, 32-bit block counter from 0 |
//! | [`StreamAlgorithm::Xchacha20`], [`StreamAlgorithm::Xsalsa20`] | 32 | 24 | |

mod aes_ctr;
mod mode;
mod rc4;
mod seed;
mod table;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod wide;

use std::fmt;
use std::sync::Arc;

use blowfish::Blowfish;
use cast5::Cast5;
use chacha20::{ChaCha20, ChaCha20Legacy, R20, hchacha};
use cipher::{KeyInit, KeyIvInit, StreamCipher};
use des::Des;
use rc2::Rc2;
use salsa20::{Salsa20, XSalsa20};
use zeroize::Zeroizing;

use self::aes_ctr::AesCtr;
use self::mode::{Cfb64, Mode128};
pub(crate) use self::mode::{cfb_decrypt, cfb_encrypt};
use self::rc4::Rc4;
use self::seed::{Seed, SeedCfb};
use self::table::Tables;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
use self::wide::Salsa;
use super::md5;
use crate::wire::WireError;

/// A stream cipher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamAlgorithm {
    /// Substitution by a table that is sorted from the password.
    Table,
    /// RC4 under the key itself: every direction repeats the same keystream.
    Rc4,
    /// RC4 under `MD5(key, IV)`.
    Rc4Md5,
    /// RC4 under `MD5(key, IV)` with an IV of 6 bytes.
    Rc4Md5Short,
    /// A 128-bit block cipher in a stream mode.
    Block(BlockCipher, BlockMode),
    /// Blowfish, 128-bit key, 64-bit cipher feedback.
    BlowfishCfb,
    /// CAST5 (CAST-128), 128-bit key, 64-bit cipher feedback.
    Cast5Cfb,
    /// DES, 64-bit cipher feedback.
    DesCfb,
    /// RC2 with an effective key of 128 bits, 64-bit cipher feedback.
    Rc2Cfb,
    /// SEED, 128-bit cipher feedback.
    SeedCfb,
    /// Salsa20 with 8-byte nonce.
    Salsa20,
    /// The original ChaCha20 with 8-byte nonce.
    Chacha20,
    /// ChaCha20 with 12-byte nonce.
    Chacha20Ietf,
    /// ChaCha20 with 24-byte nonce.
    Xchacha20,
    /// Salsa20 with 24-byte nonce.
    Xsalsa20,
}

/// A block cipher with 128-bit blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all: cipher and key length in bits")]
pub enum BlockCipher {
    Aes128,
    Aes192,
    Aes256,
    Camellia128,
    Camellia192,
    Camellia256,
}

/// The mode in which a block cipher makes a keystream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockMode {
    /// Counter: 128 bits, big-endian.
    Ctr,
    /// Cipher feedback of whole blocks (CFB128).
    Cfb,
    /// Cipher feedback of single bits.
    Cfb1,
    /// Cipher feedback of bytes.
    Cfb8,
    /// Output feedback.
    Ofb,
}

/// Direction of a [`Cipher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Plaintext to ciphertext.
    Encrypt,
    /// Ciphertext to plaintext.
    Decrypt,
}

impl BlockCipher {
    /// Key length in bytes.
    pub fn key_len(self) -> usize {
        match self {
            Self::Aes128 | Self::Camellia128 => 16,
            Self::Aes192 | Self::Camellia192 => 24,
            Self::Aes256 | Self::Camellia256 => 32,
        }
    }
}

impl StreamAlgorithm {
    /// Key length in bytes; 0 for [`StreamAlgorithm::Table`], which takes a password of any length.
    pub fn key_len(self) -> usize {
        match self {
            Self::Table => 0,
            Self::DesCfb => 8,
            Self::Rc4 | Self::Rc4Md5 | Self::Rc4Md5Short => 16,
            Self::BlowfishCfb | Self::Cast5Cfb | Self::Rc2Cfb | Self::SeedCfb => 16,
            Self::Block(cipher, _) => cipher.key_len(),
            Self::Salsa20 | Self::Chacha20 | Self::Chacha20Ietf | Self::Xchacha20 | Self::Xsalsa20 => 32,
        }
    }

    /// Length of the initialisation vector (or nonce) in bytes.
    pub fn iv_len(self) -> usize {
        match self {
            Self::Table | Self::Rc4 => 0,
            Self::Rc4Md5Short => 6,
            Self::BlowfishCfb | Self::Cast5Cfb | Self::DesCfb | Self::Rc2Cfb => 8,
            Self::Salsa20 | Self::Chacha20 => 8,
            Self::Chacha20Ietf => 12,
            Self::Rc4Md5 | Self::SeedCfb | Self::Block(..) => 16,
            Self::Xchacha20 | Self::Xsalsa20 => 24,
        }
    }
}

/// A key made ready once, from which the cipher of each connection or datagram is made. Clones share it.
#[derive(Clone)]
pub struct StreamCipherKey {
    algorithm: StreamAlgorithm,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Bytes(Arc<Zeroizing<Box<[u8]>>>),
    Tables(Arc<Tables>),
    Blowfish(Arc<Blowfish>),
    Cast5(Arc<Cast5>),
    Des(Arc<Des>),
    Rc2(Arc<Rc2>),
    Seed(Arc<Seed>),
}

/// The schedule of a cipher whose constructor takes 16 bytes, or 8.
fn scheduled<C: KeyInit>(key: &[u8]) -> Arc<C> {
    Arc::new(C::new_from_slice(key).expect(LENGTHS))
}

impl StreamCipherKey {
    /// Keeps `key`; for [`StreamAlgorithm::Table`] sorts the tables, which takes milliseconds.
    ///
    /// # Panics
    /// If `key` is not [`StreamAlgorithm::key_len`] bytes long (any length will do for [`StreamAlgorithm::Table`]).
    pub fn new(algorithm: StreamAlgorithm, key: &[u8]) -> Self {
        if algorithm == StreamAlgorithm::Table {
            return Self { algorithm, material: Material::Tables(Arc::new(Tables::new(key))) };
        }
        assert_eq!(key.len(), algorithm.key_len(), "key of the algorithm's length");
        let material = match algorithm {
            StreamAlgorithm::BlowfishCfb => Material::Blowfish(scheduled(key)),
            StreamAlgorithm::Cast5Cfb => Material::Cast5(scheduled(key)),
            StreamAlgorithm::DesCfb => Material::Des(scheduled(key)),
            StreamAlgorithm::Rc2Cfb => Material::Rc2(Arc::new(Rc2::new_with_eff_key_len(key, 8 * key.len()))),
            StreamAlgorithm::SeedCfb => Material::Seed(Arc::new(Seed::new(key))),
            StreamAlgorithm::Table
            | StreamAlgorithm::Rc4
            | StreamAlgorithm::Rc4Md5
            | StreamAlgorithm::Rc4Md5Short
            | StreamAlgorithm::Block(..)
            | StreamAlgorithm::Salsa20
            | StreamAlgorithm::Chacha20
            | StreamAlgorithm::Chacha20Ietf
            | StreamAlgorithm::Xchacha20
            | StreamAlgorithm::Xsalsa20 => Material::Bytes(Arc::new(Zeroizing::new(key.into()))),
        };
        Self { algorithm, material }
    }

    /// The algorithm.
    pub fn algorithm(&self) -> StreamAlgorithm {
        self.algorithm
    }

    /// A cipher at the start of its keystream.
    ///
    /// # Panics
    /// If `iv` is not [`StreamAlgorithm::iv_len`] bytes long.
    pub fn cipher(&self, iv: &[u8], direction: Direction) -> Cipher {
        assert_eq!(iv.len(), self.algorithm.iv_len(), "IV of the algorithm's length");
        let key: &[u8] = match &self.material {
            Material::Bytes(key) => key,
            Material::Tables(tables) => return Cipher(Inner::Table(Arc::clone(tables), direction)),
            Material::Blowfish(cipher) => {
                return Cipher(Inner::Blowfish(Cfb64::new(Arc::clone(cipher), direction, iv)));
            }
            Material::Cast5(cipher) => {
                return Cipher(Inner::Cast5(Cfb64::new(Arc::clone(cipher), direction, iv)));
            }
            Material::Des(cipher) => {
                return Cipher(Inner::Des(Cfb64::new(Arc::clone(cipher), direction, iv)));
            }
            Material::Rc2(cipher) => {
                return Cipher(Inner::Rc2(Cfb64::new(Arc::clone(cipher), direction, iv)));
            }
            Material::Seed(cipher) => {
                return Cipher(Inner::Seed(SeedCfb::new(Arc::clone(cipher), direction, iv)));
            }
        };
        let inner = match self.algorithm {
            StreamAlgorithm::Table
            | StreamAlgorithm::BlowfishCfb
            | StreamAlgorithm::Cast5Cfb
            | StreamAlgorithm::DesCfb
            | StreamAlgorithm::Rc2Cfb
            | StreamAlgorithm::SeedCfb => unreachable!("has material of its own"),
            StreamAlgorithm::Rc4 => Inner::Rc4(Rc4::new(key)),
            StreamAlgorithm::Rc4Md5 | StreamAlgorithm::Rc4Md5Short => Inner::Rc4(Rc4::new(&md5(&[key, iv]))),
            StreamAlgorithm::Block(
                BlockCipher::Aes128 | BlockCipher::Aes192 | BlockCipher::Aes256,
                BlockMode::Ctr,
            ) => Inner::AesCtr(AesCtr::new(key, iv)),
            StreamAlgorithm::Block(cipher, mode) => {
                Inner::Block(Mode128::new(cipher, mode, direction, key, iv))
            }
            StreamAlgorithm::Salsa20 => salsa20(key, iv),
            StreamAlgorithm::Chacha20 | StreamAlgorithm::Chacha20Ietf => chacha20(key, iv),
            StreamAlgorithm::Xchacha20 => {
                let (start, end) = iv.split_at(16);
                let key = hchacha::<R20>(key.try_into().expect(LENGTHS), start.try_into().expect(LENGTHS));
                let mut nonce = [0; 12];
                nonce[4..].copy_from_slice(end);
                chacha20(&key, &nonce)
            }
            StreamAlgorithm::Xsalsa20 => Inner::Xsalsa20(keyed(key, iv)),
        };
        Cipher(inner)
    }
}

const LENGTHS: &str = "lengths have been checked";

/// Salsa20 under a key of 32 and a nonce of 8 bytes.
fn salsa20(key: &[u8], nonce: &[u8]) -> Inner {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if let Some(wide) = Salsa::new(key.try_into().expect(LENGTHS), nonce.try_into().expect(LENGTHS)) {
        return Inner::SalsaWide(wide);
    }
    Inner::Salsa20(keyed(key, nonce))
}

/// ChaCha20 under a key of 32 and a nonce of 8 or 12 bytes.
fn chacha20(key: &[u8], nonce: &[u8]) -> Inner {
    if nonce.len() == 8 { Inner::Chacha20(keyed(key, nonce)) } else { Inner::Chacha20Ietf(keyed(key, nonce)) }
}

fn keyed<C: KeyIvInit>(key: &[u8], iv: &[u8]) -> Box<C> {
    Box::new(C::new_from_slices(key, iv).expect(LENGTHS))
}

/// Shows no key material.
impl fmt::Debug for StreamCipherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.algorithm).finish_non_exhaustive()
    }
}

/// One direction of one connection, or one datagram.
pub struct Cipher(Inner);

enum Inner {
    Table(Arc<Tables>, Direction),
    Rc4(Box<Rc4>),
    AesCtr(AesCtr),
    Block(Mode128),
    Blowfish(Cfb64<Blowfish>),
    Cast5(Cfb64<Cast5>),
    Des(Cfb64<Des>),
    Rc2(Cfb64<Rc2>),
    Seed(SeedCfb),
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    SalsaWide(Box<Salsa>),
    Salsa20(Box<Salsa20>),
    Xsalsa20(Box<XSalsa20>),
    Chacha20(Box<ChaCha20Legacy>),
    Chacha20Ietf(Box<ChaCha20>),
}

impl Cipher {
    /// Enciphers or deciphers `data` in place; the next call goes on where this one ended.
    ///
    /// # Errors
    /// [`WireError::Exhausted`] when the keystream ends (after 256 GiB of [`StreamAlgorithm::Chacha20Ietf`] and
    /// [`StreamAlgorithm::Xchacha20`]); `data` is then unchanged.
    pub fn apply(&mut self, data: &mut [u8]) -> Result<(), WireError> {
        let applied = match &mut self.0 {
            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            Inner::SalsaWide(salsa) => salsa.apply(data),
            Inner::Salsa20(salsa) => salsa.try_apply_keystream(data).map_err(drop),
            Inner::Xsalsa20(salsa) => salsa.try_apply_keystream(data).map_err(drop),
            Inner::Chacha20(chacha) => chacha.try_apply_keystream(data).map_err(drop),
            Inner::Chacha20Ietf(chacha) => chacha.try_apply_keystream(data).map_err(drop),
            Inner::Table(..)
            | Inner::Rc4(_)
            | Inner::AesCtr(_)
            | Inner::Block(_)
            | Inner::Blowfish(_)
            | Inner::Cast5(_)
            | Inner::Des(_)
            | Inner::Rc2(_)
            | Inner::Seed(_) => {
                self.0.apply_endless(data);
                Ok(())
            }
        };
        applied.map_err(|()| WireError::Exhausted { what: "keystream" })
    }
}

impl Inner {
    /// The keystreams without an end.
    fn apply_endless(&mut self, data: &mut [u8]) {
        match self {
            Self::Table(tables, direction) => tables.apply(*direction, data),
            Self::Rc4(rc4) => rc4.apply(data),
            Self::AesCtr(ctr) => ctr.apply(data),
            Self::Block(mode) => mode.apply(data),
            Self::Blowfish(mode) => mode.apply(data),
            Self::Cast5(mode) => mode.apply(data),
            Self::Des(mode) => mode.apply(data),
            Self::Rc2(mode) => mode.apply(data),
            Self::Seed(mode) => mode.apply(data),
            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            Self::SalsaWide(_) => unreachable!("has an end"),
            Self::Salsa20(_) | Self::Xsalsa20(_) | Self::Chacha20(_) | Self::Chacha20Ietf(_) => {
                unreachable!("has an end")
            }
        }
    }
}

/// Shows no state.
impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cipher").finish_non_exhaustive()
    }
}
