//! The Shadowsocks server.
//!
//! What does not authenticate, repeats a salt, or comes from a clock that is off meets the silence of
//! [`super::stranger`], whatever the method and whichever of these it is.

mod packets;
mod relay;
mod sessions;

pub(crate) use packets::packets;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_config::model::{self, ObfsServer, ReplayPolicy, ServerCover};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::aead2022::Relay;
use adit_proto::shadowsocks::replay::RecentSalts;
use adit_proto::shadowsocks::{
    Accept, Acceptor, Generation, Key, SaltFilter as Filter, ServerKey, UserId, WallClock,
};
use adit_proto::wire::{Target, WireError};

use super::stranger::{FIRST_READ, Refusal, draw_deadline, in_time, leave_alone, receive, take_early};
use super::{Factory, Inbound, Serve};
use crate::dispatch::{Future, Session};
use crate::guard::Ticket;
use crate::notice::{self, Notice};
use crate::obfs::server_outer;
use crate::packet::{Exchange, PacketInbound};
use crate::relay::{Early, Endpoint, Stack};
use crate::rng::OsRng;
use crate::salts::SaltFilter;
use crate::user::{Accounts, Lease};

/// The longest request in bytes (2022: a variable header of 64 KiB), with as much again for obfuscation.
const LONGEST_REQUEST: usize = 96 * 1024;
/// Salts of 2022 methods that are remembered for a minute; beyond it connections are refused.
const RECENT_SALTS: usize = 1_000_000;

/// What a Shadowsocks server shares over all cores.
#[derive(Debug)]
pub(crate) struct ShadowsocksServerShared {
    key: ServerKey,
    /// As the configuration has it.
    config_key: model::ShadowsocksServerKey,
    /// Where clients are passed on to, if they are.
    relay: Option<(Relay, Arc<[Target]>)>,
    obfs: ObfsServer,
    /// A plugin is in front, which cuts the stream as it likes.
    has_plugin: bool,
    replay: ReplayPolicy,
    salts: Arc<Salts>,
    accounts: Accounts,
    deadline: Duration,
    skewed: Notice,
    replayed: Notice,
}

/// The relay that a key is for, with a server for each user.
fn relay_of(key: &model::ShadowsocksServerKey) -> Option<(Relay, Arc<[Target]>)> {
    if key.hops().is_empty() {
        return None;
    }
    let derived = key.derive();
    let Key::Aead2022(keys) = derived.key() else { return None };
    Some((Relay::new(keys, derived.shared_users()), key.hops().into()))
}

/// The salts that have been seen, as the generation of the method needs it.
#[derive(Debug)]
enum Salts {
    /// None are told apart: there are none, or it was not asked for.
    Ignored,
    /// For ever, as far as memory goes.
    All(Box<SaltFilter>),
    /// Those of the last minute: timestamps stop older ones.
    Recent { salts: Mutex<RecentSalts>, since: Instant },
}

impl ShadowsocksServerShared {
    pub(super) fn start(config: &model::ShadowsocksServer, accounts: Accounts) -> Self {
        let key = config.key.derive();
        let salts = match (key.method().generation(), config.replay) {
            (Generation::Aead2022, _) => {
                Salts::Recent { salts: Mutex::new(RecentSalts::new(RECENT_SALTS)), since: rt::now() }
            }
            (Generation::None, _) | (_, ReplayPolicy::Ignore) => Salts::Ignored,
            (Generation::Stream | Generation::Aead, _) => Salts::All(Box::default()),
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
            salts: Arc::new(salts),
            accounts,
            deadline: draw_deadline(),
            skewed: Notice::default(),
            replayed: Notice::default(),
            key,
        }
    }

    /// The same with other users, and with the salts that have been seen.
    fn renewed(&self, config: &model::ShadowsocksServer, accounts: Accounts) -> Self {
        Self { salts: self.salts.clone(), deadline: self.deadline, ..Self::start(config, accounts) }
    }

    fn generation(&self) -> Generation {
        self.key.method().generation()
    }

    fn acceptor(&self) -> Acceptor {
        let acceptor = Acceptor::new(&self.key);
        // One read brings the whole header, unless something in between cuts the stream anew.
        if self.has_plugin || self.obfs != ObfsServer::Off { acceptor.with_split_header() } else { acceptor }
    }
}

/// What the acceptor asks about a salt.
struct Memory<'a> {
    shared: &'a ShadowsocksServerShared,
    inbound: &'a Inbound,
    peer: SocketAddr,
}

impl Filter for Memory<'_> {
    fn insert(&mut self, salt: &[u8]) -> bool {
        let shared = self.shared;
        match &*shared.salts {
            Salts::Ignored => true,
            Salts::Recent { salts, since } => {
                let now_s = rt::now().saturating_duration_since(*since).as_secs();
                salts.lock().unwrap_or_else(PoisonError::into_inner).at(now_s).insert(salt)
            }
            Salts::All(salts) => {
                let is_fresh = salts.insert(salt);
                if !is_fresh && shared.replay == ReplayPolicy::Report {
                    if let Some(times) = shared.replayed.due(rt::now()) {
                        let (inbound, peer) = (&*self.inbound.name, self.peer);
                        tracing::warn!(inbound, %peer, times, "a salt has come again: a replayed connection is served");
                    }
                    return true;
                }
                is_fresh
            }
        }
    }
}

