//! The part that one listening socket, or one interface, has in a handover.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::task::{Context, Poll};

use super::divert::{Inlet, Led, Outlet, outlet_of};
use crate::udp::DatagramBatch;

/// The way of datagrams between processes that share a socket, in both directions. Boxed, since each flow has a socket and
/// few have these.
#[derive(Debug, Default)]
pub(crate) struct Detour {
    /// To clients' earlier processes, where this one reads.
    outlet: Option<Box<Outlet>>,
    /// From the process that reads, where this one does no more.
    inlet: RefCell<Option<Box<Inlet>>>,
}

impl Detour {
    /// That of the socket `raw`, which another process may have read before.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn of(raw: RawFd) -> io::Result<Self> {
        Ok(Self { outlet: outlet_of(raw)?.map(Box::new), inlet: RefCell::default() })
    }

    /// Whether another process has read before.
    pub(crate) fn is_later(&self) -> bool {
        self.outlet.is_some()
    }

    /// From now on datagrams of `peers` come from another process by `pair`.
    ///
    /// # Errors
    /// The system's error; nothing has changed then.
    pub(crate) fn pass_on(&self, pair: OwnedFd, peers: &[SocketAddr]) -> io::Result<()> {
        self.inlet.replace(Some(Box::new(Inlet::new(pair, peers)?)));
        Ok(())
    }

    /// The datagrams that another process has read for this one. Ready with false where this process reads.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn poll_passed(
        &self,
        cx: &mut Context<'_>,
        batch: &mut DatagramBatch,
    ) -> Poll<io::Result<bool>> {
        let mut inlet = self.inlet.borrow_mut();
        let Some(receiver) = &*inlet else { return Poll::Ready(Ok(false)) };
        let received = receiver.poll_receive(cx, batch);
        if matches!(received, Poll::Ready(Ok(false))) {
            *inlet = None;
        }
        received
    }

    /// Whether the process that reads has served and ended.
    pub(crate) fn is_over(&self) -> bool {
        self.inlet.borrow().as_ref().is_some_and(|inlet| inlet.is_over())
    }

    /// Passes on the datagrams of `batch` that belong to an earlier process; `lost` grows by those that it did not take.
    pub(crate) fn divert(&self, batch: &mut DatagramBatch, lost: &mut u64) {
        if let Some(outlet) = &self.outlet {
            outlet.divert(batch, lost);
        }
    }

    /// The clients, and the streams of an interface, of processes before this one.
    pub(crate) fn earlier_peers(&self) -> HashSet<SocketAddr> {
        self.outlet.as_ref().map(|outlet| outlet.peers()).unwrap_or_default()
    }

    /// All streams that were there when this process took an interface over, once.
    pub(crate) fn take_led(&self) -> Vec<Led> {
        self.outlet.as_ref().map(|outlet| outlet.take_led()).unwrap_or_default()
    }

    /// Learns which of [`Detour::earlier_peers`] are gone. Gives the number of those that are left.
    pub(crate) fn follow_earlier(&self) -> usize {
        let Some(outlet) = &self.outlet else { return 0 };
        outlet.follow();
        outlet.len()
    }

    /// Tells the process that reads which clients there still are.
    pub(crate) fn keep_peers(&self, mut current: HashSet<SocketAddr>) {
        if let Some(inlet) = &*self.inlet.borrow() {
            current.extend(self.earlier_peers());
            inlet.keep(&current);
        }
    }
}
