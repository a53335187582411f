//! The keys of protocol obfs, inbound and outbound: an obfs alone, as plugins of Shadowsocks have it.

use adit_proto::goquiet::{Browser, DEFAULT_TICKET_S};
use adit_proto::ssr::Obfs;

use super::fields::{Fields, Report, one_of};
use super::write::Writer;
use crate::dialect::value::{self, Problem, duration_text, quote, secret, text_of};
use crate::model::{
    GoQuietClient, ObfsClient, ObfsClientLayer, ObfsInbound, ObfsOutbound, ObfsServer, ObfsServerLayer,
    Redirect, Secret,
};

/// Longest key in bytes.
const MAX_KEY: usize = 4096;
/// Longest parameter in bytes.
const MAX_PARAMETER: usize = 4096;
/// Most fallback servers of one inbound.
const MAX_FALLBACKS: usize = 256;
/// Most servers of one outbound.
const MAX_SERVERS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Http,
    Tls,
    GoQuiet,
    Ssr(Obfs),
}

const SERVER_KINDS: &[(&str, Kind)] =
    &[("http", Kind::Http), ("tls", Kind::Tls), ("go_quiet", Kind::GoQuiet)];

const CLIENT_KINDS: &[(&str, Kind)] = &[
    ("http", Kind::Http),
    ("tls", Kind::Tls),
    ("go_quiet", Kind::GoQuiet),
    ("plain", Kind::Ssr(Obfs::Plain)),
    ("http_simple", Kind::Ssr(Obfs::HttpSimple)),
    ("http_post", Kind::Ssr(Obfs::HttpPost)),
    ("http_mix", Kind::Ssr(Obfs::HttpMix)),
    ("random_head", Kind::Ssr(Obfs::RandomHead)),
    ("tls1.2_ticket_auth", Kind::Ssr(Obfs::TlsTicketAuth)),
    ("tls1.2_ticket_fastauth", Kind::Ssr(Obfs::TlsTicketFastauth)),
];

const BROWSERS: &[(&str, Browser)] = &[("chrome", Browser::Chrome), ("firefox", Browser::Firefox)];

