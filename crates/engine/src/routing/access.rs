//! Access lists of servers and clients as rules.
//!
//! A client's list sends targets to the direct outbound or leaves them to the tunnel. A server's list refuses targets,
//! and clients by their address. Names that the list does not hold are left to their addresses. Each list becomes a
//! handful of rules for its inbounds, independent of its length:
//!
//! | | unlisted targets are allowed | unlisted targets are not |
//! |---|---|---|
//! | clients | refused: sources in `no` | refused: sources outside `yes` |
//! | names, of clients | in `yes`: allowed; in `no`: not | the same |
//! | addresses as given | in `no`: not | in `no`: not |
//! | addresses of names | one in `no`: not | one in `yes`: allowed |
//!
//! Every server asks for names in `no` first, and a client where the list says so ([`Acl::bypass_first`]). A name without an
//! address is allowed where the program that is replaced lets the other end look it up.

use adit_model::access::{Acl, AclList};
use adit_model::entries::{Entries, Scope, Sets};
use adit_model::rule::{AddressRange, Cidr, FileLine, Matcher, RejectMethod, Resolve, Rule, Verdict};
use adit_model::{self as model, Config, InboundProtocol, Tag};

/// Subject of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Targets go through the tunnel or directly.
    Client,
    /// Targets and clients are taken or refused.
    Server,
}

/// The rules of all access lists of a configuration, whose contents are added to `sets`. `direct` is the outbound past
/// a client's tunnel.
///
/// A manager opens ports of servers while it runs, and its configuration has no inbounds: the list is about them all. A
/// list of a name that no inbound has is about the port that gets that name.
pub(super) fn rules(config: &Config, direct: &Tag, sets: &mut Sets) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut done: Vec<(*const Acl, Role)> = Vec::new();
    for inbound in &config.inbounds {
        let Some(list) = config.access(inbound) else { continue };
        let (list, role) = (&**list, role(&inbound.protocol));
        // One list serves all inbounds that share it.
        if done.iter().any(|(other, of)| std::ptr::eq(*other, list) && *of == role) {
            continue;
        }
        let shares = |other: &&model::Inbound| {
            self::role(&other.protocol) == role
                && config.access(other).is_some_and(|acl| std::ptr::eq(&raw const **acl, list))
        };
        let inbounds = config.inbounds.iter().filter(shares).map(|inbound| (&*inbound.name).into()).collect();
        let name = format!("access list {}", done.len() + 1);
        rules.extend(list_rules(list, role, Matcher::Inbound(inbounds), direct, &name, sets));
        done.push((list, role));
    }
    rules.extend(later_rules(config, direct, sets));
    rules
}

/// The rules for ports that are opened besides the inbounds of a configuration.
fn later_rules(config: &Config, direct: &Tag, sets: &mut Sets) -> Vec<Rule> {
    let mut rules = Vec::new();
    let later = || config.acl_of.iter().filter(|(name, _)| config.inbound(name).is_none());
    for (n, (name, list)) in (1..).zip(later()) {
        let scope = Matcher::Inbound(vec![name.clone()]);
        let title = format!("access list of later port {n}");
        rules.extend(list_rules(list, Role::Server, scope, direct, &title, sets));
    }
    if let Some(list) = config.acl.as_ref().filter(|_| config.inbounds.is_empty()) {
        // Requests of the process itself have a name that is empty.
        let others = later().map(|(name, _)| name.clone()).chain([Tag::from("")]).collect();
        let scope = Matcher::Not(Box::new(Matcher::Inbound(others)));
        rules.extend(list_rules(list, Role::Server, scope, direct, "access list of later ports", sets));
    }
    rules
}

fn role(protocol: &InboundProtocol) -> Role {
    if protocol.is_client_side() { Role::Client } else { Role::Server }
}

/// The rules of one list for the inbounds in `scope`; its contents are added to `sets` under names that begin with `name`.
pub(super) fn list_rules(
    list: &Acl,
    role: Role,
    scope: Matcher,
    direct: &Tag,
    name: &str,
    sets: &mut Sets,
) -> Vec<Rule> {
    let mut maker = Maker { scope, at: FileLine::file(name), rules: Vec::new(), sets };
    match role {
        Role::Client => {
            let to_direct = Verdict::Outbound(direct.clone());
            let [no, yes] = [("bypass", &list.bypass), ("proxy", &list.proxy)].map(|part| maker.part(part));
            if list.bypass_first {
                maker.rule([no.names.clone()], &to_direct);
            }
            maker.targets(!list.bypass_all, &no, &yes, &to_direct, list.proxies_unknown);
        }
        Role::Server => {
            let refuse = Verdict::Reject(RejectMethod::Protocol);
            let [no, yes] = [("bypass", &list.bypass), ("proxy", &list.proxy)].map(|part| maker.part(part));
            if list.bypass_all {
                let inside = yes.sources.unwrap_or(Matcher::Or(Vec::new()));
                // A client without an address, behind a unix socket, is not judged by it.
                let everywhere = ["0.0.0.0/0", "::/0"].into_iter().filter_map(Cidr::parse).collect();
                let outside = Matcher::Not(Box::new(inside));
                maker.rule([Some(Matcher::Source(everywhere)), Some(outside)], &refuse);
            } else {
                maker.rule([no.sources], &refuse);
            }
            let [no, yes] = [("block", &list.block), ("allow", &list.allow)].map(|part| maker.part(part));
            // A name that cannot be looked up is dialled, for the error to be reported as always.
            let asks = yes.addresses.is_some();
            maker.rule([no.names.clone()], &refuse);
            maker.targets(!list.block_all, &no, &yes, &refuse, asks);
        }
    }
    maker.rules
}

