//! Lines of Surge.
//!
//! ```text
//! line  := name '=' type ',' host ',' port (',' key '=' value)*       spaces around all of it mean nothing
//! value := anything but a comma | '"' anything but a quote '"'
//! ```
//!
//! Of a whole profile the section `[Proxy]` counts. `#`, `;` and `//` begin comments, at the start of a line alone.

use zeroize::Zeroizing;

use crate::dialect::json::{Member, Node, Value};
use crate::dialect::shadowsocks::fields::Report;
use crate::dialect::value::{Problem, excerpt};
use crate::source::Source;

/// Whether a line describes a server of the kinds that are read: a kind, a host, and a port or a key.
pub(super) fn is_entry(line: &str) -> bool {
    let Some((_, rest)) = line.split_once('=') else { return false };
    let mut parts = rest.split(',').map(str::trim);
    let is_kind = matches!(parts.next(), Some("snell" | "ss"));
    let has_host = parts.next().is_some();
    let is_port = parts.next().is_some_and(|port| port.parse::<u16>().is_ok());
    let has_key = parts
        .filter_map(|part| part.split_once('='))
        .any(|(key, _)| matches!(key.trim(), "psk" | "password"));
    is_kind && has_host && (is_port || has_key)
}

/// The servers of a text as objects, with their paths.
pub(super) fn entries(source: &Source<'_>, report: &mut Report<'_>) -> Vec<(Value, String)> {
    let has_sections = source.text.lines().any(|line| is_section(line.trim()));
    let mut is_inside = !has_sections;
    let mut all = Vec::new();
    let mut at = 0;
    for line in source.text.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let text = line.trim_start_matches('\u{feff}').trim();
        if is_section(text) {
            is_inside = text.eq_ignore_ascii_case("[proxy]");
        } else if is_inside && !text.is_empty() && !text.starts_with(['#', ';']) && !text.starts_with("//") {
            let from = start + (line.len() - line.trim_start_matches('\u{feff}').trim_start().len());
            all.extend(entry(report, text, from));
        }
    }
    all
}

fn is_section(line: &str) -> bool {
    line.starts_with('[') && line.ends_with(']') && !line.contains('=')
}

fn entry(report: &mut Report<'_>, line: &str, from: usize) -> Option<(Value, String)> {
    let Some((name, rest)) = line.split_once('=') else {
        report.error(from, "", Problem::new("no line of a server").hint("name = snell, host, port, psk=..."));
        return None;
    };
    let (name, rest_at) = (name.trim(), from + name.len() + 1);
    let path = excerpt(name);
    let mut members = vec![member("name", from, name, from)];
    for (n, (part, part_at)) in parts(rest, rest_at).into_iter().enumerate() {
        let names = ["type", "server", "port"];
        let (key, value, value_at) = match (names.get(n), part.split_once('=')) {
            (Some(key), _) => (*key, part, part_at),
            (None, Some((key, value))) => {
                let lead = value.len() - value.trim_start().len();
                (key.trim(), value.trim(), part_at + key.len() + 1 + lead)
            }
            // The method and password of old lines for Shadowsocks have no keys.
            (None, None) if part.is_empty() => continue,
            (None, None) => {
                report.error(part_at, path.clone(), Problem::new("a value without a key"));
                continue;
            }
        };
        members.push(member(key, part_at, unquoted(value), value_at));
    }
    Some((Value { at: from, node: Node::Object(members) }, path))
}

fn member(key: &str, at: usize, text: &str, value_at: usize) -> Member {
    let node = Node::Text(Zeroizing::new(text.to_owned()));
    Member { key: key.to_owned(), at, value: Value { at: value_at, node } }
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value)
}

/// The parts between commas that are in no quotes, freed of spaces, with their places.
fn parts(text: &str, from: usize) -> Vec<(&str, usize)> {
    let (mut all, mut start, mut is_quoted) = (Vec::new(), 0, false);
    let ends = text.char_indices().chain(std::iter::once((text.len(), ',')));
    for (at, c) in ends {
        match c {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted || at == text.len() => {
                let part = &text[start..at];
                let lead = part.len() - part.trim_start().len();
                all.push((part.trim(), from + start + lead));
                start = (at + 1).min(text.len());
            }
            _ => {}
        }
    }
    all
}
