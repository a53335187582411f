use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::buf::RecvBuf;
use crate::wire::{ConnectFailure, Credentials, Target, TargetError, WireError};

fn target(text: &str) -> Target {
    text.parse().unwrap()
}

/// Feeds `pieces` and accepts credentials iff they are user / pass.
fn run(auth: Auth, pieces: &[&[u8]]) -> (Vec<u8>, Result<SocksEvent, SocksError>, Vec<u8>) {
    let mut server = SocksServer::new(auth);
    let mut wire = RecvBuf::with_len(2048);
    let mut out = Vec::new();
    for piece in pieces {
        assert_eq!(wire.extend(piece), piece.len());
        loop {
            match server.advance(&mut wire, &mut out) {
                Ok(SocksEvent::NeedMore) => break,
                Ok(SocksEvent::Credentials(pair)) => {
                    let accepted = pair.matches(b"user", b"pass") || pair.matches(b"user", b"");
                    if let Err(error) = server.authenticate(accepted, &mut out) {
                        return (out, Err(error), wire.unread().to_vec());
                    }
                }
                Ok(SocksEvent::Request(request)) => {
                    for later in &pieces[pieces.iter().position(|p| p == piece).unwrap() + 1..] {
                        wire.extend(later);
                    }
                    return (out, Ok(SocksEvent::Request(request)), wire.unread().to_vec());
                }
                Err(error) => return (out, Err(error), wire.unread().to_vec()),
            }
        }
    }
    (out, Ok(SocksEvent::NeedMore), wire.unread().to_vec())
}

fn request(auth: Auth, bytes: &[u8]) -> (Vec<u8>, SocksRequest, Vec<u8>) {
    match run(auth, &[bytes]) {
        (out, Ok(SocksEvent::Request(request)), rest) => (out, request, rest),
        other => panic!("{other:?}"),
    }
}

fn failure(auth: Auth, bytes: &[u8]) -> (Vec<u8>, SocksError) {
    match run(auth, &[bytes]) {
        (out, Err(error), _) => (out, error),
        other => panic!("{other:?}"),
    }
}

const V5_NAME: &[u8] = b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.com\x01\xbbearly data";
const V5_AUTH: &[u8] = b"\x05\x02\x00\x02\x01\x04user\x04pass\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50early";
const V4: &[u8] = b"\x04\x01\x00\x50\x01\x02\x03\x04user\0early";
const V4A: &[u8] = b"\x04\x01\x00\x50\x00\x00\x00\x01user\0example.com\0early";

#[test]
fn v5_connect() {
    let (out, request, rest) = request(Auth::Open, V5_NAME);
    assert_eq!(out, [5, 0]);
    assert_eq!(request.target, target("example.com:443"));
    assert_eq!((request.command, request.version), (SocksCommand::Connect, SocksVersion::V5));
    assert_eq!(rest, b"early data");
}

#[test]
fn v5_targets() {
    for (bytes, expected) in [
        (&b"\x01\x01\x02\x03\x04\x00\x50"[..], "1.2.3.4:80"),
        (b"\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50", "[2001:db8::1]:80"),
        (b"\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x01\x02\x03\x04\x00\x50", "1.2.3.4:80"),
        (b"\x03\x071.2.3.4\x00\x50", "1.2.3.4:80"),
        (b"\x03\x05[::1]\x00\x50", "[::1]:80"),
        (b"\x03\x04a.b.\x00\x50", "a.b:80"),
    ] {
        for reserved in [0, 0x77] {
            let bytes = [&[5, 1, 0, 5, 3, reserved], bytes].concat();
            let (_, request, rest) = request(Auth::Open, &bytes);
            assert_eq!(request.target, target(expected));
            assert_eq!(request.command, SocksCommand::UdpAssociate);
            assert!(rest.is_empty());
        }
    }
}

