//! The router: which outbound a request takes, or that it is refused.
//!
//! Rules are asked in order and the first that matches decides; if none does, the request takes the outbound of its
//! inbound. Nothing here does I/O: where the answer depends on the addresses of a name, [`Router::decide`] says so, and
//! the caller asks again with them.
//!
//! ```text
//! rules, sets -> compile -> tables: names, keywords, regexes, addresses, sources, ports -> atoms
//!                                   atoms -> rules that an atom can make true
//! query -> atoms that hold -> candidates in order -> the first whose tree is true
//! ```
//!
//! An *atom* is one list of values of one kind: the values of one key, or the names or the addresses of one set. A
//! table tells at once which of its atoms hold for a query. A rule whose tree needs an atom (all but negations and keys
//! like `network`) is a candidate only if that atom holds, so that most rules are never looked at. A table is asked
//! when the walk reaches the first rule that needs it, and once per query.

mod access;
mod compile;
mod explain;
mod facts;
mod fuzz;
mod label;
mod lists;
mod names;
mod ranges;
mod sniff;
#[cfg(test)]
mod tests;
mod walk;
mod words;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use adit_model::entries::Sets;
use adit_model::rule::{FileLine, FindProgram, Network, Resolve, Rule, Verdict};
use adit_model::{Config, Dial, Dns, HostTable, Outbound, OutboundProtocol, RuleLine, Tag};
pub use adit_proto::wire::Target;

pub use self::compile::{CompileError, CompileProblem};
pub use self::explain::{Explanation, Step, fuzz_route};
pub use self::facts::ClientFacts;
use self::facts::RequestFacts;
pub use self::label::line;
use self::lists::NumberedLists;
use self::names::NameTree;
use self::ranges::{Addresses, Ranges};
pub use self::sniff::{Glimpse, Sniffing};
use self::walk::{Truth, Walk};
use self::words::{Keywords, Regexes};

/// Name of the direct outbound that access lists of clients refer to.
pub const DIRECT: &str = "direct";

/// The rules of a configuration as tables, built once per process and shared by all event loops.
#[derive(Debug)]
pub struct Router {
    rules: Box<[Compiled]>,
    nodes: Box<[Node]>,
    /// Numbers of inbounds, users and protocols that keys list.
    words: Box<[u32]>,
    names: NameTree,
    keywords: Keywords,
    regexes: Regexes,
    facts: RequestFacts,
    /// When the program of a client is sought.
    find_program: FindProgram,
    /// Names with fixed addresses, which every rule sees.
    hosts: HostTable,
    /// Whether rules see the addresses of these names without a look-up.
    hosts_are_known: bool,
    addresses: Addresses,
    sources: Addresses,
    ports: Ranges<u16>,
    source_ports: Ranges<u16>,
    /// For each [`Table`], the rules that each of its atoms can make true.
    candidates: [NumberedLists; Table::COUNT],
    /// The first rule in each of these lists; `u32::MAX` where there is none.
    first: [u32; Table::COUNT],
    /// Rules that can be true without any atom.
    scan: Box<[u32]>,
    /// Rules that may ask for the addresses of a name.
    asking: Box<[u32]>,
    inbounds: Box<[Box<str>]>,
    users: Box<[Box<str>]>,
    protocols: Box<[Box<str>]>,
    /// Whether a rule can refuse a client by its address alone.
    judges_clients: bool,
    /// The requests whose first bytes are looked at for a name, if there are any.
    sniffing: Option<Box<Sniffing>>,
    /// The rules as control programs show them, if there are any.
    labels: Box<[Option<Arc<RuleLine>>]>,
}

#[derive(Debug)]
struct Compiled {
    root: Node,
    verdict: Verdict,
    at: FileLine,
}

/// A part of a rule.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Node {
    /// An atom holds.
    Atom(Table, u32),
    /// An atom of [`Table::Address`] holds.
    Address(u32, Resolve),
    /// A suffix of [`RequestFacts`] is that of an address.
    Suffix(u32, Resolve),
    /// One of [`RequestFacts`] holds.
    Fact(u32),
    Unresolved,
    Network(Network),
    /// The number of the inbound is among these of [`Router::words`]: first and count.
    Inbound(u32, u32),
    User(u32, u32),
    Protocol(u32, u32),
    /// Nodes that lie side by side: first and count.
    And(u32, u32),
    Or(u32, u32),
    Not(u32),
}

