//! The parts of the snapshot that only the cores know, and the health of the process.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use adit_net::rt;
use serde::{Deserialize, Serialize};

use super::{CounterDirectory, Status};
use crate::connections::listing::{Ask, Kicked};
use crate::observe::loop_lag::{LAG_ENDS_US, LoopLag};

/// Most connections in a list: some 3 MB as JSON.
const MOST_CONNECTIONS: usize = 10_000;
/// A core answers within this time, or is left out.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the process serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessHealth {
    /// Every event loop turns.
    pub is_live: bool,
    /// Connections are accepted.
    pub is_ready: bool,
    /// The first reason why one of them does not hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Lateness of one event loop, whose second hand should move once a second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LagStatus {
    /// Beats by lateness: up to 0.5, 1, 5, 10, 50, 100, 500, 1000 and 5000 ms, and later.
    pub counts: Vec<u64>,
    /// Lateness of all beats together, in microseconds.
    pub sum_us: u64,
}

impl LagStatus {
    /// Upper ends of the classes of [`LagStatus::counts`] but the last, in microseconds.
    pub const ENDS_US: &[u64] = &LAG_ENDS_US;

    pub(super) fn of(pulse: &LoopLag) -> Self {
        let lags = pulse.lags();
        Self { counts: lags.counts.to_vec(), sum_us: lags.sum_us }
    }
}

impl CounterDirectory {
    /// The inbounds are open from now on.
    pub(crate) fn set_open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// Returns when the process drains.
    pub(crate) async fn draining(&self) {
        self.stop.clone().draining().await;
    }

    /// Whether every core has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.pulses.iter().all(LoopLag::has_ended)
    }

    /// Whether the process serves.
    pub(crate) fn health(&self, now: Instant) -> ProcessHealth {
        let stuck = self.pulses.iter().position(|pulse| pulse.is_stuck(self.since, now));
        let is_open = self.is_open.load(Ordering::Relaxed);
        let reason = match stuck {
            Some(core) => Some(format!("event loop {core} has been stuck for more than 5 s")),
            None if self.stop.is_draining() => Some("draining: no new connections are accepted".into()),
            None if !is_open => Some("starting: inbounds are not open yet".into()),
            None if self.budget.is_short_of_memory() => Some("memory budget is used up".into()),
            None => None,
        };
        ProcessHealth { is_live: stuck.is_none(), is_ready: reason.is_none(), reason }
    }

    /// The present state with the open connections.
    pub(crate) async fn snapshot(&self, now: Instant) -> Status {
        let (parts, mut answers) = rt::orders();
        self.ask(Ask::List { most: MOST_CONNECTIONS, parts });
        let mut status = self.status(now);
        let gather = async {
            while let Some(part) = answers.next().await {
                status.connections.extend(part.connections);
                status.connections_left_out += part.left_out;
            }
        };
        // Those that are late are left out.
        rt::timeout(PATIENCE, gather).await.ok();
        status.connections.sort_unstable_by_key(|connection| connection.id);
        let more = status.connections.len().saturating_sub(MOST_CONNECTIONS);
        status.connections_left_out += more as u64;
        status.connections.truncate(MOST_CONNECTIONS);
        status
    }

    /// Ends connections, and says how many.
    pub(crate) async fn kick(&self, of: Kicked) -> u64 {
        let (counts, mut answers) = rt::orders();
        self.ask(Ask::Kick { of, counts });
        let mut count = 0;
        let gather = async {
            while let Some(one) = answers.next().await {
                count += one;
            }
        };
        // Those that are late are left out.
        rt::timeout(PATIENCE, gather).await.ok();
        count
    }

    /// Asks every core. The question itself goes, so that the answers have an end.
    fn ask(&self, ask: Ask) {
        for core in &self.asks {
            // A core that has ended has no connections.
            let _is_heard: bool = core.send(ask.clone());
        }
        drop(ask);
    }
}
