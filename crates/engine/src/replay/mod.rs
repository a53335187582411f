//! The memory of salts: a salt that has opened a stream once must not do so again.
//!
//! ```text
//!   server ── Salts ─┬─ lasting: the last LASTING salts      Snell, Shadowsocks before 2022, IVs of ShadowsocksR
//!                    ├─ recent: the salts of the last minute  Shadowsocks 2022, whose requests carry their time
//!                    ├─ file:   both, as rings of records     survives a kill
//!                    └─ siblings: both, of the nodes of a replay group
//! ```
//!
//! All inbounds of a process share one [`ReplayFilter`], so a recording is refused on another port with the same key too, and an
//! inbound that is opened anew keeps what it has seen. Salts are kept as keyed fingerprints of 8 bytes. The key is
//! drawn once per file, so nobody can aim for a collision.
//!
//! A fingerprint is in the file before [`ReplayFilter::insert`] returns: a killed process forgets nothing. A thread syncs the file
//! once a second: a loss of power costs the last second at most. A client's own filter ([`SaltFilter`]) has no file.

mod away;
mod file;
mod fingerprints;
mod sharing;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use adit_model::codes;
use adit_net::rt;
use adit_proto::crypto::siphash13;

use self::file::{Kind, SaltFile};
use self::fingerprints::{Fingerprints, Plain, table_memory};
use crate::log_throttle::LogThrottle;

use self::away::Sink;
pub(crate) use self::away::{Arbiter, Print};
pub use self::file::fuzz_salts;
pub(crate) use self::file::salts_path;
pub(crate) use self::sharing::ReplaySharing;
pub use self::sharing::{GroupCounts, GroupSalts};

/// Salts without a time that are remembered at least.
const LASTING: usize = 1_000_000;
/// Salts of one minute that are remembered; beyond it connections are refused.
const RECENT: usize = 1_000_000;
/// Least time for which a recent salt is remembered, in seconds: a request is valid from 30 s before the time that it
/// carries to 30 s after (SIP022, "Replay Protection").
const LIFE_S: u64 = 60;
/// Time between two syncs of the file.
const EVERY: Duration = Duration::from_secs(1);

/// The key of the fingerprints.
type Key = [u8; 16];

/// A filter for the salts of one key, without a file.
#[derive(Debug)]
pub(crate) struct SaltFilter {
    key: Key,
    prints: Fingerprints,
}

impl SaltFilter {
    /// A filter that remembers the last `salts`, and a few more.
    pub(crate) fn new(salts: usize) -> Self {
        Self { key: draw_key(), prints: Fingerprints::new(salts) }
    }

    /// Remembers `salt`; false if it was known. Checking and remembering are one step.
    pub(crate) fn insert(&self, salt: &[u8]) -> bool {
        self.prints.insert(fingerprint(&self.key, salt))
    }
}

/// The salts that the servers of a process have seen.
pub(crate) struct ReplayFilter {
    key: Key,
    lasting: Fingerprints,
    recent: Mutex<Recent>,
    /// Bytes that `recent` takes, so that nobody locks it to know.
    recent_memory: AtomicUsize,
    sink: RwLock<Sink>,
    siblings: OnceLock<Arc<ReplaySharing>>,
    failed: LogThrottle,
    /// Ends the thread that syncs.
    _alive: Option<Sender<()>>,
}

impl fmt::Debug for ReplayFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Salts").field("sink", &self.sink).finish_non_exhaustive()
    }
}

impl Default for ReplayFilter {
    /// A memory that ends with the process.
    fn default() -> Self {
        Self {
            key: draw_key(),
            lasting: Fingerprints::new(LASTING),
            recent: Mutex::default(),
            recent_memory: AtomicUsize::new(0),
            sink: RwLock::default(),
            siblings: OnceLock::new(),
            failed: LogThrottle::default(),
            _alive: None,
        }
    }
}

