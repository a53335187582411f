//! From a configuration to running event loops, from one configuration to the next, and back to rest.
//!
//! There is one lifecycle: a start is a change from nothing. The engine holds what all cores share, by name, and tells each
//! core what to do by [`order::LoopCommand`]s; a core ([`site`]) holds its own part, by name too.

mod apply;
mod command;
mod differ;
mod event_loop;
mod handover;
mod jobs;
mod links;
mod moves;
mod ports;
mod proxies;
mod running;
mod sockets;
mod usage;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::entries::Sets;
use adit_model::map::Map;
use adit_model::{self as model, Config, ControlSocket, StateFile, Tag};
use adit_net::handover::Kept;
use adit_net::listen::ListenError;
use adit_net::plugin::Plugins;
use adit_net::rt::{self, Cores, OrderSender, Orders, Signal, Signals, Stop, Stopper};
use adit_net::steer::AcceptTurns;
use thiserror::Error;

use self::command::LoopCommand;
use self::event_loop::{Common, Plan};
use self::handover::DrainingProcess;
use self::proxies::Showcase;
use self::running::{RunningInbound, RunningOutbound};
use crate::admission::Budget;
use crate::carrier::{self, PacketStreams};
use crate::connections::listing::Kicked;
use crate::connections::refusal_log::RefusalLog;
use crate::dns;
use crate::errors::{ConfigPart, Faults, PluginFaults};
use crate::groups::choice::{Board, Choices};
use crate::observe::control::{Control, Differences, Follower};
use crate::observe::http::HttpHandle;
use crate::observe::loop_lag::LoopLag;
use crate::observe::service::{KeptSockets, Reconfigurable, ServiceHandle};
use crate::observe::status::{self, CounterDirectory, ProcessHealth, Status};
use crate::observe::unix::Access;
use crate::protocols::registry;
use crate::replay::{ReplayFilter, ReplaySharing, salts_path};
use crate::routing::CompileError;
use crate::transparent::{self, Active, CaptureError, CaptureReport, Lent};
use crate::users::{AccountLedger, StateError, Unusable};

pub use self::apply::Changes;
pub use self::handover::{Giver, HandedOver, HandoverError, Taking, fuzz_handover};
pub use self::jobs::FetchRoute;
pub use self::ports::{Meter, OpenPort, PortOpener};
pub use self::proxies::{ListReply, ListState, ListUpdater, ListUsage, Proxies, ProxyView, SelectError};
pub use self::usage::{Usage, UserTotals};

/// A signal so soon after the first is the same one: timeout(1) and some terminals send it to the process and to its
/// group.
const SAME_SIGNAL: Duration = Duration::from_millis(100);
/// Cores follow an order within this time; a core that is stuck has worse troubles.
const FOLLOWED: Duration = Duration::from_secs(5);

