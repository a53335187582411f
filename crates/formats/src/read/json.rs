//! JSON as the programs write it, with the place of every key and value.
//!
//! ```text
//! value  := null | true | false | number | string | '[' (value (',' value)*)? ','? ']'
//!         | '{' (member (',' member)*)? ','? '}'
//! member := string ':' value                            a comma may follow the last one in both grammars
//! ```
//!
//! | | [`Grammar::Lax`], shadowsocks-libev 3.3.5 | [`Grammar::Json5`], shadowsocks-rust 1.25 |
//! |---|---|---|
//! | comments | no | `// line`, `/* block */` |
//! | keys | strings | strings and bare names |
//! | strings | `"..."`, a `\` before anything else is dropped | `'...'` too, `\x41`, `\` at the end of a line |
//! | numbers | decimal | hexadecimal, `+1`, `.5`, `5.`, `Infinity`, `NaN` |
//!
//! A byte order mark in front is skipped. No message quotes any part of the text: what stands there may be a key.

use std::fmt;

use adit_model::diagnostic::Diagnostic;
use zeroize::Zeroizing;

use crate::read::source::Source;

/// Deepest nesting: SIP008 and all configuration files need four levels.
const MAX_DEPTH: usize = 32;

/// Most values in one text.
const MAX_VALUES: usize = 100_000;

/// The grammar of JSON that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grammar {
    /// Strict but for the comma at the end.
    Lax,
    /// JSON5.
    Json5,
}

/// A value and the byte offset at which it begins.
#[derive(Clone, PartialEq)]
pub(crate) struct JsonValue {
    pub(crate) at: usize,
    pub(crate) node: Node,
}

/// The contents of a value.
#[derive(Clone, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    /// As it is written.
    Number(Box<str>),
    Text(Zeroizing<String>),
    Array(Vec<JsonValue>),
    Object(Vec<JsonMember>),
}

/// One entry of an object.
#[derive(Clone, PartialEq)]
pub(crate) struct JsonMember {
    pub(crate) key: String,
    pub(crate) at: usize,
    pub(crate) value: JsonValue,
}

/// Values may be keys, so they are not shown.
impl fmt::Debug for JsonValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.node.kind(), self.at)
    }
}

impl Node {
    /// Name of the kind in messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a truth value",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Array(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// A whole number as it is written, decimal or hexadecimal.
pub(crate) fn whole(number: &str) -> Option<u64> {
    let number = number.strip_prefix('+').unwrap_or(number);
    match number.strip_prefix("0x").or_else(|| number.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => number.parse().ok().filter(|_| !number.starts_with('+')),
    }
}

/// Reads a whole text.
///
/// # Errors
/// The first thing that is wrong with its form.
pub(crate) fn parse(source: &Source<'_>, grammar: Grammar) -> Result<JsonValue, Diagnostic> {
    parse_up_to(source, grammar, MAX_VALUES)
}

/// The same for a text that may have another number of values.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_up_to(
    source: &Source<'_>,
    grammar: Grammar,
    values: usize,
) -> Result<JsonValue, Diagnostic> {
    let mut parser = Parser { text: source.text, at: 0, grammar, left: values };
    let result = parser.document();
    result.map_err(|(at, problem)| Diagnostic::error(&source.file, "", problem).at(source.locate(at)))
}

/// Reads the first value of a text; what follows is ignored.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_first(source: &Source<'_>, grammar: Grammar) -> Result<JsonValue, Diagnostic> {
    let mut parser = Parser { text: source.text, at: 0, grammar, left: MAX_VALUES };
    let result = parser.first();
    result.map_err(|(at, problem)| Diagnostic::error(&source.file, "", problem).at(source.locate(at)))
}

/// Offset and problem.
type Wrong = (usize, &'static str);

struct Parser<'a> {
    text: &'a str,
    at: usize,
    grammar: Grammar,
    /// Values that may still come.
    left: usize,
}

impl<'a> Parser<'a> {
    fn first(&mut self) -> Result<JsonValue, Wrong> {
        self.eat("\u{feff}");
        self.space()?;
        if self.rest().is_empty() {
            return Err((self.at, "the file is empty"));
        }
        self.value(0)
    }

