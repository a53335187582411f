//! Finds the amount of data to have under way, and the sending rate, from acknowledgements.
//!
//! The old programs leave this to people: with `nc=1` a sender fills any window it was given, and floods the
//! queue before the bottleneck if that is too large or starves if it is too small. This model, after the ideas of BBR,
//! watches two things that acknowledgements tell and loss does not touch: the rate at which bytes are delivered, and
//! the shortest round trip. Their product is the amount that fits the path.
//!
//! ```text
//! startup: send at 2.8 times the measured rate, until it stops growing
//! drain:   send below it, until no more is under way than fits
//! cruise:  one round in eight above the rate, the next below it until no queue is left, the others at it, or a little
//!          below while a queue stands all the same; at most 1.5 times what fits under way, and what acknowledgements
//!          that come in bursts need on top
//! yield:   where a queue overflows, 0.7 times the rate, and back in the time that CUBIC would take
//! probe:   every 10 s without a shorter round trip, half of what fits for 200 ms, to see the path without a queue
//! ```
//!
//! A round begins with the first byte that is sent after the round before has ended, and ends when that byte has been
//! delivered. The rate is an average over whole rounds, not a peak within: acknowledgements that were lost and made
//! good later would pass for speed. Nor is it ever more than what was sent in that time. The peer sees nothing of this but
//! the spacing of packets.

mod losses;
mod queue;

use std::collections::VecDeque;

use self::losses::{Circumstances, Losses};
use self::queue::{Bursts, Retreat, Waits};

