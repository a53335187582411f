//! An HTTP/1.1 server for APIs: bodies, long polls, many clients, with or without TLS.
//!
//! Bounded are connections, the head of a request and the time for it, its body, the bytes of all requests that are not
//! whole, and the time for a TLS handshake. When all places are taken, a connection that waits for its client makes room for
//! a new one. A handler's future is dropped when its client goes away. Everything runs on the event loop that calls it.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};

use crate::accept::Acceptor;
use crate::accept::bounded::{Beyond, BoundedAcceptor};
use crate::handover::Kept;
use crate::http_server::{self, Answer, Bounds, Content};
use crate::listen::ListenError;
use crate::rt::{self, Stop};
use crate::seats::{ConnectionLimit, ConnectionSeat, share_alone};
use crate::tls_server::TlsIdentity;
use crate::wire::SendWire;

/// Longest head of a request, in bytes. A path may hold a whole message in base64.
const MAX_HEAD: usize = 192 << 10;
/// Most fields of a request.
const MAX_FIELDS: usize = 100;
/// Time for the head of a request; as long as a client may keep a connection without one.
const HEAD_TIME: Duration = Duration::from_secs(90);
const BOUNDS: Bounds = Bounds { head: MAX_HEAD, fields: MAX_FIELDS, time: HEAD_TIME, capitals: true };
/// Time for the body of a request.
const BODY_TIME: Duration = Duration::from_secs(30);
/// Bytes beyond the longest body that are read and dropped: a client that still sends when the connection ends might not read the
/// reply.
const DROPPED: usize = 8 << 20;
/// Time for a TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// A request.
#[derive(Debug)]
pub struct ServiceRequest {
    /// Its method, in capital letters.
    pub method: String,
    /// The path as it came, without the query.
    pub path: String,
    /// The query, without its question mark; empty when there is none.
    pub query: String,
    /// The body; `None` when it was longer than [`Service::max_body`], or did not come.
    pub body: Option<Bytes>,
    /// The address at the other end of the connection.
    pub peer: SocketAddr,
    fields: HeaderMap,
}

impl ServiceRequest {
    /// A request for tests, with these fields.
    #[doc(hidden)]
    pub fn for_tests(peer: SocketAddr, named: &[(&'static str, &'static str)]) -> Self {
        let mut fields = HeaderMap::new();
        for (name, value) in named {
            fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let (method, path, query) = ("GET".to_owned(), "/".to_owned(), String::new());
        Self { method, path, query, body: Some(Bytes::new()), peer, fields }
    }

    /// The fields of this name, in small letters, that are text.
    pub fn fields(&self, name: &str) -> impl Iterator<Item = &str> {
        self.fields.get_all(name).into_iter().filter_map(|value| value.to_str().ok())
    }
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceResponse {
    /// The status, 200 to 599.
    pub status: u16,
    /// The type of the body; without one there is no such field.
    pub content_type: Option<&'static str>,
    /// Other fields.
    pub fields: Vec<(&'static str, &'static str)>,
    /// The body.
    pub body: Bytes,
    /// Whether the connection ends behind it.
    pub closes: bool,
}

impl ServiceResponse {
    /// A reply without a body.
    pub fn status(status: u16) -> Self {
        Self { status, content_type: None, fields: Vec::new(), body: Bytes::new(), closes: false }
    }

    /// A text with status 200.
    pub fn text(body: impl Into<Bytes>) -> Self {
        let content_type = Some("text/plain; charset=utf-8");
        Self { content_type, body: body.into(), ..Self::status(200) }
    }
}

/// A listening server.
#[derive(Debug)]
pub struct Service {
    acceptor: Acceptor,
    /// TLS, if it is spoken.
    pub tls: Option<TlsIdentity>,
    /// Longest body of a request, in bytes.
    pub max_body: usize,
    /// Connections at a time, or fewer by the limit of descriptors. A connection that waits for its client makes room for a
    /// new one; while there is none, new ones wait to be accepted.
    pub max_connections: usize,
    /// Bytes of all requests together that are not whole yet, beyond a few of each connection.
    pub max_unread: usize,
}

impl Service {
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
        let (acceptor, kept) = http_server::listen("service", address, beside)?;
        let (max_connections, max_unread) = (16_384, 64 << 20);
        Ok((Self { acceptor, tls: None, max_body: 100_000, max_connections, max_unread }, kept))
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.acceptor.local_addr()
    }

    /// Serves until `stop` asks to drain; then takes no more connections, and returns once the open ones are done or
    /// `stop` asks to end.
    pub async fn serve<F: Future<Output = ServiceResponse> + 'static>(
        self,
        stop: Stop,
        answer: impl Fn(ServiceRequest) -> F + 'static,
    ) {
        let Self { acceptor, tls, max_body, max_connections, max_unread } = self;
        let seats = ConnectionLimit::new(share_alone(max_connections), max_unread);
        let mut acceptor = BoundedAcceptor::new(acceptor, seats, Beyond::Waiting);
        let answer: Handler = Rc::new(move |asked| Box::pin(answer(asked)));
        let mut draining = stop.clone();
        loop {
            let accepted = async { Some(acceptor.accept().await) };
            let drained = async {
                draining.draining().await;
                None
            };
            let (stream, peer, seat) = match rt::race(accepted, drained).await {
                None => break,
                Some(Ok(accepted)) => accepted,
                Some(Err(error)) => {
                    tracing::error!(%error, "HTTP listener lost");
                    break;
                }
            };
            let (answer, stop) = (answer.clone(), stop.clone());
            let one = Connection { answer, max_body, peer, stop, seat: seat.clone() };
            let (stream, tls) = (stream.into_wire(), tls.clone());
            rt::spawn_local(async move {
                let run = Box::pin(async move {
                    match tls {
                        None => one.run(stream).await,
                        Some(tls) => match rt::timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
                            Ok(Ok(stream)) => one.run(Box::new(stream)).await,
                            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                            Err(_) => tracing::debug!("TLS handshake timed out"),
                        },
                    }
                });
                rt::race(run, seat.asked_to_leave()).await;
            });
        }
        let mut ending = stop;
        rt::race(acceptor.finish(), ending.ending()).await;
    }
}

