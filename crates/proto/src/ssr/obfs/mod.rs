//! The shape of a stream on its way.
//!
//! Some kinds begin with an exchange: both ends call `handshake` with the received bytes, send its output `out` at once
//! and in a write of its own, and go on receiving until it says [`SsrHandshake::Done`]. From then on they are layers like any
//! other. Kinds without an exchange are done at once. A server's `handshake` consumes nothing of a peer that it refuses
//! before it has answered: the caller may hand the unread bytes to a fallback server.

mod http;
mod random_head;
mod tls;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::{Obfs, Refusal, SsrKey};
use crate::buf::RecvBuf;
use crate::wire::{Layer, Opened, Plan, Rng, Room, SeenProofs, WireError};

pub use self::http::BadParameter;
use self::http::{SsrHttpClient, SsrHttpServer};
use self::random_head::{HeadClient, HeadServer};
pub use self::tls::{DEFAULT_WINDOW_S, SessionId};
use self::tls::{OneFlight, SsrTlsClient, SsrTlsServer};

/// Result of a handshake for the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SsrHandshake {
    /// At least this many further bytes (never 0) are needed.
    NeedMore(usize),
    /// The stream can begin.
    Done,
}

/// State that all connections of one client to one server share.
#[derive(Debug, Clone)]
pub struct SsrObfsClientConfig {
    kind: Obfs,
    key: SsrKey,
    hosts: Arc<[Box<str>]>,
    port: u16,
    custom: Option<Arc<str>>,
    session: Arc<SessionId>,
    one_flight: Arc<OneFlight>,
}

impl SsrObfsClientConfig {
    /// `parameter` is the `obfs_param`: host names to choose from, separated by commas, and for the HTTP kinds a `#` and
    /// the head's other lines. An empty one stands for `server`, the host name of the server, reached at `port`.
    /// `session` is drawn once per process.
    ///
    /// # Errors
    /// [`BadParameter`] for a parameter that would break a head, and for `go_quiet`, which has layers of its own.
    pub fn new(
        kind: Obfs,
        key: &SsrKey,
        parameter: &str,
        server: &str,
        port: u16,
        session: Arc<SessionId>,
    ) -> Result<Self, BadParameter> {
        let (hosts, custom) = match parameter.split_once('#') {
            Some((hosts, custom)) if http::is_http(kind) => (hosts, Some(http::custom_lines(custom))),
            Some(_) | None => (parameter, None),
        };
        let hosts = if hosts.trim().is_empty() { server } else { hosts };
        let hosts: Arc<[Box<str>]> = hosts.split(',').map(|host| host.trim().into()).collect();
        http::check(kind, &hosts)?;
        Ok(Self { kind, key: key.clone(), hosts, port, custom, session, one_flight: Arc::default() })
    }

    fn host(&self, rng: &mut dyn Rng) -> &str {
        let count = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        &self.hosts[rng.below(count) as usize]
    }
}

/// State that all connections of one listener share. Clones share their memory.
#[derive(Debug, Clone)]
pub struct SsrObfsServerConfig {
    kind: Obfs,
    is_compatible: bool,
    key: SsrKey,
    hosts: Arc<[Box<str>]>,
    window_s: u32,
    started_s: u64,
    seen: Arc<SeenProofs>,
}

/// Proofs of clients that a server remembers at most.
const MAX_SEEN: usize = 1 << 18;

impl SsrObfsServerConfig {
    /// `parameter` is the `obfs_param`: host names that the HTTP kinds accept, separated by commas (all if it is empty);
    /// for the TLS kinds how far a client's clock may be off, in seconds (0 or less: any). The server started at
    /// `started_s`, in Unix seconds.
    pub fn new(kind: Obfs, key: &SsrKey, parameter: &str, started_s: u64) -> Self {
        let window_s = match parameter.trim().parse::<i64>() {
            Ok(window_s) => u32::try_from(window_s.max(0)).unwrap_or(u32::MAX),
            Err(_) => DEFAULT_WINDOW_S,
        };
        let hosts = parameter.split(',').map(str::trim).filter(|host| !host.is_empty());
        let memory_s = if window_s == 0 { DEFAULT_WINDOW_S } else { window_s };
        Self {
            kind,
            is_compatible: false,
            key: key.clone(),
            hosts: hosts.map(Into::into).collect(),
            window_s,
            started_s,
            seen: Arc::new(SeenProofs::new(2 * u64::from(memory_s), MAX_SEEN)),
        }
    }

    /// Clients without obfs are served too, where [`Obfs::can_be_compatible`].
    #[must_use]
    pub fn with_compatible(mut self, is_compatible: bool) -> Self {
        self.is_compatible = is_compatible && self.kind.can_be_compatible();
        self
    }
}

/// The client's end.
#[derive(Debug)]
pub struct SsrObfsClient(ClientKind);

#[derive(Debug)]
enum ClientKind {
    Plain,
    Http(SsrHttpClient),
    Head(HeadClient),
    Tls(Box<SsrTlsClient>),
}

