//! Facts about protocols that everybody asks for: their names, and the servers behind them.

use adit_proto::wire::Target;

use crate::{
    Captured, CapturedBy, InboundProtocol, LocalProtocols, ObfsServerLayer, Outbound, OutboundProtocol,
    Policy, ProxyKind, Refusal, SnellMode, SnellVersion, SnellVersions, Transports,
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

    /// The first of its own servers, if it has one.
    pub fn server(&self) -> Option<&Target> {
        match self {
            Self::Snell(client) => Some(&client.server),
            Self::Shadowsocks(client) => Some(&client.server),
            Self::Ssr(client) => Some(&client.server),
            Self::Obfs(client) => client.servers().first(),
            Self::Direct
            | Self::Reject
            | Self::Group(_)
            | Self::Choice(_)
            | Self::Proxy(_)
            | Self::Dns { .. }
            | Self::Refuse(_) => None,
        }
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
