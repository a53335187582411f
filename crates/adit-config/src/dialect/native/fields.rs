//! Reading one table: each key is taken once, with its place, and what has not been taken is unknown.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml_edit::{ArrayOfTables, Item, TableLike, Value};

use super::keys::{self, Table};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::dialect::value::{self, Problem};
use crate::source::Source;

/// Byte offsets in the source.
pub(super) type Span = Range<usize>;

/// The findings about one source.
pub(super) struct Report<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) found: Diagnostics,
}

impl Report<'_> {
    pub(super) fn error(&mut self, at: &Span, path: impl Into<String>, problem: Problem) {
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
    pub(super) value: T,
    pub(super) at: Span,
}

/// A table of which keys are taken one by one.
pub(super) struct Fields<'a> {
    table: &'a dyn TableLike,
    kind: Table,
    /// Path of the table, `outbound[1]`; empty for the root.
    path: String,
    /// Place of the header.
    pub(super) at: Span,
    taken: Vec<&'static str>,
    /// Keys that stand under the name they had before: the new name and the old one.
    renamed: Vec<(&'static str, &'static str)>,
}

/// A key that was there.
pub(super) struct Field<'a> {
    pub(super) path: String,
    pub(super) at: Span,
    node: Node<'a>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(table: &'a dyn TableLike, kind: Table, path: String, at: Span) -> Self {
        Self { table, kind, path, at, taken: Vec::new(), renamed: Vec::new() }
    }

    /// Path of a key of this table.
    pub(super) fn path(&self, key: &str) -> String {
        join(&self.path, self.written(key))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(self.written(key))
    }

    /// The name under which a key stands: its own, or the one it had before.
    fn written<'k>(&self, key: &'k str) -> &'k str {
        if self.table.contains_key(key) {
            return key;
        }
        keys::former(self.kind, key).filter(|old| self.table.contains_key(old)).unwrap_or(key)
    }

    /// Whether a key is there with an empty list.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        self.table.get(self.written(key)).and_then(Item::as_array).is_some_and(toml_edit::Array::is_empty)
    }

    /// The value of a key that is a text, without taking it.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.table.get(self.written(key))?.as_str()
    }

    /// Place of the value of a key.
    pub(super) fn place(&self, key: &str) -> Span {
        self.table.get(self.written(key)).and_then(Item::span).unwrap_or_else(|| self.at.clone())
    }

    pub(super) fn take(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.taken.push(key);
        if let Some(old) = keys::former(self.kind, key)
            && self.table.contains_key(old)
            && !self.renamed.contains(&(key, old))
        {
            self.renamed.push((key, old));
        }
        let (name, item) = self.table.get_key_value(self.written(key))?;
        let at = name.span().or_else(|| item.span()).unwrap_or_else(|| self.at.clone());
        Some(Field { path: self.path(key), at, node: Node::Item(item) })
    }

    /// Takes a key that must be there.
    pub(super) fn require(&mut self, report: &mut Report<'_>, key: &'static str) -> Option<Field<'a>> {
        let field = self.take(key);
        if field.is_none() {
            report.error(&self.at, self.path(key), Problem::new("missing"));
        }
        field
    }

    pub(super) fn flag(&mut self, report: &mut Report<'_>, key: &'static str) -> Option<bool> {
        let field = self.take(key)?;
        let flag = field.node.value().and_then(Value::as_bool);
        if flag.is_none() {
            field.wrong_type(report, "true or false");
        }
        flag
    }

    pub(super) fn integer(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        range: RangeInclusive<usize>,
    ) -> Option<usize> {
        let field = self.take(key)?;
        let Some(number) = field.node.value().and_then(Value::as_integer) else {
            field.wrong_type(report, "a number");
            return None;
        };
        let number = usize::try_from(number).ok().filter(|n| range.contains(n));
        if number.is_none() {
            let problem = format!("not from {} to {}", range.start(), range.end());
            field.wrong(report, Problem::new(problem));
        }
        number
    }

    pub(super) fn parsed<T>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<Spanned<T>> {
        self.take(key)?.parsed(report, parse)
    }

    /// A date or instant, as a text or as TOML writes it.
    pub(super) fn time<T>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<Spanned<T>> {
        let field = self.take(key)?;
        let Some(time) = field.node.value().and_then(Value::as_datetime) else {
            return field.parsed(report, parse);
        };
        field.read(report, parse(&time.to_string()))
    }

    pub(super) fn duration(&mut self, report: &mut Report<'_>, key: &'static str) -> Option<Duration> {
        let field = self.take(key)?;
        if let Some(number) = field.node.value().and_then(Value::as_integer) {
            let problem = Problem::new("a duration needs a unit");
            field.wrong(report, problem.hint(format!("write \"{number}s\" for seconds")));
            return None;
        }
        field.parsed(report, value::duration).map(|d| d.value)
    }

    pub(super) fn one_of<T: Copy>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        self.take(key)?.parsed(report, |text| one_of(text, choices)).map(|c| c.value)
    }

    /// One text, or a list of at most `max`.
    pub(super) fn list<T>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        max: usize,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Option<Vec<Spanned<T>>> {
        let field = self.take(key)?;
        let Some(array) = field.node.value().and_then(Value::as_array) else {
            return field.parsed(report, parse).map(|one| vec![one]);
        };
        if array.len() > max {
            field.wrong(report, Problem::new(format!("more than {max} entries")));
        }
        let entries = array.iter().take(max).enumerate();
        Some(entries.filter_map(|(i, entry)| field.entry(i, entry).parsed(report, &parse)).collect())
    }

    /// The same as [`Fields::list`] for values that may be numbers as well.
    pub(super) fn numbers_or_texts<T>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        max: usize,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Option<Vec<Spanned<T>>> {
        let field = self.take(key)?;
        let Some(array) = field.node.value().and_then(Value::as_array) else {
            return field.number_or_text(report, &parse).map(|one| vec![one]);
        };
        if array.len() > max {
            field.wrong(report, Problem::new(format!("more than {max} entries")));
        }
        let entries = array.iter().take(max).enumerate();
        Some(entries.filter_map(|(i, entry)| field.entry(i, entry).number_or_text(report, &parse)).collect())
    }

    /// Everything that was not taken is an error; what stands under an old name is a warning.
    pub(super) fn finish(self, report: &mut Report<'_>, protocol: Option<&str>) {
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
            report.error(&at, self.path(&value::excerpt(name)), problem);
        }
    }

    fn report_old_name(&self, report: &mut Report<'_>, new: &str, old: &str) {
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

impl<'a> Field<'a> {
    pub(super) fn wrong(&self, report: &mut Report<'_>, problem: Problem) {
        report.error(&self.value_at(), self.path.clone(), problem);
    }

    pub(super) fn wrong_type(&self, report: &mut Report<'_>, wanted: &str) {
        self.wrong(report, Problem::new(format!("expected {wanted}, found {}", self.node.type_name())));
    }

    pub(super) fn parsed<T>(
        &self,
        report: &mut Report<'_>,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<Spanned<T>> {
        let Some(text) = self.node.value().and_then(Value::as_str) else {
            self.wrong_type(report, "a text in quotes");
            return None;
        };
        self.read(report, parse(text))
    }

    fn read<T>(&self, report: &mut Report<'_>, parsed: Result<T, Problem>) -> Option<Spanned<T>> {
        match parsed {
            Ok(value) => Some(Spanned { value, at: self.value_at() }),
            Err(problem) => {
                self.wrong(report, problem);
                None
            }
        }
    }

    fn number_or_text<T>(
        &self,
        report: &mut Report<'_>,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<Spanned<T>> {
        let Some(number) = self.node.value().and_then(Value::as_integer) else {
            return self.parsed(report, parse);
        };
        match parse(&number.to_string()) {
            Ok(value) => Some(Spanned { value, at: self.value_at() }),
            Err(problem) => {
                self.wrong(report, problem);
                None
            }
        }
    }

    /// The field as a table.
    pub(super) fn table(&self, report: &mut Report<'_>, kind: Table) -> Option<Fields<'a>> {
        let table = self.node.table();
        if table.is_none() {
            self.wrong_type(report, "a table");
        }
        table.map(|table| Fields::new(table, kind, self.path.clone(), self.value_at()))
    }

    /// The field as a list of at most `max` tables, in either of the ways in which it can be written.
    pub(super) fn tables(&self, report: &mut Report<'_>, kind: Table, max: usize) -> Vec<Fields<'a>> {
        let all: Vec<(Option<&'a dyn TableLike>, Span)> = if let Some(tables) = self.node.array_of_tables() {
            tables
                .iter()
                .map(|t| (Some(t as &dyn TableLike), t.span().unwrap_or_else(|| self.at.clone())))
                .collect()
        } else if let Some(array) = self.node.value().and_then(Value::as_array) {
            array.iter().map(|v| (inline_table(v), v.span().unwrap_or_else(|| self.at.clone()))).collect()
        } else {
            self.wrong_type(report, "a list of tables");
            Vec::new()
        };
        if all.len() > max {
            self.wrong(report, Problem::new(format!("more than {max} entries")));
        }
        let mut tables = Vec::new();
        for (i, (table, at)) in all.into_iter().take(max).enumerate() {
            let path = format!("{}[{i}]", self.path);
            match table {
                Some(table) => tables.push(Fields::new(table, kind, path, at)),
                None => report.error(&at, path, Problem::new("expected a table")),
            }
        }
        tables
    }

    fn entry(&self, index: usize, value: &'a Value) -> Self {
        let at = value.span().unwrap_or_else(|| self.at.clone());
        Field { path: format!("{}[{index}]", self.path), at, node: Node::Value(value) }
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

pub(super) fn one_of<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, Problem> {
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
