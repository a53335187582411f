//! `[[set]]`: files of names or addresses, and the database of countries.

use std::collections::HashSet;
use std::time::Duration;

use adit_model::rule::{GeoFile, Set, SetFormat};
use adit_model::{Download, Outbound};

use super::fields::{TomlFields, TomlReport};
use super::rows::root as rows;
use super::rule::place;
use super::write::TableEntries;
use crate::read::value::{Problem, excerpt};

/// Time between two fetches of a list.
const INTERVAL: Duration = Duration::from_secs(86_400);

/// Reads all sets. The files are not opened.
pub(crate) fn read(
    root: &mut TomlFields<'_>,
    outbounds: &[Outbound],
    report: &mut TomlReport<'_>,
) -> Vec<Set> {
    let tables = root.tables(report, &rows::SETS).unwrap_or_default();
    let mut taken = HashSet::new();
    tables.into_iter().filter_map(|table| read_set(table, &mut taken, outbounds, report)).collect()
}

fn read_set(
    mut fields: TomlFields<'_>,
    taken: &mut HashSet<Box<str>>,
    outbounds: &[Outbound],
    report: &mut TomlReport<'_>,
) -> Option<Set> {
    let name = fields.require(report, &rows::SET_NAME);
    let path = fields.read(report, &rows::SET_PATH);
    let entries = fields.read(report, &rows::SET_ENTRIES).unwrap_or_default();
    let path_at =
        if entries.is_empty() { fields.place(&rows::SET_PATH) } else { fields.place(&rows::SET_ENTRIES) };
    let given = (fields.has(&rows::SET_PATH), fields.has(&rows::SET_ENTRIES));
    if given == (false, false) {
        let problem = Problem::new("missing").hint("path names a file of names; entries holds the names");
        report.error(&fields.at, fields.path(&rows::SET_PATH), problem);
    } else if given == (true, true) {
        let problem = Problem::new("not both path and entries").hint("leave one of them out");
        fields.wrong(report, &rows::SET_ENTRIES, problem);
    } else if fields.is_empty_list(&rows::SET_ENTRIES) {
        fields.wrong(report, &rows::SET_ENTRIES, Problem::new("an empty list matches nothing"));
    }
    let format = fields.read(report, &rows::SET_FORMAT).unwrap_or_default();
    let list: Option<Box<str>> = fields.read(report, &rows::SET_LIST);
    let list = list.map(|list| list.to_lowercase().into_boxed_str());
    if list.is_some() && (fields.has(&rows::SET_ENTRIES) || fields.has(&rows::SET_URL)) {
        let problem = Problem::new("a list is one of a database, whose file path names");
        fields.wrong(report, &rows::SET_LIST, problem.hint("leave out list, or entries and url"));
    }
    if let Some(name) = &name
        && !taken.insert(name.clone())
    {
        let problem = Problem::new(format!("the name is taken: {}", excerpt(name)));
        fields.wrong(report, &rows::SET_NAME, problem.hint("give the set a name of its own"));
    }
    let download = download(&mut fields, outbounds, report).map(Box::new);
    if download.is_some() && path.is_none() && !report.found.has_errors() {
        fields.wrong(report, &rows::SET_URL, Problem::new("url needs path, where the copy is kept"));
    }
    fields.finish(report, None);
    let name = name?;
    let path = path.unwrap_or_default();
    if path.is_empty() && entries.is_empty() {
        return None;
    }
    let entries = entries.into_iter().map(|entry| entry.value).collect();
    let (name, path) = ((&*name).into(), (&*path).into());
    Some(Set { name, at: place(&path_at, report), path, format, download, entries, list })
}

/// The server that the file of a set, or of a provider, is a copy of.
pub(super) fn download(
    fields: &mut TomlFields<'_>,
    outbounds: &[Outbound],
    report: &mut TomlReport<'_>,
) -> Option<Download> {
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
    if let Some(through) = &through
        && !outbounds.iter().any(|outbound| *outbound.name == *through.value)
    {
        let problem = Problem::new(format!("no such outbound: {}", excerpt(&through.value)));
        report.error(&through.at, fields.path(&rows::SET_THROUGH), problem);
    }
    Some(Download {
        url,
        interval: (!interval.is_zero()).then_some(interval),
        through: through.map(|through| (&*through.value).into()),
        headers: Vec::new(),
        max_len: crate::rulesets::MAX_LEN,
    })
}

/// Reads where the database of countries is.
pub(super) fn read_geoip(root: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<GeoFile> {
    let path = root.read(report, &rows::GEOIP)?;
    Some(GeoFile { at: place(&root.place(&rows::GEOIP), report), path: (&*path).into() })
}

pub(super) fn entries(set: &Set) -> TableEntries {
    let mut out = TableEntries::default();
    out.put(&rows::SET_NAME, &set.name);
    if set.entries.is_empty() {
        out.put(&rows::SET_PATH, &set.path.to_string_lossy());
    } else {
        out.put(&rows::SET_ENTRIES, &set.entries);
    }
    out.put_some(&rows::SET_LIST, set.list.as_deref());
    out.put_unless(&rows::SET_FORMAT, &set.format, &SetFormat::default());
    if let Some(download) = &set.download {
        out.put(&rows::SET_URL, &download.url);
        out.put(&rows::SET_INTERVAL, &download.interval.unwrap_or_default());
        out.put_some(&rows::SET_THROUGH, download.through.as_deref());
    }
    out
}
