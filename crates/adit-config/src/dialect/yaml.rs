//! The part of YAML that lists of servers are written in, with the place of every key and value.
//!
//! ```text
//! node   := block sequence | block mapping | flow sequence | flow mapping | scalar
//! block  := '- ' node, or key ':' node, one below the other at one column; a sequence may stand at its key's column
//! flow   := '[' node, ... ']' | '{' key ':' node, ... '}'                 over as many lines as it likes
//! scalar := "..." with escapes | '...' with '' for ' | plain text         on one line
//! ```
//!
//! A scalar is a text, whatever it looks like; `~`, `null` and nothing at all are null. Comments, and `---` in front, are
//! skipped. Anchors, aliases, merge keys, tags, block scalars, texts over several lines, keys that are no scalars, tabs
//! before a key and a second document are refused by name: YAML as a whole takes a library of 73 KB (saphyr-parser
//! 0.0.6, built for size), and no list of servers needs it. Source: YAML 1.2.2.
//!
//! No message quotes any part of the text: what stands there may be a key.

use std::ops::Range;

use zeroize::Zeroizing;

use super::json::{Member, Node, Value};
use crate::diagnostic::Diagnostic;
use crate::source::Source;

/// Deepest nesting.
const MAX_DEPTH: usize = 32;

/// Most values in one text.
const MAX_VALUES: usize = 100_000;

/// Reads the part of a text that `range` spans.
///
/// # Errors
/// The first thing that is wrong with it, or is not read here.
pub(super) fn parse(source: &Source<'_>, range: Range<usize>) -> Result<Value, Diagnostic> {
    let mut parser = Parser { text: &source.text[..range.end], at: range.start, left: MAX_VALUES };
    let result = parser.document();
    result.map_err(|(at, problem)| Diagnostic::error(&source.file, "", problem).at(source.locate(at)))
}

