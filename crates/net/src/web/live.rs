//! HTTP/1.1 for a control interface: requests with bodies, and answers that are whole, or streams of texts.
//!
//! A stream goes as a WebSocket if the client asks for one, and in chunks otherwise. Everything is bounded: connections,
//! heads, bodies, times. A client that does not read holds one text of a stream and what the socket's buffers take; after
//! [`STALL`] it is let go.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE,
};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::{Notify, mpsc};

use super::{BOUNDS, Visit};
use crate::accept::bounded::{Beyond, BoundedAcceptor};
use crate::accept::{Accepted, Acceptor};
use crate::handover::Kept;
use crate::http_server::{self, Answer, Content};
use crate::listen::{ListenError, listen_unix};
use crate::rt;
use crate::seats::{ConnectionLimit, ConnectionSeat, share};
use crate::websocket::{Limits, WebSocket, accept_key};
use crate::wire::BoxStream;

/// Connections at a time. One that waits for its client makes room for a new one; while there is none, new ones are closed
/// at once. Dashboards hold four streams each, and ask meanwhile.
const MOST_CONNECTIONS: usize = 256;
/// Longest body of a request in bytes: the text of a configuration.
const MAX_BODY: usize = 16 << 20;
/// Bytes of all requests together that are not whole yet, beyond a few of each connection.
const MAX_UNREAD: usize = MAX_BODY + (2 << 20);
/// Time for a body.
const BODY_TIME: Duration = Duration::from_secs(30);
/// A connection without a stream ends after this time.
const LIFE: Duration = Duration::from_secs(600);
/// A client that takes nothing of a stream for so long is let go.
pub const STALL: Duration = Duration::from_secs(30);
/// Bounds of WebSockets: clients have nothing to say.
const SMALL: Limits = Limits { message: 4096, write: 4096, buffer: 1024, head: 4096 };

/// A request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveRequest {
    /// The method, in capitals.
    pub method: String,
    /// The path as it was sent, with its escapes.
    pub path: String,
    /// The query behind the question mark; empty for none.
    pub query: String,
    /// Fields, with names in lower case.
    pub fields: Vec<(String, Vec<u8>)>,
    /// The body; `None` for one that is too long or did not come.
    pub body: Option<Vec<u8>>,
    /// Whether it opens a WebSocket.
    pub is_websocket: bool,
    /// Whether it came over a unix socket.
    pub is_unix: bool,
    /// Its sender. Over a unix socket, which pages cannot reach, it is not looked at.
    pub visit: Visit,
}

impl LiveRequest {
    /// The text of the first field of this name, which is in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(known, _)| known == name)?;
        std::str::from_utf8(value).ok()
    }
}

/// A whole answer, or the head of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveResponse {
    /// The status, 200 to 599.
    pub status: u16,
    /// Fields.
    pub fields: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// An answer.
pub enum Given {
    /// A whole one.
    Whole(LiveResponse),
    /// A stream of texts behind this head, whose body is not looked at.
    Stream(LiveResponse, Source),
}

/// Makes the texts of a stream, until it returns. It is dropped once nobody takes them.
pub type Source = Box<dyn FnOnce(Feed) -> Pin<Box<dyn Future<Output = ()>>>>;

/// Says by the head of a request whether its body is read.
pub type ReadsBody = Rc<dyn Fn(&LiveRequest) -> bool>;

/// Takes the texts of a stream.
#[derive(Debug)]
pub struct Feed(mpsc::Sender<Bytes>);

/// A text of a stream, which several may share.
pub type Text = Bytes;

impl Feed {
    /// Sends a text, once the client has taken the one before. False if it takes no more.
    pub async fn send(&self, text: Bytes) -> bool {
        rt::timeout(STALL, self.0.send(text)).await.is_ok_and(|sent| sent.is_ok())
    }
}

/// A listener of the interface.
#[derive(Debug)]
pub struct Listener(Acceptor);

