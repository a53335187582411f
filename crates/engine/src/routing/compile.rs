//! From rules to tables.

use adit_model::HostTable;
use adit_model::entries::{Entries, Scope, Sets};
use adit_model::map::Map;
use adit_model::rule::{Cidr, Country, FileLine, FindProgram, Matcher, PortRange, Resolve, Rule};
use thiserror::Error;

use super::facts::RequestFacts;
use super::lists::{NumberedLists, short};
use super::ranges::{AddressBuilder, RangeTableBuilder};
use super::words::{Keywords, Regexes};
use super::{Compiled, Node, Router, Table, names};

/// Deepest tree of a rule.
const MAX_DEPTH: usize = 64;

/// Why rules are no router.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{at}: {problem}")]
pub struct CompileError {
    /// The rule.
    pub at: FileLine,
    /// The problem with it.
    pub problem: CompileProblem,
}

/// The problem with a rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CompileProblem {
    /// It names a set that was not loaded.
    #[error("no such set: {0}")]
    NoSet(Box<str>),
    /// It names a country that was not loaded.
    #[error("no addresses of country {0}: the database of countries lacks it")]
    NoCountry(Country),
    /// It is nested too deep.
    #[error("and, or and not are nested deeper than 64 levels")]
    Deep,
    /// A regular expression that cannot be used.
    #[error("bad or too large regular expression: {0}")]
    Regex(Box<str>),
    /// The keywords of all rules together are too many.
    #[error("the keywords of all rules do not fit into one table")]
    Keywords,
}

/// Tables that can make a matcher true; `None` if it can be true without any.
type Guard = Option<Vec<(Table, u32)>>;

#[derive(Default)]
struct Compiler<'a> {
    sets: Option<&'a Sets>,
    nodes: Vec<Node>,
    words: Vec<u32>,
    names: names::NameTreeBuilder,
    keywords: Vec<(Box<str>, u32)>,
    regexes: Vec<(Box<str>, u32)>,
    facts: RequestFacts,
    addresses: AddressBuilder,
    sources: AddressBuilder,
    ports: RangeTableBuilder<u16>,
    source_ports: RangeTableBuilder<u16>,
    /// Number of atoms by table.
    atoms: [u32; Table::COUNT],
    /// Pairs of atom and rule by table.
    candidates: [Vec<(u32, u32)>; Table::COUNT],
    /// Atoms of sets and countries, which many rules share.
    set_names: Map<&'a str, Vec<Node>>,
    set_addresses: Map<&'a str, u32>,
    set_sources: Map<&'a str, u32>,
    countries: Map<Country, u32>,
    inbounds: Vec<Box<str>>,
    users: Vec<Box<str>>,
    protocols: Vec<Box<str>>,
}

/// The tables of `rules`.
pub(super) fn compile(rules: &[Rule], sets: &Sets) -> Result<Router, CompileError> {
    let mut compiler = Compiler { sets: Some(sets), ..Compiler::default() };
    compiler.collect_words(rules);
    let (mut compiled, mut scan, mut asking) = (Vec::with_capacity(rules.len()), Vec::new(), Vec::new());
    for (n, rule) in (0..).zip(rules) {
        let root = compiler
            .node(&rule.matcher, 0)
            .map_err(|problem| CompileError { at: rule.at.clone(), problem })?;
        match compiler.guard(root) {
            None => scan.push(n),
            Some(atoms) => {
                if compiler.asks(root) && atoms.iter().any(|(table, _)| *table == Table::Address) {
                    asking.push(n);
                }
                for (table, atom) in atoms {
                    compiler.candidates[table as usize].push((atom, n));
                }
            }
        }
        compiled.push(Compiled { root, verdict: rule.verdict.clone(), at: rule.at.clone() });
    }
    compiler.finish(compiled, scan, asking)
}

