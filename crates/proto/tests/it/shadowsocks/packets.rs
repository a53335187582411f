//! Datagrams taken apart: truncations, flipped bits, replays, sessions, roaming users.

use std::collections::HashSet;

use adit_proto::shadowsocks::aead2022::{Aead2022ClientPackets, Aead2022ServerPackets, Session};
use adit_proto::shadowsocks::{
    IdentityKeys, MethodKey, NoFilter, PacketCodec, ShadowsocksMethod, ShadowsocksPacket, TOGETHER, UserId,
    aead, client_packets, replay::RecentSalts, stream,
};
use adit_proto::wire::{Target, WireError};

use crate::shadowsocks::streams::{PSK_16, PSK_32, USER_16, key, kinds};
use crate::shadowsocks::support::{NOW_S, Script, block_for, keys_2022};

fn target() -> Target {
    "[2001:db8::1]:443".parse().expect("a target")
}

fn seal(codec: &mut dyn PacketCodec, payload: &[u8], target: &Target) -> Vec<u8> {
    let (mut block, range) = block_for(codec.room(target), payload);
    let sealed = codec.seal(&mut block, range, target, NOW_S, &mut Script::seeded(3)).expect("sealed");
    block[sealed].to_vec()
}

/// Opens one datagram as a server that has not seen its client before.
fn open_new(
    key: &MethodKey,
    datagram: &mut [u8],
    unix_s: u64,
) -> Result<(ShadowsocksPacket, Option<Session>), WireError> {
    match key {
        MethodKey::Stream(key) => {
            Ok((stream::StreamCipherPackets::new(key).open(datagram, unix_s, &mut NoFilter)?, None))
        }
        MethodKey::Aead(key) => {
            Ok((aead::AeadPackets::new(key).open(datagram, unix_s, &mut NoFilter)?, None))
        }
        MethodKey::Aead2022(keys) => {
            let server = Aead2022ServerPackets::new(keys, &IdentityKeys::default().into());
            let header = server.read_header(datagram)?;
            let mut session = server.new_session(&header, &mut Script::seeded(5));
            Ok((session.open(&header, datagram, unix_s)?, Some(session)))
        }
    }
}

#[test]
fn truncations_and_flipped_bits() {
    for method in kinds() {
        let key = key(method);
        let sealed = seal(&mut *client_packets(&key, &mut Script::seeded(1)), b"payload", &target());
        let (packet, _) = open_new(&key, &mut sealed.clone(), NOW_S).unwrap();
        assert_eq!(packet.target, target(), "{method}");
        let authentic = matches!(method, ShadowsocksMethod::Aead(_) | ShadowsocksMethod::Aead2022(_));
        for len in 0..sealed.len() {
            let result = open_new(&key, &mut sealed[..len].to_vec(), NOW_S);
            assert!(result.is_err() || !authentic && len >= sealed.len() - 7, "{method} cut to {len}");
        }
        for at in (0..sealed.len()).filter(|_| authentic) {
            for bit in 0..8 {
                let mut bad = sealed.clone();
                bad[at] ^= 1 << bit;
                let result = open_new(&key, &mut bad, NOW_S);
                assert!(matches!(result, Err(WireError::Authentication { .. })), "{method} byte {at}");
            }
        }
    }
}

#[test]
fn empty_and_longest_payloads() {
    for method in kinds() {
        let key = key(method);
        let mut codec = client_packets(&key, &mut Script::seeded(1));
        let max = codec.room(&target()).max_payload;
        for len in [0, 1, max - 1, max] {
            let mut sealed = seal(&mut *codec, &vec![7; len], &target());
            assert!(sealed.len() <= 65_535, "{method}");
            let (packet, _) = open_new(&key, &mut sealed, NOW_S).unwrap();
            assert_eq!(sealed[packet.payload], vec![7; len], "{method}");
        }
    }
}

