//! Work on an event loop of its own, beside the ports.

use adit_net::rt::{Cores, Stopper};

/// Runs until it is dropped.
pub(super) struct BackgroundLoop {
    stopper: Stopper,
    cores: Option<Cores>,
}

impl BackgroundLoop {
    /// Keeps `cores` running until `stopper` ends them.
    pub(crate) fn new(stopper: Stopper, cores: Cores) -> Self {
        Self { stopper, cores: Some(cores) }
    }
}

impl Drop for BackgroundLoop {
    fn drop(&mut self) {
        self.stopper.end();
        if let Some(cores) = self.cores.take() {
            cores.join();
        }
    }
}
