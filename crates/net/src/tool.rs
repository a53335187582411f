//! Programs of the system that administer it, run to their end: systemctl, useradd, ufw and the like.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::child;

/// Bytes of a tool's output that are kept.
const MAX_OUTPUT: usize = 64 * 1024;

/// The end of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Whether its exit status was 0.
    pub ok: bool,
    /// Its standard output and then its standard error, at most 64 KiB, trimmed.
    pub text: String,
}

/// Runs `program`, found in `PATH`, without standard input, and waits for its end. No shell is involved.
///
/// # Errors
/// `NotFound` if there is no such program, and the system's error if it cannot be started.
pub fn run(program: &str, args: &[&str]) -> io::Result<Ran> {
    let output = child::command(program).args(args).stdin(Stdio::null()).output()?;
    let mut bytes = output.stdout;
    bytes.extend_from_slice(&output.stderr);
    bytes.truncate(MAX_OUTPUT);
    Ok(Ran { ok: output.status.success(), text: String::from_utf8_lossy(&bytes).trim().to_owned() })
}

/// Runs a program in the place of this one, with these words and this one's files; gives its status where a process
/// cannot become another.
///
/// # Errors
/// When it cannot be run.
pub fn become_program(program: &Path, words: &[&OsStr]) -> io::Result<u8> {
    let mut command = Command::new(program);
    command.args(words);
    #[cfg(unix)]
    return Err(std::os::unix::process::CommandExt::exec(&mut command));
    #[cfg(not(unix))]
    Ok(command.status()?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_output() {
        let ran = run("sh", &["-c", "echo out; echo err >&2"]).unwrap();
        assert_eq!(ran, Ran { ok: true, text: "out\nerr".to_owned() });
        assert!(!run("sh", &["-c", "exit 3"]).unwrap().ok);
        assert_eq!(run("no-such-tool-of-adit", &[]).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
