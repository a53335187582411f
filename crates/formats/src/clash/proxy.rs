//! Entries of `proxies` and of their providers: outbounds that adit speaks, and dead ones in the place of all others.

use adit_model::map::Map;
use adit_model::rule::{RejectMethod, Verdict};
use adit_model::{
    Dial, Outbound, OutboundProtocol, ProxyClient, ProxyKind, ProxyTls, Refusal, Secret, SsrClient,
    Transports, Verify,
};

use super::{Context, Target, tables};
use crate::adit_toml;
use crate::import;
use crate::read::json::{JsonMember, JsonValue, Node};
use crate::read::kinds::{self, Typing, ValueKind, WrongKind};
use crate::read::source::Source;
use crate::read::value;
use crate::read::yaml_access;

/// Names of the targets that are there without being written.
pub(super) const DIRECT: &str = "DIRECT";
pub(super) const GLOBAL: &str = "GLOBAL";
pub(super) const REJECT: &str = "REJECT";
/// A rule with this target goes on to the next one, within a list of sub-rules too.
pub(super) const PASS_RULE: &str = "PASS-RULE";
/// The type of targets that have the rules asked once more.
pub(super) const REMATCH: &str = "rematch";

/// Types that carry datagrams only if they say so.
const QUIET: [&str; 11] =
    ["ss", "ssr", "snell", "socks5", "http", "vmess", "vless", "trojan", "anytls", "ssh", "mieru"];

/// Keys that every type has.
const COMMON: [&str; 6] = ["interface-name", "routing-mark", "ip-version", "tfo", "mptcp", "type"];

/// Targets that are there without being written.
pub(super) fn built_in() -> Map<String, Target> {
    let reject = |manner| Verdict::Reject(manner);
    let direct = || Verdict::Outbound(DIRECT.into());
    let all = [
        (DIRECT, direct()),
        (REJECT, reject(RejectMethod::Protocol)),
        ("REJECT-DROP", reject(RejectMethod::Drop)),
        ("PASS", Verdict::Pass(0)),
        (PASS_RULE, Verdict::Pass(0)),
        ("COMPATIBLE", direct()),
    ];
    let target = |verdict| Target { verdict, udp: true, leaf: None };
    all.into_iter().map(|(name, verdict)| (name.to_owned(), target(verdict))).collect()
}

/// The outbounds of these targets, for groups that have them as members.
pub(super) fn built_in_outbounds() -> Vec<Outbound> {
    let all = [
        (DIRECT, OutboundProtocol::Direct),
        (REJECT, OutboundProtocol::Reject),
        ("REJECT-DROP", OutboundProtocol::Refuse(Refusal::Drop)),
        ("PASS", OutboundProtocol::Refuse(Refusal::Pass)),
        (PASS_RULE, OutboundProtocol::Refuse(Refusal::Pass)),
        ("COMPATIBLE", OutboundProtocol::Direct),
    ];
    let outbound =
        |(name, protocol): (&str, _)| Outbound { name: name.into(), dial: Dial::default(), protocol };
    all.into_iter().map(outbound).collect()
}

