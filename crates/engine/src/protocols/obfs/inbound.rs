//! The server side of an obfs alone, as plugins of Shadowsocks have it: every stream goes to one fixed target, without
//! the obfs.
//!
//! A client without the obfs, or without GoQuiet's key, goes to the fallback server. Without one it is left alone, as
//! [`crate::listener::unauthenticated`] does.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_model::{self as model, ObfsServer, ObfsServerLayer};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::goquiet;
use adit_proto::wire::{Layer, Target, WireError};

use crate::datagram::{PacketInbound, SessionOwners};
use crate::listener::connected::{ProxiedConnection, Served};
use crate::listener::fallback::{FallbackClient, RefusedClient, Servers};
use crate::listener::unauthenticated::{FIRST_READ, Refusal, draw_deadline, in_time};
use crate::listener::{Inbound, InboundFactory, InboundServer};
use crate::protocols::obfs::layer::server_layer;
use crate::protocols::ssr::refusals::Cause;
use crate::relay::{Early, Endpoint, Outer, Stack, take_early};
use crate::rng::OsRng;

/// Bytes of a client that are buffered until its obfs is known: a TLS record of 16 KiB, and room behind it.
const LONGEST: usize = 32 * 1024;

/// The state that the server side of an obfs shares over all cores.
#[derive(Debug)]
pub(crate) struct ObfsServerShared {
    target: Target,
    fallback: Servers,
    shape: Shape,
    deadline: Duration,
}

#[derive(Debug)]
enum Shape {
    Simple(ObfsServer),
    Quiet(goquiet::GoQuietServerConfig),
}

impl ObfsServerShared {
    pub(crate) fn start(config: &model::ObfsInbound) -> io::Result<Self> {
        let shape = match &config.layer {
            ObfsServerLayer::Simple(obfs) => Shape::Simple(*obfs),
            ObfsServerLayer::GoQuiet(key) => Shape::Quiet(goquiet::GoQuietServerConfig::new(
                goquiet::GoQuietKey::new(key.expose().as_bytes()),
            )),
        };
        Ok(Self {
            target: config.target.clone(),
            fallback: Servers::new(&config.redirect)?,
            shape,
            deadline: draw_deadline(),
        })
    }

    /// The obfs whose words an answer to an unauthenticated client is in.
    fn obfs(&self) -> ObfsServer {
        match &self.shape {
            Shape::Simple(obfs) => *obfs,
            Shape::Quiet(_) => ObfsServer::Off,
        }
    }

    /// Takes the obfs off the first bytes of a client. `cause` says why it is refused.
    async fn admit(
        &self,
        stream: &Stream,
        fallback: &FallbackClient<'_>,
        cause: &Cell<Option<Cause>>,
    ) -> Result<Admitted, Refusal> {
        let mut wire = RecvBuf::with_len(FIRST_READ);
        match &self.shape {
            Shape::Simple(obfs) => {
                let layer: Box<dyn Layer> = server_layer(*obfs).ok_or(Refusal::Gone)?;
                let refused = |error: WireError| {
                    cause.set(Some(Cause::Wire(error.clone())));
                    Refusal::Obfs(error)
                };
                read_payload(Stack::new(layer, Outer::default()), stream, &mut wire, fallback, refused).await
            }
            Shape::Quiet(config) => {
                let refused = |why: Cause| {
                    let error = why.error();
                    cause.set(Some(why));
                    Refusal::Wire(error)
                };
                let mut server = goquiet::GoQuietServerStream::new(config, rt::unix_time(), &mut OsRng);
                loop {
                    fallback.receive(stream, &mut wire, LONGEST).await?;
                    let mut out = Vec::new();
                    let shake =
                        server.handshake(&mut wire, &mut out).map_err(|e| refused(Cause::Quiet(e)))?;
                    if !out.is_empty() {
                        fallback.close();
                        stream.send_all(&out).await.map_err(|_| Refusal::Gone)?;
                    }
                    if shake == goquiet::GoQuietHandshake::Done {
                        break;
                    }
                }
                let stack = Stack::new(server, Outer::default());
                let refused = |error| refused(Cause::Wire(error));
                read_payload(stack, stream, &mut wire, fallback, refused).await
            }
        }
    }
}

/// Receives until there is payload. The target is dialled for no less.
async fn read_payload(
    mut stack: Stack,
    stream: &Stream,
    wire: &mut RecvBuf,
    fallback: &FallbackClient<'_>,
    refused: impl Fn(WireError) -> Refusal,
) -> Result<Admitted, Refusal> {
    let mut early = Early::default();
    loop {
        if !wire.unread().is_empty() {
            let tail = take_early(&mut stack, wire, &mut early).map_err(&refused)?;
            if !early.bytes.is_empty() || early.ended {
                return Ok(Admitted { stack, tail, early });
            }
        }
        fallback.receive(stream, wire, LONGEST).await?;
    }
}

/// A client whose obfs is the right one.
struct Admitted {
    stack: Stack,
    tail: Vec<u8>,
    early: Early,
}

impl InboundFactory for Arc<ObfsServerShared> {
    fn on_core(&self) -> Rc<dyn InboundServer> {
        Rc::new(ObfsServerSide(self.clone()))
    }
}

/// The server side of an obfs on one core.
struct ObfsServerSide(Arc<ObfsServerShared>);

impl InboundServer for ObfsServerSide {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Served {
        Box::pin(async move { prepare(&inbound, &self.0, stream, peer).await })
    }

    fn packets(&self, _: &Inbound, _: (Arc<SessionOwners>, usize)) -> Option<Box<dyn PacketInbound>> {
        None
    }
}

/// Everything up to the relay; clients that are refused are dealt with here.
async fn prepare(
    inbound: &Inbound,
    shared: &ObfsServerShared,
    stream: Stream,
    peer: SocketAddr,
) -> Option<Box<ProxiedConnection>> {
    let now = rt::now();
    let ticket = inbound.guard.enter(peer.ip(), now);
    let (until, deadline) = (now + shared.deadline, shared.deadline);
    let (fallback, cause) = (FallbackClient::new(&shared.fallback), Cell::new(None));
    let admission = Box::pin(shared.admit(&stream, &fallback, &cause));
    let Admitted { stack, tail, early } = match in_time(&ticket, until, admission).await {
        Ok(admitted) => admitted,
        Err(refusal) => {
            if let Some(cause) = cause.take() {
                inbound.core.refusals.report(&inbound.name, peer, &cause, rt::now());
            }
            let refused = RefusedClient { ticket, refusal, until, deadline };
            Box::pin(fallback.refuse(inbound, stream, peer, refused, shared.obfs())).await;
            return None;
        }
    };
    match &shared.shape {
        Shape::Quiet(_) => ticket.authenticated(rt::now()),
        // It has proved nothing.
        Shape::Simple(_) => drop(ticket),
    }
    let near = Endpoint { stream, stack: Some(Box::new(stack)), tail };
    ProxiedConnection::connect(inbound, near, peer, None, shared.target.clone(), early).await
}
