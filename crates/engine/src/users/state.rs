//! The state file of one configuration: two generations on disk, and one process at a time.
//!
//! ```text
//!   PATH         the newest image
//!   PATH.before  the image before it
//!   PATH.new     an image that is being written
//!   PATH.lock    empty; locked while a process uses the others
//! ```
//!
//! To save: write `.new` and sync it, rename PATH to `.before`, rename `.new` to PATH, sync the directory. Whenever that is
//! cut, the newest whole image of the three is at most one save old, and nothing needs repair: an image carries a checksum
//! and a generation. Only a PATH that is there and not whole is damage; it is set aside under another name.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use adit_net::files::{self, private, suffixed};
use adit_net::try_lock;
use thiserror::Error;

use super::image::{Image, MAX_LEN};
use super::lmdb;

/// An image of so many bytes leaves its room for the next one.
const KEPT: usize = 64 << 10;

/// Why a state file cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// Another process has it.
    #[error(
        "another process uses it: stop that one, or give each configuration a file of its own with `state`"
    )]
    Busy,
    /// It is a folder, a device or the like.
    #[error("it is not a regular file")]
    NotAFile,
    /// The system refuses.
    #[error("{0}")]
    System(io::ErrorKind),
}

impl From<io::Error> for StateError {
    fn from(error: io::Error) -> Self {
        Self::System(error.kind())
    }
}

/// A state file that this process holds.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
    /// Room for an image that is written, if it is small: one of many users is written now and then, and its room is worth
    /// more than the time to get it.
    bytes: Vec<u8>,
}

/// Result of opening the file.
#[derive(Debug)]
pub(super) struct OpenedState {
    pub(super) file: StateFile,
    /// The newest whole image; `None` where there is none.
    pub(super) image: Option<Image>,
    /// There was no state file of any kind.
    pub(super) is_first: bool,
    /// A warning for the operator.
    pub(super) warning: Option<String>,
}

/// One of the files.
enum Found {
    Absent,
    Whole(Image),
    /// The store of earlier versions.
    Earlier,
    Damaged,
}

impl StateFile {
    /// Takes the file at `path`, and reads it. A store of earlier versions at `path` gets the name [`earlier_name`].
    ///
    /// # Errors
    /// [`StateError`]; the files are as they were then.
    pub(super) fn open(path: &Path, unix_s: u64) -> Result<OpenedState, StateError> {
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let lock = private().truncate(false).open(suffixed(path, ".lock"))?;
        if !try_lock(&lock)? {
            return Err(StateError::Busy);
        }
        let newest = read(path)?;
        let others = [".new", ".before"].map(|suffix| read(&suffixed(path, suffix)).unwrap_or(Found::Absent));
        let mut is_first = matches!(newest, Found::Absent | Found::Earlier);
        let mut best = None;
        let mut is_damaged = false;
        match newest {
            Found::Whole(image) => best = Some(image),
            Found::Absent => {}
            Found::Earlier => {
                if !try_lock(&File::open(path)?)? {
                    return Err(StateError::Busy);
                }
                fs::rename(path, earlier_name(path))?;
            }
            Found::Damaged => is_damaged = true,
        }
        for image in others.into_iter().filter_map(|found| match found {
            Found::Whole(image) => Some(image),
            Found::Absent | Found::Earlier | Found::Damaged => None,
        }) {
            is_first = false;
            if best.as_ref().is_none_or(|best| best.generation < image.generation) {
                best = Some(image);
            }
        }
        let warning = if is_damaged { Some(set_aside(path, best.as_ref(), unix_s)?) } else { None };
        let mut file = Self { path: path.to_owned(), _lock: lock, bytes: Vec::new() };
        if let Some(image) = &best {
            // Everything is in its place again, and the directory takes files.
            file.save(image)?;
        } else {
            private().truncate(true).open(suffixed(path, ".new"))?;
        }
        Ok(OpenedState { file, image: best, is_first, warning })
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the image on disk. When this returns, it survives a loss of power.
    ///
    /// # Errors
    /// The system's error. The images that were there before are whole then.
    pub(super) fn save(&mut self, image: &Image) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.bytes);
        image.emit(&mut bytes);
        let new = suffixed(&self.path, ".new");
        files::write_new(&new, 0o600, &bytes)?;
        if bytes.capacity() <= KEPT {
            self.bytes = bytes;
        }
        match fs::rename(&self.path, suffixed(&self.path, ".before")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        fs::rename(&new, &self.path)?;
        files::sync_folder(&self.path);
        Ok(())
    }
}

/// The name that a store of earlier versions gets when it stands where the state file is to be.
pub(super) fn earlier_name(path: &Path) -> PathBuf {
    suffixed(path, ".lmdb")
}

fn read(path: &Path) -> Result<Found, StateError> {
    // A pipe would be waited for.
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => return Err(StateError::NotAFile),
        _ => {}
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Absent),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(StateError::NotAFile);
    }
    if lmdb::is_store(&file) {
        return Ok(Found::Earlier);
    }
    let mut bytes = Vec::new();
    // A sector that cannot be read is damage like any other.
    let whole = file.take(MAX_LEN as u64 + 1).read_to_end(&mut bytes).is_ok() && bytes.len() <= MAX_LEN;
    Ok(whole.then(|| Image::parse(&bytes)).flatten().map_or(Found::Damaged, Found::Whole))
}

