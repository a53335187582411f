//! Name servers of sing-box as those of `adit.toml`.
//!
//! Servers by UDP, TCP, TLS and HTTPS are taken over, the system's for all names, fixed addresses, and the rules that
//! send names, and all below a name, to a server. Each other part is left out with a warning.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use adit_model::map::Map;
use adit_model::{
    AddressFamilies, Config, Dns, DnsPolicy, DnsTransport, NameServer, Tag, Upstream, fake_pattern,
};
use adit_proto::wire::Host;

use super::entry::{says_nothing, text_of};
use super::rules::{names_of, texts};
use crate::adit_toml;
use crate::read::json::JsonValue;
use crate::read::json_fields::JsonReport;
use crate::read::value::{self, Problem};
use crate::read::yaml_access;

/// Most servers, and most rules, of one file.
const MAX_ENTRIES: usize = 256;
/// Port of a server of plain DNS.
const PORT: u16 = 53;
/// Longest name of a server, in characters.
const MAX_NAME: usize = 64;

/// `dns` as it is written.
pub(super) struct DnsSection {
    pub(super) at: usize,
    pub(super) value: JsonValue,
    /// The server that is asked for the servers of outbounds.
    pub(super) resolver: Option<String>,
}

/// The way of questions.
#[derive(Clone)]
enum Server {
    /// To the system's name servers.
    System,
    /// Nowhere: the answers are fixed.
    Fixed,
    To(Arc<Upstream>),
}

/// Outbounds by their names in the file; `None` is straight from this machine.
pub(super) type Ways = Map<String, Option<Tag>>;

/// Parts of a file that name servers refer to.
#[derive(Clone, Copy)]
pub(super) struct DnsReferences<'k> {
    pub(super) ways: &'k Ways,
    /// Lists of names: their names in the file and in `adit.toml`.
    pub(super) lists: &'k Map<String, Tag>,
}

/// Adds `dns` to a configuration, which has its outbounds and its sets.
pub(super) fn settle(
    report: &mut JsonReport<'_>,
    written: &DnsSection,
    known: DnsReferences<'_>,
    config: &mut Config,
) {
    let dns = read(report, written, known, config);
    config.dns = dns;
    let found = match config.dns.find_loop(&config.outbounds) {
        Some(found) => {
            let (upstream, through) = (&found.upstream, &found.through);
            format!("{upstream} is asked through {through}, and would be asked for the server of {through}")
        }
        None => match adit_toml::parse("adit.toml", &adit_toml::to_toml(config)) {
            Ok(again) if again.config.dns == config.dns => return,
            Ok(_) => "adit.toml cannot hold it as it stands".to_owned(),
            Err(found) => found.iter().next().map(|found| found.problem.clone()).unwrap_or_default(),
        },
    };
    config.dns = Dns::default();
    let hint = "names are looked up by the system's name servers; write `[dns]` for others";
    report.warning(written.at, "dns", Problem::new(format!("left out: {found}")).hint(hint));
}

fn read(report: &mut JsonReport<'_>, written: &DnsSection, known: DnsReferences<'_>, config: &Config) -> Dns {
    let root = &written.value;
    let mut dns = Dns::default();
    let items = yaml_access::get(root, "servers").map(yaml_access::items).unwrap_or_default();
    let mut servers: Vec<(String, Server)> = Vec::new();
    for (n, item) in items.iter().enumerate().take(MAX_ENTRIES) {
        let path = format!("dns.servers[{n}]");
        match server(report, item, items, &path, known.ways, &mut dns) {
            Ok(server) => {
                // Two with one name are one server that is asked in one way.
                let same = servers.iter().find_map(|(_, known)| match (known, &server) {
                    (Server::To(known), Server::To(new)) if known.name == new.name => Some(known.clone()),
                    (Server::System | Server::Fixed | Server::To(_), _) => None,
                });
                let tag = yaml_access::text_of(item, "tag").unwrap_or_default().to_owned();
                servers.push((tag, same.map_or(server, Server::To)));
            }
            Err(problem) => left_out(report, item.at, path, &problem),
        }
    }
    if items.len() > MAX_ENTRIES {
        left_out(report, root.at, "dns.servers".to_owned(), &format!("all behind the first {MAX_ENTRIES}"));
    }
    let find = |tag: &str| {
        let found = servers.iter().find(|(name, _)| name == tag).map(|(_, server)| server.clone());
        found.ok_or_else(|| format!("no such server here: {}", value::excerpt(tag)))
    };
    let first = match yaml_access::text_of(root, "final") {
        Some(tag) => find(tag),
        None => servers.first().map(|(_, server)| server.clone()).ok_or_else(|| "no server here".to_owned()),
    };
    match first {
        Ok(Server::To(upstream)) => dns.upstreams.push(upstream),
        Ok(Server::System) => {}
        Ok(Server::Fixed) => left_out(report, root.at, "dns.final".to_owned(), "it knows few names"),
        Err(problem) if items.is_empty() && yaml_access::get(root, "final").is_none() => drop(problem),
        Err(problem) => {
            let problem = format!("{problem}; the system's name servers are asked");
            left_out(report, root.at, "dns.final".to_owned(), &problem);
        }
    }
    let own: Vec<Box<str>> =
        config.server_names().into_iter().map(|name| format!("={name}").into()).collect();
    let rules = yaml_access::get(root, "rules").map(yaml_access::items).unwrap_or_default();
    for (n, item) in rules.iter().enumerate().take(MAX_ENTRIES) {
        check_meaning(report, item, &format!("dns.rules[{n}]"));
        let found = rule(item, &own, known.lists).and_then(|(tag, names)| Ok((find(&tag)?, names)));
        let added = found.and_then(|(server, names)| add(&mut dns, &server, names));
        if let Err(problem) = added {
            left_out(report, item.at, format!("dns.rules[{n}]"), &problem);
        }
    }
    if rules.len() > MAX_ENTRIES {
        left_out(report, root.at, "dns.rules".to_owned(), &format!("all behind the first {MAX_ENTRIES}"));
    }
    if let Some(tag) = &written.resolver {
        let added = find(tag).and_then(|server| add(&mut dns, &server, own));
        if let Err(problem) = added {
            left_out(report, root.at, "route.default_domain_resolver".to_owned(), &problem);
        }
    }
    settings(report, root, &mut dns);
    dns
}