#[test]
fn salts_repeat() {
    for name in ["aes-256-gcm", "chacha20-ietf", "xchacha20-ietf-poly1305"] {
        let key = key(name.parse().unwrap());
        let mut codec = client_packets(&key, &mut Script::seeded(1));
        let sealed = seal(&mut *codec, b"payload", &target());
        let mut salts = RecentSalts::new(10);
        assert!(codec.open(&mut sealed.clone(), NOW_S, salts.at(NOW_S)).is_ok());
        let again = codec.open(&mut sealed.clone(), NOW_S, salts.at(NOW_S));
        assert!(matches!(again, Err(WireError::Replayed { .. })), "{name}");
    }
}

/// Subkeys that are derived together are those that are derived one by one, even if an expected one is never used.
#[test]
fn many_at_a_time() {
    for name in ["aes-128-gcm", "aes-192-gcm", "chacha20-ietf-poly1305", "xchacha20-ietf-poly1305"] {
        let method: ShadowsocksMethod = name.parse().unwrap();
        let key = key(method);
        let (mut codec, mut rng) = (client_packets(&key, &mut Script::seeded(1)), Script::seeded(3));
        let payload = |n: usize| vec![u8::try_from(n).expect("few"); n];
        let mut sealed: Vec<Vec<u8>> = (0..100)
            .map(|n| {
                let (mut block, range) = block_for(codec.room(&target()), &payload(n));
                let sealed = codec.seal(&mut block, range, &target(), NOW_S, &mut rng).expect("sealed");
                block[sealed].to_vec()
            })
            .collect();
        let salts: HashSet<_> = sealed.iter().map(|datagram| datagram[..16].to_vec()).collect();
        assert_eq!(salts.len(), sealed.len(), "{name}");
        for (n, datagram) in sealed.iter().enumerate() {
            // By an end that is told of nothing.
            let mut datagram = datagram.clone();
            let (packet, _) = open_new(&key, &mut datagram, NOW_S).unwrap();
            assert_eq!(datagram[packet.payload], payload(n), "{name}");
        }
        sealed[17].truncate(3);
        sealed[30][40] ^= 1;
        sealed[41] = sealed[40].clone();
        for (batch, group) in sealed.chunks(TOGETHER).enumerate() {
            codec.expect(&mut group.iter().map(Vec::as_slice));
            let mut order: Vec<usize> = (0..group.len()).collect();
            match batch % 4 {
                1 => order.reverse(),
                2 => order.retain(|at| at % 3 != 1),
                _ => {}
            }
            for at in order {
                let (n, mut datagram) = (batch * TOGETHER + at, group[at].clone());
                let opened = codec.open(&mut datagram, NOW_S, &mut NoFilter);
                assert_eq!(opened.is_ok(), n != 17 && n != 30, "{name} {n}");
                let expected = if n == 41 { 40 } else { n };
                assert!(
                    opened.is_err() || datagram[opened.unwrap().payload] == payload(expected),
                    "{name} {n}"
                );
            }
        }
        codec.rest();
        let (mut block, range) = block_for(codec.room(&target()), b"payload");
        let again = codec.seal(&mut block, range, &target(), NOW_S, &mut rng).expect("sealed");
        assert!(salts.iter().all(|salt| !block[again.clone()].starts_with(salt)), "{name}");
    }
}

#[test]
fn clocks_and_padding_of_2022() {
    for name in ["2022-blake3-aes-256-gcm", "2022-blake3-chacha20-poly1305"] {
        let key = key(name.parse().unwrap());
        let mut codec = client_packets(&key, &mut Script::seeded(1));
        let lookup: Target = "9.9.9.9:53".parse().unwrap();
        for len in [0, 1, 898, 899, 900, 1_200] {
            let mut sealed = seal(&mut *codec, &vec![7; len], &lookup);
            let head = codec.room(&lookup).head - 900;
            let padding = sealed.len() - head - len - 16;
            assert!(
                if len < 900 { padding >= 1 && padding + len <= 900 } else { padding == 0 },
                "{len} {padding}"
            );
            let (packet, _) = open_new(&key, &mut sealed, NOW_S).unwrap();
            assert_eq!((packet.payload.len(), packet.target), (len, lookup.clone()));
        }
        let sealed = seal(&mut *codec, b"payload", &target());
        for (at, offset) in [(NOW_S + 30, 0), (NOW_S - 30, 0), (NOW_S + 31, -31), (NOW_S - 31, 31)] {
            match open_new(&key, &mut sealed.clone(), at) {
                Ok(_) => assert_eq!(offset, 0),
                Err(error) => assert_eq!(error, WireError::Clock { offset_s: offset, window_s: 30 }),
            }
        }
    }
}

