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
use crate::seats::{ConnectionLimit, ConnectionSeat};
use crate::tls_server::TlsIdentity;
use crate::wire::BoxStream;

/// Time for the TLS handshake and the request.
const OPENING_TIME: Duration = Duration::from_secs(10);
/// Time for the farewell.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The receiving half of a WebSocket: the payload of its messages, in order.
pub struct WireReader(ReadHalf<Bytestream<BoxStream<'static>>>);

/// The sending half: each write is one message or several.
pub struct WireWriter(WriteHalf<Bytestream<BoxStream<'static>>>);

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
    let stream: BoxStream<'static> = Box::new(stream);
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
    /// Its place among the connections of the port.
    pub seat: Rc<ConnectionSeat>,
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
    /// Connections at a time. One that has not opened, or whose user does not [keep](ConnectionSeat::keep) it, makes room for a new one,
    /// the oldest first; while there is none, new ones wait to be accepted.
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
        let seats = ConnectionLimit::new(max_connections, usize::MAX);
        let mut acceptor = BoundedAcceptor::new(acceptor, seats, Beyond::Waiting);
        let take = Rc::new(take);
        loop {
            let accepted = async { Some(acceptor.accept().await) };
            let drained = async {
                stop.draining().await;
                None
            };
            let Some(accepted) = rt::race(accepted, drained).await else { return Ok(()) };
            let (stream, peer, seat) = accepted?;
            let (stream, take, tls) = (stream.into_wire(), take.clone(), tls.clone());
            rt::spawn_local(async move {
                let own = seat.clone();
                let opening = async {
                    let wire: BoxStream<'static> = match tls {
                        None => stream,
                        Some(tls) => Box::new(tls.accept(stream).await?),
                    };
                    Box::pin(accept(wire, Vec::new(), limits)).await
                };
                let run = Box::pin(async move {
                    match rt::timeout(OPENING_TIME, opening).await {
                        Ok(Ok((socket, opening))) => {
                            let (reader, writer) = tokio::io::split(socket.into_bytes());
                            let (reader, writer) = (WireReader(reader), WireWriter(writer));
                            take(Opened { target: opening.target, peer, reader, writer, seat: own }).await;
                        }
                        Ok(Err(error)) => tracing::debug!(%error, "no WebSocket opened"),
                        Err(_) => tracing::debug!("no WebSocket opened in time"),
                    }
                });
                rt::race(run, seat.asked_to_leave()).await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::{ListenOptions, listen_many};
    use crate::rt::{Cores, Stopper};

    /// Those that open halfway, or have no user, hold no place against others.
    #[test]
    fn a_websocket_that_nobody_keeps_makes_room() {
        Cores::block_on(async {
            let (_stopper, stop) = Stopper::new();
            let made = listen_many(([127, 0, 0, 1], 0).into(), &ListenOptions::default(), 1).unwrap();
            let (at, listener) = (made.addr, made.sockets.into_iter().next().unwrap());
            let port = WebSocketPort { listener, tls: None, limits: Limits::default(), max_connections: 4 };
            // Says back what it hears, and keeps those of `/kept`.
            let served = port.serve(stop, |mut opened| async move {
                if opened.target == "/kept" {
                    opened.seat.keep();
                }
                let mut buffer = [0; 16];
                while let Ok(len @ 1..) = opened.reader.recv(&mut buffer).await {
                    if opened.writer.send_all(&buffer[..len]).await.is_err() {
                        return;
                    }
                }
            });
            rt::spawn_local(async move { served.await.unwrap() });
            let (mut reader, mut writer) = dial_for_tests(at, "/kept").await;
            let mut held = Vec::new();
            for _ in 0..20 {
                held.push((tokio::net::TcpStream::connect(at).await.unwrap(), None));
                let mut half = tokio::net::TcpStream::connect(at).await.unwrap();
                half.write_all(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n").await.unwrap();
                held.push((half, Some(dial_for_tests(at, "/idle").await)));
            }
            let mut buffer = [0; 16];
            writer.send_all(b"hello").await.unwrap();
            assert_eq!(reader.recv(&mut buffer).await.unwrap(), 5);
            let ended = rt::timeout(Duration::from_secs(60), held[0].0.read(&mut buffer)).await;
            assert_eq!(ended.unwrap().unwrap_or(0), 0, "the first made room");
        })
        .unwrap();
    }
}
