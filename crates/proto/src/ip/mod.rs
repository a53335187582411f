//! IP packets as a virtual interface gives and takes them: read, checked, rewritten in place, and built. Everything but the
//! interface's own header is big-endian.
//!
//! ```text
//!  IPv4 (RFC 791)                                    IPv6 (RFC 8200)
//!  0   version 4, header length in 4 bytes           0   version 6, class, label
//!  1   class of service                              4   length behind the header
//!  2   length with the header                        6   next header
//!  4   identification                                7   hop limit
//!  6   flags, fragment offset                        8   source                      16 bytes
//!  8   time to live                                  24  destination                 16 bytes
//!  9   protocol                                      40  extension headers, at most [`MAX_EXTENSIONS`]
//!  10  checksum of the header
//!  12  source, 16 destination, 20 options
//!
//!  TCP (RFC 9293)                     UDP (RFC 768)        ICMP (RFC 792, RFC 4443)
//!  0   from, 2 to: ports              0  from, 2 to        0  type, 1 code
//!  4   sequence, 8 acknowledgement    4  length            2  checksum
//!  12  header length, 13 flags        6  checksum          4  depends on the type
//!  14  window, 16 checksum, 18 urgent 8  payload           8  quoted packet, or payload
//! ```
//!
//! With offload a packet is up to 65,535 bytes long and stands for many (see [`offload`]): its checksum field holds the sum
//! of the pseudo header alone, and the kernel cuts it later. A super-packet has one source and one destination, so that
//! rewriting its header once rewrites all of its segments.
//!
//! Lengths are those that the packet states, checked against the bytes that are there; bytes behind the stated end are
//! ignored. Nothing here panics, for any bytes.

pub mod checksum;
pub mod icmp;
pub mod offload;
pub mod tcp;
pub mod udp;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use crate::wire::WireError;

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of ICMPv6.
pub const ICMP_V6: u8 = 58;

/// Longest packet in bytes, its header included: what both families can state without a jumbo option. IPv6 could be 40
/// bytes longer, which no kernel sends.
pub const MAX_LEN: usize = 65_535;

/// Bytes of an IPv4 header without options.
pub const V4_LEN: usize = 20;
/// Bytes of the fixed IPv6 header.
pub const V6_LEN: usize = 40;

/// Most extension headers that are passed over; RFC 8200 names six kinds, of which one may stand twice.
pub const MAX_EXTENSIONS: usize = 8;

/// Hops of packets that are built here; the value that Linux uses.
const HOPS: u8 = 64;

/// The header of one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpHeader {
    /// Its sender.
    pub source: IpAddr,
    /// Its receiver, of the same family.
    pub destination: IpAddr,
    /// Protocol of the payload, behind all extension headers.
    pub protocol: u8,
    /// Class of service, with the marks of congestion in its last two bits.
    pub class: u8,
    /// It is a part of a larger packet.
    pub is_fragment: bool,
    /// Range of the payload in the packet; its end is that of the packet.
    pub payload: Range<usize>,
}

impl IpHeader {
    /// Reads the header of `packet`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if there are fewer bytes than the packet states, [`WireError::Malformed`] for a version
    /// other than 4 and 6 or lengths that contradict each other, [`WireError::Unsupported`] for too many extension headers.
    pub fn parse(packet: &[u8]) -> Result<Self, WireError> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => parse_v4(packet),
            Some(6) => parse_v6(packet),
            Some(version) => Err(WireError::Malformed { what: "ip version", got: version.into() }),
            None => Err(WireError::Truncated { what: "ip header" }),
        }
    }

    /// Whether it is IPv6.
    pub fn is_v6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// Whether a connection can go to its destination: no group, no network, nothing that stays on a host.
    pub fn is_to_a_host(&self) -> bool {
        is_host(self.destination)
    }

    /// Whether a host can have sent it.
    pub fn is_from_a_host(&self) -> bool {
        is_host(self.source)
    }
}

/// Whether packets to this address leave a host for one other.
fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_multicast() || v4.is_broadcast() || v4.is_loopback() || v4.octets()[0] == 0)
        }
        IpAddr::V6(v6) => {
            !(v6.is_multicast() || v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local())
        }
    }
}

