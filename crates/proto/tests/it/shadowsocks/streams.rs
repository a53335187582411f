//! Streams taken apart: every split point, every truncation, flipped bits, limits.

use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::replay::{RecentSalts, SaltFilter};
use adit_proto::shadowsocks::{
    Accept, IdentityKeys, MethodKey, NoFilter, ServerKey, ShadowsocksAcceptor, ShadowsocksClientStream,
    ShadowsocksMethod, UserId, aead2022,
};
use adit_proto::wire::{Layer, Opened, Target, WireError};

use crate::shadowsocks::support::{NOW_S, Script, accept_cut, clock, keys_2022, now, open_cut, seal_all};

pub(crate) const PSK_16: &str = "jXWNLnzYRI0XRuBfcqLL8A==";
pub(crate) const PSK_32: &str = "Qb85DbET1ws8WrhvjVfoML3UKbgMK8lAVRVTCMax12U=";
pub(crate) const USER_16: &str = "NuAmT4AiTOlzad4n0XcVcg==";

pub(crate) fn key(method: ShadowsocksMethod) -> MethodKey {
    let password = match (method, method.key_len()) {
        (ShadowsocksMethod::Aead2022(_), 16) => PSK_16,
        (ShadowsocksMethod::Aead2022(_), _) => PSK_32,
        _ => "correct horse",
    };
    MethodKey::from_password(method, password).expect("valid key")
}

/// One method of each kind of stream.
pub(crate) fn kinds() -> impl Iterator<Item = ShadowsocksMethod> {
    let names = [
        "none",
        "rc4-md5",
        "aes-256-cfb",
        "aes-128-ctr",
        "chacha20-ietf",
        "aes-128-gcm",
        "xchacha20-ietf-poly1305",
        "2022-blake3-aes-128-gcm",
        "2022-blake3-chacha8-poly1305",
    ];
    names.into_iter().map(|name| name.parse().expect("known"))
}

fn target() -> Target {
    "example.com:443".parse().expect("a target")
}

fn client(method: ShadowsocksMethod) -> ShadowsocksClientStream {
    ShadowsocksClientStream::new(&key(method), &target(), clock(NOW_S), &mut Script::seeded(7))
}

fn acceptor(method: ShadowsocksMethod) -> ShadowsocksAcceptor {
    ShadowsocksAcceptor::new(&ServerKey::new(key(method)))
}

/// Bytes of a 2022 request that have to come in one read.
fn indivisible(method: ShadowsocksMethod) -> usize {
    if matches!(method, ShadowsocksMethod::Aead2022(_)) { method.salt_len() + 27 } else { 0 }
}

fn accept(method: ShadowsocksMethod, bytes: &[u8], cuts: &[usize]) -> Result<(Target, Vec<u8>), WireError> {
    let mut rng = Script::seeded(9);
    let (accepted, plain, _) = accept_cut(acceptor(method), bytes, cuts, NOW_S, &mut NoFilter, &mut rng)?;
    Ok((accepted.target, plain))
}

#[test]
fn every_split_point() {
    for method in kinds() {
        let plain: Vec<u8> = (0..=99).collect();
        let request = seal_all(&mut client(method), &[&plain[..40], &plain[40..]]);
        for cut in indivisible(method)..=request.len() {
            assert_eq!(accept(method, &request, &[cut]), Ok((target(), plain.clone())), "{method} at {cut}");
        }
        let all: Vec<usize> = (indivisible(method)..request.len()).collect();
        assert_eq!(accept(method, &request, &all), Ok((target(), plain.clone())), "{method} byte by byte");

        let mut rng = Script::seeded(9);
        let accepted = accept_cut(acceptor(method), &request, &[], NOW_S, &mut NoFilter, &mut rng);
        let response = seal_all(&mut accepted.unwrap().2, &[&plain[..40], &plain[40..]]);
        for cut in 0..=response.len() {
            let mut client = client(method);
            assert_eq!(open_cut(&mut client, &response, &[cut]), Ok(plain.clone()), "{method} at {cut}");
        }
    }
}

#[test]
fn every_truncation() {
    for method in kinds() {
        let plain = [5; 60];
        let request = seal_all(&mut client(method), &[&plain[..30], &plain[30..]]);
        let mut boundaries = Vec::new();
        for cut in 0..request.len() {
            if accept(method, &request[..cut], &[]).is_ok() {
                boundaries.push(cut);
            }
        }
        if let ShadowsocksMethod::None | ShadowsocksMethod::Stream(_) = method {
            let head = request.len() - plain.len();
            assert!(boundaries.iter().copied().eq(head..request.len()), "{method}: {boundaries:?}");
        } else {
            assert_eq!(boundaries, [request.len() - 30 - 34], "{method}: the end of the first chunk");
        }
    }
}

