//! adit's own file, `adit.toml`.
//!
//! ```toml
//! [[inbound]]
//! protocol = "mixed"
//! listen = "127.0.0.1:1080"
//!
//! [[outbound]]
//! protocol = "snell"
//! server = "example.com:6160"
//! psk = "..."
//! ```
//!
//! Every key with its values and default is in [`keys::all`]; [`EXAMPLE`] shows all of them at work. Durations
//! are texts with a unit (`"500ms"`, `"10s"`, `"1h30m"`, `"7d"`). An unknown key is an error, and all errors of
//! a file are reported together.

mod admin;
mod capture;
mod carrier;
mod choice;
mod dns;
pub mod edit;
mod fields;
mod group;
mod inbound;
pub mod keys;
pub(crate) mod merge;
mod obfs;
mod outbound;
mod pace;
mod panel;
mod provider;
mod rows;
mod rule;
mod schema;
mod set;
mod shadowsocks;
mod snell;
mod sniff;
mod ssr;
mod syntax;
mod tcp;
mod through;
mod tun;
mod users;
mod write;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use adit_model::diagnostic::Diagnostics;
use adit_model::map::Map;
use adit_model::{Config, Dial, Inbound, Outbound, OutboundProtocol, Panel, StateFile, Store, Tag, Upstream};
use toml_edit::Document;

pub use self::edit::place_of;
use self::fields::{Spanned, TomlFields, TomlReport};
use self::inbound::RawInbound;
use self::keys::TomlTable;
pub use self::merge::merge;
use self::outbound::RawOutbound;
pub use self::panel::panel_kind;
pub(super) use self::rows::choice::{digest, field};
pub(super) use self::rows::name;
pub(super) use self::rule::has_words;
pub use self::write::to_toml;
use crate::read::loaded::Loaded;
use crate::read::source::Source;
use crate::read::value::{self, Problem};

/// A file with every key, commented; it is valid as it stands.
pub const EXAMPLE: &str = include_str!("example.toml");

/// Longest file, in bytes: a hundred thousand rules.
pub const MAX_LEN: usize = 16 << 20;

/// Reads a file's text; `file` is its name in messages.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(file: &str, text: &str) -> Result<Loaded, Diagnostics> {
    let source = Source::new(file, text);
    source.check_len_up_to(MAX_LEN)?;
    let mut report = TomlReport { source: &source, found: Diagnostics::new() };
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => {
            let at = error.span().unwrap_or(0..0);
            return Err(syntax::error(&source, at.start, error.message()).into());
        }
    };
    let root = TomlFields::new(document.as_table(), TomlTable::Root, String::new(), 0..0);
    let config = read(root, &mut report);
    Loaded::conclude(config, report.found)
}

/// The same with the entries of its lists, which lie beside `file`.
///
/// # Errors
/// Everything that is wrong with it. A list that cannot be read is a warning, and has no entries.
pub fn load(file: &str, text: &str) -> Result<Loaded, Diagnostics> {
    let mut loaded = parse(file, text)?;
    loaded.diagnostics.append(super::clash::expand(&mut loaded.config));
    Ok(loaded)
}

