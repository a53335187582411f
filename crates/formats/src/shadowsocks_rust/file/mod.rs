//! The file: what it says, key by key, before anything is decided.

mod log;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_model::diagnostic::{Diagnostic, Diagnostics, Severity};
use adit_model::{
    CapturedBy, Check, Egress, Level, Plugin, ReplayPolicy, Secret, ShadowsocksKey, TcpOptions, Transports,
    Udp,
};
use adit_proto::shadowsocks::ShadowsocksMethod;
use zeroize::Zeroizing;

use self::log::LogFile;
use super::RustSurroundings;
use super::names::PortKeys;
use super::tun::TunKeys;
use crate::read::json::{self, Grammar, Node};
use crate::read::json_fields::{JsonField, JsonFields, JsonReport};
use crate::read::source::Source;
use crate::read::value::{self, MAX_DNS, Problem, excerpt, interface, text_of};
use crate::shadowsocks::setup::{self, ManagerAddress, NOT_YET, Online, Process};
use crate::shadowsocks::{MAX_TEXT, ProgramFamily, method};

const MAX_SERVERS: usize = 256;
const MAX_LOCALS: usize = 128;
const MAX_USERS: usize = 4096;
const MAX_ARGUMENTS: usize = 64;
const MAX_PLUGINS: usize = 256;

/// Settings of file and flags together.
#[derive(Default)]
pub(super) struct Wanted {
    pub(super) servers: Vec<RustServer>,
    pub(super) locals: Vec<RustLocal>,
    pub(super) mode: Transports,
    pub(super) timeout: Option<Duration>,
    pub(super) udp: Udp,
    pub(super) process: Process,
    pub(super) egress: Egress,
    pub(super) dns: Vec<SocketAddr>,
    pub(super) ipv6_first: bool,
    pub(super) fast_open: bool,
    /// TCP options of incoming connections, and of outgoing ones.
    pub(super) tcp: [TcpOptions; 2],
    pub(super) acl: Option<PathBuf>,
    pub(super) replay: ReplayPolicy,
    pub(super) check: Check,
    pub(super) manager: Option<ManagerAddress>,
    /// `method` without a server, for managers.
    pub(super) method: Option<ShadowsocksMethod>,
    /// `plugin` at the top, for managers.
    pub(super) plugin: Option<Plugin>,
    pub(super) online: Option<Online>,
    pub(super) level: Option<Level>,
    pub(super) without_time: bool,
    pub(super) log_file: Option<LogFile>,
    pub(super) cores: Option<usize>,
    /// `servers` or `locals` are there, if only with disabled entries.
    pub(super) has_file: bool,
}

/// Place where a server or local port was asked for.
#[derive(Clone)]
pub(super) enum ServerOrigin {
    File {
        /// Its first byte in the text.
        at: usize,
        path: String,
        /// The keys of it and where their values begin.
        places: Box<[(Box<str>, usize)]>,
    },
    Flag(&'static str),
}

impl ServerOrigin {
    pub(super) fn error(&self, report: &mut JsonReport<'_>, key: &str, problem: Problem) {
        self.push(report, key, problem, Severity::Error);
    }

    pub(super) fn warning(&self, report: &mut JsonReport<'_>, key: &str, problem: Problem) {
        self.push(report, key, problem, Severity::Warning);
    }

    fn push(&self, report: &mut JsonReport<'_>, key: &str, problem: Problem, severity: Severity) {
        match self {
            Self::File { at, path, places } => {
                let written = |key: &str| places.iter().rfind(|(name, _)| **name == *key);
                let other = match key {
                    "server" => "address",
                    "server_port" => "port",
                    _ => key,
                };
                let (key, at) =
                    written(key).or_else(|| written(other)).map_or((key, at), |(key, at)| (&**key, at));
                let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
                match severity {
                    Severity::Error => report.error(*at, path, problem),
                    Severity::Warning => report.warning(*at, path, problem),
                }
            }
            Self::Flag(flag) => {
                let mut finding = Diagnostic::error(&"command line".into(), *flag, problem.text);
                finding.severity = severity;
                finding.hint = problem.hint;
                report.found.push(finding);
            }
        }
    }
}

/// One server.
pub(super) struct RustServer {
    pub(super) origin: ServerOrigin,
    pub(super) name: Option<Box<str>>,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) key: ShadowsocksKey,
    pub(super) users: Vec<(Box<str>, Secret)>,
    pub(super) plugin: Option<Plugin>,
    /// `None` is the global one for servers, and everything for clients.
    pub(super) mode: Option<Transports>,
    pub(super) timeout: Option<Duration>,
    pub(super) tcp_weight: u8,
    pub(super) udp_weight: u8,
    pub(super) egress: Egress,
    pub(super) acl: Option<PathBuf>,
}

