//! The one configuration model. It is valid by construction: the engine can rely on every value, and it does
//! not know which program's file or flags it came from.
//!
//! Beside it are the parts that every reader of texts shares: [`files`] opens files, [`diagnostic`] has findings, [`codes`]
//! their names, and [`shown`] the form in which texts of others are shown.

#![forbid(unsafe_code)]

pub mod access;
mod admin;
mod capture;
mod choice;
pub mod codes;
mod controller;
mod date;
pub mod diagnostic;
mod dns;
pub mod entries;
mod facts;
mod fake;
pub mod files;
mod fleet;
mod group;
mod hosts;
mod keys;
pub mod map;
mod nat;
mod pace;
mod protocol;
mod provider;
pub mod rule;
pub mod shown;
mod sniff;
mod tag;
mod tcp;
mod transports;
mod url;
mod user;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use adit_proto::wire::Target;
use zeroize::Zeroizing;

use crate::map::Map;

pub use self::admin::{AdminHttp, ControlSocket, Manage};
pub use self::capture::{Capture, CaptureMode, MAX_OWNERS, Owner, Selection};
pub use self::choice::{Balance, Choice, DELAY_URL, DelayTest, Policy, Refusal, Uses, expects};
pub use self::controller::{Controller, Facade, RuleLine};
pub use self::date::{Day, DayError, Expiry, ExpiryError};
pub use self::dns::{Dns, DnsFallback, DnsInbound, DnsLoop, DnsPolicy, DnsTransport, NameServer, Upstream};
pub use self::fake::{
    FAKE_HEAD, Fake, FakeFilter, FakeMode, FakeRange, FakeRangeError, FakeStore, MAX_FAKE_FILTER, MAX_FAKES,
    USUAL_FILTER, fake_pattern,
};
pub use self::fleet::{
    InDoubt, Panel, PanelKind, PanelToken, PanelUser, ReplayGroup, ServerKeyOf, Store, StoreAway, nobody,
};
pub use self::group::{CHECK_DNS, CHECK_URL, Check, Group, Member};
pub use self::hosts::{HostTable, is_pattern};
pub use self::nat::{Clients, Nat};
pub use self::pace::Pace;
pub use self::provider::{
    DatabaseFormat, Download, ListKind, MAX_DOCUMENT, OutboundList, Provider, ProviderKind, ProviderSource,
};
pub use self::sniff::{SniffPorts, Sniffer};
pub use self::tag::Tag;
pub use self::tcp::TcpOptions;
pub use self::url::{HttpUrl, UrlError, WebUrl, fuzz_http_url};
pub use self::user::{SnellKeys, User, UserLimits, Users, UsersError};
pub use crate::protocol::kcp::{KCP_MEMORY, KCP_MTU, Kcp, KcpClient, KcpPace, KcpParity, SNOWFLAKE_MTU};
pub use crate::protocol::obfs::{
    GoQuietClient, ObfsClientConfig, ObfsClientLayer, ObfsError, ObfsInbound, ObfsOutbound, ObfsServerLayer,
};
pub use crate::protocol::redirect::{Redirect, RedirectError, RedirectWhen};
pub use crate::protocol::shadowsocks::{
    ClientCover, KeyForm, Plugin, ReplayPolicy, ServerCover, ShadowsocksClient, ShadowsocksKey,
    ShadowsocksServer, ShadowsocksServerKey, Transports,
};
pub use crate::protocol::snell::{SNELL_MODES, SnellMode, SnellVersion, SnellVersions};
pub use crate::protocol::snowflake::{
    Acme, SnowflakeBroker, SnowflakePort, SnowflakeProbe, SnowflakeServer, SnowflakeTarget, TlsFiles,
};
pub use crate::protocol::snowflake_peers::{SNOWFLAKE_STREAM_WINDOW, SnowflakeClient, SnowflakeProxy};
pub use crate::protocol::socks_http::{ProxyClient, ProxyKind, ProxyTls, Verify};
pub use crate::protocol::ssr::{SsrClient, SsrError, SsrServer, SsrUsers};
pub use crate::protocol::tun::{Tun, TunAddress, TunAddressError, TunPrefix};