fn read(mut root: TomlFields<'_>, report: &mut TomlReport<'_>) -> Config {
    let mut config = Config { cores: root.read(report, &rows::root::CORES), ..Config::default() };
    if let Some(state) = root.read(report, &rows::root::STATE) {
        config.state = match &*state {
            "off" => StateFile::Off,
            path => StateFile::At(path.into()),
        };
    }
    if let Some(table) = root.table(report, &rows::root::LOG) {
        config.log = schema::read(schema::LOG, table, report);
    }
    if let Some(table) = root.table(report, &rows::root::ADMIN_TABLE) {
        admin::read(table, &mut config, report);
    }
    if let Some(table) = root.table(report, &rows::root::LIMITS) {
        config.limits = schema::read(schema::LIMITS, table, report);
    }
    if let Some(table) = root.table(report, &rows::root::UDP) {
        config.udp = schema::read(schema::UDP, table, report);
    }
    let dns = root.table(report, &rows::root::DNS_TABLE);
    let dns = dns.map_or_else(dns::none, |table| dns::read(table, report));
    let outbounds = root.tables(report, &rows::root::OUTBOUND).unwrap_or_default();
    let outbounds: Vec<RawOutbound> =
        outbounds.into_iter().map(|table| outbound::read(table, report)).collect();
    let inbounds = root.tables(report, &rows::root::INBOUND).unwrap_or_default();
    let inbounds: Vec<RawInbound> = inbounds.into_iter().map(|table| inbound::read(table, report)).collect();
    let capture = root.table(report, &rows::root::CAPTURE_TABLE).map(|table| capture::read(table, report));
    if inbounds.is_empty() && capture.is_none() && !report.found.has_errors() {
        let hint = "add an [[inbound]] with protocol and listen";
        report.error(&(0..0), "inbound", Problem::new("there is none, so nothing would listen").hint(hint));
    }
    config.geoip = set::read_geoip(&mut root, report);
    let (outbounds, uses) = translate_outbounds(outbounds, report);
    config.outbounds = outbounds;
    config.outbound_lists = provider::read(&mut root, &config.outbounds, report);
    provider::check_uses(&uses, &config.outbound_lists, report);
    config.find_program = root.read(report, &rows::root::FIND_PROCESS).unwrap_or_default();
    let plugins = root.read(report, &rows::root::PLUGINS_ALLOWED).unwrap_or_default();
    config.plugins_allowed = plugins.into_iter().map(|name| name.value).collect();
    config.sets = set::read(&mut root, &config.outbounds, report);
    config.providers = crate::rulesets::providers(&config.sets);
    let sniff = root.table(report, &rows::root::SNIFF_TABLE);
    config.sniffer = sniff.map(|table| sniff::read(table, &config.sets, report));
    config.panels = panel::read(&mut root, report);
    if let Some(table) = root.table(report, &rows::root::STORE_TABLE) {
        config.store = panel::read_store(table, &config.panels, report);
    }
    let rules = rule::read(&mut root, report);
    root.finish(report, None);
    let (dns, servers) = dns::resolve(dns, &config.outbounds, report);
    dns::check_sets(&dns, &config.sets, report);
    config.dns = dns;
    config.capture = capture.map(|raw| capture::resolve(raw, &config.outbounds, report));
    let panel_of = std::mem::take(&mut config.panel_of);
    let store_has_users = config.store.as_ref().is_some_and(|store| store.users_key.is_some());
    let mut links = PanelLinks { panel_of, panels: &config.panels, store_has_users };
    config.inbounds = translate_inbounds(inbounds, &config.outbounds, &servers, &mut links, report);
    config.panel_of = links.panel_of;
    config.rules = rule::resolve(rules, &config.inbounds, &config.outbounds, &config.sets, report);
    config
}

/// Names in a table of this path.
type Given = Vec<(String, Vec<Spanned<Box<str>>>)>;

/// The outbounds, and the lists that groups take members from.
fn translate_outbounds(raw: Vec<RawOutbound>, report: &mut TomlReport<'_>) -> (Vec<Outbound>, Given) {
    let protocols = raw.iter().map(|o| o.protocol.as_ref().map_or("outbound", outbound::protocol_name));
    let names = names(protocols, raw.iter().map(|o| (o.path.as_str(), o.name.as_ref())), report);
    let mut raw = raw;
    let members: Vec<_> = raw.iter_mut().map(|o| (o.path.clone(), std::mem::take(&mut o.members))).collect();
    let uses: Given = raw.iter_mut().map(|o| (o.path.clone(), std::mem::take(&mut o.lists))).collect();
    let through: Vec<_> = raw.iter_mut().map(|o| (o.path.clone(), o.through.take())).collect();
    let all = raw.into_iter().zip(names);
    let mut outbounds: Vec<Outbound> = all
        .map(|(raw, name)| Outbound {
            name,
            dial: raw.dial,
            // A broken one keeps its place, so that inbounds are checked against the right names.
            protocol: raw.protocol.unwrap_or(OutboundProtocol::Reject),
        })
        .collect();
    choice::check_members(&outbounds, &members, report);
    group::check_members(&outbounds, members, report);
    through::check(&mut outbounds, through, report);
    if outbounds.is_empty() {
        let protocol = OutboundProtocol::Direct;
        outbounds.push(Outbound { name: "direct".into(), dial: Dial::default(), protocol });
    }
    (outbounds, uses)
}

/// The panels of inbounds.
struct PanelLinks<'p> {
    /// The panel of each inbound that has one.
    panel_of: Map<Tag, Tag>,
    panels: &'p [Panel],
    store_has_users: bool,
}

fn translate_inbounds(
    raw: Vec<RawInbound>,
    outbounds: &[Outbound],
    servers: &[Arc<Upstream>],
    links: &mut PanelLinks<'_>,
    report: &mut TomlReport<'_>,
) -> Vec<Inbound> {
    check_listen(&raw, report);
    let protocols = raw.iter().map(|i| i.protocol.as_ref().map_or("inbound", inbound::protocol_name));
    let names = names(protocols, raw.iter().map(|i| (i.path.as_str(), i.name.as_ref())), report);
    let mut inbounds = Vec::new();
    for (mut raw, name) in raw.into_iter().zip(names) {
        let outbound = find_outbound(&raw, outbounds, report);
        if let Some(panel) = find_panel(&raw, links.panels, links.store_has_users, report) {
            links.panel_of.insert(name.clone(), panel);
        }
        let asked = std::mem::take(&mut raw.asked);
        dns::resolve_asked(&mut raw.protocol, asked, &raw.path, servers, report);
        let Some(protocol) = raw.protocol else { continue };
        let listen = raw.listen.into_iter().map(|addr| addr.value).collect();
        inbounds.push(Inbound {
            name,
            listen,
            socket: raw.socket,
            outbound,
            allow_private: raw.allow_private,
            protocol,
        });
    }
    inbounds
}

