//! Writing `adit.toml`.

use std::fmt::Write as _;

use super::bound::{self, Row};
use super::carrier::VERSIONS;
use super::keys::{self, Table};
use super::outbound::FAMILIES;
use super::{obfs, rule, ssr};
use adit_proto::wire::Target;

use crate::dialect::value::{duration_text, quote, size_text};
use crate::model::rule::SetFormat;
use crate::model::{
    ClientCover, Config, Dial, Family, Group, HalfClose, Inbound, InboundProtocol, Kcp, KcpParity, KeyForm,
    Level, Local, LocalProtocols, LogFormat, Member, ObfsClient, ObfsServer, Outbound, OutboundProtocol,
    Pace, Plugin, Quic, ReplayPolicy, Reply, ServerCover, ShadowsocksClient, ShadowsocksKey,
    ShadowsocksServer, SnellClient, SnellVersion, SnellVersions, SocketOptions, StateFile, TcpOptions,
    Transports, Udp, User, UserLimits,
};

pub(super) const LEVELS: &[(&str, Level)] = &[
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
];

pub(super) const FORMATS: &[(&str, LogFormat)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];

pub(super) const ON_OFF: &[(&str, bool)] = &[("on", true), ("off", false)];

pub(super) const OBFS: &[(&str, ObfsServer)] =
    &[("off", ObfsServer::Off), ("http", ObfsServer::Http), ("tls", ObfsServer::Tls)];

pub(super) const QUIC: &[(&str, Quic)] = &[("auto", Quic::Auto), ("on", Quic::On), ("off", Quic::Off)];

pub(super) const TRANSPORTS: &[(&str, Transports)] =
    &[("tcp", Transports::Tcp), ("udp", Transports::Udp), ("tcp-and-udp", Transports::Both)];

pub(super) const REPLAY: &[(&str, ReplayPolicy)] =
    &[("refuse", ReplayPolicy::Refuse), ("report", ReplayPolicy::Report), ("ignore", ReplayPolicy::Ignore)];

/// Writes a file that [`parse`](super::parse) reads as an equal configuration, keys and passwords included.
///
/// Durations are cut to milliseconds, and bytes of a path that are no UTF-8 are lost.
pub fn to_toml(config: &Config) -> String {
    let mut out = Writer(String::new());
    if let Some(cores) = config.cores {
        out.raw("cores", cores);
        out.0.push('\n');
    }
    match &config.state {
        StateFile::Usual | StateFile::Try { .. } => {}
        StateFile::Off => out.text("state", "off"),
        StateFile::At(path) => out.text("state", &path.to_string_lossy()),
    }
    if let Some(file) = &config.geoip {
        out.text("geoip", &file.path.to_string_lossy());
    }
    out.table(Table::Log, bound::LOG, &config.log);
    if let Some(socket) = &config.admin {
        out.header("[admin]");
        out.text("socket", &socket.to_string_lossy());
    }
    out.table(Table::Limits, bound::LIMITS, &config.limits);
    if config.udp != Udp::default() {
        out.table(Table::Udp, bound::UDP, &config.udp);
    }
    let dns = super::dns::write(&config.dns);
    if !dns.is_empty() {
        out.header(dns.trim_end());
    }
    for inbound in &config.inbounds {
        out.inbound(inbound, &config.outbounds);
    }
    for outbound in &config.outbounds {
        out.outbound(outbound);
    }
    for set in &config.sets {
        out.header("[[set]]");
        out.text("name", &set.name);
        out.text("path", &set.path.to_string_lossy());
        if set.format != SetFormat::default() {
            out.choice("format", SetFormat::ALL, &set.format);
        }
    }
    for lines in config.rules.iter().filter_map(rule::lines) {
        out.header("[[rule]]");
        lines.iter().for_each(|(key, value)| out.raw(key, value));
    }
    out.0
}

pub(super) fn inbound_protocol(protocol: &InboundProtocol) -> &'static str {
    match protocol {
        InboundProtocol::Local(local) => match local.accepts {
            LocalProtocols::Socks => "socks",
            LocalProtocols::Http => "http",
            LocalProtocols::Mixed => "mixed",
        },
        InboundProtocol::Snell(_) => "snell",
        InboundProtocol::Shadowsocks(_) => "shadowsocks",
        InboundProtocol::Ssr(_) => "ssr",
        InboundProtocol::Obfs(_) => "obfs",
        InboundProtocol::Tunnel { .. } => "tunnel",
    }
}

