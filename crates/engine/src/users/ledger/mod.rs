//! The accounts of all users, and the state file that keeps their counters across restarts.
//!
//! A second after a counter has changed, and at once when a quota is used up, an image of all counters goes to the state
//! file: a kill costs the last second at most. Records of users that the configuration no longer has are kept for
//! [`KEPT_DAYS`].

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use adit_model::codes;
use adit_model::map::Map;
use adit_model::{StateFile as Place, User};
use adit_net::{files, rt};
use serde::{Deserialize, Serialize};

use super::Accounts;
use super::account::{Account, AccountRecord};
use super::addresses::Presence;
use super::image::{Image, Salt, Saved, UserKey};
use super::known_sources::KnownSources;
use super::lmdb;
use super::sources_file::{self, Books};
use super::state::{OpenedState, StateError, StateFile, earlier_name};
use crate::counters::{Counter, Distribution, Histogram};
use crate::errors::Gate;
use crate::log_throttle::LogThrottle;

mod away;

use self::away::Away;
pub(crate) use self::away::{AwayChange, Charged, Credit};

/// Interval at which counters are written.
const EVERY: Duration = Duration::from_secs(1);
/// Interval at which sources of users are written, in seconds.
const SOURCES_EVERY_S: u64 = 60;
/// Time for which the record of a removed user is kept, in days: enough for a billing period that ends meanwhile, and for
/// a key that is put back.
const KEPT_DAYS: u32 = 92;
const DAY_S: u64 = 86_400;

/// All accounts of the process.
#[derive(Debug, Default)]
pub(crate) struct AccountLedger {
    book: Mutex<Book>,
    alarm: Arc<Alarm>,
    failed: LogThrottle,
    writes: Writes,
    /// No period begins: the clock may be wrong.
    holder: Holder,
    /// Lines about users.
    gate: Gate,
}

/// Upper ends of the classes of writes by their time, in microseconds.
const WRITE_ENDS_US: [u64; 8] = [1_000, 2_500, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000];

/// Counters of writes of the state file.
#[derive(Debug)]
struct Writes {
    times: Histogram,
    errors: Counter,
}

impl Default for Writes {
    fn default() -> Self {
        Self { times: Histogram::new(&WRITE_ENDS_US), errors: Counter::default() }
    }
}

/// The state file in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFileStatus {
    /// Writes.
    pub writes: u64,
    /// Of these, those that failed.
    pub errors: u64,
    /// Writes by the time that they took.
    #[serde(default)]
    pub times: Distribution,
}

/// Says whether periods wait.
pub(crate) type IsHeld = Arc<dyn Fn() -> bool + Send + Sync>;

#[derive(Default)]
struct Holder(Mutex<Option<IsHeld>>);

impl Holder {
    fn is_held(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|is_held| is_held())
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Holder").field(&self.is_held()).finish()
    }
}

#[derive(Debug, Default)]
struct Book {
    file: Option<StateFile>,
    /// As it was last written, or read, unless `is_unsaved`.
    image: Image,
    live: Map<UserKey, Arc<Account>>,
    /// Records of the store of earlier versions, by `inbound | 00 | user`, until a user takes them over.
    earlier: Map<Box<[u8]>, AccountRecord>,
    has_thread: bool,
    /// Another process has the file.
    away: Option<Away>,
    /// The image is not on disk as it is here: users that are not live have moved bytes in another process, or the last
    /// save failed.
    is_unsaved: bool,
    /// Sources of users, and the file that they are in.
    sources: Books,
    sources_path: Option<PathBuf>,
    sources_at: u64,
    /// When it was looked whose bytes have moved, in seconds since 1970.
    looked_at: u64,
}

/// Wakes the thread that writes.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    is_ringing: Mutex<bool>,
    rung: Condvar,
}

impl Alarm {
    /// Has everything written at once.
    pub(super) fn ring(&self) {
        *self.is_ringing.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rung.notify_one();
    }

    fn wait(&self, time: Duration) {
        let is_ringing = self.is_ringing.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(is_ringing, time, |is_ringing| !*is_ringing);
        let (mut is_ringing, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *is_ringing = false;
    }
}

/// The use that a user has made of a quota on this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaUse {
    /// The quota in bytes.
    pub quota: u64,
    /// Bytes of the period, both ways together.
    pub used: u64,
    /// Day of the month on which a period begins.
    pub reset_day: Option<u8>,
    /// The period; 0 where there is one for ever.
    pub period: u64,
}

/// A state file that cannot be used.
#[derive(Debug)]
pub(crate) struct Unusable {
    pub(crate) path: PathBuf,
    pub(crate) why: StateError,
}

