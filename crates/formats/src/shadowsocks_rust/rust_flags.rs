//! The command lines.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use zeroize::Zeroizing;

use super::RustProgram;
use crate::read::usage;
use crate::shadowsocks::ProgramFamily;
use crate::shadowsocks::getopt::{self, Item, Opt, switch, value};

/// Action that a command line asks for.
#[derive(Debug, Clone)]
pub enum RustInvocation {
    /// To run.
    Run(Box<RustFlags>),
    /// To print [`usage`] and to exit with status 0.
    Help,
    /// To print name and version, and to exit with status 0.
    Version,
}

/// The flags of a run.
#[derive(Clone, Default)]
pub struct RustFlags {
    /// The configuration file: `-c FILE`; without it one of [`super::default_paths`].
    pub config: Option<PathBuf>,
    pub(super) items: Vec<Item<RustFlag>>,
}

/// Without values, which may be passwords.
impl std::fmt::Debug for RustFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.items.iter().map(|item| item.name.as_str()).collect();
        f.debug_struct("Flags").field("config", &self.config).field("given", &names).finish_non_exhaustive()
    }
}

impl RustFlags {
    /// Whether a server stands on the command line: then no file is read but the one of `-c`.
    pub fn names_server(&self) -> bool {
        self.has(RustFlag::ServerAddr) || self.has(RustFlag::ServerUrl)
    }

    pub(super) fn get(&self, flag: RustFlag) -> Option<&Item<RustFlag>> {
        self.items.iter().find(|item| item.id == flag)
    }

    pub(super) fn has(&self, flag: RustFlag) -> bool {
        self.get(flag).is_some()
    }
}

/// One flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RustFlag {
    Config,
    LocalAddr,
    UdpOnly,
    TcpAndUdp,
    Protocol,
    ServerAddr,
    ServerHost,
    Password,
    Method,
    Timeout,
    Plugin,
    PluginMode,
    PluginOptions,
    ServerUrl,
    Acl,
    Dns,
    NoDelay,
    FastOpen,
    UdpTimeout,
    UdpAssociations,
    BindInterface,
    BindAddr,
    Mark,
    Ipv6First,
    Verbose,
    LogWithoutTime,
    ForwardAddr,
    OpenFiles,
    ManagerAddr,
    ManagerDirectory,
    Daemonize,
    PidFile,
    SingleThreaded,
    Workers,
    User,
    OnlineUrl,
    OnlineInterval,
    OnlinePlugin,
    KeepAlive,
    Multipath,
    InboundSend,
    InboundReceive,
    OutboundSend,
    OutboundReceive,
    TunName,
    TunAddress,
    TunDestination,
    TunPath,
    LocalDns,
    RemoteDns,
    FakeExpire,
    FakeV4,
    FakeV6,
    FakeDatabase,
    /// Belongs to protocols that are not in this build, or has no effect yet.
    TcpRedir,
    UdpRedir,
    Later,
    Help,
    Version,
}

const LOCAL: &[RustProgram] = &[RustProgram::Local];
const SERVER: &[RustProgram] = &[RustProgram::Server];
const MANAGER: &[RustProgram] = &[RustProgram::Manager];
const ENDS: &[RustProgram] = &[RustProgram::Local, RustProgram::Server];
const SERVERS: &[RustProgram] = &[RustProgram::Server, RustProgram::Manager];
const ALL: &[RustProgram] = &RustProgram::ALL;

macro_rules! known {
    ($($programs:ident $kind:ident($flag:ident, $short:expr, $long:expr) $usage:literal;)*) => {
        const OPTIONS: &[Opt<RustFlag>] = &[$($kind(RustFlag::$flag, $short, $long)),*];
        /// In the same order.
        const KNOWN: &[(&[RustProgram], &str)] = &[$(($programs, $usage)),*];
    };
}

