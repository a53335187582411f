//! A small HTTP/1.1 server for people and programs that watch a process: few connections, short requests without a body,
//! answers that are whole.
//!
//! Everything is bounded: the connections, the head of a request and the time for it, and the time for an answer. It runs
//! on the event loop that calls it.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use adit_proto::http::{Authority, Caller, HttpVersion, Visit};
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderName,
    HeaderValue, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};

use crate::accept::Acceptor;
use crate::accept::bounded::{Beyond, BoundedAcceptor};
use crate::handover::Kept;
use crate::http_server::{self, Answer, Bounds, Content};
use crate::listen::ListenError;
use crate::rt;
use crate::seats::{ConnectionLimit, share};

pub mod live;

/// Connections at a time. One that waits for its client makes room for a new one; while there is none, new ones are closed
/// at once.
const MOST_CONNECTIONS: usize = 64;
/// Longest head of a request, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// Most fields of a request.
const MAX_FIELDS: usize = 64;
/// Time for the head of a request, the wait for it on a kept connection included.
const HEAD_TIME: Duration = Duration::from_secs(30);
const BOUNDS: Bounds = Bounds { head: MAX_HEAD, fields: MAX_FIELDS, time: HEAD_TIME, capitals: false };
/// Time for a whole connection.
const LIFE: Duration = Duration::from_secs(600);

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebRequest {
    /// Whether it is GET or HEAD.
    pub is_get: bool,
    /// The path, without the query.
    pub path: String,
    /// Its sender.
    pub visit: Visit,
    /// The token of `Authorization: Bearer`.
    pub bearer: Option<Vec<u8>>,
    /// Types of answers that the client takes, as it wrote them.
    pub accept: Option<String>,
    /// Codings of answers that the client takes, as it wrote them.
    pub accept_encoding: Option<String>,
}

impl WebRequest {
    /// Whether the client names this type among those that it takes.
    pub fn accepts(&self, kind: &str) -> bool {
        let mut kinds = self.accept.iter().flat_map(|kinds| kinds.split(','));
        kinds.any(|of| of.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(kind))
    }

    /// Whether the client takes gzip: it names it, and not with `q=0` (RFC 9110, 12.5.3).
    pub fn accepts_gzip(&self) -> bool {
        let mut codings = self.accept_encoding.iter().flat_map(|codings| codings.split(','));
        codings.any(|of| {
            let mut parts = of.split(';').map(str::trim);
            let is_gzip = parts.next().is_some_and(|coding| coding.eq_ignore_ascii_case("gzip"));
            let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            is_gzip && weight.is_none_or(|weight| weight.parse::<f32>().is_ok_and(|weight| weight > 0.0))
        })
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebAnswer {
    /// The status, 200 to 599.
    pub status: u16,
    /// The type of the body.
    pub content_type: &'static str,
    /// Whether the body is compressed by gzip.
    pub is_gzip: bool,
    /// The body.
    pub body: Vec<u8>,
}

impl WebAnswer {
    /// A line of text.
    pub fn line(status: u16, text: impl Into<String>) -> Self {
        let body = text.into() + "\n";
        Self { status, content_type: "text/plain; charset=utf-8", is_gzip: false, body: body.into_bytes() }
    }
}

/// A listening server.
#[derive(Debug)]
pub struct Web(Acceptor);

impl Web {
    /// Listens at `address`, and gives copies for the next process. Call it on an event loop.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(address: SocketAddr) -> Result<(Self, Vec<Kept>), ListenError> {
        Self::listen_beside(address, &Arc::default())
    }

    /// Listens at `address`, beside sockets of this process that are about to close
    /// ([`SharedPorts`](crate::listen::SharedPorts)), and gives copies for the next process. Call it on an event loop.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen_beside(address: SocketAddr, beside: &Arc<[u64]>) -> Result<(Self, Vec<Kept>), ListenError> {
        let (acceptor, kept) = http_server::listen("web", address, beside)?;
        Ok((Self(acceptor), kept))
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves for ever: `answer` makes the answers.
    pub async fn serve<F: Future<Output = WebAnswer> + 'static>(
        self,
        answer: impl Fn(WebRequest) -> F + 'static,
    ) {
        let answer = Rc::new(answer);
        let seats = ConnectionLimit::new(share(MOST_CONNECTIONS), usize::MAX);
        let mut acceptor = BoundedAcceptor::new(self.0, seats, Beyond::Closed);
        loop {
            let (stream, _, seat) = match acceptor.accept().await {
                Ok(accepted) => accepted,
                Err(error) => return tracing::error!(%error, "HTTP listener lost"),
            };
            let answer = answer.clone();
            rt::spawn_local(async move {
                let own = seat.clone();
                let respond = move |request: Request<Incoming>| -> Answer {
                    let visit = match http_server::visit(&request) {
                        Ok(visit) => visit,
                        Err(error) => return Box::pin(std::future::ready(http_server::refusal(error))),
                    };
                    let (busy, answering) = (own.begin(), answer(read(&request, visit)));
                    Box::pin(async move {
                        let _busy = busy;
                        response(answering.await)
                    })
                };
                let connection = http_server::serve(stream.into_wire(), BOUNDS, Box::new(respond));
                let run = async {
                    if let Ok(Err(error)) = rt::timeout(LIFE, connection).await {
                        tracing::debug!(%error, "HTTP connection ended");
                    }
                };
                rt::race(run, seat.asked_to_leave()).await;
            });
        }
    }
}

