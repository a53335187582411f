use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use adit_sys::udp::{Meta, Receiver, Sender};

/// Messages of one call. Larger batches gain nothing (2 % between 8 and 64), smaller ones lose where system calls are
/// dear.
pub(super) const MESSAGES: usize = 32;

/// Messages of one call when each may hold 64 datagrams.
pub(super) const MERGED_MESSAGES: usize = 8;

/// Bytes in front of a received datagram: the longest header that a protocol puts there, which is that of a
/// Shadowsocks 2022 datagram to port 53 with 900 bytes of padding and a name of 255.
pub const HEADROOM: usize = 1280;

/// Bytes of a slot for data: the longest datagram, and what the kernel merges.
const DATA: usize = 65_536;

/// Bytes behind a received datagram that filled its slot.
const TAIL: usize = 64;

/// Distance of two slots; no multiple of a large power of two, so that their starts spread over the cache.
const STRIDE: usize = (HEADROOM + DATA + TAIL).next_multiple_of(64) + 64;

/// Bytes for copies of datagrams that lack room around them: two full messages.
const SPARE: usize = 192 * 1024;

/// A received datagram in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// Its sender; IPv4 never in mapped form.
    pub from: SocketAddr,
    /// The address of ours that it was sent to, where that is asked for.
    pub to: Option<IpAddr>,
    /// The address and port that the application sent it to, where a firewall or an interface brought it here.
    pub original: Option<SocketAddr>,
    /// Traffic class, where that is asked for.
    pub class: u8,
    /// Its start in the block.
    pub start: usize,
    /// Its end in the block.
    pub end: usize,
    /// Bytes in front of it that nobody needs.
    pub head: usize,
    /// Bytes behind it that nobody needs.
    pub tail: usize,
}

impl Datagram {
    /// Its bytes, as a range into the block.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// The datagrams of one core between receiving and sending.
#[derive(Debug)]
pub struct DatagramBatch {
    /// The bytes; ranges of datagrams point into it.
    pub block: Box<[u8]>,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    datagrams: Vec<Datagram>,
    /// As [`DatagramBatch::is_full`].
    pub(super) is_full: bool,
    spare_at: usize,
}

impl Default for DatagramBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl DatagramBatch {
    /// An empty batch: 2.3 MiB, of which only what is used is ever touched.
    pub fn new() -> Self {
        Self {
            block: vec![0; STRIDE * MESSAGES + SPARE].into(),
            sender: Sender::new(MESSAGES),
            receiver: Receiver::new(MESSAGES),
            datagrams: Vec::with_capacity(MERGED_MESSAGES * adit_sys::udp::MAX_SEGMENTS),
            is_full: false,
            spare_at: STRIDE * MESSAGES,
        }
    }

    /// Number of datagrams that were received last.
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Whether none were.
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// One of the datagrams received last, in the order of their arrival.
    pub fn get(&self, at: usize) -> Option<Datagram> {
        self.datagrams.get(at).copied()
    }

    /// Whether the last call brought as many messages as it asked for, so that more may wait.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// A place of `len` bytes behind the slots; `None` when they are used up, until [`DatagramBatch::reset_spare`].
    ///
    /// Calls take bytes one behind the other. Surplus bytes of a call go back with [`DatagramBatch::return_spare`].
    pub fn take_spare(&mut self, len: usize) -> Option<Range<usize>> {
        let start = self.spare_at;
        let end = start.checked_add(len).filter(|end| *end <= self.block.len())?;
        self.spare_at = end;
        Some(start..end)
    }

    /// The last place taken is needed up to `end` only.
    pub fn return_spare(&mut self, end: usize) {
        self.spare_at = self.spare_at.min(end);
    }

    /// Everything in the spare places has been sent.
    pub fn reset_spare(&mut self) {
        self.spare_at = STRIDE * MESSAGES;
    }

    /// Begins anew, for packets that the caller reads itself into [`DatagramBatch::packet_slot`]s.
    pub fn begin_packets(&mut self) {
        self.clear();
    }

