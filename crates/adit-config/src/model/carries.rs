//! Streams and datagrams: what each inbound takes and each outbound carries.

use super::{
    Config, Inbound, InboundProtocol, Outbound, OutboundProtocol, Plugin, ServerCover, SnellKeys, Transports,
};

impl Inbound {
    /// What it listens for.
    pub fn transports(&self) -> Transports {
        match &self.protocol {
            // Associations of SOCKS have ports of their own.
            InboundProtocol::Local(_) | InboundProtocol::Snell(_) => Transports::Tcp,
            InboundProtocol::Shadowsocks(server) => server.transports,
            InboundProtocol::Ssr(server) => server.transports,
            InboundProtocol::Tunnel { transports, .. } => *transports,
        }
    }

    /// Whether datagrams come to a port of its own, or to the plugin that has that port.
    pub fn takes_datagrams(&self) -> bool {
        match &self.protocol {
            InboundProtocol::Snell(server) => server.quic && server.versions.has_quic(),
            InboundProtocol::Shadowsocks(_)
            | InboundProtocol::Ssr(_)
            | InboundProtocol::Local(_)
            | InboundProtocol::Tunnel { .. } => self.transports().udp(),
        }
    }

    /// Whether it is of no use without datagrams.
    pub fn needs_datagrams(&self) -> bool {
        self.takes_datagrams() && !matches!(self.protocol, InboundProtocol::Snell(_))
    }

    /// The plugin that listens in its place, for what it carries of that.
    pub fn plugin(&self) -> Option<Plugin> {
        let InboundProtocol::Shadowsocks(server) = &self.protocol else { return None };
        let ServerCover::Plugin(plugin) = &server.cover else { return None };
        let transports = server.transports.common(plugin.transports)?;
        Some(Plugin { transports, ..plugin.clone() })
    }

    /// Whether its clients may be led to private addresses: they are allowed to, or the configuration names the targets.
    pub fn leads_anywhere(&self) -> bool {
        let is_fixed = match &self.protocol {
            InboundProtocol::Tunnel { .. } => true,
            InboundProtocol::Shadowsocks(server) => !server.key.hops().is_empty(),
            InboundProtocol::Local(_) | InboundProtocol::Snell(_) | InboundProtocol::Ssr(_) => false,
        };
        self.allow_private || is_fixed
    }

    /// Whether `other` differs in nothing but users, their keys and limits, its outbound, and where it may lead.
    pub fn differs_in_users_alone(&self, other: &Self) -> bool {
        let rest = |inbound: &Self| (inbound.name.clone(), inbound.listen.clone(), inbound.socket.clone());
        if rest(self) != rest(other) {
            return false;
        }
        match (&self.protocol, &other.protocol) {
            (InboundProtocol::Local(a), InboundProtocol::Local(b)) => a.accepts == b.accepts,
            (InboundProtocol::Snell(a), InboundProtocol::Snell(b)) => {
                let same_keys = match (&a.psk, &b.psk) {
                    (SnellKeys::Each(_), SnellKeys::Each(_)) => true,
                    (SnellKeys::Named(a, _), SnellKeys::Named(b, _)) => a == b,
                    (a, b) => a == b,
                };
                let rest =
                    |server: &super::SnellServer| (server.versions, server.obfs, server.udp, server.quic);
                same_keys && rest(a) == rest(b)
            }
            (InboundProtocol::Shadowsocks(a), InboundProtocol::Shadowsocks(b)) => {
                // The servers behind a relay are numbered in flows.
                let has_hops = !a.key.hops().is_empty() || !b.key.hops().is_empty();
                let has_users = !a.key.users().is_empty() && !b.key.users().is_empty();
                (a.key == b.key || !has_hops && has_users && a.key.key() == b.key.key())
                    && (a.transports, &a.cover, a.replay) == (b.transports, &b.cover, b.replay)
            }
            (a, b) => a == b,
        }
    }
}

impl InboundProtocol {
    /// Whether its clients are other machines that name their targets themselves.
    pub fn is_server(&self) -> bool {
        match self {
            Self::Snell(_) | Self::Ssr(_) => true,
            Self::Shadowsocks(server) => server.key.hops().is_empty(),
            Self::Local(_) | Self::Tunnel { .. } => false,
        }
    }
}

impl Outbound {
    /// Whether a member of a group like this carries streams.
    pub fn carries_streams(&self) -> bool {
        match &self.protocol {
            OutboundProtocol::Direct | OutboundProtocol::Snell(_) => true,
            OutboundProtocol::Shadowsocks(client) => client.transports.tcp(),
            OutboundProtocol::Ssr(client) => client.transports.tcp(),
            OutboundProtocol::Reject | OutboundProtocol::Group(_) => false,
        }
    }

    /// Whether it carries datagrams over sockets: those over streams are not compared in a group.
    pub fn sends_datagrams(&self) -> bool {
        if self.dial.through.is_some() {
            return false;
        }
        match &self.protocol {
            OutboundProtocol::Direct => true,
            OutboundProtocol::Shadowsocks(client) => client.transports.udp(),
            OutboundProtocol::Ssr(client) => client.transports.udp(),
            OutboundProtocol::Reject | OutboundProtocol::Snell(_) | OutboundProtocol::Group(_) => false,
        }
    }
}

impl Config {
    /// Whether the outbound of this name carries datagrams, or may come to.
    pub fn carries_datagrams(&self, name: &str) -> bool {
        let Some(outbound) = self.outbound(name) else { return false };
        if outbound.dial.through.is_some() {
            return false;
        }
        match &outbound.protocol {
            OutboundProtocol::Snell(client) => client.udp && client.version.has_datagrams(),
            OutboundProtocol::Group(group) => {
                let mut members = group.members.iter().filter(|member| member.udp_weight > 0);
                let sends = |name: &str| self.outbound(name).is_some_and(Outbound::sends_datagrams);
                group.grows || members.any(|member| sends(&member.outbound))
            }
            OutboundProtocol::Direct
            | OutboundProtocol::Reject
            | OutboundProtocol::Shadowsocks(_)
            | OutboundProtocol::Ssr(_) => outbound.sends_datagrams(),
        }
    }
}
