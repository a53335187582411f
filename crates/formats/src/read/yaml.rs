//! YAML, which lists of servers are written in, with the place of every key and value.
//!
//! `saphyr-parser` reads the text (YAML 1.2.2) and reports it as events; this module makes a tree of them, and bounds it.
//!
//! ```text
//! scalar          a text of any look; plain `~`, `null` and nothing at all are null
//! key             a scalar, once in its mapping
//! &name, *name    the value again, with the place where it stands; its contents count once more against the bounds
//! <<: *name       members that the mapping does not have itself; of a list, the earlier ones win
//! !!str and such  change nothing but that `!!str` makes a text of `null`; other tags are refused
//! ```
//!
//! A second document is refused. Bounds: depth [`MAX_DEPTH`], values and bytes of all texts of [`Bounds`].
//!
//! No message quotes any part of the text: what stands there may be a key.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use adit_model::diagnostic::Diagnostic;
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, StrInput, Tag};
use zeroize::Zeroizing;

use super::json::{JsonMember, JsonValue, Node};
use crate::read::source::{MAX_LEN, Source};

/// Deepest nesting, with what aliases stand for.
const MAX_DEPTH: usize = 32;

/// Most values in one text, with what aliases stand for.
const MAX_VALUES: usize = 100_000;

/// Longest sum of all keys and texts, in bytes: aliases may repeat a text of the longest length a few times.
const MAX_TEXT: usize = 4 * MAX_LEN;

/// Bounds of a text, with what its aliases stand for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Longest text, in bytes.
    pub(crate) len: usize,
    /// Most values.
    pub(crate) values: usize,
    /// Longest sum of all keys and texts, in bytes.
    pub(crate) text: usize,
}

/// Those of lists of servers that a person writes.
const USUAL: Bounds = Bounds { len: MAX_LEN, values: MAX_VALUES, text: MAX_TEXT };

/// Those of files and subscriptions of mihomo, which programs write: ten times a large one. A text that fills them takes
/// some 100 MB while it is read.
pub(crate) const LARGE: Bounds = Bounds { len: 16 << 20, values: 1_000_000, text: 32 << 20 };

/// The parser's message about an alias without an anchor in front of it.
const UNKNOWN_ANCHOR: &str = "while parsing node, found unknown anchor";

/// Reads the part of a text that `range` spans. The anchors of its aliases may also stand in front of it.
///
/// # Errors
/// The first thing that is wrong with it, or is not read here.
pub(crate) fn parse(source: &Source<'_>, range: Range<usize>) -> Result<JsonValue, Diagnostic> {
    parse_within(source, range, USUAL)
}

/// The same within other bounds.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_within(
    source: &Source<'_>,
    range: Range<usize>,
    bounds: Bounds,
) -> Result<JsonValue, Diagnostic> {
    source.check_len_up_to(bounds.len)?;
    let mut result = Builder::new(source.text, range.clone(), bounds).document();
    if range.start > 0 && result.as_ref().is_err_and(|wrong| wrong.lacks_anchor) {
        result = Builder::new(source.text, 0..range.end, bounds).document();
    }
    result.map_err(|wrong| {
        let found = Diagnostic::error(&source.file, "", wrong.problem).at(source.locate(wrong.at));
        match wrong.hint {
            Some(hint) => found.hint(hint),
            None => found,
        }
    })
}

/// Range of the top-level key `key`, from its line on to the next key at the left margin; `None` without such a key.
/// The contents of other keys do not matter then.
pub(crate) fn section(text: &str, key: &str) -> Option<Range<usize>> {
    let mut at = 0;
    let mut start = None;
    for line in text.split_inclusive('\n') {
        let is_key =
            line.strip_prefix(key).is_some_and(|rest| rest.trim_start_matches([' ', '\t']).starts_with(':'));
        let is_margin = !line.starts_with([' ', '\t', '#', '-', '\r', '\n', ']', '}']);
        match start {
            None if is_key => start = Some(at),
            Some(start) if is_margin => return Some(start..at),
            None | Some(_) => {}
        }
        at += line.len();
    }
    start.map(|start| start..at)
}

