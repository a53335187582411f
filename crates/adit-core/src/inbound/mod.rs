//! The registry of ways in, and the loop that accepts.

mod local;
mod shadowsocks;
mod snell;
mod stranger;
mod tunnel;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_config::model::{self, Tag};
use adit_net::accept::Acceptor;
use adit_net::pace::{Pacer, check_pace};
use adit_net::rt::{self, Stop, Stream};
use adit_proto::wire::Target;

use crate::access::{Access, Route};
use crate::carrier;
use crate::datagram::{Ends, Exchange, Far, Near, QuicPort, Relay, Renewal, SharedScratch};
use crate::guard::Guard;
use crate::metrics::InboundMetrics;
use crate::notice;
use crate::outbound::{Leaf, Outbound, Outbounds};
use crate::session::CoreContext;
use crate::users::{Accounts, Ledger};

pub(crate) use shadowsocks::ShadowsocksServerShared;
pub(crate) use snell::SnellServerShared;

/// One way in, on one core.
pub(crate) struct Inbound {
    /// Name in logs and status.
    pub(crate) name: Tag,
    /// Where it counts.
    pub(crate) metrics: Arc<InboundMetrics>,
    /// Where its connections go, and by which rules.
    live: Rc<Live>,
    /// What the core's connections share.
    pub(crate) core: Rc<CoreContext>,
    /// Bounds on strangers.
    pub(crate) guard: Rc<Guard>,
    /// Connections on this core, all inbounds together: what a drain waits for.
    pub(crate) active: Rc<Cell<usize>>,
    /// The core's space for datagrams.
    scratch: SharedScratch,
    /// How fast its connections send, if there is a rate.
    pacer: Option<Arc<Pacer>>,
    kind: Kind,
}

/// Where an inbound's connections go: what may change under connections that are open.
pub(crate) struct Live {
    outbounds: Rc<Outbounds>,
    outbound: RefCell<Tag>,
    access: RefCell<Option<Rc<Access>>>,
}

impl Live {
    /// Through the outbound of this name among `outbounds`.
    pub(crate) fn new(outbounds: Rc<Outbounds>, outbound: Tag, access: Option<Rc<Access>>) -> Self {
        Self { outbounds, outbound: RefCell::new(outbound), access: RefCell::new(access) }
    }

    /// Requests go there from now on.
    pub(crate) fn set_outbound(&self, outbound: &Tag) {
        self.outbound.replace(outbound.clone());
    }

    /// Requests follow these rules from now on.
    pub(crate) fn set_access(&self, access: Option<Rc<Access>>) {
        self.access.replace(access);
    }

    fn leaf(&self) -> Leaf {
        self.outbounds.find(&self.outbound.borrow())
    }
}

/// An inbound as it is at this time, for those who accept.
pub(crate) type Slot = Rc<RefCell<Rc<Inbound>>>;

/// What an inbound needs to carry datagrams.
#[derive(Clone)]
pub(crate) struct Datagrams {
    /// Where they go.
    pub(crate) far: Rc<Far>,
    /// The core's space for them.
    pub(crate) scratch: SharedScratch,
}

enum Kind {
    Local(model::Local),
    Shadowsocks(Arc<ShadowsocksServerShared>),
    Snell(Arc<SnellServerShared>),
    Tunnel(Target),
}

impl Kind {
    /// The users that are counted.
    fn accounts(&self) -> Accounts {
        match self {
            Self::Shadowsocks(shared) => shared.accounts().clone(),
            Self::Snell(shared) => shared.accounts().clone(),
            Self::Local(_) | Self::Tunnel(_) => Arc::default(),
        }
    }
}

/// What an inbound shares over all cores.
#[derive(Debug, Clone)]
pub(crate) enum Shared {
    /// Nothing.
    None,
    /// A Shadowsocks server's key, salts and users.
    Shadowsocks(Arc<ShadowsocksServerShared>),
    /// A Snell server's keys and salts.
    Snell(Arc<SnellServerShared>),
}

