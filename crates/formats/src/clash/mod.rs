//! The file of mihomo and other programs of the Clash family: proxies, groups, rules, providers.
//!
//! ```text
//! config.yaml + lists and databases beside it -> proxies, groups -> targets -> rule lines -> rules of the router
//! ```
//!
//! Facts are those of mihomo (Alpha, February 2025), observed or read in its source. It sends traffic another way than
//! the file says at an unknown plugin and at an empty group; adit refuses that traffic. A key that adit cannot obey and that would
//! change the way of traffic stops the start; other keys that have no effect are named.

mod capture;
pub mod clash_flags;
mod controller;
mod convert;
mod dns;
mod geo;
mod group;
mod guard;
mod inline_lists;
#[cfg(test)]
mod key_tests;
mod name;
mod ports;
mod provider;
pub(super) mod proxy;
mod rule_line;
mod rules;
mod shown_words;
mod sniffer;
mod subscription;
pub(super) mod tables;
#[cfg(test)]
mod tests;
mod to_native;
pub(crate) mod unsupported;
#[cfg(test)]
mod way_tests;

#[cfg(test)]
mod clash_walk_tests;

use adit_model::map::Map;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::clash_flags::{ClashFlags, ClashInvocation, flags, is_input, usage};
pub use self::convert::{Converted, convert_rules};
pub use self::geo::Missing;
pub use self::guard::Guard;
pub(super) use self::inline_lists::expand;
use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::entries::Entries;
use adit_model::rule::{Cidr, Fact, FileLine, Matcher, Resolve, Verdict};
use adit_model::{self as model, Config, Outbound, StateFile, Tag};

use self::provider::ProviderMatchers;
use self::rule_line::Params;
pub use self::rules::RuleOrigin;
pub use self::shown_words::{port_key, type_name};
pub use self::subscription::AGENT;
pub use self::to_native::convert_file;
pub(super) use self::to_native::{RuleLines, rule_lines};
use crate::read::json::{JsonValue, Node};
use crate::read::json_fields::JsonReport;
use crate::read::kinds::{self, Typing, ValueKind, WrongKind};
use crate::read::loaded::Loaded;
use crate::read::source::Source;
use crate::read::value::Problem;
use crate::read::yaml;
use crate::read::yaml_access;
use crate::rulesets;

/// Longest file, and longest document of proxies, in bytes.
pub const MAX_LEN: usize = yaml::LARGE.len;

/// Keys by which a mapping is known as a file of this family.
const MARKS: [&str; 6] =
    ["proxies", "proxy-groups", "proxy-providers", "rules", "mixed-port", "external-controller"];

/// The file in the home folder that keeps the members that people choose.
const CHOICES: &str = "adit-choices.json";

/// Networks of `GEOIP,lan`.
const LAN: [&str; 12] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
    "0.0.0.0/32",
    "::/128",
    "127.0.0.0/8",
    "::1/128",
    "224.0.0.0/4",
    "ff00::/8",
    "169.254.0.0/16",
    "fe80::/10",
];

