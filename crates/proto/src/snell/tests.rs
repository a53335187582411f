use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::buf::RecvBuf;
use crate::wire::{EndOfStream, Layer, Opened, Rng, Target, WireError};

/// A reproducible random source: SplitMix64.
pub(super) struct TestRng(pub(super) u64);

impl Rng for TestRng {
    fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..chunk.len()]);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "any instant will do")]
pub(super) fn now() -> Instant {
    Instant::now()
}

fn load(name: &str) -> Value {
    let path = format!("{}/../../testdata/snell/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap().try_into().unwrap()
}

fn psk(value: &Value) -> SnellPsk {
    SnellPsk::new(value["psk"].as_str().unwrap().as_bytes())
}

fn server(psk: &SnellPsk, rng: &mut TestRng) -> SnellServerStream {
    let mut server = SnellServerStream::new(psk.clone());
    server.set_own_key(&psk.derive_own(rng), rng);
    server
}

fn client(psk: &SnellPsk, rng: &mut TestRng) -> SnellClientStream {
    SnellClientStream::new(psk.clone(), &psk.derive_own(rng), rng)
}

pub(super) fn connect(reusable: bool) -> SnellRequest {
    SnellRequest::connect("example.com:443".parse().unwrap(), reusable)
}

/// One write call as a relay does it: `payload` cut over as many frames as the plan asks for.
pub(super) fn write(layer: &mut dyn Layer, payload: &[u8], now: Instant) -> Vec<u8> {
    let plan = layer.plan(now);
    let mut room = plan.first;
    let mut rest = payload;
    let mut out = Vec::new();
    loop {
        let len = rest.len().min(room.max_payload);
        let mut block = vec![0xEE; room.head + len + room.tail];
        block[room.head..room.head + len].copy_from_slice(&rest[..len]);
        let range = layer.seal(&mut block, room.head..room.head + len, now).unwrap();
        out.extend(&block[range]);
        rest = &rest[len..];
        room = plan.rest;
        if rest.is_empty() {
            break;
        }
    }
    layer.finish_write(now);
    out
}

pub(super) fn write_end(layer: &mut dyn Layer, now: Instant) -> Vec<u8> {
    let plan = layer.plan(now);
    let mut block = vec![0; plan.first.head + plan.first.tail + plan.rest.head + plan.rest.tail];
    let range = layer.seal_end(&mut block, 0, now).unwrap();
    block[range].to_vec()
}

/// Everything that `layer` opens from `wire`: the payload bytes, and whether an end came.
pub(super) fn read(
    layer: &mut dyn Layer,
    wire: &mut RecvBuf,
    now: Instant,
) -> Result<(Vec<u8>, bool), WireError> {
    let mut payload = Vec::new();
    loop {
        match layer.open(wire, now)? {
            Opened::NeedMore(len) => {
                assert!(len > 0);
                return Ok((payload, false));
            }
            Opened::Payload(range) => payload.extend(&wire.block()[range]),
            Opened::End => return Ok((payload, true)),
        }
    }
}

/// The plaintext of a recorded stream, from the vector's own frame list.
fn plain_frames(stream: &Value) -> Vec<u8> {
    stream["frames"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|f| f.get("payload_plain").map(hex).unwrap_or_default())
        .collect()
}

#[test]
fn kdf_vectors() {
    for row in load("kdf")["kdf"].as_array().unwrap() {
        let key = SnellPsk::new(&hex(&row["psk_utf8"])).derive(&hex(&row["salt"]).try_into().unwrap());
        assert_eq!(key.key.to_vec(), hex(&row["key_aes128"]), "{row}");
    }
}

#[test]
fn nonce_vectors() {
    for row in load("kdf")["nonce_counter"].as_array().unwrap() {
        let counter: u128 = row["counter"]
            .as_str()
            .map_or_else(|| row["counter"].as_u64().unwrap().into(), |t| t.parse().unwrap());
        assert_eq!(counter.to_le_bytes()[..12].to_vec(), hex(&row["nonce"]), "{row}");
    }
    let mut nonce = crate::crypto::CounterNonce::default();
    for counter in 0..1000u128 {
        assert_eq!(nonce.advance(), counter.to_le_bytes()[..12]);
    }
}

/// Opens a recorded stream cut in pieces of `piece` bytes with the bare frame opener.
fn open_frames(psk: &SnellPsk, stream: &[u8], piece: usize) -> Result<(Vec<u8>, usize), WireError> {
    let mut opener = frame::FrameOpener::new(psk.clone());
    let mut wire = RecvBuf::with_len(stream.len());
    let (mut plain, mut zero_chunks) = (Vec::new(), 0);
    for bytes in stream.chunks(piece) {
        wire.extend(bytes);
        loop {
            match opener.open(&mut wire)? {
                frame::Frame::NeedMore(_) => break,
                frame::Frame::Payload(range) => plain.extend(&wire.block()[range]),
                frame::Frame::ZeroChunk => zero_chunks += 1,
            }
        }
    }
    assert!(opener.is_at_boundary() && wire.unread().is_empty());
    Ok((plain, zero_chunks))
}

#[test]
fn recorded_streams_open_at_every_split() {
    for file in ["c2s_streams", "s2c_streams", "padding_frames"] {
        for row in load(file)["streams"].as_array().unwrap() {
            let (name, psk, stream) = (&row["name"], psk(row), hex(&row["stream"]));
            let frames = row["frames"].as_array().unwrap();
            let zeros = frames.iter().filter(|f| f["zero_chunk"] == true).count();
            let expected = (plain_frames(row), zeros);
            for piece in [stream.len(), 1, 2, 3, 7, 16, 22, 23, 24, 38, 39, 40, 100, 1460] {
                assert_eq!(
                    open_frames(&psk, &stream, piece).unwrap(),
                    expected,
                    "{name} in pieces of {piece}"
                );
            }
        }
    }
}

#[test]
fn every_split_point_of_a_request_stream() {
    let vectors = load("c2s_streams");
    let row = &vectors["streams"][0];
    let (psk, stream) = (psk(row), hex(&row["stream"]));
    let mut rng = TestRng(1);
    for at in 0..=stream.len() {
        let mut server = server(&psk, &mut rng);
        let mut wire = RecvBuf::with_len(stream.len());
        let mut request = None;
        let mut payload = Vec::new();
        for part in [&stream[..at], &stream[at..]] {
            wire.extend(part);
            if request.is_none() {
                match server.poll_request(&mut wire).unwrap() {
                    Progress::NeedMore(len) => {
                        assert!(len > 0);
                        continue;
                    }
                    Progress::Request(found) => request = Some(found),
                }
            }
            payload.extend(read(&mut server, &mut wire, now()).unwrap().0);
        }
        assert!(matches!(request.unwrap().command, SnellCommand::Connect { reusable: false, .. }));
        let plain = plain_frames(row);
        assert!(plain.ends_with(&payload) && payload.len() == 18, "split at {at}");
    }
}

#[test]
fn truncated_streams_are_told_from_ended_ones() {
    let vectors = load("c2s_streams");
    let row = &vectors["streams"][0];
    let (psk, stream) = (psk(row), hex(&row["stream"]));
    let first = 16 + number(&row["frames"][0]["frame_len"]);
    let mut rng = TestRng(1);
    for len in 0..stream.len() {
        let mut server = server(&psk, &mut rng);
        let mut wire = RecvBuf::from_bytes(&stream[..len]);
        if let Progress::Request(_) = server.poll_request(&mut wire).unwrap() {
            read(&mut server, &mut wire, now()).unwrap();
        }
        let end = server.handle_transport_end(wire.unread().len());
        assert_eq!(end.is_ok(), len == first, "cut at {len}");
    }
}

#[test]
fn flipped_bits_are_refused_except_in_unauthenticated_padding() {
    let vectors = load("c2s_streams");
    let row = &vectors["streams"][1];
    let (psk, stream) = (psk(row), hex(&row["stream"]));
    let padding = number(&row["frames"][0]["padding_len"]);
    let cipher = number(&row["frames"][0]["payload_len"]) + 16;
    let frame_end = 39 + padding + cipher;
    for at in 0..frame_end {
        let mut bad = stream[..frame_end].to_vec();
        bad[at] ^= 1;
        let offset = at.wrapping_sub(39);
        // Padding bytes that stay padding after the exchange of even offsets carry nothing (snell.md 1.5).
        let free = if offset < padding {
            offset % 2 == 1 || offset >= cipher
        } else {
            at >= 39 && (offset - padding).is_multiple_of(2) && offset - padding < padding
        };
        assert_eq!(open_frames(&psk, &bad, bad.len()).is_ok(), free, "bit 0 of byte {at}");
    }
}

#[test]
fn recorded_requests() {
    let mut rng = TestRng(2);
    for row in load("c2s_streams")["streams"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let mut server = server(&psk(row), &mut rng);
        let mut wire = RecvBuf::from_bytes(&hex(&row["stream"]));
        let result = server.poll_request(&mut wire);
        if name == "zero-chunk-first" {
            assert!(result.is_err(), "{name}");
            continue;
        }
        let Ok(Progress::Request(request)) = result else { panic!("{name}: {result:?}") };
        match (name, &request.command) {
            ("ping" | "ping-2bytes", SnellCommand::Ping) | ("udp" | "udp-zero-chunk", SnellCommand::Udp) => {}
            (_, SnellCommand::Connect { reusable, .. }) => {
                assert_eq!(*reusable, name.contains("v2"), "{name}")
            }
            (_, other) => panic!("{name}: {other:?}"),
        }
        if name == "connect-client-id" {
            assert!(!request.client_id.is_empty());
        }
        if name == "connect-v2-zero-chunk-twice" {
            let (first, ended) = read(&mut server, &mut wire, now()).unwrap();
            assert!(ended && !first.is_empty());
            server.accept();
            write_end(&mut server, now());
            assert!(server.next_exchange());
            assert!(matches!(server.poll_request(&mut wire).unwrap(), Progress::Request(_)));
            assert!(read(&mut server, &mut wire, now()).unwrap().1);
        }
    }
}

#[test]
fn recorded_replies() {
    let mut rng = TestRng(3);
    for row in load("s2c_streams")["streams"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let reusable = name.starts_with("reuse");
        if matches!(name, "pong" | "udp-responses") {
            continue;
        }
        let mut client = client(&psk(row), &mut rng);
        client.start(&connect(reusable));
        let mut wire = RecvBuf::from_bytes(&hex(&row["stream"]));
        let result = read(&mut client, &mut wire, now());
        if name.starts_with("error") {
            let Err(WireError::Remote { code, message }) = result else { panic!("{name}: {result:?}") };
            let plain = plain_frames(row);
            assert_eq!((code, message.len()), (plain[1], plain[2] as usize), "{name}: {message}");
            continue;
        }
        let (payload, ended) = result.unwrap();
        if !reusable {
            assert_eq!(payload, plain_frames(row)[1..], "{name}");
            continue;
        }
        assert!(ended, "{name}");
        write_end(&mut client, now());
        assert!(client.is_idle());
        client.start(&connect(true));
        let (_, ended) = read(&mut client, &mut wire, now()).unwrap();
        // The second zero chunk of an empty exchange is dropped, and the client goes on waiting for its reply.
        assert_eq!(ended, name == "reuse-two-exchanges", "{name}");
    }
}

#[test]
fn bad_input_is_refused() {
    let mut rng = TestRng(4);
    for row in load("bad_input")["cases"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let mut server = server(&SnellPsk::new(b"adit-vector-psk-0001"), &mut rng);
        let mut wire = RecvBuf::from_bytes(&hex(&row["c2s_stream"]));
        let result = server.poll_request(&mut wire);
        let legal = name.starts_with("ping") || name.starts_with("refused") || name.starts_with("udp");
        match result {
            Ok(Progress::Request(SnellRequest { command: SnellCommand::Invalid { .. }, .. })) => {
                let asks_for_nothing = ["request-unknown", "request-command", "request-host"];
                assert!(asks_for_nothing.iter().any(|begin| name.starts_with(begin)), "{name}");
            }
            Ok(Progress::Request(_)) => assert!(legal, "{name}"),
            Ok(Progress::NeedMore(_)) => assert_eq!(name, "request-short-then-open"),
            Err(_) => assert!(!legal && name != "request-short-then-open", "{name}"),
        }
        // After any bytes, further calls answer without a panic.
        drop(server.poll_request(&mut wire));
        drop(server.open(&mut wire, now()));
    }
}

#[test]
fn requests_for_nothing_are_told_apart() {
    for (bytes, want) in [
        (&b"\x01\x01\x00\x03a b\x00\x50"[..], Some((false, &b""[..], "host"))),
        (b"\x01\x05\x02id\x03a b\x00\x50", Some((true, b"id", "host"))),
        (b"\x01\x05\x00\x03a\0b\x00\x50", Some((true, b"", "host"))),
        (b"\x01\x05\x00\x01.\x00\x50", Some((true, b"", "empty host"))),
        (b"\x01\x05\x00\x00\x00\x50", Some((true, b"", "host length"))),
        (b"\x01\x02\x02id", Some((false, b"id", "command"))),
        (b"\x01\x09\x00", Some((false, b"", "command"))),
        (b"\x01\x09", None),
        (b"\x01\x05\x00\x03a b\x00", None),
    ] {
        let parsed = SnellRequest::parse(bytes).unwrap().map(|(request, _)| request);
        let Some((is_reusable, id, part)) = want else {
            assert_eq!(parsed, None, "{bytes:?}");
            continue;
        };
        let Some(SnellRequest { command: SnellCommand::Invalid { error, reusable }, client_id }) = parsed
        else {
            panic!("{bytes:?}: {parsed:?}")
        };
        assert_eq!((reusable, &*client_id), (is_reusable, id), "{bytes:?}");
        let (WireError::Malformed { what, .. } | WireError::Unsupported { what, .. }) = error else {
            panic!("{bytes:?}: {error}")
        };
        assert_eq!(what, part, "{bytes:?}");
    }
    for bytes in [&b"\0"[..], b"\x02\x01\x00\x01a\0\x50", b"\0\x01\x00\x01a\0\x50"] {
        assert!(SnellRequest::parse(bytes).is_err(), "{bytes:?}: answers begin with other bytes");
    }
}

#[test]
fn recorded_connections() {
    let mut rng = TestRng(5);
    let mut seen = 0;
    for row in load("captures")["captures"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        if row["obfs"] != "off" || name.contains("udp") {
            continue;
        }
        let side = |dir: &str| -> Vec<u8> {
            let events = row["events"].as_array().unwrap().iter();
            events
                .filter(|e| e["dir"] == dir)
                .flat_map(|e| e.get("data").map(hex).unwrap_or_default())
                .collect()
        };
        let mut server = server(&psk(row), &mut rng);
        let mut wire = RecvBuf::from_bytes(&side("c2s"));
        assert!(matches!(server.poll_request(&mut wire), Ok(Progress::Request(_))), "{name}");
        read(&mut server, &mut wire, now()).unwrap();
        let mut client = client(&psk(row), &mut rng);
        client.start(&connect(name.starts_with("reuse")));
        let answer = read(&mut client, &mut RecvBuf::from_bytes(&side("s2c")), now());
        let refused = matches!(name, "error-refused" | "reuse-after-refused#1");
        assert_eq!(matches!(answer, Err(WireError::Remote { .. })), refused, "{name}: {answer:?}");
        assert!(refused || answer.is_ok(), "{name}: {answer:?}");
        seen += 1;
    }
    assert!(seen > 10);
}

#[test]
fn two_exchanges_on_one_connection() {
    let (mut rng, at, psk) = (TestRng(6), now(), SnellPsk::new(b"key"));
    let (mut client, mut server) = (client(&psk, &mut rng), server(&psk, &mut rng));
    let (mut to_server, mut to_client) = (RecvBuf::with_len(1 << 20), RecvBuf::with_len(1 << 20));
    for round in 0..20u8 {
        let question = vec![round; 3000 * usize::from(round)];
        client.start(&connect(true));
        to_server.extend(&write(&mut client, &question, at));
        let Progress::Request(request) = server.poll_request(&mut to_server).unwrap() else { panic!() };
        assert_eq!(request, connect(true));
        assert_eq!(read(&mut server, &mut to_server, at).unwrap(), (question, false));
        server.accept();
        to_client.extend(&write(&mut server, b"answer", at));
        assert_eq!(read(&mut client, &mut to_client, at).unwrap(), (b"answer".to_vec(), false));
        // The connection comes back, no matter which end finishes first.
        let client_ends =
            |client: &mut SnellClientStream, server: &mut SnellServerStream, wire: &mut RecvBuf| {
                wire.extend(&write_end(client, at));
                assert_eq!(read(server, wire, at).unwrap(), (vec![], true));
            };
        if round % 2 == 0 {
            client_ends(&mut client, &mut server, &mut to_server);
        }
        assert!(!client.is_idle() && !server.next_exchange());
        to_client.extend(&write_end(&mut server, at));
        assert_eq!(read(&mut client, &mut to_client, at).unwrap(), (vec![], true));
        if round % 2 == 1 {
            client_ends(&mut client, &mut server, &mut to_server);
        }
        assert!(client.is_idle() && server.next_exchange());
        to_server.compact();
        to_client.compact();
    }
}

#[test]
fn a_refused_exchange_leaves_a_usable_connection() {
    let (mut rng, at, psk) = (TestRng(7), now(), SnellPsk::new(b"key"));
    let (mut client, mut server) = (client(&psk, &mut rng), server(&psk, &mut rng));
    client.start(&connect(true));
    let mut wire = RecvBuf::with_len(100_000);
    wire.extend(&write(&mut client, b"early", at));
    assert!(matches!(server.poll_request(&mut wire).unwrap(), Progress::Request(_)));
    let message = "é".repeat(200);
    server.refuse(&ErrorReply { code: 111, message: message.clone() });
    let mut answer = RecvBuf::from_bytes(&write(&mut server, b"", at));
    let error = read(&mut client, &mut answer, at).unwrap_err();
    assert_eq!(error, WireError::Remote { code: 111, message: message[..250].into() });
    wire.extend(&write_end(&mut client, at));
    assert_eq!(read(&mut server, &mut wire, at).unwrap(), (b"early".to_vec(), true));
    assert!(server.next_exchange());
}

#[test]
fn an_answer_without_data() {
    for reusable in [false, true] {
        let (mut rng, at, psk) = (TestRng(8), now(), SnellPsk::new(b"key"));
        let (mut client, mut server) = (client(&psk, &mut rng), server(&psk, &mut rng));
        client.start(&connect(reusable));
        let mut wire = RecvBuf::from_bytes(&write(&mut client, b"", at));
        server.poll_request(&mut wire).unwrap();
        server.accept();
        let mut answer = RecvBuf::from_bytes(&write_end(&mut server, at));
        assert_eq!(read(&mut client, &mut answer, at).unwrap(), (vec![], true));
        assert!(client.is_answered() && answer.unread().is_empty());
    }
}

#[test]
fn reflected_streams_are_refused() {
    let (mut rng, at, psk) = (TestRng(9), now(), SnellPsk::new(b"key"));
    let mut client = client(&psk, &mut rng);
    client.start(&connect(true));
    let own = write(&mut client, b"hello", at);
    let error = read(&mut client, &mut RecvBuf::from_bytes(&own), at).unwrap_err();
    assert_eq!(error, WireError::Replayed { what: "own salt" });
    // A server that is shown an answer of its own fails at the version byte.
    let mut server_a = server(&psk, &mut rng);
    server_a.accept();
    let answer = write(&mut server_a, b"hello", at);
    let error = server(&psk, &mut rng).poll_request(&mut RecvBuf::from_bytes(&answer)).unwrap_err();
    assert_eq!(error, WireError::Malformed { what: "request version", got: 0 });
}

#[test]
fn transport_end_of_a_reusable_exchange_is_a_truncation() {
    for (reusable, legal) in [(true, false), (false, true)] {
        let (mut rng, at, psk) = (TestRng(10), now(), SnellPsk::new(b"key"));
        let (mut client, mut server) = (client(&psk, &mut rng), server(&psk, &mut rng));
        client.start(&connect(reusable));
        assert!(client.handle_transport_end(0).is_err());
        server.accept();
        let answer = write(&mut server, b"data", at);
        read(&mut client, &mut RecvBuf::from_bytes(&answer), at).unwrap();
        assert_eq!(client.handle_transport_end(0).is_ok(), legal);
    }
}

/// Payload lengths of the frames that carry one write of `len` bytes.
fn frame_lens(client: &mut SnellClientStream, len: usize, at: Instant) -> Vec<usize> {
    let plan = client.plan(at);
    let count = len.saturating_sub(plan.first.max_payload).div_ceil(plan.rest.max_payload);
    write(client, &vec![0; len], at);
    let mut lens = vec![plan.rest.max_payload; count];
    lens.insert(0, plan.first.max_payload);
    lens
}

#[test]
fn frames_grow_per_write_call_and_start_small_again() {
    let (mut rng, start, psk) = (TestRng(11), now(), SnellPsk::new(b"key"));
    let mut client = client(&psk, &mut rng);
    client.start(&connect(true));
    let request_len = 3 + 1 + 11 + 2;
    let first = frame_lens(&mut client, 3000, start);
    assert!((894..=1149).contains(&(first[0] + request_len)), "{first:?}");
    let mut limit = first[0] + request_len;
    for _ in 0..20 {
        limit = (limit + 1421).min(MAX_PAYLOAD);
        let lens = frame_lens(&mut client, 40_000, start);
        assert!(lens.iter().all(|&len| len == limit), "{lens:?}, limit {limit}");
    }
    assert_eq!(limit, MAX_PAYLOAD);
    let later = start + Duration::from_secs(30);
    assert_eq!(frame_lens(&mut client, 1, later)[0], MAX_PAYLOAD);
    let later = later + Duration::from_millis(30_001);
    assert_eq!(frame_lens(&mut client, 5000, later)[0], 1421);
    assert_eq!(frame_lens(&mut client, 1, later)[0], 2842);
    write_end(&mut client, later);
    assert_eq!(client.plan(later).first.max_payload, 4263, "a zero chunk does not advance");
}

fn bits_per_byte(bytes: &[u8]) -> f64 {
    f64::from(bytes.iter().map(|b| b.count_ones()).sum::<u32>()) / bytes.len() as f64
}

/// The part that a censor looks at: the first segment, for every segment size of the path.
#[test]
fn ten_thousand_first_segments_are_out_of_the_band() {
    let at = now();
    let mut rng = TestRng(12);
    let mut key = SnellDirectionKey { salt: [0; 16], key: [0; 16], rest: [0; 16] };
    for round in 0..10_000usize {
        rng.fill(&mut key.salt);
        rng.fill(&mut key.key);
        let mut client = SnellClientStream::new(SnellPsk::new(b"key"), &key, &mut rng);
        let name = "a".repeat(1 + round % 60);
        client.start(&SnellRequest::connect(Target::new(name.as_bytes(), 443).unwrap(), true));
        let mut early = vec![0; round % 1401];
        rng.fill(&mut early);
        let segment = write(&mut client, &early, at);
        for cut in [1200, 1380, 1400, 1448, 1460, usize::MAX] {
            let bits = bits_per_byte(&segment[..segment.len().min(cut)]);
            assert!(!(3.4..=4.6).contains(&bits), "{} early bytes, first {cut}: {bits:.3}", early.len());
        }
    }
}

#[test]
fn first_frames_fit_one_segment() {
    let mut rng = TestRng(13);
    for len in (0..1200).step_by(29) {
        let mut client = client(&SnellPsk::new(b"key"), &mut TestRng(len as u64));
        client.start(&connect(false));
        let max = client.plan(now()).first.max_payload;
        let mut early = vec![0; len.min(max)];
        rng.fill(&mut early);
        assert!(write(&mut client, &early, now()).len() <= 1460);
    }
}

/// Our servers mark their first padding, our clients see it, and recorded servers are not taken for ours.
#[test]
fn servers_are_recognised() {
    let (mut rng, at, psk) = (TestRng(15), now(), SnellPsk::new(b"key"));
    for len in [0, 5, 500, 100_000] {
        let (mut client, mut server) = (client(&psk, &mut rng), server(&psk, &mut rng));
        client.start(&connect(true));
        server.accept();
        let answer = write(&mut server, &vec![1; len], at);
        assert!(!client.server_is_adit());
        read(&mut client, &mut RecvBuf::from_bytes(&answer), at).unwrap();
        assert!(client.server_is_adit(), "{len}");
    }
    for row in load("s2c_streams")["streams"].as_array().unwrap() {
        let mut client = SnellClientStream::new(self::psk(row), &psk.derive_own(&mut rng), &mut rng);
        client.start(&connect(false));
        drop(read(&mut client, &mut RecvBuf::from_bytes(&hex(&row["stream"])), at));
        assert!(!client.server_is_adit());
    }
}

#[test]
fn ends() {
    let (mut rng, psk) = (TestRng(14), SnellPsk::new(b"key"));
    let mut client = client(&psk, &mut rng);
    client.start(&connect(false));
    assert_eq!(client.end_of_stream(), EndOfStream::Transport);
    // The request still has to leave when the local side ends without a byte.
    assert!(client.has_pending());
    let sent = write_end(&mut client, now());
    let mut wire = RecvBuf::from_bytes(&sent);
    let mut server = server(&psk, &mut rng);
    assert!(matches!(server.poll_request(&mut wire).unwrap(), Progress::Request(_)));
    assert!(wire.unread().is_empty());
    server.handle_transport_end(0).unwrap();
}

/// A connection that stays open ends an exchange by a zero chunk. Without one it was cut, and the target must not take
/// what it has for the whole.
#[test]
fn a_kept_connection_that_ends_without_its_zero_chunk_is_cut() {
    let (mut rng, psk) = (TestRng(15), SnellPsk::new(b"key"));
    for has_end in [false, true] {
        let mut client = client(&psk, &mut rng);
        client.start(&connect(true));
        let mut sent = write(&mut client, b"half of a request", now());
        if has_end {
            sent.extend(write_end(&mut client, now()));
        }
        let mut wire = RecvBuf::from_bytes(&sent);
        let mut server = server(&psk, &mut rng);
        assert!(matches!(server.poll_request(&mut wire).unwrap(), Progress::Request(_)));
        read(&mut server, &mut wire, now()).unwrap();
        let end = server.handle_transport_end(wire.unread().len());
        let cut = Err(WireError::Truncated { what: "exchange without its end" });
        assert_eq!(end, if has_end { Ok(()) } else { cut });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_writes_and_any_pieces_round_trip(
        writes in prop::collection::vec(0usize..40_000, 1..8),
        piece in 1usize..5000,
        seed: u64,
    ) {
        let (mut rng, at, psk) = (TestRng(seed), now(), SnellPsk::new(b"key"));
        let mut client = client(&psk, &mut rng);
        client.start(&connect(true));
        let (mut plain, mut sent) = (Vec::new(), Vec::new());
        for len in writes {
            let mut payload = vec![0; len];
            rng.fill(&mut payload);
            sent.extend(write(&mut client, &payload, at));
            plain.extend(payload);
        }
        sent.extend(write_end(&mut client, at));
        let mut server = server(&psk, &mut rng);
        let mut wire = RecvBuf::with_len(sent.len());
        let (mut opened, mut ended, mut requested) = (Vec::new(), false, false);
        for bytes in sent.chunks(piece) {
            wire.extend(bytes);
            if !requested {
                requested = matches!(server.poll_request(&mut wire).unwrap(), Progress::Request(_));
            }
            if requested {
                let (payload, end) = read(&mut server, &mut wire, at).unwrap();
                opened.extend(payload);
                ended |= end;
            }
        }
        prop_assert!(ended);
        prop_assert_eq!(opened, plain);
    }

    #[test]
    fn arbitrary_requests_parse_alike_whole_and_grown(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        snell_fuzz::fuzz_request(&bytes);
        if let Ok(Some((request, used))) = SnellRequest::parse(&bytes)
            && request.command != SnellCommand::Ping
        {
            for len in 0..used {
                prop_assert_eq!(SnellRequest::parse(&bytes[..len]), Ok(None));
            }
        }
    }
}
