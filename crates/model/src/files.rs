//! The one way in which files are opened and read: configurations, lists, databases, certificates, and copies of before.
//!
//! ```text
//!   path ─→ is it regular? ─→ open without waiting ─→ is it still? ─→ read up to a length ─→ bytes
//!           └─────────────── on a thread of its own, within a time ───────────────┘
//! ```
//!
//! A pipe, a device or a file system that does not answer costs the caller an error, never the rest of its life. The text
//! that a person hands over at a start is the exception ([`read_input`]): a pipe is waited for there.
//!
//! [`Trial`] is a view of the copies that were fetched: what a caller reads within it are documents that are not on disk
//! yet, or no copies, so that a whole configuration can be judged before a copy is replaced.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

/// Time for one file. Disks that have to spin up answer within it.
const LIMIT: Duration = Duration::from_secs(10);
/// Most threads that wait for files. Each is stuck in the kernel, and ends when its file system answers.
const MOST_WAITING: usize = 32;
/// Stack of such a thread in bytes; it calls little.
const STACK: usize = 128 << 10;

/// The reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system's.
    #[error(transparent)]
    System(#[from] io::Error),
    /// It is a pipe, a device, a socket or a folder.
    #[error("no regular file, but {0}")]
    Kind(&'static str),
    /// Reading would wait: the file is no data that lies somewhere.
    #[error("it has no data at this time")]
    Empty,
    /// It is longer than it may be.
    #[error("longer than {}", length(*.max))]
    TooLong {
        /// Longest allowed length in bytes.
        max: usize,
    },
    /// The file system does not answer.
    #[error("not read after {limit:?}")]
    Timeout {
        /// Time that has been waited.
        limit: Duration,
    },
    /// Too many files are waited for.
    #[error("{MOST_WAITING} other files do not answer")]
    Waiting,
}

impl FileError {
    /// Whether there is no such file.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::System(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        if let FileError::System(error) = error {
            error
        } else {
            Self::new(io::ErrorKind::InvalidData, error)
        }
    }
}

fn length(max: usize) -> String {
    let (most, unit) = if max >= 8 << 20 { (max >> 20, "MiB") } else { (max >> 10, "KiB") };
    format!("{most} {unit}")
}

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
/// [`FileError`].
pub fn read(path: &Path, max: usize) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let Some(left) = LEFT.get() else { return within(LIMIT, path, max) };
    let begun = now();
    let found = within(left.min(LIMIT), path, max);
    LEFT.set(Some(left.saturating_sub(now().saturating_duration_since(begun))));
    found
}

/// Opens a regular file for reading, on this thread.
///
/// # Errors
/// [`FileError`].
pub fn open(path: &Path) -> Result<File, FileError> {
    let check = |found: &Metadata| kind(found).map_or(Ok(()), |kind| Err(FileError::Kind(kind)));
    // To open a device may already do something.
    check(&std::fs::metadata(path)?)?;
    let file = without_waiting().open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// As [`read`]; outside of a [`change`] it is the text of a person, who may hand over a pipe or a terminal. That is waited
/// for.
///
/// # Errors
/// [`FileError`].
pub fn read_input(path: &Path, max: usize) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let is_regular = || std::fs::metadata(path).is_ok_and(|found| kind(&found).is_none());
    if LEFT.get().is_some() || is_regular() {
        return read(path, max);
    }
    take(File::open(path)?, max, 0)
}

/// As [`read`], for the copy of a document that was fetched: a [`Trial`] may have another in its place.
///
/// # Errors
/// [`FileError`].
pub fn read_copy(path: &Path, max: usize) -> Result<Zeroizing<Vec<u8>>, FileError> {
    match trial(path) {
        None => read(path, max),
        Some(None) => Err(FileError::System(io::ErrorKind::NotFound.into())),
        Some(Some(bytes)) if bytes.len() > max => Err(FileError::TooLong { max }),
        Some(Some(bytes)) => Ok(Zeroizing::new(bytes.to_vec())),
    }
}

/// Whether there is a copy of a document that was fetched.
pub fn has_copy(path: &Path) -> bool {
    trial(path).map_or_else(|| path.exists(), |document| document.is_some())
}

