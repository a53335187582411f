//! The Shadowsocks client: one connection to the server for each request.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_model::{self as model, ClientCover, Dial, ObfsClient, Tag};
use adit_net::plugin::Plugins;
use adit_net::rt::{self, Pool, Stream};
use adit_proto::shadowsocks::{MethodKey, ShadowsocksClientStream, WallClock};
use adit_proto::wire::Target;

use super::answers::FreshAnswer;
use super::outbound_udp::ShadowsocksPackets;
use crate::connections::record::{EndReason, Side};
use crate::datagram::PacketOutbound;
use crate::outbound::connector::end_of_cut;
use crate::outbound::server::{Server, ServerDialer};
use crate::outbound::{Connector, OutboundDeps, OutboundFactory};
use crate::protocols::obfs::layer::ClientObfs;
use crate::relay::{Endpoint, Policy, RelayOutcome, Stack};
use crate::replay::SaltFilter;
use crate::rng::OsRng;
use crate::stream::{ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle};

/// Salts that a client remembers at least, as many as shadowsocks-libev (3.3.5).
const SALTS: usize = 10_000;

/// State that a Shadowsocks client shares over all cores.
#[derive(Debug)]
pub(crate) struct ShadowsocksShared {
    key: MethodKey,
    server: Server,
    obfs: ClientObfs,
    /// Salts of answers and of our own requests.
    salts: Arc<SaltFilter>,
}

impl ShadowsocksShared {
    pub(crate) fn start(
        name: &Tag,
        dial: &Dial,
        config: &model::ShadowsocksClient,
        plugins: &mut Plugins,
    ) -> io::Result<Self> {
        let (obfs, plugin) = match &config.cover {
            ClientCover::Obfs(obfs) => (obfs, None),
            ClientCover::Plugin(plugin) => (&ObfsClient::Off, Some(plugin)),
        };
        Ok(Self {
            key: config.key.derive(),
            server: Server::start(name, dial, &config.server, config.transports, plugin, plugins)?,
            obfs: ClientObfs::new(obfs)?,
            salts: Arc::new(SaltFilter::new(SALTS)),
        })
    }

    /// Begins a connection to `target`.
    fn start_stream(&self, stream: Stream, target: &Target) -> OpenedConnection {
        let clock = WallClock::new(rt::now(), rt::unix_time());
        let client = ShadowsocksClientStream::new(&self.key, target, clock, &mut OsRng);
        let stack = Stack::new(FreshAnswer::new(client, &self.salts), self.obfs.outer());
        let far = Endpoint { stream, stack: Some(Box::new(stack)), tail: Vec::new() };
        OpenedConnection::new(far, Policy::default())
    }
}

/// A Shadowsocks client on one core.
struct ShadowsocksOutbound(ServerDialer<ShadowsocksShared>);

impl AsRef<Server> for ShadowsocksShared {
    fn as_ref(&self) -> &Server {
        &self.server
    }
}

impl OutboundFactory for Arc<ShadowsocksShared> {
    fn on_core(&self, connector: Connector, around: &OutboundDeps<'_>) -> OutboundHandle {
        let packets = self.server.carries_datagrams().then(|| {
            let (server, plugin) = (self.server.target.clone(), self.server.datagram_plugin().cloned());
            let OutboundDeps { model, udp, dns, .. } = around;
            let packets = ShadowsocksPackets::new(model, self.key.clone(), server, plugin, udp, dns);
            Rc::new(packets) as Rc<dyn PacketOutbound>
        });
        let outbound = Rc::new(ShadowsocksOutbound(ServerDialer::new(connector, self)));
        OutboundHandle { outbound, packets }
    }
}

impl ShadowsocksOutbound {
    async fn open(&self, target: &Target) -> Result<OpenedConnection, OpenError> {
        let stream = self.0.dial().await?;
        Ok(self.0.connector.settle(self.0.shared.start_stream(stream, target)))
    }
}

impl Outbound for ShadowsocksOutbound {
    fn name(&self) -> &Tag {
        &self.0.connector.name
    }

    fn is_tunnel(&self) -> bool {
        true
    }

    fn connect<'a>(
        &'a self,
        to: ConnectTarget<'a>,
        _fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>> {
        Box::pin(self.open(to.target))
    }

    fn release(&self, opened: OpenedConnection, outcome: &RelayOutcome, _pool: &Pool) {
        end_of_cut(&opened, outcome);
        if outcome.down == 0 && matches!(outcome.reason, EndReason::Socket(Side::Far, _)) {
            self.0.connector.metrics.early_closes.add(1);
        }
    }

    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(self.0.connector.lookup(name))
    }
}
