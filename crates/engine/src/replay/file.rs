//! The replay file of one configuration: two rings of records, and one process at a time.
//!
//! ```text
//!       0  16  "adit salts 1" and zeros: magic and version
//!      16  16  key of the fingerprints
//!      32  32  BLAKE3 of the 32 bytes before, with a key derived from `SUM`
//!    4096      ring of lasting salts: RING records of 16 bytes
//!  + 16 MiB    ring of recent salts: RING records of 16 bytes
//!
//!   record:  fingerprint u64 | seconds since 1970 u32 | lap u16 | check u16       little-endian
//! ```
//!
//! The file is sparse: it takes room as records are written. Records follow one another in their ring, and begin again at
//! its front, with a lap that is higher by one. The newest record is the one with the highest lap and place. The check covers
//! the record and its place. A record that was cut, damaged or never written is ignored. A record never crosses a sector,
//! so a loss of power leaves it whole or as it was.
//!
//! The process that uses the file holds a lock on it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_net::files::suffixed;
use adit_net::try_lock;
use adit_proto::crypto::Blake3Context;
use thiserror::Error;

use super::{Key, LIFE_S};

const MAGIC: &[u8; 16] = b"adit salts 1\0\0\0\0";
/// Context of the checksum of the head.
const SUM: &str = "adit 2026-11 replay file checksum";
const HEAD_LEN: usize = 64;
/// Offset of the first ring, in bytes: records then never cross a sector.
const FRONT: u64 = 4096;
/// Records of one ring.
pub(super) const RING: u64 = 1 << 20;
const RECORD_LEN: usize = 16;
const RING_LEN: u64 = RING * RECORD_LEN as u64;

/// One of the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Salts that are good for ever.
    Lasting,
    /// Salts of requests that carry their time.
    Recent,
}

impl Kind {
    fn start(self) -> u64 {
        match self {
            Self::Lasting => FRONT,
            Self::Recent => FRONT + RING_LEN,
        }
    }
}

/// Why a replay file cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum FileError {
    /// Another process has it.
    #[error("another process uses it")]
    Busy,
    /// The system refuses.
    #[error("{0}")]
    System(io::ErrorKind),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::System(error.kind())
    }
}

/// A replay file that this process holds.
#[derive(Debug)]
pub(super) struct SaltFile {
    file: File,
    /// Records written to each ring so far.
    lasting: AtomicU64,
    recent: AtomicU64,
    /// Something was written since the last sync.
    is_dirty: AtomicBool,
}

/// The result of opening a replay file.
#[derive(Debug)]
pub(super) struct OpenedReplayFile {
    pub(super) file: SaltFile,
    pub(super) key: Key,
    /// Fingerprints of lasting salts, oldest first.
    pub(super) lasting: Vec<u64>,
    /// Fingerprints of recent salts that may still be replayed.
    pub(super) recent: Vec<u64>,
    /// A fault that a person should know of.
    pub(super) warning: Option<String>,
}

/// The replay file beside the state file at `path`.
pub(crate) fn salts_path(path: &Path) -> PathBuf {
    suffixed(path, ".salts")
}

impl SaltFile {
    /// Takes the file at `path`, and reads it. A new file gets `fresh` as its key. A damaged one is set aside.
    ///
    /// At most 32 MiB are read, in two steps.
    ///
    /// # Errors
    /// [`FileError`]; the file is as it was then.
    pub(super) fn open(path: &Path, fresh: Key, unix_s: u64) -> Result<OpenedReplayFile, FileError> {
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let file = take(path)?;
        let mut head = [0; HEAD_LEN];
        let found = file.read_at(&mut head, 0)?;
        if let Some(key) = parse_head(&head).filter(|_| found == HEAD_LEN) {
            return Self::load(path, file, key, unix_s);
        }
        if file.metadata()?.len() == 0 {
            return Self::create(file, fresh, None);
        }
        let kept = suffixed(path, &format!(".damaged-{unix_s}"));
        fs::rename(path, &kept)?;
        let warning = format!(
            "replay file {} is damaged: recorded connections of before may be served once more; the damaged file is \
             kept as {}",
            path.display(),
            kept.display()
        );
        Self::create(take(path)?, fresh, Some(warning))
    }

