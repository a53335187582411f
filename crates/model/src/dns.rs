//! Resolution of names.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_proto::wire::{Host, Target};

use super::rule::Cidr;
use super::{
    AddressFamilies, Config, Egress, Fake, InboundProtocol, Member, Outbound, OutboundProtocol, Tag,
    Transports,
};

/// The DNS service of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dns {
    /// Name servers in the order in which they are asked; empty for the system's (resolv.conf).
    pub upstreams: Vec<Arc<Upstream>>,
    /// Names that other name servers are asked for. The most specific pattern wins.
    pub policy: Vec<DnsPolicy>,
    /// Names and patterns of names with fixed addresses; see [`HostTable`](super::HostTable). They come before the
    /// system's hosts file and all name servers.
    pub hosts: Vec<(Box<str>, Vec<IpAddr>)>,
    /// Names and patterns of names that stand for other names: requests for them are requests for those.
    pub aliases: Vec<(Box<str>, Box<str>)>,
    /// Whether every rule sees these addresses, those too that have no name looked up.
    pub hosts_are_known: bool,
    /// Whether every rule sees the addresses of the system's hosts file, too.
    pub system_hosts_are_known: bool,
    /// Answers that are remembered, at least 1; an answer is about one name and record type.
    pub cache: usize,
    /// Shortest time for which an answer is cached, even if its own TTL is shorter.
    pub min_ttl: Duration,
    /// Longest time for which an answer is cached, even if its own TTL is longer.
    pub max_ttl: Duration,
    /// Whether an answer that has expired is used while a new one is fetched, and when none can be had (RFC 8767).
    pub stale: bool,
    /// The address families of outbounds that leave it open ([`AddressFamilies::Any`]).
    pub family: AddressFamilies,
    /// Fake addresses, for the inbounds that answer questions and for requests that name such an address.
    pub fake: Option<Fake>,
    /// Whether the name `use-application-dns.net` does not exist, so that browsers ask the system's name servers.
    pub disable_browser_doh: bool,
    /// Whether the names behind addresses that were answered are remembered, so that rules see them for requests that
    /// name the address alone.
    pub reverse_map: bool,
    /// Name servers for addresses that the answers of [`Dns::upstreams`] are not believed for, if there are any.
    pub fallback: Option<Box<DnsFallback>>,
    /// Interface, source address and mark of the sockets to name servers that no outbound leads to.
    pub egress: Egress,
}

/// Name servers that are asked for the addresses of a name if [`Dns::upstreams`] have none, or none that is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsFallback {
    /// The servers, at least one, in the order in which they are asked.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Lists of networks outside of which an address is not believed; empty for none.
    pub trusted: Vec<Tag>,
    /// Networks in which an address is not believed.
    pub untrusted: Vec<Cidr>,
}

/// A port that answers questions as a name server does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsInbound {
    /// Transports that it listens for.
    pub transports: Transports,
    /// Networks whose questions are answered, besides those of this machine.
    pub allow: Vec<Cidr>,
    /// Whether names get fake addresses, where the configuration has any.
    pub fake: bool,
    /// Whether AAAA records are answered; otherwise names have none.
    pub ipv6: bool,
    /// Name servers in the place of [`Dns::upstreams`] and [`Dns::policy`]; empty for those.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Name servers for names that the rules send over the direct route; empty for no difference.
    pub direct: Vec<Arc<Upstream>>,
}

impl DnsInbound {
    /// Networks whose machines are those of a site: for ports of programs that answer everybody.
    pub fn private_networks() -> Vec<Cidr> {
        let all = [
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",
            "169.254.0.0/16",
            "fc00::/7",
            "fe80::/10",
        ];
        all.iter().filter_map(|text| Cidr::parse(text)).collect()
    }
}

impl Default for DnsInbound {
    fn default() -> Self {
        Self {
            transports: Transports::Both,
            allow: Vec::new(),
            fake: true,
            ipv6: true,
            upstreams: Vec::new(),
            direct: Vec::new(),
        }
    }
}

