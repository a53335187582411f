//! Initial packets of QUIC: RFC 9000 section 17.2.2, RFC 9001 section 5, RFC 9369.
//!
//! ```text
//! 1 1 type:2 reserved:2 number length:2 | version u32 | dcid u8.. | scid u8.. | token v.. | length v | number 1-4 | sealed
//! ```
//!
//! The keys of an Initial follow from the connection id that the client chose, so anyone on the way can open it.

use super::hello::{HelloKind, Pieces};
use super::{MAX_DATAGRAMS, Sniffed, SniffedProtocol, datagram};
use crate::crypto::{Aead, AeadAlgorithm, AesBlock, TAG_LEN, hmac_sha256};

const V1: u32 = 1;
const V2: u32 = 0x6b33_43cf;
/// RFC 9001 section 5.2.
const SALT_V1: [u8; 20] = [
    0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc,
    0xbb, 0x7f, 0x0a,
];
/// RFC 9369 section 3.3.1.
const SALT_V2: [u8; 20] = [
    0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb, 0xf9,
    0xbd, 0x2e, 0xd9,
];
/// Longest connection id: RFC 9000 section 17.2.
const MAX_ID: usize = 20;
/// Longest packet that is opened: a datagram of IPv6 over Ethernet has no more.
const MAX_PACKET: usize = 1500;
const SAMPLE_LEN: usize = 16;

const PADDING: u64 = 0;
const PING: u64 = 1;
const ACK: u64 = 2;
const ACK_ECN: u64 = 3;
const CRYPTO: u64 = 6;
const CONNECTION_CLOSE: u64 = 0x1c;

/// The first datagrams of one flow, of which a hello is put together.
#[derive(Debug, Default)]
pub struct Datagrams {
    count: usize,
    /// An Initial has been opened.
    is_quic: bool,
    hello: Pieces,
}

impl Datagrams {
    /// Takes the next datagram of the client. Asks for more for [`MAX_DATAGRAMS`] at most.
    pub fn push(&mut self, bytes: &[u8]) -> Sniffed {
        self.count += 1;
        if self.count == 1 && !is_initial(bytes) {
            return datagram(bytes);
        }
        self.read(bytes);
        let name = match self.hello.hello() {
            HelloKind::Name(name) => name,
            HelloKind::More if self.is_quic && self.count < MAX_DATAGRAMS => return Sniffed::More,
            HelloKind::More | HelloKind::Not => None,
        };
        if self.is_quic { Sniffed::Found(SniffedProtocol::Quic, name) } else { Sniffed::Unknown }
    }

    /// Opens the packets of one datagram.
    fn read(&mut self, mut bytes: &[u8]) {
        while let Some((packet, rest)) = split(bytes) {
            bytes = rest;
            let Some(packet) = packet else { continue };
            let mut opened = [0; MAX_PACKET];
            let Some(frames) = packet.open(&mut opened) else { continue };
            self.is_quic = true;
            read_frames(frames, |offset, piece| self.hello.put(offset, piece));
        }
    }
}

/// Whether a datagram begins with an Initial packet of a known version.
fn is_initial(bytes: &[u8]) -> bool {
    matches!(split(bytes), Some((Some(_), _)))
}

/// An Initial packet.
struct Initial<'a> {
    version: u32,
    id: &'a [u8],
    /// From its first byte to its last one.
    bytes: &'a [u8],
    /// Offset of the packet number in the packet.
    number_at: usize,
}

/// The first packet of a datagram, if it is an Initial, and the rest behind it. `None` if there is no long header.
fn split(bytes: &[u8]) -> Option<(Option<Initial<'_>>, &[u8])> {
    let mut at = Cursor { bytes, at: 0 };
    let first = at.u8()?;
    if first & 0xc0 != 0xc0 {
        return None;
    }
    let version = u32::from_be_bytes(at.take(4)?.try_into().ok()?);
    let initial = match version {
        V1 => 0,
        V2 => 1,
        _ => return None,
    };
    let id_len = at.u8()?;
    let id = at.take(id_len.into())?;
    let source_len = at.u8()?;
    at.take(source_len.into())?;
    if id.len() > MAX_ID || usize::from(source_len) > MAX_ID {
        return None;
    }
    let is_initial = (first >> 4) & 3 == initial;
    if is_initial {
        let token = at.varint()?;
        at.take(usize::try_from(token).ok()?)?;
    }
    let len = usize::try_from(at.varint()?).ok()?;
    let number_at = at.at;
    at.take(len)?;
    let (packet, rest) = bytes.split_at(at.at);
    let is_right = is_initial && packet.len() <= MAX_PACKET && len >= 4 + SAMPLE_LEN;
    Some((is_right.then_some(Initial { version, id, bytes: packet, number_at }), rest))
}