/// Makes the reply to a request.
type Handler = Rc<dyn Fn(ServiceRequest) -> Pin<Box<dyn Future<Output = ServiceResponse>>>>;

#[derive(Clone)]
struct Connection {
    answer: Handler,
    max_body: usize,
    peer: SocketAddr,
    stop: Stop,
    seat: Rc<ConnectionSeat>,
}

impl Connection {
    async fn run(self, stream: SendWire) {
        let stream = Box::new(self.seat.meter(stream));
        let mut draining = self.stop.clone();
        let respond = move |request| -> Answer { Box::pin(self.clone().respond(request)) };
        let mut connection = pin!(http_server::serve(stream, BOUNDS, Box::new(respond)));
        let done = tokio::select! {
            done = &mut connection => done,
            () = draining.draining() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = done {
            tracing::debug!(%error, "HTTP connection ended");
        }
    }

    async fn respond(self, request: Request<Incoming>) -> Response<Content> {
        let Self { answer, max_body, peer, stop, seat } = self;
        if let Err(error) = http_server::visit(&request) {
            return http_server::refusal(error);
        }
        let (head, body) = request.into_parts();
        let body = rt::timeout(BODY_TIME, whole(body, max_body)).await.ok().flatten();
        let is_whole = body.is_some();
        let _busy = seat.begin();
        let asked = ServiceRequest {
            method: head.method.as_str().to_owned(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            body,
            peer,
            fields: head.headers,
        };
        let told = answer(asked).await;
        let mut response = Response::new(Content::whole(told.body));
        *response.status_mut() =
            StatusCode::from_u16(told.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let fields = response.headers_mut();
        for (name, value) in told.fields {
            fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        if let Some(kind) = told.content_type {
            fields.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        if told.closes || !is_whole || stop.is_draining() {
            fields.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The body, if it came and is not longer than `max`; a longer one is read to its end, within bounds.
async fn whole(mut body: Incoming, max: usize) -> Option<Bytes> {
    let (mut bytes, mut len) = (Vec::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        len = len.saturating_add(data.len());
        if len <= max {
            bytes.extend_from_slice(&data);
        } else if len > max.saturating_add(DROPPED) {
            return None;
        } else {
            bytes = Vec::new();
        }
    }
    (len <= max).then(|| bytes.into())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::rt::{Cores, Stopper};
    use crate::testing::until;

    async fn ask(at: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.ok();
        reply
    }

    /// Echoes a request; `/slow` takes a second, `/stuck` for ever. A request counts in `dropped` when it is dropped before,
    /// and holds `dropped` while it is under way.
    fn start(stop: Stop, dropped: Rc<Cell<usize>>) -> SocketAddr {
        let (service, _) = Service::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let service = Service { max_body: 8, ..service };
        let at = service.local_addr().unwrap();
        rt::spawn_local(service.serve(stop, move |asked| {
            let dropped = Guard(dropped.clone(), Cell::new(false));
            async move {
                match &*asked.path {
                    // The drain has begun by then.
                    "/slow" => rt::sleep(Duration::from_secs(1)).await,
                    "/stuck" => std::future::pending().await,
                    _ => {}
                }
                dropped.1.set(true);
                let named: Vec<&str> = asked.fields("x-a").collect();
                let text =
                    format!("{} {} {} {named:?} {:?}", asked.method, asked.path, asked.query, asked.body);
                ServiceResponse { fields: vec![("x-b", "1")], ..ServiceResponse::text(text) }
            }
        }));
        at
    }

    struct Guard(Rc<Cell<usize>>, Cell<bool>);

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.set(self.0.get() + usize::from(!self.1.get()));
        }
    }

    #[test]
    fn requests_are_read_and_replies_written() {
        Cores::block_on(async {
            let (_stopper, stop) = Stopper::new();
            let at = start(stop, Rc::default());
            let head = "POST /a/b?c=d HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nx-a: 2\r\nConnection: close\r\nContent-Length: ";
            let reply = ask(at, &format!("{head}2\r\n\r\nhi")).await;
            assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
            assert!(reply.contains("\r\nX-B: 1\r\n") && reply.contains("\r\nContent-Type: text/plain; charset=utf-8\r\n"));
            assert!(reply.ends_with("POST /a/b c=d [\"1\", \"2\"] Some(b\"hi\")"), "{reply}");
            let reply = ask(at, &format!("{head}9\r\n\r\n123456789")).await;
            assert!(reply.ends_with("None") && reply.contains("\r\nConnection: close\r\n"), "{reply}");
            // A client that sends all of it before it reads gets the reply too; one that sends without an end does not hold us.
            let long = "x".repeat(6 << 20);
            let reply = ask(at, &format!("{head}{}\r\n\r\n{long}", long.len())).await;
            assert!(reply.ends_with("None"), "{reply}");
            let mut endless = TcpStream::connect(at).await.unwrap();
            endless.write_all(format!("{head}{}\r\n\r\n", 1_u64 << 40).as_bytes()).await.unwrap();
            let sent = async {
                for _ in 0..16 {
                    endless.write_all(long.as_bytes()).await?;
                }
                io::Result::Ok(())
            };
            assert!(rt::timeout(Duration::from_secs(60), sent).await.unwrap().is_err());
        })
        .unwrap();
    }

    #[test]
    fn a_client_that_leaves_ends_its_handler_and_a_drain_waits_for_the_others() {
        Cores::block_on(async {
            let (stopper, stop) = Stopper::new();
            let dropped = Rc::new(Cell::new(0));
            let at = start(stop, dropped.clone());
            // This test and the service have the counter as well.
            let under_way = async || Rc::strong_count(&dropped) == 3;
            let mut gone = TcpStream::connect(at).await.unwrap();
            gone.write_all(b"GET /stuck HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            until("the first request is under way", &under_way).await;
            drop(gone);
            until("its handler has ended", async || dropped.get() == 1).await;
            let mut stays = TcpStream::connect(at).await.unwrap();
            stays.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            until("the second request is under way", &under_way).await;
            stopper.drain();
            let mut reply = String::new();
            stays.read_to_string(&mut reply).await.unwrap();
            assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
            until("the listener is closed", async || TcpStream::connect(at).await.is_err()).await;
        })
        .unwrap();
    }

    /// Connections that never ask, or send a part of a request, hold neither places nor memory against those that ask.
    #[test]
    fn connections_without_a_request_give_way() {
        Cores::block_on(async {
            let (_stopper, stop) = Stopper::new();
            let (listening, _) = Service::listen(([127, 0, 0, 1], 0).into()).unwrap();
            let at = listening.local_addr().unwrap();
            let service = Service { max_connections: 8, max_unread: 64 << 10, ..listening };
            rt::spawn_local(service.serve(stop, |_| async { ServiceResponse::text("here") }));
            let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let mut held = Vec::new();
            for n in 0..100 {
                held.push(TcpStream::connect(at).await.unwrap());
                if n % 10 == 0 {
                    assert!(ask(at, request).await.ends_with("here"));
                }
            }
            let mut byte = [0];
            let closed = rt::timeout(Duration::from_secs(60), held[0].read(&mut byte)).await.unwrap();
            assert_eq!(closed.unwrap_or(0), 0);
            drop(held);
            // Four with long heads: all together would be 360 KiB.
            let head = format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(90 << 10));
            let mut ended = 0;
            let mut held = Vec::new();
            for _ in 0..4 {
                let mut stream = TcpStream::connect(at).await.unwrap();
                stream.write_all(head.as_bytes()).await.ok();
                let end = rt::timeout(Duration::from_secs(60), stream.read(&mut byte)).await;
                ended += usize::from(end.is_ok());
                held.push(stream);
            }
            assert_eq!(ended, 4, "64 KiB are less than one of them");
            assert!(ask(at, request).await.ends_with("here"));
        })
        .unwrap();
    }
}
