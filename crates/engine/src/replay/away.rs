//! The memory of salts while another process takes over: both see connections that were recorded, and a salt must open one
//! of them in one of the two.
//!
//! ```text
//!   release: the file goes to the new process; salts from then on are noted      Sink::Journal
//!   hand_over: the new process learns them before it accepts                      Sink::Away
//!   from then on each new salt of the old process is first shown to the new one, which has the file
//! ```

use std::io;
use std::mem;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use adit_net::rt;

use super::file::{Kind, SaltFile};
use super::{Key, ReplayFilter};

/// The place that salts are written to.
#[derive(Debug, Default)]
pub(super) enum Sink {
    /// They end with the process.
    #[default]
    None,
    /// The file, and its path.
    File(SaltFile, PathBuf),
    /// The file is another process's, which learns of these later.
    Journal(Mutex<Vec<Print>>, Option<PathBuf>),
    /// Another process decides.
    Away(Box<dyn Arbiter>),
}

/// Decides about the salts of this process.
pub(crate) trait Arbiter: std::fmt::Debug + Send + Sync {
    /// Whether a salt is new, in which case it is known from now on. It may block for some milliseconds.
    fn admits(&self, print: Print) -> bool;
}

/// The fingerprint of a salt, as two processes with one key tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Print {
    /// Whether the request carried its time.
    is_recent: bool,
    print: u64,
}

impl Print {
    /// Bytes of [`Print::emit`].
    pub(crate) const LEN: usize = 9;

    pub(super) fn new(kind: Kind, print: u64) -> Self {
        Self { is_recent: kind == Kind::Recent, print }
    }

    pub(crate) fn emit(self) -> [u8; Self::LEN] {
        let mut bytes = [u8::from(self.is_recent); Self::LEN];
        bytes[1..].copy_from_slice(&self.print.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: [u8; Self::LEN]) -> Self {
        let [kind, print @ ..] = bytes;
        Self { is_recent: kind != 0, print: u64::from_le_bytes(print) }
    }
}

impl ReplayFilter {
    /// The key of the fingerprints: the other process has to have it.
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// A memory without a file and with this key.
    pub(crate) fn with_key(key: Key) -> Self {
        Self { key, ..Self::default() }
    }

    /// Leaves the file to another process.
    ///
    /// # Errors
    /// When it cannot be synced; it is kept then.
    pub(crate) fn release(&self) -> io::Result<()> {
        let mut sink = self.sink.write().unwrap_or_else(PoisonError::into_inner);
        if let Sink::File(file, _) = &*sink {
            file.sync()?;
        }
        *sink = match mem::take(&mut *sink) {
            Sink::File(_, path) => Sink::Journal(Mutex::default(), Some(path)),
            // The other process finds them nowhere else.
            Sink::None => Sink::Journal(Mutex::new(self.all()), None),
            other @ (Sink::Journal(..) | Sink::Away(_)) => other,
        };
        Ok(())
    }

    fn all(&self) -> Vec<Print> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let recent: Vec<u64> = recent.older.union(&recent.newer).copied().collect();
        let lasting = self.lasting.all().into_iter().map(|print| Print::new(Kind::Lasting, print));
        lasting.chain(recent.into_iter().map(|print| Print::new(Kind::Recent, print))).collect()
    }

    /// From now on `arbiter` decides. Gives the salts since [`ReplayFilter::release`], which it has to learn first.
    pub(crate) fn hand_over(&self, arbiter: Box<dyn Arbiter>) -> Vec<Print> {
        let mut sink = self.sink.write().unwrap_or_else(PoisonError::into_inner);
        match mem::replace(&mut *sink, Sink::Away(arbiter)) {
            Sink::Journal(journal, _) => journal.into_inner().unwrap_or_else(PoisonError::into_inner),
            Sink::None | Sink::File(..) | Sink::Away(_) => Vec::new(),
        }
    }

    /// The other process is gone and has served nobody: the file at `path`, if there is one, is this process's again.
    ///
    /// # Errors
    /// When the file cannot be had; salts end with the process then.
    pub(crate) fn resume(&self, path: Option<PathBuf>, missed: &[Print]) -> io::Result<()> {
        let mut sink = self.sink.write().unwrap_or_else(PoisonError::into_inner);
        let (journal, kept) = match mem::take(&mut *sink) {
            Sink::Journal(journal, path) => {
                (journal.into_inner().unwrap_or_else(PoisonError::into_inner), path)
            }
            Sink::Away(_) => (missed.to_vec(), path),
            other @ (Sink::None | Sink::File(..)) => {
                *sink = other;
                return Ok(());
            }
        };
        let Some(path) = kept else { return Ok(()) };
        let unix_s = rt::unix_time();
        let opened = SaltFile::open(&path, self.key, unix_s).map_err(io::Error::other)?;
        for Print { is_recent, print } in journal {
            let kind = if is_recent { Kind::Recent } else { Kind::Lasting };
            opened.file.append(kind, print, unix_s)?;
        }
        *sink = Sink::File(opened.file, path);
        Ok(())
    }

    /// The file's path, if it is this process's or to be again.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match &*self.sink.read().unwrap_or_else(PoisonError::into_inner) {
            Sink::File(_, path) => Some(path.clone()),
            Sink::Journal(_, path) => path.clone(),
            Sink::None | Sink::Away(_) => None,
        }
    }

    /// Remembers a salt of another process; false if it was known.
    pub(crate) fn admit(&self, print: Print) -> bool {
        let Print { is_recent, print } = print;
        if is_recent {
            self.insert_recent_print(print) && self.write(Kind::Recent, print)
        } else {
            self.lasting.insert(print) && self.write(Kind::Lasting, print)
        }
    }
}
