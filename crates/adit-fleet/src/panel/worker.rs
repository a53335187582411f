//! The thread of one panel: pulls users, pushes counters, reports addresses. One thing at a time.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_config::map::Map;
use adit_config::model::{Dial, InDoubt, Panel, PanelToken, Secret};
use adit_net::call::{Call, CallAnswer, CallError, CallTrust, call};
use adit_net::dial::Dialer;
use adit_net::rt::{self, Cores, OrderSender, Orders};
use adit_net::tls::Roots;

use super::answer::{PanelError, body, chain, date, is_late, verdict};
use super::users::{Desk, Offer, UserList};
use super::wire::{Stamp, Wire};
use crate::jitter::{jittered, random};
use crate::journal::{Archive, Batch, Decision, Event, Journal, MOST_ROWS, Rows, Verdict};

/// Time between two requests unless the panel or the file says another one.
const INTERVAL: Duration = Duration::from_secs(60);
/// Addresses are reported this often at least: panels forget them after 100 to 300 s.
const ALIVE: Duration = Duration::from_secs(50);
/// A push that the panel refused is repeated after this, twice as long each time.
const PAUSE: Duration = Duration::from_secs(5);
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// A copy that is older, in seconds, is refreshed at once after a start.
const FRESH_S: u64 = 600;
/// The copy of a list that stays the same is written again after this, in seconds: a start tells its age from it.
const REWRITTEN_S: u64 = 300;
/// Most addresses of a user that are reported.
const MOST_SOURCES: usize = 32;
/// Most batches between two pulls.
const MOST_BATCHES: usize = 64;
/// Longest token, in bytes.
const MAX_TOKEN: u64 = 4096;

/// The parts of the program that a panel's thread uses.
pub trait Host: Send {
    /// Totals by user id of this panel, as they are on disk.
    ///
    /// # Errors
    /// When they cannot be written.
    fn totals(&mut self, panel: &str) -> io::Result<Rows>;

    /// The sources of users with open connections: IPv4 addresses, and the first address of an IPv6 /64.
    fn online(&mut self, panel: &str) -> Map<Box<str>, Vec<IpAddr>>;

    /// The list of a panel has changed.
    fn changed(&mut self, panel: &str);

    /// The seconds by which a panel's clock is ahead of this one's.
    fn skew(&mut self, seconds: i64);
}

/// State of one panel that others look at.
#[derive(Debug, Clone, Default)]
pub struct PanelReport {
    /// The list in use.
    pub list: Arc<UserList>,
    /// Since when a list waits for a second one, in seconds since 1970.
    pub waiting_since: Option<u64>,
    /// The last error, until something succeeds.
    pub error: Option<String>,
    /// Requests by operation and result.
    pub requests: Map<(&'static str, &'static str), u64>,
    /// Seconds that requests took, summed up, by operation.
    pub seconds: Map<&'static str, f64>,
    /// The seconds by which the panel's clock is ahead, if it has told.
    pub skew: Option<i64>,
}

/// State that all panels share.
#[derive(Debug)]
pub struct Shared {
    /// The journal.
    pub journal: Mutex<Journal>,
    /// Done rows of the last days.
    pub archive: Archive,
    /// By name.
    pub reports: Mutex<Map<Box<str>, PanelReport>>,
}

impl Shared {
    /// The journal.
    pub fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reports of all panels.
    pub fn reports(&self) -> MutexGuard<'_, Map<Box<str>, PanelReport>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread of a panel; it ends when the sender that is returned is dropped. `copy` is the file of its list.
///
/// # Errors
/// When the token cannot be read, or there cannot be another thread.
pub fn start(
    panel: Panel,
    copy: PathBuf,
    shared: Arc<Shared>,
    host: impl Host + 'static,
) -> io::Result<OrderSender<()>> {
    let token = token(&panel)?;
    let (stop, stopped) = rt::orders();
    let name = format!("adit-panel-{}", panel.name);
    std::thread::Builder::new().name(name.chars().take(15).collect()).spawn(move || {
        let worker = Worker::new(panel, token, copy, shared, Box::new(host));
        // A runtime that cannot be made has been logged by the one that made the cores.
        drop(Cores::block_on(worker.run(stopped)));
    })?;
    Ok(stop)
}

/// The token of a panel.
fn token(panel: &Panel) -> io::Result<Secret> {
    use std::io::Read as _;
    match &panel.token {
        PanelToken::Text(text) => Ok(text.clone()),
        PanelToken::File(path) => {
            let mut text = String::new();
            std::fs::File::open(path)?.take(MAX_TOKEN).read_to_string(&mut text)?;
            let line = text.lines().next().unwrap_or_default().trim();
            if line.is_empty() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the token file is empty"));
            }
            Ok(Secret::new(line))
        }
    }
}

