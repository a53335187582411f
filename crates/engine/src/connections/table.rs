//! The connections of one core, and the one policy by which they end of old age.
//!
//! A relayed connection owns no timer. It notes the core's tick whenever bytes move; once a second the sweep ends
//! those that have been still for too long and wakes those that asked for it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use adit_model::Limits;
use adit_net::rt;

use crate::admission::{EvictionRank, HeldPlace, Holder, Places, Turnover, prefix};
use crate::connections::listing::{ConnectionStatus, Describe, Kicked, ListingPart, source_text};
use crate::connections::record::EndReason;
use crate::errors::Watch;
use crate::users::{Account, Lease, UserLimit};

/// Length of a tick.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// Ticks since the core started.
pub(crate) type ConnectionTick = u32;

/// Time for which the near side's end is held back where the far side would drop its answer, in ticks without a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Once the far side has said something.
    pub(crate) answered: ConnectionTick,
    /// Before.
    pub(crate) unanswered: ConnectionTick,
}

impl Patience {
    /// As configured, at least one tick each.
    pub(crate) fn new(limits: &Limits) -> Self {
        let ticks =
            |time: Duration| ConnectionTick::try_from(time.as_secs().max(1)).unwrap_or(ConnectionTick::MAX);
        Self { answered: ticks(limits.half_close), unanswered: ticks(limits.half_close_unanswered) }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new(&Limits::default())
    }
}

/// All relayed connections of one core.
#[derive(Debug, Default)]
pub(crate) struct Conns {
    tick: Cell<ConnectionTick>,
    slots: RefCell<Vec<Option<Rc<Conn>>>>,
    free: RefCell<Vec<usize>>,
    turnover: Turnover,
    patience: Cell<Patience>,
    /// The process is to end.
    is_ending: Cell<bool>,
    /// The process ends now.
    is_cut: Cell<bool>,
    /// The descriptors and memory that the connections draw on, outside of tests.
    places: Option<Rc<Places>>,
}

/// The facts about a connection that the sweep and the list of connections need.
#[derive(Default)]
pub(crate) struct Conn {
    active_at: Cell<ConnectionTick>,
    wants_tick: Cell<bool>,
    /// Between two requests: nothing is lost by ending it.
    resting: Cell<bool>,
    expired: Cell<bool>,
    /// It has to make room for others.
    crowded: Cell<bool>,
    /// The operator ends it.
    kicked: Cell<bool>,
    /// Its target has answered.
    answered: Cell<bool>,
    /// Bytes that wait for slow readers, as accounted.
    kept: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    /// The user whose connection it is, where there are users.
    lease: RefCell<Option<Rc<Lease>>>,
    /// Is told of the first answer.
    watch: Cell<Option<Rc<Watch>>>,
    /// Its request, while there is one, for the list of connections.
    request: Cell<Option<Rc<dyn Describe>>>,
    /// The number of the request.
    id: Cell<u64>,
    /// Payload bytes of the request, from the client and to it.
    moved: Cell<[u64; 2]>,
}

impl Holder for Conn {
    fn active_at(&self) -> ConnectionTick {
        self.active_at.get()
    }

    fn pinned(&self) -> usize {
        self.kept.get()
    }

    fn give_way(&self) {
        self.crowded.set(true);
        self.expired.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Conn").field(&self.id.get()).finish()
    }
}

impl Conn {
    /// Its request, while there is one.
    fn request(&self) -> Option<Rc<dyn Describe>> {
        let request = self.request.take();
        self.request.set(request.clone());
        request
    }

    /// Ends it at the next look.
    fn expire(&self) -> Option<Waker> {
        self.expired.set(true);
        self.waker.borrow_mut().take()
    }

    /// Whether it has a request and is one of `kicked`.
    fn is_one_of(&self, kicked: &Kicked) -> bool {
        let lease = self.lease.borrow();
        let user = lease.as_ref().map(|lease| &*lease.account().name);
        self.request().is_some() && kicked.is(self.id.get(), user)
    }

    /// The entry of its `request` in the list.
    fn show(
        &self,
        request: &dyn Describe,
        inbound: &str,
        quiet: ConnectionTick,
        now: Instant,
    ) -> ConnectionStatus {
        let about = request.describe();
        let [up_bytes, down_bytes] = self.moved.get();
        let user = self.lease.borrow().as_ref().map(|lease| lease.account().name.to_string());
        ConnectionStatus {
            id: self.id.get(),
            network: about.network.into(),
            inbound: inbound.into(),
            user,
            source: source_text(about.source),
            target: about.target,
            outbound: about.outbound.map(|tag| tag.to_string()).unwrap_or_default(),
            up_bytes,
            down_bytes,
            age_s: now.saturating_duration_since(about.since).as_secs(),
            quiet_s: quiet.into(),
            way: about.way,
        }
    }