/// One local port.
pub(super) struct RustLocal {
    pub(super) origin: ServerOrigin,
    pub(super) protocol: Protocol,
    pub(super) host: Option<String>,
    pub(super) port: u16,
    pub(super) mode: Option<Transports>,
    pub(super) forward: Option<(String, u16)>,
    pub(super) users: Vec<(Box<str>, Secret)>,
    pub(super) acl: Option<PathBuf>,
    /// Keys of the protocols dns and fake-dns.
    pub(super) names: PortKeys,
    /// Of protocol `tun`.
    pub(super) tun: TunKeys,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Socks,
    Http,
    Tunnel,
    /// Connections that the firewall brings in this way, and datagrams by TPROXY.
    Redir(CapturedBy),
    Dns,
    FakeDns,
    Tun,
}

pub(super) fn protocol(text: &str) -> Result<Protocol, Problem> {
    Ok(match text {
        "socks" => Protocol::Socks,
        "http" => Protocol::Http,
        "tunnel" => Protocol::Tunnel,
        "redir" => Protocol::Redir(CapturedBy::Redirect),
        "dns" => Protocol::Dns,
        "tun" => Protocol::Tun,
        "fake-dns" => Protocol::FakeDns,
        _ => {
            let problem = Problem::new(format!("unknown protocol: {}", excerpt(text)));
            return Err(problem.hint("write socks, http, tunnel, redir, tun, dns or fake-dns"));
        }
    })
}

/// Reads a file.
pub(super) fn read(
    source: &Source<'_>,
    report: &mut JsonReport<'_>,
    outside: RustSurroundings<'_>,
) -> Wanted {
    let mut wanted = Wanted::default();
    let root = match json::parse(source, Grammar::Json5) {
        Ok(root) => root,
        Err(error) => {
            report.found.push(error);
            return wanted;
        }
    };
    wanted.has_file = true;
    if let Some(fields) = JsonFields::new(report, &root, String::new()) {
        Reader { report, outside }.root(fields, &mut wanted);
    }
    wanted
}

struct Reader<'r, 's, 'o> {
    report: &'r mut JsonReport<'s>,
    outside: RustSurroundings<'o>,
}

