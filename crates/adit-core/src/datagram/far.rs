//! The side of the targets.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use adit_config::model::{self, ClientCover, OutboundProtocol, ShadowsocksClient, Udp};
use adit_net::resolve::Resolver;
use adit_net::udp::{Fragmentation, Socket};
use adit_proto::shadowsocks::{Key, PacketCodec, client_packets};
use adit_proto::wire::Target;

use super::names::{Known, Names};
use crate::flow::Tick;
use crate::outbound::{Group, Here};
use crate::rng::OsRng;

/// How the datagrams of one outbound leave, on one core.
pub(crate) struct Far {
    names: Names,
    interface: Option<Box<str>>,
    udp: Udp,
    kind: Kind,
}

enum Kind {
    Direct,
    Shadowsocks { server: Target, key: Arc<Key> },
    Group(Rc<Group>),
}

/// The way out of one flow.
pub(crate) struct FarFlow {
    /// Where its datagrams leave.
    pub(crate) socket: Socket,
    /// For those that go through a server.
    pub(crate) codec: Option<Box<dyn PacketCodec>>,
}

/// What a new flow goes over, for as long as it lasts.
pub(super) struct Way {
    pub(super) far: Rc<Far>,
    /// The member, for one of a group.
    pub(super) member: Option<Rc<Here>>,
}

impl Far {
    /// Whether `outbound` carries datagrams. Of a group, its members tell.
    pub(crate) fn carries(outbound: &model::Outbound) -> bool {
        match &outbound.protocol {
            OutboundProtocol::Direct => true,
            OutboundProtocol::Shadowsocks(client) => carries_datagrams(client),
            OutboundProtocol::Reject | OutboundProtocol::Snell(_) | OutboundProtocol::Group(_) => false,
        }
    }

    /// Whether the outbound of this number carries datagrams, or may come to.
    pub(crate) fn carries_any(outbounds: &[model::Outbound], index: usize) -> bool {
        let OutboundProtocol::Group(group) = &outbounds[index].protocol else {
            return Self::carries(&outbounds[index]);
        };
        let mut members = group.members.iter().filter(|member| member.udp_weight > 0);
        group.grows || members.any(|member| Self::carries(&outbounds[member.outbound]))
    }

    /// The way out over a group.
    pub(crate) fn group(group: Rc<Group>, udp: &Udp) -> Self {
        let names = Names::new(Resolver::new(&[]), model::Family::Any);
        Self { names, interface: None, udp: udp.clone(), kind: Kind::Group(group) }
    }

    /// What a new flow goes over; `None` if there is nothing at this time.
    pub(super) fn pick(self: &Rc<Self>) -> Option<Way> {
        match &self.kind {
            Kind::Direct | Kind::Shadowsocks { .. } => Some(Way { far: self.clone(), member: None }),
            Kind::Group(group) => group.pick().map(|(far, here)| Way { far, member: Some(here) }),
        }
    }

    /// The way out over `outbound`, if it carries datagrams and is no group.
    pub(crate) fn new(outbound: &model::Outbound, udp: &Udp) -> Option<Self> {
        let kind = match &outbound.protocol {
            OutboundProtocol::Direct => Kind::Direct,
            OutboundProtocol::Shadowsocks(client) if carries_datagrams(client) => {
                Kind::Shadowsocks { server: client.server.clone(), key: Arc::new(client.key.derive()) }
            }
            OutboundProtocol::Reject
            | OutboundProtocol::Snell(_)
            | OutboundProtocol::Shadowsocks(_)
            | OutboundProtocol::Group(_) => return None,
        };
        let names = Names::new(Resolver::new(&outbound.dial.dns), outbound.dial.family);
        Some(Self { names, interface: outbound.dial.interface.clone(), udp: udp.clone(), kind })
    }

    /// How datagrams are relayed, on both sides.
    pub(super) fn options(&self) -> &Udp {
        &self.udp
    }

    /// Where a datagram for `target` has to be sent.
    pub(crate) fn find(&self, target: &Target, waker: Option<&Waker>, now: Tick) -> Known {
        match &self.kind {
            Kind::Direct | Kind::Group(_) => self.names.find(target, waker, now),
            Kind::Shadowsocks { server, .. } => self.names.find(server, waker, now),
        }
    }

    /// Whether every datagram of a flow is sent to one address.
    pub(crate) fn is_server(&self) -> bool {
        matches!(self.kind, Kind::Shadowsocks { .. })
    }

    /// A socket for a new flow. Without the server's address it is one that may send anywhere.
    pub(crate) fn open(&self, server: Option<SocketAddr>) -> io::Result<FarFlow> {
        let interface = self.interface.as_deref();
        match &self.kind {
            // Datagrams of the application's own size: what it sees is what it would see without us.
            Kind::Direct | Kind::Group(_) => {
                let socket = Socket::open(interface)?;
                set_options(&socket, &self.udp, false)?;
                Ok(FarFlow { socket, codec: None })
            }
            Kind::Shadowsocks { key, .. } => {
                let socket = match server {
                    Some(server) => Socket::connect(server, interface)?,
                    None => Socket::open(interface)?,
                };
                set_options(&socket, &self.udp, true)?;
                Ok(FarFlow { socket, codec: Some(client_packets(key, &mut OsRng)) })
            }
        }
    }
}

/// Prepares a socket of either side; `is_tunnel` if its datagrams are sealed.
pub(super) fn set_options(socket: &Socket, udp: &Udp, is_tunnel: bool) -> io::Result<()> {
    if is_tunnel && !udp.fragment {
        socket.set_fragmentation(Fragmentation::Forbid)?;
    }
    if udp.ecn {
        socket.report_class()?;
    }
    Ok(())
}

/// What a plugin should carry is not sent past it.
fn carries_datagrams(client: &ShadowsocksClient) -> bool {
    let by_plugin = match &client.cover {
        ClientCover::Plugin(plugin) => plugin.transports.udp(),
        ClientCover::Obfs(_) => false,
    };
    client.transports.udp() && !by_plugin
}