    /// Why the user may use no more, if that is so.
    fn limited(&self) -> Option<UserLimit> {
        self.lease.borrow().as_ref().and_then(|lease| lease.over())
    }
}

/// A place in the table; leaving it is dropping it.
#[derive(Debug)]
pub(crate) struct ConnectionEntry {
    conn: Rc<Conn>,
    index: usize,
    table: Rc<Conns>,
    held: Option<HeldPlace>,
}

impl Conns {
    /// An empty table of connections that hold `places`.
    pub(crate) fn new(places: &Rc<Places>) -> Self {
        Self { tick: Cell::new(places.clock()), places: Some(places.clone()), ..Self::default() }
    }

    /// Enters a connection from `source` with a request.
    pub(crate) fn enter_from(self: &Rc<Self>, source: IpAddr) -> ConnectionEntry {
        self.enter_as(EvictionRank::Unanswered, source)
    }

    /// Enters a connection from `source` that has proven so much.
    pub(crate) fn enter_as(self: &Rc<Self>, rank: EvictionRank, source: IpAddr) -> ConnectionEntry {
        let mut entry = self.enter();
        let place = |places: &Rc<Places>| places.enter(rank, prefix(source), entry.conn.clone());
        entry.held = self.places.as_ref().map(place);
        entry
    }

    /// Enters a connection that never makes room for others.
    pub(crate) fn enter(self: &Rc<Self>) -> ConnectionEntry {
        let (active_at, expired) = (Cell::new(self.tick.get()), self.is_cut.clone());
        let conn = Rc::new(Conn { active_at, expired, ..Conn::default() });
        let mut slots = self.slots.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(None);
            slots.len() - 1
        });
        slots[index] = Some(conn.clone());
        self.turnover.begin();
        ConnectionEntry { conn, index, table: self.clone(), held: None }
    }

    /// Connections in the table.
    #[cfg(test)]
    pub(crate) fn live(&self) -> usize {
        self.turnover.live()
    }

    /// One second has passed: ends connections that have been still for `idle` (`None`: none).
    pub(crate) fn sweep(&self, idle: Option<Duration>) {
        let tick = self.tick.get().wrapping_add(1);
        self.tick.set(tick);
        let limit =
            idle.map(|idle| ConnectionTick::try_from(idle.as_secs().max(1)).unwrap_or(ConnectionTick::MAX));
        let mut wake = Vec::new();
        for conn in self.slots.borrow().iter().flatten() {
            let age = tick.wrapping_sub(conn.active_at.get());
            let expired = limit.is_some_and(|limit| age > limit) || conn.limited().is_some();
            if expired {
                conn.expired.set(true);
            }
            if expired || conn.wants_tick.get() {
                wake.extend(conn.waker.borrow_mut().take());
            }
        }
        wake.into_iter().for_each(Waker::wake);
    }

    /// The requests of `inbound` that are under way, at most `most`.
    pub(crate) fn list(&self, inbound: &str, most: usize, now: Instant) -> ListingPart {
        let mut part = ListingPart::default();
        for conn in self.slots.borrow().iter().flatten() {
            if let Some(request) = conn.request() {
                let quiet = self.tick.get().wrapping_sub(conn.active_at.get());
                part.push(most, || conn.show(&*request, inbound, quiet, now));
            }
        }
        part
    }

    /// Ends connections at the operator's word, and says how many.
    pub(crate) fn kick(&self, kicked: &Kicked) -> u64 {
        let slots = self.slots.borrow();
        let all = slots.iter().flatten().filter(|conn| conn.is_one_of(kicked) && !conn.kicked.replace(true));
        let (count, wake) = all.fold((0, Vec::new()), |(count, mut wake), conn| {
            wake.extend(conn.expire());
            (count + 1, wake)
        });
        drop(slots);
        wake.into_iter().for_each(Waker::wake);
        count
    }

    /// Sets the time for which ends are held back from now on.
    pub(crate) fn set_patience(&self, patience: Patience) {
        self.patience.set(patience);
    }

    /// The process is to end: ends connections that rest between two requests, now and from now on.
    pub(crate) fn end_resting(&self) {
        self.is_ending.set(true);
        let mut wake = Vec::new();
        for conn in self.slots.borrow().iter().flatten().filter(|conn| conn.resting.get()) {
            conn.expired.set(true);
            wake.extend(conn.waker.borrow_mut().take());
        }
        wake.into_iter().for_each(Waker::wake);
    }

    /// The process ends now: ends all that are left, and each says to both of its ends that it broke off.
    pub(crate) fn cut(&self) {
        self.is_cut.set(true);
        let mut wake = Vec::new();
        for conn in self.slots.borrow().iter().flatten() {
            conn.expired.set(true);
            wake.extend(conn.waker.borrow_mut().take());
        }
        wake.into_iter().for_each(Waker::wake);
    }

    /// Whether everything has been cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    /// Whether so many connections have ended since the last call that freed memory is worth returning.
    pub(crate) fn take_worth_trimming(&self) -> bool {
        let worth = self.turnover.take_worth_trimming();
        if worth {
            self.slots.borrow_mut().shrink_to_fit();
        }
        worth
    }
}

