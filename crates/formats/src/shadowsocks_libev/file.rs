//! The file: JSON that is strict but for a comma at the end, of which each known key has one kind of value.

use adit_model::Secret;
use adit_model::diagnostic::{Diagnostic, Diagnostics, Severity};
use zeroize::Zeroizing;

use crate::read::json::{self, Grammar};
use crate::read::json_fields::{JsonField, JsonFields, JsonReport};
use crate::read::source::Source;
use crate::read::value::Problem;
use crate::shadowsocks::option_value::OptionValue;

/// Longest file, in bytes (shadowsocks-libev 3.3.5).
const MAX_LEN: usize = 128 << 10;

/// Most servers of a client, and addresses of a server (shadowsocks-libev 3.3.5).
pub(super) const MAX_SERVERS: usize = 10;

/// Most entries of `port_password` (shadowsocks-libev 3.3.5).
const MAX_PORTS: usize = 1024;

/// Settings that both flags and file have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LibevKey {
    Server,
    ServerPort,
    LocalAddress,
    /// `local_ipv4_address` and `local_ipv6_address`, which servers send from.
    SourceAddress,
    LocalPort,
    Password,
    Base64,
    Method,
    Timeout,
    User,
    OpenFiles,
    NameServer,
    Target,
    Mode,
    Mtu,
    Plugin,
    PluginOptions,
    Acl,
    ManagerAddress,
    Directory,
    FastOpen,
    ReusePort,
    NoDelay,
    Mptcp,
    Ipv6First,
    Syslog,
    Tproxy,
}

/// Kinds of values in the file.
#[derive(Clone, Copy)]
enum Kind {
    /// A text or a whole number.
    Text,
    Switch,
    /// A number without quotes.
    Whole,
    /// A text or a list of texts.
    Hosts,
}

/// Keys of all programs of the family (jconf of 3.3.5), without `port_password`, `dscp` and `auth`.
const KEYS: &[(&str, LibevKey, Kind)] = &[
    ("server", LibevKey::Server, Kind::Hosts),
    ("server_port", LibevKey::ServerPort, Kind::Text),
    ("local_address", LibevKey::LocalAddress, Kind::Text),
    ("local_ipv4_address", LibevKey::SourceAddress, Kind::Text),
    ("local_ipv6_address", LibevKey::SourceAddress, Kind::Text),
    ("local_port", LibevKey::LocalPort, Kind::Text),
    ("password", LibevKey::Password, Kind::Text),
    ("key", LibevKey::Base64, Kind::Text),
    ("method", LibevKey::Method, Kind::Text),
    ("timeout", LibevKey::Timeout, Kind::Text),
    ("user", LibevKey::User, Kind::Text),
    ("plugin", LibevKey::Plugin, Kind::Text),
    ("plugin_opts", LibevKey::PluginOptions, Kind::Text),
    ("fast_open", LibevKey::FastOpen, Kind::Switch),
    ("reuse_port", LibevKey::ReusePort, Kind::Switch),
    ("nofile", LibevKey::OpenFiles, Kind::Whole),
    ("nameserver", LibevKey::NameServer, Kind::Text),
    ("tunnel_address", LibevKey::Target, Kind::Text),
    ("mode", LibevKey::Mode, Kind::Text),
    ("mtu", LibevKey::Mtu, Kind::Whole),
    ("mptcp", LibevKey::Mptcp, Kind::Switch),
    ("ipv6_first", LibevKey::Ipv6First, Kind::Switch),
    ("use_syslog", LibevKey::Syslog, Kind::Switch),
    ("no_delay", LibevKey::NoDelay, Kind::Switch),
    ("tcp_tproxy", LibevKey::Tproxy, Kind::Switch),
    ("workdir", LibevKey::Directory, Kind::Text),
    ("acl", LibevKey::Acl, Kind::Text),
    ("manager_address", LibevKey::ManagerAddress, Kind::Text),
];

