//! Frames without padding: v1 to v3, and the modes unshaped and unsafe-raw of v6.
//!
//! ```text
//!   v1 to v3:    salt[16]  Seal(L (u16 BE))      [18]  Seal(payload[L]) [L+16]  ...   L <= 16383
//!   unshaped:    salt[16]  Seal(04 0000 0000 L)  [23]  Seal(payload[L]) [L+16]  ...   L <= 65535
//!   unsafe-raw:            04 0000 0000 L         [7]  payload[L]               ...   L <= 65535, nothing is sealed
//! ```
//!
//! L = 0 is the zero chunk, a header alone. v1 seals with ChaCha20-Poly1305 under all 32 bytes of the derived key, the
//! others with AES-128-GCM under the first 16. Sources: `docs/protocols/snell.md` 8, `docs/protocols/snell-v6.md` 4.

use std::ops::Range;

use super::frame::{FRAME_TYPE, Frame, HEADER_LEN, MAX_PAYLOAD, SEALED_HEADER_LEN};
use super::kdf::{SALT_LEN, Salt, SnellDirectionKey, SnellPsk};
use super::v6::put_header;
use crate::buf::RecvBuf;
use crate::crypto::{Aead, AeadAlgorithm, CounterNonce, TAG_LEN};
use crate::wire::{Plan, Room, WireError};

/// Length of a header of v1 to v3, in bytes; the two upper bits are not part of it.
const CHUNK_HEADER_LEN: usize = 2;

/// Kind of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BareFraming {
    /// v1.
    ChachaChunk,
    /// v2 and v3.
    AesChunk,
    /// v6, unshaped.
    Unshaped,
    /// v6, unsafe-raw.
    Raw,
}

impl BareFraming {
    fn is_chunk(self) -> bool {
        matches!(self, Self::ChachaChunk | Self::AesChunk)
    }

    fn salt_len(self) -> usize {
        if self == Self::Raw { 0 } else { SALT_LEN }
    }

    fn tag_len(self) -> usize {
        if self == Self::Raw { 0 } else { TAG_LEN }
    }

    fn header_len(self) -> usize {
        match self {
            Self::ChachaChunk | Self::AesChunk => CHUNK_HEADER_LEN + TAG_LEN,
            Self::Unshaped => SEALED_HEADER_LEN,
            Self::Raw => HEADER_LEN,
        }
    }

    /// Bytes before which nothing can be decided about a direction.
    pub(super) fn opening_len(self) -> usize {
        self.salt_len() + self.header_len()
    }

    fn key(self, key: &SnellDirectionKey) -> Option<Aead> {
        match self {
            Self::ChachaChunk => Some(Aead::new(AeadAlgorithm::Chacha20Poly1305, &*key.wide())),
            Self::AesChunk | Self::Unshaped => Some(Aead::new(AeadAlgorithm::Aes128Gcm, &key.key)),
            Self::Raw => None,
        }
    }

    fn put_header(self, header: &mut [u8], payload: usize) {
        if self.is_chunk() {
            header.copy_from_slice(&u16::try_from(payload).expect("at most 0x3FFF").to_be_bytes());
        } else {
            put_header(header, 0, payload);
        }
    }

    /// The payload's length in an opened header.
    fn read_header(self, header: &[u8]) -> Result<u16, WireError> {
        if self.is_chunk() {
            return Ok(u16::from_be_bytes([header[0], header[1]]) & 0x3FFF);
        }
        let malformed = |what, got: u16| Err(WireError::Malformed { what, got: got.into() });
        let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        match (header[0], field(1), field(3)) {
            (FRAME_TYPE, 0, 0) => Ok(field(5)),
            (FRAME_TYPE, 0, padding) => malformed("padding length", padding),
            (FRAME_TYPE, reserved, _) => malformed("reserved bytes", reserved),
            (other, ..) => malformed("frame type", other.into()),
        }
    }
}

/// Seals one direction.
#[derive(Debug)]
pub(super) struct BareSealer {
    framing: BareFraming,
    /// `None` for unsafe-raw.
    key: Option<Aead>,
    nonce: CounterNonce,
    /// The salt, while it has not been sent.
    salt: Option<Salt>,
}

