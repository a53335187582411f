//! Proxies and groups: outbounds that adit speaks, and dead ones in the place of all others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Context, Target, tree};
use crate::dialect::import;
use crate::dialect::json::{Member as Key, Node, Value};
use crate::dialect::value;
use crate::model::rule::{Manner, Verdict};
use crate::model::{
    CHECK_DNS, Check, Dial, Group, HttpUrl, Member, Outbound, OutboundProtocol, Secret, SsrClient, Tag,
    Transports,
};

/// Names of the targets that are there without being written.
pub(super) const DIRECT: &str = "DIRECT";
pub(super) const GLOBAL: &str = "GLOBAL";

/// Longest delay of a check, and shortest time between two.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Types that carry datagrams only if they say so.
const QUIET: [&str; 11] =
    ["ss", "ssr", "snell", "socks5", "http", "vmess", "vless", "trojan", "anytls", "ssh", "mieru"];

/// Targets that are there without being written.
pub(super) fn built_in() -> BTreeMap<String, Target> {
    let reject = |manner| Verdict::Reject(manner);
    let direct = || Verdict::Outbound(DIRECT.into());
    let all = [
        (DIRECT, direct()),
        ("REJECT", reject(Manner::Protocol)),
        ("REJECT-DROP", reject(Manner::Drop)),
        ("PASS", Verdict::Pass(0)),
        ("COMPATIBLE", direct()),
    ];
    let target = |verdict| Target { verdict, udp: true, leaf: None };
    all.into_iter().map(|(name, verdict)| (name.to_owned(), target(verdict))).collect()
}

/// The direct outbound.
pub(super) fn direct() -> Outbound {
    Outbound { name: DIRECT.into(), dial: Dial::default(), protocol: OutboundProtocol::Direct }
}

/// One entry of `proxies`; `None` for one without a name or type.
pub(super) fn proxy(context: &mut Context<'_>, value: &Value, path: String) -> Option<Outbound> {
    let (name, kind) = (tree::text_of(value, "name"), tree::text_of(value, "type"));
    let (Some(name), Some(kind)) = (name, kind) else {
        context.error(value.at, path, "an entry of proxies needs `name` and `type`");
        return None;
    };
    let protocol = match live(context, value, kind) {
        Ok(Some(outbound)) => {
            return Some(Outbound { name: name.into(), ..outbound });
        }
        Ok(None) => OutboundProtocol::Reject,
        Err(why) => {
            let problem = format!("{name} is dead: {why}; every connection through it is refused");
            context.remark(value.at, path, problem, "");
            OutboundProtocol::Reject
        }
    };
    Some(Outbound { name: name.into(), dial: Dial::default(), protocol })
}

/// The outbound of an entry; `None` for one that refuses everything by its type.
fn live(context: &Context<'_>, value: &Value, kind: &str) -> Result<Option<Outbound>, String> {
    if tree::get(value, "dialer-proxy").is_some() {
        return Err("dialer-proxy is not read yet".to_owned());
    }
    if tree::get(value, "smux").is_some_and(|smux| tree::is_on(smux, "enabled")) {
        return Err("smux is not spoken".to_owned());
    }
    match kind {
        "reject" => Ok(None),
        "direct" | "ss" | "snell" => {
            let found = if kind == "direct" {
                import::mihomo_direct(context.source, &bare(value))
            } else {
                import::mihomo_server(context.source, &bare(value))
            };
            found.map(Some).map_err(|found| {
                if found.key.is_empty() { found.problem } else { format!("{}: {}", found.key, found.problem) }
            })
        }
        "ssr" => ssr(value).map(Some),
        other => Err(format!("adit does not speak {}", value::excerpt(other))),
    }
}

fn ssr(value: &Value) -> Result<Outbound, String> {
    let need = |key: &str| tree::text_of(value, key).ok_or_else(|| format!("{key} is missing"));
    let text = |key: &str| tree::text_of(value, key).unwrap_or_default();
    let host = need("server")?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let server = value::target(&format!("{host}:{}", need("port")?)).map_err(|problem| problem.text)?;
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
    Ok(Outbound { name: "".into(), dial: Dial::default(), protocol: OutboundProtocol::Ssr(client) })
}

/// Whether an entry carries datagrams by the file's word: one that is dead keeps its datagrams from going another way.
pub(super) fn says_udp(value: &Value) -> bool {
    let kind = tree::text_of(value, "type").unwrap_or_default();
    !QUIET.contains(&kind) || tree::is_on(value, "udp")
}

/// A group as it is written.
pub(super) struct Written<'v> {
    name: String,
    kind: &'v str,
    members: Vec<String>,
    value: &'v Value,
    path: String,
}

/// Entries that groups take by name or by their provider.
pub(super) struct Entries<'a> {
    /// Names of `proxies`, in order.
    pub(super) proxies: &'a [String],
    pub(super) providers: &'a BTreeMap<String, Vec<String>>,
}

