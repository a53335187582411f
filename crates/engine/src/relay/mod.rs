//! The one relay: two ends, both directions, one future.
//!
//! ```text
//!   source ──one read──▶ pooled chunk ──open / seal in place──▶ list of ranges ──one write──▶ destination
//! ```
//!
//! A direction takes a chunk only when its source has bytes, and gives it back as soon as they are sent, so an
//! idle connection holds none. It does one read and one write per turn. A relay that moves much waits for its turns in
//! line (`rt::fair`), behind everything sparse. While its destination takes nothing it does not read.
//!
//! Bulk between two TCP sockets without a protocol goes through a pipe of the kernel instead, and is never copied here.

pub(crate) mod discard;
mod join;
pub(crate) mod payload;
mod stack;

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use adit_net::rt::fair::Place;
use adit_net::rt::{self, Chunk, IO_VECTORS, Pipe, Pool, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::wire::{EndOfStream, Opened, Plan, WireError};

pub use self::join::StreamJoiner;
pub(crate) use self::stack::{Outer, Stack};
use crate::connections::record::{EndReason, Side};
use crate::connections::table::{ConnectionEntry, ConnectionTick};
use crate::counters::Traffic;
use crate::users::{Lease, UserDirection};

/// The rest of a blocked write moves out of its chunk when it is no longer than this, in bytes: a slow peer
/// then pins that much and not a chunk.
const SMALL_REST: usize = 32 * 1024;
/// A read between two plain TCP sockets that brings so many bytes says that more come: from the next one on they go
/// through a pipe, until one brings less than the lower bound. Below it, two copies cost less than what a pipe does.
const PIPED_FROM: usize = 32 * 1024;
const PIPED_DOWN_TO: usize = 4 * 1024;
/// Bytes that go through a pipe in one turn, at most: what waits while other connections have their turns leaves in one
/// call. While pipes are scarce it is as many as a chunk's read brings, since a rest may have to move to memory then.
const PIPED_MOST: usize = 1024 * 1024;
/// Part of a request that is kept for a second try, in bytes.
pub(crate) const REPLAY_LEN: usize = 64 * 1024;

/// One end of a relayed connection.
pub(crate) struct Endpoint {
    /// The socket.
    pub(crate) stream: Stream,
    /// The protocol on it; `None` for plain bytes.
    pub(crate) stack: Option<Box<Stack>>,
    /// Bytes that were received but not opened yet.
    pub(crate) tail: Vec<u8>,
}

impl Endpoint {
    /// Ready when a read brings payload, the end or an error: that of the stream, or payload that waits for room.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.stack {
            Some(stack) if stack.has_backlog() => Poll::Ready(Ok(())),
            Some(_) | None => self.stream.poll_readable(cx),
        }
    }

    /// An end without protocol.
    pub(crate) fn plain(stream: Stream) -> Self {
        Self { stream, stack: None, tail: Vec::new() }
    }

    /// Whether the protocol holds bytes that wait for the next write.
    pub(crate) fn has_pending(&self) -> bool {
        self.stack.as_ref().is_some_and(|stack| stack.has_pending())
    }

    /// Sends what the protocol has pending, on its own.
    pub(crate) async fn send_pending(&mut self, pool: &Pool) -> Result<(), EndReason> {
        let Some(stack) = self.stack.as_mut().filter(|stack| stack.has_pending()) else { return Ok(()) };
        let mut chunk = poll_fn(|cx| rt::poll_chunk(pool, cx)).await;
        let now = rt::now();
        let at = stack.plan(now).first.head;
        let sealed = stack.seal(chunk.buf.block_mut(), at..at, now).map_err(EndReason::Wire)?;
        stack.finish_write(now);
        self.stream
            .send_all(&chunk.buf.block()[sealed])
            .await
            .map_err(|e| EndReason::Socket(Side::Far, e.kind()))
    }

    /// Ends the sending direction in band, if that has not been done.
    pub(crate) async fn send_end(&mut self, pool: &Pool) -> io::Result<()> {
        let Some(stack) = self.stack.as_mut().filter(|stack| !stack.has_ended()) else { return Ok(()) };
        let mut chunk = poll_fn(|cx| rt::poll_chunk(pool, cx)).await;
        let sealed = stack.seal_end(chunk.buf.block_mut(), rt::now()).map_err(io::Error::other)?;
        self.stream.send_all(&chunk.buf.block()[sealed]).await
    }
}

