mod quic;
mod streams;

use std::collections::hash_map::RandomState;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use adit_net::rt;
use adit_net::udp::{Datagram, HEADROOM, Outgoing, Socket};
use adit_proto::shadowsocks::NoFilter;
use adit_proto::shadowsocks::aead2022::{Header, Session};
use adit_proto::wire::Target;

use super::drops::{Drop, Tally};
use super::exchange::{Exchange, Moved};
use super::far::{Codec, Far, FarFlow, Known, Way, set_options};
use super::gather::{Pulse, Turn};
use super::marks::Marks;
use super::near::{Key, Near, Opened, next_together};
use super::ready::Ready;
use super::{Payload, Scratch, SharedScratch};
use crate::access::{Access, Side};
use crate::conns::TICK;
use crate::flow::{FlowId, FlowTable, Tick};
use crate::metrics::InboundMetrics;
use crate::rng::OsRng;
use crate::users::{self, Lease};

pub(crate) use quic::QuicPort;

/// Seconds for flows to name servers alone, once an answer has come.
const BRIEF_IDLE: Tick = 10;
/// Seconds of silence after which a flow gives up what can be derived again.
const REST_AFTER: Tick = 10;
/// Classes of flows in the table: with traffic, with an answer from a name server, and silent.
const NORMAL: usize = 0;
const BRIEF: usize = 1;
const RESTING: usize = 2;

/// Where name servers listen.
const DNS: u16 = 53;

/// Batches from one socket per turn: with 32 messages each, the 64 that one may have before others have theirs.
pub(super) const BATCHES: usize = 2;

/// Datagrams of a flow that wait for the address of a name.
pub(super) const MAX_WAITING: usize = 8;

/// Datagrams from other cores that are taken in one turn.
const MAX_MOVED: usize = 64;

/// Bytes behind a copy: the longest tag, and some.
const TAILROOM: usize = 64;

/// Both sides of a relay.
pub(crate) struct Ends {
    /// What the clients speak.
    pub(crate) near: Near,
    /// How the targets are reached.
    pub(crate) far: Rc<Far>,
    /// Whom to take datagrams from, and where to send them.
    pub(crate) access: Option<Rc<Access>>,
}

/// A listening socket on one core, with its flows.
pub(crate) struct Relay {
    name: Arc<str>,
    metrics: Arc<InboundMetrics>,
    listener: Socket,
    near: Near,
    far: Rc<Far>,
    access: Option<Rc<Access>>,
    flows: FlowTable<Key, Flow, 3>,
    marks: Marks,
    ready: Ready,
    todo: Vec<FlowId>,
    scratch: SharedScratch,
    /// The other cores of this listener, and the number of this one.
    exchange: Option<(Arc<Exchange>, usize)>,
    /// Flows whose streams have got something to send.
    streams: Vec<FlowId>,
    /// For the names of flows, keyed by a secret of this relay.
    hasher: RandomState,
    now: Tick,
    at: Instant,
    unix_s: u64,
    tally: Tally,
    /// For [`Gather`](super::gather::Gather).
    seen: u32,
}

/// One client's traffic, as long as it lasts.
struct Flow {
    /// Where answers go, and the address of ours that they come from.
    near: SocketAddr,
    near_local: Option<IpAddr>,
    session: Option<Box<Session>>,
    way: Way,
    far: FarFlow,
    waker: Option<Waker>,
    /// The last target, and where its datagrams are sent: most of the time also the next one's.
    last: Option<(Target, SocketAddr)>,
    /// There was more than one.
    is_spread: bool,
    /// All of them were name servers.
    is_dns: bool,
    /// It goes past the tunnel.
    is_past: bool,
    /// It is of another class than [`NORMAL`]; its next datagram takes it back.
    is_demoted: bool,
    is_too_big_logged: bool,
    pulse: Pulse,
    waiting: Vec<(Target, Vec<u8>, u8)>,
    /// Where QUIC behind an envelope goes.
    quic: Option<Box<quic::Served>>,
    /// Whose it is, where there are users.
    user: Option<Box<Lease>>,
}

