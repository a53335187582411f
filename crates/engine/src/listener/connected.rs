//! A client of an inbound, from its request to the end of its connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_net::rt::{self, Stream};
use adit_proto::wire::Target;

use super::Inbound;
use crate::admission::EvictionRank;
use crate::connections::record::EndReason;
use crate::connections::table::ConnectionEntry;
use crate::relay::{Early, Endpoint};
use crate::stream::{Future, RelaySession};
use crate::users::{Account, Lease, UserLimit};

/// Longest wait for an application's first bytes, where the outbound wants them before it connects.
const PATIENCE: Duration = Duration::from_secs(300);
/// Most bytes that are taken then.
const FIRST_LEN: usize = 16 * 1024;

/// A connection that is being served, up to its relay; `None` when it has ended.
pub(crate) type Served = Future<'static, Option<Box<ProxiedConnection>>>;

/// A client with the way to its target.
pub(crate) struct ProxiedConnection {
    near: Endpoint,
    entry: ConnectionEntry,
    session: Box<RelaySession>,
    again: Option<Box<dyn NextRequest>>,
}

/// The rest of a connection behind one of its requests, in a protocol whose connections carry one after another.
pub(crate) trait NextRequest {
    /// Serves the connection, whose relay has ended for `reason`, up to its next relay.
    fn go_on(self: Box<Self>, near: Endpoint, entry: ConnectionEntry, reason: EndReason) -> Served;
}

impl ProxiedConnection {
    /// A client whose target is connected.
    pub(crate) fn new(near: Endpoint, entry: ConnectionEntry, session: Box<RelaySession>) -> Box<Self> {
        Box::new(Self { near, entry, session, again: None })
    }

    /// One request of several.
    pub(crate) fn one_of_several(
        near: Endpoint,
        entry: ConnectionEntry,
        session: Box<RelaySession>,
        again: Box<dyn NextRequest>,
    ) -> Box<Self> {
        Box::new(Self { near, entry, session, again: Some(again) })
    }

    /// Routes the request and connects to its target. `None` if that fails, or if the client has to make room for others
    /// meanwhile; both reset the connection.
    pub(crate) async fn connect(
        inbound: &Inbound,
        mut near: Endpoint,
        peer: SocketAddr,
        lease: Option<Lease>,
        target: Target,
        mut early: Early,
    ) -> Option<Box<Self>> {
        let user = lease.as_ref().map(|lease| lease.account().clone());
        let entry = enter(inbound, peer.ip(), lease);
        let opening = async {
            let request = inbound.origin.request(peer, user, target).on(&near.stream);
            let routed = request.route_after(&mut near, &mut early).await?;
            let session = routed.connect(&near.stream, early).await;
            session.inspect_err(|_| near.stream.abort_on_close()).ok()
        };
        let opened = entry.unless_over(Box::pin(opening)).await;
        let session = opened.unwrap_or_else(|| make_room(inbound, &entry, &near.stream))?;
        Some(Self::new(near, entry, session))
    }

    /// The same for an application that sends no request. Its first bytes are awaited where the outbound wants them before
    /// it connects.
    pub(crate) async fn connect_plain(
        inbound: &Inbound,
        stream: Stream,
        peer: SocketAddr,
        target: Target,
    ) -> Option<Box<Self>> {
        let (mut near, mut early) = (Endpoint::plain(stream), Early::default());
        let entry = enter(inbound, peer.ip(), None);
        let opening = async {
            let request = inbound.origin.request(peer, None, target).on(&near.stream);
            let routed = request.route_after(&mut near, &mut early).await?;
            if early.bytes.is_empty() && routed.outbound.wants_first_bytes() {
                early = first_bytes(&near).await?;
            }
            let session = routed.connect(&near.stream, early).await;
            session.inspect_err(|_| near.stream.abort_on_close()).ok()
        };
        let opened = entry.unless_over(Box::pin(opening)).await;
        let session = opened.unwrap_or_else(|| make_room(inbound, &entry, &near.stream))?;
        Some(Self::new(near, entry, session))
    }

