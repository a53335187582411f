//! The server's end of the protocol layer: reads the client's header, finds the user, then carries packets.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use zeroize::Zeroizing;

use super::packets::{Codec, pass};
use super::{DEFAULT_INTERVAL_S, Mac, adler, aes128, chain, plan, reserve, verify};
use crate::buf::RecvBuf;
use crate::crypto::Noise;
use crate::ssr::key::UserKey;
use crate::ssr::refusal::{check_clock, low_32};
use crate::ssr::{Clients, Refusal, SharedIv, SsrKey, SsrProtocol, SsrUserKeys};
use crate::wire::{Layer, Opened, Plan, Rng, WallClock, WireError};

/// State that all connections of one listener share. Clones share their tables.
#[derive(Clone)]
pub struct SsrServerConfig {
    pub(super) key: SsrKey,
    protocol: SsrProtocol,
    is_compatible: bool,
    users: Option<Arc<SsrUserKeys>>,
    server_key: Arc<UserKey>,
    clients: Arc<Clients>,
    pub(super) overhead: u16,
    pub(super) interval_s: u64,
    started_s: u64,
}

/// `auth_sha1` takes no time that lies further in front of the server's start, in seconds (observed from SSRR 3.1.2).
const START_SLACK_S: u64 = 30 + 30 * 60;

impl SsrServerConfig {
    /// A server for every client that has `key`. `clients` remembers connections; give each listener one of its own.
    /// `obfs_overhead` is [`Obfs::overhead`](crate::ssr::Obfs::overhead).
    pub fn new(protocol: SsrProtocol, key: &SsrKey, clients: Arc<Clients>, obfs_overhead: u16) -> Self {
        Self {
            key: key.clone(),
            protocol,
            is_compatible: false,
            users: None,
            server_key: Arc::new(UserKey::of_server(protocol, key)),
            clients,
            overhead: protocol.overhead() + obfs_overhead,
            interval_s: DEFAULT_INTERVAL_S,
            started_s: 0,
        }
    }

    /// Only these users may connect. No effect where [`SsrProtocol::has_users`] is false.
    ///
    /// # Panics
    /// If the table was made for another protocol.
    #[must_use]
    pub fn with_users(mut self, users: Arc<SsrUserKeys>) -> Self {
        assert_eq!(users.protocol(), self.protocol, "the users' table was made for another protocol");
        self.users = self.protocol.has_users().then_some(users);
        self
    }

    /// Clients with `origin` are served too, where [`SsrProtocol::can_be_compatible`].
    #[must_use]
    pub fn with_compatible(mut self, is_compatible: bool) -> Self {
        self.is_compatible = is_compatible && self.protocol.can_be_compatible();
        self
    }

    /// Seconds between two lists of sizes of `auth_chain_f` (never 0).
    #[must_use]
    pub fn with_interval(mut self, interval_s: u64) -> Self {
        self.interval_s = interval_s.max(1);
        self
    }

    /// When the server started: `auth_sha1` refuses headers that are much older.
    #[must_use]
    pub fn with_start(mut self, unix_s: u64) -> Self {
        self.started_s = unix_s;
        self
    }

    /// The protocol.
    pub fn protocol(&self) -> SsrProtocol {
        self.protocol
    }

    /// The key of the server.
    pub fn key(&self) -> &SsrKey {
        &self.key
    }

    /// The id, if it is a user's, and the key that goes with it.
    pub(in crate::ssr) fn user(&self, id: u32) -> Result<(Option<u32>, Arc<UserKey>), Refusal> {
        match &self.users {
            None => Ok((None, Arc::clone(&self.server_key))),
            Some(users) => {
                users.find(id).map(|key| (Some(id), Arc::clone(key))).ok_or(Refusal::UnknownUser { id })
            }
        }
    }

    /// Whether the protocol itself authenticates clients: what it yields before has authenticated nobody.
    fn authenticates(&self) -> bool {
        !matches!(self.protocol, SsrProtocol::Origin | SsrProtocol::VerifyDeflate | SsrProtocol::VerifySimple)
    }
}

/// Shows no key material.
impl fmt::Debug for SsrServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("protocol", &self.protocol)
            .field("users", &self.users)
            .finish_non_exhaustive()
    }
}

/// The identity that a client claims.
pub(super) struct Claim {
    pub(super) user: u32,
    pub(super) client: u64,
    pub(super) connection: u32,
}

