//! The files: JSON with comments. Each known key has one kind of value.

use adit_model::diagnostic::{Diagnostics, Severity};
use zeroize::Zeroizing;

use crate::read::json::{self, Grammar, Node};
use crate::read::json_fields::{JsonField, JsonFields, JsonReport};
use crate::read::source::Source;
use crate::read::value::Problem;
use crate::shadowsocks::option_value::OptionValue;

/// Most servers of a client, and addresses of a server.
pub(super) const MAX_SERVERS: usize = 10;

/// Most entries of `port_password` and of `additional_ports`.
const MAX_PORTS: usize = 4096;

/// Most fallback servers.
const MAX_REDIRECTS: usize = 256;

/// The settings of flags and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SsrSetting {
    Server,
    ServerV6,
    ServerPort,
    LocalAddress,
    LocalPort,
    Password,
    Method,
    Protocol,
    ProtocolParam,
    Obfs,
    ObfsParam,
    /// Host that the obfs shows.
    Host,
    Timeout,
    UdpTimeout,
    User,
    OpenFiles,
    NameServer,
    Target,
    Mode,
    Mtu,
    Plugin,
    PluginOptions,
    Acl,
    FastOpen,
    Mptcp,
    Ipv6First,
    DnsIpv6,
    ForbiddenIp,
    ForbiddenPort,
    BlackNames,
    RatePerUser,
    RatePerConnection,
    OutBind,
    OutBindV6,
    Redirect,
    Name,
}

impl SsrSetting {
    pub(super) fn is_switch(self) -> bool {
        matches!(self, Self::FastOpen | Self::Mptcp | Self::Ipv6First | Self::DnsIpv6)
    }
}

/// Kinds of values.
#[derive(Clone, Copy)]
enum Kind {
    /// A text or a whole number.
    Text,
    /// true, false, or 1 and 0.
    Switch,
    /// A text or number, or a list of them, of at most so many.
    Texts(usize),
}

type Keys = &'static [(&'static str, SsrSetting, Kind)];

/// Keys of one server or port.
const OF_SERVER: Keys = &[
    ("password", SsrSetting::Password, Kind::Text),
    ("method", SsrSetting::Method, Kind::Text),
    ("protocol", SsrSetting::Protocol, Kind::Text),
    ("protocol_param", SsrSetting::ProtocolParam, Kind::Text),
    ("obfs", SsrSetting::Obfs, Kind::Text),
    ("obfs_param", SsrSetting::ObfsParam, Kind::Text),
];

/// Keys of a whole file, beside those of a server.
const OF_FILE: Keys = &[
    ("server", SsrSetting::Server, Kind::Texts(MAX_SERVERS)),
    ("server_ipv6", SsrSetting::ServerV6, Kind::Text),
    ("server_port", SsrSetting::ServerPort, Kind::Texts(64)),
    ("local_address", SsrSetting::LocalAddress, Kind::Text),
    ("local_port", SsrSetting::LocalPort, Kind::Text),
    ("timeout", SsrSetting::Timeout, Kind::Text),
    ("udp_timeout", SsrSetting::UdpTimeout, Kind::Text),
    ("user", SsrSetting::User, Kind::Text),
    ("nofile", SsrSetting::OpenFiles, Kind::Text),
    ("nameserver", SsrSetting::NameServer, Kind::Text),
    ("tunnel_address", SsrSetting::Target, Kind::Text),
    ("mode", SsrSetting::Mode, Kind::Text),
    ("mtu", SsrSetting::Mtu, Kind::Text),
    ("plugin", SsrSetting::Plugin, Kind::Text),
    ("plugin_opts", SsrSetting::PluginOptions, Kind::Text),
    ("acl", SsrSetting::Acl, Kind::Text),
    ("fast_open", SsrSetting::FastOpen, Kind::Switch),
    ("mptcp", SsrSetting::Mptcp, Kind::Switch),
    ("ipv6_first", SsrSetting::Ipv6First, Kind::Switch),
    ("dns_ipv6", SsrSetting::DnsIpv6, Kind::Switch),
    ("forbidden_ip", SsrSetting::ForbiddenIp, Kind::Text),
    ("forbidden_port", SsrSetting::ForbiddenPort, Kind::Text),
    ("black_hostname_list", SsrSetting::BlackNames, Kind::Text),
    ("speed_limit_per_user", SsrSetting::RatePerUser, Kind::Text),
    ("speed_limit_per_con", SsrSetting::RatePerConnection, Kind::Text),
    ("out_bind", SsrSetting::OutBind, Kind::Text),
    ("out_bindv6", SsrSetting::OutBindV6, Kind::Text),
    ("redirect", SsrSetting::Redirect, Kind::Texts(MAX_REDIRECTS)),
];

