//! Entry points for fuzzing, and what tests need.
//!
//! Keys, wall time and randomness are fixed, so that an input means the same wherever it is replayed. The first byte
//! chooses the protocol or obfs, the second where the input is cut in two.

use std::sync::Arc;
use std::time::Instant;

use super::udp::{SsrClientUdp, SsrServerUdp};
use super::{
    CipherLayer, Clients, Obfs, SharedIv, SsrKey, SsrMethod, SsrProtocol, key::Iv, obfs, over_tcp,
    parse_request, protocol,
};
use crate::buf::RecvBuf;
use crate::wire::{Layer, Opened, Rng, WallClock};

/// Unix seconds of every run.
const UNIX_S: u64 = 1_800_000_000;
/// Room behind the input, for what inflates.
const ROOM: usize = 1 << 17;

struct Count(u8);

impl Rng for Count {
    fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            self.0 = self.0.wrapping_add(1);
            *byte = self.0;
        }
    }
}

fn key() -> SsrKey {
    SsrKey::from_password(SsrMethod::None, b"fuzz")
}

fn protocol_of(choice: u8) -> SsrProtocol {
    let all: Vec<SsrProtocol> = SsrProtocol::all().collect();
    all[usize::from(choice) % all.len()]
}

/// The result of a layer for `pieces`: the payload up to an error, and whether there was one.
fn read_all(layer: &mut dyn Layer, pieces: [&[u8]; 2], now: Instant) -> (Vec<u8>, bool) {
    let mut wire = RecvBuf::with_len(ROOM + pieces[0].len() + pieces[1].len());
    let mut plain = Vec::new();
    for piece in pieces {
        wire.compact();
        wire.extend(piece);
        loop {
            match layer.open(&mut wire, now) {
                Ok(Opened::Payload(range)) => plain.extend_from_slice(&wire.block()[range]),
                Ok(Opened::NeedMore(missing)) => {
                    assert!(missing > 0, "asks for something");
                    break;
                }
                Ok(Opened::End) => return (plain, false),
                Err(_) => return (plain, true),
            }
        }
    }
    (plain, false)
}

/// Fuzz target: a server's protocol layer, and a client's, read any stream alike whole and cut in two.
pub fn fuzz_protocol(data: &[u8], now: Instant) {
    let [choice, cut, stream @ ..] = data else { return };
    let (first, second) = stream.split_at(usize::from(*cut).min(stream.len()));
    let (key, protocol, clock) = (key(), protocol_of(*choice), WallClock::new(now, UNIX_S));
    let iv = SharedIv::known(Iv::from_slice(&[]));
    let server = |pieces| {
        let config = protocol::SsrServerConfig::new(protocol, &key, Arc::new(Clients::default()), 0);
        read_all(&mut protocol::SsrServerStream::new(&config, &iv, clock, &mut Count(0)), pieces, now)
    };
    assert_eq!(server([stream, &[]]), server([first, second]), "{protocol} at a server");
    let client = |pieces| {
        let config = protocol::SsrClientConfig::new(protocol, &key, 0);
        let target = "example.com:80".parse().expect("a target");
        let mut client = protocol::SsrClientStream::new(&config, &iv, &target, clock, &mut Count(0));
        let mut block = vec![0; client.plan(now).first.head];
        let at = block.len();
        client.seal(&mut block, at..at, now).expect("sealed");
        read_all(&mut client, pieces, now)
    };
    assert_eq!(client([stream, &[]]), client([first, second]), "{protocol} at a client");
}