impl Listener {
    /// Listens at `address`, beside sockets that are about to close, and gives copies for the next process. Call it on an event loop.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn tcp(address: SocketAddr, beside: &Arc<[u64]>) -> Result<(Self, Vec<Kept>), ListenError> {
        let (acceptor, kept) = http_server::listen("control", address, beside)?;
        Ok((Self(acceptor), kept))
    }

    /// Listens at `path` with mode 0600, as [`listen_unix`], and gives a copy for the next process.
    ///
    /// # Errors
    /// As bind(2).
    pub fn unix(path: &Path) -> io::Result<(Self, Kept)> {
        let mut made = listen_unix(path, 1)?;
        crate::unix::keep_private(path)?;
        let listener = made.pop().ok_or(io::ErrorKind::NotFound)?;
        let kept = listener.keep()?;
        Ok((Self(Acceptor::from_local(listener)?), kept))
    }

    /// The address of a TCP listener.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()
    }

    /// Serves for ever: `answer` makes the answers. The body of a request is read if it is `known`, by its head; others have
    /// none.
    pub async fn serve<F: Future<Output = Given> + 'static>(
        self,
        answer: Rc<impl Fn(LiveRequest) -> F + 'static>,
        known: ReadsBody,
    ) {
        let answer: Handler = Rc::new(move |call| Box::pin(answer(call)));
        let seats = ConnectionLimit::new(share(MOST_CONNECTIONS), MAX_UNREAD);
        let mut acceptor = BoundedAcceptor::new(self.0, seats, Beyond::Closed);
        loop {
            match acceptor.accept().await {
                Ok((stream, _, seat)) => begin(stream, seat, &known, &answer),
                Err(error) => return tracing::error!(%error, "listener of the control interface lost"),
            }
        }
    }
}

/// Makes the answer to a request.
type Handler = Rc<dyn Fn(LiveRequest) -> Pin<Box<dyn Future<Output = Given>>>>;

fn begin(stream: Accepted, seat: Rc<ConnectionSeat>, known: &ReadsBody, answer: &Handler) {
    let is_unix = matches!(stream, Accepted::Unix(_));
    let stream = Box::new(seat.meter(stream.into_wire()));
    let (client, answer) = (Rc::new(Client::new(seat.clone(), is_unix, known.clone())), answer.clone());
    rt::spawn_local(async move {
        let responding = client.clone();
        let respond =
            move |request| -> Answer { Box::pin(respond(responding.clone(), answer.clone(), request)) };
        let connection = http_server::serve(stream, BOUNDS, Box::new(respond));
        let run = async {
            let mut connection = pin!(connection);
            loop {
                match rt::timeout(LIFE, &mut connection).await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => return tracing::debug!(%error, "control connection ended"),
                    Err(rt::Elapsed) if client.streams.get() > 0 => {}
                    Err(rt::Elapsed) => return,
                }
            }
        };
        rt::race(rt::race(run, client.stalled.notified()), seat.asked_to_leave()).await;
    });
}

/// A connection, for as long as one of its tasks runs.
struct Client {
    seat: Rc<ConnectionSeat>,
    known: ReadsBody,
    is_unix: bool,
    /// Streams in chunks that are under way.
    streams: Cell<usize>,
    /// It does not read.
    stalled: Notify,
}