/// The table that an atom belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Table {
    Name,
    Port,
    Source,
    SourcePort,
    Keyword,
    Regex,
    Address,
}

impl Table {
    const COUNT: usize = 7;
    /// The cheapest first.
    const ALL: [Self; Self::COUNT] =
        [Self::Name, Self::Port, Self::Source, Self::SourcePort, Self::Keyword, Self::Regex, Self::Address];
}

/// A request, as rules see it.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Name of the inbound.
    pub inbound: &'a str,
    /// Address of the client, if it has one.
    pub source: Option<SocketAddr>,
    /// The user as whom the client authenticated.
    pub user: Option<&'a str>,
    /// Kind of traffic.
    pub network: Network,
    /// Target that the client asks for.
    pub target: &'a Target,
    /// The protocol that the client speaks to the target, as far as it is known.
    pub protocol: Option<&'a str>,
    /// More about the client, as far as it is known.
    pub known: ClientFacts<'a>,
}

/// Result of the rules for a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RouteOutcome<'r> {
    /// A rule, or the absence of one, decides.
    Decided(RouteDecision<'r>),
    /// It depends on the addresses of the target's name: look it up and ask again, with no address if there is none.
    NeedsAddresses,
    /// It depends on the client's program: seek it and ask again, with [`ClientFacts::is_sought`] set.
    NeedsProgram,
}

/// The decision about a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouteDecision<'r> {
    /// The verdict.
    pub verdict: &'r Verdict,
    /// The rule that decided, by its place in the order of rules from 0; `None` if none matched.
    pub rule: Option<usize>,
    /// The given addresses of a name took part. If there are any and the outbound dials targets itself, it must dial
    /// these and no others: a name that answers differently the second time must not get past the rules.
    pub judged: bool,
}

/// The rules of a configuration in the order in which they are asked, access lists first, with the lists they refer to
/// added to `sets`.
pub fn rules_of(config: &Config, sets: &mut Sets) -> Vec<Rule> {
    let mut rules = access::rules(config, &DIRECT.into(), sets);
    rules.extend_from_slice(&config.rules);
    rules
}

/// The outbound named [`DIRECT`] that a configuration needs and does not have: access lists of clients send targets to
/// it, and fallback servers are reached through it. It has the socket options of the first outbound that is no group.
pub fn implied_direct(config: &Config) -> Option<Outbound> {
    let has_lists = config.acl.is_some() || !config.acl_of.is_empty();
    let has_fallback = config.inbounds.iter().any(|inbound| !inbound.fallback().is_empty());
    if !(has_lists || has_fallback) || config.outbound(DIRECT).is_some() {
        return None;
    }
    let is_leaf = |outbound: &&Outbound| !outbound.protocol.is_group();
    let dial = config.outbounds.iter().find(is_leaf).map(|outbound| outbound.dial.clone());
    let dial = Dial { fast_open: false, unix: None, carrier: None, ..dial.unwrap_or_default() };
    Some(Outbound { name: DIRECT.into(), dial, protocol: OutboundProtocol::Direct })
}

/// No rules.
impl Default for Router {
    fn default() -> Self {
        Self::new(&[], &Sets::default()).expect("no rule refers to anything")
    }
}

impl Router {
    /// The tables of a configuration's rules; `sets` is not needed afterwards.
    ///
    /// # Errors
    /// A rule that refers to a set that is not there, or that is too large.
    pub fn compile(config: &Config, mut sets: Sets) -> Result<Self, CompileError> {
        let rules = rules_of(config, &mut sets);
        let mut router = Self::new(&rules, &sets)?.with_settings(config);
        let sniffing =
            config.sniffer.as_ref().map(|sniffer| Sniffing::compile(sniffer, &sets)).transpose()?;
        router.sniffing = sniffing.map(Box::new);
        if config.controller.is_some() {
            router.labels = label::labels(config, &rules);
        }
        Ok(router)
    }

