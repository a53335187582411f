//! Snowflake: streams over WebRTC through proxies that come and go.
//!
//! ```text
//!   application ─ SOCKS ─ smux ─ KCP ─ chunks ─ data channel ─ proxy ─ WebSocket ─ server ─ target
//!                         └──── Session, kept over proxies ────┘
//! ```
//!
//! - [`client`] takes SOCKS connections. Each has a [`session`] of its own and a [`collection`] of proxies, which it
//!   finds by a [`rendezvous`] with the broker.
//! - [`proxy`] takes clients from the broker, and copies bytes between each and its relay.

mod client;
mod collection;
mod probe;
mod proxy;
mod rendezvous;
mod session;
mod traffic;
mod waiter;

#[cfg(test)]
mod tests;

use std::fmt;

pub use client::{SnowflakeArguments, run_snowflake_client};
pub use probe::answer_probe;
pub use proxy::run_snowflake_proxy;
pub use traffic::{ProxyMetrics, go_duration};

/// Lines for people and for Tor.
pub trait Voice {
    /// A line of the log.
    fn log(&self, line: fmt::Arguments<'_>);

    /// A line that is shown whatever is logged.
    fn event(&self, line: fmt::Arguments<'_>) {
        self.log(line);
    }

    /// A line for Tor (`LOG`), of severity `notice` or `warning`.
    fn tell(&self, severity: &str, message: &str);
}
