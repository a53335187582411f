//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics};

use super::LibevProgram;
use super::file::LibevKey;
use crate::read::usage;
use crate::shadowsocks::ProgramFamily;
use crate::shadowsocks::getopt::{self, KnownOption, Opt, switch, value};
use crate::shadowsocks::option_value::OptionValue;

/// Action that a command line asks for.
#[derive(Debug, Clone)]
pub enum LibevInvocation {
    /// To run.
    Run(Box<LibevFlags>),
    /// To print [`usage`] and to exit with status 0.
    Help,
}

/// The flags of a run.
#[derive(Debug, Clone, Default)]
pub struct LibevFlags {
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
    pub(super) interface: Option<OptionValue>,
    /// Values that the file may hold too; the last one counts.
    pub(super) values: Vec<(LibevKey, OptionValue)>,
}

/// One flag.
#[derive(Clone, Copy)]
pub(super) enum LibevFlag {
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
    Key(LibevKey),
}

const ALL: &[LibevProgram] = &LibevProgram::ALL;

macro_rules! known {
    ($($kind:ident($flag:expr, $short:expr, $long:expr) of $programs:expr, $name:literal, $what:literal;)*) => {
        const FLAGS: &[Opt<LibevFlag>] = &[$($kind($flag, $short, $long)),*];
        const KNOWN: &[KnownOption<LibevFlag, LibevProgram>] =
            &[$(KnownOption { opt: $kind($flag, $short, $long), programs: $programs, usage: ($name, $what) }),*];
    };
}

known! {
    value(LibevFlag::Key(LibevKey::Server), Some('s'), &[]) of ALL, "HOST", "server; may be given again";
    value(LibevFlag::Key(LibevKey::ServerPort), Some('p'), &[]) of &[LibevProgram::Local, LibevProgram::Server, LibevProgram::Tunnel, LibevProgram::Redir], "PORT", "port of the server";
    value(LibevFlag::Key(LibevKey::LocalPort), Some('l'), &[]) of ALL, "PORT", "port to listen on as a client";
    value(LibevFlag::Key(LibevKey::Password), Some('k'), &["password"]) of ALL, "PASSWORD", "password";
    value(LibevFlag::Key(LibevKey::Base64), None, &["key"]) of &[LibevProgram::Local, LibevProgram::Server, LibevProgram::Tunnel, LibevProgram::Redir], "BASE64", "the key itself";
    value(LibevFlag::Key(LibevKey::Method), Some('m'), &[]) of ALL, "METHOD", "method (default chacha20-ietf-poly1305)";
    value(LibevFlag::Key(LibevKey::User), Some('a'), &[]) of ALL, "USER", "runs as this user";
    value(LibevFlag::PidFile, Some('f'), &[]) of ALL, "FILE", "goes into the background and writes its number there";
    value(LibevFlag::Key(LibevKey::Timeout), Some('t'), &[]) of ALL, "SECONDS", "timeout (default 60)";
    value(LibevFlag::Config, Some('c'), &[]) of ALL, "FILE", "configuration file";
    value(LibevFlag::Key(LibevKey::OpenFiles), Some('n'), &[]) of ALL, "NUMBER", "most open files";
    value(LibevFlag::Interface, Some('i'), &[]) of &[LibevProgram::Local, LibevProgram::Server, LibevProgram::Tunnel, LibevProgram::Manager], "NAME", "interface of outgoing connections";
    value(LibevFlag::Key(LibevKey::LocalAddress), Some('b'), &[]) of &[LibevProgram::Local, LibevProgram::Server, LibevProgram::Tunnel, LibevProgram::Redir], "ADDRESS", "local address (default 127.0.0.1 for clients)";
    switch(LibevFlag::Udp, Some('u'), &[]) of ALL, "", "datagrams too";
    switch(LibevFlag::UdpOnly, Some('U'), &[]) of ALL, "", "datagrams alone";
    switch(LibevFlag::Key(LibevKey::Ipv6First), Some('6'), &[]) of ALL, "", "IPv6 before IPv4";
    value(LibevFlag::Key(LibevKey::NameServer), Some('d'), &[]) of &[LibevProgram::Server, LibevProgram::Manager], "ADDRESS", "name servers, with commas";
    value(LibevFlag::Key(LibevKey::Target), Some('L'), &[]) of &[LibevProgram::Tunnel], "HOST:PORT", "target";
    value(LibevFlag::Key(LibevKey::Directory), Some('D'), &["workdir"]) of &[LibevProgram::Manager], "DIRECTORY", "working directory";
    value(LibevFlag::Executable, None, &["executable"]) of &[LibevProgram::Manager], "FILE", "has no effect: servers run inside";
    value(LibevFlag::Key(LibevKey::ManagerAddress), None, &["manager-address"]) of &[LibevProgram::Server, LibevProgram::Manager], "ADDRESS", "manager: HOST:PORT or path of a socket";
    switch(LibevFlag::Tproxy, Some('T'), &[]) of &[LibevProgram::Redir], "", "TPROXY";
    switch(LibevFlag::Key(LibevKey::FastOpen), None, &["fast-open"]) of ALL, "", "TCP Fast Open";
    switch(LibevFlag::Key(LibevKey::ReusePort), None, &["reuse-port"]) of ALL, "", "shares its ports with other processes";
    switch(LibevFlag::Key(LibevKey::NoDelay), None, &["no-delay"]) of ALL, "", "TCP_NODELAY, which is always on";
    value(LibevFlag::Key(LibevKey::Acl), None, &["acl"]) of &[LibevProgram::Local, LibevProgram::Server, LibevProgram::Manager], "FILE", "access control list";
    value(LibevFlag::Key(LibevKey::Mtu), None, &["mtu"]) of ALL, "BYTES", "largest packet of the network";
    switch(LibevFlag::Key(LibevKey::Mptcp), None, &["mptcp"]) of &[LibevProgram::Local, LibevProgram::Server, LibevProgram::Tunnel, LibevProgram::Redir], "", "Multipath TCP";
    value(LibevFlag::Key(LibevKey::Plugin), None, &["plugin"]) of ALL, "PROGRAM", "SIP003 plugin";
    value(LibevFlag::Key(LibevKey::PluginOptions), None, &["plugin-opts"]) of ALL, "OPTIONS", "its options";
    switch(LibevFlag::Verbose, Some('v'), &[]) of ALL, "", "writes debug lines too";
    switch(LibevFlag::OneTimeAuth, Some('A'), &[]) of ALL, "", "refused: one-time authentication is gone";
    switch(LibevFlag::Help, Some('h'), &["help"]) of ALL, "", "prints this text";
}

