//! The size of the tree and what a reader meets in it: lines, names of types, places that match on protocols, and
//! circles of imports between folders.
//!
//! ```text
//! bench/lines.tsv     date  commit  product  tools  tests  types  visible  one-word  shared-in-crate  shared  places  circles
//! ```
//!
//! Lines are those of Rust files, blank ones and comments included. Tools are the crates that no user runs for traffic
//! (the lab, its link emulator, kits for tests, these commands, fuzz targets); everything else is product, less what is
//! compiled for tests only. A definition is visible when more than its file can name it. A place is a line of code that
//! says `InboundProtocol::` or `OutboundProtocol::`, outside of the model, the foreign formats and the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::source::Source;
use super::{names, text_files};
use crate::process::output;

/// The file of figures of earlier commits, from the root of the workspace.
const STORED: &str = "bench/lines.tsv";
const HEAD: &str = "# date\tcommit\tproduct\ttools\ttests\ttypes\tvisible\tone-word\tshared-in-crate\tshared\tplaces\tcircles";

/// Crates and folders that are tools.
const TOOLS: &[&str] = &["tools/"];
/// Folders in which a protocol may be matched on by name.
const PROTOCOL_HOMES: &[&str] = &["crates/model/", "crates/formats/", "crates/engine/src/protocols/registry"];
const PROTOCOL_ENUMS: [&str; 2] = ["InboundProtocol", "OutboundProtocol"];

/// Lines of one crate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Lines {
    product: usize,
    tools: usize,
    tests: usize,
}

/// Everything that is counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    crates: BTreeMap<String, Lines>,
    types: usize,
    visible: usize,
    one_word: usize,
    shared_in_crate: usize,
    shared: usize,
    /// Lines that match on a protocol, by file.
    places: BTreeMap<String, usize>,
    /// Folders that import each other in a circle, with the crate in front.
    circles: Vec<Vec<String>>,
}

/// Prints the figures, beside the last stored ones; `--names` also the names that are shared inside a crate; `--save`
/// stores them.
///
/// # Errors
/// An unknown option, or a tree that cannot be read.
pub(crate) fn lines(root: &Path, args: &[&str]) -> anyhow::Result<()> {
    ensure!(
        args.iter().all(|arg| matches!(*arg, "--save" | "--names")),
        "unknown option: {}",
        args.join(" ")
    );
    let mut sources = Vec::new();
    for path in text_files(root)?.into_iter().filter(|path| path.ends_with(".rs")) {
        // Not there: deleted and not yet committed.
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        sources.push(Source::new(&path, &text));
    }
    let count = count(&sources);
    let stored = std::fs::read_to_string(root.join(STORED)).unwrap_or_default();
    print(&count, stored.lines().rfind(|line| !line.starts_with('#')));
    if args.contains(&"--names") {
        for ((home, name), places) in names::shared(&sources) {
            let files: Vec<&str> = places.iter().map(|(file, _)| *file).collect();
            println!("{home} {name}: {}", files.join(", "));
        }
    }
    if args.contains(&"--save") {
        let git = |args: &[&str]| output(Command::new("git").current_dir(root).args(args));
        let commit = git(&["log", "-1", "--format=%cs%x09%h"])?;
        let text = if stored.is_empty() { format!("{HEAD}\n") } else { stored };
        std::fs::write(root.join(STORED), format!("{text}{}\t{}\n", commit.trim(), row(&count)))
            .with_context(|| format!("write {STORED}"))?;
        println!("lines: stored in {STORED}");
    }
    Ok(())
}

fn print(count: &Count, before: Option<&str>) {
    println!("| crate | product | tools | tests |\n|---|--:|--:|--:|");
    for (name, lines) in &count.crates {
        println!("| {name} | {} | {} | {} |", lines.product, lines.tools, lines.tests);
    }
    let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    println!("\nfiles that match on protocols, the most first:");
    let mut places: Vec<_> = count.places.iter().collect();
    places.sort_by_key(|(file, lines)| (std::cmp::Reverse(**lines), file.as_str()));
    for (file, lines) in places.iter().take(10) {
        println!("  {lines:4} {file}");
    }
    for circle in &count.circles {
        println!("circle: {}", circle.join(" "));
    }
    let visible = count.visible;
    println!("\ntypes: {}, visible outside their file: {visible}", count.types);
    println!("names of one word: {:.0} % of the visible", percent(count.one_word, visible));
    println!("visible and shared inside a crate: {}", count.shared_in_crate);
    println!("visible and shared over the workspace: {:.0} %", percent(count.shared, visible));
    println!(
        "lines that match on protocols: {} in {} files",
        count.places.values().sum::<usize>(),
        places.len()
    );
    println!("circles between folders: {}", count.circles.len());
    println!("\n{HEAD}");
    if let Some(before) = before {
        println!("{before}");
    }
    println!("now\t\t{}", row(count));
}

