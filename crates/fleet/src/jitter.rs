//! Chance, so that the nodes of a fleet do not come all at once.

use std::time::Duration;

/// A number from 0 to 1.
pub(crate) fn random() -> f64 {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

/// The largest factor of [`jittered`].
pub(crate) const MOST_JITTER: f64 = 1.1;

/// Ten percent more or less.
pub(crate) fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.9 + 0.2 * random())
}
