//! The listening sockets of an inbound.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use adit_model as model;
use adit_net::handover::{Kept, Label};
use adit_net::listen::{self, ListenOptions};
use adit_net::options::Warning;
use adit_net::plugin::{Plugins, Role};
use adit_net::steer::Group;
use adit_net::tun::{TunDevice, TunError};
use adit_net::udp::{RawListener, RawSocket, Socket, listen_raw};

use super::StartError;
use crate::carrier;
use crate::datagram::SessionOwners;

/// The sockets of one inbound on one core.
#[derive(Default)]
pub(super) struct Sockets {
    pub(super) listeners: Vec<(std::net::TcpListener, Option<Arc<Group>>)>,
    pub(super) unix: Vec<listen::LocalListener>,
    /// With what the cores of one address share.
    pub(super) datagrams: Vec<DatagramSocket>,
    /// For the sessions of carriers, with their purposes.
    pub(super) carriers: Vec<(std::net::UdpSocket, Label)>,
    raw: Vec<RawListener>,
    /// A virtual interface, with the addresses of its listeners, on one core.
    pub(super) device: Option<(TunDevice, Vec<SocketAddr>)>,
}

/// A socket for datagrams.
pub(super) struct DatagramSocket {
    pub(super) socket: std::net::UdpSocket,
    pub(super) label: Label,
    /// The state that the sockets of one address share, and the place of this one in it.
    pub(super) exchange: (Arc<SessionOwners>, usize),
}

/// A socket of a carrier that goes to an event loop.
pub(super) type MakeLink = Box<dyn FnOnce() -> io::Result<carrier::CarrierSocket>>;

impl Sockets {
    /// Takes the sockets of carriers, with their purposes where they can be handed over.
    pub(super) fn take_links(&mut self) -> Vec<(Option<Label>, MakeLink)> {
        let udp = std::mem::take(&mut self.carriers).into_iter().map(|(socket, label)| {
            let make: MakeLink = Box::new(|| Socket::listening(socket).map(carrier::CarrierSocket::Udp));
            (Some(label), make)
        });
        let raw = std::mem::take(&mut self.raw).into_iter().map(|listener| {
            let make: MakeLink =
                Box::new(|| RawSocket::from_listener(listener).map(carrier::CarrierSocket::Tcp));
            (None, make)
        });
        udp.chain(raw).collect()
    }
}

/// Gives each core its sockets, all of them if there are more sockets than cores.
fn spread<T>(cores: &mut [Sockets], sockets: impl IntoIterator<Item = T>, give: impl Fn(&mut Sockets, T)) {
    let count = cores.len();
    for (at, socket) in sockets.into_iter().enumerate() {
        give(&mut cores[at % count], socket);
    }
}

/// An address that is listened on, and whether it leaves IPv4 alone: both are settled when a socket is bound.
pub(super) type Wanted = (SocketAddr, bool);

/// The sockets of one address of an inbound, or those of its interface and its unix socket.
pub(super) struct InboundSockets {
    /// The address, as the configuration has it.
    pub(super) wanted: Option<Wanted>,
    /// One for each core.
    pub(super) sockets: Vec<Sockets>,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) warnings: Vec<String>,
    /// Copies for the next process.
    pub(super) kept: Vec<Kept>,
}

impl InboundSockets {
    fn new(wanted: Option<Wanted>, cores: usize) -> Self {
        let sockets = (0..cores).map(|_| Sockets::default()).collect();
        Self { wanted, sockets, addresses: Vec::new(), warnings: Vec::new(), kept: Vec::new() }
    }
}

/// The conditions under which sockets are opened.
pub(super) struct ListenTerms<'a> {
    /// Whether the inbound listens for datagrams.
    pub(super) takes: bool,
    pub(super) cores: usize,
    /// Sockets that are about to close.
    pub(super) beside: &'a Arc<[u64]>,
}

/// Listens for `inbound`: what needs no address first, then each address.
///
/// # Errors
/// When one of its addresses cannot be had, or its plugin does not start.
pub(super) fn listen(
    inbound: &model::Inbound,
    terms: &ListenTerms<'_>,
    plugins: &mut Plugins,
) -> Result<Vec<InboundSockets>, StartError> {
    let mut own = InboundSockets::new(None, terms.cores);
    if let model::InboundProtocol::Tun(tun) = &inbound.protocol {
        open_device(inbound, tun, &mut own.sockets, &mut own.kept, &mut own.addresses, &mut own.warnings)?;
    }
    let mut all = vec![own];
    for wanted in wanted_by(inbound) {
        all.push(listen_at(inbound, wanted, terms, plugins)?);
    }
    let own = &mut all[0];
    open_unix(inbound, &mut own.sockets, &mut own.kept)?;
    Ok(all)
}

