//! Requests over one TLS session, by HTTP/2 or HTTP/1.1, as the server has chosen.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::sync::Mutex;

use crate::fetch::FetchError;
use crate::rt::{self, Stream};
use crate::tls::{TlsStream, alpn};
use crate::wire::BoxStream;

/// The protocols that [`HttpsClient`] speaks, for [`TlsConnector::new`](crate::tls::TlsConnector::new).
pub const ALPN: &[&[u8]] = &[b"h2", b"http/1.1"];

/// The longest head of a response to [`once`], in bytes.
pub(crate) const MAX_HEAD_LEN: usize = 64 * 1024;
/// The longest field of a response that is kept, in bytes.
const MAX_FIELD_LEN: usize = 1024;

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
        /// Longest allowed length in bytes.
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
    pub async fn new(stream: Box<TlsStream<Stream>>) -> Result<Self, HttpsError> {
        let is_closed = Rc::new(Cell::new(false));
        let is_two = alpn(&stream) == Some(b"h2");
        let stream: BoxStream<'static> = stream;
        let io = TokioIo::new(stream);
        let sender = if is_two {
            let (sender, connection) = Box::pin(http2::Builder::new(Local).handshake(io)).await?;
            drive(connection, is_closed.clone());
            Sender::Two(sender)
        } else {
            let (sender, connection) = Box::pin(http1::handshake(io)).await?;
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
    read_body(response.into_body(), max).await?.ok_or(HttpsError::TooLong { max })
}

/// One request over a connection of its own, which ends with it; `read` takes the response.
///
/// # Errors
/// Those of the connection and of `read`.
pub(crate) async fn once<T>(
    stream: BoxStream<'_>,
    request: Request<Full<Bytes>>,
    read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, FetchError>,
) -> Result<T, FetchError> {
    let mut http = http1::Builder::new();
    http.max_buf_size(MAX_HEAD_LEN).title_case_headers(true);
    let (mut sender, connection) = http.handshake(TokioIo::new(stream)).await?;
    let answer = async move { read(sender.send_request(request).await?).await };
    let (mut answer, mut connection) = (pin!(answer), pin!(connection));
    let mut is_over = false;
    poll_fn(|cx| {
        // Its error reaches the answer too.
        is_over = is_over || connection.as_mut().poll(cx).is_ready();
        answer.as_mut().poll(cx)
    })
    .await
}

/// A field of a response that is text and not too long.
pub(crate) fn field(response: &Response<Incoming>, name: impl header::AsHeaderName) -> Option<String> {
    let value = response.headers().get(name)?.to_str().ok()?;
    (value.len() <= MAX_FIELD_LEN).then(|| value.to_owned())
}

/// A body of at most `max` bytes; `None` if it is longer.
pub(crate) async fn read_body(mut body: Incoming, max: usize) -> Result<Option<Vec<u8>>, hyper::Error> {
    let too_long = |len: u64| u64::try_from(max).is_ok_and(|max| len > max);
    if too_long(body.size_hint().lower()) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if bytes.len().saturating_add(data.len()) > max {
            return Ok(None);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Some(bytes))
}

/// Runs what HTTP/2 does beside a request on the current event loop.
#[derive(Clone)]
struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, task: F) {
        rt::spawn_local(task);
    }
}
