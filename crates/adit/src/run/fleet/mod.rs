//! Panels at work: their threads, the journal, and the way of their lists into the configuration.
//!
//! ```text
//!   panel's thread ── list changed ──→ reload thread: the configuration is built anew, with the lists as they are
//!        └── asks the accounts for totals, seals them in the journal, sends batches
//! ```
//!
//! A start needs no panel: the copies on disk serve, of any age.

mod clock_check;
mod status;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_engine::{ControlAnswer, DoubtStatus, PanelRequest, Presence, QuotaUse, Running, Usage};
use adit_fleet::journal::{Archive, Decision, Journal, JournalEvent, Rows};
use adit_fleet::panel::{self, Host, Shared, UserList};
use adit_fleet::store::{
    self, Everywhere, GroupCounts, GroupSalts, StoreHost, StoreShared, Use, UserSources,
};
use adit_model::map::Map;
use adit_model::{Config, Panel, StateFile, Store, Tag};
use adit_net::files::suffixed;
use adit_net::rt::{self, OrderSender};
use anyhow::{Context as _, bail};

use self::clock_check::Witnesses;

/// Calls for the configuration to be built anew.
type Refresh = Arc<dyn Fn() + Send + Sync>;

/// The panels of a process.
#[derive(Clone)]
pub(crate) struct Fleet(Arc<Inner>);

struct Inner {
    usage: Usage,
    refresh: Refresh,
    witnesses: Arc<Witnesses>,
    store: Arc<StoreShared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Open from the first panel on.
    shared: Option<Arc<Shared>>,
    /// Threads of panels; each ends when its sender is dropped.
    threads: Map<Tag, (Panel, OrderSender<()>)>,
    /// The thread of the store.
    store: Option<(Store, OrderSender<()>)>,
}

/// Fills in the users of panels as the copies on disk have them, before a start.
///
/// # Errors
/// When there are panels and no state file.
pub(crate) fn prepare(config: &mut Config) -> anyhow::Result<()> {
    if config.panels.is_empty() && !has_store_users(config) {
        return Ok(());
    }
    let state = place(config)?.to_owned();
    if has_store_users(config) {
        let list = UserList::read(&copy_path(&state, Store::PANEL)).unwrap_or_default();
        let (known, users) = (list.confirmed_at > 0, list.users.len());
        if known {
            let age_s = rt::unix_time().saturating_sub(list.confirmed_at);
            tracing::info!(users, age_s, "users of the store, as their copy on disk has them");
        } else {
            tracing::warn!("no users of the store are known yet: nobody is served until it answers");
        }
        fill_one(config, Store::PANEL, &list, &BTreeSet::new());
    }
    let panels = config.panels.clone();
    for panel in &panels {
        let list = UserList::read(&copy_path(&state, &panel.name)).unwrap_or_default();
        let (name, users) = (&*panel.name, list.users.len());
        if list.confirmed_at == 0 {
            tracing::warn!(
                panel = name,
                "no list of this panel's users is known yet: nobody is served until it answers"
            );
        } else {
            let age_s = rt::unix_time().saturating_sub(list.confirmed_at);
            tracing::info!(panel = name, users, age_s, "users of the panel, as its copy on disk has them");
        }
        fill_one(config, name, &list, &BTreeSet::new());
    }
    Ok(())
}

/// Whether the store lists users.
fn has_store_users(config: &Config) -> bool {
    config.store.as_ref().is_some_and(|store| store.users_key.is_some())
}

fn fill_one(config: &mut Config, panel: &str, list: &UserList, known: &BTreeSet<Arc<str>>) {
    let problems = config.set_panel_users(panel, &list.model(panel, known), list.server().as_ref());
    for problem in problems {
        tracing::warn!(panel, "{problem}");
    }
}

/// The state file, beside which everything of panels lies.
fn place(config: &Config) -> anyhow::Result<&Path> {
    match &config.state {
        StateFile::At(path) | StateFile::Try { path, .. } => Ok(path),
        StateFile::Usual | StateFile::Off => {
            bail!(
                "panels and a store need a state file\n  hint: name one with `state` at the top of the file"
            )
        }
    }
}

fn copy_path(state: &Path, panel: &str) -> PathBuf {
    suffixed(state, &format!(".panel-{panel}"))
}

/// Starts the threads of the panels of `config`; `refresh` has the configuration built anew.
///
/// # Errors
/// When the journal cannot be had, or a token cannot be read.
pub(crate) fn start(
    config: &Config,
    running: &Running,
    refresh: impl Fn() + Send + Sync + 'static,
) -> anyhow::Result<Fleet> {
    let usage = running.usage();
    let inner = Inner {
        witnesses: Arc::new(Witnesses::new()),
        usage,
        refresh: Arc::new(refresh),
        store: Arc::default(),
        state: Mutex::default(),
    };
    let fleet = Fleet(Arc::new(inner));
    fleet.follow(config)?;
    Ok(fleet)
}

