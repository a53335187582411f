//! Packets that come and go by streams in place of a socket: a client's packets may change the stream that carries them.
//!
//! ```text
//! stream of client A ─▶ inbox ─▶ driver ─▶ queue of A ─▶ the stream of A that came last
//! ```
//!
//! Streams and driver may live on different event loops. The inbox is bounded: a stream waits until the driver has taken
//! it. A queue is bounded: packets beyond are dropped, and KCP sends them again.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adit_net::udp::{Outgoing, Sent};

/// Bytes of the inbox; a stream that finds more waits.
const MAX_INBOX: usize = 1 << 20;
/// Bytes that wait for the streams of one client (upstream: 512 packets of 1400).
const MAX_QUEUE: usize = 256 << 10;
/// Bytes that a queue may always hold, however much the others do.
const OWN_QUEUE: usize = 4 << 10;
/// A queue without a stream is dropped after this time (upstream's).
const KEPT: Duration = Duration::from_secs(60);

/// Appends a packet as streams carry it.
type PushPacket = fn(&mut Vec<u8>, &[u8]);

/// The place where streams and driver meet.
#[derive(Debug)]
pub struct Hub {
    push_packet: PushPacket,
    inbox: Mutex<Inbox>,
    queues: Mutex<Queues>,
    /// Bytes of all queues, at most, beyond a few of each.
    most: usize,
}

#[derive(Debug, Default)]
struct Queues {
    of: HashMap<SocketAddr, Queue>,
    /// Bytes in all of them.
    len: usize,
}

#[derive(Debug, Default)]
struct Inbox {
    block: Vec<u8>,
    packets: Vec<(SocketAddr, Range<usize>)>,
    driver: Option<Waker>,
    streams: Vec<Waker>,
    /// Clients whose packets go by another stream than before.
    renewed: Vec<SocketAddr>,
}

/// Packets for one client, as chunks.
#[derive(Debug, Default)]
struct Queue {
    chunks: Vec<u8>,
    /// Its streams, the newest last.
    streams: BTreeMap<u64, Option<Waker>>,
    count: u64,
    idle_since: Option<Instant>,
}

impl Queues {
    /// Drops what waits for a client's stream: it will be sent again.
    fn forget(&mut self, client: SocketAddr) {
        if let Some(queue) = self.of.get_mut(&client) {
            self.len -= std::mem::take(&mut queue.chunks).len();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// An empty place for streams in which `push_packet` marks the packets. At most `most` bytes wait for streams.
    pub fn new(push_packet: PushPacket, most: usize) -> Self {
        Self { push_packet, inbox: Mutex::default(), queues: Mutex::default(), most }
    }

    /// Takes packets of a client.
    pub fn push<'p>(&self, client: SocketAddr, packets: impl Iterator<Item = &'p [u8]>) {
        let mut inbox = lock(&self.inbox);
        for packet in packets {
            let start = inbox.block.len();
            inbox.block.extend_from_slice(packet);
            let end = inbox.block.len();
            inbox.packets.push((client, start..end));
        }
        let driver = inbox.driver.take();
        drop(inbox);
        driver.into_iter().for_each(Waker::wake);
    }

    /// Ready while the inbox has room.
    pub fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inbox = lock(&self.inbox);
        if inbox.block.len() < MAX_INBOX {
            return Poll::Ready(());
        }
        inbox.streams.push(cx.waker().clone());
        Poll::Pending
    }

