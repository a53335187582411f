//! JSON as Go's `encoding/json` reads and writes it, for messages that are one object of plain members.
//!
//! Reading: a member's name in any case counts, unknown members do not, the last of two wins, `null` leaves a member
//! as it was, a wrong byte of UTF-8 and half a surrogate pair become U+FFFD. Errors have Go's words, since brokers
//! hand them to clients. Writing: `<`, `>`, `&`, U+2028 and U+2029 are escaped.

use std::fmt;

/// Deepest nesting (`maxNestingDepth` of Go).
const MAX_DEPTH: usize = 10_000;

/// A text that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonError {
    /// The text ends too early.
    End,
    /// A byte that may not stand there.
    Invalid {
        /// The byte.
        byte: u8,
        /// The place, in Go's words.
        place: &'static str,
    },
    /// Nesting deeper than 10,000.
    Depth,
    /// A value of another kind than its member has.
    Kind {
        /// The kind that was found.
        found: &'static str,
        /// The member, or an empty name for the whole text.
        member: &'static str,
        /// The kind that the member has.
        wanted: &'static str,
    },
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("unexpected end of JSON input"),
            Self::Invalid { byte, place } => {
                write!(f, "invalid character {} {place}", quoted(*byte))
            }
            Self::Depth => f.write_str("exceeded max depth"),
            Self::Kind { found, member, wanted } => {
                write!(f, "json: cannot unmarshal {found} into member {member:?} of type {wanted}")
            }
        }
    }
}

impl std::error::Error for JsonError {}

/// A byte as Go prints it in errors.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".into(),
        b'"' => "'\"'".into(),
        b'\\' => r"'\\'".into(),
        b'\n' => r"'\n'".into(),
        b'\r' => r"'\r'".into(),
        b'\t' => r"'\t'".into(),
        0..=0x1f | 0x7f => format!(r"'\x{byte:02x}'"),
        0x80..=0x9f | 0xad => format!(r"'\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

/// The members of an object, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object(Vec<(String, Value)>);

/// A member's value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Null,
    Text(String),
    Number(String),
    Other(&'static str),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Text(_) => "string",
            Self::Number(_) => "number",
            Self::Other(kind) => kind,
        }
    }
}

impl Object {
    /// Reads a text that holds one object, or `null`, which is an object without members.
    ///
    /// # Errors
    /// See [`JsonError`]. The whole text is checked, unknown members too.
    pub fn parse(text: &[u8]) -> Result<Self, JsonError> {
        let mut scanner = Scanner { text, at: 0 };
        scanner.check_value()?;
        scanner.skip_blank();
        if let Some(byte) = scanner.peek() {
            return Err(JsonError::Invalid { byte, place: "after top-level value" });
        }
        scanner.at = 0;
        scanner.skip_blank();
        let found = match scanner.peek() {
            Some(b'{') => return scanner.members().map(Self),
            Some(b'n') => return Ok(Self(Vec::new())),
            Some(b'[') => "array",
            Some(b'"') => "string",
            Some(b't' | b'f') => "bool",
            _ => "number",
        };
        Err(JsonError::Kind { found, member: "", wanted: "object" })
    }

    /// The member of this name, in any case, as a text.
    ///
    /// # Errors
    /// [`JsonError::Kind`] when one of the members of this name has another kind.
    pub fn text(&self, name: &'static str) -> Result<Option<&str>, JsonError> {
        let mut found = None;
        for (_, value) in self.0.iter().filter(|(key, _)| is_name(key, name)) {
            match value {
                Value::Null => {}
                Value::Text(text) => found = Some(text.as_str()),
                Value::Number(_) | Value::Other(_) => {
                    return Err(JsonError::Kind { found: value.kind(), member: name, wanted: "string" });
                }
            }
        }
        Ok(found)
    }

    /// The same for a member that `null` takes away (a pointer in Go).
    ///
    /// # Errors
    /// As [`Object::text`].
    pub fn optional_text(&self, name: &'static str) -> Result<Option<&str>, JsonError> {
        let last = self.0.iter().rev().find(|(key, _)| is_name(key, name));
        let text = self.text(name)?;
        Ok(text.filter(|_| last.is_some_and(|(_, value)| *value != Value::Null)))
    }

    /// The member of this name as an integer of 64 bits.
    ///
    /// # Errors
    /// [`JsonError::Kind`] when one of the members of this name has another kind, a fraction or too many digits.
    pub fn integer(&self, name: &'static str) -> Result<Option<i64>, JsonError> {
        let mut found = None;
        for (_, value) in self.0.iter().filter(|(key, _)| is_name(key, name)) {
            let wrong = || JsonError::Kind { found: value.kind(), member: name, wanted: "int" };
            match value {
                Value::Null => {}
                Value::Number(digits) => found = Some(digits.parse().map_err(|_| wrong())?),
                Value::Text(_) | Value::Other(_) => return Err(wrong()),
            }
        }
        Ok(found)
    }

