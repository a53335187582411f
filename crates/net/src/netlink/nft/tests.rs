//! The encoder beside nft(8).

use std::io::Write as _;
use std::net::Ipv6Addr;
use std::process::{Command, Stdio};

use adit_testkit::{has_nftables, in_own_network};

use super::*;
use crate::netlink::Family;

/// Rules as nft 1.0.6 lists them, and the bytes that it sends for them on a little-endian machine.
const GOLDEN: &str = include_str!("golden.txt");

fn set(name: &'static str, kind: SetKind, elements: Vec<Element>) -> Set {
    let has_ranges = matches!(kind, SetKind::V4 | SetKind::V6);
    Set { name, kind, has_ranges, has_timeout: false, elements }
}

fn number(number: u32) -> Element {
    Element::Number(number)
}

/// The sets of the recorded rules, in their order.
fn sets() -> Vec<Set> {
    let v4 = |a: &str, b: &str| (a.parse().unwrap(), b.parse().unwrap());
    let v6 = |a: &str, b: &str| (a.parse().unwrap(), b.parse().unwrap());
    let with_end = Set { has_ranges: false, has_timeout: true, ..set("d4", SetKind::V4, Vec::new()) };
    vec![
        set("bypass_uid", SetKind::Uid, vec![number(1000), number(65534)]),
        set("bypass_gid", SetKind::Gid, vec![number(7)]),
        set("lan", SetKind::Interface, vec![Element::Name("eth0".into())]),
        with_end,
        set(
            "i4",
            SetKind::V4,
            merge_v4([
                v4("192.168.0.0", "192.168.0.255"),
                v4("10.0.0.0", "10.9.255.255"),
                v4("10.10.0.0", "10.255.255.255"),
                v4("255.255.255.255", "255.255.255.255"),
            ]),
        ),
        set(
            "i6",
            SetKind::V6,
            merge_v6([
                v6("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
                v6("fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ]),
        ),
    ]
}

fn rule(matches: impl Into<Vec<Match>>, actions: impl Into<Vec<Action>>) -> Rule {
    Rule { matches: matches.into(), actions: actions.into() }
}

/// The recorded rules, chain by chain.
fn rules() -> [Vec<Rule>; 4] {
    use Action::{Accept, Prohibit, Redirect, Reset, Return, SetMark, Tproxy};
    let tproxy = |ip: &str| [SetMark(0x2023), Tproxy(ip.parse().unwrap(), 99), Accept];
    [
        vec![
            rule([Match::Mark(0x2024)], [Return]),
            rule([Match::Tcp, Match::HasTransparentSocket], [SetMark(0x2023), Accept]),
            rule([Match::V4, Match::Udp], tproxy("127.0.0.1")),
            rule([Match::V6, Match::Udp], tproxy("::1")),
            rule([Match::ToLocal], [Return]),
            rule([Match::NotInOf("lan")], [Return]),
            rule([Match::In("adt0".into())], [Return]),
            rule([Match::ToV4("i4")], [Return]),
            rule([Match::NotToV6("i6")], [Return]),
        ],
        vec![
            rule([Match::UidOf("bypass_uid")], [Return]),
            rule([Match::NotGidOf("bypass_gid")], [Return]),
            rule([Match::Reply], [Return]),
            rule([Match::NotOut("lo".into()), Match::Udp, Match::Port(53)], [Accept]),
        ],
        vec![rule([Match::Tcp], [Redirect(99)])],
        vec![
            rule([Match::Tcp, Match::Port(99), Match::NotRedirected], [Reset]),
            rule([Match::Udp], [Prohibit]),
        ],
    ]
}

fn table(name: &'static str, has_owner: bool) -> Table {
    let [pre, out, nat, input] = rules();
    let chain = |name, kind, hook, priority, rules| Chain { name, kind, hook, priority, rules };
    let chains = vec![
        chain("a", ChainKind::Filter, Hook::Prerouting, -150, pre),
        chain("o", ChainKind::Route, Hook::Output, -150, out),
        chain("n", ChainKind::Nat, Hook::Output, -149, nat),
        chain("in", ChainKind::Filter, Hook::Input, 0, input),
    ];
    Table { name, has_owner, sets: sets(), chains }
}

#[cfg(target_endian = "little")]
#[test]
fn rules_have_the_bytes_of_nft() {
    let all: Vec<Rule> = rules().into_iter().flatten().collect();
    assert_eq!(GOLDEN.lines().count(), all.len());
    for (line, rule) in GOLDEN.lines().zip(all) {
        let (text, hex) = line.rsplit_once(" = ").unwrap();
        assert_eq!(rule.to_string(), text);
        let mut messages = Messages::default();
        rule.emit(&sets(), &mut messages);
        let own: String = messages.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(own, hex, "{text}");
    }
}

#[test]
fn ranges_are_joined_and_the_last_address_has_no_end() {
    let sets = sets();
    assert_eq!(
        sets[4].to_string(),
        "set i4 { type ipv4_addr; flags interval; elements = { 10.0.0.0-10.255.255.255, 192.168.0.0-192.168.0.255, 255.255.255.255 }; }"
    );
    let keys: Vec<_> = sets[5].elements.iter().flat_map(|element| element.keys(true)).collect();
    let first = |ip: &str| ip.parse::<Ipv6Addr>().unwrap().octets().to_vec();
    assert_eq!(keys, [(first("fe80::"), false), (first("fec0::"), true), (first("ff00::"), false)]);
}

#[test]
fn a_long_list_fits_its_messages() {
    let elements = (0..70_000_u32).map(|at| Element::V4((at * 4).into(), (at * 4 + 1).into())).collect();
    let mut batch = NftBatch::new();
    batch.add_table(&Table {
        sets: vec![set("many", SetKind::V4, elements)],
        chains: Vec::new(),
        ..table("t", false)
    });
    assert_eq!(batch.0.len(), 1 + 1 + 1 + 70_000_usize.div_ceil(500));
}

fn nft(args: &[&str], input: &str) -> Option<String> {
    let mut command = Command::new("nft");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().ok()?;
    child.stdin.take()?.write_all(input.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    assert!(output.status.success(), "nft {args:?} of:\n{input}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_kernel_has_what_the_text_says() {
    if !has_nftables() || !in_own_network("netlink::nft::tests::the_kernel_has_what_the_text_says") {
        return;
    }
    let mut netlink = Netlink::open(Family::Netfilter).unwrap();
    let mut batch = NftBatch::new();
    batch.add_table(&table("ours", false));
    batch.commit(&mut netlink).unwrap();
    let ours = nft(&["list", "table", "inet", "ours"], "").unwrap();
    nft(&["-f", "-"], &table("theirs", false).to_string());
    let theirs = nft(&["list", "table", "inet", "theirs"], "").unwrap();
    assert_eq!(ours.replace("table inet ours", "table inet theirs"), theirs);
    let mut batch = NftBatch::new();
    batch.add_address("ours", "d4", "192.0.2.7".parse().unwrap(), Duration::from_secs(60));
    batch.commit(&mut netlink).unwrap();
    let listed = nft(&["list", "set", "inet", "ours", "d4"], "").unwrap();
    assert!(listed.contains("192.0.2.7 timeout 1m"), "{listed}");
    let mut batch = NftBatch::new();
    batch.remove_address("ours", "d4", "192.0.2.7".parse().unwrap());
    batch.commit(&mut netlink).unwrap();
    assert!(!nft(&["list", "set", "inet", "ours", "d4"], "").unwrap().contains("192.0.2.7"));
}

#[test]
fn a_table_ends_with_its_owner() {
    if !has_nftables() || !in_own_network("netlink::nft::tests::a_table_ends_with_its_owner") {
        return;
    }
    let mut owner = Netlink::open(Family::Netfilter).unwrap();
    let mut batch = NftBatch::new();
    batch.add_table(&table("adit", true));
    batch.commit(&mut owner).unwrap();
    let mut other = Netlink::open(Family::Netfilter).unwrap();
    let found = FoundTable { name: "adit".into(), owner: Some(owner.port()) };
    assert_eq!(tables(&mut other).unwrap(), [found]);
    let mut batch = NftBatch::new();
    batch.remove_table("adit");
    assert_eq!(batch.commit(&mut other).unwrap_err().errno(), Some(1), "another one may not remove it");
    // A reload replaces all of it at once.
    let mut batch = NftBatch::new();
    batch.remove_table("adit");
    batch.add_table(&table("adit", true));
    batch.commit(&mut owner).unwrap();
    drop(owner);
    assert_eq!(tables(&mut other).unwrap(), []);
}

#[test]
fn a_batch_is_taken_whole_or_not_at_all() {
    if !has_nftables() || !in_own_network("netlink::nft::tests::a_batch_is_taken_whole_or_not_at_all") {
        return;
    }
    let mut netlink = Netlink::open(Family::Netfilter).unwrap();
    let mut broken = table("adit", false);
    broken.chains[3].rules.push(rule([Match::ToV4("no_such_set")], [Action::Return]));
    let mut batch = NftBatch::new();
    batch.add_table(&broken);
    let error = batch.commit(&mut netlink).unwrap_err();
    assert_eq!(error.errno(), Some(2), "{error}");
    assert_eq!(error.to_string(), "the kernel refuses rule `ip daddr @no_such_set return` of chain in");
    assert_eq!(tables(&mut netlink).unwrap(), []);
    let mut batch = NftBatch::new();
    batch.add_table(&table("adit", false));
    batch.commit(&mut netlink).unwrap();
    assert_eq!(tables(&mut netlink).unwrap().len(), 1, "the next one works");
}

#[test]
fn routes_and_rules_come_and_go() {
    use crate::netlink::route::{
        PolicyRule, Route, RouteKind, RuleAction, add_address, links, switch_on, tagged,
    };

    if !in_own_network("netlink::nft::tests::routes_and_rules_come_and_go") {
        return;
    }
    let mut netlink = Netlink::open(Family::Route).unwrap();
    let lo = links(&mut netlink).unwrap().into_iter().find(|link| link.name == "lo").unwrap();
    assert!(!lo.is_up);
    switch_on(&mut netlink, lo.index, Some(9000)).unwrap();
    add_address(&mut netlink, lo.index, "192.0.2.1".parse().unwrap(), 32).unwrap();
    add_address(&mut netlink, lo.index, "192.0.2.1".parse().unwrap(), 32).unwrap();
    let all = links(&mut netlink).unwrap();
    assert!(all.iter().any(|link| link.name == "lo" && link.is_up));
    let ip = |args: &str| {
        let output = Command::new("ip").args(args.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {args}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(ip("address show dev lo").contains("192.0.2.1/32"));
    let before = (ip("rule"), ip("-6 rule"), ip("route show table all"), ip("-6 route show table all"));
    for any in ["0.0.0.0", "::"] {
        let any = any.parse::<std::net::IpAddr>().unwrap();
        let rule = PolicyRule::new(any.is_ipv6(), 8999, RuleAction::Table(2023));
        PolicyRule { mark: Some(0x2023), ..rule }.add(&mut netlink).unwrap();
        let route = Route::new((any, 0), RouteKind::Local("lo".into()), 2023);
        route.add(&mut netlink, &all).unwrap();
        route.add(&mut netlink, &all).unwrap();
    }
    ip("link add name near7 type veth peer name far7");
    ip("link set far7 up");
    ip("link set near7 up");
    let all = links(&mut netlink).unwrap();
    for link in ["lo", "near7"] {
        let to = "127.0.0.1".parse().unwrap();
        let route = Route::new((to, 32), RouteKind::Local(link.into()), 2024);
        route.add(&mut netlink, &all).unwrap();
    }
    let bound = ip("route show table 2024");
    assert_eq!(bound.lines().count(), 2, "one over each interface: {bound}");
    let beyond = PolicyRule::new(false, 9001, RuleAction::TableBeyond(254, 0));
    beyond.add(&mut netlink).unwrap();
    assert!(
        ip("rule").contains("9001:\tfrom all lookup main suppress_prefixlength 0 proto 173"),
        "{}",
        ip("rule")
    );
    assert!(ip("rule").contains("8999:\tfrom all fwmark 0x2023 lookup 2023 proto 173"));
    assert!(ip("route show table 2023").contains("local default dev lo proto 173 scope host"));
    let found = tagged(&mut netlink).unwrap();
    assert_eq!(found.len(), 7, "{found:?}");
    // Others of each kind come, and go one by one.
    let any = "0.0.0.0".parse().unwrap();
    let tun = RouteKind::Link("near7".into());
    let route = Route { congestion: Some("no-such-control"), ..Route::new((any, 0), tun, 2022) };
    let others = [
        route,
        Route::new((any, 0), RouteKind::Unreachable, 2022),
        Route::new(("192.0.2.7".parse().unwrap(), 32), RouteKind::Throw, 2022),
        Route::new(("2001:db8::7".parse().unwrap(), 128), RouteKind::Throw, 2022),
    ];
    let rule = PolicyRule {
        port: Some(53),
        uids: Some((5, 9)),
        is_inverted: true,
        ..PolicyRule::new(false, 9002, RuleAction::Table(2022))
    };
    rule.add(&mut netlink).unwrap();
    rule.add(&mut netlink).unwrap();
    others.iter().for_each(|route| route.add(&mut netlink, &all).unwrap());
    let routes = ip("route show table 2022");
    for part in ["default dev near7", "unreachable default", "metric 4294967295", "throw 192.0.2.7"] {
        assert!(routes.contains(part), "{part}: {routes}");
    }
    assert!(
        ip("rule").contains("9002:\tnot from all uidrange 5-9 dport 53 lookup 2022 proto 173"),
        "{}",
        ip("rule")
    );
    for _ in 0..2 {
        rule.remove(&mut netlink).unwrap();
        others.iter().for_each(|route| route.remove(&mut netlink, &all).unwrap());
    }
    assert_eq!(tagged(&mut netlink).unwrap().len(), 7, "they are gone");
    for found in found {
        found.remove(&mut netlink).unwrap();
        found.remove(&mut netlink).unwrap();
    }
    ip("link del near7");
    let after = (ip("rule"), ip("-6 rule"), ip("route show table all"), ip("-6 route show table all"));
    assert_eq!(before, after);
}
