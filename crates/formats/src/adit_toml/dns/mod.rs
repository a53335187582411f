//! `[dns]`: name servers, policy, hosts and cache.
//!
//! A server is written as `address`, `udp://address:port`, `tcp://..`, `tls://host:port` or `https://host/path`.
//! Policies and messages refer to it by its `name`, or else by the text itself.

mod fallback;
mod hosts;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_model::{
    AddressFamilies, Dns, DnsPolicy, DnsTransport, Egress, Fake, FakeFilter, FakeMode, FakeStore, Inbound,
    InboundProtocol, NameServer, Outbound, OutboundProtocol, Tag, Upstream,
};
use adit_proto::wire::Host;

use super::fields::{Span, Spanned, TomlFields, TomlReport};
use super::keys::TomlTable;
use super::rows::{MAX_NAME, Row, dns as rows};
use super::write::{TableEntries, Writer};
use crate::read::value::{self, Problem};

/// Longest time for which an answer can be remembered: RFC 8767 section 4.
const MAX_TTL: Duration = Duration::from_secs(7 * 24 * 3600);
/// Longest lifetime of an answer with a fake address.
const MAX_FAKE_TTL: Duration = Duration::from_secs(3600);
/// `[dns]` as it is written, before the outbounds are known.
pub(super) struct RawDns {
    dns: Dns,
    /// All servers, also those that only inbounds name.
    servers: Vec<Arc<Upstream>>,
    path: String,
    /// The outbounds that servers name, each with the server's place in the list and the key.
    through: Vec<(usize, &'static str, Spanned<Box<str>>)>,
}

/// The defaults, for a file without the table.
pub(super) fn none() -> RawDns {
    RawDns { dns: Dns::default(), servers: Vec::new(), path: String::new(), through: Vec::new() }
}

pub(crate) fn read(mut fields: TomlFields<'_>, report: &mut TomlReport<'_>) -> RawDns {
    let default = Dns::default();
    let mut raw = RawDns { path: "dns".into(), ..none() };
    let tables = fields.tables(report, &rows::UPSTREAM);
    let mut servers: Vec<(Arc<Upstream>, bool)> = Vec::new();
    for (at, table) in tables.unwrap_or_default().into_iter().enumerate() {
        let path = table.path(&rows::UPSTREAM_NAME);
        let place = table.at.clone();
        let Some((upstream, named, is_default)) = upstream(table, report) else { continue };
        if servers.iter().any(|(other, _)| other.name == upstream.name) {
            let problem = Problem::new(format!("the name is taken: {}", value::excerpt(&upstream.name)));
            report.error(&place, path, problem.hint("give one of them another name"));
            continue;
        }
        raw.through.extend(named.into_iter().map(|(key, name)| (at, key, name)));
        servers.push((Arc::new(upstream), is_default));
    }
    let policy = fields.tables(report, &rows::POLICY);
    let mut policies = Vec::new();
    for table in policy.unwrap_or_default() {
        policies.extend(policy_of(table, &servers, report));
    }
    let hosts = fields.tables(report, &rows::HOSTS);
    let (mut known, mut aliases) = (Vec::new(), Vec::new());
    for table in hosts.unwrap_or_default() {
        hosts::read(table, &mut known, &mut aliases, report);
    }
    let fallback = fields.table(report, &rows::FALLBACK);
    let fallback = fallback.and_then(|table| fallback::read(table, &servers, report)).map(Box::new);
    let fake = fields.table(report, &rows::FAKE).map(|table| fake(table, report));
    raw.servers = servers.iter().map(|(server, _)| server.clone()).collect();
    let min_ttl = ttl(&mut fields, report, &rows::MIN_TTL, default.min_ttl);
    let max_ttl = ttl(&mut fields, report, &rows::MAX_TTL, default.max_ttl);
    if min_ttl > max_ttl {
        let problem = Problem::new("longer than max-ttl").hint("make it shorter, or max-ttl longer");
        fields.wrong(report, &rows::MIN_TTL, problem);
    }
    raw.dns = Dns {
        upstreams: servers
            .into_iter()
            .filter(|(_, is_default)| *is_default)
            .map(|(server, _)| server)
            .collect(),
        policy: policies,
        hosts: known,
        aliases,
        hosts_are_known: default.hosts_are_known,
        system_hosts_are_known: default.system_hosts_are_known,
        cache: fields.read(report, &rows::CACHE).unwrap_or(default.cache),
        min_ttl,
        max_ttl: max_ttl.max(min_ttl),
        stale: fields.read(report, &rows::STALE).unwrap_or(default.stale),
        family: fields.read(report, &rows::FAMILY).unwrap_or(AddressFamilies::Any),
        fake,
        disable_browser_doh: fields.read(report, &rows::DISABLE_BROWSER_DOH).unwrap_or(false),
        reverse_map: fields.read(report, &rows::REVERSE_MAP).unwrap_or(false),
        fallback,
        egress: Egress {
            interface: fields.read(report, &rows::DNS_INTERFACE),
            mark: fields.read(report, &rows::DNS_FWMARK),
            ..Egress::default()
        },
    };
    fields.finish(report, None);
    raw
}

fn ttl(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    row: &'static Row<Duration>,
    default: Duration,
) -> Duration {
    let given = fields.read(report, row).unwrap_or(default);
    if given > MAX_TTL {
        let problem = Problem::new("longer than 7d").hint("RFC 8767 allows no more");
        fields.wrong(report, row, problem);
    }
    given.min(MAX_TTL)
}

type Read = (Upstream, Vec<(&'static str, Spanned<Box<str>>)>, bool);

fn upstream(mut fields: TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<Read> {
    let server = fields.require(report, &rows::SERVER);
    let address = fields.read(report, &rows::ADDRESS);
    let given = fields.read(report, &rows::UPSTREAM_NAME);
    let bootstrap = fields.read(report, &rows::BOOTSTRAP).unwrap_or_default();
    let through = fields.read(report, &rows::THROUGH);
    let by_rules = fields.read(report, &rows::BY_RULES);
    if through.is_some() && by_rules.is_some() {
        let problem = Problem::new("through says the outbound already").hint("leave one of them out");
        fields.wrong(report, &rows::BY_RULES, problem);
    }
    let is_default = fields.read(report, &rows::DEFAULT).unwrap_or(true);
    if let Some(Spanned { value: (_, _, target), .. }) = &server {
        let is_address = matches!(target.host, Host::Ip(_));
        if address.is_some() && is_address {
            let problem = Problem::new("server is an address already").hint("leave it out");
            fields.wrong(report, &rows::ADDRESS, problem);
        }
        if !bootstrap.is_empty() && (is_address || address.is_some()) {
            let problem = Problem::new("the address of the server is known").hint("leave it out");
            fields.wrong(report, &rows::BOOTSTRAP, problem);
        }
    }
    fields.finish(report, None);
    let Spanned { value: (text, transport, mut target), .. } = server?;
    if let Some(address) = address {
        target.host = Host::Ip(address);
    }
    let bootstrap: Vec<NameServer> = bootstrap.into_iter().map(|server| server.value).collect();
    let bootstrap = if matches!(target.host, Host::Ip(_)) { Vec::new() } else { bootstrap };
    // A path may hold a token, which messages should not show.
    let short = || match &transport {
        DnsTransport::Https { authority, .. } => cut(&format!("https://{authority}")),
        DnsTransport::Udp
        | DnsTransport::Tcp
        | DnsTransport::Tls { .. }
        | DnsTransport::System
        | DnsTransport::Refused => cut(&text),
    };
    let name = given.unwrap_or_else(short);
    let tag = |name: &Option<Spanned<Box<str>>>| name.as_ref().map(|name| Tag::from(&*name.value));
    let (behind, asked) = (tag(&through), tag(&by_rules));
    let server = Upstream { name, transport, server: target, bootstrap, through: behind, by_rules: asked };
    let through = through.map(|name| ("through", name));
    let named = through.into_iter().chain(by_rules.map(|name| ("by-rules", name))).collect();
    Some((server, named, is_default))
}

/// The text as a name.
fn cut(text: &str) -> Box<str> {
    text.chars().take(MAX_NAME).collect::<String>().into()
}

fn policy_of(
    mut fields: TomlFields<'_>,
    servers: &[(Arc<Upstream>, bool)],
    report: &mut TomlReport<'_>,
) -> Vec<DnsPolicy> {
    let domains = fields.require(report, &rows::POLICY_DOMAIN).unwrap_or_default();
    let names = fields.read(report, &rows::POLICY_UPSTREAM).unwrap_or_default();
    if names.is_empty() {
        let problem = Problem::new("missing").hint("write the names of the servers that are asked");
        fields.wrong(report, &rows::POLICY_UPSTREAM, problem);
    }
    let direct = fields.read(report, &rows::POLICY_DIRECT).unwrap_or(false);
    let servers: Vec<Arc<Upstream>> = servers.iter().map(|(server, _)| server.clone()).collect();
    let upstreams = named(names, &servers, &fields.path(&rows::POLICY_UPSTREAM), report);
    fields.finish(report, None);
    if upstreams.is_empty() {
        return Vec::new();
    }
    let policy =
        |domain: Spanned<Box<str>>| DnsPolicy { domain: domain.value, upstreams: upstreams.clone(), direct };
    domains.into_iter().map(policy).collect()
}

/// The servers of these names; those that are not there are reported.
fn named(
    names: Vec<Spanned<Box<str>>>,
    servers: &[Arc<Upstream>],
    path: &str,
    report: &mut TomlReport<'_>,
) -> Vec<Arc<Upstream>> {
    let mut found = Vec::new();
    for name in names {
        if let Some(server) = servers.iter().find(|server| server.name == name.value) {
            found.push(server.clone());
            continue;
        }
        let problem = Problem::new(format!("no such upstream: {}", value::excerpt(&name.value)));
        let problem = match value::closest(&name.value, servers.iter().map(|server| &*server.name)) {
            Some(name) => problem.hint(format!("did you mean `{name}`?")),
            None => problem.hint("add a [[dns.upstream]] of that name"),
        };
        report.error(&name.at, path, problem);
    }
    found
}

/// The names of servers that an inbound asks, with the path of the inbound.
#[derive(Default)]
pub(super) struct RawAsked {
    pub(super) upstreams: Vec<Spanned<Box<str>>>,
    pub(super) direct: Vec<Spanned<Box<str>>>,
}

/// Gives an inbound the servers that it asks.
pub(super) fn resolve_asked(
    protocol: &mut Option<InboundProtocol>,
    asked: RawAsked,
    path: &str,
    servers: &[Arc<Upstream>],
    report: &mut TomlReport<'_>,
) {
    let Some(InboundProtocol::Dns(server)) = protocol else { return };
    server.upstreams = named(asked.upstreams, servers, &format!("{path}.upstream"), report);
    server.direct = named(asked.direct, servers, &format!("{path}.direct-upstream"), report);
}

fn fake(mut fields: TomlFields<'_>, report: &mut TomlReport<'_>) -> Fake {
    let default = Fake::default();
    let ttl = fields.read(report, &rows::FAKE_TTL).unwrap_or(default.ttl);
    if ttl > MAX_FAKE_TTL || ttl.subsec_nanos() != 0 {
        let problem = Problem::new("not whole seconds up to 1h");
        fields.wrong(report, &rows::FAKE_TTL, problem);
    }
    let mode = fields.read(report, &rows::FAKE_MODE).unwrap_or_default();
    if mode == FakeMode::Whitelist && !fields.has(&rows::FAKE_FILTER) {
        let problem = Problem::new("there is no filter, so no name would get a fake address");
        fields.wrong(report, &rows::FAKE_MODE, problem.hint("add `filter` with the names that get one"));
    }
    let filter = fields.read(report, &rows::FAKE_FILTER);
    let filter = filter.map(|entries| entries.into_iter().map(|entry| entry.value).collect());
    let store = fields.read(report, &rows::FAKE_STORE);
    let fake = Fake {
        v4: fields.read(report, &rows::FAKE_RANGE).unwrap_or(default.v4),
        v6: fields.read(report, &rows::FAKE_RANGE6),
        filter: filter.unwrap_or(default.filter),
        mode,
        ttl,
        store: match store.as_deref() {
            None => FakeStore::Usual,
            Some("off") => FakeStore::Off,
            Some(path) => FakeStore::At(path.into()),
        },
    };
    fields.finish(report, None);
    fake
}

/// Refuses a filter that names a set which is not there.
pub(super) fn check_sets(dns: &Dns, sets: &[adit_model::rule::Set], report: &mut TomlReport<'_>) {
    for entry in dns.fake.iter().flat_map(|fake| &fake.filter) {
        if let FakeFilter::Set(name) = entry
            && !sets.iter().any(|set| set.name == *name)
        {
            let problem = Problem::new(format!("no such set: {}", value::excerpt(name)));
            let problem = match value::closest(name, sets.iter().map(|set| &*set.name)) {
                Some(name) => problem.hint(format!("did you mean `rule-set:{name}`?")),
                None => problem.hint("add a [[set]] of that name"),
            };
            report.error(&(0..0), "dns.fake.filter", problem);
        }
    }
    for name in dns.policy.iter().filter_map(DnsPolicy::set) {
        if !sets.iter().any(|set| *set.name == *name) {
            let problem = Problem::new(format!("no such set: {}", value::excerpt(name)));
            report.error(&(0..0), "dns.policy.domain", problem.hint("add a [[set]] of that name"));
        }
    }
    fallback::check_sets(dns, sets, report);
}

/// Checks what is behind an outbound, once those are known. Gives the service, and all servers.
pub(super) fn resolve(
    raw: RawDns,
    outbounds: &[Outbound],
    report: &mut TomlReport<'_>,
) -> (Dns, Vec<Arc<Upstream>>) {
    let RawDns { dns, servers, path, through } = raw;
    let mut all = servers.iter();
    for (at, key, via) in &through {
        let path = format!("{path}.upstream[{at}].{key}");
        let found = outbounds.iter().find(|outbound| *outbound.name == *via.value);
        let Some(found) = found else {
            let names = outbounds.iter().map(|outbound| &*outbound.name);
            let problem = Problem::new(format!("no such outbound: {}", value::excerpt(&via.value)));
            let problem = match value::closest(&via.value, names) {
                Some(name) => problem.hint(format!("did you mean `{name}`?")),
                None => problem,
            };
            report.error(&via.at, path, problem);
            continue;
        };
        let needs_name = all.clone().any(|upstream| {
            let is_this = upstream.through.as_deref() == Some(&*via.value);
            is_this && upstream.bootstrap.is_empty() && matches!(upstream.server.host, Host::Name(_))
        });
        if needs_name && looks_up(found, outbounds) {
            let text =
                format!("outbound {} would look the server's name up itself, by this server", found.name);
            report.error(&via.at, path, Problem::new(text).hint("give address or bootstrap too"));
        }
    }
    check_loop(&dns, outbounds, &through, &mut all, report);
    (dns, servers)
}

/// Whether an outbound looks up the names of targets here, instead of passing them on.
fn looks_up(outbound: &Outbound, all: &[Outbound]) -> bool {
    match &outbound.protocol {
        OutboundProtocol::Direct => outbound.dial.dns.is_empty(),
        OutboundProtocol::Group(group) => group.members.iter().any(|member| {
            all.iter().find(|outbound| outbound.name == member.outbound).is_some_and(|member| {
                matches!(member.protocol, OutboundProtocol::Direct) && member.dial.dns.is_empty()
            })
        }),
        OutboundProtocol::Reject
        | OutboundProtocol::Snell(_)
        | OutboundProtocol::Shadowsocks(_)
        | OutboundProtocol::Obfs(_)
        | OutboundProtocol::Ssr(_)
        | OutboundProtocol::Choice(_)
        | OutboundProtocol::Proxy(_)
        | OutboundProtocol::Dns { .. }
        | OutboundProtocol::Refuse(_) => false,
    }
}

fn check_loop<'d>(
    dns: &Dns,
    outbounds: &[Outbound],
    through: &[(usize, &'static str, Spanned<Box<str>>)],
    all: &mut (impl Iterator<Item = &'d Arc<Upstream>> + Clone),
    report: &mut TomlReport<'_>,
) {
    let Some(found) = dns.find_loop(outbounds) else { return };
    let via =
        all.find(|upstream| upstream.name == found.upstream).and_then(|upstream| upstream.through.clone());
    let place = through.iter().find(|(_, _, through)| Some(&*through.value) == via.as_deref());
    let (at, path): (Span, String) = match place {
        Some((at, _, through)) => (through.at.clone(), format!("dns.upstream[{at}].through")),
        None => (0..0, "dns".into()),
    };
    let problem = format!(
        "outbound {} needs the address of {}, which this server {} is asked for through it",
        found.outbound, found.host, found.upstream
    );
    report.error(
        &at,
        path,
        Problem::new(problem)
            .hint("give that outbound `dns` of its own, its address in [[dns.hosts]], or a policy"),
    );
}

/// Writes `[dns]`; nothing where all is as usual.
pub(super) fn write(out: &mut Writer, dns: &Dns, inbounds: &[Inbound]) {
    let mut asked: Vec<Arc<Upstream>> = Vec::new();
    for inbound in inbounds {
        if let InboundProtocol::Dns(server) = &inbound.protocol {
            asked.extend(server.upstreams.iter().chain(&server.direct).cloned());
        }
    }
    if *dns == Dns::default() && asked.is_empty() {
        return;
    }
    let mut table = TableEntries::default();
    table.put(&rows::CACHE, &dns.cache);
    table.put(&rows::MIN_TTL, &dns.min_ttl);
    table.put(&rows::MAX_TTL, &dns.max_ttl);
    table.put(&rows::STALE, &dns.stale);
    table.put(&rows::FAMILY, &dns.family);
    table.put_unless(&rows::DISABLE_BROWSER_DOH, &dns.disable_browser_doh, &false);
    table.put_unless(&rows::REVERSE_MAP, &dns.reverse_map, &false);
    table.put_some(&rows::DNS_INTERFACE, dns.egress.interface.as_deref());
    table.put_some(&rows::DNS_FWMARK, dns.egress.mark.as_ref());
    out.table(TomlTable::Dns, &table);
    if let Some(fake) = &dns.fake {
        out.table(TomlTable::DnsFake, &fake_entries(fake));
    }
    let mut servers: Vec<(&Upstream, bool)> = dns.upstreams.iter().map(|server| (&**server, true)).collect();
    let more = dns.fallback.iter().flat_map(|fallback| &fallback.upstreams).chain(&asked);
    for server in dns.policy.iter().flat_map(|policy| &policy.upstreams).chain(more) {
        if !servers.iter().any(|(other, _)| other.name == server.name) {
            servers.push((server, false));
        }
    }
    for (server, is_default) in servers {
        out.table(TomlTable::DnsUpstream, &upstream_entries(server, is_default));
    }
    for policy in &dns.policy {
        let names = names_of(&policy.upstreams);
        let mut table = TableEntries::default();
        table.put(&rows::POLICY_DOMAIN, std::slice::from_ref(&policy.domain));
        table.put(&rows::POLICY_UPSTREAM, &names);
        table.put_unless(&rows::POLICY_DIRECT, &policy.direct, &false);
        out.table(TomlTable::DnsPolicy, &table);
    }
    hosts::write(out, dns);
    if let Some(fallback) = &dns.fallback {
        out.table(TomlTable::DnsFallback, &fallback::entries(fallback));
    }
}

fn names_of(servers: &[Arc<Upstream>]) -> Vec<Tag> {
    servers.iter().map(|server| Tag::from(&*server.name)).collect()
}

fn fake_entries(fake: &Fake) -> TableEntries {
    let mut out = TableEntries::default();
    out.put(&rows::FAKE_RANGE, &fake.v4);
    out.put_some(&rows::FAKE_RANGE6, fake.v6.as_ref());
    out.put(&rows::FAKE_FILTER, &*fake.filter);
    out.put(&rows::FAKE_MODE, &fake.mode);
    out.put(&rows::FAKE_TTL, &fake.ttl);
    match &fake.store {
        FakeStore::Usual => {}
        FakeStore::Off => out.put(&rows::FAKE_STORE, "off"),
        FakeStore::At(path) => out.put(&rows::FAKE_STORE, &path.to_string_lossy()),
    }
    out
}

fn upstream_entries(server: &Upstream, is_default: bool) -> TableEntries {
    let Upstream { name, transport, server: target, bootstrap, through, by_rules } = server;
    let with_host = |host: &str| match host.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, target.port).to_string(),
        Err(_) => format!("{host}:{}", target.port),
    };
    let (text, host) = match transport {
        DnsTransport::System => (NameServer::SYSTEM.to_owned(), None),
        DnsTransport::Refused => (DnsTransport::REFUSED.to_owned(), None),
        DnsTransport::Udp => (format!("udp://{target}"), None),
        DnsTransport::Tcp => (format!("tcp://{target}"), None),
        DnsTransport::Tls { name } => (format!("tls://{}", with_host(name)), Some(name)),
        DnsTransport::Https { authority, path, name } => (format!("https://{authority}{path}"), Some(name)),
    };
    let mut out = TableEntries::default();
    out.put(&rows::UPSTREAM_NAME, name);
    out.put(&rows::SERVER, &text);
    if let (Some(host), Host::Ip(ip)) = (host, &target.host)
        && host.parse::<IpAddr>().ok() != Some(*ip)
    {
        out.put(&rows::ADDRESS, ip);
    }
    if !bootstrap.is_empty() {
        out.put(&rows::BOOTSTRAP, bootstrap);
    }
    out.put_some(&rows::THROUGH, through.as_deref());
    out.put_some(&rows::BY_RULES, by_rules.as_deref());
    out.put_unless(&rows::DEFAULT, &is_default, &true);
    out
}

#[cfg(test)]
mod tests;
