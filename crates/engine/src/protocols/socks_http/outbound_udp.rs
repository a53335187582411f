//! Datagrams through a SOCKS5 proxy (RFC 1928, section 7): each flow has an association, which lives as long as the
//! connection that asked for it. That connection ends with the flow.
//!
//! ```text
//! flow ─ first datagram ─→ connection: UDP ASSOCIATE ─→ address of the relay ─→ datagrams, each behind a header
//! ```

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::task::Waker;

use adit_model::{Egress, Udp};
use adit_net::rt::{self, Stopper};
use adit_net::udp::Socket;
use adit_proto::socks::{SocksCommand, emit_header, header_len, parse_datagram};
use adit_proto::wire::{Host, Room, Target, WireError};

use super::outbound::{Proxied, socks};
use crate::datagram::{
    DatagramTarget, DropReason, FlowClass, FlowCodec, FlowLookup, FlowTick, FlowTransport, PacketFlow,
    PacketOutbound, set_options,
};
use crate::dns::Scope;
use crate::outbound::OutboundDeps;

/// Wakers that wait for one association: the flows of a listener share a task.
const MAX_WAKERS: usize = 8;

/// The way out for datagrams through one proxy, on one core.
pub(super) struct SocksPackets {
    outbound: Rc<Proxied>,
    egress: Egress,
    udp: Udp,
    names: Scope,
}

impl SocksPackets {
    pub(super) fn new(outbound: Rc<Proxied>, around: &OutboundDeps<'_>) -> Self {
        let dial = &around.model.dial;
        Self { outbound, egress: dial.egress.clone(), udp: around.udp.clone(), names: around.dns.scope(dial) }
    }
}

impl PacketOutbound for SocksPackets {
    fn begin(self: Rc<Self>, _: &Target, _: FlowClass, _: FlowTick) -> Result<PacketFlow, DropReason> {
        let socket = Socket::open(&self.egress).map_err(DropReason::System)?;
        set_options(&socket, &self.udp, true).map_err(DropReason::System)?;
        let (stopper, mut stop) = Stopper::new();
        let association =
            Rc::new(Association { state: RefCell::new(State::Opening(Vec::new())), _stopper: stopper });
        let (weak, outbound, names) =
            (Rc::downgrade(&association), self.outbound.clone(), self.names.clone());
        rt::spawn_local(async move {
            let held = async {
                let opened = Box::pin(associate(&outbound, &names)).await;
                let (stream, relay) = match opened {
                    Ok((stream, relay)) => (Some(stream), Ok(relay)),
                    Err(error) => {
                        let outbound = &**crate::stream::Outbound::name(&*outbound);
                        tracing::debug!(outbound, error, "no UDP association with the proxy");
                        (None, Err(()))
                    }
                };
                if let Some(association) = weak.upgrade() {
                    association.settle(relay.ok());
                }
                if let Some(stream) = stream {
                    // The proxy says nothing more; it ends the association by closing.
                    let mut byte = [0];
                    while stream.recv(&mut byte).await.is_ok_and(|received| received > 0) {}
                    if let Some(association) = weak.upgrade() {
                        association.settle(None);
                    }
                }
            };
            rt::race(stop.draining(), Box::pin(held)).await;
        });
        let transport = FlowTransport::Socket(socket, Some(Box::new(Headed)));
        Ok(PacketFlow { transport, outbound: association, witness: None, chain: Vec::new() })
    }

    /// Flows ask their association instead.
    fn find(&self, _: &Target, _: Option<IpAddr>, _: Option<&Waker>, _: FlowTick) -> FlowLookup {
        FlowLookup::Nothing
    }
}

/// The connection of an association and the address that its datagrams go to.
async fn associate(outbound: &Proxied, names: &Scope) -> Result<(rt::Stream, SocketAddr), String> {
    let shared = &outbound.shared;
    let open = async {
        let stream = shared.begin(&outbound.connector).await.map_err(|error| error.chain())?;
        let any = Target { host: Host::Ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port: 0 };
        let asked = socks(&stream, SocksCommand::UdpAssociate, any, shared.credentials()).await;
        let (bound, _) = asked.map_err(|error| error.to_string())?;
        let ip = match &bound.host {
            Host::Ip(ip) if !ip.is_unspecified() => *ip,
            // "The same as mine": the address of the connection, or of the server behind TLS.
            Host::Ip(_) => match stream.peer_addr() {
                Ok(peer) => peer.ip(),
                Err(_) => address(names, &shared.client.server.host).await?,
            },
            host @ Host::Name(_) => address(names, host).await?,
        };
        Ok((stream, SocketAddr::new(ip.to_canonical(), bound.port)))
    };
    let late = || Err(io::Error::from(io::ErrorKind::TimedOut).to_string());
    rt::timeout(shared.timeout, Box::pin(open)).await.unwrap_or_else(|rt::Elapsed| late())
}

async fn address(names: &Scope, host: &Host) -> Result<IpAddr, String> {
    match host {
        Host::Ip(ip) => Ok(*ip),
        Host::Name(name) => {
            let found = names.lookup(name, names.family()).await.map_err(|error| error.to_string())?;
            found.first().copied().ok_or_else(|| "the relay's name has no address".to_owned())
        }
    }
}

/// The association of one flow.
struct Association {
    state: RefCell<State>,
    /// Ends the connection with the flow.
    _stopper: Stopper,
}

enum State {
    Opening(Vec<Waker>),
    Open(SocketAddr),
    Gone,
}

impl Association {
    fn settle(&self, relay: Option<SocketAddr>) {
        let next = relay.map_or(State::Gone, State::Open);
        if let State::Opening(wakers) = self.state.replace(next) {
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl PacketOutbound for Association {
    /// A flow begins once.
    fn begin(self: Rc<Self>, _: &Target, _: FlowClass, _: FlowTick) -> Result<PacketFlow, DropReason> {
        Err(DropReason::Gone)
    }

    fn find(&self, _: &Target, _: Option<IpAddr>, waker: Option<&Waker>, _: FlowTick) -> FlowLookup {
        match &mut *self.state.borrow_mut() {
            State::Open(relay) => FlowLookup::Addr(*relay),
            State::Gone => FlowLookup::Nothing,
            State::Opening(wakers) => {
                if let Some(waker) = waker
                    && wakers.len() < MAX_WAKERS
                    && !wakers.iter().any(|other| other.will_wake(waker))
                {
                    wakers.push(waker.clone());
                }
                FlowLookup::Pending
            }
        }
    }
}

/// The header of SOCKS5 in front of each datagram.
struct Headed;

impl FlowCodec for Headed {
    fn room(&mut self, target: &Target, _: &[u8]) -> Room {
        let head = header_len(target);
        Room { head, tail: 0, max_payload: usize::from(u16::MAX) - head }
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        target: &Target,
        _: u64,
    ) -> Result<Range<usize>, DropReason> {
        let start = payload.start - header_len(target);
        emit_header(target, &mut block[start..payload.start]);
        Ok(start..payload.end)
    }

    fn open(&mut self, datagram: &mut [u8], _: u64) -> Result<(DatagramTarget, Range<usize>), WireError> {
        let (source, head) = parse_datagram(datagram)?;
        Ok((DatagramTarget::Own(source), head..datagram.len()))
    }
}