/// Bytes that the near side has sent before the relay begins.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// Payload bytes.
    pub(crate) bytes: Vec<u8>,
    /// Whether the near side has ended behind them.
    pub(crate) ended: bool,
}

/// Moves the payload that has come to `early`, and returns bytes that cannot be opened yet.
pub(crate) fn take_early(
    stack: &mut Stack,
    wire: &mut RecvBuf,
    early: &mut Early,
) -> Result<Vec<u8>, WireError> {
    loop {
        match stack.open(wire, rt::now())? {
            Opened::Payload(range) => early.bytes.extend(&wire.block()[range]),
            Opened::NeedMore(_) => break,
            Opened::End => {
                early.ended = true;
                break;
            }
        }
    }
    Ok(wire.unread().to_vec())
}

/// Settings of the relay, decided once per connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Policy {
    /// When the near side's end is passed on.
    pub(crate) half_close: HalfClose,
    /// The carrier of the far side's stream drops the answer at the near side's end, unless it is known to do better.
    pub(crate) carrier_drops: bool,
    /// Whether what has been sent is kept until an answer comes, for a second try on a fresh connection.
    pub(crate) keep_for_replay: bool,
}

/// When the end of the near side's data is passed on to the far side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum HalfClose {
    /// At once.
    #[default]
    AtOnce,
    /// At once if the far side is known to carry it, late otherwise.
    Auto,
    /// When the far side has ended, or the application is known to be gone, or the far side has been silent
    /// for long: many servers drop what their target has yet to say when they see the end.
    Late,
}

/// Ticks of quiet after the near side's end at which it is looked at whether the application is still there.
const LOOKS: [ConnectionTick; 4] = [3, 10, 60, 600];

/// Result of a relayed connection.
#[derive(Debug)]
pub(crate) struct RelayOutcome {
    /// Why it ended.
    pub(crate) reason: EndReason,
    /// Payload bytes from near to far.
    pub(crate) up: u64,
    /// Payload bytes from far to near.
    pub(crate) down: u64,
    /// All that was sent up, if it was kept and nothing came back.
    pub(crate) replay: Option<Vec<u8>>,
    /// Whether everything that was sealed for the far side has been sent, so that its stream can go on.
    pub(crate) is_clean: bool,
    /// Whether the near side has said that it is done sending.
    pub(crate) near_ended: bool,
}

impl RelayOutcome {
    /// That of a connection which took nothing.
    pub(crate) fn unsent(reason: EndReason) -> Self {
        Self { reason, up: 0, down: 0, replay: Some(Vec::new()), is_clean: false, near_ended: false }
    }
}

/// A connection under way.
pub(crate) struct Relay<'a> {
    near: &'a mut Endpoint,
    far: &'a mut Endpoint,
    up: Direction,
    down: Direction,
    pool: &'a Pool,
    entry: &'a ConnectionEntry,
    traffic: &'a Traffic,
    policy: Policy,
    replay: Option<Vec<u8>>,
    /// The far side takes nothing more; bytes that it has sent before are still passed on.
    broken: Option<EndReason>,
    place: Place,
}

