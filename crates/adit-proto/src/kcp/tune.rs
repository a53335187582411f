//! How much to have under way, and how fast to send it: found from what comes back.
//!
//! The old programs leave this to people: with `nc=1` a sender fills whatever window it was given, and floods the
//! queue before the bottleneck if that is too large or starves if it is too small. This model, after the ideas of BBR,
//! watches two things that acknowledgements tell and loss does not touch: the rate at which bytes are delivered, and
//! the shortest round trip. Their product is what fits the path.
//!
//! ```text
//! startup: send at 2.8 times the measured rate, until it stops growing
//! drain:   send below it, until no more is under way than fits
//! cruise:  one round in eight above the rate, the next below it, the others at it;
//!          at most 1.5 times what fits under way, and what acknowledgements that come in bursts need on top
//! probe:   every 10 s without a shorter round trip, half of what fits for 200 ms, to see the path without a queue
//! ```
//!
//! A round begins with the first byte that is sent after the round before has ended, and ends when that byte has been
//! delivered. The rate is an average over whole rounds, not a peak within: acknowledgements that were lost and made
//! good later would pass for speed. The peer sees nothing of this but the spacing of packets.

use std::collections::VecDeque;

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
/// Pacing while the path has room: what a peer acknowledges at once lets as much follow, soon enough not to wait.
const ROOM_GAIN: f64 = 1.25;
/// Bound while cruising: room for what is lost and for a little jitter, and half of a queue of one round trip.
const CRUISE_BOUND: f64 = 1.5;
/// Losses beyond this share are not made good by sending faster.
const MAX_MADE_GOOD: f64 = 0.3;
/// Rounds in a row that must have been faster than all before for startup to begin again.
const CLIMBS: u32 = 3;
/// Share of a round that is sent again, beyond one and a half times what the path loses, at which a queue is held to overflow.
const CONGESTED: f64 = 0.02;
/// Bytes that must have been sent before what was lost of them says something.
const LEAST_JUDGED: u64 = 256 * 1400;
/// Round trips in a row that must have been long for startup to end within a round.
const QUEUEING_SAMPLES: u32 = 8;
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
/// How long it is looked for.
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
/// How seldom peers acknowledge, in seconds: kcptun's modes flush every 10 to 50 ms.
const ACK_INTERVAL_S: f64 = 0.05;
/// A burst that pacing lets through, in microseconds: what timers are late by.
const BURST_US: u64 = 2_000;
/// The same in bytes, at least.
const MIN_BURST: u64 = 2 * 1400;

/// What one datagram of acknowledgements has told.
#[derive(Debug, Clone, Copy)]
pub struct AckSample {
    /// When it came.
    pub now_us: u64,
    /// Bytes that are newly known to have been delivered.
    pub bytes: u64,
    /// Bytes that had been delivered when the newest of these was sent (see [`Model::delivered`]).
    pub delivered_at_send: u64,
    /// The newest round trip, if one could be measured.
    pub rtt_us: Option<u64>,
    /// Bytes that remain under way.
    pub in_flight: u64,
}

/// What the model says of the path, for people.
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
    /// Which round of [`CYCLE`], and when it began.
    Cruise(usize, u64),
    /// Until when, once no more is under way than this phase allows.
    Probe(Option<u64>),
}

/// The model of one direction of one session. Times are microseconds of any clock that does not step back.
#[derive(Debug)]
pub struct Model {
    phase: Phase,
    max_bound: u64,
    /// The round before was filled (see [`Round::filled`]).
    filled: bool,
    /// What may be under way in startup at the least, in bytes: grows by what is delivered.
    startup_bound: u64,
    delivered: u64,
    round: Round,
    /// When the latest rounds ended, and how many bytes per second they delivered.
    rates: VecDeque<(u64, f64)>,
    best_rate: f64,
    standstill: u32,
    /// Fast rounds in a row that ended early.
    cuts: u32,
    /// Round trips in a row that had to wait in a queue.
    long_rtts: u32,
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
    sent: f64,
    lost: f64,
    /// Share that is lost while no queue stands: the path's own.
    base_loss: f64,
    /// What has been sent, and again, since that share was last looked at.
    judged: (u64, u64),
    was_queueing: bool,
    /// Shortest round trip since the last probe began.
    probed_rtt_us: Option<u64>,
}

