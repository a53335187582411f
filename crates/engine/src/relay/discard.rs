//! Reads on without a use for the bytes. Nothing here holds a chunk while it waits: there are few chunks, and
//! the sender of the bytes may take all the time in the world.

use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};
use std::time::Duration;

use adit_net::rt::{self, CHUNK_LEN, Pool, Stream};
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

/// Reads on, through any bytes, until the peer has ended or failed. For each read beyond the first `free` bytes `delay`
/// says how long to wait before the next one.
pub(crate) async fn discard_all(
    stream: &Stream,
    pool: &Pool,
    free: usize,
    mut delay: impl FnMut(usize) -> Duration,
) {
    let mut discarded = 0;
    loop {
        match discard_some(stream, pool).await {
            Ok(0) | Err(_) => return,
            Ok(received) => discarded += received,
        }
        let pause = if discarded > free { delay(CHUNK_LEN) } else { Duration::ZERO };
        if !pause.is_zero() {
            rt::sleep(pause).await;
        } else if discarded > free {
            rt::yield_now().await;
        }
    }
}

/// Discards what the system holds of a stream at this moment, `max` bytes at most: closing over unread bytes would be a
/// reset.
pub(crate) async fn discard_received(stream: &Stream, pool: &Pool, max: usize) {
    let mut discarded = 0;
    poll_fn(|cx| {
        while discarded < max
            && let Some(mut chunk) = pool.take()
            && let Poll::Ready(Ok(received @ 1..)) = stream.poll_recv(cx, chunk.buf.free_mut())
        {
            discarded += received;
        }
        Poll::Ready(())
    })
    .await;
}

/// One read whose bytes nobody wants.
async fn discard_some(stream: &Stream, pool: &Pool) -> io::Result<usize> {
    poll_fn(|cx| {
        ready!(stream.poll_readable(cx))?;
        let mut chunk = ready!(rt::poll_chunk(pool, cx));
        stream.poll_recv(cx, chunk.buf.free_mut())
    })
    .await
}

/// Reads on until the peer has ended or failed; beyond `max` bytes it reads nothing more and never returns.
pub(crate) async fn discard_bytes(stream: &Stream, pool: &Pool, max: usize) {
    let mut discarded = 0;
    while discarded < max {
        match discard_some(stream, pool).await {
            Ok(0) | Err(_) => return,
            Ok(received) => discarded += received,
        }
    }
    std::future::pending().await
}
