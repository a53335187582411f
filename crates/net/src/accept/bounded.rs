//! Accepts for a small server, which has so many places for connections and no more.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use super::{Accepted, Acceptor};
use crate::handover::Admission;
use crate::seats::{ConnectionLimit, ConnectionSeat};

/// Connections beyond the most that there may be at a time, while none of those makes room.
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
    seats: Rc<ConnectionLimit>,
    beyond: Beyond,
    /// The first of those that wait.
    held: Option<(Accepted, SocketAddr)>,
}

impl BoundedAcceptor {
    /// Accepts from `acceptor` as long as there are `seats`.
    pub(crate) fn new(acceptor: Acceptor, seats: Rc<ConnectionLimit>, beyond: Beyond) -> Self {
        Self { acceptor, admission: Admission::default(), seats, beyond, held: None }
    }

    /// The next connection, its peer and its place. It may be cancelled at any time.
    ///
    /// # Errors
    /// As [`Acceptor::accept`].
    pub(crate) async fn accept(&mut self) -> io::Result<(Accepted, SocketAddr, Rc<ConnectionSeat>)> {
        loop {
            let Some((stream, peer)) = self.held.take() else {
                // One at a time, or many would have no place and still a descriptor each.
                self.seats.settled().await;
                let mut make_room = || self.seats.make_room();
                let accepting = self.acceptor.accept_making_room(&mut make_room);
                let Some(accepted) = self.admission.admit(accepting).await else { continue };
                self.held = Some(accepted?);
                continue;
            };
            if let Some(seat) = self.seats.take() {
                return Ok((stream, peer, seat));
            }
            if self.beyond == Beyond::Waiting {
                self.held = Some((stream, peer));
                self.seats.changed().await;
            }
        }
    }

    /// Stops listening; returns once all connections have left their places.
    pub(crate) async fn finish(self) {
        let Self { acceptor, seats, held, .. } = self;
        drop((acceptor, held));
        while seats.taken() > 0 {
            seats.changed().await;
        }
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
        (BoundedAcceptor::new(acceptor, ConnectionLimit::new(1, usize::MAX), beyond), at)
    }

    #[tokio::test(flavor = "local")]
    async fn connections_beyond_the_places_wait_or_are_closed() {
        for beyond in [Beyond::Waiting, Beyond::Closed] {
            let (mut acceptor, at) = acceptor(beyond);
            let _clients = [TcpStream::connect(at).unwrap(), TcpStream::connect(at).unwrap()];
            let (_, _, place) = acceptor.accept().await.unwrap();
            place.keep();
            let short = Duration::from_millis(50);
            assert!(rt::timeout(short, acceptor.accept()).await.is_err(), "{beyond:?}");
            drop(place);
            let next = rt::timeout(Duration::from_secs(60), acceptor.accept());
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
        rt::timeout(Duration::from_secs(60), finish).await.unwrap();
    }
}
