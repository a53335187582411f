use std::collections::VecDeque;

use super::segment::before;
use super::{Admission, PER_SEGMENT};

/// Buffers that are kept for reuse while data flows.
const SPARE: usize = 64;

/// Pending acknowledgements that are kept at most: beyond, the oldest go, which `una` covers or a repetition renews.
const MAX_ACKS: usize = 4096;

/// Segments that a peer is told to send at most while only the next one is taken: it goes on, and does not have to ask.
const NARROW: u16 = 32;

/// The receiving half: puts segments in order and keeps account of what to acknowledge.
///
/// At most `window` segments wait for the reader and as many for a gap in front of them to be filled.
#[derive(Debug)]
pub(super) struct ArqReceiver {
    next: u32,
    window: u16,
    /// From `next` on; `None` has not arrived.
    gaps: VecDeque<Option<Vec<u8>>>,
    /// Bytes in them.
    waiting: usize,
    admission: Admission,
    /// In order, for the reader, who has taken `taken` bytes of the first.
    ready: VecDeque<Vec<u8>>,
    taken: usize,
    readable: usize,
    pub(super) acks: VecDeque<(u32, u32)>,
    /// The reader has made room in a window that was told to be closed.
    pub(super) reopened: bool,
    spare: Vec<Vec<u8>>,
    pub(super) repeated: u64,
    /// Segments that have come for the first time.
    fresh: u64,
}

impl ArqReceiver {
    pub(super) fn new(window: u16) -> Self {
        Self {
            next: 0,
            window,
            gaps: VecDeque::new(),
            waiting: 0,
            admission: Admission::All,
            ready: VecDeque::new(),
            taken: 0,
            readable: 0,
            acks: VecDeque::new(),
            reopened: false,
            spare: Vec::new(),
            repeated: 0,
            fresh: 0,
        }
    }

    pub(super) fn next(&self) -> u32 {
        self.next
    }

    pub(super) fn window(&self) -> u16 {
        self.window
    }

    pub(super) fn set_window(&mut self, window: u16) {
        self.window = window;
        self.settle();
    }

    pub(super) fn set_admission(&mut self, admission: Admission) {
        let before = std::mem::replace(&mut self.admission, admission);
        self.reopened |= before == Admission::Nothing && admission != Admission::Nothing;
    }

    /// The free window, as the peer is told.
    pub(super) fn free_window(&self) -> u16 {
        let free = u16::try_from(usize::from(self.window).saturating_sub(self.ready.len()));
        match self.admission {
            Admission::All => free.unwrap_or(u16::MAX),
            Admission::Next => free.unwrap_or(u16::MAX).min(NARROW),
            Admission::Nothing => 0,
        }
    }

    /// Segments that have been taken in, each once.
    pub(super) fn taken(&self) -> u64 {
        self.fresh
    }

    /// Bytes that the reader can take.
    pub(super) fn readable(&self) -> usize {
        self.readable
    }

    /// Bytes held, with what waits for gaps to be filled.
    pub(super) fn held(&self) -> usize {
        self.readable + self.waiting
    }

    /// The same with what keeping them costs.
    pub(super) fn footprint(&self) -> usize {
        self.held() + (self.gaps.len() + self.ready.len()) * PER_SEGMENT
    }

    /// The part of it that can be read.
    pub(super) fn readable_footprint(&self) -> usize {
        self.readable + self.ready.len() * PER_SEGMENT
    }

    /// Takes a PUSH. Duplicates are acknowledged again; what lies beyond the window, or is not admitted, is not.
    pub(super) fn push(&mut self, sn: u32, ts: u32, data: &[u8]) {
        let at = sn.wrapping_sub(self.next);
        if !before(sn, self.next.wrapping_add(self.window.into())) {
            return;
        }
        let is_known = before(sn, self.next) || self.gaps.get(at as usize).is_some_and(Option::is_some);
        let is_admitted = match self.admission {
            Admission::All => true,
            Admission::Next => at == 0,
            Admission::Nothing => false,
        };
        if !is_known && !is_admitted {
            return;
        }
        if self.acks.len() == MAX_ACKS {
            self.acks.pop_front();
        }
        self.acks.push_back((sn, ts));
        if before(sn, self.next) {
            self.repeated += 1;
            return;
        }
        let at = at as usize;
        if self.gaps.len() <= at {
            self.gaps.resize(at + 1, None);
        }
        if self.gaps[at].is_some() {
            self.repeated += 1;
            return;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.extend(data);
        self.fresh += 1;
        self.waiting += buffer.len();
        self.gaps[at] = Some(buffer);
        self.settle();
    }

    /// Moves what is in order to the reader, as far as the window allows.
    fn settle(&mut self) {
        while self.ready.len() < usize::from(self.window)
            && let Some(Some(_)) = self.gaps.front()
            && let Some(Some(data)) = self.gaps.pop_front()
        {
            self.waiting -= data.len();
            self.readable += data.len();
            self.ready.push_back(data);
            self.next = self.next.wrapping_add(1);
        }
    }

    /// The bytes that come next, as far as they lie together.
    pub(super) fn peek(&self) -> &[u8] {
        self.ready.front().map_or(&[], |data| &data[self.taken..])
    }

    /// Drops `len` bytes of what [`ArqReceiver::peek`] gave.
    pub(super) fn consume(&mut self, len: usize) {
        self.taken += len;
        self.readable -= len;
        while self.ready.front().is_some_and(|data| data.len() == self.taken) {
            let was_full = self.ready.len() >= usize::from(self.window);
            let buffer = self.ready.pop_front();
            self.release(buffer.unwrap_or_default());
            self.taken = 0;
            self.settle();
            self.reopened |= was_full && self.ready.len() < usize::from(self.window);
        }
    }

    /// Whether nothing waits, and more is kept than an idle session needs.
    pub(super) fn could_rest(&self) -> bool {
        self.ready.is_empty() && self.gaps.is_empty() && self.spare.len() > SPARE / 32
    }

    /// Gives that back.
    pub(super) fn rest(&mut self) {
        self.spare.truncate(SPARE / 32);
        self.gaps.shrink_to(SPARE);
        self.ready.shrink_to(SPARE);
        self.acks.shrink_to(SPARE);
    }

    fn release(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    #[cfg(test)]
    pub(super) fn spare(&self) -> usize {
        self.spare.len()
    }

    #[cfg(test)]
    pub(super) fn start_at(&mut self, sn: u32) {
        self.next = sn;
    }
}
