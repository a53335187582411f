//! The engine's record of each inbound and outbound, over all cores.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use adit_model::{self as model, Config};
use adit_net::handover::{Kept, Kind};
use adit_net::pace::Pacer;
use adit_net::plugin::Plugins;

use super::command::{AddOutbound, LoopCommand, OpenInboundCommand, PartSockets};
use super::sockets::{self, InboundSockets, ListenTerms, Sockets, Wanted, wanted_by};
use super::{Engine, StartError, State};
use crate::carrier;
use crate::counters::{InboundMetrics, OutboundMetrics};
use crate::errors::ConfigPart;
use crate::listener;
use crate::observe::status::{InboundView, OutboundView};
use crate::protocols::registry;

/// A closed inbound's sockets are waited for so long; a core that is stuck has worse troubles.
const CLOSED: Duration = Duration::from_secs(5);

/// An inbound, from when its sockets are bound until they are free again.
#[derive(Debug)]
pub(super) struct RunningInbound {
    pub(super) id: u64,
    pub(super) model: Arc<model::Inbound>,
    /// Whether it listens for datagrams.
    pub(super) takes: bool,
    pub(super) shared: registry::InboundShared,
    pub(super) parts: Vec<ListeningPart>,
    /// One for each core.
    pub(super) metrics: Arc<[Arc<InboundMetrics>]>,
    pub(super) pacer: Option<Arc<Pacer>>,
    pub(super) carrier: Option<listener::CarrierOptions>,
    plugins: Option<Plugins>,
}

/// The sockets of one address of an inbound, or those of its interface and its unix socket.
#[derive(Debug)]
pub(super) struct ListeningPart {
    pub(super) id: u64,
    /// The address as the configuration has it.
    pub(super) wanted: Option<Wanted>,
    pub(super) addresses: Vec<SocketAddr>,
    /// Copies of its sockets for the next process; none once it drains.
    pub(super) kept: Vec<Kept>,
    /// Hung up once no socket is left.
    closed: mpsc::Receiver<()>,
}

impl ListeningPart {
    /// Waits until its sockets are free, which cores have been told to close.
    pub(super) fn wait(self) {
        drop(self.kept);
        if self.closed.recv_timeout(CLOSED) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(addresses = ?self.addresses, "a closed inbound still holds its sockets");
        }
    }
}

/// A part of an inbound that is ready to be served, with each core's sockets.
pub(super) struct BoundPart {
    pub(super) part: ListeningPart,
    sockets: Vec<Sockets>,
    alive: mpsc::Sender<()>,
    pub(super) warnings: Vec<String>,
}

impl BoundPart {
    pub(super) fn new(engine: &Engine, listening: InboundSockets) -> Self {
        let InboundSockets { wanted, sockets, addresses, warnings, kept } = listening;
        let (alive, closed) = mpsc::channel();
        let part = ListeningPart { id: engine.next_id(), wanted, addresses, kept, closed };
        Self { part, sockets, alive, warnings }
    }

    /// The part, and what each core is to serve.
    pub(super) fn split(self) -> (ListeningPart, Vec<PartSockets>) {
        let Self { part, sockets, alive, .. } = self;
        let serve = |sockets| PartSockets { part: part.id, sockets, alive: alive.clone() };
        let all = sockets.into_iter().map(serve).collect();
        (part, all)
    }
}

/// An inbound that is ready to be served, and each core's sockets.
pub(super) struct Prepared {
    pub(super) held: RunningInbound,
    /// By part, then by core.
    serve: Vec<Vec<PartSockets>>,
    pub(super) warnings: Vec<String>,
}

/// The counters of an inbound, of all event loops.
type AllMetrics = Arc<[Arc<InboundMetrics>]>;