    fn create(file: File, key: Key, warning: Option<String>) -> Result<OpenedReplayFile, FileError> {
        let mut head = [0; HEAD_LEN];
        head[..16].copy_from_slice(MAGIC);
        head[16..32].copy_from_slice(&key);
        let sum = Blake3Context::new(SUM).derive(&[&head[..32]]);
        head[32..].copy_from_slice(&sum);
        file.write_all_at(&head, 0)?;
        let file = Self::new(file, 0, 0);
        Ok(OpenedReplayFile { file, key, lasting: Vec::new(), recent: Vec::new(), warning })
    }

    fn load(path: &Path, file: File, key: Key, unix_s: u64) -> Result<OpenedReplayFile, FileError> {
        let lasting = read_ring(&file, Kind::Lasting)?;
        let recent = read_ring(&file, Kind::Recent)?;
        let damaged = lasting.damaged + recent.damaged;
        let warning = (damaged > 0)
            .then(|| format!("replay file {}: {damaged} damaged records are ignored", path.display()));
        let file = Self::new(file, lasting.written, recent.written);
        // A time to come is that of a clock that was set back since.
        let is_live = |record: &&Record| u64::from(record.unix_s) + LIFE_S >= unix_s;
        Ok(OpenedReplayFile {
            file,
            key,
            lasting: lasting.records.iter().map(|record| record.print).collect(),
            recent: recent.records.iter().filter(is_live).map(|record| record.print).collect(),
            warning,
        })
    }

    fn new(file: File, lasting: u64, recent: u64) -> Self {
        let [lasting, recent] = [lasting, recent].map(AtomicU64::new);
        Self { file, lasting, recent, is_dirty: AtomicBool::new(true) }
    }

    /// Writes a record: one pwrite(2) of 16 bytes. It survives the process when this returns, and a loss of power after
    /// the next [`SaltFile::sync`].
    ///
    /// # Errors
    /// The error that the system reports.
    pub(super) fn append(&self, kind: Kind, print: u64, unix_s: u64) -> io::Result<()> {
        let written = match kind {
            Kind::Lasting => &self.lasting,
            Kind::Recent => &self.recent,
        };
        let number = written.fetch_add(1, Ordering::Relaxed);
        let place = number % RING;
        let record = Record { print, unix_s: u32::try_from(unix_s).unwrap_or(u32::MAX), lap: lap(number) };
        self.file.write_all_at(&record.emit(place), kind.start() + place * RECORD_LEN as u64)?;
        self.is_dirty.store(true, Ordering::Release);
        Ok(())
    }

    /// Has everything that was written before survive a loss of power.
    ///
    /// # Errors
    /// The error that the system reports.
    pub(super) fn sync(&self) -> io::Result<()> {
        if self.is_dirty.swap(false, Ordering::AcqRel) { self.file.sync_data() } else { Ok(()) }
    }
}

/// Opens the file, or makes it, and locks it.
fn take(path: &Path) -> Result<File, FileError> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(FileError::System(io::ErrorKind::InvalidInput));
    }
    if try_lock(&file)? { Ok(file) } else { Err(FileError::Busy) }
}

fn parse_head(head: &[u8; HEAD_LEN]) -> Option<Key> {
    let sum = Blake3Context::new(SUM).derive(&[&head[..32]]);
    (head[..16] == *MAGIC && head[32..] == sum).then(|| head[16..32].try_into().expect("16 bytes"))
}

/// The lap of a record, from its number. It wraps after 2^36 records.
fn lap(number: u64) -> u16 {
    u16::try_from((number / RING + 1) & u64::from(u16::MAX)).expect("16 bits")
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    print: u64,
    unix_s: u32,
    lap: u16,
}

impl Record {
    fn emit(&self, place: u64) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        bytes[..8].copy_from_slice(&self.print.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.unix_s.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.lap.to_le_bytes());
        bytes[14..].copy_from_slice(&self.check(place).to_le_bytes());
        bytes
    }

    /// `None` for bytes that are no record of this place.
    fn parse(bytes: &[u8; RECORD_LEN], place: u64) -> Option<Self> {
        let [p0, p1, p2, p3, p4, p5, p6, p7, s0, s1, s2, s3, l0, l1, c0, c1] = *bytes;
        let record = Self {
            print: u64::from_le_bytes([p0, p1, p2, p3, p4, p5, p6, p7]),
            unix_s: u32::from_le_bytes([s0, s1, s2, s3]),
            lap: u16::from_le_bytes([l0, l1]),
        };
        (u16::from_le_bytes([c0, c1]) == record.check(place)).then_some(record)
    }

    /// Tells accidents, not attacks: who can write the file needs none. Never 0, so that zeros are no record.
    fn check(&self, place: u64) -> u16 {
        // The finalizer of SplitMix64.
        let mut x = self.print ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= (u64::from(self.unix_s) << 16 | u64::from(self.lap)).rotate_left(29);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u16::try_from(x >> 48).expect("16 bits") | 1
    }
}

