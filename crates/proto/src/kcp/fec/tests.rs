use std::time::{Duration, Instant};

use adit_testkit::epoch;
use proptest::{prop_assert_eq, proptest};

use super::*;

fn shards(data: usize, parity: usize) -> Shards {
    Shards::new(data, parity).unwrap()
}

/// `count` packets of differing length with the parity between them.
fn encoded(encoder: &mut FecEncoder, count: usize, now: Instant) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for number in 0..count {
        let mut packet = vec![0; HEADER_LEN];
        packet.extend(payload(number));
        encoder.seal(&mut packet, now);
        packets.push(packet);
        let mut parity = Vec::new();
        while encoder.poll_parity(&mut parity) {
            packets.push(std::mem::take(&mut parity));
        }
    }
    packets
}

fn payload(number: usize) -> Vec<u8> {
    (0..24 + number % 50).map(|at| u8::try_from((at * 7 + number) % 256).unwrap()).collect()
}

/// All payloads that come out, sorted.
fn decoded(decoder: &mut FecDecoder, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    for packet in packets {
        if let FecPacketKind::Data(bytes) = decoder.handle(packet).unwrap() {
            payloads.push(bytes.to_vec());
        }
        let mut out = Vec::new();
        while decoder.poll_recovered(&mut out) {
            payloads.push(std::mem::take(&mut out));
        }
    }
    payloads.sort();
    payloads
}

fn payloads(count: usize) -> Vec<Vec<u8>> {
    let mut payloads: Vec<_> = (0..count).map(payload).collect();
    payloads.sort();
    payloads
}

#[test]
fn every_loss_that_can_be_repaired() {
    let packets = encoded(&mut FecEncoder::new(shards(4, 3)), 4, epoch());
    for lost in 0_u32..128 {
        let kept: Vec<_> = (0..7).filter(|at| lost >> at & 1 == 0).map(|at| packets[at].clone()).collect();
        let out = decoded(&mut FecDecoder::new(Some(shards(4, 3))), &kept);
        assert_eq!(out == payloads(4), lost.count_ones() <= 3 || lost & 15 == 0, "lost {lost:07b}");
    }
}

#[test]
fn learns_the_group_size() {
    for (data, parity) in [(10, 3), (4, 2), (1, 1), (2, 1), (70, 30), (100, 100)] {
        let packets = encoded(&mut FecEncoder::new(shards(data, parity)), 4 * data, epoch());
        for start in [None, Some(shards(10, 3)), Some(shards(1, 1))] {
            let mut decoder = FecDecoder::new(start);
            decoded(&mut decoder, &packets);
            assert_eq!(decoder.shards(), Some(shards(data, parity)), "from {start:?}");
        }
    }
}

/// Parity that a group does not get has been lost, as far as receivers can tell: numbers go on, the rest repairs.
#[test]
fn parity_that_is_not_sent() {
    for (level, lost) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
        let mut encoder = FecEncoder::new(shards(10, 3));
        encoder.set_level(3);
        let mut packets = encoded(&mut encoder, 80, epoch());
        encoder.set_level(level);
        for number in 80..400 {
            let mut packet = vec![0; HEADER_LEN];
            packet.extend(payload(number));
            if !encoder.is_on() {
                packets.push(packet.split_off(HEADER_LEN));
                continue;
            }
            encoder.seal(&mut packet, epoch());
            // The first of each group.
            if (number % 10) >= lost {
                packets.push(packet);
            }
            let mut parity = Vec::new();
            while encoder.poll_parity(&mut parity) {
                packets.push(std::mem::take(&mut parity));
            }
        }
        for start in [None, Some(shards(10, 3)), Some(shards(4, 2))] {
            let mut decoder = FecDecoder::new(start);
            assert_eq!(decoded(&mut decoder, &packets), payloads(400), "level {level} from {start:?}");
        }
        let sent = packets.iter().filter(|packet| packet[4..6] == TYPE_PARITY.to_le_bytes()).count();
        assert!(sent >= 24 + 32 * level && sent <= 26 + 32 * level, "{sent} of level {level}");
    }
}

#[test]
fn a_group_that_has_begun_is_finished() {
    let mut encoder = FecEncoder::new(shards(4, 2));
    let mut packets = encoded(&mut encoder, 6, epoch());
    encoder.set_level(0);
    assert!(encoder.is_on());
    packets.extend(encoded(&mut encoder, 2, epoch()));
    assert!(!encoder.is_on());
    assert_eq!(packets.last().unwrap()[..4], 11_u32.to_le_bytes());
    encoder.set_level(1);
    assert_eq!(encoded(&mut encoder, 1, epoch())[0][..4], 12_u32.to_le_bytes());
}

#[test]
fn counter_wraps_at_a_group() {
    let mut encoder = FecEncoder::new(shards(10, 3));
    encoder.set_group(u32::MAX / 13 - 2);
    let packets = encoded(&mut encoder, 50, epoch());
    let last = 26;
    assert_eq!(packets[last - 1][..4], (u32::MAX / 13 * 13 - 1).to_le_bytes());
    assert_eq!(packets[last][..4], [0; 4]);
    let lossy: Vec<_> =
        packets.iter().enumerate().filter(|(at, _)| at % 13 != 4).map(|(_, p)| p.clone()).collect();
    assert_eq!(decoded(&mut FecDecoder::new(Some(shards(10, 3))), &lossy), payloads(50));
}

#[test]
fn stale_groups_get_no_parity() {
    let now = epoch();
    let mut encoder = FecEncoder::new(shards(2, 1));
    let mut packet = vec![0; 40];
    encoder.seal(&mut packet, now);
    encoder.seal(&mut packet, now + Duration::from_millis(500));
    assert!(!encoder.poll_parity(&mut Vec::new()));
    encoder.seal(&mut packet, now + Duration::from_millis(500));
    assert_eq!(packet[..4], 3_u32.to_le_bytes());
}

#[test]
fn other_packets() {
    let mut decoder = FecDecoder::new(None);
    let bare = [1, 2, 3, 4, 81, 0, 7];
    assert_eq!(decoder.handle(&bare), Ok(FecPacketKind::Data(&bare)));
    let beside = [255, 255, 255, 255, 0xf3, 0, 9, 0, 5, 0, 0, 0, b'a', b'b', b'c'];
    assert_eq!(decoder.handle(&beside), Ok(FecPacketKind::OutOfBand { conv: 5, payload: b"abc" }));
    for len in 0..beside.len() {
        assert!(decoder.handle(&beside[..len]).is_err(), "cut to {len}");
    }
    assert_eq!(Shards::new(0, 1), None);
    assert_eq!(Shards::new(200, 57), None);
}

proptest! {
    #[test]
    fn any_order_and_duplicates(order: Vec<proptest::sample::Index>) {
        let packets = encoded(&mut FecEncoder::new(shards(3, 2)), 12, epoch());
        let mut shuffled = packets.clone();
        for (at, index) in order.iter().enumerate() {
            let other = index.index(shuffled.len());
            let at = at % shuffled.len();
            // Within the reach of the groups that are kept.
            if at.abs_diff(other) < 10 {
                shuffled.swap(at, other);
            }
        }
        let mut out = decoded(&mut FecDecoder::new(Some(shards(3, 2))), &shuffled);
        out.dedup();
        prop_assert_eq!(out, payloads(12));
    }

    #[test]
    fn any_packets(data: Vec<u8>) {
        fuzz_decoder(&data);
    }
}
