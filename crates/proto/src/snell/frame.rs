//! Frames: sealing one direction, opening the other.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::kdf::{MARK_LEN, SALT_LEN, Salt, SnellDirectionKey, SnellPsk};
use super::padding::{self, FirstPadding};
use crate::buf::RecvBuf;
use crate::crypto::{Aead, AeadAlgorithm, CounterNonce, TAG_LEN};
use crate::wire::{Opened, Plan, Rng, Room, WireError};

pub(super) const HEADER_LEN: usize = 7;
pub(super) const SEALED_HEADER_LEN: usize = HEADER_LEN + TAG_LEN;
/// First byte of every frame header.
pub(super) const FRAME_TYPE: u8 = 4;

/// Longest payload of a frame, in bytes.
pub const MAX_PAYLOAD: usize = 0x3FFF;
/// Longest padding of a frame, in bytes.
const MAX_PADDING: usize = 0x3FFF;
/// Longest frame on the wire, in bytes.
pub const MAX_FRAME_LEN: usize = SEALED_HEADER_LEN + MAX_PADDING + MAX_PAYLOAD + TAG_LEN;
/// Longest frame of v6 on the wire, in bytes; servers and clients take both.
pub const MAX_LONG_FRAME_LEN: usize = 128 + SEALED_HEADER_LEN + 65_535 + 65_535 + TAG_LEN;
/// Salt and first sealed header: nothing can be decided about a direction before that many bytes.
pub const OPENING_LEN: usize = SALT_LEN + SEALED_HEADER_LEN;

/// Salt and first frame together stay within one Ethernet-sized segment.
const FIRST_SEGMENT_LEN: usize = 1460;
/// Bytes by which the frames of one write may grow against the write before.
const LIMIT_STEP: usize = 1421;
/// A direction that has been silent for longer than this starts small again.
const RESTART_AFTER: Duration = Duration::from_secs(30);

/// Cuts, pads and seals one direction.
#[derive(Debug)]
pub(super) struct FrameSealer {
    key: Aead,
    nonce: CounterNonce,
    /// State for the first frame; `None` once that has been sealed.
    first: Option<Box<First>>,
    /// Longest payload of the frames of the next write.
    limit: u16,
    /// The limit that the frames of the write under way obey.
    write: Option<u16>,
    written_at: Option<Instant>,
}

#[derive(Debug)]
struct First {
    salt: Salt,
    padding: FirstPadding,
    mark: Option<[u8; MARK_LEN]>,
}

impl FrameSealer {
    /// A direction under `key`; with `marks` its first padding tells who knows the key that this is adit.
    pub(super) fn new(key: &SnellDirectionKey, marks: bool, rng: &mut dyn Rng) -> Self {
        let first =
            First { salt: key.salt, padding: FirstPadding::draw(rng), mark: marks.then(|| key.mark()) };
        Self {
            key: Aead::new(AeadAlgorithm::Aes128Gcm, &key.key),
            nonce: CounterNonce::default(),
            first: Some(Box::new(first)),
            limit: short(LIMIT_STEP),
            write: None,
            written_at: None,
        }
    }

    /// Room for the next write with `prefix_len` bytes of our own before the caller's first payload.
    pub(super) fn plan(&self, prefix_len: usize, now: Instant) -> Plan {
        let limit = self.limit(now);
        let head = match &self.first {
            Some(_) => SALT_LEN + SEALED_HEADER_LEN + padding::MAX_LEN,
            None => SEALED_HEADER_LEN,
        };
        let rest = Room { head: SEALED_HEADER_LEN, tail: TAG_LEN, max_payload: limit };
        let first =
            Room { head: head + prefix_len, tail: TAG_LEN, max_payload: limit.saturating_sub(prefix_len) };
        Plan { first, rest }
    }

    fn limit(&self, now: Instant) -> usize {
        match (&self.first, self.written_at) {
            (Some(first), _) => FIRST_SEGMENT_LEN - OPENING_LEN - TAG_LEN - first.padding.long_len(),
            (None, Some(at)) if now.saturating_duration_since(at) > RESTART_AFTER => LIMIT_STEP,
            (None, _) => usize::from(self.limit),
        }
    }

    /// One write call is over: like the official programs, the limit is taken and advanced once per call.
    pub(super) fn finish_write(&mut self, now: Instant) {
        if let Some(limit) = self.write.take() {
            self.limit = short((usize::from(limit) + LIMIT_STEP).min(MAX_PAYLOAD));
            self.written_at = Some(now);
        }
    }

