//! KCP: a reliable byte stream over datagrams, as kcp-go speaks it.
//!
//! ```text
//! 0 conv u32 | 4 cmd u8 | 5 frg u8 | 6 wnd u16 | 8 ts u32 | 12 sn u32 | 16 una u32 | 20 len u32 | 24 data
//! ```
//!
//! A datagram holds one or more segments, back to back. There is no handshake and no end: the first PUSH opens, silence
//! closes, and other needs are met on top. `cmd` is 81 PUSH, 82 ACK (with the `sn` and `ts` of the PUSH), 83 WASK
//! (what is your window?) or 84 WINS (nothing but the header). `wnd` is the free receive window in segments, `una` the
//! number below which everything has arrived. `sn` starts at 0 and wraps.
//!
//! # The order of calls
//!
//! Give datagrams to [`Arq::handle_datagram`], bytes to [`Arq::send`], and read with [`Arq::peek`] and
//! [`Arq::consume`]. After any of these, and when [`Arq::poll_timeout`] has passed, call [`Arq::poll_transmit`] until it
//! returns false.
//!
//! # What differs from kcp-go, unseen by the peer
//!
//! kcp-go walks all of its window at each flush; here only holes and, about once per timeout, the window. New data
//! leaves when the window allows and not at a flush. A segment may be sent again quickly more than once, since only
//! acknowledgements of segments that were sent after it count (as in kcp-go before 5.6.27). With [`ArqSettings::tuning`] a
//! [`Model`] bounds and paces what is under way, on top of the windows.

mod congestion;
mod receiver;
mod rto;
mod segment;
mod sender;

use std::time::{Duration, Instant};

use self::congestion::Congestion;
use self::receiver::ArqReceiver;
use self::rto::Rto;
use self::segment::{ACK, ASK, PUSH, TELL, before};
use self::sender::{ArqSender, Delivery, Loss, Outgoing, Overtaken, Sent};
use super::fec::FecCounters;
use crate::tune::{AckSample, Model, PathEstimate};
use crate::wire::WireError;

pub use self::segment::{ArqSegment, SEGMENT_HEADER_LEN};

/// Window that the peer is assumed to have before it tells, in segments.
const INITIAL_REMOTE_WINDOW: u16 = 32;

/// First wait before a closed window is asked for (kcp-go since 5.6.43).
const FIRST_PROBE_US: u64 = 500_000;

/// Longest such wait.
const MAX_PROBE_US: u64 = 120_000_000;

/// Age of the first acknowledgement beyond which no datagram is so late that it was sent before.
const LATE_US: u64 = 2_000_000;

/// Without a word for this long a peer that does not acknowledge is asked whether it is there.
const SILENT_US: u64 = 1_000_000;

/// Time over which what arrives is counted, at the least.
const LEAST_GROWTH_US: u64 = 20_000;

/// The same while the round trip is not known.
const UNKNOWN_RTT_US: u64 = 100_000;

/// Time without data after which buffers are given back: bulk pauses between two acknowledgements, and between two reads.
const REST_US: u64 = 1_000_000;

/// Transmissions of one segment after which kcp-go calls a link dead.
const DEAD_LINK: u32 = 20;

/// Bytes that a kept segment costs besides its data, at most.
const PER_SEGMENT: usize = 128;

/// Round trips from a segment that is lost until what follows it may leave the window.
const LOSS_ROUND_TRIPS: u64 = 2;

/// Bytes that may wait in the queue: beyond, interactive streams above would wait behind bulk.
const MAX_QUEUED: usize = 64 << 10;

/// The queue of a paced session holds what leaves in this time, so that it neither runs dry nor delays.
const QUEUED_S: f64 = 0.002;

