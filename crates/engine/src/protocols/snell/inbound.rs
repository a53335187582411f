//! The Snell server.
//!
//! Unauthenticated connections meet the silence of [`crate::listener::unauthenticated`] (`docs/protocols/snell.md` 6.3).

pub(crate) use super::inbound_udp::QuicPackets;

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use adit_model::{self as model, ObfsServer};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::snell::udp::envelope::Envelope;
use adit_proto::snell::{
    ErrorReply, MAX_LONG_FRAME_LEN, MAX_PAYLOAD, Progress, SnellCommand, SnellRequest, SnellServerStream, udp,
};
use adit_proto::wire::{Layer, WireError};

use super::keys::{Keys, identify};
use super::owner::Owner;
use crate::admission::guard::Ticket;
use crate::connections::record::{EndReason, Side};
use crate::connections::table::ConnectionEntry;
use crate::datagram::{PacketInbound, SessionOwners};
use crate::listener::association::{self, FrameFormat};
use crate::listener::connected::{self, NextRequest, ProxiedConnection, Served, enter, make_room};
use crate::listener::unauthenticated::{
    FIRST_READ, LINGER, Refusal, draw_deadline, in_time, leave_alone, receive, refuse_request,
};
use crate::listener::{Inbound, InboundFactory, InboundServer};
use crate::protocols::obfs::layer::server_outer;
use crate::relay::Stack;
use crate::relay::discard::{discard_bytes, discard_exchange};
use crate::relay::{self, Early, Endpoint};
use crate::replay::ReplayFilter;
use crate::rng::OsRng;
use crate::stream::RelaySession;
use crate::users::{Account, Accounts, KnownSources};

/// Bytes that a client may still send for an exchange that has failed, and the time for them.
const DISCARD_EXCHANGE_LEN: usize = 0x8_0000;
const DISCARD_EXCHANGE: Duration = Duration::from_secs(15);

/// Linux's number for a reset connection, on every platform: clients know that one.
const ECONNRESET: u8 = 104;

/// The frames of an exchange of command 6.
const FRAMES: FrameFormat = FrameFormat {
    max_len: MAX_PAYLOAD,
    parse: udp::parse_request,
    answer_len: udp::answer_len,
    emit_answer: udp::emit_answer,
};

/// State that a Snell server shares over all cores.
#[derive(Debug)]
pub(crate) struct SnellServerShared {
    pub(super) keys: Keys,
    pub(super) accounts: Accounts,
    /// Of the whole process.
    salts: Arc<ReplayFilter>,
    /// Sources of users.
    sources: Arc<KnownSources>,
    obfs: ObfsServer,
    udp: bool,
    deadline: Duration,
}

impl SnellServerShared {
    pub(crate) fn start(
        config: &model::SnellServer,
        accounts: Accounts,
        salts: Arc<ReplayFilter>,
        sources: Arc<KnownSources>,
    ) -> io::Result<Arc<Self>> {
        Self::new(config, accounts, salts, sources).map(Arc::new)
    }

    fn new(
        config: &model::SnellServer,
        accounts: Accounts,
        salts: Arc<ReplayFilter>,
        sources: Arc<KnownSources>,
    ) -> io::Result<Self> {
        Ok(Self {
            keys: Keys::start(&config.psk, config.versions, &sources)?,
            accounts,
            salts,
            sources,
            obfs: config.obfs,
            udp: config.udp && config.versions.has_datagrams(),
            deadline: draw_deadline(),
        })
    }

    /// The same with other users, and with the salts that have been seen.
    pub(crate) fn renewed(&self, config: &model::SnellServer, accounts: Accounts) -> io::Result<Arc<Self>> {
        let mut renewed = Self::new(config, accounts, self.salts.clone(), self.sources.clone())?;
        renewed.deadline = self.deadline;
        Ok(Arc::new(renewed))
    }

