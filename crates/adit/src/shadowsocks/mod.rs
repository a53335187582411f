//! The programs of shadowsocks-libev and shadowsocks-rust: their flags, files and exit statuses.
//!
//! What is asked for and is not in this build is never left out in silence: what would let more through than was meant
//! is an error, and what makes something slower or absent is one warning.

mod fit;
pub(crate) mod libev;
mod process;
pub(crate) mod rust;
pub(crate) mod url;

use std::process::ExitCode;

use adit_config::diagnostic::Diagnostics;
use adit_config::dialect::shadowsocks::Setup;
use adit_config::model::Log;

use self::process::PidFile;
use crate::logging::{self, Shape};
use crate::{print, serve};

/// The statuses that a program exits with.
struct Statuses {
    /// The configuration is no good.
    config: u8,
    /// Something has failed later.
    failure: u8,
}

/// Runs what was loaded until a signal; an error of loading comes with its status.
fn run(program: &str, loaded: Result<Setup, (u8, Diagnostics)>, statuses: &Statuses) -> ExitCode {
    let fit = |setup| fit::fit(program, setup).map_err(|found| (statuses.config, found));
    let setup = match loaded.and_then(fit) {
        Ok(setup) => setup,
        Err((status, found)) => {
            logging::init(&Log::default(), Shape::Text);
            serve::log_findings(&found);
            return ExitCode::from(status);
        }
    };
    logging::init(&setup.config.log, Shape::Text);
    serve::log_findings(&setup.diagnostics);
    process::warn(&setup.process);
    let pid_file = || setup.process.pid_file.as_deref().map(PidFile::write).transpose();
    match serve::run_holding(&setup.config, pid_file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(hint = print::hint(&error), "{error:#}");
            ExitCode::from(statuses.failure)
        }
    }
}

/// Prints a text that was asked for.
fn say(text: &str) -> ExitCode {
    match print::data(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print::failure(&error),
    }
}
