//! The programs of shadowsocks-libev and shadowsocks-rust: their flags, files and exit statuses.
//!
//! What is asked for and is not in this build is never left out in silence: what would let more through than was meant
//! is an error, and what makes something slower or absent is one warning.

mod fit;
pub(crate) mod libev;
mod online;
mod process;
pub(crate) mod rust;
pub(crate) mod url;

use std::process::ExitCode;

use adit_config::diagnostic::Diagnostics;
use adit_config::dialect::shadowsocks::{Online, Setup};
use adit_config::model::{Config, Log};
use adit_core::Running;
use anyhow::Context as _;

use self::online::{Following, Place};
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
    let mut setup = match loaded.and_then(fit) {
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
    let online = setup.online.first().cloned().map(|online| (setup.grow(&online.check), online));
    let hold = |running: &Running| {
        let pid_file = setup.process.pid_file.as_deref().map(PidFile::write).transpose()?;
        let following = online.map(|(group, online)| follow(running, &group, online, &setup.config));
        Ok((pid_file, following.transpose()?))
    };
    match serve::run_holding(&setup.config, hold) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(hint = print::hint(&error), "{error:#}");
            ExitCode::from(statuses.failure)
        }
    }
}

/// Keeps a group up to date with a list.
fn follow(running: &Running, group: &str, online: Online, config: &Config) -> anyhow::Result<Following> {
    let handle = running.group(group).context("the group that grows is one of the configuration")?;
    let place = Place::of(&online)?;
    let taken = config.outbounds.iter().map(|outbound| outbound.name.clone()).collect();
    Ok(Following::start(online, place, handle, taken)?)
}

/// Prints a text that was asked for.
fn say(text: &str) -> ExitCode {
    match print::data(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print::failure(&error),
    }
}