    /// Opens an envelope from `source`, once, with the account of the user whose it is.
    pub(crate) fn open_envelope(
        &self,
        source: IpAddr,
        datagram: &mut [u8],
    ) -> Result<(Envelope, Option<&Arc<Account>>), WireError> {
        let (opened, user) = self.keys.open_envelope(source, datagram)?;
        if !self.salts.insert(&opened.salt) {
            return Err(WireError::Replayed { what: "salt" });
        }
        Ok((opened, user.map(|user| &self.accounts[user])))
    }
}

impl InboundFactory for Arc<SnellServerShared> {
    fn renewed(
        &self,
        inbound: &model::Inbound,
        accounts: &Accounts,
    ) -> io::Result<Option<Arc<dyn InboundFactory>>> {
        let model::InboundProtocol::Snell(server) = &inbound.protocol else { return Ok(None) };
        Ok(Some(Arc::new((**self).renewed(server, accounts.clone())?)))
    }

    fn on_core(&self) -> Rc<dyn InboundServer> {
        Rc::new(SnellServer(self.clone()))
    }

    fn accounts(&self) -> Accounts {
        self.accounts.clone()
    }

    fn sources(&self) -> Option<Arc<KnownSources>> {
        matches!(self.keys, Keys::Each(_)).then(|| self.sources.clone())
    }
}

/// A Snell server on one core.
struct SnellServer(Arc<SnellServerShared>);

impl InboundServer for SnellServer {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Served {
        Box::pin(async move {
            let (near, next, owner) = Box::pin(meet(&inbound, &self.0, stream, peer)).await?;
            let entry = enter(&inbound, peer.ip(), None);
            let udp = self.0.udp;
            // The connection may outlive these users.
            drop(self);
            Box::new(Exchanges { inbound, udp, peer, owner }).serve(near, entry, next).await
        })
    }

    fn packets(&self, inbound: &Inbound, _: (Arc<SessionOwners>, usize)) -> Option<Box<dyn PacketInbound>> {
        Some(Box::new(QuicPackets::new(self.0.clone(), inbound.guard.clone())))
    }
}

/// The requests of one connection, one after another.
struct Exchanges {
    inbound: Rc<Inbound>,
    udp: bool,
    peer: SocketAddr,
    owner: Owner,
}

impl Exchanges {
    /// Serves requests, of which `next` is the first, up to one that needs a relay. Boxes hold all that a connection
    /// does without while it rests.
    async fn serve(
        mut self: Box<Self>,
        mut near: Endpoint,
        entry: ConnectionEntry,
        mut next: Box<Next>,
    ) -> Option<Box<ProxiedConnection>> {
        loop {
            let Self { inbound, udp, peer, owner } = &mut *self;
            let prepared = Box::pin(prepare(inbound, *udp, &mut near, *peer, &entry, next));
            let Some(step) = entry.unless_over(prepared).await else {
                return make_room(inbound, &entry, &near.stream);
            };
            match step {
                Step::Relay(session) => {
                    return Some(ProxiedConnection::one_of_several(near, entry, session, self));
                }
                Step::Datagrams => {
                    Box::pin(association::serve(inbound, &FRAMES, &mut near, *peer, &entry)).await;
                    return None;
                }
                Step::Done { goes_on: false } => return None,
                Step::Done { goes_on: true } => {}
            }
            next = Box::pin(next_request(&mut near, &entry, owner)).await?;
        }
    }
}

impl NextRequest for Exchanges {
    fn go_on(mut self: Box<Self>, mut near: Endpoint, entry: ConnectionEntry, reason: EndReason) -> Served {
        Box::pin(async move {
            let settled = Box::pin(settle(&self.inbound, &mut near, reason));
            if entry.unless_over(settled).await != Some(true) {
                return None;
            }
            let next = Box::pin(next_request(&mut near, &entry, &mut self.owner)).await?;
            Box::pin(self.serve(near, entry, next)).await
        })
    }
}

/// A request with what came with it.
struct Next {
    request: SnellRequest,
    early: Early,
    /// The account of its user.
    user: Option<Arc<Account>>,
}

