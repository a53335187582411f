//! Findings about a configuration and about the machine it is for, and their lines in the log.

use adit_formats::advice::advise;
use adit_model::Config;
use adit_model::diagnostic::{Diagnostics, Severity};

use crate::load::missing_parts;
use crate::machine::Root;

/// Warnings about weak keys and loops.
pub(crate) fn advice(config: &Config) -> Diagnostics {
    advise("configuration", config, &Root::new(None).addresses(), adit_net::rt::unix_time())
}

/// Warnings about parts of the machine that a configuration names and that are not there.
pub(crate) fn machine_findings(config: &Config) -> Diagnostics {
    let mut found = Diagnostics::default();
    missing_parts::sockets(&Root::new(None), config).into_iter().for_each(|warning| found.push(warning));
    found
}

/// Writes findings about a file as log lines: warnings, or the errors that keep it from running.
pub(crate) fn log_findings(found: &Diagnostics) {
    for finding in found {
        let at = if finding.line > 0 {
            format!("{}:{}:{}", finding.file, finding.line, finding.column)
        } else {
            finding.file.to_string()
        };
        let key = Some(finding.key.as_str()).filter(|key| !key.is_empty());
        let (problem, hint) = (&finding.problem, finding.hint.as_deref());
        match finding.severity {
            Severity::Error => tracing::error!(at, key, hint, "{problem}"),
            Severity::Warning => tracing::warn!(at, key, hint, "{problem}"),
        }
    }
}

/// The first error, in a line.
pub(crate) fn first(found: &Diagnostics) -> String {
    let mut errors = found.iter().filter(|found| found.severity == Severity::Error);
    let text = errors.next().map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
