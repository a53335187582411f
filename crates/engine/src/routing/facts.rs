//! Facts about a client beside its address, and low bits of addresses: values that rules compare one by one, since no
//! configuration has many of them.

use std::net::IpAddr;

use adit_model::rule::{Fact, PortRange, Suffix};
use adit_proto::wire::Host;
use regex::bytes::{Regex, RegexBuilder};

use super::lists::short;
use super::{Node, Query};

/// More about a client, as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientFacts<'a> {
    /// The port of this machine that it came to.
    pub port: Option<u16>,
    /// The protocol by which it asks, in any case.
    pub entry: Option<&'a str>,
    /// Path of its program.
    pub process: Option<&'a str>,
    /// The user that its program runs as.
    pub uid: Option<u32>,
    /// Its program has been sought: nothing more will be known about it.
    pub is_sought: bool,
    /// Differentiated services code point of its packets; 0 if it is not known.
    pub dscp: u8,
    /// The address that it asked for, where the target is a name that stands behind it. Every rule sees it, and the name
    /// is not looked up.
    pub asked_for: Option<IpAddr>,
}

/// The facts that rules ask for.
#[derive(Debug, Default)]
pub(super) struct RequestFacts {
    facts: Vec<(Fact, Option<Regex>)>,
    suffixes: Vec<Box<[Suffix]>>,
}

impl RequestFacts {
    /// The node of a fact; `None` for a regular expression that cannot be used.
    pub(super) fn add(&mut self, fact: &Fact) -> Option<Node> {
        let regex = match fact {
            Fact::ProcessNameRegex(text) | Fact::ProcessPathRegex(text) => {
                let mut builder = RegexBuilder::new(text);
                Some(builder.unicode(false).case_insensitive(true).size_limit(1 << 20).build().ok()?)
            }
            Fact::Named
            | Fact::SourceSuffix(_)
            | Fact::InboundPort(_)
            | Fact::Entry(_)
            | Fact::ProcessName(_)
            | Fact::ProcessPath(_)
            | Fact::Uid(_)
            | Fact::Mark(_)
            | Fact::Dscp(_) => None,
        };
        self.facts.push((fact.clone(), regex));
        Some(Node::Fact(short(self.facts.len() - 1)))
    }

    /// The number of a list of suffixes.
    pub(super) fn add_suffixes(&mut self, suffixes: &[Suffix]) -> u32 {
        self.suffixes.push(suffixes.into());
        short(self.suffixes.len() - 1)
    }

    /// Whether one of the addresses has a suffix of the list.
    pub(super) fn has_suffix(&self, list: u32, ips: &[IpAddr]) -> bool {
        let suffixes = &self.suffixes[list as usize];
        suffixes.iter().any(|suffix| ips.iter().any(|ip| suffix.holds(*ip)))
    }

    /// Whether a fact is one about the client's program.
    pub(super) fn is_of_program(&self, fact: u32) -> bool {
        of_program(&self.facts[fact as usize].0)
    }

    /// Whether there is one about the client's program.
    pub(super) fn ask_program(&self) -> bool {
        self.facts.iter().any(|(fact, _)| of_program(fact))
    }

    /// Whether there is one about the code point of the client's packets.
    pub(super) fn ask_class(&self) -> bool {
        self.facts.iter().any(|(fact, _)| matches!(fact, Fact::Dscp(_)))
    }

    /// Whether there is one about the port that the client came to.
    pub(super) fn ask_port(&self) -> bool {
        self.facts.iter().any(|(fact, _)| matches!(fact, Fact::InboundPort(_)))
    }

    /// Whether a fact holds for a request with this mark.
    pub(super) fn holds(&self, fact: u32, query: &Query<'_>, mark: Option<&str>) -> bool {
        let (fact, regex) = &self.facts[fact as usize];
        let known = &query.known;
        let name = || known.process.and_then(|path| path.rsplit('/').next());
        let found = |text: Option<&str>| {
            text.zip(regex.as_ref()).is_some_and(|(text, regex)| regex.is_match(text.as_bytes()))
        };
        match fact {
            Fact::Named => matches!(query.target.host, Host::Name(_)),
            Fact::SourceSuffix(suffixes) => {
                query.source.is_some_and(|from| suffixes.iter().any(|suffix| suffix.holds(from.ip())))
            }
            Fact::InboundPort(ranges) => known.port.is_some_and(|port| within(ranges, port)),
            Fact::Entry(words) => {
                known.entry.is_some_and(|entry| words.iter().any(|word| word.eq_ignore_ascii_case(entry)))
            }
            Fact::ProcessName(names) => {
                name().is_some_and(|name| names.iter().any(|other| same(name, other)))
            }
            Fact::ProcessPath(paths) => {
                known.process.is_some_and(|path| paths.iter().any(|other| same(path, other)))
            }
            Fact::ProcessNameRegex(_) => found(name()),
            Fact::ProcessPathRegex(_) => found(known.process),
            Fact::Uid(ranges) => known
                .uid
                .is_some_and(|uid| ranges.iter().any(|range| (range.first..=range.last).contains(&uid))),
            Fact::Dscp(ranges) => within(ranges, known.dscp.into()),
            Fact::Mark(words) => mark.is_some_and(|mark| words.iter().any(|word| **word == *mark)),
        }
    }
}

fn of_program(fact: &Fact) -> bool {
    match fact {
        Fact::ProcessName(_)
        | Fact::ProcessPath(_)
        | Fact::ProcessNameRegex(_)
        | Fact::ProcessPathRegex(_)
        | Fact::Uid(_) => true,
        Fact::Named
        | Fact::SourceSuffix(_)
        | Fact::InboundPort(_)
        | Fact::Entry(_)
        | Fact::Dscp(_)
        | Fact::Mark(_) => false,
    }
}

fn within(ranges: &[PortRange], number: u16) -> bool {
    ranges.iter().any(|range| (range.first..=range.last).contains(&number))
}

/// Whether two texts are the same but for their case.
fn same(a: &str, b: &str) -> bool {
    a.chars().flat_map(char::to_lowercase).eq(b.chars().flat_map(char::to_lowercase))
}
