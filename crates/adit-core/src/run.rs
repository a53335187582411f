//! From a configuration to running event loops, and back to rest.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_config::model::{self, Config};
use adit_net::listen::{self, ListenError, ListenOptions};
use adit_net::options::Warning;
use adit_net::pace::Pacer;
use adit_net::plugin::{Plugins, Role};
use adit_net::rt::{self, Cores, Orders, Pool, Signal, Signals, Stop, Stopper};
use adit_net::store::StoreError;
use adit_net::tls::Roots;
use adit_net::udp::{RawListener, RawSocket, Socket, check_raw, listen_raw};
use thiserror::Error;

use crate::access::Past;
use crate::carrier::{Carriers, kcp};
use crate::conns::{Conns, TICK};
use crate::datagram::{Exchange, Far, SharedScratch};
use crate::dns::{self, Dns};
use crate::guard::Guard;
use crate::inbound::{self, Inbound};
use crate::metrics::CoreMetrics;
use crate::outbound::{self, Check, Group, GroupShared, Leaf, Outbound, Through, Transport};
use crate::ports::{Meter, Order, Ports, Site};
use crate::session::CoreContext;
use crate::status::{Directory, Status};
use crate::users::Ledger;

/// A signal so soon after the first is the same one: timeout(1) and some terminals send it to the process and to its
/// group.
const SAME_SIGNAL: Duration = Duration::from_millis(100);
/// While draining, a connection that has not authenticated is waited for this long: it is no download.
const STRANGERS: Duration = Duration::from_secs(1);
/// Time for the last connections to be reset when the process ends.
const CUT: Duration = Duration::from_millis(100);

