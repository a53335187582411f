//! Limits of the process, and its children: stand-ins where this system works otherwise.

use std::io;
use std::process::Command;

/// 0: there is no service manager that compares it.
pub fn monotonic_us() -> u64 {
    0
}

/// 0: users have no numbers here.
pub fn effective_uid() -> u32 {
    0
}

/// As on Unix.
///
/// # Errors
/// Always: there is no such limit.
pub fn fd_limit() -> io::Result<(u64, u64)> {
    Err(io::ErrorKind::Unsupported.into())
}

/// As on Unix.
///
/// # Errors
/// Always.
pub fn set_fd_limit(_soft: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// As on Unix.
///
/// # Errors
/// Always.
pub fn raise_fd_limit() -> io::Result<(u64, u64)> {
    Err(io::ErrorKind::Unsupported.into())
}

/// As on Unix.
///
/// # Errors
/// Never: this system writes none.
pub fn write_no_core_files() -> io::Result<()> {
    Ok(())
}

/// Leaves the command as it is.
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    command
}

/// As on Unix.
///
/// # Errors
/// Always: a child is ended by its handle here.
pub fn terminate(_pid: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Never returns: this system does not tell when a parent ends.
pub fn wait_for_parent() {
    loop {
        std::thread::park();
    }
}

/// Leaves the command as it is.
pub fn in_new_session(command: &mut Command) -> &mut Command {
    command
}

/// As on Unix.
///
/// # Errors
/// Always.
pub fn silence_stdio() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Does nothing.
pub fn run_behind() {}
