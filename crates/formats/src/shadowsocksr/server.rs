//! The server: its ports, its filters, and what all of them have in common.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use adit_model::diagnostic::Diagnostics;
use adit_model::rule::{
    Cidr, FileLine, Matcher, PortRange, RejectMethod, Resolve, Rule, Verdict, normal_name,
};
use adit_model::{
    Inbound, InboundProtocol, Outbound, OutboundProtocol, Plugin, SocketOptions, Tag, Transports, UserLimits,
};

use super::file::{SsrSetting, SsrSettings};
use super::names::{self, OptionSources, Served, over};
use super::ssr_to_model::{SsrOptions, of_program};
use crate::read::value::{Problem, bind_address, excerpt};
use crate::shadowsocks::option_value::OptionValue;
use crate::shadowsocks::setup::{self, Control, ShadowsocksSetup};
use crate::shadowsocksr::mudb::MudbDatabase;

/// Port of a server that names none.
const PORT: u16 = 8388;
/// Targets that are refused unless the file says otherwise.
const FORBIDDEN: &str = "127.0.0.0/8,::1/128";
/// Most entries of a filter.
const MAX_ENTRIES: usize = 4096;

/// The settings that all ports of a server have in common.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    pub(super) flags: SsrSettings,
    pub(crate) values: SsrSettings,
    pub(crate) additional: Vec<(u16, SsrSettings)>,
    /// Users of the database have no port of their own.
    pub(crate) additional_only: bool,
    hosts: Vec<IpAddr>,
    transports: Transports,
    plugin: Option<Plugin>,
    fast_open: bool,
    pub(crate) file: Option<Arc<str>>,
}

impl Base {
    pub(crate) fn layers(&self) -> OptionSources<'_> {
        OptionSources(vec![&self.flags, &self.values])
    }

    /// A base that says nothing.
    pub(crate) fn for_checks() -> Self {
        Self {
            flags: SsrSettings::new(),
            values: SsrSettings::new(),
            additional: Vec::new(),
            additional_only: false,
            hosts: Vec::new(),
            transports: Transports::Both,
            plugin: None,
            fast_open: false,
            file: None,
        }
    }

    /// The listener of a server.
    pub(crate) fn inbound(&self, name: Tag, ports: &[u16], served: Served) -> Inbound {
        let mut server = served.server;
        server.transports = self.transports;
        server.plugin.clone_from(&self.plugin);
        let listen =
            self.hosts.iter().flat_map(|host| ports.iter().map(|port| SocketAddr::new(*host, *port)));
        Inbound {
            name,
            listen: listen.collect(),
            socket: SocketOptions { fast_open: self.fast_open, ..SocketOptions::default() },
            outbound: setup::DIRECT.into(),
            allow_private: true,
            protocol: InboundProtocol::Ssr(server),
        }
    }
}

/// The limits of a user, without the quota.
pub(crate) fn limits(layers: &OptionSources<'_>, found: &mut Diagnostics) -> UserLimits {
    if let Some(given) = layers.get(SsrSetting::RatePerConnection).filter(|given| given.text().trim() != "0")
    {
        let problem = Problem::new("a limit of single connections is not in this build, so it has no effect");
        given.warning(found, problem.hint("speed_limit_per_user limits all connections of a user together"));
    }
    let rate = layers.number(SsrSetting::RatePerUser, found).map(|rate| rate.saturating_mul(1024));
    UserLimits { rate, ..UserLimits::default() }
}