/// Everything that one process runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    /// Settings of the log.
    pub log: Log,
    /// Unix socket of the control interface.
    pub admin: ControlSocket,
    /// HTTP interface for metrics and health, if there is one.
    pub admin_http: Option<AdminHttp>,
    /// The interface over which others manage users, if there is one.
    pub manage: Option<Manage>,
    /// The control interface for dashboards, if there is one.
    pub controller: Option<Controller>,
    /// Facts for control programs, where the file is of a form that has more of them than this model.
    pub facade: Option<Arc<Facade>>,
    /// Whether a change of the configuration's files is followed as it is made.
    pub watch: bool,
    /// The file that keeps the counters of users across restarts.
    pub state: StateFile,
    /// Event loops; `None` means one per processor, at most [`MAX_CORES`].
    pub cores: Option<usize>,
    /// Limits that hold for the whole process.
    pub limits: Limits,
    /// Access control for all inbounds, and for the ports that a manager opens where there are none.
    pub acl: Option<access::AccessList>,
    /// The same for single inbounds, by name, in the place of [`Config::acl`].
    pub acl_of: Map<Tag, access::AccessList>,
    /// Settings of the datagram relay.
    pub udp: Udp,
    /// Settings of name resolution.
    pub dns: Dns,
    /// The user that plugins run as; otherwise that of this process. For a process that becomes that user once its ports
    /// are open, and could not end another one's children then.
    pub plugin_user: Option<Box<str>>,
    /// The capture of traffic, if there is one.
    pub capture: Option<Capture>,
    /// The inbounds; never two with one name.
    pub inbounds: Vec<Inbound>,
    /// The outbounds; never two with one name. Every name that an inbound or a group refers to is among them.
    pub outbounds: Vec<Outbound>,
    /// Rules for requests that take another outbound than that of their inbound, in order.
    pub rules: Vec<rule::Rule>,
    /// When the programs of clients are sought.
    pub find_program: rule::FindProgram,
    /// Names that are read from clients' first bytes, if they are.
    pub sniffer: Option<Sniffer>,
    /// Lists that rules refer to; never two with one name.
    pub sets: Vec<rule::Set>,
    /// Database of the countries of addresses, if a rule asks.
    pub geoip: Option<rule::GeoFile>,
    /// Lists that rules refer to and that have been read with the configuration; no name is that of a set.
    pub lists: Map<Tag, Arc<entries::Entries>>,
    /// Lists that are kept up to date while this runs.
    pub providers: Vec<Provider>,
    /// Lists of outbounds as the file names them; never two with one name.
    pub outbound_lists: Vec<OutboundList>,
    /// Plugins that entries of lists may run, by the name of the program.
    pub plugins_allowed: Vec<Box<str>>,
    /// The file that keeps the members that people choose across restarts.
    pub choices: Option<PathBuf>,
    /// Panels that list users; never two with one name.
    pub panels: Vec<Panel>,
    /// The panel that lists the users of an inbound, by the inbound's name. Such an inbound has users at any time: one that
    /// nobody is, as long as there are no others.
    pub panel_of: Map<Tag, Tag>,
    /// The store that servers share, if there is one.
    pub store: Option<Store>,
}

impl Config {
    /// A loop of outbounds that dial through each other: the names along it, the first one again at its end.
    pub fn through_loop(outbounds: &[Outbound]) -> Option<Vec<Tag>> {
        let next = |name: &Tag| {
            let outbound = outbounds.iter().find(|outbound| outbound.name == *name)?;
            outbound.dial.through.clone()
        };
        outbounds.iter().find_map(|outbound| {
            let mut path = vec![outbound.name.clone()];
            while let Some(through) = next(path.last()?) {
                let is_start = through == outbound.name;
                path.push(through);
                if is_start {
                    return Some(path);
                }
                if path.len() > outbounds.len() {
                    return None;
                }
            }
            None
        })
    }

