//! Counters, each beside its meaning. A core adds to its own; readers sum them up.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
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
    /// Connections refused, by cause.
    pub(crate) refused: Refused,
    /// Datagrams, where the inbound takes them.
    pub(crate) datagrams: DatagramMetrics,
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
pub(crate) struct Refused {
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
    pub(crate) limit: Counter,
    /// The rules take no such client, or reach no such target.
    pub(crate) rule: Counter,
    /// For a fake address of no name.
    pub(crate) unmapped: Counter,
}

impl Refused {
    /// Every cause with its name.
    pub(crate) fn causes(&self) -> [(&'static str, u64); 10] {
        [
            ("authentication", self.authentication.value()),
            ("replay", self.replay.value()),
            ("clock", self.clock.value()),
            ("malformed", self.malformed.value()),
            ("unsupported", self.unsupported.value()),
            ("deadline", self.deadline.value()),
            ("aborted", self.aborted.value()),
            ("limit", self.limit.value()),
            ("rule", self.rule.value()),
            ("unmapped", self.unmapped.value()),
        ]
    }
}

/// Counters of an outbound on one core.
#[derive(Debug, Default)]
pub(crate) struct OutboundMetrics {
    /// Connections made.
    pub(crate) dialled: Counter,
    /// Connections that could not be made.
    pub(crate) failed: Counter,
    /// Requests that went over a kept connection.
    pub(crate) reused: Counter,
    /// Kept connections that wait for a request.
    pub(crate) idle: Gauge,
    /// Connections that the server closed before any reply.
    pub(crate) early_closes: Counter,
}
