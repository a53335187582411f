//! A log file of limited length: a full one becomes `FILE.1`, `FILE.1` becomes `FILE.2`, and so on.
//!
//! A file that somebody else has moved away (logrotate) is made anew within a second.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_model::Log;
use adit_net::rt;

/// Interval at which it is looked whether the file is still at its place.
const LOOK: Duration = Duration::from_secs(1);

/// A log file; any thread may write to it.
#[derive(Debug)]
pub(crate) struct LogFile(Mutex<State>);

#[derive(Debug)]
struct State {
    path: PathBuf,
    max_size: u64,
    keep: u8,
    file: Option<File>,
    len: u64,
    looked_at: Instant,
    /// The last write failed, which has been said.
    is_failing: bool,
}

impl LogFile {
    /// The file that `log` names.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn open(path: &Path, log: &Log) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let (max_size, keep) = (log.max_size, log.keep);
        let (file, looked_at, is_failing) = (None, rt::now(), false);
        let mut state = State { path, max_size, keep, file, len: 0, looked_at, is_failing };
        state.reopen()?;
        Ok(Self(Mutex::new(state)))
    }

    /// Writes a line. If that fails, the line is lost, which standard error is told once.
    pub(crate) fn write(&self, line: &[u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = state.write(line, rt::now());
        if let Err(error) = &result
            && !state.is_failing
        {
            let path = state.path.display();
            crate::print::remark(format_args!(
                "cannot write log file {path}: {error}; lines are lost until that works again"
            ));
        }
        state.is_failing = result.is_err();
    }
}

impl State {
    fn write(&mut self, line: &[u8], now: Instant) -> io::Result<()> {
        if now.saturating_duration_since(self.looked_at) >= LOOK {
            self.looked_at = now;
            if !self.is_at_its_place() {
                self.file = None;
            }
        }
        let len = line.len() as u64;
        if self.len > 0 && self.len + len > self.max_size {
            self.rotate();
        }
        if self.file.is_none() {
            self.reopen()?;
        }
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        file.write_all(line)?;
        self.len += len;
        Ok(())
    }

    fn is_at_its_place(&self) -> bool {
        let found = fs::metadata(&self.path).map(|found| (found.dev(), found.ino()));
        let ours = self.file.as_ref().and_then(|file| file.metadata().ok());
        ours.is_some_and(|ours| found.is_ok_and(|found| found == (ours.dev(), ours.ino())))
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = None;
        let open = || OpenOptions::new().append(true).create(true).mode(0o640).open(&self.path);
        let file = match (open(), self.path.parent()) {
            (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(folder)?;
                open()
            }
            (opened, _) => opened,
        }?;
        self.len = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    /// Moves the file and those before it on. A step that fails loses no more than the file that it is about.
    fn rotate(&mut self) {
        self.file = None;
        for number in (1..self.keep).rev() {
            fs::rename(self.numbered(number), self.numbered(number + 1)).ok();
        }
        if self.keep == 0 || fs::rename(&self.path, self.numbered(1)).is_err() {
            // A file that cannot be moved must not grow for ever.
            OpenOptions::new().write(true).truncate(true).open(&self.path).ok();
        }
        self.len = 0;
    }

    fn numbered(&self, number: u8) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{number}"));
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("adit-log-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_folder_that_is_missing_is_made() {
        let dir = std::env::temp_dir().join(format!("adit-log-folder-{}", std::process::id()));
        let path = dir.join("a/b.log");
        let log = LogFile::open(&path, &Log { max_size: 100, ..Log::default() }).unwrap();
        log.write(b"line\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\n");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_full_file_is_moved_on_and_the_oldest_goes() {
        let dir = folder("full");
        let path = dir.join("adit.log");
        fs::write(&path, "old\n").unwrap();
        let log = Log { max_size: 10, keep: 2, ..Log::default() };
        let file = LogFile::open(&path, &log).unwrap();
        for line in ["1234\n", "abcdefgh\n", "a line that is longer\n", "y\n"] {
            file.write(line.as_bytes());
        }
        let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!(read("adit.log"), "y\n");
        assert_eq!(read("adit.log.1"), "a line that is longer\n");
        assert_eq!(read("adit.log.2"), "abcdefgh\n");
        assert!(!dir.join("adit.log.3").exists());
        assert_eq!(fs::metadata(dir.join("adit.log")).unwrap().mode() & 0o777, 0o640);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn nothing_is_kept_where_nothing_may_be() {
        let dir = folder("none");
        let path = dir.join("adit.log");
        let file = LogFile::open(&path, &Log { max_size: 4, keep: 0, ..Log::default() }).unwrap();
        file.write(b"one\n");
        file.write(b"two\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_that_was_moved_away_is_made_anew() {
        let dir = folder("moved");
        let path = dir.join("adit.log");
        let file = LogFile::open(&path, &Log::default()).unwrap();
        file.write(b"one\n");
        fs::rename(&path, dir.join("kept")).unwrap();
        let mut state = file.0.lock().unwrap();
        let now = state.looked_at;
        state.write(b"two\n", now).unwrap();
        state.write(b"three\n", now + LOOK).unwrap();
        drop(state);
        assert_eq!(fs::read_to_string(dir.join("kept")).unwrap(), "one\ntwo\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        fs::remove_dir_all(&dir).unwrap();
        assert!(LogFile::open(Path::new("/dev/null/x"), &Log::default()).is_err(), "no folder");
    }
}
