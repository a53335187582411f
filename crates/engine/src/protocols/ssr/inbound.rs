//! The ShadowsocksR server.
//!
//! A client that does not authenticate, repeats a connection or has a clock that is off is left alone, as
//! [`crate::listener::unauthenticated`] does: no byte is sent, with every protocol and obfs. The log gives the reason.
//!
//! A stream that asks for datagrams ("UDP over TCP") carries them for as long as it lasts, where the server takes datagrams.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_model::{self as model, ObfsServer};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::goquiet;
use adit_proto::ssr::protocol::State;
use adit_proto::ssr::{
    CipherLayer, Clients, Obfs, ParsedAddress, Refusal as Reason, SharedIv, SsrKey, SsrUserKeys, obfs,
    over_tcp, parse_request, protocol,
};
use adit_proto::wire::{Opened, Target, WallClock, WireError};

use super::front::AcceptedObfsConfig;
use super::inbound_udp::SsrServerPackets;
use super::refusals::Cause;
use crate::admission::guard::Ticket;
use crate::datagram::{PacketInbound, SessionOwners};
use crate::listener::association::{self, FrameFormat};
use crate::listener::connected::{ProxiedConnection, Served, enter, lease_or_reset};
use crate::listener::fallback::{FallbackClient, RefusedClient, Servers};
use crate::listener::unauthenticated::{FIRST_READ, Refusal, draw_deadline, in_time};
use crate::listener::{Inbound, InboundFactory, InboundServer};
use crate::relay::{Early, Endpoint, Outer, Stack, take_early};
use crate::replay::ReplayFilter;
use crate::rng::OsRng;
use crate::users::{Accounts, Lease};

/// The longest request in bytes, head of an HTTP obfs included.
const LONGEST_REQUEST: usize = 96 * 1024;

/// Room for the longest payload of a packet that is longer than the packet, in bytes.
const MAX_EXPANDED: usize = protocol::MAX_INFLATED;

/// The frames of datagrams in a stream.
const FRAMES: FrameFormat = FrameFormat {
    max_len: over_tcp::MAX_FRAME,
    parse: over_tcp::parse_request,
    answer_len: over_tcp::answer_len,
    emit_answer: over_tcp::emit_answer,
};

/// State that a ShadowsocksR server shares over all cores.
#[derive(Debug)]
pub(crate) struct SsrServerShared {
    key: SsrKey,
    pub(super) protocol: protocol::SsrServerConfig,
    obfs: AcceptedObfsConfig,
    /// Connections of the users, which are refused when they come again.
    clients: Arc<Clients>,
    /// Of the whole process, with the IVs of clients among them; without IVs there is nothing to remember.
    salts: Arc<ReplayFilter>,
    /// Ids of the users, in the order of the accounts.
    pub(super) ids: Box<[u32]>,
    index: HashMap<u32, usize>,
    pub(super) accounts: Accounts,
    /// Whether it takes datagrams.
    has_datagrams: bool,
    deadline: Duration,
    /// Gets the connections of unauthenticated clients.
    fallback: Servers,
}

impl SsrServerShared {
    /// A server with the `accounts` of its users, in their order.
    ///
    /// # Errors
    /// When the configuration asks for something that cannot be served.
    pub(crate) fn start(
        config: &model::SsrServer,
        accounts: Accounts,
        salts: Arc<ReplayFilter>,
    ) -> io::Result<Self> {
        let clients = Arc::new(Clients::new(config.max_clients));
        Self::with_memory(config, accounts, clients, salts)
    }

