//! Keys: from what a user writes to what the codecs use.
//!
//! * stream and SIP004: `EVP_BytesToKey` of the password, or the key itself in base64 (shadowsocks-libev `--key`).
//! * SIP022: base64 of exactly as many bytes as the method's key has. SIP023 puts identity keys in front:
//!   `iPSK0:iPSK1:...:uPSK`.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use thiserror::Error;
use zeroize::Zeroizing;

use super::method::{AeadMethod, Method2022, ShadowsocksMethod};
use crate::crypto::{AesBlock, Blake3Context, XAead, evp_bytes_to_key, stream};

/// Why a text is no key for a method.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// A part of the key is no base64. Parts count from 1.
    #[error("key {part} is not base64")]
    NotBase64 {
        /// Number of the key between colons.
        part: usize,
    },
    /// A part of the key has the wrong length. Parts count from 1.
    #[error("key {part} for {method} must be {expected} bytes, got: {got}")]
    Length {
        /// Number of the key between colons.
        part: usize,
        /// The method's name.
        method: &'static str,
        /// The length in bytes that the method needs.
        expected: usize,
        /// The length in bytes that was found.
        got: usize,
    },
    /// Identity keys with a method that has none (SIP023 knows them for AES only).
    #[error("{method} takes one key without identity keys, got: {got}")]
    Identities {
        /// The method's name.
        method: &'static str,
        /// Number of keys that were found.
        got: usize,
    },
    /// An encrypted method without a password.
    #[error("password for {method} is empty")]
    Empty {
        /// The method's name.
        method: &'static str,
    },
    /// Two users with the same key, or a user with the server's.
    #[error("two users have the same key: {first} and {second}")]
    SameKey {
        /// Name of the user that came first.
        first: Box<str>,
        /// Name of the user that came second.
        second: Box<str>,
    },
}

const fn lenient(alphabet: &alphabet::Alphabet) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(alphabet, config)
}

const STANDARD: GeneralPurpose = lenient(&alphabet::STANDARD);
const URL_SAFE: GeneralPurpose = lenient(&alphabet::URL_SAFE);

/// A key of 16 to 32 bytes that is wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes {
    bytes: Zeroizing<[u8; 32]>,
    len: u8,
}

