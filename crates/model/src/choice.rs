//! Groups whose members are chosen by a person, by their delay, in their order, or by turns.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Config, Outbound, OutboundProtocol, Tag};
use crate::map::Map;
use crate::rule::Network;

/// A group: each request takes one of its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Outbounds and other groups, in order, none of them twice. Without one the group refuses everything.
    pub members: Vec<Tag>,
    /// The way in which a member is chosen.
    pub policy: Policy,
    /// The test that tells which members are alive.
    pub test: DelayTest,
    /// Whether datagrams are carried.
    pub udp: bool,
    /// Whether control programs are asked not to show it.
    pub hidden: bool,
    /// The address of a picture for control programs; empty for none.
    pub icon: Box<str>,
    /// Lists whose entries become members, as `adit.toml` names them; `None` where members are all that there is.
    pub uses: Option<Box<Uses>>,
}

/// Lists of outbounds whose entries are members of a group, behind those that it names itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Uses {
    /// Names of lists.
    pub lists: Vec<Tag>,
    /// As [`OutboundList::filter`](super::OutboundList::filter), for entries of these lists.
    pub filter: Box<str>,
    /// As [`OutboundList::exclude`](super::OutboundList::exclude), for entries of these lists.
    pub exclude: Box<str>,
}

/// The way in which a group chooses a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// A person chooses; at first it is this member, or else the first one.
    Select(Option<Tag>),
    /// The member with the least delay. Another one takes over if it is better by more than this.
    UrlTest(Duration),
    /// The first member that is alive.
    Fallback,
    /// All members take turns.
    LoadBalance(Balance),
}

/// The manner in which the members of a group take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balance {
    /// The domain of a target decides: it keeps its member across restarts.
    Consistent,
    /// The next member for each request.
    RoundRobin,
    /// A client and the domain of its target keep a member for ten minutes after the latest request.
    Sticky,
}

/// A test of the delay of outbounds: the time up to the head of an HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayTest {
    /// The address that is asked, `http://` or `https://`.
    pub url: Box<str>,
    /// Time between two tests; `None` for none by time.
    pub interval: Option<Duration>,
    /// Whether the tests rest while nobody uses the group.
    pub lazy: bool,
    /// A response that takes longer is none. Also the time in which failed connections are counted.
    pub timeout: Duration,
    /// Connections that fail within [`DelayTest::timeout`] until the members are tested before their time; at least 1.
    pub max_failed: u32,
    /// The status codes of a good response, both ends included; empty for any.
    pub expected: Vec<(u16, u16)>,
    /// Whether a second request on the same connection is measured in the place of the first.
    pub unified: bool,
}

/// The address that mihomo asks.
pub const DELAY_URL: &str = "https://www.gstatic.com/generate_204";

/// mihomo's values.
impl Default for DelayTest {
    fn default() -> Self {
        Self {
            url: DELAY_URL.into(),
            interval: Some(Duration::from_secs(300)),
            lazy: true,
            timeout: Duration::from_secs(5),
            max_failed: 5,
            expected: Vec::new(),
            unified: false,
        }
    }
}

impl DelayTest {
    /// Whether a status code is one of a good response.
    pub fn expects(&self, status: u16) -> bool {
        expects(&self.expected, status)
    }

    /// The status codes of a good response, as `200/204` or `*`.
    pub fn expected_text(&self) -> String {
        if self.expected.is_empty() {
            return "*".to_owned();
        }
        let range = |(first, last): &(u16, u16)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        };
        self.expected.iter().map(range).collect::<Vec<_>>().join("/")
    }
}

/// Whether a status code is in one of these ranges; any is if there is none.
pub fn expects(ranges: &[(u16, u16)], status: u16) -> bool {
    ranges.is_empty() || ranges.iter().any(|(first, last)| (*first..=*last).contains(&status))
}

impl Policy {
    /// Whether a person may choose a member.
    pub fn is_selectable(&self) -> bool {
        !matches!(self, Self::LoadBalance(_))
    }
}

/// An outbound that opens nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The client waits, and gets no answer.
    Drop,
    /// The rule that leads here does not match.
    Pass,
    /// adit cannot speak it.
    Dead {
        /// Its type, as the file writes it.
        kind: Box<str>,
        /// Why, in a few words.
        why: Box<str>,
        /// Whether it carries datagrams by the word of its file: they are refused then, and take no other way.
        udp: bool,
    },
}

