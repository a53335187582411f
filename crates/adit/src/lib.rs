//! The program: which name it was called by, and what that name does.
//!
//! Called as a program that it replaces (a link of that name, or `adit NAME ...`), adit takes that program's flags
//! and files; under any other name it has commands of its own.

#![forbid(unsafe_code)]

mod api;
mod commands;
mod load;
mod log;
mod machine;
mod names;
mod print;
mod random;
mod replace;
mod run;
mod serve;
mod table;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use adit_formats::kcptun::{KcptunProgram as Kcptun, Release, Side};
use adit_formats::plugins::PluginProgram as Plugin;
use adit_formats::snell::SnellProgram;
use adit_formats::{shadowsocks_libev, shadowsocks_rust, shadowsocksr};

/// The main function of a program, given its arguments.
type Main = fn(Vec<OsString>) -> ExitCode;

/// A program that adit replaces.
pub(crate) struct Name {
    /// The name that it is called by.
    pub(crate) name: &'static str,
    main: Main,
    /// Its flags, for a person.
    pub(crate) usage: fn() -> String,
}

const fn name(name: &'static str, main: Main, usage: fn() -> String) -> Name {
    Name { name, main, usage }
}

/// One line for each program of a family: its name, its main function and its flags.
macro_rules! names {
    ($($name:literal => $module:path, $usage:path, $program:expr;)*) => {
        &[$(name($name, |args| $module($program, args), || $usage($program))),*]
    };
}

const fn kcptun_of(side: Side, release: Release) -> Kcptun {
    Kcptun { side, release }
}

/// The names that adit answers to.
pub(crate) const NAMES: &[Name] = names! {
    "mihomo" => names::clash::main, adit_formats::clash::usage, "mihomo";
    "clash" => names::clash::main, adit_formats::clash::usage, "clash";
    "clash-meta" => names::clash::main, adit_formats::clash::usage, "clash-meta";
    "snell-server" => names::snell::main, adit_formats::snell::usage, SnellProgram::Server;
    "snell-client" => names::snell::main, adit_formats::snell::usage, SnellProgram::Client;
    "ss-local" => names::shadowsocks::libev::main, shadowsocks_libev::usage, shadowsocks_libev::LibevProgram::Local;
    "ss-server" => names::shadowsocks::libev::main, shadowsocks_libev::usage, shadowsocks_libev::LibevProgram::Server;
    "ss-tunnel" => names::shadowsocks::libev::main, shadowsocks_libev::usage, shadowsocks_libev::LibevProgram::Tunnel;
    "ss-redir" => names::shadowsocks::libev::main, shadowsocks_libev::usage, shadowsocks_libev::LibevProgram::Redir;
    "ss-nat" => names::shadowsocks::nat::main, names::shadowsocks::nat::usage, ();
    "ss-manager" => names::shadowsocks::libev::main, shadowsocks_libev::usage, shadowsocks_libev::LibevProgram::Manager;
    "sslocal" => names::shadowsocks::rust::main, shadowsocks_rust::usage, shadowsocks_rust::RustProgram::Local;
    "ssserver" => names::shadowsocks::rust::main, shadowsocks_rust::usage, shadowsocks_rust::RustProgram::Server;
    "ssmanager" => names::shadowsocks::rust::main, shadowsocks_rust::usage, shadowsocks_rust::RustProgram::Manager;
    "ssservice" => names::shadowsocks::rust::service, names::shadowsocks::rust::service_usage, ();
    "ssurl" => names::shadowsocks::url::main, names::shadowsocks::url::usage, ();
    "ssr-local" => names::shadowsocks::ssr::main, shadowsocksr::usage, shadowsocksr::SsrProgram::Local;
    "ssr-tunnel" => names::shadowsocks::ssr::main, shadowsocksr::usage, shadowsocksr::SsrProgram::Tunnel;
    "ssr-redir" => names::shadowsocks::ssr::main, shadowsocksr::usage, shadowsocksr::SsrProgram::Redir;
    "ssr-server" => names::shadowsocks::ssr::main, shadowsocksr::usage, shadowsocksr::SsrProgram::Server;
    "server.py" => names::shadowsocks::ssr::main, shadowsocksr::usage, shadowsocksr::SsrProgram::Server;
    "kcptun-client" => names::kcptun::main, adit_formats::kcptun::usage, kcptun_of(Side::Client, Release::Debian);
    "kcptun-server" => names::kcptun::main, adit_formats::kcptun::usage, kcptun_of(Side::Server, Release::Debian);
    "client_linux_amd64" => names::kcptun::main, adit_formats::kcptun::usage, kcptun_of(Side::Client, Release::Last);
    "server_linux_amd64" => names::kcptun::main, adit_formats::kcptun::usage, kcptun_of(Side::Server, Release::Last);
    "snowflake-client" => names::snowflake::client::main, adit_formats::snowflake::client::usage, "snowflake-client";
    "snowflake-proxy" => names::snowflake::proxy::main, adit_formats::snowflake::proxy::usage, "snowflake-proxy";
    "snowflake-broker" => names::snowflake::broker::main, adit_formats::snowflake::broker::usage, "snowflake-broker";
    "snowflake-server" => names::snowflake::server::main, adit_formats::snowflake::server::usage, "snowflake-server";
    "snowflake-probetest" => names::snowflake::probetest::main, adit_formats::snowflake::probetest::usage, "snowflake-probetest";
    "gq-client" => names::plugin::main, adit_formats::plugins::usage, Plugin::GqClient;
    "gq-server" => names::plugin::main, adit_formats::plugins::usage, Plugin::GqServer;
    "obfs-local" => names::plugin::main, adit_formats::plugins::usage, Plugin::ObfsLocal;
    "obfs-server" => names::plugin::main, adit_formats::plugins::usage, Plugin::ObfsServer;
};

