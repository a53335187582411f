//! Streams and datagrams: what each inbound takes and each outbound carries.

use adit_proto::wire::Target;

use super::{
    ClientCover, Config, Inbound, InboundProtocol, Outbound, OutboundProtocol, Plugin, Redirect, Refusal,
    ServerCover, SnellKeys, SsrServer, SsrUsers, Tag, Transports,
};

impl InboundProtocol {
    /// Transports that it listens for.
    pub fn transports(&self) -> Transports {
        match self {
            // Associations of SOCKS have ports of their own.
            Self::Local(_) | Self::Snell(_) | Self::Obfs(_) => Transports::Tcp,
            // It has packets of its own.
            Self::Tun(_) => Transports::Tcp,
            Self::Shadowsocks(server) => server.transports,
            Self::Ssr(server) => server.transports,
            Self::Captured(captured) => captured.transports,
            Self::Tunnel { transports, .. } => *transports,
            Self::Dns(server) => server.transports,
        }
    }
}

impl Inbound {
    /// Transports that it listens for.
    pub fn transports(&self) -> Transports {
        self.protocol.transports()
    }

    /// Name of the virtual interface that it makes, if it makes one.
    pub fn interface_name(&self) -> Option<&str> {
        self.protocol.as_tun().map(|tun| &*tun.name)
    }

    /// Whether datagrams come to a port of its own, or to the plugin that has that port.
    pub fn takes_datagrams(&self) -> bool {
        match &self.protocol {
            InboundProtocol::Snell(server) => server.quic && server.versions.has_quic(),
            InboundProtocol::Shadowsocks(_)
            | InboundProtocol::Ssr(_)
            | InboundProtocol::Obfs(_)
            | InboundProtocol::Local(_)
            | InboundProtocol::Captured(_)
            | InboundProtocol::Dns(_)
            | InboundProtocol::Tunnel { .. }
            | InboundProtocol::Tun(_) => self.transports().udp(),
        }
    }

    /// Whether it answers datagrams itself, so that its outbound need not carry any.
    pub fn answers_datagrams(&self) -> bool {
        matches!(self.protocol, InboundProtocol::Dns(_)) && self.takes_datagrams()
    }

    /// Whether it is of no use without datagrams.
    pub fn needs_datagrams(&self) -> bool {
        self.takes_datagrams() && !matches!(self.protocol, InboundProtocol::Snell(_))
    }

    /// The plugin that listens in its place, for what it carries of that.
    pub fn plugin(&self) -> Option<Plugin> {
        let (plugin, transports) = match &self.protocol {
            InboundProtocol::Shadowsocks(server) => {
                let ServerCover::Plugin(plugin) = &server.cover else { return None };
                (plugin, server.transports)
            }
            InboundProtocol::Ssr(server) => (server.plugin.as_ref()?, server.transports),
            InboundProtocol::Local(_)
            | InboundProtocol::Snell(_)
            | InboundProtocol::Obfs(_)
            | InboundProtocol::Captured(_)
            | InboundProtocol::Dns(_)
            | InboundProtocol::Tunnel { .. }
            | InboundProtocol::Tun(_) => {
                return None;
            }
        };
        let transports = transports.common(plugin.transports)?;
        Some(Plugin { transports, ..plugin.clone() })
    }

    /// The name under which the accounts of its users are kept.
    pub fn accounts(&self) -> &Tag {
        match &self.protocol {
            InboundProtocol::Ssr(server) => server.accounts.as_ref().unwrap_or(&self.name),
            InboundProtocol::Local(_)
            | InboundProtocol::Snell(_)
            | InboundProtocol::Shadowsocks(_)
            | InboundProtocol::Obfs(_)
            | InboundProtocol::Captured(_)
            | InboundProtocol::Dns(_)
            | InboundProtocol::Tunnel { .. }
            | InboundProtocol::Tun(_) => &self.name,
        }
    }