/// Reads an unauthenticated connection up to its first request, and returns it with the connection's owner. `None` if no
/// key opens it.
async fn meet(
    inbound: &Inbound,
    shared: &Arc<SnellServerShared>,
    stream: Stream,
    peer: SocketAddr,
) -> Option<(Endpoint, Box<Next>, Owner)> {
    let ticket = inbound.guard.enter(peer.ip(), rt::now());
    let mut near = Endpoint { stream, stack: None, tail: Vec::new() };
    let until = rt::now() + shared.deadline;
    match Box::pin(admit(shared, &mut near, &ticket, peer, until)).await {
        Ok((first, owner)) => {
            ticket.authenticated(rt::now());
            Some((near, Box::new(first), owner))
        }
        Err(refusal) => {
            let is_wrong = matches!(
                refusal,
                Refusal::Wire(WireError::Authentication { .. } | WireError::Replayed { .. })
            );
            // A client that leaves before all versions have been tried has cost a derivation as well.
            let server = near.stack.as_mut().and_then(|stack| stack.protocol::<SnellServerStream>());
            if is_wrong || server.is_some_and(|server| server.has_tried()) {
                ticket.failed(rt::now());
            }
            tracing::debug!(inbound = &*inbound.name, %peer, %refusal, "no legal request");
            Box::pin(leave_alone(inbound, &near.stream, &ticket, &refusal, shared.obfs, until)).await;
            None
        }
    }
}

/// The relay is over: does what is left to do. True if the connection goes on afterwards.
async fn settle(inbound: &Inbound, near: &mut Endpoint, reason: EndReason) -> bool {
    match reason {
        EndReason::Finished => server(near).next_exchange(),
        // The answer is whole, but the target did not want to hear all of the request.
        EndReason::Socket(Side::Far, io::ErrorKind::BrokenPipe) if server(near).has_ended() => {
            discard_rest(inbound, near).await
        }
        // The target broke off before it had said anything: the client can still be told so.
        EndReason::Socket(Side::Far, kind) if server(near).has_pending() => {
            let code = if kind == io::ErrorKind::ConnectionReset { ECONNRESET } else { 0 };
            server(near).refuse(&ErrorReply { code, message: format!("target: {kind}") });
            last_word(inbound, near).await
        }
        EndReason::Idle
        | EndReason::Crowded
        | EndReason::Kicked
        | EndReason::Stopped
        | EndReason::Limited(_)
        | EndReason::Socket(..)
        | EndReason::Wire(_) => false,
    }
}

/// Result of a request.
enum Step {
    /// Bytes to relay.
    Relay(Box<RelaySession>),
    /// Datagrams, until the connection ends.
    Datagrams,
    /// It has had its answer.
    Done { goes_on: bool },
}

fn server(near: &mut Endpoint) -> &mut SnellServerStream {
    let stack = near.stack.as_mut().expect("a server's near end has a protocol");
    stack.protocol::<SnellServerStream>().expect("and it is Snell")
}

/// The first request of an unauthenticated connection, within its time, with the connection's owner.
async fn admit(
    shared: &Arc<SnellServerShared>,
    near: &mut Endpoint,
    ticket: &Ticket,
    peer: SocketAddr,
    until: Instant,
) -> Result<(Next, Owner), Refusal> {
    let mut wire = RecvBuf::with_len(FIRST_READ);
    let first = async {
        let opened_by = begin(shared, near, &mut wire, ticket, peer, until).await?;
        Ok((read_request(near, &mut wire, Some(ticket)).await?, opened_by))
    };
    let (request, opened_by) = in_time(ticket, until, Box::pin(first)).await?;
    let mut owner = Owner::new(shared, opened_by);
    let user = owner.account_of(&request).map_err(Refusal::Wire)?;
    let server = server(near);
    let is_fresh = server.is_unsealed() || server.peer_salt().is_some_and(|salt| shared.salts.insert(salt));
    if !is_fresh {
        return Err(Refusal::Wire(WireError::Replayed { what: "salt" }));
    }
    if let (Keys::Each(trial), Some(user)) = (&shared.keys, opened_by) {
        trial.note(peer.ip(), user);
    }
    let own = shared.keys.take(opened_by);
    // A recording of our own answers is no request either.
    shared.salts.insert(own.salt());
    server.set_own_key(&own, &mut OsRng);
    let early = take_early(near, &mut wire, &request).map_err(Refusal::Wire)?;
    Ok((Next { request, early, user }, owner))
}