    /// Relays, and returns the rest of the connection if it may go on.
    #[expect(clippy::boxed_local, reason = "the box is gone when the relay begins")]
    fn relay(self: Box<Self>) -> impl std::future::Future<Output = Option<Served>> {
        let Self { mut near, entry, session, again } = *self;
        async move {
            let reason = session.run(&mut near, &entry).await;
            again.map(|again| again.go_on(near, entry, reason))
        }
    }
}

/// Serves a connection to its end. This future is what an idle connection consists of, for every protocol: all that is
/// needed only until a relay begins is in `served`.
pub(super) async fn to_its_end(mut served: Served) {
    while let Some(connected) = served.await {
        let Some(rest) = connected.relay().await else { return };
        served = rest;
    }
}

/// The place of a client in the table of connections.
pub(crate) fn enter(inbound: &Inbound, address: IpAddr, lease: Option<Lease>) -> ConnectionEntry {
    let entry = inbound.core.conns.enter_from(address);
    if let Some(lease) = lease {
        entry.set_lease(lease);
    }
    entry
}

/// A client at `address` that has to send more before it is known what it wants: the oldest of these gives way. A source has
/// a bound of its own where passwords are asked for.
pub(crate) fn enter_unknown(inbound: &Inbound, address: IpAddr, asks_for_password: bool) -> ConnectionEntry {
    inbound.guard.make_room(asks_for_password.then_some(address));
    inbound.core.conns.enter_as(EvictionRank::Unauthenticated, address)
}

/// The client of `entry` ends before it has been served, with a reset.
pub(crate) fn make_room<T>(inbound: &Inbound, entry: &ConnectionEntry, stream: &Stream) -> Option<T> {
    inbound.metrics.refused.overload.add(u64::from(entry.is_crowded()));
    stream.abort_on_close();
    None
}

/// The first bytes from the application; `None` if it ends without a byte.
async fn first_bytes(near: &Endpoint) -> Option<Early> {
    rt::timeout(PATIENCE, near.stream.readable()).await.ok()?.ok()?;
    let mut bytes = vec![0; FIRST_LEN];
    let received = near.stream.recv(&mut bytes).await.ok()?;
    bytes.truncate(received);
    (received > 0).then_some(Early { bytes, ended: false })
}

/// The place of a user's connection, which counts as a request.
///
/// # Errors
/// The limit that leaves the user no place.
pub(crate) fn lease(inbound: &Inbound, account: &Arc<Account>, peer: SocketAddr) -> Result<Lease, UserLimit> {
    account.requests.add(1);
    Lease::begin(account, peer.ip()).inspect_err(|limit| note_limit(inbound, peer, *limit))
}

/// Has a connection whose user is known carry another request of the user.
///
/// # Errors
/// The limit that is in the way.
pub(crate) fn admit(
    inbound: &Inbound,
    entry: &ConnectionEntry,
    account: &Arc<Account>,
    peer: SocketAddr,
) -> Result<(), UserLimit> {
    account.requests.add(1);
    entry.admit(account, peer.ip()).inspect_err(|limit| note_limit(inbound, peer, *limit))
}

fn note_limit(inbound: &Inbound, peer: SocketAddr, limit: UserLimit) {
    limit.counter(&inbound.metrics.refused).add(1);
    tracing::debug!(inbound = &*inbound.name, %peer, %limit, "user refused");
}

/// The same for a protocol that has no way to say why: without a place the connection is reset.
pub(crate) fn lease_or_reset(
    inbound: &Inbound,
    account: &Arc<Account>,
    stream: &Stream,
    peer: SocketAddr,
) -> Option<Lease> {
    lease(inbound, account, peer).inspect_err(|_| stream.abort_on_close()).ok()
}