    /// The servers that get the connections of unauthenticated clients.
    pub fn fallback(&self) -> &[Redirect] {
        match &self.protocol {
            InboundProtocol::Ssr(server) => &server.redirect,
            InboundProtocol::Obfs(server) => &server.redirect,
            InboundProtocol::Local(_)
            | InboundProtocol::Snell(_)
            | InboundProtocol::Shadowsocks(_)
            | InboundProtocol::Captured(_)
            | InboundProtocol::Dns(_)
            | InboundProtocol::Tunnel { .. }
            | InboundProtocol::Tun(_) => &[],
        }
    }

    /// Whether its clients may be led to private addresses: they are allowed to, or the configuration names the targets.
    pub fn leads_anywhere(&self) -> bool {
        let is_fixed = match &self.protocol {
            InboundProtocol::Tunnel { .. } | InboundProtocol::Obfs(_) => true,
            InboundProtocol::Shadowsocks(server) => !server.key.hops().is_empty(),
            InboundProtocol::Local(_)
            | InboundProtocol::Snell(_)
            | InboundProtocol::Ssr(_)
            | InboundProtocol::Captured(_)
            | InboundProtocol::Dns(_)
            | InboundProtocol::Tun(_) => false,
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
            (InboundProtocol::Ssr(a), InboundProtocol::Ssr(b)) => {
                let rest = |server: &SsrServer| SsrServer { users: SsrUsers::default(), ..server.clone() };
                // A port whose users have ids takes nobody else, so it is another port without them.
                a.users.ids().is_empty() == b.users.ids().is_empty() && rest(a) == rest(b)
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
            Self::Local(_)
            | Self::Obfs(_)
            | Self::Captured(_)
            | Self::Tunnel { .. }
            | Self::Dns(_)
            | Self::Tun(_) => false,
        }
    }
}

impl Outbound {
    /// Its plugin, if it has one.
    pub fn plugin(&self) -> Option<&Plugin> {
        match &self.protocol {
            OutboundProtocol::Shadowsocks(client) => match &client.cover {
                ClientCover::Plugin(plugin) => Some(plugin),
                ClientCover::Obfs(_) => None,
            },
            OutboundProtocol::Ssr(client) => client.plugin.as_ref(),
            OutboundProtocol::Direct
            | OutboundProtocol::Reject
            | OutboundProtocol::Snell(_)
            | OutboundProtocol::Obfs(_)
            | OutboundProtocol::Proxy(_)
            | OutboundProtocol::Group(_)
            | OutboundProtocol::Choice(_)
            | OutboundProtocol::Dns { .. }
            | OutboundProtocol::Refuse(_) => None,
        }
    }

    /// The server that a plugin of it connects to, if it has one.
    pub fn plugin_server(&self) -> Option<&Target> {
        self.plugin()?;
        self.protocol.only_server()
    }

    /// Whether a member of a group like this carries streams.
    pub fn carries_streams(&self) -> bool {
        match &self.protocol {
            OutboundProtocol::Direct | OutboundProtocol::Snell(_) | OutboundProtocol::Obfs(_) => true,
            OutboundProtocol::Shadowsocks(client) => client.transports.tcp(),
            OutboundProtocol::Ssr(client) => client.transports.tcp(),
            OutboundProtocol::Proxy(_) | OutboundProtocol::Dns { .. } => true,
            OutboundProtocol::Reject
            | OutboundProtocol::Group(_)
            | OutboundProtocol::Choice(_)
            | OutboundProtocol::Refuse(_) => false,
        }
    }

    /// Whether datagrams to its server are the contents of streams, which may go through another outbound.
    pub fn has_datagrams_in_streams(&self) -> bool {
        match &self.protocol {
            OutboundProtocol::Snell(client) => client.udp && client.version.has_datagrams(),
            OutboundProtocol::Direct
            | OutboundProtocol::Reject
            | OutboundProtocol::Shadowsocks(_)
            | OutboundProtocol::Ssr(_)
            | OutboundProtocol::Obfs(_)
            | OutboundProtocol::Proxy(_)
            | OutboundProtocol::Group(_)
            | OutboundProtocol::Choice(_)
            | OutboundProtocol::Dns { .. }
            | OutboundProtocol::Refuse(_) => false,
        }
    }

