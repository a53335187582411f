//! So many places for one kind of client, where the oldest makes room for a new one.
//!
//! The order is that of the [`EvictionQueue`]: the lowest rank first, then a source that holds far more than its part, then the one
//! that came first. A place may keep bytes, which go with it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};

use adit_net::rt;

use super::eviction_queue::{EvictionQueue, EvictionRank, HolderId, prefix};

/// The places.
#[derive(Debug)]
pub(crate) struct Crowd {
    ledger: RefCell<EvictionQueue<Rc<Stay>>>,
    most: usize,
}

/// A place; leaving it is dropping it.
#[derive(Debug)]
pub(crate) struct CrowdPlace {
    crowd: Rc<Crowd>,
    stay: Rc<Stay>,
    id: HolderId,
}

#[derive(Debug, Default)]
struct Stay {
    is_out: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Bytes that go with the place.
    kept: RefCell<Vec<u8>>,
}

impl Crowd {
    /// So many places, at least 1.
    pub(crate) fn new(most: usize) -> Rc<Self> {
        Rc::new(Self { ledger: RefCell::default(), most: most.max(1) })
    }

    /// A place for a client from `source` that has proven so much, if need be that of another one.
    pub(crate) fn enter(self: &Rc<Self>, rank: EvictionRank, source: IpAddr) -> CrowdPlace {
        let stay = Rc::<Stay>::default();
        let mut ledger = self.ledger.borrow_mut();
        let is_full = ledger.len() >= self.most;
        let victim = is_full.then(|| ledger.take_victim(EvictionRank::Answered, |_| 0)).flatten();
        let id = ledger.enter(rank, prefix(source), 0, stay.clone());
        drop(ledger);
        if let Some(victim) = victim {
            victim.is_out.set(true);
            victim.kept.take();
            let waker = victim.waker.take();
            waker.into_iter().for_each(Waker::wake);
        }
        CrowdPlace { crowd: self.clone(), stay, id }
    }

    /// Whether one more client has another one make room.
    pub(crate) fn is_full(&self) -> bool {
        self.taken() >= self.most
    }

    /// Places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.ledger.borrow().len()
    }
}

impl CrowdPlace {
    /// The client has proven so much.
    pub(crate) fn set_rank(&self, rank: EvictionRank) {
        self.crowd.ledger.borrow_mut().set_rank(self.id, rank);
    }

    /// The output of `what`, or `None` once the client has to make room.
    pub(crate) async fn unless_out<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        let out = poll_fn(|cx| {
            if self.stay.is_out.get() {
                return Poll::Ready(None);
            }
            *self.stay.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        });
        rt::race(out, async { Some(what.await) }).await
    }

    /// Keeps `bytes` for as long as the place is there.
    pub(crate) fn keep(&self, bytes: Vec<u8>) {
        if !self.stay.is_out.get() {
            *self.stay.kept.borrow_mut() = bytes;
        }
    }

    /// The length of the bytes that are kept; `None` once the client has made room.
    pub(crate) fn kept_len(&self) -> Option<usize> {
        (!self.stay.is_out.get()).then(|| self.stay.kept.borrow().len())
    }

    /// Does something with the bytes that are kept.
    pub(crate) fn with_kept(&self, what: impl FnOnce(&[u8])) {
        what(&self.stay.kept.borrow());
    }
}

impl Drop for CrowdPlace {
    fn drop(&mut self) {
        self.crowd.ledger.borrow_mut().leave(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn is_out(place: &CrowdPlace) -> bool {
        place.stay.is_out.get()
    }

    #[test]
    fn the_oldest_makes_room_first_that_of_a_greedy_source() {
        let crowd = Crowd::new(32);
        let other = crowd.enter(EvictionRank::Unanswered, ip(1));
        let greedy: Vec<CrowdPlace> = (0..31).map(|_| crowd.enter(EvictionRank::Unanswered, ip(2))).collect();
        greedy[0].keep(vec![7; 9]);
        let next = crowd.enter(EvictionRank::Unanswered, ip(1));
        assert!(is_out(&greedy[0]) && !is_out(&greedy[1]) && !is_out(&other));
        assert_eq!((greedy[0].kept_len(), crowd.taken()), (None, 32));
        drop((other, greedy, next));
        assert_eq!(crowd.taken(), 0);
    }

    #[test]
    fn a_client_learns_that_it_has_to_go() {
        let ended = rt::Cores::block_on(async {
            let crowd = Crowd::new(1);
            let first = crowd.enter(EvictionRank::Unauthenticated, ip(1));
            let waiting = first.unless_out(std::future::pending::<()>());
            let entering = async {
                rt::yield_now().await;
                let second = crowd.enter(EvictionRank::Unauthenticated, ip(1));
                second.unless_out(async { 5 }).await
            };
            both(waiting, entering).await
        });
        assert_eq!(ended.unwrap(), (None, Some(5)));
    }

    /// Both results.
    async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
        let (mut a, mut b) = (Box::pin(a), Box::pin(b));
        let (mut left, mut right) = (None, None);
        poll_fn(|cx| {
            if left.is_none()
                && let Poll::Ready(output) = a.as_mut().poll(cx)
            {
                left = Some(output);
            }
            if right.is_none()
                && let Poll::Ready(output) = b.as_mut().poll(cx)
            {
                right = Some(output);
            }
            match (left.is_some(), right.is_some()) {
                (true, true) => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
        (left.unwrap(), right.unwrap())
    }
}