/// Pacing in startup: 2 / ln 2 doubles what is delivered per round.
const STARTUP_GAIN: f64 = 2.885;
/// Bound in startup, in units of what fits: the rate that is known then is one round old.
const STARTUP_BOUND: f64 = 2.0;
/// Pacing in startup, in units of what may be under way per round trip: what is delivered lets twice as much follow. Any
/// slower, and a queue shows only when far too much is under way.
const STARTUP_SPREAD: f64 = 2.0;
/// Pacing in drain.
const DRAIN_GAIN: f64 = 0.5;
/// Pacing of the rounds of a cycle. A quarter more, as BBR does, overflows queues that are short against the path.
const CYCLE: [f64; 8] = [1.15, 0.85, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Packets of the rounds above and below the rate are acknowledged in these rounds.
const AFTER_FAST: usize = 1;
const AFTER_SLOW: usize = 2;
/// Round trips after which the slow one of them ends even if a queue is left: it may be somebody else's.
const MOST_SLOW: u64 = 4;
/// Loss of the path from which on it takes half a round trip at least: whether it is the path's has to show.
const DOUBTFUL_LOSS: f64 = 0.01;
/// Pacing of the others while a queue stands all the same: rates are known to a percent or two.
const QUEUE_GAIN: f64 = 0.97;
/// The same, without a queue, while coming back after an overflow.
const RETURN_GAIN: f64 = 1.02;
/// Share of the rate that remains when a queue has overflowed, and packets per second cubed: both as in CUBIC.
const OVERFLOW_GAIN: f64 = 0.7;
const CUBIC_SCALE: f64 = 0.4;
/// Bytes of a packet of such a flow.
const CUBIC_MSS: f64 = 1400.0;
/// Least part of a round trip that the fast round takes, where queues have overflowed in it.
const LEAST_REACH: f64 = 0.125;
/// Pacing while the path has room: what a peer acknowledges at once lets as much follow, soon enough not to wait.
const ROOM_GAIN: f64 = 1.6;
/// Bound while cruising: room for what is lost and for a little jitter, and half of a queue of one round trip.
const CRUISE_BOUND: f64 = 1.5;
/// Losses beyond this share are not made good by sending faster.
const MAX_MADE_GOOD: f64 = 0.3;
/// Rounds in a row that must have been faster than all before for startup to begin again.
const CLIMBS: u32 = 3;
/// Round trips in a row that must have been long for startup to end within a round.
const QUEUEING_SAMPLES: u32 = 8;
/// The same if few acknowledgements tell of many bytes.
const FEW_SAMPLES: u32 = 2;
const QUEUEING_BYTES: u64 = 64 * 1400;
/// Growth of the rate below which a round counts as standing still.
const GROWTH: f64 = 1.25;
/// Rounds without growth that end startup.
const STANDSTILL: u32 = 3;
/// Rounds in a row that something else has limited, from which on the path has room.
const ROOMY: u32 = 3;
/// The part of such a round in which more might have been sent, at the least.
const UNUSED: u64 = 16;
/// Rounds over which the rate is the highest.
const RATE_ROUNDS: usize = 10;
/// Age of a rate, in shortest round trips and in microseconds, beyond which it does not count even if rounds have been
/// few: after a path has become slower they are long.
const RATE_LIFE: u64 = 20;
const MIN_RATE_LIFE_US: u64 = 2_000_000;
/// Age of the shortest round trip at which it is looked for again.
const MIN_RTT_LIFE_US: u64 = 10_000_000;
/// The part of a round trip by which another one may be longer and still count as the shortest.
const SAME_RTT: u64 = 32;
/// Time for which it is looked for.
const PROBE_US: u64 = 200_000;
/// Before anything is known: what TCP begins with, in bytes, and a round trip to space it over.
const INITIAL_BOUND: u64 = 32 * 1400;
/// Never less than this is allowed under way, in bytes.
const MIN_BOUND: u64 = 8 * 1400;
/// While cruising, what is sent in this time may be under way however short the path is: hosts that are busy, and
/// acknowledgements that wait a little, are slower than a wire of some hundred microseconds. In seconds.
const HOST_S: f64 = 0.01;
/// Cycles whose fast round may be cut short by long round trips in a row: on a path, or a host, whose times vary
/// more than a queue explains, no rate would be found again otherwise.
const CUTS: u32 = 3;
/// Longest interval between acknowledgements of a peer, in seconds: kcptun's modes flush every 10 to 50 ms.
const ACK_INTERVAL_S: f64 = 0.05;
/// A burst that pacing lets through, in microseconds: what timers are late by.
const BURST_US: u64 = 2_000;
/// The same after a timer that was later, because a busy host ran other work: all that pacing would have sent meanwhile, or a
/// rate that nothing but this end limits would pass for the path's, and fall from round to round. At most half of the
/// shortest round trip: a queue of the path has to take it.
const MOST_LATE_US: u64 = 25_000;
/// The same in bytes, at least.
const MIN_BURST: u64 = 2 * 1400;
/// Bytes that leave together where a stream beneath spaces them, and the longest that they may wait for each other, in
/// microseconds: each turn costs time, and a queue of the stream takes them at once.
const BATCH: u64 = 32 << 10;
const BATCH_US: u64 = 5_000;

/// The facts of one datagram of acknowledgements.
#[derive(Debug, Clone, Copy)]
pub struct AckSample {
    /// When it came.
    pub now_us: u64,
    /// Bytes that are newly known to have been delivered.
    pub bytes: u64,
    /// Bytes that had been delivered when the newest of these was sent (see [`Model::delivered`]).
    pub delivered_at_send: u64,
    /// When the newest of these was sent, if it is known.
    pub sent_us: Option<u64>,
    /// The newest round trip, if one could be measured.
    pub rtt_us: Option<u64>,
    /// Bytes that remain under way.
    pub in_flight: u64,
}

/// The model's estimate of the path, for people.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathEstimate {
    /// Shortest round trip, in microseconds; 0 when unknown.
    pub min_rtt_us: u64,
    /// Rate of delivery in bytes per second; 0 when unknown.
    pub rate: f64,
    /// Share of what was sent that had to be sent again, 0 to 1.
    pub loss: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    /// The round of [`CYCLE`], and when it began.
    Cruise(usize, u64),
    /// Until when, once no more is under way than this phase allows.
    Probe(Option<u64>),
}

