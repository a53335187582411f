//! `[[rule]]`: which outbound a request takes.

use super::fields::{Fields, Report, Span, Spanned};
use super::keys::Table;
use super::{name, value};
use crate::dialect::value::{Problem, excerpt, text_of};
use crate::model::rule::{
    Cidr, Country, Manner, Matcher, Network, Place, PortRange, Resolve, Rule, Verdict, normal_name,
    regex_problem,
};
use crate::model::{Inbound, Outbound, Tag};

/// Most rules of a file.
const MAX_RULES: usize = 1 << 20;

/// Most values of one key.
const MAX_VALUES: usize = 1 << 17;

/// Deepest nesting of `and`, `or` and `not`.
const MAX_DEPTH: usize = 32;

/// Longest name, word or regular expression, in bytes.
const MAX_TEXT: usize = 1024;

/// A rule whose names have not been looked up.
pub(super) struct RawRule {
    rule: Rule,
    outbound: Option<Spanned<Box<str>>>,
    mentions: Mentions,
    path: String,
}

/// Names of other things in a rule, with their places.
#[derive(Default)]
struct Mentions {
    sets: Vec<(String, Spanned<Tag>)>,
    inbounds: Vec<(String, Spanned<Tag>)>,
}

/// Reads all rules.
pub(super) fn read(root: &mut Fields<'_>, report: &mut Report<'_>) -> Vec<RawRule> {
    let tables = match root.take("rule") {
        Some(field) => field.tables(report, Table::Rule, MAX_RULES),
        None => Vec::new(),
    };
    tables.into_iter().map(|table| read_rule(table, report)).collect()
}

fn read_rule(mut fields: Fields<'_>, report: &mut Report<'_>) -> RawRule {
    let at = place(&fields.at, report);
    let path = fields.path("").trim_end_matches('.').to_owned();
    let mut mentions = Mentions::default();
    let before = report.found.len();
    let outbound = fields.parsed(report, "outbound", name);
    let reject = fields.one_of(report, "reject", Manner::ALL);
    let verdict = match (&outbound, reject) {
        (Some(tag), None) => Verdict::Outbound((&*tag.value).into()),
        (None, Some(manner)) => Verdict::Reject(manner),
        (Some(_), Some(_)) => {
            let problem = Problem::new("not both outbound and reject").hint("leave one of them out");
            report.error(&fields.place("reject"), fields.path("reject"), problem);
            Verdict::Default
        }
        (None, None) => {
            // A value that was wrong has been reported.
            if !fields.has("outbound") && !fields.has("reject") {
                let problem = Problem::new("the rule has neither outbound nor reject");
                let hint = "add outbound = \"NAME\", or reject = \"reset\", \"drop\" or \"protocol\"";
                report.error(&fields.at, path.clone(), problem.hint(hint));
            }
            Verdict::Default
        }
    };
    let at_header = fields.at.clone();
    let matcher = keys(fields, &mut mentions, report, 0);
    if matcher.is_none() && report.found.len() == before {
        let problem = Problem::new("the rule has no key, so it would match everything");
        let hint = "for a default, set `outbound` of the inbounds";
        report.error(&at_header, path.clone(), problem.hint(hint));
    }
    let matcher = matcher.unwrap_or(Matcher::Or(Vec::new()));
    RawRule { rule: Rule { matcher, verdict, at }, outbound, mentions, path }
}

