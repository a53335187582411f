//! Obfuscation layers against recordings of other programs and against each other.

use adit_proto::http::{BodyFramer, HeadScanner, RequestHead};
use adit_proto::obfs::http::{HttpObfsClient, HttpObfsConfig, HttpObfsServer, MAX_HEAD_LEN, fuzz_obfs_http};
use adit_proto::obfs::tls::{TlsObfsClient, TlsObfsServer, fuzz_obfs_tls};
use adit_proto::wire::{Layer, WireError};
use adit_testkit::layers::{Received, check_splits, check_truncations, open_pieces, seal_write};
use adit_testkit::{FixedRng, ScriptedRng, epoch, hex, load, pattern, text};
use aws_lc_rs::digest::{SHA256, digest};
use proptest::prelude::*;
use serde_json::Value;

const UNIX_TIME: u64 = 1_795_223_665;
const UNIX_TIME_TLS: u32 = 1_795_223_665;

fn http_client() -> HttpObfsClient {
    let mut rng = FixedRng::new(1);
    let config = HttpObfsConfig::new("bing.com", "/", &mut rng).unwrap();
    HttpObfsClient::new(&config, &mut rng)
}

fn http_server() -> HttpObfsServer {
    HttpObfsServer::new(UNIX_TIME, &mut FixedRng::new(2))
}

fn tls_client() -> TlsObfsClient {
    TlsObfsClient::new("cloudfront.net", UNIX_TIME_TLS, &mut FixedRng::new(3))
}

fn tls_server() -> TlsObfsServer {
    TlsObfsServer::new(UNIX_TIME_TLS, &mut FixedRng::new(4))
}

/// The receiving end for a recorded direction.
fn receiver(obfs: &str, direction: &str) -> Box<dyn Layer> {
    match (obfs, direction) {
        ("http", "c2s") => Box::new(http_server()),
        ("http", "s2c") => Box::new(http_client()),
        ("tls", "c2s") => Box::new(tls_server()),
        ("tls", "s2c") => Box::new(tls_client()),
        other => panic!("no such stream: {other:?}"),
    }
}

fn received(payload: Vec<u8>) -> Result<Received, WireError> {
    Ok(Received { payload, ended: false, unread: 0 })
}

#[test]
fn opens_recorded_streams() {
    let now = epoch();
    for row in load("snell/obfs.json")["streams"].as_array().unwrap() {
        if row["wire"].is_null() {
            continue;
        }
        let (obfs, direction) = (text(row, "obfs"), text(row, "direction"));
        let make = || receiver(obfs, direction);
        let wire = hex(text(row, "wire"));
        let expected = received(hex(text(row, "inner_stream")));
        assert_eq!(check_splits(make, &wire, now), expected, "{}", text(row, "name"));
        check_truncations(make, &wire, now);
    }
}

#[test]
fn opens_captures() {
    let now = epoch();
    for row in load("snell/captures.json")["captures"].as_array().unwrap() {
        let obfs = text(row, "obfs");
        if obfs == "off" {
            continue;
        }
        for direction in ["c2s", "s2c"] {
            let pieces: Vec<Vec<u8>> = row["events"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|event| event["dir"] == direction && event["data"].is_string())
                .map(|event| hex(text(event, "data")))
                .collect();
            let mut layer = receiver(obfs, direction);
            let as_recorded = open_pieces(layer.as_mut(), pieces.iter().map(Vec::as_slice), now);
            layer.handle_transport_end(0).unwrap();
            let whole = open_pieces(receiver(obfs, direction).as_mut(), [&pieces.concat()[..]], now);
            assert_eq!(as_recorded, whole);
            assert!(whole.unwrap().payload.len() > 3000, "{obfs} {direction}");
        }
    }
}

/// The row of obfs.json with that name.
fn vector(name: &str) -> Value {
    let all = load("snell/obfs.json");
    let mut rows = all["streams"].as_array().unwrap().iter();
    rows.find(|row| row["name"] == name).unwrap().clone()
}

