//! Why a request takes its way, for people: every rule is asked, without the shortcuts of a decision.

use std::fmt;
use std::net::IpAddr;

use adit_model::Tag;
use adit_model::rule::{Matcher, Rule};

use super::walk::{REFUSED, Round, Truth, Walk};
use super::{Node, Query, RouteOutcome, Router};

/// Why a rule that matches does not decide.
const PASSED: &str = "it matches, and leaves the decision to the rules behind it";

/// Why a rule that has the rules asked once more does not decide.
const AGAIN: &str = "it matches, and has the rules asked once more";

/// Results of each rule for a request, up to the one that decides.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation<'r> {
    /// The rules that did not match, in order.
    pub passed: Vec<Step>,
    /// The end of it.
    pub outcome: RouteOutcome<'r>,
}

/// A rule that did not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its place in the order of rules, from 0.
    pub rule: usize,
    /// The key that did not match, and the value that it was compared with.
    pub why: String,
}

impl Router {
    /// The same as [`Router::decide`], with the reason why each earlier rule did not match. `rules` are those of
    /// which the router was made; `asked` is as in [`Router::decide_with`].
    pub fn explain<'r>(
        &'r self,
        rules: &[Rule],
        query: &Query<'_>,
        addresses: Option<&[IpAddr]>,
        asked: &dyn Fn(&Tag) -> bool,
    ) -> Explanation<'r> {
        let mut walk = Walk::new(self, query, addresses);
        let mut passed = Vec::new();
        let mut n = 0;
        while let Some(compiled) = self.rules.get(n) {
            match walk.judge(compiled.root) {
                Err(outcome) => return Explanation { passed, outcome },
                Ok(true) if compiled.verdict.passes(query.network, asked).is_some() => {
                    let count = compiled.verdict.passes(query.network, asked).unwrap_or_default();
                    passed.push(Step { rule: n, why: PASSED.to_owned() });
                    n = n.saturating_add(count as usize);
                }
                Ok(true) => match walk.again(&compiled.verdict) {
                    Round::From(at) => {
                        passed.push(Step { rule: n, why: AGAIN.to_owned() });
                        n = at as usize;
                        continue;
                    }
                    Round::None => {
                        let outcome = walk.decided(&compiled.verdict, Some(n));
                        return Explanation { passed, outcome };
                    }
                    Round::TooMany => {
                        let outcome = walk.decided(&REFUSED, Some(n));
                        return Explanation { passed, outcome };
                    }
                },
                Ok(false) => {
                    let matcher = rules.get(n).map(|rule| &rule.matcher);
                    let why =
                        matcher.map_or_else(String::new, |matcher| self.why(&walk, matcher, compiled.root));
                    passed.push(Step { rule: n, why });
                }
            }
            n = n.saturating_add(1);
        }
        let outcome = walk.decided(&adit_model::rule::Verdict::Default, None);
        Explanation { passed, outcome }
    }

    /// Why a matcher, which became `node`, is false.
    fn why(&self, walk: &Walk<'_, '_>, matcher: &Matcher, node: Node) -> String {
        if let Matcher::And(all) = matcher {
            let nodes = self.parts(node, all.len());
            let failed = all.iter().zip(nodes).find(|(_, node)| walk.truth(*node) == Truth::No);
            return failed.map_or_else(String::new, |(matcher, node)| self.why(walk, matcher, node));
        }
        if let Matcher::Or(all) = matcher {
            /// Alternatives that are told; more do not help.
            const TOLD: usize = 3;
            let nodes = self.parts(node, all.len());
            let each = all.iter().zip(nodes).take(TOLD).map(|(matcher, node)| self.why(walk, matcher, node));
            let mut text = each.collect::<Vec<_>>().join("; ");
            if all.len() > TOLD {
                text.push_str(&format!("; and {} more", all.len() - TOLD));
            }
            return format!("none of: {text}");
        }
        if let Matcher::Not(one) = matcher {
            return format!("not: {} matches", one.key());
        }
        compared(walk, matcher)
    }

    /// The nodes of `count` matchers; one that was alone has no node above it.
    fn parts(&self, node: Node, count: usize) -> Vec<Node> {
        match node {
            Node::And(first, nodes) | Node::Or(first, nodes) if count != 1 => {
                self.children(first, nodes).to_vec()
            }
            Node::And(..)
            | Node::Or(..)
            | Node::Atom(..)
            | Node::Address(..)
            | Node::Suffix(..)
            | Node::Fact(_)
            | Node::Unresolved
            | Node::Network(_)
            | Node::Inbound(..)
            | Node::User(..)
            | Node::Protocol(..)
            | Node::Not(_) => vec![node],
        }
    }
}

/// A key with the value that it was compared with.
fn compared(walk: &Walk<'_, '_>, leaf: &Matcher) -> String {
    let query = walk.query();
    let key = leaf.key();
    let against = |value: &dyn fmt::Display| format!("{key} does not hold {value}");
    let absent = |what: &str| format!("{key}: {what}");
    match leaf {
        Matcher::Domain(_)
        | Matcher::DomainSuffix(_)
        | Matcher::DomainKeyword(_)
        | Matcher::DomainRegex(_) => {
            walk.name().map_or_else(|| absent("the target is an address"), |name| against(&name))
        }
        Matcher::Set(..) | Matcher::IpCidr(..) | Matcher::GeoIp(..) | Matcher::IpSuffix(..) => {
            let is_set = matches!(leaf, Matcher::Set(..));
            let name = walk.name().filter(|_| is_set).map(ToOwned::to_owned);
            let ips = walk.seen().map(|ips| ips.iter().map(ToString::to_string).collect::<Vec<_>>());
            match (name, ips) {
                (None, None) => absent("the addresses of the name are not known"),
                (None, Some(ips)) if ips.is_empty() => absent("the name has no address"),
                (name, ips) => {
                    let all: Vec<_> = name.into_iter().chain(ips.unwrap_or_default()).collect();
                    against(&all.join(", "))
                }
            }
        }
        Matcher::Unresolved => absent("the target has an address"),
        Matcher::Source(_) | Matcher::SourceSet(_) => {
            query.source.map_or_else(|| absent("the client has no address"), |source| against(&source.ip()))
        }
        Matcher::SourcePort(_) => {
            query.source.map_or_else(|| absent("the client has no port"), |source| against(&source.port()))
        }
        Matcher::Port(_) => against(&query.target.port),
        Matcher::Network(_) => format!("{key} is {}", query.network.name()),
        Matcher::Inbound(_) => against(&query.inbound),
        Matcher::User(_) => query.user.map_or_else(|| absent("there is no user"), |user| against(&user)),
        Matcher::Protocol(_) => {
            let unknown = || format!("{key} is not known before bytes come");
            query.protocol.map_or_else(unknown, |protocol| against(&protocol))
        }
        Matcher::Fact(_) => absent("it does not hold, or is not known"),
        Matcher::And(_) | Matcher::Or(_) | Matcher::Not(_) => String::new(),
    }
}

/// Fuzz target: rules made of `data`, a decision by tables, and the same by asking each rule, which must agree.
#[doc(hidden)]
pub fn fuzz_route(data: &[u8]) {
    super::fuzz::run(data);
}
