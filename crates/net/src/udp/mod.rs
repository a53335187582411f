//! Datagrams, many at a time.
//!
//! One [`DatagramBatch`] per core holds the bytes: a socket receives into its slots, the protocol opens and seals them where
//! they lie, and other sockets send from there before the next batch comes. Nothing waits for room to send: what the
//! kernel does not take at once is dropped and counted.
//!
//! ```text
//!   block:  [ headroom | up to 65,535 bytes | tail ][ headroom | .. ] x 32        [ spare: copies that need room ]
//! ```
//!
//! A slot is touched only as far as data goes, and the slots are spaced so that their starts share no cache set.

mod batch;
mod gro;
mod group;
mod raw;
mod socket;
mod trial;
mod watch;

#[cfg(target_os = "linux")]
pub(crate) mod detour;
#[cfg(target_os = "linux")]
pub mod divert;
#[cfg(test)]
mod tests;

pub use adit_sys::udp::Fragmentation;
pub use batch::{Datagram, DatagramBatch, HEADROOM};
pub use group::Outgoing;
pub use raw::{RawListener, RawSocket, check_raw, listen_raw};
pub use socket::{Ability, Sent, Socket};

pub(crate) use socket::raise_buffers;
