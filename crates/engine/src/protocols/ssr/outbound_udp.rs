//! Datagrams through a ShadowsocksR server. They take no obfs, unless they travel in streams.

use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use adit_model::{self as model, Egress, Udp};
use adit_net::rt::Pool;
use adit_net::udp::Socket;
use adit_proto::ssr::udp::SsrClientUdp;
use adit_proto::wire::{Room, Target, WireError};

use super::outbound::{SsrOutbound, SsrShared};
use super::udp_over_tcp::SsrFlowStream;
use crate::datagram::{
    DatagramTarget, DropReason, FlowClass, FlowCodec, FlowLookup, FlowTick, FlowTransport, PacketFlow,
    PacketOutbound, set_options,
};
use crate::dns::{Dns, Scope};
use crate::rng::OsRng;

/// The way out for datagrams through one server, on one core.
pub(super) struct SsrClientPackets {
    shared: Arc<SsrShared>,
    /// The outbound itself with the pool of its core, where datagrams travel in streams.
    over_tcp: Option<(Rc<SsrOutbound>, Pool)>,
    names: Scope,
    egress: Egress,
    udp: Udp,
}

impl SsrClientPackets {
    pub(super) fn new(
        shared: Arc<SsrShared>,
        outbound: &model::Outbound,
        udp: &Udp,
        dns: &Rc<Dns>,
        over_tcp: Option<(Rc<SsrOutbound>, Pool)>,
    ) -> Self {
        let names = dns.scope(&outbound.dial);
        let egress = match shared.server.datagram_plugin() {
            // The plugin is on this machine, so the way out to the server does not matter.
            Some(_) => Egress::default(),
            None => outbound.dial.egress.clone(),
        };
        Self { shared, over_tcp, names, egress, udp: udp.clone() }
    }

    fn server(&self, waker: Option<&Waker>) -> FlowLookup {
        match self.shared.server.datagram_plugin() {
            Some(port) => FlowLookup::Addr(port.addr()),
            None => FlowLookup::find(&self.names, &self.shared.server.target, waker),
        }
    }
}

impl PacketOutbound for SsrClientPackets {
    fn begin(self: Rc<Self>, _: &Target, _: FlowClass, _: FlowTick) -> Result<PacketFlow, DropReason> {
        if let Some((outbound, pool)) = &self.over_tcp {
            let transport =
                FlowTransport::Stream(Box::new(SsrFlowStream::new(outbound.clone(), pool.clone())));
            return Ok(PacketFlow { transport, outbound: self, witness: None, chain: Vec::new() });
        }
        let socket = match self.server(None) {
            FlowLookup::Addr(server) => Socket::connect(server, &self.egress),
            // As long as the server's address is not known the socket may send anywhere.
            FlowLookup::Pending | FlowLookup::Nothing | FlowLookup::Private(_) => Socket::open(&self.egress),
        };
        let socket = socket.map_err(DropReason::System)?;
        set_options(&socket, &self.udp, true).map_err(DropReason::System)?;
        let codec = Sealed(SsrClientUdp::new(&self.shared.protocol, &mut OsRng));
        let transport = FlowTransport::Socket(socket, Some(Box::new(codec)));
        Ok(PacketFlow { transport, outbound: self, witness: None, chain: Vec::new() })
    }

    fn find(&self, _: &Target, _: Option<IpAddr>, waker: Option<&Waker>, _: FlowTick) -> FlowLookup {
        self.server(waker)
    }
}

/// The datagrams of one flow, each sealed for itself.
struct Sealed(SsrClientUdp);

impl FlowCodec for Sealed {
    fn room(&mut self, target: &Target, _: &[u8]) -> Room {
        self.0.room(target)
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        target: &Target,
        _: u64,
    ) -> Result<Range<usize>, DropReason> {
        Ok(self.0.seal(block, payload, target, &mut OsRng)?)
    }

    fn open(&mut self, datagram: &mut [u8], _: u64) -> Result<(DatagramTarget, Range<usize>), WireError> {
        let packet = self.0.open(datagram)?;
        Ok((DatagramTarget::Own(packet.target), packet.payload))
    }
}
