//! `adit doctor`: is this machine fit for a proxy? Each finding has the value found, the value wanted, and the command
//! that gets from one to the other.
//!
//! Files are read below a root directory, so that recorded trees of `/proc` and `/sys` can be judged. Questions to the
//! network (clock, DNS, peer) are asked for the machine itself only.

pub(crate) mod config;
mod kernel;
mod live;
mod network;

use std::path::PathBuf;
use std::process::ExitCode;

use adit_model::Config;
use adit_model::shown;
use clap::Args;
use serde::Serialize;

use crate::load::files;
use crate::load::files::FileArgs;
use crate::load::readable::quoted;
use crate::machine::Root;
use crate::print;

/// Width of the text, in columns.
const WIDTH: usize = 79;

/// Flags of `adit doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Try this server too: a link, or - for links or lines on standard input
    #[arg(long, value_name = "LINK|-")]
    peer: Option<String>,
    #[command(flatten)]
    files: FileArgs,
    /// Time server that the clock is compared with, HOST or HOST:PORT
    #[arg(long, value_name = "HOST", default_value = "pool.ntp.org")]
    time_server: String,
    /// Ask nothing over the network: no clock, DNS and peer
    #[arg(long, conflicts_with = "peer")]
    offline: bool,
    /// Show passed checks with their values, too
    #[arg(long)]
    all: bool,
    /// Write for a program
    #[arg(long)]
    json: bool,
    /// Directory that stands for /
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

/// The judgement of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Level {
    Fail,
    Warn,
    Pass,
}

/// One check.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Finding {
    /// Its name.
    pub(crate) check: &'static str,
    pub(super) level: Level,
    /// The value found.
    pub(crate) found: String,
    /// The value wanted.
    pub(super) wanted: String,
    /// The command that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
}

impl Finding {
    pub(crate) fn new(
        check: &'static str,
        level: Level,
        found: impl Into<String>,
        wanted: impl Into<String>,
    ) -> Self {
        Self { check, level, found: found.into(), wanted: wanted.into(), command: None }
    }

    /// The same with a command, which is dropped if the check has passed.
    pub(super) fn fix(mut self, command: impl Into<String>) -> Self {
        self.command = (self.level != Level::Pass).then(|| command.into());
        self
    }
}

/// [`Level::Pass`] if `good`, else `bad`.
pub(super) fn judge(good: bool, bad: Level) -> Level {
    if good { Level::Pass } else { bad }
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let root = Root::new(args.root.as_deref());
    let mut findings = Vec::new();
    let config = config(args, &root, &mut findings);
    if root.is_machine() && !args.offline {
        findings.extend(live::checks(&root, &args.time_server)?);
    }
    findings.extend(kernel::checks(&root, config.as_ref()));
    findings.extend(network::checks(&root, config.as_ref()));
    if let Some(config) = &config {
        findings.extend(config::checks(&root, config));
    }
    if let Some(peer) = &args.peer {
        findings.extend(live::peer(peer)?);
    }
    if args.json {
        print::data(format_args!("{}\n", serde_json::json!({ "findings": findings })))?;
    } else {
        print::text(text(&findings, args.all))?;
    }
    let failed = findings.iter().any(|finding| finding.level == Level::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The configuration, if there is one; one that is named must be good.
fn config(args: &DoctorArgs, root: &Root, findings: &mut Vec<Finding>) -> Option<Config> {
    let mut named = args.files.clone();
    if args.root.is_some() && named.config.is_empty() {
        named.config = vec![root.at("/etc/adit/adit.toml")];
    }
    let paths = files::paths(&named).ok()?;
    if args.files.config.is_empty() && !paths.iter().all(|path| path.exists()) {
        return None;
    }
    findings.extend(paths.iter().map(|path| config::mode(path)));
    match files::load(&named) {
        Ok(loaded) => {
            findings.push(Finding::new("configuration", Level::Pass, "no errors", "no errors"));
            Some(loaded.config)
        }
        Err(errors) => {
            let found =
                if errors.len() == 1 { "1 error".to_owned() } else { format!("{} errors", errors.len()) };
            let list: Vec<String> = paths.iter().map(|path| quoted(&path.to_string_lossy())).collect();
            let finding = Finding::new("configuration", Level::Fail, found, "no errors");
            findings.push(finding.fix(format!("adit check -c {}", list.join(" "))));
            None
        }
    }
}

fn text(findings: &[Finding], all: bool) -> String {
    let mut out = String::new();
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.level);
    for finding in &sorted {
        match finding.level {
            Level::Pass if !all => {}
            level @ (Level::Fail | Level::Warn | Level::Pass) => {
                let word = match level {
                    Level::Fail => "FAIL",
                    Level::Warn => "WARN",
                    Level::Pass => "PASS",
                };
                let Finding { check, found, wanted, .. } = finding;
                let line = format!("{word} {check}: {}", shown::line(found));
                let wanted = format!("wanted: {}", shown::line(wanted));
                if line.chars().count() + wanted.chars().count() + 3 <= WIDTH {
                    out.push_str(&format!("{line} ({wanted})\n"));
                } else {
                    out.push_str(&format!("{line}\n     {wanted}\n"));
                }
                if let Some(command) = &finding.command {
                    out.push_str(&format!("     $ {}\n", shown::line(command)));
                }
            }
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let passed: Vec<&str> =
        sorted.iter().filter(|finding| finding.level == Level::Pass).map(|finding| finding.check).collect();
    if !all && !passed.is_empty() {
        wrap(&mut out, "PASS ", &passed);
    }
    out.push_str(&format!(
        "{} checks: {} failed, {} warnings, {} passed\n",
        findings.len(),
        count(Level::Fail),
        count(Level::Warn),
        passed.len()
    ));
    out
}

/// Words with commas, on lines of [`WIDTH`].
fn wrap(out: &mut String, lead: &str, words: &[&str]) {
    let mut line = lead.to_owned();
    for (index, word) in words.iter().enumerate() {
        let end = if index + 1 < words.len() { ", " } else { "" };
        // Five columns are the lead, or the indentation in its place.
        let used = line.chars().count().max(lead.chars().count());
        if used + word.chars().count() + lead.chars().count() > WIDTH {
            out.push_str(line.trim_end());
            out.push_str("\n     ");
            line.clear();
        }
        line.push_str(word);
        line.push_str(end);
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

#[cfg(test)]
mod tests;
