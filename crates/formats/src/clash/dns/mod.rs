//! `dns`: name servers, fake addresses, and the port that answers questions.
//!
//! Keys that are not in the table would give names other addresses, so they stop the start. A server that adit cannot ask
//! costs its entry; where no other is left, names of that list fail. A list that cannot be read is never one that is not
//! written.

mod fallback;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use adit_model::rule::{Matcher, Verdict};
use adit_model::{
    AddressFamilies, Dns, DnsInbound, DnsPolicy, DnsTransport, Fake, FakeFilter, FakeMode, FakeRange,
    FakeStore, Inbound, InboundProtocol, NameServer, OutboundProtocol, SocketOptions, Tag, Upstream,
    fake_pattern,
};
use adit_proto::wire::Host;

use super::name::ascii_name;
use super::{ClashSetup, Context, name_server, proxy, tables};
use crate::read::json::JsonValue;
use crate::read::kinds;
use crate::read::value;
use crate::read::yaml_access;

/// The filter of a file that has none.
const FILTER: [&str; 3] = ["dns.msftnsci.com", "www.msftnsci.com", "www.msftconnecttest.com"];
/// The file of fake addresses, beside the configuration.
const STORE: &str = "adit-fake-ip";
/// The name that has an address without being written.
pub(super) const LOCAL: &str = "localhost";
/// Port of a name server.
const PORT: u16 = 53;

/// Reads `dns`, after the outbounds; `family` is that of the whole file.
pub(crate) fn read(
    context: &mut Context<'_>,
    root: &JsonValue,
    setup: &mut ClashSetup,
    family: AddressFamilies,
) {
    let (hosts, aliases) = (setup.config.dns.hosts.clone(), setup.config.dns.aliases.clone());
    let mut hosts = hosts;
    if !hosts.iter().any(|(name, _)| **name == *LOCAL) {
        hosts.push((LOCAL.into(), vec![Ipv4Addr::LOCALHOST.into()]));
    }
    setup.config.dns = Dns { hosts_are_known: true, family, hosts, aliases, ..Dns::default() };
    let Some(value) = yaml_access::get(root, "dns").filter(|value| yaml_access::is_on(value, "enable"))
    else {
        return;
    };
    refuse_others(context, value);
    let plain = plain_servers(context, value, "default-nameserver");
    context.respects_rules = yaml_access::is_on(value, "respect-rules");
    let mut upstreams =
        servers(context, yaml_access::texts_of(value, "nameserver"), "dns.nameserver", &plain);
    if upstreams.iter().all(|server| **server == Upstream::system(None, None)) {
        // Those of a list that is not written.
        upstreams.clear();
    }
    setup.name_servers.extend(
        yaml_access::texts_of(value, "nameserver").into_iter().filter_map(|(text, _)| name_server(text)),
    );
    let mut policy = policies(context, value, &plain);
    let fallback = fallback::read(context, value, &plain, &mut policy);
    if std::mem::take(&mut context.respects_rules) {
        let texts = yaml_access::texts_of(value, "proxy-server-nameserver");
        if texts.is_empty() {
            let problem = "it needs proxy-server-nameserver, which is asked for the servers of proxies";
            context.error(yaml_access::at(value, "respect-rules"), "dns.respect-rules", problem);
        }
    }
    policy.extend(proxy_policies(context, value, setup, &plain));
    let direct = plain_servers(context, value, "direct-nameserver");
    for outbound in setup.config.outbounds.iter_mut().filter(|outbound| *outbound.name == *proxy::DIRECT) {
        outbound.dial.dns.clone_from(&direct);
    }
    setup.config.dns.system_hosts_are_known = !yaml_access::is_off(value, "use-system-hosts");
    for (key, problem) in [
        ("use-hosts", "no effect: answers come from `hosts`"),
        ("use-system-hosts", "rules do not see the system's hosts; answers come from them still"),
    ] {
        if yaml_access::is_off(value, key) {
            context.remark(yaml_access::at(value, key), format!("dns.{key}"), problem, "");
        }
    }
    let fake = match yaml_access::text_of(value, "enhanced-mode") {
        Some("fake-ip") => fake(context, root, value),
        Some("redir-host") | None => None,
        Some("normal") => None,
        Some(other) => {
            let problem = format!("unknown mode: {}", value::excerpt(other));
            context.error(yaml_access::at(value, "enhanced-mode"), "dns.enhanced-mode", problem);
            None
        }
    };
    let is_mapped = !matches!(yaml_access::text_of(value, "enhanced-mode"), Some("fake-ip" | "normal"));
    let dns = &mut setup.config.dns;
    (dns.upstreams, dns.policy, dns.fake, dns.reverse_map) = (upstreams, policy, fake, is_mapped);
    dns.fallback = fallback.map(Box::new);
    let ipv6 = yaml_access::is_on(value, "ipv6") && !yaml_access::is_off(root, "ipv6");
    for outbound in &mut setup.config.outbounds {
        if let OutboundProtocol::Dns { ipv6: answers } = &mut outbound.protocol {
            *answers = ipv6;
        }
    }
    let inbound = listener(context, value, ipv6);
    setup.config.inbounds.extend(inbound);
}