pub(crate) fn server(
    merged: &mut SsrOptions<'_>,
    timeout: u64,
    database: Option<(&Path, &str)>,
    setup: &mut ShadowsocksSetup,
) {
    let hosts = hosts(merged);
    let base = Base {
        flags: merged.flags.values.clone(),
        values: std::mem::take(&mut merged.values.values),
        additional: std::mem::take(&mut merged.values.additional),
        additional_only: merged.values.additional_only,
        hosts,
        transports: Transports::Both,
        plugin: None,
        fast_open: false,
        file: merged.file.clone(),
    };
    merged.values.values.clone_from(&base.values);
    let base = Base {
        transports: merged.transports(Transports::Both),
        plugin: merged.plugin(),
        fast_open: merged.layers().is_on(SsrSetting::FastOpen),
        ..base
    };
    let mut dial = merged.dial(timeout);
    for key in [SsrSetting::OutBind, SsrSetting::OutBindV6] {
        let given = base.layers().get(key).filter(|given| !given.text().is_empty());
        if let Some(source) = given.and_then(|given| given.parsed(&mut merged.found, bind_address)) {
            dial.egress.set_source(source);
        }
    }
    setup.config.outbounds.push(Outbound {
        name: setup::DIRECT.into(),
        dial,
        protocol: OutboundProtocol::Direct,
    });
    let file: Arc<str> = base.file.clone().unwrap_or_else(|| "command line".into());
    setup.config.rules =
        filters(&base.layers(), &Filter { default: FORBIDDEN, user: None, file }, &mut merged.found);
    match database {
        Some((path, text)) => of_database(merged, base, path, text, setup),
        None => of_file(merged, &base, setup),
    }
}

fn of_database(
    merged: &mut SsrOptions<'_>,
    base: Base,
    path: &Path,
    text: &str,
    setup: &mut ShadowsocksSetup,
) {
    if !merged.values.ports.is_empty() {
        let problem = "port_password has no effect beside a database of users";
        let mut warning = of_program(merged.program, problem);
        warning.severity = adit_model::diagnostic::Severity::Warning;
        merged.found.push(warning);
    }
    limits(&base.layers(), &mut merged.found);
    let database = MudbDatabase::new(path, base, setup.config.clone());
    match database.read(text) {
        Ok((rows, found)) => {
            merged.found.append(found);
            let (config, found) = database.config(&rows, &|_| 0);
            merged.found.append(found);
            setup.config = config;
            setup.control = Control::Users(Box::new(database));
        }
        Err(found) => merged.found.append(found),
    }
}

/// The ports of a file without a database.
fn of_file(merged: &mut SsrOptions<'_>, base: &Base, setup: &mut ShadowsocksSetup) {
    let layers = base.layers();
    let limits = limits(&layers, &mut merged.found);
    let ports = std::mem::take(&mut merged.values.ports);
    if let Some(given) = merged.values.additional_at.take().filter(|_| !base.additional.is_empty()) {
        given.warning(&mut merged.found, Problem::new("has no effect without a database of users"));
    }
    let has_password = base.flags.iter().any(|(key, _)| *key == SsrSetting::Password);
    if ports.is_empty() || has_password {
        let given = layers.all(SsrSetting::ServerPort);
        let mut ports: Vec<u16> =
            given.iter().filter_map(|given| given.parsed(&mut merged.found, setup::port)).collect();
        if given.is_empty() {
            ports.push(PORT);
        }
        // Limits are those of a user, so the port has one then.
        let owner = (limits != UserLimits::default()).then_some("everybody");
        let served = names::server(&layers, owner, limits, base.file.as_ref(), &mut merged.found);
        if let Some(served) = served.and_then(|served| without_database(&layers, served, &mut merged.found)) {
            setup.config.inbounds.push(base.inbound("server".into(), &ports, served));
        }
        return;
    }
    for (port, section) in &ports {
        let layers = over(section, &layers);
        warn_of_source(section, &mut merged.found);
        let owner = port.to_string();
        let served = names::server(&layers, Some(&owner), limits, base.file.as_ref(), &mut merged.found);
        if let Some(served) = served.and_then(|served| without_database(&layers, served, &mut merged.found)) {
            setup.config.inbounds.push(base.inbound(format!("port-{port}").into(), &[*port], served));
        }
    }
}

/// `N#` asks for the users of a database.
fn without_database(layers: &OptionSources<'_>, served: Served, found: &mut Diagnostics) -> Option<Served> {
    if !served.is_shared {
        return Some(served);
    }
    let given = layers.get(SsrSetting::ProtocolParam)?;
    let problem = Problem::new("no user behind the #, and there is no database to take users from");
    given.error(found, problem.hint("write N#id:key, or leave the # out"));
    None
}

/// Ports leave by the addresses of the file.
pub(crate) fn warn_of_source(section: &SsrSettings, found: &mut Diagnostics) {
    let own = section.iter().filter(|(key, _)| matches!(key, SsrSetting::OutBind | SsrSetting::OutBindV6));
    for (_, given) in own.filter(|(_, given)| !given.text().is_empty()) {
        let problem = Problem::new("an address of one port alone is not in this build, so it has no effect");
        given.warning(found, problem.hint("write it at the top of the file"));
    }
}

