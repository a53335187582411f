//! One `[[outbound]]`.

use std::collections::HashSet;
use std::time::Duration;

use adit_model::{
    AddressFamilies, Dial, Egress, ObfsClient, ObfsServer, Outbound, OutboundProtocol, ProxyKind, Quic,
    SnellClient, Tag,
};
use adit_proto::wire::Target;

use super::fields::{Spanned, TomlFields, TomlReport};
use super::keys::Head;
use super::rows::{link, name_of, port_keys as rows};
use super::write::TableEntries;
use super::{carrier, choice, group, obfs, pace, shadowsocks, snell as versions, ssr, tcp};
use crate::read::value::Problem;

/// An outbound as it is written.
pub(super) struct RawOutbound {
    pub(crate) path: String,
    pub(crate) name: Option<Spanned<Box<str>>>,
    pub(super) dial: Dial,
    /// `None` when something in it is wrong, which has been reported.
    pub(super) protocol: Option<OutboundProtocol>,
    /// The names that the members of a group have.
    pub(super) members: Vec<Spanned<Box<str>>>,
    /// The names of lists whose entries are members.
    pub(super) lists: Vec<Spanned<Box<str>>>,
    /// The outbound that it dials through.
    pub(super) through: Option<Spanned<Box<str>>>,
}

/// The protocols of outbounds, as they are told apart in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutboundKind {
    Direct,
    Reject,
    Snell,
    Shadowsocks,
    Ssr,
    Obfs,
    Group,
    Select,
    UrlTest,
    Fallback,
    LoadBalance,
    Socks5,
    Http,
    Dns,
}

impl OutboundKind {
    /// Whether it makes connections of its own.
    fn dials(self) -> bool {
        match self {
            Self::Direct
            | Self::Snell
            | Self::Shadowsocks
            | Self::Ssr
            | Self::Obfs
            | Self::Socks5
            | Self::Http => true,
            Self::Reject
            | Self::Group
            | Self::Select
            | Self::UrlTest
            | Self::Fallback
            | Self::LoadBalance
            | Self::Dns => false,
        }
    }
}

pub(super) const KINDS: &[(&str, OutboundKind)] = &[
    ("direct", OutboundKind::Direct),
    ("reject", OutboundKind::Reject),
    ("snell", OutboundKind::Snell),
    ("shadowsocks", OutboundKind::Shadowsocks),
    ("ssr", OutboundKind::Ssr),
    ("obfs", OutboundKind::Obfs),
    ("group", OutboundKind::Group),
    ("select", OutboundKind::Select),
    ("url-test", OutboundKind::UrlTest),
    ("fallback", OutboundKind::Fallback),
    ("load-balance", OutboundKind::LoadBalance),
    ("socks5", OutboundKind::Socks5),
    ("http", OutboundKind::Http),
    ("dns", OutboundKind::Dns),
];

pub(crate) fn read(mut fields: TomlFields<'_>, report: &mut TomlReport<'_>) -> RawOutbound {
    let kind = fields.require(report, &rows::OUTBOUND_PROTOCOL);
    let mut raw = RawOutbound {
        path: fields.base().to_owned(),
        name: fields.read(report, &rows::NAME),
        dial: Dial::default(),
        protocol: None,
        members: Vec::new(),
        lists: Vec::new(),
        through: None,
    };
    if let Some(kind) = kind {
        raw.protocol = match kind {
            OutboundKind::Direct => Some(OutboundProtocol::Direct),
            OutboundKind::Reject => Some(OutboundProtocol::Reject),
            OutboundKind::Snell => snell(&mut fields, report).map(OutboundProtocol::Snell),
            OutboundKind::Shadowsocks => {
                shadowsocks::client(&mut fields, report).map(OutboundProtocol::Shadowsocks)
            }
            OutboundKind::Ssr => ssr::client(&mut fields, report).map(OutboundProtocol::Ssr),
            OutboundKind::Obfs => obfs::client(&mut fields, report).map(OutboundProtocol::Obfs),
            OutboundKind::Group => {
                let (group, members) = group::read(&mut fields, report);
                raw.members = members;
                Some(OutboundProtocol::Group(group))
            }
            OutboundKind::Select
            | OutboundKind::UrlTest
            | OutboundKind::Fallback
            | OutboundKind::LoadBalance => {
                let (choice, names) = choice::read(kind, &mut fields, report);
                (raw.members, raw.lists) = (names.members, names.lists);
                Some(OutboundProtocol::Choice(choice))
            }
            OutboundKind::Socks5 | OutboundKind::Http => {
                choice::read_proxy(kind, &mut fields, report).map(OutboundProtocol::Proxy)
            }
            OutboundKind::Dns => Some(OutboundProtocol::Dns { ipv6: true }),
        };
        if kind.dials() {
            raw.through = fields.read(report, &link::THROUGH);
            raw.dial = dial(&mut fields, report);
            let client = carrier::client(&mut fields, report, raw.protocol.as_ref());
            carrier::check_client(&fields, report, client.as_ref(), raw.protocol.as_ref());
            raw.dial.carrier = client.map(Box::new);
        }
        if matches!(kind, OutboundKind::Snell | OutboundKind::Shadowsocks | OutboundKind::Ssr) {
            raw.dial.pace = pace::read(&mut fields, report, raw.dial.carrier.is_some());
        }
    }
    fields.finish(report, kind.map(|kind| name_of(KINDS, &kind)));
    raw
}

