//! `proxy-providers` and their documents: lists of proxies as YAML, as links, or as base64 of links.
//!
//! ```text
//! document := mapping with `proxies`            entries as in the file itself
//!           | line with `scheme://` ...         a link on each line
//!           | base64 of such lines
//! ```
//!
//! An entry that cannot be read costs that entry. One of a type that adit does not speak stays, dead. A plugin runs only if
//! it is built in, or if the file's own `plugins-allowed` names it; never by a path.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use adit_model::files;
use adit_model::map::Map;
use adit_model::{
    ClientCover, DelayTest, Download, MAX_DOCUMENT, Outbound, OutboundProtocol, Provider, ProviderKind,
    ProviderSource, Secret, Tag, Transports, Verify,
};
use base64::Engine as _;

use super::group::{self, Provided};
use super::proxy::{self, ProxyEntry};
use super::{Context, guard, hex};
use crate::import;
use crate::read::json::{JsonValue, Node};
use crate::read::kinds::WrongKind;
use crate::read::source::{self, Source};
use crate::read::yaml_access;
use crate::read::{value, yaml};
use crate::shadowsocks::sip002::decode_percent;

/// Most entries of one document.
const MAX_ENTRIES: usize = 20_000;
/// The program that servers of subscriptions take us for, if the file does not say another: they choose the form of the
/// document by it.
pub const AGENT: &str = "clash.meta/v1.19.13";
/// The test of a provider's members, without keys.
const CHECK_INTERVAL: Duration = Duration::from_secs(300);

/// Reads a provider: adds its entries to `outbounds`.
pub(crate) fn read(
    context: &mut Context<'_>,
    name: &str,
    value: &JsonValue,
    outbounds: &mut Vec<Outbound>,
) -> Provided {
    let path = format!("proxy-providers.{name}");
    let test = yaml_access::get(value, "health-check").filter(|check| yaml_access::is_on(check, "enable"));
    let test = test.map(|check| {
        let default = DelayTest { interval: Some(CHECK_INTERVAL), ..DelayTest::default() };
        group::test(context, check, &format!("{path}.health-check"), default)
    });
    let (origin, entries, problem) = match contents(context, value, &path) {
        Ok(found) => found,
        Err((key, problem)) => {
            context.error(yaml_access::at(value, key), path, format!("{key}: {problem}"));
            return Provided { names: Vec::new(), test };
        }
    };
    if let Some(problem) = &problem {
        let key = match origin.0 {
            ProviderSource::Inline => "payload",
            ProviderSource::File | ProviderSource::Http(_) => "path",
        };
        context.remark(yaml_access::at(value, key), path.clone(), problem.to_string(), "");
    }
    let entries = selected(context, value, &path, entries);
    proxy::remark_dead(context, Some(value.at), &path, &entries);
    proxy::remark_left_out(context, value.at, &path, entries.iter());
    let names = add(context, name, value.at, &path, entries, outbounds);
    let kind = ProviderKind::Outbounds {
        members: names.iter().map(|name| name.as_str().into()).collect(),
        test: test.clone(),
    };
    let (source, file) = origin;
    let problem = problem.map(Into::into);
    context.listed.push(Provider { name: name.into(), kind, source, path: file, problem });
    Provided { names, test }
}

/// The place of a provider, its entries, and the problem with its document.
type Contents = ((ProviderSource, Option<PathBuf>), Vec<ProxyEntry>, Option<String>);

