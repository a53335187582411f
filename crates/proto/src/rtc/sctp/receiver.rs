//! Data that comes: put in order by its transmission numbers, and acknowledged.

use std::collections::VecDeque;

use super::packet::{self, BEGIN, Chunk, DATA_HEADER_LEN, END, IMMEDIATE, u16_at, u32_at};

/// Numbers ahead of the next one that are kept.
const MAX_AHEAD: u32 = 16_384;
/// Bytes that keeping a chunk costs, besides its payload.
const PER_CHUNK: usize = 64;
/// Bytes beyond the window that are taken where they fill gaps: a window that is full of later chunks would stay so.
const SLACK: usize = 256 << 10;
/// Gaps that one acknowledgement tells of, and numbers that came twice.
const MAX_GAPS: usize = 240;
const MAX_DUPLICATES: usize = 16;
/// Packets of data that one acknowledgement may wait for, and the time that it waits for them.
/// Packets after the first one beyond a gap that are acknowledged each by itself, at once: senders of other programs count
/// three acknowledgements of later data before they send again, and some may be lost (RFC 4960, sections 6.2 and 7.2.4).
const TELLING: u8 = 6;
/// Acknowledgements that wait to be sent, at most.
const MAX_WAITING: usize = 32;
const EVERY: u8 = 2;
const DELAY_US: u64 = 40_000;

/// A chunk of data. A message is one of them or more.
#[derive(Debug)]
pub(in crate::rtc) struct Piece {
    /// Number of its stream.
    pub(in crate::rtc) stream: u16,
    /// Protocol identifier of its payload.
    pub(in crate::rtc) kind: u32,
    /// Whether it is a message of its own.
    pub(in crate::rtc) is_whole: bool,
    /// Its payload.
    pub(in crate::rtc) data: Vec<u8>,
}

impl Piece {
    fn cost(&self) -> usize {
        self.data.len() + PER_CHUNK
    }
}

/// The receiving half.
///
/// Everything is handed on in the order of transmission numbers. That is the order of messages of each stream as well, and
/// a peer has no use for more than one stream here.
#[derive(Debug)]
pub(super) struct SctpReceiver {
    /// The number that comes next.
    next: u32,
    /// From `next` on; the first is empty.
    slots: VecDeque<Option<Piece>>,
    /// First and last numbers of the runs in `slots`.
    runs: VecDeque<(u32, u32)>,
    ready: VecDeque<Piece>,
    ready_cost: usize,
    waiting_cost: usize,
    window: usize,
    /// The room that the last acknowledgement has told of.
    told: usize,
    duplicates: Vec<u32>,
    /// Packets to be acknowledged each by itself.
    telling: u8,
    /// Acknowledgements of those, in their order.
    waiting: VecDeque<Vec<u8>>,
    unacknowledged: u8,
    is_due: bool,
    due_us: Option<u64>,
}

impl SctpReceiver {
    pub(super) fn new(next: u32, window: usize) -> Self {
        Self {
            next,
            slots: VecDeque::new(),
            runs: VecDeque::new(),
            ready: VecDeque::new(),
            ready_cost: 0,
            waiting_cost: 0,
            window,
            told: window,
            duplicates: Vec::new(),
            telling: 0,
            waiting: VecDeque::new(),
            unacknowledged: 0,
            is_due: false,
            due_us: None,
        }
    }

    /// The number that comes next.
    #[cfg(test)]
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Bytes held, with what keeping them costs.
    pub(super) fn held(&self) -> usize {
        self.ready_cost + self.waiting_cost
    }

    /// Whether everything up to `tsn` has come.
    pub(super) fn has_all_until(&self, tsn: u32) -> bool {
        self.next.wrapping_sub(1).wrapping_sub(tsn).cast_signed() >= 0
    }

    /// Takes a chunk of data; false if it is none.
    pub(super) fn take(&mut self, chunk: Chunk<'_>) -> bool {
        let (Some(tsn), Some(stream), Some(kind)) =
            (u32_at(chunk.body, 0), u16_at(chunk.body, 4), u32_at(chunk.body, 8))
        else {
            return false;
        };
        let Some(data) = chunk.body.get(DATA_HEADER_LEN - 4..).filter(|data| !data.is_empty()) else {
            return false;
        };
        let was_whole = self.runs.is_empty();
        self.is_due |= chunk.flags & IMMEDIATE != 0;
        let ahead = tsn.wrapping_sub(self.next);
        if ahead.cast_signed() < 0 || self.slots.get(ahead as usize).is_some_and(Option::is_some) {
            if self.duplicates.len() < MAX_DUPLICATES {
                self.duplicates.push(tsn);
            }
            self.is_due = true;
            return true;
        }
        if ahead >= MAX_AHEAD || !self.has_room(ahead as usize) {
            self.is_due = true;
            return true;
        }
        let is_whole = chunk.flags & (BEGIN | END) == BEGIN | END;
        self.keep(tsn, ahead as usize, Piece { stream, kind, is_whole, data: data.to_vec() });
        self.is_due |= !was_whole || !self.runs.is_empty();
        true
    }

    fn has_room(&self, ahead: usize) -> bool {
        let held = self.held();
        let can_read = self.ready_cost < self.window;
        held < self.window
            || can_read && ahead < self.slots.len() && held < self.window + SLACK
            || can_read && ahead == 0
    }

