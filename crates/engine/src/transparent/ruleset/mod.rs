//! From settings and facts about the host to tables, rules of routing and routes. Nothing here asks the system.
//!
//! ```text
//!   local application ─→ out_nat (first packet, TCP) ─ redirect ─→ listener for TCP
//!                     ─→ out_mark (every packet)     ─ mark ─→ rule of routing ─→ lo or the TUN interface
//!   lo, lan interface ─→ pre_mark                    ─ tproxy ─→ transparent listener
//!   lan interface     ─→ pre_nat (first packet, TCP) ─ redirect ─→ listener for TCP
//!   any packet        ─→ guard: the listeners answer nothing that was not brought to them
//! ```
//!
//! Rules that exempt traffic come first and are the same everywhere: own sockets by their mark, answers, users and groups,
//! interfaces, addresses of this machine, and the sets of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_model::rule::{AddressRange, Cidr};
use adit_model::{Capture, Selection};
use adit_net::listen::NEAR_CONGESTION;
use adit_net::netlink::nft::{
    Action, Chain, ChainKind, Element, Hook, Match, Rule, Set, SetKind, Table, merge_v4, merge_v6,
};
use adit_net::netlink::route::{MAIN, PolicyRule, Route, RouteKind, RuleAction};

/// The table of the capture.
pub(super) const TABLE: &str = "adit";
/// The table that outlives the process where `strict` asks for it.
pub(super) const STRICT_TABLE: &str = "adit_strict";
/// The sets of addresses that names with a direct way resolve to.
pub(super) const DIRECT: [&str; 2] = ["direct4", "direct6"];

/// The sets of networks that forwarded traffic reaches without the default route.
const ROUTED: [&str; 2] = ["routed4", "routed6"];

const DNS: u16 = 53;
/// Of DNS over TLS.
const DNS_TLS: u16 = 853;
/// `mangle` and `dstnat` of nft(8).
const MANGLE: i32 = -150;
const DSTNAT: i32 = -100;

/// The ports that are listened on, by family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ListenedPorts {
    pub(crate) v4: Option<u16>,
    pub(crate) v6: Option<u16>,
}

/// The way of TCP connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TcpWay {
    /// By another target, to these ports.
    Redirect(ListenedPorts),
    /// As they are, to transparent listeners on loopback.
    Tproxy(ListenedPorts),
    /// By the TUN interface.
    Tun,
}

/// The way of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UdpWay {
    /// As they are, to transparent listeners on loopback.
    Tproxy(ListenedPorts),
    /// By the TUN interface, with ICMP.
    Tun,
    /// Not at all: they are refused at once, so that applications take another way.
    Refuse,
}

/// The ways of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CaptureRoutes {
    pub(crate) tcp: TcpWay,
    /// `None` leaves datagrams alone.
    pub(crate) udp: Option<UdpWay>,
    /// The inbound that answers questions for names.
    pub(crate) dns: Option<ListenedPorts>,
    /// That inbound has no port that anybody knows: it is there for the questions that are brought to it.
    pub(crate) dns_is_hidden: bool,
}

/// Facts about the host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Host {
    /// The system has IPv6.
    pub(crate) has_v6: bool,
    /// Interfaces that are switched on, without the loopback.
    pub(crate) links: Vec<Box<str>>,
    /// The interface of the capture, where it has one.
    pub(crate) interface: Box<str>,
    /// Users of name servers of this machine that adit asks.
    pub(crate) resolvers: Vec<u32>,
    /// The ranges of fake addresses.
    pub(crate) fake: Vec<Cidr>,
    /// Networks of IPv6 that this machine reaches without its default route.
    pub(crate) networks_v6: Vec<Cidr>,
    /// Networks that this machine forwards to without its default route, where forwarded traffic of all interfaces is captured.
    pub(crate) routed: Vec<Cidr>,
    /// Servers that other programs of ours connect to, whose sockets carry no mark.
    pub(crate) servers: Vec<IpAddr>,
    /// Numbers of the users and groups that the settings name: excluded and included.
    pub(crate) users: [Vec<u32>; 2],
    pub(crate) groups: [Vec<u32>; 2],
    /// The prefix of the TUN interface.
    pub(crate) tun_v4: Option<(Ipv4Addr, u8)>,
    pub(crate) tun_v6: Option<(Ipv6Addr, u8)>,
    /// The kernel ends a table with the socket that made it.
    pub(crate) has_owners: bool,
}

