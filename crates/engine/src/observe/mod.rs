//! Views of what runs: one snapshot of counters by name, and the interfaces that show it.

pub(crate) mod control;
pub(crate) mod fleet;
mod gzip;
pub(crate) mod http;
pub(crate) mod loop_lag;
pub(crate) mod metrics;
mod outline;
pub(crate) mod service;
pub(crate) mod status;
pub(crate) mod unix;
