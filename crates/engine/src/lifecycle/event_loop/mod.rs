//! One core: its inbounds and outbounds, by name, and how it follows orders.

mod listed;

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use adit_model::codes;
use adit_model::map::Map;
use adit_model::{self as model, Config, Tag};
use adit_net::accept::Acceptor;
use adit_net::handover::{self, Label};
use adit_net::pace::Pacer;
use adit_net::reach::Reach;
use adit_net::rt::{self, Orders, Pool, Stop, Stopper};
use adit_net::steer::{AcceptBalancer, AcceptTurns, LEAD};
use adit_net::udp::divert::{Passing, Switch};

use super::Extensions;
use super::command::{AddOutbound, HandOver, LoopCommand, OpenInboundCommand, PartSockets, Relisten, Update};
use super::jobs::Tools;
use super::sockets::{DatagramSocket, MakeLink, Sockets};
use crate::admission::guard::Guard;
use crate::admission::{Budget, Places};
use crate::carrier;
use crate::connections::listing::Ask;
use crate::connections::refusal_log::RefusalLog;
use crate::connections::table::{Conns, Patience, TICK};
use crate::counters::InboundMetrics;
use crate::datagram::rebind::{Reader, Rebind};
use crate::datagram::{PacketOutbound, Renewal, SessionOwners, SharedScratch};
use crate::dns::{self, Dns};
use crate::errors::{ConfigPart, Fault, Faults, Tell};
use crate::groups::best::{Check, Group, GroupPackets};
use crate::groups::choice::{Board, Choice, ChoicePackets, ChoiceShared, Tester};
use crate::listener::{self, ActiveInbound, InboundDeps, InboundSlot};
use crate::observe::loop_lag::LoopLag;
use crate::outbound::{self, Connector, OutboundDeps, Through};
use crate::protocols::registry;
use crate::routing::{self, Router};
use crate::stream::{Associations, CoreContext, OutboundHandle, Outbounds, RouteContext};

/// While draining, a connection that has not authenticated is waited for this long: it is no download.
const UNAUTHENTICATED: Duration = Duration::from_secs(1);
/// Time for the last connections to be reset when the process ends.
const CUT: Duration = Duration::from_millis(100);
/// Failures of one source in a minute from which on it is more likely a client with a wrong key than a scan.
const REPEATED: u32 = 3;

/// The parts that a core thread is built from; they cross threads once.
pub(super) struct Plan {
    pub(super) common: Common,
    pub(super) orders: Orders<LoopCommand>,
    /// Questions about its connections.
    pub(super) asks: Orders<Ask>,
    /// The number of this core.
    pub(super) index: usize,
}

/// The parts that all cores have in common.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) config: Arc<Config>,
    pub(super) memory: Arc<carrier::Memory>,
    pub(super) budget: Arc<Budget>,
    pub(super) refusals: RefusalLog,
    pub(super) dns: Arc<dns::DnsShared>,
    pub(super) faults: Arc<Faults>,
    /// The beats of all cores.
    pub(super) pulses: Arc<[LoopLag]>,
    /// When the process started.
    pub(super) since: Instant,
    pub(super) board: Arc<Board>,
    /// The number of cores.
    pub(super) count: usize,
    pub(super) extensions: Extensions,
    /// The turns in which they take new connections.
    pub(super) turns: Arc<AcceptTurns>,
}

/// The inbounds and outbounds of one core.
struct EventLoop {
    index: usize,
    count: usize,
    extensions: Extensions,
    config: RefCell<Arc<Config>>,
    pool: Pool,
    dns: Rc<Dns>,
    tester: Rc<Tester>,
    guard: Rc<Guard>,
    places: Rc<Places>,
    refusals: RefusalLog,
    active: Rc<Cell<usize>>,
    helm: Rc<AcceptBalancer>,
    carrier: carrier::Context,
    scratch: SharedScratch,
    outbounds: Rc<Outbounds>,
    /// The outbound `direct` of access lists, if it is there.
    direct: RefCell<Option<model::Outbound>>,
    through: Rc<Through>,
    router: RefCell<Arc<Router>>,
    udp: Rc<model::Udp>,
    /// By the numbers that the engine gives.
    inbounds: RefCell<Map<u64, OpenInbound>>,
    /// The tasks that compare the members of each group, on the first core; a task ends when its entry is dropped.
    probers: RefCell<Map<Tag, Stopper>>,
    /// Time for connections to finish, where another process has taken over.
    drain: Cell<Option<Duration>>,
    /// The groups whose members are chosen.
    choices: Rc<RefCell<Map<Tag, Arc<ChoiceShared>>>>,
    /// The tasks that test the entries of lists, on the first core, with the lists as they were when a task began.
    listed: RefCell<Map<Tag, (model::Provider, Stopper)>>,
}

