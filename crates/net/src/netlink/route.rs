//! Links, addresses, routes and rules of routing: rtnetlink(7), `include/uapi/linux/rtnetlink.h`, `fib_rules.h`.
//!
//! Routes and rules carry a tag (`RTA_PROTOCOL`, `FRA_PROTOCOL`), so that those of a process that was killed are known.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    Attributes, Messages, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Netlink,
    NetlinkError, u32_at,
};

/// The tag of routes and rules that are adit's.
pub const TAG: u8 = 0xad;

const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
pub(super) const NEW_ROUTE: u16 = 24;
pub(super) const DEL_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_RULE: u16 = 32;
const DEL_RULE: u16 = 33;
const GET_RULE: u16 = 34;

const AF_INET: u8 = 2;
pub(super) const AF_INET6: u8 = 10;
/// Bytes of the headers of a link, and of a route or a rule.
const LINK_LEN: usize = 16;
pub(super) const ROUTE_LEN: usize = 12;
/// Bytes of the header of an address.
const ADDRESS_LEN: usize = 8;
const ADDRESS_REMOTE: u16 = 1;
const ADDRESS_LOCAL: u16 = 2;
/// An address that other machines have too, or may have: it cannot be used (yet).
const ADDRESS_FLAGS_UNUSABLE: u8 = 0x08 | 0x40;

const IFF_UP: u32 = 1;
const LINK_NAME: u16 = 3;
const LINK_MTU: u16 = 4;
const ADDRESS_FLAG_NO_DETECTION: u8 = 2;

const ROUTE_TO: u16 = 1;
pub(super) const ROUTE_LINK: u16 = 4;
pub(super) const ROUTE_PRIORITY: u16 = 6;
const ROUTE_METRICS: u16 = 8;
pub(super) const ROUTE_TABLE: u16 = 15;
/// `RTAX_CC_ALGO`.
const METRIC_CONGESTION: u16 = 16;
const SCOPE_HOST: u8 = 254;
const SCOPE_LINK: u8 = 253;

const RULE_FROM: u16 = 2;
const RULE_IN: u16 = 3;
const RULE_GOTO: u16 = 4;
const RULE_PRIORITY: u16 = 6;
const RULE_MARK: u16 = 10;
const RULE_SUPPRESS: u16 = 14;
const RULE_TABLE: u16 = 15;
const RULE_UIDS: u16 = 20;
const RULE_TAG: u16 = 21;
const RULE_PORT: u16 = 24;
const RULE_INVERTED: u32 = 2;

/// No such entry; it exists already.
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;

/// An interface of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceLink {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is switched on.
    pub is_up: bool,
}

/// The interfaces of this machine.
///
/// # Errors
/// The kernel's refusal.
pub fn links(netlink: &mut Netlink) -> Result<Vec<InterfaceLink>, NetlinkError> {
    let mut question = Messages::default();
    question.message((GET_LINK, NLM_F_DUMP), "the list of interfaces", &[0; LINK_LEN], |_| {});
    let listed = netlink.list(&question)?;
    Ok(listed.iter().filter_map(|(kind, body)| read_link(*kind, body)).collect())
}

fn read_link(kind: u16, body: &[u8]) -> Option<InterfaceLink> {
    if kind != NEW_LINK {
        return None;
    }
    let header = body.get(..LINK_LEN)?;
    let (_, name) = Attributes::new(&body[LINK_LEN..]).find(|(kind, _)| *kind == LINK_NAME)?;
    let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
    Some(InterfaceLink { index: u32_at(header, 4), name, is_up: u32_at(header, 8) & IFF_UP != 0 })
}

/// Switches the interface `index` on, with packets of `mtu` bytes if that is given.
///
/// # Errors
/// The kernel's refusal.
pub fn switch_on(netlink: &mut Netlink, index: u32, mtu: Option<u32>) -> Result<(), NetlinkError> {
    let mut head = [0; LINK_LEN];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..12].copy_from_slice(&IFF_UP.to_ne_bytes());
    head[12..16].copy_from_slice(&IFF_UP.to_ne_bytes());
    let mut request = Messages::default();
    request.message((NEW_LINK, NLM_F_ACK), format!("interface {index}"), &head, |m| {
        if let Some(mtu) = mtu {
            m.attribute(LINK_MTU, &mtu.to_ne_bytes());
        }
    });
    netlink.transact(&request)
}

