//! One `[[inbound]]`.

use std::net::SocketAddr;

use adit_proto::wire::Target;

use super::fields::{Fields, Report, Spanned, one_of};
use super::keys::Table;
use super::write;
use super::{MAX_USERS, carrier, name, obfs_server, pace, shadowsocks, snell};
use crate::dialect::value::{self, MAX_LISTEN, Problem, interface, secret, text_of};
use crate::model::{
    InboundProtocol, Local, LocalProtocols, ObfsServer, Reply, Secret, SnellServer, SocketOptions,
};

/// An inbound as it is written; names are looked up when all outbounds are known.
pub(super) struct RawInbound {
    pub(super) path: String,
    pub(super) name: Option<Spanned<Box<str>>>,
    pub(super) outbound: Option<Spanned<Box<str>>>,
    pub(super) listen: Vec<Spanned<SocketAddr>>,
    pub(super) socket: SocketOptions,
    /// `None` when something in it is wrong, which has been reported.
    pub(super) protocol: Option<InboundProtocol>,
}

#[derive(Clone, Copy)]
enum Kind {
    Local(LocalProtocols),
    Snell,
    Shadowsocks,
    Tunnel,
}

const KINDS: &[(&str, Kind)] = &[
    ("mixed", Kind::Local(LocalProtocols::Mixed)),
    ("socks", Kind::Local(LocalProtocols::Socks)),
    ("http", Kind::Local(LocalProtocols::Http)),
    ("snell", Kind::Snell),
    ("shadowsocks", Kind::Shadowsocks),
    ("tunnel", Kind::Tunnel),
];

pub(super) fn read(mut fields: Fields<'_>, report: &mut Report<'_>) -> RawInbound {
    let kind = fields.require(report, "protocol").and_then(|field| {
        field.parsed(report, |text| one_of(text, KINDS).map(|kind| (kind, text.to_owned())))
    });
    let name = fields.parsed(report, "name", name);
    let outbound = fields.parsed(report, "outbound", name_reference);
    let listen = listen(&mut fields, report);
    let mut socket = SocketOptions {
        fast_open: fields.flag(report, "tcp-fast-open").unwrap_or(false),
        interface: fields.parsed(report, "interface", interface).map(|i| i.value),
        carrier: carrier::kcp(&mut fields, report).map(Box::new),
        pace: None,
    };
    let is_server = kind.as_ref().is_some_and(|kind| matches!(kind.value.0, Kind::Snell | Kind::Shadowsocks));
    if is_server {
        socket.pace = pace::read(&mut fields, report, socket.carrier.is_some());
    }
    let path = fields.path("");
    let protocol = kind.as_ref().and_then(|kind| match kind.value.0 {
        Kind::Local(accepts) => Some(InboundProtocol::Local(local(&mut fields, report, accepts, &listen))),
        Kind::Snell => snell_server(&mut fields, report, &listen).map(InboundProtocol::Snell),
        Kind::Shadowsocks => shadowsocks::server(&mut fields, report).map(InboundProtocol::Shadowsocks),
        Kind::Tunnel => {
            let target = fields.require(report, "target")?.parsed(report, value::target)?;
            let transports = fields.one_of(report, "mode", write::TRANSPORTS).unwrap_or_default();
            Some(InboundProtocol::Tunnel { target: target.value, transports })
        }
    });
    fields.finish(report, kind.as_ref().map(|kind| kind.value.1.as_str()));
    RawInbound { path: path.trim_end_matches('.').to_owned(), name, outbound, listen, socket, protocol }
}

fn name_reference(text: &str) -> Result<Box<str>, Problem> {
    Ok(text.into())
}