/// The document of a [`Trial`] in the place of a file that nothing can do without.
pub fn stand_in(path: &Path) -> Option<Arc<[u8]>> {
    TRIAL.with_borrow(|trial| trial.as_ref()?.documents.get(path)?.clone())
}

/// Runs `work`, which spends at most `limit` on waiting for all files that it reads together.
pub fn change<T>(limit: Duration, work: impl FnOnce() -> T) -> T {
    let before = LEFT.replace(Some(limit));
    let done = work();
    LEFT.set(before);
    done
}

thread_local! {
    /// Time for files that is left to the change that this thread makes.
    static LEFT: Cell<Option<Duration>> = const { Cell::new(None) };
    /// The view of the copies that this thread has.
    static TRIAL: RefCell<Option<Trial>> = const { RefCell::new(None) };
}

/// The copies of documents as somebody wants to see them.
#[derive(Debug, Clone, Default)]
pub struct Trial {
    /// Documents in the place of copies; `None` for a copy that is passed over.
    pub documents: BTreeMap<PathBuf, Option<Arc<[u8]>>>,
    /// The copies that were asked for, named or not.
    pub asked: BTreeSet<PathBuf>,
}

impl Trial {
    /// Runs `work` with this view of the copies.
    pub fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let outer = TRIAL.replace(Some(std::mem::take(self)));
        let done = work();
        *self = TRIAL.replace(outer).unwrap_or_default();
        done
    }
}

/// Whether this thread runs within a [`Trial`].
pub fn in_trial() -> bool {
    TRIAL.with_borrow(Option::is_some)
}

/// The document of a trial in the place of a copy; `None` for the copy itself.
fn trial(path: &Path) -> Option<Option<Arc<[u8]>>> {
    TRIAL.with_borrow_mut(|trial| {
        let trial = trial.as_mut()?;
        trial.asked.insert(path.to_owned());
        trial.documents.get(path).cloned()
    })
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "files that do not answer are waited for in real time")]
    Instant::now()
}

fn within(limit: Duration, path: &Path, max: usize) -> Result<Zeroizing<Vec<u8>>, FileError> {
    static WAITING: AtomicUsize = AtomicUsize::new(0);
    if WAITING.load(Ordering::Relaxed) >= MOST_WAITING {
        return Err(FileError::Waiting);
    }
    let (done, waits) = sync_channel(1);
    let path = path.to_owned();
    WAITING.fetch_add(1, Ordering::Relaxed);
    let reader = thread::Builder::new().name("adit-file".into()).stack_size(STACK);
    let started = reader.spawn(move || {
        let found = read_regular(&path, max);
        WAITING.fetch_sub(1, Ordering::Relaxed);
        done.send(found).ok();
    });
    if let Err(error) = started {
        WAITING.fetch_sub(1, Ordering::Relaxed);
        return Err(error.into());
    }
    match waits.recv_timeout(limit) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => Err(FileError::Timeout { limit }),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
    }
}

fn read_regular(path: &Path, max: usize) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let file = open(path)?;
    let expected = file.metadata()?.len();
    take(file, max, expected)
}

/// Reads all of a file, which is `expected` bytes long as far as that is known.
fn take(file: File, max: usize, expected: u64) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let limit = u64::try_from(max).map_or(u64::MAX, |max| max.saturating_add(1));
    let room = usize::try_from(expected.min(limit)).unwrap_or(0);
    let mut bytes = Zeroizing::new(Vec::with_capacity(room.saturating_add(1)));
    match file.take(limit).read_to_end(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(FileError::Empty),
        read => read?,
    };
    if bytes.len() > max { Err(FileError::TooLong { max }) } else { Ok(bytes) }
}

/// Names the kind of a file that is not read; `None` for one that is.
#[cfg(unix)]
fn kind(found: &Metadata) -> Option<&'static str> {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    /// Numbers of /dev/null and /dev/zero on Linux, which never have a reader wait.
    const NEVER_WAIT: [u64; 2] = [0x103, 0x105];
    let of = found.file_type();
    if of.is_file() || (of.is_char_device() && NEVER_WAIT.contains(&found.rdev())) {
        None
    } else if of.is_dir() {
        Some("a folder")
    } else if of.is_fifo() {
        Some("a pipe")
    } else if of.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

