//! The registry of ways in, and the loop that accepts.

mod local;
mod shadowsocks;
mod snell;
mod stranger;
mod tunnel;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_config::model::{self, Transports};
use adit_net::accept::Acceptor;
use adit_net::pace::{Pacer, check_pace};
use adit_net::rt::{self, Stop, Stream};
use adit_proto::wire::Target;

use crate::access::{Access, Route};
use crate::carrier::kcp;
use crate::datagram::{Ends, Exchange, Far, Near, QuicPort, Relay, SharedScratch};
use crate::guard::Guard;
use crate::metrics::InboundMetrics;
use crate::notice;
use crate::outbound::Outbound;
use crate::session::CoreContext;
use crate::user::{Accounts, Ledger};

pub(crate) use shadowsocks::ShadowsocksServerShared;
pub(crate) use snell::SnellServerShared;

/// One way in, on one core.
pub(crate) struct Inbound {
    /// Name in logs and status.
    pub(crate) name: Arc<str>,
    /// Where it counts.
    pub(crate) metrics: Arc<InboundMetrics>,
    /// Where its connections go.
    pub(crate) outbound: Rc<Outbound>,
    /// What the core's connections share.
    pub(crate) core: Rc<CoreContext>,
    /// Bounds on strangers.
    pub(crate) guard: Rc<Guard>,
    /// Connections on this core, all inbounds together: what a drain waits for.
    pub(crate) active: Rc<Cell<usize>>,
    /// What it needs to carry datagrams, if its outbound does.
    pub(crate) datagrams: Option<Datagrams>,
    /// Its rules.
    pub(crate) access: Option<Rc<Access>>,
    /// How fast its connections send, if there is a rate.
    pacer: Option<Arc<Pacer>>,
    kind: Kind,
}

/// What an inbound needs to carry datagrams.
#[derive(Clone)]
pub(crate) struct Datagrams {
    /// Where they go.
    pub(crate) far: Rc<Far>,
    /// The core's space for them.
    pub(crate) scratch: SharedScratch,
}

/// What an inbound listens for.
pub(crate) fn transports(inbound: &model::Inbound) -> Transports {
    match &inbound.protocol {
        // Associations of SOCKS have ports of their own.
        model::InboundProtocol::Local(_) | model::InboundProtocol::Snell(_) => Transports::Tcp,
        model::InboundProtocol::Shadowsocks(server) => server.transports,
        model::InboundProtocol::Tunnel { transports, .. } => *transports,
    }
}

/// Whether datagrams come to a port of its own, or to the plugin that has that port.
pub(crate) fn takes_datagrams(inbound: &model::Inbound) -> bool {
    match &inbound.protocol {
        model::InboundProtocol::Snell(server) => server.quic && server.versions.has_quic(),
        model::InboundProtocol::Shadowsocks(_)
        | model::InboundProtocol::Local(_)
        | model::InboundProtocol::Tunnel { .. } => transports(inbound).udp(),
    }
}

/// Whether it is of no use without datagrams.
pub(crate) fn needs_datagrams(inbound: &model::Inbound) -> bool {
    takes_datagrams(inbound) && !matches!(inbound.protocol, model::InboundProtocol::Snell(_))
}

enum Kind {
    Local(model::Local, Accounts),
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
            Self::Local(_, accounts) => accounts.clone(),
            Self::Tunnel(_) => Arc::default(),
        }
    }
}

