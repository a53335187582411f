//! Settings with the places where they were given: flags have none.

use std::fmt;
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics, Severity};
use zeroize::Zeroizing;

use crate::read::json_fields::{JsonField, JsonReport};
use crate::read::value::Problem;

/// A value, and where it stands.
#[derive(Clone)]
pub(crate) struct OptionValue {
    value: Zeroizing<String>,
    file: Arc<str>,
    key: String,
    place: (usize, usize),
}

/// Values may be keys, so they are not shown.
impl fmt::Debug for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given").field("key", &self.key).field("place", &self.place).finish_non_exhaustive()
    }
}

impl OptionValue {
    /// The value of a field of a file.
    pub(crate) fn of_field(report: &JsonReport<'_>, field: &JsonField<'_>, value: Zeroizing<String>) -> Self {
        let place = report.source.locate(field.value.at);
        Self { value, file: Arc::clone(&report.source.file), key: field.path.clone(), place }
    }

    /// On the command line, where nothing has a place.
    pub(crate) fn flag(file: &Arc<str>, key: String, value: Zeroizing<String>) -> Self {
        Self { value, file: Arc::clone(file), key, place: (0, 0) }
    }

    /// The same with another value.
    pub(crate) fn with(mut self, value: &str) -> Self {
        self.value = Zeroizing::new(value.to_owned());
        self
    }

    pub(crate) fn file(&self) -> Arc<str> {
        Arc::clone(&self.file)
    }

    pub(crate) fn text(&self) -> &str {
        &self.value
    }

    pub(crate) fn error(&self, found: &mut Diagnostics, problem: Problem) {
        found.push(self.finding(Severity::Error, problem));
    }

    pub(crate) fn warning(&self, found: &mut Diagnostics, problem: Problem) {
        found.push(self.finding(Severity::Warning, problem));
    }

    pub(crate) fn parsed<T>(
        &self,
        found: &mut Diagnostics,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<T> {
        parse(&self.value).map_err(|problem| self.error(found, problem)).ok()
    }

    fn finding(&self, severity: Severity, problem: Problem) -> Diagnostic {
        let mut finding = Diagnostic::error(&self.file, self.key.clone(), problem.text).at(self.place);
        finding.severity = severity;
        finding.hint = problem.hint;
        finding
    }
}
