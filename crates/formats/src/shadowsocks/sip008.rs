//! SIP008: a list of servers that clients fetch again and again.
//!
//! ```text
//! { "version": 1,
//!   "servers": [ { "id": "...", "remarks": "...", "server": "...", "server_port": 8388, "password": "...",
//!                  "method": "...", "plugin": "...", "plugin_opts": "..." } ],
//!   "bytes_used": 1, "bytes_remaining": 2 }
//! ```
//!
//! JSON5 is read, as by shadowsocks-rust. A server that cannot be used is skipped with a warning, so that one method
//! from the future does not take the others away.

use std::fmt::Write as _;
use std::net::SocketAddr;

use adit_model::diagnostic::{Diagnostics, Severity};
use adit_model::{
    Check, Config, Dial, Inbound, KeyForm, LocalProtocols, OutboundProtocol, Plugin, Secret,
    ShadowsocksClient, SocketOptions, Transports,
};
use adit_proto::wire::{Host, Target};
use zeroize::Zeroizing;

use super::setup::{self, WeightedServer};
use super::{MAX_TEXT, ShadowsocksProfile, key, method};
use crate::read::json::{self, Grammar};
use crate::read::json_fields::{JsonField, JsonFields, JsonReport};
use crate::read::source::Source;
use crate::read::value::{Problem, text_of};

/// Most servers in one list.
const MAX_SERVERS: usize = 4096;

/// Longest name and id, in bytes.
const MAX_NAME: usize = 1024;

/// A list of servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sip008List {
    /// The servers that can be used.
    pub servers: Vec<ShadowsocksProfile>,
    /// Bytes that have been used of an allowance.
    pub bytes_used: Option<u64>,
    /// Bytes that are left of it.
    pub bytes_remaining: Option<u64>,
}

/// Reads a document; `file` is its name in messages. With `allowed_plugins`, servers with another plugin are skipped.
///
/// # Errors
/// Everything that is wrong with it: no list at all, another version, or not one server that can be used.
pub fn parse(
    file: &str,
    text: &str,
    allowed_plugins: Option<&[Box<str>]>,
) -> Result<(Sip008List, Diagnostics), Diagnostics> {
    let source = Source::new(file, text);
    source.check_len()?;
    let root = json::parse(&source, Grammar::Json5)?;
    let mut report = JsonReport::new(&source);
    let list = read(&mut report, &root, allowed_plugins);
    report.found.sort();
    match list {
        Some(list) if !report.found.has_errors() => Ok((list, report.found)),
        _ => Err(report.found),
    }
}

fn read(
    report: &mut JsonReport<'_>,
    root: &json::JsonValue,
    allowed: Option<&[Box<str>]>,
) -> Option<Sip008List> {
    let mut fields = JsonFields::new(report, root, String::new())?;
    match fields.take(report, "version") {
        Some(version) => {
            version.number(report, 1..=1);
        }
        None => {
            let problem = Problem::new("missing, so 1 is taken");
            report.warning(fields.at, "version", problem);
        }
    }
    let Some(servers) = fields.take(report, "servers") else {
        report.error(fields.at, "servers", Problem::new("missing"));
        return None;
    };
    let bytes_used = fields.number(report, "bytes_used", 0..=u64::MAX);
    let bytes_remaining = fields.number(report, "bytes_remaining", 0..=u64::MAX);
    let entries = servers.list(report, MAX_SERVERS);
    let usable: Vec<ShadowsocksProfile> =
        entries.iter().filter_map(|entry| server_or_warning(report, entry, allowed)).collect();
    if usable.is_empty() {
        servers.error(report, Problem::new("no server of the list can be used"));
    }
    Some(Sip008List { servers: usable, bytes_used, bytes_remaining })
}

/// One server; what is wrong with it is a warning.
fn server_or_warning(
    report: &mut JsonReport<'_>,
    entry: &JsonField<'_>,
    allowed: Option<&[Box<str>]>,
) -> Option<ShadowsocksProfile> {
    let mut own = JsonReport::new(report.source);
    let server = server(&mut own, entry);
    for finding in &own.found {
        let mut finding = finding.clone();
        if finding.severity == Severity::Error {
            finding.problem = format!("left out: {}", finding.problem);
        }
        finding.severity = Severity::Warning;
        report.found.push(finding);
    }
    if own.found.has_errors() {
        return None;
    }
    let server = server?;
    if let (Some(plugin), Some(allowed)) = (&server.plugin, allowed)
        && !allowed.contains(&plugin.program)
    {
        entry.warning(report, Problem::new("its plugin is not among those that are allowed"));
        return None;
    }
    Some(server)
}

