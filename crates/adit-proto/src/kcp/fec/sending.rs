use std::time::Instant;

use super::rate::{Rate, Seen};
use super::{Encoder, HEADER_LEN, Shards};

/// The sending side of a session: its groups, and how much parity they get.
#[derive(Debug)]
pub struct Sending {
    encoder: Encoder,
    rate: Option<(Rate, Instant)>,
}

impl Sending {
    /// All parity of each group, whatever is lost.
    pub fn fixed(shards: Shards) -> Self {
        Self { encoder: Encoder::new(shards), rate: None }
    }

    /// As much as the losses ask for from `now` on; none before there are any.
    pub fn measured(shards: Shards, now: Instant) -> Self {
        let mut encoder = Encoder::new(shards);
        encoder.set_level(0);
        Self { encoder, rate: Some((Rate::new(shards), now)) }
    }

    /// Length of the header that the next packet needs: [`HEADER_LEN`], or 0 as long as there is no parity. Such a packet
    /// is sent as it is.
    pub fn head_len(&mut self, seen: Seen, now: Instant) -> usize {
        if let Some((rate, epoch)) = &mut self.rate {
            let now_us = now.saturating_duration_since(*epoch).as_micros();
            self.encoder.set_level(rate.update(u64::try_from(now_us).unwrap_or(u64::MAX), seen));
        }
        if self.encoder.is_on() { HEADER_LEN } else { 0 }
    }

    /// Seals a packet that has room for the header: see [`Encoder::seal`].
    pub fn seal(&mut self, packet: &mut [u8], now: Instant) {
        self.encoder.seal(packet, now);
    }

    /// See [`Encoder::poll_parity`].
    pub fn poll_parity(&mut self, out: &mut Vec<u8>) -> bool {
        self.encoder.poll_parity(out)
    }

    /// Data packets of a group, and the parity packets that it gets at present.
    pub fn level(&self) -> (usize, usize) {
        (self.encoder.shards().data(), self.encoder.level())
    }
}