fn contents(context: &mut Context<'_>, value: &JsonValue, path: &str) -> Result<Contents, WrongKey> {
    let allowed = context.plugins.clone();
    match yaml_access::text_of(value, "type") {
        Some("inline") => {
            let items = yaml_access::get(value, "payload").map(yaml_access::items).unwrap_or_default();
            let (entries, bad) = from_values(context.source, items, &allowed);
            Ok(((ProviderSource::Inline, None), entries, bad))
        }
        Some(kind @ ("file" | "http")) => {
            let ProviderFile { path: file, is_outside } = file_of(context, "proxies", kind, value, path)?;
            let source = match kind {
                "http" => ProviderSource::Http(Box::new(download(context, value, path)?)),
                _ => ProviderSource::File,
            };
            let place = (source, Some(file.clone()));
            let is_copy = kind == "http";
            if is_copy && !files::has_copy(&file) {
                let problem = "there is no copy yet: it has no members until it has been fetched";
                return Ok((place, Vec::new(), Some(problem.to_owned())));
            }
            let read = if is_copy { source::read_copy } else { source::read_regular };
            let text = match read(&file, super::MAX_LEN) {
                Ok(text) => text,
                Err(found) => {
                    return Ok((place, Vec::new(), Some(format!("{}: {}", file.display(), found.problem))));
                }
            };
            match document(&file.to_string_lossy(), &text, &allowed) {
                Ok((entries, bad)) => Ok((place, entries, bad.map(|bad| is_outside.shown(bad)))),
                Err(problem) => {
                    let problem = format!("{}: {}", file.display(), is_outside.shown(problem));
                    Ok((place, Vec::new(), Some(problem)))
                }
            }
        }
        other => {
            let problem = format!("unsupported vehicle type: {}", value::excerpt(other.unwrap_or("none")));
            Err(("type", problem))
        }
    }
}

/// A key that is wrong, and its problem.
pub(super) type WrongKey = (&'static str, String);

/// The file of a provider.
pub(super) struct ProviderFile {
    pub(super) path: PathBuf,
    pub(super) is_outside: OutsideHome,
}

/// Whether a file lies outside of the home folder, so that messages do not show its text: it may be anybody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutsideHome(pub(crate) bool);

impl OutsideHome {
    /// A problem with the text of the file; the number of the line or entry alone if the text is not shown.
    pub(super) fn shown(self, problem: String) -> String {
        if !self.0 {
            return problem;
        }
        let first =
            problem.rsplit_once("the first: ").map_or((None, &*problem), |(head, first)| (Some(head), first));
        let (head, text) = first;
        let mut words = text.split([' ', ':']);
        let place = match (words.next(), words.next().and_then(|number| number.parse::<usize>().ok())) {
            (Some(word @ ("line" | "proxy")), Some(number)) => Some(format!("{word} {number}")),
            _ => None,
        };
        match (head, place) {
            (Some(head), Some(place)) => format!("{head}the first: {place}"),
            (Some(head), None) => head.trim_end_matches(['\u{20}', ';']).to_owned(),
            (None, Some(place)) => format!("{place} cannot be read"),
            (None, None) => "no list of this kind".to_owned(),
        }
    }
}

/// The file of a provider, and whether it lies outside of the home folder.
///
/// # Errors
/// When a file that is written would lie outside of the home folder, or would take the place of the configuration; when a
/// client names a file outside.
pub(super) fn file_of(
    context: &mut Context<'_>,
    folder: &str,
    kind: &str,
    value: &JsonValue,
    at: &str,
) -> Result<ProviderFile, WrongKey> {
    let path = path_of(context, folder, kind, value)?;
    let is_outside = !context.guard.holds(context.home, &path);
    if is_outside && context.guard.is_remote {
        let home = context.home.display();
        return Err(("path", format!("path is not subpath of home directory or SAFE_PATHS: {home}")));
    }
    if kind == "http" && guard::is_same(&path, Path::new(&*context.source.file)) {
        return Err((
            "path",
            "path is that of the configuration itself, which a copy would replace".to_owned(),
        ));
    }
    let is_outside = is_outside && kind == "file";
    if is_outside {
        let problem = format!("{} lies outside of the home folder", path.display());
        let hint = "messages do not show its text; SAFE_PATHS names more folders";
        context.remark(value.at, format!("{at}.path"), problem, hint);
    }
    Ok(ProviderFile { path, is_outside: OutsideHome(is_outside) })
}

/// The path of a provider's file.
///
/// # Errors
/// When a file that is written would lie outside of the home folder.
fn path_of(context: &Context<'_>, folder: &str, kind: &str, value: &JsonValue) -> Result<PathBuf, WrongKey> {
    let text = match (kind, yaml_access::text_of(value, "path"), yaml_access::text_of(value, "url")) {
        (_, Some(path), _) => PathBuf::from(path),
        ("http", None, Some(url)) => Path::new(folder).join(hex(&adit_proto::crypto::md5(&[url.as_bytes()]))),
        _ => return Err(("path", "path is missing".to_owned())),
    };
    let path = context.home.join(&text);
    let has_parent = text.components().any(|component| matches!(component, Component::ParentDir));
    let leaves = has_parent || !(path.starts_with(context.home) || context.guard.holds(context.home, &path));
    if kind == "http" && leaves {
        return Err(("path", format!("path is not subpath of home directory: {}", text.display())));
    }
    Ok(path)
}

/// The document of a provider that is fetched.
///
/// # Errors
/// The problem with its keys.
pub(super) fn download(context: &Context<'_>, value: &JsonValue, path: &str) -> Result<Download, WrongKey> {
    let url = yaml_access::text_of(value, "url").ok_or_else(|| ("url", "url is missing".to_owned()))?;
    let headers =
        proxy::fields(yaml_access::get(value, "header").map(yaml_access::members).unwrap_or_default());
    let mut headers = headers.map_err(|problem| ("header", problem))?;
    let Address { url, headers: own } = address(url).map_err(|problem| ("url", problem))?;
    headers.extend(own);
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("User-Agent")) {
        headers.push(("User-Agent".into(), Secret::new(&*context.agent)));
    }
    let limit = yaml_access::number_of(value, "size-limit").and_then(|limit| usize::try_from(limit).ok());
    let most = if path.starts_with("proxy") { super::MAX_LEN } else { MAX_DOCUMENT };
    let interval = yaml_access::number_of(value, "interval").filter(|seconds| *seconds > 0);
    Ok(Download {
        url,
        interval: interval.map(|seconds| Duration::from_secs(seconds.clamp(1, 365 * 86_400))),
        through: yaml_access::text_of(value, "proxy").filter(|name| !name.is_empty()).map(Tag::from),
        headers,
        max_len: limit.filter(|limit| *limit > 0).unwrap_or(most).min(most),
    })
}

