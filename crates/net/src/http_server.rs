//! One connection of an HTTP/1.1 server. The servers of this crate differ in their bounds and in their answers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use adit_proto::http::{HttpVersion, Visit, VisitError};
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::mpsc;

use crate::accept::Acceptor;
use crate::handover::Kept;
use crate::listen::{ListenError, ListenOptions};
use crate::wire::SendWire;

/// A connection with its service: a future that ends with the connection. Its client may switch to another protocol.
pub(crate) type Serving = http1::UpgradeableConnection<TokioIo<SendWire>, Answering>;

/// An answer on its way.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Response<Content>>>>;

/// Bounds of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Longest head of a request, in bytes.
    pub(crate) head: usize,
    /// Most fields of a request.
    pub(crate) fields: usize,
    /// Time for the head of a request, the wait for it on a kept connection included.
    pub(crate) time: Duration,
    /// Whether the names of fields in answers begin with capitals.
    pub(crate) capitals: bool,
}

/// Listens for a server, beside sockets that are about to close ([`Beside`](crate::listen::Beside)), and gives copies for the
/// next process. `owner` tells the sockets from those of others.
///
/// # Errors
/// See [`ListenError`].
pub(crate) fn listen(
    owner: &str,
    address: SocketAddr,
    beside: &Arc<[u64]>,
) -> Result<(Acceptor, Vec<Kept>), ListenError> {
    let (owner, beside) = (owner.into(), beside.clone());
    Acceptor::listen(address, &ListenOptions { owner, beside, ..ListenOptions::default() })
}

/// Serves the requests that come over `stream`; `answer` makes the answers.
pub(crate) fn serve(
    stream: SendWire,
    bounds: Bounds,
    answer: Box<dyn Fn(Request<Incoming>) -> Answer>,
) -> Serving {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.time)
        .max_headers(bounds.fields)
        .max_buf_size(bounds.head)
        .title_case_headers(bounds.capitals)
        .serve_connection(TokioIo::new(stream), Answering(answer))
        .with_upgrades()
}

/// The sender of a request, by its fields.
///
/// # Errors
/// [`VisitError`], to be answered with [`refusal`].
pub(crate) fn visit<B>(request: &Request<B>) -> Result<Visit, VisitError> {
    let is_old = matches!(request.version(), hyper::Version::HTTP_09 | hyper::Version::HTTP_10);
    let version = if is_old { HttpVersion::Http10 } else { HttpVersion::Http11 };
    let asked = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let fields = request.headers();
    Visit::read(version, asked, |name| fields.get_all(name).into_iter().map(HeaderValue::as_bytes))
}

/// The answer to a request that names no host, or several; the connection ends behind it.
pub(crate) fn refusal(error: VisitError) -> Response<Content> {
    let mut response = Response::new(Content::whole(format!("{error}\n")));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    fields.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Makes answers.
pub(crate) struct Answering(Box<dyn Fn(Request<Incoming>) -> Answer>);

impl Service<Request<Incoming>> for Answering {
    type Response = Response<Content>;
    type Error = Infallible;
    type Future = Infallibly;

    fn call(&self, request: Request<Incoming>) -> Infallibly {
        Infallibly((self.0)(request))
    }
}

/// An answer that comes for certain.
pub(crate) struct Infallibly(Answer);

impl Future for Infallibly {
    type Output = Result<Response<Content>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

/// The body of an answer.
pub(crate) enum Content {
    /// All of it; `None` for an empty one.
    Whole(Option<Bytes>),
    /// Texts as they come.
    Feed(mpsc::Receiver<Bytes>),
}

impl Content {
    /// A body of these bytes.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::Whole((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Feed(feed) => feed.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Feed(_) => SizeHint::default(),
        }
    }
}
