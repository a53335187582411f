//! The result of a format: a configuration, or findings.

use adit_model::Config;
use adit_model::diagnostic::Diagnostics;

/// A configuration that can run, and what is to be said about the text that it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Warnings; never an error.
    pub diagnostics: Diagnostics,
}

impl Loaded {
    /// The same for those who want no warnings.
    ///
    /// # Errors
    /// The warnings, as errors, if there are any.
    pub fn strict(mut self) -> Result<Self, Diagnostics> {
        if self.diagnostics.is_empty() {
            return Ok(self);
        }
        self.diagnostics.deny_warnings();
        Err(self.diagnostics)
    }

    /// The result of a dialect: the configuration, or all findings if one of them is an error.
    pub(crate) fn conclude(config: Config, mut diagnostics: Diagnostics) -> Result<Self, Diagnostics> {
        diagnostics.sort();
        if diagnostics.has_errors() { Err(diagnostics) } else { Ok(Self { config, diagnostics }) }
    }
}

/// The property that every parser keeps: findings with a place lie inside the text.
pub(crate) fn assert_inside(text: &str, found: &Diagnostics) {
    let lines: Vec<&str> = text.split('\n').collect();
    for finding in found {
        if finding.line > 0 {
            let line = lines.get(finding.line - 1).expect("the line of a finding exists");
            assert!((1..=line.chars().count() + 1).contains(&finding.column), "{finding}");
        }
    }
}
