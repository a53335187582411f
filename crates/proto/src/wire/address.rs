//! The address of SOCKS5 requests (RFC 1928, section 5), which Shadowsocks and its relatives reuse.
//!
//! ```text
//!   +------+-------------------------------------+----------+
//!   | ATYP | address                             | port     |
//!   |  1   | 1: 4 bytes, IPv4                    | 2, big-  |
//!   |      | 3: length L (1) and L bytes of name | endian   |
//!   |      | 4: 16 bytes, IPv6                   |          |
//!   +------+-------------------------------------+----------+
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Host, Target, WireError};

/// Longest address: type, length byte, a name of 255 bytes, port.
pub const MAX_ADDRESS_LEN: usize = 1 + 1 + 255 + 2;

const TYPE_IPV4: u8 = 1;
const TYPE_NAME: u8 = 3;
const TYPE_IPV6: u8 = 4;

/// Result of [`parse_address`] at the start of some bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An address of this length in bytes.
    Whole(Target, usize),
    /// The start of an address; at least so many further bytes are missing.
    NeedMore(usize),
}

/// Length in bytes of `target` on the wire.
pub fn address_len(target: &Target) -> usize {
    3 + match &target.host {
        Host::Ip(IpAddr::V4(_)) => 4,
        Host::Ip(IpAddr::V6(_)) => 16,
        Host::Name(name) => 1 + name.len(),
    }
}

/// Writes `target` to the start of `out` and returns its length.
///
/// # Panics
/// If `out` is shorter than [`address_len`], or the name longer than 255 bytes (which [`Host::parse`] rules out).
pub fn emit_address(target: &Target, out: &mut [u8]) -> usize {
    let len = address_len(target);
    let (head, port) = out[..len].split_at_mut(len - 2);
    match &target.host {
        Host::Ip(IpAddr::V4(ip)) => {
            head[0] = TYPE_IPV4;
            head[1..].copy_from_slice(&ip.octets());
        }
        Host::Ip(IpAddr::V6(ip)) => {
            head[0] = TYPE_IPV6;
            head[1..].copy_from_slice(&ip.octets());
        }
        Host::Name(name) => {
            head[0] = TYPE_NAME;
            head[1] = u8::try_from(name.len()).expect("names have at most 255 bytes");
            head[2..].copy_from_slice(name.as_bytes());
        }
    }
    port.copy_from_slice(&target.port.to_be_bytes());
    len
}

/// Reads the address at the start of `bytes`.
///
/// # Errors
/// [`WireError::Malformed`] for an unknown type and for a name that is no host name.
pub fn parse_address(bytes: &[u8]) -> Result<Address, WireError> {
    let Some(&kind) = bytes.first() else { return Ok(Address::NeedMore(1)) };
    let host_at = if kind == TYPE_NAME { 2 } else { 1 };
    let host_len = match kind {
        TYPE_IPV4 => 4,
        TYPE_IPV6 => 16,
        TYPE_NAME => match bytes.get(1) {
            None => return Ok(Address::NeedMore(1)),
            Some(&len) => usize::from(len),
        },
        _ => return Err(WireError::Malformed { what: "address type", got: kind.into() }),
    };
    let len = host_at + host_len + 2;
    if bytes.len() < len {
        return Ok(Address::NeedMore(len - bytes.len()));
    }
    let host = &bytes[host_at..host_at + host_len];
    let port = u16::from_be_bytes([bytes[len - 2], bytes[len - 1]]);
    let host = if let Ok(octets) = <[u8; 4]>::try_from(host)
        && kind == TYPE_IPV4
    {
        Host::Ip(Ipv4Addr::from(octets).into())
    } else if let Ok(octets) = <[u8; 16]>::try_from(host)
        && kind == TYPE_IPV6
    {
        Host::Ip(IpAddr::from(Ipv6Addr::from(octets)).to_canonical())
    } else {
        let bad = |_| WireError::Malformed { what: "host name of length", got: host_len as u64 };
        Host::parse(host).map_err(bad)?
    };
    Ok(Address::Whole(Target { host, port }, len))
}

/// Fuzz target: every address that parses is emitted and parsed again to the same target.
#[doc(hidden)]
pub fn fuzz_address(bytes: &[u8]) {
    if let Ok(Address::Whole(target, len)) = parse_address(bytes) {
        assert!(len <= bytes.len() && len <= MAX_ADDRESS_LEN);
        let mut out = [0; MAX_ADDRESS_LEN];
        let len = emit_address(&target, &mut out);
        assert_eq!(parse_address(&out[..len]), Ok(Address::Whole(target, len)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_and_every_truncation() {
        let long = format!("{}:65535", "a".repeat(255));
        for text in ["1.2.3.4:80", "[2001:db8::1]:443", "example.com:0", "a:1", &long] {
            let target: Target = text.parse().unwrap();
            let mut bytes = [0xee; MAX_ADDRESS_LEN + 1];
            let len = emit_address(&target, &mut bytes);
            assert_eq!(len, address_len(&target));
            assert_eq!(bytes[len], 0xee);
            assert_eq!(parse_address(&bytes), Ok(Address::Whole(target, len)));
            for cut in 0..len {
                let Ok(Address::NeedMore(more)) = parse_address(&bytes[..cut]) else {
                    panic!("{text} cut to {cut}");
                };
                assert!(more > 0 && cut + more <= len);
                fuzz_address(&bytes[..cut]);
            }
            fuzz_address(&bytes);
        }
    }

    #[test]
    fn rejects() {
        for kind in (0..=255_u8).filter(|kind| ![1, 3, 4].contains(kind)) {
            let got = parse_address(&[kind]);
            assert_eq!(got, Err(WireError::Malformed { what: "address type", got: kind.into() }));
        }
        assert!(parse_address(&[3, 0, 0, 80]).is_err(), "empty name");
        assert!(parse_address(&[3, 1, 0, 0, 80]).is_err(), "NUL in a name");
    }

    #[test]
    fn addresses_in_text_are_addresses() {
        let bytes = [&[3, 7][..], b"1.2.3.4", &[0, 80]].concat();
        assert_eq!(parse_address(&bytes), Ok(Address::Whole("1.2.3.4:80".parse().unwrap(), 11)));
    }
}
