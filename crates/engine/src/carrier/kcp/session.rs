//! One conversation: the state machines put together, without a socket.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use adit_model::Kcp;
use adit_proto::kcp::arq::{Admission, Arq, Arrival, Limit};
use adit_proto::kcp::crypt::Qpp;
use adit_proto::kcp::fec::{self, FecDecoder, FecPacketKind, Sending};
use adit_proto::smux::{Mux, SmuxEvent, SmuxRole, SmuxVersion, StreamId};
use adit_proto::snappy;
use adit_proto::wire::WireError;

use super::memory::RESERVED;
use super::metrics::SessionStatus;
use super::outbox::DatagramOutbox;
use super::shared::CarrierShared;
use crate::rng::OsRng;

/// The buffers for compressing and decompressing are kept for the next turn up to this capacity, in bytes.
const KEPT: usize = 16 << 10;
/// Pause of a session that stands still because the process holds too much.
const STALL: Duration = Duration::from_millis(100);
/// Bytes that a session may hold in each direction however little memory is left.
const OWN: usize = RESERVED / 2;
/// A session whose unread data takes this many bytes receives nothing more then: a queue that grows may double.
const OWN_UNREAD: usize = OWN / 2;
/// Streams that a session may have then.
const OWN_STREAMS: usize = 16;
/// Without an answer for this long, something is said in the log.
const SILENCE: Duration = Duration::from_secs(3);
/// Longest burst of a session with a limited rate, in seconds of that rate.
const BURST_S: f64 = 0.05;

/// Why a session is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SessionFailure {
    /// Nothing has been heard for too long.
    Gone,
    /// The peer was started anew, and knows nothing of it.
    Forgotten,
    /// The peer's bytes are not what they must be.
    Wire(WireError),
    /// Another conversation has taken its place, or its time is over.
    Replaced,
}

/// One conversation.
#[derive(Debug)]
pub(super) struct KcpSession {
    shared: Arc<CarrierShared>,
    pub(super) number: u64,
    role: SmuxRole,
    peer: SocketAddr,
    /// The address of ours that the peer sends to, where there are several.
    pub(super) from: Option<IpAddr>,
    pub(super) arq: Arq,
    sending: Option<Sending>,
    decoder: FecDecoder,
    recovered: Vec<u8>,
    squeeze: Option<Box<Squeeze>>,
    /// A server's is made when the first byte tells the version.
    mux: Option<Mux>,
    /// Frames that wait for room in KCP, from `pending_at` on.
    pending: Vec<u8>,
    pending_at: usize,
    streams: BTreeMap<u32, Waiting>,
    /// Streams that the peer has opened, for the driver to take.
    pub(super) opened: Vec<StreamId>,
    failure: Option<SessionFailure>,
    began_at: Instant,
    /// A datagram of the peer has opened; a frame has been read.
    pub(super) heard_at: Option<Instant>,
    /// When something was sent after everything before had arrived.
    asked_at: Instant,
    has_frames: bool,
    told_silence: bool,
    /// Ends waited for this: the peer is known as adit.
    told_signals: bool,
    /// Without any datagram of the peer it is given up after this long.
    patience: Duration,
    /// Without an answer for this long it is doubted.
    silence: Duration,
    /// Datagrams from the peer's address that did not open.
    pub(super) unopened: u64,
    /// Readers, or the core's memory, stand in the way.
    stalled_until: Option<Instant>,
    is_full: bool,
    /// A writer was sent away because memory is short.
    is_starved: bool,
    tokens: Option<Tokens>,
    pub(super) counts: Counts,
}

/// Compression, and what has come out of it.
#[derive(Debug, Default)]
struct Squeeze {
    encoder: snappy::SnappyEncoder,
    decoder: snappy::SnappyDecoder,
    frames: Vec<u8>,
    plain: Vec<u8>,
    plain_at: usize,
}

/// Tasks that wait for a stream.
#[derive(Debug, Default)]
struct Waiting {
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Has no use for the stream but its end.
    watcher: Option<Waker>,
    /// When the peer ended it.
    ended_at: Option<Instant>,
}

