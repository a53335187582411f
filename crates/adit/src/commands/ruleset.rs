//! `adit ruleset`: rule sets in other forms.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueHint};

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

pub(crate) fn run(command: &RulesetCommand) -> anyhow::Result<()> {
    let RulesetCommand::Convert(ConvertArgs { behavior, format, source, destination }) = command;
    crate::load::convert_ruleset::convert(behavior, format, source, destination)
}