/// Settings of a session. The names of kcp-go's `nodelay` call are in parentheses.
#[derive(Debug, Clone)]
pub struct ArqSettings {
    /// Timeouts of at least 30 ms instead of 100 that grow more slowly (`nodelay`).
    pub nodelay: bool,
    /// Longest delay of acknowledgements, and the least margin of a timeout; 10 ms to 5 s (`interval`).
    pub interval: Duration,
    /// Acknowledgements of later segments after which one is sent again; 0 is never (`resend`).
    pub resend: u32,
    /// Obey a congestion window (not `nc`).
    pub congestion: bool,
    /// Segments under way, at most.
    pub send_window: u16,
    /// Segments kept for the reader, at most; as many more may wait for gaps before them.
    pub recv_window: u16,
    /// Upper bound to which [`ArqSettings::recv_window`] grows while the reader keeps up with the data; less is no growth.
    pub max_recv_window: u16,
    /// Largest number of KCP bytes in a datagram.
    pub mtu: usize,
    /// Fill up the last segment of the queue with the next write.
    pub stream: bool,
    /// Acknowledge after each datagram.
    pub ack_no_delay: bool,
    /// A bound on the delay of acknowledgements below [`ArqSettings::interval`]; peers do not mind.
    pub ack_delay: Duration,
    /// Bound and pace what is under way by a model of the path, with this many bytes at most.
    pub tuning: Option<u64>,
    /// Datagrams go by a stream that loses none, and may stand still for seconds: timeouts are 5 s at least, nothing is
    /// sent twice, and what is due within some milliseconds leaves together. A new stream is announced by [`Arq::handle_new_stream`].
    pub steady: bool,
}

impl Default for ArqSettings {
    /// The values that kcp-go starts from.
    fn default() -> Self {
        Self {
            nodelay: false,
            interval: Duration::from_millis(100),
            resend: 0,
            congestion: true,
            send_window: 32,
            recv_window: 32,
            max_recv_window: 0,
            mtu: 1400,
            stream: true,
            ack_no_delay: false,
            ack_delay: Duration::from_secs(5),
            tuning: None,
            steady: false,
        }
    }
}

/// Whether a datagram came over the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It did.
    Received,
    /// It was computed from parity: late, so that its window and its times mean nothing.
    Recovered,
}

/// The data that a receiver admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// All that the window allows.
    All,
    /// The segment that is next in order alone, and the peer is given a narrow window.
    Next,
    /// Nothing, and the peer is told so.
    Nothing,
}

/// The limit that keeps a conversation from sending more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// There is nothing to send.
    Source,
    /// The model of the path.
    Path,
    /// KCP's own congestion window.
    Congestion,
    /// The window that was set here.
    SendWindow,
    /// The window that the peer tells.
    RemoteWindow,
}

/// Counters of a session; all only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// PUSH segments sent, repetitions included.
    pub sent: u64,
    /// Repetitions among them.
    pub sent_again: u64,
    /// Repetitions because nothing had been heard in time.
    pub timed_out: u64,
    /// Segments that arrived, of every kind.
    pub received: u64,
    /// PUSH segments that arrived more than once.
    pub repeated: u64,
    /// Datagrams that were refused.
    pub malformed: u64,
}

/// One conversation.
#[derive(Debug)]
pub struct Arq {
    conv: u32,
    settings: ArqSettings,
    /// KCP bytes of a datagram, and how many of them are data at most.
    mtu: usize,
    mss: usize,
    epoch: Instant,
    sender: ArqSender,
    receiver: ArqReceiver,
    rto: Rto,
    congestion: Congestion,
    model: Option<Model>,
    growth: Growth,
    memory: Memory,
    remote_window: u16,
    /// The widest that the peer has told.
    widest_window: u16,
    /// When the oldest pending acknowledgement has to leave.
    ack_at_us: Option<u64>,
    probe: Probe,
    /// When buffers are given back, if nothing comes.
    rest_at_us: Option<u64>,
    dead: bool,
    stats: Stats,
    /// `(sn, ts)` of the ACKs of one datagram.
    acked: Vec<(u32, u32)>,
}

/// The facts that the receive window follows.
#[derive(Debug, Default)]
struct Growth {
    next_us: u64,
    /// Segments that had arrived a round trip ago.
    seen: u64,
}

/// Whether the peer still knows the conversation.
#[derive(Debug, Default)]
struct Memory {
    /// When it first acknowledged something.
    began_us: Option<u64>,
    heard_us: u64,
    /// Datagrams in a row that say that nothing has ever arrived.
    denials: u32,
}

