//! WebSocket (RFC 6455) over any byte stream, in both roles, without extensions.
//!
//! Opening: [`accept`] answers a request that it reads itself; [`connect`] asks. A server that has its own HTTP answers
//! with the value of [`accept_key`] and goes on with [`WebSocket::server`]. Then messages go by [`WebSocket::receive`]
//! and [`WebSocket::send`], or the messages are a stream of bytes: [`WebSocket::into_bytes`].
//!
//! Memory is bounded by [`Limits`]: one incomplete message, one read buffer, and one message that waits to be sent. Time
//! is the caller's matter. Pings are answered.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tungstenite::Error as Fault;
use tungstenite::protocol::{Message as Frame, Role, WebSocketConfig};

mod fuzz;
mod opening;
mod port;

pub use fuzz::fuzz_websocket;
pub use opening::{Opening, accept, accept_key, connect};
pub use port::{Opened, WebSocketPort, WireReader, WireWriter, dial_for_tests};

/// Bounds of a WebSocket, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest message that is received, over all of its frames.
    pub message: usize,
    /// Longest message that the view as bytes sends; a longer write becomes several messages.
    pub write: usize,
    /// The read buffer, which is allocated at once.
    pub buffer: usize,
    /// Longest head of the request or response that opens it.
    pub head: usize,
}

impl Default for Limits {
    /// For connections that carry somebody's traffic.
    fn default() -> Self {
        Self { message: 1 << 20, write: 32 << 10, buffer: 16 << 10, head: 16 << 10 }
    }
}

impl Limits {
    fn config(self) -> WebSocketConfig {
        WebSocketConfig::default()
            .read_buffer_size(self.buffer.max(128))
            .write_buffer_size(0)
            .max_message_size(Some(self.message))
            .max_frame_size(Some(self.message))
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Text.
    Text(String),
    /// Bytes.
    Binary(Bytes),
}

/// An open WebSocket.
#[derive(Debug)]
pub struct WebSocket<S> {
    inner: tungstenite::WebSocket<Polled<S>>,
    limits: Limits,
    /// The peer has closed it.
    is_over: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// The server side, once the request has been answered with status 101. `early` holds the bytes that were read behind
    /// the request.
    pub fn server(stream: S, early: Vec<u8>, limits: Limits) -> Self {
        Self::new(stream, early, Role::Server, limits)
    }

    /// The client side, once a server has answered with status 101. `early` holds the bytes that were read behind the
    /// response.
    pub fn client(stream: S, early: Vec<u8>, limits: Limits) -> Self {
        Self::new(stream, early, Role::Client, limits)
    }

    fn new(stream: S, early: Vec<u8>, role: Role, limits: Limits) -> Self {
        let polled = Polled { stream, wakers: Arc::default() };
        let inner = tungstenite::WebSocket::from_partially_read(polled, early, role, Some(limits.config()));
        Self { inner, limits, is_over: false }
    }

    /// The next message; `None` once the peer has closed the WebSocket. Cancelling it loses nothing.
    ///
    /// # Errors
    /// `InvalidData` for a peer that breaks the protocol or the limits, `UnexpectedEof` for a stream that ends without a
    /// close, and the errors of the stream.
    pub async fn receive(&mut self) -> io::Result<Option<Message>> {
        std::future::poll_fn(|cx| self.poll_receive(cx)).await
    }

    /// As [`WebSocket::receive`].
    ///
    /// # Errors
    /// As [`WebSocket::receive`].
    pub fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Message>>> {
        loop {
            self.inner.get_mut().wakers.set(Side::Receive, cx);
            if self.is_over {
                return self.poll_farewell();
            }
            let message = match self.inner.read() {
                Ok(Frame::Text(text)) => Message::Text(text.as_str().to_owned()),
                Ok(Frame::Binary(bytes)) => Message::Binary(bytes),
                Ok(Frame::Ping(_) | Frame::Pong(_) | Frame::Frame(_)) => continue,
                Ok(Frame::Close(_)) => {
                    self.is_over = true;
                    continue;
                }
                Err(Fault::ConnectionClosed | Fault::AlreadyClosed) => return Poll::Ready(Ok(None)),
                Err(fault) => match error(fault) {
                    error if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                    error => return Poll::Ready(Err(error)),
                },
            };
            return Poll::Ready(Ok(Some(message)));
        }
    }

    /// Sends a message, and returns once the stream has taken all of it.
    ///
    /// # Errors
    /// `BrokenPipe` after the end, and the errors of the stream.
    pub async fn send(&mut self, message: Message) -> io::Result<()> {
        self.flush().await?;
        self.start(match message {
            Message::Text(text) => Frame::text(text),
            Message::Binary(bytes) => Frame::Binary(bytes),
        })?;
        self.flush().await
    }