    /// The place for packet `at` behind those that are kept, `front` bytes (at most [`HEADROOM`]) in front of it included:
    /// 65,536 bytes and those. `None` once all places are taken.
    pub fn packet_slot(&self, at: usize, front: usize) -> Option<Range<usize>> {
        let start = Self::slot_start(at);
        (at < MESSAGES && front <= HEADROOM).then(|| start - front..start + DATA)
    }

    /// Notes the payload of the packet in slot `at`, a range of the block, as datagrams from one address to another; it is
    /// cut every `stride` bytes, unless that is 0.
    pub fn push_payload(
        &mut self,
        at: usize,
        (from, to): (SocketAddr, SocketAddr),
        class: u8,
        payload: Range<usize>,
        stride: usize,
    ) {
        let Range { start, end } = payload;
        let whole = Datagram {
            from,
            to: Some(to.ip()),
            original: Some(to),
            class,
            start,
            end,
            head: start - at * STRIDE,
            tail: (at + 1) * STRIDE - end,
        };
        self.push_pieces(whole, if stride == 0 { usize::MAX } else { stride });
    }

    /// Notes a datagram that lies in slot `at` alone.
    pub(crate) fn push_whole(&mut self, at: usize, datagram: Datagram) {
        let (head, tail) = (datagram.start - at * STRIDE, (at + 1) * STRIDE - datagram.end);
        self.datagrams.push(Datagram { head, tail, ..datagram });
    }

    /// Keeps the datagrams for which `is_kept` holds.
    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(&Datagram, &[u8]) -> bool) {
        let block = &self.block;
        self.datagrams.retain(|datagram| is_kept(datagram, &block[datagram.range()]));
    }

    /// More packets wait, or none.
    pub fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    pub(super) fn clear(&mut self) {
        self.datagrams.clear();
        self.is_full = false;
        self.reset_spare();
    }

    /// The slots to receive `count` messages into.
    pub(super) fn slots(block: &mut [u8], count: usize) -> impl Iterator<Item = &mut [u8]> {
        block.chunks_exact_mut(STRIDE).take(count).map(|slot| &mut slot[HEADROOM..HEADROOM + DATA])
    }

    /// Bytes that a slot takes.
    pub(super) const SLOT: usize = DATA;

    /// Start of slot `at` in the block.
    pub(super) fn slot_start(at: usize) -> usize {
        at * STRIDE + HEADROOM
    }

    /// Notes a datagram that is a part of a message.
    pub(super) fn push_range(&mut self, from: SocketAddr, to: Option<IpAddr>, range: Range<usize>) {
        let Range { start, end } = range;
        self.datagrams.push(Datagram { from, to, original: None, class: 0, start, end, head: 0, tail: 0 });
    }

    /// Notes message `at`, split where the kernel has merged.
    pub(super) fn push(&mut self, at: usize, meta: &Meta) {
        let start = at * STRIDE + HEADROOM;
        let (end, slot_end) = (start + meta.len.min(DATA), (at + 1) * STRIDE);
        let from = SocketAddr::new(meta.from.ip().to_canonical(), meta.from.port());
        let whole = Datagram {
            from,
            to: meta.to,
            original: meta.original,
            class: meta.class,
            start,
            end,
            head: HEADROOM,
            tail: slot_end - end,
        };
        self.push_pieces(whole, meta.stride.map_or(usize::MAX, usize::from));
    }

    /// Notes a message that is cut every `stride` bytes, at least 1.
    fn push_pieces(&mut self, whole: Datagram, stride: usize) {
        let Datagram { start, end, head, tail, .. } = whole;
        if end - start <= stride {
            return self.datagrams.push(whole);
        }
        for piece in (start..end).step_by(stride) {
            let piece_end = (piece + stride).min(end);
            self.datagrams.push(Datagram {
                start: piece,
                end: piece_end,
                head: if piece == start { head } else { 0 },
                tail: if piece_end == end { tail } else { 0 },
                ..whole
            });
        }
    }
}
