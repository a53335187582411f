//! The choice among the members of a group over one transport: results of checks go in, a choice comes out.
//!
//! - A member is dead after two failed checks in a row. One that is dead is left at once if another one answers.
//! - A member that answers is left for one whose score is lower by the tolerance, and no sooner than [`DWELL`] after
//!   the last change: servers that are about as good as each other do not take turns.
//! - With all of them dead the choice stays, unless another one can at least be connected to.
//!
//! Time is an argument.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use adit_model::Check;

use super::track::{CheckFailure, MemberHealth, Track};

/// A change for the better waits until the last change is so long ago.
pub(super) const DWELL: Duration = Duration::from_secs(30);
/// Two checks of one member begin at least so far apart, except for the second look after a failure.
pub(super) const GAP: Duration = Duration::from_secs(1);
/// The member in use gets no less time to answer than this, and no more than [`PATIENCE`] times what it takes usually.
pub(super) const LEAST_TIMEOUT: Duration = Duration::from_secs(1);
const PATIENCE: u32 = 3;
/// Checks of one group that are under way at the same time; the member in use does not wait for the others.
const MAX_CHECKS: usize = 16;

/// Another member is used from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberSwitch {
    /// The one before; `None` if it is no longer a member.
    pub(crate) from: Option<usize>,
    /// The one from now on.
    pub(crate) to: usize,
    /// The reason for the choice.
    pub(crate) why: String,
}

/// The members of a group over one transport.
#[derive(Debug)]
pub(crate) struct TransportMembers {
    tracks: Vec<Track>,
    check: Check,
    chosen: usize,
    why: String,
    changed_at: Option<Instant>,
    is_started: bool,
}

/// One member over one transport, for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// Its health; `None` for a member of weight 0.
    pub(crate) health: Option<MemberHealth>,
    /// Preference in percent.
    pub(crate) weight: u8,
    /// The median of its latest answers.
    pub(crate) latency: Option<Duration>,
    /// Failed ones among its latest checks, in percent.
    pub(crate) loss: u32,
    /// Failed checks in a row.
    pub(crate) failures: u32,
    /// Score by which members are compared.
    pub(crate) score: Option<Duration>,
    /// Reason for the failure of the latest check.
    pub(crate) failure: Option<CheckFailure>,
}

impl TransportMembers {
    /// Members with these weights, of which none has been checked.
    pub(crate) fn new(weights: impl IntoIterator<Item = u8>, check: &Check, now: Instant) -> Self {
        let tracks: Vec<Track> = weights.into_iter().map(|weight| Track::new(weight, now)).collect();
        let mut lane = Self {
            tracks,
            check: check.clone(),
            chosen: 0,
            why: String::new(),
            changed_at: None,
            is_started: false,
        };
        lane.choose_first();
        lane
    }

    /// The member with most weight, the first of several.
    fn choose_first(&mut self) {
        let first = (0..self.tracks.len()).max_by_key(|&i| (self.tracks[i].weight, Reverse(i)));
        self.chosen = first.unwrap_or(0);
        self.why = "the first of those with most weight: nothing is known yet".into();
    }

    /// Checks begin. Until they tell, the member that is `used` for something else is as good as any.
    pub(crate) fn start(&mut self, used: Option<usize>, now: Instant) {
        if std::mem::replace(&mut self.is_started, true) {
            return;
        }
        self.tracks.iter_mut().for_each(|track| track.next_at = now);
        if let Some(used) = used.filter(|&used| self.tracks.get(used).is_some_and(|track| track.weight > 0)) {
            self.chosen = used;
            self.why = "the one that is used for streams: nothing else is known yet".into();
        }
    }

    /// Whether they have.
    pub(crate) fn is_started(&self) -> bool {
        self.is_started
    }

    /// The member to use; `None` if there is none that may be.
    pub(crate) fn chosen(&self) -> Option<usize> {
        self.tracks.get(self.chosen).filter(|track| track.weight > 0).map(|_| self.chosen)
    }

