//! Links: two networks on one machine and an emulated path between them.
//!
//! ```text
//! near network                       this process                        far network
//! load, clients ── TUN ── read → model of one direction → write ── TUN ── servers, target
//!                      ── write ← model of the other ← read ──
//! ```
//!
//! The model is `adit-netem`, the same that simulations in tests use. No scheduler of the kernel is needed.

pub mod emulator;
pub mod network;
pub mod spec;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

pub use emulator::{Count, Counts, Emulator, Kind};
pub use network::{FAR, INTERFACE, NEAR, Namespace, Network};
pub use spec::Spec;

/// Two networks and what joins them.
#[derive(Debug)]
pub struct Site {
    /// The networks.
    pub network: Arc<Network>,
    /// The emulated link; none: a pair of interfaces that is as fast as the machine.
    pub emulator: Option<Emulator>,
}

impl Site {
    /// Joins the networks by an emulated link.
    ///
    /// # Errors
    /// As [`Emulator::start`].
    pub fn emulated(network: &Arc<Network>, spec: &Spec) -> Result<Self> {
        let emulator = Emulator::start(network, spec)?;
        Ok(Self { network: Arc::clone(network), emulator: Some(emulator) })
    }

    /// Joins the networks by a pair of Ethernet interfaces.
    ///
    /// # Errors
    /// As [`Network::join`].
    pub fn wired(network: &Arc<Network>, mtu: u32) -> Result<Self> {
        network.join(mtu)?;
        Ok(Self { network: Arc::clone(network), emulator: None })
    }

    /// Time after which streams have filled the path: three seconds where a round trip takes 100 ms.
    #[must_use]
    pub fn warm_up(&self) -> Duration {
        let rtt = self.emulator.as_ref().map_or(Duration::ZERO, |emulator| emulator.spec().rtt);
        Duration::from_millis(400) + rtt * 26
    }
}