    /// The tables of these rules.
    ///
    /// # Errors
    /// As [`Router::compile`].
    pub fn new(rules: &[Rule], sets: &Sets) -> Result<Self, CompileError> {
        compile::compile(rules, sets)
    }

    /// The same with the settings of a configuration beside its rules: when programs of clients are sought, and the names
    /// that it gives addresses, if it has every rule see these; nobody looks such names up then.
    #[must_use]
    pub fn with_settings(mut self, config: &Config) -> Self {
        self.find_program = config.find_program;
        self.hosts = if config.dns.system_hosts_are_known {
            let mut dns = Dns { aliases: config.dns.aliases.clone(), ..Dns::default() };
            dns.hosts.clone_from(&config.dns.hosts);
            let is_new = |name: &str| !config.dns.hosts.iter().any(|(known, _)| **known == *name);
            dns.hosts.extend(crate::dns::system_hosts().into_iter().filter(|(name, _)| is_new(name)));
            HostTable::new(&dns)
        } else {
            HostTable::new(&config.dns)
        };
        self.hosts_are_known = config.dns.hosts_are_known;
        self
    }

    /// The name that `name` stands for, by the hosts of the configuration.
    pub fn alias(&self, name: &str) -> Option<&str> {
        self.hosts.alias(name)
    }

    /// The addresses that every rule sees for a name in lower case.
    fn known_addresses(&self, name: &str) -> Option<&[IpAddr]> {
        if self.hosts_are_known { self.hosts.addresses(name) } else { None }
    }

    /// The decision about a request. `addresses` are those of the target's name, once it has been looked up.
    ///
    /// It takes microseconds and allocates little, however many rules there are.
    pub fn decide(&self, query: &Query<'_>, addresses: Option<&[IpAddr]>) -> RouteOutcome<'_> {
        self.decide_with(query, addresses, &|_| false)
    }

    /// The same, where `asked` tells of a group whether the member that is chosen passes such a request on.
    pub fn decide_with(
        &self,
        query: &Query<'_>,
        addresses: Option<&[IpAddr]>,
        asked: &dyn Fn(&Tag) -> bool,
    ) -> RouteOutcome<'_> {
        Walk::new(self, query, addresses).decide(asked)
    }

    /// Whether a rule, or a part of one, asks for the protocol that the client speaks to its target.
    pub fn needs_protocol(&self) -> bool {
        !self.protocols.is_empty()
    }

    /// Whether the protocol, which is not known yet, can change the decision about a request.
    pub fn depends_on_protocol(&self, query: &Query<'_>) -> bool {
        let decide = |protocol| self.decide(&Query { protocol, ..*query }, None);
        let mut protocols = self.protocols.iter();
        let Some(first) = protocols.next() else { return false };
        let unknown = decide(None);
        // With the addresses of a name, which are asked for later, it may matter.
        matches!(unknown, RouteOutcome::NeedsAddresses | RouteOutcome::NeedsProgram)
            || decide(Some(first)) != unknown
            || protocols.any(|protocol| decide(Some(protocol)) != unknown)
    }

    /// The requests whose first bytes are looked at for the name of their target, if there are any.
    pub fn sniffing(&self) -> Option<&Sniffing> {
        self.sniffing.as_deref()
    }

    /// Whether the program of every client is sought, or that of none.
    pub fn find_program(&self) -> FindProgram {
        self.find_program
    }

    /// Whether decisions may ask for the client's program, or for the port that it came to.
    pub fn asks_client(&self) -> bool {
        let by_rules = self.find_program == FindProgram::ByRules && self.facts.ask_program();
        by_rules || self.find_program == FindProgram::Always || self.facts.ask_port()
    }

    /// Whether decisions ask for the code point of the client's packets.
    pub fn asks_class(&self) -> bool {
        self.facts.ask_class()
    }

    /// Whether a fact is one for which the client's program has to be sought.
    fn seeks(&self, fact: u32) -> bool {
        self.find_program != FindProgram::Never && self.facts.is_of_program(fact)
    }

    /// Whether a client at this address is taken in at all: false if the rules refuse it, wherever it wants to go.
    pub fn accepts(&self, inbound: &str, client: IpAddr) -> bool {
        !self.judges_clients || self.refusal(inbound, client).is_none()
    }

