//! The Snell server.
//!
//! Strangers meet the silence of [`super::stranger`] (`docs/protocols/snell.md` 6.3).

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use adit_config::model::{self, ObfsServer};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::snell::{Command, ErrorReply, MAX_FRAME_LEN, OPENING_LEN, Progress, Psk, Request, Server};
use adit_proto::wire::{Layer, WireError};

use super::Inbound;
use super::stranger::{self, FIRST_READ, LINGER, Refusal, draw_deadline, in_time, leave_alone, receive};
use crate::conns::Entry;
use crate::discard::{discard_bytes, discard_exchange};
use crate::disguise::server_front;
use crate::guard::Ticket;
use crate::keys::KeySupply;
use crate::layer::{Protocol, Stack};
use crate::record::{EndReason, Side};
use crate::relay::{Early, Endpoint};
use crate::rng::OsRng;
use crate::salts::SaltFilter;
use crate::session::{Prepared, Session};

/// What a client may still send for an exchange that has failed, in bytes, and how long that may take.
const DISCARD_EXCHANGE_LEN: usize = 0x8_0000;
const DISCARD_EXCHANGE: Duration = Duration::from_secs(15);

/// Linux's number for a reset connection, whatever the platform: it is what clients know.
const ECONNRESET: u8 = 104;

/// What a Snell server shares over all cores.
#[derive(Debug)]
pub(crate) struct SnellServerShared {
    keys: Arc<KeySupply>,
    salts: SaltFilter,
    obfs: ObfsServer,
    deadline: Duration,
}

impl SnellServerShared {
    pub(super) fn start(config: &model::SnellServer) -> io::Result<Arc<Self>> {
        let keys = KeySupply::start(Psk::new(config.psk.expose().as_bytes()))?;
        Ok(Arc::new(Self {
            keys,
            salts: SaltFilter::default(),
            obfs: config.obfs,
            deadline: draw_deadline(),
        }))
    }

    fn stack(&self) -> Stack {
        Stack::new(Protocol::SnellServer(Server::new(self.keys.psk().clone())), server_front(self.obfs))
    }
}

/// Serves one connection: request after request.
pub(super) async fn serve(inbound: &Inbound, shared: &SnellServerShared, stream: Stream, peer: SocketAddr) {
    // Boxed like all that an idle connection does without: its future would keep the place.
    let Some((mut near, mut next)) = Box::pin(meet(inbound, shared, stream, peer)).await else { return };
    let entry = inbound.core.conns.enter();
    loop {
        let goes_on = match Box::pin(prepare(inbound, &mut near, peer, next)).await {
            Step::Relay(prepared) => {
                let reason = prepared.run(inbound, peer, &mut near, &entry).await;
                Box::pin(settle(inbound, &mut near, reason)).await
            }
            Step::Done { goes_on } => goes_on,
        };
        if !goes_on {
            return;
        }
        match Box::pin(next_request(&mut near, &entry)).await {
            Some(request) => next = Box::new(request),
            None => return,
        }
    }
}

