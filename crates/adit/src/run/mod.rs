//! A configuration that runs: its changes, the files that keep its state, and its successor.

pub(crate) mod fleet;
pub(crate) mod overlay;
pub(crate) mod reload;
pub(crate) mod restart;
pub(crate) mod socket;
pub(crate) mod state;
pub(crate) mod supervisor;
pub(crate) mod upgrade;
