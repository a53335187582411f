//! Unix sockets, and modes of files.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

pub(crate) use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
pub(crate) use tokio::net::{UnixListener, UnixStream};

/// Files that `options` make have this mode.
pub(crate) fn set_mode(options: &mut OpenOptions, mode: u32) -> &mut OpenOptions {
    options.mode(mode)
}

/// Nobody but its owner may use the file.
///
/// # Errors
/// As chmod(2).
pub(crate) fn keep_private(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o600))
}

/// Whether somebody listens at a socket's path.
pub(crate) fn answers(path: &Path) -> bool {
    StdUnixStream::connect(path).is_ok()
}

/// Device and number of a file, and whether it is a socket. Links are not followed.
///
/// # Errors
/// As lstat(2).
pub(crate) fn identify(path: &Path) -> io::Result<((u64, u64), bool)> {
    let meta = fs::symlink_metadata(path)?;
    Ok(((meta.dev(), meta.ino()), meta.file_type().is_socket()))
}