#[test]
fn every_flipped_bit() {
    for method in kinds().filter(|method| !method.is_deprecated() && *method != ShadowsocksMethod::None) {
        let plain = [5; 20];
        let request = seal_all(&mut client(method), &[&plain]);
        for at in 0..request.len() {
            for bit in 0..8 {
                let mut bad = request.clone();
                bad[at] ^= 1 << bit;
                let result = accept(method, &bad, &[]);
                assert!(
                    matches!(result, Err(WireError::Authentication { .. })),
                    "{method}: bit {bit} of byte {at}: {result:?}"
                );
            }
        }
        let mut rng = Script::seeded(9);
        let accepted = accept_cut(acceptor(method), &request, &[], NOW_S, &mut NoFilter, &mut rng);
        let response = seal_all(&mut accepted.unwrap().2, &[&plain]);
        for at in 0..response.len() {
            let mut bad = response.clone();
            bad[at] ^= 0x10;
            let result = open_cut(&mut client(method), &bad, &[]);
            assert!(
                matches!(result, Err(WireError::Authentication { .. })),
                "{method}: byte {at}: {result:?}"
            );
        }
    }
}

#[test]
fn errors_do_not_panic_later() {
    for method in kinds() {
        let request = seal_all(&mut client(method), &[&[1; 50]]);
        let mut bad = request.clone();
        let last = bad.len() - 1;
        bad[last] ^= 1;
        let mut acceptor = acceptor(method);
        let mut wire = RecvBuf::from_bytes(&bad);
        for _ in 0..3 {
            drop(acceptor.accept(&mut wire, NOW_S, &mut NoFilter));
        }
        // The fixed header of SIP022 is a piece of its own, SIP004 has a chunk's length but not its payload.
        assert_eq!(acceptor.is_authenticated(), matches!(method, ShadowsocksMethod::Aead2022(_)), "{method}");
    }
}

#[test]
fn longest_frames() {
    for method in kinds() {
        let max = match method {
            ShadowsocksMethod::Aead(_) => 0x3fff,
            ShadowsocksMethod::Aead2022(_) => 0xffff,
            ShadowsocksMethod::None | ShadowsocksMethod::Stream(_) => 100_000,
        };
        let mut client = client(method);
        let first = client.plan(now()).first;
        let plain = vec![3; first.max_payload.min(max)];
        let mut request = seal_all(&mut client, &[&plain]);
        let rest = client.plan(now()).rest;
        assert!(rest.max_payload >= max, "{method}");
        for len in [max - 1, max] {
            request.extend(seal_all(&mut client, &[&vec![4; len]]));
        }
        let (_, opened) = accept(method, &request, &[]).unwrap();
        assert_eq!(opened.len(), plain.len() + 2 * max - 1, "{method}");
        if let ShadowsocksMethod::Aead(_) | ShadowsocksMethod::Aead2022(_) = method {
            assert_eq!(rest.max_payload, max, "{method}");
        }
    }
}

#[test]
fn head_room_is_exact_or_padding() {
    for method in kinds() {
        let mut client = client(method);
        let plan = client.plan(now());
        let request = seal_all(&mut client, &[&[0; 1_000][..plan.first.max_payload.min(1_000)]]);
        let len = plan.first.head + 1_000 + plan.first.tail - request.len();
        assert!(
            len == 0 || matches!(method, ShadowsocksMethod::Aead2022(_)) && len <= 900,
            "{method}: {len}"
        );
        assert_eq!(client.plan(now()).first, client.plan(now()).rest, "{method}");
    }
}

#[test]
fn nothing_to_say_is_not_sent() {
    for method in kinds() {
        let mut client = client(method);
        assert!(client.has_pending());
        let request = seal_all(&mut client, &[&[]]);
        assert!(!request.is_empty() && !client.has_pending());
        assert!(seal_all(&mut client, &[&[]]).is_empty());
        let mut rng = Script::seeded(9);
        let accepted = accept_cut(acceptor(method), &request, &[], NOW_S, &mut NoFilter, &mut rng);
        let (accepted, plain, mut server) = accepted.unwrap();
        assert_eq!((accepted.target, plain.len()), (target(), 0), "{method}");
        assert!(!server.has_pending());
        assert!(seal_all(&mut server, &[&[]]).is_empty());
        assert_eq!(client.handle_transport_end(0), Ok(()), "{method}: no answer at all");
        assert!(client.handle_transport_end(1).is_err(), "{method}");
    }
}

