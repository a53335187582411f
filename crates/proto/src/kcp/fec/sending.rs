use std::time::Instant;

use super::rate::{FecCounters, Rate};
use super::{FecEncoder, HEADER_LEN, Shards};

/// The sending side of a session: its groups, and how much parity they get.
#[derive(Debug)]
pub struct Sending {
    encoder: Option<FecEncoder>,
    rate: Option<(Rate, Instant)>,
}

impl Sending {
    /// All parity of each group, independent of losses.
    pub fn fixed(shards: Shards) -> Self {
        Self { encoder: Some(FecEncoder::new(shards)), rate: None }
    }

    /// As much as the losses ask for from `now` on, in groups like the peer's.
    pub fn measured(now: Instant) -> Self {
        Self { encoder: None, rate: Some((Rate::new(Shards::USUAL), now)) }
    }

    /// Length of the header that the next packet needs: [`HEADER_LEN`], or 0 as long as there is no parity. Such a packet
    /// is sent as it is.
    ///
    /// `theirs` are the groups in which the peer sends parity, once they are known. Measured parity comes in the same and
    /// to no other peer: old ones that expect none, or other groups, take those that are not whole for smaller ones, and
    /// compute nonsense that passes for data.
    pub fn head_len(&mut self, theirs: Option<Shards>, seen: FecCounters, now: Instant) -> usize {
        if let Some((rate, epoch)) = &mut self.rate {
            let Some(theirs) = theirs else { return 0 };
            let now_us = now.saturating_duration_since(*epoch).as_micros();
            let now_us = u64::try_from(now_us).unwrap_or(u64::MAX);
            let encoder = self.encoder.get_or_insert_with(|| {
                let mut encoder = FecEncoder::new(theirs);
                encoder.set_level(0);
                *rate = Rate::new(theirs);
                rate.begin(now_us, seen);
                encoder
            });
            let seen = FecCounters { has_room: seen.has_room && encoder.shards() == theirs, ..seen };
            encoder.set_level(rate.update(now_us, seen));
        }
        if self.encoder.as_ref().is_some_and(FecEncoder::is_on) { HEADER_LEN } else { 0 }
    }

    /// Seals a packet that has room for the header: see [`FecEncoder::seal`].
    pub fn seal(&mut self, packet: &mut [u8], now: Instant) {
        if let Some(encoder) = &mut self.encoder {
            encoder.seal(packet, now);
        }
    }

    /// See [`FecEncoder::poll_parity`].
    pub fn poll_parity(&mut self, out: &mut Vec<u8>) -> bool {
        self.encoder.as_mut().is_some_and(|encoder| encoder.poll_parity(out))
    }

    /// Data packets of a group, and the parity packets that it gets at present.
    pub fn level(&self) -> (usize, usize) {
        self.encoder.as_ref().map_or((0, 0), |encoder| (encoder.shards().data(), encoder.level()))
    }
}
