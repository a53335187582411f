//! The command lines.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::Program;
use super::file::Key;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::dialect::shadowsocks::ProgramFamily;
use crate::dialect::shadowsocks::getopt::{self, Item, KnownOption, Opt, switch, value};
use crate::dialect::shadowsocks::given::Given;
use crate::dialect::value::excerpt;

/// The action that a command line asks for.
#[derive(Debug, Clone)]
pub enum Invocation {
    /// To run.
    Run(Box<Flags>),
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
pub struct Flags {
    /// The configuration file: `-c FILE`.
    pub config: Option<PathBuf>,
    /// Warnings about arguments that have no effect.
    pub diagnostics: Diagnostics,
    /// Nothing but the name of the program: one of [`Program::default_paths`] is read.
    pub is_bare: bool,
    /// `-d`.
    pub daemon: Option<Daemon>,
    /// `-v` counts up, `-q` down.
    pub(super) verbosity: i32,
    /// `-f FILE`, which goes into the background, or `--pid-file FILE`, which does not.
    pub(super) pid_file: Option<PathBuf>,
    pub(super) is_background: bool,
    pub(super) interface: Option<Given>,
    /// Settings that the file may give too; the last one counts.
    pub(super) values: Vec<(Key, Given)>,
}

/// File with the number of a server that was started with `-d start` (shadowsocksr 3.2.2).
pub(super) const PID_FILE: &str = "/var/run/shadowsocksr.pid";

impl Flags {
    /// The file with the number of the process in the background, for `-d stop`.
    pub fn pid_file(&self) -> PathBuf {
        self.pid_file.clone().unwrap_or_else(|| PID_FILE.into())
    }
}

#[derive(Clone, Copy)]
pub(super) enum Flag {
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
    Key(Key),
}

const ALL: &[Program] = &Program::ALL;
const CLIENTS: &[Program] = &[Program::Local, Program::Tunnel, Program::Redir];
const SERVER: &[Program] = &[Program::Server];

macro_rules! known {
    ($($kind:ident($flag:expr, $short:expr, $long:expr) of $programs:expr, $name:literal, $what:literal;)*) => {
        const FLAGS: &[Opt<Flag>] = &[$($kind($flag, $short, $long)),*];
        const KNOWN: &[KnownOption<Flag, Program>] =
            &[$(KnownOption { opt: $kind($flag, $short, $long), programs: $programs, usage: ($name, $what) }),*];
    };
}

known! {
    value(Flag::Key(Key::Server), Some('s'), &[]) of ALL, "HOST", "server; may be given again by clients";
    value(Flag::Key(Key::ServerPort), Some('p'), &[]) of ALL, "PORT", "port of the server";
    value(Flag::Key(Key::LocalAddress), Some('b'), &[]) of CLIENTS, "ADDRESS", "local address (default 127.0.0.1)";
    value(Flag::Key(Key::LocalPort), Some('l'), &[]) of CLIENTS, "PORT", "local port";
    value(Flag::Key(Key::Password), Some('k'), &[]) of ALL, "PASSWORD", "password";
    value(Flag::Key(Key::Method), Some('m'), &[]) of ALL, "METHOD", "method (default rc4-md5, of the server aes-256-cfb)";
    value(Flag::Key(Key::Protocol), Some('O'), &[]) of ALL, "NAME", "protocol (default origin)";
    value(Flag::Key(Key::ProtocolParam), Some('G'), &[]) of ALL, "TEXT", "parameter of the protocol";
    value(Flag::Key(Key::Obfs), Some('o'), &[]) of ALL, "NAME", "obfs (default plain)";
    value(Flag::Key(Key::ObfsParam), Some('g'), &[]) of ALL, "TEXT", "parameter of the obfs";
    value(Flag::Key(Key::Timeout), Some('t'), &[]) of ALL, "SECONDS", "timeout (default 60, of the server 300)";
    value(Flag::Config, Some('c'), &[]) of ALL, "FILE", "configuration file; of the server a database of users (mudb.json) too";
    value(Flag::PidFile, Some('f'), &[]) of ALL, "FILE", "goes into the background and writes its number there";
    value(Flag::Daemon, Some('d'), &[]) of SERVER, "WORD", "start, stop or restart in the background";
    value(Flag::PidFileAlone, None, &["pid-file"]) of SERVER, "FILE", "number of the process in the background";
    value(Flag::Idle("the log goes to the system's log in the background, and else to standard error"), None, &["log-file"]) of SERVER, "FILE", "has no effect";
    value(Flag::Key(Key::User), Some('a'), &["user"]) of ALL, "USER", "runs as this user";
    value(Flag::Idle("every processor has an event loop"), None, &["workers"]) of SERVER, "NUMBER", "has no effect: every processor has an event loop";
    value(Flag::Key(Key::OpenFiles), Some('n'), &[]) of CLIENTS, "NUMBER", "most open files";
    value(Flag::Interface, Some('i'), &[]) of CLIENTS, "NAME", "interface of outgoing connections";
    switch(Flag::Udp, Some('u'), &[]) of CLIENTS, "", "datagrams too";
    switch(Flag::UdpOnly, Some('U'), &[]) of CLIENTS, "", "datagrams alone";
    switch(Flag::Key(Key::Ipv6First), Some('6'), &[]) of CLIENTS, "", "IPv6 before IPv4";
    value(Flag::Key(Key::Target), Some('L'), &[]) of &[Program::Tunnel], "HOST:PORT", "target";
    value(Flag::Key(Key::Host), None, &["host"]) of CLIENTS, "NAME", "host that the obfs shows in place of the server's";
    value(Flag::Key(Key::Acl), None, &["acl"]) of &[Program::Local], "FILE", "access control list";
    value(Flag::Key(Key::Mtu), None, &["mtu"]) of CLIENTS, "BYTES", "largest packet of the network";
    switch(Flag::Key(Key::Mptcp), None, &["mptcp"]) of CLIENTS, "", "Multipath TCP";
    switch(Flag::Key(Key::FastOpen), None, &["fast-open"]) of ALL, "", "TCP Fast Open";
    value(Flag::Key(Key::ForbiddenIp), None, &["forbidden-ip"]) of SERVER, "LIST", "targets that are refused, with commas";
    value(Flag::Idle("the manager's protocol of shadowsocksr is not in this build"), None, &["manager-address"]) of SERVER, "ADDRESS", "has no effect";
    value(Flag::Key(Key::Plugin), None, &["plugin"]) of ALL, "PROGRAM", "SIP003 plugin";
    value(Flag::Key(Key::PluginOptions), None, &["plugin-opts"]) of ALL, "OPTIONS", "its options";
    switch(Flag::OneTimeAuth, Some('A'), &[]) of CLIENTS, "", "has no effect: one-time authentication is gone";
    switch(Flag::Verbose, Some('v'), &[]) of ALL, "", "writes debug lines too; twice for everything";
    switch(Flag::Quiet, Some('q'), &[]) of SERVER, "", "writes warnings alone; twice for errors";
    switch(Flag::Version, Some('V'), &["version"]) of ALL, "", "prints the version";
    switch(Flag::Help, Some('h'), &["help"]) of ALL, "", "prints this text";
}

/// The flags of a program, for a person.
pub fn usage(program: Program) -> String {
    getopt::usage(&program, program.name(), "ShadowsocksR", KNOWN)
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// The first flag that is none; the programs exit with [`super::EXIT_USAGE`] then.
pub fn flags(program: Program, args: impl IntoIterator<Item = OsString>) -> Result<Invocation, Diagnostics> {
    let file: Arc<str> = "command line".into();
    let (items, operands, wrong) = getopt::read(ProgramFamily::Libev, FLAGS, args);
    let mut flags = Flags { is_bare: items.is_empty() && operands == 0, ..Flags::default() };
    let error = |name: &str, problem: &str| {
        Diagnostic::error(&file, format!("{} {name}", program.name()), problem).hint("-h lists the flags")
    };
    for item in items {
        let known = KNOWN.iter().find(|known| known.is_named(&item.name));
        if !known.is_some_and(|known| known.is_of(&program)) {
            return Err(error(&item.name, "no such flag").into());
        }
        match item.id {
            Flag::Help => return Ok(Invocation::Help),
            Flag::Version => return Ok(Invocation::Version),
            Flag::Daemon => {
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
            Flag::Config
            | Flag::PidFile
            | Flag::PidFileAlone
            | Flag::Interface
            | Flag::Verbose
            | Flag::Quiet
            | Flag::OneTimeAuth
            | Flag::Udp
            | Flag::UdpOnly
            | Flag::Idle(_)
            | Flag::Key(_) => flags.take(program, &file, item),
        }
    }
    if let Some(wrong) = wrong {
        return Err(error(&wrong.name, wrong.problem).into());
    }
    if operands > 0 {
        let problem = "arguments that belong to no flag have no effect";
        flags.diagnostics.push(Diagnostic::warning(&file, program.name(), problem));
    }
    Ok(Invocation::Run(Box::new(flags)))
}

impl Flags {
    fn take(&mut self, program: Program, file: &Arc<str>, item: Item<Flag>) {
        let place = format!("{} {}", program.name(), item.name);
        let given = Given::flag(file, place.clone(), item.value);
        match item.id {
            Flag::Config => self.config = Some(given.text().into()),
            Flag::PidFile => {
                self.pid_file = Some(given.text().into());
                self.is_background = true;
            }
            Flag::PidFileAlone => self.pid_file = Some(given.text().into()),
            Flag::Interface => self.interface = Some(given),
            Flag::Verbose => self.verbosity += 1,
            Flag::Quiet => self.verbosity -= 1,
            Flag::Udp => self.values.push((Key::Mode, given.with("tcp_and_udp"))),
            Flag::UdpOnly => self.values.push((Key::Mode, given.with("udp_only"))),
            Flag::OneTimeAuth => {
                let problem = "one-time authentication is gone, so it has no effect";
                self.diagnostics.push(Diagnostic::warning(file, place, problem));
            }
            Flag::Idle(why) => {
                let problem = format!("{why}, so it has no effect");
                self.diagnostics.push(Diagnostic::warning(file, place, problem));
            }
            Flag::Key(key) if key.is_switch() => self.values.push((key, given.with("true"))),
            Flag::Key(key) => self.values.push((key, given)),
            // They end the reading.
            Flag::Help | Flag::Version | Flag::Daemon => {}
        }
    }
}
