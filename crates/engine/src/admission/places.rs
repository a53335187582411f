//! The places of one core: who holds a connection here, and how somebody is told to give way.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use adit_net::rt;

use super::descriptors::{Descriptors, FlowSlot, StreamSlot};
use super::eviction_queue::{EvictionQueue, EvictionRank, HolderId, Tick};
use super::{Budget, NOBODY, Turnover, turn};

/// While everything is in use, a listener looks again after this time.
const LOOK: Duration = Duration::from_millis(50);
/// And takes one more connection after this time, even against the account, which may count what is about to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// When as many connections have made room as there are places, those that have them now get this time to say something.
const STAY: Duration = Duration::from_millis(1);

/// A connection that has moved no byte for so many ticks does not read.
const STILL: Tick = 2;

/// Somebody who can be told to give way.
pub(crate) trait Holder {
    /// When bytes moved last, by the core's clock; of an unauthenticated connection, when it came.
    fn active_at(&self) -> Tick;

    /// Bytes of memory that giving way would free beyond the connection itself.
    fn pinned(&self) -> usize {
        0
    }

    /// It is to end now.
    fn give_way(&self);

    /// The process is about to end. Those who have something to lose by that go on, and have their time.
    fn dismiss(&self) {}
}

/// All holders of one core, for [`Budget`].
pub(crate) struct Places {
    budget: Arc<Budget>,
    core: usize,
    ledger: RefCell<EvictionQueue<Rc<dyn Holder>>>,
    /// The turn that other cores see.
    shown: Cell<u64>,
    /// Seconds that this core has run.
    clock: Cell<Tick>,
    /// When memory was freed last.
    freed_at: Cell<Option<Instant>>,
    /// Numbers that were given to requests.
    numbers: Cell<u64>,
    /// Connections that have made room since a listener paused for it.
    made_room: Cell<usize>,
    /// Whether they are as many as there are places.
    is_rushed: Cell<bool>,
    /// Flows of datagrams.
    flows: Turnover,
}

/// A place in the ledger; leaving it is dropping it.
pub(crate) struct HeldPlace {
    places: Rc<Places>,
    id: HolderId,
}

