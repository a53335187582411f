//! Servers as other clients write them down, read as a client of adit's own: the other direction of
//! [`share`](super::share).
//!
//! ```text
//! Surge        [Proxy] lines                name = snell, host, port, psk=..., version=5
//! mihomo       `proxies` of a file          or one entry, or a list of them
//! sing-box     `outbounds` of a file        or one object, or a list of them
//! links        snell://..., ss://..., ssr://...   one per line, or a subscription: base64 of such lines
//! ```
//!
//! Entries of Snell, Shadowsocks and ShadowsocksR (mihomo) are read. Of a whole file, local ports and groups are
//! taken over as well; each other section is left out with a warning. A field that adit does not know
//! is a problem with its place when it says something, since the connection may depend on it; what only concerns how
//! a client shows or tests a server is passed over. A server with a problem is left out with a warning; it is an
//! error when no server is left. Entries of other protocols are left out with a warning each.

mod dns;
mod entry;
mod link;
mod read;
mod rules;
mod surge;
mod tables;
mod whole;

use std::net::SocketAddr;

use adit_model::diagnostic::{Diagnostic, Diagnostics, Severity};
use adit_model::map::Map;
use adit_model::rule::{FileLine, Rule};
use adit_model::{
    Config, Inbound, InboundProtocol, Local, LocalProtocols, Outbound, Reply, SocketOptions, Tag,
};

use self::entry::ImportEntry;
use self::whole::{ImportedFile, Settled};
use super::clash::tables::ROOT as CLASH;
use super::share::Form;
use crate::read::json::{self, Grammar, JsonValue, Node};
use crate::read::json_fields::JsonReport;
use crate::read::kinds::{self, Typing, ValueKind, WrongKind};
use crate::read::loaded::Loaded;
use crate::read::source::Source;
use crate::read::value::Problem;
use crate::read::yaml;

/// Most servers in one text.
const MAX_SERVERS: usize = 256;

/// Port of the client's local side, as OpenSnell's has it.
const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 1080);

/// The program that writes servers in this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Surge,
    Mihomo,
    SingBox,
    Link,
}

impl Dialect {
    /// Whether values have types of their own; all others are texts.
    fn is_typed(self) -> bool {
        matches!(self, Self::SingBox | Self::Mihomo)
    }
}

/// Reads a text; `file` is its name in messages. Without `form` the form is found by the text's shape.
///
/// # Errors
/// Everything that is wrong with it, and every field in it that adit does not know.
pub fn parse(form: Option<Form>, file: &str, text: &str) -> Result<Loaded, Diagnostics> {
    let source = Source::new(file, text);
    source.check_len()?;
    let mut report = JsonReport::new(&source);
    let dialect = match form {
        Some(Form::Surge) => Dialect::Surge,
        Some(Form::Mihomo) => Dialect::Mihomo,
        Some(Form::SingBox) => Dialect::SingBox,
        Some(Form::Shadowrocket) => Dialect::Link,
        Some(Form::OpenSnell | Form::Adit) => {
            let problem = Problem::new("no list of servers").hint("leave out --form");
            report.error(0, "", problem);
            return Err(report.found);
        }
        None => guess(text),
    };
    let mut servers = Servers::default();
    let whole = match dialect {
        Dialect::Surge => {
            for (line, at) in surge::lines(&source) {
                servers.add(&mut report, |report| {
                    let (value, path) = surge::entry(report, line, at)?;
                    read::server(report, dialect, &value, path)
                });
            }
            whole::surge(&source, &mut report)
        }
        Dialect::Mihomo | Dialect::SingBox => {
            let (mut root, key, is_part) = root(&source, dialect)?;
            if is_whole(&root, key) {
                let (table, typing) = match dialect {
                    Dialect::SingBox => (tables::ROOT, Typing::Strict),
                    Dialect::Mihomo | Dialect::Surge | Dialect::Link => (CLASH, Typing::Loose),
                };
                wrong(&mut report, kinds::settle(&mut root, &ValueKind::Map(table), typing, ""));
            }
            for (value, path) in entries(&root, key) {
                servers.add(&mut report, |report| {
                    let value = read::typed(report, dialect, value, &path);
                    read::server(report, dialect, &value, path)
                });
            }
            if is_part {
                let problem = Problem::new("left out: all but the servers, for its YAML is not read");
                report.warning(0, "", problem);
            }
            if is_part || !is_whole(&root, key) {
                ImportedFile::default()
            } else if dialect == Dialect::SingBox {
                whole::sing_box(&mut report, &root)
            } else {
                whole::mihomo(&mut report, &root)
            }
        }
        Dialect::Link => {
            link::servers(&source, &mut report, &mut servers);
            ImportedFile::default()
        }
    };
    conclude(report, servers, whole)
}

