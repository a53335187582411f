//! Outbounds through SOCKS5 and HTTP proxies.

use adit_proto::wire::Target;

use crate::Secret;

/// A client of a SOCKS5 or HTTP proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyClient {
    /// The proxy.
    pub server: Target,
    /// Its protocol.
    pub kind: ProxyKind,
    /// User name and password, if the proxy asks for them.
    pub credentials: Option<(Box<str>, Secret)>,
    /// TLS around the protocol.
    pub tls: Option<ProxyTls>,
}

/// The protocol of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyKind {
    /// SOCKS5 (RFC 1928).
    Socks5 {
        /// Whether datagrams are carried.
        udp: bool,
    },
    /// CONNECT of HTTP/1.1 (RFC 9110, section 9.3.6).
    Http {
        /// Fields that are sent with each request.
        headers: Vec<(Box<str>, Secret)>,
    },
}

/// TLS to a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyTls {
    /// The name in the handshake, which the certificate must have; `None` for the host of the server.
    pub name: Option<Box<str>>,
    /// The certificate that is accepted.
    pub verify: Verify,
}

/// The server certificates that a client accepts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Verify {
    /// One that an authority of the system has signed for the name.
    #[default]
    Chain,
    /// The one with this SHA-256 digest, with any name, dates and issuer.
    Fingerprint([u8; 32]),
    /// Any.
    Nothing,
}

impl ProxyClient {
    /// Whether datagrams are carried.
    pub fn udp(&self) -> bool {
        matches!(self.kind, ProxyKind::Socks5 { udp: true })
    }
}
