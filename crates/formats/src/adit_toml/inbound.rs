//! One `[[inbound]]`.

use std::net::SocketAddr;

use adit_model::{
    Captured, CapturedBy, DnsInbound, Inbound, InboundProtocol, Local, LocalProtocols, Reply, SocketOptions,
    Tag, Transports,
};

use super::dns::RawAsked;
use super::fields::{Spanned, TomlFields, TomlReport};
use super::rows::{dns as dns_rows, link, name_of, port_keys as rows};
use super::users::{self, MAX_CREDENTIAL, RawUser, read_users};
use super::write::TableEntries;
use super::{carrier, obfs, pace, shadowsocks, snell, ssr, tcp, tun};
use crate::read::value::{Problem, text_of};

/// An inbound as it is written; names are looked up when all outbounds are known.
pub(super) struct RawInbound {
    pub(crate) path: String,
    pub(crate) name: Option<Spanned<Box<str>>>,
    pub(super) outbound: Option<Spanned<Box<str>>>,
    /// The panel that lists its users.
    pub(super) panel: Option<Spanned<Box<str>>>,
    pub(super) listen: Vec<Spanned<SocketAddr>>,
    pub(super) socket: SocketOptions,
    pub(super) allow_private: bool,
    /// The name servers that one of protocol dns asks.
    pub(super) asked: RawAsked,
    /// `None` when something in it is wrong, which has been reported.
    pub(super) protocol: Option<InboundProtocol>,
}

/// The protocols of inbounds, as they are told apart in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InboundKind {
    Local(LocalProtocols),
    Snell,
    Shadowsocks,
    Ssr,
    Obfs,
    Captured(CapturedBy),
    Tunnel,
    Tun,
    Dns,
}

pub(super) const KINDS: &[(&str, InboundKind)] = &[
    ("mixed", InboundKind::Local(LocalProtocols::Mixed)),
    ("socks", InboundKind::Local(LocalProtocols::Socks)),
    ("http", InboundKind::Local(LocalProtocols::Http)),
    ("snell", InboundKind::Snell),
    ("shadowsocks", InboundKind::Shadowsocks),
    ("ssr", InboundKind::Ssr),
    ("obfs", InboundKind::Obfs),
    ("tunnel", InboundKind::Tunnel),
    ("redirect", InboundKind::Captured(CapturedBy::Redirect)),
    ("tproxy", InboundKind::Captured(CapturedBy::Tproxy)),
    ("tun", InboundKind::Tun),
    ("dns", InboundKind::Dns),
];

pub(crate) fn read(mut fields: TomlFields<'_>, report: &mut TomlReport<'_>) -> RawInbound {
    let kind = fields.require(report, &rows::INBOUND_PROTOCOL);
    let name = fields.read(report, &rows::NAME);
    let outbound = fields.read(report, &rows::OUTBOUND_OF);
    // The addresses of an interface are in another key.
    let listens = kind != Some(InboundKind::Tun);
    let listen = if listens { listen(&mut fields, report) } else { Vec::new() };
    let mut socket = SocketOptions {
        fast_open: listens && fields.read(report, &link::FAST_OPEN).unwrap_or(false),
        tcp: tcp::read(&mut fields, report),
        interface: fields.read(report, &link::INTERFACE),
        unix: None,
        reuse_port: listens && fields.read(report, &link::REUSE_PORT).unwrap_or(false),
        carrier: if listens { carrier::server(&mut fields, report).map(Box::new) } else { None },
        pace: None,
    };
    let is_server = matches!(kind, Some(InboundKind::Snell | InboundKind::Shadowsocks | InboundKind::Ssr));
    if is_server {
        socket.pace = pace::read(&mut fields, report, socket.carrier.is_some());
    }
    // Local ports serve applications of this machine, which reach private targets without adit.
    let allow_private = !is_server || fields.read(report, &rows::ALLOW_PRIVATE).unwrap_or(false);
    let panel = if is_server { fields.read(report, &rows::PANEL_OF) } else { None };
    if is_server && fields.has(&rows::PANEL_OF) && fields.has(&rows::USERS) {
        let problem = Problem::new("the panel lists the users").hint("leave `users` or `panel` out");
        fields.wrong(report, &rows::USERS, problem);
    }
    let path = fields.base().to_owned();
    let mut asked = RawAsked::default();
    let protocol = kind.and_then(|kind| match kind {
        InboundKind::Local(accepts) => {
            Some(InboundProtocol::Local(local(&mut fields, report, accepts, &listen)))
        }
        InboundKind::Snell => snell::server(&mut fields, report, &listen).map(InboundProtocol::Snell),
        InboundKind::Shadowsocks => {
            shadowsocks::server(&mut fields, report).map(InboundProtocol::Shadowsocks)
        }
        InboundKind::Ssr => ssr::server(&mut fields, report).map(InboundProtocol::Ssr),
        InboundKind::Obfs => obfs::server(&mut fields, report).map(InboundProtocol::Obfs),
        InboundKind::Captured(by) => {
            let transports = match by {
                CapturedBy::Redirect => fields.read(report, &rows::SERVED).unwrap_or_default(),
                CapturedBy::Tproxy => fields.read(report, &rows::TAKEN).unwrap_or(Transports::Both),
            };
            Some(InboundProtocol::Captured(Captured { by, transports }))
        }
        InboundKind::Tunnel => {
            let target = fields.require(report, &rows::TARGET)?;
            let transports = fields.read(report, &rows::SERVED).unwrap_or_default();
            Some(InboundProtocol::Tunnel { target: target.value, transports })
        }
        InboundKind::Tun if socket.tcp.multipath => {
            let problem = Problem::new("protocol tun has no such key");
            fields.wrong(report, &link::MULTIPATH, problem.hint("applications speak plain TCP to it"));
            None
        }
        InboundKind::Tun => {
            Some(InboundProtocol::Tun(tun::read(&mut fields, report, socket.interface.take())))
        }
        InboundKind::Dns => {
            asked.upstreams = fields.read(report, &dns_rows::ASKED).unwrap_or_default();
            asked.direct = fields.read(report, &dns_rows::ASKED_DIRECT).unwrap_or_default();
            Some(InboundProtocol::Dns(dns_server(&mut fields, report)))
        }
    });
    carrier::check_server(&fields, report, socket.carrier.as_deref(), protocol.as_ref());
    fields.finish(report, kind.map(|kind| name_of(KINDS, &kind)));
    RawInbound { path, name, outbound, panel, listen, socket, allow_private, asked, protocol }
}

