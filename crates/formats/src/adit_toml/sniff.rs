//! `[sniff]`: names of targets that are read from the first bytes of clients.

use std::fmt;

use adit_model::rule::{Cidr, Matcher, PortRange, Resolve, Set};
use adit_model::{SniffPorts, Sniffer, Tag};

use super::fields::{Spanned, TomlFields, TomlReport};
use super::keys::TomlTable;
use super::rows::rule::{OneOrMany, cidr};
use super::rows::sniff as rows;
use super::rows::{self as all_rows};
use super::write::{TableEntries, Writer};
use crate::read::value::{Problem, excerpt};

/// Ports of TLS and QUIC, and of HTTP, if none is written.
const TLS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;

/// An entry of a list: itself, or the set of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SniffEntry<T> {
    /// Itself.
    One(T),
    /// A set.
    Set(Tag),
}

/// A name, and whether all names below it are meant too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name(Box<str>, bool);

pub(super) type SniffName = SniffEntry<Name>;
pub(super) type SniffNetwork = SniffEntry<Cidr>;

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name, with_below) = self;
        write!(f, "{}{name}", if *with_below { "+." } else { "" })
    }
}

impl<T: fmt::Display> fmt::Display for SniffEntry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(one) => one.fmt(f),
            Self::Set(name) => write!(f, "rule-set:{name}"),
        }
    }
}

impl<T> SniffEntry<T> {
    fn of(text: &str, one: impl FnOnce(&str) -> Result<T, Problem>) -> Result<Self, Problem> {
        let text = text.trim();
        match text.strip_prefix("rule-set:") {
            Some(set) => all_rows::name(set).map(|set| Self::Set(Tag::from(&*set))),
            None => one(text).map(Self::One),
        }
    }
}

impl SniffEntry<Name> {
    pub(crate) fn read(text: &str) -> Result<Self, Problem> {
        Self::of(text, |text| {
            let (name, with_below) = text.strip_prefix("+.").map_or((text, false), |name| (name, true));
            if name.starts_with('.') || name.contains('*') {
                let problem = Problem::new(format!("no name: {}", excerpt(text)));
                return Err(problem.hint("put patterns into a [[set]], and write rule-set: and its name"));
            }
            all_rows::rule::domain(name).map(|name| Name(name, with_below))
        })
    }
}

impl SniffEntry<Cidr> {
    pub(crate) fn read(text: &str) -> Result<Self, Problem> {
        Self::of(text, cidr)
    }
}

/// Reads the table; sets that it names are among `sets`.
pub(crate) fn read(mut fields: TomlFields<'_>, sets: &[Set], report: &mut TomlReport<'_>) -> Sniffer {
    let given = [&rows::TLS, &rows::HTTP, &rows::QUIC];
    let is_silent = given.iter().all(|row| !fields.has(row));
    let mut ports = |row, usual: u16, report: &mut TomlReport<'_>| {
        let written = fields.read(report, row).filter(|ports: &Vec<_>| !ports.is_empty());
        let usual = is_silent.then(|| vec![PortRange { first: usual, last: usual }]);
        written.map(|ports| ports.into_iter().map(|port: Spanned<_>| port.value).collect()).or(usual)
    };
    let tls = ports(&rows::TLS, TLS_PORT, report);
    let http = ports(&rows::HTTP, HTTP_PORT, report);
    let quic = ports(&rows::QUIC, TLS_PORT, report);
    let tls_override = fields.read(report, &rows::TLS_OVERRIDE).unwrap_or(true);
    let http_override = fields.read(report, &rows::HTTP_OVERRIDE).unwrap_or(true);
    let pure = fields.read(report, &rows::ADDRESSES).unwrap_or(true);
    let mapped = fields.read(report, &rows::MAPPED).unwrap_or(true);
    let force = names(list(&mut fields, sets, report, &rows::FORCE_DOMAIN));
    let ignore = names(list(&mut fields, sets, report, &rows::SKIP_DOMAIN));
    let (sources, source_sets) = parts(list(&mut fields, sets, report, &rows::SKIP_SOURCE));
    let (targets, target_sets) = parts(list(&mut fields, sets, report, &rows::SKIP_TARGET));
    fields.finish(report, None);
    let skip = any_of([
        some(sources).map(Matcher::Source),
        some(source_sets).map(Matcher::SourceSet),
        some(targets).map(|targets| Matcher::IpCidr(targets, Resolve::No)),
        some(target_sets).map(|sets| Matcher::Set(sets, Resolve::No)),
    ]);
    let of = |ports: Option<Vec<PortRange>>, overrides| ports.map(|ports| SniffPorts { ports, overrides });
    Sniffer {
        tls: of(tls, tls_override),
        http: of(http, http_override),
        datagrams: of(quic, true),
        skip,
        force,
        ignore,
        mapped,
        pure,
    }
}

