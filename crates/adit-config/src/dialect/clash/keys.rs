//! Keys at the top of the file: obeyed, without effect, or unable to be obeyed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::name::ascii_name;
use super::{Context, Setup, names, proxy, tree};
use crate::dialect::json::Value;
use crate::model::rule::Verdict;
use crate::model::{Family, Level, Tag};

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
    "geodata-mode",
    "ipv6",
    "unified-delay",
    "global-ua",
    "profile",
    "plugins-allowed",
    "external-controller",
    "external-controller-unix",
    "external-controller-cors",
    "external-ui",
    "external-ui-name",
    "external-ui-url",
    "secret",
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
    "geo-auto-update",
    "geo-update-interval",
    "geox-url",
    "experimental",
    "find-process-mode",
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
    "ss-config",
    "vmess-config",
    "tuic-server",
    "tunnels",
];

/// Keys that would change the way of traffic or who may use it, when they say something.
const REFUSED: &[&str] =
    &["interface-name", "routing-mark", "lan-allowed-ips", "lan-disallowed-ips", "skip-auth-prefixes"];

/// Keys that are the same with `enable: true`.
const SWITCHED: &[&str] = &["tun", "sniffer", "iptables"];

/// Whether a key does not change the way of traffic.
pub(in crate::dialect) fn is_quiet(key: &str) -> bool {
    QUIET.contains(&key)
}

/// Names each key that has no effect, and refuses what would change the way.
pub(super) fn check(context: &mut Context<'_>, root: &Value) {
    for member in tree::members(root) {
        let key = member.key.as_str();
        let value = &member.value;
        let is_said = tree::text(value)
            .is_some_and(|text| !text.is_empty() && text != "0" && text != "false")
            || !tree::items(value).is_empty()
            || !tree::members(value).is_empty();
        if OBEYED.contains(&key) || QUIET.contains(&key) || key.starts_with("x-") || !is_said {
            continue;
        }
        if LEFT_OUT.contains(&key) {
            context.remark(member.at, key, "left out: adit does not serve it yet", "");
        } else if REFUSED.contains(&key) {
            context.refuse(
                member.at,
                key,
                "adit cannot obey it yet, and traffic would take another way without it",
            );
        } else if SWITCHED.contains(&key) {
            if tree::is_on(value, "enable") {
                let problem = "adit cannot obey it yet, and traffic would take another way without it";
                context.refuse(member.at, key, problem);
            }
        } else if !is_anchor(value) {
            context.remark(member.at, key, "unknown key, left out", "");
        }
    }
}

/// Mappings at the top that hold nothing but parts for elsewhere are common: `p: &p {..}`.
fn is_anchor(value: &Value) -> bool {
    !tree::members(value).is_empty()
}

/// `mode`, `log-level` and `ipv6`.
pub(super) fn mode(context: &mut Context<'_>, root: &Value, setup: &mut Setup) {
    let Some(value) = tree::get(root, "mode") else { return };
    let target = match tree::text(value).unwrap_or_default().to_lowercase().as_str() {
        "rule" => return,
        "global" => proxy::GLOBAL,
        "direct" => proxy::DIRECT,
        _ => return context.error(value.at, "mode", "unknown mode: rule, global or direct"),
    };
    let Some(found) = context.target(target) else { return };
    let outbound: Tag = match &found.verdict {
        Verdict::Outbound(tag) | Verdict::Ask { outbound: tag, .. } => tag.clone(),
        Verdict::Default | Verdict::Reject(_) | Verdict::Pass(_) | Verdict::Streams { .. } => {
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

/// `hosts`: names with addresses, and names that stand for others.
pub(super) fn hosts(context: &mut Context<'_>, root: &Value, setup: &mut Setup) {
    for member in tree::get(root, "hosts").map(tree::members).unwrap_or_default() {
        let name = ascii_name(&member.key);
        let path = format!("hosts.{}", member.key);
        if name.contains(['*', '+']) || name.starts_with('.') {
            context.refuse(member.at, path, "names with wildcards are not read yet");
            continue;
        }
        let one = tree::text(&member.value).map(|text| (text, member.value.at));
        let all = tree::items(&member.value).iter().filter_map(|item| Some((tree::text(item)?, item.at)));
        let texts: Vec<&str> = one.into_iter().chain(all).map(|(text, _)| text).collect();
        let ips: Result<Vec<IpAddr>, _> = texts.iter().map(|text| text.parse()).collect();
        match (ips, &*texts) {
            (Ok(ips), [_, ..]) => setup.config.dns.hosts.push((name.into(), ips)),
            (Err(_), ["lan"]) => context.refuse(member.at, path, "own addresses by `lan` are not read yet"),
            (Err(_), [other]) => {
                setup.aliases.insert(name.into(), ascii_name(other).into());
                context.refuse(member.at, path, "names that stand for other names are not carried yet");
            }
            _ => context.error(member.at, path, "expected addresses, or one name"),
        }
    }
    for start in setup.aliases.keys() {
        let (mut seen, mut name) = (BTreeSet::new(), start);
        while let Some(next) = setup.aliases.get(name) {
            if !seen.insert(name) {
                context.error(0, "hosts", format!("{start} stands for itself"));
                return;
            }
            name = next;
        }
    }
}

/// `log-level`, and `dns` with the family of the whole file.
pub(super) fn dns(context: &mut Context<'_>, root: &Value, setup: &mut Setup) {
    setup.config.log.level = match tree::text_of(root, "log-level") {
        Some("silent" | "error") => Level::Error,
        Some("warning") => Level::Warn,
        Some("debug") => Level::Debug,
        _ => Level::Info,
    };
    let is_v4 = tree::text_of(root, "ipv6") == Some("false");
    names::read(context, root, setup, if is_v4 { Family::V4Only } else { Family::PreferV4 });
}
