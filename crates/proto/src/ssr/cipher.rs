//! The cipher layer: an IV in clear in front of each direction, then a keystream.
//!
//! ```text
//!   IV (length of the method, 0 for none, table and rc4) | enciphered stream ...
//! ```

use std::fmt;
use std::ops::Range;
use std::time::Instant;

use super::SsrKey;
use super::key::{Iv, SharedIv};
use crate::buf::RecvBuf;
use crate::crypto::stream::{Cipher, Direction};
use crate::wire::{Layer, Opened, Plan, Rng, Room, WireError};

/// One end of an enciphered stream, between obfs and protocol. Both ends do the same, but the protocol uses the IV of
/// the client's direction on both.
pub struct CipherLayer {
    key: SsrKey,
    sender: Option<Cipher>,
    /// Waits for the first payload.
    own_iv: Option<Iv>,
    receiver: Option<Cipher>,
    peer_iv: Option<Iv>,
    client_iv: SharedIv,
    is_server: bool,
}

impl CipherLayer {
    /// The client's end; the IV comes from `rng`.
    pub fn client(key: &SsrKey, rng: &mut dyn Rng) -> Self {
        let iv = Iv::draw(key.method().iv_len(), rng);
        Self::new(key, iv, SharedIv::known(iv), false)
    }

    /// The server's end; the IV of the answer comes from `rng`.
    pub fn server(key: &SsrKey, rng: &mut dyn Rng) -> Self {
        let iv = Iv::draw(key.method().iv_len(), rng);
        Self::new(key, iv, SharedIv::unknown(), true)
    }

    fn new(key: &SsrKey, iv: Iv, client_iv: SharedIv, is_server: bool) -> Self {
        let sender = key.cipher(iv.as_slice(), Direction::Encrypt);
        let layer = Self {
            key: key.clone(),
            sender,
            own_iv: Some(iv),
            receiver: None,
            peer_iv: None,
            client_iv,
            is_server,
        };
        if key.method().iv_len() == 0 { layer.without_iv() } else { layer }
    }

    /// Nothing has to come before the peer's direction can be deciphered.
    fn without_iv(mut self) -> Self {
        self.start_receiving(&[]);
        self
    }

    fn start_receiving(&mut self, iv: &[u8]) {
        self.receiver = self.key.cipher(iv, Direction::Decrypt);
        let iv = Iv::from_slice(iv);
        self.peer_iv = Some(iv);
        if self.is_server {
            self.client_iv.set(iv);
        }
    }

    /// The IV of the client's direction, for the protocol layer above this one.
    pub fn client_iv(&self) -> SharedIv {
        self.client_iv.clone()
    }

    /// The IV of the peer's direction, once it has come, where the method has one. A caller may refuse those that have
    /// been seen before.
    pub fn peer_iv(&self) -> Option<&[u8]> {
        self.peer_iv.as_ref().map(Iv::as_slice).filter(|iv| !iv.is_empty())
    }
}

impl Layer for CipherLayer {
    fn plan(&self, _now: Instant) -> Plan {
        let rest = Room { head: 0, tail: 0, max_payload: usize::MAX };
        let head = self.own_iv.as_ref().map_or(0, Iv::len);
        Plan { first: Room { head, ..rest }, rest }
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        _now: Instant,
    ) -> Result<Range<usize>, WireError> {
        if payload.is_empty() {
            return Ok(payload);
        }
        if let Some(cipher) = &mut self.sender {
            cipher.apply(&mut block[payload.clone()])?;
        }
        let Some(iv) = self.own_iv.take() else { return Ok(payload) };
        let start = payload.start - iv.len();
        block[start..payload.start].copy_from_slice(iv.as_slice());
        Ok(start..payload.end)
    }

    fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
        if self.peer_iv.is_none() {
            let iv_len = self.key.method().iv_len();
            let Some(iv) = wire.unread().get(..iv_len).map(Iv::from_slice) else {
                return Ok(Opened::NeedMore(iv_len - wire.unread().len()));
            };
            self.start_receiving(iv.as_slice());
            wire.consume(iv_len);
        }
        let len = wire.unread().len();
        if len == 0 {
            return Ok(Opened::NeedMore(1));
        }
        if let Some(cipher) = &mut self.receiver {
            cipher.apply(wire.unread_mut())?;
        }
        let start = wire.position();
        wire.consume(len);
        Ok(Opened::Payload(start..start + len))
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        // No IV at all is a peer that had nothing to say.
        if unread == 0 { Ok(()) } else { Err(WireError::Truncated { what: "the IV" }) }
    }
}

/// Shows no key material.
impl fmt::Debug for CipherLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CipherLayer").field("method", &self.key.method()).finish_non_exhaustive()
    }
}
