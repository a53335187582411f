//! The thread of the store: every few seconds, and at once when an allowance is half used, totals go there and answers
//! become allowances.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_config::map::Map;
use adit_config::model::{Store, StoreAway};
use adit_net::rt::{self, Cores, OrderSender, Orders};

use super::allowance::{allowance, first_allowance};
use super::link::{Link, Place, StoreError};
use super::resp::Value;
use super::script::{MOST_USERS, key, merge};

/// Interval at which allowances are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Pause after a failure; it doubles.
const PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// A heartbeat lives so long, in seconds.
const BEAT_S: &str = "30";
/// Bytes beyond which a Lua number rounds.
const EXACT: u64 = 1 << 53;

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

/// The parts of the program that the store's thread uses.
pub trait StoreHost: Send {
    /// All users with a quota, by name.
    fn uses(&mut self) -> Map<Box<str>, Use>;

    /// Holds users to so many bytes more from here; `None` for the whole quota.
    fn allow(&mut self, allowances: &Map<Box<str>, Option<u64>>);

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
    /// Seconds that calls took, summed up, by operation.
    pub seconds: Map<&'static str, f64>,
    /// Times that the store had lost something.
    pub resyncs: u64,
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

/// Starts the thread; it ends when the sender that is returned is dropped. `node` is the node's id and `boot` the number of
/// its start.
///
/// # Errors
/// When the address is none, or there cannot be another thread.
pub fn start(
    store: Store,
    (node, boot): (Box<str>, u64),
    shared: Arc<StoreShared>,
    host: impl StoreHost + 'static,
) -> io::Result<OrderSender<()>> {
    let place =
        Place::new(&store).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
    let (stop, stopped) = rt::orders();
    let mut instance = [0; 8];
    getrandom::fill(&mut instance).map_err(|error| io::Error::other(error.to_string()))?;
    let instance = instance.iter().map(|byte| format!("{byte:02x}")).collect();
    std::thread::Builder::new().name("adit-store".into()).spawn(move || {
        let sync = Sync {
            store,
            place,
            node,
            boot,
            instance,
            shared,
            host: Box::new(host),
            link: None,
            told: Map::new(),
            beat: 0,
            other: None,
            may_tell: false,
            pause: PAUSE,
        };
        drop(Cores::block_on(sync.run(stopped)));
    })?;
    Ok(stop)
}

/// The last word of the store about a user.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    /// Own bytes that it has, without `offset`.
    used: u64,
    /// The total over all nodes.
    total: u64,
    /// Own bytes that it had from before, and that are not in the accounts: a copy of the state was older.
    offset: u64,
    /// Own bytes when the allowance was given, and the allowance.
    from: u64,
    may: u64,
    /// The period that all of this is about.
    period: u64,
}

struct Sync {
    store: Store,
    place: Place,
    node: Box<str>,
    boot: u64,
    instance: String,
    shared: Arc<StoreShared>,
    host: Box<dyn StoreHost>,
    link: Option<Link>,
    told: Map<Box<str>, Told>,
    beat: u64,
    /// Another instance under this node's id, with its beat.
    other: Option<(String, u64)>,
    /// Whether no other process may be living under this node's id.
    may_tell: bool,
    pause: Duration,
}

impl Sync {
    async fn run(mut self, mut stopped: Orders<()>) {
        let mut next = rt::now();
        loop {
            let wait = async {
                rt::sleep(LOOK).await;
                false
            };
            let end = async { stopped.next().await.is_none() };
            if rt::race(end, wait).await {
                return;
            }
            let uses = self.host.uses();
            self.told.retain(|user, _| uses.contains_key(user));
            let now = rt::now();
            let is_due = now >= next;
            let wanted = self.wanted(&uses, is_due);
            if !is_due && (wanted.is_empty() || self.link.is_none()) {
                continue;
            }
            let result = self.sync(&uses, wanted, is_due).await;
            next = if is_due || result.is_err() { rt::now() + self.settle(&uses, result) } else { next };
        }
    }

    /// The users to be told: all that have moved, or those whose allowance is half used.
    fn wanted(&self, uses: &Map<Box<str>, Use>, is_due: bool) -> BTreeSet<Box<str>> {
        let is_wanted = |user: &str, usage: &Use| match self.told.get(user) {
            None => is_due,
            Some(told) if told.period != usage.period => is_due,
            Some(told) if is_due => told.used != usage.used,
            Some(told) => usage.used.saturating_sub(told.from) > told.may / 2,
        };
        uses.iter().filter(|(user, usage)| is_wanted(user, usage)).map(|(user, _)| user.clone()).collect()
    }

