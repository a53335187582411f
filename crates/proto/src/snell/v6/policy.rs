//! The lengths of payload and padding that a sender makes. A receiver sees none of this: any lengths are legal.

use super::super::frame::SEALED_HEADER_LEN;
use super::profile::{MAX_PADDING_PART, Profile, SEGMENT, len};
use crate::crypto::TAG_LEN;

const MAX_TARGET: u64 = 65_535;
/// Payloads are never cut shorter than this, in bytes.
const MIN_LIMIT: u64 = 64;

impl Profile {
    /// Longest payload of frame `seq` when the ramp stands at `size`.
    pub(super) fn payload_limit(&self, seq: u32, size: u64) -> u64 {
        let limit = self.ramp_limit(seq, size);
        if seq == 0 { limit.min(self.params.first_record_cap) } else { limit }
    }

    /// The same, without what holds for the first frame.
    pub(super) fn ramp_limit(&self, seq: u32, size: u64) -> u64 {
        let p = &self.params;
        let draw = |label| u64::from(self.ns.draw(label, seq.into(), size));
        let limit = match p.chunk_policy {
            1 => p.chunk_buckets[len(draw(38) % 8)],
            2 => (size + draw(39) % (2 * p.chunk_jitter + 1)).saturating_sub(p.chunk_jitter),
            _ => size,
        };
        limit.clamp(MIN_LIMIT, p.chunk_max)
    }

    /// The ramp's next step.
    pub(super) fn grown(&self, size: u64) -> u64 {
        (size + self.params.chunk_step).min(self.params.chunk_max)
    }

    /// Length of the padding of frame `seq` with `payload_len` bytes of payload; `first` is the one behind the salt
    /// block. At most [`Profile::max_padding_len`].
    pub(super) fn padding_len(&self, seq: u32, payload_len: usize, first: bool) -> usize {
        let (p, payload) = (&self.params, payload_len as u64);
        let prefix = self.prefix_len(seq) as u64;
        let mut padding = 0;
        let is_small = payload > 0 && payload <= p.small_limit;
        if u64::from(seq) < p.pad_count || is_small || u64::from(seq).is_multiple_of(p.pad_interval) {
            padding = self.ns.pick(34, seq.into(), payload, p.pad_min, p.pad_max);
        }
        let salt_block = if first { self.salt_block_len() as u64 } else { 0 };
        let sealed = if payload > 0 { payload + TAG_LEN as u64 } else { 0 };
        let frame = salt_block + prefix + SEALED_HEADER_LEN as u64 + padding + sealed;
        let target = self.write_target(seq, frame);
        padding += target.saturating_sub(frame).min(MAX_PADDING_PART);
        if first {
            // Clear filler is to make up about a quarter of the first segment.
            let aead = payload + if payload > 0 { 55 } else { 39 };
            let wanted = (aead * 25).div_ceil(75).max(192);
            let clear = p.salt_prefix_len + prefix;
            if clear + padding < wanted {
                padding = (wanted - clear).min(p.pad_max + MAX_PADDING_PART);
            }
        }
        len(padding)
    }

    /// Longest padding that [`Profile::padding_len`] gives, in bytes.
    pub(super) fn max_padding_len(&self) -> usize {
        len(self.params.pad_max + MAX_PADDING_PART)
    }

    /// The length that a frame of `frame` bytes is to be filled up to.
    pub(super) fn write_target(&self, seq: u32, frame: u64) -> u64 {
        if frame >= SEGMENT {
            return frame.min(MAX_TARGET);
        }
        let p = &self.params;
        let draw = |label, b| u64::from(self.ns.draw(label, seq.into(), b));
        let mut target = match p.write_seq.get(seq as usize) {
            Some(target) if u64::from(seq) < p.write_first => *target,
            _ => p.write_buckets[len(draw(35, frame) % 8)],
        };
        if p.write_policy == 2 {
            target = (target + draw(36, 0) % (2 * p.write_jitter + 1)).saturating_sub(p.write_jitter).max(1);
        }
        let spread = (frame * p.write_jitter_pct / 100).min(MAX_PADDING_PART);
        if draw(35, spread).is_multiple_of(2) {
            target = (target + spread).min(MAX_TARGET);
        } else if target > spread / 2 {
            target -= spread / 2;
        }
        while frame > target {
            let bucket = p.write_buckets[len(draw(37, target) % 8)];
            target = if bucket > target { bucket } else { (target + p.pad_max).min(MAX_TARGET) };
        }
        target
    }
}