/// What the top-level key `key` spans, from its line on to the next one at the left margin; `None` without such a key.
/// What stands under other keys does not matter then.
pub(super) fn section(text: &str, key: &str) -> Option<Range<usize>> {
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

/// Offset and problem.
type Wrong = (usize, &'static str);

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Values that may still come.
    left: usize,
}

impl<'a> Parser<'a> {
    fn document(&mut self) -> Result<Value, Wrong> {
        self.eat("\u{feff}");
        self.blank()?;
        if self.starts_marker("---") {
            self.at += 3;
            self.blank()?;
        }
        let value = self.block(0, 0)?;
        self.blank()?;
        if self.starts_marker("...") {
            self.at += 3;
            self.blank()?;
        }
        if self.starts_marker("---") {
            return Err((self.at, "a second document is not read"));
        }
        if self.rest().is_empty() { Ok(value) } else { Err((self.at, "no key, and no entry of a list")) }
    }

    /// The node that begins at or behind column `least`; null if there is none.
    fn block(&mut self, least: usize, depth: usize) -> Result<Value, Wrong> {
        self.blank()?;
        let (at, column) = (self.at, self.column());
        if self.rest().is_empty() || column < least || self.starts_marker("---") || self.starts_marker("...")
        {
            return Ok(Value { at, node: Node::Null });
        }
        self.count(depth)?;
        if self.is_dash() {
            return Ok(Value { at, node: Node::Array(self.block_sequence(column, depth)?) });
        }
        if self.is_mapping()? {
            return Ok(Value { at, node: Node::Object(self.block_mapping(column, depth)?) });
        }
        let value = self.inline(depth, false)?;
        self.end_of_line()?;
        Ok(value)
    }

    fn block_sequence(&mut self, column: usize, depth: usize) -> Result<Vec<Value>, Wrong> {
        let mut values = Vec::new();
        loop {
            self.blank()?;
            if self.rest().is_empty() || self.column() != column || !self.is_dash() {
                self.check_column(column)?;
                return Ok(values);
            }
            self.at += 1;
            values.push(self.block(column + 1, depth + 1)?);
        }
    }

    fn block_mapping(&mut self, column: usize, depth: usize) -> Result<Vec<Member>, Wrong> {
        let mut members: Vec<Member> = Vec::new();
        loop {
            self.blank()?;
            if self.rest().is_empty() || self.column() != column || self.is_dash() || !self.is_mapping()? {
                self.check_column(column)?;
                return Ok(members);
            }
            let at = self.at;
            let key = self.key(false, &members)?;
            self.spaces();
            let value = if self.is_line_end() {
                self.blank()?;
                // A list may stand at the column of its key.
                let least = if self.column() == column && self.is_dash() { column } else { column + 1 };
                self.block(least, depth + 1)?
            } else {
                self.count(depth + 1)?;
                let value = self.inline(depth + 1, false)?;
                self.end_of_line()?;
                value
            };
            members.push(Member { key, at, value });
        }
    }

    /// A key and its colon.
    fn key(&mut self, in_flow: bool, members: &[Member]) -> Result<String, Wrong> {
        let at = self.at;
        let text = self.scalar(in_flow)?;
        self.spaces();
        if !self.eat(":") {
            return Err((self.at, "no `:` after the key"));
        }
        if *text == "<<" {
            return Err((at, "merge keys are not read: write the keys out"));
        }
        if members.iter().any(|member| member.key == *text) {
            return Err((at, "this key is there twice"));
        }
        Ok(text.to_string())
    }

    /// A value that begins on this line.
    fn inline(&mut self, depth: usize, in_flow: bool) -> Result<Value, Wrong> {
        let at = self.at;
        let node = match self.peek() {
            Some('{') => Node::Object(self.flow_mapping(depth)?),
            Some('[') => Node::Array(self.flow_sequence(depth)?),
            quote => {
                let text = self.scalar(in_flow)?;
                let is_plain = !matches!(quote, Some('"' | '\''));
                let is_null = is_plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL");
                if is_null { Node::Null } else { Node::Text(text) }
            }
        };
        Ok(Value { at, node })
    }

    fn flow_mapping(&mut self, depth: usize) -> Result<Vec<Member>, Wrong> {
        let open = self.at;
        self.at += 1;
        let mut members = Vec::new();
        loop {
            self.blank_in(open)?;
            if self.eat("}") {
                return Ok(members);
            }
            let at = self.at;
            let key = self.key(true, &members)?;
            self.blank_in(open)?;
            let value = self.flow_value(depth)?;
            members.push(Member { key, at, value });
            self.separator(open, '}')?;
        }
    }

    fn flow_sequence(&mut self, depth: usize) -> Result<Vec<Value>, Wrong> {
        let open = self.at;
        self.at += 1;
        let mut values = Vec::new();
        loop {
            self.blank_in(open)?;
            if self.eat("]") {
                return Ok(values);
            }
            values.push(self.flow_value(depth)?);
            self.separator(open, ']')?;
        }
    }

    fn flow_value(&mut self, depth: usize) -> Result<Value, Wrong> {
        self.count(depth + 1)?;
        if matches!(self.peek(), Some(',' | '}' | ']')) {
            return Ok(Value { at: self.at, node: Node::Null });
        }
        self.inline(depth + 1, true)
    }

    fn separator(&mut self, open: usize, close: char) -> Result<(), Wrong> {
        self.blank_in(open)?;
        if self.eat(",") || self.peek() == Some(close) {
            return Ok(());
        }
        Err((self.at, "no `,` after the value"))
    }

    fn scalar(&mut self, in_flow: bool) -> Result<Zeroizing<String>, Wrong> {
        match self.peek() {
            Some('"') => self.double_quoted(),
            Some('\'') => self.single_quoted(),
            Some(_) | None => self.plain(in_flow),
        }
    }

    fn plain(&mut self, in_flow: bool) -> Result<Zeroizing<String>, Wrong> {
        let (at, len) = (self.at, self.plain_len(in_flow));
        match self.peek() {
            Some('&' | '*') => return Err((at, "anchors and aliases are not read: write the value out")),
            Some('!') => return Err((at, "tags are not read")),
            Some('|' | '>') => return Err((at, "texts over several lines are not read: use quotes")),
            Some('%' | '@' | '`') => return Err((at, "no value begins like this: use quotes")),
            Some('?') if self.text[at + 1..].starts_with([' ', '\t', '\n', '\r']) => {
                return Err((at, "keys that are no texts are not read"));
            }
            Some(',' | '[' | ']' | '{' | '}') if len > 0 => {
                return Err((at, "no value begins like this: use quotes"));
            }
            _ => {}
        }
        self.at += len;
        Ok(Zeroizing::new(self.text[at..self.at].to_owned()))
    }

    /// Bytes of the plain scalar that begins here.
    fn plain_len(&self, in_flow: bool) -> usize {
        let rest = self.rest();
        let mut before = ' ';
        for (at, c) in rest.char_indices() {
            let next = rest[at + c.len_utf8()..].chars().next();
            let ends = match c {
                '\n' | '\r' => true,
                '#' => before == ' ' || before == '\t',
                ':' => next.is_none_or(|next| next.is_whitespace() || in_flow && is_flow(next)),
                c => in_flow && is_flow(c),
            };
            if ends {
                return rest[..at].trim_end_matches([' ', '\t']).len();
            }
            before = c;
        }
        rest.trim_end_matches([' ', '\t']).len()
    }

    fn single_quoted(&mut self) -> Result<Zeroizing<String>, Wrong> {
        let open = self.at;
        self.at += 1;
        let mut out = Zeroizing::new(String::with_capacity(self.line_len()));
        loop {
            match self.next(open)? {
                '\'' if self.eat("'") => out.push('\''),
                '\'' => return Ok(out),
                c => out.push(c),
            }
        }
    }

    fn double_quoted(&mut self) -> Result<Zeroizing<String>, Wrong> {
        let open = self.at;
        self.at += 1;
        // Escapes are longer than what they stand for, but for two that make three bytes of two or four.
        let mut out = Zeroizing::new(String::with_capacity(2 * self.line_len()));
        loop {
            match self.next(open)? {
                '"' => return Ok(out),
                '\\' => {
                    let c = self.escape(open)?;
                    out.push(c);
                }
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self, open: usize) -> Result<char, Wrong> {
        let at = self.at - 1;
        let digits = match self.next(open)? {
            '0' => return Ok('\0'),
            'a' => return Ok('\u{7}'),
            'b' => return Ok('\u{8}'),
            't' | '\t' => return Ok('\t'),
            'n' => return Ok('\n'),
            'v' => return Ok('\u{b}'),
            'f' => return Ok('\u{c}'),
            'r' => return Ok('\r'),
            'e' => return Ok('\u{1b}'),
            'N' => return Ok('\u{85}'),
            '_' => return Ok('\u{a0}'),
            'L' => return Ok('\u{2028}'),
            'P' => return Ok('\u{2029}'),
            c @ (' ' | '"' | '/' | '\\') => return Ok(c),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err((at, "no escape begins like this")),
        };
        let text = self.rest().get(..digits).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = text.and_then(|text| u32::from_str_radix(text, 16).ok()).and_then(char::from_u32);
        self.at += digits;
        code.ok_or((at, "this escape is no character"))
    }

    /// The next character of a quoted text.
    fn next(&mut self, open: usize) -> Result<char, Wrong> {
        match self.peek() {
            Some('\n' | '\r') => Err((open, "texts over several lines are not read")),
            Some(c) => {
                self.at += c.len_utf8();
                Ok(c)
            }
            None => Err((open, "nothing closes this quote")),
        }
    }

    /// Whether a key and a colon begin here.
    fn is_mapping(&mut self) -> Result<bool, Wrong> {
        let at = self.at;
        match self.peek() {
            Some('{' | '[') => return Ok(false),
            Some('"') => drop(self.double_quoted()?),
            Some('\'') => drop(self.single_quoted()?),
            Some(_) | None => self.at += self.plain_len(false),
        }
        self.spaces();
        let found = self.peek() == Some(':');
        self.at = at;
        Ok(found)
    }

    /// What stands further to the right than it may belongs to nothing.
    fn check_column(&self, column: usize) -> Result<(), Wrong> {
        if !self.rest().is_empty() && self.column() > column {
            return Err((self.at, "this line is indented further than what it stands below"));
        }
        Ok(())
    }

    fn is_dash(&self) -> bool {
        let mut chars = self.rest().chars();
        chars.next() == Some('-') && chars.next().is_none_or(char::is_whitespace)
    }

    fn starts_marker(&self, marker: &str) -> bool {
        let rest = self.rest().strip_prefix(marker);
        self.column() == 0 && rest.is_some_and(|rest| rest.chars().next().is_none_or(char::is_whitespace))
    }

    fn is_line_end(&self) -> bool {
        matches!(self.peek(), None | Some('#' | '\n' | '\r'))
    }

    /// What follows a value on its line can only be a comment.
    fn end_of_line(&mut self) -> Result<(), Wrong> {
        self.spaces();
        if self.is_line_end() { Ok(()) } else { Err((self.at, "more text after the value")) }
    }

    fn spaces(&mut self) {
        self.at = self.text.len() - self.rest().trim_start_matches([' ', '\t']).len();
    }

    /// As [`Self::blank`] inside brackets, which must be closed.
    fn blank_in(&mut self, open: usize) -> Result<(), Wrong> {
        self.blank()?;
        if self.rest().is_empty() { Err((open, "nothing closes this bracket")) } else { Ok(()) }
    }

    /// Skips spaces, line ends and comments.
    fn blank(&mut self) -> Result<(), Wrong> {
        loop {
            let rest = self.rest().trim_start_matches([' ', '\t', '\r', '\n']);
            let at = self.text.len() - rest.len();
            let skipped = &self.text[self.at..at];
            let is_margin = self.at == 0 || self.text.as_bytes()[self.at - 1] == b'\n';
            let line = skipped.rfind('\n').map(|end| end + 1).or_else(|| is_margin.then_some(0));
            if let Some(line) = line
                && skipped[line..].contains('\t')
                && !rest.is_empty()
                && !rest.starts_with('#')
            {
                return Err((self.at + line, "a tab before a value: use spaces"));
            }
            self.at = at;
            if !rest.starts_with('#') {
                return Ok(());
            }
            self.at += rest.find('\n').unwrap_or(rest.len());
        }
    }

    fn count(&mut self, depth: usize) -> Result<(), Wrong> {
        if depth > MAX_DEPTH {
            return Err((self.at, "nested too deeply"));
        }
        self.left = self.left.checked_sub(1).ok_or((self.at, "too many values"))?;
        Ok(())
    }

    /// Characters in front on the same line, a byte order mark not counted.
    fn column(&self) -> usize {
        let start = self.text[..self.at].rfind('\n').map_or(0, |end| end + 1);
        self.text[start..self.at].chars().filter(|c| *c != '\u{feff}').count()
    }

    fn line_len(&self) -> usize {
        self.rest().find('\n').unwrap_or_else(|| self.rest().len())
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
}

fn is_flow(c: char) -> bool {
    matches!(c, ',' | '[' | ']' | '{' | '}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::json::quote;

    /// The value as JSON.
    fn plain(value: &Value) -> String {
        match &value.node {
            Node::Null => "null".to_owned(),
            Node::Bool(on) => on.to_string(),
            Node::Number(number) => number.to_string(),
            Node::Text(text) => quote(text),
            Node::Array(values) => format!("[{}]", values.iter().map(plain).collect::<Vec<_>>().join(",")),
            Node::Object(members) => {
                let members = members.iter().map(|m| format!("{}:{}", quote(&m.key), plain(&m.value)));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            }
        }
    }

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
    fn what_is_refused_is_named() {
        for (text, want) in [
            ("a: &x 1\n", "t:1:4: anchors and aliases"),
            ("- *x\n", "t:1:3: anchors and aliases"),
            ("a:\n  <<: x\n", "t:2:3: merge keys are not read"),
            ("a: !!str 1\n", "t:1:4: tags are not read"),
            ("a: |\n  text\n", "t:1:4: texts over several lines"),
            ("a: \"one\n  two\"\n", "t:1:4: texts over several lines"),
            ("a: one\n  two\n", "t:2:3: this line is indented further"),
            ("a: 1\na: 2\n", "t:2:1: this key is there twice"),
            ("a: 1\n---\nb: 2\n", "t:2:1: a second document"),
            ("\ta: 1\n", "t:1:1: a tab before a value"),
            ("a: {b: 1\n", "t:1:4: nothing closes this bracket"),
            ("a: {b: 1 c: 2}\n", "t:1:11: no `,` after the value"),
            ("a: \"b\n", "t:1:4: texts over several lines"),
            ("a: 'b", "t:1:4: nothing closes this quote"),
            ("a: \"\\q\"\n", "t:1:5: no escape"),
            ("a: \"\\ud800\"\n", "t:1:5: this escape is no character"),
            ("a: 'b' c\n", "t:1:8: more text after the value"),
            ("- a\nb: 1\n", "t:2:1: no key, and no entry of a list"),
            ("a: b: c\n", "t:1:5: more text after the value"),
            ("? a\n: b\n", "t:1:1: keys that are no texts"),
            ("a: @b\n", "t:1:4: no value begins like this"),
        ] {
            let found = read(text).expect_err(text);
            assert!(found.starts_with(want), "{text}\n{found}");
        }
        assert!(read(&"[".repeat(10_000)).unwrap_err().contains("nested too deeply"));
        assert!(read(&"- ".repeat(10_000)).unwrap_err().contains("nested too deeply"));
        assert!(read(&format!("[{}]", "1,".repeat(200_000))).unwrap_err().contains("too many values"));
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