impl Flow {
    /// Says once what would fit.
    fn log_too_big(&mut self, inbound: &str, to: SocketAddr, len: usize, marks: &Marks) {
        if !std::mem::replace(&mut self.is_too_big_logged, true) {
            let fits = marks.largest(to).or_else(|| Socket::largest_payload(to));
            tracing::info!(inbound, len, fits, "datagrams are larger than the path takes: they are dropped");
        }
    }

    /// Counts a datagram, if its user may send or receive it.
    fn pass(&self, way: users::Way, len: usize, now: Instant) -> Result<(), Drop> {
        let Some(user) = &self.user else { return Ok(()) };
        if !user.grant_whole(way, len, now) {
            return Err(Drop::Limited);
        }
        user.settle(way, len, len);
        Ok(())
    }

    /// Gives up what can be derived again, for it has been silent for a while.
    fn rest(&mut self) {
        self.is_demoted = true;
        if let Some(session) = &mut self.session {
            session.rest();
        }
        if let FarFlow::Socket(_, Some(Codec::Sealed(codec))) = &mut self.far {
            codec.rest();
        }
    }
}

impl Relay {
    /// A relay for the listening `socket` of inbound `name`.
    ///
    /// # Errors
    /// What the system reports.
    pub(crate) fn new(
        name: Arc<str>,
        metrics: Arc<InboundMetrics>,
        socket: std::net::UdpSocket,
        ends: Ends,
        scratch: SharedScratch,
        exchange: Option<(Arc<Exchange>, usize)>,
    ) -> io::Result<Self> {
        let listener = Socket::from_std(socket)?;
        if listener.local_addr()?.ip().is_unspecified() {
            listener.report_destination()?;
        }
        let Ends { near, far, access } = ends;
        let udp = far.options();
        set_options(&listener, udp, near.is_tunnel())?;
        let idle = Tick::try_from(udp.idle.as_secs()).unwrap_or(Tick::MAX / 2);
        let flows = FlowTable::new(udp.flows, [idle, BRIEF_IDLE, idle]);
        let marks = Marks::new(udp);
        Ok(Self {
            name,
            metrics,
            listener,
            near,
            far,
            access,
            flows,
            marks,
            ready: Ready::default(),
            todo: Vec::new(),
            scratch,
            exchange,
            streams: Vec::new(),
            hasher: RandomState::new(),
            now: 0,
            at: rt::now(),
            unix_s: 0,
            tally: Tally::default(),
            seen: 0,
        })
    }

    /// Relays until `end` comes: a flow has no end of its own that could be waited for.
    pub(crate) async fn run(mut self, end: impl Future<Output = ()>) {
        let mut second = Box::pin(rt::sleep(TICK));
        let work = async {
            loop {
                let turn = poll_fn(|cx| {
                    while second.as_mut().poll(cx).is_ready() {
                        second.set(rt::sleep(TICK));
                        self.tick();
                    }
                    self.poll_turn(cx)
                });
                if let Err(error) = turn.await {
                    tracing::error!(inbound = &*self.name, %error, "listener for datagrams failed");
                    return;
                }
                rt::yield_now().await;
            }
        };
        rt::race(work, end).await;
    }

