//! The target side: how the datagrams of a flow leave, and where its answers come from.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use adit_model::{Tag, Udp};
use adit_net::reach::Reach;
use adit_net::udp::{Fragmentation, Socket};
use adit_proto::wire::{Room, Target, WireError};

use super::DropReason;
use super::flow_lookup::FlowLookup;
use super::inbound::DatagramTarget;
use super::table::FlowTick;
use crate::relay::payload::Received;

/// The flow of a client and outbound to which a datagram belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FlowClass {
    /// The one that all targets share.
    Common,
    /// One of its target's own; the number stands for the target.
    Own(u64),
}

/// A datagram's way where an outbound gives some targets flows of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CarrierChoice {
    /// With the client's others.
    Common,
    /// In a flow of its own.
    Alone,
    /// Not at all: the configuration says so.
    Refused,
}

/// The datagram side of one outbound, on one core.
pub(crate) trait PacketOutbound {
    /// Begins a flow whose first datagram is for `first`.
    ///
    /// # Errors
    /// When there is no socket, or nothing that could carry it at this time.
    fn begin(
        self: Rc<Self>,
        first: &Target,
        lane: FlowClass,
        now: FlowTick,
    ) -> Result<PacketFlow, DropReason>;

    /// Address to which a datagram for `target` has to be sent; `at` is the only address of it that may be used.
    /// `waker` is woken once an address is known that is being looked up.
    fn find(&self, target: &Target, at: Option<IpAddr>, waker: Option<&Waker>, now: FlowTick) -> FlowLookup;

    /// The address of `target` that datagrams go to; `None` where a server looks it up.
    fn address_of(&self, target: &Target, waker: Option<&Waker>, now: FlowTick) -> Option<FlowLookup> {
        let _ = (target, waker, now);
        None
    }

    /// The same outbound, for datagrams that may go within `reach` alone; `None` where that makes no difference, since
    /// targets are reached from elsewhere.
    fn within(&self, reach: Reach) -> Option<Rc<dyn PacketOutbound>> {
        let _ = reach;
        None
    }

    /// Whether [`PacketOutbound::lane`] has to be asked.
    fn has_lanes(&self) -> bool {
        false
    }

    /// The carrier for a datagram that has no flow of its own yet.
    fn lane(&self, target: &Target, payload: &[u8], now: FlowTick) -> CarrierChoice {
        let _ = (target, payload, now);
        CarrierChoice::Common
    }
}

/// The target side of one flow.
pub(crate) struct PacketFlow {
    /// The transport of its datagrams.
    pub(crate) transport: FlowTransport,
    /// The outbound that it goes over, which knows where datagrams have to be sent.
    pub(crate) outbound: Rc<dyn PacketOutbound>,
    /// Observer that is told when answers come.
    pub(crate) witness: Option<Rc<dyn Witness>>,
    /// For one over a group, the names from the outbound at the end to the member.
    pub(crate) chain: Vec<Tag>,
}

/// The transport of the datagrams of one flow.
pub(crate) enum FlowTransport {
    /// A socket of its own; with a codec where they go through a server.
    Socket(Socket, Option<Box<dyn FlowCodec>>),
    /// A stream to a server.
    Stream(Box<dyn FlowStream>),
}

/// Is told of each batch of answers.
pub(crate) trait Witness {
    /// Something has come for a flow.
    fn answered(&self);
}

/// Transforms a flow's datagrams on their way to a server and back.
pub(crate) trait FlowCodec {
    /// Whether answers are taken from the flow's target alone.
    fn is_connected(&self) -> bool {
        false
    }

    /// Number of datagrams that [`FlowCodec::expect`] wants to see at once; 0 for none.
    fn together(&self) -> usize {
        0
    }

    /// The next datagrams of a batch are about to be opened.
    fn expect(&mut self, _next: &mut dyn Iterator<Item = &[u8]>) {}

    /// The bytes that must lie free around `payload` for `target`, and the longest payload. [`FlowCodec::seal`] follows
    /// with the same.
    fn room(&mut self, target: &Target, payload: &[u8]) -> Room;

    /// Seals a payload in place and returns where the datagram lies.
    ///
    /// # Errors
    /// When it cannot be sealed.
    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        target: &Target,
        unix_s: u64,
    ) -> Result<Range<usize>, DropReason>;

    /// Opens an answer in place: its source, and its payload as a range into the datagram.
    ///
    /// # Errors
    /// When it does not open.
    fn open(&mut self, datagram: &mut [u8], unix_s: u64)
    -> Result<(DatagramTarget, Range<usize>), WireError>;

    /// The flow has been silent for a while: what can be derived again may be given up.
    fn rest(&mut self) {}

    /// Whether this flow, which is one target's own, is to end and its target's datagrams go with the client's others.
    fn gives_up(&mut self, payload: &[u8], now: FlowTick) -> bool {
        let _ = (payload, now);
        false
    }
}

/// A stream to a server that carries the datagrams of one flow. It is dialled for the first of them, and again after
/// it has ended.
pub(crate) trait FlowStream {
    /// Queues a datagram, which [`FlowStream::flush`] sends.
    ///
    /// # Errors
    /// Why it goes no further.
    fn push(
        &mut self,
        target: &Target,
        payload: &[u8],
        tick: FlowTick,
        now: Instant,
    ) -> Result<(), DropReason>;

    /// Dials and sends. Ready once nothing waits; an error has ended the stream.
    fn poll_flush(&mut self, cx: &mut Context<'_>, tick: FlowTick) -> Poll<Result<(), ()>>;

    /// Sends what the stream takes. The rest goes when it takes more; a failure is dealt with here.
    fn flush(&mut self, cx: &mut Context<'_>, tick: FlowTick) {
        match self.poll_flush(cx, tick) {
            Poll::Pending | Poll::Ready(_) => {}
        }
    }

    /// Sends when much waits, while more is on its way.
    fn flush_if_long(&mut self, cx: &mut Context<'_>, tick: FlowTick);

    /// The frames that have come, each an answer. Pending while there is no stream; an error has ended it.
    fn poll_receive(&mut self, cx: &mut Context<'_>, tick: FlowTick) -> Poll<Result<Received, ()>>;

    /// The source of an answer, and where its payload begins in `frame`.
    ///
    /// # Errors
    /// When the frame is none.
    fn parse(&self, frame: &[u8]) -> Result<(SocketAddr, usize), WireError>;

    /// The server has ended the stream; the next datagram may begin another one.
    fn end(&mut self, tick: FlowTick);
}

/// Prepares a socket of either side; `is_sealed` if what it carries must not be longer than the path takes.
///
/// # Errors
/// The system's error.
pub(crate) fn set_options(socket: &Socket, udp: &Udp, is_sealed: bool) -> io::Result<()> {
    if is_sealed && !udp.fragment {
        socket.set_fragmentation(Fragmentation::Forbid)?;
    }
    if udp.ecn {
        socket.report_class()?;
    }
    Ok(())
}