#[derive(Debug, Default)]
struct Round {
    /// Ends when a byte is acknowledged that was sent with this much delivered.
    ends_at: u64,
    started_us: u64,
    started_with: u64,
    limited: bool,
    /// As much was under way as may be: with acknowledgements that come in bursts, rests follow that say nothing.
    filled: bool,
    /// Bytes that were sent, and of these again.
    sent: u64,
    again: u64,
    /// Time in which more might have been sent.
    unused_us: u64,
    /// Begins after a rest and ends with the first byte: its length says nothing.
    fresh: bool,
    min_rtt_us: Option<u64>,
}

#[derive(Debug, Default)]
struct Bursts {
    since_us: u64,
    bytes: u64,
    highest: u64,
    highest_before: u64,
    rounds: usize,
}

impl Model {
    /// A model that will never allow more than `max_bound` bytes under way.
    pub fn new(max_bound: u64) -> Self {
        Self {
            phase: Phase::Startup,
            max_bound,
            filled: false,
            startup_bound: INITIAL_BOUND,
            delivered: 0,
            round: Round::default(),
            rates: VecDeque::new(),
            best_rate: 0.0,
            standstill: 0,
            cuts: 0,
            long_rtts: 0,
            roomy: 0,
            climbs: 0,
            min_rtt: None,
            bursts: Bursts::default(),
            limited_until: 0,
            next_send_us: 0,
            sent: 0.0,
            lost: 0.0,
            base_loss: 0.0,
            judged: (0, 0),
            was_queueing: false,
            probed_rtt_us: None,
        }
    }

    /// Bytes delivered so far; to be remembered with what is sent.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// What is known of the path.
    pub fn estimate(&self) -> PathEstimate {
        let min_rtt_us = self.min_rtt.map_or(0, |(rtt, _)| rtt);
        PathEstimate { min_rtt_us, rate: self.rate(), loss: self.loss() }
    }

    /// Whether the path could carry more: something else has limited the latest rounds, and no queue stood.
    pub fn has_room(&self) -> bool {
        self.roomy >= ROOMY
    }

    /// What else limits is less narrow than it was: how much the path could carry is to be seen anew.
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

    /// `bytes` have been sent, with `in_flight` under way before; `again` when for another time.
    pub fn handle_sent(&mut self, now_us: u64, bytes: u64, in_flight: u64, again: bool) {
        self.sent += to_float(bytes);
        self.round.sent += bytes;
        if again {
            self.lost += to_float(bytes);
            self.round.again += bytes;
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
        let Some(rate) = self.pacing_rate() else { return };
        let burst_us = BURST_US.max(to_micros(to_float(MIN_BURST) / rate));
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
        self.limited_until = self.delivered + in_flight;
        self.round.limited = true;
    }

    /// Takes what an acknowledgement has told.
    pub fn handle_ack(&mut self, ack: AckSample) {
        self.delivered += ack.bytes;
        if let Some(rtt_us) = ack.rtt_us {
            self.sample_rtt(ack.now_us, rtt_us.max(1));
        }
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
            Phase::Cruise(at, _) => CYCLE[at],
            Phase::Probe(_) => 1.0,
        };
        // What is lost on the way has to be sent on top of what is delivered. What may be under way at the least is not
        // spread over more than a round trip.
        let least =
            self.min_rtt.map_or(0.0, |(rtt, _)| to_float(MIN_BOUND) / (to_float(rtt) / 1e6).max(HOST_S));
        Some((rate * gain / (1.0 - self.base_loss.min(MAX_MADE_GOOD))).max(least))
    }