impl ConnectionEntry {
    /// Bytes have moved.
    pub(crate) fn touch(&self) {
        self.conn.active_at.set(self.table.tick.get());
    }

    /// A request is under way from now on, until it ends.
    pub(crate) fn begin_request(&self, request: Rc<dyn Describe>) {
        let id = self.table.places.as_ref().map_or(1, |places| places.next_id());
        self.conn.id.set(id);
        self.conn.moved.set([0; 2]);
        self.conn.request.set(Some(request));
    }

    /// The request has ended.
    pub(crate) fn end_request(&self) {
        drop(self.conn.request.take());
    }

    /// Payload bytes have moved: so many from the client, and so many to it.
    pub(crate) fn add_moved(&self, up: u64, down: u64) {
        let [all_up, all_down] = self.conn.moved.get();
        self.conn.moved.set([all_up + up, all_down + down]);
        self.touch();
    }

    /// Bytes of the target have come, which are still to be counted: the first ones of a request are its answer.
    pub(crate) fn note_answer(&self, now: Instant) {
        let [_, down] = self.conn.moved.get();
        if down == 0
            && let Some(request) = self.conn.request()
        {
            request.note_answer(now);
        }
        self.set_answered();
    }

    /// The target has answered, which puts this connection behind those that wait.
    pub(crate) fn set_answered(&self) {
        if !self.conn.answered.replace(true)
            && let Some(held) = &self.held
        {
            held.set_rank(EvictionRank::Answered);
        }
        if let Some(watch) = self.conn.watch.take() {
            watch.answered();
        }
    }

    /// The first answer of this request is told to `watch`.
    pub(crate) fn set_watch(&self, watch: Option<Rc<Watch>>) {
        self.conn.watch.set(watch);
    }

    /// So many bytes wait for slow readers.
    pub(crate) fn set_kept(&self, bytes: usize) {
        let before = self.conn.kept.get();
        if before != bytes
            && let Some(places) = &self.table.places
        {
            self.conn.kept.set(bytes);
            places.keep(before, bytes);
        }
    }

    /// The core's tick.
    pub(crate) fn tick(&self) -> ConnectionTick {
        self.table.tick.get()
    }

    /// Ticks since bytes last moved.
    pub(crate) fn quiet_for(&self) -> ConnectionTick {
        self.table.tick.get().wrapping_sub(self.conn.active_at.get())
    }

    /// Ticks without a byte after which the near side's end is held back no longer.
    pub(crate) fn patience(&self, is_answered: bool) -> ConnectionTick {
        let Patience { answered, unanswered } = self.table.patience.get();
        if is_answered { answered } else { unanswered }
    }

    /// Whether the sweep has ended this connection.
    pub(crate) fn is_expired(&self) -> bool {
        self.conn.expired.get()
    }

    /// Why this connection is to end, if it is.
    pub(crate) fn over(&self) -> Option<EndReason> {
        if !self.is_expired() {
            return None;
        }
        if self.table.is_cut.get() {
            return Some(EndReason::Stopped);
        }
        if self.conn.crowded.get() {
            return Some(EndReason::Crowded);
        }
        if self.conn.kicked.get() {
            return Some(EndReason::Kicked);
        }
        Some(self.conn.limited().map_or(EndReason::Idle, EndReason::Limited))
    }

    /// The connection is, from now on, one of this user's, and has come from `source`.
    ///
    /// # Errors
    /// The limit of the user that is in the way; the connection is nobody's then.
    pub(crate) fn admit(&self, account: &Arc<Account>, source: IpAddr) -> Result<(), UserLimit> {
        let mut lease = self.conn.lease.borrow_mut();
        if let Some(lease) = lease.as_ref().filter(|lease| Arc::ptr_eq(lease.account(), account)) {
            return lease.over().map_or(Ok(()), Err);
        }
        *lease = None;
        *lease = Some(Rc::new(Lease::begin(account, source)?));
        Ok(())
    }

    /// The same with a place that the user has taken already.
    pub(crate) fn set_lease(&self, lease: Lease) {
        *self.conn.lease.borrow_mut() = Some(Rc::new(lease));
    }

    /// The user's place, where there are users.
    pub(crate) fn lease(&self) -> Option<Rc<Lease>> {
        self.conn.lease.borrow().clone()
    }

    /// Asks to be woken at every tick, or no more.
    pub(crate) fn set_wants_tick(&self, wants: bool) {
        self.conn.wants_tick.set(wants);
    }

