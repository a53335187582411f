//! The envelope in front of a QUIC flow: the first datagram says where all of them go, the others travel as they are.
//!
//! ```text
//!   salt[16] | Seal(nonce 0, header[7]) | padding[P] | Seal(nonce 1, payload[L]) | anything, ignored
//!   header:   04 | 00 00 | P (u16 BE) | L (u16 BE)
//!   payload:  01 | command, not 0 | idlen id | hlen(1..255) host[hlen] | port(u16 BE) | QUIC packet, at least 1 byte
//! ```
//!
//! The key is that of a stream with this salt. Padding stands as it is, unlike that of a stream's frames; senders use
//! none and command 1. From `docs/protocols/snell.md` 3.1 and the recorded `quic_envelopes` (OpenSnell, Surge).

use std::ops::Range;

use super::super::frame::{FRAME_TYPE, HEADER_LEN, SEALED_HEADER_LEN};
use super::super::kdf::{SALT_LEN, Salt, SnellDirectionKey, SnellPsk};
use super::super::request::{CONNECT, VERSION, counted, parse_host};
use crate::crypto::{Aead, AeadAlgorithm, CounterNonce, TAG_LEN};
use crate::wire::{Host, Room, Target, WireError};

/// Shortest datagram that may be an envelope, in bytes.
pub const MIN_LEN: usize = SALT_LEN + SEALED_HEADER_LEN + TAG_LEN;
/// Longest text of an IPv6 address.
const MAX_IP_TEXT: usize = 45;

/// An envelope that has been opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// Its salt: a second envelope with it is a recording.
    pub salt: Salt,
    /// Client id, a user's key where a server has several users; mostly empty.
    pub client_id: Vec<u8>,
    /// Target of the flow.
    pub target: Target,
    /// The QUIC packet, as a range into the datagram.
    pub inner: Range<usize>,
}

/// Free bytes that [`seal`] needs around the QUIC packet.
pub fn room(target: &Target, client_id: &[u8]) -> Room {
    let head = SALT_LEN + SEALED_HEADER_LEN + request_len(target) + client_id.len();
    Room { head, tail: TAG_LEN, max_payload: usize::from(u16::MAX) - head - TAG_LEN }
}

/// Version, command, length of the client id, host as text, port.
fn request_len(target: &Target) -> usize {
    6 + match &target.host {
        Host::Name(name) => name.len(),
        Host::Ip(_) => MAX_IP_TEXT,
    }
}

/// Seals the QUIC packet at `inner` in `block`, with [`room`] around it, and returns where the envelope lies. A key must
/// not be used twice.
///
/// # Errors
/// None but [`WireError::Exhausted`], which a fresh key rules out.
///
/// # Panics
/// If the packet is longer than the room allows, or the client id than 255 bytes.
pub fn seal(
    key: &SnellDirectionKey,
    target: &Target,
    client_id: &[u8],
    block: &mut [u8],
    inner: Range<usize>,
) -> Result<Range<usize>, WireError> {
    let mut text = [0; MAX_IP_TEXT];
    let host = match &target.host {
        Host::Name(name) => name.as_bytes(),
        Host::Ip(ip) => {
            use std::io::Write as _;
            let mut rest = &mut text[..];
            write!(rest, "{ip}").expect("45 bytes hold any address");
            let free = rest.len();
            &text[..MAX_IP_TEXT - free]
        }
    };
    let payload_at = inner.start - host.len() - client_id.len() - 6;
    let (head, rest) = block[payload_at..inner.start].split_at_mut(3 + client_id.len());
    let short = |len: usize| u8::try_from(len).expect("at most 255 bytes");
    head[..3].copy_from_slice(&[VERSION, CONNECT, short(client_id.len())]);
    head[3..].copy_from_slice(client_id);
    rest[0] = short(host.len());
    rest[1..=host.len()].copy_from_slice(host);
    rest[1 + host.len()..].copy_from_slice(&target.port.to_be_bytes());
    let len = u16::try_from(inner.end - payload_at).expect("a datagram");
    let at = payload_at - SEALED_HEADER_LEN - SALT_LEN;
    block[at..at + SALT_LEN].copy_from_slice(&key.salt);
    let header = &mut block[at + SALT_LEN..payload_at];
    header[..HEADER_LEN].fill(0);
    header[0] = FRAME_TYPE;
    header[5..HEADER_LEN].copy_from_slice(&len.to_be_bytes());
    let (aead, mut nonce) = (Aead::new(AeadAlgorithm::Aes128Gcm, &key.key), CounterNonce::default());
    let (header, tag) = header.split_at_mut(HEADER_LEN);
    aead.seal(nonce.advance(), &[], header, tag.try_into().expect("16 bytes"))?;
    let (payload, tag) = block[payload_at..inner.end + TAG_LEN].split_at_mut(usize::from(len));
    aead.seal(nonce.advance(), &[], payload, tag.try_into().expect("16 bytes"))?;
    Ok(at..inner.end + TAG_LEN)
}