/// Gives the connection its protocol. If each user has a key, this reads the first bytes to identify the user.
async fn begin(
    shared: &SnellServerShared,
    near: &mut Endpoint,
    wire: &mut RecvBuf,
    ticket: &Ticket,
    peer: SocketAddr,
    until: Instant,
) -> Result<Option<usize>, Refusal> {
    let mut outer = server_outer(shared.obfs);
    let (server, owner) = match &shared.keys {
        Keys::Common { supply, accepts, .. } => (super::keys::server(accepts, supply), None),
        Keys::Each(trial) => {
            let (owner, opening) =
                identify(trial, &near.stream, &mut outer, wire, ticket, peer, until).await?;
            (SnellServerStream::opened(&opening), Some(owner))
        }
    };
    near.stack = Some(Box::new(Stack::new(server, outer)));
    Ok(owner)
}

/// Reads until a request is whole.
async fn read_request(
    near: &mut Endpoint,
    wire: &mut RecvBuf,
    ticket: Option<&Ticket>,
) -> Result<SnellRequest, Refusal> {
    if near.tail.len() > wire.capacity() {
        // The end of the exchange before, this request and its first data have come in one piece.
        *wire = RecvBuf::with_len(near.tail.len() + MAX_LONG_FRAME_LEN);
    }
    wire.extend(&near.tail);
    near.tail = Vec::new();
    loop {
        let may_derive = ticket.is_none_or(|ticket| ticket.may_derive(rt::now()));
        if !may_derive && server(near).would_derive(wire.unread().len()) {
            return Err(Refusal::Throttled);
        }
        let stack = near.stack.as_mut().expect("a server's near end has a protocol");
        match stack.read(wire, SnellServerStream::poll_request) {
            Ok(Progress::Request(request)) => return Ok(request),
            Ok(Progress::NeedMore(_)) => {}
            Err(error) => return Err(Refusal::Wire(error)),
        }
        let longest = wire.unread().len() + MAX_LONG_FRAME_LEN;
        let received = receive(&near.stream, wire, longest).await?;
        let stack = near.stack.as_mut().expect("a server's near end has a protocol");
        stack.handle_received(wire, received, rt::now()).map_err(Refusal::Obfs)?;
    }
}

/// Takes the payload that came with the request. Datagrams stay in their frames, which tell one from the next.
fn take_early(near: &mut Endpoint, wire: &mut RecvBuf, request: &SnellRequest) -> Result<Early, WireError> {
    if request.command == SnellCommand::Udp {
        near.tail = wire.unread().to_vec();
        return Ok(Early::default());
    }
    let stack = near.stack.as_mut().expect("a server's near end has a protocol");
    let mut early = Early::default();
    near.tail = relay::take_early(stack, wire, &mut early)?;
    Ok(early)
}