/// Why a configuration cannot run.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("inbound {name}")]
    Listen {
        /// The inbound.
        name: Arc<str>,
        /// What the system said.
        source: ListenError,
    },
    /// A unix socket cannot be listened on.
    #[error("inbound {name}: cannot listen on {path}")]
    Unix {
        /// The inbound.
        name: Arc<str>,
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A part of the configuration cannot be built.
    #[error("{name}")]
    Build {
        /// The inbound or outbound.
        name: Arc<str>,
        /// Why.
        source: io::Error,
    },
    /// The control socket cannot be made.
    #[error("control socket {path}")]
    Admin {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The counters of users cannot be read.
    #[error("state file {path}")]
    State {
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        source: StoreError,
    },
    /// An event loop cannot be made.
    #[error("event loop")]
    Core(#[source] io::Error),
}

/// A configuration that runs, until it is told otherwise.
#[derive(Debug)]
pub struct Running {
    cores: Cores,
    stopper: Stopper,
    directory: Arc<Directory>,
    ports: Ports,
    warnings: Vec<String>,
    ledger: Arc<Ledger>,
    drain: Duration,
    /// Last, so that connections may use them until all have ended.
    plugins: Plugins,
}

/// Asks for the state of what runs.
#[derive(Debug, Clone)]
pub struct Observer(Arc<Directory>);

impl Observer {
    /// The present state.
    pub fn status(&self) -> Status {
        self.0.status(rt::now())
    }
}

/// What a core thread is built from; it crosses threads once.
struct Plan {
    config: Arc<Config>,
    inbound_shared: Arc<[inbound::Shared]>,
    outbound_shared: Arc<[outbound::Shared]>,
    dns: Arc<dns::Shared>,
    sockets: Sockets,
    carriers: Arc<Carriers>,
    pacers: Arc<Pacers>,
    orders: Orders<Order>,
    index: usize,
    metrics: Arc<CoreMetrics>,
    count: usize,
}

/// Opens all listeners and starts the event loops. When it returns, connections are accepted.
///
/// # Errors
/// [`StartError`]; nothing is left running then.
pub fn start(config: &Config) -> Result<Running, StartError> {
    let count = config.cores.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, |cores| cores.get().min(model::MAX_CORES))
    });
    let count = count.max(1);
    check_dns(config)?;
    let build = |name: &Arc<str>| {
        let name = name.clone();
        move |source| StartError::Build { name, source }
    };
    let mut plugins = Plugins::new(config.plugin_user.as_deref());
    let (ledger, damage) = open_ledger(config)?;
    let inbound_shared: Result<Vec<_>, _> =
        config.inbounds.iter().map(|i| inbound::Shared::new(i, &ledger).map_err(build(&i.name))).collect();
    let outbound_shared: Result<Vec<_>, _> = config
        .outbounds
        .iter()
        .map(|o| outbound::Shared::new(o, &config.outbounds, &mut plugins).map_err(build(&o.name)))
        .collect();
    let inbound_shared: Arc<[inbound::Shared]> = inbound_shared?.into();
    let outbound_shared: Arc<[outbound::Shared]> = outbound_shared?.into();
    let dns = Arc::new(dns::Shared::new(&config.dns));
    let carriers = Arc::new(Carriers::new(config));
    let pacers = Arc::new(Pacers::new(config));
    let mut warnings: Vec<String> = damage.into_iter().collect();
    let mut addresses = vec![Vec::new(); config.inbounds.len()];
    let mut sockets: Vec<Sockets> = (0..count).map(|_| Sockets::default()).collect();
    for (index, inbound) in config.inbounds.iter().enumerate() {
        let carries = Far::carries_any(&config.outbounds, inbound.outbound);
        if inbound::needs_datagrams(inbound) && !carries {
            let source = io::Error::new(io::ErrorKind::Unsupported, "its outbound carries no datagrams");
            return Err(StartError::Build { name: inbound.name.clone(), source });
        }
        for addr in &inbound.listen {
            let transports = inbound::transports(inbound);
            if !transports.tcp() && !inbound::takes_datagrams(inbound) {
                continue;
            }
            let takes = carries && inbound::takes_datagrams(inbound);
            let (addr, found) = open(inbound, *addr, (index, takes), &mut sockets, &mut plugins)?;
            addresses[index].push(addr);
            warnings.extend(found.iter().map(|warning| format!("inbound {}: {warning}", inbound.name)));
        }
        open_unix(inbound, index, &mut sockets)?;
        warnings.extend(inbound::warnings(inbound));
    }
    for outbound in &config.outbounds {
        if outbound.dial.carrier.as_ref().is_some_and(|carrier| carrier.kcp.raw_tcp) {
            // Sessions are made when they are needed; that they cannot be is better said now.
            check_raw().map_err(build(&outbound.name))?;
        }
    }
    warnings.extend(config.outbounds.iter().flat_map(outbound::warnings));
    let metrics = |_| Arc::new(CoreMetrics::new(config.inbounds.len(), config.outbounds.len()));
    let metrics: Vec<_> = (0..count).map(metrics).collect();
    let users = inbound_shared.iter().map(inbound::Shared::users).collect();
    let groups = outbound_shared.iter().filter_map(outbound::Shared::group).cloned().collect();
    let counters = (metrics.clone(), carriers.metrics());
    let directory = Arc::new(Directory::new(config, addresses, groups, users, counters, rt::now()));
    let (stopper, stop) = Stopper::new();
    let mut cores = Cores::default();
    let config = Arc::new(config.clone());
    let mut order_senders = Vec::new();
    for (index, (sockets, metrics)) in sockets.into_iter().zip(metrics).enumerate() {
        let (sender, orders) = rt::orders();
        order_senders.push(sender);
        let plan = Plan {
            config: config.clone(),
            inbound_shared: inbound_shared.clone(),
            outbound_shared: outbound_shared.clone(),
            dns: dns.clone(),
            sockets,
            carriers: carriers.clone(),
            pacers: pacers.clone(),
            orders,
            index,
            metrics,
            count,
        };
        let stop = stop.clone();
        cores.start(format!("adit-{index}"), move || run_core(plan, stop)).map_err(StartError::Core)?;
    }
    let ports = Ports::new(config.clone(), order_senders, ledger.clone(), stop.clone());
    if let Some(path) = &config.admin {
        crate::admin::start(&mut cores, path, directory.clone(), stop)
            .map_err(|source| StartError::Admin { path: path.clone(), source })?;
    }
    let drain = config.limits.drain;
    Ok(Running { cores, stopper, directory, ports, warnings, ledger, drain, plugins })
}

/// Refuses name servers behind an outbound that could only be reached with their help.
fn check_dns(config: &Config) -> Result<(), StartError> {
    let Some(found) = config.dns.find_loop(&config.outbounds) else { return Ok(()) };
    let model::DnsLoop { outbound, host, upstream, through } = found;
    let source = io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "its server {host} is looked up by the name server {upstream}, which is reached through {through}"
        ),
    );
    Err(StartError::Build { name: outbound, source })
}

