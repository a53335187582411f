//! Connections within this process whose ends are on two event loops.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use super::stream::{CarrierStream, Stream};
use crate::unix;

/// One end, on its way to another event loop.
#[derive(Debug)]
pub struct Crossing {
    socket: unix::StdUnixStream,
    resets: [Arc<AtomicBool>; 2],
}

/// An end that has arrived. A unix socket knows no reset, so each end has a mark that it may leave behind.
#[derive(Debug)]
struct Crossed {
    stream: Stream,
    /// This end's mark, and the other's.
    resets: [Arc<AtomicBool>; 2],
}

impl Crossing {
    /// Two ends of one connection: one for this event loop, one for any other.
    ///
    /// # Errors
    /// As socketpair(2).
    pub fn pair() -> io::Result<(Stream, Self)> {
        let (near, far) = unix::UnixStream::pair()?;
        let [ours, theirs]: [Arc<AtomicBool>; 2] = Default::default();
        let far = Self { socket: far.into_std()?, resets: [theirs.clone(), ours.clone()] };
        let near: Box<dyn CarrierStream> = Box::new(Crossed { stream: near.into(), resets: [ours, theirs] });
        Ok((near.into(), far))
    }

    /// The end, on the current event loop from now on.
    ///
    /// # Errors
    /// When the event loop does not take it.
    pub fn land(self) -> io::Result<Stream> {
        let stream = unix::UnixStream::from_std(self.socket)?.into();
        let near: Box<dyn CarrierStream> = Box::new(Crossed { stream, resets: self.resets });
        Ok(near.into())
    }
}

impl Crossed {
    fn is_reset(&self) -> bool {
        self.resets[1].load(Ordering::Acquire)
    }
}

impl CarrierStream for Crossed {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_readable(cx)
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let len = ready!(self.stream.poll_recv(cx, buffer))?;
        let is_cut = len == 0 && !buffer.is_empty() && self.is_reset();
        Poll::Ready(if is_cut { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(len) })
    }

    fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.poll_send(cx, &[IoSlice::new(bytes)])
    }

    fn shutdown_write(&self) {
        // One that is gone already needs no end.
        self.stream.shutdown_write().ok();
    }

    fn abort_on_close(&self) {
        self.resets[0].store(true, Ordering::Release);
    }

    /// The other end has the carrier's stream, and treats ends as that one needs it.
    fn carries_half_close(&self) -> bool {
        true
    }

    fn peer_is_closed(&self) -> Option<bool> {
        self.stream.peer_is_closed()
    }

    fn poll_lost(&self, _: &mut Context<'_>) -> Poll<()> {
        // A read or write tells.
        if self.is_reset() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn peer_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    fn local_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::{Cores, orders};

    /// Bytes, ends and resets reach the other event loop as what they are.
    #[test]
    fn ends_and_resets_cross() {
        let (sender, mut receiver) = orders::<Crossing>();
        let mut cores = Cores::default();
        let serve = move || async move {
            // The first is answered and ended, the second reset.
            let first = receiver.next().await.unwrap().land().unwrap();
            let mut block = [0; 16];
            let len = first.recv(&mut block).await.unwrap();
            first.send_all(&block[..len]).await.unwrap();
            first.shutdown_write().unwrap();
            assert_eq!(first.recv(&mut block).await.unwrap(), 0, "an orderly end");
            let second = receiver.next().await.unwrap().land().unwrap();
            second.send_all(b"part").await.unwrap();
            second.abort_on_close();
            drop(second);
            let third = receiver.next().await.unwrap().land().unwrap();
            let error = third.recv(&mut block).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        };
        cores.start("far".into(), serve).unwrap();
        Cores::block_on(async move {
            let open = || {
                let (near, far) = Crossing::pair().unwrap();
                sender.send(far);
                near
            };
            let mut block = [0; 16];
            let first = open();
            first.send_all(b"hello").await.unwrap();
            assert_eq!(first.recv(&mut block).await.unwrap(), 5);
            assert_eq!(first.recv(&mut block).await.unwrap(), 0);
            drop(first);
            let second = open();
            assert_eq!(second.recv(&mut block).await.unwrap(), 4);
            let error = second.recv(&mut block).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "a part is not taken for the whole");
            let third = open();
            third.abort_on_close();
            drop(third);
        })
        .unwrap();
        cores.join();
    }
}