known! {
    ALL value(Config, Some('c'), &["config"]) "FILE  configuration file";
    LOCAL value(LocalAddr, Some('b'), &["local-addr"]) "ADDRESS:PORT  local port";
    LOCAL value(Protocol, None, &["protocol"]) "NAME  what it speaks: socks (default), http, tunnel or tun";
    LOCAL value(ForwardAddr, Some('f'), &["forward-addr"]) "HOST:PORT  target of protocol tunnel";
    ENDS value(ServerAddr, Some('s'), &["server-addr"]) "HOST:PORT  server";
    MANAGER value(ServerHost, Some('s'), &["server-host"]) "ADDRESS  address of its servers";
    ENDS value(Password, Some('k'), &["password"]) "PASSWORD  password; without it SS_SERVER_PASSWORD of the environment";
    ALL value(Method, Some('m'), &["encrypt-method"]) "METHOD  method";
    ALL switch(UdpOnly, Some('u'), &[]) "datagrams alone";
    ALL switch(TcpAndUdp, Some('U'), &[]) "datagrams too";
    ALL value(Timeout, None, &["timeout"]) "SECONDS  time to connect";
    ALL value(Plugin, None, &["plugin"]) "PROGRAM  SIP003 plugin";
    ALL value(PluginMode, None, &["plugin-mode"]) "MODE  what goes through it: tcp_only (default), udp_only or tcp_and_udp";
    ALL value(PluginOptions, None, &["plugin-opts"]) "OPTIONS  its options";
    LOCAL value(ServerUrl, None, &["server-url"]) "URL  server as ss://";
    ALL value(Acl, None, &["acl"]) "FILE  access control list";
    ALL value(Dns, None, &["dns"]) "SERVERS  name servers, with commas";
    ALL value(Later, None, &["dns-cache-size"]) "NUMBER  no effect yet";
    ALL switch(NoDelay, None, &["tcp-no-delay", "no-delay"]) "TCP_NODELAY, which is always on";
    ALL switch(FastOpen, None, &["tcp-fast-open", "fast-open"]) "TCP Fast Open";
    ALL value(KeepAlive, None, &["tcp-keep-alive"]) "SECONDS  silence before a peer is asked whether it is there (default 15)";
    ALL switch(Multipath, None, &["tcp-multipath", "mptcp"]) "Multipath TCP";
    ALL value(UdpTimeout, None, &["udp-timeout"]) "SECONDS  association without datagrams (default 300)";
    ALL value(UdpAssociations, None, &["udp-max-associations"]) "NUMBER  most associations";
    ALL value(InboundSend, None, &["inbound-send-buffer-size"]) "BYTES  send buffer of accepted connections";
    ALL value(InboundReceive, None, &["inbound-recv-buffer-size"]) "BYTES  receive buffer of accepted connections";
    ALL value(OutboundSend, None, &["outbound-send-buffer-size"]) "BYTES  send buffer of outgoing connections";
    ALL value(OutboundReceive, None, &["outbound-recv-buffer-size"]) "BYTES  receive buffer of outgoing connections";
    SERVERS value(BindAddr, Some('b'), &["outbound-bind-addr", "bind-addr"]) "ADDRESS  sends from this address";
    LOCAL value(BindAddr, None, &["outbound-bind-addr", "bind-addr"]) "ADDRESS  sends from this address";
    ALL value(BindInterface, None, &["outbound-bind-interface"]) "NAME  interface of outgoing connections";
    SERVER value(Later, None, &["outbound-proxy"]) "URL  not in this build";
    ALL switch(Ipv6First, Some('6'), &[]) "IPv6 before IPv4";
    SERVERS value(ManagerAddr, None, &["manager-addr", "manager-address"]) "ADDRESS  manager: HOST:PORT or path of a socket";
    MANAGER value(Later, None, &["manager-server-mode"]) "MODE  no effect: servers run inside";
    MANAGER value(ManagerDirectory, None, &["manager-server-working-directory"]) "DIRECTORY  working directory";
    ALL switch(Verbose, Some('v'), &[]) "writes debug lines too; twice, everything";
    ALL switch(LogWithoutTime, None, &["log-without-time"]) "leaves the time out of the log";
    ALL value(Later, None, &["log-config"]) "FILE  no effect";
    ALL value(OpenFiles, Some('n'), &["nofile"]) "NUMBER  most open files";
    ALL value(Mark, None, &["outbound-fwmark"]) "MARK  marks what is sent (SO_MARK)";
    LOCAL value(Later, None, &["udp-bind-addr"]) "ADDRESS:PORT  no effect yet";
    LOCAL value(Later, None, &["udp-associate-addr"]) "ADDRESS:PORT  no effect yet";
    LOCAL value(TcpRedir, None, &["tcp-redir"]) "TYPE  redirect (default) or tproxy, for protocol redir";
    LOCAL value(UdpRedir, None, &["udp-redir"]) "TYPE  tproxy, for protocol redir";
    LOCAL switch(Later, None, &["vpn"]) "no effect";
    LOCAL value(Later, None, &["stat-path"]) "FILE  no effect";
    LOCAL value(Later, None, &["stat-addr"]) "ADDRESS:PORT  no effect";
    LOCAL value(LocalDns, None, &["local-dns-addr"]) "ADDRESS:PORT  server for names that go straight, of protocol dns";
    LOCAL value(RemoteDns, None, &["remote-dns-addr"]) "HOST:PORT  server for the other names, of protocol dns";
    LOCAL value(Later, None, &["dns-addr"]) "ADDRESS  no effect: --protocol dns opens such a port";
    LOCAL value(TunName, None, &["tun-interface-name"]) "NAME  interface of protocol tun";
    LOCAL value(TunAddress, None, &["tun-interface-address"]) "NETWORK  its address, as 10.255.0.1/24";
    LOCAL value(TunDestination, None, &["tun-interface-destination"]) "NETWORK  far end, which is always the next address";
    LOCAL value(TunPath, None, &["tun-device-fd-from-path"]) "FILE  not in this build: the interface is always made";
    LOCAL value(FakeExpire, None, &["fake-dns-record-expire-duration"]) "SECONDS  lifetime of answers of protocol fake-dns";
    LOCAL value(FakeV4, None, &["fake-dns-ipv4-network"]) "NETWORK  addresses of protocol fake-dns";
    LOCAL value(FakeV6, None, &["fake-dns-ipv6-network"]) "NETWORK  addresses of protocol fake-dns";
    LOCAL value(FakeDatabase, None, &["fake-dns-database-path"]) "FILE  names of protocol fake-dns";
    ALL switch(Daemonize, Some('d'), &["daemonize"]) "goes into the background";
    ALL value(PidFile, None, &["daemonize-pid"]) "FILE  the same, and writes its number there";
    ALL switch(SingleThreaded, None, &["single-threaded"]) "one event loop";
    ALL value(Workers, None, &["worker-threads"]) "NUMBER  event loops";
    ALL value(User, Some('a'), &["user"]) "USER  runs as this user";
    LOCAL value(OnlineUrl, None, &["online-config-url"]) "URL  list of servers that is fetched";
    LOCAL value(OnlineInterval, None, &["online-config-update-interval"]) "SECONDS  time between two fetches (default 3600)";
    LOCAL value(OnlinePlugin, None, &["online-config-allowed-plugin"]) "PROGRAM  plugin that the list may name; may be given again";
    ALL switch(Help, Some('h'), &["help"]) "prints this text";
    ALL switch(Version, Some('V'), &["version"]) "prints name and version";
}

