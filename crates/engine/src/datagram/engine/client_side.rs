//! From clients to targets.

use std::hash::BuildHasher as _;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll};

use adit_net::udp::{Datagram, Outgoing};
use adit_proto::wire::{Host, Target};

use super::{BATCHES, DNS, Engine, Flow, MAX_MOVED, MAX_WAITING, NO_DESCRIPTOR, Stage, UNANSWERED, Waiting};
use crate::admission::FlowSlot;
use crate::datagram::aliases::Alias;
use crate::datagram::drops::DropReason;
use crate::datagram::flow_lookup::FlowLookup;
use crate::datagram::inbound::{DatagramTarget, FlowClient, OpenedDatagram, Peer, next_together};
use crate::datagram::outbound::{CarrierChoice, FlowClass, FlowTransport, PacketOutbound};
use crate::datagram::routes::{DatagramDecision, FlowKey, OutboundId, RouteQuery};
use crate::datagram::scratch::{Payload, Scratch};
use crate::datagram::session_exchange::Moved;
use crate::datagram::sniff_cache::SniffedDatagrams;
use crate::datagram::table::{FlowId, FlowTick};
use crate::users::{self, Lease};

/// A datagram's target, with the only address of it that may be used, where there is one.
#[derive(Clone, Copy)]
struct Aim<'a> {
    target: &'a Target,
    at: Option<IpAddr>,
}

