//! The event loop that has an outbound's sessions by streams. Each of those takes a proxy of its own, so that the other event
//! loops hand over their streams in the place of making sessions.

use std::rc::{Rc, Weak};
use std::sync::PoisonError;

use adit_net::dial::{DialError, Dialer};
use adit_net::rt::{self, Crossing, Orders, Pool, Stream};

use super::KcpSessions;
use crate::connections::table::Conns;
use crate::counters::Traffic;
use crate::relay::{Early, Endpoint, Policy, Relay};

impl KcpSessions {
    /// Takes the streams of other event loops from now on, if sessions are made here for all of them.
    pub(crate) fn host(self: &Rc<Self>, dialer: &Dialer) {
        if !self.is_home() {
            return;
        }
        let landings = self.shared().landings.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(landings) = landings else { return };
        rt::spawn_local(take(Rc::downgrade(self), landings, dialer.clone()));
    }

    /// A stream by way of the event loop that has the session.
    ///
    /// # Errors
    /// When no pair of sockets can be had.
    pub(super) fn cross(&self) -> Result<Stream, DialError> {
        let failed = |source| DialError::Socket { addr: ([0; 4], 0).into(), source };
        let (near, far) = Crossing::pair().map_err(failed)?;
        self.shared().crossings.send(far);
        Ok(near)
    }
}

/// Goes on until the outbound is gone.
async fn take(client: Weak<KcpSessions>, mut landings: Orders<Crossing>, dialer: Dialer) {
    let (pool, conns) = (Pool::new(), Rc::new(Conns::default()));
    while let Some(crossing) = landings.next().await {
        let Some(client) = client.upgrade() else { return };
        let (pool, conns, dialer) = (pool.clone(), conns.clone(), dialer.clone());
        rt::spawn_local(async move { land(client, crossing, &dialer, &pool, &conns).await });
    }
}

/// One stream of another event loop, joined with one of the session.
async fn land(client: Rc<KcpSessions>, crossing: Crossing, dialer: &Dialer, pool: &Pool, conns: &Rc<Conns>) {
    let Ok(near) = crossing.land() else { return };
    let policy = Policy { carrier_drops: !client.passes_half_close(), ..Policy::default() };
    let far = match Box::pin(client.open(dialer)).await {
        Ok(far) => far,
        Err(error) => {
            tracing::debug!(%error, "no stream for another event loop");
            return near.abort_on_close();
        }
    };
    // The outbound may be replaced while the stream goes on.
    drop(client);
    let (mut near, mut far) = (Endpoint::plain(near), Endpoint::plain(far));
    let (entry, traffic) = (conns.enter(), Traffic::default());
    Relay::new(&mut near, &mut far, Early::default(), pool, &entry, &traffic, policy).await;
}