/// The model of one direction of one session. Times are microseconds of any clock that does not step back.
#[derive(Debug)]
pub struct Model {
    phase: Phase,
    max_bound: u64,
    /// Data leaves in batches (see [`Model::batched`]).
    has_batches: bool,
    /// The round before was filled (see [`Round::filled`]).
    filled: bool,
    /// Bytes that may be under way in startup at the least: grows by the bytes that are delivered.
    startup_bound: u64,
    delivered: u64,
    /// When what has been acknowledged was sent, at the latest.
    sent_us: u64,
    round: Round,
    /// When the latest rounds ended, and how many bytes per second they delivered.
    rates: VecDeque<(u64, f64)>,
    best_rate: f64,
    standstill: u32,
    /// Fast rounds in a row that ended early.
    cuts: u32,
    /// Round trips in a row that had to wait in a queue, and what was delivered with them.
    long_rtts: u32,
    long_bytes: u64,
    /// Rounds in a row that something else than the path has limited.
    roomy: u32,
    /// Rounds in a row that were the fastest yet.
    climbs: u32,
    min_rtt: Option<(u64, u64)>,
    /// Highest number of bytes beyond the rate that came at once, of this and of the last 10 rounds.
    bursts: Bursts,
    /// Up to here delivery was limited by what there was to send.
    limited_until: u64,
    next_send_us: u64,
    /// Nothing but pacing holds the next datagram back.
    is_paced: bool,
    sent: f64,
    lost: f64,
    losses: Losses,
    waits: Waits,
    retreat: Option<Retreat>,
    /// Part of a round trip that the fast round takes.
    reach: f64,
    /// There was a fast round in this cycle.
    has_reached: bool,
    /// Shortest round trip since the last probe began.
    probed_rtt_us: Option<u64>,
}

#[derive(Debug, Default)]
struct Round {
    /// Ends when a byte is acknowledged that was sent with this much delivered.
    ends_at: u64,
    started_us: u64,
    started_with: u64,
    /// When what was acknowledged last before it was sent.
    sent_us: u64,
    limited: bool,
    /// As much was under way as may be: with acknowledgements that come in bursts, rests follow that say nothing.
    filled: bool,
    /// Time in which more might have been sent.
    unused_us: u64,
    /// Begins after a rest and ends with the first byte: its length says nothing.
    fresh: bool,
    min_rtt_us: Option<u64>,
}

impl Model {
    /// A model that will never allow more than `max_bound` bytes under way.
    pub fn new(max_bound: u64) -> Self {
        Self {
            phase: Phase::Startup,
            max_bound,
            has_batches: false,
            filled: false,
            startup_bound: INITIAL_BOUND,
            delivered: 0,
            sent_us: 0,
            round: Round::default(),
            rates: VecDeque::new(),
            best_rate: 0.0,
            standstill: 0,
            cuts: 0,
            long_rtts: 0,
            long_bytes: 0,
            roomy: 0,
            climbs: 0,
            min_rtt: None,
            bursts: Bursts::default(),
            limited_until: 0,
            next_send_us: 0,
            is_paced: false,
            sent: 0.0,
            lost: 0.0,
            losses: Losses::default(),
            waits: Waits::default(),
            retreat: None,
            reach: 1.0,
            has_reached: false,
            probed_rtt_us: None,
        }
    }

    /// The same for data that a stream beneath takes at any time, and spaces by itself: what may leave within some
    /// milliseconds leaves together.
    pub fn batched(max_bound: u64) -> Self {
        Self { has_batches: true, ..Self::new(max_bound) }
    }

    /// Bytes delivered so far; to be remembered with what is sent.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// The estimate of the path.
    pub fn estimate(&self) -> PathEstimate {
        let min_rtt_us = self.min_rtt.map_or(0, |(rtt, _)| rtt);
        PathEstimate { min_rtt_us, rate: self.rate(), loss: self.loss() }
    }

    /// Whether the path could carry more: something else has limited the latest rounds, and no queue stood.
    pub fn has_room(&self) -> bool {
        self.roomy >= ROOMY
    }

    /// Bytes that the path delivers in `time_us`, as far as is known.
    pub fn carries(&self, time_us: u64) -> u64 {
        to_bytes(self.rate() * to_float(time_us) / 1e6)
    }

    /// Another limit has widened: the capacity of the path has to be measured anew.
    pub fn handle_relief(&mut self) {
        self.roomy = 0;
    }