fn listen(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Vec<Spanned<SocketAddr>> {
    const KEY: &str = "listen";
    let problem = match (fields.has(KEY), fields.is_empty_list(KEY)) {
        (false, _) => Some("missing"),
        (true, true) => Some("empty"),
        (true, false) => None,
    };
    if let Some(problem) = problem {
        let problem = Problem::new(problem).hint("for instance listen = \"127.0.0.1:1080\"");
        report.error(&fields.place(KEY), fields.path(KEY), problem);
    }
    fields.list(report, KEY, MAX_LISTEN, value::listen).unwrap_or_default()
}

fn local(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    accepts: LocalProtocols,
    listen: &[Spanned<SocketAddr>],
) -> Local {
    const REPLIES: &[(&str, Reply)] = &[("early", Reply::Early), ("connected", Reply::Connected)];
    let has_users = fields.has("users") && !fields.is_empty_list("users");
    let users = read_users(fields, report, false, |text| user_name(text, accepts));
    let users = users.into_iter().map(|user| (user.name, user.password)).collect();
    let allow_lan = fields.flag(report, "allow-lan").unwrap_or(false);
    if !has_users && !allow_lan {
        refuse_open_proxy(fields, report, listen);
    }
    let reply = fields.one_of(report, "reply", REPLIES).unwrap_or_default();
    Local { accepts, users, reply }
}

/// Whoever reaches a port without users can use it, so beyond loopback it must be wanted.
fn refuse_open_proxy(fields: &Fields<'_>, report: &mut Report<'_>, listen: &[Spanned<SocketAddr>]) {
    for addr in listen.iter().filter(|addr| !addr.value.ip().to_canonical().is_loopback()) {
        let problem = format!("everybody who reaches {} could use this proxy", addr.value);
        let hint = "add users, listen on 127.0.0.1, or write allow-lan = true";
        report.error(&addr.at, fields.path("listen"), Problem::new(problem).hint(hint));
    }
}

/// An entry of `users`.
pub(super) struct User {
    pub(super) name: Box<str>,
    pub(super) password: Secret,
    /// Where it is passed on to.
    pub(super) server: Option<Target>,
}

pub(super) fn read_users(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    may_pass_on: bool,
    user_name: impl Fn(&str) -> Result<Box<str>, Problem>,
) -> Vec<User> {
    let Some(field) = fields.take("users") else { return Vec::new() };
    let tables = field.tables(report, Table::User, MAX_USERS);
    let mut users: Vec<User> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for mut table in tables {
        let name = table.require(report, "name").and_then(|f| f.parsed(report, &user_name));
        let password = table
            .require(report, "password")
            .and_then(|f| f.parsed(report, |text| secret(text, MAX_CREDENTIAL)));
        if let Some(name) = &name
            && !seen.insert(name.value.clone())
        {
            report.error(&name.at, table.path("name"), Problem::new("this user is listed twice"));
        }
        if let (Some(name), Some(password)) = (name, password) {
            let server = if may_pass_on { table.parsed(report, "server", value::target) } else { None };
            let server = server.map(|server| server.value);
            users.push(User { name: name.value, password: password.value, server });
        }
        table.finish(report, None);
    }
    users
}

/// Longest user name and password that SOCKS5 can carry, in bytes (RFC 1929, 2).
pub(super) const MAX_CREDENTIAL: usize = 255;

fn user_name(text: &str, accepts: LocalProtocols) -> Result<Box<str>, Problem> {
    // RFC 7617, 2: the first colon ends the user name.
    if accepts != LocalProtocols::Socks && text.contains(':') {
        return Err(Problem::new("a colon cannot stand in a user name of HTTP"));
    }
    text_of(text, MAX_CREDENTIAL)
}

fn snell_server(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    listen: &[Spanned<SocketAddr>],
) -> Option<SnellServer> {
    let psk = fields.require(report, "psk").and_then(|f| f.parsed(report, value::psk));
    let versions = snell::server_versions(fields, report);
    snell::check_psk(fields, report, psk.as_ref(), &versions.psk_lens());
    let obfs = fields.parsed(report, "obfs", obfs_server).map_or(ObfsServer::Off, |o| o.value);
    snell::check_obfs(fields, report, obfs != ObfsServer::Off, versions.has_obfs());
    snell::check_exposure(fields, report, versions, listen);
    let udp = fields.flag(report, "udp").unwrap_or(true);
    let quic = fields.flag(report, "quic").unwrap_or(true);
    Some(SnellServer { psk: psk?.value, versions, obfs, udp, quic })
}