    /// The reason for the choice.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// The members to try for one request, best first: the choice, then what answers, then the rest.
    pub(crate) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tracks.len()).filter(|&i| self.tracks[i].weight > 0).collect();
        order.sort_by_key(|&i| (i != self.chosen, self.rank(i)));
        order
    }

    /// Less is better.
    fn rank(&self, index: usize) -> impl Ord + use<> {
        let track = &self.tracks[index];
        let class = match track.health() {
            MemberHealth::Alive => 0,
            MemberHealth::Doubtful => 1,
            MemberHealth::Unknown => 2,
            MemberHealth::Dead => 3,
        };
        let score = track.score(self.check.timeout).filter(|_| class < 2);
        let failure = track.failure().filter(|_| class == 3);
        (class, score, failure, Reverse(track.answered_at), Reverse(track.weight), index)
    }

    /// The next member to check, and for how long to wait; `None` if none is due.
    pub(crate) fn poll_check(&mut self, now: Instant) -> Option<(usize, Duration)> {
        let is_due = |track: &Track| track.weight > 0 && !track.is_checking && track.next_at <= now;
        if !self.is_started {
            return None;
        }
        let index = if self.tracks.get(self.chosen).is_some_and(is_due) {
            self.chosen
        } else if self.tracks.iter().filter(|track| track.is_checking).count() < MAX_CHECKS {
            let due = self.tracks.iter().enumerate().filter(|(_, track)| is_due(track));
            due.min_by_key(|(_, track)| track.next_at)?.0
        } else {
            return None;
        };
        let timeout = self.timeout(index);
        let track = &mut self.tracks[index];
        (track.is_checking, track.is_nudged, track.begun_at) = (true, false, Some(now));
        Some((index, timeout))
    }

    /// The member in use is given up soon, the others are given all the time to show what they can.
    fn timeout(&self, index: usize) -> Duration {
        let most = self.check.timeout;
        match self.tracks[index].latency() {
            Some(latency) if index == self.chosen => (latency * PATIENCE).max(LEAST_TIMEOUT).min(most),
            _ => most,
        }
    }

    /// When [`TransportMembers::poll_check`] is to be asked again, unless something comes before.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        let waiting = self.tracks.iter().filter(|track| track.weight > 0 && !track.is_checking);
        waiting.map(|track| track.next_at).min().filter(|_| self.is_started)
    }

    /// A check is over.
    pub(crate) fn handle_check(
        &mut self,
        index: usize,
        result: Result<Duration, CheckFailure>,
        now: Instant,
    ) -> Option<MemberSwitch> {
        let is_chosen = index == self.chosen;
        let interval = if is_chosen { self.check.interval_in_use } else { self.check.interval };
        let track = self.tracks.get_mut(index)?;
        track.is_checking = false;
        track.note(result, now);
        // One failure may be chance: a second look tells.
        let wait = if track.health() == MemberHealth::Doubtful { Duration::ZERO } else { interval };
        track.next_at = now + wait;
        if std::mem::take(&mut track.is_nudged) {
            self.nudge(index, now);
        }
        self.decide(now)
    }

    /// There is a reason to look at a member before its time. True if that is new.
    pub(crate) fn nudge(&mut self, index: usize, now: Instant) -> bool {
        let Some(track) = self.tracks.get_mut(index) else { return false };
        if track.is_checking {
            track.is_nudged = true;
            return false;
        }
        let at = track.begun_at.map_or(now, |begun| now.max(begun + GAP));
        let is_sooner = self.is_started && at < track.next_at;
        if is_sooner {
            track.next_at = at;
        }
        is_sooner
    }

    /// A client of ours got no connection to a member.
    pub(crate) fn handle_refusal(&mut self, index: usize, now: Instant) -> Option<MemberSwitch> {
        self.tracks.get_mut(index)?.note_refusal(now);
        self.nudge(index, now);
        self.decide(now)
    }

    /// Other members from now on: each with its weight, and its place so far.
    pub(crate) fn replace(&mut self, members: &[(u8, Option<usize>)], now: Instant) -> Option<MemberSwitch> {
        let kept = |&(weight, old): &(u8, Option<usize>)| match old.and_then(|old| self.tracks.get(old)) {
            Some(track) => {
                let mut track = track.clone();
                track.weight = weight;
                track
            }
            None => Track::new(weight, now),
        };
        let tracks: Vec<Track> = members.iter().map(kept).collect();
        let chosen = members.iter().position(|&(weight, old)| weight > 0 && old == Some(self.chosen));
        let was_empty = self.chosen().is_none();
        self.tracks = tracks;
        if let Some(chosen) = chosen {
            self.chosen = chosen;
            return self.decide(now);
        }
        self.choose_first();
        self.chosen = (0..self.tracks.len())
            .filter(|&i| self.tracks[i].weight > 0)
            .min_by_key(|&i| self.rank(i))
            .unwrap_or(self.chosen);
        self.changed_at = None;
        self.chosen().map(|to| {
            let why = if was_empty { "there was none before" } else { "the one before is no longer listed" };
            self.why = why.into();
            MemberSwitch { from: None, to, why: self.why.clone() }
        })
    }

    fn decide(&mut self, now: Instant) -> Option<MemberSwitch> {
        let current = self.tracks.get(self.chosen)?;
        let best = (0..self.tracks.len())
            .filter(|&i| i != self.chosen && self.tracks[i].weight > 0)
            .min_by_key(|&i| self.rank(i))?;
        let other = &self.tracks[best];
        let why = match current.health() {
            // Of one that is not known yet nothing bad is known, and a bad one may still be one that is there.
            MemberHealth::Dead
                if other.health() == MemberHealth::Alive || other.failure() < current.failure() =>
            {
                self.because_dead(best)
            }
            MemberHealth::Alive if other.health() == MemberHealth::Alive => self.because_better(best, now)?,
            MemberHealth::Unknown | MemberHealth::Doubtful | MemberHealth::Alive | MemberHealth::Dead => {
                return None;
            }
        };
        let from = std::mem::replace(&mut self.chosen, best);
        (self.changed_at, self.why) = (Some(now), why.clone());
        let track = &mut self.tracks[best];
        track.next_at = track.next_at.min(now + self.check.interval_in_use);
        Some(MemberSwitch { from: Some(from), to: best, why })
    }

    fn because_dead(&self, best: usize) -> String {
        let current = &self.tracks[self.chosen];
        let failure = current.failure().map_or("does not answer", CheckFailure::text);
        let failures = current.failures();
        let other = &self.tracks[best];
        let now = match (other.health() == MemberHealth::Alive, other.latency(), other.failure()) {
            (true, Some(latency), _) => format!("this one answers in {}", milliseconds(latency)),
            (false, _, Some(failure)) => format!("this one {}", failure.text()),
            (_, None, _) | (_, _, None) => "this one is not known yet".into(),
        };
        format!("the one before {failure} ({failures} checks in a row), {now}")
    }

    /// `None` if it is not so much better that a change is due.
    fn because_better(&self, best: usize, now: Instant) -> Option<String> {
        let (current, other) = (&self.tracks[self.chosen], &self.tracks[best]);
        let (score, less) = (current.score(self.check.timeout)?, other.score(self.check.timeout)?);
        let may_change = self.changed_at.is_none_or(|at| now.saturating_duration_since(at) >= DWELL);
        if !may_change || less.saturating_add(self.check.tolerance) >= score {
            return None;
        }
        let text = |track: &Track| {
            let latency = milliseconds(track.latency().unwrap_or_default());
            let (loss, weight) = (track.loss(), track.weight);
            let loss = if loss > 0 { format!(", loss {loss} %") } else { String::new() };
            let weight = if weight < 100 { format!(", weight {weight} %") } else { String::new() };
            format!("{latency}{loss}{weight}")
        };
        Some(format!("it answers better: {} against {}", text(other), text(current)))
    }

    /// Every member, for a person.
    pub(crate) fn reports(&self) -> impl Iterator<Item = Report> {
        self.tracks.iter().map(|track| Report {
            health: (track.weight > 0).then(|| track.health()),
            weight: track.weight,
            latency: track.latency(),
            loss: track.loss(),
            failures: track.failures(),
            score: track.score(self.check.timeout),
            failure: track.failure(),
        })
    }
}

fn milliseconds(span: Duration) -> String {
    format!("{} ms", span.as_millis())
}