fn parse_v4(packet: &[u8]) -> Result<IpHeader, WireError> {
    let Some(head) = packet.first_chunk::<V4_LEN>() else {
        return Err(WireError::Truncated { what: "ip header" });
    };
    let header_len = usize::from(head[0] & 0xf) * 4;
    let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    if header_len < V4_LEN {
        return Err(WireError::Malformed { what: "ip header length", got: header_len as u64 });
    }
    if len < header_len {
        return Err(WireError::Malformed { what: "ip length", got: len as u64 });
    }
    if len > packet.len() {
        return Err(WireError::Truncated { what: "ip packet" });
    }
    const MORE: u16 = 0x2000;
    const OFFSET: u16 = 0x1fff;
    let fragment = u16::from_be_bytes([head[6], head[7]]);
    let address = |at: usize| Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]);
    Ok(IpHeader {
        source: address(12).into(),
        destination: address(16).into(),
        protocol: head[9],
        class: head[1],
        is_fragment: fragment & (MORE | OFFSET) != 0,
        payload: header_len..len,
    })
}

fn parse_v6(packet: &[u8]) -> Result<IpHeader, WireError> {
    let Some(head) = packet.first_chunk::<V6_LEN>() else {
        return Err(WireError::Truncated { what: "ip header" });
    };
    let len = V6_LEN + usize::from(u16::from_be_bytes([head[4], head[5]]));
    let Some(packet) = packet.get(..len) else {
        return Err(WireError::Truncated { what: "ip packet" });
    };
    let (protocol, start, is_fragment) = pass_extensions(packet, head[6])?;
    Ok(IpHeader {
        source: v6_at(head, 8).into(),
        destination: v6_at(head, 24).into(),
        protocol,
        class: head[0] << 4 | head[1] >> 4,
        is_fragment,
        payload: start..len,
    })
}

fn v6_at(head: &[u8; V6_LEN], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&head[at..at + 16]);
    octets.into()
}

/// The protocol behind the extension headers, where it begins, and whether the packet is a fragment.
fn pass_extensions(packet: &[u8], first: u8) -> Result<(u8, usize, bool), WireError> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;
    let (mut protocol, mut at, mut is_fragment) = (first, V6_LEN, false);
    for _ in 0..=MAX_EXTENSIONS {
        let is_extension = matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION);
        // Behind the first fragment's headers nothing of a later one can be read.
        if !is_extension || is_fragment {
            return Ok((protocol, at, is_fragment));
        }
        let Some([next, len, high, low, ..]) = packet.get(at..at + 8) else {
            return Err(WireError::Truncated { what: "ip extension header" });
        };
        let len = match protocol {
            FRAGMENT => {
                // Offset in units of 8 bytes, two bits that mean nothing, and whether more follows.
                is_fragment = u16::from_be_bytes([*high, *low]) & 0xfff9 != 0;
                8
            }
            AUTHENTICATION => (usize::from(*len) + 2) * 4,
            _ => (usize::from(*len) + 1) * 8,
        };
        (protocol, at) = (*next, at + len);
        if at > packet.len() {
            return Err(WireError::Truncated { what: "ip extension header" });
        }
    }
    Err(WireError::Unsupported { what: "number of ip extension headers", got: MAX_EXTENSIONS as u64 + 1 })
}

/// Writes an IP header for `len` bytes of payload and returns its length; `None` if `out` is too short, the addresses are
/// of two families, or the packet would be longer than [`MAX_LEN`].
fn emit(out: &mut [u8], from: IpAddr, to: IpAddr, meta: Meta, len: usize) -> Option<usize> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let head = out.first_chunk_mut::<V4_LEN>()?;
            let total = u16::try_from(V4_LEN + len).ok()?;
            *head = [0; V4_LEN];
            head[0] = 0x45;
            head[1] = meta.class;
            head[2..4].copy_from_slice(&total.to_be_bytes());
            head[4..6].copy_from_slice(&meta.id.to_be_bytes());
            (head[8], head[9]) = (HOPS, meta.protocol);
            head[12..16].copy_from_slice(&from.octets());
            head[16..20].copy_from_slice(&to.octets());
            let sum = checksum::finish(checksum::sum(head));
            head[10..12].copy_from_slice(&sum.to_be_bytes());
            Some(V4_LEN)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let head = out.first_chunk_mut::<V6_LEN>()?;
            let behind = u16::try_from(len).ok().filter(|_| V6_LEN + len <= MAX_LEN)?;
            *head = [0; V6_LEN];
            head[0] = 0x60 | meta.class >> 4;
            head[1] = meta.class << 4;
            head[4..6].copy_from_slice(&behind.to_be_bytes());
            (head[6], head[7]) = (meta.protocol, HOPS);
            head[8..24].copy_from_slice(&from.octets());
            head[24..40].copy_from_slice(&to.octets());
            Some(V6_LEN)
        }
        _ => None,
    }
}