    /// Share of what was sent lately that had to be sent again.
    fn loss(&self) -> f64 {
        if self.sent > 0.0 { (self.lost / self.sent).min(1.0) } else { 0.0 }
    }

    fn rate(&self) -> f64 {
        self.rates.iter().map(|sample| sample.1).fold(0.0, f64::max)
    }

    /// Bytes that fit the path.
    fn fits(&self) -> Option<f64> {
        let (rtt, _) = self.min_rtt?;
        let rate = self.rate();
        (rate > 0.0).then(|| rate * to_float(rtt) / 1e6)
    }

    fn sample_rtt(&mut self, now_us: u64, rtt_us: u64) {
        self.probed_rtt_us = Some(self.probed_rtt_us.map_or(rtt_us, |least| least.min(rtt_us)));
        if self.phase == Phase::Startup && self.rate() > 0.0 {
            let is_long = self.min_rtt.is_some_and(|(least, _)| is_long(rtt_us, least));
            self.long_rtts = if is_long { self.long_rtts + 1 } else { 0 };
            if self.long_rtts >= QUEUEING_SAMPLES {
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
            let rate = to_float(bytes) * 1e6 / to_float(elapsed_us);
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
        self.judge_losses();
        // Older losses fade.
        self.sent *= 0.9;
        self.lost *= 0.9;
        self.bursts.turn();
        self.begin_round(now_us);
    }

    /// Losses alone are the path's nature. Losses in a round that waited in a queue from its first to its last byte are
    /// this sender's own: what was delivered meanwhile is all that the path can carry.
    fn judge_losses(&mut self) {
        let round = &self.round;
        let share = to_float(round.again) / to_float(round.sent.max(1));
        // Losses show a round trip later than the queue.
        let is_queueing = self.is_queueing();
        if !(std::mem::replace(&mut self.was_queueing, is_queueing) || is_queueing) {
            return self.learn_loss();
        }
        if share > CONGESTED + self.base_loss * 1.5 && self.phase != Phase::Drain {
            while self.rates.len() > 1 {
                self.rates.pop_front();
            }
            self.phase = Phase::Drain;
        }
    }

    /// The path's own loss is what the best of times show: what startup has made a queue drop is not a part of it.
    fn learn_loss(&mut self) {
        if !matches!(self.phase, Phase::Cruise(..)) {
            self.judged = (0, 0);
            return;
        }
        self.judged = (self.judged.0 + self.round.sent, self.judged.1 + self.round.again);
        if self.judged.0 < LEAST_JUDGED {
            return;
        }
        let (sent, again) = std::mem::take(&mut self.judged);
        let change = (to_float(again) / to_float(sent)).min(1.0) - self.base_loss;
        self.base_loss += if change < 0.0 { change / 2.0 } else { change / 8.0 };
    }

    fn begin_round(&mut self, now_us: u64) {
        self.filled = self.round.filled;
        self.round = Round {
            ends_at: self.delivered,
            started_us: now_us,
            started_with: self.delivered,
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
        let climbs = rate > before * 1.05 && before > 0.0 && !self.is_queueing();
        self.climbs = if climbs { self.climbs + 1 } else { 0 };
        if self.climbs >= CLIMBS {
            self.climbs = 0;
            self.startup_bound = self.bound();
            self.best_rate = rate;
            self.standstill = 0;
            self.long_rtts = 0;
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
            Phase::Drain if ack.in_flight <= fits => self.phase = Phase::Cruise(2, now_us),
            Phase::Drain => {}
            Phase::Cruise(..) if now_us.saturating_sub(found_us) > MIN_RTT_LIFE_US => {
                // What was measured of late may be a queue of this sender's own: it must not pass for the path.
                self.probed_rtt_us = None;
                self.phase = Phase::Probe(None);
            }
            Phase::Cruise(at, since) => {
                let over = now_us.saturating_sub(since) >= least_us;
                let drained = CYCLE[at] < 1.0 && ack.in_flight <= fits;
                // Short queues overflow before a round is over.
                let is_fast = CYCLE[at] > 1.0;
                let filled = is_fast && ack.rtt_us.is_some_and(|rtt_us| is_long(rtt_us, least_us));
                let filled = filled && self.cuts < CUTS;
                if is_fast && (over || filled) {
                    self.cuts = if filled && !over { self.cuts + 1 } else { 0 };
                }
                if over || drained || filled {
                    self.phase = Phase::Cruise((at + 1) % CYCLE.len(), now_us);
                }
            }
            Phase::Probe(None) if ack.in_flight <= self.bound() => {
                self.phase = Phase::Probe(Some(now_us + PROBE_US.max(least_us)));
            }
            Phase::Probe(Some(until)) if now_us >= until => {
                self.min_rtt = Some((self.probed_rtt_us.unwrap_or(least_us), now_us));
                self.phase = Phase::Cruise(2, now_us);
            }
            Phase::Probe(_) => {}
        }
    }
}

/// Whether a round trip must have waited in a queue (the bounds of HyStart, RFC 9406).
fn is_long(rtt_us: u64, least_us: u64) -> bool {
    rtt_us > least_us + (least_us / 8).clamp(4_000, 16_000)
}

impl Bursts {
    fn highest(&self) -> u64 {
        self.highest.max(self.highest_before)
    }

    /// Never more than what fits, nor than acknowledgements every [`ACK_INTERVAL_S`] explain: beyond is what was lost
    /// and has been made good.
    fn note(&mut self, bytes: u64, most: u64) {
        self.highest = self.highest.max(bytes.min(most));
    }

    fn turn(&mut self) {
        self.rounds += 1;
        if self.rounds == RATE_ROUNDS {
            self.rounds = 0;
            self.highest_before = std::mem::take(&mut self.highest);
        }
    }
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

/// First byte: what may be under way, in KiB; then five bytes per event: kind, and what it is about. The model never
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
        match kind % 3 {
            0 => model.handle_sent(now_us, b << 3, c << 8, d & 1 == 0),
            1 => model.handle_idle(b << 8),
            _ => model.handle_ack(AckSample {
                now_us,
                bytes: b << 6,
                delivered_at_send: model.delivered().saturating_sub(c << 8),
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
mod tests {
    use proptest::proptest;

    use super::*;

    /// A path in a few lines: packets of 1,000 bytes pass one by one at `rate` bytes per second, and each is
    /// acknowledged `rtt_us` after it has passed, unless it is lost.
    struct Path {
        rate: u64,
        rtt_us: u64,
        /// Every so many packets one is lost; 0 is never.
        lose: u64,
        now_us: u64,
        busy_until_us: u64,
        sent: u64,
        in_flight: u64,
        /// When the news comes, when it was sent, with how much delivered, and whether it arrived.
        news: VecDeque<(u64, u64, u64, bool)>,
        longest_queue_us: u64,
    }

    impl Path {
        fn new(rate: u64, rtt_us: u64, lose: u64) -> Self {
            Self {
                rate,
                rtt_us,
                lose,
                now_us: 1,
                busy_until_us: 0,
                sent: 0,
                in_flight: 0,
                news: VecDeque::new(),
                longest_queue_us: 0,
            }
        }

        fn run(&mut self, model: &mut Model, seconds: u64) {
            let until_us = self.now_us + seconds * 1_000_000;
            let mut again = 0;
            while self.now_us < until_us {
                while self.in_flight < model.bound() && model.send_at(self.now_us).is_none() {
                    model.handle_sent(self.now_us, 1000, self.in_flight, again > 0);
                    again -= u64::from(again > 0);
                    self.busy_until_us = self.busy_until_us.max(self.now_us) + 1_000_000_000 / self.rate;
                    self.longest_queue_us = self.longest_queue_us.max(self.busy_until_us - self.now_us);
                    self.sent += 1;
                    let arrives = self.lose == 0 || !self.sent.is_multiple_of(self.lose);
                    let at_us = self.busy_until_us + self.rtt_us;
                    self.news.push_back((at_us, self.now_us, model.delivered(), arrives));
                    self.in_flight += 1000;
                }
                let news_us = self.news.front().map_or(until_us, |news| news.0);
                self.now_us =
                    news_us.min(model.send_at(self.now_us).unwrap_or(until_us)).max(self.now_us + 1);
                while let Some(&(at_us, sent_us, delivered_at_send, arrived)) = self.news.front()
                    && at_us <= self.now_us
                {
                    self.news.pop_front();
                    self.in_flight -= 1000;
                    again += u64::from(!arrived);
                    if arrived {
                        let rtt_us = Some(self.now_us - sent_us);
                        let (now_us, in_flight) = (self.now_us, self.in_flight);
                        model.handle_ack(AckSample {
                            now_us,
                            bytes: 1000,
                            delivered_at_send,
                            rtt_us,
                            in_flight,
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn finds_rate_and_round_trip() {
        for (rate, rtt_us) in [(2_500_000, 20_000), (2_500_000, 100_000), (250_000, 300_000)] {
            for lose in [0, 100, 20] {
                let mut path = Path::new(rate, rtt_us, lose);
                let mut model = Model::new(1 << 30);
                path.run(&mut model, 6);
                path.longest_queue_us = 0;
                path.run(&mut model, 6);
                let found = model.estimate();
                assert!(
                    (0.85..1.1).contains(&(found.rate / to_float(rate))),
                    "{rate} {rtt_us} {lose}: {found:?}"
                );
                assert!(found.min_rtt_us < rtt_us * 11 / 10 + 4_000, "{rate} {rtt_us} {lose}: {found:?}");
                // No more stands in a queue than the bound allows beyond what fits.
                assert!(path.longest_queue_us < rtt_us + 30_000, "{}", path.longest_queue_us);
            }
        }
    }

    #[test]
    fn follows_a_path_that_changes() {
        let mut path = Path::new(400_000, 50_000, 0);
        let mut model = Model::new(1 << 30);
        path.run(&mut model, 5);
        path.rate = 4_000_000;
        path.run(&mut model, 10);
        assert!(model.estimate().rate > 3_000_000.0, "{:?}", model.estimate());
        path.rate = 400_000;
        path.run(&mut model, 10);
        assert!(model.estimate().rate < 500_000.0, "{:?}", model.estimate());
        // The way has become longer: found after the old measure has aged.
        path.rtt_us = 150_000;
        path.run(&mut model, 25);
        assert!(model.estimate().min_rtt_us >= 150_000, "{:?}", model.estimate());
    }

    #[test]
    fn little_to_send_says_little() {
        let mut path = Path::new(1_000_000, 50_000, 0);
        let mut model = Model::new(1 << 30);
        path.run(&mut model, 5);
        let before = model.estimate().rate;
        for _ in 0..200 {
            path.now_us += 100_000;
            let (now_us, delivered_at_send) = (path.now_us, model.delivered());
            model.handle_sent(now_us, 1000, 0, false);
            model.handle_idle(1000);
            let ack = AckSample {
                now_us: now_us + 50_000,
                bytes: 1000,
                delivered_at_send,
                rtt_us: Some(50_000),
                in_flight: 0,
            };
            model.handle_ack(ack);
        }
        assert!(model.estimate().rate >= before);
    }

    #[test]
    fn obeys_its_cap() {
        let mut path = Path::new(2_500_000, 100_000, 0);
        let mut model = Model::new(100_000);
        path.run(&mut model, 5);
        assert!(path.in_flight <= 101_000 && model.bound() <= 100_000);
    }

    #[test]
    fn the_least_cap_leaves_a_rate() {
        let (sent, acknowledged) = ([0, 0, 0, 0, 0], [128, 0, 0, 0, 1]);
        fuzz_model(&[&[0, 52, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &sent, &acknowledged, &sent].concat());
    }

    proptest! {
        #[test]
        fn any_events(data: Vec<u8>) {
            fuzz_model(&data);
        }
    }
}
