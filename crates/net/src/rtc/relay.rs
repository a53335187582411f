//! The way from a proxy to its relay: a WebSocket whose messages are a stream of bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use adit_model::WebUrl;
use thiserror::Error;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::dial::{DialError, Dialer};
use crate::reach::Reach;
use crate::rt::{self, Stream};
use crate::tls::{TlsConnector, TlsError};
use crate::websocket::{Bytestream, Limits, connect};
use crate::wire::BoxStream;

/// Time for the farewell.
const FAREWELL: Duration = Duration::from_secs(1);
/// A relay sends messages of 2,048 bytes; others may be longer.
const LIMITS: Limits = Limits { message: 1 << 20, write: 16 << 10, buffer: 8 << 10, head: 16 << 10 };

/// Why there is no way to a relay.
#[derive(Debug, Error)]
pub enum RelayError {
    /// It cannot be reached.
    #[error("no connection: {0}")]
    Dial(#[from] DialError),
    /// It has no acceptable certificate, or speaks no TLS.
    #[error("no TLS connection: {0}")]
    Tls(#[from] TlsError),
    /// It opens no WebSocket.
    #[error("no WebSocket: {0}")]
    Socket(#[from] io::Error),
    /// Time ran out.
    #[error("no WebSocket after {0:?}")]
    Timeout(Duration),
}

/// An open way to a relay.
pub struct Relay(Bytestream<BoxStream<'static>>);

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}

impl Relay {
    /// Opens a WebSocket to `url`, which begins with `http` or `https` in the place of `ws` and `wss`.
    ///
    /// # Errors
    /// [`RelayError`].
    pub async fn open(
        dialer: &Dialer,
        connector: &TlsConnector,
        url: &WebUrl,
        reach: Reach,
        limit: Duration,
    ) -> Result<Self, RelayError> {
        let open = async {
            let stream = Stream::from(dialer.dial_within(&url.target, reach, rt::now()).await?);
            let stream: BoxStream<'static> = match url.tls {
                true => Box::new(Box::pin(connector.connect(&url.target.host, stream)).await?),
                false => Box::new(stream),
            };
            let agent = [("User-Agent", "Go-http-client/1.1")];
            let socket = Box::pin(connect(stream, &url.authority, &url.path, &agent, LIMITS)).await?;
            Ok(Self(socket.into_bytes()))
        };
        rt::timeout(limit, Box::pin(open)).await.unwrap_or(Err(RelayError::Timeout(limit)))
    }

    /// One read; 0 bytes mean that the relay has closed.
    ///
    /// # Errors
    /// The connection's error, or a broken protocol.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Takes the first bytes of `bytes`; returns how many.
    ///
    /// # Errors
    /// The connection's error.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    /// Ready once everything that was taken has left.
    ///
    /// # Errors
    /// The connection's error.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    /// Says farewell, as far as that is quick.
    pub async fn close(mut self) {
        let farewell = std::future::poll_fn(|cx| Pin::new(&mut self.0).poll_shutdown(cx));
        if let Ok(Err(error)) = rt::timeout(FAREWELL, farewell).await {
            tracing::debug!(%error, "close of a WebSocket");
        }
    }
}
