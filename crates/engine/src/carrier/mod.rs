//! Carriers: transports that replace TCP beneath a stream.
//!
//! A carrier's streams are [`Stream`](adit_net::rt::Stream)s like any other: the relay, every protocol and every local
//! port run over them unchanged. There is one carrier, KCP; its packets are datagrams, or go
//! by streams that others make ([`StreamPath`], [`Hub`]). Modules above name it by its function.

pub(crate) mod kcp;
mod sessions;
mod streams;

use std::io;
use std::sync::Arc;

use adit_model as model;
use adit_net::udp::check_raw;

pub use kcp::{Attachment, Hub};
pub(crate) use kcp::{
    CarrierShared, CarrierSocket, Context, KcpMetrics as Metrics, KcpSessions, KcpStatus as Status, Memory,
    MemoryStatus, serve,
};
pub use sessions::SessionServer;
pub use streams::{Hold, MakeStreamPath, PacketPort, PacketStreams, PortFuture, StreamPath};

/// The carrier beneath the streams of `outbound`, if it has one.
///
/// # Errors
/// When it needs raw sockets and the system gives none, or streams and there are no `streams`: sessions are made later,
/// when they are needed.
pub(crate) fn for_outbound(
    outbound: &model::Outbound,
    streams: Option<&dyn PacketStreams>,
) -> io::Result<Option<Arc<CarrierShared>>> {
    let Some(carrier) = &outbound.dial.carrier else { return Ok(None) };
    if carrier.snowflake.is_some() && streams.is_none() {
        return Err(streams::missing());
    }
    if carrier.kcp.raw_tcp {
        check_raw()?;
    }
    Ok(Some(Arc::new(CarrierShared::new(&outbound.name, &carrier.kcp))))
}

/// The port of an inbound whose packets come by streams, if they do.
///
/// # Errors
/// When there are no `streams`, or a certificate cannot be used.
pub(crate) fn port_for(
    kcp: &model::Kcp,
    streams: Option<&dyn PacketStreams>,
    cores: usize,
    memory: usize,
) -> io::Result<Option<Arc<dyn PacketPort>>> {
    let Some(settings) = &kcp.snowflake else { return Ok(None) };
    streams.ok_or_else(streams::missing)?.port(settings, cores, memory).map(Some)
}
