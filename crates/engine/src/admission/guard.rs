//! Bounds on what unauthenticated connections cost a server.
//!
//! A connection that has not sent a legal request holds a [`Ticket`]. When there are too many, in total or from one
//! source, the oldest one goes. A source whose keys keep failing no longer gets a key derivation; nor does any
//! unauthenticated connection when failures flood in. Each of them sees the usual silence.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::admission::{EvictionRank, HeldPlace, Holder, Places, Tick, prefix};

/// Sources that are remembered.
const SOURCES: usize = 4096;
/// Failures that a source has at once, and how many come back per second.
const SOURCE_BURST: f64 = 64.0;
const SOURCE_RATE: f64 = 2.0;
/// The same for all unauthenticated connections of a core together: 10,000 derivations are 15 to 20 % of its time. With fewer,
/// a flood locks out the users that share its address.
const TOTAL_BURST: f64 = 10_000.0;
const TOTAL_RATE: f64 = 10_000.0;
/// Bytes of refused connections that a core reads beyond the first of each, at once and per second. A flood must not
/// keep it busy.
const DISCARD_BURST: f64 = 64.0 * 1024.0 * 1024.0;
const DISCARD_RATE: f64 = 4.0 * 1024.0 * 1024.0;
/// A source is named in the log once in this time.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Sources that one report names.
const NAMED: usize = 8;

/// The unauthenticated connections of one core.
#[derive(Debug)]
pub(crate) struct Guard {
    max_total: Cell<usize>,
    max_per_source: Cell<usize>,
    places: Rc<Places>,
    state: RefCell<State>,
    /// Bytes that may be read from refused connections beyond their first.
    discard: Cell<Bucket>,
}

#[derive(Debug)]
struct State {
    sources: HashMap<IpAddr, Source>,
    bucket: Bucket,
}

#[derive(Debug)]
struct Source {
    waiting: usize,
    bucket: Bucket,
    known: bool,
    failures: u32,
    reported_at: Option<Instant>,
    seen_at: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn refill(&mut self, rate: f64, burst: f64, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * rate).min(burst);
        self.at = now;
    }

    fn spend(&mut self) {
        self.tokens = (self.tokens - 1.0).max(0.0);
    }
}

#[derive(Debug)]
struct Place {
    came_at: Tick,
    evicted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Holder for Place {
    fn active_at(&self) -> Tick {
        self.came_at
    }

    fn give_way(&self) {
        self.evicted.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn dismiss(&self) {
        self.give_way();
    }
}

/// The place of one unauthenticated connection in the [`Guard`]; released when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    place: Rc<Place>,
    _held: HeldPlace,
    source: IpAddr,
    guard: Rc<Guard>,
}

impl Guard {
    /// Bounds for one core, whose connections hold `places`.
    pub(crate) fn new(max_total: usize, max_per_source: usize, places: Rc<Places>, now: Instant) -> Self {
        let bucket = Bucket { tokens: TOTAL_BURST, at: now };
        Self {
            max_total: Cell::new(max_total.max(1)),
            max_per_source: Cell::new(max_per_source.max(1)),
            places,
            state: RefCell::new(State { sources: HashMap::new(), bucket }),
            discard: Cell::new(Bucket { tokens: DISCARD_BURST, at: now }),
        }
    }

    /// From now on these bounds hold. Each new connection beyond them has an old one evicted.
    pub(crate) fn set_bounds(&self, max_total: usize, max_per_source: usize) {
        self.max_total.set(max_total.max(1));
        self.max_per_source.set(max_per_source.max(1));
    }

    /// Registers a new unauthenticated connection. If there are too many, the oldest one is evicted: a client that has
    /// the key authenticates within a round trip, even if others share its address.
    pub(crate) fn enter(self: &Rc<Self>, ip: IpAddr, now: Instant) -> Ticket {
        let source = prefix(ip);
        self.make_room(Some(ip));
        let (came_at, evicted) = (self.places.clock(), Cell::new(false));
        let place = Rc::new(Place { came_at, evicted, waker: RefCell::default() });
        let held = self.places.enter(EvictionRank::Unauthenticated, source, place.clone());
        self.state.borrow_mut().source(source, now).waiting += 1;
        Ticket { place, _held: held, source, guard: self.clone() }
    }

    /// Connections that a listener takes before others have their turn, so that those it has taken can say something before
    /// as many others as there are places have come.
    pub(crate) fn turn(&self) -> usize {
        (self.max_total.get() / 16).clamp(1, 8)
    }

    /// Has the oldest unauthenticated connection evicted if one more would be too many: in all, and from the address `ip`
    /// where a source has a bound of its own. It has none where nobody needs a password: a browser, or all machines behind
    /// one address, are one source.
    pub(crate) fn make_room(&self, ip: Option<IpAddr>) {
        let source = ip.map(prefix);
        let is_over = |source| self.places.unauthenticated(Some(source)) >= self.max_per_source.get();
        if source.is_some_and(is_over) {
            self.places.evict_unauthenticated(source);
        } else if self.places.unauthenticated(None) >= self.max_total.get() {
            self.places.evict_unauthenticated(None);
        }
    }

