//! Reading one table: each key is taken once, with its place, and what has not been taken is unknown.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use toml_edit::{ArrayOfTables, Item, TableLike, Value};

use super::keys::{self, Head, TomlTable};
use super::rows::{Row, Tables};
use crate::read::source::Source;
use crate::read::value::{self, Problem};

/// Byte offsets in the source.
pub(super) type Span = Range<usize>;

/// The findings about one source.
pub(super) struct TomlReport<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) found: Diagnostics,
}

impl TomlReport<'_> {
    pub(crate) fn error(&mut self, at: &Span, path: impl Into<String>, problem: Problem) {
        self.push(Diagnostic::error(&self.source.file, path, problem.text), at, problem.hint);
    }

    pub(super) fn warning(&mut self, at: &Span, path: impl Into<String>, problem: Problem) {
        self.push(Diagnostic::warning(&self.source.file, path, problem.text), at, problem.hint);
    }

    fn push(&mut self, finding: Diagnostic, at: &Span, hint: Option<String>) {
        let place = if self.found.is_full() { (0, 0) } else { self.source.locate(at.start) };
        self.found.push(Diagnostic { hint, ..finding.at(place) });
    }
}

/// A value with its place.
#[derive(Debug, Clone)]
pub(super) struct Spanned<T> {
    pub(crate) value: T,
    pub(super) at: Span,
}

/// A table of which keys are taken one by one.
pub(super) struct TomlFields<'a> {
    table: &'a dyn TableLike,
    kind: TomlTable,
    /// Path of the table, `outbound[1]`; empty for the root.
    path: String,
    /// Place of the header.
    pub(super) at: Span,
    taken: Vec<&'static str>,
    /// Keys that stand under the name they had before: the new name and the old one.
    renamed: Vec<(&'static str, &'static str)>,
}

/// A key that was there.
pub(super) struct TomlField<'a> {
    path: String,
    at: Span,
    node: Node<'a>,
}

impl<'a> TomlFields<'a> {
    pub(crate) fn new(table: &'a dyn TableLike, kind: TomlTable, path: String, at: Span) -> Self {
        Self { table, kind, path, at, taken: Vec::new(), renamed: Vec::new() }
    }

    /// Path of this table.
    pub(super) fn base(&self) -> &str {
        &self.path
    }

    /// Path of a key of this table.
    pub(crate) fn path(&self, key: &Head) -> String {
        join(&self.path, self.written(key))
    }

    pub(super) fn has(&self, key: &Head) -> bool {
        self.table.contains_key(self.written(key))
    }