    /// The outbound of this name.
    pub fn outbound(&self, name: &str) -> Option<&Outbound> {
        self.outbounds.iter().find(|outbound| *outbound.name == *name)
    }

    /// The inbound of this name.
    pub fn inbound(&self, name: &str) -> Option<&Inbound> {
        self.inbounds.iter().find(|inbound| *inbound.name == *name)
    }

    /// The access control of an inbound.
    pub fn access(&self, inbound: &Inbound) -> Option<&access::AccessList> {
        self.acl_of.get(&inbound.name).or(self.acl.as_ref())
    }
}

/// Most event loops that are started without being asked for.
pub const MAX_CORES: usize = 8;

/// The file that keeps the counters of users across restarts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StateFile {
    /// A file for this configuration in the platform's state directory, resolved by the program at start.
    #[default]
    Usual,
    /// None: counters end with the process.
    Off,
    /// This file. The configuration does not start without it.
    At(PathBuf),
    /// This file. Without it the configuration starts with a warning, and counters end with the process.
    Try {
        /// The file.
        path: PathBuf,
        /// The store of earlier versions, one for all configurations. Read when `path` does not exist yet.
        earlier: PathBuf,
    },
}

/// Settings of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Least severe level that is written.
    pub level: Level,
    /// Shape of a line.
    pub format: LogFormat,
    /// Whether lines carry the time (a journal adds its own).
    pub time: bool,
    /// Whether destinations appear in lines of level info.
    pub destinations: bool,
    /// The file that lines go to; `None` for standard error.
    pub file: Option<PathBuf>,
    /// Length of the file in bytes at which another one is begun.
    pub max_size: u64,
    /// Earlier files that are kept, as `FILE.1`, `FILE.2` and so on.
    pub keep: u8,
}

impl Log {
    /// Length of a file unless written, in bytes.
    pub const MAX_SIZE: u64 = 10 << 20;
    /// Least length of a file, in bytes.
    pub const MIN_MAX_SIZE: u64 = 64 << 10;
    /// Earlier files that are kept unless written.
    pub const KEEP: u8 = 3;
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: Level::Info,
            format: LogFormat::Text,
            time: true,
            destinations: false,
            file: None,
            max_size: Self::MAX_SIZE,
            keep: Self::KEEP,
        }
    }
}

/// Severity of a log line, most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A person should act.
    Error,
    /// Something is degraded.
    Warn,
    /// Start, stop, and counts.
    Info,
    /// One line per connection and more.
    Debug,
    /// Everything short of keys.
    Trace,
}

/// Shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// `key=value` after a text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Time that a relayed connection may be still: RFC 5382 (REQ-5) asks it of every NAT, so that an idle shell
/// lives as long behind adit as without it. Peers that are gone are found by keep-alive probes long before.
pub const IDLE: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// Limits that hold for the whole process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// A relayed connection without a byte in either direction for this long is ended; `None` never ends one.
    pub idle: Option<Duration>,
    /// Time for a graceful end after the first signal.
    pub drain: Duration,
    /// If a server would drop its answer at the end of a client's data, that end is passed on after this long without a
    /// byte, once there was an answer. At least a second.
    pub half_close: Duration,
    /// The same before there was any answer.
    pub half_close_unanswered: Duration,
    /// Connections to server inbounds that have not authenticated yet, in total; `None` for 4096, or fewer where
    /// descriptors or memory are scarce.
    pub unauthenticated: Option<usize>,
    /// The same per source (IPv4 address, IPv6 /64); `None` for a number from 128 to 512 that each start draws.
    pub unauthenticated_per_source: Option<usize>,
    /// Bytes that the sessions of carriers hold together, at least [`Limits::MIN_CARRIER_MEMORY`]; `None` for a quarter
    /// of what the process has.
    pub carrier_memory: Option<usize>,
}