/// The content of a ring.
struct Ring {
    /// Oldest first.
    records: Vec<Record>,
    /// Number of the next record.
    written: u64,
    /// Places that hold neither a record nor nothing.
    damaged: usize,
}

fn read_ring(file: &File, kind: Kind) -> io::Result<Ring> {
    let end = file.metadata()?.len().saturating_sub(kind.start()).min(RING_LEN);
    let mut bytes = vec![0; usize::try_from(end).expect("16 MiB") / RECORD_LEN * RECORD_LEN];
    file.read_exact_at(&mut bytes, kind.start())?;
    Ok(ring_of(&bytes))
}

/// The ring that lies in `bytes`: as many places as it was written to so far.
fn ring_of(bytes: &[u8]) -> Ring {
    let places = (0..).zip(bytes.as_chunks::<RECORD_LEN>().0);
    let mut damaged = 0;
    let mut found: Vec<(u64, Record)> = Vec::new();
    for (place, bytes) in places {
        match Record::parse(bytes, place) {
            Some(record) => found.push((place, record)),
            None => damaged += usize::from(*bytes != [0; RECORD_LEN]),
        }
    }
    let is_newer = |a: u16, b: u16| a.wrapping_sub(b).cast_signed() > 0;
    let newest = found.iter().copied().reduce(|a, b| if is_newer(a.1.lap, b.1.lap) { a } else { b });
    let Some((head, newest)) = newest else { return Ring { records: Vec::new(), written: 0, damaged } };
    let split = found.partition_point(|(place, _)| *place <= head);
    found.rotate_left(split);
    let written = u64::from(newest.lap.wrapping_sub(1)) * RING + head + 1;
    Ring { records: found.into_iter().map(|(_, record)| record).collect(), written, damaged }
}

