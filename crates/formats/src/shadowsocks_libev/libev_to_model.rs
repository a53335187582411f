//! From flags and file to the model.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::map::Map;
use adit_model::{
    Captured, CapturedBy, Check, Config, Dial, Egress, Inbound, InboundProtocol, KeyForm, Level, Limits,
    LocalProtocols, Log, Outbound, OutboundProtocol, Plugin, ReplayPolicy, Secret, ShadowsocksClient,
    ShadowsocksKey, ShadowsocksServer, ShadowsocksServerKey, SocketOptions, TcpOptions, Transports, Udp,
};
use adit_proto::shadowsocks::ShadowsocksMethod;
use adit_proto::wire::Target;

use super::LibevProgram;
use super::file::{LibevKey, LibevValues, MAX_SERVERS};
use super::libev_flags::LibevFlags;
use crate::read::value::{self, Problem, text_of};
use crate::shadowsocks::manager::Add;
use crate::shadowsocks::option_value::OptionValue;
use crate::shadowsocks::setup::{
    self, Control, Manager, ManagerAddress, Process, ShadowsocksSetup, WeightedServer,
};
use crate::shadowsocks::{MAX_TEXT, ProgramFamily, method, wrong_key};

/// Longest name of a user, in bytes.
const MAX_USER: usize = 256;

/// Timeout of all programs but `ss-redir`.
const TIMEOUT_S: u64 = 60;
/// Timeout of `ss-redir`.
const REDIR_TIMEOUT_S: u64 = 600;

/// Longest time to connect, and shortest for datagrams.
const TEN_S: u64 = 10;

/// Streams are never ended sooner.
const DAY_S: u64 = 86_400;

pub(super) fn translate(
    program: LibevProgram,
    flags: &LibevFlags,
    values: LibevValues,
    found: Diagnostics,
) -> Result<ShadowsocksSetup, Diagnostics> {
    let mut merged = LibevOptions { program, flags, values, found };
    let timeout = merged.timeout();
    let mut setup = ShadowsocksSetup {
        config: Config::default(),
        process: merged.process(),
        acl: merged.path(LibevKey::Acl),
        acl_of: Map::new(),
        control: Control::None,
        online: Vec::new(),
        diagnostics: Diagnostics::new(),
    };
    let mtu = merged.parsed(LibevKey::Mtu, setup::mtu).flatten();
    setup.config.udp = Udp { idle: Duration::from_secs(timeout).max(Udp::MIN_IDLE), mtu, ..Udp::default() };
    match program {
        LibevProgram::Server => merged.server(timeout, &mut setup),
        LibevProgram::Manager => merged.manager(timeout, &mut setup),
        LibevProgram::Local | LibevProgram::Tunnel | LibevProgram::Redir => {
            merged.client(timeout, &mut setup)
        }
    }
    setup.config.log =
        Log { level: if flags.verbose { Level::Debug } else { Level::Info }, ..Log::default() };
    setup.config.limits = Limits { idle: Some(Duration::from_secs(timeout.max(DAY_S))), ..Limits::default() };
    let mut found = merged.found;
    found.sort();
    if found.has_errors() {
        return Err(found);
    }
    setup.diagnostics = found;
    Ok(setup)
}

struct LibevOptions<'a> {
    program: LibevProgram,
    flags: &'a LibevFlags,
    values: LibevValues,
    found: Diagnostics,
}