impl Fleet {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills in the users of panels as they are known.
    pub(crate) fn fill(&self, config: &mut Config) {
        let Some(shared) = self.state().shared.clone() else { return drop(prepare(config)) };
        let panels: Vec<Tag> = config.panels.iter().map(|panel| panel.name.clone()).collect();
        let known = self.0.usage.names();
        for panel in panels {
            let list = shared.reports().get(&*panel).map(|report| report.list.clone());
            let list = list.unwrap_or_else(|| {
                let path = place(config).map(|state| copy_path(state, &panel));
                Arc::new(path.ok().and_then(|path| UserList::read(&path)).unwrap_or_default())
            });
            fill_one(config, &panel, &list, &known);
        }
        if has_store_users(config) {
            let list = self.0.store.report().list.clone();
            let list = list.unwrap_or_else(|| {
                let path = place(config).map(|state| copy_path(state, Store::PANEL));
                Arc::new(path.ok().and_then(|path| UserList::read(&path)).unwrap_or_default())
            });
            fill_one(config, Store::PANEL, &list, &known);
        }
    }

    /// The configuration has changed: panels that are new begin, those that are gone end.
    ///
    /// # Errors
    /// When the journal cannot be had, or a token cannot be read.
    pub(crate) fn follow(&self, config: &Config) -> anyhow::Result<()> {
        let mut state = self.state();
        if config.panels.is_empty() && config.store.is_none() && state.shared.is_none() {
            return Ok(());
        }
        let witnesses = self.0.witnesses.clone();
        self.0.usage.hold_periods_while(move || witnesses.is_held());
        let path = place(config)?;
        let shared = match &state.shared {
            Some(shared) => shared.clone(),
            None => {
                let shared = open(path)?;
                state.shared = Some(shared.clone());
                self.0.usage.tell_fleet(status::teller(&shared, &self.0.witnesses, &self.0.store));
                shared
            }
        };
        state.threads.retain(|name, (panel, _)| {
            config.panels.iter().any(|wanted| wanted.name == *name && wanted == panel)
        });
        for panel in &config.panels {
            if state.threads.contains_key(&panel.name) {
                continue;
            }
            let host = Desk {
                usage: self.0.usage.clone(),
                refresh: self.0.refresh.clone(),
                witnesses: self.0.witnesses.clone(),
            };
            let copy = copy_path(path, &panel.name);
            let thread = panel::start(panel.clone(), copy, shared.clone(), host)
                .with_context(|| format!("panel {}", panel.name))?;
            state.threads.insert(panel.name.clone(), (panel.clone(), thread));
        }
        self.follow_store(&mut state, &shared, config.store.as_ref(), path)
    }

    fn follow_store(
        &self,
        state: &mut State,
        shared: &Shared,
        wanted: Option<&Store>,
        path: &Path,
    ) -> anyhow::Result<()> {
        if state.store.as_ref().map(|(store, _)| store) == wanted {
            return Ok(());
        }
        state.store = None;
        *self.0.store.report() = Default::default();
        self.0.usage.join_replay_group(wanted.and_then(store::replay_key));
        let Some(wanted) = wanted else {
            // Quotas are those of this node alone again.
            let all = self.0.usage.quotas(false).into_iter().map(|(user, _)| (user, None)).collect();
            self.0.usage.allow(&all);
            self.0.usage.forget_elsewhere();
            return Ok(());
        };
        let (node, boot) = {
            let journal = shared.journal();
            (journal.state().node.clone(), journal.state().boot)
        };
        let host = Shelf {
            usage: self.0.usage.clone(),
            refresh: self.0.refresh.clone(),
            witnesses: self.0.witnesses.clone(),
        };
        let copy = copy_path(path, Store::PANEL);
        let thread =
            store::start(wanted.clone(), node, boot, copy, self.0.store.clone(), host).context("store")?;
        state.store = Some((wanted.clone(), thread));
        Ok(())
    }

    /// Answers a request about panels.
    pub(crate) fn answer(&self, of: &PanelRequest) -> ControlAnswer {
        let Some(shared) = self.state().shared.clone() else {
            return ControlAnswer::Error("this process has no panel".into());
        };
        let known = |panel: &str| shared.journal().state().books.contains_key(panel);
        let done = match of {
            PanelRequest::Doubts => Ok(()),
            PanelRequest::Settle { panel, .. } | PanelRequest::Replay { panel, .. } if !known(panel) => {
                return ControlAnswer::Error(format!("no panel of that name has counters: {panel}"));
            }
            PanelRequest::Settle { panel, seq, resend } => settle(&shared, panel, *seq, *resend),
            PanelRequest::Replay { panel, since } => replay(&shared, panel, *since),
        };
        match done {
            Ok(()) => ControlAnswer::Doubts(doubts(&shared)),
            Err(error) => ControlAnswer::Error(format!("the journal cannot be written: {error}")),
        }
    }
}