    /// Bytes that may be under way.
    pub fn bound(&self) -> u64 {
        let startup = to_float(self.startup_bound);
        let fits = self.fits().unwrap_or_default();
        let bound = match self.phase {
            Phase::Startup => (fits * STARTUP_BOUND).max(startup),
            Phase::Drain => (fits * STARTUP_BOUND).max(to_float(INITIAL_BOUND)),
            Phase::Cruise(..) => {
                (fits * CRUISE_BOUND).max(self.rate() * HOST_S) + to_float(self.bursts.highest())
            }
            Phase::Probe(_) => fits / 2.0,
        };
        to_bytes(bound).clamp(MIN_BOUND, self.max_bound.max(MIN_BOUND))
    }

    /// When a datagram may leave: now, or at the time returned.
    pub fn send_at(&self, now_us: u64) -> Option<u64> {
        (self.next_send_us > now_us).then_some(self.next_send_us)
    }

    /// When the next batch is due, if nothing may leave before: [`Model::send_at`], and what it waits for others.
    pub fn batch_at(&self) -> Option<u64> {
        self.send_at(0).map(|at_us| at_us + self.batch_us())
    }

    fn batch_us(&self) -> u64 {
        let rate = self.pacing_rate().filter(|_| self.has_batches);
        rate.map_or(0, |rate| to_micros(to_float(BATCH) / rate).min(BATCH_US))
    }

    /// `bytes` have been sent, with `in_flight` under way before; `again` when for another time.
    pub fn handle_sent(&mut self, now_us: u64, bytes: u64, in_flight: u64, again: bool) {
        self.sent += to_float(bytes);
        if again {
            self.lost += to_float(bytes);
        }
        if in_flight == 0 {
            // After a rest the round that the rate is measured over begins anew.
            self.begin_round(now_us);
            self.round.fresh = true;
            self.bursts.since_us = now_us;
            self.bursts.bytes = 0;
        }
        if in_flight + 2 * bytes > self.bound() {
            self.round.filled = true;
            self.roomy = 0;
        }
        let is_paced = in_flight + 2 * bytes <= self.bound();
        let was_paced = std::mem::replace(&mut self.is_paced, is_paced);
        let Some(rate) = self.pacing_rate() else { return };
        let late_us = if was_paced { self.most_late_us() } else { 0 };
        let burst_us = BURST_US.max(late_us).max(to_micros(to_float(MIN_BURST) / rate)) + self.batch_us();
        let from = self.next_send_us.max(now_us.saturating_sub(burst_us));
        if self.next_send_us > 0 {
            self.round.unused_us += from - self.next_send_us;
        }
        if self.next_send_us < from && in_flight < self.bound() / 2 && self.next_send_us > 0 {
            // Nothing but this end's own lateness kept it from sending: the rate is not the path's.
            self.handle_idle(in_flight);
        }
        self.next_send_us = from + to_micros(to_float(bytes) / rate);
    }

    /// There was nothing to send, with `in_flight` bytes under way: what follows says less about the path.
    pub fn handle_idle(&mut self, in_flight: u64) {
        self.is_paced = false;
        self.limited_until = self.delivered + in_flight;
        self.round.limited = true;
    }

    /// Time by which a timer may be late and what it held back is still sent at once, in microseconds.
    fn most_late_us(&self) -> u64 {
        self.min_rtt.map_or(0, |(least_us, _)| (least_us / 2).min(MOST_LATE_US))
    }

    /// The newest acknowledgement shows that `bytes` were lost which had been sent shortly before what it acknowledges;
    /// `scattered` are those of them that were not just more of the same gap.
    pub fn handle_lost(&mut self, bytes: u64, scattered: u64) {
        self.losses.handle_lost(bytes, scattered, self.circumstances());
    }

