//! A program that starts anew in its process, as mihomo does where a client asks for it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the program can start anew, and whether somebody has asked for it.
static CAN_RESTART: AtomicBool = AtomicBool::new(false);
static RESTARTS: AtomicBool = AtomicBool::new(false);

/// Says whether the program can start anew.
pub(crate) fn allow(can: bool) {
    CAN_RESTART.store(can, Ordering::Relaxed);
}

/// Has the program end as at a signal and start anew in the same process, as mihomo does. False where it cannot.
pub(crate) fn restart() -> bool {
    let can = CAN_RESTART.load(Ordering::Relaxed);
    if can && !RESTARTS.swap(true, Ordering::Relaxed) {
        std::thread::spawn(|| {
            // The one who asks gets an answer first.
            std::thread::sleep(std::time::Duration::from_millis(200));
            if let Err(error) = adit_net::background::end(std::process::id()) {
                tracing::error!(%error, "cannot start anew");
            }
        });
    }
    can
}

/// Whether the program ends to start anew.
pub(crate) fn is_restarting() -> bool {
    RESTARTS.load(Ordering::Relaxed)
}
