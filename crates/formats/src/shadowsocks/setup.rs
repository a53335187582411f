//! The result of both programs' command lines and files, and the steps of translation that they share.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use adit_model::diagnostic::Diagnostics;
use adit_model::map::Map;
use adit_model::{
    Check, ClientCover, Config, Dial, Group, Inbound, InboundProtocol, KeyForm, Local, LocalProtocols,
    Member, ObfsClient, ObfsServer, Outbound, OutboundProtocol, Plugin, ReplayPolicy, Reply, Secret,
    ServerCover, ShadowsocksClient, ShadowsocksKey, ShadowsocksServer, ShadowsocksServerKey, SocketOptions,
    Tag, TcpOptions, Transports,
};
use adit_proto::crypto::evp_bytes_to_key;
use adit_proto::shadowsocks::{Generation, ShadowsocksMethod};
use adit_proto::sip003::parse_options;
use adit_proto::wire::Target;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::manager::Add;
use super::option_value::OptionValue;
use super::{MAX_TEXT, ProgramFamily, key, method, sip008, wrong_key};
use crate::read::value::{self, MAX_DNS, Problem, text_of};

/// Message about settings of features that are to come.
pub(crate) const NOT_YET: &str = "not in this build yet, so it has no effect";

/// Everything that a command line and its file ask for.
#[derive(Debug, Clone)]
pub struct ShadowsocksSetup {
    /// The configuration.
    pub config: Config,
    /// Settings of the process itself.
    pub process: Process,
    /// File of the access control list that holds for everything; to be read with [`super::acl::parse`].
    pub acl: Option<PathBuf>,
    /// The same for single inbounds, by name, in its place.
    pub acl_of: Map<Tag, PathBuf>,
    /// Managers.
    pub control: Control,
    /// Lists of servers that are fetched (SIP008) and join the outbounds of the configuration.
    pub online: Vec<Online>,
    /// Warnings; never an error.
    pub diagnostics: Diagnostics,
}

impl ShadowsocksSetup {
    /// The same for those who want no warnings.
    ///
    /// # Errors
    /// The warnings, as errors, if there are any.
    pub fn strict(mut self) -> Result<Self, Diagnostics> {
        if self.diagnostics.is_empty() {
            return Ok(self);
        }
        self.diagnostics.deny_warnings();
        Err(self.diagnostics)
    }
}

/// Settings of the process itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Goes into the background.
    pub daemonize: bool,
    /// File that gets its number.
    pub pid_file: Option<PathBuf>,
    /// The user that it becomes once its ports are open.
    pub user: Option<Box<str>>,
    /// Most open files.
    pub open_files: Option<u64>,
    /// Writes its log to the system's.
    pub syslog: bool,
}

/// Address of a manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerAddress {
    /// A port for datagrams.
    Udp(Target),
    /// A unix datagram socket.
    Unix(PathBuf),
}

impl ManagerAddress {
    /// A text with a colon is host and port, any other a path (both programs).
    pub(crate) fn parse(text: &str) -> Result<Self, Problem> {
        if text.contains(':') {
            return value::target(text).map(Self::Udp);
        }
        text_of(text, MAX_TEXT).map(|path| Self::Unix(PathBuf::from(&*path)))
    }
}

/// Relation of a process to managers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Control {
    /// Nothing.
    #[default]
    None,
    /// It is a server that reports its counters there.
    Report(ManagerAddress),
    /// It is a manager.
    Manage(Box<Manager>),
    /// It follows a database of users, and writes their traffic into it.
    Users(Box<crate::shadowsocksr::mudb::MudbDatabase>),
}

/// A manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    /// The program family whose text it speaks.
    pub family: ProgramFamily,
    /// Its address; `None` for `.ss-manager.socks` in the user's home directory (shadowsocks-libev 3.3.5).
    pub address: Option<ManagerAddress>,
    /// Addresses that its servers listen on.
    pub hosts: Vec<IpAddr>,
    /// Method of servers that are added without one.
    pub method: ShadowsocksMethod,
    /// Transports of servers that are added without a mode.
    pub transports: Transports,
    /// Plugin of servers that are added without one.
    pub plugin: Option<Plugin>,
    /// TCP Fast Open of all servers.
    pub fast_open: bool,
    /// TCP options of its servers' incoming connections.
    pub tcp: TcpOptions,
    /// Other processes of the same user may listen on the ports of servers.
    pub reuse_port: bool,
    /// Directory of the files that it leaves for its servers.
    pub directory: Option<PathBuf>,
}

