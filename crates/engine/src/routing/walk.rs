//! One query: the candidates among the rules, in order, until one is true.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::net::IpAddr;

use adit_model::Tag;
use adit_model::rule::{RejectMethod, Resolve, Verdict, normal_name};
use adit_proto::wire::Host;

use super::{Node, Query, RouteDecision, RouteOutcome, Router, Table, find};

/// Truth of a matcher, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Truth {
    No,
    Yes,
    /// It depends on something that has not been looked up.
    Unknown,
}

impl From<bool> for Truth {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

impl Truth {
    pub(super) fn not(self) -> Self {
        match self {
            Self::No => Self::Yes,
            Self::Yes => Self::No,
            Self::Unknown => Self::Unknown,
        }
    }

    /// Whether all hold. Nothing is asked behind the first that does not.
    pub(super) fn all(mut each: impl Iterator<Item = Self>) -> Self {
        let mut all = Self::Yes;
        while all != Self::No
            && let Some(truth) = each.next()
        {
            all = if truth == Self::Yes { all } else { truth };
        }
        all
    }

    /// Whether one holds. Nothing is asked behind the first that does.
    pub(super) fn any(each: impl Iterator<Item = Self>) -> Self {
        Self::all(each.map(Self::not)).not()
    }
}

/// Times that rules may be asked once more for one request.
const MAX_ROUNDS: u8 = 8;

/// The verdict for a request that goes round more often.
pub(super) static REFUSED: Verdict = Verdict::Reject(RejectMethod::Protocol);

/// Whether the rules are asked once more.
pub(super) enum Round {
    /// No.
    None,
    /// From this one on.
    From(u32),
    /// They would be, but have been too often.
    TooMany,
}

/// One query on its way through the rules.
pub(super) struct Walk<'r, 'q> {
    router: &'r Router,
    query: &'q Query<'q>,
    /// The target's name in lower case; `None` for an address.
    name: Option<Cow<'q, str>>,
    /// The target's addresses, if they are known.
    addresses: Option<&'q [IpAddr]>,
    /// Whether rules see the addresses: from the first rule on that asked for them.
    asked: bool,
    /// The mark that a rule left which had the rules asked once more, and how often that has been.
    mark: Option<&'r str>,
    rounds: u8,
    /// The truth of the rule at hand may depend on the client's program, which has not been sought.
    wants_program: Cell<bool>,
    /// The atoms that hold, by table, once they have been looked up.
    atoms: [OnceCell<Vec<u32>>; Table::COUNT],
}

/// Rules that are still to be looked at, in ascending lists.
struct Candidates<'r> {
    lists: Vec<&'r [u32]>,
    /// Tables that have not been asked.
    closed: Vec<Table>,
    /// Rules before this one have been looked at.
    from: u32,
}

impl<'r, 'q> Walk<'r, 'q> {
    pub(super) fn new(router: &'r Router, query: &'q Query<'q>, addresses: Option<&'q [IpAddr]>) -> Self
    where
        'r: 'q,
    {
        let (name, addresses, asked) = match &query.target.host {
            Host::Ip(ip) => (None, Some(std::slice::from_ref(ip)), true),
            Host::Name(name) => {
                let name = normal_name(name);
                let asked_for = query.known.asked_for.as_ref().map(std::slice::from_ref);
                match (asked_for, router.known_addresses(&name)) {
                    (Some(ip), _) => (Some(name), Some(ip), true),
                    (None, Some(fixed)) => (Some(name), Some(fixed), true),
                    (None, None) => (Some(name), addresses, false),
                }
            }
        };
        let (wants_program, atoms) = Default::default();
        Self { router, query, name, addresses, asked, mark: None, rounds: 0, wants_program, atoms }
    }