#[test]
fn salts_are_shown_once_after_authentication() {
    struct Seen(Vec<Vec<u8>>);
    impl SaltFilter for Seen {
        fn insert(&mut self, salt: &[u8]) -> bool {
            let fresh = !self.0.iter().any(|seen| seen == salt);
            self.0.push(salt.to_vec());
            fresh
        }
    }
    for method in kinds() {
        let mut seen = Seen(Vec::new());
        let request = seal_all(&mut client(method), &[&[1; 50]]);
        let salt = &request[..method.salt_len()];
        let mut bad = request.clone();
        bad[salt.len() + 3] ^= 1;
        let mut rng = Script::seeded(9);
        let cuts: Vec<usize> = (indivisible(method)..request.len()).collect();
        let mut go = |bytes: &[u8]| {
            accept_cut(acceptor(method), bytes, &cuts, NOW_S, &mut seen, &mut rng).map(|_| seen.0.len())
        };
        if let ShadowsocksMethod::Aead(_) | ShadowsocksMethod::Aead2022(_) = method {
            assert!(matches!(go(&bad), Err(WireError::Authentication { .. })), "{method}");
        }
        let asked = if salt.is_empty() { 0 } else { 1 };
        assert_eq!(go(&request), Ok(asked), "{method}");
        if asked == 1 {
            assert!(matches!(go(&request), Err(WireError::Replayed { .. })), "{method}");
            assert_eq!(seen.0, [salt, salt], "{method}");
        }
    }
}

#[test]
fn clocks() {
    let method: ShadowsocksMethod = "2022-blake3-aes-128-gcm".parse().unwrap();
    let request = seal_all(&mut client(method), &[b"hello"]);
    for (server_s, offset) in
        [(NOW_S + 30, 0), (NOW_S - 30, 0), (NOW_S + 31, -31), (NOW_S - 31, 31), (0, 1_800_000_000)]
    {
        let mut rng = Script::seeded(9);
        let result = accept_cut(acceptor(method), &request, &[], server_s, &mut NoFilter, &mut rng);
        match result {
            Ok((_, _, mut server)) => {
                assert_eq!(offset, 0);
                // The client checks the answer in the same way.
                let response = seal_all(&mut server, &[b"world"]);
                assert_eq!(open_cut(&mut client(method), &response, &[]), Ok(b"world".to_vec()));
            }
            Err(error) => {
                assert_eq!(error, WireError::Clock { offset_s: offset, window_s: 30 });
            }
        }
    }
    let mut rng = Script::seeded(9);
    let accepted = accept_cut(acceptor(method), &request, &[], NOW_S, &mut NoFilter, &mut rng);
    let response = seal_all(&mut accepted.unwrap().2, &[b"world"]);
    for (client_s, ok) in [(NOW_S + 30, true), (NOW_S + 31, false)] {
        let mut client =
            ShadowsocksClientStream::new(&key(method), &target(), clock(client_s), &mut Script::seeded(7));
        let opened = open_cut(&mut client, &response, &[]);
        let expected = WireError::Clock { offset_s: -31, window_s: 30 };
        assert_eq!(opened, if ok { Ok(b"world".to_vec()) } else { Err(expected) });
    }
}

#[test]
fn a_stale_request_does_not_reach_the_filter() {
    let method: ShadowsocksMethod = "2022-blake3-aes-128-gcm".parse().unwrap();
    let request = seal_all(&mut client(method), &[b"hello"]);
    let mut salts = RecentSalts::new(1);
    let mut rng = Script::seeded(9);
    let stale = accept_cut(acceptor(method), &request, &[], NOW_S + 31, salts.at(NOW_S), &mut rng);
    assert!(matches!(stale, Err(WireError::Clock { .. })));
    assert!(accept_cut(acceptor(method), &request, &[], NOW_S, salts.at(NOW_S), &mut rng).is_ok());
    let again = accept_cut(acceptor(method), &request, &[], NOW_S, salts.at(NOW_S), &mut rng);
    assert_eq!(again.map(|_| ()), Err(WireError::Replayed { what: "salt" }));
}