/// Asks a panel for its users once, for a person who sets a node up.
///
/// # Errors
/// [`PanelError`], with the answer of the panel.
pub fn probe(panel: &Panel) -> Result<UserList, PanelError> {
    let token = token(panel).map_err(|error| PanelError::Call(error.to_string()))?;
    let wire = Wire::new(panel.clone(), token);
    let asked = Cores::block_on(async {
        let link = Link::new(panel);
        let mut list = UserList::default();
        if let Some(request) = wire.config() {
            let answer = link.call(&request, || Ok(())).await?;
            wire.read_config(&body(&answer)?, &mut list)?;
        }
        let request = wire.users(None).ok_or(PanelError::Foreign("its address cannot be asked for"))?;
        let answer = link.call(&request, || Ok(())).await?;
        wire.read_users(&body(&answer)?, &mut list)?;
        Ok(list)
    });
    asked.unwrap_or_else(|error| Err(PanelError::Call(error.to_string())))
}

/// The way to a panel.
struct Link {
    dialer: Dialer,
    trust: CallTrust,
}

impl Link {
    fn new(panel: &Panel) -> Self {
        let trust = match *panel.pins {
            [] => CallTrust::Roots(Roots::System),
            [only] => CallTrust::Pins([only, only]),
            [first, second, ..] => CallTrust::Pins([first, second]),
        };
        Self { dialer: Dialer::by_system(&Dial::default()), trust }
    }

    async fn call(
        &self,
        request: &Call,
        before: impl FnOnce() -> io::Result<()>,
    ) -> Result<CallAnswer, CallError> {
        Box::pin(call(&self.dialer, &self.trust, request, before)).await
    }
}

struct Worker {
    panel: Panel,
    wire: Wire,
    link: Link,
    copy: PathBuf,
    shared: Arc<Shared>,
    host: Box<dyn Host>,
    desk: Desk,
    pause: Duration,
    ignored: Vec<String>,
    has_failed: bool,
    /// When the copy was written last, in seconds since 1970.
    written_at: u64,
}

/// The batch to send, with the rows as the panel takes them.
struct Next {
    batch: Batch,
    rows: Rows,
    boot: u64,
    node: Box<str>,
}

/// When each thing is due.
struct Due {
    pull: Instant,
    push: Instant,
    alive: Instant,
}

impl Worker {
    fn new(panel: Panel, token: Secret, copy: PathBuf, shared: Arc<Shared>, host: Box<dyn Host>) -> Self {
        let current = Arc::new(UserList::read(&copy).unwrap_or_default());
        Self {
            written_at: current.confirmed_at,
            wire: Wire::new(panel.clone(), token),
            link: Link::new(&panel),
            desk: Desk { current, waiting_since: None },
            pause: PAUSE,
            ignored: Vec::new(),
            has_failed: false,
            panel,
            copy,
            shared,
            host,
        }
    }

    async fn run(mut self, mut stopped: Orders<()>) {
        self.begin();
        self.show(|_| {});
        self.settle_doubts();
        let now = rt::now();
        let age = rt::unix_time().saturating_sub(self.desk.current.confirmed_at);
        let first =
            if age > FRESH_S { Duration::ZERO } else { self.pull_every().min(ALIVE).mul_f64(random()) };
        let mut due = Due {
            pull: now + first,
            push: now + self.push_every(),
            alive: now + ALIVE.min(self.push_every()),
        };
        loop {
            let at = due.pull.min(due.push).min(due.alive);
            let wait = async {
                rt::sleep_until(at).await;
                false
            };
            let end = async { stopped.next().await.is_none() };
            if rt::race(end, wait).await {
                return;
            }
            self.work(&mut due).await;
        }
    }

