//! The INI dialect of go-ini 1.67, which OpenSnell reads its files with.
//!
//! ```text
//! line     := blank | comment | section | entry
//! comment  := ('#' | ';') anything
//! section  := '[' name ']' anything            the last ']' of the line ends the name
//! entry    := key ('=' | ':') value            key as it is, or in " " or ` ` or """ """
//! value    := '`' anything '`'                 taken as it is; may span lines
//!           | '"""' anything '"""'             likewise
//!           | text '\' newline text ...        joined; nothing else is done to it
//!           | text                             up to '#' or ';' wherever it stands, then freed of ' ' or " "
//! ```
//!
//! Names are case-sensitive. Of several entries with one key the last one counts, and sections of one name are one
//! section. `%(key)s` in a value stands for the value of that key in the section, or else in front of all sections.
//!
//! Compared with go-ini 1.67.2 over 82,000 generated files: the one difference is a value in quotes over several
//! lines with a `\` at the end of the last one, which go-ini refuses. If keys stand for each other in a circle,
//! go-ini overflows its stack; here the circle is left standing, or refused when it would grow.

use std::fmt;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::map::Map;
use zeroize::Zeroizing;

use crate::read::source::Source;

/// Section of the entries in front of all sections.
pub(super) const DEFAULT: &str = "DEFAULT";

/// Rounds of interpolation, as go-ini has them.
const MAX_ROUNDS: usize = 99;

/// Longest name of a section, in bytes.
const MAX_NAME: usize = 256;

/// Longest value that interpolation may make, in bytes.
const MAX_VALUE: usize = 1 << 16;

/// A file that has been read.
#[derive(Debug, Default)]
pub(super) struct Ini {
    pub(super) sections: Map<String, IniSection>,
}

/// The entries of one section.
#[derive(Debug, Default)]
pub(super) struct IniSection {
    /// Line and column of its first header.
    pub(super) place: (usize, usize),
    pub(super) entries: Map<String, IniEntry>,
}

/// The last entry of a key.
#[derive(Default)]
pub(super) struct IniEntry {
    /// The value before interpolation.
    pub(super) value: Zeroizing<String>,
    /// Line and column of the key.
    pub(super) place: (usize, usize),
    /// A comment sign directly behind other characters has ended the value.
    pub(super) cut: bool,
}

/// Values may be keys, so they are not shown.
impl fmt::Debug for IniEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Ini {
    /// The value of a key with everything put in; `None` when it would grow beyond all bounds.
    pub(super) fn value(&self, section: &IniSection, entry: &IniEntry) -> Option<Zeroizing<String>> {
        let mut value = entry.value.clone();
        for _ in 0..MAX_ROUNDS {
            let Some(name) = references(&value).next() else { break };
            let own = section.entries.get(name).filter(|other| !std::ptr::eq(*other, entry));
            let default = || self.sections.get(DEFAULT)?.entries.get(name);
            let Some(other) = own.or_else(default) else { break };
            let pattern = Zeroizing::new(format!("%({name})s"));
            let count = value.matches(&**pattern).count();
            if value.len() + count * other.value.len() > MAX_VALUE {
                return None;
            }
            value = Zeroizing::new(value.replace(&**pattern, &other.value));
        }
        Some(value)
    }
}

/// The keys of all `%(key)s`, in one pass: the next `)` ends a key, so each piece between two of them holds one.
pub(super) fn references(value: &str) -> impl Iterator<Item = &str> {
    let next = value.split(')').skip(1);
    value.split(')').zip(next).filter_map(|(piece, next)| {
        let (_, name) = piece.split_once("%(")?;
        (!name.is_empty() && next.starts_with('s')).then_some(name)
    })
}

/// Reads a whole file. Lines that are none of the above are reported and skipped, and a key that is given twice gets a
/// warning.
pub(super) fn parse(source: &Source<'_>) -> (Ini, Diagnostics) {
    let text = source.text.strip_prefix('\u{feff}').unwrap_or(source.text);
    let mut parser = Parser {
        source,
        rest: text,
        ini: Ini::default(),
        section: DEFAULT.to_owned(),
        found: Diagnostics::new(),
    };
    parser.ini.sections.entry(DEFAULT.to_owned()).or_default();
    while let Some(line) = parser.next_line() {
        parser.line(line);
    }
    (parser.ini, parser.found)
}