/// A type as mihomo's control interface writes it.
pub(super) fn api_type(kind: &str) -> String {
    let known = [
        ("ss", "Shadowsocks"),
        ("ssr", "ShadowsocksR"),
        ("socks5", "Socks5"),
        ("wireguard", "WireGuard"),
        ("anytls", "AnyTLS"),
        ("reject-drop", "RejectDrop"),
        ("select", "Selector"),
        ("url-test", "URLTest"),
        ("load-balance", "LoadBalance"),
    ];
    if let Some((_, name)) = known.iter().find(|(known, _)| *known == kind) {
        return (*name).to_owned();
    }
    let mut letters = kind.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// One entry.
#[derive(Debug, Clone)]
pub(super) struct ProxyEntry {
    pub(super) outbound: Outbound,
    /// Its type, as it is written.
    pub(super) kind: String,
    /// Whether it carries datagrams by the file's word.
    pub(super) udp: bool,
    /// Keys without effect: mihomo has none of this name for this type, and passes them over.
    pub(super) left_out: Vec<Box<str>>,
    /// Its place in its document, or that of the key that makes it dead.
    pub(crate) at: usize,
}

impl ProxyEntry {
    /// An entry that nothing goes through.
    pub(super) fn dead(name: &str, kind: &str, why: &str, udp: bool) -> Self {
        let refusal = Refusal::Dead { kind: kind.into(), why: why.into(), udp };
        let protocol = OutboundProtocol::Refuse(refusal);
        let outbound = Outbound { name: name.into(), dial: Dial::default(), protocol };
        Self { outbound, kind: kind.to_owned(), udp, left_out: Vec::new(), at: 0 }
    }

    /// Why nothing goes through it, if that is so.
    pub(super) fn why_dead(&self) -> Option<&str> {
        let OutboundProtocol::Refuse(Refusal::Dead { why, .. }) = &self.outbound.protocol else {
            return None;
        };
        Some(why)
    }
}

/// Reads an entry.
///
/// # Errors
/// When it has no name or type, or a value of another type than its key has.
pub(super) fn entry(source: &Source<'_>, value: &JsonValue) -> Result<ProxyEntry, WrongKind> {
    let wrong =
        |at, path: &str, problem: &str| WrongKind { at, path: path.to_owned(), problem: problem.to_owned() };
    let Node::Object(members) = &value.node else {
        return Err(wrong(value.at, "", "expected the keys of a proxy"));
    };
    for key in ["name", "type"] {
        let found = members.iter().find(|member| member.key == key && member.value.node != Node::Null);
        if found.is_some_and(|member| yaml_access::text(&member.value).is_none_or(str::is_empty)) {
            return Err(wrong(yaml_access::at(value, key), key, "expected a text"));
        }
    }
    let (name, kind) = (yaml_access::text_of(value, "name"), yaml_access::text_of(value, "type"));
    let (Some(name), Some(kind)) = (name, kind) else {
        return Err(wrong(value.at, "", "an entry of proxies needs `name` and `type`"));
    };
    let (value, left_out) = known_keys(value, kind)?;
    let udp = says_udp(&value);
    let entry = match live(source, &value, kind) {
        Ok(outbound) => {
            let outbound = Outbound { name: name.into(), ..outbound };
            ProxyEntry { outbound, kind: kind.to_owned(), udp, left_out: Vec::new(), at: value.at }
        }
        Err((at, why)) => {
            ProxyEntry { at: at.unwrap_or(value.at), ..ProxyEntry::dead(name, kind, &why, udp) }
        }
    };
    Ok(ProxyEntry { left_out, ..entry })
}

/// Gives the keys of an entry of this type their types. Values of other types are taken out, and are the result.
pub(crate) fn settle(value: &mut JsonValue, kind: &str, path: &str) -> Vec<WrongKind> {
    let own = tables::TYPES.iter().find(|(known, _)| *known == kind).map(|(_, own)| *own);
    let mut wrong = kinds::settle(value, &ValueKind::Map(tables::BASIC), Typing::Loose, path);
    if let Some(own) = own {
        wrong.extend(kinds::settle(value, &ValueKind::Map(own), Typing::Loose, path));
    }
    wrong
}

/// The entry without keys that mihomo passes over as well, and the names of those. Its keys have their types.
///
/// # Errors
/// The first value of another type than its key has.
fn known_keys(value: &JsonValue, kind: &str) -> Result<(JsonValue, Vec<Box<str>>), WrongKind> {
    let own = tables::TYPES.iter().find(|(known, _)| *known == kind).map(|(_, own)| *own);
    let mut value = value.clone();
    if let Some(first) = settle(&mut value, kind, "").into_iter().min_by_key(|wrong| wrong.at) {
        return Err(first);
    }
    let (Some(own), Node::Object(members)) = (own, &mut value.node) else { return Ok((value, Vec::new())) };
    let mut left_out = Vec::new();
    members.retain(|member| {
        let is_known = [tables::BASIC, own].iter().any(|table| kinds::find(table, &member.key).is_some());
        if !is_known && member.value.node != Node::Null {
            left_out.push(value::excerpt(&member.key).into());
        }
        is_known
    });
    Ok((value, left_out))
}

/// Names the keys of entries that have no effect: once for each type and key.
pub(super) fn remark_left_out<'e>(
    context: &mut Context<'_>,
    at: usize,
    path: &str,
    entries: impl Iterator<Item = &'e ProxyEntry>,
) {
    let mut counts: Map<(String, Box<str>), usize> = Map::new();
    for entry in entries {
        for key in &entry.left_out {
            *counts.entry((entry.kind.clone(), key.clone())).or_insert(0) += 1;
        }
    }
    for ((kind, key), count) in counts.into_iter().take(MAX_REMARKS) {
        let entries = if count == 1 { "entry" } else { "entries" };
        let problem =
            format!("left out of {count} {entries}: type {kind} has no such key, in mihomo neither");
        context.remark(at, format!("{path}.{key}"), problem, "");
    }
}

/// Most remarks about keys of one list.
const MAX_REMARKS: usize = 20;

/// Why an entry is dead, and the place of the key that makes it so.
type Why = (Option<usize>, String);

