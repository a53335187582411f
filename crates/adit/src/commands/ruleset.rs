//! `adit ruleset`: rule sets in other forms.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use adit_formats::clash::convert_rules;
use adit_formats::rulesets;
use anyhow::{Context as _, bail};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueHint};

use crate::print;

/// Longest set, in bytes.
const MAX_LEN: usize = 64 << 20;

#[derive(Debug, Subcommand)]
pub(crate) enum RulesetCommand {
    /// Write a rule set in its other form: .mrs of mihomo from yaml or text, a text from mrs or srs
    Convert(ConvertArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// The rules in it: names or networks
    #[arg(value_parser = PossibleValuesParser::new(["domain", "ipcidr"]))]
    behavior: String,
    /// The form of the source; srs is sing-box's
    #[arg(value_parser = PossibleValuesParser::new(["yaml", "text", "mrs", "srs"]))]
    format: String,
    /// The file to read
    #[arg(value_hint = ValueHint::FilePath)]
    source: PathBuf,
    /// The file to write; it is replaced
    #[arg(value_hint = ValueHint::FilePath)]
    destination: PathBuf,
}

pub(super) fn run(command: &RulesetCommand) -> anyhow::Result<()> {
    let RulesetCommand::Convert(ConvertArgs { behavior, format, source, destination }) = command;
    convert(behavior, format, source, destination)
}

/// The same by mihomo's words: behavior, format, source, destination.
pub(crate) fn convert_ruleset(words: &[OsString]) -> anyhow::Result<()> {
    let [behavior, format, source, destination] = words else { bail!("four words are needed") };
    convert(&behavior.to_string_lossy(), &format.to_string_lossy(), Path::new(source), Path::new(destination))
}

fn convert(behavior: &str, format: &str, source: &Path, destination: &Path) -> anyhow::Result<()> {
    let bytes = rulesets::read_file(source, MAX_LEN).map_err(anyhow::Error::msg)?;
    let made = convert_rules(behavior, format, &bytes).map_err(anyhow::Error::msg);
    let made = made.with_context(|| source.display().to_string())?;
    fs::write(destination, &made.bytes).with_context(|| format!("cannot write {}", destination.display()))?;
    let left_out = match made.left_out {
        0 => String::new(),
        count => format!(", {count} left out"),
    };
    print::remark(format_args!("{}: {} rules{left_out}", destination.display(), made.rules));
    Ok(())
}