/// Gives the interface `index` an address with a prefix of `len` bits, which works at once. An address that is there
/// already is left as it is.
///
/// # Errors
/// The kernel's refusal.
pub fn add_address(netlink: &mut Netlink, index: u32, ip: IpAddr, len: u8) -> Result<(), NetlinkError> {
    let link = index.to_ne_bytes();
    let head = [family(ip), len, ADDRESS_FLAG_NO_DETECTION, 0, link[0], link[1], link[2], link[3]];
    let mut request = Messages::default();
    let part = format!("address {ip}/{len} of interface {index}");
    request.message((NEW_ADDRESS, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL), part, &head, |m| {
        m.attribute(2, &octets(ip));
        m.attribute(1, &octets(ip));
    });
    unless(netlink.transact(&request), &[EEXIST])
}

/// The addresses of this machine that sockets can be bound to, in the kernel's order.
///
/// # Errors
/// The kernel's refusal.
pub fn addresses(netlink: &mut Netlink) -> Result<Vec<IpAddr>, NetlinkError> {
    let mut question = Messages::default();
    question.message((GET_ADDRESS, NLM_F_DUMP), "the list of addresses", &[0; ADDRESS_LEN], |_| {});
    let listed = netlink.list(&question)?;
    Ok(listed.iter().filter_map(|(kind, body)| read_address(*kind, body)).collect())
}

fn read_address(kind: u16, body: &[u8]) -> Option<IpAddr> {
    let flags = *body.get(2)?;
    if kind != NEW_ADDRESS || body.len() < ADDRESS_LEN || flags & ADDRESS_FLAGS_UNUSABLE != 0 {
        return None;
    }
    // A point-to-point link has two; the local one is ours.
    let (mut local, mut remote) = (None, None);
    for (kind, value) in Attributes::new(&body[ADDRESS_LEN..]) {
        match kind {
            ADDRESS_LOCAL => local = ip_of(value),
            ADDRESS_REMOTE => remote = ip_of(value),
            _ => {}
        }
    }
    local.or(remote)
}

pub(super) fn ip_of(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// The effect of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteKind {
    /// Packets are for this machine; over this interface.
    Local(Box<str>),
    /// Packets leave by this interface.
    Link(Box<str>),
    /// The table has no route for them: the next rule is asked.
    Throw,
    /// Packets are refused, where no other route of the table and prefix is left.
    Unreachable,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// First address and length of the prefix.
    pub to: (IpAddr, u8),
    /// Its effect.
    pub kind: RouteKind,
    /// The table that it stands in.
    pub table: u32,
    /// Name of the congestion control of connections that begin over it; `None` for the system's.
    pub congestion: Option<&'static str>,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to: (ip, len), kind, table, congestion } = self;
        let version = if ip.is_ipv6() { "-6 " } else { "" };
        let (word, link) = match kind {
            RouteKind::Local(link) => ("local ", Some(link)),
            RouteKind::Link(link) => ("", Some(link)),
            RouteKind::Throw => ("throw ", None),
            RouteKind::Unreachable => ("unreachable ", None),
        };
        write!(f, "ip {version}route add {word}")?;
        match len {
            0 => f.write_str("default")?,
            _ => write!(f, "{ip}/{len}")?,
        }
        if let Some(link) = link {
            write!(f, " dev {link}")?;
        }
        write!(f, " table {table}")?;
        if let Some(name) = congestion {
            write!(f, " congctl {name}")?;
        }
        write!(f, " protocol {TAG}")
    }
}

impl Route {
    /// A route without more properties.
    pub fn new(to: (IpAddr, u8), kind: RouteKind, table: u32) -> Self {
        Self { to, kind, table, congestion: None }
    }

    /// Adds it; one that is there already is left. A congestion control that the kernel lacks is left out.
    ///
    /// # Errors
    /// The kernel's refusal; `NotFound` for an interface that is not there.
    pub fn add(&self, netlink: &mut Netlink, links: &[InterfaceLink]) -> Result<(), NetlinkError> {
        // One prefix may have a route over each interface.
        let kind = (NEW_ROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND);
        match self.transact(kind, netlink, links) {
            Err(error) if self.congestion.is_some() && error.errno() == Some(EINVAL) => {
                Self { congestion: None, ..self.clone() }.transact(kind, netlink, links)
            }
            added => added,
        }
    }

