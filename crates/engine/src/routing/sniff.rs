//! The requests whose first bytes are looked at for the name of their target, and the use of that name.

use std::net::{IpAddr, SocketAddr};

use adit_model::entries::Sets;
use adit_model::rule::{FileLine, Matcher, Network, PortRange, Rule, Verdict};
use adit_model::{SniffPorts, Sniffer};
use adit_proto::sniff::SniffedProtocol;
use adit_proto::wire::{Host, Target};

use super::{ClientFacts, CompileError, Query, RouteOutcome, Router};

/// The settings as tables.
#[derive(Debug)]
pub struct Sniffing {
    tls: Option<SniffPorts>,
    http: Option<SniffPorts>,
    datagrams: Option<SniffPorts>,
    skip: Option<Router>,
    force: Option<Router>,
    ignore: Option<Router>,
    mapped: bool,
    pure: bool,
}

/// A request before its first bytes, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub struct Glimpse<'a> {
    /// Kind of traffic.
    pub network: Network,
    /// The client, if it has an address.
    pub source: Option<SocketAddr>,
    /// The target as it is known so far: an address, or a name.
    pub target: &'a Target,
    /// The client was given the address for another name.
    pub mapped: bool,
}

impl Sniffing {
    /// The tables of these settings.
    ///
    /// # Errors
    /// A list that is not there, or one that is too large.
    pub fn compile(of: &Sniffer, sets: &Sets) -> Result<Self, CompileError> {
        let router = |matcher: &Option<Matcher>| {
            let Some(matcher) = matcher else { return Ok(None) };
            let (matcher, at) = (matcher.clone(), FileLine::file("sniffer"));
            Router::new(&[Rule { matcher, verdict: Verdict::Default, at }], sets).map(Some)
        };
        Ok(Self {
            tls: of.tls.clone(),
            http: of.http.clone(),
            datagrams: of.datagrams.clone(),
            skip: router(&of.skip)?,
            force: router(&of.force)?,
            ignore: router(&of.ignore)?,
            mapped: of.mapped,
            pure: of.pure,
        })
    }

    /// Whether the first bytes of a request are looked at.
    pub fn looks(&self, at: &Glimpse<'_>) -> bool {
        let is_port = match at.network {
            Network::Tcp => has(self.tls.as_ref(), at.target.port) || has(self.http.as_ref(), at.target.port),
            Network::Udp => has(self.datagrams.as_ref(), at.target.port),
        };
        let wants = || match at.target.host {
            Host::Ip(_) if at.mapped => self.mapped,
            Host::Ip(_) => self.pure,
            Host::Name(_) => self.is_forced(at),
        };
        is_port && wants() && !holds(self.skip.as_ref(), at)
    }

    /// Whether a name is sought for a named target all the same.
    pub fn is_forced(&self, at: &Glimpse<'_>) -> bool {
        holds(self.force.as_ref(), at)
    }

    /// Whether a name that was found is used, for a target at this port; then, whether a stream goes to it.
    pub fn takes(&self, protocol: SniffedProtocol, name: &str, port: u16) -> Option<bool> {
        let (of, network) = match protocol {
            SniffedProtocol::Tls => (&self.tls, Network::Tcp),
            SniffedProtocol::Http => (&self.http, Network::Tcp),
            SniffedProtocol::NAMED_DATAGRAMS => (&self.datagrams, Network::Udp),
            SniffedProtocol::BitTorrent | SniffedProtocol::Ssh | SniffedProtocol::Dns => return None,
        };
        let of = of.as_ref().filter(|of| holds_port(&of.ports, port))?;
        let target = Target { host: Host::Name(name.into()), port };
        let at = Glimpse { network, source: None, target: &target, mapped: false };
        (!holds(self.ignore.as_ref(), &at)).then_some(of.overrides)
    }
}

fn has(of: Option<&SniffPorts>, port: u16) -> bool {
    of.is_some_and(|of| holds_port(&of.ports, port))
}

fn holds_port(ranges: &[PortRange], port: u16) -> bool {
    ranges.iter().any(|range| (range.first..=range.last).contains(&port))
}

