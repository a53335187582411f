//! One `[[outbound]]`.

use std::time::Duration;

use adit_proto::wire::Target;

use super::fields::{Fields, Report, Spanned, one_of};
use super::users::MAX_CREDENTIAL;
use super::{carrier, group, name, obfs, obfs_server, pace, shadowsocks, snell as versions, ssr, tcp, write};
use crate::dialect::value::{self, MAX_DNS, Problem, interface, psk};
use crate::model::{
    Dial, Egress, Family, HalfClose, ObfsClient, ObfsServer, OutboundProtocol, Quic, SnellClient,
};

/// An outbound as it is written.
pub(super) struct RawOutbound {
    pub(super) path: String,
    pub(super) name: Option<Spanned<Box<str>>>,
    pub(super) dial: Dial,
    /// `None` when something in it is wrong, which has been reported.
    pub(super) protocol: Option<OutboundProtocol>,
    /// The names that the members of a group have.
    pub(super) members: Vec<Spanned<Box<str>>>,
    /// The outbound that it dials through.
    pub(super) through: Option<Spanned<Box<str>>>,
}

#[derive(Clone, Copy)]
enum Kind {
    Direct,
    Reject,
    Snell,
    Shadowsocks,
    Ssr,
    Obfs,
    Group,
}

const KINDS: &[(&str, Kind)] = &[
    ("direct", Kind::Direct),
    ("reject", Kind::Reject),
    ("snell", Kind::Snell),
    ("shadowsocks", Kind::Shadowsocks),
    ("ssr", Kind::Ssr),
    ("obfs", Kind::Obfs),
    ("group", Kind::Group),
];

pub(super) const FAMILIES: &[(&str, Family)] = &[
    ("any", Family::Any),
    ("prefer-ipv4", Family::PreferV4),
    ("ipv4-only", Family::V4Only),
    ("ipv6-only", Family::V6Only),
];

pub(super) fn read(mut fields: Fields<'_>, report: &mut Report<'_>) -> RawOutbound {
    let kind = fields.require(report, "protocol").and_then(|field| {
        field.parsed(report, |text| one_of(text, KINDS).map(|kind| (kind, text.to_owned())))
    });
    let name = fields.parsed(report, "name", name);
    let path = fields.path("");
    let mut raw = RawOutbound {
        path: path.trim_end_matches('.').to_owned(),
        name,
        dial: Dial::default(),
        protocol: None,
        members: Vec::new(),
        through: None,
    };
    if let Some(kind) = &kind {
        raw.protocol = match kind.value.0 {
            Kind::Direct => Some(OutboundProtocol::Direct),
            Kind::Reject => Some(OutboundProtocol::Reject),
            Kind::Snell => snell(&mut fields, report).map(OutboundProtocol::Snell),
            Kind::Shadowsocks => shadowsocks::client(&mut fields, report).map(OutboundProtocol::Shadowsocks),
            Kind::Ssr => ssr::client(&mut fields, report).map(OutboundProtocol::Ssr),
            Kind::Obfs => obfs::client(&mut fields, report).map(OutboundProtocol::Obfs),
            Kind::Group => {
                let (group, members) = group::read(&mut fields, report);
                raw.members = members;
                Some(OutboundProtocol::Group(group))
            }
        };
        if matches!(kind.value.0, Kind::Direct | Kind::Snell | Kind::Shadowsocks) {
            raw.through = fields.parsed(report, "through", super::name);
        }
        if !matches!(kind.value.0, Kind::Reject | Kind::Group) {
            raw.dial = dial(&mut fields, report);
            raw.dial.carrier = carrier::client(&mut fields, report, raw.protocol.as_ref()).map(Box::new);
        }
        if matches!(kind.value.0, Kind::Snell | Kind::Shadowsocks | Kind::Ssr) {
            raw.dial.pace = pace::read(&mut fields, report, raw.dial.carrier.is_some());
        }
    }
    fields.finish(report, kind.as_ref().map(|kind| kind.value.1.as_str()));
    raw
}