/// Keys of the client's Initial packets.
pub(super) struct Keys {
    pub(super) key: [u8; 16],
    pub(super) iv: [u8; 12],
    pub(super) hp: [u8; 16],
}

impl Keys {
    /// The keys for packets to this connection id.
    pub(super) fn new(version: u32, id: &[u8]) -> Self {
        let (salt, prefix) = if version == V2 { (&SALT_V2, "quicv2") } else { (&SALT_V1, "quic") };
        let initial = hmac_sha256(salt, id);
        let client: [u8; 32] = expand(&initial, "client in");
        let label = |name: &str| format!("{prefix} {name}");
        Self {
            key: expand(&client, &label("key")),
            iv: expand(&client, &label("iv")),
            hp: expand(&client, &label("hp")),
        }
    }
}

/// HKDF-Expand-Label of TLS 1.3 (RFC 8446 section 7.1) without a context, up to one block of SHA-256.
fn expand<const N: usize>(secret: &[u8], label: &str) -> [u8; N] {
    let label = format!("tls13 {label}");
    let (out_len, label_len) = (u16::try_from(N).unwrap_or(0), u8::try_from(label.len()).unwrap_or(0));
    let mut info = out_len.to_be_bytes().to_vec();
    info.push(label_len);
    info.extend_from_slice(label.as_bytes());
    info.extend_from_slice(&[0, 1]);
    let block = hmac_sha256(secret, &info);
    std::array::from_fn(|i| block[i])
}

impl Initial<'_> {
    /// The frames of the packet, decrypted into `out`.
    fn open<'o>(&self, out: &'o mut [u8; MAX_PACKET]) -> Option<&'o [u8]> {
        let keys = Keys::new(self.version, self.id);
        let packet = out.get_mut(..self.bytes.len())?;
        packet.copy_from_slice(self.bytes);
        let sample_at = self.number_at + 4;
        let mut mask: [u8; 16] = packet.get(sample_at..sample_at + SAMPLE_LEN)?.try_into().ok()?;
        AesBlock::new(&keys.hp).encrypt(&mut mask);
        packet[0] ^= mask[0] & 0x0f;
        let number_len = usize::from(packet[0] & 3) + 1;
        let mut nonce = keys.iv;
        for i in 0..number_len {
            packet[self.number_at + i] ^= mask[1 + i];
            nonce[12 - number_len + i] ^= packet[self.number_at + i];
        }
        let (head, sealed) = packet.split_at_mut(self.number_at + number_len);
        Aead::new(AeadAlgorithm::Aes128Gcm, &keys.key).open(nonce, head, sealed).ok()?;
        sealed.get(..sealed.len().checked_sub(TAG_LEN)?)
    }
}

/// Calls `put` for each piece of the handshake; ends at a frame that an Initial cannot have.
fn read_frames(frames: &[u8], mut put: impl FnMut(u64, &[u8])) -> Option<()> {
    let mut at = Cursor { bytes: frames, at: 0 };
    while at.at < frames.len() {
        match at.varint()? {
            PADDING | PING => {}
            kind @ (ACK | ACK_ECN) => {
                let (_, _, ranges, _) = (at.varint()?, at.varint()?, at.varint()?, at.varint()?);
                let more = if kind == ACK_ECN { 3 } else { 0 };
                for _ in 0..ranges.checked_mul(2)?.checked_add(more)? {
                    at.varint()?;
                }
            }
            CRYPTO => {
                let (offset, len) = (at.varint()?, at.varint()?);
                put(offset, at.take(usize::try_from(len).ok()?)?);
            }
            CONNECTION_CLOSE => {
                let (_, _, len) = (at.varint()?, at.varint()?, at.varint()?);
                at.take(usize::try_from(len).ok()?)?;
            }
            _ => return None,
        }
    }
    Some(())
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// RFC 9000 section 16.
    fn varint(&mut self) -> Option<u64> {
        let first = self.u8()?;
        let more = self.take((1 << (first >> 6)) - 1)?;
        Some(more.iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)))
    }
}