    /// `asked` tells of a group whether the member that is chosen passes the request on.
    pub(super) fn decide(&mut self, asked: &dyn Fn(&Tag) -> bool) -> RouteOutcome<'r> {
        let router = self.router;
        let mut left = Candidates::new(router);
        // Gone once addresses are known: the table of addresses tells the candidates then.
        let mut asking: &[u32] = if self.asked { &[] } else { &router.asking };
        loop {
            let next = left.next().min(asking.first().copied().unwrap_or(u32::MAX));
            if left.open(self, next) {
                continue;
            }
            let Some(rule) = router.rules.get(next as usize) else { break };
            left.pass(next);
            if asking.first() == Some(&next) {
                asking = &asking[1..];
            }
            match self.judge(rule.root) {
                Err(needs) => return needs,
                Ok(true) => match rule.verdict.passes(self.query.network, asked) {
                    None => match self.again(&rule.verdict) {
                        Round::None => return self.decided(&rule.verdict, Some(next as usize)),
                        Round::TooMany => return self.decided(&REFUSED, Some(next as usize)),
                        Round::From(at) => {
                            left = Candidates::new(router);
                            at.checked_sub(1).into_iter().for_each(|before| left.pass(before));
                            let all: &[u32] = if self.asked { &[] } else { &router.asking };
                            asking = &all[all.partition_point(|rule| *rule < at)..];
                        }
                    },
                    Some(count) => {
                        let last = next.saturating_add(count);
                        left.pass(last);
                        asking = &asking[asking.partition_point(|rule| *rule <= last)..];
                    }
                },
                Ok(false) => {}
            }
            if self.asked {
                asking = &[];
            }
        }
        self.decided(&Verdict::Default, None)
    }

    /// Begins another round through the rules, if the verdict asks for one.
    pub(super) fn again(&mut self, verdict: &'r Verdict) -> Round {
        let Verdict::Again { at, mark } = verdict else { return Round::None };
        if self.rounds == MAX_ROUNDS {
            return Round::TooMany;
        }
        self.rounds += 1;
        self.mark = mark.as_deref().or(self.mark);
        Round::From(*at)
    }

    /// Whether a rule is true; an error is the outcome that says what has to be known first.
    pub(super) fn judge(&mut self, root: Node) -> Result<bool, RouteOutcome<'r>> {
        self.wants_program.set(false);
        let mut truth = self.truth(root);
        // The program comes first: nobody else hears of such a question.
        if truth == Truth::Unknown && !self.wants_program.get() {
            if self.addresses.is_none() {
                return Err(RouteOutcome::NeedsAddresses);
            }
            self.asked = true;
            truth = self.truth(root);
        }
        if truth == Truth::Unknown { Err(RouteOutcome::NeedsProgram) } else { Ok(truth == Truth::Yes) }
    }

    pub(super) fn decided(&self, verdict: &'r Verdict, rule: Option<usize>) -> RouteOutcome<'r> {
        let judged = self.asked && self.name.is_some();
        RouteOutcome::Decided(RouteDecision { verdict, rule, judged })
    }

    /// Truth of a node, as far as it is known.
    pub(super) fn truth(&self, node: Node) -> Truth {
        let router = self.router;
        match node {
            Node::Atom(table, atom) => self.atoms(table).contains(&atom).into(),
            Node::Address(atom, resolve) => match (self.asked, resolve) {
                (true, _) => self.atoms(Table::Address).contains(&atom).into(),
                (false, Resolve::Yes) => Truth::Unknown,
                (false, Resolve::No) => Truth::No,
            },
            Node::Suffix(list, resolve) => match (self.asked, resolve) {
                (true, _) => router.facts.has_suffix(list, self.addresses.unwrap_or_default()).into(),
                (false, Resolve::Yes) => Truth::Unknown,
                (false, Resolve::No) => Truth::No,
            },
            Node::Fact(fact) if !self.query.known.is_sought && router.seeks(fact) => {
                self.wants_program.set(true);
                Truth::Unknown
            }
            Node::Fact(fact) => router.facts.holds(fact, self.query, self.mark).into(),
            Node::Unresolved if !self.asked => Truth::Unknown,
            Node::Unresolved => self.addresses.is_some_and(<[IpAddr]>::is_empty).into(),
            Node::Network(network) => (self.query.network == network).into(),
            Node::Inbound(first, count) => {
                router.lists(first, count, find(&router.inbounds, self.query.inbound)).into()
            }
            Node::User(first, count) => {
                router.lists(first, count, self.query.user.and_then(|user| find(&router.users, user))).into()
            }
            Node::Protocol(first, count) => {
                let protocol = self.query.protocol.and_then(|protocol| find(&router.protocols, protocol));
                router.lists(first, count, protocol).into()
            }
            Node::And(first, count) => {
                Truth::all(router.children(first, count).iter().map(|node| self.truth(*node)))
            }
            Node::Or(first, count) => {
                Truth::any(router.children(first, count).iter().map(|node| self.truth(*node)))
            }
            Node::Not(child) => self.truth(router.nodes[child as usize]).not(),
        }
    }

    /// The atoms of a table that hold. Addresses must have been asked for.
    fn atoms(&self, table: Table) -> &[u32] {
        self.atoms[table as usize].get_or_init(|| {
            let mut found = Vec::new();
            let (router, name) = (self.router, self.name.as_deref());
            match table {
                Table::Name => name.into_iter().for_each(|name| router.names.find(name, &mut found)),
                Table::Keyword => name.into_iter().for_each(|name| router.keywords.find(name, &mut found)),
                Table::Regex => name.into_iter().for_each(|name| router.regexes.find(name, &mut found)),
                Table::Address => {
                    for ip in self.addresses.unwrap_or_default() {
                        router.addresses.find(*ip, &mut found);
                    }
                }
                Table::Source => {
                    let source = self.query.source;
                    source.into_iter().for_each(|source| router.sources.find(source.ip(), &mut found));
                }
                Table::Port => router.ports.find(self.query.target.port, &mut found),
                Table::SourcePort => {
                    let source = self.query.source;
                    source.into_iter().for_each(|source| router.source_ports.find(source.port(), &mut found));
                }
            }
            found
        })
    }

    /// The name that is compared with the rules, for messages.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The addresses that rules see.
    pub(super) fn seen(&self) -> Option<&[IpAddr]> {
        self.addresses.filter(|_| self.asked)
    }

    /// The request.
    pub(super) fn query(&self) -> &Query<'q> {
        self.query
    }
}