impl Limits {
    /// Enough for a hundred sessions at rest.
    pub const MIN_CARRIER_MEMORY: usize = 16 << 20;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            idle: Some(IDLE),
            drain: Duration::from_secs(10),
            half_close: Duration::from_secs(5),
            half_close_unanswered: Duration::from_secs(60),
            unauthenticated: None,
            unauthenticated_per_source: None,
            carrier_memory: None,
        }
    }
}

/// Settings of the datagram relay, for the whole process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Udp {
    /// A flow without a datagram in either direction for this long is forgotten; at least [`Udp::MIN_IDLE`].
    pub idle: Duration,
    /// Flows per listener and event loop, at least 1; each holds a descriptor.
    pub flows: usize,
    /// Whether marks of congestion (RFC 3168) are carried from one side to the other.
    pub ecn: bool,
    /// Differentiated services code point (RFC 2474) of sealed datagrams, 0 to 63.
    pub dscp: u8,
    /// Whether sealed datagrams that are larger than the path takes are sent in fragments.
    pub fragment: bool,
    /// Largest packet that the path takes, headers of IP and UDP included; `None` for what the system knows.
    pub mtu: Option<u16>,
    /// Whether datagrams of bulk gather for up to 0.2 ms before they are relayed. It was measured to pay nowhere but at the
    /// highest rates: docs/udp.md.
    pub gather: bool,
}

impl Udp {
    /// SIP022 has packet numbers remembered for a minute.
    pub const MIN_IDLE: Duration = Duration::from_secs(60);
}

impl Default for Udp {
    fn default() -> Self {
        // RFC 4787 (REQ-5) recommends five minutes; so does shadowsocks-rust.
        let idle = Duration::from_secs(300);
        Self { idle, flows: 4096, ecn: false, dscp: 0, fragment: false, mtu: None, gather: false }
    }
}

/// One listener with its protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct Inbound {
    /// Name in logs and status.
    pub name: Tag,
    /// Addresses to listen on, at least one unless there is a [`SocketOptions::unix`]; none with [`InboundProtocol::Tun`].
    pub listen: Vec<SocketAddr>,
    /// Options of the listening sockets and of the connections they accept.
    pub socket: SocketOptions,
    /// The one of [`Config::outbounds`] that its connections take.
    pub outbound: Tag,
    /// Its clients may reach private targets: loopback, link-local, RFC 1918 and the like, and this machine. False
    /// for servers of `adit.toml` that do not say so; true for local ports, and under the names of other programs,
    /// which ask nobody. It concerns requests that this machine dials itself and that no rule has decided; see
    /// [`Inbound::leads_anywhere`].
    pub allow_private: bool,
    /// Its protocol.
    pub protocol: InboundProtocol,
}

/// Protocol of an inbound.
#[derive(Debug, Clone, PartialEq)]
pub enum InboundProtocol {
    /// SOCKS4, 4a, 5 and HTTP proxying for applications.
    Local(Local),
    /// A Snell server.
    Snell(SnellServer),
    /// A Shadowsocks server.
    Shadowsocks(ShadowsocksServer),
    /// A ShadowsocksR server.
    Ssr(SsrServer),
    /// An obfs alone, in front of one fixed target.
    Obfs(ObfsInbound),
    /// Traffic that rules of the system's firewall bring, with the targets that it had.
    Captured(Captured),
    /// Everything goes to one fixed target.
    Tunnel {
        /// The target.
        target: Target,
        /// Transports that it carries.
        transports: Transports,
    },
    /// Everything that a virtual interface takes in goes to where its packets say.
    Tun(Tun),
    /// A name server for applications.
    Dns(DnsInbound),
}

