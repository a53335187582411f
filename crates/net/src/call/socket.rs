//! A WebSocket to the server of a call, with the same trust in its certificate.

use std::io;
use std::time::Duration;

use adit_model::WebUrl;

use super::{CallTrust, reach};
use crate::dial::Dialer;
use crate::fetch::FetchError;
use crate::rt;
use crate::websocket::{Limits, Message, WebSocket, connect};
use crate::wire::BoxStream;

/// An open WebSocket to a server.
pub struct CallSocket(WebSocket<BoxStream<'static>>);

impl std::fmt::Debug for CallSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallSocket").finish_non_exhaustive()
    }
}

impl CallSocket {
    /// Opens a WebSocket to `url` within `limit`. A message of the server has `max` bytes at most.
    ///
    /// # Errors
    /// [`FetchError`].
    pub async fn open(
        dialer: &Dialer,
        trust: &CallTrust,
        url: &WebUrl,
        max: usize,
        limit: Duration,
    ) -> Result<Self, FetchError> {
        let open = async {
            let stream = Box::pin(reach(dialer, trust, url)).await?;
            let limits = Limits { message: max, ..Limits::default() };
            let agent = [("User-Agent", concat!("adit/", env!("CARGO_PKG_VERSION")))];
            Ok(Self(Box::pin(connect(stream, &url.authority, &url.path, &agent, limits)).await?))
        };
        rt::timeout(limit, Box::pin(open)).await.unwrap_or(Err(FetchError::Timeout { limit }))
    }

    /// The next text; `None` once the server has closed. Bytes are refused. Cancelling loses nothing.
    ///
    /// # Errors
    /// As [`WebSocket::receive`].
    pub async fn receive(&mut self) -> io::Result<Option<String>> {
        match self.0.receive().await? {
            Some(Message::Text(text)) => Ok(Some(text)),
            Some(Message::Binary(_)) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the server sends bytes in the place of text"))
            }
            None => Ok(None),
        }
    }

    /// Sends a text within `limit`.
    ///
    /// # Errors
    /// `TimedOut`, and those of [`WebSocket::send`].
    pub async fn send(&mut self, text: String, limit: Duration) -> io::Result<()> {
        let sent = rt::timeout(limit, self.0.send(Message::Text(text))).await;
        sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}