pub(super) fn outbound_protocol(protocol: &OutboundProtocol) -> &'static str {
    match protocol {
        OutboundProtocol::Direct => "direct",
        OutboundProtocol::Reject => "reject",
        OutboundProtocol::Snell(_) => "snell",
        OutboundProtocol::Shadowsocks(_) => "shadowsocks",
        OutboundProtocol::Ssr(_) => "ssr",
        OutboundProtocol::Obfs(_) => "obfs",
        OutboundProtocol::Group(_) => "group",
    }
}

pub(super) struct Writer(String);

impl Writer {
    fn header(&mut self, header: &str) {
        if !self.0.is_empty() && !self.0.ends_with("\n\n") {
            self.0.push('\n');
        }
        self.0.push_str(header);
        self.0.push('\n');
    }

    pub(super) fn raw(&mut self, key: &str, value: impl std::fmt::Display) {
        writeln!(self.0, "{key} = {value}").expect("a string takes any text");
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.raw(key, quote(value));
    }

    /// One text, or a list where there is another number of them.
    pub(super) fn texts(&mut self, key: &str, values: impl Iterator<Item = String>) {
        let values: Vec<String> = values.map(|value| quote(&value)).collect();
        match &*values {
            [one] => self.raw(key, one),
            all => self.raw(key, format!("[{}]", all.join(", "))),
        }
    }

    /// A switch that is off unless written.
    pub(super) fn switch(&mut self, key: &str, on: bool) {
        if on {
            self.raw(key, true);
        }
    }

    pub(super) fn choice<T: PartialEq>(&mut self, key: &str, choices: &[(&str, T)], value: &T) {
        self.text(key, name_of(choices, value));
    }

    fn table<T>(&mut self, table: Table, rows: &[Row<T>], value: &T) {
        self.header(table.header());
        bound::write(rows, value).for_each(|(key, value)| self.raw(key, value));
    }

    fn inbound(&mut self, inbound: &Inbound, outbounds: &[Outbound]) {
        self.header("[[inbound]]");
        self.text("name", &inbound.name);
        self.text("protocol", inbound_protocol(&inbound.protocol));
        self.texts("listen", inbound.listen.iter().map(ToString::to_string));
        match &inbound.protocol {
            InboundProtocol::Local(local) => self.local(local, inbound),
            InboundProtocol::Snell(server) => {
                if let Some(psk) = server.psk.common() {
                    self.text("psk", psk.expose());
                }
                self.users(server.psk.users().iter().map(|user| (user, None)));
                match server.versions {
                    SnellVersions::Only(version) => self.snell_version(version),
                    SnellVersions::Auto => self.text("version", "auto"),
                }
                let open = inbound.listen.iter().any(|addr| !addr.ip().to_canonical().is_loopback());
                self.switch("allow-lan", open && !server.versions.is_sealed());
                self.choice("obfs", OBFS, &server.obfs);
                self.raw("udp", server.udp);
                self.raw("quic", server.quic);
            }
            InboundProtocol::Shadowsocks(server) => self.shadowsocks_server(server),
            InboundProtocol::Ssr(server) => ssr::write_server(self, server),
            InboundProtocol::Obfs(server) => obfs::write_server(self, server),
            InboundProtocol::Tunnel { target, transports } => {
                self.text("target", &target.to_string());
                self.choice("network", TRANSPORTS, transports);
            }
        }
        let protocol = inbound_protocol(&inbound.protocol);
        let restricts =
            keys::of(Table::Inbound).any(|key| key.name == "allow-private" && key.applies_to(protocol));
        self.switch("allow-private", restricts && inbound.allow_private);
        self.socket(&inbound.socket);
        if outbounds.len() > 1 {
            self.text("outbound", &inbound.outbound);
        }
    }

    fn local(&mut self, local: &Local, inbound: &Inbound) {
        self.users(local.users.iter().map(|user| (user, None)));
        let open = inbound.listen.iter().any(|addr| !addr.ip().to_canonical().is_loopback());
        self.switch("allow-lan", open && local.users.is_empty());
        if local.reply == Reply::Connected {
            self.text("reply", "connected");
        }
    }

