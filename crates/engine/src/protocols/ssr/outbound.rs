//! The ShadowsocksR client: one connection to the server for each request.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_model::{self as model, Dial, Tag};
use adit_net::plugin::Plugins;
use adit_net::rt::{self, Pool, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::goquiet;
use adit_proto::ssr::{CipherLayer, Obfs, SsrKey, obfs, protocol};
use adit_proto::wire::{Layer, Target, WallClock, WireError, address_len};

use super::outbound_udp::SsrClientPackets;
use super::udp_over_tcp::SsrFrames;
use super::watched::Watched;
use crate::connections::record::{EndReason, Side};
use crate::datagram::PacketOutbound;
use crate::outbound::connector::end_of_cut;
use crate::outbound::server::{Server, ServerDialer};
use crate::outbound::{Connector, OutboundDeps, OutboundFactory};
use crate::relay::{Endpoint, Outer, Policy, RelayOutcome, Stack};
use crate::rng::OsRng;
use crate::stream::{ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle};

/// First size of the buffer for a server's handshake in bytes.
const HANDSHAKE: usize = 2048;
/// Longest handshake of a server in bytes.
const LONGEST_HANDSHAKE: usize = 64 * 1024;

/// State that a ShadowsocksR client shares over all cores.
#[derive(Debug)]
pub(crate) struct SsrShared {
    pub(super) server: Server,
    pub(super) protocol: protocol::SsrClientConfig,
    obfs: DialledObfsConfig,
    /// Whether datagrams travel in streams.
    datagrams_over_tcp: bool,
    /// Time for the obfs' handshake.
    timeout: Duration,
}

/// State of the obfs that all connections share.
#[derive(Debug)]
pub(crate) enum DialledObfsConfig {
    Obfs(obfs::SsrObfsClientConfig),
    Quiet(goquiet::GoQuietClientConfig),
}

/// The obfs of one connection.
pub(crate) enum DialledObfs {
    Obfs(obfs::SsrObfsClient),
    Quiet(goquiet::GoQuietClientStream),
}

impl DialledObfsConfig {
    pub(crate) fn begin(&self, head_len: usize) -> DialledObfs {
        let unix_s = rt::unix_time();
        match self {
            Self::Obfs(config) => {
                DialledObfs::Obfs(obfs::SsrObfsClient::new(config, head_len, unix_s, &mut OsRng))
            }
            Self::Quiet(config) => {
                DialledObfs::Quiet(goquiet::GoQuietClientStream::new(config, unix_s, &mut OsRng))
            }
        }
    }
}

impl DialledObfs {
    /// Goes on with the exchange in front of the stream; `out` is to be sent at once. True once the stream can begin.
    fn handshake(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<bool, WireError> {
        Ok(match self {
            Self::Obfs(obfs) => obfs.handshake(wire, out)? == obfs::SsrHandshake::Done,
            Self::Quiet(quiet) => quiet.handshake(wire, out)? == goquiet::GoQuietHandshake::Done,
        })
    }

    pub(crate) fn into_layer(self) -> Box<dyn Layer> {
        match self {
            Self::Obfs(obfs) => Box::new(obfs),
            Self::Quiet(quiet) => Box::new(quiet),
        }
    }
}

impl SsrShared {
    pub(crate) fn start(
        name: &Tag,
        dial: &Dial,
        config: &model::SsrClient,
        plugins: &mut Plugins,
    ) -> io::Result<Self> {
        let bad = |error: model::SsrError| io::Error::new(io::ErrorKind::InvalidInput, error);
        config.check().map_err(bad)?;
        let key = SsrKey::from_password(config.method, config.password.expose().as_bytes());
        let mut protocol = protocol::SsrClientConfig::new(config.protocol, &key, config.obfs.overhead())
            .with_interval(config.key_interval_s);
        if let Some((id, secret)) = &config.user {
            protocol = protocol.with_user(*id, secret.expose().as_bytes());
        }
        let obfs = match config.obfs {
            Obfs::GoQuiet => DialledObfsConfig::Quiet(config.go_quiet(&mut OsRng).map_err(bad)?),
            Obfs::Plain
            | Obfs::HttpSimple
            | Obfs::HttpPost
            | Obfs::HttpMix
            | Obfs::RandomHead
            | Obfs::TlsTicketAuth
            | Obfs::TlsTicketFastauth => DialledObfsConfig::Obfs(config.obfs(&key, &mut OsRng).map_err(bad)?),
        };
        Ok(Self {
            server: Server::start(
                name,
                dial,
                &config.server,
                config.transports,
                config.plugin.as_ref(),
                plugins,
            )?,
            protocol,
            obfs,
            datagrams_over_tcp: config.datagrams_over_tcp,
            timeout: dial.timeout,
        })
    }

    /// Begins a connection to `target`: the exchange of the obfs, if it has one. `wrap` makes the innermost layer of the
    /// protocol's.
    pub(super) async fn start_stream<L: Layer + 'static>(
        &self,
        stream: Stream,
        target: &Target,
        wrap: impl FnOnce(protocol::SsrClientStream) -> L,
    ) -> Result<Endpoint, OpenError> {
        let head_len = self.protocol.key().method().iv_len() + address_len(target);
        let mut front = self.obfs.begin(head_len);
        let mut wire = RecvBuf::with_len(0);
        let exchange = rt::timeout(self.timeout, exchange(&stream, &mut front, &mut wire));
        let exchanged = match exchange.await {
            Ok(exchanged) => exchanged,
            Err(rt::Elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer")),
        };
        exchanged.map_err(OpenError::Handshake)?;
        let cipher = CipherLayer::client(self.protocol.key(), &mut OsRng);
        let clock = WallClock::new(rt::now(), rt::unix_time());
        let client =
            protocol::SsrClientStream::new(&self.protocol, &cipher.client_iv(), target, clock, &mut OsRng);
        let outer = Outer::default().with(Some(Box::new(cipher))).with(Some(front.into_layer()));
        let mut stack = Stack::new(wrap(client), outer);
        let tail = wire.unread().to_vec();
        stack.defer_received(tail.len());
        Ok(Endpoint { stream, stack: Some(Box::new(stack)), tail })
    }

    /// Whether the server has said anything that may be right.
    fn has_replied(opened: &mut OpenedConnection, outcome: &RelayOutcome) -> bool {
        if outcome.down > 0 {
            return true;
        }
        let is_wrong = matches!(
            outcome.reason,
            EndReason::Wire(WireError::Authentication { .. } | WireError::Malformed { .. })
        );
        let stack = opened.far.stack.as_mut();
        let is_answered = stack.is_some_and(|stack| match stack.protocol::<Watched>() {
            Some(watched) => watched.is_answered(),
            None => stack.protocol::<SsrFrames>().is_some_and(|frames| frames.inner().is_answered()),
        });
        !is_wrong && is_answered
    }
}

/// The exchange in front of the stream; what comes behind it stays unread in `wire`.
pub(crate) async fn exchange(stream: &Stream, front: &mut DialledObfs, wire: &mut RecvBuf) -> io::Result<()> {
    loop {
        let mut out = Vec::new();
        let is_done = front.handshake(wire, &mut out).map_err(io::Error::other)?;
        if !out.is_empty() {
            stream.send_all(&out).await?;
        }
        if is_done {
            return Ok(());
        }
        make_room(wire)?;
        let received = stream.recv(wire.free_mut()).await?;
        if received == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed without a reply"));
        }
        wire.filled(received);
    }
}

/// A buffer that is full is replaced by a larger one.
fn make_room(wire: &mut RecvBuf) -> io::Result<()> {
    if !wire.free_mut().is_empty() {
        return Ok(());
    }
    let len = if wire.capacity() == 0 { HANDSHAKE } else { LONGEST_HANDSHAKE };
    if wire.unread().len() >= len {
        return Err(io::Error::other("the server's handshake is too long"));
    }
    let mut larger = RecvBuf::with_len(len);
    larger.extend(wire.unread());
    *wire = larger;
    Ok(())
}

/// A ShadowsocksR client on one core.
pub(super) struct SsrOutbound(pub(super) ServerDialer<SsrShared>);

impl AsRef<Server> for SsrShared {
    fn as_ref(&self) -> &Server {
        &self.server
    }
}

impl OutboundFactory for Arc<SsrShared> {
    fn on_core(&self, connector: Connector, around: &OutboundDeps<'_>) -> OutboundHandle {
        let outbound = Rc::new(SsrOutbound(ServerDialer::new(connector, self)));
        let packets = self.server.carries_datagrams().then(|| {
            let over_tcp = self.datagrams_over_tcp.then(|| (outbound.clone(), around.pool.clone()));
            let packets = SsrClientPackets::new(self.clone(), around.model, around.udp, around.dns, over_tcp);
            Rc::new(packets) as Rc<dyn PacketOutbound>
        });
        OutboundHandle { outbound, packets }
    }
}

impl SsrOutbound {
    async fn open(&self, target: &Target) -> Result<OpenedConnection, OpenError> {
        let stream = self.0.dial().await?;
        let ServerDialer { connector, shared, .. } = &self.0;
        let far = Box::pin(shared.start_stream(stream, target, Watched::new)).await?;
        Ok(connector.settle(OpenedConnection::new(far, Policy::default())))
    }

    /// The outbound's name in logs and status.
    pub(super) fn tag(&self) -> &Tag {
        &self.0.connector.name
    }

    /// The stream of datagrams is over.
    pub(super) fn close_datagrams(&self, end: Endpoint, reason: EndReason) {
        let outcome =
            RelayOutcome { reason, up: 0, down: 0, replay: None, is_clean: false, near_ended: true };
        self.close(OpenedConnection::new(end, Policy::default()), &outcome);
    }

    fn close(&self, mut opened: OpenedConnection, outcome: &RelayOutcome) {
        end_of_cut(&opened, outcome);
        let by_server = matches!(outcome.reason, EndReason::Socket(Side::Far, _) | EndReason::Finished);
        if by_server && !SsrShared::has_replied(&mut opened, outcome) {
            self.0.connector.metrics.early_closes.add(1);
        }
    }
}

impl Outbound for SsrOutbound {
    fn name(&self) -> &Tag {
        self.tag()
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

    fn has_replied(&self, opened: &mut OpenedConnection, outcome: &RelayOutcome) -> bool {
        SsrShared::has_replied(opened, outcome)
    }

    fn release(&self, opened: OpenedConnection, outcome: &RelayOutcome, _pool: &Pool) {
        self.close(opened, outcome);
    }

    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(self.0.connector.lookup(name))
    }
}
