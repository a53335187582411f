//! Keys of servers and of their users.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::{SsrMethod, SsrProtocol};
use crate::crypto::stream::{self, Cipher, Direction, StreamAlgorithm};
use crate::crypto::{evp_bytes_to_key, md5, sha1, siphash13};
use crate::wire::Rng;

/// The key of a server, made from its password. Clones share it.
#[derive(Clone)]
pub struct SsrKey(Arc<KeyInner>);

struct KeyInner {
    method: SsrMethod,
    /// K in the documents: the key of the cipher and of every protocol and obfs.
    bytes: Zeroizing<Box<[u8]>>,
    cipher: Option<stream::StreamCipherKey>,
}

impl SsrKey {
    /// Derives the key of `method` from `password`, which may be empty.
    pub fn from_password(method: SsrMethod, password: &[u8]) -> Self {
        Self::new(method, password, password)
    }

    /// As [`SsrKey::from_password`], but the method `table` sorts its table from the derived key, as the Python server does.
    /// The C programs sort it from the password, and the two do not understand each other.
    pub fn with_python_table(method: SsrMethod, password: &[u8]) -> Self {
        let mut derived = Zeroizing::new([0; 16]);
        evp_bytes_to_key(password, &mut derived[..]);
        Self::new(method, password, &derived[..])
    }

    fn new(method: SsrMethod, password: &[u8], table: &[u8]) -> Self {
        let mut bytes = Zeroizing::new(vec![0; method.key_len()].into_boxed_slice());
        evp_bytes_to_key(password, &mut bytes);
        let cipher = match method {
            SsrMethod::None => None,
            SsrMethod::Stream(StreamAlgorithm::Table) => {
                Some(stream::StreamCipherKey::new(StreamAlgorithm::Table, table))
            }
            SsrMethod::Stream(algorithm) => Some(stream::StreamCipherKey::new(algorithm, &bytes)),
        };
        Self(Arc::new(KeyInner { method, bytes, cipher }))
    }

    /// The method that the key is for.
    pub fn method(&self) -> SsrMethod {
        self.0.method
    }

    /// The key itself, at least 8 bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// A cipher at the start of its keystream; `None` for the method `none`.
    pub(super) fn cipher(&self, iv: &[u8], direction: Direction) -> Option<Cipher> {
        self.0.cipher.as_ref().map(|key| key.cipher(iv, direction))
    }
}

/// Shows no key material.
impl fmt::Debug for SsrKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.0.method).finish_non_exhaustive()
    }
}

/// Longest IV of any method, in bytes.
pub(super) const MAX_IV_LEN: usize = 24;

/// The IV of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Iv {
    bytes: [u8; MAX_IV_LEN],
    len: u8,
}

impl Iv {
    pub(super) fn draw(len: usize, rng: &mut dyn Rng) -> Self {
        let mut bytes = [0; MAX_IV_LEN];
        if len > 0 {
            rng.fill(&mut bytes[..len]);
        }
        Self { bytes, len: u8::try_from(len).expect("IVs have at most 24 bytes") }
    }

    pub(super) fn from_slice(iv: &[u8]) -> Self {
        let mut bytes = [0; MAX_IV_LEN];
        bytes[..iv.len()].copy_from_slice(iv);
        Self { bytes, len: u8::try_from(iv.len()).expect("IVs have at most 24 bytes") }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(super) fn len(&self) -> usize {
        self.len.into()
    }
}

/// The IV of the client's direction, which the protocol authenticates with: the cipher layer knows it first and hands it
/// on through this. Clones share it.
#[derive(Debug, Clone)]
pub struct SharedIv(Arc<OnceLock<Iv>>);

impl SharedIv {
    /// Not known yet.
    pub(super) fn unknown() -> Self {
        Self(Arc::new(OnceLock::new()))
    }

    pub(super) fn known(iv: Iv) -> Self {
        Self(Arc::new(OnceLock::from(iv)))
    }

    /// Keeps the first one.
    pub(super) fn set(&self, iv: Iv) {
        self.0.get_or_init(|| iv);
    }

    /// The IV once it is known: empty for methods without one.
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.0.get().map(Iv::as_slice)
    }
}

/// The credential of a user, made ready for one protocol.
pub(super) struct UserKey {
    /// U in the documents.
    secret: Zeroizing<Box<[u8]>>,
    base64: Zeroizing<Box<str>>,
    /// AES key of the header.
    header: Zeroizing<[u8; 16]>,
}

impl UserKey {
    fn new(protocol: SsrProtocol, secret: &[u8]) -> Self {
        let base64 = Zeroizing::new(STANDARD.encode(secret).into_boxed_str());
        let header = Zeroizing::new(md5(&[base64.as_bytes(), protocol.name().as_bytes()]));
        Self { secret: Zeroizing::new(secret.into()), base64, header }
    }

    /// The key of clients without a user: the server's.
    pub(super) fn of_server(protocol: SsrProtocol, key: &SsrKey) -> Self {
        Self::new(protocol, key.bytes())
    }