/// The release whose flags and files these are.
const PEER: &str = "shadowsocks-libev 3.3.5";

/// The flags of a program, for a person.
pub fn usage(program: LibevProgram) -> String {
    getopt::usage(&program, program.name(), PEER, KNOWN)
}

/// The name and version, and the release whose place it takes.
pub fn version(program: LibevProgram) -> String {
    usage::version(program.name(), PEER)
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// The first flag that is none; the programs exit with [`super::EXIT_USAGE`] then.
pub fn flags(
    program: LibevProgram,
    args: impl IntoIterator<Item = OsString>,
) -> Result<LibevInvocation, Diagnostics> {
    let file: Arc<str> = "command line".into();
    let (items, operands, wrong) = getopt::read(ProgramFamily::Libev, FLAGS, args);
    let mut flags = LibevFlags { is_bare: items.is_empty() && operands == 0, ..LibevFlags::default() };
    let error = |name: &str, problem: &str| {
        Diagnostic::error(&file, format!("{} {name}", program.name()), problem).hint("-h lists the flags")
    };
    for item in items {
        let known = KNOWN.iter().find(|known| known.is_named(&item.name));
        if !known.is_some_and(|known| known.is_of(&program)) {
            return Err(error(&item.name, "no such flag").into());
        }
        let given = OptionValue::flag(&file, format!("{} {}", program.name(), item.name), item.value);
        match item.id {
            LibevFlag::Help => return Ok(LibevInvocation::Help),
            LibevFlag::OneTimeAuth => {
                return Err(error(&item.name, "one-time authentication is gone; use an AEAD method").into());
            }
            LibevFlag::Config => flags.config = Some(given.text().into()),
            LibevFlag::PidFile => flags.pid_file = Some(given.text().into()),
            LibevFlag::Interface => flags.interface = Some(given),
            LibevFlag::Verbose => flags.verbose = true,
            LibevFlag::Udp => flags.values.push((LibevKey::Mode, given.with("tcp_and_udp"))),
            LibevFlag::UdpOnly => flags.values.push((LibevKey::Mode, given.with("udp_only"))),
            LibevFlag::Tproxy => flags.values.push((LibevKey::Tproxy, given.with("true"))),
            LibevFlag::Executable => flags.diagnostics.push(Diagnostic::warning(
                &file,
                format!("{} --executable", program.name()),
                "servers run inside, so it has no effect",
            )),
            LibevFlag::Key(key) if known.is_some_and(|known| known.opt.takes_value) => {
                flags.values.push((key, given))
            }
            LibevFlag::Key(key) => flags.values.push((key, given.with("true"))),
        }
    }
    if let Some(wrong) = wrong {
        return Err(error(&wrong.name, wrong.problem).into());
    }
    if operands > 0 {
        let problem = "arguments that belong to no flag have no effect";
        flags.diagnostics.push(Diagnostic::warning(&file, program.name(), problem));
    }
    Ok(LibevInvocation::Run(Box::new(flags)))
}