    /// The first rule that refuses a client by its address alone.
    fn refusal(&self, inbound: &str, client: IpAddr) -> Option<usize> {
        let mut sources = Vec::new();
        self.sources.find(client, &mut sources);
        let inbound = find(&self.inbounds, inbound);
        for (n, rule) in self.rules.iter().enumerate() {
            match (self.of_client(rule.root, inbound, &sources), &rule.verdict) {
                (Truth::No, _) => {}
                (Truth::Yes, Verdict::Reject(_)) if self.names_clients(rule.root) => return Some(n),
                (Truth::Yes | Truth::Unknown, _) => return None,
            }
        }
        None
    }

    /// Whether a rule is about addresses of clients; one that is not refuses requests, not clients.
    fn names_clients(&self, node: Node) -> bool {
        match node {
            Node::And(first, count) | Node::Or(first, count) => {
                self.children(first, count).iter().any(|node| self.names_clients(*node))
            }
            Node::Not(child) => self.names_clients(self.nodes[child as usize]),
            Node::Atom(table, _) => table == Table::Source,
            Node::Address(..)
            | Node::Suffix(..)
            | Node::Fact(_)
            | Node::Unresolved
            | Node::Network(_)
            | Node::Inbound(..)
            | Node::User(..)
            | Node::Protocol(..) => false,
        }
    }

    /// The truth of a rule as far as the client's address alone decides it.
    fn of_client(&self, node: Node, inbound: Option<u32>, sources: &[u32]) -> Truth {
        match node {
            Node::Atom(Table::Source, atom) => sources.contains(&atom).into(),
            Node::Inbound(first, count) => self.lists(first, count, inbound).into(),
            Node::And(first, count) => Truth::all(
                self.children(first, count).iter().map(|node| self.of_client(*node, inbound, sources)),
            ),
            Node::Or(first, count) => Truth::any(
                self.children(first, count).iter().map(|node| self.of_client(*node, inbound, sources)),
            ),
            Node::Not(child) => self.of_client(self.nodes[child as usize], inbound, sources).not(),
            Node::Atom(..)
            | Node::Address(..)
            | Node::Suffix(..)
            | Node::Fact(_)
            | Node::Unresolved
            | Node::Network(_)
            | Node::User(..)
            | Node::Protocol(..) => Truth::Unknown,
        }
    }

    fn children(&self, first: u32, count: u32) -> &[Node] {
        &self.nodes[first as usize..first as usize + count as usize]
    }

    /// Whether `word` is among those of a key.
    fn lists(&self, first: u32, count: u32, word: Option<u32>) -> bool {
        let words = &self.words[first as usize..first as usize + count as usize];
        word.is_some_and(|word| words.contains(&word))
    }

    /// A rule as control programs show it.
    pub fn label(&self, rule: usize) -> Option<&Arc<RuleLine>> {
        self.labels.get(rule)?.as_ref()
    }

    /// Position of a rule in the configuration.
    pub fn place(&self, rule: usize) -> Option<&FileLine> {
        self.rules.get(rule).map(|rule| &rule.at)
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Bytes of memory of all tables, but for the automata of regular expressions, which do not tell theirs.
    pub fn memory(&self) -> usize {
        let texts = [&self.inbounds, &self.users, &self.protocols];
        let texts: usize = texts.into_iter().flatten().map(|text| text.len() + size_of_val(text)).sum();
        let lists: usize = self.candidates.iter().map(NumberedLists::memory).sum();
        size_of_val(&*self.rules)
            + size_of_val(&*self.nodes)
            + size_of_val(&*self.words)
            + size_of_val(&*self.scan)
            + size_of_val(&*self.asking)
            + self.names.memory()
            + self.keywords.memory()
            + self.regexes.memory()
            + self.addresses.memory()
            + self.sources.memory()
            + self.ports.memory()
            + self.source_ports.memory()
            + lists
            + texts
    }
}

/// The number of a word in a sorted list.
fn find(words: &[Box<str>], word: &str) -> Option<u32> {
    words.binary_search_by(|known| (**known).cmp(word)).ok().map(lists::short)
}