/// Deepest nesting of groups that is followed.
const MAX_DEPTH: usize = 32;

impl Config {
    /// Whether a request of this kind that a rule sends to the outbound of this name goes on to the next rule: the member
    /// that a group takes at first passes it on, or carries no datagrams by the word of the file.
    pub fn passes(&self, name: &str, network: Network) -> bool {
        let Some(mut outbound) = self.outbound(name) else { return false };
        for _ in 0..MAX_DEPTH {
            let OutboundProtocol::Choice(choice) = &outbound.protocol else {
                let is_pass = outbound.protocol == OutboundProtocol::Refuse(Refusal::Pass);
                return is_pass || network == Network::Udp && !outbound.says_datagrams();
            };
            if network == Network::Udp && !choice.udp {
                return true;
            }
            if matches!(choice.policy, Policy::LoadBalance(_)) {
                return false;
            }
            // An empty group refuses.
            let Some(next) = choice.first().and_then(|first| self.outbound(first)) else { return false };
            outbound = next;
        }
        false
    }

    /// The outbound behind a group, by the members that are taken at first; itself if it is none.
    pub fn first_leaf(&self, name: &str) -> Option<&Outbound> {
        let mut outbound = self.outbound(name)?;
        for _ in 0..MAX_DEPTH {
            let OutboundProtocol::Choice(choice) = &outbound.protocol else { return Some(outbound) };
            outbound = self.outbound(choice.first()?)?;
        }
        None
    }

    /// A loop of groups and of outbounds that dial through each other: the names along it, the first one again at its end.
    pub fn group_loop(outbounds: &[Outbound]) -> Option<Vec<Tag>> {
        let by_name: Map<&Tag, &Outbound> =
            outbounds.iter().map(|outbound| (&outbound.name, outbound)).collect();
        let mut walk = Walk { by_name: &by_name, done: BTreeSet::new(), path: Vec::new() };
        outbounds.iter().find_map(|outbound| walk.visit(&outbound.name))
    }
}

impl Config {
    /// Outbounds that lie on a loop of groups and of outbounds that dial through each other, or between two such loops. It
    /// takes time in proportion to the members of all groups.
    pub fn looped(outbounds: &[Outbound]) -> BTreeSet<Tag> {
        let by_name: Map<&Tag, &Outbound> =
            outbounds.iter().map(|outbound| (&outbound.name, outbound)).collect();
        let walk = Walk { by_name: &by_name, done: BTreeSet::new(), path: Vec::new() };
        let mut edges: Vec<(Tag, Tag)> = Vec::new();
        for outbound in outbounds {
            let next = walk.next(&outbound.name).into_iter().filter(|next| by_name.contains_key(next));
            edges.extend(next.map(|next| (outbound.name.clone(), next)));
        }
        let forth = peeled(&edges);
        let back: Vec<(Tag, Tag)> = edges.into_iter().map(|(from, to)| (to, from)).collect();
        peeled(&back).intersection(&forth).cloned().collect()
    }
}

/// The names that are left once all are taken away, one after the other, to which nothing leads that is still there.
fn peeled(edges: &[(Tag, Tag)]) -> BTreeSet<Tag> {
    let mut next: Map<&Tag, Vec<&Tag>> = Map::new();
    let mut count: Map<&Tag, usize> = Map::new();
    for (from, to) in edges {
        next.entry(from).or_default().push(to);
        count.entry(from).or_insert(0);
        *count.entry(to).or_insert(0) += 1;
    }
    let mut free: Vec<&Tag> = count.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
    while let Some(name) = free.pop() {
        for to in next.get(name).into_iter().flatten() {
            if let Some(count) = count.get_mut(to) {
                *count -= 1;
                if *count == 0 {
                    free.push(to);
                }
            }
        }
    }
    count.into_iter().filter(|(_, count)| *count > 0).map(|(name, _)| name.clone()).collect()
}

impl Choice {
    /// The member that is taken at first.
    pub fn first(&self) -> Option<&Tag> {
        match &self.policy {
            Policy::Select(Some(wanted)) if self.members.contains(wanted) => Some(wanted),
            Policy::Select(_) | Policy::UrlTest(_) | Policy::Fallback | Policy::LoadBalance(_) => {
                self.members.first()
            }
        }
    }
}