    fn document(&mut self) -> Result<JsonValue, Wrong> {
        let value = self.first()?;
        self.space()?;
        if self.rest().is_empty() { Ok(value) } else { Err((self.at, "more text after the end")) }
    }

    fn value(&mut self, depth: usize) -> Result<JsonValue, Wrong> {
        let at = self.at;
        if depth > MAX_DEPTH {
            return Err((at, "nested too deeply"));
        }
        self.left = self.left.checked_sub(1).ok_or((at, "too many values"))?;
        let node = match self.peek() {
            Some('{') => Node::Object(self.object(depth)?),
            Some('[') => Node::Array(self.array(depth)?),
            Some('"') => Node::Text(self.string('"')?),
            Some('\'') if self.json5() => Node::Text(self.string('\'')?),
            Some(_) => self.word()?,
            None => return Err((at, "the text ends where a value must be")),
        };
        Ok(JsonValue { at, node })
    }

    fn object(&mut self, depth: usize) -> Result<Vec<JsonMember>, Wrong> {
        let open = self.at;
        self.at += 1;
        let mut members = Vec::new();
        loop {
            self.space()?;
            if self.eat("}") {
                return Ok(members);
            }
            let at = self.at;
            let key = self.key(open)?;
            self.space()?;
            if !self.eat(":") {
                return Err((self.at, "no `:` after the key"));
            }
            self.space()?;
            let value = self.value(depth + 1)?;
            members.push(JsonMember { key, at, value });
            self.space()?;
            if !self.eat(",") && self.peek() != Some('}') {
                return Err(self.open_ended(open, "no `,` or `}` after the value"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Vec<JsonValue>, Wrong> {
        let open = self.at;
        self.at += 1;
        let mut values = Vec::new();
        loop {
            self.space()?;
            if self.eat("]") {
                return Ok(values);
            }
            if self.rest().is_empty() {
                return Err((open, "nothing closes this bracket"));
            }
            values.push(self.value(depth + 1)?);
            self.space()?;
            if !self.eat(",") && self.peek() != Some(']') {
                return Err(self.open_ended(open, "no `,` or `]` after the value"));
            }
        }
    }

    /// If the text has ended, the opening bracket is the better place.
    fn open_ended(&self, open: usize, problem: &'static str) -> Wrong {
        if self.rest().is_empty() { (open, "nothing closes this bracket") } else { (self.at, problem) }
    }

    fn key(&mut self, open: usize) -> Result<String, Wrong> {
        match self.peek() {
            Some('"') => Ok((*self.string('"')?).clone()),
            Some('\'') if self.json5() => Ok((*self.string('\'')?).clone()),
            Some(c) if self.json5() && is_name(c) && !c.is_ascii_digit() => {
                let rest = self.rest();
                let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                self.at += end;
                Ok(rest[..end].to_owned())
            }
            Some('/') if !self.json5() => Err((self.at, "this dialect has no comments")),
            Some(_) => Err((self.at, "no key where one must be")),
            None => Err((open, "nothing closes this bracket")),
        }
    }

    fn string(&mut self, quote: char) -> Result<Zeroizing<String>, Wrong> {
        let open = self.at;
        self.at += 1;
        let mut out = Zeroizing::new(String::with_capacity(32));
        loop {
            let at = self.at;
            let c = self.next().ok_or((open, "nothing closes this quote"))?;
            match c {
                c if c == quote => return Ok(out),
                '\\' => self.escape(at, &mut out)?,
                '\n' | '\r' if self.json5() => return Err((open, "nothing closes this quote on its line")),
                c => push(&mut out, c),
            }
        }
    }

    fn escape(&mut self, at: usize, out: &mut Zeroizing<String>) -> Result<(), Wrong> {
        let c = self.next().ok_or((at, "the text ends after a backslash"))?;
        let plain = match c {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => self.utf16(at)?,
            'v' if self.json5() => '\u{b}',
            '0' if self.json5() => '\0',
            'x' if self.json5() => {
                char::from_u32(self.hex(2, at)?).ok_or((at, "this escape is no character"))?
            }
            '\r' if self.json5() => {
                self.eat("\n");
                return Ok(());
            }
            '\n' | '\u{2028}' | '\u{2029}' if self.json5() => return Ok(()),
            c => c,
        };
        push(out, plain);
        Ok(())
    }

    /// The rest of `\uXXXX`, of which a second one follows for characters outside the first plane.
    fn utf16(&mut self, at: usize) -> Result<char, Wrong> {
        let first = self.hex(4, at)?;
        let code = match first {
            0xd800..=0xdbff if self.eat("\\u") => {
                let second = self.hex(4, at)?;
                let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400);
                0x10000 + ((first - 0xd800) << 10) + low.ok_or((at, "half of a surrogate pair"))?
            }
            code => code,
        };
        char::from_u32(code).ok_or((at, "half of a surrogate pair"))
    }

    fn hex(&mut self, digits: usize, at: usize) -> Result<u32, Wrong> {
        let text = self.rest().get(..digits).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let text = text.ok_or((at, "hexadecimal digits must follow"))?;
        self.at += digits;
        u32::from_str_radix(text, 16).map_err(|_| (at, "hexadecimal digits must follow"))
    }

    /// A number or a name of a value.
    fn word(&mut self) -> Result<Node, Wrong> {
        let (at, rest) = (self.at, self.rest());
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '-' | '.' | '_'));
        let word = &rest[..end.unwrap_or(rest.len())];
        let node = match word {
            "null" => Node::Null,
            "true" => Node::Bool(true),
            "false" => Node::Bool(false),
            "" if rest.starts_with('/') && !self.json5() => return Err((at, "this dialect has no comments")),
            "" => return Err((at, "no value where one must be")),
            _ if self.is_number(word) => Node::Number(word.into()),
            _ => return Err((at, "neither a number nor true, false or null; texts stand in quotes")),
        };
        self.at += word.len();
        Ok(node)
    }

    fn is_number(&self, word: &str) -> bool {
        let digits = word.strip_prefix('-').unwrap_or(word);
        if !self.json5() {
            return digits.starts_with(|c: char| c.is_ascii_digit())
                && !digits.ends_with('.')
                && digits.parse::<f64>().is_ok();
        }
        let digits = if digits.len() == word.len() { word.strip_prefix('+').unwrap_or(word) } else { digits };
        if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            return !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit());
        }
        let starts = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        matches!(digits, "Infinity" | "NaN") || (starts && digits.parse::<f64>().is_ok())
    }