impl Engine {
    /// Takes what has come from clients; true if there is more.
    pub(super) fn receive_clients(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
    ) -> std::io::Result<bool> {
        for _ in 0..BATCHES {
            let mut lost = 0;
            let Poll::Ready(result) = self.listener.poll_receive(cx, &mut scratch.batch, &mut lost) else {
                return Ok(false);
            };
            result?;
            self.metrics.datagrams.dropped.kernel.add(lost);
            for at in 0..scratch.batch.len() {
                let Some(datagram) = scratch.batch.get(at) else { break };
                if let Some(mut next) = next_together(&scratch.batch, at, self.together) {
                    self.inbound.expect(&mut next);
                }
                if let Err(reason) = self.take_from_client(&datagram, scratch) {
                    self.count(&reason);
                }
            }
            let is_drained = !scratch.batch.is_full();
            self.flush_targets(scratch);
            self.flush_streams();
            if is_drained && self.gather.is_on() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens a client's datagram and passes it on.
    fn take_from_client(&mut self, datagram: &Datagram, scratch: &mut Scratch) -> Result<(), DropReason> {
        if self.fixed.is_none() && !self.routes.accepts(datagram.from.ip().to_canonical()) {
            return Err(DropReason::Rule);
        }
        let peer = Self::peer_of(datagram);
        let arrival = self.arrival(peer, datagram.original, datagram.class);
        let bytes = &mut scratch.batch.block[datagram.range()];
        let Some(opened) = self.inbound.open(&arrival, bytes)? else { return Ok(()) };
        let payload = Payload::of(datagram, opened.payload.clone());
        self.pass_on_opened(opened, peer, &payload, scratch)
    }

    fn pass_on_opened(
        &mut self,
        opened: OpenedDatagram,
        peer: Peer,
        payload: &Payload,
        scratch: &mut Scratch,
    ) -> Result<(), DropReason> {
        let OpenedDatagram { client, target, begins_anew, .. } = opened;
        if begins_anew {
            self.end_all(client, scratch);
        }
        let result = self.pass_on(client, peer, &target, payload, scratch);
        self.refused(peer, &target, &result);
        result
    }

    /// Ends the flows of a client that begins anew. Its state stays: it is that of the new beginning.
    fn end_all(&mut self, client: FlowClient, scratch: &mut Scratch) {
        // Datagrams that are queued name their flows by slot.
        self.flush_targets(scratch);
        for id in self.flows.ids_where(|key| key.client == client) {
            self.end(id);
        }
    }

    /// Decides which way a client's payload goes, and passes it on.
    pub(super) fn pass_on(
        &mut self,
        client: FlowClient,
        peer: Peer,
        target: &DatagramTarget,
        payload: &Payload,
        scratch: &mut Scratch,
    ) -> Result<(), DropReason> {
        let alias = match &self.fake {
            Some(fake) => self.aliases.find(fake, target)?,
            None => None,
        };
        let given = target;
        let renamed = self.routes.renamed(given);
        let target: &Target = alias.as_ref().map(|alias| &*alias.name).or(renamed.as_ref()).unwrap_or(given);
        let (via, at) = if let Some(via) = self.fixed {
            (via, None)
        } else {
            let named = match &given.host {
                Host::Ip(ip) => Some(SocketAddr::new(*ip, given.port)),
                Host::Name(_) => None,
            };
            let bytes = &scratch.batch.block[payload.range.clone()];
            match self.decide(&client, peer, named, target, bytes, payload.class) {
                DatagramDecision::Through(via) => (via, None),
                DatagramDecision::At(via, ip) => (via, Some(ip)),
                DatagramDecision::Reject => return Err(DropReason::Rule),
                DatagramDecision::Drop => return Err(DropReason::Silence),
                DatagramDecision::Unresolved => return Err(DropReason::Unresolved),
                DatagramDecision::Pending => {
                    let bytes = &scratch.batch.block[payload.range.clone()];
                    return self.keep_undecided(client, peer, payload.class, given.clone(), bytes);
                }
            }
        };
        let key = FlowKey {
            client,
            via,
            lane: FlowClass::Common,
            alias: alias.as_ref().map_or(0, |alias| alias.key),
        };
        let key = self.lane(key, target, &payload.range, scratch)?;
        let id = match self.flows.find(&key) {
            Some(id) => id,
            None => self.begin(key, peer, target, alias.clone(), scratch)?,
        };
        self.forward(id, Aim { target, at }, payload, scratch)
    }

    /// The way to `target`, asked for once per client and target.
    fn decide(
        &mut self,
        client: &FlowClient,
        peer: Peer,
        named: Option<SocketAddr>,
        target: &Target,
        payload: &[u8],
        class: u8,
    ) -> DatagramDecision {
        if let Some(decision) = self.decisions.find(client, target, self.now) {
            self.shown.touch(&(client, target), self.now);
            return decision;
        }
        let wants_name = self.routes.seeks_name(peer.at, target);
        let seen = match wants_name || self.routes.needs_protocol() {
            true => self.shown.look(&(client, target), payload, wants_name, self.now),
            false => Some(SniffedDatagrams::default()),
        };
        // The next datagram, or the next second, asks again.
        let Some(SniffedDatagrams { protocol, name }) = seen else { return DatagramDecision::Pending };
        // A client on this host comes from the address that it sends to, if nothing says more.
        let near = |bound: SocketAddr| {
            let own = Some(bound.ip()).filter(|ip| !ip.is_unspecified());
            SocketAddr::new(peer.local.or(own).unwrap_or_else(|| peer.at.ip()), bound.port())
        };
        let (user, to) = (self.inbound.account(client), (self.bound.map(near), named));
        let name = name.as_deref();
        if name.is_some() && self.undecided.len() > 0 {
            // The datagrams before this one, which did not tell it.
            self.undecided.waker().wake_by_ref();
        }
        let question = RouteQuery { source: peer.at, user, target, protocol, name, class, to };
        let mut why = None;
        let decision = self.routes.decide(&question, self.undecided.waker(), self.now, &mut why);
        match decision {
            DatagramDecision::Through(_)
            | DatagramDecision::At(..)
            | DatagramDecision::Reject
            | DatagramDecision::Drop => {
                self.decisions.insert(*client, target, decision, why, self.now);
            }
            DatagramDecision::Unresolved | DatagramDecision::Pending => {}
        }
        decision
    }

    /// The flow over a client's outbound to which a payload belongs.
    fn lane(
        &mut self,
        key: FlowKey,
        target: &Target,
        payload: &Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<FlowKey, DropReason> {
        // A client that shows one target has shown it with a packet that travels bare from then on.
        let has_lanes = !self.is_connected && matches!(key.client, FlowClient::Address(_));
        let outbound = if has_lanes { self.outbound_with_lanes(key.via) } else { None };
        let Some(outbound) = outbound else { return Ok(key) };
        let own = FlowKey { lane: FlowClass::Own(self.hasher.hash_one(target)), ..key };
        if let Some(id) = self.flows.find(&own) {
            let Some(flow) = self.flows.get_mut(id) else { return Err(DropReason::Gone) };
            let bytes = &scratch.batch.block[payload.clone()];
            let FlowTransport::Socket(_, Some(codec)) = &mut flow.side.transport else { return Ok(own) };
            if !codec.gives_up(bytes, self.now) {
                return Ok(own);
            }
            // Datagrams that are queued name their flows by slot.
            self.flush_targets(scratch);
            self.end(id);
        }
        match outbound.lane(target, &scratch.batch.block[payload.clone()], self.now) {
            CarrierChoice::Common => Ok(key),
            CarrierChoice::Alone => Ok(own),
            CarrierChoice::Refused => Err(DropReason::Blocked),
        }
    }

    /// The outbound of this number, if it may give targets flows of their own.
    fn outbound_with_lanes(&mut self, via: OutboundId) -> Option<Rc<dyn PacketOutbound>> {
        if self.lanes.as_ref().is_none_or(|(known, _)| *known != via) {
            let outbound = self.routes.outbound(via).filter(|outbound| outbound.has_lanes());
            self.lanes = Some((via, outbound));
        }
        self.lanes.as_ref().and_then(|(_, outbound)| outbound.clone())
    }

    /// Begins a flow whose first datagram is for `target`.
    fn begin(
        &mut self,
        key: FlowKey,
        peer: Peer,
        target: &Target,
        alias: Option<Rc<Alias>>,
        scratch: &mut Scratch,
    ) -> Result<FlowId, DropReason> {
        // Datagrams that are queued name their flows by slot, and one of those flows may have to make room.
        self.flush_targets(scratch);
        let slot = self.flow_slot()?;
        self.inbound.hold(&key.client)?;
        let made = match self.make_flow(&key, peer, target, slot) {
            Err(DropReason::System(error)) if is_short(&error) && self.evict_one_unanswered() => {
                self.flow_slot().and_then(|slot| self.make_flow(&key, peer, target, slot))
            }
            made => made,
        };
        let mut flow = match made {
            Ok(flow) => flow,
            Err(reason) => {
                self.inbound.release(&key.client);
                return Err(reason);
            }
        };
        flow.alias = alias;
        let (id, evicted) = self.flows.insert(key, flow, UNANSWERED, self.now);
        let metrics = &self.metrics.datagrams;
        metrics.flows.add(1);
        self.places.flows().begin();
        metrics.begun.add(1);
        if let Some((key, _)) = evicted {
            metrics.evicted.add(1);
            self.ended(&key);
        }
        if let Some(flow) = self.flows.get_mut(id) {
            flow.waker = Some(self.ready.waker(id));
        }
        // Its first turn is where its waker reaches the event loop.
        self.ready.push(id);
        Ok(id)
    }

    fn make_flow(
        &mut self,
        key: &FlowKey,
        peer: Peer,
        target: &Target,
        slot: FlowSlot,
    ) -> Result<Flow, DropReason> {
        let outbound = self.routes.outbound(key.via).ok_or(DropReason::Unresolved)?;
        let account = self.inbound.account(&key.client);
        let user = account.map(|account| Lease::begin_flow(account, peer.at.ip()).map(Box::new));
        let user = user.transpose().map_err(|_| DropReason::Limited)?;
        let side = outbound.begin(target, key.lane, self.now)?;
        Ok(Flow {
            peer,
            side,
            alias: None,
            waker: None,
            last: None,
            is_spread: false,
            is_dns: true,
            stage: Stage::Unanswered,
            is_demoted: false,
            is_too_big_logged: false,
            waiting: Vec::new(),
            user,
            watch: self.routes.watch(key.via, target),
            why: self.decisions.why(&key.client, target),
            number: self.places.next_id(),
            since: self.now,
            moved: [0; 2],
            _slot: slot,
        })
    }

    /// Seals a client's payload for the target side and queues it.
    fn forward(
        &mut self,
        id: FlowId,
        aim: Aim<'_>,
        payload: &Payload,
        scratch: &mut Scratch,
    ) -> Result<(), DropReason> {
        match self.try_forward(id, aim, payload, scratch) {
            Err(DropReason::NoPlace) => {
                self.flush_targets(scratch);
                self.try_forward(id, aim, payload, scratch)
            }
            result => result,
        }
    }

    fn try_forward(
        &mut self,
        id: FlowId,
        aim: Aim<'_>,
        payload: &Payload,
        scratch: &mut Scratch,
    ) -> Result<(), DropReason> {
        let flow = self.flows.get_mut(id).ok_or(DropReason::Gone)?;
        if matches!(flow.side.transport, FlowTransport::Stream(_)) {
            return self.forward_in_stream(id, aim.target, payload, scratch);
        }
        let Some(to) = flow.address(aim, self.now)? else { return flow.wait(aim, payload, scratch) };
        let FlowTransport::Socket(_, codec) = &mut flow.side.transport else { return Err(DropReason::Gone) };
        let (is_sealed, batch) = (codec.is_some(), &mut scratch.batch);
        let range = match codec {
            None => payload.range.clone(),
            Some(codec) => {
                let room = codec.room(aim.target, &batch.block[payload.range.clone()]);
                if payload.range.len() > room.max_payload {
                    return Err(DropReason::TooBig);
                }
                let place = payload.place(batch, &room).ok_or(DropReason::NoPlace)?;
                let is_copy = place.start != payload.range.start;
                let sealed = codec.seal(&mut batch.block, place, aim.target, self.unix_s)?;
                if is_copy {
                    batch.return_spare(sealed.end);
                }
                sealed
            }
        };
        let (key, start, len) = (id.index(), range.start, range.len());
        if is_sealed && self.marks.is_too_long(len, to) {
            flow.note_too_big(&*self.routes, to, len, &self.marks);
            return Err(DropReason::TooBig);
        }
        flow.pass(users::UserDirection::Up, payload.range.len(), self.at)?;
        let stage = flow.stage.after_question();
        let class = self.marks.class(payload.class, is_sealed);
        scratch.outgoing.push(Outgoing { key, to, from: None, class, start, len });
        self.tally.up += 1;
        self.tally.up_bytes += payload.range.len() as u64;
        self.touch(id, stage);
        Ok(())
    }

    /// Sends what is queued for targets, each flow's in order.
    pub(super) fn flush_targets(&mut self, scratch: &mut Scratch) {
        let Scratch { batch, outgoing } = scratch;
        if !outgoing.is_sorted_by_key(|datagram| datagram.key) {
            outgoing.sort_by_key(|datagram| datagram.key);
        }
        for group in outgoing.chunk_by(|one, next| one.key == next.key) {
            let Some(id) = self.flows.at(group[0].key) else { continue };
            let Some(flow) = self.flows.get_mut(id) else { continue };
            let FlowTransport::Socket(socket, codec) = &flow.side.transport else { continue };
            let is_bound = codec.as_ref().is_some_and(|codec| codec.is_connected());
            let is_spread = flow.is_spread && !socket.is_connected();
            let sent = socket.send(batch, group);
            self.metrics.datagrams.dropped.note(&sent);
            if let Some((to, len)) = sent.too_big_to {
                flow.note_too_big(&*self.routes, to, len, &self.marks);
            }
            // With one target, or one server, alone the flow is of no use; its client's next datagram begins another one.
            let is_only = !is_spread
                && !is_bound
                && flow.last.as_ref().is_some_and(|(_, to)| sent.unreachable == Some(*to));
            if is_only {
                self.metrics.datagrams.unreachable.add(1);
                self.end(id);
            }
        }
        outgoing.clear();
        batch.reset_spare();
    }

    /// Sends what waited for the address of a name, if there is any.
    pub(super) fn send_waiting(&mut self, id: FlowId, scratch: &mut Scratch) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        if flow.waiting.is_empty() {
            return;
        }
        for Waiting { target, at, bytes, class } in std::mem::take(&mut flow.waiting) {
            let result = match Payload::copy(scratch, &bytes, class) {
                Some(payload) => self.forward(id, Aim { target: &target, at }, &payload, scratch),
                None => Err(DropReason::TooBig),
            };
            if let Err(reason) = result {
                self.count(&reason);
            }
            self.flush_targets(scratch);
        }
    }

    /// Takes datagrams that reached another core; true if there may be more.
    pub(super) fn take_moved(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> bool {
        for _ in 0..MAX_MOVED {
            let Some(moved) = self.inbound.next_moved(cx.waker()) else { return false };
            if let Err(reason) = self.take_one_moved(&moved, scratch) {
                self.count(&reason);
            }
            self.flush_targets(scratch);
            self.flush_streams();
        }
        true
    }

    fn take_one_moved(&mut self, moved: &Moved, scratch: &mut Scratch) -> Result<(), DropReason> {
        let whole = Payload::copy(scratch, &moved.bytes, moved.class).ok_or(DropReason::TooBig)?;
        let arrival = self.arrival(moved.peer, None, moved.class);
        let bytes = &mut scratch.batch.block[whole.range.clone()];
        let opened = self.inbound.open_moved(moved, &arrival, bytes)?;
        let payload = whole.part(opened.payload.clone());
        self.pass_on_opened(opened, moved.peer, &payload, scratch)
    }
}

/// Whether a descriptor is what is missing.
fn is_short(error: &std::io::Error) -> bool {
    error.raw_os_error().is_some_and(|error| NO_DESCRIPTOR.contains(&error))
}

impl Stage {
    /// Behind a datagram of the client.
    pub(super) fn after_question(self) -> Self {
        match self {
            Self::Unanswered => Self::Unanswered,
            Self::Once | Self::Proven => Self::Proven,
        }
    }

    /// Behind a datagram for the client.
    pub(super) fn after_answer(self) -> Self {
        match self {
            Self::Unanswered | Self::Once => Self::Once,
            Self::Proven => Self::Proven,
        }
    }
}

impl Flow {
    /// Address to which a datagram for `aim` has to be sent; `None` while its name is being looked up.
    fn address(&mut self, aim: Aim<'_>, now: FlowTick) -> Result<Option<SocketAddr>, DropReason> {
        if let Some((last, addr)) = &self.last
            && last == aim.target
        {
            return Ok(Some(*addr));
        }
        match self.side.outbound.find(aim.target, aim.at, self.waker.as_ref(), now) {
            FlowLookup::Addr(addr) => {
                self.is_spread |= self.last.is_some();
                self.is_dns &= aim.target.port == DNS;
                self.last = Some((aim.target.clone(), addr));
                Ok(Some(addr))
            }
            FlowLookup::Pending => Ok(None),
            FlowLookup::Nothing => Err(DropReason::Unresolved),
            FlowLookup::Private(kind) => Err(DropReason::Private(kind)),
        }
    }

    /// Keeps a datagram until the address of its name is known.
    fn wait(&mut self, aim: Aim<'_>, payload: &Payload, scratch: &Scratch) -> Result<(), DropReason> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(DropReason::Unresolved);
        }
        let bytes = scratch.batch.block[payload.range.clone()].to_vec();
        self.waiting.push(Waiting { target: aim.target.clone(), at: aim.at, bytes, class: payload.class });
        Ok(())
    }
}