    /// Whether it carries datagrams over sockets: those over streams are not compared in a group.
    pub fn sends_datagrams(&self) -> bool {
        if self.dial.takes_streams_alone() {
            return false;
        }
        match &self.protocol {
            OutboundProtocol::Direct => true,
            OutboundProtocol::Shadowsocks(client) => client.transports.udp(),
            OutboundProtocol::Ssr(client) => client.transports.udp(),
            OutboundProtocol::Reject
            | OutboundProtocol::Snell(_)
            | OutboundProtocol::Obfs(_)
            | OutboundProtocol::Group(_)
            | OutboundProtocol::Choice(_)
            | OutboundProtocol::Proxy(_)
            | OutboundProtocol::Dns { .. }
            | OutboundProtocol::Refuse(_) => false,
        }
    }
}

impl Outbound {
    /// Whether it carries datagrams by the word of the file. One that does and cannot refuses them: they take no other way.
    pub fn says_datagrams(&self) -> bool {
        match &self.protocol {
            OutboundProtocol::Snell(client) => client.udp && client.version.has_datagrams(),
            OutboundProtocol::Shadowsocks(client) => client.transports.udp(),
            OutboundProtocol::Ssr(client) => client.transports.udp(),
            OutboundProtocol::Proxy(client) => client.udp(),
            OutboundProtocol::Refuse(Refusal::Dead { udp, .. }) => *udp,
            OutboundProtocol::Choice(choice) => choice.udp,
            OutboundProtocol::Obfs(_) => false,
            OutboundProtocol::Direct
            | OutboundProtocol::Reject
            | OutboundProtocol::Group(_)
            | OutboundProtocol::Dns { .. }
            | OutboundProtocol::Refuse(Refusal::Drop | Refusal::Pass) => true,
        }
    }
}

impl Config {
    /// Whether the outbound of this name carries datagrams, or may come to.
    pub fn carries_datagrams(&self, name: &str) -> bool {
        self.carries_datagrams_within(name, 0)
    }

    /// The same of an outbound this deep in groups.
    fn carries_datagrams_within(&self, name: &str, depth: usize) -> bool {
        /// Groups that are nested deeper carry none: a loop is no file that starts.
        const MAX_DEPTH: usize = 32;
        let Some(outbound) = self.outbound(name) else { return false };
        if outbound.dial.takes_streams_alone() && !outbound.has_datagrams_in_streams() {
            return false;
        }
        match &outbound.protocol {
            OutboundProtocol::Snell(client) => client.udp && client.version.has_datagrams(),
            OutboundProtocol::Group(group) => {
                let mut members = group.members.iter().filter(|member| member.udp_weight > 0);
                let sends = |name: &str| self.outbound(name).is_some_and(Outbound::sends_datagrams);
                group.grows || members.any(|member| sends(&member.outbound))
            }
            OutboundProtocol::Choice(choice) => {
                let mut members = choice.members.iter();
                let inside = |member: &Tag| self.carries_datagrams_within(member, depth + 1);
                choice.udp && depth < MAX_DEPTH && members.any(inside)
            }
            OutboundProtocol::Proxy(client) => client.udp(),
            OutboundProtocol::Dns { .. } => true,
            // A datagram that is refused here takes no other way.
            OutboundProtocol::Refuse(_) => false,
            OutboundProtocol::Direct
            | OutboundProtocol::Reject
            | OutboundProtocol::Shadowsocks(_)
            | OutboundProtocol::Obfs(_)
            | OutboundProtocol::Ssr(_) => outbound.sends_datagrams(),
        }
    }
}
