//! adit's own commands.

mod batch;
mod check;
mod config;
mod demo;
mod explain;
mod files;
mod foreign;
mod share;
mod status;

use std::ffi::OsString;
use std::process::ExitCode;

use adit_config::dialect::share::{Rng, generate_key};
use adit_config::model::{Level, Log};
use clap::{CommandFactory as _, Parser as _};

pub(crate) use self::foreign::Format;
use crate::cli::{Cli, Command, KeyArgs, LogArgs, RunArgs};
use crate::logging::{self, Shape};
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
        Command::Key(args) => key(&args)?,
        Command::Share(args) => share::run(&args)?,
        Command::Import(args) => share::import(&args)?,
        Command::Status(args) => status::run(&args)?,
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
    let mut loaded = files::load(&args.files)?;
    let log = merged(&loaded.config.log, flags);
    logging::init(&log, Shape::from(log.format));
    serve::log_findings(&loaded.diagnostics);
    if loaded.config.inbounds.iter().any(serve::has_state) {
        state::settle(&mut loaded.config, &files::paths(&args.files)?);
    }
    serve::run(&loaded.config)
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

fn key(args: &KeyArgs) -> anyhow::Result<()> {
    print::data(format_args!("{}\n", generate_key(&mut SystemRng, args.length).expose()))
}

/// The system's random source.
pub(crate) struct SystemRng;

impl Rng for SystemRng {
    fn fill(&mut self, out: &mut [u8]) {
        getrandom::fill(out).expect("the system has a random source");
    }
}
