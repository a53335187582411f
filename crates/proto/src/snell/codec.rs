//! One interface over the frames of all versions, and telling versions apart.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::bare::{self, BareFraming};
use super::frame::{self, Frame, OPENING_LEN, SEALED_HEADER_LEN};
use super::kdf::{SALT_LEN, Salt, SnellDirectionKey, SnellPsk};
use super::v6::{self, Profile};
use crate::buf::RecvBuf;
use crate::crypto::{Aead, AeadAlgorithm, CounterNonce};
use crate::wire::{Plan, Rng, WireError};

/// Format of a connection's frames.
#[derive(Debug, Clone)]
pub enum Format {
    /// v1.
    V1,
    /// v2 and v3.
    V2,
    /// v4 and v5.
    V4,
    /// v6, mode default.
    Shaped(Arc<Profile>),
    /// v6, mode unshaped.
    Unshaped,
    /// v6, mode unsafe-raw: nothing is sealed.
    UnsafeRaw,
}

/// The formats that a server takes.
#[derive(Debug, Clone)]
pub enum Accepts {
    /// One format.
    Only(Format),
    /// v4, v5 and v6 in the modes default and unshaped, told apart by what opens: first as v4 or unshaped, whose
    /// headers look alike, then as shaped. A key derivation each.
    Any(Arc<Profile>),
}

/// A key under which the first header of a client may open, where each user has one of its own.
#[derive(Debug, Clone)]
pub struct CandidateKey {
    psk: SnellPsk,
    format: Format,
    is_detected: bool,
}

/// A first header that has opened; nothing of it has been consumed.
#[derive(Debug)]
pub struct Opening {
    format: Format,
    key: SnellDirectionKey,
    is_detected: bool,
}

impl CandidateKey {
    /// Every way in which a client with `psk` may begin; none where nothing is sealed.
    pub fn all(accepts: &Accepts, psk: &SnellPsk) -> Vec<Self> {
        let candidate = |format, is_detected| Self { psk: psk.clone(), format, is_detected };
        match accepts {
            Accepts::Only(Format::UnsafeRaw) => Vec::new(),
            Accepts::Only(format) => vec![candidate(format.clone(), false)],
            Accepts::Any(profile) => {
                vec![candidate(Format::V4, true), candidate(Format::Shaped(profile.clone()), true)]
            }
        }
    }

    /// Bytes that must have come before it can be tried, at most [`CandidateKey::MAX_LEN`].
    pub fn opening_len(&self) -> usize {
        match &self.format {
            Format::V4 | Format::Unshaped | Format::UnsafeRaw => OPENING_LEN,
            Format::Shaped(profile) => profile.opening_len(),
            Format::V1 => BareFraming::ChachaChunk.opening_len(),
            Format::V2 => BareFraming::AesChunk.opening_len(),
        }
    }

    /// The longest salt block of version 6, with filler and a header behind it.
    pub const MAX_LEN: usize = 144 + 128 + SEALED_HEADER_LEN;

    /// Whether the first bytes of a client have the shape that this key, and few others, give them. It costs no derivation.
    /// If it is false the candidate may open all the same: most formats have no shape of their own, and receivers do
    /// not ask for it.
    pub fn is_likely(&self, first: &[u8]) -> bool {
        matches!(&self.format, Format::Shaped(profile) if v6::V6FrameOpener::has_shape(profile, first))
    }

    /// Tries it on the first bytes of a client. Costs a key derivation.
    pub fn open(&self, first: &[u8]) -> Option<Opening> {
        let key = match &self.format {
            Format::Shaped(profile) => v6::V6FrameOpener::probe(profile, &self.psk, first)?,
            Format::V1 => bare::BareOpener::probe(BareFraming::ChachaChunk, &self.psk, first)?,
            Format::V2 => bare::BareOpener::probe(BareFraming::AesChunk, &self.psk, first)?,
            // The sealed header of version 4 looks the same.
            Format::V4 | Format::Unshaped => {
                bare::BareOpener::probe(BareFraming::Unshaped, &self.psk, first)?
            }
            Format::UnsafeRaw => return None,
        };
        Some(Opening { format: self.format.clone(), key, is_detected: self.is_detected })
    }
}

/// Seals one direction, in any version.
#[derive(Debug)]
pub(super) enum SnellSealer {
    Padded(frame::FrameSealer),
    Shaped(v6::V6FrameSealer),
    Bare(bare::BareSealer),
}

