//! The datagrams of one listener on one core: the table of its flows, and their turns.

mod client_side;
mod listing;
mod streams;
mod target_side;
mod undecided;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::hash::RandomState;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use adit_model::{Tag, Udp};
use adit_net::rt;
use adit_net::udp::Socket;
use adit_net::udp::divert::{Passing, Switch};
use adit_proto::wire::Target;

use self::undecided::Undecided;
use super::aliases::{Alias, Aliases};
use super::drops::{DropReason, Tally};
use super::gather::Gather;
use super::inbound::{Arrival, PacketInbound, Peer};
use super::outbound::{FlowTransport, PacketFlow, PacketOutbound};
use super::port::{ClientSide, DatagramPort};
use super::ready_flows::Ready;
use super::routes::{DatagramRouter, Decisions, FlowKey, OutboundId, RouteReason};
use super::scratch::{Scratch, SharedScratch};
use super::sniff_cache::SniffCache;
use super::table::{FlowId, FlowTable, FlowTick};
use super::traffic_class::Marks;
use crate::admission::{FlowSlot, Places};
use crate::connections::listing::Ask;
use crate::connections::table::TICK;
use crate::counters::InboundMetrics;
use crate::datagram::rebind::{LAST_BATCHES, Rebind};
use crate::dns::Fake;
use crate::errors::Watch;
use crate::users::{self, Lease};

/// Seconds for flows to name servers alone, once an answer has come.
const BRIEF_IDLE: FlowTick = 10;
/// Seconds for flows of other machines' clients, while nothing has come back: as the connection table of Linux has it for
/// an unreplied flow. A datagram that was recorded and is sent again by peers without a key begins such flows, and so does
/// one with a forged source on a captured network.
const UNANSWERED_IDLE: FlowTick = 30;
/// Seconds of silence after which a flow gives up what can be derived again.
const REST_AFTER: FlowTick = 10;
/// Classes of flows in the table: with traffic, with an answer from a name server, and silent.
const NORMAL: usize = 0;
const BRIEF: usize = 1;
const RESTING: usize = 2;
/// Without an answer; with an answer, behind which the client has sent nothing; and each of them silent. A recorded
/// datagram gets its sender no further.
const UNANSWERED: usize = 3;
const ONCE: usize = 4;
const STILL_UNANSWERED: usize = 5;
const STILL_ONCE: usize = 6;
const CLASSES: usize = 7;
/// The classes of flows that make room first.
const UNPROVEN: &[usize] = &[STILL_UNANSWERED, STILL_ONCE, UNANSWERED, BRIEF, ONCE];
/// Classes whose silent flows are moved to another one.
const SILENT: [(usize, usize); 3] = [(NORMAL, RESTING), (UNANSWERED, STILL_UNANSWERED), (ONCE, STILL_ONCE)];

/// No descriptor is left to the process, or to the system (`EMFILE`, `ENFILE`).
const NO_DESCRIPTOR: [i32; 2] = [24, 23];

/// Port of name servers.
const DNS: u16 = 53;

/// Batches from one socket per turn: with 32 messages each, the 64 that one may have before others have theirs.
pub(crate) const BATCHES: usize = 2;

/// Datagrams of a flow that wait for the address of a name.
pub(crate) const MAX_WAITING: usize = 8;

/// Datagrams from other cores that are taken in one turn.
const MAX_MOVED: usize = 64;
/// Targets of clients whose protocol is kept where rules ask for it, in each half of the table.
const SHOWN: usize = 8192;

/// A listening socket with what belongs to it.
pub(crate) struct Listener {
    /// The inbound's name in logs.
    pub(crate) name: Tag,
    /// Its counters.
    pub(crate) metrics: Arc<InboundMetrics>,
    /// The way to its clients.
    pub(crate) clients: ClientSide,
    /// The protocol of its clients.
    pub(crate) inbound: Box<dyn PacketInbound>,
    /// The router of its datagrams.
    pub(crate) routes: Rc<dyn DatagramRouter>,
    /// By which it is told of other users.
    pub(crate) renewal: Rc<Renewal>,
    /// The descriptors that its flows draw on.
    pub(crate) places: Rc<Places>,
}

