//! A stream to a server that carries the datagrams of one flow, and its successor after it has ended.
//!
//! ```text
//! Idle --first datagram--> Opening --server reached--> Open --end--> Idle     the server has answered
//!                             |                          '-----end--> Failed  it never did
//!                             '--no stream--> Failed --RETRY_AFTER--> Idle
//! ```

use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use adit_model::Tag;
use adit_net::rt::Pool;
use adit_proto::wire::{Target, WireError};

use crate::connections::record::{EndReason, Side};
use crate::datagram::{DropReason, FlowStream, FlowTick, Frames};
use crate::relay::payload::{Received, poll_recv};
use crate::relay::{Endpoint, Stack};
use crate::stream::{Future, OpenError};

/// Seconds before a server that could not be reached, or refused, is asked again.
const RETRY_AFTER: FlowTick = 5;

/// The part of one protocol in its streams of datagrams.
pub(crate) trait DatagramStreams {
    /// The result of opening a stream.
    type Dialled;
    /// State that is kept for a stream while it is being opened.
    type Waiting;
    /// Longest payload of a frame, in bytes.
    const MAX_FRAME: usize;

    /// The outbound's name in logs and status.
    fn tag(&self) -> &Tag;

    /// Begins a stream; `first` is the target of its first datagram.
    fn begin(self: &Rc<Self>, first: &Target) -> PendingStream<Self::Dialled, Self::Waiting>;

    /// Takes a datagram while the stream is being opened.
    ///
    /// # Errors
    /// Why it goes no further.
    fn wait(
        waiting: &mut Self::Waiting,
        datagram: (&Target, &[u8]),
        out: &mut Sealed,
        now: Instant,
    ) -> Result<(), DropReason>;

    /// The stream is there; the datagrams that waited are sealed.
    fn settle(dialled: Self::Dialled, waiting: Self::Waiting, out: &mut Sealed, now: Instant) -> Endpoint;

    /// Length of the header in front of a datagram to `target`, in bytes, and its writer.
    fn header(target: &Target) -> (usize, impl FnOnce(&mut [u8]));

    /// Whether the server has accepted the stream.
    fn is_answered(stack: &mut Stack) -> bool;

    /// The source of an answer, and where its payload begins in `frame`.
    ///
    /// # Errors
    /// When the frame is none.
    fn parse(frame: &[u8]) -> Result<(SocketAddr, usize), WireError>;

    /// The stream is over.
    fn close(&self, end: Endpoint, reason: EndReason, pool: &Pool);
}

