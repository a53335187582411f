//! The stream of one client's datagrams, from the request to the end.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use adit_net::rt;

use super::{Association, FrameFormat};
use crate::connections::listing::{ConnectionRoute, Describe, Description};
use crate::connections::record::EndReason;
use crate::connections::table::ConnectionEntry;
use crate::listener::{DatagramDeps, Inbound};
use crate::relay::Endpoint;

/// Whether one more association may begin here.
pub(crate) fn has_place(inbound: &Inbound) -> bool {
    let open = usize::try_from(inbound.metrics.datagrams.flows.value()).unwrap_or(0);
    inbound.datagrams().is_some_and(|datagrams| open < datagrams.udp.flows)
}

/// Passes datagrams on until the client ends the stream, or nothing has moved for long.
pub(crate) async fn serve(
    inbound: &Inbound,
    format: &'static FrameFormat,
    near: &mut Endpoint,
    peer: SocketAddr,
    entry: &ConnectionEntry,
) {
    let Some(datagrams) = inbound.datagrams() else { return };
    inbound.metrics.take_request();
    entry.set_answered();
    // The socket of its datagrams.
    let _slot = inbound.core.places.stream();
    let since = rt::now();
    let (name, metrics, pool) = (inbound.name.clone(), inbound.metrics.clone(), inbound.core.pool.clone());
    let DatagramDeps { routes, udp, scratch } = datagrams;
    let association = Association::new(format, name, metrics, pool, scratch, routes, &udp, peer);
    entry.begin_request(Rc::new(Shown { peer, since }));
    let reason = association.run(near, entry).await;
    entry.end_request();
    let duration = rt::now().saturating_duration_since(since);
    tracing::debug!(inbound = &*inbound.name, %peer, ?duration, reason = reason.name(), "datagrams ended: {reason}");
    match reason {
        EndReason::Crowded
        | EndReason::Kicked
        | EndReason::Stopped
        | EndReason::Limited(_)
        | EndReason::Socket(..) => near.stream.abort_on_close(),
        EndReason::Finished | EndReason::Idle | EndReason::Wire(_) => {}
    }
}

/// An association in the list of connections.
struct Shown {
    peer: SocketAddr,
    since: Instant,
}

impl Describe for Shown {
    fn describe(&self) -> Description {
        let Self { peer, since } = *self;
        Description {
            network: "udp",
            source: peer,
            target: "*".into(),
            outbound: None,
            since,
            way: ConnectionRoute::default(),
        }
    }
}
