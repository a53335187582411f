//! The registry of ways in, and the loop that accepts.

pub(crate) mod association;
mod carried;
pub(crate) mod connected;
pub(crate) mod fallback;
pub(crate) mod unauthenticated;

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_model::{self as model, Tag};
use adit_net::accept::{Accepted, Acceptor};
use adit_net::handover::{self, Admission};
use adit_net::pace::Pacer;
use adit_net::rt::{self, Stop, Stream};
use adit_net::tun::TunDevice;

use self::connected::Served;
use crate::admission::StreamSlot;
use crate::admission::guard::Guard;
use crate::counters::InboundMetrics;
use crate::datagram::rebind::Rebind;
use crate::datagram::{
    ClientSide, DatagramPort, DatagramRouter, Engine, Listener, PacketInbound, Renewal, SessionOwners,
    SharedScratch,
};
use crate::stream::{CoreContext, Future, Origin, RouteContext};
use crate::users::{Accounts, KnownSources};

pub(crate) use carried::{CarrierOptions, accept_carried, accept_packets};

/// Connections that wait at a listener that closes and are served nevertheless, at most: a flood does not delay the end.
const MOST_WAITING: usize = 4096;
/// The time in which the event loop sees those.
pub(super) const LAST_LOOK: Duration = Duration::from_millis(1);

/// One way in, on one core.
pub(crate) struct Inbound {
    /// Name in logs and status.
    pub(crate) name: Tag,
    /// Its counters.
    pub(crate) metrics: Arc<InboundMetrics>,
    /// State that the core's connections share.
    pub(crate) core: Rc<CoreContext>,
    /// State that its requests share.
    pub(crate) origin: Rc<Origin>,
    /// Bounds on unauthenticated connections.
    pub(crate) guard: Rc<Guard>,
    /// Connections on this core, all inbounds together: what a drain waits for.
    pub(crate) active: Rc<Cell<usize>>,
    udp: Rc<model::Udp>,
    /// The core's space for datagrams.
    pub(crate) scratch: SharedScratch,
    /// Rate of its connections, if there is one.
    pacer: Option<Arc<Pacer>>,
}

/// An inbound with its protocol, as both are at this time. Connections keep the first and not the second, whose users may
/// be other ones tomorrow.
pub(crate) struct ActiveInbound {
    inbound: Rc<Inbound>,
    protocol: Rc<dyn InboundServer>,
}

/// An inbound as it is at this time, for those who accept.
pub(crate) type InboundSlot = Rc<RefCell<Rc<ActiveInbound>>>;

/// The core's part in carrying datagrams.
#[derive(Clone)]
pub(crate) struct DatagramDeps {
    /// The router of its datagrams.
    pub(crate) routes: Rc<dyn DatagramRouter>,
    /// Settings of the datagram relay.
    pub(crate) udp: Rc<model::Udp>,
    /// The core's space for them.
    pub(crate) scratch: SharedScratch,
}

/// The protocol of an inbound, for every core.
pub(crate) trait InboundFactory: Debug + Send + Sync {
    /// The inbound's protocol on one core.
    fn on_core(&self) -> Rc<dyn InboundServer>;

    /// The same for `inbound` with other users: salts that have been seen stay seen. `None` if nothing is kept.
    ///
    /// # Errors
    /// When a thread cannot be made.
    fn renewed(
        &self,
        inbound: &model::Inbound,
        accounts: &Accounts,
    ) -> io::Result<Option<Arc<dyn InboundFactory>>> {
        let _ = (inbound, accounts);
        Ok(None)
    }

    /// The users that are counted.
    fn accounts(&self) -> Accounts {
        Arc::default()
    }

    /// The sources of users that are found by trial.
    fn sources(&self) -> Option<Arc<KnownSources>> {
        None
    }
}

/// The protocol of an inbound, on one core.
pub(crate) trait InboundServer {
    /// Serves one connection up to its relay, or to its end.
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Served;

    /// The client side of its datagrams, if it takes any on a port of its own.
    ///
    /// `exchange` is shared by the cores of the listener, with the number of this core.
    fn packets(
        &self,
        inbound: &Inbound,
        exchange: (Arc<SessionOwners>, usize),
    ) -> Option<Box<dyn PacketInbound>>;

    /// The packets of its virtual interface, if it has one; its listeners are `listening`.
    ///
    /// # Errors
    /// The system's error.
    fn device(
        &self,
        inbound: &Inbound,
        device: TunDevice,
        listening: &[SocketAddr],
    ) -> io::Result<Option<Device>> {
        let _ = (inbound, device, listening);
        Ok(None)
    }