impl Default for Dns {
    fn default() -> Self {
        Self {
            upstreams: Vec::new(),
            policy: Vec::new(),
            hosts: Vec::new(),
            aliases: Vec::new(),
            hosts_are_known: false,
            system_hosts_are_known: false,
            cache: 4096,
            min_ttl: Duration::ZERO,
            max_ttl: Duration::from_secs(24 * 3600),
            stale: true,
            family: AddressFamilies::Any,
            fake: None,
            disable_browser_doh: false,
            reverse_map: false,
            fallback: None,
            egress: Egress::default(),
        }
    }
}

/// One name server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// Name in messages and in policies.
    pub name: Box<str>,
    /// Its transport.
    pub transport: DnsTransport,
    /// Its address; means nothing for [`DnsTransport::System`] and [`DnsTransport::Refused`].
    pub server: Target,
    /// Name servers that are asked, by UDP, for the address of [`Upstream::server`] if that is a name; empty for the
    /// system's.
    pub bootstrap: Vec<NameServer>,
    /// The outbound that it is reached through; `None` for straight from this machine. Through an outbound, a server of
    /// transport [`DnsTransport::Udp`] is asked by TCP.
    pub through: Option<Tag>,
    /// The rules say which outbound the server is reached through, as of a request without a client. It is reached
    /// straight from this machine if they say this one, or nothing. `None` for no rules.
    pub by_rules: Option<Tag>,
}

impl Upstream {
    /// The name servers of the system, each of which is asked in the place of this one.
    pub fn system(through: Option<Tag>, by_rules: Option<Tag>) -> Self {
        let name = match &through {
            Some(tag) => format!("{}#{tag}", NameServer::SYSTEM).into(),
            None => NameServer::SYSTEM.into(),
        };
        Self { through, by_rules, ..Self::nowhere(name, DnsTransport::System) }
    }

    /// A name server that answers nothing, for lists of which no other is left.
    pub fn refused() -> Self {
        Self::nowhere(DnsTransport::REFUSED.into(), DnsTransport::Refused)
    }

    fn nowhere(name: Box<str>, transport: DnsTransport) -> Self {
        let server = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into();
        Self { name, transport, server, bootstrap: Vec::new(), through: None, by_rules: None }
    }

    /// Whether it stands for the name servers of the system.
    pub fn is_system(&self) -> bool {
        self.transport == DnsTransport::System
    }
}

/// A name server of plain DNS, which is asked by UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NameServer {
    /// Those of the system (resolv.conf).
    System,
    /// The one at this address.
    At(SocketAddr),
    /// None: every question fails.
    Refused,
}

impl NameServer {
    /// The word for those of the system.
    pub const SYSTEM: &'static str = "system";
}

impl From<SocketAddr> for NameServer {
    fn from(server: SocketAddr) -> Self {
        Self::At(server)
    }
}

impl fmt::Display for NameServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str(Self::SYSTEM),
            Self::At(server) => server.fmt(f),
            Self::Refused => f.write_str(DnsTransport::REFUSED),
        }
    }
}

/// Transport to a name server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DnsTransport {
    /// Datagrams, and TCP for answers that do not fit (RFC 1035, section 4.2).
    Udp,
    /// TCP (RFC 7766).
    Tcp,
    /// DNS over TLS (RFC 7858).
    Tls {
        /// The name or address that the server's certificate must have.
        name: Box<str>,
    },
    /// The name servers of the system (resolv.conf), as they are at the time of a question, but for ports of this process.
    System,
    /// None: every question fails.
    Refused,
    /// DNS over HTTPS (RFC 8484), by HTTP/2 or 1.1.
    Https {
        /// Host, with a port that is not 443; what the request is addressed to.
        authority: Box<str>,
        /// The path, beginning with a slash.
        path: Box<str>,
        /// The name or address that the server's certificate must have.
        name: Box<str>,
    },
}

impl DnsTransport {
    /// The word for [`DnsTransport::Refused`].
    pub const REFUSED: &'static str = "refused";
}

/// The name servers that are asked for some names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsPolicy {
    /// A domain, which stands for itself and everything below it, in lower case and without a dot at the end. With
    /// `=` in front it stands for itself alone. [`DnsPolicy::SET`] and the name of a list stand for the names of that list.
    pub domain: Box<str>,
    /// The servers, at least one, in the order in which they are asked.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Whether the names have real addresses at all times, which the capture leaves alone.
    pub direct: bool,
}