impl Factory for Arc<ShadowsocksServerShared> {
    fn renewed(&self, inbound: &model::Inbound, accounts: &Accounts) -> io::Result<Option<Arc<dyn Factory>>> {
        let model::InboundProtocol::Shadowsocks(server) = &inbound.protocol else { return Ok(None) };
        Ok(Some(Arc::new(Self::new((**self).renewed(server, accounts.clone())))))
    }

    fn on_core(&self) -> Rc<dyn Serve> {
        Rc::new(ShadowsocksServer(self.clone()))
    }

    fn accounts(&self) -> Accounts {
        self.accounts.clone()
    }
}

/// A Shadowsocks server on one core.
struct ShadowsocksServer(Arc<ShadowsocksServerShared>);

impl Serve for ShadowsocksServer {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Future<'static, ()> {
        Box::pin(async move { serve(&inbound, &self.0, stream, peer).await })
    }

    fn packets(&self, _: &Inbound, exchange: (Arc<Exchange>, usize)) -> Option<Box<dyn PacketInbound>> {
        Some(packets(&self.0.config_key, self.0.accounts.clone(), exchange))
    }
}

/// Serves one connection.
async fn serve(inbound: &Inbound, shared: &ShadowsocksServerShared, stream: Stream, peer: SocketAddr) {
    if let Some((relay, hops)) = &shared.relay {
        return Box::pin(relay::serve(inbound, shared, (relay, hops), stream, peer)).await;
    }
    // All that the handshake needs is gone by the time the connection is idle.
    let Some(client) = Box::pin(prepare(inbound, shared, stream, peer)).await else { return };
    run(inbound, client, peer.ip()).await;
}

/// The relay of bytes.
async fn run(inbound: &Inbound, client: Client, peer: IpAddr) {
    let Client { mut near, lease, session } = client;
    let entry = inbound.core.conns.enter_from(peer);
    if let Some(lease) = lease {
        entry.set_lease(lease);
    }
    session.run(&mut near, &entry).await;
}

/// A client with the way to its target.
struct Client {
    near: Endpoint,
    lease: Option<Lease>,
    session: Box<Session>,
}

/// Everything up to the relay.
async fn prepare(
    inbound: &Inbound,
    shared: &ShadowsocksServerShared,
    stream: Stream,
    peer: SocketAddr,
) -> Option<Client> {
    let Admitted { stack, tail, target, user, early } = handshake(inbound, shared, &stream, peer).await?;
    let lease = match user {
        Some(user) => Some(lease(inbound, shared, user, (&stream, peer))?),
        None => None,
    };
    let user = lease.as_ref().map(|lease| lease.account().clone());
    let routed = inbound.origin.request(peer, user, target).route().await;
    let session = routed.connect(early).await.inspect_err(|_| stream.abort_on_close()).ok()?;
    let near = Endpoint { stream, stack: Some(Box::new(stack)), tail };
    Some(Client { near, lease, session })
}

/// The place of a user's connection; `None` if it may have none, which ends it.
fn lease(
    inbound: &Inbound,
    shared: &ShadowsocksServerShared,
    UserId(user): UserId,
    (stream, peer): (&Stream, SocketAddr),
) -> Option<Lease> {
    let account = &shared.accounts[user];
    account.requests.add(1);
    Lease::begin(account, peer.ip())
        .inspect_err(|limit| {
            tracing::debug!(inbound = &*inbound.name, %peer, %limit, "user refused");
            stream.abort_on_close();
        })
        .ok()
}

/// Everything up to the request; strangers are dealt with here.
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
            tracing::debug!(inbound = &*inbound.name, %peer, ?refusal, "no legal request");
            if let Refusal::Wire(WireError::Clock { offset_s, window_s }) = refusal {
                report_skew(inbound, shared, peer, offset_s, window_s);
            }
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
    let mut memory = Memory { shared, inbound, peer };
    let mut wire = RecvBuf::with_len(FIRST_READ);
    let accepted = loop {
        let received = receive(stream, &mut wire, LONGEST_REQUEST).await?;
        outer.handle_received(&mut wire, received, rt::now()).map_err(Refusal::Obfs)?;
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
                return Err(Refusal::Wire(error));
            }
        }
    };
    let mut early = Early { bytes: wire.block()[accepted.payload].to_vec(), ended: false };
    let server = acceptor.into_server(WallClock::new(rt::now(), rt::unix_time()), &mut OsRng);
    if let (Salts::All(salts), Some(own)) = (&*shared.salts, server.own_salt()) {
        // A recording of our own answers is no request either.
        salts.insert(own);
    }
    let mut stack = Stack::new(server, outer);
    let tail = take_early(&mut stack, &mut wire, &mut early).map_err(Refusal::Wire)?;
    Ok(Admitted { stack, tail, target: accepted.target, user: accepted.user, early })
}

/// Only who holds the key gets this far, or has a recording of one who does.
fn report_skew(
    inbound: &Inbound,
    shared: &ShadowsocksServerShared,
    peer: SocketAddr,
    offset_s: i64,
    window_s: u32,
) {
    let Some(times) = shared.skewed.due(rt::now()) else { return };
    let inbound = &*inbound.name;
    let text = notice::skew("the client's", offset_s, window_s);
    tracing::warn!(inbound, %peer, times, "{text}, or an old connection was replayed");
}
