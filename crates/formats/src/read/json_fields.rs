//! Reading one JSON object: each key is taken once, with its place, and what has not been taken is unknown.

use std::ops::RangeInclusive;

use adit_model::diagnostic::{Diagnostic, Diagnostics, Severity};
use zeroize::Zeroizing;

use crate::read::json::{JsonMember, JsonValue, Node, whole};
use crate::read::source::Source;
use crate::read::value::{self, Problem};

/// Most unknown keys of one object that are looked up among the known ones.
const MAX_UNKNOWN: usize = 100;

/// Keys that generators of files write with null for nothing, and whose absence takes nothing away: no plugin, no name and
/// no account of traffic. Null at any other key is reported.
const OFTEN_NULL: &[&str] = &[
    "plugin",
    "plugin_opts",
    "plugin_args",
    "remarks",
    "name",
    "id",
    "group",
    "bytes_used",
    "bytes_remaining",
];

/// The findings about one source.
pub(crate) struct JsonReport<'a> {
    pub(crate) source: &'a Source<'a>,
    pub(crate) found: Diagnostics,
}

impl<'a> JsonReport<'a> {
    pub(crate) fn new(source: &'a Source<'a>) -> Self {
        Self { source, found: Diagnostics::new() }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn error(&mut self, at: usize, path: impl Into<String>, problem: Problem) {
        self.push(Severity::Error, at, path.into(), problem);
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn warning(&mut self, at: usize, path: impl Into<String>, problem: Problem) {
        self.push(Severity::Warning, at, path.into(), problem);
    }

    fn push(&mut self, severity: Severity, at: usize, path: String, problem: Problem) {
        let place = if self.found.is_full() { (0, 0) } else { self.source.locate(at) };
        let mut finding = Diagnostic::error(&self.source.file, path, problem.text).at(place);
        finding.severity = severity;
        finding.hint = problem.hint;
        self.found.push(finding);
    }
}

#[cfg(test)]
thread_local! {
    static ASKED: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// The paths of all keys that readers ask for while `read` runs, without the numbers of entries.
#[cfg(test)]
pub(crate) fn asked<T>(read: impl FnOnce() -> T) -> std::collections::BTreeSet<String> {
    ASKED.take();
    drop(read());
    ASKED.take().into_iter().collect()
}

#[cfg(test)]
fn without_numbers(path: &str) -> String {
    path.split_inclusive('[').map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit())).collect()
}

/// An object of which keys are taken one by one.
pub(crate) struct JsonFields<'a> {
    members: &'a [JsonMember],
    path: String,
    /// Its first byte in the text.
    pub(crate) at: usize,
    taken: Vec<&'static str>,
}

/// A key that was there.
#[derive(Clone)]
pub(crate) struct JsonField<'a> {
    pub(crate) path: String,
    pub(crate) value: &'a JsonValue,
}

impl<'a> JsonFields<'a> {
    /// The keys of an object; any other value is reported.
    pub(crate) fn new(report: &mut JsonReport<'_>, value: &'a JsonValue, path: String) -> Option<Self> {
        let Node::Object(members) = &value.node else {
            let problem = format!("expected an object, found {}", value.node.kind());
            report.error(value.at, path, Problem::new(problem));
            return None;
        };
        Some(Self { members, path, at: value.at, taken: Vec::new() })
    }

    /// Path of a key.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The keys and where their values begin.
    pub(crate) fn places(&self) -> Box<[(Box<str>, usize)]> {
        self.members.iter().map(|member| (member.key.as_str().into(), member.value.at)).collect()
    }

    /// The last value of a key, which may be null.
    pub(crate) fn written(&mut self, key: &'static str) -> Option<JsonField<'a>> {
        self.taken.push(key);
        #[cfg(test)]
        ASKED.with_borrow_mut(|asked| asked.push(without_numbers(&self.path(key))));
        let value = &self.members.iter().rfind(|member| member.key == key)?.value;
        Some(JsonField { path: self.path(key), value })
    }

    /// The last value of a key. Null counts as absent, as for the programs, with a warning unless nothing can be lost by it.
    pub(crate) fn take(&mut self, report: &mut JsonReport<'_>, key: &'static str) -> Option<JsonField<'a>> {
        let field = self.written(key)?;
        if field.value.node != Node::Null {
            return Some(field);
        }
        if !OFTEN_NULL.contains(&key) {
            field.warning(report, Problem::new("null counts as not written"));
        }
        None
    }

