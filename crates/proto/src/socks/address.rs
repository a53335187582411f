//! Address and port as SOCKS5 writes them; see the picture in the parent module.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::{Host, Target, TargetError};

const TYPE_V4: u8 = 1;
const TYPE_NAME: u8 = 3;
const TYPE_V6: u8 = 4;

/// Longest encoded address: type, length, 255 bytes of name, port.
pub(super) const MAX_LEN: usize = 1 + 1 + 255 + 2;

/// Why bytes are no address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AddressError {
    /// A type that RFC 1928 does not define.
    Type(u8),
    /// A name that cannot be one.
    Host(TargetError),
}

/// Reads the address at the front of `bytes`: the target and its encoded length, or `None` if it is cut off.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Target, usize)>, AddressError> {
    let Some((&kind, rest)) = bytes.split_first() else { return Ok(None) };
    let (skip, len) = match kind {
        TYPE_V4 => (0, 4),
        TYPE_V6 => (0, 16),
        TYPE_NAME => match rest.first() {
            Some(&len) => (1, usize::from(len)),
            None => return Ok(None),
        },
        other => return Err(AddressError::Type(other)),
    };
    let Some(rest) = rest.get(skip..skip + len + 2) else { return Ok(None) };
    let (host, port) = rest.split_at(len);
    let host = match kind {
        TYPE_V4 => Host::Ip(IpAddr::V4(Ipv4Addr::from(array::<4>(host)))),
        TYPE_V6 => Host::Ip(IpAddr::V6(Ipv6Addr::from(array::<16>(host))).to_canonical()),
        _ => Host::parse(host).map_err(AddressError::Host)?,
    };
    let port = u16::from_be_bytes(array(port));
    Ok(Some((Target { host, port }, 1 + skip + len + 2)))
}

/// Encoded length of `target`, in bytes.
pub(super) fn encoded_len(target: &Target) -> usize {
    match &target.host {
        Host::Ip(IpAddr::V4(_)) => 1 + 4 + 2,
        Host::Ip(IpAddr::V6(_)) => 1 + 16 + 2,
        Host::Name(name) => 1 + 1 + name.len() + 2,
    }
}

/// Appends `target` to `out`.
pub(super) fn emit(target: &Target, out: &mut Vec<u8>) {
    let at = out.len();
    out.resize(at + encoded_len(target), 0);
    emit_at(target, &mut out[at..]);
}

/// Writes `target` to the front of `out`, which is at least [`encoded_len`] bytes long; returns that length.
pub(super) fn emit_at(target: &Target, out: &mut [u8]) -> usize {
    let len = encoded_len(target);
    match &target.host {
        Host::Ip(IpAddr::V4(ip)) => {
            out[0] = TYPE_V4;
            out[1..5].copy_from_slice(&ip.octets());
        }
        Host::Ip(IpAddr::V6(ip)) => {
            out[0] = TYPE_V6;
            out[1..17].copy_from_slice(&ip.octets());
        }
        Host::Name(name) => {
            out[0] = TYPE_NAME;
            out[1] = u8::try_from(name.len()).expect("names have at most 255 bytes");
            out[2..2 + name.len()].copy_from_slice(name.as_bytes());
        }
    }
    out[len - 2..len].copy_from_slice(&target.port.to_be_bytes());
    len
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("length was cut to fit")
}