/// The outbound of an entry that adit speaks.
fn live(source: &Source<'_>, value: &JsonValue, kind: &str) -> Result<Outbound, Why> {
    if yaml_access::get(value, "smux").is_some_and(|smux| yaml_access::is_on(smux, "enabled")) {
        return Err((Some(yaml_access::at(value, "smux")), "smux is not spoken".to_owned()));
    }
    let plain = |protocol| Outbound { name: kind.into(), dial: Dial::default(), protocol };
    let mut outbound = match kind {
        "reject" => plain(OutboundProtocol::Reject),
        "dns" => plain(OutboundProtocol::Dns { ipv6: true }),
        REMATCH => {
            return Err((None, "a rematch is the target of a rule, not a member of a group".to_owned()));
        }
        "direct" => imported(source, import::mihomo_direct(source, &bare(value)))?,
        "ss" | "snell" => imported(source, import::mihomo_server(source, &bare(value)))?,
        "ssr" => Outbound { dial: dial(source, value)?, ..plain(OutboundProtocol::Ssr(ssr(value)?)) },
        "socks5" | "http" => {
            let client = OutboundProtocol::Proxy(proxy(value, kind)?);
            Outbound { dial: dial(source, value)?, ..plain(client) }
        }
        other => {
            let why = format!("adit does not speak {}", value::excerpt(other));
            return Err((Some(yaml_access::at(value, "type")), why));
        }
    };
    if let Some(through) = yaml_access::text_of(value, "dialer-proxy").filter(|name| !name.is_empty()) {
        outbound.dial.through = Some(through.into());
    }
    Ok(outbound)
}

fn imported(
    source: &Source<'_>,
    found: Result<Outbound, adit_model::diagnostic::Diagnostic>,
) -> Result<Outbound, Why> {
    found.map_err(|found| {
        let why = if found.key.is_empty() {
            found.problem.clone()
        } else {
            format!("{}: {}", found.key, found.problem)
        };
        (source.offset(found.line, found.column), why)
    })
}

/// The settings of sockets of an entry.
fn dial(source: &Source<'_>, value: &JsonValue) -> Result<Dial, Why> {
    let plain = bare(value);
    let members =
        yaml_access::members(&plain).iter().filter(|member| COMMON.contains(&&*member.key)).cloned();
    let common = JsonValue { at: value.at, node: Node::Object(members.collect()) };
    Ok(imported(source, import::mihomo_direct(source, &bare(&common)))?.dial)
}

/// A problem at a key.
fn wrong_key(value: &JsonValue, key: &str, problem: &str) -> Why {
    (Some(yaml_access::at(value, key)), format!("{key}: {problem}"))
}

/// The text of a key that must be there.
fn need<'v>(value: &'v JsonValue, key: &str) -> Result<&'v str, Why> {
    yaml_access::text_of(value, key).ok_or_else(|| (None, format!("{key} is missing")))
}

fn server(value: &JsonValue) -> Result<adit_proto::wire::Target, Why> {
    let host = need(value, "server")?;
    let port = need(value, "port")?;
    if port.parse::<u16>().is_err() || port == "0" {
        return Err(wrong_key(value, "port", "no number from 1 to 65535"));
    }
    let host =
        if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    value::target(&format!("{host}:{port}")).map_err(|problem| wrong_key(value, "server", &problem.text))
}

fn ssr(value: &JsonValue) -> Result<SsrClient, Why> {
    let text = |key: &str| yaml_access::text_of(value, key).unwrap_or_default();
    let server = server(value)?;
    let cipher = if text("cipher") == "dummy" { "none" } else { need(value, "cipher")? };
    let method = cipher.parse().map_err(|_| wrong_key(value, "cipher", "unknown cipher"))?;
    let protocol = need(value, "protocol")?.parse();
    let protocol = protocol.map_err(|_| wrong_key(value, "protocol", "unknown protocol"))?;
    let obfs = need(value, "obfs")?.parse().map_err(|_| wrong_key(value, "obfs", "unknown obfs"))?;
    let user = match text("protocol-param").split_once(':') {
        Some((id, key)) => {
            let bad = |_| wrong_key(value, "protocol-param", "expected a number before the colon");
            Some((id.parse().map_err(bad)?, Secret::new(key)))
        }
        None => None,
    };
    let transports = if yaml_access::is_on(value, "udp") { Transports::Both } else { Transports::Tcp };
    let client = SsrClient::new(server, method, Secret::new(need(value, "password")?), protocol);
    let obfs_param = text("obfs-param").into();
    let client = SsrClient { user, obfs, obfs_param, transports, ..client };
    client.check().map_err(|error| (None, error.to_string()))?;
    Ok(client)
}

