//! Accepts for a small server, which has so many places for connections and no more.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::sync::Notify;

use super::{Accepted, Acceptor};
use crate::handover::Admission;

/// Connections beyond the most that there may be at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// They are closed at once.
    Closed,
    /// They wait to be accepted.
    Waiting,
}

/// An [`Acceptor`] with so many places, which accepts while the process may.
#[derive(Debug)]
pub(crate) struct BoundedAcceptor {
    acceptor: Acceptor,
    admission: Admission,
    places: Rc<Places>,
    beyond: Beyond,
}

/// The places of a server.
#[derive(Debug)]
struct Places {
    most: usize,
    taken: Cell<usize>,
    /// One was given back.
    left: Notify,
}

/// A place; leaving it is dropping it.
#[derive(Debug)]
pub(crate) struct Place(Rc<Places>);

impl BoundedAcceptor {
    /// Accepts from `acceptor` as long as fewer than `most` connections are open.
    pub(crate) fn new(acceptor: Acceptor, most: usize, beyond: Beyond) -> Self {
        let places = Places { most: most.max(1), taken: Cell::new(0), left: Notify::new() };
        Self { acceptor, admission: Admission::default(), places: Rc::new(places), beyond }
    }

    /// The next connection, its peer and its place. It may be cancelled at any time.
    ///
    /// # Errors
    /// As [`Acceptor::accept`].
    pub(crate) async fn accept(&mut self) -> io::Result<(Accepted, SocketAddr, Place)> {
        loop {
            if self.beyond == Beyond::Waiting {
                self.places.until(|taken| taken < self.places.most).await;
            }
            let Some(accepted) = self.admission.admit(self.acceptor.accept()).await else { continue };
            let (stream, peer) = accepted?;
            if let Some(place) = Place::take(&self.places) {
                return Ok((stream, peer, place));
            }
        }
    }

    /// Stops listening; returns once all connections have left their places.
    pub(crate) async fn finish(self) {
        let Self { acceptor, places, .. } = self;
        drop(acceptor);
        places.until(|taken| taken == 0).await;
    }
}

impl Places {
    async fn until(&self, holds: impl Fn(usize) -> bool) {
        while !holds(self.taken.get()) {
            self.left.notified().await;
        }
    }
}

impl Place {
    fn take(places: &Rc<Places>) -> Option<Self> {
        (places.taken.get() < places.most).then(|| {
            places.taken.set(places.taken.get() + 1);
            Self(places.clone())
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.set(self.0.taken.get() - 1);
        self.0.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::listen::ListenOptions;
    use crate::rt;

    fn acceptor(beyond: Beyond) -> (BoundedAcceptor, SocketAddr) {
        let (acceptor, _) = Acceptor::listen(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
        let at = acceptor.local_addr().unwrap();
        (BoundedAcceptor::new(acceptor, 1, beyond), at)
    }

    #[tokio::test(flavor = "local")]
    async fn connections_beyond_the_places_wait_or_are_closed() {
        for beyond in [Beyond::Waiting, Beyond::Closed] {
            let (mut acceptor, at) = acceptor(beyond);
            let _clients = [TcpStream::connect(at).unwrap(), TcpStream::connect(at).unwrap()];
            let (_, _, place) = acceptor.accept().await.unwrap();
            let short = Duration::from_millis(50);
            assert!(rt::timeout(short, acceptor.accept()).await.is_err(), "{beyond:?}");
            drop(place);
            let next = rt::timeout(Duration::from_secs(5), acceptor.accept());
            if beyond == Beyond::Closed {
                let _later = TcpStream::connect(at).unwrap();
                next.await.unwrap().unwrap();
            } else {
                next.await.unwrap().unwrap();
            }
        }
    }

    #[tokio::test(flavor = "local")]
    async fn the_end_waits_for_the_connections() {
        let (mut acceptor, at) = acceptor(Beyond::Waiting);
        let _client = TcpStream::connect(at).unwrap();
        let (_, _, place) = acceptor.accept().await.unwrap();
        let mut finish = std::pin::pin!(acceptor.finish());
        assert!(rt::timeout(Duration::from_millis(20), finish.as_mut()).await.is_err());
        assert!(TcpStream::connect(at).is_err());
        drop(place);
        rt::timeout(Duration::from_secs(5), finish).await.unwrap();
    }
}
