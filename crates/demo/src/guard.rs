//! Processes that end with the one that started them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

/// Becomes the program in `words`, to be killed by the kernel when the thread that started this process ends. `before` is
/// called once that is sure. The programs that start others here have a command of this name.
///
/// # Errors
/// If the program cannot be run, or `before` fails; else it does not return.
pub fn guard(words: &[OsString], before: impl FnOnce() -> Result<()>) -> Result<()> {
    let parent = getppid();
    prctl::set_pdeathsig(Signal::SIGKILL).context("ask for a signal at the parent's end")?;
    ensure!(getppid() == parent, "the parent has ended");
    before()?;
    let (program, args) = words.split_first().context("no program")?;
    let error = Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("run {}", program.display()))
}