fn proxy(value: &JsonValue, kind: &str) -> Result<ProxyClient, Why> {
    for key in ["certificate", "private-key", "name-cert-verify"] {
        if yaml_access::get(value, key)
            .is_some_and(|found| yaml_access::text(found).is_none_or(|text| !text.is_empty()))
        {
            return Err(wrong_key(value, key, "unknown key"));
        }
    }
    let text = |key: &str| yaml_access::text_of(value, key).filter(|text| !text.is_empty());
    let credentials = match (text("username"), text("password")) {
        (None, None) => None,
        (user, password) => {
            let (user, password) = (user.unwrap_or_default(), password.unwrap_or_default());
            if user.len() > 255 || password.len() > 255 {
                return Err((None, "a user name or password is longer than 255 bytes".to_owned()));
            }
            Some((user.into(), Secret::new(password)))
        }
    };
    let digest = match text("fingerprint") {
        Some(text) => {
            let digest = adit_toml::digest(text);
            Some(digest.ok_or_else(|| wrong_key(value, "fingerprint", "not a SHA-256 digest in hex"))?)
        }
        None => None,
    };
    let verify = match (digest, yaml_access::is_on(value, "skip-cert-verify")) {
        (Some(digest), _) => Verify::Fingerprint(digest),
        (None, true) => Verify::Nothing,
        (None, false) => Verify::Chain,
    };
    let tls =
        yaml_access::is_on(value, "tls").then(|| ProxyTls { name: text("sni").map(Into::into), verify });
    let kind = if kind == "socks5" {
        ProxyKind::Socks5 { udp: yaml_access::is_on(value, "udp") }
    } else {
        let headers = yaml_access::get(value, "headers").map(yaml_access::members).unwrap_or_default();
        let headers = fields(headers).map_err(|problem| wrong_key(value, "headers", &problem))?;
        ProxyKind::Http { headers }
    };
    Ok(ProxyClient { server: server(value)?, kind, credentials, tls })
}

/// Fields of a request: each name with a value or a list of them.
pub(super) fn fields(members: &[JsonMember]) -> Result<Vec<(Box<str>, Secret)>, String> {
    let mut all = Vec::new();
    for member in members {
        let one = yaml_access::text(&member.value).into_iter();
        let list = yaml_access::items(&member.value).iter().filter_map(yaml_access::text);
        for value in one.chain(list) {
            let field = adit_toml::field(&member.key, value);
            all.push(field.ok_or_else(|| format!("header {} cannot be sent", value::excerpt(&member.key)))?);
        }
    }
    Ok(all)
}

/// Whether an entry carries datagrams by the file's word: one that is dead keeps its datagrams from going another way.
fn says_udp(value: &JsonValue) -> bool {
    let kind = yaml_access::text_of(value, "type").unwrap_or_default();
    !QUIET.contains(&kind) || yaml_access::is_on(value, "udp")
}

/// The entry with another name, and without keys that say nothing about the way or are read elsewhere.
fn bare(value: &JsonValue) -> JsonValue {
    const LEFT_OUT: [&str; 4] = ["name", "client-fingerprint", "mptcp", "dialer-proxy"];
    let members = yaml_access::members(value)
        .iter()
        .map(|member| JsonMember { key: member.key.replace('_', "-"), ..member.clone() });
    let members = members.filter(|member| !LEFT_OUT.contains(&&*member.key));
    let name = JsonValue { at: value.at, node: Node::Text("proxy".to_owned().into()) };
    let name = JsonMember { key: "name".to_owned(), at: value.at, value: name };
    JsonValue { at: value.at, node: Node::Object(members.chain([name]).collect()) }
}

/// Says which entries are dead: once for each type that adit does not speak, with the number of its entries, at the first
/// of them or, where they stand in another document, at `at`.
pub(super) fn remark_dead(context: &mut Context<'_>, at: Option<usize>, path: &str, entries: &[ProxyEntry]) {
    for (first, problem) in dead_of(entries) {
        context.remark(at.unwrap_or(first), path, problem, "");
    }
}

/// One sentence about the dead ones of each type, with the place of the first.
pub(super) fn dead_of(entries: &[ProxyEntry]) -> Vec<(usize, String)> {
    /// Names that a remark lists.
    const MAX_NAMES: usize = 10;
    let mut by_reason: Map<(&str, &str), (usize, Vec<&str>)> = Map::new();
    for entry in entries {
        if let Some(why) = entry.why_dead() {
            let (_, names) = by_reason.entry((&entry.kind, why)).or_insert((entry.at, Vec::new()));
            names.push(&entry.outbound.name);
        }
    }
    let sentence = |((kind, why), (at, names)): ((&str, &str), (usize, Vec<&str>))| {
        let more = names.len().saturating_sub(MAX_NAMES);
        let mut listed = names[..names.len() - more].join(", ");
        if more > 0 {
            listed.push_str(&format!(" and {more} more"));
        }
        let (noun, verb) = if names.len() == 1 { ("proxy", "is") } else { ("proxies", "are") };
        let problem = format!(
            "{} {noun} of type {} {verb} dead, and every connection through them is refused: {why}: {listed}",
            names.len(),
            value::excerpt(kind)
        );
        (at, problem)
    };
    by_reason.into_iter().map(sentence).collect()
}