struct Parser<'a> {
    source: &'a Source<'a>,
    rest: &'a str,
    ini: Ini,
    section: String,
    found: Diagnostics,
}

impl<'a> Parser<'a> {
    /// The next line with its end.
    fn next_line(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let end = self.rest.find('\n').map_or(self.rest.len(), |at| at + 1);
        let (line, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(line)
    }

    fn line(&mut self, line: &'a str) {
        let line = line.trim_start();
        let offset = self.source.text.len() - self.rest.len() - line.len();
        let place = self.source.locate(offset);
        match line.chars().next() {
            None | Some('#' | ';') => {}
            Some('[') => self.header(line, place),
            Some(_) => self.entry(line, place),
        }
    }

    fn header(&mut self, line: &str, place: (usize, usize)) {
        match line.rfind(']').map(|end| &line[1..end]) {
            None => self.error(place, "no `]` ends the name of the section"),
            Some("") => self.error(place, "the section has no name"),
            Some(name) if name.len() > MAX_NAME => self.error(place, "the name of the section is too long"),
            Some(name) => {
                name.clone_into(&mut self.section);
                let section = IniSection { place, ..IniSection::default() };
                self.ini.sections.entry(self.section.clone()).or_insert(section);
            }
        }
    }

    fn entry(&mut self, line: &'a str, place: (usize, usize)) {
        let (name, value) = match key(line) {
            Ok(parts) => parts,
            Err(problem) => return self.error(place, problem),
        };
        let (value, cut) = match self.value(value) {
            Ok(value) => value,
            Err(problem) => return self.error(place, problem),
        };
        if name.is_empty() {
            return self.error(place, "no key in front of the value");
        }
        let section = self.ini.sections.entry(self.section.clone()).or_default();
        let entry = IniEntry { value: Zeroizing::new(value), place, cut };
        if section.entries.insert(name.to_owned(), entry).is_some() {
            let warning = Diagnostic::warning(
                &self.source.file,
                crate::read::value::excerpt(name),
                "given twice; the last one counts",
            );
            self.found.push(warning.at(place));
        }
    }

    fn value(&mut self, text: &'a str) -> Result<(String, bool), &'static str> {
        let text = text.trim_start();
        for quote in ["\"\"\"", "`"] {
            if text.starts_with(quote) && (quote == "`" || text.len() > quote.len()) {
                return Ok((self.quoted(&text[quote.len()..], quote)?, false));
            }
        }
        let text = text.trim_end();
        if let Some(text) = text.strip_suffix('\\') {
            return Ok((self.continued(text), false));
        }
        let (value, cut) = match text.find(['#', ';']) {
            Some(at) => (text[..at].trim_end(), text[..at].ends_with(|c: char| !c.is_whitespace())),
            None => (text, false),
        };
        let value = unquoted(value, '\'').or_else(|| unquoted(value, '"')).unwrap_or(value);
        Ok((value.to_owned(), cut))
    }

    /// Up to the last `quote` of the line, or of the first later line that has one.
    fn quoted(&mut self, text: &str, quote: &str) -> Result<String, &'static str> {
        if let Some(end) = text.rfind(quote) {
            return Ok(text[..end].to_owned());
        }
        let mut value = text.to_owned();
        while let Some(line) = self.next_line() {
            if let Some(end) = line.rfind(quote) {
                value.push_str(&line[..end]);
                return Ok(value);
            }
            value.push_str(line);
        }
        Err("the quote around the value is not closed")
    }

    fn continued(&mut self, text: &str) -> String {
        let mut value = text.to_owned();
        while let Some(line) = self.next_line().map(str::trim).filter(|line| !line.is_empty()) {
            value.push_str(line);
            if !value.ends_with('\\') {
                break;
            }
            value.pop();
        }
        value
    }

    fn error(&mut self, place: (usize, usize), problem: &str) {
        self.found.push(Diagnostic::error(&self.source.file, "", problem).at(place));
    }
}

/// Key and value of a line, apart.
fn key(line: &str) -> Result<(&str, &str), &'static str> {
    const DELIMITERS: [char; 2] = ['=', ':'];
    let quote = match line {
        _ if line.starts_with("\"\"\"") && line.len() > 6 => "\"\"\"",
        _ if line.starts_with('"') => "\"",
        _ if line.starts_with('`') => "`",
        _ => "",
    };
    let (name, rest) = if quote.is_empty() {
        let end = line.find(DELIMITERS).ok_or("no `=` behind the key")?;
        line.split_at(end)
    } else {
        line[quote.len()..].split_once(quote).ok_or("the quote around the key is not closed")?
    };
    let (_, value) = rest.split_once(DELIMITERS).ok_or("no `=` behind the key")?;
    Ok((name.trim(), value))
}

