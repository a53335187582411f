//! `mudb.json`, the database of users of the Python server: a list of rows, one for each user and port.
//!
//! A row is served while `enable` is on and `u` + `d` are less than `transfer_enable`. Its port belongs to its user; on a
//! shared port (a row with a protocol that has users, and a `#` in `protocol_param`) every other user is known by port
//! and password. `u` and `d` are written back into the text as it is: comments, order and other keys stay.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics, Severity};
use adit_model::{Config, Secret, SsrUsers, Tag, User, UserLimits};
use zeroize::Zeroizing;

use crate::read::json::{self, Grammar, JsonMember, JsonValue, Node, whole};
use crate::read::json_fields::{JsonField, JsonReport};
use crate::read::source::Source;
use crate::read::value::{MAX_CREDENTIAL, Problem, secret, text_of};
use crate::shadowsocksr::file::{self, SsrSetting, SsrSettings};
use crate::shadowsocksr::names::{self, OptionSources, Served, over};
use crate::shadowsocksr::server::{Base, Filter, filters, limits, warn_of_source};

/// Longest text of a database, in bytes: room for `MAX_ROWS` rows.
pub const MAX_LEN: usize = 16 << 20;
/// Most values in it.
const MAX_VALUES: usize = 500_000;
/// Most rows.
const MAX_ROWS: usize = 16_384;
/// The name under which the accounts of all rows are kept.
const ACCOUNTS: &str = "mudb";

/// A database, with everything that is said elsewhere.
#[derive(Debug, Clone)]
pub struct MudbDatabase {
    path: PathBuf,
    base: Base,
    /// Everything but what the rows say.
    config: Config,
}

/// By its file and what runs: the rest says the same in another way.
impl PartialEq for MudbDatabase {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.config == other.config
    }
}

impl Eq for MudbDatabase {}

/// A row that can be read.
#[derive(Debug, Clone)]
pub struct MudbRow {
    /// Name of its account; no other row has it.
    pub name: Box<str>,
    /// Password of the user, which is part of what the account is known by.
    pub password: Secret,
    /// The user's port, which no other row has.
    pub port: u16,
    /// Bytes from the user, as the file says.
    pub up: u64,
    /// Bytes to the user, as the file says.
    pub down: u64,
    /// Bytes that the user may use in all.
    allowed: u64,
    is_enabled: bool,
    section: SsrSettings,
}

impl MudbRow {
    fn is_served(&self) -> bool {
        self.is_enabled && self.up.saturating_add(self.down) < self.allowed
    }
}

/// The rows of a database, in their order.
pub type Rows = Vec<MudbRow>;

impl MudbDatabase {
    pub(crate) fn new(path: &Path, base: Base, config: Config) -> Self {
        Self { path: path.to_owned(), base, config }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self) -> Arc<str> {
        self.path.to_string_lossy().as_ref().into()
    }

    /// Reads the text of the file. Rows that cannot be used are left out with a warning each.
    ///
    /// # Errors
    /// The faults in the form of the text.
    pub fn read(&self, text: &str) -> Result<(Rows, Diagnostics), Diagnostics> {
        let name = self.file();
        let source = Source::new(&name, text);
        source.check_len_up_to(MAX_LEN)?;
        let root = json::parse_up_to(&source, Grammar::Json5, MAX_VALUES)?;
        let mut report = JsonReport::new(&source);
        let list = JsonField { path: String::new(), value: &root };
        let (mut rows, mut names, mut ports) = (Rows::new(), HashSet::new(), HashSet::new());
        for entry in list.list(&mut report, MAX_ROWS) {
            // A row has its port even if nothing else of it can be used: traffic is written into the first one of a port.
            if port_of(&entry.value.node).is_some_and(|port| !ports.insert(port)) {
                entry.error(&mut report, Problem::new("its port is that of an earlier row"));
                continue;
            }
            let mut own = JsonReport::new(&source);
            let row = row(&mut own, &entry);
            let is_whole = !own.found.has_errors();
            report.found.append(own.found);
            // A value that cannot be read could be a filter or a limit.
            let Some(mut row) = row.filter(|_| is_whole) else { continue };
            if !names.insert(row.name.clone()) {
                row.name = format!("{}-{}", row.name, row.port).into();
                names.insert(row.name.clone());
            }
            rows.push(row);
        }
        if !matches!(root.node, Node::Array(_)) {
            return Err(report.found);
        }
        Ok((rows, softened(&report.found)))
    }

