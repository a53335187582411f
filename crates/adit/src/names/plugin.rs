//! adit as a plugin of another Shadowsocks program (SIP003), and the plugins that also run by themselves.
//!
//! The Shadowsocks program sets variables and starts this one under the plugin's name. There is no other configuration. Log
//! lines go to standard error, and the process ends when the one that started it does. Status 0 after a signal, 1 when it
//! cannot start.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use adit_formats::plugins::{
    self, EXIT_FAILURE, OptionsFile, PluginEnvironment, PluginInvocation, PluginProgram,
};
use adit_formats::read::loaded::Loaded;
use adit_formats::read::source;
use adit_model::Log;
use adit_model::diagnostic::Diagnostics;

use crate::load::findings;
use crate::load::readable;
use crate::log::{self, Shape};
use crate::run::reload::Source;
use crate::{print, serve};

/// Runs a plugin, if a Shadowsocks program has started this one as such; its name is the first or second of `args`.
///
/// Arguments change nothing: programs add some of their own, such as `-V` on Android.
pub(crate) fn begin(args: &[OsString]) -> Option<ExitCode> {
    let program = args.iter().take(2).find_map(|arg| {
        let name = Path::new(arg).file_name()?.to_str()?;
        PluginProgram::find(name)
    })?;
    let loaded = match PluginEnvironment::read(|name| std::env::var(name).ok()) {
        Ok(None) => return None,
        Ok(Some(environment)) => options_file(program, environment.options())
            .and_then(|file| plugins::load_plugin(program, &environment, file.as_ref())),
        Err(found) => Err(found),
    };
    Some(run(loaded, true))
}

/// Runs one of the programs by its flags.
pub(crate) fn main(program: PluginProgram, args: Vec<OsString>) -> ExitCode {
    match plugins::flags(program, args) {
        Ok(PluginInvocation::Help) => say(&plugins::usage(program)),
        Ok(PluginInvocation::Version) => {
            say(&format!("{} (adit {})\n", program.name(), env!("CARGO_PKG_VERSION")))
        }
        Ok(PluginInvocation::Run(flags)) => {
            let file = options_file(program, flags.options());
            run(file.and_then(|file| plugins::load_flags(program, &flags, file.as_ref())), false)
        }
        Err(found) => {
            print::remark(format_args!("{found}{}", plugins::usage(program)));
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

fn say(text: &str) -> ExitCode {
    match print::data(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print::failure(&error),
    }
}

/// The file that the options name, for a program that reads one.
fn options_file(program: PluginProgram, options: &str) -> Result<Option<OptionsFile>, Diagnostics> {
    let Some(path) = program.file(options).filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(None);
    };
    readable::note(std::slice::from_ref(&path));
    let text = source::read(&path).map_err(|error| {
        error.hint("options are a list only with both = and ; in it: end a list of one option with ;")
    })?;
    Ok(Some(OptionsFile { name: path.to_string_lossy().into_owned(), text }))
}

/// Runs what was loaded until a signal, or until the parent ends.
fn run(loaded: Result<Loaded, Diagnostics>, has_parent: bool) -> ExitCode {
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(found) => {
            log::init(&Log::default(), Shape::Text);
            findings::log_findings(&found);
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    log::init(&loaded.config.log, Shape::Text);
    findings::log_findings(&loaded.diagnostics);
    let result = if has_parent { watch_parent() } else { Ok(()) };
    match result.and_then(|()| {
        serve::run(loaded.config, Source::fixed("options of a plugin cannot change while it runs"))
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(code = print::code(&error), hint = print::hint(&error), "{error:#}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

/// Ends this process when the one that started it ends: its connections are of no use to anybody then.
fn watch_parent() -> anyhow::Result<()> {
    let watch = || {
        adit_net::wait_for_parent();
        std::process::exit(0);
    };
    std::thread::Builder::new().name("parent".into()).spawn(watch)?;
    Ok(())
}
