//! Datagrams of UDP: read, and built as one packet or as one that stands for many.

use std::net::SocketAddr;
use std::ops::Range;

use super::{IpHeader, Meta, UDP, V6_LEN, checksum, emit};
use crate::wire::WireError;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Place of the checksum in the header.
pub const CHECKSUM_AT: usize = 6;
/// Most bytes that [`emit_headers`] writes.
pub const MAX_HEADERS: usize = V6_LEN + HEADER_LEN;

/// One datagram, or one that stands for many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpDatagram {
    /// The sender's port.
    pub from_port: u16,
    /// The receiver's.
    pub to_port: u16,
    checksum: u16,
    /// Range of its payload in the packet.
    pub payload: Range<usize>,
}

impl UdpDatagram {
    /// Reads the datagram in a packet whose `header` has been read.
    ///
    /// # Errors
    /// [`WireError::Unsupported`] if there is no UDP in it or only a part of a datagram, [`WireError::Truncated`] and
    /// [`WireError::Malformed`] for lengths that contradict each other.
    pub fn parse(packet: &[u8], header: &IpHeader) -> Result<Self, WireError> {
        if header.protocol != UDP || header.is_fragment {
            return Err(WireError::Unsupported { what: "ip protocol", got: header.protocol.into() });
        }
        let bytes = packet.get(header.payload.clone()).unwrap_or_default();
        let Some([p0, p1, q0, q1, l0, l1, c0, c1]) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(WireError::Truncated { what: "udp header" });
        };
        let len = usize::from(u16::from_be_bytes([*l0, *l1]));
        if len < HEADER_LEN {
            return Err(WireError::Malformed { what: "udp length", got: len as u64 });
        }
        if len > bytes.len() {
            return Err(WireError::Truncated { what: "udp datagram" });
        }
        let start = header.payload.start;
        Ok(Self {
            from_port: u16::from_be_bytes([*p0, *p1]),
            to_port: u16::from_be_bytes([*q0, *q1]),
            checksum: u16::from_be_bytes([*c0, *c1]),
            payload: start + HEADER_LEN..start + len,
        })
    }

    /// Its sender and receiver.
    pub fn ends(&self, header: &IpHeader) -> (SocketAddr, SocketAddr) {
        (SocketAddr::new(header.source, self.from_port), SocketAddr::new(header.destination, self.to_port))
    }

    /// Whether its checksum is right, or is none, which only IPv4 allows.
    pub fn is_intact(&self, packet: &[u8], header: &IpHeader) -> bool {
        if self.checksum == 0 {
            return !header.is_v6();
        }
        let bytes = packet.get(header.payload.start..self.payload.end).unwrap_or_default();
        let pseudo = checksum::pseudo(header.source, header.destination, UDP, bytes.len());
        checksum::finish(pseudo + checksum::sum(bytes)) == 0
    }
}

/// Writes the headers of a datagram with `len` bytes of payload, whose checksum the kernel completes or [`complete`] does.
/// Returns the length of the IP header; that of UDP follows. `id` tells packets apart that are cut on their way.
///
/// `None` if `out` is shorter than [`MAX_HEADERS`], the addresses are of two families, or the packet would be too long.
pub fn emit_headers(
    out: &mut [u8],
    from: SocketAddr,
    to: SocketAddr,
    class: u8,
    id: u16,
    len: usize,
) -> Option<usize> {
    let len = HEADER_LEN + len;
    let meta = Meta { protocol: UDP, class, id };
    let ip_len = emit(out, from.ip(), to.ip(), meta, len)?;
    let head = out.get_mut(ip_len..)?.first_chunk_mut::<HEADER_LEN>()?;
    let stated = u16::try_from(len).ok()?;
    head[..2].copy_from_slice(&from.port().to_be_bytes());
    head[2..4].copy_from_slice(&to.port().to_be_bytes());
    head[4..6].copy_from_slice(&stated.to_be_bytes());
    let sum = checksum::fold(checksum::pseudo(from.ip(), to.ip(), UDP, len));
    head[CHECKSUM_AT..].copy_from_slice(&sum.to_be_bytes());
    Some(ip_len)
}

/// Completes the checksum in `headers`, as [`emit_headers`] wrote them, for their `payload`.
pub fn complete(headers: &mut [u8], ip_len: usize, payload: &[u8]) {
    let Some(head) = headers.get_mut(ip_len..).and_then(<[u8]>::first_chunk_mut::<HEADER_LEN>) else {
        return;
    };
    // The field holds the sum of the pseudo header, and is counted with the rest.
    let sum = checksum::finish(checksum::sum(head) + checksum::sum(payload));
    // RFC 768: a checksum of 0 is sent as its other form, for 0 means none.
    let sum = if sum == 0 { 0xffff } else { sum };
    head[CHECKSUM_AT..].copy_from_slice(&sum.to_be_bytes());
}
