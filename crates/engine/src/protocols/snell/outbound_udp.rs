//! Datagrams through a Snell server: over a stream for each flow, and QUIC as it is behind envelopes.

use std::net::IpAddr;
use std::rc::Rc;
use std::task::Waker;

use adit_model::{self as model, Egress, Quic, SnellClient, Udp};
use adit_net::rt::Pool;
use adit_net::udp::Socket;
use adit_proto::snell::udp::is_quic_initial;
use adit_proto::wire::Target;

use super::outbound::SnellOutbound;
use super::quic::{QuicFlow, QuicOverUdp};
use super::udp_over_tcp::SnellFlowStream;
use crate::datagram::{
    CarrierChoice, DropReason, FlowClass, FlowLookup, FlowTick, FlowTransport, PacketFlow, PacketOutbound,
    set_options,
};
use crate::dns::{Dns, Scope};

/// The way out for datagrams through one server, on one core.
pub(crate) struct SnellPackets {
    server: Target,
    outbound: Rc<SnellOutbound>,
    pool: Pool,
    quic: QuicMode,
    names: Scope,
    egress: Egress,
    udp: Udp,
}

/// The way in which QUIC is carried.
enum QuicMode {
    /// Over the stream, like all else.
    Stream,
    /// Not at all.
    Blocked,
    /// As it is, to the server's UDP port.
    Raw(Rc<QuicOverUdp>),
}

impl SnellPackets {
    /// The way out of `client`; `running` is the same outbound on this core, with the pool of the core.
    pub(crate) fn new(
        outbound: &model::Outbound,
        client: &SnellClient,
        udp: &Udp,
        dns: &Rc<Dns>,
        running: &Rc<SnellOutbound>,
        pool: &Pool,
    ) -> Self {
        let raw = |may_give_up| QuicMode::Raw(Rc::new(QuicOverUdp::new(running.clone(), may_give_up)));
        let quic = match client.quic {
            Quic::Block => QuicMode::Blocked,
            // Streams alone go through another outbound.
            Quic::Auto | Quic::On | Quic::Off if outbound.dial.through.is_some() => QuicMode::Stream,
            Quic::Auto | Quic::On | Quic::Off if !client.version.has_quic() => QuicMode::Stream,
            Quic::Auto => raw(true),
            Quic::On => raw(false),
            Quic::Off => QuicMode::Stream,
        };
        Self {
            server: client.server.clone(),
            outbound: running.clone(),
            pool: pool.clone(),
            quic,
            names: dns.scope(&outbound.dial),
            egress: outbound.dial.egress.clone(),
            udp: udp.clone(),
        }
    }

    /// A socket towards the server.
    fn socket(&self) -> std::io::Result<Socket> {
        let socket = match FlowLookup::find(&self.names, &self.server, None) {
            FlowLookup::Addr(server) => Socket::connect(server, &self.egress)?,
            // As long as the server's address is not known the socket may send anywhere.
            FlowLookup::Pending | FlowLookup::Nothing | FlowLookup::Private(_) => Socket::open(&self.egress)?,
        };
        set_options(&socket, &self.udp, true)?;
        Ok(socket)
    }
}

impl PacketOutbound for SnellPackets {
    fn begin(self: Rc<Self>, first: &Target, lane: FlowClass, _: FlowTick) -> Result<PacketFlow, DropReason> {
        let transport = match (&self.quic, lane) {
            (QuicMode::Raw(quic), FlowClass::Own(_)) => {
                let codec = QuicFlow::new(quic.clone(), first.clone());
                let socket = self.socket().map_err(DropReason::System)?;
                FlowTransport::Socket(socket, Some(Box::new(codec)))
            }
            (QuicMode::Stream | QuicMode::Blocked | QuicMode::Raw(_), _) => FlowTransport::Stream(Box::new(
                SnellFlowStream::new(self.outbound.clone(), self.pool.clone()),
            )),
        };
        Ok(PacketFlow { transport, outbound: self, witness: None, chain: Vec::new() })
    }

    fn find(&self, _: &Target, _: Option<IpAddr>, waker: Option<&Waker>, _: FlowTick) -> FlowLookup {
        FlowLookup::find(&self.names, &self.server, waker)
    }

    fn has_lanes(&self) -> bool {
        matches!(self.quic, QuicMode::Raw(_) | QuicMode::Blocked)
    }

    fn lane(&self, target: &Target, payload: &[u8], now: FlowTick) -> CarrierChoice {
        match &self.quic {
            QuicMode::Blocked if is_quic_initial(payload) => CarrierChoice::Refused,
            QuicMode::Raw(quic) if quic.takes(target, payload, now) => CarrierChoice::Alone,
            QuicMode::Stream | QuicMode::Blocked | QuicMode::Raw(_) => CarrierChoice::Common,
        }
    }
}
