//! Groups whose members are chosen, and outbounds through SOCKS5 and HTTP proxies.

use std::collections::HashSet;
use std::time::Duration;

use adit_model::{
    Balance, Choice, Config, DelayTest, Outbound, OutboundProtocol, Policy, ProxyClient, ProxyKind, ProxyTls,
    Tag, Uses, Verify,
};

use super::fields::{Spanned, TomlFields, TomlReport};
use super::outbound::OutboundKind;
use super::rows::choice as rows;
use super::value;
use super::write::TableEntries;
use crate::read::value::Problem;

/// Tolerance of a group without the key.
const TOLERANCE: Duration = Duration::from_millis(50);

/// The places of names that a group is made of.
#[derive(Default)]
pub(super) struct MemberNames {
    pub(super) members: Vec<Spanned<Box<str>>>,
    pub(super) lists: Vec<Spanned<Box<str>>>,
}

/// A group, whose members are not checked yet, and the places of their names.
pub(crate) fn read(
    kind: OutboundKind,
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
) -> (Choice, MemberNames) {
    let members = fields.read(report, &rows::CHOSEN_MEMBERS).unwrap_or_default();
    let (lists, uses) = uses(fields, report);
    if fields.is_empty_list(&rows::CHOSEN_MEMBERS) && lists.is_empty() {
        fields.wrong(report, &rows::CHOSEN_MEMBERS, Problem::new("the group has no members"));
    } else if !fields.has(&rows::CHOSEN_MEMBERS) && !fields.has(&rows::USE) {
        let problem = Problem::new("the group has no members").hint("add members, or use with a provider");
        report.error(&fields.at, fields.path(&rows::CHOSEN_MEMBERS), problem);
    }
    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller has a kind of group")]
    let policy = match kind {
        OutboundKind::UrlTest => {
            Policy::UrlTest(fields.read(report, &rows::TEST_TOLERANCE).unwrap_or(TOLERANCE))
        }
        OutboundKind::Fallback => Policy::Fallback,
        OutboundKind::LoadBalance => {
            Policy::LoadBalance(fields.read(report, &rows::STRATEGY).unwrap_or(Balance::Consistent))
        }
        _ => Policy::Select(selected(&members, fields, report)),
    };
    let interval = if kind == OutboundKind::Select { None } else { DelayTest::default().interval };
    let choice = Choice {
        members: members.iter().map(|name| Tag::from(&*name.value)).collect(),
        policy,
        test: test(interval, fields, report),
        udp: fields.read(report, &rows::CHOSEN_UDP).unwrap_or(true),
        hidden: fields.read(report, &rows::HIDDEN).unwrap_or(false),
        icon: fields.read(report, &rows::ICON).unwrap_or_default(),
        uses,
    };
    (choice, MemberNames { members, lists })
}

/// The lists whose entries are members.
fn uses(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
) -> (Vec<Spanned<Box<str>>>, Option<Box<Uses>>) {
    let lists = fields.read(report, &rows::USE).unwrap_or_default();
    let filter = fields.read(report, &rows::FILTER).unwrap_or_default();
    let exclude = fields.read(report, &rows::EXCLUDE).unwrap_or_default();
    if lists.is_empty() {
        for (key, is_there) in
            [(rows::FILTER.head(), !filter.is_empty()), (rows::EXCLUDE.head(), !exclude.is_empty())]
        {
            if is_there && !report.found.has_errors() {
                fields.wrong(report, key, Problem::new("means nothing without use"));
            }
        }
        return (lists, None);
    }
    let names = lists.iter().map(|name| Tag::from(&*name.value)).collect();
    (lists, Some(Box::new(Uses { lists: names, filter, exclude })))
}

fn selected(
    members: &[Spanned<Box<str>>],
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
) -> Option<Tag> {
    let selected = fields.read(report, &rows::SELECTED)?;
    if !members.iter().any(|member| member.value == selected.value) {
        report.error(&selected.at, fields.path(&rows::SELECTED), Problem::new("not a member of the group"));
    }
    Some(Tag::from(&*selected.value))
}