/// A socket for datagrams, with what the cores of its address share.
type Renewable = (Rc<Renewal>, (Arc<SessionOwners>, usize));

/// An inbound on one core.
struct OpenInbound {
    model: Arc<model::Inbound>,
    slot: InboundSlot,
    live: Rc<RouteContext>,
    core: Rc<CoreContext>,
    metrics: Arc<InboundMetrics>,
    pacer: Option<Arc<Pacer>>,
    carrier: Option<listener::CarrierOptions>,
    /// Its sockets, by the numbers that the engine gives.
    parts: Map<u64, OpenPart>,
    /// Parts that close, whose tasks have still to hear of it.
    leaving: Vec<OpenPart>,
    /// Datagrams of clients that had been refused a second ago: those of wrong keys, and of clocks that are off.
    refused: Cell<[u64; 2]>,
}

/// The sockets of one address of an inbound, or those of its interface and its unix socket, on one core.
#[derive(Default)]
struct OpenPart {
    /// End its listeners, and the readers of its datagrams.
    stoppers: Vec<Stopper>,
    readers: Vec<Stopper>,
    /// Of each of its sockets for datagrams, with what the cores of its address share.
    renewals: Vec<Renewable>,
    /// Of each of its sockets for datagrams that may have a successor.
    rebinds: Vec<Rc<Rebind>>,
    /// Of each of its sockets for datagrams that another process may read, with its purpose.
    switches: Vec<(Label, Rc<Switch>)>,
}

impl OpenPart {
    fn each(&self, action: fn(&Stopper)) {
        self.stoppers.iter().chain(&self.readers).for_each(action);
    }
}

impl OpenInbound {
    fn switches(&self) -> impl Iterator<Item = &(Label, Rc<Switch>)> {
        self.parts.values().flat_map(|part| &part.switches)
    }

    fn answer(&self, ask: &Ask) {
        let conns = &self.core.conns;
        // Nobody may wait for the answer any more, which is no matter.
        match ask {
            Ask::List { most, parts } => drop(parts.send(conns.list(&self.model.name, *most, rt::now()))),
            Ask::Kick { of, counts } => drop(counts.send(conns.kick(of))),
        }
        let renewals = self.parts.values().flat_map(|part| &part.renewals);
        renewals.for_each(|(renewal, _)| renewal.ask(ask.clone()));
        self.core.associations.ask(ask);
    }
}

/// A core's part of a bound on connections. One core takes all of them until it is ahead by [`LEAD`].
fn part(bound: usize, count: usize) -> usize {
    bound.div_ceil(count).max(bound.min(LEAD))
}

/// Runs a core until `stop`.
pub(super) async fn run(plan: Plan, stop: Stop) {
    let Plan { common, orders, asks, index } = plan;
    let Common {
        config,
        memory,
        budget,
        refusals,
        dns,
        faults,
        pulses,
        since,
        board,
        count,
        extensions,
        turns,
    } = common;
    let beat = Beat { pulses, since, index };
    let [total, per_source] = budget.bounds();
    let places = Rc::new(Places::new(budget, index));
    let guard = Guard::new(part(total, count), part(per_source, count), places.clone(), rt::now());
    let active = Rc::new(Cell::new(0));
    let (pool, dns, outbounds) =
        (pool_of(&places, count), Dns::new(dns), Rc::new(Outbounds::new(registry::nowhere(), faults)));
    let through = Rc::new(Through::new(outbounds.clone(), pool.clone()));
    dns.set_streams(through.clone());
    let tester = Rc::new(Tester::new(outbounds.clone(), dns.clone(), board));
    let site = Rc::new(EventLoop {
        index,
        count,
        extensions,
        pool,
        dns,
        tester,
        guard: Rc::new(guard),
        places: places.clone(),
        refusals,
        carrier: carrier::Context::new(active.clone(), memory),
        helm: Rc::new(AcceptBalancer::new(turns, index, active.clone(), rt::now())),
        active,
        scratch: SharedScratch::default(),
        outbounds,
        direct: RefCell::default(),
        through,
        router: RefCell::default(),
        udp: Rc::new(config.udp.clone()),
        inbounds: RefCell::default(),
        probers: RefCell::default(),
        drain: Cell::default(),
        choices: Rc::default(),
        listed: RefCell::default(),
        config: RefCell::new(config),
    });
    rt::spawn_local(site.clone().follow(orders, stop.clone()));
    rt::spawn_local(site.clone().answer(asks));
    rt::spawn_local(keep_house(site.clone(), beat.clone()));
    rt::spawn_local(places.follow());
    let end = End(beat);
    Box::pin(wait_for_end(&site, stop)).await;
    report(site.guard.take_rest());
    site.dns.clear_streams();
    drop(end);
}

