//! Capture: the traffic of this machine, and of networks that it forwards for, taken over by rules that are made here.
//!
//! ```text
//!   start:  listeners ─→ routes, rules of routing, sysctls ─→ tables, all at once      stop: the other way round
//!   kill:   the tables end with the socket that made them; a rule of routing without marks leads nowhere
//! ```
//!
//! `ruleset` says what is made, `active` makes it and takes it away, `host` looks at the machine. The listeners are
//! inbounds like any other: [`with_inbounds`] adds them to the configuration.

mod active;
pub(crate) mod explain;
mod health;
mod host;
mod missing_feature;
pub mod nat;
mod resolvers;
mod ruleset;
mod stale_rules;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use adit_model::{
    Capture, CaptureMode, Captured, CapturedBy, Config, DnsInbound, Inbound, InboundProtocol, SocketOptions,
    Tag, Transports, Tun,
};
use adit_net::netlink::NetlinkError;
#[doc(hidden)]
pub use adit_net::netlink::fuzz_netlink;
use thiserror::Error;

pub(crate) use self::active::{Active, CaptureFacts, Lent, note_direct};
pub use self::active::{bypass, watch};
pub use self::explain::{CaptureVerdict, explain};
pub(crate) use self::health::unreachable;
pub use self::missing_feature::{MissingFeature, force};
pub(crate) use self::ruleset::{CaptureRoutes, Host, ListenedPorts, Ruleset, TcpWay, UdpWay, ruleset};
pub use self::stale_rules::{CaptureLeftovers, clean, status};

/// Names of the inbounds that a capture adds.
const TCP_NAME: &str = "capture";
const UDP_NAME: &str = "capture-udp";
const TUN_NAME: &str = "capture-tun";
/// Largest packet of an interface that takes datagrams alone: applications take theirs from it, and larger ones cross no
/// outbound.
const DATAGRAM_MTU: u16 = 1500;

/// Why there is no capture.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The process may not administer the network.
    #[error("no right to administer the network (CAP_NET_ADMIN)")]
    Right(#[source] io::Error),
    /// Another process captures.
    #[error("another process captures already: {0}")]
    Taken(String),
    /// The mode cannot tell traffic by this property.
    #[error("mode tun cannot select by {0}")]
    Selection(&'static str),
    /// A user or group of the settings is not there.
    #[error("no such user or group: {name}")]
    Owner {
        /// Its name.
        name: Box<str>,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel refuses something.
    #[error(transparent)]
    Kernel(NetlinkError),
    /// A socket to the kernel, or a setting below /proc/sys.
    #[error("{what}")]
    System {
        /// The thing that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl From<NetlinkError> for CaptureError {
    fn from(error: NetlinkError) -> Self {
        // A table of another owner has been looked for before.
        let is_right = error.source.kind() == io::ErrorKind::PermissionDenied;
        if is_right { Self::Right(error.source) } else { Self::Kernel(error) }
    }
}

impl CaptureError {
    /// Whether the kernel lacks a part.
    pub(crate) fn is_missing_part(&self) -> bool {
        /// `ENOENT`, `EPROTONOSUPPORT`, `EAFNOSUPPORT`, `EOPNOTSUPP`.
        const MISSING: [i32; 4] = [2, 93, 97, 95];
        let number = match self {
            Self::Kernel(error) => error.errno(),
            Self::System { source, .. } => source.raw_os_error(),
            Self::Right(_) | Self::Taken(_) | Self::Selection(_) | Self::Owner { .. } => None,
        };
        number.is_some_and(|number| MISSING.contains(&number))
    }

    /// Advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Right(_) => Some(RIGHT),
            Self::Kernel(_) if self.is_missing_part() => Some(
                "the kernel lacks a part of nftables: load nf_tables, nft_ct, nft_redir, nft_fib_inet, nft_tproxy and nft_socket, or choose another mode",
            ),
            Self::Taken(_) => Some("stop that process; `adit capture status` shows what there is"),
            Self::Selection(_) => Some("choose mode auto, redirect or tproxy, or select by address or user"),
            Self::Owner { .. } | Self::Kernel(_) | Self::System { .. } => None,
        }
    }
}

const RIGHT: &str = "run as root, or `sudo setcap cap_net_admin+ep $(command -v adit)`, or AmbientCapabilities=CAP_NET_ADMIN in the systemd unit";

/// The capture that runs, for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureReport {
    /// The mode of the settings.
    pub mode: &'static str,
    /// The way of TCP connections.
    pub tcp: &'static str,
    /// The way of datagrams.
    pub udp: &'static str,
    /// The way of questions for names.
    pub dns: &'static str,
    /// Interfaces whose forwarded traffic is captured.
    pub lan: String,
    /// The reason for these ways.
    pub why: String,
    /// Consequence of a kill.
    pub after_kill: &'static str,
}

