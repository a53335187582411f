//! Random bytes by a script, and a clock that stands.

use std::sync::LazyLock;
use std::time::Instant;

use adit_proto::wire::{Rng, WallClock};

/// The time by which servers and clients judge each other, in seconds since 1970.
pub(crate) const NOW_S: u64 = 1_800_000_000;

/// Hands out the bytes it was given, then a sequence from a seed.
pub(crate) struct Script {
    bytes: Vec<u8>,
    next: u64,
}

impl Script {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), next: 0 }
    }

    /// Random-looking bytes from a seed.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self { bytes: Vec::new(), next: seed }
    }
}

impl Rng for Script {
    fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            *byte = if self.bytes.is_empty() {
                self.next = self.next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                self.next.to_be_bytes()[0]
            } else {
                self.bytes.remove(0)
            };
        }
    }
}

/// A fixed start, since the codecs only measure distances from it.
static START: LazyLock<Instant> = LazyLock::new(adit_testkit::epoch);

pub(crate) fn now() -> Instant {
    *START
}

pub(crate) fn clock(unix_s: u64) -> WallClock {
    WallClock::new(now(), unix_s)
}
