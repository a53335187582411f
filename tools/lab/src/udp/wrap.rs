//! The wrapping of a datagram on its way to the subject.

use std::net::{SocketAddr, SocketAddrV4};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use anyhow::{Context, Result, bail};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA1_FOR_LEGACY_USE_ONLY, KeyType, Salt};

use crate::random::Random;

const TAG: usize = 16;
/// Type and IPv4 address and port, as in SOCKS5.
const ADDRESS: usize = 7;
/// MD5 of the lab's password: the 16-byte key that SIP004 makes of it.
const SIP004_KEY: [u8; 16] =
    [0xf0, 0xe4, 0x9b, 0x84, 0x26, 0xba, 0x4c, 0x84, 0x36, 0x93, 0xce, 0x64, 0xe0, 0xf1, 0xd0, 0xca];
/// The lab's key for 2022 methods of 16 bytes.
const SIP022_KEY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// The wrapping of one flow, for one target.
#[derive(Debug)]
pub struct Wrap {
    address: [u8; ADDRESS],
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Plain,
    Socks5,
    Sip004(Random),
    Sip022(Box<Session>),
}

/// A client session of SIP022 (`2022-blake3-aes-128-gcm`).
struct Session {
    header: Aes128,
    body: LessSafeKey,
    id: u64,
    packet: u64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("packet", &self.packet).finish_non_exhaustive()
    }
}

fn address(target: SocketAddr) -> Result<[u8; ADDRESS]> {
    let SocketAddr::V4(target) = target else { bail!("target is not IPv4: {target}") };
    let mut address = [1; ADDRESS];
    address[1..5].copy_from_slice(&target.ip().octets());
    address[5..].copy_from_slice(&target.port().to_be_bytes());
    Ok(address)
}

impl Wrap {
    /// Nothing around it.
    ///
    /// # Errors
    /// If the target is not IPv4.
    pub fn plain(target: SocketAddr) -> Result<Self> {
        Ok(Self { address: address(target)?, kind: Kind::Plain })
    }

    /// The header of SOCKS5 (RFC 1928, section 7).
    ///
    /// # Errors
    /// If the target is not IPv4.
    pub fn socks5(target: SocketAddr) -> Result<Self> {
        Ok(Self { address: address(target)?, kind: Kind::Socks5 })
    }

    /// Wraps datagrams as a Shadowsocks client does. `seed` makes session and salts: do not use it
    /// twice with one server.
    ///
    /// # Errors
    /// If the lab does not speak `method`.
    pub fn shadowsocks(target: SocketAddr, method: &str, seed: u64) -> Result<Self> {
        let kind = match method {
            "aes-128-gcm" => Kind::Sip004(Random::new(seed)),
            "2022-blake3-aes-128-gcm" => Kind::Sip022(Box::new(Session::new(seed)?)),
            _ => bail!("the lab itself speaks aes-128-gcm and 2022-blake3-aes-128-gcm, not {method}"),
        };
        Ok(Self { address: address(target)?, kind })
    }

    /// Bytes before and after the payload: the same for every datagram.
    #[must_use]
    pub fn room(&self) -> (usize, usize) {
        match self.kind {
            Kind::Plain => (0, 0),
            Kind::Socks5 => (3 + ADDRESS, 0),
            Kind::Sip004(_) => (16 + ADDRESS, TAG),
            Kind::Sip022(_) => (16 + 11 + ADDRESS, TAG),
        }
    }

    /// Finishes `bytes`, whose payload lies between the two parts of [`Self::room`].
    ///
    /// # Errors
    /// If the cipher fails.
    pub fn seal(&mut self, bytes: &mut [u8], now: SystemTime) -> Result<()> {
        match &mut self.kind {
            Kind::Plain => Ok(()),
            Kind::Socks5 => {
                bytes[..3].fill(0);
                bytes[3..3 + ADDRESS].copy_from_slice(&self.address);
                Ok(())
            }
            Kind::Sip004(random) => {
                let (salt, rest) = bytes.split_first_chunk_mut::<16>().context("no room for a salt")?;
                salt[..8].copy_from_slice(&random.next_u64().to_le_bytes());
                salt[8..].copy_from_slice(&random.next_u64().to_le_bytes());
                rest[..ADDRESS].copy_from_slice(&self.address);
                sealed(&sip004_subkey(salt)?, [0; 12], rest)
            }
            Kind::Sip022(session) => session.seal(bytes, &self.address, now),
        }
    }

    /// The payload of an answer, for the kinds whose answers the lab can read.
    #[must_use]
    pub fn open<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        match self.kind {
            Kind::Plain => Some(bytes),
            Kind::Socks5 => bytes.strip_prefix(&[0; 3])?.strip_prefix(&self.address),
            Kind::Sip004(_) | Kind::Sip022(_) => None,
        }
    }
}

impl Session {
    fn new(id: u64) -> Result<Self> {
        let mut material = [0; 24];
        material[..16].copy_from_slice(&SIP022_KEY);
        material[16..].copy_from_slice(&id.to_be_bytes());
        let key = blake3::derive_key("shadowsocks 2022 session subkey", &material);
        let key = UnboundKey::new(&AES_128_GCM, &key[..16]).ok().context("session key")?;
        Ok(Self { header: Aes128::new(&SIP022_KEY.into()), body: LessSafeKey::new(key), id, packet: 0 })
    }

