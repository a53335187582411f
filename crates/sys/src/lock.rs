//! Locks on files.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// Locks the file for this process, for as long as it is open. False if another process has it.
///
/// # Errors
/// The error of the system call.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open as long as `file` is borrowed.
    let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_holder() {
        let path = std::env::temp_dir().join(format!("adit-lock-{}", std::process::id()));
        let (first, second) = (File::create(&path).unwrap(), File::open(&path).unwrap());
        assert!(try_lock(&first).unwrap());
        assert!(!try_lock(&second).unwrap(), "another description of the same file");
        drop(first);
        assert!(try_lock(&second).unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