impl SnellSealer {
    /// With `marks` the first padding, where there is one, tells who knows the key that this is adit.
    pub(super) fn new(format: Format, key: &SnellDirectionKey, marks: bool, rng: &mut dyn Rng) -> Self {
        let framing = match format {
            Format::V4 => return Self::Padded(frame::FrameSealer::new(key, marks, rng)),
            Format::Shaped(profile) => return Self::Shaped(v6::V6FrameSealer::new(profile, key, marks, rng)),
            Format::V1 => BareFraming::ChachaChunk,
            Format::V2 => BareFraming::AesChunk,
            Format::Unshaped => BareFraming::Unshaped,
            Format::UnsafeRaw => BareFraming::Raw,
        };
        Self::Bare(bare::BareSealer::new(framing, key))
    }

    pub(super) fn plan(&self, prefix_len: usize, now: Instant) -> Plan {
        match self {
            Self::Padded(sealer) => sealer.plan(prefix_len, now),
            Self::Shaped(sealer) => sealer.plan(prefix_len, now),
            Self::Bare(sealer) => sealer.plan(prefix_len),
        }
    }

    pub(super) fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        match self {
            Self::Padded(sealer) => sealer.seal(block, payload, now),
            Self::Shaped(sealer) => sealer.seal(block, payload, now),
            Self::Bare(sealer) => sealer.seal(block, payload),
        }
    }

    pub(super) fn finish_write(&mut self, now: Instant) {
        match self {
            Self::Padded(sealer) => sealer.finish_write(now),
            Self::Shaped(_) | Self::Bare(_) => {}
        }
    }

    pub(super) fn seal_zero_chunk(
        &mut self,
        block: &mut [u8],
        at: usize,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        match self {
            Self::Padded(sealer) => sealer.seal_zero_chunk(block, at),
            Self::Shaped(sealer) => sealer.seal_zero_chunk(block, at, now),
            Self::Bare(sealer) => sealer.seal_zero_chunk(block, at),
        }
    }
}

/// Opens one direction, in any version.
#[derive(Debug)]
pub(super) enum SnellOpener {
    Padded(frame::FrameOpener),
    Shaped(v6::V6FrameOpener),
    Bare(bare::BareOpener),
    Detecting(Detection),
}

/// A direction of which nothing has opened yet.
#[derive(Debug)]
pub(super) struct Detection {
    psk: SnellPsk,
    profile: Arc<Profile>,
    /// It has turned out not to be v4 or unshaped.
    is_shaped: bool,
}

impl SnellOpener {
    pub(super) fn new(format: Format, psk: SnellPsk) -> Self {
        let framing = match format {
            Format::V4 => return Self::Padded(frame::FrameOpener::new(psk)),
            Format::Shaped(profile) => return Self::Shaped(v6::V6FrameOpener::new(profile, psk)),
            Format::V1 => BareFraming::ChachaChunk,
            Format::V2 => BareFraming::AesChunk,
            Format::Unshaped => BareFraming::Unshaped,
            Format::UnsafeRaw => BareFraming::Raw,
        };
        Self::Bare(bare::BareOpener::new(framing, psk))
    }

    /// A direction of which the caller has seen how its first header opens.
    pub(super) fn opened(opening: &Opening) -> Self {
        let (key, framing) = (
            &opening.key,
            match &opening.format {
                Format::V4 => {
                    return Self::Padded(frame::FrameOpener::detected(&opening.key, opening.is_detected));
                }
                Format::Shaped(profile) => {
                    return Self::Shaped(v6::V6FrameOpener::detected(profile.clone(), &opening.key));
                }
                Format::V1 => BareFraming::ChachaChunk,
                Format::V2 => BareFraming::AesChunk,
                Format::Unshaped => BareFraming::Unshaped,
                Format::UnsafeRaw => BareFraming::Raw,
            },
        );
        Self::Bare(bare::BareOpener::detected(framing, key))
    }

    pub(super) fn accepting(accepts: Accepts, psk: SnellPsk) -> Self {
        match accepts {
            Accepts::Only(format) => Self::new(format, psk),
            Accepts::Any(profile) => Self::Detecting(Detection { psk, profile, is_shaped: false }),
        }
    }

