//! The datagrams of one client's stream (Snell's command 6): a socket of its own towards all targets, or a stream.
//!
//! ```text
//!   stream ─ one read ─ frames ─────────────────────────→ grouped sends ─→ targets
//!          ←─ one write ─ frames sealed ←─ one batch of answers ←───────── (any source: full cone)
//! ```

use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use adit_net::rt::{self, Pool};
use adit_net::udp::Outgoing;
use adit_proto::shadowsocks::NoFilter;
use adit_proto::snell::udp;
use adit_proto::wire::{Host, Opened, Target, WireError};

use super::drops::{Drop, Tally};
use super::far::{Codec, Far, FarFlow, Known};
use super::frames::Frames;
use super::marks::Marks;
use super::relay::{BATCHES, MAX_WAITING};
use super::{Scratch, SharedScratch};
use crate::access::Access;
use crate::conns::{Entry, Tick};
use crate::io::{Received, poll_recv};
use crate::metrics::InboundMetrics;
use crate::record::{EndReason, Side};
use crate::relay::Endpoint;
use crate::rng::OsRng;
use crate::users::{Lease, Way};

/// One client's datagrams, for as long as its stream lasts.
pub(crate) struct Association {
    name: Arc<str>,
    metrics: Arc<InboundMetrics>,
    pool: Pool,
    far: Rc<Far>,
    access: Option<Rc<Access>>,
    marks: Marks,
    /// Ticks of silence after which it ends.
    idle: Tick,
    scratch: SharedScratch,
    /// Made for the first datagram.
    flow: Option<FarFlow>,
    /// Answers that wait for the stream.
    frames: Frames,
    /// The last target, and where its datagrams are sent: most of the time also the next one's.
    last: Option<(Target, SocketAddr)>,
    /// Datagrams for names that are being looked up.
    waiting: Vec<(Target, Vec<u8>)>,
    has_begun: bool,
    /// Whose it is, where there are users.
    user: Option<Rc<Lease>>,
    tally: Tally,
    tick: Tick,
    at: Instant,
    unix_s: u64,
}

/// The parts of a turn that datagrams need on their way.
struct Turn<'a> {
    scratch: &'a mut Scratch,
    waker: &'a Waker,
}

