//! Datagrams in a stream, face to face and in pieces.

use std::net::SocketAddr;
use std::time::Instant;

use adit_proto::buf::RecvBuf;
use adit_proto::ssr::over_tcp::{Frames, MAX_FRAME, answer_len, emit_answer, parse_answer, parse_request};
use adit_proto::ssr::{
    CipherLayer, ParsedAddress, SsrKey, SsrProtocol, parse_request as parse_stream, protocol,
};
use adit_proto::wire::{Layer, Opened, Plan, Room, Target, WireError, address_len, emit_address};

use crate::ssr::support::{NOW_S, Script, clock, now, target};

/// A stream as it is.
#[derive(Debug)]
struct Bare;

impl Layer for Bare {
    fn plan(&self, _: Instant) -> Plan {
        let room = Room { head: 0, tail: 0, max_payload: usize::MAX };
        Plan { first: room, rest: room }
    }

    fn seal(
        &mut self,
        _: &mut [u8],
        payload: std::ops::Range<usize>,
        _: Instant,
    ) -> Result<std::ops::Range<usize>, WireError> {
        Ok(payload)
    }

    fn open(&mut self, wire: &mut RecvBuf, _: Instant) -> Result<Opened, WireError> {
        let range = wire.position()..wire.position() + wire.unread().len();
        wire.consume(range.len());
        Ok(if range.is_empty() { Opened::NeedMore(1) } else { Opened::Payload(range) })
    }

    fn handle_transport_end(&mut self, _: usize) -> Result<(), WireError> {
        Ok(())
    }
}

fn datagram(to: &Target, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; address_len(to)];
    emit_address(to, &mut frame);
    frame.extend(payload);
    frame
}

fn framed(fragment: u8, content: &[u8]) -> Vec<u8> {
    let size = u16::try_from(content.len() + 3).expect("a short frame").to_be_bytes();
    [&size, &[fragment][..], content].concat()
}

/// The frames in `pieces`, each of which comes in a buffer of its own with `room` bytes besides.
fn frames_of(received: &[u8], pieces: &[&[u8]], room: usize) -> Result<Vec<Vec<u8>>, WireError> {
    let mut layer = Frames::new(Bare, received.to_vec());
    let mut out = Vec::new();
    for piece in [&[][..]].iter().chain(pieces) {
        let mut is_first = true;
        while is_first || layer.has_backlog() {
            let mut wire = RecvBuf::with_len(piece.len() + room);
            if std::mem::take(&mut is_first) {
                wire.extend(piece);
            }
            while let Opened::Payload(range) = layer.open(&mut wire, now())? {
                out.push(wire.block()[range].to_vec());
            }
        }
    }
    layer.handle_transport_end(0)?;
    Ok(out)
}

#[test]
fn frames_in_two_pieces_and_byte_by_byte() {
    let contents = [datagram(&target(), b"one"), datagram(&target(), &[]), datagram(&target(), &[7; 300])];
    let stream: Vec<u8> = contents.iter().flat_map(|content| framed(0, content)).collect();
    for cut in 0..=stream.len() {
        let (first, second) = stream.split_at(cut);
        assert_eq!(frames_of(&[], &[first, second], 400).unwrap(), contents, "cut at {cut}");
        assert_eq!(frames_of(first, &[second], 400).unwrap(), contents, "{cut} bytes came with the request");
    }
    let bytes: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(frames_of(&[], &bytes, 400).unwrap(), contents);
}

#[test]
fn a_frame_without_room_waits_for_the_next_buffer() {
    let content = datagram(&target(), &[9; 200]);
    let stream = [framed(0, &content), framed(0, &content), framed(0, &content)].concat();
    let (first, second) = stream.split_at(100);
    // Room for one frame at a time, which lies behind what came.
    assert_eq!(frames_of(&[], &[first, second], content.len()).unwrap(), vec![content; 3]);
}

#[test]
fn fragments_are_dropped_and_bad_sizes_are_errors() {
    let content = datagram(&target(), b"whole");
    let stream = [framed(1, b"part"), framed(0, &content), framed(2, b"")].concat();
    for cut in 0..=stream.len() {
        let (first, second) = stream.split_at(cut);
        assert_eq!(frames_of(&[], &[first, second], 100).unwrap(), [&*content]);
    }
    for size in 0..3_u8 {
        assert!(matches!(frames_of(&[], &[&[0, size, 0, 0]], 100), Err(WireError::Malformed { .. })));
    }
    assert!(matches!(frames_of(&[], &[&stream[..9]], 100), Err(WireError::Truncated { .. })));
}

