//! The crypt layer of kcptun: one datagram in, one datagram out, in place.
//!
//! ```text
//! block and stream ciphers, and `none`:  0 nonce[16]  16 crc32[4]  20 payload
//! aes-128-gcm:                           0 nonce[12]  12 sealed payload  last 16: tag
//! null:                                  0 payload
//! ```
//!
//! The checksum is CRC-32 (IEEE) of the payload. The cipher covers the whole datagram from byte 0: the random nonce
//! plays the part of an initialisation vector, while that of the mode is a constant. Salsa20 leaves bytes 0 to 7 in
//! clear and takes them for its nonce. Nothing but GCM authenticates, and nothing protects against replay: this is
//! what the peers speak.
//!
//! | name | key bytes | mode |
//! |---|--:|---|
//! | `aes` `aes-192` `aes-128` `twofish` `sm4` | 32, 24, 16, 32, 16 | CFB-128 |
//! | `blowfish` `cast5` `3des` `tea` `xtea` | 32, 16, 24, 16, 16 | CFB-64 |
//! | `salsa20` | 32 | stream |
//! | `xor` | 32 | table of 1500 bytes |
//! | `aes-128-gcm` | 16 | AEAD, no associated data |
//!
//! Checked against recorded sessions of old and new kcptun in every mode (`testdata/kcp`).

mod method;
mod qpp;
mod tea;

use std::fmt;
use std::ops::Range;

use aes::{Aes128Enc, Aes192Enc, Aes256Enc};
use blowfish::Blowfish;
use cast5::Cast5;
use cipher::{BlockCipherEncrypt, BlockSizeUser, KeyInit, KeyIvInit, StreamCipher};
use des::TdesEde3;
use salsa20::Salsa20;
use sm4::Sm4;
use twofish::Twofish;
use zeroize::Zeroizing;

use self::tea::{Tea, Xtea};
use crate::crypto::stream::{cfb_decrypt, cfb_encrypt};
use crate::crypto::{Aead, AeadAlgorithm, NONCE_LEN, TAG_LEN, pbkdf2_sha1};
use crate::wire::{Rng, WireError};

pub use self::method::KcpMethod;
pub use self::qpp::{Pads, Qpp};

/// Random bytes, then the checksum, in front of every datagram that is not sealed by an AEAD.
pub const HEADER_LEN: usize = CRC_AT + 4;

/// Offset of the checksum.
const CRC_AT: usize = 16;

/// Length of the field that Salsa20 takes for its nonce, and leaves in clear, in bytes.
const SALSA_NONCE_LEN: usize = 8;

/// Constant initialisation vector of the CFB modes; ciphers with 64-bit blocks take the first half.
const IV: [u8; 16] =
    [0xa7, 0x73, 0x4f, 0x9c, 0x12, 0xac, 0x1b, 0x01, 0xa4, 0x15, 0xf2, 0xc1, 0xfc, 0x78, 0xe6, 0x6b];

/// Length of the table of `xor`; what lies beyond stays in clear. No datagram of the peers is longer.
const XOR_TABLE_LEN: usize = 1500;

/// The secret that both sides derive from the key that people type: PBKDF2-HMAC-SHA1, salt `kcp-go`, 4096 rounds,
/// 32 bytes.
///
/// Takes milliseconds to derive.
#[derive(Clone)]
pub struct KcpSecret(Zeroizing<[u8; 32]>);

impl KcpSecret {
    /// Derives the secret from `key`, the bytes of the text as given.
    pub fn derive(key: &[u8]) -> Self {
        let mut secret = Zeroizing::new([0; 32]);
        pbkdf2_sha1(key, b"kcp-go", 4096, &mut secret[..]);
        Self(secret)
    }
}

/// Shows no key material.
impl fmt::Debug for KcpSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

/// A method with its key made ready. It holds no state: one serves both directions of all sessions.
pub struct Crypt {
    method: KcpMethod,
    cipher: Cipher,
}

/// Boxed where a key schedule is large.
enum Cipher {
    Aes128(Box<Aes128Enc>),
    Aes192(Box<Aes192Enc>),
    Aes256(Box<Aes256Enc>),
    Blowfish(Box<Blowfish>),
    Twofish(Box<Twofish>),
    Cast5(Box<Cast5>),
    TripleDes(Box<TdesEde3>),
    Tea(Tea),
    Xtea(Xtea),
    Sm4(Box<Sm4>),
    Salsa20(KcpSecret),
    Xor(Box<[u8; XOR_TABLE_LEN]>),
    Gcm(Box<Aead>),
    Plain,
}