/// A client at the door.
pub(super) struct Knock<'a> {
    pub(super) config: &'a SsrServerConfig,
    /// IV of the client's direction, then the server's key.
    pub(super) keyed: &'a [u8],
    unix_s: u64,
    noise: &'a RefCell<Option<Noise>>,
}

impl Knock<'_> {
    pub(super) fn user(&self, id: u32) -> Result<(Option<u32>, Arc<UserKey>), Refusal> {
        self.config.user(id)
    }

    pub(super) fn check_clock(&self, client_s: u32, window_s: u32) -> Result<(), Refusal> {
        check_clock(client_s, self.unix_s, window_s)
    }

    /// Refuses what was sent long before this server started.
    pub(super) fn check_start(&self, client_s: u32) -> Result<(), Refusal> {
        let earliest = self.config.started_s.saturating_sub(START_SLACK_S);
        let offset = client_s.wrapping_sub(low_32(earliest)).cast_signed();
        if earliest > 0 && offset < 0 { Err(Refusal::Replay) } else { Ok(()) }
    }

    pub(super) fn admit(&self, claim: &Claim) -> Result<(), Refusal> {
        self.config.clients.admit(claim.user, claim.client, claim.connection, self.unix_s)
    }

    /// The connection's random source; asked for once.
    pub(super) fn noise(&self) -> Noise {
        self.noise.borrow_mut().take().expect("a connection is accepted once")
    }
}

/// Contents of a header.
pub(super) enum ClientHeader {
    /// At least so many further bytes are missing.
    NeedMore(usize),
    /// The header's length, the payload in it, the user, and what carries the packets.
    Whole { len: usize, data: Range<usize>, user: Option<u32>, codec: Box<dyn Codec> },
}

/// The server's knowledge of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The header is not complete, and nothing is wrong with it so far.
    Waiting,
    /// The client has authenticated, as this user where there are users.
    Authenticated {
        /// The id in the table of users.
        user: Option<u32>,
    },
    /// The protocol does not authenticate (`origin`, `verify_deflate`, `verify_simple`), or the client speaks `origin` to a
    /// server that allows it.
    Unauthenticated,
    /// The client is refused. No byte has been answered, and none will be.
    Refused(Refusal),
}

/// The server's end of a stream.
pub struct SsrServerStream {
    config: SsrServerConfig,
    iv: SharedIv,
    clock: WallClock,
    noise: RefCell<Option<Noise>>,
    state: State,
    codec: Option<Box<dyn Codec>>,
    /// An empty packet is due.
    owes: bool,
}

impl SsrServerStream {
    /// A connection that has received nothing, inside a cipher whose [`client_iv`](crate::ssr::CipherLayer::client_iv)
    /// is `iv`.
    pub fn new(config: &SsrServerConfig, iv: &SharedIv, clock: WallClock, rng: &mut dyn Rng) -> Self {
        let mut noise = Some(Noise::draw(rng));
        let codec: Option<Box<dyn Codec>> = match config.protocol {
            SsrProtocol::VerifyDeflate => Some(Box::<verify::Deflate>::default()),
            SsrProtocol::VerifySimple => noise.take().map(|noise| Box::new(verify::Simple::new(noise)) as _),
            SsrProtocol::Origin
            | SsrProtocol::VerifySha1
            | SsrProtocol::AuthSha1
            | SsrProtocol::AuthSha1V2
            | SsrProtocol::AuthSha1V4
            | SsrProtocol::AuthAes128
            | SsrProtocol::AuthAes128Md5
            | SsrProtocol::AuthAes128Sha1
            | SsrProtocol::AuthAes128Fast
            | SsrProtocol::AuthChain(_) => None,
        };
        let state = if config.authenticates() { State::Waiting } else { State::Unauthenticated };
        let (config, iv, noise) = (config.clone(), iv.clone(), RefCell::new(noise));
        Self { config, iv, clock, noise, state, codec, owes: false }
    }

    /// The client's identity, as far as it is known. Changes with [`Layer::open`].
    pub fn state(&self) -> State {
        self.state
    }

