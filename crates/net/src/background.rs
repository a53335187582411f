//! Into the background, before there is a thread: the program starts itself again in a session of its own, and waits
//! until that process says that it is up, or ends.
//!
//! The pipe between the two is the child's standard output. Its standard error stays where it was until it is up, so
//! that the caller sees every error.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Says to the process that it is the one in the background.
const VARIABLE: &str = "ADIT_BACKGROUND";

/// The byte that it writes once it is up.
const UP: u8 = 6;

/// Whether this is the process in the background.
pub fn is_background() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Starts this program again, in the background and with the same arguments, and waits until it is up. The result is
/// the status to exit with: 0, or that of the other process.
///
/// # Errors
/// When it cannot be started.
pub fn start() -> io::Result<u8> {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(name).args(args).env(VARIABLE, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = adit_sys::process::in_new_session(&mut command).spawn()?;
    let said = child.stdout.take().into_iter().flat_map(io::Read::bytes);
    if said.map_while(Result::ok).any(|byte| byte == UP) {
        return Ok(0);
    }
    let status = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(status.filter(|status| *status != 0).unwrap_or(u8::MAX))
}

/// Asks the process of this number to end (SIGTERM).
///
/// # Errors
/// When there is none, or it is another user's.
pub fn end(pid: u32) -> io::Result<()> {
    adit_sys::process::terminate(pid)
}

/// Reports that the process in the background is up, and closes the streams of the process that has started it.
///
/// # Errors
/// When the report cannot be written.
pub fn is_up() -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(&[UP]).and_then(|()| out.flush())?;
    adit_sys::process::silence_stdio()
}
