//! Datagrams through a Shadowsocks server.

use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;
use std::task::Waker;

use adit_model::{self as model, Egress, Udp};
use adit_net::plugin::PluginPort;
use adit_net::udp::Socket;
use adit_proto::shadowsocks::{MethodKey, NoFilter, PacketCodec, TOGETHER, client_packets};
use adit_proto::wire::{Room, Target, WireError};

use crate::datagram::{
    DatagramTarget, DropReason, FlowClass, FlowCodec, FlowLookup, FlowTick, FlowTransport, PacketFlow,
    PacketOutbound, set_options,
};
use crate::dns::{Dns, Scope};
use crate::rng::OsRng;

/// The way out for datagrams through one server, on one core.
pub(crate) struct ShadowsocksPackets {
    key: MethodKey,
    server: Server,
    names: Scope,
    egress: Egress,
    udp: Udp,
}

/// Destination of the datagrams.
enum Server {
    At(Target),
    Plugin(PluginPort),
}

impl ShadowsocksPackets {
    /// The way out to `server` with `key`, by a `plugin` that takes the server's place if there is one.
    pub(crate) fn new(
        outbound: &model::Outbound,
        key: MethodKey,
        server: Target,
        plugin: Option<PluginPort>,
        udp: &Udp,
        dns: &Rc<Dns>,
    ) -> Self {
        let names = dns.scope(&outbound.dial);
        let (server, egress) = match plugin {
            // The plugin is on this machine, for every way to the server.
            Some(port) => (Server::Plugin(port), Egress::default()),
            None => (Server::At(server), outbound.dial.egress.clone()),
        };
        Self { key, server, names, egress, udp: udp.clone() }
    }

    fn server(&self, waker: Option<&Waker>) -> FlowLookup {
        match &self.server {
            Server::Plugin(port) => FlowLookup::Addr(port.addr()),
            Server::At(server) => FlowLookup::find(&self.names, server, waker),
        }
    }
}

impl PacketOutbound for ShadowsocksPackets {
    fn begin(self: Rc<Self>, _: &Target, _: FlowClass, _: FlowTick) -> Result<PacketFlow, DropReason> {
        let socket = match self.server(None) {
            FlowLookup::Addr(server) => Socket::connect(server, &self.egress),
            // As long as the server's address is not known the socket may send anywhere.
            FlowLookup::Pending | FlowLookup::Nothing | FlowLookup::Private(_) => Socket::open(&self.egress),
        };
        let socket = socket.map_err(DropReason::System)?;
        set_options(&socket, &self.udp, true).map_err(DropReason::System)?;
        let codec = Sealed(client_packets(&self.key, &mut OsRng));
        let transport = FlowTransport::Socket(socket, Some(Box::new(codec)));
        Ok(PacketFlow { transport, outbound: self, witness: None, chain: Vec::new() })
    }

    fn find(&self, _: &Target, _: Option<IpAddr>, waker: Option<&Waker>, _: FlowTick) -> FlowLookup {
        self.server(waker)
    }
}

/// The datagrams of one flow, each sealed.
struct Sealed(Box<dyn PacketCodec>);

impl FlowCodec for Sealed {
    fn together(&self) -> usize {
        TOGETHER
    }

    fn expect(&mut self, next: &mut dyn Iterator<Item = &[u8]>) {
        self.0.expect(next);
    }

    fn room(&mut self, target: &Target, _: &[u8]) -> Room {
        self.0.room(target)
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        target: &Target,
        unix_s: u64,
    ) -> Result<Range<usize>, DropReason> {
        Ok(self.0.seal(block, payload, target, unix_s, &mut OsRng)?)
    }

    fn open(
        &mut self,
        datagram: &mut [u8],
        unix_s: u64,
    ) -> Result<(DatagramTarget, Range<usize>), WireError> {
        let packet = self.0.open(datagram, unix_s, &mut NoFilter)?;
        Ok((DatagramTarget::Own(packet.target), packet.payload))
    }

    fn rest(&mut self) {
        self.0.rest();
    }
}
