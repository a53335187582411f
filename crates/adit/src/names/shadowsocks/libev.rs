//! `ss-local`, `ss-server` and `ss-tunnel` of shadowsocks-libev.
//!
//! Status 0 after a signal, 1 for bad flags or when something is missing, 255 for a bad file or a start that fails.

use std::env::var_os;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adit_formats::read::source;
use adit_formats::shadowsocks::{ProgramFamily, ShadowsocksSetup};
use adit_formats::shadowsocks_libev::{
    self, EXIT_FAILURE, EXIT_USAGE, LibevFlags, LibevInvocation, LibevProgram,
};
use adit_model::diagnostic::{Diagnostics, Severity};

use super::Statuses;
use crate::print;

/// Runs one of the programs.
pub(crate) fn main(program: LibevProgram, args: Vec<OsString>) -> ExitCode {
    if matches!(&*args, [one] if one == "--version") {
        return super::say(&shadowsocks_libev::version(program));
    }
    match shadowsocks_libev::flags(program, args) {
        Ok(LibevInvocation::Help) => super::say(&shadowsocks_libev::usage(program)),
        Ok(LibevInvocation::Run(flags)) => {
            let statuses =
                Statuses { family: ProgramFamily::Libev, config: EXIT_FAILURE, failure: EXIT_FAILURE };
            let file = file(&flags);
            super::run(program.name(), file, Box::new(move || load(program, &flags)), &statuses)
        }
        Err(found) => {
            print::remark(format_args!("{found}{}", shadowsocks_libev::usage(program)));
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// The file that is named, or the default one where nothing else is given.
fn file(flags: &LibevFlags) -> Option<PathBuf> {
    flags.config.clone().or_else(|| if flags.is_bare { default_path() } else { None })
}

fn load(program: LibevProgram, flags: &LibevFlags) -> Result<ShadowsocksSetup, (u8, Diagnostics)> {
    let Some(path) = file(flags) else {
        return shadowsocks_libev::load(program, flags, None).map_err(|found| (status(&found), found));
    };
    let text = source::read(&path).map_err(|error| (EXIT_FAILURE, error.into()))?;
    let file = Some((&*path.to_string_lossy(), text.as_str()));
    shadowsocks_libev::load(program, flags, file).map_err(|found| (status(&found), found))
}

/// The default file that exists.
fn default_path() -> Option<PathBuf> {
    let path = |name| var_os(name).filter(|value| !value.is_empty());
    let (config_home, home) = (path("XDG_CONFIG_HOME"), path("HOME"));
    let mut paths = shadowsocks_libev::default_paths(
        config_home.as_deref().map(Path::new),
        home.as_deref().map(Path::new),
    )
    .into_iter();
    paths.find(|path| path.exists())
}

/// The programs tell what is missing from what is wrong.
pub(super) fn status(found: &Diagnostics) -> u8 {
    let mut errors = found.iter().filter(|finding| finding.severity == Severity::Error);
    let is_usage = errors.all(|error| &*error.file == "command line" || error.problem == "missing");
    if is_usage { EXIT_USAGE } else { EXIT_FAILURE }
}