/// Values of other types than their keys have: no reader knows what they mean, so that they stop the import.
fn wrong(report: &mut JsonReport<'_>, all: Vec<WrongKind>) {
    for WrongKind { at, path, problem } in all {
        report.error(at, path, Problem::new(problem));
    }
}

/// Whether a text is of links: one a line, or base64 of such lines.
pub(super) fn is_links(text: &str) -> bool {
    link::is_link(text) || link::subscription(text).is_some()
}

/// Whether a text is the address of a page.
pub(super) fn is_web_address(text: &str) -> bool {
    link::is_web_address(text)
}

/// Whether a text is a profile of Surge, or has a line of a server as one has.
pub(super) fn is_surge(text: &str) -> bool {
    guess(text) == Dialect::Surge
}

/// Whether a text begins with an entry of mihomo in braces.
pub(super) fn is_flow_entry(text: &str) -> bool {
    text.starts_with("[{name:") || text.starts_with("{name:")
}

/// Whether a text is an entry of mihomo, or a list of them.
pub(super) fn is_mihomo_entry(text: &str) -> bool {
    let key = |line: &str| {
        let line = line.trim_start_matches('\u{feff}').trim_start_matches(['-', ' ', '{', '[']);
        line.split_once(':').map(|(key, _)| key.trim().to_owned())
    };
    let mut keys = text.lines().filter_map(key);
    is_flow_entry(text) || keys.any(|key| matches!(&*key, "name" | "type"))
}

/// The servers of a text.
#[derive(Default)]
struct Servers {
    outbounds: Vec<Outbound>,
    /// Servers that are left out: everything that is wrong with them.
    refused: Diagnostics,
    /// The first problem with each.
    left_out: Vec<Diagnostic>,
}

