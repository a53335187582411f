//! The event loop's watch over a socket, which may pause.
//!
//! A loop that watches a socket is woken by every datagram, whether anybody wants to read then or not: the kernel reports
//! edges. A reader that comes back by a timer takes the socket out of the loop meanwhile.

use std::cell::{Ref, RefCell};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The number of a descriptor that is open as long as the watch is there: its owner drops the watch first.
#[derive(Debug)]
pub(super) struct Number(RawFd);

impl AsRawFd for Number {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// The watch over one descriptor for reading, on the event loop that made it.
#[derive(Debug)]
pub(super) struct Watch {
    fd: RawFd,
    watched: RefCell<Option<AsyncFd<Number>>>,
}

impl Watch {
    /// Begins to watch. The watch must be dropped before the descriptor is closed.
    pub(super) fn new(fd: &impl AsRawFd) -> io::Result<Self> {
        let watch = Self { fd: fd.as_raw_fd(), watched: RefCell::new(None) };
        watch.set(true)?;
        Ok(watch)
    }

    /// Pauses or goes on. Datagrams of a pause are seen then. True if that is a change.
    pub(super) fn set(&self, is_watched: bool) -> io::Result<bool> {
        let mut watched = self.watched.borrow_mut();
        if watched.is_some() == is_watched {
            return Ok(false);
        }
        // Readiness to send is never waited for, and asking for it would bring an event per datagram that leaves.
        #[expect(deprecated, reason = "sound: the owner of the descriptor drops this before it")]
        let registered = is_watched
            .then(|| AsyncFd::try_with_interest(Number(self.fd), Interest::READABLE))
            .transpose()?;
        *watched = registered;
        Ok(true)
    }

    /// The socket as the loop sees it; `None` during a pause.
    pub(super) fn get(&self) -> Ref<'_, Option<AsyncFd<Number>>> {
        self.watched.borrow()
    }
}
