//! Datagrams that a client sends as frames of a stream. Each outbound that they take has one flow: a socket towards all
//! targets, or a stream to the next server. The protocol of the stream says what a frame holds ([`FrameFormat`]).
//!
//! ```text
//!   stream ─ one read ─ frames ─────────────────────────→ grouped sends ─→ targets
//!          ←─ one write ─ frames sealed ←─ one batch of answers ←───────── (any source: full cone)
//! ```

pub(crate) mod serve;

pub(crate) use serve::{has_place, serve};

use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use adit_model::{Tag, Udp};
use adit_net::rt::{self, Pool};
use adit_net::udp::Outgoing;
use adit_proto::wire::{Host, Opened, Target, WireError};

use crate::connections::record::{EndReason, Side};
use crate::connections::table::{ConnectionEntry, ConnectionTick};
use crate::counters::InboundMetrics;
use crate::datagram::{
    Alias, Aliases, BATCHES, DatagramDecision, DatagramRouter, DropReason, FlowClass, FlowLookup,
    FlowTransport, Frames, MAX_WAITING, Marks, OutboundId, PacketFlow, RouteQuery, Scratch, SharedScratch,
    SniffCache, SniffedDatagrams, Tally,
};
use crate::relay::Endpoint;
use crate::relay::payload::{Received, poll_recv};
use crate::users::{Lease, UserDirection};

/// Fake addresses of one client that have flows of their own.
const MAX_ALIASES: usize = 64;
/// Targets of one client whose protocol is kept, in each half of the table.
const SHOWN: usize = 128;

/// Splits a frame into the target of its datagram and the offset of the payload.
type Parse = fn(&[u8]) -> Result<(Target, usize), WireError>;

/// The frames of a protocol: each holds an address and the payload of one datagram.
#[derive(Debug)]
pub(crate) struct FrameFormat {
    /// Longest address and payload of a frame together, in bytes.
    pub(crate) max_len: usize,
    /// Reads a client's frame.
    pub(crate) parse: Parse,
    /// Length of the source in front of an answer, in bytes.
    pub(crate) answer_len: fn(SocketAddr) -> usize,
    /// Writes the source in front of an answer.
    pub(crate) emit_answer: fn(SocketAddr, &mut [u8]) -> usize,
}

/// One client's datagrams, for as long as its stream lasts.
struct Association {
    format: &'static FrameFormat,
    name: Tag,
    metrics: Arc<InboundMetrics>,
    pool: Pool,
    routes: Rc<dyn DatagramRouter>,
    /// The changes of the routes that `last` knows of.
    changes: u32,
    peer: SocketAddr,
    marks: Marks,
    /// Ticks of silence after which it ends.
    idle: ConnectionTick,
    scratch: SharedScratch,
    /// One for each outbound that datagrams have taken, and for each fake address.
    flows: Vec<Flow>,
    /// The names behind fake addresses.
    aliases: Aliases,
    /// Answers that wait for the stream.
    frames: Frames,
    /// The last target and its way: most of the time also the next one's.
    last: Option<(Target, DatagramDecision)>,
    shown: SniffCache,
    /// Datagrams whose way or address is being looked up.
    waiting: Vec<(Target, Vec<u8>)>,
    has_begun: bool,
    /// Lease of its user, if there are users.
    user: Option<Rc<Lease>>,
    tally: Tally,
    tick: ConnectionTick,
    at: Instant,
    unix_s: u64,
}

/// The association's datagrams over one outbound.
struct Flow {
    via: OutboundId,
    /// The fake address that its answers come from.
    alias: Option<Rc<Alias>>,
    side: PacketFlow,
    /// The last target, and where its datagrams are sent.
    last: Option<(Target, SocketAddr)>,
}

/// The parts of a turn that datagrams need on their way.
struct Turn<'a> {
    scratch: &'a mut Scratch,
    waker: &'a Waker,
}