/// A problem, and its byte.
struct Wrong {
    at: usize,
    problem: String,
    hint: Option<&'static str>,
    /// An alias stands for nothing that was read.
    lacks_anchor: bool,
}

impl Wrong {
    fn new(at: usize, problem: impl Into<String>) -> Self {
        Self { at, problem: problem.into(), hint: None, lacks_anchor: false }
    }

    fn hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }
}

struct Builder<'a> {
    parser: Parser<'a, StrInput<'a>>,
    place: Place<'a>,
    /// Brackets that are open.
    brackets: Vec<usize>,
    /// Values with an anchor, by the parser's number for it.
    anchors: HashMap<usize, JsonValue>,
    /// Values that may still come.
    values_left: usize,
    /// Bytes of texts that may still come.
    text_left: usize,
}

impl<'a> Builder<'a> {
    fn new(text: &'a str, range: Range<usize>, bounds: Bounds) -> Self {
        Self {
            parser: Parser::new_from_str(&text[range.clone()]),
            place: Place { text: &text[..range.end], start: range.start, index: 0, at: range.start },
            brackets: Vec::new(),
            anchors: HashMap::new(),
            values_left: bounds.values,
            text_left: bounds.text,
        }
    }

    fn document(&mut self) -> Result<JsonValue, Wrong> {
        let mut found = None;
        loop {
            match self.next()? {
                (Event::StreamStart | Event::DocumentEnd | Event::Nothing, _) => {}
                (Event::DocumentStart(_), at) if found.is_some() => {
                    return Err(Wrong::new(at, "a second document is not read"));
                }
                (Event::DocumentStart(_), _) => {
                    let (event, at) = self.next()?;
                    found = Some(self.node(event, at, 0)?);
                }
                (Event::StreamEnd, at) => return Ok(found.unwrap_or(JsonValue { at, node: Node::Null })),
                (_, at) => return Err(Wrong::new(at, "no value where one must be")),
            }
        }
    }

