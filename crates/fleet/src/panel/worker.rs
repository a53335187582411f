//! The thread of one panel: pulls users, pushes counters, reports addresses. One thing at a time.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_model::map::Map;
use adit_model::{Dial, Panel, PanelKind, PanelToken, Secret};
use adit_net::call::{CallAnswer, CallError, CallTrust, HttpCall, call};
use adit_net::dial::Dialer;
use adit_net::files;
use adit_net::rt::{self, Cores, OrderSender, Orders};
use adit_net::tls::Roots;

use super::answer::{PanelError, body, date, is_late};
use super::live::Line;
use super::users::{Desk, Offer, UserList};
use super::wire::{Online, Wire};
use crate::jitter::{jittered, random};
use crate::journal::{Archive, Journal, Rows};
use crate::times::Times;

/// Time between two requests unless the panel or the file says another one.
const INTERVAL: Duration = Duration::from_secs(60);
/// Addresses are reported this often at least: panels forget them after 100 to 300 s.
const ALIVE: Duration = Duration::from_secs(50);
/// Addresses that went with the counters are not told again by themselves for so long: the interval of most panels, and a third.
const TOLD_TOGETHER: Duration = Duration::from_secs(80);
/// A copy that is older, in seconds, is refreshed at once after a start.
const FRESH_S: u64 = 600;
/// The copy of a list that stays the same is written again after this, in seconds: a start tells its age from it.
const REWRITTEN_S: u64 = 300;
/// Most addresses of a user that are reported.
const MOST_SOURCES: usize = 32;
/// Lists are pulled so many times less often while changes come by themselves.
const SELDOM: u32 = 5;
/// A list that waits for another one is asked for again after this: the second one must come a minute later.
const AGAIN: Duration = Duration::from_secs(61);
/// Longest token, in bytes.
const MAX_TOKEN: usize = 4096;

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
    /// Requests by the time that they took, by operation and result.
    pub times: Map<(&'static str, &'static str), Times>,
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
    match &panel.token {
        PanelToken::Text(text) => Ok(text.clone()),
        PanelToken::File(path) => {
            let text = files::read_text(path, MAX_TOKEN)?;
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
        let link = PanelLink::new(panel);
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
pub(super) struct PanelLink {
    pub(super) dialer: Dialer,
    pub(super) trust: CallTrust,
}

impl PanelLink {
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
        request: &HttpCall,
        before: impl FnOnce() -> io::Result<()>,
    ) -> Result<CallAnswer, CallError> {
        Box::pin(call(&self.dialer, &self.trust, request, before)).await
    }
}

pub(super) struct Worker {
    pub(super) panel: Panel,
    pub(super) wire: Wire,
    pub(super) link: Rc<PanelLink>,
    copy: PathBuf,
    pub(super) shared: Arc<Shared>,
    pub(super) host: Box<dyn Host>,
    pub(super) desk: Desk,
    pub(super) line: Line,
    pub(super) pause: Duration,
    ignored: Vec<String>,
    has_failed: bool,
    /// When the copy was written last, in seconds since 1970.
    written_at: u64,
    /// When the addresses in use were told last.
    pub(super) told_addresses_at: Option<Instant>,
}

/// The addresses in use, as panels take them.
pub(super) fn sources(host: &mut dyn Host, panel: &str) -> Online {
    let mut online = host.online(panel);
    online.values_mut().for_each(|sources| sources.truncate(MOST_SOURCES));
    online.retain(|_, sources| !sources.is_empty());
    online
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
            line: Line::new(panel.kind == PanelKind::Xboard, &panel.node),
            wire: Wire::new(panel.clone(), token),
            link: Rc::new(PanelLink::new(&panel)),
            desk: Desk { current, waiting_since: None },
            pause: super::pushing::PAUSE,
            told_addresses_at: None,
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
            let at = self.line.next.map_or(at, |next| next.min(at));
            let wait = async {
                Box::pin(self.listen_until(at)).await;
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
            let before = self.push_every();
            self.pull().await;
            let every = self.push_every();
            if every < before {
                due.push = due.push.min(rt::now() + every);
                due.alive = due.alive.min(rt::now() + every);
            }
            due.pull = rt::now() + jittered(self.next_pull());
        }
        if std::mem::take(&mut self.line.wants_pull) {
            due.pull = due.pull.min(rt::now() + self.pull_every().min(AGAIN).mul_f64(random()));
        }
        if rt::now() >= due.push {
            let wait = if self.push().await { self.push_every() } else { self.next_pause() };
            due.push = rt::now() + jittered(wait);
        }
        if rt::now() >= due.alive {
            let every = ALIVE.min(self.push_every());
            // Such a panel is told with the counters, and remembers addresses for 300 s.
            let is_together = self.wire.is_merged() && !self.line.is_known();
            let recent = if is_together { TOLD_TOGETHER } else { every / 2 };
            self.report_addresses(recent).await;
            due.alive = rt::now() + jittered(every);
        }
        if self.line.next.is_some_and(|next| rt::now() >= next) {
            self.open_line().await;
        }
    }

    /// The time until the next pull.
    fn next_pull(&self) -> Duration {
        let every = self.pull_every();
        match (self.line.is_known(), self.desk.waiting_since) {
            (true, None) => every.saturating_mul(SELDOM),
            (true, Some(_)) => every.saturating_mul(SELDOM).min(AGAIN),
            (false, _) => every,
        }
    }

    pub(super) fn pull_every(&self) -> Duration {
        let given = self.desk.current.pull_s.map(Duration::from_secs);
        self.panel.pull.or(given).unwrap_or(INTERVAL)
    }

    pub(super) fn push_every(&self) -> Duration {
        let given = self.desk.current.push_s.map(Duration::from_secs);
        self.panel.push.or(given).unwrap_or(INTERVAL)
    }

    /// Changes what others see.
    pub(super) fn show(&self, change: impl FnOnce(&mut PanelReport)) {
        let mut reports = self.shared.reports();
        let report = reports.entry((&*self.panel.name).into()).or_default();
        if report.list.confirmed_at != self.desk.current.confirmed_at || report.list.users.is_empty() {
            report.list = self.desk.current.clone();
        }
        report.waiting_since = self.desk.waiting_since;
        change(report);
    }

    /// Makes a call and counts it.
    ///
    /// The WebSocket of the panel is listened to while the answer is on its way.
    pub(super) async fn call(
        &mut self,
        operation: &'static str,
        request: &HttpCall,
        before: impl FnOnce() -> io::Result<()>,
    ) -> Result<CallAnswer, CallError> {
        let since = rt::now();
        let link = self.link.clone();
        let mut call = Box::pin(link.call(request, before));
        let answer = loop {
            let listen = async {
                Box::pin(self.listen_until(rt::now() + INTERVAL)).await;
                None
            };
            if let Some(answer) = rt::race(async { Some(call.as_mut().await) }, listen).await {
                break answer;
            }
        };
        let took = rt::now().saturating_duration_since(since);
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
        self.note(operation, result);
        self.show(|report| {
            report.times.entry((operation, result)).or_default().note(took);
            report.skew = skew.or(report.skew);
        });
        answer
    }

    /// Counts a request, or something that the panel has said.
    pub(super) fn note(&self, operation: &'static str, result: &'static str) {
        self.show(|report| *report.requests.entry((operation, result)).or_default() += 1);
    }

    /// Says how something went: once when it begins to fail, and once when it succeeds again.
    pub(super) fn tell(&mut self, operation: &'static str, result: Result<(), PanelError>) {
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
        self.line.begin_pull();
        let pulled = self.try_pull().await;
        self.line.drop_pull();
        self.tell("users", pulled);
    }

    async fn try_pull(&mut self) -> Result<(), PanelError> {
        let mut list =
            UserList { version: self.desk.current.version.clone(), ..self.desk.current.settings() };
        if let Some(request) = self.wire.config() {
            let answer = self.call("config", &request, || Ok(())).await?;
            let ignored = self.wire.read_config(&body(&answer)?, &mut list)?;
            self.tell_ignored(ignored);
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
                self.tell_left_out(left_out);
            }
            if !self.wire.is_absolute() {
                list.version = answer.version;
            }
        }
        self.line.end_pull(&mut list);
        let users = list.users.len();
        let offer = self.desk.offer(list, rt::unix_time());
        self.follow(offer, users);
        Ok(())
    }

    pub(super) fn tell_left_out(&self, left_out: usize) {
        tracing::warn!(panel = &*self.panel.name, left_out, "rows of the panel's list are no users");
    }

    /// Says once which settings are not followed.
    pub(super) fn tell_ignored(&mut self, ignored: Vec<String>) {
        if ignored != self.ignored && !ignored.is_empty() {
            let (panel, keys) = (&*self.panel.name, ignored.join(", "));
            tracing::warn!(panel, keys, "settings of the panel that adit does not follow");
        }
        self.ignored = ignored;
    }

    /// Takes a list that the WebSocket has told whole, or the list in use with changes.
    pub(super) fn take_live(&mut self, list: UserList, is_whole: bool) {
        let (users, now) = (list.users.len(), rt::unix_time());
        let offer = if is_whole { self.desk.offer(list, now) } else { self.desk.change(list) };
        self.line.wants_pull |= offer == Offer::Waits;
        self.follow(offer, users);
    }

    /// Follows the fate of a list of so many users.
    fn follow(&mut self, offer: Offer, users: usize) {
        let panel = self.panel.name.clone();
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

    /// Tells the addresses in use, unless they were told within `recent`.
    async fn report_addresses(&mut self, recent: Duration) {
        if self.told_addresses_at.is_some_and(|at| rt::now() < at + recent) || self.has_told_line().await {
            return;
        }
        let online = sources(&mut *self.host, &self.panel.name);
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