    /// Removes it; one that is gone already is no error.
    ///
    /// # Errors
    /// As [`Route::add`].
    pub fn remove(&self, netlink: &mut Netlink, links: &[InterfaceLink]) -> Result<(), NetlinkError> {
        // The kernel compares properties that are given.
        let plain = Self { congestion: None, ..self.clone() };
        unless(plain.transact((DEL_ROUTE, NLM_F_ACK), netlink, links), &[ENOENT, ESRCH])
    }

    fn transact(
        &self,
        kind: (u16, u16),
        netlink: &mut Netlink,
        links: &[InterfaceLink],
    ) -> Result<(), NetlinkError> {
        let link = match &self.kind {
            RouteKind::Local(name) | RouteKind::Link(name) => {
                let found = links.iter().find(|link| *link.name == **name);
                Some(found.map(|link| link.index).ok_or_else(|| NetlinkError {
                    part: format!("`{self}`"),
                    text: Some("no such interface".into()),
                    source: io::ErrorKind::NotFound.into(),
                })?)
            }
            RouteKind::Throw | RouteKind::Unreachable => None,
        };
        let mut request = Messages::default();
        self.emit(kind, link, &mut request);
        unless(netlink.transact(&request), &[EEXIST])
    }

    fn emit(&self, message: (u16, u16), link: Option<u32>, out: &mut Messages) {
        let (ip, len) = self.to;
        let (scope, kind) = match (&self.kind, ip) {
            (RouteKind::Local(_), _) => (SCOPE_HOST, 2),
            (RouteKind::Link(_), IpAddr::V4(_)) => (SCOPE_LINK, 1),
            (RouteKind::Link(_), IpAddr::V6(_)) => (0, 1),
            (RouteKind::Unreachable, _) => (0, 7),
            (RouteKind::Throw, _) => (0, 9),
        };
        let head = [family(ip), len, 0, 0, 0, TAG, scope, kind, 0, 0, 0, 0];
        out.message(message, format!("`{self}`"), &head, |m| {
            if len > 0 {
                m.attribute(ROUTE_TO, &octets(ip));
            }
            if let Some(link) = link {
                m.attribute(ROUTE_LINK, &link.to_ne_bytes());
            }
            if self.kind == RouteKind::Unreachable {
                m.attribute(ROUTE_PRIORITY, &u32::MAX.to_ne_bytes());
            }
            if let Some(name) = self.congestion {
                m.nest(ROUTE_METRICS, |m| m.text(METRIC_CONGESTION, name));
            }
            m.attribute(ROUTE_TABLE, &self.table.to_ne_bytes());
        });
    }
}

/// A rule that says which table routes a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRule {
    /// Whether it is about IPv6.
    pub is_v6: bool,
    /// Its place among the rules, the lowest first.
    pub priority: u32,
    /// Packets with this mark.
    pub mark: Option<u32>,
    /// Packets from this prefix; from `0.0.0.0/32` are those of sockets that have no address yet.
    pub from: Option<(IpAddr, u8)>,
    /// Packets that come in by this interface; `lo` are those of this machine.
    pub link: Option<Box<str>>,
    /// All packets that the conditions do not hold for.
    pub is_inverted: bool,
    /// Packets of sockets of these users.
    pub uids: Option<(u32, u32)>,
    /// Packets of TCP or UDP to this port.
    pub port: Option<u16>,
    /// Its effect.
    pub action: RuleAction,
}

/// The effect of a rule of routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// The table routes the packet, if it has a route for it.
    Table(u32),
    /// The same with routes whose prefix is longer than so many bits.
    TableBeyond(u32, u32),
    /// The rules go on at this priority.
    Goto(u32),
    /// Nothing: a place to go to.
    Nop,
    /// The packet is refused.
    Unreachable,
}

impl PolicyRule {
    /// A rule without a condition.
    pub fn new(is_v6: bool, priority: u32, action: RuleAction) -> Self {
        let (mark, from, link, uids, port) = (None, None, None, None, None);
        Self { is_v6, priority, mark, from, link, is_inverted: false, uids, port, action }
    }

