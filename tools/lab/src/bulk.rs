//! Bulk data at the least cost, so that the processors are the subject's: it is sent from the pages of a file in memory
//! and thrown away where it arrives, and crosses this process neither way.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::sendfile::sendfile;
use nix::sys::socket::{MsgFlags, recv};

use crate::random::Stream;

/// Bytes per call.
pub(crate) const CHUNK: usize = 256 * 1024;

/// Random bytes that no subject can compress, in a file of [`CHUNK`] bytes that has no name.
#[derive(Debug)]
pub(crate) struct Source(File);

impl Source {
    /// The one of this process.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn get() -> io::Result<&'static Self> {
        static SOURCE: OnceLock<Source> = OnceLock::new();
        if let Some(source) = SOURCE.get() {
            return Ok(source);
        }
        let mut file = File::from(memfd_create(c"bulk", MFdFlags::MFD_CLOEXEC)?);
        let mut chunk = vec![0; CHUNK];
        Stream::new(1).fill(&mut chunk);
        file.write_all(&chunk)?;
        Ok(SOURCE.get_or_init(|| Self(file)))
    }

    /// Sends up to `len` bytes, at most [`CHUNK`]; how many it was.
    ///
    /// # Errors
    /// As a write to `stream`.
    pub(crate) fn send(&self, stream: &TcpStream, len: usize) -> io::Result<usize> {
        Ok(sendfile(stream.as_fd(), self.0.as_fd(), Some(&mut 0), len.min(CHUNK))?)
    }
}

/// Reads data and drops it.
#[derive(Debug)]
pub(crate) struct Sink(Vec<u8>);

impl Sink {
    /// One that takes up to [`CHUNK`] bytes at once.
    pub(crate) fn new() -> Self {
        Self(vec![0; CHUNK])
    }

    /// Throws away what has come, of which up to `len` bytes; how many it was, 0 at the end. The kernel does not copy
    /// it (`MSG_TRUNC`, tcp(7)).
    ///
    /// # Errors
    /// As a read from `stream`.
    pub(crate) fn take(&mut self, stream: &TcpStream, len: usize) -> io::Result<usize> {
        let len = len.min(CHUNK);
        Ok(recv(stream.as_raw_fd(), &mut self.0[..len], MsgFlags::MSG_TRUNC)?)
    }
}
