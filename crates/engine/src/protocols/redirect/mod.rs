//! Connections and datagrams that the system redirects here.

pub(crate) mod inbound;
mod inbound_udp;