/// All keys of one table, which must all match; `None` if there is none.
fn keys(
    mut fields: Fields<'_>,
    mentions: &mut Mentions,
    report: &mut Report<'_>,
    depth: usize,
) -> Option<Matcher> {
    let resolve = match fields.flag(report, "resolve") {
        Some(false) => Resolve::No,
        Some(true) | None => Resolve::Yes,
    };
    let mut all = Vec::new();
    names(&mut fields, report, &mut all);
    if let Some(networks) = values(&mut fields, report, "ip-cidr", cidr) {
        all.push(Matcher::IpCidr(networks, resolve));
    }
    if let Some(codes) = values(&mut fields, report, "geoip", country) {
        all.push(Matcher::GeoIp(codes, resolve));
    }
    if let Some(tags) = tags(&mut fields, report, "set", &mut mentions.sets) {
        all.push(Matcher::Set(tags, resolve));
    }
    all.extend(values(&mut fields, report, "source", cidr).map(Matcher::Source));
    all.extend(ports(&mut fields, report, "source-port").map(Matcher::SourcePort));
    all.extend(ports(&mut fields, report, "port").map(Matcher::Port));
    all.extend(fields.one_of(report, "network", Network::ALL).map(Matcher::Network));
    all.extend(tags(&mut fields, report, "inbound", &mut mentions.inbounds).map(Matcher::Inbound));
    all.extend(values(&mut fields, report, "user", |text| text_of(text, 255)).map(Matcher::User));
    all.extend(values(&mut fields, report, "protocol", protocol).map(Matcher::Protocol));
    for (key, group) in [("and", Matcher::And as fn(_) -> _), ("or", Matcher::Or)] {
        if let Some(field) = fields.take(key) {
            let tables = field.tables(report, Table::RulePart, MAX_VALUES);
            if tables.is_empty() {
                report.error(&field.at, field.path.clone(), Problem::new("the list is empty"));
            }
            let parts = tables.into_iter().filter_map(|table| part(table, mentions, report, depth));
            all.push(group(parts.collect()));
        }
    }
    if let Some(table) = fields.take("not").and_then(|field| field.table(report, Table::RulePart)) {
        all.extend(part(table, mentions, report, depth).map(|part| Matcher::Not(Box::new(part))));
    }
    fields.finish(report, None);
    match all.len() {
        0 => None,
        1 => all.pop(),
        _ => Some(Matcher::And(all)),
    }
}

/// A table within `and`, `or` or `not`.
fn part(
    fields: Fields<'_>,
    mentions: &mut Mentions,
    report: &mut Report<'_>,
    depth: usize,
) -> Option<Matcher> {
    let (at, path) = (fields.at.clone(), fields.path("").trim_end_matches('.').to_owned());
    if depth >= MAX_DEPTH {
        report.error(&at, path, Problem::new(format!("nested deeper than {MAX_DEPTH} levels")));
        return None;
    }
    let before = report.found.len();
    let matcher = keys(fields, mentions, report, depth + 1);
    if matcher.is_none() && report.found.len() == before {
        report.error(
            &at,
            path,
            Problem::new("there is no key in it").hint("write, for instance, { port = 443 }"),
        );
    }
    matcher
}

fn names(fields: &mut Fields<'_>, report: &mut Report<'_>, all: &mut Vec<Matcher>) {
    all.extend(values(fields, report, "domain", domain).map(Matcher::Domain));
    all.extend(values(fields, report, "domain-suffix", domain).map(Matcher::DomainSuffix));
    let keyword = |text: &str| text_of(text, MAX_TEXT).map(|text| Box::from(text.to_ascii_lowercase()));
    all.extend(values(fields, report, "domain-keyword", keyword).map(Matcher::DomainKeyword));
    all.extend(values(fields, report, "domain-regex", regex).map(Matcher::DomainRegex));
}

/// One value or a list of them, not empty.
fn values<T>(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    key: &'static str,
    parse: impl Fn(&str) -> Result<T, Problem>,
) -> Option<Vec<T>> {
    if fields.is_empty_list(key) {
        let problem = Problem::new("an empty list matches nothing").hint("leave the key out, or add a value");
        report.error(&fields.place(key), fields.path(key), problem);
    }
    let found = fields.list(report, key, MAX_VALUES, parse)?;
    Some(found.into_iter().map(|found| found.value).collect())
}

fn tags(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    key: &'static str,
    mentions: &mut Vec<(String, Spanned<Tag>)>,
) -> Option<Vec<Tag>> {
    if fields.is_empty_list(key) {
        report.error(&fields.place(key), fields.path(key), Problem::new("an empty list matches nothing"));
    }
    let path = fields.path(key);
    let found = fields.list(report, key, MAX_VALUES, |text| name(text).map(|name| Tag::from(&*name)))?;
    mentions.extend(found.iter().map(|tag| (path.clone(), tag.clone())));
    Some(found.into_iter().map(|found| found.value).collect())
}

/// A port as a number or a text, or a list of such.
fn ports(fields: &mut Fields<'_>, report: &mut Report<'_>, key: &'static str) -> Option<Vec<PortRange>> {
    if fields.is_empty_list(key) {
        report.error(&fields.place(key), fields.path(key), Problem::new("an empty list matches nothing"));
    }
    let found = fields.numbers_or_texts(report, key, MAX_VALUES, port)?;
    Some(found.into_iter().map(|found| found.value).collect())
}

