//! Datagrams.
//!
//! ```text
//!   IV | cipher( address | payload | trailer )              obfs is for streams only
//!
//!   trailer, client to server                               server to client
//!   auth_aes128_*   user id u32le | mac(U, all before) 4    mac(K, all before) 4
//!   auth_chain_*    padding | A 3 | user id XOR h[0..4] |   padding | A 7 | HMAC-MD5(U, all before) 1
//!                   HMAC-MD5(U, all before) 1
//!   auth_aes128     Adler-32 of all before                  the same
//!   verify_sha1     HMAC-SHA1(IV | K, all before), first 10, if the address's type has 0x10; else nothing
//!   others          nothing
//! ```
//!
//! `auth_chain_*` encipher address and payload with RC4 under MD5(base64(U) | base64(h)) too, h = HMAC-MD5(K, A); the
//! padding has the length that h seeds. Nothing protects against replays. Source: `docs/protocols/ssr.md`, 2.6 and 2.8.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::key::{Iv, UserKey};
use super::protocol::{Mac, SsrClientConfig, SsrServerConfig, udp_padding_len};
use super::{ParsedAddress, Refusal, SsrKey, SsrProtocol, parse_request};
use crate::crypto::stream::{Direction, StreamAlgorithm, StreamCipherKey};
use crate::crypto::{HmacMd5, HmacSha1, adler32, md5};
use crate::wire::{Rng, Room, Target, WireError, address_len, emit_address};

/// Longest padding of `auth_chain_*`.
const MAX_PADDING: usize = 126;
const ID_LEN: usize = 4;
const MAC_LEN: usize = 4;
const SHA1_LEN: usize = 10;
/// A datagram of `auth_chain_*` has more bytes than this.
const MIN_CHAIN: usize = 8;
/// In the type of an address: an HMAC follows.
const AUTH_FLAG: u8 = 0x10;

/// A datagram that has been opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SsrPacket {
    /// Client to server: where it is to go. Server to client: where it came from.
    pub target: Target,
    /// The payload, as a range into the datagram.
    pub payload: Range<usize>,
    /// At a server with users: whose it is.
    pub user: Option<u32>,
}

/// The part behind address and payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trailer {
    None,
    Sha1,
    Adler,
    Mac(Mac),
    Chain,
}

impl Trailer {
    fn of(protocol: SsrProtocol) -> Self {
        match protocol {
            SsrProtocol::VerifySha1 => Self::Sha1,
            SsrProtocol::AuthAes128 => Self::Adler,
            SsrProtocol::AuthAes128Md5 => Self::Mac(Mac::Md5),
            SsrProtocol::AuthAes128Sha1 => Self::Mac(Mac::Sha1),
            SsrProtocol::AuthAes128Fast => Self::Mac(Mac::Fast),
            SsrProtocol::AuthChain(_) => Self::Chain,
            SsrProtocol::Origin
            | SsrProtocol::VerifyDeflate
            | SsrProtocol::VerifySimple
            | SsrProtocol::AuthSha1
            | SsrProtocol::AuthSha1V2
            | SsrProtocol::AuthSha1V4 => Self::None,
        }
    }

    /// Most bytes.
    fn max_len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Sha1 => SHA1_LEN,
            Self::Adler => MAC_LEN,
            Self::Mac(_) => ID_LEN + MAC_LEN,
            Self::Chain => MAX_PADDING + MIN_CHAIN,
        }
    }
}

/// One end, as both see it.
struct Sealer {
    key: SsrKey,
    trailer: Trailer,
}

impl Sealer {
    fn room(&self, peer: &Target) -> Room {
        let (head, tail) = (self.key.method().iv_len() + address_len(peer), self.trailer.max_len());
        Room { head, tail, max_payload: usize::from(u16::MAX) - head - tail }
    }

