//! The parts of a whole file beside its servers: local ports and groups are taken over, all others are named.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use adit_model::map::Map;
use adit_model::rule::{Rule, Set, Verdict};
use adit_model::{
    Check, Choice, DelayTest, Dial, Group, HttpUrl, LocalProtocols, Member, Outbound, OutboundProtocol,
    Policy, Tag,
};

use super::dns;
use super::entry::{boolean, says_nothing, text_of};
use super::rules::ImportedRules;
use super::{surge, tables};
use crate::adit_toml;
use crate::clash::unsupported::is_quiet;
use crate::read::json::{JsonValue, Node};
use crate::read::json_fields::JsonReport;
use crate::read::kinds::{self, Typing};
use crate::read::source::Source;
use crate::read::value::{self, Problem};
use crate::read::yaml_access;

/// Most groups of one file.
const MAX_GROUPS: usize = 256;

/// Most local ports of one file.
pub(super) const MAX_PORTS: usize = 64;

/// Shortest and longest time between two checks.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(86_400);

/// Parts of a file that have a place in `adit.toml`, and its rules, which have none here.
#[derive(Default)]
pub(super) struct ImportedFile<'t> {
    /// Ports for applications.
    pub(super) ports: Vec<(LocalProtocols, SocketAddr)>,
    groups: Vec<Written>,
    /// Ways out that are no server, by their names.
    plain: Vec<(String, OutboundProtocol)>,
    /// Names of servers that are left out.
    others: Vec<String>,
    rules: Option<Rules<'t>>,
    /// Name servers of sing-box.
    dns: Option<dns::DnsSection>,
}

/// Rules.
struct Rules<'t> {
    at: usize,
    path: &'static str,
    count: usize,
    /// Those among them that only name the target of the rest.
    last_count: usize,
    kept: Lines<'t>,
    /// The target of those requests that no other rule matches.
    last: Option<String>,
    /// Its place in a file of sing-box.
    last_at: usize,
}

