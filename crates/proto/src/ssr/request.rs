//! The address at the start of a client's stream, as the Python server reads it.

use crate::crypto::crc32;
use crate::wire::{Address, MAX_ADDRESS_LEN, Target, WireError, parse_address};

/// Result of [`parse_request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParsedAddress {
    /// At least so many further bytes (never 0) are missing.
    NeedMore(usize),
    /// A whole request.
    Whole {
        /// Target that the client asks for.
        target: Target,
        /// Datagrams follow in the stream, each in a frame of its own ("UDP over TCP").
        is_udp: bool,
        /// Length of what precedes the payload, in bytes.
        len: usize,
    },
}

/// Set in the type of an address in front of datagrams ([`super::over_tcp`]).
pub(super) const UDP_OVER_TCP: u8 = 0x08;
/// Longest padding in front of an address that is waited for.
const MAX_PADDING: usize = 8192;

/// Reads the request at the start of `bytes`: an address, perhaps behind a padding. The payload of the padding with a
/// checksum (first byte 0x88 or 0x77) is not waited for in parts: it has to be there as a whole.
///
/// # Errors
/// [`WireError::Malformed`] for what is none.
pub fn parse_request(bytes: &[u8]) -> Result<ParsedAddress, WireError> {
    let skipped = match padding_len(bytes)? {
        Ok(len) => len,
        Err(missing) => return Ok(ParsedAddress::NeedMore(missing)),
    };
    let Some(address) = bytes.get(skipped..).filter(|address| !address.is_empty()) else {
        return Ok(ParsedAddress::NeedMore(skipped + 1 - bytes.len()));
    };
    let mut rest = [0; MAX_ADDRESS_LEN];
    let rest = &mut rest[..address.len().min(MAX_ADDRESS_LEN)];
    rest.copy_from_slice(&address[..rest.len()]);
    let is_udp = rest[0] & UDP_OVER_TCP != 0;
    rest[0] &= !UDP_OVER_TCP;
    match parse_address(rest)? {
        Address::NeedMore(missing) => Ok(ParsedAddress::NeedMore(missing)),
        Address::Whole(target, len) => Ok(ParsedAddress::Whole { target, is_udp, len: skipped + len }),
    }
}

/// Length of the padding in front of the address; `Err` says how many bytes are missing to know it.
fn padding_len(bytes: &[u8]) -> Result<Result<usize, usize>, WireError> {
    let need = |len: usize| if bytes.len() < len { Err(len - bytes.len()) } else { Ok(()) };
    let u16_at = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let Some(&first) = bytes.first() else { return Ok(Err(1)) };
    Ok(match first {
        0x80 => need(2).map(|()| 2 + usize::from(bytes[1])),
        0x81 => Ok(1),
        0x82 => need(3).map(|()| 3 + u16_at(1)),
        0x88 | 0x77 => match need(3).and_then(|()| need(u16_at(1).clamp(8, MAX_PADDING))) {
            Ok(()) => Ok(checked_padding(&bytes[..u16_at(1).clamp(8, MAX_PADDING)], u16_at(1))?),
            Err(missing) => Err(missing),
        },
        _ => Ok(0),
    })
}

/// The padding in front of the address of a request whose first `size` bytes have a checksum.
fn checked_padding(head: &[u8], size: usize) -> Result<usize, WireError> {
    if head.len() != size || crc32(head) != u32::MAX {
        return Err(WireError::Malformed { what: "checksum of the request", got: size as u64 });
    }
    Ok(3 + usize::from(head[3]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(target: &str, is_udp: bool, len: usize) -> Result<ParsedAddress, WireError> {
        Ok(ParsedAddress::Whole { target: target.parse().unwrap(), is_udp, len })
    }

    #[test]
    fn every_form() {
        let address = [1, 127, 0, 0, 1, 0, 80];
        for (padding, len) in [(&[][..], 0), (&[0x80, 3, 9, 9, 9], 5), (&[0x81], 1), (&[0x82, 0, 2, 7, 7], 5)]
        {
            let bytes = [padding, &address].concat();
            assert_eq!(parse_request(&bytes), whole("127.0.0.1:80", false, len + 7));
            for cut in 0..bytes.len() {
                let Ok(ParsedAddress::NeedMore(more)) = parse_request(&bytes[..cut]) else { panic!("{cut}") };
                assert!(more > 0 && cut + more <= bytes.len());
            }
        }
        assert_eq!(parse_request(&[9, 127, 0, 0, 1, 0, 80]), whole("127.0.0.1:80", true, 7));
        let mut checked = [&[0x88, 0, 19, 4, 1, 2, 3][..], &address, &[0]].concat();
        let sum = !crc32(&checked);
        checked.extend(sum.to_le_bytes());
        assert_eq!(checked.len(), 19);
        assert_eq!(parse_request(&checked), whole("127.0.0.1:80", false, 14));
        checked[5] ^= 1;
        assert!(parse_request(&checked).is_err());
        assert!(parse_request(&[0x05]).is_err());
    }
}
