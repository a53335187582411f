//! Snell over TCP, client and server: v4 and v5 here, v6 in [`Profile`]'s module, v1 to v3 among the frames without
//! padding.
//!
//! There is no published specification; `docs/protocols/snell.md` gathers what running implementations do, and
//! the vectors in `testdata/snell` were recorded from them. One direction of a connection is
//!
//! ```text
//!   salt[16] frame frame frame ...
//!
//!   frame:   offset  size   field
//!            0       23     Seal(key, nonce n,   header[7])
//!            23      P      padding, exchanged byte by byte with the sealed payload at even offsets
//!            23+P    L+16   Seal(key, nonce n+1, payload[L]); absent when L = 0
//!   header:  04 | 00 00 | P (u16 BE) | L (u16 BE)          P, L <= 16383; P = L = 0 is the zero chunk
//! ```
//!
//! with `key` = first 16 bytes of Argon2id over the pre-shared key and the salt ([`SnellPsk`]), AES-128-GCM, and a
//! little-endian nonce counter per direction. On top of that byte stream an exchange is a request and its data
//! one way, a reply byte and its data the other ([`SnellClientStream`], [`SnellServerStream`]); after command 5 both ends close an
//! exchange with a zero chunk and the connection serves the next one.

#[cfg(all(target_arch = "x86_64", any(test, not(debug_assertions))))]
mod argon;
mod bare;
mod client;
mod codec;
mod frame;
mod kdf;
mod padding;
mod request;
mod server;
#[doc(hidden)]
pub mod snell_fuzz;
#[cfg(test)]
mod tests;
pub mod udp;
mod v6;
#[cfg(test)]
mod versions_tests;

pub use client::SnellClientStream;
pub use codec::{Accepts, CandidateKey, Format, Opening};
pub use frame::{MAX_FRAME_LEN, MAX_LONG_FRAME_LEN, MAX_PAYLOAD, OPENING_LEN};
pub use kdf::{SALT_LEN, Salt, SnellDirectionKey, SnellPsk};
pub use request::{ErrorReply, MAX_ERROR_TEXT, SnellCommand, SnellRequest};
pub use server::{Progress, SnellServerStream};
pub use v6::Profile;