fn open(state: &Path) -> anyhow::Result<Arc<Shared>> {
    let opened = Journal::open(&suffixed(state, ".fleet"), node_id)?;
    if opened.cut > 0 {
        let bytes = opened.cut;
        tracing::info!(
            bytes,
            "the last change of the journal had not been written whole, and was not acted on"
        );
    }
    Ok(Arc::new(Shared {
        journal: Mutex::new(opened.journal),
        archive: Archive::new(suffixed(state, ".fleet-done")),
        reports: Mutex::default(),
    }))
}

fn node_id() -> Box<str> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

fn settle(shared: &Shared, panel: &str, seq: Option<u64>, resend: bool) -> io::Result<()> {
    let mut journal = shared.journal();
    let all: Vec<u64> = journal.state().book(panel).doubts.iter().map(|batch| batch.seq).collect();
    let how = if resend { Decision::Resend } else { Decision::Drop };
    for seq in all.into_iter().filter(|other| seq.is_none_or(|seq| seq == *other)) {
        journal.commit(JournalEvent::Settled { panel: panel.into(), seq, at: rt::unix_time(), how })?;
    }
    Ok(())
}

fn replay(shared: &Shared, panel: &str, since: u64) -> io::Result<()> {
    let mut rows: Rows = shared.archive.since(panel, since)?;
    let mut journal = shared.journal();
    let book = journal.state().book(panel);
    if book.recent_from >= since {
        adit_fleet::journal::add(&mut rows, &book.recent);
    }
    if rows.is_empty() {
        return Ok(());
    }
    journal.commit(JournalEvent::Replayed { panel: panel.into(), at: rt::unix_time(), rows })
}

fn doubts(shared: &Shared) -> Vec<DoubtStatus> {
    let journal = shared.journal();
    let all = journal.state().books.iter().flat_map(|(panel, book)| {
        book.doubts.iter().map(move |batch| DoubtStatus {
            panel: panel.to_string(),
            seq: batch.seq,
            unix_s: batch.at,
            users: batch.rows.len() as u64,
            up_bytes: batch.rows.values().map(|[up, _]| up).sum(),
            down_bytes: batch.rows.values().map(|[_, down]| down).sum(),
        })
    });
    all.collect()
}

/// The program, for the thread of the store.
struct Shelf {
    usage: Usage,
    refresh: Refresh,
    witnesses: Arc<Witnesses>,
}

impl StoreHost for Shelf {
    fn uses(&mut self, is_hurried: bool) -> Map<Arc<str>, Use> {
        let of = |QuotaUse { quota, used, reset_day, period }| Use { quota, used, reset_day, period };
        self.usage.quotas(is_hurried).map(of)
    }

    fn allow(&mut self, allowances: &Map<Arc<str>, Option<u64>>) {
        self.usage.allow(allowances);
    }

    fn sources(&mut self) -> Map<Arc<str>, UserSources> {
        let of = |Presence { most, sources, is_waiting }| {
            let sources = sources.into_iter().map(|one| (one.source, one.silent_s, one.age_s)).collect();
            UserSources { most, sources, is_waiting }
        };
        self.usage.presences().map(of)
    }

    fn follow_sources(&mut self, all: Option<&Everywhere>, silent_s: u64) {
        match all {
            Some(all) => self.usage.follow_sources(all, silent_s),
            None => self.usage.forget_elsewhere(),
        }
    }

    fn users_changed(&mut self) {
        (self.refresh)();
    }

    fn take_salts(&mut self, most: usize) -> GroupSalts {
        let adit_engine::GroupSalts { recent, lasting } = self.usage.take_group_salts(most);
        GroupSalts { recent, lasting }
    }

    fn learn_salts(&mut self, salts: &GroupSalts) {
        let GroupSalts { recent, lasting } = salts.clone();
        self.usage.learn_group_salts(&adit_engine::GroupSalts { recent, lasting });
    }

    fn group_counts(&mut self) -> GroupCounts {
        let adit_engine::GroupCounts { queued, dropped, refused } = self.usage.group_counts();
        GroupCounts { queued, dropped, refused }
    }

    fn skew(&mut self, seconds: i64) {
        self.witnesses.note("store", seconds);
    }
}

/// The program, for the thread of one panel.
struct Desk {
    usage: Usage,
    refresh: Refresh,
    witnesses: Arc<Witnesses>,
}

impl Host for Desk {
    fn totals(&mut self, panel: &str) -> io::Result<Rows> {
        self.usage.totals(&format!("{panel}/"))
    }

    fn online(&mut self, panel: &str) -> Map<Box<str>, Vec<IpAddr>> {
        self.usage.sources(&format!("{panel}/"))
    }

    fn changed(&mut self, _: &str) {
        (self.refresh)();
    }

    fn skew(&mut self, seconds: i64) {
        self.witnesses.note("panel", seconds);
    }
}