/// The beat of this core.
#[derive(Clone)]
struct Beat {
    pulses: Arc<[LoopLag]>,
    since: Instant,
    index: usize,
}

impl Beat {
    fn beat(&self, now: Instant, late: Duration) {
        self.pulses[self.index].beat(self.since, now, late);
    }
}

/// Says that the core has ended, even by a panic.
struct End(Beat);

impl Drop for End {
    fn drop(&mut self) {
        self.0.pulses[self.0.index].end();
    }
}

impl EventLoop {
    /// Follows orders until the process drains; from then on nothing is opened.
    async fn follow(self: Rc<Self>, mut orders: Orders<LoopCommand>, mut stop: Stop) {
        let follow = async {
            while let Some(order) = orders.next().await {
                self.obey(order);
            }
        };
        rt::race(stop.draining(), follow).await;
        let drain = |inbound: &OpenInbound| inbound.parts.values().for_each(|part| part.each(Stopper::drain));
        self.inbounds.borrow().values().for_each(drain);
        // Inbounds may still be closed while connections finish, each at a time of its own.
        while let Some(order) = orders.next().await {
            order.close.into_iter().for_each(|id| self.close(id));
        }
    }

    /// Answers questions about connections, for as long as there are any.
    async fn answer(self: Rc<Self>, mut asks: Orders<Ask>) {
        while let Some(ask) = asks.next().await {
            for inbound in self.inbounds.borrow().values() {
                inbound.answer(&ask);
            }
        }
    }

    fn obey(&self, order: LoopCommand) {
        let LoopCommand {
            config,
            names,
            put,
            remove,
            open,
            update,
            relisten,
            close,
            hand_over,
            drain,
            jobs,
            done,
        } = order;
        let is_other = config.is_some();
        if let Some((config, router)) = config {
            let [total, per_source] = self.places.budget().follow(&config.limits);
            self.guard.set_bounds(part(total, self.count), part(per_source, self.count));
            self.through.follow(router.clone());
            self.router.replace(router);
            self.config.replace(config);
        }
        if let Some(names) = names {
            self.dns.follow(names);
        }
        put.into_iter().for_each(|put| self.put(put));
        close.into_iter().for_each(|id| self.close(id));
        let mut renewed = Vec::new();
        for update in update {
            renewed.extend(self.update(update));
        }
        relisten.into_iter().for_each(|relisten| self.relisten(relisten));
        open.into_iter().for_each(|opening| self.open(opening));
        for (id, inbound) in self.inbounds.borrow_mut().iter_mut() {
            self.refresh(inbound, is_other, renewed.contains(id));
        }
        for name in remove {
            self.outbounds.remove(&name);
            self.probers.borrow_mut().remove(&name);
            self.choices.borrow_mut().remove(&name);
        }
        if is_other {
            self.put_direct();
            self.check_lists();
        }
        if drain.is_some() {
            self.drain.set(drain);
        }
        if let Some(hand_over) = hand_over {
            self.hand_over(&hand_over);
        }
        for job in jobs {
            job(self.tools());
        }
        drop(done);
    }