impl Prepared {
    /// Binds what `model` listens on, counting in the place of one of its name if there was one.
    ///
    /// # Errors
    /// When an address cannot be had or a part cannot be built.
    pub(super) fn new(
        engine: &Engine,
        model: Arc<model::Inbound>,
        config: &Config,
        state: &State,
        metrics: Option<AllMetrics>,
        beside: &Arc<[u64]>,
    ) -> Result<Self, StartError> {
        let build = |source| StartError::Build { name: model.name.clone(), source };
        let takes = takes(&model, config).map_err(build)?;
        let mut plugins = engine.plugins(config, ConfigPart::Inbound);
        let cores = engine.cores();
        let terms = ListenTerms { takes, cores, beside };
        let listening = sockets::listen(&model, &terms, &mut plugins)?;
        let shared = registry::InboundShared::new(&model, &state.ledger(), &state.salts()).map_err(build)?;
        let carrier = listener::CarrierOptions::new(&model, engine.streams(), cores, engine.memory.most());
        let carrier = carrier.map_err(build)?;
        let bound: Vec<BoundPart> =
            listening.into_iter().map(|listening| BoundPart::new(engine, listening)).collect();
        let mut warnings: Vec<String> = bound.iter().flat_map(|bound| bound.warnings.clone()).collect();
        warnings.extend(registry::inbound_warnings(&model));
        let (parts, serve) = bound.into_iter().map(BoundPart::split).unzip();
        let held = RunningInbound {
            id: engine.next_id(),
            takes,
            shared,
            parts,
            metrics: metrics.unwrap_or_else(|| (0..cores).map(|_| Arc::default()).collect()),
            pacer: model.socket.pace.map(|pace| Arc::new(Pacer::new(pace))),
            carrier,
            plugins: Some(plugins),
            model,
        };
        Ok(Self { held, serve, warnings })
    }

    /// Adds the inbound to what each core is told.
    pub(super) fn open(self, orders: &mut [LoopCommand]) -> RunningInbound {
        let Self { held, serve, .. } = self;
        let mut serve: Vec<_> = serve.into_iter().map(Vec::into_iter).collect();
        for (order, metrics) in orders.iter_mut().zip(held.metrics.iter()) {
            order.open.push(OpenInboundCommand {
                id: held.id,
                model: held.model.clone(),
                shared: held.shared.clone(),
                serve: serve.iter_mut().filter_map(Iterator::next).collect(),
                pacer: held.pacer.clone(),
                carrier: held.carrier.clone(),
                metrics: metrics.clone(),
            });
        }
        held
    }
}

/// Whether `model` listens for datagrams: where its outbound carries them.
///
/// # Errors
/// When it is of no use without them.
pub(super) fn takes(model: &model::Inbound, config: &Config) -> std::io::Result<bool> {
    let carries = config.carries_datagrams(&model.outbound);
    if model.needs_datagrams() && !model.answers_datagrams() && !carries {
        let kind = std::io::ErrorKind::Unsupported;
        return Err(std::io::Error::new(kind, "its outbound carries no datagrams"));
    }
    Ok(carries && model.takes_datagrams() || model.answers_datagrams())
}

impl RunningInbound {
    /// Ends its connections and listeners. Its addresses are free afterwards.
    pub(super) fn close(mut self, engine: &Engine) {
        // A plugin listens in the inbound's place.
        drop(self.plugins.take());
        self.parts.iter_mut().for_each(|part| part.kept.clear());
        engine.tell(|_| LoopCommand { close: vec![self.id], ..LoopCommand::default() });
        self.parts.into_iter().for_each(ListeningPart::wait);
    }

