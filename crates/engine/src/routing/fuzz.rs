//! Rules and requests out of random bytes, for the fuzzer and for tests: decisions by tables against a matcher that
//! compares values one by one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use adit_model::Tag;
use adit_model::entries::{Entries, Scope, Sets};
use adit_model::rule::{
    AddressRange, Cidr, Fact, FileLine, Matcher, Network, PortRange, RejectMethod, Resolve, Rule, Suffix,
    UidRange, Verdict, normal_name,
};
use adit_proto::wire::{Host, Target};

use super::walk::Truth;
use super::{ClientFacts, Query, RouteOutcome, Router};

/// Numbers out of bytes; zeros when they end.
pub(super) struct FuzzValues<'a>(pub(super) &'a [u8]);

impl FuzzValues<'_> {
    fn below(&mut self, bound: u8) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first % bound
    }

    fn list<T>(&mut self, max: u8, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let len = self.below(max + 1);
        (0..len).map(|_| one(self)).collect()
    }

    fn name(&mut self) -> Box<str> {
        let labels = 1 + self.below(3);
        let labels: Vec<_> =
            (0..labels).map(|_| ["a", "b", "ab", "ads"][usize::from(self.below(4))]).collect();
        labels.join(".").into()
    }

    fn ip(&mut self) -> IpAddr {
        let low = self.below(8);
        match self.below(3) {
            0 => Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(low)).into(),
            _ => Ipv4Addr::new(10, 0, 0, low).into(),
        }
    }

    fn cidr(&mut self) -> Cidr {
        let ip = self.ip();
        let wide = self.below(4);
        Cidr::new(ip, if ip.is_ipv4() { 32 - wide } else { 128 - wide }).expect("the prefix is short enough")
    }

    fn ports(&mut self) -> PortRange {
        let first = u16::from(self.below(6));
        PortRange { first, last: first + u16::from(self.below(3)) }
    }

    fn resolve(&mut self) -> Resolve {
        if self.below(2) == 0 { Resolve::Yes } else { Resolve::No }
    }

    fn tag(&mut self) -> Tag {
        ["s0", "s1"][usize::from(self.below(2))].into()
    }

    fn matcher(&mut self, depth: u8) -> Matcher {
        match self.below(if depth == 0 { 18 } else { 21 }) {
            0 => Matcher::Domain(self.list(3, Self::name)),
            1 => Matcher::DomainSuffix(self.list(3, Self::name)),
            2 => Matcher::DomainKeyword(self.list(2, |source| source.name()[..1].into())),
            3 => Matcher::DomainRegex(self.list(2, |source| format!("^{}\\.", source.name()).into())),
            4 => Matcher::IpCidr(self.list(3, Self::cidr), self.resolve()),
            5 | 6 => Matcher::Set(self.list(2, Self::tag), self.resolve()),
            7 => Matcher::Source(self.list(3, Self::cidr)),
            8 => Matcher::SourceSet(self.list(2, Self::tag)),
            9 => Matcher::SourcePort(self.list(2, Self::ports)),
            10 => Matcher::Port(self.list(2, Self::ports)),
            11 => Matcher::Network(if self.below(2) == 0 { Network::Tcp } else { Network::Udp }),
            12 => Matcher::Inbound(self.list(2, |source| source.name()[..1].into())),
            13 => Matcher::User(self.list(2, |source| source.name()[..1].into())),
            14 => Matcher::Unresolved,
            15 => Matcher::IpSuffix(self.list(2, Self::suffix), self.resolve()),
            16 => Matcher::Fact(self.fact()),
            17 => Matcher::SourcePort(self.list(2, Self::ports)),
            18 => Matcher::And(self.list(3, |source| source.matcher(depth - 1))),
            19 => Matcher::Or(self.list(3, |source| source.matcher(depth - 1))),
            _ => Matcher::Not(Box::new(self.matcher(depth - 1))),
        }
    }

    fn suffix(&mut self) -> Suffix {
        Suffix::new(self.ip(), self.below(4)).expect("few bits")
    }

    fn fact(&mut self) -> Fact {
        match self.below(6) {
            5 => Fact::Mark(self.list(2, |source| source.name()[..1].into())),
            0 => Fact::Named,
            1 => Fact::SourceSuffix(self.list(2, Self::suffix)),
            2 => Fact::InboundPort(self.list(2, Self::ports)),
            3 => Fact::Entry(self.list(2, |source| source.name()[..1].into())),
            _ => Fact::Uid(self.list(2, |source| UidRange { first: source.below(3).into(), last: 3 })),
        }
    }

    fn mark(&mut self) -> Option<Box<str>> {
        [None, Some("a".into()), Some("b".into())][usize::from(self.below(3))].clone()
    }

    fn rule(&mut self) -> Rule {
        let verdict = match self.below(6) {
            5 => Verdict::Again { at: self.below(13).into(), mark: self.mark() },
            3 => Verdict::Pass(self.below(3).into()),
            4 => Verdict::Streams { outbound: "y".into(), pass: self.below(3).into() },
            0 => Verdict::Outbound("x".into()),
            1 => Verdict::Default,
            _ => Verdict::Reject(RejectMethod::Reset),
        };
        Rule { matcher: self.matcher(3), verdict, at: FileLine::file("fuzz") }
    }

    fn sets(&mut self) -> Sets {
        let mut sets = Sets::default();
        for tag in ["s0", "s1"] {
            let mut entries = Entries::default();
            for name in self.list(4, Self::name) {
                let scope = [Scope::Exact, Scope::Tree, Scope::Below][usize::from(self.below(3))];
                entries.add_name(&name, scope);
            }
            self.list(3, Self::cidr).into_iter().for_each(|cidr| entries.add_range(cidr.range()));
            entries.regexes = self.list(1, |source| format!("{}$", source.name()).into());
            sets.insert(tag.into(), entries);
        }
        sets
    }

    fn target(&mut self) -> Target {
        let port = u16::from(self.below(8));
        if self.below(4) == 0 {
            return Target { host: Host::Ip(self.ip()), port };
        }
        let name = self.name();
        let name = if self.below(4) == 0 { name.to_ascii_uppercase().into() } else { name };
        Target { host: Host::Name(name), port }
    }
}

