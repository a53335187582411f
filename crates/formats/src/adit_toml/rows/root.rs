//! The rows of the top of the file, of `[admin]` and of `[[set]]`. Those of `[log]`, `[limits]` and `[udp]` are in
//! [`bound`](crate::adit_toml::schema).

use std::net::SocketAddr;
use std::time::Duration;

use adit_model::Secret;
use adit_model::rule::{FindProgram, SetFormat};

use super::{ALL, Row, Tables, chosen, exposed, flag, named, row, rows, span, tables};
use crate::adit_toml::fields::Spanned;
use crate::adit_toml::keys::{TomlTable, key};
use crate::read::value::{Problem, listen, quote, secret, text_of};

/// Longest path of a unix socket, in bytes (`sockaddr_un` of Linux; macOS has 4 fewer).
const MAX_SOCKET_PATH: usize = 107;
/// Longest path of another file, in bytes.
const MAX_PATH: usize = 4000;
/// Length of the token of the HTTP interface, in characters.
const MIN_TOKEN: usize = 16;
const MAX_TOKEN: usize = 255;
const MAX_INBOUNDS: usize = 256;
/// Longest name of an inbound, in bytes.
const MAX_INBOUND_NAME: usize = 255;
/// Most outbounds of a file, and most members of a group.
pub(super) const MAX_OUTBOUNDS: usize = 256;
/// Most rules of a file.
const MAX_RULES: usize = 1 << 20;
/// Most panels of a file.
const MAX_PANELS: usize = 64;
/// Most sets of a file.
const MAX_SETS: usize = 1024;

/// Longest name of a list within a database.
const MAX_LIST: usize = 64;
/// Most lists of outbounds of a file.
const MAX_PROVIDERS: usize = 256;
/// Most lines of a set that stand in the file.
const MAX_ENTRIES: usize = 1 << 17;
/// Most plugins that entries of lists may run.
const MAX_PLUGINS: usize = 64;

rows! { ROOT;
    CORES: Row<usize> = row(key("cores", "1 to 1024", "2")
        .at(TomlTable::Root, ALL, "one per processor, at most 8", "number of event loops"),
        |field, report| field.number(report, 1..=1024), ToString::to_string);
    STATE: Row<Box<str>, str> = row(key("state", "path of a file, or off", "\"/var/lib/adit/home.state\"")
        .at(TomlTable::Root, ALL, "a file for this configuration in the state directory", "keeps the counters of users across restarts; made when an inbound has users"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_PATH)), quote);
    LOG: Tables = tables(key("log", "table", "").at(TomlTable::Root, ALL, "", "log level and format"), TomlTable::Log, 1);
    ADMIN_TABLE: Tables = tables(key("admin", "table", "").at(TomlTable::Root, ALL, "", "the control interface"), TomlTable::Admin, 1);
    LIMITS: Tables = tables(key("limits", "table", "").at(TomlTable::Root, ALL, "", "limits of the whole process"), TomlTable::Limits, 1);
    UDP: Tables = tables(key("udp", "table", "").at(TomlTable::Root, ALL, "", "settings of the datagram relay"), TomlTable::Udp, 1);
    DNS_TABLE: Tables = tables(key("dns", "table", "")
        .at(TomlTable::Root, ALL, "the system's resolver", "settings of name resolution"), TomlTable::Dns, 1);
    SNIFF_TABLE: Tables = tables(key("sniff", "table", "")
        .at(TomlTable::Root, ALL, "none: targets are what clients say", "reads the names of targets from the first bytes of clients; an empty table will do"), TomlTable::Sniff, 1);
    CAPTURE_TABLE: Tables = tables(key("capture", "table", "")
        .at(TomlTable::Root, ALL, "none", "captures the traffic of this machine, and of networks that it forwards for"), TomlTable::Capture, 1);
    INBOUND: Tables = tables(key("inbound", "tables", "")
        .at(TomlTable::Root, ALL, "required", "the inbounds"), TomlTable::Inbound, MAX_INBOUNDS);
    OUTBOUND: Tables = tables(key("outbound", "tables", "")
        .at(TomlTable::Root, ALL, "one of protocol direct", "the outbounds"), TomlTable::Outbound, MAX_OUTBOUNDS);
    RULE: Tables = tables(key("rule", "tables", "")
        .at(TomlTable::Root, ALL, "none", "which requests take another outbound than that of their inbound; the first rule that matches decides"), TomlTable::Rule, MAX_RULES);
    PROVIDERS: Tables = tables(key("provider", "tables", "")
        .at(TomlTable::Root, ALL, "none", "lists of outbounds that groups take their members from"), TomlTable::Provider, MAX_PROVIDERS);
    PLUGINS_ALLOWED: Row<Vec<Spanned<Box<str>>>, [Box<str>]> = row(key("plugins-allowed", "name of a program, or a list", "[\"obfs-local\"]")
        .at(TomlTable::Root, ALL, "none: only plugins that are built in", "plugins that entries of providers may run, by name and never by path"),
        |field, report| field.list(report, MAX_PLUGINS, plugin), super::all_quoted);
    FIND_PROCESS: Row<FindProgram> = row(key("find-process", "off, strict or always", "\"always\"")
        .at(TomlTable::Root, ALL, "strict", "seeks the programs of clients on this machine: never, where a rule asks, or for every request, so that the list of connections shows them"),
        |field, report| field.choice(report, &FindProgram::ALL), |find| chosen(&FindProgram::ALL, find));
    SETS: Tables = tables(key("set", "tables", "")
        .at(TomlTable::Root, ALL, "none", "files of names or addresses that rules refer to"), TomlTable::Set, MAX_SETS);
    PANELS: Tables = tables(key("panel", "tables", "")
        .at(TomlTable::Root, ALL, "none", "panels that list users of inbounds and take their counters"), TomlTable::Panel, MAX_PANELS);
    STORE_TABLE: Tables = tables(key("store", "table", "")
        .at(TomlTable::Root, ALL, "none", "a Redis or Valkey server that the servers of a fleet share"), TomlTable::Store, 1);
    GEOIP: Row<Box<str>, str> = row(key("geoip", "path of a .mmdb file", "\"country.mmdb\"")
        .at(TomlTable::Root, ALL, "required if a rule names a country", "database of the countries of addresses"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_PATH)), quote);
}

