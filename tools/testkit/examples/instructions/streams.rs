//! Stream layers, driven as the relay drives them: in place, in blocks that are there before.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use adit_proto::buf::RecvBuf;
use adit_proto::obfs::http::{HttpObfsClient, HttpObfsConfig, HttpObfsServer};
use adit_proto::obfs::tls::{TlsObfsClient, TlsObfsServer};
use adit_proto::shadowsocks::{self, MethodKey, NoFilter, ServerKey, ShadowsocksAcceptor, WallClock};
use adit_proto::snell::{self, Accepts, Format, Profile, Progress, SnellPsk, SnellRequest};
use adit_proto::socks::{Auth, SocksEvent, SocksServer};
use adit_proto::wire::{Layer, Opened};
use adit_testkit::{FixedRng, epoch};

/// Most bytes that a relay writes at once here.
const WRITE: usize = 64 * 1024;
/// Writes before those that count: sizes ramp up.
const WARM_UP: u32 = 16;
/// Sealed bytes of a write, with what layers add.
const WIRE: usize = 2 * WRITE;
/// Payload of the first write and of the answer.
const FIRST: usize = 200;
const UNIX_TIME: u32 = 1_800_000_000;
const PSK: &[u8] = b"adit-vector-psk-0001";

/// Two ends of a connection that has been opened: the client's side and the server's.
pub(crate) struct Ends {
    client: Box<dyn Layer>,
    server: Box<dyn Layer>,
}

/// The client and the server of a protocol, ready to connect.
pub(crate) struct Start {
    client: Box<dyn Layer>,
    accept: Box<Accept>,
}

/// Takes the client's first bytes and becomes the server's side.
type Accept = dyn FnOnce(&mut RecvBuf) -> Box<dyn Layer>;

/// Makes a client and a server for each connection.
pub(crate) type Make = Box<dyn Fn(Instant) -> Start>;

/// Bytes on the way from one side to the other.
struct Way {
    block: Vec<u8>,
    wire: RecvBuf,
    now: Instant,
}

impl Way {
    fn new(now: Instant) -> Self {
        Self { block: vec![0x5a; WIRE], wire: RecvBuf::with_len(WIRE), now }
    }

    /// One write of `len` bytes, cut as the layer's plan says.
    fn seal(&mut self, layer: &mut dyn Layer, len: usize) {
        let plan = layer.plan(self.now);
        let (mut room, mut left) = (plan.first, len);
        loop {
            let piece = left.min(room.max_payload);
            let frame = layer.seal(&mut self.block, room.head..room.head + piece, self.now).expect("sealed");
            assert_eq!(self.wire.extend(&self.block[frame.clone()]), frame.len(), "room for the whole write");
            (room, left) = (plan.rest, left - piece);
            if left == 0 {
                break;
            }
        }
        layer.finish_write(self.now);
    }

    /// Opens all there is and gives the number of payload bytes.
    fn open(&mut self, layer: &mut dyn Layer) -> usize {
        let mut len = 0;
        loop {
            match layer.open(&mut self.wire, self.now).expect("opened") {
                Opened::Payload(range) => len += black_box(&self.wire.block()[range]).len(),
                Opened::NeedMore(_) => break,
                Opened::End => panic!("nobody has ended"),
            }
        }
        self.wire.compact();
        len
    }
}

/// A connection with a first write and its answer, as often as asked.
pub(crate) fn connections(rounds: u32, make: &Make) {
    let now = epoch();
    let mut way = Way::new(now);
    for _ in 0..rounds {
        black_box(connect(make(now), &mut way));
    }
}

fn connect(start: Start, way: &mut Way) -> Ends {
    let mut client = start.client;
    way.seal(client.as_mut(), FIRST);
    let mut server = (start.accept)(&mut way.wire);
    way.open(server.as_mut());
    way.seal(server.as_mut(), FIRST);
    way.open(client.as_mut());
    Ends { client, server }
}

/// Writes of 64 KiB from the server to the client over one connection.
pub(crate) fn bulk(rounds: u32, make: &Make) {
    let now = epoch();
    let mut way = Way::new(now);
    let mut ends = connect(make(now), &mut way);
    for _ in 0..WARM_UP + rounds {
        way.seal(ends.server.as_mut(), WRITE);
        assert_eq!(way.open(ends.client.as_mut()), WRITE, "all bytes arrive");
    }
}

pub(crate) fn snell4() -> Make {
    Box::new(|_| snell(Format::V4))
}