    /// Writes the address in front of the payload and an IV in front of that; `trail` writes the trailer behind.
    fn seal(
        &self,
        block: &mut [u8],
        payload: Range<usize>,
        peer: &Target,
        rng: &mut dyn Rng,
        trail: impl FnOnce(&mut [u8], Range<usize>, &[u8], &mut dyn Rng) -> usize,
    ) -> Result<Range<usize>, WireError> {
        let iv = Iv::draw(self.key.method().iv_len(), rng);
        let plain = payload.start - address_len(peer);
        emit_address(peer, &mut block[plain..]);
        let end = trail(block, plain..payload.end, iv.as_slice(), rng);
        if let Some(mut cipher) = self.key.cipher(iv.as_slice(), Direction::Encrypt) {
            cipher.apply(&mut block[plain..end])?;
        }
        let start = plain - iv.len();
        block[start..plain].copy_from_slice(iv.as_slice());
        Ok(start..end)
    }

    /// Deciphers a datagram and returns its IV and where its plaintext begins.
    fn open(&self, datagram: &mut [u8]) -> Result<Iv, Refusal> {
        let iv_len = self.key.method().iv_len();
        if datagram.len() <= iv_len {
            return Err(Refusal::Malformed { what: "length of a datagram" });
        }
        let (iv, data) = datagram.split_at_mut(iv_len);
        if let Some(mut cipher) = self.key.cipher(iv, Direction::Decrypt) {
            cipher.apply(data).map_err(|_| Refusal::Malformed { what: "length of a datagram" })?;
        }
        Ok(Iv::from_slice(iv))
    }

    fn keyed(&self, iv: &[u8]) -> HmacSha1 {
        HmacSha1::new(&[iv, self.key.bytes()])
    }
}

/// The client's codec. One serves all targets; its id is drawn once where the client has none.
pub struct SsrClientUdp {
    sealer: Sealer,
    id: u32,
    user: Arc<UserKey>,
}

/// The server's codec. One serves all clients.
#[derive(Clone)]
pub struct SsrServerUdp {
    sealer: Arc<Sealer>,
    config: SsrServerConfig,
}

impl SsrClientUdp {
    /// Datagrams of a client.
    pub fn new(config: &SsrClientConfig, rng: &mut dyn Rng) -> Self {
        let (id, user) = config.identity(rng);
        let sealer = Sealer { key: config.key().clone(), trailer: Trailer::of(config.protocol()) };
        Self { sealer, id, user }
    }

    /// Free bytes that [`SsrClientUdp::seal`] needs around the payload, at most.
    pub fn room(&self, target: &Target) -> Room {
        self.sealer.room(target)
    }

    /// Seals the payload at `payload` in `block`, for `target`, and returns the range of the datagram.
    ///
    /// # Errors
    /// [`WireError::Exhausted`] when the cipher cannot seal so much.
    pub fn seal(
        &self,
        block: &mut [u8],
        payload: Range<usize>,
        target: &Target,
        rng: &mut dyn Rng,
    ) -> Result<Range<usize>, WireError> {
        let Self { sealer, id, user } = self;
        sealer.seal(block, payload, target, rng, |block, data, iv, rng| match sealer.trailer {
            Trailer::None => data.end,
            Trailer::Adler => put(block, data.clone(), &adler32_of),
            Trailer::Sha1 => {
                block[data.start] |= AUTH_FLAG;
                put(block, data, &|data| sha1_of(&sealer.keyed(iv), data))
            }
            Trailer::Mac(mac) => {
                block[data.end..data.end + ID_LEN].copy_from_slice(&id.to_le_bytes());
                let key = mac.key(&[user.secret()]);
                put(block, data.start..data.end + ID_LEN, &|data| first(&key.tag(data)))
            }
            Trailer::Chain => seal_chain::<3>(&sealer.key, user, Some(*id), block, data, rng),
        })
    }

    /// Opens a datagram of the server in place.
    ///
    /// # Errors
    /// An error in the datagram; it is to be dropped.
    pub fn open(&self, datagram: &mut [u8]) -> Result<SsrPacket, Refusal> {
        let iv_len = self.sealer.open(datagram)?.len();
        let plain = &mut datagram[iv_len..];
        let data = match self.sealer.trailer {
            Trailer::None | Trailer::Sha1 => 0..plain.len(),
            Trailer::Adler => check(plain, &adler32_of)?,
            Trailer::Mac(mac) => {
                let key = mac.key(&[self.sealer.key.bytes()]);
                check(plain, &|data| first(&key.tag(data)))?
            }
            Trailer::Chain => {
                let (_, hash) = chain_hash::<7>(&self.sealer.key, plain, 0)?;
                open_chain(&self.user, &hash, plain, 8, Refusal::WrongKey)?
            }
        };
        packet(plain, data, iv_len, None)
    }
}