#[cfg(not(unix))]
fn kind(found: &Metadata) -> Option<&'static str> {
    if found.is_file() { None } else { Some("a folder or a device") }
}

/// Opens for reading, and never waits for another end.
#[cfg(unix)]
fn without_waiting() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    /// `O_NONBLOCK`, as all architectures of Linux have it that adit runs on, and as other systems have it.
    const NONBLOCK: i32 = if cfg!(any(target_os = "linux", target_os = "android")) { 0o4000 } else { 4 };
    let mut options = File::options();
    options.read(true).custom_flags(NONBLOCK);
    options
}

#[cfg(not(unix))]
fn without_waiting() -> OpenOptions {
    let mut options = File::options();
    options.read(true);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("adit-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn problem(path: &Path) -> String {
        read(path, 1000).unwrap_err().to_string()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn nothing_that_waits_is_read() {
        let folder = folder("kinds");
        let (pipe, link, file) = (folder.join("pipe"), folder.join("link"), folder.join("file"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
        std::fs::write(&file, "text").unwrap();
        for (path, want) in [
            (&*pipe, "no regular file, but a pipe"),
            (&*link, "no regular file, but a pipe"),
            (&*folder.join("socket"), "no regular file, but a socket"),
            (&*folder, "no regular file, but a folder"),
            (Path::new("/dev/zero"), "longer than 0 KiB"),
            (Path::new("/dev/tty"), "no regular file, but a device"),
        ] {
            assert_eq!(problem(path), want, "{}", path.display());
            // Within a change a pipe is no text of a person either.
            let found = change(LIMIT, || read_input(path, 1000).unwrap_err().to_string());
            assert_eq!(found, want, "{}", path.display());
        }
        // It calls itself a regular file, and has a reader wait.
        let found = read(Path::new("/proc/kmsg"), 1 << 30);
        assert!(matches!(found, Err(FileError::System(_) | FileError::Empty)), "{found:?}");
        assert_eq!(&**read(&file, 4).unwrap(), b"text");
        assert!(matches!(read(&file, 3), Err(FileError::TooLong { max: 3 })));
        assert_eq!(&**read(Path::new("/dev/null"), 3).unwrap(), b"");
        assert!(read(&folder.join("none"), 3).unwrap_err().is_absent());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_person_may_hand_over_a_pipe() {
        let folder = folder("input");
        let pipe = folder.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (text, want) in [("text", Some("text")), ("too long", None)] {
            let (to, text) = (pipe.clone(), text.to_owned());
            let writer = thread::spawn(move || std::fs::write(to, text));
            let found = read_input(&pipe, 4).ok();
            assert_eq!(found.as_deref().map(Vec::as_slice), want.map(str::as_bytes));
            writer.join().unwrap().ok();
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_trial_has_other_copies() {
        let folder = folder("trial");
        let (one, two) = (folder.join("one"), folder.join("two"));
        std::fs::write(&one, "old").unwrap();
        std::fs::write(&two, "old").unwrap();
        let text =
            |path: &Path| read_copy(path, 10).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let mut trial = Trial::default();
        trial.documents.insert(one.clone(), Some(b"new".as_slice().into()));
        let all = trial.run(|| [&one, &two, &folder.join("none")].map(|path| (has_copy(path), text(path))));
        assert_eq!(all, [(true, Some("new".into())), (true, Some("old".into())), (false, None)]);
        assert_eq!(trial.asked.len(), 3);
        trial.documents.insert(one.clone(), None);
        assert_eq!(trial.run(|| (has_copy(&one), text(&one))), (false, None));
        assert_eq!(text(&one).as_deref(), Some("old"), "outside of the trial");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn time_of_a_change_runs_out() {
        let file = Path::new("/dev/zero");
        let found = change(Duration::ZERO, || read(file, 64 << 20));
        assert!(matches!(found, Err(FileError::Timeout { .. })), "{:?}", found.map(|bytes| bytes.len()));
    }
}