/// The pieces of `stream` as the recorded program wrote them, sealed by `layer`.
fn reseal(layer: &mut dyn Layer, row: &Value, stream: &[u8]) -> Vec<u8> {
    let mut rest = stream;
    let mut wire = Vec::new();
    for size in row["inner_write_sizes"].as_array().unwrap() {
        let (piece, later) = rest.split_at(usize::try_from(size.as_u64().unwrap()).unwrap());
        wire.extend(seal_write(layer, piece, epoch()));
        rest = later;
    }
    wire
}

#[test]
fn seals_tls_as_recorded() {
    for (name, client) in [("obfs-tls-c2s", true), ("obfs-tls-s2c", false)] {
        let row = vector(name);
        let wire = hex(text(&row, "wire"));
        let time = u32::from_be_bytes(wire[11..15].try_into().unwrap());
        let mut rng = ScriptedRng::new(&[&wire[15..43], &wire[44..76]].concat());
        let mut layer: Box<dyn Layer> = if client {
            Box::new(TlsObfsClient::new(text(&row, "obfs_host"), time, &mut rng))
        } else {
            Box::new(TlsObfsServer::new(time, &mut rng))
        };
        assert!(layer.has_pending());
        let sealed = reseal(layer.as_mut(), &row, &hex(text(&row, "inner_stream")));
        assert_eq!(sealed, wire, "{name}");
        assert!(!layer.has_pending());
    }
}

#[test]
fn opens_a_ticket_of_16384_bytes() {
    let row = vector("obfs-tls-c2s-large-first");
    let head = hex(text(&row, "wire_head"));
    let inner = pattern(40_000);
    let mut wire = head[..142].to_vec();
    wire.extend(&inner[..16_384]);
    // Another client's hello with the same host has the same bytes behind the ticket.
    let host = text(&vector("obfs-tls-c2s"), "obfs_host").to_owned();
    let hello = seal_write(&mut TlsObfsClient::new(&host, 0, &mut FixedRng::new(5)), b"x", epoch());
    wire.extend(&hello[143..]);
    for piece in [&inner[16_384..32_768], &inner[32_768..]] {
        wire.extend([0x17, 3, 3]);
        wire.extend(u16::try_from(piece.len()).unwrap().to_be_bytes());
        wire.extend(piece);
    }
    assert_eq!(digest(&SHA256, &wire).as_ref(), hex(text(&row, "wire_sha256")));
    assert_eq!(open_pieces(&mut tls_server(), [&wire[..]], epoch()), received(inner.clone()));
    assert_eq!(open_pieces(&mut tls_server(), wire.chunks(1000), epoch()), received(inner));
}

#[test]
fn both_ends_fit() {
    let now = epoch();
    for sizes in [&[1][..], &[1023], &[1024], &[1025], &[0, 5], &[16_384, 1], &[40_000, 3]] {
        let writes: Vec<Vec<u8>> = sizes.iter().map(|&size| pattern(size)).collect();
        let sealed = |mut layer: Box<dyn Layer>| -> Vec<u8> {
            writes.iter().flat_map(|data| seal_write(layer.as_mut(), data, now)).collect()
        };
        let expected = received(writes.concat());
        for (obfs, client) in
            [("http", Box::new(http_client()) as Box<dyn Layer>), ("tls", Box::new(tls_client()))]
        {
            let wire = sealed(client);
            assert_eq!(open_pieces(receiver(obfs, "c2s").as_mut(), [&wire[..]], now), expected);
            assert_eq!(open_pieces(receiver(obfs, "c2s").as_mut(), wire.chunks(7), now), expected);
        }
        for (obfs, server) in
            [("http", Box::new(http_server()) as Box<dyn Layer>), ("tls", Box::new(tls_server()))]
        {
            let wire = sealed(server);
            assert_eq!(open_pieces(receiver(obfs, "s2c").as_mut(), [&wire[..]], now), expected);
            assert_eq!(open_pieces(receiver(obfs, "s2c").as_mut(), wire.chunks(7), now), expected);
        }
    }
}