impl SsrServerUdp {
    /// Datagrams of a server.
    pub fn new(config: &SsrServerConfig) -> Self {
        let sealer = Sealer { key: config.key().clone(), trailer: Trailer::of(config.protocol()) };
        Self { sealer: Arc::new(sealer), config: config.clone() }
    }

    /// Free bytes that [`SsrServerUdp::seal`] needs around the payload, at most.
    pub fn room(&self, source: &Target) -> Room {
        self.sealer.room(source)
    }

    /// Seals the payload at `payload` in `block`, which came from `source`, for the client that [`SsrPacket::user`] names, and
    /// returns the range of the datagram.
    ///
    /// # Errors
    /// [`WireError::Exhausted`] when the cipher cannot seal so much, [`WireError::Authentication`] when the user exists no
    /// longer.
    pub fn seal(
        &self,
        block: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        user: Option<u32>,
        rng: &mut dyn Rng,
    ) -> Result<Range<usize>, WireError> {
        let sealer = &*self.sealer;
        let (_, user) = self.config.user(user.unwrap_or_default())?;
        sealer.seal(block, payload, source, rng, |block, data, _, rng| match sealer.trailer {
            Trailer::None | Trailer::Sha1 => data.end,
            Trailer::Adler => put(block, data, &adler32_of),
            Trailer::Mac(mac) => {
                let key = mac.key(&[sealer.key.bytes()]);
                put(block, data, &|data| first(&key.tag(data)))
            }
            Trailer::Chain => seal_chain::<7>(&sealer.key, &user, None, block, data, rng),
        })
    }