impl Crypt {
    /// Expands the key.
    pub fn new(method: KcpMethod, secret: &KcpSecret) -> Self {
        let key = &secret.0[..method.key_len()];
        let cipher = match method {
            KcpMethod::Aes128 => Cipher::Aes128(keyed(key)),
            KcpMethod::Aes192 => Cipher::Aes192(keyed(key)),
            KcpMethod::Aes256 => Cipher::Aes256(keyed(key)),
            KcpMethod::Blowfish => Cipher::Blowfish(keyed(key)),
            KcpMethod::Twofish => Cipher::Twofish(keyed(key)),
            KcpMethod::Cast5 => Cipher::Cast5(keyed(key)),
            KcpMethod::TripleDes => Cipher::TripleDes(keyed(key)),
            KcpMethod::Tea => Cipher::Tea(*keyed(key)),
            KcpMethod::Xtea => Cipher::Xtea(*keyed(key)),
            KcpMethod::Sm4 => Cipher::Sm4(keyed(key)),
            KcpMethod::Salsa20 => Cipher::Salsa20(secret.clone()),
            KcpMethod::Xor => {
                let mut table = Box::new([0; XOR_TABLE_LEN]);
                pbkdf2_sha1(key, b"sH3CIVoF#rWLtJo6", 32, &mut table[..]);
                Cipher::Xor(table)
            }
            KcpMethod::Aes128Gcm => Cipher::Gcm(Box::new(Aead::new(AeadAlgorithm::Aes128Gcm, key))),
            KcpMethod::None | KcpMethod::Null => Cipher::Plain,
        };
        Self { method, cipher }
    }

    /// The method.
    pub fn method(&self) -> KcpMethod {
        self.method
    }

    /// Makes a datagram of `packet`, in place. Its first [`KcpMethod::head_len`] bytes and its last
    /// [`KcpMethod::tail_len`] are room for this layer, the payload lies between; the nonce is drawn from `rng`.
    ///
    /// # Panics
    /// If `packet` is shorter than head and tail together.
    pub fn seal(&self, packet: &mut [u8], rng: &mut dyn Rng) {
        if self.method == KcpMethod::Null {
            return;
        }
        if let Cipher::Gcm(aead) = &self.cipher {
            let (nonce, rest) = packet.split_first_chunk_mut::<NONCE_LEN>().expect("room for the nonce");
            let (payload, tag) = rest.split_last_chunk_mut::<TAG_LEN>().expect("room for the tag");
            rng.fill(nonce);
            aead.seal(*nonce, &[], payload, tag).expect("a datagram is short");
            return;
        }
        rng.fill(&mut packet[..CRC_AT]);
        let crc = crc32fast::hash(&packet[HEADER_LEN..]);
        packet[CRC_AT..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
        self.cipher.encrypt(packet);
    }

    /// Opens a datagram in place and returns where its payload lies.
    ///
    /// # Errors
    /// [`WireError::Truncated`] and [`WireError::Authentication`]; the content of `datagram` is then unspecified.
    /// The peers drop such datagrams without a word.
    pub fn open(&self, datagram: &mut [u8]) -> Result<Range<usize>, WireError> {
        let len = datagram.len();
        if len < self.method.head_len() + self.method.tail_len() {
            return Err(WireError::Truncated { what: "kcp packet header" });
        }
        if self.method == KcpMethod::Null {
            return Ok(0..len);
        }
        if let Cipher::Gcm(aead) = &self.cipher {
            let (nonce, sealed) = datagram.split_first_chunk_mut::<NONCE_LEN>().expect("length checked");
            let opened = aead.open(*nonce, &[], sealed);
            opened.map_err(|()| WireError::Authentication { what: "kcp packet" })?;
            return Ok(NONCE_LEN..len - TAG_LEN);
        }
        self.cipher.decrypt(datagram);
        let (header, payload) = datagram.split_at(HEADER_LEN);
        if crc32fast::hash(payload).to_le_bytes() != header[CRC_AT..] {
            return Err(WireError::Authentication { what: "kcp packet checksum" });
        }
        Ok(HEADER_LEN..len)
    }
}

/// Shows no key material.
impl fmt::Debug for Crypt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Crypt").field(&self.method).finish_non_exhaustive()
    }
}

