//! Names of targets that are read from clients' first bytes.

use super::rule::{Matcher, PortRange};

/// The requests whose first bytes are looked at for the name of their target, and the use of that name.
#[derive(Debug, Clone, PartialEq)]
pub struct Sniffer {
    /// Streams that begin with a ClientHello.
    pub tls: Option<SniffPorts>,
    /// Streams that begin with a request of HTTP/1.
    pub http: Option<SniffPorts>,
    /// Flows of datagrams that begin with a ClientHello.
    pub datagrams: Option<SniffPorts>,
    /// Requests that are left alone, by the addresses of client and target. `None` for none.
    pub skip: Option<Matcher>,
    /// Named targets for which a name is sought all the same. `None` for none.
    pub force: Option<Matcher>,
    /// Names that are found and not used. `None` for none.
    pub ignore: Option<Matcher>,
    /// A name is sought where the client was given the target's address for another name.
    pub mapped: bool,
    /// A name is sought where the target is an address and nothing more is known.
    pub pure: bool,
}

/// The targets of one protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SniffPorts {
    /// Ports of the target.
    pub ports: Vec<PortRange>,
    /// A stream goes to the name. Otherwise rules see the name, and the stream goes to the target of the client.
    pub overrides: bool,
}
