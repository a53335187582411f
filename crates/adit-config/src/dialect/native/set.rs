//! `[[set]]`: files of names or addresses, and the database of countries.

use std::collections::HashSet;

use super::fields::{Fields, Report};
use super::keys::Table;
use super::rule::place;
use super::{MAX_PATH, name};
use crate::dialect::value::{Problem, excerpt, text_of};
use crate::model::rule::{GeoFile, Set, SetFormat};

/// Most sets of a file.
const MAX_SETS: usize = 1024;

/// Reads all sets. The files are not opened.
pub(super) fn read(root: &mut Fields<'_>, report: &mut Report<'_>) -> Vec<Set> {
    let tables = match root.take("set") {
        Some(field) => field.tables(report, Table::Set, MAX_SETS),
        None => Vec::new(),
    };
    let mut taken = HashSet::new();
    tables.into_iter().filter_map(|table| read_set(table, &mut taken, report)).collect()
}

fn read_set(mut fields: Fields<'_>, taken: &mut HashSet<Box<str>>, report: &mut Report<'_>) -> Option<Set> {
    let name = fields.require(report, "name").and_then(|field| field.parsed(report, name));
    let path =
        fields.require(report, "path").and_then(|field| field.parsed(report, |text| text_of(text, MAX_PATH)));
    let format = fields.one_of(report, "format", SetFormat::ALL).unwrap_or_default();
    if let Some(name) = &name
        && !taken.insert(name.value.clone())
    {
        let problem = Problem::new(format!("the name is taken: {}", excerpt(&name.value)));
        report.error(&name.at, fields.path("name"), problem.hint("give the set a name of its own"));
    }
    fields.finish(report, None);
    let (name, path) = (name?, path?);
    Some(Set {
        name: (&*name.value).into(),
        at: place(&path.at, report),
        path: (&*path.value).into(),
        format,
    })
}

/// Reads where the database of countries is.
pub(super) fn read_geoip(root: &mut Fields<'_>, report: &mut Report<'_>) -> Option<GeoFile> {
    let path = root.parsed(report, "geoip", |text| text_of(text, MAX_PATH))?;
    Some(GeoFile { at: place(&path.at, report), path: (&*path.value).into() })
}
