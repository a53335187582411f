//! The thread of the store: every few seconds, and at once when an allowance is half used, totals go there and answers
//! become allowances. Sources of users go there, too.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_model::map::Map;
use adit_model::{Store, StoreAway};
use adit_net::rt::{self, Cores, OrderSender, Orders};

use super::allowance::first_allowance;
use super::link::{Place, StoreError};
use super::links::{Links, Request};
use super::presence::Seen;
use super::replay::{GroupCounts, GroupSalts, Replay, ReplayReport};
use super::resp::Value;
use super::script::key;
use super::totals::Told;
use super::users::Roster;
use crate::jitter::jittered;
use crate::panel::UserList;
use crate::times::Times;

/// Interval at which allowances are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Pause after a failure; it doubles.
const PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The use that a user has made of its quota on this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// The quota in bytes.
    pub quota: u64,
    /// Bytes of the period on this node.
    pub used: u64,
    /// Day of the month on which a period begins.
    pub reset_day: Option<u8>,
    /// The period; 0 where there is one for ever.
    pub period: u64,
}

/// The sources of a user with a limit of addresses on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserSources {
    /// The limit.
    pub most: u32,
    /// IPv4 addresses and first addresses of IPv6 /64s, with the seconds since the last byte and since they came.
    pub sources: Vec<(IpAddr, u64, u64)>,
    /// A source has been refused because of sources on other nodes.
    pub is_waiting: bool,
}

/// Sources of users on all nodes, in order of arrival, with the seconds for which they have been silent.
pub type Everywhere = Map<Arc<str>, Vec<(IpAddr, u64)>>;

/// The parts of the program that the store's thread uses.
pub trait StoreHost: Send {
    /// The users with a quota, by name: all of them, or those alone that have used half of their allowance.
    fn uses(&mut self, is_hurried: bool) -> Map<Arc<str>, Use>;

    /// Holds users to so many bytes more from here; `None` for the whole quota.
    fn allow(&mut self, allowances: &Map<Arc<str>, Option<u64>>);

    /// The sources of users with a limit of addresses, by name.
    fn sources(&mut self) -> Map<Arc<str>, UserSources>;

    /// Follows the sources of users on all nodes: in order of their arrival, with the seconds for which they have been
    /// silent. Those that have been so for `silent_s` give way. `None` for nothing known: limits hold on this node alone.
    fn follow_sources(&mut self, all: Option<&Everywhere>, silent_s: u64);

    /// The users that the store lists have changed; the report has them.
    fn users_changed(&mut self);

    /// Takes up to `most` salts that the replay group has not been told.
    fn take_salts(&mut self, most: usize) -> GroupSalts;

    /// Refuses these salts from now on.
    fn learn_salts(&mut self, salts: &GroupSalts);

    /// Counters of the memory of salts.
    fn group_counts(&mut self) -> GroupCounts;

    /// The seconds by which the store's clock is ahead of this one's.
    fn skew(&mut self, seconds: i64);
}

/// State of the store that others look at.
#[derive(Debug, Clone, Default)]
pub struct StoreReport {
    /// When it was in step last.
    pub synced_at: Option<Instant>,
    /// Since when it is away, in seconds since 1970.
    pub away_since: Option<u64>,
    /// Whether another process has this node's id, so that nothing is told.
    pub is_clone: bool,
    /// Calls by operation and result.
    pub calls: Map<(&'static str, &'static str), u64>,
    /// Calls by the time that they took, by operation and result.
    pub times: Map<(&'static str, &'static str), Times>,
    /// Times that the store had lost something.
    pub resyncs: u64,
    /// The users that the store lists, if it does.
    pub list: Option<Arc<UserList>>,
    /// Since when a list that lost too many users waits for a second one, in seconds since 1970.
    pub list_waits_since: Option<u64>,
    /// The replay group, if there is one.
    pub replay: Option<ReplayReport>,
    /// The last error, until something succeeds.
    pub error: Option<String>,
}

/// [`StoreReport`], shared.
#[derive(Debug, Default)]
pub struct StoreShared(Mutex<StoreReport>);

