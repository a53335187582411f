//! Data that goes: how much may be under way, what was lost, and when to send it.
//!
//! The amount and the pace are those of [`Model`], as for KCP: a loss alone is no reason to slow down. A chunk is lost when
//! chunks that were sent later, for the first or another time, have arrived; so the loss of a repetition shows within a round
//! trip too.

use std::collections::VecDeque;

use super::packet::{self, BEGIN, DATA_HEADER_LEN, END, IMMEDIATE, MAX_PAYLOAD, MTU, u16_at, u32_at};
use crate::tune::{AckSample, Model};

/// Headers that a chunk costs on the path.
const OVERHEAD: usize = packet::HEADER_LEN + DATA_HEADER_LEN;
/// Bytes that keeping a chunk costs, besides its payload.
const PER_CHUNK: usize = 96;
/// Chunks sent later that must have arrived for one to count as lost; the most that a path which reorders makes of it.
const OVERTAKEN: u64 = 3;
const MOST_OVERTAKEN: u64 = 48;
/// So many losses in a row are more of the same gap.
const GAP: u32 = 4;
/// Time without news after which what is under way is sent again: before there is a round trip, beyond it, and at most.
const FIRST_RTO_US: u64 = 1_000_000;
const LEAST_LATE_US: u64 = 200_000;
const MAX_RTO_US: u64 = 10_000_000;
/// Bytes that may be under way once that has happened twice in a row.
const PROBING: u64 = 8 * MTU as u64;
/// Time that the queue may take to be sent, in microseconds, and bytes that it always takes.
const QUEUED_US: u64 = 100_000;
const LEAST_QUEUE: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    InFlight,
    Lost,
    Acked,
}

/// A chunk that has been sent.
#[derive(Debug)]
struct Slot {
    head: Head,
    data: Vec<u8>,
    sent: Sent,
}

/// The latest transmission of a chunk.
#[derive(Debug, Clone, Copy)]
struct Sent {
    fate: Fate,
    /// The transmissions of all chunks, counted up to this.
    order: u64,
    at_us: u64,
    delivered: u64,
    transmissions: u32,
}

/// Numbers of a chunk.
#[derive(Debug, Clone, Copy)]
struct Head {
    stream: u16,
    number: u16,
    kind: u32,
    flags: u8,
}

/// A chunk that has not been sent.
#[derive(Debug)]
struct Waiting {
    head: Head,
    data: Vec<u8>,
    /// Payloads of the same kind may follow in it.
    is_open: bool,
}

/// News of one acknowledgement.
#[derive(Debug, Default)]
struct News {
    bytes: usize,
    /// Of what was sent once and has arrived, the newest: when it was sent, and with how much delivered.
    newest: Option<(u64, u64)>,
}

/// The sending half.
#[derive(Debug)]
pub(super) struct SctpSender {
    una: u32,
    slots: VecDeque<Slot>,
    queue: VecDeque<Waiting>,
    queued: usize,
    /// Bytes of payload that were sent and have not arrived, as far as is known.
    outstanding: usize,
    /// Those that are not believed lost, headers included.
    in_flight: usize,
    /// Bytes of payload that the other end has room for, beyond those.
    room: usize,
    widest: usize,
    number: u16,
    order: u64,
    newest_order: u64,
    threshold: u64,
    /// Transmissions by their order.
    log: VecDeque<(u64, u32)>,
    due: VecDeque<u32>,
    model: Model,
    most: usize,
    smoothed_us: u64,
    varies_us: u64,
    timeout_us: Option<u64>,
    backoff: u32,
    /// Chunks that were sent again.
    pub(super) repeated: u64,
}

impl SctpSender {
    /// `most` bytes may be held.
    pub(super) fn new(first: u32, most: usize) -> Self {
        Self {
            una: first,
            slots: VecDeque::new(),
            queue: VecDeque::new(),
            queued: 0,
            outstanding: 0,
            in_flight: 0,
            room: 0,
            widest: 0,
            number: 0,
            order: 0,
            newest_order: 0,
            threshold: OVERTAKEN,
            log: VecDeque::new(),
            due: VecDeque::new(),
            model: Model::new(most as u64),
            most,
            smoothed_us: 0,
            varies_us: 0,
            timeout_us: None,
            backoff: 0,
            repeated: 0,
        }
    }