/// The accounts of users, over the state file if there are any, with what is to be said about it.
fn open_ledger(config: &Config) -> Result<(Arc<Ledger>, Option<String>), StartError> {
    let has_users = config.inbounds.iter().any(|inbound| inbound::counted(inbound).next().is_some());
    match &config.state {
        model::StateFile::At(path) if has_users => {
            Ledger::open(path).map_err(|source| StartError::State { path: path.clone(), source })
        }
        model::StateFile::Try(path) if has_users => Ok(Ledger::open(path).unwrap_or_else(|error| {
            let path = path.display();
            let end = "the counters of users end with the process";
            (Arc::default(), Some(format!("{end}, for {path} cannot be used: {error}")))
        })),
        model::StateFile::Usual
        | model::StateFile::Off
        | model::StateFile::At(_)
        | model::StateFile::Try(_) => Ok((Arc::default(), None)),
    }
}

/// What keeps rates over all cores, in the order of the configuration.
struct Pacers {
    inbounds: Vec<Option<Arc<Pacer>>>,
    outbounds: Vec<Option<Arc<Pacer>>>,
}

impl Pacers {
    fn new(config: &Config) -> Self {
        let pacer = |pace: Option<model::Pace>| pace.map(|pace| Arc::new(Pacer::new(pace)));
        Self {
            inbounds: config.inbounds.iter().map(|inbound| pacer(inbound.socket.pace)).collect(),
            outbounds: config.outbounds.iter().map(|outbound| pacer(outbound.dial.pace)).collect(),
        }
    }
}

/// The listening sockets of one core, with the numbers of their inbounds.
#[derive(Default)]
pub(crate) struct Sockets {
    pub(crate) listeners: Vec<(usize, std::net::TcpListener)>,
    pub(crate) unix: Vec<(usize, listen::LocalListener)>,
    /// With what the cores of one address share.
    pub(crate) datagrams: Vec<(usize, std::net::UdpSocket, Arc<Exchange>)>,
    /// For the sessions of carriers.
    carriers: Vec<(usize, std::net::UdpSocket)>,
    raw: Vec<(usize, RawListener)>,
}

impl Sockets {
    /// Those of one inbound.
    fn take(&mut self, index: usize) -> Self {
        Self {
            listeners: self.listeners.extract_if(.., |(inbound, _)| *inbound == index).collect(),
            unix: self.unix.extract_if(.., |(inbound, _)| *inbound == index).collect(),
            datagrams: self.datagrams.extract_if(.., |(inbound, ..)| *inbound == index).collect(),
            carriers: self.carriers.extract_if(.., |(inbound, _)| *inbound == index).collect(),
            raw: self.raw.extract_if(.., |(inbound, _)| *inbound == index).collect(),
        }
    }
}

impl Sockets {
    /// What sessions of carriers come by, on the current event loop.
    fn take_links(&mut self) -> impl Iterator<Item = io::Result<kcp::Link>> + use<> {
        let udp = std::mem::take(&mut self.carriers).into_iter();
        let udp = udp.map(|(_, socket)| Socket::from_std(socket).map(kcp::Link::Udp));
        let raw = std::mem::take(&mut self.raw).into_iter();
        udp.chain(raw.map(|(_, listener)| RawSocket::from_listener(listener).map(kcp::Link::Tcp)))
    }
}

