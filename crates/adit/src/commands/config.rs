//! `adit config` and `adit convert`.

use adit_config::diagnostic::Diagnostic;
use adit_config::dialect::native::{self, keys};
use adit_config::dialect::opensnell::Program;

use crate::cli::{ConfigCommand, ConvertArgs};
use crate::commands::files;
use crate::commands::foreign::Format;
use crate::print;

pub(super) fn print(command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Example => print::data(native::EXAMPLE),
        ConfigCommand::Docs => print::data(keys::markdown()),
    }
}

pub(super) fn convert(args: &ConvertArgs) -> anyhow::Result<()> {
    let format = match args.format {
        Some(format) => format,
        None => {
            let (name, text) = files::read(&args.file)?;
            program_of(&text)
                .map(Format::Snell)
                .map_err(|problem| Diagnostic::error(&name, "", problem))
                .map_err(|error| {
                    adit_config::diagnostic::Diagnostics::from(
                        error.hint("--as names the program, for instance --as snell-server or --as ss-local"),
                    )
                })?
        }
    };
    let loaded = format.convert(&args.file)?;
    for finding in &loaded.diagnostics {
        print::remark(finding.to_string().trim_end());
    }
    print::data(native::to_toml(&loaded.config))
}

/// The program whose section a file has.
fn program_of(text: &str) -> Result<Program, &'static str> {
    let has = |program: Program| {
        let header = format!("[{}]", program.name());
        text.lines().any(|line| line.trim().starts_with(&header))
    };
    match (has(Program::Server), has(Program::Client)) {
        (true, false) => Ok(Program::Server),
        (false, true) => Ok(Program::Client),
        (true, true) => Err("there are sections for server and client"),
        (false, false) => Err("neither a section for a server nor for a client"),
    }
}
