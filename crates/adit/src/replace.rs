//! Files that are replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::Path;

/// A file as it was before it was read.
pub(crate) struct Seen {
    modified: (i64, i64),
    len: u64,
    inode: u64,
}

impl Seen {
    /// The file as it is now.
    ///
    /// # Errors
    /// When it is not there.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self { modified: (found.mtime(), found.mtime_nsec()), len: found.len(), inode: found.ino() })
    }

    fn is(&self, other: &Self) -> bool {
        (self.modified, self.len, self.inode) == (other.modified, other.len, other.inode)
    }
}

/// Puts `text` in the place of a file in one step, with the same mode and owner.
///
/// # Errors
/// When that fails, or somebody else has changed the file since it was `seen`; it is as it was then.
pub(crate) fn replace(path: &Path, text: &str, seen: &Seen) -> io::Result<()> {
    // A link stays one.
    let path = fs::canonicalize(path)?;
    let before = fs::metadata(&path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let new = path.with_file_name(name);
    let written = write_new(&new, text, &before).and_then(|()| {
        if seen.is(&Seen::of(&path)?) {
            fs::rename(&new, &path)?;
            // The name is on disk, too, when it returns.
            path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
        } else {
            Err(io::Error::new(io::ErrorKind::WouldBlock, "somebody else is writing it"))
        }
    });
    if written.is_err() {
        fs::remove_file(&new).ok();
    }
    written
}

fn write_new(path: &Path, text: &str, before: &fs::Metadata) -> io::Result<()> {
    let mut file: File = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Left by a process of the same number that was killed.
            fs::remove_file(path)?;
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?
        }
        other => other?,
    };
    file.write_all(text.as_bytes())?;
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
        chown(path, Some(before.uid()), Some(before.gid()))?;
    }
    file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o7777))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_in_one_step_with_its_mode() {
        let dir = std::env::temp_dir().join(format!("adit-replace-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (path, link) = (dir.join("mudb.json"), dir.join("link.json"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let seen = Seen::of(&link).unwrap();
        replace(&link, "new", &seen).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let late = replace(&link, "third", &seen).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::WouldBlock, "it is another file by now");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "nothing is left behind");
        fs::remove_dir_all(dir).unwrap();
    }
}