fn row(count: &Count) -> String {
    let mut sum = Lines::default();
    for lines in count.crates.values() {
        sum.product += lines.product;
        sum.tools += lines.tools;
        sum.tests += lines.tests;
    }
    let places: usize = count.places.values().sum();
    let Count { types, visible, one_word, shared_in_crate, shared, circles, .. } = count;
    let Lines { product, tools, tests } = sum;
    [product, tools, tests, *types, *visible, *one_word, *shared_in_crate, *shared, places, circles.len()]
        .map(|number| number.to_string())
        .join("\t")
}

fn count(sources: &[Source]) -> Count {
    let mut count = Count::default();
    let mut visible = BTreeMap::<String, usize>::new();
    for source in sources {
        let home = crate_of(&source.path);
        let is_tool = is_tool(&source.path);
        let lines = count.crates.entry(home.to_owned()).or_default();
        let (all, own) = (source.line_count(), source.product_lines().count());
        lines.tests += all - own;
        *if is_tool { &mut lines.tools } else { &mut lines.product } += own;
        if is_tool {
            continue;
        }
        for definition in source.definitions().into_iter().filter(|one| !source.is_test(one.line)) {
            count.types += 1;
            if definition.is_visible {
                *visible.entry(definition.name).or_default() += 1;
            }
        }
        let places = protocol_places(source);
        if places > 0 {
            count.places.insert(source.path.clone(), places);
        }
    }
    for (name, definitions) in visible {
        count.visible += definitions;
        count.one_word += if is_one_word(&name) { definitions } else { 0 };
        count.shared += if definitions > 1 { definitions } else { 0 };
    }
    count.shared_in_crate = names::shared(sources).values().map(Vec::len).sum();
    count.circles = circles(&folder_imports(sources));
    count
}

/// Whether a file belongs to a tool.
pub(super) fn is_tool(path: &str) -> bool {
    TOOLS.iter().any(|tool| path.starts_with(tool))
}

/// `engine` of `crates/engine/src/lib.rs`, `xtask` of `tools/xtask/src/main.rs`.
pub(super) fn crate_of(path: &str) -> &str {
    let mut parts = path.split('/');
    match parts.next() {
        Some("crates" | "tools") => parts.next().unwrap_or_default(),
        first => first.unwrap_or_default(),
    }
}

/// Whether a name in camel case has a single word.
fn is_one_word(name: &str) -> bool {
    name.chars().filter(char::is_ascii_uppercase).count() == 1
}

fn protocol_places(source: &Source) -> usize {
    if PROTOCOL_HOMES.iter().any(|home| source.path.starts_with(home)) {
        return 0;
    }
    let is_place = |segments: &[String]| {
        segments.windows(2).any(|pair| PROTOCOL_ENUMS.contains(&pair[0].as_str()) && pair[1] != "self")
    };
    let names = source.names();
    let lines = names.iter().filter(|name| is_place(&name.segments) && !source.is_test(name.line));
    lines.map(|name| name.line).collect::<BTreeSet<_>>().len()
}

/// Imports between folders of a crate, tests aside: from and to, with the file and line of the first. A folder and the
/// folders beneath it are one.
pub(super) fn folder_imports(sources: &[Source]) -> BTreeMap<(String, String), (String, usize)> {
    let modules: BTreeMap<String, String> = sources
        .iter()
        .filter_map(|source| Some((module_of(&source.path)?, folder_of(&source.path, sources))))
        .collect();
    let mut imports = BTreeMap::new();
    for source in sources {
        let Some(module) = module_of(&source.path) else { continue };
        let from = modules[&module].as_str();
        for name in source.names().iter().filter(|name| !source.is_test(name.line)) {
            let Some(to) = target(&module, &name.segments, &modules) else { continue };
            if !to.starts_with(from) && !from.starts_with(to) {
                let edge = (from.to_owned(), to.to_owned());
                imports.entry(edge).or_insert_with(|| (source.path.clone(), name.line));
            }
        }
    }
    imports
}

/// Groups of folders that import each other in a circle.
pub(super) fn circles(imports: &BTreeMap<(String, String), (String, usize)>) -> Vec<Vec<String>> {
    let mut edges = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (from, to) in imports.keys() {
        edges.entry(from).or_default().insert(to);
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|&from| (from, reachable(from, &edges))).collect();
    let mut groups = BTreeSet::new();
    for (&from, reached) in &reach {
        if reached.contains(from) {
            let back = |to: &&&str| reach.get(**to).is_some_and(|reached| reached.contains(from));
            groups.insert(reached.iter().filter(back).map(|to| (*to).to_owned()).collect::<Vec<_>>());
        }
    }
    groups.into_iter().collect()
}

