//! `adit config` and `adit convert`.

use adit_config::diagnostic::Diagnostic;
use adit_config::dialect::native::{self, keys};
use adit_config::dialect::opensnell::{self, Program};

use crate::cli::{ConfigCommand, ConvertArgs};
use crate::commands::files;
use crate::print;

pub(super) fn print(command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Example => print::data(native::EXAMPLE),
        ConfigCommand::Docs => print::data(keys::markdown()),
    }
}

pub(super) fn convert(args: &ConvertArgs) -> anyhow::Result<()> {
    let (name, text) = files::read(&args.file)?;
    let program = match args.program {
        Some(program) => program,
        None => {
            program_of(&text).map_err(|problem| Diagnostic::error(&name, "", problem)).map_err(|error| {
                adit_config::diagnostic::Diagnostics::from(
                    error.hint("--as snell-server or --as snell-client"),
                )
            })?
        }
    };
    let loaded = opensnell::parse(program, None, &name, &text)?;
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