impl fmt::Display for CaptureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, tcp, udp, dns, lan, why, after_kill } = self;
        write!(f, "mode {mode}: TCP by {tcp}, UDP {udp}, DNS {dns}, lan {lan}; {why}; {after_kill}")
    }
}

/// The kinds of ways that a mode takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kinds {
    tcp: TcpKind,
    udp: UdpKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TcpKind {
    Redirect,
    Tproxy,
    Tun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UdpKind {
    Tproxy,
    /// With ICMP.
    Tun,
    /// Datagrams are refused, so that applications fall back to TCP.
    Refuse,
    /// Datagrams are left alone.
    Leave,
}

impl Kinds {
    fn has_tun(self) -> bool {
        self.tcp == TcpKind::Tun || self.udp == UdpKind::Tun
    }
}

/// The ways of the mode, as far as the configuration and the machine say.
fn kinds(capture: &Capture, config: &Config) -> Kinds {
    // A rule may send datagrams elsewhere, so the inbound is there as soon as anything carries them. An interface refuses
    // those that nothing carries by itself.
    let carried = if config.carries_datagrams(&capture.outbound) { UdpKind::Tproxy } else { UdpKind::Refuse };
    match capture.mode {
        CaptureMode::Redirect => Kinds { tcp: TcpKind::Redirect, udp: UdpKind::Leave },
        CaptureMode::Tproxy => Kinds { tcp: TcpKind::Tproxy, udp: carried },
        CaptureMode::Tun => Kinds { tcp: TcpKind::Tun, udp: UdpKind::Tun },
        CaptureMode::Auto if missing_feature::has_tun() => {
            Kinds { tcp: TcpKind::Redirect, udp: UdpKind::Tun }
        }
        CaptureMode::Auto => Kinds { tcp: TcpKind::Redirect, udp: carried },
    }
}

/// The interface of a capture: the first inbound of that protocol. The name of one that the kernel numbers is not known.
fn interface(config: &Config) -> Option<&Tun> {
    config.inbounds.iter().find_map(|inbound| {
        let tun = inbound.protocol.as_tun()?;
        (!tun.name.contains('%')).then_some(tun)
    })
}

/// The inbound that answers questions for names.
pub(crate) fn dns_inbound(config: &Config) -> Option<(&Inbound, &DnsInbound)> {
    config.inbounds.iter().find_map(|inbound| Some((inbound, inbound.protocol.as_dns()?)))
}

/// Adds the inbounds of the capture.
///
/// # Errors
/// When the mode cannot do what the settings ask for.
pub fn with_inbounds(config: &mut Config) -> Result<(), CaptureError> {
    let Some(capture) = config.capture.clone() else { return Ok(()) };
    let kinds = kinds(&capture, config);
    if kinds.tcp == TcpKind::Tun {
        check_selection(&capture)?;
    }
    let has_v6 = capture.ipv6 && host::has_v6();
    let inbound = |name: Tag, is_open: bool, by: CapturedBy, transports: Transports| {
        // Only forwarded connections that are redirected come to another address than loopback's.
        let v4 = if is_open { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
        let v6 = if is_open { Ipv6Addr::UNSPECIFIED } else { Ipv6Addr::LOCALHOST };
        let mut listen = vec![SocketAddr::from((v4, 0))];
        listen.extend(has_v6.then(|| SocketAddr::from((v6, 0))));
        added(&capture, name, listen, InboundProtocol::Captured(Captured { by, transports }))
    };
    let [tcp_name, udp_name, tun_name] = names(config);
    let takes_udp = kinds.udp == UdpKind::Tproxy;
    let mut all = Vec::new();
    match kinds.tcp {
        TcpKind::Redirect => {
            let is_open = !capture.lan.is_empty();
            all.push(inbound(tcp_name, is_open, CapturedBy::Redirect, Transports::Tcp));
        }
        TcpKind::Tproxy => {
            let transports = if takes_udp { Transports::Both } else { Transports::Tcp };
            all.push(inbound(tcp_name, false, CapturedBy::Tproxy, transports));
        }
        TcpKind::Tun => {}
    }
    if takes_udp && kinds.tcp != TcpKind::Tproxy {
        all.push(inbound(udp_name, false, CapturedBy::Tproxy, Transports::Udp));
    }
    if kinds.has_tun() && interface(config).is_none() {
        let usual = Tun::default();
        let mtu = if kinds.tcp == TcpKind::Tun { usual.mtu } else { DATAGRAM_MTU };
        let tun = Tun { mtu, v6: usual.v6.filter(|_| has_v6), ..usual };
        all.push(added(&capture, tun_name, Vec::new(), InboundProtocol::Tun(tun)));
    }
    config.inbounds.extend(all);
    if kinds.tcp != TcpKind::Tun && capture.dns_hijack && !capture.lan.is_empty() {
        open_to_networks(config, has_v6);
    }
    if kinds.has_tun() && capture.dns_hijack {
        answer_names(config);
    }
    Ok(())
}

/// An inbound of the capture.
fn added(capture: &Capture, name: Tag, listen: Vec<SocketAddr>, protocol: InboundProtocol) -> Inbound {
    let outbound = capture.outbound.clone();
    Inbound { name, listen, socket: SocketOptions::default(), outbound, allow_private: true, protocol }
}

/// Whether an inbound has no port that anybody knows.
fn is_hidden(inbound: &Inbound) -> bool {
    inbound.listen.iter().all(|addr| addr.port() == 0)
}

/// Has an inbound for names that nobody knows listen where questions of networks are brought: a redirected one comes to
/// an address of the interface that it came in by.
fn open_to_networks(config: &mut Config, has_v6: bool) {
    let Some(name) = dns_inbound(config).map(|(inbound, _)| inbound.name.clone()) else { return };
    let found = config.inbounds.iter_mut().find(|inbound| inbound.name == name);
    let Some(inbound) = found.filter(|inbound| is_hidden(inbound)) else { return };
    inbound.listen = vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))];
    inbound.listen.extend(has_v6.then(|| SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))));
}