    /// Skips what means nothing.
    fn space(&mut self) -> Result<(), Wrong> {
        loop {
            let trimmed = if self.json5() {
                self.rest().trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}')
            } else {
                self.rest().trim_start_matches([' ', '\t', '\r', '\n'])
            };
            self.at = self.text.len() - trimmed.len();
            if !self.json5() {
                return Ok(());
            }
            let at = self.at;
            if self.eat("//") {
                let rest = self.rest();
                self.at += rest.find(['\n', '\r', '\u{2028}', '\u{2029}']).unwrap_or(rest.len());
            } else if self.eat("/*") {
                self.at += 2 + self.rest().find("*/").ok_or((at, "nothing closes this comment"))?;
            } else {
                return Ok(());
            }
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn json5(&self) -> bool {
        self.grammar == Grammar::Json5
    }
}

/// Grows by hand, so that no copy of a half-read key is left behind in memory.
fn push(out: &mut Zeroizing<String>, c: char) {
    if out.len() + c.len_utf8() > out.capacity() {
        let mut grown = Zeroizing::new(String::with_capacity(out.capacity() * 2 + 8));
        grown.push_str(out);
        *out = grown;
    }
    out.push(c);
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$')
}

/// A text as a JSON string.
pub(crate) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The value as strict JSON, numbers as they were written.
#[cfg(test)]
pub(crate) fn plain(value: &JsonValue) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(grammar: Grammar, text: &str) -> Result<String, String> {
        parse(&Source::new("t", text), grammar).map(|v| plain(&v)).map_err(|e| e.to_string())
    }

