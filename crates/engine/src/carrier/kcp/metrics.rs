//! Counters, and reports on live sessions.

use std::sync::{Mutex, PoisonError};

use adit_model::map::Map;
use serde::{Deserialize, Serialize};

use crate::counters::{Counter, Gauge};

/// Sessions that a status shows at most, for each in- or outbound.
const SHOWN: usize = 64;

/// Counters of the carrier of one inbound or outbound, all cores together.
#[derive(Debug, Default)]
pub(crate) struct KcpMetrics {
    /// Sessions that live, and the most that ever did.
    pub(crate) sessions: Gauge,
    pub(crate) most_sessions: Counter,
    /// Sessions begun by this end and by the peer.
    pub(crate) active_opens: Counter,
    pub(crate) passive_opens: Counter,
    /// Payload of sessions, before FEC and cipher.
    pub(crate) sent: Counter,
    pub(crate) received: Counter,
    /// Datagrams and their bytes.
    pub(crate) in_datagrams: Counter,
    pub(crate) in_bytes: Counter,
    pub(crate) out_datagrams: Counter,
    pub(crate) out_bytes: Counter,
    /// Segments.
    pub(crate) in_segments: Counter,
    pub(crate) out_segments: Counter,
    pub(crate) repeated: Counter,
    /// Sent again because others had overtaken them, and because nothing had been heard in time.
    pub(crate) overtaken: Counter,
    pub(crate) timed_out: Counter,
    /// Datagrams that went no further, by cause.
    pub(crate) unopened: Counter,
    pub(crate) malformed: Counter,
    pub(crate) refused: Counter,
    /// Sessions that made room for others.
    pub(crate) evicted: Counter,
    pub(crate) full: Counter,
    pub(crate) failed: Counter,
    pub(crate) kernel: Counter,
    /// Parity packets that came, packets that they repaired, and those that were illegal.
    pub(crate) parity: Counter,
    pub(crate) recovered: Counter,
    pub(crate) bad_parity: Counter,
    /// Reports on sessions, by session number.
    reports: Mutex<Map<u64, SessionStatus>>,
}

/// Sums that programs write to their own files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is named like the counter that it is the value of")]
pub struct KcpTotals {
    pub sessions: i64,
    pub most_sessions: u64,
    pub active_opens: u64,
    pub passive_opens: u64,
    pub sent: u64,
    pub received: u64,
    pub in_datagrams: u64,
    pub in_bytes: u64,
    pub out_datagrams: u64,
    pub out_bytes: u64,
    pub in_segments: u64,
    pub out_segments: u64,
    pub repeated: u64,
    pub overtaken: u64,
    pub timed_out: u64,
    pub unopened: u64,
    pub malformed: u64,
    pub refused: u64,
    #[serde(default)]
    pub evicted: u64,
    pub full: u64,
    pub failed: u64,
    pub kernel: u64,
    pub parity: u64,
    pub recovered: u64,
    pub bad_parity: u64,
}

/// The carrier of one in- or outbound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KcpStatus {
    /// Since the start.
    pub totals: KcpTotals,
    /// Sessions that live, the first of them.
    pub sessions: Vec<SessionStatus>,
}

/// One session, as it was less than two seconds ago.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The other end.
    pub peer: String,
    /// Streams that exist.
    pub streams: usize,
    /// Smoothed round trip in microseconds; 0 while unknown.
    pub rtt_us: u64,
    /// Shortest round trip in microseconds; 0 while unknown.
    pub min_rtt_us: u64,
    /// Rate of delivery that the path is believed to have, in bytes per second.
    pub rate: u64,
    /// Share of what was sent lately that had to be sent again, in thousandths.
    pub loss_permille: u32,
    /// Segments under way, and how many there may be.
    pub under_way: usize,
    /// See [`SessionStatus::under_way`].
    pub send_window: usize,
    /// Segments that may wait here.
    pub recv_window: u16,
    /// The widest window that a stream of the peer has, in bytes.
    pub stream_window: u32,
    /// Segments sent, and sent again.
    pub sent: u64,
    /// See [`SessionStatus::sent`].
    pub sent_again: u64,
    /// Data and parity packets of a group, while parity is sent.
    pub parity: Option<(usize, usize)>,
    /// Bytes held.
    pub held: usize,
    /// The limit that keeps it from sending more.
    pub limit: String,
}

impl KcpMetrics {
    /// The present sums.
    pub(crate) fn totals(&self) -> KcpTotals {
        KcpTotals {
            sessions: self.sessions.value(),
            most_sessions: self.most_sessions.value(),
            active_opens: self.active_opens.value(),
            passive_opens: self.passive_opens.value(),
            sent: self.sent.value(),
            received: self.received.value(),
            in_datagrams: self.in_datagrams.value(),
            in_bytes: self.in_bytes.value(),
            out_datagrams: self.out_datagrams.value(),
            out_bytes: self.out_bytes.value(),
            in_segments: self.in_segments.value(),
            out_segments: self.out_segments.value(),
            repeated: self.repeated.value(),
            overtaken: self.overtaken.value(),
            timed_out: self.timed_out.value(),
            unopened: self.unopened.value(),
            malformed: self.malformed.value(),
            refused: self.refused.value(),
            evicted: self.evicted.value(),
            full: self.full.value(),
            failed: self.failed.value(),
            kernel: self.kernel.value(),
            parity: self.parity.value(),
            recovered: self.recovered.value(),
            bad_parity: self.bad_parity.value(),
        }
    }

    /// Everything that a status tells.
    pub(crate) fn status(&self) -> KcpStatus {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        KcpStatus { totals: self.totals(), sessions: reports.values().take(SHOWN).cloned().collect() }
    }

    /// The number of sessions, and the bytes that the largest of them holds.
    pub(crate) fn largest(&self) -> (i64, usize) {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        (self.sessions.value(), reports.values().map(|session| session.held).max().unwrap_or_default())
    }

    /// A session has begun.
    pub(super) fn begin(&self, by_peer: bool) {
        if by_peer { &self.passive_opens } else { &self.active_opens }.add(1);
        self.sessions.add(1);
        let sessions = u64::try_from(self.sessions.value()).unwrap_or_default();
        self.most_sessions.raise(sessions);
    }

    /// Replaces the report on session `number`.
    pub(super) fn report(&self, number: u64, status: SessionStatus) {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).insert(number, status);
    }

    /// Session `number` has ended.
    pub(super) fn end(&self, number: u64) {
        self.sessions.add(-1);
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}
