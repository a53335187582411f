//! From a captured frame to what TCP and UDP say: addresses, ports, flags, lengths.
//!
//! Only headers are looked at, within what was captured. Lengths of payload come from the IP header, because captures
//! may be cut. Fragments other than the first have no ports and are left out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The type of a frame's first header; the numbers are those of capture files (LINKTYPE_).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// 1: Ethernet, with up to two VLAN tags. Loopback of Linux looks like this.
    Ethernet,
    /// 0 and 108: four bytes of address family.
    Loop,
    /// 101, 228, 229: an IP header at once.
    Ip,
    /// 113: Linux "cooked" capture.
    Cooked,
    /// 276: the same, version 2.
    Cooked2,
}

impl Link {
    /// The link type of this number, if it is one of those above.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Ethernet,
            0 | 108 => Self::Loop,
            101 | 228 | 229 => Self::Ip,
            113 => Self::Cooked,
            276 => Self::Cooked2,
            _ => return None,
        })
    }

    /// The IP packet in `frame`.
    fn ip(self, frame: &[u8]) -> Option<&[u8]> {
        const VLAN: [u16; 2] = [0x8100, 0x88a8];
        match self {
            Self::Ip => Some(frame),
            Self::Loop => frame.get(4..),
            Self::Cooked => frame.get(16..),
            Self::Cooked2 => frame.get(20..),
            Self::Ethernet => {
                let mut at = 12;
                for _ in 0..3 {
                    let kind = word(frame, at)?;
                    at += 2;
                    if !VLAN.contains(&kind) {
                        return matches!(kind, 0x0800 | 0x86dd).then(|| frame.get(at..))?;
                    }
                    at += 2;
                }
                None
            }
        }
    }
}

/// The payload of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A TCP segment.
    Tcp(Tcp),
    /// A UDP datagram.
    Udp,
}

/// The header of a TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tcp {
    /// Number of the first byte.
    pub sequence: u32,
    /// Number of the next byte that is expected, if `ack`.
    pub acknowledged: u32,
    /// Flags.
    pub syn: bool,
    /// Flags.
    pub ack: bool,
    /// Flags.
    pub fin: bool,
    /// Flags.
    pub rst: bool,
    /// Largest segment that the sender takes: option 2, on SYN segments.
    pub mss: Option<u16>,
}

/// A packet of TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its sender.
    pub from: SocketAddr,
    /// Its destination.
    pub to: SocketAddr,
    /// Its payload.
    pub transport: Transport,
    /// Bytes of payload, whether captured or not.
    pub len: usize,
    /// The payload as far as it was captured.
    pub payload: &'a [u8],
    /// It is a fragment, or was cut into fragments.
    pub fragment: bool,
}

/// Reads a frame; `None` if it carries neither TCP nor UDP, or was cut before their ports.
#[must_use]
pub fn parse(link: Link, frame: &[u8]) -> Option<Packet<'_>> {
    let ip = link.ip(frame)?;
    match ip.first()? >> 4 {
        4 => parse_v4(ip),
        6 => parse_v6(ip),
        _ => None,
    }
}

fn parse_v4(ip: &[u8]) -> Option<Packet<'_>> {
    let header = usize::from(ip.first()? & 15) * 4;
    let total = usize::from(word(ip, 2)?);
    let fragment = word(ip, 6)?;
    let addresses: &[u8; 8] = ip.get(12..)?.first_chunk()?;
    let [a, b, c, d, e, f, g, h] = *addresses;
    // An offset: a later fragment, without ports.
    if fragment & 0x1fff != 0 || header < 20 {
        return None;
    }
    // Segments that the sender leaves to its network card may say 0.
    let len = if total == 0 { ip.len() } else { total };
    let ends = (IpAddr::from(Ipv4Addr::new(a, b, c, d)), IpAddr::from(Ipv4Addr::new(e, f, g, h)));
    transport(ends, *ip.get(9)?, ip.get(header..)?, len.checked_sub(header)?, fragment & 0x2000 != 0)
}