/// Has the interface answer questions for names, as the inbound for them does.
fn answer_names(config: &mut Config) {
    let Some(dns) = dns_inbound(config).map(|(_, dns)| Box::new(dns.clone())) else { return };
    for inbound in &mut config.inbounds {
        if let Some(tun) = inbound.protocol.as_tun_mut() {
            tun.dns = Some(dns.clone());
        }
    }
}

/// Rules of routing know users and targets, but no groups and no interfaces of the way out.
fn check_selection(capture: &Capture) -> Result<(), CaptureError> {
    let selections = [&capture.exclude, &capture.include];
    if selections.iter().any(|selection| !selection.groups.is_empty()) {
        return Err(CaptureError::Selection("group"));
    }
    if selections.iter().any(|selection| !selection.interfaces.is_empty()) {
        return Err(CaptureError::Selection("interface"));
    }
    Ok(())
}

/// Names of the inbounds that are added, which no other inbound has.
fn names(config: &Config) -> [Tag; 3] {
    [TCP_NAME, UDP_NAME, TUN_NAME].map(|name| {
        let numbered = (2_usize..).map(|n| Tag::from(format!("{name}-{n}")));
        let mut all = std::iter::once(Tag::from(name)).chain(numbered);
        all.find(|name| config.inbound(name).is_none()).unwrap_or_else(|| Tag::from(name))
    })
}

/// The addresses that the inbounds of a configuration listen on.
pub(crate) type ListenAddresses<'a> = &'a dyn Fn(&Inbound) -> Vec<SocketAddr>;

/// The ways of a configuration whose inbounds have been added and opened.
pub(crate) fn ways(capture: &Capture, config: &Config, listening: ListenAddresses<'_>) -> CaptureRoutes {
    let kinds = kinds(capture, config);
    let ports = |wanted: fn(&Captured) -> bool| {
        // The last ones are those that were added.
        let own = config.inbounds.iter().rev().find(|inbound| {
            let has_free_port = inbound.listen.first().is_some_and(|addr| addr.port() == 0);
            has_free_port && inbound.protocol.captured().is_some_and(wanted)
        });
        own.map(|inbound| ports_of(&listening(inbound))).unwrap_or_default()
    };
    let tcp = match kinds.tcp {
        TcpKind::Redirect => TcpWay::Redirect(ports(|captured| captured.transports.tcp())),
        TcpKind::Tproxy => TcpWay::Tproxy(ports(|captured| captured.transports.tcp())),
        TcpKind::Tun => TcpWay::Tun,
    };
    let udp = match kinds.udp {
        UdpKind::Tproxy => Some(UdpWay::Tproxy(ports(|captured| captured.transports.udp()))),
        UdpKind::Tun => Some(UdpWay::Tun),
        UdpKind::Refuse => Some(UdpWay::Refuse),
        UdpKind::Leave => None,
    };
    let dns = dns_inbound(config).filter(|_| capture.dns_hijack);
    let dns_is_hidden = dns.is_some_and(|(inbound, _)| is_hidden(inbound));
    CaptureRoutes { tcp, udp, dns: dns.map(|(inbound, _)| ports_of(&listening(inbound))), dns_is_hidden }
}