impl Reader<'_, '_, '_> {
    fn root(&mut self, mut fields: JsonFields<'_>, wanted: &mut Wanted) {
        wanted.mode = self.mode(&mut fields, "mode").unwrap_or_default();
        wanted.timeout = self.seconds(&mut fields, "timeout");
        self.globals(&mut fields, wanted);
        self.blocks(&mut fields, wanted);
        let first = self.one_server(&mut fields, wanted);
        wanted.servers.extend(first);
        if let Some(field) = fields.take_either(self.report, "servers", "shadowsocks") {
            for entry in field.list(self.report, MAX_SERVERS) {
                let server = self.server(&entry);
                wanted.servers.extend(server);
            }
        }
        let first = self.one_local(&mut fields);
        wanted.locals.extend(first);
        if let Some(field) = fields.take(self.report, "locals") {
            for entry in field.list(self.report, MAX_LOCALS) {
                let local = self.local(&entry);
                wanted.locals.extend(local);
            }
        }
        self.end(fields);
    }

    fn globals(&mut self, fields: &mut JsonFields<'_>, wanted: &mut Wanted) {
        const MOST: u64 = u32::MAX as u64;
        let report = &mut *self.report;
        let small = |number: u64| usize::try_from(number).ok();
        if let Some(flows) = fields.number(report, "udp_max_associations", 1..=MOST).and_then(small) {
            wanted.udp.flows = flows;
        }
        let mtu = fields.number(report, "udp_mtu", 576..=65_535);
        wanted.udp.mtu = mtu.and_then(|mtu| mtu.try_into().ok());
        wanted.udp.fragment = fields.flag(report, "outbound_udp_allow_fragmentation").unwrap_or(false);
        wanted.process.open_files = fields.number(report, "nofile", 1..=MOST);
        wanted.ipv6_first = fields.flag(report, "ipv6_first").unwrap_or(false);
        wanted.fast_open = fields.flag(report, "fast_open").unwrap_or(false);
        fields.flag(report, "no_delay");
        fields.number(report, "version", 0..=MOST);
        let multipath = fields.flag(report, "mptcp").unwrap_or(false);
        let keep_alive = fields.number(report, "keep_alive", KEEP_ALIVE_S);
        for tcp in &mut wanted.tcp {
            tcp.multipath = multipath;
            tcp.keep_alive = keep_alive.map_or(tcp.keep_alive, Duration::from_secs);
        }
        if let Some(field) = fields.take(report, "ipv6_only")
            && field.flag(report) == Some(true)
        {
            field.warning(report, Problem::new(NOT_YET));
        }
        if let Some(field) = fields.take(report, "dns_cache_size") {
            field.warning(report, Problem::new(NOT_YET));
        }
        wanted.egress = egress(report, fields);
        self.refuse(fields, "outbound_proxy", "not in this build, so connections would go out without it");
        let report = &mut *self.report;
        wanted.acl = acl(report, fields);
        if let Some(field) = fields.take(report, "dns") {
            wanted.dns = dns(report, &field);
        }
        if let Some(idle) = self.seconds(fields, "udp_timeout") {
            wanted.udp.idle = idle.max(Udp::MIN_IDLE);
        }
        self.manager(fields, wanted);
    }

    fn manager(&mut self, fields: &mut JsonFields<'_>, wanted: &mut Wanted) {
        let port_field = fields.take(self.report, "manager_port");
        let port = port_field.as_ref().and_then(|field| self.port(field));
        let Some(field) = fields.take(self.report, "manager_address") else {
            if let Some(field) = port_field {
                field.warning(self.report, Problem::new("has no effect without manager_address"));
            }
            return;
        };
        wanted.manager = field.parsed(self.report, |text| match port {
            Some(port) => value::target(&joined(text, port)).map(ManagerAddress::Udp),
            None => text_of(text, MAX_TEXT).map(|path| ManagerAddress::Unix(PathBuf::from(&*path))),
        });
    }

    fn blocks(&mut self, fields: &mut JsonFields<'_>, wanted: &mut Wanted) {
        if let Some(mut block) = self.block(fields, "balancer") {
            self.balancer(&mut block, wanted);
            self.end(block);
        }
        if let Some(mut block) = self.block(fields, "security") {
            if let Some(mut inner) = self.block(&mut block, "replay_attack") {
                if let Some(field) = inner.take(self.report, "policy") {
                    wanted.replay = field.parsed(self.report, replay).unwrap_or_default();
                }
                self.end(inner);
            }
            self.end(block);
        }
        if let Some(mut block) = self.block(fields, "online_config") {
            wanted.online = self.online(&mut block);
            self.end(block);
        }
        if let Some(mut block) = self.block(fields, "log") {
            self.log(&mut block, wanted);
            self.end(block);
        }
        if let Some(mut block) = self.block(fields, "runtime") {
            let workers = block.number(self.report, "worker_count", 1..=1024);
            wanted.cores = workers.and_then(|workers| usize::try_from(workers).ok());
            let mode = block.take(self.report, "mode").and_then(|field| {
                field.parsed(self.report, |text| match text {
                    "single_thread" => Ok(true),
                    "multi_thread" => Ok(false),
                    _ => Err(Problem::new("neither single_thread nor multi_thread")),
                })
            });
            if mode == Some(true) {
                wanted.cores = Some(1);
            }
            self.end(block);
        }
    }

    fn balancer(&mut self, block: &mut JsonFields<'_>, wanted: &mut Wanted) {
        const YEAR_S: u64 = 365 * 86_400;
        let mut span = |key| block.number(self.report, key, 1..=YEAR_S).map(Duration::from_secs);
        let default = Check::default();
        let interval = span("check_interval").unwrap_or(default.interval);
        let in_use = span("check_best_interval").unwrap_or(interval);
        let timeout = span("max_server_rtt").unwrap_or(default.timeout);
        if in_use > interval {
            self.report.error(
                block.at,
                block.path("check_best_interval"),
                Problem::new("longer than check_interval"),
            );
        }
        wanted.check = Check { interval, interval_in_use: in_use, timeout, ..default };
    }

    fn online(&mut self, block: &mut JsonFields<'_>) -> Option<Online> {
        const HOUR_S: u64 = 3600;
        let interval = block.number(self.report, "update_interval", 1..=365 * 24 * HOUR_S).unwrap_or(HOUR_S);
        let plugins = block.take(self.report, "allowed_plugins").map(|field| {
            let entries = field.list(self.report, MAX_PLUGINS);
            entries.iter().filter_map(|entry| entry.text(self.report)).map(Into::into).collect()
        });
        let Some(url) = block.take(self.report, "config_url") else {
            self.report.error(block.at, block.path("config_url"), Problem::new("missing"));
            return None;
        };
        let url = url.parsed(self.report, online_url)?;
        Some(Online::new(url, Duration::from_secs(interval), plugins))
    }

    /// `server`, `server_port`, `method` and `password` at the top: all, or none.
    fn one_server(&mut self, fields: &mut JsonFields<'_>, wanted: &mut Wanted) -> Option<RustServer> {
        let origin = ServerOrigin::File { at: fields.at, path: String::new(), places: fields.places() };
        let plugin = self.plugin(fields);
        wanted.plugin = plugin.clone();
        let host = fields.take(self.report, "server");
        let port_field = fields.take(self.report, "server_port");
        let port = port_field.as_ref().and_then(|field| self.port(field));
        let method_field = fields.take(self.report, "method");
        let method = method_field.as_ref().and_then(|field| self.method(field));
        let password = fields.take(self.report, "password");
        let Some(host) = host else {
            if port_field.is_some() || password.is_some() {
                let problem = "server, server_port, method and password stand together, or none of them";
                origin.error(self.report, "server", Problem::new(problem));
            }
            wanted.method = method;
            return None;
        };
        if matches!(host.value.node, Node::Array(_)) {
            let problem = Problem::new("expected a text in quotes, found a list");
            let file = &self.report.source.file;
            let hint = format!("a list is shadowsocks-libev's: adit ss-server -c {file}, or ss-local");
            host.error(self.report, problem.hint(hint));
            return None;
        }
        let host = host.text(self.report)?.to_owned();
        for (key, missing) in [("server_port", port_field.is_none()), ("method", method_field.is_none())] {
            if missing {
                origin.error(self.report, key, Problem::new("missing"));
            }
        }
        let key = self.key(&origin, method, password.as_ref());
        Some(RustServer {
            origin,
            name: None,
            host,
            port: port?,
            key: key?,
            users: Vec::new(),
            plugin,
            mode: Some(wanted.mode),
            timeout: None,
            tcp_weight: 100,
            udp_weight: 100,
            egress: Egress::default(),
            acl: None,
        })
    }

    fn server(&mut self, entry: &JsonField<'_>) -> Option<RustServer> {
        let mut fields = entry.object(self.report)?;
        let disabled = fields.flag(self.report, "disabled").unwrap_or(false);
        let origin =
            ServerOrigin::File { at: entry.value.at, path: entry.path.clone(), places: fields.places() };
        let host = fields.take_either(self.report, "server", "address");
        let port = fields.take_either(self.report, "server_port", "port");
        let method = fields.take(self.report, "method");
        for (key, field) in [("server", &host), ("server_port", &port), ("method", &method)] {
            if field.is_none() {
                origin.error(self.report, key, Problem::new("missing"));
            }
        }
        let host = host.and_then(|field| field.text(self.report));
        let port = port.and_then(|field| self.port(&field));
        let method = method.and_then(|field| self.method(&field));
        let password = fields.take(self.report, "password");
        let users =
            fields.take(self.report, "users").map(|field| self.users(&field, "name")).unwrap_or_default();
        let plugin = self.plugin(&mut fields);
        let name =
            fields.take_either(self.report, "remarks", "name").and_then(|field| field.text(self.report));
        fields.text(self.report, "id");
        let mode = self.mode(&mut fields, "mode");
        let timeout = self.seconds(&mut fields, "timeout");
        let (tcp_weight, udp_weight) =
            (self.weight(&mut fields, "tcp_weight"), self.weight(&mut fields, "udp_weight"));
        let egress = egress(self.report, &mut fields);
        let fragment = fields.take(self.report, "outbound_udp_allow_fragmentation");
        if let Some(field) = fragment.filter(|field| !field.is_false()) {
            field.warning(self.report, Problem::new(NOT_YET));
        }
        self.refuse(
            &mut fields,
            "outbound_proxy",
            "not in this build, so connections would go out without it",
        );
        let acl = acl(self.report, &mut fields);
        self.end(fields);
        if disabled {
            return None;
        }
        let key = self.key(&origin, method, password.as_ref());
        Some(RustServer {
            origin,
            name: name.map(Into::into),
            host: host?.to_owned(),
            port: port?,
            key: key?,
            users,
            plugin,
            mode,
            timeout,
            tcp_weight,
            udp_weight,
            egress,
            acl,
        })
    }

    fn one_local(&mut self, fields: &mut JsonFields<'_>) -> Option<RustLocal> {
        let origin = ServerOrigin::File { at: fields.at, path: String::new(), places: fields.places() };
        let protocol_field = fields.take(self.report, "protocol");
        let protocol = protocol_field.as_ref().and_then(|field| field.parsed(self.report, protocol));
        let host = fields.text(self.report, "local_address").map(str::to_owned);
        let port = match fields.take(self.report, "local_port") {
            Some(field) => self.port(&field)?,
            // Only clients need it, and they take 0 for missing.
            None if host.is_some() => 0,
            None => {
                if let Some(field) = protocol_field {
                    field.warning(self.report, Problem::new("has no effect without local_port"));
                }
                return None;
            }
        };
        let protocol = protocol.unwrap_or(Protocol::Socks);
        let (users, names, tun) = (Vec::new(), PortKeys::default(), TunKeys::default());
        Some(RustLocal {
            origin,
            protocol,
            host,
            port,
            mode: None,
            forward: None,
            users,
            acl: None,
            names,
            tun,
        })
    }

    fn local(&mut self, entry: &JsonField<'_>) -> Option<RustLocal> {
        let mut fields = entry.object(self.report)?;
        let disabled = fields.flag(self.report, "disabled").unwrap_or(false);
        let origin =
            ServerOrigin::File { at: entry.value.at, path: entry.path.clone(), places: fields.places() };
        let protocol =
            fields.take(self.report, "protocol").and_then(|field| field.parsed(self.report, protocol));
        let protocol = protocol.unwrap_or(Protocol::Socks);
        let host = fields.text(self.report, "local_address").map(str::to_owned);
        let port_field = fields.take(self.report, "local_port");
        let port = port_field.as_ref().and_then(|field| self.port(field));
        let mode = self.mode(&mut fields, "mode");
        let forward_host = fields.text(self.report, "forward_address").map(str::to_owned);
        let forward_field = fields.take(self.report, "forward_port");
        let forward_port = forward_field.as_ref().and_then(|field| self.port(field));
        for key in ["local_udp_address", "local_udp_port"] {
            if let Some(field) = fields.take(self.report, key) {
                field.warning(self.report, Problem::new(NOT_YET));
            }
        }
        let redir = fields.take(self.report, "tcp_redir");
        let redir = redir.and_then(|field| field.parsed(self.report, redir_type));
        // Datagrams come by TPROXY: Linux has no other way for them.
        if let Some(field) = fields.take(self.report, "udp_redir") {
            field.parsed(self.report, redir_type);
        }
        let protocol = match (protocol, redir) {
            (Protocol::Redir(_), Some(by)) => Protocol::Redir(by),
            (protocol, _) => protocol,
        };
        let names = super::names::read(&mut fields, protocol, self.report);
        let tun = TunKeys::take(&mut fields, self.report);
        let mut users = Vec::new();
        for key in ["socks5_auth_config_path", "http_auth_config_path"] {
            let field = fields.take(self.report, key).filter(|_| !disabled);
            users.extend(field.map(|field| self.auth(&field)).unwrap_or_default());
        }
        let acl = acl(self.report, &mut fields);
        if !disabled {
            self.of_other_protocols(&mut fields, protocol);
        }
        self.end(fields);
        if disabled {
            return None;
        }
        if let Protocol::Tun = protocol {
            return Some(RustLocal {
                origin,
                protocol,
                host,
                port: port.unwrap_or(1),
                mode,
                forward: None,
                users,
                acl,
                names,
                tun,
            });
        }
        if port_field.is_none() {
            origin.error(self.report, "local_port", Problem::new("missing"));
        }
        if forward_host.is_some() && forward_field.is_none() {
            origin.error(self.report, "forward_port", Problem::new("missing"));
        }
        Some(RustLocal {
            origin,
            protocol,
            host,
            port: port?,
            mode,
            forward: forward_host.zip(forward_port),
            users,
            acl,
            names,
            tun,
        })
    }

    /// Keys of a local port that its protocol does not look at.
    fn of_other_protocols(&mut self, fields: &mut JsonFields<'_>, protocol: Protocol) {
        const TUNNEL: &[&str] = &["forward_address", "forward_port"];
        const REDIR: &[&str] = &["tcp_redir", "udp_redir"];
        let is = |wanted: Protocol| protocol == wanted;
        for (keys, is_used, name) in [
            (TUNNEL, is(Protocol::Tunnel), "tunnel"),
            (REDIR, matches!(protocol, Protocol::Redir(_)), "redir"),
            (super::names::DNS, is(Protocol::Dns), "dns"),
            (super::names::FAKE_DNS, is(Protocol::FakeDns), "fake-dns"),
            (super::tun::KEYS, is(Protocol::Tun), "tun"),
        ] {
            for key in keys.iter().filter(|_| !is_used) {
                let field = fields.written(key).filter(|field| field.value.node != Node::Null);
                if let Some(field) = field {
                    let problem = format!("a key of protocol {name}, so it has no effect");
                    field.warning(self.report, Problem::new(problem));
                }
            }
        }
    }

    fn method(&mut self, field: &JsonField<'_>) -> Option<ShadowsocksMethod> {
        // The programs take an empty name for `table`.
        field.parsed(self.report, |text| method(if text.is_empty() { "table" } else { text }))
    }

    fn key(
        &mut self,
        origin: &ServerOrigin,
        method: Option<ShadowsocksMethod>,
        field: Option<&JsonField<'_>>,
    ) -> Option<ShadowsocksKey> {
        let method = method?;
        let Some(field) = field else {
            if method == ShadowsocksMethod::None {
                return setup::password(ProgramFamily::Rust, method, &Secret::new("")).ok();
            }
            origin.error(self.report, "password", Problem::new("missing"));
            return None;
        };
        let text = field.text(self.report)?;
        let password = variable(text, self.outside);
        field.checked(self.report, setup::password(ProgramFamily::Rust, method, &password))
    }

    fn plugin(&mut self, fields: &mut JsonFields<'_>) -> Option<Plugin> {
        let text = |text: &str| if text.is_empty() { Ok("".into()) } else { text_of(text, MAX_TEXT) };
        let program = fields.take(self.report, "plugin").and_then(|field| field.parsed(self.report, text));
        let options =
            fields.take(self.report, "plugin_opts").and_then(|field| field.parsed(self.report, text));
        let args = fields.take(self.report, "plugin_args").map(|field| {
            let entries = field.list(self.report, MAX_ARGUMENTS);
            entries.iter().filter_map(|e| e.parsed(self.report, |text| text_of(text, MAX_TEXT))).collect()
        });
        let transports = self.mode(fields, "plugin_mode").unwrap_or_default();
        let program: Box<str> = program?;
        if program.is_empty() {
            return None;
        }
        Some(Plugin {
            program,
            options: options.unwrap_or_default(),
            args: args.unwrap_or_default(),
            transports,
        })
    }

    fn users(&mut self, field: &JsonField<'_>, name_key: &'static str) -> Vec<(Box<str>, Secret)> {
        let mut users: Vec<(Box<str>, Secret)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for entry in field.list(self.report, MAX_USERS) {
            let Some(mut fields) = entry.object(self.report) else { continue };
            let name = fields
                .take(self.report, name_key)
                .and_then(|f| f.parsed(self.report, |t| text_of(t, value::MAX_CREDENTIAL)));
            let password = fields
                .take(self.report, "password")
                .and_then(|f| f.parsed(self.report, |t| value::secret(t, value::MAX_CREDENTIAL)));
            self.end(fields);
            match name.zip(password) {
                Some((name, _)) if !seen.insert(name.clone()) => {
                    entry.error(self.report, Problem::new("the name is taken"));
                }
                Some(user) => users.push(user),
                None => entry.error(self.report, Problem::new("name or password is missing or wrong")),
            }
        }
        users
    }

    /// The users that another file lists. A port must not be open to all because its file cannot be read.
    fn auth(&mut self, field: &JsonField<'_>) -> Vec<(Box<str>, Secret)> {
        let Some(path) = field.text(self.report) else { return Vec::new() };
        let read = (self.outside.file)(Path::new(path)).map_err(Diagnostics::from);
        match read.and_then(|text| auth_file(path, &text)) {
            Ok(users) => users,
            Err(found) => {
                for finding in &found {
                    let mut finding = finding.clone();
                    // Its place is in the other file.
                    (finding.line, finding.column) = (0, 0);
                    self.report.found.push(finding);
                }
                if !found.has_errors() {
                    field.error(self.report, Problem::new("lists no users"));
                }
                Vec::new()
            }
        }
    }

    fn mode(&mut self, fields: &mut JsonFields<'_>, key: &'static str) -> Option<Transports> {
        fields.take(self.report, key)?.parsed(self.report, setup::transports)
    }

    fn port(&mut self, field: &JsonField<'_>) -> Option<u16> {
        u16::try_from(field.number(self.report, 1..=u16::MAX.into())?).ok()
    }

    fn seconds(&mut self, fields: &mut JsonFields<'_>, key: &'static str) -> Option<Duration> {
        let field = fields.take(self.report, key)?;
        let seconds = field.number(self.report, 0..=u64::from(u32::MAX))?;
        if seconds == 0 {
            field.warning(self.report, Problem::new("0 counts as not written"));
        }
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// A number from 0 to 1, in percent.
    fn weight(&mut self, fields: &mut JsonFields<'_>, key: &'static str) -> u8 {
        const FULL: u8 = 100;
        let Some(field) = fields.take(self.report, key) else { return FULL };
        let weight = match &field.value.node {
            Node::Number(number) => number.parse::<f64>().ok().filter(|weight| (0.0..=1.0).contains(weight)),
            Node::Null | Node::Bool(_) | Node::Text(_) | Node::Array(_) | Node::Object(_) => None,
        };
        let Some(weight) = weight else {
            field.error(self.report, Problem::new("no number from 0 to 1"));
            return FULL;
        };
        // A weight above 0 must not become 0, which means never.
        let percent = (1..=FULL).find(|percent| f64::from(*percent) / f64::from(FULL) >= weight - 0.005);
        if weight == 0.0 { 0 } else { percent.unwrap_or(FULL) }
    }

    fn block<'f>(&mut self, fields: &mut JsonFields<'f>, key: &'static str) -> Option<JsonFields<'f>> {
        fields.take(self.report, key)?.object(self.report)
    }

    fn refuse(&mut self, fields: &mut JsonFields<'_>, key: &'static str, problem: &str) {
        if let Some(field) = fields.take(self.report, key) {
            field.error(self.report, Problem::new(problem));
        }
    }

    fn end(&mut self, fields: JsonFields<'_>) {
        fields.finish(self.report, Severity::Error);
    }
}

