//! ShadowsocksR, as a server and as a client.

mod front;
pub(crate) mod inbound;
mod inbound_udp;
pub(crate) mod outbound;
mod outbound_udp;
pub(crate) mod refusals;
mod udp_over_tcp;
mod watched;
