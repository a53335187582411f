//! Flows whose datagrams travel in streams.

use std::hash::BuildHasher as _;
use std::ops::Range;
use std::task::{Context, Poll};

use adit_proto::snell::udp;
use adit_proto::wire::Target;

use super::super::drops::Drop;
use super::super::far::{FarFlow, Route};
use super::super::near::Key;
use super::super::{Payload, Scratch};
use super::{BATCHES, DNS, Relay};
use crate::flow::FlowId;
use crate::io::Received;
use crate::record::EndReason;
use crate::user::Way;

impl Relay {
    /// Whose flow a datagram belongs to where QUIC has flows of its own; `payload` lies in the block.
    pub(super) fn route(
        &mut self,
        key: Key,
        target: Option<&Target>,
        payload: Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<Key, Drop> {
        let Key::Peer(from) = key else { return Ok(key) };
        let target = target.or_else(|| self.near.fixed_target()).ok_or(Drop::Gone)?;
        let pair = Key::Pair(from, self.hasher.hash_one(target));
        if let Some(id) = self.flows.find(&pair) {
            let flow = self.flows.get_mut(id).ok_or(Drop::Gone)?;
            if !flow.far.gives_up_quic(&scratch.batch.block[payload.clone()], self.now) {
                return Ok(pair);
            }
            // What is queued names flows by their slot.
            let target = target.clone();
            self.flush_far(scratch);
            if let Some((key, _)) = self.flows.remove(id) {
                self.ended(key);
            }
            return self.far.route(&target, &scratch.batch.block[payload], self.now).key(key, pair);
        }
        self.far.route(target, &scratch.batch.block[payload], self.now).key(key, pair)
    }

    /// A payload of so many bytes waits in the frames of a flow's stream.
    fn queued_in_stream(&mut self, id: FlowId, len: usize) {
        if self.streams.last() != Some(&id) {
            self.streams.push(id);
        }
        self.tally.up += 1;
        self.tally.up_bytes += len as u64;
        let Some(flow) = self.flows.get_mut(id) else { return };
        let is_demoted = std::mem::take(&mut flow.is_demoted);
        self.touch(id, is_demoted);
    }

    /// Puts a client's datagram into the stream of its flow.
    pub(super) fn forward_in_stream(
        &mut self,
        id: FlowId,
        target: Option<&Target>,
        payload: &Payload,
        scratch: &Scratch,
    ) -> Result<(), Drop> {
        let target = target.or_else(|| self.near.fixed_target()).ok_or(Drop::Gone)?;
        if self.access.as_ref().is_some_and(|access| !access.may_reach(target)) {
            return Err(Drop::Rule);
        }
        let flow = self.flows.get_mut(id).ok_or(Drop::Gone)?;
        let FarFlow::Stream(link) = &mut flow.far else { return Err(Drop::Gone) };
        let bytes = &scratch.batch.block[payload.range.clone()];
        let user = flow.user.as_deref();
        if user.is_some_and(|user| !user.grant_whole(Way::Up, bytes.len(), self.at)) {
            return Err(Drop::Limited);
        }
        let pushed = link.push(target, bytes, self.now, self.at);
        if let Some(user) = user {
            user.settle(Way::Up, bytes.len(), if pushed.is_ok() { bytes.len() } else { 0 });
        }
        pushed?;
        if let Some(waker) = &flow.waker {
            link.flush_if_long(&mut Context::from_waker(waker), self.now);
        }
        flow.is_dns &= target.port == DNS;
        self.queued_in_stream(id, bytes.len());
        Ok(())
    }

    /// Sends the frames that the streams of this turn have got.
    pub(super) fn flush_streams(&mut self) {
        while let Some(id) = self.streams.pop() {
            let Some(flow) = self.flows.get_mut(id) else { continue };
            let (FarFlow::Stream(link), Some(waker)) = (&mut flow.far, &flow.waker) else { continue };
            link.flush(&mut Context::from_waker(waker), self.now);
        }
    }

    /// Goes on with the stream of a flow: dials, sends, and takes what has come; true if there may be more.
    pub(super) fn receive_stream(&mut self, id: FlowId, scratch: &mut Scratch) -> bool {
        for _ in 0..BATCHES {
            let Some(flow) = self.flows.get_mut(id) else { return false };
            let (FarFlow::Stream(link), Some(waker)) = (&mut flow.far, &flow.waker) else { return false };
            let mut cx = Context::from_waker(waker);
            if link.poll_flush(&mut cx, self.now) == Poll::Ready(Err(())) {
                return false;
            }
            let Poll::Ready(Ok(received)) = link.poll_receive(&mut cx, self.now) else { return false };
            self.answer_frames(id, &received, scratch);
            self.flush_near(scratch);
            self.answered(id);
            if received.ended {
                self.end_stream(id);
                return false;
            }
        }
        self.ready.push(id);
        true
    }

    fn end_stream(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        if let FarFlow::Stream(link) = &mut flow.far {
            link.fail(EndReason::Finished, self.now);
        }
    }

    /// Passes frames on to a flow's client, each a datagram. One that is none may be the rest of a datagram that the
    /// server has cut (`docs/protocols/snell.md` 1.8): it goes nowhere, and the others are as good as before.
    fn answer_frames(&mut self, id: FlowId, received: &Received, scratch: &mut Scratch) {
        for range in &received.chunk.out {
            let frame = &received.chunk.buf.block()[range.clone()];
            let (source, at) = match udp::parse_answer(frame) {
                Ok((source, at)) => (Target::from(source), at),
                Err(error) => {
                    self.count(&Drop::Wire(error));
                    continue;
                }
            };
            let result = match self.answer_frame(id, &source, &frame[at..], scratch) {
                Err(Drop::NoPlace) => {
                    self.flush_near(scratch);
                    self.answer_frame(id, &source, &frame[at..], scratch)
                }
                result => result,
            };
            if let Err(reason) = result {
                self.count(&reason);
            }
        }
    }

    fn answer_frame(
        &mut self,
        id: FlowId,
        source: &Target,
        payload: &[u8],
        scratch: &mut Scratch,
    ) -> Result<(), Drop> {
        let flow = self.flows.get_mut(id).ok_or(Drop::Gone)?;
        let session = flow.session.as_deref_mut();
        let room = self.near.room(session.as_deref(), source);
        if payload.len() > room.max_payload {
            return Err(Drop::TooBig);
        }
        let batch = &mut scratch.batch;
        let place = batch.take_spare(room.head + payload.len() + room.tail).ok_or(Drop::NoPlace)?;
        let start = place.start + room.head;
        let range = start..start + payload.len();
        batch.block[range.clone()].copy_from_slice(payload);
        let sealed = self.near.seal(session, &mut batch.block, range, source, self.unix_s)?;
        batch.return_spare(sealed.end);
        // A stream carries no marks of congestion.
        self.queue_near(id, sealed, payload.len(), 0, scratch)
    }
}

impl Route {
    /// Whose flow it is, of the client's and its own.
    fn key(self, common: Key, quic: Key) -> Result<Key, Drop> {
        match self {
            Self::Common => Ok(common),
            Self::Quic => Ok(quic),
            Self::Blocked => Err(Drop::Blocked),
        }
    }
}
