//! From flags and file to the model: what all programs have in common, and the clients.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::map::Map;
use adit_model::{
    AddressFamilies, Captured, CapturedBy, Check, Config, Dial, Egress, Inbound, InboundProtocol, Level,
    Limits, LocalProtocols, Log, OutboundProtocol, Plugin, SocketOptions, TcpOptions, Transports, Udp,
};
use adit_proto::wire::Target;

use super::file::{MAX_SERVERS, SsrFile, SsrSetting, SsrSettings};
use super::names::{self, OptionSources, missing, over};
use super::ssr_flags::{Daemon, PID_FILE, SsrFlags};
use super::{SsrProgram, server};
use crate::read::value::{self, Problem, text_of};
use crate::shadowsocks::MAX_TEXT;
use crate::shadowsocks::option_value::OptionValue;
use crate::shadowsocks::setup::{self, Control, Process, ShadowsocksSetup, WeightedServer};

/// Longest name of a user of the system, in bytes.
const MAX_USER: usize = 256;
/// Timeout of clients.
const CLIENT_TIMEOUT_S: u64 = 60;
/// Timeout of the server.
const SERVER_TIMEOUT_S: u64 = 300;
/// Idle time of datagrams of the server.
const UDP_TIMEOUT_S: u64 = 120;
/// Longest time to connect.
const TEN_S: u64 = 10;
/// Streams are never ended sooner.
const DAY_S: u64 = 86_400;

pub(super) fn translate(
    program: SsrProgram,
    flags: &SsrFlags,
    values: SsrFile,
    database: Option<(&Path, &str)>,
    found: Diagnostics,
) -> Result<ShadowsocksSetup, Diagnostics> {
    let file = values.values.first().map(|(_, given)| given.file());
    let mut merged = SsrOptions { program, flags, values, file, found };
    let timeout = merged.timeout(
        SsrSetting::Timeout,
        if program == SsrProgram::Server { SERVER_TIMEOUT_S } else { CLIENT_TIMEOUT_S },
    );
    let udp_timeout = match program {
        SsrProgram::Server => merged.timeout(SsrSetting::UdpTimeout, UDP_TIMEOUT_S),
        SsrProgram::Local | SsrProgram::Tunnel | SsrProgram::Redir => timeout,
    };
    let mut setup = ShadowsocksSetup {
        config: Config::default(),
        process: merged.process(),
        acl: merged.parsed(SsrSetting::Acl, |text| text_of(text, MAX_TEXT)).map(|path| PathBuf::from(&*path)),
        acl_of: Map::new(),
        control: Control::None,
        online: Vec::new(),
        diagnostics: Diagnostics::new(),
    };
    let mtu = merged.parsed(SsrSetting::Mtu, setup::mtu).flatten();
    setup.config.udp =
        Udp { idle: Duration::from_secs(udp_timeout).max(Udp::MIN_IDLE), mtu, ..Udp::default() };
    setup.config.log = Log { level: merged.level(), ..Log::default() };
    setup.config.limits = Limits { idle: Some(Duration::from_secs(timeout.max(DAY_S))), ..Limits::default() };
    match program {
        SsrProgram::Server => server::server(&mut merged, timeout, database, &mut setup),
        SsrProgram::Local | SsrProgram::Tunnel | SsrProgram::Redir => merged.client(timeout, &mut setup),
    }
    let mut found = merged.found;
    found.sort();
    if found.has_errors() {
        return Err(found);
    }
    setup.diagnostics = found;
    Ok(setup)
}

pub(crate) struct SsrOptions<'a> {
    pub(super) program: SsrProgram,
    pub(super) flags: &'a SsrFlags,
    pub(crate) values: SsrFile,
    /// Name of the file, if there is one that says something.
    pub(crate) file: Option<Arc<str>>,
    pub(crate) found: Diagnostics,
}