impl Manager {
    /// The server that a request asks for, on the outbound of a manager's servers.
    ///
    /// # Errors
    /// A text for the answer, without any key.
    pub fn server(&self, add: &Add) -> Result<Inbound, String> {
        let method = match add.method.as_deref() {
            None => self.method,
            Some(name) => method(name).map_err(|_| format!("unrecognized method {name:?}"))?,
        };
        let mode = |text: Option<&str>, default| match text {
            None => Ok(default),
            Some(text) => transports(text).map_err(|problem| problem.text),
        };
        let key = password(self.family, method, &add.password).map_err(|problem| problem.text)?;
        let key =
            ShadowsocksServerKey::with_users(key, add.users.clone()).map_err(|error| error.to_string())?;
        let plugin = match add.plugin.as_deref().filter(|plugin| !plugin.is_empty()) {
            None => self.plugin.clone(),
            Some(program) => Some(Plugin {
                program: program.into(),
                options: add
                    .plugin_options
                    .as_ref()
                    .map(|options| options.expose().into())
                    .unwrap_or_default(),
                args: Vec::new(),
                transports: mode(add.plugin_mode.as_deref(), Transports::Tcp)?,
            }),
        };
        let server = ShadowsocksServer {
            key,
            transports: mode(add.mode.as_deref(), self.transports)?,
            cover: server_cover(plugin),
            replay: ReplayPolicy::default(),
        };
        Ok(Inbound {
            name: format!("server-{}", add.port).into(),
            listen: self.hosts.iter().map(|host| SocketAddr::new(*host, add.port)).collect(),
            socket: SocketOptions {
                fast_open: add.fast_open.unwrap_or(self.fast_open),
                tcp: self.tcp,
                reuse_port: self.reuse_port,
                ..SocketOptions::default()
            },
            outbound: DIRECT.into(),
            allow_private: true,
            protocol: InboundProtocol::Shadowsocks(server),
        })
    }
}

/// A list of servers that is fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct Online {
    /// Its address, which may hold a token.
    pub url: Secret,
    /// Time between two fetches.
    pub interval: Duration,
    /// Plugins that servers of the list may name; `None` for all.
    pub allowed_plugins: Option<Vec<Box<str>>>,
    /// The check that compares servers.
    pub check: Check,
    /// Settings of the connections to them.
    pub dial: Dial,
    /// Transports that they are used for.
    pub transports: Transports,
}

impl Online {
    /// A list at `url`, with everything else as it is without settings.
    pub(crate) fn new(url: Secret, interval: Duration, allowed_plugins: Option<Vec<Box<str>>>) -> Self {
        Self {
            url,
            interval,
            allowed_plugins,
            check: Check::default(),
            dial: Dial::default(),
            transports: Transports::default(),
        }
    }

    /// The outbounds for the servers of a list, with names that are not `taken`, and how many servers are left out
    /// since they need a program of their own.
    pub fn outbounds(&self, list: &sip008::Sip008List, taken: &[Tag]) -> (Vec<Outbound>, usize) {
        let mut taken: std::collections::HashSet<Tag> = taken.iter().cloned().collect();
        let (mut all, mut left_out) = (Vec::new(), 0);
        for (i, profile) in list.servers.iter().enumerate() {
            let cover = client_cover(profile.plugin.clone());
            if matches!(cover, ClientCover::Plugin(_)) {
                left_out += 1;
                continue;
            }
            let own = profile.name.as_deref().and_then(|name| crate::adit_toml::name(name).ok());
            let mut name = own.map_or_else(|| Tag::from(format!("online-{}", i + 1)), |own| Tag::from(&*own));
            for n in 2.. {
                if taken.insert(name.clone()) {
                    break;
                }
                name = format!("online-{}-{n}", i + 1).into();
            }
            let client = ShadowsocksClient {
                server: profile.server.clone(),
                key: profile.key.clone(),
                transports: self.transports,
                cover,
            };
            let protocol = OutboundProtocol::Shadowsocks(client);
            all.push(Outbound { name, dial: self.dial.clone(), protocol });
        }
        (all, left_out)
    }
}

