//! Frames with a shape: sealing one direction, opening the other.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::frame::{FRAME_TYPE, Frame, HEADER_LEN, SEALED_HEADER_LEN};
use super::super::kdf::{MARK_LEN, Salt, SnellDirectionKey, SnellPsk};
use super::super::padding::{put_mark, shows_mark};
use super::fill::{Draws, SALT_BLOCK_SEQ};
use super::profile::{Profile, len};
use crate::buf::RecvBuf;
use crate::crypto::{Aead, AeadAlgorithm, CounterNonce, TAG_LEN};
use crate::wire::{Plan, Rng, Room, WireError};

/// Pads and seals one direction.
#[derive(Debug)]
pub(in super::super) struct V6FrameSealer {
    profile: Arc<Profile>,
    key: Aead,
    nonce: CounterNonce,
    /// State for the first frame; `None` once that has been sealed.
    first: Option<Box<First>>,
    draws: Draws,
    seq: u32,
    /// Position in the ramp of payload lengths.
    size: u16,
    written_at: Option<Instant>,
}

#[derive(Debug)]
struct First {
    salt: Salt,
    mark: Option<[u8; MARK_LEN]>,
}

impl V6FrameSealer {
    /// A direction under `key`; with `marks` its first padding tells who knows the key that this is adit.
    pub(in super::super) fn new(
        profile: Arc<Profile>,
        key: &SnellDirectionKey,
        marks: bool,
        rng: &mut dyn Rng,
    ) -> Self {
        let first = First { salt: key.salt, mark: marks.then(|| key.mark()) };
        Self {
            key: Aead::new(AeadAlgorithm::Aes128Gcm, &key.key),
            nonce: CounterNonce::default(),
            first: Some(Box::new(first)),
            draws: Draws::new(rng),
            seq: 0,
            size: 0,
            written_at: None,
            profile,
        }
    }

    /// Room for the next write with `prefix_len` bytes of our own before the caller's first payload.
    ///
    /// A request that is longer than what the ramp gives to the first frame goes into it all the same: servers want it
    /// whole.
    pub(in super::super) fn plan(&self, prefix_len: usize, now: Instant) -> Plan {
        let profile = &self.profile;
        let size = self.size(now);
        let limit = |ahead: u32, size| len(profile.payload_limit(self.seq.wrapping_add(ahead), size));
        let frame_head = len(profile.params.prefix_max) + SEALED_HEADER_LEN + profile.max_padding_len();
        let salt_block_len = if self.first.is_some() { profile.salt_block_len() } else { 0 };
        let first = Room {
            head: salt_block_len + frame_head + prefix_len,
            tail: TAG_LEN,
            max_payload: limit(0, size).saturating_sub(prefix_len),
        };
        let rest = Room { head: frame_head, tail: TAG_LEN, max_payload: limit(1, profile.grown(size)) };
        Plan { first, rest }
    }

    fn size(&self, now: Instant) -> u64 {
        let params = &self.profile.params;
        let pause = Duration::from_secs(params.idle_reset_sec);
        match self.written_at {
            Some(at) if now.saturating_duration_since(at) <= pause => self.size.into(),
            _ => params.chunk_initial,
        }
    }

    /// Seals `payload` (1 to 65535 bytes) where it stands, with the room of [`V6FrameSealer::plan`] in front of it.
    pub(in super::super) fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let Range { start, end } = payload;
        let first = self.first.take();
        let header_nonce = self.nonce.advance();
        let padding_len = self.profile.padding_len(self.seq, end - start, first.is_some());
        let (before, cipher) = block[..end + TAG_LEN].split_at_mut(start);
        let padding_at = start - padding_len;
        let padding = &mut before[padding_at..];
        if padding_len > 0 {
            self.profile.fill(self.seq, &mut self.draws, padding);
            if let Some(mark) = first.as_ref().and_then(|first| first.mark.as_ref()) {
                put_mark(padding, mark);
            }
        }
        let (body, tag) = cipher.split_at_mut(end - start);
        self.key.seal(self.nonce.advance(), padding, body, tag.try_into().expect("16 bytes"))?;
        self.profile.exchange(self.seq, padding, cipher);
        let prefix_at = padding_at - SEALED_HEADER_LEN - self.profile.prefix_len(self.seq);
        self.put_head(&mut before[prefix_at..padding_at], header_nonce, padding_len, end - start)?;
        let at = match first {
            None => prefix_at,
            Some(first) => {
                let at = prefix_at - self.profile.salt_block_len();
                self.put_salt(&mut before[at..prefix_at], &first.salt);
                at
            }
        };
        self.advance(now);
        Ok(at..end + TAG_LEN)
    }

    /// Seals a zero chunk at `at`. It has padding like other frames, which nothing authenticates.
    pub(in super::super) fn seal_zero_chunk(
        &mut self,
        block: &mut [u8],
        at: usize,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let first = self.first.take();
        // Some receivers lose the stream at a zero chunk without padding (snell-rs 0.1.3).
        let padding_len = self.profile.padding_len(self.seq, 0, first.is_some()).max(1);
        let mut head_at = at;
        if let Some(first) = first {
            head_at += self.profile.salt_block_len();
            self.put_salt(&mut block[at..head_at], &first.salt);
        }
        let padding_at = head_at + self.profile.prefix_len(self.seq) + SEALED_HEADER_LEN;
        let nonce = self.nonce.advance();
        self.put_head(&mut block[head_at..padding_at], nonce, padding_len, 0)?;
        let end = padding_at + padding_len;
        self.profile.fill(self.seq, &mut self.draws, &mut block[padding_at..end]);
        self.advance(now);
        Ok(at..end)
    }

    fn put_salt(&mut self, block: &mut [u8], salt: &Salt) {
        self.profile.fill(SALT_BLOCK_SEQ, &mut self.draws, block);
        self.profile.put_salt(block, salt);
    }

    /// Filler and sealed header, which fill `out`.
    fn put_head(
        &mut self,
        out: &mut [u8],
        nonce: [u8; 12],
        padding: usize,
        payload: usize,
    ) -> Result<(), WireError> {
        let (prefix, sealed) = out.split_at_mut(out.len() - SEALED_HEADER_LEN);
        self.profile.fill(self.seq, &mut self.draws, prefix);
        let (header, tag) = sealed.split_at_mut(HEADER_LEN);
        put_header(header, padding, payload);
        self.key.seal(nonce, prefix, header, tag.try_into().expect("16 bytes"))
    }

    /// A frame is done: the ramp goes up with each, as in the programs of others.
    fn advance(&mut self, now: Instant) {
        let size = self.profile.grown(self.size(now));
        self.size = u16::try_from(size).expect("at most 16383");
        self.written_at = Some(now);
        self.seq = self.seq.wrapping_add(1);
    }
}