#[test]
fn v5_methods() {
    for (auth, methods, chosen) in [
        (Auth::Open, &[0][..], 0),
        (Auth::Open, &[2, 0], 0),
        (Auth::Open, &[1, 2], 2),
        (Auth::Open, &[1], 0xff),
        (Auth::Open, &[], 0xff),
        (Auth::Required, &[0, 2], 2),
        (Auth::Required, &[0], 0xff),
        (Auth::Required, &[], 0xff),
    ] {
        let greeting = [&[5, u8::try_from(methods.len()).unwrap()], methods].concat();
        let (out, outcome, _) = run(auth, &[&greeting]);
        assert_eq!(out, [5, chosen], "{auth:?} {methods:?}");
        let refused = chosen == 0xff;
        assert_eq!(outcome, if refused { Err(SocksError::NoMethod) } else { Ok(SocksEvent::NeedMore) });
    }
    let all: Vec<u8> = [5, 255].into_iter().chain(0..=254).collect();
    assert_eq!(run(Auth::Required, &[&all]).0, [5, 2]);
}

#[test]
fn v5_passwords() {
    let (out, request, rest) = request(Auth::Required, V5_AUTH);
    assert_eq!(out, [5, 2, 1, 0]);
    assert_eq!((request.target, &rest[..]), (target("127.0.0.1:80"), &b"early"[..]));

    let wrong = b"\x05\x01\x02\x01\x04user\x04Pass\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50";
    assert_eq!(failure(Auth::Required, wrong), (vec![5, 2, 1, 1], SocksError::AuthenticationFailed));
    let any = b"\x05\x01\x02\x05\x00\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50";
    assert_eq!(run(Auth::Open, &[any]).0, [5, 2, 1, 0]);
    assert_eq!(failure(Auth::Open, b"\x05\x01\x02\x02").1, SocksError::PasswordVersion(2));
    let long = [&[5, 1, 2, 1, 255][..], &[b'u'; 255], &[255], &[b'p'; 255]].concat();
    assert_eq!(failure(Auth::Required, &long).0, [5, 2, 1, 1]);
}