/// The names of all tables of one kind: as given, else after the protocol, with a number where that is taken.
fn names<'r>(
    protocols: impl Iterator<Item = &'static str>,
    given: impl Iterator<Item = (&'r str, Option<&'r Spanned<Box<str>>>)>,
    report: &mut TomlReport<'_>,
) -> Vec<Tag> {
    let given: Vec<_> = given.collect();
    let mut taken: HashSet<Tag> = HashSet::new();
    for (path, name) in &given {
        if let Some(name) = name
            && !taken.insert(Tag::from(&*name.value))
        {
            let problem = Problem::new(format!("the name is taken: {}", name.value));
            report.error(&name.at, format!("{path}.name"), problem);
        }
    }
    let mut names = Vec::new();
    for ((_, name), protocol) in given.into_iter().zip(protocols) {
        names.push(match name {
            Some(name) => Tag::from(&*name.value),
            None => free_name(protocol, &mut taken),
        });
    }
    names
}

fn free_name(protocol: &str, taken: &mut HashSet<Tag>) -> Tag {
    let numbered = (2_usize..).map(|n| Tag::from(format!("{protocol}-{n}")));
    let name = std::iter::once(Tag::from(protocol)).chain(numbered).find(|name| !taken.contains(name));
    let name = name.expect("there are more numbers than names");
    taken.insert(name.clone());
    name
}

fn find_outbound(raw: &RawInbound, outbounds: &[Outbound], report: &mut TomlReport<'_>) -> Tag {
    let first = || outbounds[0].name.clone();
    let Some(wanted) = &raw.outbound else { return first() };
    if let Some(outbound) = outbounds.iter().find(|outbound| *outbound.name == *wanted.value) {
        return outbound.name.clone();
    }
    let names: Vec<&str> = outbounds.iter().map(|outbound| &*outbound.name).collect();
    let hint = match value::closest(&wanted.value, names.iter().copied()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("the first outbound is `{}`", names[0]),
    };
    let problem = Problem::new(format!("no such outbound: {}", value::excerpt(&wanted.value))).hint(hint);
    report.error(&wanted.at, format!("{}.outbound", raw.path), problem);
    first()
}

/// The panel that an inbound names.
fn find_panel(
    raw: &RawInbound,
    panels: &[Panel],
    store_has_users: bool,
    report: &mut TomlReport<'_>,
) -> Option<Tag> {
    let wanted = raw.panel.as_ref()?;
    if *wanted.value == *Store::PANEL && !panels.iter().any(|panel| *panel.name == *Store::PANEL) {
        panel::check_store(raw, wanted, store_has_users, report);
        return Some(Store::PANEL.into());
    }
    let found = panels.iter().find(|panel| *panel.name == *wanted.value);
    if found.is_none() {
        let problem = Problem::new(format!("no such panel: {}", value::excerpt(&wanted.value)));
        let problem = problem.hint("add a [[panel]] of that name");
        report.error(&wanted.at, format!("{}.panel", raw.path), problem);
    }
    found.map(|panel| panel.name.clone())
}

fn check_listen(raw: &[RawInbound], report: &mut TomlReport<'_>) {
    let mut seen: HashMap<SocketAddr, &str> = HashMap::new();
    for inbound in raw {
        for addr in inbound.listen.iter().filter(|addr| addr.value.port() != 0) {
            if let Some(first) = seen.insert(addr.value, &inbound.path) {
                let problem = Problem::new(format!("{} is taken by {first}", addr.value));
                report.error(&addr.at, format!("{}.listen", inbound.path), problem);
            }
        }
    }
}

/// Entry of the fuzzer: for any bytes, findings lie inside the text, and an accepted text can be written and
/// read again.
#[doc(hidden)]
pub fn fuzz_native(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match parse("fuzz.toml", &text) {
        Ok(loaded) => {
            let again = parse("again.toml", &to_toml(&loaded.config));
            assert_eq!(again.map(|again| again.config).as_ref(), Ok(&loaded.config));
        }
        Err(found) => crate::read::loaded::assert_inside(&text, &found),
    }
}

#[cfg(test)]
mod dns_tests;
#[cfg(test)]
mod name_tests;
#[cfg(test)]
mod panel_tests;
#[cfg(test)]
mod rule_tests;
#[cfg(test)]
mod tests;
