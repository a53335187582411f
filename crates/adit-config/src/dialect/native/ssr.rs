//! The keys of protocol ssr, inbound and outbound.

use std::fmt::Write as _;

use adit_proto::ssr::protocol::DEFAULT_INTERVAL_S;
use adit_proto::ssr::{Method, NameError, Obfs, Protocol};

use super::fields::{Fields, Report};
use super::obfs::{fallback, write_fallback};
use super::users::{MAX_CREDENTIAL, RawUser, read_users};
use super::write::{self, Writer};
use crate::dialect::value::{self, Problem, quote, secret, text_of};
use crate::model::{Secret, SsrClient, SsrError, SsrServer, SsrUsers, User};

/// Longest password in bytes.
const MAX_PASSWORD: usize = 4096;
/// Longest parameter of an obfs in bytes.
const MAX_PARAMETER: usize = 4096;
/// Most clients of a user.
const MAX_CLIENTS: usize = 1 << 20;

pub(super) fn server(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<SsrServer> {
    let method = method(fields, report);
    let password = password(fields, report);
    let protocol = fields.parsed(report, "ssr-protocol", |text| named(text, Protocol::parse_server));
    let (protocol, protocol_compatible) = protocol.map_or((Protocol::Origin, false), |found| found.value);
    let obfs = fields.parsed(report, "ssr-obfs", |text| named(text, Obfs::parse_server));
    let (obfs, obfs_compatible) = obfs.map_or((Obfs::Plain, false), |found| found.value);
    let obfs_param = parameter(fields, report);
    let users = users(fields, report, protocol);
    let max_clients = fields.integer(report, "max-clients", 1..=MAX_CLIENTS);
    let key_interval_s = key_interval(fields, report);
    let transports = fields.one_of(report, "network", write::TRANSPORTS).unwrap_or_default();
    let redirect = fallback(fields, report);
    let server = SsrServer::new(method?, password?, protocol);
    let server = SsrServer {
        protocol_compatible,
        obfs,
        obfs_compatible,
        obfs_param,
        users: users?,
        max_clients: max_clients.unwrap_or(server.max_clients),
        key_interval_s: key_interval_s.unwrap_or(server.key_interval_s),
        transports,
        redirect,
        ..server
    };
    checked(server, SsrServer::check, "ssr-protocol", fields, report)
}

/// `value`, unless `check` has something against it, which is reported at `key`.
fn checked<T>(
    value: T,
    check: impl FnOnce(&T) -> Result<(), SsrError>,
    key: &'static str,
    fields: &Fields<'_>,
    report: &mut Report<'_>,
) -> Option<T> {
    match check(&value) {
        Ok(()) => Some(value),
        Err(error) => {
            report.error(&fields.place(key), fields.path(key), Problem::new(error.to_string()));
            None
        }
    }
}

pub(super) fn client(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<SsrClient> {
    let server = fields.require(report, "server").and_then(|field| field.parsed(report, value::target));
    let method = method(fields, report);
    let password = password(fields, report);
    let protocol = fields.parsed(report, "ssr-protocol", |text| named(text, str::parse::<Protocol>));
    let protocol = protocol.map_or(Protocol::Origin, |found| found.value);
    let obfs = fields.parsed(report, "ssr-obfs", |text| named(text, str::parse::<Obfs>));
    let obfs = obfs.map_or(Obfs::Plain, |found| found.value);
    let obfs_param = parameter(fields, report);
    let user = user(fields, report, protocol);
    let key_interval_s = key_interval(fields, report);
    let transports = fields.one_of(report, "network", write::TRANSPORTS).unwrap_or_default();
    let client = SsrClient::new(server?.value, method?, password?, protocol);
    let key_interval_s = key_interval_s.unwrap_or(client.key_interval_s);
    let client = SsrClient { user, obfs, obfs_param, key_interval_s, transports, ..client };
    let is_parameter = !matches!(client.check(), Err(SsrError::Deflate));
    let key = if is_parameter { "ssr-obfs-param" } else { "ssr-protocol" };
    checked(client, SsrClient::check, key, fields, report)
}

fn named<T>(text: &str, parse: impl FnOnce(&str) -> Result<T, NameError>) -> Result<T, Problem> {
    parse(text).map_err(|error| Problem::new(error.to_string()))
}

fn method(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<Method> {
    let field = fields.require(report, "method")?;
    field.parsed(report, |text| named(text, str::parse)).map(|method| method.value)
}

fn password(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<Secret> {
    let field = fields.require(report, "password")?;
    field.parsed(report, |text| secret(text, MAX_PASSWORD)).map(|password| password.value)
}

fn parameter(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Box<str> {
    let found = fields.parsed(report, "ssr-obfs-param", |text| text_of(text, MAX_PARAMETER));
    found.map(|parameter| parameter.value).unwrap_or_default()
}

fn key_interval(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<u64> {
    let seconds = fields.duration(report, "key-interval")?.as_secs();
    if seconds == 0 {
        let problem = Problem::new("must be at least one second");
        report.error(&fields.place("key-interval"), fields.path("key-interval"), problem);
    }
    Some(seconds.max(1))
}

fn users(fields: &mut Fields<'_>, report: &mut Report<'_>, protocol: Protocol) -> Option<SsrUsers> {
    let is_wanted = fields.has("users") && !fields.is_empty_list("users");
    let at = fields.place("users");
    let raw = read_users(fields, report, "ssr", |text| text_of(text, MAX_CREDENTIAL));
    let users: Vec<(u32, User)> =
        raw.into_iter().filter_map(|user: RawUser| Some((user.id?, user.into_user()))).collect();
    if is_wanted && users.is_empty() {
        // A server without its users would serve everybody who has the password.
        return None;
    }
    SsrUsers::new(protocol, users)
        .inspect_err(|error| report.error(&at, fields.path("users"), Problem::new(error.to_string())))
        .ok()
}

/// `user-id` with `user-key`.
fn user(fields: &mut Fields<'_>, report: &mut Report<'_>, protocol: Protocol) -> Option<(u32, Secret)> {
    let most = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
    let at = fields.place("user-id");
    let (has_id, has_key) = (fields.has("user-id"), fields.has("user-key"));
    let id = fields.integer(report, "user-id", 0..=most);
    let key = fields.parsed(report, "user-key", |text| secret(text, MAX_CREDENTIAL));
    if has_id != has_key {
        let problem = Problem::new("user-id and user-key belong together").hint("write both, or none");
        report.error(&at, fields.path("user-id"), problem);
    } else if has_id && !protocol.has_users() {
        let problem = Problem::new(format!("protocol {protocol} has no users"));
        report.error(&at, fields.path("user-id"), problem.hint("leave user-id and user-key out"));
    }
    Some((id?.try_into().ok()?, key?.value))
}

/// The name as servers write it.
fn server_name(name: &str, is_compatible: bool) -> String {
    format!("{name}{}", if is_compatible { "_compatible" } else { "" })
}

fn interval(out: &mut Writer, key_interval_s: u64) {
    if key_interval_s != DEFAULT_INTERVAL_S {
        out.text("key-interval", &format!("{key_interval_s}s"));
    }
}

pub(super) fn write_server(out: &mut Writer, server: &SsrServer) {
    out.text("method", server.method.name());
    out.text("password", server.password.expose());
    out.text("ssr-protocol", &server_name(server.protocol.name(), server.protocol_compatible));
    out.text("ssr-obfs", &server_name(server.obfs.name(), server.obfs_compatible));
    if !server.obfs_param.is_empty() {
        out.text("ssr-obfs-param", &server.obfs_param);
    }
    let users = server.users.iter().map(|(id, User { name, key, limits })| {
        let mut user = String::new();
        write!(user, "{{ name = {}, id = {id}, password = {}", quote(name), quote(key.expose()))
            .expect("a string takes any text");
        write::user_limits(&mut user, *limits);
        user + " }"
    });
    let users: Vec<String> = users.collect();
    if !users.is_empty() {
        out.raw("users", format!("[{}]", users.join(", ")));
    }
    out.raw("max-clients", server.max_clients);
    interval(out, server.key_interval_s);
    out.choice("network", write::TRANSPORTS, &server.transports);
    write_fallback(out, &server.redirect);
}

pub(super) fn write_client(out: &mut Writer, client: &SsrClient) {
    out.text("server", &client.server.to_string());
    out.text("method", client.method.name());
    out.text("password", client.password.expose());
    out.text("ssr-protocol", client.protocol.name());
    if let Some((id, key)) = &client.user {
        out.raw("user-id", id);
        out.text("user-key", key.expose());
    }
    out.text("ssr-obfs", client.obfs.name());
    if !client.obfs_param.is_empty() {
        out.text("ssr-obfs-param", &client.obfs_param);
    }
    interval(out, client.key_interval_s);
    out.choice("network", write::TRANSPORTS, &client.transports);
}

#[cfg(test)]
mod tests {
    use crate::dialect::native::{parse, to_toml};
    use crate::model::{Config, InboundProtocol, OutboundProtocol};

    const FILE: &str = r#"
        [[inbound]]
        protocol = "ssr"
        listen = "127.0.0.1:8388"
        method = "aes-256-ctr"
        password = "outer"
        ssr-protocol = "auth_aes128_md5"
        ssr-obfs = "http_simple_compatible"
        ssr-obfs-param = "a.example"
        users = [{ name = "alice", id = 1001, password = "wonder", quota = "1GB" }]
        max-clients = 3
        fallback = ["*:8388#www.example:443", "www.example"]
        mode = "tcp-and-udp"
        outbound = "far"

        [[outbound]]
        name = "far"
        protocol = "ssr"
        server = "server.example:443"
        method = "none"
        password = "outer"
        ssr-protocol = "auth_chain_f"
        user-id = 1001
        user-key = "wonder"
        ssr-obfs = "go_quiet"
        key-interval = "1h"
    "#;

    fn load(text: &str) -> Result<Config, String> {
        parse("adit.toml", text).map(|loaded| loaded.config).map_err(|found| found.to_string())
    }

    #[test]
    fn a_file_is_read_and_written() {
        let config = load(FILE).unwrap();
        let InboundProtocol::Ssr(server) = &config.inbounds[0].protocol else { panic!("a server") };
        assert_eq!((server.users.ids(), server.max_clients), (&[1001][..], 3));
        assert!(server.obfs_compatible && !server.protocol_compatible);
        let redirect: Vec<String> = server.redirect.iter().map(ToString::to_string).collect();
        assert_eq!(redirect, ["*:8388#www.example:443", "www.example:80"]);
        let OutboundProtocol::Ssr(client) = &config.outbounds[0].protocol else { panic!("a client") };
        assert_eq!(client.key_interval_s, 3600);
        assert_eq!(client.user.as_ref().map(|(id, key)| (*id, key.expose())), Some((1001, "wonder")));
        assert_eq!(load(&to_toml(&config)).unwrap(), config);
    }

    #[test]
    fn slips_are_named() {
        for (right, wrong, problem) in [
            ("auth_chain_f", "auth_simple", "every program has removed it"),
            ("auth_chain_f", "verify_deflate", "not carried yet"),
            ("auth_chain_f", "auth_sha1_v4", "has no users"),
            ("auth_chain_f", "auth_sha1_v4_compatible", "unknown protocol"),
            ("aes-256-ctr", "aes-256-gcm", "unknown method"),
            ("http_simple_compatible", "go_quiet_compatible", "unknown obfs"),
            ("id = 1001, password", "password", "missing"),
            ("user-key = \"wonder\"", "", "belong together"),
            ("*:8388#www", "(#www", "bad regular expression"),
            ("key-interval = \"1h\"", "key-interval = \"1ms\"", "at least one second"),
            ("auth_aes128_md5", "origin", "has no users"),
        ] {
            let found = load(&FILE.replace(right, wrong)).expect_err(wrong);
            assert!(found.contains(problem), "{wrong}: {found}");
            assert!(!found.contains("wonder") && !found.contains("outer"), "{found}");
        }
    }
}