#[test]
fn addresses_of_frames() {
    for text in ["127.0.0.1:53", "[2001:db8::1]:53", "example.com:65535"] {
        let to: Target = text.parse().unwrap();
        let mut frame = datagram(&to, b"payload");
        let at = address_len(&to);
        assert_eq!(parse_request(&frame), Ok((to.clone(), at)));
        for cut in 0..at {
            assert!(parse_request(&frame[..cut]).is_err(), "{text} cut at {cut}");
        }
        frame[0] |= 8;
        assert_eq!(parse_request(&frame), Ok((to.clone(), at)), "the flag of the request");
        match text.parse::<SocketAddr>() {
            Ok(source) => {
                let mut answer = vec![0; answer_len(source)];
                assert_eq!(emit_answer(source, &mut answer), answer.len());
                assert_eq!(parse_answer(&answer), Ok((source, answer.len())));
            }
            Err(_) => assert!(matches!(parse_answer(&frame), Err(WireError::Unsupported { .. }))),
        }
    }
    assert!(parse_request(&[5; 30]).is_err());
}

/// Frames through every protocol: the request with its flag, frames both ways, the longest one among them.
#[test]
fn every_protocol_carries_them() {
    let longest = vec![5; MAX_FRAME - address_len(&target())];
    for protocol in SsrProtocol::all() {
        let key = SsrKey::from_password("aes-128-ctr".parse().unwrap(), b"password");
        let mut rng = Script::seeded(4);
        let cipher = CipherLayer::client(&key, &mut rng);
        let iv = cipher.client_iv();
        let config = protocol::SsrClientConfig::new(protocol, &key, 0);
        let client =
            protocol::SsrClientStream::new(&config, &iv, &target(), clock(NOW_S), &mut rng).for_datagrams();
        let config = protocol::SsrServerConfig::new(protocol, &key, std::sync::Arc::default(), 0);
        let mut server = protocol::SsrServerStream::new(&config, &iv, clock(NOW_S), &mut rng);
        let mut client = Frames::new(client, Vec::new());

        let up = seal(&mut client, &datagram(&target(), b"ping"));
        let mut text = Vec::new();
        read(&mut server, &up, &mut |payload| text.extend_from_slice(payload));
        let Ok(ParsedAddress::Whole { target: to, is_udp: true, len }) = parse_stream(&text) else {
            panic!("{protocol}: {text:?}");
        };
        assert_eq!(to, target(), "{protocol}");
        let mut server = Frames::new(server, text.split_off(len));
        assert!(client.inner().plan(now()).rest.max_payload > 0, "{protocol}");

        let mut got = Vec::new();
        let up = seal(&mut client, &datagram(&target(), &longest));
        read(&mut server, &up, &mut |frame| got.push(frame.to_vec()));
        assert_eq!(got, [datagram(&target(), b"ping"), datagram(&target(), &longest)], "{protocol}");

        let mut got = Vec::new();
        let greeting = seal(&mut server, &[]);
        read(&mut client, &greeting, &mut |frame| got.push(frame.to_vec()));
        for payload in [&b"pong"[..], &longest] {
            let down = seal(&mut server, &datagram(&target(), payload));
            read(&mut client, &down, &mut |frame| got.push(frame.to_vec()));
        }
        assert_eq!(got, [datagram(&target(), b"pong"), datagram(&target(), &longest)], "{protocol}");
    }
}

fn seal(layer: &mut dyn Layer, payload: &[u8]) -> Vec<u8> {
    let room = layer.plan(now()).first;
    assert!(payload.len() <= room.max_payload);
    let mut block = [vec![0; room.head], payload.to_vec(), vec![0; room.tail]].concat();
    let sealed = layer.seal(&mut block, room.head..room.head + payload.len(), now()).expect("sealed");
    block[sealed].to_vec()
}

fn read(layer: &mut dyn Layer, bytes: &[u8], take: &mut dyn FnMut(&[u8])) {
    let mut wire = RecvBuf::with_len(bytes.len() + (1 << 18));
    wire.extend(bytes);
    while let Opened::Payload(range) = layer.open(&mut wire, now()).expect("opened") {
        take(&wire.block()[range]);
    }
}