    fn hand_over(&self, hand_over: &HandOver) {
        let inbounds = self.inbounds.borrow();
        let switches = inbounds.values().flat_map(OpenInbound::switches);
        match hand_over {
            HandOver::Undo => switches.for_each(|(_, switch)| switch.undo()),
            HandOver::Pass(numbers, reply, count) => {
                for (label, switch) in switches {
                    let Some(number) = numbers.get(label) else { continue };
                    count.fetch_add(1, Ordering::AcqRel);
                    match Passing::new(*number, reply.clone()) {
                        Ok(passing) => switch.pass(passing),
                        Err(error) => tracing::error!(%error, "a socket cannot be handed over"),
                    }
                }
            }
        }
    }

    /// Clients whose datagrams another process passes on.
    fn left(&self) -> usize {
        let inbounds = self.inbounds.borrow();
        inbounds.values().flat_map(OpenInbound::switches).map(|(_, switch)| switch.left()).sum()
    }

    /// The parts of this core that jobs use.
    fn tools(&self) -> Tools {
        Tools {
            outbounds: self.outbounds.clone(),
            dns: self.dns.clone(),
            tester: self.tester.clone(),
            router: self.router.borrow().clone(),
        }
    }

    fn put(&self, put: AddOutbound) {
        let AddOutbound { model, shared, metrics, carrier, pacer } = put;
        let config = self.config.borrow().clone();
        let name = model.name.clone();
        let around = OutboundDeps { model: &model, udp: &config.udp, pool: &self.pool, dns: &self.dns };
        let leaf = match &*shared {
            registry::OutboundShared::Group(shared) => {
                let members = self.outbounds.clone();
                let group = Group::new(shared.clone(), members, &config.udp, &self.pool, &self.dns);
                let group = Rc::new(group);
                self.compare(&name, &group);
                let packets = config
                    .carries_datagrams(&name)
                    .then(|| Rc::new(GroupPackets::new(group.clone())) as Rc<dyn PacketOutbound>);
                OutboundHandle { outbound: group, packets }
            }
            registry::OutboundShared::Choice(shared) => {
                let group = Rc::new(Choice::new(shared.clone(), self.outbounds.clone()));
                self.check(&name, &group);
                self.choices.borrow_mut().insert(name.clone(), shared.clone());
                let packets = ChoicePackets::new(group.clone(), &self.dns);
                OutboundHandle { outbound: group, packets: Some(Rc::new(packets)) }
            }
            registry::OutboundShared::Outbound(factory) => {
                let client = |shared| {
                    let (place, streams) =
                        ((self.index, self.count), self.extensions.packet_streams.as_deref());
                    outbound::carrier_client(&model, shared, place, self.carrier.clone(), streams)
                };
                self.probers.borrow_mut().remove(&name);
                let carrier = carrier.and_then(client);
                factory.on_core(Connector::new(&model, metrics, carrier, pacer, &self.dns), &around)
            }
        };
        // Some ways lead streams alone: other datagrams are refused, and take no other way.
        let carries = !model.dial.takes_streams_alone() || model.has_datagrams_in_streams();
        let packets = leaf.packets.filter(|_| carries);
        self.outbounds.put(name, OutboundHandle { packets, ..leaf });
    }

    /// Compares the members of a group, on one core for all.
    fn compare(&self, name: &Tag, group: &Rc<Group>) {
        if self.index != 0 {
            return;
        }
        // It was read before, when the group was made.
        let Ok(check) = Check::new(group.shared().check()) else { return };
        let (stopper, mut stop) = Stopper::new();
        let (group, pool) = (group.clone(), self.pool.clone());
        rt::spawn_local(async move {
            rt::race(stop.draining(), Box::pin(crate::groups::best::run(group, check, pool))).await;
        });
        self.probers.borrow_mut().insert(name.clone(), stopper);
    }

    /// Tests the members of a group, on one core for all.
    fn check(&self, name: &Tag, group: &Rc<Choice>) {
        if self.index != 0 {
            return;
        }
        let (stopper, mut stop) = Stopper::new();
        let (group, tester) = (group.clone(), self.tester.clone());
        rt::spawn_local(async move {
            rt::race(stop.draining(), Box::pin(crate::groups::choice::check_group(group, tester))).await;
        });
        self.probers.borrow_mut().insert(name.clone(), stopper);
    }