impl Servers {
    /// Adds the server that `read` gives; one with a problem is left out.
    fn add(
        &mut self,
        report: &mut JsonReport<'_>,
        read: impl FnOnce(&mut JsonReport<'_>) -> Option<Outbound>,
    ) {
        let mut own = JsonReport::new(report.source);
        let outbound = read(&mut own);
        let first = own.found.iter().find(|found| found.severity == Severity::Error);
        match first.cloned() {
            Some(first) => {
                self.left_out.push(first);
                self.refused.append(own.found);
            }
            None => {
                report.found.append(own.found);
                self.outbounds.extend(outbound);
            }
        }
    }

    /// The servers; those that were left out become warnings, or errors where none is left.
    fn settle(self, report: &mut JsonReport<'_>) -> Vec<Outbound> {
        if self.outbounds.is_empty() {
            report.found.append(self.refused);
            return self.outbounds;
        }
        for first in self.left_out {
            let problem = format!("this server is left out: {}", first.problem);
            report.found.push(Diagnostic { severity: Severity::Warning, problem, ..first });
        }
        self.outbounds
    }
}

/// An entry of mihomo's `proxies` of type `ss` or `snell`, without its name.
///
/// # Errors
/// The first problem with it, or the first field in it that adit does not know.
pub(super) fn mihomo_server(source: &Source<'_>, value: &JsonValue) -> Result<Outbound, Diagnostic> {
    let mut report = JsonReport::new(source);
    let outbound = read::server(&mut report, Dialect::Mihomo, value, String::new());
    first_problem(source, report, outbound)
}

/// The server of one link.
///
/// # Errors
/// The first problem with it.
pub(super) fn one_link(line: &str) -> Result<Outbound, String> {
    let source = Source::new("link", line);
    let mut report = JsonReport::new(&source);
    let found = link::server(&mut report, line, 0, "link".to_owned());
    first_problem(&source, report, found).map_err(|found| found.problem)
}

/// The same of type `direct`.
///
/// # Errors
/// As [`mihomo_server`].
pub(super) fn mihomo_direct(source: &Source<'_>, value: &JsonValue) -> Result<Outbound, Diagnostic> {
    let mut report = JsonReport::new(source);
    let outbound = read::mihomo_direct(&mut report, value);
    first_problem(source, report, outbound)
}

fn first_problem(
    source: &Source<'_>,
    report: JsonReport<'_>,
    outbound: Option<Outbound>,
) -> Result<Outbound, Diagnostic> {
    let first = report.found.iter().next().cloned();
    match (first, outbound) {
        (None, Some(outbound)) => Ok(outbound),
        (first, _) => Err(first.unwrap_or_else(|| Diagnostic::error(&source.file, "", "it cannot be read"))),
    }
}

fn guess(text: &str) -> Dialect {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let first = text.lines().next().unwrap_or_default().trim_end();
    let is_section = first.starts_with('[') && first.ends_with(']') && !first.contains(['{', '"', ',']);
    if link::is_link(text) || link::subscription(text).is_some() {
        Dialect::Link
    } else if is_section && first.len() > 2 || text.lines().any(surge::is_entry) {
        Dialect::Surge
    } else if text.starts_with(['{', '[']) && !is_flow_entry(text) && !is_mihomo_json(text) {
        Dialect::SingBox
    } else {
        Dialect::Mihomo
    }
}

/// Whether a text in braces is a whole file of mihomo: sing-box has no such keys.
fn is_mihomo_json(text: &str) -> bool {
    text.starts_with('{') && ["\"proxies\"", "\"proxy-groups\""].iter().any(|key| text.contains(key))
}

/// The tree of a text, the key that servers stand under where it is a whole file, and whether only the part under that
/// key was read.
fn root(source: &Source<'_>, dialect: Dialect) -> Result<(JsonValue, &'static str, bool), Diagnostics> {
    const PROXIES: &str = "proxies";
    if dialect == Dialect::SingBox {
        return Ok((json::parse(source, Grammar::Json5)?, "outbounds", false));
    }
    let whole = match yaml::parse(source, 0..source.text.len()) {
        Ok(root) => return Ok((root, PROXIES, false)),
        Err(error) => error,
    };
    match yaml::section(source.text, PROXIES) {
        // The other parts may be as they like.
        Some(range) => Ok((yaml::parse(source, range)?, PROXIES, true)),
        None => Err(whole.into()),
    }
}

/// Whether a tree is a whole file, and neither one entry nor a list of them.
fn is_whole(root: &JsonValue, key: &str) -> bool {
    let Node::Object(members) = &root.node else { return false };
    let marks = [key, "proxy-groups", "proxy-providers", "rules", "inbounds", "route"];
    members.iter().any(|member| marks.contains(&&*member.key))
}

/// The entries of a whole file, of a list, or the one that there is, with their paths.
fn entries<'v>(root: &'v JsonValue, key: &str) -> Vec<(&'v JsonValue, String)> {
    let (list, path) = match &root.node {
        Node::Object(members) => match members.iter().find(|member| member.key == key) {
            Some(member) => (&member.value, key),
            None if is_whole(root, key) => return Vec::new(),
            None => return vec![(root, String::new())],
        },
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::Array(_) => (root, ""),
    };
    match &list.node {
        Node::Array(values) => {
            values.iter().enumerate().map(|(n, value)| (value, format!("{path}[{n}]"))).collect()
        }
        Node::Null => Vec::new(),
        Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::Object(_) => vec![(list, path.to_owned())],
    }
}

fn conclude(
    mut report: JsonReport<'_>,
    servers: Servers,
    whole: ImportedFile<'_>,
) -> Result<Loaded, Diagnostics> {
    let outbounds = servers.settle(&mut report);
    if outbounds.is_empty() && !report.found.has_errors() {
        let problem = Problem::new("there is no server of Snell, Shadowsocks or ShadowsocksR in it");
        let hint = "a line of Surge, an entry of mihomo or sing-box, a whole file of theirs, or a link";
        report.error(0, "", problem.hint(hint));
    }
    if outbounds.len() > MAX_SERVERS {
        report.error(0, "", Problem::new(format!("more than {MAX_SERVERS} servers")));
    }
    let written: Vec<Tag> = outbounds.iter().map(|outbound| outbound.name.clone()).collect();
    let mut outbounds = distinct(outbounds);
    let mut names = Map::new();
    for (written, outbound) in written.iter().zip(&outbounds) {
        names.entry(written.to_string()).or_insert_with(|| outbound.name.clone());
    }
    let ports = whole.ports.clone();
    // Without a server there is an error by now.
    let settled = whole::settle(&mut report, whole, names, &mut outbounds);
    let lists = Map::new();
    let nothing = Settled { used: "none".into(), rules: Vec::new(), sets: Vec::new(), lists, dns: None };
    let Settled { used, rules, sets, lists, dns } = settled.unwrap_or(nothing);
    let mut config = Config { inbounds: inbounds(&ports, &used), outbounds, sets, ..Config::default() };
    if let Some((written, ways)) = dns.filter(|_| !report.found.has_errors()) {
        dns::settle(&mut report, &written, dns::DnsReferences { ways: &ways, lists: &lists }, &mut config);
    }
    let mut used = rules::used_sets(&rules);
    used.extend(config.dns.policy.iter().filter_map(|policy| policy.set()).map(Tag::from));
    config.sets.retain(|set| used.contains(&set.name) || !lists.values().any(|tag| *tag == set.name));
    config.providers = crate::rulesets::providers(&config.sets);
    hold_rules(&mut report, &mut config, rules);
    Loaded::conclude(config, report.found)
}

