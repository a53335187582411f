//! The lab, which is a program of its own: it is run when it lies beside this one, or in the path.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use adit_net::tool;
use anyhow::Context as _;

use super::service::in_folders;

/// The name of the program.
const LAB: &str = "adit-bench";

/// Becomes the lab with these words.
///
/// # Errors
/// When it is not there, or cannot be run.
pub(crate) fn run(word: Option<&str>, words: &[OsString]) -> anyhow::Result<ExitCode> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(LAB));
    let path = beside
        .filter(|path| path.is_file())
        .or_else(|| in_folders(LAB.as_ref(), &std::env::var_os("PATH")?))
        .with_context(|| {
            format!(
                "{LAB} is neither beside adit nor in the path\n  \
             hint: packages have it; from the source: cargo build --profile dist -p adit-lab"
            )
        })?;
    let words: Vec<&OsStr> =
        word.map(OsStr::new).into_iter().chain(words.iter().map(AsRef::as_ref)).collect();
    let status = tool::become_program(&path, &words).with_context(|| format!("run {}", path.display()))?;
    Ok(ExitCode::from(status))
}
