//! Caller-owned receive buffers.
//!
//! ```text
//!   block:  [ consumed | unread wire bytes | free | expanded payload ]
//!            0     start              end    top                  len
//! ```
//!
//! Invariant: `start <= end <= top <= block.len()`. A layer opens frames in place and reports payload as ranges into
//! the block; the bytes of a range stay valid until the next call to [`RecvBuf::compact`] or [`RecvBuf::reset`].

use std::ops::Range;

/// One block of bytes that is being received into and parsed in place.
///
/// The block is zeroed once, when it is made, and used again and again: no uninitialised memory, no allocation.
#[derive(Debug, Default)]
pub struct RecvBuf {
    block: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes behind `end` that belong to outer layers, while an inner one opens.
    hidden: usize,
    /// Begin of payload that was written at the block's end.
    top: usize,
}

impl RecvBuf {
    /// A buffer of `len` zeroed bytes.
    pub fn with_len(len: usize) -> Self {
        Self { block: vec![0; len].into_boxed_slice(), top: len, ..Self::default() }
    }

    /// A buffer that holds exactly `bytes`, all unread. Meant for tests and small handshakes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self { block: bytes.into(), end: bytes.len(), top: bytes.len(), ..Self::default() }
    }

    /// The wire bytes that no layer has consumed yet.
    pub fn unread(&self) -> &[u8] {
        &self.block[self.start..self.end]
    }

    /// As [`RecvBuf::unread`], for opening in place.
    pub fn unread_mut(&mut self) -> &mut [u8] {
        &mut self.block[self.start..self.end]
    }

    /// Offset in the block of the first unread byte: add it to offsets in [`RecvBuf::unread`] to make ranges.
    pub fn position(&self) -> usize {
        self.start
    }

    /// Number of the `len` bytes that have not arrived yet, if any.
    pub fn missing(&self, len: usize) -> Option<usize> {
        len.checked_sub(self.unread().len()).filter(|missing| *missing > 0)
    }

    /// Marks `len` unread bytes as consumed.
    ///
    /// # Panics
    /// If fewer than `len` bytes are unread: the caller has counted wrongly.
    pub fn consume(&mut self, len: usize) {
        assert!(len <= self.end - self.start, "consumed {len} of {} unread bytes", self.end - self.start);
        self.start += len;
    }

    /// The free space behind the unread bytes, to receive into; see [`RecvBuf::filled`].
    pub fn free_mut(&mut self) -> &mut [u8] {
        &mut self.block[self.end..self.top]
    }

    /// Marks the first `len` bytes of [`RecvBuf::free_mut`] as received.
    ///
    /// # Panics
    /// If the free space is shorter than `len`.
    pub fn filled(&mut self, len: usize) {
        assert!(len <= self.top - self.end, "filled {len} of {} free bytes", self.top - self.end);
        self.end += len;
    }

    /// Copies `bytes` behind the unread ones, as far as they fit; returns how many were taken.
    pub fn extend(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.top - self.end);
        self.block[self.end..self.end + len].copy_from_slice(&bytes[..len]);
        self.end += len;
        len
    }

    /// Moves the unread bytes to the front of the block. Ranges handed out before are void afterwards.
    pub fn compact(&mut self) {
        self.block.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        self.top = self.block.len();
    }

    /// Forgets everything: the buffer is empty and its whole block free.
    pub fn reset(&mut self) {
        self.start = 0;
        self.end = 0;
        self.top = self.block.len();
    }

    /// Takes `len` bytes from the end of the block, for payload that is longer than its frame. `None` where there is no
    /// such room; [`RecvBuf::compact`] and [`RecvBuf::reset`] give it back.
    pub fn take_top(&mut self, len: usize) -> Option<Range<usize>> {
        let start = self.top.checked_sub(len).filter(|start| *start >= self.end + self.hidden)?;
        let range = start..self.top;
        self.top = start;
        Some(range)
    }

    /// Declares `len` bytes behind the unread ones to belong to outer layers: [`RecvBuf::take_top`] leaves them alone.
    pub fn set_hidden(&mut self, len: usize) {
        self.hidden = len;
    }

    /// Declares `range` of the block to be the unread bytes (for layers that have moved bytes themselves).
    ///
    /// # Panics
    /// If the range does not lie in the block.
    pub fn set_unread(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.block.len(), "unread range outside the block");
        self.start = range.start;
        self.end = range.end;
    }

    /// The whole block; payload ranges index into it.
    pub fn block(&self) -> &[u8] {
        &self.block
    }

    /// As [`RecvBuf::block`], for moving bytes or sealing in place.
    pub fn block_mut(&mut self) -> &mut [u8] {
        &mut self.block
    }

    /// Length of the block in bytes.
    pub fn capacity(&self) -> usize {
        self.block.len()
    }
}
