//! Recorded exchanges: opened, and where the peer's choices can be scripted, sealed again to the same bytes.

use std::collections::HashMap;

use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::aead2022::{
    Aead2022ClientPackets, Aead2022ServerPackets, Relay, Relayed, Session,
};
use adit_proto::shadowsocks::{
    Generation, IdentityKeys, MethodKey, NoFilter, PacketCodec, ShadowsocksAcceptor, ShadowsocksClientStream,
    UserId, aead, client_packets, stream,
};
use adit_proto::wire::{Layer, Target, WireError};
use serde_json::Value;

use crate::shadowsocks::support::{
    Script, accept_cut, block_for, bytes, client_key, clock, entries, hex, keys_2022, method, now, number,
    open_cut, seal_all, server_key, text,
};

fn target(value: &Value, host: &str, port: &str) -> Target {
    let port = u16::try_from(number(value, port)).expect("a port");
    Target::new(text(value, host).as_bytes(), port).expect("a target")
}

fn salt(decoded: &Value) -> Vec<u8> {
    hex(decoded.get("salt").or_else(|| decoded.get("iv")).and_then(Value::as_str).expect("salt"))
}

fn recorded_s(decoded: &Value) -> u64 {
    decoded.get("timestamp").and_then(Value::as_u64).unwrap_or(0)
}

/// The draws of a client that sends the recorded request: salt, then the padding length.
fn client_script(decoded: &Value) -> Script {
    let mut script = salt(decoded);
    let padding = decoded.get("padding_len").and_then(Value::as_u64).unwrap_or(1).max(1) - 1;
    script.extend_from_slice(&u32::try_from(padding).expect("short").to_le_bytes());
    Script::new(&script)
}

