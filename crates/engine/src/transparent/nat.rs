//! Rules that are made once and left there, for listeners whose owner keeps them so.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};

use adit_model::rule::{AddressRange, Cidr};
use adit_model::{Clients, Nat};
use adit_net::netlink::nft::{
    self, Action, Chain, ChainKind, Element, Hook, Match, NftBatch, Rule, Set, SetKind, Table, merge_v4,
};
use adit_net::netlink::route::{PolicyRule, Route, RouteKind, RuleAction, links};
use adit_net::netlink::{Family, Netlink};
use adit_proto::wire::Host;

use super::CaptureError;
use super::stale_rules::{open, remove_tagged};

const TABLE: &str = "ss_nat";
const BYPASS: &str = "bypass4";
const CLIENTS: &str = "clients4";
/// The mark, the table of routes and the priority of the rule for datagrams.
const MARK: u32 = 1;
const ROUTES: u32 = 100;
const PRIORITY: u32 = 32_000;
const MANGLE: i32 = -150;
const DSTNAT: i32 = -100;

/// Makes the rules in the place of those that were made before. They stay when the process ends.
///
/// # Errors
/// The kernel's refusal; names of servers that cannot be looked up.
pub fn make(nat: &Nat) -> Result<(), CaptureError> {
    let mut servers: Vec<IpAddr> = nat.server_addresses().collect();
    for host in &nat.servers {
        let Host::Name(name) = host else { continue };
        let what = || format!("server {name} cannot be looked up");
        let found = (&**name, 0).to_socket_addrs();
        let found = found.map_err(|source| CaptureError::System { what: what(), source })?;
        servers.extend(found.map(|addr: SocketAddr| addr.ip()));
    }
    let table = table(nat, &servers);
    flush()?;
    if nat.udp.is_some() {
        let mut routing = open(Family::Route)?;
        let links = links(&mut routing)?;
        let any = Ipv4Addr::UNSPECIFIED.into();
        Route::new((any, 0), RouteKind::Local("lo".into()), ROUTES).add(&mut routing, &links)?;
        let rule = PolicyRule::new(false, PRIORITY, RuleAction::Table(ROUTES));
        PolicyRule { mark: Some(MARK), ..rule }.add(&mut routing)?;
    }
    let mut batch = NftBatch::new();
    batch.add_table(&table);
    Ok(batch.commit(&mut open(Family::Netfilter)?)?)
}

/// Removes the rules.
///
/// # Errors
/// The kernel's refusal.
pub fn flush() -> Result<(), CaptureError> {
    let mut netlink: Netlink = open(Family::Netfilter)?;
    if nft::tables(&mut netlink)?.iter().any(|table| table.name == TABLE) {
        let mut batch = NftBatch::new();
        batch.remove_table(TABLE);
        batch.commit(&mut netlink)?;
    }
    remove_tagged(&mut open(Family::Route)?).map(drop)
}

fn table(nat: &Nat, servers: &[IpAddr]) -> Table {
    let whole = servers.iter().filter(|ip| ip.is_ipv4()).filter_map(|ip| Cidr::new(*ip, 32));
    let bypass = without(v4(nat.bypass.iter().copied().chain(whole)), v4(nat.forward.iter().copied()));
    let mut sets = vec![set(BYPASS, bypass)];
    let of_clients = nat.clients.as_ref().map(|clients| match clients {
        Clients::Only(list) => (list, Match::FromV4(CLIENTS)),
        Clients::AllBut(list) => (list, Match::NotFromV4(CLIENTS)),
    });
    if let Some((list, _)) = &of_clients {
        sets.push(set(CLIENTS, v4(list.iter().copied())));
    }
    let forwarded = |l4: Match, actions: Vec<Action>| {
        let mut matches = vec![Match::In(nat.interface.clone())];
        matches.extend(of_clients.iter().map(|(_, matched)| matched.clone()));
        matches.extend([Match::NotToV4(BYPASS), l4]);
        Rule { matches, actions }
    };
    let redirect = vec![Action::Redirect(nat.tcp)];
    let chain = |name, kind, hook, priority, rule| Chain { name, kind, hook, priority, rules: vec![rule] };
    let pre = forwarded(Match::Tcp, redirect.clone());
    let mut chains = vec![chain("pre_nat", ChainKind::Nat, Hook::Prerouting, DSTNAT, pre)];
    if nat.output {
        let out = Rule { matches: vec![Match::NotToV4(BYPASS), Match::Tcp], actions: redirect };
        chains.push(chain("out_nat", ChainKind::Nat, Hook::Output, DSTNAT, out));
    }
    if let Some(port) = nat.udp {
        let hand_over = Action::Tproxy(Ipv4Addr::LOCALHOST.into(), port);
        let rule = forwarded(Match::Udp, vec![Action::SetMark(MARK), hand_over, Action::Accept]);
        chains.push(chain("pre_mark", ChainKind::Filter, Hook::Prerouting, MANGLE, rule));
    }
    Table { name: TABLE, has_owner: false, sets, chains }
}

