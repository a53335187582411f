//! Datagrams in a stream of a ShadowsocksR server ("UDP over TCP").

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use adit_model::Tag;
use adit_net::rt::Pool;
use adit_proto::ssr::over_tcp::{self, MAX_FRAME};
use adit_proto::ssr::protocol;
use adit_proto::wire::{Target, WireError, address_len, emit_address};

use super::outbound::SsrOutbound;
use super::watched::Watched;
use crate::connections::record::EndReason;
use crate::datagram::DropReason;
use crate::outbound::stream_flow::{DatagramStreams, PendingStream, Sealed, StreamFlow};
use crate::relay::{Endpoint, Stack};

/// Bytes of datagrams that wait for the stream to open: the obfs comes first, so nothing can be sealed before.
const MAX_WAITING: usize = 64 * 1024;

/// The stream of one flow.
pub(super) type SsrFlowStream = StreamFlow<SsrOutbound>;
/// The protocol inside the stack of an open stream.
pub(super) type SsrFrames = over_tcp::Frames<Watched>;

/// Datagrams that wait for the stream.
#[derive(Default)]
pub(super) struct WaitingDatagrams {
    datagrams: VecDeque<(Target, Box<[u8]>)>,
    len: usize,
}

impl DatagramStreams for SsrOutbound {
    type Dialled = Endpoint;
    type Waiting = WaitingDatagrams;
    const MAX_FRAME: usize = MAX_FRAME;

    fn tag(&self) -> &Tag {
        self.tag()
    }

    fn begin(self: &Rc<Self>, first: &Target) -> PendingStream<Endpoint, WaitingDatagrams> {
        let (outbound, first) = (self.clone(), first.clone());
        let opening = Box::pin(async move {
            let stream = outbound.0.dial().await?;
            let wrap = |client: protocol::SsrClientStream| {
                SsrFrames::new(Watched::new(client.for_datagrams()), Vec::new())
            };
            outbound.0.shared.start_stream(stream, &first, wrap).await
        });
        (opening, WaitingDatagrams::default())
    }

    fn wait(
        waiting: &mut WaitingDatagrams,
        (target, payload): (&Target, &[u8]),
        _: &mut Sealed,
        _: Instant,
    ) -> Result<(), DropReason> {
        if waiting.len + payload.len() > MAX_WAITING {
            return Err(DropReason::Backlog);
        }
        waiting.len += payload.len();
        waiting.datagrams.push_back((target.clone(), payload.into()));
        Ok(())
    }

    fn settle(mut end: Endpoint, waiting: WaitingDatagrams, out: &mut Sealed, now: Instant) -> Endpoint {
        if let Some(stack) = end.stack.as_mut() {
            for (target, payload) in waiting.datagrams {
                // One that is too long is lost alone.
                out.push::<Self>(stack, &target, &payload, now).ok();
            }
        }
        end
    }

    fn header(target: &Target) -> (usize, impl FnOnce(&mut [u8])) {
        let emit = |out: &mut [u8]| {
            emit_address(target, out);
        };
        (address_len(target), emit)
    }

    fn is_answered(stack: &mut Stack) -> bool {
        stack.protocol::<SsrFrames>().is_some_and(|frames| frames.inner().is_answered())
    }

    fn parse(frame: &[u8]) -> Result<(SocketAddr, usize), WireError> {
        over_tcp::parse_answer(frame)
    }

    fn close(&self, end: Endpoint, reason: EndReason, _: &Pool) {
        self.close_datagrams(end, reason);
    }
}