impl Association {
    pub(crate) fn new(
        name: Arc<str>,
        metrics: Arc<InboundMetrics>,
        pool: Pool,
        (far, access): (Rc<Far>, Option<Rc<Access>>),
        scratch: SharedScratch,
    ) -> Self {
        let marks = Marks::new(far.options());
        let idle = Tick::try_from(far.options().idle.as_secs()).unwrap_or(Tick::MAX / 2);
        metrics.datagrams.flows.add(1);
        metrics.datagrams.begun.add(1);
        Self {
            name,
            metrics,
            pool,
            far,
            access,
            marks,
            idle,
            scratch,
            flow: None,
            frames: Frames::default(),
            last: None,
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
    pub(crate) async fn run(mut self, near: &mut Endpoint, entry: &Entry) -> EndReason {
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
        entry: &Entry,
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
            match udp::parse_request(&block[range.clone()]) {
                Ok((target, at)) => {
                    self.forward(&target, block, range.start + at..range.end, cx.waker(), scratch);
                }
                Err(error) => {
                    result = Err(EndReason::Wire(error));
                    break;
                }
            }
        }
        self.flush_far(block, cx, scratch);
        result?;
        if received.ended { Err(EndReason::Finished) } else { Ok(true) }
    }

    /// What came with the request, which is answered in a frame of its own.
    fn poll_first(&mut self, cx: &mut Context<'_>, near: &mut Endpoint) -> Poll<Result<Received, EndReason>> {
        let mut chunk = ready!(rt::poll_chunk(&self.pool, cx));
        self.has_begun = true;
        let Some(stack) = near.stack.as_deref_mut() else { return Poll::Pending };
        self.frames.push_pending(stack, &self.pool, self.at).map_err(EndReason::Wire)?;
        self.flush_near(cx, near)?;
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
        if self.user.as_ref().is_some_and(|user| !user.grant_whole(Way::Up, len, self.at)) {
            return self.count(&Drop::Limited);
        }
        let mut turn = Turn { scratch, waker };
        let mut result = self.try_forward(target, block, payload.clone(), &mut turn);
        if let Err(Drop::NoPlace) = result {
            self.flush_far(block, &mut Context::from_waker(waker), turn.scratch);
            result = self.try_forward(target, block, payload, &mut turn);
        }
        if let Some(user) = &self.user {
            user.settle(Way::Up, len, if matches!(result, Ok(true)) { len } else { 0 });
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
    ) -> Result<bool, Drop> {
        let flow = match &mut self.flow {
            Some(flow) => flow,
            none => none.insert(self.far.open(target, false, self.tick).map_err(Drop::System)?),
        };
        let codec = match flow {
            FarFlow::Stream(link) => {
                if self.access.as_ref().is_some_and(|access| !access.may_reach(target)) {
                    return Err(Drop::Rule);
                }
                link.push(target, &block[payload], self.tick, self.at)?;
                link.flush_if_long(&mut Context::from_waker(turn.waker), self.tick);
                return Ok(true);
            }
            FarFlow::Socket(_, codec) => codec,
        };
        let to = match &self.last {
            Some((last, addr)) if last == target => *addr,
            _ => match self.far.find(target, Some(turn.waker), self.tick) {
                Known::Addr(addr) => {
                    if self.access.as_ref().is_some_and(|access| !access.reaches(target, addr.ip())) {
                        return Err(Drop::Rule);
                    }
                    self.last = Some((target.clone(), addr));
                    addr
                }
                Known::Pending if self.waiting.len() < MAX_WAITING => {
                    self.waiting.push((target.clone(), block[payload].to_vec()));
                    return Ok(false);
                }
                Known::Pending | Known::Nothing => return Err(Drop::Unresolved),
            },
        };
        let Scratch { batch, outgoing, .. } = &mut *turn.scratch;
        let range = match codec {
            None => payload,
            Some(Codec::Quic(_)) => return Err(Drop::Gone),
            Some(Codec::Sealed(codec)) => {
                let room = codec.room(target);
                if payload.len() > room.max_payload {
                    return Err(Drop::TooBig);
                }
                let place = batch.take_spare(room.head + payload.len() + room.tail).ok_or(Drop::NoPlace)?;
                let range = place.start + room.head..place.start + room.head + payload.len();
                batch.block[range.clone()].copy_from_slice(&block[payload]);
                codec.seal(&mut batch.block, range, target, self.unix_s, &mut OsRng)?
            }
        };
        // A stream carries no marks of congestion.
        let (is_sealed, start, len) = (codec.is_some(), range.start, range.len());
        if is_sealed && self.marks.is_too_long(len, to) {
            return Err(Drop::TooBig);
        }
        let class = self.marks.class(0, is_sealed);
        outgoing.push(Outgoing { key: 0, to, from: None, class, start, len });
        Ok(true)
    }

    /// Sends what is queued. What ICMP says of a target costs the datagrams for it, and nothing else.
    fn flush_far(&mut self, block: &[u8], cx: &mut Context<'_>, scratch: &mut Scratch) {
        let Scratch { batch, outgoing, .. } = scratch;
        match &mut self.flow {
            Some(FarFlow::Socket(socket, codec)) if !outgoing.is_empty() => {
                let sent = match codec {
                    None => socket.send_from(batch, block, outgoing),
                    Some(_) => socket.send(batch, outgoing),
                };
                self.metrics.datagrams.dropped.note(&sent);
            }
            Some(FarFlow::Stream(link)) => link.flush(cx, self.tick),
            Some(FarFlow::Socket(..)) | None => {}
        }
        outgoing.clear();
        batch.reset_spare();
    }

    /// Sends what waited for the address of a name, if there is any.
    fn send_waiting(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        for (target, bytes) in std::mem::take(&mut self.waiting) {
            self.forward(&target, &bytes, 0..bytes.len(), cx.waker(), scratch);
            self.flush_far(&bytes, cx, scratch);
        }
    }

    /// Takes one batch of answers and sends them to the client; true if there were some. While the client takes
    /// nothing they wait in the system, which counts what it has no room for.
    fn take_answers(
        &mut self,
        cx: &mut Context<'_>,
        near: &mut Endpoint,
        scratch: &mut Scratch,
    ) -> Result<bool, EndReason> {
        if self.poll_flush_near(cx, near)?.is_pending() {
            return Ok(false);
        }
        let took = match &mut self.flow {
            None => false,
            Some(FarFlow::Stream(_)) => self.take_stream_answers(cx, near)?,
            Some(FarFlow::Socket(socket, _)) => {
                let mut lost = 0;
                let received = socket.poll_receive(cx, &mut scratch.batch, &mut lost);
                self.metrics.datagrams.dropped.kernel.add(lost);
                match received {
                    Poll::Pending => false,
                    Poll::Ready(Err(error)) => return Err(EndReason::Socket(Side::Far, error.kind())),
                    Poll::Ready(Ok(())) => {
                        self.answer(cx, near, scratch)?;
                        true
                    }
                }
            }
        };
        self.flush_near(cx, near)?;
        Ok(took)
    }

    /// Sends what the stream takes; the rest goes when it takes more.
    fn flush_near(&mut self, cx: &mut Context<'_>, near: &Endpoint) -> Result<(), EndReason> {
        self.poll_flush_near(cx, near).map(|_| ())
    }

    fn poll_flush_near(&mut self, cx: &mut Context<'_>, near: &Endpoint) -> Result<Poll<()>, EndReason> {
        match self.frames.poll_flush(&near.stream, &self.pool, cx) {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Ok(())) => Ok(Poll::Ready(())),
            Poll::Ready(Err(error)) => Err(EndReason::Socket(Side::Near, error.kind())),
        }
    }

    /// Seals a batch of answers.
    fn answer(
        &mut self,
        cx: &mut Context<'_>,
        near: &mut Endpoint,
        scratch: &mut Scratch,
    ) -> Result<(), EndReason> {
        for at in 0..scratch.batch.len() {
            let Some(datagram) = scratch.batch.get(at) else { break };
            let Some(FarFlow::Socket(_, codec)) = &mut self.flow else { break };
            let opened = match codec {
                None => Ok((datagram.from, datagram.range())),
                Some(Codec::Quic(_)) => break,
                Some(Codec::Sealed(codec)) => {
                    let bytes = &mut scratch.batch.block[datagram.range()];
                    codec.open(bytes, self.unix_s, &mut NoFilter).and_then(|packet| {
                        let Range { start, end } = packet.payload;
                        Ok((address(&packet.target)?, datagram.start + start..datagram.start + end))
                    })
                }
            };
            let result = opened
                .map_err(Drop::from)
                .and_then(|(source, range)| self.push(near, source, &scratch.batch.block[range]));
            if let Err(reason) = result {
                self.count(&reason);
            }
            if self.frames.is_long() {
                self.flush_near(cx, near)?;
            }
        }
        Ok(())
    }

    fn take_stream_answers(&mut self, cx: &mut Context<'_>, near: &mut Endpoint) -> Result<bool, EndReason> {
        let Some(FarFlow::Stream(link)) = &mut self.flow else { return Ok(false) };
        if link.poll_flush(cx, self.tick) == Poll::Ready(Err(())) {
            return Ok(false);
        }
        let Poll::Ready(Ok(received)) = link.poll_receive(cx, self.tick) else { return Ok(false) };
        for range in &received.chunk.out {
            let frame = &received.chunk.buf.block()[range.clone()];
            let result = udp::parse_answer(frame)
                .map_err(Drop::from)
                .and_then(|(source, at)| self.push(near, source, &frame[at..]));
            if let Err(reason) = result {
                self.count(&reason);
            }
            if self.frames.is_long() {
                self.flush_near(cx, near)?;
            }
        }
        if let (true, Some(FarFlow::Stream(link))) = (received.ended, &mut self.flow) {
            link.fail(EndReason::Finished, self.tick);
        }
        Ok(true)
    }

    /// Seals an answer for the client.
    fn push(&mut self, near: &mut Endpoint, source: SocketAddr, payload: &[u8]) -> Result<(), Drop> {
        let stack = near.stack.as_deref_mut().ok_or(Drop::Gone)?;
        let header = (udp::answer_len(source), |out: &mut [u8]| {
            udp::emit_answer(source, out);
        });
        let len = payload.len();
        if self.user.as_ref().is_some_and(|user| !user.grant_whole(Way::Down, len, self.at)) {
            return Err(Drop::Limited);
        }
        let pushed = self.frames.push(stack, &self.pool, self.at, header, payload);
        if let Some(user) = &self.user {
            user.settle(Way::Down, len, if pushed.is_ok() { len } else { 0 });
        }
        pushed?;
        self.tally.down += 1;
        self.tally.down_bytes += payload.len() as u64;
        Ok(())
    }

    fn count(&self, reason: &Drop) {
        reason.count(&self.name, &self.metrics.datagrams.dropped);
    }
}

impl std::ops::Drop for Association {
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