    fn open(&self, opening: OpenInboundCommand) {
        let OpenInboundCommand { id, model, shared, serve, pacer, carrier, metrics } = opening;
        let core = Rc::new(CoreContext {
            pool: self.pool.clone(),
            conns: Rc::new(Conns::new(&self.places)),
            places: self.places.clone(),
            log_destinations: Cell::new(self.config.borrow().log.destinations),
            associations: Associations::default(),
            refusals: self.refusals.clone(),
        });
        let live = Rc::new(RouteContext::new(
            &model,
            self.outbounds.clone(),
            self.router.borrow().clone(),
            self.dns.clone(),
        ));
        live.set_reach(reach_of(&model));
        let around = self.around(&live, &core, &metrics, pacer.clone());
        let slot: InboundSlot =
            Rc::new(RefCell::new(Rc::new(ActiveInbound::new(model.name.clone(), shared.on_core(), around))));
        live.leaf().outbound.begin_use();
        let refused = Cell::new(refused_datagrams(&metrics));
        let (parts, leaving) = (Map::new(), Vec::new());
        let mut inbound =
            OpenInbound { model, slot, live, core, metrics, pacer, carrier, parts, leaving, refused };
        // Packets that come by streams belong to no socket.
        let mut links = inbound.carrier.as_ref().and_then(|beneath| beneath.link(self.index));
        for PartSockets { part, sockets, alive } in serve {
            let mut open = OpenPart::default();
            if let Some(link) = links.take() {
                self.carry(&inbound, &mut open, None, Box::new(|| Ok(link)), &alive);
            }
            self.serve(&inbound, &mut open, sockets, &alive, None);
            inbound.parts.insert(part, open);
        }
        self.inbounds.borrow_mut().insert(id, inbound);
    }

    /// Has an inbound listen elsewhere. Its connections go on, and so do its flows and sessions where the port is the same.
    fn relisten(&self, relisten: Relisten) {
        let Relisten { id, open, close } = relisten;
        let mut inbounds = self.inbounds.borrow_mut();
        let Some(inbound) = inbounds.get_mut(&id) else { return };
        inbound.leaving.clear();
        for (PartSockets { part, sockets, alive }, before) in open {
            let mut before =
                before.and_then(|before| inbound.parts.remove(&before).map(|part| (before, part)));
            let mut open = OpenPart::default();
            let old = before.as_mut().map(|(_, part)| part);
            self.serve(inbound, &mut open, sockets, &alive, old);
            inbound.parts.insert(part, open);
            inbound.parts.extend(before);
        }
        for part in close {
            let Some(part) = inbound.parts.remove(&part) else { continue };
            // Sessions of a carrier would keep its socket open.
            let has_sessions = inbound.carrier.is_some();
            part.each(if has_sessions { Stopper::end } else { Stopper::drain });
            inbound.leaving.push(part);
        }
    }

    /// Serves the sessions of a carrier that come by a link, until the part ends.
    fn carry(
        &self,
        inbound: &OpenInbound,
        part: &mut OpenPart,
        label: Option<Label>,
        link: MakeLink,
        alive: &mpsc::Sender<()>,
    ) {
        let Some(beneath) = inbound.carrier.clone() else { return };
        let (stopper, stop) = Stopper::new();
        let (switch, rebind) = (Rc::new(Switch::default()), Rebind::new(alive.clone()));
        if let Some(label) = label {
            part.switches.push((label, switch.clone()));
            part.rebinds.push(rebind.clone());
        }
        part.readers.push(stopper);
        let (slot, context, reader) = (inbound.slot.clone(), self.carrier.clone(), Reader(rebind.clone()));
        rt::spawn_local(async move {
            listener::accept_carried(slot, beneath, context, link, stop, switch, rebind).await;
            drop(reader);
        });
    }

    /// Makes the direct outbound that the configuration implies, and keeps it while its options are the same.
    fn put_direct(&self) {
        let config = self.config.borrow().clone();
        let Some(model) = routing::implied_direct(&config) else {
            self.direct.take();
            return;
        };
        if self.direct.borrow().as_ref() == Some(&model) {
            return;
        }
        let around = OutboundDeps { model: &model, udp: &config.udp, pool: &self.pool, dns: &self.dns };
        let leaf = registry::direct(Connector::new(&model, Arc::default(), None, None, &self.dns), &around);
        self.outbounds.put(model.name.clone(), leaf);
        self.direct.replace(Some(model));
    }

