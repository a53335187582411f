//! One server as one of many: panels that list its users and take its counters, stores that servers share, and the
//! journal that keeps every byte counted once.
//!
//! Nothing here stands in the way of a byte or of a handshake. Each panel and the store has a thread of its own; the
//! program joins them to the engine.

#![forbid(unsafe_code)]

mod jitter;
pub mod journal;
pub mod panel;
pub mod store;
mod times;

pub use times::Times;
