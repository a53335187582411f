//! The program: which name it was called by, and what that name does.
//!
//! Called as a program that it replaces (a link of that name, or `adit NAME ...`), adit takes that program's flags
//! and files; under any other name it has commands of its own.

#![forbid(unsafe_code)]

mod clash;
mod cli;
mod commands;
mod kcptun;
mod logging;
mod machine;
mod plugin;
mod print;
mod providers;
mod reload;
mod replace;
mod serve;
mod shadowsocks;
mod snell;
mod state;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use adit_config::dialect::kcptun::{Program as Kcptun, Release, Side};
use adit_config::dialect::opensnell::Program;
use adit_config::dialect::plugin::Program as Plugin;
use adit_config::dialect::shadowsocks::{libev, rust, ssr};

/// The main function of a program, given its arguments.
type Main = fn(Vec<OsString>) -> ExitCode;

/// The names that adit answers to.
const NAMES: &[(&str, Main)] = &[
    ("mihomo", |args| clash::main("mihomo", args)),
    ("clash", |args| clash::main("clash", args)),
    ("clash-meta", |args| clash::main("clash-meta", args)),
    ("snell-server", |args| snell::main(Program::Server, args)),
    ("snell-client", |args| snell::main(Program::Client, args)),
    ("ss-local", |args| shadowsocks::libev::main(libev::Program::Local, args)),
    ("ss-server", |args| shadowsocks::libev::main(libev::Program::Server, args)),
    ("ss-tunnel", |args| shadowsocks::libev::main(libev::Program::Tunnel, args)),
    ("ss-manager", |args| shadowsocks::libev::main(libev::Program::Manager, args)),
    ("sslocal", |args| shadowsocks::rust::main(rust::Program::Local, args)),
    ("ssserver", |args| shadowsocks::rust::main(rust::Program::Server, args)),
    ("ssmanager", |args| shadowsocks::rust::main(rust::Program::Manager, args)),
    ("ssservice", shadowsocks::rust::service),
    ("ssurl", shadowsocks::url::main),
    ("ssr-local", |args| shadowsocks::ssr::main(ssr::Program::Local, args)),
    ("ssr-tunnel", |args| shadowsocks::ssr::main(ssr::Program::Tunnel, args)),
    ("ssr-redir", |args| shadowsocks::ssr::main(ssr::Program::Redir, args)),
    ("ssr-server", |args| shadowsocks::ssr::main(ssr::Program::Server, args)),
    ("server.py", |args| shadowsocks::ssr::main(ssr::Program::Server, args)),
    ("kcptun-client", |args| kcptun::main(Kcptun { side: Side::Client, release: Release::Debian }, args)),
    ("kcptun-server", |args| kcptun::main(Kcptun { side: Side::Server, release: Release::Debian }, args)),
    ("client_linux_amd64", |args| kcptun::main(Kcptun { side: Side::Client, release: Release::Last }, args)),
    ("gq-client", |args| plugin::main(Plugin::GqClient, args)),
    ("gq-server", |args| plugin::main(Plugin::GqServer, args)),
    ("obfs-local", |args| plugin::main(Plugin::ObfsLocal, args)),
    ("obfs-server", |args| plugin::main(Plugin::ObfsServer, args)),
    ("server_linux_amd64", |args| kcptun::main(Kcptun { side: Side::Server, release: Release::Last }, args)),
];

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    if let Some(status) = plugin::begin(&args) {
        return status;
    }
    if let Some(main) = args.first().and_then(find) {
        args.remove(0);
        return main(args);
    }
    if let Some(main) = args.get(1).and_then(find) {
        args.drain(..2);
        return main(args);
    }
    commands::main(args)
}

/// Whether adit runs as a program of this name.
pub(crate) fn answers_to(name: &str) -> bool {
    find(&name.into()).is_some()
}

/// The program of that name; the folder that it lies in does not matter.
fn find(name: &OsString) -> Option<Main> {
    let name = Path::new(name).file_name()?;
    NAMES.iter().find(|(known, _)| name == *known).map(|(_, main)| *main)
}