fn parse_v6(ip: &[u8]) -> Option<Packet<'_>> {
    const MOST_HEADERS: usize = 8;
    let address =
        |at: usize| ip.get(at..)?.first_chunk::<16>().map(|bytes| IpAddr::from(Ipv6Addr::from(*bytes)));
    let ends = (address(8)?, address(24)?);
    let said = usize::from(word(ip, 4)?);
    let mut len = if said == 0 { ip.len().checked_sub(40)? } else { said };
    let (mut next, mut rest, mut fragment) = (*ip.get(6)?, ip.get(40..)?, false);
    for _ in 0..MOST_HEADERS {
        let header = match next {
            // Hop-by-hop, routing, destination.
            0 | 43 | 60 => (usize::from(*rest.get(1)?) + 1) * 8,
            44 => {
                let offset = word(rest, 2)?;
                if offset >> 3 != 0 {
                    return None;
                }
                fragment = offset & 1 != 0;
                8
            }
            _ => return transport(ends, next, rest, len, fragment),
        };
        next = *rest.first()?;
        rest = rest.get(header..)?;
        len = len.checked_sub(header)?;
    }
    None
}

fn transport(
    (from, to): (IpAddr, IpAddr),
    protocol: u8,
    bytes: &[u8],
    len: usize,
    fragment: bool,
) -> Option<Packet<'_>> {
    let from = SocketAddr::new(from, word(bytes, 0)?);
    let to = SocketAddr::new(to, word(bytes, 2)?);
    let (transport, header) = match protocol {
        6 => {
            let header = usize::from(*bytes.get(12)? >> 4) * 4;
            if header < 20 {
                return None;
            }
            let flags = *bytes.get(13)?;
            let mss = if flags & 2 != 0 { bytes.get(20..header).and_then(mss) } else { None };
            let tcp = Tcp {
                sequence: long(bytes, 4)?,
                acknowledged: long(bytes, 8)?,
                fin: flags & 1 != 0,
                syn: flags & 2 != 0,
                rst: flags & 4 != 0,
                ack: flags & 16 != 0,
                mss,
            };
            (Transport::Tcp(tcp), header)
        }
        17 => (Transport::Udp, 8),
        _ => return None,
    };
    let len = len.checked_sub(header)?;
    let payload = bytes.get(header..).unwrap_or_default();
    Some(Packet { from, to, transport, len, payload: &payload[..payload.len().min(len)], fragment })
}