    fn with_memory(
        config: &model::SsrServer,
        accounts: Accounts,
        clients: Arc<Clients>,
        salts: Arc<ReplayFilter>,
    ) -> io::Result<Self> {
        let key = SsrKey::from_password(config.method, config.password.expose().as_bytes());
        let now_s = rt::unix_time();
        let mut protocol =
            protocol::SsrServerConfig::new(config.protocol, &key, clients.clone(), config.obfs.overhead())
                .with_compatible(config.protocol_compatible)
                .with_interval(config.key_interval_s)
                .with_start(now_s);
        let ids: Box<[u32]> = config.users.ids().into();
        if !ids.is_empty() {
            let secrets = config.users.iter().map(|(id, user)| (id, user.key.expose().as_bytes()));
            protocol = protocol.with_users(Arc::new(SsrUserKeys::new(config.protocol, &key, secrets)));
        }
        let obfs = match config.obfs {
            Obfs::GoQuiet => {
                let key = goquiet::GoQuietKey::new(config.password.expose().as_bytes());
                AcceptedObfsConfig::Quiet(goquiet::GoQuietServerConfig::new(key))
            }
            kind @ (Obfs::Plain
            | Obfs::HttpSimple
            | Obfs::HttpPost
            | Obfs::HttpMix
            | Obfs::RandomHead
            | Obfs::TlsTicketAuth
            | Obfs::TlsTicketFastauth) => AcceptedObfsConfig::Obfs(
                obfs::SsrObfsServerConfig::new(kind, &key, &config.obfs_param, now_s)
                    .with_compatible(config.obfs_compatible),
            ),
        };
        Ok(Self {
            key,
            protocol,
            obfs,
            clients,
            salts,
            index: ids.iter().enumerate().map(|(at, id)| (*id, at)).collect(),
            ids,
            accounts,
            has_datagrams: config.transports.udp(),
            deadline: draw_deadline(),
            fallback: Servers::new(&config.redirect)?,
        })
    }

    /// The place among the accounts of the user of this id, or of the one to whom the port belongs.
    pub(super) fn user(&self, id: Option<u32>) -> Option<usize> {
        match id {
            Some(id) if !self.ids.is_empty() => self.index.get(&id).copied(),
            Some(_) | None => (self.ids.is_empty() && !self.accounts.is_empty()).then_some(0),
        }
    }
}

impl InboundFactory for Arc<SsrServerShared> {
    fn on_core(&self) -> Rc<dyn InboundServer> {
        Rc::new(SsrServer(self.clone()))
    }

    fn accounts(&self) -> Accounts {
        self.accounts.clone()
    }

    fn renewed(
        &self,
        inbound: &model::Inbound,
        accounts: &Accounts,
    ) -> io::Result<Option<Arc<dyn InboundFactory>>> {
        let model::InboundProtocol::Ssr(server) = &inbound.protocol else { return Ok(None) };
        let renewed =
            SsrServerShared::with_memory(server, accounts.clone(), self.clients.clone(), self.salts.clone())?;
        Ok(Some(Arc::new(Self::new(renewed))))
    }
}

/// A ShadowsocksR server on one core.
struct SsrServer(Arc<SsrServerShared>);

impl InboundServer for SsrServer {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Served {
        Box::pin(async move {
            match Box::pin(prepare(&inbound, &self.0, stream, peer)).await? {
                Client::Stream(connected) => Some(connected),
                Client::Datagrams(near, lease) => {
                    carry(&inbound, near, lease, peer).await;
                    None
                }
            }
        })
    }

    fn packets(&self, inbound: &Inbound, _: (Arc<SessionOwners>, usize)) -> Option<Box<dyn PacketInbound>> {
        Some(Box::new(SsrServerPackets::new(self.0.clone(), &inbound.name, inbound.core.refusals.clone())))
    }
}

/// A client that is served.
enum Client {
    /// Bytes for its target.
    Stream(Box<ProxiedConnection>),
    /// Datagrams, with the user's place where there are users.
    Datagrams(Box<Endpoint>, Option<Lease>),
}

/// Carries the datagrams of a stream until it ends.
async fn carry(inbound: &Inbound, mut near: Box<Endpoint>, lease: Option<Lease>, peer: SocketAddr) {
    let entry = enter(inbound, peer.ip(), lease);
    association::serve(inbound, &FRAMES, &mut near, peer, &entry).await;
}

/// Everything up to the relay.
async fn prepare(
    inbound: &Inbound,
    shared: &SsrServerShared,
    stream: Stream,
    peer: SocketAddr,
) -> Option<Client> {
    let fallback = FallbackClient::new(&shared.fallback);
    let admitted = match handshake(inbound, shared, &stream, peer, &fallback).await {
        Ok(admitted) => admitted,
        Err((refused, cause)) => {
            if let Some(cause) = cause {
                inbound.core.refusals.report(&inbound.name, peer, &cause, rt::now());
            }
            Box::pin(fallback.refuse(inbound, stream, peer, refused, ObfsServer::Off)).await;
            return None;
        }
    };
    let Admitted { stack, tail, request, user } = admitted;
    let lease = match user {
        Some(user) => Some(lease_or_reset(inbound, shared.accounts.get(user)?, &stream, peer)?),
        None => None,
    };
    let mut near = Endpoint { stream, stack: Some(Box::new(stack)), tail };
    // Clients wait for the empty packet that says that they are accepted.
    near.send_pending(&inbound.core.pool).await.ok()?;
    match request {
        Asked::Stream(target, early) => {
            Some(Client::Stream(ProxiedConnection::connect(inbound, near, peer, lease, target, early).await?))
        }
        Asked::Datagrams if association::has_place(inbound) => Some(Client::Datagrams(Box::new(near), lease)),
        Asked::Datagrams => {
            tracing::debug!(inbound = &*inbound.name, %peer, "no place for datagrams over TCP");
            near.stream.abort_on_close();
            None
        }
    }
}

