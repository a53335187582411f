//! The source of datagrams: a thread that keeps a rate.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use adit_sys::udp::{Head, MAX_PAYLOAD, MAX_SEGMENTS, Sender};
use anyhow::{Context, Result, anyhow};
use nix::sys::prctl;

use super::datagram::Kind;
use super::flow::Flow;

/// Datagrams per call.
const BATCH: usize = 64;
/// Late datagrams are sent in a burst: at most so many, or those of this part of a second.
const MOST_DUE: f64 = 64.0;
const MOST_LATE: f64 = 1.0 / 500.0;

/// The datagrams to send.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Payload bytes of each datagram.
    pub len: usize,
    /// Datagrams per second, all flows together.
    pub rate: f64,
    /// The kernel cuts one message into many datagrams (`UDP_SEGMENT`), as it does for QUIC.
    pub gso: bool,
    /// The receiver's treatment of them.
    pub kind: Kind,
}

/// A running generator; dropping it stops it.
#[derive(Debug)]
pub struct Generator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<Vec<Flow>>>>,
}

#[derive(Debug, Default)]
struct Shared {
    sent: AtomicU64,
    messages: AtomicU64,
    stopped: AtomicBool,
}

impl Generator {
    /// Sends `offer` over `flows` in turn.
    ///
    /// # Errors
    /// If no thread is to be had.
    pub fn start(flows: Vec<Flow>, offer: Offer) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let worker = Arc::clone(&shared);
        let run = move || send(flows, offer, &worker);
        let thread = thread::Builder::new().name("generator".into()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Datagrams that were sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Messages that carried them: fewer than datagrams if the kernel cuts messages into datagrams.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.shared.messages.load(Ordering::Relaxed)
    }

    /// Stops and gives the flows back.
    ///
    /// # Errors
    /// If sending failed meanwhile.
    pub fn stop(mut self) -> Result<Vec<Flow>> {
        self.shared.stopped.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("generator was stopped before")?;
        thread.join().map_err(|_| anyhow!("generator panicked"))?
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn send(mut flows: Vec<Flow>, offer: Offer, shared: &Shared) -> Result<Vec<Flow>> {
    // Rests shorter than the kernel's 50 us of slack.
    prctl::set_timerslack(1).ok();
    let mut writer = Writer { sender: Sender::new(BATCH), block: Vec::new() };
    // One flow sends many at a time; many flows one each, in turn.
    let scattered = flows.len() > 1;
    let rest = Duration::from_micros(if offer.gso { 1000 } else { 200 });
    let most = MOST_DUE.max(offer.rate * MOST_LATE);
    let (mut begin, mut turn) = (Instant::now(), 0);
    let mut owed = 0.0;
    while !shared.stopped.load(Ordering::Relaxed) {
        let now = Instant::now();
        owed += now.duration_since(begin).as_secs_f64() * offer.rate;
        owed = owed.min(most);
        begin = now;
        while owed >= 1.0 {
            #[expect(clippy::cast_possible_truncation, reason = "at least 1 and of the order of a batch")]
            let wanted = if scattered { 1 } else { (owed as usize).min(BATCH) };
            let (tried, sent) = writer.send(&mut flows[turn], wanted, &offer)?;
            turn = (turn + 1) % flows.len();
            owed -= tried as f64;
            shared.sent.fetch_add(sent as u64, Ordering::Relaxed);
            let messages = if offer.gso { sent.min(1) } else { sent };
            shared.messages.fetch_add(messages as u64, Ordering::Relaxed);
        }
        if begin.elapsed() < rest {
            thread::sleep(rest);
        }
    }
    Ok(flows)
}

struct Writer {
    sender: Sender,
    block: Vec<u8>,
}

impl Writer {
    /// Offers up to `count` datagrams of one flow to the kernel. Gives how many, and how many it took.
    fn send(&mut self, flow: &mut Flow, count: usize, offer: &Offer) -> Result<(usize, usize)> {
        let len = flow.wire_len(offer.len);
        let count = count.min(if offer.gso { MAX_SEGMENTS.min(MAX_PAYLOAD / len) } else { BATCH });
        self.block.resize(count * len, 0);
        let now = SystemTime::now();
        for bytes in self.block.chunks_mut(len) {
            flow.fill(bytes, offer.kind, now)?;
        }
        let plain = Head { to: None, from: None, class: 0, segment: None };
        let mut taken = 0;
        while taken < count {
            let rest = &self.block[taken * len..];
            let sent = if offer.gso && count > 1 {
                let head = Head { segment: u16::try_from(len).ok(), ..plain };
                let message = std::iter::once((head, std::iter::once(rest)));
                self.sender.send(&flow.socket, message).map(|_| count - taken)
            } else {
                let messages = rest.chunks(len).map(|bytes| (plain, std::iter::once(bytes)));
                self.sender.send(&flow.socket, messages)
            };
            match sent {
                Ok(sent) => taken += sent,
                Err(error) if is_full(&error) => break,
                Err(error) => return Err(error).context("send datagrams"),
            }
        }
        flow.take_back((count - taken) as u64);
        Ok((count, taken))
    }
}

/// The way is full, or the last datagrams found a closed port: what was not sent was not offered.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, OutOfMemory, WouldBlock};
    matches!(error.kind(), WouldBlock | ConnectionRefused | Interrupted | OutOfMemory)
        || error.raw_os_error() == Some(nix::errno::Errno::ENOBUFS as i32)
}