/// The seven bytes of a header.
pub(in super::super) fn put_header(header: &mut [u8], padding: usize, payload: usize) {
    let short = |len: usize| u16::try_from(len).expect("lengths of at most 65535");
    header[0] = FRAME_TYPE;
    header[1..3].fill(0);
    header[3..5].copy_from_slice(&short(padding).to_be_bytes());
    header[5..7].copy_from_slice(&short(payload).to_be_bytes());
}

/// Opens one direction.
#[derive(Debug)]
pub(in super::super) struct V6FrameOpener {
    profile: Arc<Profile>,
    state: State,
    nonce: CounterNonce,
    salt: Salt,
    seq: u32,
    /// Contents of a marked first padding; `None` once a payload has opened.
    mark: Option<[u8; MARK_LEN]>,
    is_marked: bool,
    has_opened: bool,
}

#[derive(Debug)]
enum State {
    /// The salt block is not complete, or no header behind it.
    Salt(SnellPsk),
    /// The salt block is still unread, but its key is known.
    Keyed(Aead),
    /// A header is next.
    Header(Aead),
    /// Padding and payload of these lengths are next; without payload it is a zero chunk.
    Body { key: Aead, padding: u16, payload: u16 },
    /// Something was wrong.
    Failed,
}

impl V6FrameOpener {
    pub(in super::super) fn new(profile: Arc<Profile>, psk: SnellPsk) -> Self {
        Self {
            profile,
            state: State::Salt(psk),
            nonce: CounterNonce::default(),
            salt: [0; 16],
            seq: 0,
            mark: None,
            is_marked: false,
            has_opened: false,
        }
    }

    /// As [`super::super::frame::FrameOpener::detected`].
    pub(in super::super) fn detected(profile: Arc<Profile>, key: &SnellDirectionKey) -> Self {
        let state = State::Keyed(Aead::new(AeadAlgorithm::Aes128Gcm, &key.key));
        let (salt, mark) = (key.salt, Some(key.mark()));
        let nonce = CounterNonce::default();
        Self { profile, state, nonce, salt, seq: 0, mark, is_marked: false, has_opened: false }
    }

    /// The key of `first`, the first bytes of a direction, if its header opens under `psk`, whose shape is `profile`.
    pub(in super::super) fn probe(
        profile: &Profile,
        psk: &SnellPsk,
        first: &[u8],
    ) -> Option<SnellDirectionKey> {
        let (salt_block, rest) = first.split_at_checked(profile.salt_block_len())?;
        let (prefix, rest) = rest.split_at_checked(profile.prefix_len(0))?;
        let mut header = *rest.first_chunk::<SEALED_HEADER_LEN>()?;
        let key = psk.derive(&profile.read_salt(salt_block));
        let aead = Aead::new(AeadAlgorithm::Aes128Gcm, &key.key);
        aead.open(CounterNonce::default().advance(), prefix, &mut header).ok()?;
        Some(key)
    }

    /// Whether `first`, the first bytes of a direction, have the shape of `profile`; costs no derivation, and says nothing
    /// about the key.
    pub(in super::super) fn has_shape(profile: &Profile, first: &[u8]) -> bool {
        let Some((salt_block, rest)) = first.split_at_checked(profile.salt_block_len()) else { return false };
        let Some(prefix) = rest.get(..profile.prefix_len(0)) else { return false };
        let is_salt = |at: usize| profile.salt_at.iter().any(|salt_at| usize::from(*salt_at) == at);
        let filler = salt_block.iter().copied().enumerate().filter(|(at, _)| !is_salt(*at));
        profile.has_shape(0, prefix.iter().copied().enumerate()) && profile.has_shape(SALT_BLOCK_SEQ, filler)
    }

