//! Requests over one TLS session, by HTTP/2 or HTTP/1.1, whichever the server has chosen.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::rt::{Read, ReadBufCursor, Write};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Mutex;

use crate::rt;
use crate::tls::TlsStream;

/// The protocols that [`HttpsClient`] speaks, for [`TlsClient::new`](crate::tls::TlsClient::new).
pub const ALPN: &[&[u8]] = &[b"h2", b"http/1.1"];

/// Bytes of one read; what a TLS record holds.
const READ_LEN: usize = 16 * 1024;

/// Why there is no response.
#[derive(Debug, Error)]
pub enum HttpsError {
    /// The connection broke, or the server does not speak HTTP.
    #[error("HTTP failed")]
    Http(#[from] hyper::Error),
    /// The address cannot be asked for.
    #[error("not a valid address")]
    Request(#[from] http::Error),
    /// The response is an error.
    #[error("the server answers with status {0}")]
    Status(u16),
    /// The response has another type than the one that was asked for.
    #[error("the answer is not of type {0}")]
    Type(&'static str),
    /// The response is too long.
    #[error("the answer is longer than {max} bytes")]
    TooLong {
        /// How long it may be.
        max: usize,
    },
}

/// A connection to one server, for any number of requests at the same time. It closes when it is dropped.
pub struct HttpsClient {
    sender: Sender,
    is_closed: Rc<Cell<bool>>,
}

enum Sender {
    Two(http2::SendRequest<Full<Bytes>>),
    /// Requests wait for each other.
    One(Mutex<http1::SendRequest<Full<Bytes>>>),
}

impl HttpsClient {
    /// Begins HTTP on `stream`.
    ///
    /// # Errors
    /// [`HttpsError::Http`].
    pub async fn new(stream: TlsStream) -> Result<Self, HttpsError> {
        let is_closed = Rc::new(Cell::new(false));
        let is_two = stream.alpn() == Some(b"h2");
        let io = Io(stream);
        let sender = if is_two {
            let (sender, connection) = http2::Builder::new(Local).handshake(io).await?;
            drive(connection, is_closed.clone());
            Sender::Two(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await?;
            drive(connection, is_closed.clone());
            Sender::One(Mutex::new(sender))
        };
        Ok(Self { sender, is_closed })
    }

    /// Whether the connection takes no further request.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
            || match &self.sender {
                Sender::Two(sender) => sender.is_closed(),
                Sender::One(sender) => sender.try_lock().is_ok_and(|sender| sender.is_closed()),
            }
    }

    /// Posts `body` to `https://{authority}{path}` and returns the body of the response, at most `max` bytes.
    /// `kind` is the media type of both.
    ///
    /// # Errors
    /// [`HttpsError`].
    pub async fn post(
        &self,
        (authority, path): (&str, &str),
        kind: &'static str,
        body: Vec<u8>,
        max: usize,
    ) -> Result<Vec<u8>, HttpsError> {
        let request = Request::builder().method(Method::POST);
        let request = request.header(header::CONTENT_TYPE, kind).header(header::ACCEPT, kind);
        let body = Full::new(Bytes::from(body));
        let response = match &self.sender {
            Sender::Two(sender) => {
                let uri = format!("https://{authority}{path}");
                let request = request.version(Version::HTTP_2).uri(uri).body(body)?;
                let mut sender = sender.clone();
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::One(sender) => {
                let request = request.uri(path).header(header::HOST, authority).body(body)?;
                let mut sender = sender.lock().await;
                sender.ready().await?;
                let response = sender.send_request(request).await?;
                return read(response, kind, max).await;
            }
        };
        read(response, kind, max).await
    }
}

impl fmt::Debug for HttpsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpsClient").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

fn drive(connection: impl Future<Output = Result<(), hyper::Error>> + 'static, is_closed: Rc<Cell<bool>>) {
    rt::spawn_local(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "HTTP connection");
        }
        is_closed.set(true);
    });
}

async fn read(response: Response<Incoming>, kind: &'static str, max: usize) -> Result<Vec<u8>, HttpsError> {
    if response.status() != StatusCode::OK {
        return Err(HttpsError::Status(response.status().as_u16()));
    }
    let given = response.headers().get(header::CONTENT_TYPE).map(header::HeaderValue::as_bytes);
    let given = given.unwrap_or_default().split(|byte| *byte == b';').next().unwrap_or_default();
    if !given.trim_ascii().eq_ignore_ascii_case(kind.as_bytes()) {
        return Err(HttpsError::Type(kind));
    }
    let (mut body, mut bytes) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if bytes.len() + data.len() > max {
            return Err(HttpsError::TooLong { max });
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Runs what HTTP/2 does beside a request on the current event loop.
#[derive(Clone)]
struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, task: F) {
        rt::spawn_local(task);
    }
}

/// A [`TlsStream`] as hyper wants it.
struct Io(TlsStream);

impl Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // Safe code cannot lend the cursor's memory, which is not initialised.
        let mut bytes = vec![0; buffer.remaining().min(READ_LEN)];
        let mut read = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut read))?;
        buffer.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