/// Stops the import at a rule that is turned round: without it its names would go to other servers.
fn check_meaning(report: &mut JsonReport<'_>, item: &JsonValue, path: &str) {
    if yaml_access::is_on(item, "invert") {
        let problem = Problem::new("adit.toml has no rule of name servers that is turned round");
        let hint = "name the names that the rule is about, or take it out";
        report.error(yaml_access::at(item, "invert"), format!("{path}.invert"), problem.hint(hint));
    }
    for (n, part) in
        yaml_access::get(item, "rules").map(yaml_access::items).unwrap_or_default().iter().enumerate()
    {
        check_meaning(report, part, &format!("{path}.rules[{n}]"));
    }
}

fn left_out(report: &mut JsonReport<'_>, at: usize, path: String, problem: &str) {
    report.warning(at, path, Problem::new(format!("left out: {problem}")));
}

/// The rest of the keys.
fn settings(report: &mut JsonReport<'_>, root: &JsonValue, dns: &mut Dns) {
    for member in yaml_access::members(root) {
        let (key, value) = (&*member.key.replace('_', "-"), &member.value);
        match key {
            "servers" | "rules" | "final" => {}
            // Each server has answers of its own here.
            "independent-cache" | "optimistic" => {}
            "disable-cache" | "disable-expire" | "cache-capacity" if !says_nothing(value) => {
                let path = format!("dns.{}", member.key);
                left_out(report, member.at, path, "answers are cached in the way of adit");
            }
            "reverse-mapping" => dns.reverse_map = yaml_access::is_on(root, "reverse-mapping"),
            "strategy" => match yaml_access::text(value) {
                Some("prefer_ipv4") => dns.family = AddressFamilies::PreferV4,
                Some("prefer_ipv6") => dns.family = AddressFamilies::Any,
                Some("ipv4_only") => dns.family = AddressFamilies::V4Only,
                Some("ipv6_only") => dns.family = AddressFamilies::V6Only,
                other => {
                    let problem = format!("no strategy: {}", value::excerpt(other.unwrap_or_default()));
                    left_out(report, member.at, "dns.strategy".to_owned(), &problem);
                }
            },
            _ if says_nothing(value) => {}
            _ => {
                let path = format!("dns.{}", value::excerpt(&member.key));
                report.warning(member.at, path, Problem::new("left out"));
            }
        }
    }
}

