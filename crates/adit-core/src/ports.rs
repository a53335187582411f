//! Ports that come and go while everything else runs.
//!
//! Whoever holds [`Ports`] opens an inbound on the outbounds of the configuration, with sockets of its own on every
//! core, and closes it again; the connections of the others do not notice. Each port has its own table of connections,
//! so that closing it ends those and no more.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use adit_config::model::{self, Config};
use adit_net::accept::Acceptor;
use adit_net::pace::Pacer;
use adit_net::plugin::Plugins;
use adit_net::rt::{self, OrderSender, Orders, Stop, Stopper};

use crate::access::{Access, DirectRoute, PacketRoutes};
use crate::conns::Conns;
use crate::dispatch::CoreContext;
use crate::guard::Guard;
use crate::inbound::{self, Inbound, Surroundings};
use crate::metrics::InboundMetrics;
use crate::outbound::{Leaf, packets};
use crate::packet::SharedScratch;
use crate::run::{Sockets, StartError, open, open_unix};
use crate::status::Directory;
use crate::user::Ledger;

/// A port's sockets are waited for so long when it closes; a core that is stuck has worse troubles.
const CLOSED: Duration = Duration::from_secs(5);

/// Opens ports; any thread may hold one.
#[derive(Debug, Clone)]
pub struct Ports {
    config: Arc<Config>,
    cores: Vec<OrderSender<Order>>,
    ledger: Arc<Ledger>,
    next: Arc<AtomicU64>,
    stop: Stop,
}

/// A port that is open until it is dropped.
#[derive(Debug)]
pub struct Port {
    id: u64,
    addresses: Vec<SocketAddr>,
    warnings: Vec<String>,
    metrics: Vec<Arc<InboundMetrics>>,
    cores: Vec<OrderSender<Order>>,
    /// Hung up once no socket of the port is left.
    closed: mpsc::Receiver<()>,
    plugins: Option<Plugins>,
}

/// The traffic of the configuration's own ports.
#[derive(Debug, Clone)]
pub struct Meter(Arc<Directory>);

impl Meter {
    pub(crate) fn new(directory: Arc<Directory>) -> Self {
        Self(directory)
    }

    /// Port and payload bytes, both ways together, of every inbound.
    pub fn bytes(&self) -> Vec<(u16, u64)> {
        self.0.bytes()
    }
}

/// What a core is told.
pub(crate) enum Order {
    /// To serve a port.
    Open(Box<Opening>),
    /// To serve it no more.
    Close(u64),
}

/// One core's part of a new port.
pub(crate) struct Opening {
    id: u64,
    inbound: Arc<model::Inbound>,
    shared: inbound::Shared,
    sockets: Sockets,
    pacer: Option<Arc<Pacer>>,
    metrics: Arc<InboundMetrics>,
    /// Lives as long as a socket does.
    alive: mpsc::Sender<()>,
}

impl Ports {
    pub(crate) fn new(
        config: Arc<Config>,
        cores: Vec<OrderSender<Order>>,
        ledger: Arc<Ledger>,
        stop: Stop,
    ) -> Self {
        Self { config, cores, ledger, next: Arc::default(), stop }
    }

    /// Opens a port. When this returns, connections are accepted.
    ///
    /// # Errors
    /// [`StartError`], also once the process is to end.
    pub fn open(&self, inbound: model::Inbound) -> Result<Port, StartError> {
        let count = self.cores.len();
        let name = inbound.name.clone();
        let build = |source| StartError::Build { name: name.clone(), source };
        let over = || build(io::Error::new(io::ErrorKind::Interrupted, "the process is to end"));
        if self.stop.is_draining() {
            return Err(over());
        }
        if self.config.outbound(&inbound.outbound).is_none()
            || inbound::takes_datagrams(&inbound) && !packets::carries_any(&self.config, &inbound.outbound)
        {
            return Err(build(io::ErrorKind::Unsupported.into()));
        }
        let shared = inbound::Shared::new(&inbound, &self.ledger).map_err(build)?;
        let pacer = inbound.socket.pace.map(|pace| Arc::new(Pacer::new(pace)));
        let mut plugins = Plugins::new(self.config.plugin_user.as_deref());
        let mut sockets: Vec<Sockets> = (0..count).map(|_| Sockets::default()).collect();
        let (mut addresses, mut warnings) = (Vec::new(), inbound::warnings(&inbound));
        for addr in &inbound.listen {
            let (addr, found) =
                open(&inbound, *addr, (0, inbound::takes_datagrams(&inbound)), &mut sockets, &mut plugins)?;
            addresses.push(addr);
            warnings.extend(found.iter().map(ToString::to_string));
        }
        open_unix(&inbound, 0, &mut sockets)?;
        let inbound = Arc::new(inbound);
        let (id, metrics) = (self.next.fetch_add(1, Ordering::Relaxed), |_| Arc::default());
        let metrics: Vec<Arc<InboundMetrics>> = (0..count).map(metrics).collect();
        let (alive, closed) = mpsc::channel();
        let mut is_open = true;
        for ((core, sockets), metrics) in self.cores.iter().zip(sockets).zip(&metrics) {
            let (inbound, shared, metrics) = (inbound.clone(), shared.clone(), metrics.clone());
            let pacer = pacer.clone();
            let opening = Opening { id, inbound, shared, sockets, pacer, metrics, alive: alive.clone() };
            is_open &= core.send(Order::Open(Box::new(opening)));
        }
        let plugins = Some(plugins);
        let port = Port { id, addresses, warnings, metrics, cores: self.cores.clone(), closed, plugins };
        if is_open { Ok(port) } else { Err(over()) }
    }
}

