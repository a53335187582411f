//! The Shadowsocks server.
//!
//! A client that does not authenticate, repeats a salt, or has a clock that is off meets the silence of
//! [`crate::listener::unauthenticated`]. The method and the reason make no difference.

pub(crate) use super::inbound_udp::packets;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_model::{self as model, ObfsServer, ReplayPolicy, ServerCover};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::aead2022::Relay;
use adit_proto::shadowsocks::{
    Accept, Generation, MethodKey, SaltFilter as Filter, ServerKey, ShadowsocksAcceptor, UserId, WallClock,
};
use adit_proto::wire::{Target, WireError};

use super::multi_key::{EachPackets, MultiKeyUsers};
use crate::admission::guard::Ticket;
use crate::datagram::{PacketInbound, SessionOwners};
use crate::listener::connected::{ProxiedConnection, Served, lease_or_reset};
use crate::listener::unauthenticated::{FIRST_READ, Refusal, draw_deadline, in_time, leave_alone, receive};
use crate::listener::{Inbound, InboundFactory, InboundServer};
use crate::log_throttle::LogThrottle;
use crate::protocols::obfs::layer::server_outer;
use crate::relay::{Early, Endpoint, Stack, take_early};
use crate::replay::ReplayFilter;
use crate::rng::OsRng;
use crate::users::{Accounts, KnownSources};

/// The longest request in bytes (2022: a variable header of 64 KiB), with as much again for obfuscation.
pub(super) const LONGEST_REQUEST: usize = 96 * 1024;

/// State that a Shadowsocks server shares over all cores.
#[derive(Debug)]
pub(crate) struct ShadowsocksServerShared {
    key: ServerKey,
    /// As the configuration has it.
    config_key: model::ShadowsocksServerKey,
    /// Servers that clients are passed on to, if they are.
    relay: Option<(Relay, Arc<[Target]>)>,
    pub(super) obfs: ObfsServer,
    /// A plugin is in front, which cuts the stream as it likes.
    has_plugin: bool,
    replay: ReplayPolicy,
    memory: ReplayScope,
    /// Of the whole process.
    salts: Arc<ReplayFilter>,
    pub(super) accounts: Accounts,
    /// Keys of users, if each has its own.
    each: Option<Arc<MultiKeyUsers>>,
    /// Sources of users.
    sources: Arc<KnownSources>,
    pub(super) deadline: Duration,
    replayed: LogThrottle,
}

/// The relay that a key is for, with a server for each user.
pub(super) fn relay_of(key: &model::ShadowsocksServerKey) -> Option<(Relay, Arc<[Target]>)> {
    if key.hops().is_empty() {
        return None;
    }
    let derived = key.derive();
    let MethodKey::Aead2022(keys) = derived.key() else { return None };
    Some((Relay::new(keys, derived.shared_users()), key.hops().into()))
}

/// The salts that are remembered, as the generation of the method needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplayScope {
    /// None are told apart: there are none, or it was not asked for.
    Nothing,
    /// The last ones.
    Last,
    /// Those of the last minute: timestamps stop older ones.
    Minute,
}

impl ShadowsocksServerShared {
    pub(crate) fn start(
        config: &model::ShadowsocksServer,
        accounts: Accounts,
        salts: Arc<ReplayFilter>,
        sources: Arc<KnownSources>,
    ) -> Self {
        let key = config.key.derive();
        let memory = match (key.method().generation(), config.replay) {
            (Generation::Aead2022, _) => ReplayScope::Minute,
            (Generation::None, _) | (_, ReplayPolicy::Ignore) => ReplayScope::Nothing,
            (Generation::Stream | Generation::Aead, _) => ReplayScope::Last,
        };
        let (obfs, has_plugin) = match &config.cover {
            ServerCover::Obfs(obfs) => (*obfs, false),
            ServerCover::Plugin(plugin) => (ObfsServer::Off, plugin.transports.tcp()),
        };
        Self {
            config_key: config.key.clone(),
            relay: relay_of(&config.key),
            obfs,
            has_plugin,
            replay: config.replay,
            memory,
            salts,
            accounts,
            each: MultiKeyUsers::new(&config.key, &sources).map(Arc::new),
            sources,
            deadline: draw_deadline(),
            replayed: LogThrottle::default(),
            key,
        }
    }