/// A file that was read.
#[derive(Debug, Clone)]
pub struct ClashSetup {
    /// The configuration.
    pub config: Config,
    /// Remarks; never an error.
    pub diagnostics: Diagnostics,
    /// Errors that keep it from running, though its rules can be explained.
    pub refused: Diagnostics,
    /// Databases that are fetched before it runs. Their lists are empty.
    pub missing: Vec<Missing>,
    /// The line of each rule of the configuration; `None` for one that stands for no line.
    pub origins: Vec<Option<RuleOrigin>>,
    /// Name servers of plain DNS, in order.
    pub name_servers: Vec<SocketAddr>,
    /// The member that each group takes at first.
    leaves: Map<String, Box<str>>,
    /// Why no rule takes part, by inbound; all inbounds in modes other than `rule`.
    fixed: Map<Tag, (&'static str, Box<str>)>,
    /// The same for all inbounds.
    mode: Option<(&'static str, Box<str>)>,
}

impl ClashSetup {
    /// A target with the member behind it, if it is a group: `Proxy[p-ss]`.
    pub fn chain(&self, target: &str) -> String {
        match self.leaves.get(target) {
            Some(leaf) => format!("{target}[{leaf}]"),
            None => target.to_owned(),
        }
    }

    /// The reason and the target of a request that no rule decided.
    pub fn unmatched(&self, inbound: &str) -> (&'static str, &str) {
        let found = self.fixed.get(inbound).or(self.mode.as_ref());
        found.map_or(("no rule matched", proxy::DIRECT), |(why, target)| (*why, &**target))
    }

    /// The configuration for running.
    ///
    /// # Errors
    /// [`ClashSetup::refused`] and [`ClashSetup::missing`] with the remarks.
    pub fn run(self) -> Result<Loaded, Diagnostics> {
        let mut found = self.diagnostics;
        found.append(self.refused);
        self.missing.into_iter().for_each(|missing| found.push(missing.error));
        Loaded::conclude(self.config, found)
    }

    /// The configuration as it is shown and checked: databases may be missing that are fetched before it runs.
    ///
    /// # Errors
    /// [`ClashSetup::refused`] with the remarks.
    pub fn look(self) -> Result<Loaded, Diagnostics> {
        Self { missing: Vec::new(), ..self }.run()
    }
}

/// Whether a text is a file of this family.
pub fn is_clash(text: &str) -> bool {
    text.lines().any(|line| {
        let Some((key, _)) = line.trim_start_matches('\u{feff}').split_once(':') else { return false };
        MARKS.contains(&key.trim_end().trim_matches(['"', '\'']))
    })
}

/// A rule's target.
#[derive(Debug, Clone)]
struct Target {
    verdict: Verdict,
    /// Datagrams take it too.
    udp: bool,
    /// The member of a group that is taken at first.
    leaf: Option<Box<str>>,
}

/// Everything that is gathered while a file is read.
struct Context<'a> {
    source: &'a Source<'a>,
    home: &'a Path,
    guard: &'a Guard,
    report: JsonReport<'a>,
    refused: Diagnostics,
    lists: &'a mut Map<Tag, Arc<Entries>>,
    providers: Map<String, ProviderMatchers>,
    targets: Map<String, Target>,
    /// Types of entries, as they are written.
    kinds: Map<String, String>,
    /// Targets that have the rules asked once more: the list, which is empty for the main one, and the mark.
    rematches: Map<String, (String, Option<Box<str>>)>,
    /// Providers of both kinds.
    listed: Vec<model::Provider>,
    /// Names of groups, which no entry of a provider takes.
    groups: BTreeSet<String>,
    /// Plugins that entries of providers may run.
    plugins: Vec<String>,
    /// Keys without effect that do not change the way of traffic, with their places.
    without_effect: Vec<(usize, String)>,
    /// The agent of downloads.
    agent: String,
    /// Lists that rules name, for which databases are read at the end.
    wishes: geo::Wishes,
    /// The part of the file that is being read.
    reading: geo::Reading,
    /// Name servers that no proxy is written for are reached as the rules say.
    respects_rules: bool,
    /// The place of `dns.fallback`, if it asks for the country of addresses.
    fallback: Option<usize>,
}

impl<'a> Context<'a> {
    fn new(source: &'a Source<'a>, home: &'a Path, lists: &'a mut Map<Tag, Arc<Entries>>) -> Self {
        const LOCAL: &Guard =
            &Guard { folders: Vec::new(), is_off: false, is_remote: false, plugins: Vec::new() };
        Self {
            source,
            home,
            guard: LOCAL,
            report: JsonReport::new(source),
            refused: Diagnostics::new(),
            lists,
            providers: Map::new(),
            targets: proxy::built_in(),
            kinds: Map::new(),
            rematches: Map::new(),
            listed: Vec::new(),
            groups: BTreeSet::new(),
            plugins: Vec::new(),
            without_effect: Vec::new(),
            agent: String::new(),
            wishes: geo::Wishes::default(),
            reading: geo::Reading::default(),
            respects_rules: false,
            fallback: None,
        }
    }
}

impl Context<'_> {
    fn error(&mut self, at: usize, path: impl Into<String>, problem: impl Into<String>) {
        self.report.error(at, path, Problem::new(problem));
    }

    fn remark(&mut self, at: usize, path: impl Into<String>, problem: impl Into<String>, hint: &str) {
        let problem = Problem::new(problem);
        let problem = if hint.is_empty() { problem } else { problem.hint(hint) };
        self.report.warning(at, path, problem);
    }

