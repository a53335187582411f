//! Child processes.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// The cargo that started this program.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Runs a command whose output goes to the terminal.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    ensure!(status.success(), "{status}: {command:?}");
    Ok(())
}

/// Runs a command for its standard output.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {command:?}: {}", output.status, stderr.trim());
    String::from_utf8(output.stdout).with_context(|| format!("output of {command:?} in UTF-8"))
}