/// Whether the one rule of `router` matches. A name is not looked up for it.
fn holds(router: Option<&Router>, at: &Glimpse<'_>) -> bool {
    const NO_ADDRESS: Option<&[IpAddr]> = Some(&[]);
    let Some(router) = router else { return false };
    let query = Query {
        inbound: "",
        source: at.source,
        user: None,
        network: at.network,
        target: at.target,
        protocol: None,
        known: ClientFacts { is_sought: true, ..ClientFacts::default() },
    };
    matches!(router.decide(&query, NO_ADDRESS), RouteOutcome::Decided(decided) if decided.rule.is_some())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use adit_formats::clash;
    use adit_formats::rulesets::load_sets;

    use super::*;

    const FILE: &str = "mixed-port: 7000
rule-providers: {n: {type: inline, behavior: classical, payload: ['DOMAIN-SUFFIX,set.test', 'DST-PORT,444']}}
sniffer:
  enable: true
  sniff: {TLS: {ports: [443, 444]}, HTTP: {ports: [80], override-destination: false}, QUIC: {}}
  force-domain: ['+.forced.test', 'rule-set:n']
  skip-domain: ['+.apple.test']
  skip-src-address: ['192.0.2.0/24']
  skip-dst-address: ['198.51.100.7/32', 'geoip:lan']
";

    fn sniffing(text: &str) -> Sniffing {
        let setup = clash::load("c", text, Path::new("/h")).unwrap();
        let sets = load_sets(&setup.config).unwrap();
        Sniffing::compile(setup.config.sniffer.as_ref().unwrap(), &sets).unwrap()
    }

    fn looks(of: &Sniffing, network: Network, from: &str, to: &str, mapped: bool) -> bool {
        let (host, port) = to.rsplit_once(':').unwrap();
        let target = Target::new(host.as_bytes(), port.parse().unwrap()).unwrap();
        let source = Some(SocketAddr::new(from.parse().unwrap(), 1));
        of.looks(&Glimpse { network, source, target: &target, mapped })
    }

    #[test]
    fn what_is_looked_at() {
        let of = sniffing(FILE);
        let tcp = |to: &str| looks(&of, Network::Tcp, "203.0.113.1", to, false);
        assert!(tcp("203.0.113.9:443") && tcp("203.0.113.9:80"));
        assert!(!tcp("203.0.113.9:22"), "another port");
        assert!(!tcp("198.51.100.7:443") && !tcp("10.1.1.1:443"), "targets that are skipped");
        assert!(!looks(&of, Network::Tcp, "192.0.2.8", "203.0.113.9:443", false), "a client that is skipped");
        assert!(!tcp("a.test:443") && tcp("a.FORCED.test:443") && tcp("set.test:443"), "names");
        assert!(tcp("other.test:444") && !tcp("other.test:80"), "a rule of another type in a set");
        let udp = |to: &str| looks(&of, Network::Udp, "203.0.113.1", to, false);
        assert!(udp("203.0.113.9:443") && !udp("203.0.113.9:80"));
        let off = "  parse-pure-ip: false\n";
        let of = sniffing(&format!("{FILE}{off}"));
        assert!(!looks(&of, Network::Tcp, "203.0.113.1", "203.0.113.9:443", false));
        assert!(looks(&of, Network::Tcp, "203.0.113.1", "203.0.113.9:443", true), "an address that was told");
        let of = sniffing(&format!("{FILE}{off}  force-dns-mapping: false\n"));
        assert!(!looks(&of, Network::Tcp, "203.0.113.1", "203.0.113.9:443", true));
    }

    #[test]
    fn the_use_of_a_name() {
        let of = sniffing(FILE);
        assert_eq!(of.takes(SniffedProtocol::Tls, "a.test", 443), Some(true));
        assert_eq!(of.takes(SniffedProtocol::Http, "a.test", 80), Some(false));
        assert_eq!(of.takes(SniffedProtocol::Http, "a.test", 443), None, "HTTP at the port of TLS");
        assert_eq!(of.takes(SniffedProtocol::Tls, "push.apple.test", 443), None, "a name that is skipped");
        assert_eq!(of.takes(SniffedProtocol::Quic, "a.test", 443), Some(true));
        assert_eq!(of.takes(SniffedProtocol::Ssh, "a.test", 443), None);
    }
}
