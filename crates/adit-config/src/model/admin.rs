//! The interfaces by which a running process is looked at and told what to do.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::Secret;

/// The unix socket of the control interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ControlSocket {
    /// The usual one of the program, which chooses its path.
    #[default]
    Usual,
    /// None.
    Off,
    /// At this path.
    At(PathBuf),
}

/// The HTTP interface: metrics, health and readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminHttp {
    /// Address to listen on: of loopback unless there is a token.
    pub listen: SocketAddr,
    /// The token that a client must present for metrics (`Authorization: Bearer`).
    pub token: Option<Secret>,
    /// Whether there are series for each user.
    pub per_user: bool,
}
