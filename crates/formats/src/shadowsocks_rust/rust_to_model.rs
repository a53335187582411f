//! From what is asked for to the model.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::map::Map;
use adit_model::{
    Captured, Config, Dial, Egress, Inbound, InboundProtocol, Level, LocalProtocols, Log, Outbound,
    OutboundProtocol, Plugin, Secret, ShadowsocksClient, ShadowsocksServer, ShadowsocksServerKey,
    SocketOptions, Tag, TcpOptions, Transports, Udp, User,
};
use adit_proto::shadowsocks::ShadowsocksMethod;
use adit_proto::wire::{Host, Target};

use super::file::{self, Protocol, RustLocal, RustServer, ServerOrigin, Wanted};
use super::names::{self, PortKeys};
use super::rust_flags::{RustFlag, RustFlags};
use super::tun::TunKeys;
use super::{Exit, RustProgram, RustSurroundings};
use crate::read::json_fields::JsonReport;
use crate::read::source::Source;
use crate::read::value::{self, Problem, interface, text_of};
use crate::shadowsocks::setup::{
    self, Control, Manager, ManagerAddress, NOT_YET, Online, ShadowsocksSetup, WeightedServer,
};
use crate::shadowsocks::{MAX_TEXT, ProgramFamily, method, sip002, wrong_key};

pub(super) fn translate(
    program: RustProgram,
    flags: &RustFlags,
    source: Option<&Source<'_>>,
    outside: RustSurroundings<'_>,
) -> Result<ShadowsocksSetup, (Exit, Diagnostics)> {
    let none = Source::new("command line", "");
    let mut report = JsonReport::new(source.unwrap_or(&none));
    let wanted = match source {
        Some(source) => file::read(source, &mut report, outside),
        None => Wanted::default(),
    };
    let mut builder = Builder { program, flags, outside, report, wanted, missing: false };
    builder.flags();
    let setup = builder.build();
    let Builder { report: JsonReport { mut found, .. }, missing, .. } = builder;
    found.sort();
    if found.has_errors() {
        return Err((if missing { Exit::Usage } else { Exit::Config }, found));
    }
    Ok(ShadowsocksSetup { diagnostics: found, ..setup })
}

struct Builder<'a> {
    program: RustProgram,
    flags: &'a RustFlags,
    outside: RustSurroundings<'a>,
    report: JsonReport<'a>,
    wanted: Wanted,
    /// Nothing to do was given at all.
    missing: bool,
}