/// Tells a listener that its clients speak something else from now on: the same protocol with other users.
#[derive(Default)]
pub(crate) struct Renewal {
    next: RefCell<Option<Box<dyn PacketInbound>>>,
    /// Questions about the flows; none once the listener has ended.
    asks: RefCell<Vec<Ask>>,
    has_ended: Cell<bool>,
    engine: RefCell<Option<Waker>>,
    /// Tells it to leave the socket to another process.
    pub(crate) switch: Rc<Switch>,
    /// Tells it to go over to another socket of this process.
    pub(crate) rebind: Rc<Rebind>,
}

impl Renewal {
    /// For a listener whose socket may have a successor.
    pub(crate) fn new(rebind: Rc<Rebind>) -> Self {
        Self { rebind, ..Self::default() }
    }

    /// New clients are those of `inbound`, which takes over the others.
    pub(crate) fn renew(&self, inbound: Box<dyn PacketInbound>) {
        self.next.replace(Some(inbound));
        self.wake();
    }

    /// Asks the listener, if it has not ended.
    pub(crate) fn ask(&self, ask: Ask) {
        if !self.has_ended.get() {
            self.asks.borrow_mut().push(ask);
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(engine) = self.engine.borrow_mut().take() {
            engine.wake();
        }
    }

    fn take(&self, cx: &Context<'_>) -> Option<Box<dyn PacketInbound>> {
        let mut engine = self.engine.borrow_mut();
        if !engine.as_ref().is_some_and(|engine| engine.will_wake(cx.waker())) {
            *engine = Some(cx.waker().clone());
        }
        self.next.borrow_mut().take()
    }
}

/// A listening socket on one core, with its flows.
pub(crate) struct Engine {
    name: Tag,
    metrics: Arc<InboundMetrics>,
    listener: Box<dyn DatagramPort>,
    /// For the sockets that follow.
    udp: Udp,
    /// The address that clients send to, where it is one.
    bound: Option<SocketAddr>,
    inbound: Box<dyn PacketInbound>,
    /// Constant answer of the inbound, kept here.
    is_sealed: bool,
    is_connected: bool,
    together: usize,
    routes: Rc<dyn DatagramRouter>,
    /// The outbound of all datagrams, where nothing is to be decided, as of so many changes.
    fixed: Option<OutboundId>,
    changes: u32,
    /// Fake addresses, if there are any.
    fake: Option<Arc<Fake>>,
    aliases: Aliases,
    renewal: Rc<Renewal>,
    places: Rc<Places>,
    decisions: Decisions,
    /// The clients' side notes traffic classes, or has been asked to.
    has_classes: bool,
    shown: SniffCache,
    undecided: Undecided,
    /// The outbound of the last datagram, if it may give targets flows of their own.
    lanes: Option<(OutboundId, Option<Rc<dyn PacketOutbound>>)>,
    flows: FlowTable<FlowKey, Flow, CLASSES>,
    marks: Marks,
    ready: Ready,
    todo: Vec<FlowId>,
    scratch: SharedScratch,
    /// Flows whose streams have got something to send.
    streams: Vec<FlowId>,
    /// For the lanes of targets, keyed by a secret of this engine.
    hasher: RandomState,
    now: FlowTick,
    at: Instant,
    unix_s: u64,
    tally: Tally,
    gather: Gather,
}

/// One client's traffic over one outbound, as long as it lasts.
struct Flow {
    /// Address that answers go to, and the address of this host that they come from.
    peer: Peer,
    side: PacketFlow,
    /// The fake address that it is for, if it is for one.
    alias: Option<Rc<Alias>>,
    waker: Option<Waker>,
    /// The last target, and where its datagrams are sent: most of the time also the next one's.
    last: Option<(Target, SocketAddr)>,
    /// There was more than one.
    is_spread: bool,
    /// All of them were name servers.
    is_dns: bool,
    stage: Stage,
    /// It is silent, or had an answer from a name server: its next datagram takes it back to the class of its stage.
    is_demoted: bool,
    is_too_big_logged: bool,
    waiting: Vec<Waiting>,
    /// Lease of its user, if there are users.
    user: Option<Box<Lease>>,
    /// Its number in the list of connections.
    number: u64,
    /// When it began.
    since: FlowTick,
    /// Payload bytes from the client and to it.
    moved: [u64; 2],
    /// The reason of its way, where somebody may ask.
    why: Option<Rc<RouteReason>>,
    /// Is told of the first answer.
    watch: Option<Rc<Watch>>,
    /// Its descriptor.
    _slot: FlowSlot,
}

/// The progress of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing has come back.
    Unanswered,
    /// Something has come back, and its client has sent nothing since.
    Once,
    /// Its client has gone on after an answer.
    Proven,
}