/// Listens on `addr` for what `inbound` carries, with a socket per core; datagrams if it `takes` any.
pub(crate) fn open(
    inbound: &model::Inbound,
    mut addr: SocketAddr,
    (index, takes): (usize, bool),
    cores: &mut [Sockets],
    plugins: &mut Plugins,
) -> Result<(SocketAddr, Vec<String>), StartError> {
    let options = ListenOptions {
        v6_only: listen::needs_v6_only(addr, &inbound.listen),
        ..ListenOptions::from(&inbound.socket)
    };
    let failed = |source| StartError::Listen { name: inbound.name.clone(), source };
    let mut warnings = Vec::new();
    if let Some(carrier) = &inbound.socket.carrier {
        let made = listen::listen_datagrams(addr, &options, cores.len()).map_err(failed)?;
        for (core, socket) in cores.iter_mut().zip(made.sockets) {
            core.carriers.push((index, socket));
        }
        if carrier.raw_tcp {
            let raw = listen_raw(made.addr, &options, cores.len()).map_err(failed)?;
            for (core, listeners) in cores.iter_mut().zip(raw) {
                core.raw.extend(listeners.into_iter().map(|listener| (index, listener)));
            }
        }
        return Ok((made.addr, made.warnings.iter().map(ToString::to_string).collect()));
    }
    let has_streams = inbound::transports(inbound).tcp();
    let mut behind = Behind::default();
    if let Some(plugin) = plugin_of(inbound) {
        (addr, behind) = open_behind(inbound, plugin, addr, cores.len(), plugins)?;
    } else if has_streams
        && takes
        && addr.port() == 0
        // What cannot be had is reported by who needs it below.
        && let Ok((streams, datagrams)) = listen::listen_both(addr, &options, cores.len())
    {
        addr = streams.addr;
        behind = Behind { streams: Some(streams), datagrams: Some(datagrams) };
    }
    if has_streams {
        let made = match behind.streams.take() {
            Some(made) => made,
            None => listen::listen_many(addr, &options, cores.len())
                .inspect(|made| addr = made.addr)
                .map_err(failed)?,
        };
        warnings.extend(made.warnings.iter().map(ToString::to_string));
        for (core, socket) in cores.iter_mut().zip(made.sockets) {
            core.listeners.push((index, socket));
        }
    }
    if takes {
        let own = behind.datagrams.take().map(Ok);
        let own = own.unwrap_or_else(|| {
            listen::listen_datagrams(addr, &options, cores.len()).inspect(|made| addr = made.addr)
        });
        let made = match own {
            Ok(made) => made,
            // The rest works without them.
            Err(error) if !inbound::needs_datagrams(inbound) => {
                warnings.push(format!("no QUIC: {error}: {}", error.source));
                return Ok((addr, warnings));
            }
            Err(error) => return Err(failed(error)),
        };
        let shown = made.warnings.into_iter().filter(|warning| *warning != Warning::NoIpv6);
        warnings.extend(shown.map(|warning| warning.to_string()));
        let exchange = Arc::new(Exchange::new(cores.len()));
        for (core, socket) in cores.iter_mut().zip(made.sockets) {
            core.datagrams.push((index, socket, exchange.clone()));
        }
    }
    Ok((addr, warnings))
}

/// Listens on the unix socket of `inbound`, if it has one.
pub(crate) fn open_unix(
    inbound: &model::Inbound,
    index: usize,
    cores: &mut [Sockets],
) -> Result<(), StartError> {
    let Some(path) = &inbound.socket.unix else { return Ok(()) };
    let made = listen::listen_unix(path, cores.len());
    let made =
        made.map_err(|source| StartError::Unix { name: inbound.name.clone(), path: path.clone(), source })?;
    for (core, socket) in cores.iter_mut().zip(made) {
        core.unix.push((index, socket));
    }
    Ok(())
}

/// The plugin that listens in the place of `inbound`, for what it carries of that.
fn plugin_of(inbound: &model::Inbound) -> Option<model::Plugin> {
    let model::InboundProtocol::Shadowsocks(server) = &inbound.protocol else { return None };
    let model::ServerCover::Plugin(plugin) = &server.cover else { return None };
    let transports = server.transports.common(plugin.transports)?;
    Some(model::Plugin { transports, ..plugin.clone() })
}

/// Sockets on loopback for what a plugin brings.
#[derive(Default)]
struct Behind {
    streams: Option<listen::Listeners>,
    datagrams: Option<listen::DatagramSockets>,
}

/// Listens on loopback for what `plugin` carries, and has it listen on `addr`; returns where that is.
fn open_behind(
    inbound: &model::Inbound,
    plugin: model::Plugin,
    addr: SocketAddr,
    count: usize,
    plugins: &mut Plugins,
) -> Result<(SocketAddr, Behind), StartError> {
    let fail = |source| StartError::Build { name: inbound.name.clone(), source };
    let public = if addr.port() == 0 { listen::free_port(addr.ip(), 0).map_err(fail)? } else { addr };
    let (streams, datagrams) = listen::listen_behind(plugin.transports, count)
        .map_err(|source| StartError::Listen { name: inbound.name.clone(), source })?;
    let local = streams.as_ref().map(|made| made.addr).or_else(|| datagrams.as_ref().map(|made| made.addr));
    let role = Role::Server { public, local: local.expect("a plugin carries something") };
    plugins.start(&inbound.name, &plugin, role).map_err(fail)?;
    Ok((public, Behind { streams, datagrams }))
}

/// A group that grows, from wherever its members are found.
#[derive(Debug, Clone)]
pub struct GroupHandle(Arc<GroupShared>);

impl GroupHandle {
    /// Puts `members` in the place of those that were added before; those of the configuration stay. Each comes with
    /// its weights for streams and for datagrams, in percent. Connections over members that go are not cut, and a
    /// member that was there before, unchanged, keeps what is known of it. Names are taken at their word.
    ///
    /// # Errors
    /// When one of them cannot be built; nothing has changed then.
    pub fn replace(&self, members: Vec<(model::Outbound, [u8; 2])>) -> io::Result<()> {
        self.0.replace(members, rt::now())
    }
}

