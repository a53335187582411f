//! Files that adit keeps: nobody else may read them, and each is replaced as a whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::unix::set_mode;

/// `path` with `suffix` behind its name.
pub fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Reads a regular file of at most `max` bytes; one that does not answer costs an error.
///
/// # Errors
/// The system's, or the reason in words.
pub fn read(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    Ok(std::mem::take(&mut *adit_model::files::read(path, max)?))
}

/// As [`read`], for a text.
///
/// # Errors
/// As [`read`]; also for bytes that are no UTF-8.
pub fn read_text(path: &Path, max: usize) -> io::Result<String> {
    String::from_utf8(read(path, max)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// Opens a regular file for reading.
///
/// # Errors
/// The system's, or the reason in words.
pub fn open(path: &Path) -> io::Result<File> {
    Ok(adit_model::files::open(path)?)
}

/// Opens a file for reading and writing, and makes it with mode 0600 if there is none.
pub fn private() -> OpenOptions {
    let mut options = File::options();
    set_mode(options.read(true).write(true).create(true), 0o600);
    options
}

/// Puts `bytes` in the place of the file at `path`, with `mode` from the first byte on. When this returns, they survive a
/// loss of power. Gives the file, open for reading and writing.
///
/// # Errors
/// The system's error; the file is as it was then.
pub fn replace(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<File> {
    let new = suffixed(path, ".new");
    let placed = write_new(&new, mode, bytes).and_then(|file| {
        fs::rename(&new, path)?;
        Ok(file)
    });
    if placed.is_err() {
        fs::remove_file(&new).ok();
    }
    sync_folder(path);
    placed
}

/// Writes a file that takes the place of any other at `path`, links included, and syncs it.
///
/// # Errors
/// The system's error.
pub fn write_new(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = set_mode(File::options().read(true).write(true).create_new(true), mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(file)
}

/// Has the names beside `path` survive a loss of power. Some file systems cannot, and need not.
pub fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new("."))).and_then(|folder| folder.sync_all()).ok();
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn files_are_replaced_as_a_whole() {
        let dir = std::env::temp_dir().join(format!("adit-files-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (path, other) = (dir.join("a"), dir.join("other"));
        fs::write(&other, "kept").unwrap();
        // Somebody has put a link where the new file is written.
        symlink(&other, suffixed(&path, ".new")).unwrap();
        for text in ["one", "two, longer", ""] {
            replace(&path, 0o640, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
        // A folder cannot be replaced, and nothing is left beside it.
        let folder = dir.join("folder");
        fs::create_dir_all(folder.join("full")).unwrap();
        assert!(replace(&folder, 0o600, b"x").is_err());
        assert!(!suffixed(&folder, ".new").exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
