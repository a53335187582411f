//! `proxy-groups`: groups of proxies, of other groups, and of the entries of providers.

use std::collections::BTreeSet;
use std::time::Duration;

use adit_model::map::Map;
use adit_model::rule::Verdict;
use adit_model::{
    Balance, Choice, DelayTest, Dial, Outbound, OutboundProtocol, Policy, Refusal, Tag, WebUrl,
};

use super::proxy::{self, DIRECT, GLOBAL, REJECT};
use super::{Context, Target, rule_line};
use crate::read::json::JsonValue;
use crate::read::value;
use crate::read::yaml_access;

/// Longest delay of a test, and shortest time between two.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time between two tests.
const MAX_INTERVAL: u64 = 30 * 86_400;

const RELAY: &str = "groups of type relay are not carried";

/// A group as it is written.
pub(super) struct GroupEntry<'v> {
    name: String,
    kind: &'v str,
    members: Vec<String>,
    value: &'v JsonValue,
    path: String,
    test: DelayTest,
}

/// Entries that groups take by name or by their provider.
pub(super) struct GroupSources<'a> {
    /// Names of `proxies`, in order.
    pub(super) proxies: &'a [String],
    pub(super) providers: &'a Map<String, Provided>,
    /// Types of all entries, as they are written.
    pub(super) kinds: &'a Map<String, String>,
    /// Whether a second request is measured.
    pub(super) unified: bool,
}

/// A provider of proxies.
pub(super) struct Provided {
    /// Its entries, in order.
    pub(super) names: Vec<String>,
    /// Its test of delays, if it has one.
    pub(super) test: Option<DelayTest>,
}

/// Reads an entry of `proxy-groups`.
pub(super) fn group<'v>(
    context: &mut Context<'_>,
    value: &'v JsonValue,
    path: String,
    entries: &GroupSources<'_>,
) -> Option<GroupEntry<'v>> {
    const KINDS: [&str; 5] = ["select", "url-test", "fallback", "load-balance", "relay"];
    let (name, kind) = (yaml_access::text_of(value, "name"), yaml_access::text_of(value, "type"));
    let (Some(name), Some(kind)) = (name, kind) else {
        context.error(value.at, path, "a group needs `name` and `type`");
        return None;
    };
    if !KINDS.contains(&kind) {
        let problem = format!("{name}: unsupported group type: {}", value::excerpt(kind));
        context.error(yaml_access::at(value, "type"), format!("{path}.type"), problem);
        return None;
    }
    let all = yaml_access::is_on(value, "include-all");
    let is_listed = yaml_access::get(value, "proxies").is_some() || yaml_access::get(value, "use").is_some();
    let includes = all
        || yaml_access::is_on(value, "include-all-proxies")
        || yaml_access::is_on(value, "include-all-providers");
    if !is_listed && !includes {
        context.error(value.at, path, format!("{name}: `use` or `proxies` missing"));
        return None;
    }
    let members = members(context, value, &path, all, entries);
    let test = test_of_group(context, value, &path, kind, entries);
    Some(GroupEntry { name: name.to_owned(), kind, members, value, path, test })
}

