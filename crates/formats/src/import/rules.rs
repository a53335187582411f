//! Rules of Surge and sing-box as those of `adit.toml`.
//!
//! A rule that has no counterpart is left out with a warning. Requests that a rule sends to a server or a group that
//! is left out are refused: they never take another way than the file says.

#![expect(clippy::wildcard_enum_match_arm, reason = "each match is about a few of many values")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_model::map::Map;
use adit_model::rule::{
    Cidr, Fact, FileLine, Matcher, Network, PortRange, RejectMethod, Resolve, Rule, Set, SetFormat, Verdict,
    regex_problem,
};
use adit_model::{Download, Secret, Tag, WebUrl};
use zeroize::Zeroizing;

use super::entry::{says_nothing, text_of};
use crate::clash::{RuleLines, rule_lines};
use crate::read::json::{JsonValue, Node};
use crate::read::json_fields::JsonReport;
use crate::read::value::{self, Problem};
use crate::read::yaml_access;

/// Time between two fetches of a list that names none.
const DAY: Duration = Duration::from_secs(86_400);
/// Shortest time between two fetches.
const SHORTEST: Duration = Duration::from_secs(1);
/// Deepest nesting of conditions.
const MAX_DEPTH: usize = 16;

/// Networks that `ip_is_private` means.
const PRIVATE: [&str; 12] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "224.0.0.0/4",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
    "ff00::/8",
];

/// Rules with the sets that they name.
#[derive(Default)]
pub(super) struct ImportedRules {
    pub(super) rules: Vec<Rule>,
    pub(super) sets: Vec<Set>,
    /// Those of `route.rule_set`, by their names in the file.
    pub(super) lists: Map<String, Tag>,
    /// The target of what no other rule decides.
    pub(super) last: Option<Tag>,
}

/// Lines of Surge, with their places. `targets` are the outbounds by the names of the file.
pub(super) fn surge(
    report: &mut JsonReport<'_>,
    lines: &[(&str, usize)],
    targets: &Map<String, Tag>,
) -> ImportedRules {
    let mut lists = Lists::default();
    let items: Vec<JsonValue> = lines
        .iter()
        .map(|(line, at)| {
            let line = lists.take(&surge_line(line));
            JsonValue { at: *at, node: Node::Text(Zeroizing::new(line)) }
        })
        .collect();
    let RuleLines { rules, mut sets, found, last } =
        rule_lines(report.source, "Rule", &items, targets, &lists.sets, Path::new(""));
    report.found.append(found);
    let used = used_sets(&rules);
    sets.extend(lists.sets.into_iter().map(|(_, set)| set).filter(|set| used.contains(&set.name)));
    ImportedRules { rules, sets, lists: Map::new(), last }
}

/// A line in the words of mihomo.
fn surge_line(line: &str) -> String {
    let line = line.split(" //").next().unwrap_or_default().trim();
    let (kind, rest) = line.split_once(',').unwrap_or((line, ""));
    let kind = kind.trim().to_uppercase();
    let first = || rest.split(',').next().unwrap_or_default().trim();
    let network = |word: &str| word.eq_ignore_ascii_case("tcp") || word.eq_ignore_ascii_case("udp");
    let rest = ["REJECT-NO-DROP", "REJECT-TINYGIF", "REJECT-IMG"]
        .iter()
        .fold(rest.to_owned(), |rest, word| rest.replace(&format!(",{word}"), ",REJECT"));
    match &*kind {
        "FINAL" => format!("MATCH,{rest}"),
        "DEST-PORT" => format!("DST-PORT,{rest}"),
        "SRC-IP" if !first().contains('/') => {
            let bits = if first().contains(':') { "128" } else { "32" };
            format!("SRC-IP-CIDR,{}", rest.replacen(first(), &format!("{}/{bits}", first()), 1))
        }
        "SRC-IP" => format!("SRC-IP-CIDR,{rest}"),
        "PROTOCOL" if network(first()) => format!("NETWORK,{rest}"),
        "RULE-SET" if first() == "LAN" => format!("GEOIP,lan{}", &rest[3..]),
        "AND" | "OR" | "NOT" => {
            let mut rest = rest.replace("(DEST-PORT,", "(DST-PORT,");
            for word in ["TCP", "UDP", "tcp", "udp"] {
                rest = rest.replace(&format!("(PROTOCOL,{word})"), &format!("(NETWORK,{word})"));
            }
            format!("{kind},{rest}")
        }
        _ => format!("{kind},{rest}"),
    }
}

