//! The lab as a program of its own.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(about, version)]
struct Cli {
    #[command(flatten)]
    args: adit_lab::Args,
}

fn main() -> ExitCode {
    match adit_lab::run(Cli::parse().args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to be told if stderr is gone.
            writeln!(std::io::stderr(), "error: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}
