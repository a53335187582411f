//! Snell v6, mode default: v4's frames behind a shape that depends on the pre-shared key.
//!
//! ```text
//!   direction:  salt block, frame 0, frame 1, ...           frame numbers never restart
//!
//!   salt block: 32 to 144 bytes of filler, in which the 16 salt bytes are masked and scattered
//!
//!   frame:   offset  size   field
//!            0       F      filler: F = 8 to 128, from the key and the frame number alone
//!            F       23     Seal(key, nonce n,   header[7],  AAD = those F bytes)
//!            F+23    P      padding, parts of it exchanged with the sealed payload at the same indices
//!            F+23+P  L+16   Seal(key, nonce n+1, payload[L], AAD = padding before the exchange); absent when L = 0
//!   header:  04 | 00 00 | P (u16 BE) | L (u16 BE)           P, L <= 65535; L = 0 is the zero chunk, with any P
//! ```
//!
//! Key derivation, nonces, requests and replies are those of v4. Everything that depends on the pre-shared key alone
//! is a [`Profile`], made once. A receiver must agree on: length and scattering of the salt block, the lengths F,
//! and the exchange. Contents of filler and lengths of padding and payload are the sender's affair; here lengths
//! follow the rules that Surge and sing-box share, and filler has their shape but is drawn anew for each connection,
//! since bytes that repeat would give a deployment away. Facts: `docs/protocols/snell-v6.md`.

mod fill;
mod frame;
mod policy;
mod profile;
#[cfg(test)]
mod tests;

pub(super) use frame::{V6FrameOpener, V6FrameSealer, put_header};
pub use profile::Profile;