/// Lists of rules that lines name by their addresses, by the names that stand for them.
#[derive(Default)]
struct Lists {
    sets: Vec<(String, Set)>,
}

impl Lists {
    /// The line with a name in the place of an address.
    fn take(&mut self, line: &str) -> String {
        let Some(rest) = line.strip_prefix("RULE-SET,") else { return line.to_owned() };
        let (address, rest) = rest.split_once(',').unwrap_or((rest, ""));
        let address = address.trim().trim_matches('"');
        if !(address.starts_with("https://") || address.starts_with("http://")) {
            return line.to_owned();
        }
        if WebUrl::parse(address).is_err() {
            return line.to_owned();
        }
        let known = self
            .sets
            .iter()
            .find(|(_, set)| set.download.as_ref().is_some_and(|download| download.url.expose() == address));
        let name = match known {
            Some((name, _)) => name.clone(),
            None => {
                let path = address.split(['?', '#']).next().unwrap_or_default();
                let name = self.free_name(path.rsplit('/').next().unwrap_or_default());
                self.add(&name, address, DAY, None);
                self.sets.last_mut().expect("it was added").1.format = SetFormat::Rules;
                name
            }
        };
        format!("RULE-SET,{name},{rest}")
    }

    /// A name of `adit.toml` like `last`, which no list has yet.
    fn free_name(&self, last: &str) -> String {
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let head: String = last.chars().filter(is_plain).take(40).collect();
        let head = if head.trim_matches('.').is_empty() { "list".to_owned() } else { head };
        let numbered = (2_usize..).map(|n| format!("{n}-{head}"));
        let mut all = std::iter::once(head.clone()).chain(numbered);
        let is_free = |name: &String| self.sets.iter().all(|(known, _)| known != name);
        all.find(is_free).expect("there are more numbers than names")
    }

    /// Adds a list that is fetched from an address, with its copy beside the file.
    fn add(&mut self, name: &str, address: &str, interval: Duration, through: Option<Tag>) {
        let download = Download {
            url: Secret::new(address),
            interval: Some(interval),
            through,
            headers: Vec::new(),
            max_len: crate::rulesets::MAX_LEN,
        };
        self.push(name, PathBuf::from(name), Some(Box::new(download)));
    }

    fn push(&mut self, name: &str, path: PathBuf, download: Option<Box<Download>>) {
        let set = Set {
            name: name.into(),
            path,
            format: SetFormat::Any,
            download,
            entries: Vec::new(),
            list: None,
            at: FileLine::file("adit.toml"),
        };
        self.sets.push((name.to_owned(), set));
    }
}

pub(super) fn used_sets(rules: &[Rule]) -> BTreeSet<Tag> {
    let mut used = BTreeSet::new();
    for rule in rules {
        rule.matcher.visit(&mut |matcher| {
            if let Matcher::Set(names, _) = matcher {
                used.extend(names.iter().cloned());
            }
        });
    }
    used
}

