//! The side of the targets.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use adit_config::model::{self, ClientCover, Egress, OutboundProtocol, Quic, ShadowsocksClient, Udp};
use adit_net::plugin::PluginPort;
use adit_net::resolve::is_allowed;
use adit_net::rt::{self, Pool};
use adit_net::udp::{Fragmentation, Socket};
use adit_proto::shadowsocks::{Key, PacketCodec, client_packets};
use adit_proto::snell::udp::is_quic_initial;
use adit_proto::wire::{Host, Target};

use super::link::Link;
use super::quic::{QuicFlow, QuicWay};
use crate::dns::{Dns, Found, Scope};
use crate::flow::Tick;
use crate::outbound::{Group, Here, Outbound};
use crate::rng::OsRng;

/// What is known of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Its address.
    Addr(SocketAddr),
    /// It is being asked for.
    Pending,
    /// It has none, or none of an allowed family.
    Nothing,
}

/// How the datagrams of one outbound leave, on one core.
pub(crate) struct Far {
    names: Scope,
    egress: Egress,
    udp: Udp,
    kind: Kind,
}

enum Kind {
    Direct,
    Shadowsocks { server: Server, key: Arc<Key> },
    Snell { server: Target, outbound: Rc<Outbound>, pool: Pool, quic: QuicMode },
    Group(Rc<Group>),
}

/// Where the datagrams of a Shadowsocks client go.
enum Server {
    At(Target),
    Plugin(PluginPort),
}

enum QuicMode {
    Stream,
    Blocked,
    Raw(Rc<QuicWay>),
}

/// What becomes of a datagram before its flow is known.
pub(super) enum Route {
    /// It goes with its client's others.
    Common,
    /// It is QUIC with a flow of its own.
    Quic,
    /// It goes nowhere.
    Blocked,
}

/// The way out of one flow.
pub(super) enum FarFlow {
    /// A socket of its own; with a codec where it goes through a server.
    Socket(Socket, Option<Codec>),
    /// A stream to a server.
    Stream(Box<Link>),
}

/// What is done to datagrams on their way to a server and back.
pub(super) enum Codec {
    Sealed(Box<dyn PacketCodec>),
    Quic(Box<QuicFlow>),
}

/// A socket of its own, with what seals its datagrams: for checks of members.
pub(crate) type Plain = (Socket, Option<Box<dyn PacketCodec>>);

/// What a new flow goes over, for as long as it lasts.
pub(super) struct Way {
    pub(super) far: Rc<Far>,
    /// The member, for one of a group.
    pub(super) member: Option<Rc<Here>>,
}

impl Far {
    /// Whether a member of a group like `outbound` carries datagrams: over sockets, for streams are not compared.
    pub(crate) fn carries(outbound: &model::Outbound) -> bool {
        match &outbound.protocol {
            OutboundProtocol::Direct => true,
            OutboundProtocol::Shadowsocks(client) => client.transports.udp(),
            OutboundProtocol::Reject | OutboundProtocol::Snell(_) | OutboundProtocol::Group(_) => false,
        }
    }

    /// Whether `outbound`, which is no group, carries datagrams.
    pub(crate) fn is_there(outbound: &model::Outbound) -> bool {
        if let OutboundProtocol::Snell(client) = &outbound.protocol {
            return client.udp && client.version.has_datagrams();
        }
        Self::carries(outbound)
    }

    /// Whether the outbound of this number carries datagrams, or may come to.
    pub(crate) fn carries_any(outbounds: &[model::Outbound], index: usize) -> bool {
        let OutboundProtocol::Group(group) = &outbounds[index].protocol else {
            return Self::is_there(&outbounds[index]);
        };
        let mut members = group.members.iter().filter(|member| member.udp_weight > 0);
        group.grows || members.any(|member| Self::carries(&outbounds[member.outbound]))
    }

    /// The way out over a group.
    pub(crate) fn group(group: Rc<Group>, udp: &Udp, dns: &Rc<Dns>) -> Self {
        let names = dns.scope(&model::Dial::default());
        Self { names, egress: Egress::default(), udp: udp.clone(), kind: Kind::Group(group) }
    }

