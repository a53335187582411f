//! Snowflake: streams over WebRTC through proxies that come and go.
//!
//! ```text
//!   application ─ SOCKS ─ smux ─ KCP ─ chunks ─ data channel ─ proxy ─ WebSocket ─ server ─ target
//!                         └──── Session, kept over proxies ────┘
//! ```
//!
//! - `client` takes SOCKS connections. Each has a `session` of its own and a `collection` of proxies, which it
//!   finds by a `rendezvous` with the broker. A `channel` is a proxy in use.
//! - `carrier` is what the engine uses: `carrier_paths` leads the sessions of an outbound through proxies, and
//!   `server::port` takes those of an inbound.
//! - `proxy` takes clients from the broker, and copies bytes between each and its relay.
//! - `broker` brings the two together, `server` stands behind the proxies, and `probetest` tells a proxy its NAT.

#![forbid(unsafe_code)]

mod broker;
mod carrier;
mod carrier_paths;
#[cfg(target_os = "linux")]
mod channel;
#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
mod collection;
mod hand_off;
#[cfg(target_os = "linux")]
mod probe;
mod probetest;
#[cfg(target_os = "linux")]
mod proxy;
#[cfg(target_os = "linux")]
mod rendezvous;
mod server;
mod serving;
#[cfg(target_os = "linux")]
mod session;
#[cfg(target_os = "linux")]
mod traffic;
#[cfg(target_os = "linux")]
mod waiter;

#[cfg(test)]
#[cfg(target_os = "linux")]
mod testing;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

use std::{fmt, io};

use adit_net::service::Service;

use adit_engine::Shares;

pub use self::broker::{Broker, broker_service, fuzz_snowflake_files};
#[cfg(target_os = "linux")]
pub use self::client::{SnowflakeArguments, run_snowflake_client};
#[cfg(target_os = "linux")]
pub use self::probe::{Probes, answer_probe};
pub use self::probetest::{ProbeFailure, Prober, probe_service};
#[cfg(target_os = "linux")]
pub use self::proxy::run_snowflake_proxy;
pub use self::server::snowflake_server;
pub use self::serving::NextProcess;
#[cfg(target_os = "linux")]
pub use self::traffic::{ProxyMetrics, go_duration};
pub use crate::carrier::SnowflakeStreams;

/// Lines for people and for Tor.
pub trait Voice {
    /// A line of the log.
    fn log(&self, line: fmt::Arguments<'_>);

    /// A line that is shown even if others are not.
    fn event(&self, line: fmt::Arguments<'_>) {
        self.log(line);
    }

    /// A line for Tor (`LOG`), of severity `notice` or `warning`.
    fn tell(&self, severity: &str, message: &str);
}

/// Memory that one connection of a broker or a probe server may cost in bytes: its buffers, TLS, and a request.
const CONNECTION_LEN: usize = 64 << 10;
/// Connections that such a server may always have.
const LEAST_CONNECTIONS: usize = 64;

/// Bounds an HTTP server that anybody may ask by the memory of this process.
fn bound(service: &mut Service) {
    let memory = Shares::of_process().memory;
    let most = (memory / CONNECTION_LEN).max(LEAST_CONNECTIONS);
    service.max_connections = service.max_connections.min(most);
    service.max_unread = service.max_unread.min(memory / 8);
}

/// A server that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SnowflakeError {
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] adit_net::listen::ListenError),
    /// The certificate or its key cannot be used.
    #[error("cannot use the certificate: {0}")]
    Tls(#[source] io::Error),
    /// A file cannot be read, or its content is wrong.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: String,
        /// The problem with it.
        problem: String,
    },
    /// The event loop cannot be made.
    #[error("cannot start an event loop: {0}")]
    Loop(#[source] io::Error),
}
