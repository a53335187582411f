//! Local ports of the protocols `dns` and `fake-dns`.
//!
//! `dns` asks one server straight and one through the Shadowsocks server; the access list of the port says which one a name
//! is for, by the name or by the addresses that the first one knows. `fake-dns` gives fake addresses, which all ports of the
//! process take for their names.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_model::{
    Config, DnsInbound, DnsTransport, Fake, FakeMode, FakeRange, FakeStore, InboundProtocol, Transports,
    Upstream,
};
use adit_proto::wire::Target;

use super::file::{self, Protocol, RustLocal, ServerOrigin};
use crate::read::json_fields::{JsonFields, JsonReport};
use crate::read::value::{self, Problem, excerpt, text_of};
use crate::shadowsocks::{MAX_TEXT, setup};

/// Port of a name server.
const PORT: u16 = 53;
/// The server that is asked through the Shadowsocks server, in shadowsocks-rust 1.25.0.
const REMOTE: &str = "8.8.8.8";
/// The pools and the lifetime of an answer in its code.
const RANGE: &str = "172.16.0.0/12";
const RANGE6: &str = "fc00::/7";
const EXPIRE_S: u64 = 10;
/// Longest lifetime of an answer.
const MAX_EXPIRE_S: u64 = 3600;

/// The keys of a port of protocol dns.
pub(super) const DNS: &[&str] =
    &["local_dns_address", "local_dns_port", "remote_dns_address", "remote_dns_port", "client_cache_size"];
/// The keys of a port of protocol fake-dns.
pub(super) const FAKE_DNS: &[&str] = &[
    "fake_dns_record_expire_duration",
    "fake_dns_ipv4_network",
    "fake_dns_ipv6_network",
    "fake_dns_database_path",
];

/// The keys of a port.
#[derive(Clone, Default)]
pub(super) struct PortKeys {
    pub(super) local: Option<(String, u16)>,
    pub(super) remote: Option<(String, u16)>,
    pub(super) expire: Option<u64>,
    pub(super) v4: Option<FakeRange>,
    pub(super) v6: Option<FakeRange>,
    pub(super) database: Option<Box<str>>,
}

/// Takes the keys of a port; those of another protocol have no effect.
pub(super) fn read(fields: &mut JsonFields<'_>, protocol: Protocol, report: &mut JsonReport<'_>) -> PortKeys {
    let mut names = PortKeys::default();
    let mut server = |host: &'static str, port: &'static str| {
        let name = host;
        let host = fields.text(report, name).map(str::to_owned);
        let port_field = fields.take(report, port);
        let port = port_field.as_ref().and_then(|field| field.number(report, 1..=u16::MAX.into()));
        let port = port.and_then(|port| u16::try_from(port).ok());
        if let (None, Some(field)) = (&host, port_field) {
            field.warning(report, Problem::new(format!("has no effect without {name}")));
        }
        host.map(|host| (host, port.unwrap_or(PORT)))
    };
    names.local = server("local_dns_address", "local_dns_port");
    names.remote = server("remote_dns_address", "remote_dns_port");
    // One connection carries all questions at a time.
    fields.number(report, "client_cache_size", 0..=u64::from(u32::MAX));
    let expire = fields.number(report, "fake_dns_record_expire_duration", 0..=u64::from(u32::MAX));
    let range = |fields: &mut JsonFields<'_>, report: &mut JsonReport<'_>, key, is_ipv6| {
        let field = fields.take(report, key)?;
        let text = field.text(report)?;
        (protocol == Protocol::FakeDns)
            .then(|| field.checked(report, crate::read::name_servers::fake_range(text, is_ipv6)))?
    };
    names.v4 = range(fields, report, "fake_dns_ipv4_network", false);
    names.v6 = range(fields, report, "fake_dns_ipv6_network", true);
    let database = fields.take(report, "fake_dns_database_path");
    names.database = database.and_then(|field| field.parsed(report, |text| text_of(text, MAX_TEXT)));
    names.expire = expire;
    names
}

/// The pool of a port of protocol fake-dns.
pub(super) fn fake(local: &RustLocal, report: &mut JsonReport<'_>) -> Option<Fake> {
    let PortKeys { expire, v4, v6, database, .. } = &local.names;
    let expire = expire.unwrap_or(EXPIRE_S);
    if expire > MAX_EXPIRE_S {
        let problem = format!("cut to {MAX_EXPIRE_S}");
        local.origin.warning(report, "fake_dns_record_expire_duration", Problem::new(problem));
    }
    let usual = |text: &str| text.parse::<FakeRange>().ok();
    Some(Fake {
        v4: v4.or_else(|| usual(RANGE))?,
        v6: v6.or_else(|| usual(RANGE6)),
        filter: Vec::new(),
        mode: FakeMode::Blacklist,
        ttl: Duration::from_secs(expire.min(MAX_EXPIRE_S)),
        store: database.as_ref().map_or(FakeStore::Usual, |path| FakeStore::At((**path).into())),
    })
}

/// The port itself.
pub(super) fn inbound(
    origin: &ServerOrigin,
    protocol: Protocol,
    listen: SocketAddr,
    mode: Option<Transports>,
    names: PortKeys,
    report: &mut JsonReport<'_>,
) -> Option<DnsInbound> {
    let mut server = DnsInbound { transports: mode.unwrap_or(Transports::Both), ..DnsInbound::default() };
    if !listen.ip().to_canonical().is_loopback() {
        server.allow = DnsInbound::private_networks();
        let problem = "it answers this machine and private networks alone";
        origin.warning(report, "local_address", Problem::new(problem));
    }
    if protocol == Protocol::FakeDns {
        return Some(server);
    }
    server.fake = false;
    let Some((host, port)) = names.local else {
        let problem = Problem::new("missing").hint("name the server for names that go straight");
        origin.error(report, "local_dns_address", problem);
        return None;
    };
    let Ok(ip) = host.parse::<IpAddr>() else {
        let problem = format!("not an IP address: {}", excerpt(&host));
        origin.error(report, "local_dns_address", Problem::new(problem));
        return None;
    };
    let (host, remote_port) = names.remote.unwrap_or_else(|| (REMOTE.to_owned(), PORT));
    let remote = value::target(&file::joined(&host, remote_port));
    let remote = remote.map_err(|problem| origin.error(report, "remote_dns_address", problem)).ok()?;
    server.direct = vec![upstream(SocketAddr::new(ip, port).into(), false)];
    server.upstreams = vec![upstream(remote, true)];
    Some(server)
}

/// Has name servers behind the Shadowsocks server reached through the first outbound, which may have another name.
pub(super) fn use_first(config: &mut Config) {
    let Some(first) = config.outbounds.first() else { return };
    for inbound in &mut config.inbounds {
        let InboundProtocol::Dns(server) = &mut inbound.protocol else { continue };
        for upstream in &mut server.upstreams {
            let through = upstream.through.is_some().then(|| first.name.clone());
            *upstream = Arc::new(Upstream { through, ..(**upstream).clone() });
        }
    }
}

fn upstream(server: Target, is_remote: bool) -> Arc<Upstream> {
    let through = is_remote.then(|| setup::SERVERS.into());
    let name = if is_remote { format!("{server} through the server") } else { server.to_string() };
    let (name, transport) = (name.into(), DnsTransport::Udp);
    Arc::new(Upstream { name, transport, server, bootstrap: Vec::new(), through, by_rules: None })
}
