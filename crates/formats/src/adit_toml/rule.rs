//! `[[rule]]`: which outbound a request takes.

use adit_model::rule::{ENTRIES, Fact, FileLine, Matcher, Resolve, Rule, Verdict};
use adit_model::{Inbound, Outbound, Tag};

use super::fields::{Span, Spanned, TomlFields, TomlReport};
use super::rows::{root, rule as rows};
use super::write::TableEntries;
use crate::read::value::{self, Problem, excerpt};

/// Deepest nesting of `and`, `or` and `not`.
const MAX_DEPTH: usize = 32;

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
pub(crate) fn read(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Vec<RawRule> {
    let tables = fields.tables(report, &root::RULE).unwrap_or_default();
    tables.into_iter().map(|table| read_rule(table, report)).collect()
}

fn read_rule(mut fields: TomlFields<'_>, report: &mut TomlReport<'_>) -> RawRule {
    let at = place(&fields.at, report);
    let path = fields.base().to_owned();
    let mut mentions = Mentions::default();
    let before = report.found.len();
    let outbound = fields.read(report, &rows::OUTBOUND);
    let reject = fields.read(report, &rows::REJECT);
    let verdict = match (&outbound, reject) {
        (Some(tag), None) => Verdict::Outbound((&*tag.value).into()),
        (None, Some(manner)) => Verdict::Reject(manner),
        (Some(_), Some(_)) => {
            let problem = Problem::new("not both outbound and reject").hint("leave one of them out");
            report.error(&fields.place(&rows::REJECT), fields.path(&rows::REJECT), problem);
            Verdict::Default
        }
        (None, None) => {
            // A value that was wrong has been reported.
            if !fields.has(&rows::OUTBOUND) && !fields.has(&rows::REJECT) {
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
    mut fields: TomlFields<'_>,
    mentions: &mut Mentions,
    report: &mut TomlReport<'_>,
    depth: usize,
) -> Option<Matcher> {
    let resolve = match fields.read(report, &rows::RESOLVE) {
        Some(false) => Resolve::No,
        Some(true) | None => Resolve::Yes,
    };
    let mut all = Vec::new();
    all.extend(values(&mut fields, report, &rows::DOMAIN).map(Matcher::Domain));
    all.extend(values(&mut fields, report, &rows::DOMAIN_SUFFIX).map(Matcher::DomainSuffix));
    all.extend(values(&mut fields, report, &rows::DOMAIN_KEYWORD).map(Matcher::DomainKeyword));
    all.extend(values(&mut fields, report, &rows::DOMAIN_REGEX).map(Matcher::DomainRegex));
    let networks = values(&mut fields, report, &rows::IP_CIDR);
    all.extend(networks.map(|networks| Matcher::IpCidr(networks, resolve)));
    let codes = values(&mut fields, report, &rows::GEOIP);
    all.extend(codes.map(|codes| Matcher::GeoIp(codes, resolve)));
    let sets = tags(&mut fields, report, &rows::SET, &mut mentions.sets);
    all.extend(sets.map(|sets| Matcher::Set(sets, resolve)));
    all.extend(values(&mut fields, report, &rows::SOURCE).map(Matcher::Source));
    all.extend(values(&mut fields, report, &rows::SOURCE_PORT).map(Matcher::SourcePort));
    all.extend(values(&mut fields, report, &rows::PORT).map(Matcher::Port));
    all.extend(fields.read(report, &rows::NETWORK).map(Matcher::Network));
    all.extend(tags(&mut fields, report, &rows::INBOUND, &mut mentions.inbounds).map(Matcher::Inbound));
    all.extend(values(&mut fields, report, &rows::USER).map(Matcher::User));
    all.extend(values(&mut fields, report, &rows::PROTOCOL).map(Matcher::Protocol));
    facts(&mut fields, report, &mut all);
    for (row, group) in [(&rows::AND, Matcher::And as fn(_) -> _), (&rows::OR, Matcher::Or)] {
        let Some(tables) = fields.tables(report, row) else { continue };
        if tables.is_empty() {
            report.error(&fields.place(row), fields.path(row), Problem::new("the list is empty"));
        }
        let parts = tables.into_iter().filter_map(|table| part(table, mentions, report, depth));
        all.push(group(parts.collect()));
    }
    if let Some(table) = fields.table(report, &rows::NOT) {
        all.extend(part(table, mentions, report, depth).map(|part| Matcher::Not(Box::new(part))));
    }
    fields.finish(report, None);
    match all.len() {
        0 => None,
        1 => all.pop(),
        _ => Some(Matcher::And(all)),
    }
}

/// The keys about the client's program and its way in.
fn facts(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>, all: &mut Vec<Matcher>) {
    let found = [
        values(fields, report, &rows::PROCESS).map(Fact::ProcessName),
        values(fields, report, &rows::PROCESS_PATH).map(Fact::ProcessPath),
        fields.read(report, &rows::PROCESS_REGEX).map(Fact::ProcessNameRegex),
        fields.read(report, &rows::PROCESS_PATH_REGEX).map(Fact::ProcessPathRegex),
        values(fields, report, &rows::UID).map(Fact::Uid),
        values(fields, report, &rows::INBOUND_PORT).map(Fact::InboundPort),
        values(fields, report, &rows::INBOUND_TYPE).map(Fact::Entry),
    ];
    all.extend(found.into_iter().flatten().map(Matcher::Fact));
}

/// A table within `and`, `or` or `not`.
fn part(
    fields: TomlFields<'_>,
    mentions: &mut Mentions,
    report: &mut TomlReport<'_>,
    depth: usize,
) -> Option<Matcher> {
    let (at, path) = (fields.at.clone(), fields.base().to_owned());
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

/// One value or a list of them, not empty.
fn values<T>(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    row: &'static rows::OneOrMany<T>,
) -> Option<Vec<T>> {
    let found = spanned_values(fields, report, row)?;
    Some(found.into_iter().map(|found| found.value).collect())
}

fn spanned_values<T>(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    row: &'static rows::OneOrMany<T>,
) -> Option<Vec<Spanned<T>>> {
    if fields.is_empty_list(row) {
        let problem = Problem::new("an empty list matches nothing").hint("leave the key out, or add a value");
        report.error(&fields.place(row), fields.path(row), problem);
    }
    fields.read(report, row)
}

fn tags(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    row: &'static rows::OneOrMany<Tag>,
    mentions: &mut Vec<(String, Spanned<Tag>)>,
) -> Option<Vec<Tag>> {
    let path = fields.path(row);
    let found = spanned_values(fields, report, row)?;
    mentions.extend(found.iter().map(|tag| (path.clone(), tag.clone())));
    Some(found.into_iter().map(|found| found.value).collect())
}

/// Line and column of a span.
pub(super) fn place(at: &Span, report: &TomlReport<'_>) -> FileLine {
    let (line, column) = report.source.locate(at.start);
    let short = |number| u32::try_from(number).unwrap_or(u32::MAX);
    FileLine { file: report.source.file.clone(), line: short(line), column: short(column) }
}

/// The rules, each of whose names stands for something.
pub(super) fn resolve(
    raw: Vec<RawRule>,
    inbounds: &[Inbound],
    outbounds: &[Outbound],
    sets: &[adit_model::rule::Set],
    report: &mut TomlReport<'_>,
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

fn unknown(report: &mut TomlReport<'_>, at: &Span, path: String, what: &str, wanted: &str, names: &[&str]) {
    let problem = Problem::new(format!("no such {what}: {}", excerpt(wanted)));
    let hint = match (value::closest(wanted, names.iter().copied()), names.first()) {
        (Some(name), _) => format!("did you mean `{name}`?"),
        (None, Some(first)) => format!("the first {what} is `{first}`"),
        (None, None) => format!("add a [[{what}]] of that name"),
    };
    report.error(at, path, problem.hint(hint));
}

/// Whether `adit.toml` has words for a rule.
pub(crate) fn has_words(rule: &Rule) -> bool {
    entries(rule).is_some()
}

/// The keys of a rule. A rule that has no words in this dialect, as those of access lists, has none.
pub(super) fn entries(rule: &Rule) -> Option<TableEntries> {
    let mut out = table(in_one_table(&rule.matcher))?;
    match &rule.verdict {
        Verdict::Outbound(tag) | Verdict::Ask { outbound: tag, .. } => out.put(&rows::OUTBOUND, tag),
        Verdict::Reject(manner) => out.put(&rows::REJECT, manner),
        Verdict::Default | Verdict::Pass(_) | Verdict::Streams { .. } | Verdict::Again { .. } => return None,
    }
    Some(out)
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

fn table(all: &[Matcher]) -> Option<TableEntries> {
    let mut out = TableEntries::default();
    for matcher in all {
        write(&mut out, matcher)?;
    }
    if all.iter().filter_map(resolve_of).any(|resolve| resolve == Resolve::No) {
        out.put(&rows::RESOLVE, &false);
    }
    Some(out)
}

fn write(out: &mut TableEntries, matcher: &Matcher) -> Option<()> {
    match matcher {
        Matcher::Domain(all) => out.put(&rows::DOMAIN, all),
        Matcher::DomainSuffix(all) => out.put(&rows::DOMAIN_SUFFIX, all),
        Matcher::DomainKeyword(all) => out.put(&rows::DOMAIN_KEYWORD, all),
        Matcher::DomainRegex(all) => out.put(&rows::DOMAIN_REGEX, all),
        Matcher::User(all) => out.put(&rows::USER, all),
        Matcher::Protocol(all) => out.put(&rows::PROTOCOL, all),
        Matcher::IpCidr(all, _) => out.put(&rows::IP_CIDR, all),
        Matcher::Source(all) => out.put(&rows::SOURCE, all),
        Matcher::GeoIp(all, _) => out.put(&rows::GEOIP, all),
        Matcher::Set(all, _) => out.put(&rows::SET, all),
        Matcher::Inbound(all) => out.put(&rows::INBOUND, all),
        Matcher::Port(all) => out.put(&rows::PORT, all),
        Matcher::SourcePort(all) => out.put(&rows::SOURCE_PORT, all),
        Matcher::Network(network) => out.put(&rows::NETWORK, network),
        Matcher::And(all) => out.tables(&rows::AND, parts(all)?),
        Matcher::Or(all) => out.tables(&rows::OR, parts(all)?),
        Matcher::Not(one) => out.table(&rows::NOT, table(in_one_table(one))?),
        Matcher::Fact(fact) => write_fact(out, fact)?,
        Matcher::Unresolved | Matcher::SourceSet(_) | Matcher::IpSuffix(..) => return None,
    }
    Some(())
}

fn write_fact(out: &mut TableEntries, fact: &Fact) -> Option<()> {
    match fact {
        Fact::ProcessName(all) => out.put(&rows::PROCESS, all),
        Fact::ProcessPath(all) => out.put(&rows::PROCESS_PATH, all),
        Fact::ProcessNameRegex(regex) => out.put(&rows::PROCESS_REGEX, regex),
        Fact::ProcessPathRegex(regex) => out.put(&rows::PROCESS_PATH_REGEX, regex),
        Fact::Uid(all) => out.put(&rows::UID, all),
        Fact::InboundPort(all) => out.put(&rows::INBOUND_PORT, all),
        // Nobody asks by the others.
        Fact::Entry(all) => {
            let known = all.iter().filter(|word| ENTRIES.contains(&&***word)).cloned();
            let known: Vec<_> = known.collect();
            if known.is_empty() {
                return None;
            }
            out.put(&rows::INBOUND_TYPE, &known);
        }
        Fact::Named | Fact::SourceSuffix(_) | Fact::Dscp(_) | Fact::Mark(_) => return None,
    }
    Some(())
}

fn parts(all: &[Matcher]) -> Option<Vec<TableEntries>> {
    all.iter().map(|matcher| table(in_one_table(matcher))).collect()
}
