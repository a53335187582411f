//! Helpers: vectors, a scripted random source, and both ends of a stream as a stack of three layers.

use std::path::Path;
use std::sync::Arc;

use adit_proto::buf::RecvBuf;
use adit_proto::goquiet;
use adit_proto::ssr::{
    CipherLayer, Clients, Obfs, ParsedAddress, Refusal, SsrKey, SsrMethod, SsrProtocol, SsrUserKeys, obfs,
    parse_request, protocol,
};
use adit_proto::wire::{Layer, Opened, Plan, Target, WireError};
pub(crate) use adit_testkit::hex;
use serde_json::Value;

pub(crate) use crate::script::{NOW_S, Script, clock, now};

const BUFFER: usize = 1 << 18;

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

pub(crate) fn read(folder: &str, name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(folder).join(name);
    let content = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&content).expect("JSON")
}

pub(crate) fn rows(folder: &str, name: &str) -> Vec<Value> {
    read(folder, name).as_array().expect("a list").clone()
}

pub(crate) fn target() -> Target {
    "example.com:80".parse().expect("a target")
}

/// Kind of an error at one end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Bad {
    Wire(WireError),
    Refused(Refusal),
    Web(goquiet::NotOurs),
}

pub(crate) enum Front {
    Client(obfs::SsrObfsClient),
    Server(obfs::SsrObfsServer),
    QuietClient(goquiet::GoQuietClientStream),
    QuietServer(goquiet::GoQuietServerStream),
}

impl Front {
    fn layer(&mut self) -> &mut dyn Layer {
        match self {
            Self::Client(layer) => layer,
            Self::Server(layer) => layer,
            Self::QuietClient(layer) => layer,
            Self::QuietServer(layer) => layer,
        }
    }

    fn handshake(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<bool, Bad> {
        let quiet = |shake: goquiet::GoQuietHandshake| shake == goquiet::GoQuietHandshake::Done;
        let done = |shake: obfs::SsrHandshake| shake == obfs::SsrHandshake::Done;
        match self {
            Self::Client(layer) => layer.handshake(wire, out).map(done).map_err(Bad::Wire),
            Self::Server(layer) => layer.handshake(wire, out).map(done).map_err(Bad::Refused),
            Self::QuietClient(layer) => layer.handshake(wire, out).map(quiet).map_err(Bad::Wire),
            Self::QuietServer(layer) => layer.handshake(wire, out).map(quiet).map_err(Bad::Web),
        }
    }
}

pub(crate) enum Inner {
    Client(protocol::SsrClientStream),
    Server(Box<protocol::SsrServerStream>),
}

impl Inner {
    fn layer(&mut self) -> &mut dyn Layer {
        match self {
            Self::Client(layer) => layer,
            Self::Server(layer) => &mut **layer,
        }
    }
}

/// One end: three layers, each with a buffer of its own.
pub(crate) struct End {
    pub(crate) front: Front,
    pub(crate) cipher: CipherLayer,
    pub(crate) inner: Inner,
    buffers: [RecvBuf; 3],
    is_ready: bool,
    /// Bytes that have to leave at once.
    pub(crate) out: Vec<u8>,
}

impl End {
    pub(crate) fn new(front: Front, cipher: CipherLayer, inner: Inner) -> Self {
        let buffers = std::array::from_fn(|_| RecvBuf::with_len(BUFFER));
        Self { front, cipher, inner, buffers, is_ready: false, out: Vec::new() }
    }

    pub(crate) fn state(&self) -> protocol::State {
        match &self.inner {
            Inner::Server(server) => server.state(),
            Inner::Client(_) => panic!("a client has no state"),
        }
    }