/// The types of redirection that Linux has.
pub(super) fn redir_type(text: &str) -> Result<CapturedBy, Problem> {
    match text {
        "redirect" => Ok(CapturedBy::Redirect),
        "tproxy" => Ok(CapturedBy::Tproxy),
        _ => Err(Problem::new(format!("no type of redirection that Linux has: {}", excerpt(text)))
            .hint("write redirect or tproxy")),
    }
}

/// `{"password": {"users": [..]}}` of SOCKS5, `{"basic": {"users": [..]}}` of HTTP.
pub(super) fn auth_file(file: &str, text: &str) -> Result<Vec<(Box<str>, Secret)>, Diagnostics> {
    let source = Source::new(file, text);
    source.check_len()?;
    let root = json::parse(&source, Grammar::Json5)?;
    let mut report = JsonReport::new(&source);
    let outside =
        RustSurroundings { variable: &|_| None, file: &|_| Err(Diagnostic::error(&"".into(), "", "")) };
    let mut users = Vec::new();
    if let Some(mut fields) = JsonFields::new(&mut report, &root, String::new()) {
        for key in ["password", "basic"] {
            let block = fields.take(&mut report, key).and_then(|field| field.object(&mut report));
            let Some(mut block) = block else { continue };
            if let Some(list) = block.take(&mut report, "users") {
                users.extend(Reader { report: &mut report, outside }.users(&list, "user_name"));
            }
            block.finish(&mut report, Severity::Error);
        }
        fields.finish(&mut report, Severity::Error);
    }
    if report.found.has_errors() || users.is_empty() { Err(report.found) } else { Ok(users) }
}