    fn around(
        &self,
        live: &Rc<RouteContext>,
        core: &Rc<CoreContext>,
        metrics: &Arc<InboundMetrics>,
        pacer: Option<Arc<Pacer>>,
    ) -> InboundDeps {
        InboundDeps {
            metrics: metrics.clone(),
            live: live.clone(),
            core: core.clone(),
            guard: self.guard.clone(),
            active: self.active.clone(),
            udp: self.udp.clone(),
            scratch: self.scratch.clone(),
            pacer,
        }
    }

    /// Takes the listeners of an inbound whose connections bring the packets of a carrier, and serves them until `stop`.
    fn serve_packets(
        &self,
        inbound: &OpenInbound,
        sockets: &mut Sockets,
        stop: &Stop,
        alive: &mpsc::Sender<()>,
    ) {
        let Some(beneath) = inbound.carrier.as_ref().filter(|beneath| beneath.takes_streams()) else {
            return;
        };
        for (listener, _) in std::mem::take(&mut sockets.listeners) {
            let (slot, beneath, at) = (inbound.slot.clone(), beneath.clone(), self.index);
            let (stop, alive) = (stop.clone(), alive.clone());
            rt::spawn_local(async move {
                listener::accept_packets(slot, beneath, at, listener, stop).await;
                drop(alive);
            });
        }
    }

    /// Runs an inbound on the `sockets` of one of its parts until that ends; `alive` is dropped with the last of them. The
    /// readers of datagrams of the part `before` go over to them, where there are as many.
    fn serve(
        &self,
        inbound: &OpenInbound,
        part: &mut OpenPart,
        mut sockets: Sockets,
        alive: &mpsc::Sender<()>,
        before: Option<&mut OpenPart>,
    ) {
        let (stopper, stop) = Stopper::new();
        part.stoppers.push(stopper);
        self.serve_packets(inbound, &mut sockets, &stop, alive);
        let mut before = before.filter(|before| {
            let count = sockets.datagrams.len() + sockets.carriers.len();
            count > 0 && before.rebinds.len() == count
        });
        if let Some(before) = &mut before {
            go_over(before, part, &mut sockets, alive);
        }
        let slot = &inbound.slot;
        for (label, link) in sockets.take_links() {
            self.carry(inbound, part, label, link, alive);
        }
        let tcp = sockets.listeners.into_iter().map(|(socket, group)| {
            Acceptor::from_std(socket).map(|acceptor| acceptor.steered(&self.helm, group))
        });
        let unix = sockets.unix.into_iter().map(Acceptor::from_local);
        for acceptor in tcp.chain(unix) {
            let (slot, stop, alive) = (slot.clone(), stop.clone(), alive.clone());
            match acceptor {
                Ok(acceptor) => rt::spawn_local(async move {
                    listener::accept(slot, acceptor, stop).await;
                    drop(alive);
                }),
                Err(error) => {
                    tracing::error!(inbound = &*slot.borrow().inbound().name, %error, "listener lost")
                }
            }
        }
        if let Some((device, listening)) = sockets.device {
            let (current, stop, alive) = (slot.borrow().clone(), stop.clone(), alive.clone());
            let renewal = Rc::new(Renewal::default());
            part.switches.push((device.label(), renewal.switch.clone()));
            rt::spawn_local(async move {
                Box::pin(current.run_device((device, listening), renewal, stop)).await;
                drop(alive);
            });
        }
        for datagrams in sockets.datagrams {
            self.read(slot, part, datagrams, alive);
        }
    }

    /// Reads a socket for datagrams until its part ends, or it has a successor.
    fn read(
        &self,
        slot: &InboundSlot,
        part: &mut OpenPart,
        datagrams: DatagramSocket,
        alive: &mpsc::Sender<()>,
    ) {
        let DatagramSocket { socket, label, exchange } = datagrams;
        let (stopper, stop) = Stopper::new();
        part.readers.push(stopper);
        let current = slot.borrow().clone();
        let rebind = Rebind::new(alive.clone());
        let reader = Reader(rebind.clone());
        let socket = match current.answer(socket, (stop.clone(), rebind.clone())) {
            Ok(answering) => {
                part.rebinds.push(rebind);
                rt::spawn_local(async move {
                    answering.await;
                    drop(reader);
                });
                return;
            }
            Err(socket) => socket,
        };
        let Some(packets) = current.packets(exchange.clone()) else { return };
        let inbound = current.inbound().clone();
        let renewal = Rc::new(Renewal::new(rebind.clone()));
        part.rebinds.push(rebind);
        part.switches.push((label, renewal.switch.clone()));
        part.renewals.push((renewal.clone(), exchange));
        let listener = inbound.packet_listener(packets, socket.into(), renewal);
        rt::spawn_local(async move {
            Box::pin(inbound.run_datagrams(listener, stop)).await;
            drop(reader);
        });
    }