    /// The addresses that it listens on.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.parts.iter().flat_map(|part| part.addresses.iter().copied()).collect()
    }

    /// Copies of its sockets for the next process.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Kept> {
        self.parts.iter().flat_map(|part| &part.kept)
    }

    /// Takes out the parts with these numbers, which close.
    pub(super) fn take_parts(&mut self, numbers: &[u64]) -> Vec<ListeningPart> {
        let mut left: Vec<ListeningPart> =
            self.parts.extract_if(.., |part| numbers.contains(&part.id)).collect();
        // Cores close their own copies, and connections that come later would meet nobody here.
        left.iter_mut().for_each(|part| part.kept.clear());
        left
    }

    /// Whether it listens on all addresses of its model, and on no other.
    pub(super) fn listens_as(&self, model: &model::Inbound) -> bool {
        let held: BTreeSet<Wanted> = self.parts.iter().filter_map(|part| part.wanted).collect();
        held == wanted_by(model).into_iter().collect()
    }

    /// The name of its interface, if somebody has removed that.
    pub(super) fn lost_interface(&self) -> Option<&str> {
        let mut files = self.kept().filter(|kept| kept.label().kind == Kind::Interface);
        files.any(|file| adit_net::tun::check(file).is_err()).then(|| self.model.interface_name())?
    }

    /// Plugins that end from now on are not started again, and its sockets end with the cores' own.
    pub(super) fn drain(&mut self) {
        self.parts.iter_mut().for_each(|part| part.kept.clear());
        self.plugins.iter().for_each(Plugins::drain);
    }

    pub(super) fn view(&self) -> InboundView {
        InboundView {
            name: self.model.name.clone(),
            protocol: self.model.protocol.kind(),
            listen: self.addresses(),
            outbound: self.model.outbound.clone(),
            metrics: self.metrics.clone(),
            users: self.shared.users(),
            sources: self.shared.sources(),
            carrier: self.carrier.as_ref().map(|carrier| carrier.metrics().clone()),
        }
    }
}

/// An outbound.
#[derive(Debug)]
pub(super) struct RunningOutbound {
    pub(super) model: Arc<model::Outbound>,
    pub(super) shared: Arc<registry::OutboundShared>,
    /// One for each core.
    pub(super) metrics: Arc<[Arc<OutboundMetrics>]>,
    carrier: Option<Arc<carrier::CarrierShared>>,
    pacer: Option<Arc<Pacer>>,
    pub(super) plugins: Plugins,
}

impl RunningOutbound {
    /// Builds what all cores share of `model`, counting in the place of one of its name if there was one.
    ///
    /// # Errors
    /// When a part cannot be built.
    pub(super) fn new(
        engine: &Engine,
        model: &model::Outbound,
        config: &Config,
        metrics: Option<Arc<[Arc<OutboundMetrics>]>>,
    ) -> Result<Self, StartError> {
        let build = |source| StartError::Build { name: model.name.clone(), source };
        let mut plugins = engine.plugins(config, ConfigPart::Outbound);
        let shared = if let model::OutboundProtocol::Choice(choice) = &model.protocol {
            engine.choice(&model.name, choice, config)
        } else {
            registry::OutboundShared::new(model, config, &mut plugins).map_err(build)?
        };
        let carrier = carrier::for_outbound(model, engine.streams()).map_err(build)?;
        let cores = engine.cores();
        Ok(Self {
            model: Arc::new(model.clone()),
            shared: Arc::new(shared),
            metrics: metrics.unwrap_or_else(|| (0..cores).map(|_| Arc::default()).collect()),
            carrier,
            pacer: model.dial.pace.map(|pace| Arc::new(Pacer::new(pace))),
            plugins,
        })
    }

    /// Adds the outbound to what each core is told.
    pub(super) fn put(&self, orders: &mut [LoopCommand]) {
        for (order, metrics) in orders.iter_mut().zip(self.metrics.iter()) {
            order.put.push(AddOutbound {
                model: self.model.clone(),
                shared: self.shared.clone(),
                metrics: metrics.clone(),
                carrier: self.carrier.clone(),
                pacer: self.pacer.clone(),
            });
        }
    }

    pub(super) fn view(&self) -> OutboundView {
        OutboundView {
            name: self.model.name.clone(),
            protocol: self.model.protocol.kind(),
            server: self.model.dialled_server().map(ToString::to_string),
            metrics: self.metrics.clone(),
            carrier: self.carrier.as_ref().map(|carrier| carrier.metrics.clone()),
        }
    }
}