fn members(
    context: &mut Context<'_>,
    value: &JsonValue,
    path: &str,
    all: bool,
    entries: &GroupSources<'_>,
) -> Vec<String> {
    let mut listed: Vec<String> =
        yaml_access::texts_of(value, "proxies").into_iter().map(|(name, _)| name.to_owned()).collect();
    let mut more = Vec::new();
    if all || yaml_access::is_on(value, "include-all-proxies") {
        let sorted: BTreeSet<&String> = entries.proxies.iter().collect();
        more.extend(sorted.into_iter().cloned());
    }
    if all || yaml_access::is_on(value, "include-all-providers") {
        more.extend(entries.providers.values().flat_map(|provided| provided.names.iter().cloned()));
    } else {
        for (name, at) in yaml_access::texts_of(value, "use") {
            match entries.providers.get(name) {
                Some(provided) => more.extend(provided.names.iter().cloned()),
                None => context.error(at, format!("{path}.use"), format!("'{name}' not found")),
            }
        }
    }
    if let Some(filter) = yaml_access::text_of(value, "filter").filter(|filter| !filter.is_empty()) {
        let path = format!("{path}.filter");
        let mut kept = Vec::new();
        for regex in regexes(context, yaml_access::at(value, "filter"), &path, filter) {
            let fits = more.iter().filter(|name| regex.is_match(name.as_str()).unwrap_or(false));
            kept.extend(fits.filter(|name| !kept.contains(*name)).cloned().collect::<Vec<_>>());
        }
        more = kept;
    }
    listed.append(&mut more);
    if let Some(filter) = yaml_access::text_of(value, "exclude-filter").filter(|filter| !filter.is_empty()) {
        let at = yaml_access::at(value, "exclude-filter");
        for regex in regexes(context, at, &format!("{path}.exclude-filter"), filter) {
            // An expression that cannot be decided leaves nothing in.
            listed.retain(|name| !regex.is_match(name.as_str()).unwrap_or(true));
        }
    }
    if let Some(excluded) = yaml_access::text_of(value, "exclude-type").filter(|kinds| !kinds.is_empty()) {
        let excluded: Vec<String> = excluded.split('|').map(|kind| kind.trim().to_lowercase()).collect();
        let kind_of = |name: &String| {
            let kind = entries.kinds.get(name).map_or(name.as_str(), String::as_str);
            proxy::api_type(&kind.to_lowercase()).to_lowercase()
        };
        listed.retain(|name| !excluded.contains(&kind_of(name)));
    }
    let mut seen = BTreeSet::new();
    listed.retain(|name| seen.insert(name.clone()));
    listed
}

/// Regular expressions that a backtick separates.
pub(super) fn regexes(
    context: &mut Context<'_>,
    at: usize,
    path: &str,
    text: &str,
) -> Vec<fancy_regex::Regex> {
    let mut all = Vec::new();
    for text in text.split('`') {
        match fancy_regex::RegexBuilder::new(text).backtrack_limit(100_000).build() {
            Ok(regex) => all.push(regex),
            Err(error) => context.error(at, path, error.to_string()),
        }
    }
    all
}

/// The test of a group: its own keys, else those of the first provider that it uses.
fn test_of_group(
    context: &mut Context<'_>,
    value: &JsonValue,
    path: &str,
    kind: &str,
    entries: &GroupSources<'_>,
) -> DelayTest {
    let has_proxies = yaml_access::get(value, "proxies").is_some();
    let provided = yaml_access::texts_of(value, "use")
        .into_iter()
        .find_map(|(name, _)| entries.providers.get(name)?.test.clone())
        .filter(|_| !has_proxies);
    let is_timed = !matches!(kind, "select" | "relay") && has_proxies;
    let default = DelayTest {
        interval: if is_timed { DelayTest::default().interval } else { None },
        unified: entries.unified,
        ..DelayTest::default()
    };
    let default = match provided {
        // Members of a provider are tested as often as the provider says.
        Some(test) => DelayTest { url: test.url, interval: test.interval, ..default },
        None => default,
    };
    test(context, value, path, default)
}

/// The keys of a test of delays.
pub(super) fn test(
    context: &mut Context<'_>,
    value: &JsonValue,
    path: &str,
    default: DelayTest,
) -> DelayTest {
    let mut test = default;
    if let Some(url) = yaml_access::text_of(value, "url").filter(|url| !url.is_empty()) {
        match WebUrl::parse(url) {
            Ok(_) => test.url = url.into(),
            Err(error) => {
                let problem = format!("{error}; {} is asked instead", test.url);
                context.remark(yaml_access::at(value, "url"), format!("{path}.url"), problem, "");
            }
        }
    }
    if let Some(seconds) = yaml_access::number_of(value, "interval") {
        let interval = Duration::from_secs(seconds.min(MAX_INTERVAL)).max(MIN_INTERVAL);
        test.interval = (seconds > 0).then_some(interval);
    }
    if yaml_access::get(value, "lazy").is_some() {
        test.lazy = yaml_access::is_on(value, "lazy");
    }
    if let Some(timeout) = yaml_access::number_of(value, "timeout").filter(|timeout| *timeout > 0) {
        test.timeout = Duration::from_millis(timeout).min(MAX_TIMEOUT);
    }
    if let Some(count) = yaml_access::number_of(value, "max-failed-times").filter(|count| *count > 0) {
        test.max_failed = u32::try_from(count).unwrap_or(u32::MAX);
    }
    if let Some(text) =
        yaml_access::text_of(value, "expected-status").filter(|text| !text.is_empty() && *text != "*")
    {
        match rule_line::numbers(text, u16::MAX.into()) {
            Ok(ranges) => {
                let short = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
                test.expected = ranges.iter().map(|(first, last)| (short(*first), short(*last))).collect();
            }
            Err(problem) => {
                let at = yaml_access::at(value, "expected-status");
                context.error(at, format!("{path}.expected-status"), problem);
            }
        }
    }
    test
}