    /// Takes what an acknowledgement has told.
    pub fn handle_ack(&mut self, ack: AckSample) {
        self.waits.note_ack(ack.now_us, ack.in_flight);
        self.delivered += ack.bytes;
        self.long_bytes += ack.bytes;
        self.sent_us = self.sent_us.max(ack.sent_us.unwrap_or_default());
        if let Some(rtt_us) = ack.rtt_us {
            self.sample_rtt(ack.now_us, rtt_us.max(1));
        }
        self.losses.handle_delivered(ack.bytes, self.circumstances());
        self.sample_burst(ack);
        if self.phase == Phase::Startup && (self.filled || self.round.filled || !self.round.limited) {
            self.startup_bound = (self.startup_bound + ack.bytes).min(self.max_bound.max(MIN_BOUND));
        }
        if self.limited_until > self.delivered {
            self.round.limited = true;
        }
        if ack.delivered_at_send >= self.round.ends_at {
            self.end_round(ack.now_us);
        }
        self.step(ack);
    }

    /// Bytes per second at which to send; `None` before anything is known.
    pub fn pacing_rate(&self) -> Option<f64> {
        let rate = self.rate();
        let startup =
            self.min_rtt.map(|(rtt, _)| STARTUP_SPREAD * to_float(self.startup_bound) * 1e6 / to_float(rtt));
        if rate <= 0.0 {
            return startup;
        }
        if self.phase == Phase::Startup {
            return startup.map(|startup| startup.max(rate * STARTUP_GAIN));
        }
        let gain = match self.phase {
            Phase::Startup | Phase::Drain => DRAIN_GAIN,
            Phase::Cruise(..) if self.has_room() => ROOM_GAIN,
            Phase::Cruise(at, _) if CYCLE[at] != 1.0 => CYCLE[at],
            Phase::Cruise(..) if self.waits.all_along => QUEUE_GAIN,
            Phase::Cruise(..) if self.retreat.is_some() => RETURN_GAIN,
            Phase::Cruise(..) => 1.0,
            Phase::Probe(_) => 1.0,
        };
        // Lost data has to be sent on top of the data that is delivered. The least amount under way is not
        // spread over more than a round trip.
        let least =
            self.min_rtt.map_or(0.0, |(rtt, _)| to_float(MIN_BOUND) / (to_float(rtt) / 1e6).max(HOST_S));
        Some((rate * gain / (1.0 - self.losses.base().min(MAX_MADE_GOOD))).max(least))
    }

    /// Share of what was sent lately that had to be sent again.
    fn loss(&self) -> f64 {
        if self.sent > 0.0 { (self.lost / self.sent).min(1.0) } else { 0.0 }
    }

    fn rate(&self) -> f64 {
        let best = self.rates.iter().map(|sample| sample.1).fold(0.0, f64::max);
        best.min(self.retreat.map_or(f64::MAX, |retreat| retreat.ceiling))
    }

    /// Bytes that fit the path.
    fn fits(&self) -> Option<f64> {
        let (rtt, _) = self.min_rtt?;
        let rate = self.rate();
        (rate > 0.0).then(|| rate * to_float(rtt) / 1e6)
    }

    fn sample_rtt(&mut self, now_us: u64, rtt_us: u64) {
        self.probed_rtt_us = Some(self.probed_rtt_us.map_or(rtt_us, |least| least.min(rtt_us)));
        let waits_long = self.min_rtt.is_some_and(|(least, _)| is_long(rtt_us, least));
        let late_us = self.waits.late_us();
        let has_waited =
            self.min_rtt.is_some_and(|(least, _)| rtt_us > late_us && is_long(rtt_us - late_us, least));
        self.waits.sample(rtt_us, has_waited);
        if !waits_long {
            self.long_bytes = 0;
        }
        if self.phase == Phase::Startup && self.rate() > 0.0 {
            self.long_rtts = if waits_long { self.long_rtts + 1 } else { 0 };
            let is_much = self.long_rtts >= FEW_SAMPLES && self.long_bytes > QUEUEING_BYTES;
            if self.long_rtts >= QUEUEING_SAMPLES || is_much {
                self.long_rtts = 0;
                self.phase = Phase::Drain;
            }
        }
        self.round.min_rtt_us = Some(self.round.min_rtt_us.map_or(rtt_us, |least| least.min(rtt_us)));
        match &mut self.min_rtt {
            Some((least, found_us)) if rtt_us > *least => {
                // As good as the shortest: it need not be looked for.
                if rtt_us <= *least + *least / SAME_RTT {
                    *found_us = now_us;
                }
            }
            found => *found = Some((rtt_us, now_us)),
        }
    }

