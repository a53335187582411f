//! Sealed chunks, shared by SIP004 and SIP022.
//!
//! ```text
//!   +--------------------+-----+----------------+-----+
//!   | length, u16 (2)    | tag | payload        | tag |    each part sealed by itself, without additional data
//!   | big-endian, sealed | 16  | sealed         | 16  |
//!   +--------------------+-----+----------------+-----+
//! ```
//!
//! The nonce counts every seal, little-endian from 0, so it moves by two per chunk (SIP004, "TCP").

use std::ops::Range;

use super::method::AeadMethod;
use crate::buf::RecvBuf;
use crate::crypto::{Aead, CounterNonce, NONCE_LEN, TAG_LEN, XAead, XNONCE_LEN};
use crate::wire::{Opened, Room, WireError};

/// Bytes of a sealed length.
pub(super) const LENGTH_LEN: usize = 2 + TAG_LEN;

/// The key of one direction with its nonce.
#[derive(Debug)]
pub(super) struct DirectionKey {
    key: ChunkKey,
    nonce: CounterNonce,
}

#[derive(Debug)]
enum ChunkKey {
    Short(Aead),
    Long(XAead),
}

/// The counter as a nonce of 24 bytes.
fn long(nonce: [u8; NONCE_LEN]) -> [u8; XNONCE_LEN] {
    let mut long = [0; XNONCE_LEN];
    long[..NONCE_LEN].copy_from_slice(&nonce);
    long
}

impl DirectionKey {
    pub(super) fn new(method: AeadMethod, subkey: &[u8]) -> Self {
        let key = match method {
            AeadMethod::Short(algorithm) => ChunkKey::Short(Aead::new(algorithm, subkey)),
            AeadMethod::Long(algorithm) => ChunkKey::Long(XAead::new(algorithm, subkey)),
        };
        Self { key, nonce: CounterNonce::default() }
    }

    /// Seals `plain` in `block` and writes the tag right behind it.
    pub(super) fn seal(&mut self, block: &mut [u8], plain: Range<usize>) -> Result<(), WireError> {
        let (data, behind) = block[plain.start..].split_at_mut(plain.len());
        let tag = behind.first_chunk_mut().expect("room for the tag");
        let nonce = self.nonce.advance();
        match &self.key {
            ChunkKey::Short(key) => key.seal(nonce, &[], data, tag),
            ChunkKey::Long(key) => key.seal(long(nonce), &[], data, tag),
        }
    }

    /// Opens `sealed` (with its tag) in place.
    pub(super) fn open(&mut self, sealed: &mut [u8], what: &'static str) -> Result<(), WireError> {
        let nonce = self.nonce.advance();
        let opened = match &self.key {
            ChunkKey::Short(key) => key.open(nonce, &[], sealed),
            ChunkKey::Long(key) => key.open(long(nonce), &[], sealed),
        };
        opened.map_err(|()| WireError::Authentication { what })
    }

    /// Seals one chunk around the payload at `payload` and returns its range.
    pub(super) fn seal_chunk(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
    ) -> Result<Range<usize>, WireError> {
        let start = payload.start - LENGTH_LEN;
        let len = u16::try_from(payload.len()).expect("payload within max_payload");
        block[start..start + 2].copy_from_slice(&len.to_be_bytes());
        self.seal(block, start..start + 2)?;
        let end = payload.end + TAG_LEN;
        self.seal(block, payload)?;
        Ok(start..end)
    }
}

/// Room of a chunk that carries up to `max_payload` bytes.
pub(super) fn chunk_room(max_payload: usize) -> Room {
    Room { head: LENGTH_LEN, tail: TAG_LEN, max_payload }
}

/// Opens the chunks of one direction.
#[derive(Debug)]
pub(super) struct ChunkReader {
    key: DirectionKey,
    max_payload: usize,
    /// Payload length of the chunk whose length has been opened.
    payload_len: Option<usize>,
}

impl ChunkReader {
    pub(super) fn new(key: DirectionKey, max_payload: usize) -> Self {
        Self { key, max_payload, payload_len: None }
    }

    /// The next thing is a payload of `len` bytes, announced elsewhere.
    pub(super) fn expect_payload(&mut self, len: usize) {
        self.payload_len = Some(len);
    }

    pub(super) fn key_mut(&mut self) -> &mut DirectionKey {
        &mut self.key
    }

    /// True when the direction may end here.
    pub(super) fn is_between_chunks(&self) -> bool {
        self.payload_len.is_none()
    }

    pub(super) fn open(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        let len = match self.payload_len {
            Some(len) => len,
            None => match self.open_length(wire)? {
                Ok(len) => len,
                Err(missing) => return Ok(Opened::NeedMore(missing)),
            },
        };
        let sealed_len = len + TAG_LEN;
        let unread = wire.unread().len();
        if unread < sealed_len {
            return Ok(Opened::NeedMore(sealed_len - unread));
        }
        self.key.open(&mut wire.unread_mut()[..sealed_len], "chunk payload")?;
        self.payload_len = None;
        let start = wire.position();
        wire.consume(sealed_len);
        Ok(Opened::Payload(start..start + len))
    }

    /// Opens the length, or says how many bytes are missing.
    fn open_length(&mut self, wire: &mut RecvBuf) -> Result<Result<usize, usize>, WireError> {
        let unread = wire.unread_mut();
        if unread.len() < LENGTH_LEN {
            return Ok(Err(LENGTH_LEN - unread.len()));
        }
        self.key.open(&mut unread[..LENGTH_LEN], "chunk length")?;
        let len = usize::from(u16::from_be_bytes([unread[0], unread[1]]));
        if len == 0 || len > self.max_payload {
            return Err(WireError::Malformed { what: "chunk length", got: len as u64 });
        }
        wire.consume(LENGTH_LEN);
        self.payload_len = Some(len);
        Ok(Ok(len))
    }
}

/// The end of the transport with `unread` bytes left over, for a reader that has or has not begun.
pub(super) fn transport_end(reader: Option<&ChunkReader>, unread: usize) -> Result<(), WireError> {
    if unread == 0 && reader.is_none_or(ChunkReader::is_between_chunks) {
        return Ok(());
    }
    Err(WireError::Truncated { what: if reader.is_some() { "a chunk" } else { "the first chunk" } })
}
