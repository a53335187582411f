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

/// The interface over which others manage users: Outline's access keys, and the Shadowsocks Server Management API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manage {
    /// Address to listen on, with TLS.
    pub listen: SocketAddr,
    /// The first part of each path: letters, digits, `-` and `_`.
    pub secret: Secret,
    /// Name of the Shadowsocks inbound whose users are Outline's access keys; `None` for the first one that can have them.
    pub inbound: Option<Box<str>>,
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
    /// Whether metrics have Outline's names too; only with `per_user`.
    pub outline: bool,
}