    /// Answers the datagrams of a socket itself until told to stop, or to leave it to another task.
    ///
    /// # Errors
    /// The socket, if its datagrams are passed on instead.
    fn answer(
        self: Rc<Self>,
        inbound: Rc<Inbound>,
        socket: std::net::UdpSocket,
        until: (Stop, Rc<Rebind>),
    ) -> Result<Future<'static, ()>, std::net::UdpSocket> {
        let _ = (inbound, until);
        Err(socket)
    }
}

/// A virtual interface, for the datagram relay.
pub(crate) struct Device {
    /// The protocol of its clients.
    pub(crate) packets: Box<dyn PacketInbound>,
    /// Its packets.
    pub(crate) port: Box<dyn DatagramPort>,
    /// A flow that is still for so long is forgotten, if that differs from other inbounds.
    pub(crate) idle: Option<Duration>,
}

/// Everything around an inbound that is not its protocol.
pub(crate) struct InboundDeps {
    pub(crate) metrics: Arc<InboundMetrics>,
    pub(crate) live: Rc<RouteContext>,
    pub(crate) core: Rc<CoreContext>,
    pub(crate) guard: Rc<Guard>,
    pub(crate) active: Rc<Cell<usize>>,
    pub(crate) udp: Rc<model::Udp>,
    pub(crate) scratch: SharedScratch,
    pub(crate) pacer: Option<Arc<Pacer>>,
}

impl ActiveInbound {
    /// Builds the inbound of a name for one core.
    pub(crate) fn new(name: Tag, protocol: Rc<dyn InboundServer>, around: InboundDeps) -> Self {
        let InboundDeps { metrics, live, core, guard, active, udp, scratch, pacer } = around;
        let origin = Origin { inbound: name.clone(), metrics: metrics.clone(), core: core.clone(), live };
        let origin = Rc::new(origin);
        let inbound = Inbound { name, metrics, core, origin, guard, active, udp, scratch, pacer };
        Self { inbound: Rc::new(inbound), protocol }
    }

    /// The inbound without its protocol.
    pub(crate) fn inbound(&self) -> &Rc<Inbound> {
        &self.inbound
    }

    /// The client side of its datagrams, if it takes any on a port of its own. `exchange` is shared by the cores of the
    /// listener, with the number of this core.
    pub(crate) fn packets(&self, exchange: (Arc<SessionOwners>, usize)) -> Option<Box<dyn PacketInbound>> {
        self.protocol.packets(&self.inbound, exchange)
    }

    /// Answers the datagrams of a socket until told to drain, or to leave it to another task, if its protocol does.
    ///
    /// # Errors
    /// The socket, if its datagrams are passed on.
    pub(crate) fn answer(
        &self,
        socket: std::net::UdpSocket,
        until: (Stop, Rc<Rebind>),
    ) -> Result<Future<'static, ()>, std::net::UdpSocket> {
        self.protocol.clone().answer(self.inbound.clone(), socket, until)
    }

    /// Relays the packets of a virtual interface, whose listeners are `listening`, until told to end: connections that
    /// are open while the process drains go on.
    pub(crate) async fn run_device(
        self: Rc<Self>,
        (device, listening): (TunDevice, Vec<SocketAddr>),
        renewal: Rc<Renewal>,
        mut stop: Stop,
    ) {
        // The process before this one has said by then what there is behind the interface.
        rt::race(handover::opened(), stop.ending()).await;
        let Self { inbound, protocol } = &*self;
        let made = protocol.device(inbound, device, &listening).and_then(|device| {
            let Some(Device { packets, port, idle }) = device else { return Ok(None) };
            let udp = model::Udp { idle: idle.unwrap_or(inbound.udp.idle), ..(*inbound.udp).clone() };
            let listener = inbound.packet_listener(packets, ClientSide::Port(port), renewal);
            Engine::new(listener, &udp, inbound.scratch.clone()).map(Some)
        });
        match made {
            Ok(Some(engine)) => Box::pin(engine.run(stop.ending())).await,
            Ok(None) => {}
            Err(error) => tracing::error!(inbound = &*inbound.name, %error, "interface lost"),
        }
    }

    /// Takes a connection of a listener.
    fn take(&self, accepted: Accepted, peer: SocketAddr) {
        let stream = Stream::from(accepted);
        let stream = match &self.inbound.pacer {
            Some(pacer) => stream.paced(pacer),
            None => stream,
        };
        self.spawn(stream, peer);
    }

    /// One task per connection.
    fn spawn(&self, stream: Stream, peer: SocketAddr) {
        let inbound = &self.inbound;
        inbound.metrics.accepted.add(1);
        // A client behind a unix socket has no address to judge.
        if peer.port() != 0 && !inbound.origin.live.accepts(peer.ip()) {
            tracing::debug!(inbound = &*inbound.name, %peer, "refused by the access control list");
            inbound.metrics.refused.rule.add(1);
            return;
        }
        let open = Open::new(inbound, stream.is_carried());
        let served = self.protocol.clone().serve(inbound.clone(), stream, peer);
        rt::spawn_small(async move {
            connected::to_its_end(served).await;
            drop(open);
        });
    }
}

