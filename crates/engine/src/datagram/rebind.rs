//! From one socket for datagrams to another, while its reader goes on with all that it knows of its clients.

use std::cell::RefCell;
use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::task::{Context, Waker};

/// Batches that are read from a socket before it closes, at most: datagrams that have come already.
pub(crate) const LAST_BATCHES: usize = 64;

/// A socket, and a sender that lives as long as it is open.
pub(crate) type Successor = (UdpSocket, Sender<()>);

/// Tells the reader of a socket to go over to another one.
#[derive(Debug, Default)]
pub(crate) struct Rebind {
    next: RefCell<Option<Successor>>,
    /// Lives as long as the present socket is open.
    alive: RefCell<Option<Sender<()>>>,
    reader: RefCell<Option<Waker>>,
}

impl Rebind {
    /// For a socket that is open as long as `alive`.
    pub(crate) fn new(alive: Sender<()>) -> Rc<Self> {
        Rc::new(Self { alive: RefCell::new(Some(alive)), ..Self::default() })
    }

    /// The socket is open as long as `alive`.
    pub(crate) fn opened(&self, alive: Sender<()>) {
        self.alive.replace(Some(alive));
    }

    /// Has the reader go over to `next`, as soon as it has read what has come at the present socket.
    ///
    /// # Errors
    /// The successor, if there is no reader any more.
    pub(crate) fn follow_with(&self, next: Successor) -> Result<(), Successor> {
        if self.alive.borrow().is_none() {
            return Err(next);
        }
        self.next.replace(Some(next));
        if let Some(reader) = self.reader.borrow_mut().take() {
            reader.wake();
        }
        Ok(())
    }

    /// The successor, once; the reader is woken when there is one.
    pub(crate) fn take(&self, cx: &Context<'_>) -> Option<Successor> {
        let mut reader = self.reader.borrow_mut();
        if !reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            *reader = Some(cx.waker().clone());
        }
        self.next.borrow_mut().take()
    }
}

/// The reader's part: dropping it says that the socket is closed.
pub(crate) struct Reader(pub(crate) Rc<Rebind>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.alive.take();
        self.0.next.take();
    }
}