/// Keys of these have no effect.
const WITHOUT_EFFECT: [&str; 5] =
    ["cache-algorithm", "cache-max-size", "prefer-h3", "ipv6-timeout", "fallback-filter"];

fn refuse_others(context: &mut Context<'_>, value: &JsonValue) {
    let has_fallback = !yaml_access::texts_of(value, "fallback").is_empty();
    for member in yaml_access::members(value) {
        let is_used = has_fallback && member.key == "fallback-filter";
        if WITHOUT_EFFECT.contains(&&*member.key) && !is_used {
            context.without_effect.push((member.at, format!("dns.{}", member.key)));
        }
        let is_said = !yaml_access::items(&member.value).is_empty()
            || !yaml_access::members(&member.value).is_empty()
            || matches!(
                yaml_access::text(&member.value),
                Some("true" | "True" | "TRUE" | "yes" | "on" | "1")
            );
        if kinds::find(tables::DNS, &member.key).is_some() {
            continue;
        }
        if !is_said
            && yaml_access::text(&member.value).is_some_and(|text| !matches!(text, "" | "false" | "0"))
        {
            let path = format!("dns.{}", member.key);
            context.remark(member.at, path, "left out: adit does not read it", "");
        }
        if is_said {
            let problem = "adit cannot obey it yet, and names would have other addresses without it";
            context.refuse(member.at, format!("dns.{}", member.key), problem);
        }
    }
}

/// The port that answers questions.
fn listener(context: &mut Context<'_>, value: &JsonValue, ipv6: bool) -> Option<Inbound> {
    let text = yaml_access::text_of(value, "listen").filter(|text| !text.is_empty())?;
    let listen = match value::listen(text) {
        Ok(listen) => listen,
        Err(problem) => {
            context.error(yaml_access::at(value, "listen"), "dns.listen", problem.text);
            return None;
        }
    };
    let mut server = DnsInbound { ipv6, ..DnsInbound::default() };
    if !listen.ip().to_canonical().is_loopback() {
        server.allow = DnsInbound::private_networks();
        let at = yaml_access::at(value, "listen");
        context.remark(at, "dns.listen", "it answers this machine and private networks alone", "");
    }
    Some(Inbound {
        name: "DEFAULT-DNS".into(),
        listen: vec![listen],
        socket: SocketOptions::default(),
        outbound: proxy::DIRECT.into(),
        allow_private: true,
        protocol: InboundProtocol::Dns(server),
    })
}

/// The same server is asked over HTTP/2.
const HTTP_3: &str = "h3=true";