    /// The first member that has none of these names, in any case.
    pub fn unknown_member<'a>(&'a self, names: &[&str]) -> Option<&'a str> {
        let is_known = |key: &str| names.iter().any(|name| is_name(key, name));
        self.0.iter().map(|(key, _)| key.as_str()).find(|key| !is_known(key))
    }

    /// The last member of exactly this name: `Some(None)` when it is no text (a map in Go).
    pub fn exact_text(&self, name: &str) -> Option<Option<&str>> {
        let (_, value) = self.0.iter().rev().find(|(key, _)| key == name)?;
        match value {
            Value::Text(text) => Some(Some(text)),
            Value::Null | Value::Number(_) | Value::Other(_) => Some(None),
        }
    }
}

/// Whether two names are the same without regard to case. Two letters beyond ASCII fold to letters of ASCII.
fn is_name(key: &str, name: &str) -> bool {
    let fold = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key.chars().map(fold).eq(name.chars().map(fold))
}

/// A place in a text.
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn invalid<T>(&self, place: &'static str) -> Result<T, JsonError> {
        match self.peek() {
            Some(byte) => Err(JsonError::Invalid { byte, place }),
            None => Err(JsonError::End),
        }
    }

    /// Goes over one value, of any depth, without recursion.
    fn check_value(&mut self) -> Result<(), JsonError> {
        let mut open: Vec<u8> = Vec::new();
        loop {
            self.skip_blank();
            let begun = self.peek();
            match begun {
                Some(bracket @ (b'{' | b'[')) => {
                    self.at += 1;
                    self.skip_blank();
                    let close = if bracket == b'{' { b'}' } else { b']' };
                    if self.peek() == Some(close) {
                        self.at += 1;
                    } else {
                        open.push(bracket);
                        if open.len() > MAX_DEPTH {
                            return Err(JsonError::Depth);
                        }
                        if bracket == b'{' {
                            self.check_key()?;
                        }
                        continue;
                    }
                }
                Some(b'"') => self.check_string()?,
                Some(b'-' | b'0'..=b'9') => self.check_number()?,
                Some(b't') => self.check_word("true")?,
                Some(b'f') => self.check_word("false")?,
                Some(b'n') => self.check_word("null")?,
                _ => return self.invalid("looking for beginning of value"),
            }
            if self.check_after(&mut open)? {
                return Ok(());
            }
        }
    }

    /// Goes on behind a value: true when it was the outermost, false when another one follows.
    fn check_after(&mut self, open: &mut Vec<u8>) -> Result<bool, JsonError> {
        loop {
            let Some(bracket) = open.last().copied() else { return Ok(true) };
            self.skip_blank();
            match (bracket, self.peek()) {
                (b'{', Some(b'}')) | (b'[', Some(b']')) => {
                    self.at += 1;
                    open.pop();
                }
                (b'{', Some(b',')) => {
                    self.at += 1;
                    self.check_key()?;
                    return Ok(false);
                }
                (b'[', Some(b',')) => {
                    self.at += 1;
                    return Ok(false);
                }
                (b'{', _) => return self.invalid("after object key:value pair"),
                _ => return self.invalid("after array element"),
            }
        }
    }

    /// Goes over a member's name and its colon.
    fn check_key(&mut self) -> Result<(), JsonError> {
        self.skip_blank();
        if self.peek() != Some(b'"') {
            return self.invalid("looking for beginning of object key string");
        }
        self.check_string()?;
        self.skip_blank();
        if self.peek() != Some(b':') {
            return self.invalid("after object key");
        }
        self.at += 1;
        Ok(())
    }

    fn check_string(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                        Some(b'u') => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                                    return self.invalid("in \\u hexadecimal character escape");
                                }
                                self.at += 1;
                            }
                        }
                        _ => return self.invalid("in string escape code"),
                    }
                }
                Some(0x20..) => self.at += 1,
                _ => return self.invalid("in string literal"),
            }
        }
    }

    fn check_number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.skip_digits(),
            _ => return self.invalid("in numeric literal"),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.check_digits("after decimal point in numeric literal")?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.check_digits("in exponent of numeric literal")?;
        }
        Ok(())
    }

    fn check_digits(&mut self, place: &'static str) -> Result<(), JsonError> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return self.invalid(place);
        }
        self.skip_digits();
        Ok(())
    }

    fn skip_digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn check_word(&mut self, word: &'static str) -> Result<(), JsonError> {
        for (at, letter) in word.bytes().enumerate() {
            if self.peek() != Some(letter) {
                return self.invalid(word_place(word, at));
            }
            self.at += 1;
        }
        Ok(())
    }

    /// The members of the object that begins here. The text has been checked.
    fn members(&mut self) -> Result<Vec<(String, Value)>, JsonError> {
        let mut out = Vec::new();
        self.at += 1;
        loop {
            self.skip_blank();
            if self.peek() != Some(b'"') {
                return Ok(out);
            }
            let key = self.string()?;
            self.skip_blank();
            self.at += 1;
            self.skip_blank();
            out.push((key, self.value()?));
            self.skip_blank();
            if self.peek() == Some(b',') {
                self.at += 1;
            }
        }
    }

    fn value(&mut self) -> Result<Value, JsonError> {
        let start = self.at;
        let value = match self.peek() {
            Some(b'"') => return Ok(Value::Text(self.string()?)),
            Some(b'n') => Value::Null,
            Some(b'{') => Value::Other("object"),
            Some(b'[') => Value::Other("array"),
            Some(b't' | b'f') => Value::Other("bool"),
            _ => {
                self.check_value()?;
                return Ok(Value::Number(String::from_utf8_lossy(&self.text[start..self.at]).into_owned()));
            }
        };
        self.check_value()?;
        Ok(value)
    }

    fn string(&mut self) -> Result<String, JsonError> {
        let start = self.at + 1;
        self.check_string()?;
        Ok(unescape(&self.text[start..self.at - 1]))
    }
}

