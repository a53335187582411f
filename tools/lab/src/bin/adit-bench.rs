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
            // The words of another program may be among them. Nothing is left to be told if stderr is gone.
            let is_plain = |c: char| matches!(c, '\n' | '\t' | ' '..='~') || c.is_alphanumeric();
            let text: String =
                format!("{error:#}").chars().map(|c| if is_plain(c) { c } else { '\u{fffd}' }).collect();
            writeln!(std::io::stderr(), "error: {text}").ok();
            ExitCode::FAILURE
        }
    }
}
