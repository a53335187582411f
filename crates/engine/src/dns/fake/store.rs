//! The file of fake addresses: which name has which number, so that addresses which applications still hold lead to the
//! same names after a restart.
//!
//! ```text
//!    0  16  "adit fakes 1" and zeros: magic and version
//!   16   8  first and last address of the range of IPv4
//!   24   4  CRC-32 of the 24 bytes before
//!   28   4  zeros
//!   32      records, oldest first; a later one takes the number or the name of an earlier one
//!
//!   record:  length of the name u8 | CRC-32 of the rest u32 | number u32 | name          little-endian
//! ```
//!
//! A record is written before the answer with its address leaves, and is not synced: a process that dies loses nothing
//! of what the system has taken, and a machine that dies takes its applications along. Reading ends at the first record that
//! was cut or damaged. Once the file is twice as long as what lives in it, it is written anew under another name and put in
//! its own place.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use adit_net::files::{private, suffixed};
use adit_net::try_lock;
use adit_proto::crypto::crc32;
use thiserror::Error;

use super::is_fakeable;
use super::pool::MAX_NAME;

const MAGIC: &[u8; 16] = b"adit fakes 1\0\0\0\0";
const HEAD_LEN: usize = 32;
/// Bytes of a record in front of the name.
const RECORD_HEAD: usize = 9;
/// Most bytes that are read: twice the longest names of all numbers, and more.
const MAX_LEN: u64 = 64 << 20;
/// A file up to this length is not worth writing anew.
const SLACK: u64 = 64 << 10;
/// Name of the file in a folder that is named in its place.
const IN_FOLDER: &str = "adit.fake";

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub(super) enum StoreError {
    /// Another process has it.
    #[error("another process uses it")]
    Busy,
    /// The system refuses.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A file that this process holds.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    file: File,
    /// Holds the lock.
    _lock: File,
    head: [u8; HEAD_LEN],
    len: u64,
    /// Bytes of the last record that did not fit, or of a file that could not be written anew: one warning is enough.
    is_failing: bool,
}

impl Store {
    /// Takes the file at `path`, or one in the folder of this path, for a range of IPv4. Gives its records too.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) fn open(path: &Path, range: [u32; 2]) -> Result<(Self, Vec<u8>), StoreError> {
        let path = if path.is_dir() { path.join(IN_FOLDER) } else { path.to_owned() };
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let open = |path: &Path| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
        };
        let lock = open(&suffixed(&path, ".lock"))?;
        if !try_lock(&lock)? {
            return Err(StoreError::Busy);
        }
        let file = open(&path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        }
        let mut bytes = Vec::new();
        (&file).take(MAX_LEN).read_to_end(&mut bytes)?;
        let head = head(range);
        let mut store = Self { path, file, _lock: lock, head, len: 0, is_failing: false };
        let records = bytes.strip_prefix(&head).unwrap_or_default();
        if bytes.get(..HEAD_LEN) == Some(&head) {
            let good: usize = Records(records).map(|(_, name)| RECORD_HEAD + name.len()).sum();
            store.len = (HEAD_LEN + good) as u64;
        } else {
            store.file.set_len(0)?;
            store.file.write_all_at(&head, 0)?;
            store.len = HEAD_LEN as u64;
        }
        let records = records.to_vec();
        Ok((store, records))
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a record. A failure is logged once; the next record takes the place of one that was cut.
    pub(super) fn append(&mut self, number: u32, name: &str) {
        let mut record = [0; RECORD_HEAD + MAX_NAME];
        let record = write_record(&mut record, number, name);
        match self.file.write_all_at(record, self.len) {
            Ok(()) => {
                self.len += record.len() as u64;
                self.is_failing = false;
            }
            Err(error) => self.warn(&error),
        }
    }

    /// Whether the file is twice as long as so many names with so many bytes need.
    pub(super) fn is_long(&self, names: usize, text_len: usize) -> bool {
        let live = HEAD_LEN + names * RECORD_HEAD + text_len;
        self.len > 2 * live as u64 + SLACK
    }

    /// Writes the file anew with these names.
    pub(super) fn rewrite<'e>(&mut self, entries: impl Iterator<Item = (u32, &'e str)>) {
        let mut bytes = self.head.to_vec();
        let mut record = [0; RECORD_HEAD + MAX_NAME];
        for (number, name) in entries {
            bytes.extend_from_slice(write_record(&mut record, number, name));
        }
        match self.replace(&bytes) {
            Ok(file) => {
                (self.file, self.len, self.is_failing) = (file, bytes.len() as u64, false);
            }
            Err(error) => {
                self.warn(&error);
                // The old file must not grow without end.
                self.len = HEAD_LEN as u64;
            }
        }
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<File> {
        let new = suffixed(&self.path, ".new");
        let file = private().truncate(true).open(&new)?;
        file.write_all_at(bytes, 0)?;
        fs::rename(&new, &self.path)?;
        Ok(file)
    }

    fn warn(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(
                "cannot write fake addresses to {}: {error}; names that are new will have other addresses after a restart",
                self.path.display()
            );
        }
    }
}

/// The records of a file, up to the first one that is cut or damaged.
pub(super) struct Records<'b>(pub(super) &'b [u8]);

