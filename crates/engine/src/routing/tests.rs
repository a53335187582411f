use std::net::SocketAddr;

use adit_formats::shadowsocks::{ProgramFamily, acl};
use adit_model::Tag;
use adit_model::access::AclVerdict;
use adit_model::rule::{Cidr, Matcher, PortRange, RejectMethod};
use adit_proto::wire::Host;
use proptest::prelude::*;

use super::access::{Role, list_rules};

use super::*;

fn rule(matcher: Matcher, outbound: &str) -> Rule {
    let verdict = Verdict::Outbound(outbound.into());
    Rule { matcher, verdict, at: FileLine { file: "t".into(), line: 1, column: 1 } }
}

fn query<'a>(target: &'a Target) -> Query<'a> {
    Query {
        inbound: "in",
        source: None,
        user: None,
        network: Network::Tcp,
        target,
        protocol: None,
        known: ClientFacts { is_sought: true, ..ClientFacts::default() },
    }
}

fn cidrs(texts: &[&str]) -> Vec<Cidr> {
    texts.iter().map(|text| Cidr::parse(text).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn tables_mean_what_rules_mean(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        fuzz_route(&data);
    }
}

#[test]
fn a_name_is_looked_up_once_a_rule_asks() {
    let rules = [
        rule(Matcher::IpCidr(cidrs(&["10.0.0.0/8"]), Resolve::No), "early"),
        rule(Matcher::DomainSuffix(vec!["a.example".into()]), "name"),
        rule(Matcher::IpCidr(cidrs(&["192.0.2.0/24"]), Resolve::Yes), "net"),
        rule(Matcher::IpCidr(cidrs(&["10.0.0.0/8"]), Resolve::No), "late"),
    ];
    let router = Router::new(&rules, &Sets::default()).unwrap();
    let decided = |host: &str, ips: Option<&[IpAddr]>| {
        let target = Target::new(host.as_bytes(), 1).unwrap();
        match router.decide(&query(&target), ips) {
            RouteOutcome::NeedsAddresses | RouteOutcome::NeedsProgram => None,
            RouteOutcome::Decided(RouteDecision { rule, judged, .. }) => Some((rule, judged)),
        }
    };
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    assert_eq!(decided("www.A.example.", None), Some((Some(1), false)));
    assert_eq!(decided("10.1.1.1", None), Some((Some(0), false)));
    assert_eq!(decided("other.example", None), None);
    assert_eq!(decided("other.example", Some(&[ip("10.0.0.1"), ip("192.0.2.1")])), Some((Some(2), true)));
    // Addresses that a rule asked for are seen by later rules, not by earlier ones.
    assert_eq!(decided("other.example", Some(&[ip("10.0.0.1")])), Some((Some(3), true)));
    assert_eq!(decided("other.example", Some(&[])), Some((None, true)));
}

#[test]
fn reasons() {
    let rules = [
        rule(Matcher::And(vec![Matcher::Network(Network::Tcp), Matcher::Port(vec![])]), "a"),
        rule(Matcher::Or(vec![Matcher::User(vec!["u".into()]), Matcher::DomainSuffix(vec![])]), "b"),
        rule(Matcher::Not(Box::new(Matcher::Network(Network::Tcp))), "c"),
        rule(Matcher::IpCidr(cidrs(&["10.0.0.0/8"]), Resolve::Yes), "d"),
    ];
    let router = Router::new(&rules, &Sets::default()).unwrap();
    let target = Target::new(b"a.example", 443).unwrap();
    let found = router.explain(&rules, &query(&target), Some(&["192.0.2.1".parse().unwrap()]), &|_| false);
    let why: Vec<&str> = found.passed.iter().map(|step| &*step.why).collect();
    assert_eq!(
        why,
        [
            "port does not hold 443",
            "none of: user: there is no user; domain-suffix does not hold a.example",
            "not: network matches",
            "ip-cidr does not hold 192.0.2.1",
        ]
    );
    assert_eq!(
        router.explain(&rules, &query(&target), None, &|_| false).outcome,
        RouteOutcome::NeedsAddresses
    );
}

#[test]
fn a_protocol_is_asked_for_where_it_matters() {
    let tls = || Matcher::Protocol(vec!["tls".into()]);
    let rules = [
        rule(Matcher::Port(vec![PortRange { first: 22, last: 22 }]), "a"),
        rule(Matcher::And(vec![Matcher::Network(Network::Tcp), Matcher::Not(Box::new(tls()))]), "b"),
    ];
    let router = Router::new(&rules, &Sets::default()).unwrap();
    assert!(router.needs_protocol() && !Router::default().needs_protocol());
    let depends = |port, network, protocol| {
        let target = Target::new(b"a.example", port).unwrap();
        router.depends_on_protocol(&Query { network, protocol, ..query(&target) })
    };
    assert!(depends(443, Network::Tcp, None));
    // An earlier rule decides; no rule can match.
    assert!(!depends(22, Network::Tcp, None) && !depends(443, Network::Udp, None));
    let target = Target::new(b"a.example", 443).unwrap();
    let decided = |protocol| match router.decide(&Query { protocol, ..query(&target) }, None) {
        RouteOutcome::Decided(RouteDecision { rule, .. }) => rule,
        RouteOutcome::NeedsAddresses | RouteOutcome::NeedsProgram => panic!("no rule asks for more"),
    };
    assert_eq!([decided(None), decided(Some("tls")), decided(Some("http"))], [Some(1), None, Some(1)]);
    let rules = [rule(tls(), "a"), rule(Matcher::IpCidr(cidrs(&["10.0.0.0/8"]), Resolve::Yes), "b")];
    let router = Router::new(&rules, &Sets::default()).unwrap();
    assert!(router.depends_on_protocol(&query(&target)), "the other rule asks for addresses");
    let found = router.explain(&rules, &query(&target), Some(&[]), &|_| false);
    assert_eq!(found.passed[0].why, "protocol is not known before bytes come");
}

#[test]
fn rules_that_cannot_be_compiled() {
    let problem = |matcher| Router::new(&[rule(matcher, "x")], &Sets::default()).unwrap_err().to_string();
    assert_eq!(problem(Matcher::Set(vec!["s".into()], Resolve::Yes)), "t:1: no such set: s");
    let deep = (0..100).fold(Matcher::Network(Network::Tcp), |inner, _| Matcher::Not(Box::new(inner)));
    assert_eq!(problem(deep), "t:1: and, or and not are nested deeper than 64 levels");
    let regex = Matcher::DomainRegex(vec!["(".into()]);
    assert_eq!(problem(regex), "t:1: bad or too large regular expression: (");
}

/// The router's verdict under the rules of an access list: allowed or not, or that it depends on addresses.
fn judged(router: &Router, host: &Host, ips: Option<&[IpAddr]>) -> AclVerdict {
    let target = Target { host: host.clone(), port: 1 };
    match router.decide(&query(&target), ips) {
        RouteOutcome::NeedsAddresses | RouteOutcome::NeedsProgram => AclVerdict::Resolve,
        RouteOutcome::Decided(RouteDecision { verdict: Verdict::Default, .. }) => AclVerdict::Yes,
        RouteOutcome::Decided(_) => AclVerdict::No,
    }
}

const HOSTS: &[&str] = &[
    "10.0.0.1",
    "10.1.2.3",
    "192.0.2.9",
    "::1",
    "2001:db8::5",
    "2001:db9::1",
    "a.example",
    "A.b.Example",
    "x.example",
    "b.example",
    "ads1.example",
    "deep.a.example",
    "example",
    "other.test",
    "xa.example",
];

const LINES: &[&str] = &[
    "10.0.0.0/8",
    "10.1.0.0/16",
    "192.0.2.0/24",
    "::/0",
    "::1",
    "2001:db8::/32",
    "::ffff:10.1.2.0/120",
    "||a.example",
    "|b.example",
    "||example",
    "(^|\\.)x\\.example$",
    "\\.b\\.example$",
    "^ads?[0-9]",
    "test$",
    "[0-9]\\.e",
    "^.*\\.a\\.example$",
];

const SECTIONS: &[&str] = &[
    "[bypass_all]",
    "[proxy_all]",
    "[bypass_list]",
    "[proxy_list]",
    "[outbound_block_all]",
    "[outbound_allow_all]",
    "[outbound_block_list]",
    "[outbound_allow_list]",
];

fn list() -> impl Strategy<Value = String> {
    let line = prop_oneof![3 => proptest::sample::select(LINES), 2 => proptest::sample::select(SECTIONS)];
    proptest::collection::vec(line, 0..16).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    /// The rules of an access list say what the list itself says, of every kind of target.
    #[test]
    fn access_lists(text in list(), ips in proptest::collection::vec(0..6_usize, 0..3)) {
        let ips: Vec<IpAddr> = ips.into_iter().map(|n| HOSTS[n].parse().unwrap()).collect();
        for family in [ProgramFamily::Libev, ProgramFamily::Rust] {
            let list = acl::parse(family, "t.acl", &text).unwrap().0;
            for role in [Role::Client, Role::Server] {
                let (mut sets, direct) = (Sets::default(), Tag::from(DIRECT));
                let rules = list_rules(&list, role, Matcher::Inbound(vec!["in".into()]), &direct, "list", &mut sets);
                let router = Router::new(&rules, &sets).unwrap();
                for host in HOSTS.iter().map(|host| Host::parse(host.as_bytes()).unwrap()) {
                    let (want, after, unknown) = match role {
                        Role::Client => {
                            let after = list.proxies_any(ips.iter().copied());
                            (list.proxies(&host), after, list.proxies_unknown())
                        }
                        // A name that has no address is dialled, so that the error is reported.
                        Role::Server => (list.reaches(&host), list.reaches_any(ips.iter().copied()), true),
                    };
                    prop_assert_eq!(judged(&router, &host, None), want, "{:?} {}\n{}", role, host, text);
                    if want == AclVerdict::Resolve {
                        let want = if ips.is_empty() { unknown } else { after };
                        let found = judged(&router, &host, Some(&ips));
                        prop_assert_eq!(found, want.into(), "{:?} {} {:?}\n{}", role, host, ips, text);
                    }
                    if let Host::Ip(ip) = host {
                        let want = role == Role::Client || list.accepts(ip);
                        prop_assert_eq!(router.accepts("in", ip), want, "{:?} {}\n{}", role, ip, text);
                        prop_assert!(router.accepts("elsewhere", ip));
                    }
                }
            }
        }
    }
}

#[test]
fn clients_are_refused_by_address() {
    let refuse = |matcher| Rule { verdict: Verdict::Reject(RejectMethod::Reset), ..rule(matcher, "") };
    let rules = [
        refuse(Matcher::Source(cidrs(&["192.0.2.0/24"]))),
        rule(Matcher::Port(vec![]), "may be taken"),
        refuse(Matcher::Source(cidrs(&["198.51.100.0/24"]))),
    ];
    let router = Router::new(&rules, &Sets::default()).unwrap();
    let accepts = |ip: &str| router.accepts("in", ip.parse().unwrap());
    assert!(!accepts("192.0.2.1") && !accepts("::ffff:192.0.2.1"));
    // An earlier rule may let it through, by what it asks for.
    assert!(accepts("198.51.100.1") && accepts("203.0.113.1"));
    let target = Target::new(b"a.example", 1).unwrap();
    let source = Some(SocketAddr::new("198.51.100.1".parse().unwrap(), 1));
    let outcome = router.decide(&Query { source, ..query(&target) }, None);
    assert!(matches!(outcome, RouteOutcome::Decided(RouteDecision { rule: Some(2), .. })), "{outcome:?}");
}
