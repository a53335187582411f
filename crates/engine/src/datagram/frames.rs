//! Datagrams that travel as frames of a stream: the ones that wait to be sent.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use adit_net::rt::{Pool, Stream};
use adit_proto::wire::WireError;

use super::DropReason;
use crate::relay::Stack;

/// Bytes that wait for a stream that takes nothing; what comes then is dropped. Some 180 datagrams of 1,400 bytes, or
/// what a path of 20 Mbit/s carries in a tenth of a second.
const MAX_WAITING: usize = 256 * 1024;

/// Bytes after which a write is worth its call, however many datagrams may follow.
const LONG: usize = 64 * 1024;

/// Sealed frames, one behind the other, so that many leave with one call. Holds memory only while something waits.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Longest payload of a frame, in bytes.
    max_payload: usize,
    bytes: Vec<u8>,
    sent: usize,
}

impl Frames {
    /// Frames that carry up to `max_payload` bytes each.
    pub(crate) fn new(max_payload: usize) -> Self {
        Self { max_payload, bytes: Vec::new(), sent: 0 }
    }

    /// Whether so much waits that it should be sent before more comes.
    pub(crate) fn is_long(&self) -> bool {
        self.bytes.len() - self.sent >= LONG
    }

    /// Seals what `stack` has pending, a request or a reply, as a frame of its own.
    pub(crate) fn push_pending(
        &mut self,
        stack: &mut Stack,
        pool: &Pool,
        now: Instant,
    ) -> Result<(), WireError> {
        if !stack.has_pending() {
            return Ok(());
        }
        let room = stack.plan(now).first;
        let at = self.make_room(pool, room.head + room.tail);
        let sealed = stack.seal(&mut self.bytes, at + room.head..at + room.head, now)?;
        self.settle(at, sealed);
        Ok(())
    }

    /// Seals a datagram: `header_len` bytes that `emit` writes, and `payload`.
    pub(crate) fn push(
        &mut self,
        stack: &mut Stack,
        pool: &Pool,
        now: Instant,
        header_len: usize,
        emit: impl FnOnce(&mut [u8]),
        payload: &[u8],
    ) -> Result<(), DropReason> {
        self.push_pending(stack, pool, now)?;
        let room = stack.datagram_room(self.max_payload, now);
        let len = header_len + payload.len();
        if len > room.max_payload {
            return Err(DropReason::TooBig);
        }
        if self.bytes.len() - self.sent + room.head + len + room.tail > MAX_WAITING {
            return Err(DropReason::Backlog);
        }
        let at = self.make_room(pool, room.head + len + room.tail);
        let range = at + room.head..at + room.head + len;
        let (header, body) = self.bytes[range.clone()].split_at_mut(header_len);
        emit(header);
        body.copy_from_slice(payload);
        let sealed = stack.seal(&mut self.bytes, range, now)?;
        self.settle(at, sealed);
        Ok(())
    }

    /// Sends until nothing waits.
    pub(crate) fn poll_flush(
        &mut self,
        stream: &Stream,
        pool: &Pool,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.sent < self.bytes.len() {
            let sent = ready!(stream.poll_send(cx, &[IoSlice::new(&self.bytes[self.sent..])]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        if !self.bytes.is_empty() {
            pool.put_small(std::mem::take(&mut self.bytes));
            self.sent = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Makes room for `len` bytes and returns where they begin.
    fn make_room(&mut self, pool: &Pool, len: usize) -> usize {
        if self.bytes.capacity() == 0 {
            self.bytes = pool.take_small();
        } else if self.sent > MAX_WAITING / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        at
    }

    /// The frame in the room at `at` is `sealed`; it may have needed less.
    fn settle(&mut self, at: usize, sealed: Range<usize>) {
        let len = sealed.len();
        if sealed.start != at {
            self.bytes.copy_within(sealed, at);
        }
        self.bytes.truncate(at + len);
    }
}