/// Adds the groups to the targets, each behind its members, and their outbounds in the order of the file.
pub(super) fn settle(context: &mut Context<'_>, groups: &[GroupEntry<'_>], outbounds: &mut Vec<Outbound>) {
    let names: BTreeSet<&str> = groups.iter().map(|group| &*group.name).collect();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for group in groups {
        let is_taken = context.target(&group.name).is_some() && group.name != GLOBAL;
        if is_taken || !seen.insert(&group.name) {
            let problem = format!("ProxyGroup {}: the duplicate name", group.name);
            context.error(group.value.at, group.path.clone(), problem);
        }
        let stand_in = yaml_access::text_of(group.value, "empty-fallback").filter(|name| !name.is_empty());
        if let Some(name) = stand_in.filter(|name| context.target(name).is_none() && !names.contains(name)) {
            let problem = format!("'{}' not found", value::excerpt(name));
            let at = yaml_access::at(group.value, "empty-fallback");
            context.remark(at, format!("{}.empty-fallback", group.path), problem, "");
        }
        let chosen = yaml_access::text_of(group.value, "default-selected").filter(|name| !name.is_empty());
        if let Some(name) = chosen.filter(|name| !group.members.iter().any(|member| member == name)) {
            let problem = format!("'{}' is no member; the first one is taken", value::excerpt(name));
            let at = yaml_access::at(group.value, "default-selected");
            context.remark(at, format!("{}.default-selected", group.path), problem, "");
        }
        for name in &group.members {
            if context.target(name).is_none() && !names.contains(&**name) {
                let problem = format!("{}: '{name}' not found", group.name);
                let written = yaml_access::texts_of(group.value, "proxies");
                let at = written.iter().find(|(other, _)| other == name).map(|(_, at)| *at);
                let at = at.unwrap_or(group.value.at);
                context.error(at, format!("{}.proxies", group.path), problem);
            }
        }
        outbounds.push(outbound(context, group));
    }
    let mut left: Vec<&GroupEntry<'_>> = groups.iter().collect();
    while !left.is_empty() {
        let waits = |group: &&GroupEntry<'_>, context: &Context<'_>| {
            let mut members = group.members.iter();
            members.any(|name| context.target(name).is_none() && names.contains(&**name))
        };
        let (later, now): (Vec<_>, Vec<_>) = left.into_iter().partition(|group| waits(group, context));
        if now.is_empty() {
            if let Some(first) = later.first() {
                let names: Vec<&str> = later.iter().map(|group| &*group.name).collect();
                let problem =
                    format!("loop is detected in ProxyGroup, please check following ProxyGroups: {names:?}");
                context.error(first.value.at, first.path.clone(), problem);
            }
            return;
        }
        for group in now {
            let target = target(context, group);
            context.targets.insert(group.name.clone(), target);
        }
        left = later;
    }
}