rows! { ADMIN;
    SOCKET: Row<Box<str>, str> = row(key("socket", "path of a unix socket, or off", "\"/run/adit/adit.sock\"")
        .at(TomlTable::Admin, ALL, "one per process that `adit status` finds", "socket of the control interface"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_SOCKET_PATH)), quote);
    WATCH: Row<bool> = flag(key("watch", "true or false", "true")
        .at(TomlTable::Admin, ALL, "false", "follows a change of these files within two seconds, as `adit reload` does"));
}

rows! { ADMIN_HTTP;
    HTTP: Row<SocketAddr> = row(key("http", "address:port", "\"127.0.0.1:9090\"")
        .at(TomlTable::Admin, ALL, "none", "serves /metrics for Prometheus, /live and /ready; on loopback unless there is a token"),
        |field, report| field.parsed(report, listen), |addr| quote(&addr.to_string()));
    TOKEN: Row<Secret> = row(key("token", "text of 16 to 255 characters", "\"0123456789abcdef\"")
        .at(TomlTable::Admin, ALL, "none", "token that /metrics wants, as `Authorization: Bearer TOKEN`"),
        |field, report| field.parsed(report, token), |token| quote(token.expose()));
    PER_USER: Row<bool> = flag(key("per-user", "true or false", "true")
        .at(TomlTable::Admin, ALL, "false", "shows series for each user with traffic, by name, at most 20,000"));
    OUTLINE: Row<bool> = flag(key("outline", "true or false", "true")
        .at(TomlTable::Admin, ALL, "false", "shows metrics under the names of Outline's server too, for its dashboards; needs per-user"));
}

rows! { CONTROLLER;
    CLASH: Row<SocketAddr> = row(key("clash", "address:port", "\"127.0.0.1:9090\"")
        .at(TomlTable::Admin, ALL, "none", "serves the control interface of mihomo, for dashboards; on 127.0.0.1 unless there is a clash-secret"),
        |field, report| field.parsed(report, listen), |addr| quote(&addr.to_string()));
    CLASH_SECRET: Row<Secret> = row(key("clash-secret", "text of 1 to 255 characters", "\"0123456789abcdef\"")
        .at(TomlTable::Admin, ALL, "none", "secret that dashboards show, as `Authorization: Bearer SECRET`"),
        |field, report| field.parsed(report, |text| secret(text, MAX_TOKEN)), |secret| quote(secret.expose()));
    CLASH_UI: Row<Box<str>, str> = row(key("clash-ui", "path of a folder", "\"/usr/share/zashboard\"")
        .at(TomlTable::Admin, ALL, "none", "folder of a dashboard, which is served under /ui/"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_PATH)), quote);
}

rows! { MANAGEMENT;
    MANAGE: Row<SocketAddr> = row(key("manage", "address:port", "\"127.0.0.1:8443\"")
        .at(TomlTable::Admin, ALL, "none", "serves Outline's access keys API and the Shadowsocks Server Management API, with TLS and a certificate of its own; needs a manage-secret"),
        |field, report| field.parsed(report, listen), |addr| quote(&addr.to_string()));
    MANAGE_SECRET: Row<Secret> = row(key("manage-secret", "16 to 255 letters, digits, - and _", "\"0123456789abcdefghijkl\"")
        .at(TomlTable::Admin, ALL, "none", "first part of each path of the management interface; who knows it manages the users"),
        |field, report| field.parsed(report, path_secret), |secret| quote(secret.expose()));
    MANAGE_INBOUND: Row<Box<str>, str> = row(key("manage-inbound", "name of an inbound", "\"home\"")
        .at(TomlTable::Admin, ALL, "the first with an AEAD method and users with a password each", "Shadowsocks inbound whose users are Outline's access keys"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_INBOUND_NAME)), quote);
}