impl Association {
    /// An association of the client at `peer`.
    fn new(
        format: &'static FrameFormat,
        name: Tag,
        metrics: Arc<InboundMetrics>,
        pool: Pool,
        scratch: SharedScratch,
        routes: Rc<dyn DatagramRouter>,
        udp: &Udp,
        peer: SocketAddr,
    ) -> Self {
        metrics.datagrams.flows.add(1);
        metrics.datagrams.begun.add(1);
        Self {
            format,
            changes: routes.changes(),
            name,
            metrics,
            pool,
            routes,
            peer,
            marks: Marks::new(udp),
            idle: ConnectionTick::try_from(udp.idle.as_secs()).unwrap_or(ConnectionTick::MAX / 2),
            scratch,
            flows: Vec::new(),
            aliases: Aliases::default(),
            frames: Frames::new(format.max_len),
            last: None,
            shown: SniffCache::new(SHOWN),
            waiting: Vec::new(),
            has_begun: false,
            user: None,
            tally: Tally::default(),
            tick: 0,
            at: rt::now(),
            unix_s: 0,
        }
    }

    /// Passes datagrams on until the stream ends, or nothing has moved for the time that flows have.
    async fn run(mut self, near: &mut Endpoint, entry: &ConnectionEntry) -> EndReason {
        // It has no end of its own that could be waited for.
        entry.set_resting(true);
        entry.set_wants_tick(true);
        entry.touch();
        self.user = entry.lease();
        poll_fn(|cx| match self.poll_turn(cx, near, entry) {
            Ok(false) => Poll::Pending,
            Ok(true) => {
                // There is more to do at once, after others have had their turn.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Err(reason) => Poll::Ready(reason),
        })
        .await
    }

    /// One turn; true if there may be more to do. An error is the end.
    fn poll_turn(
        &mut self,
        cx: &mut Context<'_>,
        near: &mut Endpoint,
        entry: &ConnectionEntry,
    ) -> Result<bool, EndReason> {
        entry.set_waker(cx.waker());
        if let Some(reason) = entry.over() {
            return Err(reason);
        }
        if entry.quiet_for() > self.idle {
            return Err(EndReason::Idle);
        }
        (self.tick, self.at, self.unix_s) = (entry.tick(), rt::now(), rt::unix_time());
        let scratch = self.scratch.clone();
        let scratch = &mut *scratch.borrow_mut();
        self.send_waiting(cx, scratch);
        let mut more = false;
        for _ in 0..BATCHES {
            let (up, down) = (self.take_frames(cx, near, scratch)?, self.take_answers(cx, near, scratch)?);
            more = up || down;
            if !more {
                break;
            }
            entry.touch();
        }
        let (up, down) = (self.tally.up_bytes, self.tally.down_bytes);
        if up + down > 0 {
            entry.add_moved(up, down);
        }
        self.tally.report(&self.metrics);
        Ok(more)
    }

    /// Takes what one read brings from the client; true if it brought something.
    fn take_frames(
        &mut self,
        cx: &mut Context<'_>,
        near: &mut Endpoint,
        scratch: &mut Scratch,
    ) -> Result<bool, EndReason> {
        let received = if self.has_begun {
            poll_recv(near, Side::Near, &self.pool, cx)
        } else {
            self.poll_first(cx, near)
        };
        let Poll::Ready(received) = received else { return Ok(false) };
        let received = received?;
        let block = received.chunk.buf.block();
        let mut result = Ok(());
        for range in &received.chunk.out {
            match (self.format.parse)(&block[range.clone()]) {
                Ok((target, at)) => {
                    self.forward(&target, block, range.start + at..range.end, cx.waker(), scratch);
                }
                Err(error) => {
                    result = Err(EndReason::Wire(error));
                    break;
                }
            }
        }
        self.flush_targets(block, cx, scratch);
        result?;
        if received.ended { Err(EndReason::Finished) } else { Ok(true) }
    }

    /// Handles the payload that came with the request, which is answered in a frame of its own.
    fn poll_first(&mut self, cx: &mut Context<'_>, near: &mut Endpoint) -> Poll<Result<Received, EndReason>> {
        let mut chunk = ready!(rt::poll_chunk(&self.pool, cx));
        self.has_begun = true;
        let Some(stack) = near.stack.as_deref_mut() else { return Poll::Pending };
        self.frames.push_pending(stack, &self.pool, self.at).map_err(EndReason::Wire)?;
        self.flush_client(cx, near)?;
        let Some(stack) = near.stack.as_deref_mut() else { return Poll::Pending };
        chunk.buf.extend(&near.tail);
        let ended = loop {
            match stack.open(&mut chunk.buf, self.at).map_err(EndReason::Wire)? {
                Opened::NeedMore(_) => break false,
                Opened::End => break true,
                Opened::Payload(range) => chunk.push_out(range),
            }
        };
        near.tail = chunk.buf.unread().to_vec();
        Poll::Ready(Ok(Received { chunk, ended }))
    }

    /// Queues a client's payload, which lies in `block`, for its target.
    fn forward(
        &mut self,
        target: &Target,
        block: &[u8],
        payload: Range<usize>,
        waker: &Waker,
        scratch: &mut Scratch,
    ) {
        let len = payload.len();
        if self.user.as_ref().is_some_and(|user| !user.grant_whole(UserDirection::Up, len, self.at)) {
            return self.count(&DropReason::Limited);
        }
        let mut turn = Turn { scratch, waker };
        let mut result = self.try_forward(target, block, payload.clone(), &mut turn);
        if let Err(DropReason::NoPlace) = result {
            self.flush_targets(block, &mut Context::from_waker(waker), turn.scratch);
            result = self.try_forward(target, block, payload, &mut turn);
        }
        if let Some(user) = &self.user {
            user.settle(UserDirection::Up, len, if matches!(result, Ok(true)) { len } else { 0 });
        }
        match result {
            Ok(true) => {
                self.tally.up += 1;
                self.tally.up_bytes += len as u64;
            }
            Ok(false) => {}
            Err(reason) => self.count(&reason),
        }
    }

    /// True if it is on its way, false if it waits for the address of a name.
    fn try_forward(
        &mut self,
        target: &Target,
        block: &[u8],
        payload: Range<usize>,
        turn: &mut Turn<'_>,
    ) -> Result<bool, DropReason> {
        let asked = target;
        let alias = match self.routes.fake() {
            Some(fake) => self.aliases.find(fake, target)?,
            None => None,
        };
        let renamed = self.routes.renamed(target);
        let target = alias.as_ref().map(|alias| &*alias.name).or(renamed.as_ref()).unwrap_or(target);
        let (via, only) = match self.decide(target, &block[payload.clone()], turn.waker) {
            DatagramDecision::Through(via) => (via, None),
            DatagramDecision::At(via, ip) => (via, Some(ip)),
            DatagramDecision::Reject | DatagramDecision::Drop => return Err(DropReason::Rule),
            DatagramDecision::Unresolved => return Err(DropReason::Unresolved),
            DatagramDecision::Pending => return self.wait(asked, &block[payload]),
        };
        let at = self.flow(via, &alias, target, block, turn)?;
        let flow = &mut self.flows[at];
        if let FlowTransport::Stream(stream) = &mut flow.side.transport {
            stream.push(target, &block[payload], self.tick, self.at)?;
            stream.flush_if_long(&mut Context::from_waker(turn.waker), self.tick);
            return Ok(true);
        }
        let to = match &flow.last {
            Some((last, addr)) if last == target => *addr,
            _ => match flow.side.outbound.find(target, only, Some(turn.waker), self.tick) {
                FlowLookup::Addr(addr) => {
                    flow.last = Some((target.clone(), addr));
                    addr
                }
                FlowLookup::Pending => return self.wait(asked, &block[payload]),
                FlowLookup::Nothing => return Err(DropReason::Unresolved),
                FlowLookup::Private(kind) => return Err(DropReason::Private(kind)),
            },
        };
        let FlowTransport::Socket(_, codec) = &mut flow.side.transport else { return Err(DropReason::Gone) };
        let Scratch { batch, outgoing } = &mut *turn.scratch;
        let is_sealed = codec.is_some();
        let range = match codec {
            None => payload,
            Some(codec) => {
                let room = codec.room(target, &block[payload.clone()]);
                if payload.len() > room.max_payload {
                    return Err(DropReason::TooBig);
                }
                let len = room.head + payload.len() + room.tail;
                let place = batch.take_spare(len).ok_or(DropReason::NoPlace)?;
                let range = place.start + room.head..place.start + room.head + payload.len();
                batch.block[range.clone()].copy_from_slice(&block[payload]);
                codec.seal(&mut batch.block, range, target, self.unix_s)?
            }
        };
        let (start, len) = (range.start, range.len());
        if is_sealed && self.marks.is_too_long(len, to) {
            return Err(DropReason::TooBig);
        }
        // A stream carries no marks of congestion.
        let class = self.marks.class(0, is_sealed);
        let key = u32::try_from(at).unwrap_or(u32::MAX);
        outgoing.push(Outgoing { key, to, from: None, class, start, len });
        Ok(true)
    }

    /// The way to `target`.
    fn decide(&mut self, target: &Target, payload: &[u8], waker: &Waker) -> DatagramDecision {
        if std::mem::replace(&mut self.changes, self.routes.changes()) != self.routes.changes() {
            self.last = None;
        }
        if let Some(via) = self.routes.fixed() {
            return DatagramDecision::Through(via);
        }
        if let Some((last, decision)) = &self.last
            && last == target
        {
            self.shown.touch(target, self.tick);
            return *decision;
        }
        let wants_name = self.routes.seeks_name(self.peer, target);
        let SniffedDatagrams { protocol, name } = match wants_name || self.routes.needs_protocol() {
            // A name that lies behind the first datagram is not waited for.
            true => self.shown.look(target, payload, wants_name, self.tick).unwrap_or_default(),
            false => SniffedDatagrams::default(),
        };
        let name = name.as_deref();
        let user = self.user.as_ref().map(|lease| lease.account());
        let question =
            RouteQuery { source: self.peer, user, target, protocol, name, class: 0, to: (None, None) };
        let decision = self.routes.decide(&question, waker, self.tick, &mut None);
        if !matches!(decision, DatagramDecision::Pending | DatagramDecision::Unresolved) {
            self.last = Some((target.clone(), decision));
        }
        decision
    }

    /// The number of the flow over an outbound, which is made for its first datagram.
    fn flow(
        &mut self,
        via: OutboundId,
        alias: &Option<Rc<Alias>>,
        target: &Target,
        block: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<usize, DropReason> {
        let key = |alias: &Option<Rc<Alias>>| alias.as_ref().map(|alias| alias.key);
        let is_same = |flow: &Flow| flow.via == via && key(&flow.alias) == key(alias);
        if let Some(at) = self.flows.iter().position(is_same) {
            return Ok(at);
        }
        if alias.is_some() && self.flows.iter().filter(|flow| flow.alias.is_some()).count() >= MAX_ALIASES {
            return Err(DropReason::Backlog);
        }
        self.flush_targets(block, &mut Context::from_waker(turn.waker), turn.scratch);
        let outbound = self.routes.outbound(via).ok_or(DropReason::Unresolved)?;
        let side = outbound.begin(target, FlowClass::Common, self.tick)?;
        self.flows.push(Flow { via, alias: alias.clone(), side, last: None });
        Ok(self.flows.len() - 1)
    }

    /// Keeps a datagram until its way or address is known; never true.
    fn wait(&mut self, target: &Target, payload: &[u8]) -> Result<bool, DropReason> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(DropReason::Unresolved);
        }
        self.waiting.push((target.clone(), payload.to_vec()));
        Ok(false)
    }

