//! The fuzz target of WebSockets.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Limits, Message, WebSocket, accept, opening};

const LIMITS: Limits = Limits { message: 1024, write: 256, buffer: 128, head: 512 };

/// A stream that holds all of its bytes, gives at most `step` of them at a time, and then ends.
struct Given<'a> {
    bytes: &'a [u8],
    step: usize,
    sent: usize,
}

impl AsyncRead for Given<'_> {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (now, later) = this.bytes.split_at(this.bytes.len().min(this.step).min(buf.remaining()));
        buf.put_slice(now);
        this.bytes = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Given<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().sent += bytes.len();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Fuzz target: the first byte chooses the role and whether a request is expected; the rest comes whole, and a few bytes
/// at a time. Both give the same messages and the same end, no message is above its limit, and the answers to pings are
/// bounded by the bytes that came.
#[doc(hidden)]
pub fn fuzz_websocket(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let steps = [usize::MAX, 1 + usize::from(choice >> 3)];
    let [whole, parts] = steps.map(|step| {
        let stream = Given { bytes, step, sent: 0 };
        let socket = match choice & 3 {
            0 => WebSocket::server(stream, Vec::new(), LIMITS),
            1 => WebSocket::client(stream, Vec::new(), LIMITS),
            2 => match at_once(accept(stream, Vec::new(), LIMITS)) {
                Ok((socket, opening)) => {
                    assert!(opening.target.len() < LIMITS.head && opening.fields.len() <= 64);
                    socket
                }
                Err(error) => return (Vec::new(), Some(error.kind())),
            },
            _ => {
                let len = opening::response_len(bytes);
                assert!(
                    len.as_ref().is_ok_and(|len| len.is_none_or(|len| len <= bytes.len())) || len.is_err()
                );
                return (Vec::new(), len.err().map(|error| error.kind()));
            }
        };
        messages(socket, bytes.len())
    });
    assert_eq!(whole, parts);
}

/// All messages, and the error at the end.
fn messages(mut socket: WebSocket<Given<'_>>, len: usize) -> (Vec<Message>, Option<io::ErrorKind>) {
    let mut found = Vec::new();
    let end = loop {
        match at_once(socket.receive()) {
            Ok(Some(message)) => found.push(message),
            Ok(None) => break None,
            Err(error) => break Some(error.kind()),
        }
    };
    let longest = found.iter().map(|message| match message {
        Message::Text(text) => text.len(),
        Message::Binary(bytes) => bytes.len(),
    });
    assert!(longest.max().unwrap_or_default() <= LIMITS.message);
    // The answer of an opening, and a frame for each frame that asks for one.
    assert!(socket.into_inner().sent <= 256 + 4 * len);
    (found, end)
}

/// The result of a future that never has to wait.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a stream that always answers makes nobody wait"),
    }
}