/// Go's words for a wrong byte in `true`, `false` or `null`.
fn word_place(word: &str, at: usize) -> &'static str {
    match (word, at) {
        ("true", 1) => "in literal true (expecting 'r')",
        ("true", 2) => "in literal true (expecting 'u')",
        ("true", _) => "in literal true (expecting 'e')",
        ("false", 1) => "in literal false (expecting 'a')",
        ("false", 2) => "in literal false (expecting 'l')",
        ("false", 3) => "in literal false (expecting 's')",
        ("false", _) => "in literal false (expecting 'e')",
        (_, 1) => "in literal null (expecting 'u')",
        _ => "in literal null (expecting 'l')",
    }
}

/// The text of a string's inside, which has been checked.
fn unescape(mut inside: &[u8]) -> String {
    let mut out = String::with_capacity(inside.len());
    loop {
        let plain = inside.iter().position(|byte| *byte == b'\\').unwrap_or(inside.len());
        push_lossy(&mut out, &inside[..plain]);
        inside = &inside[plain..];
        let Some(letter) = inside.get(1) else { return out };
        let (unescaped, len) = match letter {
            b'u' => unescape_unit(inside),
            b'b' => ('\u{8}', 2),
            b'f' => ('\u{c}', 2),
            b'n' => ('\n', 2),
            b'r' => ('\r', 2),
            b't' => ('\t', 2),
            other => (char::from(*other), 2),
        };
        out.push(unescaped);
        inside = &inside[len..];
    }
}

/// The character of `\uXXXX`, or of a pair of them, and the bytes that it takes.
fn unescape_unit(inside: &[u8]) -> (char, usize) {
    let unit = |at: usize| {
        let bytes = inside.get(at..at + 6)?;
        let digits = std::str::from_utf8(bytes.strip_prefix(b"\\u")?).ok()?;
        u16::from_str_radix(digits, 16).ok()
    };
    let Some(first) = unit(0) else { return (char::REPLACEMENT_CHARACTER, 6.min(inside.len())) };
    if let Some(letter) = char::from_u32(first.into()) {
        return (letter, 6);
    }
    let pair = unit(6).and_then(|second| char::decode_utf16([first, second]).next()?.ok());
    pair.map_or((char::REPLACEMENT_CHARACTER, 6), |letter| (letter, 12))
}

/// Appends bytes as UTF-8; each wrong byte becomes U+FFFD.
fn push_lossy(out: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
}

/// Writes an object, member by member.
#[derive(Debug)]
pub struct Writer(String);

impl Default for Writer {
    fn default() -> Self {
        Self("{".into())
    }
}

impl Writer {
    /// Adds a member that is a text.
    #[must_use]
    pub fn text(mut self, name: &str, text: &str) -> Self {
        self.name(name);
        push_text(&mut self.0, text);
        self
    }

    /// The same unless the text is empty.
    #[must_use]
    pub fn text_unless_empty(self, name: &str, text: &str) -> Self {
        if text.is_empty() { self } else { self.text(name, text) }
    }

