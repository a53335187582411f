//! The keys of protocol obfs, inbound and outbound: an obfs alone, as plugins of Shadowsocks have it.

use std::time::Duration;

use adit_model::{
    GoQuietClient, ObfsClient, ObfsClientLayer, ObfsInbound, ObfsOutbound, ObfsServer, ObfsServerLayer,
    Redirect, Secret,
};
use adit_proto::goquiet::{Browser, DEFAULT_TICKET_S};
use adit_proto::ssr::Obfs;

use super::fields::{TomlFields, TomlReport};
use super::rows::port_keys as rows;
use super::write::TableEntries;
use crate::read::value::Problem;

/// The kinds of obfs that stand alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObfsKind {
    Http,
    Tls,
    GoQuiet,
    Ssr(Obfs),
}

pub(super) const SERVER_KINDS: &[(&str, ObfsKind)] =
    &[("http", ObfsKind::Http), ("tls", ObfsKind::Tls), ("go_quiet", ObfsKind::GoQuiet)];

pub(super) const CLIENT_KINDS: &[(&str, ObfsKind)] = &[
    ("http", ObfsKind::Http),
    ("tls", ObfsKind::Tls),
    ("go_quiet", ObfsKind::GoQuiet),
    ("plain", ObfsKind::Ssr(Obfs::Plain)),
    ("http_simple", ObfsKind::Ssr(Obfs::HttpSimple)),
    ("http_post", ObfsKind::Ssr(Obfs::HttpPost)),
    ("http_mix", ObfsKind::Ssr(Obfs::HttpMix)),
    ("random_head", ObfsKind::Ssr(Obfs::RandomHead)),
    ("tls1.2_ticket_auth", ObfsKind::Ssr(Obfs::TlsTicketAuth)),
    ("tls1.2_ticket_fastauth", ObfsKind::Ssr(Obfs::TlsTicketFastauth)),
];

pub(super) const BROWSERS: &[(&str, Browser)] = &[("chrome", Browser::Chrome), ("firefox", Browser::Firefox)];