impl SsrObfsClient {
    /// A connection that has sent nothing, begun at `unix_s`. `head_len` is how many bytes of the first write an HTTP path
    /// holds at least: IV and address, as peers count them.
    pub fn new(config: &SsrObfsClientConfig, head_len: usize, unix_s: u64, rng: &mut dyn Rng) -> Self {
        Self(match config.kind {
            Obfs::Plain | Obfs::GoQuiet => ClientKind::Plain,
            Obfs::HttpSimple | Obfs::HttpPost | Obfs::HttpMix => {
                ClientKind::Http(SsrHttpClient::new(config, head_len, rng))
            }
            Obfs::RandomHead => ClientKind::Head(HeadClient::new(rng)),
            Obfs::TlsTicketAuth | Obfs::TlsTicketFastauth => {
                ClientKind::Tls(Box::new(SsrTlsClient::new(config, unix_s, rng)))
            }
        })
    }

    /// Goes on with the exchange in front of the stream; see the [module](self).
    ///
    /// # Errors
    /// An error in the server's bytes.
    pub fn handshake(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<SsrHandshake, WireError> {
        match &mut self.0 {
            ClientKind::Plain | ClientKind::Http(_) => Ok(SsrHandshake::Done),
            ClientKind::Head(head) => Ok(head.handshake(wire, out)),
            ClientKind::Tls(tls) => tls.handshake(wire, out),
        }
    }
}

/// The server's end.
#[derive(Debug)]
pub struct SsrObfsServer(ServerKind);

#[derive(Debug)]
enum ServerKind {
    Plain,
    Http(SsrHttpServer),
    Head(HeadServer),
    Tls(Box<SsrTlsServer>),
}

impl SsrObfsServer {
    /// A connection that has received nothing, accepted at `unix_s`.
    pub fn new(config: &SsrObfsServerConfig, unix_s: u64, rng: &mut dyn Rng) -> Self {
        Self(match config.kind {
            Obfs::Plain | Obfs::GoQuiet => ServerKind::Plain,
            Obfs::HttpSimple | Obfs::HttpPost | Obfs::HttpMix => {
                ServerKind::Http(SsrHttpServer::new(config, unix_s))
            }
            Obfs::RandomHead => ServerKind::Head(HeadServer::new(config, rng)),
            Obfs::TlsTicketAuth | Obfs::TlsTicketFastauth => {
                ServerKind::Tls(Box::new(SsrTlsServer::new(config, unix_s, rng)))
            }
        })
    }

    /// Goes on with the exchange in front of the stream; see the [module](self).
    ///
    /// # Errors
    /// Why the client is refused: it has to be treated like one that does not hold the key.
    pub fn handshake(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<SsrHandshake, Refusal> {
        let handshake = match &mut self.0 {
            ServerKind::Plain => return Ok(SsrHandshake::Done),
            ServerKind::Http(http) => http.handshake(wire),
            ServerKind::Head(head) => head.handshake(wire, out),
            ServerKind::Tls(tls) => tls.handshake(wire, out),
        };
        match handshake? {
            Shake::NeedMore(missing) => Ok(SsrHandshake::NeedMore(missing)),
            Shake::Done => Ok(SsrHandshake::Done),
            Shake::NotObfs => {
                self.0 = ServerKind::Plain;
                Ok(SsrHandshake::Done)
            }
        }
    }
}

/// As [`SsrHandshake`], or a client without obfs at a server that allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shake {
    NeedMore(usize),
    Done,
    NotObfs,
}

/// A refusal, unless clients without obfs are served.
fn refuse(is_compatible: bool, refusal: Refusal) -> Result<Shake, Refusal> {
    if is_compatible { Ok(Shake::NotObfs) } else { Err(refusal) }
}

/// The plan of a layer that only puts `head` bytes in front of the first payload.
fn headed_plan(head: usize) -> Plan {
    let rest = Room { head: 0, tail: 0, max_payload: usize::MAX };
    Plan { first: Room { head, ..rest }, rest }
}

/// Everything that is there, as it is.
fn pass(wire: &mut RecvBuf) -> Opened {
    let range = wire.position()..wire.position() + wire.unread().len();
    if range.is_empty() {
        return Opened::NeedMore(1);
    }
    wire.consume(range.len());
    Opened::Payload(range)
}

macro_rules! layer {
    ($name:ident, $kind:ident) => {
        impl Layer for $name {
            fn plan(&self, _now: Instant) -> Plan {
                match &self.0 {
                    $kind::Plain | $kind::Head(_) => headed_plan(0),
                    $kind::Http(http) => http.plan(),
                    $kind::Tls(tls) => tls.plan(),
                }
            }

            fn seal(
                &mut self,
                block: &mut [u8],
                payload: Range<usize>,
                _now: Instant,
            ) -> Result<Range<usize>, WireError> {
                match &mut self.0 {
                    $kind::Plain | $kind::Head(_) => Ok(payload),
                    $kind::Http(http) => Ok(http.seal(block, payload)),
                    $kind::Tls(tls) => Ok(tls.seal(block, payload)),
                }
            }

            fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
                match &mut self.0 {
                    $kind::Plain | $kind::Head(_) => Ok(pass(wire)),
                    $kind::Http(http) => http.open(wire),
                    $kind::Tls(tls) => tls.open(wire),
                }
            }

            fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
                match &mut self.0 {
                    $kind::Plain | $kind::Head(_) => Ok(()),
                    $kind::Http(http) => http.handle_transport_end(unread),
                    $kind::Tls(tls) => tls.handle_transport_end(unread),
                }
            }
        }
    };
}

layer!(SsrObfsClient, ClientKind);
layer!(SsrObfsServer, ServerKind);