fn port(text: &str) -> Result<PortRange, Problem> {
    let bad = || {
        let hint = "write a port from 0 to 65535 or a range such as \"8000-8999\"";
        Problem::new(format!("bad port: {}", excerpt(text))).hint(hint)
    };
    let number = |text: &str| text.trim().parse::<u16>().map_err(|_| bad());
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if first > last {
        return Err(
            Problem::new(format!("the range is empty: {first}-{last}")).hint("write the lower port first")
        );
    }
    Ok(PortRange { first, last })
}

fn domain(text: &str) -> Result<Box<str>, Problem> {
    let name = normal_name(text.trim());
    let bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | ':' | '*' | '?' | '[' | ']');
    if name.split('.').any(str::is_empty) || name.contains(bad) || name.len() > crate::set::MAX_NAME {
        let hint = "write a name such as example.com; domain-suffix holds all names below it as well";
        return Err(Problem::new(format!("no name: {}", excerpt(text))).hint(hint));
    }
    text_of(&name, crate::set::MAX_NAME)
}

fn regex(text: &str) -> Result<Box<str>, Problem> {
    let regex = text_of(text, MAX_TEXT)?;
    let hint =
        "it is looked for anywhere in the name, in any case; look-around and back references are not known";
    regex_problem(&regex).map_or(Ok(regex), |problem| Err(Problem::new(problem).hint(hint)))
}

fn cidr(text: &str) -> Result<Cidr, Problem> {
    Cidr::parse(text.trim()).ok_or_else(|| {
        let hint = "write an address or a network, for instance 192.0.2.0/24 or 2001:db8::/32";
        Problem::new(format!("bad network: {}", excerpt(text))).hint(hint)
    })
}

fn country(text: &str) -> Result<Country, Problem> {
    Country::parse(text.trim()).ok_or_else(|| {
        Problem::new(format!("bad country: {}", excerpt(text))).hint("write two letters, for instance \"de\"")
    })
}

fn protocol(text: &str) -> Result<Box<str>, Problem> {
    Ok(text_of(text, 64)?.to_ascii_lowercase().into())
}

/// Line and column of a span.
pub(super) fn place(at: &Span, report: &Report<'_>) -> Place {
    let (line, column) = report.source.locate(at.start);
    let short = |number| u32::try_from(number).unwrap_or(u32::MAX);
    Place { file: report.source.file.clone(), line: short(line), column: short(column) }
}

/// The rules, each of whose names stands for something.
pub(super) fn resolve(
    raw: Vec<RawRule>,
    inbounds: &[Inbound],
    outbounds: &[Outbound],
    sets: &[crate::model::rule::Set],
    report: &mut Report<'_>,
) -> Vec<Rule> {
    let inbounds: Vec<&str> = inbounds.iter().map(|inbound| &*inbound.name).collect();
    let outbounds: Vec<&str> = outbounds.iter().map(|outbound| &*outbound.name).collect();
    let sets: Vec<&str> = sets.iter().map(|set| &*set.name).collect();
    let [known_inbounds, known_outbounds, known_sets] = [&inbounds, &outbounds, &sets]
        .map(|names| names.iter().copied().collect::<std::collections::HashSet<_>>());
    for RawRule { outbound, mentions, path, .. } in &raw {
        if let Some(tag) = outbound
            && !known_outbounds.contains(&*tag.value)
        {
            unknown(report, &tag.at, format!("{path}.outbound"), "outbound", &tag.value, &outbounds);
        }
        for (path, tag) in mentions.sets.iter().filter(|(_, tag)| !known_sets.contains(&*tag.value)) {
            unknown(report, &tag.at, path.clone(), "set", &tag.value, &sets);
        }
        for (path, tag) in mentions.inbounds.iter().filter(|(_, tag)| !known_inbounds.contains(&*tag.value)) {
            unknown(report, &tag.at, path.clone(), "inbound", &tag.value, &inbounds);
        }
    }
    raw.into_iter().map(|raw| raw.rule).collect()
}

