//! Rules over the modules of adit-engine: words of protocols, import cycles, sleeping threads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Finding;
use super::lines::{circles, folder_imports};
use super::source::Source;
use super::text::{crate_module, package};

const CORE: &str = "crates/engine/src/";

/// Modules of adit-engine that serve every protocol, so that they name none, in code or comments.
const NEUTRAL: &[&str] = &["lifecycle", "stream", "routing", "dns", "relay", "datagram"];

/// A word that begins like this names a protocol.
const PROTOCOLS: &[&str] =
    &["snell", "shadowsocks", "socks", "kcp", "goquiet", "snowflake", "sip003", "sip004", "sip02", "quic"];
/// Words that name a protocol only as a whole, or that are no protocol although they begin like one.
const PROTOCOL_WORDS: &[&str] = &["ss", "ssr"];
const NO_PROTOCOLS: &[&str] = &["quick"];

/// Crates whose threads run event loops.
const EVENT_LOOPS: &[&str] = &["engine", "net", "snowflake"];
/// Files that sleep on a thread of their own, never on an event loop.
const SLEEP_ON_OWN_THREAD: &[&str] = &[
    // Key trials take a quarter of a core: the thread works, then rests for three times as long.
    "crates/engine/src/users/key_search.rs",
    "crates/engine/src/protocols/shadowsocks/key_search_queue.rs",
];

/// The neutral modules of adit-engine name no protocol.
pub(super) fn protocol_words(source: &Source, findings: &mut Vec<Finding>) {
    let Some(module) = top_module(&source.path).filter(|module| NEUTRAL.contains(module)) else { return };
    for (line, text) in source.product_lines() {
        if let Some(word) = protocol_word(text) {
            let what = format!("{word}: {module} serves every protocol and names none");
            findings.push(Finding::new(&source.path, line, "protocol-words", what));
        }
    }
}

/// No thread of an event loop sleeps: timers wait.
pub(super) fn sleeps(source: &Source, findings: &mut Vec<Finding>) {
    if !package(&source.path).is_some_and(|package| EVENT_LOOPS.contains(&package))
        || SLEEP_ON_OWN_THREAD.contains(&source.path.as_str())
    {
        return;
    }
    for name in source.names() {
        if name.contains("thread::sleep") && !source.is_test(name.line) {
            let what = "an event loop never sleeps: wait with a timer of adit_net::rt";
            findings.push(Finding::new(&source.path, name.line, "no-sleep", what));
        }
    }
}

/// A test waits for an event. A sleep that is no pause of a loop which looks for one says what it is for.
pub(super) fn test_sleeps(source: &Source, findings: &mut Vec<Finding>) {
    for line in source.sleeps_outside_loops() {
        if source.is_test(line) && !source.is_explained(line) {
            let what = "a test waits for an event: a sleep that paces it, or in which nothing may happen, \
                        has a comment on the line above";
            findings.push(Finding::new(&source.path, line, "test-sleep", what));
        }
    }
}

/// The top-level modules of adit-engine import each other without a cycle. Each import that is part of a cycle is in one
/// of the findings.
pub(super) fn cycles(sources: &[Source], findings: &mut Vec<Finding>) {
    let imports = Imports::new(sources);
    let mut seen = BTreeSet::new();
    for (&(from, to), &(file, line)) in &imports.edges {
        let Some(mut cycle) = imports.path(to, from) else { continue };
        let first = cycle.iter().enumerate().min_by_key(|(_, module)| **module).map_or(0, |(at, _)| at);
        cycle.rotate_left(first);
        if seen.insert(cycle.clone()) {
            findings.push(Finding::new(file, line, "module-cycle", imports.describe(&cycle)));
        }
    }
}

/// Folders that still import each other in a circle, with what ends it.
const KNOTS: &[(&str, &str)] = &[(
    "crates/formats/src/",
    "formats know each other until entries lie beneath them and conversions above",
)];