    /// Adds it; one that is there already is left.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn add(&self, netlink: &mut Netlink) -> Result<(), NetlinkError> {
        let mut request = Messages::default();
        self.emit((NEW_RULE, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL), &mut request);
        unless(netlink.transact(&request), &[EEXIST])
    }

    /// Removes it; one that is gone already is no error.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn remove(&self, netlink: &mut Netlink) -> Result<(), NetlinkError> {
        let mut request = Messages::default();
        self.emit((DEL_RULE, NLM_F_ACK), &mut request);
        unless(netlink.transact(&request), &[ENOENT, ESRCH])
    }

    fn emit(&self, kind: (u16, u16), out: &mut Messages) {
        let (action, target) = match self.action {
            RuleAction::Table(_) | RuleAction::TableBeyond(..) => (1, None),
            RuleAction::Goto(priority) => (2, Some(priority)),
            RuleAction::Nop => (3, None),
            RuleAction::Unreachable => (7, None),
        };
        let flags = if self.is_inverted { RULE_INVERTED } else { 0 }.to_ne_bytes();
        let from_len = self.from.map_or(0, |(_, len)| len);
        let family = if self.is_v6 { AF_INET6 } else { AF_INET };
        let head = [family, 0, from_len, 0, 0, 0, 0, action, flags[0], flags[1], flags[2], flags[3]];
        out.message(kind, format!("`{self}`"), &head, |m| {
            m.attribute(RULE_PRIORITY, &self.priority.to_ne_bytes());
            if let Some((ip, _)) = self.from {
                m.attribute(RULE_FROM, &octets(ip));
            }
            if let Some(link) = &self.link {
                m.text(RULE_IN, link);
            }
            if let Some(mark) = self.mark {
                m.attribute(RULE_MARK, &mark.to_ne_bytes());
            }
            if let Some((first, last)) = self.uids {
                m.attribute(RULE_UIDS, &[first.to_ne_bytes(), last.to_ne_bytes()].concat());
            }
            if let Some(port) = self.port {
                m.attribute(RULE_PORT, &[port.to_ne_bytes(), port.to_ne_bytes()].concat());
            }
            if let Some(target) = target {
                m.attribute(RULE_GOTO, &target.to_ne_bytes());
            }
            if let RuleAction::Table(table) | RuleAction::TableBeyond(table, _) = self.action {
                m.attribute(RULE_TABLE, &table.to_ne_bytes());
            }
            if let RuleAction::TableBeyond(_, len) = self.action {
                m.attribute(RULE_SUPPRESS, &len.to_ne_bytes());
            }
            m.attribute(RULE_TAG, &[TAG]);
        });
    }
}

impl fmt::Display for PolicyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_v6, priority, mark, from, link, is_inverted, uids, port, action } = self;
        let version = if *is_v6 { "-6 " } else { "" };
        write!(f, "ip {version}rule add pref {priority}")?;
        if *is_inverted {
            f.write_str(" not")?;
        }
        if let Some((ip, len)) = from {
            write!(f, " from {ip}/{len}")?;
        }
        if let Some(link) = link {
            write!(f, " iif {link}")?;
        }
        if let Some(mark) = mark {
            write!(f, " fwmark {mark:#x}")?;
        }
        if let Some((first, last)) = uids {
            write!(f, " uidrange {first}-{last}")?;
        }
        if let Some(port) = port {
            write!(f, " dport {port}")?;
        }
        match action {
            RuleAction::Table(table) => write!(f, " lookup {}", TableName(*table))?,
            RuleAction::TableBeyond(table, len) => {
                write!(f, " lookup {} suppress_prefixlength {len}", TableName(*table))?;
            }
            RuleAction::Goto(priority) => write!(f, " goto {priority}")?,
            RuleAction::Nop => f.write_str(" nop")?,
            RuleAction::Unreachable => f.write_str(" unreachable")?,
        }
        write!(f, " protocol {TAG}")
    }
}

/// The table of routes that every system has.
pub const MAIN: u32 = 254;

struct TableName(u32);

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == MAIN { f.write_str("main") } else { write!(f, "{}", self.0) }
    }
}

/// A prefix to which the main table has a route beyond its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutedNetwork {
    /// Its first address, and the bits of the prefix.
    pub prefix: (IpAddr, u8),
    /// The interface that leads there, where it is one.
    pub link: Option<u32>,
}

/// The prefixes of one family to which the main table has routes beyond its default, those of networks that this machine is
/// in among them.
///
/// # Errors
/// The kernel's refusal.
pub fn networks(netlink: &mut Netlink, is_v6: bool) -> Result<Vec<RoutedNetwork>, NetlinkError> {
    let mut head = [0; ROUTE_LEN];
    head[0] = if is_v6 { AF_INET6 } else { AF_INET };
    let mut question = Messages::default();
    question.message((GET_ROUTE, NLM_F_DUMP), "the list of routes", &head, |_| {});
    let listed = netlink.list(&question)?;
    Ok(listed.iter().filter_map(|(kind, body)| read_network(*kind, body, head[0])).collect())
}