/// Rules, sets and requests out of `data`.
pub(super) fn run(data: &[u8]) {
    let mut source = FuzzValues(data);
    let sets = source.sets();
    let rules = source.list(12, FuzzValues::rule);
    let Ok(router) = Router::new(&rules, &sets) else { panic!("rules that are well formed compile") };
    for _ in 0..6 {
        let target = source.target();
        let inbound = source.name();
        let user = source.name();
        let ip = source.ip();
        let query = Query {
            inbound: &inbound[..1],
            source: (source.below(4) > 0).then(|| SocketAddr::new(ip, u16::from(source.below(8)))),
            user: (source.below(2) > 0).then(|| &user[..1]),
            network: if source.below(2) == 0 { Network::Tcp } else { Network::Udp },
            target: &target,
            protocol: None,
            known: ClientFacts {
                port: (source.below(2) > 0).then(|| u16::from(source.below(8))),
                entry: (source.below(2) > 0).then_some("a"),
                uid: (source.below(2) > 0).then(|| source.below(5).into()),
                is_sought: true,
                ..ClientFacts::default()
            },
        };
        let addresses = source.list(3, FuzzValues::ip);
        for addresses in [None, Some(&*addresses)] {
            let outcome = router.decide(&query, addresses);
            assert_eq!(
                outcome,
                router.explain(&rules, &query, addresses, &|_| false).outcome,
                "{rules:?}\n{query:?}"
            );
            // Before the program has been sought, it is the same or is asked for.
            let known = ClientFacts { uid: None, is_sought: false, ..query.known };
            let before = router.decide(&Query { known, ..query }, addresses);
            assert!(before == outcome || before == RouteOutcome::NeedsProgram, "{rules:?}\n{query:?}");
            let want =
                Naive { sets: &sets, query: &query, addresses, asked: false, mark: None }.decide(&rules);
            assert_eq!(rule_of(outcome), want, "{rules:?}\n{query:?}\n{addresses:?}");
        }
        check_client(&router, &query, &addresses);
    }
}

