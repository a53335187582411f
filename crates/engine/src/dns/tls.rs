//! TLS settings for name servers, made once per process.

use std::sync::OnceLock;

use adit_net::https::ALPN;
use adit_net::tls::{Roots, TlsConnector, TlsError};

/// The application protocol of DNS over TLS (RFC 7858 and IANA's registry).
const ALPN_DOT: &[&[u8]] = &[b"dot"];

/// The TLS configurations. Authorities are read when the first connection needs them, and kept.
pub(super) struct Tls {
    roots: Roots,
    dot: OnceLock<TlsConnector>,
    https: OnceLock<TlsConnector>,
}

impl Tls {
    /// Servers must have certificates of these authorities.
    pub(super) fn new(roots: Roots) -> Self {
        Self { roots, dot: OnceLock::new(), https: OnceLock::new() }
    }

    /// For DNS over TLS.
    ///
    /// # Errors
    /// [`TlsError::Store`]; the next call tries again.
    pub(super) fn dot(&self) -> Result<TlsConnector, TlsError> {
        self.get(&self.dot, ALPN_DOT)
    }

    /// For DNS over HTTPS.
    ///
    /// # Errors
    /// As [`Tls::dot`].
    pub(super) fn https(&self) -> Result<TlsConnector, TlsError> {
        self.get(&self.https, ALPN)
    }

    fn get(&self, kept: &OnceLock<TlsConnector>, alpn: &[&[u8]]) -> Result<TlsConnector, TlsError> {
        if let Some(connector) = kept.get() {
            return Ok(connector.clone());
        }
        let connector = TlsConnector::new(&self.roots, alpn)?;
        Ok(kept.get_or_init(|| connector).clone())
    }
}
