//! The registry of ways in, and the loop that accepts.

mod local;
mod shadowsocks;
mod snell;
mod ssr;
mod stranger;
mod tunnel;
mod tunnel_packets;

use std::cell::Cell;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_config::model::{self, Tag, Transports};
use adit_net::accept::Acceptor;
use adit_net::pace::{Pacer, check_pace};
use adit_net::rt::{self, Stop, Stream};

use crate::access::Access;
use crate::carrier::kcp;
use crate::dispatch::{CoreContext, Future, Origin, Outbound};
use crate::guard::Guard;
use crate::metrics::InboundMetrics;
use crate::notice;
use crate::packet::{Engine, Exchange, Listener, PacketInbound, Routes, SharedScratch};
use crate::user::{Accounts, Ledger};

#[cfg(test)]
pub(crate) use shadowsocks::packets as shadowsocks_packets;
pub(crate) use snell::SnellServerShared;

/// One way in, on one core.
pub(crate) struct Inbound {
    /// Name in logs and status.
    pub(crate) name: Tag,
    /// Where it counts.
    pub(crate) metrics: Arc<InboundMetrics>,
    /// What the core's connections share.
    pub(crate) core: Rc<CoreContext>,
    /// What its requests have in common.
    pub(crate) origin: Rc<Origin>,
    /// Bounds on strangers.
    pub(crate) guard: Rc<Guard>,
    /// Connections on this core, all inbounds together: what a drain waits for.
    pub(crate) active: Rc<Cell<usize>>,
    /// What it needs to carry datagrams, if its outbound does.
    pub(crate) datagrams: Option<Datagrams>,
    /// How fast its connections send, if there is a rate.
    pacer: Option<Arc<Pacer>>,
    protocol: Rc<dyn Serve>,
}

/// What an inbound needs to carry datagrams.
#[derive(Clone)]
pub(crate) struct Datagrams {
    /// Which way they take.
    pub(crate) routes: Rc<dyn Routes>,
    /// How they are relayed.
    pub(crate) udp: Rc<model::Udp>,
    /// The core's space for them.
    pub(crate) scratch: SharedScratch,
}

/// What an inbound listens for.
pub(crate) fn transports(inbound: &model::Inbound) -> Transports {
    match &inbound.protocol {
        // Associations of SOCKS have ports of their own.
        model::InboundProtocol::Local(_) | model::InboundProtocol::Snell(_) => Transports::Tcp,
        model::InboundProtocol::Shadowsocks(server) => server.transports,
        model::InboundProtocol::Ssr(server) => server.transports,
        model::InboundProtocol::Tunnel { transports, .. } => *transports,
    }
}

/// Whether datagrams come to a port of its own, or to the plugin that has that port.
pub(crate) fn takes_datagrams(inbound: &model::Inbound) -> bool {
    match &inbound.protocol {
        model::InboundProtocol::Snell(server) => server.quic && server.versions.has_quic(),
        model::InboundProtocol::Shadowsocks(_)
        | model::InboundProtocol::Ssr(_)
        | model::InboundProtocol::Local(_)
        | model::InboundProtocol::Tunnel { .. } => transports(inbound).udp(),
    }
}

/// Whether it is of no use without datagrams.
pub(crate) fn needs_datagrams(inbound: &model::Inbound) -> bool {
    takes_datagrams(inbound) && !matches!(inbound.protocol, model::InboundProtocol::Snell(_))
}

/// What is spoken on an inbound, for every core.
pub(crate) trait Factory: Debug + Send + Sync {
    /// The inbound's protocol on one core.
    fn on_core(&self) -> Rc<dyn Serve>;

    /// The users that are counted.
    fn accounts(&self) -> Accounts {
        Arc::default()
    }
}

/// What is spoken on an inbound, on one core.
pub(crate) trait Serve {
    /// Serves one connection to its end.
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Future<'static, ()>;

    /// The client side of its datagrams, if it takes any on a port of its own.
    ///
    /// `exchange` is shared by the cores of the listener, with the number of this core.
    fn packets(&self, inbound: &Inbound, exchange: (Arc<Exchange>, usize)) -> Option<Box<dyn PacketInbound>>;
}

/// What an inbound shares over all cores.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<dyn Factory>);

impl Shared {
    /// The registry: what `inbound` needs once per process.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub(crate) fn new(inbound: &model::Inbound, ledger: &Arc<Ledger>) -> io::Result<Self> {
        let accounts = ledger.accounts(&inbound.name, inbound.protocol.users())?;
        Ok(Self(match &inbound.protocol {
            model::InboundProtocol::Local(local) => {
                Arc::new(local::LocalFactory { config: local.clone(), accounts })
            }
            model::InboundProtocol::Tunnel { target, .. } => Arc::new(tunnel::TunnelFactory(target.clone())),
            model::InboundProtocol::Snell(server) => Arc::new(SnellServerShared::start(server, accounts)?),
            model::InboundProtocol::Shadowsocks(server) => {
                Arc::new(Arc::new(shadowsocks::ShadowsocksServerShared::start(server, accounts)))
            }
            model::InboundProtocol::Ssr(server) => {
                Arc::new(Arc::new(ssr::SsrServerShared::start(server, accounts)?))
            }
        }))
    }

    /// The users that are counted.
    pub(crate) fn users(&self) -> Accounts {
        self.0.accounts()
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
    pub(crate) outbound: Rc<dyn Outbound>,
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
        let Surroundings { metrics, outbound, core, guard, active, datagrams, access, pacer } = around;
        let name = inbound.name.clone();
        let origin = Rc::new(Origin {
            inbound: name.clone(),
            metrics: metrics.clone(),
            core: core.clone(),
            outbound,
            access,
        });
        Self { name, metrics, core, origin, guard, active, datagrams, pacer, protocol: shared.0.on_core() }
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
        socket: std::net::UdpSocket,
        exchange: (Arc<Exchange>, usize),
        mut stop: Stop,
    ) {
        let Some(packets) = self.protocol.packets(&self, exchange) else { return };
        let Some(datagrams) = &self.datagrams else { return };
        let listener = self.packet_listener(packets, socket, datagrams);
        match Engine::new(listener, &datagrams.udp, datagrams.scratch.clone()) {
            Ok(engine) => engine.run(stop.draining()).await,
            Err(error) => tracing::error!(inbound = &*self.name, %error, "listener for datagrams lost"),
        }
    }

    /// A `socket` for datagrams, whose clients speak `packets`.
    fn packet_listener(
        &self,
        inbound: Box<dyn PacketInbound>,
        socket: std::net::UdpSocket,
        datagrams: &Datagrams,
    ) -> Listener {
        let (name, metrics) = (self.name.clone(), self.metrics.clone());
        Listener { name, metrics, socket, inbound, routes: datagrams.routes.clone() }
    }

    /// One task per connection.
    fn spawn(self: Rc<Self>, stream: Stream, peer: SocketAddr) {
        self.metrics.accepted.add(1);
        if self.origin.access.as_ref().is_some_and(|access| !access.accepts(peer.ip())) {
            tracing::debug!(inbound = &*self.name, %peer, "refused by the access control list");
            self.metrics.refused.rule.add(1);
            return;
        }
        let open = Open::new(&self);
        let serve = self.protocol.clone().serve(self, stream, peer);
        rt::spawn_local(async move {
            serve.await;
            drop(open);
        });
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