/// A client that is not taken in would be refused for every target, and the first rule about it says so.
fn check_client(router: &Router, query: &Query<'_>, addresses: &[IpAddr]) {
    let Some(source) = query.source else { return };
    if router.accepts(query.inbound, source.ip()) {
        return;
    }
    let RouteOutcome::Decided(decision) = router.decide(query, Some(addresses)) else {
        panic!("addresses are known")
    };
    assert!(matches!(decision.verdict, Verdict::Reject(_)), "{query:?}");
}

/// The rule that decides: none while addresses are missing, else the number, or that there is none.
fn rule_of(outcome: RouteOutcome<'_>) -> Option<Option<usize>> {
    match outcome {
        RouteOutcome::NeedsAddresses | RouteOutcome::NeedsProgram => None,
        RouteOutcome::Decided(decision) => Some(decision.rule),
    }
}

/// The meaning of rules, value by value.
struct Naive<'a> {
    sets: &'a Sets,
    query: &'a Query<'a>,
    addresses: Option<&'a [IpAddr]>,
    asked: bool,
    mark: Option<&'a str>,
}

impl<'a> Naive<'a> {
    fn decide(mut self, rules: &'a [Rule]) -> Option<Option<usize>> {
        let (mut n, mut rounds) = (0, 0);
        while let Some(rule) = rules.get(n) {
            let mut truth = self.truth(&rule.matcher);
            if truth == Truth::Unknown {
                self.addresses?;
                self.asked = true;
                truth = self.truth(&rule.matcher);
            }
            n = match (rule.verdict.passes(self.query.network, |_| false), &rule.verdict) {
                _ if truth != Truth::Yes => n + 1,
                (Some(count), _) => n + 1 + count as usize,
                (None, Verdict::Again { at, mark }) if rounds < 8 => {
                    rounds += 1;
                    self.mark = mark.as_deref().or(self.mark);
                    *at as usize
                }
                (None, _) => return Some(Some(n)),
            };
        }
        Some(None)
    }

    fn name(&self) -> Option<String> {
        match &self.query.target.host {
            Host::Name(name) => Some(normal_name(name).into_owned()),
            Host::Ip(_) => None,
        }
    }

    fn any_name(&self, holds: impl Fn(&str) -> bool) -> Truth {
        self.name().is_some_and(|name| holds(&name)).into()
    }

    fn any_address(&self, resolve: Resolve, holds: impl Fn(IpAddr) -> bool) -> Truth {
        match (&self.query.target.host, resolve) {
            (Host::Ip(ip), _) => holds(*ip).into(),
            (Host::Name(_), _) if self.asked => {
                self.addresses.is_some_and(|ips| ips.iter().any(|ip| holds(*ip))).into()
            }
            (Host::Name(_), Resolve::Yes) => Truth::Unknown,
            (Host::Name(_), Resolve::No) => Truth::No,
        }
    }

    fn in_set(&self, tag: &Tag, ip: IpAddr) -> bool {
        let entries = self.sets.list(tag).expect("the sets are there");
        match ip {
            IpAddr::V4(ip) => entries.v4.iter().any(|(first, last)| (*first..=*last).contains(&ip.to_bits())),
            IpAddr::V6(ip) => entries.v6.iter().any(|(first, last)| (*first..=*last).contains(&ip.to_bits())),
        }
    }

    fn set(&self, tag: &Tag, resolve: Resolve) -> Truth {
        let entries = self.sets.list(tag).expect("the sets are there");
        let by_name = self.any_name(|name| {
            entries.names().any(|(entry, scope)| match scope {
                Scope::Exact => entry == name,
                Scope::Tree => is_below(name, entry) || entry == name,
                Scope::Below => is_below(name, entry),
            }) || entries.regexes.iter().any(|regex| name.ends_with(regex.trim_end_matches('$')))
        });
        let by_address = if entries.has_addresses() {
            self.any_address(resolve, |ip| self.in_set(tag, ip))
        } else {
            Truth::No
        };
        Truth::any([by_name, by_address].into_iter())
    }