    /// Evicts all unauthenticated connections of servers, because the process is about to end. Applications in the middle of
    /// a handshake go on.
    pub(crate) fn dismiss(&self) {
        self.places.dismiss();
    }

    /// Time to wait before `len` more bytes are read from refused connections; they count as read.
    pub(crate) fn delay_discard(&self, len: usize, now: Instant) -> Duration {
        let mut bucket = self.discard.get();
        bucket.refill(DISCARD_RATE, DISCARD_BURST, now);
        bucket.tokens -= f64::from(u32::try_from(len).unwrap_or(u32::MAX));
        self.discard.set(bucket);
        Duration::from_secs_f64((-bucket.tokens / DISCARD_RATE).max(0.0))
    }

    /// Lines for the log: sources whose keys failed since they were last named, with the count.
    pub(crate) fn take_report(&self, now: Instant) -> Vec<(IpAddr, u32)> {
        let is_due =
            |s: &Source| s.reported_at.is_none_or(|at| now.saturating_duration_since(at) >= REPORT_EVERY);
        self.take_failures(Some(now), is_due)
    }

    /// The same for what has not been named when the process ends.
    pub(crate) fn take_rest(&self) -> Vec<(IpAddr, u32)> {
        self.take_failures(None, |_| true)
    }

    fn take_failures(&self, now: Option<Instant>, is_due: impl Fn(&Source) -> bool) -> Vec<(IpAddr, u32)> {
        let mut state = self.state.borrow_mut();
        let failed = state.sources.iter_mut().filter(|(_, source)| source.failures > 0);
        let mut due: Vec<_> = failed.filter(|(_, source)| is_due(source)).collect();
        due.sort_by_key(|(ip, source)| (std::cmp::Reverse(source.failures), **ip));
        due.truncate(NAMED);
        due.into_iter()
            .map(|(ip, source)| {
                source.reported_at = now.or(source.reported_at);
                (*ip, std::mem::take(&mut source.failures))
            })
            .collect()
    }
}

impl State {
    fn source(&mut self, source: IpAddr, now: Instant) -> &mut Source {
        if self.sources.len() >= SOURCES && !self.sources.contains_key(&source) {
            let oldest = self.sources.iter().filter(|(_, s)| s.waiting == 0).min_by_key(|(_, s)| s.seen_at);
            if let Some(oldest) = oldest.map(|(ip, _)| *ip) {
                self.sources.remove(&oldest);
            }
        }
        let bucket = Bucket { tokens: SOURCE_BURST, at: now };
        let fresh = Source { waiting: 0, bucket, known: false, failures: 0, reported_at: None, seen_at: now };
        let entry = self.sources.entry(source).or_insert(fresh);
        entry.seen_at = now;
        entry
    }
}

impl Ticket {
    /// Whether a key may be derived for this connection: the failures of its source must be few, and so must those of
    /// all unauthenticated connections together. For a known source one of the two is enough, so that
    /// neither a flood from elsewhere nor a neighbour behind the same address locks it out.
    pub(crate) fn may_derive(&self, now: Instant) -> bool {
        let mut state = self.guard.state.borrow_mut();
        state.bucket.refill(TOTAL_RATE, TOTAL_BURST, now);
        let total = state.bucket.tokens;
        let source = state.source(self.source, now);
        source.bucket.refill(SOURCE_RATE, SOURCE_BURST, now);
        let own = source.bucket.tokens;
        if source.known { own >= 1.0 || total >= 1.0 } else { own >= 1.0 && total >= 1.0 }
    }

    /// Records that a key derivation failed, at some cost.
    pub(crate) fn failed(&self, now: Instant) {
        let mut state = self.guard.state.borrow_mut();
        state.bucket.spend();
        let source = state.source(self.source, now);
        source.bucket.spend();
        source.failures = source.failures.saturating_add(1);
    }

    /// Records a key that did not fit and cost next to nothing to try: only the report counts it.
    pub(crate) fn mismatched(&self, now: Instant) {
        let mut state = self.guard.state.borrow_mut();
        let source = state.source(self.source, now);
        source.failures = source.failures.saturating_add(1);
    }

    /// Records that the connection has authenticated; its source is known from now on.
    pub(crate) fn authenticated(self, now: Instant) {
        self.guard.state.borrow_mut().source(self.source, now).known = true;
    }

    /// The source that it counts for: an IPv4 address, or an IPv6 /64.
    pub(crate) fn source(&self) -> IpAddr {
        self.source
    }

    /// Whether this connection has had to make room.
    pub(crate) fn is_evicted(&self) -> bool {
        self.place.evicted.get()
    }