/// The next request of `owner`'s connection, which is reused; `None` when there is none to come.
async fn next_request(near: &mut Endpoint, entry: &ConnectionEntry, owner: &mut Owner) -> Option<Box<Next>> {
    if near.tail.is_empty() {
        entry.touch();
        entry.set_resting(true);
        let readable = poll_fn(|cx| {
            entry.set_waker(cx.waker());
            if entry.is_expired() {
                return Poll::Ready(false);
            }
            near.stream.poll_readable(cx).map(|result| result.is_ok())
        });
        let readable = readable.await;
        entry.set_resting(false);
        if !readable {
            return None;
        }
    }
    let read = async {
        // Bytes that were read together with the end of the exchange before may be long.
        let mut wire = RecvBuf::with_len(FIRST_READ.max(near.tail.len()));
        let request = read_request(near, &mut wire, None).await?;
        let user = owner.account_of(&request).map_err(Refusal::Wire)?;
        let early = take_early(near, &mut wire, &request).map_err(Refusal::Wire)?;
        Ok::<_, Refusal>(Next { request, early, user })
    };
    match entry.unless_over(rt::timeout(DISCARD_EXCHANGE, Box::pin(read))).await? {
        Ok(Ok(next)) => Some(Box::new(next)),
        Ok(Err(_)) | Err(rt::Elapsed) => None,
    }
}

/// Does what a request asks for, up to the relay.
async fn prepare(
    inbound: &Inbound,
    udp: bool,
    near: &mut Endpoint,
    peer: SocketAddr,
    entry: &ConnectionEntry,
    next: Box<Next>,
) -> Step {
    let Next { request, mut early, user } = *next;
    if let Some(account) = &user
        && let Err(limit) = connected::admit(inbound, entry, account, peer)
    {
        server(near).refuse(&ErrorReply { code: 0, message: limit.to_string() });
        return Step::Done { goes_on: last_word(inbound, near).await };
    }
    let target = match request.command {
        SnellCommand::Connect { target, .. } => target,
        SnellCommand::Ping => {
            server(near).pong();
            return Step::Done { goes_on: last_word(inbound, near).await };
        }
        SnellCommand::Udp if udp && association::has_place(inbound) => {
            server(near).accept();
            return Step::Datagrams;
        }
        SnellCommand::Udp => {
            inbound.metrics.refused.unsupported.add(1);
            server(near).refuse(&ErrorReply { code: 1, message: "UDP disabled".into() });
            return Step::Done { goes_on: last_word(inbound, near).await };
        }
        SnellCommand::Invalid { error, .. } => {
            refuse_request(inbound, peer.ip(), &error);
            server(near).refuse(&ErrorReply { code: 0, message: format!("bad request: {error}") });
            return Step::Done { goes_on: last_word(inbound, near).await };
        }
    };
    let request = inbound.origin.request(peer, user, target).on(&near.stream);
    let Some(routed) = request.route_after(near, &mut early).await else {
        return Step::Done { goes_on: false };
    };
    match routed.connect(&near.stream, early).await {
        Ok(session) => {
            server(near).accept();
            Step::Relay(session)
        }
        Err(error) if error.wants_reset() => {
            near.stream.abort_on_close();
            Step::Done { goes_on: false }
        }
        Err(error) => {
            server(near).refuse(&ErrorReply { code: error.errno(), message: error.chain() });
            Step::Done { goes_on: last_word(inbound, near).await }
        }
    }
}

/// Sends the reply that ends an exchange before it has begun. True if the connection goes on afterwards.
async fn last_word(inbound: &Inbound, near: &mut Endpoint) -> bool {
    if !matches!(rt::timeout(LINGER, near.send_pending(&inbound.core.pool)).await, Ok(Ok(()))) {
        return false;
    }
    if !server(near).is_reusable() {
        drop(near.stream.shutdown_write());
    }
    discard_rest(inbound, near).await
}

/// Our direction of the exchange has ended, and nobody wants what the client still has to say. True if the connection
/// goes on afterwards.
async fn discard_rest(inbound: &Inbound, near: &mut Endpoint) -> bool {
    let pool = &inbound.core.pool;
    if server(near).is_reusable() {
        let discarded = discard_exchange(near, pool, DISCARD_EXCHANGE_LEN);
        return rt::timeout(DISCARD_EXCHANGE, discarded).await == Ok(true) && server(near).next_exchange();
    }
    // Closing over unread bytes would reset the connection and take the reply with it.
    rt::timeout(LINGER, discard_bytes(&near.stream, pool, DISCARD_EXCHANGE_LEN)).await.ok();
    false
}