/// The addresses that `inbound` listens on.
pub(super) fn wanted_by(inbound: &model::Inbound) -> Vec<Wanted> {
    if !inbound.transports().tcp() && !inbound.takes_datagrams() {
        return Vec::new();
    }
    let is_captured = inbound.protocol.captured().is_some();
    let v6_only = |addr: SocketAddr| is_captured || listen::needs_v6_only(addr, &inbound.listen);
    addresses_of(inbound).into_iter().map(|addr| (addr, v6_only(addr))).collect()
}

/// Listens for `inbound` on one of its addresses.
///
/// # Errors
/// When it cannot be had, or the inbound's plugin does not start.
pub(super) fn listen_at(
    inbound: &model::Inbound,
    wanted: Wanted,
    terms: &ListenTerms<'_>,
    plugins: &mut Plugins,
) -> Result<InboundSockets, StartError> {
    let mut made = InboundSockets::new(Some(wanted), terms.cores);
    let (addr, found) = open(inbound, wanted, terms, &mut made.sockets, &mut made.kept, plugins)?;
    made.addresses.push(addr);
    made.warnings.extend(found.iter().map(|warning| format!("inbound {}: {warning}", inbound.name)));
    Ok(made)
}

/// The addresses that it listens on. The target of an IPv4 connection that was redirected is known to sockets of IPv4
/// alone, so every address is two there.
fn addresses_of(inbound: &model::Inbound) -> Vec<SocketAddr> {
    let mut all = inbound.listen.clone();
    if inbound.protocol.captured().is_some() {
        for addr in &inbound.listen {
            let v4 = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, addr.port()));
            if addr.is_ipv6() && addr.ip().is_unspecified() && !all.contains(&v4) {
                all.push(v4);
            }
        }
    }
    all
}

/// Listens on `addr` for what `inbound` carries, with a socket per core; datagrams if it `takes` any.
fn open(
    inbound: &model::Inbound,
    (mut addr, v6_only): Wanted,
    terms: &ListenTerms<'_>,
    cores: &mut [Sockets],
    kept: &mut Vec<Kept>,
    plugins: &mut Plugins,
) -> Result<(SocketAddr, Vec<String>), StartError> {
    let captured = inbound.protocol.captured();
    let options = ListenOptions {
        v6_only,
        beside: terms.beside.clone(),
        transparent_streams: captured.is_some_and(|captured| captured.by == model::CapturedBy::Tproxy),
        transparent_datagrams: captured.is_some(),
        owner: inbound.name.as_ref().into(),
        ..ListenOptions::from(&inbound.socket)
    };
    let build = |source| StartError::Build { name: inbound.name.clone(), source };
    let failed = |source| StartError::Listen { name: inbound.name.clone(), source };
    let mut warnings = Vec::new();
    let takes = terms.takes && !inbound.socket.has_packets_in_streams();
    if let Some(carrier) = inbound.socket.carrier.as_ref().filter(|carrier| !carrier.has_streams()) {
        let made = listen::listen_datagrams(addr, &options, cores.len()).map_err(failed)?;
        let copies = made.keep().map_err(build)?;
        let labels: Vec<Label> = copies.iter().map(Kept::label).collect();
        kept.extend(copies);
        spread(cores, made.sockets.into_iter().zip(labels), |core, socket| core.carriers.push(socket));
        if carrier.raw_tcp {
            let raw = listen_raw(made.addr, &options, cores.len()).map_err(failed)?;
            for (core, listeners) in cores.iter_mut().zip(raw) {
                core.raw.extend(listeners);
            }
        }
        return Ok((made.addr, made.warnings.iter().map(ToString::to_string).collect()));
    }
    let has_streams = inbound.transports().tcp();
    let mut behind = Behind::default();
    if let Some(plugin) = inbound.plugin() {
        (addr, behind) = open_behind(inbound, plugin, addr, cores.len(), plugins)?;
    } else if has_streams
        && takes
        && addr.port() == 0
        // The code below reports a port that cannot be had.
        && let Ok((streams, datagrams)) = listen::listen_both(addr, &options, cores.len())
    {
        addr = streams.addr;
        behind = Behind { streams: Some(streams), datagrams: Some(datagrams) };
    }
    if has_streams {
        let made = match behind.streams.take() {
            Some(made) => made,
            None => listen::listen_many(addr, &options, cores.len())
                .inspect(|made| addr = made.addr)
                .map_err(failed)?,
        };
        warnings.extend(made.warnings.iter().map(ToString::to_string));
        if inbound.plugin().is_none() {
            kept.extend(made.keep().map_err(build)?);
        }
        let group = made.group;
        spread(cores, made.sockets, |core, socket| core.listeners.push((socket, group.clone())));
    }
    if takes {
        let own = behind.datagrams.take().map(Ok);
        let own = own.unwrap_or_else(|| {
            listen::listen_datagrams(addr, &options, cores.len()).inspect(|made| addr = made.addr)
        });
        let made = match own {
            Ok(made) => made,
            // The rest works without them.
            Err(error) if !inbound.needs_datagrams() => {
                warnings.push(format!("no datagrams: {error}: {}", error.source));
                return Ok((addr, warnings));
            }
            Err(error) => return Err(failed(error)),
        };
        let copies = made.keep().map_err(build)?;
        let shown = made.warnings.into_iter().filter(|warning| *warning != Warning::NoIpv6);
        warnings.extend(shown.map(|warning| warning.to_string()));
        let labels: Vec<Label> = copies.iter().map(Kept::label).collect();
        if inbound.plugin().is_none() {
            kept.extend(copies);
        }
        let exchange = Arc::new(SessionOwners::new(made.sockets.len()));
        let sockets = made
            .sockets
            .into_iter()
            .zip(labels)
            .enumerate()
            .map(|(at, (socket, label))| DatagramSocket { socket, label, exchange: (exchange.clone(), at) });
        spread(cores, sockets, |core, socket| core.datagrams.push(socket));
    }
    Ok((addr, warnings))
}