fn test(interval: Option<Duration>, fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> DelayTest {
    let max_failed =
        fields.read(report, &rows::TEST_FAILURES).unwrap_or_else(|| DelayTest::default().max_failed);
    DelayTest { max_failed, ..list_test(interval, fields, report) }
}

/// The test of a list.
pub(super) fn list_test(
    interval: Option<Duration>,
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
) -> DelayTest {
    let default = DelayTest { interval, ..DelayTest::default() };
    let url = fields.read(report, &rows::TEST_URL).unwrap_or(default.url);
    let interval = match fields.read(report, &rows::TEST_INTERVAL) {
        None => default.interval,
        Some(none) if none.is_zero() => None,
        Some(interval) => {
            if interval < Duration::from_secs(1) {
                fields.wrong(report, &rows::TEST_INTERVAL, Problem::new("must be 0s, or at least 1s"));
            }
            Some(interval)
        }
    };
    let timeout = fields.read(report, &rows::TEST_TIMEOUT).unwrap_or(default.timeout);
    if timeout.is_zero() {
        fields.wrong(report, &rows::TEST_TIMEOUT, Problem::new("must be greater than 0"));
    }
    let expected = fields.read(report, &rows::TEST_STATUS).unwrap_or_default();
    DelayTest {
        url,
        interval,
        timeout,
        lazy: fields.read(report, &rows::TEST_LAZY).unwrap_or(default.lazy),
        max_failed: default.max_failed,
        expected: expected.into_iter().map(|range| range.value).collect(),
        unified: fields.read(report, &rows::TEST_UNIFIED).unwrap_or(default.unified),
    }
}

pub(super) fn kind(choice: &Choice) -> OutboundKind {
    match &choice.policy {
        Policy::Select(_) => OutboundKind::Select,
        Policy::UrlTest(_) => OutboundKind::UrlTest,
        Policy::Fallback => OutboundKind::Fallback,
        Policy::LoadBalance(_) => OutboundKind::LoadBalance,
    }
}

/// Writes a group. Members out of its lists are in `provided`.
pub(super) fn write(out: &mut TableEntries, choice: &Choice, provided: &HashSet<&Tag>) {
    let members: Vec<Box<str>> =
        choice.members.iter().filter(|name| !provided.contains(name)).map(|name| (**name).into()).collect();
    if !members.is_empty() || choice.uses.is_none() {
        out.put(&rows::CHOSEN_MEMBERS, &members);
    }
    if let Some(Uses { lists, filter, exclude }) = choice.uses.as_deref() {
        let lists: Vec<Box<str>> = lists.iter().map(|name| (**name).into()).collect();
        out.put(&rows::USE, &lists);
        out.put_unless(&rows::FILTER, &**filter, "");
        out.put_unless(&rows::EXCLUDE, &**exclude, "");
    }
    match &choice.policy {
        Policy::Select(selected) => out.put_some(&rows::SELECTED, selected.as_deref()),
        Policy::UrlTest(tolerance) => out.put(&rows::TEST_TOLERANCE, tolerance),
        Policy::Fallback => {}
        Policy::LoadBalance(balance) => out.put(&rows::STRATEGY, balance),
    }
    write_test(out, &choice.test);
    out.put_unless(&rows::TEST_FAILURES, &choice.test.max_failed, &DelayTest::default().max_failed);
    out.put_unless(&rows::CHOSEN_UDP, &choice.udp, &true);
    out.put_unless(&rows::HIDDEN, &choice.hidden, &false);
    if !choice.icon.is_empty() {
        out.put(&rows::ICON, &choice.icon);
    }
}

/// Writes the keys of a test that a list has as well.
pub(super) fn write_test(out: &mut TableEntries, test: &DelayTest) {
    let DelayTest { url, interval, lazy, timeout, max_failed: _, expected, unified } = test;
    let default = DelayTest::default();
    out.put(&rows::TEST_URL, url);
    out.put(&rows::TEST_INTERVAL, &interval.unwrap_or_default());
    out.put_unless(&rows::TEST_TIMEOUT, timeout, &default.timeout);
    out.put_unless(&rows::TEST_LAZY, lazy, &default.lazy);
    if !expected.is_empty() {
        out.put(&rows::TEST_STATUS, expected);
    }
    out.put_unless(&rows::TEST_UNIFIED, unified, &false);
}

/// Checks that the members of each group are among all outbounds, and that no group leads to itself.
pub(super) fn check_members(
    outbounds: &[Outbound],
    given: &[(String, Vec<Spanned<Box<str>>>)],
    report: &mut TomlReport<'_>,
) {
    let names: HashSet<&str> = outbounds.iter().map(|outbound| &*outbound.name).collect();
    let before = report.found.len();
    for (outbound, (path, members)) in outbounds.iter().zip(given) {
        if !matches!(outbound.protocol, OutboundProtocol::Choice(_)) {
            continue;
        }
        let mut seen = HashSet::new();
        for (i, name) in members.iter().enumerate() {
            let path = format!("{path}.members[{i}]");
            if !names.contains(&*name.value) {
                let problem = Problem::new(format!("no such outbound: {}", value::excerpt(&name.value)));
                let problem = match value::closest(&name.value, names.iter().copied()) {
                    Some(name) => problem.hint(format!("did you mean `{name}`?")),
                    None => problem,
                };
                report.error(&name.at, path, problem);
            } else if !seen.insert(&name.value) {
                report.error(&name.at, path, Problem::new("listed twice"));
            }
        }
    }
    if report.found.len() > before {
        return;
    }
    let Some(names) = Config::group_loop(outbounds) else { return };
    let first = outbounds
        .iter()
        .zip(given)
        .find(|(outbound, (_, members))| names.contains(&outbound.name) && !members.is_empty());
    if let Some((_, (path, members))) = first {
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let problem = format!("a loop of groups: {}", names.join(" -> "));
        report.error(&members[0].at, format!("{path}.members"), Problem::new(problem));
    }
}

/// The client of a SOCKS5 or HTTP proxy.
pub(super) fn read_proxy(
    kind: OutboundKind,
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
) -> Option<ProxyClient> {
    let server = fields.require(report, &rows::PROXY_SERVER);
    let user = fields.read(report, &rows::PROXY_USER);
    let password = fields.read(report, &rows::PROXY_PASSWORD);
    if user.is_some() != password.is_some() && !report.found.has_errors() {
        let problem = Problem::new("username and password go together");
        report.error(&fields.at, fields.base().to_owned(), problem);
    }
    let tls = fields.read(report, &rows::PROXY_TLS).unwrap_or(false);
    let name = fields.read(report, &rows::PROXY_SNI);
    let digest = fields.read(report, &rows::PROXY_FINGERPRINT);
    let skip = fields.read(report, &rows::PROXY_INSECURE).unwrap_or(false);
    if !tls && (name.is_some() || digest.is_some() || skip) {
        let problem = Problem::new("sni, fingerprint and skip-cert-verify mean nothing without tls");
        report.error(&fields.at, fields.base().to_owned(), problem.hint("write tls = true too"));
    }
    let verify = match (digest, skip) {
        (Some(digest), _) => Verify::Fingerprint(digest),
        (None, true) => Verify::Nothing,
        (None, false) => Verify::Chain,
    };
    let kind = if kind == OutboundKind::Socks5 {
        ProxyKind::Socks5 { udp: fields.read(report, &rows::PROXY_UDP).unwrap_or(false) }
    } else {
        let headers = fields.read(report, &rows::PROXY_HEADERS).unwrap_or_default();
        ProxyKind::Http { headers: headers.into_iter().map(|header| header.value).collect() }
    };
    let tls = tls.then_some(ProxyTls { name, verify });
    Some(ProxyClient { server: server?, kind, credentials: user.zip(password), tls })
}

pub(super) fn write_proxy(out: &mut TableEntries, client: &ProxyClient) {
    out.put(&rows::PROXY_SERVER, &client.server);
    if let Some((user, password)) = &client.credentials {
        out.put(&rows::PROXY_USER, user);
        out.put(&rows::PROXY_PASSWORD, password);
    }
    match &client.kind {
        ProxyKind::Socks5 { udp } => out.put_unless(&rows::PROXY_UDP, udp, &false),
        ProxyKind::Http { headers } if headers.is_empty() => {}
        ProxyKind::Http { headers } => out.put(&rows::PROXY_HEADERS, headers),
    }
    let Some(tls) = &client.tls else { return };
    out.put(&rows::PROXY_TLS, &true);
    out.put_some(&rows::PROXY_SNI, tls.name.as_deref());
    match &tls.verify {
        Verify::Chain => {}
        Verify::Fingerprint(digest) => out.put(&rows::PROXY_FINGERPRINT, digest),
        Verify::Nothing => out.put(&rows::PROXY_INSECURE, &true),
    }
}