/// The address of a document, and the fields of a request that stand in it.
pub(super) struct Address {
    pub(super) url: Secret,
    pub(super) headers: Vec<(Box<str>, Secret)>,
}

/// Reads an address of HTTP or HTTPS. A user and a password in it are those of HTTP (RFC 7617).
///
/// # Errors
/// The problem with it.
pub(super) fn address(url: &str) -> Result<Address, String> {
    let (scheme, rest) = url.split_once("://").ok_or("url: not an address")?;
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (mut plain, mut headers) = (url.to_owned(), Vec::new());
    if let Some((user, host)) = authority.rsplit_once('@') {
        let pair = base64::engine::general_purpose::STANDARD.encode(decode_percent(user).as_bytes());
        headers.push(("Authorization".into(), Secret::new(format!("Basic {pair}"))));
        plain = format!("{scheme}://{host}{tail}");
    }
    adit_model::WebUrl::parse(&plain).map_err(|error| format!("url: {error}"))?;
    Ok(Address { url: Secret::new(plain), headers })
}

/// The agent of downloads: that of the file, or one that servers of subscriptions know.
pub(super) fn agent(root: &JsonValue) -> String {
    let given = yaml_access::text_of(root, "global-ua").filter(|agent| !agent.is_empty());
    given.unwrap_or(AGENT).chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(256).collect()
}

