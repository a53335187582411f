//! Places among the connections of a port that serves HTTP or WebSockets.
//!
//! When all are taken, a connection that waits for its client makes room for a new one: one that has never asked for
//! anything before one that has, and the oldest of those. A connection whose request is being answered stays.
//!
//! Bytes of requests that are not whole yet are counted, over all connections of the port: one that holds more than its own
//! few ends when all together hold too many.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::rt;

/// One port of many in a process takes this part of its descriptors at most.
const PART: u64 = 32;
/// And may always have so many connections.
const LEAST: usize = 8;
/// Bytes of a request that is not whole that a connection may always hold.
const OWN: usize = 4 << 10;
/// A connection that has made room ends within this time.
const LEAVE: Duration = Duration::from_millis(100);
/// Bytes of one read: so many may lie behind a whole request, and are not counted.
const READ: usize = 16 << 10;

/// The number of connections that one port of many in a process may have: `most`, or fewer by the limit of descriptors.
pub fn share(most: usize) -> usize {
    most.min(descriptors(1, PART).max(LEAST))
}

/// The same for the only port of a process: `most`, or three quarters of the limit of descriptors.
pub(crate) fn share_alone(most: usize) -> usize {
    most.min(descriptors(3, 4).max(LEAST))
}

/// So many parts of the limit of descriptors.
fn descriptors(times: u64, parts: u64) -> usize {
    let limit = crate::fd_limit().map_or(1024, |(soft, _)| soft);
    usize::try_from(limit / parts * times).unwrap_or(usize::MAX)
}

/// The places of one port.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    most: usize,
    /// Bytes of requests that are not whole: how many there are, and may be.
    unread: Arc<AtomicUsize>,
    most_unread: usize,
    taken: Cell<usize>,
    /// Connections that have made room and have not ended.
    leaving: Cell<usize>,
    next: Cell<u64>,
    /// Those that make room: whether they have asked for anything, and their number, which is their order.
    idle: RefCell<BTreeMap<(bool, u64), Rc<State>>>,
    changed: Notify,
}

/// A place among the connections of its port; leaving it is dropping it.
pub struct ConnectionSeat {
    seats: Rc<ConnectionLimit>,
    number: u64,
    state: Rc<State>,
    unread: Arc<Unread>,
}

/// Bytes of a request that is not whole. HTTP upgrades want a stream that may go to another thread, so that its count may
/// go there too.
#[derive(Debug)]
struct Unread {
    own: AtomicUsize,
    all: Arc<AtomicUsize>,
    most: usize,
}

#[derive(Debug, Default)]
struct State {
    has_asked: Cell<bool>,
    /// Requests that are being answered.
    busy: Cell<usize>,
    /// It has made room.
    is_out: Cell<bool>,
    leave: Notify,
}

impl fmt::Debug for ConnectionSeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seat").field(&self.number).finish()
    }
}

impl ConnectionLimit {
    /// So many places, at least 1, and so many bytes of requests that are not whole.
    pub(crate) fn new(most: usize, most_unread: usize) -> Rc<Self> {
        Rc::new(Self {
            most: most.max(1),
            unread: Arc::default(),
            most_unread,
            taken: Cell::new(0),
            leaving: Cell::new(0),
            next: Cell::new(0),
            idle: RefCell::default(),
            changed: Notify::new(),
        })
    }

    /// A place, if need be that of a connection that waits for its client; `None` if all have something to do.
    pub(crate) fn take(self: &Rc<Self>) -> Option<Rc<ConnectionSeat>> {
        if self.taken.get() >= self.most && !self.make_room() {
            return None;
        }
        self.taken.set(self.taken.get() + 1);
        let number = self.next.get();
        self.next.set(number + 1);
        let (own, all, most) = (AtomicUsize::new(0), self.unread.clone(), self.most_unread);
        let unread = Arc::new(Unread { own, all, most });
        let seat = ConnectionSeat { seats: self.clone(), number, state: Rc::default(), unread };
        seat.wait_for_client();
        Some(Rc::new(seat))
    }

    /// Has a connection that waits for its client make room; false if there is none.
    pub(crate) fn make_room(&self) -> bool {
        let Some((_, first)) = self.idle.borrow_mut().pop_first() else { return false };
        first.is_out.set(true);
        first.leave.notify_one();
        self.taken.set(self.taken.get() - 1);
        self.leaving.set(self.leaving.get() + 1);
        true
    }

    /// Returns once those that have made room have ended: until then each has its descriptor.
    pub(crate) async fn settled(&self) {
        let settled = async {
            while self.leaving.get() > 0 {
                self.changed().await;
            }
        };
        rt::timeout(LEAVE, settled).await.ok();
    }

    /// Returns once a place was left, or a connection may make room, since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.get()
    }
}

impl ConnectionSeat {
    /// Returns when the connection has to make room.
    pub(crate) async fn asked_to_leave(&self) {
        self.state.leave.notified().await;
    }

    /// Has a whole request to answer until the result is dropped.
    pub(crate) fn begin(self: &Rc<Self>) -> Busy {
        self.unread.forget();
        let busy = &self.state.busy;
        if busy.get() == 0 {
            self.seats.idle.borrow_mut().remove(&self.key());
        }
        busy.set(busy.get() + 1);
        Busy(self.clone())
    }