impl SsrOptions<'_> {
    pub(crate) fn layers(&self) -> OptionSources<'_> {
        OptionSources(vec![&self.flags.values, &self.values.values])
    }

    pub(crate) fn get(&self, key: SsrSetting) -> Option<OptionValue> {
        self.layers().get(key)
    }

    fn parsed<T>(&mut self, key: SsrSetting, parse: impl FnOnce(&str) -> Result<T, Problem>) -> Option<T> {
        self.get(key)?.parsed(&mut self.found, parse)
    }

    fn text(&mut self, key: SsrSetting) -> Option<Box<str>> {
        let given = self.get(key).filter(|given| !given.text().is_empty())?;
        given.parsed(&mut self.found, |text| text_of(text, MAX_TEXT))
    }

    pub(super) fn missing(&mut self, flag: &str, key: &str) {
        self.found.push(missing(self.file.clone(), flag, key));
    }

    fn timeout(&mut self, key: SsrSetting, default: u64) -> u64 {
        let Some(given) = self.get(key) else { return default };
        let seconds = given.text().trim().parse::<u64>().ok().filter(|seconds| *seconds > 0);
        if seconds.is_none() {
            let problem = Problem::new(format!("no whole number of seconds, so {default} is used"));
            given.warning(&mut self.found, problem);
        }
        seconds.unwrap_or(default).min(u64::from(u32::MAX))
    }

    fn level(&self) -> Level {
        match self.flags.verbosity {
            ..=-2 => Level::Error,
            -1 => Level::Warn,
            0 => Level::Info,
            1 => Level::Debug,
            2.. => Level::Trace,
        }
    }

    fn process(&mut self) -> Process {
        let daemonize =
            self.flags.is_background || matches!(self.flags.daemon, Some(Daemon::Start | Daemon::Restart));
        let pid_file = self.flags.pid_file.clone();
        let by_default = || self.flags.daemon.is_some().then(|| PathBuf::from(PID_FILE));
        Process {
            daemonize,
            pid_file: pid_file.or_else(by_default),
            user: self
                .get(SsrSetting::User)
                .and_then(|given| given.parsed(&mut self.found, |text| text_of(text, MAX_USER))),
            open_files: self
                .parsed(SsrSetting::OpenFiles, |text| {
                    text.parse().map_err(|_| Problem::new("no whole number"))
                })
                .filter(|files| *files > 0),
            syslog: false,
        }
    }

    pub(super) fn transports(&mut self, default: Transports) -> Transports {
        let Some(given) = self.get(SsrSetting::Mode) else { return default };
        setup::transports(given.text()).unwrap_or_else(|mut problem| {
            problem.text.push_str(", so it has no effect");
            given.warning(&mut self.found, problem);
            default
        })
    }

    pub(super) fn plugin(&mut self) -> Option<Plugin> {
        let options = self.text(SsrSetting::PluginOptions).unwrap_or_default();
        let program = self.text(SsrSetting::Plugin)?;
        Some(Plugin { program, options, args: Vec::new(), transports: Transports::Tcp })
    }

    pub(super) fn dial(&mut self, timeout: u64) -> Dial {
        let dns = if self.program == SsrProgram::Server { None } else { self.get(SsrSetting::NameServer) };
        let dns = dns.and_then(|given| given.parsed(&mut self.found, setup::name_servers));
        let interface = self.flags.interface.clone();
        let interface = interface.and_then(|given| given.parsed(&mut self.found, value::interface));
        let is_v6_first =
            self.layers().is_on(SsrSetting::Ipv6First) || self.layers().is_on(SsrSetting::DnsIpv6);
        Dial {
            family: if is_v6_first { AddressFamilies::Any } else { AddressFamilies::PreferV4 },
            egress: Egress { interface, ..Egress::default() },
            dns: dns.unwrap_or_default().into_iter().map(Into::into).collect(),
            fast_open: self.program != SsrProgram::Server && self.layers().is_on(SsrSetting::FastOpen),
            tcp: TcpOptions {
                multipath: self.program != SsrProgram::Server && self.layers().is_on(SsrSetting::Mptcp),
                ..TcpOptions::default()
            },
            timeout: Duration::from_secs(timeout.min(TEN_S)),
            ..Dial::default()
        }
    }

    pub(crate) fn port(&mut self, key: SsrSetting, flag: &str, name: &str) -> Option<u16> {
        let Some(given) = self.get(key) else {
            self.missing(flag, name);
            return None;
        };
        given.parsed(&mut self.found, setup::port)
    }

    fn client(&mut self, timeout: u64, setup: &mut ShadowsocksSetup) {
        let listen = self.local();
        let target = (self.program == SsrProgram::Tunnel).then(|| self.target());
        let transports = self.transports(Transports::Tcp);
        let choices = self.choices(timeout, transports);
        setup.config.outbounds = setup::outbounds(choices, Check::default());
        let protocol = match target {
            Some(Some(target)) => InboundProtocol::Tunnel { target, transports },
            Some(None) => return,
            None if self.program == SsrProgram::Redir => {
                InboundProtocol::Captured(Captured { by: CapturedBy::Redirect, transports })
            }
            None => setup::local(LocalProtocols::Mixed),
        };
        // There is one unless there is an error.
        let (Some(listen), Some(first)) = (listen, setup.config.outbounds.first()) else { return };
        setup.config.inbounds.push(Inbound {
            name: match self.program {
                SsrProgram::Tunnel => "tunnel",
                SsrProgram::Redir => "redir",
                SsrProgram::Local | SsrProgram::Server => "local",
            }
            .into(),
            listen: vec![listen],
            socket: SocketOptions::default(),
            outbound: first.name.clone(),
            allow_private: true,
            protocol,
        });
    }

    fn local(&mut self) -> Option<SocketAddr> {
        let host = self.get(SsrSetting::LocalAddress);
        let ip = setup::local_host(host.as_ref(), &mut self.found);
        let listen = SocketAddr::new(ip?, self.port(SsrSetting::LocalPort, "-l", "local_port")?);
        if self.program != SsrProgram::Redir {
            setup::warn_of_host(host.as_ref(), listen, &mut self.found);
        }
        Some(listen)
    }

    fn target(&mut self) -> Option<Target> {
        if self.get(SsrSetting::Target).is_none() {
            self.missing("-L", "tunnel_address");
        }
        self.parsed(SsrSetting::Target, value::target)
    }

    /// The servers: every `-s`, or those of the file in either form.
    fn choices(&mut self, timeout: u64, transports: Transports) -> Vec<WeightedServer> {
        let plugin = self.plugin();
        let dial = self.dial(timeout);
        let has_flags = self.flags.values.iter().any(|(key, _)| *key == SsrSetting::Server);
        let sections = std::mem::take(&mut self.values.servers);
        let entries: Vec<Entry> = if has_flags || sections.is_empty() {
            let servers = self.layers().all(SsrSetting::Server);
            if servers.is_empty() {
                self.missing("-s", "server");
            }
            if let Some(given) = servers.get(MAX_SERVERS) {
                given.error(&mut self.found, Problem::new(format!("more than {MAX_SERVERS} servers")));
            }
            let one = |server| Entry { server, section: SsrSettings::new(), name: None };
            servers.into_iter().take(MAX_SERVERS).map(one).collect()
        } else {
            sections.into_iter().filter_map(|section| self.entry(section)).collect()
        };
        let mut choices = Vec::new();
        for Entry { server, section, name } in entries {
            let base = OptionSources(vec![&self.flags.values, &self.values.values]);
            let layers = over(&section, &base);
            let mut found = std::mem::take(&mut self.found);
            let port = layers.get(SsrSetting::ServerPort).map(|given| given.parsed(&mut found, setup::port));
            // A port that cannot be read is reported; none at all is a problem of the server.
            let target = match port {
                Some(None) => None,
                port => server.parsed(&mut found, |text| target(text, port.flatten())),
            };
            let client = target.and_then(|target| {
                names::client(&layers, target, transports, self.file.as_ref(), &mut found)
            });
            self.found = found;
            let Some(mut client) = client else { continue };
            client.plugin.clone_from(&plugin);
            let protocol = OutboundProtocol::Ssr(client);
            choices.push(WeightedServer {
                name,
                protocol,
                dial: dial.clone(),
                tcp_weight: 100,
                udp_weight: 100,
            });
        }
        choices
    }

    /// An entry of `servers`.
    fn entry(&mut self, section: SsrSettings) -> Option<Entry> {
        let layers = OptionSources(vec![&section]);
        let name = layers.get(SsrSetting::Name).map(|given| given.text().into());
        let Some(server) = layers.get(SsrSetting::Server) else {
            self.missing("-s", "servers.server");
            return None;
        };
        Some(Entry { server, section, name })
    }
}

/// A server of a client, with the settings that it has for itself.
struct Entry {
    server: OptionValue,
    section: SsrSettings,
    name: Option<Box<str>>,
}

/// `host` or `host:port`, with the common port unless it has its own.
fn target(text: &str, common: Option<u16>) -> Result<Target, Problem> {
    let (host, own) = setup::host_and_port(text)?;
    let missing = || Problem::new("no port").hint("give -p, or server_port in the file");
    let port = own.or(common).ok_or_else(missing)?;
    if port == 0 {
        return Err(Problem::new("port 0 cannot be dialled"));
    }
    Target::new(host.as_bytes(), port).map_err(|error| Problem::new(error.to_string()))
}

/// A problem without a place.
pub(super) fn of_program(program: SsrProgram, problem: impl Into<String>) -> Diagnostic {
    Diagnostic::error(&"command line".into(), program.name(), problem)
}