/// The addresses to listen on.
fn hosts(merged: &mut SsrOptions<'_>) -> Vec<IpAddr> {
    let layers = merged.layers();
    let mut given = layers.all(SsrSetting::Server);
    given.extend(layers.get(SsrSetting::ServerV6).filter(|given| !given.text().is_empty()));
    let mut hosts: Vec<IpAddr> = Vec::new();
    for given in given {
        let host = given.parsed(&mut merged.found, |text| match setup::host_and_port(text)? {
            (_, Some(_)) => Err(Problem::new("a server's address has no port").hint("write server_port")),
            (host, None) => setup::listen_host(host),
        });
        hosts.extend(host.filter(|host| !hosts.contains(host)));
    }
    if hosts.is_empty() {
        hosts.push(Ipv4Addr::UNSPECIFIED.into());
    }
    hosts
}

/// The scope of the rules that refuse targets.
pub(crate) struct Filter<'a> {
    /// Addresses that are refused unless something is said.
    pub(crate) default: &'a str,
    /// The user; `None` for everybody.
    pub(crate) user: Option<&'a str>,
    /// The file that says so.
    pub(crate) file: Arc<str>,
}

/// Rules that refuse targets.
pub(crate) fn filters(layers: &OptionSources<'_>, filter: &Filter<'_>, found: &mut Diagnostics) -> Vec<Rule> {
    let given = |key, found: &mut Diagnostics, parse: fn(&str) -> Result<Matcher, Problem>| {
        let given: OptionValue = layers.get(key).filter(|given| !given.text().trim().is_empty())?;
        given.parsed(found, parse)
    };
    let addresses = match layers.get(SsrSetting::ForbiddenIp) {
        None if !filter.default.is_empty() => networks(filter.default).ok(),
        _ => given(SsrSetting::ForbiddenIp, found, networks),
    };
    let ports = given(SsrSetting::ForbiddenPort, found, ports);
    let names = given(SsrSetting::BlackNames, found, domains);
    let rule = |matcher| {
        let matcher = match filter.user {
            Some(user) => Matcher::And(vec![Matcher::User(vec![user.into()]), matcher]),
            None => matcher,
        };
        Rule {
            matcher,
            verdict: Verdict::Reject(RejectMethod::Reset),
            at: FileLine::file(filter.file.clone()),
        }
    };
    // Ports and names first: they need no lookup.
    ports.into_iter().chain(names).chain(addresses).map(rule).collect()
}

fn entries(text: &str) -> Result<Vec<&str>, Problem> {
    let entries: Vec<&str> = text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).collect();
    if entries.len() > MAX_ENTRIES {
        return Err(Problem::new(format!("more than {MAX_ENTRIES} entries")));
    }
    Ok(entries)
}

fn networks(text: &str) -> Result<Matcher, Problem> {
    let parse = |entry: &str| {
        Cidr::parse(entry).ok_or_else(|| Problem::new(format!("no address or network: {}", excerpt(entry))))
    };
    let all: Vec<Cidr> = entries(text)?.into_iter().map(parse).collect::<Result<_, _>>()?;
    Ok(Matcher::IpCidr(all, Resolve::Yes))
}

/// `1-79,81`
fn ports(text: &str) -> Result<Matcher, Problem> {
    let parse = |entry: &str| {
        let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
        let (first, last) = (first.trim().parse().ok(), last.trim().parse().ok());
        let range = first.zip(last).filter(|(first, last)| first <= last);
        let range = range.map(|(first, last)| PortRange { first, last });
        range.ok_or_else(|| Problem::new(format!("no port or range of ports: {}", excerpt(entry))))
    };
    Ok(Matcher::Port(entries(text)?.into_iter().map(parse).collect::<Result<_, _>>()?))
}

fn domains(text: &str) -> Result<Matcher, Problem> {
    let names = entries(text)?;
    if let Some(name) = names.iter().find(|name| name.len() > 253 || name.contains(char::is_whitespace)) {
        return Err(Problem::new(format!("no name: {}", excerpt(name))));
    }
    Ok(Matcher::Domain(names.into_iter().map(|name| normal_name(name).into()).collect()))
}
