//! STUN binding requests (RFC 8489) and their answers, for the addresses that the outside sees, and for finding out
//! which kind of NAT stands between (RFC 5780). The checks of ICE are not here: they are the agent's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::{Rng, WireError};

const HEADER_LEN: usize = 20;
const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const BINDING_REQUEST: u16 = 0x0001;
const BINDING_SUCCESS: u16 = 0x0101;
const MAPPED_ADDRESS: u16 = 0x0001;
const CHANGE_REQUEST: u16 = 0x0003;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
const OTHER_ADDRESS: u16 = 0x802c;
/// Change both the address and the port that answer.
const CHANGE_BOTH: [u8; 4] = [0, 0, 0, 6];

/// Identification of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionId([u8; 12]);

impl TransactionId {
    /// A fresh one.
    pub fn draw(rng: &mut dyn Rng) -> Self {
        let mut bytes = [0; 12];
        rng.fill(&mut bytes);
        Self(bytes)
    }
}

/// A binding request. With `changes` the server is asked to answer from its other address and port.
pub fn request(id: TransactionId, changes: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + 8);
    out.extend(BINDING_REQUEST.to_be_bytes());
    out.extend(if changes { 8_u16 } else { 0 }.to_be_bytes());
    out.extend(COOKIE);
    out.extend(id.0);
    if changes {
        out.extend(CHANGE_REQUEST.to_be_bytes());
        out.extend(4_u16.to_be_bytes());
        out.extend(CHANGE_BOTH);
    }
    out
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The request that it answers.
    pub id: TransactionId,
    /// The address that the server has seen.
    pub mapped: SocketAddr,
    /// The server's other address, if it has one.
    pub other: Option<SocketAddr>,
}

impl Answer {
    /// Reads an answer.
    ///
    /// # Errors
    /// [`WireError`] for anything but a success with an address in it.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let bad = |what, got: usize| WireError::Malformed { what, got: got as u64 };
        let (head, mut rest) =
            bytes.split_at_checked(HEADER_LEN).ok_or_else(|| bad("STUN length", bytes.len()))?;
        let kind = u16::from_be_bytes([head[0], head[1]]);
        let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if kind != BINDING_SUCCESS || head[4..8] != COOKIE {
            return Err(bad("STUN message type", kind.into()));
        }
        if len != rest.len() {
            return Err(bad("STUN length", len));
        }
        let mut id = [0; 12];
        id.copy_from_slice(&head[8..]);
        let (mut plain, mut xored, mut other) = (None, None, None);
        while let Some((attribute, value, after)) = next_attribute(rest) {
            rest = after;
            match attribute {
                MAPPED_ADDRESS => plain = plain.or_else(|| address(value, None)),
                XOR_MAPPED_ADDRESS => xored = xored.or_else(|| address(value, Some(&id))),
                OTHER_ADDRESS => other = other.or_else(|| address(value, None)),
                _ => {}
            }
        }
        let mapped = xored.or(plain).ok_or_else(|| bad("STUN mapped address", 0))?;
        Ok(Self { id: TransactionId(id), mapped, other })
    }
}

/// The first attribute, its value and what follows.
fn next_attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(4)?;
    let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let value = rest.get(..len)?;
    let after = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((u16::from_be_bytes([head[0], head[1]]), value, after))
}

/// An address attribute; under `id` it is xored.
fn address(value: &[u8], id: Option<&[u8; 12]>) -> Option<SocketAddr> {
    let (head, ip) = value.split_at_checked(4)?;
    let mut port = u16::from_be_bytes([head[2], head[3]]);
    let mut mask = [0; 16];
    if let Some(id) = id {
        mask[..4].copy_from_slice(&COOKIE);
        mask[4..].copy_from_slice(id);
        port ^= u16::from_be_bytes([COOKIE[0], COOKIE[1]]);
    }
    let ip: IpAddr = match head[1] {
        1 => {
            let mut bytes: [u8; 4] = ip.try_into().ok()?;
            bytes.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
            Ipv4Addr::from(bytes).into()
        }
        2 => {
            let mut bytes: [u8; 16] = ip.try_into().ok()?;
            bytes.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    (port != 0 && !ip.is_unspecified()).then(|| SocketAddr::new(ip, port))
}

/// Any bytes: an address that is read can be sent to.
#[doc(hidden)]
pub fn fuzz_stun(data: &[u8]) {
    if let Ok(answer) = Answer::parse(data) {
        assert!(answer.mapped.port() != 0 && !answer.mapped.ip().is_unspecified());
    }
}
