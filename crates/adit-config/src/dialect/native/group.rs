//! The keys of protocol group.

use super::fields::{Fields, Report, Spanned};
use super::keys::Table;
use super::{MAX_OUTBOUNDS, name, value};
use crate::dialect::value::{Problem, text_of};
use crate::model::{Check, Group, HttpUrl, Member, Outbound, OutboundProtocol};

/// Longest address that is fetched to compare members, in bytes.
const MAX_URL: usize = 1024;

/// The group, whose members are not checked yet, and the places of their names.
pub(super) fn read(fields: &mut Fields<'_>, report: &mut Report<'_>) -> (Group, Vec<Spanned<Box<str>>>) {
    let field = fields.require(report, "members");
    let tables = field.map(|field| field.tables(report, Table::Member, MAX_OUTBOUNDS)).unwrap_or_default();
    if fields.is_empty_list("members") {
        report.error(
            &fields.place("members"),
            fields.path("members"),
            Problem::new("the group has no members"),
        );
    }
    let (mut members, mut names) = (Vec::new(), Vec::new());
    for mut table in tables {
        let name = table.require(report, "name").and_then(|field| field.parsed(report, name));
        let mut member = Member::new(name.as_ref().map_or("", |name| &*name.value));
        for (key, weight) in [("tcp-weight", &mut member.tcp_weight), ("udp-weight", &mut member.udp_weight)]
        {
            if let Some(percent) = table.integer(report, key, 0..=100) {
                *weight = u8::try_from(percent).unwrap_or(*weight);
            }
        }
        table.finish(report, None);
        if let Some(name) = name {
            members.push(member);
            names.push(name);
        }
    }
    (Group { members, grows: false, check: check(fields, report) }, names)
}

fn check(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Check {
    let default = Check::default();
    let url = fields.parsed(report, "check-url", url).map_or(default.url, |url| url.value);
    let dns = fields.parsed(report, "check-dns", value::name_server).map_or(default.dns, |dns| dns.value);
    let mut span = |key| {
        let span = fields.duration(report, key)?;
        if span.is_zero() {
            report.error(&fields.place(key), fields.path(key), Problem::new("must be greater than 0"));
        }
        Some(span)
    };
    let interval = span("check-interval").unwrap_or(default.interval);
    let interval_in_use = span("check-interval-in-use").unwrap_or(interval);
    let timeout = span("check-timeout").unwrap_or(default.timeout);
    if interval_in_use > interval {
        let key = "check-interval-in-use";
        report.error(&fields.place(key), fields.path(key), Problem::new("longer than check-interval"));
    }
    let tolerance = fields.duration(report, "tolerance").unwrap_or(default.tolerance);
    Check { url, dns, interval, interval_in_use, timeout, tolerance }
}

fn url(text: &str) -> Result<Box<str>, Problem> {
    let url = text_of(text, MAX_URL)?;
    match HttpUrl::parse(&url) {
        Ok(_) => Ok(url),
        Err(error) => {
            Err(Problem::new(error.to_string()).hint("write http:// and something that is small and public"))
        }
    }
}

/// Checks that the members of each group are among all outbounds.
pub(super) fn check_members(
    outbounds: &[Outbound],
    members: Vec<(String, Vec<Spanned<Box<str>>>)>,
    report: &mut Report<'_>,
) {
    let all: Vec<_> = outbounds
        .iter()
        .map(|outbound| (outbound.name.clone(), matches!(outbound.protocol, OutboundProtocol::Group(_))))
        .collect();
    for (outbound, (path, names)) in outbounds.iter().zip(members) {
        if !matches!(outbound.protocol, OutboundProtocol::Group(_)) {
            continue;
        }
        let mut seen = std::collections::HashSet::new();
        let mut has_twice = false;
        for (i, name) in names.iter().enumerate() {
            let path = format!("{path}.members[{i}].name");
            let problem = match all.iter().position(|(other, _)| **other == *name.value) {
                None => {
                    let hint = value::closest(&name.value, all.iter().map(|(name, _)| &**name));
                    let problem = format!("no such outbound: {}", value::excerpt(&name.value));
                    let problem = Problem::new(problem);
                    match hint {
                        Some(name) => problem.hint(format!("did you mean `{name}`?")),
                        None => problem,
                    }
                }
                Some(index) if all[index].1 => Problem::new("a group cannot hold a group"),
                Some(_) => {
                    has_twice |= !seen.insert(&name.value);
                    continue;
                }
            };
            report.error(&name.at, path, problem);
        }
        if has_twice {
            report.error(
                &names[0].at,
                format!("{path}.members"),
                Problem::new("one of them is listed twice"),
            );
        }
    }
}
