//! Counters, each beside its meaning. A core adds to its own; readers sum them up.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Upper ends of the classes of dials and of first bytes, in microseconds.
const DIAL_ENDS_US: [u64; 11] =
    [5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000];
/// Upper ends of the classes of connections by their length, in microseconds: 0.1 s to a day.
const CONNECTION_ENDS_US: [u64; 7] =
    [100_000, 1_000_000, 10_000_000, 60_000_000, 600_000_000, 3_600_000_000, 86_400_000_000];
/// Most classes that a histogram has, the last one aside, whose values are larger than all ends.
const MOST_ENDS: usize = 11;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The same, for the only thread that adds: a locked instruction costs several times as much.
    pub(crate) fn add_alone(&self, n: u64) {
        self.0.store(self.value().wrapping_add(n), Ordering::Relaxed);
    }

    /// Raises the value to `n`, if it is lower: for the highest of something.
    pub(crate) fn raise(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }

    /// The sum so far.
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicI64);

impl Gauge {
    /// Adds `n`, which may be negative.
    pub(crate) fn add(&self, n: i64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets the value to a length.
    pub(crate) fn set(&self, len: usize) {
        self.0.store(i64::try_from(len).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// The present value.
    pub(crate) fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Values by class: one is noted with two additions.
#[derive(Debug)]
pub(crate) struct Histogram {
    ends: &'static [u64],
    counts: [Counter; MOST_ENDS + 1],
    sum: Counter,
}

impl Histogram {
    /// No values yet; `ends` are the largest values of the classes, at most [`MOST_ENDS`], in rising order.
    pub(crate) const fn new(ends: &'static [u64]) -> Self {
        assert!(ends.len() <= MOST_ENDS, "too many classes");
        Self {
            ends,
            counts: [const { Counter(AtomicU64::new(0)) }; MOST_ENDS + 1],
            sum: Counter(AtomicU64::new(0)),
        }
    }

    /// Notes a value.
    pub(crate) fn note(&self, value: u64) {
        self.class(value).add(1);
        self.sum.add(value);
    }

    /// Notes a time in microseconds.
    pub(crate) fn note_time(&self, took: Duration) {
        self.note(micros(took));
    }

    /// The same, for the only thread that notes.
    pub(crate) fn note_time_alone(&self, took: Duration) {
        let value = micros(took);
        self.class(value).add_alone(1);
        self.sum.add_alone(value);
    }

    fn class(&self, value: u64) -> &Counter {
        &self.counts[self.ends.iter().take_while(|end| value > **end).count()]
    }
}

fn micros(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000).saturating_add(time.subsec_micros().into())
}

/// A histogram in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Distribution {
    /// Largest values of the classes but the last: microseconds, unless it says otherwise.
    pub ends: Vec<u64>,
    /// Number of values by class.
    pub counts: Vec<u64>,
    /// All values together.
    pub sum: u64,
}

impl Distribution {
    /// The sum of histograms with the same classes.
    pub(crate) fn of<'h>(histograms: impl IntoIterator<Item = &'h Histogram>) -> Self {
        let mut all = Self::default();
        for Histogram { ends, counts, sum } in histograms {
            let counts = counts.iter().take(ends.len() + 1).map(Counter::value).collect();
            all.add(&Self { ends: ends.to_vec(), counts, sum: sum.value() });
        }
        all
    }

    /// Adds another one with the same classes.
    pub(crate) fn add(&mut self, other: &Self) {
        if self.counts.is_empty() {
            self.ends.clone_from(&other.ends);
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Whether it has no values; a snapshot leaves it out then.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }
}

/// Payload bytes, as the inbound side sees them.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// From the client to the target.
    pub(crate) up: Counter,
    /// From the target to the client.
    pub(crate) down: Counter,
}

/// Counters of an inbound on one core.
#[derive(Debug, Default)]
pub(crate) struct InboundMetrics {
    /// Payload bytes.
    pub(crate) traffic: Traffic,
    /// Connections accepted.
    pub(crate) accepted: Counter,
    /// Connections that are open.
    pub(crate) open: Gauge,
    /// Requests served, several per connection where it is reused.
    pub(crate) requests: Counter,
    /// Requests by their result, once they have one.
    pub(crate) results: Results,
    /// Times of requests.
    pub(crate) times: RequestTimes,
    /// Connections refused, by cause.
    pub(crate) refused: RefusedCounters,
    /// Datagrams, where the inbound takes them.
    pub(crate) datagrams: DatagramMetrics,
}

impl InboundMetrics {
    /// A request is served without a connection that would have to be made for it.
    pub(crate) fn take_request(&self) {
        self.requests.add(1);
        self.results.ok.add_alone(1);
    }
}

/// Requests by their result.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// There was a way to the target.
    pub(crate) ok: Counter,
    /// The connection to the target, or to the server on the way, could not be made.
    pub(crate) dial_failed: Counter,
    /// The rules take no such client, or reach no such target.
    pub(crate) refused: Counter,
}