#[test]
fn long_first_writes_split_behind_1024_bytes() {
    let now = epoch();
    let wire = seal_write(&mut tls_client(), &pattern(1500), now);
    let hello = 217 + 1024 + "cloudfront.net".len();
    assert_eq!(wire[..5], [&[0x16, 3, 1][..], &u16::try_from(hello - 5).unwrap().to_be_bytes()].concat());
    assert_eq!(wire[hello..hello + 5], [0x17, 3, 3, 1, 220]);
    assert_eq!(wire.len(), hello + 5 + 476);
    assert_eq!(check_splits(|| Box::new(tls_server()), &wire, now), received(pattern(1500)));
}

/// The plan asks for just as much room as the longest frame uses.
#[test]
fn room_is_exact() {
    let now = epoch();
    let plan = tls_client().plan(now);
    assert_eq!(plan.first.head + 16_384, seal_write(&mut tls_client(), &pattern(16_384), now).len());
    assert_eq!(plan.first.tail, 217 - 142 + "cloudfront.net".len());
    let plan = tls_server().plan(now);
    assert_eq!(plan.first.head + 9, seal_write(&mut tls_server(), &pattern(9), now).len());
    let plan = http_server().plan(now);
    assert_eq!(plan.first.head + 9, seal_write(&mut http_server(), &pattern(9), now).len());
    // The head of the client leaves room for the digits of any length.
    let plan = http_client().plan(now);
    let digits = usize::MAX.to_string().len();
    assert_eq!(plan.first.head - digits + 1 + 9, seal_write(&mut http_client(), &pattern(9), now).len());
    assert_eq!((plan.first.max_payload, plan.rest.max_payload), (usize::MAX, usize::MAX));
    assert_eq!(plan.rest.head + plan.rest.tail, 0);
}

#[test]
fn http_heads() {
    let now = epoch();
    let sealed = String::from_utf8(seal_write(&mut http_client(), b"stream", now)).unwrap();
    let (head, body) = sealed.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "stream");
    let names: Vec<&str> = head.lines().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(
        names,
        [
            "GET / HTTP/1.1",
            "Host",
            "User-Agent",
            "Upgrade",
            "Connection",
            "Content-Length",
            "Sec-WebSocket-Key"
        ]
    );
    assert!(head.contains("\r\nHost: bing.com\r\n"));
    assert!(head.contains("\r\nConnection: Upgrade\r\nContent-Length: 6\r\n"));

    let mut client = http_client();
    let alone = String::from_utf8(seal_write(&mut client, b"", now)).unwrap();
    assert!(alone.ends_with("==\r\n\r\n") && !alone.contains("Content-Length"));
    assert_eq!(seal_write(&mut client, b"", now), b"");

    let answer = String::from_utf8(seal_write(&mut http_server(), b"stream", now)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101 Switching Protocols\r\nServer: nginx/1."));
    assert!(answer.contains("\r\nDate: Sat, 21 Nov 2026 01:14:25 GMT\r\nUpgrade: websocket\r\n"));
    assert!(answer.ends_with("==\r\n\r\nstream"));

    for bad in ["", "a b", "a\r\nX: y", "a\u{85}"] {
        assert!(HttpObfsConfig::new(bad, "/", &mut FixedRng::new(1)).is_err(), "{bad:?}");
    }
}

/// OpenSnell's server reads the request with a real parser, wants GET and `Connection: Upgrade`, and takes the body
/// for the beginning of the stream.
#[test]
fn http_request_is_one() {
    let sealed = seal_write(&mut http_client(), &pattern(300), epoch());
    let len = HeadScanner::new().scan(&sealed).unwrap().unwrap();
    let head = RequestHead::parse(&sealed[..len]).unwrap();
    assert_eq!(head.method(), "GET");
    assert_eq!(head.body(), BodyFramer::length(300));
    assert!(head.exchange().upgrade);
    assert_eq!(sealed[len..], pattern(300));
}