    /// Sends the queue. An ICMP error about a target costs the datagrams for it, and nothing else.
    fn flush_targets(&mut self, block: &[u8], cx: &mut Context<'_>, scratch: &mut Scratch) {
        let Scratch { batch, outgoing } = scratch;
        if self.flows.len() > 1 {
            outgoing.sort_by_key(|datagram| datagram.key);
        }
        for group in outgoing.chunk_by(|one, next| one.key == next.key) {
            let flow = usize::try_from(group[0].key).ok().and_then(|at| self.flows.get(at));
            let Some(FlowTransport::Socket(socket, codec)) = flow.map(|flow| &flow.side.transport) else {
                continue;
            };
            let sent = match codec {
                None => socket.send_from(batch, block, group),
                Some(_) => socket.send(batch, group),
            };
            self.metrics.datagrams.dropped.note(&sent);
        }
        for flow in &mut self.flows {
            if let FlowTransport::Stream(stream) = &mut flow.side.transport {
                stream.flush(cx, self.tick);
            }
        }
        outgoing.clear();
        batch.reset_spare();
    }

    /// Sends what waited for the address of a name, if there is any.
    fn send_waiting(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        for (target, bytes) in std::mem::take(&mut self.waiting) {
            self.forward(&target, &bytes, 0..bytes.len(), cx.waker(), scratch);
            self.flush_targets(&bytes, cx, scratch);
        }
    }