    /// The configuration that runs with these rows. `used` says how many bytes the account of a row
    /// has counted since the start, all of which are in the row.
    pub fn config(&self, rows: &Rows, used: &dyn Fn(&MudbRow) -> u64) -> (Config, Diagnostics) {
        let mut builder = Builder { database: self, found: Diagnostics::new(), users: Vec::new() };
        let mut config = self.config.clone();
        let mut served = Vec::new();
        for row in rows.iter().filter(|row| row.is_served()) {
            let mut found = Diagnostics::new();
            let user = self.user(row, used(row), &mut found);
            let filter = Filter { default: "", user: Some(&row.name), file: self.file() };
            let rules = filters(&OptionSources(vec![&row.section]), &filter, &mut found);
            // A limit or filter that cannot be read must not become none.
            if !found.has_errors() {
                builder.users.push((u32::from(row.port), user));
                config.rules.extend(rules);
                served.push(row);
            }
            builder.found.append(found);
        }
        for row in &served {
            let layers = OptionSources(vec![&row.section, &self.base.values]);
            let served =
                names::server(&layers, None, UserLimits::default(), Some(&self.file()), &mut builder.found);
            let Some(served) = served else { continue };
            let own = if served.is_shared { None } else { Some(row.port) };
            if own.is_some() && self.base.additional_only {
                continue;
            }
            config.inbounds.extend(builder.port(row.port, served, own));
        }
        for (port, section) in &self.base.additional {
            if served.iter().any(|row| row.port == *port) {
                let problem = format!("port {port} is that of a row, so the entry has no effect");
                builder.found.push(Diagnostic::warning(&self.file(), "additional_ports", problem));
                continue;
            }
            warn_of_source(section, &mut builder.found);
            let layers = over(section, &self.base.layers());
            let file = self.base.file.as_ref();
            let served = names::server(&layers, None, UserLimits::default(), file, &mut builder.found);
            config.inbounds.extend(served.and_then(|served| builder.port(*port, served, None)));
        }
        (config, softened(&builder.found))
    }
}

impl MudbDatabase {
    fn user(&self, row: &MudbRow, used: u64, found: &mut Diagnostics) -> User {
        let layers = OptionSources(vec![&row.section, &self.base.values]);
        let left = row.allowed.saturating_sub(row.up).saturating_sub(row.down);
        let limits = UserLimits { quota: Some(left.saturating_add(used)), ..limits(&layers, found) };
        User { name: row.name.clone().into(), key: row.password.clone(), limits }
    }
}

struct Builder<'a> {
    database: &'a MudbDatabase,
    found: Diagnostics,
    /// Everybody, by port.
    users: Vec<(u32, User)>,
}

impl Builder<'_> {
    /// The listener of a port, which belongs to the user of port `own` or takes all others.
    fn port(&mut self, port: u16, mut served: Served, own: Option<u16>) -> Option<adit_model::Inbound> {
        let protocol = served.server.protocol;
        if let Some(own) = own {
            let user = self.users.iter().find(|(id, _)| *id == u32::from(own))?;
            if served.server.users.ids().is_empty() {
                served.server.users = SsrUsers::common(user.1.clone());
            }
        } else if served.is_shared {
            let others = self.users.iter().filter(|(id, _)| *id != u32::from(port)).cloned();
            // A port without users would serve everybody who has its password.
            served.server.users =
                SsrUsers::new(protocol, others.collect()).ok().filter(|users| !users.ids().is_empty())?;
        }
        served.server.accounts = Some(Tag::from(ACCOUNTS));
        Some(self.database.base.inbound(format!("port-{port}").into(), &[port], served))
    }
}

fn row(report: &mut JsonReport<'_>, entry: &JsonField<'_>) -> Option<MudbRow> {
    let mut fields = entry.object(report)?;
    let section = file::row(report, &mut fields);
    let port = fields.number(report, "port", 1..=65_535);
    let mut bytes = |key| {
        let field = fields.take(report, key)?;
        field.number(report, 0..=u64::MAX)
    };
    let (up, down, allowed) = (bytes("u"), bytes("d"), bytes("transfer_enable"));
    let is_enabled = match fields.written("enable") {
        Some(field) if field.value.node == Node::Null => {
            field.warning(report, Problem::new("null counts as off"));
            false
        }
        Some(field) => file::switch(report, &field) == Some(true),
        None => true,
    };
    let at = fields.at;
    fields.finish(report, Severity::Warning);
    let layers = OptionSources(vec![&section]);
    let port = u16::try_from(port?).ok()?;
    let password = layers.get(SsrSetting::Password).and_then(|given| {
        let found = &mut report.found;
        given.parsed(found, |text| secret(text, MAX_CREDENTIAL))
    });
    if password.is_none() {
        report.error(at, entry.path.clone(), Problem::new("the row has no passwd"));
    }
    let name = layers.get(SsrSetting::Name).and_then(|given| {
        let name = text_of(given.text(), MAX_CREDENTIAL - 8);
        name.map_err(|problem| given.warning(&mut report.found, problem)).ok()
    });
    let name = name.unwrap_or_else(|| format!("port-{port}").into());
    Some(MudbRow {
        name,
        password: password?,
        port,
        up: up.unwrap_or(0),
        down: down.unwrap_or(0),
        allowed: allowed.unwrap_or(0),
        is_enabled,
        section,
    })
}