    /// The node that begins with an event.
    fn node(&mut self, event: Event<'a>, at: usize, depth: usize) -> Result<JsonValue, Wrong> {
        if let Event::Alias(anchor) = event {
            return self.alias(anchor, at, depth);
        }
        self.count(1, 0, depth, at)?;
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let text = Zeroizing::new(text.into_owned());
                self.count(0, text.len(), depth, at)?;
                let is_text = check_tag(tag.as_deref(), at)?;
                let is_null = style == ScalarStyle::Plain && !is_text && is_null(&text);
                (if is_null { Node::Null } else { Node::Text(text) }, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), at)?;
                (Node::Array(self.within(at, |builder| builder.sequence(depth))?), anchor)
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), at)?;
                (Node::Object(self.within(at, |builder| builder.mapping(depth))?), anchor)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::Alias(_)
            | Event::SequenceEnd
            | Event::MappingEnd => return Err(Wrong::new(at, "no value where one must be")),
        };
        let value = JsonValue { at, node };
        if anchor > 0 {
            let copy = self.copy(&value, depth, at)?;
            self.anchors.insert(anchor, copy);
        }
        Ok(value)
    }

    /// Reads a collection that begins at a byte, and remembers the bracket that may stand there.
    fn within<T>(&mut self, at: usize, read: impl FnOnce(&mut Self) -> Result<T, Wrong>) -> Result<T, Wrong> {
        let before = self.brackets.len();
        if self.place.text[at..].starts_with(['[', '{']) {
            self.brackets.push(at);
        }
        let found = read(self)?;
        self.brackets.truncate(before);
        Ok(found)
    }

    fn sequence(&mut self, depth: usize) -> Result<Vec<JsonValue>, Wrong> {
        let mut values = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(values),
                (event, at) => values.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Vec<JsonMember>, Wrong> {
        let mut members: Vec<JsonMember> = Vec::new();
        let mut merged = None;
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.node(event, at, depth + 1)?;
            let (event, value_at) = self.next()?;
            let value = self.node(event, value_at, depth + 1)?;
            if !is_merge {
                members.push(JsonMember { key: key_text(key.node, at)?, at, value });
            } else if merged.replace(value).is_some() {
                return Err(Wrong::new(at, TWICE));
            }
        }
        check_twice(&members)?;
        if let Some(value) = merged {
            merge(&mut members, value)?;
        }
        Ok(members)
    }

    fn alias(&mut self, anchor: usize, at: usize, depth: usize) -> Result<JsonValue, Wrong> {
        let Some(value) = self.anchors.remove(&anchor) else {
            return Err(Wrong::new(at, "this alias stands within its own value"));
        };
        let copy = self.copy(&value, depth, at)?;
        self.anchors.insert(anchor, value);
        Ok(copy)
    }

    /// A value once more, `depth` deep, for an alias or an anchor at `at`.
    fn copy(&mut self, value: &JsonValue, depth: usize, at: usize) -> Result<JsonValue, Wrong> {
        self.count_all(value, depth, at)?;
        Ok(value.clone())
    }

    fn count_all(&mut self, value: &JsonValue, depth: usize, at: usize) -> Result<(), Wrong> {
        match &value.node {
            Node::Null | Node::Bool(_) | Node::Number(_) => self.count(1, 0, depth, at),
            Node::Text(text) => self.count(1, text.len(), depth, at),
            Node::Array(values) => {
                self.count(1, 0, depth, at)?;
                values.iter().try_for_each(|value| self.count_all(value, depth + 1, at))
            }
            Node::Object(members) => {
                self.count(1, 0, depth, at)?;
                members.iter().try_for_each(|member| {
                    self.count(1, member.key.len(), depth + 1, at)?;
                    self.count_all(&member.value, depth + 1, at)
                })
            }
        }
    }

    fn count(&mut self, values: usize, text: usize, depth: usize, at: usize) -> Result<(), Wrong> {
        if depth > MAX_DEPTH {
            return Err(Wrong::new(at, TOO_DEEP));
        }
        let left = self.values_left.checked_sub(values).zip(self.text_left.checked_sub(text));
        let aliases = "an alias counts for all that it stands for";
        (self.values_left, self.text_left) =
            left.ok_or_else(|| Wrong::new(at, "too many values").hint(aliases))?;
        Ok(())
    }

    /// The next event, and the byte at which it begins.
    fn next(&mut self) -> Result<(Event<'a>, usize), Wrong> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, self.place.of(span.start))),
            Some(Err(error)) => Err(self.explain(&error)),
            None => Ok((Event::StreamEnd, self.place.at)),
        }
    }

    /// The parser's message, in the words of this program where it has some.
    fn explain(&mut self, error: &ScanError) -> Wrong {
        let (at, info) = (self.place.of(*error.marker()), error.info());
        if info == UNKNOWN_ANCHOR {
            let wrong = Wrong::new(at, "no anchor of this name stands in front of this alias");
            return Wrong {
                lacks_anchor: true,
                ..wrong.hint("a text that begins with `*` stands in quotes")
            };
        }
        let is_end = self.place.text[at..].trim_ascii().is_empty();
        if let (true, Some(open)) = (is_end, self.brackets.last()) {
            return Wrong::new(*open, "nothing closes this bracket");
        }
        if let Some((_, problem, hint)) = WORDS.iter().find(|(start, ..)| info.starts_with(start)) {
            let wrong = Wrong::new(at, *problem);
            return Wrong { hint: *hint, ..wrong };
        }
        // The rest are sentences about the form, which quote nothing.
        Wrong::new(at, info)
    }
}

const TOO_DEEP: &str = "nested too deeply";

const TWICE: &str = "this key is there twice";