/// A secret that stands in a path as it is.
fn path_secret(text: &str) -> Result<Secret, Problem> {
    if text.len() < MIN_TOKEN {
        return Err(Problem::new("shorter than 16 characters").hint("`adit key` makes one"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        return Err(Problem::new("takes letters, digits, `-` and `_` alone").hint("`adit key` makes one"));
    }
    secret(text, MAX_TOKEN)
}

/// A line of a set.
fn entry(text: &str) -> Result<Box<str>, Problem> {
    let text = text_of(text, adit_model::entries::MAX_NAME)?;
    // Lines of rules have commas, which no name or network has.
    let format = if text.contains(',') { "rules" } else { "any" };
    let checked = crate::rulesets::check(format, text.as_bytes());
    if format == "any" {
        checked.map_err(Problem::new)?;
    }
    Ok(text)
}

/// The name of a program, without a path.
fn plugin(text: &str) -> Result<Box<str>, Problem> {
    let name = text_of(text, 255)?;
    if name.contains('/') {
        return Err(
            Problem::new("a path: entries of lists name programs").hint("write the name of the program")
        );
    }
    Ok(name)
}

/// The token of the HTTP interface.
fn token(text: &str) -> Result<Secret, Problem> {
    if text.chars().count() < MIN_TOKEN {
        return Err(Problem::new("shorter than 16 characters").hint("`adit key` makes one"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Problem::new("a header takes letters, digits and signs of ASCII alone"));
    }
    secret(text, MAX_TOKEN)
}

rows! { SET;
    SET_NAME: Row<Box<str>, str> = named(key("name", "text of 1 to 64 characters", "\"office\"")
        .at(TomlTable::Set, ALL, "required", "name that rules use")
        .at(TomlTable::Provider, ALL, "required", "name that groups use"));
    SET_PATH: Row<Box<str>, str> = row(key("path", "path of a file", "\"office.txt\"")
        .at(TomlTable::Set, ALL, "required without entries", "one name or network per line, or a list of mihomo or sing-box (YAML with payload, .mrs, .srs); relative to the folder of this file"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_PATH)), quote);
    SET_ENTRIES: Row<Vec<Spanned<Box<str>>>, [Box<str>]> = row(key("entries", "name or network, or a list", "[\"+.example.com\", \"192.0.2.0/24\"]")
        .at(TomlTable::Set, ALL, "none", "the lines themselves, in the place of a file"),
        |field, report| field.list(report, MAX_ENTRIES, entry), super::all_quoted);
    SET_LIST: Row<Box<str>, str> = row(key("list", "text of 1 to 64 characters", "\"cn\"")
        .at(TomlTable::Set, ALL, "none: the file is a list", "list of a database: a code of GeoSite.dat (cn, cn@ads), of GeoIP.dat (with format addresses), a country or the number of an autonomous system of a database in MaxMind's format"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_LIST)), quote);
    SET_FORMAT: Row<SetFormat> = row(key("format", "any, domains, addresses or rules", "\"domains\"")
        .at(TomlTable::Set, ALL, "any", "kind of lines; example.com is that name, +.example.com with all below it, .example.com all below it; with rules: DOMAIN-SUFFIX,example.com and the like"),
        |field, report| field.choice(report, SetFormat::ALL), |format| chosen(SetFormat::ALL, format));
    SET_URL: Row<Secret> = row(key("url", "address that begins with http:// or https://", "\"https://example.com/office.txt\"")
        .at(TomlTable::Set, ALL, "none", "server that the file is a copy of: the list is fetched, checked and put to use while adit runs; what is wrong leaves the copy as it is")
        .at(TomlTable::Provider, ALL, "none", "server that the file is a copy of: a subscription is fetched, checked and put to use while adit runs; what is wrong leaves the copy as it is"),
        |field, report| field.parsed(report, |text| super::choice::url(text).map(|url| Secret::new(&*url))), exposed);
    SET_INTERVAL: Row<Duration> = span(key("interval", "duration, or 0s for once", "\"6h\"")
        .at(TomlTable::Set, ALL, "24h", "time between two fetches")
        .at(TomlTable::Provider, ALL, "24h", "time between two fetches"));
    SET_THROUGH: Row<Spanned<Box<str>>, str> = row(key("through", "name of an outbound", "\"home\"")
        .at(TomlTable::Set, ALL, "none: as the rules say", "outbound that the list is fetched through")
        .at(TomlTable::Provider, ALL, "none: as the rules say", "outbound that the list is fetched through"),
        |field, report| field.spanned(report, super::name), quote);
}
