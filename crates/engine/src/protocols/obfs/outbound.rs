//! The client side of an obfs alone, as plugins of Shadowsocks have it: one connection to a fixed server for each request.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_model::{self as model, Dial, ObfsClientConfig, ObfsClientLayer, Tag};
use adit_net::rt::{self, Pool, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::wire::{Layer, Rng as _, Target};

use crate::outbound::connector::end_of_cut;
use crate::outbound::{Connector, OutboundDeps, OutboundFactory};
use crate::protocols::obfs::layer::ClientObfs;
use crate::protocols::ssr::outbound::{DialledObfsConfig, exchange};
use crate::relay::{Endpoint, HalfClose, Outer, Policy, RelayOutcome, Stack};
use crate::rng::OsRng;
use crate::stream::{ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle};

/// Bytes of a stream that `http_simple` puts into its path at least, where the address is not known.
const HEAD_LEN: usize = 30;

/// The state that the client side of an obfs shares over all cores.
#[derive(Debug)]
pub(crate) struct ObfsShared {
    servers: Box<[(Target, Shape)]>,
    half_close: HalfClose,
    /// Time for the obfs' handshake.
    timeout: Duration,
}

#[derive(Debug)]
enum Shape {
    Simple(ClientObfs),
    Front(DialledObfsConfig),
}

impl Shape {
    fn new(server: &Target, layer: &ObfsClientLayer) -> io::Result<Self> {
        if let ObfsClientLayer::Simple(obfs) = layer {
            return ClientObfs::new(obfs).map(Self::Simple);
        }
        let config = layer.config(server, &mut OsRng);
        match config.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))? {
            Some(ObfsClientConfig::GoQuiet(config)) => Ok(Self::Front(DialledObfsConfig::Quiet(config))),
            Some(ObfsClientConfig::Ssr(config)) => Ok(Self::Front(DialledObfsConfig::Obfs(config))),
            None => Ok(Self::Simple(ClientObfs::Off)),
        }
    }
}

impl ObfsShared {
    pub(crate) fn start(dial: &Dial, config: &model::ObfsOutbound) -> io::Result<Self> {
        let with_shape = |server: &Target| Ok((server.clone(), Shape::new(server, config.layer())?));
        Ok(Self {
            servers: config.servers().iter().map(with_shape).collect::<io::Result<_>>()?,
            half_close: match config.layer() {
                // Other servers of GoQuiet end both directions with one of them.
                ObfsClientLayer::GoQuiet(_) => HalfClose::Late,
                ObfsClientLayer::Simple(_) | ObfsClientLayer::Ssr { .. } => HalfClose::AtOnce,
            },
            timeout: dial.timeout,
        })
    }

    /// A server, at random.
    fn choose(&self) -> &(Target, Shape) {
        let count = u32::try_from(self.servers.len()).unwrap_or(u32::MAX);
        &self.servers[OsRng.below(count) as usize]
    }

    /// Begins the obfs on a connection that is made.
    async fn start_stream(&self, stream: Stream, shape: &Shape) -> Result<OpenedConnection, OpenError> {
        let policy = Policy { half_close: self.half_close, keep_for_replay: false, carrier_drops: false };
        let config = match shape {
            Shape::Front(config) => config,
            Shape::Simple(obfs) => {
                let stack = obfs.layer().map(|layer| Box::new(Stack::new(layer, Outer::default())));
                return Ok(OpenedConnection::new(Endpoint { stream, stack, tail: Vec::new() }, policy));
            }
        };
        let mut front = config.begin(HEAD_LEN);
        let mut wire = RecvBuf::with_len(0);
        let exchanged = match rt::timeout(self.timeout, exchange(&stream, &mut front, &mut wire)).await {
            Ok(exchanged) => exchanged,
            Err(rt::Elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer")),
        };
        exchanged.map_err(OpenError::Handshake)?;
        let layer: Box<dyn Layer> = front.into_layer();
        let stack = Some(Box::new(Stack::new(layer, Outer::default())));
        Ok(OpenedConnection::new(Endpoint { stream, stack, tail: wire.unread().to_vec() }, policy))
    }
}

impl OutboundFactory for Arc<ObfsShared> {
    fn on_core(&self, connector: Connector, _: &OutboundDeps<'_>) -> OutboundHandle {
        OutboundHandle {
            outbound: Rc::new(ObfsClientSide { connector, shared: self.clone() }),
            packets: None,
        }
    }
}

/// The client side of an obfs on one core.
struct ObfsClientSide {
    connector: Connector,
    shared: Arc<ObfsShared>,
}

impl ObfsClientSide {
    async fn open(&self) -> Result<OpenedConnection, OpenError> {
        let (server, shape) = self.shared.choose();
        let stream = self.connector.dial(server).await?;
        let opened = Box::pin(self.shared.start_stream(stream, shape)).await;
        Ok(self.connector.settle(opened?))
    }
}

impl Outbound for ObfsClientSide {
    fn name(&self) -> &Tag {
        &self.connector.name
    }

    fn is_tunnel(&self) -> bool {
        true
    }

    fn wants_first_bytes(&self) -> bool {
        true
    }

    fn connect<'a>(
        &'a self,
        _: ConnectTarget<'a>,
        _fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>> {
        Box::pin(self.open())
    }

    fn release(&self, opened: OpenedConnection, outcome: &RelayOutcome, _pool: &Pool) {
        end_of_cut(&opened, outcome);
    }

    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(self.connector.lookup(name))
    }
}
