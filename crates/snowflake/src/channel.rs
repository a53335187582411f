//! A proxy in use: packets of a conversation, both ways over its data channel.

use std::collections::VecDeque;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use adit_net::rtc::Connection;
use adit_proto::snowflake::encapsulation::{CLIENT_PACKET_LEN, Reader, push_packet};
use adit_proto::snowflake::{ClientId, Prologue, TOKEN};

/// A channel over which nothing has come for this long is given up: a server says something each 10 s.
const STALE: Duration = Duration::from_secs(20);
/// Bytes of one read.
const READ: usize = 64 << 10;
/// Bytes of a message: one packet of SCTP.
const MESSAGE: usize = adit_model::SNOWFLAKE_MTU + 2;

/// Counters of a line of traffic.
#[derive(Debug, Default)]
pub(super) struct ChannelTraffic {
    pub(super) bytes_in: usize,
    pub(super) bytes_out: usize,
    pub(super) messages: usize,
    pub(super) sends: usize,
}

/// The channel to a proxy.
pub(super) struct Channel {
    connection: Connection,
    reader: Reader,
    /// Messages that the connection had no room for.
    held: VecDeque<Vec<u8>>,
    inbox: Vec<u8>,
    heard_at: Instant,
    pub(super) traffic: ChannelTraffic,
}

impl Channel {
    /// The name of the client, `id`, goes first.
    pub(super) fn new(connection: Connection, id: ClientId, now: Instant) -> Self {
        let prologue = Prologue::emit(id);
        let (token, id) = prologue.split_at(TOKEN.len());
        Self {
            connection,
            reader: Reader::new(CLIENT_PACKET_LEN),
            held: [token.to_vec(), id.to_vec()].into(),
            inbox: Vec::new(),
            heard_at: now,
            traffic: ChannelTraffic::default(),
        }
    }

    /// Why it is given up, if nothing has come for too long.
    pub(super) fn staleness(&self, now: Instant) -> Option<&'static str> {
        let is_stale = now.saturating_duration_since(self.heard_at) >= STALE;
        is_stale.then_some("No messages received for 20s -- closing stale connection.")
    }

    /// Whether nothing waits for room.
    pub(super) fn is_free(&self) -> bool {
        self.held.is_empty()
    }

    /// Queues one packet.
    pub(super) fn hold_packet(&mut self, packet: &[u8]) {
        let mut message = Vec::with_capacity(packet.len() + 3);
        push_packet(&mut message, packet);
        self.held.push_back(message);
    }

    /// Queues packets that have their prefixes. The boundaries of messages count for nothing.
    pub(super) fn hold_chunks(&mut self, chunks: &[u8]) {
        self.held.extend(chunks.chunks(MESSAGE).map(<[u8]>::to_vec));
    }

    /// Hands the packets of one read to `take`.
    ///
    /// # Errors
    /// Why the proxy is of no further use.
    pub(super) fn poll_packets(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        mut take: impl FnMut(&[u8]),
    ) -> Poll<Result<(), String>> {
        self.inbox.clear();
        let received = ready!(self.connection.poll_recv(cx, &mut self.inbox, READ));
        received.map_err(|failure| failure.to_string())?;
        self.heard_at = now;
        self.traffic.bytes_in += self.inbox.len();
        self.traffic.messages += 1;
        let mut input = &*self.inbox;
        loop {
            match self.reader.next(&mut input) {
                Ok(Some(packet)) => take(packet),
                Ok(None) if input.is_empty() => return Poll::Ready(Ok(())),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Err(error.to_string())),
            }
        }
    }

    /// Sends what is queued; ready once nothing is.
    ///
    /// # Errors
    /// As [`Channel::poll_packets`].
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        while let Some(message) = self.held.front() {
            ready!(self.connection.poll_send(cx, message)).map_err(|failure| failure.to_string())?;
            self.traffic.bytes_out += message.len();
            self.traffic.sends += 1;
            self.held.pop_front();
        }
        Poll::Ready(Ok(()))
    }
}
