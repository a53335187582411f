//! Flows whose datagrams travel in streams.

use std::task::{Context, Poll};

use adit_proto::wire::Target;

use super::{BATCHES, DNS, Engine};
use crate::datagram::drops::DropReason;
use crate::datagram::inbound::DatagramTarget;
use crate::datagram::outbound::FlowTransport;
use crate::datagram::scratch::{Payload, Scratch};
use crate::datagram::table::FlowId;
use crate::relay::payload::Received;
use crate::users::UserDirection;

impl Engine {
    /// A payload of so many bytes waits in the frames of a flow's stream.
    fn queued_in_stream(&mut self, id: FlowId, len: usize) {
        if self.streams.last() != Some(&id) {
            self.streams.push(id);
        }
        self.tally.up += 1;
        self.tally.up_bytes += len as u64;
        let Some(flow) = self.flows.get_mut(id) else { return };
        flow.moved[UserDirection::Up as usize] += len as u64;
        let stage = flow.stage.after_question();
        self.touch(id, stage);
    }

    /// Puts a client's datagram into the stream of its flow.
    pub(super) fn forward_in_stream(
        &mut self,
        id: FlowId,
        target: &Target,
        payload: &Payload,
        scratch: &Scratch,
    ) -> Result<(), DropReason> {
        let flow = self.flows.get_mut(id).ok_or(DropReason::Gone)?;
        let FlowTransport::Stream(stream) = &mut flow.side.transport else { return Err(DropReason::Gone) };
        let bytes = &scratch.batch.block[payload.range.clone()];
        let user = flow.user.as_deref();
        if user.is_some_and(|user| !user.grant_whole(UserDirection::Up, bytes.len(), self.at)) {
            return Err(DropReason::Limited);
        }
        let pushed = stream.push(target, bytes, self.now, self.at);
        if let Some(user) = user {
            user.settle(UserDirection::Up, bytes.len(), if pushed.is_ok() { bytes.len() } else { 0 });
        }
        pushed?;
        if let Some(waker) = &flow.waker {
            stream.flush_if_long(&mut Context::from_waker(waker), self.now);
        }
        flow.is_dns &= target.port == DNS;
        self.queued_in_stream(id, bytes.len());
        Ok(())
    }

    /// Sends the frames that the streams of this turn have got.
    pub(super) fn flush_streams(&mut self) {
        while let Some(id) = self.streams.pop() {
            let Some(flow) = self.flows.get_mut(id) else { continue };
            let (FlowTransport::Stream(stream), Some(waker)) = (&mut flow.side.transport, &flow.waker) else {
                continue;
            };
            stream.flush(&mut Context::from_waker(waker), self.now);
        }
    }

    /// Goes on with the stream of a flow: dials, sends, and takes what has come; true if there may be more.
    pub(super) fn receive_stream(&mut self, id: FlowId, scratch: &mut Scratch) -> bool {
        for _ in 0..BATCHES {
            let Some(flow) = self.flows.get_mut(id) else { return false };
            let (FlowTransport::Stream(stream), Some(waker)) = (&mut flow.side.transport, &flow.waker) else {
                return false;
            };
            let mut cx = Context::from_waker(waker);
            if stream.poll_flush(&mut cx, self.now) == Poll::Ready(Err(())) {
                return false;
            }
            let Poll::Ready(Ok(received)) = stream.poll_receive(&mut cx, self.now) else { return false };
            self.answer_frames(id, &received, scratch);
            self.flush_clients(scratch);
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
        if let FlowTransport::Stream(stream) = &mut flow.side.transport {
            stream.end(self.now);
        }
    }

    /// Passes frames on to a flow's client, each a datagram. A frame that is no answer may be the rest of a datagram that
    /// the server has cut: it is dropped, and the others are as good as before.
    fn answer_frames(&mut self, id: FlowId, received: &Received, scratch: &mut Scratch) {
        for range in &received.chunk.out {
            let frame = &received.chunk.buf.block()[range.clone()];
            let result = match self.answer_frame(id, frame, scratch) {
                Err(DropReason::NoPlace) => {
                    self.flush_clients(scratch);
                    self.answer_frame(id, frame, scratch)
                }
                result => result,
            };
            if let Err(reason) = result {
                self.count(&reason);
            }
        }
    }

    fn answer_frame(&mut self, id: FlowId, frame: &[u8], scratch: &mut Scratch) -> Result<(), DropReason> {
        let (key, flow) = self.flows.entry(id).ok_or(DropReason::Gone)?;
        let FlowTransport::Stream(stream) = &flow.side.transport else { return Err(DropReason::Gone) };
        let (source, at) = stream.parse(frame)?;
        let (source, payload) = (Target::from(source), &frame[at..]);
        let shown = flow.alias.as_ref().filter(|alias| alias.is_of(&source)).map(|alias| alias.shown.clone());
        let source = shown.map_or(DatagramTarget::Own(source), DatagramTarget::Shared);
        let room = self.inbound.room(&key.client, &source);
        if payload.len() > room.max_payload {
            return Err(DropReason::TooBig);
        }
        let batch = &mut scratch.batch;
        let place = batch.take_spare(room.head + payload.len() + room.tail).ok_or(DropReason::NoPlace)?;
        let start = place.start + room.head;
        let range = start..start + payload.len();
        batch.block[range.clone()].copy_from_slice(payload);
        let sealed = self.inbound.seal(&key.client, &mut batch.block, range, &source, self.unix_s)?;
        batch.return_spare(sealed.end);
        // A stream carries no marks of congestion.
        self.queue_for_client(id, sealed, payload.len(), 0, scratch)
    }
}
