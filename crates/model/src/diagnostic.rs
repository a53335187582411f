//! Problems of a configuration: message, place, and advice.
//!
//! ```text
//! adit.toml:12:3: inbound[0].lsiten: unknown key
//!   hint: did you mean `listen`?
//! ```
//!
//! A text whose form is broken is shown, with `*` in the place of what may be a key:
//!
//! ```text
//! adit.toml:3:12: invalid string
//!   3 | protocol = snell
//!     |            ^
//! ```

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::shown::{Escaped, is_hidden};

/// Severity of a [`Diagnostic`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing runs with this configuration.
    Error,
    /// It runs, but something in it has no effect or is unwise.
    Warning,
}

/// A line of a text, in which nothing secret is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Excerpt(String);

/// One finding. No text in it ever holds a key or password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Its severity.
    pub severity: Severity,
    /// The file as it was named to us, or what stands for it ("command line").
    #[serde(serialize_with = "as_text")]
    pub file: Arc<str>,
    /// Line from 1; 0 when the finding has no place in the file.
    pub line: usize,
    /// Column from 1, in characters; 0 when the finding has no place in the file.
    pub column: usize,
    /// Path of the key, for instance `outbound[1].server`; empty when no key is concerned.
    pub key: String,
    /// The problem: lower case, no full stop.
    pub problem: String,
    /// The line in the text, made safe to be shown; a caret stands below [`Self::column`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<Box<Excerpt>>,
    /// Advice to the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Diagnostic {
    /// An error without a place.
    #[cold]
    #[inline(never)]
    pub fn error(file: &Arc<str>, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::new(Severity::Error, file, key.into(), problem.into())
    }

    /// A warning without a place.
    #[cold]
    #[inline(never)]
    pub fn warning(file: &Arc<str>, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::new(Severity::Warning, file, key.into(), problem.into())
    }

    /// The same at a line and column, both from 1.
    #[must_use]
    pub fn at(mut self, (line, column): (usize, usize)) -> Self {
        (self.line, self.column) = (line, column);
        self
    }

    /// The same with advice.
    #[must_use]
    #[cold]
    #[inline(never)]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with the line in the text, in which nothing secret may be left.
    #[must_use]
    pub fn excerpt(mut self, line: impl Into<String>) -> Self {
        self.excerpt = Some(Box::new(Excerpt(line.into())));
        self
    }

    fn new(severity: Severity, file: &Arc<str>, key: String, problem: String) -> Self {
        let file = Arc::clone(file);
        Self { severity, file, line: 0, column: 0, key, problem, excerpt: None, hint: None }
    }

    /// The line with a caret below the column; a long line is cut on both sides.
    fn write_excerpt(&self, f: &mut dyn fmt::Write, Excerpt(line): &Excerpt, paint: &Paint) -> fmt::Result {
        /// Characters in front of the column that are shown, and in all.
        const BEFORE: usize = 50;
        const ALL: usize = 70;
        let Paint { red, cyan, reset, .. } = paint;
        let at = self.column.saturating_sub(1);
        let skipped = at.saturating_sub(BEFORE);
        let shown: String =
            line.chars().skip(skipped).take(ALL).map(|c| if is_hidden(c) { ' ' } else { c }).collect();
        let number = self.line.to_string();
        let (bar, gap) = (" ".repeat(number.len()), " ".repeat(at - skipped));
        writeln!(f, "  {cyan}{number} |{reset} {}", shown.trim_end())?;
        writeln!(f, "  {cyan}{bar} |{reset} {gap}{red}^{reset}")
    }

    fn write(&self, f: &mut dyn fmt::Write, paint: &Paint) -> fmt::Result {
        let Paint { bold, red, yellow, cyan, reset } = paint;
        write!(f, "{bold}{}", Escaped(&self.file))?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ":{reset} ")?;
        let tint = match self.severity {
            Severity::Error => red,
            Severity::Warning => yellow,
        };
        if self.severity == Severity::Warning {
            write!(f, "{tint}warning:{reset} ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{tint}{}:{reset} ", Escaped(&self.key))?;
        }
        writeln!(f, "{}", Escaped(&self.problem))?;
        if let Some(line) = self.excerpt.as_ref().filter(|_| self.line > 0) {
            self.write_excerpt(f, line, paint)?;
        }
        match &self.hint {
            Some(hint) => writeln!(f, "  {cyan}hint:{reset} {}", Escaped(hint)),
            None => Ok(()),
        }
    }
}

/// The plain form, with a line end.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &Paint::PLAIN)
    }
}

/// All findings about one configuration, in the order in which they were made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diagnostics {
    items: Vec<Diagnostic>,
    suppressed: usize,
    errors: usize,
}

/// Findings kept of one configuration; a file that is wrong in more ways is of another kind altogether.
const MAX_KEPT: usize = 200;

