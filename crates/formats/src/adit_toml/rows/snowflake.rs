//! The rows of the carrier that goes through Snowflake's proxies.

use std::net::SocketAddr;

use adit_model::WebUrl;
use adit_proto::snowflake::messages::Fingerprint;
use adit_proto::wire::{Host, Target};

use super::link::DIALLING;
use super::port_keys::LISTENING;
use super::{Row, all_quoted, chosen, flag, name_of, one_or_list, quoted, row, rows};
use crate::adit_toml::fields::Spanned;
use crate::adit_toml::keys::{TomlTable, key};
use crate::read::value::{Problem, excerpt, listen, quote, text_of};
use crate::snowflake::listen::{MAX_NAMES, certificate_name, mail};
use crate::snowflake::values;

/// Hosts and STUN servers of an outbound, at most.
const MAX_HOSTS: usize = 64;
/// Longest address of a cache, and longest path, in bytes.
const MAX_URL: usize = 1024;
const MAX_PATH: usize = 4000;

/// TLS of the port that proxies come to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::adit_toml) enum PortTls {
    Files,
    Off,
    Acme,
}

const TLS: &[(&str, PortTls)] = &[("files", PortTls::Files), ("off", PortTls::Off), ("acme", PortTls::Acme)];

/// The word of a file for it.
pub(in crate::adit_toml) fn name_of_tls(tls: PortTls) -> &'static str {
    name_of(TLS, &tls)
}

rows! { SNOWFLAKE;
    BROKER: Row<WebUrl> = row(key("snowflake-broker", "http:// or https:// address", "\"https://broker.example/\"")
        .at(TomlTable::Outbound, DIALLING, "required with snowflake", "the broker, which finds proxies"),
        |field, report| field.parsed(report, |text| values::broker(text).map_err(Problem::new)), |url| quote(&url_text(url)));
    FRONTS: Row<Vec<Spanned<Host>>, [Host]> = row(key("snowflake-fronts", "host, or a list", "[\"a.example\", \"b.example\"]")
        .at(TomlTable::Outbound, DIALLING, "none", "hosts of which one is connected to in the broker's place (domain fronting)"),
        |field, report| field.list(report, MAX_HOSTS, host), all_quoted);
    AMP_CACHE: Row<Box<str>, str> = row(key("snowflake-amp-cache", "https:// address", "\"https://cdn.ampproject.example/\"")
        .at(TomlTable::Outbound, DIALLING, "none", "AMP cache that is asked in the broker's place"),
        |field, report| field.parsed(report, amp_cache), quote);
    ICE: Row<Vec<Spanned<Target>>, [Target]> = row(key("snowflake-ice", "stun:host:port, or a list", "[\"stun:stun.example:3478\", \"stun:192.0.2.1:3478\"]")
        .at(TomlTable::Outbound, DIALLING, "none", "STUN servers, by which proxies learn this machine's public address"),
        |field, report| field.list(report, MAX_HOSTS, stun), |servers: &[Target]| one_or_list(servers.iter().map(|server| quote(&format!("stun:{server}")))));
    MAX: Row<usize> = row(key("snowflake-max", "1 to 64", "2")
        .at(TomlTable::Outbound, DIALLING, "1", "proxies that a session keeps: one is in use, the others replace it at once"),
        |field, report| field.number(report, 1..=64), ToString::to_string);
    FINGERPRINT: Row<Fingerprint> = row(key("snowflake-fingerprint", "40 or 64 hex digits", "\"8838024498816A039FCBBAB14E6F40A0843051FA\"")
        .at(TomlTable::Outbound, DIALLING, "2B280B23E1107BB62ABFC40DDCC8824814F80A72", "the bridge that the broker is asked for: an entry of its list"),
        |field, report| field.parsed(report, fingerprint), quoted);
    IMITATE: Row<Box<str>, str> = row(key("snowflake-utls-imitate", "name of a TLS hello", "\"hellorandomizedalpn\"")
        .at(TomlTable::Outbound, DIALLING, "none", "accepted and not obeyed: the TLS hello is adit's own, which a warning says"),
        |field, report| field.parsed(report, |text| values::hello(text).map_err(Problem::new)), quote);
    HIDE_NAME: Row<bool> = flag(key("snowflake-utls-nosni", "true or false", "true")
        .at(TomlTable::Outbound, DIALLING, "false", "leaves the broker's name out of the TLS hello"));
    KEEP_LOCAL: Row<bool> = flag(key("snowflake-keep-local-addresses", "true or false", "true")
        .at(TomlTable::Outbound, DIALLING, "false", "tells proxies private and loopback addresses too, for tests on one machine or network"));
    PORT_TLS: Row<PortTls> = row(key("snowflake-tls", "files, acme or off", "\"off\"")
        .at(TomlTable::Inbound, LISTENING, "files", "certificate of the port that proxies come to: files, or acme, which fetches it; off is for a reverse proxy in front, and for tests"),
        |field, report| field.choice(report, TLS), |tls| chosen(TLS, tls));
    CERTIFICATE: Row<Box<str>, str> = row(key("snowflake-certificate", "path", "\"/etc/adit/bridge.crt\"")
        .at(TomlTable::Inbound, LISTENING, "required with snowflake-tls = files", "chain of certificates (PEM); read again when the file changes"),
        |field, report| field.parsed(report, path), quote);
    CERTIFICATE_KEY: Row<Box<str>, str> = row(key("snowflake-certificate-key", "path", "\"/etc/adit/bridge.key\"")
        .at(TomlTable::Inbound, LISTENING, "required with snowflake-tls = files", "the certificate's private key (PEM)"),
        |field, report| field.parsed(report, path), quote);
}