    /// The same with other users, and with the salts that have been seen.
    fn renewed(&self, config: &model::ShadowsocksServer, accounts: Accounts) -> Self {
        let (salts, sources) = (self.salts.clone(), self.sources.clone());
        Self { deadline: self.deadline, ..Self::start(config, accounts, salts, sources) }
    }

    fn generation(&self) -> Generation {
        self.key.method().generation()
    }

    fn acceptor(&self) -> ShadowsocksAcceptor {
        let acceptor = ShadowsocksAcceptor::new(&self.key);
        // One read brings the whole header, unless something in between cuts the stream anew.
        if self.has_plugin || self.obfs != ObfsServer::Off { acceptor.with_split_header() } else { acceptor }
    }
}

/// Answers the acceptor's questions about a salt.
struct ReplayCheck<'a> {
    shared: &'a ShadowsocksServerShared,
    inbound: &'a Inbound,
    peer: SocketAddr,
}

impl Filter for ReplayCheck<'_> {
    fn insert(&mut self, salt: &[u8]) -> bool {
        let shared = self.shared;
        match shared.memory {
            ReplayScope::Nothing => true,
            ReplayScope::Minute => shared.salts.insert_recent(salt),
            ReplayScope::Last => {
                let is_fresh = shared.salts.insert(salt);
                if !is_fresh && shared.replay == ReplayPolicy::Report {
                    if let Some(times) = shared.replayed.due(rt::now()) {
                        let (inbound, peer) = (&*self.inbound.name, self.peer);
                        tracing::warn!(inbound, %peer, times, "a salt was replayed; the connection is served nevertheless");
                    }
                    return true;
                }
                is_fresh
            }
        }
    }
}

impl InboundFactory for Arc<ShadowsocksServerShared> {
    fn renewed(
        &self,
        inbound: &model::Inbound,
        accounts: &Accounts,
    ) -> io::Result<Option<Arc<dyn InboundFactory>>> {
        let model::InboundProtocol::Shadowsocks(server) = &inbound.protocol else { return Ok(None) };
        Ok(Some(Arc::new(Self::new((**self).renewed(server, accounts.clone())))))
    }

    fn on_core(&self) -> Rc<dyn InboundServer> {
        Rc::new(ShadowsocksServer(self.clone()))
    }

    fn accounts(&self) -> Accounts {
        self.accounts.clone()
    }

    fn sources(&self) -> Option<Arc<KnownSources>> {
        self.each.as_ref().map(|_| self.sources.clone())
    }
}

/// A Shadowsocks server on one core.
struct ShadowsocksServer(Arc<ShadowsocksServerShared>);

impl InboundServer for ShadowsocksServer {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Served {
        Box::pin(async move {
            match &self.0.relay {
                Some((relay, hops)) => {
                    super::relay::prepare(&inbound, &self.0, relay, hops, stream, peer).await
                }
                None => prepare(&inbound, &self.0, stream, peer).await,
            }
        })
    }

    fn packets(&self, _: &Inbound, exchange: (Arc<SessionOwners>, usize)) -> Option<Box<dyn PacketInbound>> {
        if let Some(each) = &self.0.each {
            return Some(Box::new(EachPackets::new(each.clone(), self.0.accounts.clone(), exchange)));
        }
        Some(packets(&self.0.config_key, self.0.accounts.clone(), exchange))
    }
}

/// Everything up to the relay.
async fn prepare(
    inbound: &Inbound,
    shared: &ShadowsocksServerShared,
    stream: Stream,
    peer: SocketAddr,
) -> Option<Box<ProxiedConnection>> {
    let Admitted { stack, tail, target, user, early } = handshake(inbound, shared, &stream, peer).await?;
    let lease = match user {
        Some(UserId(user)) => Some(lease_or_reset(inbound, &shared.accounts[user], &stream, peer)?),
        None => None,
    };
    let near = Endpoint { stream, stack: Some(Box::new(stack)), tail };
    ProxiedConnection::connect(inbound, near, peer, lease, target, early).await
}