pub(crate) fn snell6() -> Make {
    // Made once for each pre-shared key.
    let profile = Arc::new(Profile::new(&SnellPsk::new(PSK), &mut FixedRng::new(3)));
    Box::new(move |_| snell(Format::Shaped(Arc::clone(&profile))))
}

pub(crate) fn snell6_unshaped() -> Make {
    Box::new(|_| snell(Format::Unshaped))
}

fn snell(format: Format) -> Start {
    let (psk, mut rng) = (SnellPsk::new(PSK), FixedRng::new(1));
    let mut client =
        snell::SnellClientStream::speaking(format.clone(), psk.clone(), &psk.derive_own(&mut rng), &mut rng);
    client.start(&SnellRequest::connect("example.com:443".parse().expect("a target"), false));
    let accept = move |wire: &mut RecvBuf| -> Box<dyn Layer> {
        let mut server = snell::SnellServerStream::accepting(Accepts::Only(format), psk.clone());
        let progress = server.poll_request(wire).expect("a legal request");
        assert!(matches!(progress, Progress::Request(_)), "the whole request is there");
        let mut rng = FixedRng::new(2);
        server.set_own_key(&psk.derive_own(&mut rng), &mut rng);
        server.accept();
        Box::new(server)
    };
    Start { client: Box::new(client), accept: Box::new(accept) }
}

pub(crate) fn shadowsocks(method: &str) -> Make {
    let key = key(method);
    Box::new(move |now| shadowsocks_start(&key, now))
}

/// The key of a method, which is made once for each port.
pub(crate) fn key(method: &str) -> MethodKey {
    let password = if method.starts_with("2022") { "AAECAwQFBgcICQoLDA0ODw==" } else { "password" };
    MethodKey::from_password(method.parse().expect("a method"), password).expect("a key")
}

fn shadowsocks_start(key: &MethodKey, now: Instant) -> Start {
    let clock = WallClock::new(now, UNIX_TIME.into());
    let target = "example.com:443".parse().expect("a target");
    let client = shadowsocks::ShadowsocksClientStream::new(key, &target, clock, &mut FixedRng::new(1));
    let mut acceptor = ShadowsocksAcceptor::new(&ServerKey::new(key.clone()));
    let accept = move |wire: &mut RecvBuf| -> Box<dyn Layer> {
        let accepted = acceptor.accept(wire, UNIX_TIME.into(), &mut NoFilter).expect("a legal request");
        assert!(matches!(accepted, shadowsocks::Accept::Accepted(_)), "the whole request is there");
        Box::new(acceptor.into_server(clock, &mut FixedRng::new(2)))
    };
    Start { client: Box::new(client), accept: Box::new(accept) }
}

pub(crate) fn obfs_http() -> Make {
    Box::new(|_| obfs_http_start())
}

fn obfs_http_start() -> Start {
    let mut rng = FixedRng::new(1);
    let config = HttpObfsConfig::new("www.example.com", "/", &mut rng).expect("a host");
    let client = HttpObfsClient::new(&config, &mut rng);
    let accept = |_: &mut RecvBuf| -> Box<dyn Layer> {
        Box::new(HttpObfsServer::new(UNIX_TIME.into(), &mut FixedRng::new(2)))
    };
    Start { client: Box::new(client), accept: Box::new(accept) }
}

pub(crate) fn obfs_tls() -> Make {
    Box::new(|_| obfs_tls_start())
}

fn obfs_tls_start() -> Start {
    let client = TlsObfsClient::new("www.example.com", UNIX_TIME, &mut FixedRng::new(1));
    let accept = |_: &mut RecvBuf| -> Box<dyn Layer> {
        Box::new(TlsObfsServer::new(UNIX_TIME, &mut FixedRng::new(2)))
    };
    Start { client: Box::new(client), accept: Box::new(accept) }
}

/// Requests to a SOCKS5 port.
pub(crate) fn socks(rounds: u32) {
    const CLIENT: &[u8] = b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.com\x01\xbb";
    let (mut wire, mut out) = (RecvBuf::with_len(1024), Vec::with_capacity(1024));
    for _ in 0..rounds {
        wire.reset();
        wire.extend(CLIENT);
        out.clear();
        let event = SocksServer::new(Auth::Open).advance(&mut wire, &mut out).expect("a legal request");
        let SocksEvent::Request(request) = event else { panic!("the whole request is there") };
        request.emit_reply(Ok(([127, 0, 0, 1], 443).into()), &mut out);
        black_box(&out);
    }
}