#[test]
fn http_head_limit() {
    let now = epoch();
    let build = |len: usize| {
        let fixed = b"GET / HTTP/1.1\r\nX: ".len() + 4;
        [b"GET / HTTP/1.1\r\nX: ", &vec![b'x'; len - fixed][..], b"\r\n\r\nstream"].concat()
    };
    for (len, accepted) in [(MAX_HEAD_LEN - 1, true), (MAX_HEAD_LEN, true), (MAX_HEAD_LEN + 1, false)] {
        let wire = build(len);
        let whole = open_pieces(&mut http_server(), [&wire[..]], now);
        assert_eq!(whole.is_ok(), accepted, "{len}");
        assert_eq!(open_pieces(&mut http_server(), wire.chunks(1), now), whole);
        if accepted {
            assert_eq!(whole, received(b"stream".to_vec()));
        }
    }
}

#[test]
fn http_garbage_fails_at_once() {
    let now = epoch();
    let bad = |layer: &mut dyn Layer, bytes: &[u8]| {
        matches!(open_pieces(layer, [bytes], now), Err(WireError::Malformed { .. }))
    };
    for bytes in [
        &b"\x16\x03\x01"[..],
        b"get ",
        b" GET",
        b"GET  /",
        b"GET / HTTX",
        b"GET / HTTP/2",
        b"GET /\r\n",
        b"GET \x80",
        b"AAAAAAAAAAAAAAAAA",
    ] {
        assert!(bad(&mut http_server(), bytes), "{}", bytes.escape_ascii());
    }
    for bytes in [&b"\x16"[..], b"http", b"HTTP/2", b"SSH-"] {
        assert!(bad(&mut http_client(), bytes), "{}", bytes.escape_ascii());
    }
}

#[test]
fn tls_mismatches() {
    let now = epoch();
    let hello = seal_write(&mut tls_client(), &pattern(100), now);
    let answer = seal_write(&mut tls_server(), &pattern(100), now);
    let name_at = 142 + 100;
    for at in
        [0, 1, 3, 4, 5, 6, 7, 8, 136, 137, 138, 139, 140, 141, name_at, name_at + 3, name_at + 5, name_at + 8]
    {
        let mut wire = hello.clone();
        wire[at] ^= 1;
        assert!(open_pieces(&mut tls_server(), [&wire[..]], now).is_err(), "hello, byte {at}");
    }
    for at in [0, 1, 2, 3, 4, 5, 96, 97, 98, 99, 100, 101, 102, 103, 104] {
        let mut wire = answer.clone();
        wire[at] ^= 1;
        assert!(open_pieces(&mut tls_client(), [&wire[..]], now).is_err(), "answer, byte {at}");
    }
    for probe in [&b"GET / HTTP/1.1\r\n"[..], b"\x00", b"\x16\x02"] {
        assert!(open_pieces(&mut tls_server(), [probe], now).is_err());
    }
    let mut alert = answer;
    alert.extend([0x15, 3, 3, 0, 2, 2, 40]);
    assert!(open_pieces(&mut tls_client(), [&alert[..]], now).is_err());
}

#[test]
fn transport_ends() {
    let now = epoch();
    for (obfs, wire) in [
        ("http", seal_write(&mut http_client(), &pattern(100), now)),
        ("tls", seal_write(&mut tls_client(), &pattern(100), now)),
    ] {
        for len in 0..=wire.len() {
            let mut layer = receiver(obfs, "c2s");
            let unread = open_pieces(layer.as_mut(), [&wire[..len]], now).unwrap().unread;
            let head = obfs == "http" && len >= wire.len() - 100;
            assert_eq!(layer.handle_transport_end(unread).is_ok(), len == wire.len() || head, "{obfs} {len}");
        }
    }
}

proptest! {
    #[test]
    fn fuzz(choice: u8, at: prop::sample::Index, byte: u8, len in 0..300usize, noise: Vec<u8>) {
        let now = epoch();
        let layers: [Box<dyn Layer>; 4] =
            [Box::new(http_client()), Box::new(http_server()), Box::new(tls_client()), Box::new(tls_server())];
        for mut layer in layers {
            let mut wire = seal_write(layer.as_mut(), &pattern(len), now);
            let at = at.index(wire.len());
            wire[at] = byte;
            wire.insert(0, choice);
            fuzz_obfs_http(&wire);
            fuzz_obfs_tls(&wire);
        }
        fuzz_obfs_http(&noise);
        fuzz_obfs_tls(&noise);
    }
}