/// `route.rules` of sing-box, with the lists of `route.rule_set`.
pub(super) fn sing_box(
    report: &mut JsonReport<'_>,
    items: &[JsonValue],
    sets: &[JsonValue],
    targets: &Map<String, Tag>,
) -> ImportedRules {
    let mut kept = ImportedRules::default();
    let mut lists = Lists::default();
    for (n, item) in sets.iter().enumerate() {
        match rule_set(item, targets, &mut lists) {
            Ok((tag, name)) => drop(kept.lists.insert(tag, name)),
            Err(problem) => {
                let path = format!("route.rule_set[{n}]");
                report.warning(item.at, path, Problem::new(format!("left out: {problem}")));
            }
        }
    }
    kept.sets = lists.sets.into_iter().map(|(_, set)| set).collect();
    for (n, item) in items.iter().enumerate() {
        let path = format!("route.rules[{n}]");
        match sing_box_rule(report, item, targets, &kept.lists) {
            Ok(rule) => kept.rules.push(rule),
            Err(problem) => {
                report.warning(item.at, path.clone(), Problem::new(format!("left out: {problem}")));
            }
        }
        check_meaning(report, item, &path);
    }
    kept
}

/// Stops the import at a key that turns the meaning of a rule, if it cannot be obeyed.
fn check_meaning(report: &mut JsonReport<'_>, item: &JsonValue, path: &str) {
    let mut refuse = |key: &str, problem: &str| {
        let at = yaml_access::at(item, &key.replace('_', "-"));
        report.error(at, format!("{path}.{key}"), Problem::new(problem));
    };
    let kind = yaml_access::text_of(item, "type");
    if !matches!(kind, None | Some("" | "default" | "logical")) {
        refuse("type", "unknown type: default or logical");
    }
    let mode = yaml_access::text_of(item, "mode");
    if kind == Some("logical") && !matches!(mode, Some("and" | "or")) {
        refuse("mode", "unknown mode: and, or");
    }
    for key in ["rule_set_ip_cidr_match_source", "rule_set_ipcidr_match_source"] {
        if yaml_access::is_on(item, &key.replace('_', "-")) {
            refuse(
                key,
                "adit.toml has no key for it, and the rule would be about other addresses without it",
            );
        }
    }
    for (n, part) in
        yaml_access::get(item, "rules").map(yaml_access::items).unwrap_or_default().iter().enumerate()
    {
        check_meaning(report, part, &format!("{path}.rules[{n}]"));
    }
}

/// One of `route.rule_set`: its name in the file and in `adit.toml`.
fn rule_set(
    item: &JsonValue,
    targets: &Map<String, Tag>,
    lists: &mut Lists,
) -> Result<(String, Tag), String> {
    const KNOWN: [&str; 7] = ["tag", "type", "format", "path", "url", "download-detour", "update-interval"];
    for member in yaml_access::members(item) {
        let key = &*member.key.replace('_', "-");
        if !KNOWN.contains(&key) && !says_nothing(&member.value) {
            return Err(format!("adit.toml has no key for {}", value::excerpt(key)));
        }
    }
    let tag = yaml_access::text_of(item, "tag").ok_or("no tag")?;
    let (path, url) = (yaml_access::text_of(item, "path"), yaml_access::text_of(item, "url"));
    let source = path.or(url).unwrap_or_default();
    let format = yaml_access::text_of(item, "format");
    let by_name = if source.ends_with(".json") { "source" } else { "binary" };
    match format.filter(|format| !format.is_empty()).unwrap_or(by_name) {
        "binary" => {}
        "source" => return Err("format source is not read, binary is".to_owned()),
        other => return Err(format!("format {}", value::excerpt(other))),
    }
    if lists.sets.len() >= MAX_LISTS {
        return Err(format!("more than {MAX_LISTS} lists"));
    }
    let name = lists.free_name(tag);
    match (yaml_access::text_of(item, "type"), path, url) {
        (Some("local"), Some(path), _) => lists.push(&name, PathBuf::from(path), None),
        (Some("remote"), _, Some(url)) => {
            WebUrl::parse(url).map_err(|_| "url is no address of a page")?;
            let through = match yaml_access::text_of(item, "download-detour") {
                None => None,
                Some(way) => {
                    let known = targets.get(way);
                    Some(known.ok_or_else(|| format!("no such outbound: {}", value::excerpt(way)))?.clone())
                }
            };
            let interval = match yaml_access::text_of(item, "update-interval") {
                None => DAY,
                Some(text) => value::duration(text).map_err(|problem| problem.text)?.max(SHORTEST),
            };
            lists.add(&name, url, interval, through);
        }
        (kind, ..) => return Err(format!("type {}", value::excerpt(kind.unwrap_or("inline")))),
    }
    Ok((tag.to_owned(), name.into()))
}