/// Fuzz target: `data` is the head of a file and a ring behind it. A ring loses no record that is whole, and one that this
/// program has written is read in the order of its numbers.
#[doc(hidden)]
pub fn fuzz_salts(data: &[u8]) {
    let (head, ring) = data.split_at(data.len().min(HEAD_LEN));
    if let Some(key) = head.first_chunk().and_then(parse_head) {
        assert_eq!(key, head[16..32]);
    }
    let places = ring.len() / RECORD_LEN;
    let found = ring_of(ring);
    assert!(found.records.len() + found.damaged <= places);
    assert_eq!(found.records.is_empty(), found.written == 0);
    // The same bytes as records of this program, in a ring that goes round for the third time.
    let newer = places as u64 / 2;
    let written = (0..places as u64).map(|place| if place < newer { 2 * RING + place } else { RING + place });
    let written = written.zip(ring.as_chunks::<RECORD_LEN>().0).map(|(number, part)| {
        let [p0, p1, p2, p3, p4, p5, p6, p7, s0, s1, s2, s3, ..] = *part;
        let print = u64::from_le_bytes([p0, p1, p2, p3, p4, p5, p6, p7]);
        (number, Record { print, unix_s: u32::from_le_bytes([s0, s1, s2, s3]), lap: lap(number) })
    });
    let mut written: Vec<(u64, Record)> = written.collect();
    let bytes: Vec<u8> = written.iter().flat_map(|(number, record)| record.emit(number % RING)).collect();
    let again = ring_of(&bytes);
    written.sort_unstable_by_key(|(number, _)| *number);
    assert_eq!(again.written, written.last().map_or(0, |(number, _)| number + 1));
    assert_eq!(again.records, written.into_iter().map(|(_, record)| record).collect::<Vec<_>>());
    assert_eq!(again.damaged, 0);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::tests::Folder;
    use super::*;

    const KEY: Key = [7; 16];

    fn open_with(path: &Path, key: [u8; 16], unix_s: u64) -> OpenedReplayFile {
        let open = || SaltFile::open(path, key, unix_s);
        adit_testkit::once_free(open, |error| *error == FileError::Busy).unwrap()
    }

    fn open(path: &Path) -> OpenedReplayFile {
        open_with(path, KEY, 1_000_000)
    }

    fn write(file: &SaltFile, kind: Kind, prints: impl IntoIterator<Item = u64>) {
        prints.into_iter().for_each(|print| file.append(kind, print, 1_000_000).unwrap());
    }

    #[test]
    fn records_outlive_the_process_and_are_private() {
        let dir = Folder::new("salts-private");
        let path = dir.path().join("deep/er/a.salts");
        let opened = open(&path);
        assert!(opened.lasting.is_empty() && opened.recent.is_empty() && opened.warning.is_none());
        assert_eq!(SaltFile::open(&path, KEY, 0).unwrap_err(), FileError::Busy);
        write(&opened.file, Kind::Lasting, 1..100);
        write(&opened.file, Kind::Recent, [200]);
        drop(opened);
        let again = open_with(&path, [8; 16], 1_000_060);
        assert_eq!((again.key, again.lasting, again.recent), (KEY, (1..100).collect(), vec![200]));
        write(&again.file, Kind::Lasting, [100]);
        drop(again.file);
        let late = open_with(&path, KEY, 1_000_061);
        assert_eq!((late.lasting, late.recent), ((1..=100).collect(), vec![]));
        drop(late.file);
        // A clock that was set back: what was written then may be replayed for longer.
        assert_eq!(open_with(&path, KEY, 999_000).recent, [200]);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_ring_goes_round_and_keeps_the_last() {
        let dir = Folder::new("salts-round");
        let path = dir.path().join("a.salts");
        let opened = open(&path);
        opened.file.lasting.store(3 * RING - 10, Ordering::Relaxed);
        write(&opened.file, Kind::Lasting, 0..25);
        drop(opened);
        let again = open(&path);
        assert_eq!(again.lasting, (0..25).collect::<Vec<_>>());
        assert_eq!(again.file.lasting.load(Ordering::Relaxed), 3 * RING + 15);
        // Laps wrap as well.
        drop(again);
        fs::remove_file(&path).unwrap();
        let last = open(&path);
        last.file.lasting.store(RING * 65_536 - 2, Ordering::Relaxed);
        write(&last.file, Kind::Lasting, 100..104);
        drop(last);
        let last = open(&path);
        assert_eq!(last.lasting, [100, 101, 102, 103]);
        assert_eq!(last.file.lasting.load(Ordering::Relaxed) % RING, 2);
    }

    /// A write may be cut at any byte, and any byte may rot: that record is lost, and no other.
    #[test]
    fn a_torn_record_is_ignored() {
        let dir = Folder::new("salts-torn");
        let path = dir.path().join("a.salts");
        write(&open(&path).file, Kind::Lasting, 1..=3);
        let whole = fs::read(&path).unwrap();
        let second = usize::try_from(FRONT).unwrap() + RECORD_LEN;
        for at in second..second + RECORD_LEN {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                fs::write(&path, &bytes).unwrap();
                let opened = open(&path);
                assert_eq!(opened.lasting, [1, 3], "{at} {bit}");
                assert!(opened.warning.unwrap().contains("1 damaged records are ignored"));
            }
        }
        for cut in second..second + RECORD_LEN {
            fs::write(&path, &whole[..cut]).unwrap();
            let opened = open(&path);
            assert_eq!(opened.lasting, [1], "{cut}");
            write(&opened.file, Kind::Lasting, [9]);
            drop(opened);
            assert_eq!(open(&path).lasting, [1, 9]);
        }
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        let dir = Folder::new("salts-damaged");
        let path = dir.path().join("a.salts");
        drop(open(&path));
        let whole = fs::read(&path).unwrap();
        let mut cases: Vec<Vec<u8>> = (1..whole.len()).map(|len| whole[..len].to_vec()).collect();
        cases.extend((0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            bytes
        }));
        for case in cases {
            fs::write(&path, &case).unwrap();
            let opened = open(&path);
            assert!(opened.warning.unwrap().contains("is damaged"));
            assert_eq!(fs::read(dir.path().join("a.salts.damaged-1000000")).unwrap(), case);
            write(&opened.file, Kind::Lasting, [5]);
            drop(opened.file);
            assert_eq!(open(&path).lasting, [5]);
        }
        // Beyond its length nothing is read.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(open(&path).lasting, [5]);
        drop(file);
        // A path that is no file at all.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(SaltFile::open(&path, KEY, 0), Err(FileError::System(_))));
    }
}
