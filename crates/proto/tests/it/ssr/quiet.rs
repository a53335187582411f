//! GoQuiet: recorded hellos and streams, probes, and both ends face to face.

use adit_proto::buf::RecvBuf;
use adit_proto::goquiet::{
    Browser, GoQuietClientConfig, GoQuietClientStream, GoQuietHandshake, GoQuietKey, GoQuietServerConfig,
    GoQuietServerStream, NotOurs,
};
use adit_proto::wire::{Layer, Opened};
use serde_json::Value;

use crate::ssr::support::{Script, hex, now, read, rows, text};

fn chunks(row: &Value, way: &str) -> Vec<u8> {
    let all = row["chunks"].as_array().expect("a list").iter().filter(|chunk| chunk[0] == way);
    all.flat_map(|chunk| hex(chunk[1].as_str().expect("hex"))).collect()
}

fn drain(layer: &mut dyn Layer, wire: &mut RecvBuf) -> Vec<u8> {
    let mut plain = Vec::new();
    while let Opened::Payload(range) = layer.open(wire, now()).expect("good records") {
        plain.extend_from_slice(&wire.block()[range]);
    }
    plain
}

#[test]
fn recorded_streams() {
    let payload = read("goquiet", "payload.json");
    for row in rows("goquiet", "streams.json") {
        let (unix_s, key) =
            (row["unix_time"].as_u64().unwrap(), GoQuietKey::new(text(&row, "Key").as_bytes()));
        let mut wire = RecvBuf::from_bytes(&chunks(&row, "c2s"));
        let mut server =
            GoQuietServerStream::new(&GoQuietServerConfig::new(key.clone()), unix_s, &mut Script::seeded(1));
        let mut out = Vec::new();
        assert_eq!(server.handshake(&mut wire, &mut out), Ok(GoQuietHandshake::Done));
        let up = [hex(text(&row, "target")), hex(text(&payload, "c2s"))].concat();
        assert!(drain(&mut server, &mut wire) == up);
        let theirs = chunks(&row, "s2c");
        assert_eq!(out.len(), 137);
        for at in (0..11).chain([43]).chain(44..97) {
            assert_eq!(out[at], theirs[at], "byte {at} of the answer");
        }

        let browser: Browser = text(&row, "Browser").parse().unwrap();
        let config =
            GoQuietClientConfig::new(key, browser, text(&row, "ServerName"), 3600, &mut Script::seeded(1))
                .unwrap();
        let mut client = GoQuietClientStream::new(&config, unix_s, &mut Script::seeded(2));
        let (mut wire, mut hello) = (RecvBuf::from_bytes(&theirs), Vec::new());
        assert_eq!(client.handshake(&mut wire, &mut hello), Ok(GoQuietHandshake::Done));
        assert!(drain(&mut client, &mut wire) == hex(text(&payload, "s2c")));
        assert!(shape(&hello, browser) == shape(&chunks(&row, "c2s")[..517], browser), "{browser:?}");
    }
}

/// A hello with everything that is drawn set to zero.
fn shape(hello: &[u8], browser: Browser) -> Vec<u8> {
    let mut shape = hello.to_vec();
    assert_eq!(shape.len(), 517);
    shape[11..43].fill(0);
    shape[44..76].fill(0);
    let is_grease = |two: &[u8]| two[0] == two[1] && two[0] & 15 == 10;
    let mut at = if browser == Browser::Chrome { 110 } else { 112 };
    while at < shape.len() {
        let len = usize::from(u16::from_be_bytes([shape[at + 2], shape[at + 3]]));
        match (shape[at], shape[at + 1]) {
            (0, 0x23) => shape[at + 4..at + 4 + len].fill(0),
            (0, 0x0a) if is_grease(&shape[at + 6..at + 8]) => shape[at + 6..at + 8].fill(0),
            _ if is_grease(&shape[at..at + 2]) => shape[at..at + 2].fill(0),
            _ => {}
        }
        at += 4 + len;
    }
    shape
}