impl Port {
    /// The addresses that are listened on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What was asked for and is not to be had.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Payload bytes since it was opened, both ways together.
    pub fn bytes(&self) -> u64 {
        self.metrics.iter().map(|core| core.traffic.up.value() + core.traffic.down.value()).sum()
    }
}

/// Ends the connections of the port. Its address is free again afterwards.
impl Drop for Port {
    fn drop(&mut self) {
        // A plugin listens in the port's place.
        drop(self.plugins.take());
        for core in &self.cores {
            core.send(Order::Close(self.id));
        }
        if self.closed.recv_timeout(CLOSED) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(addresses = ?self.addresses, "a closed port is still held");
        }
    }
}

/// What a core needs to make inbounds.
pub(crate) struct Site {
    pub(crate) config: Arc<Config>,
    pub(crate) index: usize,
    pub(crate) core: Rc<CoreContext>,
    pub(crate) guard: Rc<Guard>,
    pub(crate) active: Rc<Cell<usize>>,
    pub(crate) ways: Vec<Leaf>,
    pub(crate) past: Option<DirectRoute>,
    /// How datagrams are relayed.
    pub(crate) udp: Rc<model::Udp>,
    pub(crate) scratch: SharedScratch,
    /// The ports that were opened since.
    pub(crate) open: RefCell<Vec<OpenPort>>,
}

/// A port on one core.
pub(crate) struct OpenPort {
    id: u64,
    conns: Rc<Conns>,
    /// Ends its listeners when dropped.
    stopper: Stopper,
}

impl Site {
    /// What stands around `inbound`.
    pub(crate) fn around(
        &self,
        inbound: &model::Inbound,
        pacer: Option<Arc<Pacer>>,
        metrics: Arc<InboundMetrics>,
    ) -> Surroundings {
        let way = self.ways.iter().find(|way| **way.outbound.name() == *inbound.outbound);
        let way = way.expect("inbounds name outbounds of the configuration");
        let Leaf { outbound, packets, .. } = way.clone();
        let access = Access::new(&self.config, inbound, self.past.as_ref());
        let datagrams = packets.map(|packets| inbound::Datagrams {
            routes: Rc::new(PacketRoutes::new(packets, access.clone())),
            udp: self.udp.clone(),
            scratch: self.scratch.clone(),
        });
        Surroundings {
            metrics,
            outbound,
            core: self.core.clone(),
            guard: self.guard.clone(),
            active: self.active.clone(),
            datagrams,
            access,
            pacer,
        }
    }

    /// Runs an inbound on its sockets until `stop`; `alive` is dropped with the last of them.
    pub(crate) fn serve(
        &self,
        inbound: &Rc<Inbound>,
        sockets: Sockets,
        stop: &Stop,
        alive: Option<mpsc::Sender<()>>,
    ) {
        let tcp = sockets.listeners.into_iter().map(|(_, listener)| Acceptor::from_std(listener));
        let unix = sockets.unix.into_iter().map(|(_, listener)| Acceptor::from_local(listener));
        for acceptor in tcp.chain(unix) {
            let (inbound, stop, alive) = (inbound.clone(), stop.clone(), alive.clone());
            match acceptor {
                Ok(acceptor) => rt::spawn_local(async move {
                    inbound.run(acceptor, stop).await;
                    drop(alive);
                }),
                Err(error) => tracing::error!(inbound = &*inbound.name, %error, "listener lost"),
            }
        }
        for (_, socket, exchange) in sockets.datagrams {
            let (inbound, exchange) = (inbound.clone(), (exchange, self.index));
            let (stop, alive) = (stop.clone(), alive.clone());
            rt::spawn_local(async move {
                Box::pin(inbound.run_datagrams(socket, exchange, stop)).await;
                drop(alive);
            });
        }
    }

    /// Every table of connections.
    pub(crate) fn each_table(&self, mut action: impl FnMut(&Conns)) {
        action(&self.core.conns);
        self.open.borrow().iter().for_each(|port| action(&port.conns));
    }

    /// Follows orders until the process drains; ports that are open accept nothing from then on.
    pub(crate) async fn follow(self: Rc<Self>, mut orders: Orders<Order>, mut stop: Stop) {
        let follow = async {
            while let Some(order) = orders.next().await {
                match order {
                    Order::Open(opening) => self.open(*opening),
                    Order::Close(id) => self.close(id),
                }
            }
        };
        rt::race(stop.draining(), follow).await;
        for port in &*self.open.borrow() {
            port.stopper.drain();
        }
        // Ports may still be closed while connections finish, each at a time of its own.
        while let Some(order) = orders.next().await {
            if let Order::Close(id) = order {
                self.close(id);
            }
        }
    }

    fn open(&self, opening: Opening) {
        let Opening { id, inbound: model, shared, sockets, pacer, metrics, alive } = opening;
        let conns = Rc::new(Conns::default());
        let core = Rc::new(CoreContext {
            pool: self.core.pool.clone(),
            conns: conns.clone(),
            log_destinations: self.core.log_destinations,
        });
        let around = Surroundings { core, ..self.around(&model, pacer, metrics) };
        let inbound = Rc::new(Inbound::new(&model, &shared, around));
        let (stopper, stop) = Stopper::new();
        self.serve(&inbound, sockets, &stop, Some(alive));
        self.open.borrow_mut().push(OpenPort { id, conns, stopper });
    }

    fn close(&self, id: u64) {
        let mut open = self.open.borrow_mut();
        let Some(at) = open.iter().position(|port| port.id == id) else { return };
        open.swap_remove(at).conns.cut();
    }
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, id) = match self {
            Self::Open(opening) => ("Open", opening.id),
            Self::Close(id) => ("Close", *id),
        };
        f.debug_tuple(name).field(&id).finish()
    }
}