/// The value of option 2 among the options of a SYN segment.
fn mss(mut options: &[u8]) -> Option<u16> {
    loop {
        match options {
            [2, 4, high, low, ..] => return Some(u16::from_be_bytes([*high, *low])),
            [1, rest @ ..] => options = rest,
            [0, ..] | [] | [_] | [_, 0 | 1, ..] => return None,
            [_, len, ..] => options = options.get(usize::from(*len)..)?,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Reads a frame whose first byte chooses the link layer: no more payload than was captured, and than the packet says.
///
/// # Panics
/// If that does not hold.
pub fn fuzz_packet(data: &[u8]) {
    const LINKS: [Link; 5] = [Link::Ethernet, Link::Loop, Link::Ip, Link::Cooked, Link::Cooked2];
    let Some((&link, frame)) = data.split_first() else { return };
    if let Some(packet) = parse(LINKS[usize::from(link) % LINKS.len()], frame) {
        assert!(packet.payload.len() <= packet.len && packet.payload.len() <= frame.len());
        assert!(packet.from.is_ipv4() == packet.to.is_ipv4());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::random::Random;

    /// An Ethernet frame with a TCP segment from 10.0.0.1:`from` to 10.0.0.2:`to`.
    pub(crate) fn segment(
        from: u16,
        to: u16,
        sequence: u32,
        acknowledged: u32,
        flags: u8,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0]);
        let total = u16::try_from(40 + payload.len()).unwrap();
        frame.extend(total.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        let ends = if from < to { [10, 0, 0, 2, 10, 0, 0, 1] } else { [10, 0, 0, 1, 10, 0, 0, 2] };
        frame.extend(ends);
        frame.extend(from.to_be_bytes());
        frame.extend(to.to_be_bytes());
        frame.extend(sequence.to_be_bytes());
        frame.extend(acknowledged.to_be_bytes());
        frame.extend([0x50, flags, 1, 0, 0, 0, 0, 0]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn tcp_over_ethernet() {
        let frame = segment(40000, 443, 7, 9, 0x18, b"hello");
        let packet = parse(Link::Ethernet, &frame).unwrap();
        assert_eq!(packet.from.to_string(), "10.0.0.1:40000");
        assert_eq!(packet.to.to_string(), "10.0.0.2:443");
        assert_eq!((packet.len, packet.payload), (5, &b"hello"[..]));
        let Transport::Tcp(tcp) = packet.transport else { panic!("not TCP") };
        assert_eq!((tcp.sequence, tcp.acknowledged, tcp.ack, tcp.syn), (7, 9, true, false));
    }

    #[test]
    fn links_tags_and_cut_captures() {
        let frame = segment(40000, 443, 7, 9, 0x18, b"hello");
        let expected = parse(Link::Ethernet, &frame).unwrap();
        let with = |head: &[u8]| [head, &frame[14..]].concat();
        assert_eq!(parse(Link::Ip, &frame[14..]), Some(expected));
        assert_eq!(parse(Link::Loop, &with(&[2, 0, 0, 0])), Some(expected));
        assert_eq!(parse(Link::Cooked, &with(&[0; 16])), Some(expected));
        assert_eq!(parse(Link::Cooked2, &with(&[0; 20])), Some(expected));
        let tagged = [&frame[..12], &[0x81, 0, 0, 5, 8, 0], &frame[14..]].concat();
        assert_eq!(parse(Link::Ethernet, &tagged), Some(expected));
        let cut = parse(Link::Ethernet, &frame[..frame.len() - 3]).unwrap();
        assert_eq!((cut.len, cut.payload), (5, &b"he"[..]));
    }

    #[test]
    fn udp_over_ipv6_with_extension() {
        let mut ip = vec![0x60, 0, 0, 0, 0, 8 + 8 + 3, 60, 64];
        ip.extend([0; 15]);
        ip.push(1);
        ip.extend([0; 15]);
        ip.push(2);
        ip.extend([17, 0, 0, 0, 0, 0, 0, 0]);
        ip.extend([0, 53, 0x30, 0x39, 0, 11, 0, 0, b'a', b'b', b'c']);
        let packet = parse(Link::Ip, &ip).unwrap();
        assert_eq!((packet.from.to_string(), packet.len), ("[::1]:53".to_owned(), 3));
        assert_eq!(packet.transport, Transport::Udp);
    }

    #[test]
    fn mss_among_options() {
        assert_eq!(mss(&[1, 1, 2, 4, 5, 180]), Some(1460));
        assert_eq!(mss(&[8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 0, 9]), Some(9));
        for broken in [&[][..], &[0, 2, 4, 1, 1], &[8, 0, 2, 4, 1, 1], &[3, 200, 2, 4], &[2]] {
            assert_eq!(mss(broken), None);
        }
    }

    #[test]
    fn nothing_makes_it_panic() {
        let mut random = Random::new(1);
        let frame = segment(1, 2, 3, 4, 2, &[9; 40]);
        for link in [Link::Ethernet, Link::Loop, Link::Ip, Link::Cooked, Link::Cooked2] {
            for len in 0..frame.len() {
                assert!(parse(link, &frame[..len]).is_none_or(|packet| packet.payload.len() <= len));
            }
            for _ in 0..20_000 {
                let mut changed = frame.clone();
                for _ in 0..4 {
                    let at = random.below(u32::try_from(changed.len()).unwrap()) as usize;
                    changed[at] = random.next_u64().to_le_bytes()[0];
                }
                if let Some(packet) = parse(link, &changed) {
                    assert!(packet.payload.len() <= packet.len);
                }
            }
        }
    }
}