impl InboundProtocol {
    /// The word of lists of connections, and of rules in any case, for the way by which requests come in here. A request to
    /// a port of several protocols may have another one.
    pub fn entry(&self) -> &'static str {
        match self {
            Self::Local(local) if local.accepts == LocalProtocols::Http => "HTTPS",
            Self::Local(_) => "Socks5",
            Self::Snell(_) => "Snell",
            Self::Shadowsocks(_) => "ShadowSocks",
            Self::Ssr(_) => "ShadowSocksR",
            Self::Obfs(_) | Self::Tunnel { .. } => "Tunnel",
            Self::Captured(captured) => match captured.by {
                CapturedBy::Redirect => "Redir",
                CapturedBy::Tproxy => "TProxy",
            },
            Self::Tun(_) => "Tun",
            Self::Dns(_) => "Inner",
        }
    }

    /// The users that it tells apart.
    pub fn users(&self) -> &[User] {
        match self {
            Self::Local(local) => &local.users,
            Self::Snell(server) => server.psk.users(),
            Self::Shadowsocks(server) => server.key.users(),
            Self::Ssr(server) => server.users.users(),
            Self::Obfs(_) | Self::Captured(_) | Self::Tunnel { .. } | Self::Dns(_) | Self::Tun(_) => &[],
        }
    }

    /// The way in which traffic comes, if the firewall brings it.
    pub fn captured(&self) -> Option<&Captured> {
        if let Self::Captured(captured) = self { Some(captured) } else { None }
    }

    /// Whether it remembers the salts of its clients, so that no connection is served twice.
    pub fn remembers_salts(&self) -> bool {
        match self {
            Self::Snell(_) | Self::Shadowsocks(_) | Self::Ssr(_) => true,
            Self::Local(_)
            | Self::Obfs(_)
            | Self::Captured(_)
            | Self::Tunnel { .. }
            | Self::Dns(_)
            | Self::Tun(_) => false,
        }
    }
}

/// A port that the system's firewall brings traffic to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured {
    /// The way in which connections come; datagrams come by [`CapturedBy::Tproxy`] always.
    pub by: CapturedBy,
    /// The traffic that it takes.
    pub transports: Transports,
}

/// The way in which the firewall brings connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapturedBy {
    /// It gives them another target, and remembers the first one (`REDIRECT`, `DNAT`).
    Redirect,
    /// It hands them over as they are (`TPROXY`).
    Tproxy,
}

/// A proxy port for applications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// Protocols that the port takes.
    pub accepts: LocalProtocols,
    /// The users, by name and password; empty for no authentication. Names differ.
    pub users: Vec<User>,
    /// When a tunnelled request is answered with success.
    pub reply: Reply,
    /// Networks whose clients need no password where there are users.
    pub open_to: Vec<rule::Cidr>,
}

/// Protocols that a local port takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalProtocols {
    /// SOCKS4, 4a and 5.
    Socks,
    /// HTTP.
    Http,
    /// All of them, told apart by the first byte.
    Mixed,
}

/// When a local request to a tunnel is answered with success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reply {
    /// At once: the request leaves together with the application's first bytes.
    #[default]
    Early,
    /// When the connection that this end makes is there: to the target itself, or, for a tunnel, to the tunnel's server.
    /// The server's report about the target may come as late as the target's first bytes, so adit does not wait for it.
    Connected,
}

/// A Snell server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnellServer {
    /// The pre-shared key, or those of its users.
    pub psk: SnellKeys,
    /// The versions that it takes.
    pub versions: SnellVersions,
    /// Obfs around the Snell stream; none where a version has none.
    pub obfs: ObfsServer,
    /// Whether datagrams over streams (command 6) are served.
    pub udp: bool,
    /// Whether QUIC is taken on the UDP port of the same number.
    pub quic: bool,
}

/// Obfs that a server expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ObfsServer {
    /// None.
    #[default]
    Off,
    /// An HTTP upgrade.
    Http,
    /// A TLS 1.2 session with a ticket.
    Tls,
}

/// One way out.
#[derive(Debug, Clone, PartialEq)]
pub struct Outbound {
    /// Name in logs and status.
    pub name: Tag,
    /// Settings of outgoing sockets.
    pub dial: Dial,
    /// Its protocol.
    pub protocol: OutboundProtocol,
}

