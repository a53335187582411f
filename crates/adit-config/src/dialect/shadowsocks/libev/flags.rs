//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::Program;
use super::file::Key;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::dialect::shadowsocks::Family;
use crate::dialect::shadowsocks::getopt::{self, Known, Opt, switch, value};
use crate::dialect::shadowsocks::given::Given;
use crate::dialect::usage;

/// Action that a command line asks for.
#[derive(Debug, Clone)]
pub enum Invocation {
    /// To run.
    Run(Box<Flags>),
    /// To print [`usage`] and to exit with status 0.
    Help,
}

/// The flags of a run.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// The configuration file: `-c FILE`.
    pub config: Option<PathBuf>,
    /// Warnings about arguments that have no effect.
    pub diagnostics: Diagnostics,
    /// Nothing but the name of the program: one of [`super::default_paths`] is read.
    pub is_bare: bool,
    /// `-v`.
    pub(super) verbose: bool,
    /// `-f FILE`.
    pub(super) pid_file: Option<PathBuf>,
    /// `-i NAME`.
    pub(super) interface: Option<Given>,
    /// Values that the file may hold too; the last one counts.
    pub(super) values: Vec<(Key, Given)>,
}

/// One flag.
#[derive(Clone, Copy)]
pub(super) enum Flag {
    Config,
    PidFile,
    Interface,
    Executable,
    Verbose,
    Help,
    OneTimeAuth,
    Udp,
    UdpOnly,
    Tproxy,
    /// A value or a switch that the file may hold too.
    Key(Key),
}

const ALL: &[Program] = &Program::ALL;

macro_rules! known {
    ($($kind:ident($flag:expr, $short:expr, $long:expr) of $programs:expr, $name:literal, $what:literal;)*) => {
        const FLAGS: &[Opt<Flag>] = &[$($kind($flag, $short, $long)),*];
        const KNOWN: &[Known<Flag, Program>] =
            &[$(Known { opt: $kind($flag, $short, $long), programs: $programs, usage: ($name, $what) }),*];
    };
}

known! {
    value(Flag::Key(Key::Server), Some('s'), &[]) of ALL, "HOST", "server; may be given again";
    value(Flag::Key(Key::ServerPort), Some('p'), &[]) of &[Program::Local, Program::Server, Program::Tunnel, Program::Redir], "PORT", "port of the server";
    value(Flag::Key(Key::LocalPort), Some('l'), &[]) of ALL, "PORT", "port to listen on as a client";
    value(Flag::Key(Key::Password), Some('k'), &["password"]) of ALL, "PASSWORD", "password";
    value(Flag::Key(Key::Base64), None, &["key"]) of &[Program::Local, Program::Server, Program::Tunnel, Program::Redir], "BASE64", "the key itself";
    value(Flag::Key(Key::Method), Some('m'), &[]) of ALL, "METHOD", "method (default chacha20-ietf-poly1305)";
    value(Flag::Key(Key::User), Some('a'), &[]) of ALL, "USER", "runs as this user";
    value(Flag::PidFile, Some('f'), &[]) of ALL, "FILE", "goes into the background and writes its number there";
    value(Flag::Key(Key::Timeout), Some('t'), &[]) of ALL, "SECONDS", "timeout (default 60)";
    value(Flag::Config, Some('c'), &[]) of ALL, "FILE", "configuration file";
    value(Flag::Key(Key::OpenFiles), Some('n'), &[]) of ALL, "NUMBER", "most open files";
    value(Flag::Interface, Some('i'), &[]) of &[Program::Local, Program::Server, Program::Tunnel, Program::Manager], "NAME", "interface of outgoing connections";
    value(Flag::Key(Key::LocalAddress), Some('b'), &[]) of &[Program::Local, Program::Server, Program::Tunnel, Program::Redir], "ADDRESS", "local address (default 127.0.0.1 for clients)";
    switch(Flag::Udp, Some('u'), &[]) of ALL, "", "datagrams too";
    switch(Flag::UdpOnly, Some('U'), &[]) of ALL, "", "datagrams alone";
    switch(Flag::Key(Key::Ipv6First), Some('6'), &[]) of ALL, "", "IPv6 before IPv4";
    value(Flag::Key(Key::NameServer), Some('d'), &[]) of &[Program::Server, Program::Manager], "ADDRESS", "name servers, with commas";
    value(Flag::Key(Key::Target), Some('L'), &[]) of &[Program::Tunnel], "HOST:PORT", "target";
    value(Flag::Key(Key::Directory), Some('D'), &["workdir"]) of &[Program::Manager], "DIRECTORY", "working directory";
    value(Flag::Executable, None, &["executable"]) of &[Program::Manager], "FILE", "has no effect: servers run inside";
    value(Flag::Key(Key::ManagerAddress), None, &["manager-address"]) of &[Program::Server, Program::Manager], "ADDRESS", "manager: HOST:PORT or path of a socket";
    switch(Flag::Tproxy, Some('T'), &[]) of &[Program::Redir], "", "TPROXY";
    switch(Flag::Key(Key::FastOpen), None, &["fast-open"]) of ALL, "", "TCP Fast Open";
    switch(Flag::Key(Key::ReusePort), None, &["reuse-port"]) of ALL, "", "shares its ports with other processes";
    switch(Flag::Key(Key::NoDelay), None, &["no-delay"]) of ALL, "", "TCP_NODELAY, which is always on";
    value(Flag::Key(Key::Acl), None, &["acl"]) of &[Program::Local, Program::Server, Program::Manager], "FILE", "access control list";
    value(Flag::Key(Key::Mtu), None, &["mtu"]) of ALL, "BYTES", "largest packet of the network";
    switch(Flag::Key(Key::Mptcp), None, &["mptcp"]) of &[Program::Local, Program::Server, Program::Tunnel, Program::Redir], "", "Multipath TCP";
    value(Flag::Key(Key::Plugin), None, &["plugin"]) of ALL, "PROGRAM", "SIP003 plugin";
    value(Flag::Key(Key::PluginOptions), None, &["plugin-opts"]) of ALL, "OPTIONS", "its options";
    switch(Flag::Verbose, Some('v'), &[]) of ALL, "", "writes debug lines too";
    switch(Flag::OneTimeAuth, Some('A'), &[]) of ALL, "", "refused: one-time authentication is gone";
    switch(Flag::Help, Some('h'), &["help"]) of ALL, "", "prints this text";
}

