//! Types of keys: a tree in which every known key has the type that its table says.
//!
//! ```text
//! tree of a text ─→ settle, by tables ─→ tree: known keys have their types, in one form
//!                         └─→ a finding for each value of another type, with its place
//! ```
//!
//! A key is not written, or written and understood, or written and not understood. Readers tell the first two apart; the
//! third never reaches them: its value is reported and taken out. A reader that answers "nothing" for a value of another
//! type can so not take it for a key that is not there.
//!
//! The form behind it: a truth value is the text `true` or `false`, a number a text of decimal digits, a list of texts a
//! list, a text a text. Null is as good as absent. Keys that no table has stay as they are.

use super::json::{JsonMember, JsonValue, Node, whole};

/// The type of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueKind {
    /// `true` or `false`.
    Flag,
    /// A whole number that is not negative.
    Number,
    /// Any scalar.
    Text,
    /// A list of scalars.
    Texts,
    /// A list of whole numbers.
    Numbers,
    /// A mapping with these keys.
    Map(&'static KeyKinds),
    /// A list of mappings with these keys.
    Maps(&'static KeyKinds),
    /// A mapping of any names to values of a type.
    Named(&'static Self),
    /// A list; its items have types of their own, which are looked at later.
    Items,
    /// A mapping; its keys have types of their own, which are looked at later.
    Members,
    /// The first of these types that fits.
    Either(&'static [Self]),
    /// Anything.
    Any,
}

/// Keys of a mapping, each with its type. `_` and `-` are the same.
pub(crate) type KeyKinds = [(&'static str, ValueKind)];

/// The way in which a program takes values for those of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Typing {
    /// As readers of YAML do: scalars of any look, one value for a list of one.
    Loose,
    /// As readers of JSON do: `true` and `1` are no texts. One value stands for a list of one, and digits in quotes for a
    /// number.
    Strict,
}

/// A value of another type than its key has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrongKind {
    /// Its place.
    pub(crate) at: usize,
    /// The path of its key.
    pub(crate) path: String,
    pub(crate) problem: String,
}

/// Gives a tree the types of a table. Values of other types are taken out, and are the result.
pub(crate) fn settle(value: &mut JsonValue, kind: &ValueKind, typing: Typing, path: &str) -> Vec<WrongKind> {
    let mut settler = Settler { typing, wrong: Vec::new() };
    if !settler.settle(value, kind, path) {
        value.node = Node::Null;
    }
    settler.wrong
}

struct Settler {
    typing: Typing,
    wrong: Vec<WrongKind>,
}

impl Settler {
    /// Whether the value has the type, within which others were taken out.
    fn settle(&mut self, value: &mut JsonValue, kind: &ValueKind, path: &str) -> bool {
        if value.node == Node::Null {
            return true;
        }
        let is_right = match kind {
            ValueKind::Any => true,
            ValueKind::Flag => self.scalar(value, flag),
            ValueKind::Number => self.scalar(value, number),
            ValueKind::Text => self.text(value),
            ValueKind::Texts => return self.list(value, &ValueKind::Text, path),
            ValueKind::Numbers => return self.list(value, &ValueKind::Number, path),
            ValueKind::Items => matches!(value.node, Node::Array(_)),
            ValueKind::Members => matches!(value.node, Node::Object(_)),
            ValueKind::Map(table) => return self.map(value, table, path),
            ValueKind::Maps(table) => return self.maps(value, table, path),
            ValueKind::Named(kind) => return self.named(value, kind, path),
            ValueKind::Either(kinds) => return self.either(value, kinds, path),
        };
        if !is_right {
            self.note(value, kind, path);
        }
        is_right
    }

    #[cold]
    fn note(&mut self, value: &JsonValue, kind: &ValueKind, path: &str) {
        let is_empty = matches!(&value.node, Node::Text(text) if text.is_empty());
        let found = if is_empty { "an empty text" } else { value.node.kind() };
        let problem = match (kind, &value.node) {
            // The look of a scalar says what is wrong with it.
            (ValueKind::Flag | ValueKind::Number, Node::Text(text)) if !text.is_empty() => expected(kind),
            (ValueKind::Number, Node::Number(_)) => expected(kind),
            _ => format!("{}, found {found}", expected(kind)),
        };
        self.wrong.push(WrongKind { at: value.at, path: path.to_owned(), problem });
    }

    /// A scalar that `read` knows, in the form of its type.
    fn scalar(&self, value: &mut JsonValue, read: fn(&Node, Typing) -> Option<String>) -> bool {
        let Some(text) = read(&value.node, self.typing) else { return false };
        if !matches!(&value.node, Node::Text(known) if **known == text) {
            value.node = Node::Text(text.into());
        }
        true
    }

    fn text(&self, value: &mut JsonValue) -> bool {
        let text = match &value.node {
            Node::Text(_) => return true,
            Node::Number(number) if self.typing == Typing::Loose => number.to_string(),
            Node::Bool(on) if self.typing == Typing::Loose => on.to_string(),
            Node::Number(_) | Node::Bool(_) | Node::Null | Node::Array(_) | Node::Object(_) => return false,
        };
        value.node = Node::Text(text.into());
        true
    }

    /// A list of scalars of a type, or one in its place.
    fn list(&mut self, value: &mut JsonValue, of: &ValueKind, path: &str) -> bool {
        let is_number = matches!(of, ValueKind::Number);
        let Node::Array(items) = &mut value.node else {
            let is_empty = matches!(&value.node, Node::Text(text) if text.is_empty());
            if is_empty || !self.item(value, is_number) {
                self.note(value, if is_number { &ValueKind::Numbers } else { &ValueKind::Texts }, path);
                return false;
            }
            let one = JsonValue { at: value.at, node: std::mem::replace(&mut value.node, Node::Null) };
            value.node = Node::Array(vec![one]);
            return true;
        };
        let mut n = 0;
        items.retain_mut(|item| {
            let is_right = self.item(item, is_number);
            if !is_right {
                self.note(item, of, &format!("{path}[{n}]"));
            }
            n += 1;
            is_right
        });
        true
    }

    fn item(&self, item: &mut JsonValue, is_number: bool) -> bool {
        if is_number { self.scalar(item, number) } else { self.text(item) }
    }

    fn map(&mut self, value: &mut JsonValue, table: &'static KeyKinds, path: &str) -> bool {
        let Node::Object(members) = &mut value.node else {
            self.note(value, &ValueKind::Map(table), path);
            return false;
        };
        self.members(members, path, |key| find(table, key));
        true
    }

    fn named(&mut self, value: &mut JsonValue, kind: &'static ValueKind, path: &str) -> bool {
        let Node::Object(members) = &mut value.node else {
            self.note(value, &ValueKind::Named(kind), path);
            return false;
        };
        self.members(members, path, |_| Some(kind));
        true
    }

    fn members(
        &mut self,
        members: &mut Vec<JsonMember>,
        path: &str,
        kind: impl Fn(&str) -> Option<&'static ValueKind>,
    ) {
        members.retain_mut(|member| {
            let Some(kind) = kind(&member.key) else { return true };
            let key = super::value::excerpt(&member.key);
            let path = if path.is_empty() { key } else { format!("{path}.{key}") };
            self.settle(&mut member.value, kind, &path)
        });
    }

    fn maps(&mut self, value: &mut JsonValue, table: &'static KeyKinds, path: &str) -> bool {
        let Node::Array(items) = &mut value.node else {
            self.note(value, &ValueKind::Maps(table), path);
            return false;
        };
        let mut n = 0;
        items.retain_mut(|item| {
            let path = format!("{path}[{n}]");
            n += 1;
            if item.node == Node::Null {
                self.note(item, &ValueKind::Map(table), &path);
                return false;
            }
            self.map(item, table, &path)
        });
        true
    }

    fn either(&mut self, value: &mut JsonValue, kinds: &'static [ValueKind], path: &str) -> bool {
        let Some((last, others)) = kinds.split_last() else { return true };
        for kind in others {
            let before = self.wrong.len();
            if self.settle(value, kind, path) {
                return true;
            }
            self.wrong.truncate(before);
        }
        self.settle(value, last, path)
    }
}

/// The type of a key.
pub(crate) fn find(table: &'static KeyKinds, key: &str) -> Option<&'static ValueKind> {
    let same = |known: &str| key.bytes().map(dashed).eq(known.bytes().map(dashed));
    table.iter().find(|(known, _)| same(known)).map(|(_, kind)| kind)
}

fn dashed(byte: u8) -> u8 {
    if byte == b'_' { b'-' } else { byte }
}

/// The words of go-yaml, and the numbers that weak typing takes.
fn flag(node: &Node, typing: Typing) -> Option<String> {
    let is_on = match node {
        Node::Bool(on) => Some(*on),
        Node::Text(text) if typing == Typing::Loose => match &***text {
            "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" | "1" => {
                Some(true)
            }
            "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" | "0" => {
                Some(false)
            }
            _ => None,
        },
        Node::Text(_) | Node::Null | Node::Number(_) | Node::Array(_) | Node::Object(_) => None,
    };
    is_on.map(|on| on.to_string())
}

fn number(node: &Node, _: Typing) -> Option<String> {
    let text = match node {
        Node::Text(text) => text.as_str(),
        Node::Number(number) => number,
        Node::Null | Node::Bool(_) | Node::Array(_) | Node::Object(_) => return None,
    };
    whole(text.trim()).map(|number| number.to_string())
}

/// The words for a type in messages.
fn expected(kind: &ValueKind) -> String {
    let one = match kind {
        ValueKind::Flag => "true or false",
        ValueKind::Number => "a whole number",
        ValueKind::Text => "a text",
        ValueKind::Texts => "a list of texts",
        ValueKind::Numbers => "a list of whole numbers",
        ValueKind::Map(_) | ValueKind::Named(_) | ValueKind::Members => "a mapping of keys",
        ValueKind::Maps(_) => "a list of mappings",
        ValueKind::Items => "a list",
        ValueKind::Either(kinds) => return kinds.last().map_or_else(String::new, expected),
        ValueKind::Any => "a value",
    };
    format!("expected {one}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::json::{Grammar, parse, plain};
    use crate::read::source::Source;
    use crate::read::yaml;

    const INNER: &KeyKinds = &[("on", ValueKind::Flag), ("n", ValueKind::Number)];
    const TABLE: &KeyKinds = &[
        ("flag", ValueKind::Flag),
        ("number", ValueKind::Number),
        ("text", ValueKind::Text),
        ("list", ValueKind::Texts),
        ("map", ValueKind::Map(INNER)),
        ("maps", ValueKind::Maps(INNER)),
        ("named", ValueKind::Named(&ValueKind::Texts)),
        ("either", ValueKind::Either(&[ValueKind::Text, ValueKind::Map(INNER)])),
        ("two-words", ValueKind::Flag),
    ];

    fn settled(text: &str, typing: Typing) -> (String, Vec<String>) {
        let source = Source::new("t", text);
        let mut value = match typing {
            Typing::Loose => yaml::parse(&source, 0..text.len()).unwrap(),
            Typing::Strict => parse(&source, Grammar::Json5).unwrap(),
        };
        let wrong = settle(&mut value, &ValueKind::Map(TABLE), typing, "");
        let wrong = wrong.iter().map(|wrong| format!("{}: {}: {}", wrong.at, wrong.path, wrong.problem));
        (plain(&value), wrong.collect())
    }

    #[test]
    fn values_get_one_form() {
        for (typing, text, want) in [
            (Typing::Loose, "flag: Yes", r#"{"flag":"true"}"#),
            (Typing::Loose, "two_words: off", r#"{"two_words":"false"}"#),
            (Typing::Loose, "number: 0x10", r#"{"number":"16"}"#),
            (Typing::Loose, "text: 1", r#"{"text":"1"}"#),
            (Typing::Loose, "list: a", r#"{"list":["a"]}"#),
            (Typing::Loose, "list: []\nflag:", r#"{"list":[],"flag":null}"#),
            (Typing::Loose, "named: {a: x, b: [y]}", r#"{"named":{"a":["x"],"b":["y"]}}"#),
            (Typing::Loose, "either: x", r#"{"either":"x"}"#),
            (Typing::Loose, "either: {on: 1}", r#"{"either":{"on":"true"}}"#),
            (Typing::Loose, "other: [1]", r#"{"other":["1"]}"#),
            (Typing::Strict, r#"{"flag":true,"number":7}"#, r#"{"flag":"true","number":"7"}"#),
            (Typing::Strict, r#"{"maps":[{"on":false}]}"#, r#"{"maps":[{"on":"false"}]}"#),
        ] {
            assert_eq!(settled(text, typing), (want.to_owned(), Vec::new()), "{text}");
        }
    }

    #[test]
    fn other_types_are_taken_out_and_named() {
        for (typing, text, want, wrong) in [
            (Typing::Loose, "flag: maybe", "{}", "6: flag: expected true or false"),
            (Typing::Loose, "flag: ''", "{}", "6: flag: expected true or false, found an empty text"),
            (Typing::Loose, "flag: []", "{}", "6: flag: expected true or false, found a list"),
            (Typing::Loose, "number: -1", "{}", "8: number: expected a whole number"),
            (Typing::Loose, "text: {a: b}", "{}", "6: text: expected a text, found an object"),
            (Typing::Loose, "list: {}", "{}", "6: list: expected a list of texts, found an object"),
            (
                Typing::Loose,
                "list: [a, [b]]",
                r#"{"list":["a"]}"#,
                "10: list[1]: expected a text, found a list",
            ),
            (Typing::Loose, "map: x", "{}", "5: map: expected a mapping of keys, found a text"),
            (Typing::Loose, "map: {on: x}", r#"{"map":{}}"#, "10: map.on: expected true or false"),
            (Typing::Loose, "maps: {}", "{}", "6: maps: expected a list of mappings, found an object"),
            (Typing::Loose, "maps: [{n: x}]", r#"{"maps":[{}]}"#, "11: maps[0].n: expected a whole number"),
            (Typing::Loose, "either: [a]", "{}", "8: either: expected a mapping of keys, found a list"),
            (Typing::Strict, r#"{"flag":"true"}"#, "{}", "8: flag: expected true or false"),
            (Typing::Strict, r#"{"text":true}"#, "{}", "8: text: expected a text, found a truth value"),
            (Typing::Strict, r#"{"number":1.5}"#, "{}", "10: number: expected a whole number"),
        ] {
            assert_eq!(settled(text, typing), (want.to_owned(), vec![wrong.to_owned()]), "{text}");
        }
    }
}