/// The beginning of a message of the parser, our words instead, and advice.
const WORDS: &[(&str, &str, Option<&str>)] = &[
    ("block sequence entries are not", "no list begins here", Some("its first `-` begins a line of its own")),
    ("found unprintable character", "a character that no YAML holds", None),
    ("invalid trailing content", MORE_TEXT, None),
    ("mapping values are not allowed", MORE_TEXT, Some("a text with `: ` in it stands in quotes")),
    ("misplaced bracket", "this bracket closes nothing", None),
    ("recursion limit exceeded", TOO_DEEP, None),
    ("simple key expect", "no `:` after the key", None),
    ("tab cannot be used", TAB, None),
    ("tabs disallowed", TAB, None),
    ("unexpected character", "no value begins like this: use quotes", None),
    ("while parsing a block collection", NO_ENTRY, Some("entries of one list begin at one column")),
    ("while parsing a block mapping", NO_ENTRY, Some("keys of one mapping begin at one column")),
    ("while parsing a flow", "no `,` after the value", None),
    ("while parsing a node", "no value where one must be", None),
    (
        "while parsing a quoted scalar, found unknown escape",
        "no escape begins like this",
        Some("single quotes take a backslash as it is"),
    ),
    ("while parsing a quoted scalar", "this escape is no character", None),
    ("while scanning a plain scalar, found a tab", TAB, None),
    ("while scanning a quoted scalar, found unexpected end", "nothing closes this quote", None),
    (
        "while scanning an anchor or alias",
        "no name after this `&` or `*`",
        Some("a text that begins like this stands in quotes"),
    ),
];

const MORE_TEXT: &str = "more text after the value";

const NO_ENTRY: &str = "no key, and no entry of a list";

const TAB: &str = "a tab before a value: use spaces";

/// Bytes of the places that the parser counts in characters.
struct Place<'a> {
    text: &'a str,
    /// First byte of the parser's text.
    start: usize,
    /// The last place, in characters behind `start`, and its byte.
    index: usize,
    at: usize,
}