/// A client with its session on a server.
fn pair(password: &str, name: &str) -> (Aead2022ClientPackets, Aead2022ServerPackets, Session) {
    let keys = keys_2022(name.parse().expect("known"), password);
    let mut client = Aead2022ClientPackets::new(&keys, &mut Script::seeded(1));
    let server = Aead2022ServerPackets::new(&keys, &IdentityKeys::default().into());
    let mut first = seal(&mut client, b"first", &target());
    let header = server.read_header(&mut first).expect("header");
    assert_eq!(header.session_id(), client.session_id());
    assert_eq!(header.packet_id(), 0);
    let mut session = server.new_session(&header, &mut Script::seeded(2));
    session.open(&header, &mut first, NOW_S).expect("first");
    (client, server, session)
}

fn answer(session: &mut Session, payload: &[u8]) -> Vec<u8> {
    let (mut block, range) = block_for(session.room(&target()), payload);
    let sealed = session.seal(&mut block, range, &target(), NOW_S, &mut Script::seeded(4)).expect("sealed");
    block[sealed].to_vec()
}

#[test]
fn sessions_go_on_after_a_rest() {
    for (password, name) in [(PSK_16, "2022-blake3-aes-128-gcm"), (PSK_32, "2022-blake3-chacha8-poly1305")] {
        let (mut client, server, mut session) = pair(password, name);
        let mut known = answer(&mut session, b"before");
        client.open(&mut known.clone(), NOW_S, &mut NoFilter).expect("an answer");
        client.rest();
        session.rest();
        let mut sent = seal(&mut client, b"again", &target());
        let header = server.read_header(&mut sent).unwrap();
        let packet = session.open(&header, &mut sent, NOW_S).expect("the same keys as before");
        assert_eq!(&sent[packet.payload], b"again");
        let mut reply = answer(&mut session, b"after");
        let packet = client.open(&mut reply, NOW_S, &mut NoFilter).expect("the same keys as before");
        assert_eq!(&reply[packet.payload], b"after");
        let replayed = client.open(&mut known, NOW_S, &mut NoFilter);
        assert_eq!(replayed.map(|_| ()), Err(WireError::Replayed { what: "packet id" }));
    }
}

#[test]
fn windows_of_sessions() {
    for (password, name) in [(PSK_16, "2022-blake3-aes-128-gcm"), (PSK_32, "2022-blake3-chacha8-poly1305")] {
        let (mut client, server, mut session) = pair(password, name);
        let mut sent: Vec<Vec<u8>> = (1..=40_u8).map(|i| seal(&mut client, &[i], &target())).collect();
        sent.reverse();
        for replay in [false, true] {
            for datagram in &sent {
                let mut datagram = datagram.clone();
                let header = server.read_header(&mut datagram).unwrap();
                let opened = session.open(&header, &mut datagram, NOW_S);
                let replayed = Err(WireError::Replayed { what: "packet id" });
                assert_eq!(opened.map(|_| ()), if replay { replayed } else { Ok(()) });
            }
        }
        let mut answers: Vec<Vec<u8>> = (0..40_u8).map(|i| answer(&mut session, &[i])).collect();
        answers.reverse();
        for replay in [false, true] {
            for (i, datagram) in (0..40_u8).rev().zip(&answers) {
                let mut datagram = datagram.clone();
                let opened = client.open(&mut datagram, NOW_S, &mut NoFilter);
                match opened {
                    Ok(packet) => assert!(!replay && datagram[packet.payload] == [i]),
                    Err(error) => assert!(replay && error == WireError::Replayed { what: "packet id" }),
                }
            }
        }
    }
}