    async fn work(&mut self, due: &mut Due) {
        if rt::now() >= due.pull {
            self.pull().await;
            due.pull = rt::now() + jittered(self.pull_every());
        }
        if rt::now() >= due.push {
            let wait = if self.push().await { self.push_every() } else { self.next_pause() };
            due.push = rt::now() + jittered(wait);
        }
        if rt::now() >= due.alive {
            self.report_addresses().await;
            due.alive = rt::now() + jittered(ALIVE.min(self.push_every()));
        }
    }

    fn pull_every(&self) -> Duration {
        let given = self.desk.current.pull_s.map(Duration::from_secs);
        self.panel.pull.or(given).unwrap_or(INTERVAL)
    }

    fn push_every(&self) -> Duration {
        let given = self.desk.current.push_s.map(Duration::from_secs);
        self.panel.push.or(given).unwrap_or(INTERVAL)
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause.min(self.push_every().max(Duration::from_secs(1)));
        self.pause = self.pause.saturating_mul(2).min(MAX_PAUSE);
        pause.max(Duration::from_millis(500))
    }

    /// Changes what others see.
    fn show(&self, change: impl FnOnce(&mut PanelReport)) {
        let mut reports = self.shared.reports();
        let report = reports.entry((&*self.panel.name).into()).or_default();
        if report.list.confirmed_at != self.desk.current.confirmed_at || report.list.users.is_empty() {
            report.list = self.desk.current.clone();
        }
        report.waiting_since = self.desk.waiting_since;
        change(report);
    }

    /// Makes a call and counts it.
    async fn call(
        &mut self,
        operation: &'static str,
        request: &Call,
        before: impl FnOnce() -> io::Result<()>,
    ) -> Result<CallAnswer, CallError> {
        let since = rt::now();
        let answer = self.link.call(request, before).await;
        let took = (rt::now() - since).as_secs_f64();
        let result = match &answer {
            Ok(answer) if answer.status < 400 => "ok",
            Ok(_) => "refused",
            Err(error) if is_late(error) => "late",
            Err(CallError::Unsent(_)) => "unreached",
            Err(CallError::Unclear(_)) => "broken",
        };
        let theirs = answer.as_ref().ok().and_then(|answer| date(answer.date.as_deref()?));
        let skew = theirs.map(|theirs| signed(theirs) - signed(rt::unix_time()));
        if let Some(skew) = skew {
            self.host.skew(skew);
        }
        self.show(|report| {
            *report.requests.entry((operation, result)).or_default() += 1;
            *report.seconds.entry(operation).or_default() += took;
            report.skew = skew.or(report.skew);
        });
        answer
    }

    /// Says how something went: once when it begins to fail, and once when it succeeds again.
    fn tell(&mut self, operation: &'static str, result: Result<(), PanelError>) {
        let panel = &*self.panel.name;
        match result {
            Ok(()) => {
                if std::mem::take(&mut self.has_failed) {
                    tracing::info!(panel, operation, "the panel answers again");
                }
                self.show(|report| report.error = None);
            }
            Err(error) => {
                let error = error.to_string();
                if !std::mem::replace(&mut self.has_failed, true) {
                    tracing::warn!(
                        panel,
                        operation,
                        error,
                        "users and limits stay as they are, counters wait"
                    );
                }
                self.show(|report| report.error = Some(error));
            }
        }
    }

    async fn pull(&mut self) {
        let pulled = self.try_pull().await;
        self.tell("users", pulled);
    }

    async fn try_pull(&mut self) -> Result<(), PanelError> {
        let mut list =
            UserList { version: self.desk.current.version.clone(), ..self.desk.current.settings() };
        if let Some(request) = self.wire.config() {
            let answer = self.call("config", &request, || Ok(())).await?;
            let ignored = self.wire.read_config(&body(&answer)?, &mut list)?;
            if ignored != self.ignored && !ignored.is_empty() {
                let (panel, keys) = (&*self.panel.name, ignored.join(", "));
                tracing::warn!(panel, keys, "settings of the panel that adit does not follow");
            }
            self.ignored = ignored;
        }
        // A list that waits must be told in full once more.
        let version = list.version.as_deref().filter(|_| self.desk.waiting_since.is_none());
        let request =
            self.wire.users(version).ok_or(PanelError::Foreign("its address cannot be asked for"))?;
        let answer = self.call("user", &request, || Ok(())).await?;
        // Changes add to the users of before; a whole list takes their place.
        if answer.status == 304 || self.wire.is_absolute() {
            list.users = self.desk.current.users.clone();
        }
        if answer.status != 304 {
            let left_out = self.wire.read_users(&body(&answer)?, &mut list)?;
            if left_out > 0 {
                tracing::warn!(panel = &*self.panel.name, left_out, "rows of the panel's list are no users");
            }
            if !self.wire.is_absolute() {
                list.version = answer.version;
            }
        }
        self.take(list);
        Ok(())
    }