fn unknown(report: &mut Report<'_>, at: &Span, path: String, what: &str, wanted: &str, names: &[&str]) {
    let problem = Problem::new(format!("no such {what}: {}", excerpt(wanted)));
    let hint = match (value::closest(wanted, names.iter().copied()), names.first()) {
        (Some(name), _) => format!("did you mean `{name}`?"),
        (None, Some(first)) => format!("the first {what} is `{first}`"),
        (None, None) => format!("add a [[{what}]] of that name"),
    };
    report.error(at, path, problem.hint(hint));
}

/// The lines of a rule behind its header: `verdict` and the keys. A rule that has no words in this dialect, as those of
/// access lists, has no lines.
pub(super) fn lines(rule: &Rule) -> Option<Vec<(&'static str, String)>> {
    let quoted = value::quote;
    let mut lines = table(in_one_table(&rule.matcher))?;
    lines.push(match &rule.verdict {
        Verdict::Outbound(tag) => ("outbound", quoted(tag)),
        Verdict::Reject(manner) => ("reject", quoted(manner.name())),
        Verdict::Default => return None,
    });
    Some(lines)
}

/// The keys of the table that says the same as a matcher.
fn in_one_table(matcher: &Matcher) -> &[Matcher] {
    if let Matcher::And(all) = matcher
        && is_table(all)
    {
        return all;
    }
    std::slice::from_ref(matcher)
}

/// Whether matchers can stand in one table: each key once, and one answer for all about looking names up.
fn is_table(all: &[Matcher]) -> bool {
    let mut keys: Vec<&str> = all.iter().map(Matcher::key).collect();
    keys.sort_unstable();
    let answers: Vec<Resolve> = all.iter().filter_map(resolve_of).collect();
    all.len() > 1
        && keys.windows(2).all(|two| two[0] != two[1])
        && answers.windows(2).all(|two| two[0] == two[1])
}

fn resolve_of(matcher: &Matcher) -> Option<Resolve> {
    if let Matcher::IpCidr(_, resolve) | Matcher::GeoIp(_, resolve) | Matcher::Set(_, resolve) = matcher {
        return Some(*resolve);
    }
    None
}

fn table(all: &[Matcher]) -> Option<Vec<(&'static str, String)>> {
    let mut lines = Vec::with_capacity(all.len() + 2);
    for matcher in all {
        lines.push((matcher.key(), written(matcher)?));
    }
    if all.iter().filter_map(resolve_of).any(|resolve| resolve == Resolve::No) {
        lines.push(("resolve", "false".to_owned()));
    }
    Some(lines)
}

fn inline(matcher: &Matcher) -> Option<String> {
    let lines = table(in_one_table(matcher))?;
    let keys: Vec<String> = lines.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    Some(format!("{{ {} }}", keys.join(", ")))
}

/// The value of a matcher's key.
fn written(matcher: &Matcher) -> Option<String> {
    let quoted = value::quote;
    Some(match matcher {
        Matcher::Domain(all)
        | Matcher::DomainSuffix(all)
        | Matcher::DomainKeyword(all)
        | Matcher::DomainRegex(all)
        | Matcher::User(all)
        | Matcher::Protocol(all) => list(all.iter().map(|text| quoted(text))),
        Matcher::IpCidr(all, _) | Matcher::Source(all) => {
            list(all.iter().map(|cidr| quoted(&cidr.to_string())))
        }
        Matcher::GeoIp(all, _) => list(all.iter().map(|code| quoted(&code.to_string()))),
        Matcher::Set(all, _) | Matcher::Inbound(all) => list(all.iter().map(|tag| quoted(tag))),
        Matcher::Port(all) | Matcher::SourcePort(all) => list(all.iter().map(|range| {
            if range.first == range.last { range.to_string() } else { quoted(&range.to_string()) }
        })),
        Matcher::Network(network) => quoted(network.name()),
        Matcher::And(all) | Matcher::Or(all) => {
            let parts: Vec<String> = all.iter().map(inline).collect::<Option<_>>()?;
            format!("[{}]", parts.join(", "))
        }
        Matcher::Not(one) => inline(one)?,
        Matcher::Unresolved | Matcher::SourceSet(_) => return None,
    })
}

fn list(values: impl Iterator<Item = String>) -> String {
    let mut values: Vec<String> = values.collect();
    match values.len() {
        1 => values.remove(0),
        _ => format!("[{}]", values.join(", ")),
    }
}