    /// The name under which a key stands: its own, or the one it had before.
    fn written(&self, key: &Head) -> &'static str {
        if self.table.contains_key(key.name) {
            return key.name;
        }
        key.former.filter(|old| self.table.contains_key(old)).unwrap_or(key.name)
    }

    /// Whether a key is there with an empty list.
    pub(super) fn is_empty_list(&self, key: &Head) -> bool {
        self.table.get(self.written(key)).and_then(Item::as_array).is_some_and(toml_edit::Array::is_empty)
    }

    /// Says that an empty list takes a protection away, where it does.
    pub(super) fn warn_if_empty(&self, report: &mut TomlReport<'_>, key: &Head, effect: &str) {
        if self.is_empty_list(key) {
            let problem = format!("an empty list counts as not written: {effect}");
            self.warn(report, key, Problem::new(problem));
        }
    }

    /// The value of a key that is a text, without taking it. Any other value is no text, and reported by the one who takes it.
    pub(crate) fn text(&self, key: &Head) -> Option<&'a str> {
        self.table.get(self.written(key))?.as_str()
    }

    /// Place of the value of a key.
    pub(super) fn place(&self, key: &Head) -> Span {
        self.table.get(self.written(key)).and_then(Item::span).unwrap_or_else(|| self.at.clone())
    }

    /// Reports something about a key, at its value.
    pub(super) fn wrong(&self, report: &mut TomlReport<'_>, key: &Head, problem: Problem) {
        report.error(&self.place(key), self.path(key), problem);
    }

    /// A remark about a key that is there.
    pub(super) fn warn(&self, report: &mut TomlReport<'_>, key: &Head, problem: Problem) {
        report.warning(&self.place(key), self.path(key), problem);
    }

    pub(super) fn take(&mut self, key: &'static Head) -> Option<TomlField<'a>> {
        self.taken.push(key.name);
        if let Some(old) = key.former
            && self.table.contains_key(old)
            && !self.renamed.contains(&(key.name, old))
        {
            self.renamed.push((key.name, old));
        }
        let (name, item) = self.table.get_key_value(self.written(key))?;
        let at = name.span().or_else(|| item.span()).unwrap_or_else(|| self.at.clone());
        Some(TomlField { path: self.path(key), at, node: Node::Item(item) })
    }

    /// The value of a key; `None` if it is not there or wrong, which is reported.
    pub(crate) fn read<R, W: ?Sized>(
        &mut self,
        report: &mut TomlReport<'_>,
        row: &'static Row<R, W>,
    ) -> Option<R> {
        let field = self.take(row)?;
        row.read(&field, report)
    }

    /// The value of a key that must be there.
    pub(super) fn require<R, W: ?Sized>(
        &mut self,
        report: &mut TomlReport<'_>,
        row: &'static Row<R, W>,
    ) -> Option<R> {
        if !self.has(row) {
            report.error(&self.at, self.path(row), Problem::new("missing"));
        }
        self.read(report, row)
    }

    /// The value of a key, made into something else, which may fail.
    pub(super) fn checked<R, W: ?Sized, T>(
        &mut self,
        report: &mut TomlReport<'_>,
        row: &'static Row<R, W>,
        check: impl FnOnce(R) -> Result<T, Problem>,
    ) -> Option<Spanned<T>> {
        let field = self.take(row)?;
        let value = check(row.read(&field, report)?);
        field.judged(report, value)
    }

    /// The table of a key.
    pub(super) fn table(&mut self, report: &mut TomlReport<'_>, row: &'static Tables) -> Option<Self> {
        let field = self.take(row)?;
        let table = field.node.table();
        if field.node.array_of_tables().is_some() {
            let hint = format!("write {} with one bracket on each side", row.kind.header());
            field.wrong(report, Problem::new("expected a table, found a list of tables").hint(hint));
        } else if table.is_none() {
            field.wrong_type(report, "a table");
        }
        table.map(|table| TomlFields::new(table, row.kind, field.path.clone(), field.value_at()))
    }

    /// The tables of a key.
    pub(super) fn tables(&mut self, report: &mut TomlReport<'_>, row: &'static Tables) -> Option<Vec<Self>> {
        Some(self.take(row)?.tables(report, row.kind, row.max))
    }

    /// Everything that was not taken is an error; what stands under an old name is a warning.
    pub(super) fn finish(self, report: &mut TomlReport<'_>, protocol: Option<&str>) {
        for (new, old) in &self.renamed {
            self.report_old_name(report, new, old);
        }
        for (name, item) in self.table.iter() {
            if self.taken.contains(&name) || self.renamed.iter().any(|(_, old)| *old == name) {
                continue;
            }
            if report.found.is_full() {
                report.error(&self.at, "", Problem::new("unknown key"));
                continue;
            }
            let Some(problem) = self.unknown(name, protocol) else { continue };
            let key = self.table.key(name).and_then(toml_edit::Key::span);
            let at = key.or_else(|| item.span()).unwrap_or_else(|| self.at.clone());
            report.error(&at, join(&self.path, &value::excerpt(name)), problem);
        }
    }

    fn report_old_name(&self, report: &mut TomlReport<'_>, new: &str, old: &str) {
        let key = self.table.key(old).and_then(toml_edit::Key::span);
        let at = key.unwrap_or_else(|| self.at.clone());
        let path = join(&self.path, old);
        if self.table.contains_key(new) {
            let problem = Problem::new(format!("the old name of `{new}`, which is given too"));
            report.error(&at, path, problem.hint(format!("keep {new}")));
        } else {
            let problem = Problem::new(format!("the old name of `{new}`"));
            report.warning(&at, path, problem.hint(format!("write {new}; two more releases take {old}")));
        }
    }

    fn unknown(&self, name: &str, protocol: Option<&str>) -> Option<Problem> {
        let Some(protocol) = protocol else {
            let known = keys::of(self.kind).any(|key| key.name == name);
            return (!known).then(|| unknown_key(name, keys::of(self.kind).map(|key| key.name)));
        };
        if let Some(key) = keys::of(self.kind).find(|key| key.name == name) {
            let problem = Problem::new(format!("protocol {protocol} has no such key"));
            return Some(problem.hint(format!("it belongs to {}", key.protocols.join(", "))));
        }
        let applicable = keys::of(self.kind).filter(|key| key.applies_to(protocol));
        Some(unknown_key(name, applicable.map(|key| key.name)))
    }
}