    /// An error that keeps the file from running.
    fn refuse(&mut self, at: usize, path: impl Into<String>, problem: impl Into<String>) {
        let found = Diagnostic::error(&self.source.file, path, problem);
        self.refused.push(found.at(self.source.locate(at)));
    }

    fn place(&self, at: usize) -> FileLine {
        let (line, column) = self.source.locate(at);
        let short = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        FileLine { file: Arc::clone(&self.source.file), line: short(line), column: short(column) }
    }

    /// A key at the top of the file is being read.
    fn read_key(&mut self, root: &JsonValue, key: &str) {
        let found = yaml_access::members(root).iter().find(|member| member.key == key);
        let at = found.map_or(0, |member| member.at);
        self.reading = geo::Reading { path: key.to_owned(), item: None, at };
    }

    fn target(&self, name: &str) -> Option<&Target> {
        self.targets.get(name)
    }

    /// The condition of a rule provider.
    fn provider(&self, name: &str, params: Params) -> Result<Matcher, String> {
        let provider = self.providers.get(name);
        provider.ok_or_else(|| format!("rule set [{name}] not found"))?.matcher(params)
    }

    /// The condition of a list of `GeoSite.dat`.
    fn site(&mut self, payload: &str) -> Matcher {
        let payload = payload.to_lowercase();
        let (code, is_inverted) = match payload.strip_prefix('!') {
            Some(code) => (code, true),
            None => (&*payload, false),
        };
        let inside = Matcher::Set(vec![self.site_list(code)], Resolve::No);
        if !is_inverted {
            return inside;
        }
        let named = Matcher::Fact(Fact::Named);
        Matcher::And(vec![named, Matcher::Not(Box::new(inside))])
    }

    /// The list of a code of `GeoSite.dat`.
    fn site_list(&mut self, code: &str) -> Tag {
        let code = code.to_lowercase();
        let tag = format!("geosite {code}").into();
        let reading = &self.reading;
        self.wishes.sites.entry(code).or_insert_with(|| reading.wish());
        tag
    }

    /// The list of a country or another code of addresses.
    fn country(&mut self, code: &str) -> Tag {
        let tag: Tag = format!("geoip {code}").into();
        if code == "lan" {
            let mut entries = Entries::default();
            let networks = LAN.iter().filter_map(|text| Cidr::parse(text));
            networks.for_each(|network| entries.add_range(network.range()));
            self.lists.entry(tag.clone()).or_insert_with(|| Arc::new(entries));
        } else {
            let reading = &self.reading;
            self.wishes.countries.entry(code.to_owned()).or_insert_with(|| reading.wish());
        }
        tag
    }

    /// The list of an autonomous system.
    fn number(&mut self, number: u32) -> Tag {
        let reading = &self.reading;
        self.wishes.numbers.entry(number.to_string()).or_insert_with(|| reading.wish());
        format!("asn {number}").into()
    }
}

/// Reads a file; `home` is the folder of its lists and databases.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(file: &str, text: &str, home: &Path) -> Result<ClashSetup, Diagnostics> {
    load_with(file, text, home, false)
}

/// The same, with `GeoIP.dat` in the place of a database if `geodata` is set.
///
/// # Errors
/// As [`load`].
pub fn load_with(file: &str, text: &str, home: &Path, geodata: bool) -> Result<ClashSetup, Diagnostics> {
    load_over(file, text, home, geodata, &[])
}

/// The same, with these values in the place of those of keys at the top of the file.
///
/// # Errors
/// As [`load`].
pub fn load_over(
    file: &str,
    text: &str,
    home: &Path,
    geodata: bool,
    overlay: &[(&str, &str)],
) -> Result<ClashSetup, Diagnostics> {
    load_guarded(file, text, home, geodata, overlay, &Guard::default())
}