    fn keep(&mut self, tsn: u32, ahead: usize, piece: Piece) {
        if ahead > 0 {
            self.waiting_cost += piece.cost();
            if self.slots.len() <= ahead {
                self.slots.resize_with(ahead + 1, || None);
            }
            self.slots[ahead] = Some(piece);
            return self.note_run(tsn);
        }
        self.push_ready(piece);
        self.slots.pop_front();
        while let Some(Some(_)) = self.slots.front() {
            let Some(Some(piece)) = self.slots.pop_front() else { break };
            self.waiting_cost -= piece.cost();
            self.push_ready(piece);
        }
        let next = self.next;
        while self.runs.front().is_some_and(|run| run.0.wrapping_sub(next).cast_signed() < 0) {
            self.runs.pop_front();
        }
        if self.slots.is_empty() && self.slots.capacity() > 256 {
            self.slots = VecDeque::new();
        }
    }

    fn push_ready(&mut self, piece: Piece) {
        self.ready_cost += piece.cost();
        self.next = self.next.wrapping_add(1);
        self.ready.push_back(piece);
    }

    fn note_run(&mut self, tsn: u32) {
        let base = self.next;
        let key = tsn.wrapping_sub(base);
        let at = self.runs.partition_point(|run| run.0.wrapping_sub(base) <= key);
        let joins_before = at > 0 && self.runs[at - 1].1.wrapping_add(1) == tsn;
        let joins_after = self.runs.get(at).is_some_and(|run| run.0 == tsn.wrapping_add(1));
        match (joins_before, joins_after) {
            (true, true) => {
                self.runs[at - 1].1 = self.runs[at].1;
                self.runs.remove(at);
            }
            (true, false) => self.runs[at - 1].1 = tsn,
            (false, true) => self.runs[at].0 = tsn,
            (false, false) => {
                self.runs.insert(at, (tsn, tsn));
                self.telling = TELLING;
            }
        }
    }

    /// The packet is over: `had_data` if there was data in it.
    pub(super) fn end_packet(&mut self, had_data: bool, now_us: u64) {
        if !had_data {
            return;
        }
        self.unacknowledged += 1;
        if self.unacknowledged >= EVERY {
            self.unacknowledged = EVERY;
            self.is_due = true;
        }
        self.due_us.get_or_insert(now_us + DELAY_US);
        if self.runs.is_empty() {
            self.telling = 0;
        } else if self.telling > 0 && self.waiting.len() < MAX_WAITING {
            self.telling -= 1;
            let body = self.acknowledgement();
            self.waiting.push_back(body);
        }
    }

    /// The next piece, if one is there.
    pub(super) fn front(&self) -> Option<&Piece> {
        self.ready.front()
    }

    pub(super) fn pop(&mut self) -> Option<Piece> {
        let piece = self.ready.pop_front()?;
        self.ready_cost -= piece.cost();
        // The other end stands still, or nearly.
        self.is_due |= self.told < self.window / 2 && self.room() >= self.told + self.window / 4;
        if self.ready.is_empty() && self.ready.capacity() > 64 {
            self.ready = VecDeque::new();
        }
        Some(piece)
    }

    fn room(&self) -> usize {
        self.window.saturating_sub(self.held())
    }

    pub(super) fn due_us(&self) -> Option<u64> {
        if self.is_due || !self.waiting.is_empty() { Some(0) } else { self.due_us }
    }

    /// Adds an acknowledgement if one is due.
    pub(super) fn emit(&mut self, now_us: u64, out: &mut Vec<u8>) {
        if self.due_us().is_none_or(|at_us| at_us > now_us) {
            return;
        }
        let body = self.waiting.pop_front().unwrap_or_else(|| self.acknowledgement());
        packet::push_chunk(out, packet::SACK, 0, &body, &[]);
    }

    /// The body of an acknowledgement of everything so far.
    fn acknowledgement(&mut self) -> Vec<u8> {
        let cumulative = self.next.wrapping_sub(1);
        let offset = |tsn: u32| u16::try_from(tsn.wrapping_sub(cumulative)).ok();
        let gaps = self.runs.iter().take(MAX_GAPS).map_while(|run| Some((offset(run.0)?, offset(run.1)?)));
        self.told = self.window.saturating_sub(self.ready_cost + self.waiting_cost);
        let mut body = Vec::with_capacity(12 + 4 * self.runs.len().min(MAX_GAPS));
        body.extend(cumulative.to_be_bytes());
        body.extend(u32::try_from(self.told).unwrap_or(u32::MAX).to_be_bytes());
        body.extend([0; 2]);
        body.extend(u16::try_from(self.duplicates.len()).unwrap_or_default().to_be_bytes());
        let mut count = 0_u16;
        for (first, last) in gaps {
            body.extend(first.to_be_bytes());
            body.extend(last.to_be_bytes());
            count += 1;
        }
        body[8..10].copy_from_slice(&count.to_be_bytes());
        for tsn in self.duplicates.drain(..) {
            body.extend(tsn.to_be_bytes());
        }
        self.unacknowledged = 0;
        self.is_due = false;
        self.due_us = None;
        body
    }
}