rows! { ACME;
    ACME_NAMES: Row<Vec<Spanned<Box<str>>>, [Box<str>]> = row(key("snowflake-acme-names", "host, or a list", "\"bridge.example\"")
        .at(TomlTable::Inbound, LISTENING, "required with snowflake-tls = acme", "names of the certificate; each must lead to this machine"),
        |field, report| field.list(report, MAX_NAMES, |text| certificate_name(text).map_err(Problem::new)), all_quoted);
    ACME_FOLDER: Row<Box<str>, str> = row(key("snowflake-acme-folder", "path", "\"/var/lib/adit/acme\"")
        .at(TomlTable::Inbound, LISTENING, "required with snowflake-tls = acme", "folder of the certificate and of the account's key"),
        |field, report| field.parsed(report, path), quote);
    ACME_EMAIL: Row<Box<str>, str> = row(key("snowflake-acme-email", "address of mail", "\"me@example.org\"")
        .at(TomlTable::Inbound, LISTENING, "none", "address that the certificate authority may write to"),
        |field, report| field.parsed(report, |text| mail(text).map_err(Problem::new)), quote);
    ACME_DIRECTORY: Row<WebUrl> = row(key("snowflake-acme-directory", "https:// address", "\"https://acme.example/directory\"")
        .at(TomlTable::Inbound, LISTENING, "Let's Encrypt's", "directory of the certificate authority (RFC 8555)"),
        |field, report| field.parsed(report, |text| values::broker(text).map_err(Problem::new)), |url| quote(&url_text(url)));
    ACME_HTTP: Row<SocketAddr> = row(key("snowflake-acme-http", "address:port", "\"127.0.0.1:5002\"")
        .at(TomlTable::Inbound, LISTENING, "port 80 of the inbound's address", "address that the authority's questions come to, by HTTP; it asks at port 80"),
        |field, report| field.parsed(report, listen), |addr| quote(&addr.to_string()));
}

fn url_text(url: &WebUrl) -> String {
    let scheme = if url.tls { "https" } else { "http" };
    format!("{scheme}://{}{}", url.authority, url.path)
}

fn host(text: &str) -> Result<Host, Problem> {
    Host::parse(text.as_bytes()).map_err(|_| Problem::new(format!("no host name: {}", excerpt(text))))
}

fn stun(text: &str) -> Result<Target, Problem> {
    values::stun_server(text).map_err(Problem::new)
}

fn amp_cache(text: &str) -> Result<Box<str>, Problem> {
    WebUrl::parse(text).map_err(|error| Problem::new(error.to_string()))?;
    text_of(text, MAX_URL)
}

fn fingerprint(text: &str) -> Result<Fingerprint, Problem> {
    Fingerprint::parse(text).ok_or_else(|| Problem::new("no 40 or 64 hex digits"))
}

fn path(text: &str) -> Result<Box<str>, Problem> {
    text_of(text, MAX_PATH)
}
