//! The architecture's invariants, from `cargo metadata` and a text scan.
//!
//! A finding reads `file:line: rule: what` and fails the run; a question is only printed. Each rule is named in
//! `ARCHITECTURE.md` beside the invariant that it keeps.

mod crates;
pub(crate) mod lines;
mod modules;
mod names;
mod source;
mod text;
mod words;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crates::Workspace;
pub(crate) use lines::lines;
use source::Source;

use crate::process::output;

/// Every rule.
const RULES: &[&str] = &[
    "confined",
    "direction",
    "file-names",
    "forbid-unsafe",
    "foreign-names",
    "leftovers",
    "lints",
    "long-file",
    "long-function",
    "machine-paths",
    "module-cycle",
    "no-sleep",
    "plain-words",
    "protocol-folders",
    "protocol-words",
    "sans-io",
    "sockets",
    "test-sleep",
    "type-names",
    "unsafe",
];

/// The result of a run of all rules.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Places that break an invariant.
    pub(crate) findings: Vec<Finding>,
    /// Places that a reviewer should look at.
    pub(crate) questions: Vec<Finding>,
    /// Number of files read.
    pub(crate) files: usize,
    /// Number of workspace members.
    pub(crate) crates: usize,
}

/// One place that a rule objects to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path from the workspace root.
    file: String,
    /// Line, from 1.
    line: usize,
    rule: &'static str,
    what: String,
}

impl Finding {
    fn new(file: &str, line: usize, rule: &'static str, what: impl Into<String>) -> Self {
        assert!(RULES.contains(&rule), "{rule} is not in RULES");
        Self { file: file.into(), line, rule, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.rule, self.what)
    }
}

/// Runs every rule over the workspace at `root`.
pub(crate) fn check(root: &Path) -> anyhow::Result<Report> {
    let workspace = Workspace::load(root)?;
    let mut report = Report { crates: workspace.len(), ..Report::default() };
    workspace.check(&mut report.findings)?;

    let mut sources = Vec::new();
    for path in text_files(root)? {
        // Not UTF-8: a picture or a corpus file. Not there: deleted and not yet committed.
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        report.files += 1;
        text::machine_paths(&path, &text, &mut report.findings);
        words::plain(&path, &text, &mut report.findings);
        if path.ends_with(".rs") {
            sources.push(Source::new(&path, &text));
        }
    }
    for source in &sources {
        text::findings(source, &mut report.findings);
        modules::protocol_words(source, &mut report.findings);
        modules::sleeps(source, &mut report.findings);
        modules::test_sleeps(source, &mut report.findings);
        text::questions(source, &mut report.questions);
    }
    text::protocol_folders(&sources, &mut report.findings);
    modules::cycles(&sources, &mut report.findings);
    modules::folder_cycles(&sources, &mut report.findings);
    names::findings(&sources, &mut report.findings);
    names::file_names(&sources, &mut report.findings);

    report.findings.sort();
    report.findings.dedup();
    report.questions.sort();
    Ok(report)
}

/// Tracked files and new ones that are not ignored, relative to `root`, with `/`; outside of git, all files.
fn text_files(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut files = Vec::new();
    if root.join(".git").exists() {
        let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let list = output(Command::new("git").args(list).current_dir(root))?;
        files.extend(list.split_terminator('\0').map(str::to_string));
    } else {
        walk(root, "", &mut files)?;
    }
    files.sort();
    files.dedup();
    Ok(files)
}

fn walk(root: &Path, folder: &str, files: &mut Vec<String>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(root.join(folder)).with_context(|| format!("read {folder}"))? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|name| anyhow::anyhow!("file name: {name:?}"))?;
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if entry.file_type()?.is_file() {
            files.push(path);
        } else if entry.file_type()?.is_dir() && name != "target" {
            walk(root, &path, files)?;
        }
    }
    Ok(())
}