impl<'a> Compiler<'a> {
    /// Numbers the inbounds, users and protocols that rules name, in sorted order.
    fn collect_words(&mut self, rules: &[Rule]) {
        for rule in rules {
            rule.matcher.visit(&mut |matcher| {
                if let Matcher::Inbound(names) = matcher {
                    self.inbounds.extend(names.iter().map(|name| (**name).into()));
                } else if let Matcher::User(names) = matcher {
                    self.users.extend_from_slice(names);
                } else if let Matcher::Protocol(names) = matcher {
                    self.protocols.extend_from_slice(names);
                }
            });
        }
        for words in [&mut self.inbounds, &mut self.users, &mut self.protocols] {
            words.sort_unstable();
            words.dedup();
        }
    }

    fn atom(&mut self, table: Table) -> u32 {
        let count = &mut self.atoms[table as usize];
        *count += 1;
        *count - 1
    }

    fn node(&mut self, matcher: &Matcher, depth: usize) -> Result<Node, CompileProblem> {
        if depth > MAX_DEPTH {
            return Err(CompileProblem::Deep);
        }
        Ok(match matcher {
            Matcher::Domain(names) => self.names_of(names, Scope::Exact),
            Matcher::DomainSuffix(names) => self.names_of(names, Scope::Tree),
            Matcher::DomainKeyword(words) => {
                let atom = self.atom(Table::Keyword);
                self.keywords.extend(words.iter().map(|word| (word.to_ascii_lowercase().into(), atom)));
                Node::Atom(Table::Keyword, atom)
            }
            Matcher::DomainRegex(regexes) => self.regexes_of(regexes),
            Matcher::IpCidr(networks, resolve) => {
                let atom = self.atom(Table::Address);
                self.addresses.add(atom, &entries(networks));
                Node::Address(atom, *resolve)
            }
            Matcher::GeoIp(countries, resolve) => {
                let nodes = countries.iter().map(|code| self.country(*code, *resolve));
                let nodes = nodes.collect::<Result<_, _>>()?;
                self.group(nodes, Node::Or)
            }
            Matcher::Set(tags, resolve) => {
                let mut nodes = Vec::new();
                for tag in tags {
                    self.set(tag, *resolve, &mut nodes)?;
                }
                self.group(nodes, Node::Or)
            }
            Matcher::Source(networks) => {
                let atom = self.atom(Table::Source);
                self.sources.add(atom, &entries(networks));
                Node::Atom(Table::Source, atom)
            }
            Matcher::SourceSet(tags) => {
                let nodes = tags.iter().map(|tag| self.source_set(tag)).collect::<Result<_, _>>()?;
                self.group(nodes, Node::Or)
            }
            Matcher::Port(ranges) => self.ports_of(Table::Port, ranges),
            Matcher::SourcePort(ranges) => self.ports_of(Table::SourcePort, ranges),
            Matcher::Unresolved => Node::Unresolved,
            Matcher::Network(network) => Node::Network(*network),
            Matcher::Inbound(tags) => {
                let numbers = tags.iter().filter_map(|tag| super::find(&self.inbounds, tag)).collect();
                self.listed(numbers, Node::Inbound)
            }
            Matcher::User(names) => {
                let numbers = names.iter().filter_map(|name| super::find(&self.users, name)).collect();
                self.listed(numbers, Node::User)
            }
            Matcher::Protocol(names) => {
                let numbers = names.iter().filter_map(|name| super::find(&self.protocols, name)).collect();
                self.listed(numbers, Node::Protocol)
            }
            Matcher::IpSuffix(suffixes, resolve) => Node::Suffix(self.facts.add_suffixes(suffixes), *resolve),
            Matcher::Fact(fact) => {
                self.facts.add(fact).ok_or_else(|| CompileProblem::Regex(fact.key().into()))?
            }
            Matcher::And(all) | Matcher::Or(all) => {
                let nodes = all.iter().map(|one| self.node(one, depth + 1)).collect::<Result<_, _>>()?;
                self.group(nodes, if matches!(matcher, Matcher::And(_)) { Node::And } else { Node::Or })
            }
            Matcher::Not(one) => {
                let child = self.node(one, depth + 1)?;
                self.nodes.push(child);
                Node::Not(short(self.nodes.len() - 1))
            }
        })
    }

