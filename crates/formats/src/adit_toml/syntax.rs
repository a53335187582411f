//! Errors in the form of `adit.toml`, with the line that is wrong.
//!
//! A line may hold a key, and where it is broken nobody can tell its parts apart for sure. So a line is shown as it is
//! only if it is a header, or begins with a key that holds nothing secret and has no second value; of any other line
//! letters and digits are shown as `*`, but for the name of its first key.

use adit_model::diagnostic::Diagnostic;

use super::keys;
use crate::read::source::Source;

/// Keys whose values may be shown.
const OPEN: [&str; 24] = [
    "protocol",
    "listen",
    "server",
    "name",
    "method",
    "mode",
    "level",
    "format",
    "outbound",
    "inbound",
    "version",
    "obfs",
    "udp",
    "quic",
    "reuse",
    "idle",
    "drain",
    "timeout",
    "family",
    "cores",
    "state",
    "socket",
    "watch",
    "interface",
];

/// The finding about a text that is no TOML; `at` is the byte offset, `message` the parser's words.
pub(crate) fn error(source: &Source<'_>, at: usize, message: &str) -> Diagnostic {
    let place = source.locate(at);
    let line = source.text.lines().nth(place.0 - 1).unwrap_or_default();
    let message = message.trim().replace('\n', ", ");
    let found = Diagnostic::error(&source.file, "", message).at(place).excerpt(shown(line));
    match hint(line) {
        Some(hint) => found.hint(hint),
        None => found,
    }
}

/// The line with nothing secret in it, as long as it was.
fn shown(line: &str) -> String {
    let line = line.trim_start_matches('\u{feff}');
    let body = line.trim_start();
    let key = first_word(body);
    let rest = &body[key.len()..];
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ' | '[' | ']' | '"');
    let is_header = body.starts_with('[') && body.chars().all(is_plain);
    let value = rest.split_once('=').map_or(rest, |(_, value)| value).trim();
    let is_one = !value.contains(['=', '{', ',']) && !value.contains(char::is_whitespace);
    if is_header || OPEN.contains(&key) && is_one {
        return line.to_owned();
    }
    let is_known = keys::all().any(|known| known.name == key);
    let kept = line.len() - if is_known { rest.len() } else { body.len() };
    let hide = |c: char| if c.is_alphanumeric() { '*' } else { c };
    line[..kept].chars().chain(line[kept..].chars().map(hide)).collect()
}

fn first_word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_')));
    &text[..end.unwrap_or(text.len())]
}

/// Advice about the mistakes that people make.
fn hint(line: &str) -> Option<String> {
    let body = line.trim();
    if body.contains(['\u{201c}', '\u{201d}', '\u{201e}', '\u{2018}', '\u{2019}', '\u{ab}', '\u{bb}']) {
        return Some("these are typographic quotes; write plain ones: \"".to_owned());
    }
    if body.starts_with('[') {
        return Some("a header is [name], or [[name]] for inbound, outbound, rule and set".to_owned());
    }
    let Some((key, value)) = body.split_once('=') else {
        return Some("write key = value, on a line of its own".to_owned());
    };
    let (key, value) = (key.trim(), value.trim());
    if value.matches('"').count() % 2 == 1 {
        return Some("a quote is missing: each text stands between two".to_owned());
    }
    let is_bare = value.starts_with(|c: char| c.is_alphabetic() || c == '/' || c == ':' || c == '*')
        || value.starts_with(|c: char| c.is_ascii_digit()) && value.contains([':', '.']);
    if !is_bare {
        return None;
    }
    // Only a word of a harmless key may be repeated.
    let word = first_word(value);
    let is_shown = OPEN.contains(&key) && word.len() == value.len() && word.len() < 30;
    let example = if is_shown { format!(": {key} = \"{word}\"") } else { String::new() };
    Some(format!("put texts in quotes{example}"))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn a_line_with_a_caret_and_advice() {
        for (text, want) in [
            (
                "[[inbound]]\nprotocol = snell\n",
                "  2 | protocol = snell\n    |            ^\n  hint: put texts in quotes: protocol = \"snell\"\n",
            ),
            (
                "psk = \u{201c}hunter2\u{201d}\n",
                "  1 | psk = \u{201c}*******\u{201d}\n    |       ^\n  hint: these are typographic",
            ),
            ("[[inbound]\nprotocol = \"x\"\n", "  1 | [[inbound]\n"),
            ("[[inbound]]\npassword = \"hunter2\n", "  2 | password = \"*******\n"),
            ("[[inbound]]\nlisten = \"127.0.0.1:1\n", "  2 | listen = \"127.0.0.1:1\n"),
            ("[[inbound]]\nlisten = :1080\n", "hint: put texts in quotes\n"),
            ("[[inbound]]\nprotocol \"snell\"\n", "hint: write key = value, on a line of its own\n"),
        ] {
            let found = parse("t", text).unwrap_err().to_string();
            assert!(found.contains(want), "{text}\n{found}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        for line in [
            "psk = hunter2",
            "psk hunter2",
            "hunter2",
            "password = 'hunter2",
            "users = [{ name = \"a\", password = \"hunter2\" }",
            "name = \"a\", password = \"hunter2\"",
            "protocol = \"snell\" psk = \"hunter2\"",
            "\"psk\" = hunter2",
            "server = { password = hunter2 }",
            "name = a, hunter2",
            "= hunter2",
            "{hunter2",
            "[hunter2=",
        ] {
            assert!(!shown(line).contains("hunter2"), "{line}: {}", shown(line));
            assert_eq!(shown(line).chars().count(), line.chars().count());
            let found = error(&Source::new("t", line), 0, "bad").to_string();
            assert!(!found.contains("hunter2"), "{found}");
        }
        assert_eq!(shown("  psk = \"a b\" # x"), "  psk = \"* *\" # *");
    }
}