/// One of `dns.servers`; `all` are those that may be asked for its address. Fixed addresses go to `dns`.
fn server(
    report: &mut JsonReport<'_>,
    item: &JsonValue,
    all: &[JsonValue],
    path: &str,
    ways: &Ways,
    dns: &mut Dns,
) -> Result<Server, String> {
    const KNOWN: [&str; 13] = [
        "tag",
        "type",
        "address",
        "server",
        "server-port",
        "path",
        "tls",
        "detour",
        "domain-resolver",
        "address-resolver",
        "strategy",
        "predefined",
        "prefer-go",
    ];
    for member in yaml_access::members(item) {
        let key = &*member.key.replace('_', "-");
        if !KNOWN.contains(&key) && !says_nothing(&member.value) {
            return Err(format!("adit.toml has no key for {}", value::excerpt(key)));
        }
    }
    if yaml_access::text_of(item, "type") == Some("hosts") {
        fixed(item, dns)?;
        return Ok(Server::Fixed);
    }
    let Some(text) = address(item)? else { return Ok(Server::System) };
    let (_, mut transport, server) = crate::read::name_servers::server(&text)
        .map_err(|_| format!("not read: {}", value::excerpt(&text)))?;
    if let Some(tls) = yaml_access::get(item, "tls") {
        certificate(tls, &server.host, &mut transport)?;
    }
    let through = match yaml_access::text_of(item, "detour") {
        None => None,
        Some(name) => {
            let way = ways.get(name);
            way.cloned().ok_or_else(|| format!("no such outbound: {}", value::excerpt(name)))?
        }
    };
    let bootstrap = match server.host {
        Host::Ip(_) => Vec::new(),
        Host::Name(_) => bootstrap(item, all).unwrap_or_else(|key| {
            let problem = "no server of plain DNS with an address: the system's are asked for its host";
            left_out(
                report,
                yaml_access::at(item, key),
                format!("{path}.{}", key.replace('-', "_")),
                problem,
            );
            Vec::new()
        }),
    };
    if yaml_access::text_of(item, "strategy").is_some_and(|strategy| !strategy.is_empty()) {
        left_out(
            report,
            yaml_access::at(item, "strategy"),
            format!("{path}.strategy"),
            "that of `dns` holds",
        );
    }
    // A path may hold a token, which messages should not show.
    let short = match &transport {
        DnsTransport::Https { authority, .. } => format!("https://{authority}"),
        DnsTransport::Udp
        | DnsTransport::Tcp
        | DnsTransport::Tls { .. }
        | DnsTransport::System
        | DnsTransport::Refused => text,
    };
    let name = through.as_ref().map_or_else(|| short.clone(), |tag| format!("{short}#{tag}"));
    let name = name.chars().take(MAX_NAME).collect::<String>().into();
    Ok(Server::To(Arc::new(Upstream { name, transport, server, bootstrap, through, by_rules: None })))
}

/// The address of a server with its transport, `tls://192.0.2.1:853`; `None` for the system's.
fn address(item: &JsonValue) -> Result<Option<String>, String> {
    // As it was written before sing-box 1.12.
    if let Some(text) = yaml_access::text_of(item, "address") {
        return Ok((text != "local").then(|| text.to_owned()));
    }
    let scheme = match yaml_access::text_of(item, "type").unwrap_or_default() {
        "local" => return Ok(None),
        word @ ("udp" | "tcp" | "tls" | "https") => word,
        other => return Err(format!("type {}", value::excerpt(other))),
    };
    let host = yaml_access::text_of(item, "server").ok_or("no server")?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let port = match yaml_access::get(item, "server-port").filter(|port| !says_nothing(port)) {
        Some(port) => {
            let port: Option<u16> = text_of(port).and_then(|text| text.parse().ok());
            format!(":{}", port.ok_or("no port")?)
        }
        None => String::new(),
    };
    let path = if scheme == "https" { yaml_access::text_of(item, "path").unwrap_or_default() } else { "" };
    Ok(Some(format!("{scheme}://{host}{port}{path}")))
}

/// The name that a certificate must have.
fn certificate(tls: &JsonValue, host: &Host, transport: &mut DnsTransport) -> Result<(), String> {
    for member in yaml_access::members(tls) {
        let key = &*member.key.replace('_', "-");
        if !matches!(key, "enabled" | "server-name") && !says_nothing(&member.value) {
            return Err(format!("adit.toml has no key for tls.{}", value::excerpt(key)));
        }
    }
    let Some(wanted) = yaml_access::text_of(tls, "server-name") else { return Ok(()) };
    let is_same = matches!(host, Host::Ip(_)) || *host.to_string() == *wanted;
    match transport {
        DnsTransport::Tls { name } if is_same => *name = wanted.into(),
        DnsTransport::Https { name, .. } if **name == *wanted => {}
        DnsTransport::Udp | DnsTransport::Tcp | DnsTransport::System | DnsTransport::Refused => {}
        DnsTransport::Tls { .. } | DnsTransport::Https { .. } => {
            return Err("tls.server_name is another than its host".to_owned());
        }
    }
    Ok(())
}

