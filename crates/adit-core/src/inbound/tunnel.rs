//! A port whose connections all go to one fixed target.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_net::rt::Stream;
use adit_proto::wire::Target;

use super::tunnel_packets::TunnelPackets;
use super::{Factory, Inbound, Serve};
use crate::dispatch::{Future, Session};
use crate::packet::{Exchange, PacketInbound};
use crate::relay::{Early, Endpoint};

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
            let Some(session) = Box::pin(self.open(&inbound, &near, peer)).await else { return };
            let entry = inbound.core.conns.enter_from(peer.ip());
            session.run(&mut near, &entry).await;
        })
    }

    fn packets(&self, _: &Inbound, _: (Arc<Exchange>, usize)) -> Option<Box<dyn PacketInbound>> {
        Some(Box::new(TunnelPackets::new(self.target.clone())))
    }
}

impl Tunnel {
    async fn open(&self, inbound: &Inbound, near: &Endpoint, peer: SocketAddr) -> Option<Box<Session>> {
        let routed = inbound.origin.request(peer, None, self.target.clone()).route().await;
        let session = routed.connect(Early::default()).await;
        session.inspect_err(|_| near.stream.abort_on_close()).ok()
    }
}
