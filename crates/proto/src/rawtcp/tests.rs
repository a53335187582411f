use std::net::Ipv6Addr;
use std::time::Duration;

use adit_testkit::epoch;
use proptest::{prop_assert, proptest};

use super::*;

const FROM: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
const TO: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));

fn segment(seq: u32, ack: u32, flags: u8, times: Option<(u32, u32)>, data: &[u8]) -> Vec<u8> {
    let len = if times.is_some() { HEADER_LEN } else { PLAIN_LEN };
    let mut bytes = vec![0x71, 0xcc, 0xc3, 0xc4];
    bytes.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
    bytes.extend([u8::try_from(len / 4).unwrap() << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    if let Some((ours, theirs)) = times {
        bytes.extend([1, 1, 8, 10]);
        bytes.extend([ours.to_be_bytes(), theirs.to_be_bytes()].concat());
    }
    bytes.extend(data);
    bytes
}

fn parsed(seq: u32, ack: u32, flags: u8, times: Option<(u32, u32)>, data: &[u8]) -> RawSegment {
    RawSegment::parse(&segment(seq, ack, flags, times, data)).unwrap()
}

fn emitted(flow: &mut Flow, data: &[u8], now: Instant) -> (RawSegment, Vec<u8>) {
    let mut head = [0xee; HEADER_LEN];
    let len = flow.emit((FROM, TO), (29900, 50116), data, now, &mut head);
    let bytes = [&head[..len], data].concat();
    (RawSegment::parse(&bytes).unwrap(), bytes)
}

/// The first answer of kcptun-server 20210922 with `-tcp`, as a packet of IPv4.
const RECORDED: &str = "4500005cb9da400040066cad0a0900020a09000174ccc3c4e519811ec216b55a\
        50188709cb110000466ab21a57842525f4ff043002143b711250f5be5fd6eb7c\
        1e80f02be90e094a2a698025a54aa5d6d56a040e95f0311882b419fd";

fn recorded() -> Vec<u8> {
    let digits = RECORDED.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn the_checksum_is_that_of_tcp() {
    let packet = recorded();
    let (from, to, range) = parse_v4(&packet).unwrap();
    assert_eq!((IpAddr::from(from), IpAddr::from(to), range.clone()), (FROM, TO, 20..packet.len()));
    let (head, data) = packet[range.clone()].split_at(PLAIN_LEN);
    assert_eq!((checksum((FROM, TO), head, data), data.len()), (0, 52));
    let segment = RawSegment::parse(&packet[range]).unwrap();
    assert_eq!((segment.from_port, segment.datagram()), (29900, Some(20..72)));
    // An odd byte counts as the upper half of a number.
    assert_eq!(sum(&[1, 2, 3]), 0x0102 + 0x0300);
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    assert_eq!(checksum((v6, v6), &[0; 20], &[]), !(1 + 1 + 6 + 20));
}

#[test]
fn numbers_go_on_from_the_handshake() {
    let now = epoch();
    let first = parsed(7000, 100, SYN | ACK, Some((50, 900)), &[]);
    assert!(first.is_handshake() && first.datagram().is_none());
    let mut flow = Flow::new(&first, now);
    let (sent, _) = emitted(&mut flow, b"abc", now + Duration::from_millis(30));
    assert_eq!((sent.seq, sent.ack, sent.times), (100, 7001, Some((930, 50))));
    assert_eq!((sent.from_port, sent.to_port, sent.flags), (29900, 50116, PSH | ACK));
    // Theirs: the second is lost, the third is not; then something old comes late.
    for (seq, clock, want) in [(7001, 60, 7011), (7021, 70, 7031), (7011, 65, 7031)] {
        flow.handle(&parsed(seq, 103, PSH | ACK, Some((clock, 930)), &[0; 10]));
        assert_eq!(flow.ack, want);
    }
    let (sent, _) = emitted(&mut flow, &[0; 5], now);
    assert_eq!((sent.seq, sent.ack), (103, 7031));
    assert_eq!(emitted(&mut flow, &[0; 5], now).0.seq, 108);
}

#[test]
fn a_server_learns_from_the_first_data() {
    let now = epoch();
    let first = parsed(u32::MAX - 1, 500, PSH | ACK, None, &[1; 4]);
    let mut flow = Flow::new(&first, now);
    let (sent, bytes) = emitted(&mut flow, b"x", now);
    assert_eq!((sent.seq, sent.ack, sent.times, bytes.len()), (500, 2, None, PLAIN_LEN + 1), "and wraps");
}

#[test]
fn what_is_cut_or_wrong_is_refused() {
    let whole = segment(1, 2, PSH | ACK, Some((3, 4)), b"data");
    for len in 0..whole.len() {
        assert_eq!(RawSegment::parse(&whole[..len]).is_ok(), len >= HEADER_LEN, "{len}");
    }
    assert_eq!(RawSegment::parse(&whole[..HEADER_LEN]).unwrap().datagram(), None, "nothing in it");
    for (flags, is_some) in [(PSH, true), (PSH | ACK, true), (ACK, false), (PSH | SYN, false), (0, false)] {
        assert_eq!(parsed(1, 2, flags, None, b"data").datagram().is_some(), is_some, "{flags}");
    }
    let mut short = whole.clone();
    short[12] = 0x40;
    assert!(matches!(RawSegment::parse(&short), Err(WireError::Malformed { got: 4, .. })));
    // Options that lie about their lengths, or hide the one that is looked for.
    for options in [[8, 10, 0, 0], [2, 0, 8, 10], [2, 1, 1, 1], [3, 255, 8, 10], [0, 1, 8, 10]] {
        assert_eq!(times(&options), None, "{options:?}");
    }
    assert_eq!(times(&[2, 4, 5, 180, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]), Some((1, 2)));
    for (packet, text) in [
        (&[0x45; 19][..], "ended inside ip header"),
        (&[0x65; 20], "bad ip header: 101"),
        (&[0x44; 20], "bad ip header: 68"),
        (&[[0x45, 0, 0, 19].as_slice(), &[0; 16]].concat(), "bad ip header: 69"),
        (&[[0x45, 0, 0, 41].as_slice(), &[0; 36]].concat(), "ended inside ip packet"),
    ] {
        assert_eq!(parse_v4(packet).unwrap_err().to_string(), text);
    }
}

proptest! {
    #[test]
    fn anything_may_come(data: Vec<u8>, head_len in 0_u8..16) {
        let mut data = data;
        fuzz_rawtcp(&data, epoch());
        if data.len() > 12 {
            data[12] = head_len << 4;
            fuzz_rawtcp(&data, epoch());
            prop_assert!(RawSegment::parse(&data).is_err() || usize::from(head_len) * 4 <= data.len());
        }
    }
}