/// Questions about windows.
#[derive(Debug, Default)]
struct Probe {
    wait_us: u64,
    at_us: Option<u64>,
    ask: bool,
    tell: bool,
}

impl Arq {
    /// A conversation whose clock starts at `epoch`.
    ///
    /// # Panics
    /// If [`ArqSettings::mtu`] leaves no room for data.
    pub fn new(conv: u32, settings: ArqSettings, epoch: Instant) -> Self {
        assert!(settings.mtu > SEGMENT_HEADER_LEN, "mtu {} leaves no room for data", settings.mtu);
        let interval = settings.interval.clamp(Duration::from_millis(10), Duration::from_secs(5));
        let interval_ms = u32::try_from(interval.as_millis()).expect("5 s at most");
        Self {
            conv,
            mtu: settings.mtu,
            mss: settings.mtu - SEGMENT_HEADER_LEN,
            epoch,
            sender: ArqSender::new(),
            receiver: ArqReceiver::new(settings.recv_window),
            rto: if settings.steady {
                Rto::steady(interval_ms)
            } else {
                Rto::new(settings.nodelay, interval_ms, settings.tuning.is_some() && settings.resend > 0)
            },
            congestion: Congestion::new(),
            model: settings.tuning.map(if settings.steady { Model::batched } else { Model::new }),
            growth: Growth::default(),
            memory: Memory::default(),
            remote_window: INITIAL_REMOTE_WINDOW,
            widest_window: 0,
            ack_at_us: None,
            probe: Probe::default(),
            rest_at_us: None,
            dead: false,
            stats: Stats::default(),
            acked: Vec::new(),
            settings: ArqSettings { interval, ..settings },
        }
    }

    /// The conversation's number.
    pub fn conv(&self) -> u32 {
        self.conv
    }

    /// Takes the KCP bytes of one datagram. Segments before one that is wrong are taken.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for another conversation or a command that does not exist, [`WireError::Truncated`].
    /// The conversation goes on; what was wrong is to be dropped.
    pub fn handle_datagram(&mut self, bytes: &[u8], arrival: Arrival, now: Instant) -> Result<(), WireError> {
        let now_us = self.clock(now);
        let una = self.sender.una();
        let mut delivery = Delivery { in_order: self.sender.is_whole(), ..Delivery::default() };
        let mut last_ack = None;
        self.acked.clear();
        let mut rest = bytes;
        let mut result = Ok(());
        while !rest.is_empty() {
            let parsed = ArqSegment::parse(rest).and_then(|(segment, rest)| self.check(segment, rest));
            match parsed {
                Ok((segment, more)) => {
                    self.handle_segment(segment, arrival, &mut delivery, &mut last_ack);
                    rest = more;
                }
                Err(error) => {
                    self.stats.malformed += 1;
                    result = Err(error);
                    break;
                }
            }
        }
        if result.is_ok() && arrival == Arrival::Received {
            self.sample(now_us, last_ack, &delivery);
        } else if let Some(model) = &mut self.model {
            model.handle_ack(ack_sample(now_us, &delivery, None, &self.sender));
        }
        if arrival == Arrival::Received {
            self.memory.heard_us = now_us;
            self.judge_memory(now_us, bytes);
        }
        self.find_losses(una);
        self.grow_window(now_us);
        self.schedule_acks(now_us);
        result
    }

