//! From one configuration to the next while a program runs: SIGHUP, the control socket and a watched file ask for it.
//!
//! The files are read and checked first. On any error what runs stays as it is, and every finding is logged and told to
//! the one who asked.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_engine::routing::CompileError;
use adit_engine::{
    Applier, Control, ControlAnswer, ControlReply, ControlRequest, Differences, Files, GivenFile, Giver,
    HandedOver, Observer, Running, StartError,
};
use adit_formats::adit_toml;
use adit_formats::read::loaded::Loaded;
use adit_model::diagnostic::{Diagnostic, Diagnostics, Severity};
use adit_model::files::{self, Trial};
use adit_model::map::Map;
use adit_model::{Config, StateFile};
use adit_net::rt::{self, Signal};
use anyhow::anyhow;

use crate::load::files::place_of_part;
use crate::load::findings;
use crate::load::providers::{self, Fresh, ListKeeper};
use crate::log;
use crate::log::log_stream;
use crate::run::fleet::{self, Fleet};
use crate::run::overlay::{Change, Overlay};
use crate::run::{state, supervisor, upgrade};

/// Most requests that wait.
const WAITING: usize = 64;
/// Interval at which watched files are looked at.
const WATCHED: Duration = Duration::from_secs(1);
/// Time for all files that a change reads. One that takes longer is given up, and what runs stays.
const READ: Duration = Duration::from_secs(30);
/// Time in which the threads of panels, the store and the counters have followed a change. Each of them has a heap of its
/// own, and has freed most of what it took for that.
const FOLLOWED: Duration = Duration::from_secs(10);

/// Reads a configuration again, as at the start.
pub(crate) type Load = Box<dyn FnMut() -> Result<Loaded, Diagnostics> + Send>;

/// The way in which a program takes a new configuration.
pub(crate) struct Source {
    /// The files that are read again.
    pub(crate) files: Vec<PathBuf>,
    /// Whether they are of the form of adit.toml.
    pub(crate) is_native: bool,
    /// Reads them; `None` for a program that has nothing to read again, with the reason.
    pub(crate) load: Result<Load, &'static str>,
    /// Builds the configuration anew of the text that was read last, and of the lists on disk as they are.
    pub(crate) refresh: Option<Load>,
    /// Values that control programs lay over those of the file, where `refresh` obeys them.
    pub(crate) overlay: Option<Arc<Mutex<Overlay>>>,
    /// Writes lines that programs look for once the ports are open.
    pub(crate) say_open: Option<fn(&Config)>,
    /// Whether SIGUSR1 asks for a reload instead of a look at the state.
    pub(crate) is_reloaded_by_user_signal: bool,
    /// Whether somebody else writes the state into the log at SIGUSR1.
    pub(crate) has_own_user_signal: bool,
    /// Whether a change of the files is a request, too.
    pub(crate) is_watched: bool,
}

impl Source {
    /// Of a program that has nothing to read again.
    pub(crate) fn fixed(why: &'static str) -> Self {
        Self {
            files: Vec::new(),
            is_native: false,
            load: Err(why),
            refresh: None,
            overlay: None,
            say_open: None,
            is_reloaded_by_user_signal: false,
            has_own_user_signal: false,
            is_watched: false,
        }
    }

    /// Of a program that reads its files with `load`.
    pub(crate) fn of(
        files: Vec<PathBuf>,
        load: impl FnMut() -> Result<Loaded, Diagnostics> + Send + 'static,
    ) -> Self {
        Self { files, load: Ok(Box::new(load)), ..Self::fixed("") }
    }
}

/// Takes the result of a change.
pub(crate) type ChangeReply = Box<dyn FnOnce(Result<(), String>) + Send>;

