//! Writing `adit.toml`.

use std::collections::HashSet;
use std::fmt::Write as _;

use adit_model::rule::FindProgram;
use adit_model::{Config, Provider, ProviderKind, StateFile, Tag};

use super::keys::TomlTable;
use super::rows::{Row, Tables, root as rows};
use super::schema;
use super::{admin, capture, dns, inbound, outbound, panel, provider, rule, set, sniff};

/// Writes a file that [`parse`](super::parse) reads as an equal configuration, keys and passwords included.
///
/// Settings of the whole process are left out where they are the usual ones. Durations are cut to milliseconds, and bytes of a path that are no UTF-8 are lost.
pub fn to_toml(config: &Config) -> String {
    let mut root = TableEntries::default();
    root.put_some(&rows::CORES, config.cores.as_ref());
    match &config.state {
        StateFile::Usual | StateFile::Try { .. } => {}
        StateFile::Off => root.put(&rows::STATE, "off"),
        StateFile::At(path) => root.put(&rows::STATE, &path.to_string_lossy()),
    }
    root.put_unless(&rows::FIND_PROCESS, &config.find_program, &FindProgram::default());
    if !config.plugins_allowed.is_empty() {
        root.put(&rows::PLUGINS_ALLOWED, &config.plugins_allowed);
    }
    if let Some(file) = &config.geoip {
        root.put(&rows::GEOIP, &file.path.to_string_lossy());
    }
    let mut out = Writer(root.lines());
    out.table_unless_empty(TomlTable::Log, &TableEntries::differing(schema::LOG, &config.log));
    let admin = admin::entries(config);
    if !admin.0.is_empty() {
        out.table(TomlTable::Admin, &admin);
    }
    out.table_unless_empty(TomlTable::Limits, &TableEntries::differing(schema::LIMITS, &config.limits));
    out.table_unless_empty(TomlTable::Udp, &TableEntries::differing(schema::UDP, &config.udp));
    dns::write(&mut out, &config.dns, &config.inbounds);
    if let Some(sniffer) = &config.sniffer {
        sniff::write(&mut out, sniffer);
    }
    if let Some(capture) = &config.capture {
        capture::write(&mut out, capture);
    }
    for inbound in &config.inbounds {
        let panel = config.panel_of.get(&inbound.name);
        out.table(TomlTable::Inbound, &inbound::entries(inbound, config.outbounds.len(), panel));
    }
    let provided = provided(config);
    for outbound in config.outbounds.iter().filter(|outbound| !provided.contains(&outbound.name)) {
        out.table(TomlTable::Outbound, &outbound::entries(outbound, &provided));
    }
    for list in &config.outbound_lists {
        out.table(TomlTable::Provider, &provider::entries(list));
    }
    for set in &config.sets {
        out.table(TomlTable::Set, &set::entries(set));
    }
    for panel in &config.panels {
        out.table(TomlTable::Panel, &panel::entries(panel));
    }
    if let Some(store) = &config.store {
        out.table(TomlTable::Store, &panel::store_entries(store));
    }
    for rule in config.rules.iter().filter_map(rule::entries) {
        out.table(TomlTable::Rule, &rule);
    }
    out.0
}

/// Outbounds that are entries of lists which the file names: their lists are written in their place.
fn provided(config: &Config) -> HashSet<&Tag> {
    let is_listed =
        |provider: &&Provider| config.outbound_lists.iter().any(|list| list.name == provider.name);
    let members = config.providers.iter().filter(is_listed).filter_map(|provider| match &provider.kind {
        ProviderKind::Outbounds { members, .. } => Some(members),
        ProviderKind::Rules { .. } | ProviderKind::Database { .. } => None,
    });
    members.flatten().collect()
}

/// The keys of one table with their values, as they stand in a file.
#[derive(Default)]
pub(super) struct TableEntries(Vec<(&'static str, String)>);

impl TableEntries {
    /// The keys of a table that its rows write alone, without those whose value holds when they are left out.
    fn differing<T: Default>(rows: &[schema::SchemaRow<T>], value: &T) -> Self {
        let usual: Vec<_> = schema::write(rows, &T::default()).collect();
        Self(schema::write(rows, value).filter(|entry| !usual.contains(entry)).collect())
    }

    pub(super) fn put<R, W: ?Sized>(&mut self, row: &Row<R, W>, value: &W) {
        self.0.push((row.name, row.text(value)));
    }

    pub(super) fn put_some<R, W: ?Sized>(&mut self, row: &Row<R, W>, value: Option<&W>) {
        if let Some(value) = value {
            self.put(row, value);
        }
    }

    /// Writes a value that is not the one without the key.
    pub(super) fn put_unless<R, W: ?Sized + PartialEq>(&mut self, row: &Row<R, W>, value: &W, default: &W) {
        if value != default {
            self.put(row, value);
        }
    }

    /// Takes a key out that somebody else gives.
    pub(super) fn without(&mut self, row: &super::keys::Head) {
        self.0.retain(|(name, _)| *name != row.name);
    }

    pub(super) fn table(&mut self, row: &Tables, entries: Self) {
        self.0.push((row.name, entries.inline()));
    }

    pub(super) fn tables(&mut self, row: &Tables, all: Vec<Self>) {
        let all: Vec<String> = all.iter().map(Self::inline).collect();
        self.0.push((row.name, format!("[{}]", all.join(", "))));
    }

    fn inline(&self) -> String {
        let keys: Vec<String> = self.0.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        format!("{{ {} }}", keys.join(", "))
    }

    fn lines(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, (key, value)| {
            writeln!(text, "{key} = {value}").expect("a string takes any text");
            text
        })
    }
}

/// A file that is being written.
pub(super) struct Writer(String);

impl Writer {
    fn table_unless_empty(&mut self, table: TomlTable, entries: &TableEntries) {
        if !entries.0.is_empty() {
            self.table(table, entries);
        }
    }

    pub(super) fn table(&mut self, table: TomlTable, entries: &TableEntries) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(table.header());
        self.0.push('\n');
        self.0.push_str(&entries.lines());
    }
}
