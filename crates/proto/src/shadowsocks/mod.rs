//! Shadowsocks: every method of shadowsocks-libev 3.3.5 and shadowsocks-rust 1.25, TCP and UDP, both ends.
//!
//! | generation | folder | stream | datagram |
//! |---|---|---|---|
//! | none, stream ciphers | [`stream`] | `IV`, keystream | `IV`, keystream |
//! | SIP004 (AEAD) | [`aead`] | `salt`, sealed chunks | `salt`, one sealed piece |
//! | SIP022 / SIP023 | [`aead2022`] | `salt`, identity headers, sealed headers and chunks | sessions |
//!
//! The first thing in a client's stream is the target's address. [`ShadowsocksClientStream`] puts it, sealed, in front of the first
//! payload, so that both leave in one segment. A server begins with an [`ShadowsocksAcceptor`], which yields [`Accepted`], and
//! goes on as a [`ShadowsocksServerStream`]. Datagrams go through a [`PacketCodec`], except those of a SIP022 server, which has to
//! find the session first ([`aead2022::Aead2022ServerPackets`]).
//!
//! Wall time enters as [`WallClock`] or Unix seconds, randomness as [`Rng`](crate::wire::Rng), and what has been
//! seen before is asked of a [`SaltFilter`].

pub mod aead;
pub mod aead2022;
mod chunk;
mod key;
mod method;
mod packet;
pub mod replay;
#[doc(hidden)]
pub mod shadowsocks_fuzz;
pub mod stream;
mod tcp;

use std::ops::Range;

use crate::wire::{Target, WireError};

pub use key::{
    AeadKey, IdentityKeys, KeyError, Keys2022, MethodKey, SecretBytes, ServerKey, Sip022Psk, StreamKey,
    UserId,
};
pub use method::{AeadMethod, Generation, Method2022, ShadowsocksMethod, UnknownMethod};
pub use packet::{PacketCodec, ShadowsocksPacket, TOGETHER, client_packets, fuzz_packets};
pub use replay::{NoFilter, SaltFilter};
pub use tcp::{
    ShadowsocksAcceptor, ShadowsocksClientStream, ShadowsocksServerStream, fuzz_accept, fuzz_response,
};

pub use crate::wire::WallClock;

/// A connection that has asked for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Target that the client asks for.
    pub target: Target,
    /// The user in the server's table, if there are users.
    pub user: Option<UserId>,
    /// Payload that came with the request, as a range into the block of the [`RecvBuf`](crate::buf::RecvBuf).
    pub payload: Range<usize>,
}

/// Result of an [`ShadowsocksAcceptor`] for the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accept {
    /// At least this many further bytes (never 0) are needed.
    NeedMore(usize),
    /// The request is complete.
    Accepted(Accepted),
}

/// A salt or IV.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Salt {
    bytes: [u8; 32],
    len: u8,
}

impl Salt {
    fn random(len: usize, rng: &mut dyn crate::wire::Rng) -> Self {
        let mut bytes = [0; 32];
        if len > 0 {
            rng.fill(&mut bytes[..len]);
        }
        Self { bytes, len: u8::try_from(len).expect("salts have at most 32 bytes") }
    }

    fn from_slice(salt: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..salt.len()].copy_from_slice(salt);
        Self { bytes, len: u8::try_from(salt.len()).expect("salts have at most 32 bytes") }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn len(&self) -> usize {
        self.len.into()
    }
}

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salt(")?;
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// SIP022: how far a sender's clock may be off, either way (equality is accepted).
pub const CLOCK_WINDOW_S: u32 = 30;

/// Checks a timestamp of SIP022.
fn check_clock(sender_s: u64, ours_s: u64) -> Result<(), WireError> {
    if sender_s.abs_diff(ours_s) <= CLOCK_WINDOW_S.into() {
        return Ok(());
    }
    let distance = i64::try_from(sender_s.abs_diff(ours_s)).unwrap_or(i64::MAX);
    let offset_s = if sender_s > ours_s { distance } else { -distance };
    Err(WireError::Clock { offset_s, window_s: CLOCK_WINDOW_S })
}
