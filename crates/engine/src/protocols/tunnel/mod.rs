//! A port that leads to one target.

pub(crate) mod inbound;
mod inbound_udp;