    /// Whether this connection is evicted. If not, `waker` is woken when it is.
    pub(crate) fn poll_evicted(&self, waker: &Waker) -> bool {
        *self.place.waker.borrow_mut() = Some(waker.clone());
        self.place.evicted.get()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.guard.state.borrow_mut();
        if let Some(source) = state.sources.get_mut(&self.source) {
            source.waiting = source.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn guard(total: usize, per_source: usize) -> (Rc<Guard>, Instant) {
        let now = Instant::now();
        (Rc::new(Guard::new(total, per_source, Places::unbounded(), now)), now)
    }

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn the_oldest_makes_room_first_of_a_greedy_source() {
        let (guard, now) = guard(10, 3);
        let tickets: Vec<_> = (0..10).map(|n| guard.enter(ip(n), now)).collect();
        let late = guard.enter(ip(99), now);
        assert!(tickets[0].poll_evicted(Waker::noop()) && !tickets[1].poll_evicted(Waker::noop()));
        drop(tickets);
        let same = [guard.enter(ip(99), now), guard.enter(ip(99), now)];
        assert!(!late.poll_evicted(Waker::noop()));
        let other = guard.enter(ip(98), now);
        let next = guard.enter(ip(99), now);
        assert!(late.poll_evicted(Waker::noop()) && !other.poll_evicted(Waker::noop()));
        let _more = guard.enter(ip(99), now);
        assert!(same[0].poll_evicted(Waker::noop()) && !same[1].poll_evicted(Waker::noop()));
        assert!(!next.poll_evicted(Waker::noop()));
        let a: IpAddr = "2001:db8::1".parse().unwrap();
        let b: IpAddr = "2001:db8::ffff:0:0:1".parse().unwrap();
        assert_eq!(prefix(a), prefix(b));
        assert_eq!(prefix("::ffff:1.2.3.4".parse().unwrap()), ip(0x0102_0304));
    }

    #[test]
    fn other_bounds_hold_for_the_next_connection() {
        let (guard, now) = guard(10, 10);
        let tickets: Vec<_> = (0..10).map(|n| guard.enter(ip(n), now)).collect();
        guard.set_bounds(20, 1);
        let more = [guard.enter(ip(20), now), guard.enter(ip(21), now)];
        assert!(!tickets[0].poll_evicted(Waker::noop()));
        let _second = guard.enter(ip(20), now);
        assert!(more[0].poll_evicted(Waker::noop()) && !more[1].poll_evicted(Waker::noop()));
        guard.set_bounds(5, 10);
        let _next = guard.enter(ip(30), now);
        assert!(tickets[0].poll_evicted(Waker::noop()) && !tickets[1].poll_evicted(Waker::noop()));
    }

    #[test]
    fn failures_cost_the_source_its_derivations_for_a_while() {
        let (guard, now) = guard(10_000, 10_000);
        let ticket = guard.enter(ip(1), now);
        let mut derived = 0;
        while ticket.may_derive(now) {
            ticket.failed(now);
            derived += 1;
        }
        assert_eq!(derived, 64);
        assert!(guard.enter(ip(2), now).may_derive(now), "others are not concerned");
        assert!(ticket.may_derive(now + Duration::from_secs(1)));
        assert_eq!(guard.take_report(now), [(ip(1), 64)]);
        ticket.failed(now);
        assert_eq!(guard.take_report(now), []);
        assert_eq!(guard.take_report(now + REPORT_EVERY), [(ip(1), 1)]);
        ticket.failed(now);
        assert_eq!((guard.take_rest(), guard.take_rest()), (vec![(ip(1), 1)], vec![]));
    }

    #[test]
    fn a_flood_of_failures_leaves_known_sources_alone() {
        let (guard, now) = guard(10_000, 10_000);
        guard.enter(ip(1), now).authenticated(now);
        for n in 0..10_000 {
            guard.enter(ip(100 + n / 10), now).failed(now);
        }
        assert!(!guard.enter(ip(5), now).may_derive(now));
        assert!(guard.enter(ip(1), now).may_derive(now));
    }

    #[test]
    fn a_neighbour_behind_the_same_address_does_not_lock_it_out() {
        let (guard, now) = guard(10_000, 10_000);
        guard.enter(ip(1), now).authenticated(now);
        for _ in 0..1000 {
            guard.enter(ip(1), now).failed(now);
        }
        assert!(guard.enter(ip(1), now).may_derive(now));
        for n in 0..9000 {
            guard.enter(ip(100 + n / 10), now).failed(now);
        }
        assert!(!guard.enter(ip(1), now).may_derive(now));
        let later = now + Duration::from_secs(1);
        assert!(guard.enter(ip(1), later).may_derive(later), "and is forgiven soon");
    }

    #[test]
    fn a_flood_of_bytes_is_read_at_a_bounded_rate() {
        let (guard, now) = guard(16, 16);
        for _ in 0..64 {
            assert_eq!(guard.delay_discard(1 << 20, now), Duration::ZERO);
        }
        assert_eq!(guard.delay_discard(1 << 20, now), Duration::from_millis(250));
        assert_eq!(guard.delay_discard(0, now + Duration::from_millis(250)), Duration::ZERO);
    }

    #[test]
    fn memory_is_bounded() {
        let (guard, now) = guard(16, 16);
        for n in 0..20_000 {
            guard.enter(ip(n), now).failed(now);
        }
        assert!(guard.state.borrow().sources.len() <= SOURCES);
        assert_eq!(guard.places.unauthenticated(None), 0);
    }
}