impl DnsPolicy {
    /// The beginning of a [`DnsPolicy::domain`] that names a list.
    pub const SET: &'static str = "rule-set:";

    /// The list whose names it is about, if it is about one.
    pub fn set(&self) -> Option<&str> {
        self.domain.strip_prefix(Self::SET)
    }
}

/// An outbound that could be reached only through itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsLoop {
    /// The outbound.
    pub outbound: Tag,
    /// The name that it needs.
    pub host: Box<str>,
    /// The name server that would be asked for it.
    pub upstream: Box<str>,
    /// The outbound that this name server is reached through: the same one, or one that needs it.
    pub through: Tag,
}

impl Dns {
    /// The name servers for `name`, which is in lower case and has no dot at the end, by the number of their list: 0
    /// for [`Dns::upstreams`], and one more than the index in [`Dns::policy`]. Policies of lists are not among them: they
    /// hold for names that no domain is about.
    pub fn list_for(&self, name: &str) -> usize {
        let matching = self.policy.iter().enumerate().filter_map(|(at, policy)| {
            let specific = match policy.domain.strip_prefix('=') {
                Some(exact) => (name == exact).then_some(usize::MAX),
                None => is_below(name, &policy.domain).then_some(policy.domain.len()),
            };
            specific.map(|specific| (specific, at))
        });
        // The first of several that are alike.
        matching.max_by_key(|(specific, at)| (*specific, std::cmp::Reverse(*at))).map_or(0, |(_, at)| at + 1)
    }

    /// Whether the policy for `name`, which is in lower case and has no dot at the end, leaves it its real addresses.
    pub fn is_direct(&self, name: &str) -> bool {
        self.list_for(name).checked_sub(1).is_some_and(|at| self.policy[at].direct)
    }

    /// The list with this number, see [`Dns::list_for`].
    pub fn list(&self, number: usize) -> &[Arc<Upstream>] {
        match number.checked_sub(1) {
            Some(at) => &self.policy[at].upstreams,
            None => &self.upstreams,
        }
    }

    /// An outbound whose server can only be found through itself, if there is one.
    pub fn find_loop(&self, outbounds: &[Outbound]) -> Option<DnsLoop> {
        outbounds.iter().enumerate().find_map(|(at, _)| self.loop_of(at, outbounds))
    }

    fn loop_of(&self, start: usize, outbounds: &[Outbound]) -> Option<DnsLoop> {
        let (mut waiting, mut seen) = (vec![start], vec![false; outbounds.len()]);
        while let Some(at) = waiting.pop() {
            if std::mem::replace(&mut seen[at], true) {
                continue;
            }
            for (host, upstream, through) in self.needs(at, outbounds) {
                let Some(next) = outbounds.iter().position(|outbound| outbound.name == through) else {
                    continue;
                };
                if next == start {
                    let (outbound, upstream) = (outbounds[start].name.clone(), upstream.name.clone());
                    return Some(DnsLoop { outbound, host, upstream, through: outbounds[at].name.clone() });
                }
                waiting.push(next);
            }
            if let OutboundProtocol::Group(group) = &outbounds[at].protocol {
                // A group works while one of its members does, but a member that cannot is a mistake all the same.
                if at == start {
                    continue;
                }
                let place = |member: &Member| outbounds.iter().position(|o| o.name == member.outbound);
                waiting.extend(group.members.iter().filter_map(place));
            }
            if let OutboundProtocol::Choice(choice) = &outbounds[at].protocol
                && at != start
            {
                let place = |member: &Tag| outbounds.iter().position(|outbound| outbound.name == *member);
                waiting.extend(choice.members.iter().filter_map(place));
            }
        }
        None
    }

