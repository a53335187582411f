//! A port whose connections all go to one fixed target.

use std::net::SocketAddr;

use adit_net::rt::{self, Stream};
use adit_proto::wire::Target;

use super::Inbound;
use crate::relay::{Early, Endpoint};
use crate::session::{Prepared, Session};

/// Serves one connection.
pub(super) async fn serve(inbound: &Inbound, target: &Target, stream: Stream, peer: SocketAddr) {
    let mut near = Endpoint::plain(stream);
    let Some(prepared) = Box::pin(prepare(inbound, target, &near, peer)).await else { return };
    let entry = inbound.core.conns.enter();
    prepared.run(inbound, peer, &mut near, &entry).await;
}

async fn prepare(
    inbound: &Inbound,
    target: &Target,
    near: &Endpoint,
    peer: SocketAddr,
) -> Option<Box<Prepared>> {
    let since = rt::now();
    let way = inbound.way(target).await;
    let session = Session { inbound, outbound: &way.outbound, peer, target, since };
    let Ok(opened) = session.open(&way).await else {
        near.stream.abort_on_close();
        return None;
    };
    Some(Box::new(Prepared {
        target: target.clone(),
        since,
        outbound: way.outbound,
        opened,
        early: Early::default(),
    }))
}