/// Programs of the same families that this build cannot be, with the reason and those of their family that it is.
const ABSENT: &[(&str, &str)] =
    &[("ssr-nat", "its rules are those of iptables); ssr-redir is, and ss-nat makes rules for it")];

/// Does what the name asks for that the program was called by.
#[must_use]
pub fn main() -> ExitCode {
    run::upgrade::begin();
    print::tell_failures(run::upgrade::failed);
    adit_net::keep_large_blocks_apart();
    adit_net::pin_name_services();
    let mut args: Vec<OsString> = std::env::args_os().collect();
    if let Some(status) = names::plugin::begin(&args) {
        return status;
    }
    if let Some(program) = args.first().and_then(|arg| find(arg)) {
        run::socket::set_program(program.name);
        args.remove(0);
        return (program.main)(args);
    }
    if let Some(status) = args.first().and_then(|arg| refuse(arg)) {
        return status;
    }
    // Options for the log may stand in front of the name: `adit -v snell-server`.
    let at = 1 + commands::cli::log_options(args.get(1..).unwrap_or_default());
    if let Some(program) = args.get(at).and_then(|arg| find(arg)) {
        if at > 1
            && let Err(status) = commands::overrule_log(&args[..at])
        {
            return status;
        }
        run::socket::set_program(program.name);
        args.drain(..=at);
        return (program.main)(args);
    }
    if let Some(status) = args.get(at).and_then(|arg| refuse(arg)) {
        return status;
    }
    if let (Some(word), Some(program)) = (args.get(1), args.get(2).and_then(|arg| find(arg)))
        && word == "help"
    {
        let text = (program.usage)();
        return print::data(text).map_or_else(|error| print::failure(&error), |()| ExitCode::SUCCESS);
    }
    run::socket::set_program("adit");
    commands::main(&args)
}

/// Whether adit runs as a program of this name.
pub(crate) fn answers_to(name: &str) -> bool {
    find(name.as_ref()).is_some()
}

/// The program of that name; the folder that it lies in does not matter.
fn find(name: &OsStr) -> Option<&'static Name> {
    let name = Path::new(name).file_name()?;
    NAMES.iter().find(|known| name == known.name)
}

/// Says that adit is not the program of that name, though it is others of the family.
fn refuse(name: &OsStr) -> Option<ExitCode> {
    let name = Path::new(name).file_name()?;
    let (name, why) = ABSENT.iter().find(|(known, _)| name == *known)?;
    print::remark(format_args!("{name} is not in this build ({why}"));
    Some(ExitCode::FAILURE)
}