fn ports_of(addresses: &[SocketAddr]) -> ListenedPorts {
    let port = |is_v4: bool| addresses.iter().find(|addr| addr.is_ipv4() == is_v4).map(SocketAddr::port);
    let mut ports = ListenedPorts { v4: port(true), v6: port(false) };
    // A wildcard of IPv6 takes IPv4 too.
    let takes_both = addresses.iter().any(|addr| addr.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED));
    if ports.v4.is_none() && takes_both {
        ports.v4 = ports.v6;
    }
    ports
}

/// The report of a capture that runs.
pub(crate) fn report(capture: &Capture, ways: &CaptureRoutes, has_owner: bool) -> CaptureReport {
    let tcp = match ways.tcp {
        TcpWay::Redirect(_) => "redirect",
        TcpWay::Tproxy(_) => "tproxy",
        TcpWay::Tun => "tun",
    };
    let udp = match ways.udp {
        Some(UdpWay::Tproxy(_)) => "by tproxy",
        Some(UdpWay::Tun) => "by tun",
        Some(UdpWay::Refuse) => "refused",
        None => "not captured",
    };
    let dns = if ways.dns.is_some() { "hijacked" } else { "as other traffic" };
    let why = match (capture.mode, ways.tcp, ways.udp) {
        (CaptureMode::Auto, TcpWay::Tun, _) => "the kernel has no nftables for a redirect".to_owned(),
        (CaptureMode::Auto, _, Some(UdpWay::Tun)) => {
            "redirect is the fastest way for TCP; an interface takes UDP and ICMP".to_owned()
        }
        (CaptureMode::Auto, _, Some(UdpWay::Refuse)) => {
            "redirect is the fastest way for TCP; there is no /dev/net/tun, and the outbound carries no datagrams or the kernel has no TPROXY"
                .to_owned()
        }
        (CaptureMode::Auto, ..) => {
            "redirect is the fastest way for TCP; there is no /dev/net/tun for UDP and ICMP".to_owned()
        }
        (_, _, Some(UdpWay::Refuse)) => "the outbound carries no datagrams".to_owned(),
        (mode, ..) => format!("mode {} is set", mode.name()),
    };
    let after_kill = match (capture.strict, ways.tcp, has_owner) {
        (true, ..) => {
            "fail-closed: after a kill such traffic is refused until `adit capture clean` or a new start"
        }
        (false, TcpWay::Tun, _) => {
            "fail-open: the kernel ends the interface and its routes with this process"
        }
        (false, _, true) => "fail-open: the kernel ends the rules with this process",
        (false, _, false) => "fail-open: a second process ends the rules when this one is gone",
    };
    let lan = match (&*capture.lan, &*capture.lan_exclude) {
        ([], _) => "none".to_owned(),
        (_, []) if capture.has_any_lan() => "all".to_owned(),
        (_, except) if capture.has_any_lan() => format!("all but {}", except.join(", ")),
        (named, _) => named.join(", "),
    };
    CaptureReport { mode: capture.mode.name(), tcp, udp, dns, lan, why, after_kill }
}

/// Whether this process may capture with this mark, and no other one does.
///
/// # Errors
/// Why not.
pub(crate) fn check(capture: &Capture, is_active: bool) -> Result<(), CaptureError> {
    adit_net::check_mark(capture.own_mark).map_err(CaptureError::Right)?;
    if is_active {
        return Ok(());
    }
    // The interface of the other one would be in the way before its rules are.
    match stale_rules::owner() {
        Ok(Some(owner)) => Err(CaptureError::Taken(owner)),
        Ok(None) => Ok(()),
        Err(error) if error.is_missing_part() => Ok(()),
        Err(error) => Err(error),
    }
}