#[test]
fn far_too_old_packets() {
    let (mut client, server, mut session) = pair(PSK_16, "2022-blake3-aes-128-gcm");
    let sent: Vec<Vec<u8>> = (0..8_200).map(|_| seal(&mut client, b"", &target())).collect();
    let mut open = |i: usize| {
        let mut datagram = sent[i - 1].clone();
        let header = server.read_header(&mut datagram).expect("header");
        assert_eq!(header.packet_id(), i as u64);
        session.open(&header, &mut datagram, NOW_S)
    };
    assert!(open(8_200).is_ok());
    assert!(open(8_200 - 8_128).is_ok());
    assert_eq!(open(8_200 - 8_129), Err(WireError::Replayed { what: "packet id" }));
}

#[test]
fn a_bad_packet_does_not_move_the_window() {
    let (mut client, server, mut session) = pair(PSK_16, "2022-blake3-aes-128-gcm");
    let good = seal(&mut client, b"second", &target());
    let mut bad = good.clone();
    let last = bad.len() - 1;
    bad[last] ^= 1;
    let header = server.read_header(&mut bad).unwrap();
    assert!(matches!(session.open(&header, &mut bad, NOW_S), Err(WireError::Authentication { .. })));
    assert!(matches!(session.open(&header, &mut good.clone(), NOW_S + 31), Err(WireError::Clock { .. })));
    assert!(session.open(&header, &mut good.clone(), NOW_S).is_ok());
}

#[test]
fn answers_belong_to_their_session() {
    let (_, _, mut session) = pair(PSK_16, "2022-blake3-aes-128-gcm");
    let keys = keys_2022("2022-blake3-aes-128-gcm".parse().unwrap(), PSK_16);
    let mut other = Aead2022ClientPackets::new(&keys, &mut Script::seeded(77));
    let opened = other.open(&mut answer(&mut session, b"x"), NOW_S, &mut NoFilter);
    assert_eq!(opened, Err(WireError::Authentication { what: "client session id in the response" }));
}

#[test]
fn two_server_sessions_but_no_third() {
    let (mut client, server, mut first) = pair(PSK_16, "2022-blake3-aes-128-gcm");
    let mut request = seal(&mut client, b"again", &target());
    let header = server.read_header(&mut request).unwrap();
    let later = |seed| server.new_session(&header, &mut Script::seeded(seed));
    let (mut second, mut third) = (later(101), later(102));
    let mut open = |datagram: &[u8], at| client.open(&mut datagram.to_vec(), at, &mut NoFilter).map(|_| ());
    assert_eq!(open(&answer(&mut first, b"1"), NOW_S), Ok(()));
    assert_eq!(open(&answer(&mut second, b"2"), NOW_S), Ok(()));
    assert_eq!(open(&answer(&mut first, b"3"), NOW_S), Ok(()), "the previous session goes on");
    assert!(open(&answer(&mut third, b"4"), NOW_S).is_err(), "a third within a minute");
}

#[test]
fn users_of_datagrams() {
    let method: ShadowsocksMethod = "2022-blake3-aes-128-gcm".parse().unwrap();
    let keys = keys_2022(method, PSK_16);
    let users: std::sync::Arc<IdentityKeys> =
        IdentityKeys::new(keys.method(), [("alice", USER_16)]).unwrap().into();
    let server = Aead2022ServerPackets::new(&keys, &users);
    let mut alice = Aead2022ClientPackets::new(
        &keys_2022(method, &format!("{PSK_16}:{USER_16}")),
        &mut Script::seeded(1),
    );
    let mut datagram = seal(&mut alice, b"hello", &target());
    let header = server.read_header(&mut datagram).unwrap();
    assert_eq!(header.user(), Some(UserId(0)));
    let mut session = server.new_session(&header, &mut Script::seeded(2));
    assert!(session.open(&header, &mut datagram, NOW_S).is_ok());
    let mut reply = answer(&mut session, b"world");
    let packet = alice.open(&mut reply, NOW_S, &mut NoFilter).unwrap();
    assert_eq!(reply[packet.payload], *b"world");

    let mut unknown_user =
        Aead2022ClientPackets::new(&keys_2022(method, &format!("{PSK_16}:{PSK_16}")), &mut Script::seeded(1));
    let mut datagram = seal(&mut unknown_user, b"hello", &target());
    let unknown = server.read_header(&mut datagram).map(|_| ());
    assert_eq!(unknown, Err(WireError::Authentication { what: "identity header" }));
}