impl Results {
    /// Every result with its name.
    pub(crate) fn all(&self) -> [(&'static str, u64); 3] {
        [
            ("ok", self.ok.value()),
            ("dial-failed", self.dial_failed.value()),
            ("refused", self.refused.value()),
        ]
    }
}

/// Times of the requests for streams of an inbound.
#[derive(Debug)]
pub(crate) struct RequestTimes {
    /// From the request to the end of its connection.
    pub(crate) connection: Histogram,
    /// From the request to the first byte of the answer.
    pub(crate) first_byte: Histogram,
}

impl Default for RequestTimes {
    fn default() -> Self {
        Self { connection: Histogram::new(&CONNECTION_ENDS_US), first_byte: Histogram::new(&DIAL_ENDS_US) }
    }
}

/// Counters of the datagram side of an inbound on one core.
#[derive(Debug, Default)]
pub(crate) struct DatagramMetrics {
    /// Payload bytes in them, which are among those of the inbound.
    pub(crate) traffic: Traffic,
    /// From clients, passed on.
    pub(crate) up: Counter,
    /// To clients, passed on.
    pub(crate) down: Counter,
    /// Flows that live.
    pub(crate) flows: Gauge,
    /// Flows that have begun.
    pub(crate) begun: Counter,
    /// Flows that had to make room for others.
    pub(crate) evicted: Counter,
    /// Flows that ended because their only target is not there.
    pub(crate) unreachable: Counter,
    /// Datagrams that went no further, by cause.
    pub(crate) dropped: Dropped,
}

/// Datagrams that went no further, by cause.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    /// Does not open under the key, or is not from the associated client.
    pub(crate) authentication: Counter,
    /// Was there before.
    pub(crate) replay: Counter,
    /// Is stamped with a time too far from ours.
    pub(crate) clock: Counter,
    /// Authentic, but not a legal datagram.
    pub(crate) malformed: Counter,
    /// For a name without a usable address, or one that too many datagrams wait for.
    pub(crate) unresolved: Counter,
    /// The kernel had no room to send it, or another core no room to take it.
    pub(crate) full: Counter,
    /// Larger than the path or the protocol takes.
    pub(crate) too_big: Counter,
    /// Refused by the system for another reason.
    pub(crate) system: Counter,
    /// The rules take no such client, or reach no such target.
    pub(crate) rule: Counter,
    /// Its flow had ended.
    pub(crate) no_flow: Counter,
    /// The kernel had no room to keep it until it was received.
    pub(crate) kernel: Counter,
    /// The server that would carry it cannot be reached, or refuses datagrams.
    pub(crate) no_server: Counter,
    /// Refused by the configuration.
    pub(crate) blocked: Counter,
    /// The user may use no more, or not so fast.
    pub(crate) user_limit: Counter,
    /// For a fake address of no name.
    pub(crate) unmapped: Counter,
}