/// The entries of a document, and the problem with those that are left out.
///
/// # Errors
/// When there is no entry in it.
pub(super) fn document(
    file: &str,
    text: &str,
    allowed: &[String],
) -> Result<(Vec<ProxyEntry>, Option<String>), String> {
    let text = text.trim_start_matches('\u{feff}');
    let source = Source::new(file, text);
    let is_mapping =
        text.lines().any(|line| line.starts_with("proxies:") || line.starts_with("\"proxies\":"))
            || text.trim_start().starts_with('{');
    let (entries, bad) = if is_mapping {
        let root =
            yaml::parse_within(&source, 0..text.len(), yaml::LARGE).map_err(|found| match found.line {
                0 => found.problem,
                line => format!("line {line}: {}", found.problem),
            })?;
        let items = yaml_access::get(&root, "proxies").map(yaml_access::items).unwrap_or_default();
        from_values(&source, items, allowed)
    } else {
        from_links(text, allowed)
    };
    if entries.is_empty() {
        return Err(bad.unwrap_or_else(|| "file doesn't have any proxy".to_owned()));
    }
    Ok((entries, bad))
}

/// Entries that were left out.
#[derive(Default)]
struct Bad {
    count: usize,
    first: Option<String>,
}

impl Bad {
    fn note(&mut self, entry: String) {
        self.count += 1;
        self.first.get_or_insert(entry);
    }

    fn text(self) -> Option<String> {
        let entries = if self.count == 1 { "entry is" } else { "entries are" };
        self.first.map(|first| format!("{} {entries} left out; the first: {first}", self.count))
    }
}

fn from_values(
    source: &Source<'_>,
    items: &[JsonValue],
    allowed: &[String],
) -> (Vec<ProxyEntry>, Option<String>) {
    let (mut entries, mut bad, mut seen) = (Vec::new(), Bad::default(), BTreeSet::new());
    for (n, item) in items.iter().enumerate() {
        match proxy::entry(source, item) {
            _ if entries.len() >= MAX_ENTRIES => bad.note(format!("proxy {n}: more than {MAX_ENTRIES}")),
            Err(WrongKind { path, problem, .. }) if path.is_empty() => {
                bad.note(format!("proxy {n}: {problem}"))
            }
            Err(WrongKind { path, problem, .. }) => bad.note(format!("proxy {n}: {path}: {problem}")),
            Ok(entry) if !seen.insert(entry.outbound.name.clone()) => {
                let name = value::excerpt(&entry.outbound.name);
                bad.note(format!("proxy {n}: the name is taken: {name}"));
            }
            Ok(entry) => entries.push(without_plugin(entry, allowed)),
        }
    }
    (entries, bad.text())
}

/// The same entry, dead if it asks for a program that the user has not allowed.
fn without_plugin(entry: ProxyEntry, allowed: &[String]) -> ProxyEntry {
    let plugin = if let OutboundProtocol::Shadowsocks(client) = &entry.outbound.protocol {
        match &client.cover {
            ClientCover::Plugin(plugin) => Some(plugin),
            ClientCover::Obfs(_) => None,
        }
    } else if let OutboundProtocol::Ssr(client) = &entry.outbound.protocol {
        client.plugin.as_ref()
    } else {
        None
    };
    let Some(program) = plugin.map(|plugin| plugin.program.to_string()) else { return entry };
    if !program.contains('/') && allowed.contains(&program) {
        return entry;
    }
    let why = format!("plugin {} is neither built in nor in plugins-allowed", value::excerpt(&program));
    ProxyEntry::dead(&entry.outbound.name, &entry.kind, &why, entry.udp)
}

