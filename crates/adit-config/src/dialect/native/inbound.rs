//! One `[[inbound]]`.

use std::net::SocketAddr;

use super::fields::{Fields, Report, Spanned, one_of};
use super::users::{MAX_CREDENTIAL, RawUser, read_users};
use super::write;
use super::{carrier, name, obfs, pace, shadowsocks, snell, ssr, tcp};
use crate::dialect::value::{self, MAX_LISTEN, Problem, interface, text_of};
use crate::model::{InboundProtocol, Local, LocalProtocols, Reply, SocketOptions};

/// An inbound as it is written; names are looked up when all outbounds are known.
pub(super) struct RawInbound {
    pub(super) path: String,
    pub(super) name: Option<Spanned<Box<str>>>,
    pub(super) outbound: Option<Spanned<Box<str>>>,
    pub(super) listen: Vec<Spanned<SocketAddr>>,
    pub(super) socket: SocketOptions,
    pub(super) allow_private: bool,
    /// `None` when something in it is wrong, which has been reported.
    pub(super) protocol: Option<InboundProtocol>,
}

#[derive(Clone, Copy)]
enum Kind {
    Local(LocalProtocols),
    Snell,
    Shadowsocks,
    Ssr,
    Obfs,
    Tunnel,
}

const KINDS: &[(&str, Kind)] = &[
    ("mixed", Kind::Local(LocalProtocols::Mixed)),
    ("socks", Kind::Local(LocalProtocols::Socks)),
    ("http", Kind::Local(LocalProtocols::Http)),
    ("snell", Kind::Snell),
    ("shadowsocks", Kind::Shadowsocks),
    ("ssr", Kind::Ssr),
    ("obfs", Kind::Obfs),
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
        tcp: tcp::read(&mut fields, report),
        interface: fields.parsed(report, "interface", interface).map(|i| i.value),
        unix: None,
        reuse_port: fields.flag(report, "reuse-port").unwrap_or(false),
        carrier: carrier::kcp(&mut fields, report).map(Box::new),
        pace: None,
    };
    let is_server =
        kind.as_ref().is_some_and(|kind| matches!(kind.value.0, Kind::Snell | Kind::Shadowsocks | Kind::Ssr));
    if is_server {
        socket.pace = pace::read(&mut fields, report, socket.carrier.is_some());
    }
    // Local ports serve applications of this machine, which reach private targets without adit.
    let allow_private = !is_server || fields.flag(report, "allow-private").unwrap_or(false);
    let path = fields.path("");
    let protocol = kind.as_ref().and_then(|kind| match kind.value.0 {
        Kind::Local(accepts) => Some(InboundProtocol::Local(local(&mut fields, report, accepts, &listen))),
        Kind::Snell => snell::server(&mut fields, report, &listen).map(InboundProtocol::Snell),
        Kind::Shadowsocks => shadowsocks::server(&mut fields, report).map(InboundProtocol::Shadowsocks),
        Kind::Ssr => ssr::server(&mut fields, report).map(InboundProtocol::Ssr),
        Kind::Obfs => obfs::server(&mut fields, report).map(InboundProtocol::Obfs),
        Kind::Tunnel => {
            let target = fields.require(report, "target")?.parsed(report, value::target)?;
            let transports = fields.one_of(report, "network", write::TRANSPORTS).unwrap_or_default();
            Some(InboundProtocol::Tunnel { target: target.value, transports })
        }
    });
    fields.finish(report, kind.as_ref().map(|kind| kind.value.1.as_str()));
    let path = path.trim_end_matches('.').to_owned();
    RawInbound { path, name, outbound, listen, socket, allow_private, protocol }
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
    let users = read_users(fields, report, "mixed", |text| user_name(text, accepts));
    let users = users.into_iter().map(RawUser::into_user).collect();
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

fn user_name(text: &str, accepts: LocalProtocols) -> Result<Box<str>, Problem> {
    // RFC 7617, 2: the first colon ends the user name.
    if accepts != LocalProtocols::Socks && text.contains(':') {
        return Err(Problem::new("a colon cannot stand in a user name of HTTP"));
    }
    text_of(text, MAX_CREDENTIAL)
}