impl Inbound {
    /// The core's part in carrying datagrams, if the outbound carries them.
    pub(crate) fn datagrams(&self) -> Option<DatagramDeps> {
        let live = &self.origin.live;
        live.leaf().packets?;
        Some(DatagramDeps { routes: live.clone(), udp: self.udp.clone(), scratch: self.scratch.clone() })
    }

    /// Relays the datagrams of `listener` until told to drain.
    pub(crate) async fn run_datagrams(self: Rc<Self>, listener: Listener, mut stop: Stop) {
        handover::opened().await;
        let switch = listener.renewal.switch.clone();
        // The flows of a process that has been replaced go on to their ends.
        let end = async move {
            stop.draining().await;
            if switch.is_passed() {
                stop.ending().await;
            }
        };
        match Engine::new(listener, &self.udp, self.scratch.clone()) {
            Ok(engine) => Box::pin(engine.run(end)).await,
            Err(error) => tracing::error!(inbound = &*self.name, %error, "listener for datagrams lost"),
        }
    }

    /// A way to clients that send datagrams, who speak `inbound` until `renewal` says otherwise.
    pub(crate) fn packet_listener(
        &self,
        inbound: Box<dyn PacketInbound>,
        clients: ClientSide,
        renewal: Rc<Renewal>,
    ) -> Listener {
        let (name, metrics) = (self.name.clone(), self.metrics.clone());
        let routes = self.origin.live.clone();
        let places = self.core.places.clone();
        Listener { name, metrics, clients, inbound, routes, renewal, places }
    }
}

/// Accepts for the inbound in `slot` until told to drain.
pub(crate) async fn accept(slot: InboundSlot, mut acceptor: Acceptor, mut stop: Stop) {
    let mut admission = Admission::default();
    let accept = async {
        let mut taken = 0;
        loop {
            if taken >= slot.borrow().inbound.guard.turn() {
                taken = 0;
                rt::yield_now().await;
            }
            taken += 1;
            let places = slot.borrow().inbound.core.places.clone();
            places.room().await;
            let mut make_room = || places.make_room();
            let accepting = acceptor.accept_making_room(&mut make_room);
            let Some(accepted) = admission.admit(accepting).await else { continue };
            let current = slot.borrow().clone();
            match accepted {
                Ok((accepted, peer)) => current.take(accepted, peer),
                Err(error) => {
                    tracing::error!(inbound = &*current.inbound.name, %error, "listener failed");
                    return;
                }
            }
        }
    };
    // The end of the process waits for this task as for a connection.
    let _counted = Counted::new(&slot.borrow().inbound.active);
    rt::race(stop.draining(), accept).await;
    // Closing the listener resets the connections that wait, unless another process has it too.
    if !handover::is_committed() {
        // The event loop looks at its sockets once more.
        rt::sleep(LAST_LOOK).await;
        let current = slot.borrow().clone();
        acceptor.finish(MOST_WAITING, |(accepted, peer)| current.take(accepted, peer)).await;
    }
}

/// One of the things that a drain waits for, on one core.
struct Counted(Rc<Cell<usize>>);

impl Counted {
    fn new(active: &Rc<Cell<usize>>) -> Self {
        active.set(active.get() + 1);
        Self(active.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Counts a connection for as long as it lives, a panic included.
struct Open {
    metrics: Arc<InboundMetrics>,
    _counted: Counted,
    /// Its descriptor, if it has one of its own.
    _slot: Option<StreamSlot>,
}

impl Open {
    fn new(inbound: &Inbound, is_carried: bool) -> Self {
        inbound.metrics.open.add(1);
        let slot = (!is_carried).then(|| inbound.core.places.stream());
        Self { metrics: inbound.metrics.clone(), _counted: Counted::new(&inbound.active), _slot: slot }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.open.add(-1);
    }
}