enum Job {
    Reload(Option<ControlReply>),
    /// Another thread has changed a file.
    Follow(SyncSender<Result<Differences, Vec<String>>>),
    /// A list of users has been replaced.
    Refresh,
    /// Documents have come, or files of lists have changed.
    Judge(Vec<Fresh>, SyncSender<Vec<Result<(), String>>>),
    Diff(Vec<GivenFile>, ControlReply),
    Change(Change, ChangeReply),
    Status,
    Upgrade(Option<PathBuf>, Duration, Option<ControlReply>),
}

/// Takes requests for the thread that follows them.
#[derive(Clone)]
pub(crate) struct Requests {
    jobs: SyncSender<Job>,
    files: Files,
    fleet: Fleet,
    services: Arc<Mutex<Vec<Service>>>,
    is_reloaded_by_user_signal: bool,
    has_own_user_signal: bool,
}

/// Has a service follow a configuration: the name of its settings if they have changed, or why they cannot be had.
pub(crate) type Service = Box<dyn Fn(&Config) -> Result<Option<&'static str>, String> + Send>;

impl Requests {
    /// Tells a service of each configuration from now on.
    pub(crate) fn tell(&self, service: Service) {
        self.services.lock().unwrap_or_else(PoisonError::into_inner).push(service);
    }

    /// A control program asks for a change.
    pub(crate) fn change(&self, change: Change, reply: ChangeReply) {
        if let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) =
            self.jobs.try_send(Job::Change(change, reply))
            && let Job::Change(_, reply) = job
        {
            reply(Err("too many requests wait".to_owned()));
        }
    }

    /// Has the files read again, and waits until that is done. For threads that may wait.
    ///
    /// # Errors
    /// The findings, when what runs stays as it is.
    pub(crate) fn reload(&self) -> Result<Differences, Vec<String>> {
        let (reply, done) = sync_channel(1);
        if self.jobs.try_send(Job::Follow(reply)).is_err() {
            return Err(vec!["too many requests wait".to_owned()]);
        }
        done.recv().unwrap_or_else(|_| Err(vec!["adit is ending".to_owned()]))
    }

    /// The files that are read again.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// A signal has come.
    pub(crate) fn heard(&self, signal: Signal) {
        let job = match signal {
            Signal::Reload => Job::Reload(None),
            Signal::User if self.is_reloaded_by_user_signal => Job::Reload(None),
            Signal::User if !self.has_own_user_signal => Job::Status,
            Signal::Upgrade => Job::Upgrade(None, upgrade::DRAIN, None),
            Signal::User | Signal::Stop => return,
        };
        // So many wait already that one more changes nothing.
        self.jobs.try_send(job).ok();
    }
}

impl Control for Requests {
    fn follow(&self, request: ControlRequest, reply: ControlReply) {
        let job = match request {
            ControlRequest::Reload => Job::Reload(Some(reply)),
            ControlRequest::Diff { files } => Job::Diff(files, reply),
            ControlRequest::Upgrade { binary, drain_s } => {
                Job::Upgrade(binary, Duration::from_secs(drain_s), Some(reply))
            }
            ControlRequest::Files => return reply.answer(ControlAnswer::Files(self.files.clone())),
            ControlRequest::Panel { of } => return reply.answer(self.fleet.answer(&of)),
            ControlRequest::Status | ControlRequest::Snapshot | ControlRequest::Kick { .. } => {
                return reply.answer(ControlAnswer::Error("asked in the wrong place".into()));
            }
        };
        if let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) = self.jobs.try_send(job)
            && let Job::Reload(Some(reply)) | Job::Diff(_, reply) | Job::Upgrade(_, _, Some(reply)) = job
        {
            reply.answer(ControlAnswer::Error("too many requests wait".into()));
        }
    }
}