/// Bytes that may be sent under a limited rate.
#[derive(Debug)]
struct Tokens {
    rate: f64,
    left: f64,
    at: Instant,
}

/// Counters that a driver adds to the metrics after a turn.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) malformed: u64,
    pub(super) parity: u64,
    pub(super) recovered: u64,
    pub(super) bad_parity: u64,
}

impl KcpSession {
    pub(super) fn new(
        shared: Arc<CarrierShared>,
        role: SmuxRole,
        conv: u32,
        peer: SocketAddr,
        now: Instant,
    ) -> Self {
        let mux = (role == SmuxRole::Client).then(|| {
            let version = shared.config.version.unwrap_or(SmuxVersion::V2);
            Mux::new(role, shared.mux(version), now)
        });
        let rate = shared.config.rate_limit;
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
        let tokens = rate.map(|rate| Tokens { rate: rate.get() as f64, left: 0.0, at: now });
        Self {
            number: shared.number(),
            role,
            peer,
            from: None,
            arq: shared.arq(conv, now),
            sending: shared.sending(now),
            decoder: shared.decoder(),
            recovered: Vec::new(),
            squeeze: shared.config.compression.then(Box::default),
            mux,
            pending: Vec::new(),
            pending_at: 0,
            streams: BTreeMap::new(),
            opened: Vec::new(),
            failure: None,
            began_at: now,
            heard_at: None,
            asked_at: now,
            has_frames: false,
            told_silence: false,
            told_signals: false,
            patience: shared.config.timeout,
            silence: SILENCE,
            unopened: 0,
            stalled_until: None,
            is_full: false,
            is_starved: false,
            tokens,
            counts: Counts::default(),
            shared,
        }
    }

    pub(super) fn mux_mut(&mut self) -> Option<&mut Mux> {
        self.mux.as_mut()
    }

    /// Opens a stream; only a client does.
    pub(super) fn open(&mut self) -> Result<StreamId, WireError> {
        let id = self.mux.as_mut().ok_or(WireError::Exhausted { what: "kcp session" })?.open()?;
        self.streams.insert(id.get(), Waiting::default());
        Ok(id)
    }

    /// Nobody waits for this stream any more.
    pub(super) fn forget(&mut self, id: StreamId) {
        self.streams.remove(&id.get());
    }

    pub(super) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn is_over(&self) -> bool {
        self.failure.is_some()
    }

    pub(super) fn failure(&self) -> Option<&SessionFailure> {
        self.failure.as_ref()
    }

    /// Ends it: every stream is told.
    pub(super) fn fail(&mut self, failure: SessionFailure) {
        self.failure.get_or_insert(failure);
        for waiting in self.streams.values_mut() {
            let all = [&mut waiting.reader, &mut waiting.writer, &mut waiting.watcher];
            all.into_iter().filter_map(Option::take).for_each(Waker::wake);
        }
    }

    pub(super) fn wait_readable(&mut self, id: StreamId, waker: &Waker) {
        set(&mut self.streams.entry(id.get()).or_default().reader, waker);
    }

    pub(super) fn wait_writable(&mut self, id: StreamId, waker: &Waker) {
        set(&mut self.streams.entry(id.get()).or_default().writer, waker);
        if let Some(mux) = &mut self.mux {
            mux.wait_writable(id);
        }
    }

    /// Whether a stream can carry nothing more.
    pub(super) fn is_lost(&self, id: StreamId) -> bool {
        self.is_over() || self.mux.as_ref().is_some_and(|mux| mux.is_reset(id))
    }

    /// `waker` is woken when a stream can carry nothing more, and may be before.
    pub(super) fn wait_lost(&mut self, id: StreamId, waker: &Waker) {
        set(&mut self.streams.entry(id.get()).or_default().watcher, waker);
    }

    /// Whether the peer has ended a stream for so long that it must be gone, as peers without half-close are.
    pub(super) fn answer_is_late(&self, id: StreamId, now: Instant) -> bool {
        let Some(wait) = self.shared.config.close_wait.filter(|_| !self.peer_signals()) else { return false };
        let ended_at = self.streams.get(&id.get()).and_then(|waiting| waiting.ended_at);
        ended_at.is_some_and(|ended_at| now.saturating_duration_since(ended_at) > wait)
    }

