//! The space that the engines of one core share while they have their turn.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use adit_net::udp::{Datagram, DatagramBatch, HEADROOM, Outgoing};
use adit_proto::wire::Room;

/// Bytes behind a copy: the longest tag, and some.
const TAILROOM: usize = 64;

/// A batch of received datagrams, and the datagrams that are to be sent from its block.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The received datagrams and the bytes of those to be sent.
    pub(crate) batch: DatagramBatch,
    /// Datagrams that are sealed and not sent yet.
    pub(crate) outgoing: Vec<Outgoing>,
}

/// The scratch space of a core, made when the first engine starts.
pub(crate) type SharedScratch = Rc<RefCell<Scratch>>;

/// A payload in a batch's block, with the bytes around it that may be overwritten.
#[derive(Debug, Clone)]
pub(super) struct Payload {
    pub(super) range: Range<usize>,
    before: usize,
    after: usize,
    /// Traffic class of the datagram that it came in.
    pub(super) class: u8,
}

impl Payload {
    /// The part `range` of `datagram`.
    pub(super) fn of(datagram: &Datagram, range: Range<usize>) -> Self {
        let len = datagram.end - datagram.start;
        Self {
            before: datagram.head + range.start,
            after: datagram.tail + (len - range.end),
            range: datagram.start + range.start..datagram.start + range.end,
            class: datagram.class,
        }
    }

    /// Copies bytes from elsewhere into the batch, with room around them; `None` if there is no place for them.
    pub(super) fn copy(scratch: &mut Scratch, bytes: &[u8], class: u8) -> Option<Self> {
        let place = scratch.batch.take_spare(HEADROOM + bytes.len() + TAILROOM)?;
        let start = place.start + HEADROOM;
        let range = start..start + bytes.len();
        scratch.batch.block[range.clone()].copy_from_slice(bytes);
        Some(Self { range, before: HEADROOM, after: TAILROOM, class })
    }

    /// The part `range` of this payload.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        Self {
            before: self.before + range.start,
            after: self.after + (self.range.len() - range.end),
            range: self.range.start + range.start..self.range.start + range.end,
            class: self.class,
        }
    }

    /// Range of the payload with `room` around it: in place, or in a copy; `None` if there is no place for one.
    pub(super) fn place(&self, batch: &mut DatagramBatch, room: &Room) -> Option<Range<usize>> {
        if room.head <= self.before && room.tail <= self.after {
            return Some(self.range.clone());
        }
        let place = batch.take_spare(room.head + self.range.len() + room.tail)?;
        let start = place.start + room.head;
        batch.block.copy_within(self.range.clone(), start);
        Some(start..start + self.range.len())
    }
}
