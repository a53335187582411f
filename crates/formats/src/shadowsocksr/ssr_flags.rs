//! The command lines.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics};

use super::SsrProgram;
use super::file::SsrSetting;
use crate::read::value::excerpt;
use crate::shadowsocks::ProgramFamily;
use crate::shadowsocks::getopt::{self, Item, KnownOption, Opt, switch, value};
use crate::shadowsocks::option_value::OptionValue;

/// The action that a command line asks for.
#[derive(Debug, Clone)]
pub enum SsrInvocation {
    /// To run.
    Run(Box<SsrFlags>),
    /// To print [`usage`] and to exit with status 0.
    Help,
    /// To print the version and to exit with status 0.
    Version,
}

/// The action that is asked of the process in the background (`-d`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Daemon {
    /// To start it.
    Start,
    /// To end it.
    Stop,
    /// Both, in the other order.
    Restart,
}

/// The flags of a run.
#[derive(Debug, Clone, Default)]
pub struct SsrFlags {
    /// The configuration file: `-c FILE`.
    pub config: Option<PathBuf>,
    /// Warnings about arguments that have no effect.
    pub diagnostics: Diagnostics,
    /// Nothing but the name of the program: one of [`SsrProgram::default_paths`] is read.
    pub is_bare: bool,
    /// `-d`.
    pub daemon: Option<Daemon>,
    /// `-v` counts up, `-q` down.
    pub(super) verbosity: i32,
    /// `-f FILE`, which goes into the background, or `--pid-file FILE`, which does not.
    pub(super) pid_file: Option<PathBuf>,
    pub(super) is_background: bool,
    pub(super) interface: Option<OptionValue>,
    /// Settings that the file may give too; the last one counts.
    pub(crate) values: Vec<(SsrSetting, OptionValue)>,
}

/// File with the number of a server that was started with `-d start` (shadowsocksr 3.2.2).
pub(super) const PID_FILE: &str = "/var/run/shadowsocksr.pid";

impl SsrFlags {
    /// The file with the number of the process in the background, for `-d stop`.
    pub fn pid_file(&self) -> PathBuf {
        self.pid_file.clone().unwrap_or_else(|| PID_FILE.into())
    }
}