    /// Whether the peer is known as adit, which keeps reading after it has ended a stream.
    pub(super) fn peer_signals(&self) -> bool {
        self.mux.as_ref().is_some_and(Mux::peer_signals)
    }

    /// Wakes writers whose answers have become late.
    pub(super) fn wake_late(&mut self, now: Instant) {
        let Some(wait) = self.shared.config.close_wait.filter(|_| !self.peer_signals()) else { return };
        for waiting in self.streams.values_mut() {
            if waiting.ended_at.is_some_and(|ended_at| now.saturating_duration_since(ended_at) > wait) {
                waiting.writer.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Queues bytes under the additional cipher, which must see each byte once.
    pub(super) fn send_padded(&mut self, id: StreamId, bytes: &[u8], pads: &mut Qpp) -> usize {
        let Some(mux) = &mut self.mux else { return 0 };
        let mut block = [0; 4096];
        let mut sent = 0;
        while sent < bytes.len() {
            let len = (bytes.len() - sent).min(mux.room(id)).min(block.len());
            if len == 0 {
                break;
            }
            block[..len].copy_from_slice(&bytes[sent..sent + len]);
            pads.seal(&mut block[..len]);
            sent += mux.send(id, &block[..len]);
        }
        sent
    }

    /// Whether the driver has something to do for this session now.
    pub(super) fn has_work(&self) -> bool {
        self.is_full || self.mux.as_ref().is_some_and(Mux::has_output)
    }

    /// Whether something that was to be sent has not arrived, as far as is known, and the peer is there to take it.
    pub(super) fn is_unflushed(&self, now: Instant) -> bool {
        let is_there = self.heard_at.is_some_and(|at| now.saturating_duration_since(at) < SILENCE);
        let is_empty = self.pending_at == self.pending.len()
            && self.mux.as_ref().is_none_or(|mux| !mux.has_output())
            && self.arq.is_flushed();
        is_there && !is_empty && !self.is_over()
    }

    /// Bytes that it is charged for: what it holds, with what keeping that costs, and no less than what is its own.
    pub(super) fn charge(&self) -> usize {
        let plain = self.squeeze.as_ref().map_or(0, |squeeze| squeeze.plain.capacity());
        let sending = self.mux.as_ref().map_or(0, Mux::sending_footprint);
        let receiving = self.mux.as_ref().map_or(0, Mux::footprint) - sending;
        let receiving = receiving + self.arq.receiving_footprint() + self.decoder.held() + plain;
        self.sending_footprint().max(OWN) + receiving.max(OWN)
    }

    /// Bytes that sending takes.
    fn sending_footprint(&self) -> usize {
        let frames = self.squeeze.as_ref().map_or(0, |squeeze| squeeze.frames.capacity());
        let mux = self.mux.as_ref().map_or(0, Mux::sending_footprint);
        self.arq.sending_footprint() + mux + self.pending.capacity() + frames
    }

    /// Upper bound of the memory that a byte takes when it is queued for sending: the queue that it goes to may have
    /// doubled.
    pub(super) const COST_PER_BYTE: usize = 2;

    /// Bytes that may be queued for sending although the process has no memory left.
    pub(super) fn sending_reserve(&self) -> usize {
        OWN.saturating_sub(self.sending_footprint()) / Self::COST_PER_BYTE
    }

    /// Whether writers are to wait although there is room: the process has none.
    pub(super) fn is_throttled(&self, is_short: bool) -> bool {
        is_short && self.sending_reserve() == 0
    }

    /// A writer waits until the process has memory again.
    pub(super) fn starve(&mut self, id: StreamId, waker: &Waker) {
        self.is_starved = true;
        self.wait_writable(id, waker);
    }

    /// Decides what is taken of what comes: everything, unless the process has no memory left or the peer's segments
    /// are larger than any program's. Even then each session goes on, by one segment at a time, as long as its readers
    /// do.
    fn admit(&mut self, is_short: bool) {
        let unread = self.mux.as_ref().map_or(0, Mux::receiving_footprint);
        let plain = self.squeeze.as_ref().map_or(0, |squeeze| squeeze.plain.len() - squeeze.plain_at);
        let is_large = self.arq.receiving_footprint() > self.shared.most_received();
        let admission = match is_short || is_large {
            false => Admission::All,
            true if self.arq.readable_footprint() + unread + plain < OWN_UNREAD => Admission::Next,
            true => Admission::Nothing,
        };
        if admission != Admission::All {
            // Repairing others takes memory too.
            self.decoder.clear();
        }
        self.arq.set_admission(admission);
    }

    fn held(&self) -> usize {
        self.arq.held() + self.mux.as_ref().map_or(0, Mux::held)
    }

    /// Takes what was inside of a datagram; `is_short` says whether the process has little memory left.
    pub(super) fn handle_datagram(&mut self, payload: &[u8], now: Instant, is_short: bool) {
        self.heard_at = Some(now);
        self.admit(is_short);
        match self.decoder.handle(payload) {
            Ok(FecPacketKind::Data(bytes)) => {
                self.counts.received += as_u64(bytes.len());
                let result = self.arq.handle_datagram(bytes, Arrival::Received, now);
                self.counts.malformed += u64::from(result.is_err());
            }
            Ok(FecPacketKind::Parity) => self.counts.parity += 1,
            Ok(FecPacketKind::OutOfBand { .. }) => {}
            Err(_) => self.counts.bad_parity += 1,
        }
        while self.decoder.poll_recovered(&mut self.recovered) {
            self.counts.recovered += 1;
            let result = self.arq.handle_datagram(&self.recovered, Arrival::Recovered, now);
            self.counts.bad_parity += u64::from(result.is_err());
            self.recovered.clear();
        }
    }

    /// Lets everything inside go on as far as it can; `is_short` as for [`KcpSession::handle_datagram`].
    pub(super) fn step(&mut self, now: Instant, is_short: bool) {
        if self.is_over() {
            return;
        }
        self.admit(is_short);
        if self.role == SmuxRole::Client && self.arq.is_forgotten() {
            return self.fail(SessionFailure::Forgotten);
        }
        if let Err(error) = self.read(now, !is_short) {
            return self.fail(SessionFailure::Wire(error));
        }
        let timeout = self.shared.config.timeout;
        if self.is_gone(now) {
            return self.fail(SessionFailure::Gone);
        }
        match &mut self.mux {
            Some(mux) => {
                mux.handle_timeout(now);
                if mux.is_gone() {
                    return self.fail(SessionFailure::Gone);
                }
            }
            None if now.saturating_duration_since(self.began_at) > timeout => {
                return self.fail(SessionFailure::Gone);
            }
            None => {}
        }
        if let (Some(mux), Some(round_trip)) = (&mut self.mux, self.arq.round_trip()) {
            mux.set_round_trip(round_trip);
        }
        self.dispatch(now);
        if !self.told_signals && self.peer_signals() {
            self.told_signals = true;
            let readers = self.streams.values_mut().filter_map(|waiting| waiting.reader.take());
            readers.for_each(Waker::wake);
        }
        if is_short {
            self.refuse_streams();
        }
        if is_short {
            self.release_sent();
        }
        if self.is_starved && self.is_throttled(is_short) {
            self.stalled_until = Some(now + STALL);
        } else if std::mem::take(&mut self.is_starved) {
            let writers = self.streams.values_mut().filter_map(|waiting| waiting.writer.take());
            writers.for_each(Waker::wake);
        }
    }

    /// Whether the peer has acknowledged something that was sent to it.
    pub(super) fn is_proven(&self) -> bool {
        self.arq.is_acknowledged()
    }

    /// A session that has heard nothing of its peer so far is given up after `patience`, at most the timeout.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = self.patience.min(patience);
    }

    /// The same for one whose packets go by way of others: silence means less there.
    pub(super) fn expect_detours(&mut self, patience: Duration) {
        self.set_patience(patience);
        self.silence = patience;
    }

    /// Whether the peer takes nothing of what was sent, and has not been heard for the timeout.
    fn is_gone(&self, now: Instant) -> bool {
        !self.arq.is_flushed() && now >= self.gone_at()
    }

    /// When the peer is given up, unless it is heard before. Data sent last has had its time by then: with signs of
    /// life every now and then, it was sent while the timeout ran.
    fn gone_at(&self) -> Instant {
        let Kcp { timeout, keep_alive, .. } = self.shared.config;
        let Some(heard_at) = self.heard_at else { return self.began_at + self.patience };
        let had_time = self.asked_at + timeout.saturating_sub(keep_alive).max(SILENCE.min(timeout));
        had_time.max(heard_at + timeout)
    }

    /// Closes what the peer has opened beyond a few streams.
    fn refuse_streams(&mut self) {
        while self.streams.len() > OWN_STREAMS
            && let Some(id) = self.opened.pop()
        {
            self.streams.remove(&id.get());
            self.mux.iter_mut().for_each(|mux| mux.close(id));
        }
    }

    /// From KCP to the streams, as far as they take it.
    fn read(&mut self, now: Instant, may_hold: bool) -> Result<(), WireError> {
        self.stalled_until = None;
        self.is_full = false;
        loop {
            if let Some(squeeze) = &mut self.squeeze
                && squeeze.plain_at < squeeze.plain.len()
            {
                let plain = &squeeze.plain[squeeze.plain_at..];
                let mux = ready(&mut self.mux, plain, &self.shared, now)?;
                let is_open = may_hold || mux.receiving_footprint() < OWN_UNREAD;
                let taken = if is_open { mux.handle_input(plain)? } else { 0 };
                self.has_frames = true;
                squeeze.plain_at += taken;
                if squeeze.plain_at < squeeze.plain.len() {
                    self.stall(now, may_hold);
                    return Ok(());
                }
                squeeze.plain.clear();
                squeeze.plain_at = 0;
            }
            let bytes = self.arq.peek();
            if bytes.is_empty() {
                return Ok(());
            }
            let taken = if let Some(squeeze) = &mut self.squeeze {
                squeeze.decoder.decode(bytes, &mut squeeze.plain)?
            } else {
                let mux = ready(&mut self.mux, bytes, &self.shared, now)?;
                self.has_frames = true;
                if may_hold || mux.receiving_footprint() < OWN_UNREAD { mux.handle_input(bytes)? } else { 0 }
            };
            if taken == 0 {
                self.stall(now, may_hold);
                return Ok(());
            }
            self.arq.consume(taken);
        }
    }

    fn stall(&mut self, now: Instant, may_hold: bool) {
        self.is_full = true;
        self.stalled_until = (!may_hold).then_some(now + STALL);
    }

    /// Wakes the tasks that wait.
    fn dispatch(&mut self, now: Instant) {
        let Some(mux) = &mut self.mux else { return };
        while let Some(event) = mux.poll_event() {
            match event {
                SmuxEvent::Opened(id) if self.role == SmuxRole::Client => mux.close(id),
                SmuxEvent::Opened(id) => {
                    self.streams.insert(id.get(), Waiting::default());
                    self.opened.push(id);
                }
                SmuxEvent::Readable(id) => {
                    let has_ended = mux.has_ended(id);
                    let Some(waiting) = self.streams.get_mut(&id.get()) else { continue };
                    if has_ended {
                        waiting.ended_at.get_or_insert(now);
                    }
                    let both = [&mut waiting.reader, &mut waiting.watcher];
                    both.into_iter().filter_map(Option::take).for_each(Waker::wake);
                }
                SmuxEvent::Writable(id) => {
                    let waiting = self.streams.get_mut(&id.get());
                    waiting.and_then(|waiting| waiting.writer.take()).into_iter().for_each(Waker::wake);
                }
            }
        }
    }

    /// From the streams to KCP, as far as that has room.
    fn write(&mut self) {
        let Some(mux) = &mut self.mux else { return };
        loop {
            if self.pending_at == self.pending.len() {
                self.pending.clear();
                self.pending_at = 0;
                if self.arq.room() == 0 {
                    return;
                }
                let has_more = match &mut self.squeeze {
                    None => mux.poll_transmit(&mut self.pending, 1),
                    Some(squeeze) => {
                        squeeze.frames.clear();
                        let has_more = mux.poll_transmit(&mut squeeze.frames, 1);
                        squeeze.encoder.encode(&squeeze.frames, &mut self.pending);
                        has_more
                    }
                };
                if !has_more {
                    return;
                }
            }
            let sent = self.arq.send(&self.pending[self.pending_at..]);
            self.pending_at += sent;
            self.counts.sent += as_u64(sent);
            if sent == 0 {
                return;
            }
        }
    }

    /// Puts up to `most` data packets, with their parity, into `out`; true if there may be more.
    pub(super) fn transmit(&mut self, now: Instant, most: usize, out: &mut DatagramOutbox) -> bool {
        if self.is_over() {
            return false;
        }
        if self.arq.is_flushed() {
            self.asked_at = now;
        }
        let (head, _) = self.shared.room();
        for _ in 0..most {
            let seen = self.arq.seen();
            let theirs = self.decoder.shards();
            let fec = self.sending.as_mut().map_or(0, |sending| sending.head_len(theirs, seen, now));
            self.arq.set_mtu(self.shared.content_len() - fec);
            if let Some(tokens) = &mut self.tokens
                && !tokens.refill(now)
            {
                self.dispatch(now);
                return false;
            }
            self.write();
            let start = out.block.len();
            out.block.resize(start + head + fec, 0);
            if !self.arq.poll_transmit(now, &mut out.block) {
                out.block.truncate(start);
                self.dispatch(now);
                return false;
            }
            self.finish(start, fec, now, out);
        }
        self.dispatch(now);
        true
    }

    /// Makes a datagram of what `out` ends with from `start` on, with a header of `fec` bytes for parity, and of the
    /// parity that is due.
    fn finish(&mut self, start: usize, fec: usize, now: Instant, out: &mut DatagramOutbox) {
        let (head, tail) = self.shared.room();
        let content = start + head;
        let is_long = out.block.len() - content > self.shared.content_len();
        if is_long {
            // It was cut before there was parity, and goes without.
            out.block.drain(content..content + fec);
        }
        let mut sending = self.sending.as_mut().filter(|_| fec > 0 && !is_long);
        if let Some(sending) = &mut sending {
            sending.seal(&mut out.block[content..], now);
        }
        let mut spent = out.block.len() - start;
        let (to, from) = (self.peer, self.from);
        seal(&self.shared, start, tail, to, from, out);
        if let Some(sending) = &mut sending {
            loop {
                let start = out.block.len();
                out.block.resize(start + head, 0);
                if !sending.poll_parity(&mut out.block) {
                    out.block.truncate(start);
                    break;
                }
                spent += out.block.len() - start;
                seal(&self.shared, start, tail, to, from, out);
            }
        }
        if let Some(tokens) = &mut self.tokens {
            tokens.spend(spent);
        }
    }

    /// When the driver has to come back.
    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let silence = (self.heard_at.is_none() && !self.told_silence).then(|| self.began_at + SILENCE);
        let first = self.mux.is_none().then(|| self.began_at + self.shared.config.timeout);
        let arq = match &self.tokens {
            Some(tokens) => self.arq.poll_timeout().max(tokens.ready_at(now)),
            None => self.arq.poll_timeout(),
        };
        let mux = self.mux.as_ref().and_then(Mux::poll_timeout);
        let gone = (!self.arq.is_flushed()).then(|| self.gone_at());
        let tokens = self.tokens.as_ref().filter(|_| self.has_work()).and_then(|t| t.ready_at(now));
        [silence, first, arq, mux, gone, self.stalled_until, tokens].into_iter().flatten().min()
    }

    /// Once: that nothing has been heard for long enough to say so.
    pub(super) fn takes_silence(&mut self, now: Instant) -> bool {
        let is_silent =
            self.heard_at.is_none() && now.saturating_duration_since(self.began_at) >= self.silence;
        is_silent && !std::mem::replace(&mut self.told_silence, true)
    }

    /// Whether something was sent and nothing has come back for so long that a fresh session is worth a try.
    pub(super) fn is_doubtful(&self, now: Instant) -> bool {
        let quiet_since = self.heard_at.unwrap_or(self.began_at).max(self.asked_at);
        !self.arq.is_flushed() && now.saturating_duration_since(quiet_since) >= self.silence
    }

    /// Whether datagrams have opened, but nothing inside of them made sense to the multiplexer yet.
    pub(super) fn is_mute(&self) -> bool {
        self.heard_at.is_some() && !self.has_frames
    }

    /// Frees the buffers of frames that have been sent.
    fn release_sent(&mut self) {
        if self.pending_at == self.pending.len() {
            (self.pending, self.pending_at) = (Vec::new(), 0);
        }
        self.squeeze.iter_mut().for_each(|squeeze| squeeze.frames = Vec::new());
    }

    /// Gives back what a session at rest does not need.
    pub(super) fn rest(&mut self) {
        if self.pending.is_empty() && self.pending.capacity() > KEPT {
            self.pending = Vec::new();
        }
        if self.streams.is_empty()
            && let Some(squeeze) = &mut self.squeeze
        {
            squeeze.encoder.rest();
            squeeze.frames = Vec::new();
            if squeeze.plain.is_empty() {
                squeeze.plain = Vec::new();
            }
        }
    }

    /// The session as status shows it.
    pub(super) fn status(&self) -> SessionStatus {
        let stats = self.arq.stats();
        let estimate = self.arq.estimate();
        let (under_way, send_window) = self.arq.under_way();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, and is never negative"
        )]
        let (rate, loss) =
            estimate.map_or((0, 0), |path| (path.rate as u64, (path.loss * 1000.0).round() as u32));
        SessionStatus {
            peer: self.peer.to_string(),
            streams: self.streams.len(),
            rtt_us: self.arq.round_trip().map_or(0, |rtt| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX)),
            min_rtt_us: estimate.map_or(0, |path| path.min_rtt_us),
            rate,
            loss_permille: loss,
            under_way,
            send_window,
            recv_window: self.arq.recv_window(),
            stream_window: self.mux.as_ref().map_or(0, Mux::widest_window),
            sent: stats.sent,
            sent_again: stats.sent_again,
            parity: self.sending.as_ref().map(Sending::level).filter(|(_, parity)| *parity > 0),
            held: self.held(),
            limit: self.limit().into(),
        }
    }

    /// The limit that keeps it from sending more.
    fn limit(&self) -> &'static str {
        if self.tokens.as_ref().is_some_and(|tokens| tokens.left <= 0.0) {
            return "rate-limit";
        }
        match self.arq.limit() {
            Limit::Path => "path",
            Limit::Congestion => "congestion-window",
            Limit::SendWindow => "send-window",
            Limit::RemoteWindow => "peer-window",
            Limit::Source if self.mux.as_ref().is_some_and(|mux| mux.held_back() > 0) => "peer-stream-window",
            Limit::Source => "source",
        }
    }
}