    /// The other end has `room` bytes for what comes.
    pub(super) fn set_room(&mut self, room: u32) {
        let room = room as usize;
        self.room = room.saturating_sub(self.outstanding);
        if room > self.widest {
            self.widest = room;
            self.model.handle_relief();
        }
    }

    /// The number that the last chunk has.
    pub(super) fn last(&self) -> u32 {
        self.una.wrapping_add(self.span()).wrapping_sub(1)
    }

    fn span(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("memory bounds it")
    }

    /// Bytes that are queued or not acknowledged.
    pub(super) fn buffered(&self) -> usize {
        self.queued + self.outstanding
    }

    /// Bytes that may be queued.
    pub(super) fn room(&self) -> usize {
        let chunks = (self.queue.len() + self.slots.len()) * PER_CHUNK;
        let queue = usize::try_from(self.model.carries(QUEUED_US)).unwrap_or(usize::MAX).max(LEAST_QUEUE);
        let left = queue.saturating_sub(self.queued);
        left.min(self.most.saturating_sub(self.buffered() + chunks))
    }

    /// Queues a message; with `joins` it may follow others of its kind in their chunks, and be cut where a chunk is full.
    /// Without, it must fit a chunk.
    pub(super) fn push(&mut self, stream: u16, kind: u32, mut data: &[u8], joins: bool) {
        self.queued += data.len();
        if joins
            && let Some(last) = self.queue.back_mut()
            && last.is_open
            && (last.head.stream, last.head.kind) == (stream, kind)
        {
            let (head, rest) = data.split_at(data.len().min(MAX_PAYLOAD - last.data.len()));
            last.data.extend(head);
            data = rest;
        }
        for piece in data.chunks(MAX_PAYLOAD) {
            let head = Head { stream, number: self.number, kind, flags: BEGIN | END };
            self.number = self.number.wrapping_add(1);
            self.queue.push_back(Waiting { head, data: piece.to_vec(), is_open: joins });
        }
    }

    /// Takes an acknowledgement; `None` if it tells of what was never sent.
    pub(super) fn acknowledge(&mut self, body: &[u8], now_us: u64) -> Option<()> {
        let (cumulative, room) = (u32_at(body, 0)?, u32_at(body, 4)?);
        let (gaps, duplicates) = (usize::from(u16_at(body, 8)?), u16_at(body, 10)?);
        let gaps = body.get(12..12 + 4 * gaps)?;
        let count = cumulative.wrapping_sub(self.una).wrapping_add(1);
        if count.cast_signed() < 0 {
            // An older one.
            return Some(());
        }
        if count > self.span() {
            return None;
        }
        let mut news = News::default();
        for _ in 0..count {
            let Some(slot) = self.slots.pop_front() else { break };
            self.settle(slot.sent, slot.data.len(), now_us, &mut news);
        }
        self.una = self.una.wrapping_add(count);
        self.take_gaps(gaps, now_us, &mut news);
        if duplicates > 0 && self.repeated > 0 {
            // Those that were late had not been lost.
            self.threshold = (self.threshold * 2).min(MOST_OVERTAKEN);
        }
        self.set_room(room);
        if news.bytes > 0 {
            self.learn(&news, now_us);
        }
        self.find_losses();
        Some(())
    }

    fn take_gaps(&mut self, gaps: &[u8], now_us: u64, news: &mut News) {
        let mut from = 0;
        for gap in gaps.as_chunks::<4>().0 {
            let [first, last] =
                [[gap[0], gap[1]], [gap[2], gap[3]]].map(|end| usize::from(u16::from_be_bytes(end)));
            // Number 1 is the one behind the cumulative one, which is the first that is kept.
            if first <= from || last < first || first > self.slots.len() {
                return;
            }
            from = last;
            for at in first - 1..last.min(self.slots.len()) {
                let slot = &mut self.slots[at];
                let (sent, data) = (slot.sent, std::mem::take(&mut slot.data));
                slot.sent.fate = Fate::Acked;
                self.settle(sent, data.len(), now_us, news);
            }
        }
    }