/// The servers of a list. `bootstrap` are asked for the addresses of those that have names.
fn servers(
    context: &mut Context<'_>,
    texts: Vec<(&str, usize)>,
    path: &str,
    bootstrap: &[NameServer],
) -> Vec<Arc<Upstream>> {
    let mut found: Vec<Arc<Upstream>> = Vec::new();
    let first = texts.first().map(|(_, at)| *at);
    for (text, at) in texts {
        match server(context, text, bootstrap) {
            Ok(server) => {
                if text.split(['#', '&']).skip(1).any(|part| part == HTTP_3) {
                    context.without_effect.push((at, format!("{HTTP_3} of {path}")));
                }
                found.push(Arc::new(server));
            }
            Err(problem) => context.remark(at, path, format!("left out: {problem}"), ""),
        }
    }
    if let (true, Some(at)) = (found.is_empty(), first) {
        context.remark(at, path, NONE_LEFT, "");
        found.push(Arc::new(Upstream::refused()));
    }
    found
}

/// No server of a list that is written can be asked.
const NONE_LEFT: &str = "no server of this list can be asked, so names that it is for fail";

/// The outbound behind `#`, if there is one.
fn outbound_of(context: &Context<'_>, rest: &str) -> Result<Option<Tag>, String> {
    let mut through = None;
    for part in rest.split('&').filter(|part| !part.is_empty()) {
        if part.contains('=') {
            if !part.ends_with("=false") && part != HTTP_3 {
                return Err(format!("not read yet: {}", value::excerpt(part)));
            }
            continue;
        }
        match context.target(part).map(|target| &target.verdict) {
            Some(Verdict::Outbound(tag) | Verdict::Ask { outbound: tag, .. }) => through = Some(tag.clone()),
            Some(
                Verdict::Default
                | Verdict::Reject(_)
                | Verdict::Pass(_)
                | Verdict::Streams { .. }
                | Verdict::Again { .. },
            ) => {
                return Err(format!("{} refuses everything", value::excerpt(part)));
            }
            None => return Err(format!("no proxy of this name: {}", value::excerpt(part))),
        }
    }
    Ok(through)
}

/// Whether a server without its `#` stands for those of the system.
fn is_system(text: &str) -> bool {
    let text = text.strip_suffix("://").unwrap_or(text);
    text.eq_ignore_ascii_case(NameServer::SYSTEM)
}

/// `system`, `address`, `udp://..`, `tcp://..`, `tls://..` or `https://..`, and `#` with a proxy.
fn server(context: &Context<'_>, text: &str, bootstrap: &[NameServer]) -> Result<Upstream, String> {
    let (plain, rest) = text.split_once('#').unwrap_or((text, ""));
    let through = outbound_of(context, rest)?;
    let by_rules = (context.respects_rules && through.is_none()).then(|| proxy::DIRECT.into());
    let through = through.filter(|tag| **tag != *proxy::DIRECT);
    if is_system(plain) {
        return Ok(Upstream::system(through, by_rules));
    }
    let (_, transport, server) = crate::read::name_servers::server(plain)
        .map_err(|_| format!("not read yet: {}", value::excerpt(text)))?;
    let bootstrap = if matches!(server.host, Host::Ip(_)) { Vec::new() } else { bootstrap.to_vec() };
    // A path may hold a token, which messages should not show.
    let short = match &transport {
        DnsTransport::Https { authority, .. } => format!("https://{authority}"),
        DnsTransport::Udp
        | DnsTransport::Tcp
        | DnsTransport::Tls { .. }
        | DnsTransport::System
        | DnsTransport::Refused => plain.to_owned(),
    };
    let name = match &through {
        Some(tag) => format!("{short}#{tag}"),
        None => short,
    };
    let name = name.chars().take(MAX_NAME).collect::<String>().into();
    Ok(Upstream { name, transport, server, bootstrap, through, by_rules })
}

/// Longest name of a server, in characters.
const MAX_NAME: usize = 64;

