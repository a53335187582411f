//! Packets as a kernel sent them into an interface, and what becomes of them.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;

/// A SYN with a whole checksum, as a forwarded one has it.
fn syn_v4() -> Vec<u8> {
    built(addr("198.18.0.1:43210"), addr("203.0.113.7:443"), 0x02, b"")
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A segment with a timestamp option and a right checksum.
fn built(from: SocketAddr, to: SocketAddr, flags: u8, data: &[u8]) -> Vec<u8> {
    const OPTIONS: [u8; 12] = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
    let mut out = vec![0; 60];
    let len = tcp::HEADER_LEN + OPTIONS.len() + data.len();
    let ip_len = emit(&mut out, from.ip(), to.ip(), Meta { protocol: TCP, class: 0, id: 7 }, len).unwrap();
    out.truncate(ip_len);
    let mut head = [0; tcp::HEADER_LEN];
    head[..2].copy_from_slice(&from.port().to_be_bytes());
    head[2..4].copy_from_slice(&to.port().to_be_bytes());
    head[4..8].copy_from_slice(&0x1234_5678_u32.to_be_bytes());
    (head[12], head[13], head[14]) = (8 << 4, flags, 0xff);
    out.extend(head);
    out.extend(OPTIONS);
    out.extend(data);
    let pseudo = checksum::pseudo(from.ip(), to.ip(), TCP, len);
    let sum = checksum::finish(pseudo + checksum::sum(&out[ip_len..]));
    out[ip_len + 16..ip_len + 18].copy_from_slice(&sum.to_be_bytes());
    out
}

fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; udp::MAX_HEADERS];
    let ip_len = udp::emit_headers(&mut out, from, to, 2, 9, payload.len()).unwrap();
    out.truncate(ip_len + udp::HEADER_LEN);
    udp::complete(&mut out, ip_len, payload);
    out.extend(payload);
    out
}

fn echo(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let message = [if from.is_ipv6() { 128 } else { 8 }, 0, 0, 0, 0, 1, 0, 2, b'd', b'a', b't', b'a', b'!'];
    let protocol = if from.is_ipv6() { ICMP_V6 } else { ICMP };
    let mut out = vec![0; V6_LEN];
    let ip_len = emit(&mut out, from, to, Meta { protocol, class: 0, id: 0 }, message.len()).unwrap();
    out.truncate(ip_len);
    out.extend(message);
    let pseudo = if from.is_ipv6() { checksum::pseudo(from, to, protocol, message.len()) } else { 0 };
    let sum = checksum::finish(pseudo + checksum::sum(&message));
    out[ip_len + 2..ip_len + 4].copy_from_slice(&sum.to_be_bytes());
    out
}

const PAIRS: [(&str, &str); 2] =
    [("198.18.0.1:43210", "203.0.113.7:443"), ("[2001:db8::1]:43210", "[2001:db8:7::7]:443")];

/// One packet of each kind and family.
fn all() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (from, to) in PAIRS {
        let (from, to) = (addr(from), addr(to));
        all.push(built(from, to, 0x02, b""));
        all.push(built(from, to, 0x18, b"some data, odd"));
        all.push(datagram(from, to, b"a datagram"));
        all.push(echo(from.ip(), to.ip()));
    }
    all
}