async fn respond(client: Rc<Client>, answer: Handler, mut request: Request<Incoming>) -> Response<Content> {
    let visit = if client.is_unix { Ok(Visit::default()) } else { http_server::visit(&request) };
    let visit = match visit {
        Ok(visit) => visit,
        Err(error) => return http_server::refusal(error),
    };
    let key = websocket_key(&request);
    let upgrade = key.is_some().then(|| hyper::upgrade::on(&mut request));
    let is_head = request.method() == hyper::Method::HEAD;
    let call = read(request, visit, key.is_some(), &client).await;
    let busy = client.seat.begin();
    let (whole, source) = match answer(call).await {
        Given::Whole(whole) => (whole, None),
        Given::Stream(whole, source) => (whole, Some(source)),
    };
    let Some(source) = source else {
        let length = whole.body.len();
        let has_body = !is_head && !whole.body.is_empty();
        let mut response = head(&whole, Content::Whole(has_body.then(|| whole.body.clone().into())));
        if is_head {
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        return response;
    };
    let (sender, texts) = mpsc::channel(1);
    let (Some(key), Some(upgrade)) = (key, upgrade) else {
        client.streams.set(client.streams.get() + 1);
        rt::spawn_local(async move {
            let _busy = busy;
            feed(source, sender.clone()).await;
            client.streams.set(client.streams.get() - 1);
            // A text that is still there was not taken in time.
            if sender.capacity() == 0 && !sender.is_closed() {
                client.stalled.notify_one();
            }
        });
        return head(&whole, Content::Feed(texts));
    };
    rt::spawn_local(async move {
        let feed = async {
            feed(source, sender).await;
            // The texts that are left go out first.
            std::future::pending().await
        };
        rt::race(socket(upgrade, texts), feed).await;
        drop((busy, client));
    });
    let mut response = head(&whole, Content::Whole(None));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let mut set = |name, value| drop(response.headers_mut().insert(name, value));
    set(UPGRADE, HeaderValue::from_static("websocket"));
    set(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(accept) = HeaderValue::from_str(&accept_key(key.as_bytes())) {
        set(SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

/// Runs a source until it ends, or nobody takes its texts.
async fn feed(source: Source, sender: mpsc::Sender<Bytes>) {
    let gone = sender.clone();
    rt::race(gone.closed(), source(Feed(sender))).await;
}

/// Sends the texts of a stream until one of both ends has enough.
async fn socket(upgrade: OnUpgrade, mut texts: mpsc::Receiver<Bytes>) {
    let Ok(upgraded): Result<Upgraded, _> = upgrade.await else { return };
    let stream: BoxStream<'_> = Box::new(TokioIo::new(upgraded));
    let mut socket = WebSocket::server(stream, Vec::new(), SMALL);
    loop {
        let text = tokio::select! {
            text = texts.recv() => text,
            said = socket.receive() => match said {
                // Nothing that a client says matters here.
                Ok(Some(_)) => continue,
                Ok(None) | Err(_) => return,
            },
        };
        let Some(text) = text else { break };
        if !matches!(rt::timeout(STALL, socket.send_text(text)).await, Ok(Ok(()))) {
            return;
        }
    }
    rt::timeout(STALL, socket.close()).await.ok();
}

/// The key of a request that opens a WebSocket.
fn websocket_key(request: &Request<Incoming>) -> Option<HeaderValue> {
    let fields = request.headers();
    let lists = |name: HeaderName, token: &str| {
        let all = fields.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        all.flat_map(|value| value.split(',')).any(|found| found.trim().eq_ignore_ascii_case(token))
    };
    let is_open = request.method() == hyper::Method::GET
        && lists(UPGRADE, "websocket")
        && lists(CONNECTION, "upgrade")
        && lists(HeaderName::from_static("sec-websocket-version"), "13");
    is_open.then(|| fields.get(SEC_WEBSOCKET_KEY).cloned()).flatten()
}

async fn read(request: Request<Incoming>, visit: Visit, is_websocket: bool, client: &Client) -> LiveRequest {
    let (head, body) = request.into_parts();
    let fields =
        head.headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()));
    let mut call = LiveRequest {
        method: head.method.as_str().to_owned(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        fields: fields.collect(),
        body: None,
        is_websocket,
        is_unix: client.is_unix,
        visit,
    };
    if (client.known)(&call) {
        let whole = rt::timeout(BODY_TIME, Limited::new(body, MAX_BODY).collect()).await;
        call.body = whole.ok().and_then(Result::ok).map(|body| body.to_bytes().into());
    }
    call
}

fn head(whole: &LiveResponse, content: Content) -> Response<Content> {
    let mut response = Response::new(content);
    *response.status_mut() = StatusCode::from_u16(whole.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in &whole.fields {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

impl Client {
    fn new(seat: Rc<ConnectionSeat>, is_unix: bool, known: ReadsBody) -> Self {
        Self { seat, known, is_unix, streams: Cell::new(0), stalled: Notify::new() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::rt::Cores;
    use crate::websocket;

    fn whole(status: u16, text: String) -> Given {
        Given::Whole(LiveResponse { status, fields: vec![("x-one", "1".into())], body: text.into_bytes() })
    }

    /// Echoes requests; `/count` counts for ever, `/three` to three.
    fn start() -> SocketAddr {
        let (listener, _) = Listener::tcp(([127, 0, 0, 1], 0).into(), &Arc::default()).unwrap();
        let at = listener.local_addr().unwrap();
        let answer = |call: LiveRequest| async move {
            let most = match call.path.as_str() {
                "/count" => usize::MAX,
                "/three" => 3,
                _ => {
                    let body = call.body.map(|body| body.len());
                    return whole(200, format!("{} {} {} {body:?}", call.method, call.path, call.query));
                }
            };
            let source: Source = Box::new(move |feed| {
                Box::pin(async move {
                    for n in 0..most {
                        if !feed.send(format!("{n}\n").into()).await {
                            return;
                        }
                    }
                })
            });
            Given::Stream(LiveResponse { status: 200, ..LiveResponse::default() }, source)
        };
        let known: ReadsBody = Rc::new(|call: &LiveRequest| call.field("x-unknown").is_none());
        rt::spawn_local(listener.serve(Rc::new(answer), known));
        at
    }

    async fn ask(at: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok();
        answer
    }

    #[test]
    fn requests_with_bodies_and_streams_in_chunks() {
        Cores::block_on(async {
            let at = start();
            let put =
                b"PUT /a%2Fb?c=d HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
            let text = ask(at, put).await;
            assert!(text.contains("x-one: 1") && text.ends_with("PUT /a%2Fb c=d Some(3)"), "{text}");
            let long =
                b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n";
            let text = ask(at, long).await;
            assert!(text.ends_with("PUT /  None"), "{text}");
            let text = ask(at, b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
            assert!(text.contains("content-length: 15\r\n") && text.ends_with("\r\n\r\n"), "{text}");
            let text = ask(at, b"GET /three HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
            assert!(text.ends_with("2\r\n0\n\r\n2\r\n1\n\r\n2\r\n2\n\r\n0\r\n\r\n"), "{text}");
        })
        .unwrap();
    }

    #[test]
    fn streams_over_websockets() {
        Cores::block_on(async {
            let at = start();
            let stream = TcpStream::connect(at).await.unwrap();
            let mut socket = websocket::connect(stream, "x", "/three", &[], SMALL).await.unwrap();
            for n in 0..3 {
                assert_eq!(socket.receive().await.unwrap(), Some(websocket::Message::Text(format!("{n}\n"))));
            }
            assert_eq!(socket.receive().await.unwrap(), None);
        })
        .unwrap();
    }

    /// Connections that never ask, clients that are not known and send long bodies, and WebSockets that open halfway.
    #[test]
    fn unauthenticated_clients_take_nothing_from_those_who_are_served() {
        Cores::block_on(async {
            let at = start();
            let request = b"GET /here HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let stream = TcpStream::connect(at).await.unwrap();
            let mut dashboard = websocket::connect(stream, "x", "/count", &[], SMALL).await.unwrap();
            let mut held = Vec::new();
            for n in 0..3 * share(MOST_CONNECTIONS) {
                let mut stream = TcpStream::connect(at).await.unwrap();
                match n % 3 {
                    0 => {}
                    1 => stream.write_all(b"GET /count HTTP/1.1\r\nUpgrade: websocket\r\n").await.unwrap(),
                    _ => {
                        let head =
                            b"PUT / HTTP/1.1\r\nHost: x\r\nX-Unknown: 1\r\nContent-Length: 9999999\r\n\r\n";
                        stream.write_all(head).await.unwrap();
                    }
                }
                held.push(stream);
                if n % 100 == 0 {
                    assert!(ask(at, request).await.contains("GET /here"));
                }
            }
            // The body of a client that is not known is not waited for.
            let mut text = vec![0; 4096];
            let last = held.last_mut().unwrap();
            let len = rt::timeout(Duration::from_secs(60), last.read(&mut text)).await.unwrap().unwrap();
            assert!(text[..len].starts_with(b"HTTP/1.1 200"));
            // A stream that is under way goes on.
            for n in 0..3 {
                assert_eq!(
                    dashboard.receive().await.unwrap(),
                    Some(websocket::Message::Text(format!("{n}\n")))
                );
            }
        })
        .unwrap();
    }

    /// A client that does not read costs what its buffers hold, and others are served.
    #[test]
    fn a_slow_reader_holds_nobody_up() {
        Cores::block_on(async {
            let at = start();
            let stream = TcpStream::connect(at).await.unwrap();
            let slow = websocket::connect(stream, "x", "/count", &[], SMALL).await.unwrap();
            let mut chunks = TcpStream::connect(at).await.unwrap();
            chunks.write_all(b"GET /count HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            // Their buffers fill meanwhile.
            rt::sleep(Duration::from_millis(300)).await;
            let text = rt::timeout(
                Duration::from_secs(60),
                ask(at, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
            );
            assert!(text.await.unwrap().starts_with("HTTP/1.1 200"));
            drop((slow, chunks));
        })
        .unwrap();
    }
}