    /// Takes one batch of answers and sends them to the client; true if there were some. While the client reads
    /// nothing, answers wait in the system, which counts those that it has no room for.
    fn take_answers(
        &mut self,
        cx: &mut Context<'_>,
        near: &mut Endpoint,
        scratch: &mut Scratch,
    ) -> Result<bool, EndReason> {
        if self.poll_flush_client(cx, near)?.is_pending() {
            return Ok(false);
        }
        let mut took = false;
        for at in 0..self.flows.len() {
            took |= self.take_answers_of(at, cx, near, scratch)?;
        }
        self.flush_client(cx, near)?;
        Ok(took)
    }

    /// The answers of one flow; true if there were some.
    fn take_answers_of(
        &mut self,
        at: usize,
        cx: &mut Context<'_>,
        near: &mut Endpoint,
        scratch: &mut Scratch,
    ) -> Result<bool, EndReason> {
        let FlowTransport::Socket(socket, _) = &self.flows[at].side.transport else {
            return self.take_stream_answers(at, cx, near);
        };
        let mut lost = 0;
        let received = socket.poll_receive(cx, &mut scratch.batch, &mut lost);
        self.metrics.datagrams.dropped.kernel.add(lost);
        match received {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(EndReason::Socket(Side::Far, error.kind())),
            Poll::Ready(Ok(())) => {
                self.answer(at, cx, near, scratch)?;
                Ok(true)
            }
        }
    }

