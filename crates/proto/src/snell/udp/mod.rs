//! Datagrams over Snell: one per frame of a command 6 exchange, or raw QUIC behind an envelope.
//!
//! ```text
//!   c2s frame:  01 | hlen(1..255) host[hlen]        | port(u16 BE) | payload     name, or an address as text
//!               01 | 00 | 04 addr[4]  or 06 addr[16] | port(u16 BE) | payload
//!   s2c frame:       04 addr[4]  or 06 addr[16]      | port(u16 BE) | payload     where the answer came from
//! ```
//!
//! A frame of any size is one datagram, so header and payload together are at most [`MAX_PAYLOAD`] bytes; an empty
//! payload is legal. The request, and the reply, have frames of their own. For QUIC there is [`envelope`].
//! From `docs/protocols/snell.md` 2.4, the recorded streams `udp` and `udp-responses`, and sing-box 1.14.

pub mod envelope;
mod initial;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::MAX_PAYLOAD;
use super::request::{counted, parse_host};
use crate::wire::{Host, Target, WireError};

pub use initial::{has_long_header, is_quic_initial};

/// First byte of every datagram from a client: pass it on.
const FORWARD: u8 = 1;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// Longest header from a client: command, length, a name of 255 bytes, port.
pub const MAX_REQUEST_HEADER: usize = 1 + 1 + 255 + 2;
/// Longest header from a server: family, an IPv6 address, port.
pub const MAX_ANSWER_HEADER: usize = 1 + 16 + 2;

const CUT: WireError = WireError::Truncated { what: "header of a datagram" };

/// Splits what a client's frame holds into the target and the offset of the payload.
///
/// # Errors
/// [`WireError`] for another command than forwarding, an unknown family, a host that is none, and a short frame. Peers
/// end the association then.
pub fn parse_request(frame: &[u8]) -> Result<(Target, usize), WireError> {
    let [command, rest @ ..] = frame else { return Err(CUT) };
    if *command != FORWARD {
        return Err(WireError::Unsupported { what: "command of a datagram", got: (*command).into() });
    }
    let (host, rest) = match rest {
        [] => return Err(CUT),
        [0, rest @ ..] => {
            let (ip, rest) = parse_ip(rest)?;
            (Host::Ip(ip.to_canonical()), rest)
        }
        _ => {
            let (host, rest) = counted(rest).ok_or(CUT)?;
            (parse_host(host)?, rest)
        }
    };
    let (port, payload) = parse_port(rest)?;
    Ok((Target { host, port }, frame.len() - payload.len()))
}

/// Length of the header for `target`, in bytes.
pub fn request_len(target: &Target) -> usize {
    4 + match &target.host {
        Host::Name(name) => name.len(),
        Host::Ip(ip) => 1 + ip_len(*ip),
    }
}

/// Writes the header for `target` to the front of `out`; returns its length, [`request_len`].
///
/// # Panics
/// If `out` is shorter than that.
pub fn emit_request(target: &Target, out: &mut [u8]) -> usize {
    let len = request_len(target);
    let (head, port) = out[..len].split_at_mut(len - 2);
    head[0] = FORWARD;
    match &target.host {
        Host::Name(name) => {
            head[1] = u8::try_from(name.len()).expect("names have at most 255 bytes");
            head[2..].copy_from_slice(name.as_bytes());
        }
        Host::Ip(ip) => {
            head[1] = 0;
            emit_ip(*ip, &mut head[2..]);
        }
    }
    port.copy_from_slice(&target.port.to_be_bytes());
    len
}

/// Splits what a server's frame holds into the source of the answer and the offset of the payload.
///
/// # Errors
/// [`WireError`] for an unknown family and a short frame.
pub fn parse_answer(frame: &[u8]) -> Result<(SocketAddr, usize), WireError> {
    let (ip, rest) = parse_ip(frame)?;
    let (port, payload) = parse_port(rest)?;
    Ok((SocketAddr::new(ip.to_canonical(), port), frame.len() - payload.len()))
}

/// Length of the header for an answer from `source`, in bytes.
pub fn answer_len(source: SocketAddr) -> usize {
    3 + ip_len(source.ip())
}

/// Writes the header for an answer from `source` to the front of `out`; returns its length, [`answer_len`].
///
/// # Panics
/// If `out` is shorter than that.
pub fn emit_answer(source: SocketAddr, out: &mut [u8]) -> usize {
    let len = answer_len(source);
    let (head, port) = out[..len].split_at_mut(len - 2);
    emit_ip(source.ip(), head);
    port.copy_from_slice(&source.port().to_be_bytes());
    len
}

fn parse_ip(bytes: &[u8]) -> Result<(IpAddr, &[u8]), WireError> {
    let [family, rest @ ..] = bytes else { return Err(CUT) };
    match *family {
        IPV4 => {
            let (ip, rest) = rest.split_first_chunk::<4>().ok_or(CUT)?;
            Ok((Ipv4Addr::from(*ip).into(), rest))
        }
        IPV6 => {
            let (ip, rest) = rest.split_first_chunk::<16>().ok_or(CUT)?;
            Ok((Ipv6Addr::from(*ip).into(), rest))
        }
        other => Err(WireError::Malformed { what: "address family", got: other.into() }),
    }
}

fn parse_port(bytes: &[u8]) -> Result<(u16, &[u8]), WireError> {
    let (port, rest) = bytes.split_first_chunk().ok_or(CUT)?;
    Ok((u16::from_be_bytes(*port), rest))
}

fn ip_len(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 4 } else { 16 }
}

/// Writes family and address; `out` has their length.
fn emit_ip(ip: IpAddr, out: &mut [u8]) {
    match ip {
        IpAddr::V4(ip) => {
            out[0] = IPV4;
            out[1..].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out[0] = IPV6;
            out[1..].copy_from_slice(&ip.octets());
        }
    }
}

/// Fuzz target: what parses emits to bytes that parse to the same, in both directions.
#[doc(hidden)]
pub fn fuzz_udp(data: &[u8]) {
    if let Ok((target, at)) = parse_request(data) {
        assert!(at <= data.len() && request_len(&target) <= MAX_REQUEST_HEADER);
        let mut again = [0; MAX_REQUEST_HEADER];
        let len = emit_request(&target, &mut again);
        assert_eq!(parse_request(&again[..len]), Ok((target, len)));
    }
    if let Ok((source, at)) = parse_answer(data) {
        assert!(at <= data.len());
        let mut again = [0; MAX_ANSWER_HEADER];
        let len = emit_answer(source, &mut again);
        assert_eq!(parse_answer(&again[..len]), Ok((source, len)));
    }
}

/// Longest payload for `target`, in bytes.
pub fn max_request_payload(target: &Target) -> usize {
    MAX_PAYLOAD - request_len(target)
}

/// Longest payload of an answer from `source`, in bytes.
pub fn max_answer_payload(source: SocketAddr) -> usize {
    MAX_PAYLOAD - answer_len(source)
}
