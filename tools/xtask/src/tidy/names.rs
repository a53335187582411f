//! Names of types: each says what the type is without its path.

use std::collections::BTreeMap;

use super::Finding;
use super::lines::{crate_of, is_tool};
use super::source::Source;

/// Names that a crate defines twice, with the reason.
const TWICE: &[(&str, &[&str], &str)] = &[
    (
        "net",
        &["FineTimer", "Signals", "UnixListener", "UnixStream", "UserSignal"],
        "the other definition is for Windows",
    ),
    ("sys", &["Timer", "User"], "the other definition is for Windows"),
    (
        "proto",
        &["HkdfSha1Wide", "HmacMd5Lanes", "Sip13Lanes"],
        "the other definition is for processors without wide registers",
    ),
];

/// Visible types of one name in one crate: the file and the line of each definition.
type Definitions<'s> = BTreeMap<(&'s str, String), Vec<(&'s str, usize)>>;

/// Names that a crate defines more than once, tools and tests aside, among types that more than their file can name.
pub(super) fn shared(sources: &[Source]) -> Definitions<'_> {
    let mut all = Definitions::new();
    for source in sources.iter().filter(|source| !is_tool(&source.path)) {
        for definition in source.definitions() {
            if definition.is_visible && !source.is_test(definition.line) {
                let key = (crate_of(&source.path), definition.name);
                all.entry(key).or_default().push((&source.path, definition.line));
            }
        }
    }
    all.retain(|_, places| places.len() > 1);
    all
}

/// Reports every definition of a shared name that [`TWICE`] does not have.
pub(super) fn findings(sources: &[Source], findings: &mut Vec<Finding>) {
    for ((home, name), places) in shared(sources) {
        let is_twin = TWICE.iter().any(|(of, names, _)| *of == home && names.contains(&name.as_str()));
        if is_twin && places.len() == 2 {
            continue;
        }
        for (file, line) in &places {
            let others: Vec<String> = places
                .iter()
                .filter(|place| *place != &(*file, *line))
                .map(|(file, line)| format!("{file}:{line}"))
                .collect();
            let what = format!("{name} is defined at {} too: say what it is", others.join(", "));
            findings.push(Finding::new(file, *line, "type-names", what));
        }
    }
}