    /// Sends what the stream takes; the rest goes when it takes more.
    fn flush_client(&mut self, cx: &mut Context<'_>, near: &Endpoint) -> Result<(), EndReason> {
        self.poll_flush_client(cx, near).map(|_| ())
    }

    fn poll_flush_client(&mut self, cx: &mut Context<'_>, near: &Endpoint) -> Result<Poll<()>, EndReason> {
        match self.frames.poll_flush(&near.stream, &self.pool, cx) {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Ok(())) => Ok(Poll::Ready(())),
            Poll::Ready(Err(error)) => Err(EndReason::Socket(Side::Near, error.kind())),
        }
    }

    /// Seals a batch of answers.
    fn answer(
        &mut self,
        flow: usize,
        cx: &mut Context<'_>,
        near: &mut Endpoint,
        scratch: &mut Scratch,
    ) -> Result<(), EndReason> {
        if let Some(witness) = &self.flows[flow].side.witness {
            witness.answered();
        }
        for at in 0..scratch.batch.len() {
            let Some(datagram) = scratch.batch.get(at) else { break };
            let FlowTransport::Socket(_, codec) = &mut self.flows[flow].side.transport else { break };
            let opened = match codec {
                None => Ok((datagram.from, datagram.range())),
                Some(codec) => {
                    let bytes = &mut scratch.batch.block[datagram.range()];
                    codec.open(bytes, self.unix_s).and_then(|(source, Range { start, end })| {
                        Ok((address(&source)?, datagram.start + start..datagram.start + end))
                    })
                }
            };
            let result = opened
                .map_err(DropReason::from)
                .and_then(|(source, range)| self.push(flow, near, source, &scratch.batch.block[range]));
            if let Err(reason) = result {
                self.count(&reason);
            }
            if self.frames.is_long() {
                self.flush_client(cx, near)?;
            }
        }
        Ok(())
    }

    fn take_stream_answers(
        &mut self,
        flow: usize,
        cx: &mut Context<'_>,
        near: &mut Endpoint,
    ) -> Result<bool, EndReason> {
        let FlowTransport::Stream(stream) = &mut self.flows[flow].side.transport else { return Ok(false) };
        if stream.poll_flush(cx, self.tick) == Poll::Ready(Err(())) {
            return Ok(false);
        }
        let Poll::Ready(Ok(received)) = stream.poll_receive(cx, self.tick) else { return Ok(false) };
        for range in &received.chunk.out {
            let frame = &received.chunk.buf.block()[range.clone()];
            let FlowTransport::Stream(stream) = &self.flows[flow].side.transport else { break };
            let parsed = stream.parse(frame).map_err(DropReason::from);
            if let Err(reason) = parsed.and_then(|(source, at)| self.push(flow, near, source, &frame[at..])) {
                self.count(&reason);
            }
            if self.frames.is_long() {
                self.flush_client(cx, near)?;
            }
        }
        if let (true, FlowTransport::Stream(stream)) = (received.ended, &mut self.flows[flow].side.transport)
        {
            stream.end(self.tick);
        }
        Ok(true)
    }

    /// Seals an answer of a flow for the client.
    fn push(
        &mut self,
        flow: usize,
        near: &mut Endpoint,
        source: SocketAddr,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        let alias = self.flows[flow].alias.as_ref().filter(|alias| alias.is_of(&Target::from(source)));
        let source = match alias {
            Some(alias) => address(&alias.shown)?,
            None => source,
        };
        let stack = near.stack.as_deref_mut().ok_or(DropReason::Gone)?;
        let FrameFormat { answer_len, emit_answer, .. } = self.format;
        let emit = |out: &mut [u8]| {
            emit_answer(source, out);
        };
        let len = payload.len();
        if self.user.as_ref().is_some_and(|user| !user.grant_whole(UserDirection::Down, len, self.at)) {
            return Err(DropReason::Limited);
        }
        let pushed = self.frames.push(stack, &self.pool, self.at, answer_len(source), emit, payload);
        if let Some(user) = &self.user {
            user.settle(UserDirection::Down, len, if pushed.is_ok() { len } else { 0 });
        }
        pushed?;
        self.tally.down += 1;
        self.tally.down_bytes += payload.len() as u64;
        Ok(())
    }

    fn count(&self, reason: &DropReason) {
        reason.count(&self.name, &self.metrics.datagrams.dropped);
        if let DropReason::Private(kind) = reason {
            self.routes.note_private(*kind);
        }
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        self.metrics.datagrams.flows.add(-1);
        self.tally.report(&self.metrics);
    }
}

/// The source of an answer has an address: the format knows nothing else.
fn address(source: &Target) -> Result<SocketAddr, WireError> {
    match &source.host {
        Host::Ip(ip) => Ok(SocketAddr::new(*ip, source.port)),
        Host::Name(_) => Err(WireError::Unsupported { what: "name as the source of an answer", got: 0 }),
    }
}