/// Keys of a row of the database, beside those of a server; `passwd` is another name of `password`.
const OF_ROW: Keys = &[
    ("passwd", SsrSetting::Password, Kind::Text),
    ("user", SsrSetting::Name, Kind::Text),
    ("forbidden_ip", SsrSetting::ForbiddenIp, Kind::Text),
    ("forbidden_port", SsrSetting::ForbiddenPort, Kind::Text),
    ("speed_limit_per_user", SsrSetting::RatePerUser, Kind::Text),
    ("speed_limit_per_con", SsrSetting::RatePerConnection, Kind::Text),
];

/// Keys of an entry of `servers`, beside those of a server.
const OF_ENTRY: Keys = &[
    ("server", SsrSetting::Server, Kind::Text),
    ("server_port", SsrSetting::ServerPort, Kind::Text),
    ("remarks", SsrSetting::Name, Kind::Text),
];

/// Keys of an entry of `port_password` or `additional_ports`, beside those of a server.
const OF_PORT: Keys = &[
    ("passwd", SsrSetting::Password, Kind::Text),
    ("out_bind", SsrSetting::OutBind, Kind::Text),
    ("out_bindv6", SsrSetting::OutBindV6, Kind::Text),
];

/// Keys without a meaning here, which pass in silence: descriptions, and tuning of what is built in another way. Their
/// values are looked at all the same, and forgotten.
const IDLE: Keys = &[
    ("auth", SsrSetting::Name, Kind::Switch),
    ("connect_verbose_info", SsrSetting::Name, Kind::Switch),
    ("ignore_bind", SsrSetting::Name, Kind::Texts(MAX_REDIRECTS)),
    ("index", SsrSetting::Name, Kind::Text),
    ("remarks", SsrSetting::Name, Kind::Text),
    ("udp_cache", SsrSetting::Name, Kind::Text),
    ("verbose", SsrSetting::Name, Kind::Switch),
    ("workers", SsrSetting::Name, Kind::Text),
];

/// Descriptions in an entry of `servers`, likewise.
const IDLE_OF_ENTRY: Keys = &[("id", SsrSetting::Name, Kind::Text), ("group", SsrSetting::Name, Kind::Text)];

/// Keys whose absence somebody may notice.
const NOT_YET: &[&str] = &["manager_address", "log-file", "pid-file", "udp_over_tcp"];

/// Settings of one file, server or port.
pub(crate) type SsrSettings = Vec<(SsrSetting, OptionValue)>;

/// The content of a file.
#[derive(Debug, Default)]
pub(crate) struct SsrFile {
    pub(crate) values: SsrSettings,
    /// Entries of `servers`.
    pub(super) servers: Vec<SsrSettings>,
    /// Entries of `port_password`.
    pub(crate) ports: Vec<(u16, SsrSettings)>,
    /// Entries of `additional_ports`.
    pub(crate) additional: Vec<(u16, SsrSettings)>,
    /// The place of `additional_ports`.
    pub(super) additional_at: Option<OptionValue>,
    /// Users of the database have no port of their own.
    pub(crate) additional_only: bool,
}

/// Reads a file.
pub(super) fn parse(source: &Source<'_>) -> Result<(SsrFile, Diagnostics), Diagnostics> {
    let root = json::parse(source, Grammar::Json5)?;
    let mut report = JsonReport::new(source);
    let mut values = SsrFile::default();
    if let Some(mut fields) = JsonFields::new(&mut report, &root, String::new()) {
        read(&mut report, &mut fields, &mut values);
        fields.finish(&mut report, Severity::Warning);
    }
    Ok((values, report.found))
}

fn read(report: &mut JsonReport<'_>, fields: &mut JsonFields<'_>, values: &mut SsrFile) {
    values.values = section(report, fields, &[OF_SERVER, OF_FILE]);
    section(report, fields, &[IDLE]);
    for key in NOT_YET {
        let Some(field) = fields.take(report, key) else { continue };
        if !field.is_false() {
            field.warning(report, Problem::new("not in this build, so it has no effect"));
        }
    }
    if let Some(field) = fields.take(report, "servers") {
        for entry in field.list(report, MAX_SERVERS) {
            values.servers.extend(server(report, &entry));
        }
    }
    let of_ports = fields.take(report, "port_password");
    values.ports = ports(report, of_ports);
    let of_ports = fields.take(report, "additional_ports");
    values.additional_at =
        of_ports.as_ref().map(|field| OptionValue::of_field(report, field, Zeroizing::default()));
    values.additional = ports(report, of_ports);
    if let Some(field) = fields.take(report, "additional_ports_only") {
        values.additional_only = switch(report, &field) == Some(true);
    }
}