/// Servers of plain DNS with addresses, and those of the system.
fn plain_servers(context: &mut Context<'_>, value: &JsonValue, key: &str) -> Vec<NameServer> {
    let mut found = Vec::new();
    let texts = yaml_access::texts_of(value, key);
    let first = texts.first().map(|(_, at)| *at);
    for (text, at) in texts {
        let text = text.strip_prefix("udp://").unwrap_or(text);
        let bare = text.trim_matches(['[', ']']).parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT));
        match text.parse().or(bare) {
            Ok(server) => found.push(NameServer::At(server)),
            Err(_) if is_system(text) => found.push(NameServer::System),
            Err(_) => {
                let problem = format!("left out: not read yet: {}", value::excerpt(text));
                context.remark(at, format!("dns.{key}"), problem, "");
            }
        }
    }
    if let (true, Some(at)) = (found.is_empty(), first) {
        context.remark(at, format!("dns.{key}"), NONE_LEFT, "");
        found.push(NameServer::Refused);
    }
    found
}

/// `nameserver-policy`: patterns of names, each with its servers.
fn policies(context: &mut Context<'_>, value: &JsonValue, bootstrap: &[NameServer]) -> Vec<DnsPolicy> {
    let mut found = Vec::new();
    for member in yaml_access::get(value, "nameserver-policy").map(yaml_access::members).unwrap_or_default() {
        let path = format!("dns.nameserver-policy.{}", member.key);
        let texts = yaml_access::items(&member.value).iter();
        let texts: Vec<(&str, usize)> =
            texts.filter_map(|item| Some((yaml_access::text(item)?, item.at))).collect();
        let mut upstreams = servers(context, texts, &path, bootstrap);
        if upstreams.is_empty() {
            context.remark(member.at, path.clone(), NONE_LEFT, "");
            upstreams.push(Arc::new(Upstream::refused()));
        }
        for domain in policy_domains(context, &member.key) {
            match domain {
                Ok(domain) => found.push(DnsPolicy { domain, upstreams: upstreams.clone(), direct: false }),
                Err(problem) => context.refuse(member.at, path.clone(), problem),
            }
        }
    }
    found
}

/// The names that a key of `nameserver-policy` is about; `geosite:` and `rule-set:` hold for all parts behind them.
fn policy_domains(context: &mut Context<'_>, key: &str) -> Vec<Result<Box<str>, String>> {
    let lists =
        ["geosite:", DnsPolicy::SET].into_iter().find_map(|lead| Some((lead, key.strip_prefix(lead)?)));
    let parts = lists.map_or(key, |(_, rest)| rest).split(',').map(str::trim);
    let mut found = Vec::new();
    for part in parts.filter(|part| !part.is_empty()) {
        let unread = || format!("patterns like this are not read yet: {}", value::excerpt(part));
        found.push(match lists {
            None => policy_domain(part).ok_or_else(unread),
            Some(("geosite:", _)) if part.starts_with('!') => Err(unread()),
            Some(("geosite:", _)) => Ok(policy_set(&context.site_list(part))),
            Some(_) => match set(context, part) {
                Ok(FakeFilter::Set(list)) => Ok(policy_set(&list)),
                Ok(FakeFilter::Usual | FakeFilter::Pattern(_)) => Err(unread()),
                Err(problem) => Err(problem),
            },
        });
    }
    found
}

/// The names of a list, as a policy says it.
fn policy_set(list: &Tag) -> Box<str> {
    format!("{}{list}", DnsPolicy::SET).into()
}

/// A name alone, or one with all below it.
fn policy_domain(pattern: &str) -> Option<Box<str>> {
    let pattern = ascii_name(pattern.trim());
    let (lead, name) = match pattern.strip_prefix("+.") {
        Some(name) => ("", name),
        None => ("=", &*pattern),
    };
    let is_plain = !name.starts_with('.') && !name.contains(['*', '+', ':', '/']);
    (is_plain && fake_pattern(name).is_some()).then(|| format!("{lead}{name}").into())
}