impl<'a> TomlField<'a> {
    fn wrong(&self, report: &mut TomlReport<'_>, problem: Problem) {
        report.error(&self.value_at(), self.path.clone(), problem);
    }

    fn wrong_type(&self, report: &mut TomlReport<'_>, wanted: &str) {
        self.wrong(report, Problem::new(format!("expected {wanted}, found {}", self.node.type_name())));
    }

    /// The value, if it is a text.
    pub(crate) fn text(&self) -> Option<&'a str> {
        self.node.value().and_then(Value::as_str)
    }

    pub(super) fn flag(&self, report: &mut TomlReport<'_>) -> Option<bool> {
        let flag = self.node.value().and_then(Value::as_bool);
        if flag.is_none() {
            self.wrong_type(report, "true or false");
        }
        flag
    }

    pub(super) fn number<N: TryFrom<usize>>(
        &self,
        report: &mut TomlReport<'_>,
        range: RangeInclusive<usize>,
    ) -> Option<N> {
        let Some(number) = self.node.value().and_then(Value::as_integer) else {
            self.wrong_type(report, "a number");
            return None;
        };
        let number = usize::try_from(number).ok().filter(|n| range.contains(n));
        if number.is_none() {
            let problem = format!("not from {} to {}", range.start(), range.end());
            self.wrong(report, Problem::new(problem));
        }
        number.and_then(|number| N::try_from(number).ok())
    }

    pub(super) fn parsed<T>(
        &self,
        report: &mut TomlReport<'_>,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<T> {
        self.spanned(report, parse).map(|found| found.value)
    }

    pub(super) fn spanned<T>(
        &self,
        report: &mut TomlReport<'_>,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<Spanned<T>> {
        let Some(text) = self.text() else {
            self.wrong_type(report, "a text in quotes");
            return None;
        };
        self.judged(report, parse(text))
    }

    fn judged<T>(&self, report: &mut TomlReport<'_>, parsed: Result<T, Problem>) -> Option<Spanned<T>> {
        match parsed {
            Ok(value) => Some(Spanned { value, at: self.value_at() }),
            Err(problem) => {
                self.wrong(report, problem);
                None
            }
        }
    }

    /// A date or instant, as a text or as TOML writes it.
    pub(super) fn time<T>(
        &self,
        report: &mut TomlReport<'_>,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<T> {
        match self.node.value().and_then(Value::as_datetime) {
            Some(time) => self.judged(report, parse(&time.to_string())).map(|time| time.value),
            None => self.parsed(report, parse),
        }
    }

    pub(super) fn duration(&self, report: &mut TomlReport<'_>) -> Option<Duration> {
        if let Some(number) = self.node.value().and_then(Value::as_integer) {
            let problem = Problem::new("a duration needs a unit");
            self.wrong(report, problem.hint(format!("write \"{number}s\" for seconds")));
            return None;
        }
        self.parsed(report, value::duration)
    }

    pub(super) fn choice<T: Copy>(&self, report: &mut TomlReport<'_>, choices: &[(&str, T)]) -> Option<T> {
        self.parsed(report, |text| one_of(text, choices))
    }

    /// One text, or a list of at most `max`.
    pub(super) fn list<T>(
        &self,
        report: &mut TomlReport<'_>,
        max: usize,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Option<Vec<Spanned<T>>> {
        self.entries(report, max, |entry, report| entry.spanned(report, &parse))
    }

    /// The same as [`TomlField::list`] for values that may be numbers as well.
    pub(super) fn numbers_or_texts<T>(
        &self,
        report: &mut TomlReport<'_>,
        max: usize,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Option<Vec<Spanned<T>>> {
        self.entries(report, max, |entry, report| entry.number_or_text(report, &parse))
    }

    fn entries<T>(
        &self,
        report: &mut TomlReport<'_>,
        max: usize,
        read: impl Fn(&Self, &mut TomlReport<'_>) -> Option<Spanned<T>>,
    ) -> Option<Vec<Spanned<T>>> {
        let Some(array) = self.node.value().and_then(Value::as_array) else {
            return read(self, report).map(|one| vec![one]);
        };
        if array.len() > max {
            self.wrong(report, Problem::new(format!("more than {max} entries")));
        }
        let entries = array.iter().take(max).enumerate();
        Some(entries.filter_map(|(i, entry)| read(&self.entry(i, entry), report)).collect())
    }

    fn number_or_text<T>(
        &self,
        report: &mut TomlReport<'_>,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<Spanned<T>> {
        match self.node.value().and_then(Value::as_integer) {
            Some(number) => self.judged(report, parse(&number.to_string())),
            None => self.spanned(report, parse),
        }
    }

    /// The field as a list of at most `max` tables, in either of the ways in which it can be written.
    fn tables(&self, report: &mut TomlReport<'_>, kind: TomlTable, max: usize) -> Vec<TomlFields<'a>> {
        let all: Vec<(Option<&'a dyn TableLike>, Span)> = if let Some(tables) = self.node.array_of_tables() {
            tables
                .iter()
                .map(|t| (Some(t as &dyn TableLike), t.span().unwrap_or_else(|| self.at.clone())))
                .collect()
        } else if let Some(array) = self.node.value().and_then(Value::as_array) {
            array.iter().map(|v| (inline_table(v), v.span().unwrap_or_else(|| self.at.clone()))).collect()
        } else {
            let problem = format!("expected a list of tables, found {}", self.node.type_name());
            let (header, path) = (kind.header(), &self.path);
            let is_header = header.starts_with("[[") && self.node.table().is_some();
            let hint = if is_header {
                format!("write {header} with two brackets on each side")
            } else {
                format!("write {path} = [{{ ... }}]")
            };
            self.wrong(report, Problem::new(problem).hint(hint));
            Vec::new()
        };
        if all.len() > max {
            self.wrong(report, Problem::new(format!("more than {max} entries")));
        }
        let mut tables = Vec::new();
        for (i, (table, at)) in all.into_iter().take(max).enumerate() {
            let path = format!("{}[{i}]", self.path);
            match table {
                Some(table) => tables.push(TomlFields::new(table, kind, path, at)),
                None => report.error(&at, path, Problem::new("expected a table")),
            }
        }
        tables
    }

    fn entry(&self, index: usize, value: &'a Value) -> Self {
        let at = value.span().unwrap_or_else(|| self.at.clone());
        TomlField { path: format!("{}[{index}]", self.path), at, node: Node::Value(value) }
    }

    fn value_at(&self) -> Span {
        self.node.span().unwrap_or_else(|| self.at.clone())
    }
}

/// A value behind a key or in a list.
#[derive(Clone, Copy)]
enum Node<'a> {
    Item(&'a Item),
    Value(&'a Value),
}

impl<'a> Node<'a> {
    fn value(self) -> Option<&'a Value> {
        match self {
            Self::Item(item) => item.as_value(),
            Self::Value(value) => Some(value),
        }
    }

    fn table(self) -> Option<&'a dyn TableLike> {
        match self {
            Self::Item(item) => item.as_table_like(),
            Self::Value(value) => inline_table(value),
        }
    }

    fn array_of_tables(self) -> Option<&'a ArrayOfTables> {
        match self {
            Self::Item(item) => item.as_array_of_tables(),
            Self::Value(_) => None,
        }
    }

    fn span(self) -> Option<Span> {
        match self {
            Self::Item(item) => item.span(),
            Self::Value(value) => value.span(),
        }
    }

    fn type_name(self) -> &'static str {
        match self {
            Self::Item(item) => item.type_name(),
            Self::Value(value) => value.type_name(),
        }
    }
}

fn inline_table(value: &Value) -> Option<&dyn TableLike> {
    value.as_inline_table().map(|table| table as &dyn TableLike)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn one_of<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, Problem> {
    if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    Err(Problem::new(format!("unknown value: {}", value::excerpt(text)))
        .hint(format!("write one of {}", names.join(", "))))
}

fn unknown_key<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Problem {
    let known: Vec<&str> = known.collect();
    let problem = Problem::new("unknown key");
    match value::closest(name, known.iter().copied()) {
        Some(key) => problem.hint(format!("did you mean `{key}`?")),
        None => problem.hint(format!("the keys here are {}", known.join(", "))),
    }
}
