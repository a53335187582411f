//! Unix sockets, which cannot be made here, and modes of files, which say nothing.

use std::fs::OpenOptions;
use std::io;
use std::os::windows::io::{AsSocket, BorrowedSocket};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

pub(crate) use self::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};

/// A connection over a unix socket: there is none.
#[derive(Debug)]
#[expect(unnameable_types, reason = "it stands in for a type of the runtime")]
pub enum UnixStream {}

/// A listening unix socket: there is none.
#[derive(Debug)]
pub(crate) enum UnixListener {}

fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "adit has no unix sockets on this system"))
}

impl UnixStream {
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        unsupported()
    }

    #[expect(clippy::unused_async, reason = "as on Unix")]
    pub(crate) async fn connect(_path: &Path) -> io::Result<Self> {
        unsupported()
    }

    pub(crate) fn from_std(socket: Self) -> io::Result<Self> {
        match socket {}
    }

    pub(crate) fn into_std(self) -> io::Result<Self> {
        match self {}
    }

    pub(crate) fn poll_read_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }

    pub(crate) fn poll_write_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }

    pub(crate) fn try_io<T>(&self, _: Interest, _: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match *self {}
    }
}

impl AsSocket for UnixStream {
    fn as_socket(&self) -> BorrowedSocket<'_> {
        match *self {}
    }
}

impl AsyncRead for UnixStream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }
}

impl AsyncWrite for UnixStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        match *self {}
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }
}

impl UnixListener {
    pub(crate) fn bind(_path: &Path) -> io::Result<Self> {
        unsupported()
    }

    pub(crate) fn from_std(socket: Self) -> io::Result<Self> {
        match socket {}
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match *self {}
    }

    pub(crate) fn set_nonblocking(&self, _: bool) -> io::Result<()> {
        match *self {}
    }

    #[expect(clippy::unused_async, reason = "as on Unix")]
    pub(crate) async fn accept(&self) -> io::Result<(UnixStream, ())> {
        match *self {}
    }

    pub(crate) fn poll_accept(&self, _: &mut Context<'_>) -> Poll<io::Result<(UnixStream, ())>> {
        match *self {}
    }
}

impl AsSocket for UnixListener {
    fn as_socket(&self) -> BorrowedSocket<'_> {
        match *self {}
    }
}

/// Leaves the options as they are: the folder says who may use a file.
pub(crate) fn set_mode(options: &mut OpenOptions, _mode: u32) -> &mut OpenOptions {
    options
}

/// Leaves the file as it is.
pub(crate) fn keep_private(_path: &Path) -> io::Result<()> {
    Ok(())
}

/// Nobody.
pub(crate) fn answers(_path: &Path) -> bool {
    false
}

/// A socket file: there is none.
pub(crate) fn identify(_path: &Path) -> io::Result<((u64, u64), bool)> {
    unsupported()
}