    fn names_of(&mut self, names: &[Box<str>], scope: Scope) -> Node {
        let atom = self.atom(Table::Name);
        names.iter().for_each(|name| self.names.add(name, scope, atom));
        Node::Atom(Table::Name, atom)
    }

    fn regexes_of(&mut self, regexes: &[Box<str>]) -> Node {
        let atom = self.atom(Table::Regex);
        self.regexes.extend(regexes.iter().map(|regex| (regex.clone(), atom)));
        Node::Atom(Table::Regex, atom)
    }

    fn ports_of(&mut self, table: Table, ranges: &[PortRange]) -> Node {
        let atom = self.atom(table);
        let builder = if table == Table::Port { &mut self.ports } else { &mut self.source_ports };
        ranges.iter().for_each(|range| builder.add(atom, range.first, range.last));
        Node::Atom(table, atom)
    }

    fn listed(&mut self, numbers: Vec<u32>, node: fn(u32, u32) -> Node) -> Node {
        let (first, count) = (short(self.words.len()), short(numbers.len()));
        self.words.extend(numbers);
        node(first, count)
    }

    /// Nodes side by side under one; a single one stands for itself.
    fn group(&mut self, nodes: Vec<Node>, parent: fn(u32, u32) -> Node) -> Node {
        if let [one] = *nodes {
            return one;
        }
        let first = short(self.nodes.len());
        self.nodes.extend_from_slice(&nodes);
        parent(first, short(nodes.len()))
    }

    /// The nodes of a set: its names, its regular expressions, its addresses, as far as it has them.
    fn set(&mut self, tag: &str, resolve: Resolve, nodes: &mut Vec<Node>) -> Result<(), CompileProblem> {
        let (tag, entries) = self.list(tag)?;
        if entries.has_names() {
            let known = self.set_names.get(tag).cloned();
            let found = known.unwrap_or_else(|| self.set_names_of(entries));
            nodes.extend_from_slice(&found);
            self.set_names.insert(tag, found);
        }
        if entries.has_addresses() {
            let known = self.set_addresses.get(tag).copied();
            let atom = known.unwrap_or_else(|| {
                let atom = self.atom(Table::Address);
                self.addresses.add(atom, entries);
                atom
            });
            self.set_addresses.insert(tag, atom);
            nodes.push(Node::Address(atom, resolve));
        }
        Ok(())
    }

    /// The nodes of the names, the words and the regular expressions of a set.
    fn set_names_of(&mut self, entries: &Entries) -> Vec<Node> {
        let name = self.atom(Table::Name);
        entries.names().for_each(|(text, scope)| self.names.add(text, scope, name));
        let mut nodes = vec![Node::Atom(Table::Name, name)];
        if !entries.keywords.is_empty() {
            let atom = self.atom(Table::Keyword);
            let words = entries.keywords.iter();
            self.keywords.extend(words.map(|word| (word.to_ascii_lowercase().into(), atom)));
            nodes.push(Node::Atom(Table::Keyword, atom));
        }
        if !entries.regexes.is_empty() {
            nodes.push(self.regexes_of(&entries.regexes));
        }
        nodes
    }

    fn source_set(&mut self, tag: &str) -> Result<Node, CompileProblem> {
        let (tag, entries) = self.list(tag)?;
        let known = self.set_sources.get(tag).copied();
        let atom = known.unwrap_or_else(|| {
            let atom = self.atom(Table::Source);
            self.sources.add(atom, entries);
            atom
        });
        self.set_sources.insert(tag, atom);
        Ok(Node::Atom(Table::Source, atom))
    }

    /// A set with the name under which it is kept.
    fn list(&self, tag: &str) -> Result<(&'a str, &'a Entries), CompileProblem> {
        let found = self.sets.and_then(|sets| sets.named(tag));
        found.ok_or_else(|| CompileProblem::NoSet(tag.into()))
    }