fn from_links(text: &str, allowed: &[String]) -> (Vec<ProxyEntry>, Option<String>) {
    let decoded;
    let lines = if text.contains("://") {
        text
    } else {
        match decode(text) {
            Some(inside) => {
                decoded = inside;
                &*decoded
            }
            None => return (Vec::new(), Some("neither YAML with `proxies` nor links nor base64".to_owned())),
        }
    };
    let (mut entries, mut bad, mut seen) = (Vec::new(), Bad::default(), BTreeSet::new());
    let mut names = UniqueNames::default();
    for (n, line) in lines.lines().map(str::trim).enumerate() {
        let Some((scheme, _)) = line.split_once("://") else { continue };
        if line.starts_with('#') {
            continue;
        }
        if entries.len() >= MAX_ENTRIES {
            bad.note(format!("line {}: more than {MAX_ENTRIES}", n + 1));
            continue;
        }
        let found = match scheme.to_ascii_lowercase().as_str() {
            "ss" | "ssr" | "snell" => import::one_link(line).map(|outbound| {
                let kind = scheme.to_ascii_lowercase();
                let entry = ProxyEntry { outbound, kind, udp: true, left_out: Vec::new(), at: 0 };
                without_plugin(entry, allowed)
            }),
            other => Ok(foreign(other, line)),
        };
        match found {
            Err(problem) => bad.note(format!("line {}: {problem}", n + 1)),
            Ok(mut entry) => {
                entry.outbound.name = names.free(&entry.outbound.name, |name| seen.contains(name)).into();
                seen.insert(entry.outbound.name.to_string());
                entries.push(entry);
            }
        }
    }
    (entries, bad.text())
}

/// A link of a type that adit does not speak.
fn foreign(scheme: &str, line: &str) -> ProxyEntry {
    let kind = match scheme {
        "hy2" | "hysteria2" => "hysteria2",
        "socks" | "socks5" => "socks5",
        other => other,
    };
    let fragment = line.rsplit_once('#').map(|(_, name)| decode_percent(name).to_string());
    let inside = || {
        // vmess: base64 of JSON, with the name under `ps`.
        let text = decode(line.split_once("://")?.1)?;
        let at = text.find("\"ps\"")?;
        let rest = text[at + 4..].trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        Some(rest.split('"').next()?.to_owned())
    };
    let name = fragment.or_else(inside).filter(|name| !name.trim().is_empty());
    let name: String =
        name.unwrap_or_else(|| kind.to_owned()).chars().filter(|c| !c.is_control()).take(128).collect();
    let why = format!("adit does not read links of {}", value::excerpt(kind));
    ProxyEntry::dead(&name, kind, &why, true)
}

/// Numbers behind names that are taken.
#[derive(Default)]
pub(super) struct UniqueNames(Map<String, usize>);

impl UniqueNames {
    /// The name, or one with a number behind it that is free. No number is tried twice, so that a document with one name
    /// alone costs no more than another.
    pub(super) fn free(&mut self, name: &str, is_taken: impl Fn(&str) -> bool) -> String {
        if !is_taken(name) {
            return name.to_owned();
        }
        let next = self.0.entry(name.to_owned()).or_insert(0);
        loop {
            *next += 1;
            let numbered = format!("{name}-{next:02}");
            if !is_taken(&numbered) {
                return numbered;
            }
        }
    }
}

/// Base64 of either alphabet, with or without padding, over any number of lines.
pub(super) fn decode(text: &str) -> Option<String> {
    let bare: String = text.chars().filter(|c| !c.is_whitespace() && *c != '=').collect();
    let bare = bare.replace('-', "+").replace('_', "/");
    let bytes = base64::engine::general_purpose::STANDARD_NO_PAD.decode(bare).ok()?;
    String::from_utf8(bytes).ok()
}