    /// Seals `payload` (1 to [`MAX_PAYLOAD`] bytes) where it stands, with the room of [`FrameSealer::plan`] around it.
    pub(super) fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        if self.write.is_none() {
            self.write = Some(short(self.limit(now)));
        }
        let header_nonce = self.nonce.advance();
        let Range { start, end } = payload;
        let (body, tag) = block[start..end + TAG_LEN].split_at_mut(end - start);
        self.key.seal(self.nonce.advance(), &[], body, tag.try_into().expect("16 bytes"))?;
        match self.first.take() {
            None => {
                let at = start - SEALED_HEADER_LEN;
                self.put_header(&mut block[at..start], header_nonce, 0, end - start)?;
                Ok(at..end + TAG_LEN)
            }
            Some(first) => {
                let First { salt, padding, mark } = *first;
                let padding_len = padding.len_for(end - start);
                let (before, cipher) = block[..end + TAG_LEN].split_at_mut(start);
                let pad_at = start - padding_len;
                padding.fill(&mut before[pad_at..], cipher);
                if let Some(mark) = &mark {
                    padding::put_mark(&mut before[pad_at..], mark);
                }
                interleave(&mut before[pad_at..], cipher);
                let header_at = pad_at - SEALED_HEADER_LEN;
                self.put_header(&mut before[header_at..pad_at], header_nonce, padding_len, end - start)?;
                before[header_at - SALT_LEN..header_at].copy_from_slice(&salt);
                Ok(header_at - SALT_LEN..end + TAG_LEN)
            }
        }
    }

    /// Seals a zero chunk at `at`. It is never padded; if it comes first, no later frame is.
    pub(super) fn seal_zero_chunk(&mut self, block: &mut [u8], at: usize) -> Result<Range<usize>, WireError> {
        let nonce = self.nonce.advance();
        let mut header_at = at;
        if let Some(first) = self.first.take() {
            block[at..at + SALT_LEN].copy_from_slice(&first.salt);
            header_at += SALT_LEN;
        }
        let end = header_at + SEALED_HEADER_LEN;
        self.put_header(&mut block[header_at..end], nonce, 0, 0)?;
        Ok(at..end)
    }

    fn put_header(
        &self,
        out: &mut [u8],
        nonce: [u8; 12],
        padding: usize,
        payload: usize,
    ) -> Result<(), WireError> {
        let (header, tag) = out.split_at_mut(HEADER_LEN);
        header[0] = FRAME_TYPE;
        header[1..3].fill(0);
        header[3..5].copy_from_slice(&short(padding).to_be_bytes());
        header[5..7].copy_from_slice(&short(payload).to_be_bytes());
        self.key.seal(nonce, &[], header, tag.try_into().expect("16 bytes"))
    }
}

/// Lengths within a frame are at most 0x3FFF, by construction when sealing and by check when opening.
fn short(len: usize) -> u16 {
    u16::try_from(len).expect("at most 0x3FFF")
}

/// Exchanges the bytes at even offsets of both, as far as both reach; doing it twice changes nothing.
pub(super) fn interleave(padding: &mut [u8], cipher: &mut [u8]) {
    for (a, b) in padding.iter_mut().zip(cipher).step_by(2) {
        std::mem::swap(a, b);
    }
}

/// Opens one direction.
#[derive(Debug)]
pub(super) struct FrameOpener {
    state: OpenerState,
    nonce: CounterNonce,
    salt: Salt,
    /// Contents of a marked first padding; `None` once a payload has opened.
    mark: Option<[u8; MARK_LEN]>,
    is_marked: bool,
    /// Told from other versions by what opened: it may be v6, unshaped.
    is_detected: bool,
    /// The first payload came without padding.
    is_unpadded: bool,
}

#[derive(Debug)]
enum OpenerState {
    /// Fewer than [`OPENING_LEN`] bytes have come.
    Salt(SnellPsk),
    /// The salt is still unread, but its key is known.
    Keyed(Aead),
    /// A header is next; the flag says whether one has opened before.
    Header(Aead),
    /// Padding and payload of these lengths are next.
    Body { key: Aead, padding: u16, payload: u16 },
    /// Something was wrong.
    Failed,
}

/// Result of [`FrameOpener::open`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    NeedMore(usize),
    Payload(Range<usize>),
    ZeroChunk,
}

impl From<Frame> for Opened {
    fn from(frame: Frame) -> Self {
        match frame {
            Frame::NeedMore(len) => Self::NeedMore(len),
            Frame::Payload(range) => Self::Payload(range),
            Frame::ZeroChunk => Self::End,
        }
    }
}

impl FrameOpener {
    pub(super) fn new(psk: SnellPsk) -> Self {
        Self {
            state: OpenerState::Salt(psk),
            nonce: CounterNonce::default(),
            salt: [0; SALT_LEN],
            mark: None,
            is_marked: false,
            is_detected: false,
            is_unpadded: false,
        }
    }

    /// A direction of which the caller has seen that the first header opens under `key`, salt and all still unread. If
    /// versions are told apart that way, it may as well be v6, unshaped.
    pub(super) fn detected(key: &SnellDirectionKey, is_detected: bool) -> Self {
        let state = OpenerState::Keyed(Aead::new(AeadAlgorithm::Aes128Gcm, &key.key));
        let mark = Some(key.mark());
        Self {
            state,
            nonce: CounterNonce::default(),
            salt: key.salt,
            mark,
            is_marked: false,
            is_detected,
            is_unpadded: false,
        }
    }

    /// True if the direction may as well be v6, unshaped, so that its answer has to suit both.
    pub(super) fn may_be_unshaped(&self) -> bool {
        self.is_detected && self.is_unpadded
    }

