//! The first generation: a bare stream cipher, or none at all.
//!
//! ```text
//!   client to server   IV | enciphered (address, data ...)
//!   server to client   IV | enciphered (data ...)
//!   datagram, both     IV | enciphered (address, data)        a fresh IV each time
//! ```
//!
//! No frames, no authentication. The IV is empty for `none`, `table` and `rc4` (observed from shadowsocks-libev 3.3.5
//! and shadowsocks-rust 1.25.0).

mod stream_tcp;
mod stream_udp;

pub use self::stream_tcp::{StreamCipherAcceptor, StreamCipherClientStream, StreamCipherServerStream};
pub use self::stream_udp::StreamCipherPackets;