    /// Names that an outbound has to look up to reach anything: the name, a server that is asked, and the outbound
    /// through which this server is reached.
    fn needs(&self, at: usize, outbounds: &[Outbound]) -> Vec<(Box<str>, Arc<Upstream>, Tag)> {
        let outbound = &outbounds[at];
        if !outbound.dial.dns.is_empty() {
            return Vec::new();
        }
        let mut hosts = servers_of(outbound);
        if hosts.iter().any(|host| self.hosts.iter().any(|(name, _)| name == host)) {
            hosts.retain(|host| !self.hosts.iter().any(|(name, _)| name == host));
        }
        let mut needs = Vec::new();
        for host in hosts {
            let list = self.list_for(&host);
            let fallback =
                self.fallback.iter().filter(|_| list == 0).flat_map(|fallback| &fallback.upstreams);
            for upstream in self.list(list).iter().chain(fallback) {
                if let Some(through) = &upstream.through {
                    needs.push((host.clone(), upstream.clone(), through.clone()));
                }
            }
        }
        needs
    }
}

/// The names of the servers that an outbound connects to itself.
fn servers_of(outbound: &Outbound) -> Vec<Box<str>> {
    let mut hosts: Vec<Box<str>> = Vec::new();
    let mut note = |target: &Target| match &target.host {
        Host::Name(name) => hosts.push(plain(name)),
        Host::Ip(_) => {}
    };
    match &outbound.protocol {
        OutboundProtocol::Snell(client) => note(&client.server),
        OutboundProtocol::Shadowsocks(client) => note(&client.server),
        OutboundProtocol::Ssr(client) => note(&client.server),
        OutboundProtocol::Obfs(client) => client.servers().iter().for_each(&mut note),
        OutboundProtocol::Proxy(client) => note(&client.server),
        OutboundProtocol::Direct
        | OutboundProtocol::Reject
        | OutboundProtocol::Group(_)
        | OutboundProtocol::Choice(_)
        | OutboundProtocol::Dns { .. }
        | OutboundProtocol::Refuse(_) => {}
    }
    if let Some(carrier) = &outbound.dial.carrier {
        note(&carrier.server);
        let found = carrier.snowflake.iter().flat_map(|client| client.servers());
        found.for_each(|server| note(&server));
    }
    hosts
}

impl Config {
    /// The names of all servers that this process connects to itself, in lower case: those of outbounds, and name
    /// servers.
    pub fn server_names(&self) -> BTreeSet<Box<str>> {
        let mut asked: Vec<&Arc<Upstream>> = Vec::new();
        for inbound in &self.inbounds {
            if let InboundProtocol::Dns(server) = &inbound.protocol {
                asked.extend(server.upstreams.iter().chain(&server.direct));
            }
        }
        let policies = self.dns.policy.iter().flat_map(|policy| &policy.upstreams);
        let fallback = self.dns.fallback.iter().flat_map(|fallback| &fallback.upstreams);
        let policies = policies.chain(fallback);
        let upstreams = self.dns.upstreams.iter().chain(policies).chain(asked);
        let upstreams = upstreams.filter_map(|upstream| match &upstream.server.host {
            Host::Name(name) => Some(plain(name)),
            Host::Ip(_) => None,
        });
        self.outbounds.iter().flat_map(servers_of).chain(upstreams).collect()
    }
}

/// A name in lower case, without the dot of the root.
fn plain(name: &str) -> Box<str> {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase().into()
}

fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(name: &str, through: Option<&str>) -> Arc<Upstream> {
        let server = "192.0.2.53:53".parse().unwrap();
        let through = through.map(Tag::from);
        let (transport, bootstrap) = (DnsTransport::Udp, Vec::new());
        Arc::new(Upstream { name: name.into(), transport, server, bootstrap, through, by_rules: None })
    }

    #[test]
    fn the_most_specific_policy_wins() {
        let policy = ["example.com", "a.example.com", "=b.example.com", "example.com"];
        let policy = policy.map(|domain| DnsPolicy {
            domain: domain.into(),
            upstreams: vec![upstream("u", None)],
            direct: false,
        });
        let dns = Dns { policy: policy.into(), ..Dns::default() };
        for (name, list) in [
            ("example.com", 1),
            ("www.example.com", 1),
            ("badexample.com", 0),
            ("a.example.com", 2),
            ("x.a.example.com", 2),
            ("b.example.com", 3),
            ("x.b.example.com", 1),
            ("com", 0),
        ] {
            assert_eq!(dns.list_for(name), list, "{name}");
        }
    }
}