impl Dropped {
    /// Every cause with its name.
    pub(crate) fn causes(&self) -> [(&'static str, u64); 15] {
        [
            ("authentication", self.authentication.value()),
            ("replay", self.replay.value()),
            ("clock", self.clock.value()),
            ("malformed", self.malformed.value()),
            ("unresolved", self.unresolved.value()),
            ("full", self.full.value()),
            ("too-big", self.too_big.value()),
            ("system", self.system.value()),
            ("rule", self.rule.value()),
            ("no-flow", self.no_flow.value()),
            ("kernel", self.kernel.value()),
            ("no-server", self.no_server.value()),
            ("blocked", self.blocked.value()),
            ("user-limit", self.user_limit.value()),
            ("unmapped", self.unmapped.value()),
        ]
    }
}

/// Connections refused, by cause.
#[derive(Debug, Default)]
pub(crate) struct RefusedCounters {
    /// First bytes that do not authenticate: a wrong key, another protocol, or a probe.
    pub(crate) authentication: Counter,
    /// A salt that has been seen before.
    pub(crate) replay: Counter,
    /// Authentic, but the sender's clock is off.
    pub(crate) clock: Counter,
    /// Authentic, but not a legal request.
    pub(crate) malformed: Counter,
    /// Something that is not in this build.
    pub(crate) unsupported: Counter,
    /// No request within the deadline.
    pub(crate) deadline: Counter,
    /// Ended by the peer before a request.
    pub(crate) aborted: Counter,
    /// Too many connections without a request.
    pub(crate) overload: Counter,
    /// The rules take no such client, or reach no such target.
    pub(crate) rule: Counter,
    /// For a fake address of no name.
    pub(crate) unmapped: Counter,
    /// The user's bytes of the period are used up.
    pub(crate) limit_quota: Counter,
    /// The user's service has ended, or the user is gone.
    pub(crate) limit_expired: Counter,
    /// The user comes from too many addresses.
    pub(crate) limit_addresses: Counter,
    /// The user has too many connections.
    pub(crate) limit_connections: Counter,
}

impl RefusedCounters {
    /// Every cause with its name.
    pub(crate) fn causes(&self) -> [(&'static str, u64); 14] {
        [
            ("authentication", self.authentication.value()),
            ("replay", self.replay.value()),
            ("clock", self.clock.value()),
            ("malformed", self.malformed.value()),
            ("unsupported", self.unsupported.value()),
            ("deadline", self.deadline.value()),
            ("aborted", self.aborted.value()),
            ("overload", self.overload.value()),
            ("rule", self.rule.value()),
            ("unmapped", self.unmapped.value()),
            ("limit-quota", self.limit_quota.value()),
            ("limit-expired", self.limit_expired.value()),
            ("limit-addresses", self.limit_addresses.value()),
            ("limit-connections", self.limit_connections.value()),
        ]
    }
}

/// Counters of an outbound on one core.
#[derive(Debug, Default)]
pub(crate) struct OutboundMetrics {
    /// Connections made and those that could not be made, by the time that it took.
    pub(crate) dials: Dials,
    /// Requests that went over a kept connection.
    pub(crate) reused: Counter,
    /// Kept connections that wait for a request.
    pub(crate) idle: Gauge,
    /// Connections that the server closed before any reply.
    pub(crate) early_closes: Counter,
}

/// Dials by their result and time.
#[derive(Debug)]
pub(crate) struct Dials {
    /// Connections made.
    pub(crate) ok: Histogram,
    /// Connections that could not be made.
    pub(crate) failed: Histogram,
}

impl Default for Dials {
    fn default() -> Self {
        Self { ok: Histogram::new(&DIAL_ENDS_US), failed: Histogram::new(&DIAL_ENDS_US) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_in_the_class_of_the_next_end() {
        let (one, two) = (Histogram::new(&DIAL_ENDS_US), Histogram::new(&DIAL_ENDS_US));
        assert!(Distribution::of([&one, &two]).is_empty());
        for micros in [0, 5_000, 5_001, 10_000_000, 10_000_001] {
            one.note_time(Duration::from_micros(micros));
        }
        two.note_time_alone(Duration::MAX);
        let all = Distribution::of([&one]);
        assert_eq!(all.counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((all.sum, all.count()), (20_010_002, 5));
        let all = Distribution::of([&one, &two]);
        assert_eq!((all.counts[11], all.sum, &all.ends[..]), (2, u64::MAX, &DIAL_ENDS_US[..]));
    }
}