    fn settle(&mut self, sent: Sent, len: usize, now_us: u64, news: &mut News) {
        if sent.fate == Fate::Acked {
            return;
        }
        news.bytes += len + OVERHEAD;
        self.outstanding -= len;
        if sent.fate == Fate::InFlight {
            self.in_flight -= len + OVERHEAD;
        }
        if sent.transmissions == 1 {
            if news.newest.is_none_or(|newest| newest.0 < sent.at_us) {
                news.newest = Some((sent.at_us, sent.delivered));
            }
        } else if now_us.saturating_sub(sent.at_us) < self.model.estimate().min_rtt_us / 8 * 7 {
            // It is an earlier transmission that has arrived.
            return;
        }
        self.newest_order = self.newest_order.max(sent.order);
    }

    fn learn(&mut self, news: &News, now_us: u64) {
        let rtt_us = news.newest.map(|(sent_us, _)| now_us.saturating_sub(sent_us).max(1));
        if let Some(rtt_us) = rtt_us {
            if self.smoothed_us == 0 {
                (self.smoothed_us, self.varies_us) = (rtt_us, rtt_us / 2);
            } else {
                self.varies_us = (3 * self.varies_us + self.smoothed_us.abs_diff(rtt_us)) / 4;
                self.smoothed_us = (7 * self.smoothed_us + rtt_us) / 8;
            }
        }
        self.model.handle_ack(AckSample {
            now_us,
            bytes: news.bytes as u64,
            delivered_at_send: news.newest.map_or(0, |newest| newest.1),
            sent_us: news.newest.map(|newest| newest.0),
            rtt_us,
            in_flight: self.in_flight as u64,
        });
        self.backoff = 0;
        self.timeout_us = (self.outstanding > 0).then_some(now_us + self.rto_us());
    }

    fn rto_us(&self) -> u64 {
        let rto_us = match self.smoothed_us {
            0 => FIRST_RTO_US,
            smoothed_us => smoothed_us + (4 * self.varies_us).max(LEAST_LATE_US),
        };
        (rto_us << self.backoff.min(8)).min(MAX_RTO_US)
    }

    fn find_losses(&mut self) {
        // With nothing new to send, little is left that could overtake.
        let is_tail = self.queue.is_empty() && self.threshold == OVERTAKEN;
        let threshold = if is_tail { 1 } else { self.threshold };
        let (mut bytes, mut scattered, mut gap) = (0, 0, (self.una, 0));
        while let Some(&(order, tsn)) = self.log.front()
            && order + threshold <= self.newest_order
        {
            self.log.pop_front();
            let at = tsn.wrapping_sub(self.una) as usize;
            let Some(slot) = self.slots.get_mut(at) else { continue };
            if slot.sent.fate != Fate::InFlight || slot.sent.order != order {
                continue;
            }
            slot.sent.fate = Fate::Lost;
            let len = slot.data.len() + OVERHEAD;
            self.in_flight -= len;
            self.due.push_back(tsn);
            gap = (tsn, if tsn == gap.0.wrapping_add(1) { gap.1 + 1 } else { 1 });
            bytes += len as u64;
            scattered += if gap.1 <= GAP { len as u64 } else { 0 };
        }
        self.model.handle_lost(bytes, scattered);
    }

    /// Chunks that have been under way for too long are lost.
    pub(super) fn handle_timeout(&mut self, now_us: u64) {
        if self.timeout_us.is_none_or(|at_us| now_us < at_us) {
            return;
        }
        let rto_us = self.rto_us() >> self.backoff.min(8);
        let una = self.una;
        for (at, slot) in (0..).zip(&mut self.slots) {
            if slot.sent.fate == Fate::InFlight && slot.sent.at_us + rto_us <= now_us {
                slot.sent.fate = Fate::Lost;
                self.in_flight -= slot.data.len() + OVERHEAD;
                self.due.push_back(una.wrapping_add(at));
            }
        }
        self.backoff += 1;
        self.timeout_us = (self.outstanding > 0).then_some(now_us + self.rto_us());
    }

