//! A port whose connections all go to one fixed target.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_net::rt::{self, Stream};
use adit_proto::wire::Target;

use super::tunnel_packets::TunnelPackets;
use super::{Factory, Inbound, Serve};
use crate::dispatch::{Future, Session};
use crate::packet::{Exchange, PacketInbound};
use crate::relay::{Early, Endpoint};

/// Longest wait for an application's first bytes, where the outbound wants them before it connects.
const PATIENCE: Duration = Duration::from_secs(300);
/// Most bytes that are taken then.
const FIRST_LEN: usize = 16 * 1024;

/// The fixed target of all connections.
#[derive(Debug)]
pub(super) struct TunnelFactory(pub(super) Target);

struct Tunnel {
    target: Target,
}

impl Factory for TunnelFactory {
    fn on_core(&self) -> Rc<dyn Serve> {
        Rc::new(Tunnel { target: self.0.clone() })
    }
}

impl Serve for Tunnel {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Future<'static, ()> {
        Box::pin(async move {
            let mut near = Endpoint::plain(stream);
            let Some(session) = Box::pin(self.open(&inbound, &mut near, peer)).await else { return };
            let entry = inbound.core.conns.enter_from(peer.ip());
            session.run(&mut near, &entry).await;
        })
    }

    fn packets(&self, _: &Inbound, _: (Arc<Exchange>, usize)) -> Option<Box<dyn PacketInbound>> {
        Some(Box::new(TunnelPackets::new(self.target.clone())))
    }
}

impl Tunnel {
    async fn open(&self, inbound: &Inbound, near: &mut Endpoint, peer: SocketAddr) -> Option<Box<Session>> {
        let mut early = Early::default();
        let request = inbound.origin.request(peer, None, self.target.clone());
        let routed = request.route_after(near, &mut early).await?;
        if early.bytes.is_empty() && routed.outbound.wants_first_bytes() {
            early = first_bytes(near).await?;
        }
        let session = routed.connect(early).await;
        session.inspect_err(|_| near.stream.abort_on_close()).ok()
    }
}

/// The first bytes from the application; `None` if it ends without a byte.
pub(super) async fn first_bytes(near: &Endpoint) -> Option<Early> {
    rt::timeout(PATIENCE, near.stream.readable()).await.ok()?.ok()?;
    let mut bytes = vec![0; FIRST_LEN];
    let received = near.stream.recv(&mut bytes).await.ok()?;
    bytes.truncate(received);
    (received > 0).then_some(Early { bytes, ended: false })
}