/// Rules as they are written.
enum Lines<'t> {
    /// Those of mihomo, which are left out here.
    None,
    Surge(Vec<(&'t str, usize)>),
    /// `rules` and `rule_set`.
    SingBox(Vec<JsonValue>, Vec<JsonValue>),
}

/// The rest of a configuration beside its outbounds.
pub(super) struct Settled {
    /// The outbound of local ports.
    pub(super) used: Tag,
    pub(super) rules: Vec<Rule>,
    pub(super) sets: Vec<Set>,
    /// Those among them that a file of sing-box has, by their names there.
    pub(super) lists: Map<String, Tag>,
    /// Name servers, and the outbounds that may lead to them.
    pub(super) dns: Option<(dns::DnsSection, dns::Ways)>,
}

/// A group as it is written.
struct Written {
    name: String,
    at: usize,
    path: String,
    kind: Kind,
    members: Vec<String>,
    check: Check,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A person chooses.
    Select,
    /// The member that answers best.
    Best,
    /// By another measure, for which the best stands in.
    Other,
}

fn kind(word: &str) -> Option<Kind> {
    Some(match word {
        "select" | "selector" => Kind::Select,
        "url-test" | "urltest" => Kind::Best,
        "fallback" | "load-balance" | "smart" => Kind::Other,
        _ => return None,
    })
}

/// A check with the settings of a group, in the words of its program. An address that is not used is a warning at `at`.
fn check(
    report: &mut JsonReport<'_>,
    at: usize,
    path: &str,
    url: Option<&str>,
    interval: Option<Duration>,
    tolerance: Option<Duration>,
) -> Check {
    let default = Check::default();
    let (url, other) = url.map_or((None, None), |url| match HttpUrl::parse(url) {
        Ok(_) => (Some(url), None),
        Err(_) => (None, Some(url)),
    });
    if other.is_some_and(|url| !url.is_empty()) {
        let problem = format!("left out: no address of plain HTTP; {} is asked in its place", default.url);
        report.warning(at, format!("{path}.url"), Problem::new(problem));
    }
    let interval = interval.filter(|span| !span.is_zero()).unwrap_or(default.interval);
    let interval = interval.clamp(MIN_INTERVAL, MAX_INTERVAL);
    Check {
        url: url.map_or(default.url, Into::into),
        interval,
        interval_in_use: interval,
        tolerance: tolerance.unwrap_or(default.tolerance),
        ..default
    }
}

fn left_out(report: &mut JsonReport<'_>, at: usize, path: &str, value: &JsonValue) {
    let problem = match &value.node {
        Node::Array(items) => format!("left out: {}", counted(items.len(), "entry", "entries")),
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::Object(_) => {
            "left out".to_owned()
        }
    };
    report.warning(at, value::excerpt(path), Problem::new(problem));
}

/// `1 rule`, `3 rules`.
fn counted(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn port(value: &JsonValue) -> Option<u16> {
    text_of(value)?.parse().ok().filter(|port| *port > 0)
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

/// The rest of a file of mihomo.
pub(super) fn mihomo(report: &mut JsonReport<'_>, root: &JsonValue) -> ImportedFile<'static> {
    let mut whole = ImportedFile::default();
    for member in yaml_access::members(root) {
        let (key, value) = (member.key.as_str(), &member.value);
        let accepts = match key {
            "mixed-port" => Some(LocalProtocols::Mixed),
            "socks-port" => Some(LocalProtocols::Socks),
            "port" => Some(LocalProtocols::Http),
            _ => None,
        };
        if let (Some(accepts), Some(port)) = (accepts, port(value)) {
            whole.ports.push((accepts, loopback(port)));
        } else if accepts.is_some() && !says_nothing(value) {
            report.warning(value.at, key, Problem::new("left out: no port"));
        } else if key == "proxy-groups" {
            for (n, item) in yaml_access::items(value).iter().enumerate() {
                mihomo_group(report, item, format!("{key}[{n}]"), root, &mut whole);
            }
        } else if key == "rules" {
            let last = yaml_access::items(value).iter().rev().find_map(|rule| {
                let (word, rest) = yaml_access::text(rule)?.split_once(',')?;
                let target = rest.split(',').next().unwrap_or_default().trim();
                word.trim().eq_ignore_ascii_case("match").then(|| target.to_owned())
            });
            let count = yaml_access::items(value).len();
            let kept = Lines::None;
            whole.rules =
                Some(Rules { at: member.at, path: "rules", count, last_count: 1, kept, last, last_at: 0 });
        } else if is_left_out(key, value) {
            left_out(report, member.at, key, value);
        }
    }
    whole
}

/// Whether a key of mihomo's file that has no place here says something.
fn is_left_out(key: &str, value: &JsonValue) -> bool {
    const SILENT: [&str; 8] =
        ["proxies", "log-level", "ipv6", "bind-address", "geodata-mode", "secret", "external-ui", "proxy"];
    let is_off = yaml_access::get(value, "enable").is_some() && !yaml_access::is_on(value, "enable");
    let is_rule =
        key == "mode" && yaml_access::text(value).is_some_and(|mode| mode.eq_ignore_ascii_case("rule"));
    // Mappings at the top that only hold parts for elsewhere are common: `p: &p {..}`.
    let is_anchor = !yaml_access::members(value).is_empty() && !MAPPINGS.contains(&key);
    !(is_quiet(key) || SILENT.contains(&key) || says_nothing(value) || is_off || is_rule || is_anchor)
}

/// Keys of mihomo's file with a mapping that means something by itself.
const MAPPINGS: [&str; 9] =
    ["dns", "hosts", "tun", "sniffer", "iptables", "proxy-providers", "rule-providers", "sub-rules", "ntp"];

fn mihomo_group(
    report: &mut JsonReport<'_>,
    item: &JsonValue,
    path: String,
    root: &JsonValue,
    whole: &mut ImportedFile<'_>,
) {
    let name = yaml_access::text_of(item, "name").unwrap_or_default().to_owned();
    let word = yaml_access::text_of(item, "type").unwrap_or_default();
    let Some(kind) = kind(word) else {
        let problem = format!("left out: no group of type {}", value::excerpt(word));
        return report.warning(item.at, path, Problem::new(problem));
    };
    let mut members: Vec<String> =
        yaml_access::texts_of(item, "proxies").into_iter().map(|(name, _)| name.to_owned()).collect();
    if yaml_access::is_on(item, "include-all") || yaml_access::is_on(item, "include-all-proxies") {
        let all = yaml_access::get(root, "proxies").map(yaml_access::items).unwrap_or_default();
        members.extend(all.iter().filter_map(|proxy| yaml_access::text_of(proxy, "name")).map(str::to_owned));
    }
    for key in ["use", "filter", "exclude-filter", "exclude-type", "include-all-providers"] {
        if let Some(value) = yaml_access::get(item, key).filter(|value| !says_nothing(value)) {
            left_out(report, value.at, &format!("{path}.{key}"), value);
        }
    }
    let interval = yaml_access::number_of(item, "interval").map(Duration::from_secs);
    let tolerance = yaml_access::number_of(item, "tolerance").map(Duration::from_millis);
    let at = yaml_access::at(item, "url");
    let tolerance = tolerance.or(Some(Duration::ZERO));
    let check = check(report, at, &path, yaml_access::text_of(item, "url"), interval, tolerance);
    whole.groups.push(Written { name, at: item.at, path, kind, members, check });
}

/// The rest of a file of sing-box; its groups stand among its outbounds.
pub(super) fn sing_box(report: &mut JsonReport<'_>, root: &JsonValue) -> ImportedFile<'static> {
    let mut whole = ImportedFile::default();
    let resolver =
        yaml_access::get(root, "route").and_then(|route| yaml_access::get(route, "default-domain-resolver"));
    for member in yaml_access::members(root) {
        let (key, value) = (member.key.as_str(), &member.value);
        match key {
            "dns" if !says_nothing(value) => {
                let resolver = resolver.and_then(dns::resolver).map(str::to_owned);
                whole.dns = Some(dns::DnsSection { at: member.at, value: value.clone(), resolver });
            }
            "outbounds" => {
                for (n, item) in yaml_access::items(value).iter().enumerate() {
                    let path = format!("outbounds[{n}]");
                    sing_box_plain(report, item, &path, &mut whole);
                    sing_box_group(report, item, path, &mut whole);
                }
            }
            "inbounds" => {
                for (n, item) in yaml_access::items(value).iter().enumerate() {
                    sing_box_port(report, item, &format!("inbounds[{n}]"), &mut whole);
                }
            }
            "route" => {
                other_keys(report, value, "route", &ROUTE);
                let rules = yaml_access::get(value, "rules").map(yaml_access::items).unwrap_or_default();
                let last = yaml_access::text_of(value, "final").map(str::to_owned);
                let sets = yaml_access::get(value, "rule-set").map(yaml_access::items).unwrap_or_default();
                let kept = Lines::SingBox(rules.to_vec(), sets.to_vec());
                let (at, path) = (member.at, "route.rules");
                let last_at = yaml_access::at(value, "final");
                whole.rules =
                    Some(Rules { at, path, count: rules.len(), last_count: 0, kept, last, last_at });
            }
            "log" | "$schema" => {}
            _ if says_nothing(value) => {}
            _ => left_out(report, member.at, key, value),
        }
    }
    whole
}

/// Keys of `route` that are read. Names of programs are sought where rules ask for them, and sockets are bound by the
/// system's routes.
const ROUTE: [&str; 6] =
    ["rules", "rule_set", "final", "default_domain_resolver", "auto_detect_interface", "find_process"];

/// Names the keys of an object beside those that are read.
fn other_keys(report: &mut JsonReport<'_>, item: &JsonValue, path: &str, read: &[&str]) {
    for member in yaml_access::members(item) {
        if !read.contains(&&*member.key.replace('-', "_")) && !says_nothing(&member.value) {
            left_out(report, member.at, &format!("{path}.{}", member.key), &member.value);
        }
    }
}

fn sing_box_port(report: &mut JsonReport<'_>, item: &JsonValue, path: &str, whole: &mut ImportedFile<'_>) {
    let word = yaml_access::text_of(item, "type").unwrap_or_default();
    let accepts = match word {
        "mixed" => LocalProtocols::Mixed,
        "socks" => LocalProtocols::Socks,
        "http" => LocalProtocols::Http,
        _ => {
            let problem = format!("left out: {}", value::excerpt(word));
            return report.warning(item.at, path, Problem::new(problem));
        }
    };
    other_keys(report, item, path, &["type", "tag", "listen", "listen_port", "users"]);
    let number = yaml_access::get(item, "listen-port").and_then(port);
    let listen = yaml_access::text_of(item, "listen").filter(|text| !text.is_empty());
    let ip = listen.and_then(|text| text.parse::<IpAddr>().ok());
    if listen.is_some() && ip.is_none() {
        let problem = Problem::new("left out: no address; the port listens on 127.0.0.1");
        report.warning(yaml_access::at(item, "listen"), format!("{path}.listen"), problem);
    }
    let Some(number) = number else {
        let at = yaml_access::at(item, "listen-port");
        return report.warning(at, format!("{path}.listen_port"), Problem::new("left out: no port"));
    };
    if ip.is_some_and(|ip| !ip.is_loopback()) {
        report.warning(item.at, path, Problem::new(LOOPBACK).hint(LISTEN));
    }
    let is_own = yaml_access::get(item, "users").is_some_and(|users| !says_nothing(users));
    if is_own {
        report.warning(item.at, format!("{path}.users"), Problem::new("left out").hint(USERS));
    }
    let ip = ip.filter(IpAddr::is_loopback).unwrap_or_else(|| Ipv4Addr::LOCALHOST.into());
    whole.ports.push((accepts, SocketAddr::new(ip, number)));
}

const LOOPBACK: &str = "left out: the port listens on 127.0.0.1, so this machine alone reaches it";
const LISTEN: &str = "write listen and users of the [[inbound]] to let others in";
const USERS: &str = "write users of the [[inbound]]";

/// Outbounds that are neither a server nor a group, and the names of all.
fn sing_box_plain(report: &mut JsonReport<'_>, item: &JsonValue, path: &str, whole: &mut ImportedFile<'_>) {
    let Some(name) = yaml_access::text_of(item, "tag") else { return };
    if matches!(yaml_access::text_of(item, "type"), Some("direct" | "block")) {
        other_keys(report, item, path, &["type", "tag"]);
    }
    match yaml_access::text_of(item, "type") {
        Some("direct") => whole.plain.push((name.to_owned(), OutboundProtocol::Direct)),
        Some("block") => whole.plain.push((name.to_owned(), OutboundProtocol::Reject)),
        _ => whole.others.push(name.to_owned()),
    }
}

fn sing_box_group(report: &mut JsonReport<'_>, item: &JsonValue, path: String, whole: &mut ImportedFile<'_>) {
    let Some(kind) = yaml_access::text_of(item, "type").and_then(kind) else { return };
    if !matches!(kind, Kind::Select | Kind::Best) {
        return;
    }
    let mut item = item.clone();
    let table = kinds::ValueKind::Map(tables::GROUP);
    super::wrong(report, kinds::settle(&mut item, &table, Typing::Strict, &path));
    let item = &item;
    let known: Vec<&str> = tables::GROUP.iter().map(|(key, _)| *key).collect();
    other_keys(report, item, &path, &known);
    let name = yaml_access::text_of(item, "tag").unwrap_or_default().to_owned();
    let mut members: Vec<String> =
        yaml_access::texts_of(item, "outbounds").into_iter().map(|(name, _)| name.to_owned()).collect();
    // The one that is chosen at first comes first.
    if let Some(first) = yaml_access::text_of(item, "default").filter(|first| !first.is_empty()) {
        if members.iter().any(|member| member == first) {
            members.insert(0, first.to_owned());
        } else {
            let problem = format!("left out: {} is no member", value::excerpt(first));
            report.warning(
                yaml_access::at(item, "default"),
                format!("{path}.default"),
                Problem::new(problem),
            );
        }
    }
    let interval = yaml_access::text_of(item, "interval").filter(|text| !text.is_empty()).and_then(|text| {
        let at = yaml_access::at(item, "interval");
        value::duration(text).map_err(|problem| report.error(at, format!("{path}.interval"), problem)).ok()
    });
    let tolerance = yaml_access::number_of(item, "tolerance").map(Duration::from_millis);
    let at = yaml_access::at(item, "url");
    let check = check(report, at, &path, yaml_access::text_of(item, "url"), interval, tolerance);
    whole.groups.push(Written { name, at: item.at, path, kind, members, check });
}

/// The rest of a profile of Surge.
pub(super) fn surge<'t>(source: &Source<'t>, report: &mut JsonReport<'_>) -> ImportedFile<'t> {
    let mut whole = ImportedFile::default();
    whole.plain.push(("DIRECT".to_owned(), OutboundProtocol::Direct));
    whole.plain.push(("REJECT".to_owned(), OutboundProtocol::Reject));
    for section in surge::sections(source.text) {
        let name = section.name.to_lowercase();
        let count = section.lines.len();
        match &*name {
            "proxy" => {
                let names = section.lines.iter().filter_map(|(line, _)| line.split_once('='));
                whole.others.extend(names.map(|(name, _)| name.trim().to_owned()));
            }
            "" => {}
            _ if count == 0 => {}
            "general" => surge_general(report, &section, &mut whole),
            "proxy group" => {
                for (line, at) in section.lines {
                    surge_group(report, line, at, &mut whole);
                }
            }
            "rule" => {
                let last = section.lines.iter().rev().find_map(|(line, _)| {
                    let (word, rest) = line.split_once(',')?;
                    let target = rest.split(',').next().unwrap_or_default().trim();
                    word.trim().eq_ignore_ascii_case("final").then(|| target.to_owned())
                });
                let (at, kept) = (section.at, Lines::Surge(section.lines));
                whole.rules = Some(Rules { at, path: "Rule", count, last_count: 1, kept, last, last_at: 0 });
            }
            _ => {
                let problem = format!("left out: {}", counted(count, "line", "lines"));
                report.warning(section.at, value::excerpt(section.name), Problem::new(problem));
            }
        }
    }
    whole
}

/// Settings that one warning names.
const NAMED: usize = 8;

fn surge_general(
    report: &mut JsonReport<'_>,
    section: &surge::SurgeSection<'_>,
    whole: &mut ImportedFile<'_>,
) {
    let mut left = Vec::new();
    for (line, at) in &section.lines {
        let Some((key, text)) = line.split_once('=') else {
            report.warning(*at, "General", Problem::new("left out: no setting in this line"));
            continue;
        };
        let (key, text) = (key.trim().to_lowercase(), text.trim());
        let accepts = match &*key {
            "http-listen" | "port" => LocalProtocols::Http,
            "socks5-listen" | "socks-port" => LocalProtocols::Socks,
            _ => {
                if !text.is_empty() && boolean(text) != Some(false) {
                    left.push(value::excerpt(&key));
                }
                continue;
            }
        };
        let alone = || text.parse::<u16>().ok().filter(|port| *port > 0).map(loopback);
        match text.parse::<SocketAddr>().ok().or_else(alone) {
            Some(addr) if addr.ip().is_loopback() => whole.ports.push((accepts, addr)),
            Some(addr) => {
                whole.ports.push((accepts, loopback(addr.port())));
                report.warning(*at, key, Problem::new(LOOPBACK).hint(LISTEN));
            }
            None => report.warning(*at, key, Problem::new("left out: no address and port")),
        }
    }
    if !left.is_empty() {
        let more = left.len().saturating_sub(NAMED);
        left.truncate(NAMED);
        let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
        report.warning(section.at, "General", Problem::new(format!("left out: {}{rest}", left.join(", "))));
    }
}

/// `name = url-test, member, member, url=..., interval=600`
fn surge_group(report: &mut JsonReport<'_>, line: &str, at: usize, whole: &mut ImportedFile<'_>) {
    let Some((name, rest)) = line.split_once('=') else {
        return report.warning(at, "Proxy Group", Problem::new("left out: no group in this line"));
    };
    let name = name.trim().to_owned();
    let path = value::excerpt(&name);
    let mut parts = surge::parts(rest, 0).into_iter().map(|(part, _)| part);
    let word = parts.next().unwrap_or_default();
    let Some(kind) = kind(word) else {
        let problem = format!("left out: no group of type {}", value::excerpt(word));
        return report.warning(at, path, Problem::new(problem));
    };
    let (mut members, mut url, mut interval, mut tolerance) = (Vec::new(), None, None, None);
    for part in parts {
        match part.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
            None => members.push(part.trim_matches('"').to_owned()),
            Some(("url", text)) => url = Some(text),
            Some((key @ ("interval" | "tolerance"), text)) => match text.parse() {
                Ok(number) if key == "interval" => interval = Some(Duration::from_secs(number)),
                Ok(number) => tolerance = Some(Duration::from_millis(number)),
                Err(_) => {
                    let problem = Problem::new("left out: expected a whole number");
                    report.warning(at, format!("{path}.{key}"), problem);
                }
            },
            Some((key, text)) => {
                // They say how a group is shown.
                let is_shown = matches!(key, "hidden" | "icon-url" | "no-alert");
                if !is_shown && !text.is_empty() && boolean(text) != Some(false) {
                    report.warning(at, format!("{path}.{}", value::excerpt(key)), Problem::new("left out"));
                }
            }
        }
    }
    let check = check(report, at, &path, url, interval, tolerance);
    whole.groups.push(Written { name, at, path, kind, members, check });
}

/// Groups become outbounds behind the servers, whose names in the file are `names`; gives the outbound that a local
/// port uses.
///
/// The order is: the target of the last rule, the first group, the first server.
pub(super) fn settle(
    report: &mut JsonReport<'_>,
    whole: ImportedFile<'_>,
    names: Map<String, Tag>,
    outbounds: &mut Vec<Outbound>,
) -> Option<Settled> {
    let ImportedFile { mut groups, plain, others, rules, ports, dns } = whole;
    if ports.len() > MAX_PORTS {
        report.error(0, "", Problem::new(format!("more than {MAX_PORTS} local ports")));
    }
    if groups.len() > MAX_GROUPS {
        report.error(0, "", Problem::new(format!("more than {MAX_GROUPS} groups")));
        groups.truncate(MAX_GROUPS);
    }
    let first_server = outbounds.first().map(|first| first.name.clone());
    let mut settler = Settler { groups: &groups, tags: names, begun: BTreeSet::new(), outbounds };
    let is_direct = |(name, protocol): &(String, OutboundProtocol)| {
        matches!(protocol, OutboundProtocol::Direct).then(|| name.clone())
    };
    let direct: Vec<String> = plain.iter().filter_map(is_direct).collect();
    let refused: Vec<String> = plain.iter().map(|(name, _)| name.clone()).collect();
    settler.plain(plain);
    for n in 0..groups.len() {
        settler.group(report, n);
    }
    let last = rules.as_ref().and_then(|rules| rules.last.as_ref());
    let last = last.and_then(|name| settler.tags.get(name).cloned());
    let first = groups.iter().find_map(|group| settler.tags.get(&group.name).cloned());
    let used = last.clone().or(first).or(first_server)?;
    let mut kept = ImportedRules::default();
    if let Some(rules) = rules {
        let names = others.into_iter().chain(groups.iter().map(|group| group.name.clone()));
        let targets = settler.targets(names);
        let Rules { at, path, count, last_count, .. } = rules;
        // A rule that sends everything where everything goes is no loss.
        let is_kept = last.is_some() && count <= last_count;
        match rules.kept {
            Lines::None if count == 0 || is_kept => {}
            Lines::None => {
                let rules = counted(count, "rule", "rules");
                let problem = Problem::new(format!("left out: {rules}; everything goes through {used}"));
                let hint = "`adit run` with this file obeys its rules and groups as they stand";
                report.warning(at, path, problem.hint(hint));
            }
            Lines::Surge(lines) => kept = super::rules::surge(report, &lines, &targets),
            Lines::SingBox(items, sets) => {
                kept = super::rules::sing_box(report, &items, &sets, &targets);
                // Nothing takes another way than the file says: what is left out refuses.
                kept.last = rules.last.as_ref().and_then(|name| targets.get(name).cloned());
                if let (Some(name), None) = (&rules.last, &kept.last) {
                    let problem = format!("no such outbound: {}", value::excerpt(name));
                    report.error(rules.last_at, "route.final", Problem::new(problem));
                }
            }
        }
    }
    let used = kept.last.take().unwrap_or(used);
    let dns = dns.map(|dns| {
        let servers = settler.tags.iter().filter(|(name, _)| !refused.contains(name));
        let servers = servers.map(|(name, tag)| (name.clone(), Some(tag.clone())));
        (dns, servers.chain(direct.into_iter().map(|name| (name, None))).collect())
    });
    settler.drop_unused(&used, &kept);
    Some(Settled { used, rules: kept.rules, sets: kept.sets, lists: kept.lists, dns })
}

/// The outbound for what goes to a server or a group that is left out.
const REFUSED: &str = "refused";

struct Settler<'a> {
    groups: &'a [Written],
    /// The outbound that a name of the file stands for.
    tags: Map<String, Tag>,
    /// Groups that were begun: of a circle of groups, one lacks the other.
    begun: BTreeSet<usize>,
    outbounds: &'a mut Vec<Outbound>,
}

impl Settler<'_> {
    /// Adds ways out that are no server.
    fn plain(&mut self, plain: Vec<(String, OutboundProtocol)>) {
        for (name, protocol) in plain {
            if self.tags.contains_key(&name) {
                continue;
            }
            let tag = self.free_name(&name);
            self.outbounds.push(Outbound { name: tag.clone(), dial: Dial::default(), protocol });
            self.tags.insert(name, tag);
        }
    }

    /// The outbounds by all names of the file: those that are left out stand for one that refuses.
    fn targets(&mut self, names: impl Iterator<Item = String>) -> Map<String, Tag> {
        let mut targets = self.tags.clone();
        let missing: Vec<String> = names.filter(|name| !targets.contains_key(name)).collect();
        if !missing.is_empty() {
            let tag = self.free_name(REFUSED);
            let protocol = OutboundProtocol::Reject;
            self.outbounds.push(Outbound { name: tag.clone(), dial: Dial::default(), protocol });
            targets.extend(missing.into_iter().map(|name| (name, tag.clone())));
        }
        targets
    }

    /// Takes out the ways out that are no server and that nothing leads to.
    fn drop_unused(&mut self, used: &Tag, kept: &ImportedRules) {
        let mut wanted = BTreeSet::from([used.clone()]);
        let downloads = kept.sets.iter().filter_map(|set| set.download.as_ref());
        wanted.extend(downloads.filter_map(|download| download.through.clone()));
        for rule in &kept.rules {
            if let Verdict::Outbound(tag) = &rule.verdict {
                wanted.insert(tag.clone());
            }
        }
        for outbound in &*self.outbounds {
            if let OutboundProtocol::Choice(choice) = &outbound.protocol {
                wanted.extend(choice.members.iter().cloned());
            }
        }
        self.outbounds.retain(|outbound| {
            let is_plain = matches!(outbound.protocol, OutboundProtocol::Direct | OutboundProtocol::Reject);
            !is_plain || wanted.contains(&outbound.name)
        });
    }

    /// Puts a group behind its members. Each is done once, so the depth is at most [`MAX_GROUPS`].
    fn group(&mut self, report: &mut JsonReport<'_>, n: usize) {
        if !self.begun.insert(n) {
            return;
        }
        let group = &self.groups[n];
        for name in &group.members {
            if let Some(inner) = self.groups.iter().position(|other| other.name == *name) {
                self.group(report, inner);
            }
        }
        let found = group.members.iter().filter_map(|name| self.tags.get(name).cloned());
        let shown = value::excerpt(&group.name);
        if group.kind == Kind::Select {
            let mut seen = BTreeSet::new();
            let members: Vec<Tag> = found.filter(|tag| seen.insert(tag.clone())).collect();
            if members.is_empty() {
                let problem = Problem::new(format!("{shown}: left out, none of its members is here"));
                return report.warning(group.at, group.path.clone(), problem);
            }
            let tag = self.free_name(&group.name);
            let (policy, test) = (Policy::Select(None), DelayTest { interval: None, ..DelayTest::default() });
            let (icon, uses) = (Box::default(), None);
            let choice = Choice { members, policy, test, udp: true, hidden: false, icon, uses };
            let protocol = OutboundProtocol::Choice(choice);
            self.outbounds.push(Outbound { name: tag.clone(), dial: Dial::default(), protocol });
            self.tags.entry(group.name.clone()).or_insert(tag);
            return;
        }
        let tags: Vec<Tag> = found.collect();
        let members = self.leaves(tags);
        if members.is_empty() {
            let problem = Problem::new(format!("{shown}: left out, none of its members is here"));
            return report.warning(group.at, group.path.clone(), problem);
        }
        if group.kind == Kind::Other {
            let problem = format!("{shown}: adit takes the member that answers best, as url-test does");
            report.warning(group.at, group.path.clone(), Problem::new(problem));
        }
        let tag = self.free_name(&group.name);
        let members = members.into_iter().map(Member::new).collect();
        let protocol = OutboundProtocol::Group(Group { members, grows: false, check: group.check.clone() });
        self.outbounds.push(Outbound { name: tag.clone(), dial: Dial::default(), protocol });
        self.tags.entry(group.name.clone()).or_insert(tag);
    }

    /// The servers of these outbounds, each once: a group within stands for its members.
    fn leaves(&self, tags: Vec<Tag>) -> Vec<Tag> {
        let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
        let mut left: std::collections::VecDeque<Tag> = tags.into();
        while let Some(tag) = left.pop_front() {
            if !seen.insert(tag.clone()) {
                continue;
            }
            let inner = self.outbounds.iter().find(|outbound| outbound.name == tag);
            match inner.map(|outbound| &outbound.protocol) {
                Some(OutboundProtocol::Group(group)) => {
                    left.extend(group.members.iter().map(|member| member.outbound.clone()));
                }
                Some(OutboundProtocol::Choice(choice)) => left.extend(choice.members.iter().cloned()),
                Some(OutboundProtocol::Direct | OutboundProtocol::Reject) | None => {}
                Some(_) => all.push(tag),
            }
        }
        all
    }

    /// The group's name, or another one where it is taken or no name of adit's.
    fn free_name(&self, name: &str) -> Tag {
        let head = adit_toml::name(name).map_or_else(|_| "group".to_owned(), |_| name.to_owned());
        let head: String = head.chars().take(58).collect();
        let numbered = (2_usize..).map(|n| format!("{head}-{n}"));
        let mut all = std::iter::once(head.clone()).chain(numbered);
        let is_free = |name: &String| self.outbounds.iter().all(|outbound| *outbound.name != **name);
        all.find(is_free).expect("there are more numbers than names").into()
    }
}