/// Reads everything up to the request, and refuses unauthenticated connections.
async fn handshake(
    inbound: &Inbound,
    shared: &ShadowsocksServerShared,
    stream: &Stream,
    peer: SocketAddr,
) -> Option<Admitted> {
    let now = rt::now();
    let ticket = inbound.guard.enter(peer.ip(), now);
    let until = now + shared.deadline;
    let admission = Box::pin(admit(inbound, shared, stream, peer, &ticket));
    match in_time(&ticket, until, admission).await {
        Ok(admitted) => {
            if matches!(shared.generation(), Generation::Aead | Generation::Aead2022) {
                ticket.authenticated(rt::now());
            }
            Some(admitted)
        }
        Err(refusal) => {
            tracing::debug!(inbound = &*inbound.name, %peer, %refusal, "no legal request");
            leave_alone(inbound, stream, &ticket, &refusal, shared.obfs, until).await;
            None
        }
    }
}

struct Admitted {
    stack: Stack,
    tail: Vec<u8>,
    target: Target,
    user: Option<UserId>,
    early: Early,
}

/// Reads the request.
async fn admit(
    inbound: &Inbound,
    shared: &ShadowsocksServerShared,
    stream: &Stream,
    peer: SocketAddr,
    ticket: &Ticket,
) -> Result<Admitted, Refusal> {
    let mut outer = server_outer(shared.obfs);
    let mut acceptor = shared.acceptor();
    let mut memory = ReplayCheck { shared, inbound, peer };
    let mut owner = None;
    let mut wire = RecvBuf::with_len(FIRST_READ);
    let accepted = loop {
        let received = receive(stream, &mut wire, LONGEST_REQUEST).await?;
        outer.handle_received(&mut wire, received, rt::now()).map_err(Refusal::Obfs)?;
        if let (Some(each), None) = (&shared.each, owner) {
            let first = outer.with_opened(&mut wire, |wire| each.first(wire.unread()));
            let Some(first) = first else { continue };
            let found = each.find(peer.ip(), &first, ticket).await;
            let user = found.inspect_err(|_| ticket.mismatched(rt::now()))?;
            acceptor = ShadowsocksAcceptor::new(each.key(user));
            owner = Some(UserId(user));
        }
        let accepted =
            outer.with_opened(&mut wire, |wire| acceptor.accept(wire, rt::unix_time(), &mut memory));
        match accepted {
            Ok(Accept::Accepted(accepted)) => break accepted,
            Ok(Accept::NeedMore(_)) => {}
            Err(error) => {
                // Without authentication a wrong key shows as an address that is none.
                let garbled = matches!(error, WireError::Malformed { .. });
                let is_key = matches!(error, WireError::Authentication { .. })
                    || garbled && shared.generation() == Generation::Stream;
                if is_key && !acceptor.is_authenticated() {
                    ticket.mismatched(rt::now());
                }
                // The header was sealed by a client, and its salt is new.
                let asks_for_nothing =
                    matches!(error, WireError::Malformed { .. } | WireError::Unsupported { .. });
                return Err(if acceptor.is_authenticated() && asks_for_nothing {
                    Refusal::Request(error)
                } else {
                    Refusal::Wire(error)
                });
            }
        }
    };
    let mut early = Early { bytes: wire.block()[accepted.payload].to_vec(), ended: false };
    let server = acceptor.into_server(WallClock::new(rt::now(), rt::unix_time()), &mut OsRng);
    if let (ReplayScope::Last, Some(own)) = (shared.memory, server.own_salt()) {
        // A recording of our own answers is no request either.
        shared.salts.insert(own);
    }
    let mut stack = Stack::new(server, outer);
    let tail = take_early(&mut stack, &mut wire, &mut early).map_err(Refusal::Wire)?;
    Ok(Admitted { stack, tail, target: accepted.target, user: accepted.user.or(owner), early })
}
