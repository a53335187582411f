//! adit's own commands.

mod batch;
mod check;
mod config;
mod control;
mod demo;
mod doctor;
mod explain;
mod files;
mod foreign;
mod key;
mod migrate;
mod service;
mod share;
mod status;
mod test;
mod up;
mod user;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use adit_config::dialect::share::Rng;
use adit_config::model::{Level, Log};
use clap::{CommandFactory as _, Parser as _};

pub(crate) use self::doctor::DoctorArgs;
pub(crate) use self::files::{load_all, place_of_part};
pub(crate) use self::foreign::Format;
pub(crate) use self::key::KeyArgs;
pub(crate) use self::migrate::MigrateArgs;
pub(crate) use self::service::ServiceCommand;
pub(crate) use self::test::TestArgs;
pub(crate) use self::up::UpArgs;
use crate::cli::{Cli, Command, FileArgs, LogArgs, RunArgs};
use crate::logging::{self, Shape};
use crate::reload::{Source, is_stdin};
use crate::{print, serve, state};

/// Runs the command that the arguments name. Status 0 is success, 1 failure, 2 a bad command line.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
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
        Command::Test(args) => return test::run(&args),
        Command::Key(args) => key::run(&args)?,
        Command::Share(args) => share::run(&args)?,
        Command::Import(args) => share::import(&args)?,
        Command::Status(args) => status::run(&args)?,
        Command::Reload(args) => control::reload(&args)?,
        Command::Diff(args) => control::diff(&args)?,
        Command::User(command) => user::run(&command)?,
        Command::Demo(args) => demo::run(&args)?,
        Command::Config(command) => config::print(&command)?,
        Command::Convert(args) => config::convert(&args)?,
        Command::Bench(args) => adit_lab::run_mounted(*args, &["bench"])?,
        Command::Wire(args) => adit_lab::wire::run(&args)?,
        Command::Audit(args) => adit_lab::wire::audit::run(&args, &["bench"])?,
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "adit", &mut text);
            print::data(String::from_utf8_lossy(&text))?;
        }
        Command::Man { dir: Some(dir) } => clap_mangen::generate_to(Cli::command(), dir)?,
        Command::Man { dir: None } => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut text)?;
            print::data(String::from_utf8_lossy(&text))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run(args: &RunArgs, flags: &LogArgs) -> anyhow::Result<()> {
    let paths = files::paths(&args.files)?;
    let mut loaded = files::load(&FileArgs { config: paths.clone() })?;
    let log = merged(&loaded.config.log, flags);
    logging::init(&log, Shape::from(log.format));
    serve::log_findings(&loaded.diagnostics);
    if serve::has_state(&loaded.config) {
        state::settle(&mut loaded.config, &paths);
    }
    serve::run(&loaded.config, source(paths, loaded.config.watch))
}

/// The files that are read again at a reload.
fn source(paths: Vec<PathBuf>, is_watched: bool) -> Source {
    if paths.iter().any(|path| is_stdin(path)) {
        return Source::fixed("the configuration came from standard input, which cannot be read again");
    }
    let args = FileArgs { config: paths.clone() };
    Source { is_native: true, is_watched, ..Source::of(paths, move || files::load(&args)) }
}

/// The settings of the file, overruled by the command line.
fn merged(log: &Log, flags: &LogArgs) -> Log {
    let asked = match flags.verbose {
        0 => flags.log_level,
        1 => Some(Level::Debug),
        _ => Some(Level::Trace),
    };
    Log { level: asked.unwrap_or(log.level), format: flags.log_format.unwrap_or(log.format), ..log.clone() }
}

/// The system's random source.
pub(crate) struct SystemRng;

impl Rng for SystemRng {
    fn fill(&mut self, out: &mut [u8]) {
        getrandom::fill(out).expect("the system has a random source");
    }
}
