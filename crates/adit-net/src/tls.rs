//! TLS towards servers, with rustls: certificates are always checked.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;

use crate::rt::Stream;

/// The authorities whose certificates are accepted.
#[derive(Debug, Clone)]
pub struct Roots(Arc<RootCertStore>);

impl Roots {
    /// Those that browsers accept (Mozilla's list).
    pub fn public() -> Self {
        Self(Arc::new(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect()))
    }

    /// Only this one, as DER.
    ///
    /// # Errors
    /// When it is not a certificate.
    pub fn only(certificate: &[u8]) -> io::Result<Self> {
        let mut store = RootCertStore::empty();
        store.add(CertificateDer::from(certificate.to_vec())).map_err(io::Error::other)?;
        Ok(Self(Arc::new(store)))
    }
}

/// Begins TLS sessions as a client; sessions to the same server are resumed.
#[derive(Clone)]
pub struct TlsClient(TlsConnector);

impl TlsClient {
    /// A client that offers `alpn`, the preferred protocol first.
    ///
    /// # Panics
    /// Never: the provider has the protocol versions that are asked for.
    pub fn new(roots: &Roots, alpn: &[&[u8]]) -> Self {
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_safe_default_protocol_versions().expect("the provider has TLS 1.2 and 1.3");
        let mut config = config.with_root_certificates(roots.0.clone()).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Self(TlsConnector::from(Arc::new(config)))
    }

    /// A session with the server `name` (a domain or an address) over `stream`.
    ///
    /// # Errors
    /// When `name` is neither, and as the handshake: a certificate that does not match says so.
    pub async fn connect(&self, stream: Stream, name: &str) -> io::Result<TlsStream> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let session = Box::pin(self.0.connect(name, Io(stream))).await?;
        Ok(TlsStream(Box::new(session)))
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").finish_non_exhaustive()
    }
}

/// A TLS session.
#[derive(Debug)]
pub struct TlsStream(Box<tokio_rustls::client::TlsStream<Io>>);

impl TlsStream {
    /// The application protocol that the server has chosen.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.0.get_ref().1.alpn_protocol()
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

/// A connection of either kind.
#[derive(Debug)]
pub enum Duplex {
    /// As it is.
    Plain(Stream),
    /// Inside TLS.
    Tls(TlsStream),
}

impl Duplex {
    /// One read into `buffer`; 0 bytes mean the end.
    ///
    /// # Errors
    /// What the connection reports.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => stream.poll_recv(cx, buffer),
            Self::Tls(tls) => {
                let mut buffer = ReadBuf::new(buffer);
                Pin::new(tls).poll_read(cx, &mut buffer).map_ok(|()| buffer.filled().len())
            }
        }
    }

    /// Takes the first bytes of `bytes`; returns how many.
    ///
    /// # Errors
    /// What the connection reports.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => stream.poll_send(cx, &[IoSlice::new(bytes)]),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    /// Ready once everything that was taken has left.
    ///
    /// # Errors
    /// What the connection reports.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }
}

/// A [`Stream`] as TLS wants it.
#[derive(Debug)]
struct Io(Stream);

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.0.poll_recv(cx, buffer.initialize_unfilled());
        read.map_ok(|len| buffer.advance(len))
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_send(cx, &[IoSlice::new(bytes)])
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.shutdown_write())
    }
}
