//! SOCKS and HTTP proxies: the local port of clients, and servers that are used.

mod http;
pub(crate) mod inbound;
mod inbound_udp;
pub(crate) mod outbound;
mod outbound_udp;