/// An inbound of protocol dns; the servers that it asks come later.
fn dns_server(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> DnsInbound {
    let allow = fields.read(report, &dns_rows::ALLOW).unwrap_or_default();
    DnsInbound {
        transports: fields.read(report, &dns_rows::NETWORK).unwrap_or(Transports::Both),
        allow: allow.into_iter().map(|network| network.value).collect(),
        fake: fields.read(report, &dns_rows::ANSWER_FAKE).unwrap_or(true),
        ipv6: fields.read(report, &dns_rows::ANSWER_IPV6).unwrap_or(true),
        ..DnsInbound::default()
    }
}

fn listen(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Vec<Spanned<SocketAddr>> {
    let problem = match (fields.has(&rows::LISTEN), fields.is_empty_list(&rows::LISTEN)) {
        (false, _) => Some("missing"),
        (true, true) => Some("empty"),
        (true, false) => None,
    };
    if let Some(problem) = problem {
        let problem = Problem::new(problem).hint("for instance listen = \"127.0.0.1:1080\"");
        fields.wrong(report, &rows::LISTEN, problem);
    }
    fields.read(report, &rows::LISTEN).unwrap_or_default()
}

fn local(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    accepts: LocalProtocols,
    listen: &[Spanned<SocketAddr>],
) -> Local {
    let has_users = fields.has(&rows::USERS) && !fields.is_empty_list(&rows::USERS);
    let users = read_users(fields, report, "mixed", |text| user_name(text, accepts));
    let users = users.into_iter().map(RawUser::into_user).collect();
    let allow_lan = fields.read(report, &rows::ALLOW_LAN).unwrap_or(false);
    if !has_users && !allow_lan {
        refuse_open_proxy(fields, report, listen);
    }
    let reply = fields.read(report, &rows::REPLY).unwrap_or_default();
    let open_to = fields.read(report, &rows::OPEN_TO).unwrap_or_default();
    let open_to = open_to.into_iter().map(|network| network.value).collect();
    Local { accepts, users, reply, open_to }
}

/// Anybody can use a port without users, so a port beyond loopback needs `allow-lan`.
fn refuse_open_proxy(fields: &TomlFields<'_>, report: &mut TomlReport<'_>, listen: &[Spanned<SocketAddr>]) {
    for addr in listen.iter().filter(|addr| !addr.value.ip().to_canonical().is_loopback()) {
        let problem = format!("everybody who reaches {} could use this proxy", addr.value);
        let hint = "add users, listen on 127.0.0.1, or write allow-lan = true";
        report.error(&addr.at, fields.path(&rows::LISTEN), Problem::new(problem).hint(hint));
    }
}

fn user_name(text: &str, accepts: LocalProtocols) -> Result<Box<str>, Problem> {
    // RFC 7617, 2: the first colon ends the user name.
    if accepts != LocalProtocols::Socks && text.contains(':') {
        return Err(Problem::new("a colon cannot stand in a user name of HTTP"));
    }
    text_of(text, MAX_CREDENTIAL)
}

/// An inbound of a file with more than one outbound, if `outbounds` says so.
pub(super) fn entries(inbound: &Inbound, outbounds: usize, panel: Option<&Tag>) -> TableEntries {
    let mut out = TableEntries::default();
    let is_open = inbound.listen.iter().any(|addr| !addr.ip().to_canonical().is_loopback());
    out.put(&rows::NAME, &inbound.name);
    out.put(&rows::INBOUND_PROTOCOL, protocol_name(&inbound.protocol));
    if !matches!(inbound.protocol, InboundProtocol::Tun(_)) {
        out.put(&rows::LISTEN, &inbound.listen);
    }
    let restricts = match &inbound.protocol {
        InboundProtocol::Local(local) => {
            users::write(&mut out, local.users.iter().map(|user| (user, users::More::default())));
            out.put_unless(&rows::ALLOW_LAN, &(is_open && local.users.is_empty()), &false);
            out.put_unless(&rows::REPLY, &local.reply, &Reply::default());
            out.put_unless(&rows::OPEN_TO, &*local.open_to, &[]);
            false
        }
        InboundProtocol::Snell(server) => {
            snell::write_server(&mut out, server, is_open);
            true
        }
        InboundProtocol::Shadowsocks(server) => {
            shadowsocks::write_server(&mut out, server);
            true
        }
        InboundProtocol::Obfs(server) => {
            obfs::write_server(&mut out, server);
            false
        }
        InboundProtocol::Ssr(server) => {
            ssr::write_server(&mut out, server);
            true
        }
        InboundProtocol::Captured(captured) => {
            match captured.by {
                CapturedBy::Redirect => out.put(&rows::SERVED, &captured.transports),
                CapturedBy::Tproxy => out.put(&rows::TAKEN, &captured.transports),
            }
            false
        }
        InboundProtocol::Tunnel { target, transports } => {
            out.put(&rows::TARGET, target);
            out.put(&rows::SERVED, transports);
            false
        }
        InboundProtocol::Tun(tun) => {
            tun::write(&mut out, tun);
            false
        }
        InboundProtocol::Dns(server) => {
            write_dns(&mut out, server);
            false
        }
    };
    if let Some(panel) = panel {
        out.without(&rows::USERS);
        if let InboundProtocol::Shadowsocks(server) = &inbound.protocol
            && shadowsocks::is_of_panel(&server.key)
        {
            out.without(&rows::PASSWORD);
        }
        out.put(&rows::PANEL_OF, panel);
    }
    out.put_unless(&rows::ALLOW_PRIVATE, &(restricts && inbound.allow_private), &false);
    write_socket(&mut out, &inbound.socket);
    if outbounds > 1 {
        out.put(&rows::OUTBOUND_OF, &inbound.outbound);
    }
    out
}

fn write_dns(out: &mut TableEntries, server: &DnsInbound) {
    let names = |servers: &[std::sync::Arc<adit_model::Upstream>]| -> Vec<Tag> {
        servers.iter().map(|server| Tag::from(&*server.name)).collect()
    };
    out.put_unless(&dns_rows::NETWORK, &server.transports, &Transports::Both);
    out.put_unless(&dns_rows::ALLOW, &*server.allow, &[]);
    out.put_unless(&dns_rows::ANSWER_FAKE, &server.fake, &true);
    out.put_unless(&dns_rows::ANSWER_IPV6, &server.ipv6, &true);
    out.put_unless(&dns_rows::ASKED, &*names(&server.upstreams), &[]);
    out.put_unless(&dns_rows::ASKED_DIRECT, &*names(&server.direct), &[]);
}

fn write_socket(out: &mut TableEntries, socket: &SocketOptions) {
    if let Some(kcp) = &socket.carrier {
        carrier::write_server(out, kcp);
    }
    out.put_unless(&link::FAST_OPEN, &socket.fast_open, &false);
    tcp::write(out, &socket.tcp);
    out.put_some(&link::INTERFACE, socket.interface.as_deref());
    out.put_unless(&link::REUSE_PORT, &socket.reuse_port, &false);
    pace::write(out, socket.pace);
}

pub(super) fn protocol_name(protocol: &InboundProtocol) -> &'static str {
    let kind = match protocol {
        InboundProtocol::Local(local) => InboundKind::Local(local.accepts),
        InboundProtocol::Snell(_) => InboundKind::Snell,
        InboundProtocol::Shadowsocks(_) => InboundKind::Shadowsocks,
        InboundProtocol::Ssr(_) => InboundKind::Ssr,
        InboundProtocol::Obfs(_) => InboundKind::Obfs,
        InboundProtocol::Captured(captured) => InboundKind::Captured(captured.by),
        InboundProtocol::Tunnel { .. } => InboundKind::Tunnel,
        InboundProtocol::Tun(_) => InboundKind::Tun,
        InboundProtocol::Dns(_) => InboundKind::Dns,
    };
    name_of(KINDS, &kind)
}