impl Place<'_> {
    /// Goes from the last place, since the next one is near it.
    fn of(&mut self, marker: Marker) -> usize {
        while self.index < marker.index()
            && let Some(c) = self.text[self.at..].chars().next()
        {
            (self.index, self.at) = (self.index + 1, self.at + c.len_utf8());
        }
        while self.index > marker.index()
            && let Some(c) = self.text[self.start..self.at].chars().next_back()
        {
            (self.index, self.at) = (self.index - 1, self.at - c.len_utf8());
        }
        self.at
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Whether the tag makes a text of what could be null.
fn check_tag(tag: Option<&Tag>, at: usize) -> Result<bool, Wrong> {
    let known = ["str", "int", "float", "bool", "null", "seq", "map"];
    match tag {
        None => Ok(false),
        Some(tag) if tag.handle.is_empty() && tag.suffix == "!" => Ok(true),
        Some(tag) if tag.is_yaml_core_schema() && known.contains(&tag.suffix.as_str()) => {
            Ok(tag.suffix == "str")
        }
        Some(_) => Err(Wrong::new(at, "this tag is not read")),
    }
}

fn key_text(key: Node, at: usize) -> Result<String, Wrong> {
    match key {
        Node::Text(text) => Ok((*text).clone()),
        Node::Null => Ok(String::new()),
        Node::Bool(_) | Node::Number(_) | Node::Array(_) | Node::Object(_) => {
            Err(Wrong::new(at, "keys that are no texts are not read"))
        }
    }
}

fn check_twice(members: &[JsonMember]) -> Result<(), Wrong> {
    let mut keys = HashSet::with_capacity(members.len());
    match members.iter().find(|member| !keys.insert(member.key.as_str())) {
        Some(member) => Err(Wrong::new(member.at, TWICE)),
        None => Ok(()),
    }
}

/// Adds what a merge key stands for.
fn merge(members: &mut Vec<JsonMember>, from: JsonValue) -> Result<(), Wrong> {
    let JsonValue { at, node } = from;
    let sources = if let Node::Array(values) = node { values } else { vec![JsonValue { at, node }] };
    let mut keys: HashSet<String> = members.iter().map(|member| member.key.clone()).collect();
    for JsonValue { at, node } in sources {
        let Node::Object(found) = node else {
            let hint = "`<<: *name`, or `<<: [*one, *other]`, with anchors at mappings";
            return Err(Wrong::new(at, "a merge key takes a mapping, or a list of them").hint(hint));
        };
        members.extend(found.into_iter().filter(|member| keys.insert(member.key.clone())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::json::plain;

    fn read(text: &str) -> Result<String, String> {
        let source = Source::new("t", text);
        parse(&source, 0..text.len()).map(|value| plain(&value)).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_read() {
        for (text, want) in [
            ("a: 1", r#"{"a":"1"}"#),
            ("- a\n- b c # d\n-\n- ~\n", r#"["a","b c",null,null]"#),
            ("a:\n- x\n- y\nb:\n  - z\n", r#"{"a":["x","y"],"b":["z"]}"#),
            (
                "- name: n\n  o: { mode: http, h: \"a b\" }\n- {a: 1,b: [x, y,],}\n",
                r#"[{"name":"n","o":{"mode":"http","h":"a b"}},{"a":"1","b":["x","y"]}]"#,
            ),
            ("---\na:\n  b:\n    c: d\n  e: f\n...\n", r#"{"a":{"b":{"c":"d"},"e":"f"}}"#),
            (
                "\u{feff}# c\r\na: 'it''s'\r\n\"k: 1\" : \"\\x41\\u00e9\\U0001F600\\n\\\\\\/\"\r\n",
                "{\"a\":\"it's\",\"k: 1\":\"Aé😀\\n\\\\/\"}",
            ),
            (
                "a: x#y\nb: http://h:1/\nc: -1\nd: a,b]c\n",
                r##"{"a":"x#y","b":"http://h:1/","c":"-1","d":"a,b]c"}"##,
            ),
            ("{\n  a: 1, # c\n  b: {c:\n 2}\n}", r#"{"a":"1","b":{"c":"2"}}"#),
            ("- - a\n  - b\n- - c", r#"[["a","b"],["c"]]"#),
            ("a: \"\"\nb: ''\nc:\n", r#"{"a":"","b":"","c":null}"#),
            ("", "null"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn values_are_written_once_and_meant_twice() {
        for (text, want) in [
            ("a: &x 1\nb: *x\n", r#"{"a":"1","b":"1"}"#),
            ("- &l [p, q]\n- *l\n", r#"[["p","q"],["p","q"]]"#),
            (
                "a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\n",
                r#"{"a":{"b":"1","c":"2"},"d":{"c":"3","b":"1"}}"#,
            ),
            (
                "- &x {a: 1}\n- &y {a: 2, b: 2}\n- {<<: [*x, *y], c: 3}\n",
                r#"[{"a":"1"},{"a":"2","b":"2"},{"c":"3","a":"1","b":"2"}]"#,
            ),
            (
                "- &x {a: 1}\n- &y {<<: *x, b: 2}\n- {<<: *y}\n",
                r#"[{"a":"1"},{"b":"2","a":"1"},{"b":"2","a":"1"}]"#,
            ),
            // A later anchor of the same name takes its place; one in quotes is a key like others.
            ("- &x 1\n- &x 2\n- *x\n- {'<<': 3}\n", r#"["1","2","2",{"<<":"3"}]"#),
            ("&k a: 1\nb: *k\n", r#"{"a":"1","b":"a"}"#),
        ] {
            assert_eq!(read(text).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn texts_over_several_lines_and_tags_are_read() {
        for (text, want) in [
            ("a: |\n  x\n  y\nb: >-\n  x\n  y\n", r#"{"a":"x\ny\n","b":"x y"}"#),
            ("a: \"one\n  two\"\nb: one\n  two\n", r#"{"a":"one two","b":"one two"}"#),
            ("- !!str 1\n- !!str null\n- !!null null\n- ! ~\n", r#"["1","null",null,"~"]"#),
            ("? a\n: b\n", r#"{"a":"b"}"#),
            ("%YAML 1.2\n---\na: b\n", r#"{"a":"b"}"#),
        ] {
            assert_eq!(read(text).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_refused_is_named() {
        for (text, want) in [
            ("- *x\n", "t:1:3: no anchor of this name stands in front of this alias\n  hint: a text that"),
            ("a: &x [*x]\n", "t:1:8: this alias stands within its own value"),
            ("a:\n  <<: x\n", "t:2:7: a merge key takes a mapping"),
            ("a: &x {b: 1}\nc:\n  <<: *x\n  <<: *x\n", "t:4:3: this key is there twice"),
            ("a: !foo 1\n", "t:1:4: this tag is not read"),
            ("a: !!binary aGk=\n", "t:1:4: this tag is not read"),
            ("a: 1\na: 2\n", "t:2:1: this key is there twice"),
            ("a: 1\n---\nb: 2\n", "t:2:1: a second document"),
            ("a:\n\tb: 1\n", "t:2:2: a tab before a value"),
            ("a: {b: 1\n", "t:1:4: nothing closes this bracket"),
            ("a: {b: [1\n}\n", "t:2:1: no `,` after the value"),
            ("a: {b: 1 c: 2}\n", "t:1:11: no `,` after the value"),
            ("a: \"b\n", "t:1:4: nothing closes this quote"),
            ("a: 'b", "t:1:4: nothing closes this quote"),
            ("a: \"\\q\"\n", "t:1:4: no escape begins like this\n  hint: single quotes"),
            ("a: \"\\ud800\"\n", "t:1:4: this escape is no character"),
            ("a: 'b' c\n", "t:1:8: more text after the value"),
            ("- a\nb: 1\n", "t:2:1: no key, and no entry of a list"),
            ("a:\n    b: 2\n  c: 3\n", "t:3:3: no key, and no entry of a list\n  hint: keys of one"),
            ("a: b: c\n", "t:1:5: more text after the value"),
            ("? [a]\n: b\n", "t:1:3: keys that are no texts"),
            ("a: @b\n", "t:1:4: no value begins like this"),
            ("\u{feff}é: 'ü' x\n", "t:1:9: more text after the value"),
        ] {
            let found = read(text).expect_err(text);
            assert!(found.starts_with(want), "{text}\n{found}");
        }
    }

    #[test]
    fn floods_and_bombs_end() {
        for open in ["[", "- ", "{a: ", "? "] {
            assert!(read(&open.repeat(10_000)).unwrap_err().contains("nested too deeply"), "{open}");
        }
        assert!(read(&format!("[{}]", "1,".repeat(200_000))).unwrap_err().contains("too many values"));
        // Each line stands for nine of the line above.
        let mut bomb = String::from("- &a0 [x]\n");
        for n in 1..20 {
            bomb.push_str(&format!("- &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(", ")));
        }
        assert!(read(&bomb).unwrap_err().contains("too many values"));
        let long = format!("- &a {}\n{}", "x".repeat(1 << 19), "- *a\n".repeat(10_000));
        assert!(read(&long).unwrap_err().contains("too many values"));
        let mut deep = String::from("- &a0 [x]\n");
        for n in 1..60 {
            deep.push_str(&format!("- &a{n} [*a{}]\n", n - 1));
        }
        assert!(read(&deep).unwrap_err().contains("nested too deeply"));
        assert!(read(&format!("a: {}", "x".repeat(MAX_LEN))).unwrap_err().contains("longer than 1024 KiB"));
    }

    #[test]
    fn an_anchor_may_stand_in_front_of_the_section() {
        let text = "x: &x {p: 1}\nproxies:\n- {<<: *x, q: 2}\nrules: @";
        let source = Source::new("t", text);
        let value = parse(&source, section(text, "proxies").unwrap()).unwrap();
        assert_eq!(plain(&value), r#"{"x":{"p":"1"},"proxies":[{"q":"2","p":"1"}]}"#);
        let text = "x: @\nproxies:\n- *y\n";
        let error = parse(&Source::new("t", text), section(text, "proxies").unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("t:1:4: no value begins like this"), "{error}");
        let text = "x: @\nproxies:\n- 'é' x\n";
        let error = parse(&Source::new("t", text), section(text, "proxies").unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("t:3:7: more text after the value"), "{error}");
    }

    #[test]
    fn a_section_ends_at_the_next_key() {
        let text = "port: 1\nproxies:\n# c\n- a: 1\n\n  b: 2\nrules: *x\n";
        assert_eq!(&text[section(text, "proxies").unwrap()], "proxies:\n# c\n- a: 1\n\n  b: 2\n");
        assert_eq!(section(text, "proxy"), None);
        let flow = "proxies: [\n  {a: 1}\n]\n";
        assert_eq!(section(flow, "proxies"), Some(0..flow.len()));
    }
}