    /// What a new flow goes over; `None` if there is nothing at this time.
    pub(super) fn pick(self: &Rc<Self>) -> Option<Way> {
        match &self.kind {
            Kind::Direct | Kind::Shadowsocks { .. } | Kind::Snell { .. } => {
                Some(Way { far: self.clone(), member: None })
            }
            Kind::Group(group) => group.pick().map(|(far, here)| Way { far, member: Some(here) }),
        }
    }

    /// The way out over `outbound`, if it carries datagrams and is no group; `running` is the same on this core.
    pub(crate) fn running(
        outbound: &model::Outbound,
        udp: &Udp,
        running: &Rc<Outbound>,
        pool: &Pool,
        dns: &Rc<Dns>,
    ) -> Option<Self> {
        if let (OutboundProtocol::Shadowsocks(client), Some(port)) =
            (&outbound.protocol, running.datagram_plugin())
        {
            let (server, key) = (Server::Plugin(port.clone()), Arc::new(client.key.derive()));
            let far = Self::with(outbound, udp, dns, Kind::Shadowsocks { server, key });
            // The plugin is on this machine, whatever the way to the server.
            return Some(Self { egress: Egress::default(), ..far });
        }
        let OutboundProtocol::Snell(client) = &outbound.protocol else {
            return Self::new(outbound, udp, dns);
        };
        if !Self::is_there(outbound) {
            return None;
        }
        let way = |may_give_up| QuicMode::Raw(Rc::new(QuicWay::new(running.clone(), may_give_up)));
        let quic = match client.quic {
            Quic::Block => QuicMode::Blocked,
            Quic::Auto | Quic::On | Quic::Off if !client.version.has_quic() => QuicMode::Stream,
            Quic::Auto => way(true),
            Quic::On => way(false),
            Quic::Off => QuicMode::Stream,
        };
        let (server, way) = (client.server.clone(), running.clone());
        Some(Self::with(outbound, udp, dns, Kind::Snell { server, outbound: way, pool: pool.clone(), quic }))
    }

    /// A socket of its own for datagrams to `target`; `None` where they go over a stream.
    pub(crate) fn open_plain(&self, target: &Target, now: Tick) -> io::Result<Option<Plain>> {
        Ok(match self.open(target, false, now)? {
            FarFlow::Socket(socket, None) => Some((socket, None)),
            FarFlow::Socket(socket, Some(Codec::Sealed(codec))) => Some((socket, Some(codec))),
            FarFlow::Socket(_, Some(Codec::Quic(_))) | FarFlow::Stream(_) => None,
        })
    }

    /// The way out over an `outbound` that needs nothing but sockets.
    pub(crate) fn new(outbound: &model::Outbound, udp: &Udp, dns: &Rc<Dns>) -> Option<Self> {
        let kind = match &outbound.protocol {
            OutboundProtocol::Direct => Kind::Direct,
            OutboundProtocol::Shadowsocks(client) if client.transports.udp() && !is_by_plugin(client) => {
                let server = Server::At(client.server.clone());
                Kind::Shadowsocks { server, key: Arc::new(client.key.derive()) }
            }
            OutboundProtocol::Reject
            | OutboundProtocol::Snell(_)
            | OutboundProtocol::Shadowsocks(_)
            | OutboundProtocol::Group(_) => return None,
        };
        Some(Self::with(outbound, udp, dns, kind))
    }

    fn with(outbound: &model::Outbound, udp: &Udp, dns: &Rc<Dns>, kind: Kind) -> Self {
        let names = dns.scope(&outbound.dial);
        Self { names, egress: outbound.dial.egress.clone(), udp: udp.clone(), kind }
    }

    /// Flows that one listener may have on one core.
    pub(crate) fn max_flows(&self) -> usize {
        self.udp.flows
    }

    /// How datagrams are relayed, on both sides.
    pub(super) fn options(&self) -> &Udp {
        &self.udp
    }

