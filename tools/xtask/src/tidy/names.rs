//! Names of types and files: each says what it is about without its path.

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

/// Files of a crate that one name may stand for.
const MOST_FILES: usize = 3;
/// Names of files that have one meaning everywhere: roots, and the files of a protocol's folder.
const USUAL_FILES: &[&str] = &[
    "inbound.rs",
    "inbound_udp.rs",
    "lib.rs",
    "main.rs",
    "mod.rs",
    "outbound.rs",
    "outbound_udp.rs",
    "registry.rs",
    "tests.rs",
];

/// Reports file names that stand for too many files of one crate: an editor's tab says nothing then.
pub(super) fn file_names(sources: &[Source], findings: &mut Vec<Finding>) {
    let mut all = BTreeMap::<(&str, &str), Vec<&str>>::new();
    for source in sources.iter().filter(|source| source.path.contains("/src/")) {
        let name = source.path.rsplit('/').next().unwrap_or_default();
        if !USUAL_FILES.contains(&name) {
            all.entry((crate_of(&source.path), name)).or_default().push(&source.path);
        }
    }
    for ((home, name), files) in all.into_iter().filter(|(_, files)| files.len() > MOST_FILES) {
        let what = format!("{} files of {home} are named {name}: say what each is about", files.len());
        findings.extend(files.iter().map(|file| Finding::new(file, 1, "file-names", &*what)));
    }
}

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
