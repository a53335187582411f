//! Names of methods and what stands behind them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::crypto::stream::{self, BlockCipher, BlockMode};
use crate::crypto::{AeadAlgorithm, XAlgorithm};

/// A Shadowsocks method ("cipher").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShadowsocksMethod {
    /// No encryption at all.
    None,
    /// A bare stream cipher: no authentication, for old servers only.
    Stream(stream::StreamAlgorithm),
    /// SIP004: AEAD chunks under a subkey per connection.
    Aead(AeadMethod),
    /// SIP022: AEAD with headers, timestamps and replay protection.
    Aead2022(Method2022),
}

/// The AEAD of a SIP004 method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AeadMethod {
    /// One with 12-byte nonces.
    Short(AeadAlgorithm),
    /// One with 24-byte nonces.
    Long(XAlgorithm),
}

/// A SIP022 method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method2022 {
    /// `2022-blake3-aes-128-gcm`
    Aes128Gcm,
    /// `2022-blake3-aes-256-gcm`
    Aes256Gcm,
    /// `2022-blake3-chacha20-poly1305`
    Chacha20Poly1305,
    /// `2022-blake3-chacha8-poly1305`
    Chacha8Poly1305,
}

/// Wire format of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Generation {
    /// Plaintext.
    None,
    /// IV and keystream.
    Stream,
    /// SIP004.
    Aead,
    /// SIP022.
    Aead2022,
}

/// A name that no method has.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown shadowsocks method: {0}")]
pub struct UnknownMethod(pub Box<str>);

const fn block(cipher: BlockCipher, mode: BlockMode) -> ShadowsocksMethod {
    ShadowsocksMethod::Stream(stream::StreamAlgorithm::Block(cipher, mode))
}

const fn aead(algorithm: AeadAlgorithm) -> ShadowsocksMethod {
    ShadowsocksMethod::Aead(AeadMethod::Short(algorithm))
}

