//! `adit check`: all errors of a configuration at once.

use std::io;
use std::process::ExitCode;

use adit_engine::routing::{CompileError, Router};
use adit_formats::read::loaded::Loaded;
use adit_formats::rulesets::load_sets;
use adit_model::Config;
use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::shown;

use crate::commands::cli::CheckArgs;
use crate::load::findings;
use crate::load::readable;
use crate::load::{files, missing_parts};
use crate::machine::Root;
use crate::print;

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let given = args.files.given();
    let result = files::load(&given).and_then(with_rules).map(|mut loaded| {
        let paths = files::paths(&given).unwrap_or_default();
        loaded.diagnostics.append(readable::find(&paths, &loaded.config));
        loaded
    });
    let result = match result {
        Ok(loaded) if args.strict => loaded.strict(),
        other => other,
    };
    let (found, config) = match result {
        Ok(Loaded { config, diagnostics }) => (diagnostics, Some(config)),
        Err(found) => (found, None),
    };
    if args.json {
        print::data(format_args!("{}\n", found.to_json()))?;
    } else {
        print::data(found.render(print::colour(&io::stdout())))?;
        print::text(config.as_ref().map(summary).unwrap_or_default())?;
    }
    Ok(if config.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads the lists that rules name, too, and makes the tables of a router.
fn with_rules(loaded: Loaded) -> Result<Loaded, Diagnostics> {
    let sets = load_sets(&loaded.config)?;
    match Router::compile(&loaded.config, sets) {
        Ok(_) => Ok(with_advice(loaded)),
        Err(CompileError { at, problem }) => {
            let error = Diagnostic::error(&at.file, "rule", problem.to_string());
            Err(error.at((at.line as usize, at.column as usize)).into())
        }
    }
}

/// Adds the warnings that need the whole configuration.
fn with_advice(mut loaded: Loaded) -> Loaded {
    loaded.diagnostics.append(findings::advice(&loaded.config));
    for warning in missing_parts::find(&Root::new(None), &loaded.config) {
        loaded.diagnostics.push(warning);
    }
    loaded
}

/// A summary of the configuration that would run.
fn summary(config: &Config) -> String {
    let mut out = String::from("ok\n");
    for inbound in &config.inbounds {
        for addr in &inbound.listen {
            out.push_str(&format!(
                "  {}: {} on {addr}, out through {}\n",
                shown::line(&inbound.name),
                inbound.protocol.label(),
                shown::line(&inbound.outbound)
            ));
        }
    }
    out
}