    /// One turn. Ready if there is more to do at once, after others have had theirs.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let scratch = self.scratch.clone();
        let scratch = &mut *scratch.borrow_mut();
        self.ready.register(cx.waker());
        (self.at, self.unix_s) = (rt::now(), rt::unix_time());
        let mut more = self.take_moved(cx, scratch);
        more |= self.receive_near(cx, scratch)?;
        let mut todo = std::mem::take(&mut self.todo);
        self.ready.take(&mut todo);
        for id in todo.drain(..) {
            more |= self.receive_far(id, scratch);
        }
        self.todo = todo;
        more |= self.ready.is_waiting();
        // Streams of this core do not wait for datagrams.
        let streams = rt::stream_calls();
        let is_quiet = std::mem::replace(&mut scratch.stream_calls, streams) == streams;
        let turn = Turn {
            datagrams: self.tally.up + self.tally.down,
            messages: scratch.batch.take_messages(),
            may_pause: is_quiet && !more,
        };
        let pause = scratch.gather.note(&turn, &mut self.seen, self.at);
        self.tally.report(&self.metrics);
        if more {
            return Poll::Ready(Ok(()));
        }
        if !pause.is_zero() {
            rt::pause(pause);
        }
        Poll::Pending
    }

    /// A second has passed.
    fn tick(&mut self) {
        self.now = self.now.wrapping_add(1);
        while let Some((key, _)) = self.flows.expire_one(self.now) {
            self.ended(key);
        }
        while let Some(id) = self.flows.oldest_of(NORMAL, REST_AFTER, self.now) {
            self.flows.demote(id, RESTING);
            if let Some(flow) = self.flows.get_mut(id) {
                flow.rest();
            }
        }
    }

    fn receive_near(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> io::Result<bool> {
        for _ in 0..BATCHES {
            let mut lost = 0;
            let Poll::Ready(result) = self.listener.poll_receive(cx, &mut scratch.batch, &mut lost) else {
                return Ok(false);
            };
            result?;
            self.metrics.datagrams.dropped.kernel.add(lost);
            for at in 0..scratch.batch.len() {
                let Some(datagram) = scratch.batch.get(at) else { break };
                if let Some(mut next) = next_together(&scratch.batch, at) {
                    self.near.expect(&mut next);
                }
                if let Err(reason) = self.take_from_near(&datagram, scratch) {
                    self.count(&reason);
                }
            }
            self.flush_far(scratch);
            self.flush_streams();
        }
        Ok(true)
    }

    /// Opens a client's datagram, finds or makes its flow, and queues it for the far side.
    fn take_from_near(&mut self, datagram: &Datagram, scratch: &mut Scratch) -> Result<(), Drop> {
        if self.access.as_ref().is_some_and(|access| !access.accepts(datagram.from.ip().to_canonical())) {
            return Err(Drop::Rule);
        }
        if let Near::Quic(_) = self.near {
            return self.take_quic(datagram, scratch);
        }
        let bytes = &mut scratch.batch.block[datagram.range()];
        let (mut key, opened) = self.near.open(datagram.from, bytes, self.unix_s)?;
        if let (Opened::Plain(target, _), Some(_)) = (&opened, &self.access) {
            key = self.sided(key, target.as_ref());
        }
        if let Opened::Plain(target, payload) = &opened
            && self.far.routes()
        {
            let at = datagram.start + payload.start..datagram.start + payload.end;
            key = self.route(key, target.as_ref(), at, scratch)?;
        }
        let bytes = &mut scratch.batch.block[datagram.range()];
        let found = self.flows.find(&key);
        let (target, payload, session) = match opened {
            Opened::Plain(target, payload) => (target, payload, None),
            Opened::Sealed(header) => {
                if let Some(flow) = found.and_then(|id| self.flows.get_mut(id)) {
                    let session = flow.session.as_mut().ok_or(Drop::Gone)?;
                    let packet = session.open(&header, bytes, self.unix_s)?;
                    // What has opened is the client's, wherever it comes from.
                    (flow.near, flow.near_local) = (datagram.from, datagram.to);
                    (Some(packet.target), packet.payload, None)
                } else if let Some(owner) = self.other_owner(&header) {
                    return self.hand_over(owner, header, datagram, bytes);
                } else {
                    let mut session = self.near.new_session(&header).ok_or(Drop::Gone)?;
                    let packet = session.open(&header, bytes, self.unix_s)?;
                    (Some(packet.target), packet.payload, Some(session))
                }
            }
        };
        let id = match found {
            Some(id) => id,
            None => self.begin(key, (datagram.from, datagram.to), session, target.as_ref(), scratch)?,
        };
        self.forward(id, target.as_ref(), &Payload::of(datagram, payload), scratch)
    }

    fn begin(
        &mut self,
        key: Key,
        (near, near_local): (SocketAddr, Option<IpAddr>),
        session: Option<Box<Session>>,
        target: Option<&Target>,
        scratch: &mut Scratch,
    ) -> Result<FlowId, Drop> {
        // What is queued names flows by their slot, and one of them may have to make room.
        self.flush_far(scratch);
        let target = target.or_else(|| self.near.fixed_target()).ok_or(Drop::Gone)?;
        let (is_past, is_quic) = (matches!(key, Key::Past(_)), matches!(key, Key::Pair(..)));
        let way = if is_past {
            let past = self.access.as_deref().and_then(Access::past);
            past.map(|far| Way { far: far.clone(), member: None })
        } else {
            self.far.pick()
        };
        let way = way.ok_or(Drop::Unresolved)?;
        let account = self.near.account(&key, session.as_deref());
        let user = account.map(|account| Lease::begin_flow(account, near.ip()).map(Box::new));
        let user = user.transpose().map_err(|_| Drop::Limited)?;
        let far = way.far.open(target, is_quic, self.now).map_err(Drop::System)?;
        let flow = Flow {
            near,
            near_local,
            session,
            way,
            far,
            waker: None,
            last: None,
            is_spread: false,
            is_dns: true,
            is_past,
            is_demoted: false,
            is_too_big_logged: false,
            pulse: Pulse::default(),
            waiting: Vec::new(),
            quic: None,
            user,
        };
        let (id, evicted) = self.flows.insert(key, flow, NORMAL, self.now);
        let metrics = &self.metrics.datagrams;
        metrics.flows.add(1);
        metrics.begun.add(1);
        if let Some((key, _)) = evicted {
            metrics.evicted.add(1);
            self.ended(key);
        }
        if let Some(flow) = self.flows.get_mut(id) {
            flow.waker = Some(self.ready.waker(id));
        }
        // Its first turn is where its waker reaches the event loop.
        self.ready.push(id);
        if let (Key::Session(session), Some((exchange, core))) = (key, &self.exchange) {
            exchange.claim(session, *core);
        }
        Ok(id)
    }

    /// Seals a client's payload for the far side and queues it.
    fn forward(
        &mut self,
        id: FlowId,
        target: Option<&Target>,
        payload: &Payload,
        scratch: &mut Scratch,
    ) -> Result<(), Drop> {
        match self.try_forward(id, target, payload, scratch) {
            Err(Drop::NoPlace) => {
                self.flush_far(scratch);
                self.try_forward(id, target, payload, scratch)
            }
            result => result,
        }
    }

    fn try_forward(
        &mut self,
        id: FlowId,
        target: Option<&Target>,
        payload: &Payload,
        scratch: &mut Scratch,
    ) -> Result<(), Drop> {
        let flow = self.flows.get_mut(id).ok_or(Drop::Gone)?;
        if matches!(flow.far, FarFlow::Stream(_)) {
            return self.forward_in_stream(id, target, payload, scratch);
        }
        let target = target.or_else(|| self.near.fixed_target()).ok_or(Drop::Gone)?;
        let way = (flow.waker.as_ref(), flow.is_past);
        let FarFlow::Socket(_, codec) = &mut flow.far else { return Err(Drop::Gone) };
        let to = match &flow.last {
            Some((last, addr)) if last == target => *addr,
            _ => match find(&flow.way.far, self.access.as_deref(), way, target, self.now)? {
                Known::Addr(addr) => {
                    flow.is_spread |= flow.last.is_some();
                    flow.is_dns &= target.port == DNS;
                    flow.last = Some((target.clone(), addr));
                    addr
                }
                Known::Pending if flow.waiting.len() < MAX_WAITING => {
                    let bytes = scratch.batch.block[payload.range.clone()].to_vec();
                    flow.waiting.push((target.clone(), bytes, payload.class));
                    return Ok(());
                }
                Known::Pending | Known::Nothing => return Err(Drop::Unresolved),
            },
        };
        let range = match codec {
            None => payload.range.clone(),
            Some(Codec::Quic(quic)) => quic.seal(&mut scratch.batch, payload)?,
            Some(Codec::Sealed(codec)) => {
                let room = codec.room(target);
                if payload.range.len() > room.max_payload {
                    return Err(Drop::TooBig);
                }
                let place = payload.place(&mut scratch.batch, &room).ok_or(Drop::NoPlace)?;
                let is_copy = place.start != payload.range.start;
                let sealed = codec.seal(&mut scratch.batch.block, place, target, self.unix_s, &mut OsRng)?;
                if is_copy {
                    scratch.batch.return_spare(sealed.end);
                }
                sealed
            }
        };
        let (key, start, len) = (id.index(), range.start, range.len());
        let is_sealed = codec.is_some();
        if is_sealed && self.marks.is_too_long(len, to) {
            flow.log_too_big(&self.name, to, len, &self.marks);
            return Err(Drop::TooBig);
        }
        flow.pass(users::Way::Up, payload.range.len(), self.at)?;
        scratch.gather.passed(&mut flow.pulse, !self.near.is_tunnel());
        let is_demoted = std::mem::take(&mut flow.is_demoted);
        let class = self.marks.class(payload.class, is_sealed);
        scratch.outgoing.push(Outgoing { key, to, from: None, class, start, len });
        self.tally.up += 1;
        self.tally.up_bytes += payload.range.len() as u64;
        self.touch(id, is_demoted);
        Ok(())
    }

    /// Sends what is queued for the far side, each flow's in order.
    fn flush_far(&mut self, scratch: &mut Scratch) {
        let Scratch { batch, outgoing, .. } = scratch;
        if !outgoing.is_sorted_by_key(|datagram| datagram.key) {
            outgoing.sort_by_key(|datagram| datagram.key);
        }
        for group in outgoing.chunk_by(|one, next| one.key == next.key) {
            let Some(id) = self.flows.at(group[0].key) else { continue };
            let Some(flow) = self.flows.get_mut(id) else { continue };
            let FarFlow::Socket(socket, codec) = &flow.far else { continue };
            let is_quic = matches!(codec, Some(Codec::Quic(_)));
            let sent = socket.send(batch, group);
            self.metrics.datagrams.dropped.note(&sent);
            if let Some((to, len)) = sent.too_big_to {
                flow.log_too_big(&self.name, to, len, &self.marks);
            }
            // With one target alone the flow is of no use; its client's next datagram begins another one.
            let is_only = !flow.is_spread
                && !is_quic
                && flow.last.as_ref().is_some_and(|(_, to)| sent.unreachable == Some(*to));
            if is_only && let Some((key, _)) = self.flows.remove(id) {
                self.metrics.datagrams.unreachable.add(1);
                self.ended(key);
            }
        }
        outgoing.clear();
        batch.reset_spare();
    }

    /// Takes what has come for a flow; true if there may be more.
    fn receive_far(&mut self, id: FlowId, scratch: &mut Scratch) -> bool {
        self.send_waiting(id, scratch);
        for _ in 0..BATCHES {
            let Some(flow) = self.flows.get_mut(id) else { return false };
            let Some(waker) = &flow.waker else { return false };
            let FarFlow::Socket(socket, _) = &flow.far else { return self.receive_stream(id, scratch) };
            let mut cx = Context::from_waker(waker);
            let mut lost = 0;
            let Poll::Ready(result) = socket.poll_receive(&mut cx, &mut scratch.batch, &mut lost) else {
                return false;
            };
            self.metrics.datagrams.dropped.kernel.add(lost);
            if let Err(error) = result {
                tracing::debug!(inbound = &*self.name, %error, "socket of a flow failed");
                if let Some((key, _)) = self.flows.remove(id) {
                    self.ended(key);
                }
                return false;
            }
            self.answer(id, scratch);
        }
        self.ready.push(id);
        true
    }

    /// Passes a batch from a flow's socket on to its client.
    fn answer(&mut self, id: FlowId, scratch: &mut Scratch) {
        for at in 0..scratch.batch.len() {
            let Some(datagram) = scratch.batch.get(at) else { break };
            if let Some(mut next) = next_together(&scratch.batch, at)
                && let Some(flow) = self.flows.get_mut(id)
                && let FarFlow::Socket(_, Some(Codec::Sealed(codec))) = &mut flow.far
            {
                codec.expect(&mut next);
            }
            let result = match self.take_from_far(id, &datagram, scratch) {
                Err(Drop::NoPlace) => {
                    self.flush_near(scratch);
                    self.take_from_far(id, &datagram, scratch)
                }
                result => result,
            };
            if let Err(reason) = result {
                self.count(&reason);
            }
        }
        self.flush_near(scratch);
        self.answered(id);
    }

    /// Something has come for a flow.
    fn answered(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        if let Some(member) = &flow.way.member {
            member.note_datagram();
        }
        if flow.is_dns {
            flow.is_demoted = true;
            self.flows.set_class(id, BRIEF, self.now);
        } else {
            let is_demoted = std::mem::take(&mut flow.is_demoted);
            self.touch(id, is_demoted);
        }
    }

    /// A datagram of this flow has passed.
    fn touch(&mut self, id: FlowId, is_demoted: bool) {
        if is_demoted {
            self.flows.set_class(id, NORMAL, self.now);
        } else {
            self.flows.touch(id, self.now);
        }
    }

    /// Opens a datagram from the far side, seals it for the client and queues it.
    fn take_from_far(&mut self, id: FlowId, datagram: &Datagram, scratch: &mut Scratch) -> Result<(), Drop> {
        let flow = self.flows.get_mut(id).ok_or(Drop::Gone)?;
        let batch = &mut scratch.batch;
        let FarFlow::Socket(_, codec) = &mut flow.far else { return Err(Drop::Gone) };
        if matches!(self.near, Near::Quic(_)) || matches!(codec, Some(Codec::Quic(_))) {
            quic::check_source(flow.last.as_ref(), datagram.from)?;
        }
        let whole = 0..datagram.end - datagram.start;
        let owned;
        let (source, payload) = match codec {
            None => {
                owned = Target::from(datagram.from);
                (&owned, whole)
            }
            Some(Codec::Quic(quic)) => {
                quic.answered();
                (quic.target(), whole)
            }
            Some(Codec::Sealed(codec)) => {
                let bytes = &mut batch.block[datagram.range()];
                let packet = codec.open(bytes, self.unix_s, &mut NoFilter)?;
                owned = packet.target;
                (&owned, packet.payload)
            }
        };
        let payload = Payload::of(datagram, payload);
        let session = flow.session.as_deref_mut();
        let room = self.near.room(session.as_deref(), source);
        if payload.range.len() > room.max_payload {
            return Err(Drop::TooBig);
        }
        let place = payload.place(batch, &room).ok_or(Drop::NoPlace)?;
        let is_copy = place.start != payload.range.start;
        let sealed = self.near.seal(session, &mut batch.block, place, source, self.unix_s)?;
        if is_copy {
            batch.return_spare(sealed.end);
        }
        self.queue_near(id, sealed, payload.range.len(), datagram.class, scratch)
    }

    /// Queues what is `sealed` for a flow's client, of which `len` bytes are payload.
    fn queue_near(
        &mut self,
        id: FlowId,
        sealed: Range<usize>,
        len: usize,
        class: u8,
        scratch: &mut Scratch,
    ) -> Result<(), Drop> {
        let flow = self.flows.get_mut(id).ok_or(Drop::Gone)?;
        let to = flow.near;
        let is_sealed = self.near.is_tunnel();
        if is_sealed && self.marks.is_too_long(sealed.len(), to) {
            flow.log_too_big(&self.name, to, sealed.len(), &self.marks);
            return Err(Drop::TooBig);
        }
        flow.pass(users::Way::Down, len, self.at)?;
        scratch.gather.passed(&mut flow.pulse, matches!(flow.far, FarFlow::Socket(_, None)));
        scratch.outgoing.push(Outgoing {
            key: id.index(),
            to,
            from: flow.near_local,
            class: self.marks.class(class, is_sealed),
            start: sealed.start,
            len: sealed.len(),
        });
        self.tally.down += 1;
        self.tally.down_bytes += len as u64;
        Ok(())
    }

    /// Sends what is queued for clients.
    fn flush_near(&mut self, scratch: &mut Scratch) {
        let Scratch { batch, outgoing, .. } = scratch;
        if !outgoing.is_empty() {
            let sent = self.listener.send(batch, outgoing);
            self.metrics.datagrams.dropped.note(&sent);
            if let (Some((to, len)), Some(first)) = (sent.too_big_to, outgoing.first())
                && let Some(id) = self.flows.at(first.key)
                && let Some(flow) = self.flows.get_mut(id)
            {
                flow.log_too_big(&self.name, to, len, &self.marks);
            }
        }
        outgoing.clear();
        batch.reset_spare();
    }

    /// Sends what waited for the address of a name, if there is any.
    fn send_waiting(&mut self, id: FlowId, scratch: &mut Scratch) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        if flow.waiting.is_empty() {
            return;
        }
        for (target, bytes, class) in std::mem::take(&mut flow.waiting) {
            let result = match place_copy(scratch, &bytes, class) {
                Some(payload) => self.forward_waiting(id, &target, &payload, scratch),
                None => Err(Drop::TooBig),
            };
            if let Err(reason) = result {
                self.count(&reason);
            }
            self.flush_far(scratch);
        }
        self.flush_streams();
    }

    /// The rules may by now send what has waited another way than its flow's.
    fn forward_waiting(
        &mut self,
        id: FlowId,
        target: &Target,
        payload: &Payload,
        scratch: &mut Scratch,
    ) -> Result<(), Drop> {
        let flow = self.flows.get_mut(id).ok_or(Drop::Gone)?;
        let (near, is_past) = ((flow.near, flow.near_local), flow.is_past);
        let (true, false) = (self.access.is_some(), is_past) else {
            return self.forward(id, Some(target), payload, scratch);
        };
        match self.sided(Key::Peer(near.0), Some(target)) {
            key @ Key::Past(_) => {
                let id = match self.flows.find(&key) {
                    Some(id) => id,
                    None => self.begin(key, near, None, Some(target), scratch)?,
                };
                self.forward(id, Some(target), payload, scratch)
            }
            Key::Peer(_) | Key::Session(_) | Key::Pair(..) | Key::Hop(..) => {
                self.forward(id, Some(target), payload, scratch)
            }
        }
    }

    /// The flow of a client that the rules give `target`: `key`'s own, as long as they cannot tell.
    fn sided(&mut self, key: Key, target: Option<&Target>) -> Key {
        let (Key::Peer(from) | Key::Hop(from, _), Some(access), Some(target)) =
            (key, &self.access, target.or_else(|| self.near.fixed_target()))
        else {
            return key;
        };
        for key in [key, Key::Past(from)] {
            let flow = self.flows.find(&key).and_then(|id| self.flows.get_mut(id));
            if flow.and_then(|flow| flow.last.as_ref()).is_some_and(|(last, _)| last == target) {
                return key;
            }
        }
        let address = |far: &Far| match far.find(target, None, self.now) {
            Known::Addr(addr) => Some(addr.ip()),
            Known::Pending | Known::Nothing => None,
        };
        match access.side(target, address) {
            Some(Side::Past) => Key::Past(from),
            Some(Side::Through) | None => key,
        }
    }

    /// Which other core has the session of `header`.
    fn other_owner(&self, header: &Header) -> Option<usize> {
        let (exchange, core) = self.exchange.as_ref()?;
        exchange.owner(header.session_id()).filter(|owner| owner != core)
    }

    fn hand_over(&self, owner: usize, header: Header, datagram: &Datagram, bytes: &[u8]) -> Result<(), Drop> {
        let (exchange, _) = self.exchange.as_ref().ok_or(Drop::Gone)?;
        let Datagram { from, to, class, .. } = *datagram;
        let moved = Moved { header, bytes: bytes.to_vec(), from, to, class };
        if exchange.post(owner, moved) { Ok(()) } else { Err(Drop::Mailbox) }
    }

    /// Takes datagrams that reached another core; true if there may be more.
    fn take_moved(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> bool {
        let Some((exchange, core)) = self.exchange.clone() else { return false };
        for _ in 0..MAX_MOVED {
            let Some(moved) = exchange.take(core, cx.waker()) else { return false };
            if let Err(reason) = self.take_one_moved(moved, scratch) {
                self.count(&reason);
            }
            self.flush_far(scratch);
            self.flush_streams();
        }
        true
    }

    fn take_one_moved(&mut self, moved: Moved, scratch: &mut Scratch) -> Result<(), Drop> {
        let id = self.flows.find(&moved.key()).ok_or(Drop::Gone)?;
        let whole = place_copy(scratch, &moved.bytes, moved.class).ok_or(Drop::TooBig)?;
        let flow = self.flows.get_mut(id).ok_or(Drop::Gone)?;
        let session = flow.session.as_mut().ok_or(Drop::Gone)?;
        let packet =
            session.open(&moved.header, &mut scratch.batch.block[whole.range.clone()], self.unix_s)?;
        (flow.near, flow.near_local) = (moved.from, moved.to);
        let payload = Payload {
            range: whole.range.start + packet.payload.start..whole.range.start + packet.payload.end,
            before: whole.before + packet.payload.start,
            after: whole.after + moved.bytes.len() - packet.payload.end,
            class: moved.class,
        };
        self.forward(id, Some(&packet.target), &payload, scratch)
    }

    /// A flow is gone.
    fn ended(&self, key: Key) {
        self.metrics.datagrams.flows.add(-1);
        if let (Key::Session(session), Some((exchange, core))) = (key, &self.exchange) {
            exchange.release(session, *core);
        }
    }

    fn count(&self, reason: &Drop) {
        reason.count(&self.name, &self.metrics.datagrams.dropped);
    }
}