#[test]
fn responses_belong_to_their_request() {
    let method: ShadowsocksMethod = "2022-blake3-aes-128-gcm".parse().unwrap();
    let request = seal_all(&mut client(method), &[b"hello"]);
    let mut rng = Script::seeded(9);
    let accepted = accept_cut(acceptor(method), &request, &[], NOW_S, &mut NoFilter, &mut rng);
    let response = seal_all(&mut accepted.unwrap().2, &[b"world"]);
    let mut other =
        ShadowsocksClientStream::new(&key(method), &target(), clock(NOW_S), &mut Script::seeded(8));
    let opened = open_cut(&mut other, &response, &[]);
    assert_eq!(opened, Err(WireError::Authentication { what: "request salt in the response" }));
    // A request that is played back as a response has the wrong type, and too short a header besides.
    assert!(open_cut(&mut client(method), &request, &[]).is_err());
}

#[test]
fn the_first_read_is_whole() {
    let method: ShadowsocksMethod = "2022-blake3-aes-128-gcm".parse().unwrap();
    let request = seal_all(&mut client(method), &[b"hello"]);
    let first = indivisible(method);
    for len in 1..first {
        let mut wire = RecvBuf::from_bytes(&request[..len]);
        let result = acceptor(method).accept(&mut wire, NOW_S, &mut NoFilter);
        assert_eq!(result, Err(WireError::Truncated { what: "the first read of a request" }), "{len}");
    }
    let mut wire = RecvBuf::with_len(0);
    assert_eq!(acceptor(method).accept(&mut wire, NOW_S, &mut NoFilter), Ok(Accept::NeedMore(first)));
    let lenient = acceptor(method).with_split_header();
    let cuts: Vec<usize> = (0..request.len()).collect();
    let mut rng = Script::seeded(9);
    assert!(accept_cut(lenient, &request, &cuts, NOW_S, &mut NoFilter, &mut rng).is_ok());
}

#[test]
fn users() {
    let method: ShadowsocksMethod = "2022-blake3-aes-128-gcm".parse().unwrap();
    let keys = keys_2022(method, PSK_16);
    let table =
        IdentityKeys::new(keys.method(), [("root", "AAAAAAAAAAAAAAAAAAAAAA=="), ("alice", USER_16)]).unwrap();
    let server = ServerKey::with_users(keys, table.into());
    let go = |password: &str| {
        let key = MethodKey::from_password(method, password).unwrap();
        let mut client = ShadowsocksClientStream::new(&key, &target(), clock(NOW_S), &mut Script::seeded(7));
        let request = seal_all(&mut client, &[b"hello"]);
        let mut rng = Script::seeded(9);
        let (accepted, plain, mut far) =
            accept_cut(ShadowsocksAcceptor::new(&server), &request, &[], NOW_S, &mut NoFilter, &mut rng)?;
        assert_eq!(plain, b"hello");
        let response = seal_all(&mut far, &[b"world"]);
        assert_eq!(open_cut(&mut client, &response, &[]), Ok(b"world".to_vec()));
        Ok(accepted.user)
    };
    assert_eq!(go(&format!("{PSK_16}:{USER_16}")), Ok(Some(UserId(1))));
    let unknown = Err(WireError::Authentication { what: "identity header" });
    assert_eq!(go(&format!("{PSK_16}:{PSK_16}")), unknown, "no user of that key");
    assert_eq!(go(&format!("{USER_16}:{USER_16}")), unknown, "wrong identity key");
    assert_eq!(go(USER_16), unknown, "no identity header");
}

/// Seals a 2022 request by hand: the fixed header says what it likes, the variable header is `variable`.
fn forged(kind: u8, len: u16, variable: &[u8]) -> Vec<u8> {
    use adit_proto::crypto::{Aead, AeadAlgorithm, Blake3Context, CounterNonce};
    let salt = [9; 16];
    let psk = base64_16(PSK_16);
    let subkey = Blake3Context::new("shadowsocks 2022 session subkey").derive(&[&psk, &salt]);
    let aead = Aead::new(AeadAlgorithm::Aes128Gcm, &subkey[..16]);
    let mut nonce = CounterNonce::default();
    let mut wire = salt.to_vec();
    let fixed = [&[kind][..], &NOW_S.to_be_bytes(), &len.to_be_bytes()].concat();
    for part in [&fixed, variable] {
        let (mut data, mut tag) = (part.to_vec(), [0; 16]);
        aead.seal(nonce.advance(), &[], &mut data, &mut tag).expect("short");
        wire.extend_from_slice(&data);
        wire.extend_from_slice(&tag);
    }
    wire
}

fn base64_16(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).expect("base64")
}