impl AccountLedger {
    /// The ledger of a configuration, with what a person should know. One without a state file has `None` for `place`.
    ///
    /// # Errors
    /// When the configuration insists on a file that cannot be used.
    pub(crate) fn start(place: Option<&Place>) -> Result<(Arc<Self>, Option<String>), Unusable> {
        match place {
            None | Some(Place::Usual | Place::Off) => Ok((Arc::default(), None)),
            Some(Place::At(path)) => {
                let earlier = earlier_name(path);
                Self::open(path, &earlier).map_err(|why| Unusable { path: path.clone(), why })
            }
            Some(Place::Try { path, earlier }) => Ok(Self::open(path, earlier).unwrap_or_else(|error| {
                let path = path.display();
                let warning = match error {
                    StateError::Busy => format!(
                        "state file {path} is used by another process with this configuration; user counters of this \
                         process will be lost when it ends; stop the other process, or name another file with `state`"
                    ),
                    why @ (StateError::System(_) | StateError::NotAFile) => {
                        format!("cannot open state file {path}: {why}; user counters will be lost on restart")
                    }
                };
                (Arc::default(), Some(warning))
            })),
        }
    }

    /// A ledger over the state file at `path`. If there is none yet, users take their counters over from the store of
    /// earlier versions at `earlier`, which stays as it is.
    ///
    /// # Errors
    /// When the file cannot be opened or made, or another process has it.
    pub(crate) fn open(path: &Path, earlier: &Path) -> Result<(Arc<Self>, Option<String>), StateError> {
        let OpenedState { file, image, is_first, mut warning } = StateFile::open(path, rt::unix_time())?;
        let image = image.unwrap_or_else(|| {
            let mut salt = Salt::default();
            getrandom::fill(&mut salt.0).expect("the system has a random source");
            Image { salt, ..Image::default() }
        });
        let earlier = if is_first {
            let (earlier, note) = read_earlier(earlier);
            warning = warning.or(note);
            earlier
        } else {
            Map::new()
        };
        let sources_path = Some(sources_file::path(path));
        let sources = sources_path.as_deref().map(sources_file::read).unwrap_or_default();
        let book = Book { file: Some(file), image, earlier, sources, sources_path, ..Book::default() };
        Ok((Arc::new(Self { book: Mutex::new(book), ..Self::default() }), warning))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The accounts of an inbound's users, which go on from where they were.
    ///
    /// # Errors
    /// When the thread that writes cannot be made.
    pub(crate) fn accounts(self: &Arc<Self>, inbound: &str, users: &[User]) -> std::io::Result<Accounts> {
        let (now, unix_s) = (rt::now(), rt::unix_time());
        let mut book = self.book();
        let inbound = Arc::<str>::from(inbound);
        let mut accounts = Vec::with_capacity(users.len());
        for user in users {
            let fingerprint = book.image.salt.fingerprint(user.key.expose());
            let key = UserKey { inbound: inbound.clone(), user: user.name.clone(), fingerprint };
            if let Some(account) = book.live.get(&key) {
                if account.limits() != user.limits {
                    account.set_limits(user.limits, unix_s);
                }
                account.restore();
                accounts.push(account.clone());
                continue;
            }
            let record = book.find(&key);
            // One name serves the configuration, the account and its record.
            if let Some(saved) = book.image.users.remove(&key) {
                book.image.users.insert(key.clone(), saved);
            }
            let account = Account::new(key.user.clone(), user.limits, record, now, unix_s);
            let account = Arc::new(account.with_alarm(self.alarm.clone()));
            book.live.insert(key, account.clone());
            accounts.push(account);
        }
        book.live.trim();
        if !accounts.is_empty() && !std::mem::replace(&mut book.has_thread, true) {
            let (ledger, alarm) = (Arc::downgrade(self), self.alarm.clone());
            std::thread::Builder::new().name("adit-users".into()).spawn(move || keep(&ledger, &alarm))?;
        }
        Ok(accounts.into())
    }

    /// Writes what has changed.
    pub(crate) fn flush(&self) {
        let (unix_s, since) = (rt::unix_time(), rt::now());
        let saved = self.book().save(unix_s);
        if !matches!(saved, Ok(false)) {
            self.writes.errors.add(u64::from(saved.is_err()));
            self.writes.times.note_time(rt::now().saturating_duration_since(since));
        }
        if let Err(error) = saved
            && let Some(times) = self.failed.due(rt::now())
        {
            tracing::error!(code = codes::SYS_STATE_WRITE.id, times, %error, "cannot write the state file; user counters will be lost on restart");
        }
    }

    /// Counters of writes.
    pub(crate) fn file_status(&self) -> StateFileStatus {
        let times = Distribution::of([&self.writes.times]);
        StateFileStatus { writes: times.count(), errors: self.writes.errors.value(), times }
    }

    /// The sources of the users of an inbound, which outlive it and the process.
    pub(crate) fn sources(&self, inbound: &str) -> Arc<KnownSources> {
        self.book().sources.entry(inbound.into()).or_default().clone()
    }

    /// Writes the sources of users.
    pub(crate) fn save_sources(&self) {
        // Not under the lock: an image of many users takes its time.
        let (books, path) = {
            let book = self.book();
            (book.sources.clone(), book.sources_path.clone())
        };
        if let Some(path) = path
            && let Err(error) = sources_file::write(&path, &books)
        {
            tracing::debug!(%error, "sources of users");
        }
    }

    /// The names of all users.
    pub(crate) fn names(&self) -> BTreeSet<Arc<str>> {
        self.book().live.values().map(|account| account.name.clone()).collect()
    }

    /// Bytes of the period of users with a quota, by name, over all inbounds: of all of them, or of those alone that have used
    /// half of their allowance.
    pub(crate) fn quotas(&self, is_hurried: bool) -> Map<Arc<str>, QuotaUse> {
        let book = self.book();
        let mut all = Map::<Arc<str>, QuotaUse>::new();
        if is_hurried {
            let hurried = book.live.values().filter(|account| account.is_hurried());
            all = hurried.map(|account| (account.name.clone(), QuotaUse::default())).collect();
            if all.is_empty() {
                return all;
            }
        }
        for account in book.live.values() {
            let limits = account.limits();
            let Some(quota) = limits.quota.filter(|_| !is_hurried || all.contains_key(&account.name)) else {
                continue;
            };
            let used = all.entry(account.name.clone()).or_default();
            used.quota = quota;
            used.used += account.used();
            used.reset_day = limits.reset_day;
            used.period = account.record().period;
        }
        all
    }

    /// Holds users to what others leave them of their quota: so many bytes more from here, or all of it.
    pub(crate) fn allow(&self, allowances: &Map<Arc<str>, Option<u64>>) {
        for account in self.book().live.values() {
            if let Some(allowance) = allowances.get(&account.name) {
                account.allow(*allowance);
            }
        }
    }

    /// The sources in use of users whose sources are limited, by name, over all inbounds.
    pub(crate) fn presences(&self) -> Map<Arc<str>, Presence> {
        let now = rt::now();
        let mut all = Map::<Arc<str>, Presence>::new();
        for account in self.book().live.values() {
            let Some(Presence { most, sources, is_waiting }) = account.presence(now) else { continue };
            let own = all.entry(account.name.clone()).or_default();
            own.most = most;
            own.is_waiting |= is_waiting;
            own.sources.extend(sources);
        }
        all
    }

    /// Follows the sources of users on all nodes, in order of their arrival, with the seconds for which they have been
    /// silent; those that have been so for `silent_s` come last.
    pub(crate) fn follow_sources(&self, all: &Map<Arc<str>, Vec<(IpAddr, u64)>>, silent_s: u64) {
        let now = rt::now();
        for account in self.book().live.values() {
            if let Some(all) = all.get(&account.name) {
                account.follow(Some((all, silent_s)), now);
            }
        }
    }

    /// The sources on other nodes are not known any more.
    pub(crate) fn forget_elsewhere(&self) {
        let now = rt::now();
        self.book().live.values().for_each(|account| account.follow(None, now));
    }

    /// Keeps periods from beginning as long as `is_held` says so.
    pub(crate) fn hold_periods_while(&self, is_held: IsHeld) {
        *self.holder.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(is_held);
    }

    /// Bytes up and down of users whose name begins with `prefix`, without it, as they are on disk.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn saved_totals(&self, prefix: &str) -> std::io::Result<Map<Box<str>, [u64; 2]>> {
        let mut book = self.book();
        book.save(rt::unix_time())?;
        let mut totals = Map::<Box<str>, [u64; 2]>::new();
        let mut add = |user: &str, record: AccountRecord| {
            if let Some(id) = user.strip_prefix(prefix) {
                let total = totals.entry(id.into()).or_default();
                *total = [total[0] + record.up, total[1] + record.down];
            }
        };
        if book.file.is_some() {
            book.image.users.iter().for_each(|(key, saved)| add(&key.user, saved.record));
        } else {
            book.live.iter().for_each(|(key, account)| add(&key.user, account.record()));
        }
        Ok(totals)
    }

