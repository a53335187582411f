//! Datagrams from clients to targets and back, for every protocol that carries them.
//!
//! An [`Engine`] is one listening socket on one core with its flows. It is one future. A turn takes a batch from the
//! listener and one from each flow that has something, opens and seals in the core's one [`Batch`], and sends from
//! there. A flow has no task, no channel and no timer; it wakes the engine by putting its name on a list.
//!
//! ```text
//!   client side                                                             target side
//!   listener ─ batch ─ PacketInbound::open ─ decide ─ flow table ─ seal ─ flow's socket ─→ target, or a server
//!            ←─ send ─ PacketInbound::seal ─────────────────────── open ─ batch ──────── (any source: full cone)
//! ```
//!
//! No protocol is named here. The protocol of clients is a [`PacketInbound`], the way to targets is a
//! [`PacketOutbound`], and [`DatagramRouter`] decides which outbound a client's datagrams for one target take.

mod aliases;
mod drops;
mod engine;
mod flow_lookup;
mod frames;
mod gather;
mod inbound;
mod outbound;
mod port;
mod ready_flows;
pub(crate) mod rebind;
mod routes;
mod scratch;
mod session_exchange;
mod sniff_cache;
mod table;
mod traffic_class;

#[cfg(test)]
mod table_model;
#[cfg(test)]
mod tests;

pub(crate) use self::aliases::{Alias, Aliases};
pub(crate) use self::flow_lookup::FlowLookup;
pub(crate) use self::session_exchange::{Moved, SessionOwners};
pub(crate) use self::sniff_cache::{SniffCache, SniffedDatagrams};
pub(crate) use self::traffic_class::Marks;
pub(crate) use drops::{DropReason, Tally};
pub(crate) use engine::{BATCHES, Engine, Listener, MAX_WAITING, Renewal};
pub(crate) use frames::Frames;
pub(crate) use gather::Gather;
pub(crate) use inbound::{
    Arrival, DatagramTarget, FlowClient, OpenedDatagram, PacketInbound, Peer, bare_room,
};
pub(crate) use outbound::{
    CarrierChoice, FlowClass, FlowCodec, FlowStream, FlowTransport, PacketFlow, PacketOutbound, Witness,
    set_options,
};
pub(crate) use port::{ClientSide, DatagramPort};
pub(crate) use routes::{DatagramDecision, DatagramRouter, OutboundId, RouteQuery, RouteReason};
pub(crate) use scratch::{Scratch, SharedScratch};
pub(crate) use table::{FlowId, FlowTable, FlowTick};
