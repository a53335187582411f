//! Reads on without a use for the bytes. Nothing here holds a chunk while it waits: there are few chunks, and
//! the sender of the bytes may take all the time in the world.

use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};

use adit_net::rt::{self, Pool, Stream};
use adit_proto::wire::Opened;

use crate::relay::Endpoint;

/// Reads on to the in-band end of the peer's direction; true if it came, within `max` bytes and without an error.
pub(crate) async fn discard_exchange(end: &mut Endpoint, pool: &Pool, max: usize) -> bool {
    let (mut discarded, mut is_first) = (0, true);
    let came = poll_fn(|cx| {
        loop {
            let Some(stack) = &mut end.stack else { return Poll::Ready(Ok(false)) };
            let mut chunk = ready!(rt::poll_chunk(pool, cx));
            chunk.buf.extend(&end.tail);
            // The end may have come before.
            if !std::mem::take(&mut is_first) {
                let received = ready!(end.stream.poll_recv(cx, chunk.buf.free_mut()))?;
                discarded += received;
                if received == 0 || discarded > max {
                    return Poll::Ready(Ok(false));
                }
                chunk.buf.filled(received);
                stack.handle_received(&mut chunk.buf, received, rt::now()).map_err(io::Error::other)?;
            }
            let has_ended = loop {
                match stack.open(&mut chunk.buf, rt::now()).map_err(io::Error::other)? {
                    Opened::Payload(_) => {}
                    Opened::NeedMore(_) => break false,
                    Opened::End => break true,
                }
            };
            end.tail.clear();
            end.tail.extend(chunk.buf.unread());
            if has_ended {
                return Poll::Ready(Ok(true));
            }
        }
    });
    let came: io::Result<bool> = came.await;
    came.unwrap_or(false)
}

/// Reads on until the peer has ended or failed; beyond `max` bytes it reads nothing more and never returns.
pub(crate) async fn discard_bytes(stream: &Stream, pool: &Pool, max: usize) {
    let mut discarded = 0;
    while discarded < max {
        let received = poll_fn(|cx| {
            ready!(stream.poll_readable(cx))?;
            let mut chunk = ready!(rt::poll_chunk(pool, cx));
            stream.poll_recv(cx, chunk.buf.free_mut())
        });
        match received.await {
            Ok(0) | Err(_) => return,
            Ok(received) => discarded += received,
        }
    }
    std::future::pending().await
}
