//! The fallback server of an inbound: it gets the connections of clients that do not authenticate.
//!
//! ```text
//!   client ── bytes so far, unchanged ──▶ fallback server      as soon as the client is refused
//!          ◀───────── plain relay ─────▶
//! ```
//!
//! Such a client still counts as unauthenticated: it holds its ticket, makes room for others, and is cut when nothing has
//! moved for the inbound's deadline. It goes nowhere once it has been answered: the fallback server could not go on there.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use adit_config::model::ObfsServer;
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::wire::Target;

use super::Inbound;
use super::stranger::{Refusal, count, evicted, leave_alone, receive};
use crate::conns::{Entry, TICK};
use crate::dispatch::Session;
use crate::guard::Ticket;
use crate::relay::{Early, Endpoint};

/// A client whose first bytes do not become a whole request by then goes to the fallback server with what there is.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a client that are kept; one that sends more without being refused goes nowhere.
const MAX_KEPT: usize = 128 * 1024;

/// The fallback server, if there is one, and what one client has sent so far.
pub(super) struct Fallback<'a> {
    server: Option<&'a Target>,
    received: RefCell<Vec<u8>>,
    /// When the first byte came.
    since: Cell<Option<Instant>>,
    is_closed: Cell<bool>,
}

/// A client that is refused.
pub(super) struct Refused {
    pub(super) ticket: Ticket,
    pub(super) refusal: Refusal,
    /// When unauthenticated clients are cut, and how long they have in all.
    pub(super) until: Instant,
    pub(super) deadline: Duration,
}

impl<'a> Fallback<'a> {
    /// For a client that has sent nothing.
    pub(super) fn new(server: Option<&'a Target>) -> Self {
        Self { server, received: RefCell::default(), since: Cell::new(None), is_closed: Cell::new(false) }
    }

    /// As [`receive`]. The bytes are kept if there is a fallback server.
    pub(super) async fn receive(
        &self,
        stream: &Stream,
        wire: &mut RecvBuf,
        longest: usize,
    ) -> Result<usize, Refusal> {
        if self.server.is_none() || self.is_closed.get() {
            return receive(stream, wire, longest).await;
        }
        let received = match self.since.get() {
            None => receive(stream, wire, longest).await?,
            Some(since) => {
                let late = async {
                    rt::sleep_until(since + PATIENCE).await;
                    Err(Refusal::Late)
                };
                rt::race(late, receive(stream, wire, longest)).await?
            }
        };
        self.since.set(self.since.get().or_else(|| Some(rt::now())));
        let unread = wire.unread();
        let mut kept = self.received.borrow_mut();
        kept.extend(&unread[unread.len() - received..]);
        if kept.len() > MAX_KEPT {
            self.is_closed.set(true);
            *kept = Vec::new();
        }
        Ok(received)
    }

    /// The client has been answered, or has authenticated.
    pub(super) fn close(&self) {
        self.is_closed.set(true);
        self.received.take();
    }

    /// Whether the client goes to the fallback server.
    fn takes(&self, refusal: &Refusal) -> bool {
        let has_begun = !self.received.borrow().is_empty();
        let may_go = match refusal {
            Refusal::Wire(_) | Refusal::Obfs(_) | Refusal::Throttled | Refusal::Gone | Refusal::Late => true,
            Refusal::Evicted => false,
        };
        may_go && has_begun && !self.is_closed.get() && self.server.is_some()
    }

    /// Deals with a client that is refused: relays it to the fallback server, or does as every server.
    pub(super) async fn refuse(
        self,
        inbound: &Inbound,
        (stream, peer): (Stream, SocketAddr),
        refused: Refused,
        obfs: ObfsServer,
    ) {
        let Refused { ticket, refusal, until, deadline } = refused;
        let Some(server) = self.server.filter(|_| self.takes(&refusal)) else {
            leave_alone(inbound, &stream, &ticket, &refusal, obfs, until).await;
            return;
        };
        count(&inbound.metrics.refused, &refusal);
        let early = Early { bytes: self.received.into_inner(), ended: matches!(refusal, Refusal::Gone) };
        let relay = Box::pin(relay(inbound, server, (stream, peer), early, deadline));
        rt::race(evicted(&ticket), relay).await;
    }
}

/// Relays a client to `server` until one of them ends, or nothing has moved for `silence`.
async fn relay(
    inbound: &Inbound,
    server: &Target,
    (stream, peer): (Stream, SocketAddr),
    early: Early,
    silence: Duration,
) {
    let routed = inbound.origin.request(peer, None, server.clone()).direct();
    let opened = match routed.open_again().await {
        Ok(opened) => opened,
        Err(error) => {
            let error = error.chain();
            tracing::warn!(inbound = &*inbound.name, error, "fallback server cannot be reached");
            return;
        }
    };
    let mut near = Endpoint::plain(stream);
    let entry = inbound.core.conns.enter();
    let session = Box::new(Session::new(routed, opened, early));
    let run = async {
        session.run(&mut near, &entry).await;
    };
    rt::race(quiet(&entry, silence), run).await;
}

/// Returns when nothing has moved for `silence`.
async fn quiet(entry: &Entry, silence: Duration) {
    loop {
        let quiet_for = TICK * entry.quiet_for();
        let Some(left) = silence.checked_sub(quiet_for).filter(|left| !left.is_zero()) else { return };
        rt::sleep(left.max(TICK)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::conns::Conns;

    fn ends_at_once(silence: Duration, touch: bool) -> bool {
        let ends = async {
            let conns = Rc::new(Conns::default());
            let entry = conns.enter();
            (0..60).for_each(|_| conns.sweep(None));
            if touch {
                entry.touch();
            }
            rt::timeout(Duration::from_millis(50), quiet(&entry, silence)).await.is_ok()
        };
        rt::Cores::block_on(ends).expect("an event loop")
    }

    #[test]
    fn a_relay_ends_when_nothing_moves() {
        assert!(ends_at_once(Duration::from_secs(60), false));
        assert!(!ends_at_once(Duration::from_secs(61), false));
        assert!(!ends_at_once(Duration::from_secs(60), true));
    }

    #[test]
    fn clients_that_were_answered_go_nowhere() {
        let server = Target::new(b"web.example", 80).expect("a target");
        let begun = |server| {
            let fallback = Fallback::new(server);
            fallback.received.borrow_mut().push(1);
            fallback
        };
        assert!(begun(Some(&server)).takes(&Refusal::Late) && !begun(None).takes(&Refusal::Late));
        assert!(!begun(Some(&server)).takes(&Refusal::Evicted));
        assert!(!Fallback::new(Some(&server)).takes(&Refusal::Late), "a client without a byte");
        let answered = begun(Some(&server));
        answered.close();
        assert!(!answered.takes(&Refusal::Gone));
    }
}