/// Fuzz target: what a server's obfs and a client's make of any first bytes. A server that refuses leaves them unread.
pub fn fuzz_obfs(data: &[u8], now: Instant) {
    let [choice, cut, stream @ ..] = data else { return };
    let kinds: Vec<Obfs> = Obfs::all().filter(|obfs| *obfs != Obfs::GoQuiet).collect();
    let (key, kind) = (key(), kinds[usize::from(*choice) % kinds.len()]);
    let (first, second) = stream.split_at(usize::from(*cut).min(stream.len()));
    let mut server = obfs::SsrObfsServer::new(
        &obfs::SsrObfsServerConfig::new(kind, &key, "", UNIX_S),
        UNIX_S,
        &mut Count(0),
    );
    let (mut wire, mut out) = (RecvBuf::with_len(stream.len()), Vec::new());
    for piece in [first, second] {
        wire.extend(piece);
        match server.handshake(&mut wire, &mut out) {
            Ok(obfs::SsrHandshake::NeedMore(missing)) => assert!(missing > 0, "asks for something"),
            Ok(obfs::SsrHandshake::Done) => {
                let unread = wire.unread().to_vec();
                read_all(&mut server, [&unread, &[]], now);
                break;
            }
            Err(_) => {
                assert!(!out.is_empty() || wire.position() == 0, "all of it goes to the fallback server");
                return;
            }
        }
    }
    let session = Arc::new(obfs::SessionId::draw(&mut Count(1)));
    let config =
        obfs::SsrObfsClientConfig::new(kind, &key, "", "example.com", 80, session).expect("a good parameter");
    let mut client = obfs::SsrObfsClient::new(&config, 30, UNIX_S, &mut Count(0));
    let mut wire = RecvBuf::from_bytes(stream);
    if client.handshake(&mut wire, &mut out) == Ok(obfs::SsrHandshake::Done) {
        let unread = wire.unread().to_vec();
        read_all(&mut client, [&unread, &[]], now);
    }
}

/// Fuzz target: any cipher, and the frames of datagrams in it, read a stream alike whole and cut in two.
pub fn fuzz_stream(data: &[u8], now: Instant) {
    let [choice, cut, stream @ ..] = data else { return };
    let methods: Vec<SsrMethod> = SsrMethod::all().collect();
    let key = SsrKey::from_password(methods[usize::from(*choice) % methods.len()], b"fuzz");
    let (first, second) = stream.split_at(usize::from(*cut).min(stream.len()));
    let plain = |pieces| read_all(&mut CipherLayer::server(&key, &mut Count(0)), pieces, now);
    assert_eq!(plain([stream, &[]]), plain([first, second]), "{}", key.method().name());
    let frames = |pieces: [&[u8]; 2], received: &[u8]| {
        let cipher = CipherLayer::server(&key, &mut Count(0));
        read_all(&mut over_tcp::Frames::new(cipher, received.to_vec()), pieces, now)
    };
    assert_eq!(frames([stream, &[]], &[]), frames([first, second], &[]), "frames");
    // The same bytes in front of the stream, as they come with a request: without IV that makes no difference.
    if key.method().iv_len() == 0 {
        let (opened, _) = plain([first, &[]]);
        let bare = SsrKey::from_password(SsrMethod::None, b"fuzz");
        let (rest, _) = plain([stream, &[]]);
        let rest = rest.get(opened.len()..).unwrap_or_default();
        let cipher = CipherLayer::server(&bare, &mut Count(0));
        let early = read_all(&mut over_tcp::Frames::new(cipher, opened), [rest, &[]], now);
        assert_eq!(frames([stream, &[]], &[]), early, "frames behind a request");
    }
    if let Ok((_, at)) = over_tcp::parse_request(stream) {
        assert!(at <= stream.len(), "the payload lies in the frame");
    }
}

/// Fuzz target: a datagram at a server and at a client, and the request in front of a stream.
pub fn fuzz_packets(data: &[u8]) {
    let Some((&choice, datagram)) = data.split_first() else { return };
    let (key, protocol) = (key(), protocol_of(choice));
    let server = protocol::SsrServerConfig::new(protocol, &key, Arc::new(Clients::default()), 0);
    let client = protocol::SsrClientConfig::new(protocol, &key, 0);
    let client = SsrClientUdp::new(&client, &mut Count(0));
    for opened in
        [SsrServerUdp::new(&server).open(&mut datagram.to_vec()), client.open(&mut datagram.to_vec())]
    {
        let fits = |packet: super::udp::SsrPacket| packet.payload.end <= datagram.len();
        assert!(opened.map_or(true, fits), "payload lies in the datagram");
    }
    if let Ok(super::ParsedAddress::Whole { len, .. }) = parse_request(datagram) {
        assert!(len <= datagram.len(), "the request lies in the stream");
    }
}

/// Vectors, for tests inside the crate.
#[cfg(test)]
pub(crate) mod testing {
    use std::path::Path;

    use serde_json::Value;

    use crate::wire::Rng;

    /// Nothing but zeros.
    pub(crate) struct Zeros;

    impl Rng for Zeros {
        fn fill(&mut self, out: &mut [u8]) {
            out.fill(0);
        }
    }

    pub(crate) fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    /// The rows of a file of `testdata/ssr`.
    pub(crate) fn vectors(name: &str) -> Vec<Value> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/ssr").join(name);
        let content = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_slice(&content).unwrap()
    }
}