    fn take(&mut self, list: UserList) {
        let users = list.users.len();
        let panel = self.panel.name.clone();
        let offer = self.desk.offer(list, rt::unix_time());
        match offer {
            Offer::Waits => {
                let now = self.desk.current.users.len();
                tracing::warn!(
                    panel = &*panel,
                    users,
                    now,
                    "the panel lists far fewer users: another list must say so too"
                );
            }
            Offer::Same if rt::unix_time() < self.written_at.saturating_add(REWRITTEN_S) => {}
            Offer::Same | Offer::Applied => match self.desk.current.write(&self.copy) {
                Ok(()) => self.written_at = self.desk.current.confirmed_at,
                Err(error) => {
                    tracing::error!(panel = &*panel, %error, "cannot write the copy of the users: a start without the panel would not know them");
                }
            },
        }
        self.show(|report| report.error = None);
        if offer == Offer::Applied {
            self.show(|report| report.list = Arc::default());
            self.show(|_| {});
            tracing::info!(panel = &*panel, users, "users of the panel");
            self.host.changed(&panel);
        }
    }

    /// Seals what has come, and sends batches. False if the panel has refused one.
    async fn push(&mut self) -> bool {
        let sealed = self.seal();
        if let Err(error) = sealed {
            tracing::error!(panel = &*self.panel.name, %error, "cannot write the journal: counters wait in the accounts");
            return false;
        }
        for _ in 0..MOST_BATCHES {
            match self.push_one().await {
                Ok(Some(Verdict::Done | Verdict::InDoubt | Verdict::TooLong)) => self.pause = PAUSE,
                Ok(Some(Verdict::NotApplied)) => return false,
                Ok(None) => return true,
                Err(error) => {
                    tracing::error!(panel = &*self.panel.name, %error, "cannot write the journal: counters wait");
                    return false;
                }
            }
        }
        true
    }

    /// Begins the book of a new panel: bytes of before it was there are none of its business.
    fn begin(&mut self) {
        let panel = self.panel.name.clone();
        let is_new = |shared: &Shared| !shared.journal().state().books.contains_key(&*panel);
        if !is_new(&self.shared) {
            return;
        }
        let begun = self.host.totals(&panel).and_then(|totals| {
            self.shared.journal().commit(Event::Baseline { panel: (&*panel).into(), totals })
        });
        if let Err(error) = begun {
            tracing::error!(panel = &*panel, %error, "cannot begin the journal of the panel");
        }
    }

    fn seal(&mut self) -> io::Result<()> {
        let panel = self.panel.name.clone();
        let totals = self.host.totals(&panel)?;
        let now = rt::unix_time();
        let mut journal = self.shared.journal();
        let book = journal.state().book(&panel);
        let least = self.desk.current.least_bytes;
        let event = book.seal(&panel, &totals, least, now, self.wire.is_absolute());
        let gone: Vec<Box<str>> = book.marks.keys().filter(|id| !totals.contains_key(*id)).cloned().collect();
        if let Some(event) = event {
            journal.commit(event)?;
        }
        if !gone.is_empty() {
            journal.commit(Event::Forgotten { panel: (&*panel).into(), users: gone })?;
        }
        Ok(())
    }

    /// Sends the next batch; `None` if there is none.
    async fn push_one(&mut self) -> io::Result<Option<Verdict>> {
        let panel: Box<str> = (&*self.panel.name).into();
        let Some(Next { batch, rows, boot, node }) = self.next_batch(&panel)? else { return Ok(None) };
        let stamp = Stamp { node: &node, boot, seq: batch.seq };
        let Some(request) = self.wire.push(&rows, stamp) else { return Ok(None) };
        let shared = self.shared.clone();
        let sent = Event::Sent { panel: panel.clone() };
        let answer = self.call("push", &request, move || shared.journal().commit(sent)).await;
        let verdict = self.judge(verdict(&answer));
        let now = rt::unix_time();
        self.shared.journal().commit(Event::Judged { panel: panel.clone(), at: now, verdict })?;
        self.tell_verdict(verdict, &batch, answer);
        if verdict == Verdict::InDoubt {
            self.settle_doubts();
        }
        self.archive(&panel, now)?;
        Ok(Some(verdict))
    }

