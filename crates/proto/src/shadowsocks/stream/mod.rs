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

mod tcp;
mod udp;

pub use tcp::{StreamCipherAcceptor, StreamCipherClientStream, StreamCipherServerStream};
pub use udp::StreamCipherPackets;