/// A list whose sets are there.
fn list<T>(
    fields: &mut TomlFields<'_>,
    sets: &[Set],
    report: &mut TomlReport<'_>,
    row: &'static OneOrMany<SniffEntry<T>>,
) -> Vec<SniffEntry<T>> {
    let path = fields.path(row);
    let mut found = Vec::new();
    for entry in fields.read(report, row).unwrap_or_default() {
        if let SniffEntry::Set(name) = &entry.value
            && !sets.iter().any(|set| set.name == *name)
        {
            let problem = Problem::new(format!("no such set: {}", excerpt(name)));
            report.error(&entry.at, path.clone(), problem.hint("add a [[set]] of that name"));
            continue;
        }
        found.push(entry.value);
    }
    found
}

/// The entries themselves, and the sets.
fn parts<T>(entries: Vec<SniffEntry<T>>) -> (Vec<T>, Vec<Tag>) {
    let (mut ones, mut sets) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            SniffEntry::One(one) => ones.push(one),
            SniffEntry::Set(set) => sets.push(set),
        }
    }
    (ones, sets)
}

fn names(entries: Vec<SniffName>) -> Option<Matcher> {
    let (names, sets) = parts(entries);
    let (below, alone): (Vec<Name>, Vec<Name>) = names.into_iter().partition(|name| name.1);
    let plain = |names: Vec<Name>| some(names.into_iter().map(|name| name.0).collect());
    any_of([
        plain(alone).map(Matcher::Domain),
        plain(below).map(Matcher::DomainSuffix),
        some(sets).map(|sets| Matcher::Set(sets, Resolve::No)),
    ])
}

fn some<T>(all: Vec<T>) -> Option<Vec<T>> {
    (!all.is_empty()).then_some(all)
}

fn any_of<const N: usize>(all: [Option<Matcher>; N]) -> Option<Matcher> {
    some(all.into_iter().flatten().collect()).map(Matcher::Or)
}

/// Writes `[sniff]`.
pub(super) fn write(out: &mut Writer, sniffer: &Sniffer) {
    let mut table = TableEntries::default();
    let (tls, http) = (sniffer.tls.as_ref(), sniffer.http.as_ref());
    for (row, of) in [(&rows::TLS, tls), (&rows::HTTP, http), (&rows::QUIC, sniffer.datagrams.as_ref())] {
        table.put_some(row, of.map(|of| &*of.ports));
    }
    for (row, of) in [(&rows::TLS_OVERRIDE, tls), (&rows::HTTP_OVERRIDE, http)] {
        table.put_unless(row, &of.is_none_or(|of| of.overrides), &true);
    }
    table.put_unless(&rows::ADDRESSES, &sniffer.pure, &true);
    table.put_unless(&rows::MAPPED, &sniffer.mapped, &true);
    table.put_unless(&rows::FORCE_DOMAIN, &*names_of(sniffer.force.as_ref()), &[]);
    table.put_unless(&rows::SKIP_DOMAIN, &*names_of(sniffer.ignore.as_ref()), &[]);
    let (sources, targets) = networks_of(sniffer.skip.as_ref());
    table.put_unless(&rows::SKIP_SOURCE, &*sources, &[]);
    table.put_unless(&rows::SKIP_TARGET, &*targets, &[]);
    out.table(TomlTable::Sniff, &table);
}

/// The conditions of which one must hold.
fn alternatives(of: Option<&Matcher>) -> &[Matcher] {
    if let Some(Matcher::Or(all)) = of { all } else { &[] }
}

fn sets_of<T>(sets: &[Tag]) -> impl Iterator<Item = SniffEntry<T>> + use<'_, T> {
    sets.iter().map(|set| SniffEntry::Set(set.clone()))
}