/// The server that is asked for the address of this one; none for the system's.
///
/// # Errors
/// The key, if it does not name one of plain DNS that has an address itself.
fn bootstrap(item: &JsonValue, all: &[JsonValue]) -> Result<Vec<NameServer>, &'static str> {
    let keys = ["domain-resolver", "address-resolver"];
    let found = keys.into_iter().find_map(|key| Some((key, yaml_access::get(item, key)?)));
    let Some((key, found)) = found else { return Ok(Vec::new()) };
    let tag = resolver(found).ok_or(key)?;
    let other = all.iter().find(|other| yaml_access::text_of(other, "tag") == Some(tag)).ok_or(key)?;
    let Some(text) = address(other).map_err(|_| key)? else { return Ok(Vec::new()) };
    let text = text.strip_prefix("udp://").unwrap_or(&text);
    let bare = || text.trim_matches(['[', ']']).parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT));
    let server = text.parse().or_else(|_| bare()).map_err(|_| key)?;
    Ok(vec![NameServer::At(server)])
}

/// The name of a server, which stands alone or under `server`.
pub(super) fn resolver(value: &JsonValue) -> Option<&str> {
    yaml_access::text(value).or_else(|| yaml_access::text_of(value, "server"))
}

/// Names with fixed addresses.
fn fixed(item: &JsonValue, dns: &mut Dns) -> Result<(), String> {
    for member in yaml_access::get(item, "predefined").map(yaml_access::members).unwrap_or_default() {
        let found = texts(&member.value).unwrap_or_default();
        let addresses: Result<Vec<IpAddr>, _> = found.iter().map(|text| text.parse()).collect();
        let addresses = addresses.map_err(|_| format!("no address of {}", value::excerpt(&member.key)))?;
        let name = member.key.to_lowercase();
        if addresses.is_empty() || !is_name(&name) {
            return Err(format!("no name with addresses: {}", value::excerpt(&name)));
        }
        dns.hosts.push((name.into(), addresses));
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let is_plain = name.is_ascii() && !name.starts_with(['.', '=']) && !name.contains(['*', '+', ':', '/']);
    is_plain && fake_pattern(name).is_some()
}

/// The server of a rule and the names that it is about; `own` are those of the outbounds' servers.
fn rule(
    item: &JsonValue,
    own: &[Box<str>],
    lists: &Map<String, Tag>,
) -> Result<(String, Vec<Box<str>>), String> {
    match yaml_access::text_of(item, "action").unwrap_or("route") {
        "route" => {}
        other => return Err(format!("action {}", value::excerpt(other))),
    }
    let mut names: Vec<Box<str>> = Vec::new();
    for member in yaml_access::members(item) {
        let (key, value) = (&*member.key.replace('_', "-"), &member.value);
        if matches!(key, "action" | "server" | "disable-cache") || says_nothing(value) {
            continue;
        }
        let lead = match key {
            "domain" => "=",
            "domain-suffix" => "",
            "rule-set" => {
                let all = texts(value).unwrap_or_default();
                let found = names_of(&all, lists)?;
                names.extend(found.iter().map(|list| format!("{}{list}", DnsPolicy::SET).into()));
                continue;
            }
            "outbound" if texts(value).is_some_and(|all| all == ["any"]) => {
                names.extend(own.iter().cloned());
                continue;
            }
            _ => return Err(format!("adit.toml has no key for {}", value::excerpt(key))),
        };
        for text in texts(value).ok_or_else(|| format!("{key} is no text and no list of texts"))? {
            let name = text.to_lowercase();
            let name = if lead.is_empty() { name.trim_start_matches('.') } else { &name };
            if !is_name(name) {
                return Err(format!("no name: {}", value::excerpt(&text)));
            }
            names.push(format!("{lead}{name}").into());
        }
    }
    let server = yaml_access::text_of(item, "server").ok_or("no server")?;
    if names.is_empty() && !yaml_access::members(item).iter().any(|member| member.key == "outbound") {
        return Err("no condition in it".to_owned());
    }
    Ok((server.to_owned(), names))
}

/// Names that a server is asked for. Of several rules for a name the first holds.
fn add_policy(dns: &mut Dns, upstream: &Arc<Upstream>, names: Vec<Box<str>>) {
    for domain in names {
        if dns.policy.iter().all(|policy| policy.domain != domain) {
            dns.policy.push(DnsPolicy { domain, upstreams: vec![upstream.clone()], direct: false });
        }
    }
}

fn add(dns: &mut Dns, server: &Server, names: Vec<Box<str>>) -> Result<(), String> {
    match server {
        // Fixed addresses come before all servers.
        Server::Fixed => Ok(()),
        Server::System => {
            add_policy(dns, &Arc::new(Upstream::system(None, None)), names);
            Ok(())
        }
        Server::To(upstream) => {
            add_policy(dns, upstream, names);
            Ok(())
        }
    }
}
