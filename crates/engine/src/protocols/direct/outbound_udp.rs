//! Datagrams that go straight to their targets.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Waker;

use adit_model::{self as model, Egress, Udp};
use adit_net::reach::Reach;
use adit_net::udp::Socket;
use adit_proto::wire::Target;

use crate::datagram::{
    DropReason, FlowClass, FlowLookup, FlowTick, FlowTransport, PacketFlow, PacketOutbound, set_options,
};
use crate::dns::{Dns, Scope};

/// The direct way out for datagrams, on one core.
pub(crate) struct DirectPackets {
    names: Scope,
    egress: Egress,
    udp: Udp,
    /// The addresses that datagrams may go to.
    reach: Reach,
}

impl DirectPackets {
    /// The direct way out with the options of `outbound`.
    pub(crate) fn new(outbound: &model::Outbound, udp: &Udp, dns: &Rc<Dns>) -> Self {
        let names = dns.scope(&outbound.dial);
        Self { names, egress: outbound.dial.egress.clone(), udp: udp.clone(), reach: Reach::Anywhere }
    }
}

impl PacketOutbound for DirectPackets {
    /// Each flow has a socket of its own that may send anywhere and receive from anywhere. Datagrams keep the
    /// application's own size: it sees what it would see without a relay.
    fn begin(self: Rc<Self>, _: &Target, _: FlowClass, _: FlowTick) -> Result<PacketFlow, DropReason> {
        let socket = Socket::open(&self.egress).map_err(DropReason::System)?;
        set_options(&socket, &self.udp, false).map_err(DropReason::System)?;
        Ok(PacketFlow {
            transport: FlowTransport::Socket(socket, None),
            outbound: self,
            witness: None,
            chain: Vec::new(),
        })
    }

    fn find(&self, target: &Target, at: Option<IpAddr>, waker: Option<&Waker>, _: FlowTick) -> FlowLookup {
        let found = match at {
            Some(ip) => FlowLookup::Addr(SocketAddr::new(ip, target.port)),
            None => FlowLookup::find(&self.names, target, waker),
        };
        found.within(self.reach)
    }

    fn within(&self, reach: Reach) -> Option<Rc<dyn PacketOutbound>> {
        let (names, egress, udp) = (self.names.clone(), self.egress.clone(), self.udp.clone());
        (reach != self.reach).then(|| Rc::new(Self { names, egress, udp, reach }) as Rc<dyn PacketOutbound>)
    }

    fn address_of(&self, target: &Target, waker: Option<&Waker>, _: FlowTick) -> Option<FlowLookup> {
        Some(FlowLookup::find(&self.names, target, waker))
    }
}