/// Adds rules in the form in which `adit.toml` holds them.
fn hold_rules(report: &mut JsonReport<'_>, config: &mut Config, rules: Vec<Rule>) {
    if rules.is_empty() || report.found.has_errors() {
        return;
    }
    config.rules = rules;
    let (count, places) = (config.rules.len(), config.rules.iter().map(|rule| rule.at.clone()));
    let places: Vec<FileLine> = places.collect();
    match crate::adit_toml::parse("adit.toml", &crate::adit_toml::to_toml(config)) {
        Ok(again) if again.config.rules.len() == count => {
            config.rules = again.config.rules;
            config.rules.iter_mut().zip(places).for_each(|(rule, at)| rule.at = at);
        }
        Ok(_) | Err(_) => {
            let problem = format!("left out: {count} rules that adit.toml cannot hold");
            report.warning(0, "rules", Problem::new(problem));
            config.rules.clear();
            config.sets.clear();
            config.providers.clear();
        }
    }
}

/// The local ports of a file, or the usual one.
pub(super) fn inbounds(ports: &[(LocalProtocols, SocketAddr)], used: &Tag) -> Vec<Inbound> {
    let usual = [(LocalProtocols::Mixed, SocketAddr::from(LISTEN))];
    let ports = if ports.is_empty() { &usual } else { ports };
    let mut all: Vec<Inbound> = Vec::new();
    for (accepts, addr) in ports.iter().take(whole::MAX_PORTS) {
        let is_taken = all.iter().any(|inbound| inbound.listen.contains(addr));
        if is_taken {
            continue;
        }
        let name = if all.is_empty() { "local".to_owned() } else { format!("local-{}", all.len() + 1) };
        let local = Local { accepts: *accepts, users: Vec::new(), reply: Reply::Early, open_to: Vec::new() };
        all.push(Inbound {
            name: name.into(),
            listen: vec![*addr],
            socket: SocketOptions::default(),
            outbound: used.clone(),
            allow_private: true,
            protocol: InboundProtocol::Local(local),
        });
    }
    all
}

/// The same with a number behind names that are taken.
fn distinct(mut outbounds: Vec<Outbound>) -> Vec<Outbound> {
    let mut taken = std::collections::HashSet::new();
    for outbound in &mut outbounds {
        let free = |name: &str| !taken.contains(name);
        if !free(&outbound.name) {
            // Room for the number, within the longest name.
            let head: String = outbound.name.chars().take(58).collect();
            let mut numbered = (2_usize..).map(|n| format!("{head}-{n}"));
            outbound.name =
                numbered.find(|name| free(name)).expect("there are more numbers than names").into();
        }
        taken.insert(outbound.name.to_string());
    }
    outbounds
}

/// The fuzzer's entry: for any bytes, findings lie inside the text, those about its kind too, and an accepted text can
/// be written as adit's own file and read again.
#[doc(hidden)]
pub fn fuzz_import(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(error) = crate::detect::recognise("fuzz", &text) {
        crate::read::loaded::assert_inside(&text, &error.into());
    }
    for form in [None, Some(Form::Surge), Some(Form::Mihomo), Some(Form::SingBox), Some(Form::Shadowrocket)] {
        match parse(form, "fuzz", &text) {
            Ok(loaded) => {
                crate::read::loaded::assert_inside(&text, &loaded.diagnostics);
                let again = crate::adit_toml::parse("again.toml", &crate::adit_toml::to_toml(&loaded.config));
                assert_eq!(again.map(|again| again.config).as_ref(), Ok(&loaded.config));
            }
            Err(found) => crate::read::loaded::assert_inside(&text, &found),
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod import_walk_tests;
