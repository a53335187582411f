//! The third generation: SIP022 ("AEAD-2022") with the identity headers of SIP023.
//!
//! ```text
//!   session key    BLAKE3 derive_key("shadowsocks 2022 session subkey", PSK | salt), as long as the PSK
//!
//!   request        salt | identity header (16) ... | fixed (11) tag | variable tag | chunk ...
//!     fixed        type 0 (1) | Unix seconds (8) | length of the variable header (2)
//!     variable     address | padding length (2) | padding, 0..=900 | first payload
//!   response       salt | type 1 (1), Unix seconds (8), request salt, length (2), tag | payload tag | chunk ...
//!
//!   identity       AES(BLAKE3 derive_key("shadowsocks 2022 identity subkey", iPSK | salt), hash of the next key)
//! ```
//!
//! Integers are big-endian. Nonces count as in SIP004, the two header pieces included; the payload that follows the
//! response header has no length chunk. Chunks hold up to 0xFFFF bytes. Either padding or a first payload must be
//! there. Salt, identity headers and both pieces of the request leave in one write, since servers take a shorter first
//! read for a probe (SIP022, "Detection Prevention"; observed from shadowsocks-rust 1.25.0 and sing-box 1.13.2).
//!
//! ```text
//!   AES datagram     AES(separate header) | identity headers | sealed body | tag     nonce: header bytes 4..16
//!     header         session id (8) | packet id (8)
//!     identity       AES(iPSK, hash of the next key XOR plain header)
//!   ChaCha datagram  nonce (24) | sealed (header, body) | tag
//!   body, request    type 0 (1) | Unix seconds (8) | padding length (2) | padding | address | payload
//!   body, response   type 1 (1) | Unix seconds (8) | client session id (8) | padding length (2) | padding | address
//!                    | payload
//! ```
//!
//! The separate header goes under the outermost identity key to the server, and under the user's own back; the body of
//! AES datagrams under the session key with the session id as salt, that of ChaCha datagrams under the PSK itself.

mod aead2022_tcp;
mod packets;
mod relay;
mod server_packets;
mod window;

pub use self::aead2022_tcp::{Aead2022Acceptor, Aead2022ClientStream, Aead2022ServerStream};
pub use packets::Aead2022ClientPackets;
pub use relay::{Relay, Relayed};
pub use server_packets::{Aead2022ServerPackets, Session, SessionHeader};

use super::chunk::DirectionKey;
use super::key::{Keys2022, Sip022Psk, session_key};
use super::method::{AeadMethod, Method2022};
use crate::crypto::AesBlock;
use crate::wire::Rng;

/// Longest payload of a chunk.
pub const MAX_CHUNK: usize = 0xffff;
/// Longest padding of a header.
pub const MAX_PADDING: usize = 900;

const IDENTITY_LEN: usize = 16;
const TYPE_REQUEST: u8 = 0;
const TYPE_RESPONSE: u8 = 1;

fn direction_key(method: Method2022, psk: &Sip022Psk, salt: &[u8]) -> DirectionKey {
    DirectionKey::new(AeadMethod::Short(method.algorithm()), &session_key(psk, salt)[..method.key_len()])
}

/// 1..=[`MAX_PADDING`].
fn draw_padding(rng: &mut dyn Rng, longest: usize) -> usize {
    let bound = u32::try_from(longest).expect("paddings are short");
    1 + usize::try_from(rng.below(bound)).expect("paddings are short")
}

impl Keys2022 {
    /// Each identity key with the hash of the key that its header names.
    fn identity_steps(&self) -> impl Iterator<Item = (&Sip022Psk, &[u8; 16])> {
        let next = self.identities.iter().skip(1).chain([&self.user]);
        self.identities.iter().zip(next.map(|psk| &psk.hash))
    }
}

/// Identity header of a stream: names the key with `hash` to the holder of `psk`.
fn identity_cipher(method: Method2022, psk: &Sip022Psk, salt: &[u8]) -> AesBlock {
    AesBlock::new(&super::key::identity_key(psk, salt)[..method.key_len()])
}
