use std::ops::Range;
use std::sync::Arc;

use super::packets::{HEADER_LEN, SHORT};
use super::{IDENTITY_LEN, identity_cipher};
use crate::buf::RecvBuf;
use crate::crypto::AesBlock;
use crate::shadowsocks::key::{DatagramCipher, IdentityKeys, Keys2022, Sip022Psk, UserId};
use crate::wire::WireError;

/// A relay of SIP023: takes off the outermost identity header and passes everything else on, without being able to
/// read it. Answers pass back unchanged.
#[derive(Debug, Clone)]
pub struct Relay {
    keys: Arc<Keys2022>,
    hops: Arc<IdentityKeys>,
}

/// Result of [`Relay::forward_stream`] for the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relayed {
    /// At least this many further bytes (never 0) are needed.
    NeedMore(usize),
    /// Dial this hop and send it all unread bytes, then all later bytes.
    To(UserId),
}

const UNKNOWN: WireError = WireError::Authentication { what: "identity header" };

fn block_cipher(psk: &Sip022Psk) -> Result<&AesBlock, WireError> {
    match psk.datagrams() {
        DatagramCipher::Header(aes) => Ok(aes),
        DatagramCipher::Whole(_) => Err(UNKNOWN),
    }
}

impl Relay {
    /// A relay under `keys` (its own) that knows `hops` by their keys.
    pub fn new(keys: &Arc<Keys2022>, hops: &Arc<IdentityKeys>) -> Self {
        Self { keys: Arc::clone(keys), hops: Arc::clone(hops) }
    }

    /// Removes the first identity header of a request from the unread bytes, in place.
    ///
    /// # Errors
    /// [`WireError::Authentication`] if it names no hop.
    pub fn forward_stream(&self, wire: &mut RecvBuf) -> Result<Relayed, WireError> {
        let salt_len = self.keys.method.key_len();
        let needed = salt_len + IDENTITY_LEN;
        let unread = wire.unread_mut();
        if unread.len() < needed {
            return Ok(Relayed::NeedMore(needed - unread.len()));
        }
        let (salt, rest) = unread.split_at_mut(salt_len);
        let mut hash = *rest.first_chunk().expect("as long as needed");
        identity_cipher(self.keys.method, &self.keys.user, salt).decrypt(&mut hash);
        let hop = self.hops.find(&hash).ok_or(UNKNOWN)?;
        unread.copy_within(..salt_len, IDENTITY_LEN);
        wire.consume(IDENTITY_LEN);
        Ok(Relayed::To(hop))
    }

    /// Removes the first identity header of a client's datagram and re-enciphers its separate header for the hop, in
    /// place; returns the hop and what to send it.
    ///
    /// # Errors
    /// [`WireError::Truncated`], or [`WireError::Authentication`] if the header names no hop.
    pub fn forward_datagram(&self, datagram: &mut [u8]) -> Result<(UserId, Range<usize>), WireError> {
        let len = datagram.len();
        let (header, rest) = datagram.split_first_chunk_mut::<HEADER_LEN>().ok_or(SHORT)?;
        let identity = rest.first_chunk_mut::<IDENTITY_LEN>().ok_or(SHORT)?;
        let own = block_cipher(&self.keys.user)?;
        own.decrypt(header);
        own.decrypt(identity);
        let hash = std::array::from_fn(|i| identity[i] ^ header[i]);
        let hop = self.hops.find(&hash).ok_or(UNKNOWN)?;
        *identity = *header;
        block_cipher(self.hops.psk(hop))?.encrypt(identity);
        Ok((hop, IDENTITY_LEN..len))
    }
}