impl SecretBytes {
    /// Keeps `bytes`, of which there are at most 32.
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut kept = Zeroizing::new([0; 32]);
        kept[..bytes.len()].copy_from_slice(bytes);
        Self { bytes: kept, len: u8::try_from(bytes.len()).expect("at most 32") }
    }

    /// The bytes.
    pub fn expose(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Shows the length alone.
impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The key of a `none` or stream method.
#[derive(Debug, Clone, Default)]
pub struct StreamKey(pub(super) Option<stream::StreamCipherKey>);

impl StreamKey {
    pub(super) fn iv_len(&self) -> usize {
        self.0.as_ref().map_or(0, |key| key.algorithm().iv_len())
    }

    pub(super) fn cipher(&self, iv: &[u8], direction: stream::Direction) -> Option<stream::Cipher> {
        self.0.as_ref().map(|key| key.cipher(iv, direction))
    }
}

/// The master key of a SIP004 method.
#[derive(Debug, Clone)]
pub struct AeadKey {
    pub(super) method: AeadMethod,
    pub(super) master: SecretBytes,
}

/// The keys of a SIP022 method: identity keys from the outermost to the innermost, and the user's own.
///
/// On a server without users the list of identities is empty and `user` is the key that all clients share.
#[derive(Debug, Clone)]
pub struct Keys2022 {
    pub(super) method: Method2022,
    pub(super) identities: Vec<Sip022Psk>,
    pub(super) user: Sip022Psk,
}

/// A pre-shared key of SIP022 with all that is derived from it alone.
#[derive(Debug, Clone)]
pub struct Sip022Psk {
    pub(super) secret: SecretBytes,
    /// First 16 bytes of the key's BLAKE3 hash: how identity headers name it.
    pub(super) hash: [u8; 16],
    cipher: StoredCipher,
}

/// A cipher as a key keeps it. Tables of users are long, and few of them send datagrams: their key schedules are made when
/// the first one comes.
#[derive(Debug, Clone)]
enum StoredCipher {
    Header(OnceLock<Arc<AesBlock>>),
    Whole(Box<XAead>),
}

/// The datagram cipher of a pre-shared key: AES on the separate header, or XChaCha on everything.
#[derive(Debug, Clone, Copy)]
pub(super) enum DatagramCipher<'a> {
    Header(&'a AesBlock),
    Whole(&'a XAead),
}

impl Sip022Psk {
    fn new(method: Method2022, key: &[u8]) -> Self {
        let cipher = match method.datagram_algorithm() {
            None => StoredCipher::Header(OnceLock::new()),
            Some(algorithm) => StoredCipher::Whole(Box::new(XAead::new(algorithm, key))),
        };
        let hash = *blake3::hash(key).as_bytes().first_chunk().expect("16 of 32 bytes");
        Self { secret: SecretBytes::new(key), hash, cipher }
    }

    /// The cipher of datagrams.
    pub(super) fn datagrams(&self) -> DatagramCipher<'_> {
        match &self.cipher {
            StoredCipher::Header(made) => {
                DatagramCipher::Header(made.get_or_init(|| Arc::new(AesBlock::new(self.secret.expose()))))
            }
            StoredCipher::Whole(aead) => DatagramCipher::Whole(aead),
        }
    }
}

/// A method together with its key.
#[derive(Debug, Clone)]
pub enum MethodKey {
    /// `none` and the stream ciphers.
    Stream(StreamKey),
    /// SIP004.
    Aead(AeadKey),
    /// SIP022.
    Aead2022(Arc<Keys2022>),
}

impl MethodKey {
    /// Makes the key of `method` from what stands in a configuration as password.
    ///
    /// # Errors
    /// [`KeyError`]; for SIP022 it names the length that was expected and the one found.
    pub fn from_password(method: ShadowsocksMethod, password: &str) -> Result<Self, KeyError> {
        if password.is_empty() && method != ShadowsocksMethod::None {
            return Err(KeyError::Empty { method: method.name() });
        }
        if let ShadowsocksMethod::Aead2022(method) = method {
            return Ok(Self::Aead2022(Arc::new(Keys2022::parse(method, password)?)));
        }
        if method == ShadowsocksMethod::Stream(stream::StreamAlgorithm::Table) {
            return Ok(Self::from_bytes(method, password.as_bytes()));
        }
        let mut key = Zeroizing::new([0; 32]);
        let key = &mut key[..method.key_len()];
        evp_bytes_to_key(password.as_bytes(), key);
        Ok(Self::from_bytes(method, key))
    }

    /// Makes the key of a stream or SIP004 `method` from base64 of the key itself (either alphabet, padding
    /// optional); of longer keys the start is used (observed from shadowsocks-libev 3.3.5 `--key`).
    ///
    /// # Errors
    /// [`KeyError`] for anything else, and always for SIP022 keys of the wrong length.
    pub fn from_base64(method: ShadowsocksMethod, text: &str) -> Result<Self, KeyError> {
        if let ShadowsocksMethod::Aead2022(_) = method {
            return Self::from_password(method, text);
        }
        let url_safe = text.replace('+', "-").replace('/', "_");
        let bytes = URL_SAFE.decode(url_safe).map_err(|_| KeyError::NotBase64 { part: 1 })?;
        let bytes = Zeroizing::new(bytes);
        let expected = method.key_len();
        let short = KeyError::Length { part: 1, method: method.name(), expected, got: bytes.len() };
        Ok(Self::from_bytes(method, bytes.get(..expected).ok_or(short)?))
    }

    /// `key` has the method's length; never for SIP022.
    fn from_bytes(method: ShadowsocksMethod, key: &[u8]) -> Self {
        match method {
            ShadowsocksMethod::None => Self::Stream(StreamKey(None)),
            ShadowsocksMethod::Stream(algorithm) => {
                Self::Stream(StreamKey(Some(stream::StreamCipherKey::new(algorithm, key))))
            }
            ShadowsocksMethod::Aead(method) => Self::Aead(AeadKey { method, master: SecretBytes::new(key) }),
            ShadowsocksMethod::Aead2022(method) => {
                let user = Sip022Psk::new(method, key);
                Self::Aead2022(Arc::new(Keys2022 { method, identities: Vec::new(), user }))
            }
        }
    }

    /// The method.
    pub fn method(&self) -> ShadowsocksMethod {
        match self {
            Self::Stream(StreamKey(None)) => ShadowsocksMethod::None,
            Self::Stream(StreamKey(Some(key))) => ShadowsocksMethod::Stream(key.algorithm()),
            Self::Aead(key) => ShadowsocksMethod::Aead(key.method),
            Self::Aead2022(keys) => ShadowsocksMethod::Aead2022(keys.method),
        }
    }
}

impl Keys2022 {
    /// Reads `uPSK` or `iPSK0:...:uPSK`.
    ///
    /// # Errors
    /// [`KeyError`] with the number of the part at fault.
    pub fn parse(method: Method2022, text: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for (part, text) in (1..).zip(text.split(':')) {
            keys.push(parse_psk(method, text, part)?);
        }
        if keys.len() > 1 && !method.has_identities() {
            return Err(KeyError::Identities {
                method: ShadowsocksMethod::Aead2022(method).name(),
                got: keys.len(),
            });
        }
        let user = keys.pop().expect("split yields at least one part");
        Ok(Self { method, identities: keys, user })
    }

    /// The method.
    pub fn method(&self) -> Method2022 {
        self.method
    }

    /// Number of identity keys in front of the user's own.
    pub fn identities(&self) -> usize {
        self.identities.len()
    }
}

fn parse_psk(method: Method2022, text: &str, part: usize) -> Result<Sip022Psk, KeyError> {
    let bytes = STANDARD.decode(text.trim()).map_err(|_| KeyError::NotBase64 { part })?;
    let bytes = Zeroizing::new(bytes);
    let expected = method.key_len();
    if bytes.len() != expected {
        let method = ShadowsocksMethod::Aead2022(method).name();
        return Err(KeyError::Length { part, method, expected, got: bytes.len() });
    }
    Ok(Sip022Psk::new(method, &bytes))
}

/// Number of a user in a [`IdentityKeys`] table, in the order of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(pub usize);

/// The keys that an identity header can name: the users of a server, or the next hops of a relay (SIP023).
///
/// Tables are long, and users are few at a time: names stay with the configuration.
#[derive(Debug, Clone, Default)]
pub struct IdentityKeys {
    keys: Vec<Sip022Psk>,
    /// Places in `keys`.
    by_hash: HashMap<[u8; 16], u32>,
}

impl IdentityKeys {
    /// A table of names and base64 keys.
    ///
    /// # Errors
    /// [`KeyError`]; part numbers are those of the users, from 1.
    pub fn new<'a>(
        method: Method2022,
        users: impl IntoIterator<Item = (&'a str, &'a str), IntoIter: Clone>,
    ) -> Result<Self, KeyError> {
        if !method.has_identities() {
            return Err(KeyError::Identities { method: ShadowsocksMethod::Aead2022(method).name(), got: 2 });
        }
        let users = users.into_iter();
        let count = users.size_hint().0;
        let mut table = Self { keys: Vec::with_capacity(count), by_hash: HashMap::with_capacity(count) };
        for (place, (name, key)) in (0..).zip(users.clone()) {
            let psk = parse_psk(method, key, table.keys.len() + 1)?;
            if let Some(first) = table.by_hash.insert(psk.hash, place) {
                let first = users.clone().nth(first as usize).map_or("", |(name, _)| name);
                return Err(KeyError::SameKey { first: first.into(), second: name.into() });
            }
            table.keys.push(psk);
        }
        Ok(table)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True when the table names nobody: identity headers are then neither expected nor understood.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn find(&self, hash: &[u8; 16]) -> Option<UserId> {
        self.by_hash.get(hash).map(|place| UserId(*place as usize))
    }

    pub(super) fn psk(&self, id: UserId) -> &Sip022Psk {
        &self.keys[id.0]
    }
}

/// The keys of a server of any generation.
#[derive(Debug, Clone)]
pub struct ServerKey {
    pub(super) key: MethodKey,
    pub(super) users: Arc<IdentityKeys>,
}

impl ServerKey {
    /// A server with one key for all.
    pub fn new(key: MethodKey) -> Self {
        Self { key, users: Arc::new(IdentityKeys::default()) }
    }

    /// A SIP022 server whose clients send identity headers, under `key`'s own key, that name one of `users`.
    pub fn with_users(key: Arc<Keys2022>, users: Arc<IdentityKeys>) -> Self {
        Self { key: MethodKey::Aead2022(key), users }
    }

    /// The server's own key.
    pub fn key(&self) -> &MethodKey {
        &self.key
    }

    /// The users, for sharing.
    pub fn shared_users(&self) -> &Arc<IdentityKeys> {
        &self.users
    }

    /// The table of users, empty for a server with one key.
    pub fn users(&self) -> &IdentityKeys {
        &self.users
    }

    /// The method.
    pub fn method(&self) -> ShadowsocksMethod {
        self.key.method()
    }
}

/// SIP022: session keys of streams and datagrams.
pub(super) fn session_key(psk: &Sip022Psk, salt: &[u8]) -> Zeroizing<[u8; 32]> {
    static CONTEXT: std::sync::LazyLock<Blake3Context> =
        std::sync::LazyLock::new(|| Blake3Context::new("shadowsocks 2022 session subkey"));
    Zeroizing::new(CONTEXT.derive(&[psk.secret.expose(), salt]))
}

/// SIP023: the key of a stream's identity header.
pub(super) fn identity_key(psk: &Sip022Psk, salt: &[u8]) -> Zeroizing<[u8; 32]> {
    static CONTEXT: std::sync::LazyLock<Blake3Context> =
        std::sync::LazyLock::new(|| Blake3Context::new("shadowsocks 2022 identity subkey"));
    Zeroizing::new(CONTEXT.derive(&[psk.secret.expose(), salt]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(name: &str) -> ShadowsocksMethod {
        name.parse().unwrap()
    }

    fn error(name: &str, password: &str) -> String {
        MethodKey::from_password(method(name), password).unwrap_err().to_string()
    }

    #[test]
    fn psk_errors_name_both_lengths() {
        let good = "jXWNLnzYRI0XRuBfcqLL8A==";
        assert!(MethodKey::from_password(method("2022-blake3-aes-128-gcm"), good).is_ok());
        assert!(
            MethodKey::from_password(method("2022-blake3-aes-128-gcm"), good.trim_end_matches('=')).is_ok()
        );
        assert_eq!(
            error("2022-blake3-aes-256-gcm", good),
            "key 1 for 2022-blake3-aes-256-gcm must be 32 bytes, got: 16"
        );
        assert_eq!(
            error("2022-blake3-aes-128-gcm", &format!("{good}:AAAA")),
            "key 2 for 2022-blake3-aes-128-gcm must be 16 bytes, got: 3"
        );
        assert_eq!(error("2022-blake3-aes-128-gcm", "secret password"), "key 1 is not base64");
        assert_eq!(error("2022-blake3-aes-128-gcm", ""), "password for 2022-blake3-aes-128-gcm is empty");
        let chacha = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        assert_eq!(
            error("2022-blake3-chacha20-poly1305", &format!("{chacha}:{chacha}")),
            "2022-blake3-chacha20-poly1305 takes one key without identity keys, got: 2"
        );
    }

    #[test]
    fn raw_keys() {
        let method = method("aes-128-gcm");
        for text in ["_-8DBAUGBwgJCgsMDQ4PEA", "/+8DBAUGBwgJCgsMDQ4PEA==", "_-8DBAUGBwgJCgsMDQ4PEBES"] {
            let MethodKey::Aead(key) = MethodKey::from_base64(method, text).unwrap() else {
                panic!("not AEAD")
            };
            assert_eq!(key.master.expose()[..3], [0xff, 0xef, 3], "{text}");
            assert_eq!(key.master.expose().len(), 16);
        }
        let error = MethodKey::from_base64(method, "AAAA").unwrap_err();
        assert_eq!(error.to_string(), "key 1 for aes-128-gcm must be 16 bytes, got: 3");
    }

    #[test]
    fn users_by_hash() {
        let m = Method2022::Aes128Gcm;
        let (a, b) = ("AAAAAAAAAAAAAAAAAAAAAA==", "AQAAAAAAAAAAAAAAAAAAAA==");
        let users = IdentityKeys::new(m, [("alice", a), ("bob", b)]).unwrap();
        let hash: [u8; 16] = *blake3::hash(&[0; 16]).as_bytes().first_chunk().unwrap();
        assert_eq!(users.find(&hash), Some(UserId(0)));
        assert_eq!(users.find(&[0; 16]), None);
        let error = IdentityKeys::new(m, [("alice", a), ("bob", a)]).unwrap_err();
        assert_eq!(error.to_string(), "two users have the same key: alice and bob");
        assert!(IdentityKeys::new(Method2022::Chacha8Poly1305, []).is_err());
    }

    #[test]
    fn nothing_secret_is_shown() {
        let key = MethodKey::from_password(method("aes-128-gcm"), "correct horse").unwrap();
        let key2022 =
            MethodKey::from_password(method("2022-blake3-aes-128-gcm"), "jXWNLnzYRI0XRuBfcqLL8A==").unwrap();
        for shown in [format!("{key:?}"), format!("{key2022:?}")] {
            assert!(!shown.contains("141, 117") && !shown.contains("156, 194"), "{shown}");
        }
    }
}
