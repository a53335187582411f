//! Shadowsocks, as a server and as a client.

mod answers;
pub(crate) mod inbound;
pub(crate) mod inbound_udp;
mod key_search_queue;
mod multi_key;
pub(crate) mod outbound;
mod outbound_udp;
mod relay;
mod sessions;
