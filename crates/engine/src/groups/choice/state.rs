//! State that the cores share of one group: its members, the member that a person chose, and what has happened lately.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adit_model::{Balance, Choice, Config, DelayTest, Outbound, OutboundProtocol, Policy, Refusal, Tag};
use adit_net::rt;
use adit_proto::wire::{Rng as _, Target};

use super::board::{self, Board, Mark, TestResults};
use super::pick::{self, MemberView, Sticky};
use crate::rng::OsRng;

/// Stands for no member.
const NOBODY: usize = usize::MAX;

/// One member of a group.
#[derive(Debug)]
pub(super) struct ChoiceMember {
    pub(super) name: Tag,
    pub(super) nature: MemberKind,
    record: Arc<TestResults>,
    pub(super) mark: Arc<Mark>,
}

/// The nature of a member, as far as a choice asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberKind {
    /// Another group.
    Group,
    /// Requests go on to the next rule.
    Pass,
    /// It can never be used.
    Dead {
        /// It carries datagrams by the word of the file.
        udp: bool,
    },
    /// It refuses: nothing is tested.
    Refusing,
    /// A way out.
    Leaf {
        /// It carries datagrams by the word of the file.
        udp: bool,
    },
}

impl MemberKind {
    fn of(protocol: &OutboundProtocol, udp: bool) -> Self {
        match protocol.refusal() {
            _ if protocol.as_choice().is_some() => Self::Group,
            Some(Refusal::Pass) => Self::Pass,
            Some(Refusal::Dead { udp, .. }) => Self::Dead { udp: *udp },
            Some(Refusal::Drop) => Self::Refusing,
            None if protocol.refuses() => Self::Refusing,
            None => Self::Leaf { udp },
        }
    }
}

impl ChoiceMember {
    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.nature, MemberKind::Dead { .. }) && self.record.is_alive(&self.mark)
    }

    pub(super) fn record(&self) -> &TestResults {
        &self.record
    }

    fn seen(&self) -> MemberView {
        MemberView { is_alive: self.is_alive(), delay: self.mark.delay() }
    }
}

/// The members of a group at one time.
#[derive(Debug)]
pub(super) struct ChoiceRoster {
    pub(super) generation: u64,
    pub(super) model: Choice,
    pub(super) members: Vec<ChoiceMember>,
    /// The place of the member that a person chose.
    fixed: AtomicUsize,
    /// The place of the member in use, for a group that keeps it while it is good enough.
    current: AtomicUsize,
}

impl ChoiceRoster {
    fn place(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|member| *member.name == *name)
    }

    /// The place of the member that a person chose.
    pub(super) fn fixed(&self) -> Option<usize> {
        let fixed = self.fixed.load(Ordering::Relaxed);
        (fixed < self.members.len()).then_some(fixed)
    }

    /// The place of the member that requests take at this time; `None` where each may take another one, or where there is
    /// none.
    pub(super) fn now(&self) -> Option<usize> {
        let is_alive = |at: &usize| self.members[*at].is_alive();
        match &self.model.policy {
            _ if self.members.is_empty() => None,
            Policy::Select(_) => {
                let first = || self.model.first().and_then(|first| self.place(first)).unwrap_or(0);
                Some(self.fixed().unwrap_or_else(first))
            }
            Policy::UrlTest(tolerance) => Some(match self.fixed().filter(is_alive) {
                Some(fixed) => fixed,
                None => self.least_delay(*tolerance),
            }),
            Policy::Fallback => {
                let fixed = self.fixed();
                if fixed.is_some_and(|at| !is_alive(&at)) {
                    // As in mihomo: once it is seen dead it is no longer fixed.
                    self.fixed.store(NOBODY, Ordering::Relaxed);
                }
                let first = || pick::first_alive(self.members.iter().map(ChoiceMember::seen));
                Some(fixed.filter(is_alive).unwrap_or_else(first))
            }
            Policy::LoadBalance(_) => None,
        }
    }

    fn least_delay(&self, tolerance: Duration) -> usize {
        let seen: Vec<MemberView> = self.members.iter().map(ChoiceMember::seen).collect();
        let current = Some(self.current.load(Ordering::Relaxed)).filter(|at| *at < seen.len());
        let tolerance = u32::try_from(tolerance.as_millis()).unwrap_or(u32::MAX);
        let best = pick::least_delay(&seen, current, tolerance).unwrap_or(0);
        // As long as nothing is known, nobody is kept for being good enough.
        if seen.get(best).is_some_and(|seen| seen.delay < board::NEVER) {
            self.current.store(best, Ordering::Relaxed);
        }
        best
    }
}