impl Stage {
    fn class(self) -> usize {
        match self {
            Self::Unanswered => UNANSWERED,
            Self::Once => ONCE,
            Self::Proven => NORMAL,
        }
    }
}

/// A datagram that waits for the address of its target.
struct Waiting {
    target: Target,
    at: Option<IpAddr>,
    bytes: Vec<u8>,
    class: u8,
}

impl Flow {
    /// Notes once per flow the size that would fit.
    fn note_too_big(&mut self, routes: &dyn DatagramRouter, to: SocketAddr, len: usize, marks: &Marks) {
        if !std::mem::replace(&mut self.is_too_big_logged, true) {
            let fits = marks.largest(to).or_else(|| Socket::largest_payload(to));
            routes.note_too_big(len, fits);
        }
    }

    /// Counts a datagram, if its user may send or receive it.
    fn pass(&mut self, direction: users::UserDirection, len: usize, now: Instant) -> Result<(), DropReason> {
        if let Some(user) = &self.user {
            if !user.grant_whole(direction, len, now) {
                return Err(DropReason::Limited);
            }
            user.settle(direction, len, len);
        }
        self.moved[direction as usize] += len as u64;
        Ok(())
    }
}

/// The time after which a silent flow of each class is forgotten, in seconds; `idle` is the usual one. A local port has
/// applications of its own for clients. Those of a server have a key or a recording of somebody who has, and those of a
/// captured network write any source.
fn idle_times(idle: FlowTick, has_foreign_clients: bool) -> [FlowTick; CLASSES] {
    let mut times = [idle; CLASSES];
    times[BRIEF] = BRIEF_IDLE;
    if has_foreign_clients {
        times[UNANSWERED] = idle.min(UNANSWERED_IDLE);
        times[STILL_UNANSWERED] = times[UNANSWERED];
    }
    times
}