fn server(report: &mut JsonReport<'_>, entry: &JsonField<'_>) -> Option<ShadowsocksProfile> {
    let mut fields = entry.object(report)?;
    let mut name = |report: &mut JsonReport<'_>, key| {
        let field = fields.take(report, key)?;
        let text = field.text(report)?;
        // A name is for people: the server can be used without it.
        let name = text_of(text, MAX_NAME);
        name.map_err(|problem| field.warning(report, problem)).ok()
    };
    let (id, remarks) = (name(report, "id"), name(report, "remarks"));
    let server = address(report, &mut fields);
    let method_field = require(report, &mut fields, "method");
    let method = method_field.and_then(|field| field.parsed(report, method));
    let password_field = require(report, &mut fields, "password");
    let password = password_field.as_ref().and_then(|field| field.text(report));
    let key =
        password_field.as_ref().and_then(|field| field.checked(report, key(method?, Secret::new(password?))));
    let plugin = fields.text(report, "plugin").filter(|plugin| !plugin.is_empty());
    let options = fields.text(report, "plugin_opts").unwrap_or_default();
    if plugin.map_or(0, str::len).max(options.len()) > MAX_TEXT {
        entry.error(report, Problem::new("plugin or its options are too long"));
    }
    let plugin = plugin.map(|program| Plugin {
        program: program.into(),
        options: options.into(),
        args: Vec::new(),
        transports: Transports::Tcp,
    });
    Some(ShadowsocksProfile { name: remarks, id, server: server?, key: key?, plugin })
}

fn address(report: &mut JsonReport<'_>, fields: &mut JsonFields<'_>) -> Option<Target> {
    let host_field = require(report, fields, "server");
    let port_field = require(report, fields, "server_port");
    let port = port_field.and_then(|field| field.number(report, 1..=u16::MAX.into()));
    let host_field = host_field?;
    let host = host_field.parsed(report, |text| {
        Host::parse(text.as_bytes()).map_err(|error| Problem::new(error.to_string()))
    })?;
    if matches!(host, Host::Ip(ip) if ip.is_unspecified()) {
        host_field.error(report, Problem::new("an address to listen on, not one to connect to"));
        return None;
    }
    Some(Target { host, port: u16::try_from(port?).ok()? })
}

fn require<'a>(
    report: &mut JsonReport<'_>,
    fields: &mut JsonFields<'a>,
    key: &'static str,
) -> Option<JsonField<'a>> {
    let field = fields.take(report, key);
    if field.is_none() {
        report.error(fields.at, fields.path(key), Problem::new("missing"));
    }
    field
}

/// A client of these servers, with a proxy port on `127.0.0.1:1080`.
pub fn config(list: &Sip008List) -> Config {
    let choice = |profile: &ShadowsocksProfile| WeightedServer {
        name: profile.name.clone(),
        protocol: OutboundProtocol::Shadowsocks(ShadowsocksClient {
            server: profile.server.clone(),
            key: profile.key.clone(),
            transports: Transports::Both,
            cover: setup::client_cover(profile.plugin.clone()),
        }),
        dial: Dial::default(),
        tcp_weight: 100,
        udp_weight: 100,
    };
    let outbounds = setup::outbounds(list.servers.iter().map(choice).collect(), Check::default());
    let inbound = Inbound {
        name: "local".into(),
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 1080))],
        socket: SocketOptions::default(),
        outbound: outbounds[0].name.clone(),
        allow_private: true,
        protocol: setup::local(LocalProtocols::Mixed),
    };
    Config { inbounds: vec![inbound], outbounds, ..Config::default() }
}

/// Writes a document. Servers that SIP008 cannot express are left out: those with a key instead of a password, or
/// with a plugin that takes arguments or datagrams.
pub fn emit(list: &Sip008List) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::from("{\n  \"version\": 1,\n  \"servers\": ["));
    let mut comma = "";
    for server in list.servers.iter().filter(|server| is_expressible(server)) {
        write!(out, "{comma}\n    {{").expect("a string takes any text");
        comma = ",";
        let mut lead = "";
        let mut entry = |key: &str, value: &str| {
            write!(out, "{lead}\n      \"{key}\": {value}").expect("a string takes any text");
            lead = ",";
        };
        for (key, value) in [("id", &server.id), ("remarks", &server.name)] {
            if let Some(value) = value {
                entry(key, &json::quote(value));
            }
        }
        entry("server", &json::quote(&server.server.host.to_string()));
        entry("server_port", &server.server.port.to_string());
        entry("password", &json::quote(server.key.text().expose()));
        entry("method", &json::quote(server.key.method().name()));
        if let Some(plugin) = &server.plugin {
            entry("plugin", &json::quote(&plugin.program));
            entry("plugin_opts", &json::quote(&plugin.options));
        }
        out.push_str("\n    }");
    }
    out.push_str("\n  ]");
    if let Some(used) = list.bytes_used {
        write!(out, ",\n  \"bytes_used\": {used}").expect("a string takes any text");
        if let Some(left) = list.bytes_remaining {
            write!(out, ",\n  \"bytes_remaining\": {left}").expect("a string takes any text");
        }
    }
    out.push_str("\n}\n");
    out
}

