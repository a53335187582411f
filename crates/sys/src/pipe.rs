//! Bytes on their way from one socket to another that never enter this process (splice(2)).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};

use crate::handle::AsFd;

/// A pipe in the kernel. It holds references to the pages of received segments, one slot for each piece of memory.
#[derive(Debug)]
pub struct Pipe {
    exit: OwnedFd,
    entry: OwnedFd,
}

impl Pipe {
    /// An empty pipe with `len` bytes of room where the system allows it, else with what it gives: pages of 4,096 bytes,
    /// one to a slot. Neither end blocks.
    ///
    /// # Errors
    /// As pipe2(2).
    pub fn new(len: usize) -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for the two descriptors that the call writes.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has made this descriptor, and nobody else owns it.
        let exit = unsafe { OwnedFd::from_raw_fd(ends[0]) };
        // SAFETY: as above.
        let entry = unsafe { OwnedFd::from_raw_fd(ends[1]) };
        let len = libc::c_int::try_from(len).unwrap_or(libc::c_int::MAX);
        // SAFETY: the call takes numbers alone. An error leaves the pipe with the room that it has.
        unsafe { libc::fcntl(entry.as_raw_fd(), libc::F_SETPIPE_SZ, len) };
        Ok(Self { exit, entry })
    }

    /// Takes up to `most` bytes out of `source`'s queue; 0 is the end of the stream. A result below `most` says nothing
    /// about the queue: the slots may have been full.
    ///
    /// # Errors
    /// As splice(2): `WouldBlock` when the queue is empty or the pipe is full.
    pub fn fill(&self, source: impl AsFd, most: usize) -> io::Result<usize> {
        splice(source.as_fd().as_raw_fd(), self.entry.as_raw_fd(), most)
    }

    /// Queues up to `len` bytes of the pipe at `sink`.
    ///
    /// # Errors
    /// As splice(2): `WouldBlock` when the queue is full or the pipe is empty.
    pub fn drain(&self, sink: impl AsFd, len: usize) -> io::Result<usize> {
        splice(self.exit.as_raw_fd(), sink.as_fd().as_raw_fd(), len)
    }

    /// Reads the first bytes of the pipe into memory.
    ///
    /// # Errors
    /// As read(2).
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the call writes at most `into.len()` bytes to `into`.
        let got = unsafe { libc::read(self.exit.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

fn splice(from: libc::c_int, to: libc::c_int, len: usize) -> io::Result<usize> {
    let none = std::ptr::null_mut();
    // SAFETY: the call takes descriptors and numbers; neither end gets an offset.
    let moved = unsafe { libc::splice(from, none, to, none, len, libc::SPLICE_F_NONBLOCK) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_pass_through_in_order_and_the_end_is_seen() {
        let (mut from, source) = UnixStream::pair().unwrap();
        let (sink, mut to) = UnixStream::pair().unwrap();
        source.set_nonblocking(true).unwrap();
        let pipe = Pipe::new(1 << 20).unwrap();
        assert_eq!(pipe.fill(&source, 100).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        from.write_all(b"one two").unwrap();
        assert_eq!(pipe.fill(&source, 3).unwrap(), 3);
        assert_eq!(pipe.drain(&sink, 3).unwrap(), 3);
        assert_eq!(pipe.fill(&source, 100).unwrap(), 4);
        let mut head = [0; 2];
        assert_eq!(pipe.read(&mut head).unwrap(), 2);
        assert_eq!(&head, b" t");
        assert_eq!(pipe.drain(&sink, 2).unwrap(), 2);
        drop(from);
        // A child that another test starts has a copy until it has become its program.
        adit_testkit::wait_for("the end", || pipe.fill(&source, 100).ok() == Some(0));
        drop(sink);
        let mut all = String::new();
        to.read_to_string(&mut all).unwrap();
        assert_eq!(all, "onewo");
    }
}