/// A group at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct ChoiceView {
    /// Its configuration: policy, test, and what control programs are to show.
    pub model: Choice,
    /// Its members, in order.
    pub all: Vec<Tag>,
    /// The member that requests take; `None` where each may take another one, or where there is none.
    pub now: Option<Tag>,
    /// The member that a person has fixed.
    pub fixed: Option<Tag>,
}

/// State that the cores share of one group.
#[derive(Debug)]
pub(crate) struct ChoiceShared {
    name: Tag,
    since: Instant,
    board: Arc<Board>,
    generation: AtomicU64,
    /// The latest request, in milliseconds since `since` and one more; 0 for none.
    used_at: AtomicU64,
    turn: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    roster: Arc<ChoiceRoster>,
    /// The name that a person chose. It stays while the member is away.
    wanted: Option<Tag>,
    sticky: Sticky,
    /// Failed connections, and the first of them.
    failures: (u32, Option<Instant>),
    checker: Option<Waker>,
    /// Members are to be tested before their time.
    is_woken: bool,
}

impl ChoiceShared {
    /// The group `name` among the outbounds of `config`, with the member that a person chose in an earlier life.
    pub(crate) fn new(
        name: &Tag,
        model: &Choice,
        config: &Config,
        board: &Arc<Board>,
        wanted: Option<Tag>,
    ) -> Self {
        let roster = roster(0, model, config, board);
        if let Some(place) = wanted.as_ref().and_then(|wanted| roster.place(wanted)) {
            roster.fixed.store(place, Ordering::Relaxed);
        }
        let state = State {
            roster: Arc::new(roster),
            wanted,
            sticky: Sticky::default(),
            failures: (0, None),
            checker: None,
            is_woken: false,
        };
        Self {
            name: name.clone(),
            since: rt::now(),
            board: board.clone(),
            generation: AtomicU64::new(0),
            used_at: AtomicU64::new(0),
            turn: AtomicUsize::new(0),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn name(&self) -> &Tag {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn roster(&self) -> Arc<ChoiceRoster> {
        self.state().roster.clone()
    }

    /// Whether one of these outbounds is a member.
    pub(crate) fn has_one_of(&self, names: &BTreeSet<Tag>) -> bool {
        self.roster().members.iter().any(|member| names.contains(&member.name))
    }

    /// The group as it is.
    pub(crate) fn view(&self) -> ChoiceView {
        let roster = self.roster();
        let name = |at: usize| roster.members[at].name.clone();
        ChoiceView {
            model: roster.model.clone(),
            all: roster.members.iter().map(|member| member.name.clone()).collect(),
            now: roster.now().map(name),
            fixed: roster.fixed().map(name),
        }
    }

    /// The roster, if it is another one than that of `generation`.
    pub(super) fn newer_than(&self, generation: u64) -> Option<Arc<ChoiceRoster>> {
        (self.generation.load(Ordering::Acquire) != generation).then(|| self.roster())
    }

    /// Other members or another way to choose among them. True if anything is other than before; what is known of members
    /// stays, and so does the member that a person chose, by its name.
    pub(crate) fn change(&self, model: &Choice, config: &Config) -> bool {
        let mut state = self.state();
        let old = state.roster.clone();
        let fresh = roster(old.generation + 1, model, config, &self.board);
        let natures =
            |roster: &ChoiceRoster| roster.members.iter().map(|member| member.nature).collect::<Vec<_>>();
        if fresh.model == old.model && natures(&fresh) == natures(&old) {
            return false;
        }
        let place = |name: Option<&Tag>| name.and_then(|name| fresh.place(name)).unwrap_or(NOBODY);
        let current = old.members.get(old.current.load(Ordering::Relaxed)).map(|member| &member.name);
        fresh.current.store(place(current), Ordering::Relaxed);
        fresh.fixed.store(place(state.wanted.as_ref()), Ordering::Relaxed);
        state.roster = Arc::new(fresh);
        state.sticky.clear();
        state.wake();
        self.generation.store(old.generation + 1, Ordering::Release);
        true
    }

    /// Fixes a member; `None` lets the group choose by itself. False if it is no member.
    pub(crate) fn fix(&self, member: Option<&str>) -> bool {
        let mut state = self.state();
        let place = match member {
            None => NOBODY,
            Some(name) => match state.roster.place(name) {
                Some(place) => place,
                None => return false,
            },
        };
        state.roster.fixed.store(place, Ordering::Relaxed);
        state.wanted = member.map(Tag::from);
        true
    }

    /// A request uses the group.
    pub(super) fn note_use(&self, now: Instant) {
        let at = now.saturating_duration_since(self.since).as_millis();
        self.used_at.store(u64::try_from(at).unwrap_or(u64::MAX).saturating_add(1), Ordering::Relaxed);
    }

    /// Whether a request has used it within `time`.
    pub(crate) fn is_used_within(&self, time: Duration, now: Instant) -> bool {
        let at = self.used_at.load(Ordering::Relaxed);
        at > 0 && now.saturating_duration_since(self.since) <= Duration::from_millis(at - 1) + time
    }

    /// The place of the member for a request of `source`.
    pub(super) fn pick(
        &self,
        roster: &ChoiceRoster,
        target: &Target,
        source: Option<std::net::IpAddr>,
        now: Instant,
    ) -> Option<usize> {
        let Policy::LoadBalance(balance) = &roster.model.policy else { return roster.now() };
        let count = roster.members.len();
        let is_alive = |at: usize| roster.members[at].is_alive();
        if count == 0 {
            return None;
        }
        Some(match balance {
            Balance::Consistent => {
                let key = pick::hash(&[pick::target_key(&target.host).as_bytes()]);
                pick::by_key(key, count, is_alive)
            }
            Balance::RoundRobin => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                let turns = (0..count).map(|n| turn.wrapping_add(n) % count);
                turns.into_iter().find(|at| is_alive(*at)).unwrap_or(turn % count)
            }
            Balance::Sticky => {
                let source = source.map(|ip| ip.to_string()).unwrap_or_default();
                let key = pick::hash(&[source.as_bytes(), pick::target_key(&target.host).as_bytes()]);
                let draw = || pick::by_key(u64::from(OsRng.below(u32::MAX)), count, is_alive);
                let mut state = self.state();
                // Places are those of the roster at hand; with another one the table begins anew.
                state.sticky.pick(key, now, |at| at < count && is_alive(at), draw)
            }
        })
    }

    /// A connection over a member has failed; enough of them have all members tested before their time.
    pub(super) fn note_failure(&self, is_refused: bool, now: Instant) {
        let mut state = self.state();
        let DelayTest { timeout, max_failed, .. } = state.roster.model.test;
        let (count, first) = state.failures;
        let (count, first) = match first {
            Some(first) if now.saturating_duration_since(first) <= timeout => (count + 1, first),
            Some(_) | None => (1, now),
        };
        if is_refused || count >= max_failed {
            state.failures = (0, None);
            state.wake();
        } else {
            state.failures = (count, Some(first));
        }
    }

    /// Ready when members are to be tested before their time.
    pub(super) fn poll_woken(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if std::mem::take(&mut state.is_woken) {
            return Poll::Ready(());
        }
        state.checker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl State {
    fn wake(&mut self) {
        self.is_woken = true;
        if let Some(checker) = self.checker.take() {
            checker.wake();
        }
    }
}

fn roster(generation: u64, model: &Choice, config: &Config, board: &Board) -> ChoiceRoster {
    let by_name: HashMap<&str, &Outbound> =
        config.outbounds.iter().map(|outbound| (&*outbound.name, outbound)).collect();
    let member = |name: &Tag| {
        let outbound = by_name.get(&**name)?;
        let record = board.record(name);
        let mark = record.mark(&model.test.url);
        let nature = MemberKind::of(&outbound.protocol, outbound.says_datagrams());
        Some(ChoiceMember { name: name.clone(), nature, record, mark })
    };
    ChoiceRoster {
        generation,
        model: model.clone(),
        members: model.members.iter().filter_map(member).collect(),
        fixed: AtomicUsize::new(NOBODY),
        current: AtomicUsize::new(NOBODY),
    }
}
