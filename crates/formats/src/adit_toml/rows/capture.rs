//! The rows of `[capture]`.

use adit_model::rule::Cidr;
use adit_model::{CaptureMode, Owner};

use super::rule::{OneOrMany, cidr, list};
use super::{ALL, Row, all_quoted, chosen, flag, one_or_list, quoted, row, rows};
use crate::adit_toml::fields::{Spanned, TomlField, TomlReport};
use crate::adit_toml::keys::{TomlTable, key};
use crate::adit_toml::rows;
use crate::read::value::{Problem, excerpt, interface, quote};

/// Most entries of one list.
const MAX_ENTRIES: usize = 1 << 17;
const MAX_INTERFACES: usize = 256;
/// The last table and priority that leave room for those beside them.
const MAX_TABLE: usize = (1 << 31) - 4;
const PRIORITIES: std::ops::RangeInclusive<usize> = 10..=32_000;

rows! { CAPTURE;
    MODE: Row<CaptureMode> = row(key("mode", "auto, redirect, tproxy or tun", "\"tproxy\"")
        .at(TomlTable::Capture, ALL, "auto", "redirect: TCP alone; tproxy: TCP and UDP; tun: everything, by an interface; auto: TCP by redirect, the rest by the best that there is"),
        |field, report| field.choice(report, CaptureMode::ALL), |mode| chosen(CaptureMode::ALL, mode));
    OUTBOUND: Row<Spanned<Box<str>>, str> = row(key("outbound", "name of an outbound", "\"home\"")
        .at(TomlTable::Capture, ALL, "the first outbound", "outbound of captured traffic, where no rule names another one"),
        |field, report| field.spanned(report, rows::name), quote);
    LAN: OneOrMany<Box<str>> = row(key("lan", "name of an interface, or a list; \"*\" for all", "[\"br0\", \"wlan0\"]")
        .at(TomlTable::Capture, ALL, "none", "captures traffic that this machine forwards from these interfaces too; with \"*\" what stays between networks of its own routes goes straight"),
        |field, report| field.list(report, MAX_INTERFACES, interface), all_quoted);
    EXCLUDE_LAN: OneOrMany<Box<str>> = row(key("exclude-lan", "name of an interface, or a list", "\"wg0\"")
        .at(TomlTable::Capture, ALL, "none", "with lan = \"*\": traffic that is forwarded from these is not captured"),
        |field, report| field.list(report, MAX_INTERFACES, interface), all_quoted);
    LOCAL: Row<bool> = flag(key("local", "true or false", "false")
        .at(TomlTable::Capture, ALL, "true", "captures traffic of this machine's own programs; false: forwarded traffic alone"));
    STRICT: Row<bool> = flag(key("strict", "true or false", "true")
        .at(TomlTable::Capture, ALL, "false", "refuses traffic that would be captured when adit was killed (fail-closed); false: it goes its way without adit (fail-open)"));
    IPV6: Row<bool> = flag(key("ipv6", "true or false", "false")
        .at(TomlTable::Capture, ALL, "true", "captures IPv6 too"));
    DNS_HIJACK: Row<bool> = flag(key("dns-hijack", "true or false", "false")
        .at(TomlTable::Capture, ALL, "true", "questions to port 53 of any server go to the inbound of protocol dns, if there is one"));
    EXCLUDE_ADDRESS: OneOrMany<Cidr> = list(key("exclude-address", "address or network, or a list", "[\"192.0.2.0/24\", \"2001:db8::/32\"]")
        .at(TomlTable::Capture, ALL, "none", "targets that are not captured; addresses of this machine, link-local and multicast never are"),
        |field, report| field.list(report, MAX_ENTRIES, cidr));
    INCLUDE_ADDRESS: OneOrMany<Cidr> = list(key("include-address", "address or network, or a list", "\"203.0.113.0/24\"")
        .at(TomlTable::Capture, ALL, "all", "captures traffic to these alone"),
        |field, report| field.list(report, MAX_ENTRIES, cidr));
    EXCLUDE_UID: OneOrMany<Owner> = row(key("exclude-uid", "number, range as \"1000-1999\", user name, or a list", "[1000, \"backup\"]")
        .at(TomlTable::Capture, ALL, "none", "users of this machine whose traffic is not captured, questions to name servers included"),
        owners, owners_text);
    INCLUDE_UID: OneOrMany<Owner> = row(key("include-uid", "number, range as \"1000-1999\", user name, or a list", "\"1000-1999\"")
        .at(TomlTable::Capture, ALL, "all", "captures the traffic of these users alone"),
        owners, owners_text);
    EXCLUDE_GID: OneOrMany<Owner> = row(key("exclude-gid", "number, range, group name, or a list", "27")
        .at(TomlTable::Capture, ALL, "none", "groups of this machine whose traffic is not captured"),
        owners, owners_text);
    INCLUDE_GID: OneOrMany<Owner> = row(key("include-gid", "number, range, group name, or a list", "100")
        .at(TomlTable::Capture, ALL, "all", "captures the traffic of these groups alone"),
        owners, owners_text);
    EXCLUDE_INTERFACE: OneOrMany<Box<str>> = row(key("exclude-interface", "name of an interface, or a list", "\"wg0\"")
        .at(TomlTable::Capture, ALL, "none", "local traffic that would leave by these is not captured"),
        |field, report| field.list(report, MAX_INTERFACES, interface), all_quoted);
    INCLUDE_INTERFACE: OneOrMany<Box<str>> = row(key("include-interface", "name of an interface, or a list", "\"eth0\"")
        .at(TomlTable::Capture, ALL, "all", "captures local traffic that would leave by these alone"),
        |field, report| field.list(report, MAX_INTERFACES, interface), all_quoted);
    OWN_MARK: Row<u32> = row(key("mark", "1 to 4294967295", "255")
        .at(TomlTable::Capture, ALL, "8228 (0x2024)", "mark of adit's own sockets, which are never captured; outbounds with fwmark keep theirs, which must be excluded elsewhere"),
        |field, report| field.number(report, 1..=u32::MAX as usize), ToString::to_string);
    MARK: Row<u32> = row(key("capture-mark", "1 to 4294967295", "254")
        .at(TomlTable::Capture, ALL, "8227 (0x2023)", "mark of packets that are captured"),
        |field, report| field.number(report, 1..=u32::MAX as usize), ToString::to_string);
    TABLE: Row<u32> = row(key("table", "256 to 2147483644", "3000")
        .at(TomlTable::Capture, ALL, "2022", "first of three tables of routes"),
        |field, report| field.number(report, 256..=MAX_TABLE), ToString::to_string);
    PRIORITY: Row<u32> = row(key("priority", "10 to 32000", "8000")
        .at(TomlTable::Capture, ALL, "9000", "priority of the rules of routing, from 2 below to 2 above"),
        |field, report| field.number(report, PRIORITIES), ToString::to_string);
}

fn owners(field: &TomlField<'_>, report: &mut TomlReport<'_>) -> Option<Vec<Spanned<Owner>>> {
    field.numbers_or_texts(report, MAX_ENTRIES, |text| {
        Owner::parse(text).ok_or_else(|| {
            Problem::new(format!("no user or group: {}", excerpt(text)))
                .hint("write a number, a range of at most 131072 such as \"1000-1999\", or a name")
        })
    })
}

fn owners_text(owners: &[Owner]) -> String {
    one_or_list(owners.iter().map(|owner| match owner {
        Owner::Numbers(first, last) if first == last => owner.to_string(),
        Owner::Numbers(..) | Owner::Name(_) => quoted(owner),
    }))
}