/// The same, with a guard of the files that it names.
///
/// # Errors
/// As [`load`].
pub fn load_guarded(
    file: &str,
    text: &str,
    home: &Path,
    geodata: bool,
    overlay: &[(&str, &str)],
    guard: &Guard,
) -> Result<ClashSetup, Diagnostics> {
    let source = Source::new(file, text);
    let mut root = yaml::parse_within(&source, 0..text.len(), yaml::LARGE)?;
    controller::lay_over(&mut root, overlay);
    if !matches!(root.node, Node::Object(_)) {
        return Err(Diagnostic::error(&source.file, "", "expected the keys of a configuration").into());
    }
    let mut lists = Map::new();
    let mut context = Context::new(&source, home, &mut lists);
    for wrong in kinds::settle(&mut root, &ValueKind::Map(tables::ROOT), Typing::Loose, "") {
        context.error(wrong.at, wrong.path, wrong.problem);
    }
    context.guard = guard;
    context.plugins = if guard.is_remote { guard.plugins.clone() } else { allowed_plugins(&root) };
    context.agent = subscription::agent(&root);
    let mut setup = read(&mut context, &root);
    setup.missing = geo::read(&mut context, &root, geodata);
    let mut found = conclude(context, &mut setup);
    found.sort();
    if found.has_errors() {
        return Err(found);
    }
    setup.config.lists = lists;
    setup.diagnostics = found;
    Ok(setup)
}

fn allowed_plugins(root: &JsonValue) -> Vec<String> {
    yaml_access::texts_of(root, "plugins-allowed").into_iter().map(|(name, _)| name.to_owned()).collect()
}

/// The plugins that a file of a person allows, for texts that clients put in its place.
pub fn plugins_of(text: &str) -> Vec<String> {
    let source = Source::new("", text);
    yaml::parse_within(&source, 0..text.len(), yaml::LARGE)
        .map_or_else(|_| Vec::new(), |root| allowed_plugins(&root))
}

/// The findings; what was gathered beside them becomes part of the setup.
fn conclude(context: Context<'_>, setup: &mut ClashSetup) -> Diagnostics {
    let Context { report, refused, listed, .. } = context;
    setup.config.providers = listed;
    setup.refused.append(refused);
    report.found
}

fn read(context: &mut Context<'_>, root: &JsonValue) -> ClashSetup {
    unsupported::check(context, root);
    let outbounds = targets(context, root);
    let providers = yaml_access::get(root, "rule-providers").map(yaml_access::members).unwrap_or_default();
    for member in providers {
        let path = format!("rule-providers.{}", member.key);
        context.reading = geo::Reading { path, item: None, at: member.at };
        match provider::read(context, &member.key, &member.value) {
            Ok(found) => {
                context.providers.insert(member.key.clone(), found);
            }
            Err((key, problem)) => {
                let path = format!("rule-providers.{}", member.key);
                context.error(yaml_access::at(&member.value, key), path, format!("{key}: {problem}"));
            }
        }
    }
    let payloads = controller::payloads(root);
    let mut lists = rules::Lists::new();
    for member in yaml_access::get(root, "sub-rules").map(yaml_access::members).unwrap_or_default() {
        let path = format!("sub-rules[{}]", member.key);
        let parsed = rules::read(context, &path, yaml_access::items(&member.value));
        lists.insert(member.key.clone(), parsed);
    }
    let main = yaml_access::get(root, "rules").map(yaml_access::items).unwrap_or_default();
    let main = rules::read(context, "rules", main);
    let leaves =
        context.targets.iter().filter_map(|(name, target)| Some((name.clone(), target.leaf.clone()?)));
    let mut setup = ClashSetup {
        leaves: leaves.collect(),
        config: Config {
            outbounds,
            state: StateFile::Off,
            choices: choices(context, root),
            ..Config::default()
        },
        diagnostics: Diagnostics::new(),
        refused: Diagnostics::new(),
        missing: Vec::new(),
        origins: Vec::new(),
        name_servers: Vec::new(),
        fixed: Map::new(),
        mode: None,
    };
    unsupported::hosts(context, root, &mut setup);
    context.read_key(root, "dns");
    unsupported::dns(context, root, &mut setup);
    unsupported::find_program(context, root, &mut setup);
    context.read_key(root, "sniffer");
    setup.config.sniffer = sniffer::read(context, root);
    let mut flat = rules::Flat::default();
    ports::read(context, root, &mut setup, &mut flat, &lists);
    capture::read(context, root, &mut setup);
    unsupported::egress(context, root, &mut setup);
    unsupported::mode(context, root, &mut setup);
    if setup.mode.is_some() {
        flat.all(context);
    } else {
        flat.main(context, &main, &lists);
        flat.rematch_lists(context, &lists);
    }
    unsupported::remark_without_effect(context);
    (setup.config.rules, setup.origins) = (flat.rules, flat.origins);
    controller::read(context, root, &mut setup);
    if setup.config.controller.is_some() {
        let lines = rules::lines(&main);
        setup.config.facade = Some(Arc::new(controller::facade(root, &setup, lines, payloads)));
    }
    setup
}

