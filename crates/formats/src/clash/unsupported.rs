//! Keys at the top of the file: obeyed, without effect, or unable to be obeyed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use adit_model::map::Map;
use adit_model::rule::{FindProgram, Verdict};
use adit_model::{AddressFamilies, Egress, Level, OutboundProtocol, Tag, fake_pattern, is_pattern};

use super::name::ascii_name;
use super::{ClashSetup, Context, dns, proxy, tables};
use crate::read::json::JsonValue;
use crate::read::kinds::{self, KeyKinds};
use crate::read::value;
use crate::read::yaml_access;

/// Keys that are obeyed here or elsewhere.
const OBEYED: &[&str] = &[
    "port",
    "socks-port",
    "mixed-port",
    "redir-port",
    "tproxy-port",
    "allow-lan",
    "bind-address",
    "authentication",
    "mode",
    "log-level",
    "hosts",
    "dns",
    "proxies",
    "proxy-groups",
    "proxy-providers",
    "rule-providers",
    "sub-rules",
    "rules",
    "listeners",
    "tunnels",
    "ss-config",
    "geodata-mode",
    "geo-auto-update",
    "geo-update-interval",
    "geox-url",
    "ipv6",
    "unified-delay",
    "global-ua",
    "profile",
    "plugins-allowed",
    "find-process-mode",
    "tun",
    "external-controller",
    "external-controller-unix",
    "external-controller-cors",
    "external-ui",
    "external-ui-name",
    "external-ui-url",
    "secret",
    "sniffer",
    "interface-name",
    "routing-mark",
    "lan-allowed-ips",
    "lan-disallowed-ips",
    "skip-auth-prefixes",
    // A control program says so.
    "sniffing",
];

/// Keys that do not change the way of traffic.
const QUIET: &[&str] = &[
    "tcp-concurrent",
    "keep-alive-idle",
    "keep-alive-interval",
    "disable-keep-alive",
    "global-client-fingerprint",
    "etag-support",
    "geodata-loader",
    "geosite-matcher",
    "experimental",
    "inbound-tfo",
    "inbound-mptcp",
    "clash-for-android",
];

/// Keys of services that are not there yet.
const LEFT_OUT: &[&str] = &[
    "external-controller-tls",
    "external-controller-pipe",
    "external-doh-server",
    "tls",
    "ntp",
    "vmess-config",
    "tuic-server",
];

/// Keys that would change the way of traffic with `enable: true`.
const SWITCHED: &[&str] = &["iptables"];

/// Whether a key does not change the way of traffic.
pub(crate) fn is_quiet(key: &str) -> bool {
    QUIET.contains(&key)
}

/// Names each key that has no effect, and refuses what would change the way.
pub(super) fn check(context: &mut Context<'_>, root: &JsonValue) {
    check_below(context, root);
    for member in yaml_access::members(root) {
        let key = member.key.as_str();
        let value = &member.value;
        let is_said = is_said(value) && yaml_access::text(value) != Some("false");
        if OBEYED.contains(&key) || key.starts_with("x-") || !is_said {
            continue;
        }
        if QUIET.contains(&key) {
            context.without_effect.push((member.at, key.to_owned()));
            continue;
        }
        if LEFT_OUT.contains(&key) {
            context.remark(member.at, key, "left out: adit does not serve it yet", "");
        } else if SWITCHED.contains(&key) {
            if yaml_access::is_on(value, "enable") {
                let problem = "adit cannot obey it yet, and traffic would take another way without it";
                context.refuse(yaml_access::at(value, "enable"), format!("{key}.enable"), problem);
            }
        } else if !is_anchor(value) {
            context.remark(member.at, key, "unknown key, left out", "");
        }
    }
}

/// A mapping below the top: its keys that are obeyed or have no effect on the way, and those among them that would change
/// the way.
struct Below {
    keys: &'static KeyKinds,
    refused: &'static [&'static str],
}

// mihomo has taken `interface-name` and `routing-mark` of groups out as well.
const GROUP: Below = Below { keys: tables::GROUP, refused: &[] };
const PROXY_PROVIDER: Below = Below { keys: tables::PROXY_PROVIDER, refused: &[] };
const HEALTH_CHECK: Below = Below { keys: tables::HEALTH_CHECK, refused: &[] };
const RULE_PROVIDER: Below = Below { keys: tables::RULE_PROVIDER, refused: &[] };
const LISTENER: Below = Below { keys: tables::LISTENER, refused: &["routing-mark"] };
/// Listeners that are servers.
const SERVER: Below = Below { keys: tables::SERVER, refused: &["routing-mark"] };
const TUNNEL: Below = Below { keys: tables::TUNNEL, refused: &[] };
const PROFILE: Below = Below { keys: tables::PROFILE, refused: &[] };