/// Starts to follow requests.
///
/// # Errors
/// When there cannot be another thread.
pub(crate) fn start(source: Source, config: &Config, running: &Running) -> anyhow::Result<Requests> {
    let (jobs, waiting) = sync_channel(WAITING);
    let paths = source.files.iter().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    let refresh = jobs.clone();
    let fleet = fleet::start(config, running, move || drop(refresh.try_send(Job::Refresh)))?;
    let requests = Requests {
        fleet: fleet.clone(),
        services: Arc::default(),
        jobs,
        files: Files { paths: paths.collect(), is_native: source.is_native },
        is_reloaded_by_user_signal: source.is_reloaded_by_user_signal,
        has_own_user_signal: source.has_own_user_signal,
    };
    let seen = seen(&source.files);
    let jobs = requests.jobs.clone();
    let judge = move |documents: Vec<Fresh>| {
        let (count, (reply, done)) = (documents.len(), sync_channel(1));
        if jobs.try_send(Job::Judge(documents, reply)).is_err() {
            return vec![Err("too many requests wait".to_owned()); count];
        }
        done.recv().unwrap_or_default()
    };
    let keeper = providers::start(running.proxies(), Box::new(judge))?;
    keeper.follow(config);
    let reloader = Reloader {
        source,
        config: config.clone(),
        applier: running.applier(),
        observer: running.observer(),
        keeper,
        fleet,
        services: requests.services.clone(),
        has_controller: config.controller.is_some(),
        seen,
        giver: running.giver(),
        trim_at: Some(rt::now() + FOLLOWED),
    };
    // It ends when nobody asks any more, or with the process.
    std::thread::Builder::new().name("adit-reload".into()).spawn(move || reloader.run(&waiting))?;
    running.set_control(Box::new(requests.clone()));
    Ok(requests)
}

/// The parts of a configuration that later ones are compared with here; its rules and lists have become tables.
fn remembered(config: Config) -> Config {
    Config { lists: Map::new(), rules: Vec::new(), ..config }
}

/// Changes of a file are told by these: time, length and number.
type Seen = Vec<Option<(i64, i64, u64, u64)>>;

fn seen(files: &[PathBuf]) -> Seen {
    let one = |path: &PathBuf| {
        let found = fs::metadata(path).ok()?;
        Some((found.mtime(), found.mtime_nsec(), found.len(), found.ino()))
    };
    files.iter().map(one).collect()
}

/// The key of the interface in an adit.toml, or in a file of mihomo.
pub(crate) fn key(is_native: bool) -> &'static str {
    if is_native { "admin.clash" } else { "external-controller" }
}

struct Reloader {
    source: Source,
    /// The configuration that runs.
    config: Config,
    applier: Applier,
    observer: Observer,
    keeper: ListKeeper,
    fleet: Fleet,
    services: Arc<Mutex<Vec<Service>>>,
    /// Whether there was a control interface for dashboards at the start: it has a thread.
    has_controller: bool,
    seen: Seen,
    giver: Giver,
    /// When free heap goes back once more.
    trim_at: Option<Instant>,
}