impl<'r> Candidates<'r> {
    fn new(router: &'r Router) -> Self {
        let mut lists = Vec::with_capacity(8);
        lists.push(&*router.scan);
        Self { lists, closed: Table::ALL.to_vec(), from: 0 }
    }

    /// The next rule; `u32::MAX` if there is none.
    fn next(&self) -> u32 {
        self.lists.iter().filter_map(|list| list.first()).copied().min().unwrap_or(u32::MAX)
    }

    /// Asks the tables that rules up to `next` need; true if one was asked.
    fn open(&mut self, walk: &Walk<'r, '_>, next: u32) -> bool {
        let is_due = |table: &mut Table| {
            let first = walk.router.first[*table as usize];
            first <= next && first != u32::MAX && (*table != Table::Address || walk.asked)
        };
        let mut opened = false;
        while let Some(table) = self.closed.extract_if(.., is_due).next() {
            opened = true;
            for atom in walk.atoms(table) {
                let rules = walk.router.candidates[table as usize].of(*atom);
                // Of earlier rules the walk has had another opinion, before it knew addresses.
                let rules = &rules[rules.partition_point(|rule| *rule < self.from)..];
                if !rules.is_empty() {
                    self.lists.push(rules);
                }
            }
        }
        opened
    }

    /// Leaves `rule` and all before it behind.
    fn pass(&mut self, rule: u32) {
        self.from = rule.saturating_add(1);
        self.lists.retain_mut(|list| {
            while let Some((first, rest)) = list.split_first()
                && *first <= rule
            {
                *list = rest;
            }
            !list.is_empty()
        });
    }
}
