//! State that the cores share of a group: its members, the choice among them, and the reasons for it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adit_model::{self as model, Check, Config, Tag};
use adit_net::rt;

use super::lane::{MemberSwitch, Report, TransportMembers};
use super::track::CheckFailure;
use crate::counters::OutboundMetrics;
use crate::outbound::OutboundFactory;

/// A member that has given no sign of life for so long is checked when it is to be used.
const STALE: Duration = Duration::from_secs(2);
/// Exchanges in a row without a byte from the server after which it is checked: one may be the target's doing.
const SILENT: u32 = 3;
/// Stands for no member.
const NOBODY: usize = usize::MAX;

/// The kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

impl Transport {
    /// Both of them.
    pub(super) const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// In a log.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// One member, on all cores.
#[derive(Debug)]
pub(crate) struct GroupMember {
    /// Its configuration.
    pub(super) outbound: model::Outbound,
    /// Its counters, if it was added later.
    pub(super) metrics: Arc<OutboundMetrics>,
    /// Percent for streams and datagrams.
    pub(super) weights: [u8; 2],
    /// The last sign of life over each transport, in milliseconds of the group's clock.
    signs: [AtomicU64; 2],
    /// Exchanges in a row that ended without a byte from the server.
    silent: AtomicU32,
    /// State that the cores need of it, if it was added later; `None` for an outbound of the configuration.
    pub(super) shared: Option<Arc<dyn OutboundFactory>>,
}

impl GroupMember {
    /// Its weight is 0 for a transport that it does not carry.
    fn new(outbound: &model::Outbound, weights: [u8; 2], shared: Option<Arc<dyn OutboundFactory>>) -> Self {
        let [tcp, udp] = weights;
        let weights = [
            if outbound.carries_streams() { tcp } else { 0 },
            if outbound.sends_datagrams() { udp } else { 0 },
        ];
        Self {
            outbound: outbound.clone(),
            metrics: Arc::default(),
            weights,
            signs: Default::default(),
            silent: AtomicU32::new(0),
            shared,
        }
    }
}

/// The members that the configuration names; `old` ones that are the same stay.
fn fixed_members(group: &model::Group, config: &Config, old: &[Arc<GroupMember>]) -> Vec<Arc<GroupMember>> {
    let member = |member: &model::Member| {
        let outbound = config.outbound(&member.outbound)?;
        let fresh = GroupMember::new(outbound, [member.tcp_weight, member.udp_weight], None);
        let is_same = |old: &&Arc<GroupMember>| {
            old.shared.is_none() && old.outbound == fresh.outbound && old.weights == fresh.weights
        };
        Some(old.iter().find(is_same).cloned().unwrap_or_else(|| Arc::new(fresh)))
    };
    group.members.iter().filter_map(member).collect()
}

/// The members at one time, and the choice among them.
#[derive(Debug)]
pub(super) struct GroupRoster {
    /// Grows with each other roster of the group.
    pub(super) generation: u64,
    pub(super) members: Vec<Arc<GroupMember>>,
    chosen: [AtomicUsize; 2],
}

impl GroupRoster {
    fn new(generation: u64, members: Vec<Arc<GroupMember>>) -> Self {
        Self { generation, members, chosen: [AtomicUsize::new(NOBODY), AtomicUsize::new(NOBODY)] }
    }

    /// The place of the member to use.
    pub(super) fn chosen(&self, transport: Transport) -> Option<usize> {
        let chosen = self.chosen[transport as usize].load(Ordering::Relaxed);
        (chosen < self.members.len()).then_some(chosen)
    }

    fn place(&self, member: &Arc<GroupMember>) -> Option<usize> {
        self.members.iter().position(|other| Arc::ptr_eq(other, member))
    }
}

/// State that the cores share of one group.
#[derive(Debug)]
pub(crate) struct GroupShared {
    name: Tag,
    check: Check,
    since: Instant,
    generation: AtomicU64,
    started: [AtomicBool; 2],
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) roster: Arc<GroupRoster>,
    pub(super) lanes: [TransportMembers; 2],
    prober: Option<Waker>,
    /// Something is to be looked at before the time that the prober sleeps for.
    is_woken: bool,
}

/// A check that is due.
pub(super) struct Due {
    pub(super) transport: Transport,
    pub(super) member: Arc<GroupMember>,
    pub(super) timeout: Duration,
}