    /// The format in which the other direction is to be sealed, once a payload has opened.
    pub(super) fn answer(&self) -> Format {
        match self {
            Self::Padded(opener) if opener.may_be_unshaped() => Format::Unshaped,
            Self::Padded(_) | Self::Detecting(_) => Format::V4,
            Self::Shaped(opener) => Format::Shaped(opener.profile().clone()),
            Self::Bare(opener) => match opener.framing() {
                BareFraming::ChachaChunk => Format::V1,
                BareFraming::AesChunk => Format::V2,
                BareFraming::Unshaped => Format::Unshaped,
                BareFraming::Raw => Format::UnsafeRaw,
            },
        }
    }

    /// The peer's salt, once the first header has opened under it.
    pub(super) fn salt(&self) -> Option<&Salt> {
        match self {
            Self::Padded(opener) => opener.salt(),
            Self::Shaped(opener) => opener.salt(),
            Self::Bare(opener) => opener.salt(),
            Self::Detecting(_) => None,
        }
    }

    /// True once the first header has opened.
    pub(super) fn has_opened(&self) -> bool {
        match self {
            Self::Bare(opener) => opener.has_opened(),
            Self::Padded(_) | Self::Shaped(_) | Self::Detecting(_) => self.salt().is_some(),
        }
    }

    /// The bytes with which the next call derives a key, if there is a derivation to come.
    pub(super) fn derives_at(&self) -> Option<usize> {
        match self {
            Self::Padded(opener) => opener.awaits_salt().then_some(OPENING_LEN),
            Self::Shaped(opener) => opener.derives_at(),
            Self::Bare(opener) => opener.derives_at(),
            Self::Detecting(Detection { profile, is_shaped: true, .. }) => Some(profile.opening_len()),
            Self::Detecting(_) => Some(OPENING_LEN),
        }
    }

    /// True when a key has been derived that did not fit, and another one may yet.
    pub(super) fn has_tried(&self) -> bool {
        matches!(self, Self::Detecting(Detection { is_shaped: true, .. }))
    }

    /// True if the first payload came with a mark: the peer is adit.
    pub(super) fn is_marked(&self) -> bool {
        match self {
            Self::Padded(opener) => opener.is_marked(),
            Self::Shaped(opener) => opener.is_marked(),
            Self::Bare(_) | Self::Detecting(_) => false,
        }
    }

    /// True between frames: an end of the transport cuts nothing.
    pub(super) fn is_at_boundary(&self) -> bool {
        match self {
            Self::Padded(opener) => opener.is_at_boundary(),
            Self::Shaped(opener) => opener.is_at_boundary(),
            Self::Bare(opener) => opener.is_at_boundary(),
            Self::Detecting(_) => false,
        }
    }

    pub(super) fn open(&mut self, wire: &mut RecvBuf) -> Result<Frame, WireError> {
        match self {
            Self::Padded(opener) => opener.open(wire),
            Self::Shaped(opener) => opener.open(wire),
            Self::Bare(opener) => opener.open(wire),
            Self::Detecting(detection) => match detection.poll(wire.unread()) {
                Ok(opener) => {
                    *self = opener;
                    self.open(wire)
                }
                Err(missing) => Ok(Frame::NeedMore(missing)),
            },
        }
    }
}

impl Detection {
    /// The opener, or the number of bytes that are missing to find it.
    fn poll(&mut self, unread: &[u8]) -> Result<SnellOpener, usize> {
        if !self.is_shaped {
            let Some((salt, rest)) = unread.split_first_chunk::<SALT_LEN>() else {
                return Err(OPENING_LEN - unread.len());
            };
            let Some(header) = rest.first_chunk::<SEALED_HEADER_LEN>() else {
                return Err(OPENING_LEN - unread.len());
            };
            let key = self.psk.derive(salt);
            let aead = Aead::new(AeadAlgorithm::Aes128Gcm, &key.key);
            if aead.open(CounterNonce::default().advance(), &[], &mut header.clone()).is_ok() {
                return Ok(SnellOpener::Padded(frame::FrameOpener::detected(&key, true)));
            }
            self.is_shaped = true;
        }
        match self.profile.opening_len().checked_sub(unread.len()) {
            Some(missing) if missing > 0 => Err(missing),
            _ => Ok(SnellOpener::Shaped(v6::V6FrameOpener::new(self.profile.clone(), self.psk.clone()))),
        }
    }
}
