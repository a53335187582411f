//! Datagrams from clients to targets and back, for every protocol that carries them.
//!
//! A [`Relay`] is one listening socket on one core with its flows. It is one future: a turn takes a batch from the
//! listener and one from each flow's socket that has something, opens and seals in the core's one [`Batch`], and sends
//! from there. A flow costs no task, no channel and no timer; it wakes the relay by putting its name on a list.
//!
//! ```text
//!   listener ─ batch ─ near.open ─ flow table ─ far.seal ─ flow's socket ─→ target, or a server
//!            ←─ send ─ near.seal ─────────────── far.open ─ batch ──────── (any source: full cone)
//! ```

mod association;
mod drops;
mod exchange;
mod far;
mod frames;
mod gather;
mod link;
mod marks;
mod near;
mod quic;
mod ready;
mod relay;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use adit_net::udp::{Batch, Datagram, Outgoing};
use adit_proto::wire::Room;

pub(crate) use association::Association;
pub(crate) use exchange::Exchange;
pub(crate) use far::{Far, Known};
use gather::Gather;
pub(crate) use near::Near;
pub(crate) use relay::{Ends, QuicPort, Relay};

/// What the relays of one core share while they have their turn.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    batch: Batch,
    outgoing: Vec<Outgoing>,
    gather: Gather,
    /// [`adit_net::rt::stream_calls`] after the last turn.
    stream_calls: u32,
}

/// The scratch space of a core, made when the first relay starts.
pub(crate) type SharedScratch = Rc<RefCell<Scratch>>;

/// A payload in a batch's block, with the bytes around it that may be overwritten.
#[derive(Debug, Clone)]
struct Payload {
    range: Range<usize>,
    before: usize,
    after: usize,
    /// Traffic class of the datagram that it came in.
    class: u8,
}

impl Payload {
    /// The part `range` of `datagram`.
    fn of(datagram: &Datagram, range: Range<usize>) -> Self {
        let len = datagram.end - datagram.start;
        Self {
            before: datagram.head + range.start,
            after: datagram.tail + (len - range.end),
            range: datagram.start + range.start..datagram.start + range.end,
            class: datagram.class,
        }
    }

    /// Where the payload has `room` around it: where it lies, or in a copy; `None` if there is no place for one.
    fn place(&self, batch: &mut Batch, room: &Room) -> Option<Range<usize>> {
        if room.head <= self.before && room.tail <= self.after {
            return Some(self.range.clone());
        }
        let place = batch.take_spare(room.head + self.range.len() + room.tail)?;
        let start = place.start + room.head;
        batch.block.copy_within(self.range.clone(), start);
        Some(start..start + self.range.len())
    }
}