    /// The sources of open connections of users whose name begins with `prefix`, without it.
    pub(crate) fn online(&self, prefix: &str) -> Map<Box<str>, Vec<IpAddr>> {
        let mut all = Map::<Box<str>, Vec<IpAddr>>::new();
        for (key, account) in &self.book().live {
            let Some(id) = key.user.strip_prefix(prefix) else { continue };
            let sources = account.sources();
            if !sources.is_empty() {
                all.entry(id.into()).or_default().extend(sources);
            }
        }
        for sources in all.values_mut() {
            sources.sort_unstable();
            sources.dedup();
        }
        all
    }

    fn tick(&self) {
        let (now, unix_s) = (rt::now(), rt::unix_time());
        let mut book = self.book();
        // An alarm may ring within a second.
        let is_next_second = std::mem::replace(&mut book.looked_at, unix_s) != unix_s;
        let is_held = self.holder.is_held();
        for account in book.live.values() {
            account.tick(unix_s);
            if is_next_second {
                account.look();
            }
            account.sweep(now);
            if !is_held {
                account.turn(unix_s);
            }
        }
        for (key, account) in &book.live {
            if let Some(line) = account.take_line(unix_s) {
                line.write(&key.inbound, &account.name, &self.gate);
            }
        }
        drop(book);
        if let Some(users) = self.gate.take_sum(rt::now(), false) {
            tracing::info!(
                users,
                "further users reached a limit in the past minute; `adit status` shows them"
            );
        }
        self.flush();
        let is_due = {
            let mut book = self.book();
            let is_due = unix_s >= book.sources_at + SOURCES_EVERY_S;
            if is_due {
                book.sources_at = unix_s;
            }
            is_due
        };
        if is_due {
            self.save_sources();
        }
    }
}