    fn check<'a>(
        &self,
        segment: ArqSegment<'a>,
        rest: &'a [u8],
    ) -> Result<(ArqSegment<'a>, &'a [u8]), WireError> {
        if segment.conv == self.conv {
            return Ok((segment, rest));
        }
        Err(WireError::Malformed { what: "kcp conversation", got: segment.conv.into() })
    }

    fn handle_segment(
        &mut self,
        segment: ArqSegment<'_>,
        arrival: Arrival,
        delivery: &mut Delivery,
        last_ack: &mut Option<(u32, Option<Sent>)>,
    ) {
        self.stats.received += 1;
        if arrival == Arrival::Received {
            self.remote_window = segment.wnd;
            if segment.wnd > self.widest_window {
                self.widest_window = segment.wnd;
                self.model.iter_mut().for_each(Model::handle_relief);
            }
        }
        match segment.cmd {
            ACK => {
                // Before `una`, which may take the segment away with its times.
                let (is_news, sent) = self.sender.acknowledge(segment.sn, segment.ts, delivery);
                // One that is told again overtakes nothing again.
                if is_news {
                    self.acked.push((segment.sn, segment.ts));
                }
                *last_ack = Some((segment.ts, sent));
            }
            PUSH => self.receiver.push(segment.sn, segment.ts, segment.data),
            ASK => self.probe.tell = true,
            _ => {}
        }
        self.sender.advance(segment.una, delivery);
    }

    /// A round trip, from the last ACK of a datagram; with the time that was kept, if it is known which transmission
    /// was meant, else from the millisecond clock.
    fn sample(&mut self, now_us: u64, last_ack: Option<(u32, Option<Sent>)>, delivery: &Delivery) {
        let mut precise = None;
        if let Some((ts, sent)) = last_ack {
            let rtt_ms = millis(now_us).wrapping_sub(ts).cast_signed();
            if let Ok(rtt_ms) = u32::try_from(rtt_ms) {
                let oldest_ms =
                    delivery.oldest_us.map_or(0, |at_us| millis(now_us).wrapping_sub(millis(at_us)));
                self.rto.note_delay(oldest_ms.saturating_sub(rtt_ms));
                self.rto.sample(rtt_ms);
                // The acknowledged transmission is known by its time alone: the clock is a millisecond wide.
                precise = Some(u64::from(rtt_ms + 1) * 1000);
            }
            precise = sent.map(|sent| now_us.saturating_sub(sent.at_us)).or(precise);
        }
        if let Some(model) = &mut self.model {
            model.handle_ack(ack_sample(now_us, delivery, precise, &self.sender));
        }
    }

    fn find_losses(&mut self, una: u32) {
        let mss = u32::try_from(self.mss).unwrap_or(u32::MAX);
        if self.sender.una() != una && self.settings.congestion {
            self.congestion.advance(mss, self.remote_window.into());
        }
        let limit = if self.settings.resend == 0 { u32::MAX } else { self.settings.resend };
        let span = u32::try_from(self.sender.span()).unwrap_or(u32::MAX);
        let overtaken = self.sender.overtake(&mut self.acked, limit);
        if overtaken.bytes > 0 && self.settings.congestion {
            self.congestion.overtaken(span, self.settings.resend, mss);
        }
        // With nothing new to send one overtaking is enough, even if `resend` asks for more. A closed window counts as
        // nothing to send in kcp-go; under a model it would only repeat segments that are out of order.
        let is_closed = self.model.is_none() && self.sender.span() >= usize::from(self.window());
        let hurried = if self.sender.queue_len() == 0 || is_closed {
            self.sender.hurry()
        } else {
            Overtaken::default()
        };
        if let Some(model) = &mut self.model {
            for lost in [overtaken, hurried] {
                model.handle_lost(as_u64(lost.bytes), as_u64(lost.scattered));
            }
        }
    }

    /// A peer that was started anew takes what comes for a new conversation, of which it has nothing: that shows in its
    /// `una`. One datagram may be an old one that somebody has sent again; the answer to a question is not.
    fn judge_memory(&mut self, now_us: u64, bytes: &[u8]) {
        let Ok((last, _)) = ArqSegment::parse(bytes) else { return };
        if self.sender.una() == 0 || last.conv != self.conv || self.stats.sent > u64::from(u32::MAX >> 1) {
            return;
        }
        let began_us = *self.memory.began_us.get_or_insert(now_us);
        if last.una != 0 {
            self.memory.denials = 0;
        } else if now_us > began_us + LATE_US {
            self.memory.denials += 1;
            self.probe.ask |= self.memory.denials == 1;
        }
    }

    /// Whether the peer has lost the conversation: nothing that is sent will ever arrive.
    pub fn is_forgotten(&self) -> bool {
        self.memory.denials > 1
    }

    /// Four times what has come in a round trip: that lets the rate double in the next one, and as much again waits for
    /// what is lost to be sent again. Not while a reader stands still.
    fn grow_window(&mut self, now_us: u64) {
        let window = self.receiver.window();
        if window >= self.settings.max_recv_window || now_us < self.growth.next_us {
            return;
        }
        let seen = self.receiver.taken();
        let segments = seen - std::mem::replace(&mut self.growth.seen, seen);
        let round_trip_us = match self.rto.smoothed_ms() {
            0 => UNKNOWN_RTT_US,
            known => u64::from(known) * 1000,
        };
        self.growth.next_us = now_us + round_trip_us.max(LEAST_GROWTH_US);
        if self.receiver.free_window() >= window / 2 {
            let wanted = u16::try_from(segments * 4).unwrap_or(u16::MAX).min(self.settings.max_recv_window);
            self.receiver.set_window(window.max(wanted));
        }
    }

    fn schedule_acks(&mut self, now_us: u64) {
        let pending = self.receiver.acks.len();
        if pending == 0 {
            return;
        }
        let full = pending >= self.settings.mtu / SEGMENT_HEADER_LEN;
        let delay = self.settings.interval.min(self.settings.ack_delay);
        let delay_us = if self.settings.ack_no_delay || full { 0 } else { micros(delay) };
        let at_us = now_us + delay_us;
        self.ack_at_us = Some(self.ack_at_us.map_or(at_us, |earlier| earlier.min(at_us)));
    }

    /// Bytes that [`Arq::send`] would take.
    pub fn room(&self) -> usize {
        let under_way = self.sender.span() + self.sender.queue_len();
        let segments = usize::from(self.window()).saturating_sub(under_way);
        let queue = match self.model.as_ref().and_then(Model::pacing_rate) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
            Some(rate) => ((rate * QUEUED_S) as usize).clamp(2 * self.mss, MAX_QUEUED),
            None => MAX_QUEUED,
        };
        (segments * self.mss).min(queue.saturating_sub(self.sender.queued()))
    }

    /// Queues the first bytes of `data`; returns how many.
    pub fn send(&mut self, data: &[u8]) -> usize {
        let len = data.len().min(self.room());
        self.sender.enqueue(&data[..len], self.mss, self.settings.stream);
        len
    }

    /// Received bytes that come next, as far as they lie together; empty when there are none.
    pub fn peek(&self) -> &[u8] {
        self.receiver.peek()
    }

    /// Drops `len` bytes of what [`Arq::peek`] gave.
    ///
    /// # Panics
    /// If it gave fewer.
    pub fn consume(&mut self, len: usize) {
        assert!(len <= self.peek().len(), "consumed {len} of {} bytes", self.peek().len());
        self.receiver.consume(len);
        self.tell_reopened();
    }

    fn tell_reopened(&mut self) {
        self.probe.tell |= std::mem::take(&mut self.receiver.reopened);
    }

    /// Received bytes that can be read.
    pub fn readable(&self) -> usize {
        self.receiver.readable()
    }

    /// Appends one datagram of at most [`ArqSettings::mtu`] bytes to `out`; false if there is nothing to send at `now`.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let now_us = self.clock(now);
        self.expire(now_us);
        self.update_probe(now_us);
        self.update_rest(now_us);
        let start = out.len();
        self.emit_acks(now_us, start, out);
        if self.probe.ask && self.fits(start, 0, out) {
            self.emit(ASK, 0, 0, &[], out);
            self.probe.ask = false;
        }
        if self.probe.tell && self.fits(start, 0, out) {
            self.emit(TELL, 0, 0, &[], out);
            self.probe.tell = false;
        }
        while self.may_send(now_us).is_ok()
            && let Some(len) = self.sender.next_len()
            && self.fits(start, len, out)
        {
            self.emit_data(now_us, out);
        }
        out.len() > start
    }

    /// When [`Arq::poll_transmit`] has to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let paced = match &self.model {
            Some(model) if self.has_sendable() && self.fits_window() => model.batch_at(),
            _ => None,
        };
        let times = [self.ack_at_us, self.probe.at_us, self.sender.timeout_us(), paced, self.rest_at_us];
        times.into_iter().flatten().min().map(|at_us| self.epoch + Duration::from_micros(at_us))
    }

    /// Whether a segment has been sent as often as makes kcp-go call the link dead. Nothing follows from it here.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// The limit that keeps it from sending more.
    pub fn limit(&self) -> Limit {
        let is_idle = self.sender.queue_len() == 0 && self.sender.due_len() == 0;
        // Behind a full window nothing is taken in, so that there is nothing to send either.
        if self.sender.span() < usize::from(self.window()).max(1) {
            return if is_idle { Limit::Source } else { Limit::Path };
        }
        let window = self.settings.send_window.min(self.remote_window);
        if self.window() < window {
            Limit::Congestion
        } else if self.remote_window < self.settings.send_window {
            Limit::RemoteWindow
        } else {
            Limit::SendWindow
        }
    }

    /// Segments under way, and how many there may be.
    pub fn under_way(&self) -> (usize, usize) {
        (self.sender.span(), self.window().into())
    }

    /// Segments that may wait for gaps or the reader.
    pub fn recv_window(&self) -> u16 {
        self.receiver.window()
    }

    /// Whether the peer has acknowledged anything that was sent.
    pub fn is_acknowledged(&self) -> bool {
        self.sender.una() != 0
    }

    /// Whether everything that was sent has been acknowledged.
    pub fn is_flushed(&self) -> bool {
        self.sender.span() == 0 && self.sender.queue_len() == 0
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        Stats { repeated: self.receiver.repeated, ..self.stats }
    }

    /// The smoothed round trip, once there is one.
    pub fn round_trip(&self) -> Option<Duration> {
        let smoothed = self.rto.smoothed_ms();
        (smoothed > 0).then(|| Duration::from_millis(smoothed.into()))
    }

    /// The model's estimate of the path, if there is a model.
    pub fn estimate(&self) -> Option<PathEstimate> {
        self.model.as_ref().map(Model::estimate)
    }

    /// Bytes of payload that are held in either direction.
    pub fn held(&self) -> usize {
        self.sender.held() + self.receiver.held()
    }

    /// Bytes that sending takes, with what keeping them costs; an upper bound that is quickly told.
    pub fn sending_footprint(&self) -> usize {
        self.sender.footprint(self.mss)
    }

    /// The same for receiving.
    pub fn receiving_footprint(&self) -> usize {
        self.receiver.footprint()
    }

    /// The part of it that can be read: 0 once everything is.
    pub fn readable_footprint(&self) -> usize {
        self.receiver.readable_footprint()
    }

    /// Sets the data that is admitted from now on: data that is not admitted is treated as lost.
    pub fn set_admission(&mut self, admission: Admission) {
        self.receiver.set_admission(admission);
        self.tell_reopened();
    }

    /// Changes the number of KCP bytes in a datagram, within [`ArqSettings::mtu`]. Segments that were cut before keep their
    /// length, and come alone.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu.clamp(SEGMENT_HEADER_LEN + 1, self.settings.mtu);
        self.mss = self.mtu - SEGMENT_HEADER_LEN;
    }

    /// The facts that decide about parity.
    pub fn seen(&self) -> FecCounters {
        FecCounters {
            sent: self.stats.sent,
            sent_again: self.stats.sent_again,
            round_trip_us: u64::from(self.rto.smoothed_ms()) * 1000,
            has_room: self.model.as_ref().is_some_and(|model| model.has_room() || self.is_narrow(model)),
        }
    }

    /// Whether the window would stand still while a loss is made good.
    fn is_narrow(&self, model: &Model) -> bool {
        let bytes = u64::from(self.window()) * as_u64(self.mss);
        let round_trip_us = u64::from(self.rto.smoothed_ms()) * 1000;
        bytes < model.carries(round_trip_us * LOSS_ROUND_TRIPS)
    }

    /// Changes the windows while the conversation runs.
    pub fn set_windows(&mut self, send: u16, recv: u16) {
        self.settings.send_window = send;
        self.receiver.set_window(recv);
    }

    fn clock(&self, now: Instant) -> u64 {
        micros(now.saturating_duration_since(self.epoch))
    }

    /// Segments that may be under way.
    fn window(&self) -> u16 {
        let window = self.settings.send_window.min(self.remote_window);
        if self.settings.congestion {
            window.min(u16::try_from(self.congestion.window()).unwrap_or(u16::MAX))
        } else {
            window
        }
    }

    /// The stream that carried datagrams has been replaced by another one: what was under way has been lost with it, as far
    /// as nobody has acknowledged it.
    pub fn handle_new_stream(&mut self) {
        self.sender.lose_all();
    }

    fn expire(&mut self, now_us: u64) {
        if !self.sender.expire(now_us) {
            return;
        }
        if self.settings.congestion {
            self.congestion.timed_out(u32::try_from(self.mss).unwrap_or(u32::MAX));
        }
        // A peer that was started anew would not answer segments beyond its window.
        self.probe.ask |= now_us > self.memory.heard_us + SILENT_US;
    }

    fn update_probe(&mut self, now_us: u64) {
        if self.remote_window > 0 {
            self.probe.at_us = None;
            return;
        }
        match self.probe.at_us {
            None => self.probe.wait_us = FIRST_PROBE_US,
            Some(at_us) if at_us > now_us => return,
            Some(_) => {
                self.probe.ask = true;
                self.probe.wait_us = (self.probe.wait_us * 3 / 2).min(MAX_PROBE_US);
            }
        }
        self.probe.at_us = Some(now_us + self.probe.wait_us);
    }

    fn update_rest(&mut self, now_us: u64) {
        let (could_send, could_receive) = (self.sender.could_rest(), self.receiver.could_rest());
        self.rest_at_us = match self.rest_at_us {
            _ if !(could_send || could_receive) => None,
            None => Some(now_us + REST_US),
            Some(at_us) if now_us < at_us => Some(at_us),
            Some(_) => {
                self.give_back(could_send, could_receive);
                None
            }
        };
    }

    fn give_back(&mut self, of_sending: bool, of_receiving: bool) {
        if of_sending {
            self.sender.rest();
        }
        if of_receiving {
            self.receiver.rest();
        }
    }

    /// Thinned as kcp-go does: what `una` covers is not told again, save the last, whose time is wanted.
    fn emit_acks(&mut self, now_us: u64, start: usize, out: &mut Vec<u8>) {
        if self.ack_at_us.is_none_or(|at_us| at_us > now_us) {
            return;
        }
        while self.fits(start, 0, out)
            && let Some((sn, ts)) = self.receiver.acks.pop_front()
        {
            if !before(sn, self.receiver.next()) || self.receiver.acks.is_empty() {
                self.emit(ACK, sn, ts, &[], out);
            }
        }
        if self.receiver.acks.is_empty() {
            self.ack_at_us = None;
        }
    }

    fn fits(&self, start: usize, data_len: usize, out: &[u8]) -> bool {
        // A segment that was cut while datagrams were longer goes alone.
        let most = if out.len() == start { self.settings.mtu } else { self.mtu };
        out.len() - start + SEGMENT_HEADER_LEN + data_len <= most
    }

    /// Whether something waits for nothing but its time.
    fn has_sendable(&self) -> bool {
        let has_window = self.sender.span() < usize::from(self.window());
        self.sender.due_len() > 0 || self.sender.queue_len() > 0 && has_window
    }

    fn fits_window(&self) -> bool {
        self.model.as_ref().is_none_or(|model| as_u64(self.sender.in_flight()) < model.bound())
    }

    /// Whether a segment may leave now: those that are sent again need no window.
    fn may_send(&mut self, now_us: u64) -> Result<(), Blocked> {
        let again = self.sender.has_due();
        if !again && self.sender.queue_len() == 0 {
            if let Some(model) = &mut self.model
                && as_u64(self.sender.in_flight()) < model.bound()
            {
                model.handle_idle(as_u64(self.sender.in_flight()));
            }
            return Err(Blocked);
        }
        if !again && self.sender.span() >= usize::from(self.window()) {
            if let Some(model) = &mut self.model {
                model.handle_idle(as_u64(self.sender.in_flight()));
            }
            return Err(Blocked);
        }
        if let Some(model) = &self.model
            && (model.send_at(now_us).is_some() || !self.fits_window())
        {
            return Err(Blocked);
        }
        Ok(())
    }

    fn emit_data(&mut self, now_us: u64, out: &mut Vec<u8>) {
        let delivered = self.model.as_ref().map_or(0, Model::delivered);
        let sent = Sent { at_us: now_us, ts: millis(now_us), delivered };
        let in_flight = as_u64(self.sender.in_flight());
        let wnd = self.receiver.free_window();
        let (conv, una) = (self.conv, self.receiver.next());
        let next = if self.sender.has_due() {
            // A segment that is lost again and again holds up everything behind it.
            let is_again = self.sender.was_lost_again();
            let can_be_lost = !self.settings.steady;
            let twice = can_be_lost && self.model.as_ref().is_some_and(|model| model.has_room() || is_again);
            self.sender.send_again(sent, &self.rto, twice)
        } else {
            self.sender.send_new(sent, &self.rto)
        };
        let Some(Outgoing { sn, data, loss, transmissions }) = next else { return };
        let again = loss.is_some();
        ArqSegment { conv, cmd: PUSH, frg: 0, wnd, ts: sent.ts, sn, una, data }.emit(out);
        self.stats.sent += 1;
        self.stats.sent_again += u64::from(again);
        self.stats.timed_out += u64::from(loss == Some(Loss::Timeout));
        self.dead |= transmissions >= DEAD_LINK;
        if let Some(model) = &mut self.model {
            model.handle_sent(now_us, as_u64(data.len() + SEGMENT_HEADER_LEN), in_flight, again);
        }
    }

    fn emit(&self, cmd: u8, sn: u32, ts: u32, data: &[u8], out: &mut Vec<u8>) {
        let (wnd, una) = (self.receiver.free_window(), self.receiver.next());
        ArqSegment { conv: self.conv, cmd, frg: 0, wnd, ts, sn, una, data }.emit(out);
    }
}