/// Every name, canonical ones before their aliases.
const NAMES: &[(&str, ShadowsocksMethod)] = {
    use BlockCipher::{Aes128, Aes192, Aes256, Camellia128, Camellia192, Camellia256};
    use BlockMode::{Cfb, Cfb1, Cfb8, Ctr, Ofb};
    use stream::StreamAlgorithm;
    &[
        ("2022-blake3-aes-128-gcm", ShadowsocksMethod::Aead2022(Method2022::Aes128Gcm)),
        ("2022-blake3-aes-256-gcm", ShadowsocksMethod::Aead2022(Method2022::Aes256Gcm)),
        ("2022-blake3-chacha20-poly1305", ShadowsocksMethod::Aead2022(Method2022::Chacha20Poly1305)),
        ("2022-blake3-chacha8-poly1305", ShadowsocksMethod::Aead2022(Method2022::Chacha8Poly1305)),
        ("aes-128-gcm", aead(AeadAlgorithm::Aes128Gcm)),
        ("aes-192-gcm", aead(AeadAlgorithm::Aes192Gcm)),
        ("aes-256-gcm", aead(AeadAlgorithm::Aes256Gcm)),
        ("chacha20-ietf-poly1305", aead(AeadAlgorithm::Chacha20Poly1305)),
        ("xchacha20-ietf-poly1305", ShadowsocksMethod::Aead(AeadMethod::Long(XAlgorithm::Xchacha20Poly1305))),
        ("aes-128-ccm", aead(AeadAlgorithm::Aes128Ccm)),
        ("aes-256-ccm", aead(AeadAlgorithm::Aes256Ccm)),
        ("aes-128-gcm-siv", aead(AeadAlgorithm::Aes128GcmSiv)),
        ("aes-256-gcm-siv", aead(AeadAlgorithm::Aes256GcmSiv)),
        ("sm4-gcm", aead(AeadAlgorithm::Sm4Gcm)),
        ("sm4-ccm", aead(AeadAlgorithm::Sm4Ccm)),
        ("none", ShadowsocksMethod::None),
        ("plain", ShadowsocksMethod::None),
        ("table", ShadowsocksMethod::Stream(StreamAlgorithm::Table)),
        ("rc4", ShadowsocksMethod::Stream(StreamAlgorithm::Rc4)),
        ("rc4-md5", ShadowsocksMethod::Stream(StreamAlgorithm::Rc4Md5)),
        ("bf-cfb", ShadowsocksMethod::Stream(StreamAlgorithm::BlowfishCfb)),
        ("salsa20", ShadowsocksMethod::Stream(StreamAlgorithm::Salsa20)),
        ("chacha20", ShadowsocksMethod::Stream(StreamAlgorithm::Chacha20)),
        ("chacha20-ietf", ShadowsocksMethod::Stream(StreamAlgorithm::Chacha20Ietf)),
        ("xchacha20", ShadowsocksMethod::Stream(StreamAlgorithm::Xchacha20)),
        ("aes-128-ctr", block(Aes128, Ctr)),
        ("aes-192-ctr", block(Aes192, Ctr)),
        ("aes-256-ctr", block(Aes256, Ctr)),
        ("aes-128-cfb", block(Aes128, Cfb)),
        ("aes-192-cfb", block(Aes192, Cfb)),
        ("aes-256-cfb", block(Aes256, Cfb)),
        ("aes-128-cfb1", block(Aes128, Cfb1)),
        ("aes-192-cfb1", block(Aes192, Cfb1)),
        ("aes-256-cfb1", block(Aes256, Cfb1)),
        ("aes-128-cfb8", block(Aes128, Cfb8)),
        ("aes-192-cfb8", block(Aes192, Cfb8)),
        ("aes-256-cfb8", block(Aes256, Cfb8)),
        ("aes-128-cfb128", block(Aes128, Cfb)),
        ("aes-192-cfb128", block(Aes192, Cfb)),
        ("aes-256-cfb128", block(Aes256, Cfb)),
        ("aes-128-ofb", block(Aes128, Ofb)),
        ("aes-192-ofb", block(Aes192, Ofb)),
        ("aes-256-ofb", block(Aes256, Ofb)),
        ("camellia-128-ctr", block(Camellia128, Ctr)),
        ("camellia-192-ctr", block(Camellia192, Ctr)),
        ("camellia-256-ctr", block(Camellia256, Ctr)),
        ("camellia-128-cfb", block(Camellia128, Cfb)),
        ("camellia-192-cfb", block(Camellia192, Cfb)),
        ("camellia-256-cfb", block(Camellia256, Cfb)),
        ("camellia-128-cfb1", block(Camellia128, Cfb1)),
        ("camellia-192-cfb1", block(Camellia192, Cfb1)),
        ("camellia-256-cfb1", block(Camellia256, Cfb1)),
        ("camellia-128-cfb8", block(Camellia128, Cfb8)),
        ("camellia-192-cfb8", block(Camellia192, Cfb8)),
        ("camellia-256-cfb8", block(Camellia256, Cfb8)),
        ("camellia-128-cfb128", block(Camellia128, Cfb)),
        ("camellia-192-cfb128", block(Camellia192, Cfb)),
        ("camellia-256-cfb128", block(Camellia256, Cfb)),
        ("camellia-128-ofb", block(Camellia128, Ofb)),
        ("camellia-192-ofb", block(Camellia192, Ofb)),
        ("camellia-256-ofb", block(Camellia256, Ofb)),
    ]
};