impl BareSealer {
    pub(super) fn new(framing: BareFraming, key: &SnellDirectionKey) -> Self {
        let aead = framing.key(key);
        let salt = aead.is_some().then_some(key.salt);
        Self { framing, key: aead, nonce: CounterNonce::default(), salt }
    }

    /// As [`super::frame::FrameSealer::plan`]. Frames are as long as every receiver takes them.
    pub(super) fn plan(&self, prefix_len: usize) -> Plan {
        let (head, tail) = (self.framing.header_len(), self.framing.tag_len());
        let rest = Room { head, tail, max_payload: MAX_PAYLOAD };
        let salt_len = self.salt.map_or(0, |salt| salt.len());
        let first = Room { head: salt_len + head + prefix_len, tail, max_payload: MAX_PAYLOAD - prefix_len };
        Plan { first, rest }
    }

    /// As [`super::frame::FrameSealer::seal`].
    pub(super) fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
    ) -> Result<Range<usize>, WireError> {
        let Range { start, end } = payload;
        let header_at = start - self.framing.header_len();
        self.put_header(&mut block[header_at..start], end - start)?;
        if let Some(key) = &self.key {
            let (body, tag) = block[start..end + TAG_LEN].split_at_mut(end - start);
            key.seal(self.nonce.advance(), &[], body, tag.try_into().expect("16 bytes"))?;
        }
        let mut at = header_at;
        if let Some(salt) = self.salt.take() {
            at -= SALT_LEN;
            block[at..header_at].copy_from_slice(&salt);
        }
        Ok(at..end + self.framing.tag_len())
    }

    /// Seals a zero chunk at `at`.
    pub(super) fn seal_zero_chunk(&mut self, block: &mut [u8], at: usize) -> Result<Range<usize>, WireError> {
        let mut header_at = at;
        if let Some(salt) = self.salt.take() {
            block[at..at + SALT_LEN].copy_from_slice(&salt);
            header_at += SALT_LEN;
        }
        let end = header_at + self.framing.header_len();
        self.put_header(&mut block[header_at..end], 0)?;
        Ok(at..end)
    }

    fn put_header(&mut self, out: &mut [u8], payload: usize) -> Result<(), WireError> {
        let (header, tag) = out.split_at_mut(out.len() - self.framing.tag_len());
        self.framing.put_header(header, payload);
        match &self.key {
            Some(key) => key.seal(self.nonce.advance(), &[], header, tag.try_into().expect("16 bytes")),
            None => Ok(()),
        }
    }
}

/// Opens one direction.
#[derive(Debug)]
pub(super) struct BareOpener {
    framing: BareFraming,
    state: State,
    nonce: CounterNonce,
    salt: Salt,
    has_opened: bool,
}

#[derive(Debug)]
enum State {
    /// No header is complete yet.
    Salt(SnellPsk),
    /// The salt is still unread, but its key is known.
    Keyed(Option<Aead>),
    /// A header is next.
    Header(Option<Aead>),
    /// A payload of this length is next.
    Body { key: Option<Aead>, payload: u16 },
    /// Something was wrong.
    Failed,
}

impl BareOpener {
    pub(super) fn new(framing: BareFraming, psk: SnellPsk) -> Self {
        let state = if framing == BareFraming::Raw { State::Header(None) } else { State::Salt(psk) };
        Self { framing, state, nonce: CounterNonce::default(), salt: [0; SALT_LEN], has_opened: false }
    }

    /// As [`super::frame::FrameOpener::detected`].
    pub(super) fn detected(framing: BareFraming, key: &SnellDirectionKey) -> Self {
        let state = State::Keyed(framing.key(key));
        Self { framing, state, nonce: CounterNonce::default(), salt: key.salt, has_opened: false }
    }