/// Most lists of one file.
const MAX_LISTS: usize = 256;

fn sing_box_rule(
    report: &JsonReport<'_>,
    item: &JsonValue,
    targets: &Map<String, Tag>,
    lists: &Map<String, Tag>,
) -> Result<Rule, String> {
    let action = yaml_access::text_of(item, "action").unwrap_or("route");
    let verdict = match action {
        "route" => {
            let name = yaml_access::text_of(item, "outbound").ok_or("no outbound")?;
            let tag =
                targets.get(name).ok_or_else(|| format!("no such outbound: {}", value::excerpt(name)))?;
            Verdict::Outbound(tag.clone())
        }
        "reject" => match yaml_access::text_of(item, "method") {
            Some("drop") => Verdict::Reject(RejectMethod::Drop),
            None | Some("" | "default") => Verdict::Reject(RejectMethod::Reset),
            Some(other) => return Err(format!("method {}", value::excerpt(other))),
        },
        other => return Err(format!("action {}", value::excerpt(other))),
    };
    let (line, column) = report.source.locate(item.at);
    let short = |number| u32::try_from(number).unwrap_or(u32::MAX);
    let at = FileLine { file: report.source.file.clone(), line: short(line), column: short(column) };
    Ok(Rule { matcher: condition(item, lists, 0)?, verdict, at })
}

/// The condition of a rule: of each kind of keys one must match.
fn condition(item: &JsonValue, lists: &Map<String, Tag>, depth: usize) -> Result<Matcher, String> {
    if depth > MAX_DEPTH {
        return Err(format!("nested deeper than {MAX_DEPTH} levels"));
    }
    let is_inverted = yaml_access::is_on(item, "invert");
    let found = if yaml_access::text_of(item, "type") == Some("logical") {
        let parts = yaml_access::get(item, "rules").map(yaml_access::items).unwrap_or_default();
        let parts: Result<Vec<Matcher>, String> =
            parts.iter().map(|part| condition(part, lists, depth + 1)).collect();
        let parts = parts?;
        match yaml_access::text_of(item, "mode") {
            _ if parts.is_empty() => return Err("no conditions in it".to_owned()),
            Some("or") => Matcher::Or(parts),
            Some("and") => Matcher::And(parts),
            _ => return Err("no mode".to_owned()),
        }
    } else {
        plain(item, lists)?
    };
    Ok(if is_inverted { Matcher::Not(Box::new(found)) } else { found })
}