    /// Hands all packets of the inbox to `take`; its block is the driver's during the call. Returns their bytes and count.
    pub(super) fn poll_receive(
        &self,
        cx: &Context<'_>,
        mut take: impl FnMut(SocketAddr, &[u8]),
    ) -> Poll<(usize, usize)> {
        let mut inbox = lock(&self.inbox);
        if inbox.packets.is_empty() && inbox.renewed.is_empty() {
            inbox.driver = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut block = std::mem::take(&mut inbox.block);
        let mut packets = std::mem::take(&mut inbox.packets);
        let streams = std::mem::take(&mut inbox.streams);
        drop(inbox);
        streams.into_iter().for_each(Waker::wake);
        let (bytes, count) = (block.len(), packets.len());
        for (client, range) in packets.drain(..) {
            take(client, &block[range]);
        }
        block.clear();
        let mut inbox = lock(&self.inbox);
        if inbox.block.capacity() == 0 && block.capacity() <= 64 << 10 {
            (inbox.block, inbox.packets) = (block, packets);
        }
        Poll::Ready((bytes, count))
    }

    /// Takes the clients whose packets go by another stream than before.
    pub(super) fn take_renewed(&self) -> Vec<SocketAddr> {
        std::mem::take(&mut lock(&self.inbox).renewed)
    }

    /// Has the driver send all again that is under way.
    fn tell_renewed(&self, client: SocketAddr) {
        let mut inbox = lock(&self.inbox);
        inbox.renewed.push(client);
        let driver = inbox.driver.take();
        drop(inbox);
        driver.into_iter().for_each(Waker::wake);
    }

    /// Queues packets for their clients.
    pub(super) fn send(&self, block: &[u8], datagrams: &[Outgoing]) -> Sent {
        let mut queues = lock(&self.queues);
        let Queues { of, len } = &mut *queues;
        let mut sent = Sent::default();
        for datagram in datagrams {
            let queue = of.entry(datagram.to).or_default();
            let before = queue.chunks.len();
            if before >= MAX_QUEUE || before >= OWN_QUEUE && *len >= self.most {
                sent.full += 1;
                continue;
            }
            (self.push_packet)(&mut queue.chunks, &block[datagram.start..datagram.start + datagram.len]);
            *len += queue.chunks.len() - before;
            sent.sent += 1;
            if let Some(mut stream) = queue.streams.last_entry() {
                stream.get_mut().take().into_iter().for_each(Waker::wake);
            }
        }
        sent
    }

    /// A stream for a client's packets begins: from now on it gets them, and those before it do not.
    pub fn attach(self: &Arc<Self>, client: SocketAddr) -> Attachment {
        let mut queues = lock(&self.queues);
        let queue = queues.of.entry(client).or_default();
        queue.count += 1;
        queue.idle_since = None;
        let number = queue.count;
        queue.streams.insert(number, None);
        if number > 1 {
            queues.forget(client);
        }
        drop(queues);
        self.tell_renewed(client);
        Attachment { hub: self.clone(), client, number }
    }

    /// Drops queues that have had no stream for a minute. Call it each half minute.
    pub fn sweep(&self, now: Instant) {
        let Queues { of, len } = &mut *lock(&self.queues);
        of.retain(|_, queue| {
            let is_kept = !queue.streams.is_empty()
                || now.saturating_duration_since(*queue.idle_since.get_or_insert(now)) < KEPT;
            *len -= if is_kept { 0 } else { queue.chunks.len() };
            is_kept
        });
    }

    /// Queues, those without a stream too.
    #[doc(hidden)]
    pub fn queue_count(&self) -> usize {
        lock(&self.queues).of.len()
    }
}

/// A stream's claim to a client's packets; dropping it gives the claim back to the one before.
#[derive(Debug)]
pub struct Attachment {
    hub: Arc<Hub>,
    client: SocketAddr,
    number: u64,
}

impl Attachment {
    /// Another stream takes the packets from now on, by the same claim.
    pub fn renew(&self) {
        lock(&self.hub.queues).forget(self.client);
        self.hub.tell_renewed(self.client);
    }