fn read_network(kind: u16, body: &[u8], family: u8) -> Option<RoutedNetwork> {
    const UNICAST: u8 = 1;
    let header = body.get(..ROUTE_LEN)?;
    let is_one = kind == NEW_ROUTE && header[0] == family && header[1] > 0 && header[7] == UNICAST;
    let attributes = || Attributes::new(&body[ROUTE_LEN..]);
    let number = |wanted| attributes().find(|(kind, _)| *kind == wanted).map(|(_, data)| u32_at(data, 0));
    if !is_one || number(ROUTE_TABLE).unwrap_or_else(|| header[4].into()) != MAIN {
        return None;
    }
    let (_, to) = attributes().find(|(kind, _)| *kind == ROUTE_TO)?;
    let (ip, longest) = match family {
        AF_INET6 => (IpAddr::from(<[u8; 16]>::try_from(to).ok()?), 128),
        _ => (IpAddr::from(<[u8; 4]>::try_from(to).ok()?), 32),
    };
    Some(RoutedNetwork { prefix: (ip, header[1].min(longest)), link: number(ROUTE_LINK) })
}

/// A route or rule that the kernel has, with the tag of adit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tagged {
    /// It is a route; otherwise it is a rule.
    pub is_route: bool,
    /// It is about IPv6.
    pub is_v6: bool,
    /// The table that it stands in or leads to.
    pub table: u32,
    /// The priority of a rule.
    pub priority: u32,
    body: Vec<u8>,
}

impl fmt::Display for Tagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_route, is_v6, table, priority, .. } = self;
        let version = if *is_v6 { "IPv6" } else { "IPv4" };
        match is_route {
            true => write!(f, "{version} route in table {table}"),
            false => write!(f, "{version} rule {priority}, table {table}"),
        }
    }
}

/// The routes and rules of both families with the tag of adit.
///
/// # Errors
/// The kernel's refusal.
pub fn tagged(netlink: &mut Netlink) -> Result<Vec<Tagged>, NetlinkError> {
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        for (kind, part) in [(GET_RULE, "the list of rules"), (GET_ROUTE, "the list of routes")] {
            let mut head = [0; ROUTE_LEN];
            head[0] = family;
            let mut question = Messages::default();
            question.message((kind, NLM_F_DUMP), part, &head, |_| {});
            // A kernel without IPv6 has no list of it.
            let listed = match netlink.list(&question) {
                Err(_) if family == AF_INET6 => continue,
                listed => listed?,
            };
            found.extend(listed.iter().filter_map(|(kind, body)| read_tagged(*kind, body)));
        }
    }
    Ok(found)
}

fn read_tagged(kind: u16, body: &[u8]) -> Option<Tagged> {
    let header = body.get(..ROUTE_LEN)?;
    let attributes = || Attributes::new(&body[ROUTE_LEN..]);
    let number =
        |wanted: u16| attributes().find(|(kind, _)| *kind == wanted).map(|(_, data)| u32_at(data, 0));
    let (is_route, tag) = match kind {
        NEW_ROUTE => (true, header[5]),
        NEW_RULE => {
            let tag = attributes().find(|(kind, _)| *kind == RULE_TAG)?;
            (false, *tag.1.first()?)
        }
        _ => return None,
    };
    if tag != TAG {
        return None;
    }
    let table = number(ROUTE_TABLE).unwrap_or_else(|| header[4].into());
    let priority = if is_route { 0 } else { number(RULE_PRIORITY).unwrap_or(0) };
    Some(Tagged { is_route, is_v6: header[0] == AF_INET6, table, priority, body: body.to_vec() })
}

impl Tagged {
    /// Removes it; one that is gone already is no error.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn remove(&self, netlink: &mut Netlink) -> Result<(), NetlinkError> {
        let kind = if self.is_route { DEL_ROUTE } else { DEL_RULE };
        let mut request = Messages::default();
        let (head, rest) = self.body.split_at(ROUTE_LEN);
        request.message((kind, NLM_F_ACK), self.to_string(), head, |m| m.bytes.extend(rest));
        unless(netlink.transact(&request), &[ENOENT, ESRCH])
    }
}