    /// Peers that acknowledge seldom deliver in bursts; what comes beyond the rate must be allowed for.
    fn sample_burst(&mut self, ack: AckSample) {
        let rate = self.rate();
        let elapsed_us = ack.now_us.saturating_sub(self.bursts.since_us);
        let expected = to_bytes(rate * to_float(elapsed_us) / 1e6);
        if self.bursts.bytes <= expected {
            self.bursts.since_us = ack.now_us;
            self.bursts.bytes = 0;
            return self.bursts.note(ack.bytes, self.most_at_once());
        }
        self.bursts.bytes += ack.bytes;
        self.bursts.note(self.bursts.bytes.saturating_sub(expected), self.most_at_once());
    }

    fn most_at_once(&self) -> u64 {
        let rate = self.rate();
        to_bytes(self.fits().unwrap_or_default().max(rate * HOST_S).min(rate * ACK_INTERVAL_S))
    }

    fn end_round(&mut self, now_us: u64) {
        let round = &self.round;
        let elapsed_us = now_us.saturating_sub(round.started_us);
        let bytes = self.delivered - round.started_with;
        if elapsed_us > 0 && bytes > 0 && !round.fresh {
            // Data that was sent slowly and comes back in a heap was no faster than it was sent. If acknowledgements
            // are late, the data that they release is sent in heaps too.
            let is_late = self.waits.late_us() > 0;
            let spaced_us = if is_late { 0 } else { self.sent_us.saturating_sub(round.sent_us) };
            let rate = to_float(bytes) * 1e6 / to_float(elapsed_us.max(spaced_us));
            // Before anything is known, little that was sent says nothing: a rate made of it would keep itself up, as
            // pacing by it leaves rests in which nothing is measured.
            if !round.limited || self.filled && round.filled || rate > self.rate() && !self.rates.is_empty() {
                self.sample_rate(now_us, rate);
            }
        }
        self.roomy = match &self.round {
            round if round.filled => 0,
            // Or the peer was late once.
            _ if self.is_queueing() => self.roomy / 2,
            round if round.limited && round.unused_us >= elapsed_us / UNUSED => {
                (self.roomy + 1).min(2 * ROOMY)
            }
            // It went at its own pace.
            _ => self.roomy.saturating_sub(1),
        };
        self.waits.all_along = match (self.min_rtt, self.round.min_rtt_us) {
            (Some((least, _)), Some(now)) => {
                now > least + (least / 32).clamp(1_000, 4_000) + self.waits.late_us()
            }
            _ => false,
        };
        self.judge_losses(now_us);
        // Older losses fade.
        self.sent *= 0.9;
        self.lost *= 0.9;
        self.bursts.turn();
        self.begin_round(now_us);
    }

    fn circumstances(&self) -> Circumstances {
        let at = if let Phase::Cruise(at, _) = self.phase { at } else { 0 };
        let least_us = self.min_rtt.map_or(0, |found| found.0);
        Circumstances {
            waited: self.waits.is_long,
            // Packets that are acknowledged now were sent a round trip ago.
            is_full: at == AFTER_FAST || self.waits.is_full(least_us),
            was_slow: at == AFTER_SLOW,
        }
    }

    /// Losses alone are the path's nature. Losses in a queue are this sender's own, or another's that fills it: what was
    /// delivered meanwhile is all that the path can carry.
    fn judge_losses(&mut self, now_us: u64) {
        let is_cruising = matches!(self.phase, Phase::Cruise(..));
        let is_startup = self.phase == Phase::Startup;
        if self.losses.is_congested() && self.phase != Phase::Drain
            || is_startup && self.losses.is_much_too_fast()
        {
            while self.rates.len() > 1 {
                self.rates.pop_front();
            }
            self.phase = Phase::Drain;
        } else if std::mem::take(&mut self.has_reached) {
            self.reach = (self.reach * 1.1).min(1.0);
        }
        self.losses.turn(matches!(self.phase, Phase::Cruise(..)));
        if let Some(retreat) = &mut self.retreat {
            retreat.turn(now_us);
            self.retreat = self.retreat.filter(|retreat| now_us < retreat.until_us);
        }
        if is_cruising && self.losses.take_overflow() {
            self.retreat(now_us);
        }
    }

