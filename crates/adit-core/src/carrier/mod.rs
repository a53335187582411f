//! Carriers: transports that replace TCP beneath a stream.
//!
//! A carrier's streams are [`Stream`](adit_net::rt::Stream)s like any other: the relay, every protocol and every local
//! port run over them unchanged. There is one carrier, KCP; its packets are datagrams, or go
//! by streams that others make ([`StreamPath`], [`Hub`]). Modules above name it by its function.

pub(crate) mod kcp;

use std::io;
use std::sync::Arc;

use adit_config::model;
use adit_net::udp::check_raw;

pub(crate) use kcp::{
    Attachment, CarrierShared, CarrierSocket, Context, Hub, KcpMetrics as Metrics, KcpSessions,
    KcpStatus as Status, MakeWay, Memory, MemoryStatus, StreamPath, serve,
};

/// The carrier beneath the streams of `outbound`, if it has one.
///
/// # Errors
/// When it needs raw sockets and the system gives none: sessions are made later, when they are needed.
pub(crate) fn for_outbound(outbound: &model::Outbound) -> io::Result<Option<Arc<CarrierShared>>> {
    let Some(carrier) = &outbound.dial.carrier else { return Ok(None) };
    if carrier.kcp.raw_tcp {
        check_raw()?;
    }
    Ok(Some(Arc::new(CarrierShared::new(&outbound.name, &carrier.kcp))))
}
