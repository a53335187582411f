//! A connection of a user: its place among those that may be open, and its way to the account.

use std::cell::RefCell;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use adit_net::rt;

use super::account::{Account, Grant, UserDirection, UserLimit};
use super::addresses::Seat;
use crate::admission::prefix;

type Pause = Pin<Box<dyn Future<Output = ()>>>;

/// A place at an account; leaving it is dropping it.
pub(crate) struct Lease {
    account: Arc<Account>,
    source: IpAddr,
    /// The seat of the source, where sources are limited.
    seat: Option<Arc<Seat>>,
    /// 1, or 0 for a flow of datagrams.
    connections: u32,
    /// The pause of each direction while its rate is used up.
    pauses: [RefCell<Option<Pause>>; 2],
}

impl Lease {
    /// A connection from `source` begins.
    ///
    /// # Errors
    /// The limit that is in the way.
    pub(crate) fn begin(account: &Arc<Account>, source: IpAddr) -> Result<Self, UserLimit> {
        Self::counting(account, source, 1)
    }

    /// A flow of datagrams from `source` begins, which is no connection.
    ///
    /// # Errors
    /// The limit that is in the way.
    pub(crate) fn begin_flow(account: &Arc<Account>, source: IpAddr) -> Result<Self, UserLimit> {
        Self::counting(account, source, 0)
    }

    fn counting(account: &Arc<Account>, source: IpAddr, connections: u32) -> Result<Self, UserLimit> {
        let source = prefix(source);
        let seat = account.enter(source, connections)?;
        let pauses = [const { RefCell::new(None) }; 2];
        Ok(Self { account: account.clone(), source, seat, connections, pauses })
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// The limit by which the connection is to end, if there is one.
    pub(crate) fn over(&self) -> Option<UserLimit> {
        if self.is_cut() { Some(UserLimit::Addresses) } else { self.account.over() }
    }

    /// Whether the source has given way to another one.
    fn is_cut(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.is_cut())
    }

    /// Reserves up to `wanted` bytes for a read; ready with at least 1 once the rate has earned that.
    pub(crate) fn poll_grant(
        &self,
        way: UserDirection,
        wanted: usize,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, UserLimit>> {
        if self.is_cut() {
            return Poll::Ready(Err(UserLimit::Addresses));
        }
        if !self.account.is_limited() {
            return Poll::Ready(Ok(wanted));
        }
        let mut pause = self.pauses[way as usize].borrow_mut();
        if let Some(waiting) = pause.as_mut() {
            ready!(waiting.as_mut().poll(cx));
            *pause = None;
        }
        loop {
            match self.account.grant(way, wanted, now) {
                Grant::Bytes(bytes) => return Poll::Ready(Ok(bytes)),
                Grant::Over(limit) => return Poll::Ready(Err(limit)),
                Grant::Wait(time) => {
                    let waiting = pause.insert(Box::pin(rt::sleep(time)));
                    ready!(waiting.as_mut().poll(cx));
                    *pause = None;
                }
            }
        }
    }

    /// Reserves `len` bytes for a datagram, if it may pass.
    pub(crate) fn grant_whole(&self, way: UserDirection, len: usize, now: Instant) -> bool {
        if len == 0 {
            return true;
        }
        if self.is_cut() || !self.account.is_limited() {
            return !self.is_cut();
        }
        match self.account.grant(way, len, now) {
            Grant::Bytes(granted) if granted == len => true,
            Grant::Bytes(granted) => {
                self.account.settle(way, granted, 0);
                false
            }
            Grant::Wait(_) | Grant::Over(_) => false,
        }
    }

    /// Of what was granted, `moved` bytes have been used.
    pub(crate) fn settle(&self, way: UserDirection, granted: usize, moved: usize) {
        if moved > 0
            && let Some(seat) = &self.seat
        {
            seat.note();
        }
        if self.account.is_limited() {
            self.account.settle(way, granted, moved);
        } else if moved > 0 {
            self.account.settle(way, moved, moved);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.account.leave(self.source, self.connections, self.seat.as_ref());
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.account.name).finish()
    }
}
