use std::time::Instant;

/// Ties an [`Instant`] to wall time, so that a codec can tell the latter from the `now` it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallClock {
    at: Instant,
    unix_s: u64,
}

impl WallClock {
    /// It was `unix_s` seconds after the Unix epoch at `at`.
    pub fn new(at: Instant, unix_s: u64) -> Self {
        Self { at, unix_s }
    }

    /// Unix seconds at `now`.
    pub fn unix_s(&self, now: Instant) -> u64 {
        self.unix_s.saturating_add(now.saturating_duration_since(self.at).as_secs())
    }
}
