//! A virtual interface: everything that is routed to it becomes streams and datagrams.
//!
//! TCP is the kernel's own. Segments come back in with other addresses, so that they reach a listener of this inbound, and
//! its answers are given their old addresses. A packet of up to 64 KiB is changed where it lies and written unsplit:
//!
//! ```text
//!   application            interface, one loop reads it                      listener on A (one per core)
//!   C:p → T:q      ─read→  N:n → A:l    ─write→ kernel's TCP ─────────────→  accept: peer N:n, so C:p asks for T:q
//!   T:q → C:p      ←write─ T:q → C:p    ←read── A:l → N:n    ←─────────────  the relay writes
//!
//!   A: address of the interface, N: the next one, n: the number of the mapping (see nat)
//! ```
//!
//! Datagrams of UDP need no stack: they go to the packet engine with their target, in its batch and where they were read,
//! and answers get headers of IP and UDP when they are written (`port`). A question for an echo is answered for fake
//! addresses and for the interface's own prefixes, which nobody else can have. Beside a capture it is asked of other hosts by
//! a socket of the system's, otherwise refused (`own`). A capture has questions for names answered here too.
//!
//! Packets that cannot be carried are refused at once, within a rate: segments by a reset, datagrams by ICMP.

mod inbound_udp;
mod nat;
mod own;
mod port;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_model as model;
use adit_net::rt::Stream;
use adit_net::tun::{TunDevice, TunSocket};
use adit_proto::wire::Target;

use self::inbound_udp::TunPackets;
use self::nat::{Nat, StreamId};
use self::own::Own;
use self::port::TunPort;
use super::dns::inbound::{MAX_CONNECTIONS, serve_stream};
use crate::admission::{Crowd, EvictionRank};
use crate::datagram::{DatagramRouter as _, PacketInbound, SessionOwners};
use crate::dns::{Answerer, DirectNames};
use crate::listener::connected::{ProxiedConnection, Served};
use crate::listener::{Device, Inbound, InboundFactory, InboundServer};

/// State that the cores share.
#[derive(Debug)]
struct Shared {
    config: model::Tun,
    /// Looked at by the core that reads the interface for each segment, by others once per connection.
    nat: Mutex<Nat>,
}

impl Shared {
    fn nat(&self) -> MutexGuard<'_, Nat> {
        self.nat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The interface's neighbour in a family, from whom the kernel gets connections.
    fn neighbour(&self, is_v6: bool) -> Option<IpAddr> {
        if is_v6 {
            self.config.v6.map(|v6| v6.neighbour().into())
        } else {
            self.config.v4.map(|v4| v4.neighbour().into())
        }
    }

    /// The address that stands for a stream.
    fn stand_in(&self, is_v6: bool, port: u16) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.neighbour(is_v6)?, port))
    }

    /// Whether an address is in a prefix of the interface.
    fn owns(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.config.v4.is_some_and(|own| own.contains(v4)),
            IpAddr::V6(v6) => self.config.v6.is_some_and(|own| own.contains(v6)),
        }
    }
}

/// The interface, for every core.
#[derive(Debug, Clone)]
pub(crate) struct TunFactory(Arc<Shared>);

impl TunFactory {
    pub(crate) fn new(config: model::Tun) -> Self {
        Self(Arc::new(Shared { config, nat: Mutex::default() }))
    }
}

impl InboundFactory for TunFactory {
    fn on_core(&self) -> Rc<dyn InboundServer> {
        Rc::new(Tun { shared: self.0.clone(), connections: Crowd::new(MAX_CONNECTIONS) })
    }

    /// The mappings of connections go on.
    fn renewed(
        &self,
        _: &model::Inbound,
        _: &crate::users::Accounts,
    ) -> io::Result<Option<Arc<dyn InboundFactory>>> {
        Ok(Some(Arc::new(self.clone())))
    }
}

/// The interface on one core.
struct Tun {
    shared: Arc<Shared>,
    /// Connections with questions for names.
    connections: Rc<Crowd>,
}

impl InboundServer for Tun {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Served {
        Box::pin(async move {
            let Some(mapped) = Mapped::find(&self.shared, peer) else {
                stream.abort_on_close();
                return None;
            };
            if mapped.target.port() == port::DNS
                && let Some(names) = self.answerer(&inbound)
            {
                // Its end is all that there is to say.
                let client = mapped.client.ip();
                let place = self.connections.enter(EvictionRank::Unauthenticated, client);
                drop(serve_stream(&inbound, &names, &stream, client, &place).await);
                return None;
            }
            open(&inbound, stream, &mapped).await
        })
    }

    fn packets(&self, _: &Inbound, _: (Arc<SessionOwners>, usize)) -> Option<Box<dyn PacketInbound>> {
        None
    }

    fn device(
        &self,
        inbound: &Inbound,
        device: TunDevice,
        listening: &[SocketAddr],
    ) -> io::Result<Option<Device>> {
        let socket = TunSocket::new(device)?;
        let sources = inbound_udp::AnswerSources::default();
        let own = Own::new(inbound.origin.live.clone(), self.answerer(inbound));
        Ok(Some(Device {
            packets: Box::new(TunPackets::new(sources.clone())),
            port: Box::new(TunPort::new(
                socket,
                self.shared.clone(),
                listening,
                inbound.name.clone(),
                inbound.metrics.clone(),
                sources,
                own,
            )),
            idle: self.shared.config.udp_idle,
        }))
    }
}

impl Tun {
    /// Answers questions for names, where that is wished for.
    fn answerer(&self, inbound: &Inbound) -> Option<Rc<Answerer>> {
        let config = self.shared.config.dns.as_ref()?;
        let ways: Rc<dyn DirectNames> = inbound.origin.live.clone();
        Some(Rc::new(Answerer::new(inbound.origin.live.dns(), config, ways)))
    }
}

/// An accepted connection's mapping, which lives as long as this.
struct Mapped {
    shared: Arc<Shared>,
    id: StreamId,
    client: SocketAddr,
    target: SocketAddr,
}

impl Mapped {
    /// The mapping behind the connection from `peer`; `None` for one that does not come from the interface.
    fn find(shared: &Arc<Shared>, peer: SocketAddr) -> Option<Self> {
        if shared.neighbour(peer.is_ipv6()) != Some(peer.ip()) {
            return None;
        }
        let (id, (client, target)) = shared.nat().accept(peer.is_ipv6(), peer.port())?;
        Some(Self { shared: shared.clone(), id, client, target })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.shared.nat().close(self.id);
    }
}

/// A connection with the way to its target; `None` if it is refused, by a reset.
async fn open(inbound: &Inbound, stream: Stream, mapped: &Mapped) -> Option<Box<ProxiedConnection>> {
    if !inbound.origin.live.accepts(mapped.client.ip()) {
        inbound.metrics.refused.rule.add(1);
        stream.abort_on_close();
        return None;
    }
    ProxiedConnection::connect_plain(inbound, stream, mapped.client, Target::from(mapped.target)).await
}