fn set(name: &'static str, ranges: Vec<(u32, u32)>) -> Set {
    let elements: Vec<Element> = merge_v4(ranges.into_iter().map(|(a, b)| (a.into(), b.into())));
    Set { name, kind: SetKind::V4, has_ranges: true, has_timeout: false, elements }
}

fn v4(cidrs: impl Iterator<Item = Cidr>) -> Vec<(u32, u32)> {
    let range = |cidr: Cidr| match cidr.range() {
        AddressRange::V4(first, last) => Some((first, last)),
        AddressRange::V6(..) => None,
    };
    cidrs.filter_map(range).collect()
}

/// The addresses of `ranges` that no range of `taken` has.
fn without(mut ranges: Vec<(u32, u32)>, taken: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    for (first, last) in taken {
        let cut = |(a, b): (u32, u32)| {
            let before = (a < first).then(|| (a, b.min(first.saturating_sub(1))));
            let behind = (b > last).then(|| (a.max(last.saturating_add(1)), b));
            before.into_iter().chain(behind)
        };
        ranges = ranges.into_iter().flat_map(cut).collect();
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidrs(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| Cidr::parse(text).unwrap()).collect()
    }

    #[test]
    fn the_rules_as_nft_has_them() {
        let nat = Nat {
            servers: Vec::new(),
            tcp: 1080,
            udp: Some(1081),
            interface: "br0".into(),
            bypass: cidrs(&["10.0.0.0/8", "192.168.0.0/16"]),
            forward: cidrs(&["10.9.0.0/16"]),
            clients: Some(Clients::AllBut(cidrs(&["192.168.1.7"]))),
            output: true,
        };
        let want = "\
table inet ss_nat {
	set bypass4 { type ipv4_addr; flags interval; elements = { 10.0.0.0-10.8.255.255, 10.10.0.0-10.255.255.255, 192.0.2.9, 192.168.0.0-192.168.255.255 }; }
	set clients4 { type ipv4_addr; flags interval; elements = { 192.168.1.7 }; }
	chain pre_nat {
		type nat hook prerouting priority -100; policy accept;
		iifname \"br0\" ip saddr != @clients4 ip daddr != @bypass4 meta l4proto tcp redirect to :1080
	}
	chain out_nat {
		type nat hook output priority -100; policy accept;
		ip daddr != @bypass4 meta l4proto tcp redirect to :1080
	}
	chain pre_mark {
		type filter hook prerouting priority -150; policy accept;
		iifname \"br0\" ip saddr != @clients4 ip daddr != @bypass4 meta l4proto udp meta mark set 0x00000001 tproxy ip to 127.0.0.1:1081 accept
	}
}
";
        assert_eq!(table(&nat, &["192.0.2.9".parse().unwrap()]).to_string(), want);
    }

    #[test]
    fn ranges_are_cut() {
        assert_eq!(without(vec![(0, 9)], vec![(3, 4)]), [(0, 2), (5, 9)]);
        assert_eq!(without(vec![(0, 9)], vec![(0, 9)]), []);
        assert_eq!(without(vec![(5, u32::MAX)], vec![(0, 6), (9, u32::MAX)]), [(7, 8)]);
        assert_eq!(without(vec![(5, 6)], vec![(0, 4)]), [(5, 6)]);
    }
}