    /// Where a datagram for `target` has to be sent.
    pub(crate) fn find(&self, target: &Target, waker: Option<&Waker>, _: Tick) -> Known {
        match &self.kind {
            Kind::Direct | Kind::Group(_) => self.find_target(target, waker),
            Kind::Shadowsocks { server: Server::Plugin(port), .. } => Known::Addr(port.addr()),
            Kind::Shadowsocks { server: Server::At(server), .. } | Kind::Snell { server, .. } => {
                self.find_target(server, waker)
            }
        }
    }

    /// The address of `target`; `waker` is woken once it is known if it is not.
    fn find_target(&self, target: &Target, waker: Option<&Waker>) -> Known {
        let found = match &target.host {
            Host::Ip(ip) if is_allowed(*ip, self.names.family()) => Found::Address(*ip),
            Host::Ip(_) => Found::Nothing,
            Host::Name(name) => self.names.find(name, waker, rt::now()),
        };
        match found {
            Found::Address(ip) => Known::Addr(SocketAddr::new(ip, target.port)),
            Found::Pending => Known::Pending,
            Found::Nothing => Known::Nothing,
        }
    }

    /// Whether some datagrams have to be looked at for their way to be known.
    pub(super) fn routes(&self) -> bool {
        matches!(self.kind, Kind::Snell { quic: QuicMode::Raw(_) | QuicMode::Blocked, .. })
    }

    /// Which way a datagram takes that has no QUIC flow yet.
    pub(super) fn route(&self, target: &Target, payload: &[u8], now: Tick) -> Route {
        let Kind::Snell { quic, .. } = &self.kind else { return Route::Common };
        match quic {
            QuicMode::Blocked if is_quic_initial(payload) => Route::Blocked,
            QuicMode::Raw(way) if way.takes(target, payload, now) => Route::Quic,
            QuicMode::Stream | QuicMode::Blocked | QuicMode::Raw(_) => Route::Common,
        }
    }

    /// The way for a new flow whose first datagram is for `target`; `is_quic` if [`Far::route`] said so. As long as the
    /// server's address is not known its socket may send anywhere.
    pub(super) fn open(&self, target: &Target, is_quic: bool, now: Tick) -> io::Result<FarFlow> {
        match &self.kind {
            // Datagrams of the application's own size: what it sees is what it would see without us.
            Kind::Direct | Kind::Group(_) => {
                let socket = Socket::open(&self.egress)?;
                set_options(&socket, &self.udp, false)?;
                Ok(FarFlow::Socket(socket, None))
            }
            Kind::Shadowsocks { key, .. } => {
                let codec = Codec::Sealed(client_packets(key, &mut OsRng));
                Ok(FarFlow::Socket(self.socket(target, now)?, Some(codec)))
            }
            Kind::Snell { quic: QuicMode::Raw(way), .. } if is_quic => {
                let codec = Codec::Quic(Box::new(way.begin(target.clone())));
                Ok(FarFlow::Socket(self.socket(target, now)?, Some(codec)))
            }
            Kind::Snell { outbound, pool, .. } => {
                Ok(FarFlow::Stream(Box::new(Link::new(outbound.clone(), pool.clone()))))
            }
        }
    }

    /// A socket towards the server.
    fn socket(&self, target: &Target, now: Tick) -> io::Result<Socket> {
        let socket = match self.find(target, None, now) {
            Known::Addr(server) => Socket::connect(server, &self.egress)?,
            Known::Pending | Known::Nothing => Socket::open(&self.egress)?,
        };
        set_options(&socket, &self.udp, true)?;
        Ok(socket)
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
fn is_by_plugin(client: &ShadowsocksClient) -> bool {
    match &client.cover {
        ClientCover::Plugin(plugin) => plugin.transports.udp(),
        ClientCover::Obfs(_) => false,
    }
}

impl FarFlow {
    /// Whether this is a flow of QUIC that is to go over the stream, as `payload` shows.
    pub(super) fn gives_up_quic(&self, payload: &[u8], now: Tick) -> bool {
        match self {
            Self::Socket(_, Some(Codec::Quic(quic))) => quic.gives_up(payload, now),
            Self::Socket(..) | Self::Stream(_) => false,
        }
    }
}