    fn country(&mut self, code: Country, resolve: Resolve) -> Result<Node, CompileProblem> {
        if let Some(atom) = self.countries.get(&code) {
            return Ok(Node::Address(*atom, resolve));
        }
        let entries = self.sets.and_then(|sets| sets.country(code)).ok_or(CompileProblem::NoCountry(code))?;
        let atom = self.atom(Table::Address);
        self.addresses.add(atom, entries);
        self.countries.insert(code, atom);
        Ok(Node::Address(atom, resolve))
    }

    /// The atoms of which one must hold for the node to be true.
    fn guard(&self, node: Node) -> Guard {
        match node {
            Node::Atom(table, atom) => Some(vec![(table, atom)]),
            Node::Address(atom, _) => Some(vec![(Table::Address, atom)]),
            Node::And(first, count) => {
                let guards = self.children(first, count).iter().filter_map(|node| self.guard(*node));
                guards.min_by_key(|atoms| atoms.iter().map(|(table, _)| *table).max())
            }
            Node::Or(first, count) => {
                let guards: Option<Vec<_>> =
                    self.children(first, count).iter().map(|node| self.guard(*node)).collect();
                Some(guards?.concat())
            }
            Node::Unresolved
            | Node::Suffix(..)
            | Node::Fact(_)
            | Node::Network(_)
            | Node::Inbound(..)
            | Node::User(..)
            | Node::Protocol(..)
            | Node::Not(_) => None,
        }
    }

    /// Whether the node may depend on addresses that have to be looked up.
    fn asks(&self, node: Node) -> bool {
        match node {
            Node::Address(_, resolve) | Node::Suffix(_, resolve) => resolve == Resolve::Yes,
            Node::Unresolved => true,
            Node::And(first, count) | Node::Or(first, count) => {
                self.children(first, count).iter().any(|node| self.asks(*node))
            }
            Node::Not(child) => self.asks(self.nodes[child as usize]),
            Node::Atom(..)
            | Node::Fact(_)
            | Node::Network(_)
            | Node::Inbound(..)
            | Node::User(..)
            | Node::Protocol(..) => false,
        }
    }

    fn children(&self, first: u32, count: u32) -> &[Node] {
        &self.nodes[first as usize..first as usize + count as usize]
    }

    fn finish(self, rules: Vec<Compiled>, scan: Vec<u32>, asking: Vec<u32>) -> Result<Router, CompileError> {
        let at_start = |problem| CompileError {
            at: rules.first().map_or_else(|| FileLine::file("rules"), |rule| rule.at.clone()),
            problem,
        };
        let keywords = Keywords::new(&self.keywords).ok_or_else(|| at_start(CompileProblem::Keywords))?;
        let regexes = Regexes::new(&self.regexes)
            .map_err(|at| at_start(CompileProblem::Regex(self.regexes[at].0.clone())))?;
        let candidates = Table::ALL.map(|table| {
            NumberedLists::grouped(self.atoms[table as usize] as usize, &self.candidates[table as usize])
        });
        // In the order of the numbers of tables, which is that of `Table::ALL`.
        let first = Table::ALL.map(|table| candidates[table as usize].least().unwrap_or(u32::MAX));
        let judges_clients = self.atoms[Table::Source as usize] > 0;
        Ok(Router {
            rules: rules.into(),
            nodes: self.nodes.into(),
            words: self.words.into(),
            names: self.names.finish(),
            keywords,
            regexes,
            facts: self.facts,
            find_program: FindProgram::default(),
            hosts: HostTable::default(),
            hosts_are_known: false,
            addresses: self.addresses.finish(),
            sources: self.sources.finish(),
            ports: self.ports.finish(),
            source_ports: self.source_ports.finish(),
            candidates,
            first,
            scan: scan.into(),
            asking: asking.into(),
            inbounds: self.inbounds.into(),
            users: self.users.into(),
            protocols: self.protocols.into(),
            judges_clients,
            sniffing: None,
            labels: Box::default(),
        })
    }
}

fn entries(networks: &[Cidr]) -> Entries {
    let mut entries = Entries::default();
    networks.iter().for_each(|network| entries.add_range(network.range()));
    entries
}
