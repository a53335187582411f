//! The options of a plugin: `key=value;switch`, or the JSON file of GoQuiet.

use std::sync::Arc;

use adit_proto::sip003;
use zeroize::Zeroizing;

use super::File;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::dialect::json::{self, Grammar, Node};
use crate::source::Source;

/// The options that were given, in their order.
pub(super) struct Options {
    /// Name of their source, for messages.
    pub(super) file: Arc<str>,
    entries: Vec<Entry>,
}

struct Entry {
    key: String,
    value: Option<Zeroizing<String>>,
    /// Line and column in a file.
    at: Option<(usize, usize)>,
}

impl Options {
    /// Those of a text.
    pub(super) fn parse(name: &str, text: &str) -> Self {
        let entries = sip003::parse_options(text).into_iter();
        let entry = |(key, value): (String, Option<String>)| Entry {
            key,
            value: value.map(Zeroizing::new),
            at: None,
        };
        Self { file: name.into(), entries: entries.map(entry).collect() }
    }

    /// Those of flags.
    pub(super) fn of_flags<'a>(flags: impl Iterator<Item = (&'static str, &'a str)>) -> Self {
        let entry = |(key, value): (&str, &str)| Entry {
            key: key.to_owned(),
            value: (!value.is_empty()).then(|| Zeroizing::new(value.to_owned())),
            at: None,
        };
        Self { file: "command line".into(), entries: flags.map(entry).collect() }
    }

    /// Those of a JSON file; a value that is no text, number or truth value is passed over.
    pub(super) fn of_file(file: &File) -> Result<Self, Diagnostics> {
        let source = Source::new(&file.name, &file.text);
        source.check_len()?;
        let document = json::parse_first(&source, Grammar::Lax)?;
        let Node::Object(members) = document.node else {
            let error = Diagnostic::error(&source.file, "", "no object");
            return Err(error.at(source.locate(document.at)).into());
        };
        let entries = members.into_iter().filter_map(|member| {
            let value = match member.value.node {
                Node::Text(text) => Some(text),
                Node::Number(number) => Some(Zeroizing::new(number.into())),
                Node::Bool(true) => None,
                Node::Bool(false) | Node::Null | Node::Array(_) | Node::Object(_) => return None,
            };
            Some(Entry { key: member.key, value, at: Some(source.locate(member.at)) })
        });
        Ok(Self { entries: entries.collect(), file: source.file.clone() })
    }

    /// The last value of a key, in any case of its letters.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.find(key)?.value.as_ref().map(|value| value.as_str())
    }

    /// Whether a switch is there.
    pub(super) fn is_on(&self, key: &str) -> bool {
        let is_off = |text: &str| matches!(text, "false" | "0");
        self.find(key).is_some_and(|entry| !entry.value.as_ref().is_some_and(|value| is_off(value)))
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().rev().find(|entry| entry.key.eq_ignore_ascii_case(key))
    }

    /// An error about a key.
    pub(super) fn error(&self, key: &str, problem: impl Into<String>) -> Diagnostic {
        self.place(key, Diagnostic::error(&self.file, key, problem))
    }

    /// A warning about a key.
    pub(super) fn warning(&self, key: &str, problem: impl Into<String>) -> Diagnostic {
        self.place(key, Diagnostic::warning(&self.file, key, problem))
    }

    fn place(&self, key: &str, finding: Diagnostic) -> Diagnostic {
        match self.find(key).and_then(|entry| entry.at) {
            Some(at) => finding.at(at),
            None => finding,
        }
    }
}
