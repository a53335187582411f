//! Control messages (cmsg(3)): the kernel's facts about a datagram beside its bytes, and options for it.
//!
//! ```text
//!   +-----------------+---------+--------+------+---------------------+----
//!   | length, with    | level   | type   | data | padding to the size | next
//!   | this header: 8  | 4       | 4      |      | of a word           | ..
//!   +-----------------+---------+--------+------+---------------------+----
//! ```
//!
//! Offsets come from the C library's `cmsghdr`, since musl splits the length.

use std::mem::offset_of;

/// Longest sum of control messages that is read or written in one direction.
const LEN: usize = 192;

/// Messages start at multiples of a word.
const ALIGN: usize = size_of::<usize>();

/// Header of a message.
const HEADER: usize = size_of::<libc::cmsghdr>().next_multiple_of(ALIGN);

/// Room for the control messages of one datagram.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; LEN],
    used: usize,
}

impl Control {
    pub(super) const EMPTY: Self = Self { bytes: [0; LEN], used: 0 };

    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Appends a message; there is room for each kind once.
    pub(super) fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        let len = HEADER + data.len();
        let message = &mut self.bytes[self.used..self.used + len.next_multiple_of(ALIGN)];
        message.fill(0);
        put(message, offset_of!(libc::cmsghdr, cmsg_len), &len_field(len));
        put(message, offset_of!(libc::cmsghdr, cmsg_level), &level.to_ne_bytes());
        put(message, offset_of!(libc::cmsghdr, cmsg_type), &kind.to_ne_bytes());
        put(message, HEADER, data);
        self.used += message.len();
    }

    /// For the kernel to read.
    pub(super) fn filled(&mut self) -> (*mut libc::c_void, usize) {
        let bytes = if self.used == 0 { std::ptr::null_mut() } else { self.bytes.as_mut_ptr().cast() };
        (bytes, self.used)
    }

    /// For the kernel to write to.
    pub(super) fn free(&mut self) -> (*mut libc::c_void, usize) {
        (self.bytes.as_mut_ptr().cast(), LEN)
    }

    /// The messages in the first `len` bytes: level, type, data.
    pub(super) fn messages(&self, len: usize) -> Messages<'_> {
        Messages { rest: &self.bytes[..len.min(LEN)] }
    }
}

fn put(message: &mut [u8], at: usize, bytes: &[u8]) {
    message[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The length in the width that the C library gives it.
#[cfg(target_env = "musl")]
fn len_field(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("control messages are short").to_ne_bytes()
}

#[cfg(not(target_env = "musl"))]
fn len_field(len: usize) -> [u8; size_of::<usize>()] {
    len.to_ne_bytes()
}

pub(super) struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = (libc::c_int, libc::c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = self.rest.get(..HEADER)?;
        let len = &header[offset_of!(libc::cmsghdr, cmsg_len)..];
        #[cfg(target_env = "musl")]
        let len = u32::from_ne_bytes(*len.first_chunk()?) as usize;
        #[cfg(not(target_env = "musl"))]
        let len = usize::from_ne_bytes(*len.first_chunk()?);
        let data = self.rest.get(HEADER..len)?;
        let level = int(&header[offset_of!(libc::cmsghdr, cmsg_level)..])?;
        let kind = int(&header[offset_of!(libc::cmsghdr, cmsg_type)..])?;
        self.rest = self.rest.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((level, kind, data))
    }
}

/// The number at the start of `bytes`.
pub(super) fn int(bytes: &[u8]) -> Option<libc::c_int> {
    bytes.first_chunk().map(|bytes| libc::c_int::from_ne_bytes(*bytes))
}