/// All that the capture makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ruleset {
    pub(crate) tables: Vec<Table>,
    pub(crate) routes: Vec<Route>,
    pub(crate) rules: Vec<PolicyRule>,
    /// Settings below /proc/sys, with their values.
    pub(crate) sysctls: Vec<(String, &'static str)>,
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.routes.iter().try_for_each(|route| writeln!(f, "{route}"))?;
        self.rules.iter().try_for_each(|rule| writeln!(f, "{rule}"))?;
        self.sysctls.iter().try_for_each(|(name, value)| writeln!(f, "{name} = {value}"))?;
        self.tables.iter().try_for_each(|table| write!(f, "{table}"))
    }
}

/// The capture that `capture` asks for.
pub(crate) fn ruleset(capture: &Capture, ways: CaptureRoutes, host: &Host) -> Ruleset {
    let maker = Maker { capture, ways, host };
    let mut tables = maker.tables();
    if capture.strict {
        tables.push(if maker.routes_all() { maker.strict_table_v6() } else { maker.strict_table() });
    }
    let mut set = Ruleset { tables, routes: Vec::new(), rules: Vec::new(), sysctls: Vec::new() };
    maker.add_routes(&mut set);
    set
}

struct Maker<'a> {
    capture: &'a Capture,
    ways: CaptureRoutes,
    host: &'a Host,
}

fn rule(matches: impl Into<Vec<Match>>, actions: impl Into<Vec<Action>>) -> Rule {
    Rule { matches: matches.into(), actions: actions.into() }
}

fn leave(matched: Match) -> Rule {
    rule([matched], [Action::Return])
}

/// The traffic that takes the interface, where TCP does not.
fn by_interface() -> [Vec<Match>; 3] {
    [vec![Match::Udp], vec![Match::Icmp, Match::Echo], vec![Match::Icmp6, Match::Echo6]]
}

/// A family's match and port, where there is a port.
fn each_port(ports: ListenedPorts) -> impl Iterator<Item = (Match, IpAddr, u16)> {
    let v4 = ports.v4.map(|port| (Match::V4, IpAddr::from(Ipv4Addr::LOCALHOST), port));
    let v6 = ports.v6.map(|port| (Match::V6, IpAddr::from(Ipv6Addr::LOCALHOST), port));
    v4.into_iter().chain(v6)
}

