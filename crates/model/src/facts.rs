//! Facts about protocols that everybody asks for: their names, and the servers behind them.

use adit_proto::shadowsocks::ShadowsocksMethod;
use adit_proto::wire::Target;

use crate::{
    Captured, CapturedBy, Choice, DnsInbound, Group, InboundProtocol, Local, LocalProtocols, ObfsServerLayer,
    Outbound, OutboundProtocol, Policy, ProxyKind, Refusal, SnellMode, SnellVersion, SnellVersions,
    Transports, Tun,
};

impl InboundProtocol {
    /// Its name in `adit.toml`, the status and metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Local(local) => match local.accepts {
                LocalProtocols::Socks => "socks",
                LocalProtocols::Http => "http",
                LocalProtocols::Mixed => "mixed",
            },
            Self::Snell(_) => "snell",
            Self::Shadowsocks(_) => "shadowsocks",
            Self::Ssr(_) => "ssr",
            Self::Obfs(_) => "obfs",
            Self::Captured(captured) => match captured.by {
                CapturedBy::Redirect => "redirect",
                CapturedBy::Tproxy => "tproxy",
            },
            Self::Tunnel { .. } => "tunnel",
            Self::Tun(_) => "tun",
            Self::Dns(_) => "dns",
        }
    }

    /// Its name for people, with versions.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Snell(server) => server.versions.label(),
            Self::Shadowsocks(_) => "Shadowsocks",
            Self::Ssr(_) => "ShadowsocksR",
            Self::Obfs(server) => match server.layer {
                ObfsServerLayer::Simple(_) => "simple-obfs",
                ObfsServerLayer::GoQuiet(_) => "GoQuiet",
            },
            Self::Tunnel { transports: Transports::Tcp, .. } => "TCP tunnel",
            Self::Tunnel { transports: Transports::Udp, .. } => "UDP tunnel",
            Self::Tunnel { transports: Transports::Both, .. } => "TCP and UDP tunnel",
            Self::Captured(Captured { by: CapturedBy::Redirect, transports: Transports::Tcp }) => {
                "redirected TCP"
            }
            Self::Captured(Captured { by: CapturedBy::Redirect, .. }) => "redirected TCP, TPROXY UDP",
            Self::Captured(_) => "TPROXY",
            Self::Tun(_) => "virtual interface",
            Self::Dns(_) => "DNS",
            Self::Local(local) => match local.accepts {
                LocalProtocols::Socks => "SOCKS4, 4a, 5",
                LocalProtocols::Http => "HTTP",
                LocalProtocols::Mixed => "SOCKS4, 4a, 5, HTTP",
            },
        }
    }

    /// Whether its port is the near end of a tunnel: its clients are the ones that adit serves as a client.
    pub fn is_client_side(&self) -> bool {
        match self {
            Self::Snell(_) | Self::Shadowsocks(_) | Self::Ssr(_) | Self::Obfs(_) => false,
            Self::Local(_) | Self::Captured(_) | Self::Tunnel { .. } | Self::Dns(_) | Self::Tun(_) => true,
        }
    }

    /// Whether it is a server that a client elsewhere is told of: it has keys, and may have users.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Snell(_) | Self::Shadowsocks(_) | Self::Ssr(_))
    }

    /// The method of a Shadowsocks server, if it is one: its keys have a length of their own.
    pub fn shadowsocks_method(&self) -> Option<ShadowsocksMethod> {
        if let Self::Shadowsocks(server) = self { Some(server.key.method()) } else { None }
    }

    /// The local port, if it is one.
    pub fn as_local(&self) -> Option<&Local> {
        if let Self::Local(local) = self { Some(local) } else { None }
    }

    /// The virtual interface, if it is one.
    pub fn as_tun(&self) -> Option<&Tun> {
        if let Self::Tun(tun) = self { Some(tun) } else { None }
    }

    /// The same, to be changed.
    pub fn as_tun_mut(&mut self) -> Option<&mut Tun> {
        if let Self::Tun(tun) = self { Some(tun) } else { None }
    }

    /// The port that answers questions for names, if it is one.
    pub fn as_dns(&self) -> Option<&DnsInbound> {
        if let Self::Dns(server) = self { Some(server) } else { None }
    }

    /// The transports that it leads elsewhere, if they can be chosen.
    pub fn led_transports(&mut self) -> Option<&mut Transports> {
        match self {
            Self::Tunnel { transports, .. } => Some(transports),
            Self::Captured(captured) => Some(&mut captured.transports),
            Self::Local(_)
            | Self::Snell(_)
            | Self::Shadowsocks(_)
            | Self::Ssr(_)
            | Self::Obfs(_)
            | Self::Dns(_)
            | Self::Tun(_) => None,
        }
    }
}

