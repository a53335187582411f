use thiserror::Error;

/// Why a local client does not get the connection that it asked for, as finely as any proxy protocol can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum ConnectFailure {
    /// The tunnel protocol failed, the server refused us, or nothing finer is known.
    #[error("general failure")]
    General,
    /// A rule or access list says no, or a firewall of this machine does (EPERM, EACCES).
    #[error("not allowed")]
    NotAllowed,
    /// No route, no interface, or the address family is switched off.
    #[error("network unreachable")]
    NetworkUnreachable,
    /// The host does not answer, or its name has no address.
    #[error("host unreachable")]
    HostUnreachable,
    /// The target or the server refuses connections on that port.
    #[error("connection refused")]
    ConnectionRefused,
    /// The target or the server did not answer in time.
    #[error("timed out")]
    TimedOut,
    /// A command that this end does not carry out.
    #[error("command not supported")]
    CommandNotSupported,
    /// A kind of address that this end does not know.
    #[error("address type not supported")]
    AddressNotSupported,
    /// A limit has been reached.
    #[error("overloaded")]
    Overloaded,
    /// No server is configured, or all of them are waiting to be tried again.
    #[error("no server available")]
    Unavailable,
}
