//! QUIC behind envelopes, the server's side (Snell v5).
//!
//! A source that is not known is met with silence unless its datagram opens as an envelope; from then on everything
//! travels as it is, both ways, between that source and the envelope's target.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use adit_net::rt;
use adit_net::udp::{Datagram, Outgoing};
use adit_proto::snell::udp::envelope::{self, Envelope};
use adit_proto::snell::udp::has_long_header;
use adit_proto::wire::{Target, WireError};

use super::super::drops::Drop;
use super::super::far::FarFlow;
use super::super::near::{Key, Near};
use super::super::{Payload, Scratch};
use super::Relay;
use crate::flow::{FlowId, Tick};
use crate::guard::Guard;
use crate::inbound::SnellServerShared;
use crate::user::{self, Account, Lease};

/// Envelopes that a known source may try at once: those of a first flight.
const TRIES: u8 = 4;
/// Shortest datagram of a known source that is tried: it holds a first packet of QUIC (RFC 9000, 14.1).
const MIN_AGAIN: usize = 1200 + envelope::MIN_LEN;

/// The account of the user whose flow it is, where there are users.
type Owner = Option<Arc<Account>>;

/// What opens envelopes.
pub(crate) struct QuicPort {
    shared: Arc<SnellServerShared>,
    guard: Rc<Guard>,
}

/// Where the datagrams of a known source go.
pub(super) struct Served {
    target: Target,
    owner: Owner,
    /// Envelopes that may be tried; one more with every second.
    tries: u8,
    tried_at: Tick,
}

impl QuicPort {
    pub(crate) fn new(shared: Arc<SnellServerShared>, guard: Rc<Guard>) -> Self {
        Self { shared, guard }
    }

    /// Opens what a stranger has sent, within the bounds for strangers.
    fn meet(&self, from: IpAddr, datagram: &mut [u8]) -> Result<(Envelope, Owner), WireError> {
        if datagram.len() < envelope::MIN_LEN {
            return Err(WireError::Truncated { what: "envelope" });
        }
        let now = rt::now();
        let ticket = self.guard.enter(from, now);
        if !ticket.may_derive(now) {
            return Err(WireError::Authentication { what: "datagram of a throttled source" });
        }
        let opened = self.shared.open_envelope(from, datagram);
        match &opened {
            Ok(_) => ticket.authenticated(now),
            Err(_) => ticket.failed(now),
        }
        opened.map(|(opened, owner)| (opened, owner.cloned()))
    }
}

impl Served {
    fn new(target: Target, owner: Owner, now: Tick) -> Self {
        Self { target, owner, tries: TRIES, tried_at: now }
    }

    /// Whether a datagram of a known source is worth a key derivation: it does not look like QUIC, or by chance only.
    fn may_open(&mut self, datagram: &[u8], now: Tick) -> bool {
        if datagram.len() < MIN_AGAIN || has_long_header(datagram) {
            return false;
        }
        let gained = u8::try_from(now.wrapping_sub(self.tried_at)).unwrap_or(TRIES);
        self.tries = self.tries.saturating_add(gained).min(TRIES);
        self.tried_at = now;
        let may = self.tries > 0;
        self.tries -= u8::from(may);
        may
    }
}

/// Answers come from where the flow goes, and from nowhere else.
pub(super) fn check_source(last: Option<&(Target, SocketAddr)>, from: SocketAddr) -> Result<(), Drop> {
    if last.is_some_and(|(_, to)| *to == from) {
        return Ok(());
    }
    Err(Drop::Wire(WireError::Authentication { what: "source of an answer" }))
}

impl Relay {
    /// Takes a datagram that is an envelope, or goes where an earlier one said.
    pub(super) fn take_quic(&mut self, datagram: &Datagram, scratch: &mut Scratch) -> Result<(), Drop> {
        let Near::Quic(port) = &self.near else { return Err(Drop::Gone) };
        let key = Key::Peer(datagram.from);
        let bytes = &mut scratch.batch.block[datagram.range()];
        let Some(id) = self.flows.find(&key) else {
            let (opened, owner) = port.meet(datagram.from.ip(), bytes)?;
            return self.begin_quic(key, (opened, owner), datagram, scratch);
        };
        let served = self.flows.get_mut(id).and_then(|flow| flow.quic.as_mut()).ok_or(Drop::Gone)?;
        if served.may_open(bytes, self.now) {
            match port.shared.open_envelope(datagram.from.ip(), bytes) {
                Ok((opened, owner)) if opened.target == served.target && owner == served.owner.as_ref() => {
                    return self.forward_quic(id, &Payload::of(datagram, opened.inner), scratch);
                }
                Ok((opened, owner)) => {
                    let owner = owner.cloned();
                    // The client's port goes to somebody else. What is queued names flows by their slot.
                    self.flush_far(scratch);
                    if let Some((key, _)) = self.flows.remove(id) {
                        self.ended(key);
                    }
                    return self.begin_quic(key, (opened, owner), datagram, scratch);
                }
                Err(error @ WireError::Replayed { .. }) => return Err(Drop::Wire(error)),
                Err(_) => {}
            }
        }
        let whole = 0..datagram.end - datagram.start;
        self.forward_quic(id, &Payload::of(datagram, whole), scratch)
    }

    fn begin_quic(
        &mut self,
        key: Key,
        (opened, owner): (Envelope, Owner),
        datagram: &Datagram,
        scratch: &mut Scratch,
    ) -> Result<(), Drop> {
        let begin = |account| Lease::begin_flow(account, datagram.from.ip()).map(Box::new);
        let lease = owner.as_ref().map(begin).transpose().map_err(|_| Drop::Limited)?;
        let id = self.begin(key, (datagram.from, datagram.to), None, Some(&opened.target), scratch)?;
        if let Some(flow) = self.flows.get_mut(id) {
            flow.quic = Some(Box::new(Served::new(opened.target, owner, self.now)));
            flow.user = lease;
        }
        self.forward_quic(id, &Payload::of(datagram, opened.inner), scratch)
    }

    /// Passes a packet on to where its flow goes.
    fn forward_quic(&mut self, id: FlowId, payload: &Payload, scratch: &mut Scratch) -> Result<(), Drop> {
        let flow = self.flows.get_mut(id).ok_or(Drop::Gone)?;
        let (FarFlow::Socket(_, None), Some((_, to))) = (&flow.far, &flow.last) else {
            let target = flow.quic.as_ref().ok_or(Drop::Gone)?.target.clone();
            return self.forward(id, Some(&target), payload, scratch);
        };
        let (key, to, start, len) = (id.index(), *to, payload.range.start, payload.range.len());
        let class = self.marks.class(payload.class, false);
        flow.pass(user::Way::Up, len, self.at)?;
        scratch.gather.passed(&mut flow.pulse, false);
        scratch.outgoing.push(Outgoing { key, to, from: None, class, start, len });
        self.tally.up += 1;
        self.tally.up_bytes += len as u64;
        let is_demoted = std::mem::take(&mut flow.is_demoted);
        self.touch(id, is_demoted);
        Ok(())
    }
}
