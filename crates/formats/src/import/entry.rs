//! Reading one entry: each key is taken once, and what says something without having been taken is an error.

use std::ops::RangeInclusive;

use zeroize::Zeroizing;

use crate::read::json::{JsonMember, JsonValue, Node, whole};
use crate::read::json_fields::JsonReport;
use crate::read::value::{self, Problem};

/// An entry of which keys are taken one by one. Values are texts in some forms, and have types in others: any value
/// that can be read as the wanted type is accepted.
pub(super) struct ImportEntry<'v> {
    members: &'v [JsonMember],
    path: String,
    /// Its first byte in the text.
    pub(super) at: usize,
    taken: Vec<&'static str>,
    /// Whether values have the types of their keys: `off` is a name then, and no switch.
    is_typed: bool,
}

impl<'v> ImportEntry<'v> {
    /// `None`, reported, for what is no list of keys.
    pub(super) fn new(
        report: &mut JsonReport<'_>,
        value: &'v JsonValue,
        path: String,
        is_typed: bool,
    ) -> Option<Self> {
        let Node::Object(members) = &value.node else {
            let problem = format!("expected the keys of a server, found {}", value.node.kind());
            report.error(value.at, path, Problem::new(problem));
            return None;
        };
        Some(Self { members, path, at: value.at, taken: Vec::new(), is_typed })
    }

    /// Path of a key.
    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The last value of a key; null is as good as absent, and so is a name that the form does not have.
    pub(super) fn take(&mut self, key: &'static str) -> Option<&'v JsonValue> {
        self.taken.push(key);
        let value = &self.members.iter().rfind(|member| !key.is_empty() && member.key == key)?.value;
        (value.node != Node::Null).then_some(value)
    }

    /// A text, or what can be read as one.
    pub(super) fn text(
        &mut self,
        report: &mut JsonReport<'_>,
        key: &'static str,
    ) -> Option<Zeroizing<String>> {
        let value = self.take(key)?;
        let text = text_of(value);
        if text.is_none() {
            self.wrong(report, key, value, format!("expected a text, found {}", value.node.kind()));
        }
        text
    }

    /// A text that must be there.
    pub(super) fn require(
        &mut self,
        report: &mut JsonReport<'_>,
        key: &'static str,
    ) -> Option<Zeroizing<String>> {
        if self.take(key).is_none() {
            report.error(self.at, self.path(key), Problem::new("missing"));
            return None;
        }
        self.text(report, key)
    }

    /// A text that `parse` reads.
    pub(super) fn parsed<T>(
        &mut self,
        report: &mut JsonReport<'_>,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<T> {
        let text = self.text(report, key)?;
        self.checked(report, key, parse(&text))
    }

    /// The value, or `None` with the problem reported at the value of `key`.
    pub(super) fn checked<T>(
        &mut self,
        report: &mut JsonReport<'_>,
        key: &'static str,
        result: Result<T, Problem>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(problem) => {
                let at = self.take(key).map_or(self.at, |value| value.at);
                report.error(at, self.path(key), problem);
                None
            }
        }
    }

    pub(super) fn flag(&mut self, report: &mut JsonReport<'_>, key: &'static str) -> Option<bool> {
        let value = self.take(key)?;
        let flag = text_of(value).and_then(|text| boolean(&text));
        if flag.is_none() {
            self.wrong(report, key, value, "neither true nor false".to_owned());
        }
        flag
    }

    pub(super) fn number(
        &mut self,
        report: &mut JsonReport<'_>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let value = self.take(key)?;
        let number = text_of(value).and_then(|text| whole(&text)).filter(|number| range.contains(number));
        if number.is_none() {
            let problem = format!("no whole number from {} to {}", range.start(), range.end());
            self.wrong(report, key, value, problem);
        }
        number
    }

    /// One of the words of a table.
    pub(super) fn one_of<T: Copy>(
        &mut self,
        report: &mut JsonReport<'_>,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        self.parsed(report, key, |text| {
            let found = choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice);
            found.ok_or_else(|| {
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                Problem::new(format!("unknown value: {}", value::excerpt(text)))
                    .hint(format!("write one of {}", names.join(", ")))
            })
        })
    }

    /// The keys below a key.
    pub(super) fn below(&mut self, report: &mut JsonReport<'_>, key: &'static str) -> Option<Self> {
        let value = self.take(key)?;
        Self::new(report, value, self.path(key), self.is_typed)
    }

    /// An error for each key that says something and has not been taken, unless it is one of `harmless`.
    pub(super) fn finish(self, report: &mut JsonReport<'_>, harmless: &[&str]) {
        for member in self.members {
            let key = member.key.as_str();
            let is_known = self.taken.contains(&key) || harmless.contains(&key);
            let is_name = self.is_typed && matches!(&member.value.node, Node::Text(text) if !text.is_empty());
            if is_known || !is_name && says_nothing(&member.value) {
                continue;
            }
            let mut problem = Problem::new("adit has no such setting");
            let known = self.taken.iter().copied().filter(|key| !key.is_empty());
            problem.hint = value::closest(key, known).map(|key| format!("did you mean `{key}`?"));
            report.error(member.at, self.path(&value::excerpt(key)), problem);
        }
    }

    fn wrong(&self, report: &mut JsonReport<'_>, key: &str, value: &JsonValue, problem: String) {
        report.error(value.at, self.path(key), Problem::new(problem));
    }
}

pub(super) fn text_of(value: &JsonValue) -> Option<Zeroizing<String>> {
    match &value.node {
        Node::Text(text) => Some(text.clone()),
        Node::Number(number) => Some(Zeroizing::new(number.to_string())),
        Node::Bool(on) => Some(Zeroizing::new(on.to_string())),
        Node::Null | Node::Array(_) | Node::Object(_) => None,
    }
}

pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" | "yes" | "on" | "1" => Some(true),
        "false" | "False" | "FALSE" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// Whether a value switches nothing on.
pub(super) fn says_nothing(value: &JsonValue) -> bool {
    match &value.node {
        Node::Null => true,
        Node::Bool(on) => !on,
        Node::Text(text) => text.is_empty() || boolean(text) == Some(false),
        Node::Number(number) => whole(number) == Some(0),
        Node::Array(values) => values.is_empty(),
        Node::Object(members) => members.is_empty() || members.iter().any(is_off_switch),
    }
}

/// Whether a member says that what it belongs to is off.
fn is_off_switch(member: &JsonMember) -> bool {
    (member.key == "enabled" || member.key == "enable") && says_nothing(&member.value)
}