fn plain(item: &JsonValue, lists: &Map<String, Tag>) -> Result<Matcher, String> {
    let (mut target, mut port, mut source, mut source_port, mut others) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for member in yaml_access::members(item) {
        let (key, value) = (&*member.key.replace('_', "-"), &member.value);
        if matches!(key, "outbound" | "action" | "method" | "invert" | "type" | "no-drop")
            || says_nothing(value)
        {
            continue;
        }
        let all = texts(value).ok_or_else(|| format!("{key} is no text and no list of texts"))?;
        let names = || all.iter().map(|text| text.to_lowercase().into()).collect();
        let exact = || all.iter().map(|text| text.as_str().into()).collect();
        match key {
            "domain" => target.push(Matcher::Domain(names())),
            "domain-suffix" => {
                let below = |text: &String| text.to_lowercase().trim_start_matches('.').into();
                target.push(Matcher::DomainSuffix(all.iter().map(below).collect()));
            }
            "domain-keyword" => target.push(Matcher::DomainKeyword(names())),
            "domain-regex" => {
                if let Some(problem) = all.iter().find_map(|text| regex_problem(text)) {
                    return Err(problem);
                }
                target.push(Matcher::DomainRegex(exact()));
            }
            "ip-cidr" => target.push(Matcher::IpCidr(networks(&all)?, Resolve::No)),
            "ip-is-private" => target.push(Matcher::IpCidr(private(), Resolve::No)),
            "rule-set" => target.push(Matcher::Set(names_of(&all, lists)?, Resolve::No)),
            "port" | "port-range" => port.push(Matcher::Port(ports(&all)?)),
            "source-ip-cidr" => source.push(Matcher::Source(networks(&all)?)),
            "source-ip-is-private" => source.push(Matcher::Source(private())),
            "source-port" | "source-port-range" => source_port.push(Matcher::SourcePort(ports(&all)?)),
            "network" => others.push(network(&all)?),
            "protocol" => others.push(Matcher::Protocol(names())),
            "auth-user" => others.push(Matcher::User(exact())),
            "process-name" => others.push(Matcher::Fact(Fact::ProcessName(exact()))),
            "process-path" => others.push(Matcher::Fact(Fact::ProcessPath(exact()))),
            _ => return Err(format!("adit.toml has no key for {key}")),
        }
    }
    let kinds = [target, port, source, source_port].into_iter().filter(|kind| !kind.is_empty());
    others.extend(kinds.map(one_of));
    match others.len() {
        0 => Err("no condition in it".to_owned()),
        1 => Ok(others.remove(0)),
        _ => Ok(Matcher::And(others)),
    }
}

/// The names in `adit.toml` of lists.
pub(super) fn names_of(all: &[String], lists: &Map<String, Tag>) -> Result<Vec<Tag>, String> {
    let name = |text: &String| {
        let known = lists.get(text).cloned();
        known.ok_or_else(|| format!("no such list here: {}", value::excerpt(text)))
    };
    all.iter().map(name).collect()
}

fn one_of(mut all: Vec<Matcher>) -> Matcher {
    if all.len() == 1 { all.remove(0) } else { Matcher::Or(all) }
}

/// A text, a number, a yes, or a list of texts and numbers.
pub(super) fn texts(value: &JsonValue) -> Option<Vec<String>> {
    match &value.node {
        Node::Array(items) => items.iter().map(|item| text_of(item).map(|text| text.to_string())).collect(),
        Node::Bool(true) => Some(vec!["true".to_owned()]),
        _ => Some(vec![text_of(value)?.to_string()]),
    }
}

fn networks(all: &[String]) -> Result<Vec<Cidr>, String> {
    let network =
        |text: &String| Cidr::parse(text).ok_or_else(|| format!("no network: {}", value::excerpt(text)));
    all.iter().map(network).collect()
}

fn private() -> Vec<Cidr> {
    PRIVATE.iter().filter_map(|text| Cidr::parse(text)).collect()
}

/// `443`, `1000:2000`, `:2000` or `1000:`.
fn ports(all: &[String]) -> Result<Vec<PortRange>, String> {
    let range = |text: &String| {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str, open: u16| if text.is_empty() { Some(open) } else { text.parse().ok() };
        let range = PortRange { first: number(first, 0)?, last: number(last, u16::MAX)? };
        (range.first <= range.last).then_some(range)
    };
    let named = |text: &String| range(text).ok_or_else(|| format!("no port: {}", value::excerpt(text)));
    all.iter().map(named).collect()
}

fn network(all: &[String]) -> Result<Matcher, String> {
    let find =
        |text: &String| Network::ALL.iter().find(|(name, _)| name == text).map(|(_, network)| *network);
    let found: Option<Vec<Network>> = all.iter().map(find).collect();
    match found.as_deref() {
        Some([one]) => Ok(Matcher::Network(*one)),
        Some([one, two]) => Ok(Matcher::Or(vec![Matcher::Network(*one), Matcher::Network(*two)])),
        _ => Err("network: tcp or udp".to_owned()),
    }
}