impl Reloader {
    fn run(mut self, waiting: &Receiver<Job>) {
        loop {
            let watched = self.source.is_watched.then_some(WATCHED);
            let trimmed = self.trim_at.map(|at| at.saturating_duration_since(rt::now()));
            let job = match watched.into_iter().chain(trimmed).min() {
                Some(wait) => waiting.recv_timeout(wait),
                None => waiting.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if self.trim_at.take_if(|at| rt::now() >= *at).is_some() {
                adit_net::trim_heap();
            }
            match job {
                Ok(Job::Upgrade(binary, drain, reply)) => {
                    if self.upgrade(binary.as_deref(), drain, reply) {
                        return;
                    }
                }
                Ok(job) => files::change(READ, || self.handle(job)),
                Err(RecvTimeoutError::Timeout) if self.source.is_watched => {
                    files::change(READ, || self.look());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn handle(&mut self, job: Job) {
        match job {
            Job::Reload(reply) => {
                let answer = answer(self.reload());
                if let Some(reply) = reply {
                    reply.answer(answer);
                }
            }
            Job::Follow(reply) => drop(reply.send(self.reload())),
            Job::Refresh => self.refresh(),
            Job::Judge(documents, reply) => drop(reply.send(self.judge(&documents))),
            Job::Change(change, reply) => reply(self.change(&change)),
            Job::Diff(files, reply) => reply.answer(answer(self.differences(&files))),
            Job::Status => log_status(&self.observer),
            Job::Upgrade(..) => {}
        }
    }

    /// Lets another process take over; true if it has.
    fn upgrade(&mut self, binary: Option<&Path>, drain: Duration, reply: Option<ControlReply>) -> bool {
        let mut reply = reply;
        let announce = |pid, given: &HandedOver| {
            let HandedOver { program, open } = given.clone();
            if let Some(reply) = reply.take() {
                reply.answer(ControlAnswer::Upgraded { pid, version: program, open });
            }
        };
        let result = if self.source.files.iter().any(|file| is_stdin(file)) {
            Err(anyhow!(
                "the configuration came from standard input, which another process cannot read again"
            ))
        } else {
            upgrade::upgrade(&self.giver, binary, drain, announce)
        };
        let Err(error) = result else { return true };
        tracing::error!("not upgraded, this process goes on as before: {error:#}");
        if let Some(reply) = reply {
            reply.answer(ControlAnswer::Error(format!(
                "not upgraded, the process goes on as before: {error:#}"
            )));
        }
        false
    }

    /// Reloads if a file has changed since the last look.
    fn look(&mut self) {
        let now = seen(&self.source.files);
        if now == self.seen || now.iter().any(Option::is_none) {
            return;
        }
        tracing::info!("a file of the configuration has changed");
        drop(self.reload());
    }

    fn reload(&mut self) -> Result<Differences, Vec<String>> {
        supervisor::reloading();
        let result = self.try_reload();
        let status = match &result {
            Ok(_) => {
                supervisor::served(self.observer.status().inbounds.iter().map(|of| of.listen.len()).sum())
            }
            Err(found) => {
                format!("the last reload was refused: {}", found.first().map_or("", String::as_str))
            }
        };
        supervisor::ready(&status);
        if let Ok(sockets) = self.giver.sockets() {
            supervisor::store(&sockets);
        }
        result
    }

    fn try_reload(&mut self) -> Result<Differences, Vec<String>> {
        // A change from here on is another one.
        self.seen = seen(&self.source.files);
        let result = self.load().and_then(|loaded| self.apply(loaded));
        match &result {
            Ok(differences) => {
                log::follow(&self.config.log);
                log_differences(differences);
            }
            Err(found) => {
                tracing::error!(
                    problems = found.len(),
                    "the configuration was not reloaded: what runs stays as it is"
                );
            }
        }
        result
    }

    /// Puts lists to use that have been replaced on disk.
    fn refresh(&mut self) {
        if let Err(found) = self.try_refresh() {
            tracing::error!("the lists cannot be used: what runs stays as it is");
            findings::log_findings(&found);
        }
    }

    /// Builds the configuration anew of the lists as they are, and uses it.
    fn try_refresh(&mut self) -> Result<(), Diagnostics> {
        let Some(refresh) = &mut self.source.refresh else { return Ok(()) };
        let loaded = refresh()?;
        let config = self.settled(loaded.config);
        let changes = self.applier.apply(&config).map_err(|error| self.findings(error))?;
        changes.errors.iter().for_each(|error| tracing::error!("{error}"));
        let (put, removed) = (changes.outbounds_put.len(), changes.outbounds_removed.len());
        tracing::info!(outbounds = put, removed, groups = changes.groups_changed.len(), "lists are in use");
        self.follow(config);
        Ok(())
    }

    /// Judges documents by the whole configuration with them. Those that it can be used with are in use then, and saved.
    fn judge(&mut self, documents: &[Fresh]) -> Vec<Result<(), String>> {
        if documents.is_empty() {
            self.refresh();
            return Vec::new();
        }
        match self.try_documents(documents) {
            Ok(()) => documents.iter().map(|(path, bytes)| providers::save(path, bytes)).collect(),
            Err(problem) if documents.len() == 1 => vec![Err(problem)],
            // One of them may be good without the others.
            Err(_) => documents.chunks(1).flat_map(|one| self.judge(one)).collect(),
        }
    }

    fn try_documents(&mut self, documents: &[Fresh]) -> Result<(), String> {
        let place = |(path, bytes): &Fresh| (path.clone(), Some(bytes.clone()));
        let mut trial = Trial { documents: documents.iter().map(place).collect(), ..Trial::default() };
        let used = trial.run(|| self.try_refresh());
        used.map_err(|found| format!("the configuration cannot be used with it: {}", findings::first(&found)))
    }

    /// Follows a change that a control program asks for.
    fn change(&mut self, change: &Change) -> Result<(), String> {
        let (Some(overlay), Some(refresh)) = (self.source.overlay.clone(), &mut self.source.refresh) else {
            return Err("the configuration of this process is changed in its file alone".to_owned());
        };
        let lock = || overlay.lock().unwrap_or_else(PoisonError::into_inner);
        let before = lock().clone();
        lock().take(change, self.config.facade.as_deref())?;
        let changed = refresh().map_err(|found| refused(&found)).and_then(|loaded| {
            findings::log_findings(&loaded.diagnostics);
            let level = loaded.config.log.level;
            let mut config = self.settled(loaded.config);
            // The level follows at once; nothing else of the log does.
            config.log.clone_from(&self.config.log);
            Ok((self.apply(config)?, level))
        });
        match changed {
            Ok((differences, level)) => {
                if matches!(change, Change::Put { .. }) {
                    log_stream::set_level(level);
                }
                log_differences(&differences);
                // The change holds from here on, but for a port that nobody reaches.
                differences.errors.into_iter().next().map_or(Ok(()), Err)
            }
            Err(found) => {
                *lock() = before;
                Err(found
                    .first()
                    .map(|first| first.lines().next().unwrap_or_default().to_owned())
                    .unwrap_or_default())
            }
        }
    }

    fn load(&mut self) -> Result<Config, Vec<String>> {
        let load = match &mut self.source.load {
            Ok(load) => load,
            Err(why) => {
                tracing::error!("{why}");
                return Err(vec![(*why).to_owned()]);
            }
        };
        let loaded = load().map_err(|found| refused(&found))?;
        findings::log_findings(&loaded.diagnostics);
        findings::log_findings(&findings::machine_findings(&loaded.config));
        let controller = loaded.config.controller.clone();
        Ok(Config { controller, ..self.settled(loaded.config) })
    }

    /// The configuration with what the process has settled at its start.
    fn settled(&self, mut config: Config) -> Config {
        config.plugin_user.clone_from(&self.config.plugin_user);
        config.controller.clone_from(&self.config.controller);
        if config.choices.is_none() {
            config.choices.clone_from(&self.config.choices);
        }
        if config.state == StateFile::Usual {
            if self.config.state == StateFile::Usual && state::has_state(&config) {
                state::settle(&mut config, &self.source.files);
            } else {
                config.state.clone_from(&self.config.state);
            }
        }
        self.fleet.fill(&mut config);
        config
    }

    fn apply(&mut self, mut config: Config) -> Result<Differences, Vec<String>> {
        let failed = |error: StartError| self.failed(error);
        let mut differences = self.applier.preview(&config).map_err(failed)?;
        if !self.has_controller && config.controller.take().is_some() {
            differences.needs_restart.push(key(self.source.is_native).to_owned());
        }
        // A unix socket stays as it was at the start.
        let unix = self.config.controller.as_ref().and_then(|controller| controller.unix.clone());
        if config.controller.as_ref().and_then(|controller| controller.unix.clone()) != unix {
            differences.needs_restart.push("external-controller-unix".to_owned());
            config.controller.get_or_insert_default().unix = unix;
        }
        let changes = self.applier.apply(&config).map_err(failed)?;
        (differences.warnings, differences.errors) = (changes.warnings, changes.errors);
        for service in &*self.services.lock().unwrap_or_else(PoisonError::into_inner) {
            match service(&config) {
                Ok(changed) => differences.settings.extend(changed.map(str::to_owned)),
                Err(error) => differences.errors.push(error),
            }
        }
        self.follow(config);
        Ok(differences)
    }

    /// The engine runs with this from now on: those who keep lists follow.
    fn follow(&mut self, config: Config) {
        self.keeper.follow(&config);
        if let Err(error) = self.fleet.follow(&config) {
            tracing::error!("panels: {error:#}");
        }
        self.config = remembered(config);
        // The configuration of before, and everything on the way from a list to it, is free.
        adit_net::trim_heap();
        self.trim_at = Some(rt::now() + FOLLOWED);
    }

    /// The differences to `files`, or to the process's own.
    fn differences(&mut self, files: &[GivenFile]) -> Result<Differences, Vec<String>> {
        let config = if files.is_empty() {
            self.load()?
        } else {
            let loaded = parse(files).map_err(|found| texts(&found))?;
            self.settled(loaded.config)
        };
        self.applier.preview(&config).map_err(|error| texts(&self.findings(error)))
    }

    /// Logs an error of the engine, and gives its texts.
    fn failed(&self, error: StartError) -> Vec<String> {
        refused(&self.findings(error))
    }

    /// An error of the engine, at the place of the part that it is about.
    fn findings(&self, error: StartError) -> Diagnostics {
        let anyhow = |error: StartError| anyhow::Error::new(error);
        let name = match &error {
            StartError::Rules(CompileError { at, problem }) => {
                let finding = Diagnostic::error(&at.file, "rule", problem.to_string());
                return finding.at((at.line as usize, at.column as usize)).into();
            }
            StartError::Sets(found) => return found.clone(),
            StartError::Listen { name, .. }
            | StartError::Unix { name, .. }
            | StartError::Build { name, .. } => Some(name.clone()),
            StartError::Admin { .. }
            | StartError::Http { .. }
            | StartError::State { .. }
            | StartError::Capture(_)
            | StartError::Core(_)
            | StartError::Handover(_)
            | StartError::Ending => None,
        };
        let error = anyhow(error);
        let (file, place) = name
            .filter(|_| self.source.is_native)
            .and_then(|name| place_of_part(&self.source.files, &name))
            .unwrap_or_else(|| (self.name(), (0, 0)));
        let finding = Diagnostic::error(&file, "", format!("{error:#}")).at(place);
        match crate::print::hint(&error) {
            Some(hint) => finding.hint(hint).into(),
            None => finding.into(),
        }
    }

    fn name(&self) -> Arc<str> {
        let first = self.source.files.first().map(|path| path.to_string_lossy());
        first.as_deref().unwrap_or("configuration").into()
    }
}

/// The configuration of files that were sent.
fn parse(files: &[GivenFile]) -> Result<Loaded, Diagnostics> {
    let read = |file: &GivenFile| Ok((file.name.as_str().into(), adit_toml::load(&file.name, &file.text)?));
    crate::load::files::load_all(files.iter().map(read))
}

fn answer(result: Result<Differences, Vec<String>>) -> ControlAnswer {
    match result {
        Ok(differences) => ControlAnswer::Differences(Box::new(differences)),
        Err(found) => ControlAnswer::Refused(found),
    }
}

/// Logs findings, and gives their texts.
fn refused(found: &Diagnostics) -> Vec<String> {
    findings::log_findings(found);
    texts(found)
}

/// The findings, errors first: who gets the first alone is told why.
fn texts(found: &Diagnostics) -> Vec<String> {
    let is_error = |finding: &&Diagnostic| finding.severity == Severity::Error;
    let (errors, others): (Vec<_>, Vec<_>) = found.iter().partition(is_error);
    errors.into_iter().chain(others).map(|finding| finding.to_string().trim_end().to_owned()).collect()
}

fn log_differences(differences: &Differences) {
    for error in &differences.errors {
        tracing::error!("{error}");
    }
    for warning in &differences.warnings {
        tracing::warn!("{warning}");
    }
    if !differences.needs_restart.is_empty() {
        let keys = differences.needs_restart.join(", ");
        tracing::warn!(keys, "these settings stay as they were until adit is started again");
    }
    let text = lines(differences).join("; ");
    if text.is_empty() {
        tracing::info!("reloaded: nothing has changed");
    } else {
        tracing::info!("reloaded: {text}");
    }
}

/// The differences as lines for people.
pub(crate) fn lines(differences: &Differences) -> Vec<String> {
    let Differences {
        inbounds,
        outbounds,
        users,
        rules_added,
        rules_removed,
        settings,
        needs_restart,
        cuts,
        ..
    } = differences;
    let lists = [
        ("inbounds added", &inbounds.added),
        ("inbounds removed", &inbounds.removed),
        ("inbounds changed, connections stay", &inbounds.changed),
        ("inbounds closed and opened anew", &inbounds.reopened),
        ("outbounds added", &outbounds.added),
        ("outbounds removed", &outbounds.removed),
        ("groups with other members", &outbounds.changed),
        ("outbounds built anew", &outbounds.reopened),
        ("users added", &users.added),
        ("users removed", &users.removed),
        ("users with another key", &users.rekeyed),
        ("users with other limits", &users.limited),
        ("settings changed", settings),
        ("needs a restart", needs_restart),
    ];
    let mut out: Vec<String> = lists
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(title, names)| format!("{title}: {}", some(names)))
        .collect();
    if *rules_added > 0 || *rules_removed > 0 {
        out.push(format!("rules: {rules_added} added, {rules_removed} removed"));
    }
    if !cuts.is_empty() {
        let cuts: Vec<String> = cuts.iter().map(|cut| format!("{} ({})", cut.of, cut.connections)).collect();
        out.push(format!("connections that end: {}", some(&cuts)));
    }
    out
}

/// The first of many names.
fn some(names: &[String]) -> String {
    const MOST: usize = 20;
    let shown = names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > MOST { format!("{shown} and {} more", names.len() - MOST) } else { shown }
}

/// Writes the state into the log: a line for each inbound and outbound.
fn log_status(observer: &Observer) {
    let status = observer.status();
    tracing::info!(uptime_s = status.uptime_s, version = status.version, "status");
    for inbound in &status.inbounds {
        let refused: u64 = inbound.refused.values().sum();
        tracing::info!(
            inbound = inbound.name,
            protocol = inbound.protocol,
            open = inbound.open,
            accepted = inbound.accepted,
            requests = inbound.requests,
            up_bytes = inbound.up_bytes,
            down_bytes = inbound.down_bytes,
            refused,
            "status"
        );
    }
    for outbound in &status.outbounds {
        tracing::info!(
            outbound = outbound.name,
            protocol = outbound.protocol,
            dialled = outbound.dialled,
            failed = outbound.failed,
            "status"
        );
    }
}

/// Whether a path stands for standard input, which cannot be read again.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

#[cfg(test)]
mod tests {
    use adit_engine::{ChangedParts, Cut};

    use super::*;

    #[test]
    fn differences_in_lines() {
        assert!(lines(&Differences::default()).is_empty());
        let names = (0..25).map(|n| format!("in-{n}")).collect();
        let differences = Differences {
            inbounds: ChangedParts { added: names, reopened: vec!["x".into()], ..ChangedParts::default() },
            rules_added: 2,
            cuts: vec![Cut { of: "x".into(), connections: 7 }],
            ..Differences::default()
        };
        let text = lines(&differences).join("\n");
        assert!(text.contains("in-19 and 5 more") && !text.contains("in-20"), "{text}");
        assert!(text.contains("rules: 2 added, 0 removed"), "{text}");
        assert!(text.ends_with("connections that end: x (7)"), "{text}");
    }
}
