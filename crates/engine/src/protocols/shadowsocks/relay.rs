//! The relay of SIP023: a client names the next server in its first identity header, and all else passes unread.
//!
//! A client whose header names no server meets the silence of [`crate::listener::unauthenticated`]. The next server
//! checks whether a request is fresh.

use std::net::SocketAddr;

use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::UserId;
use adit_proto::shadowsocks::aead2022::{Relay, Relayed};
use adit_proto::wire::{Target, WireError};

use super::inbound::{LONGEST_REQUEST, ShadowsocksServerShared};
use crate::listener::Inbound;
use crate::listener::connected::{ProxiedConnection, enter, lease_or_reset, make_room};
use crate::listener::unauthenticated::{FIRST_READ, Refusal, in_time, leave_alone, receive};
use crate::relay::{Early, Endpoint};

/// Everything up to the relay of bytes.
pub(super) async fn prepare(
    inbound: &Inbound,
    shared: &ShadowsocksServerShared,
    relay: &Relay,
    hops: &[Target],
    stream: Stream,
    peer: SocketAddr,
) -> Option<Box<ProxiedConnection>> {
    let (user, early) = meet(inbound, shared, relay, &stream, peer).await?;
    let lease = lease_or_reset(inbound, &shared.accounts[user.0], &stream, peer)?;
    let target = hops.get(user.0)?.clone();
    let request = inbound.origin.request(peer, Some(lease.account().clone()), target).on(&stream);
    let entry = enter(inbound, peer.ip(), Some(lease));
    let opening = async {
        let routed = request.route().await;
        let session = routed.connect(&stream, Early { bytes: early, ended: false }).await;
        session.inspect_err(|_| stream.abort_on_close()).ok()
    };
    let opened = entry.unless_over(Box::pin(opening)).await;
    let session = opened.unwrap_or_else(|| make_room(inbound, &entry, &stream))?;
    Some(ProxiedConnection::new(Endpoint::plain(stream), entry, session))
}

/// Returns the next server's number and the bytes for it, and refuses unauthenticated connections.
async fn meet(
    inbound: &Inbound,
    shared: &ShadowsocksServerShared,
    relay: &Relay,
    stream: &Stream,
    peer: SocketAddr,
) -> Option<(UserId, Vec<u8>)> {
    let now = rt::now();
    let ticket = inbound.guard.enter(peer.ip(), now);
    let until = now + shared.deadline;
    let read = Box::pin(async {
        let mut wire = RecvBuf::with_len(FIRST_READ);
        loop {
            receive(stream, &mut wire, LONGEST_REQUEST).await?;
            match relay.forward_stream(&mut wire).map_err(Refusal::Wire)? {
                Relayed::NeedMore(_) => {}
                Relayed::To(user) => return Ok((user, wire.unread().to_vec())),
            }
        }
    });
    match in_time(&ticket, until, read).await {
        Ok(found) => {
            ticket.authenticated(rt::now());
            Some(found)
        }
        Err(refusal) => {
            tracing::debug!(inbound = &*inbound.name, %peer, %refusal, "no legal request");
            if matches!(refusal, Refusal::Wire(WireError::Authentication { .. })) {
                ticket.mismatched(rt::now());
            }
            leave_alone(inbound, stream, &ticket, &refusal, shared.obfs, until).await;
            None
        }
    }
}
