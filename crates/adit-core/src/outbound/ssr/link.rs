//! A stream to a server that carries the datagrams of one flow ("UDP over TCP").

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use adit_net::rt::Pool;
use adit_proto::ssr::over_tcp::{self, MAX_FRAME};
use adit_proto::wire::{Target, WireError, address_len, emit_address};

use super::SsrOutbound;
use super::watched::Watched;
use crate::dispatch::{Future as Boxed, OpenError};
use crate::packet::{DropReason, FlowStream, Frames, Tick};
use crate::record::{EndReason, Side};
use crate::relay::payload::{Received, poll_recv};
use crate::relay::{Endpoint, Stack};

/// Seconds before a server that could not be reached, or refused, is asked again.
const RETRY_AFTER: Tick = 5;
/// Bytes of datagrams that wait for the stream to open: the obfs comes first, so nothing can be sealed before.
const MAX_WAITING: usize = 64 * 1024;

/// A stream, from the first datagram to its end, and the next one after that.
pub(super) struct Link {
    outbound: Rc<SsrOutbound>,
    pool: Pool,
    state: State,
    frames: Frames,
    /// Whether the server has said anything that may be right.
    is_answered: bool,
}

/// The stream of datagrams with what is spoken on it, being opened.
type Opening = Boxed<'static, Result<Endpoint, OpenError>>;
/// The protocol inside the stack of an open stream.
pub(super) type Datagrams = over_tcp::Frames<Watched>;

enum State {
    /// Nothing has been sent yet, or the last stream has ended.
    Idle,
    /// Datagrams wait.
    Opening { opening: Opening, waiting: VecDeque<(Target, Box<[u8]>)>, len: usize },
    /// The stream is there.
    Open(Box<Endpoint>),
    /// It did not come to anything.
    Failed(Tick),
}

impl Link {
    /// A link over `outbound`.
    pub(super) fn new(outbound: Rc<SsrOutbound>, pool: Pool) -> Self {
        Self { outbound, pool, state: State::Idle, frames: Frames::new(MAX_FRAME), is_answered: false }
    }

    /// The stream is over; after one that was good the next datagram may begin another at once.
    fn fail(&mut self, reason: EndReason, tick: Tick) {
        let next = if self.is_answered { State::Idle } else { State::Failed(tick) };
        let State::Open(end) = std::mem::replace(&mut self.state, next) else { return };
        self.frames = Frames::new(MAX_FRAME);
        tracing::debug!(outbound = &**self.outbound.tag(), reason = reason.name(), %reason, "stream of datagrams ended");
        self.outbound.close_datagrams(*end, reason);
    }

    /// Goes on opening the stream; the datagrams that waited are sealed as soon as it is there.
    fn poll_open(&mut self, cx: &mut Context<'_>, tick: Tick, now: Instant) -> Poll<Result<(), ()>> {
        let State::Opening { opening, waiting, .. } = &mut self.state else { return Poll::Ready(Ok(())) };
        match ready!(opening.as_mut().poll(cx)) {
            Ok(mut end) => {
                let waiting = std::mem::take(waiting);
                if let Some(stack) = end.stack.as_mut() {
                    for (target, payload) in waiting {
                        // One that is too long is lost alone.
                        seal(&mut self.frames, stack, &self.pool, now, (&target, &payload)).ok();
                    }
                }
                self.state = State::Open(Box::new(end));
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                let outbound = &**self.outbound.tag();
                tracing::debug!(outbound, error = error.chain(), "no stream for datagrams");
                self.state = State::Failed(tick);
                Poll::Ready(Err(()))
            }
        }
    }
}

fn seal(
    frames: &mut Frames,
    stack: &mut Stack,
    pool: &Pool,
    now: Instant,
    (target, payload): (&Target, &[u8]),
) -> Result<(), DropReason> {
    let header = (address_len(target), |out: &mut [u8]| {
        emit_address(target, out);
    });
    frames.push(stack, pool, now, header, payload)
}

impl FlowStream for Link {
    fn push(&mut self, target: &Target, payload: &[u8], tick: Tick, now: Instant) -> Result<(), DropReason> {
        if matches!(self.state, State::Failed(at) if tick.wrapping_sub(at) >= RETRY_AFTER) {
            self.state = State::Idle;
        }
        if let State::Idle = self.state {
            let opening = self.outbound.open_for_datagrams(target.clone());
            self.state = State::Opening { opening, waiting: VecDeque::new(), len: 0 };
            self.is_answered = false;
        }
        match &mut self.state {
            State::Idle | State::Failed(_) => Err(DropReason::Down),
            State::Opening { len, .. } if *len + payload.len() > MAX_WAITING => Err(DropReason::Backlog),
            State::Opening { waiting, len, .. } => {
                *len += payload.len();
                waiting.push_back((target.clone(), payload.into()));
                Ok(())
            }
            State::Open(end) => {
                let stack = end.stack.as_mut().ok_or(DropReason::Down)?;
                seal(&mut self.frames, stack, &self.pool, now, (target, payload))
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, tick: Tick) -> Poll<Result<(), ()>> {
        ready!(self.poll_open(cx, tick, adit_net::rt::now()))?;
        let State::Open(end) = &mut self.state else { return Poll::Ready(Ok(())) };
        let sent = ready!(self.frames.poll_flush(&end.stream, &self.pool, cx));
        Poll::Ready(sent.map_err(|error| self.fail(EndReason::Socket(Side::Far, error.kind()), tick)))
    }

    fn flush_if_long(&mut self, cx: &mut Context<'_>, tick: Tick) {
        if self.frames.is_long() && matches!(self.state, State::Open(_)) {
            self.flush(cx, tick);
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, tick: Tick) -> Poll<Result<Received, ()>> {
        let State::Open(end) = &mut self.state else { return Poll::Pending };
        match ready!(poll_recv(end, Side::Far, &self.pool, cx)) {
            Ok(received) => {
                let frames = end.stack.as_mut().and_then(|stack| stack.protocol::<Datagrams>());
                self.is_answered |= frames.is_some_and(|frames| frames.inner().is_answered());
                Poll::Ready(Ok(received))
            }
            Err(reason) => {
                self.fail(reason, tick);
                Poll::Ready(Err(()))
            }
        }
    }

    fn parse(&self, frame: &[u8]) -> Result<(SocketAddr, usize), WireError> {
        over_tcp::parse_answer(frame)
    }

    fn end(&mut self, tick: Tick) {
        self.fail(EndReason::Finished, tick);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let State::Open(end) = std::mem::replace(&mut self.state, State::Idle) {
            self.outbound.close_datagrams(*end, EndReason::Idle);
        }
    }
}