impl Shared {
    /// What `inbound` needs once per process.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub(crate) fn new(inbound: &model::Inbound, ledger: &Arc<Ledger>) -> std::io::Result<Self> {
        let accounts = ledger.accounts(&inbound.name, inbound.counted_users().into_iter())?;
        Ok(match &inbound.protocol {
            model::InboundProtocol::Local(_) | model::InboundProtocol::Tunnel { .. } => Self::None,
            model::InboundProtocol::Snell(snell) => Self::Snell(SnellServerShared::start(snell, accounts)?),
            model::InboundProtocol::Shadowsocks(server) => {
                Self::Shadowsocks(Arc::new(ShadowsocksServerShared::start(server, accounts)))
            }
        })
    }

    /// The same for `inbound` with other users: what has been seen stays seen.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub(crate) fn renewed(&self, inbound: &model::Inbound, ledger: &Arc<Ledger>) -> std::io::Result<Self> {
        let accounts = || ledger.accounts(&inbound.name, inbound.counted_users().into_iter());
        Ok(match (&inbound.protocol, self) {
            (model::InboundProtocol::Snell(snell), Self::Snell(old)) => {
                Self::Snell(old.renewed(snell, accounts()?)?)
            }
            (model::InboundProtocol::Shadowsocks(server), Self::Shadowsocks(old)) => {
                Self::Shadowsocks(Arc::new(old.renewed(server, accounts()?)))
            }
            _ => Self::new(inbound, ledger)?,
        })
    }

    /// Users that are counted by name.
    pub(crate) fn users(&self) -> Accounts {
        match self {
            Self::Shadowsocks(shared) => shared.accounts().clone(),
            Self::Snell(shared) => shared.accounts().clone(),
            Self::None => Arc::default(),
        }
    }
}

/// What is to be said once about `inbound`.
pub(crate) fn warnings(inbound: &model::Inbound) -> Vec<String> {
    let pace = inbound.socket.pace.as_ref().and_then(check_pace);
    let mut warnings: Vec<String> = pace.iter().map(ToString::to_string).collect();
    if let model::InboundProtocol::Shadowsocks(server) = &inbound.protocol {
        warnings.extend(notice::method_warning(server.key.method()));
    }
    warnings.iter().map(|warning| format!("inbound {}: {warning}", inbound.name)).collect()
}

/// Everything around an inbound that is not its protocol.
pub(crate) struct Surroundings {
    pub(crate) metrics: Arc<InboundMetrics>,
    pub(crate) live: Rc<Live>,
    pub(crate) core: Rc<CoreContext>,
    pub(crate) guard: Rc<Guard>,
    pub(crate) active: Rc<Cell<usize>>,
    pub(crate) scratch: SharedScratch,
    pub(crate) pacer: Option<Arc<Pacer>>,
}

impl Inbound {
    /// Builds the inbound for one core.
    pub(crate) fn new(inbound: &model::Inbound, shared: &Shared, around: Surroundings) -> Self {
        let kind = match (&inbound.protocol, shared) {
            (model::InboundProtocol::Local(local), _) => Kind::Local(local.clone()),
            (model::InboundProtocol::Tunnel { target, .. }, _) => Kind::Tunnel(target.clone()),
            (model::InboundProtocol::Snell(_), Shared::Snell(shared)) => Kind::Snell(shared.clone()),
            (model::InboundProtocol::Shadowsocks(_), Shared::Shadowsocks(shared)) => {
                Kind::Shadowsocks(shared.clone())
            }
            (model::InboundProtocol::Snell(_) | model::InboundProtocol::Shadowsocks(_), _) => {
                unreachable!("shared state is made from the same inbound")
            }
        };
        let Surroundings { metrics, live, core, guard, active, scratch, pacer } = around;
        Self { name: inbound.name.clone(), metrics, live, core, guard, active, scratch, pacer, kind }
    }

    /// Where its connections go at this time.
    pub(crate) fn outbound(&self) -> Rc<Outbound> {
        self.live.leaf().outbound
    }

    /// The rules at this time.
    pub(crate) fn access(&self) -> Option<Rc<Access>> {
        self.live.access.borrow().clone()
    }

    /// What it needs to carry datagrams, if its outbound does.
    pub(crate) fn datagrams(&self) -> Option<Datagrams> {
        Some(Datagrams { far: self.live.leaf().far?, scratch: self.scratch.clone() })
    }

    /// What its clients speak by datagrams, if they do.
    pub(crate) fn near(&self, protocol: &model::InboundProtocol) -> Option<Near> {
        Some(match protocol {
            model::InboundProtocol::Shadowsocks(server) => match shadowsocks::relay(&server.key) {
                Some((relay, hops)) => Near::relay(relay, hops, self.kind.accounts()),
                None => Near::shadowsocks(&server.key.derive(), self.kind.accounts()),
            },
            model::InboundProtocol::Tunnel { target, .. } => Near::Tunnel(target.clone()),
            model::InboundProtocol::Snell(_) => {
                let Kind::Snell(shared) = &self.kind else { return None };
                Near::Quic(QuicPort::new(shared.clone(), self.guard.clone()))
            }
            model::InboundProtocol::Local(_) => return None,
        })
    }