impl ShadowsocksSetup {
    /// Makes what the connections go out through a group that can grow, with the servers that are there already, and
    /// gives its name.
    pub fn grow(&mut self, check: &Check) -> Tag {
        let outbounds = &mut self.config.outbounds;
        let group = |members| Group { members, grows: true, check: check.clone() };
        let is_taken = outbounds
            .iter()
            .any(|outbound| outbound.name == SERVERS && outbound.protocol != OutboundProtocol::Reject);
        let outbound = |group| Outbound {
            name: if is_taken { "all servers" } else { SERVERS }.into(),
            dial: Dial::default(),
            protocol: OutboundProtocol::Group(group),
        };
        match outbounds.first_mut().map(|first| &mut first.protocol) {
            Some(OutboundProtocol::Group(group)) => group.grows = true,
            Some(OutboundProtocol::Reject) => outbounds[0] = outbound(group(Vec::new())),
            _ => {
                let members = outbounds.iter().map(|outbound| Member::new(outbound.name.clone())).collect();
                outbounds.insert(0, outbound(group(members)));
            }
        }
        self.use_first();
        self.config.outbounds[0].name.clone()
    }

    /// Has every inbound use the first outbound.
    pub(crate) fn use_first(&mut self) {
        let Some(first) = self.config.outbounds.first() else { return };
        for inbound in &mut self.config.inbounds {
            inbound.outbound = first.name.clone();
        }
    }
}

/// The outbound of servers, unless they differ in how they dial.
pub(crate) const DIRECT: &str = "direct";
/// The group of a client's servers, or what stands for them until they are known.
pub(crate) const SERVERS: &str = "servers";

pub(crate) fn transports(text: &str) -> Result<Transports, Problem> {
    match text {
        "tcp_only" => Ok(Transports::Tcp),
        "udp_only" => Ok(Transports::Udp),
        "tcp_and_udp" => Ok(Transports::Both),
        _ => Err(Problem::new(format!("unknown mode: {}", value::excerpt(text)))
            .hint("write tcp_only, udp_only or tcp_and_udp")),
    }
}

/// The key of a password. shadowsocks-libev takes an empty one like any other.
pub(crate) fn password(
    family: ProgramFamily,
    method: ShadowsocksMethod,
    password: &Secret,
) -> Result<ShadowsocksKey, Problem> {
    let stretched =
        matches!(method.generation(), Generation::Stream | Generation::Aead) && method.key_len() > 0;
    if family == ProgramFamily::Libev && password.expose().is_empty() && stretched {
        let mut bytes = [0; 32];
        let bytes = &mut bytes[..method.key_len()];
        evp_bytes_to_key(b"", bytes);
        let text = Secret::new(STANDARD.encode(bytes));
        return ShadowsocksKey::new(method, text, KeyForm::Base64).map_err(|error| wrong_key(method, &error));
    }
    key(method, password.clone())
}

/// The obfs of a plugin that is built in: `obfs-local` or `obfs-server` with nothing but a mode and a
/// host. A path, or an option that has no counterpart, is left to the program itself.
fn simple_obfs(plugin: &Plugin, program: &str) -> Option<(ObfsServer, Option<String>)> {
    if *plugin.program != *program || !plugin.args.is_empty() || plugin.transports != Transports::Tcp {
        return None;
    }
    let (mut mode, mut host) = (None, None);
    for (name, value) in parse_options(&plugin.options) {
        match (name.as_str(), value.as_deref()) {
            ("obfs", Some("http")) => mode = Some(ObfsServer::Http),
            ("obfs", Some("tls")) => mode = Some(ObfsServer::Tls),
            ("obfs-host", Some(_)) => host = value,
            // An option of the plugin's own sockets, which are no longer there.
            ("fast-open", None) => {}
            _ => return None,
        }
    }
    Some((mode?, host))
}

/// The host that `obfs-local` of simple-obfs 0.0.5 names when it is told none.
const OBFS_HOST: &str = "cloudfront.net";

pub(crate) fn client_cover(plugin: Option<Plugin>) -> ClientCover {
    let Some(plugin) = plugin else { return ClientCover::default() };
    let host = |host: Option<String>| value::obfs_host(host.as_deref().unwrap_or(OBFS_HOST)).ok();
    let obfs = match simple_obfs(&plugin, "obfs-local") {
        Some((ObfsServer::Http, name)) => host(name).map(ObfsClient::Http),
        Some((ObfsServer::Tls, name)) => host(name).map(ObfsClient::Tls),
        Some((ObfsServer::Off, _)) | None => None,
    };
    obfs.map_or(ClientCover::Plugin(plugin), ClientCover::Obfs)
}

pub(crate) fn server_cover(plugin: Option<Plugin>) -> ServerCover {
    let Some(plugin) = plugin else { return ServerCover::default() };
    match simple_obfs(&plugin, "obfs-server") {
        Some((obfs, None)) => ServerCover::Obfs(obfs),
        _ => ServerCover::Plugin(plugin),
    }
}