#[test]
fn streams_open() {
    for (name, entry) in entries() {
        // The bytes for the multi-user server behind the relay are recorded apart.
        let tcp = entry.get("after_relay").map_or(&entry["tcp"], |after| &after["tcp"]);
        let (c2s, s2c) = (bytes(tcp, "c2s_hex"), bytes(tcp, "s2c_hex"));
        let decoded = &tcp["c2s_decoded"];
        let (accepted, plain, _) = accept_cut(
            ShadowsocksAcceptor::new(&server_key(&entry)),
            &c2s,
            &[],
            recorded_s(decoded),
            &mut NoFilter,
            &mut Script::seeded(1),
        )
        .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(accepted.target, target(tcp, "target_host", "target_port"), "{name}");
        assert!(plain == bytes(tcp, "client_payload_hex"), "{name}: client's payload");
        let expected = entry.get("users").map(|users| {
            let last = text(&entry, "client_password").rsplit(':').next();
            let users = users.as_array().unwrap();
            UserId(users.iter().position(|user| user["password"].as_str() == last).unwrap())
        });
        assert_eq!(accepted.user, expected, "{name}");

        let clock = clock(recorded_s(&tcp["s2c_decoded"]));
        let key = client_key(&entry);
        let mut client =
            ShadowsocksClientStream::new(&key, &accepted.target, clock, &mut client_script(decoded));
        let plain = open_cut(&mut client, &s2c, &[]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(plain == bytes(tcp, "server_payload_hex"), "{name}: server's payload");
        let salt = salt(&tcp["s2c_decoded"]);
        assert_eq!(client.peer_salt().unwrap_or_default(), salt, "{name}");
    }
}

/// Cuts `plain` at the recorded chunk lengths.
fn cut(plain: &[u8], lens: impl IntoIterator<Item = usize>) -> Vec<&[u8]> {
    let mut rest = plain;
    let mut pieces = Vec::new();
    for len in lens {
        let (piece, later) = rest.split_at(len);
        pieces.push(piece);
        rest = later;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

fn chunk_lens(decoded: &Value) -> Vec<usize> {
    let lens = decoded.get("chunk_lens").and_then(Value::as_array);
    let len = |value: &Value| usize::try_from(value.as_u64().expect("a length")).expect("short");
    lens.map(|lens| lens.iter().map(len).collect()).unwrap_or_default()
}

#[test]
fn responses_seal_to_the_recorded_bytes() {
    for (name, entry) in entries() {
        let tcp = entry.get("after_relay").map_or(&entry["tcp"], |after| &after["tcp"]);
        let decoded = &tcp["s2c_decoded"];
        let (_, _, mut server) = accept_cut(
            ShadowsocksAcceptor::new(&server_key(&entry)),
            &bytes(tcp, "c2s_hex"),
            &[],
            recorded_s(&tcp["c2s_decoded"]),
            &mut NoFilter,
            &mut Script::new(&salt(decoded)),
        )
        .unwrap();
        if recorded_s(decoded) != recorded_s(&tcp["c2s_decoded"]) {
            continue;
        }
        let plain = bytes(tcp, "server_payload_hex");
        let sealed = seal_all(&mut server, &cut(&plain, chunk_lens(decoded)));
        assert!(sealed == bytes(tcp, "s2c_hex"), "{name}");
    }
}

#[test]
fn requests_seal_to_the_recorded_bytes() {
    let mut count = 0;
    for (name, entry) in entries() {
        let tcp = &entry["tcp"];
        let decoded = &tcp["c2s_decoded"];
        let plain = bytes(tcp, "client_payload_hex");
        let target = target(tcp, "target_host", "target_port");
        let mut lens = chunk_lens(decoded);
        match method(&entry).generation() {
            // shadowsocks-rust leaves the padding away or fills it with the old contents of its buffer.
            Generation::Aead2022 if name.starts_with("ss-rust") => continue,
            Generation::Aead2022 => {
                lens.insert(0, usize::try_from(number(decoded, "initial_payload_len")).unwrap());
            }
            Generation::Aead => {
                let mut address = [0; adit_proto::wire::MAX_ADDRESS_LEN];
                lens[0] -= adit_proto::wire::emit_address(&target, &mut address);
            }
            Generation::Stream | Generation::None => {}
        }
        let clock = clock(recorded_s(decoded));
        let mut client =
            ShadowsocksClientStream::new(&client_key(&entry), &target, clock, &mut client_script(decoded));
        assert!(client.has_pending());
        let sealed = seal_all(&mut client, &cut(&plain, lens));
        assert!(!client.has_pending());
        assert!(sealed == bytes(tcp, "c2s_hex"), "{name}");
        count += 1;
    }
    assert_eq!(count, 76);
}

#[test]
fn relay_takes_one_header_off() {
    let (_, entry) = entries().into_iter().find(|(_, entry)| entry.get("after_relay").is_some()).unwrap();
    let method = method(&entry);
    let keys = keys_2022(method, text(&entry, "relay_password"));
    let hops = IdentityKeys::new(keys.method(), [("next", text(&entry, "server_password"))]).unwrap();
    let relay = Relay::new(&keys, &hops.into());

    let before = bytes(&entry["tcp"], "c2s_hex");
    let mut wire = RecvBuf::from_bytes(&before[..31]);
    assert_eq!(relay.forward_stream(&mut wire), Ok(Relayed::NeedMore(1)));
    let mut wire = RecvBuf::from_bytes(&before);
    assert!(matches!(relay.forward_stream(&mut wire), Ok(Relayed::To(_))));
    assert!(wire.unread() == bytes(&entry["after_relay"]["tcp"], "c2s_hex"));
    let mut wire = RecvBuf::from_bytes(&before);
    wire.unread_mut()[20] ^= 1;
    assert_eq!(relay.forward_stream(&mut wire), Err(WireError::Authentication { what: "identity header" }));

    let pairs = entry["udp"]["datagrams"].as_array().unwrap().iter();
    let after = entry["after_relay"]["udp"]["datagrams"].as_array().unwrap();
    for (before, after) in pairs.zip(after).filter(|(before, _)| text(before, "dir") == "c2s") {
        let mut datagram = bytes(before, "hex");
        let (_, range) = relay.forward_datagram(&mut datagram).unwrap();
        assert_eq!(datagram[range], bytes(after, "hex"));
        let mut short = bytes(before, "hex")[..31].to_vec();
        assert!(relay.forward_datagram(&mut short).is_err());
    }
}

/// A codec for either end of datagrams that are alike both ways.
fn symmetric(key: &MethodKey) -> Option<Box<dyn PacketCodec>> {
    match key {
        MethodKey::Stream(key) => Some(Box::new(stream::StreamCipherPackets::new(key))),
        MethodKey::Aead(key) => Some(Box::new(aead::AeadPackets::new(key))),
        MethodKey::Aead2022(_) => None,
    }
}

#[test]
fn datagrams_both_ways() {
    for (name, entry) in entries() {
        let Some(mut codec) = symmetric(&client_key(&entry)) else { continue };
        for datagram in entry["udp"]["datagrams"].as_array().unwrap() {
            let decoded = &datagram["decoded"];
            let recorded = bytes(datagram, "hex");
            let mut opened = recorded.clone();
            let packet = codec.open(&mut opened, 0, &mut NoFilter).unwrap_or_else(|e| panic!("{name}: {e}"));
            let payload = bytes(decoded, "payload_hex");
            assert_eq!(packet.target, target(decoded, "host", "port"), "{name}");
            assert_eq!(opened[packet.payload], payload, "{name}");

            let (mut block, range) = block_for(codec.room(&packet.target), &payload);
            let mut rng = Script::new(&salt(decoded));
            let sealed = codec.seal(&mut block, range, &packet.target, 0, &mut rng).unwrap();
            assert_eq!(sealed, 0..block.len(), "{name}: room is exact");
            assert_eq!(block, recorded, "{name}");
        }
    }
}

#[test]
fn datagrams_of_2022_open() {
    for (name, entry) in entries() {
        let MethodKey::Aead2022(client_keys) = client_key(&entry) else { continue };
        let server_keys = keys_2022(method(&entry), text(&entry, "server_password"));
        let users = server_key(&entry).users().clone();
        let server = Aead2022ServerPackets::new(&server_keys, &users.into());
        let udp = entry.get("after_relay").map_or(&entry["udp"], |after| &after["udp"]);
        let mut sessions: HashMap<u64, Session> = HashMap::new();
        let mut clients: HashMap<String, Aead2022ClientPackets> = HashMap::new();
        for datagram in udp["datagrams"].as_array().unwrap() {
            let decoded = &datagram["decoded"];
            let mut opened = bytes(datagram, "hex");
            let at = number(decoded, "timestamp");
            let packet = if text(datagram, "dir") == "c2s" {
                let header = server.read_header(&mut opened).unwrap();
                assert_eq!(header.packet_id(), number(decoded, "packet_id"), "{name}");
                let session = sessions
                    .entry(header.session_id())
                    .or_insert_with(|| server.new_session(&header, &mut Script::seeded(1)));
                let packet = session.open(&header, &mut opened, at).unwrap_or_else(|e| panic!("{name}: {e}"));
                let mut again = bytes(datagram, "hex");
                let header = server.read_header(&mut again).unwrap();
                let replayed = session.open(&header, &mut again, at);
                assert_eq!(replayed, Err(WireError::Replayed { what: "packet id" }), "{name}");
                packet
            } else {
                let id = text(decoded, "client_session_id");
                let client = clients
                    .entry(id.to_owned())
                    .or_insert_with(|| Aead2022ClientPackets::new(&client_keys, &mut Script::new(&hex(id))));
                let packet = client.open(&mut opened, at, &mut NoFilter);
                let packet = packet.unwrap_or_else(|e| panic!("{name}: {e}"));
                let replayed = client.open(&mut bytes(datagram, "hex"), at, &mut NoFilter);
                assert_eq!(replayed, Err(WireError::Replayed { what: "packet id" }), "{name}");
                packet
            };
            assert_eq!(packet.target, target(decoded, "host", "port"), "{name}");
            assert_eq!(opened[packet.payload], bytes(decoded, "payload_hex"), "{name}");
        }
    }
}

#[test]
fn datagrams_of_2022_seal_to_the_recorded_bytes() {
    let mut count = 0;
    for (name, entry) in entries() {
        let MethodKey::Aead2022(keys) = client_key(&entry) else { continue };
        let datagrams = entry["udp"]["datagrams"].as_array().unwrap();
        let requests = datagrams.iter().filter(|datagram| text(datagram, "dir") == "c2s");
        for datagram in requests {
            let decoded = &datagram["decoded"];
            // Sessions of shadowsocks-rust begin with packet 1, later packets depend on those before.
            if number(decoded, "packet_id") != 0 || number(decoded, "padding_len") != 0 {
                continue;
            }
            let mut codec = client_packets(
                &MethodKey::Aead2022(keys.clone()),
                &mut Script::new(&bytes(decoded, "session_id")),
            );
            let recorded = bytes(datagram, "hex");
            let target = target(decoded, "host", "port");
            let payload = bytes(decoded, "payload_hex");
            let (mut block, range) = block_for(codec.room(&target), &payload);
            // The ChaCha methods draw a nonce, which stands in front.
            let mut rng = Script::new(&recorded[..24]);
            let sealed =
                codec.seal(&mut block, range, &target, number(decoded, "timestamp"), &mut rng).unwrap();
            assert_eq!(block[sealed], recorded, "{name}");
            count += 1;
        }
    }
    assert!(count >= 6, "sing-box begins with packet 0: {count}");
}

#[test]
fn derived_keys_are_used() {
    // A wrong password must not open anything: the vectors would not notice a cipher that ignores its key.
    for (name, entry) in entries() {
        if method(&entry).generation() != Generation::Aead {
            continue;
        }
        let key = MethodKey::from_password(method(&entry), "wrong").unwrap();
        let mut client =
            ShadowsocksClientStream::new(&key, &"a:1".parse().unwrap(), clock(0), &mut Script::seeded(1));
        let mut wire = RecvBuf::from_bytes(&bytes(&entry["tcp"], "s2c_hex"));
        let opened = client.open(&mut wire, now());
        assert_eq!(opened, Err(WireError::Authentication { what: "chunk length" }), "{name}");
    }
}
