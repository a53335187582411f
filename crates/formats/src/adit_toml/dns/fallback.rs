//! `[dns.fallback]`: name servers for addresses that others are not believed for.

use std::sync::Arc;

use adit_model::rule::Set;
use adit_model::{Dns, DnsFallback, Tag, Upstream};

use super::{named, names_of, rows};
use crate::adit_toml::fields::{TomlFields, TomlReport};
use crate::adit_toml::write::TableEntries;
use crate::read::value::{self, Problem};

/// Reads the table.
pub(super) fn read(
    mut fields: TomlFields<'_>,
    servers: &[(Arc<Upstream>, bool)],
    report: &mut TomlReport<'_>,
) -> Option<DnsFallback> {
    let names = fields.require(report, &rows::FALLBACK_UPSTREAM).unwrap_or_default();
    let trusted = fields.read(report, &rows::FALLBACK_TRUSTED).unwrap_or_default();
    let untrusted = fields.read(report, &rows::FALLBACK_UNTRUSTED).unwrap_or_default();
    let servers: Vec<Arc<Upstream>> = servers.iter().map(|(server, _)| server.clone()).collect();
    let upstreams = named(names, &servers, &fields.path(&rows::FALLBACK_UPSTREAM), report);
    fields.finish(report, None);
    (!upstreams.is_empty()).then(|| DnsFallback {
        upstreams,
        trusted: trusted.into_iter().map(|name| Tag::from(&*name.value)).collect(),
        untrusted: untrusted.into_iter().map(|network| network.value).collect(),
    })
}

/// Refuses a set that is not there.
pub(super) fn check_sets(dns: &Dns, sets: &[Set], report: &mut TomlReport<'_>) {
    let trusted = dns.fallback.iter().flat_map(|fallback| &fallback.trusted);
    for name in trusted.filter(|name| !sets.iter().any(|set| set.name == **name)) {
        let problem = Problem::new(format!("no such set: {}", value::excerpt(name)));
        report.error(&(0..0), "dns.fallback.trusted", problem.hint("add a [[set]] of that name"));
    }
}

/// The keys of the table.
pub(super) fn entries(fallback: &DnsFallback) -> TableEntries {
    let mut table = TableEntries::default();
    table.put(&rows::FALLBACK_UPSTREAM, &*names_of(&fallback.upstreams));
    table.put_unless(&rows::FALLBACK_TRUSTED, &*fallback.trusted, &[]);
    table.put_unless(&rows::FALLBACK_UNTRUSTED, &*fallback.untrusted, &[]);
    table
}