/// Gives a damaged file another name, and says so.
fn set_aside(path: &Path, used: Option<&Image>, unix_s: u64) -> io::Result<String> {
    let kept = suffixed(path, &format!(".damaged-{unix_s}"));
    fs::rename(path, &kept)?;
    let (path, kept) = (path.display(), kept.display());
    let instead = match used {
        Some(image) => format!("the copy saved {} s before is used", unix_s.saturating_sub(image.saved_at)),
        None => "there is no good copy, and users start from zero".to_owned(),
    };
    Ok(format!("state file {path} is damaged: {instead}; the damaged file is kept as {kept}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::image::tests::image;
    use super::super::tests::{Folder, once_free};
    use super::*;

    fn open(path: &Path) -> OpenedState {
        once_free(|| StateFile::open(path, 2_000_000)).unwrap()
    }

    fn bytes(image: &Image) -> Vec<u8> {
        let mut bytes = Vec::new();
        image.emit(&mut bytes);
        bytes
    }

    #[test]
    fn an_image_outlives_the_process_and_is_private() {
        let dir = Folder::new("state-private");
        let path = dir.path().join("deep/er/a.state");
        let mut opened = open(&path);
        assert!(opened.is_first && opened.image.is_none() && opened.warning.is_none());
        assert!(matches!(StateFile::open(&path, 0), Err(StateError::Busy)));
        for generation in 1..4 {
            opened.file.save(&image(3, generation)).unwrap();
        }
        drop(opened);
        let opened = open(&path);
        assert_eq!((opened.image, opened.is_first, opened.warning), (Some(image(3, 3)), false, None));
        for suffix in ["", ".before", ".lock"] {
            let mode = fs::metadata(suffixed(&path, suffix)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{suffix}");
        }
    }

    /// The process may be killed, or the power cut, at any point of a save.
    #[test]
    fn a_save_that_is_cut_costs_that_save_at_most() {
        let dir = Folder::new("state-cut");
        let path = dir.path().join("a.state");
        let (before, last, next) = (bytes(&image(2, 1)), bytes(&image(2, 2)), bytes(&image(2, 3)));
        let check = |newest: Option<&[u8]>, before: Option<&[u8]>, new: Option<&[u8]>, want: u64| {
            for (suffix, bytes) in [("", newest), (".before", before), (".new", new)] {
                match bytes {
                    Some(bytes) => fs::write(suffixed(&path, suffix), bytes).unwrap(),
                    None => drop(fs::remove_file(suffixed(&path, suffix))),
                }
            }
            let mut opened = open(&path);
            let found = opened.image.as_ref().map(|image| image.generation);
            assert_eq!((found, opened.is_first, opened.warning.as_deref()), (Some(want), false, None));
            // And the next save works.
            opened.file.save(&image(2, want + 1)).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes_of(want + 1));
        };
        for len in 0..next.len() {
            check(Some(&last), Some(&before), Some(&next[..len]), 2);
        }
        check(Some(&last), Some(&before), Some(&next), 3);
        check(None, Some(&last), Some(&next), 3);
        check(None, Some(&last), None, 2);
        check(Some(&next), Some(&last), None, 3);
        check(Some(&last), None, Some(&next[..10]), 2);
    }

    fn bytes_of(generation: u64) -> Vec<u8> {
        bytes(&image(2, generation))
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_the_copy_before_is_used() {
        let dir = Folder::new("state-damaged");
        let path = dir.path().join("a.state");
        let (before, newest) = (bytes(&image(2, 1)), bytes(&image(2, 2)));
        let mut cases: Vec<Vec<u8>> = (0..newest.len()).map(|len| newest[..len].to_vec()).collect();
        cases.extend((0..newest.len()).map(|at| {
            let mut flipped = newest.clone();
            flipped[at] ^= 0x40;
            flipped
        }));
        for case in cases {
            fs::write(&path, &case).unwrap();
            fs::write(suffixed(&path, ".before"), &before).unwrap();
            drop(fs::remove_file(suffixed(&path, ".new")));
            let opened = open(&path);
            assert_eq!(opened.image.map(|image| image.generation), Some(1));
            assert!(opened.warning.unwrap().contains("is damaged: the copy saved 999999 s before is used"));
            assert_eq!(fs::read(suffixed(&path, ".damaged-2000000")).unwrap(), case);
        }
        fs::write(&path, b"x").unwrap();
        fs::remove_file(suffixed(&path, ".before")).unwrap();
        drop(fs::remove_file(suffixed(&path, ".new")));
        let opened = open(&path);
        assert!(opened.image.is_none() && !opened.is_first);
        assert!(opened.warning.unwrap().contains("users start from zero"));
    }

    #[test]
    fn what_the_system_refuses_is_said() {
        let dir = Folder::new("state-refused");
        let path = dir.path().join("a.state");
        fs::create_dir(&path).unwrap();
        assert!(matches!(StateFile::open(&path, 0), Err(StateError::NotAFile)));
        fs::write(dir.path().join("file"), b"").unwrap();
        let error = StateFile::open(&dir.path().join("file/a.state"), 0).unwrap_err();
        assert!(matches!(error, StateError::System(_)), "{error}");
        // A file that is longer than any state file is not read into memory.
        fs::remove_dir(&path).unwrap();
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(open(&path).warning.is_some());
    }
}