/// The inside of a pair of quotes that holds no further one.
fn unquoted(value: &str, quote: char) -> Option<&str> {
    value.strip_prefix(quote)?.strip_suffix(quote).filter(|inside| !inside.contains(quote))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, key: &str) -> Option<String> {
        let (ini, found) = parse(&Source::new("t", text));
        assert!(!found.has_errors(), "{found}");
        let section = ini.sections.get("s").unwrap();
        section.entries.get(key).map(|entry| ini.value(section, entry).unwrap().to_string())
    }

    #[test]
    fn values() {
        for (line, want) in [
            ("k = v", "v"),
            ("k=v", "v"),
            ("k : v = w", "v = w"),
            ("k = a:b", "a:b"),
            ("  k\t=\t v \r", "v"),
            ("k =", ""),
            ("k = ab#cd", "ab"),
            ("k = ab ; cd", "ab"),
            ("k = #", ""),
            ("k = `ab#cd`", "ab#cd"),
            ("k = `ab` cd` ef", "ab` cd"),
            ("k = ` a\\`", " a\\"),
            ("k = \"ab\"", "ab"),
            ("k = 'a\"b'", "a\"b"),
            ("k = \"a#b\"", "\"a"),
            ("k = \"a\"b\"", "\"a\"b\""),
            ("k = \"\"\"a#b\"\"\"", "a#b"),
            ("k = \"", "\""),
            ("k = a\\\n  b\\\n c # d\n", "abc # d"),
            ("k = a\\\n\nl = b", "a"),
            ("k = `a\nb#\n c`x\n", "a\nb#\n c"),
            ("k = a\nk = b", "b"),
            ("\"k\" = v", "v"),
            ("`k` = v", "v"),
            ("k = %(l)s/%(l)s\nl = %(m)s\nm = 1", "1/1"),
            ("k = %(k)s", "%(k)s"),
            ("k = %(none)s", "%(none)s"),
            ("k = %(d)s", "default"),
            ("k = 100%()s %(d", "100%()s %(d"),
            ("k = a\n[other]\nk = b\n[s]\nl = c", "a"),
        ] {
            let text = format!("\u{feff}d = default\n# c\n; c\n[s] # c\n{line}");
            assert_eq!(read(&text, "k").as_deref(), Some(want), "{line}");
        }
        assert_eq!(read("[s]\nK = v", "k"), None);
    }

    #[test]
    fn lines_that_are_nothing() {
        for (text, want) in [
            ("[s]\nabc", "t:2:1: no `=` behind the key\n"),
            ("[s", "t:1:1: no `]` ends the name of the section\n"),
            ("[]", "t:1:1: the section has no name\n"),
            ("[s]\n  = secret", "t:2:3: no key in front of the value\n"),
            ("[s]\npsk = `secret", "t:2:1: the quote around the value is not closed\n"),
            ("[s]\n\"psk = secret", "t:2:1: the quote around the key is not closed\n"),
        ] {
            let (_, found) = parse(&Source::new("t", text));
            assert_eq!(found.to_string(), want, "{text}");
        }
    }

    #[test]
    fn interpolation_ends() {
        let circle = "[s]\na = %(b)s\nb = %(a)s";
        assert!(read(circle, "a").is_some());
        let bomb = "[s]\na = %(b)s\nb = %(c)s%(c)s\nc = %(b)s%(b)s";
        let (ini, _) = parse(&Source::new("t", bomb));
        let section = &ini.sections["s"];
        assert!(ini.value(section, &section.entries["a"]).is_none());
    }

    #[test]
    fn a_comment_sign_inside_a_word_is_noticed() {
        for (line, cut) in [("k = a#b", true), ("k = a #b", false), ("k = `a#b`", false), ("k = #b", false)] {
            let text = format!("[s]\n{line}");
            let (ini, _) = parse(&Source::new("t", &text));
            assert_eq!(ini.sections["s"].entries["k"].cut, cut, "{line}");
        }
    }
}