impl GroupShared {
    /// The group `name` of outbounds of `config`, as of `now`.
    pub(crate) fn new(name: &Tag, group: &model::Group, config: &Config, now: Instant) -> Self {
        let members = fixed_members(group, config, &[]);
        let lanes = Transport::ALL.map(|transport| {
            let weights = members.iter().map(|member| member.weights[transport as usize]);
            TransportMembers::new(weights, &group.check, now)
        });
        let state =
            State { roster: Arc::new(GroupRoster::new(0, members)), lanes, prober: None, is_woken: false };
        state.publish();
        Self {
            name: name.clone(),
            check: group.check.clone(),
            since: now,
            generation: AtomicU64::new(0),
            started: Default::default(),
            state: Mutex::new(state),
        }
    }

    /// In logs and status.
    pub(crate) fn name(&self) -> &Tag {
        &self.name
    }

    /// The check by which members are compared.
    pub(crate) fn check(&self) -> &Check {
        &self.check
    }

    /// The names of the members, in their order.
    pub(crate) fn names(&self) -> Vec<Tag> {
        self.state().roster.members.iter().map(|member| member.outbound.name.clone()).collect()
    }

    /// The place of the member in use and what spoke for it, and how all of them do, for a person.
    pub(crate) fn report(&self, transport: Transport) -> (Option<(usize, String)>, Vec<Report>) {
        let state = self.state();
        let lane = &state.lanes[transport as usize];
        let why = if lane.is_started() { lane.why() } else { "not used yet, so nothing is checked" };
        (lane.chosen().map(|chosen| (chosen, why.to_owned())), lane.reports().collect())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The roster, if it is another one than that of `generation`.
    pub(super) fn newer_than(&self, generation: u64) -> Option<Arc<GroupRoster>> {
        let is_same = self.generation.load(Ordering::Acquire) == generation;
        (!is_same).then(|| self.state().roster.clone())
    }

    /// Begins to check over `transport`, unless that has been done: what is not used is not checked.
    pub(crate) fn start(&self, transport: Transport, now: Instant) {
        if self.started[transport as usize].swap(true, Ordering::Relaxed) {
            return;
        }
        let mut state = self.state();
        let used = state.lanes[Transport::Tcp as usize].chosen();
        state.lanes[transport as usize].start(used, now);
        state.publish();
        state.wake();
    }

    /// A member is about to be used. One that has been silent for long is checked: what is used tells soonest.
    pub(super) fn note_use(&self, transport: Transport, member: &Arc<GroupMember>, now: Instant) {
        let sign = member.signs[transport as usize].load(Ordering::Relaxed);
        if self.milliseconds(now).saturating_sub(sign) > milliseconds(STALE) {
            self.nudge(transport, member, now);
        }
    }

    /// A member is to be checked soon.
    pub(super) fn nudge(&self, transport: Transport, member: &Arc<GroupMember>, now: Instant) {
        let mut state = self.state();
        let Some(place) = state.roster.place(member) else { return };
        if state.lanes[transport as usize].nudge(place, now) {
            state.wake();
        }
    }

    /// A client of ours got no connection to a member.
    pub(super) fn note_refusal(&self, member: &Arc<GroupMember>, now: Instant) {
        let mut state = self.state();
        let Some(place) = state.roster.place(member) else { return };
        if let Some(change) = state.lanes[Transport::Tcp as usize].handle_refusal(place, now) {
            self.log(&state.roster, &state.roster, Transport::Tcp, &change);
            state.publish();
        }
        state.wake();
    }

    /// A member has answered at `at` or later.
    pub(super) fn note_answer(&self, transport: Transport, member: &Arc<GroupMember>, at: Instant) {
        member.signs[transport as usize].fetch_max(self.milliseconds(at), Ordering::Relaxed);
    }

    /// An exchange over a member has ended: whether there was an answer, and when it had begun.
    pub(super) fn note_end(
        &self,
        member: &Arc<GroupMember>,
        is_answered: bool,
        begun: Instant,
        now: Instant,
    ) {
        if is_answered {
            self.note_answer(Transport::Tcp, member, begun);
            member.silent.store(0, Ordering::Relaxed);
        } else if member.silent.fetch_add(1, Ordering::Relaxed) + 1 >= SILENT {
            self.nudge(Transport::Tcp, member, now);
        }
    }

    /// The members to try for one request, best first.
    pub(super) fn order(&self, transport: Transport) -> Vec<Arc<GroupMember>> {
        let state = self.state();
        let order = state.lanes[transport as usize].order();
        order.into_iter().map(|place| state.roster.members[place].clone()).collect()
    }

    /// A check that is due, to be begun at once.
    pub(super) fn poll_check(&self, now: Instant) -> Option<Due> {
        let mut state = self.state();
        Transport::ALL.into_iter().find_map(|transport| {
            let (place, timeout) = state.lanes[transport as usize].poll_check(now)?;
            Some(Due { transport, member: state.roster.members[place].clone(), timeout })
        })
    }

    /// When the next check is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.state().lanes.iter().filter_map(TransportMembers::next_at).min()
    }

