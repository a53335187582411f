//! The second generation: AEAD chunks under a subkey per connection or datagram (SIP004 with SIP007).
//!
//! ```text
//!   subkey             HKDF-SHA1(master key, salt, "ss-subkey")
//!   stream, each way   salt | chunk ...      see the chunk module; at most 0x3FFF bytes of payload each
//!     client to server: the plaintext of all chunks begins with the address, which may span chunks
//!   datagram, both     salt | sealed (address, data) | tag      nonce 0, a fresh salt each time
//! ```
//!
//! Salts are as long as keys. shadowsocks-libev 3.3.5 takes a first chunk that arrives in more than three pieces for
//! an attack: salt and first chunk leave in one write.

mod aead_tcp;
mod aead_udp;
mod ahead;

pub use self::aead_tcp::{AeadAcceptor, AeadClientStream, AeadServerStream};
pub use self::aead_udp::AeadPackets;

use zeroize::Zeroizing;

use super::chunk::DirectionKey;
use super::key::AeadKey;
use crate::crypto::hkdf_sha1;

/// Longest payload of a chunk (SIP004, "TCP").
pub const MAX_CHUNK: usize = 0x3fff;

/// The HKDF info string of subkeys (SIP004).
const SUBKEY_INFO: &[u8] = b"ss-subkey";

fn subkey(key: &AeadKey, salt: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut subkey = Zeroizing::new([0; 32]);
    hkdf_sha1(key.master.expose(), salt, SUBKEY_INFO, &mut subkey[..key.method.key_len()]);
    subkey
}

fn direction_key(key: &AeadKey, salt: &[u8]) -> DirectionKey {
    DirectionKey::new(key.method, &subkey(key, salt)[..key.method.key_len()])
}
