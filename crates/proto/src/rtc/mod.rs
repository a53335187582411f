//! A peer connection of WebRTC with one data channel and no media, as a state machine.
//!
//! ```text
//!   messages of one channel ─ DCEP ─ SCTP ─ DTLS ─┐
//!                                                 ├─ datagrams, each with the addresses of both ends
//!   checks of the path, consent ─────────── ICE ──┘
//! ```
//!
//! ICE and DTLS are the crates `is` and `dimpl`. Here they are put together with SCTP (`sctp`), DCEP (RFC 8832), the lines
//! of SDP ([`sdp`]) and STUN for gathering ([`stun`]).
//!
//! # The order of calls
//!
//! An offerer adds its addresses, sends [`Peer::describe`] and gives the answer to [`Peer::set_remote`]. An answerer
//! gives the offer to [`Peer::set_remote`] first. From then on: datagrams go to [`Peer::handle_datagram`], and after
//! every call, and when [`Peer::poll_timeout`] has passed, [`Peer::poll_transmit`] has datagrams to send.
//!
//! # Bounds
//!
//! The memory of a peer is bounded by the receive window and the send buffer of SCTP, and by the queues of the handshake.
//! A hostile datagram is dropped or ends the connection. Datagrams of DTLS are taken only from addresses whose checks
//! knew the password of ICE.

mod certificate;
mod channel;
mod peer;
mod sctp;
pub mod sdp;
pub mod stun;

pub use certificate::Certificate;
pub use peer::{Outbox, Peer, PeerDatagram, PeerFailure, PeerRole, PeerSettings};

#[doc(hidden)]
pub use channel::fuzz_dcep;
#[doc(hidden)]
pub use peer::fuzz_peer;
#[doc(hidden)]
pub use sctp::fuzz_sctp;

#[cfg(test)]
mod path_tests;
#[cfg(test)]
mod tests;