/// Reads an entry of `proxy-groups`.
pub(super) fn group<'v>(
    context: &mut Context<'_>,
    value: &'v Value,
    path: String,
    entries: &Entries<'_>,
) -> Option<Written<'v>> {
    const KINDS: [&str; 5] = ["select", "url-test", "fallback", "load-balance", "relay"];
    let (name, kind) = (tree::text_of(value, "name"), tree::text_of(value, "type"));
    let (Some(name), Some(kind)) = (name, kind) else {
        context.error(value.at, path, "a group needs `name` and `type`");
        return None;
    };
    if !KINDS.contains(&kind) {
        context.error(value.at, path, format!("{name}: unsupported group type: {}", value::excerpt(kind)));
        return None;
    }
    let all = tree::is_on(value, "include-all");
    let is_listed = tree::get(value, "proxies").is_some() || tree::get(value, "use").is_some();
    let includes =
        all || tree::is_on(value, "include-all-proxies") || tree::is_on(value, "include-all-providers");
    if !is_listed && !includes {
        context.error(value.at, path, format!("{name}: `use` or `proxies` missing"));
        return None;
    }
    let members = members(context, value, &path, all, entries);
    Some(Written { name: name.to_owned(), kind, members, value, path })
}

fn members(
    context: &mut Context<'_>,
    value: &Value,
    path: &str,
    all: bool,
    entries: &Entries<'_>,
) -> Vec<String> {
    let mut listed: Vec<String> =
        tree::texts_of(value, "proxies").into_iter().map(|(name, _)| name.to_owned()).collect();
    let mut more = Vec::new();
    if all || tree::is_on(value, "include-all-proxies") {
        let sorted: BTreeSet<&String> = entries.proxies.iter().collect();
        more.extend(sorted.into_iter().cloned());
    }
    if all || tree::is_on(value, "include-all-providers") {
        more.extend(entries.providers.values().flatten().cloned());
    } else {
        for (name, at) in tree::texts_of(value, "use") {
            match entries.providers.get(name) {
                Some(members) => more.extend(members.iter().cloned()),
                None => context.error(at, format!("{path}.use"), format!("'{name}' not found")),
            }
        }
    }
    if let Some(filter) = tree::text_of(value, "filter").filter(|filter| !filter.is_empty()) {
        let mut kept = Vec::new();
        for text in filter.split('`') {
            let Some(regex) = regex(context, value, path, text) else { continue };
            let fits = more.iter().filter(|name| regex.is_match(name.as_str()).unwrap_or(false));
            kept.extend(fits.filter(|name| !kept.contains(*name)).cloned().collect::<Vec<_>>());
        }
        more = kept;
    }
    listed.append(&mut more);
    if let Some(filter) = tree::text_of(value, "exclude-filter").filter(|filter| !filter.is_empty()) {
        for text in filter.split('`') {
            let Some(regex) = regex(context, value, path, text) else { continue };
            listed.retain(|name| !regex.is_match(name.as_str()).unwrap_or(true));
        }
    }
    if tree::text_of(value, "exclude-type").is_some_and(|kinds| !kinds.is_empty()) {
        context.refuse(value.at, format!("{path}.exclude-type"), "exclude-type is not read yet");
    }
    listed
}

fn regex(context: &mut Context<'_>, value: &Value, path: &str, text: &str) -> Option<fancy_regex::Regex> {
    let built = fancy_regex::RegexBuilder::new(text).backtrack_limit(100_000).build();
    built.map_err(|error| context.error(value.at, format!("{path}.filter"), error.to_string())).ok()
}

/// Adds the groups to the targets, each behind its members, and their outbounds.
pub(super) fn settle(context: &mut Context<'_>, groups: &[Written<'_>], outbounds: &mut Vec<Outbound>) {
    let mut left: Vec<&Written<'_>> = groups.iter().collect();
    let names: BTreeSet<&str> = groups.iter().map(|group| &*group.name).collect();
    for group in groups {
        for name in &group.members {
            if context.target(name).is_none() && !names.contains(&**name) {
                context.error(
                    group.value.at,
                    group.path.clone(),
                    format!("{}: '{name}' not found", group.name),
                );
            }
        }
    }
    loop {
        let waits = |group: &&Written<'_>, context: &Context<'_>| {
            let mut members = group.members.iter();
            members.any(|name| context.target(name).is_none() && names.contains(&**name))
        };
        let (later, now): (Vec<_>, Vec<_>) = left.into_iter().partition(|group| waits(group, context));
        if now.is_empty() {
            if let Some(first) = later.first() {
                let names: Vec<&str> = later.iter().map(|group| &*group.name).collect();
                let problem =
                    format!("loop is detected in ProxyGroup, please check following ProxyGroups: {names:?}");
                context.error(first.value.at, first.path.clone(), problem);
            }
            return;
        }
        for group in now {
            let target = settled(context, group, outbounds);
            context.targets.insert(group.name.clone(), target);
        }
        left = later;
    }
}

