use std::ops::Range;
use std::time::Instant;

use super::WireError;
use crate::buf::RecvBuf;

/// Bytes that a layer adds around the payload of one frame, at the very most, and the longest payload that
/// one frame may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes in front of the payload (salt, headers, padding, a pending request or reply).
    pub head: usize,
    /// Bytes behind the payload (tags).
    pub tail: usize,
    /// Longest payload of the frame; `usize::MAX` for a layer without frames.
    pub max_payload: usize,
}

/// The layout of the next write's payload in the caller's block: the first frame, then equal ones.
///
/// ```text
///   [first.head | payload <= first.max_payload | first.tail][rest.head | payload | rest.tail][rest.head | ...
/// ```
///
/// If every byte of `head` and `tail` is used, the sealed frames touch each other and go out in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Room of the first frame of the write.
    pub first: Room,
    /// Room of each later frame of the same write.
    pub rest: Room,
}

/// Result of [`Layer::open`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// Nothing can be said before at least this many further bytes (never 0) are there.
    NeedMore(usize),
    /// Payload, as a range into the block of the [`RecvBuf`]; may be empty.
    Payload(Range<usize>),
    /// The peer has ended its direction in band. Bytes behind the end stay unread.
    End,
}

/// The way in which a layer ends its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOfStream {
    /// Only by closing the transport's direction (FIN).
    Transport,
    /// By a message of its own, [`Layer::seal_end`]; the transport stays open.
    InBand,
}

/// One stream in, one stream out: ciphers, framing, obfuscation.
///
/// The caller owns all buffers and drives both directions independently:
///
/// * To send: [`plan`](Layer::plan), place payload pieces in a block with the room asked for,
///   [`seal`](Layer::seal) each in order, then [`finish_write`](Layer::finish_write) once, and send the returned
///   ranges in order.
/// * To receive: append bytes to a [`RecvBuf`], then call [`open`](Layer::open) until it asks for more. Any split
///   of the input gives the same payload bytes (ranges may be cut differently).
///
/// After an error a direction is dead: further calls on it may return anything, but do not panic.
pub trait Layer {
    /// The layout of the next write at time `now`. Changes nothing: asking without writing is allowed.
    fn plan(&self, now: Instant) -> Plan;

    /// Seals the payload at `payload` in `block`, in place, and returns the range of the finished frame.
    ///
    /// At least the room of [`Layer::plan`] must lie free around `payload`, which is no longer than
    /// `max_payload`. An empty `payload` sends what is pending in the layer (a request, a reply) on its own, and
    /// yields an empty range when nothing is.
    ///
    /// # Errors
    /// [`WireError::Exhausted`] when the direction has used up its nonces.
    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError>;

    /// All frames of one write have been sealed: size ramps advance here.
    fn finish_write(&mut self, _now: Instant) {}

    /// True while the layer holds bytes that wait for the next write (a request header, a reply).
    fn has_pending(&self) -> bool {
        false
    }

    /// The way in which this layer ends its sending direction.
    fn end_of_stream(&self) -> EndOfStream {
        EndOfStream::Transport
    }

    /// Seals the in-band end of the sending direction, pending bytes first, starting at offset `at` of `block`
    /// (at least `plan().first.head + tail` and once more `rest.head + tail` bytes are free there), and returns
    /// its range: empty for [`EndOfStream::Transport`].
    ///
    /// # Errors
    /// [`WireError::Exhausted`] as for [`Layer::seal`].
    fn seal_end(&mut self, _block: &mut [u8], at: usize, _now: Instant) -> Result<Range<usize>, WireError> {
        Ok(at..at)
    }

    /// Whether [`Layer::seal_end`] has ended the sending direction of the current exchange in band.
    fn has_ended(&self) -> bool {
        false
    }

    /// Whether the peer is known to go on answering after the end of our direction.
    fn carries_half_close(&self) -> bool {
        true
    }

    /// Opens the next unit of `wire` in place.
    ///
    /// # Errors
    /// An error in the peer's bytes.
    fn open(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError>;

    /// Whether [`Layer::open`] stopped for lack of room, not of bytes: it goes on in a buffer with room.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Most bytes that one read may bring, so that there is room to open them.
    fn most_received(&self) -> usize {
        usize::MAX
    }

    /// The transport has ended (FIN) with `unread` bytes left unopened: is that a legal end of the peer's
    /// direction?
    ///
    /// # Errors
    /// [`WireError::Truncated`] when the end cuts a unit.
    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError>;
}

/// A layer whose type is known only when a connection begins.
impl Layer for Box<dyn Layer> {
    fn plan(&self, now: Instant) -> Plan {
        (**self).plan(now)
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        (**self).seal(block, payload, now)
    }

    fn finish_write(&mut self, now: Instant) {
        (**self).finish_write(now);
    }

    fn has_pending(&self) -> bool {
        (**self).has_pending()
    }

    fn end_of_stream(&self) -> EndOfStream {
        (**self).end_of_stream()
    }

    fn seal_end(&mut self, block: &mut [u8], at: usize, now: Instant) -> Result<Range<usize>, WireError> {
        (**self).seal_end(block, at, now)
    }

    fn has_ended(&self) -> bool {
        (**self).has_ended()
    }

    fn carries_half_close(&self) -> bool {
        (**self).carries_half_close()
    }

    fn open(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError> {
        (**self).open(wire, now)
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        (**self).handle_transport_end(unread)
    }
}