    /// A check is over.
    pub(super) fn handle_check(&self, due: &Due, result: Result<Duration, CheckFailure>, now: Instant) {
        if result.is_ok() {
            self.note_answer(due.transport, &due.member, now);
        }
        let mut state = self.state();
        let Some(place) = state.roster.place(&due.member) else { return };
        let change = state.lanes[due.transport as usize].handle_check(place, result, now);
        if let Some(change) = change {
            self.log(&state.roster, &state.roster, due.transport, &change);
        }
        state.publish();
        state.wake();
    }

    /// Other members: those of the configuration stay, all others go unless they are among `added`.
    ///
    /// # Errors
    /// When one of them cannot be built; nothing has changed then.
    pub(crate) fn replace(
        &self,
        added: Vec<(model::Outbound, [u8; 2])>,
        build: impl Fn(&model::Outbound) -> io::Result<Arc<dyn OutboundFactory>>,
        now: Instant,
    ) -> io::Result<()> {
        let old = self.state().roster.clone();
        let fixed = old.members.iter().filter(|member| member.shared.is_none()).cloned();
        let mut members: Vec<Arc<GroupMember>> = fixed.collect();
        for (outbound, weights) in added {
            let is_same = |old: &&Arc<GroupMember>| old.shared.is_some() && old.outbound == outbound;
            members.push(match old.members.iter().find(is_same) {
                Some(same) => same.clone(),
                None => {
                    let shared = build(&outbound)?;
                    Arc::new(GroupMember::new(&outbound, weights, Some(shared)))
                }
            });
        }
        self.change(&old, members, now);
        Ok(())
    }

    /// Other members of the configuration; those that were added stay, and one that is as it was keeps what is known of it.
    pub(crate) fn replace_fixed(&self, group: &model::Group, config: &Config, now: Instant) {
        let old = self.state().roster.clone();
        let mut members = fixed_members(group, config, &old.members);
        members.extend(old.members.iter().filter(|member| member.shared.is_some()).cloned());
        self.change(&old, members, now);
    }

    fn change(&self, old: &GroupRoster, members: Vec<Arc<GroupMember>>, now: Instant) {
        let roster = Arc::new(GroupRoster::new(old.generation + 1, members));
        let mut state = self.state();
        state.roster = roster.clone();
        for transport in Transport::ALL {
            let places: Vec<_> = roster
                .members
                .iter()
                .map(|member| (member.weights[transport as usize], old.place(member)))
                .collect();
            if let Some(change) = state.lanes[transport as usize].replace(&places, now) {
                self.log(old, &roster, transport, &change);
            }
        }
        state.publish();
        state.wake();
        self.generation.store(roster.generation, Ordering::Release);
    }

    /// Ready when there is something to look at before its time.
    pub(super) fn poll_woken(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if std::mem::take(&mut state.is_woken) {
            return Poll::Ready(());
        }
        state.prober = Some(cx.waker().clone());
        Poll::Pending
    }

    fn log(&self, before: &GroupRoster, after: &GroupRoster, transport: Transport, change: &MemberSwitch) {
        let name =
            |roster: &GroupRoster, place: usize| roster.members.get(place).map(|m| m.outbound.name.clone());
        let from = change.from.and_then(|from| name(before, from));
        let to = name(after, change.to);
        let (outbound, transport, why) = (&*self.name, transport.name(), &*change.why);
        tracing::info!(
            outbound,
            transport,
            from = from.as_deref(),
            to = to.as_deref(),
            why,
            "another server"
        );
    }

    fn milliseconds(&self, at: Instant) -> u64 {
        milliseconds(at.saturating_duration_since(self.since))
    }
}

impl State {
    fn wake(&mut self) {
        self.is_woken = true;
        if let Some(prober) = self.prober.take() {
            prober.wake();
        }
    }

    /// Lets all cores see the choice.
    fn publish(&self) {
        for (lane, chosen) in self.lanes.iter().zip(&self.roster.chosen) {
            chosen.store(lane.chosen().unwrap_or(NOBODY), Ordering::Relaxed);
        }
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Waits for [`GroupShared::poll_woken`], and no longer than until `at`.
pub(super) async fn wait(shared: &GroupShared, at: Option<Instant>) {
    let woken = std::future::poll_fn(|cx| shared.poll_woken(cx));
    match at {
        Some(at) => rt::race(woken, rt::sleep_until(at)).await,
        None => woken.await,
    }
}