    /// New connections meet the inbound as it is in `update`. Gives its number back if it is open.
    fn update(&self, update: Update) -> Option<u64> {
        let Update { id, model, shared } = update;
        let mut inbounds = self.inbounds.borrow_mut();
        let inbound = inbounds.get_mut(&id)?;
        let around = self.around(&inbound.live, &inbound.core, &inbound.metrics, inbound.pacer.clone());
        inbound.slot.replace(Rc::new(ActiveInbound::new(model.name.clone(), shared.on_core(), around)));
        inbound.live.set_outbound(&model.outbound);
        inbound.live.set_reach(reach_of(&model));
        inbound.model = model;
        Some(id)
    }

    /// Has an inbound see the changes around it: with another configuration its rules; if it `is_renewed` itself, its
    /// users that send datagrams.
    fn refresh(&self, inbound: &mut OpenInbound, is_other: bool, is_renewed: bool) {
        if is_other {
            inbound.live.set_router(self.router.borrow().clone());
            inbound.core.log_destinations.set(self.config.borrow().log.destinations);
        }
        inbound.live.leaf().outbound.begin_use();
        if !is_renewed {
            return;
        }
        let current = inbound.slot.borrow().clone();
        for (renewal, exchange) in inbound.parts.values().flat_map(|part| &part.renewals) {
            if let Some(packets) = current.packets(exchange.clone()) {
                renewal.renew(packets);
            }
        }
    }

    fn close(&self, id: u64) {
        let Some(inbound) = self.inbounds.borrow_mut().remove(&id) else { return };
        inbound.core.conns.cut();
        inbound.parts.values().for_each(|part| part.each(Stopper::end));
    }

    /// Every table of connections.
    fn each_table(&self, mut action: impl FnMut(&Conns)) {
        self.inbounds.borrow().values().for_each(|inbound| action(&inbound.core.conns));
    }
}

/// Has the readers of datagrams of the part `before` go over to `sockets`, of which there are as many, in the same order.
fn go_over(before: &mut OpenPart, part: &mut OpenPart, sockets: &mut Sockets, alive: &mpsc::Sender<()>) {
    let rebinds = std::mem::take(&mut before.rebinds);
    part.readers.append(&mut before.readers);
    if before.renewals.is_empty() && before.switches.is_empty() {
        // Questions of DNS have no clients that anything is known of: other tasks read on, and answers that wait go by
        // the new socket.
        for (rebind, datagrams) in rebinds.iter().zip(&sockets.datagrams) {
            match datagrams.socket.try_clone() {
                Ok(copy) => drop(rebind.follow_with((copy, alive.clone()))),
                Err(error) => tracing::debug!(%error, "answers that wait are lost"),
            }
        }
        return;
    }
    part.renewals.append(&mut before.renewals);
    let switches = std::mem::take(&mut before.switches);
    let datagrams = std::mem::take(&mut sockets.datagrams).into_iter().map(|of| (of.socket, of.label));
    let all = datagrams.chain(std::mem::take(&mut sockets.carriers));
    for ((rebind, (_, switch)), (socket, label)) in rebinds.into_iter().zip(switches).zip(all) {
        if rebind.follow_with((socket, alive.clone())).is_err() {
            tracing::error!("a listener for datagrams that has failed before is not read on");
        }
        part.switches.push((label, switch));
        part.rebinds.push(rebind);
    }
}

/// The reach of the clients of an inbound.
fn reach_of(inbound: &model::Inbound) -> Reach {
    if inbound.leads_anywhere() { Reach::Anywhere } else { Reach::Public }
}