    /// The key of a user with `secret`.
    pub(super) fn of_user(protocol: SsrProtocol, key: &SsrKey, secret: &[u8]) -> Self {
        match protocol {
            SsrProtocol::AuthAes128Md5 => Self::new(protocol, &md5(&[secret])),
            SsrProtocol::AuthAes128Sha1 => Self::new(protocol, &sha1(secret)),
            SsrProtocol::AuthAes128Fast => Self::new(protocol, &siphash13(&first_16(key.bytes()), secret)),
            SsrProtocol::AuthChain(_) => Self::new(protocol, secret),
            SsrProtocol::Origin
            | SsrProtocol::VerifyDeflate
            | SsrProtocol::VerifySimple
            | SsrProtocol::VerifySha1
            | SsrProtocol::AuthSha1
            | SsrProtocol::AuthSha1V2
            | SsrProtocol::AuthSha1V4
            | SsrProtocol::AuthAes128 => Self::of_server(protocol, key),
        }
    }

    pub(super) fn secret(&self) -> &[u8] {
        &self.secret
    }

    pub(super) fn base64(&self) -> &str {
        &self.base64
    }

    pub(super) fn header(&self) -> &[u8; 16] {
        #[cfg(test)]
        tests::TRIED.with(|tried| tried.set(tried.get() + 1));
        &self.header
    }
}

/// The first 16 bytes of `bytes`, with zeros where there are fewer.
pub(super) fn first_16(bytes: &[u8]) -> [u8; 16] {
    let mut first = [0; 16];
    let len = bytes.len().min(16);
    first[..len].copy_from_slice(&bytes[..len]);
    first
}

/// The users of one server, found by id. Made once, shared by all connections.
pub struct SsrUserKeys {
    protocol: SsrProtocol,
    keys: HashMap<u32, Arc<UserKey>>,
}

impl SsrUserKeys {
    /// The users of a server with `protocol` and `key`: id and secret of each. A later entry replaces an earlier one
    /// with the same id. Protocols without users ([`SsrProtocol::has_users`]) take no notice of the table.
    pub fn new<'a>(
        protocol: SsrProtocol,
        key: &SsrKey,
        users: impl IntoIterator<Item = (u32, &'a [u8])>,
    ) -> Self {
        let ready = |(id, secret)| (id, Arc::new(UserKey::of_user(protocol, key, secret)));
        Self { protocol, keys: users.into_iter().map(ready).collect() }
    }

    /// Number of users.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none: then no client can connect.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The protocol that the keys are for.
    pub fn protocol(&self) -> SsrProtocol {
        self.protocol
    }

    pub(super) fn find(&self, id: u32) -> Option<&Arc<UserKey>> {
        self.keys.get(&id)
    }
}

/// Shows no key material.
impl fmt::Debug for SsrUserKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("protocol", &self.protocol).field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Instant;

    use super::{SsrKey, SsrUserKeys};
    use crate::buf::RecvBuf;
    use crate::crypto::evp_bytes_to_key;
    use crate::ssr::protocol::{SsrClientConfig, SsrClientStream, SsrServerConfig, SsrServerStream, State};
    use crate::ssr::ssr_fuzz::testing::{Zeros, hex, vectors};
    use crate::ssr::{CipherLayer, Clients, SsrProtocol};
    use crate::wire::{Layer, Opened, WallClock};

    thread_local! {
        /// Keys of users with which a header was made or tried.
        pub(super) static TRIED: Cell<usize> = const { Cell::new(0) };
    }

    /// A server takes the key of the id in the header for every client: it tries no other.
    #[test]
    fn a_user_among_ten_thousand_is_found_with_one_key() {
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let now = Instant::now();
        let key = SsrKey::from_password("none".parse().unwrap(), b"password");
        let clock = WallClock::new(now, 1_800_000_000);
        let target = "127.0.0.1:80".parse().unwrap();
        for protocol in SsrProtocol::all().filter(|protocol| protocol.has_users()) {
            let secrets = (0..10_000_u32).map(|id| (id, &b"secret"[..]));
            let users = Arc::new(SsrUserKeys::new(protocol, &key, secrets));
            let config =
                SsrServerConfig::new(protocol, &key, Arc::new(Clients::new(64)), 0).with_users(users);
            for id in [0, 5000, 9999] {
                let client = SsrClientConfig::new(protocol, &key, 0).with_user(id, b"secret");
                let cipher = CipherLayer::client(&key, &mut Zeros);
                let mut client =
                    SsrClientStream::new(&client, &cipher.client_iv(), &target, clock, &mut Zeros);
                let head = client.plan(now).first.head;
                let mut block = vec![0; head + 1];
                let sealed = client.seal(&mut block, head..head + 1, now).unwrap();
                let cipher = CipherLayer::server(&key, &mut Zeros);
                let mut server = SsrServerStream::new(&config, &cipher.client_iv(), clock, &mut Zeros);
                TRIED.with(|tried| tried.set(0));
                let mut wire = RecvBuf::from_bytes(&block[sealed]);
                assert!(matches!(server.open(&mut wire, now), Ok(Opened::Payload(_))), "{protocol}: {id}");
                assert_eq!(server.state(), State::Authenticated { user: Some(id) }, "{protocol}");
                assert_eq!(TRIED.with(Cell::get), 1, "{protocol}: {id}");
            }
        }
    }

    #[test]
    fn recorded_keys() {
        for row in vectors("kdf.json") {
            let expected = hex(row["key"].as_str().unwrap());
            let mut key = vec![0; expected.len()];
            evp_bytes_to_key(row["password"].as_str().unwrap().as_bytes(), &mut key);
            assert_eq!(key, expected);
        }
    }
}
