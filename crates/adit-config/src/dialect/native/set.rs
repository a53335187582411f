//! `[[set]]`: files of names or addresses, and the database of countries.

use std::collections::HashSet;

use super::fields::{Fields, Report};
use super::rows::root as rows;
use super::rule::place;
use super::write::Entries;
use crate::dialect::value::{Problem, excerpt};
use crate::model::rule::{GeoFile, Set, SetFormat};

/// Reads all sets. The files are not opened.
pub(super) fn read(root: &mut Fields<'_>, report: &mut Report<'_>) -> Vec<Set> {
    let tables = root.tables(report, &rows::SETS).unwrap_or_default();
    let mut taken = HashSet::new();
    tables.into_iter().filter_map(|table| read_set(table, &mut taken, report)).collect()
}

fn read_set(mut fields: Fields<'_>, taken: &mut HashSet<Box<str>>, report: &mut Report<'_>) -> Option<Set> {
    let name = fields.require(report, &rows::SET_NAME);
    let path = fields.require(report, &rows::SET_PATH);
    let path_at = fields.place(&rows::SET_PATH);
    let format = fields.read(report, &rows::SET_FORMAT).unwrap_or_default();
    if let Some(name) = &name
        && !taken.insert(name.clone())
    {
        let problem = Problem::new(format!("the name is taken: {}", excerpt(name)));
        fields.wrong(report, &rows::SET_NAME, problem.hint("give the set a name of its own"));
    }
    fields.finish(report, None);
    let (name, path) = (name?, path?);
    Some(Set { name: (&*name).into(), at: place(&path_at, report), path: (&*path).into(), format })
}

/// Reads where the database of countries is.
pub(super) fn read_geoip(root: &mut Fields<'_>, report: &mut Report<'_>) -> Option<GeoFile> {
    let path = root.read(report, &rows::GEOIP)?;
    Some(GeoFile { at: place(&root.place(&rows::GEOIP), report), path: (&*path).into() })
}

pub(super) fn entries(set: &Set) -> Entries {
    let mut out = Entries::default();
    out.put(&rows::SET_NAME, &set.name);
    out.put(&rows::SET_PATH, &set.path.to_string_lossy());
    out.put_unless(&rows::SET_FORMAT, &set.format, &SetFormat::default());
    out
}
