//! The file of the journal.
//!
//! ```text
//!    0  16  "adit journal 1" and zeros: magic and version
//!   16      entries
//!
//!   entry:  length u32 | sum 8 | body: an `Event` as JSON
//! ```
//!
//! Numbers are little-endian. The sum is the first 8 bytes of BLAKE3 over length and body, with a key derived from `SUM`.
//! An entry that is cut, and all behind it, is no entry: a kill costs the change that was being written, and that change
//! has not been acted on. When the file has grown, an image of the state takes the place of all entries: it is written
//! beside the file, synced, and renamed.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use adit_net::files::{self, private, suffixed};
use adit_net::try_lock;
use adit_proto::crypto::Blake3Context;
use thiserror::Error;

use super::book::{JournalEvent, State};

const MAGIC: &[u8; 16] = b"adit journal 1\0\0";
const HEAD_LEN: usize = 12;
const SUM: &str = "adit 2026-11 journal checksum";
/// Longest file that is read, in bytes.
const MAX_LEN: u64 = 256 << 20;
/// A file is written anew when it is longer than this, in bytes, and four times as long as its image.
const LONG: u64 = 1 << 20;

/// Why the journal cannot be used.
#[derive(Debug, Error)]
pub enum JournalError {
    /// Another process has it.
    #[error("journal {path} is used by another process")]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("journal {path}")]
    System {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The journal, open. One process has it at a time.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    _lock: File,
    len: u64,
    image_len: u64,
    state: State,
}

/// Result of opening a journal.
#[derive(Debug)]
pub struct Opened {
    /// The journal.
    pub journal: Journal,
    /// Whether there was none before.
    pub is_new: bool,
    /// Bytes behind the last whole entry, which are gone.
    pub cut: u64,
}

impl Journal {
    /// Opens the journal at `path`, or makes one whose node is called `node`. The start is written: `boot` grows, and a
    /// batch that may have been sent is in doubt.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(path: &Path, node: impl FnOnce() -> Box<str>) -> Result<Opened, JournalError> {
        let system = |source| JournalError::System { path: path.to_owned(), source };
        let lock = private().truncate(false).open(suffixed(path, ".lock")).map_err(system)?;
        if !try_lock(&lock).map_err(system)? {
            return Err(JournalError::Busy { path: path.to_owned() });
        }
        let bytes = read(path).map_err(system)?;
        let found = bytes.as_deref().and_then(parse);
        let is_new = found.is_none();
        if is_new && bytes.is_some_and(|bytes| !bytes.is_empty()) {
            // A file of something else, or of a later version, is kept.
            fs::rename(path, suffixed(path, ".damaged")).map_err(system)?;
        }
        let (state, whole, total) =
            found.unwrap_or_else(|| (State { node: node(), ..State::default() }, 0, 0));
        let file = private().truncate(false).open(path).map_err(system)?;
        let mut journal = Self { path: path.to_owned(), file, _lock: lock, len: whole, image_len: 0, state };
        journal.rewrite().map_err(system)?;
        journal.commit(JournalEvent::Started).map_err(system)?;
        Ok(Opened { journal, is_new, cut: total - whole })
    }

    /// The state as it is on disk.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Writes an event and follows it. When this returns, it survives a loss of power.
    ///
    /// # Errors
    /// The system's error; the event has not happened then.
    pub fn commit(&mut self, event: JournalEvent) -> io::Result<()> {
        let entry = emit(&event);
        let written = self.append(&entry);
        if written.is_err() {
            // Half an entry would hide all that come later.
            self.file.set_len(self.len).ok();
            return written;
        }
        self.len += entry.len() as u64;
        self.state.apply(&event);
        if self.len > LONG.max(self.image_len * 4) {
            self.rewrite()?;
        }
        Ok(())
    }

    fn append(&mut self, entry: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.len))?;
        self.file.write_all(entry)?;
        self.file.sync_data()
    }

    /// Puts an image in the place of all entries.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(emit(&JournalEvent::Image(Box::new(self.state.clone()))));
        self.file = files::replace(&self.path, 0o600, &bytes)?;
        self.len = bytes.len() as u64;
        self.image_len = self.len;
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Anything but a file is set aside as damage is; a pipe would be waited for.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Ok(Some(b"?".to_vec()));
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_LEN).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn sum(len: [u8; 4], body: &[u8]) -> [u8; 8] {
    let hash = Blake3Context::new(SUM).derive(&[&len, body]);
    *hash.first_chunk().expect("8 of 32 bytes")
}

fn emit(event: &JournalEvent) -> Vec<u8> {
    let body = serde_json::to_vec(event).expect("an event is JSON");
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
    [&len[..], &sum(len, &body), &body].concat()
}

/// The first entry of `bytes`, and its length.
fn entry(bytes: &[u8]) -> Option<(JournalEvent, usize)> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (wanted, rest) = rest.split_first_chunk::<8>()?;
    let body = rest.get(..u32::from_le_bytes(*len) as usize)?;
    if sum(*len, body) != *wanted {
        return None;
    }
    Some((serde_json::from_slice(body).ok()?, HEAD_LEN + body.len()))
}

/// The state of a file, the length of its whole entries and its own; `None` if it does not begin as a journal does.
fn parse(bytes: &[u8]) -> Option<(State, u64, u64)> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let mut state = State::default();
    let mut is_first = true;
    while let Some((event, len)) = entry(rest) {
        if is_first && !matches!(event, JournalEvent::Image(_)) {
            return None;
        }
        is_first = false;
        state.apply(&event);
        rest = &rest[len..];
    }
    let total = bytes.len() as u64;
    (!is_first).then_some((state, total - rest.len() as u64, total))
}

/// Fuzz target: any bytes give a state or none, and a state that can be written and read again.
#[doc(hidden)]
pub fn fuzz_journal(data: &[u8]) {
    let with_sums = {
        let mut out = MAGIC.to_vec();
        for body in data.split(|byte| *byte == b'\n') {
            let len = u32::try_from(body.len()).unwrap_or(0).to_le_bytes();
            out.extend([&len[..], &sum(len, body), body].concat());
        }
        out
    };
    super::archive::fuzz(data);
    for bytes in [data, &with_sums] {
        if let Some((state, whole, total)) = parse(bytes) {
            assert!(whole <= total);
            let mut again = MAGIC.to_vec();
            again.extend(emit(&JournalEvent::Image(Box::new(state.clone()))));
            assert_eq!(parse(&again).map(|(state, ..)| state), Some(state));
        }
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    pub(in super::super) fn emit_all(events: &[JournalEvent]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        events.iter().for_each(|event| out.extend(emit(event)));
        out
    }

    pub(in super::super) fn parse_all(bytes: &[u8]) -> Option<(State, u64, u64)> {
        parse(bytes)
    }
}