/// What an inbound shares over all cores.
#[derive(Clone)]
pub(crate) enum Shared {
    /// Nothing.
    None,
    /// The users of a local port.
    Local(Accounts),
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
        let accounts = ledger.accounts(&inbound.name, inbound.protocol.users())?;
        Ok(match &inbound.protocol {
            model::InboundProtocol::Local(_) => Self::Local(accounts),
            model::InboundProtocol::Tunnel { .. } => Self::None,
            model::InboundProtocol::Snell(snell) => Self::Snell(SnellServerShared::start(snell, accounts)?),
            model::InboundProtocol::Shadowsocks(server) => {
                Self::Shadowsocks(Arc::new(ShadowsocksServerShared::start(server, accounts)))
            }
        })
    }

    /// Users that are counted by name.
    pub(crate) fn users(&self) -> Accounts {
        match self {
            Self::Shadowsocks(shared) => shared.accounts().clone(),
            Self::Snell(shared) => shared.accounts().clone(),
            Self::Local(accounts) => accounts.clone(),
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
    pub(crate) outbound: Rc<Outbound>,
    pub(crate) core: Rc<CoreContext>,
    pub(crate) guard: Rc<Guard>,
    pub(crate) active: Rc<Cell<usize>>,
    pub(crate) datagrams: Option<Datagrams>,
    pub(crate) access: Option<Rc<Access>>,
    pub(crate) pacer: Option<Arc<Pacer>>,
}

impl Inbound {
    /// Builds the inbound for one core.
    pub(crate) fn new(inbound: &model::Inbound, shared: &Shared, around: Surroundings) -> Self {
        let kind = match (&inbound.protocol, shared) {
            (model::InboundProtocol::Local(local), Shared::Local(accounts)) => {
                Kind::Local(local.clone(), accounts.clone())
            }
            (model::InboundProtocol::Tunnel { target, .. }, _) => Kind::Tunnel(target.clone()),
            (model::InboundProtocol::Snell(_), Shared::Snell(shared)) => Kind::Snell(shared.clone()),
            (model::InboundProtocol::Shadowsocks(_), Shared::Shadowsocks(shared)) => {
                Kind::Shadowsocks(shared.clone())
            }
            (
                model::InboundProtocol::Local(_)
                | model::InboundProtocol::Snell(_)
                | model::InboundProtocol::Shadowsocks(_),
                _,
            ) => {
                unreachable!("shared state is made from the same inbound")
            }
        };
        let Surroundings { metrics, outbound, core, guard, active, datagrams, access, pacer } = around;
        Self {
            name: inbound.name.clone(),
            metrics,
            outbound,
            core,
            guard,
            active,
            datagrams,
            access,
            pacer,
            kind,
        }
    }

    /// Accepts until told to drain.
    pub(crate) async fn run(self: Rc<Self>, mut acceptor: Acceptor, stop: Stop) {
        let mut stopping = stop.clone();
        let accept = async {
            loop {
                match acceptor.accept().await {
                    Ok((stream, peer)) => {
                        let stream = Stream::from(stream);
                        let stream = match &self.pacer {
                            Some(pacer) => stream.paced(pacer),
                            None => stream,
                        };
                        self.clone().spawn(stream, peer);
                    }
                    Err(error) => {
                        tracing::error!(inbound = &*self.name, %error, "listener failed");
                        return;
                    }
                }
            }
        };
        rt::race(stopping.draining(), accept).await;
    }

    /// Takes the streams of the sessions that come by `link` until told to drain, and carries what it has to the end.
    pub(crate) async fn run_carried(
        self: Rc<Self>,
        shared: Arc<kcp::Shared>,
        context: kcp::Context,
        link: kcp::Link,
        stop: Stop,
    ) {
        let inbound = self.clone();
        let take = move |stream, peer| {
            if !stop.is_draining() {
                inbound.clone().spawn(stream, peer);
            }
        };
        if let Err(error) = kcp::serve(shared, context, link, take).await {
            tracing::error!(inbound = &*self.name, %error, "listener of the carrier lost");
        }
    }

    /// Relays datagrams to `socket` until told to drain; the other cores of the same address share `exchange`.
    pub(crate) async fn run_datagrams(
        self: Rc<Self>,
        protocol: model::InboundProtocol,
        socket: std::net::UdpSocket,
        exchange: (Arc<Exchange>, usize),
        mut stop: Stop,
    ) {
        let near = match protocol {
            model::InboundProtocol::Shadowsocks(server) => match shadowsocks::relay(&server.key) {
                Some((relay, hops)) => Near::relay(relay, hops, self.kind.accounts()),
                None => Near::shadowsocks(&server.key.derive(), self.kind.accounts()),
            },
            model::InboundProtocol::Tunnel { target, .. } => Near::Tunnel(target),
            model::InboundProtocol::Snell(_) => {
                let Kind::Snell(shared) = &self.kind else { return };
                Near::Quic(QuicPort::new(shared.clone(), self.guard.clone()))
            }
            model::InboundProtocol::Local(_) => return,
        };
        match self.relay(near, socket, Some(exchange)) {
            Some(Ok(relay)) => relay.run(stop.draining()).await,
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
        let Datagrams { far, scratch } = self.datagrams.clone()?;
        let ends = Ends { near, far, access: self.access.clone() };
        Some(Relay::new(self.name.clone(), self.metrics.clone(), socket, ends, scratch, exchange))
    }

    /// The way to `target`.
    pub(crate) async fn way(&self, target: &Target) -> Route {
        if self.core.conns.is_cut() {
            // The port was taken away while the request came in.
            return Route::blocked(self.outbound.clone());
        }
        match &self.access {
            None => Route::open_to_all(self.outbound.clone()),
            Some(access) => Box::pin(access.way(&self.outbound, target)).await,
        }
    }

    /// One task per connection and kind, so that a task is no larger than what it runs.
    fn spawn(self: Rc<Self>, stream: Stream, peer: SocketAddr) {
        self.metrics.accepted.add(1);
        if self.access.as_ref().is_some_and(|access| !access.accepts(peer.ip())) {
            tracing::debug!(inbound = &*self.name, %peer, "refused by the access control list");
            self.metrics.refused.rule.add(1);
            return;
        }
        let open = Open::new(&self);
        match &self.kind {
            Kind::Local(..) => rt::spawn_local(async move {
                let Kind::Local(config, accounts) = &self.kind else { return };
                local::serve(&self, (config, accounts), stream, peer).await;
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
