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
mod explain;
mod host;
mod leftovers;
pub mod nat;
mod ruleset;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use adit_config::model::{
    Capture, CaptureMode, Captured, CapturedBy, Config, Inbound, InboundProtocol, SocketOptions, Tag,
    Transports,
};
use adit_net::netlink::NetlinkError;
#[doc(hidden)]
pub use adit_net::netlink::fuzz_netlink;
use thiserror::Error;

pub(crate) use self::active::{Active, Facts, Lent, note_direct, set_without_owner};
pub use self::active::{bypass, watch};
pub use self::explain::{Fate, explain};
pub use self::leftovers::{Found, clean, status};
pub(crate) use self::ruleset::{Host, Ports, Ruleset, TcpWay, UdpWay, Ways, ruleset};

/// Names of the inbounds that a capture adds.
const TCP_NAME: &str = "capture";
const UDP_NAME: &str = "capture-udp";

/// Why there is no capture.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The process may not administer the network.
    #[error("no right to administer the network (CAP_NET_ADMIN)")]
    Right(#[source] io::Error),
    /// Another process captures.
    #[error("another process captures already: {0}")]
    Taken(String),
    /// The mode needs something that is not there.
    #[error("mode {0} is not available: no inbound of protocol tun takes its packets")]
    Mode(&'static str),
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
        match self {
            Self::Kernel(error) => error.errno().is_some_and(|number| MISSING.contains(&number)),
            Self::Right(_) | Self::Taken(_) | Self::Mode(_) | Self::Owner { .. } | Self::System { .. } => {
                false
            }
        }
    }

    /// Advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Right(_) => Some(RIGHT),
            Self::Kernel(_) if self.is_missing_part() => Some(
                "the kernel lacks a part of nftables: load nf_tables, nft_ct, nft_redir, nft_fib_inet, nft_tproxy and nft_socket, or choose another mode",
            ),
            Self::Taken(_) => Some("stop that process; `adit capture status` shows what there is"),
            Self::Mode(_) => Some("choose mode auto, redirect or tproxy"),
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
    tcp: CapturedBy,
    /// Datagrams come to a transparent listener; otherwise see [`Kinds::refuses_udp`].
    takes_udp: bool,
    /// Datagrams are refused, so that applications fall back to TCP.
    refuses_udp: bool,
}

/// The ways of the mode, as far as the configuration says.
///
/// # Errors
/// When the mode needs an interface of its own, which nothing serves.
fn kinds(capture: &Capture, config: &Config) -> Result<Kinds, CaptureError> {
    // A rule may send datagrams elsewhere, so the inbound is there as soon as anything carries them.
    let carries = config.carries_datagrams(&capture.outbound);
    let tcp = match capture.mode {
        CaptureMode::Tun => return Err(CaptureError::Mode("tun")),
        CaptureMode::Auto | CaptureMode::Redirect => CapturedBy::Redirect,
        CaptureMode::Tproxy => CapturedBy::Tproxy,
    };
    let wants_udp = capture.mode != CaptureMode::Redirect;
    Ok(Kinds { tcp, takes_udp: wants_udp && carries, refuses_udp: wants_udp && !carries })
}

