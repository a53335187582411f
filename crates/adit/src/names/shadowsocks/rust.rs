//! `sslocal`, `ssserver` and `ssservice` of shadowsocks-rust.
//!
//! Status 0 after a signal, 2 for bad flags, 64 when something is missing on the command line, 78 for a bad file, 70
//! for a start that fails.

use std::env::var_os;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adit_formats::read::source;
use adit_formats::shadowsocks::{ProgramFamily, ShadowsocksSetup};
use adit_formats::shadowsocks_rust::{self, Exit, RustFlags, RustInvocation, RustProgram, Service};
use adit_model::diagnostic::Diagnostics;

use super::Statuses;
use crate::load::supported;
use crate::print;
use crate::random::SystemRng;

const SERVICE: &str = "usage: ssservice local [flags]\n       ssservice server [flags]\n       ssservice manager [flags]\n       ssservice genkey -m METHOD\n";

/// Runs one of the programs.
pub(crate) fn main(program: RustProgram, args: Vec<OsString>) -> ExitCode {
    match shadowsocks_rust::flags(program, args) {
        Ok(RustInvocation::Help) => super::say(&shadowsocks_rust::usage(program)),
        Ok(RustInvocation::Version) => version(program.name()),
        Ok(RustInvocation::Run(flags)) => {
            let (config, failure) = (Exit::Config as u8, Exit::Software as u8);
            let statuses = Statuses { family: ProgramFamily::Rust, config, failure };
            let file = file(program, &flags);
            if let Some(path) = file.as_ref().filter(|_| flags.config.is_none()) {
                print::remark(format_args!("loading default config {}", path.display()));
            }
            let load = move || load(program, &flags).map_err(|(exit, found)| (exit as u8, found));
            super::run(program.name(), file, Box::new(load), &statuses)
        }
        Err(found) => {
            print::remark(format_args!("{found}{}", shadowsocks_rust::usage(program)));
            ExitCode::from(Exit::Flag as u8)
        }
    }
}

/// `ssservice`: the word behind it is the program.
pub(crate) fn service((): (), mut args: Vec<OsString>) -> ExitCode {
    let word = if args.is_empty() { OsString::new() } else { args.remove(0) };
    match word.to_str() {
        Some("-h" | "--help") => return super::say(SERVICE),
        Some("-V" | "--version") => return version("ssservice"),
        _ => {}
    }
    match word.to_str().and_then(shadowsocks_rust::service) {
        Some(Service::Program(program)) => main(program, args),
        Some(Service::Key) => generate_key(&args),
        None => {
            print::remark(SERVICE.trim_end());
            ExitCode::from(Exit::Flag as u8)
        }
    }
}

/// The subcommands, for a person.
pub(crate) fn service_usage((): ()) -> String {
    SERVICE.to_owned()
}

fn generate_key(args: &[OsString]) -> ExitCode {
    let name = match args {
        [flag, name] if flag == "-m" || flag == "--encrypt-method" => name.to_str(),
        _ => None,
    };
    match name.map(str::parse) {
        Some(Ok(method)) => {
            super::say(&format!("{}\n", shadowsocks_rust::generate_key(method, &mut SystemRng).expose()))
        }
        Some(Err(_)) => {
            print::remark("error: ssservice genkey -m: unknown method");
            ExitCode::from(Exit::Flag as u8)
        }
        None => {
            print::remark(SERVICE.trim_end());
            ExitCode::from(Exit::Flag as u8)
        }
    }
}

fn version(program: &str) -> ExitCode {
    super::say(&format!("{program} (adit {})\n", env!("CARGO_PKG_VERSION")))
}

/// The file that is named, or the default one where no server is given.
fn file(program: RustProgram, flags: &RustFlags) -> Option<PathBuf> {
    let by_default = || if flags.names_server() { None } else { default_path(program) };
    flags.config.clone().or_else(by_default)
}

fn load(program: RustProgram, flags: &RustFlags) -> Result<ShadowsocksSetup, (Exit, Diagnostics)> {
    let Some(path) = file(program, flags) else {
        return shadowsocks_rust::load(program, flags, None, supported::outside());
    };
    let text = source::read(&path).map_err(|error| (Exit::Config, error.into()))?;
    shadowsocks_rust::load(
        program,
        flags,
        Some((&*path.to_string_lossy(), text.as_str())),
        supported::outside(),
    )
}

/// The default file that exists.
fn default_path(program: RustProgram) -> Option<PathBuf> {
    let path = |name| var_os(name).filter(|value| !value.is_empty());
    let (config_home, home) = (path("XDG_CONFIG_HOME"), path("HOME"));
    let paths = shadowsocks_rust::default_paths(
        program,
        &std::env::current_dir().ok()?,
        config_home.as_deref().map(Path::new),
        home.as_deref().map(Path::new),
        path("XDG_CONFIG_DIRS").as_deref().and_then(|dirs| dirs.to_str()),
    );
    paths.into_iter().find(|path| path.exists())
}
