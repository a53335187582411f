//! From targets to clients.

use std::ops::Range;
use std::task::{Context, Poll};

use adit_net::udp::{Datagram, Outgoing};
use adit_proto::wire::{Target, WireError};

use super::{BATCHES, BRIEF, Engine};
use crate::datagram::drops::DropReason;
use crate::datagram::inbound::{DatagramTarget, next_together};
use crate::datagram::outbound::FlowTransport;
use crate::datagram::scratch::{Payload, Scratch};
use crate::datagram::table::FlowId;
use crate::users::UserDirection;

impl Engine {
    /// Takes what has come for a flow; true if there may be more.
    pub(super) fn receive_flow(&mut self, id: FlowId, scratch: &mut Scratch) -> bool {
        self.send_waiting(id, scratch);
        for _ in 0..BATCHES {
            let Some(flow) = self.flows.get_mut(id) else { return false };
            let Some(waker) = &flow.waker else { return false };
            let FlowTransport::Socket(socket, _) = &flow.side.transport else {
                return self.receive_stream(id, scratch);
            };
            let mut cx = Context::from_waker(waker);
            let mut lost = 0;
            let Poll::Ready(result) = socket.poll_receive(&mut cx, &mut scratch.batch, &mut lost) else {
                return false;
            };
            self.metrics.datagrams.dropped.kernel.add(lost);
            if let Err(error) = result {
                tracing::debug!(inbound = &*self.name, %error, "socket of a flow failed");
                self.end(id);
                return false;
            }
            let is_drained = !scratch.batch.is_full();
            self.answer(id, scratch);
            if is_drained && self.gather.is_on() {
                // It is looked at again when the wait is over.
                self.ready.push(id);
                return false;
            }
        }
        self.ready.push(id);
        true
    }

    /// Passes a batch from a flow's socket on to its client.
    fn answer(&mut self, id: FlowId, scratch: &mut Scratch) {
        for at in 0..scratch.batch.len() {
            let Some(datagram) = scratch.batch.get(at) else { break };
            if let Some(flow) = self.flows.get_mut(id)
                && let FlowTransport::Socket(_, Some(codec)) = &mut flow.side.transport
                && let Some(mut next) = next_together(&scratch.batch, at, codec.together())
            {
                codec.expect(&mut next);
            }
            let result = match self.take_from_target(id, &datagram, scratch) {
                Err(DropReason::NoPlace) => {
                    self.flush_clients(scratch);
                    self.take_from_target(id, &datagram, scratch)
                }
                result => result,
            };
            if let Err(reason) = result {
                self.count(&reason);
            }
        }
        self.flush_clients(scratch);
        self.answered(id);
    }

    /// Something has come for a flow.
    pub(super) fn answered(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        if let Some(watch) = flow.watch.take() {
            watch.flow_answered();
        }
        if let Some(witness) = &flow.side.witness {
            witness.answered();
        }
        let stage = flow.stage.after_answer();
        if flow.is_dns {
            (flow.stage, flow.is_demoted) = (stage, true);
            self.flows.set_class(id, BRIEF, self.now);
        } else {
            self.touch(id, stage);
        }
    }

    /// Opens a datagram from the target side, seals it for the client and queues it.
    fn take_from_target(
        &mut self,
        id: FlowId,
        datagram: &Datagram,
        scratch: &mut Scratch,
    ) -> Result<(), DropReason> {
        let (key, flow) = self.flows.entry(id).ok_or(DropReason::Gone)?;
        let batch = &mut scratch.batch;
        let FlowTransport::Socket(_, codec) = &mut flow.side.transport else { return Err(DropReason::Gone) };
        let is_connected = self.is_connected || codec.as_ref().is_some_and(|codec| codec.is_connected());
        if is_connected && flow.last.as_ref().is_none_or(|(_, to)| *to != datagram.from) {
            return Err(DropReason::Wire(WireError::Authentication { what: "source of an answer" }));
        }
        let (mut source, payload) = match codec {
            None => (DatagramTarget::Own(Target::from(datagram.from)), 0..datagram.end - datagram.start),
            Some(codec) => codec.open(&mut batch.block[datagram.range()], self.unix_s)?,
        };
        if let Some(alias) = &flow.alias {
            // Without a server the address of the target is known, and others keep theirs.
            let is_other = codec.is_none() && flow.last.as_ref().is_none_or(|(_, to)| *to != datagram.from);
            if !is_other && alias.is_of(&source) {
                source = DatagramTarget::Shared(alias.shown.clone());
            }
        }
        let payload = Payload::of(datagram, payload);
        let room = self.inbound.room(&key.client, &source);
        if payload.range.len() > room.max_payload {
            return Err(DropReason::TooBig);
        }
        let place = payload.place(batch, &room).ok_or(DropReason::NoPlace)?;
        let is_copy = place.start != payload.range.start;
        let sealed = self.inbound.seal(&key.client, &mut batch.block, place, &source, self.unix_s)?;
        if is_copy {
            batch.return_spare(sealed.end);
        }
        self.queue_for_client(id, sealed, payload.range.len(), datagram.class, scratch)
    }

    /// Queues what is `sealed` for a flow's client, of which `len` bytes are payload.
    pub(super) fn queue_for_client(
        &mut self,
        id: FlowId,
        sealed: Range<usize>,
        len: usize,
        class: u8,
        scratch: &mut Scratch,
    ) -> Result<(), DropReason> {
        let (key, flow) = self.flows.entry(id).ok_or(DropReason::Gone)?;
        let peer = self.inbound.peer(&key.client).unwrap_or(flow.peer);
        if self.is_sealed && self.marks.is_too_long(sealed.len(), peer.at) {
            flow.note_too_big(&*self.routes, peer.at, sealed.len(), &self.marks);
            return Err(DropReason::TooBig);
        }
        flow.pass(UserDirection::Down, len, self.at)?;
        scratch.outgoing.push(Outgoing {
            key: id.index(),
            to: peer.at,
            from: peer.local,
            class: self.marks.class(class, self.is_sealed),
            start: sealed.start,
            len: sealed.len(),
        });
        self.tally.down += 1;
        self.tally.down_bytes += len as u64;
        Ok(())
    }

    /// Sends what is queued for clients.
    pub(super) fn flush_clients(&mut self, scratch: &mut Scratch) {
        let Scratch { batch, outgoing } = scratch;
        let own = self.inbound.send(batch, outgoing);
        if !outgoing.is_empty() {
            let sent = own.unwrap_or_else(|| self.listener.send(batch, outgoing));
            self.metrics.datagrams.dropped.note(&sent);
            if let (Some((to, len)), Some(first)) = (sent.too_big_to, outgoing.first())
                && let Some(id) = self.flows.at(first.key)
                && let Some(flow) = self.flows.get_mut(id)
            {
                flow.note_too_big(&*self.routes, to, len, &self.marks);
            }
        }
        outgoing.clear();
        batch.reset_spare();
    }
}