/// The folders of each crate import each other in one direction.
pub(super) fn folder_cycles(sources: &[Source], findings: &mut Vec<Finding>) {
    let imports = folder_imports(sources);
    for circle in circles(&imports) {
        if KNOTS.iter().any(|(root, _)| circle.iter().all(|folder| folder.starts_with(root))) {
            continue;
        }
        let inside = |(from, to): &(String, String)| circle.contains(from) && circle.contains(to);
        let edges: Vec<_> = imports.iter().filter(|(edge, _)| inside(edge)).collect();
        let named: Vec<String> = edges
            .iter()
            .map(|((from, to), (file, line))| format!("{from} -> {to} ({file}:{line})"))
            .collect();
        let (_, (file, line)) = edges[0];
        findings.push(Finding::new(file, *line, "module-cycle", named.join(", ")));
    }
}

/// The imports between top-level modules of adit-engine, outside of tests.
struct Imports<'a> {
    /// From and to, with the first place of such an import.
    edges: BTreeMap<(&'a str, &'a str), (&'a str, usize)>,
}

impl<'a> Imports<'a> {
    fn new(sources: &'a [Source]) -> Self {
        let modules: BTreeSet<&str> = sources.iter().filter_map(|source| top_module(&source.path)).collect();
        let mut edges = BTreeMap::new();
        for source in sources {
            let Some(from) = top_module(&source.path) else { continue };
            for name in source.names() {
                if source.is_test(name.line) {
                    continue;
                }
                let to = crate_module(source, &name).and_then(|to| modules.get(to));
                if let Some(&to) = to.filter(|&&to| to != from) {
                    edges.entry((from, to)).or_insert((source.path.as_str(), name.line));
                }
            }
        }
        Self { edges }
    }

    /// The shortest chain of imports, both ends included.
    fn path(&self, from: &'a str, to: &'a str) -> Option<Vec<&'a str>> {
        let mut reached = BTreeMap::from([(from, from)]);
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            if at == to {
                let mut path = vec![to];
                while path[path.len() - 1] != from {
                    path.push(reached[path[path.len() - 1]]);
                }
                path.reverse();
                return Some(path);
            }
            for &(_, next) in self.edges.keys().filter(|(start, _)| *start == at) {
                if !reached.contains_key(next) {
                    reached.insert(next, at);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// `a -> b (file:line) -> a (file:line)`.
    fn describe(&self, cycle: &[&str]) -> String {
        let mut text = cycle[0].to_string();
        for (from, to) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
            let (file, line) = self.edges[&(*from, *to)];
            text.push_str(&format!(" -> {to} ({}:{line})", file.strip_prefix(CORE).unwrap_or(file)));
        }
        text
    }
}

/// The top-level module of adit-engine that a file belongs to; `None` for `lib.rs` and other crates.
fn top_module(path: &str) -> Option<&str> {
    let module = path.strip_prefix(CORE)?.split('/').next()?;
    let module = module.strip_suffix(".rs").unwrap_or(module);
    (module != "lib" && module != "bin").then_some(module)
}

/// The first word of `text` that names a protocol, in any of `two words`, `two_words`, `TwoWords`.
fn protocol_word(text: &str) -> Option<&str> {
    let whole = text.split(|c: char| !c.is_ascii_alphanumeric());
    whole.flat_map(|word| std::iter::once(word).chain(humps(word))).find(|word| {
        let word = word.to_ascii_lowercase();
        PROTOCOL_WORDS.contains(&word.as_str())
            || PROTOCOLS.iter().any(|protocol| word.starts_with(protocol))
                && !NO_PROTOCOLS.iter().any(|other| word.starts_with(other))
    })
}

/// The parts of a `CamelCase` word: `TcpSSRKey` is `Tcp`, `SSR` and `Key`.
fn humps(word: &str) -> impl Iterator<Item = &str> {
    let bytes = word.as_bytes();
    let starts = |&at: &usize| {
        at == 0
            || bytes[at].is_ascii_uppercase()
                && (!bytes[at - 1].is_ascii_uppercase()
                    || bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase))
    };
    let starts: Vec<usize> = (0..word.len()).filter(starts).collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([word.len()]).collect();
    starts.into_iter().zip(ends).map(|(start, end)| &word[start..end])
}