    fn accept(&self, iv: &[u8], unread: &mut [u8], unix_s: u64) -> Result<ClientHeader, Refusal> {
        let keyed = Zeroizing::new([iv, self.config.key.bytes()].concat());
        let knock = Knock { config: &self.config, keyed: &keyed, unix_s, noise: &self.noise };
        match self.config.protocol {
            SsrProtocol::AuthSha1 => adler::accept(adler::AdlerVariant::Sha1, &knock, unread),
            SsrProtocol::AuthSha1V2 => adler::accept(adler::AdlerVariant::Sha1V2, &knock, unread),
            SsrProtocol::AuthSha1V4 => adler::accept(adler::AdlerVariant::Sha1V4, &knock, unread),
            SsrProtocol::AuthAes128 => adler::accept(adler::AdlerVariant::Aes128, &knock, unread),
            SsrProtocol::AuthAes128Md5 => aes128::accept(Mac::Md5, &knock, unread),
            SsrProtocol::AuthAes128Sha1 => aes128::accept(Mac::Sha1, &knock, unread),
            SsrProtocol::AuthAes128Fast => aes128::accept(Mac::Fast, &knock, unread),
            SsrProtocol::AuthChain(letter) => chain::accept(letter, &knock, unread),
            SsrProtocol::VerifySha1 => verify::accept_sha1(&knock, iv, unread),
            SsrProtocol::Origin | SsrProtocol::VerifyDeflate | SsrProtocol::VerifySimple => {
                unreachable!("has no header")
            }
        }
    }

    /// Reads the header.
    fn open_header(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError> {
        let iv = self.iv.clone();
        let Some(iv) = iv.as_slice() else { return Ok(Opened::NeedMore(1)) };
        if wire.unread().is_empty() {
            return Ok(Opened::NeedMore(1));
        }
        let position = wire.position();
        match self.accept(iv, wire.unread_mut(), self.clock.unix_s(now)) {
            Ok(ClientHeader::NeedMore(missing)) => Ok(Opened::NeedMore(missing)),
            Ok(ClientHeader::Whole { len, data, user, codec }) => {
                wire.consume(len);
                self.codec = Some(codec);
                self.owes = self.answers();
                self.state = State::Authenticated { user };
                Ok(Opened::Payload(position + data.start..position + data.end))
            }
            Err(Refusal::WrongKey) if self.config.is_compatible => {
                self.state = State::Unauthenticated;
                Ok(pass(wire))
            }
            Err(refusal) => {
                self.state = State::Refused(refusal);
                Err(refusal.into())
            }
        }
    }

    /// Whether empty packets are answered with empty ones, and a header too.
    fn answers(&self) -> bool {
        self.config.authenticates()
            && !matches!(self.config.protocol, SsrProtocol::VerifySha1 | SsrProtocol::AuthSha1)
    }
}

impl Layer for SsrServerStream {
    fn plan(&self, _now: Instant) -> Plan {
        plan(self.codec.as_deref(), 0)
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        _now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let Some(codec) = self.codec.as_deref_mut() else { return Ok(payload) };
        let owes = std::mem::take(&mut self.owes);
        if payload.is_empty() && !owes {
            return Ok(payload);
        }
        let start = payload.start - reserve(codec, payload.len());
        let end = if payload.is_empty() {
            codec.seal(block, start, payload, 0)
        } else {
            codec.seal_all(block, start, payload)
        };
        Ok(start..end)
    }

    fn has_pending(&self) -> bool {
        self.owes
    }

    fn open(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError> {
        loop {
            let opened = match (self.state, self.codec.as_deref_mut()) {
                (State::Waiting, _) => self.open_header(wire, now)?,
                (State::Refused(refusal), _) => return Err(refusal.into()),
                (_, None) => return Ok(pass(wire)),
                (_, Some(codec)) => codec.open_into(wire)?,
            };
            match opened {
                Opened::Payload(range) if range.is_empty() => self.owes |= self.answers(),
                opened @ (Opened::Payload(_) | Opened::NeedMore(_) | Opened::End) => return Ok(opened),
            }
        }
    }

    fn has_backlog(&self) -> bool {
        self.codec.as_ref().is_some_and(|codec| codec.has_backlog())
    }

    fn most_received(&self) -> usize {
        self.codec.as_ref().map_or(usize::MAX, |codec| codec.most_received())
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        if unread == 0 { Ok(()) } else { Err(WireError::Truncated { what: "a packet or header" }) }
    }
}

/// Shows no key material.
impl fmt::Debug for SsrServerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("state", &self.state).finish_non_exhaustive()
    }
}
