//! Snowflake's programs: environment and flags, standard output, log and exit status.
//!
//! Status 0 after a signal, 1 for a start that fails, 2 for bad flags.

pub(crate) mod broker;
#[cfg(target_os = "linux")]
pub(crate) mod client;
#[cfg(target_os = "linux")]
mod log_format;
pub(crate) mod probetest;
#[cfg(target_os = "linux")]
pub(crate) mod proxy;
pub(crate) mod server;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use adit_formats::snowflake::SnowflakeExit;
use adit_model::Log;
use adit_net::rt::Signals;
use adit_snowflake::SnowflakeError;

use crate::log::{self, Shape};
use crate::print;
use crate::run::upgrade;

/// The end of a program that does not run.
fn end(ends: SnowflakeExit, usage: &str, version: &str) -> ExitCode {
    match ends {
        SnowflakeExit::Help => print::data(usage).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        SnowflakeExit::Version => {
            print::remark(version);
            ExitCode::SUCCESS
        }
        SnowflakeExit::Wrong(problem) => {
            tell_tor(&problem);
            print::remark(format_args!("{problem}\n{usage}"));
            ExitCode::from(2)
        }
    }
}

/// Tells Tor, if it started this program, why nothing works. Its log shows that line alone, and it does not try again and again;
/// it does not read the standard error.
fn tell_tor(problem: &str) {
    if std::env::var_os("TOR_PT_MANAGED_TRANSPORT_VER").is_some() {
        let line = problem.replace(char::is_control, " ");
        print::data(format_args!("ENV-ERROR {line}\n")).ok();
    }
}

/// Starts logging in the form of Go's package `log`, and makes the most of descriptors.
fn begin(file: Option<&Path>) {
    let log = Log { file: file.map(Path::to_owned), max_size: u64::MAX, ..Log::default() };
    log::init(&log, Shape::Go);
    if let Err(error) = adit_net::raise_fd_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    if let Err(error) = Signals::keep() {
        tracing::warn!(%error, "cannot handle signals");
    }
}

/// Runs a service over HTTP, in the place of the process that has started this one if there is one.
fn serve(run: impl FnOnce(fn(SocketAddr)) -> Result<(), SnowflakeError>) -> ExitCode {
    if let Err(error) = upgrade::take_listeners() {
        tracing::error!("{error:#}");
        return ExitCode::FAILURE;
    }
    status(run(|at| {
        tracing::info!("listening on {at}");
        upgrade::tell_serving();
    }))
}

/// The status of a server that has ended.
fn status(result: Result<(), SnowflakeError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let hint = match &error {
                SnowflakeError::Listen(error) => error.hint(),
                SnowflakeError::Tls(_) | SnowflakeError::File { .. } | SnowflakeError::Loop(_) => None,
            };
            tracing::error!(hint, "{error}");
            ExitCode::FAILURE
        }
    }
}
