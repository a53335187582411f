use proptest::prelude::*;
use serde_json::Value;

use super::envelope;
use super::*;
use crate::buf::RecvBuf;
use crate::snell::kdf::{SnellDirectionKey, SnellPsk};
use crate::snell::{Progress, SnellClientStream, SnellCommand, SnellRequest, SnellServerStream, frame};
use crate::wire::{Layer, Opened, Rng};

struct Zeros;

impl Rng for Zeros {
    fn fill(&mut self, out: &mut [u8]) {
        out.fill(0);
    }
}

fn load(name: &str) -> Value {
    let path = format!("{}/../../testdata/snell/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// Frames of a recorded stream.
fn frames(file: &str, name: &str) -> Vec<Vec<u8>> {
    let file = load(file);
    let streams = file["streams"].as_array().unwrap();
    let stream = streams.iter().find(|stream| stream["name"] == name).unwrap();
    stream["frames"].as_array().unwrap().iter().map(|frame| hex(&frame["payload_plain"])).collect()
}

#[expect(clippy::disallowed_methods, reason = "any instant will do")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

#[test]
fn recorded_requests() {
    let frames = frames("c2s_streams", "udp");
    let found: Vec<(String, usize)> = frames[1..]
        .iter()
        .map(|frame| {
            let (target, at) = parse_request(frame).unwrap();
            let mut again = vec![0; request_len(&target)];
            assert_eq!(emit_request(&target, &mut again), at);
            assert_eq!(again, frame[..at]);
            (target.to_string(), frame.len() - at)
        })
        .collect();
    let names: Vec<&str> = found.iter().map(|(target, _)| target.as_str()).collect();
    assert_eq!(
        names,
        [
            "192.0.2.53:53",
            "[2001:db8::35]:5353",
            "dns.example.com:53",
            "192.0.2.53:53",
            "[2001:db8::35]:5353",
            "192.0.2.53:53"
        ]
    );
    assert_eq!(found[4].1, 0, "an empty datagram");
}

#[test]
fn recorded_answers() {
    let frames = frames("s2c_streams", "udp-responses");
    assert_eq!(frames[0], [0]);
    for frame in &frames[1..] {
        let (source, at) = parse_answer(frame).unwrap();
        let mut again = vec![0; answer_len(source)];
        assert_eq!(emit_answer(source, &mut again), at);
        assert_eq!(again, frame[..at]);
    }
    assert_eq!(parse_answer(&frames[3]).unwrap(), ("192.0.2.53:53".parse().unwrap(), 7));
}

#[test]
fn every_truncation_of_a_header_is_an_error() {
    for target in ["192.0.2.53:53", "[2001:db8::35]:5353", "dns.example.com:53"] {
        let target: Target = target.parse().unwrap();
        let mut bytes = vec![0; request_len(&target)];
        emit_request(&target, &mut bytes);
        for len in 0..bytes.len() {
            assert_eq!(parse_request(&bytes[..len]), Err(CUT), "{target} {len}");
        }
        assert_eq!(parse_request(&bytes), Ok((target, bytes.len())));
    }
    for source in ["192.0.2.53:53", "[2001:db8::35]:5353"] {
        let source: SocketAddr = source.parse().unwrap();
        let mut bytes = [0; MAX_ANSWER_HEADER];
        let len = emit_answer(source, &mut bytes);
        for cut in 0..len {
            assert_eq!(parse_answer(&bytes[..cut]), Err(CUT), "{source} {cut}");
        }
    }
}

#[test]
fn what_is_not_legal() {
    for (bytes, want) in [
        (&[2, 0, 4, 1, 2, 3, 4, 0, 53][..], "unsupported command of a datagram: 2"),
        (&[1, 0, 5, 1, 2, 3, 4, 0, 53], "bad address family: 5"),
        (&[1, 1, b' ', 0, 53], "bad host: 1"),
        (&[], "ended inside header of a datagram"),
    ] {
        assert_eq!(parse_request(bytes).unwrap_err().to_string(), want);
    }
    assert_eq!(parse_answer(&[0, 1]).unwrap_err().to_string(), "bad address family: 0");
    // An address may come as text, and an IPv4 address in an IPv6 one.
    let text = [&[1, 9][..], b"127.0.0.1", &[0, 53]].concat();
    assert_eq!(parse_request(&text).unwrap().0, "127.0.0.1:53".parse().unwrap());
    let mapped = [&[1, 0, 6][..], &[0; 10], &[255, 255, 1, 2, 3, 4, 0, 53]].concat();
    assert_eq!(parse_request(&mapped).unwrap().0, "1.2.3.4:53".parse().unwrap());
}

/// Datagrams of any size keep their boundaries over streams that come in any pieces.
#[test]
fn frames_are_datagrams() {
    let psk = SnellPsk::new(b"key");
    let sizes = [9, 7 + 1400, 7, MAX_PAYLOAD, 30];
    for piece in [1, 22, 23, 39, 1000, 1 << 20] {
        let mut server = SnellServerStream::new(psk.clone());
        server.set_own_key(&psk.derive(&[2; 16]), &mut Zeros);
        let mut client = SnellClientStream::new(psk.clone(), &psk.derive(&[1; 16]), &mut Zeros);
        client.start(&SnellRequest { command: SnellCommand::Udp, client_id: Vec::new() });
        let mut stream = seal(&mut client, &[]);
        assert!(!client.has_pending(), "the request has a frame of its own");
        for (n, len) in (1..).zip(sizes) {
            stream.extend(seal(&mut client, &vec![n; len]));
        }
        let mut wire = RecvBuf::with_len(stream.len());
        let (mut requested, mut found) = (false, Vec::new());
        for bytes in stream.chunks(piece) {
            wire.extend(bytes);
            if !requested {
                requested = matches!(server.poll_request(&mut wire).unwrap(), Progress::Request(_));
            }
            while requested && let Opened::Payload(range) = server.open(&mut wire, now()).unwrap() {
                found.push(wire.block()[range].to_vec());
            }
        }
        let want: Vec<Vec<u8>> = (1..).zip(sizes).map(|(n, len)| vec![n; len]).collect();
        assert_eq!(found, want, "{piece}");
        server.accept();
        let answer = [seal(&mut server, &[]), seal(&mut server, b"one"), seal(&mut server, b"two")].concat();
        let mut wire = RecvBuf::from_bytes(&answer);
        let mut found = Vec::new();
        while let Opened::Payload(range) = client.open(&mut wire, now()).unwrap() {
            found.push(wire.block()[range].to_vec());
        }
        assert_eq!(found, [&b""[..], b"one", b"two"]);
    }
}

/// One frame, as a sender of datagrams makes it.
fn seal(layer: &mut dyn Layer, payload: &[u8]) -> Vec<u8> {
    let room = layer.plan(now()).first;
    let mut block = vec![0; room.head + payload.len() + room.tail];
    let range = room.head..room.head + payload.len();
    block[range.clone()].copy_from_slice(payload);
    let sealed = layer.seal(&mut block, range, now()).unwrap();
    block[sealed].to_vec()
}

#[test]
fn recorded_envelopes() {
    for row in load("quic_envelopes")["envelopes"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let psk = SnellPsk::new(row["psk"].as_str().unwrap().as_bytes());
        let mut datagram = hex(&row["envelope"]);
        let opened = envelope::open(&psk, &mut datagram);
        if row["accept"] != true {
            assert!(opened.is_err(), "{name}: {opened:?}");
            continue;
        }
        let opened = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(opened.target.to_string(), row["target"].as_str().unwrap(), "{name}");
        assert_eq!(datagram[opened.inner], hex(&row["inner"]), "{name}");
        if let Some(salt) = row.get("salt") {
            assert_eq!(opened.salt.to_vec(), hex(salt), "{name}");
            // Ours is the recorded one to the byte.
            let inner = hex(&row["inner"]);
            let key = psk.derive(&opened.salt);
            assert_eq!(emit_envelope(&key, &opened.target, &inner), hex(&row["envelope"]), "{name}");
        }
    }
}

fn emit_envelope(key: &SnellDirectionKey, target: &Target, inner: &[u8]) -> Vec<u8> {
    let room = envelope::room(target, b"");
    let mut block = vec![0; room.head + inner.len() + room.tail];
    let range = room.head..room.head + inner.len();
    block[range.clone()].copy_from_slice(inner);
    let sealed = envelope::seal(key, target, b"", &mut block, range).unwrap();
    block[sealed].to_vec()
}

#[test]
fn envelopes_that_are_cut_or_changed_do_not_open() {
    let psk = SnellPsk::new(b"key");
    for target in ["a:1", "192.0.2.1:443", "[2001:db8:1111:2222:3333:4444:5555:6666]:65535"] {
        let target: Target = target.parse().unwrap();
        let whole = emit_envelope(&psk.derive(&[9; 16]), &target, b"\xc3inner");
        let opened = envelope::open(&psk, &mut whole.clone()).unwrap();
        assert_eq!(opened.target, target);
        for len in 0..whole.len() {
            assert!(envelope::open(&psk, &mut whole[..len].to_vec()).is_err(), "{len}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(envelope::open(&psk, &mut changed).is_err(), "{at}");
        }
    }
    // A datagram that is no envelope stays as it is, to be passed on.
    let mut raw = [0x43; 1300];
    assert!(envelope::open(&psk, &mut raw).is_err());
    assert_eq!(raw, [0x43; 1300]);
    assert_eq!(envelope::MIN_LEN, frame::OPENING_LEN + 16);
}

/// RFC 9001, A.2: the first bytes of a client's Initial, with the length of the unprotected sample.
fn initial() -> Vec<u8> {
    let mut packet =
        vec![0xc0, 0, 0, 0, 1, 8, 0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08, 0, 0, 0x44, 0x9e];
    packet.resize(1200, 0x5a);
    packet
}

#[test]
fn initials_are_told_from_the_rest() {
    assert!(is_quic_initial(&initial()));
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut packet = initial();
        change(&mut packet);
        is_quic_initial(&packet)
    };
    assert!(changed(|p| p[0] = 0xcf), "protected bits");
    assert!(changed(|p| p[1..5].copy_from_slice(&[0xff, 0, 0, 0x1d])), "draft 29");
    assert!(
        changed(|p| {
            p[0] = 0xd3;
            p[1..5].copy_from_slice(&VERSION_2)
        }),
        "version 2"
    );
    assert!(changed(|p| p.resize(1452, 0)), "padded");
    assert!(!changed(|p| p.truncate(1199)), "too short");
    assert!(!changed(|p| p[0] = 0x40), "short header");
    assert!(!changed(|p| p[0] = 0x80), "without the fixed bit");
    assert!(!changed(|p| p[0] = 0xe0), "handshake");
    assert!(!changed(|p| p[0] = 0xd0), "0-RTT");
    assert!(!changed(|p| p[4] = 0), "version negotiation");
    assert!(!changed(|p| p[4] = 9), "an unknown version");
    assert!(!changed(|p| p[5] = 7), "a connection id below 8 bytes");
    assert!(!changed(|p| p[5] = 21), "a connection id above 20 bytes");
    assert!(!changed(|p| p[14] = 21), "a source id above 20 bytes");
    assert!(!changed(|p| p[15] = 0xff), "a token beyond the datagram");
    assert!(!changed(|p| p[16..18].copy_from_slice(&[0x7f, 0xff])), "a length beyond the datagram");
    assert!(!changed(|p| p[16..18].copy_from_slice(&[0x40, 0])), "no packet");
    assert!(!is_quic_initial(&[]) && !is_quic_initial(&[0xc0; 1200]));
    assert!(
        has_long_header(&initial()) && !has_long_header(&[0x40, 0, 0, 0, 1]) && !has_long_header(&[0xc0])
    );
}

const VERSION_2: [u8; 4] = [0x6b, 0x33, 0x43, 0xcf];

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_udp(&bytes);
        envelope::fuzz_envelope(&bytes);
        is_quic_initial(&bytes);
    }

    #[test]
    fn headers_and_payloads(bytes in prop::collection::vec(any::<u8>(), 0..60), kind in 0u8..3) {
        let head: &[u8] = match kind { 0 => &[1, 0, 4], 1 => &[1, 0, 6], _ => &[1, 3, b'a', b'.', b'b'] };
        fuzz_udp(&[head, &bytes].concat());
        fuzz_udp(&[&head[2..], &bytes].concat());
    }
}
