//! SOCKS 4, 4a and 5: the proxy's side of the handshake, the client's side of version 5, and the header of
//! relayed datagrams.
//!
//! ```text
//! SOCKS5 (RFC 1928, user/password: RFC 1929), lengths in bytes, ports big-endian
//!   C->S  05 | methods_len 1 | methods 0..255
//!   S->C  05 | method 1                                          00 none, 02 user/password, FF none acceptable
//!   C->S  01 | user_len 1 | user 0..255 | password_len 1 | password 0..255              (only after method 02)
//!   S->C  01 | status 1                                                                 00 accepted
//!   C->S  05 | command 1 | 00 | type 1 | address | port 2        01 connect, 02 bind, 03 UDP associate
//!   S->C  05 | reply 1   | 00 | type 1 | address | port 2
//!         type 01: address 4;  03: length 1, name 1..255;  04: address 16
//!   UDP   00 00 | fragment 1 | type 1 | address | port 2 | data
//!
//! SOCKS4, 4a (Ying-Da Lee's documents of the same names)
//!   C->S  04 | command 1 | port 2 | address 4 | user 0..255 | 00 [ name 1..255 | 00 ]   name iff 0.0.0.x, x != 0
//!   S->C  00 | code 1 | port 2 | address 4                       5A granted, 5B refused, 5D user not accepted
//! ```
//!
//! Nothing is encrypted. No unit is longer than [`MAX_UNIT_LEN`], so that a receive buffer of that size suffices;
//! bytes behind the request stay unread in it and are the first bytes of the stream.

mod address;
mod client;
mod server;
mod udp;

#[cfg(test)]
mod tests;

pub use client::{ClientEvent, SocksClient, fuzz_socks_client};
pub use server::{
    Auth, MAX_UNIT_LEN, ReplyCode, SocksError, SocksEvent, SocksRequest, SocksServer, SocksVersion,
    fuzz_socks_server,
};
pub use udp::{MAX_HEADER_LEN, emit_header, fuzz_socks_udp, header_len, parse_datagram};

/// Command of a client. BIND is refused while parsing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SocksCommand {
    /// A stream to the target.
    Connect,
    /// A relay for datagrams; the target says where the client will send from, mostly 0.0.0.0:0.
    UdpAssociate,
}