    /// A queue has overflowed, by this sender's doing or by another's, for whom it is a sign to slow down: so it is here,
    /// as much and for as long as for CUBIC, or such flows would never get a fair share of a path with a short queue.
    fn retreat(&mut self, now_us: u64) {
        let Some(&(_, rate)) = self.rates.back() else { return };
        let packets = self.fits().unwrap_or_default() / CUBIC_MSS;
        let lasts_us = to_micros((packets * (1.0 - OVERFLOW_GAIN) / CUBIC_SCALE).cbrt());
        let until_us = now_us + lasts_us.max(1);
        self.retreat = Some(Retreat { rate, from_us: now_us, until_us, ceiling: rate * OVERFLOW_GAIN });
        self.reach = (self.reach / 2.0).max(LEAST_REACH);
        self.phase = Phase::Drain;
    }

    fn begin_round(&mut self, now_us: u64) {
        self.filled = self.round.filled;
        self.round = Round {
            ends_at: self.delivered,
            started_us: now_us,
            started_with: self.delivered,
            sent_us: self.sent_us,
            ..Round::default()
        };
    }

    fn sample_rate(&mut self, now_us: u64, rate: f64) {
        let before = self.rate();
        let life_us = self.min_rtt.map_or(0, |(least, _)| RATE_LIFE * least).max(MIN_RATE_LIFE_US);
        self.rates.push_back((now_us, rate));
        while self.rates.len() > RATE_ROUNDS || self.rates[0].0 + life_us < now_us {
            self.rates.pop_front();
        }
        match self.phase {
            Phase::Startup => self.judge_startup(rate),
            Phase::Cruise(..) => self.judge_cruise(now_us, rate, before),
            Phase::Drain | Phase::Probe(_) => {}
        }
    }

    /// The path has become faster, or was never filled: go on looking, and in earnest if that holds.
    fn judge_cruise(&mut self, now_us: u64, rate: f64, before: f64) {
        let climbs = rate > before * 1.05 && before > 0.0 && !self.is_queueing() && self.retreat.is_none();
        self.climbs = if climbs { self.climbs + 1 } else { 0 };
        if self.climbs >= CLIMBS {
            self.climbs = 0;
            self.startup_bound = self.bound();
            self.best_rate = rate;
            self.standstill = 0;
            self.long_rtts = 0;
            self.losses.disarm();
            self.phase = Phase::Startup;
        } else if climbs {
            self.phase = Phase::Cruise(0, now_us);
        }
    }

    fn judge_startup(&mut self, rate: f64) {
        if rate >= self.best_rate * GROWTH {
            self.best_rate = rate;
            self.standstill = 0;
            return;
        }
        self.standstill += 1;
        if self.standstill >= STANDSTILL || self.is_queueing() {
            self.phase = Phase::Drain;
        }
    }

    /// Whether every round trip of this round was longer than the path itself explains.
    fn is_queueing(&self) -> bool {
        let (Some((least, _)), Some(now)) = (self.min_rtt, self.round.min_rtt_us) else { return false };
        is_long(now, least)
    }

    fn step(&mut self, ack: AckSample) {
        let now_us = ack.now_us;
        let Some((least_us, found_us)) = self.min_rtt else { return };
        let fits = self.fits().map_or(0, to_bytes);
        match self.phase {
            Phase::Startup => {}
            Phase::Drain if ack.in_flight <= fits => self.phase = Phase::Cruise(AFTER_SLOW, now_us),
            Phase::Drain => {}
            Phase::Cruise(..) if now_us.saturating_sub(found_us) > MIN_RTT_LIFE_US => {
                // The latest round trip may include a queue of this sender's own: it must not pass for the path.
                self.probed_rtt_us = None;
                self.phase = Phase::Probe(None);
            }
            Phase::Cruise(at, since) => self.step_cycle(at, since, ack),
            Phase::Probe(None) if ack.in_flight <= self.bound() => {
                self.phase = Phase::Probe(Some(now_us + PROBE_US.max(least_us)));
            }
            Phase::Probe(Some(until)) if now_us >= until => {
                self.min_rtt = Some((self.probed_rtt_us.unwrap_or(least_us), now_us));
                self.phase = Phase::Cruise(AFTER_SLOW, now_us);
            }
            Phase::Probe(_) => {}
        }
    }