    /// Adds a member that is a number.
    #[must_use]
    pub fn integer(mut self, name: &str, number: i64) -> Self {
        self.name(name);
        self.0.push_str(&number.to_string());
        self
    }

    /// The finished object.
    pub fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }

    fn name(&mut self, name: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        push_text(&mut self.0, name);
        self.0.push(':');
    }
}

/// Appends a text with its quotation marks.
fn push_text(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Object::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn errors_have_gos_words() {
        for (text, want) in [
            ("", "unexpected end of JSON input"),
            ("{\"a\":", "unexpected end of JSON input"),
            ("hello", "invalid character 'h' looking for beginning of value"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("{a", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 2}", "invalid character '2' after object key:value pair"),
            ("{\"a\":[1 2]}", "invalid character '2' after array element"),
            ("{\"a\":tru}", "invalid character '}' in literal true (expecting 'e')"),
            ("{\"a\":nul", "unexpected end of JSON input"),
            ("{\"a\":-}", "invalid character '}' in numeric literal"),
            ("{\"a\":1.}", "invalid character '}' after decimal point in numeric literal"),
            ("{\"a\":1e}", "invalid character '}' in exponent of numeric literal"),
            ("{\"a\":01}", "invalid character '1' after object key:value pair"),
            ("{\"a\":\"\n\"}", "invalid character '\\n' in string literal"),
            ("{\"a\":\"\\x\"}", "invalid character 'x' in string escape code"),
            ("{\"a\":\"\\u12g\"}", "invalid character 'g' in \\u hexadecimal character escape"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("{\"a\":[1,]}", "invalid character ']' looking for beginning of value"),
        ] {
            assert_eq!(error(text), want, "{text}");
        }
        assert_eq!(error(&"[".repeat(10_001)), "exceeded max depth");
        assert_eq!(error(&"[".repeat(10_000)), "unexpected end of JSON input");
    }

    #[test]
    fn members_are_found_as_go_finds_them() {
        let text = br#" { "SID" : "a", "sid":"b", "x":{"sid":"c"}, "Sid":null, "n": -7, "\u0053id2":"\ud83d\ude00\ud800\n\/" } "#;
        let object = Object::parse(text).unwrap();
        assert_eq!(object.text("Sid"), Ok(Some("b")));
        assert_eq!(object.optional_text("Sid"), Ok(None));
        assert_eq!(object.integer("N"), Ok(Some(-7)));
        assert_eq!(object.text("sid2"), Ok(Some("\u{1f600}\u{fffd}\n/")));
        assert_eq!(object.text("absent"), Ok(None));
        assert!(object.text("n").is_err() && object.text("x").is_err() && object.integer("sid2").is_err());
        assert_eq!(object.exact_text("sid"), Some(Some("b")));
        assert_eq!(object.exact_text("n"), Some(None));
        assert_eq!(object.exact_text("siD"), None);
        assert_eq!(object.unknown_member(&["sid", "x", "n"]), Some("Sid2"));
        assert_eq!(Object::parse(b"null").unwrap().text("a"), Ok(None));
        assert!(Object::parse(b"[]").is_err() && Object::parse(b"3").is_err());
        for number in ["1.0", "1e3", "9223372036854775808"] {
            let text = format!("{{\"n\":{number}}}");
            assert!(Object::parse(text.as_bytes()).unwrap().integer("n").is_err(), "{number}");
        }
        let bytes = b"{\"a\":\"x\xff\xe2\x82y\xc0\"}";
        assert_eq!(Object::parse(bytes).unwrap().text("a"), Ok(Some("x\u{fffd}\u{fffd}\u{fffd}y\u{fffd}")));
        assert_eq!(Object::parse("{\"\u{212a}eyſ\":\"v\"}".as_bytes()).unwrap().text("keys"), Ok(Some("v")));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let text = br#"{"a":"\u00e4\n","b":[1,{"c":null}],"d":-1.5e+3,"e":true,"f":false}"#;
        for len in 0..text.len() {
            assert_eq!(Object::parse(&text[..len]), Err(JsonError::End), "{len}");
        }
        assert!(Object::parse(text).is_ok());
    }

    #[test]
    fn writes_as_go_does() {
        let text = "a\"\\\n\r\t\u{8}\u{c}\u{1}<>&\u{2028}\u{7f}é";
        let out = Writer::default().text("k", text).text_unless_empty("e", "").integer("n", -7028).finish();
        let want =
            "{\"k\":\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u003c\\u003e\\u0026\\u2028\u{7f}é\",\"n\":-7028}";
        assert_eq!(out, want);
        assert_eq!(Object::parse(out.as_bytes()).unwrap().text("K"), Ok(Some(text)));
        assert_eq!(Writer::default().finish(), "{}");
    }
}