fn names_of(of: Option<&Matcher>) -> Vec<SniffName> {
    let one = |name: &str, with_below| SniffEntry::One(Name(name.into(), with_below));
    let mut all = Vec::new();
    for part in alternatives(of) {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the table is read as these alone")]
        match part {
            Matcher::Domain(names) => all.extend(names.iter().map(|name| one(name, false))),
            Matcher::DomainSuffix(names) => all.extend(names.iter().map(|name| one(name, true))),
            Matcher::Set(sets, _) => all.extend(sets_of(sets)),
            _ => {}
        }
    }
    all
}

fn networks_of(of: Option<&Matcher>) -> (Vec<SniffNetwork>, Vec<SniffNetwork>) {
    let (mut sources, mut targets) = (Vec::new(), Vec::new());
    for part in alternatives(of) {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the table is read as these alone")]
        match part {
            Matcher::Source(networks) => sources.extend(networks.iter().copied().map(SniffEntry::One)),
            Matcher::SourceSet(sets) => sources.extend(sets_of(sets)),
            Matcher::IpCidr(networks, _) => targets.extend(networks.iter().copied().map(SniffEntry::One)),
            Matcher::Set(sets, _) => targets.extend(sets_of(sets)),
            _ => {}
        }
    }
    (sources, targets)
}

#[cfg(test)]
mod tests {
    use crate::adit_toml::{parse, to_toml};
    use adit_model::rule::{Matcher, PortRange};
    use adit_model::{SniffPorts, Sniffer};

    const REST: &str = "[[inbound]]\nprotocol = \"socks\"\nlisten = \"127.0.0.1:0\"\n\
                        [[set]]\nname = \"own\"\nentries = [\"+.own.test\", \"192.0.2.0/24\"]\n";

    fn load(text: &str) -> Option<Sniffer> {
        let config = parse("t", &format!("{text}\n{REST}")).unwrap_or_else(|found| panic!("{found}")).config;
        let again = parse("t", &to_toml(&config)).unwrap_or_else(|found| panic!("{found}")).config;
        assert_eq!(again.sniffer, config.sniffer, "{text}");
        config.sniffer
    }

    fn of(ports: &[(u16, u16)], overrides: bool) -> Option<SniffPorts> {
        let ports = ports.iter().map(|(first, last)| PortRange { first: *first, last: *last }).collect();
        Some(SniffPorts { ports, overrides })
    }

    #[test]
    fn protocols_and_their_ports() {
        assert_eq!(load(""), None);
        let usual = load("[sniff]").unwrap();
        assert_eq!(
            (&usual.tls, &usual.http, &usual.datagrams),
            (&of(&[(443, 443)], true), &of(&[(80, 80)], true), &of(&[(443, 443)], true))
        );
        assert!(usual.pure && usual.mapped && usual.skip.is_none());
        let own = load(
            "[sniff]\ntls = [443, \"8443-8450\"]\ntls-override = false\naddresses = false\nmapped = false",
        );
        let own = own.unwrap();
        assert_eq!(own.tls, of(&[(443, 443), (8443, 8450)], false));
        assert!(own.http.is_none() && own.datagrams.is_none() && !own.pure && !own.mapped);
    }

    #[test]
    fn lists_and_mistakes() {
        let lists = "[sniff]\nforce-domain = [\"a.test\", \"+.b.test\", \"rule-set:own\"]\nskip-domain = \"c.test\"\n\
                     skip-source = [\"192.0.2.7\", \"rule-set:own\"]\nskip-target = [\"10.0.0.0/8\", \"rule-set:own\"]";
        let found = load(lists).unwrap();
        let count = |matcher: Option<Matcher>| {
            let Some(Matcher::Or(all)) = matcher else { panic!() };
            all.len()
        };
        assert_eq!((count(found.force), count(found.ignore), count(found.skip)), (3, 1, 4));
        for (text, wants) in [
            ("tls = 70000", "sniff.tls: "),
            ("force-domain = \"rule-set:none\"", "sniff.force-domain: no such set: none"),
            ("force-domain = \"*.a.test\"", "sniff.force-domain: no name: *.a.test"),
            ("skip-target = \"10.0.0\"", "sniff.skip-target: bad network: 10.0.0"),
            ("enable = true", "sniff.enable"),
        ] {
            let found = parse("t", &format!("[sniff]\n{text}\n{REST}")).unwrap_err().to_string();
            assert!(found.contains(wants), "{text}: {found}");
        }
    }
}
