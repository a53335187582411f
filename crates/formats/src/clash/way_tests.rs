//! Keys at the top of the file that change the way of traffic, or who may use it.

use adit_model::rule::{Matcher, RejectMethod, Verdict};
use adit_model::{Egress, HostTable, InboundProtocol};

use super::*;

const GEO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/clash/geo");

fn read(text: &str) -> ClashSetup {
    let setup = load("config.yaml", text, Path::new(GEO)).unwrap_or_else(|found| panic!("{found}"));
    assert!(setup.refused.is_empty(), "{}", setup.refused);
    setup
}

fn errors(text: &str) -> String {
    match load("config.yaml", text, Path::new(GEO)) {
        Ok(setup) => setup.refused.to_string(),
        Err(found) => found.to_string(),
    }
}

fn networks(all: &[&str]) -> Vec<Cidr> {
    all.iter().map(|text| Cidr::parse(text).unwrap()).collect()
}

const LOCAL: &str = "\
mixed-port: 1
authentication: ['ann:pw']
listeners:
- {name: own, type: socks, port: 2, users: [{username: bob, password: x}]}
- {name: none, type: http, port: 3, users: []}
- {name: general, type: mixed, port: 4}
rules: ['MATCH,DIRECT']
";

#[test]
fn clients_by_their_addresses() {
    let text = format!(
        "{LOCAL}lan-allowed-ips: [127.0.0.0/8, 192.168.0.0/16]\nlan-disallowed-ips: [192.168.7.0/24]\n"
    );
    let setup = read(&text);
    // In front of all others, so that nobody else is taken in at all.
    let first = &setup.config.rules[0];
    assert_eq!(first.verdict, Verdict::Reject(RejectMethod::Reset));
    let names = ["DEFAULT-HTTP", "DEFAULT-SOCKS", "DEFAULT-MIXED", "general"].map(Tag::from);
    let allowed = Matcher::Source(networks(&["127.0.0.0/8", "192.168.0.0/16"]));
    let refused = vec![Matcher::Not(Box::new(allowed)), Matcher::Source(networks(&["192.168.7.0/24"]))];
    assert_eq!(first.matcher, Matcher::And(vec![Matcher::Inbound(names.into()), Matcher::Or(refused)]));
    assert_eq!(setup.config.rules.len(), setup.origins.len());
    // The default, and no key at all, refuse nobody.
    for more in
        ["", "lan-allowed-ips: [0.0.0.0/0, '::/0']\n", "lan-disallowed-ips: []\n", "lan-allowed-ips:\n"]
    {
        assert_eq!(read(&format!("{LOCAL}{more}")).config.rules.len(), 1, "{more}");
    }
    // An empty list lets nobody in, as there.
    assert_eq!(read(&format!("{LOCAL}lan-allowed-ips: []\n")).config.rules.len(), 2);
    // In the mode direct as well.
    let direct = read(&format!("{text}mode: direct\n"));
    assert_eq!(direct.config.rules[0].verdict, Verdict::Reject(RejectMethod::Reset));
    let found = errors("mixed-port: 1\nlan-allowed-ips: [192.168.0.1]\nrules: []\n");
    assert!(found.contains("2:19: lan-allowed-ips: no network: 192.168.0.1"), "{found}");
}

#[test]
fn clients_without_a_password() {
    let setup = read(&format!("{LOCAL}skip-auth-prefixes: [127.0.0.1/8, '::1/128']\n"));
    let open_to = |name: &str| {
        let InboundProtocol::Local(local) = &setup.config.inbound(name).unwrap().protocol else { panic!() };
        (local.users.len(), local.open_to.clone())
    };
    let networks = networks(&["127.0.0.0/8", "::1/128"]);
    assert_eq!(open_to("DEFAULT-MIXED"), (1, networks.clone()));
    assert_eq!(open_to("general"), (1, networks));
    // Ports with users of their own know nobody else.
    assert_eq!((open_to("own"), open_to("none")), ((1, Vec::new()), (0, Vec::new())));
}

#[test]
fn interface_and_mark() {
    let proxies = "\
proxies:
- {name: p, type: socks5, server: 192.0.2.1, port: 1}
- {name: q, type: socks5, server: 192.0.2.1, port: 1, interface-name: eth1, routing-mark: 5}
proxy-groups: [{name: g, type: select, proxies: [p]}]
rules: ['MATCH,g']
interface-name: eth0
routing-mark: 0x10
";
    let setup = read(proxies);
    let egress = |name: &str| {
        let egress = &setup.config.outbound(name).unwrap().dial.egress;
        (egress.interface.as_deref(), egress.mark)
    };
    assert_eq!((egress("p"), egress("DIRECT")), ((Some("eth0"), Some(16)), (Some("eth0"), Some(16))));
    assert_eq!((egress("q"), egress("g")), ((Some("eth1"), Some(5)), (None, None)));
    let dns = &setup.config.dns.egress;
    assert_eq!(*dns, Egress { interface: Some("eth0".into()), mark: Some(16), ..Egress::default() });
    // The capture knows its own sockets by that mark, and lets them pass.
    let tun = "tun: {enable: true}\ndns: {enable: true, nameserver: [192.0.2.1]}\n";
    let setup = read(&format!("{proxies}{tun}"));
    let capture = setup.config.capture.as_ref().unwrap();
    assert_eq!((capture.own_mark, setup.config.outbound("p").unwrap().dial.egress.mark), (16, None));
    let found = errors(&format!("{}{tun}", proxies.replace("0x10", "0x2023")));
    assert!(found.contains("routing-mark: it is the mark of captured packets"), "{found}");
    let found = errors("rules: []\nmixed-port: 1\nrouting-mark: x\ninterface-name: 'a b'\n");
    assert!(
        found.contains("3:15: routing-mark: expected") && found.contains("4:17: interface-name: "),
        "{found}"
    );
}