impl Maker<'_> {
    fn has_v6(&self) -> bool {
        self.capture.ipv6 && self.host.has_v6
    }

    fn has_lan(&self) -> bool {
        !self.capture.lan.is_empty()
    }

    /// The rules that leave traffic of interfaces alone which is none of the networks'.
    fn other_interfaces(&self) -> Vec<Rule> {
        if !self.capture.has_any_lan() {
            return vec![leave(Match::NotInOf("lan"))];
        }
        let own = (!self.host.interface.is_empty()).then(|| self.host.interface.clone());
        let mut rules: Vec<Rule> =
            std::iter::once("lo".into()).chain(own).map(|name| leave(Match::In(name))).collect();
        if !self.capture.lan_exclude.is_empty() {
            rules.push(leave(Match::InOf("exclude_lan")));
        }
        rules
    }

    /// The rules that leave forwarded traffic alone which stays between networks, where it may come in by any interface: it
    /// would be taken from the wide world's side, too.
    fn between_networks(&self) -> Vec<Rule> {
        let has =
            |is_v6| self.host.routed.iter().any(|cidr| matches!(cidr.range(), AddressRange::V6(..)) == is_v6);
        let v4 = has(false).then(|| leave(Match::ToV4(ROUTED[0])));
        let v6 = has(true).then(|| leave(Match::ToV6(ROUTED[1])));
        v4.into_iter().chain(v6).collect()
    }

    /// Whether every packet is looked at: connections are told from each other elsewhere.
    fn marks(&self) -> bool {
        matches!(self.ways.udp, Some(UdpWay::Tproxy(_) | UdpWay::Tun))
            || matches!(self.ways.tcp, TcpWay::Tproxy(_))
    }

    /// Everything goes by the TUN interface, and routing alone decides.
    fn routes_all(&self) -> bool {
        self.ways.tcp == TcpWay::Tun
    }

    fn tables(&self) -> Vec<Table> {
        if self.routes_all() {
            // Nothing but the sign that somebody captures.
            return vec![self.table(Vec::new(), Vec::new())];
        }
        let redirects = matches!(self.ways.tcp, TcpWay::Redirect(_)) || self.ways.dns.is_some();
        let mut chains = Vec::new();
        if self.marks() {
            chains.extend(self.pre_mark());
            if self.capture.local {
                chains.push(self.chain("out_mark", ChainKind::Route, Hook::Output, MANGLE, self.out_mark()));
            }
        }
        if redirects {
            if self.has_lan() {
                let rules = self.pre_nat();
                chains.push(self.chain("pre_nat", ChainKind::Nat, Hook::Prerouting, DSTNAT + 1, rules));
            }
            if self.capture.local {
                chains.push(self.chain("out_nat", ChainKind::Nat, Hook::Output, MANGLE + 1, self.out_nat()));
            }
        }
        if self.ways.udp == Some(UdpWay::Refuse) {
            chains.extend(self.refusals());
        }
        let guard = self.guard();
        if !guard.is_empty() {
            chains.push(self.chain("guard", ChainKind::Filter, Hook::Input, MANGLE, guard));
        }
        vec![self.table(self.sets(), chains)]
    }

    fn table(&self, sets: Vec<Set>, chains: Vec<Chain>) -> Table {
        Table { name: TABLE, has_owner: self.host.has_owners, sets, chains }
    }

    /// The only targets that are captured; none for all. A fake address stands for a name, which may have any.
    fn included(&self) -> Vec<Cidr> {
        let include = &self.capture.include.addresses;
        let fake = self.host.fake.iter().filter(|_| !include.is_empty());
        include.iter().chain(fake).copied().collect()
    }

    fn chain(
        &self,
        name: &'static str,
        kind: ChainKind,
        hook: Hook,
        priority: i32,
        rules: Vec<Rule>,
    ) -> Chain {
        Chain { name, kind, hook, priority, rules }
    }

    fn sets(&self) -> Vec<Set> {
        let (exclude, include) = (&self.capture.exclude, &self.capture.include);
        let mut sets = Vec::new();
        let mut add = |name, kind, has_ranges, elements: Vec<Element>| {
            if !elements.is_empty() {
                sets.push(Set { name, kind, has_ranges, has_timeout: false, elements });
            }
        };
        let names = |names: &[Box<str>]| -> Vec<Element> {
            let mut names: Vec<Box<str>> = names.to_vec();
            names.sort();
            names.dedup();
            names.into_iter().map(Element::Name).collect()
        };
        let numbers = |numbers: &[u32]| numbers.iter().map(|number| Element::Number(*number)).collect();
        match self.capture.has_any_lan() {
            true => add("exclude_lan", SetKind::Interface, false, names(&self.capture.lan_exclude)),
            false => add("lan", SetKind::Interface, false, names(&self.capture.lan)),
        }
        let [routed4, routed6] = ranges(self.host.routed.iter().map(|cidr| cidr.range()));
        add(ROUTED[0], SetKind::V4, true, routed4);
        add(ROUTED[1], SetKind::V6, true, routed6);
        let ([no_users, users], [no_groups, groups]) = (&self.host.users, &self.host.groups);
        add("exclude_uid", SetKind::Uid, false, numbers(no_users));
        add("include_uid", SetKind::Uid, false, numbers(users));
        add("exclude_gid", SetKind::Gid, false, numbers(no_groups));
        add("include_gid", SetKind::Gid, false, numbers(groups));
        add("resolver_uid", SetKind::Uid, false, numbers(&self.host.resolvers));
        add("exclude_if", SetKind::Interface, false, names(&exclude.interfaces));
        add("include_if", SetKind::Interface, false, names(&include.interfaces));
        let [no4, no6] = self.excluded(exclude);
        add("exclude4", SetKind::V4, true, no4);
        add("exclude6", SetKind::V6, true, no6);
        let [only4, only6] = ranges(self.included().into_iter().map(Cidr::range));
        add("include4", SetKind::V4, true, only4);
        add("include6", SetKind::V6, true, only6);
        for (name, kind) in DIRECT.into_iter().zip([SetKind::V4, SetKind::V6]) {
            sets.push(Set { name, kind, has_ranges: false, has_timeout: true, elements: Vec::new() });
        }
        sets
    }

    /// Addresses that never are captured, those of the settings, and the servers of other programs of ours.
    fn excluded(&self, exclude: &Selection) -> [Vec<Element>; 2] {
        ranges(self.excluded_ranges(exclude).into_iter())
    }

    fn excluded_ranges(&self, exclude: &Selection) -> Vec<AddressRange> {
        let fixed = [
            "127.0.0.0/8",
            "169.254.0.0/16",
            "224.0.0.0/4",
            "255.255.255.255",
            "::1",
            "fe80::/10",
            "ff00::/8",
        ];
        let fixed = fixed.into_iter().filter_map(Cidr::parse).map(Cidr::range);
        let own = exclude.addresses.iter().map(|cidr| cidr.range());
        let whole = |ip: &IpAddr| Cidr::new(*ip, if ip.is_ipv4() { 32 } else { 128 });
        let servers = self.host.servers.iter().filter_map(whole).map(Cidr::range);
        fixed.chain(own).chain(servers).collect()
    }

    /// Traffic that leaves this machine's sockets and is exempt.
    fn local_exemptions(&self) -> Vec<Rule> {
        let (exclude, include) = (&self.capture.exclude, &self.capture.include);
        let ([no_users, users], [no_groups, groups]) = (&self.host.users, &self.host.groups);
        let given = [
            (!no_users.is_empty(), Match::UidOf("exclude_uid")),
            (!users.is_empty(), Match::NotUidOf("include_uid")),
            (!no_groups.is_empty(), Match::GidOf("exclude_gid")),
            (!groups.is_empty(), Match::NotGidOf("include_gid")),
            (!exclude.interfaces.is_empty(), Match::OutOf("exclude_if")),
            (!include.interfaces.is_empty(), Match::NotOutOf("include_if")),
        ];
        let given = given.into_iter().filter(|(is_given, _)| *is_given).map(|(_, matched)| leave(matched));
        let own = [(Match::Udp, DNS), (Match::Tcp, DNS), (Match::Tcp, DNS_TLS)];
        let own = own
            .into_iter()
            .filter(|_| !self.host.resolvers.is_empty())
            .map(|(l4, port)| rule([Match::UidOf("resolver_uid"), l4, Match::Port(port)], [Action::Return]));
        given.chain(own).collect()
    }

    /// Targets that are exempt.
    fn target_exemptions(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = [
            Match::ToLocal,
            Match::ToBroadcast,
            Match::ToMulticast,
            Match::ToV4("exclude4"),
            Match::ToV6("exclude6"),
            Match::ToV4(DIRECT[0]),
            Match::ToV6(DIRECT[1]),
        ]
        .map(leave)
        .into();
        let include = self.included();
        if !include.is_empty() {
            let has =
                |is_v4| include.iter().any(|cidr| matches!(cidr.range(), AddressRange::V4(..)) == is_v4);
            rules.push(leave(if has(true) { Match::NotToV4("include4") } else { Match::V4 }));
            rules.push(leave(if has(false) { Match::NotToV6("include6") } else { Match::V6 }));
        }
        if !self.has_v6() {
            rules.push(leave(Match::V6));
        }
        rules
    }

    /// Questions for names, which [`Maker::pre_nat`] and [`Maker::out_nat`] take.
    fn dns_exemptions(&self) -> Vec<Rule> {
        if self.ways.dns.is_none() {
            return Vec::new();
        }
        [Match::Tcp, Match::Udp].map(|l4| rule([l4, Match::Port(DNS)], [Action::Return])).into()
    }

    /// The traffic that is marked. Of ICMP no more than what applications ask: the kernel's own messages keep their way.
    fn marked(&self) -> Vec<Vec<Match>> {
        let mut all = Vec::new();
        if matches!(self.ways.tcp, TcpWay::Tproxy(_)) {
            all.push(vec![Match::Tcp]);
        }
        match self.ways.udp {
            Some(UdpWay::Tproxy(_)) => all.push(vec![Match::Udp]),
            Some(UdpWay::Tun) => all.extend(by_interface()),
            Some(UdpWay::Refuse) | None => {}
        }
        all
    }

    /// The transparent listeners, with the transport of each.
    fn transparent(&self) -> Vec<(Match, ListenedPorts)> {
        let mut all = Vec::new();
        if let TcpWay::Tproxy(ports) = self.ways.tcp {
            all.push((Match::Tcp, ports));
        }
        if let Some(UdpWay::Tproxy(ports)) = self.ways.udp {
            all.push((Match::Udp, ports));
        }
        all
    }

    /// Packets that come in: those of this machine that were marked and sent to `lo`, and those of networks.
    fn pre_mark(&self) -> Option<Chain> {
        let transparent = self.transparent();
        if transparent.is_empty() && !self.has_lan() {
            return None;
        }
        let mark = self.capture.mark;
        let mut rules = vec![leave(Match::Mark(self.capture.own_mark)), leave(Match::Reply)];
        for (l4, ports) in &transparent {
            for (family, ip, port) in each_port(*ports) {
                let matches = [Match::In("lo".into()), Match::Mark(mark), family, l4.clone()];
                rules.push(rule(matches, [Action::Tproxy(ip, port), Action::Accept]));
            }
        }
        if self.has_lan() {
            rules.extend(self.other_interfaces());
            rules.extend(self.dns_exemptions());
            rules.extend(self.between_networks());
            if matches!(self.ways.tcp, TcpWay::Tproxy(_)) {
                // A connection that is open stays, even if the sets below have its target by now. Not for datagrams: they would
                // reach the socket that answers come from.
                let matches = [Match::Tcp, Match::HasTransparentSocket];
                rules.push(rule(matches, [Action::SetMark(mark), Action::Accept]));
            }
            rules.extend(self.target_exemptions());
            for (l4, ports) in &transparent {
                for (family, ip, port) in each_port(*ports) {
                    let actions = [Action::SetMark(mark), Action::Tproxy(ip, port), Action::Accept];
                    rules.push(rule([family, l4.clone()], actions));
                }
            }
            if self.ways.udp == Some(UdpWay::Tun) {
                rules.extend(self.marked().into_iter().map(|what| rule(what, [Action::SetMark(mark)])));
            }
        }
        Some(self.chain("pre_mark", ChainKind::Filter, Hook::Prerouting, MANGLE, rules))
    }

    /// Packets of this machine's sockets that are to be routed again.
    fn out_mark(&self) -> Vec<Rule> {
        let mut rules = vec![leave(Match::Mark(self.capture.own_mark)), leave(Match::Reply)];
        rules.extend(self.local_exemptions());
        rules.extend(self.dns_exemptions());
        rules.extend(self.target_exemptions());
        let mark = Action::SetMark(self.capture.mark);
        rules.extend(self.marked().into_iter().map(|what| rule(what, [mark.clone()])));
        rules
    }

    /// New connections of networks.
    fn pre_nat(&self) -> Vec<Rule> {
        let mut rules = self.other_interfaces();
        rules.push(leave(Match::Mark(self.capture.own_mark)));
        if self.capture.has_any_lan() {
            // A name server of this machine is asked as before: some of the questions come from elsewhere.
            rules.push(leave(Match::ToLocal));
            rules.extend(self.between_networks());
        }
        rules.extend(self.dns_redirects(None));
        self.redirects(&mut rules);
        rules
    }

    /// New connections of this machine.
    fn out_nat(&self) -> Vec<Rule> {
        let mut rules = vec![leave(Match::Mark(self.capture.own_mark))];
        rules.extend(self.local_exemptions());
        // Name servers of this machine on loopback are asked as before; their own questions are taken.
        rules.extend(self.dns_redirects(Some(Match::NotOut("lo".into()))));
        self.redirects(&mut rules);
        rules
    }

    fn dns_redirects(&self, first: Option<Match>) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (family, _, port) in self.ways.dns.into_iter().flat_map(each_port) {
            for l4 in [Match::Tcp, Match::Udp] {
                let mut matches: Vec<Match> = first.iter().cloned().collect();
                matches.extend([family.clone(), l4, Match::Port(DNS)]);
                rules.push(rule(matches, [Action::Redirect(port)]));
            }
        }
        rules
    }

    fn redirects(&self, rules: &mut Vec<Rule>) {
        let TcpWay::Redirect(ports) = self.ways.tcp else { return };
        rules.extend(self.target_exemptions());
        for (family, _, port) in each_port(ports) {
            rules.push(rule([family, Match::Tcp], [Action::Redirect(port)]));
        }
    }

    /// The listeners answer nothing else: the one for redirected connections nobody that asks it itself, the one for names
    /// nobody outside this machine and the networks that are named.
    fn guard(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        if let TcpWay::Redirect(ports) = self.ways.tcp {
            for (family, _, port) in each_port(ports) {
                let matches = [family, Match::Tcp, Match::Port(port), Match::NotRedirected];
                rules.push(rule(matches, [Action::Reset]));
            }
        }
        // With all interfaces, a port that is known looks at who asks, by the networks of its inbound.
        let (is_any, is_hidden) = (self.capture.has_any_lan(), self.ways.dns_is_hidden);
        let Some(dns) = self.ways.dns.filter(|_| is_hidden || !is_any) else { return rules };
        rules.push(leave(Match::In("lo".into())));
        if self.has_lan() && !is_any {
            rules.push(leave(Match::InOf("lan")));
        }
        for (family, _, port) in each_port(dns) {
            for (l4, action) in [(Match::Tcp, Action::Reset), (Match::Udp, Action::Prohibit)] {
                let mut matches = vec![family.clone(), l4, Match::Port(port)];
                matches.extend(is_any.then_some(Match::NotRedirected));
                rules.push(rule(matches, [action]));
            }
        }
        rules
    }

    /// Refuses datagrams that nothing carries.
    fn refusals(&self) -> Vec<Chain> {
        let refuse = |mut rules: Vec<Rule>| {
            rules.extend(self.target_exemptions());
            rules.push(rule([Match::Udp], [Action::Unreachable]));
            rules
        };
        let mut out = vec![leave(Match::Mark(self.capture.own_mark)), leave(Match::Reply)];
        out.extend(self.local_exemptions());
        let mut chains = Vec::new();
        if self.capture.local {
            chains.push(self.chain("out_refuse", ChainKind::Filter, Hook::Output, 0, refuse(out)));
        }
        if self.has_lan() {
            let mut forward = vec![leave(Match::Reply)];
            forward.extend(self.other_interfaces());
            forward.extend(self.between_networks());
            let forward = refuse(forward);
            chains.push(self.chain("forward_refuse", ChainKind::Filter, Hook::Forward, 0, forward));
        }
        chains
    }

    /// Refuses what would be captured and was not. While the process runs nothing comes so far: it goes to this machine or
    /// carries the mark.
    fn strict_table(&self) -> Table {
        let begin = || {
            let marks = [self.capture.own_mark, self.capture.mark];
            let mut rules: Vec<Rule> = marks.map(|mark| leave(Match::Mark(mark))).into();
            rules.push(leave(Match::Reply));
            rules
        };
        let end = |rules: &mut Vec<Rule>| {
            rules.extend(self.target_exemptions());
            rules.push(rule([Match::Tcp], [Action::Reset]));
            match self.ways.udp {
                Some(UdpWay::Tun) => {
                    rules.extend(by_interface().into_iter().map(|what| rule(what, [Action::Prohibit])));
                }
                Some(UdpWay::Tproxy(_) | UdpWay::Refuse) => {
                    rules.push(rule([Match::Udp], [Action::Prohibit]))
                }
                None => {}
            }
        };
        let (mut out, mut forward) = (begin(), begin());
        out.extend(self.local_exemptions());
        end(&mut out);
        let mut chains = Vec::new();
        if self.capture.local {
            chains.push(self.chain("out", ChainKind::Filter, Hook::Output, 0, out));
        }
        if self.has_lan() {
            forward.extend(self.other_interfaces());
            forward.extend(self.between_networks());
            end(&mut forward);
            chains.push(self.chain("forward", ChainKind::Filter, Hook::Forward, 0, forward));
        }
        Table { name: STRICT_TABLE, has_owner: false, sets: self.sets(), chains }
    }

    /// The same for this machine's own IPv6, where routing alone decides: without the interface, a socket is given an address of
    /// this machine although the first route that is looked up is one of kind `unreachable`, and that address has its way.
    fn strict_table_v6(&self) -> Table {
        let mut sets = self.sets();
        let named = vec![Element::Name(self.host.interface.clone())];
        let [_, networks] = ranges(self.host.networks_v6.iter().map(|cidr| cidr.range()));
        for (name, kind, has_ranges, elements) in
            [("interface", SetKind::Interface, false, named), ("networks6", SetKind::V6, true, networks)]
        {
            sets.push(Set { name, kind, has_ranges, has_timeout: false, elements });
        }
        let mut rules =
            vec![leave(Match::V4), leave(Match::Mark(self.capture.own_mark)), leave(Match::Reply)];
        rules.extend(self.local_exemptions());
        rules.extend([leave(Match::OutOf("interface")), leave(Match::ToV6("networks6"))]);
        rules.extend(self.target_exemptions());
        rules.push(rule([Match::Tcp], [Action::Reset]));
        rules.push(rule([Match::Udp], [Action::Prohibit]));
        rules.push(rule([Match::Icmp6, Match::Echo6], [Action::Prohibit]));
        let is_taken = self.capture.local;
        let out = is_taken.then(|| self.chain("out", ChainKind::Filter, Hook::Output, 0, rules));
        let chains = out.into_iter().collect();
        Table { name: STRICT_TABLE, has_owner: false, sets, chains }
    }

    fn add_routes(&self, set: &mut Ruleset) {
        let families: &[bool] = if self.has_v6() { &[false, true] } else { &[false] };
        for is_v6 in families.iter().copied() {
            let any: IpAddr = if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
            if !self.transparent().is_empty() {
                let table = self.capture.tproxy_table();
                // A socket that is bound to an interface finds routes over that interface alone.
                let links = self.host.links.iter().cloned();
                let links = std::iter::once("lo".into()).chain(links);
                set.routes.extend(links.map(|link| Route::new((any, 0), RouteKind::Local(link), table)));
                set.rules.push(self.marked_rule(is_v6, self.capture.priority - 1, table));
            }
            if matches!(self.ways.tcp, TcpWay::Redirect(_)) || self.ways.dns.is_some() {
                self.add_bound_routes(is_v6, set);
            }
            if self.ways.udp == Some(UdpWay::Tun) || self.routes_all() {
                self.add_tun_routes(is_v6, set);
                let table = self.capture.table;
                match self.routes_all() {
                    true => self.add_route_all_rules(is_v6, set),
                    false => set.rules.push(self.marked_rule(is_v6, self.capture.priority + 1, table)),
                }
            }
        }
        if self.ways.udp == Some(UdpWay::Tun) || self.routes_all() {
            let name = &self.host.interface;
            set.sysctls.push((format!("net/ipv4/conf/{name}/rp_filter"), "2"));
        }
    }

    fn marked_rule(&self, is_v6: bool, priority: u32, table: u32) -> PolicyRule {
        let mark = Some(self.capture.mark);
        PolicyRule { mark, ..PolicyRule::new(is_v6, priority, RuleAction::Table(table)) }
    }

    /// A connection of a socket that is bound to an interface is redirected to loopback, which that interface must lead to.
    fn add_bound_routes(&self, is_v6: bool, set: &mut Ruleset) {
        let table = self.capture.bound_table();
        let (to, len): (IpAddr, u8) =
            if is_v6 { (Ipv6Addr::LOCALHOST.into(), 128) } else { (Ipv4Addr::LOCALHOST.into(), 32) };
        for link in &self.host.links {
            set.routes.push(Route::new((to, len), RouteKind::Local(link.clone()), table));
        }
        if !self.host.links.is_empty() {
            set.rules.push(PolicyRule::new(is_v6, self.capture.priority - 2, RuleAction::Table(table)));
        }
    }

    /// The routes of the interface: all that comes to its table, or what is included. If no rule of the firewall leaves
    /// targets alone, their prefixes lead back to the rules of routing.
    fn add_tun_routes(&self, is_v6: bool, set: &mut Ruleset) {
        let table = self.capture.table;
        let any: IpAddr = if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let link = || RouteKind::Link(self.host.interface.clone());
        if !self.routes_all() {
            set.routes.push(Route::new((any, 0), link(), table));
            return;
        }
        let included = self.included();
        let only = included.iter().map(|cidr| prefix(cidr.range())).filter(|(ip, _)| ip.is_ipv6() == is_v6);
        let to: Vec<_> = if included.is_empty() { vec![(any, 0)] } else { only.collect() };
        let congestion = Some(NEAR_CONGESTION);
        set.routes.extend(to.iter().map(|to| Route { congestion, ..Route::new(*to, link(), table) }));
        if self.capture.strict {
            // They stay when the interface goes.
            let kept = to.iter().map(|to| Route::new(*to, RouteKind::Unreachable, table));
            set.routes.extend(kept);
        }
        let excluded = self.excluded_ranges(&self.capture.exclude);
        let excluded = excluded.into_iter().map(prefix).filter(|(ip, _)| ip.is_ipv6() == is_v6);
        set.routes.extend(excluded.map(|to| Route::new(to, RouteKind::Throw, table)));
    }

    /// Everything that has no address of this machine yet goes by the TUN interface, but for what the main table has a route
    /// for beyond its default. Sockets that answer from an address of this machine keep their way.
    fn add_route_all_rules(&self, is_v6: bool, set: &mut Ruleset) {
        let (capture, to_tun) = (self.capture, RuleAction::Table(self.capture.table));
        let (at, main) = (capture.priority, RuleAction::Table(MAIN));
        let local = |priority, from, action| PolicyRule {
            link: Some("lo".into()),
            from,
            ..PolicyRule::new(is_v6, priority, action)
        };
        let mark = Some(capture.own_mark);
        set.rules.push(PolicyRule { mark, ..PolicyRule::new(is_v6, at, main) });
        let [excluded, included] = &self.host.users;
        for uids in runs(excluded) {
            set.rules.push(PolicyRule { uids: Some(uids), ..local(at, None, main) });
        }
        for uids in runs(&self.host.resolvers) {
            let ports = [DNS, DNS_TLS].map(Some);
            let uids = Some(uids);
            set.rules.extend(ports.map(|port| PolicyRule { uids, port, ..local(at, None, main) }));
        }
        // All, or each of those whose traffic alone is taken.
        let users: Vec<Option<(u32, u32)>> = match (capture.local, included.is_empty()) {
            (false, _) => Vec::new(),
            (true, true) => vec![None],
            (true, false) => runs(included).into_iter().map(Some).collect(),
        };
        let beyond = PolicyRule::new(is_v6, at + 1, RuleAction::TableBeyond(MAIN, 0));
        // Name servers of the network are asked by the interface too, where it answers in their place.
        let has_dns = self.ways.dns.is_some();
        let beyond = PolicyRule { port: has_dns.then_some(DNS), is_inverted: has_dns, ..beyond };
        let to_interface = |priority, from| {
            let of = |uids: &Option<(u32, u32)>| PolicyRule { uids: *uids, ..local(priority, from, to_tun) };
            users.iter().map(of).collect::<Vec<_>>()
        };
        // All that is not of this machine itself. It stands in front of those with a prefix: the kernel compares no prefix if
        // the new rule has none, and no inversion at all.
        let forwarded = || PolicyRule { is_inverted: true, ..local(at + 2, None, to_tun) };
        if is_v6 {
            // A rule with a prefix does not match while there is no address, so those that have one are sent away first. The
            // route is looked up again once the packet has the interface's address.
            if let Some((ip, len)) = self.host.tun_v6 {
                set.rules.extend(to_interface(at + 1, Some((ip.into(), len))));
            }
            let halves = [Ipv6Addr::UNSPECIFIED, Ipv6Addr::new(0x8000, 0, 0, 0, 0, 0, 0, 0)];
            set.rules.extend(halves.map(|half| local(at + 1, Some((half.into(), 1)), main)));
            set.rules.push(beyond);
            match (capture.has_any_lan(), &*users) {
                // The same as both, which the kernel takes for one rule.
                (true, [None]) => set.rules.push(PolicyRule::new(is_v6, at + 2, to_tun)),
                (is_any, _) => {
                    set.rules.extend(is_any.then(forwarded));
                    set.rules.extend(to_interface(at + 2, None));
                }
            }
        } else {
            set.rules.push(beyond);
            set.rules.extend(capture.has_any_lan().then(forwarded));
            set.rules.extend(to_interface(at + 2, Some((Ipv4Addr::UNSPECIFIED.into(), 32))));
            if let Some((ip, len)) = self.host.tun_v4 {
                set.rules.extend(to_interface(at + 2, Some((ip.into(), len))));
            }
        }
        if capture.has_any_lan() {
            let straight = capture.lan_exclude.iter().chain([&self.host.interface]);
            set.rules.extend(
                straight
                    .map(|link| PolicyRule { link: Some(link.clone()), ..PolicyRule::new(is_v6, at, main) }),
            );
            return;
        }
        for link in &capture.lan {
            set.rules.push(PolicyRule { link: Some(link.clone()), ..PolicyRule::new(is_v6, at + 2, to_tun) });
        }
    }
}

/// Numbers in ascending order as ranges.
fn runs(numbers: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    runs
}

/// A range that is a prefix, by its first address and length.
fn prefix(range: AddressRange) -> (IpAddr, u8) {
    let len = |bits: u32| u8::try_from(bits).unwrap_or(128);
    match range {
        AddressRange::V4(first, last) => {
            (Ipv4Addr::from_bits(first).into(), len((first ^ last).leading_zeros()))
        }
        AddressRange::V6(first, last) => {
            (Ipv6Addr::from_bits(first).into(), len((first ^ last).leading_zeros()))
        }
    }
}

/// Ranges by family, joined.
fn ranges(all: impl Iterator<Item = AddressRange>) -> [Vec<Element>; 2] {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for range in all {
        match range {
            AddressRange::V4(first, last) => v4.push((Ipv4Addr::from(first), Ipv4Addr::from(last))),
            AddressRange::V6(first, last) => v6.push((Ipv6Addr::from(first), Ipv6Addr::from(last))),
        }
    }
    [merge_v4(v4), merge_v6(v6)]
}

#[cfg(test)]
mod tests;