fn reachable<'a>(from: &str, edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut reached, mut queue) = (BTreeSet::new(), vec![from]);
    while let Some(at) = queue.pop() {
        for &to in edges.get(at).into_iter().flatten() {
            if reached.insert(to) {
                queue.push(to);
            }
        }
    }
    reached
}

/// `engine::dns::cache` of `crates/engine/src/dns/cache.rs`; `None` for files of tests and examples.
fn module_of(path: &str) -> Option<String> {
    let (_, inside) = path.split_once("/src/")?;
    let inside = inside.strip_suffix(".rs")?;
    let mut parts = vec![crate_of(path)];
    parts.extend(inside.split('/').filter(|part| !matches!(*part, "mod" | "lib" | "main")));
    Some(parts.join("::"))
}

/// The folder of a file; a file beside a folder of its name belongs to that.
fn folder_of(path: &str, sources: &[Source]) -> String {
    let own = path.strip_suffix(".rs").unwrap_or(path).to_owned() + "/";
    let has_own = sources.iter().any(|source| source.path.starts_with(&own));
    if has_own { own } else { path[..=path.rfind('/').unwrap_or(0)].to_owned() }
}

/// The folder that a path named in `module` leads to.
fn target<'a>(module: &str, segments: &[String], modules: &'a BTreeMap<String, String>) -> Option<&'a str> {
    let mut parts: Vec<&str> = match segments.first().map(String::as_str) {
        Some("crate") => module.split("::").take(1).collect(),
        Some("super" | "self") => module.split("::").collect(),
        _ => return None,
    };
    for segment in segments {
        match segment.as_str() {
            "crate" | "self" => {}
            "super" => drop(parts.pop()),
            segment => parts.push(segment),
        }
    }
    while parts.len() > 1 {
        if let Some(folder) = modules.get(&parts.join("::")) {
            return Some(folder);
        }
        parts.pop();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(files: &[(&str, &str)]) -> Count {
        count(&files.iter().map(|(path, text)| Source::new(path, text)).collect::<Vec<_>>())
    }

    #[test]
    fn lines_are_of_product_tools_or_tests() {
        let count = counted(&[
            ("crates/a/src/lib.rs", "struct A;\n\n#[cfg(test)]\nmod tests {\n}\n"),
            ("crates/a/tests/t.rs", "fn t() {}\n"),
            ("tools/xtask/src/main.rs", "fn main() {}\n"),
        ]);
        assert_eq!(count.crates["a"], Lines { product: 2, tools: 0, tests: 4 });
        assert_eq!(count.crates["xtask"], Lines { product: 0, tools: 1, tests: 0 });
    }

    #[test]
    fn shared_names_are_those_of_visible_types() {
        let count = counted(&[
            ("crates/a/src/x.rs", "pub struct Flow;\npub(crate) enum FlowTable { A }\nstruct Own;\n"),
            ("crates/a/src/y.rs", "pub(super) struct Flow<T>(T);\nstruct Own;\n"),
            ("crates/b/src/lib.rs", "pub trait FlowTable {}\n#[cfg(test)]\nmod tests { pub struct Flow; }\n"),
        ]);
        let Count { types, visible, one_word, shared_in_crate, shared, .. } = count;
        assert_eq!((types, visible, one_word, shared_in_crate, shared), (6, 4, 2, 2, 4));
    }

    #[test]
    fn protocols_are_matched_on_at_home_only() {
        let text =
            "fn f(p: InboundProtocol) { match p { InboundProtocol::A => 1, InboundProtocol::B => 2 } }\n";
        let count = counted(&[("crates/model/src/x.rs", text), ("crates/adit/src/y.rs", text)]);
        assert_eq!(count.places, BTreeMap::from([("crates/adit/src/y.rs".to_owned(), 1)]));
    }

    #[test]
    fn circles_are_between_folders_and_not_between_parent_and_child() {
        let files = [
            ("crates/a/src/x/mod.rs", "use crate::y::Y;\nuse self::inner::I;\n"),
            ("crates/a/src/x/inner.rs", "use super::X;\n"),
            ("crates/a/src/y.rs", "use crate::z::Z;\n"),
            ("crates/a/src/y/part.rs", "use crate::x::X;\n"),
            ("crates/a/src/z/mod.rs", ""),
        ];
        let circle = vec!["crates/a/src/x/".to_owned(), "crates/a/src/y/".to_owned()];
        assert_eq!(counted(&files).circles, [circle]);
        assert!(counted(&files[..3]).circles.is_empty());
    }
}
