//! The header in front of each datagram between a client and the relay (RFC 1928, section 7).

use super::address::{self, AddressError};
use crate::wire::{Target, WireError};

/// Longest header: two reserved bytes, the fragment number, a name of 255 bytes.
pub const MAX_HEADER_LEN: usize = 3 + address::MAX_LEN;

/// Splits a datagram into its target and the offset of its data.
///
/// # Errors
/// [`WireError::Unsupported`] for fragments (RFC 1928 lets a relay drop them, and all known ones do);
/// [`WireError::Truncated`] and [`WireError::Malformed`] otherwise. The reaction is always to drop the datagram.
pub fn parse_datagram(datagram: &[u8]) -> Result<(Target, usize), WireError> {
    const TRUNCATED: WireError = WireError::Truncated { what: "SOCKS5 datagram header" };
    let Some((prefix, rest)) = datagram.split_at_checked(3) else { return Err(TRUNCATED) };
    let reserved = u16::from_be_bytes([prefix[0], prefix[1]]);
    if reserved != 0 {
        return Err(WireError::Malformed {
            what: "reserved field of a SOCKS5 datagram",
            got: reserved.into(),
        });
    }
    if prefix[2] != 0 {
        return Err(WireError::Unsupported { what: "SOCKS5 fragment", got: prefix[2].into() });
    }
    match address::parse(rest) {
        Ok(Some((target, len))) => Ok((target, 3 + len)),
        Ok(None) => Err(TRUNCATED),
        Err(AddressError::Type(kind)) => {
            Err(WireError::Unsupported { what: "address type", got: kind.into() })
        }
        Err(AddressError::Host(_)) => Err(WireError::Malformed { what: "host name", got: 0 }),
    }
}

/// Length of the header for `target`, in bytes.
pub fn header_len(target: &Target) -> usize {
    3 + address::encoded_len(target)
}

/// Writes the header for `target` to the front of `out`; returns its length, [`header_len`].
///
/// # Panics
/// If `out` is shorter than that.
pub fn emit_header(target: &Target, out: &mut [u8]) -> usize {
    out[..3].fill(0);
    3 + address::emit_at(target, &mut out[3..])
}

/// Any datagram is refused, or its header emits again to bytes that parse to the same.
#[doc(hidden)]
pub fn fuzz_socks_udp(data: &[u8]) {
    let Ok((target, offset)) = parse_datagram(data) else { return };
    assert!(offset <= data.len(), "header lies in the datagram");
    let mut again = [0; MAX_HEADER_LEN];
    let len = emit_header(&target, &mut again);
    assert_eq!(parse_datagram(&again[..len]), Ok((target, len)), "emitted header parses to the same");
}
