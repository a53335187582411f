//! Snowflake's servers: the broker that brings clients and proxies together, the server behind the proxies, and the
//! server that tells a proxy its NAT.

mod broker;
mod probetest;
mod server;
mod slot;

use std::io;

pub use self::broker::{Broker, broker_service};
pub use self::probetest::{Failure as ProbeFailure, Prober, probe_service};
pub use self::server::snowflake_server;

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