/// Values of a file.
#[derive(Debug, Default)]
pub(super) struct LibevValues {
    pub(super) values: Vec<(LibevKey, OptionValue)>,
    pub(super) port_password: Vec<(OptionValue, u16, Secret)>,
}

/// Reads a file.
pub(super) fn parse(source: &Source<'_>) -> Result<(LibevValues, Diagnostics), Diagnostics> {
    if source.text.len() > MAX_LEN {
        let problem = format!("longer than {} KiB", MAX_LEN >> 10);
        return Err(Diagnostic::error(&source.file, "", problem).into());
    }
    let root = json::parse(source, Grammar::Lax)?;
    let mut report = JsonReport::new(source);
    let mut values = LibevValues::default();
    if let Some(mut fields) = JsonFields::new(&mut report, &root, String::new()) {
        read(&mut report, &mut fields, &mut values);
        fields.finish(&mut report, Severity::Warning);
    }
    Ok((values, report.found))
}

fn read(report: &mut JsonReport<'_>, fields: &mut JsonFields<'_>, values: &mut LibevValues) {
    for (name, key, kind) in KEYS {
        // The programs take null for a missing text, and end where a number or truth value is null.
        let field = match kind {
            Kind::Text | Kind::Hosts => fields.take(report, name),
            Kind::Switch | Kind::Whole => fields.written(name),
        };
        let Some(field) = field else { continue };
        let texts = match kind {
            Kind::Text => field.text_or_number(report).into_iter().collect(),
            Kind::Switch => field.flag(report).map(|on| Zeroizing::new(on.to_string())).into_iter().collect(),
            Kind::Whole => whole(report, &field).into_iter().collect(),
            Kind::Hosts => hosts(report, &field),
        };
        values.values.extend(texts.into_iter().map(|text| (*key, given(report, &field, text))));
    }
    if let Some(field) = fields.written("auth")
        && field.flag(report) == Some(true)
    {
        field.error(report, Problem::new("one-time authentication is gone; use an AEAD method"));
    }
    if let Some(field) = fields.take(report, "dscp") {
        field.warning(report, Problem::new(crate::shadowsocks::setup::NOT_YET));
    }
    if let Some(field) = fields.take(report, "port_password") {
        ports(report, &field, values);
    }
}

fn given(report: &JsonReport<'_>, field: &JsonField<'_>, value: Zeroizing<String>) -> OptionValue {
    OptionValue::of_field(report, field, value)
}

fn whole(report: &mut JsonReport<'_>, field: &JsonField<'_>) -> Option<Zeroizing<String>> {
    let number = field.number(report, 0..=u64::from(u32::MAX))?;
    Some(Zeroizing::new(number.to_string()))
}

fn hosts(report: &mut JsonReport<'_>, field: &JsonField<'_>) -> Vec<Zeroizing<String>> {
    let json::Node::Array(_) = field.value.node else {
        return field.text_or_number(report).into_iter().collect();
    };
    let entries = field.list(report, MAX_SERVERS);
    if entries.is_empty() {
        field.warning(report, Problem::new("an empty list counts as not written"));
    }
    entries.iter().filter_map(|entry| entry.text_or_number(report)).collect()
}

fn ports(report: &mut JsonReport<'_>, field: &JsonField<'_>, values: &mut LibevValues) {
    let json::Node::Object(members) = &field.value.node else {
        return field.wrong_type(report, "an object");
    };
    if members.len() > MAX_PORTS {
        field.error(report, Problem::new(format!("more than {MAX_PORTS} entries")));
    }
    for (n, member) in members.iter().take(MAX_PORTS).enumerate() {
        let entry = JsonField { path: format!("{}[{n}]", field.path), value: &member.value };
        let Some(password) = entry.text_or_number(report) else { continue };
        match member.key.parse::<u16>() {
            Ok(port) if port != 0 => {
                let place = given(report, &entry, Zeroizing::default());
                values.port_password.push((place, port, Secret::new(password.as_str())));
            }
            _ => report.error(member.at, entry.path, Problem::new("the key is not a port number")),
        }
    }
}