/// Opens `datagram` in place. It stays as it is unless its header opens. Costs a key derivation, so callers bound how
/// often unauthenticated peers may ask for it.
///
/// # Errors
/// [`WireError::Authentication`] for a datagram that is no envelope under this key, others for one that is not legal.
/// The reaction is silence.
pub fn open(psk: &SnellPsk, datagram: &mut [u8]) -> Result<Envelope, WireError> {
    if datagram.len() < MIN_LEN {
        return Err(WireError::Truncated { what: "envelope" });
    }
    let mut salt = [0; SALT_LEN];
    salt.copy_from_slice(&datagram[..SALT_LEN]);
    let key = psk.derive(&salt);
    let (aead, mut nonce) = (Aead::new(AeadAlgorithm::Aes128Gcm, &key.key), CounterNonce::default());
    let mut header = [0; SEALED_HEADER_LEN];
    header.copy_from_slice(&datagram[SALT_LEN..SALT_LEN + SEALED_HEADER_LEN]);
    aead.open(nonce.advance(), &[], &mut header)
        .map_err(|()| WireError::Authentication { what: "envelope header" })?;
    if header[0] != FRAME_TYPE {
        return Err(WireError::Malformed { what: "envelope type", got: header[0].into() });
    }
    let padding = usize::from(u16::from_be_bytes([header[3], header[4]]));
    let len = usize::from(u16::from_be_bytes([header[5], header[6]]));
    let at = SALT_LEN + SEALED_HEADER_LEN + padding;
    let sealed = datagram.get_mut(at..at + len + TAG_LEN);
    let sealed = sealed.ok_or(WireError::Truncated { what: "envelope payload" })?;
    aead.open(nonce.advance(), &[], sealed)
        .map_err(|()| WireError::Authentication { what: "envelope payload" })?;
    let (client_id, target, inner) = parse_payload(&datagram[at..at + len])?;
    Ok(Envelope { salt, client_id, target, inner: at + inner..at + len })
}

/// Splits the payload into the client id, the target and the offset of the QUIC packet.
fn parse_payload(payload: &[u8]) -> Result<(Vec<u8>, Target, usize), WireError> {
    const CUT: WireError = WireError::Truncated { what: "envelope request" };
    let [version, command, rest @ ..] = payload else { return Err(CUT) };
    if *version != VERSION {
        return Err(WireError::Malformed { what: "envelope version", got: (*version).into() });
    }
    if *command == 0 {
        return Err(WireError::Unsupported { what: "envelope command", got: 0 });
    }
    let (client_id, rest) = counted(rest).ok_or(CUT)?;
    let (host, rest) = counted(rest).ok_or(CUT)?;
    let (port, inner) = rest.split_first_chunk().ok_or(CUT)?;
    if inner.is_empty() {
        return Err(WireError::Truncated { what: "envelope without a packet" });
    }
    let target = Target { host: parse_host(host)?, port: u16::from_be_bytes(*port) };
    Ok((client_id.to_vec(), target, payload.len() - inner.len()))
}

/// Fuzz target: any datagram under the key of the vectors; what opens seals again to the same.
#[doc(hidden)]
pub fn fuzz_envelope(data: &[u8]) {
    let psk = SnellPsk::new(b"adit-vector-psk-0001");
    let mut datagram = data.to_vec();
    let Ok(opened) = open(&psk, &mut datagram) else { return };
    let inner = &datagram[opened.inner.clone()];
    let room = room(&opened.target, &opened.client_id);
    let mut block = vec![0; room.head + inner.len() + room.tail];
    let range = room.head..room.head + inner.len();
    block[range.clone()].copy_from_slice(inner);
    let sealed = seal(&psk.derive(&opened.salt), &opened.target, &opened.client_id, &mut block, range)
        .expect("a fresh key");
    let again = open(&psk, &mut block[sealed.clone()]).expect("an envelope of ours");
    assert_eq!((&again.target, again.salt), (&opened.target, opened.salt));
    assert_eq!(again.client_id, opened.client_id);
    assert_eq!(block[sealed][again.inner], datagram[opened.inner]);
}