/// The entries that the provider's filters leave, with the keys of `override`.
fn selected(
    context: &mut Context<'_>,
    value: &JsonValue,
    path: &str,
    mut entries: Vec<ProxyEntry>,
) -> Vec<ProxyEntry> {
    let had = !entries.is_empty();
    if let Some(filter) = yaml_access::text_of(value, "filter").filter(|filter| !filter.is_empty()) {
        let at = yaml_access::at(value, "filter");
        let all = group::regexes(context, at, &format!("{path}.filter"), filter);
        entries
            .retain(|entry| all.iter().any(|regex| regex.is_match(&*entry.outbound.name).unwrap_or(false)));
    }
    if let Some(filter) = yaml_access::text_of(value, "exclude-filter").filter(|filter| !filter.is_empty()) {
        let at = yaml_access::at(value, "exclude-filter");
        let all = group::regexes(context, at, &format!("{path}.exclude-filter"), filter);
        entries
            .retain(|entry| !all.iter().any(|regex| regex.is_match(&*entry.outbound.name).unwrap_or(true)));
    }
    if let Some(kinds) = yaml_access::text_of(value, "exclude-type").filter(|kinds| !kinds.is_empty()) {
        let kinds: Vec<String> = kinds.split('|').map(|kind| kind.trim().to_lowercase()).collect();
        entries.retain(|entry| !kinds.contains(&entry.kind.to_lowercase()));
    }
    if had && entries.is_empty() {
        let problem = "doesn't match any proxy, please check your filter";
        context.remark(value.at, path, problem, "");
    }
    let through = yaml_access::text_of(value, "dialer-proxy").map(str::to_owned);
    let overrides = overrides(context, value, path, through);
    entries.into_iter().map(|entry| overrides.apply(entry)).collect()
}

/// The keys of `override`.
#[derive(Default)]
struct Overrides {
    prefix: String,
    suffix: String,
    names: Vec<(fancy_regex::Regex, String)>,
    udp: Option<bool>,
    fast_open: Option<bool>,
    insecure: bool,
    interface: Option<Box<str>>,
    mark: Option<u32>,
    family: Option<adit_model::AddressFamilies>,
    through: Option<String>,
    /// A key that adit cannot obey: all entries are dead.
    dead: Option<String>,
}

fn overrides(context: &mut Context<'_>, value: &JsonValue, path: &str, through: Option<String>) -> Overrides {
    use adit_model::AddressFamilies;
    let mut all = Overrides { through, ..Overrides::default() };
    let written = yaml_access::get(value, "override").map(yaml_access::members).unwrap_or_default();
    for member in written.iter().filter(|member| member.value.node != Node::Null) {
        let at = format!("{path}.override.{}", member.key);
        let text = yaml_access::text(&member.value).unwrap_or_default();
        let is_on = text == "true" || yaml_access::is_on(&member.value, "enabled");
        match member.key.replace('_', "-").as_str() {
            "additional-prefix" => all.prefix = text.to_owned(),
            "additional-suffix" => all.suffix = text.to_owned(),
            "proxy-name" => {
                for item in yaml_access::items(&member.value) {
                    let pattern = yaml_access::text_of(item, "pattern").unwrap_or_default();
                    let target = yaml_access::text_of(item, "target").unwrap_or_default();
                    let built = group::regexes(context, item.at, &at, pattern);
                    all.names.extend(built.into_iter().map(|regex| (regex, target.to_owned())));
                }
            }
            "udp" => all.udp = Some(is_on),
            "tfo" => all.fast_open = Some(is_on),
            "skip-cert-verify" => all.insecure = is_on,
            "interface-name" if text.is_empty() => {}
            "interface-name" => match value::interface(text) {
                Ok(name) => all.interface = Some(name),
                Err(problem) => context.error(member.value.at, at, problem.text),
            },
            "routing-mark" => match text.parse() {
                Ok(mark) => all.mark = Some(mark),
                Err(_) => context.error(member.value.at, at, "no number up to 4294967295"),
            },
            "ip-version" => match text {
                "dual" => all.family = Some(AddressFamilies::Any),
                "ipv4" => all.family = Some(AddressFamilies::V4Only),
                "ipv6" => all.family = Some(AddressFamilies::V6Only),
                "ipv4-prefer" => all.family = Some(AddressFamilies::PreferV4),
                "ipv6-prefer" => all.family = Some(AddressFamilies::Any),
                _ => {
                    let problem = "no version: dual, ipv4, ipv6, ipv4-prefer or ipv6-prefer";
                    context.error(member.value.at, at, problem);
                }
            },
            "dialer-proxy" => all.through = Some(text.to_owned()),
            "udp-over-tcp" | "smux" if is_on => {
                all.dead = Some(format!("override.{} is not spoken", member.key));
            }
            "udp-over-tcp" | "smux" => {}
            "mptcp" | "up" | "down" => context.without_effect.push((member.at, at)),
            _ => context.remark(member.at, at, "unknown key, left out", ""),
        }
    }
    all
}

