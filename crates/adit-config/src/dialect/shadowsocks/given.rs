//! Settings with the places where they were given: flags have none.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::fields::{JsonField, JsonReport};
use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::dialect::value::Problem;

/// A value, and where it stands.
#[derive(Clone)]
pub(in crate::dialect::shadowsocks) struct OptionValue {
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
    pub(in crate::dialect::shadowsocks) fn of_field(
        report: &JsonReport<'_>,
        field: &JsonField<'_>,
        value: Zeroizing<String>,
    ) -> Self {
        let place = report.source.locate(field.value.at);
        Self { value, file: Arc::clone(&report.source.file), key: field.path.clone(), place }
    }

    /// On the command line, where nothing has a place.
    pub(in crate::dialect::shadowsocks) fn flag(
        file: &Arc<str>,
        key: String,
        value: Zeroizing<String>,
    ) -> Self {
        Self { value, file: Arc::clone(file), key, place: (0, 0) }
    }

    /// The same with another value.
    pub(in crate::dialect::shadowsocks) fn with(mut self, value: &str) -> Self {
        self.value = Zeroizing::new(value.to_owned());
        self
    }

    pub(in crate::dialect::shadowsocks) fn file(&self) -> Arc<str> {
        Arc::clone(&self.file)
    }

    pub(in crate::dialect::shadowsocks) fn text(&self) -> &str {
        &self.value
    }

    pub(in crate::dialect::shadowsocks) fn error(&self, found: &mut Diagnostics, problem: Problem) {
        found.push(self.finding(Severity::Error, problem));
    }

    pub(in crate::dialect::shadowsocks) fn warning(&self, found: &mut Diagnostics, problem: Problem) {
        found.push(self.finding(Severity::Warning, problem));
    }

    pub(in crate::dialect::shadowsocks) fn parsed<T>(
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
