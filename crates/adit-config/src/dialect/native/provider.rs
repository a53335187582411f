//! `[[provider]]`: lists of outbounds that groups take members from.

use std::collections::HashSet;
use std::time::Duration;

use super::choice;
use super::fields::{Fields, Report, Spanned};
use super::rows::choice as keys;
use super::rows::root as rows;
use super::rule::place;
use super::write::Entries;
use crate::dialect::value::{self, Problem, excerpt};
use crate::model::{DelayTest, Download, Outbound, OutboundList, Tag};

/// Time between two fetches of a list.
const INTERVAL: Duration = Duration::from_secs(86_400);
/// The program that servers of subscriptions take adit for: they choose the form of the document by it.
const AGENT: &str = "clash.meta/v1.19.13";

/// Reads all lists. The files are not opened.
pub(super) fn read(
    root: &mut Fields<'_>,
    outbounds: &[Outbound],
    report: &mut Report<'_>,
) -> Vec<OutboundList> {
    let tables = root.tables(report, &rows::PROVIDERS).unwrap_or_default();
    let mut taken = HashSet::new();
    tables.into_iter().filter_map(|table| list(table, &mut taken, outbounds, report)).collect()
}

fn list(
    mut fields: Fields<'_>,
    taken: &mut HashSet<Box<str>>,
    outbounds: &[Outbound],
    report: &mut Report<'_>,
) -> Option<OutboundList> {
    let name = fields.require(report, &rows::SET_NAME);
    if let Some(name) = &name
        && !taken.insert(name.clone())
    {
        let problem = Problem::new(format!("the name is taken: {}", excerpt(name)));
        fields.wrong(report, &rows::SET_NAME, problem.hint("give the provider a name of its own"));
    }
    let path = fields.read(report, &keys::LIST_PATH);
    let links = fields.read(report, &keys::LINKS).unwrap_or_default();
    let at = fields.at.clone();
    match (&path, fields.has(&keys::LINKS)) {
        (Some(_), true) => {
            let problem = Problem::new("not both path and links").hint("leave one of them out");
            fields.wrong(report, &keys::LINKS, problem);
        }
        (None, false) if !fields.has(&keys::LIST_PATH) => {
            let problem = Problem::new("the provider has neither path nor links");
            report.error(
                &at,
                fields.base().to_owned(),
                problem.hint("path names the file, or the copy of url"),
            );
        }
        (Some(_), false) | (None, _) => {}
    }
    let download = download(&mut fields, outbounds, report).map(Box::new);
    if download.is_some() && path.is_none() && !report.found.has_errors() {
        fields.wrong(report, &rows::SET_URL, Problem::new("url needs path, where the copy is kept"));
    }
    let is_tested = fields.has(&keys::TEST_URL) || fields.has(&keys::TEST_INTERVAL);
    let test = choice::list_test(DelayTest::default().interval, &mut fields, report);
    let dial_through = fields.read(report, &keys::DIAL_THROUGH);
    known(dial_through.as_ref(), outbounds, fields.path(&keys::DIAL_THROUGH), report);
    let list = OutboundList {
        name: Tag::from(&*name.unwrap_or_default()),
        path: path.map(|path| (&*path).into()),
        download,
        links: links.into_iter().map(|link| link.value).collect(),
        filter: fields.read(report, &keys::FILTER).unwrap_or_default(),
        exclude: fields.read(report, &keys::EXCLUDE).unwrap_or_default(),
        prefix: fields.read(report, &keys::PREFIX).unwrap_or_default(),
        dial_through: dial_through.map(|through| Tag::from(&*through.value)),
        test: (is_tested && test.interval.is_some()).then_some(test),
        at: place(&at, report),
    };
    fields.finish(report, None);
    (!list.name.is_empty()).then_some(list)
}

/// The server that the file is a copy of.
fn download(fields: &mut Fields<'_>, outbounds: &[Outbound], report: &mut Report<'_>) -> Option<Download> {
    let url = fields.read(report, &rows::SET_URL);
    let interval = fields.read(report, &rows::SET_INTERVAL);
    let through = fields.read(report, &rows::SET_THROUGH);
    let Some(url) = url else {
        for (key, is_there) in
            [(rows::SET_INTERVAL.head(), interval.is_some()), (rows::SET_THROUGH.head(), through.is_some())]
        {
            if is_there && !report.found.has_errors() {
                fields.wrong(report, key, Problem::new("means nothing without url"));
            }
        }
        return None;
    };
    let interval = interval.unwrap_or(INTERVAL);
    if !interval.is_zero() && interval < Duration::from_secs(1) {
        fields.wrong(report, &rows::SET_INTERVAL, Problem::new("must be 0s, or at least 1s"));
    }
    known(through.as_ref(), outbounds, fields.path(&rows::SET_THROUGH), report);
    Some(Download {
        url,
        interval: (!interval.is_zero()).then_some(interval),
        through: through.map(|through| (&*through.value).into()),
        headers: vec![("User-Agent".into(), crate::model::Secret::new(AGENT))],
        max_len: crate::dialect::clash::MAX_LEN,
    })
}

/// Reports an outbound that is not there.
fn known(name: Option<&Spanned<Box<str>>>, outbounds: &[Outbound], path: String, report: &mut Report<'_>) {
    let Some(name) = name else { return };
    if !outbounds.iter().any(|outbound| *outbound.name == *name.value) {
        let problem = Problem::new(format!("no such outbound: {}", excerpt(&name.value)));
        report.error(&name.at, path, problem);
    }
}

/// Checks that the lists of each group are there.
pub(super) fn check_uses(
    given: &[(String, Vec<Spanned<Box<str>>>)],
    lists: &[OutboundList],
    report: &mut Report<'_>,
) {
    for (path, names) in given {
        for name in names.iter().filter(|name| !lists.iter().any(|list| *list.name == *name.value)) {
            let problem = Problem::new(format!("no such provider: {}", excerpt(&name.value)));
            let hint = match value::closest(&name.value, lists.iter().map(|list| &*list.name)) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "add a [[provider]] of that name".to_owned(),
            };
            report.error(&name.at, format!("{path}.use"), problem.hint(hint));
        }
    }
}

pub(super) fn entries(list: &OutboundList) -> Entries {
    let mut out = Entries::default();
    out.put(&rows::SET_NAME, &*list.name);
    if let Some(path) = &list.path {
        out.put(&keys::LIST_PATH, &*path.to_string_lossy());
    } else {
        out.put(&keys::LINKS, &*list.links);
    }
    if let Some(download) = &list.download {
        out.put(&rows::SET_URL, &download.url);
        out.put(&rows::SET_INTERVAL, &download.interval.unwrap_or_default());
        out.put_some(&rows::SET_THROUGH, download.through.as_deref());
    }
    out.put_unless(&keys::FILTER, &*list.filter, "");
    out.put_unless(&keys::EXCLUDE, &*list.exclude, "");
    out.put_unless(&keys::PREFIX, &*list.prefix, "");
    out.put_some(&keys::DIAL_THROUGH, list.dial_through.as_deref());
    if let Some(test) = &list.test {
        choice::write_test(&mut out, test);
    }
    out
}