    #[test]
    fn what_both_read() {
        for (text, want) in [
            ("{}", "{}"),
            (" [ 1 , -2.5e3 , null , true , false ] ", "[1,-2.5e3,null,true,false]"),
            ("{\"a\":{\"b\":[]},}", "{\"a\":{\"b\":[]}}"),
            ("[1,]", "[1]"),
            ("\u{feff}{\"a\":\"\\u0041\\ud83d\\ude00\\n\\q\\\"\"}", "{\"a\":\"A😀\\nq\\\"\"}"),
            ("{\"a\":1,\"a\":2}", "{\"a\":1,\"a\":2}"),
        ] {
            for grammar in [Grammar::Lax, Grammar::Json5] {
                assert_eq!(read(grammar, text).as_deref(), Ok(want), "{text}");
            }
        }
    }

    #[test]
    fn what_json5_alone_reads() {
        for (text, want) in [
            ("// c\n{a: 1, /* d */ $b_2: 'x\"y',} // e", "{\"a\":1,\"$b_2\":\"x\\\"y\"}"),
            ("['\\x41\\v\\0a\\\nb\\\r\nc\\'']", "[\"A\\u000b\\u0000abc'\"]"),
            ("[0xFF, +1, .5, 5., Infinity, -Infinity, NaN]", "[0xFF,+1,.5,5.,Infinity,-Infinity,NaN]"),
            ("\u{a0}[\u{2003}]", "[]"),
        ] {
            assert_eq!(read(Grammar::Json5, text).as_deref(), Ok(want), "{text}");
            assert!(read(Grammar::Lax, text).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_say_where() {
        for (text, want) in [
            ("", "t:1:1: the file is empty\n"),
            ("{\n  \"a\" 1}", "t:2:7: no `:` after the key\n"),
            ("{\"a\":1 \"b\":2}", "t:1:8: no `,` or `}` after the value\n"),
            ("{\"a\":[1,\n", "t:1:6: nothing closes this bracket\n"),
            ("{\"a\":1", "t:1:1: nothing closes this bracket\n"),
            ("{\"a", "t:1:2: nothing closes this quote\n"),
            ("{,}", "t:1:2: no key where one must be\n"),
            ("{\"a\":secret}", "t:1:6: neither a number nor true, false or null; texts stand in quotes\n"),
            ("{} x", "t:1:4: more text after the end\n"),
            ("{\"a\":\"\\ud800\"}", "t:1:7: half of a surrogate pair\n"),
            ("{\"a\":\"\\u12\"}", "t:1:7: hexadecimal digits must follow\n"),
            ("[1 // x\n]", "t:1:4: no `,` or `]` after the value\n"),
            ("// x\n{}", "t:1:1: this dialect has no comments\n"),
        ] {
            let found = read(Grammar::Lax, text).unwrap_err();
            assert!(found.starts_with(want), "{text}\n{found}");
        }
        assert_eq!(read(Grammar::Json5, "[/*").unwrap_err(), "t:1:2: nothing closes this comment\n");
        assert_eq!(
            read(Grammar::Json5, "['a\n']").unwrap_err(),
            "t:1:2: nothing closes this quote on its line\n"
        );
    }

    #[test]
    fn floods_end() {
        assert_eq!(read(Grammar::Lax, &"[".repeat(100_000)).unwrap_err(), "t:1:34: nested too deeply\n");
        assert!(read(Grammar::Lax, &format!("[{}]", "1,".repeat(200_000))).unwrap_err().contains("too many"));
    }

    #[test]
    fn whole_numbers() {
        for (text, want) in
            [("0", Some(0)), ("8388", Some(8388)), ("0x1F", Some(31)), ("+5", Some(5)), ("-1", None)]
        {
            assert_eq!(whole(text), want, "{text}");
        }
        for text in ["1.5", "1e3", "", "0x", "++1", "+0x+1", "99999999999999999999"] {
            assert_eq!(whole(text), None, "{text}");
        }
    }
}
