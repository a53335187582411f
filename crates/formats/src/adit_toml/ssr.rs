//! The keys of protocol ssr, inbound and outbound.

use std::time::Duration;

use adit_model::{Secret, SsrClient, SsrServer, SsrUsers, User, nobody};
use adit_proto::ssr::protocol::DEFAULT_INTERVAL_S;
use adit_proto::ssr::{NameError, Obfs, SsrMethod, SsrProtocol};

use super::fields::{TomlFields, TomlReport};
use super::obfs::{fallback, write_fallback};
use super::rows::port_keys as rows;
use super::users::{self, MAX_CREDENTIAL, RawUser, read_users};
use super::write::TableEntries;
use crate::read::value::{Problem, secret, text_of};

/// Longest password in bytes.
const MAX_PASSWORD: usize = 4096;

pub(crate) fn server(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<SsrServer> {
    let method = method(fields, report);
    let password = password(fields, report);
    let protocol = fields.read(report, &rows::SERVER_PROTOCOL);
    let (protocol, protocol_compatible) = protocol.unwrap_or((SsrProtocol::Origin, false));
    let (obfs, obfs_compatible) = fields.read(report, &rows::SERVER_OBFS).unwrap_or((Obfs::Plain, false));
    let obfs_param = fields.read(report, &rows::OBFS_PARAM).unwrap_or_default();
    let users = users(fields, report, protocol, password.as_ref());
    let max_clients = fields.read(report, &rows::MAX_CLIENTS);
    let key_interval_s = key_interval(fields, report);
    let transports = fields.read(report, &rows::SERVED).unwrap_or_default();
    let redirect = fallback(fields, report);
    let server = SsrServer::new(method?, password?, protocol);
    Some(SsrServer {
        protocol_compatible,
        obfs,
        obfs_compatible,
        obfs_param,
        users: users?,
        max_clients: max_clients.unwrap_or(server.max_clients),
        key_interval_s: key_interval_s.unwrap_or(server.key_interval_s),
        transports,
        redirect,
        plugin: super::shadowsocks::plugin(fields, report),
        ..server
    })
}

pub(super) fn client(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<SsrClient> {
    let server = fields.require(report, &rows::SERVER);
    let method = method(fields, report);
    let password = password(fields, report);
    let protocol = fields.read(report, &rows::CLIENT_PROTOCOL).unwrap_or(SsrProtocol::Origin);
    let obfs = fields.read(report, &rows::CLIENT_OBFS).unwrap_or(Obfs::Plain);
    let obfs_param = fields.read(report, &rows::OBFS_PARAM).unwrap_or_default();
    let user = user(fields, report, protocol);
    let key_interval_s = key_interval(fields, report);
    let transports = fields.read(report, &rows::SERVED).unwrap_or_default();
    let datagrams_over_tcp = fields.read(report, &rows::OVER_TCP).unwrap_or_default();
    let client = SsrClient::new(server?.value, method?, password?, protocol);
    let key_interval_s = key_interval_s.unwrap_or(client.key_interval_s);
    let plugin = super::shadowsocks::plugin(fields, report);
    let client = SsrClient {
        user,
        obfs,
        obfs_param,
        key_interval_s,
        transports,
        datagrams_over_tcp,
        plugin,
        ..client
    };
    match client.check() {
        Ok(()) => Some(client),
        Err(error) => {
            fields.wrong(report, &rows::OBFS_PARAM, Problem::new(error.to_string()));
            None
        }
    }
}

fn method(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<SsrMethod> {
    if !fields.has(&rows::METHOD) {
        report.error(&fields.at, fields.path(&rows::METHOD), Problem::new("missing"));
    }
    let parse = |text: Box<str>| text.parse().map_err(|error: NameError| Problem::new(error.to_string()));
    fields.checked(report, &rows::METHOD, parse).map(|method| method.value)
}

fn password(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<Secret> {
    if !fields.has(&rows::PASSWORD) {
        report.error(&fields.at, fields.path(&rows::PASSWORD), Problem::new("missing"));
    }
    let password = fields.checked(report, &rows::PASSWORD, |given| secret(given.expose(), MAX_PASSWORD));
    password.map(|password| password.value)
}

fn key_interval(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<u64> {
    let seconds = fields.read(report, &rows::KEY_INTERVAL)?.as_secs();
    if seconds == 0 {
        let problem = Problem::new("must be at least one second");
        fields.wrong(report, &rows::KEY_INTERVAL, problem);
    }
    Some(seconds.max(1))
}

fn users(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    protocol: SsrProtocol,
    password: Option<&Secret>,
) -> Option<SsrUsers> {
    let is_wanted = fields.has(&rows::USERS) && !fields.is_empty_list(&rows::USERS);
    let at = fields.place(&rows::USERS);
    if fields.has(&rows::PANEL_OF) {
        let users = SsrUsers::new(protocol, vec![(u32::MAX, nobody(32))]);
        return users
            .map_err(|error| fields.wrong(report, &rows::PANEL_OF, Problem::new(error.to_string())))
            .ok();
    }
    let raw = read_users(fields, report, "ssr", |text| text_of(text, MAX_CREDENTIAL));
    if let [RawUser { id: None, password: own, .. }] = &*raw {
        if password.is_some_and(|password| password != own) {
            let problem = Problem::new("a user without id has the password of the port");
            report.error(
                &at,
                fields.path(&rows::USERS),
                problem.hint("write that one, or give the user an id"),
            );
        }
        return raw.into_iter().next().map(|user| SsrUsers::common(user.into_user()));
    }
    let users: Vec<(u32, User)> =
        raw.into_iter().filter_map(|user: RawUser| Some((user.id?, user.into_user()))).collect();
    if is_wanted && users.is_empty() {
        // A server without its users would serve everybody who has the password.
        return None;
    }
    SsrUsers::new(protocol, users)
        .inspect_err(|error| report.error(&at, fields.path(&rows::USERS), Problem::new(error.to_string())))
        .ok()
}

/// `user-id` with `user-key`.
fn user(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    protocol: SsrProtocol,
) -> Option<(u32, Secret)> {
    let at = fields.place(&rows::USER_ID_OF);
    let (has_id, has_key) = (fields.has(&rows::USER_ID_OF), fields.has(&rows::USER_KEY));
    let id = fields.read(report, &rows::USER_ID_OF);
    let key = fields.read(report, &rows::USER_KEY);
    if has_id != has_key {
        let problem = Problem::new("user-id and user-key belong together").hint("write both, or none");
        report.error(&at, fields.path(&rows::USER_ID_OF), problem);
    } else if has_id && !protocol.has_users() {
        let problem = Problem::new(format!("protocol {protocol} has no users"));
        report.error(&at, fields.path(&rows::USER_ID_OF), problem.hint("leave user-id and user-key out"));
    }
    Some((id?, key?))
}

fn write_interval(out: &mut TableEntries, key_interval_s: u64) {
    let default = Duration::from_secs(DEFAULT_INTERVAL_S);
    out.put_unless(&rows::KEY_INTERVAL, &Duration::from_secs(key_interval_s), &default);
}

pub(super) fn write_server(out: &mut TableEntries, server: &SsrServer) {
    out.put(&rows::METHOD, server.method.name());
    out.put(&rows::PASSWORD, &server.password);
    out.put(&rows::SERVER_PROTOCOL, &(server.protocol.name(), server.protocol_compatible));
    out.put(&rows::SERVER_OBFS, &(server.obfs.name(), server.obfs_compatible));
    out.put_unless(&rows::OBFS_PARAM, &*server.obfs_param, "");
    let users = server.users.iter().map(|(id, user)| (user, users::More { id: Some(id), server: None }));
    let owner = server.users.owner().map(|user| (user, users::More::default()));
    users::write(out, users.chain(owner));
    out.put(&rows::MAX_CLIENTS, &server.max_clients);
    write_interval(out, server.key_interval_s);
    out.put(&rows::SERVED, &server.transports);
    write_fallback(out, &server.redirect);
    if let Some(plugin) = &server.plugin {
        super::shadowsocks::write_plugin(out, plugin);
    }
}

pub(super) fn write_client(out: &mut TableEntries, client: &SsrClient) {
    out.put(&rows::SERVER, &client.server);
    out.put(&rows::METHOD, client.method.name());
    out.put(&rows::PASSWORD, &client.password);
    out.put(&rows::CLIENT_PROTOCOL, client.protocol.name());
    if let Some((id, key)) = &client.user {
        out.put(&rows::USER_ID_OF, id);
        out.put(&rows::USER_KEY, key);
    }
    out.put(&rows::CLIENT_OBFS, client.obfs.name());
    out.put_unless(&rows::OBFS_PARAM, &*client.obfs_param, "");
    write_interval(out, client.key_interval_s);
    out.put(&rows::SERVED, &client.transports);
    out.put_unless(&rows::OVER_TCP, &client.datagrams_over_tcp, &false);
    if let Some(plugin) = &client.plugin {
        super::shadowsocks::write_plugin(out, plugin);
    }
}

#[cfg(test)]
mod tests {
    use crate::adit_toml::{parse, to_toml};
    use adit_model::{Config, InboundProtocol, OutboundProtocol};

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
        udp-over-tcp = true
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
        assert!(client.datagrams_over_tcp);
        assert_eq!(client.user.as_ref().map(|(id, key)| (*id, key.expose())), Some((1001, "wonder")));
        assert_eq!(load(&to_toml(&config)).unwrap(), config);
    }

    #[test]
    fn a_port_may_belong_to_one_user_and_to_a_plugin() {
        let text = FILE.replace("id = 1001, password = \"wonder\"", "password = \"outer\"").replace(
            "mode = \"tcp-and-udp\"",
            "network = \"tcp-and-udp\"\nplugin = \"carrier\"\nplugin-options = \"a=b\"",
        );
        let config = load(&text).unwrap();
        let InboundProtocol::Ssr(server) = &config.inbounds[0].protocol else { panic!("a server") };
        assert_eq!(server.users.owner().map(|user| &*user.name), Some("alice"));
        assert!(server.users.ids().is_empty());
        let plugin = config.inbounds[0].plugin().unwrap();
        assert_eq!((&*plugin.program, plugin.transports), ("carrier", adit_model::Transports::Tcp));
        assert_eq!(load(&to_toml(&config)).unwrap(), config);
    }

    #[test]
    fn slips_are_named() {
        for (right, wrong, problem) in [
            ("auth_chain_f", "auth_simple", "every program has removed it"),
            ("auth_chain_f", "auth_sha1_v4", "has no users"),
            ("auth_chain_f", "auth_sha1_v4_compatible", "unknown protocol"),
            ("aes-256-ctr", "aes-256-gcm", "unknown method"),
            ("http_simple_compatible", "go_quiet_compatible", "unknown obfs"),
            ("id = 1001, password", "password", "has the password of the port"),
            (
                "[{ name = \"alice\", id = 1001",
                "[{ name = \"b\", password = \"outer\" }, { name = \"alice\", id = 1001",
                "missing",
            ),
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
