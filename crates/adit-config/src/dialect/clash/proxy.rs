//! Entries of `proxies` and of their providers: outbounds that adit speaks, and dead ones in the place of all others.

use super::{Context, Target, tree};
use crate::dialect::import;
use crate::dialect::json::{Member as Key, Node, Value};
use crate::dialect::native;
use crate::dialect::value;
use crate::map::Map;
use crate::model::rule::{Manner, Verdict};
use crate::model::{
    Dial, Outbound, OutboundProtocol, ProxyClient, ProxyKind, ProxyTls, Refusal, Secret, SsrClient,
    Transports, Verify,
};
use crate::source::Source;

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
        (REJECT, reject(Manner::Protocol)),
        ("REJECT-DROP", reject(Manner::Drop)),
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
pub(super) struct Entry {
    pub(super) outbound: Outbound,
    /// Its type, as it is written.
    pub(super) kind: String,
    /// Whether it carries datagrams by the file's word.
    pub(super) udp: bool,
    /// Keys without effect: mihomo has none of this name for this type, and passes them over.
    pub(super) left_out: Vec<Box<str>>,
}

impl Entry {
    /// An entry that nothing goes through.
    pub(super) fn dead(name: &str, kind: &str, why: &str, udp: bool) -> Self {
        let refusal = Refusal::Dead { kind: kind.into(), why: why.into(), udp };
        let protocol = OutboundProtocol::Refuse(refusal);
        let outbound = Outbound { name: name.into(), dial: Dial::default(), protocol };
        Self { outbound, kind: kind.to_owned(), udp, left_out: Vec::new() }
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
/// When it has no name or type.
pub(super) fn entry(source: &Source<'_>, value: &Value) -> Result<Entry, String> {
    let (name, kind) = (tree::text_of(value, "name"), tree::text_of(value, "type"));
    let (Some(name), Some(kind)) = (name, kind) else {
        return Err("an entry of proxies needs `name` and `type`".to_owned());
    };
    let udp = says_udp(value);
    let (value, left_out) = known_keys(value, kind);
    let entry = match live(source, &value, kind) {
        Ok(outbound) => {
            let outbound = Outbound { name: name.into(), ..outbound };
            Entry { outbound, kind: kind.to_owned(), udp, left_out: Vec::new() }
        }
        Err(why) => Entry::dead(name, kind, &why, udp),
    };
    Ok(Entry { left_out, ..entry })
}

/// Keys of mihomo (v1.19) that types have of their own, beside [`BASIC`].
const KEYS: &[(&str, &[&str])] = &[
    (
        "ss",
        &[
            "password",
            "cipher",
            "plugin",
            "plugin-opts",
            "udp-over-tcp",
            "udp-over-tcp-version",
            "client-fingerprint",
        ],
    ),
    ("ssr", &["password", "cipher", "obfs", "obfs-param", "protocol", "protocol-param"]),
    ("snell", &["psk", "version", "obfs-opts", "reuse", "client-fingerprint"]),
    (
        "socks5",
        &[
            "username",
            "password",
            "tls",
            "skip-cert-verify",
            "fingerprint",
            "certificate",
            "private-key",
            "name-cert-verify",
        ],
    ),
    (
        "http",
        &[
            "username",
            "password",
            "tls",
            "sni",
            "skip-cert-verify",
            "fingerprint",
            "certificate",
            "private-key",
            "name-cert-verify",
            "headers",
        ],
    ),
    ("direct", &[]),
    ("dns", &[]),
    ("reject", &[]),
    (REMATCH, &["target-rematch-name", "target-sub-rule"]),
];

/// Keys that mihomo reads of each type that adit has.
const BASIC: [&str; 12] = [
    "name",
    "type",
    "server",
    "port",
    "udp",
    "tfo",
    "mptcp",
    "interface-name",
    "routing-mark",
    "ip-version",
    "dialer-proxy",
    "smux",
];

/// The entry without keys that mihomo passes over as well, and the names of those.
fn known_keys(value: &Value, kind: &str) -> (Value, Vec<Box<str>>) {
    let Some((_, own)) = KEYS.iter().find(|(known, _)| *known == kind) else {
        return (value.clone(), Vec::new());
    };
    let is_known = |member: &Key| {
        let key = member.key.replace('_', "-");
        BASIC.contains(&&*key) || own.contains(&&*key)
    };
    let (kept, others): (Vec<Key>, Vec<Key>) = tree::members(value).iter().cloned().partition(is_known);
    let left_out = others.iter().filter(|member| member.value.node != Node::Null);
    let left_out = left_out.map(|member| value::excerpt(&member.key).into()).collect();
    (Value { at: value.at, node: Node::Object(kept) }, left_out)
}

/// Names the keys of entries that have no effect: once for each type and key.
pub(super) fn remark_left_out<'e>(
    context: &mut Context<'_>,
    at: usize,
    path: &str,
    entries: impl Iterator<Item = &'e Entry>,
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

/// The outbound of an entry that adit speaks.
fn live(source: &Source<'_>, value: &Value, kind: &str) -> Result<Outbound, String> {
    if tree::get(value, "smux").is_some_and(|smux| tree::is_on(smux, "enabled")) {
        return Err("smux is not spoken".to_owned());
    }
    let plain = |protocol| Outbound { name: kind.into(), dial: Dial::default(), protocol };
    let mut outbound = match kind {
        "reject" => plain(OutboundProtocol::Reject),
        "dns" => plain(OutboundProtocol::Dns { ipv6: true }),
        REMATCH => return Err("a rematch is the target of a rule, not a member of a group".to_owned()),
        "direct" => imported(import::mihomo_direct(source, &bare(value)))?,
        "ss" | "snell" => imported(import::mihomo_server(source, &bare(value)))?,
        "ssr" => Outbound { dial: dial(source, value)?, ..plain(OutboundProtocol::Ssr(ssr(value)?)) },
        "socks5" | "http" => {
            let client = OutboundProtocol::Proxy(proxy(value, kind)?);
            Outbound { dial: dial(source, value)?, ..plain(client) }
        }
        other => return Err(format!("adit does not speak {}", value::excerpt(other))),
    };
    if let Some(through) = tree::text_of(value, "dialer-proxy").filter(|name| !name.is_empty()) {
        outbound.dial.through = Some(through.into());
    }
    Ok(outbound)
}

fn imported(found: Result<Outbound, crate::diagnostic::Diagnostic>) -> Result<Outbound, String> {
    found.map_err(|found| {
        if found.key.is_empty() { found.problem } else { format!("{}: {}", found.key, found.problem) }
    })
}

/// The settings of sockets of an entry.
fn dial(source: &Source<'_>, value: &Value) -> Result<Dial, String> {
    let plain = bare(value);
    let members = tree::members(&plain).iter().filter(|member| COMMON.contains(&&*member.key)).cloned();
    let common = Value { at: value.at, node: Node::Object(members.collect()) };
    Ok(imported(import::mihomo_direct(source, &bare(&common)))?.dial)
}

fn server(value: &Value) -> Result<adit_proto::wire::Target, String> {
    let need = |key: &str| tree::text_of(value, key).ok_or_else(|| format!("{key} is missing"));
    let host = need("server")?;
    let host =
        if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    value::target(&format!("{host}:{}", need("port")?)).map_err(|problem| problem.text)
}

fn ssr(value: &Value) -> Result<SsrClient, String> {
    let need = |key: &str| tree::text_of(value, key).ok_or_else(|| format!("{key} is missing"));
    let text = |key: &str| tree::text_of(value, key).unwrap_or_default();
    let server = server(value)?;
    let cipher = if text("cipher") == "dummy" { "none" } else { need("cipher")? };
    let method = cipher.parse().map_err(|_| "unknown cipher".to_owned())?;
    let protocol = need("protocol")?.parse().map_err(|_| "unknown protocol".to_owned())?;
    let obfs = need("obfs")?.parse().map_err(|_| "unknown obfs".to_owned())?;
    let user = match text("protocol-param").split_once(':') {
        Some((id, key)) => Some((id.parse().map_err(|_| "bad protocol-param".to_owned())?, Secret::new(key))),
        None => None,
    };
    let transports = if tree::is_on(value, "udp") { Transports::Both } else { Transports::Tcp };
    let client = SsrClient::new(server, method, Secret::new(need("password")?), protocol);
    let obfs_param = text("obfs-param").into();
    let client = SsrClient { user, obfs, obfs_param, transports, ..client };
    client.check().map_err(|error| error.to_string())?;
    Ok(client)
}

/// Keys of SOCKS5 and HTTP proxies, beside those that every type has.
const PROXY: [&str; 12] = [
    "name",
    "server",
    "port",
    "username",
    "password",
    "tls",
    "sni",
    "skip-cert-verify",
    "fingerprint",
    "headers",
    "udp",
    "dialer-proxy",
];

fn proxy(value: &Value, kind: &str) -> Result<ProxyClient, String> {
    let plain = bare(value);
    let unknown = tree::members(&plain).iter().find(|member| {
        !PROXY.contains(&&*member.key) && !COMMON.contains(&&*member.key) && member.value.node != Node::Null
    });
    if let Some(member) = unknown {
        return Err(format!("{}: unknown key", value::excerpt(&member.key)));
    }
    let text = |key: &str| tree::text_of(value, key).filter(|text| !text.is_empty());
    let credentials = match (text("username"), text("password")) {
        (None, None) => None,
        (user, password) => {
            let (user, password) = (user.unwrap_or_default(), password.unwrap_or_default());
            if user.len() > 255 || password.len() > 255 {
                return Err("a user name or password is longer than 255 bytes".to_owned());
            }
            Some((user.into(), Secret::new(password)))
        }
    };
    let digest = match text("fingerprint") {
        Some(text) => Some(native::digest(text).ok_or("fingerprint: not a SHA-256 digest in hex")?),
        None => None,
    };
    let verify = match (digest, tree::is_on(value, "skip-cert-verify")) {
        (Some(digest), _) => Verify::Fingerprint(digest),
        (None, true) => Verify::Nothing,
        (None, false) => Verify::Chain,
    };
    let tls = tree::is_on(value, "tls").then(|| ProxyTls { name: text("sni").map(Into::into), verify });
    let kind = if kind == "socks5" {
        ProxyKind::Socks5 { udp: tree::is_on(value, "udp") }
    } else {
        let headers = tree::get(value, "headers").map(tree::members).unwrap_or_default();
        ProxyKind::Http { headers: fields(headers)? }
    };
    Ok(ProxyClient { server: server(value)?, kind, credentials, tls })
}

/// Fields of a request: each name with a value or a list of them.
pub(super) fn fields(members: &[Key]) -> Result<Vec<(Box<str>, Secret)>, String> {
    let mut all = Vec::new();
    for member in members {
        let one = tree::text(&member.value).into_iter();
        let list = tree::items(&member.value).iter().filter_map(tree::text);
        for value in one.chain(list) {
            let field = native::field(&member.key, value);
            all.push(field.ok_or_else(|| format!("header {} cannot be sent", value::excerpt(&member.key)))?);
        }
    }
    Ok(all)
}

/// Whether an entry carries datagrams by the file's word: one that is dead keeps its datagrams from going another way.
fn says_udp(value: &Value) -> bool {
    let kind = tree::text_of(value, "type").unwrap_or_default();
    !QUIET.contains(&kind) || tree::is_on(value, "udp")
}

/// The entry with another name, and without keys that say nothing about the way or are read elsewhere.
fn bare(value: &Value) -> Value {
    const LEFT_OUT: [&str; 4] = ["name", "client-fingerprint", "mptcp", "dialer-proxy"];
    let members =
        tree::members(value).iter().map(|member| Key { key: member.key.replace('_', "-"), ..member.clone() });
    let members = members.filter(|member| !LEFT_OUT.contains(&&*member.key));
    let name = Value { at: value.at, node: Node::Text("proxy".to_owned().into()) };
    let name = Key { key: "name".to_owned(), at: value.at, value: name };
    Value { at: value.at, node: Node::Object(members.chain([name]).collect()) }
}

/// Says which entries are dead: once for each type that adit does not speak, with the number of its entries.
pub(super) fn remark_dead(context: &mut Context<'_>, at: usize, path: &str, entries: &[Entry]) {
    for problem in dead_of(entries) {
        context.remark(at, path, problem, "");
    }
}

/// One sentence about the dead ones of each type.
pub(super) fn dead_of(entries: &[Entry]) -> Vec<String> {
    /// Names that a remark lists.
    const MAX_NAMES: usize = 10;
    let mut by_reason: Map<(&str, &str), Vec<&str>> = Map::new();
    for entry in entries {
        if let Some(why) = entry.why_dead() {
            by_reason.entry((&entry.kind, why)).or_default().push(&entry.outbound.name);
        }
    }
    let sentence = |((kind, why), names): ((&str, &str), Vec<&str>)| {
        let more = names.len().saturating_sub(MAX_NAMES);
        let mut listed = names[..names.len() - more].join(", ");
        if more > 0 {
            listed.push_str(&format!(" and {more} more"));
        }
        let (noun, verb) = if names.len() == 1 { ("proxy", "is") } else { ("proxies", "are") };
        format!(
            "{} {noun} of type {} {verb} dead, and every connection through them is refused: {why}: {listed}",
            names.len(),
            value::excerpt(kind)
        )
    };
    by_reason.into_iter().map(sentence).collect()
}