#[test]
fn forged_headers() {
    let method: ShadowsocksMethod = "2022-blake3-aes-128-gcm".parse().unwrap();
    let address = [1, 127, 0, 0, 1, 0, 80];
    let header = |padding: u16, rest: usize| [&address[..], &padding.to_be_bytes(), &vec![0; rest]].concat();
    let go = |kind, variable: &[u8]| {
        let len = u16::try_from(variable.len()).unwrap();
        accept(method, &forged(kind, len, variable), &[]).map(|(_, plain)| plain.len())
    };
    assert_eq!(go(0, &header(0, 1)), Ok(1));
    assert_eq!(go(0, &header(1, 1)), Ok(0));
    assert_eq!(go(0, &header(900, 905)), Ok(5));
    assert_eq!(go(0, &header(5, 4)), Err(WireError::Truncated { what: "the variable header" }));
    let empty = WireError::Malformed { what: "padding length without a payload", got: 0 };
    assert_eq!(go(0, &header(0, 0)), Err(empty));
    assert_eq!(go(0, &address), Err(WireError::Truncated { what: "the variable header" }));
    assert_eq!(go(0, &address[..6]), Err(WireError::Truncated { what: "the variable header" }));
    assert_eq!(go(0, &[7; 20]), Err(WireError::Malformed { what: "address type", got: 7 }));
    assert_eq!(go(1, &header(0, 1)), Err(WireError::Malformed { what: "header type", got: 1 }));
    let mut acceptor =
        aead2022::Aead2022Acceptor::new(&keys_2022(method, PSK_16), &IdentityKeys::default().into());
    let mut wire = RecvBuf::from_bytes(&forged(0, 9, &header(0, 1)));
    assert!(acceptor.accept(&mut wire, NOW_S, &mut NoFilter).is_err(), "length does not match");
    assert!(acceptor.is_authenticated());
}

#[test]
fn chunk_lengths() {
    use adit_proto::crypto::{Aead, AeadAlgorithm, CounterNonce, evp_bytes_to_key, hkdf_sha1};
    let method: ShadowsocksMethod = "aes-128-gcm".parse().unwrap();
    let (mut master, mut subkey) = ([0; 16], [0; 16]);
    evp_bytes_to_key(b"correct horse", &mut master);
    hkdf_sha1(&master, &[9; 16], b"ss-subkey", &mut subkey);
    for (len, ok) in [(0_u16, false), (1, true), (0x3fff, true), (0x4000, false), (0xffff, false)] {
        let aead = Aead::new(AeadAlgorithm::Aes128Gcm, &subkey);
        let mut nonce = CounterNonce::default();
        let mut wire = vec![9; 16];
        for part in [&len.to_be_bytes()[..], &vec![7; len.into()]] {
            let (mut data, mut tag) = (part.to_vec(), [0; 16]);
            aead.seal(nonce.advance(), &[], &mut data, &mut tag).unwrap();
            wire.extend_from_slice(&data);
            wire.extend_from_slice(&tag);
        }
        let mut client = client(method);
        let opened = client.open(&mut RecvBuf::from_bytes(&wire), now());
        match opened {
            Ok(Opened::Payload(range)) => assert!(ok && range.len() == usize::from(len), "{len}"),
            other => {
                assert!(!ok, "{len}: {other:?}");
                assert_eq!(other, Err(WireError::Malformed { what: "chunk length", got: len.into() }));
            }
        }
    }
}

#[test]
fn addresses_may_span_chunks() {
    use adit_proto::crypto::{Aead, AeadAlgorithm, CounterNonce, evp_bytes_to_key, hkdf_sha1};
    let method: ShadowsocksMethod = "aes-128-gcm".parse().unwrap();
    let (mut master, mut subkey) = ([0; 16], [0; 16]);
    evp_bytes_to_key(b"correct horse", &mut master);
    hkdf_sha1(&master, &[9; 16], b"ss-subkey", &mut subkey);
    let plain = [&[3, 11][..], b"example.com", &443_u16.to_be_bytes(), b"payload"].concat();
    for piece in 1..=plain.len() {
        let aead = Aead::new(AeadAlgorithm::Aes128Gcm, &subkey);
        let mut nonce = CounterNonce::default();
        let mut wire = vec![9; 16];
        for chunk in plain.chunks(piece) {
            let len = u16::try_from(chunk.len()).unwrap().to_be_bytes();
            for part in [&len[..], chunk] {
                let (mut data, mut tag) = (part.to_vec(), [0; 16]);
                aead.seal(nonce.advance(), &[], &mut data, &mut tag).unwrap();
                wire.extend_from_slice(&data);
                wire.extend_from_slice(&tag);
            }
        }
        assert_eq!(accept(method, &wire, &[]), Ok((target(), b"payload".to_vec())), "{piece}");
    }
}
