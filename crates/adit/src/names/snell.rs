//! `snell-server` and `snell-client`: OpenSnell's flags, files, exit statuses and kind of log.
//!
//! Status 0 after a signal, 1 for a file that is not good or a start that fails, 2 for bad flags.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adit_formats::read::loaded::Loaded;
use adit_formats::read::source;
use adit_formats::share::{KEY_LEN, generate_key};
use adit_formats::snell::{self, SnellEnvironment, SnellFlags, SnellInvocation, SnellProgram};
use adit_model::diagnostic::Diagnostics;
use adit_model::{Level, Log};

use crate::load::findings;
use crate::log::{self, Shape};
use crate::random::SystemRng;
use crate::run::reload::Source;
use crate::run::state;
use crate::serve::first_lines;
use crate::{print, serve};

/// Runs one of the programs.
pub(crate) fn main(program: SnellProgram, args: Vec<OsString>) -> ExitCode {
    let asks_version = matches!(&*args, [one] if one == "-v" || one == "--v");
    match snell::flags(program, args) {
        // Scripts for the official server ask so. OpenSnell writes debug lines then, where it has a file to run with.
        Ok(SnellInvocation::Run(_)) if asks_version && !has_own_file(program) => {
            say(&snell::version(program))
        }
        Ok(SnellInvocation::Version) => say(&snell::version(program)),
        Ok(SnellInvocation::Help) => say(&snell::usage(program)),
        Ok(SnellInvocation::Run(flags)) => run(program, &flags),
        Err(found) => {
            print::remark(format_args!("{found}{}", snell::usage(program)));
            ExitCode::from(2)
        }
    }
}

fn say(text: &str) -> ExitCode {
    print::data(text).map_or_else(|error| print::failure(&error), |()| ExitCode::SUCCESS)
}

/// Whether OpenSnell would find a configuration without being told of one.
fn has_own_file(program: SnellProgram) -> bool {
    Path::new(program.default_path()).exists() || program == SnellProgram::Server && environment().is_some()
}

fn run(program: SnellProgram, flags: &SnellFlags) -> ExitCode {
    let level = flags.level.unwrap_or(Level::Info);
    log::init(&Log { level, ..Log::default() }, Shape::Logfmt);
    let files: Vec<PathBuf> = file(program, flags).into_iter().collect();
    first_lines::announce(Some(program.name()), &files);
    findings::log_findings(&flags.diagnostics);
    if flags.diagnostics.has_errors() {
        return ExitCode::FAILURE;
    }
    let error = match load(program, flags) {
        Ok(mut loaded) => {
            findings::log_findings(&loaded.diagnostics);
            if state::has_state(&loaded.config) {
                state::settle(&mut loaded.config, &files);
            }
            match serve::run(loaded.config, source(program, flags)) {
                Ok(()) => return ExitCode::SUCCESS,
                Err(error) => error,
            }
        }
        Err(found) => {
            findings::log_findings(&found);
            return ExitCode::FAILURE;
        }
    };
    tracing::error!(code = print::code(&error), hint = print::hint(&error), "{error:#}");
    ExitCode::FAILURE
}

/// The file that is read again at a reload, if there is one.
fn source(program: SnellProgram, flags: &SnellFlags) -> Source {
    let Some(file) = file(program, flags) else {
        return Source::fixed(
            "the configuration came from variables of the environment, which cannot change",
        );
    };
    let flags = flags.clone();
    Source::of(vec![file], move || load(program, &flags))
}

/// The file, or the variables of the container image in its place.
fn load(program: SnellProgram, flags: &SnellFlags) -> Result<Loaded, Diagnostics> {
    let file = file(program, flags);
    if file.is_none()
        && let Some(mut environment) = environment()
    {
        if !environment.has_key {
            let key = generate_key(&mut SystemRng, KEY_LEN);
            environment.set_key(&key);
            // Nobody could use the server without it. It is no part of the log.
            let (variable, key) = (SnellEnvironment::KEY, key.expose());
            print::data(format_args!("{variable} is not set, a new key for this run: {key}\n")).ok();
        }
        return environment.load(flags.level);
    }
    let path = file.unwrap_or_else(|| flags.config.clone());
    let text = source::read(&path)?;
    snell::parse_with(program, flags.level, flags.tun, &path.to_string_lossy(), &text)
}

/// The file to read; none where the variables of the container image stand in its place. The file
/// of the official server's scripts is read if OpenSnell's default is not there.
fn file(program: SnellProgram, flags: &SnellFlags) -> Option<PathBuf> {
    let named = &flags.config;
    if program != SnellProgram::Server || named != Path::new(program.default_path()) || named.exists() {
        return Some(named.clone());
    }
    if environment().is_some() {
        return None;
    }
    let official = Path::new("/etc/snell/snell-server.conf");
    Some(if official.exists() { official.to_owned() } else { named.clone() })
}

fn environment() -> Option<SnellEnvironment> {
    SnellEnvironment::read(|name| std::env::var(name).ok())
}
