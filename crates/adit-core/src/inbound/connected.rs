//! A client of an inbound, from its request to the end of its connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_net::rt::{self, Stream};
use adit_proto::wire::Target;

use super::Inbound;
use crate::dispatch::Session;
use crate::relay::{Early, Endpoint};
use crate::user::{Account, Lease, Limit};

/// Longest wait for an application's first bytes, where the outbound wants them before it connects.
const PATIENCE: Duration = Duration::from_secs(300);
/// Most bytes that are taken then.
const FIRST_LEN: usize = 16 * 1024;

/// A client with the way to its target.
pub(super) struct Connected {
    near: Endpoint,
    /// The user's place, where there are users.
    lease: Option<Lease>,
    session: Box<Session>,
}

impl Connected {
    /// A client whose target is connected.
    pub(super) fn new(near: Endpoint, lease: Option<Lease>, session: Box<Session>) -> Self {
        Self { near, lease, session }
    }

    /// Routes the request and connects to its target. `None` if that fails, which resets the connection.
    pub(super) async fn connect(
        inbound: &Inbound,
        mut near: Endpoint,
        (peer, lease): (SocketAddr, Option<Lease>),
        (target, mut early): (Target, Early),
    ) -> Option<Self> {
        let user = lease.as_ref().map(|lease| lease.account().clone());
        let routed = inbound.origin.request(peer, user, target).route_after(&mut near, &mut early).await?;
        let session = routed.connect(&near.stream, early).await;
        let session = session.inspect_err(|_| near.stream.abort_on_close()).ok()?;
        Some(Self::new(near, lease, session))
    }

    /// The same for an application that sends no request. Its first bytes are awaited where the outbound wants them before
    /// it connects.
    pub(super) async fn connect_plain(
        inbound: &Inbound,
        stream: Stream,
        peer: SocketAddr,
        target: Target,
    ) -> Option<Self> {
        let (mut near, mut early) = (Endpoint::plain(stream), Early::default());
        let request = inbound.origin.request(peer, None, target);
        let routed = request.route_after(&mut near, &mut early).await?;
        if early.bytes.is_empty() && routed.outbound.wants_first_bytes() {
            early = first_bytes(&near).await?;
        }
        let session = routed.connect(&near.stream, early).await;
        let session = session.inspect_err(|_| near.stream.abort_on_close()).ok()?;
        Some(Self::new(near, None, session))
    }

    /// Relays until the connection ends. The future keeps only what an idle connection needs.
    pub(super) fn run(self, inbound: &Inbound, peer: SocketAddr) -> impl Future<Output = ()> {
        let Self { mut near, lease, session } = self;
        let entry = inbound.core.conns.enter_from(peer.ip());
        if let Some(lease) = lease {
            entry.set_lease(lease);
        }
        async move {
            session.run(&mut near, &entry).await;
        }
    }
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
pub(super) fn lease(inbound: &Inbound, account: &Arc<Account>, peer: SocketAddr) -> Result<Lease, Limit> {
    account.requests.add(1);
    Lease::begin(account, peer.ip()).inspect_err(|limit| {
        tracing::debug!(inbound = &*inbound.name, %peer, %limit, "user refused");
    })
}

/// The same for a protocol that has no way to say why: without a place the connection is reset.
pub(super) fn lease_or_reset(
    inbound: &Inbound,
    account: &Arc<Account>,
    (stream, peer): (&Stream, SocketAddr),
) -> Option<Lease> {
    lease(inbound, account, peer).inspect_err(|_| stream.abort_on_close()).ok()
}
