//! `adit reload` and `adit diff`: what a running adit does with another configuration.

use std::path::{Path, PathBuf};

use adit_engine::{ControlAnswer, ControlRequest, Differences, GivenFile, ask};
use adit_model::shown;
use anyhow::bail;

use crate::commands::cli::{DiffArgs, ReloadArgs, UpgradeArgs};
use crate::commands::running_process;
use crate::load::files;
use crate::load::files::FileArgs;
use crate::print;
use crate::run::reload::lines;

/// Has the running process read its files again.
pub(super) fn reload(args: &ReloadArgs) -> anyhow::Result<()> {
    let socket = running_process::of_files(args.place.socket.as_ref(), &args.place.files);
    // A file that is no longer good may name the socket all the same, and the process says what is wrong with it.
    let socket = socket.or_else(|error| socket_of_text(&args.place.files).ok_or(error))?;
    let differences =
        differences(&socket, &ControlRequest::Reload, "the configuration that runs stays as it is")?;
    show(&differences, args.json, "reloaded")
}

/// Has the running process replaced by a new one.
pub(super) fn upgrade(args: &UpgradeArgs) -> anyhow::Result<()> {
    let socket = running_process::of_files(args.place.socket.as_ref(), &args.place.files);
    let socket = socket.or_else(|error| socket_of_text(&args.place.files).ok_or(error))?;
    let binary = args.binary.as_ref().map(std::path::absolute).transpose()?;
    // Milliseconds are rounded up: 0 would leave no time at all.
    let drain_s = args.drain.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX);
    let request = ControlRequest::Upgrade { binary, drain_s };
    match running_process::explained(&socket, ask(&socket, &request))? {
        ControlAnswer::Upgraded { pid, version, open } => {
            let left = match open {
                0 => "the old process had nothing open".to_owned(),
                1 => format!("1 connection has {drain_s} s to finish in the old process"),
                _ => format!("{open} connections and flows have {drain_s} s to finish in the old process"),
            };
            print::text(format_args!("upgraded: process {pid} (adit {version}) serves; {left}\n"))
        }
        ControlAnswer::Error(text) => bail!("{text}"),
        ControlAnswer::Status(_)
        | ControlAnswer::Files(_)
        | ControlAnswer::Kicked(_)
        | ControlAnswer::Differences(_)
        | ControlAnswer::Doubts(_)
        | ControlAnswer::Refused(_) => {
            bail!("{} answers something else", socket.display())
        }
    }
}

pub(super) fn diff(args: &DiffArgs) -> anyhow::Result<()> {
    let files = FileArgs::of(args.config.clone());
    let socket = running_process::of_files(args.socket.as_ref(), &files)?;
    let files = args.config.iter().map(|path| given(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let differences = differences(&socket, &ControlRequest::Diff { files }, "this configuration cannot run")?;
    show(&differences, args.json, "compared")
}

fn given(path: &Path) -> anyhow::Result<GivenFile> {
    let (_, text) = files::read(path)?;
    let name = if path == Path::new("-") { path.to_owned() } else { std::path::absolute(path)? };
    Ok(GivenFile { name: name.to_string_lossy().into_owned(), text: text.to_string() })
}

/// The control socket that the text of a file names, even if the rest of it is wrong.
fn socket_of_text(args: &FileArgs) -> Option<PathBuf> {
    let path = files::paths(args).ok()?.into_iter().next()?;
    let (_, text) = files::read(&path).ok()?;
    let mut lines = text.lines().map(str::trim).skip_while(|line| !line.starts_with("[admin]")).skip(1);
    let line =
        lines.by_ref().take_while(|line| !line.starts_with('[')).find(|line| line.starts_with("socket"))?;
    let (_, value) = line.split_once('=')?;
    let value = value.trim().strip_prefix('"')?;
    Some(value.split_once('"')?.0.into())
}

/// Asks for differences; findings go to standard error.
pub(super) fn differences(
    socket: &Path,
    request: &ControlRequest,
    refusal: &str,
) -> anyhow::Result<Differences> {
    let answer = running_process::explained(socket, ask(socket, request))?;
    match answer {
        ControlAnswer::Differences(differences) => Ok(*differences),
        ControlAnswer::Refused(found) => {
            for finding in &found {
                print::remark(finding);
            }
            bail!("{refusal}: {} problem{}", found.len(), if found.len() == 1 { "" } else { "s" })
        }
        ControlAnswer::Error(text) => bail!("{text}"),
        ControlAnswer::Status(_)
        | ControlAnswer::Files(_)
        | ControlAnswer::Kicked(_)
        | ControlAnswer::Doubts(_)
        | ControlAnswer::Upgraded { .. } => {
            bail!("{} answers something else", socket.display())
        }
    }
}

fn show(differences: &Differences, is_json: bool, done: &str) -> anyhow::Result<()> {
    if is_json {
        return print::data(format_args!("{}\n", serde_json::to_string(differences)?));
    }
    for error in &differences.errors {
        print::remark(format_args!("error: {error}"));
    }
    for warning in &differences.warnings {
        print::remark(format_args!("warning: {}", shown::line(warning)));
    }
    if differences.is_empty() {
        return print::text(format_args!("{done}: no difference\n"));
    }
    let lines = lines(differences)
        .into_iter()
        .fold(String::new(), |text, line| text + "  " + &shown::line(&line) + "\n");
    print::text(format_args!("{done}\n{lines}"))
}