/// A search in depth among outbounds, for what leads back.
struct Walk<'a> {
    by_name: &'a Map<&'a Tag, &'a Outbound>,
    done: BTreeSet<Tag>,
    path: Vec<Tag>,
}

impl Walk<'_> {
    /// Follows all ways with a stack of its own: a file may nest groups as deep as it is long.
    fn visit(&mut self, start: &Tag) -> Option<Vec<Tag>> {
        let mut stack = vec![(start.clone(), self.next(start))];
        self.path = vec![start.clone()];
        while let Some((name, left)) = stack.last_mut() {
            let Some(next) = left.pop() else {
                self.done.insert(name.clone());
                self.path.pop();
                stack.pop();
                continue;
            };
            if let Some(at) = self.path.iter().position(|seen| *seen == next) {
                return Some(self.path[at..].iter().cloned().chain([next]).collect());
            }
            if !self.done.contains(&next) {
                let further = self.next(&next);
                self.path.push(next.clone());
                stack.push((next, further));
            }
        }
        None
    }

    fn next(&self, name: &Tag) -> Vec<Tag> {
        let Some(outbound) = self.by_name.get(name).filter(|_| !self.done.contains(name)) else {
            return Vec::new();
        };
        let mut next: Vec<Tag> = outbound.dial.through.iter().cloned().collect();
        match &outbound.protocol {
            OutboundProtocol::Choice(choice) => next.extend(choice.members.iter().cloned()),
            OutboundProtocol::Group(group) => {
                next.extend(group.members.iter().map(|member| member.outbound.clone()));
            }
            OutboundProtocol::Direct
            | OutboundProtocol::Reject
            | OutboundProtocol::Snell(_)
            | OutboundProtocol::Shadowsocks(_)
            | OutboundProtocol::Ssr(_)
            | OutboundProtocol::Obfs(_)
            | OutboundProtocol::Proxy(_)
            | OutboundProtocol::Dns { .. }
            | OutboundProtocol::Refuse(_) => {}
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dial;

    fn group(name: &str, members: &[&str]) -> Outbound {
        let members = members.iter().map(|name| Tag::from(*name)).collect();
        let choice = Choice {
            members,
            policy: Policy::Fallback,
            test: DelayTest::default(),
            udp: true,
            hidden: false,
            icon: "".into(),
            uses: None,
        };
        Outbound { name: name.into(), dial: Dial::default(), protocol: OutboundProtocol::Choice(choice) }
    }

    #[test]
    fn loops_are_found() {
        let names = |found: Option<Vec<Tag>>| {
            found.map(|names| names.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" "))
        };
        let tree = [group("a", &["b", "c"]), group("b", &["c", "d"]), group("c", &["d"]), group("d", &[])];
        assert_eq!(names(Config::group_loop(&tree)), None);
        let circle = [group("a", &["b"]), group("b", &["c"]), group("c", &["x", "b"])];
        assert_eq!(names(Config::group_loop(&circle)).as_deref(), Some("b c b"));
        assert_eq!(names(Config::group_loop(&[group("a", &["a"])])).as_deref(), Some("a a"));
        let mut through = [group("a", &["b"]), group("b", &[])];
        through[1].dial.through = Some("a".into());
        assert_eq!(names(Config::group_loop(&through)).as_deref(), Some("a b a"));
        assert_eq!(Config::looped(&through).len(), 2);
        assert!(Config::looped(&tree).is_empty());
        let looped: Vec<String> = Config::looped(&circle).iter().map(ToString::to_string).collect();
        assert_eq!(looped, ["b", "c"]);
        // As deep as a file is long.
        let deep: Vec<Outbound> =
            (0..20_000).map(|n| group(&n.to_string(), &[&(n + 1).to_string()])).collect();
        assert_eq!(names(Config::group_loop(&deep)), None);
        assert!(Config::looped(&deep).is_empty());
    }

    #[test]
    fn expected_statuses() {
        let test = DelayTest { expected: vec![(200, 200), (204, 206)], ..DelayTest::default() };
        let good: Vec<u16> = (198..210).filter(|status| test.expects(*status)).collect();
        assert_eq!((good, test.expected_text().as_str()), (vec![200, 204, 205, 206], "200/204-206"));
        assert!(DelayTest::default().expects(500));
    }
}