/// Why a configuration cannot run.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("inbound {name}")]
    Listen {
        /// The inbound.
        name: Tag,
        /// The system's error.
        source: ListenError,
    },
    /// A unix socket cannot be listened on.
    #[error("inbound {name}: cannot listen on {path}")]
    Unix {
        /// The inbound.
        name: Tag,
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A part of the configuration cannot be built.
    #[error("{name}")]
    Build {
        /// The inbound or outbound.
        name: Tag,
        /// Why.
        source: io::Error,
    },
    /// The control socket cannot be made.
    #[error("control socket {path}")]
    Admin {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The address of `[admin] http` cannot be listened on.
    #[error("admin http {address}")]
    Http {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The counters of users cannot be read.
    #[error("state file {path}")]
    State {
        /// The path.
        path: PathBuf,
        /// The problem with the file.
        source: StateError,
    },
    /// Files of sets or countries cannot be read.
    #[error("sets of rules")]
    Sets(#[source] Diagnostics),
    /// Rules cannot be followed.
    #[error("rules")]
    Rules(#[source] CompileError),
    /// The process ends already.
    #[error("the process is ending")]
    Ending,
    /// Traffic cannot be captured.
    #[error("capture")]
    Capture(#[source] CaptureError),
    /// An event loop cannot be made.
    #[error("event loop")]
    Core(#[source] io::Error),
    /// The process before this one does not hand over.
    #[error("taking over from the process that runs")]
    Handover(#[source] HandoverError),
}

/// Why a configuration cannot take the place of the one that runs.
pub type ApplyError = StartError;

/// A configuration that runs, until it is told otherwise.
#[derive(Debug)]
pub struct Running {
    cores: Cores,
    stopper: Stopper,
    engine: Arc<Engine>,
    warnings: Vec<String>,
    /// Tells that another process has taken over.
    handed: Orders<()>,
}

/// Asks for the state of what runs.
#[derive(Debug, Clone)]
pub struct Observer(Arc<CounterDirectory>);

impl Observer {
    /// The present state.
    pub fn status(&self) -> Status {
        self.0.status(rt::now())
    }

    /// Whether it serves.
    pub fn health(&self) -> ProcessHealth {
        self.0.health(rt::now())
    }

    /// Payload bytes since the start, from clients and to them.
    pub fn totals(&self) -> (u64, u64) {
        self.0.totals()
    }

    /// The present state with the open connections. Call it on an event loop.
    pub async fn snapshot(&self) -> Status {
        self.0.snapshot(rt::now()).await
    }

    /// Ends connections, and says how many. Call it on an event loop.
    pub async fn kick(&self, of: Kicked) -> u64 {
        self.0.kick(of).await
    }
}

/// State that all cores share. Any thread may hold it; one at a time changes something.
#[derive(Debug)]
struct Engine {
    cores: Vec<OrderSender<LoopCommand>>,
    extensions: Extensions,
    state: Mutex<State>,
    directory: Arc<CounterDirectory>,
    follower: Arc<Follower>,
    memory: Arc<carrier::Memory>,
    faults: Arc<Faults>,
    /// Results of delay tests.
    board: Arc<Board>,
    /// Members that people chose.
    choices: Mutex<Choices>,
    showcase: Showcase,
    lists: OnceLock<Box<dyn ListUpdater>>,
    dns: Arc<dns::DnsShared>,
    next: AtomicU64,
    /// A thread tells the capture of interfaces.
    watches_links: AtomicBool,
    /// The capture begins once its server can be reached.
    capture_waits: AtomicBool,
    stop: Stop,
    /// Copies of the sockets of the control interfaces, for the next process.
    kept: KeptSockets,
    /// The HTTP interface, if there was one at the start.
    http: OnceLock<HttpHandle>,
    /// Ports besides the configuration's.
    ports: AtomicUsize,
    handed: OrderSender<()>,
    satellite: Mutex<Option<DrainingProcess>>,
}

/// The running configuration.
#[derive(Debug)]
struct State {
    config: Arc<Config>,
    inbounds: Map<Tag, RunningInbound>,
    outbounds: Map<Tag, RunningOutbound>,
    /// Made for the first users.
    ledger: Option<Arc<AccountLedger>>,
    /// Made for the first server that remembers salts.
    salts: Option<Arc<ReplayFilter>>,
    /// The nodes that salts are shared with.
    siblings: Arc<ReplaySharing>,
    /// Things of the process before this one.
    inherited: Inherited,
    /// The plugins of outbounds that are gone: connections may use them until they end.
    retired: Vec<Plugins>,
    /// The capture that runs.
    capture: Option<Active>,
    /// Whether there were a HTTP interface and one for users at the start: these have threads.
    interfaces: (bool, bool),
}

impl State {
    /// The accounts of users.
    fn ledger(&self) -> Arc<AccountLedger> {
        self.ledger.clone().unwrap_or_default()
    }

    /// Opens the accounts for the users of `config`, over the state file if there is one; a warning if that is damaged or
    /// cannot be used.
    fn open_ledger(&mut self, config: &Config) -> Result<Option<String>, StartError> {
        let has_users = config.inbounds.iter().any(|inbound| !inbound.protocol.users().is_empty());
        if self.ledger.is_some() || !has_users {
            return Ok(None);
        }
        let has_witnesses = !config.panels.is_empty() || config.store.is_some();
        let (ledger, warning) = AccountLedger::start(Some(&config.state))
            .map_err(|Unusable { path, why }| StartError::State { path, source: why })?;
        // Until one of them has told the time.
        ledger.hold_periods_while(Arc::new(move || has_witnesses));
        self.ledger = Some(ledger);
        Ok(warning)
    }

    /// The memory of salts.
    fn salts(&self) -> Arc<ReplayFilter> {
        self.salts.clone().unwrap_or_default()
    }

    /// Opens the memory of salts for the servers among `inbounds`, over the replay file if there is a `place` for one; a
    /// warning if that is damaged or cannot be used.
    fn open_salts(&mut self, place: &StateFile, inbounds: &[model::Inbound]) -> Option<String> {
        let remembers = inbounds.iter().any(|inbound| inbound.protocol.remembers_salts());
        if self.salts.is_some() || !remembers {
            return None;
        }
        let (salts, warning) = match place {
            StateFile::At(path) | StateFile::Try { path, .. } => ReplayFilter::start(&salts_path(path)),
            StateFile::Usual | StateFile::Off => (
                self.inherited.salts_key.map(|key| Arc::new(ReplayFilter::with_key(key))).unwrap_or_default(),
                None,
            ),
        };
        salts.follow(self.siblings.clone());
        self.salts = Some(salts);
        warning
    }
}

impl Engine {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Streams for the packets of carriers, if there are some.
    fn streams(&self) -> Option<&dyn PacketStreams> {
        self.extensions.packet_streams.as_deref()
    }

    /// No plugins yet, for parts of one kind.
    fn plugins(&self, config: &Config, part: fn(Tag) -> ConfigPart) -> Plugins {
        let observer = Arc::new(PluginFaults::new(self.faults.clone(), part));
        Plugins::new(config.plugin_user.as_deref()).observed_by(observer)
    }

    fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are ports besides the configuration's.
    fn has_ports(&self) -> bool {
        self.ports.load(Ordering::Relaxed) > 0
    }

    fn is_ending(&self) -> bool {
        self.stop.is_draining()
    }

    /// An empty order for each core.
    fn orders(&self) -> Vec<LoopCommand> {
        self.cores.iter().map(|_| LoopCommand::default()).collect()
    }

    /// Sends each core its order; false if one of them has ended.
    fn send(&self, orders: Vec<LoopCommand>) -> bool {
        let mut is_sent = true;
        for (core, order) in self.cores.iter().zip(orders) {
            is_sent &= core.send(order);
        }
        is_sent
    }

    fn tell(&self, order: impl FnMut(usize) -> LoopCommand) {
        self.send((0..self.cores()).map(order).collect());
    }

    /// The same, and waits until all cores have followed.
    fn send_and_wait(&self, mut orders: Vec<LoopCommand>) -> bool {
        let (done, followed) = mpsc::channel();
        for order in &mut orders {
            order.done = Some(done.clone());
        }
        drop(done);
        let is_sent = self.send(orders);
        if followed.recv_timeout(FOLLOWED) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("an event loop has not followed the change of the configuration in time");
        }
        is_sent
    }
}

/// Opens all listeners and starts the event loops. When it returns, connections are accepted.
///
/// # Errors
/// [`StartError`]; nothing is left running then.
pub fn start(config: &Config) -> Result<Running, StartError> {
    start_with(config, &Extensions::default())
}

/// Parts that the engine leaves to others.
#[derive(Debug, Clone)]
pub struct Extensions {
    /// Streams for the packets of carriers. Without them a configuration that needs some does not start.
    pub packet_streams: Option<Arc<dyn PacketStreams>>,
    /// Reads the files of sets and countries that rules refer to.
    pub load_sets: SetLoader,
}

/// Reads what the rules of a configuration refer to, or says why it cannot be had.
pub type SetLoader = fn(&Config) -> Result<Sets, Diagnostics>;

impl Default for Extensions {
    /// No streams, and no reader of files: sets are those that the configuration holds already.
    fn default() -> Self {
        let load_sets = |config: &Config| match config.sets.first() {
            Some(set) => Err(Diagnostic::error(&set.at.file, "set", "this program reads no sets").into()),
            None => Ok(Sets::of(config.lists.clone())),
        };
        Self { packet_streams: None, load_sets }
    }
}

/// Does what [`start`] does, with parts of others.
///
/// # Errors
/// [`StartError`]; nothing is left running then.
pub fn start_with(config: &Config, extensions: &Extensions) -> Result<Running, StartError> {
    start_after(config, extensions, Inherited::default())
}

/// Things of the process before this one that are not files.
#[derive(Debug, Default)]
struct Inherited {
    /// The key of the fingerprints of salts, which counts if they have no file.
    salts_key: Option<[u8; 16]>,
    /// The capture, until it is taken over.
    capture: Option<Lent>,
    /// The number of its event loops, which its sockets are for.
    cores: Option<usize>,
}

/// The same, with what the process before this one had.
fn start_after(
    config: &Config,
    extensions: &Extensions,
    inherited: Inherited,
) -> Result<Running, StartError> {
    let count = inherited.cores.or(config.cores).unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, |cores| cores.get().min(model::MAX_CORES))
    });
    let count = count.max(1);
    let (stopper, stop) = Stopper::new();
    let budget = Budget::new(&config.limits, count);
    let memory = Arc::new(carrier::Memory::new(budget.shares().carriers));
    let (dns, fake_warning) = dns::DnsShared::with_fake(&config.dns, &config.state);
    dns.set_bypass(Arc::new(transparent::note_direct));
    let dns = Arc::new(dns);
    let faults = Arc::new(Faults::default());
    let board = Arc::new(Board::default());
    let settings = Arc::new(Config { inbounds: Vec::new(), outbounds: Vec::new(), ..config.clone() });
    let mut cores = Cores::default();
    let (mut senders, mut askers) = (Vec::new(), Vec::new());
    let pulses: Arc<[LoopLag]> = (0..count).map(|_| LoopLag::default()).collect();
    let (since, since_unix_s) = (rt::now(), rt::unix_time());
    let common = Common {
        config: settings.clone(),
        memory: memory.clone(),
        budget: budget.clone(),
        refusals: RefusalLog::default(),
        dns: dns.clone(),
        faults: faults.clone(),
        pulses: pulses.clone(),
        since,
        board: board.clone(),
        count,
        extensions: extensions.clone(),
        turns: AcceptTurns::new(count, since),
    };
    for index in 0..count {
        let ((sender, orders), (asker, asks)) = (rt::orders(), rt::orders());
        senders.push(sender);
        askers.push(asker);
        let (plan, stop) = (Plan { common: common.clone(), orders, asks, index }, stop.clone());
        cores
            .start(format!("adit-{index}"), move || event_loop::run(plan, stop))
            .map_err(StartError::Core)?;
    }
    let state = State {
        config: settings,
        inbounds: Map::new(),
        outbounds: Map::new(),
        ledger: None,
        salts: None,
        siblings: Arc::default(),
        inherited,
        retired: Vec::new(),
        capture: None,
        interfaces: (false, false),
    };
    let parts = status::Cores { asks: askers, pulses, stop: stop.clone() };
    let directory = Arc::new(CounterDirectory::new(parts, budget, faults.clone(), since, since_unix_s));
    let (handed_sender, handed) = rt::orders();
    let engine = Engine {
        cores: senders,
        extensions: extensions.clone(),
        state: Mutex::new(state),
        directory,
        follower: Arc::default(),
        memory,
        faults,
        board,
        choices: Mutex::default(),
        showcase: Showcase::default(),
        lists: OnceLock::new(),
        dns,
        next: AtomicU64::new(0),
        watches_links: AtomicBool::new(false),
        capture_waits: AtomicBool::new(false),
        stop: stop.clone(),
        kept: KeptSockets::default(),
        http: OnceLock::new(),
        ports: AtomicUsize::new(0),
        handed: handed_sender,
        satellite: Mutex::default(),
    };
    let mut running = Running { cores, stopper, engine: Arc::new(engine), warnings: Vec::new(), handed };
    let started = running.engine.apply(config).and_then(|changes| {
        running.warnings = fake_warning.into_iter().chain(changes.warnings).collect();
        running.open_admin(config)?;
        running.engine.directory.set_open();
        running.engine.watch_links();
        Ok(())
    });
    match started {
        Ok(()) => Ok(running),
        Err(error) => {
            running.end();
            Err(error)
        }
    }
}

/// Applies configurations, from any thread.
#[derive(Debug, Clone)]
pub struct Applier(Arc<Engine>);

impl Applier {
    /// As [`Running::apply`].
    ///
    /// # Errors
    /// As [`Running::apply`]; also once the process is to end.
    pub fn apply(&self, config: &Config) -> Result<Changes, ApplyError> {
        let changes = self.0.apply(config)?;
        self.0.watch_links();
        Ok(changes)
    }

    /// The changes that [`Applier::apply`] would make. Addresses are not bound and plugins not started, so it may still fail
    /// then.
    ///
    /// # Errors
    /// When rules or names of the configuration cannot be followed.
    pub fn preview(&self, config: &Config) -> Result<Differences, ApplyError> {
        self.0.preview(config)
    }
}

/// A group that grows, from wherever its members are found.
#[derive(Debug, Clone)]
pub struct GroupHandle {
    engine: Arc<Engine>,
    name: Tag,
}

impl GroupHandle {
    /// Puts `members` in the place of those that were added before; those of the configuration stay. Each comes with
    /// its weights for streams and for datagrams, in percent. Connections over members that go are not cut, and a
    /// member that was there before, unchanged, keeps what is known of it. Names are taken at their word.
    ///
    /// # Errors
    /// When one of them cannot be built, or the group is gone; nothing has changed then.
    pub fn replace(&self, members: Vec<(model::Outbound, [u8; 2])>) -> io::Result<()> {
        // An outbound that needs a program of its own has been left out before.
        let build = |outbound: &_| registry::outbound_factory(outbound, &mut Plugins::new(None));
        let held = self.engine.state().outbounds.get(&self.name).map(|held| held.shared.clone());
        let shared = held.ok_or(io::ErrorKind::NotFound)?;
        shared.group().ok_or(io::ErrorKind::NotFound)?.replace(members, build, rt::now())
    }
}

impl Running {
    /// Applies `config`. Every part that is the same as before keeps its listeners, connections and counters:
    ///
    /// - an inbound with another address or protocol is closed, with its connections, and opened anew; one with other
    ///   users, limits or another outbound keeps its sockets and connections, except those of users that are gone; one
    ///   that goes from an address to the wildcard of its port, or back, keeps its connections;
    /// - new requests use an outbound as it is now; connections over one that was changed or removed go on until they
    ///   end, even if later requests arrive on the same client connection;
    /// - settings of the process that cannot change are named in [`Changes::needs_restart`].
    ///
    /// It blocks until all event loops have followed, and as long as plugins take to start.
    ///
    /// # Errors
    /// When a part cannot be had: everything is as it was then. One thing cannot be undone: where a new inbound takes an
    /// address of one that goes, the latter is closed first; if the new one fails, it is opened again, without the
    /// connections that it had.
    pub fn apply(&self, config: &Config) -> Result<Changes, ApplyError> {
        self.engine.apply(config)
    }

    /// Serves a control socket at `path`, besides one that the configuration names. It is this process's own.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open_socket(&mut self, path: &Path, access: Access) -> io::Result<()> {
        self.open_control(path, access, false)
    }

    /// Opens the interfaces that `config` asks for.
    fn open_admin(&mut self, config: &Config) -> Result<(), StartError> {
        if let ControlSocket::At(path) = &config.admin {
            let made = self.open_control(path, Access::Full, true);
            made.map_err(|source| StartError::Admin { path: path.clone(), source })?;
        }
        if let Some(http) = &config.admin_http {
            let (kept, directory) = (&self.engine.kept, self.engine.directory.clone());
            let handle = crate::observe::http::start(&mut self.cores, kept, http, directory);
            let handle = handle.map_err(|source| StartError::Http { address: http.listen, source })?;
            self.engine.http.set(handle).expect("the interface opens once");
        }
        Ok(())
    }

    fn open_control(&mut self, path: &Path, access: Access, is_handed_over: bool) -> io::Result<()> {
        let engine = &self.engine;
        let follower = (access == Access::Full).then(|| engine.follower.clone());
        let directory = engine.directory.clone();
        let kept = crate::observe::unix::start(&mut self.cores, path, directory, follower, is_handed_over)?;
        engine.kept().extend(kept);
        Ok(())
    }

    /// Runs a service on an event loop of its own, until the others have ended, or another process serves. `make` is
    /// called there, and gives the service; `listens` says where they have it listen.
    ///
    /// # Errors
    /// When there cannot be another event loop, or the service cannot be opened.
    pub fn start_service<S, O>(
        &mut self,
        name: &str,
        settings: S,
        listens: fn(&S) -> Option<SocketAddr>,
        make: impl FnOnce() -> O + Send + 'static,
    ) -> io::Result<ServiceHandle<S>>
    where
        S: Clone + PartialEq + Send + 'static,
        O: Reconfigurable<S> + 'static,
    {
        let directory = self.engine.directory.clone();
        let over = async move { crate::observe::unix::replaced(&directory).await };
        let kept = &self.engine.kept;
        ServiceHandle::start(&mut self.cores, name, kept, settings, listens, move || (make(), over))
    }

    /// Somebody who may apply configurations from another thread.
    pub fn applier(&self) -> Applier {
        Applier(self.engine.clone())
    }

    /// Has `control` follow the requests of the control socket that change something; the first one stays.
    pub fn set_control(&self, control: Box<dyn Control>) {
        self.engine.follower.set(control);
    }

    /// The group of this name.
    pub fn group(&self, name: &str) -> Option<GroupHandle> {
        let state = self.engine.state();
        let (name, held) = state.outbounds.get_key_value(name)?;
        held.shared.group()?;
        Some(GroupHandle { engine: self.engine.clone(), name: name.clone() })
    }

    /// The capture, if there is one.
    pub fn capture(&self) -> Option<CaptureReport> {
        self.engine.state().capture.as_ref().map(|active| active.report().clone())
    }

    /// Outbounds and groups, for control programs.
    pub fn proxies(&self) -> Proxies {
        Proxies(self.engine.clone())
    }

    /// Options that the system does not give, and methods that should not be used; to be shown once.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The addresses that are listened on, with the names of their inbounds.
    pub fn addresses(&self) -> Vec<(Tag, SocketAddr)> {
        self.engine.directory.addresses()
    }

    /// The accounts of users, for those who tell others about them.
    pub fn usage(&self) -> Usage {
        Usage(self.engine.clone())
    }

    /// Has `teller` tell in the snapshot how many errors of each code the log has told of; the first one stays.
    pub fn tell_log_errors(&self, teller: impl Fn() -> Vec<(&'static str, u64)> + Send + Sync + 'static) {
        self.engine.directory.log().set(Box::new(teller));
    }

    /// Opens more ports while this runs.
    pub fn ports(&self) -> PortOpener {
        PortOpener(self.engine.clone())
    }

    /// Measures the traffic of the configuration's own ports.
    pub fn meter(&self) -> Meter {
        Meter(self.engine.directory.clone())
    }

    /// Somebody who may ask for the state from another thread, for as long as the process lives.
    pub fn observer(&self) -> Observer {
        Observer(self.engine.directory.clone())
    }

    /// The present state.
    pub fn status(&self) -> Status {
        self.engine.directory.status(rt::now())
    }

    /// Stops accepting, lets connections finish for at most the configured time, and returns when all is over.
    pub fn drain(self) {
        drain(&self.engine, &self.stopper);
        finish(self.cores, &self.engine);
    }

    /// Ends everything at once.
    pub fn end(self) {
        drop(self.engine.state().capture.take());
        self.stopper.end();
        finish(self.cores, &self.engine);
    }

    /// Runs until SIGINT or SIGTERM, or until another process has taken over, then drains; a second signal ends at once. `ready` is called once from when on
    /// signals are heard, and `heard` for each signal, the first that ends it included.
    ///
    /// # Errors
    /// When the signals cannot be taken over; everything has ended then.
    pub fn run_until_signal(self, ready: impl FnOnce(), mut heard: impl FnMut(Signal)) -> io::Result<()> {
        let Self { cores, stopper, engine, mut handed, .. } = self;
        let wait = async {
            let mut signals = Signals::new()?;
            ready();
            loop {
                let signal = async { Some(signals.next().await) };
                let given = async {
                    handed.next().await;
                    None
                };
                match rt::race(signal, given).await {
                    Some(Signal::Stop) => {
                        heard(Signal::Stop);
                        let limit = engine.state().config.limits.drain;
                        tracing::info!("{}", stopping(engine.directory.open(), limit));
                        break;
                    }
                    Some(other) => heard(other),
                    // Another process serves, and the log says so.
                    None => break,
                }
            }
            drain(&engine, &stopper);
            let first = rt::now();
            let second = async {
                while signals.next().await != Signal::Stop || rt::now() < first + SAME_SIGNAL {}
                tracing::info!("second signal: ending at once");
                stopper.end();
            };
            // A core ends by itself when its last connection has or the time is over.
            let over = async {
                while cores.is_running() {
                    rt::sleep(Duration::from_millis(20)).await;
                }
            };
            rt::race(second, over).await;
            Ok(())
        };
        let result = Cores::block_on(wait).and_then(|result| result);
        stopper.end();
        finish(cores, &engine);
        result
    }
}

/// The line about the end that begins.
fn stopping(open: i64, limit: Duration) -> String {
    let seconds = limit.as_secs();
    match open {
        ..=0 => "stopping: no connection is open".to_owned(),
        1 => {
            format!("stopping: 1 connection is open and has {seconds} s to finish, Ctrl-C again ends at once")
        }
        _ => format!(
            "stopping: {open} connections are open and have {seconds} s to finish, Ctrl-C again ends at once"
        ),
    }
}

/// Accepts nothing more; plugins that end are not started again.
fn drain(engine: &Engine, stopper: &Stopper) {
    let mut state = engine.state();
    // First of all: a connection that comes now would find nobody.
    drop(state.capture.take());
    state.inbounds.values_mut().for_each(RunningInbound::drain);
    engine.kept().clear();
    state.outbounds.values().for_each(|held| held.plugins.drain());
    state.retired.iter().for_each(Plugins::drain);
    stopper.drain();
}

/// Waits for the cores, writes the counters of users, and ends the plugins, which connections use until the last.
fn finish(cores: Cores, engine: &Engine) {
    cores.join();
    engine.faults.flush(rt::now(), true);
    let mut state = engine.state();
    drop(state.capture.take());
    let satellite = engine.satellite.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(satellite) = satellite {
        satellite.finish();
    }
    state.ledger().flush();
    state.ledger().save_sources();
    state.inbounds.clear();
    state.outbounds.clear();
    state.retired.clear();
}