/// Adds the inbounds of the capture.
///
/// # Errors
/// When the mode is not to be had.
pub fn with_inbounds(config: &mut Config) -> Result<(), CaptureError> {
    let Some(capture) = &config.capture else { return Ok(()) };
    let kinds = kinds(capture, config)?;
    let has_v6 = capture.ipv6 && host::has_v6();
    let inbound = |name: Tag, is_open: bool, by: CapturedBy, transports: Transports| {
        // Only forwarded connections that are redirected come to another address than loopback's.
        let v4 = if is_open { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
        let v6 = if is_open { Ipv6Addr::UNSPECIFIED } else { Ipv6Addr::LOCALHOST };
        let mut listen = vec![SocketAddr::from((v4, 0))];
        listen.extend(has_v6.then(|| SocketAddr::from((v6, 0))));
        Inbound {
            name,
            listen,
            socket: SocketOptions::default(),
            outbound: capture.outbound.clone(),
            allow_private: true,
            protocol: InboundProtocol::Captured(Captured { by, transports }),
        }
    };
    let is_open = kinds.tcp == CapturedBy::Redirect && !capture.lan.is_empty();
    let both = kinds.tcp == CapturedBy::Tproxy && kinds.takes_udp;
    let transports = if both { Transports::Both } else { Transports::Tcp };
    let [tcp_name, udp_name] = names(config);
    let mut added = vec![inbound(tcp_name, is_open, kinds.tcp, transports)];
    if kinds.takes_udp && !both {
        added.push(inbound(udp_name, false, CapturedBy::Tproxy, Transports::Udp));
    }
    config.inbounds.extend(added);
    Ok(())
}

/// Names of the inbounds that are added, which no other inbound has.
fn names(config: &Config) -> [Tag; 2] {
    [TCP_NAME, UDP_NAME].map(|name| {
        let numbered = (2_usize..).map(|n| Tag::from(format!("{name}-{n}")));
        let mut all = std::iter::once(Tag::from(name)).chain(numbered);
        all.find(|name| config.inbound(name).is_none()).unwrap_or_else(|| Tag::from(name))
    })
}

/// The addresses that the inbounds of a configuration listen on.
pub(crate) type Listening<'a> = &'a dyn Fn(&Inbound) -> Vec<SocketAddr>;

/// The ways of a configuration whose inbounds have been added and opened.
///
/// # Errors
/// When the mode is not to be had.
pub(crate) fn ways(
    capture: &Capture,
    config: &Config,
    listening: Listening<'_>,
    dns: Option<&Inbound>,
) -> Result<Ways, CaptureError> {
    let kinds = kinds(capture, config)?;
    let ports = |wanted: fn(&Captured) -> bool| {
        // The last ones are those that were added.
        let own =
            config.inbounds.iter().rev().find(|inbound| {
                inbound.protocol.captured().is_some_and(wanted) && inbound.listen[0].port() == 0
            });
        own.map(|inbound| ports_of(&listening(inbound))).unwrap_or_default()
    };
    let tcp = match kinds.tcp {
        CapturedBy::Redirect => TcpWay::Redirect(ports(|captured| captured.transports.tcp())),
        CapturedBy::Tproxy => TcpWay::Tproxy(ports(|captured| captured.transports.tcp())),
    };
    let udp = match kinds {
        Kinds { takes_udp: true, .. } => Some(UdpWay::Tproxy(ports(|captured| captured.transports.udp()))),
        Kinds { refuses_udp: true, .. } => Some(UdpWay::Refuse),
        Kinds { .. } => None,
    };
    let dns = dns.filter(|_| capture.dns_hijack).map(|inbound| ports_of(&listening(inbound)));
    Ok(Ways { tcp, udp, dns })
}

fn ports_of(addresses: &[SocketAddr]) -> Ports {
    let port = |is_v4: bool| addresses.iter().find(|addr| addr.is_ipv4() == is_v4).map(SocketAddr::port);
    let mut ports = Ports { v4: port(true), v6: port(false) };
    // A wildcard of IPv6 takes IPv4 too.
    let takes_both = addresses.iter().any(|addr| addr.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED));
    if ports.v4.is_none() && takes_both {
        ports.v4 = ports.v6;
    }
    ports
}

/// The report of a capture that runs.
pub(crate) fn report(capture: &Capture, ways: &Ways, has_owner: bool) -> CaptureReport {
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
    let why = match (capture.mode, ways.udp) {
        (CaptureMode::Auto, Some(UdpWay::Refuse)) => {
            "redirect is the fastest way for TCP; the outbound carries no datagrams, or the kernel has no TPROXY"
                .to_owned()
        }
        (CaptureMode::Auto, _) => {
            "redirect is the fastest way for TCP; no inbound of protocol tun is there for UDP and ICMP"
                .to_owned()
        }
        (_, Some(UdpWay::Refuse)) => "the outbound carries no datagrams".to_owned(),
        (mode, _) => format!("mode {} is set", mode.name()),
    };
    let after_kill = match (capture.strict, has_owner) {
        (true, _) => {
            "fail-closed: after a kill such traffic is refused until `adit capture clean` or a new start"
        }
        (false, true) => "fail-open: the kernel ends the rules with this process",
        (false, false) => "fail-open: a second process ends the rules when this one is gone",
    };
    let lan = if capture.lan.is_empty() { "none".to_owned() } else { capture.lan.join(", ") };
    CaptureReport { mode: capture.mode.name(), tcp, udp, dns, lan, why, after_kill }
}

/// Whether this process may capture with this mark.
///
/// # Errors
/// Why not.
pub(crate) fn check(capture: &Capture) -> Result<(), CaptureError> {
    adit_net::check_mark(capture.own_mark).map_err(CaptureError::Right)
}

/// Has tables made without an owner, as on kernels before 5.12: a second process ends them. For tests of that way.
#[doc(hidden)]
pub fn force_without_owner() {
    set_without_owner();
}