/// Everything up to the request, or why the client is refused.
async fn handshake(
    inbound: &Inbound,
    shared: &SsrServerShared,
    stream: &Stream,
    peer: SocketAddr,
    fallback: &FallbackClient<'_>,
) -> Result<Admitted, (RefusedClient, Option<Cause>)> {
    let now = rt::now();
    let ticket = inbound.guard.enter(peer.ip(), now);
    let (until, deadline) = (now + shared.deadline, shared.deadline);
    let cause = Cell::new(None);
    let admission = Box::pin(admit(shared, stream, fallback, &cause));
    match in_time(&ticket, until, admission).await {
        Ok((admitted, is_authenticated)) => {
            settle(ticket, is_authenticated);
            Ok(admitted)
        }
        Err(refusal) => {
            // A client that made room for another one may have been about to say more.
            let is_evicted = matches!(refusal, Refusal::Evicted);
            let cause = cause.take().filter(|cause| !(is_evicted && *cause == Cause::Cut));
            Err((RefusedClient { ticket, refusal, until, deadline }, cause))
        }
    }
}

/// The client is no longer one of those that have to authenticate.
fn settle(ticket: Ticket, is_authenticated: bool) {
    if is_authenticated {
        ticket.authenticated(rt::now());
    }
}

struct Admitted {
    stack: Stack,
    tail: Vec<u8>,
    request: Asked,
    /// Place among the accounts.
    user: Option<usize>,
}

/// A client's request.
enum Asked {
    /// A connection to a target, with the first bytes for it.
    Stream(Target, Early),
    /// Datagrams.
    Datagrams,
}

/// Reads the request; says too whether the client has authenticated. `cause` says why it is refused.
async fn admit(
    shared: &SsrServerShared,
    stream: &Stream,
    fallback: &FallbackClient<'_>,
    cause: &Cell<Option<Cause>>,
) -> Result<(Admitted, bool), Refusal> {
    let refused = |why: Cause| {
        let error = why.error();
        cause.set(Some(why));
        Refusal::Wire(error)
    };
    // Of a client that has authenticated, if it comes for the first time. A recording is refused as every one is.
    let refused_request = |reader: &Reader, error: WireError| {
        fallback.close();
        if !reader.is_fresh(shared) {
            return refused(Cause::Refused(Reason::Replay));
        }
        cause.set(Some(Cause::Wire(error.clone())));
        Refusal::Request(error)
    };
    let mut wire = RecvBuf::with_len(FIRST_READ);
    fallback.receive(stream, &mut wire, LONGEST_REQUEST).await?;
    // Unless something else is found wrong with the bytes.
    cause.set(Some(Cause::Cut));
    let mut reader = open_obfs(shared, stream, fallback, &mut wire, &refused).await?;
    let mut text = Vec::new();
    let mut received = wire.unread().len();
    let (target, is_udp, len) = loop {
        reader.read(&mut wire, received, &mut text).map_err(refused)?;
        let is_known = matches!(reader.state(), State::Authenticated { .. });
        match parse_request(&text) {
            Ok(ParsedAddress::Whole { is_udp: true, .. }) if !shared.has_datagrams => {
                let error = WireError::Unsupported { what: "udp over tcp", got: 8 };
                return Err(if is_known {
                    refused_request(&reader, error)
                } else {
                    refused(Cause::Wire(error))
                });
            }
            Ok(ParsedAddress::Whole { target, is_udp, len }) => break (target, is_udp, len),
            Ok(ParsedAddress::NeedMore(_)) if text.len() <= LONGEST_REQUEST => {}
            Ok(ParsedAddress::NeedMore(_)) => {
                return Err(refused(Cause::Refused(Reason::Malformed { what: "length of the request" })));
            }
            Err(error) if is_known => return Err(refused_request(&reader, error)),
            // Without authentication a wrong password shows as an address that is none.
            Err(_) => return Err(refused(Cause::Refused(Reason::WrongKey))),
        }
        if is_known {
            fallback.close();
        }
        received = fallback.receive(stream, &mut wire, LONGEST_REQUEST).await?;
    };
    let (user, is_authenticated) = match reader.state() {
        State::Authenticated { user } => (shared.user(user), true),
        State::Waiting | State::Unauthenticated | State::Refused(_) => (shared.user(None), false),
    };
    if !reader.is_fresh(shared) {
        return Err(refused(Cause::Refused(Reason::Replay)));
    }
    let (mut stack, first) = (reader.stack, text.split_off(len));
    if is_udp {
        let (stack, tail) =
            (stack.wrapped(|inner| over_tcp::Frames::new(inner, first)), wire.unread().to_vec());
        return Ok((Admitted { stack, tail, request: Asked::Datagrams, user }, is_authenticated));
    }
    let mut early = Early { bytes: first, ended: false };
    let tail = take_early(&mut stack, &mut wire, &mut early).map_err(|e| refused(Cause::Wire(e)))?;
    Ok((Admitted { stack, tail, request: Asked::Stream(target, early), user }, is_authenticated))
}

