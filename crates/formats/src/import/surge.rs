//! Lines of Surge.
//!
//! ```text
//! line  := name '=' type ',' host ',' port (',' key '=' value)*       spaces around all of it mean nothing
//! value := anything but a comma | '"' anything but a quote '"'
//! ```
//!
//! Of a whole profile the section `[Proxy]` counts. `#`, `;` and `//` begin comments, at the start of a line alone.

use zeroize::Zeroizing;

use crate::read::json::{JsonMember, JsonValue, Node};
use crate::read::json_fields::JsonReport;
use crate::read::source::Source;
use crate::read::value::{Problem, excerpt};

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

/// The lines with servers: those of `[Proxy]`, or all of a text without sections; with their places.
pub(super) fn lines<'t>(source: &Source<'t>) -> Vec<(&'t str, usize)> {
    let has_sections = source.text.lines().any(|line| section(line).is_some());
    let all = sections(source.text).into_iter();
    let wanted = all.filter(|section| !has_sections || section.name.eq_ignore_ascii_case("proxy"));
    wanted.flat_map(|section| section.lines).collect()
}

/// A section of a profile; the lines in front of all of them are one without a name.
pub(super) struct SurgeSection<'t> {
    pub(super) name: &'t str,
    pub(super) at: usize,
    /// Lines that say something, with their places.
    pub(super) lines: Vec<(&'t str, usize)>,
}

/// The sections of a text.
pub(super) fn sections(text: &str) -> Vec<SurgeSection<'_>> {
    let mut all = vec![SurgeSection { name: "", at: 0, lines: Vec::new() }];
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let body = line.trim_start_matches('\u{feff}').trim_start();
        let from = at + (line.len() - body.len());
        at += line.len();
        let body = body.trim_end();
        if let Some(name) = section(body) {
            all.push(SurgeSection { name, at: from, lines: Vec::new() });
        } else if !body.is_empty()
            && !body.starts_with(['#', ';'])
            && !body.starts_with("//")
            && let Some(last) = all.last_mut()
        {
            last.lines.push((body, from));
        }
    }
    all
}

/// The name of the section that a line begins.
fn section(line: &str) -> Option<&str> {
    let line = line.trim_start_matches('\u{feff}').trim();
    let inside = line.strip_prefix('[')?.strip_suffix(']')?;
    (!line.contains('=')).then_some(inside)
}

/// A line as an object, with its path.
pub(super) fn entry(report: &mut JsonReport<'_>, line: &str, from: usize) -> Option<(JsonValue, String)> {
    let Some((name, rest)) = line.split_once('=') else {
        report.error(from, "", Problem::new("no line of a server").hint("name = snell, host, port, psk=..."));
        return None;
    };
    let (name, rest_at) = (name.trim(), from + name.len() + 1);
    let path = excerpt(name);
    let is_spoken = matches!(rest.split(',').next().map(str::trim), Some("snell" | "ss"));
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
            (None, None) if part.is_empty() || !is_spoken => continue,
            (None, None) => {
                report.error(part_at, path.clone(), Problem::new("a value without a key"));
                continue;
            }
        };
        members.push(member(key, part_at, unquoted(value), value_at));
    }
    Some((JsonValue { at: from, node: Node::Object(members) }, path))
}

fn member(key: &str, at: usize, text: &str, value_at: usize) -> JsonMember {
    let node = Node::Text(Zeroizing::new(text.to_owned()));
    JsonMember { key: key.to_owned(), at, value: JsonValue { at: value_at, node } }
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value)
}

/// The parts between commas that are in no quotes, freed of spaces, with their places.
pub(super) fn parts(text: &str, from: usize) -> Vec<(&str, usize)> {
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
