//! A port whose connections all go to one fixed target.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_net::rt::Stream;
use adit_proto::wire::Target;

use super::inbound_udp::TunnelPackets;
use crate::datagram::{PacketInbound, SessionOwners};
use crate::listener::connected::{ProxiedConnection, Served};
use crate::listener::{Inbound, InboundFactory, InboundServer};

/// The fixed target of all connections.
#[derive(Debug)]
pub(crate) struct TunnelFactory(pub(crate) Target);

struct Tunnel {
    target: Target,
}

impl InboundFactory for TunnelFactory {
    fn on_core(&self) -> Rc<dyn InboundServer> {
        Rc::new(Tunnel { target: self.0.clone() })
    }
}

impl InboundServer for Tunnel {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Served {
        Box::pin(async move {
            ProxiedConnection::connect_plain(&inbound, stream, peer, self.target.clone()).await
        })
    }

    fn packets(&self, _: &Inbound, _: (Arc<SessionOwners>, usize)) -> Option<Box<dyn PacketInbound>> {
        Some(Box::new(TunnelPackets::new(self.target.clone())))
    }
}