fn target(context: &Context<'_>, group: &GroupEntry<'_>) -> Target {
    let outbound: Tag = group.name.as_str().into();
    if group.kind == "relay" {
        return Target { verdict: Verdict::Outbound(outbound), udp: true, leaf: None };
    }
    let default = yaml_access::text_of(group.value, "default-selected").filter(|_| group.kind == "select");
    let default = default.filter(|name| group.members.iter().any(|member| member == name));
    let first = default.or_else(|| group.members.first().map(String::as_str));
    let leaf = match first {
        None => Some("COMPATIBLE".into()),
        Some(name) => {
            Some(context.target(name).and_then(|target| target.leaf.clone()).unwrap_or_else(|| name.into()))
        }
    };
    Target { verdict: Verdict::Ask { outbound, pass: 0 }, udp: true, leaf }
}

fn outbound(context: &mut Context<'_>, group: &GroupEntry<'_>) -> Outbound {
    let GroupEntry { name, kind, members, value, path, test } = group;
    let plain = |protocol| Outbound { name: name.as_str().into(), dial: Dial::default(), protocol };
    let udp = !yaml_access::is_on(value, "disable-udp");
    if *kind == "relay" {
        let problem = format!("{RELAY}: every connection through {name} is refused");
        context.remark(value.at, path.clone(), problem, "use dialer-proxy in the place of relay");
        let refusal = Refusal::Dead { kind: (*kind).into(), why: RELAY.into(), udp };
        return plain(OutboundProtocol::Refuse(refusal));
    }
    let mut members: Vec<Tag> = members.iter().map(|name| name.as_str().into()).collect();
    if members.is_empty() {
        match yaml_access::text_of(value, "empty-fallback").filter(|name| context.target(name).is_some()) {
            Some(name) => members.push(name.into()),
            None => {
                let problem = format!("{name} has no member; every connection through it is refused");
                context.remark(value.at, path.clone(), problem, "empty-fallback names a stand-in");
            }
        }
    }
    let policy = match *kind {
        "url-test" => {
            let tolerance = yaml_access::number_of(value, "tolerance").unwrap_or(0);
            Policy::UrlTest(Duration::from_millis(tolerance.min(u16::MAX.into())))
        }
        "fallback" => Policy::Fallback,
        "load-balance" => Policy::LoadBalance(balance(context, value, path)),
        _ => Policy::Select(yaml_access::text_of(value, "default-selected").map(Tag::from)),
    };
    plain(OutboundProtocol::Choice(Choice {
        members,
        policy,
        test: test.clone(),
        udp,
        hidden: yaml_access::is_on(value, "hidden"),
        icon: yaml_access::text_of(value, "icon").unwrap_or_default().into(),
        uses: None,
    }))
}

fn balance(context: &mut Context<'_>, value: &JsonValue, path: &str) -> Balance {
    match yaml_access::text_of(value, "strategy") {
        None | Some("" | "consistent-hashing") => Balance::Consistent,
        Some("round-robin") => Balance::RoundRobin,
        Some("sticky-sessions") => Balance::Sticky,
        Some(other) => {
            let problem = format!("unsupported strategy: {}", value::excerpt(other));
            context.error(yaml_access::at(value, "strategy"), format!("{path}.strategy"), problem);
            Balance::Consistent
        }
    }
}

/// The group that is there without being written: all proxies and groups, in the order of the file.
pub(super) fn global(
    context: &mut Context<'_>,
    proxies: &[String],
    groups: &[GroupEntry<'_>],
    outbounds: &mut Vec<Outbound>,
) {
    if groups.iter().any(|group| group.name == GLOBAL) {
        return;
    }
    let all = [DIRECT, REJECT].into_iter().chain(proxies.iter().map(String::as_str));
    let all = all.chain(groups.iter().map(|group| &*group.name));
    let choice = Choice {
        members: all.map(Tag::from).collect(),
        policy: Policy::Select(None),
        test: DelayTest { interval: None, ..DelayTest::default() },
        udp: true,
        hidden: false,
        icon: "".into(),
        uses: None,
    };
    let protocol = OutboundProtocol::Choice(choice);
    outbounds.push(Outbound { name: GLOBAL.into(), dial: Dial::default(), protocol });
    let verdict = Verdict::Ask { outbound: GLOBAL.into(), pass: 0 };
    // mihomo's log names no member of this group.
    context.targets.insert(GLOBAL.to_owned(), Target { verdict, udp: true, leaf: None });
}
