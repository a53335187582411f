//! The outbound that reaches targets itself.

pub(crate) mod outbound;
pub(crate) mod outbound_udp;