impl Tokens {
    /// Whether something may be sent.
    fn refill(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left = (self.left + passed * self.rate).min((self.rate * BURST_S).max(1500.0));
        self.left > 0.0
    }

    fn spend(&mut self, bytes: usize) {
        #[expect(clippy::cast_precision_loss, reason = "a datagram is short")]
        let bytes = bytes as f64;
        self.left -= bytes;
    }

    fn ready_at(&self, now: Instant) -> Option<Instant> {
        (self.left <= 0.0).then(|| now + Duration::from_secs_f64((1.0 - self.left) / self.rate))
    }
}

/// The multiplexer, made now if the peer's first byte is about to be read.
fn ready<'m>(
    mux: &'m mut Option<Mux>,
    first: &[u8],
    shared: &CarrierShared,
    now: Instant,
) -> Result<&'m mut Mux, WireError> {
    if mux.is_none() {
        let spoken = match first.first() {
            Some(1) => SmuxVersion::V1,
            Some(2) => SmuxVersion::V2,
            other => {
                let got = other.copied().unwrap_or_default().into();
                return Err(WireError::Malformed { what: "smux version", got });
            }
        };
        // If another version is set, its own reader reports that.
        let version = shared.config.version.unwrap_or(spoken);
        *mux = Some(Mux::new(SmuxRole::Server, shared.mux(version), now));
    }
    Ok(mux.as_mut().expect("just made"))
}

