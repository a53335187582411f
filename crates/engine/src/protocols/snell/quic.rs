//! QUIC that travels as it is: the client's side of a flow, whose first datagram is an envelope.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use adit_net::rt;
use adit_proto::snell::udp::{envelope, is_quic_initial};
use adit_proto::wire::{Room, Target, WireError};

use super::outbound::SnellOutbound;
use crate::datagram::{DatagramTarget, DropReason, FlowCodec, FlowTick, bare_room};

/// Longest envelope, in bytes: it passes IPv6 over PPPoE. A longer one goes over the stream.
const MAX_ENVELOPE: usize = 1432;
/// A first packet that comes again so much later has not been answered; QUIC waits for a second at first (RFC 9002, 6.2.2).
const AGAIN_AFTER: Duration = Duration::from_millis(300);
/// So many envelopes without an answer make `auto` go over the stream: at the third attempt of a QUIC client, some
/// three seconds after its first.
const MAX_UNANSWERED: u8 = 2;
/// And for so many seconds.
const GIVE_UP_FOR: FlowTick = 600;

/// The QUIC flows of one outbound, on one core.
pub(super) struct QuicOverUdp {
    outbound: Rc<SnellOutbound>,
    /// Whether to go over the stream when nothing answers.
    may_give_up: bool,
    /// When it did, if it did.
    gave_up_at: Cell<Option<FlowTick>>,
}

/// A flow of QUIC.
pub(super) struct QuicFlow {
    way: Rc<QuicOverUdp>,
    target: Rc<Target>,
    is_answered: bool,
    /// The datagram that is about to be sealed goes in an envelope.
    is_sealing: bool,
    sent: u8,
    sent_at: Option<Instant>,
}

impl QuicOverUdp {
    pub(super) fn new(outbound: Rc<SnellOutbound>, may_give_up: bool) -> Self {
        Self { outbound, may_give_up, gave_up_at: Cell::new(None) }
    }

    /// Whether `payload` to `target` begins a flow of its own.
    pub(super) fn takes(&self, target: &Target, payload: &[u8], now: FlowTick) -> bool {
        if let Some(at) = self.gave_up_at.get() {
            if now.wrapping_sub(at) < GIVE_UP_FOR {
                return false;
            }
            self.gave_up_at.set(None);
        }
        let room = envelope::room(target, self.outbound.client_id());
        is_quic_initial(payload) && room.head + payload.len() + room.tail <= MAX_ENVELOPE
    }
}

impl QuicFlow {
    /// A flow of QUIC to `target`.
    pub(super) fn new(way: Rc<QuicOverUdp>, target: Target) -> Self {
        let target = Rc::new(target);
        Self { way, target, is_answered: false, is_sealing: false, sent: 0, sent_at: None }
    }

    /// The first packet, and every one that comes again: OpenSnell takes no second envelope from a client that it
    /// knows, so the rest of the first flight travels as it is.
    fn needs_envelope(&self, payload: &[u8]) -> bool {
        self.sent_at.is_none_or(|at| {
            is_quic_initial(payload) && rt::now().saturating_duration_since(at) >= AGAIN_AFTER
        })
    }
}

impl FlowCodec for QuicFlow {
    fn is_connected(&self) -> bool {
        true
    }

    fn room(&mut self, _: &Target, payload: &[u8]) -> Room {
        self.is_sealing = !self.is_answered && self.needs_envelope(payload);
        if self.is_sealing {
            envelope::room(&self.target, self.way.outbound.client_id())
        } else {
            bare_room()
        }
    }

    /// Returns the bytes to send for a payload: the payload itself, or an envelope around it.
    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        _: &Target,
        _: u64,
    ) -> Result<Range<usize>, DropReason> {
        if !self.is_sealing {
            return Ok(payload);
        }
        let outbound = &self.way.outbound;
        let key = outbound.take_key();
        self.sent = self.sent.saturating_add(1);
        self.sent_at = Some(rt::now());
        Ok(envelope::seal(&key, &self.target, outbound.client_id(), block, payload)?)
    }

    fn open(&mut self, datagram: &mut [u8], _: u64) -> Result<(DatagramTarget, Range<usize>), WireError> {
        self.is_answered = true;
        Ok((DatagramTarget::Shared(self.target.clone()), 0..datagram.len()))
    }

    /// Whether the server does not answer, and the flow may go over the stream instead.
    fn gives_up(&mut self, payload: &[u8], now: FlowTick) -> bool {
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
}