/// The file that keeps the choices of people, unless the file says no.
fn choices(context: &Context<'_>, root: &JsonValue) -> Option<PathBuf> {
    let profile = yaml_access::get(root, "profile");
    let is_off = profile.is_some_and(|profile| yaml_access::is_off(profile, "store-selected"));
    (!is_off).then(|| context.home.join(CHOICES))
}

/// Digits of hex.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads proxies, their providers and groups as targets of rules; gives the outbounds.
fn targets(context: &mut Context<'_>, root: &JsonValue) -> Vec<Outbound> {
    let mut outbounds = proxy::built_in_outbounds();
    let (mut proxies, mut dead, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    let mut first_left_out = None;
    let items = yaml_access::get(root, "proxy-groups").map(yaml_access::items).unwrap_or_default();
    let names = items.iter().filter_map(|group| yaml_access::text_of(group, "name"));
    context.groups = names.chain([proxy::GLOBAL]).map(str::to_owned).collect();
    for (n, item) in
        yaml_access::get(root, "proxies").map(yaml_access::items).unwrap_or_default().iter().enumerate()
    {
        let path = format!("proxies[{n}]");
        match proxy::entry(context.source, item) {
            Err(WrongKind { at, path: key, problem }) => {
                let path = if key.is_empty() { path } else { format!("{path}.{key}") };
                context.error(at, path, problem);
            }
            Ok(entry) if context.targets.contains_key(&*entry.outbound.name) => {
                let problem = format!("proxy {} is the duplicate name", entry.outbound.name);
                context.error(item.at, path, problem);
            }
            Ok(entry) => {
                let is_rematch = entry.kind == proxy::REMATCH;
                if entry.why_dead().is_some() && !is_rematch {
                    dead.push(entry.clone());
                }
                if !entry.left_out.is_empty() {
                    first_left_out.get_or_insert(item.at);
                    left_out.push(entry.clone());
                }
                let name = entry.outbound.name.to_string();
                add_entry(context, entry, &mut outbounds);
                if is_rematch {
                    let text = |key: &str| yaml_access::text_of(item, key).filter(|text| !text.is_empty());
                    let list = text("target-sub-rule").unwrap_or_default();
                    let mark = text("target-rematch-name").map(Into::into);
                    context.rematches.insert(name.clone(), (list.to_owned(), mark));
                }
                proxies.push(name);
            }
        }
    }
    proxy::remark_dead(context, None, "proxies", &dead);
    proxy::remark_left_out(context, first_left_out.unwrap_or(0), "proxies", left_out.iter());
    let mut providers = Map::new();
    for member in yaml_access::get(root, "proxy-providers").map(yaml_access::members).unwrap_or_default() {
        let provided = subscription::read(context, &member.key, &member.value, &mut outbounds);
        providers.insert(member.key.clone(), provided);
    }
    let kinds = std::mem::take(&mut context.kinds);
    let unified = yaml_access::is_on(root, "unified-delay");
    let entries = group::GroupSources { proxies: &proxies, providers: &providers, kinds: &kinds, unified };
    let mut groups = Vec::new();
    for (n, item) in items.iter().enumerate() {
        groups.extend(group::group(context, item, format!("proxy-groups[{n}]"), &entries));
    }
    group::settle(context, &groups, &mut outbounds);
    group::global(context, &proxies, &groups, &mut outbounds);
    break_loops(context, &mut outbounds);
    outbounds
}

/// Outbounds that dial through a group which leads back to them are dead.
fn break_loops(context: &mut Context<'_>, outbounds: &mut [Outbound]) {
    if context.report.found.has_errors() {
        return;
    }
    if let Some(problem) = end_loops(outbounds) {
        context.remark(0, "proxies", problem, "");
    }
}

/// Puts dead ones in the place of outbounds that dial through what leads back to them; says so.
fn end_loops(outbounds: &mut [Outbound]) -> Option<String> {
    let looped = Config::looped(outbounds);
    let mut names = Vec::new();
    for outbound in outbounds.iter_mut().filter(|outbound| looped.contains(&outbound.name)) {
        let Some(through) = outbound.dial.through.clone().filter(|through| looped.contains(through)) else {
            continue;
        };
        let why = format!("its dialer-proxy leads back to it: {through}");
        let udp = outbound.says_datagrams();
        names.push(outbound.name.to_string());
        *outbound = proxy::ProxyEntry::dead(&outbound.name, "dialer-proxy", &why, udp).outbound;
    }
    let first = names.first()?;
    let others = names.len() - 1;
    Some(format!("{first} and {others} more are dead: its dialer-proxy leads back to it"))
}

/// Adds an entry, whose name is free, to the targets.
fn add_entry(context: &mut Context<'_>, entry: proxy::ProxyEntry, outbounds: &mut Vec<Outbound>) {
    let proxy::ProxyEntry { outbound, kind, udp, .. } = entry;
    let name = outbound.name.to_string();
    let verdict = Verdict::Outbound(outbound.name.clone());
    context.kinds.insert(name.clone(), kind);
    context.targets.insert(name, Target { verdict, udp, leaf: None });
    outbounds.push(outbound);
}

/// The number of entries or lines in a document of a provider that would be used; `home` is the folder of the
/// configuration.
///
/// # Errors
/// When it is no document of that kind, or nothing in it can be used: the one before is to be kept then.
pub fn check_document(provider: &model::Provider, home: &Path, bytes: &[u8]) -> Result<usize, String> {
    // Its lines would pass for names of hosts.
    let is_text = provider.list_kind() != model::ListKind::Database;
    if is_text && bytes.trim_ascii_start().starts_with(b"<") {
        return Err("a page of HTML in the place of a list".to_owned());
    }
    if bytes.trim_ascii().is_empty() {
        return Err("there is nothing in it".to_owned());
    }
    match &provider.kind {
        model::ProviderKind::Outbounds { .. } => {
            let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
            subscription::document(&provider.name, text, &[]).map(|(entries, _)| entries.len())
        }
        model::ProviderKind::Rules { behavior: rulesets::SET, format, .. } => rulesets::check(format, bytes),
        model::ProviderKind::Rules { behavior, format, .. } => {
            let source = Source::new(&provider.name, "");
            let mut lists = Map::new();
            let mut context = Context::new(&source, home, &mut lists);
            provider::check(&mut context, behavior, format, bytes)
        }
        model::ProviderKind::Database { database, lists } => geo::check(*database, lists, bytes),
    }
}

/// An address of a name server of plain DNS.
fn name_server(text: &str) -> Option<SocketAddr> {
    let text = text.split('#').next()?.strip_prefix("udp://").unwrap_or(text);
    let alone = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 53));
    text.parse().ok().or_else(alone)
}

/// Fuzz target: for any text, findings lie inside it, and a file that is read has an origin per rule.
#[doc(hidden)]
pub fn fuzz_clash(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match load("fuzz", &text, Path::new("/nonexistent")) {
        Ok(setup) => {
            crate::read::loaded::assert_inside(&text, &setup.diagnostics);
            assert_eq!(setup.config.rules.len(), setup.origins.len());
        }
        Err(found) => crate::read::loaded::assert_inside(&text, &found),
    }
    // The same text as the document of a provider.
    match convert_file("fuzz", &text, Path::new("/nonexistent")) {
        Ok(loaded) => {
            crate::read::loaded::assert_inside(&text, &loaded.diagnostics);
            let toml = crate::adit_toml::to_toml(&loaded.config);
            assert!(crate::adit_toml::parse("again.toml", &toml).is_ok());
        }
        Err(found) => crate::read::loaded::assert_inside(&text, &found),
    }
    if let Ok((entries, _)) = subscription::document("fuzz", &text, &[]) {
        assert!(!entries.is_empty());
    }
}