/// Flags that make sense with another alone: one of the programs' own rules.
const NEEDS: &[(RustFlag, RustFlag, &str, &[RustProgram])] = &[
    (RustFlag::ServerAddr, RustFlag::Method, "--encrypt-method", ENDS),
    (RustFlag::Method, RustFlag::ServerAddr, "--server-addr", ENDS),
    (RustFlag::Password, RustFlag::ServerAddr, "--server-addr", ENDS),
    (RustFlag::Timeout, RustFlag::ServerAddr, "--server-addr", ENDS),
    (RustFlag::Plugin, RustFlag::ServerAddr, "--server-addr", ENDS),
    (RustFlag::PluginMode, RustFlag::Plugin, "--plugin", ALL),
    (RustFlag::PluginOptions, RustFlag::Plugin, "--plugin", ALL),
    (RustFlag::ForwardAddr, RustFlag::LocalAddr, "--local-addr", LOCAL),
    (RustFlag::Protocol, RustFlag::LocalAddr, "--local-addr", LOCAL),
    (RustFlag::UdpOnly, RustFlag::LocalAddr, "--local-addr", LOCAL),
    (RustFlag::UdpOnly, RustFlag::ServerAddr, "--server-addr", SERVER),
    (RustFlag::TcpAndUdp, RustFlag::ServerAddr, "--server-addr", SERVER),
];