/// A fault that keeps a row from being served does not keep the others from it.
fn softened(found: &Diagnostics) -> Diagnostics {
    let mut soft = Diagnostics::new();
    for finding in found {
        let mut finding = finding.clone();
        if finding.severity == Severity::Error {
            finding.severity = Severity::Warning;
            finding.problem.push_str(", so the entry is left out");
        }
        soft.push(finding);
    }
    soft
}

/// The value of a key that is not null.
fn number_of<'v>(members: &'v [JsonMember], key: &str) -> Option<&'v JsonValue> {
    let value = &members.iter().rfind(|member| member.key == key)?.value;
    (value.node != Node::Null).then_some(value)
}

/// The port of a row.
fn port_of(row: &Node) -> Option<u16> {
    let Node::Object(members) = row else { return None };
    number_of(members, "port").and_then(whole_of).and_then(|port| u16::try_from(port).ok())
}

fn whole_of(value: &JsonValue) -> Option<u64> {
    match &value.node {
        Node::Number(number) => whole(number),
        Node::Null | Node::Bool(_) | Node::Text(_) | Node::Array(_) | Node::Object(_) => None,
    }
}

/// Traffic of the user of a port since it was last written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// The user's port.
    pub port: u16,
    /// Bytes from the user.
    pub up: u64,
    /// Bytes to the user.
    pub down: u64,
}

/// Adds traffic to the rows of a database. Everything else in the text stays as it is; ports that have no row are passed
/// over.
///
/// # Errors
/// The faults in the form of the text.
pub fn add_traffic(file: &str, text: &str, traffic: &[Traffic]) -> Result<Zeroizing<String>, Diagnostics> {
    let source = Source::new(file, text);
    source.check_len_up_to(MAX_LEN)?;
    let root = json::parse_up_to(&source, Grammar::Json5, MAX_VALUES)?;
    let Node::Array(values) = &root.node else {
        let problem = format!("expected a list, found {}", root.node.kind());
        return Err(Diagnostic::error(&source.file, "", problem).into());
    };
    let mut edits: Vec<(usize, usize, String)> = Vec::new();
    let mut seen = HashSet::new();
    for value in values.iter().take(MAX_ROWS) {
        let Node::Object(members) = &value.node else { continue };
        let Some(port) = port_of(&value.node).filter(|port| seen.insert(*port)) else { continue };
        let Some(of_row) = traffic.iter().find(|traffic| traffic.port == port) else { continue };
        for (key, bytes) in [("u", of_row.up), ("d", of_row.down)] {
            if bytes > 0 {
                edits.extend(edit(value.at, members, key, bytes));
            }
        }
    }
    edits.sort();
    let mut out = Zeroizing::new(String::with_capacity(text.len() + 64 * edits.len()));
    let mut at = 0;
    for (from, to, new) in edits {
        out.push_str(&text[at..from]);
        out.push_str(&new);
        at = to;
    }
    out.push_str(&text[at..]);
    Ok(out)
}

/// The part of a row that changes, as it was and as it becomes; none for a value that is no number.
fn edit(object: usize, members: &[JsonMember], key: &str, bytes: u64) -> Option<(usize, usize, String)> {
    let Some(member) = members.iter().rfind(|member| member.key == key) else {
        let at = object + 1;
        return Some((at, at, format!("\"{key}\": {bytes}, ")));
    };
    let (at, len, before) = match &member.value.node {
        Node::Number(number) => (member.value.at, number.len(), whole(number)?),
        Node::Null => (member.value.at, "null".len(), 0),
        Node::Bool(_) | Node::Text(_) | Node::Array(_) | Node::Object(_) => return None,
    };
    Some((at, at + len, before.saturating_add(bytes).to_string()))
}

/// The check of the fuzz target: traffic that is written is there, and nothing else has changed.
pub(crate) fn check_written(text: &str) {
    let base = Base::for_checks();
    let database = MudbDatabase::new(Path::new("mudb.json"), base, Config::default());
    let Ok((rows, _)) = database.read(text) else { return };
    let traffic: Vec<Traffic> = rows.iter().map(|row| Traffic { port: row.port, up: 1, down: 2 }).collect();
    let written = add_traffic("mudb.json", text, &traffic).expect("it was read before");
    let (again, _) = database.read(&written).expect("it is read as before");
    let of = |rows: &Rows, added: (u64, u64)| -> Vec<_> {
        let sum =
            |row: &MudbRow| (row.port, row.up.saturating_add(added.0), row.down.saturating_add(added.1));
        rows.iter().map(sum).collect()
    };
    assert_eq!(of(&again, (0, 0)), of(&rows, (1, 2)));
}