/// The blocks of one core of so many.
fn pool_of(places: &Places, count: usize) -> Pool {
    let budget = places.budget();
    Pool::bounded(budget.shares().blocks / count, budget.buffers().clone())
}

/// Returns when the core is to end: after draining, or at once when told so.
async fn wait_for_end(site: &EventLoop, stop: Stop) {
    let EventLoop { guard, active, .. } = site;
    let (mut draining, mut ending) = (stop.clone(), stop);
    draining.draining().await;
    let limit = site.drain.get().unwrap_or_else(|| site.config.borrow().limits.drain);
    // Behind a hand-over nobody is cut before the limit: a client may be about to use its connection.
    let is_replaced = site.drain.get().is_some();
    if !is_replaced {
        site.each_table(Conns::end_resting);
    }
    let unauthenticated = async {
        if is_replaced {
            std::future::pending::<()>().await;
        }
        rt::sleep(limit.min(UNAUTHENTICATED)).await;
        guard.dismiss();
        std::future::pending().await
    };
    let finished_all = async {
        finished(active).await;
        // Those that report to this process have to be heard to their ends.
        while site.left() > 0 || handover::is_committed() && handover::earlier() > 0 {
            rt::sleep(Duration::from_millis(100)).await;
            finished(active).await;
        }
    };
    let drained = Box::pin(async {
        rt::timeout(limit, rt::race(finished_all, unauthenticated)).await.ok();
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

/// Datagrams of clients with a wrong key, and of those with a clock that is off.
fn refused_datagrams(metrics: &InboundMetrics) -> [u64; 2] {
    let dropped = &metrics.datagrams.dropped;
    [dropped.authentication.value(), dropped.clock.value()]
}

impl OpenInbound {
    /// Notes datagrams of clients that were refused in the past second.
    fn note_datagrams(&self, faults: &Faults) {
        let refused = refused_datagrams(&self.metrics);
        let before = self.refused.replace(refused);
        if refused == before || !self.model.protocol.is_server() {
            return;
        }
        let [keys, clocks] = [0, 1].map(|at| refused[at].saturating_sub(before[at]));
        let part = ConfigPart::Inbound(self.model.name.clone());
        if keys > 0 {
            let text = format!("{keys} datagrams open with no key: wrong key or method, or a probe");
            faults.note_as(&part, Fault::new(codes::AUTH_CLIENT, text), rt::now(), Tell::Info);
        }
        if clocks > 0 {
            let text = format!("{clocks} datagrams of clients bear a time too far from ours: a clock is off");
            faults.note_as(&part, Fault::new(codes::CLOCK_CLIENT, text), rt::now(), Tell::Warn);
        }
    }
}

/// Names sources whose keys failed. A scan tries once or twice; a client with a wrong key tries again and again.
fn report(failed: Vec<(IpAddr, u32)>) {
    let code = codes::AUTH_CLIENT.id;
    for (source, count) in failed {
        let text = "authentication failed: wrong key, another protocol or version, or a probe";
        if count < REPEATED {
            tracing::info!(%source, code, count, "{text}");
        } else {
            tracing::warn!(%source, code, count, "{text}");
        }
    }
}

/// The core's second hand: idle connections, reports, freed memory.
async fn keep_house(site: Rc<EventLoop>, beat: Beat) {
    beat.beat(rt::now(), Duration::ZERO);
    loop {
        let due = rt::now() + TICK;
        rt::sleep(TICK).await;
        let now = rt::now();
        beat.beat(now, now.saturating_duration_since(due));
        let (idle, patience) = {
            let limits = &site.config.borrow().limits;
            (limits.idle, Patience::new(limits))
        };
        let mut is_worth_trimming = false;
        site.each_table(|conns| {
            conns.set_patience(patience);
            conns.sweep(idle);
            is_worth_trimming |= conns.take_worth_trimming();
        });
        is_worth_trimming |= site.places.flows().take_worth_trimming();
        site.places.tick();
        site.helm.note(now);
        site.pool.trim();
        report(site.guard.take_report(rt::now()));
        let faults = site.outbounds.watches().faults();
        site.inbounds.borrow().values().for_each(|inbound| inbound.note_datagrams(faults));
        if site.index == 0 {
            faults.tick(rt::now());
        }
        if is_worth_trimming {
            adit_net::trim_heap();
        }
    }
}
