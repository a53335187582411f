//! A port that serves WebSockets as streams of bytes, plain or inside TLS.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{
    AsyncRead as _, AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf, ReadHalf, WriteHalf,
};

use super::{Bytestream, Limits, accept};
use crate::accept::Acceptor;
use crate::accept::bounded::{Beyond, BoundedAcceptor};
use crate::rt::{self, Stop};
use crate::tls_server::TlsIdentity;
use crate::wire::AnyWire;

/// Time for the TLS handshake and the request.
const OPENING_TIME: Duration = Duration::from_secs(10);
/// Time for the farewell.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The receiving half of a WebSocket: the payload of its messages, in order.
pub struct WireReader(ReadHalf<Bytestream<AnyWire<'static>>>);

/// The sending half: each write is one message or several.
pub struct WireWriter(WriteHalf<Bytestream<AnyWire<'static>>>);

impl fmt::Debug for WireReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WireReader(..)")
    }
}

impl fmt::Debug for WireWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WireWriter(..)")
    }
}

impl WireReader {
    /// One read; 0 bytes mean the end.
    ///
    /// # Errors
    /// Those of [`super::WebSocket::receive`].
    pub async fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).await
    }

    /// As [`WireReader::recv`].
    ///
    /// # Errors
    /// As [`WireReader::recv`].
    pub fn poll_recv(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

impl WireWriter {
    /// Sends all bytes.
    ///
    /// # Errors
    /// Those of the stream.
    pub async fn send_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }

    /// Says farewell, for a second at most.
    pub async fn close(mut self) {
        let closed = poll_fn(|cx| Pin::new(&mut self.0).poll_shutdown(cx));
        if let Ok(Err(error)) = rt::timeout(CLOSE_TIME, closed).await {
            tracing::debug!(%error, "WebSocket not closed in order");
        }
    }
}

/// A WebSocket to a server on this machine.
///
/// # Panics
/// If there is none.
#[doc(hidden)]
pub async fn dial_for_tests(at: SocketAddr, target: &str) -> (WireReader, WireWriter) {
    let stream = tokio::net::TcpStream::connect(at).await.expect("a server");
    let stream: AnyWire<'static> = Box::new(stream);
    let socket = super::connect(stream, "localhost", target, &[], Limits::default());
    let (reader, writer) = tokio::io::split(Box::pin(socket).await.expect("a WebSocket").into_bytes());
    (WireReader(reader), WireWriter(writer))
}

/// An open WebSocket.
#[derive(Debug)]
pub struct Opened {
    /// Path and query that the client asked for.
    pub target: String,
    /// The other end of the connection.
    pub peer: SocketAddr,
    /// Its bytes.
    pub reader: WireReader,
    /// The bytes for it.
    pub writer: WireWriter,
}

/// A listening port.
#[derive(Debug)]
pub struct WebSocketPort {
    /// The listening socket, non-blocking.
    pub listener: StdListener,
    /// TLS, if it is spoken.
    pub tls: Option<TlsIdentity>,
    /// Bounds of each WebSocket.
    pub limits: Limits,
    /// Connections at a time; more wait to be accepted.
    pub max_connections: usize,
}

impl WebSocketPort {
    /// Serves until `stop` asks to drain; `take` handles each WebSocket.
    ///
    /// # Errors
    /// When the listener cannot be registered with the event loop, or is lost.
    pub async fn serve<F: Future<Output = ()> + 'static>(
        self,
        mut stop: Stop,
        take: impl Fn(Opened) -> F + 'static,
    ) -> io::Result<()> {
        let Self { listener, tls, limits, max_connections } = self;
        let acceptor = Acceptor::from_std(listener)?;
        let mut acceptor = BoundedAcceptor::new(acceptor, max_connections, Beyond::Waiting);
        let take = Rc::new(take);
        loop {
            let accepted = async { Some(acceptor.accept().await) };
            let drained = async {
                stop.draining().await;
                None
            };
            let Some(accepted) = rt::race(accepted, drained).await else { return Ok(()) };
            let (stream, peer, place) = accepted?;
            let (stream, take, tls) = (stream.into_wire(), take.clone(), tls.clone());
            rt::spawn_local(async move {
                let _place = place;
                let opening = async {
                    let wire: AnyWire<'static> = match tls {
                        None => stream,
                        Some(tls) => Box::new(tls.accept(stream).await?),
                    };
                    Box::pin(accept(wire, Vec::new(), limits)).await
                };
                match rt::timeout(OPENING_TIME, opening).await {
                    Ok(Ok((socket, opening))) => {
                        let (reader, writer) = tokio::io::split(socket.into_bytes());
                        let (reader, writer) = (WireReader(reader), WireWriter(writer));
                        take(Opened { target: opening.target, peer, reader, writer }).await;
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "no WebSocket opened"),
                    Err(_) => tracing::debug!("no WebSocket opened in time"),
                }
            });
        }
    }
}