fn dial(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Dial {
    let dns = fields.list(report, "dns", MAX_DNS, value::name_server).unwrap_or_default();
    Dial {
        family: family(fields, report),
        egress: egress(fields, report),
        dns: dns.into_iter().map(|server| server.value).collect(),
        fast_open: fields.flag(report, "tcp-fast-open").unwrap_or(false),
        tcp: tcp::read(fields, report),
        timeout: timeout(fields, report),
        carrier: None,
        unix: None,
        pace: None,
        through: None,
    }
}

fn family(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Family {
    let both = fields.has("family") && fields.has("ipv6");
    let family = fields.one_of(report, "family", FAMILIES);
    let ipv6 = fields.flag(report, "ipv6");
    if both {
        let problem = Problem::new("family says it already");
        report.error(&fields.place("ipv6"), fields.path("ipv6"), problem.hint("keep one of them"));
    }
    match (family, ipv6) {
        (Some(family), _) => family,
        (None, Some(false)) => Family::V4Only,
        (None, _) => Family::Any,
    }
}

fn egress(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Egress {
    if fields.has("interface") && fields.has("egress-interface") {
        let problem = Problem::new("another name of interface, which is given too");
        report.error(&fields.place("egress-interface"), fields.path("egress-interface"), problem);
    }
    let own = fields.parsed(report, "interface", interface);
    let alias = fields.parsed(report, "egress-interface", interface);
    let mut egress = Egress { interface: own.or(alias).map(|name| name.value), ..Egress::default() };
    for source in fields.list(report, "bind-address", 2, value::bind_address).unwrap_or_default() {
        if egress.set_source(source.value) {
            let problem =
                Problem::new("two addresses of one family").hint("one for IPv4 and one for IPv6 at most");
            report.error(&source.at, fields.path("bind-address"), problem);
        }
    }
    let most = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
    egress.mark = fields.integer(report, "fwmark", 1..=most).and_then(|mark| mark.try_into().ok());
    egress
}

fn timeout(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Duration {
    let default = Dial::default().timeout;
    let timeout = fields.duration(report, "timeout").unwrap_or(default);
    if timeout.is_zero() {
        let problem = Problem::new("a timeout of nothing lets nothing connect");
        report.error(&fields.place("timeout"), fields.path("timeout"), problem);
    }
    timeout
}

fn snell(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<SnellClient> {
    const HALF_CLOSES: &[(&str, HalfClose)] =
        &[("auto", HalfClose::Auto), ("on", HalfClose::On), ("late", HalfClose::Late)];
    let server = fields.require(report, "server").and_then(|f| f.parsed(report, value::target));
    let psk = fields.require(report, "psk").and_then(|f| f.parsed(report, psk));
    let client_id = fields.parsed(report, "user-key", |text| value::secret(text, MAX_CREDENTIAL));
    let client_id = client_id.map(|id| id.value);
    let version = versions::client_version(fields, report);
    versions::check_psk(fields, report, psk.as_ref(), &version.psk_lens());
    let obfs = obfs_client(fields, report, server.as_ref().map(|s| &s.value));
    versions::check_obfs(fields, report, obfs != ObfsClient::Off, version.has_obfs());
    let reuse = versions::reuse(fields, report, version);
    let half_close = fields.one_of(report, "half-close", HALF_CLOSES).unwrap_or_default();
    let udp = alias(fields, report, "udp", "udp-relay").unwrap_or(true);
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

/// A switch with two names, of which one may be given.
fn alias(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    name: &'static str,
    other: &'static str,
) -> Option<bool> {
    refuse_both(fields, report, name, other);
    let own = fields.flag(report, name);
    fields.flag(report, other).or(own)
}

fn refuse_both(fields: &Fields<'_>, report: &mut Report<'_>, name: &str, other: &str) {
    if fields.has(name) && fields.has(other) {
        let problem = Problem::new(format!("{name} says it already"));
        report.error(&fields.place(other), fields.path(other), problem.hint("keep one of them"));
    }
}

/// `quic`, or what Surge calls `block-quic`.
fn quic(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Quic {
    const BLOCK: &[(&str, Quic)] = &[("auto", Quic::Auto), ("on", Quic::Block), ("off", Quic::On)];
    refuse_both(fields, report, "quic", "block-quic");
    let own = fields.one_of(report, "quic", write::QUIC);
    fields.one_of(report, "block-quic", BLOCK).or(own).unwrap_or_default()
}

pub(super) fn obfs_client(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    server: Option<&Target>,
) -> ObfsClient {
    let mode = fields.parsed(report, "obfs", obfs_server).map_or(ObfsServer::Off, |o| o.value);
    let host = fields.parsed(report, "obfs-host", value::disguise_host);
    if let (ObfsServer::Off, Some(host)) = (mode, &host) {
        let problem = Problem::new("there is no disguise that could name it");
        report.error(
            &host.at,
            fields.path("obfs-host"),
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
