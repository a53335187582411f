//! Inbounds over a carrier: streams of sessions come in the place of connections.

use std::any::Any;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;

use adit_model as model;
use adit_net::handover;
use adit_net::rt::{self, Stop};
use adit_net::udp::divert::Switch;

use super::InboundSlot;
use crate::carrier::{self, PacketPort, PacketStreams};
use crate::datagram::rebind::Rebind;

/// The carrier of an inbound, over all cores.
#[derive(Debug, Clone)]
pub(crate) struct CarrierOptions {
    carrier: Arc<carrier::CarrierShared>,
    /// Packets come by streams, in the place of datagrams.
    port: Option<Arc<dyn PacketPort>>,
}

impl CarrierOptions {
    /// The carrier of `inbound`, if it has one; `memory` is the bound of all sessions in bytes.
    ///
    /// # Errors
    /// When a certificate cannot be used, or packets come by streams and there are no `streams`.
    pub(crate) fn new(
        inbound: &model::Inbound,
        streams: Option<&dyn PacketStreams>,
        cores: usize,
        memory: usize,
    ) -> io::Result<Option<Self>> {
        let Some(kcp) = inbound.socket.carrier.as_deref() else { return Ok(None) };
        let port = carrier::port_for(kcp, streams, cores, memory)?;
        Ok(Some(Self { carrier: Arc::new(carrier::CarrierShared::new(&inbound.name, kcp)), port }))
    }

    /// Its counters.
    pub(crate) fn metrics(&self) -> &Arc<carrier::Metrics> {
        &self.carrier.metrics
    }

    /// Whether packets come by streams.
    pub(crate) fn takes_streams(&self) -> bool {
        self.port.is_some()
    }

    /// The packets of the sessions on core `at`, if they come by streams.
    pub(crate) fn link(&self, at: usize) -> Option<carrier::CarrierSocket> {
        self.port.as_ref().map(|port| carrier::CarrierSocket::Streams(port.hub(at)))
    }
}

/// Takes the streams of the sessions that come by `link` for the inbound in `slot` until told to drain, and carries
/// those that are open to their ends.
pub(crate) async fn accept_carried(
    slot: InboundSlot,
    beneath: CarrierOptions,
    context: carrier::Context,
    link: impl FnOnce() -> io::Result<carrier::CarrierSocket>,
    stop: Stop,
    switch: Rc<Switch>,
    rebind: Rc<Rebind>,
) {
    handover::opened().await;
    let (taking, mut ending, passed) = (slot.clone(), stop.clone(), switch.clone());
    let CarrierOptions { carrier, port } = beneath;
    let take = move |stream, peer| {
        let peer = port.as_ref().map_or(peer, |port| port.source(peer));
        // No other process knows the session.
        if !stop.is_draining() || passed.is_passed() {
            taking.borrow().spawn(stream, peer);
        }
    };
    let serve = async {
        let served = match link() {
            Ok(link) => Box::pin(carrier::serve(carrier, context, link, switch, rebind, take)).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::error!(inbound = &*slot.borrow().inbound().name, %error, "listener of the carrier lost");
        }
    };
    rt::race(ending.ending(), Box::pin(serve)).await;
}

/// Takes the connections that bring the packets of sessions, on core `at`, until told to drain.
pub(crate) async fn accept_packets(
    slot: InboundSlot,
    beneath: CarrierOptions,
    at: usize,
    listener: TcpListener,
    stop: Stop,
) {
    handover::opened().await;
    let Some(port) = beneath.port else { return };
    let places = slot.borrow().inbound().core.places.clone();
    let hold = Box::new(move || -> Box<dyn Any> { Box::new(places.stream()) });
    if let Err(error) = port.serve(at, listener, hold, stop).await {
        tracing::error!(inbound = &*slot.borrow().inbound().name, %error, "listener lost");
    }
}
