//! The options of a plugin: `key=value;switch`, or the JSON file of GoQuiet.

use std::collections::HashSet;
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_proto::sip003;
use zeroize::Zeroizing;

use super::OptionsFile;
use crate::read::json::{self, Grammar, Node};
use crate::read::source::Source;
use crate::read::value::{closest, excerpt};

/// The options that were given, in their order.
pub(super) struct Options {
    /// Name of their source, for messages.
    pub(super) file: Arc<str>,
    entries: Vec<Entry>,
    /// Findings of the file.
    found: Diagnostics,
}

struct Entry {
    key: String,
    /// `None` for a name alone.
    value: Option<Zeroizing<String>>,
    /// Line and column in a file.
    at: Option<(usize, usize)>,
}

/// The kind of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionKind {
    /// A text, which must not be missing behind the name.
    Text,
    /// A whole number, which is one in a file too.
    Number,
    /// The name alone is on.
    Switch,
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
        Self { file: name.into(), entries: entries.map(entry).collect(), found: Diagnostics::new() }
    }

    /// Those of flags.
    pub(super) fn of_flags<'a>(flags: impl Iterator<Item = (&'static str, &'a str)>) -> Self {
        let entry = |(key, value): (&str, &str)| Entry {
            key: key.to_owned(),
            value: (!value.is_empty()).then(|| Zeroizing::new(value.to_owned())),
            at: None,
        };
        let entries = flags.map(entry).collect();
        Self { file: "command line".into(), entries, found: Diagnostics::new() }
    }

    /// Those of a JSON file, whose values are of the kinds of `known`, as the program has it: null is nothing, and any other
    /// kind an error. Keys that are not known are warnings of [`Self::check`].
    ///
    /// # Errors
    /// A text that is no object of JSON, and values of another kind.
    pub(super) fn of_file(file: &OptionsFile, known: &[(&str, OptionKind)]) -> Result<Self, Diagnostics> {
        let source = Source::new(&file.name, &file.text);
        source.check_len()?;
        let document = json::parse_first(&source, Grammar::Lax)?;
        let Node::Object(members) = document.node else {
            let error = Diagnostic::error(&source.file, "", "no object");
            return Err(error.at(source.locate(document.at)).into());
        };
        let (mut entries, mut found) = (Vec::new(), Diagnostics::new());
        for member in members {
            let at = source.locate(member.at);
            let kind =
                known.iter().find(|(key, _)| key.eq_ignore_ascii_case(&member.key)).map(|(_, kind)| *kind);
            let value = match (kind, member.value.node) {
                (Some(OptionKind::Text) | None, Node::Text(text)) => Some(text),
                (Some(OptionKind::Number) | None, Node::Number(number)) => {
                    Some(Zeroizing::new(number.into()))
                }
                (Some(OptionKind::Switch) | None, Node::Bool(on)) => Some(Zeroizing::new(on.to_string())),
                (None, Node::Null | Node::Array(_) | Node::Object(_)) => None,
                (Some(_), Node::Null) => {
                    let problem = "null counts as not written";
                    found.push(Diagnostic::warning(&source.file, excerpt(&member.key), problem).at(at));
                    continue;
                }
                (Some(kind), node) => {
                    let wanted = match kind {
                        OptionKind::Text => "a text in quotes",
                        OptionKind::Number => "a number",
                        OptionKind::Switch => "true or false",
                    };
                    let problem = format!("expected {wanted}, found {}", node.kind());
                    found.push(Diagnostic::error(&source.file, excerpt(&member.key), problem).at(at));
                    continue;
                }
            };
            entries.push(Entry { key: member.key, value, at: Some(at) });
        }
        if found.has_errors() {
            return Err(found);
        }
        Ok(Self { entries, file: source.file.clone(), found })
    }

    /// Findings about values that a reader would take for missing ones, and about options that have no effect.
    pub(super) fn check(&self, known: &[(&str, OptionKind)]) -> Diagnostics {
        let mut found = self.found.clone();
        let mut seen = HashSet::new();
        for entry in &self.entries {
            let warning =
                |problem| placed(Some(entry), Diagnostic::warning(&self.file, excerpt(&entry.key), problem));
            if !seen.insert(entry.key.to_ascii_lowercase()) {
                found.push(warning("given twice; the last one counts"));
            }
            let Some((_, kind)) = known.iter().find(|(known, _)| known.eq_ignore_ascii_case(&entry.key))
            else {
                // Options of Android's apps, for every plugin.
                if !entry.key.starts_with("__android_vpn") && !found.is_full() {
                    let unknown = warning("unknown option, so it has no effect");
                    found.push(match closest(&entry.key, known.iter().map(|(key, _)| *key)) {
                        Some(known) => unknown.hint(format!("did you mean {known}?")),
                        None => unknown,
                    });
                }
                continue;
            };
            match (kind, entry.value.as_ref().map(|value| value.as_str())) {
                (OptionKind::Text | OptionKind::Number, None) => {
                    let error = Diagnostic::error(&self.file, excerpt(&entry.key), "a value must follow");
                    found.push(placed(Some(entry), error));
                }
                (OptionKind::Text | OptionKind::Number, Some("")) => {
                    found.push(warning("empty, so it counts as not written"));
                }
                (OptionKind::Switch, Some(value)) if !matches!(value, "true" | "1" | "false" | "0") => {
                    found.push(warning("neither true nor false, so it is on"));
                }
                (OptionKind::Text | OptionKind::Number | OptionKind::Switch, _) => {}
            }
        }
        found
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
        placed(self.find(key), Diagnostic::error(&self.file, key, problem))
    }

    /// A warning about a key.
    pub(super) fn warning(&self, key: &str, problem: impl Into<String>) -> Diagnostic {
        placed(self.find(key), Diagnostic::warning(&self.file, key, problem))
    }
}

/// A finding at the place of an entry, if it has one.
fn placed(entry: Option<&Entry>, finding: Diagnostic) -> Diagnostic {
    match entry.and_then(|entry| entry.at) {
        Some(at) => finding.at(at),
        None => finding,
    }
}
