//! The keys of protocol group.

use std::time::Duration;

use adit_model::{Check, Group, Member, Outbound, OutboundProtocol};

use super::fields::{Spanned, TomlFields, TomlReport};
use super::rows::{Row, port_keys as rows};
use super::value;
use super::write::TableEntries;
use crate::read::value::Problem;

/// The group, whose members are not checked yet, and the places of their names.
pub(crate) fn read(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
) -> (Group, Vec<Spanned<Box<str>>>) {
    if !fields.has(&rows::MEMBERS) {
        report.error(&fields.at, fields.path(&rows::MEMBERS), Problem::new("missing"));
    }
    if fields.is_empty_list(&rows::MEMBERS) {
        fields.wrong(report, &rows::MEMBERS, Problem::new("the group has no members"));
    }
    let (mut members, mut names) = (Vec::new(), Vec::new());
    for mut table in fields.tables(report, &rows::MEMBERS).unwrap_or_default() {
        let name = table.require(report, &rows::MEMBER_NAME);
        let mut member = Member::new(name.as_ref().map_or("", |name| &*name.value));
        member.tcp_weight = table.read(report, &rows::TCP_WEIGHT).unwrap_or(member.tcp_weight);
        member.udp_weight = table.read(report, &rows::UDP_WEIGHT).unwrap_or(member.udp_weight);
        table.finish(report, None);
        if let Some(name) = name {
            members.push(member);
            names.push(name);
        }
    }
    (Group { members, grows: false, check: check(fields, report) }, names)
}

fn check(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Check {
    let default = Check::default();
    let url = fields.read(report, &rows::CHECK_URL).unwrap_or(default.url);
    let dns = fields.read(report, &rows::CHECK_DNS).unwrap_or(default.dns);
    let mut span = |row: &'static Row<Duration>| {
        let span = fields.read(report, row)?;
        if span.is_zero() {
            fields.wrong(report, row, Problem::new("must be greater than 0"));
        }
        Some(span)
    };
    let interval = span(&rows::CHECK_INTERVAL).unwrap_or(default.interval);
    let interval_in_use = span(&rows::CHECK_INTERVAL_IN_USE).unwrap_or(interval);
    let timeout = span(&rows::CHECK_TIMEOUT).unwrap_or(default.timeout);
    if interval_in_use > interval {
        fields.wrong(report, &rows::CHECK_INTERVAL_IN_USE, Problem::new("longer than check-interval"));
    }
    let tolerance = fields.read(report, &rows::TOLERANCE).unwrap_or(default.tolerance);
    Check { url, dns, interval, interval_in_use, timeout, tolerance }
}

pub(super) fn write(out: &mut TableEntries, group: &Group) {
    let members = group.members.iter().map(|member| {
        let mut entry = TableEntries::default();
        entry.put(&rows::MEMBER_NAME, &member.outbound);
        let usual = Member::new("");
        entry.put_unless(&rows::TCP_WEIGHT, &member.tcp_weight, &usual.tcp_weight);
        entry.put_unless(&rows::UDP_WEIGHT, &member.udp_weight, &usual.udp_weight);
        entry
    });
    out.tables(&rows::MEMBERS, members.collect());
    let Check { url, dns, interval, interval_in_use, timeout, tolerance } = &group.check;
    let usual = Check::default();
    out.put_unless(&rows::CHECK_URL, url, &usual.url);
    out.put_unless(&rows::CHECK_DNS, dns, &usual.dns);
    out.put_unless(&rows::CHECK_INTERVAL, interval, &usual.interval);
    out.put_unless(&rows::CHECK_INTERVAL_IN_USE, interval_in_use, interval);
    out.put_unless(&rows::CHECK_TIMEOUT, timeout, &usual.timeout);
    out.put_unless(&rows::TOLERANCE, tolerance, &usual.tolerance);
}

/// Checks that the members of each group are among all outbounds.
pub(super) fn check_members(
    outbounds: &[Outbound],
    members: Vec<(String, Vec<Spanned<Box<str>>>)>,
    report: &mut TomlReport<'_>,
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