    /// Does not make room for others from now on.
    pub fn keep(&self) {
        self.seats.idle.borrow_mut().remove(&self.key());
        self.state.busy.set(self.state.busy.get() + 1);
    }

    /// `stream` with its bytes counted.
    pub(crate) fn meter<S>(&self, stream: S) -> Metered<S> {
        Metered { stream, unread: self.unread.clone() }
    }

    fn key(&self) -> (bool, u64) {
        (self.state.has_asked.get(), self.number)
    }

    fn wait_for_client(&self) {
        if !self.state.is_out.get() {
            self.seats.idle.borrow_mut().insert(self.key(), self.state.clone());
        }
    }
}

impl Drop for ConnectionSeat {
    fn drop(&mut self) {
        self.seats.idle.borrow_mut().remove(&self.key());
        let count = if self.state.is_out.get() { &self.seats.leaving } else { &self.seats.taken };
        count.set(count.get() - 1);
        self.seats.changed.notify_one();
    }
}

impl Unread {
    /// Takes bytes of a request into account; false if they are too many.
    fn add(&self, len: usize) -> bool {
        let own = self.own.fetch_add(len, Ordering::Relaxed) + len;
        let all = self.all.fetch_add(len, Ordering::Relaxed) + len;
        own <= OWN || all <= self.most
    }

    fn forget(&self) {
        self.all.fetch_sub(self.own.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.forget();
    }
}

/// A stream whose bytes are counted as those of a request that is not whole.
pub(crate) struct Metered<S> {
    stream: S,
    unread: Arc<Unread>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(buffer.remaining().min(READ)));
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        let len = part.filled().len();
        buffer.advance(len);
        if self.unread.add(len) {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(Err(io::Error::other("requests that are not whole hold too much memory")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A connection has something to do.
#[derive(Debug)]
pub(crate) struct Busy(Rc<ConnectionSeat>);

impl Drop for Busy {
    fn drop(&mut self) {
        let state = &self.0.state;
        state.busy.set(state.busy.get() - 1);
        if state.busy.get() == 0 {
            state.has_asked.set(true);
            self.0.wait_for_client();
            self.0.seats.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: usize = usize::MAX;

    fn is_out(seat: &ConnectionSeat) -> bool {
        seat.state.is_out.get()
    }

    #[test]
    fn parts_of_requests_are_bounded_over_all_connections() {
        let seats = ConnectionLimit::new(10, 3 * OWN);
        let all: Vec<_> = (0..4).map(|_| seats.take().unwrap()).collect();
        assert!(all[0].unread.add(2 * OWN) && all[1].unread.add(OWN));
        assert!(all[2].unread.add(OWN), "a few bytes are always taken");
        assert!(!all[1].unread.add(1));
        // A whole request is the handler's, and a connection that ends holds nothing.
        drop(all[0].begin());
        assert!(all[1].unread.add(1));
        drop(all);
        assert_eq!(seats.unread.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_oldest_that_never_asked_makes_room_first() {
        let seats = ConnectionLimit::new(4, NO_LIMIT);
        let all: Vec<_> = (0..4).map(|_| seats.take().unwrap()).collect();
        // The first has asked before, the second is being answered.
        drop(all[0].begin());
        let busy = all[1].begin();
        let mut later = Vec::new();
        for expected in [2, 3] {
            later.push(seats.take().unwrap());
            assert!(is_out(&all[expected]));
            drop(later[later.len() - 1].begin());
        }
        assert_eq!([0, 1].map(|n| is_out(&all[n])), [false; 2]);
        // All others have asked: the oldest of them.
        later.push(seats.take().unwrap());
        assert!(is_out(&all[0]) && !is_out(&later[0]));
        let held: Vec<_> = later.iter().map(ConnectionSeat::begin).collect();
        assert!(seats.take().is_none(), "all have something to do");
        assert_eq!(seats.taken(), 4);
        drop(held);
        drop(busy);
        later.push(seats.take().unwrap());
        assert!(is_out(&all[1]));
        assert_eq!(seats.leaving.get(), 4);
        drop((all, later));
        assert_eq!((seats.taken(), seats.leaving.get()), (0, 0));
        assert!(seats.idle.borrow().is_empty());
    }

    #[test]
    fn one_that_is_kept_stays_and_a_gone_one_frees_its_place() {
        let seats = ConnectionLimit::new(1, NO_LIMIT);
        let first = seats.take().unwrap();
        first.keep();
        assert!(seats.take().is_none());
        // Answers that end later change nothing.
        drop(first.begin());
        assert!(seats.take().is_none());
        drop(first);
        let second = seats.take().unwrap();
        let third = seats.take().unwrap();
        assert!(is_out(&second));
        // One that is out does not come back.
        drop(second.begin());
        assert_eq!((seats.taken(), seats.idle.borrow().len()), (1, 1));
        drop((second, third));
        assert_eq!((seats.taken(), seats.idle.borrow().len()), (0, 0));
    }

    #[test]
    fn ports_have_a_part_of_the_descriptors() {
        let (limit, _) = crate::fd_limit().unwrap();
        assert_eq!(share(1 << 40), usize::try_from(limit / 32).unwrap().max(8));
        assert_eq!(share(1), 1);
        assert!(share_alone(1 << 40) <= usize::try_from(limit).unwrap());
    }
}