/// Closes the datagram that begins at `start`.
fn seal(
    shared: &CarrierShared,
    start: usize,
    tail: usize,
    to: SocketAddr,
    from: Option<IpAddr>,
    out: &mut DatagramOutbox,
) {
    let len = out.block.len();
    out.block.resize(len + tail, 0);
    shared.crypt.seal(&mut out.block[start..], &mut OsRng);
    out.push(start, to, from);
}

fn set(slot: &mut Option<Waker>, waker: &Waker) {
    if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
        *slot = Some(waker.clone());
    }
}

pub(super) fn as_u64(len: usize) -> u64 {
    u64::try_from(len).expect("at most 64 bits")
}

/// The conversation, and the segment's number, that a payload shows; nothing for parity.
pub(super) fn conversation(payload: &[u8]) -> Option<(u32, u32)> {
    let at = |at: usize| {
        let bytes = payload.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let kind = payload.get(4..)?.first_chunk::<2>()?;
    let start = match u16::from_le_bytes(*kind) {
        fec::TYPE_DATA => fec::HEADER_LEN,
        fec::TYPE_PARITY | fec::TYPE_OUT_OF_BAND => return None,
        _ => 0,
    };
    payload.get(start..start + adit_proto::kcp::arq::SEGMENT_HEADER_LEN)?;
    Some((at(start)?, at(start + 12)?))
}

/// Fuzz target. First byte: the settings; the rest: pieces of a length byte and that many bytes each, that are datagrams,
/// or bytes of the stream inside of them. For any bytes, what a session holds stays bounded, and a failed one stays
/// failed.
#[doc(hidden)]
pub fn fuzz_kcp_session(data: &[u8], epoch: Instant) {
    thread_local! {
        static SHARED: RefCell<BTreeMap<u8, Arc<CarrierShared>>> = RefCell::default();
    }
    let Some((&flags, mut rest)) = data.split_first() else { return };
    let shared =
        SHARED.with_borrow_mut(|all| all.entry(flags & 0xf).or_insert_with(|| fuzz_shared(flags)).clone());
    let (is_stream, is_short) = (flags & 0x10 != 0, flags & 0x20 != 0);
    let mut session =
        KcpSession::new(shared, SmuxRole::Server, 1, SocketAddr::from(([192, 0, 2, 1], 1)), epoch);
    let (mut now, mut number, mut outbox) = (epoch, 0, DatagramOutbox::default());
    while let Some((&len, more)) = rest.split_first() {
        let (piece, after) = more.split_at(more.len().min(len.into()));
        rest = after;
        let payload = if is_stream { fuzz_segment(&mut number, piece) } else { piece.to_vec() };
        let was_over = session.is_over();
        session.handle_datagram(&payload, now, is_short);
        session.step(now, is_short);
        session.transmit(now, 8, &mut outbox);
        outbox.clear();
        session.opened.clear();
        assert!(session.is_over() || !was_over);
        assert!(session.charge() <= RESERVED.max(64 * data.len() + (1 << 20)), "{}", session.charge());
        now += Duration::from_millis(len.into());
    }
}

fn fuzz_shared(flags: u8) -> Arc<CarrierShared> {
    use adit_model::{Kcp, KcpParity, Secret};
    let mut config = Kcp::new(Secret::new("fuzz"), adit_proto::kcp::crypt::KcpMethod::Null);
    config.compression = flags & 1 != 0;
    config.version = [None, Some(SmuxVersion::V1), Some(SmuxVersion::V2), None][usize::from(flags >> 1 & 3)];
    if flags & 8 == 0 {
        config.parity = KcpParity::Off;
    }
    Arc::new(CarrierShared::new(&"fuzz".into(), &config))
}

/// The next segment of the stream.
fn fuzz_segment(number: &mut u32, piece: &[u8]) -> Vec<u8> {
    let mut out = Vec::from(1_u32.to_le_bytes());
    // PUSH, no fragment, a window of 128.
    out.extend([81, 0, 128, 0, 0, 0, 0, 0]);
    out.extend(number.to_le_bytes());
    out.extend([0; 4]);
    out.extend(u32::try_from(piece.len()).unwrap_or(0).to_le_bytes());
    out.extend(piece);
    *number = number.wrapping_add(1);
    out
}