#[test]
fn a_recorded_packet() {
    // connect(2) from 198.18.0.1 to 198.18.0.2:443 on Linux 6.18, read from a TUN with offload.
    let offload = if cfg!(target_endian = "little") {
        [1, 0, 0, 0, 0, 0, 20, 0, 16, 0]
    } else {
        [1, 0, 0, 0, 0, 0, 0, 20, 0, 16]
    };
    let bytes = [
        0x45, 0x00, 0x00, 0x3c, 0xb1, 0xd3, 0x40, 0x00, 0x40, 0x06, 0xfc, 0xc0, 0xc6, 0x12, 0x00, 0x01, 0xc6,
        0x12, 0x00, 0x02, 0x87, 0x66, 0x01, 0xbb, 0x25, 0x6d, 0xb9, 0xcb, 0x00, 0x00, 0x00, 0x00, 0xa0, 0x02,
        0xfa, 0xf0, 0x8c, 0x56, 0x00, 0x00, 0x02, 0x04, 0x05, 0xb4, 0x04, 0x02, 0x08, 0x0a, 0x0c, 0x98, 0x7a,
        0x85, 0x00, 0x00, 0x00, 0x00, 0x01, 0x03, 0x03, 0x0a,
    ];
    let header = IpHeader::parse(&bytes).unwrap();
    assert_eq!((header.protocol, header.payload.clone(), header.is_fragment), (TCP, 20..60, false));
    let segment = tcp::TcpSegment::parse(&bytes, &header).unwrap();
    assert_eq!(segment.ends(&header), (addr("198.18.0.1:34662"), addr("198.18.0.2:443")));
    assert!(segment.is_opening() && segment.header_len == 40);
    let offload = offload::Offload::parse(&offload);
    assert!(offload.is_partial() && offload.fits(header.payload.start, tcp::CHECKSUM_AT));
    assert_eq!(offload.kind(), offload::OffloadKind::One);
    // Led to where it goes already, it is as it was: both checksums are those of the kernel.
    let mut same = bytes;
    let (from, to) = segment.ends(&header);
    tcp::rewrite(&mut same, &header, true, from, to).unwrap();
    assert_eq!(same, bytes);
}

#[test]
fn every_truncation_is_an_error() {
    for packet in all() {
        let whole = IpHeader::parse(&packet).unwrap();
        assert_eq!(whole.payload.end, packet.len());
        for len in 0..packet.len() {
            IpHeader::parse(&packet[..len]).unwrap_err();
        }
        let mut longer = packet.clone();
        longer.extend([0xee; 9]);
        assert_eq!(IpHeader::parse(&longer).unwrap(), whole, "bytes behind the end are not looked at");
    }
}

#[test]
fn every_flipped_bit_is_an_error_or_seen_in_the_checksum() {
    for packet in all() {
        for bit in 0..packet.len() * 8 {
            let mut bytes = packet.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fuzz_ip(&bytes);
            let Ok(header) = IpHeader::parse(&bytes) else { continue };
            if bit / 8 < header.payload.start {
                continue;
            }
            let is_intact = match header.protocol {
                TCP => tcp::is_intact(&bytes, &header),
                UDP => match udp::UdpDatagram::parse(&bytes, &header) {
                    Ok(datagram) => datagram.is_intact(&bytes, &header),
                    Err(_) => false,
                },
                _ => icmp::is_intact(&bytes, &header),
            };
            assert!(!is_intact, "bit {bit}");
        }
    }
}

#[test]
fn lengths_that_contradict_each_other() {
    let with = |at: usize, value: u8| {
        let mut bytes = syn_v4();
        bytes[at] = value;
        bytes
    };
    let header = |bytes: &[u8]| IpHeader::parse(bytes);
    assert!(matches!(
        header(&with(0, 0x44)),
        Err(WireError::Malformed { what: "ip header length", got: 16 })
    ));
    assert!(matches!(header(&with(0, 0x75)), Err(WireError::Malformed { what: "ip version", got: 7 })));
    assert!(matches!(header(&with(3, 19)), Err(WireError::Malformed { what: "ip length", got: 19 })));
    assert!(matches!(header(&with(2, 1)), Err(WireError::Truncated { what: "ip packet" })));
    for (at, value) in [(32, 0x40), (32, 0xf0), (6, 0x20), (7, 0x01)] {
        let bytes = with(at, value);
        tcp::TcpSegment::parse(&bytes, &header(&bytes).unwrap()).unwrap_err();
    }
    let mut datagram = datagram(addr(PAIRS[0].0), addr(PAIRS[0].1), b"x");
    let whole = header(&datagram).unwrap();
    for len in [0, 7, 10] {
        datagram[25] = len;
        udp::UdpDatagram::parse(&datagram, &whole).unwrap_err();
    }
}