fn is_expressible(server: &ShadowsocksProfile) -> bool {
    let plain = |plugin: &Plugin| plugin.args.is_empty() && plugin.transports == Transports::Tcp;
    server.key.form() == KeyForm::Password && server.plugin.as_ref().is_none_or(plain)
}

/// Fuzz target: findings lie inside the text, and what is read can be written and read again.
#[doc(hidden)]
pub fn fuzz_sip008(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match parse("fuzz.json", &text, None) {
        Ok((mut list, found)) => {
            crate::read::loaded::assert_inside(&text, &found);
            if list.bytes_used.is_none() {
                list.bytes_remaining = None;
            }
            let again = parse("again.json", &emit(&list), None);
            assert_eq!(again.map(|(list, _)| list), Ok(list));
        }
        Err(found) => crate::read::loaded::assert_inside(&text, &found),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SERVER: &str =
        "\"server\":\"h\",\"server_port\":1,\"password\":\"hunter2\",\"method\":\"aes-128-gcm\"";

    #[test]
    fn a_list() {
        let text = format!(
            "{{\"version\":1,\"servers\":[{{\"id\":\"i\",\"remarks\":\"r\",{SERVER},\"plugin\":\"p\",\"plugin_opts\":\"a=b\"}},\
             {{{SERVER},\"plugin\":\"\"}}],\"bytes_used\":5,\"bytes_remaining\":6,}}"
        );
        let (list, found) = parse("t", &text, None).unwrap();
        assert!(found.is_empty(), "{found}");
        assert_eq!(list.servers.len(), 2);
        assert_eq!(list.servers[0].plugin.as_ref().map(|p| (&*p.program, &*p.options)), Some(("p", "a=b")));
        assert_eq!(list.servers[1].plugin, None);
        assert_eq!((list.bytes_used, list.bytes_remaining), (Some(5), Some(6)));
        assert_eq!(parse("t", &emit(&list), None).unwrap().0, list);
        let (allowed, found) = parse("t", &text, Some(&["q".into()])).unwrap();
        assert_eq!((allowed.servers.len(), found.len()), (1, 1));
    }

    #[test]
    fn findings() {
        for (text, want) in [
            ("[]", "t:1:1: expected an object, found a list\n"),
            ("{\"version\":2,\"servers\":[{S}]}", "t:1:12: version: no whole number from 1 to 1\n"),
            ("{\"version\":1}", "t:1:1: servers: missing\n"),
            ("{\"version\":1,\"servers\":[]}", "t:1:24: servers: no server of the list can be used\n"),
            ("{\"servers\":[{S}]}", "t:1:1: warning: version: missing, so 1 is taken\n"),
            (
                "{\"version\":1,\"servers\":[{S},{S,\"method\":\"new\"}]}",
                "warning: servers[1].method: left out: unknown method: new\n",
            ),
            (
                "{\"version\":1,\"servers\":[{S},{S,\"server\":\"0.0.0.0\"}]}",
                "warning: servers[1].server: left out: an address to listen on",
            ),
            (
                "{\"version\":1,\"servers\":[{S},{\"server\":\"h\"}]}",
                "warning: servers[1].password: left out: missing\n",
            ),
        ] {
            let text = text.replace('S', SERVER);
            let found = match parse("t", &text, None) {
                Ok((_, found)) | Err(found) => found,
            };
            let found = found.to_string();
            assert!(found.contains(want), "wanted {want}\nfound {found}");
            assert!(!found.contains("hunter2"));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_document(keys in "(\"id\":\"é\",|\"remarks\":\"a\\\\\"b\",|\"plugin\":\"p\",|\"plugin_opts\":\"\",|//\n|\\{|\\}|,|x:1,){0,6}") {
            fuzz_sip008(keys.as_bytes());
            fuzz_sip008(format!("{{version:1,servers:[{{{keys}{SERVER}}}],bytes_used:7}}").as_bytes());
        }
    }

    #[test]
    fn every_key_of_a_wrong_type_is_obeyed_or_reported() {
        let sample = r#"{
            version: 1, bytes_used: 8, bytes_remaining: 9,
            servers: [
                {
                    id: "i", remarks: "r", server: "192.0.2.1", server_port: 8388, password: "p", method: "aes-256-gcm",
                    plugin: "obfs-local", plugin_opts: "obfs=http"
                },
                {server: "192.0.2.2", server_port: 8388, password: "p", method: "aes-256-gcm"}
            ]
        }"#;
        let run = |text: &str| match parse("l.json", text, None) {
            Ok((list, found)) => (Some(list), found),
            Err(found) => (None, found),
        };
        let nothing = ["bytes_used", "bytes_remaining", "id", "remarks", "plugin", "plugin_opts"];
        let mut meant: Vec<(&str, &str)> = nothing.into_iter().map(|key| (key, "null")).collect();
        meant.extend([("plugin", "\"\""), ("plugin_opts", "\"\"")]);
        crate::walk::walk(&[sample], &[("sip008", Box::new(run))], &meant, &[]);
    }
}