    /// The chunks that wait, all of them, while this is the client's newest stream.
    pub fn poll_take(&self, cx: &Context<'_>) -> Poll<Vec<u8>> {
        let Queues { of, len } = &mut *lock(&self.hub.queues);
        let Some(queue) = of.get_mut(&self.client) else { return Poll::Pending };
        let is_newest = queue.streams.last_key_value().is_some_and(|(newest, _)| *newest == self.number);
        if is_newest && !queue.chunks.is_empty() {
            *len -= queue.chunks.len();
            return Poll::Ready(std::mem::take(&mut queue.chunks));
        }
        queue.streams.insert(self.number, Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut queues = lock(&self.hub.queues);
        let Some(queue) = queues.of.get_mut(&self.client) else { return };
        queue.streams.remove(&self.number);
        // Anybody may come under any name, and leave at once.
        if queue.streams.is_empty() && queue.chunks.is_empty() {
            queues.of.remove(&self.client);
            return;
        }
        if let Some(mut stream) = queue.streams.last_entry() {
            stream.get_mut().take().into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use adit_proto::snowflake::encapsulation::push_packet;

    use super::*;

    fn outgoing(to: SocketAddr, start: usize, len: usize) -> Outgoing {
        Outgoing { key: 0, to, from: None, class: 0, start, len }
    }

    #[test]
    fn packets_go_both_ways_and_the_newest_stream_gets_them() {
        let (hub, cx) = (Arc::new(Hub::new(push_packet, usize::MAX)), Context::from_waker(Waker::noop()));
        let [a, b] = [1, 2].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        assert!(hub.poll_receive(&cx, |_, _| panic!("nothing yet")).is_pending());
        hub.push(a, [&b"one"[..], b""].into_iter());
        hub.push(b, [&b"two"[..]].into_iter());
        let mut got = Vec::new();
        let received = hub.poll_receive(&cx, |from, packet| got.push((from.port(), packet.to_vec())));
        assert_eq!(received, Poll::Ready((6, 3)));
        assert_eq!(got, [(1, b"one".to_vec()), (1, Vec::new()), (2, b"two".to_vec())]);
        let first = hub.attach(a);
        assert_eq!(hub.send(b"abc", &[outgoing(a, 0, 1), outgoing(a, 1, 2)]).sent, 2);
        assert_eq!(first.poll_take(&cx), Poll::Ready(b"\x81a\x82bc".to_vec()));
        let second = hub.attach(a);
        hub.send(b"d", &[outgoing(a, 0, 1)]);
        assert!(first.poll_take(&cx).is_pending());
        assert_eq!(second.poll_take(&cx), Poll::Ready(b"\x81d".to_vec()));
        drop(second);
        hub.send(b"e", &[outgoing(a, 0, 1)]);
        assert_eq!(first.poll_take(&cx), Poll::Ready(b"\x81e".to_vec()));
        // The driver hears of each new stream, and what waited for another one is not sent twice.
        assert_eq!(hub.take_renewed(), [a, a]);
        hub.send(b"f", &[outgoing(a, 0, 1)]);
        first.renew();
        assert!(first.poll_take(&cx).is_pending());
        assert_eq!(lock(&hub.queues).len, 0);
        assert!(hub.poll_receive(&cx, |_, _| panic!("no packet")).is_ready());
        assert_eq!(hub.take_renewed(), [a]);
        assert!(hub.poll_receive(&cx, |_, _| panic!("no packet")).is_pending());
    }

    #[test]
    fn inbox_and_queues_are_bounded_and_queues_end() {
        let (hub, cx) = (Arc::new(Hub::new(push_packet, usize::MAX)), Context::from_waker(Waker::noop()));
        let (client, block) = (SocketAddr::from(([192, 0, 2, 1], 1)), vec![0; 1400]);
        assert!(hub.poll_room(&cx).is_ready());
        hub.push(client, std::iter::repeat_n(&block[..], MAX_INBOX / 1400 + 1));
        assert!(hub.poll_room(&cx).is_pending());
        assert!(hub.poll_receive(&cx, |_, _| {}).is_ready());
        assert!(hub.poll_room(&cx).is_ready());
        let many = vec![outgoing(client, 0, 1400); 1000];
        let sent = hub.send(&block, &many);
        assert_eq!(sent.sent + sent.full, 1000);
        assert!(sent.sent >= MAX_QUEUE / 1402 && sent.sent <= MAX_QUEUE / 1402 + 1, "{sent:?}");
        let now = adit_net::rt::now();
        hub.sweep(now);
        hub.sweep(now + KEPT - Duration::from_secs(1));
        assert_eq!(hub.queue_count(), 1);
        hub.sweep(now + KEPT);
        assert_eq!((hub.queue_count(), lock(&hub.queues).len), (0, 0));
        let stream = hub.attach(client);
        hub.sweep(now + 3 * KEPT);
        assert_eq!(hub.queue_count(), 1);
        drop(stream);
        assert_eq!(hub.queue_count(), 0, "nothing waits there");
    }

    /// Clients that take nothing fill no more than their few bytes once all queues together are full.
    #[test]
    fn queues_together_are_bounded() {
        let (hub, cx) = (Arc::new(Hub::new(push_packet, MAX_QUEUE)), Context::from_waker(Waker::noop()));
        let (client, block) = (|port| SocketAddr::from(([192, 0, 2, 1], port)), vec![0; 1400]);
        for port in 0..10 {
            hub.send(&block, &vec![outgoing(client(port), 0, 1400); 300]);
        }
        let len = lock(&hub.queues).len;
        assert!((MAX_QUEUE..MAX_QUEUE + 10 * (OWN_QUEUE + 1402)).contains(&len), "{len}");
        // One that takes its packets makes room for others.
        let first = hub.attach(client(0));
        let taken = match first.poll_take(&cx) {
            Poll::Ready(chunks) => chunks.len(),
            Poll::Pending => 0,
        };
        assert!(taken >= MAX_QUEUE - OWN_QUEUE, "{taken}");
        assert_eq!(lock(&hub.queues).len, len - taken);
        assert!(hub.send(&block, &vec![outgoing(client(200), 0, 1400); 100]).sent > 10);
    }
}