/// A stream that is being opened, and what is kept for it meanwhile.
pub(crate) type PendingStream<D, W> = (Future<'static, Result<D, OpenError>>, W);

/// Frames that are sealed and wait to be sent.
pub(crate) struct Sealed {
    frames: Frames,
    pool: Pool,
}

impl Sealed {
    /// Seals a datagram as `P` does.
    ///
    /// # Errors
    /// Why it goes no further.
    pub(crate) fn push<P: DatagramStreams>(
        &mut self,
        stack: &mut Stack,
        target: &Target,
        payload: &[u8],
        now: Instant,
    ) -> Result<(), DropReason> {
        let (header_len, emit) = P::header(target);
        self.frames.push(stack, &self.pool, now, header_len, emit, payload)
    }
}

/// A stream, from the first datagram to its end, and the next one after that.
pub(crate) struct StreamFlow<P: DatagramStreams> {
    outbound: Rc<P>,
    out: Sealed,
    state: State<P>,
    /// Whether the server has accepted the latest stream.
    is_answered: bool,
}

enum State<P: DatagramStreams> {
    /// Nothing has been sent yet, or the last stream has ended.
    Idle,
    Opening(PendingStream<P::Dialled, P::Waiting>),
    Open(Box<Endpoint>),
    /// It did not come to anything.
    Failed(FlowTick),
}

impl<P: DatagramStreams> StreamFlow<P> {
    /// A flow over `outbound`. The first datagram opens the stream.
    pub(crate) fn new(outbound: Rc<P>, pool: Pool) -> Self {
        let out = Sealed { frames: Frames::new(P::MAX_FRAME), pool };
        Self { outbound, out, state: State::Idle, is_answered: false }
    }

    /// The stream is over; after one that was good the next datagram may begin another at once.
    fn fail(&mut self, reason: EndReason, tick: FlowTick) {
        let next = if self.is_answered { State::Idle } else { State::Failed(tick) };
        let State::Open(end) = std::mem::replace(&mut self.state, next) else { return };
        self.out.frames = Frames::new(P::MAX_FRAME);
        tracing::debug!(outbound = &**self.outbound.tag(), reason = reason.name(), %reason, "stream of datagrams ended");
        self.outbound.close(*end, reason, &self.out.pool);
    }

    /// Goes on opening the stream; an error has given it up.
    fn poll_open(&mut self, cx: &mut Context<'_>, tick: FlowTick) -> Poll<Result<(), ()>> {
        let State::Opening((opening, _)) = &mut self.state else { return Poll::Ready(Ok(())) };
        let opened = ready!(opening.as_mut().poll(cx));
        let State::Opening((_, waiting)) = std::mem::replace(&mut self.state, State::Failed(tick)) else {
            unreachable!("it was being opened")
        };
        match opened {
            Ok(dialled) => {
                let end = P::settle(dialled, waiting, &mut self.out, adit_net::rt::now());
                self.state = State::Open(Box::new(end));
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                let outbound = &**self.outbound.tag();
                tracing::debug!(outbound, error = error.chain(), "no stream for datagrams");
                self.out.frames = Frames::new(P::MAX_FRAME);
                Poll::Ready(Err(()))
            }
        }
    }
}

impl<P: DatagramStreams> FlowStream for StreamFlow<P> {
    /// Queues a datagram; the first one asks for the stream, which goes on with [`StreamFlow::poll_flush`].
    fn push(
        &mut self,
        target: &Target,
        payload: &[u8],
        tick: FlowTick,
        now: Instant,
    ) -> Result<(), DropReason> {
        if matches!(self.state, State::Failed(at) if tick.wrapping_sub(at) >= RETRY_AFTER) {
            self.state = State::Idle;
        }
        if let State::Idle = self.state {
            self.state = State::Opening(self.outbound.begin(target));
            self.is_answered = false;
        }
        match &mut self.state {
            State::Idle | State::Failed(_) => Err(DropReason::Down),
            State::Opening((_, waiting)) => P::wait(waiting, (target, payload), &mut self.out, now),
            State::Open(end) => {
                let stack = end.stack.as_mut().ok_or(DropReason::Down)?;
                self.out.push::<P>(stack, target, payload, now)
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, tick: FlowTick) -> Poll<Result<(), ()>> {
        ready!(self.poll_open(cx, tick))?;
        let State::Open(end) = &mut self.state else { return Poll::Ready(Ok(())) };
        let sent = ready!(self.out.frames.poll_flush(&end.stream, &self.out.pool, cx));
        Poll::Ready(sent.map_err(|error| self.fail(EndReason::Socket(Side::Far, error.kind()), tick)))
    }

    fn flush_if_long(&mut self, cx: &mut Context<'_>, tick: FlowTick) {
        if self.out.frames.is_long() && matches!(self.state, State::Open(_)) {
            self.flush(cx, tick);
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, tick: FlowTick) -> Poll<Result<Received, ()>> {
        let State::Open(end) = &mut self.state else { return Poll::Pending };
        match ready!(poll_recv(end, Side::Far, &self.out.pool, cx)) {
            Ok(received) => {
                self.is_answered |= end.stack.as_mut().is_some_and(|stack| P::is_answered(stack));
                Poll::Ready(Ok(received))
            }
            Err(reason) => {
                self.fail(reason, tick);
                Poll::Ready(Err(()))
            }
        }
    }

    fn parse(&self, frame: &[u8]) -> Result<(SocketAddr, usize), WireError> {
        P::parse(frame)
    }

    fn end(&mut self, tick: FlowTick) {
        self.fail(EndReason::Finished, tick);
    }
}

impl<P: DatagramStreams> Drop for StreamFlow<P> {
    fn drop(&mut self) {
        if let State::Open(end) = std::mem::replace(&mut self.state, State::Idle) {
            self.outbound.close(*end, EndReason::Idle, &self.out.pool);
        }
    }
}