impl StoreShared {
    /// The report.
    pub fn report(&self) -> MutexGuard<'_, StoreReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread; it ends when the sender that is returned is dropped. `node` is the node's id, `boot` the number of
/// its start; `copy` is the place of the copy of the users that the store lists.
///
/// # Errors
/// When the address is none, or there cannot be another thread.
pub fn start(
    store: Store,
    node: Box<str>,
    boot: u64,
    copy: PathBuf,
    shared: Arc<StoreShared>,
    host: impl StoreHost + 'static,
) -> io::Result<OrderSender<()>> {
    let place =
        Place::new(&store).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
    let roster = Roster::new(&store, copy);
    shared.report().list = roster.as_ref().map(Roster::list);
    let (stop, stopped) = rt::orders();
    std::thread::Builder::new().name("adit-store".into()).spawn(move || {
        let sync = Sync { roster, ..Sync::new(store, place, node, boot, shared, Box::new(host)) };
        drop(Cores::block_on(sync.run(stopped)));
    })?;
    Ok(stop)
}

/// The thread.
pub(super) struct Sync {
    pub(super) store: Store,
    pub(super) links: Links,
    pub(super) node: Box<str>,
    pub(super) boot: u64,
    pub(super) instance: String,
    pub(super) shared: Arc<StoreShared>,
    pub(super) host: Box<dyn StoreHost>,
    pub(super) told: Map<Arc<str>, Told>,
    /// Bytes of users and their periods when this process saw them first, until the store has been told of them.
    pub(super) began: Map<Arc<str>, (u64, u64)>,
    /// Users of whom the store may have lost something: they are told again, some at a time.
    pub(super) behind: BTreeSet<Arc<str>>,
    /// When this node has renewed the life of a key.
    pub(super) renewed: Map<Box<str>, Instant>,
    pub(super) seen: Map<Arc<str>, Seen>,
    pub(super) beat: u64,
    /// Whether the last beat was written by this process.
    pub(super) has_beaten: bool,
    /// Another instance under this node's id, with its beat.
    pub(super) other: Option<(String, u64)>,
    /// Whether no other process may be living under this node's id.
    pub(super) may_tell: bool,
    /// The users that the store lists.
    pub(super) roster: Option<Roster>,
    /// The replay group.
    pub(super) replay: Option<Replay>,
    pause: Duration,
}

impl Sync {
    pub(super) fn new(
        store: Store,
        place: Place,
        node: Box<str>,
        boot: u64,
        shared: Arc<StoreShared>,
        host: Box<dyn StoreHost>,
    ) -> Self {
        let mut instance = [0; 8];
        getrandom::fill(&mut instance).expect("the system has a random source");
        Self {
            replay: Replay::new(&store),
            store,
            links: Links::new(place),
            node,
            boot,
            instance: instance.iter().map(|byte| format!("{byte:02x}")).collect(),
            shared,
            host,
            told: Map::new(),
            began: Map::new(),
            behind: BTreeSet::new(),
            renewed: Map::new(),
            seen: Map::new(),
            beat: 0,
            has_beaten: false,
            other: None,
            may_tell: false,
            roster: None,
            pause: PAUSE,
        }
    }

    async fn run(mut self, mut stopped: Orders<()>) {
        let mut next = rt::now();
        let uses = self.host.uses(false);
        self.note_begin(&uses);
        loop {
            let wait = async {
                rt::sleep(LOOK).await;
                false
            };
            let end = async { stopped.next().await.is_none() };
            if rt::race(end, wait).await {
                return;
            }
            let now = rt::now();
            let is_due = now >= next;
            if !is_due && !self.links.is_open() {
                continue;
            }
            let uses = self.host.uses(!is_due);
            if is_due {
                self.told.retain(|user, _| uses.contains_key(user));
                self.behind.retain(|user| uses.contains_key(user));
                self.began.retain(|user, _| uses.contains_key(user));
                self.note_begin(&uses);
                self.told.trim();
                if self.began.is_empty() {
                    // Its room was for all users at the start.
                    self.began = Map::new();
                }
            }
            let result = Box::pin(self.sync(&uses, is_due)).await;
            self.show_replay();
            next = if is_due || result.is_err() { rt::now() + self.settle(&uses, result) } else { next };
        }
    }

