//! Helpers: vectors, a scripted random source, a driver for layers.

use std::ops::Range;
use std::path::Path;

use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::{
    Accept, Accepted, IdentityKeys, Keys2022, MethodKey, SaltFilter, ServerKey, ShadowsocksAcceptor,
    ShadowsocksMethod,
};
use adit_proto::wire::{Layer, Opened, Rng, WireError};
pub(crate) use adit_testkit::hex;
use serde_json::Value;

pub(crate) use crate::script::{NOW_S, Script, clock, now};

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("text at {key}"))
}

pub(crate) fn bytes(value: &Value, key: &str) -> Vec<u8> {
    hex(text(value, key))
}

pub(crate) fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("number at {key}"))
}

/// All entries of all files, with a name for messages.
pub(crate) fn entries() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/shadowsocks");
    let mut all = Vec::new();
    for file in folder.read_dir().expect("vectors").map(|entry| entry.expect("entry").path()) {
        if file.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        if file.ends_with("control-plane.json") {
            // Managers' texts, not streams.
            continue;
        }
        let content = std::fs::read(&file).expect("readable");
        let Value::Array(entries) = serde_json::from_slice(&content).expect("JSON") else {
            panic!("{} is no list", file.display())
        };
        let stem = file.file_stem().expect("a name").to_string_lossy().into_owned();
        all.extend(entries.into_iter().map(|entry| (format!("{stem}/{}", text(&entry, "name")), entry)));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(all.len(), 82, "entries in {}", folder.display());
    all
}

pub(crate) fn method(entry: &Value) -> ShadowsocksMethod {
    text(entry, "method").parse().expect("known method")
}

pub(crate) fn client_key(entry: &Value) -> MethodKey {
    let password = entry.get("client_password").or_else(|| entry.get("password")).and_then(Value::as_str);
    MethodKey::from_password(method(entry), password.expect("password")).expect("valid key")
}

pub(crate) fn keys_2022(method: ShadowsocksMethod, password: &str) -> std::sync::Arc<Keys2022> {
    match MethodKey::from_password(method, password).expect("valid key") {
        MethodKey::Aead2022(keys) => keys,
        other @ (MethodKey::Stream(_) | MethodKey::Aead(_)) => panic!("not SIP022: {other:?}"),
    }
}

pub(crate) fn server_key(entry: &Value) -> ServerKey {
    let Some(password) = entry.get("server_password").and_then(Value::as_str) else {
        return ServerKey::new(client_key(entry));
    };
    let keys = keys_2022(method(entry), password);
    match entry.get("users").and_then(Value::as_array) {
        None => ServerKey::new(MethodKey::Aead2022(keys)),
        Some(users) => {
            let users = users.iter().map(|user| (text(user, "name"), text(user, "password")));
            let users = IdentityKeys::new(keys.method(), users).expect("valid users");
            ServerKey::with_users(keys, users.into())
        }
    }
}

/// Seals `pieces` in order, each in a frame of its own (cut further only where a frame is full).
pub(crate) fn seal_all(layer: &mut dyn Layer, pieces: &[&[u8]]) -> Vec<u8> {
    let mut wire = Vec::new();
    for piece in pieces {
        let mut rest = *piece;
        loop {
            let room = layer.plan(now()).first;
            let (now_sealed, later) = rest.split_at(rest.len().min(room.max_payload));
            let mut block = vec![0xa5; room.head];
            block.extend_from_slice(now_sealed);
            let payload = room.head..block.len();
            block.resize(block.len() + room.tail, 0xa5);
            let frame = layer.seal(&mut block, payload, now()).expect("sealed");
            wire.extend_from_slice(&block[frame]);
            layer.finish_write(now());
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    }
    wire
}

/// Opens everything that `wire` holds and returns the payload.
pub(crate) fn drain(layer: &mut dyn Layer, wire: &mut RecvBuf) -> Result<Vec<u8>, WireError> {
    let mut plain = Vec::new();
    loop {
        match layer.open(wire, now())? {
            Opened::Payload(range) => plain.extend_from_slice(&wire.block()[range]),
            Opened::NeedMore(more) => {
                assert!(more > 0);
                return Ok(plain);
            }
            Opened::End => panic!("shadowsocks has no end in band"),
        }
    }
}

/// Feeds `bytes` cut at `cuts`, compacting before each piece, and returns the payload.
pub(crate) fn open_cut(layer: &mut dyn Layer, bytes: &[u8], cuts: &[usize]) -> Result<Vec<u8>, WireError> {
    let mut wire = RecvBuf::with_len(bytes.len());
    let mut plain = Vec::new();
    for piece in pieces(bytes, cuts) {
        wire.compact();
        assert_eq!(wire.extend(piece), piece.len());
        plain.extend(drain(layer, &mut wire)?);
    }
    layer.handle_transport_end(wire.unread().len())?;
    Ok(plain)
}

pub(crate) fn pieces<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut at = 0;
    let mut pieces = Vec::new();
    for &cut in cuts.iter().chain([&bytes.len()]) {
        pieces.push(&bytes[at..cut]);
        at = cut;
    }
    pieces
}

/// Feeds `bytes` cut at `cuts` to `acceptor`; returns what was accepted, all payload up to the end, and the server.
pub(crate) fn accept_cut(
    mut acceptor: ShadowsocksAcceptor,
    bytes: &[u8],
    cuts: &[usize],
    unix_s: u64,
    filter: &mut dyn SaltFilter,
    rng: &mut dyn Rng,
) -> Result<(Accepted, Vec<u8>, adit_proto::shadowsocks::ShadowsocksServerStream), WireError> {
    let mut wire = RecvBuf::with_len(bytes.len());
    let mut pieces = pieces(bytes, cuts).into_iter();
    let accepted = loop {
        let Some(piece) = pieces.next() else { return Err(WireError::Truncated { what: "test input" }) };
        wire.compact();
        assert_eq!(wire.extend(piece), piece.len());
        match acceptor.accept(&mut wire, unix_s, filter)? {
            Accept::NeedMore(more) => assert!(more > 0),
            Accept::Accepted(accepted) => break accepted,
        }
    };
    let mut plain = wire.block()[accepted.payload.clone()].to_vec();
    let mut server = acceptor.into_server(clock(unix_s), rng);
    plain.extend(drain(&mut server, &mut wire)?);
    for piece in pieces {
        wire.compact();
        assert_eq!(wire.extend(piece), piece.len());
        plain.extend(drain(&mut server, &mut wire)?);
    }
    server.handle_transport_end(wire.unread().len())?;
    Ok((accepted, plain, server))
}

/// A block with room around `payload`.
pub(crate) fn block_for(room: adit_proto::wire::Room, payload: &[u8]) -> (Vec<u8>, Range<usize>) {
    let mut block = vec![0xa5; room.head];
    block.extend_from_slice(payload);
    let range = room.head..block.len();
    block.resize(block.len() + room.tail, 0xa5);
    (block, range)
}
