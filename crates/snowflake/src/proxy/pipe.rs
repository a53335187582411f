//! Bytes between one client and its relay.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use adit_net::rt;
use adit_net::rtc::{Connection, Relay};

use super::super::{ProxyMetrics, Voice};

/// A client to whom the relay has sent nothing for this long is gone: a server says something each 10 s.
const IDLE: Duration = Duration::from_secs(30);
/// Bytes of one read from the relay, which become one message.
const READ: usize = 16 << 10;
/// Bytes of one read from the client.
const INBOX: usize = 32 << 10;
/// Time for the last bytes to a client, and the pause between two looks at them.
const FAREWELL: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);
/// Rounds of one turn.
const ROUNDS: usize = 16;

struct Pipe<'a> {
    connection: Connection,
    relay: Relay,
    metrics: &'a ProxyMetrics,
    /// A message for the client.
    down: Box<[u8]>,
    down_len: usize,
    /// Bytes for the relay, from `up_at` on.
    up: Vec<u8>,
    up_at: usize,
    heard_at: Instant,
    counts: [usize; 4],
}

/// Copies until either end closes.
pub(super) async fn run(connection: Connection, relay: Relay, metrics: &ProxyMetrics, voice: &dyn Voice) {
    let began_at = rt::now();
    let mut pipe = Pipe {
        connection,
        relay,
        metrics,
        down: vec![0; READ].into(),
        down_len: 0,
        up: Vec::new(),
        up_at: 0,
        heard_at: began_at,
        counts: [0; 4],
    };
    let why = loop {
        let idle_at = pipe.heard_at + IDLE;
        let turn = async { Some(poll_fn(|cx| pipe.poll_turn(cx)).await) };
        let sleep = async {
            rt::sleep_until(idle_at).await;
            None
        };
        match rt::race(turn, sleep).await {
            Some(why) => break why,
            None if rt::now() >= pipe.heard_at + IDLE => {
                break format!("nothing from the relay for {}", super::super::go_duration(IDLE));
            }
            None => {}
        }
    };
    // The last bytes are on their way to the client.
    let end = rt::now() + FAREWELL;
    while pipe.connection.failure().is_none() && pipe.connection.buffered() > 0 && rt::now() < end {
        rt::sleep(LOOK).await;
    }
    let Pipe { connection, relay, counts: [up, down, messages, sends], .. } = pipe;
    drop(connection);
    relay.close().await;
    let seconds = rt::now().saturating_duration_since(began_at).as_secs();
    voice.log(format_args!(
        "Traffic throughput (up|down): {} KB|{} KB -- ({messages} OnMessages, {sends} Sends, over {seconds} seconds)",
        up / 1000,
        down / 1000
    ));
    voice.log(format_args!("copy loop ended: {why}"));
}

impl Pipe<'_> {
    /// Ready with the reason once it is over.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        for _ in 0..ROUNDS {
            let down = self.poll_down(cx);
            let up = self.poll_up(cx);
            match (down, up) {
                (Err(why), _) | (_, Err(why)) => return Poll::Ready(why),
                (Ok(false), Ok(false)) => return Poll::Pending,
                (Ok(_), Ok(_)) => {}
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// From the relay to the client; true if there may be more. A client that is slow keeps the relay from being read.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Result<bool, String> {
        if self.down_len == 0 {
            match self.relay.poll_recv(cx, &mut self.down) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(0)) => return Err("the relay has closed".to_owned()),
                Poll::Ready(Ok(len)) => self.down_len = len,
                Poll::Ready(Err(error)) => return Err(format!("the relay: {error}")),
            }
            self.heard_at = rt::now();
        }
        match self.connection.poll_send(cx, &self.down[..self.down_len]) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(())) => {
                self.metrics.add_down(self.down_len);
                self.counts[1] += self.down_len;
                self.counts[3] += 1;
                self.down_len = 0;
                Ok(true)
            }
            Poll::Ready(Err(failure)) => Err(format!("the client: {failure}")),
        }
    }

    /// From the client to the relay; true if there may be more.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Result<bool, String> {
        if self.up_at == self.up.len() {
            self.up.clear();
            self.up_at = 0;
            match self.connection.poll_recv(cx, &mut self.up, INBOX) {
                Poll::Pending => {
                    let flushed = self.relay.poll_flush(cx);
                    return match flushed {
                        Poll::Ready(Err(error)) => Err(format!("the relay: {error}")),
                        Poll::Ready(Ok(())) | Poll::Pending => Ok(false),
                    };
                }
                Poll::Ready(Ok(())) => self.counts[2] += 1,
                Poll::Ready(Err(failure)) => return Err(format!("the client: {failure}")),
            }
        }
        match self.relay.poll_send(cx, &self.up[self.up_at..]) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(len)) => {
                self.up_at += len;
                self.metrics.add_up(len);
                self.counts[0] += len;
                if self.up_at == self.up.len() && self.up.capacity() > 2 * INBOX {
                    self.up = Vec::new();
                    self.up_at = 0;
                }
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(format!("the relay: {error}")),
        }
    }
}