impl Running {
    /// The group of this name.
    pub fn group(&self, name: &str) -> Option<GroupHandle> {
        self.directory.group(name).cloned().map(GroupHandle)
    }

    /// What was asked for and is not to be had; to be shown once.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The addresses that are listened on, with the names of their inbounds.
    pub fn addresses(&self) -> Vec<(Arc<str>, SocketAddr)> {
        self.directory.addresses()
    }

    /// Opens more ports while this runs.
    pub fn ports(&self) -> Ports {
        self.ports.clone()
    }

    /// Measures the traffic of the configuration's own ports.
    pub fn meter(&self) -> Meter {
        Meter::new(self.directory.clone())
    }

    /// Somebody who may ask for the state from another thread, for as long as the process lives.
    pub fn observer(&self) -> Observer {
        Observer(self.directory.clone())
    }

    /// The present state.
    pub fn status(&self) -> Status {
        self.directory.status(rt::now())
    }

    /// Stops accepting, lets connections finish for at most the configured time, and returns when all is over.
    pub fn drain(self) {
        self.plugins.drain();
        self.stopper.drain();
        self.cores.join();
        self.ledger.flush();
    }

    /// Ends everything at once.
    pub fn end(self) {
        self.stopper.end();
        self.cores.join();
        self.ledger.flush();
    }