impl Diagnostics {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a finding. Beyond the first 200 they are only counted.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.errors += usize::from(diagnostic.severity == Severity::Error);
        if self.items.len() < MAX_KEPT {
            self.items.push(diagnostic);
        } else {
            self.suppressed += 1;
        }
    }

    /// Whether further findings are only counted, so that nobody needs to work out their place and advice.
    pub fn is_full(&self) -> bool {
        self.items.len() >= MAX_KEPT
    }

    /// Adds all of `other`.
    pub fn append(&mut self, other: Self) {
        let kept_errors = other.items.iter().filter(|d| d.severity == Severity::Error).count();
        self.suppressed += other.suppressed;
        self.errors += other.errors - kept_errors;
        for item in other.items {
            self.push(item);
        }
    }

    /// Makes every warning an error.
    pub fn deny_warnings(&mut self) {
        for item in &mut self.items {
            item.severity = Severity::Error;
        }
        self.errors = self.items.len() + self.suppressed;
    }

    /// Orders the findings by their place, stable for those of one place.
    pub fn sort(&mut self) {
        self.items.sort_by_key(|d| (d.line, d.column));
    }

    /// Whether one of them is an error.
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Number of findings kept.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The findings kept.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.items.iter()
    }

    /// All of them for a person, one or two lines each, with ANSI colours if asked for.
    pub fn render(&self, colour: bool) -> String {
        let paint = if colour { Paint::COLOUR } else { Paint::PLAIN };
        let mut out = String::new();
        for item in &self.items {
            item.write(&mut out, &paint).expect("a string takes any text");
        }
        if self.suppressed > 0 {
            out.push_str(&format!("{} more not shown\n", self.suppressed));
        }
        out
    }

    /// All of them for a program: `{"diagnostics": [..], "suppressed": n}`.
    pub fn to_json(&self) -> String {
        serde_json::json!({ "diagnostics": self.items, "suppressed": self.suppressed }).to_string()
    }
}

/// As [`Diagnostics::render`] without colours.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        let mut all = Self::new();
        all.push(diagnostic);
        all
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn as_text<S: serde::Serializer>(file: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(file)
}

struct Paint {
    bold: &'static str,
    red: &'static str,
    yellow: &'static str,
    cyan: &'static str,
    reset: &'static str,
}

impl Paint {
    const PLAIN: Self = Self { bold: "", red: "", yellow: "", cyan: "", reset: "" };
    const COLOUR: Self = Self {
        bold: "\u{1b}[1m",
        red: "\u{1b}[1;31m",
        yellow: "\u{1b}[1;33m",
        cyan: "\u{1b}[36m",
        reset: "\u{1b}[0m",
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Arc<str> {
        "adit.toml".into()
    }

    #[test]
    fn rendering() {
        let file = file();
        for (diagnostic, text) in [
            (
                Diagnostic::error(&file, "inbound[0].lsiten", "unknown key")
                    .at((12, 3))
                    .hint("did you mean `listen`?"),
                "adit.toml:12:3: inbound[0].lsiten: unknown key\n  hint: did you mean `listen`?\n",
            ),
            (
                Diagnostic::warning(&file, "udp", "not in this build yet").at((2, 1)),
                "adit.toml:2:1: warning: udp: not in this build yet\n",
            ),
            (Diagnostic::error(&file, "", "no such file"), "adit.toml: no such file\n"),
            (
                Diagnostic::error(&file, "", "bad").at((3, 4)).excerpt("ab\tc\u{1b}d").hint("h"),
                "adit.toml:3:4: bad\n  3 | ab c d\n    |    ^\n  hint: h\n",
            ),
            (Diagnostic::error(&file, "a\u{1b}[2J", "bad"), "adit.toml: a\\u{1b}[2J: bad\n"),
        ] {
            assert_eq!(diagnostic.to_string(), text);
        }
    }

    #[test]
    fn colours_and_json() {
        let all = Diagnostics::from(Diagnostic::error(&file(), "k", "p").at((1, 2)));
        assert!(all.render(true).contains("\u{1b}[1;31mk:"));
        assert!(!all.render(false).contains('\u{1b}'));
        let json: serde_json::Value = serde_json::from_str(&all.to_json()).unwrap();
        assert_eq!(json["diagnostics"][0]["severity"], "error");
        assert_eq!(json["diagnostics"][0]["column"], 2);
        assert_eq!(json["diagnostics"][0].get("hint"), None);
    }

    #[test]
    fn the_number_kept_is_bounded() {
        let mut all = Diagnostics::new();
        for _ in 0..MAX_KEPT + 5 {
            all.push(Diagnostic::warning(&file(), "k", "p"));
        }
        assert_eq!((all.len(), all.has_errors()), (MAX_KEPT, false));
        assert!(all.to_string().ends_with("5 more not shown\n"));
        all.deny_warnings();
        assert!(all.has_errors());
    }
}
