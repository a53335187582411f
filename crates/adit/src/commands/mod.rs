//! adit's own commands.

mod batch;
mod capture;
mod check;
pub(crate) mod cli;
mod config;
mod conns;
mod control;
mod demo;
mod doctor;
mod explain;
mod key;
mod lab;
mod manpages;
mod migrate;
mod panel;
mod ruleset;
mod running_process;
mod service;
mod share;
mod status;
mod store;
mod test_server;
mod top;
mod up;
mod user;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Parser as _;

use self::cli::{Cli, Command, LogOnly, RunArgs};
pub(crate) use self::doctor::DoctorArgs;
pub(crate) use self::key::KeyArgs;
pub(crate) use self::migrate::MigrateArgs;
pub(crate) use self::panel::{NodeCommand, PanelCommand};
pub(crate) use self::ruleset::RulesetCommand;
pub(crate) use self::service::ServiceCommand;
pub(crate) use self::store::StoreCommand;
pub(crate) use self::test_server::TestArgs;
pub(crate) use self::up::UpArgs;
use crate::load::files::FileArgs;
use crate::load::files::Texts;
use crate::load::findings;
use crate::log::args::LogArgs;
use crate::log::{self, Shape};
use crate::run::reload::{Load, Source, is_stdin};
use crate::run::{fleet, state};
use crate::serve::first_lines;
use crate::{print, serve};

/// Runs the command that the arguments name. Status 0 is success, 1 failure, 2 a bad command line.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let cli = match Cli::read(args) {
        Ok(cli) => cli,
        Err(error) => {
            error.print().ok();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    match dispatch(cli) {
        Ok(status) => status,
        Err(error) => print::failure(&error),
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Run(args) => run(&args, &cli.log)?,
        Command::Check(args) => return check::run(&args),
        Command::Explain(args) => explain::run(&args)?,
        Command::Up(args) => up::run(&args)?,
        Command::Migrate(args) => migrate::run(&args)?,
        Command::Service(command) => service::run(&command)?,
        Command::Doctor(args) => return doctor::run(&args),
        Command::Test(args) => return test_server::run(&args),
        Command::Key(args) => key::run(&args)?,
        Command::Share(args) => share::run(&args)?,
        Command::Import(args) => config::import(&args)?,
        Command::Status(args) => status::run(&args)?,
        Command::Top(args) => top::run(&args)?,
        Command::Conns(args) => conns::run(&args)?,
        Command::Kick(args) => conns::kick(&args)?,
        Command::Reload(args) => control::reload(&args)?,
        Command::Upgrade(args) => control::upgrade(&args)?,
        Command::Diff(args) => control::diff(&args)?,
        Command::User(command) => user::run(&command)?,
        Command::Panel(command) => panel::run(&command)?,
        Command::Node(command) => panel::node(&command)?,
        Command::Store(command) => store::run(&command)?,
        Command::Capture(command) => capture::run(&command)?,
        Command::Ruleset(command) => ruleset::run(&command)?,
        Command::Demo(args) => demo::run(&args)?,
        Command::Config(command) => config::print(&command)?,
        Command::Convert(args) => {
            print::remark("hint: `adit import` does the same, and reads more formats");
            config::import(&args)?;
        }
        Command::Bench(args) => return lab::run(None, &args.words),
        Command::Wire(args) => return lab::run(Some("wire"), &args.words),
        Command::Audit(args) => return lab::run(Some("audit"), &args.words),
        Command::Guard(args) => adit_demo::guard(&args.words, || Ok(()))?,
        Command::Completions(args) => manpages::completions(&args)?,
        Command::Man(args) => manpages::man(&args)?,
        Command::Version => print::data(format_args!("adit {}\n", cli::VERSION))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run(args: &RunArgs, flags: &LogArgs) -> anyhow::Result<()> {
    let mut given = args.files.given();
    given.config = crate::load::files::paths(&given)?;
    let (mut loaded, texts) = crate::load::files::load_to_run(&given)?;
    let log = flags.over(&loaded.config.log);
    log::init(&log, Shape::from(log.format));
    first_lines::announce(None, &given.config);
    findings::log_findings(&loaded.diagnostics);
    if state::has_state(&loaded.config) {
        state::settle(&mut loaded.config, &given.config);
    }
    state::settle_choices(&mut loaded.config, &given.config);
    fleet::prepare(&mut loaded.config)?;
    let is_watched = loaded.config.watch;
    serve::run(loaded.config, source(given, is_watched, texts))
}

/// The files that are read again at a reload.
fn source(files: FileArgs, is_watched: bool, texts: Texts) -> Source {
    let paths = files.config.clone();
    let is_native = crate::load::files::are_native(&files, &paths, &texts);
    let read = Arc::new(Mutex::new(texts));
    let (again, args) = (read.clone(), files.clone());
    let refresh: Option<Load> = Some(Box::new(move || {
        crate::load::files::load_again(&args, &again.lock().unwrap_or_else(PoisonError::into_inner))
    }));
    if paths.iter().any(|path| is_stdin(path)) {
        let fixed = Source::fixed("the configuration came from standard input, which cannot be read again");
        return Source { refresh, ..fixed };
    }
    if paths.iter().any(|path| crate::load::files::is_link(path)) {
        let fixed = Source::fixed("the configuration came from the command line, which cannot change");
        return Source { refresh, ..fixed };
    }
    let load = move || {
        let (loaded, texts) = crate::load::files::load_to_run(&files)?;
        *read.lock().unwrap_or_else(PoisonError::into_inner) = texts;
        Ok(loaded)
    };
    Source { is_native, is_watched, refresh, ..Source::of(paths, load) }
}

/// Lets options in front of a program's name overrule its own settings of the log.
///
/// # Errors
/// The status to exit with.
pub(crate) fn overrule_log(args: &[OsString]) -> Result<(), ExitCode> {
    match LogOnly::try_parse_from(args) {
        Ok(only) => {
            log::overrule(only.log);
            Ok(())
        }
        Err(error) => {
            error.print().ok();
            Err(ExitCode::from(2))
        }
    }
}