/// A password, or that of the environment for `${NAME}`.
pub(super) fn variable(text: &str, outside: RustSurroundings<'_>) -> Secret {
    let name = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    let value: Option<Zeroizing<String>> = name.and_then(|name| (outside.variable)(name));
    value.map_or_else(|| Secret::new(text), |value| Secret::new(value.as_str()))
}

pub(super) fn level(verbosity: u64) -> Level {
    match verbosity {
        0 => Level::Info,
        1 => Level::Debug,
        _ => Level::Trace,
    }
}

pub(super) fn online_url(text: &str) -> Result<Secret, Problem> {
    if !["https://", "http://", "file:///", "/"].iter().any(|begin| text.starts_with(begin)) {
        return Err(Problem::new("must be an address (http:// or https://) or the path of a file"));
    }
    value::secret(text, MAX_TEXT)
}

fn replay(text: &str) -> Result<ReplayPolicy, Problem> {
    match text {
        "default" | "reject" => Ok(ReplayPolicy::Refuse),
        "ignore" => Ok(ReplayPolicy::Ignore),
        "detect" => Ok(ReplayPolicy::Report),
        _ => Err(Problem::new(format!("unknown policy: {}", excerpt(text)))
            .hint("write default, ignore, detect or reject")),
    }
}

/// Host and port, with brackets around an IPv6 address.
pub(super) fn joined(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

fn dns(report: &mut JsonReport<'_>, field: &JsonField<'_>) -> Vec<SocketAddr> {
    if let Node::Object(_) = field.value.node {
        field.warning(report, Problem::new("not in this build yet, so the system's name servers are asked"));
        return Vec::new();
    }
    let Some(text) = field.text(report) else { return Vec::new() };
    match name_servers(text) {
        Ok(Some(servers)) => servers,
        Ok(None) => {
            field.warning(
                report,
                Problem::new("not in this build yet, so the system's name servers are asked"),
            );
            Vec::new()
        }
        Err(problem) => {
            field.error(report, problem);
            Vec::new()
        }
    }
}

/// The file of an access control list.
fn acl(report: &mut JsonReport<'_>, fields: &mut JsonFields<'_>) -> Option<PathBuf> {
    let path =
        fields.take(report, "acl").and_then(|field| field.parsed(report, |text| text_of(text, MAX_TEXT)));
    path.map(|path| PathBuf::from(&*path))
}

/// `outbound_bind_interface`, `outbound_bind_addr` and `outbound_fwmark`.
fn egress(report: &mut JsonReport<'_>, fields: &mut JsonFields<'_>) -> Egress {
    let mut egress = Egress {
        interface: fields
            .take(report, "outbound_bind_interface")
            .and_then(|field| field.parsed(report, interface)),
        mark: fields.number(report, "outbound_fwmark", 0..=u64::from(u32::MAX)).and_then(mark),
        ..Egress::default()
    };
    if let Some(field) = fields.take(report, "outbound_bind_addr")
        && let Some(source) = field.parsed(report, value::bind_address)
    {
        egress.set_source(source);
    }
    egress
}

/// Seconds that the system accepts as [`TcpOptions::keep_alive`].
pub(super) const KEEP_ALIVE_S: RangeInclusive<u64> =
    TcpOptions::MIN_KEEP_ALIVE.as_secs()..=TcpOptions::MAX_KEEP_ALIVE.as_secs();

/// 0 is none.
pub(super) fn mark(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|mark| *mark != 0)
}

/// `None` for what is not in this build: name servers that are asked over TLS, HTTPS, QUIC or a socket.
pub(super) fn name_servers(text: &str) -> Result<Option<Vec<SocketAddr>>, Problem> {
    let text = match text {
        "system" => return Ok(Some(Vec::new())),
        "google" => "8.8.8.8,8.8.4.4",
        "cloudflare" => "1.1.1.1,1.0.0.1",
        "quad9" => "9.9.9.9,149.112.112.112",
        text if text.starts_with("unix:") || text.ends_with("_tls") || text.contains("_h") => {
            return Ok(None);
        }
        text => text,
    };
    let bare = text.strip_prefix("udp://").or_else(|| text.strip_prefix("tcp://")).unwrap_or(text);
    let servers: Result<Vec<_>, _> = bare.split(',').take(MAX_DNS).map(value::name_server).collect();
    servers.map(Some)
}