    /// ```text
    /// | session id 8 | packet id 8 | type 1 | time 8 | padding length 2 | address | payload | tag 16 |
    ///  \__ one block of AES-ECB __/  \_______________ AES-GCM, nonce = bytes 4..16 __________/
    /// ```
    fn seal(&mut self, bytes: &mut [u8], address: &[u8; ADDRESS], now: SystemTime) -> Result<()> {
        let (header, rest) = bytes.split_first_chunk_mut::<16>().context("no room for a header")?;
        header[..8].copy_from_slice(&self.id.to_be_bytes());
        header[8..].copy_from_slice(&self.packet.to_be_bytes());
        self.packet += 1;
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&header[4..]);
        rest[0] = 0;
        let time = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        rest[1..9].copy_from_slice(&time.to_be_bytes());
        rest[9..11].fill(0);
        rest[11..11 + ADDRESS].copy_from_slice(address);
        sealed(&self.body, nonce, rest)?;
        let mut block = (*header).into();
        self.header.encrypt_block(&mut block);
        header.copy_from_slice(&block);
        Ok(())
    }
}

/// Seals all of `bytes` but the last [`TAG`], which become the tag.
fn sealed(key: &LessSafeKey, nonce: [u8; 12], bytes: &mut [u8]) -> Result<()> {
    let at = bytes.len().checked_sub(TAG).context("no room for a tag")?;
    let (text, place) = bytes.split_at_mut(at);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), text).ok().context("seal")?;
    place.copy_from_slice(tag.as_ref());
    Ok(())
}

struct SixteenBytes;

impl KeyType for SixteenBytes {
    fn len(&self) -> usize {
        16
    }
}

fn sip004_subkey(salt: &[u8; 16]) -> Result<LessSafeKey> {
    let extracted = Salt::new(HKDF_SHA1_FOR_LEGACY_USE_ONLY, salt).extract(&SIP004_KEY);
    let mut key = [0; 16];
    let expanded = extracted.expand(&[b"ss-subkey"], SixteenBytes).ok().context("expand")?;
    expanded.fill(&mut key).ok().context("expand")?;
    Ok(LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).ok().context("subkey")?))
}

/// The `number`-th of many targets that all reach one socket: 127.0.0.1, 127.0.0.2, and so on.
#[must_use]
pub fn target(first: SocketAddr, number: u32) -> SocketAddr {
    match first {
        SocketAddr::V4(first) => {
            let ip = (u32::from(*first.ip()).wrapping_add(number)).into();
            SocketAddr::V4(SocketAddrV4::new(ip, first.port()))
        }
        SocketAddr::V6(_) => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &str = "127.0.0.1:258";

    fn wrapped(wrap: &mut Wrap, payload: &[u8]) -> Vec<u8> {
        let (head, tail) = wrap.room();
        let mut bytes = vec![0; head + payload.len() + tail];
        bytes[head..head + payload.len()].copy_from_slice(payload);
        wrap.seal(&mut bytes, UNIX_EPOCH + Duration::from_secs(5)).unwrap();
        bytes
    }

    #[test]
    fn socks5_header() {
        let mut wrap = Wrap::socks5(TARGET.parse().unwrap()).unwrap();
        let bytes = wrapped(&mut wrap, b"payload");
        assert_eq!(bytes[..10], [0, 0, 0, 1, 127, 0, 0, 1, 1, 2]);
        assert_eq!(wrap.open(&bytes), Some(&b"payload"[..]));
        assert_eq!(wrap.open(&bytes[1..]), None);
    }

    #[test]
    fn session_opens_again() {
        let target = TARGET.parse().unwrap();
        let mut wrap = Wrap::shadowsocks(target, "2022-blake3-aes-128-gcm", 7).unwrap();
        let (first, second) = (wrapped(&mut wrap, b"payload"), wrapped(&mut wrap, b"payload"));
        assert_ne!(first[..16], second[..16]);
        assert_eq!(first.len(), 7 + 50);
        // The key stream of AES-GCM gives the text back when the same nonce is used once more.
        let session = Session::new(7).unwrap();
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&7_u32.to_be_bytes());
        let mut rest = first[16..].to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let text = session.body.open_in_place(nonce, Aad::empty(), &mut rest).unwrap();
        assert_eq!(text[..9], [0, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(text[9..18], [0, 0, 1, 127, 0, 0, 1, 1, 2]);
        assert_eq!(&text[18..], b"payload");
    }

    #[test]
    fn sip004_opens_again() {
        let mut wrap = Wrap::shadowsocks(TARGET.parse().unwrap(), "aes-128-gcm", 7).unwrap();
        let bytes = wrapped(&mut wrap, b"payload");
        assert_eq!(bytes.len(), 7 + 39);
        let (salt, rest) = bytes.split_first_chunk().unwrap();
        let mut rest = rest.to_vec();
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let text = sip004_subkey(salt).unwrap().open_in_place(nonce, Aad::empty(), &mut rest).unwrap();
        assert_eq!(&text[7..], b"payload");
        assert!(Wrap::shadowsocks(TARGET.parse().unwrap(), "rc4-md5", 7).is_err());
    }

    #[test]
    fn targets_have_addresses_of_their_own() {
        let first = TARGET.parse().unwrap();
        assert_eq!(target(first, 0), first);
        assert_eq!(target(first, 300).to_string(), "127.0.1.45:258");
    }
}