/// The flags of a program, for a person.
pub fn usage(program: RustProgram) -> String {
    let mut out = usage::head(program.name(), "shadowsocks-rust 1.25");
    for (option, (_, usage)) in
        OPTIONS.iter().zip(KNOWN).filter(|(_, (programs, _))| programs.contains(&program))
    {
        let long = &option.long[..option.long.len().min(1)];
        let usage = usage.split_once("  ").unwrap_or(("", usage));
        out.push_str(&getopt::usage_line(option, long, usage, 34));
    }
    out
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// The first flag that is none, or does not go with the others; the programs exit with [`super::Exit::Flag`] then.
pub fn flags(
    program: RustProgram,
    args: impl IntoIterator<Item = OsString>,
) -> Result<RustInvocation, Diagnostics> {
    let file: Arc<str> = "command line".into();
    let error = |name: &str, problem: &str| -> Diagnostics {
        let error = Diagnostic::error(&file, format!("{} {name}", program.name()), problem);
        error.hint("--help lists the flags").into()
    };
    let (items, operands, wrong) = getopt::read(ProgramFamily::Rust, of(program), args);
    if items.iter().any(|item| item.id == RustFlag::Help) {
        return Ok(RustInvocation::Help);
    }
    if items.iter().any(|item| item.id == RustFlag::Version) {
        return Ok(RustInvocation::Version);
    }
    if let Some(wrong) = wrong {
        return Err(error(&wrong.name, wrong.problem));
    }
    if operands > 0 {
        return Err(error("", "an argument belongs to no flag"));
    }
    let flags = RustFlags {
        config: items
            .iter()
            .find(|item| item.id == RustFlag::Config)
            .map(|item| PathBuf::from(item.value.as_str())),
        items,
    };
    for (i, item) in flags.items.iter().enumerate() {
        let repeats = matches!(item.id, RustFlag::Verbose | RustFlag::OnlinePlugin | RustFlag::Later);
        if !repeats && flags.items[..i].iter().any(|other| other.id == item.id) {
            return Err(error(&item.name, "given twice"));
        }
    }
    for (flag, needed, name, programs) in NEEDS {
        if let Some(item) = flags.get(*flag)
            && programs.contains(&program)
            && !flags.has(*needed)
        {
            return Err(error(&item.name, &format!("needs {name} too")));
        }
    }
    if flags.has(RustFlag::UdpOnly) && flags.has(RustFlag::TcpAndUdp) {
        return Err(error("-u", "cannot stand with -U"));
    }
    Ok(RustInvocation::Run(Box::new(flags)))
}

/// The options of one program; letters mean different things in different ones.
fn of(program: RustProgram) -> &'static [Opt<RustFlag>] {
    use std::sync::LazyLock;

    static TABLES: LazyLock<[Vec<Opt<RustFlag>>; 3]> = LazyLock::new(|| {
        RustProgram::ALL.map(|program| {
            let known = OPTIONS.iter().zip(KNOWN).filter(|(_, (programs, _))| programs.contains(&program));
            known.map(|(option, _)| Opt { ..*option }).collect()
        })
    });
    &TABLES[RustProgram::ALL.iter().position(|other| *other == program).unwrap_or(0)]
}

/// Action of `ssservice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Service {
    /// To be one of the programs, with the arguments behind its name.
    Program(RustProgram),
    /// `genkey -m METHOD`: to print a key or password for it.
    Key,
}

/// The subcommand of `ssservice`: `local`, `server`, `manager` or `genkey`; `None` for any other word.
pub fn service(word: &str) -> Option<Service> {
    Some(match word {
        "local" => Service::Program(RustProgram::Local),
        "server" => Service::Program(RustProgram::Server),
        "manager" => Service::Program(RustProgram::Manager),
        "genkey" => Service::Key,
        _ => return None,
    })
}

/// Action of `ssurl`.
#[derive(Clone, PartialEq, Eq)]
pub enum Url {
    /// `-e FILE`: to print a link for each server of the file.
    Encode {
        /// The file.
        file: PathBuf,
        /// `-c`: and a QR code of each.
        qr: bool,
    },
    /// `-d LINK`: to print a file for it.
    Decode {
        /// The link, which holds a password.
        link: Zeroizing<String>,
        /// `-c`: and a QR code of it.
        qr: bool,
    },
    /// To print how it is used, and to exit with status 0.
    Help,
}

/// Reads the arguments of `ssurl`.
///
/// # Errors
/// The first flag that is none, or neither or both of `-e` and `-d`; `ssurl` exits with [`super::Exit::Flag`] then.
pub fn url(args: impl IntoIterator<Item = OsString>) -> Result<Url, Diagnostics> {
    const OPTIONS: &[Opt<char>] = &[
        value('e', Some('e'), &["encode"]),
        value('d', Some('d'), &["decode"]),
        switch('c', Some('c'), &["qrcode"]),
        switch('h', Some('h'), &["help"]),
    ];
    let (items, operands, wrong) = getopt::read(ProgramFamily::Rust, OPTIONS, args);
    let error = |name: &str, problem: &str| -> Diagnostics {
        let error = Diagnostic::error(&"command line".into(), format!("ssurl {name}").trim_end(), problem);
        error.hint("give -e FILE or -d LINK, and -c for a QR code").into()
    };
    if items.iter().any(|item| item.id == 'h') {
        return Ok(Url::Help);
    }
    if let Some(wrong) = wrong {
        return Err(error(&wrong.name, wrong.problem));
    }
    if operands > 0 {
        return Err(error("", "an argument belongs to no flag"));
    }
    let find = |id| items.iter().find(|item| item.id == id).map(|item| item.value.clone());
    let qr = find('c').is_some();
    match (find('e'), find('d')) {
        (Some(file), None) => Ok(Url::Encode { file: file.as_str().into(), qr }),
        (None, Some(link)) => Ok(Url::Decode { link, qr }),
        (Some(_), Some(_)) => Err(error("-e", "cannot stand with -d")),
        (None, None) => Err(error("", "there is nothing to do")),
    }
}