    /// Relays datagrams to `socket` until told to drain; the other cores of the same address share `exchange`.
    pub(crate) async fn run_datagrams(
        self: Rc<Self>,
        near: Near,
        renewal: Rc<Renewal>,
        socket: std::net::UdpSocket,
        exchange: (Arc<Exchange>, usize),
        mut stop: Stop,
    ) {
        match self.relay(near, socket, Some(exchange)) {
            Some(Ok(relay)) => relay.renewed_by(renewal).run(stop.draining()).await,
            Some(Err(error)) => tracing::error!(inbound = &*self.name, %error, "listener for datagrams lost"),
            None => {}
        }
    }

    /// A relay for the datagrams to `socket`; `None` if the outbound carries none.
    fn relay(
        &self,
        near: Near,
        socket: std::net::UdpSocket,
        exchange: Option<(Arc<Exchange>, usize)>,
    ) -> Option<std::io::Result<Relay>> {
        let Datagrams { far, scratch } = self.datagrams()?;
        let ends = Ends { near, far, access: self.access() };
        Some(Relay::new(self.name.clone(), self.metrics.clone(), socket, ends, scratch, exchange))
    }

    /// The way to `target`.
    pub(crate) async fn way(&self, target: &Target) -> Route {
        if self.core.conns.is_cut() {
            // The port was taken away while the request came in.
            return Route::blocked(self.outbound());
        }
        match self.access() {
            None => Route::open_to_all(self.outbound()),
            Some(access) => Box::pin(async move { access.way(&self.outbound(), target).await }).await,
        }
    }

    /// One task per connection and kind, so that a task is no larger than what it runs.
    fn spawn(self: Rc<Self>, stream: Stream, peer: SocketAddr) {
        self.metrics.accepted.add(1);
        if self.access().is_some_and(|access| !access.accepts(peer.ip())) {
            tracing::debug!(inbound = &*self.name, %peer, "refused by the access control list");
            self.metrics.refused.rule.add(1);
            return;
        }
        let open = Open::new(&self);
        match &self.kind {
            Kind::Local(_) => rt::spawn_local(async move {
                let Kind::Local(config) = &self.kind else { return };
                local::serve(&self, config, stream, peer).await;
                drop(open);
            }),
            Kind::Snell(_) => rt::spawn_local(async move {
                let Kind::Snell(shared) = &self.kind else { return };
                snell::serve(&self, shared, stream, peer).await;
                drop(open);
            }),
            Kind::Shadowsocks(_) => rt::spawn_local(async move {
                let Kind::Shadowsocks(shared) = &self.kind else { return };
                shadowsocks::serve(&self, shared, stream, peer).await;
                drop(open);
            }),
            Kind::Tunnel(_) => rt::spawn_local(async move {
                let Kind::Tunnel(target) = &self.kind else { return };
                tunnel::serve(&self, target, stream, peer).await;
                drop(open);
            }),
        }
    }
}

/// Accepts for the inbound in `slot` until told to drain.
pub(crate) async fn accept(slot: Slot, mut acceptor: Acceptor, mut stop: Stop) {
    let accept = async {
        loop {
            let accepted = acceptor.accept().await;
            let inbound = slot.borrow().clone();
            match accepted {
                Ok((stream, peer)) => {
                    let stream = Stream::from(stream);
                    let stream = match &inbound.pacer {
                        Some(pacer) => stream.paced(pacer),
                        None => stream,
                    };
                    inbound.spawn(stream, peer);
                }
                Err(error) => {
                    tracing::error!(inbound = &*inbound.name, %error, "listener failed");
                    return;
                }
            }
        }
    };
    rt::race(stop.draining(), accept).await;
}

/// Takes the streams of the sessions that come by `link` for the inbound in `slot` until told to drain, and carries what
/// it has to the end.
pub(crate) async fn accept_carried(
    slot: Slot,
    shared: Arc<carrier::Shared>,
    context: carrier::Context,
    link: carrier::Link,
    stop: Stop,
) {
    let (taking, mut ending) = (slot.clone(), stop.clone());
    let take = move |stream, peer| {
        if !stop.is_draining() {
            taking.borrow().clone().spawn(stream, peer);
        }
    };
    let serve = async {
        if let Err(error) = carrier::serve(shared, context, link, take).await {
            tracing::error!(inbound = &*slot.borrow().name, %error, "listener of the carrier lost");
        }
    };
    rt::race(ending.ending(), Box::pin(serve)).await;
}

/// Counts a connection for as long as it lives, a panic included.
struct Open {
    metrics: Arc<InboundMetrics>,
    active: Rc<Cell<usize>>,
}

impl Open {
    fn new(inbound: &Inbound) -> Self {
        inbound.metrics.open.add(1);
        inbound.active.set(inbound.active.get() + 1);
        Self { metrics: inbound.metrics.clone(), active: inbound.active.clone() }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.open.add(-1);
        self.active.set(self.active.get() - 1);
    }
}