impl ShadowsocksMethod {
    /// Every method once, in the order of preference within its generation.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().filter(|(name, method)| method.name() == *name).map(|(_, method)| *method)
    }

    /// The canonical name.
    pub fn name(self) -> &'static str {
        let found = NAMES.iter().find(|(_, method)| *method == self);
        found.map_or("unnamed", |(name, _)| name)
    }

    /// Wire format of the method.
    pub fn generation(self) -> Generation {
        match self {
            Self::None => Generation::None,
            Self::Stream(_) => Generation::Stream,
            Self::Aead(_) => Generation::Aead,
            Self::Aead2022(_) => Generation::Aead2022,
        }
    }

    /// Length of the master key in bytes: 0 for `none`, and for `table`, which uses the password itself.
    pub fn key_len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Stream(algorithm) => algorithm.key_len(),
            Self::Aead(method) => method.key_len(),
            Self::Aead2022(method) => method.key_len(),
        }
    }

    /// Length in bytes of the IV (stream) or salt (AEAD: as long as the key) in front of a connection.
    pub fn salt_len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Stream(algorithm) => algorithm.iv_len(),
            Self::Aead(_) | Self::Aead2022(_) => self.key_len(),
        }
    }

    /// True for methods that protect nothing against tampering, kept only for servers that cannot be changed.
    pub fn is_deprecated(self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

impl AeadMethod {
    /// Length of master key, subkey and salt in bytes.
    pub fn key_len(self) -> usize {
        match self {
            Self::Short(algorithm) => algorithm.key_len(),
            Self::Long(_) => 32,
        }
    }
}

impl Method2022 {
    /// Length of keys and salts in bytes.
    pub fn key_len(self) -> usize {
        self.algorithm().key_len()
    }

    /// The AEAD of streams, and of the datagrams of the AES methods.
    pub fn algorithm(self) -> AeadAlgorithm {
        match self {
            Self::Aes128Gcm => AeadAlgorithm::Aes128Gcm,
            Self::Aes256Gcm => AeadAlgorithm::Aes256Gcm,
            Self::Chacha20Poly1305 => AeadAlgorithm::Chacha20Poly1305,
            Self::Chacha8Poly1305 => AeadAlgorithm::Chacha8Poly1305,
        }
    }

    /// The AEAD of datagrams for methods without a separate header.
    pub fn datagram_algorithm(self) -> Option<XAlgorithm> {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => None,
            Self::Chacha20Poly1305 => Some(XAlgorithm::Xchacha20Poly1305),
            Self::Chacha8Poly1305 => Some(XAlgorithm::Xchacha8Poly1305),
        }
    }

    /// SIP023: only the AES methods have identity headers.
    pub fn has_identities(self) -> bool {
        self.datagram_algorithm().is_none()
    }
}

/// Any case, as shadowsocks-rust does.
impl FromStr for ShadowsocksMethod {
    type Err = UnknownMethod;

    fn from_str(text: &str) -> Result<Self, UnknownMethod> {
        let found = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|(_, method)| *method).ok_or_else(|| UnknownMethod(text.into()))
    }
}

impl fmt::Display for ShadowsocksMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, method) in NAMES {
            assert_eq!(name.parse(), Ok(*method), "{name}");
            assert_eq!(name.to_uppercase().parse(), Ok(*method), "{name}");
            assert_eq!(method.name().parse(), Ok(*method), "{name}");
        }
        assert_eq!(ShadowsocksMethod::all().count(), NAMES.len() - 7, "plain and six cfb128 are aliases");
        assert_eq!("plain".parse(), Ok(ShadowsocksMethod::None));
        assert_eq!("aes-128-cfb128".parse::<ShadowsocksMethod>().unwrap().name(), "aes-128-cfb");
        assert_eq!("idea-cfb".parse::<ShadowsocksMethod>(), Err(UnknownMethod("idea-cfb".into())));
        assert_eq!("".parse::<ShadowsocksMethod>(), Err(UnknownMethod("".into())));
    }

    #[test]
    fn lengths_of_the_table() {
        for (name, key, salt) in [
            ("none", 0, 0),
            ("table", 0, 0),
            ("rc4", 16, 0),
            ("rc4-md5", 16, 16),
            ("aes-192-ctr", 24, 16),
            ("camellia-256-cfb8", 32, 16),
            ("bf-cfb", 16, 8),
            ("salsa20", 32, 8),
            ("chacha20", 32, 8),
            ("chacha20-ietf", 32, 12),
            ("xchacha20", 32, 24),
            ("aes-128-gcm", 16, 16),
            ("aes-192-gcm", 24, 24),
            ("aes-256-gcm", 32, 32),
            ("xchacha20-ietf-poly1305", 32, 32),
            ("sm4-ccm", 16, 16),
            ("2022-blake3-aes-128-gcm", 16, 16),
            ("2022-blake3-chacha8-poly1305", 32, 32),
        ] {
            let method: ShadowsocksMethod = name.parse().unwrap();
            assert_eq!((method.key_len(), method.salt_len()), (key, salt), "{name}");
        }
    }

    #[test]
    fn generations() {
        for method in ShadowsocksMethod::all() {
            assert_eq!(method.is_deprecated(), method.generation() == Generation::Stream, "{method}");
            assert_eq!(method.name().starts_with("2022-"), method.generation() == Generation::Aead2022);
        }
    }
}