    fn has_due(&mut self) -> bool {
        while let Some(&tsn) = self.due.front() {
            let at = tsn.wrapping_sub(self.una) as usize;
            if self.slots.get(at).is_some_and(|slot| slot.sent.fate == Fate::Lost) {
                return true;
            }
            self.due.pop_front();
        }
        false
    }

    /// Payload of the chunk that may leave now; none if there is none, or it has to wait.
    pub(super) fn next_len(&mut self, now_us: u64) -> Option<usize> {
        let has_due = self.has_due();
        if !has_due && !self.has_room() {
            if (self.in_flight as u64) < self.model.bound() {
                self.model.handle_idle(self.in_flight as u64);
            }
            return None;
        }
        if !self.fits() || self.model.send_at(now_us).is_some() {
            return None;
        }
        if has_due {
            let at = self.due.front()?.wrapping_sub(self.una) as usize;
            return self.slots.get(at).map(|slot| slot.data.len());
        }
        self.queue.front().map(|waiting| waiting.data.len())
    }

    /// Whether the other end has room for a new chunk; one may always be under way.
    fn has_room(&self) -> bool {
        self.queue.front().is_some_and(|next| next.data.len() <= self.room || self.outstanding == 0)
    }

    fn fits(&self) -> bool {
        let bound = self.model.bound();
        (self.in_flight as u64) < if self.backoff > 1 { bound.min(PROBING) } else { bound }
    }

    /// Adds the chunk that [`SctpSender::next_len`] has told of.
    pub(super) fn emit(&mut self, now_us: u64, out: &mut Vec<u8>) {
        let again = self.has_due();
        let tsn = if again { self.due.pop_front() } else { self.number_next() };
        let Some(tsn) = tsn else { return };
        let at = tsn.wrapping_sub(self.una) as usize;
        let before = self.in_flight as u64;
        // The last for now: nothing follows that would make the other end acknowledge it.
        let is_last = self.queue.is_empty() && self.due.is_empty() && self.in_flight > 4 * MTU;
        self.order += 1;
        let slot = &mut self.slots[at];
        slot.sent = Sent {
            fate: Fate::InFlight,
            order: self.order,
            at_us: now_us,
            delivered: self.model.delivered(),
            transmissions: slot.sent.transmissions + 1,
        };
        let bytes = slot.data.len() + OVERHEAD;
        let Head { stream, number, kind, flags } = slot.head;
        let mut head = [0; 12];
        head[..4].copy_from_slice(&tsn.to_be_bytes());
        head[4..6].copy_from_slice(&stream.to_be_bytes());
        head[6..8].copy_from_slice(&number.to_be_bytes());
        head[8..].copy_from_slice(&kind.to_be_bytes());
        let flags = flags | if is_last { IMMEDIATE } else { 0 };
        packet::push_chunk(out, packet::DATA, flags, &head, &slot.data);
        self.in_flight += bytes;
        self.repeated += u64::from(again);
        self.log.push_back((self.order, tsn));
        self.model.handle_sent(now_us, bytes as u64, before, again);
        let rto_us = self.rto_us();
        self.timeout_us.get_or_insert(now_us + rto_us);
    }

    fn number_next(&mut self) -> Option<u32> {
        let Waiting { head, data, .. } = self.queue.pop_front()?;
        let tsn = self.una.wrapping_add(self.span());
        self.queued -= data.len();
        self.outstanding += data.len();
        self.room = self.room.saturating_sub(data.len());
        let sent = Sent { fate: Fate::Lost, order: 0, at_us: 0, delivered: 0, transmissions: 0 };
        self.slots.push_back(Slot { head, data, sent });
        Some(tsn)
    }

    /// When there is something to do, in microseconds; 0 is now.
    pub(super) fn due_us(&self) -> Option<u64> {
        let is_ready = (!self.due.is_empty() || self.has_room()) && self.fits();
        let paced = is_ready.then(|| self.model.send_at(0).unwrap_or_default());
        [paced, self.timeout_us].into_iter().flatten().min()
    }

    /// Gives back what an idle connection needs no more.
    pub(super) fn rest(&mut self) {
        if self.slots.is_empty() && self.queue.is_empty() && self.slots.capacity() + self.log.capacity() > 128
        {
            (self.slots, self.queue) = Default::default();
            (self.log, self.due) = Default::default();
        }
    }
}
