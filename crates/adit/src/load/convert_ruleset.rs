//! Rule sets in other forms, file to file.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use adit_formats::clash::convert_rules;
use adit_formats::rulesets;
use anyhow::{Context as _, bail};

use crate::print;

/// Longest set, in bytes.
const MAX_LEN: usize = 64 << 20;

/// The same by mihomo's words: behavior, format, source, destination.
pub(crate) fn convert_ruleset(words: &[OsString]) -> anyhow::Result<()> {
    let [behavior, format, source, destination] = words else { bail!("four words are needed") };
    convert(&behavior.to_string_lossy(), &format.to_string_lossy(), Path::new(source), Path::new(destination))
}

/// Writes a rule set in its other form, and says how many rules it has.
pub(crate) fn convert(behavior: &str, format: &str, source: &Path, destination: &Path) -> anyhow::Result<()> {
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