    /// Totals may be repeated as often as one likes.
    fn judge(&self, verdict: Verdict) -> Verdict {
        let is_repeated = verdict == Verdict::InDoubt && self.wire.is_absolute();
        if is_repeated { Verdict::NotApplied } else { verdict }
    }

    fn next_batch(&self, panel: &str) -> io::Result<Option<Next>> {
        let mut journal = self.shared.journal();
        if journal.state().book(panel).batch.is_none() {
            journal.commit(Event::Batched { panel: panel.into(), at: rt::unix_time(), most: MOST_ROWS })?;
        }
        let state = journal.state();
        let book = state.book(panel);
        let Some(batch) = book.batch.clone() else { return Ok(None) };
        let rows = if self.wire.is_absolute() {
            let ids = batch.rows.keys();
            ids.map(|id| (id.clone(), book.totals.get(id).copied().unwrap_or_default())).collect()
        } else {
            batch.rows.clone()
        };
        Ok(Some(Next { batch, rows, boot: state.boot, node: state.node.clone() }))
    }

    fn tell_verdict(&mut self, verdict: Verdict, batch: &Batch, answer: Result<CallAnswer, CallError>) {
        let (panel, seq, bytes) = (&*self.panel.name, batch.seq, batch.bytes());
        match verdict {
            Verdict::Done => self.tell("push", Ok(())),
            Verdict::TooLong => tracing::info!(panel, seq, "the panel takes shorter batches"),
            Verdict::InDoubt => {
                let why =
                    answer.map_or_else(|error| chain(&error), |answer| format!("status {}", answer.status));
                tracing::error!(
                    panel,
                    seq,
                    bytes,
                    why,
                    "counters are in doubt: the panel may or may not have them; `adit panel doubt` shows them"
                );
            }
            Verdict::NotApplied => {
                let error = match answer {
                    Err(error) => error.into(),
                    Ok(answer) => match body(&answer) {
                        Err(error) => error,
                        Ok(_) => PanelError::Foreign("it refuses the counters"),
                    },
                };
                self.tell("push", Err(error));
            }
        }
    }

    /// Follows `in-doubt`.
    fn settle_doubts(&self) {
        let how = match self.panel.in_doubt {
            InDoubt::Hold => return,
            InDoubt::Resend => Decision::Resend,
            InDoubt::Drop => Decision::Drop,
        };
        let panel: Box<str> = (&*self.panel.name).into();
        let mut journal = self.shared.journal();
        let all: Vec<u64> = journal.state().book(&panel).doubts.iter().map(|batch| batch.seq).collect();
        for seq in all {
            let event = Event::Settled { panel: panel.clone(), seq, at: rt::unix_time(), how };
            if let Err(error) = journal.commit(event) {
                tracing::error!(panel = &*panel, %error, "cannot write the journal");
            }
        }
    }

    /// Moves done rows to the archive when their ten minutes are over.
    fn archive(&self, panel: &str, now: u64) -> io::Result<()> {
        let mut journal = self.shared.journal();
        let book = journal.state().book(panel);
        if !book.bucket_is_over(now) {
            return Ok(());
        }
        let from = book.recent_from;
        self.shared.archive.add(panel, from, &book.recent)?;
        self.shared.archive.trim(now)?;
        journal.commit(Event::Archived { panel: panel.into(), from })
    }

    async fn report_addresses(&mut self) {
        let mut online = self.host.online(&self.panel.name);
        online.values_mut().for_each(|sources| sources.truncate(MOST_SOURCES));
        online.retain(|_, sources| !sources.is_empty());
        if online.is_empty() {
            return;
        }
        if let Some(request) = self.wire.alive(&online) {
            // Addresses that are not told are told the next time.
            drop(self.call("alive", &request, || Ok(())).await);
        }
    }
}

fn signed(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
