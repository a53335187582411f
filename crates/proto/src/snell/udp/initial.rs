//! Telling the first packet of a QUIC connection from other datagrams.
//!
//! ```text
//!   RFC 9000, 17.2.2:  1 | 1 | type(2) | .... | version(u32 BE) | dlen dcid | slen scid | varint token | varint length
//! ```

/// Shortest datagram with a client's Initial packet (RFC 9000, 14.1).
const MIN_LEN: usize = 1200;
/// Lengths of the first connection id that a client chooses for the server (RFC 9000, 7.2 and 17.2).
const FIRST_ID: std::ops::RangeInclusive<usize> = 8..=20;
const MAX_ID: usize = 20;

/// Versions whose Initial has type 0: version 1 (RFC 9000) and the drafts that were deployed.
fn is_version_1(version: u32) -> bool {
    version == 1 || (0xff00_001d..=0xff00_0022).contains(&version)
}

/// RFC 9369, 3.1 and 3.2: its Initial has type 1.
const VERSION_2: u32 = 0x6b33_43cf;

/// Whether a datagram begins a QUIC connection: a client's Initial packet of a known version.
pub fn is_quic_initial(datagram: &[u8]) -> bool {
    datagram.len() >= MIN_LEN && has_initial(datagram).is_some()
}

fn has_initial(datagram: &[u8]) -> Option<()> {
    let (first, rest) = datagram.split_first()?;
    let (version, rest) = rest.split_first_chunk()?;
    let wanted = match u32::from_be_bytes(*version) {
        version if is_version_1(version) => 0b1100_0000,
        VERSION_2 => 0b1101_0000,
        _ => return None,
    };
    if first & 0b1111_0000 != wanted {
        return None;
    }
    let (len, rest) = rest.split_first()?;
    let (_, rest) =
        rest.split_at_checked(usize::from(*len)).filter(|(id, _)| FIRST_ID.contains(&id.len()))?;
    let (len, rest) = rest.split_first()?;
    let (_, rest) = rest.split_at_checked(usize::from(*len)).filter(|(id, _)| id.len() <= MAX_ID)?;
    let (token_len, rest) = varint(rest)?;
    let (_, rest) = rest.split_at_checked(usize::try_from(token_len).ok()?)?;
    let (len, rest) = varint(rest)?;
    (len > 0 && usize::try_from(len).ok()? <= rest.len()).then_some(())
}

/// Whether a datagram has the long header of a version that is known (RFC 8999, 5.1).
pub fn has_long_header(datagram: &[u8]) -> bool {
    let Some((first, rest)) = datagram.split_first() else { return false };
    let Some((version, _)) = rest.split_first_chunk() else { return false };
    let version = u32::from_be_bytes(*version);
    first & 0x80 != 0 && (is_version_1(version) || version == VERSION_2)
}

/// RFC 9000, 16: the two highest bits say how many bytes there are.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let value = number[1..].iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Some((value, rest))
}
