//! `[[provider]]`: lists of outbounds that groups take members from.

use std::collections::HashSet;

use adit_model::{DelayTest, Download, Outbound, OutboundList, Secret, Tag};

use super::choice;
use super::fields::{Spanned, TomlFields, TomlReport};
use super::rows::choice as keys;
use super::rows::root as rows;
use super::rule::place;
use super::set::download;
use super::write::TableEntries;
use crate::clash;
use crate::read::value::{self, Problem, excerpt};

/// The program that servers of subscriptions take adit for: they choose the form of the document by it.
const AGENT: &str = "clash.meta/v1.19.13";

/// Reads all lists. The files are not opened.
pub(crate) fn read(
    root: &mut TomlFields<'_>,
    outbounds: &[Outbound],
    report: &mut TomlReport<'_>,
) -> Vec<OutboundList> {
    let tables = root.tables(report, &rows::PROVIDERS).unwrap_or_default();
    let mut taken = HashSet::new();
    tables.into_iter().filter_map(|table| list(table, &mut taken, outbounds, report)).collect()
}

fn list(
    mut fields: TomlFields<'_>,
    taken: &mut HashSet<Box<str>>,
    outbounds: &[Outbound],
    report: &mut TomlReport<'_>,
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
    let download = download(&mut fields, outbounds, report).map(|download| {
        let headers = vec![("User-Agent".into(), Secret::new(AGENT))];
        Box::new(Download { headers, max_len: clash::MAX_LEN, ..download })
    });
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

/// Reports an outbound that is not there.
fn known(
    name: Option<&Spanned<Box<str>>>,
    outbounds: &[Outbound],
    path: String,
    report: &mut TomlReport<'_>,
) {
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
    report: &mut TomlReport<'_>,
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

pub(super) fn entries(list: &OutboundList) -> TableEntries {
    let mut out = TableEntries::default();
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