/// An address to listen on, without its port.
pub(crate) fn listen_host(text: &str) -> Result<IpAddr, Problem> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match bare {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => bare.parse().map_err(|_| {
            Problem::new(format!("no address of this machine: {}", value::excerpt(text)))
                .hint("write an address, for instance 127.0.0.1, 0.0.0.0 or ::")
        }),
    }
}

/// Bytes of the largest packets, headers of IP and UDP included; 0 is as the system knows it.
pub(crate) fn mtu(text: &str) -> Result<Option<u16>, Problem> {
    match text.trim().parse() {
        Ok(0) => Ok(None),
        Ok(mtu @ 576..) => Ok(Some(mtu)),
        _ => Err(Problem::new(format!("no number of bytes from 576 to 65535: {}", value::excerpt(text)))),
    }
}

/// A port.
pub(crate) fn port(text: &str) -> Result<u16, Problem> {
    text.trim().parse().map_err(|_| Problem::new(format!("no port: {}", value::excerpt(text))))
}

/// `host`, `host:port` or `[v6]:port`; several colons without a bracket are an IPv6 address.
pub(crate) fn host_and_port(text: &str) -> Result<(&str, Option<u16>), Problem> {
    if text.parse::<IpAddr>().is_ok() || text.ends_with(']') || !text.contains(':') {
        return Ok((text, None));
    }
    let (host, own) = text.rsplit_once(':').unwrap_or((text, ""));
    Ok((host, Some(port(own)?)))
}

/// Name servers between commas.
pub(crate) fn name_servers(text: &str) -> Result<Vec<SocketAddr>, Problem> {
    let servers: Vec<_> = text.split(',').map(value::name_server).collect::<Result<_, _>>()?;
    if servers.len() > MAX_DNS {
        return Err(Problem::new(format!("more than {MAX_DNS} entries")));
    }
    Ok(servers)
}

/// The address of a local port: loopback, unless `host` gives another one.
pub(crate) fn local_host(host: Option<&OptionValue>, found: &mut Diagnostics) -> Option<IpAddr> {
    match host {
        Some(given) => given.parsed(found, listen_host),
        None => Some(Ipv4Addr::LOCALHOST.into()),
    }
}

/// Warns where the port `listen` of the address `host` is open to the network.
pub(crate) fn warn_of_host(host: Option<&OptionValue>, listen: SocketAddr, found: &mut Diagnostics) {
    if let (Some(given), Some(problem)) = (host, warn_of_open_port(listen)) {
        given.warning(found, problem);
    }
}

/// A proxy port for applications.
pub(crate) fn local(accepts: LocalProtocols) -> InboundProtocol {
    InboundProtocol::Local(Local { accepts, users: Vec::new(), reply: Reply::Early, open_to: Vec::new() })
}

/// The warning about a port that is open to the network.
pub(crate) fn warn_of_open_port(listen: SocketAddr) -> Option<Problem> {
    let open = !listen.ip().to_canonical().is_loopback();
    open.then(|| Problem::new("everybody who reaches this port can use it").hint("listen on 127.0.0.1"))
}

/// A server that a client uses, with its name and weights.
pub(crate) struct WeightedServer {
    pub(crate) name: Option<Box<str>>,
    pub(crate) protocol: OutboundProtocol,
    pub(crate) dial: Dial,
    pub(crate) tcp_weight: u8,
    pub(crate) udp_weight: u8,
}

/// The outbounds of a client: one server, or a group and its servers behind it. The first is the one to use.
pub(crate) fn outbounds(choices: Vec<WeightedServer>, check: Check) -> Vec<Outbound> {
    let many = choices.len() > 1;
    let mut taken = std::collections::HashSet::new();
    if many {
        taken.insert(Tag::from(SERVERS));
    }
    let (mut all, mut members) = (Vec::new(), Vec::new());
    for (i, choice) in choices.into_iter().enumerate() {
        let WeightedServer { name, protocol, dial, tcp_weight, udp_weight } = choice;
        let own = name.and_then(|name| crate::adit_toml::name(&name).ok());
        let numbered = || if many { format!("server-{}", i + 1) } else { "server".to_owned() };
        let mut name = own.map_or_else(|| Tag::from(numbered()), |name| Tag::from(&*name));
        for n in i + 1.. {
            if taken.insert(name.clone()) {
                break;
            }
            name = format!("server-{n}").into();
        }
        members.push(Member { outbound: name.clone(), tcp_weight, udp_weight });
        all.push(Outbound { name, dial, protocol });
    }
    if many {
        let protocol = OutboundProtocol::Group(Group { members, grows: false, check });
        all.insert(0, Outbound { name: SERVERS.into(), dial: Dial::default(), protocol });
    }
    all
}