    fn fact(&self, fact: &Fact) -> bool {
        let known = &self.query.known;
        match fact {
            Fact::Named => self.name().is_some(),
            Fact::SourceSuffix(all) => {
                self.query.source.is_some_and(|from| all.iter().any(|suffix| suffix.holds(from.ip())))
            }
            Fact::InboundPort(ranges) => known.port.is_some_and(|port| within(ranges, port)),
            Fact::Entry(words) => known.entry.is_some_and(|entry| words.iter().any(|word| **word == *entry)),
            Fact::Uid(ranges) => known
                .uid
                .is_some_and(|uid| ranges.iter().any(|range| (range.first..=range.last).contains(&uid))),
            Fact::Mark(words) => self.mark.is_some_and(|mark| words.iter().any(|word| **word == *mark)),
            Fact::ProcessName(_)
            | Fact::ProcessPath(_)
            | Fact::ProcessNameRegex(_)
            | Fact::ProcessPathRegex(_)
            | Fact::Dscp(_) => false,
        }
    }

    fn truth(&self, matcher: &Matcher) -> Truth {
        let query = self.query;
        let source = query.source;
        match matcher {
            Matcher::Domain(names) => self.any_name(|name| names.iter().any(|one| **one == *name)),
            Matcher::DomainSuffix(names) => {
                self.any_name(|name| names.iter().any(|one| **one == *name || is_below(name, one)))
            }
            Matcher::DomainKeyword(words) => {
                self.any_name(|name| words.iter().any(|word| name.contains(&**word)))
            }
            Matcher::DomainRegex(regexes) => self.any_name(|name| {
                regexes.iter().any(|regex| {
                    let text = regex.trim_start_matches('^').trim_end_matches("\\.");
                    // The dots of a name in an expression stand for any character.
                    name.len() > text.len()
                        && name.as_bytes()[text.len()] == b'.'
                        && text.bytes().zip(name.bytes()).all(|(want, byte)| want == b'.' || want == byte)
                })
            }),
            Matcher::IpCidr(networks, resolve) => {
                self.any_address(*resolve, |ip| networks.iter().any(|network| holds(*network, ip)))
            }
            Matcher::GeoIp(..) | Matcher::Protocol(_) => Truth::No,
            Matcher::Set(tags, resolve) => Truth::any(tags.iter().map(|tag| self.set(tag, *resolve))),
            Matcher::Unresolved => match (&query.target.host, self.asked) {
                (Host::Ip(_), _) => Truth::No,
                (Host::Name(_), false) => Truth::Unknown,
                (Host::Name(_), true) => self.addresses.is_some_and(<[IpAddr]>::is_empty).into(),
            },
            Matcher::Source(networks) => source
                .is_some_and(|source| networks.iter().any(|network| holds(*network, source.ip())))
                .into(),
            Matcher::SourceSet(tags) => {
                source.is_some_and(|source| tags.iter().any(|tag| self.in_set(tag, source.ip()))).into()
            }
            Matcher::SourcePort(ranges) => source.is_some_and(|source| within(ranges, source.port())).into(),
            Matcher::Port(ranges) => within(ranges, query.target.port).into(),
            Matcher::Network(network) => (query.network == *network).into(),
            Matcher::Inbound(tags) => tags.iter().any(|tag| **tag == *query.inbound).into(),
            Matcher::User(names) => {
                query.user.is_some_and(|user| names.iter().any(|name| **name == *user)).into()
            }
            Matcher::IpSuffix(suffixes, resolve) => {
                self.any_address(*resolve, |ip| suffixes.iter().any(|suffix| suffix.holds(ip)))
            }
            Matcher::Fact(fact) => self.fact(fact).into(),
            Matcher::And(all) => Truth::all(all.iter().map(|one| self.truth(one))),
            Matcher::Or(all) => Truth::any(all.iter().map(|one| self.truth(one))),
            Matcher::Not(one) => self.truth(one).not(),
        }
    }
}

fn is_below(name: &str, top: &str) -> bool {
    name.strip_suffix(top).is_some_and(|rest| rest.ends_with('.'))
}

fn within(ranges: &[PortRange], port: u16) -> bool {
    ranges.iter().any(|range| (range.first..=range.last).contains(&port))
}

fn holds(network: Cidr, ip: IpAddr) -> bool {
    match (network.range(), ip) {
        (AddressRange::V4(first, last), IpAddr::V4(ip)) => (first..=last).contains(&ip.to_bits()),
        (AddressRange::V6(first, last), IpAddr::V6(ip)) => (first..=last).contains(&ip.to_bits()),
        _ => false,
    }
}
