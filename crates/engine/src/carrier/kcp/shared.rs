//! State that all sessions of one inbound or outbound share, over all cores.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adit_model::{Kcp, KcpParity, Tag};
use adit_net::rt::{Crossing, OrderSender, Orders, orders};
use adit_proto::kcp::arq;
use adit_proto::kcp::crypt::{Crypt, KcpSecret, Pads};
use adit_proto::kcp::fec::{FecDecoder, Sending};
use adit_proto::smux::{self, SmuxVersion};

use super::metrics::KcpMetrics;
use crate::log_throttle::LogThrottle;

/// Upper bound of the delay of acknowledgements; the configuration cannot exceed it. A receiver that waits longer slows
/// down its peer's view of the path, and peers do not mind early acknowledgements.
const ACK_DELAY: Duration = Duration::from_millis(2);
/// The same by way of a proxy, to which each is a message, and a packet each way (as upstream's).
const STEADY_ACK_DELAY: Duration = Duration::from_millis(10);
/// Segments that may wait for gaps or the reader before a session has shown that it needs more.
const FIRST_RECV_WINDOW: u16 = 1024;
/// Bytes that wait in one stream to be sent, at most: what a driver's turn takes, twice.
const SEND_BUFFER: usize = 128 << 10;
/// The same for all streams of a session.
const SEND_BUFFERS: usize = 4 << 20;
/// The longest datagram that any program sends.
const LONGEST: usize = 1500;
/// Streams of one session.
const MAX_STREAMS: usize = 4096;

/// State that all sessions of one inbound or outbound share.
#[derive(Debug)]
pub(crate) struct CarrierShared {
    /// Name in logs.
    pub(super) name: Tag,
    pub(super) config: Kcp,
    pub(super) crypt: Crypt,
    pub(super) pads: Option<Pads>,
    /// Its counters.
    pub(crate) metrics: Arc<KcpMetrics>,
    pub(super) notices: Notices,
    next_session: AtomicU64,
    /// Streams of other event loops for the one that has the session.
    pub(super) crossings: OrderSender<Crossing>,
    pub(super) landings: Mutex<Option<Orders<Crossing>>>,
}

/// Lines that are limited in rate.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Datagrams that do not open.
    pub(super) unopened: LogThrottle,
    /// A peer that says nothing, or nothing that makes sense.
    pub(super) silent: LogThrottle,
    /// A session that ends because of what its peer sent.
    pub(super) illegal: LogThrottle,
    /// Sessions beyond the limit.
    pub(super) crowded: LogThrottle,
    /// A peer that has gone.
    pub(super) gone: LogThrottle,
}

impl CarrierShared {
    /// Derives the keys, which takes some milliseconds.
    pub(crate) fn new(name: &Tag, config: &Kcp) -> Self {
        let key = config.key.expose().as_bytes();
        let (crossings, landings) = orders();
        Self {
            name: name.clone(),
            crypt: Crypt::new(config.crypt, &KcpSecret::derive(key)),
            pads: config.pads.map(|count| Pads::derive(key, count)),
            config: config.clone(),
            metrics: Arc::default(),
            notices: Notices::default(),
            next_session: AtomicU64::new(0),
            crossings,
            landings: Mutex::new(Some(landings)),
        }
    }

    /// A number for a new session, for those who look.
    pub(super) fn number(&self) -> u64 {
        self.next_session.fetch_add(1, Ordering::Relaxed)
    }

    /// Bytes that the cipher needs in front of a datagram's content, and behind it.
    pub(super) fn room(&self) -> (usize, usize) {
        let method = self.crypt.method();
        (method.head_len(), method.tail_len())
    }

    /// Bytes of a datagram's content, at most.
    pub(super) fn content_len(&self) -> usize {
        let (head, tail) = self.room();
        self.config.mtu - head - tail
    }

    /// The encoder that adds parity, if parity is on.
    pub(super) fn sending(&self, now: Instant) -> Option<Sending> {
        match self.config.parity {
            KcpParity::Off => None,
            KcpParity::Measured => Some(Sending::measured(now)),
            KcpParity::Fixed(shards) => Some(Sending::fixed(shards)),
        }
    }

    /// The decoder that learns the peer's groups; it assumes our own group size until then.
    pub(super) fn decoder(&self) -> FecDecoder {
        FecDecoder::new(match self.config.parity {
            KcpParity::Off | KcpParity::Measured => None,
            KcpParity::Fixed(shards) => Some(shards),
        })
    }

    pub(super) fn arq(&self, conv: u32, now: Instant) -> arq::Arq {
        let Kcp { pace, memory, steady, .. } = &self.config;
        let settings = arq::ArqSettings {
            nodelay: pace.nodelay,
            interval: pace.interval,
            resend: pace.resend,
            congestion: pace.congestion,
            send_window: self.config.send_window.unwrap_or(u16::MAX).max(1),
            recv_window: self.config.recv_window.unwrap_or(FIRST_RECV_WINDOW).max(1),
            max_recv_window: if self.config.recv_window.is_some() { 0 } else { self.most_recv_window() },
            mtu: self.content_len(),
            stream: true,
            ack_no_delay: self.config.ack_no_delay,
            ack_delay: if *steady { STEADY_ACK_DELAY } else { ACK_DELAY },
            steady: *steady,
            tuning: (!pace.congestion).then(|| u64::try_from(*memory).unwrap_or(u64::MAX)),
        };
        arq::Arq::new(conv, settings, now)
    }

    /// Segments that the receive window may grow to.
    fn most_recv_window(&self) -> u16 {
        u16::try_from(self.config.memory / self.config.mtu).unwrap_or(u16::MAX)
    }

    /// Bytes that segments of a session may take that its streams have not: what its window allows, if no segment is
    /// longer than a datagram of any program.
    pub(super) fn most_received(&self) -> usize {
        let window = self.config.recv_window.map_or(0, usize::from);
        2 * self.config.memory.max(window * LONGEST)
    }

    pub(super) fn mux(&self, version: SmuxVersion) -> smux::SmuxSettings {
        let Kcp { memory, receive_buffer, stream_buffer, keep_alive, timeout, .. } = &self.config;
        let receive_buffer = receive_buffer.unwrap_or(*memory);
        let defaults = smux::SmuxSettings::default();
        let most = u32::try_from(receive_buffer).unwrap_or(u32::MAX >> 1).min(u32::MAX >> 1);
        smux::SmuxSettings {
            version,
            max_frame: self.config.frame_len,
            receive_buffer,
            stream_window: stream_buffer.unwrap_or(defaults.stream_window).min(most),
            max_stream_window: stream_buffer.unwrap_or(most),
            send_buffer: SEND_BUFFER,
            send_buffers: SEND_BUFFERS,
            max_streams: MAX_STREAMS,
            keep_alive: *keep_alive,
            keep_alive_timeout: *timeout,
            signals: true,
        }
    }
}