fn settled(context: &mut Context<'_>, group: &Written<'_>, outbounds: &mut Vec<Outbound>) -> Target {
    let found: Vec<(String, Target)> =
        group.members.iter().filter_map(|name| Some((name.clone(), context.target(name)?.clone()))).collect();
    let udp = !tree::is_on(group.value, "disable-udp");
    let Some((first, of_first)) = found.first().cloned() else {
        let problem = format!("{} has no member; every connection through it is refused", group.name);
        context.remark(group.value.at, group.path.clone(), problem, "");
        return Target { verdict: Verdict::Reject(Manner::Protocol), udp, leaf: Some("COMPATIBLE".into()) };
    };
    let leaf = Some(of_first.leaf.clone().unwrap_or_else(|| first.clone().into()));
    match group.kind {
        "select" => Target { verdict: of_first.verdict, udp: udp && of_first.udp, leaf },
        "relay" => {
            context.remark(
                group.value.at,
                group.path.clone(),
                RELAY,
                "use dialer-proxy in the place of relay",
            );
            Target { verdict: Verdict::Reject(Manner::Protocol), udp, leaf }
        }
        _ => {
            if group.kind != "url-test" {
                context.remark(group.value.at, group.path.clone(), BY_DELAY, "");
            }
            let udp = udp && found.iter().any(|(_, target)| target.udp);
            Target { verdict: measured(group, &found, outbounds), udp, leaf }
        }
    }
}

const RELAY: &str = "groups of type relay are not carried: every connection through it is refused";
const BY_DELAY: &str =
    "adit takes the member that answers best, as url-test does; the type is not carried yet";

/// The outbound of a group that compares its members.
fn measured(group: &Written<'_>, found: &[(String, Target)], outbounds: &mut Vec<Outbound>) -> Verdict {
    let is_leaf = |tag: &Tag| {
        let outbound = outbounds.iter().find(|outbound| outbound.name == *tag);
        outbound.is_some_and(Outbound::carries_streams)
    };
    let mut members: Vec<Tag> = Vec::new();
    for (_, target) in found {
        if let Verdict::Outbound(tag) = &target.verdict {
            // A group within is measured by its members.
            let inner = outbounds.iter().find(|outbound| outbound.name == *tag);
            let inner = match inner.map(|outbound| &outbound.protocol) {
                Some(OutboundProtocol::Group(group)) => {
                    group.members.iter().map(|member| member.outbound.clone()).collect()
                }
                _ => vec![tag.clone()],
            };
            members.extend(inner.into_iter().filter(|tag| is_leaf(tag)));
        }
    }
    let mut seen = BTreeSet::new();
    members.retain(|member| seen.insert(member.clone()));
    if members.is_empty() {
        return Verdict::Reject(Manner::Protocol);
    }
    let name: Tag = group.name.as_str().into();
    let members = members.into_iter().map(Member::new).collect();
    let protocol = OutboundProtocol::Group(Group { members, grows: false, check: check(group.value) });
    outbounds.push(Outbound { name: name.clone(), dial: Dial::default(), protocol });
    Verdict::Outbound(name)
}

fn check(value: &Value) -> Check {
    let default = Check::default();
    let seconds = tree::number_of(value, "interval").filter(|seconds| *seconds > 0).unwrap_or(300);
    let interval = Duration::from_secs(seconds.min(86_400)).max(MIN_INTERVAL);
    let timeout = tree::number_of(value, "timeout").map(Duration::from_millis);
    let tolerance = tree::number_of(value, "tolerance").map_or(Duration::ZERO, Duration::from_millis);
    let url = tree::text_of(value, "url").filter(|url| HttpUrl::parse(url).is_ok());
    Check {
        url: url.map_or(default.url, Into::into),
        dns: CHECK_DNS,
        interval,
        interval_in_use: interval,
        timeout: timeout.filter(|time| !time.is_zero()).unwrap_or(default.timeout).min(MAX_TIMEOUT),
        tolerance,
    }
}

/// The entry with another name, and without keys that say nothing about the way.
pub(super) fn bare(value: &Value) -> Value {
    const LEFT_OUT: [&str; 3] = ["name", "client-fingerprint", "mptcp"];
    let members = tree::members(value).iter().filter(|member| !LEFT_OUT.contains(&&*member.key)).cloned();
    let name = Value { at: value.at, node: Node::Text("proxy".to_owned().into()) };
    let name = Key { key: "name".to_owned(), at: value.at, value: name };
    let members = members.map(|member| Key { key: member.key.replace('_', "-"), ..member });
    Value { at: value.at, node: Node::Object(members.chain([name]).collect()) }
}
