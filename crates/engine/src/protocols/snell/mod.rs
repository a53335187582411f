//! Snell, as a server and as a client.

pub(crate) mod format;
pub(crate) mod inbound;
mod inbound_udp;
mod key_supply;
mod keys;
pub(crate) mod outbound;
mod outbound_udp;
mod owner;
mod quic;
mod udp_over_tcp;