/// Protocol of an outbound.
#[derive(Debug, Clone, PartialEq)]
pub enum OutboundProtocol {
    /// Straight to the target.
    Direct,
    /// Nowhere: every request is refused.
    Reject,
    /// Through a Snell server.
    Snell(SnellClient),
    /// Through a Shadowsocks server.
    Shadowsocks(ShadowsocksClient),
    /// Through a ShadowsocksR server.
    Ssr(SsrClient),
    /// To one fixed server, in an obfs alone.
    Obfs(ObfsOutbound),
    /// Through one of several others.
    Group(Group),
    /// Through the member of a group that a person or a test has chosen.
    Choice(Choice),
    /// Through a SOCKS5 or HTTP proxy.
    Proxy(ProxyClient),
    /// To the process's own name service, for any target.
    Dns {
        /// Whether AAAA records are answered; otherwise names have none.
        ipv6: bool,
    },
    /// Nowhere, in another manner than [`OutboundProtocol::Reject`].
    Refuse(Refusal),
}

/// A Snell client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnellClient {
    /// The server.
    pub server: Target,
    /// The pre-shared key.
    pub psk: Secret,
    /// The id of this user among others with the same key, at most 255 bytes; most servers do not look at it.
    pub client_id: Option<Secret>,
    /// The version that it speaks.
    pub version: SnellVersion,
    /// Obfs around the Snell stream; none where the version has none.
    pub obfs: ObfsClient,
    /// Keeps connections for further requests (connect v2); what the version fixes, where it does.
    pub reuse: bool,
    /// When the end of the local side's data is passed on.
    pub half_close: HalfClose,
    /// Whether datagrams are carried.
    pub udp: bool,
    /// The way in which QUIC is carried, if datagrams are.
    pub quic: Quic,
}

/// The way in which a Snell client carries QUIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quic {
    /// As [`Quic::On`], and over the stream for a while when the server does not answer.
    #[default]
    Auto,
    /// As datagrams to the server's UDP port, which go on as they are.
    On,
    /// Over the stream, like all other datagrams.
    Off,
    /// Not at all: applications fall back to TCP.
    Block,
}

/// Obfs of a client, with the host that it names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ObfsClient {
    /// None.
    #[default]
    Off,
    /// An HTTP upgrade to this host.
    Http(Box<str>),
    /// A TLS 1.2 session with this server name.
    Tls(Box<str>),
}

impl ObfsClient {
    /// The mode, without the host.
    pub fn kind(&self) -> ObfsServer {
        match self {
            Self::Off => ObfsServer::Off,
            Self::Http(_) => ObfsServer::Http,
            Self::Tls(_) => ObfsServer::Tls,
        }
    }
}

/// When a Snell client tells the server that the local side has sent everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HalfClose {
    /// At once where the server has shown itself to be adit, late otherwise.
    #[default]
    Auto,
    /// At once: right for adit servers; most others then drop what the target has yet to answer.
    On,
    /// Once the server's data has ended: no byte of an answer is lost with any server, but a target that answers
    /// only after the end of its input waits for a minute.
    Late,
}

/// Settings of outgoing sockets.
#[derive(Debug, Clone, PartialEq)]
pub struct Dial {
    /// Address families that are used.
    pub family: AddressFamilies,
    /// Interface, source address and mark of outgoing sockets.
    pub egress: Egress,
    /// Name servers of this outbound alone, asked by UDP; empty for those of [`Config::dns`].
    pub dns: Vec<NameServer>,
    /// TCP Fast Open on outgoing connections.
    pub fast_open: bool,
    /// TCP options of outgoing connections.
    pub tcp: TcpOptions,
    /// Time for name resolution and all connection attempts together.
    pub timeout: Duration,
    /// The carrier: connections are streams of a session with this server, instead of TCP connections to the target.
    pub carrier: Option<Box<KcpClient>>,
    /// Unix socket for every connection, with any target.
    pub unix: Option<PathBuf>,
    /// Rate at which the connections to one address send together; none with a carrier, which has a pace of its own.
    pub pace: Option<Pace>,
    /// The outbound that carries every connection, in the place of TCP; never in a loop, and without datagrams.
    pub through: Option<Tag>,
}