#[test]
fn v5_refusals() {
    let reply = |code| vec![5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0];
    for (bytes, code, error) in [
        (&b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50"[..], 7, SocksError::Command(2)),
        (b"\x05\xf0\x00\x03\x01a\x00\x50", 7, SocksError::Command(0xf0)),
        (b"\x05\x01\x00\x02", 8, SocksError::AddressType(2)),
        (b"\x05\x01\x00\x03\x00\x00\x50", 1, SocksError::Host(TargetError::EmptyHost)),
        (b"\x05\x01\x00\x03\x01\xff\x00\x50", 1, SocksError::Host(TargetError::BadCharacter)),
        (b"\x05\x01\x00\x03\x03a\nb\x00\x50", 1, SocksError::Host(TargetError::BadCharacter)),
    ] {
        assert_eq!(failure(Auth::Open, &[b"\x05\x01\x00", bytes].concat()), (reply(code), error));
    }
    assert_eq!(failure(Auth::Open, b"\x05\x01\x00\x04"), (vec![5, 0], SocksError::Version(4)));
    for first in (0..=255).filter(|byte| ![4, 5].contains(byte)) {
        assert_eq!(failure(Auth::Open, &[first]), (vec![], SocksError::Version(first)));
    }
}

#[test]
fn v5_replies() {
    let (_, request, _) = request(Auth::Open, V5_NAME);
    let reply = |outcome| {
        let mut out = Vec::new();
        request.emit_reply(outcome, &mut out);
        out
    };
    assert_eq!(reply(Ok("127.0.0.1:1080".parse().unwrap())), [5, 0, 0, 1, 127, 0, 0, 1, 4, 56]);
    let v6: SocketAddr = "[::1]:1080".parse().unwrap();
    assert_eq!(reply(Ok(v6))[..4], [5, 0, 0, 4]);
    assert_eq!(reply(Ok(v6)).len(), 22);
    for (failure, code) in [
        (ConnectFailure::General, 1),
        (ConnectFailure::NotAllowed, 2),
        (ConnectFailure::NetworkUnreachable, 3),
        (ConnectFailure::HostUnreachable, 4),
        (ConnectFailure::ConnectionRefused, 5),
        (ConnectFailure::TimedOut, 4),
        (ConnectFailure::CommandNotSupported, 7),
        (ConnectFailure::AddressNotSupported, 8),
        (ConnectFailure::Overloaded, 1),
        (ConnectFailure::Unavailable, 1),
    ] {
        assert_eq!(reply(Err(failure)), [5, code, 0, 1, 0, 0, 0, 0, 0, 0], "{failure}");
    }
}

#[test]
fn v4() {
    for (bytes, expected) in [(V4, "1.2.3.4:80"), (V4A, "example.com:80")] {
        for auth in [Auth::Open, Auth::Required] {
            let (out, request, rest) = request(auth, bytes);
            assert_eq!((request.target.clone(), &rest[..]), (target(expected), &b"early"[..]));
            assert!(out.is_empty());
            let mut out = Vec::new();
            request.emit_reply(Ok("9.9.9.9:9".parse().unwrap()), &mut out);
            request.emit_reply(Err(ConnectFailure::TimedOut), &mut out);
            assert_eq!(out[..2], [0, 0x5a]);
            assert_eq!(out[2..8], bytes[2..8]);
            assert_eq!(out[8..10], [0, 0x5b]);
        }
    }
    assert_eq!(
        failure(Auth::Required, b"\x04\x01\x00\x50\x01\x02\x03\x04other\0"),
        (vec![0, 0x5d, 0, 80, 1, 2, 3, 4], SocksError::AuthenticationFailed)
    );
    assert_eq!(
        failure(Auth::Open, b"\x04\x02\x00\x50\x01\x02\x03\x04\0"),
        (vec![0, 0x5b, 0, 80, 1, 2, 3, 4], SocksError::Command(2))
    );
}

#[test]
fn v4_limits() {
    let build = |user: usize, name: usize| {
        [b"\x04\x01\x00\x50\x00\x00\x00\x01", &vec![b'u'; user][..], b"\0", &vec![b'n'; name], b"\0"].concat()
    };
    assert_eq!(build(255, 255).len(), MAX_UNIT_LEN);
    assert_eq!(request(Auth::Open, &build(255, 255)).1.target.port, 80);
    let refused = vec![0, 0x5b, 0, 80, 0, 0, 0, 1];
    assert_eq!(failure(Auth::Open, &build(256, 1)), (refused.clone(), SocksError::TooLong("user")));
    assert_eq!(failure(Auth::Open, &build(0, 256)), (refused.clone(), SocksError::TooLong("host name")));
    assert_eq!(failure(Auth::Open, &build(0, 0)), (refused, SocksError::Host(TargetError::EmptyHost)));
}

#[test]
fn splits_and_truncations() {
    for bytes in [V5_NAME, V5_AUTH, V4, V4A] {
        for auth in [Auth::Open, Auth::Required] {
            // These two greet with methods that fit one kind of listener only.
            if (auth == Auth::Required && bytes == V5_NAME) || (auth == Auth::Open && bytes == V5_AUTH) {
                continue;
            }
            let whole = run(auth, &[bytes]);
            let early = bytes.len() - whole.2.len();
            for at in 0..=bytes.len() {
                let (first, second) = bytes.split_at(at);
                assert_eq!(run(auth, &[first, second]), whole, "cut at {at}");
                let cut = run(auth, &[first]).1;
                assert_eq!(cut == Ok(SocksEvent::NeedMore), at < early, "truncated at {at}");
            }
        }
    }
}

#[test]
fn client_against_server() {
    for (auth, pair) in [
        (Auth::Open, None),
        (Auth::Open, Some(Credentials::new(b"any", b"any"))),
        (Auth::Required, Some(Credentials::new(b"user", b"pass"))),
    ] {
        let mut client = SocksClient::new(SocksCommand::Connect, target("example.com:443"), pair);
        let mut server = SocksServer::new(auth);
        let (mut up, mut down) = (RecvBuf::with_len(1024), RecvBuf::with_len(1024));
        let mut sent = Vec::new();
        client.start(&mut sent);
        let mut answers = Vec::new();
        let bound = loop {
            up.extend(&std::mem::take(&mut sent));
            match server.advance(&mut up, &mut answers).unwrap() {
                SocksEvent::NeedMore => {}
                SocksEvent::Credentials(pair) => {
                    server.authenticate(pair.matches(b"user", b"pass"), &mut answers).unwrap();
                }
                SocksEvent::Request(request) => {
                    assert_eq!(request.target, target("example.com:443"));
                    request.emit_reply(Ok("10.0.0.1:9".parse().unwrap()), &mut answers);
                }
            }
            for byte in std::mem::take(&mut answers) {
                down.extend(&[byte]);
                if let ClientEvent::Established { bound } = client.advance(&mut down, &mut sent).unwrap() {
                    sent = b"done".to_vec();
                    answers = vec![];
                    down.extend(bound.to_string().as_bytes());
                }
            }
            if sent == b"done" {
                break String::from_utf8(down.unread().to_vec()).unwrap();
            }
        };
        assert_eq!(bound, "10.0.0.1:9");
    }
}

#[test]
fn client_refusals() {
    let advance = |pair: Option<Credentials>, bytes: &[u8]| {
        let mut client = SocksClient::new(SocksCommand::Connect, target("a:1"), pair);
        client.advance(&mut RecvBuf::from_bytes(bytes), &mut Vec::new())
    };
    let pair = || Some(Credentials::new(b"u", b"p"));
    assert_eq!(advance(None, &[5, 0xff]), Err(SocksError::NoMethod));
    assert_eq!(advance(None, &[5, 2]), Err(SocksError::NoMethod));
    assert_eq!(advance(None, &[4, 0]), Err(SocksError::Version(4)));
    assert_eq!(advance(pair(), &[5, 2, 1, 1]), Err(SocksError::AuthenticationFailed));
    assert_eq!(advance(pair(), &[5, 0, 5, 5, 0]), Err(SocksError::Refused(5)));
    assert_eq!(advance(None, &[5, 0, 5, 0, 0, 9]), Err(SocksError::AddressType(9)));
}

#[test]
fn datagrams() {
    let datagram = b"\0\0\0\x03\x0bexample.com\x00\x35data";
    let (to, offset) = parse_datagram(datagram).unwrap();
    assert_eq!((to.clone(), &datagram[offset..]), (target("example.com:53"), &b"data"[..]));
    assert_eq!(header_len(&to), offset);
    for len in 0..offset {
        let error = WireError::Truncated { what: "SOCKS5 datagram header" };
        assert_eq!(parse_datagram(&datagram[..len]), Err(error), "{len}");
    }
    for to in ["1.2.3.4:5", "[2001:db8::1]:65535", "example.com:53"].map(target) {
        let mut out = [0xaa; MAX_HEADER_LEN];
        let len = emit_header(&to, &mut out);
        assert_eq!(parse_datagram(&out[..len]), Ok((to, len)));
    }
    assert!(matches!(
        parse_datagram(b"\0\0\x01\x01\0\0\0\0\0\0"),
        Err(WireError::Unsupported { got: 1, .. })
    ));
    assert!(matches!(parse_datagram(b"\0\x01\0\x01\0\0\0\0\0\0"), Err(WireError::Malformed { got: 1, .. })));
    assert!(matches!(parse_datagram(b"\0\0\0\x05\0\0\0\0\0\0"), Err(WireError::Unsupported { got: 5, .. })));
    let longest = Target::new(&[b'n'; 255], 1).unwrap();
    assert_eq!(header_len(&longest), MAX_HEADER_LEN);
}

proptest! {
    #[test]
    fn fuzz_server(choice: u8, seed in 0..4usize, at: prop::sample::Index, byte: u8, noise: Vec<u8>) {
        let mut data = [V5_NAME, V5_AUTH, V4, V4A][seed].to_vec();
        let at = at.index(data.len());
        data[at] = byte;
        data.insert(0, choice);
        fuzz_socks_server(&data);
        fuzz_socks_server(&noise);
        fuzz_socks_udp(&noise);
        fuzz_socks_udp(&[&[0, 0, 0, byte % 5][..], &noise].concat());
    }
}