fn keyed<C: KeyInit>(key: &[u8]) -> Box<C> {
    Box::new(C::new_from_slice(key).expect("key of the cipher's length"))
}

impl Cipher {
    fn encrypt(&self, data: &mut [u8]) {
        match self {
            Self::Aes128(cipher) => seal_cfb(&**cipher, data),
            Self::Aes192(cipher) => seal_cfb(&**cipher, data),
            Self::Aes256(cipher) => seal_cfb(&**cipher, data),
            Self::Blowfish(cipher) => seal_cfb(&**cipher, data),
            Self::Twofish(cipher) => seal_cfb(&**cipher, data),
            Self::Cast5(cipher) => seal_cfb(&**cipher, data),
            Self::TripleDes(cipher) => seal_cfb(&**cipher, data),
            Self::Tea(cipher) => seal_cfb(cipher, data),
            Self::Xtea(cipher) => seal_cfb(cipher, data),
            Self::Sm4(cipher) => seal_cfb(&**cipher, data),
            Self::Salsa20(_) | Self::Xor(_) | Self::Gcm(_) | Self::Plain => self.apply_keystream(data),
        }
    }

    fn decrypt(&self, data: &mut [u8]) {
        match self {
            Self::Aes128(cipher) => open_cfb(&**cipher, data),
            Self::Aes192(cipher) => open_cfb(&**cipher, data),
            Self::Aes256(cipher) => open_cfb(&**cipher, data),
            Self::Blowfish(cipher) => open_cfb(&**cipher, data),
            Self::Twofish(cipher) => open_cfb(&**cipher, data),
            Self::Cast5(cipher) => open_cfb(&**cipher, data),
            Self::TripleDes(cipher) => open_cfb(&**cipher, data),
            Self::Tea(cipher) => open_cfb(cipher, data),
            Self::Xtea(cipher) => open_cfb(cipher, data),
            Self::Sm4(cipher) => open_cfb(&**cipher, data),
            Self::Salsa20(_) | Self::Xor(_) | Self::Gcm(_) | Self::Plain => self.apply_keystream(data),
        }
    }

    /// The ciphers that are their own inverse.
    fn apply_keystream(&self, data: &mut [u8]) {
        if let Self::Salsa20(secret) = self {
            let (nonce, sealed) = data.split_at_mut(SALSA_NONCE_LEN);
            let mut salsa = Salsa20::new_from_slices(&secret.0[..], nonce).expect("lengths of Salsa20");
            salsa.apply_keystream(sealed);
        } else if let Self::Xor(table) = self {
            data.iter_mut().zip(table.iter()).for_each(|(byte, pad)| *byte ^= pad);
        }
    }
}

fn seal_cfb<C: BlockCipherEncrypt + BlockSizeUser>(cipher: &C, data: &mut [u8]) {
    cfb_encrypt(cipher, &IV[..C::block_size()], data);
}

fn open_cfb<C: BlockCipherEncrypt + BlockSizeUser>(cipher: &C, data: &mut [u8]) {
    cfb_decrypt(cipher, &IV[..C::block_size()], data);
}

/// First byte: method; the rest: a datagram. A payload that opens, sealed again, opens to the same payload.
#[doc(hidden)]
pub fn fuzz_crypt(data: &[u8]) {
    struct Zeros;
    impl Rng for Zeros {
        fn fill(&mut self, out: &mut [u8]) {
            out.fill(0);
        }
    }
    let Some((&method, datagram)) = data.split_first() else { return };
    let method = KcpMethod::ALL[usize::from(method) % KcpMethod::ALL.len()];
    let crypt = Crypt::new(method, &KcpSecret(Zeroizing::new([7; 32])));
    let mut opened = datagram.to_vec();
    let Ok(range) = crypt.open(&mut opened) else { return };
    let payload = opened[range.clone()].to_vec();
    crypt.seal(&mut opened, &mut Zeros);
    let again = crypt.open(&mut opened).expect("what was sealed opens");
    assert_eq!((&opened[again.clone()], again), (&payload[..], range));
}

#[cfg(test)]
mod tests;