/// Names the keys that have no effect and do not change the way, all in one remark: nearly every file has some.
pub(super) fn remark_without_effect(context: &mut Context<'_>) {
    /// Most keys that are named.
    const MAX_NAMED: usize = 40;
    let found = std::mem::take(&mut context.without_effect);
    let Some((first, _)) = found.first() else { return };
    let named = found.iter().take(MAX_NAMED).map(|(at, key)| {
        let (line, column) = context.source.locate(*at);
        format!("{key} ({line}:{column})")
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = found.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let at = *first;
    context.remark(
        at,
        "",
        format!("left out, since they do not change the way of traffic: {named}{more}"),
        "",
    );
}

/// Names each key of mappings below the top that has no effect.
fn check_below(context: &mut Context<'_>, root: &JsonValue) {
    if let Some(profile) = yaml_access::get(root, "profile") {
        below(context, profile, "profile", &PROFILE);
    }
    for (key, kind) in [("proxy-groups", &GROUP), ("listeners", &LISTENER), ("tunnels", &TUNNEL)] {
        for (n, item) in
            yaml_access::get(root, key).map(yaml_access::items).unwrap_or_default().iter().enumerate()
        {
            let is_server =
                matches!(yaml_access::text_of(item, "type"), Some("shadowsocks" | "snell" | "tproxy"));
            let kind = if key == "listeners" && is_server { &SERVER } else { kind };
            below(context, item, &format!("{key}[{n}]"), kind);
        }
    }
    for (key, kind) in [("proxy-providers", &PROXY_PROVIDER), ("rule-providers", &RULE_PROVIDER)] {
        for member in yaml_access::get(root, key).map(yaml_access::members).unwrap_or_default() {
            let path = format!("{key}.{}", member.key);
            below(context, &member.value, &path, kind);
            if let Some(check) = yaml_access::get(&member.value, "health-check") {
                below(context, check, &format!("{path}.health-check"), &HEALTH_CHECK);
            }
        }
    }
}

fn below(context: &mut Context<'_>, value: &JsonValue, path: &str, kind: &Below) {
    for member in yaml_access::members(value) {
        let key = member.key.replace('_', "-");
        let is_refused = kind.refused.contains(&&*key);
        if (kinds::find(kind.keys, &key).is_some() && !is_refused) || !is_said(&member.value) {
            continue;
        }
        let path = format!("{path}.{}", member.key);
        if is_refused {
            let problem = "adit cannot obey it yet, and traffic would take another way without it";
            context.refuse(member.at, path, problem);
        } else if key == "udp" && yaml_access::is_on(value, &key) {
            // It is so without the key.
        } else {
            context.remark(member.at, path, "left out: adit does not read it", "");
        }
    }
}

/// Whether a value says anything but no.
fn is_said(value: &JsonValue) -> bool {
    yaml_access::text(value).is_some_and(|text| !text.is_empty() && text != "0")
        || !yaml_access::items(value).is_empty()
        || !yaml_access::members(value).is_empty()
}

/// Mappings at the top that hold nothing but parts for elsewhere are common: `p: &p {..}`.
fn is_anchor(value: &JsonValue) -> bool {
    !yaml_access::members(value).is_empty()
}

/// `mode`, `log-level` and `ipv6`.
pub(super) fn mode(context: &mut Context<'_>, root: &JsonValue, setup: &mut ClashSetup) {
    let Some(value) = yaml_access::get(root, "mode") else { return };
    let target = match yaml_access::text(value).unwrap_or_default().to_lowercase().as_str() {
        "rule" => return,
        "global" => proxy::GLOBAL,
        "direct" => proxy::DIRECT,
        _ => return context.error(value.at, "mode", "unknown mode: rule, global or direct"),
    };
    let Some(found) = context.target(target) else { return };
    let outbound: Tag = match &found.verdict {
        Verdict::Outbound(tag) | Verdict::Ask { outbound: tag, .. } => tag.clone(),
        Verdict::Default
        | Verdict::Reject(_)
        | Verdict::Pass(_)
        | Verdict::Streams { .. }
        | Verdict::Again { .. } => {
            context.refuse(value.at, "mode", format!("{target} refuses everything"));
            return;
        }
    };
    setup.mode = Some((if target == proxy::GLOBAL { "mode global" } else { "mode direct" }, target.into()));
    for inbound in &mut setup.config.inbounds {
        if !setup.fixed.contains_key(&inbound.name) {
            inbound.outbound = outbound.clone();
        }
    }
}

/// Most patterns of names in `hosts`: each name is compared with all of them.
const MAX_PATTERNS: usize = 4096;

/// `hosts`: names with addresses, and names that stand for others.
pub(super) fn hosts(context: &mut Context<'_>, root: &JsonValue, setup: &mut ClashSetup) {
    let dns = &mut setup.config.dns;
    let mut patterns = 0;
    for member in yaml_access::get(root, "hosts").map(yaml_access::members).unwrap_or_default() {
        let name = ascii_name(&member.key);
        let path = format!("hosts.{}", member.key);
        if is_pattern(&name) {
            patterns += 1;
            if patterns > MAX_PATTERNS || fake_pattern(&name).is_none() {
                let problem = format!("no pattern of names, or more than {MAX_PATTERNS}");
                context.error(member.at, path, problem);
                continue;
            }
        }
        let one = yaml_access::text(&member.value).map(|text| (text, member.value.at));
        let all = yaml_access::items(&member.value)
            .iter()
            .filter_map(|item| Some((yaml_access::text(item)?, item.at)));
        let texts: Vec<&str> = one.into_iter().chain(all).map(|(text, _)| text).collect();
        let ips: Result<Vec<IpAddr>, _> = texts.iter().map(|text| text.parse()).collect();
        match (ips, &*texts) {
            (Ok(ips), [_, ..]) => dns.hosts.push((name.into(), ips)),
            (Err(_), ["lan"]) => context.refuse(member.at, path, "own addresses by `lan` are not read yet"),
            (Err(_), [other]) => dns.aliases.push((name.into(), ascii_name(other).into())),
            _ => context.error(member.at, path, "expected addresses, or one name"),
        }
    }
    let aliases: Map<&str, &str> = dns.aliases.iter().map(|(name, other)| (&**name, &**other)).collect();
    for start in aliases.keys() {
        let (mut seen, mut name) = (BTreeSet::new(), start);
        while let Some(next) = aliases.get(name) {
            if !seen.insert(name) {
                context.error(0, "hosts", format!("{start} stands for itself"));
                return;
            }
            name = next;
        }
    }
}

/// `interface-name` and `routing-mark`: for each outbound that says nothing else, and for questions to name servers.
/// After the capture, which knows the sockets of this process by a mark.
pub(super) fn egress(context: &mut Context<'_>, root: &JsonValue, setup: &mut ClashSetup) {
    let mut general = Egress::default();
    if let Some(value) = yaml_access::get(root, "interface-name") {
        match yaml_access::text(value).filter(|text| !text.is_empty()).map(value::interface).transpose() {
            Ok(name) => general.interface = name,
            Err(problem) => context.error(value.at, "interface-name", problem.text),
        }
    }
    if let Some(value) = yaml_access::get(root, "routing-mark") {
        let text = yaml_access::text(value).unwrap_or_default();
        let number = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => text.parse(),
        };
        match (number, &mut setup.config.capture) {
            (Ok(0), _) => {}
            (Ok(mark), Some(capture)) if mark == capture.mark => {
                context.error(value.at, "routing-mark", "it is the mark of captured packets");
            }
            (Ok(mark), Some(capture)) => capture.own_mark = mark,
            (Ok(mark), None) => general.mark = Some(mark),
            (Err(_), _) => context.error(value.at, "routing-mark", "expected a number up to 4294967295"),
        }
    }
    if general == Egress::default() {
        return;
    }
    for outbound in &mut setup.config.outbounds {
        let dials = !matches!(
            outbound.protocol,
            OutboundProtocol::Reject
                | OutboundProtocol::Refuse(_)
                | OutboundProtocol::Choice(_)
                | OutboundProtocol::Group(_)
                | OutboundProtocol::Dns { .. }
        );
        if dials {
            outbound.dial.egress = std::mem::take(&mut outbound.dial.egress).or(&general);
        }
    }
    setup.config.dns.egress = general;
}

/// `find-process-mode`.
pub(super) fn find_program(context: &mut Context<'_>, root: &JsonValue, setup: &mut ClashSetup) {
    let Some(value) = yaml_access::get(root, "find-process-mode") else { return };
    let word = yaml_access::text(value).unwrap_or_default().to_lowercase();
    match FindProgram::ALL.iter().find(|(name, _)| *name == word) {
        Some((_, mode)) => setup.config.find_program = *mode,
        None => context.error(value.at, "find-process-mode", "unknown mode: off, strict or always"),
    }
}

/// `log-level`, and `dns` with the family of the whole file.
pub(super) fn dns(context: &mut Context<'_>, root: &JsonValue, setup: &mut ClashSetup) {
    let level = yaml_access::text_of(root, "log-level").map(str::to_lowercase);
    setup.config.log.level = match level.as_deref() {
        Some("silent" | "error") => Level::Error,
        Some("warning" | "warn") => Level::Warn,
        Some("debug") => Level::Debug,
        None | Some("info") => Level::Info,
        Some(_) => {
            let problem = "unknown level: silent, error, warning, info or debug";
            context.error(yaml_access::at(root, "log-level"), "log-level", problem);
            Level::Info
        }
    };
    let is_v4 = yaml_access::is_off(root, "ipv6");
    dns::read(context, root, setup, if is_v4 { AddressFamilies::V4Only } else { AddressFamilies::PreferV4 });
}