    /// The key of `first`, the first bytes of a direction, if its header opens under `psk`.
    pub(super) fn probe(framing: BareFraming, psk: &SnellPsk, first: &[u8]) -> Option<SnellDirectionKey> {
        let (salt, rest) = first.split_first_chunk::<SALT_LEN>()?;
        let key = psk.derive(salt);
        let mut header = [0; SEALED_HEADER_LEN];
        let header = &mut header[..framing.header_len()];
        header.copy_from_slice(rest.get(..framing.header_len())?);
        framing.key(&key)?.open(CounterNonce::default().advance(), &[], header).ok()?;
        Some(key)
    }

    pub(super) fn framing(&self) -> BareFraming {
        self.framing
    }

    /// The peer's salt, once the first header has opened under it; unsafe-raw has none.
    pub(super) fn salt(&self) -> Option<&Salt> {
        (self.has_opened() && self.framing != BareFraming::Raw).then_some(&self.salt)
    }

    /// True once the first header has opened.
    pub(super) fn has_opened(&self) -> bool {
        self.has_opened && !matches!(self.state, State::Failed)
    }

    /// As [`super::v6::V6FrameOpener::derives_at`].
    pub(super) fn derives_at(&self) -> Option<usize> {
        matches!(self.state, State::Salt(_)).then(|| self.framing.opening_len())
    }

    /// True between frames: an end of the transport cuts nothing.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.has_opened && matches!(self.state, State::Header(_))
    }

    pub(super) fn open(&mut self, wire: &mut RecvBuf) -> Result<Frame, WireError> {
        loop {
            match std::mem::replace(&mut self.state, State::Failed) {
                State::Salt(psk) => {
                    let (unread, needed) = (wire.unread(), self.framing.opening_len());
                    if unread.len() < needed {
                        let missing = needed - unread.len();
                        self.state = State::Salt(psk);
                        return Ok(Frame::NeedMore(missing));
                    }
                    self.salt.copy_from_slice(&unread[..SALT_LEN]);
                    wire.consume(SALT_LEN);
                    self.state = State::Header(self.framing.key(&psk.derive(&self.salt)));
                }
                State::Keyed(key) => {
                    if let Some(missing) = wire.missing(SALT_LEN) {
                        self.state = State::Keyed(key);
                        return Ok(Frame::NeedMore(missing));
                    }
                    wire.consume(SALT_LEN);
                    self.state = State::Header(key);
                }
                State::Header(key) => {
                    if let Some(frame) = self.open_header(key, wire)? {
                        return Ok(frame);
                    }
                }
                State::Body { key, payload } => return self.open_body(key, payload, wire),
                State::Failed => {
                    return Err(WireError::Authentication { what: "stream that has failed" });
                }
            }
        }
    }

    fn open_header(&mut self, key: Option<Aead>, wire: &mut RecvBuf) -> Result<Option<Frame>, WireError> {
        let header_len = self.framing.header_len();
        let unread = wire.unread_mut();
        if unread.len() < header_len {
            let missing = header_len - unread.len();
            self.state = State::Header(key);
            return Ok(Some(Frame::NeedMore(missing)));
        }
        let header = &mut unread[..header_len];
        if let Some(key) = &key {
            key.open(self.nonce.advance(), &[], header)
                .map_err(|()| WireError::Authentication { what: "frame header" })?;
        }
        let payload = self.framing.read_header(header)?;
        wire.consume(header_len);
        self.has_opened = true;
        if payload == 0 {
            self.state = State::Header(key);
            return Ok(Some(Frame::ZeroChunk));
        }
        self.state = State::Body { key, payload };
        Ok(None)
    }

    fn open_body(&mut self, key: Option<Aead>, len: u16, wire: &mut RecvBuf) -> Result<Frame, WireError> {
        let payload = usize::from(len);
        let body_len = payload + self.framing.tag_len();
        let at = wire.position();
        let unread = wire.unread_mut();
        if unread.len() < body_len {
            let missing = body_len - unread.len();
            self.state = State::Body { key, payload: len };
            return Ok(Frame::NeedMore(missing));
        }
        if let Some(key) = &key {
            key.open(self.nonce.advance(), &[], &mut unread[..body_len])
                .map_err(|()| WireError::Authentication { what: "frame payload" })?;
        }
        wire.consume(body_len);
        self.state = State::Header(key);
        Ok(Frame::Payload(at..at + payload))
    }
}