impl std::fmt::Debug for HeldPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("id", &self.id).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Places").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Places {
    /// Those of the core with this number.
    pub(crate) fn new(budget: Arc<Budget>, core: usize) -> Self {
        let (ledger, shown) = (RefCell::default(), Cell::new(NOBODY));
        let (clock, freed_at, numbers) = (Cell::new(0), Cell::new(None), Cell::new(0));
        let (made_room, is_rushed) = (Cell::new(0), Cell::new(false));
        let flows = Turnover::default();
        Self { budget, core, ledger, shown, clock, freed_at, numbers, made_room, is_rushed, flows }
    }

    /// Those of a core without bounds.
    #[cfg(test)]
    pub(crate) fn unbounded() -> Rc<Self> {
        Rc::new(Self::new(Budget::of(super::tests::shares(1 << 20, 1 << 20, 1 << 21), 1), 0))
    }

    /// A number for a request or flow, at least 1, that no core gives again.
    pub(crate) fn next_id(&self) -> u64 {
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        number * self.budget.desks.len() as u64 + self.core as u64 + 1
    }

    /// The flows of datagrams of the core.
    pub(crate) fn flows(&self) -> &Turnover {
        &self.flows
    }

    /// The core's clock.
    pub(crate) fn clock(&self) -> Tick {
        self.clock.get()
    }

    /// A second has passed. If much memory waits for slow readers, the slowest give way.
    pub(crate) fn tick(&self) {
        self.clock.set(self.clock.get().wrapping_add(1));
        if let Some(bytes) = self.budget.buffers.wanted_back() {
            self.free_memory(bytes / self.budget.desks.len(), false);
        }
    }

    /// Somebody keeps `now` bytes for a slow reader in the place of `before`.
    pub(crate) fn keep(&self, before: usize, now: usize) {
        let buffers = &self.budget.buffers;
        buffers.change(before, now);
        if now > before && buffers.is_exhausted() {
            self.free_memory_now();
        }
    }

    /// There is no time to wait for the next second.
    #[cold]
    fn free_memory_now(&self) {
        let now = rt::now();
        if self.freed_at.get().is_some_and(|at| now.saturating_duration_since(at) < LOOK) {
            return;
        }
        self.freed_at.set(Some(now));
        if let Some(bytes) = self.budget.buffers.wanted_back() {
            self.free_memory(bytes / self.budget.desks.len(), true);
        }
    }

    /// The budget that all cores draw on.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Enters `holder`, which came from `source`.
    pub(crate) fn enter(
        self: &Rc<Self>,
        rank: EvictionRank,
        source: IpAddr,
        holder: Rc<dyn Holder>,
    ) -> HeldPlace {
        let at = holder.active_at();
        let id = self.ledger.borrow_mut().enter(rank, source, at, holder);
        self.show();
        HeldPlace { places: self.clone(), id }
    }

    /// Unauthenticated connections, of one source or of all.
    pub(crate) fn unauthenticated(&self, source: Option<IpAddr>) -> usize {
        let ledger = self.ledger.borrow();
        let count = |source| ledger.count_of(EvictionRank::Unauthenticated, source);
        source.map_or_else(|| ledger.count(EvictionRank::Unauthenticated), count)
    }

    /// Makes an unauthenticated connection give way, of one source or of all.
    pub(crate) fn evict_unauthenticated(&self, source: Option<IpAddr>) {
        let mut ledger = self.ledger.borrow_mut();
        let places = ledger.count(EvictionRank::Unauthenticated);
        let active = |holder: &Rc<dyn Holder>| holder.active_at();
        let victim = match source {
            Some(source) => ledger.take_victim_of(EvictionRank::Unauthenticated, source, active),
            None => ledger.take_victim(EvictionRank::Unauthenticated, active),
        };
        drop(ledger);
        self.tell(victim, places);
    }

    /// Tells all holders that the process is about to end.
    pub(crate) fn dismiss(&self) {
        let all: Vec<_> = self.ledger.borrow().iter().cloned().collect();
        all.iter().for_each(|holder| holder.dismiss());
    }

    /// Tells a holder that gives way, of so many `places`; false if there is none.
    fn tell(&self, victim: Option<Rc<dyn Holder>>, places: usize) -> bool {
        let Some(victim) = victim else { return false };
        self.made_room.set(self.made_room.get() + 1);
        if self.made_room.get() >= places {
            self.is_rushed.set(true);
        }
        self.budget.leaving.fetch_add(1, Ordering::Relaxed);
        self.show();
        victim.give_way();
        true
    }

    /// Lets other cores see when it is this one's turn to make room.
    fn show(&self) {
        let ledger = self.ledger.borrow();
        let turn = ledger.first().map_or(NOBODY, |(rank, count)| turn(rank, count));
        if self.shown.replace(turn) != turn {
            self.budget.desks[self.core].turn.store(turn, Ordering::Relaxed);
        }
    }

    /// Counts the descriptor of a stream that is open. If that is one too many, somebody gives way.
    pub(crate) fn stream(&self) -> StreamSlot {
        let slot = Descriptors::add_stream(&self.budget);
        if self.budget.descriptors.excess() > self.budget.leaving() {
            self.make_room();
        }
        slot
    }

    /// Counts the descriptor of a flow that is to begin; `None` if there is none left.
    pub(crate) fn flow(&self) -> Option<FlowSlot> {
        Descriptors::add_flow(&self.budget)
    }

    /// Makes the holder that has proven least give way, on this core or on another one. False if nobody can.
    pub(crate) fn make_room(&self) -> bool {
        self.budget.report_shortage(rt::now());
        let here = self.shown.get();
        // One holder more does not make it another core's turn, or each would ask the other.
        match self.budget.first_but(self.core).filter(|(there, _)| there.saturating_add(1) < here) {
            Some((_, core)) => {
                self.budget.ask(core);
                true
            }
            None => self.make_room_here(),
        }
    }

    fn make_room_here(&self) -> bool {
        let mut ledger = self.ledger.borrow_mut();
        let places = ledger.first().map_or(0, |(_, count)| count);
        let victim = ledger.take_victim(EvictionRank::Answered, |holder| holder.active_at());
        drop(ledger);
        let Some(victim) = victim else { return false };
        self.budget.evicted.fetch_add(1, Ordering::Relaxed);
        self.tell(Some(victim), places)
    }

    /// Follows what other cores ask for; never ends.
    pub(crate) async fn follow(self: Rc<Self>) {
        let desk = &self.budget.desks[self.core];
        poll_fn(|cx| {
            desk.register(cx.waker());
            for _ in 0..desk.asked.swap(0, Ordering::AcqRel) {
                let is_told = self.make_room_here();
                // The holder that was asked for has been told, or is not there.
                self.budget.leaving.fetch_sub(1, Ordering::Relaxed);
                if !is_told && self.budget.descriptors.excess() > self.budget.leaving() {
                    self.make_room();
                }
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// Returns once there is room for another stream, or after a second. If connections come so fast that each is followed
    /// by as many as there are places before it can say anything, this pauses for it.
    pub(crate) async fn room(&self) {
        if self.is_rushed.replace(false) {
            self.made_room.set(0);
            rt::sleep(STAY).await;
        }
        let descriptors = &self.budget.descriptors;
        if descriptors.excess() == 0 {
            return;
        }
        let until = rt::now() + PATIENCE;
        while descriptors.excess() > 0 && rt::now() < until {
            if descriptors.excess() > self.budget.leaving() {
                self.make_room();
            }
            let freed = poll_fn(|cx| {
                descriptors.wait(cx.waker());
                if descriptors.excess() == 0 { Poll::Ready(()) } else { Poll::Pending }
            });
            rt::timeout(LOOK, freed).await.ok();
        }
    }

    /// Memory for rests is short: makes those give way that hold most of it and move nothing, longest first, until
    /// `bytes` are on their way back. Those that have moved bytes lately are spared unless `is_urgent`.
    pub(super) fn free_memory(&self, bytes: usize, is_urgent: bool) {
        let now = self.clock.get();
        let ledger = self.ledger.borrow();
        let mut stuck: Vec<_> = ledger
            .iter()
            .filter(|holder| holder.pinned() > 0)
            .map(|holder| (now.wrapping_sub(holder.active_at()), holder.pinned(), holder.clone()))
            .filter(|(still, ..)| is_urgent || *still >= STILL)
            .collect();
        drop(ledger);
        stuck.sort_by_key(|(still, pinned, _)| std::cmp::Reverse((*still, *pinned)));
        let mut freed = 0;
        for (_, pinned, holder) in stuck {
            if freed >= bytes {
                break;
            }
            freed += pinned;
            self.budget.evicted.fetch_add(1, Ordering::Relaxed);
            holder.give_way();
        }
    }
}

impl HeldPlace {
    /// The holder has proven so much.
    pub(crate) fn set_rank(&self, rank: EvictionRank) {
        self.places.ledger.borrow_mut().set_rank(self.id, rank);
        self.places.show();
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        let left = self.places.ledger.borrow_mut().leave(self.id);
        if left.is_none() {
            self.places.budget.leaving.fetch_sub(1, Ordering::Relaxed);
        }
        self.places.show();
    }
}