#[test]
fn extension_headers_are_passed_over_within_bounds() {
    let plain = datagram(addr(PAIRS[1].0), addr(PAIRS[1].1), b"x");
    let chained = |kinds: &[u8], last: u8| {
        let mut bytes = plain[..V6_LEN].to_vec();
        bytes[6] = kinds.first().copied().unwrap_or(last);
        for (at, _) in kinds.iter().enumerate() {
            bytes.extend([kinds.get(at + 1).copied().unwrap_or(last), 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes.extend(&plain[V6_LEN..]);
        let len = u16::try_from(bytes.len() - V6_LEN).unwrap();
        bytes[4..6].copy_from_slice(&len.to_be_bytes());
        bytes
    };
    for count in 0..=MAX_EXTENSIONS {
        let bytes = chained(&vec![60; count], UDP);
        let header = IpHeader::parse(&bytes).unwrap();
        assert_eq!((header.protocol, header.payload.start), (UDP, V6_LEN + 8 * count));
        assert!(udp::UdpDatagram::parse(&bytes, &header).unwrap().is_intact(&bytes, &header));
    }
    IpHeader::parse(&chained(&[60; MAX_EXTENSIONS + 1], UDP)).unwrap_err();
    let mut later = chained(&[0, 44, 60], UDP);
    assert!(!IpHeader::parse(&later).unwrap().is_fragment, "a fragment that is the whole packet");
    later[V6_LEN + 8 + 2] = 1;
    let header = IpHeader::parse(&later).unwrap();
    assert!(header.is_fragment && udp::UdpDatagram::parse(&later, &header).is_err());
    let mut long = chained(&[60], UDP);
    long[V6_LEN + 1] = 200;
    IpHeader::parse(&long).unwrap_err();
}

#[test]
fn a_segment_is_led_elsewhere_and_back() {
    for (pair, via) in
        PAIRS.iter().zip([("198.18.0.2:10007", "198.18.0.1:5555"), ("[fd00::2]:10007", "[fd00::1]:5555")])
    {
        let (from, to) = (addr(via.0), addr(via.1));
        let mut bytes = built(addr(pair.0), addr(pair.1), 0x18, b"some data, odd");
        let header = IpHeader::parse(&bytes).unwrap();
        tcp::rewrite(&mut bytes, &header, false, from, to).unwrap();
        let header = IpHeader::parse(&bytes).unwrap();
        let segment = tcp::TcpSegment::parse(&bytes, &header).unwrap();
        assert_eq!(segment.ends(&header), (from, to));
        assert!(tcp::is_intact(&bytes, &header));
        assert!(header.is_v6() || checksum::finish(checksum::sum(&bytes[..V4_LEN])) == 0);
        // A checksum that was wrong stays wrong.
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        tcp::rewrite(&mut bytes, &header, false, addr(pair.0), addr(pair.1)).unwrap();
        assert!(!tcp::is_intact(&bytes, &IpHeader::parse(&bytes).unwrap()));
    }
}

#[test]
fn a_partial_checksum_is_the_sum_of_the_new_pseudo_header() {
    let (from, to) = (addr("198.18.0.2:10007"), addr("198.18.0.1:5555"));
    let mut bytes = built(addr(PAIRS[0].0), addr(PAIRS[0].1), 0x18, &vec![0x5a; 60_000]);
    let header = IpHeader::parse(&bytes).unwrap();
    tcp::rewrite(&mut bytes, &header, true, from, to).unwrap();
    let header = IpHeader::parse(&bytes).unwrap();
    // The kernel sums from the start of TCP, the field included, and stores the complement.
    let sum = checksum::finish(checksum::sum(&bytes[20..]));
    bytes[36..38].copy_from_slice(&sum.to_be_bytes());
    assert!(tcp::is_intact(&bytes, &header));
}

#[test]
fn families_do_not_mix() {
    let mut bytes = syn_v4();
    let header = IpHeader::parse(&bytes).unwrap();
    let (v4, v6) = (addr("192.0.2.1:1"), addr("[::2]:2"));
    tcp::rewrite(&mut bytes, &header, false, v4, v6).unwrap_err();
    assert_eq!(bytes, syn_v4(), "nothing has changed");
    assert_eq!(udp::emit_headers(&mut [0; 64], v4, v6, 0, 0, 1), None);
}

#[test]
fn refusals_of_segments_follow_rfc_9293() {
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;
    for (from, to) in PAIRS {
        let (from, to) = (addr(from), addr(to));
        let refused = |flags: u8, data: &[u8]| {
            let bytes = built(from, to, flags, data);
            let header = IpHeader::parse(&bytes).unwrap();
            let segment = tcp::TcpSegment::parse(&bytes, &header).unwrap();
            let mut out = [0; 60];
            let len = tcp::reset(&mut out, &header, &segment)?;
            let header = IpHeader::parse(&out[..len]).unwrap();
            assert!(tcp::is_intact(&out[..len], &header));
            let answer = tcp::TcpSegment::parse(&out, &header).unwrap();
            assert_eq!(answer.ends(&header), (to, from));
            Some((answer.flags, answer.sequence, answer.acknowledgement))
        };
        assert_eq!(refused(SYN, b""), Some((RST | ACK, 0, 0x1234_5679)), "acknowledges the SYN");
        assert_eq!(refused(0x01, b"12345"), Some((RST | ACK, 0, 0x1234_567e)), "data and FIN");
        assert_eq!(refused(ACK, b"12345"), Some((RST, 0, 0)), "takes the number that was expected");
        assert_eq!(refused(RST, b""), None);
    }
}

#[test]
fn datagrams_there_and_back() {
    for (from, to) in PAIRS {
        let (from, to) = (addr(from), addr(to));
        for len in [0, 1, 2, 1400] {
            let payload: Vec<u8> = (0..len).map(|at: u32| u8::try_from(at % 251).unwrap()).collect();
            let bytes = datagram(from, to, &payload);
            let header = IpHeader::parse(&bytes).unwrap();
            assert_eq!((header.class, header.protocol), (2, UDP));
            let found = udp::UdpDatagram::parse(&bytes, &header).unwrap();
            assert_eq!((found.ends(&header), &bytes[found.payload.clone()]), ((from, to), &payload[..]));
            assert!(found.is_intact(&bytes, &header));
        }
        let most = MAX_LEN - if from.is_ipv6() { 48 } else { 28 };
        assert!(udp::emit_headers(&mut [0; 48], from, to, 0, 0, most).is_some());
        assert!(udp::emit_headers(&mut [0; 48], from, to, 0, 0, most + 1).is_none());
        assert!(udp::emit_headers(&mut [0; 20], from, to, 0, 0, 1).is_none());
    }
}

#[test]
fn a_checksum_of_zero_is_none_in_ipv4_alone() {
    for (pair, allowed) in PAIRS.iter().zip([true, false]) {
        let mut bytes = datagram(addr(pair.0), addr(pair.1), b"x");
        let header = IpHeader::parse(&bytes).unwrap();
        let at = header.payload.start + udp::CHECKSUM_AT;
        bytes[at..at + 2].copy_from_slice(&[0, 0]);
        assert_eq!(udp::UdpDatagram::parse(&bytes, &header).unwrap().is_intact(&bytes, &header), allowed);
    }
}

#[test]
fn answers_to_echoes_have_the_number_of_their_asker() {
    for (from, to) in PAIRS {
        let (from, to) = (addr(from).ip(), addr(to).ip());
        let mut bytes = echo(from, to);
        let question = IpHeader::parse(&bytes).unwrap();
        let number = icmp::echo_number(&bytes, &question).unwrap();
        assert!(icmp::answer_echo(&mut bytes, &question));
        let header = IpHeader::parse(&bytes).unwrap();
        assert_eq!(icmp::echo_number(&bytes, &header), None, "an answer is no question");
        // A socket of the system's gives the message with a number of its own.
        let mut message = bytes[header.payload.clone()].to_vec();
        message[4..6].copy_from_slice(&(number ^ 0x5555).to_be_bytes());
        let mut out = [0xff; 200];
        let len = icmp::emit_echo_answer(&mut out, (to, from), number, &message).unwrap();
        let answer = IpHeader::parse(&out[..len]).unwrap();
        assert_eq!((answer.source, answer.destination), (to, from));
        assert!(icmp::is_intact(&out[..len], &answer));
        assert_eq!(out[..len][answer.payload.clone()][4..], bytes[header.payload.clone()][4..]);
        for short in 0..8 {
            assert_eq!(icmp::emit_echo_answer(&mut out, (to, from), number, &message[..short]), None);
        }
        for room in 0..len {
            assert_eq!(icmp::emit_echo_answer(&mut out[..room], (to, from), number, &message), None);
        }
        for (at, what) in [(0, "kind"), (1, "code")] {
            let mut other = message.clone();
            other[at] ^= 1;
            assert_eq!(icmp::emit_echo_answer(&mut out, (to, from), number, &other), None, "{what}");
        }
    }
}

#[test]
fn echoes_and_refusals() {
    for (from, to) in PAIRS {
        let (from, to) = (addr(from), addr(to));
        let mut bytes = echo(from.ip(), to.ip());
        let question = IpHeader::parse(&bytes).unwrap();
        assert!(icmp::answer_echo(&mut bytes, &question));
        let answer = IpHeader::parse(&bytes).unwrap();
        assert_eq!((answer.source, answer.destination), (to.ip(), from.ip()));
        assert!(icmp::is_intact(&bytes, &answer));
        assert!(!icmp::answer_echo(&mut bytes, &answer), "an answer is not answered");
        let mut out = [0; icmp::MAX_LEN];
        assert_eq!(icmp::unreachable(&mut out, &bytes, &answer, icmp::Reason::Host), None);

        for payload in [&[7; 4][..], &[7; 1400]] {
            let bytes = datagram(from, to, payload);
            let header = IpHeader::parse(&bytes).unwrap();
            let len = icmp::unreachable(&mut out, &bytes, &header, icmp::Reason::Port).unwrap();
            let answer = IpHeader::parse(&out[..len]).unwrap();
            assert_eq!((answer.source, answer.destination), (to.ip(), from.ip()));
            assert!(icmp::is_intact(&out[..len], &answer));
            let message = &out[answer.payload];
            assert_eq!(message[..2], if from.is_ipv6() { [1, 4] } else { [3, 3] });
            assert!(
                bytes.starts_with(&message[8..]) && len <= 576 && message.len() >= 8 + 32.min(bytes.len())
            );
        }
    }
    for (from, to) in
        [("198.18.0.1:1", "224.0.0.251:2"), ("0.0.0.0:1", "192.0.2.1:2"), ("[fe80::1]:1", "[ff02::1]:2")]
    {
        let bytes = datagram(addr(from), addr(to), b"x");
        let header = IpHeader::parse(&bytes).unwrap();
        assert_eq!(icmp::unreachable(&mut [0; icmp::MAX_LEN], &bytes, &header, icmp::Reason::Port), None);
    }
}

#[test]
fn the_header_of_offload() {
    // One read of a UDP_SEGMENT send of ten times 1,200 bytes on Linux 6.18, on a little-endian machine.
    let bytes = if cfg!(target_endian = "little") {
        [1, 5, 28, 0, 0xb0, 4, 20, 0, 6, 0]
    } else {
        [1, 5, 0, 28, 4, 0xb0, 0, 20, 0, 6]
    };
    let offload = offload::Offload::parse(&bytes);
    assert_eq!(
        (offload.kind(), offload.segment_len, offload.is_partial()),
        (offload::OffloadKind::Udp, 1200, true)
    );
    assert!(offload.fits(20, 6) && !offload.fits(40, 6) && !offload.fits(20, 16));
    assert_eq!(offload, offload::Offload::datagrams(20, 1200));
    assert_eq!(offload.emit(), bytes);
    assert_eq!(offload.with_header_len(32).emit()[2..4], 32_u16.to_ne_bytes());
    let ecn = offload::Offload::parse(&[1, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ecn.kind(), offload::OffloadKind::Tcp);
    assert_eq!(
        offload::Offload::parse(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0]).kind(),
        offload::OffloadKind::Other(3)
    );
    assert_eq!(offload::Offload::default().with_header_len(9), offload::Offload::default());
}

proptest! {
    #[test]
    fn any_bytes_are_survived(data in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_ip(&data);
    }

    #[test]
    fn any_bytes_behind_a_legal_start_are_survived(
        kind in 0_usize..8,
        cut in 0_usize..120,
        data in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut packet = all().swap_remove(kind);
        packet.truncate(cut);
        packet.extend(data);
        fuzz_ip(&packet);
    }
}