    /// The value of a key that has two names; one of them is enough.
    pub(crate) fn take_either(
        &mut self,
        report: &mut JsonReport<'_>,
        key: &'static str,
        alias: &'static str,
    ) -> Option<JsonField<'a>> {
        let (own, other) = (self.take(report, key), self.take(report, alias));
        if let (Some(_), Some(other)) = (&own, &other) {
            other.error(report, Problem::new(format!("another name of {key}, which is given too")));
        }
        own.or(other)
    }

    pub(crate) fn text(&mut self, report: &mut JsonReport<'_>, key: &'static str) -> Option<&'a str> {
        self.take(report, key)?.text(report)
    }

    pub(crate) fn flag(&mut self, report: &mut JsonReport<'_>, key: &'static str) -> Option<bool> {
        self.take(report, key)?.flag(report)
    }

    pub(crate) fn number(
        &mut self,
        report: &mut JsonReport<'_>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        self.take(report, key)?.number(report, range)
    }

    /// Keys that are there twice, of which the last one has counted.
    fn repeated(&self, report: &mut JsonReport<'_>, severity: Severity) {
        let mut seen = std::collections::HashSet::new();
        for member in self.members {
            if !seen.insert(member.key.as_str()) && self.taken.contains(&member.key.as_str()) {
                let problem = Problem::new("given twice; the last one counts");
                report.push(severity, member.at, self.path(&member.key), problem);
            }
        }
    }

    /// One warning for each key that has not been taken, and one finding for each that is there twice.
    pub(crate) fn finish(self, report: &mut JsonReport<'_>, twice: Severity) {
        self.repeated(report, twice);
        let unknown = self.members.iter().filter(|member| !self.taken.contains(&member.key.as_str()));
        for (n, member) in unknown.enumerate() {
            let known = self.taken.iter().copied();
            let hint = if n < MAX_UNKNOWN { value::closest(&member.key, known) } else { None };
            let mut problem = Problem::new("unknown key, so it has no effect");
            problem.hint = hint.map(|key| format!("did you mean `{key}`?"));
            report.warning(member.at, self.path(&value::excerpt(&member.key)), problem);
        }
    }
}

impl<'a> JsonField<'a> {
    #[cold]
    #[inline(never)]
    pub(crate) fn error(&self, report: &mut JsonReport<'_>, problem: Problem) {
        report.error(self.value.at, self.path.clone(), problem);
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn warning(&self, report: &mut JsonReport<'_>, problem: Problem) {
        report.warning(self.value.at, self.path.clone(), problem);
    }

    pub(crate) fn text(&self, report: &mut JsonReport<'_>) -> Option<&'a str> {
        if let Node::Text(text) = &self.value.node {
            return Some(text);
        }
        self.wrong_type(report, "a text in quotes");
        None
    }

    /// A text, or a whole number as it is written.
    pub(crate) fn text_or_number(&self, report: &mut JsonReport<'_>) -> Option<Zeroizing<String>> {
        match &self.value.node {
            Node::Text(text) => Some(text.clone()),
            Node::Number(number) if whole(number.trim_start_matches('-')).is_some() => {
                Some(Zeroizing::new(number.to_string()))
            }
            Node::Number(_) | Node::Null | Node::Bool(_) | Node::Array(_) | Node::Object(_) => {
                self.wrong_type(report, "a text or a whole number");
                None
            }
        }
    }

    pub(crate) fn flag(&self, report: &mut JsonReport<'_>) -> Option<bool> {
        if let Node::Bool(on) = self.value.node {
            return Some(on);
        }
        self.wrong_type(report, "true or false");
        None
    }

    pub(crate) fn number(&self, report: &mut JsonReport<'_>, range: RangeInclusive<u64>) -> Option<u64> {
        let Node::Number(number) = &self.value.node else {
            self.wrong_type(report, "a number");
            return None;
        };
        let number = whole(number).filter(|number| range.contains(number));
        if number.is_none() {
            let problem = format!("no whole number from {} to {}", range.start(), range.end());
            self.error(report, Problem::new(problem));
        }
        number
    }

    pub(crate) fn parsed<T>(
        &self,
        report: &mut JsonReport<'_>,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<T> {
        let text = self.text(report)?;
        self.checked(report, parse(text))
    }

    /// The value, or `None` with the problem reported here.
    pub(crate) fn checked<T>(&self, report: &mut JsonReport<'_>, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.error(report, problem)).ok()
    }

    /// A list of at most `max` values.
    pub(crate) fn list(&self, report: &mut JsonReport<'_>, max: usize) -> Vec<Self> {
        let Node::Array(values) = &self.value.node else {
            self.wrong_type(report, "a list");
            return Vec::new();
        };
        if values.len() > max {
            self.error(report, Problem::new(format!("more than {max} entries")));
        }
        let entry = |(i, value)| JsonField { path: format!("{}[{i}]", self.path), value };
        values.iter().take(max).enumerate().map(entry).collect()
    }

    pub(crate) fn object(&self, report: &mut JsonReport<'_>) -> Option<JsonFields<'a>> {
        JsonFields::new(report, self.value, self.path.clone())
    }

    /// Whether the value is false; anything else, of any kind, may ask for something.
    pub(crate) fn is_false(&self) -> bool {
        self.value.node == Node::Bool(false)
    }

    pub(crate) fn wrong_type(&self, report: &mut JsonReport<'_>, wanted: &str) {
        let problem = format!("expected {wanted}, found {}", self.value.node.kind());
        self.error(report, Problem::new(problem));
    }
}
