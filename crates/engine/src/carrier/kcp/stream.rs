//! One stream of a session, as the relay sees it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use adit_net::rt::{self, CarrierStream};
use adit_proto::kcp::crypt::Qpp;
use adit_proto::smux::{SmuxReceived, StreamId};

use super::driver::Handle;

/// A stream. It lives on its session's core.
pub(super) struct CarriedStream {
    handle: Rc<Handle>,
    id: StreamId,
    /// The additional cipher, sending and receiving.
    pads: Option<RefCell<(Qpp, Qpp)>>,
    aborted: Cell<bool>,
}

impl CarriedStream {
    pub(super) fn new(handle: Rc<Handle>, id: StreamId) -> Self {
        let pads = handle.shared.pads.as_ref().map(|pads| RefCell::new((pads.stream(), pads.stream())));
        Self { handle, id, pads, aborted: Cell::new(false) }
    }
}

impl fmt::Debug for CarriedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CarriedStream").field("id", &self.id.get()).finish_non_exhaustive()
    }
}

impl CarrierStream for CarriedStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut session = self.handle.session.borrow_mut();
        if session.is_over() || session.mux_mut().is_none_or(|mux| mux.is_readable(self.id)) {
            return Poll::Ready(Ok(()));
        }
        session.wait_readable(self.id, cx.waker());
        Poll::Pending
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut session = self.handle.session.borrow_mut();
        if session.is_over() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let Some(mux) = session.mux_mut() else { return Poll::Ready(Ok(0)) };
        match mux.recv(self.id, buffer, rt::now()) {
            SmuxReceived::Bytes(len) => {
                if let Some(pads) = &self.pads {
                    pads.borrow_mut().1.open(&mut buffer[..len]);
                }
                // A window may have to be told, or a reader that stood still goes on.
                if session.has_work() {
                    self.handle.touch();
                }
                self.handle.charge(session.charge());
                Poll::Ready(Ok(len))
            }
            SmuxReceived::End => Poll::Ready(Ok(0)),
            SmuxReceived::Reset => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            SmuxReceived::Empty => {
                session.wait_readable(self.id, cx.waker());
                Poll::Pending
            }
        }
    }

    fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut session = self.handle.session.borrow_mut();
        if session.is_over() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if session.mux_mut().is_some_and(|mux| mux.is_reset(self.id)) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if session.answer_is_late(self.id, rt::now()) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // Before the bytes are taken: many streams may send before the driver has its turn.
        let allowed = self.handle.reserve(&session, bytes.len());
        if allowed == 0 && !bytes.is_empty() {
            session.starve(self.id, cx.waker());
            drop(session);
            self.handle.touch();
            return Poll::Pending;
        }
        let bytes = &bytes[..allowed];
        let sent = match &self.pads {
            Some(pads) => session.send_padded(self.id, bytes, &mut pads.borrow_mut().0),
            None => session.mux_mut().map_or(0, |mux| mux.send(self.id, bytes)),
        };
        if sent < bytes.len() {
            session.wait_writable(self.id, cx.waker());
        }
        self.handle.charge(session.charge());
        if sent == 0 && !bytes.is_empty() {
            return Poll::Pending;
        }
        drop(session);
        self.handle.touch();
        Poll::Ready(Ok(sent))
    }

    fn shutdown_write(&self) {
        if let Some(mux) = self.handle.session.borrow_mut().mux_mut() {
            mux.finish(self.id);
        }
        self.handle.touch();
    }

    fn abort_on_close(&self) {
        self.aborted.set(true);
    }

    fn carries_half_close(&self) -> bool {
        self.handle.session.borrow().peer_signals()
    }

    fn peer_is_closed(&self) -> Option<bool> {
        Some(self.handle.session.borrow().answer_is_late(self.id, rt::now()))
    }

    fn poll_lost(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut session = self.handle.session.borrow_mut();
        if session.is_lost(self.id) {
            return Poll::Ready(());
        }
        session.wait_lost(self.id, cx.waker());
        Poll::Pending
    }

    fn peer_addr(&self) -> SocketAddr {
        self.handle.peer
    }

    fn local_addr(&self) -> SocketAddr {
        self.handle.local
    }
}

impl Drop for CarriedStream {
    fn drop(&mut self) {
        let mut session = self.handle.session.borrow_mut();
        session.forget(self.id);
        if let Some(mux) = session.mux_mut() {
            if self.aborted.get() {
                mux.abort(self.id);
            } else {
                mux.finish(self.id);
                mux.close(self.id);
            }
        }
        drop(session);
        self.handle.touch();
    }
}