/// The fields of a new packet besides addresses and length.
#[derive(Clone, Copy)]
struct Meta {
    protocol: u8,
    class: u8,
    /// Identification, IPv4 alone.
    id: u16,
}

/// Puts other addresses into a packet whose `header` has been read, and gives the pseudo header's sums before and after.
///
/// # Errors
/// [`WireError::Malformed`] if an address is of another family than the packet.
fn readdress(
    packet: &mut [u8],
    header: &IpHeader,
    from: SocketAddr,
    to: SocketAddr,
) -> Result<(u32, u32), WireError> {
    let other_family = WireError::Malformed { what: "family of a new address", got: 0 };
    let old = checksum::addresses(header.source, header.destination);
    match (from.ip(), to.ip(), header.is_v6()) {
        (IpAddr::V4(from), IpAddr::V4(to), false) => {
            let header_len = header.payload.start;
            let Some(head) = packet.get_mut(..header_len).filter(|head| head.len() >= V4_LEN) else {
                return Err(WireError::Truncated { what: "ip header" });
            };
            head[12..16].copy_from_slice(&from.octets());
            head[16..20].copy_from_slice(&to.octets());
            head[10..12].copy_from_slice(&[0, 0]);
            let sum = checksum::finish(checksum::sum(head));
            head[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to), true) => {
            let Some(head) = packet.first_chunk_mut::<V6_LEN>() else {
                return Err(WireError::Truncated { what: "ip header" });
            };
            head[8..24].copy_from_slice(&from.octets());
            head[24..40].copy_from_slice(&to.octets());
        }
        _ => return Err(other_family),
    }
    Ok((old, checksum::addresses(from.ip(), to.ip())))
}

/// Entry of the fuzzer: hostile lengths neither panic nor reach beyond the packet, and rewriting there and back restores
/// every byte that was right before.
#[doc(hidden)]
pub fn fuzz_ip(data: &[u8]) {
    let Ok(header) = IpHeader::parse(data) else { return };
    assert!(header.payload.start <= header.payload.end && header.payload.end <= data.len());
    let mut bytes = data.to_vec();
    let (from, to) = if header.is_v6() {
        (SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7)), SocketAddr::from((Ipv6Addr::LOCALHOST, 9)))
    } else {
        (SocketAddr::from(([192, 0, 2, 1], 7)), SocketAddr::from(([192, 0, 2, 2], 9)))
    };
    if let Ok(segment) = tcp::TcpSegment::parse(&bytes, &header) {
        let (old_from, old_to) = segment.ends(&header);
        for is_partial in [false, true] {
            let whole = bytes.clone();
            tcp::rewrite(&mut bytes, &header, is_partial, from, to).expect("the families agree");
            let again = IpHeader::parse(&bytes).expect("lengths are as before");
            assert_eq!((again.source, again.destination), (from.ip(), to.ip()));
            tcp::rewrite(&mut bytes, &again, is_partial, old_from, old_to).expect("the families agree");
            let range = tcp::CHECKSUM_AT + header.payload.start;
            // The checksum of the header is always made right, and both zeros of ones' complement are one value.
            assert_eq!(bytes[range + 2..], whole[range + 2..]);
            if !is_partial {
                let word = |at: &[u8]| u16::from_be_bytes([at[range], at[range + 1]]);
                assert_eq!(word(&bytes) % 0xffff, word(&whole) % 0xffff);
            }
        }
        let mut out = [0; 64];
        if let Some(len) = tcp::reset(&mut out, &header, &segment) {
            assert!(IpHeader::parse(&out[..len]).is_ok());
        }
    }
    if let Ok(datagram) = udp::UdpDatagram::parse(&bytes, &header) {
        assert!(datagram.payload.end <= header.payload.end);
        let _checked = datagram.is_intact(&bytes, &header);
    }
    let mut out = [0; icmp::MAX_LEN];
    if let Some(len) = icmp::unreachable(&mut out, &bytes, &header, icmp::Reason::Port) {
        let answer = IpHeader::parse(&out[..len]).expect("an answer is a packet");
        assert!(answer.destination == header.source && icmp::is_intact(&out[..len], &answer));
    }
    if icmp::answer_echo(&mut bytes, &header) {
        let answer = IpHeader::parse(&bytes).expect("lengths are as before");
        assert!(icmp::is_intact(&bytes, &answer));
    }
}