    fn step_cycle(&mut self, at: usize, since_us: u64, ack: AckSample) {
        let Some((least_us, _)) = self.min_rtt else { return };
        let (is_fast, is_slow) = (CYCLE[at] > 1.0, CYCLE[at] < 1.0);
        let most_us = if is_fast {
            to_bytes(to_float(least_us) * self.reach)
        } else if is_slow {
            MOST_SLOW * least_us
        } else {
            least_us
        };
        let elapsed_us = ack.now_us.saturating_sub(since_us);
        let over = elapsed_us >= most_us;
        let is_certain = self.losses.base() < DOUBTFUL_LOSS || elapsed_us >= least_us / 2;
        let drained = is_slow && is_certain && ack.in_flight <= self.fits().map_or(0, to_bytes);
        // Short queues overflow before a round is over.
        let filled =
            is_fast && self.cuts < CUTS && ack.rtt_us.is_some_and(|rtt_us| is_long(rtt_us, least_us));
        if is_fast && (over || filled) {
            self.cuts = if filled && !over { self.cuts + 1 } else { 0 };
        }
        if !(over || drained || filled) {
            return;
        }
        let next = (at + 1) % CYCLE.len();
        if next > 0 {
            self.phase = Phase::Cruise(next, ack.now_us);
            return;
        }
        self.losses.begin_cycle();
        self.waits.turn();
        // A queue that is known to overflow needs no filling: if one stands, there is nothing to be found.
        let needless = self.retreat.is_some() || self.waits.all_along && self.reach < 1.0;
        self.has_reached = !needless;
        self.phase = Phase::Cruise(usize::from(needless), ack.now_us);
    }
}

/// Whether a round trip must have waited in a queue (the bounds of HyStart, RFC 9406).
fn is_long(rtt_us: u64, least_us: u64) -> bool {
    rtt_us > least_us + (least_us / 8).clamp(4_000, 16_000)
}

#[expect(clippy::cast_precision_loss, reason = "rates need no more than 52 bits")]
fn to_float(value: u64) -> f64 {
    value as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and is never negative"
)]
fn to_bytes(value: f64) -> u64 {
    value as u64
}

fn to_micros(seconds: f64) -> u64 {
    to_bytes(seconds * 1e6)
}

/// First byte: bytes that may be under way, in KiB; then five bytes per event: kind, and value. The model never
/// allows more than it was told, and never less than a few packets.
#[doc(hidden)]
pub fn fuzz_model(data: &[u8]) {
    let Some((&first, events)) = data.split_first() else { return };
    let most = u64::from(first) << 10;
    let mut model = Model::new(most);
    let mut now_us = 0;
    for event in events.as_chunks::<5>().0 {
        let [kind, a, b, c, d] = event.map(u64::from);
        now_us += a << 8;
        match kind % 4 {
            0 => model.handle_sent(now_us, b << 3, c << 8, d & 1 == 0),
            1 => model.handle_idle(b << 8),
            2 => model.handle_lost(b << 8, a.min(b) << 8),
            _ => model.handle_ack(AckSample {
                now_us,
                bytes: b << 6,
                delivered_at_send: model.delivered().saturating_sub(c << 8),
                sent_us: (b > 0).then(|| now_us.saturating_sub(d << 10)),
                rtt_us: (d > 0).then_some(d << 10),
                in_flight: c << 8,
            }),
        }
        assert!((MIN_BOUND..=most.max(MIN_BOUND)).contains(&model.bound()));
        assert!(model.pacing_rate().is_none_or(|rate| rate > 0.0 && rate.is_finite()));
        assert!((0.0..=1.0).contains(&model.estimate().loss));
    }
}

#[cfg(test)]
mod tests;
