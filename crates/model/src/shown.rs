//! Texts of others as they are shown: names of nodes and users, words of servers, lines of files.
//!
//! Such a text must stay in its place: it ends no line, moves no cursor, changes no direction of what stands beside it, and
//! hides nothing. Every boundary at which a text reaches a person uses one of these functions; JSON is data, and has its own
//! escapes.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Whether a character has an effect on the text around it, or is not seen: control characters (Unicode's C0, C1 and DEL),
/// separators of lines, marks of direction, and invisible format characters. The joiners U+200C and U+200D are none of them:
/// scripts and pictures need them.
pub fn is_hidden(c: char) -> bool {
    // The common case first.
    if matches!(c, ' '..='~') {
        return false;
    }
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// A text as a part of one line: each hidden character is shown as U+FFFD.
pub fn line(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden)
}

/// The same for a text of several lines, which keeps its line ends and tabs.
pub fn lines(text: &str) -> Cow<'_, str> {
    replaced(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

/// A text with each hidden character in the form of a literal of Rust, so that none is lost: `\n`, `\u{202e}`.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match is_hidden(c) {
            true => write!(f, "{}", c.escape_default()),
            false => f.write_char(c),
        })
    }
}

/// A text without its hidden characters.
pub fn without_hidden(text: &str) -> String {
    text.chars().filter(|c| !is_hidden(*c)).collect()
}

fn replaced(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_bad) {
        return Cow::Borrowed(text);
    }
    text.chars().map(|c| if is_bad(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_shown() {
        for c in [
            '\0',
            '\u{7}',
            '\t',
            '\n',
            '\r',
            '\u{1b}',
            '\u{7f}',
            '\u{85}',
            '\u{9b}',
            '\u{ad}',
            '\u{61c}',
            '\u{200b}',
            '\u{200e}',
            '\u{200f}',
            '\u{2028}',
            '\u{2029}',
            '\u{202a}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{2069}',
            '\u{feff}',
            '\u{fff9}',
            '\u{e0041}',
        ] {
            assert!(is_hidden(c), "{}", c.escape_unicode());
            assert_eq!(line(&format!("a{c}b")), "a\u{fffd}b");
            assert_eq!(without_hidden(&format!("a{c}b")), "ab");
        }
        for text in ["plain ~!", "日本 🇯🇵 東京", "می‌خواهم", "👨‍💻 ☠️", "é", "\u{fffd}"]
        {
            assert!(matches!(line(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        assert_eq!(lines("a\tb\nc\rd\u{2028}e"), "a\tb\nc\u{fffd}d\u{fffd}e");
    }
}
