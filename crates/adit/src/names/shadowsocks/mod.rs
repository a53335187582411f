//! The programs of shadowsocks-libev and shadowsocks-rust: their flags, files and exit statuses.
//!
//! A requested feature that this build lacks is never left out in silence. It is an error if its absence lets more
//! traffic through than was meant, and one warning if its absence makes something slower or leaves it out.

mod beside;
mod database;
pub(crate) mod libev;
mod manager;
pub(crate) mod nat;
mod online;
mod process;
mod report;
pub(crate) mod rust;
pub(crate) mod ssr;
pub(crate) mod url;

use std::mem::take;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use adit_engine::{Proxies, Running};
use adit_formats::read::loaded::Loaded;
use adit_formats::shadowsocks::{Control, Online, ProgramFamily, ShadowsocksSetup};
use adit_model::diagnostic::Diagnostics;
use adit_model::{Config, Log};
use adit_net::background;
use anyhow::Context as _;

use self::beside::BackgroundLoop;
use crate::load::findings;
use crate::load::supported::ListAddress;
pub(crate) use crate::load::supported::fit;
use crate::log::{self, Shape};
use crate::run::reload::Source;
use crate::run::state;
use crate::serve::first_lines;
use crate::{print, serve};

/// Behaviour of a program's family, and the statuses that it exits with.
struct Statuses {
    /// The family.
    family: ProgramFamily,
    /// The configuration is no good.
    config: u8,
    /// Something has failed later.
    failure: u8,
}

/// Reads what a program was started with; an error comes with its status.
type Load = Box<dyn FnMut() -> Result<ShadowsocksSetup, (u8, Diagnostics)> + Send>;

/// Runs what `load` reads until a signal; `file` is read again at a reload, if there is one.
fn run(program: &'static str, file: Option<PathBuf>, mut load: Load, statuses: &Statuses) -> ExitCode {
    let loaded = load();
    let fit = |setup| fit(program, statuses.family, setup).map_err(|found| (statuses.config, found));
    let mut setup = match loaded.and_then(fit) {
        Ok(setup) => setup,
        Err((status, found)) => {
            log::init(&Log::default(), Shape::Text);
            findings::log_findings(&found);
            return ExitCode::from(status);
        }
    };
    if setup.process.daemonize && !background::is_background() {
        return match background::start() {
            Ok(status) => ExitCode::from(status),
            Err(error) => {
                print::remark(format_args!("error: cannot go into the background: {error}"));
                ExitCode::from(statuses.failure)
            }
        };
    }
    log::init(&setup.config.log, Shape::Text);
    if setup.process.syslog {
        log::to_system(program);
    }
    first_lines::announce(Some(program), file.as_slice());
    findings::log_findings(&setup.diagnostics);
    process::warn(&setup.process);
    let online = setup.online.first().cloned().map(|online| (setup.grow(&online.check), online));
    let ShadowsocksSetup { mut config, process, control, .. } = setup;
    let has_list = config.acl.is_some() || !config.acl_of.is_empty();
    let proxies = Arc::new(OnceLock::new());
    let source = source(program, file, load, &control, statuses.family, has_list, proxies.clone());
    if state::has_state(&config) {
        // Servers may come from flags alone: they are known by their ports.
        state::settle(&mut config, &["-".into()]);
    }
    let first = if matches!(control, Control::Manage(_)) { take(&mut config.inbounds) } else { Vec::new() };
    let hold = |running: &Running| {
        proxies.get_or_init(|| running.proxies());
        let control = match control {
            Control::None => None,
            Control::Report(address) => {
                let interval = report::interval(statuses.family);
                Some(report::start(statuses.family, address, running.meter(), interval)?)
            }
            Control::Manage(manager) => Some(manager::start(*manager, first, running.ports())?),
            Control::Users(database) => Some(database::start(*database, &config, running)?),
        };
        let following = online.map(|(group, online)| follow(running, &group, online, &config));
        process::settle(program, &process, (control, following.transpose()?))
    };
    match serve::run_holding(config.clone(), source, hold) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(code = print::code(&error), hint = print::hint(&error), "{error:#}");
            ExitCode::from(statuses.failure)
        }
    }
}

/// The file that is read again at a reload, if there is one, and the files of access lists. SIGUSR1 asks `sslocal` of
/// shadowsocks-rust for that. The servers of a manager stay: their settings came with its commands. So do
/// those of a database: it is followed by itself.
fn source(
    program: &'static str,
    file: Option<PathBuf>,
    mut load: Load,
    control: &Control,
    family: ProgramFamily,
    has_list: bool,
    proxies: Arc<OnceLock<Proxies>>,
) -> Source {
    let is_manager = matches!(control, Control::Manage(_));
    let source = match (control, file) {
        (Control::Manage(_), _) if !has_list => {
            Source::fixed("a manager adds and removes servers by its own commands")
        }
        (Control::Users(_), _) if !has_list => Source::fixed("the database of users is followed by itself"),
        (Control::Users(_), file) => Source::of(file.into_iter().collect(), move || {
            let ShadowsocksSetup { config, diagnostics, .. } =
                fit(program, family, load().map_err(|(_, found)| found)?)?;
            let running = proxies.get().map_or_else(Config::default, |proxies| (*proxies.config()).clone());
            Ok(Loaded { config: Config { acl: config.acl, acl_of: config.acl_of, ..running }, diagnostics })
        }),
        (_, None) if !has_list => {
            Source::fixed("all settings came from the command line, which cannot change")
        }
        (Control::None | Control::Report(_) | Control::Manage(_), file) => {
            Source::of(file.into_iter().collect(), move || {
                let mut setup = fit(program, family, load().map_err(|(_, found)| found)?)?;
                if is_manager {
                    setup.config.inbounds.clear();
                }
                if let Some(online) = setup.online.first().cloned() {
                    setup.grow(&online.check);
                }
                Ok(Loaded { config: setup.config, diagnostics: setup.diagnostics })
            })
        }
    };
    Source { is_reloaded_by_user_signal: program == "sslocal", ..source }
}

/// Keeps a group up to date with a list.
fn follow(running: &Running, group: &str, list: Online, config: &Config) -> anyhow::Result<BackgroundLoop> {
    let handle = running.group(group).context("the group that grows is one of the configuration")?;
    let place = ListAddress::of(&list)?;
    let taken = config.outbounds.iter().map(|outbound| outbound.name.clone()).collect();
    Ok(online::follow(list, place, handle, taken)?)
}

/// Prints a text that was asked for.
fn say(text: &str) -> ExitCode {
    match print::data(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print::failure(&error),
    }
}
