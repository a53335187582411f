//! The accounts of all users, and the file in which they outlive the process.
//!
//! ```text
//!   key:    name of the inbound | 00 | name of the user
//!   value:  up | down | requests | base | period          u64 LE each; `account::Record` says what they are
//! ```
//!
//! A record is written once a second when it has changed, in one transaction with the others: what a kill leaves behind
//! is the state of at most a second ago, and of one moment.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use adit_config::model::UserLimits;
use adit_net::rt;
use adit_net::store::{Store, StoreError};

use super::Accounts;
use super::account::{Account, Record};
use crate::notice::Notice;

/// How often records are written.
const EVERY: Duration = Duration::from_secs(1);
const RECORD_LEN: usize = 40;

/// By key.
type Records = HashMap<Box<[u8]>, Record>;

/// All accounts of the process.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    book: Mutex<Book>,
    failed: Notice,
}

#[derive(Debug, Default)]
struct Book {
    store: Option<Store>,
    /// As they were last written.
    written: Records,
    accounts: Vec<(Box<[u8]>, Arc<Account>)>,
    has_thread: bool,
}

impl Ledger {
    /// A ledger over the file at `path`. A file that is damaged is kept beside a new one, and named.
    ///
    /// # Errors
    /// When the file cannot be opened or made, or another process has it.
    pub(crate) fn open(path: &Path) -> Result<(Arc<Self>, Option<String>), StoreError> {
        let mut warning = None;
        let opened = read(path).or_else(|error| {
            let StoreError::Damaged(_) = &error else { return Err(error) };
            let kept = set_aside(path)?;
            warning = Some(format!(
                "{} is damaged, and users start from zero: {error}; the old file is kept as {}",
                path.display(),
                kept.display()
            ));
            read(path)
        });
        let (store, written) = opened?;
        let book = Book { store: Some(store), written, ..Book::default() };
        Ok((Arc::new(Self { book: Mutex::new(book), failed: Notice::default() }), warning))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The accounts of an inbound's users, which go on from where they were.
    ///
    /// # Errors
    /// When the thread that keeps them cannot be made.
    pub(crate) fn accounts<'u>(
        self: &Arc<Self>,
        inbound: &str,
        users: impl Iterator<Item = (&'u str, UserLimits)>,
    ) -> std::io::Result<Accounts> {
        let (now, unix_s) = (rt::now(), rt::unix_time());
        let mut book = self.book();
        let mut known: HashMap<Box<[u8]>, Arc<Account>> = book.accounts.drain(..).collect();
        let mut accounts = Vec::new();
        for (name, limits) in users {
            let key = [inbound.as_bytes(), b"\0", name.as_bytes()].concat().into_boxed_slice();
            let account = match known.get(&key) {
                Some(account) => {
                    account.set_limits(limits, unix_s);
                    account.restore();
                    account.clone()
                }
                None => {
                    let record = book.written.get(&key).copied().unwrap_or_default();
                    let account = Arc::new(Account::new(name, limits, record, now, unix_s));
                    known.insert(key, account.clone());
                    account
                }
            };
            accounts.push(account);
        }
        book.accounts = known.into_iter().collect();
        if !accounts.is_empty() && !std::mem::replace(&mut book.has_thread, true) {
            let ledger = Arc::downgrade(self);
            std::thread::Builder::new().name("adit-users".into()).spawn(move || keep(&ledger))?;
        }
        Ok(accounts.into())
    }

    /// Writes what has changed.
    pub(crate) fn flush(&self) {
        let book = &mut *self.book();
        let current = book.accounts.iter().map(|(key, account)| (key, account.record()));
        let changed: Vec<(&[u8], Record)> = current
            .filter(|(key, record)| *record != book.written.get(*key).copied().unwrap_or_default())
            .map(|(key, record)| (&**key, record))
            .collect();
        let Some(store) = book.store.as_mut().filter(|_| !changed.is_empty()) else { return };
        match store.write(changed.iter().map(|(key, record)| (*key, emit(record)))) {
            Ok(()) => {
                for (key, record) in changed {
                    book.written.insert(key.into(), record);
                }
            }
            Err(error) => {
                if let Some(times) = self.failed.due(rt::now()) {
                    tracing::error!(times, %error, "the counters of users cannot be written");
                }
            }
        }
    }

    fn tick(&self) {
        let unix_s = rt::unix_time();
        self.book().accounts.iter().for_each(|(_, account)| account.tick(unix_s));
        self.flush();
    }
}

fn keep(ledger: &Weak<Ledger>) {
    loop {
        std::thread::sleep(EVERY);
        let Some(ledger) = ledger.upgrade() else { return };
        ledger.tick();
    }
}

fn read(path: &Path) -> Result<(Store, Records), StoreError> {
    let store = Store::open(path)?;
    let mut written = Records::new();
    for (key, value) in store.read()? {
        let record = parse(&value).ok_or_else(|| StoreError::Damaged("a record of another length".into()))?;
        written.insert(key, record);
    }
    Ok((store, written))
}

/// Gives the file a name under which it is not in the way.
fn set_aside(path: &Path) -> Result<std::path::PathBuf, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".damaged-{}", rt::unix_time()));
    let kept = std::path::PathBuf::from(name);
    std::fs::rename(path, &kept).map_err(StoreError::System)?;
    Ok(kept)
}

fn emit(record: &Record) -> [u8; RECORD_LEN] {
    let Record { up, down, requests, base, period } = record;
    let mut out = [0; RECORD_LEN];
    for (out, number) in out.chunks_exact_mut(8).zip([up, down, requests, base, period]) {
        out.copy_from_slice(&number.to_le_bytes());
    }
    out
}

fn parse(value: &[u8]) -> Option<Record> {
    let value: &[u8; RECORD_LEN] = value.try_into().ok()?;
    let mut numbers = value.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number));
    let mut next = || numbers.next();
    Some(Record { up: next()?, down: next()?, requests: next()?, base: next()?, period: next()? })
}