impl OutboundProtocol {
    /// Its name in `adit.toml`, the status and metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Reject => "reject",
            Self::Snell(_) => "snell",
            Self::Shadowsocks(_) => "shadowsocks",
            Self::Ssr(_) => "ssr",
            Self::Obfs(_) => "obfs",
            Self::Group(_) => "group",
            Self::Choice(choice) => match &choice.policy {
                Policy::Select(_) => "select",
                Policy::UrlTest(_) => "url-test",
                Policy::Fallback => "fallback",
                Policy::LoadBalance(_) => "load-balance",
            },
            Self::Proxy(client) => match client.kind {
                ProxyKind::Socks5 { .. } => "socks5",
                ProxyKind::Http { .. } => "http",
            },
            Self::Dns { .. } => "dns",
            Self::Refuse(Refusal::Drop) => "reject-drop",
            Self::Refuse(Refusal::Pass) => "pass",
            Self::Refuse(Refusal::Dead { .. }) => "dead",
        }
    }

    /// Whether it is made of other outbounds.
    pub fn is_group(&self) -> bool {
        matches!(self, Self::Group(_) | Self::Choice(_))
    }

    /// The group that compares its members, if it is one.
    pub fn as_group(&self) -> Option<&Group> {
        if let Self::Group(group) = self { Some(group) } else { None }
    }

    /// The group whose member is chosen, if it is one.
    pub fn as_choice(&self) -> Option<&Choice> {
        if let Self::Choice(choice) = self { Some(choice) } else { None }
    }

    /// The manner in which it refuses, if it is there for that alone.
    pub fn refusal(&self) -> Option<&Refusal> {
        if let Self::Refuse(refusal) = self { Some(refusal) } else { None }
    }

    /// Whether no request goes on from it.
    pub fn refuses(&self) -> bool {
        matches!(self, Self::Reject | Self::Refuse(_) | Self::Dns { .. })
    }

    /// The one server that it always dials, if there is one.
    pub fn only_server(&self) -> Option<&Target> {
        match self {
            Self::Snell(client) => Some(&client.server),
            Self::Shadowsocks(client) => Some(&client.server),
            Self::Ssr(client) => Some(&client.server),
            Self::Proxy(client) => Some(&client.server),
            Self::Direct
            | Self::Reject
            | Self::Obfs(_)
            | Self::Group(_)
            | Self::Choice(_)
            | Self::Dns { .. }
            | Self::Refuse(_) => None,
        }
    }

    /// The first of its own servers, if it has one. A proxy's is a target like others.
    pub fn server(&self) -> Option<&Target> {
        match self {
            Self::Obfs(client) => client.servers().first(),
            Self::Proxy(_) => None,
            Self::Snell(_)
            | Self::Shadowsocks(_)
            | Self::Ssr(_)
            | Self::Direct
            | Self::Reject
            | Self::Group(_)
            | Self::Choice(_)
            | Self::Dns { .. }
            | Self::Refuse(_) => self.only_server(),
        }
    }

    /// Whether its server refuses requests whose time is far from its own.
    pub fn has_timestamps(&self) -> bool {
        matches!(self, Self::Shadowsocks(client) if client.key.method().name().starts_with("2022-"))
    }
}

impl Outbound {
    /// The address that it dials in the place of a target's: its carrier's server, or its protocol's own.
    pub fn dialled_server(&self) -> Option<&Target> {
        let carrier = self.dial.carrier.as_ref().map(|carrier| &carrier.server);
        carrier.or_else(|| self.protocol.server())
    }
}

impl SnellVersions {
    /// The versions for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Auto => "Snell v4, v5, v6",
            Self::Only(SnellVersion::V1) => "Snell v1",
            Self::Only(SnellVersion::V2) => "Snell v2",
            Self::Only(SnellVersion::V3) => "Snell v3",
            Self::Only(SnellVersion::V4 | SnellVersion::V5) => "Snell v4, v5",
            Self::Only(SnellVersion::V6(SnellMode::Default)) => "Snell v6",
            Self::Only(SnellVersion::V6(SnellMode::Unshaped)) => "Snell v6, unshaped",
            Self::Only(SnellVersion::V6(SnellMode::UnsafeRaw)) => "Snell v6, unsafe-raw",
        }
    }
}