impl ReplayFilter {
    /// The memory over the file at `path`, with what a person should know. A file that cannot be used costs a warning,
    /// and the memory ends with the process then.
    pub(crate) fn start(path: &Path) -> (Arc<Self>, Option<String>) {
        let opened = match SaltFile::open(path, draw_key(), rt::unix_time()) {
            Ok(opened) => opened,
            Err(why) => {
                let path = path.display();
                let warning = format!(
                    "cannot use replay file {path}: {why}; connections that were recorded before a restart will be \
                     served again after it"
                );
                return (Arc::default(), Some(warning));
            }
        };
        let lasting = Fingerprints::new(LASTING);
        for print in opened.lasting {
            lasting.insert(print);
        }
        let recent =
            Recent { newer: opened.recent.into_iter().collect(), turned_s: now_s(), ..Recent::default() };
        let (sender, receiver) = channel();
        let salts = Arc::new(Self {
            key: opened.key,
            lasting,
            recent_memory: AtomicUsize::new(recent.memory()),
            recent: Mutex::new(recent),
            sink: RwLock::new(Sink::File(opened.file, path.to_owned())),
            siblings: OnceLock::new(),
            failed: LogThrottle::default(),
            _alive: Some(sender),
        });
        let weak = Arc::downgrade(&salts);
        let sync = move || {
            while receiver.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) && sync(&weak) {}
        };
        let mut warning = opened.warning;
        if let Err(error) = std::thread::Builder::new().name("adit-salts".into()).spawn(sync) {
            let path = path.display();
            warning.get_or_insert_with(|| {
                format!("cannot start the thread that syncs replay file {path}: {error}")
            });
        }
        (salts, warning)
    }

    /// Shares salts with the nodes of a replay group from now on; the first one stays.
    pub(crate) fn follow(&self, siblings: Arc<ReplaySharing>) {
        drop(self.siblings.set(siblings));
    }

    /// Remembers a salt that is good for ever; false if it was known.
    pub(crate) fn insert(&self, salt: &[u8]) -> bool {
        let print = fingerprint(&self.key, salt);
        self.lasting.insert(print)
            && self.write(Kind::Lasting, print)
            && self.is_new_to_siblings(Kind::Lasting, salt)
    }

    /// Remembers a salt of a request that carries its time; false if it was known, or if too many have come within a
    /// minute.
    pub(crate) fn insert_recent(&self, salt: &[u8]) -> bool {
        let print = fingerprint(&self.key, salt);
        self.insert_recent_print(print)
            && self.write(Kind::Recent, print)
            && self.is_new_to_siblings(Kind::Recent, salt)
    }

    fn is_new_to_siblings(&self, kind: Kind, salt: &[u8]) -> bool {
        self.siblings.get().is_none_or(|siblings| siblings.admit(kind, salt))
    }

    fn insert_recent_print(&self, print: u64) -> bool {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = recent.insert(print, now_s());
        self.recent_memory.store(recent.memory(), Ordering::Relaxed);
        is_new
    }

    /// Bytes of memory that the fingerprints take, those of siblings included.
    pub(crate) fn memory(&self) -> usize {
        let siblings = self.siblings.get().map_or(0, |siblings| siblings.memory());
        self.lasting.memory() + self.recent_memory.load(Ordering::Relaxed) + siblings
    }

    /// Notes a salt that is new here; false if another process knows it.
    fn write(&self, kind: Kind, print: u64) -> bool {
        match &*self.sink.read().unwrap_or_else(PoisonError::into_inner) {
            Sink::None => {}
            Sink::File(file, _) => {
                if let Err(error) = file.append(kind, print, rt::unix_time()) {
                    self.tell(&error);
                }
            }
            Sink::Journal(journal, _) => {
                journal.lock().unwrap_or_else(PoisonError::into_inner).push(Print::new(kind, print));
            }
            Sink::Away(arbiter) => return arbiter.admits(Print::new(kind, print)),
        }
        true
    }

    fn tell(&self, error: &std::io::Error) {
        if let Some(times) = self.failed.due(rt::now()) {
            tracing::error!(
                code = codes::SYS_REPLAY_WRITE.id,
                times,
                %error,
                "cannot write the replay file; connections recorded since then will be served again after a restart"
            );
        }
    }
}

/// Syncs the file; false once nobody uses it.
fn sync(salts: &Weak<ReplayFilter>) -> bool {
    let Some(salts) = salts.upgrade() else { return false };
    if let Sink::File(file, _) = &*salts.sink.read().unwrap_or_else(PoisonError::into_inner)
        && let Err(error) = file.sync()
    {
        salts.tell(&error);
    }
    true
}

/// The fingerprints of the last [`LIFE_S`] seconds, and of up to as many before.
#[derive(Debug, Default)]
struct Recent {
    newer: HashSet<u64, Plain>,
    older: HashSet<u64, Plain>,
    /// When `newer` began, in seconds of [`now_s`].
    turned_s: u64,
}

impl Recent {
    fn memory(&self) -> usize {
        table_memory(&self.newer) + table_memory(&self.older)
    }

    fn insert(&mut self, print: u64, now_s: u64) -> bool {
        let age = now_s.saturating_sub(self.turned_s);
        if age >= LIFE_S {
            let newer = std::mem::take(&mut self.newer);
            self.older = if age >= 2 * LIFE_S { HashSet::default() } else { newer };
            self.turned_s = now_s;
        }
        !self.older.contains(&print)
            && self.newer.len() + self.older.len() < RECENT
            && self.newer.insert(print)
    }
}

/// Seconds of a clock that never steps back.
fn now_s() -> u64 {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let now = rt::now();
    now.saturating_duration_since(*START.get_or_init(|| now)).as_secs()
}

fn fingerprint(key: &Key, salt: &[u8]) -> u64 {
    u64::from_le_bytes(siphash13(key, salt))
}

fn draw_key() -> Key {
    let mut key = Key::default();
    getrandom::fill(&mut key).expect("the system has a random source");
    key
}
