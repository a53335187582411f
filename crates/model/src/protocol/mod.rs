//! Settings of protocols, one file each: its inbound, its outbound, and the parts of both.

pub(crate) mod kcp;
pub(crate) mod obfs;
pub(crate) mod redirect;
pub(crate) mod shadowsocks;
pub(crate) mod snell;
pub(crate) mod snowflake;
pub(crate) mod snowflake_peers;
pub(crate) mod socks_http;
pub(crate) mod ssr;
pub(crate) mod tun;