impl Engine {
    /// An engine for a `listener`; `udp` says how datagrams are relayed.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new(listener: Listener, udp: &Udp, scratch: SharedScratch) -> io::Result<Self> {
        let Listener { name, metrics, clients, inbound, routes, renewal, places } = listener;
        let is_sealed = inbound.is_sealed();
        let listener = clients.open(udp, is_sealed)?;
        let idle = FlowTick::try_from(udp.idle.as_secs()).unwrap_or(FlowTick::MAX / 2);
        let idle_times = idle_times(idle, inbound.has_foreign_clients());
        let ready = Ready::default();
        let mut engine = Self {
            name,
            metrics,
            bound: listener.bound(),
            listener,
            udp: udp.clone(),
            is_sealed,
            is_connected: inbound.is_connected(),
            together: inbound.together(),
            inbound,
            fixed: routes.fixed(),
            changes: routes.changes(),
            fake: routes.fake().cloned(),
            aliases: Aliases::default(),
            renewal,
            places,
            routes,
            decisions: Decisions::default(),
            has_classes: false,
            shown: SniffCache::new(SHOWN),
            undecided: Undecided::new(ready.decision_waker()),
            lanes: None,
            flows: FlowTable::new(udp.flows, idle_times).with_unproven(UNPROVEN),
            marks: Marks::new(udp),
            ready,
            todo: Vec::new(),
            scratch,
            streams: Vec::new(),
            hasher: RandomState::new(),
            now: 0,
            at: rt::now(),
            unix_s: 0,
            tally: Tally::default(),
            gather: Gather::new(udp.gather),
        };
        engine.ask_for_classes();
        Ok(engine)
    }

    /// Relays until `end` comes: a flow has no end of its own that could be waited for.
    pub(crate) async fn run(mut self, end: impl Future<Output = ()>) {
        let mut second = Box::pin(rt::sleep(TICK));
        let work = async {
            loop {
                let turn = poll_fn(|cx| {
                    while second.as_mut().poll(cx).is_ready() {
                        second.set(rt::sleep(TICK));
                        self.tick();
                    }
                    self.poll_turn(cx)
                });
                if let Err(error) = turn.await {
                    tracing::error!(inbound = &*self.name, %error, "listener for datagrams failed");
                    return;
                }
                rt::yield_now().await;
            }
        };
        rt::race(work, end).await;
    }

    /// One turn. Ready if there is more to do at once, after others have had theirs.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ready.register(cx.waker());
        if self.gather.poll_wait(cx).is_pending() {
            return Poll::Pending;
        }
        let scratch = self.scratch.clone();
        let scratch = &mut *scratch.borrow_mut();
        (self.at, self.unix_s) = (rt::now(), rt::unix_time());
        self.follow_changes(cx);
        self.follow_socket(cx, scratch)?;
        let mut more = self.take_moved(cx, scratch);
        if self.ready.take_decided() {
            self.decide_again(scratch);
        }
        more |= self.receive_clients(cx, scratch)?;
        let mut todo = std::mem::take(&mut self.todo);
        self.ready.take(&mut todo);
        for id in todo.drain(..) {
            more |= self.receive_flow(id, scratch);
        }
        self.todo = todo;
        let passed = self.tally.up + self.tally.down;
        self.tally.report(&self.metrics);
        self.gather.note(passed, self.at);
        if more {
            return Poll::Ready(Ok(()));
        }
        if self.gather.is_on() && passed > 0 {
            // Sockets that were read have not been asked whether there is more: that is done when the wait is over.
            return if self.gather.begin_wait(cx) { Poll::Pending } else { Poll::Ready(Ok(())) };
        }
        if self.ready.is_waiting() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Other users, rules or outbounds hold from now on. Flows that there are go on.
    fn follow_changes(&mut self, cx: &Context<'_>) {
        let asks = std::mem::take(&mut *self.renewal.asks.borrow_mut());
        asks.into_iter().for_each(|ask| self.follow_ask(ask));
        if let Some(mut inbound) = self.renewal.take(cx) {
            inbound.take_over(&mut *self.inbound);
            self.inbound = inbound;
        }
        if let Some(passing) = self.renewal.switch.take(cx) {
            self.leave_socket(passing);
        }
        let changes = self.routes.changes();
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.fixed = self.routes.fixed();
            self.decisions.clear();
            self.lanes = None;
        }
    }

    /// Goes over to another socket, with all flows. Datagrams that wait at the one before are taken first.
    ///
    /// # Errors
    /// When the new one cannot be used: the one before is not read on.
    fn follow_socket(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> io::Result<()> {
        let Some((socket, alive)) = self.renewal.rebind.take(cx) else { return Ok(()) };
        for _ in 0..LAST_BATCHES {
            if !self.receive_clients(cx, scratch)? {
                break;
            }
        }
        self.listener = ClientSide::Socket(socket).open(&self.udp, self.is_sealed)?;
        self.bound = self.listener.bound();
        self.has_classes = false;
        self.ask_for_classes();
        self.renewal.rebind.opened(alive);
        Ok(())
    }

    /// The addresses of all clients, those of processes before this one included.
    fn peers(&self) -> HashSet<SocketAddr> {
        let mut peers = self.listener.earlier_peers();
        peers.extend(self.flows.entries().map(|(_, _, flow, _)| flow.peer.at));
        peers.extend(self.undecided.peers());
        peers
    }

    /// Leaves the socket to another process.
    fn leave_socket(&mut self, passing: Passing) {
        let peers = self.peers().into_iter().collect();
        let listener = &mut self.listener;
        if let Err(error) = passing.follow(peers, |pair, peers| listener.pass_on(pair, peers)) {
            tracing::error!(inbound = &*self.name, %error, "listener for datagrams cannot be handed over");
        }
    }

    /// Tells the process that reads the socket which clients there are.
    fn follow_handover(&mut self) {
        let earlier = self.listener.follow_earlier();
        if self.renewal.switch.is_passed() {
            self.renewal.switch.note_left(self.flows.len() + self.undecided.len() + earlier);
            let peers = self.peers();
            self.listener.keep_peers(peers);
        }
    }

    /// A second has passed.
    fn tick(&mut self) {
        self.now = self.now.wrapping_add(1);
        self.listener.tick(self.now);
        self.ask_for_classes();
        self.follow_handover();
        while let Some((key, _)) = self.flows.expire_one(self.now) {
            self.ended(&key);
        }
        self.make_room_for_others();
        self.aliases.sweep();
        for (class, silent) in SILENT {
            while let Some(id) = self.flows.oldest_of(class, REST_AFTER, self.now) {
                self.flows.demote(id, silent);
                self.rest(id);
            }
        }
        self.ready.decide_again();
    }

    /// Has traffic classes noted once a decision asks for them.
    fn ask_for_classes(&mut self) {
        if self.has_classes || !self.routes.needs_class() {
            return;
        }
        self.has_classes = true;
        if let Err(error) = self.listener.report_class() {
            tracing::warn!(inbound = &*self.name, %error, "the system does not tell the marks of datagrams");
        }
    }

    /// Flows of other listeners and cores found no descriptor: some of the oldest here make room.
    fn make_room_for_others(&mut self) {
        if self.flows.len() < 4 {
            return;
        }
        let refused = usize::try_from(self.places.budget().take_refused_flows()).unwrap_or(usize::MAX);
        for _ in 0..refused.min(self.flows.len() / 4) {
            self.evict_oldest();
        }
    }

    /// Ends the flow that is the first to make room; datagrams that are queued for it must have been sent.
    fn evict_oldest(&mut self) {
        if let Some((key, _)) = self.flows.evict(self.now) {
            self.metrics.datagrams.evicted.add(1);
            self.ended(&key);
        }
    }

    /// The descriptor of a flow that is to begin.
    fn flow_slot(&mut self) -> Result<FlowSlot, DropReason> {
        if let Some(slot) = self.places.flow() {
            return Ok(slot);
        }
        self.evict_oldest();
        let none = || DropReason::System(io::Error::other("no descriptor is left for flows"));
        self.places.flow().ok_or_else(none)
    }

    /// A flow that has been silent for a while gives up what can be derived again.
    fn rest(&mut self, id: FlowId) {
        let Some((key, flow)) = self.flows.entry(id) else { return };
        flow.is_demoted = true;
        self.inbound.rest(&key.client);
        if let FlowTransport::Socket(_, Some(codec)) = &mut flow.side.transport {
            codec.rest();
        }
    }

    /// A datagram of this flow has passed, which has come to `stage`.
    fn touch(&mut self, id: FlowId, stage: Stage) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        let is_moved = std::mem::take(&mut flow.is_demoted) || flow.stage != stage;
        flow.stage = stage;
        if is_moved {
            self.flows.set_class(id, stage.class(), self.now);
        } else {
            self.flows.touch(id, self.now);
        }
    }

    /// Ends the flow that has proven least, if there is one that has proven nothing. Datagrams that are queued must have
    /// been sent. True if a flow has ended, and its descriptor is free.
    pub(super) fn evict_one_unanswered(&mut self) -> bool {
        let Some((key, flow)) = self.flows.evict_one_unanswered() else { return false };
        drop(flow);
        self.metrics.datagrams.evicted.add(1);
        self.ended(&key);
        true
    }

    /// Ends a flow; datagrams that are queued for it must have been sent.
    fn end(&mut self, id: FlowId) {
        if let Some((key, _)) = self.flows.remove(id) {
            self.ended(&key);
        }
    }

    /// A flow has ended.
    fn ended(&mut self, key: &FlowKey) {
        self.metrics.datagrams.flows.add(-1);
        self.places.flows().end();
        self.inbound.release(&key.client);
    }

    /// The circumstances of a datagram from `peer`.
    fn arrival(&self, peer: Peer, original: Option<SocketAddr>, class: u8) -> Arrival {
        Arrival { peer, original, class, now: self.now, unix_s: self.unix_s }
    }

    /// Tells the client's side of a datagram for `target` that goes no further, as far as it can be told.
    fn refused(&mut self, peer: Peer, target: &Target, result: &Result<(), DropReason>) {
        if let Err(reason) = result {
            self.listener.refuse(peer, target, reason);
        }
    }

    fn count(&self, reason: &DropReason) {
        reason.count(&self.name, &self.metrics.datagrams.dropped);
        if let DropReason::Private(kind) = reason {
            self.routes.note_private(*kind);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.renewal.has_ended.set(true);
        self.renewal.asks.borrow_mut().clear();
        for _ in 0..self.flows.len() {
            self.metrics.datagrams.flows.add(-1);
            self.places.flows().end();
        }
        self.flows.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(has_foreign_clients: bool) -> FlowTable<u8, (), CLASSES> {
        FlowTable::new(100, idle_times(300, has_foreign_clients)).with_unproven(UNPROVEN)
    }

    /// A second of the engine; the flows that it forgets.
    fn tick(table: &mut FlowTable<u8, (), CLASSES>, now: FlowTick) -> Vec<u8> {
        let gone = std::iter::from_fn(|| table.expire_one(now)).map(|(key, ())| key).collect();
        for (class, silent) in SILENT {
            while let Some(id) = table.oldest_of(class, REST_AFTER, now) {
                table.demote(id, silent);
            }
        }
        gone
    }

    #[test]
    fn a_flow_of_a_server_that_nobody_answers_is_soon_forgotten() {
        for (has_foreign_clients, expected) in [(true, 31), (false, 301)] {
            let mut table = table(has_foreign_clients);
            table.insert(1, (), UNANSWERED, 0);
            for (key, stage) in [(2, Stage::Once), (3, Stage::Proven)] {
                table.insert(key, (), stage.class(), 0);
            }
            let gone: Vec<(FlowTick, u8)> = (1..400)
                .flat_map(|now| tick(&mut table, now).into_iter().map(move |key| (now, key)))
                .collect();
            assert!(gone.contains(&(expected, 1)), "{gone:?}");
            assert!(gone.contains(&(301, 2)) && gone.contains(&(301, 3)), "{gone:?}");
        }
    }

    #[test]
    fn silent_flows_without_an_answer_make_room_before_those_with_one() {
        let mut table = table(true);
        for (key, class) in [(1, ONCE), (2, NORMAL), (3, UNANSWERED)] {
            table.insert(key, (), class, 0);
        }
        tick(&mut table, 11);
        table.insert(4, (), UNANSWERED, 11);
        let order: Vec<u8> =
            std::iter::from_fn(|| table.evict_one_unanswered()).map(|(key, ())| key).collect();
        assert_eq!(order, [3, 1, 4]);
    }
}
