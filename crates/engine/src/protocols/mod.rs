//! Protocols: each folder has all of the I/O of one, [`registry`] is the list of them.

pub(crate) mod direct;
mod dns;
mod obfs;
mod redirect;
pub(crate) mod registry;
mod reject;
pub(crate) mod shadowsocks;
pub(crate) mod snell;
mod socks_http;
mod ssr;
mod tun;
mod tunnel;
