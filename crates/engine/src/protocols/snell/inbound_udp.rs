//! QUIC behind envelopes (Snell v5): the server's UDP port.
//!
//! A source that is not known is met with silence unless its datagram opens as an envelope. From then on everything
//! travels as it is, both ways, between that source and the envelope's target.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use adit_net::rt;
use adit_proto::snell::udp::envelope::{self, Envelope};
use adit_proto::snell::udp::has_long_header;
use adit_proto::wire::{Room, Target, WireError};

use super::inbound::SnellServerShared;
use crate::admission::guard::Guard;
use crate::datagram::{
    Arrival, DatagramTarget, DropReason, FlowClient, FlowTick, OpenedDatagram, PacketInbound, bare_room,
};
use crate::users::Account;

/// Envelopes that a known source may try at once: those of a first flight.
const TRIES: u8 = 4;
/// Shortest datagram of a known source that is tried: it holds a first packet of QUIC (RFC 9000, 14.1).
const MIN_AGAIN: usize = 1200 + envelope::MIN_LEN;

/// The account of the user whose flow it is, where there are users.
type Owner = Option<Arc<Account>>;

/// The sources that are known on one core, and the keys that open envelopes.
pub(crate) struct QuicPackets {
    shared: Arc<SnellServerShared>,
    guard: Rc<Guard>,
    /// Sources with flows.
    sources: HashMap<SocketAddr, Source>,
    /// A source that has shown an envelope and has no flow yet.
    new: Option<(SocketAddr, Source)>,
}

/// Target of the datagrams of a known source.
struct Source {
    target: Rc<Target>,
    owner: Owner,
    /// Envelopes that may be tried; one more with every second.
    tries: u8,
    tried_at: FlowTick,
    /// Flows that hold it.
    held: usize,
}

impl Source {
    fn new(target: Target, owner: Owner, now: FlowTick) -> Self {
        Self { target: Rc::new(target), owner, tries: TRIES, tried_at: now, held: 0 }
    }

    /// Whether a datagram of a known source is worth a key derivation: it does not look like QUIC, or by chance only.
    fn may_open(&mut self, datagram: &[u8], now: FlowTick) -> bool {
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

    /// A datagram for this source's target.
    fn opened(&self, from: SocketAddr, payload: Range<usize>) -> OpenedDatagram {
        OpenedDatagram::new(FlowClient::Address(from), DatagramTarget::Shared(self.target.clone()), payload)
    }
}

impl QuicPackets {
    /// The port of a server; `guard` bounds what unknown sources may cost.
    pub(crate) fn new(shared: Arc<SnellServerShared>, guard: Rc<Guard>) -> Self {
        Self { shared, guard, sources: HashMap::new(), new: None }
    }

    /// Opens the datagram of an unknown source, within the bounds for unauthenticated ones.
    fn open_unknown(&self, from: IpAddr, datagram: &mut [u8]) -> Result<(Envelope, Owner), WireError> {
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

    /// A source has shown an envelope for a target of its own.
    fn begin(&mut self, from: SocketAddr, opened: Envelope, owner: Owner, now: FlowTick) -> OpenedDatagram {
        let source = Source::new(opened.target, owner, now);
        let result = source.opened(from, opened.inner);
        self.new = Some((from, source));
        result
    }

    fn find(&self, client: &FlowClient) -> Option<&Source> {
        let FlowClient::Address(from) = client else { return None };
        let new = self.new.as_ref().filter(|(new, _)| new == from).map(|(_, source)| source);
        new.or_else(|| self.sources.get(from))
    }
}

impl PacketInbound for QuicPackets {
    fn is_sealed(&self) -> bool {
        true
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason> {
        let (from, now) = (arrival.peer.at, arrival.now);
        let Some(source) = self.sources.get_mut(&from) else {
            let (opened, owner) = self.open_unknown(from.ip(), datagram)?;
            return Ok(Some(self.begin(from, opened, owner, now)));
        };
        if source.may_open(datagram, now) {
            match self.shared.open_envelope(from.ip(), datagram) {
                Ok((opened, owner)) if opened.target == *source.target && owner == source.owner.as_ref() => {
                    return Ok(Some(source.opened(from, opened.inner)));
                }
                Ok((opened, owner)) => {
                    // The client's port goes to somebody else.
                    let owner = owner.cloned();
                    return Ok(Some(OpenedDatagram {
                        begins_anew: true,
                        ..self.begin(from, opened, owner, now)
                    }));
                }
                Err(error @ WireError::Replayed { .. }) => return Err(DropReason::Wire(error)),
                Err(_) => {}
            }
        }
        Ok(Some(source.opened(from, 0..datagram.len())))
    }

    fn account(&self, client: &FlowClient) -> Option<&Arc<Account>> {
        self.find(client)?.owner.as_ref()
    }

    fn room(&mut self, _: &FlowClient, _: &Target) -> Room {
        bare_room()
    }

    fn seal(
        &mut self,
        _: &FlowClient,
        _: &mut [u8],
        payload: Range<usize>,
        _: &Target,
        _: u64,
    ) -> Result<Range<usize>, WireError> {
        Ok(payload)
    }

    fn hold(&mut self, client: &FlowClient) -> Result<(), DropReason> {
        let FlowClient::Address(from) = client else { return Err(DropReason::Gone) };
        if let Some((from, source)) = self.new.take_if(|(new, _)| new == from) {
            let held = self.sources.get(&from).map_or(0, |old| old.held) + 1;
            self.sources.insert(from, Source { held, ..source });
            return Ok(());
        }
        self.sources.get_mut(from).ok_or(DropReason::Gone)?.held += 1;
        Ok(())
    }

    fn release(&mut self, client: &FlowClient) {
        let FlowClient::Address(from) = client else { return };
        let Some(source) = self.sources.get_mut(from) else { return };
        source.held -= 1;
        if source.held == 0 {
            self.sources.remove(from);
        }
    }
}