impl LibevOptions<'_> {
    /// The last flag, or else what the file says.
    fn given(&self, key: LibevKey) -> Option<OptionValue> {
        let is = |entry: &&(LibevKey, OptionValue)| entry.0 == key;
        let flag = self.flags.values.iter().rfind(is);
        flag.or_else(|| self.values.values.iter().find(is)).map(|(_, given)| given.clone())
    }

    fn parsed<T>(&mut self, key: LibevKey, parse: impl FnOnce(&str) -> Result<T, Problem>) -> Option<T> {
        self.given(key)?.parsed(&mut self.found, parse)
    }

    fn switch(&self, key: LibevKey) -> bool {
        let is = |entry: &&(LibevKey, OptionValue)| entry.0 == key && entry.1.text() == "true";
        self.flags.values.iter().chain(&self.values.values).any(|entry| is(&entry))
    }

    fn path(&mut self, key: LibevKey) -> Option<PathBuf> {
        self.parsed(key, |text| text_of(text, MAX_TEXT)).map(|path| PathBuf::from(&*path))
    }

    /// Something that must be there: the flag is named, and the key.
    fn missing(&mut self, flag: &str, key: &str) {
        let file = self.values.values.first().map(|(_, given)| given.clone());
        let file = file.or_else(|| self.values.port_password.first().map(|(given, ..)| given.clone()));
        let hint = match (self.values.port_password.first(), &file) {
            (Some((place, ..)), _) => {
                format!("port_password is ss-manager's: ss-manager -c {}", place.file())
            }
            _ => format!("give {flag}, or {key} in the file"),
        };
        let error = Diagnostic::error(&"command line".into(), key, "missing").hint(hint);
        self.found.push(match file {
            Some(given) => Diagnostic { file: given.file(), ..error }.at((1, 1)),
            None => error,
        });
    }

    /// Seconds, read as far as they are digits (`atoi`).
    fn timeout(&mut self) -> u64 {
        let default = if self.program == LibevProgram::Redir { REDIR_TIMEOUT_S } else { TIMEOUT_S };
        let Some(given) = self.given(LibevKey::Timeout) else { return default };
        let text = given.text().trim_start();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let seconds = text[..digits].parse().ok().filter(|s| *s > 0 && digits == text.len());
        if seconds.is_none() {
            let problem = Problem::new(format!("no whole number of seconds, so {default} is used"));
            given.warning(&mut self.found, problem);
        }
        seconds.unwrap_or(default).min(u64::from(u32::MAX))
    }

    fn process(&mut self) -> Process {
        Process {
            daemonize: self.flags.pid_file.is_some(),
            pid_file: self.flags.pid_file.clone(),
            user: self.parsed(LibevKey::User, |text| text_of(text, MAX_USER)),
            open_files: self
                .parsed(LibevKey::OpenFiles, |text| text.parse().map_err(|_| Problem::new("no whole number")))
                .filter(|files| *files > 0),
            syslog: self.switch(LibevKey::Syslog),
        }
    }

    fn transports(&mut self) -> Transports {
        let Some(given) = self.given(LibevKey::Mode) else { return Transports::Tcp };
        setup::transports(given.text()).unwrap_or_else(|mut problem| {
            problem.text.push_str(", so tcp_only is used");
            given.warning(&mut self.found, problem);
            Transports::Tcp
        })
    }

    fn method(&mut self) -> Option<ShadowsocksMethod> {
        let Some(given) = self.given(LibevKey::Method) else {
            return "chacha20-ietf-poly1305".parse().ok();
        };
        given.parsed(&mut self.found, method)
    }

    fn key(&mut self, method: ShadowsocksMethod) -> Option<ShadowsocksKey> {
        if let Some(given) = self.given(LibevKey::Base64) {
            return given.parsed(&mut self.found, |text| {
                let text = value::secret(text, MAX_TEXT)?;
                ShadowsocksKey::new(method, text, KeyForm::Base64).map_err(|error| wrong_key(method, &error))
            });
        }
        let Some(given) = self.given(LibevKey::Password) else {
            self.missing("-k", "password");
            return None;
        };
        if given.text().is_empty() && method != ShadowsocksMethod::None {
            given.warning(
                &mut self.found,
                Problem::new("empty, so everybody knows it").hint("choose a password"),
            );
        }
        given
            .parsed(&mut self.found, |text| setup::password(ProgramFamily::Libev, method, &Secret::new(text)))
    }

    fn plugin(&mut self) -> Option<Plugin> {
        let options = self.given(LibevKey::PluginOptions);
        let options =
            options.and_then(|given| given.parsed(&mut self.found, optional_text)).unwrap_or_default();
        let program = self.given(LibevKey::Plugin)?.parsed(&mut self.found, optional_text)?;
        let plugin = Plugin { program, options, args: Vec::new(), transports: Transports::Tcp };
        (!plugin.program.is_empty()).then_some(plugin)
    }

    fn dial(&mut self, timeout: u64) -> Dial {
        use adit_model::AddressFamilies;

        let dns = if self.program.is_client() { None } else { self.given(LibevKey::NameServer) };
        let dns = dns.and_then(|given| given.parsed(&mut self.found, setup::name_servers));
        Dial {
            family: if self.switch(LibevKey::Ipv6First) {
                AddressFamilies::Any
            } else {
                AddressFamilies::PreferV4
            },
            egress: self.egress(),
            dns: dns.unwrap_or_default().into_iter().map(Into::into).collect(),
            fast_open: self.program.is_client() && self.switch(LibevKey::FastOpen),
            tcp: self.tcp(self.program.is_client()),
            timeout: Duration::from_secs(timeout.min(TEN_S)),
            ..Dial::default()
        }
    }

    /// `mptcp` concerns the side of the tunnel.
    fn tcp(&mut self, is_tunnel: bool) -> TcpOptions {
        TcpOptions { multipath: is_tunnel && self.switch(LibevKey::Mptcp), ..TcpOptions::default() }
    }

    fn egress(&mut self) -> Egress {
        let interface = self.flags.interface.clone();
        let interface = interface.and_then(|given| given.parsed(&mut self.found, value::interface));
        let mut egress = Egress { interface, ..Egress::default() };
        if self.program != LibevProgram::Server {
            return egress;
        }
        let own = self.values.values.iter().filter(|(key, _)| *key == LibevKey::SourceAddress);
        let own: Vec<OptionValue> = own.map(|(_, given)| given.clone()).collect();
        for given in self.given(LibevKey::LocalAddress).into_iter().chain(own) {
            let Ok(source) = value::bind_address(given.text()) else {
                given.warning(&mut self.found, Problem::new("no address to send from, so it has no effect"));
                continue;
            };
            egress.set_source(source);
            if source.is_loopback() {
                let problem =
                    Problem::new(format!("sends from {source}, so nothing but this machine is reached"));
                given.warning(
                    &mut self.found,
                    problem.hint("leave it out: it is a client's address to listen on"),
                );
            }
        }
        egress
    }

    /// Every `-s`, or what the file says.
    fn servers(&mut self) -> Vec<OptionValue> {
        let of = |values: &[(LibevKey, OptionValue)]| -> Vec<OptionValue> {
            values
                .iter()
                .filter(|(key, _)| *key == LibevKey::Server)
                .map(|(_, given)| given.clone())
                .collect()
        };
        let mut servers = of(&self.flags.values);
        if servers.is_empty() {
            servers = of(&self.values.values);
        }
        if servers.len() > MAX_SERVERS {
            servers[MAX_SERVERS].error(&mut self.found, Problem::new("more than 10 servers"));
            servers.truncate(MAX_SERVERS);
        }
        servers
    }

    fn port(&mut self, key: LibevKey, flag: &str, name: &str) -> Option<u16> {
        let Some(given) = self.given(key) else {
            self.missing(flag, name);
            return None;
        };
        given.parsed(&mut self.found, setup::port)
    }

    /// The addresses of a server, each with its own port or the common one.
    fn listen(&mut self, port: u16) -> Vec<SocketAddr> {
        let servers = self.servers();
        if servers.is_empty() {
            return vec![SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)];
        }
        let mut listen = Vec::new();
        for given in servers {
            let addr = given.parsed(&mut self.found, |text| {
                let (host, own) = setup::host_and_port(text)?;
                Ok(SocketAddr::new(setup::listen_host(host)?, own.unwrap_or(port)))
            });
            match addr {
                Some(addr) if addr.port() != 0 && listen.contains(&addr) => {
                    given.error(&mut self.found, Problem::new(format!("listed twice: {addr}")));
                }
                Some(addr) => listen.push(addr),
                None => {}
            }
        }
        listen
    }

    fn control(&mut self) -> Option<ManagerAddress> {
        self.parsed(LibevKey::ManagerAddress, ManagerAddress::parse)
    }

    fn direct(&mut self, timeout: u64) -> Outbound {
        let dial = self.dial(timeout);
        Outbound { name: setup::DIRECT.into(), dial, protocol: OutboundProtocol::Direct }
    }

    fn server(&mut self, timeout: u64, setup: &mut ShadowsocksSetup) {
        let port = self.port(LibevKey::ServerPort, "-p", "server_port");
        let listen = self.listen(port.unwrap_or(0));
        let method = self.method();
        let key = method.and_then(|method| self.key(method));
        let transports = self.transports();
        let cover = setup::server_cover(self.plugin());
        setup.control = self.control().map_or(Control::None, Control::Report);
        setup.config.outbounds.push(self.direct(timeout));
        let key = key.and_then(|key| {
            let given = self.given(LibevKey::Base64).or_else(|| self.given(LibevKey::Password))?;
            given.parsed(&mut self.found, |_| {
                let method = key.method();
                ShadowsocksServerKey::new(key).map_err(|error| wrong_key(method, &error))
            })
        });
        if let Some(key) = key {
            let server = ShadowsocksServer { key, transports, cover, replay: ReplayPolicy::default() };
            setup.config.inbounds.push(Inbound {
                name: "server".into(),
                listen,
                socket: SocketOptions {
                    fast_open: self.switch(LibevKey::FastOpen),
                    tcp: self.tcp(true),
                    reuse_port: self.switch(LibevKey::ReusePort),
                    ..SocketOptions::default()
                },
                outbound: setup::DIRECT.into(),
                allow_private: true,
                protocol: InboundProtocol::Shadowsocks(server),
            });
        }
    }

    fn manager(&mut self, timeout: u64, setup: &mut ShadowsocksSetup) {
        let mut hosts: Vec<IpAddr> = Vec::new();
        for given in self.servers() {
            let host =
                given.parsed(&mut self.found, |text| setup::listen_host(setup::host_and_port(text)?.0));
            hosts.extend(host.filter(|host| !hosts.contains(host)));
        }
        if hosts.is_empty() {
            hosts.push(Ipv4Addr::UNSPECIFIED.into());
        }
        setup.config.outbounds.push(self.direct(timeout));
        let Some(method) = self.method() else { return };
        let manager = Manager {
            family: ProgramFamily::Libev,
            address: self.control(),
            hosts,
            method,
            transports: self.transports(),
            plugin: self.plugin(),
            fast_open: self.switch(LibevKey::FastOpen),
            tcp: TcpOptions::default(),
            reuse_port: self.switch(LibevKey::ReusePort),
            directory: self.path(LibevKey::Directory),
        };
        let mut seen = std::collections::HashSet::new();
        for (given, port, password) in std::mem::take(&mut self.values.port_password) {
            if !seen.insert(port) {
                given.error(&mut self.found, Problem::new(format!("port listed twice: {port}")));
                continue;
            }
            match manager.server(&Add::new(port, password)) {
                Ok(inbound) => setup.config.inbounds.push(inbound),
                Err(problem) => given.error(&mut self.found, Problem::new(problem)),
            }
        }
        setup.control = Control::Manage(Box::new(manager));
    }

    fn client(&mut self, timeout: u64, setup: &mut ShadowsocksSetup) {
        let listen = self.local();
        let target = (self.program == LibevProgram::Tunnel).then(|| self.target());
        let transports = self.transports();
        let choices = self.choices(timeout, transports);
        setup.config.outbounds = setup::outbounds(choices, Check::default());
        let protocol = match target {
            Some(Some(target)) => InboundProtocol::Tunnel { target, transports },
            Some(None) => return,
            None if self.program == LibevProgram::Redir => {
                let by =
                    if self.switch(LibevKey::Tproxy) { CapturedBy::Tproxy } else { CapturedBy::Redirect };
                InboundProtocol::Captured(Captured { by, transports })
            }
            // ss-local speaks SOCKS5 alone; what else the port takes does not disturb a SOCKS5 client.
            None => setup::local(LocalProtocols::Mixed),
        };
        let Some(listen) = listen else { return };
        let socket =
            SocketOptions { reuse_port: self.switch(LibevKey::ReusePort), ..SocketOptions::default() };
        // There is one unless there is an error.
        let first = setup.config.outbounds.first();
        let outbound = first.map_or_else(|| setup::SERVERS.into(), |first| first.name.clone());
        let name = match self.program {
            LibevProgram::Tunnel => "tunnel",
            LibevProgram::Redir => "redir",
            LibevProgram::Local | LibevProgram::Server | LibevProgram::Manager => "local",
        };
        let name = name.into();
        setup.config.inbounds.push(Inbound {
            name,
            listen: vec![listen],
            socket,
            outbound,
            allow_private: true,
            protocol,
        });
    }

    fn local(&mut self) -> Option<SocketAddr> {
        let host = self.given(LibevKey::LocalAddress);
        let ip = setup::local_host(host.as_ref(), &mut self.found);
        let listen = SocketAddr::new(ip?, self.port(LibevKey::LocalPort, "-l", "local_port")?);
        if self.program != LibevProgram::Redir {
            setup::warn_of_host(host.as_ref(), listen, &mut self.found);
        }
        Some(listen)
    }

    fn target(&mut self) -> Option<Target> {
        let Some(given) = self.given(LibevKey::Target) else {
            self.missing("-L", "tunnel_address");
            return None;
        };
        given.parsed(&mut self.found, value::target)
    }

    fn choices(&mut self, timeout: u64, transports: Transports) -> Vec<WeightedServer> {
        let servers = self.servers();
        if servers.is_empty() {
            self.missing("-s", "server");
        }
        let port = self.port(LibevKey::ServerPort, "-p", "server_port");
        let method = self.method();
        let key = method.and_then(|method| self.key(method));
        let cover = setup::client_cover(self.plugin());
        let dial = self.dial(timeout);
        let mut choices = Vec::new();
        for given in servers {
            let server = given.parsed(&mut self.found, |text| {
                let (host, own) = setup::host_and_port(text)?;
                let port = own.or(port).unwrap_or(1);
                if port == 0 {
                    return Err(Problem::new("port 0 cannot be dialled"));
                }
                Target::new(host.as_bytes(), port).map_err(|error| Problem::new(error.to_string()))
            });
            if let (Some(server), Some(key)) = (server, key.clone()) {
                let client = ShadowsocksClient { server, key, transports, cover: cover.clone() };
                let dial = dial.clone();
                choices.push(WeightedServer {
                    name: None,
                    protocol: OutboundProtocol::Shadowsocks(client),
                    dial,
                    tcp_weight: 100,
                    udp_weight: 100,
                });
            }
        }
        choices
    }
}

/// A text that may be empty.
fn optional_text(text: &str) -> Result<Box<str>, Problem> {
    if text.is_empty() { Ok("".into()) } else { text_of(text, MAX_TEXT) }
}