impl std::ops::Drop for Relay {
    fn drop(&mut self) {
        let flows = i64::try_from(self.flows.len()).unwrap_or(0);
        self.metrics.datagrams.flows.add(-flows);
        self.flows.clear();
    }
}

/// Where a flow's datagram for `target` has to be sent over `far`, if the rules allow it.
fn find(
    far: &Far,
    access: Option<&Access>,
    (waker, is_past): (Option<&Waker>, bool),
    target: &Target,
    now: Tick,
) -> Result<Known, Drop> {
    if let Some(access) = access
        && !is_past
    {
        let mut known = None;
        let address = |past: &Far| match known.insert(past.find(target, waker, now)) {
            Known::Addr(addr) => Some(addr.ip()),
            Known::Pending | Known::Nothing => None,
        };
        if access.side(target, address).is_none() && known == Some(Known::Pending) {
            return Ok(Known::Pending);
        }
    }
    let known = far.find(target, waker, now);
    match (access, known) {
        (Some(access), Known::Addr(addr)) if !access.reaches(target, addr.ip()) => Err(Drop::Rule),
        _ => Ok(known),
    }
}

/// Copies bytes from elsewhere into the batch, with room around them.
fn place_copy(scratch: &mut Scratch, bytes: &[u8], class: u8) -> Option<Payload> {
    let place = scratch.batch.take_spare(HEADROOM + bytes.len() + TAILROOM)?;
    let start = place.start + HEADROOM;
    let range = start..start + bytes.len();
    scratch.batch.block[range.clone()].copy_from_slice(bytes);
    Some(Payload { range, before: HEADROOM, after: TAILROOM, class })
}
