use super::HEADER_LEN;
use crate::crypto::{NONCE_LEN, TAG_LEN};

/// The cipher of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KcpMethod {
    /// AES-128 in CFB.
    Aes128,
    /// AES-192 in CFB.
    Aes192,
    /// AES-256 in CFB.
    Aes256,
    /// Salsa20/20.
    Salsa20,
    /// Blowfish with 256-bit key in CFB.
    Blowfish,
    /// Twofish with 256-bit key in CFB.
    Twofish,
    /// CAST-128 in CFB.
    Cast5,
    /// DES-EDE3 with three keys in CFB.
    TripleDes,
    /// TEA of 8 cycles in CFB.
    Tea,
    /// XTEA in CFB.
    Xtea,
    /// SM4 in CFB.
    Sm4,
    /// A constant table.
    Xor,
    /// No cipher, but nonce and checksum.
    None,
    /// No layer at all.
    Null,
    /// AES-128-GCM.
    Aes128Gcm,
}

impl KcpMethod {
    /// Every method.
    pub const ALL: [Self; 15] = [
        Self::Aes128,
        Self::Aes192,
        Self::Aes256,
        Self::Salsa20,
        Self::Blowfish,
        Self::Twofish,
        Self::Cast5,
        Self::TripleDes,
        Self::Tea,
        Self::Xtea,
        Self::Sm4,
        Self::Xor,
        Self::None,
        Self::Null,
        Self::Aes128Gcm,
    ];

    /// The name that people write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128 => "aes-128",
            Self::Aes192 => "aes-192",
            Self::Aes256 => "aes",
            Self::Salsa20 => "salsa20",
            Self::Blowfish => "blowfish",
            Self::Twofish => "twofish",
            Self::Cast5 => "cast5",
            Self::TripleDes => "3des",
            Self::Tea => "tea",
            Self::Xtea => "xtea",
            Self::Sm4 => "sm4",
            Self::Xor => "xor",
            Self::None => "none",
            Self::Null => "null",
            Self::Aes128Gcm => "aes-128-gcm",
        }
    }

    /// The method of that name. (kcptun takes any other name for `aes`; that is for its dialect to do.)
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Bytes in front of the payload.
    pub fn head_len(self) -> usize {
        if self == Self::Null {
            0
        } else if self == Self::Aes128Gcm {
            NONCE_LEN
        } else {
            HEADER_LEN
        }
    }

    /// Bytes behind the payload.
    pub fn tail_len(self) -> usize {
        if self == Self::Aes128Gcm { TAG_LEN } else { 0 }
    }

    /// The part of the secret that is the key, in bytes.
    pub(super) fn key_len(self) -> usize {
        match self {
            Self::Aes128 | Self::Sm4 | Self::Cast5 | Self::Tea | Self::Xtea | Self::Aes128Gcm => 16,
            Self::Aes192 | Self::TripleDes => 24,
            Self::Aes256
            | Self::Salsa20
            | Self::Blowfish
            | Self::Twofish
            | Self::Xor
            | Self::None
            | Self::Null => 32,
        }
    }
}