fn dial(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Dial {
    let dns = fields.read(report, &link::DNS).unwrap_or_default();
    Dial {
        family: family(fields, report),
        egress: egress(fields, report),
        dns: dns.into_iter().map(|server| server.value).collect(),
        fast_open: fields.read(report, &link::FAST_OPEN).unwrap_or(false),
        tcp: tcp::read(fields, report),
        timeout: timeout(fields, report),
        carrier: None,
        unix: None,
        pace: None,
        through: None,
    }
}

fn family(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> AddressFamilies {
    refuse_both(fields, report, &link::DIAL_FAMILY, &link::IPV6);
    let family = fields.read(report, &link::DIAL_FAMILY);
    let ipv6 = fields.read(report, &link::IPV6);
    match (family, ipv6) {
        (Some(family), _) => family,
        (None, Some(false)) => AddressFamilies::V4Only,
        (None, _) => AddressFamilies::Any,
    }
}

fn egress(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Egress {
    if fields.has(&link::INTERFACE) && fields.has(&link::EGRESS_INTERFACE) {
        let problem = Problem::new("another name of interface, which is given too");
        fields.wrong(report, &link::EGRESS_INTERFACE, problem);
    }
    let own = fields.read(report, &link::INTERFACE);
    let alias = fields.read(report, &link::EGRESS_INTERFACE);
    let mut egress = Egress { interface: own.or(alias), ..Egress::default() };
    for source in fields.read(report, &link::BIND_ADDRESS).unwrap_or_default() {
        if egress.set_source(source.value) {
            let problem =
                Problem::new("two addresses of one family").hint("one for IPv4 and one for IPv6 at most");
            report.error(&source.at, fields.path(&link::BIND_ADDRESS), problem);
        }
    }
    egress.mark = fields.read(report, &link::FWMARK);
    egress
}

fn timeout(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Duration {
    let default = Dial::default().timeout;
    let timeout = fields.read(report, &link::TIMEOUT).unwrap_or(default);
    if timeout.is_zero() {
        let problem = Problem::new("timeout must be greater than 0");
        fields.wrong(report, &link::TIMEOUT, problem);
    }
    timeout
}

fn snell(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<SnellClient> {
    let server = fields.require(report, &rows::SERVER);
    let psk = fields.require(report, &rows::PSK);
    let client_id = fields.read(report, &rows::USER_KEY);
    let number = fields.read(report, &rows::VERSION);
    let version = versions::version(fields, report, number);
    versions::check_psk(fields, report, psk.as_ref(), &version.psk_lens());
    let obfs = obfs_client(fields, report, server.as_ref().map(|s| &s.value));
    versions::check_obfs(fields, report, obfs != ObfsClient::Off, version.has_obfs());
    let reuse = versions::reuse(fields, report, version);
    let half_close = fields.read(report, &rows::HALF_CLOSE).unwrap_or_default();
    let udp = udp(fields, report);
    let quic = quic(fields, report);
    Some(SnellClient {
        server: server?.value,
        psk: psk?.value,
        client_id,
        version,
        obfs,
        reuse,
        half_close,
        udp,
        quic,
    })
}

/// `udp`, or its other name.
fn udp(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> bool {
    refuse_both(fields, report, &rows::UDP, &rows::UDP_RELAY);
    let own = fields.read(report, &rows::UDP);
    fields.read(report, &rows::UDP_RELAY).or(own).unwrap_or(true)
}

/// Refuses a key beside another one that says the same.
fn refuse_both(fields: &TomlFields<'_>, report: &mut TomlReport<'_>, key: &Head, other: &Head) {
    if fields.has(key) && fields.has(other) {
        let problem = Problem::new(format!("`{}` sets the same", key.name));
        fields.wrong(report, other, problem.hint("keep one of them"));
    }
}

/// `quic`, or what Surge calls `block-quic`.
fn quic(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Quic {
    refuse_both(fields, report, &rows::CLIENT_QUIC, &rows::BLOCK_QUIC);
    let own = fields.read(report, &rows::CLIENT_QUIC);
    fields.read(report, &rows::BLOCK_QUIC).or(own).unwrap_or_default()
}

pub(super) fn obfs_client(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    server: Option<&Target>,
) -> ObfsClient {
    let mode = fields.read(report, &rows::OBFS_MODE).unwrap_or(ObfsServer::Off);
    let host = fields.read(report, &rows::OBFS_HOST);
    if let (ObfsServer::Off, Some(host)) = (mode, &host) {
        let problem = Problem::new("obfs is off, so this host has no effect");
        report.error(
            &host.at,
            fields.path(&rows::OBFS_HOST),
            problem.hint("write obfs = \"http\" too, or leave it out"),
        );
    }
    let host =
        host.map(|h| h.value).or_else(|| server.map(|s| s.host.to_string().into())).unwrap_or_default();
    match mode {
        ObfsServer::Off => ObfsClient::Off,
        ObfsServer::Http => ObfsClient::Http(host),
        ObfsServer::Tls => ObfsClient::Tls(host),
    }
}

pub(super) fn write_obfs(out: &mut TableEntries, obfs: &ObfsClient) {
    let (mode, host) = match obfs {
        ObfsClient::Off => (ObfsServer::Off, None),
        ObfsClient::Http(host) => (ObfsServer::Http, Some(&**host)),
        ObfsClient::Tls(host) => (ObfsServer::Tls, Some(&**host)),
    };
    out.put_unless(&rows::OBFS_MODE, &mode, &ObfsServer::Off);
    out.put_some(&rows::OBFS_HOST, host);
}

/// The keys of an outbound. Members of groups out of lists are in `provided`.
pub(super) fn entries(outbound: &Outbound, provided: &HashSet<&Tag>) -> TableEntries {
    let mut out = TableEntries::default();
    out.put(&rows::NAME, &outbound.name);
    out.put(&rows::OUTBOUND_PROTOCOL, protocol_name(&outbound.protocol));
    match &outbound.protocol {
        OutboundProtocol::Reject | OutboundProtocol::Dns { .. } | OutboundProtocol::Refuse(_) => return out,
        OutboundProtocol::Direct => {}
        OutboundProtocol::Snell(client) => versions::write_client(&mut out, client),
        OutboundProtocol::Shadowsocks(client) => shadowsocks::write_client(&mut out, client),
        OutboundProtocol::Ssr(client) => ssr::write_client(&mut out, client),
        OutboundProtocol::Obfs(client) => obfs::write_client(&mut out, client),
        OutboundProtocol::Proxy(client) => choice::write_proxy(&mut out, client),
        OutboundProtocol::Choice(choice) => {
            choice::write(&mut out, choice, provided);
            return out;
        }
        OutboundProtocol::Group(group) => {
            group::write(&mut out, group);
            return out;
        }
    }
    write_dial(&mut out, &outbound.dial);
    out
}

pub(super) fn protocol_name(protocol: &OutboundProtocol) -> &'static str {
    let kind = match protocol {
        OutboundProtocol::Direct => OutboundKind::Direct,
        // Every request is refused in either case.
        OutboundProtocol::Reject | OutboundProtocol::Refuse(_) => OutboundKind::Reject,
        OutboundProtocol::Snell(_) => OutboundKind::Snell,
        OutboundProtocol::Shadowsocks(_) => OutboundKind::Shadowsocks,
        OutboundProtocol::Ssr(_) => OutboundKind::Ssr,
        OutboundProtocol::Obfs(_) => OutboundKind::Obfs,
        OutboundProtocol::Group(_) => OutboundKind::Group,
        OutboundProtocol::Choice(choice) => choice::kind(choice),
        OutboundProtocol::Proxy(client) => match client.kind {
            ProxyKind::Socks5 { .. } => OutboundKind::Socks5,
            ProxyKind::Http { .. } => OutboundKind::Http,
        },
        OutboundProtocol::Dns { .. } => OutboundKind::Dns,
    };
    name_of(KINDS, &kind)
}

fn write_dial(out: &mut TableEntries, dial: &Dial) {
    out.put_unless(&link::DIAL_FAMILY, &dial.family, &AddressFamilies::Any);
    out.put_some(&link::INTERFACE, dial.egress.interface.as_deref());
    let sources: Vec<_> = dial.egress.sources().collect();
    if !sources.is_empty() {
        out.put(&link::BIND_ADDRESS, &sources);
    }
    out.put_some(&link::FWMARK, dial.egress.mark.as_ref());
    out.put_some(&link::THROUGH, dial.through.as_deref());
    if !dial.dns.is_empty() {
        out.put(&link::DNS, &dial.dns);
    }
    out.put_unless(&link::FAST_OPEN, &dial.fast_open, &false);
    tcp::write(out, &dial.tcp);
    out.put_unless(&link::TIMEOUT, &dial.timeout, &Dial::default().timeout);
    pace::write(out, dial.pace);
    if let Some(client) = &dial.carrier {
        carrier::write_client(out, client);
    }
}
