//! Small records in one file that survives whatever happens to the process: LMDB, behind safe functions.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};

/// Largest size of a file, in bytes; address space alone, until it is used.
const MAP_LEN: usize = 1 << 28;

/// A file of records that no other process has open.
#[derive(Debug)]
pub struct Store {
    env: Env,
    records: Database<Bytes, Bytes>,
    /// Holds the lock.
    _file: File,
}

/// A key and its value.
pub type Record = (Box<[u8]>, Box<[u8]>);

/// Why a file cannot be used.
#[derive(Debug)]
pub enum StoreError {
    /// Another process uses it.
    Busy,
    /// It is no such file, or not a whole one.
    Damaged(Box<str>),
    /// The system refuses it.
    System(io::Error),
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Busy => f.write_str("another process has it open"),
            Self::Damaged(why) => f.write_str(why),
            Self::System(_) => f.write_str("the system refuses it"),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            Self::Busy | Self::Damaged(_) => None,
        }
    }
}

impl From<heed::Error> for StoreError {
    fn from(error: heed::Error) -> Self {
        match error {
            heed::Error::Io(error) => Self::System(error),
            heed::Error::EnvAlreadyOpened => Self::Busy,
            error @ (heed::Error::Mdb(_) | heed::Error::Encoding(_) | heed::Error::Decoding(_)) => {
                Self::Damaged(error.to_string().into())
            }
        }
    }
}

impl Store {
    /// Opens the file at `path`, or makes one that nobody else can read.
    ///
    /// # Errors
    /// [`StoreError`]; the file is as it was then.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = open_private(path).map_err(StoreError::System)?;
        lock(&file)?;
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_LEN).max_readers(4);
        // SAFETY: without its own lock file LMDB wants one process and one writer at a time. The lock above keeps other
        // processes out, and writing takes `&mut self`.
        unsafe { options.flags(EnvFlags::NO_SUB_DIR | EnvFlags::NO_LOCK) };
        // SAFETY: the file must not be changed or cut by others while it is mapped: it is private, and locked.
        let env = unsafe { options.open(path) }?;
        check_len(&env, &file)?;
        let mut transaction = env.write_txn()?;
        let records = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { env, records, _file: file })
    }

    /// All records, keys and values.
    ///
    /// # Errors
    /// When the file turns out to be damaged.
    pub fn read(&self) -> Result<Vec<Record>, StoreError> {
        let transaction = self.env.read_txn()?;
        let mut all = Vec::new();
        for record in self.records.iter(&transaction)? {
            let (key, value) = record?;
            all.push((key.into(), value.into()));
        }
        Ok(all)
    }

    /// Writes all of `records`, or none of them; when it returns they survive a loss of power. Keys have 1 to 511
    /// bytes.
    ///
    /// # Errors
    /// When a key is too long, the file is full, or the system refuses to write.
    pub fn write<'r, const N: usize>(
        &mut self,
        records: impl Iterator<Item = (&'r [u8], [u8; N])>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in records {
            self.records.put(&mut transaction, key, &value)?;
        }
        Ok(transaction.commit()?)
    }
}

/// A mapped page that is not in the file ends the process when it is read.
fn check_len(env: &Env, file: &File) -> Result<(), StoreError> {
    let pages = env.info().last_page_number as u64 + 1;
    let wanted = pages.saturating_mul(page_len());
    let len = file.metadata().map_err(StoreError::System)?.len();
    if len > 0 && len < wanted {
        return Err(StoreError::Damaged(format!("{len} bytes of {wanted}").into()));
    }
    Ok(())
}

fn page_len() -> u64 {
    // SAFETY: it takes and returns numbers.
    let len = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(len).unwrap_or(4096)
}

fn open_private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Locks the file for this process, for as long as it is open.
fn lock(file: &File) -> Result<(), StoreError> {
    // SAFETY: the descriptor is open as long as `file` is borrowed.
    let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(if error.kind() == io::ErrorKind::WouldBlock { StoreError::Busy } else { StoreError::System(error) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn path(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("adit-store-{}-{name}", std::process::id()));
        drop(std::fs::remove_file(&path));
        path
    }

    fn write(store: &mut Store, records: &[(&[u8], [u8; 2])]) {
        store.write(records.iter().copied()).unwrap();
    }

    #[test]
    fn records_outlive_the_store() {
        let path = path("outlive");
        let mut store = Store::open(&path).unwrap();
        assert_eq!(store.read().unwrap(), []);
        write(&mut store, &[(b"b", [1, 2]), (b"a", [3, 4])]);
        write(&mut store, &[(b"b", [5, 6])]);
        assert!(matches!(Store::open(&path), Err(StoreError::Busy)));
        drop(store);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let all = Store::open(&path).unwrap().read().unwrap();
        let all: Vec<(&[u8], &[u8])> = all.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(all, [(&b"a"[..], &[3, 4][..]), (b"b", &[5, 6])]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_damaged_is_said_to_be() {
        let path = path("damaged");
        for text in [&b"x"[..], &[b'x'; 100_000]] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(Store::open(&path), Err(StoreError::Damaged(_))), "{} bytes", text.len());
        }
        std::fs::remove_file(&path).unwrap();
        let mut store = Store::open(&path).unwrap();
        let keys: Vec<[u8; 2]> = (0..1000_u16).map(u16::to_le_bytes).collect();
        store.write(keys.iter().map(|key| (&key[..], [0; 100]))).unwrap();
        drop(store);
        let whole = std::fs::read(&path).unwrap();
        for len in [whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(matches!(Store::open(&path), Err(StoreError::Damaged(_))), "{len} of {}", whole.len());
        }
        std::fs::remove_file(&path).unwrap();
    }
}