    /// Users, and where they are passed on to.
    fn users<'u>(&mut self, users: impl Iterator<Item = (&'u User, Option<&'u Target>)>) {
        let users = users.map(|(User { name, key, limits }, server)| {
            let mut user = format!("{{ name = {}, password = {}", quote(name), quote(key.expose()));
            if let Some(server) = server {
                write!(user, ", server = {}", quote(&server.to_string())).expect(TAKES_ANY);
            }
            user_limits(&mut user, *limits);
            user + " }"
        });
        let users: Vec<String> = users.collect();
        if !users.is_empty() {
            self.raw("users", format!("[{}]", users.join(", ")));
        }
    }

    fn shadowsocks_key(&mut self, key: &ShadowsocksKey) {
        self.text("method", key.method().name());
        let name = match key.form() {
            KeyForm::Password => "password",
            KeyForm::Base64 => "key",
        };
        self.text(name, key.text().expose());
    }

    fn shadowsocks_server(&mut self, server: &ShadowsocksServer) {
        self.shadowsocks_key(server.key.key());
        let key = &server.key;
        let users = key.users().iter().enumerate();
        self.users(users.map(|(n, user)| (user, key.hops().get(n))));
        self.choice("network", TRANSPORTS, &server.transports);
        match &server.cover {
            ServerCover::Obfs(obfs) => self.choice("obfs", OBFS, obfs),
            ServerCover::Plugin(plugin) => self.plugin(plugin),
        }
        self.choice("replay", REPLAY, &server.replay);
    }

    fn shadowsocks_client(&mut self, client: &ShadowsocksClient) {
        self.text("server", &client.server.to_string());
        self.shadowsocks_key(&client.key);
        self.choice("network", TRANSPORTS, &client.transports);
        match &client.cover {
            ClientCover::Obfs(obfs) => self.obfs_client(obfs),
            ClientCover::Plugin(plugin) => self.plugin(plugin),
        }
    }

    fn plugin(&mut self, plugin: &Plugin) {
        self.text("plugin", &plugin.program);
        if !plugin.options.is_empty() {
            self.text("plugin-options", &plugin.options);
        }
        if !plugin.args.is_empty() {
            self.texts("plugin-arguments", plugin.args.iter().map(ToString::to_string));
        }
        self.choice("plugin-network", TRANSPORTS, &plugin.transports);
    }

    pub(super) fn obfs_client(&mut self, obfs: &ObfsClient) {
        match obfs {
            ObfsClient::Off => self.text("obfs", "off"),
            ObfsClient::Http(host) => {
                self.text("obfs", "http");
                self.text("obfs-host", host);
            }
            ObfsClient::Tls(host) => {
                self.text("obfs", "tls");
                self.text("obfs-host", host);
            }
        }
    }

    fn kcp(&mut self, kcp: &Kcp) {
        self.text("carrier", "kcp");
        self.text("carrier-key", kcp.key.expose());
        self.text("carrier-crypt", kcp.crypt.name());
        match kcp.parity {
            KcpParity::Measured => self.text("carrier-parity", "auto"),
            KcpParity::Off => self.text("carrier-parity", "off"),
            KcpParity::Fixed(shards) => {
                self.text("carrier-parity", &format!("{}/{}", shards.data(), shards.parity()));
            }
        }
        self.raw("carrier-mtu", kcp.mtu);
        self.switch("carrier-compression", kcp.compression);
        self.choice("carrier-smux", VERSIONS, &kcp.version);
    }

    fn socket(&mut self, socket: &SocketOptions) {
        if let Some(kcp) = &socket.carrier {
            self.kcp(kcp);
        }
        self.switch("tcp-fast-open", socket.fast_open);
        self.tcp(&socket.tcp);
        if let Some(interface) = &socket.interface {
            self.text("interface", interface);
        }
        self.switch("reuse-port", socket.reuse_port);
        self.pace(socket.pace);
    }

    fn tcp(&mut self, tcp: &TcpOptions) {
        let TcpOptions { keep_alive, send_buffer, receive_buffer, multipath } = *tcp;
        if keep_alive != TcpOptions::default().keep_alive {
            self.text("tcp-keep-alive", &duration_text(keep_alive));
        }
        for (key, len) in [("tcp-send-buffer", send_buffer), ("tcp-receive-buffer", receive_buffer)] {
            if let Some(len) = len {
                self.raw(key, len);
            }
        }
        self.switch("tcp-multipath", multipath);
    }

    fn pace(&mut self, pace: Option<Pace>) {
        match pace {
            Some(Pace { mbps, brutal: None }) => self.raw("pacing-mbps", mbps),
            Some(Pace { mbps, brutal: Some(gain) }) => {
                self.raw("brutal-mbps", mbps);
                self.raw("brutal-cwnd-gain", gain);
            }
            None => {}
        }
    }

    fn outbound(&mut self, outbound: &Outbound) {
        self.header("[[outbound]]");
        self.text("name", &outbound.name);
        self.text("protocol", outbound_protocol(&outbound.protocol));
        match &outbound.protocol {
            OutboundProtocol::Reject => return,
            OutboundProtocol::Direct => {}
            OutboundProtocol::Snell(client) => self.snell_client(client),
            OutboundProtocol::Shadowsocks(client) => self.shadowsocks_client(client),
            OutboundProtocol::Ssr(client) => ssr::write_client(self, client),
            OutboundProtocol::Obfs(client) => obfs::write_client(self, client),
            OutboundProtocol::Group(group) => return self.group(group),
        }
        self.dial(&outbound.dial);
    }

    fn group(&mut self, group: &Group) {
        let members = group.members.iter().map(|member| {
            let Member { outbound, tcp_weight, udp_weight } = member;
            let name = quote(outbound);
            format!("{{ name = {name}, tcp-weight = {tcp_weight}, udp-weight = {udp_weight} }}")
        });
        let members: Vec<String> = members.collect();
        self.raw("members", format!("[{}]", members.join(", ")));
        self.text("check-url", &group.check.url);
        self.text("check-dns", &group.check.dns.to_string());
        self.text("check-interval", &duration_text(group.check.interval));
        self.text("check-interval-in-use", &duration_text(group.check.interval_in_use));
        self.text("check-timeout", &duration_text(group.check.timeout));
        self.text("tolerance", &duration_text(group.check.tolerance));
    }

    fn snell_version(&mut self, version: SnellVersion) {
        self.raw("version", version.number());
        if let Some(mode) = version.mode() {
            self.text("mode", mode.name());
        }
    }

    fn snell_client(&mut self, client: &SnellClient) {
        self.text("server", &client.server.to_string());
        self.text("psk", client.psk.expose());
        if let Some(id) = &client.client_id {
            self.text("user-key", id.expose());
        }
        self.snell_version(client.version);
        self.obfs_client(&client.obfs);
        self.raw("reuse", client.reuse);
        let half_close = match client.half_close {
            HalfClose::Auto => "auto",
            HalfClose::On => "on",
            HalfClose::Late => "late",
        };
        self.text("half-close", half_close);
        self.raw("udp", client.udp);
        match client.quic {
            Quic::Block => self.text("block-quic", "on"),
            Quic::Auto | Quic::On | Quic::Off => self.choice("quic", QUIC, &client.quic),
        }
    }

    fn dial(&mut self, dial: &Dial) {
        if dial.family != Family::Any {
            self.choice("family", FAMILIES, &dial.family);
        }
        if let Some(interface) = &dial.egress.interface {
            self.text("interface", interface);
        }
        if dial.egress.sources().next().is_some() {
            self.texts("bind-address", dial.egress.sources().map(|source| source.to_string()));
        }
        if let Some(mark) = dial.egress.mark {
            self.raw("fwmark", mark);
        }
        if let Some(through) = &dial.through {
            self.text("through", through);
        }
        if !dial.dns.is_empty() {
            self.texts("dns", dial.dns.iter().map(ToString::to_string));
        }
        self.switch("tcp-fast-open", dial.fast_open);
        self.tcp(&dial.tcp);
        self.text("timeout", &duration_text(dial.timeout));
        self.pace(dial.pace);
        if let Some(client) = &dial.carrier {
            self.kcp(&client.kcp);
            self.text("carrier-server", &client.server.to_string());
            self.raw("carrier-sessions", client.sessions);
        }
    }
}

/// The name of a value in its table, which has them all.
pub(super) fn name_of<'c, T: PartialEq>(choices: &[(&'c str, T)], value: &T) -> &'c str {
    let (name, _) = choices.iter().find(|(_, v)| v == value).expect("the table has every value");
    name
}

const TAKES_ANY: &str = "a string takes any text";

pub(super) fn user_limits(out: &mut String, limits: UserLimits) {
    let UserLimits { quota, reset_day, expires, rate, connections, addresses } = limits;
    let texts = [
        ("quota", quota.map(size_text)),
        ("expires", expires.map(|expiry| expiry.to_string())),
        ("rate", rate.map(size_text)),
    ];
    for (key, text) in texts.into_iter().filter_map(|(key, text)| Some((key, text?))) {
        write!(out, ", {key} = {}", quote(&text)).expect(TAKES_ANY);
    }
    let numbers =
        [("reset-day", reset_day.map(u32::from)), ("connections", connections), ("addresses", addresses)];
    for (key, number) in numbers.into_iter().filter_map(|(key, number)| Some((key, number?))) {
        write!(out, ", {key} = {number}").expect(TAKES_ANY);
    }
}