fn unless(result: Result<(), NetlinkError>, fine: &[i32]) -> Result<(), NetlinkError> {
    match result {
        Err(error) if error.errno().is_some_and(|number| fine.contains(&number)) => Ok(()),
        result => result,
    }
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv6() { AF_INET6 } else { AF_INET }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::octets(&ip).to_vec(),
        IpAddr::V6(ip) => Ipv6Addr::octets(&ip).to_vec(),
    }
}

pub(super) fn fuzz_route(kind: u16, body: &[u8]) {
    let _link = read_link(kind, body);
    let _networks = [AF_INET, AF_INET6].map(|family| read_network(kind, body, family));
    if let Some(tagged) = read_tagged(kind, body) {
        // Its message is sent back as it came.
        assert_eq!(tagged.body, body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: (IpAddr, u8) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

    #[test]
    fn rules_and_routes_are_written_as_ip_would() {
        let mark = PolicyRule { mark: Some(0x2023), ..PolicyRule::new(false, 8999, RuleAction::Table(2023)) };
        assert_eq!(mark.to_string(), "ip rule add pref 8999 fwmark 0x2023 lookup 2023 protocol 173");
        let own = PolicyRule {
            link: Some("lo".into()),
            from: Some((Ipv4Addr::UNSPECIFIED.into(), 32)),
            ..PolicyRule::new(false, 9002, RuleAction::Table(2022))
        };
        assert_eq!(own.to_string(), "ip rule add pref 9002 from 0.0.0.0/32 iif lo lookup 2022 protocol 173");
        let main = PolicyRule::new(true, 9001, RuleAction::TableBeyond(MAIN, 0));
        let text = "ip -6 rule add pref 9001 lookup main suppress_prefixlength 0 protocol 173";
        assert_eq!(main.to_string(), text);
        let names = PolicyRule {
            is_inverted: true,
            port: Some(53),
            ..PolicyRule::new(false, 9001, RuleAction::TableBeyond(MAIN, 0))
        };
        let text = "ip rule add pref 9001 not dport 53 lookup main suppress_prefixlength 0 protocol 173";
        assert_eq!(names.to_string(), text);
        let route = Route::new(ANY, RouteKind::Local("lo".into()), 2023);
        assert_eq!(route.to_string(), "ip route add local default dev lo table 2023 protocol 173");
        let tun = Route { congestion: Some("cubic"), ..Route::new(ANY, RouteKind::Link("t0".into()), 2022) };
        assert_eq!(tun.to_string(), "ip route add default dev t0 table 2022 congctl cubic protocol 173");
        let none = Route::new(ANY, RouteKind::Unreachable, 2022);
        assert_eq!(none.to_string(), "ip route add unreachable default table 2022 protocol 173");
    }

    #[test]
    fn a_rule_has_the_bytes_that_the_kernel_wants() {
        // `ip rule add pref 8999 fwmark 0x2023 lookup 2023 protocol 173` of iproute2 6.1; the order of attributes is
        // free.
        let rule = PolicyRule { mark: Some(0x2023), ..PolicyRule::new(false, 8999, RuleAction::Table(2023)) };
        let mut messages = Messages::default();
        rule.emit((NEW_RULE, NLM_F_CREATE), &mut messages);
        let body = &messages.bytes[16..];
        assert_eq!(body[..12], [2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        let mut attributes: Vec<_> = Attributes::new(&body[12..]).collect();
        attributes.sort_by_key(|(kind, _)| *kind);
        let want = [
            (6, &8999_u32.to_ne_bytes()[..]),
            (10, &0x2023_u32.to_ne_bytes()[..]),
            (15, &2023_u32.to_ne_bytes()[..]),
            (21, &[173][..]),
        ];
        assert_eq!(attributes, want);
        let read = read_tagged(NEW_RULE, body).unwrap();
        assert_eq!((read.is_route, read.is_v6, read.table, read.priority), (false, false, 2023, 8999));
    }

    #[test]
    fn others_are_left_alone() {
        let mut body = vec![2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        assert_eq!(read_tagged(NEW_ROUTE, &body), None, "tag 3 is that of another program");
        body[5] = TAG;
        let read = read_tagged(NEW_ROUTE, &body).unwrap();
        assert_eq!((read.table, read.to_string().as_str()), (254, "IPv4 route in table 254"));
        assert_eq!(read_tagged(NEW_RULE, &body), None, "a rule without a tag");
        for len in 0..body.len() {
            assert_eq!(read_tagged(NEW_ROUTE, &body[..len]), None);
        }
    }
}