    /// The peer's salt, once the first header has opened under it.
    pub(super) fn salt(&self) -> Option<&Salt> {
        match self.state {
            OpenerState::Salt(_) | OpenerState::Keyed(_) | OpenerState::Failed => None,
            OpenerState::Header(_) | OpenerState::Body { .. } => Some(&self.salt),
        }
    }

    /// True until enough bytes for a key derivation have come and been used.
    pub(super) fn awaits_salt(&self) -> bool {
        matches!(self.state, OpenerState::Salt(_))
    }

    /// True if the first payload came with a mark: the peer is adit.
    pub(super) fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// True between frames: an end of the transport cuts nothing.
    pub(super) fn is_at_boundary(&self) -> bool {
        matches!(self.state, OpenerState::Header(_))
    }

    pub(super) fn open(&mut self, wire: &mut RecvBuf) -> Result<Frame, WireError> {
        loop {
            match std::mem::replace(&mut self.state, OpenerState::Failed) {
                OpenerState::Salt(psk) => {
                    let unread = wire.unread();
                    if unread.len() < OPENING_LEN {
                        let missing = OPENING_LEN - unread.len();
                        self.state = OpenerState::Salt(psk);
                        return Ok(Frame::NeedMore(missing));
                    }
                    self.salt.copy_from_slice(&unread[..SALT_LEN]);
                    wire.consume(SALT_LEN);
                    let key = psk.derive(&self.salt);
                    self.mark = Some(key.mark());
                    self.state = OpenerState::Header(Aead::new(AeadAlgorithm::Aes128Gcm, &key.key));
                }
                OpenerState::Keyed(key) => {
                    if let Some(missing) = wire.missing(SALT_LEN) {
                        self.state = OpenerState::Keyed(key);
                        return Ok(Frame::NeedMore(missing));
                    }
                    wire.consume(SALT_LEN);
                    self.state = OpenerState::Header(key);
                }
                OpenerState::Header(key) => {
                    if let Some(frame) = self.open_header(key, wire)? {
                        return Ok(frame);
                    }
                }
                OpenerState::Body { key, padding, payload } => {
                    return self.open_body(key, usize::from(padding), usize::from(payload), wire);
                }
                OpenerState::Failed => {
                    return Err(WireError::Authentication { what: "stream that has failed" });
                }
            }
        }
    }

    fn open_header(&mut self, key: Aead, wire: &mut RecvBuf) -> Result<Option<Frame>, WireError> {
        let unread = wire.unread_mut();
        if unread.len() < SEALED_HEADER_LEN {
            let missing = SEALED_HEADER_LEN - unread.len();
            self.state = OpenerState::Header(key);
            return Ok(Some(Frame::NeedMore(missing)));
        }
        let sealed = &mut unread[..SEALED_HEADER_LEN];
        key.open(self.nonce.advance(), &[], sealed)
            .map_err(|()| WireError::Authentication { what: "frame header" })?;
        if sealed[0] != FRAME_TYPE {
            return Err(WireError::Malformed { what: "frame type", got: sealed[0].into() });
        }
        // Bytes 1 and 2 are reserved: senders write 0, receivers ignore them.
        let padding = u16::from_be_bytes([sealed[3], sealed[4]]);
        let payload = u16::from_be_bytes([sealed[5], sealed[6]]);
        if usize::from(padding) > MAX_PADDING {
            return Err(WireError::Malformed { what: "padding length", got: padding.into() });
        }
        // Unshaped frames may be longer, but have no padding.
        let is_long = usize::from(payload) > MAX_PAYLOAD;
        if is_long && !(self.is_detected && padding == 0) {
            return Err(WireError::Malformed { what: "payload length", got: payload.into() });
        }
        if payload == 0 && padding > 0 {
            return Err(WireError::Malformed { what: "padding of an empty frame", got: padding.into() });
        }
        wire.consume(SEALED_HEADER_LEN);
        if payload == 0 {
            self.state = OpenerState::Header(key);
            return Ok(Some(Frame::ZeroChunk));
        }
        self.state = OpenerState::Body { key, padding, payload };
        Ok(None)
    }

    fn open_body(
        &mut self,
        key: Aead,
        padding: usize,
        payload: usize,
        wire: &mut RecvBuf,
    ) -> Result<Frame, WireError> {
        let body_len = padding + payload + TAG_LEN;
        let at = wire.position();
        let unread = wire.unread_mut();
        if unread.len() < body_len {
            let missing = body_len - unread.len();
            self.state = OpenerState::Body { key, padding: short(padding), payload: short(payload) };
            return Ok(Frame::NeedMore(missing));
        }
        let (pad, cipher) = unread[..body_len].split_at_mut(padding);
        interleave(pad, cipher);
        key.open(self.nonce.advance(), &[], cipher)
            .map_err(|()| WireError::Authentication { what: "frame payload" })?;
        if let Some(mark) = self.mark.take() {
            self.is_marked = padding::has_mark(pad, &mark);
            self.is_unpadded = padding == 0;
        }
        wire.consume(body_len);
        self.state = OpenerState::Header(key);
        Ok(Frame::Payload(at + padding..at + padding + payload))
    }
}