impl Builder<'_> {
    /// The text of a flag, read.
    fn flag<T>(&mut self, flag: RustFlag, parse: impl FnOnce(&str) -> Result<T, Problem>) -> Option<T> {
        let item = self.flags.get(flag)?;
        match parse(&item.value) {
            Ok(value) => Some(value),
            Err(problem) => {
                let mut error =
                    Diagnostic::error(&"command line".into(), self.named(&item.name), problem.text);
                error.hint = problem.hint;
                self.report.found.push(error);
                None
            }
        }
    }

    fn number(&mut self, flag: RustFlag) -> Option<u64> {
        self.flag(flag, |text| {
            text.parse()
                .ok()
                .filter(|n| *n <= u64::from(u32::MAX))
                .ok_or_else(|| Problem::new("no whole number"))
        })
    }

    fn ranged(&mut self, flag: RustFlag, range: RangeInclusive<u64>) -> Option<u64> {
        let problem = || Problem::new(format!("no whole number from {} to {}", range.start(), range.end()));
        self.flag(flag, |text| text.parse().ok().filter(|n| range.contains(n)).ok_or_else(problem))
    }

    fn seconds(&mut self, flag: RustFlag) -> Option<Duration> {
        self.number(flag).filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }

    fn named(&self, flag: &str) -> String {
        format!("{} {flag}", self.program.name())
    }

    /// Flags count more than the file; servers and local ports come behind it.
    fn flags(&mut self) {
        for item in self.flags.items.iter().filter(|item| item.id == RustFlag::Later) {
            let key = self.named(&item.name);
            self.report.found.push(Diagnostic::warning(&"command line".into(), key, NOT_YET));
        }
        let server = self.flag_server();
        self.wanted.servers.extend(server);
        let linked = self.flag_url();
        self.wanted.servers.extend(linked);
        let local = self.flag_local();
        self.wanted.locals.extend(local);
        self.flag_globals();
        self.flag_manager();
        self.flag_online();
    }

    fn flag_globals(&mut self) {
        let small = |number: u64| usize::try_from(number).ok();
        let path = |text: &str| text_of(text, MAX_TEXT);
        if let Some(path) = self.flag(RustFlag::Acl, path) {
            self.wanted.acl = Some((*path).into());
        }
        if let Some(servers) = self.flag(RustFlag::Dns, file::name_servers) {
            if servers.is_none() {
                let key = self.named("--dns");
                let problem = "not in this build yet, so the system's name servers are asked";
                self.report.found.push(Diagnostic::warning(&"command line".into(), key, problem));
            }
            self.wanted.dns = servers.unwrap_or_default();
        }
        self.wanted.fast_open |= self.flags.has(RustFlag::FastOpen);
        self.wanted.ipv6_first |= self.flags.has(RustFlag::Ipv6First);
        if let Some(idle) = self.seconds(RustFlag::UdpTimeout) {
            self.wanted.udp.idle = idle.max(Udp::MIN_IDLE);
        }
        if let Some(flows) = self.number(RustFlag::UdpAssociations).and_then(small) {
            self.wanted.udp.flows = flows;
        }
        self.flag_egress();
        self.flag_tcp();
        let files = self.number(RustFlag::OpenFiles).or(self.wanted.process.open_files);
        self.wanted.process.open_files = files.filter(|files| *files > 0);
        self.wanted.process.user = self.flag(RustFlag::User, |text| text_of(text, 256));
        let pid_file = self.flag(RustFlag::PidFile, path).map(|path| (*path).into());
        self.wanted.process.daemonize = self.flags.has(RustFlag::Daemonize) || pid_file.is_some();
        self.wanted.process.pid_file = pid_file;
        let verbosity = self.flags.items.iter().filter(|item| item.id == RustFlag::Verbose).count();
        if verbosity > 0 {
            self.wanted.level = Some(file::level(verbosity as u64));
        }
        self.wanted.without_time |= self.flags.has(RustFlag::LogWithoutTime);
        let workers =
            self.number(RustFlag::Workers).and_then(small).filter(|workers| (1..=1024).contains(workers));
        self.wanted.cores = workers.or(self.wanted.cores);
        if self.flags.has(RustFlag::SingleThreaded) {
            self.wanted.cores = Some(1);
        }
    }

    fn flag_manager(&mut self) {
        if let Some(address) = self.flag(RustFlag::ManagerAddr, ManagerAddress::parse) {
            self.wanted.manager = Some(address);
        }
        if self.program != RustProgram::Manager {
            return;
        }
        if let Some(method) = self.flag(RustFlag::Method, method) {
            self.wanted.method = Some(method);
        }
        if let Some(plugin) = self.flag_plugin() {
            self.wanted.plugin = Some(plugin);
        }
        if let Some(timeout) = self.seconds(RustFlag::Timeout) {
            self.wanted.timeout = Some(timeout);
        }
        self.wanted.mode = self.flag_mode().unwrap_or(self.wanted.mode);
    }

    fn flag_online(&mut self) {
        let Some(url) = self.flag(RustFlag::OnlineUrl, file::online_url) else { return };
        let interval = self.seconds(RustFlag::OnlineInterval).unwrap_or(Duration::from_secs(3600));
        let plugins = self.flags.items.iter().filter(|item| item.id == RustFlag::OnlinePlugin);
        let plugins: Vec<Box<str>> = plugins.map(|item| item.value.as_str().into()).collect();
        let allowed_plugins = (!plugins.is_empty()).then_some(plugins);
        self.wanted.online = Some(Online::new(url, interval, allowed_plugins));
    }

    fn flag_mode(&self) -> Option<Transports> {
        if self.flags.has(RustFlag::UdpOnly) {
            return Some(Transports::Udp);
        }
        self.flags.has(RustFlag::TcpAndUdp).then_some(Transports::Both)
    }

    fn flag_plugin(&mut self) -> Option<Plugin> {
        let program = self.flag(RustFlag::Plugin, |text| text_of(text, MAX_TEXT))?;
        let optional = |text: &str| if text.is_empty() { Ok("".into()) } else { text_of(text, MAX_TEXT) };
        let options = self.flag(RustFlag::PluginOptions, optional).unwrap_or_default();
        let transports = self.flag(RustFlag::PluginMode, setup::transports).unwrap_or_default();
        Some(Plugin { program, options, args: Vec::new(), transports })
    }

    fn flag_server(&mut self) -> Option<RustServer> {
        if self.program == RustProgram::Manager {
            return None;
        }
        let origin = ServerOrigin::Flag("--server-addr");
        let (host, port) = self.flag(RustFlag::ServerAddr, split)?;
        let method = self.flag(RustFlag::Method, method)?;
        let password = match self.flags.get(RustFlag::Password) {
            Some(item) => Some(file::variable(&item.value, self.outside)),
            None if method == ShadowsocksMethod::None => Some(Secret::new("")),
            None => (self.outside.variable)("SS_SERVER_PASSWORD").map(|text| Secret::new(text.as_str())),
        };
        let Some(password) = password else {
            let problem = Problem::new("the password is missing");
            origin.error(&mut self.report, "", problem.hint("give -k, or set SS_SERVER_PASSWORD"));
            self.missing = true;
            return None;
        };
        let key = match setup::password(ProgramFamily::Rust, method, &password) {
            Ok(key) => key,
            Err(problem) => {
                ServerOrigin::Flag("--password").error(&mut self.report, "", problem);
                return None;
            }
        };
        let mode = if self.program == RustProgram::Server { self.flag_mode() } else { None };
        Some(RustServer {
            origin,
            name: None,
            host,
            port,
            key,
            users: Vec::new(),
            plugin: self.flag_plugin(),
            mode,
            timeout: self.seconds(RustFlag::Timeout),
            tcp_weight: 100,
            udp_weight: 100,
            egress: Egress::default(),
            acl: None,
        })
    }

    fn flag_egress(&mut self) {
        let mut egress = Egress {
            interface: self.flag(RustFlag::BindInterface, interface),
            mark: self.number(RustFlag::Mark).and_then(file::mark),
            ..Egress::default()
        };
        if let Some(source) = self.flag(RustFlag::BindAddr, value::bind_address) {
            egress.set_source(source);
        }
        self.wanted.egress = egress.or(&self.wanted.egress);
    }

    fn flag_tcp(&mut self) {
        let keep_alive = self.ranged(RustFlag::KeepAlive, file::KEEP_ALIVE_S).map(Duration::from_secs);
        let mut buffer = |flag| {
            let len = self.ranged(flag, 1..=TcpOptions::MAX_BUFFER.into());
            len.and_then(|len| u32::try_from(len).ok())
        };
        let buffers = [
            (buffer(RustFlag::InboundSend), buffer(RustFlag::InboundReceive)),
            (buffer(RustFlag::OutboundSend), buffer(RustFlag::OutboundReceive)),
        ];
        for (tcp, (send_buffer, receive_buffer)) in self.wanted.tcp.iter_mut().zip(buffers) {
            tcp.keep_alive = keep_alive.unwrap_or(tcp.keep_alive);
            tcp.multipath |= self.flags.has(RustFlag::Multipath);
            *tcp = TcpOptions { send_buffer, receive_buffer, ..*tcp };
        }
    }

    fn flag_url(&mut self) -> Option<RustServer> {
        let profile = self
            .flag(RustFlag::ServerUrl, |text| sip002::parse(text).map_err(|e| Problem::new(e.to_string())))?;
        Some(RustServer {
            origin: ServerOrigin::Flag("--server-url"),
            name: profile.name,
            host: profile.server.host.to_string(),
            port: profile.server.port,
            key: profile.key,
            users: Vec::new(),
            plugin: profile.plugin,
            mode: None,
            timeout: None,
            tcp_weight: 100,
            udp_weight: 100,
            egress: Egress::default(),
            acl: None,
        })
    }

    fn flag_local(&mut self) -> Option<RustLocal> {
        let (host, port) = self.flag(RustFlag::LocalAddr, split)?;
        let protocol = self.flag(RustFlag::Protocol, file::protocol).unwrap_or(Protocol::Socks);
        let redir = self.flag(RustFlag::TcpRedir, file::redir_type);
        self.flag(RustFlag::UdpRedir, file::redir_type);
        let protocol = match (protocol, redir) {
            (Protocol::Redir(_), Some(by)) => Protocol::Redir(by),
            (protocol, _) => protocol,
        };
        let text = |text: &str| Ok(text.to_owned());
        let tun = TunKeys {
            name: self.flag(RustFlag::TunName, text),
            address: self.flag(RustFlag::TunAddress, text),
            destination: self.flag(RustFlag::TunDestination, text),
            fd_path: self.flag(RustFlag::TunPath, text),
        };
        Some(RustLocal {
            origin: ServerOrigin::Flag("--local-addr"),
            protocol,
            host: Some(host),
            port,
            mode: Some(self.flag_mode().unwrap_or_default()),
            forward: self.flag(RustFlag::ForwardAddr, split),
            users: Vec::new(),
            acl: None,
            names: self.flag_names(),
            tun,
        })
    }

    fn flag_names(&mut self) -> PortKeys {
        let range = |is_ipv6| move |text: &str| crate::read::name_servers::fake_range(text, is_ipv6);
        PortKeys {
            local: self.flag(RustFlag::LocalDns, split),
            remote: self.flag(RustFlag::RemoteDns, split),
            expire: self.number(RustFlag::FakeExpire),
            v4: self.flag(RustFlag::FakeV4, range(false)),
            v6: self.flag(RustFlag::FakeV6, range(true)),
            database: self.flag(RustFlag::FakeDatabase, |text| text_of(text, MAX_TEXT)),
        }
    }

    fn build(&mut self) -> ShadowsocksSetup {
        let wanted = &mut self.wanted;
        let mut setup = ShadowsocksSetup {
            config: Config {
                log: Log {
                    level: wanted.level.unwrap_or(Level::Info),
                    time: !wanted.without_time,
                    file: wanted.log_file.as_ref().map(|file| file.path(self.program.name())),
                    keep: wanted.log_file.as_ref().map_or(Log::KEEP, |file| file.keep),
                    ..Log::default()
                },
                cores: wanted.cores,
                udp: wanted.udp.clone(),
                ..Config::default()
            },
            process: wanted.process.clone(),
            acl: wanted.acl.clone(),
            acl_of: Map::new(),
            control: Control::None,
            online: wanted.online.clone().into_iter().collect(),
            diagnostics: Diagnostics::new(),
        };
        let servers = std::mem::take(&mut wanted.servers);
        let locals = std::mem::take(&mut wanted.locals);
        match self.program {
            RustProgram::Local => self.client(servers, locals, &mut setup),
            RustProgram::Server => {
                self.servers(servers, &mut setup);
                setup.control = self.wanted.manager.clone().map_or(Control::None, Control::Report);
                if setup.config.inbounds.is_empty() {
                    self.nothing(
                        "servers",
                        "no server is given",
                        "give --server-addr, or servers in the file",
                    );
                }
            }
            RustProgram::Manager => {
                self.servers(servers, &mut setup);
                self.manager(&mut setup);
            }
        }
        setup
    }

    /// Nothing to do, unless another error has already said why.
    fn nothing(&mut self, key: &str, problem: &str, hint: &str) {
        if self.report.found.has_errors() {
            return;
        }
        self.missing = !self.wanted.has_file;
        let place = if self.wanted.has_file { (1, 1) } else { (0, 0) };
        let error = Diagnostic::error(&self.report.source.file, key, problem);
        self.report.found.push(error.at(place).hint(hint));
    }

    fn dial(&self, server: Option<&RustServer>) -> Dial {
        use adit_model::AddressFamilies;

        let own = |server: &RustServer| (server.timeout, server.egress.clone());
        let (timeout, egress) = server.map(own).unwrap_or_default();
        let default = Dial::default();
        Dial {
            family: if self.wanted.ipv6_first { AddressFamilies::Any } else { AddressFamilies::PreferV4 },
            egress: egress.or(&self.wanted.egress),
            dns: self.wanted.dns.iter().map(|server| (*server).into()).collect(),
            fast_open: self.wanted.fast_open,
            tcp: self.wanted.tcp[1],
            timeout: timeout
                .or(self.wanted.timeout)
                .unwrap_or(default.timeout)
                .min(Duration::from_secs(86_400)),
            ..default
        }
    }

    fn servers(&mut self, servers: Vec<RustServer>, setup: &mut ShadowsocksSetup) {
        let many = servers.len() > 1;
        let mut taken: Vec<SocketAddr> = Vec::new();
        for (i, server) in servers.into_iter().enumerate() {
            let dial = self.dial(Some(&server));
            let outbounds = &mut setup.config.outbounds;
            let same = outbounds.iter().find(|outbound| outbound.dial == dial);
            let outbound = same.map(|outbound| outbound.name.clone()).unwrap_or_else(|| {
                let n = outbounds.len() + 1;
                let name = if n == 1 { setup::DIRECT.into() } else { Tag::from(format!("direct-{n}")) };
                outbounds.push(Outbound { name: name.clone(), dial, protocol: OutboundProtocol::Direct });
                name
            });
            let RustServer { origin, host, port, key, users, plugin, mode, acl, .. } = server;
            let listen = match setup::listen_host(&host) {
                Ok(ip) => SocketAddr::new(ip, port),
                Err(problem) => {
                    origin.error(&mut self.report, "server", problem);
                    continue;
                }
            };
            if taken.contains(&listen) {
                origin.error(
                    &mut self.report,
                    "server_port",
                    Problem::new(format!("listed twice: {listen}")),
                );
                continue;
            }
            taken.push(listen);
            let name: Tag = if many { format!("server-{}", i + 1).into() } else { "server".into() };
            setup.acl_of.extend(acl.map(|acl| (name.clone(), acl)));
            let method = key.method();
            match ShadowsocksServerKey::with_users(key, users) {
                Ok(key) => setup.config.inbounds.push(Inbound {
                    name,
                    listen: vec![listen],
                    socket: SocketOptions {
                        fast_open: self.wanted.fast_open,
                        tcp: self.wanted.tcp[0],
                        ..SocketOptions::default()
                    },
                    outbound,
                    allow_private: true,
                    protocol: InboundProtocol::Shadowsocks(ShadowsocksServer {
                        key,
                        transports: mode.unwrap_or(self.wanted.mode),
                        cover: setup::server_cover(plugin),
                        replay: self.wanted.replay,
                    }),
                }),
                Err(error) => origin.error(&mut self.report, "password", wrong_key(method, &error)),
            }
        }
    }

    fn manager(&mut self, setup: &mut ShadowsocksSetup) {
        if setup.config.outbounds.is_empty() {
            let dial = self.dial(None);
            setup.config.outbounds.push(Outbound {
                name: setup::DIRECT.into(),
                dial,
                protocol: OutboundProtocol::Direct,
            });
        }
        let host = self.flag(RustFlag::ServerHost, setup::listen_host);
        let Some(address) = self.wanted.manager.clone() else {
            return self.nothing(
                "manager_address",
                "missing",
                "give --manager-addr, or manager_address and manager_port in the file",
            );
        };
        let default = "chacha20-ietf-poly1305".parse().expect("a method of the table");
        let directory = self.flag(RustFlag::ManagerDirectory, |text| text_of(text, MAX_TEXT));
        setup.control = Control::Manage(Box::new(Manager {
            family: ProgramFamily::Rust,
            address: Some(address),
            hosts: vec![host.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))],
            method: self.wanted.method.unwrap_or(default),
            transports: self.wanted.mode,
            plugin: self.wanted.plugin.clone(),
            fast_open: self.wanted.fast_open,
            tcp: self.wanted.tcp[0],
            reuse_port: false,
            directory: directory.map(|path| (*path).into()),
        }));
    }

    fn client(&mut self, servers: Vec<RustServer>, locals: Vec<RustLocal>, setup: &mut ShadowsocksSetup) {
        let mut carried: Option<Transports> = None;
        let mut taken: Vec<SocketAddr> = Vec::new();
        for local in locals {
            let mut mode = local.mode.unwrap_or(self.wanted.mode);
            let (acl, protocol) = (local.acl.clone(), local.protocol);
            if protocol == Protocol::FakeDns
                && let Some(fake) = names::fake(&local, &mut self.report)
                && setup.config.dns.fake.replace(fake.clone()).is_some_and(|other| other != fake)
            {
                let problem = Problem::new("two ports of protocol fake-dns with different pools");
                local.origin.error(&mut self.report, "protocol", problem.hint("give both the same keys"));
            }
            let Some(mut inbound) = self.local(local, &mut taken) else { continue };
            inbound.socket.tcp = self.wanted.tcp[0];
            setup.acl_of.extend(acl.map(|acl| (inbound.name.clone(), acl)));
            setup.config.inbounds.push(inbound);
            match protocol {
                // Its questions go to the server in streams.
                Protocol::Dns => mode = Transports::Tcp,
                Protocol::FakeDns => continue,
                Protocol::Socks | Protocol::Http | Protocol::Tunnel | Protocol::Redir(_) | Protocol::Tun => {}
            }
            carried = Some(match carried {
                Some(other) if other != mode => Transports::Both,
                _ => mode,
            });
        }
        if setup.config.inbounds.is_empty() {
            let hint = "give --local-addr, or local_address and local_port in the file";
            self.nothing("local_address", "no local port is given that this build can serve", hint);
        }
        let carried = carried.unwrap_or_default();
        for online in &mut setup.online {
            online.dial = self.dial(None);
            (online.check, online.transports) = (self.wanted.check.clone(), carried);
        }
        let choices: Vec<WeightedServer> =
            servers.into_iter().filter_map(|server| self.choice(server, carried)).collect();
        if choices.is_empty() {
            if setup.online.is_empty() {
                self.nothing("servers", "no server is given", "give --server-addr, or servers in the file");
            }
            // Until the list of servers is there.
            setup.config.outbounds.push(Outbound {
                name: setup::SERVERS.into(),
                dial: Dial::default(),
                protocol: OutboundProtocol::Reject,
            });
            return;
        }
        setup.config.outbounds = setup::outbounds(choices, self.wanted.check.clone());
        setup.use_first();
        names::use_first(&mut setup.config);
    }

    fn choice(&mut self, server: RustServer, carried: Transports) -> Option<WeightedServer> {
        let dial = self.dial(Some(&server));
        let RustServer {
            origin,
            name,
            host,
            port,
            key,
            users,
            plugin,
            mode,
            tcp_weight,
            udp_weight,
            acl,
            ..
        } = server;
        if acl.is_some() {
            let problem = Problem::new("a client's lists belong to its local ports, so it has no effect");
            origin.warning(&mut self.report, "acl", problem);
        }
        let host = match Host::parse(host.as_bytes()) {
            Ok(Host::Ip(ip)) if ip.is_unspecified() => {
                let problem = Problem::new("an address to listen on, not one to connect to");
                origin.error(&mut self.report, "server", problem);
                return None;
            }
            Ok(host) => host,
            Err(error) => {
                origin.error(&mut self.report, "server", Problem::new(error.to_string()));
                return None;
            }
        };
        if !users.is_empty() {
            origin.warning(
                &mut self.report,
                "users",
                Problem::new("belongs to servers, so it has no effect"),
            );
        }
        // Transports that no local port takes are not asked of the server.
        let transports = match (mode.unwrap_or(Transports::Both), carried) {
            (Transports::Both, carried) => carried,
            (mode, _) => mode,
        };
        let cover = setup::client_cover(plugin);
        let client = ShadowsocksClient { server: Target { host, port }, key, transports, cover };
        Some(WeightedServer {
            name,
            protocol: OutboundProtocol::Shadowsocks(client),
            dial,
            tcp_weight,
            udp_weight,
        })
    }

    fn local(&mut self, local: RustLocal, taken: &mut Vec<SocketAddr>) -> Option<Inbound> {
        let RustLocal { origin, protocol, host, port, forward, users, mode, names, tun, .. } = local;
        let report = &mut self.report;
        if protocol == Protocol::Tun {
            let tun = tun.interface(&origin, report)?;
            // It counts among the local ports, which are numbered, and listens on none.
            let none = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            taken.push(none);
            let made = inbound(taken.len(), "tun", none, InboundProtocol::Tun(tun));
            return Some(Inbound { listen: Vec::new(), ..made });
        }
        if port == 0 {
            origin.error(report, "local_port", Problem::new("missing"));
            return None;
        }
        let loopback =
            if self.wanted.ipv6_first { IpAddr::V6(Ipv6Addr::LOCALHOST) } else { Ipv4Addr::LOCALHOST.into() };
        let ip = host.map_or(Ok(loopback), |host| setup::listen_host(&host));
        let listen = match ip {
            Ok(ip) => SocketAddr::new(ip, port),
            Err(problem) => {
                origin.error(report, "local_address", problem);
                return None;
            }
        };
        if taken.contains(&listen) {
            origin.error(report, "local_port", Problem::new(format!("listed twice: {listen}")));
            return None;
        }
        taken.push(listen);
        let accepts = match protocol {
            // Other protocols of the port do not disturb a SOCKS client.
            Protocol::Socks => LocalProtocols::Mixed,
            Protocol::Http => LocalProtocols::Http,
            Protocol::Redir(by) => {
                let transports = mode.unwrap_or(self.wanted.mode);
                let protocol = InboundProtocol::Captured(Captured { by, transports });
                return Some(inbound(taken.len(), "redir", listen, protocol));
            }
            Protocol::Dns | Protocol::FakeDns => {
                let server = names::inbound(&origin, protocol, listen, mode, names, report)?;
                return Some(inbound(taken.len(), "dns", listen, InboundProtocol::Dns(server)));
            }
            Protocol::Tunnel | Protocol::Tun => {
                let Some((host, port)) = forward else {
                    origin.error(
                        report,
                        "forward_address",
                        Problem::new("missing: where the tunnel leads to"),
                    );
                    return None;
                };
                let target = value::target(&file::joined(&host, port));
                let target =
                    target.map_err(|problem| origin.error(report, "forward_address", problem)).ok()?;
                let transports = mode.unwrap_or(self.wanted.mode);
                let protocol = InboundProtocol::Tunnel { target, transports };
                return Some(inbound(taken.len(), "tunnel", listen, protocol));
            }
        };
        if users.is_empty()
            && let Some(problem) = setup::warn_of_open_port(listen)
        {
            origin.warning(report, "local_address", problem);
        }
        let mut protocol = setup::local(accepts);
        if let InboundProtocol::Local(local) = &mut protocol {
            local.users = users.into_iter().map(User::from).collect();
        }
        Some(inbound(taken.len(), "local", listen, protocol))
    }
}

fn inbound(n: usize, name: &str, listen: SocketAddr, protocol: InboundProtocol) -> Inbound {
    let name = if n == 1 { name.into() } else { format!("{name}-{n}").into() };
    Inbound {
        name,
        listen: vec![listen],
        socket: SocketOptions::default(),
        outbound: setup::SERVERS.into(),
        allow_private: true,
        protocol,
    }
}

/// `host:port`, an IPv6 address in brackets.
fn split(text: &str) -> Result<(String, u16), Problem> {
    let bad = || {
        Problem::new(format!("no host and port: {}", value::excerpt(text)))
            .hint("write for instance 127.0.0.1:1080 or [::1]:1080")
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(bad)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if bare.is_empty() || (bare.contains(':') && bare.len() == host.len()) {
        return Err(bad());
    }
    Ok((bare.to_owned(), port))
}