    /// Takes in `bytes`, and returns the payload that comes out.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Bad> {
        let [outer, middle, inner] = &mut self.buffers;
        outer.compact();
        assert_eq!(outer.extend(bytes), bytes.len());
        if !self.is_ready {
            self.is_ready = self.front.handshake(outer, &mut self.out)?;
            if !self.is_ready {
                return Ok(Vec::new());
            }
        }
        shift(self.front.layer(), outer, middle)?;
        shift(&mut self.cipher, middle, inner)?;
        let mut plain = Vec::new();
        inner.compact();
        drain(self.inner.layer(), inner, &mut plain)?;
        if self.inner.layer().has_pending() && matches!(self.inner, Inner::Server(_)) {
            let sent = self.send(&[]);
            self.out.extend(sent);
        }
        Ok(plain)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Seals `data`, as large as layers take it at a time.
    pub(crate) fn send(&mut self, data: &[u8]) -> Vec<u8> {
        let mut wire = Vec::new();
        let mut rest = data;
        loop {
            let plans =
                [self.inner.layer().plan(now()), self.cipher.plan(now()), self.front.layer().plan(now())];
            let head: usize = plans.iter().map(|plan| plan.first.head).sum();
            let tail: usize = plans.iter().map(|plan| plan.first.tail).sum();
            let most = largest(&plans);
            let (piece, later) = rest.split_at(rest.len().min(most));
            let mut block = vec![0xa5; head];
            block.extend_from_slice(piece);
            let mut range = head..block.len();
            block.resize(block.len() + tail, 0xa5);
            for layer in [self.inner.layer(), &mut self.cipher, self.front.layer()] {
                range = layer.seal(&mut block, range, now()).expect("sealed");
            }
            wire.extend_from_slice(&block[range]);
            rest = later;
            if rest.is_empty() {
                return wire;
            }
        }
    }
}

fn largest(plans: &[Plan; 3]) -> usize {
    let [inner, cipher, outer] = plans.map(|plan| plan.first);
    let around = inner.head + inner.tail + cipher.head + cipher.tail;
    inner.max_payload.min(outer.max_payload.saturating_sub(around)).min(100_000)
}

fn shift(layer: &mut dyn Layer, from: &mut RecvBuf, to: &mut RecvBuf) -> Result<(), Bad> {
    to.compact();
    loop {
        match layer.open(from, now()).map_err(Bad::Wire)? {
            Opened::Payload(range) => {
                let len = range.len();
                assert_eq!(to.extend(&from.block()[range]), len);
            }
            Opened::NeedMore(more) => {
                assert!(more > 0);
                return Ok(());
            }
            Opened::End => panic!("no end in band"),
        }
    }
}

fn drain(layer: &mut dyn Layer, wire: &mut RecvBuf, plain: &mut Vec<u8>) -> Result<(), Bad> {
    loop {
        match layer.open(wire, now()).map_err(Bad::Wire)? {
            Opened::Payload(range) => plain.extend_from_slice(&wire.block()[range]),
            Opened::NeedMore(more) => {
                assert!(more > 0);
                return Ok(());
            }
            Opened::End => panic!("no end in band"),
        }
    }
}

/// Everything that two ends need.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) key: SsrKey,
    pub(crate) protocol: SsrProtocol,
    pub(crate) obfs: Obfs,
    pub(crate) user: Option<(u32, &'static str)>,
    pub(crate) users: Option<Arc<SsrUserKeys>>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) session: Arc<obfs::SessionId>,
    pub(crate) interval_s: u64,
    pub(crate) is_compatible: bool,
    pub(crate) server_obfs: obfs::SsrObfsServerConfig,
    pub(crate) quiet: goquiet::GoQuietServerConfig,
    pub(crate) server_s: u64,
}

pub(crate) const PASSWORD: &str = "adit-ssr-vector";

impl Setup {
    pub(crate) fn new(method: &str, protocol: &str, obfs: &str) -> Self {
        let method: SsrMethod = method.parse().expect("a method");
        let key = SsrKey::from_password(method, PASSWORD.as_bytes());
        Self::with_key(key, protocol, obfs)
    }

    pub(crate) fn with_key(key: SsrKey, protocol: &str, obfs: &str) -> Self {
        let obfs: Obfs = obfs.parse().expect("an obfs");
        Self {
            protocol: protocol.parse().expect("a protocol"),
            obfs,
            user: None,
            users: None,
            clients: Arc::new(Clients::new(64)),
            session: Arc::new(obfs::SessionId::draw(&mut Script::seeded(9))),
            interval_s: protocol::DEFAULT_INTERVAL_S,
            is_compatible: false,
            server_obfs: obfs::SsrObfsServerConfig::new(obfs, &key, "", NOW_S - 9_000_000),
            quiet: goquiet::GoQuietServerConfig::new(goquiet::GoQuietKey::new(PASSWORD.as_bytes())),
            server_s: NOW_S,
            key,
        }
    }