/// The exchange in front of the stream, for kinds of obfs that have one.
async fn open_obfs(
    shared: &SsrServerShared,
    stream: &Stream,
    fallback: &FallbackClient<'_>,
    wire: &mut RecvBuf,
    refused: &impl Fn(Cause) -> Refusal,
) -> Result<Reader, Refusal> {
    let mut front = shared.obfs.accept(rt::unix_time());
    loop {
        let mut out = Vec::new();
        let is_done = front.handshake(wire, &mut out).map_err(refused)?;
        if !out.is_empty() {
            fallback.close();
            // In a write of its own: clients want nothing behind it.
            stream.send_all(&out).await.map_err(|_| Refusal::Gone)?;
        }
        if is_done {
            return Ok(Reader::new(shared, front.into_layer()));
        }
        fallback.receive(stream, wire, LONGEST_REQUEST).await?;
    }
}

/// A connection behind its obfs.
struct Reader {
    stack: Stack,
    iv: SharedIv,
}

/// Makes room at the end of `wire` for payload that is longer than its packet.
fn enlarge(wire: &mut RecvBuf) {
    let mut larger = RecvBuf::with_len(wire.unread().len() + MAX_EXPANDED);
    larger.extend(wire.unread());
    *wire = larger;
}

impl Reader {
    fn new(shared: &SsrServerShared, obfs: Box<dyn adit_proto::wire::Layer>) -> Self {
        let cipher = CipherLayer::server(&shared.key, &mut OsRng);
        let iv = cipher.client_iv();
        let clock = WallClock::new(rt::now(), rt::unix_time());
        let protocol = protocol::SsrServerStream::new(&shared.protocol, &iv, clock, &mut OsRng);
        let outer = Outer::default().with(Some(Box::new(cipher))).with(Some(obfs));
        Self { stack: Stack::new(protocol, outer), iv }
    }

    fn state(&mut self) -> State {
        let server = self.stack.protocol::<protocol::SsrServerStream>();
        server.expect("it was put there").state()
    }

    /// The last `received` bytes of `wire` are new: what they hold goes to `text`.
    fn read(&mut self, wire: &mut RecvBuf, received: usize, text: &mut Vec<u8>) -> Result<(), Cause> {
        self.stack.handle_received(wire, received, rt::now()).map_err(Cause::Wire)?;
        loop {
            match self.stack.open(wire, rt::now()) {
                Ok(Opened::Payload(range)) => text.extend(&wire.block()[range]),
                // The relay opens what comes after a request.
                Ok(Opened::NeedMore(_)) if self.stack.has_backlog() && text.len() <= LONGEST_REQUEST => {
                    enlarge(wire);
                }
                Ok(Opened::NeedMore(_) | Opened::End) => return Ok(()),
                Err(error) => {
                    return Err(match self.state() {
                        State::Refused(refusal) => Cause::Refused(refusal),
                        State::Waiting | State::Authenticated { .. } => Cause::Wire(error),
                        State::Unauthenticated => Cause::Refused(Reason::WrongKey),
                    });
                }
            }
        }
    }

    /// Whether the connection comes for the first time. Some protocols remember connections too, but not beyond a
    /// restart.
    fn is_fresh(&self, shared: &SsrServerShared) -> bool {
        self.iv.as_slice().is_none_or(|iv| iv.is_empty() || shared.salts.insert(iv))
    }
}
