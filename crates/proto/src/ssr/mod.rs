//! ShadowsocksR: every stream cipher, protocol and obfs that a living program speaks, TCP and UDP, both ends.
//!
//! ```text
//!   client: application -> protocol -> cipher -> obfs -> socket          server: the same, the other way round
//!   datagrams: IV | cipher(protocol(address | payload)); obfs is for streams only
//! ```
//!
//! | part | client | server |
//! |---|---|---|
//! | obfs | [`obfs::SsrObfsClient`] | [`obfs::SsrObfsServer`] |
//! | cipher | [`CipherLayer::client`] | [`CipherLayer::server`] |
//! | protocol | [`protocol::SsrClientStream`] | [`protocol::SsrServerStream`] |
//! | datagrams | [`udp::SsrClientUdp`] | [`udp::SsrServerUdp`] |
//! | datagrams in a stream | [`over_tcp::Frames`] | [`over_tcp::Frames`] |
//!
//! Each stream part is a [`Layer`](crate::wire::Layer). An obfs may begin with a handshake of its own, which the caller
//! drives before the stack carries anything: see [`obfs`]. The protocol needs the IV of the client's direction, which it
//! takes from the cipher layer ([`CipherLayer::client_iv`]).
//!
//! A server reads what its protocol layer yields: an address first ([`parse_request`]), then payload.
//! [`protocol::SsrServerStream::state`] says who the client is, or why it is refused ([`Refusal`]).
//!
//! `go_quiet` in place of an obfs is made of the layers of [`crate::goquiet`], under the password itself.
//!
//! Format and sources: `docs/protocols/ssr.md`.

mod cipher;
mod clients;
mod key;
mod name;
pub mod obfs;
pub mod over_tcp;
pub mod protocol;
mod refusal;
mod request;
#[doc(hidden)]
pub mod ssr_fuzz;
pub mod udp;

pub use cipher::CipherLayer;
pub use clients::{ClientIds, Clients};
pub use key::{SharedIv, SsrKey, SsrUserKeys};
pub use name::{Chain, NameError, Obfs, SsrMethod, SsrProtocol};
pub use refusal::Refusal;
pub use request::{ParsedAddress, parse_request};
