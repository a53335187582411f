//! Segments of TCP: read, led to another address in place, and refused.

use std::net::SocketAddr;

use super::{IpHeader, Meta, TCP, checksum, emit, readdress};
use crate::wire::WireError;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Place of the checksum in the header.
pub const CHECKSUM_AT: usize = 16;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// One segment, or one that stands for many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpSegment {
    /// The sender's port.
    pub from_port: u16,
    /// The receiver's.
    pub to_port: u16,
    pub(super) sequence: u32,
    pub(super) acknowledgement: u32,
    pub(super) flags: u8,
    /// Bytes of its header.
    pub header_len: usize,
    /// Bytes of its data.
    data_len: usize,
}

impl TcpSegment {
    /// Reads the segment in a packet whose `header` has been read.
    ///
    /// # Errors
    /// [`WireError::Unsupported`] if there is no TCP in it or only a part of a segment, [`WireError::Truncated`] and
    /// [`WireError::Malformed`] for lengths that contradict each other.
    pub fn parse(packet: &[u8], header: &IpHeader) -> Result<Self, WireError> {
        if header.protocol != TCP || header.is_fragment {
            return Err(WireError::Unsupported { what: "ip protocol", got: header.protocol.into() });
        }
        let bytes = packet.get(header.payload.clone()).unwrap_or_default();
        let Some(head) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(WireError::Truncated { what: "tcp header" });
        };
        let [p0, p1, q0, q1, s0, s1, s2, s3, a0, a1, a2, a3, len, flags, ..] = *head;
        let header_len = usize::from(len >> 4) * 4;
        if header_len < HEADER_LEN {
            return Err(WireError::Malformed { what: "tcp header length", got: header_len as u64 });
        }
        let Some(data_len) = bytes.len().checked_sub(header_len) else {
            return Err(WireError::Truncated { what: "tcp options" });
        };
        Ok(Self {
            from_port: u16::from_be_bytes([p0, p1]),
            to_port: u16::from_be_bytes([q0, q1]),
            sequence: u32::from_be_bytes([s0, s1, s2, s3]),
            acknowledgement: u32::from_be_bytes([a0, a1, a2, a3]),
            flags,
            header_len,
            data_len,
        })
    }

    /// Its sender and receiver.
    pub fn ends(&self, header: &IpHeader) -> (SocketAddr, SocketAddr) {
        (SocketAddr::new(header.source, self.from_port), SocketAddr::new(header.destination, self.to_port))
    }

    /// Whether it asks for a new connection.
    pub fn is_opening(&self) -> bool {
        self.flags & (SYN | ACK | RST) == SYN
    }

    /// Whether it ends a connection at once.
    pub fn is_reset(&self) -> bool {
        self.flags & RST != 0
    }

    /// Sequence numbers that it takes.
    fn len(&self) -> u32 {
        let flags = u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0);
        u32::try_from(self.data_len).unwrap_or(u32::MAX).wrapping_add(flags)
    }
}

/// Leads a segment to another address, from another one, in place; `packet` is what `header` and [`TcpSegment::parse`] were
/// read from. Of a checksum that `is_partial`, the kernel completes the rest; any other one is adjusted, so that a wrong
/// one stays wrong.
///
/// # Errors
/// [`WireError::Malformed`] if a new address is of another family, [`WireError::Truncated`] if there is no whole header.
pub fn rewrite(
    packet: &mut [u8],
    header: &IpHeader,
    is_partial: bool,
    from: SocketAddr,
    to: SocketAddr,
) -> Result<(), WireError> {
    let (old, new) = readdress(packet, header, from, to)?;
    let len = header.payload.len();
    let Some(head) = packet.get_mut(header.payload.start..).and_then(<[u8]>::first_chunk_mut::<HEADER_LEN>)
    else {
        return Err(WireError::Truncated { what: "tcp header" });
    };
    let ports = checksum::sum(&head[..4]);
    head[..2].copy_from_slice(&from.port().to_be_bytes());
    head[2..4].copy_from_slice(&to.port().to_be_bytes());
    let sum = if is_partial {
        checksum::fold(checksum::pseudo(from.ip(), to.ip(), TCP, len))
    } else {
        let before = u16::from_be_bytes([head[CHECKSUM_AT], head[CHECKSUM_AT + 1]]);
        checksum::adjust(before, old + ports, new + checksum::sum(&head[..4]))
    };
    head[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Writes the packet that refuses `segment` (RFC 9293, 3.10.7.1) and returns its length. `None` for a segment that is a
/// refusal itself, and if `out` is shorter than 60 bytes.
pub fn reset(out: &mut [u8], header: &IpHeader, segment: &TcpSegment) -> Option<usize> {
    if segment.is_reset() {
        return None;
    }
    let (client, target) = segment.ends(header);
    let meta = Meta { protocol: TCP, class: 0, id: 0 };
    let ip_len = emit(out, target.ip(), client.ip(), meta, HEADER_LEN)?;
    let head = out.get_mut(ip_len..)?.first_chunk_mut::<HEADER_LEN>()?;
    *head = [0; HEADER_LEN];
    head[..2].copy_from_slice(&target.port().to_be_bytes());
    head[2..4].copy_from_slice(&client.port().to_be_bytes());
    head[12] = 5 << 4;
    if segment.flags & ACK != 0 {
        head[4..8].copy_from_slice(&segment.acknowledgement.to_be_bytes());
        head[13] = RST;
    } else {
        let next = segment.sequence.wrapping_add(segment.len());
        head[8..12].copy_from_slice(&next.to_be_bytes());
        head[13] = RST | ACK;
    }
    let pseudo = checksum::pseudo(target.ip(), client.ip(), TCP, HEADER_LEN);
    let sum = checksum::finish(pseudo + checksum::sum(head));
    head[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
    Some(ip_len + HEADER_LEN)
}

/// Whether the checksum of the segment in `packet` is right.
pub fn is_intact(packet: &[u8], header: &IpHeader) -> bool {
    let bytes = packet.get(header.payload.clone()).unwrap_or_default();
    let pseudo = checksum::pseudo(header.source, header.destination, TCP, bytes.len());
    checksum::finish(pseudo + checksum::sum(bytes)) == 0
}