    /// Opens a datagram of a client in place.
    ///
    /// # Errors
    /// Why it is not accepted; it is to be dropped without an answer.
    pub fn open(&self, datagram: &mut [u8]) -> Result<SsrPacket, Refusal> {
        let iv = self.sealer.open(datagram)?;
        let plain = &mut datagram[iv.len()..];
        let mut user = None;
        let data = match self.sealer.trailer {
            Trailer::None => 0..plain.len(),
            Trailer::Adler => check(plain, &adler32_of)?,
            Trailer::Sha1 if plain[0] & AUTH_FLAG == 0 => 0..plain.len(),
            Trailer::Sha1 => {
                let data = check(plain, &|data| sha1_of(&self.sealer.keyed(iv.as_slice()), data))?;
                plain[0] &= !AUTH_FLAG;
                data
            }
            Trailer::Mac(mac) => {
                let key;
                let id_at = plain.len().checked_sub(ID_LEN + MAC_LEN);
                let id_at = id_at.ok_or(Refusal::Malformed { what: "length of a datagram" })?;
                (user, key) = self.config.user(u32_at(plain, id_at))?;
                let key = mac.key(&[key.secret()]);
                check(plain, &|data| first(&key.tag(data)))
                    .map_err(|_| user.map_or(Refusal::WrongKey, |id| Refusal::WrongSecret { id }))?;
                0..id_at
            }
            Trailer::Chain => {
                let (at, hash) = chain_hash::<3>(&self.sealer.key, plain, ID_LEN)?;
                let id = u32_at(plain, at + 3) ^ u32_at(&hash, 0);
                let key;
                (user, key) = self.config.user(id)?;
                let wrong = user.map_or(Refusal::WrongKey, |id| Refusal::WrongSecret { id });
                open_chain(&key, &hash, plain, 8, wrong)?
            }
        };
        packet(plain, data, iv.len(), user)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn first(tag: &[u8; 8]) -> [u8; MAC_LEN] {
    [tag[0], tag[1], tag[2], tag[3]]
}

fn adler32_of(data: &[u8]) -> [u8; MAC_LEN] {
    adler32(data).to_le_bytes()
}

fn sha1_of(key: &HmacSha1, data: &[u8]) -> [u8; SHA1_LEN] {
    *key.tag(data).first_chunk().expect("10 of 20 bytes")
}

/// Writes the tag of `data` behind it; returns its end.
fn put<const LEN: usize>(block: &mut [u8], data: Range<usize>, tag: &dyn Fn(&[u8]) -> [u8; LEN]) -> usize {
    let tag = tag(&block[data.clone()]);
    block[data.end..data.end + LEN].copy_from_slice(&tag);
    data.end + LEN
}

/// Checks the tag at the end of `plain`; returns what is in front of it.
fn check<const LEN: usize>(plain: &[u8], tag: &dyn Fn(&[u8]) -> [u8; LEN]) -> Result<Range<usize>, Refusal> {
    let Some((data, sent)) = plain.split_last_chunk() else {
        return Err(Refusal::Malformed { what: "length of a datagram" });
    };
    if tag(data) == *sent { Ok(0..data.len()) } else { Err(Refusal::WrongKey) }
}

fn rc4(user: &UserKey, hash: &[u8; 16], data: &mut [u8]) {
    let base64 = Zeroizing::new(STANDARD.encode(hash));
    let key =
        StreamCipherKey::new(StreamAlgorithm::Rc4, &md5(&[user.base64().as_bytes(), base64.as_bytes()]));
    key.cipher(&[], Direction::Encrypt).apply(data).expect("RC4 does not end");
}

/// Enciphers `data` and writes the trailer with `LEN` bytes of A; returns its end.
fn seal_chain<const LEN: usize>(
    key: &SsrKey,
    user: &UserKey,
    id: Option<u32>,
    block: &mut [u8],
    data: Range<usize>,
    rng: &mut dyn Rng,
) -> usize {
    let mut seed = [0; LEN];
    rng.fill(&mut seed);
    let hash = HmacMd5::new(&[key.bytes()]).tag(&seed);
    rc4(user, &hash, &mut block[data.clone()]);
    let mut at = data.end + udp_padding_len(&hash);
    rng.fill(&mut block[data.end..at]);
    block[at..at + LEN].copy_from_slice(&seed);
    at += LEN;
    if let Some(id) = id {
        block[at..at + ID_LEN].copy_from_slice(&(id ^ u32_at(&hash, 0)).to_le_bytes());
        at += ID_LEN;
    }
    block[at] = HmacMd5::new(&[user.secret()]).tag(&block[data.start..at])[0];
    at + 1
}

/// Offset of A, which has `LEN` bytes and `behind` and one more behind it, and the hash that it seeds.
fn chain_hash<const LEN: usize>(
    key: &SsrKey,
    plain: &[u8],
    behind: usize,
) -> Result<(usize, [u8; 16]), Refusal> {
    if plain.len() <= MIN_CHAIN {
        return Err(Refusal::Malformed { what: "length of a datagram" });
    }
    let at = plain.len() - 1 - behind - LEN;
    Ok((at, HmacMd5::new(&[key.bytes()]).tag(&plain[at..at + LEN])))
}

/// Checks the tag, takes the last `trailer_len` bytes and the padding away and deciphers the rest.
fn open_chain(
    user: &UserKey,
    hash: &[u8; 16],
    plain: &mut [u8],
    trailer_len: usize,
    wrong: Refusal,
) -> Result<Range<usize>, Refusal> {
    let (data, tag) = plain.split_at(plain.len() - 1);
    if HmacMd5::new(&[user.secret()]).tag(data)[0] != tag[0] {
        return Err(wrong);
    }
    let end = (plain.len() - trailer_len).checked_sub(udp_padding_len(hash));
    let end = end.ok_or(Refusal::Malformed { what: "padding of a datagram" })?;
    rc4(user, hash, &mut plain[..end]);
    Ok(0..end)
}

/// Splits plaintext that begins with an address; `at` is its offset in the datagram.
fn packet(plain: &[u8], data: Range<usize>, at: usize, user: Option<u32>) -> Result<SsrPacket, Refusal> {
    match parse_request(&plain[data.clone()]) {
        Ok(ParsedAddress::Whole { target, len, .. }) => {
            Ok(SsrPacket { target, payload: at + data.start + len..at + data.end, user })
        }
        Ok(ParsedAddress::NeedMore(_)) | Err(_) => Err(Refusal::Malformed { what: "address of a datagram" }),
    }
}

macro_rules! opaque {
    ($($name:ident),*) => {$(
        /// Shows no key material.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}
opaque!(SsrClientUdp, SsrServerUdp);
