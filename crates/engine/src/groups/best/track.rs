//! Health of one member over one transport.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Results of checks that are remembered: enough that one stray answer moves the median little, few enough that a
/// change of the path shows within a minute at the usual interval.
const WINDOW: u32 = 8;

/// Failed checks in a row after which a member counts as dead.
pub(super) const DEAD_AFTER: u32 = 2;

/// Kind of a check's failure, worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CheckFailure {
    /// The server was there, but what was asked through it did not answer.
    NoAnswer,
    /// There was no connection to the server.
    NoConnection,
}

impl CheckFailure {
    /// In words, behind the member's name.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::NoAnswer => "does not answer checks",
            Self::NoConnection => "cannot be connected to",
        }
    }
}

/// Health of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemberHealth {
    /// Not checked yet.
    Unknown,
    /// It answers.
    Alive,
    /// The latest check failed, which may be chance.
    Doubtful,
    /// So many checks in a row failed that it is not used while another one answers.
    Dead,
}

/// The record of one member over one transport.
#[derive(Debug, Clone)]
pub(super) struct Track {
    /// Percent; 0 for a member that is never used.
    pub(super) weight: u8,
    /// When the next check is due.
    pub(super) next_at: Instant,
    /// When the latest one began.
    pub(super) begun_at: Option<Instant>,
    /// Whether it is still under way.
    pub(super) is_checking: bool,
    /// Whether there is a reason for another one as soon as it is over.
    pub(super) is_nudged: bool,
    /// When the last good answer came.
    pub(super) answered_at: Option<Instant>,
    window: VecDeque<Option<Duration>>,
    failures: u32,
    failure: Option<CheckFailure>,
}

impl Track {
    pub(super) fn new(weight: u8, now: Instant) -> Self {
        Self {
            weight,
            next_at: now,
            begun_at: None,
            is_checking: false,
            is_nudged: false,
            answered_at: None,
            window: VecDeque::with_capacity(WINDOW as usize),
            failures: 0,
            failure: None,
        }
    }

    pub(super) fn note(&mut self, result: Result<Duration, CheckFailure>, now: Instant) {
        if self.window.len() == WINDOW as usize {
            self.window.pop_front();
        }
        self.window.push_back(result.ok());
        match result {
            Ok(_) => {
                self.answered_at = Some(now);
                (self.failures, self.failure) = (0, None);
            }
            Err(failure) => {
                self.failures = self.failures.saturating_add(1);
                self.failure = Some(failure);
            }
        }
    }

    /// Records that a client of ours got no connection. A member with checks is checked again; for a member without
    /// checks this counts as a failed check.
    pub(super) fn note_refusal(&mut self, now: Instant) {
        match self.health() {
            MemberHealth::Alive => {}
            MemberHealth::Unknown | MemberHealth::Doubtful => self.note(Err(CheckFailure::NoConnection), now),
            MemberHealth::Dead => self.failure = Some(CheckFailure::NoConnection),
        }
    }

    pub(super) fn health(&self) -> MemberHealth {
        match (self.failures, self.window.is_empty()) {
            (_, true) => MemberHealth::Unknown,
            (0, false) => MemberHealth::Alive,
            (failures, false) if failures < DEAD_AFTER => MemberHealth::Doubtful,
            _ => MemberHealth::Dead,
        }
    }

    /// Reason for the failure of the latest check, if it failed.
    pub(super) fn failure(&self) -> Option<CheckFailure> {
        self.failure
    }

    /// Failed checks in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// The median of the answers that are remembered.
    pub(super) fn latency(&self) -> Option<Duration> {
        let mut answers: Vec<Duration> = self.window.iter().flatten().copied().collect();
        answers.sort_unstable();
        answers.get(answers.len() / 2).copied()
    }

    /// Failed checks among those that are remembered, in percent.
    pub(super) fn loss(&self) -> u32 {
        u32::try_from(self.lost() * 100 / self.window.len().max(1)).unwrap_or(100)
    }

    fn lost(&self) -> usize {
        self.window.iter().filter(|answer| answer.is_none()).count()
    }

    /// Score by which members are compared, less is better: the latency and a toll for loss, by the weight. The first
    /// failure among the last eight checks is chance and costs nothing, the next one costs 1/64 of `timeout`, and so
    /// on by the square. `None` without an answer, or for weight 0.
    pub(super) fn score(&self, timeout: Duration) -> Option<Duration> {
        let latency = self.latency()?;
        let beyond = u32::try_from(self.lost().saturating_sub(1)).unwrap_or(u32::MAX);
        let toll = timeout.saturating_mul(beyond * beyond) / (WINDOW * WINDOW);
        let cost = latency.saturating_add(toll).saturating_mul(100);
        (self.weight > 0).then(|| cost / u32::from(self.weight))
    }
}
