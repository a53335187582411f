//! Counts of datagrams that pass, and the reasons why others do not.

use std::io;

use adit_net::reach::Private;
use adit_net::udp::Sent;
use adit_proto::wire::WireError;

use crate::counters::{Counter, Dropped, InboundMetrics};

/// Counts of a turn, which go to the metrics at its end.
#[derive(Default)]
pub(crate) struct Tally {
    /// Datagrams from clients, and their payload in bytes.
    pub(crate) up: u64,
    pub(crate) up_bytes: u64,
    /// Datagrams to clients, and their payload in bytes.
    pub(crate) down: u64,
    pub(crate) down_bytes: u64,
}

/// Why a datagram goes no further.
#[derive(Debug)]
pub(crate) enum DropReason {
    /// It is not a legal datagram of a client or server with the key.
    Wire(WireError),
    /// Its target's name has no usable address, or no outbound carries it at this time.
    Unresolved,
    /// It is longer than the path or the protocol takes.
    TooBig,
    /// No room in the batch: to be tried again when it has been sent.
    NoPlace,
    /// The system gives no socket.
    System(io::Error),
    /// Its flow has just ended.
    Gone,
    /// The mailbox of the core that has its client is full.
    Mailbox,
    /// Too much waits for the stream that would carry it.
    Backlog,
    /// The stream that would carry it has just failed.
    Down,
    /// The configuration refuses datagrams of its kind.
    Blocked,
    /// A rule refuses it.
    Rule,
    /// A rule refuses it, and its sender is not to be told.
    Silence,
    /// Its target is a fake address of no name.
    Unmapped,
    /// Its target's address may not be used.
    Private(Private),
    /// The user may use no more, or not so fast.
    Limited,
}

impl From<WireError> for DropReason {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl DropReason {
    /// Counts a datagram of `inbound` under its reason.
    pub(crate) fn count(&self, inbound: &str, dropped: &Dropped) {
        let counter = match self {
            Self::Wire(WireError::Authentication { .. }) => &dropped.authentication,
            Self::Wire(WireError::Replayed { .. }) => &dropped.replay,
            Self::Wire(WireError::Clock { .. }) => &dropped.clock,
            Self::Wire(_) => &dropped.malformed,
            Self::Unresolved => &dropped.unresolved,
            Self::TooBig | Self::NoPlace => &dropped.too_big,
            Self::System(error) => {
                tracing::debug!(inbound, %error, "no socket for a flow");
                &dropped.system
            }
            Self::Gone => &dropped.no_flow,
            Self::Mailbox | Self::Backlog => &dropped.full,
            Self::Down => &dropped.no_server,
            Self::Blocked => &dropped.blocked,
            Self::Rule | Self::Silence | Self::Private(_) => &dropped.rule,
            Self::Limited => &dropped.user_limit,
            Self::Unmapped => &dropped.unmapped,
        };
        counter.add(1);
        if let Self::Wire(error) = self {
            tracing::trace!(inbound, %error, "datagram dropped");
        }
    }
}

impl Tally {
    /// Adds the counts to the metrics and begins anew.
    pub(crate) fn report(&mut self, metrics: &InboundMetrics) {
        let add = |counter: &Counter, count: u64| {
            if count > 0 {
                counter.add(count);
            }
        };
        let Self { up, up_bytes, down, down_bytes } = std::mem::take(self);
        add(&metrics.datagrams.up, up);
        add(&metrics.traffic.up, up_bytes);
        add(&metrics.datagrams.traffic.up, up_bytes);
        add(&metrics.datagrams.down, down);
        add(&metrics.traffic.down, down_bytes);
        add(&metrics.datagrams.traffic.down, down_bytes);
    }
}

impl Dropped {
    /// Counts what could not be sent.
    pub(crate) fn note(&self, sent: &Sent) {
        for (counter, count) in
            [(&self.full, sent.full), (&self.too_big, sent.too_big), (&self.system, sent.failed)]
        {
            if count > 0 {
                counter.add(count as u64);
            }
        }
    }
}
