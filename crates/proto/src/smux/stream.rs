use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::QUANTUM;

/// Bytes that a sender may have outstanding before it has heard of a window (smux 1.5.16 to 1.5.57).
pub(super) const ASSUMED_WINDOW: u32 = 262_144;

/// Bytes by which the room for a reader grows at most.
const STEP: usize = 1 << 20;

/// One stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) sending: VecDeque<u8>,
    pub(super) receiving: VecDeque<u8>,
    /// State of the outgoing direction.
    pub(super) output: Output,
    /// The peer has sent FIN.
    pub(super) ended: bool,
    /// It has broken the stream off before.
    pub(super) reset: bool,
    /// Waits in one of the queues of the scheduler.
    pub(super) scheduled: bool,
    /// Bytes that it may still send in its turn.
    pub(super) deficit: usize,
    /// Bytes that all streams had sent when it last was given a quantum.
    pub(super) refilled_with: u64,
    /// Its writer has been refused room and is to be told of it.
    pub(super) starved: bool,
    /// Its reader has been told of everything.
    pub(super) announced: bool,
    pub(super) window: StreamWindow,
    /// Bytes sent, modulo 2^32, and what the peer has told of them.
    written: u32,
    peer_consumed: u32,
    peer_window: u32,
}

/// The direction out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Open,
    /// FIN follows what is queued.
    Ending,
    Ended,
}

/// The window that the peer is given, which grows as long as it is what limits the stream.
#[derive(Debug)]
pub(super) struct StreamWindow {
    size: u32,
    limit: u32,
    consumed: u32,
    told: u32,
    /// The peer is about to be told.
    pub(super) is_due: bool,
    /// Consumed since `since`.
    lately: u32,
    since: Option<Instant>,
}

impl Stream {
    pub(super) fn new(window: StreamWindow) -> Self {
        Self {
            sending: VecDeque::new(),
            receiving: VecDeque::new(),
            output: Output::Open,
            ended: false,
            reset: false,
            scheduled: false,
            deficit: QUANTUM,
            refilled_with: 0,
            starved: false,
            announced: false,
            window,
            written: 0,
            peer_consumed: 0,
            peer_window: ASSUMED_WINDOW,
        }
    }

    /// Bytes that the peer's window lets through; `None` if it claims to have consumed more than was sent.
    pub(super) fn allowance(&self) -> Option<usize> {
        let outstanding = self.written.wrapping_sub(self.peer_consumed).cast_signed();
        let outstanding = u32::try_from(outstanding).ok()?;
        Some(self.peer_window.min(u32::MAX >> 1).saturating_sub(outstanding) as usize)
    }

    pub(super) fn handle_update(&mut self, consumed: u32, window: u32) {
        (self.peer_consumed, self.peer_window) = (consumed, window);
    }

    pub(super) fn note_sent(&mut self, len: usize) {
        self.written = self.written.wrapping_add(u32::try_from(len).expect("a frame is short"));
    }

    /// Keeps bytes for the reader. Their memory grows in steps: doubling would have it jump by megabytes.
    pub(super) fn receive(&mut self, data: &[u8]) {
        let (len, capacity) = (self.receiving.len(), self.receiving.capacity());
        if data.len() > capacity - len {
            self.receiving.reserve_exact(data.len().max(capacity.min(STEP)));
        }
        self.receiving.extend(data);
    }

    /// After the reader has taken bytes: gives back what is not needed for the rest.
    pub(super) fn give_back(&mut self) {
        let (len, capacity) = (self.receiving.len(), self.receiving.capacity());
        if len == 0 {
            self.receiving = VecDeque::new();
        } else if capacity > STEP / 8 && len < capacity / 4 {
            self.receiving.shrink_to(2 * len);
        }
    }

    /// Whether both directions are over and nothing is left to read.
    pub(super) fn is_over(&self) -> bool {
        self.output == Output::Ended && self.ended && self.receiving.is_empty()
    }
}

impl StreamWindow {
    /// A window of `size` bytes, which may grow to `limit`.
    pub(super) fn new(size: u32, limit: u32) -> Self {
        Self { size, limit: limit.max(size), consumed: 0, told: 0, is_due: false, lately: 0, since: None }
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    pub(super) fn consumed(&self) -> u32 {
        self.consumed
    }

    /// The reader has taken `len` bytes. True if the peer should be told, which is counted as done.
    ///
    /// smux tells after half a window; a quarter keeps the sender from running into its end.
    pub(super) fn consume(&mut self, len: usize) -> bool {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let is_first = self.consumed == 0 && self.told == 0;
        self.consumed = self.consumed.wrapping_add(len);
        self.lately = self.lately.saturating_add(len);
        if is_first || self.consumed.wrapping_sub(self.told) >= self.size / 4 {
            self.told = self.consumed;
            return true;
        }
        false
    }

    /// Doubles the window, if more than half of it was consumed within four round trips and `budget` allows it: then
    /// it is what limits the stream, of which two may be spent on waiting for what was lost. Returns by how much.
    pub(super) fn grow(&mut self, now: Instant, round_trip: Duration, budget: usize) -> usize {
        let since = *self.since.get_or_insert(now);
        let is_full = self.lately > self.size / 2;
        let in_time = now.saturating_duration_since(since) <= 4 * round_trip;
        if !in_time {
            self.since = Some(now);
            self.lately = 0;
            return 0;
        }
        let larger = self.size.saturating_mul(2).min(self.limit);
        let more = (larger - self.size) as usize;
        if !is_full || more == 0 || more > budget {
            return 0;
        }
        self.size = larger;
        self.since = Some(now);
        self.lately = 0;
        more
    }
}