impl<'b> Iterator for Records<'b> {
    type Item = (u32, &'b str);

    fn next(&mut self) -> Option<(u32, &'b str)> {
        let rest = std::mem::take(&mut self.0);
        let head = rest.first_chunk::<RECORD_HEAD>()?;
        let end = RECORD_HEAD + usize::from(head[0]);
        let body = rest.get(5..end)?;
        if crc32(body).to_le_bytes() != head[1..5] {
            return None;
        }
        let (number, name) = body.split_first_chunk::<4>()?;
        let name = std::str::from_utf8(name).ok().filter(|name| is_fakeable(name))?;
        self.0 = &rest[end..];
        Some((u32::from_le_bytes(*number), name))
    }
}

fn head([first, last]: [u32; 2]) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..16].copy_from_slice(MAGIC);
    head[16..20].copy_from_slice(&first.to_le_bytes());
    head[20..24].copy_from_slice(&last.to_le_bytes());
    let check = crc32(&head[..24]);
    head[24..28].copy_from_slice(&check.to_le_bytes());
    head
}

/// A record; a name is at most [`MAX_NAME`] bytes long.
fn write_record<'r>(record: &'r mut [u8; RECORD_HEAD + MAX_NAME], number: u32, name: &str) -> &'r [u8] {
    let end = RECORD_HEAD + name.len();
    record[0] = u8::try_from(name.len()).unwrap_or(u8::MAX);
    record[5..9].copy_from_slice(&number.to_le_bytes());
    record[RECORD_HEAD..end].copy_from_slice(name.as_bytes());
    let check = crc32(&record[5..end]);
    record[1..5].copy_from_slice(&check.to_le_bytes());
    &record[..end]
}

/// The fuzzer's entry: any bytes are read in bounded memory, and the records that are taken are written back as they
/// were.
#[doc(hidden)]
pub fn fuzz_fake_store(data: &[u8]) {
    let mut written = Vec::new();
    let mut record = [0; RECORD_HEAD + MAX_NAME];
    for (number, name) in Records(data) {
        written.extend_from_slice(write_record(&mut record, number, name));
    }
    assert!(data.starts_with(&written));
    const CAPACITY: u32 = 1000;
    let mut pool = super::pool::Pool::load(CAPACITY, Records(data));
    let entries: Vec<(u32, String)> =
        pool.entries().map(|(number, name)| (number, name.to_owned())).collect();
    assert!(entries.len() <= CAPACITY as usize);
    for (number, name) in entries {
        assert!(number < CAPACITY && is_fakeable(&name));
        assert_eq!(pool.name(number), Some(&*name));
        assert_eq!(pool.place(&name), super::pool::PoolSlot::Known(number));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANGE: [u32; 2] = [0xc612_8000, 0xc612_ffff];

    /// Opens a store as soon as it is free.
    fn opened(path: &Path, range: [u32; 2]) -> (Store, Vec<u8>) {
        adit_testkit::once_free(|| Store::open(path, range), |error| matches!(error, StoreError::Busy))
            .unwrap()
    }

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("adit-fake-{name}-{}", std::process::id()));
        fs::remove_dir_all(&dir).ok();
        dir
    }

    fn list(bytes: &[u8]) -> Vec<(u32, String)> {
        Records(bytes).map(|(number, name)| (number, name.to_owned())).collect()
    }

    #[test]
    fn names_are_read_again_up_to_where_the_file_was_cut() {
        let path = folder("cut").join("fake");
        let (mut store, records) = opened(&path, RANGE);
        assert!(records.is_empty());
        let names: Vec<(u32, String)> = (0..5).map(|n| (n, format!("name{n}.example"))).collect();
        names.iter().for_each(|(number, name)| store.append(*number, name));
        assert!(matches!(Store::open(&path, RANGE), Err(StoreError::Busy)), "one process at a time");
        drop(store);
        let whole = fs::read(&path).unwrap();
        let record = RECORD_HEAD + "name0.example".len();
        assert_eq!(whole.len(), HEAD_LEN + 5 * record);
        for len in 0..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let (mut store, records) = opened(&path, RANGE);
            let kept = len.saturating_sub(HEAD_LEN) / record;
            assert_eq!(list(&records), names[..kept], "{len} bytes");
            // A new record takes the place of the one that was cut.
            store.append(7, "new.example");
            drop(store);
            let (_, records) = opened(&path, RANGE);
            let mut wanted = names[..kept].to_vec();
            wanted.push((7, "new.example".into()));
            assert_eq!(list(&records), wanted, "{len} bytes");
        }
        for at in HEAD_LEN..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 1;
            assert_eq!(list(&broken[HEAD_LEN..]), names[..(at - HEAD_LEN) / record], "byte {at}");
        }
        fs::write(&path, &whole).unwrap();
        let (_, records) = opened(&path, [RANGE[0], RANGE[1] - 1]);
        assert!(records.is_empty(), "another range");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_long_file_is_written_anew() {
        let path = folder("long").join("fake");
        let (mut store, _) = opened(&path, RANGE);
        let mut appended = 0;
        while !store.is_long(1, 9) {
            store.append(0, "a.example");
            appended += 1;
        }
        assert!((3000..4000).contains(&appended), "64 KiB and more: {appended}");
        store.rewrite([(0, "a.example")].into_iter());
        store.append(1, "b.example");
        drop(store);
        let (_, records) = opened(&path, RANGE);
        assert_eq!(list(&records), [(0, "a.example".into()), (1, "b.example".into())]);
        assert!(!suffixed(&path, ".new").exists());
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_folder_gets_a_file_of_its_own_name() {
        let dir = folder("dir");
        fs::create_dir_all(&dir).unwrap();
        drop(Store::open(&dir, RANGE).unwrap());
        assert!(dir.join(IN_FOLDER).exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz_fake_store(&data);
        }
    }
}
