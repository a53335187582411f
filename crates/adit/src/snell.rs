//! `snell-server` and `snell-client`: OpenSnell's flags, files, exit statuses and kind of log.
//!
//! Status 0 after a signal, 1 for a file that is not good or a start that fails, 2 for bad flags.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use adit_config::diagnostic::Diagnostics;
use adit_config::dialect::Loaded;
use adit_config::dialect::opensnell::{self, Environment, Flags, Invocation, Program};
use adit_config::dialect::share::{KEY_LEN, generate_key};
use adit_config::model::{Level, Log};
use adit_config::source;

use crate::commands::SystemRng;
use crate::logging::{self, Shape};
use crate::reload::Source;
use crate::{print, serve, start, state};

/// Runs one of the programs.
pub(crate) fn main(program: Program, args: Vec<OsString>) -> ExitCode {
    let asks_version = matches!(&*args, [one] if one == "-v" || one == "--v");
    match opensnell::flags(program, args) {
        // Scripts for the official server ask so. OpenSnell writes debug lines then, where it has a file to run with.
        Ok(Invocation::Run(_)) if asks_version && !has_own_file(program) => say(&opensnell::version(program)),
        Ok(Invocation::Version) => say(&opensnell::version(program)),
        Ok(Invocation::Help) => say(&opensnell::usage(program)),
        Ok(Invocation::Run(flags)) => run(program, &flags),
        Err(found) => {
            print::remark(format_args!("{found}{}", opensnell::usage(program)));
            ExitCode::from(2)
        }
    }
}

fn say(text: &str) -> ExitCode {
    print::data(text).map_or_else(|error| print::failure(&error), |()| ExitCode::SUCCESS)
}

/// Whether OpenSnell would find a configuration without being told of one.
fn has_own_file(program: Program) -> bool {
    let has_variables = || Environment::read(|name| std::env::var(name).ok()).is_some();
    Path::new(program.default_path()).exists() || program == Program::Server && has_variables()
}

fn run(program: Program, flags: &Flags) -> ExitCode {
    let level = flags.level.unwrap_or(Level::Info);
    logging::init(&Log { level, ..Log::default() }, Shape::Logfmt);
    start::announce(Some(program.name()), std::slice::from_ref(&flags.config));
    serve::log_findings(&flags.diagnostics);
    if flags.diagnostics.has_errors() {
        return ExitCode::FAILURE;
    }
    let error = match load(program, flags) {
        Ok(mut loaded) => {
            serve::log_findings(&loaded.diagnostics);
            if serve::has_state(&loaded.config) {
                state::settle(&mut loaded.config, std::slice::from_ref(&flags.config));
            }
            match serve::run(loaded.config, source(program, flags)) {
                Ok(()) => return ExitCode::SUCCESS,
                Err(error) => error,
            }
        }
        Err(found) => {
            serve::log_findings(&found);
            return ExitCode::FAILURE;
        }
    };
    tracing::error!(code = print::code(&error), hint = print::hint(&error), "{error:#}");
    ExitCode::FAILURE
}

/// The file that is read again at a reload, if there is one.
fn source(program: Program, flags: &Flags) -> Source {
    if !flags.config.exists() {
        return Source::fixed(
            "the configuration came from variables of the environment, which cannot change",
        );
    }
    let flags = flags.clone();
    Source::of(vec![flags.config.clone()], move || load(program, &flags))
}

/// The file, or in its place, where it is the default one and is not there, the variables of the container image.
fn load(program: Program, flags: &Flags) -> Result<Loaded, Diagnostics> {
    if program == Program::Server
        && flags.config == Path::new(program.default_path())
        && !flags.config.exists()
        && let Some(mut environment) = Environment::read(|name| std::env::var(name).ok())
    {
        if !environment.has_key {
            let key = generate_key(&mut SystemRng, KEY_LEN);
            environment.set_key(&key);
            // Nobody could use the server without it. It is no part of the log.
            let (variable, key) = (Environment::KEY, key.expose());
            print::data(format_args!("{variable} is not set, a new key for this run: {key}\n")).ok();
        }
        return environment.load(flags.level);
    }
    let path = usual(program, &flags.config);
    let text = source::read(path)?;
    opensnell::parse_with(program, (flags.level, flags.tun), &path.to_string_lossy(), &text)
}

/// The file to read: where OpenSnell's default is not there, that of the official server's scripts.
fn usual(program: Program, named: &Path) -> &Path {
    let official = Path::new("/etc/snell/snell-server.conf");
    let is_default = program == Program::Server && named == Path::new(program.default_path());
    if is_default && !named.exists() && official.exists() { official } else { named }
}