/// The release whose flags and files these are.
const PEER: &str = "shadowsocks-libev 3.3.5";

/// The flags of a program, for a person.
pub fn usage(program: Program) -> String {
    getopt::usage(&program, program.name(), PEER, KNOWN)
}

/// The name and version, and the release whose place it takes.
pub fn version(program: Program) -> String {
    usage::version(program.name(), PEER)
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// The first flag that is none; the programs exit with [`super::EXIT_USAGE`] then.
pub fn flags(program: Program, args: impl IntoIterator<Item = OsString>) -> Result<Invocation, Diagnostics> {
    let file: Arc<str> = "command line".into();
    let (items, operands, wrong) = getopt::read(Family::Libev, FLAGS, args);
    let mut flags = Flags { is_bare: items.is_empty() && operands == 0, ..Flags::default() };
    let error = |name: &str, problem: &str| {
        Diagnostic::error(&file, format!("{} {name}", program.name()), problem).hint("-h lists the flags")
    };
    for item in items {
        let known = KNOWN.iter().find(|known| known.is_named(&item.name));
        if !known.is_some_and(|known| known.is_of(&program)) {
            return Err(error(&item.name, "no such flag").into());
        }
        let given = Given::flag(&file, format!("{} {}", program.name(), item.name), item.value);
        match item.id {
            Flag::Help => return Ok(Invocation::Help),
            Flag::OneTimeAuth => {
                return Err(error(&item.name, "one-time authentication is gone; use an AEAD method").into());
            }
            Flag::Config => flags.config = Some(given.text().into()),
            Flag::PidFile => flags.pid_file = Some(given.text().into()),
            Flag::Interface => flags.interface = Some(given),
            Flag::Verbose => flags.verbose = true,
            Flag::Udp => flags.values.push((Key::Mode, given.with("tcp_and_udp"))),
            Flag::UdpOnly => flags.values.push((Key::Mode, given.with("udp_only"))),
            Flag::Tproxy => flags.values.push((Key::Tproxy, given.with("true"))),
            Flag::Executable => flags.diagnostics.push(Diagnostic::warning(
                &file,
                format!("{} --executable", program.name()),
                "servers run inside, so it has no effect",
            )),
            Flag::Key(key) if known.is_some_and(|known| known.opt.takes_value) => {
                flags.values.push((key, given))
            }
            Flag::Key(key) => flags.values.push((key, given.with("true"))),
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