/// A stranger's connection up to its first request; `None` if it is none of ours.
async fn meet(
    inbound: &Inbound,
    shared: &SnellServerShared,
    stream: Stream,
    peer: SocketAddr,
) -> Option<(Endpoint, Box<(Request, Early)>)> {
    let ticket = inbound.guard.enter(peer.ip(), rt::now());
    let mut near = Endpoint { stream, stack: Some(Box::new(shared.stack())), tail: Vec::new() };
    let until = rt::now() + shared.deadline;
    match Box::pin(admit(shared, &mut near, &ticket, until)).await {
        Ok(first) => {
            ticket.authenticated(rt::now());
            Some((near, Box::new(first)))
        }
        Err(refusal) => {
            if let Refusal::Wire(WireError::Authentication { .. } | WireError::Replayed { .. }) = refusal {
                ticket.failed(rt::now());
            }
            tracing::debug!(inbound = &*inbound.name, %peer, ?refusal, "no legal request");
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
        EndReason::Idle | EndReason::Stopped | EndReason::Socket(..) | EndReason::Wire(_) => false,
    }
}

/// What a request comes to.
enum Step {
    /// Bytes to relay.
    Relay(Box<Prepared>),
    /// It has had its answer.
    Done { goes_on: bool },
}

fn server(near: &mut Endpoint) -> &mut Server {
    let stack = near.stack.as_mut().expect("a server's near end has a protocol");
    stack.snell_server().expect("and it is Snell")
}

/// The first request of a stranger, within its time.
async fn admit(
    shared: &SnellServerShared,
    near: &mut Endpoint,
    ticket: &Ticket,
    until: Instant,
) -> Result<(Request, Early), Refusal> {
    let mut wire = RecvBuf::with_len(FIRST_READ);
    let request = in_time(ticket, until, read_request(near, &mut wire, Some(ticket))).await?;
    let server = server(near);
    let is_fresh = server.peer_salt().is_some_and(|salt| shared.salts.insert(salt));
    if !is_fresh {
        return Err(Refusal::Wire(WireError::Replayed { what: "salt" }));
    }
    let own = shared.keys.take();
    // A recording of our own answers is no request either.
    shared.salts.insert(own.salt());
    server.set_own_key(&own, &mut OsRng);
    let early = take_early(near, &mut wire).map_err(Refusal::Wire)?;
    Ok((request, early))
}

/// Reads until a request is whole.
async fn read_request(
    near: &mut Endpoint,
    wire: &mut RecvBuf,
    ticket: Option<&Ticket>,
) -> Result<Request, Refusal> {
    if near.tail.len() > wire.capacity() {
        // The end of the exchange before, this request and its first data have come in one piece.
        *wire = RecvBuf::with_len(near.tail.len() + MAX_FRAME_LEN);
    }
    wire.extend(&near.tail);
    near.tail = Vec::new();
    loop {
        let may_derive = ticket.is_none_or(|ticket| ticket.may_derive(rt::now()));
        if !may_derive && wire.unread().len() >= OPENING_LEN && server(near).awaits_salt() {
            return Err(Refusal::Throttled);
        }
        let stack = near.stack.as_mut().expect("a server's near end has a protocol");
        match stack.poll_request(wire) {
            Ok(Progress::Request(request)) => return Ok(request),
            Ok(Progress::NeedMore(_)) => {}
            Err(error) => return Err(Refusal::Wire(error)),
        }
        let longest = wire.unread().len() + 2 * MAX_FRAME_LEN;
        let received = receive(&near.stream, wire, longest).await?;
        let stack = near.stack.as_mut().expect("a server's near end has a protocol");
        stack.handle_received(wire, received, rt::now()).map_err(Refusal::Disguise)?;
    }
}

/// What came with the request.
fn take_early(near: &mut Endpoint, wire: &mut RecvBuf) -> Result<Early, WireError> {
    let stack = near.stack.as_mut().expect("a server's near end has a protocol");
    let mut early = Early::default();
    near.tail = stranger::take_early(stack, wire, &mut early)?;
    Ok(early)
}

/// The next request of a reused connection; `None` when there is none to come.
async fn next_request(near: &mut Endpoint, entry: &Entry) -> Option<(Request, Early)> {
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
        // What was read together with the end of the exchange before may be long.
        let mut wire = RecvBuf::with_len(FIRST_READ.max(near.tail.len()));
        let request = read_request(near, &mut wire, None).await?;
        let early = take_early(near, &mut wire).map_err(Refusal::Wire)?;
        Ok::<_, Refusal>((request, early))
    };
    match rt::timeout(DISCARD_EXCHANGE, Box::pin(read)).await {
        Ok(Ok(next)) => Some(next),
        Ok(Err(_)) | Err(rt::Elapsed) => None,
    }
}

/// Does what a request asks for, up to the relay.
async fn prepare(
    inbound: &Inbound,
    near: &mut Endpoint,
    peer: SocketAddr,
    next: Box<(Request, Early)>,
) -> Step {
    let (request, early) = *next;
    let target = match request.command {
        Command::Connect { target, .. } => target,
        Command::Ping => {
            server(near).pong();
            return Step::Done { goes_on: last_word(inbound, near).await };
        }
        Command::Udp => {
            inbound.metrics.refused.unsupported.add(1);
            server(near).refuse(&ErrorReply { code: 1, message: "UDP disabled".into() });
            return Step::Done { goes_on: last_word(inbound, near).await };
        }
    };
    let since = rt::now();
    let way = inbound.way(&target).await;
    let session = Session { inbound, outbound: &way.outbound, peer, target: &target, since };
    match session.open(&way).await {
        Ok(opened) => {
            server(near).accept();
            Step::Relay(Box::new(Prepared { target, since, outbound: way.outbound, opened, early }))
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