impl Book {
    /// The counters of a user that is not here yet.
    fn find(&mut self, key: &UserKey) -> AccountRecord {
        if let Some(saved) = self.image.users.get(key) {
            return saved.record;
        }
        let earlier = [key.inbound.as_bytes(), b"\0", key.user.as_bytes()].concat();
        self.earlier.remove(&*earlier).unwrap_or_default()
    }

    /// Writes the file if something has changed; whether it was written.
    fn save(&mut self, unix_s: u64) -> std::io::Result<bool> {
        if self.file.is_none() {
            return Ok(false);
        }
        let today = u32::try_from(unix_s / DAY_S).unwrap_or(u32::MAX);
        let is_saved = |(key, account): (&UserKey, &Arc<Account>)| {
            self.image.users.get(key) == Some(&Saved { record: account.record(), day: today })
        };
        if !self.is_unsaved && self.live.iter().all(is_saved) {
            return Ok(false);
        }
        // Until it is on disk, it is not as it is there.
        self.is_unsaved = true;
        let users = &mut self.image.users;
        users
            .retain(|key, saved| self.live.contains_key(key) || today.saturating_sub(saved.day) <= KEPT_DAYS);
        for (key, account) in &self.live {
            let saved = Saved { record: account.record(), day: today };
            match users.get_mut(key) {
                Some(before) => *before = saved,
                None => drop(users.insert(key.clone(), saved)),
            }
        }
        users.trim();
        self.image.generation += 1;
        self.image.saved_at = unix_s;
        if let Some(file) = &mut self.file {
            file.save(&self.image)?;
        }
        self.is_unsaved = false;
        // An account that has no other holder counts no more. Its counters are saved.
        self.live.retain(|_, account| Arc::strong_count(account) > 1);
        Ok(true)
    }
}

/// The records of the store at `path`, with what a person should know about it.
fn read_earlier(path: &Path) -> (Map<Box<[u8]>, AccountRecord>, Option<String>) {
    let Ok(file) = files::open(path) else { return (Map::new(), None) };
    if !lmdb::is_store(&file) {
        return (Map::new(), None);
    }
    let (pairs, is_whole) = lmdb::read(&file);
    let records: Map<_, _> =
        pairs.into_iter().filter_map(|(key, value)| Some((key, AccountRecord::parse(&value)?))).collect();
    let path = path.display();
    tracing::info!(users = records.len(), %path, "user counters of an earlier version are taken over");
    let warning =
        format!("{path} is damaged: {} users could be taken over, others start from zero", records.len());
    (records, (!is_whole).then_some(warning))
}

fn keep(ledger: &Weak<AccountLedger>, alarm: &Alarm) {
    loop {
        alarm.wait(EVERY);
        let Some(ledger) = ledger.upgrade() else { return };
        ledger.tick();
    }
}