    /// As [`WebSocket::send`], for a text that others send as well: it is not copied before it becomes a frame.
    ///
    /// # Errors
    /// As [`WebSocket::send`]; `InvalidData` for a text that is no UTF-8.
    pub async fn send_text(&mut self, text: Bytes) -> io::Result<()> {
        let text = text.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        self.flush().await?;
        self.start(Frame::Text(text))?;
        self.flush().await
    }

    /// Says that nothing more is sent, and returns once the stream has taken that.
    ///
    /// # Errors
    /// The errors of the stream.
    pub async fn close(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_close(cx)).await
    }

    /// The view as a stream of bytes: the payload of each message is read in order, and each write is one binary message.
    pub fn into_bytes(self) -> Bytestream<S> {
        Bytestream { socket: self, unread: Bytes::new() }
    }

    /// The stream beneath.
    pub fn into_inner(self) -> S {
        self.inner.into_inner().stream
    }

    async fn flush(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_flush(cx)).await
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.get_mut().wakers.set(Side::Send, cx);
        match self.inner.flush() {
            Ok(()) => Poll::Ready(Ok(())),
            Err(fault) => pending(error(fault)),
        }
    }

    /// Has the answer to the peer's close leave. A client would wait for the end of the stream beyond that.
    fn poll_farewell(&mut self) -> Poll<io::Result<Option<Message>>> {
        match self.inner.flush().map_err(error) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            Ok(()) | Err(_) => Poll::Ready(Ok(None)),
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.get_mut().wakers.set(Side::Send, cx);
        let closed = if self.inner.can_write() { self.inner.close(None) } else { self.inner.flush() };
        match closed {
            Ok(()) | Err(Fault::ConnectionClosed | Fault::AlreadyClosed) => Poll::Ready(Ok(())),
            Err(fault) => pending(error(fault)),
        }
    }

    /// Begins to send; a part may stay in the buffer.
    fn start(&mut self, frame: Frame) -> io::Result<()> {
        match self.inner.write(frame).map_err(error) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn pending(error: io::Error) -> Poll<io::Result<()>> {
    if error.kind() == io::ErrorKind::WouldBlock { Poll::Pending } else { Poll::Ready(Err(error)) }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the peer is wrong in all other cases")]
fn error(fault: Fault) -> io::Error {
    use tungstenite::error::ProtocolError::{ResetWithoutClosingHandshake, SendAfterClosing};
    match fault {
        Fault::Io(error) => error,
        Fault::ConnectionClosed | Fault::AlreadyClosed | Fault::Protocol(SendAfterClosing) => {
            io::ErrorKind::BrokenPipe.into()
        }
        Fault::Protocol(ResetWithoutClosingHandshake) => io::ErrorKind::UnexpectedEof.into(),
        fault => io::Error::new(io::ErrorKind::InvalidData, fault),
    }
}

/// A WebSocket as a stream of bytes. The boundaries of messages carry no meaning; text counts as its bytes.
#[derive(Debug)]
pub struct Bytestream<S> {
    socket: WebSocket<S>,
    unread: Bytes,
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Bytestream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            self.unread = match ready!(self.socket.poll_receive(cx))? {
                Some(Message::Binary(bytes)) => bytes,
                Some(Message::Text(text)) => text.into(),
                None => return Poll::Ready(Ok(())),
            };
        }
        let len = self.unread.len().min(into.remaining());
        into.put_slice(&self.unread[..len]);
        self.unread.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Bytestream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        // One message at most waits for the stream.
        ready!(self.socket.poll_flush(cx))?;
        let len = bytes.len().min(self.socket.limits.write.max(1));
        self.socket.start(Frame::Binary(Bytes::copy_from_slice(&bytes[..len])))?;
        Poll::Ready(Ok(len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_flush(cx)
    }

    /// Closes the WebSocket. The peer may still send.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_close(cx)
    }
}

/// A stream in the form that is read and written at once or not at all.
#[derive(Debug)]
struct Polled<S> {
    stream: S,
    wakers: Arc<Wakers>,
}

impl<S: AsyncRead + Unpin> io::Read for Polled<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let waker = Waker::from(self.wakers.clone());
        let mut buf = ReadBuf::new(into);
        match Pin::new(&mut self.stream).poll_read(&mut Context::from_waker(&waker), &mut buf) {
            Poll::Ready(result) => result.map(|()| buf.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl<S: AsyncWrite + Unpin> io::Write for Polled<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let waker = Waker::from(self.wakers.clone());
        match Pin::new(&mut self.stream).poll_write(&mut Context::from_waker(&waker), bytes) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let waker = Waker::from(self.wakers.clone());
        match Pin::new(&mut self.stream).poll_flush(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Receive,
    Send,
}

/// The tasks that wait: receiving may have to write (a pong), so that both wait for either direction of the stream.
#[derive(Debug, Default)]
struct Wakers([Mutex<Option<Waker>>; 2]);

impl Wakers {
    fn set(&self, side: Side, cx: &Context<'_>) {
        let mut waker = self.0[side as usize].lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        for waker in &self.0 {
            let waker = waker.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests;