#[test]
fn probes_go_to_the_web_server_unread() {
    let probes = read("goquiet", "server_on_probes.json");
    let rows = probes["probes"].as_array().unwrap();
    let sent = |row: &Value| -> Vec<u8> {
        row["sent"].as_array().unwrap().iter().flat_map(|piece| hex(piece.as_str().unwrap())).collect()
    };
    let unix_s = rows_time();
    let config = GoQuietServerConfig::new(GoQuietKey::new(b"adit-goquiet-key"));
    let mut results = Vec::new();
    for row in rows {
        let bytes = sent(row);
        let (mut wire, mut out) = (RecvBuf::from_bytes(&bytes), Vec::new());
        let result =
            GoQuietServerStream::new(&config, unix_s, &mut Script::seeded(1)).handshake(&mut wire, &mut out);
        if result.is_err() {
            assert!(wire.unread() == bytes && out.is_empty(), "{}", text(row, "name"));
        }
        results.push((text(row, "name").to_owned(), result));
    }
    let count = |want: &dyn Fn(&Result<GoQuietHandshake, NotOurs>) -> bool| {
        results.iter().filter(|(_, it)| want(it)).count()
    };
    assert!(matches!(results[0].1, Ok(GoQuietHandshake::NeedMore(_))), "{results:?}");
    assert_eq!(results[1].1, Err(NotOurs::Replay), "{results:?}");
    assert!(count(&|it| *it == Err(NotOurs::NoProof)) >= 1, "{results:?}");
    assert!(count(&|it| *it == Err(NotOurs::NotTls)) >= 1, "{results:?}");
}

/// The probes were recorded in the same run as the streams.
fn rows_time() -> u64 {
    rows("goquiet", "streams.json")[0]["unix_time"].as_u64().expect("a time")
}

#[test]
fn a_hello_may_come_in_pieces_and_no_bit_may_differ() {
    let key = GoQuietKey::new(b"key");
    let config =
        GoQuietClientConfig::new(key.clone(), Browser::Firefox, "a.example", 3600, &mut Script::seeded(1))
            .unwrap();
    let mut hello = Vec::new();
    let mut client = GoQuietClientStream::new(&config, 1_800_000_000, &mut Script::seeded(2));
    client.handshake(&mut RecvBuf::with_len(1), &mut hello).unwrap();
    let server = || {
        GoQuietServerStream::new(
            &GoQuietServerConfig::new(key.clone()),
            1_800_000_000,
            &mut Script::seeded(3),
        )
    };
    for cut in 0..hello.len() {
        let (mut wire, mut out) = (RecvBuf::with_len(600), Vec::new());
        let mut server = server();
        wire.extend(&hello[..cut]);
        assert!(matches!(server.handshake(&mut wire, &mut out), Ok(GoQuietHandshake::NeedMore(_))), "{cut}");
        assert!(out.is_empty() && !server.is_authenticated());
        wire.extend(&hello[cut..]);
        assert!(matches!(server.handshake(&mut wire, &mut out), Ok(GoQuietHandshake::NeedMore(_))), "{cut}");
        assert!(server.is_authenticated());
    }
    for at in 11..43 {
        let mut bad = hello.clone();
        bad[at] ^= 1;
        let result = server().handshake(&mut RecvBuf::from_bytes(&bad), &mut Vec::new());
        assert_eq!(result, Err(NotOurs::NoProof), "byte {at}");
    }
    assert!("opera".parse::<Browser>().is_err());
    assert!(
        GoQuietClientConfig::new(key, Browser::Chrome, &"n".repeat(102), 3600, &mut Script::seeded(1))
            .is_err()
    );
}

#[test]
fn recorded_randoms() {
    for row in rows("goquiet", "random_field.json") {
        let key = GoQuietKey::new(text(&row, "Key").as_bytes());
        let unix_s = row["unix_time"].as_u64().unwrap();
        // The seed of tickets is drawn first, then the random's IV.
        let config = GoQuietClientConfig::new(key, Browser::Chrome, "a", 1, &mut Script::seeded(1)).unwrap();
        let mut hello = Vec::new();
        let mut client = GoQuietClientStream::new(&config, unix_s, &mut Script::new(&hex(text(&row, "iv"))));
        client.handshake(&mut RecvBuf::with_len(1), &mut hello).unwrap();
        assert_eq!(hello[11..43], hex(text(&row, "random")));
    }
}
