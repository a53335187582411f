//! Datagrams in a stream of a Snell server (command 6).

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use adit_model::Tag;
use adit_net::rt::{Pool, Stream};
use adit_proto::snell::{MAX_PAYLOAD, SnellClientStream, udp};
use adit_proto::wire::{Target, WireError};

use super::outbound::SnellOutbound;
use crate::connections::record::EndReason;
use crate::datagram::DropReason;
use crate::outbound::stream_flow::{DatagramStreams, PendingStream, Sealed, StreamFlow};
use crate::relay::{Endpoint, Stack};

/// The stream of one flow.
pub(super) type SnellFlowStream = StreamFlow<SnellOutbound>;

/// Datagrams are sealed while the server is being dialled.
impl DatagramStreams for SnellOutbound {
    type Dialled = Stream;
    type Waiting = Box<Stack>;
    const MAX_FRAME: usize = MAX_PAYLOAD;

    fn tag(&self) -> &Tag {
        self.tag()
    }

    fn begin(self: &Rc<Self>, _: &Target) -> PendingStream<Stream, Box<Stack>> {
        let (outbound, stack) = (self.clone(), self.datagram_stack());
        (Box::pin(async move { outbound.connector.dial(&outbound.config.server).await }), stack)
    }

    fn wait(
        stack: &mut Box<Stack>,
        (target, payload): (&Target, &[u8]),
        out: &mut Sealed,
        now: Instant,
    ) -> Result<(), DropReason> {
        out.push::<Self>(stack, target, payload, now)
    }

    fn settle(stream: Stream, stack: Box<Stack>, _: &mut Sealed, _: Instant) -> Endpoint {
        Endpoint { stream, stack: Some(stack), tail: Vec::new() }
    }

    fn header(target: &Target) -> (usize, impl FnOnce(&mut [u8])) {
        let emit = |out: &mut [u8]| {
            udp::emit_request(target, out);
        };
        (udp::request_len(target), emit)
    }

    fn is_answered(stack: &mut Stack) -> bool {
        stack.protocol::<SnellClientStream>().is_some_and(|client| client.is_answered())
    }

    fn parse(frame: &[u8]) -> Result<(SocketAddr, usize), WireError> {
        udp::parse_answer(frame)
    }

    fn close(&self, end: Endpoint, reason: EndReason, pool: &Pool) {
        self.close_datagrams(end, reason, pool);
    }
}