#[test]
fn names_of_hosts() {
    let text = "\
mixed-port: 1
hosts:
  alias.test: Other.test
  '*.star.test': 192.0.2.1
  +.plus.test: far.test
  .dot.test: [192.0.2.2, '2001:db8::2']
dns: {enable: true, nameserver: [192.0.2.53]}
rules: []
";
    let setup = read(text);
    let table = HostTable::new(&setup.config.dns);
    assert_eq!((table.alias("alias.test"), table.alias("plus.test")), (Some("other.test"), Some("far.test")));
    assert_eq!(table.addresses("a.star.test").map(<[IpAddr]>::len), Some(1));
    assert_eq!(table.addresses("a.b.dot.test").map(<[IpAddr]>::len), Some(2));
    assert_eq!((table.addresses("star.test"), table.addresses("dot.test")), (None, None));
    for (hosts, want) in [
        ("{a.test: b.test, b.test: a.test}", "stands for itself"),
        ("{'a*b.test': 192.0.2.1}", "2:9: hosts.a*b.test: no pattern of names"),
        ("{a.test: lan}", "2:9: hosts.a.test: own addresses by `lan`"),
    ] {
        let found = errors(&format!("mixed-port: 1\nhosts: {hosts}\nrules: []\n"));
        assert!(found.contains(want), "{hosts}: {found}");
    }
}

#[test]
fn servers_in_the_place_of_others() {
    let text = "\
mixed-port: 1
dns:
  enable: true
  nameserver: [192.0.2.53]
  nameserver-policy: {'+.own.test': 192.0.2.54}
  fallback: ['tls://192.0.2.55']
  fallback-filter: {geoip-code: US, ipcidr: [240.0.0.0/4], domain: [+.far.test, www.own.test]}
rules: []
";
    let setup = read(text);
    let dns = &setup.config.dns;
    let fallback = dns.fallback.as_ref().unwrap();
    assert_eq!(fallback.upstreams[0].name, "tls://192.0.2.55".into());
    assert_eq!(fallback.trusted, ["geoip us", "geoip lan"].map(Tag::from));
    assert_eq!(fallback.untrusted, networks(&["240.0.0.0/4"]));
    // A policy goes before the names of the filter.
    let policy: Vec<_> =
        dns.policy.iter().map(|policy| (&*policy.domain, &*policy.upstreams[0].name)).collect();
    assert_eq!(policy, [("own.test", "192.0.2.54"), ("far.test", "tls://192.0.2.55")]);
    assert!(setup.config.lists.keys().any(|tag| **tag == *"geoip us"), "the list is read");
    // Without `fallback` the filter says nothing.
    let without = read(&text.replace("  fallback: ['tls://192.0.2.55']\n", ""));
    assert_eq!(without.config.dns.fallback, None);
    assert!(without.diagnostics.to_string().contains("dns.fallback-filter"), "{}", without.diagnostics);
    let off = read(&text.replace("geoip-code: US", "geoip: false"));
    assert!(off.config.dns.fallback.unwrap().trusted.is_empty());
    let found = errors(&text.replace("+.far.test", "'*.far.test'"));
    assert!(found.contains("dns.fallback-filter.domain: patterns like this are not read yet"), "{found}");
}

/// Names of lists have servers of their own, and questions go as the rules say.
#[test]
fn servers_of_lists_and_by_rules() {
    let text = "\
dns:
  enable: true
  respect-rules: true
  nameserver: ['192.0.2.1', '192.0.2.2#DIRECT', 'tls://192.0.2.3#p']
  proxy-server-nameserver: [192.0.2.9]
  fallback: [192.0.2.4]
  fallback-filter: {geoip: false, geosite: [CN]}
  nameserver-policy:
    'geosite:cn,shop@ads': 192.0.2.5
    'rule-set:own': 192.0.2.6
proxies: [{name: p, type: socks5, server: p.test, port: 1}]
rule-providers: {own: {type: inline, behavior: domain, payload: [a.test]}}
rules: ['MATCH,p']
";
    let dns = read(text).config.dns;
    let policy: Vec<(&str, String, bool)> = dns
        .policy
        .iter()
        .map(|policy| {
            let server = &policy.upstreams[0];
            (&*policy.domain, server.server.to_string(), server.by_rules.is_some())
        })
        .collect();
    let at = |ip: &str| format!("{ip}:53");
    assert_eq!(
        policy,
        [
            ("rule-set:geosite cn", at("192.0.2.5"), true),
            ("rule-set:geosite shop@ads", at("192.0.2.5"), true),
            ("rule-set:rule-set own", at("192.0.2.6"), true),
            ("rule-set:geosite cn", at("192.0.2.4"), true),
            ("=p.test", at("192.0.2.9"), false),
        ]
    );
    let by_rules: Vec<bool> = dns.upstreams.iter().map(|server| server.by_rules.is_some()).collect();
    assert_eq!(by_rules, [true, false, false]);
    assert!(dns.fallback.unwrap().upstreams[0].by_rules.is_some());
    let setup = read("rules: ['MATCH,DIRECT']\n");
    assert!(!setup.config.dns.system_hosts_are_known);
    assert_eq!(setup.config.dns.hosts, [("localhost".into(), vec!["127.0.0.1".parse().unwrap()])]);
    assert!(dns.system_hosts_are_known);
    assert!(
        errors("dns: {enable: true, respect-rules: true}\n").contains("it needs proxy-server-nameserver")
    );
    assert!(
        errors("dns: {enable: true, nameserver-policy: {'geosite:none': 1.1.1.1}}\n")
            .contains("no such list")
    );
}