    pub(in super::super) fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    /// The peer's salt, once the first header has opened under it.
    pub(in super::super) fn salt(&self) -> Option<&Salt> {
        (self.has_opened && !matches!(self.state, State::Failed)).then_some(&self.salt)
    }

    /// The bytes with which the next call derives a key, if there is a derivation to come.
    pub(in super::super) fn derives_at(&self) -> Option<usize> {
        matches!(self.state, State::Salt(_)).then(|| self.profile.opening_len())
    }

    /// True if the first payload came with a mark: the peer is adit.
    pub(in super::super) fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// True between frames: an end of the transport cuts nothing.
    pub(in super::super) fn is_at_boundary(&self) -> bool {
        matches!(self.state, State::Header(_))
    }

    pub(in super::super) fn open(&mut self, wire: &mut RecvBuf) -> Result<Frame, WireError> {
        loop {
            match std::mem::replace(&mut self.state, State::Failed) {
                State::Salt(psk) => {
                    let unread = wire.unread();
                    let needed = self.profile.opening_len();
                    if unread.len() < needed {
                        let missing = needed - unread.len();
                        self.state = State::Salt(psk);
                        return Ok(Frame::NeedMore(missing));
                    }
                    let block_len = self.profile.salt_block_len();
                    self.salt = self.profile.read_salt(&unread[..block_len]);
                    wire.consume(block_len);
                    let key = psk.derive(&self.salt);
                    self.mark = Some(key.mark());
                    self.state = State::Header(Aead::new(AeadAlgorithm::Aes128Gcm, &key.key));
                }
                State::Keyed(key) => {
                    let salt_block_len = self.profile.salt_block_len();
                    if let Some(missing) = wire.missing(salt_block_len) {
                        self.state = State::Keyed(key);
                        return Ok(Frame::NeedMore(missing));
                    }
                    wire.consume(salt_block_len);
                    self.state = State::Header(key);
                }
                State::Header(key) => {
                    if let Some(missing) = self.open_header(key, wire)? {
                        return Ok(Frame::NeedMore(missing));
                    }
                }
                State::Body { key, padding, payload } => {
                    return self.open_body(key, padding, payload, wire);
                }
                State::Failed => {
                    return Err(WireError::Authentication { what: "stream that has failed" });
                }
            }
        }
    }

    /// Opens the next header; how many bytes are missing for it, if any are.
    fn open_header(&mut self, key: Aead, wire: &mut RecvBuf) -> Result<Option<usize>, WireError> {
        let prefix_len = self.profile.prefix_len(self.seq);
        let head_len = prefix_len + SEALED_HEADER_LEN;
        let unread = wire.unread_mut();
        if unread.len() < head_len {
            let missing = head_len - unread.len();
            self.state = State::Header(key);
            return Ok(Some(missing));
        }
        let (prefix, sealed) = unread[..head_len].split_at_mut(prefix_len);
        key.open(self.nonce.advance(), prefix, sealed)
            .map_err(|()| WireError::Authentication { what: "frame header" })?;
        if sealed[0] != FRAME_TYPE {
            return Err(WireError::Malformed { what: "frame type", got: sealed[0].into() });
        }
        // Bytes 1 and 2 are reserved: senders write 0, receivers ignore them.
        let padding = u16::from_be_bytes([sealed[3], sealed[4]]);
        let payload = u16::from_be_bytes([sealed[5], sealed[6]]);
        wire.consume(head_len);
        self.has_opened = true;
        self.state = State::Body { key, padding, payload };
        Ok(None)
    }

    fn open_body(
        &mut self,
        key: Aead,
        padding_len: u16,
        payload_len: u16,
        wire: &mut RecvBuf,
    ) -> Result<Frame, WireError> {
        let (padding, payload) = (usize::from(padding_len), usize::from(payload_len));
        let sealed = if payload > 0 { payload + TAG_LEN } else { 0 };
        let at = wire.position();
        let unread = wire.unread_mut();
        if unread.len() < padding + sealed {
            let missing = padding + sealed - unread.len();
            self.state = State::Body { key, padding: padding_len, payload: payload_len };
            return Ok(Frame::NeedMore(missing));
        }
        if payload > 0 {
            let (pad, cipher) = unread[..padding + sealed].split_at_mut(padding);
            self.profile.exchange(self.seq, pad, cipher);
            key.open(self.nonce.advance(), pad, cipher)
                .map_err(|()| WireError::Authentication { what: "frame payload" })?;
            if let Some(mark) = self.mark.take() {
                self.is_marked = shows_mark(pad, &mark);
            }
        }
        self.seq = self.seq.wrapping_add(1);
        wire.consume(padding + sealed);
        self.state = State::Header(key);
        if payload == 0 {
            return Ok(Frame::ZeroChunk);
        }
        Ok(Frame::Payload(at + padding..at + padding + payload))
    }
}
