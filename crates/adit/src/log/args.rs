//! Settings of the log on the command line.

use adit_model::{Level, Log, LogFormat};
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{ArgAction, Args};

/// Heading of the options that every command has.
const LOG: &str = "Log options";

/// Log settings: the command line outranks the file.
#[derive(Debug, Clone, Args)]
pub(crate) struct LogArgs {
    /// Log more: once for debug, twice for trace
    #[arg(short, long, global = true, help_heading = LOG, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Least severe level that is logged
    #[arg(long, global = true, help_heading = LOG, value_name = "LEVEL", value_parser = levels(), conflicts_with = "verbose")]
    pub(crate) log_level: Option<Level>,
    /// Shape of a log line
    #[arg(long, global = true, help_heading = LOG, value_name = "FORMAT", value_parser = log_formats())]
    pub(crate) log_format: Option<LogFormat>,
}

impl LogArgs {
    /// The settings of a file, overruled by these.
    pub(crate) fn over(&self, log: &Log) -> Log {
        let asked = match self.verbose {
            0 => self.log_level,
            1 => Some(Level::Debug),
            _ => Some(Level::Trace),
        };
        Log {
            level: asked.unwrap_or(log.level),
            format: self.log_format.unwrap_or(log.format),
            ..log.clone()
        }
    }
}

/// The levels of the log.
fn levels() -> impl clap::builder::TypedValueParser<Value = Level> {
    PossibleValuesParser::new(["error", "warn", "info", "debug", "trace"]).try_map(|name| level(&name))
}

/// The shapes of log lines.
fn log_formats() -> impl clap::builder::TypedValueParser<Value = LogFormat> {
    PossibleValuesParser::new(["text", "json"]).try_map(|name| format(&name))
}

fn level(text: &str) -> Result<Level, &'static str> {
    match text {
        "error" => Ok(Level::Error),
        "warn" => Ok(Level::Warn),
        "info" => Ok(Level::Info),
        "debug" => Ok(Level::Debug),
        "trace" => Ok(Level::Trace),
        _ => Err("the levels are error, warn, info, debug and trace"),
    }
}

fn format(text: &str) -> Result<LogFormat, &'static str> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("the formats are text and json"),
    }
}