impl Dial {
    /// Whether it leads streams to a place that datagrams have no way to.
    pub fn takes_streams_alone(&self) -> bool {
        self.through.is_some() || self.carrier.as_ref().is_some_and(|carrier| carrier.has_streams())
    }
}

impl Default for Dial {
    fn default() -> Self {
        Self {
            family: AddressFamilies::Any,
            egress: Egress::default(),
            dns: Vec::new(),
            fast_open: false,
            tcp: TcpOptions::default(),
            timeout: Duration::from_secs(10),
            carrier: None,
            unix: None,
            pace: None,
            through: None,
        }
    }
}

/// Interface, source address and mark of outgoing sockets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Egress {
    /// Interface that they are bound to.
    pub interface: Option<Box<str>>,
    /// Address that IPv4 is sent from.
    pub v4: Option<Ipv4Addr>,
    /// Address that IPv6 is sent from.
    pub v6: Option<Ipv6Addr>,
    /// Mark by which routing rules and firewalls know them (`SO_MARK`).
    pub mark: Option<u32>,
}

impl Egress {
    /// Sends from `source` what is of its family; true if there was another address for that.
    pub fn set_source(&mut self, source: IpAddr) -> bool {
        match source {
            IpAddr::V4(ip) => self.v4.replace(ip).is_some(),
            IpAddr::V6(ip) => self.v6.replace(ip).is_some(),
        }
    }

    /// Takes each setting that is missing here from `general`.
    #[must_use]
    pub fn or(self, general: &Self) -> Self {
        let has_source = self.v4.is_some() || self.v6.is_some();
        let (v4, v6) = if has_source { (self.v4, self.v6) } else { (general.v4, general.v6) };
        Self {
            interface: self.interface.or_else(|| general.interface.clone()),
            v4,
            v6,
            mark: self.mark.or(general.mark),
        }
    }

    /// Source address for packets to `peer`, if it is not left to the system.
    pub fn source(&self, peer: IpAddr) -> Option<IpAddr> {
        match peer.to_canonical() {
            IpAddr::V4(_) => self.v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.v6.map(IpAddr::V6),
        }
    }

    /// The addresses that there are.
    pub fn sources(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

/// Address families that an outbound uses, and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressFamilies {
    /// Both, by Happy Eyeballs (RFC 8305), IPv6 first.
    #[default]
    Any,
    /// Both, IPv4 first.
    PreferV4,
    /// IPv4 alone.
    V4Only,
    /// IPv6 alone.
    V6Only,
}

/// Options of listening sockets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SocketOptions {
    /// TCP Fast Open on the listener.
    pub fast_open: bool,
    /// TCP options of incoming connections.
    pub tcp: TcpOptions,
    /// Interface that the listener is bound to.
    pub interface: Option<Box<str>>,
    /// Unix socket that connections come to as well; without a carrier. Its mode is what the umask leaves, as the
    /// programs that listen on one have it.
    pub unix: Option<PathBuf>,
    /// Other processes of the same user may listen there as well (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// Connections that come as streams of sessions, in the place of TCP.
    pub carrier: Option<Box<Kcp>>,
    /// Rate at which the connections from one address send together; none with a carrier, which has a pace of its own.
    pub pace: Option<Pace>,
}

impl SocketOptions {
    /// Whether connections are streams of sessions whose packets are datagrams.
    pub fn has_datagrams(&self) -> bool {
        self.carrier.as_ref().is_some_and(|carrier| !carrier.has_streams())
    }

    /// Whether connections are streams of sessions whose packets come by other streams.
    pub fn has_packets_in_streams(&self) -> bool {
        self.carrier.as_ref().is_some_and(|carrier| carrier.has_streams())
    }
}

/// A key or password. Its `Debug` form never shows it, and it is wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<Zeroizing<String>>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Arc::new(Zeroizing::new(text.into())))
    }

    /// The text itself: for key derivation and for writing configuration, never for logs.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
