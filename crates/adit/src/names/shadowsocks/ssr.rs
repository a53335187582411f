//! `ssr-local` and `ssr-tunnel` of the C client of ShadowsocksR, and `ssr-server`, its Python server (`server.py`).
//!
//! Status 0 after a signal, 1 for bad flags or when something is missing; then clients have 255 and the server has 1 for a
//! bad file or a start that fails.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use adit_formats::read::source;
use adit_formats::shadowsocks::{ProgramFamily, ShadowsocksSetup};
use adit_formats::shadowsocks_libev::EXIT_FAILURE;
use adit_formats::shadowsocksr::{self, Daemon, EXIT_USAGE, SsrFlags, SsrInvocation, SsrProgram};
use adit_model::diagnostic::Diagnostics;
use adit_net::background;
use anyhow::Context as _;

use super::{Statuses, libev};
use crate::load::supported;
use crate::print;

/// The database that is looked for where nothing is named.
const DATABASE: &str = "mudb.json";
/// Longest time to wait for a process that was asked to end: the time that connections have, and some more.
const PATIENCE: Duration = Duration::from_secs(15);

/// Runs one of the programs.
pub(crate) fn main(program: SsrProgram, args: Vec<OsString>) -> ExitCode {
    let flags = match shadowsocksr::flags(program, args) {
        Ok(SsrInvocation::Help) => return super::say(&shadowsocksr::usage(program)),
        Ok(SsrInvocation::Version) => {
            return super::say(&format!("{} (adit {})\n", program.name(), env!("CARGO_PKG_VERSION")));
        }
        Ok(SsrInvocation::Run(flags)) => flags,
        Err(found) => {
            print::remark(format_args!("{found}{}", shadowsocksr::usage(program)));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let is_first = !background::is_background();
    if is_first && matches!(flags.daemon, Some(Daemon::Stop | Daemon::Restart)) {
        let stopped = stop(&flags.pid_file());
        if let Err(error) = &stopped {
            print::remark(format_args!("error: {error:#}"));
        }
        match (flags.daemon, stopped) {
            (Some(Daemon::Stop), Ok(())) => return ExitCode::SUCCESS,
            (Some(Daemon::Stop), Err(_)) => return ExitCode::from(EXIT_USAGE),
            // A server that does not run needs no stop, as the Python server sees it.
            _ => {}
        }
    }
    let failure = if program == SsrProgram::Server { EXIT_USAGE } else { EXIT_FAILURE };
    let statuses = Statuses { family: ProgramFamily::Libev, config: failure, failure };
    let file = file(program, &flags);
    let load = move || named(program, &flags).map_err(|found| (libev::status(&found).min(failure), found));
    super::run(program.name(), file, Box::new(load), &statuses)
}

/// The file that is named, or the default one where nothing else is given.
fn file(program: SsrProgram, flags: &SsrFlags) -> Option<PathBuf> {
    let may_guess = flags.is_bare || program == SsrProgram::Server;
    let by_default = || program.default_paths().into_iter().find(|path| may_guess && path.exists());
    flags.config.clone().or_else(by_default)
}

/// The setup that the command line and its file ask for.
fn named(program: SsrProgram, flags: &SsrFlags) -> Result<ShadowsocksSetup, Diagnostics> {
    let is_plain = flags.config.is_none() && program == SsrProgram::Server;
    if is_plain && let Some(path) = database_here() {
        return supported::load_ssr(
            program,
            flags,
            &path,
            &source::read_up_to(&path, shadowsocksr::mudb::MAX_LEN)?,
        );
    }
    match file(program, flags) {
        Some(path) => supported::load_ssr(
            program,
            flags,
            &path,
            &source::read_up_to(&path, shadowsocksr::mudb::MAX_LEN)?,
        ),
        None => shadowsocksr::load(program, flags, None, None),
    }
}

/// The database of a server that is started in its own folder, as `server.py` at the top of its tree is.
fn database_here() -> Option<PathBuf> {
    let path = PathBuf::from(DATABASE);
    (path.exists() && Path::new("server.py").exists()).then_some(path)
}

/// Ends the process whose number is in the file, and waits until it has ended.
fn stop(path: &Path) -> anyhow::Result<()> {
    let text =
        fs::read_to_string(path).with_context(|| format!("no server is running: {}", path.display()))?;
    let number = text.trim().parse::<u32>().with_context(|| format!("no number in {}", path.display()))?;
    let process = PathBuf::from(format!("/proc/{number}"));
    anyhow::ensure!(process.exists(), "no server is running: process {number} of {} is gone", path.display());
    // One that has ended, and that nobody has asked for its status, has no program any more.
    let is_running = || fs::read_link(process.join("exe")).is_ok_and(|exe| is_adit(&exe));
    anyhow::ensure!(
        is_running(),
        "process {number} of {} is another program, so it is left alone",
        path.display()
    );
    background::end(number).with_context(|| format!("cannot end process {number}"))?;
    let step = Duration::from_millis(50);
    for _ in 0..PATIENCE.as_millis() / step.as_millis() {
        if !is_running() {
            return Ok(());
        }
        std::thread::sleep(step);
    }
    anyhow::bail!("process {number} has not ended within {} seconds", PATIENCE.as_secs())
}

/// Whether a program is this one; one that was replaced on the disk meanwhile has ` (deleted)` behind its name.
fn is_adit(exe: &Path) -> bool {
    let name = |path: &Path| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some(name.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(name))
    };
    std::env::current_exe().is_ok_and(|own| name(&own) == name(exe))
}
