//! Parts of the system that a capture can do without, and tests that take them away.

use std::sync::atomic::{AtomicU8, Ordering};

/// A part that this machine lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingFeature {
    /// The kernel ends no tables with their process, as before 5.12.
    Owners = 1,
    /// The kernel has no nftables.
    Tables = 2,
    /// There is no driver of virtual interfaces.
    Interfaces = 4,
}

static FORCED: AtomicU8 = AtomicU8::new(0);

/// From now on this process takes the machine for one that lacks this part. For tests.
#[doc(hidden)]
pub fn force(lack: MissingFeature) {
    FORCED.fetch_or(lack as u8, Ordering::Relaxed);
}

/// Whether a test has taken this part away.
pub(super) fn is_forced(lack: MissingFeature) -> bool {
    FORCED.load(Ordering::Relaxed) & lack as u8 != 0
}

/// Whether virtual interfaces can be had.
pub(super) fn has_tun() -> bool {
    !is_forced(MissingFeature::Interfaces) && adit_net::tun::has_driver()
}