    /// Runs until SIGINT or SIGTERM, then drains; a second signal ends at once. `ready` is called once from when on
    /// signals are heard.
    ///
    /// # Errors
    /// When the signals cannot be taken over; everything has ended then.
    pub fn run_until_signal(self, ready: impl FnOnce()) -> io::Result<()> {
        let Self { cores, stopper, drain, plugins, ledger, .. } = self;
        let wait = async {
            let mut signals = Signals::new()?;
            ready();
            while signals.next().await != Signal::Stop {
                tracing::info!("reload is not in this build: the configuration stays as it is");
            }
            tracing::info!(limit = ?drain, "stopping: no new connections, open ones may finish");
            plugins.drain();
            stopper.drain();
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
        cores.join();
        ledger.flush();
        result
    }
}

async fn run_core(plan: Plan, stop: Stop) {
    let Plan {
        config,
        inbound_shared,
        outbound_shared,
        dns,
        mut sockets,
        carriers,
        pacers,
        orders,
        index,
        metrics,
        count,
    } = plan;
    let conns = Rc::new(Conns::default());
    let core = Rc::new(CoreContext { pool: Pool::new(), conns, log_destinations: config.log.destinations });
    let limits = &config.limits;
    let per_core = |limit: usize| limit.div_ceil(count);
    let guard =
        Guard::new(per_core(limits.unauthenticated), per_core(limits.unauthenticated_per_source), rt::now());
    let guard = Rc::new(guard);
    let active = Rc::new(Cell::new(0));
    let carrier_context = kcp::Context::new(active.clone(), carriers.memory.clone());
    let beneath = |at: usize, outbound: &model::Outbound| {
        (carriers.client(at, outbound, count, &carrier_context), pacers.outbounds[at].clone())
    };
    let dns = Dns::new(dns, Roots::public());
    let ways = ways_out(&config, &outbound_shared, &metrics, (&core.pool, &dns), beneath);
    dns.set_streams(Rc::new(Through::new(&ways, core.pool.clone())));
    if index == 0 {
        check_groups(&config, &ways, &core.pool);
    }
    let past = Past::new(&config, &dns);
    let scratch = SharedScratch::default();
    let open = RefCell::default();
    let site = Rc::new(Site { config, index, core, guard, active, ways, past, scratch, open });
    let inbounds = site.config.inbounds.iter().zip(inbound_shared.iter()).zip(&metrics.inbounds);
    for (index, ((model, shared), metrics)) in inbounds.enumerate() {
        let around = site.around(model, pacers.inbounds[index].clone(), metrics.clone());
        let inbound = Rc::new(Inbound::new(model, shared, around));
        let mut sockets = sockets.take(index);
        for link in sockets.take_links() {
            let Some(shared) = carriers.inbounds[index].clone() else { continue };
            match link {
                Ok(link) => {
                    let context = carrier_context.clone();
                    rt::spawn_local(inbound.clone().run_carried(shared, context, link, stop.clone()));
                }
                Err(error) => tracing::error!(inbound = &*inbound.name, %error, "listener lost"),
            }
        }
        site.serve(&inbound, &model.protocol, sockets, &stop, None);
    }
    rt::spawn_local(site.clone().follow(orders, stop.clone()));
    rt::spawn_local(keep_house(site.clone()));
    Box::pin(wait_for_end(&site, stop)).await;
    dns.clear_streams();
}

/// Begins to compare the members of the groups that are used, for streams: datagrams may never come.
fn check_groups(config: &Config, ways: &[Leaf], pool: &Pool) {
    for inbound in &config.inbounds {
        let Some(group) = ways[inbound.outbound].outbound.as_group() else { continue };
        group.shared().start(Transport::Tcp, rt::now());
    }
    for group in ways.iter().filter_map(|way| way.outbound.as_group()) {
        // It was read before, when the group was made.
        let Ok(check) = Check::new(group.shared().check()) else { continue };
        rt::spawn_local(outbound::check_members(group.clone(), check, pool.clone()));
    }
}

/// The ways out on one core, in the order of the configuration: groups behind what they are made of.
fn ways_out(
    config: &Config,
    shared: &[outbound::Shared],
    metrics: &CoreMetrics,
    (pool, dns): (&Pool, &Rc<Dns>),
    beneath: impl Fn(usize, &model::Outbound) -> (Option<kcp::Client>, Option<Arc<Pacer>>),
) -> Vec<Leaf> {
    let leaves = config.outbounds.iter().zip(shared).zip(&metrics.outbounds).enumerate();
    let leaves: Rc<[Leaf]> = leaves
        .map(|(at, ((outbound, shared), metrics))| {
            let (carrier, pacer) = beneath(at, outbound);
            let running = Outbound::new(outbound, shared, metrics.clone(), dns);
            let running = Rc::new(running.with_carrier(carrier).with_pacer(pacer));
            let far = Far::running(outbound, &config.udp, &running, pool, dns).map(Rc::new);
            Leaf { outbound: running, far }
        })
        .collect();
    let all = config.outbounds.iter().zip(shared).zip(&metrics.outbounds).enumerate();
    all.map(|(index, ((outbound, shared), metrics))| {
        let outbound::Shared::Group(shared) = shared else { return leaves[index].clone() };
        let group = Rc::new(Group::new(shared.clone(), leaves.clone(), &config.udp, dns));
        let far = Far::carries_any(&config.outbounds, index)
            .then(|| Rc::new(Far::group(group.clone(), &config.udp, dns)));
        Leaf { outbound: Rc::new(Outbound::group(outbound, group, metrics.clone(), dns)), far }
    })
    .collect()
}

/// Returns when the core is to end: after draining, or at once when told so.
async fn wait_for_end(site: &Site, stop: Stop) {
    let Site { guard, active, .. } = site;
    let limit = site.config.limits.drain;
    let (mut draining, mut ending) = (stop.clone(), stop);
    draining.draining().await;
    site.each_table(Conns::end_resting);
    let strangers = async {
        rt::sleep(limit.min(STRANGERS)).await;
        guard.dismiss();
        std::future::pending().await
    };
    let drained = Box::pin(async {
        rt::timeout(limit, rt::race(finished(active), strangers)).await.ok();
    });
    rt::race(ending.ending(), drained).await;
    if active.get() > 0 {
        tracing::info!(connections = active.get(), "ending connections that are still open");
        // Closing without a word would pass off what has come so far as the whole.
        site.each_table(Conns::cut);
        rt::timeout(CUT, finished(active)).await.ok();
    }
}

/// Returns when no connection is left.
async fn finished(active: &Cell<usize>) {
    while active.get() > 0 {
        rt::sleep(Duration::from_millis(5)).await;
    }
}

/// The core's second hand: idle connections, reports, freed memory.
async fn keep_house(site: Rc<Site>) {
    let idle = site.config.limits.idle;
    loop {
        rt::sleep(TICK).await;
        let mut is_worth_trimming = false;
        site.each_table(|conns| {
            conns.sweep(idle);
            is_worth_trimming |= conns.take_worth_trimming();
        });
        site.core.pool.trim();
        for (source, count) in site.guard.take_report(rt::now()) {
            tracing::info!(
                %source,
                count,
                "authentication failed: wrong key, another protocol or version, or a probe"
            );
        }
        if is_worth_trimming {
            adit_net::trim_heap();
        }
    }
}