impl<'a> Relay<'a> {
    /// Joins `near` and `far`, beginning with what the near side sent during its handshake. Until the relay is over, a kill
    /// of the process resets both.
    pub(crate) fn new(
        near: &'a mut Endpoint,
        far: &'a mut Endpoint,
        early: Early,
        pool: &'a Pool,
        entry: &'a ConnectionEntry,
        traffic: &'a Traffic,
        policy: Policy,
    ) -> Self {
        near.stream.reset_if_killed(true);
        far.stream.reset_if_killed(true);
        let replay = policy.keep_for_replay.then(|| early.bytes.clone());
        let up = Direction { early: early.bytes, early_ends: early.ended, ..Direction::default() };
        let (down, broken, place) = (Direction::default(), None, Place::default());
        Self { near, far, up, down, pool, entry, traffic, policy, replay, broken, place }
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<EndReason> {
        if let Some(reason) = self.entry.over() {
            return Poll::Ready(reason);
        }
        let now = rt::now();
        if self.place.poll_turn(cx, now).is_pending() {
            self.entry.set_waker(cx.waker());
            return Poll::Pending;
        }
        let moved = self.up.bytes + self.down.bytes;
        for direction in [&mut self.up, &mut self.down] {
            (direction.has_read, direction.has_more) = (false, false);
        }
        loop {
            let before = (self.up.state, self.down.state);
            match self.poll_up(cx, now) {
                Poll::Ready(Err(reason @ EndReason::Socket(Side::Far, _))) => {
                    self.up.give_up();
                    self.broken = Some(reason);
                }
                Poll::Ready(Err(reason)) => return Poll::Ready(reason),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            if let Poll::Ready(Err(reason)) = self.poll_down(cx, now) {
                return Poll::Ready(reason);
            }
            self.release_held_end();
            let after = (self.up.state, self.down.state);
            if after == (State::Done, State::Done) || after.1 == State::HeldEnd {
                return Poll::Ready(self.broken.clone().unwrap_or(EndReason::Finished));
            }
            if before == after {
                self.entry.set_waker(cx.waker());
                if self.near_is_lost() {
                    return Poll::Ready(EndReason::Socket(Side::Near, io::ErrorKind::ConnectionAborted));
                }
                self.entry.set_kept(self.kept());
                let has_more = self.up.has_more || self.down.has_more;
                self.place.end_turn(cx, now, self.up.bytes + self.down.bytes - moved, has_more);
                return Poll::Pending;
            }
        }
    }

    /// Bytes that wait for a slow reader or for the rest of a frame, blocks of the pool aside.
    fn kept(&self) -> usize {
        let ends = self.near.tail.capacity() + self.far.tail.capacity();
        ends + self.up.pending.kept() + self.down.pending.kept()
    }

    fn poll_up(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<(), EndReason>> {
        let before = self.up.bytes;
        let hold_end = self.down.state != State::Done && self.drops_answers();
        let lease = self.entry.lease();
        let io = Io {
            source: self.near,
            sink: self.far,
            source_side: Side::Near,
            pool: self.pool,
            most: self.place.read_len(),
            user: lease.as_deref().map(|lease| (lease, UserDirection::Up)),
            now,
        };
        let result = self.up.poll(cx, io, hold_end, self.replay.as_mut());
        if self.up.bytes > before {
            self.entry.add_moved(self.up.bytes - before, 0);
            self.traffic.up.add(self.up.bytes - before);
            if self.up.bytes > REPLAY_LEN as u64 {
                self.replay = None;
            }
        }
        result
    }

    /// Whether the far side may drop its answer when it sees the near side's end.
    fn drops_answers(&self) -> bool {
        let protocol_drops = match self.policy.half_close {
            HalfClose::AtOnce => false,
            HalfClose::Auto => !self.far.stack.as_ref().is_some_and(|stack| stack.carries_half_close()),
            HalfClose::Late => true,
        };
        protocol_drops || self.policy.carrier_drops && !self.far.stream.carries_half_close()
    }

    fn poll_down(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<(), EndReason>> {
        let before = self.down.bytes;
        let lease = self.entry.lease();
        let io = Io {
            source: self.far,
            sink: self.near,
            source_side: Side::Far,
            pool: self.pool,
            most: self.place.read_len(),
            user: lease.as_deref().map(|lease| (lease, UserDirection::Down)),
            now,
        };
        // A write that was answered by a reset takes the error away from the read, which then sees an orderly end;
        // a broken pipe says that the far side had ended in order before.
        let is_cut =
            matches!(self.broken, Some(EndReason::Socket(_, kind)) if kind != io::ErrorKind::BrokenPipe);
        let result = self.down.poll(cx, io, is_cut, None);
        if self.down.bytes > before {
            if before == 0 {
                self.entry.note_answer(now);
            }
            self.entry.add_moved(0, self.down.bytes - before);
            self.traffic.down.add(self.down.bytes - before);
            self.replay = None;
        }
        result
    }

    /// Whether nobody is left to hear what the far side may still say: all that the application has sent is passed
    /// on, its end included, and it has closed its socket.
    fn near_is_lost(&mut self) -> bool {
        if self.up.state != State::Done {
            return false;
        }
        self.entry.set_wants_tick(true);
        let quiet_for = self.entry.quiet_for();
        let is_due = LOOKS.contains(&quiet_for) && self.up.looked_at.replace(quiet_for) != Some(quiet_for);
        is_due && is_gone(&self.near.stream)
    }

    /// Decides whether the near side's end, held back so far, is passed on.
    fn release_held_end(&mut self) {
        if self.up.state != State::HeldEnd {
            return;
        }
        let far_has_ended = self.down.state == State::Done;
        // The end may be seen before the application has let go of its socket: one look at every tick.
        let quiet_for = self.entry.quiet_for();
        let is_due = self.up.looked_at.replace(quiet_for) != Some(quiet_for);
        let near_is_gone = is_due && is_gone(&self.near.stream);
        // The abilities of the far side may have become known meanwhile.
        let is_safe = far_has_ended || !self.drops_answers();
        if is_safe || near_is_gone || quiet_for >= self.entry.patience(self.down.bytes > 0) {
            self.entry.set_wants_tick(false);
            self.up.state = State::EndSeen;
        } else {
            self.entry.set_wants_tick(true);
        }
    }
}

/// Runs until both directions have ended or something breaks.
///
/// Written out so that a connection holds it once: an `async fn` keeps its arguments a second time.
impl Future for Relay<'_> {
    type Output = RelayOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RelayOutcome> {
        let reason = ready!(self.poll_end(cx));
        self.entry.set_wants_tick(false);
        self.near.stream.reset_if_killed(false);
        self.far.stream.reset_if_killed(false);
        let (up, down) = (self.up.bytes, self.down.bytes);
        let replay = if down == 0 { self.replay.take() } else { None };
        let is_clean = self.broken.is_none() && matches!(self.up.pending, Pending::Nothing);
        Poll::Ready(RelayOutcome { reason, up, down, replay, is_clean, near_ended: self.up.early_ends })
    }
}

/// Whether the application at the other end of `stream` has closed its socket altogether, and not only its
/// sending direction. Known for applications on this host alone; false otherwise.
fn is_gone(stream: &Stream) -> bool {
    stream.peer_is_closed().unwrap_or(false)
}

/// Surroundings of one direction.
struct Io<'a> {
    source: &'a mut Endpoint,
    sink: &'a mut Endpoint,
    source_side: Side,
    pool: &'a Pool,
    /// Bytes that one read may bring, so that a turn is short.
    most: usize,
    /// Lease of the user, if there are users.
    user: Option<(&'a Lease, UserDirection)>,
    now: Instant,
}

impl Io<'_> {
    /// Number of bytes that the next read may bring, at least 1; [`Io::settle`] comes next.
    fn poll_grant(&self, cx: &mut Context<'_>, most: usize) -> Poll<Result<usize, EndReason>> {
        let wanted = most.min(self.most);
        let Some((lease, way)) = self.user else { return Poll::Ready(Ok(wanted)) };
        lease.poll_grant(way, wanted, self.now, cx).map_err(EndReason::Limited)
    }

    /// Of what was granted, so many bytes have come.
    fn settle(&self, granted: usize, moved: usize) {
        if let Some((lease, way)) = self.user {
            lease.settle(way, granted, moved);
        }
    }

    /// Whether the bytes are the same at both ends, and both are sockets that a pipe can join.
    fn can_pipe(&self) -> bool {
        let is_plain = |end: &Endpoint| end.stack.is_none() && end.stream.takes_pipe();
        is_plain(self.source) && is_plain(self.sink)
    }

    fn recv_failed(&self, error: &io::Error) -> EndReason {
        EndReason::Socket(self.source_side, error.kind())
    }

    fn send_failed(&self, error: &io::Error) -> EndReason {
        EndReason::Socket(self.source_side.other(), error.kind())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Open,
    /// The source has ended; the sink is not told yet.
    HeldEnd,
    /// The source has ended; the sink is to be told.
    EndSeen,
    /// The last bytes are on their way; then perhaps a FIN.
    Ending {
        fin: bool,
    },
    Done,
}

#[derive(Default)]
struct Direction {
    state: State,
    pending: Pending,
    /// Payload that is to be sent before anything else is read.
    early: Vec<u8>,
    /// The source has ended behind `early`.
    early_ends: bool,
    bytes: u64,
    has_read: bool,
    /// The latest read was long, between two ends that can be joined by a pipe.
    is_piped: bool,
    /// The source has bytes for another turn.
    has_more: bool,
    /// Quiet time at the latest look at the source, since its end was held back.
    looked_at: Option<ConnectionTick>,
}

/// Bytes that wait for the sink.
#[derive(Default)]
pub(crate) enum Pending {
    #[default]
    Nothing,
    /// The parts of a chunk from `part` on, the first of them from `offset` on.
    Chunk { chunk: Chunk, part: usize, offset: usize },
    /// A small rest, from `offset` on.
    Small { bytes: Vec<u8>, offset: usize },
    /// All that is in a pipe.
    Piped(Pipe),
}

impl Direction {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut io: Io<'_>,
        hold_end: bool,
        mut replay: Option<&mut Vec<u8>>,
    ) -> Poll<Result<(), EndReason>> {
        loop {
            ready!(self.pending.poll_flush(cx, &io.sink.stream, io.pool))
                .map_err(|error| io.send_failed(&error))?;
            match self.state {
                State::Open => {}
                State::HeldEnd => return Poll::Pending,
                State::EndSeen => {
                    self.seal_end(cx, &mut io)?;
                    continue;
                }
                State::Ending { fin } => {
                    if fin {
                        io.sink.stream.shutdown_write().map_err(|error| io.send_failed(&error))?;
                    }
                    self.state = State::Done;
                    return Poll::Ready(Ok(()));
                }
                State::Done => return Poll::Ready(Ok(())),
            }
            let (chunk, filled) = if self.early.is_empty() {
                if self.early_ends && hold_end && io.sink.has_pending() {
                    // The end is held back, but not the request.
                    let mut chunk = ready!(rt::poll_chunk(io.pool, cx));
                    stage(
                        &mut chunk,
                        io.sink.stack.as_deref_mut(),
                        io.now,
                        std::iter::empty(),
                        0,
                        &mut self.early,
                    )
                    .map_err(EndReason::Wire)?;
                    self.pending = Pending::Chunk { chunk, part: 0, offset: 0 };
                    continue;
                }
                if self.early_ends {
                    self.state = if hold_end { State::HeldEnd } else { State::EndSeen };
                    continue;
                }
                ready!(io.source.poll_readable(cx)).map_err(|error| io.recv_failed(&error))?;
                if self.has_read {
                    // A turn is one read: the others on this core come first.
                    self.has_more = true;
                    return Poll::Pending;
                }
                if self.is_piped
                    && replay.is_none()
                    && let Some(pipe) = io.pool.take_pipe()
                {
                    ready!(self.poll_pipe(cx, &io, pipe))?;
                    continue;
                }
                let mut chunk = ready!(rt::poll_chunk(io.pool, cx));
                let most = ready!(io.poll_grant(cx, io.pool.read_len()))?;
                let filled = poll_fill(&mut chunk, cx, &mut io, most, replay.as_deref_mut(), &mut self.early);
                let moved = match &filled {
                    Poll::Ready(Ok(Filled::Bytes(len) | Filled::End(len))) => *len,
                    Poll::Ready(Err(_)) | Poll::Pending => 0,
                };
                io.settle(most, moved);
                let filled = ready!(filled)?;
                self.has_read = true;
                (chunk, filled)
            } else {
                let mut chunk = ready!(rt::poll_chunk(io.pool, cx));
                let early = std::mem::take(&mut self.early);
                let parts = std::iter::once(&early[..]);
                let stack = io.sink.stack.as_deref_mut();
                let len = stage(&mut chunk, stack, io.now, parts, early.len(), &mut self.early)
                    .map_err(EndReason::Wire)?;
                io.settle(0, len);
                (chunk, Filled::Bytes(len))
            };
            let (Filled::Bytes(len) | Filled::End(len)) = filled;
            self.bytes += len as u64;
            self.is_piped = len >= PIPED_FROM && io.can_pipe();
            self.early_ends |= matches!(filled, Filled::End(_));
            if !chunk.out.is_empty() {
                self.pending = Pending::Chunk { chunk, part: 0, offset: 0 };
            }
        }
    }

    /// One read of the source into `pipe`, which waits for the sink then.
    fn poll_pipe(
        &mut self,
        cx: &mut Context<'_>,
        io: &Io<'_>,
        mut pipe: Pipe,
    ) -> Poll<Result<(), EndReason>> {
        let most = if io.pool.are_pipes_scarce() { io.pool.read_len() } else { PIPED_MOST };
        let granted = ready!(io.poll_grant(cx, most))?;
        let filled = io.source.stream.poll_fill(cx, &mut pipe, granted);
        io.settle(granted, pipe.held());
        let len = ready!(filled).map_err(|error| io.recv_failed(&error))?;
        self.has_read = true;
        self.bytes += len as u64;
        self.is_piped = len >= PIPED_DOWN_TO;
        if len == 0 {
            self.early_ends = true;
        } else {
            self.pending = Pending::Piped(pipe);
        }
        Poll::Ready(Ok(()))
    }

    /// The sink is gone: nothing more goes this way.
    fn give_up(&mut self) {
        self.pending = Pending::Nothing;
        self.early = Vec::new();
        self.state = State::Done;
    }

    /// Queues what tells the sink that this direction is over.
    fn seal_end(&mut self, cx: &mut Context<'_>, io: &mut Io<'_>) -> Result<(), EndReason> {
        let Some(stack) = &mut io.sink.stack else {
            self.state = State::Ending { fin: true };
            return Ok(());
        };
        let Poll::Ready(mut chunk) = rt::poll_chunk(io.pool, cx) else { return Ok(()) };
        let sealed = stack.seal_end(chunk.buf.block_mut(), io.now).map_err(EndReason::Wire)?;
        self.state = State::Ending { fin: stack.end_of_stream() == EndOfStream::Transport };
        chunk.push_out(sealed);
        if !chunk.out.is_empty() {
            self.pending = Pending::Chunk { chunk, part: 0, offset: 0 };
        }
        Ok(())
    }
}

/// Contents of a chunk that [`poll_fill`] has filled.
pub(crate) enum Filled {
    /// That many payload bytes (perhaps none, while a frame is incomplete).
    Bytes(usize),
    /// The same, and the source has ended behind them.
    End(usize),
}

/// One read of up to `most` bytes from the source, opened and sealed into the chunk's list of parts to send. Payload
/// that the sink's frames have no place for goes to `rest`.
fn poll_fill(
    chunk: &mut Chunk,
    cx: &mut Context<'_>,
    io: &mut Io<'_>,
    most: usize,
    replay: Option<&mut Vec<u8>>,
    rest: &mut Vec<u8>,
) -> Poll<Result<Filled, EndReason>> {
    match (&io.source.stack, &io.sink.stack) {
        (None, None) => {
            let free = chunk.buf.free_mut();
            let wanted = free.len().min(most);
            let len = ready!(io.source.stream.poll_recv(cx, &mut free[..wanted]));
            let len = len.map_err(|error| io.recv_failed(&error))?;
            chunk.push_out(0..len);
            Poll::Ready(Ok(if len == 0 { Filled::End(0) } else { Filled::Bytes(len) }))
        }
        (None, Some(_)) => poll_fill_slots(chunk, cx, io, most, replay),
        (Some(_), None) => poll_fill_frames(chunk, cx, io.source, io.source_side, most, io.pool, io.now),
        (Some(_), Some(_)) => {
            let mut opened = ready!(rt::poll_chunk(io.pool, cx));
            let (source, side) = (&mut *io.source, io.source_side);
            let filled = ready!(poll_fill_frames(&mut opened, cx, source, side, most, io.pool, io.now))?;
            let (Filled::Bytes(total) | Filled::End(total)) = filled;
            let parts = opened.out.iter().map(|part| &opened.buf.block()[part.clone()]);
            if let Some(kept) = replay.filter(|kept| kept.len() + total <= REPLAY_LEN) {
                parts.clone().for_each(|part| kept.extend(part));
            }
            let stack = io.sink.stack.as_deref_mut();
            let staged = stage(chunk, stack, io.now, parts, total, rest).map_err(EndReason::Wire)?;
            Poll::Ready(Ok(match filled {
                Filled::Bytes(_) => Filled::Bytes(staged),
                Filled::End(_) => Filled::End(staged),
            }))
        }
    }
}

/// Ranges in a block for the payload of one write, up to `most` bytes of it: slots with the room between them that the
/// plan asks for.
fn slots(plan: Plan, block_len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let mut room = plan.first;
    let (mut at, mut left) = (0, most);
    std::iter::from_fn(move || {
        let start = at + room.head;
        let free = block_len.checked_sub(start + room.tail).filter(|free| *free > 0 && left > 0)?;
        let end = start + free.min(room.max_payload).min(left);
        left -= end - start;
        at = end + room.tail;
        room = plan.rest;
        Some(start..end)
    })
    .take(IO_VECTORS)
}

/// Reads plain bytes straight into the slots of the sink's frames and seals them there.
fn poll_fill_slots(
    chunk: &mut Chunk,
    cx: &mut Context<'_>,
    io: &mut Io<'_>,
    most: usize,
    replay: Option<&mut Vec<u8>>,
) -> Poll<Result<Filled, EndReason>> {
    let stack = io.sink.stack.as_mut().expect("the sink has a protocol");
    let plan = stack.plan(io.now);
    let block_len = chunk.buf.capacity().min(io.pool.read_len());
    let received = {
        let mut vectors: [IoSliceMut<'_>; IO_VECTORS] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let (mut rest, mut at, mut count) = (chunk.buf.block_mut(), 0, 0);
        for slot in slots(plan, block_len, most) {
            let (here, behind) = rest[slot.start - at..].split_at_mut(slot.len());
            vectors[count] = IoSliceMut::new(here);
            (rest, at, count) = (behind, slot.end, count + 1);
        }
        ready!(io.source.stream.poll_recv_vectored(cx, &mut vectors[..count]))
    };
    let received = received.map_err(|error| EndReason::Socket(io.source_side, error.kind()))?;
    if received == 0 {
        return Poll::Ready(Ok(Filled::End(0)));
    }
    let mut left = received;
    let mut replay = replay.filter(|kept| kept.len() + received <= REPLAY_LEN);
    for slot in slots(plan, block_len, most) {
        let len = slot.len().min(left);
        if let Some(kept) = &mut replay {
            kept.extend(&chunk.buf.block()[slot.start..slot.start + len]);
        }
        let sealed = stack
            .seal(chunk.buf.block_mut(), slot.start..slot.start + len, io.now)
            .map_err(EndReason::Wire)?;
        chunk.push_out(sealed);
        left -= len;
        if left == 0 {
            break;
        }
    }
    stack.finish_write(io.now);
    Poll::Ready(Ok(Filled::Bytes(received)))
}

/// Copies `parts` (`total` bytes) into a chunk as the sink wants them; what does not fit goes to `rest`.
pub(crate) fn stage<'p>(
    chunk: &mut Chunk,
    stack: Option<&mut Stack>,
    now: Instant,
    mut parts: impl Iterator<Item = &'p [u8]>,
    total: usize,
    rest: &mut Vec<u8>,
) -> Result<usize, WireError> {
    let block_len = chunk.buf.capacity();
    let mut part: &[u8] = &[];
    let mut copy = |out: &mut [u8]| {
        let mut done = 0;
        while done < out.len() {
            if part.is_empty() {
                part = parts.next().expect("parts add up to the total");
            }
            let len = part.len().min(out.len() - done);
            out[done..done + len].copy_from_slice(&part[..len]);
            part = &part[len..];
            done += len;
        }
    };
    let mut staged = 0;
    if let Some(stack) = stack {
        for slot in slots(stack.plan(now), block_len, block_len) {
            let payload = slot.start..slot.start + slot.len().min(total - staged);
            copy(&mut chunk.buf.block_mut()[payload.clone()]);
            staged += payload.len();
            let sealed = stack.seal(chunk.buf.block_mut(), payload, now)?;
            chunk.push_out(sealed);
            if staged == total {
                break;
            }
        }
        stack.finish_write(now);
    } else {
        staged = total.min(block_len);
        copy(&mut chunk.buf.block_mut()[..staged]);
        chunk.push_out(0..staged);
    }
    rest.resize(total - staged, 0);
    copy(rest);
    Ok(staged)
}

/// Reads up to `most` bytes behind the saved partial unit and opens in place.
pub(crate) fn poll_fill_frames(
    chunk: &mut Chunk,
    cx: &mut Context<'_>,
    source: &mut Endpoint,
    source_side: Side,
    most: usize,
    pool: &Pool,
    now: Instant,
) -> Poll<Result<Filled, EndReason>> {
    let stack = source.stack.as_mut().expect("the source has a protocol");
    chunk.buf.extend(&source.tail);
    if !stack.has_backlog() {
        let free = chunk.buf.free_mut();
        let wanted = free.len().min(most).min(stack.most_received());
        let received = ready!(source.stream.poll_recv(cx, &mut free[..wanted]))
            .map_err(|error| EndReason::Socket(source_side, error.kind()))?;
        if received == 0 {
            let end = stack.handle_transport_end(chunk.buf.unread().len());
            return Poll::Ready(end.map(|()| Filled::End(0)).map_err(EndReason::Wire));
        }
        chunk.buf.filled(received);
        stack.handle_received(&mut chunk.buf, received, now).map_err(EndReason::Wire)?;
    }
    let mut opened = 0;
    let ended = loop {
        match stack.open(&mut chunk.buf, now).map_err(EndReason::Wire)? {
            Opened::NeedMore(_) => break false,
            Opened::End => break true,
            Opened::Payload(range) => {
                opened += range.len();
                chunk.push_out(range);
            }
        }
    };
    save_tail(&mut source.tail, chunk.buf.unread(), pool);
    Poll::Ready(Ok(if ended { Filled::End(opened) } else { Filled::Bytes(opened) }))
}

/// Keeps the bytes of an incomplete unit in a vector of their size, so that the chunk is free again.
fn save_tail(tail: &mut Vec<u8>, unread: &[u8], pool: &Pool) {
    tail.clear();
    if unread.is_empty() {
        pool.put_small(std::mem::take(tail));
        return;
    }
    if tail.capacity() == 0 {
        *tail = pool.take_small();
    }
    tail.extend(unread);
}

impl Pending {
    /// Sends what waits, one write per call of the kernel, until nothing does.
    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        sink: &Stream,
        pool: &Pool,
    ) -> Poll<io::Result<()>> {
        loop {
            let (sent, wanted) = match self {
                Self::Nothing => return Poll::Ready(Ok(())),
                Self::Small { bytes, offset } => {
                    let rest = &bytes[*offset..];
                    (sink.poll_send(cx, &[IoSlice::new(rest)]), rest.len())
                }
                Self::Piped(pipe) => {
                    let held = pipe.held();
                    (sink.poll_drain(cx, pipe), held)
                }
                Self::Chunk { chunk, part, offset } => {
                    let mut vectors = [IoSlice::new(&[]); IO_VECTORS];
                    let (mut count, mut len, mut skip) = (0, 0, *offset);
                    for range in chunk.out[*part..].iter().take(IO_VECTORS) {
                        vectors[count] = IoSlice::new(&chunk.buf.block()[range.start + skip..range.end]);
                        len += vectors[count].len();
                        (count, skip) = (count + 1, 0);
                    }
                    (sink.poll_send(cx, &vectors[..count]), len)
                }
            };
            match sent {
                Poll::Ready(Ok(0)) if wanted > 0 => {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                Poll::Ready(Ok(sent)) => self.advance(sent, pool),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.shrink(pool)?;
                    return Poll::Pending;
                }
            }
        }
    }

    /// Bytes of a rest that has left its block.
    pub(crate) fn kept(&self) -> usize {
        match self {
            Self::Nothing | Self::Chunk { .. } | Self::Piped(_) => 0,
            Self::Small { bytes, .. } => bytes.capacity(),
        }
    }

    fn advance(&mut self, sent: usize, pool: &Pool) {
        match self {
            Self::Nothing => {}
            Self::Small { bytes, offset } => {
                *offset += sent;
                if *offset == bytes.len() {
                    pool.put_small(std::mem::take(bytes));
                    *self = Self::Nothing;
                }
            }
            // The pipe has counted them itself.
            Self::Piped(pipe) => {
                if pipe.held() == 0 {
                    *self = Self::Nothing;
                }
            }
            Self::Chunk { chunk, part, offset } => {
                let mut left = *offset + sent;
                while *part < chunk.out.len() && left >= chunk.out[*part].len() {
                    left -= chunk.out[*part].len();
                    *part += 1;
                }
                *offset = left;
                if *part == chunk.out.len() {
                    *self = Self::Nothing;
                }
            }
        }
    }

    /// The sink takes nothing more for now: a small rest gives its chunk back.
    fn shrink(&mut self, pool: &Pool) -> io::Result<()> {
        if let Self::Piped(pipe) = self
            && pool.are_pipes_scarce()
        {
            let bytes = empty(pipe, pool)?;
            *self = Self::Small { bytes, offset: 0 };
        }
        let Self::Chunk { chunk, part, offset } = self else { return Ok(()) };
        let rest = chunk.out[*part..].iter().map(Range::len).sum::<usize>() - *offset;
        // Chunks are few: when many are pinned, the long rests move out as well.
        if rest > SMALL_REST && !pool.is_scarce() {
            return Ok(());
        }
        let mut bytes = pool.take_small();
        for range in &chunk.out[*part..] {
            bytes.extend(&chunk.buf.block()[range.clone()]);
        }
        *self = Self::Small { bytes, offset: *offset };
        Ok(())
    }
}

/// Moves the rest of `pipe` to memory.
fn empty(pipe: &mut Pipe, pool: &Pool) -> io::Result<Vec<u8>> {
    let mut bytes = pool.take_small();
    bytes.resize(pipe.held(), 0);
    let mut at = 0;
    while at < bytes.len() {
        match pipe.read(&mut bytes[at..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => at += len,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod fair_tests;
#[cfg(test)]
mod pipe_tests;
