//! Payload from and to an end that may speak a protocol, for callers that have to look into it.
//!
//! Everything is polled and keeps its state outside of futures. A caller that stops polling loses no byte and cuts no
//! frame.

use std::task::{Context, Poll, ready};

use adit_net::rt::{self, Chunk, Pool};

use crate::connections::record::{EndReason, Side};
use crate::relay::{Endpoint, Filled, Pending, poll_fill_frames, stage};

/// Result of one read.
pub(crate) struct Received {
    /// The payload: the chunk's list of parts, perhaps empty while a frame is incomplete.
    pub(crate) chunk: Chunk,
    /// The end's direction is over behind it.
    pub(crate) ended: bool,
}

impl Received {
    /// Length of the payload in bytes.
    pub(crate) fn len(&self) -> usize {
        self.chunk.out.iter().map(std::ops::Range::len).sum()
    }
}

/// One read from `end`, opened in place. No chunk is taken before there is something to read.
pub(crate) fn poll_recv(
    end: &mut Endpoint,
    side: Side,
    pool: &Pool,
    cx: &mut Context<'_>,
) -> Poll<Result<Received, EndReason>> {
    poll_recv_most(end, side, pool, pool.read_len(), cx)
}

/// The same, of at most `most` bytes. Protocol overhead comes on top, and a frame that was cut before comes whole.
pub(crate) fn poll_recv_most(
    end: &mut Endpoint,
    side: Side,
    pool: &Pool,
    most: usize,
    cx: &mut Context<'_>,
) -> Poll<Result<Received, EndReason>> {
    ready!(end.poll_readable(cx)).map_err(|error| EndReason::Socket(side, error.kind()))?;
    let mut chunk = ready!(rt::poll_chunk(pool, cx));
    let ended = if end.stack.is_some() {
        let filled = ready!(poll_fill_frames(&mut chunk, cx, end, side, most, pool, rt::now()))?;
        matches!(filled, Filled::End(_))
    } else {
        let free = chunk.buf.free_mut();
        let most = free.len().min(most);
        let received = ready!(end.stream.poll_recv(cx, &mut free[..most]))
            .map_err(|error| EndReason::Socket(side, error.kind()))?;
        chunk.push_out(0..received);
        received == 0
    };
    Poll::Ready(Ok(Received { chunk, ended }))
}

/// Bytes that wait to be sent to one end: a text, and a chunk behind it.
#[derive(Default)]
pub(crate) struct PendingPayload {
    /// As it goes over the wire.
    sealed: Pending,
    text: Vec<u8>,
    chunk: Option<Chunk>,
}

impl PendingPayload {
    /// The text, to append to. It goes out in front of a chunk.
    pub(crate) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Queues the parts of `chunk`; the last one must have been flushed.
    pub(crate) fn push(&mut self, chunk: Chunk) {
        debug_assert!(self.chunk.is_none(), "one chunk at a time");
        if !chunk.out.is_empty() {
            self.chunk = Some(chunk);
        }
    }

    /// Whether everything has been handed to the system.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.sealed, Pending::Nothing) && self.is_sealed()
    }

    /// Bytes that wait outside of blocks of the pool.
    pub(crate) fn kept(&self) -> usize {
        self.sealed.kept() + self.text.capacity()
    }

    fn is_sealed(&self) -> bool {
        self.text.is_empty() && self.chunk.is_none()
    }

    /// Seals and sends until nothing waits.
    pub(crate) fn poll_flush(
        &mut self,
        end: &mut Endpoint,
        side: Side,
        pool: &Pool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), EndReason>> {
        loop {
            ready!(self.sealed.poll_flush(cx, &end.stream, pool))
                .map_err(|error| EndReason::Socket(side, error.kind()))?;
            if self.is_sealed() {
                return Poll::Ready(Ok(()));
            }
            self.sealed = if end.stack.is_some() { ready!(self.seal(end, pool, cx))? } else { self.lay() };
        }
    }

    /// Plain: the text goes into the room in front of the chunk's payload if it fits, and leaves with it.
    fn lay(&mut self) -> Pending {
        let text = std::mem::take(&mut self.text);
        let Some(mut chunk) = self.chunk.take() else { return Pending::Small { bytes: text, offset: 0 } };
        let first = chunk.out[0].start;
        let Some(start) = first.checked_sub(text.len()) else {
            self.chunk = Some(chunk);
            return Pending::Small { bytes: text, offset: 0 };
        };
        chunk.buf.block_mut()[start..first].copy_from_slice(&text);
        chunk.out[0].start = start;
        Pending::Chunk { chunk, part: 0, offset: 0 }
    }

    fn seal(
        &mut self,
        end: &mut Endpoint,
        pool: &Pool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Pending, EndReason>> {
        let mut sealed = ready!(rt::poll_chunk(pool, cx));
        let chunk = self.chunk.take();
        let text = std::mem::take(&mut self.text);
        let parts =
            chunk.iter().flat_map(|chunk| chunk.out.iter().map(|part| &chunk.buf.block()[part.clone()]));
        let parts = std::iter::once(&text[..]).chain(parts).filter(|part| !part.is_empty());
        let total = parts.clone().map(<[u8]>::len).sum();
        stage(&mut sealed, end.stack.as_deref_mut(), rt::now(), parts, total, &mut self.text)
            .map_err(EndReason::Wire)?;
        Poll::Ready(Ok(Pending::Chunk { chunk: sealed, part: 0, offset: 0 }))
    }
}

/// Ends our direction towards `end` by its protocol's own message. Everything before it must have been flushed, and
/// if this future is dropped the end is of no use any more.
pub(crate) async fn send_end(end: &mut Endpoint, pool: &Pool) -> Result<(), EndReason> {
    let Some(stack) = &mut end.stack else { return Ok(()) };
    let mut chunk = std::future::poll_fn(|cx| rt::poll_chunk(pool, cx)).await;
    let sealed = stack.seal_end(chunk.buf.block_mut(), rt::now()).map_err(EndReason::Wire)?;
    let sent = end.stream.send_all(&chunk.buf.block()[sealed]).await;
    sent.map_err(|error| EndReason::Socket(Side::Far, error.kind()))
}