    /// Bytes that move from here on count on top of what the store has, if this copy of the state is an older one.
    fn note_begin(&mut self, uses: &Map<Arc<str>, Use>) {
        for (user, usage) in uses.iter().filter(|(user, _)| !self.told.contains_key(*user)) {
            self.began.entry(user.clone()).or_insert((usage.used, usage.period));
        }
    }

    /// The time until the next synchronisation, after the result of this one.
    pub(super) fn settle(&mut self, uses: &Map<Arc<str>, Use>, result: Result<(), StoreError>) -> Duration {
        match result {
            Ok(()) => {
                self.pause = PAUSE;
                let mut report = self.shared.report();
                if report.away_since.take().is_some() {
                    tracing::info!("the store answers again: quotas hold over all nodes");
                }
                report.synced_at = Some(rt::now());
                report.error = None;
                jittered(self.store.every)
            }
            Err(error) => {
                self.links.close();
                let is_first = self.note_away(&error);
                if is_first {
                    self.go_alone(uses);
                }
                let pause = self.pause;
                self.pause = (pause * 2).min(MAX_PAUSE);
                jittered(pause)
            }
        }
    }

    fn note_away(&self, error: &StoreError) -> bool {
        let error = error.to_string();
        let mut report = self.shared.report();
        let is_first = report.away_since.is_none();
        if is_first {
            tracing::warn!(error, "the store is away: quotas hold on this node alone, within an allowance");
            report.away_since = Some(rt::unix_time());
        }
        report.error = Some(error);
        is_first
    }

    /// Follows `away`: allowances stay as they are, or there are others. Addresses are counted on this node alone.
    fn go_alone(&mut self, uses: &Map<Arc<str>, Use>) {
        let rule = |user: &str, usage: &Use| match self.store.away {
            StoreAway::Open => Some(None),
            StoreAway::Closed => Some(Some(0)),
            StoreAway::Allowance if self.told.contains_key(user) => None,
            StoreAway::Allowance => Some(Some(first_allowance(usage.quota, usage.used))),
        };
        let allowances =
            uses.iter().filter_map(|(user, usage)| Some((user.clone(), rule(user, usage)?))).collect();
        self.host.allow(&allowances);
        self.host.follow_sources(None, 0);
        self.seen.clear();
    }

    pub(super) async fn sync(&mut self, uses: &Map<Arc<str>, Use>, is_due: bool) -> Result<(), StoreError> {
        if !self.links.is_open() {
            let since = rt::now();
            let opened = self.links.open().await;
            self.count("connect", rt::now().saturating_duration_since(since), &opened);
            opened?;
        }
        if is_due {
            self.heart_beat(uses).await?;
        }
        if self.may_tell {
            self.tell_totals(uses, is_due).await?;
            self.tell_sources(is_due).await?;
        }
        Box::pin(self.share_salts()).await?;
        Box::pin(self.follow_users()).await
    }

    pub(super) fn key(&self, user: &str, usage: &Use) -> String {
        key(&self.store.fleet, user, usage.reset_day, usage.period)
    }

    /// Sends requests together, and counts them.
    pub(super) async fn call(
        &mut self,
        operation: &'static str,
        requests: &[Request],
    ) -> Result<Vec<Value>, StoreError> {
        let since = rt::now();
        let answers = self.links.call(requests).await;
        let took = rt::now().saturating_duration_since(since);
        self.count(operation, took, &answers);
        answers
    }

    /// The store has lost something: these users are told again.
    pub(super) fn tell_again(&mut self, users: BTreeSet<Arc<str>>) {
        if users.is_empty() {
            return;
        }
        if self.behind.is_empty() {
            self.shared.report().resyncs += 1;
            tracing::warn!(users = users.len(), "the store has lost totals: users are told again");
        }
        self.behind.extend(users);
    }

    fn count<T>(&self, operation: &'static str, took: Duration, result: &Result<T, StoreError>) {
        let result = match result {
            Ok(_) => "ok",
            Err(StoreError::Late) => "late",
            Err(StoreError::Refused(_)) => "refused",
            Err(
                StoreError::Address(_)
                | StoreError::Io(_)
                | StoreError::Other
                | StoreError::Moved
                | StoreError::Users(_),
            ) => "failed",
        };
        let mut report = self.shared.report();
        *report.calls.entry((operation, result)).or_default() += 1;
        report.times.entry((operation, result)).or_default().note(took);
    }
}
