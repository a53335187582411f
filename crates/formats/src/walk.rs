//! The walk over every key of the JSON dialects: a value of a wrong type is obeyed, or reported with its place.
//!
//! A sample document holds every key that a reader asks for, which the readers themselves say ([`asked`]). Each value in
//! it is replaced by values of other types. Then there is a finding on the line of the key that names it, or the program
//! runs otherwise than without the key.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use adit_model::diagnostic::{Diagnostic, Diagnostics};

use crate::read::json::{self, Grammar, JsonValue, Node, plain, quote};
use crate::read::json_fields::asked;
use crate::read::source::Source;

/// Values of all types, empty ones among them.
const VALUES: [&str; 9] = ["\"zz\"", "\"\"", "7", "1.5", "true", "[]", "[[]]", "{}", "null"];

/// The result of a text: the settings, none if it was refused, and the findings.
pub(super) type Outcome<T> = (Option<T>, Diagnostics);

/// A way into a dialect: the name of a program, and what it makes of a text.
pub(super) type DialectReader<'a, T> = (&'a str, Box<dyn Fn(&str) -> Outcome<T> + 'a>);

/// A step from a value to one in it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// Walks the values of samples, which have every key together. `meant` are the keys, with a value (`*` for any), that are
/// obeyed by changing nothing; `elsewhere` begins the paths of keys that
/// other samples have. A key is named by the end of its path.
pub(super) fn walk<T: PartialEq>(
    samples: &[&str],
    entries: &[DialectReader<'_, T>],
    meant: &[(&str, &str)],
    elsewhere: &[&str],
) {
    let root = |sample: &&str| {
        json::parse(&Source::new("sample", sample), Grammar::Json5).expect("a sample is JSON")
    };
    let roots: Vec<JsonValue> = samples.iter().map(root).collect();
    let (mut known, mut wanted) = (BTreeSet::new(), BTreeSet::new());
    let mut accepted = vec![false; entries.len()];
    let mut heard: BTreeMap<String, Heard> = BTreeMap::new();
    for root in &roots {
        let mut paths = Vec::new();
        collect(root, &mut Vec::new(), &mut paths);
        let (whole, _) = emit(root, &[], None);
        known.extend(paths.iter().map(|path| shown(path, false)));
        wanted.extend(entries.iter().flat_map(|(_, run)| asked(|| run(&whole))));
        let of_sample: Vec<Option<T>> = entries.iter().map(|(_, run)| run(&whole).0).collect();
        for (accepted, settings) in accepted.iter_mut().zip(&of_sample) {
            *accepted |= settings.is_some();
        }
        for path in &paths {
            let sample = find(root, path).expect("the path comes from the sample");
            let at = shown(path, true);
            let is_meant =
                |value: &str| meant.iter().any(|(key, of)| (*of == "*" || *of == value) && at.ends_with(key));
            let (without, _) = emit(root, path, None);
            let nothing: Vec<Option<T>> = entries.iter().map(|(_, run)| run(&without).0).collect();
            for value in
                VALUES.into_iter().filter(|value| !is_same_kind(&sample.node, value) && !is_meant(value))
            {
                let (text, line) = emit(root, path, Some(value));
                let heard = heard.entry(format!("{at} = {value}")).or_default();
                for (n, (name, run)) in entries.iter().enumerate() {
                    let (settings, found) = run(&text);
                    let names =
                        |finding: &Diagnostic| finding.line == line && finding.key.contains(&key_of(path));
                    if found.iter().any(names) || settings != nothing[n] {
                        heard.is_heard = true;
                    } else if of_sample[n] != nothing[n] {
                        heard.silent.insert((*name).to_owned());
                    }
                    // Otherwise the key is one of another program, for which the file may be as well.
                }
            }
        }
    }
    assert!(accepted.iter().all(|accepted| *accepted), "a program takes no sample: {accepted:?}");
    let missing: Vec<&String> = wanted
        .iter()
        .filter(|key| !known.contains(*key) && !elsewhere.iter().any(|of| key.starts_with(of)))
        .collect();
    assert!(missing.is_empty(), "no sample has {missing:?}");
    let lost = heard.iter().filter(|(_, heard)| !heard.is_heard || !heard.silent.is_empty());
    let lost: String = lost.map(|(at, heard)| format!("{at}: {:?}\n", heard.silent)).collect();
    assert!(lost.is_empty(), "neither obeyed nor reported, by these or all programs:\n{lost}");
}

/// The fate of a value.
#[derive(Default)]
struct Heard {
    /// A program has obeyed or reported it.
    is_heard: bool,
    /// The programs that heed the key, and did neither.
    silent: BTreeSet<String>,
}

/// The name by which findings about a value are known: that of its key, or of the list or map that it is an entry of.
fn key_of(path: &[Step]) -> String {
    let key = path.iter().rev().find_map(|step| match step {
        Step::Key(key) if !is_port(key) => Some(key.clone()),
        Step::Key(_) | Step::Index(_) => None,
    });
    key.unwrap_or_else(|| shown(path, true))
}

/// Whether a key is the port of an entry, and no name.
fn is_port(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_same_kind(sample: &Node, value: &str) -> bool {
    match sample {
        Node::Null => value == "null",
        Node::Bool(_) => value == "true",
        Node::Number(_) => value == "7",
        Node::Text(_) => value == "\"zz\"",
        Node::Array(_) => value.starts_with('['),
        Node::Object(_) => value == "{}",
    }
}

fn collect(value: &JsonValue, path: &mut Vec<Step>, paths: &mut Vec<Vec<Step>>) {
    let mut add = |step: Step, value: &JsonValue| {
        path.push(step);
        paths.push(path.clone());
        collect(value, path, paths);
        path.pop();
    };
    match &value.node {
        Node::Object(members) => members.iter().for_each(|m| add(Step::Key(m.key.clone()), &m.value)),
        Node::Array(values) => values.iter().enumerate().for_each(|(i, value)| add(Step::Index(i), value)),
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) => {}
    }
}

fn find<'v>(value: &'v JsonValue, path: &[Step]) -> Option<&'v JsonValue> {
    let Some((step, rest)) = path.split_first() else { return Some(value) };
    match (step, &value.node) {
        (Step::Key(key), Node::Object(members)) => {
            find(&members.iter().find(|member| member.key == *key)?.value, rest)
        }
        (Step::Index(i), Node::Array(values)) => find(values.get(*i)?, rest),
        _ => None,
    }
}