#[derive(Clone, Copy)]
pub(super) enum SsrFlag {
    Config,
    PidFile,
    PidFileAlone,
    Daemon,
    Interface,
    Verbose,
    Quiet,
    Help,
    Version,
    OneTimeAuth,
    Udp,
    UdpOnly,
    /// Known, and without effect.
    Idle(&'static str),
    /// A value or a switch that the file may hold too.
    Key(SsrSetting),
}

const ALL: &[SsrProgram] = &SsrProgram::ALL;
const CLIENTS: &[SsrProgram] = &[SsrProgram::Local, SsrProgram::Tunnel, SsrProgram::Redir];
const SERVER: &[SsrProgram] = &[SsrProgram::Server];

macro_rules! known {
    ($($kind:ident($flag:expr, $short:expr, $long:expr) of $programs:expr, $name:literal, $what:literal;)*) => {
        const FLAGS: &[Opt<SsrFlag>] = &[$($kind($flag, $short, $long)),*];
        const KNOWN: &[KnownOption<SsrFlag, SsrProgram>] =
            &[$(KnownOption { opt: $kind($flag, $short, $long), programs: $programs, usage: ($name, $what) }),*];
    };
}

known! {
    value(SsrFlag::Key(SsrSetting::Server), Some('s'), &[]) of ALL, "HOST", "server; may be given again by clients";
    value(SsrFlag::Key(SsrSetting::ServerPort), Some('p'), &[]) of ALL, "PORT", "port of the server";
    value(SsrFlag::Key(SsrSetting::LocalAddress), Some('b'), &[]) of CLIENTS, "ADDRESS", "local address (default 127.0.0.1)";
    value(SsrFlag::Key(SsrSetting::LocalPort), Some('l'), &[]) of CLIENTS, "PORT", "local port";
    value(SsrFlag::Key(SsrSetting::Password), Some('k'), &[]) of ALL, "PASSWORD", "password";
    value(SsrFlag::Key(SsrSetting::Method), Some('m'), &[]) of ALL, "METHOD", "method (default rc4-md5, of the server aes-256-cfb)";
    value(SsrFlag::Key(SsrSetting::Protocol), Some('O'), &[]) of ALL, "NAME", "protocol (default origin)";
    value(SsrFlag::Key(SsrSetting::ProtocolParam), Some('G'), &[]) of ALL, "TEXT", "parameter of the protocol";
    value(SsrFlag::Key(SsrSetting::Obfs), Some('o'), &[]) of ALL, "NAME", "obfs (default plain)";
    value(SsrFlag::Key(SsrSetting::ObfsParam), Some('g'), &[]) of ALL, "TEXT", "parameter of the obfs";
    value(SsrFlag::Key(SsrSetting::Timeout), Some('t'), &[]) of ALL, "SECONDS", "timeout (default 60, of the server 300)";
    value(SsrFlag::Config, Some('c'), &[]) of ALL, "FILE", "configuration file; of the server a database of users (mudb.json) too";
    value(SsrFlag::PidFile, Some('f'), &[]) of ALL, "FILE", "goes into the background and writes its number there";
    value(SsrFlag::Daemon, Some('d'), &[]) of SERVER, "WORD", "start, stop or restart in the background";
    value(SsrFlag::PidFileAlone, None, &["pid-file"]) of SERVER, "FILE", "number of the process in the background";
    value(SsrFlag::Idle("the log goes to the system's log in the background, and else to standard error"), None, &["log-file"]) of SERVER, "FILE", "has no effect";
    value(SsrFlag::Key(SsrSetting::User), Some('a'), &["user"]) of ALL, "USER", "runs as this user";
    value(SsrFlag::Idle("every processor has an event loop"), None, &["workers"]) of SERVER, "NUMBER", "has no effect: every processor has an event loop";
    value(SsrFlag::Key(SsrSetting::OpenFiles), Some('n'), &[]) of CLIENTS, "NUMBER", "most open files";
    value(SsrFlag::Interface, Some('i'), &[]) of CLIENTS, "NAME", "interface of outgoing connections";
    switch(SsrFlag::Udp, Some('u'), &[]) of CLIENTS, "", "datagrams too";
    switch(SsrFlag::UdpOnly, Some('U'), &[]) of CLIENTS, "", "datagrams alone";
    switch(SsrFlag::Key(SsrSetting::Ipv6First), Some('6'), &[]) of CLIENTS, "", "IPv6 before IPv4";
    value(SsrFlag::Key(SsrSetting::Target), Some('L'), &[]) of &[SsrProgram::Tunnel], "HOST:PORT", "target";
    value(SsrFlag::Key(SsrSetting::Host), None, &["host"]) of CLIENTS, "NAME", "host that the obfs shows in place of the server's";
    value(SsrFlag::Key(SsrSetting::Acl), None, &["acl"]) of &[SsrProgram::Local], "FILE", "access control list";
    value(SsrFlag::Key(SsrSetting::Mtu), None, &["mtu"]) of CLIENTS, "BYTES", "largest packet of the network";
    switch(SsrFlag::Key(SsrSetting::Mptcp), None, &["mptcp"]) of CLIENTS, "", "Multipath TCP";
    switch(SsrFlag::Key(SsrSetting::FastOpen), None, &["fast-open"]) of ALL, "", "TCP Fast Open";
    value(SsrFlag::Key(SsrSetting::ForbiddenIp), None, &["forbidden-ip"]) of SERVER, "LIST", "targets that are refused, with commas";
    value(SsrFlag::Idle("the manager's protocol of shadowsocksr is not in this build"), None, &["manager-address"]) of SERVER, "ADDRESS", "has no effect";
    value(SsrFlag::Key(SsrSetting::Plugin), None, &["plugin"]) of ALL, "PROGRAM", "SIP003 plugin";
    value(SsrFlag::Key(SsrSetting::PluginOptions), None, &["plugin-opts"]) of ALL, "OPTIONS", "its options";
    switch(SsrFlag::OneTimeAuth, Some('A'), &[]) of CLIENTS, "", "has no effect: one-time authentication is gone";
    switch(SsrFlag::Verbose, Some('v'), &[]) of ALL, "", "writes debug lines too; twice for everything";
    switch(SsrFlag::Quiet, Some('q'), &[]) of SERVER, "", "writes warnings alone; twice for errors";
    switch(SsrFlag::Version, Some('V'), &["version"]) of ALL, "", "prints the version";
    switch(SsrFlag::Help, Some('h'), &["help"]) of ALL, "", "prints this text";
}

/// The flags of a program, for a person.
pub fn usage(program: SsrProgram) -> String {
    getopt::usage(&program, program.name(), "ShadowsocksR", KNOWN)
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// The first flag that is none; the programs exit with [`super::EXIT_USAGE`] then.
pub fn flags(
    program: SsrProgram,
    args: impl IntoIterator<Item = OsString>,
) -> Result<SsrInvocation, Diagnostics> {
    let file: Arc<str> = "command line".into();
    let (items, operands, wrong) = getopt::read(ProgramFamily::Libev, FLAGS, args);
    let mut flags = SsrFlags { is_bare: items.is_empty() && operands == 0, ..SsrFlags::default() };
    let error = |name: &str, problem: &str| {
        Diagnostic::error(&file, format!("{} {name}", program.name()), problem).hint("-h lists the flags")
    };
    for item in items {
        let known = KNOWN.iter().find(|known| known.is_named(&item.name));
        if !known.is_some_and(|known| known.is_of(&program)) {
            return Err(error(&item.name, "no such flag").into());
        }
        match item.id {
            SsrFlag::Help => return Ok(SsrInvocation::Help),
            SsrFlag::Version => return Ok(SsrInvocation::Version),
            SsrFlag::Daemon => {
                flags.daemon = Some(match item.value.as_str() {
                    "start" => Daemon::Start,
                    "stop" => Daemon::Stop,
                    "restart" => Daemon::Restart,
                    other => {
                        let problem = format!("neither start nor stop nor restart: {}", excerpt(other));
                        return Err(error(&item.name, &problem).into());
                    }
                });
            }
            SsrFlag::Config
            | SsrFlag::PidFile
            | SsrFlag::PidFileAlone
            | SsrFlag::Interface
            | SsrFlag::Verbose
            | SsrFlag::Quiet
            | SsrFlag::OneTimeAuth
            | SsrFlag::Udp
            | SsrFlag::UdpOnly
            | SsrFlag::Idle(_)
            | SsrFlag::Key(_) => flags.take(program, &file, item),
        }
    }
    if let Some(wrong) = wrong {
        return Err(error(&wrong.name, wrong.problem).into());
    }
    if operands > 0 {
        let problem = "arguments that belong to no flag have no effect";
        flags.diagnostics.push(Diagnostic::warning(&file, program.name(), problem));
    }
    Ok(SsrInvocation::Run(Box::new(flags)))
}

impl SsrFlags {
    fn take(&mut self, program: SsrProgram, file: &Arc<str>, item: Item<SsrFlag>) {
        let place = format!("{} {}", program.name(), item.name);
        let given = OptionValue::flag(file, place.clone(), item.value);
        match item.id {
            SsrFlag::Config => self.config = Some(given.text().into()),
            SsrFlag::PidFile => {
                self.pid_file = Some(given.text().into());
                self.is_background = true;
            }
            SsrFlag::PidFileAlone => self.pid_file = Some(given.text().into()),
            SsrFlag::Interface => self.interface = Some(given),
            SsrFlag::Verbose => self.verbosity += 1,
            SsrFlag::Quiet => self.verbosity -= 1,
            SsrFlag::Udp => self.values.push((SsrSetting::Mode, given.with("tcp_and_udp"))),
            SsrFlag::UdpOnly => self.values.push((SsrSetting::Mode, given.with("udp_only"))),
            SsrFlag::OneTimeAuth => {
                let problem = "one-time authentication is gone, so it has no effect";
                self.diagnostics.push(Diagnostic::warning(file, place, problem));
            }
            SsrFlag::Idle(why) => {
                let problem = format!("{why}, so it has no effect");
                self.diagnostics.push(Diagnostic::warning(file, place, problem));
            }
            SsrFlag::Key(key) if key.is_switch() => self.values.push((key, given.with("true"))),
            SsrFlag::Key(key) => self.values.push((key, given)),
            // They end the reading.
            SsrFlag::Help | SsrFlag::Version | SsrFlag::Daemon => {}
        }
    }
}