/// The fallback servers of an inbound.
pub(super) fn fallback(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Vec<Redirect> {
    let servers = fields.list(report, "fallback", MAX_FALLBACKS, |text| {
        text.parse::<Redirect>().map_err(|error| Problem::new(error.to_string()))
    });
    servers.unwrap_or_default().into_iter().map(|server| server.value).collect()
}

pub(super) fn server(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<ObfsInbound> {
    let target = fields.require(report, "target").and_then(|field| field.parsed(report, value::target));
    let kind = kind(fields, report, SERVER_KINDS);
    let key = key(fields, report, kind == Some(Kind::GoQuiet));
    let redirect = fallback(fields, report);
    let layer = match kind? {
        Kind::Http => ObfsServerLayer::Simple(ObfsServer::Http),
        Kind::Tls => ObfsServerLayer::Simple(ObfsServer::Tls),
        Kind::GoQuiet => ObfsServerLayer::GoQuiet(key?),
        Kind::Ssr(_) => return None,
    };
    Some(ObfsInbound { target: target?.value, layer, redirect })
}

pub(super) fn client(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<ObfsOutbound> {
    if !fields.has("server") || fields.is_empty_list("server") {
        report.error(&fields.place("server"), fields.path("server"), Problem::new("missing"));
    }
    let servers = fields.list(report, "server", MAX_SERVERS, value::target).unwrap_or_default();
    let servers: Vec<_> = servers.into_iter().map(|server| server.value).collect();
    let kind = kind(fields, report, CLIENT_KINDS);
    let needs_key =
        matches!(kind, Some(Kind::GoQuiet | Kind::Ssr(Obfs::TlsTicketAuth | Obfs::TlsTicketFastauth)));
    let key = key(fields, report, needs_key);
    let param = fields.parsed(report, "obfs-host", |text| text_of(text, MAX_PARAMETER));
    let param = param.map(|param| param.value).unwrap_or_default();
    let browser = fields.one_of(report, "browser", BROWSERS).unwrap_or_default();
    let ticket_s = fields.duration(report, "ticket-interval").map(|interval| interval.as_secs());
    if ticket_s == Some(0) {
        let problem = Problem::new("must be at least one second");
        report.error(&fields.place("ticket-interval"), fields.path("ticket-interval"), problem);
    }
    let first = servers.first()?;
    let host = || if param.is_empty() { first.host.to_string().into() } else { param.clone() };
    let layer = match kind? {
        Kind::Http => ObfsClientLayer::Simple(ObfsClient::Http(host())),
        Kind::Tls => ObfsClientLayer::Simple(ObfsClient::Tls(host())),
        Kind::GoQuiet => ObfsClientLayer::GoQuiet(GoQuietClient {
            key: key?,
            server_name: param.clone(),
            browser,
            ticket_s: ticket_s.unwrap_or(DEFAULT_TICKET_S).max(1),
        }),
        Kind::Ssr(obfs) => {
            ObfsClientLayer::Ssr { obfs, param: param.clone(), key: key.unwrap_or_else(|| Secret::new("")) }
        }
    };
    match ObfsOutbound::new(servers, layer) {
        Ok(client) => Some(client),
        Err(error) => {
            report.error(
                &fields.place("obfs-host"),
                fields.path("obfs-host"),
                Problem::new(error.to_string()),
            );
            None
        }
    }
}

fn kind(fields: &mut Fields<'_>, report: &mut Report<'_>, kinds: &[(&str, Kind)]) -> Option<Kind> {
    let field = fields.require(report, "obfs")?;
    field.parsed(report, |text| one_of(text, kinds)).map(|kind| kind.value)
}

fn key(fields: &mut Fields<'_>, report: &mut Report<'_>, is_needed: bool) -> Option<Secret> {
    let field = if is_needed { fields.require(report, "password") } else { fields.take("password") };
    field?.parsed(report, |text| secret(text, MAX_KEY)).map(|key| key.value)
}

pub(super) fn write_server(out: &mut Writer, server: &ObfsInbound) {
    out.text("target", &server.target.to_string());
    match &server.layer {
        ObfsServerLayer::Simple(ObfsServer::Tls) => out.text("obfs", "tls"),
        ObfsServerLayer::Simple(ObfsServer::Http | ObfsServer::Off) => out.text("obfs", "http"),
        ObfsServerLayer::GoQuiet(key) => {
            out.text("obfs", "go_quiet");
            out.text("password", key.expose());
        }
    }
    write_fallback(out, &server.redirect);
}

pub(super) fn write_fallback(out: &mut Writer, servers: &[Redirect]) {
    if !servers.is_empty() {
        out.texts("fallback", servers.iter().map(ToString::to_string));
    }
}

pub(super) fn write_client(out: &mut Writer, client: &ObfsOutbound) {
    let servers: Vec<String> = client.servers().iter().map(|server| quote(&server.to_string())).collect();
    out.raw("server", format!("[{}]", servers.join(", ")));
    match client.layer() {
        ObfsClientLayer::Simple(obfs) => out.obfs_client(obfs),
        ObfsClientLayer::GoQuiet(quiet) => {
            out.text("obfs", "go_quiet");
            out.text("password", quiet.key.expose());
            if !quiet.server_name.is_empty() {
                out.text("obfs-host", &quiet.server_name);
            }
            out.choice("browser", BROWSERS, &quiet.browser);
            out.text("ticket-interval", &duration_text(std::time::Duration::from_secs(quiet.ticket_s)));
        }
        ObfsClientLayer::Ssr { obfs, param, key } => {
            out.text("obfs", obfs.name());
            if !param.is_empty() {
                out.text("obfs-host", param);
            }
            if !key.expose().is_empty() {
                out.text("password", key.expose());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::dialect::native::{parse, to_toml};
    use crate::model::{Config, InboundProtocol, OutboundProtocol};

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