    pub(crate) fn with_users(mut self, user: Option<(u32, &'static str)>, table: &[(u32, &str)]) -> Self {
        let table = table.iter().map(|(id, secret)| (*id, secret.as_bytes()));
        self.users = Some(Arc::new(SsrUserKeys::new(self.protocol, &self.key, table)));
        self.user = user;
        self
    }

    pub(crate) fn client_config(&self) -> protocol::SsrClientConfig {
        let config = protocol::SsrClientConfig::new(self.protocol, &self.key, self.obfs.overhead());
        let config = config.with_interval(self.interval_s);
        match self.user {
            Some((id, secret)) => config.with_user(id, secret.as_bytes()),
            None => config,
        }
    }

    pub(crate) fn server_config(&self) -> protocol::SsrServerConfig {
        let clients = Arc::clone(&self.clients);
        let config = protocol::SsrServerConfig::new(self.protocol, &self.key, clients, self.obfs.overhead());
        let config = config.with_interval(self.interval_s).with_compatible(self.is_compatible);
        match &self.users {
            Some(users) => config.with_users(Arc::clone(users)),
            None => config,
        }
    }

    pub(crate) fn client(&self, config: &protocol::SsrClientConfig, unix_s: u64, seed: u64) -> End {
        let mut rng = Script::seeded(seed);
        let cipher = CipherLayer::client(&self.key, &mut rng);
        let inner =
            protocol::SsrClientStream::new(config, &cipher.client_iv(), &target(), clock(unix_s), &mut rng);
        let front = if self.obfs == Obfs::GoQuiet {
            let key = goquiet::GoQuietKey::new(PASSWORD.as_bytes());
            let config = goquiet::GoQuietClientConfig::new(
                key,
                goquiet::Browser::Chrome,
                "adit.example",
                3600,
                &mut rng,
            );
            Front::QuietClient(goquiet::GoQuietClientStream::new(&config.expect("a name"), unix_s, &mut rng))
        } else {
            let session = Arc::clone(&self.session);
            let config =
                obfs::SsrObfsClientConfig::new(self.obfs, &self.key, "adit.example", "h", 8388, session);
            Front::Client(obfs::SsrObfsClient::new(&config.expect("a parameter"), 30, unix_s, &mut rng))
        };
        End::new(front, cipher, Inner::Client(inner))
    }

    pub(crate) fn server(&self) -> End {
        let mut rng = Script::seeded(77);
        let cipher = CipherLayer::server(&self.key, &mut rng);
        let config = self.server_config();
        let inner =
            protocol::SsrServerStream::new(&config, &cipher.client_iv(), clock(self.server_s), &mut rng);
        let front = if self.obfs == Obfs::GoQuiet {
            Front::QuietServer(goquiet::GoQuietServerStream::new(&self.quiet, self.server_s, &mut rng))
        } else {
            Front::Server(obfs::SsrObfsServer::new(&self.server_obfs, self.server_s, &mut rng))
        };
        End::new(front, cipher, Inner::Server(Box::new(inner)))
    }
}

/// Lets the two ends exchange what they owe each other until the client may send.
pub(crate) fn shake(client: &mut End, server: &mut End) -> Result<(), Bad> {
    client.receive(&[])?;
    while !client.is_ready() {
        let hello = std::mem::take(&mut client.out);
        server.receive(&hello)?;
        let answer = std::mem::take(&mut server.out);
        client.receive(&answer)?;
    }
    Ok(())
}

/// Splits what a server has received into the target and the payload.
pub(crate) fn split(plain: &[u8]) -> (Target, Vec<u8>) {
    match parse_request(plain) {
        Ok(ParsedAddress::Whole { target, len, .. }) => (target, plain[len..].to_vec()),
        other => panic!("no request: {other:?}"),
    }
}
