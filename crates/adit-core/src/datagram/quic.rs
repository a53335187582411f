//! QUIC that travels as it is: the client's side of a flow, whose first datagram is an envelope.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use adit_net::rt;
use adit_net::udp::Batch;
use adit_proto::snell::udp::{envelope, is_quic_initial};
use adit_proto::wire::Target;

use super::Payload;
use super::drops::Drop;
use crate::flow::Tick;
use crate::outbound::SnellOutbound;

/// Longest envelope, in bytes: it passes where IPv6 runs over PPPoE. What would be longer goes over the stream.
const MAX_ENVELOPE: usize = 1432;
/// A first packet that comes again so much later has not been answered; QUIC waits for a second at first (RFC 9002, 6.2.2).
const AGAIN_AFTER: Duration = Duration::from_millis(300);
/// So many envelopes without an answer make `auto` go over the stream: at the third attempt of a QUIC client, some
/// three seconds after its first.
const MAX_UNANSWERED: u8 = 2;
/// And for so many seconds.
const GIVE_UP_FOR: Tick = 600;

/// How the QUIC of one outbound is carried, on one core.
pub(super) struct QuicWay {
    outbound: Rc<SnellOutbound>,
    /// Whether to go over the stream when nothing answers.
    may_give_up: bool,
    /// When it did, if it did.
    gave_up_at: Cell<Option<Tick>>,
}

/// A flow of QUIC.
pub(super) struct QuicFlow {
    way: Rc<QuicWay>,
    target: Target,
    is_answered: bool,
    sent: u8,
    sent_at: Option<Instant>,
}

impl QuicWay {
    pub(super) fn new(outbound: Rc<SnellOutbound>, may_give_up: bool) -> Self {
        Self { outbound, may_give_up, gave_up_at: Cell::new(None) }
    }

    /// Whether `payload` to `target` begins a flow of its own.
    pub(super) fn takes(&self, target: &Target, payload: &[u8], now: Tick) -> bool {
        if let Some(at) = self.gave_up_at.get() {
            if now.wrapping_sub(at) < GIVE_UP_FOR {
                return false;
            }
            self.gave_up_at.set(None);
        }
        let room = envelope::room(target, self.outbound.client_id());
        is_quic_initial(payload) && room.head + payload.len() + room.tail <= MAX_ENVELOPE
    }

    pub(super) fn begin(self: &Rc<Self>, target: Target) -> QuicFlow {
        QuicFlow { way: self.clone(), target, is_answered: false, sent: 0, sent_at: None }
    }
}

impl QuicFlow {
    /// Where the flow goes, and what answers come from.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// The server has answered.
    pub(super) fn answered(&mut self) {
        self.is_answered = true;
    }

    /// Whether the server does not answer, and the flow may go over the stream instead.
    pub(super) fn gives_up(&self, payload: &[u8], now: Tick) -> bool {
        let over = !self.is_answered && self.sent >= MAX_UNANSWERED && self.way.may_give_up;
        let given_up = over && self.needs_envelope(payload);
        if given_up {
            self.way.gave_up_at.set(Some(now));
            tracing::info!(
                outbound = &**self.way.outbound.tag(),
                "the server answers no QUIC on its UDP port: it goes over the stream for ten minutes"
            );
        }
        given_up
    }

    /// What is to be sent for `payload`: itself, or in an envelope.
    pub(super) fn seal(&mut self, batch: &mut Batch, payload: &Payload) -> Result<Range<usize>, Drop> {
        if self.is_answered || !self.needs_envelope(&batch.block[payload.range.clone()]) {
            return Ok(payload.range.clone());
        }
        let client_id = self.way.outbound.client_id();
        let room = envelope::room(&self.target, client_id);
        let key = self.way.outbound.take_key();
        let place = payload.place(batch, &room).ok_or(Drop::NoPlace)?;
        self.sent = self.sent.saturating_add(1);
        self.sent_at = Some(rt::now());
        Ok(envelope::seal(&key, (&self.target, client_id), &mut batch.block, place)?)
    }

    /// The first packet, and every one that comes again: OpenSnell takes no second envelope from a client that it
    /// knows, so the rest of the first flight travels as it is.
    fn needs_envelope(&self, payload: &[u8]) -> bool {
        self.sent_at.is_none_or(|at| {
            is_quic_initial(payload) && rt::now().saturating_duration_since(at) >= AGAIN_AFTER
        })
    }
}