struct Maker<'a> {
    scope: Matcher,
    at: FileLine,
    rules: Vec<Rule>,
    sets: &'a mut Sets,
}

/// The keys of one part of a list; `None` where it has no such entries.
struct Part {
    names: Option<Matcher>,
    addresses: Option<Tag>,
    sources: Option<Matcher>,
}

impl Maker<'_> {
    /// A rule for the inbounds of the list; none where a key is missing.
    fn rule<const N: usize>(&mut self, keys: [Option<Matcher>; N], verdict: &Verdict) {
        let scope = self.scope.clone();
        let Some(matcher) = std::iter::once(Some(scope)).chain(keys).collect() else { return };
        self.rules.push(Rule {
            matcher: Matcher::And(matcher),
            verdict: verdict.clone(),
            at: self.at.clone(),
        });
    }

    /// The rules about targets. `asks_unknown`: where the default is to refuse, names without an address are allowed.
    fn targets(&mut self, default: bool, no: &Part, yes: &Part, refusal: &Verdict, asks_unknown: bool) {
        let addresses = |part: &Part, resolve| {
            part.addresses.as_ref().map(|tag| Matcher::Set(vec![tag.clone()], resolve))
        };
        self.rule([yes.names.clone()], &Verdict::Default);
        self.rule([no.names.clone()], refusal);
        if default {
            return self.rule([addresses(no, Resolve::Yes)], refusal);
        }
        self.rule([addresses(no, Resolve::No)], refusal);
        if asks_unknown {
            self.rule([Some(Matcher::Unresolved)], &Verdict::Default);
        }
        self.rule([addresses(yes, Resolve::Yes)], &Verdict::Default);
        self.rule([], refusal);
    }

    /// Adds the sets of a part of the list.
    fn part(&mut self, (part, list): (&str, &AclList)) -> Part {
        let (names, addresses) = (names_of(list), addresses_of(list));
        let mut add = |kind: &str, entries: Entries| {
            if entries.is_empty() {
                return None;
            }
            let tag = Tag::from(format!("{}: {kind} of {part}", self.at));
            self.sets.insert(tag.clone(), entries);
            Some(tag)
        };
        let (names, addresses) = (add("names", names), add("addresses", addresses));
        Part {
            names: names.map(|tag| Matcher::Set(vec![tag], Resolve::No)),
            sources: addresses.clone().map(|tag| Matcher::SourceSet(vec![tag])),
            addresses,
        }
    }
}

fn names_of(list: &AclList) -> Entries {
    let mut entries = Entries::default();
    for name in &list.exact {
        entries.add_name(name, Scope::Exact);
    }
    for name in &list.trees {
        match name.strip_prefix('.') {
            Some(name) => entries.add_name(name, Scope::Below),
            None => entries.add_name(name, Scope::Tree),
        }
    }
    entries.regexes = list.regexes.iter().map(|regex| regex.as_str().into()).collect();
    entries
}

fn addresses_of(list: &AclList) -> Entries {
    /// The IPv4-mapped addresses, `::ffff:0:0/96`.
    const MAPPED: u128 = 0xffff_0000_0000;
    let mut entries = Entries::default();
    for (first, last) in &list.v4.0 {
        entries.add_range(AddressRange::V4(*first, *last));
    }
    for (first, last) in &list.v6.0 {
        entries.add_range(AddressRange::V6(*first, *last));
        // An IPv6 network around the mapped addresses holds those of IPv4 as well.
        let (first, last) = ((*first).max(MAPPED), (*last).min(MAPPED + u128::from(u32::MAX)));
        if let (true, Ok(first), Ok(last)) =
            (first <= last, u32::try_from(first & 0xffff_ffff), u32::try_from(last & 0xffff_ffff))
        {
            entries.add_range(AddressRange::V4(first, last));
        }
    }
    entries
}