    /// The connection rests between two requests, or no more.
    pub(crate) fn set_resting(&self, resting: bool) {
        self.conn.resting.set(resting);
        if resting && self.table.is_ending.get() {
            self.conn.expired.set(true);
        }
    }

    /// The connection does not rest after all, so that it does not end with those that do.
    pub(crate) fn go_on(&self) {
        self.conn.expired.set(self.table.is_cut.get());
    }

    /// The connection has proven so much.
    pub(crate) fn set_rank(&self, rank: EvictionRank) {
        if let Some(held) = &self.held {
            held.set_rank(rank);
        }
    }

    /// The output of `what`, or `None` once the connection is to end: it has to make room for others, or the process ends.
    pub(crate) async fn unless_over<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        let over = poll_fn(|cx| {
            self.set_waker(cx.waker());
            if self.is_expired() { Poll::Ready(None) } else { Poll::Pending }
        });
        rt::race(over, async { Some(what.await) }).await
    }

    /// Whether the connection has had to make room for others.
    pub(crate) fn is_crowded(&self) -> bool {
        self.conn.crowded.get()
    }

    /// Sets the waker of the sweep.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut slot = self.conn.waker.borrow_mut();
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.set_kept(0);
        self.end_request();
        self.table.slots.borrow_mut()[self.index] = None;
        self.table.free.borrow_mut().push(self.index);
        self.table.turnover.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shown(&'static str);

    impl Describe for Shown {
        fn describe(&self) -> crate::connections::listing::Description {
            crate::connections::listing::Description {
                network: "tcp",
                source: ([192, 0, 2, 1], 5).into(),
                target: self.0.to_owned(),
                outbound: None,
                since: rt::now(),
                way: crate::connections::listing::ConnectionRoute::default(),
            }
        }
    }

    #[test]
    fn requests_are_listed_while_they_last_and_can_be_ended() {
        let conns = Rc::new(Conns::new(&Places::unbounded()));
        let (one, two, other) = (conns.enter(), conns.enter(), conns.enter());
        one.begin_request(Rc::new(Shown("a:1")));
        two.begin_request(Rc::new(Shown("b:2")));
        one.add_moved(5, 0);
        one.add_moved(2, 9);
        let now = rt::now();
        let all = conns.list("in", 10, now).connections;
        let shown = |at: usize| (all[at].target.as_str(), all[at].up_bytes, all[at].down_bytes);
        assert_eq!((all.len(), shown(0), shown(1)), (2, ("a:1", 7, 9), ("b:2", 0, 0)));
        let part = conns.list("in", 1, now);
        assert_eq!((part.connections.len(), part.left_out), (1, 1));
        assert_eq!(conns.kick(&Kicked::Id(0)) + conns.kick(&Kicked::User("ann".into())), 0);
        assert_eq!(conns.kick(&Kicked::Id(all[0].id)), 1);
        assert_eq!(conns.kick(&Kicked::Id(all[0].id)), 0, "once");
        assert_eq!((one.over(), two.over(), other.over()), (Some(EndReason::Kicked), None, None));
        two.end_request();
        assert!(!conns.list("in", 10, now).connections.iter().any(|of| of.target == "b:2"));
        two.begin_request(Rc::new(Shown("c:3")));
        let again = conns.list("in", 10, now).connections;
        assert!(again.iter().all(|of| of.id != all[1].id), "a request has a number of its own");
        drop((one, two, other));
        assert!(conns.list("in", 10, now).connections.is_empty());
    }

    /// An idle connection is paid for all the time.
    #[test]
    fn a_connection_stays_small() {
        assert!(size_of::<Conn>() <= 112, "{}", size_of::<Conn>());
    }

    #[test]
    fn quiet_connections_expire_and_busy_ones_stay() {
        let conns = Rc::new(Conns::default());
        let (quiet, busy) = (conns.enter(), conns.enter());
        for _ in 0..11 {
            busy.touch();
            conns.sweep(Some(Duration::from_secs(10)));
        }
        assert!(quiet.is_expired() && !busy.is_expired());
        assert_eq!(quiet.quiet_for(), 11);
        conns.sweep(None);
        assert!(!busy.is_expired());
        drop(quiet);
        assert_eq!(conns.live(), 1);
        conns.end_resting();
        assert!(!busy.is_expired());
        busy.set_resting(true);
        assert!(busy.is_expired(), "there is no rest any more");
        assert_eq!(busy.over(), Some(EndReason::Idle));
        let again = conns.enter();
        assert_eq!(again.over(), None);
        conns.cut();
        assert_eq!(again.over(), Some(EndReason::Stopped));
        assert_eq!((again.index, again.quiet_for()), (0, 0));
        assert_eq!(conns.enter().over(), Some(EndReason::Stopped), "too late");
    }
}