pub(crate) fn server(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<ObfsInbound> {
    let target = fields.require(report, &rows::TARGET);
    let kind = fields.require(report, &rows::ALONE_SERVER);
    let key = key(fields, report, kind == Some(ObfsKind::GoQuiet));
    let redirect = fallback(fields, report);
    let layer = match kind? {
        ObfsKind::Http => ObfsServerLayer::Simple(ObfsServer::Http),
        ObfsKind::Tls => ObfsServerLayer::Simple(ObfsServer::Tls),
        ObfsKind::GoQuiet => ObfsServerLayer::GoQuiet(key?),
        ObfsKind::Ssr(_) => return None,
    };
    Some(ObfsInbound { target: target?.value, layer, redirect })
}

/// The fallback servers of an inbound.
pub(super) fn fallback(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Vec<Redirect> {
    let servers = fields.read(report, &rows::FALLBACK).unwrap_or_default();
    servers.into_iter().map(|server| server.value).collect()
}

pub(super) fn client(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<ObfsOutbound> {
    if !fields.has(&rows::ALONE_SERVERS) || fields.is_empty_list(&rows::ALONE_SERVERS) {
        fields.wrong(report, &rows::ALONE_SERVERS, Problem::new("missing"));
    }
    let servers = fields.read(report, &rows::ALONE_SERVERS).unwrap_or_default();
    let servers: Vec<_> = servers.into_iter().map(|server| server.value).collect();
    let kind = fields.require(report, &rows::ALONE_CLIENT);
    let needs_key = matches!(
        kind,
        Some(ObfsKind::GoQuiet | ObfsKind::Ssr(Obfs::TlsTicketAuth | Obfs::TlsTicketFastauth))
    );
    let key = key(fields, report, needs_key);
    let param = fields.read(report, &rows::ALONE_HOST).unwrap_or_default();
    let browser = fields.read(report, &rows::BROWSER).unwrap_or_default();
    let ticket_s = fields.read(report, &rows::TICKET_INTERVAL).map(|interval| interval.as_secs());
    if ticket_s == Some(0) {
        fields.wrong(report, &rows::TICKET_INTERVAL, Problem::new("must be at least one second"));
    }
    let first = servers.first()?;
    let host = || if param.is_empty() { first.host.to_string().into() } else { param.clone() };
    let layer = match kind? {
        ObfsKind::Http => ObfsClientLayer::Simple(ObfsClient::Http(host())),
        ObfsKind::Tls => ObfsClientLayer::Simple(ObfsClient::Tls(host())),
        ObfsKind::GoQuiet => ObfsClientLayer::GoQuiet(GoQuietClient {
            key: key?,
            server_name: param.clone(),
            browser,
            ticket_s: ticket_s.unwrap_or(DEFAULT_TICKET_S).max(1),
        }),
        ObfsKind::Ssr(obfs) => {
            ObfsClientLayer::Ssr { obfs, param: param.clone(), key: key.unwrap_or_else(|| Secret::new("")) }
        }
    };
    match ObfsOutbound::new(servers, layer) {
        Ok(client) => Some(client),
        Err(error) => {
            fields.wrong(report, &rows::ALONE_HOST, Problem::new(error.to_string()));
            None
        }
    }
}

fn key(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>, is_needed: bool) -> Option<Secret> {
    if is_needed { fields.require(report, &rows::ALONE_KEY) } else { fields.read(report, &rows::ALONE_KEY) }
}

pub(super) fn write_server(out: &mut TableEntries, server: &ObfsInbound) {
    out.put(&rows::TARGET, &server.target);
    match &server.layer {
        ObfsServerLayer::Simple(ObfsServer::Tls) => out.put(&rows::ALONE_SERVER, &ObfsKind::Tls),
        ObfsServerLayer::Simple(ObfsServer::Http | ObfsServer::Off) => {
            out.put(&rows::ALONE_SERVER, &ObfsKind::Http);
        }
        ObfsServerLayer::GoQuiet(key) => {
            out.put(&rows::ALONE_SERVER, &ObfsKind::GoQuiet);
            out.put(&rows::ALONE_KEY, key);
        }
    }
    write_fallback(out, &server.redirect);
}

pub(super) fn write_fallback(out: &mut TableEntries, servers: &[Redirect]) {
    if !servers.is_empty() {
        out.put(&rows::FALLBACK, servers);
    }
}

pub(super) fn write_client(out: &mut TableEntries, client: &ObfsOutbound) {
    out.put(&rows::ALONE_SERVERS, client.servers());
    match client.layer() {
        ObfsClientLayer::Simple(obfs) => write_simple(out, obfs),
        ObfsClientLayer::GoQuiet(quiet) => {
            out.put(&rows::ALONE_CLIENT, &ObfsKind::GoQuiet);
            out.put(&rows::ALONE_KEY, &quiet.key);
            out.put_unless(&rows::ALONE_HOST, &*quiet.server_name, "");
            out.put(&rows::BROWSER, &quiet.browser);
            out.put(&rows::TICKET_INTERVAL, &Duration::from_secs(quiet.ticket_s));
        }
        ObfsClientLayer::Ssr { obfs, param, key } => {
            out.put(&rows::ALONE_CLIENT, &ObfsKind::Ssr(*obfs));
            out.put_unless(&rows::ALONE_HOST, &**param, "");
            if !key.expose().is_empty() {
                out.put(&rows::ALONE_KEY, key);
            }
        }
    }
}

fn write_simple(out: &mut TableEntries, obfs: &ObfsClient) {
    let (kind, host) = match obfs {
        ObfsClient::Off => return,
        ObfsClient::Http(host) => (ObfsKind::Http, host),
        ObfsClient::Tls(host) => (ObfsKind::Tls, host),
    };
    out.put(&rows::ALONE_CLIENT, &kind);
    out.put(&rows::ALONE_HOST, &**host);
}

#[cfg(test)]
mod tests {
    use crate::adit_toml::{parse, to_toml};
    use adit_model::{Config, InboundProtocol, OutboundProtocol};

    const FILE: &str = r#"
        [[inbound]]
        protocol = "obfs"
        listen = "127.0.0.1:8443"
        target = "127.0.0.1:8388"
        obfs = "go_quiet"
        password = "wonder"
        fallback = "127.0.0.1:8080"
        outbound = "far"

        [[outbound]]
        name = "far"
        protocol = "obfs"
        server = ["server.example:443", "other.example:443"]
        obfs = "go_quiet"
        password = "wonder"
        obfs-host = "www.example.com"
        browser = "firefox"
        ticket-interval = "2h"
    "#;

    fn load(text: &str) -> Result<Config, String> {
        parse("adit.toml", text).map(|loaded| loaded.config).map_err(|found| found.to_string())
    }

    #[test]
    fn a_file_is_read_and_written() {
        for (from, to) in [
            ("", ""),
            ("\"go_quiet\"", "\"http\""),
            ("\"go_quiet\"", "\"tls\""),
            (
                "\"go_quiet\"\n        password = \"wonder\"\n        obfs-host",
                "\"http_post\"\n        obfs-host",
            ),
            ("browser = \"firefox\"", ""),
        ] {
            let config = load(&FILE.replace(from, to)).unwrap();
            assert_eq!(load(&to_toml(&config)).unwrap(), config, "{to}");
        }
        let config = load(FILE).unwrap();
        let InboundProtocol::Obfs(server) = &config.inbounds[0].protocol else { panic!("a server") };
        assert_eq!(server.redirect.iter().map(ToString::to_string).collect::<Vec<_>>(), ["127.0.0.1:8080"]);
        let OutboundProtocol::Obfs(client) = &config.outbounds[0].protocol else { panic!("a client") };
        assert_eq!(client.servers().len(), 2);
    }

    #[test]
    fn slips_are_named() {
        let long = "a".repeat(113);
        for (right, wrong, problem) in [
            ("\"go_quiet\"", "\"go-quiet\"", "http_simple"),
            ("password = \"wonder\"", "", "missing"),
            ("[\"server.example:443\", \"other.example:443\"]", "[]", "missing"),
            ("www.example.com", long.as_str(), "does not fit"),
            ("\"2h\"", "\"10ms\"", "at least one second"),
            ("fallback = \"127.0.0.1:8080\"", "fallback = \"127.0.0.1:x\"", "port"),
        ] {
            let found = load(&FILE.replace(right, wrong)).expect_err(wrong);
            assert!(found.contains(problem), "{wrong}: {found}");
            assert!(!found.contains("wonder"), "{found}");
        }
    }
}