/// Nothing may leave.
struct Blocked;

fn ack_sample(now_us: u64, delivery: &Delivery, rtt_us: Option<u64>, sender: &ArqSender) -> AckSample {
    AckSample {
        now_us,
        bytes: as_u64(delivery.bytes),
        delivered_at_send: delivery.newest.map_or(0, |sent| sent.delivered),
        sent_us: delivery.newest.map(|sent| sent.at_us),
        rtt_us,
        in_flight: as_u64(sender.in_flight()),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("half a million years")
}

#[expect(clippy::cast_possible_truncation, reason = "the clock of the wire wraps")]
fn millis(micros: u64) -> u32 {
    (micros / 1000) as u32
}

fn as_u64(len: usize) -> u64 {
    u64::try_from(len).expect("at most 64 bits")
}

/// First four bytes: the conversation; the rest: datagrams of a length byte and that many bytes each. For all of
/// them, windows hold.
#[doc(hidden)]
pub fn fuzz_arq(data: &[u8], epoch: Instant) {
    let Some((conv, mut rest)) = data.split_first_chunk() else { return };
    let settings = ArqSettings { resend: 2, tuning: Some(1 << 20), ..ArqSettings::default() };
    let mut arq = Arq::new(u32::from_le_bytes(*conv), settings, epoch);
    let mut now = epoch;
    let mut out = Vec::new();
    while let Some((&len, more)) = rest.split_first() {
        let (datagram, after) = more.split_at(more.len().min(len.into()));
        rest = after;
        arq.send(datagram);
        if arq.handle_datagram(datagram, Arrival::Received, now).is_ok() {
            now += Duration::from_millis(len.into());
        }
        while arq.poll_transmit(now, &mut out) {
            assert!(out.len() <= 1400);
            out.clear();
        }
        assert!(arq.receiver.readable() <= data.len());
        assert!(arq.receiver.held() <= arq.receiving_footprint());
        assert!(arq.sender.span() <= usize::from(arq.settings.send_window));
        let read = arq.peek().len() / 2;
        arq.consume(read);
    }
}

#[cfg(test)]
mod tests;
