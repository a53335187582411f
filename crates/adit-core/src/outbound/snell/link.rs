//! A stream to a server that carries the datagrams of one flow (Snell's command 6).

use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use adit_net::rt::{Pool, Stream};
use adit_proto::snell::{MAX_PAYLOAD, udp};
use adit_proto::wire::{Target, WireError};

use super::SnellOutbound;
use crate::dispatch::{Future as Boxed, OpenError};
use crate::packet::{DropReason, FlowStream, Frames, Tick};
use crate::record::{EndReason, Side};
use crate::relay::Endpoint;
use crate::relay::Stack;
use crate::relay::payload::{Received, poll_recv};

/// Seconds before a server that could not be reached, or refused, is asked again.
const RETRY_AFTER: Tick = 5;

/// A stream, from the first datagram to its end, and the next one after that.
pub(super) struct Link {
    outbound: Rc<SnellOutbound>,
    pool: Pool,
    state: State,
    frames: Frames,
    /// Whether the server has accepted the datagrams.
    is_answered: bool,
}

type Dial = Boxed<'static, Result<Stream, OpenError>>;

enum State {
    /// Nothing has been sent yet, or the last stream has ended.
    Idle,
    /// Frames are sealed meanwhile.
    Dialling(Dial, Box<Stack>),
    Open(Box<Endpoint>),
    /// It did not come to anything.
    Failed(Tick),
}

impl Link {
    /// A link over `outbound`, which carries datagrams in streams.
    pub(super) fn new(outbound: Rc<SnellOutbound>, pool: Pool) -> Self {
        Self { outbound, pool, state: State::Idle, frames: Frames::new(MAX_PAYLOAD), is_answered: false }
    }

    /// The stream is over; after one that was good the next datagram may begin another at once.
    fn fail(&mut self, reason: EndReason, tick: Tick) {
        let next = if self.is_answered { State::Idle } else { State::Failed(tick) };
        let State::Open(end) = std::mem::replace(&mut self.state, next) else { return };
        self.frames = Frames::new(MAX_PAYLOAD);
        tracing::debug!(outbound = &**self.outbound.tag(), reason = reason.name(), %reason, "stream of datagrams ended");
        self.outbound.close_datagrams(*end, reason, &self.pool);
    }
}

impl FlowStream for Link {
    /// Queues a datagram; the first one asks for the stream, which goes on with [`Link::poll_flush`].
    fn push(&mut self, target: &Target, payload: &[u8], tick: Tick, now: Instant) -> Result<(), DropReason> {
        if matches!(self.state, State::Failed(at) if tick.wrapping_sub(at) >= RETRY_AFTER) {
            self.state = State::Idle;
        }
        if let State::Idle = self.state {
            let (dial, stack) = self.outbound.dial_for_datagrams();
            self.state = State::Dialling(dial, stack);
            self.is_answered = false;
        }
        let stack = match &mut self.state {
            State::Idle | State::Failed(_) => return Err(DropReason::Down),
            State::Dialling(_, stack) => stack,
            State::Open(end) => end.stack.as_mut().ok_or(DropReason::Down)?,
        };
        let header = (udp::request_len(target), |out: &mut [u8]| {
            udp::emit_request(target, out);
        });
        self.frames.push(stack, &self.pool, now, header, payload)
    }

    /// Dials and sends. Ready once nothing waits; an error has ended the stream.
    fn poll_flush(&mut self, cx: &mut Context<'_>, tick: Tick) -> Poll<Result<(), ()>> {
        if let State::Dialling(dial, _) = &mut self.state {
            match ready!(dial.as_mut().poll(cx)) {
                Ok(stream) => {
                    let dialled = std::mem::replace(&mut self.state, State::Idle);
                    let State::Dialling(_, stack) = dialled else { unreachable!("it is being dialled") };
                    let end = Endpoint { stream, stack: Some(stack), tail: Vec::new() };
                    self.state = State::Open(Box::new(end));
                }
                Err(error) => {
                    tracing::debug!(
                        outbound = &**self.outbound.tag(),
                        error = error.chain(),
                        "no stream for datagrams"
                    );
                    self.frames = Frames::new(MAX_PAYLOAD);
                    self.state = State::Failed(tick);
                    return Poll::Ready(Err(()));
                }
            }
        }
        let State::Open(end) = &mut self.state else { return Poll::Ready(Ok(())) };
        let sent = ready!(self.frames.poll_flush(&end.stream, &self.pool, cx));
        Poll::Ready(sent.map_err(|error| self.fail(EndReason::Socket(Side::Far, error.kind()), tick)))
    }

    /// Sends when much waits, while more is on its way.
    fn flush_if_long(&mut self, cx: &mut Context<'_>, tick: Tick) {
        if self.frames.is_long() && matches!(self.state, State::Open(_)) {
            self.flush(cx, tick);
        }
    }

    /// Polls frames from the server, each a datagram. Pending while there is no stream; an error has ended it.
    fn poll_receive(&mut self, cx: &mut Context<'_>, tick: Tick) -> Poll<Result<Received, ()>> {
        let State::Open(end) = &mut self.state else { return Poll::Pending };
        match ready!(poll_recv(end, Side::Far, &self.pool, cx)) {
            Ok(received) => {
                let client =
                    end.stack.as_mut().and_then(|stack| stack.protocol::<adit_proto::snell::Client>());
                self.is_answered |= client.is_some_and(|client| client.is_answered());
                Poll::Ready(Ok(received))
            }
            Err(reason) => {
                self.fail(reason, tick);
                Poll::Ready(Err(()))
            }
        }
    }

    fn parse(&self, frame: &[u8]) -> Result<(SocketAddr, usize), WireError> {
        udp::parse_answer(frame)
    }

    fn end(&mut self, tick: Tick) {
        self.fail(EndReason::Finished, tick);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let State::Open(end) = std::mem::replace(&mut self.state, State::Idle) {
            self.outbound.close_datagrams(*end, EndReason::Idle, &self.pool);
        }
    }
}