fn response(answer: WebAnswer) -> Response<Content> {
    let WebAnswer { status, content_type, is_gzip, body } = answer;
    let mut response = Response::new(Content::whole(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut set = |name: HeaderName, value| {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    };
    set(CONTENT_TYPE, content_type);
    set(CACHE_CONTROL, "no-store");
    set(HeaderName::from_static("x-content-type-options"), "nosniff");
    if is_gzip {
        set(CONTENT_ENCODING, "gzip");
    }
    if status == 401 {
        set(WWW_AUTHENTICATE, "Bearer");
    }
    response
}

fn read(request: &Request<Incoming>, visit: Visit) -> WebRequest {
    let field = |name: HeaderName| request.headers().get(name).map(HeaderValue::as_bytes);
    WebRequest {
        is_get: matches!(*request.method(), Method::GET | Method::HEAD),
        path: request.uri().path().to_owned(),
        visit,
        bearer: field(AUTHORIZATION).and_then(bearer).map(<[u8]>::to_vec),
        accept: field(ACCEPT).and_then(|kinds| std::str::from_utf8(kinds).ok()).map(str::to_owned),
        accept_encoding: field(ACCEPT_ENCODING)
            .and_then(|codings| std::str::from_utf8(codings).ok())
            .map(str::to_owned),
    }
}

/// The token of `Bearer TOKEN` (RFC 6750, 2.1; the word in any case, RFC 9110, 11.1).
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (word, token) = field.split_at_checked(7)?;
    word.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::rt::Cores;
    use crate::testing::until;

    async fn ask(at: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // A server that has had enough may reset the connection behind its answer.
        stream.read_to_string(&mut answer).await.ok();
        answer
    }

    fn start() -> SocketAddr {
        let (web, _) = Web::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let at = web.local_addr().unwrap();
        rt::spawn_local(web.serve(|request| async move { WebAnswer::line(200, format!("{request:?}")) }));
        at
    }

    #[test]
    fn requests_are_read_and_answered() {
        Cores::block_on(async {
            let at = start();
            let text = ask(at, "GET /a?b=c HTTP/1.1\r\nHost: [::1]:9090\r\nauthorization: bearer abc \r\nAccept: a/b;q=1, C/d\r\nConnection: close\r\n\r\n").await;
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
            assert!(text.contains("cache-control: no-store"), "{text}");
            let want = WebRequest {
                is_get: true,
                path: "/a".into(),
                visit: Visit { host: Authority::parse(b"[::1]:9090"), ..Visit::default() },
                bearer: Some(b"abc".into()),
                accept: Some("a/b;q=1, C/d".into()),
                accept_encoding: None,
            };
            assert!(want.accepts("a/b") && want.accepts("c/d") && !want.accepts("b"));
            assert!(text.ends_with(&format!("{want:?}\n")), "{text}");
            let text = ask(at, "POST / HTTP/1.1\r\nHost: localhost:1\r\nConnection: close\r\n\r\n").await;
            assert!(text.contains("is_get: false") && text.contains("\"localhost\""), "{text}");
            for fields in ["", "Host: [::1].evil.com\r\n", "Host: a\r\nHost: a\r\n", "Host: a\r\nOrigin: http://a:80@b\r\n"] {
                let text = ask(at, &format!("GET / HTTP/1.1\r\n{fields}\r\n")).await;
                assert!(text.starts_with("HTTP/1.1 400"), "{fields}: {text}");
            }
            assert!(ask(at, "GET / HTTP/1.0\r\n\r\n").await.starts_with("HTTP/1.0 200"));
        })
        .unwrap();
    }

    #[test]
    fn what_is_too_long_or_too_many_is_refused() {
        Cores::block_on(async {
            let at = start();
            let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(MAX_HEAD));
            assert!(ask(at, &long).await.starts_with("HTTP/1.1 431"));
            let fields: String = (0..=MAX_FIELDS).map(|n| format!("x{n}: y\r\n")).collect();
            let many = format!("GET / HTTP/1.1\r\n{fields}\r\n");
            assert!(ask(at, &many).await.starts_with("HTTP/1.1 431"));
            assert!(ask(at, "\u{0}\u{1}nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400"));
            // Connections that nobody uses make room: here are more than there are places.
            let mut held = Vec::new();
            for _ in 0..2 * MOST_CONNECTIONS {
                held.push(TcpStream::connect(at).await.unwrap());
            }
            let text = ask(at, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
            assert!(text.starts_with("HTTP/1.1 200"), "{text}");
            // The first of them has been closed, the last is open.
            let mut byte = [0];
            assert_eq!(held[0].read(&mut byte).await.unwrap_or(0), 0);
            let last = held.last_mut().unwrap();
            assert!(rt::timeout(Duration::from_millis(100), last.read(&mut byte)).await.is_err());
        })
        .unwrap();
    }

    /// Requests that are being answered keep their places.
    #[test]
    fn a_port_that_is_busy_turns_connections_away() {
        Cores::block_on(async {
            let (web, _) = Web::listen(([127, 0, 0, 1], 0).into()).unwrap();
            let at = web.local_addr().unwrap();
            let (gate, begun) = (Rc::new(tokio::sync::Semaphore::new(0)), Rc::new(Cell::new(0)));
            let (own, count) = (gate.clone(), begun.clone());
            rt::spawn_local(web.serve(move |_| {
                let gate = own.clone();
                count.set(count.get() + 1);
                async move {
                    drop(gate.acquire().await);
                    WebAnswer::line(200, "done")
                }
            }));
            let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let mut held = Vec::new();
            for _ in 0..share(MOST_CONNECTIONS) {
                let mut stream = TcpStream::connect(at).await.unwrap();
                stream.write_all(request.as_bytes()).await.unwrap();
                held.push(stream);
            }
            until("all are being answered", async || begun.get() == held.len()).await;
            assert_eq!(ask(at, request).await, "");
            gate.add_permits(1000);
            for stream in &mut held {
                let mut text = String::new();
                stream.read_to_string(&mut text).await.unwrap();
                assert!(text.starts_with("HTTP/1.1 200"), "{text}");
            }
            until("places are given back", async || !ask(at, request).await.is_empty()).await;
        })
        .unwrap();
    }

    #[test]
    fn gzip_is_taken_where_it_is_named() {
        for (field, is_taken) in [
            (None, false),
            (Some(""), false),
            (Some("gzip"), true),
            (Some("deflate, GZIP ; q=0.5"), true),
            (Some("gzip;q=0"), false),
            (Some("gzip;q=0.000, br"), false),
            (Some("gzip;q=x"), false),
            (Some("*"), false),
            (Some("xgzip"), false),
        ] {
            let request = WebRequest {
                is_get: true,
                path: "/".into(),
                visit: Visit::default(),
                bearer: None,
                accept: None,
                accept_encoding: field.map(str::to_owned),
            };
            assert_eq!(request.accepts_gzip(), is_taken, "{field:?}");
        }
    }

    #[test]
    fn tokens() {
        for (field, token) in
            [("Bearer a b", Some("a b")), ("BEARER  x", Some("x")), ("Basic abc", None), ("Bear", None)]
        {
            assert_eq!(bearer(field.as_bytes()), token.map(str::as_bytes));
        }
    }
}