/// Makes a virtual interface, and listens on its addresses for what it takes in and nothing else.
fn open_device(
    inbound: &model::Inbound,
    tun: &model::Tun,
    cores: &mut [Sockets],
    kept: &mut Vec<Kept>,
    addresses: &mut Vec<SocketAddr>,
    warnings: &mut Vec<String>,
) -> Result<(), StartError> {
    let build = |source| StartError::Build { name: inbound.name.clone(), source };
    let mut device = TunDevice::open(tun).map_err(|error: TunError| build(error.into()))?;
    kept.push(device.keep().map_err(build)?);
    let found = std::mem::take(&mut device.warnings);
    warnings.extend(found.iter().map(|warning| format!("inbound {}: {warning}", inbound.name)));
    let interface = Some(device.name().into());
    let common = ListenOptions::from(&inbound.socket);
    let options = ListenOptions { interface, v6_only: true, is_near: true, ..common };
    for (ip, _) in &device.addresses {
        let made = listen::listen_many(SocketAddr::new(*ip, 0), &options, cores.len());
        let made = made.map_err(|source| StartError::Listen { name: inbound.name.clone(), source })?;
        addresses.push(made.addr);
        kept.extend(made.keep().map_err(build)?);
        let group = made.group;
        spread(cores, made.sockets, |core, socket| core.listeners.push((socket, group.clone())));
    }
    if let Some(core) = cores.first_mut() {
        core.device = Some((device, addresses.clone()));
    }
    Ok(())
}

/// Listens on the unix socket of `inbound`, if it has one.
fn open_unix(
    inbound: &model::Inbound,
    cores: &mut [Sockets],
    kept: &mut Vec<Kept>,
) -> Result<(), StartError> {
    let Some(path) = &inbound.socket.unix else { return Ok(()) };
    let failed = |source| StartError::Unix { name: inbound.name.clone(), path: path.clone(), source };
    let made = listen::listen_unix(path, cores.len()).map_err(failed)?;
    if let Some(first) = made.first() {
        kept.push(first.keep().map_err(failed)?);
    }
    spread(cores, made, |core, socket| core.unix.push(socket));
    Ok(())
}

/// Sockets on loopback for what a plugin brings.
#[derive(Default)]
struct Behind {
    streams: Option<listen::Listeners>,
    datagrams: Option<listen::DatagramSockets>,
}

/// Listens on loopback for what `plugin` carries, and has it listen on `addr`; returns where that is.
fn open_behind(
    inbound: &model::Inbound,
    plugin: model::Plugin,
    addr: SocketAddr,
    count: usize,
    plugins: &mut Plugins,
) -> Result<(SocketAddr, Behind), StartError> {
    let fail = |source| StartError::Build { name: inbound.name.clone(), source };
    let public = if addr.port() == 0 { listen::free_port(addr.ip(), 0).map_err(fail)? } else { addr };
    let (streams, datagrams) = listen::listen_behind(plugin.transports, count)
        .map_err(|source| StartError::Listen { name: inbound.name.clone(), source })?;
    let local = streams.as_ref().map(|made| made.addr).or_else(|| datagrams.as_ref().map(|made| made.addr));
    let role = Role::Server { public, local: local.expect("a plugin carries something") };
    plugins.start(&inbound.name, &plugin, role).map_err(fail)?;
    Ok((public, Behind { streams, datagrams }))
}