fn section(report: &mut JsonReport<'_>, fields: &mut JsonFields<'_>, keys: &[Keys]) -> SsrSettings {
    let mut section = SsrSettings::new();
    for (name, key, kind) in keys.iter().copied().flatten() {
        let Some(field) = fields.take(report, name) else { continue };
        let given = |report: &JsonReport<'_>, field: &JsonField<'_>, text| {
            (*key, OptionValue::of_field(report, field, text))
        };
        match kind {
            Kind::Text => {
                let text = field.text_or_number(report);
                section.extend(text.map(|text| given(report, &field, text)));
            }
            Kind::Switch => {
                let on = switch(report, &field).map(|on| Zeroizing::new(on.to_string()));
                section.extend(on.map(|on| given(report, &field, on)));
            }
            Kind::Texts(most) => {
                let entries = if let Node::Array(entries) = &field.value.node {
                    if entries.is_empty() {
                        field.warning(report, Problem::new("an empty list counts as not written"));
                    }
                    field.list(report, *most)
                } else {
                    vec![field]
                };
                for entry in entries {
                    let text = entry.text_or_number(report);
                    section.extend(text.map(|text| given(report, &entry, text)));
                }
            }
        }
    }
    section
}

/// A truth value, as Python takes it.
pub(crate) fn switch(report: &mut JsonReport<'_>, field: &JsonField<'_>) -> Option<bool> {
    match &field.value.node {
        Node::Bool(on) => Some(*on),
        Node::Number(number) if json::whole(number).is_some() => Some(json::whole(number) != Some(0)),
        Node::Number(_) | Node::Text(_) | Node::Null | Node::Array(_) | Node::Object(_) => {
            field.wrong_type(report, "true or false");
            None
        }
    }
}

/// An entry of `servers`; none if it is switched off.
fn server(report: &mut JsonReport<'_>, field: &JsonField<'_>) -> Option<SsrSettings> {
    let mut fields = field.object(report)?;
    let section = section(report, &mut fields, &[OF_SERVER, OF_ENTRY]);
    let is_on = fields.take(report, "enable").is_none_or(|field| switch(report, &field) != Some(false));
    self::section(report, &mut fields, &[IDLE_OF_ENTRY]);
    if let Some(field) = fields.take(report, "udp_over_tcp")
        && switch(report, &field) == Some(true)
    {
        field.warning(
            report,
            Problem::new("the C client ignores it, so it has no effect").hint(
                "write udp-over-tcp = true into adit.toml, where the server takes datagrams over streams",
            ),
        );
    }
    let port = section
        .iter()
        .find(|(key, _)| *key == SsrSetting::ServerPort)
        .map(|(_, given)| given.text().to_owned());
    if let Some(field) = fields.take(report, "server_udp_port")
        && let Some(text) = field.text_or_number(report)
        && *text != "0"
        && port.is_some_and(|port| *text != port)
    {
        field.warning(report, Problem::new("datagrams go to server_port, so it has no effect"));
    }
    fields.finish(report, Severity::Warning);
    is_on.then_some(section)
}

fn ports(report: &mut JsonReport<'_>, field: Option<JsonField<'_>>) -> Vec<(u16, SsrSettings)> {
    let Some(field) = field else { return Vec::new() };
    let Node::Object(members) = &field.value.node else {
        field.wrong_type(report, "an object");
        return Vec::new();
    };
    if members.len() > MAX_PORTS {
        field.error(report, Problem::new(format!("more than {MAX_PORTS} entries")));
    }
    let mut ports: Vec<(u16, SsrSettings)> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (n, member) in members.iter().take(MAX_PORTS).enumerate() {
        let entry = JsonField { path: format!("{}[{n}]", field.path), value: &member.value };
        match member.key.parse::<u16>() {
            Ok(port) if port != 0 && seen.insert(port) => ports.push((port, of_port(report, &entry))),
            Ok(port) if port != 0 => {
                report.error(member.at, entry.path, Problem::new("this port is listed twice"))
            }
            _ => report.error(member.at, entry.path, Problem::new("the key is not a port number")),
        }
    }
    ports
}

/// A password, `[password, obfs, protocol]`, or an object.
fn of_port(report: &mut JsonReport<'_>, field: &JsonField<'_>) -> SsrSettings {
    match &field.value.node {
        Node::Array(_) => {
            let keys = [SsrSetting::Password, SsrSetting::Obfs, SsrSetting::Protocol];
            let entries = field.list(report, keys.len());
            let mut section = SsrSettings::new();
            for (key, entry) in keys.into_iter().zip(entries) {
                let text = entry.text_or_number(report);
                section.extend(text.map(|text| (key, OptionValue::of_field(report, &entry, text))));
            }
            section
        }
        Node::Object(_) => {
            let Some(mut fields) = field.object(report) else { return SsrSettings::new() };
            let section = section(report, &mut fields, &[OF_SERVER, OF_PORT]);
            fields.finish(report, Severity::Warning);
            section
        }
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) => {
            let text = field.text_or_number(report);
            text.map(|text| (SsrSetting::Password, OptionValue::of_field(report, field, text)))
                .into_iter()
                .collect()
        }
    }
}

/// The settings of a row of the database.
pub(crate) fn row(report: &mut JsonReport<'_>, fields: &mut JsonFields<'_>) -> SsrSettings {
    section(report, fields, &[OF_SERVER, OF_ROW])
}