/// The path as findings have it; without the numbers of entries if they are not `counted`.
fn shown(path: &[Step], counted: bool) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::Key(key) if !counted && is_port(key) => out.push_str("[]"),
            Step::Key(key) if out.is_empty() => out.push_str(key),
            Step::Key(key) => write!(out, ".{key}").expect("a string takes any text"),
            Step::Index(i) if counted => write!(out, "[{i}]").expect("a string takes any text"),
            Step::Index(_) => out.push_str("[]"),
        }
    }
    out
}

/// The document with another value at a path, or with nothing there, and the line of that value. Each entry has a line.
fn emit(root: &JsonValue, path: &[Step], value: Option<&str>) -> (String, usize) {
    let (mut out, mut line) = (String::new(), 0);
    write(root, if path.is_empty() { None } else { Some(path) }, value, &mut out, &mut line);
    (out, line)
}

fn write(value: &JsonValue, path: Option<&[Step]>, other: Option<&str>, out: &mut String, line: &mut usize) {
    let (open, close, entries): (_, _, Vec<(Step, &JsonValue)>) = match &value.node {
        Node::Object(members) => {
            ("{", "}", members.iter().map(|m| (Step::Key(m.key.clone()), &m.value)).collect())
        }
        Node::Array(values) => {
            ("[", "]", values.iter().enumerate().map(|(i, value)| (Step::Index(i), value)).collect())
        }
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) => return out.push_str(&plain(value)),
    };
    out.push_str(open);
    let mut lead = "\n";
    for (step, value) in entries {
        let (first, rest) = match path.and_then(<[Step]>::split_first) {
            Some((first, rest)) if *first == step => (true, rest),
            _ => (false, &[][..]),
        };
        let is_target = first && rest.is_empty();
        if is_target && other.is_none() {
            continue;
        }
        out.push_str(lead);
        lead = ",\n";
        if let Step::Key(key) = &step {
            write!(out, "{}: ", quote(key)).expect("a string takes any text");
        }
        if is_target {
            *line = out.matches('\n').count() + 1;
            out.push_str(other.unwrap_or_default());
        } else {
            write(value, first.then_some(rest), other, out, line);
        }
    }
    out.push_str(close);
}