impl Overrides {
    fn apply(&self, entry: ProxyEntry) -> ProxyEntry {
        let ProxyEntry { mut outbound, kind, mut udp, left_out, at } = entry;
        let mut name = outbound.name.to_string();
        for (regex, target) in &self.names {
            // An expression that takes too many steps changes nothing.
            if let Ok(other) = regex.try_replacen(&name, 0, target.as_str()) {
                name = other.into_owned();
            }
        }
        outbound.name = format!("{}{name}{}", self.prefix, self.suffix).into();
        udp = self.udp.unwrap_or(udp);
        if let Some(why) = &self.dead {
            return ProxyEntry::dead(&outbound.name, &kind, why, udp);
        }
        if let Some(udp) = self.udp {
            set_udp(&mut outbound.protocol, udp);
        }
        if self.insecure
            && let OutboundProtocol::Proxy(client) = &mut outbound.protocol
            && let Some(tls) = &mut client.tls
        {
            tls.verify = Verify::Nothing;
        }
        let dial = &mut outbound.dial;
        dial.fast_open = self.fast_open.unwrap_or(dial.fast_open);
        dial.family = self.family.unwrap_or(dial.family);
        dial.egress.interface = self.interface.clone().or_else(|| dial.egress.interface.take());
        dial.egress.mark = self.mark.or(dial.egress.mark);
        if let Some(through) = self.through.as_ref().filter(|through| !through.is_empty()) {
            dial.through = Some(through.as_str().into());
        }
        ProxyEntry { outbound, kind, udp, left_out, at }
    }
}

fn set_udp(protocol: &mut OutboundProtocol, udp: bool) {
    let both = if udp { Transports::Both } else { Transports::Tcp };
    #[expect(clippy::wildcard_enum_match_arm, reason = "others carry datagrams always or never")]
    match protocol {
        OutboundProtocol::Shadowsocks(client) => client.transports = both,
        OutboundProtocol::Ssr(client) => client.transports = both,
        OutboundProtocol::Snell(client) => client.udp = udp,
        OutboundProtocol::Proxy(client) => {
            if let adit_model::ProxyKind::Socks5 { udp: own } = &mut client.kind {
                *own = udp;
            }
        }
        OutboundProtocol::Refuse(adit_model::Refusal::Dead { udp: own, .. }) => *own = udp,
        _ => {}
    }
}

/// The beginning of a name, for a message.
pub(super) fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Adds the entries. A name that is taken, by a group as well, gets that of the provider behind it: members of a provider are
/// no names of the file.
fn add(
    context: &mut Context<'_>,
    provider: &str,
    at: usize,
    path: &str,
    entries: Vec<ProxyEntry>,
    outbounds: &mut Vec<Outbound>,
) -> Vec<String> {
    let (mut names, mut free) = (Vec::new(), UniqueNames::default());
    let mut renamed: Vec<String> = Vec::new();
    for mut entry in entries {
        let old = entry.outbound.name.to_string();
        let is_taken = |name: &str| context.targets.contains_key(name) || context.groups.contains(name);
        let name =
            if is_taken(&old) { free.free(&format!("{old} ({provider})"), is_taken) } else { old.clone() };
        if name != old {
            renamed.push(format!("{} is {}", shown(&old), shown(&name)));
        }
        entry.outbound.name = name.as_str().into();
        super::add_entry(context, entry, outbounds);
        names.push(name);
    }
    if let Some(first) = renamed.first() {
        let problem = format!("names of {} of its members are taken: {first}", renamed.len());
        context.remark(at, path, problem, "");
    }
    names
}