/// `proxy-server-nameserver`: who is asked for the servers of proxies.
fn proxy_policies(
    context: &mut Context<'_>,
    value: &JsonValue,
    setup: &ClashSetup,
    bootstrap: &[NameServer],
) -> Vec<DnsPolicy> {
    const KEY: &str = "proxy-server-nameserver";
    let upstreams =
        servers(context, yaml_access::texts_of(value, KEY), "dns.proxy-server-nameserver", bootstrap);
    if upstreams.is_empty() {
        return Vec::new();
    }
    let names = setup.config.server_names();
    let policy = |name: Box<str>| DnsPolicy {
        domain: format!("={name}").into(),
        upstreams: upstreams.clone(),
        direct: false,
    };
    names.into_iter().map(policy).collect()
}

/// Fake addresses.
fn fake(context: &mut Context<'_>, root: &JsonValue, value: &JsonValue) -> Option<Fake> {
    let range = |context: &mut Context<'_>, key: &str, is_ipv6: bool| {
        let text = yaml_access::text_of(value, key)?;
        let range = text.parse::<FakeRange>().ok().filter(|range| range.is_ipv6() == is_ipv6);
        if range.is_none() {
            let problem = format!("no network that can be used: {}", value::excerpt(text));
            context.error(yaml_access::at(value, key), format!("dns.{key}"), problem);
        }
        range
    };
    let v4 = range(context, "fake-ip-range", false);
    let v6 = range(context, "fake-ip-range6", true);
    let mode = match yaml_access::text_of(value, "fake-ip-filter-mode") {
        None | Some("blacklist") => FakeMode::Blacklist,
        Some("whitelist") => FakeMode::Whitelist,
        Some(other) => {
            let problem = format!("not read yet: {}", value::excerpt(other));
            context.refuse(yaml_access::at(value, "fake-ip-filter-mode"), "dns.fake-ip-filter-mode", problem);
            FakeMode::Blacklist
        }
    };
    let profile = yaml_access::get(root, "profile");
    let is_kept = profile.is_some_and(|profile| yaml_access::is_on(profile, "store-fake-ip"));
    let store = if is_kept { FakeStore::At(store_path(context)) } else { FakeStore::Off };
    let ttl = yaml_access::number_of(value, "fake-ip-ttl").unwrap_or(1).min(3600);
    Some(Fake {
        v4: v4.unwrap_or_else(|| "198.18.0.1/16".parse().expect("a range of IPv4")),
        v6,
        filter: filter(context, value),
        mode,
        ttl: std::time::Duration::from_secs(ttl),
        store,
    })
}

fn store_path(context: &Context<'_>) -> PathBuf {
    context.home.join(STORE)
}

fn filter(context: &mut Context<'_>, value: &JsonValue) -> Vec<FakeFilter> {
    let given = yaml_access::texts_of(value, "fake-ip-filter");
    if yaml_access::get(value, "fake-ip-filter").is_none() {
        return FILTER.iter().map(|name| FakeFilter::Pattern((*name).into())).collect();
    }
    let mut found = Vec::new();
    for (text, at) in given {
        let entry = if let Some(name) = text.strip_prefix("rule-set:") {
            set(context, name)
        } else if let Some(code) = text.strip_prefix("geosite:") {
            Ok(FakeFilter::Set(context.site_list(code)))
        } else {
            let pattern = fake_pattern(&ascii_name(text));
            let bad = || format!("no pattern of names: {}", value::excerpt(text));
            pattern.map(FakeFilter::Pattern).ok_or_else(bad)
        };
        match entry {
            Ok(entry) => found.push(entry),
            Err(problem) => context.refuse(at, "dns.fake-ip-filter", problem),
        }
    }
    found
}

/// The list of a rule provider, if it is one of names alone.
fn set(context: &Context<'_>, name: &str) -> Result<FakeFilter, String> {
    let matcher = context.provider(name, super::Params::default())?;
    if let Matcher::Set(tags, _) = &matcher
        && let [tag] = &**tags
    {
        return Ok(FakeFilter::Set(tag.clone()));
    }
    Err(format!("the rule set {} is no list of names alone", value::excerpt(name)))
}