    /// The time until the next synchronisation, after the result of this one.
    fn settle(&mut self, uses: &Map<Box<str>, Use>, result: Result<(), StoreError>) -> Duration {
        match result {
            Ok(()) => {
                self.pause = PAUSE;
                let mut report = self.shared.report();
                if report.away_since.take().is_some() {
                    tracing::info!("the store answers again: quotas hold over all nodes");
                }
                report.synced_at = Some(rt::now());
                report.error = None;
                self.store.every
            }
            Err(error) => {
                self.link = None;
                let is_first = self.note_away(&error);
                if is_first {
                    self.go_alone(uses);
                }
                let pause = self.pause;
                self.pause = (pause * 2).min(MAX_PAUSE);
                pause
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

    /// Follows `away`: allowances stay as they are, or there are others.
    fn go_alone(&mut self, uses: &Map<Box<str>, Use>) {
        let rule = |user: &str, usage: &Use| match self.store.away {
            StoreAway::Open => Some(None),
            StoreAway::Closed => Some(Some(0)),
            StoreAway::Allowance if self.told.contains_key(user) => None,
            StoreAway::Allowance => Some(Some(first_allowance(usage.quota, usage.used))),
        };
        let allowances =
            uses.iter().filter_map(|(user, usage)| Some((user.clone(), rule(user, usage)?))).collect();
        self.host.allow(&allowances);
    }

    async fn sync(
        &mut self,
        uses: &Map<Box<str>, Use>,
        wanted: BTreeSet<Box<str>>,
        is_due: bool,
    ) -> Result<(), StoreError> {
        if self.link.is_none() {
            let opened = Link::open(&self.place).await;
            self.count("connect", 0.0, &opened);
            self.link = Some(opened?);
        }
        if is_due {
            self.heart_beat().await?;
        }
        if !self.may_tell {
            return Ok(());
        }
        let lost = self.merge(uses, &wanted).await?;
        if !lost.is_empty() {
            self.shared.report().resyncs += 1;
            tracing::warn!(buckets = lost.len(), "the store has lost totals: all users are told again");
            let all = uses.iter().filter(|(user, usage)| lost.contains(&self.key(user, usage)));
            let all = all.map(|(user, _)| user.clone()).collect();
            self.merge(uses, &all).await?;
        }
        Ok(())
    }

    fn key(&self, user: &str, usage: &Use) -> String {
        key(&self.store.fleet, user, usage.reset_day, usage.period)
    }

    /// Tells users, and gives them their allowances; the keys in which the store has lost something.
    async fn merge(
        &mut self,
        uses: &Map<Box<str>, Use>,
        wanted: &BTreeSet<Box<str>>,
    ) -> Result<BTreeSet<String>, StoreError> {
        let mut buckets = Map::<String, Vec<(Box<str>, Use)>>::new();
        for user in wanted {
            let Some(usage) = uses.get(user).filter(|usage| usage.used < EXACT) else { continue };
            buckets.entry(self.key(user, usage)).or_default().push((user.clone(), *usage));
        }
        let mut lost = BTreeSet::new();
        for (key, users) in buckets {
            for part in users.chunks(MOST_USERS) {
                if self.merge_part(&key, part).await? {
                    lost.insert(key.clone());
                }
            }
        }
        Ok(lost)
    }

    /// Whether the store has lost something of these users.
    async fn merge_part(&mut self, key: &str, part: &[(Box<str>, Use)]) -> Result<bool, StoreError> {
        let own = |user: &str, usage: &Use| {
            let known = self.told.get(user).filter(|told| told.period == usage.period);
            usage.used + known.map_or(0, |told| told.offset)
        };
        let owns: Vec<(Box<str>, String)> =
            part.iter().map(|(user, usage)| (user.clone(), own(user, usage).to_string())).collect();
        let script = merge();
        let mut words: Vec<&[u8]> =
            vec![b"EVAL", script.as_bytes(), b"1", key.as_bytes(), self.node.as_bytes()];
        for (user, own) in &owns {
            words.extend([user.as_bytes(), own.as_bytes()]);
        }
        let since = rt::now();
        let link = self.link.as_mut().ok_or(StoreError::Other)?;
        let answer = link.call(&[&words]).await;
        let took = (rt::now() - since).as_secs_f64();
        self.count("merge", took, &answer);
        let answer = answer?;
        let Some(Value::List(numbers)) = answer.first() else { return Err(StoreError::Other) };
        let numbers: Vec<u64> =
            numbers.iter().map(Value::number).collect::<Option<_>>().ok_or(StoreError::Other)?;
        if numbers.len() != part.len() * 3 {
            return Err(StoreError::Other);
        }
        Ok(self.take(part, &numbers))
    }

    fn take(&mut self, part: &[(Box<str>, Use)], numbers: &[u64]) -> bool {
        let (mut allowances, mut is_lost) = (Map::new(), false);
        for ((user, usage), answer) in part.iter().zip(numbers.chunks_exact(3)) {
            let (total, old, own) = (answer[0], answer[1], answer[2]);
            let before = self.told.get(user).copied().filter(|told| told.period == usage.period);
            let mut told = before.unwrap_or_default();
            match before {
                // The store was further than this copy of the state: bytes from here on count on top.
                None if own > usage.used => told.offset = own - usage.used,
                None => {}
                Some(before) => is_lost |= old < before.total && own < before.used + before.offset,
            }
            let may = allowance(usage.quota, total);
            told = Told { used: usage.used, total, from: usage.used, may, period: usage.period, ..told };
            self.told.insert(user.clone(), told);
            allowances.insert(user.clone(), Some(may));
        }
        self.host.allow(&allowances);
        is_lost
    }

    /// Tells that this node lives, looks whether another one lives under its name, and asks for the time.
    async fn heart_beat(&mut self) -> Result<(), StoreError> {
        self.beat += 1;
        let key = format!("adit:{}:node:{}", self.store.fleet, self.node);
        let nodes = format!("adit:{}:nodes", self.store.fleet);
        let link = self.link.as_mut().ok_or(StoreError::Other)?;
        let since = rt::now();
        let asked = link.call(&[&[b"HMGET", key.as_bytes(), b"instance", b"beat"], &[b"TIME"]]).await;
        let took = (rt::now() - since).as_secs_f64();
        self.count("beat", took, &asked);
        let asked = asked?;
        if let Some(Value::List(time)) = asked.get(1)
            && let Some(seconds) = time.first().and_then(Value::number)
        {
            let own = i64::try_from(rt::unix_time()).unwrap_or(i64::MAX);
            self.host.skew(i64::try_from(seconds).unwrap_or(i64::MAX) - own);
        }
        if let Some(Value::List(found)) = asked.first() {
            self.may_tell = !self.is_clone(found);
        }
        if !self.may_tell {
            return Ok(());
        }
        let (beat, boot, now) = (self.beat.to_string(), self.boot.to_string(), rt::unix_time().to_string());
        let fields: &[&[u8]] = &[
            b"HSET",
            key.as_bytes(),
            b"instance",
            self.instance.as_bytes(),
            b"beat",
            beat.as_bytes(),
            b"boot",
            boot.as_bytes(),
            b"version",
            env!("CARGO_PKG_VERSION").as_bytes(),
        ];
        let link = self.link.as_mut().ok_or(StoreError::Other)?;
        link.call(&[
            fields,
            &[b"EXPIRE", key.as_bytes(), BEAT_S.as_bytes()],
            &[b"ZADD", nodes.as_bytes(), now.as_bytes(), self.node.as_bytes()],
        ])
        .await?;
        Ok(())
    }

    /// Whether another instance lives under this node's id: one whose beat goes on. That of a start before is still.
    fn is_clone(&mut self, found: &[Value]) -> bool {
        let other = match found {
            [instance, beat] => instance.text().map(str::to_owned).zip(beat.number()),
            _ => None,
        };
        let other = other.filter(|(instance, _)| *instance != self.instance);
        let lives = match (&self.other, &other) {
            (Some((before, beat)), Some((instance, now))) => before == instance && now > beat,
            _ => false,
        };
        let is_new = other.is_some()
            && self.other.as_ref().map(|(instance, _)| instance)
                != other.as_ref().map(|(instance, _)| instance);
        self.other = other;
        let mut report = self.shared.report();
        if lives && !report.is_clone {
            let node = &*self.node;
            tracing::error!(
                node,
                "another process has this node's id: it was cloned with its state; totals are not told from here (hint: remove the .fleet file beside the state file of the clone)"
            );
        }
        report.is_clone = lives || report.is_clone && self.other.is_some();
        // One that may be living is looked at once more before its place is taken.
        is_new || report.is_clone
    }

    fn count<T>(&self, operation: &'static str, took: f64, result: &Result<T, StoreError>) {
        let result = match result {
            Ok(_) => "ok",
            Err(StoreError::Late) => "late",
            Err(StoreError::Refused(_)) => "refused",
            Err(StoreError::Address(_) | StoreError::Io(_) | StoreError::Other) => "failed",
        };
        let mut report = self.shared.report();
        *report.calls.entry((operation, result)).or_default() += 1;
        *report.seconds.entry(operation).or_default() += took;
    }
}
