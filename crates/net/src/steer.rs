//! The event loop that new connections go to.
//!
//! A loop that sleeps has to be woken, which costs as much as a good part of a short connection does. So while there is
//! little to do the loops take turns: one of them gets all new connections, and the others sleep. It passes the turn on
//! when it has [`LEAD`] connections more than another one, so that they are spread evenly in the long run. Once it is busy,
//! or many come at once, which may all be bulk, the kernel spreads new connections over all loops by a hash, until they
//! are calm again.
//!
//! ```text
//!   one loop's turn ── ahead by LEAD ──▶ the turn of the loop with the fewest
//!        │  ▲
//!        │  │ CALM, all together, for DWELL
//!        │  │
//!        ▼  │ BUSY, or BURST
//!   all by a hash
//! ```
//!
//! Everything is decided when a connection is accepted. A connection never changes loops.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_sys::clock::thread_time;
use adit_sys::handle::AsFd;
use adit_sys::tcp::steer;
use tracing::debug;

/// Connections by which the loop in turn may be ahead of another one.
pub const LEAD: usize = 16;
/// Processor time of a loop, in thousandths of the time that passes, from which on it shares new connections.
const BUSY: u32 = 700;
/// The same of all loops together, up to which one of them takes all.
const CALM: u32 = 600;
/// Connections that a loop may get within a [`WINDOW`] beyond those that end in it.
const BURST: usize = 4;
/// A loop's share is taken over at least this time.
const WINDOW: Duration = Duration::from_millis(5);
/// All loops take connections for at least this long, and a program that the kernel has lost is given again after it.
const DWELL: Duration = Duration::from_millis(100);

/// The loop in turn; [`ALL`] for none.
type Aim = u32;
const ALL: Aim = Aim::MAX;

/// The turns of the event loops of a process.
#[derive(Debug)]
pub struct AcceptTurns {
    loads: Box<[Load]>,
    aim: AtomicU32,
    since: Instant,
    /// When the aim has changed, in milliseconds since then.
    changed_ms: AtomicU64,
    /// A loop has ended: turns would be given to it.
    is_over: AtomicBool,
}

/// The work of a loop. Each has cache lines of its own, since it writes at every connection.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Load {
    open: AtomicUsize,
    /// Its processor time in thousandths.
    share: AtomicU32,
}

impl AcceptTurns {
    /// The turns of so many loops.
    pub fn new(count: usize, now: Instant) -> Arc<Self> {
        Arc::new(Self {
            loads: (0..count.max(1)).map(|_| Load::default()).collect(),
            aim: AtomicU32::new(0),
            since: now,
            changed_ms: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        })
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.since).as_millis()).unwrap_or(u64::MAX)
    }

    fn has_dwelt(&self, since_ms: u64, now: Instant) -> bool {
        Duration::from_millis(self.millis(now).saturating_sub(since_ms)) >= DWELL
    }

    /// The loop with the fewest connections, and their number.
    fn least(&self) -> (Aim, usize) {
        let open = self.loads.iter().map(|load| load.open.load(Ordering::Relaxed));
        let least = (0..).zip(open).min_by_key(|(_, open)| *open);
        least.unwrap_or((0, 0))
    }

    /// The loop that is to take new connections, as the loop `index` sees it after a look at itself.
    fn aim(&self, index: Aim, look: Look, now: Instant) -> Aim {
        let aim = self.aim.load(Ordering::Relaxed);
        if self.is_over.load(Ordering::Relaxed) {
            return ALL;
        }
        let load = &self.loads[index as usize];
        let next = if aim == ALL {
            let all = || self.loads.iter().map(|load| load.share.load(Ordering::Relaxed)).sum::<u32>();
            let has_dwelt = || self.has_dwelt(self.changed_ms.load(Ordering::Relaxed), now);
            let is_calm = look == Look::Fresh && has_dwelt() && all() <= CALM;
            if is_calm { self.least().0 } else { ALL }
        } else if look == Look::Burst || load.share.load(Ordering::Relaxed) >= BUSY {
            ALL
        } else {
            let open = load.open.load(Ordering::Relaxed);
            if aim != index || open < LEAD {
                return aim;
            }
            let (least, fewest) = self.least();
            if open - fewest.min(open) >= LEAD { least } else { aim }
        };
        if next == aim {
            return aim;
        }
        match self.aim.compare_exchange(aim, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                self.changed_ms.store(self.millis(now), Ordering::Relaxed);
                next
            }
            // Another loop was faster.
            Err(other) => other,
        }
    }
}

/// The result of a look of a loop at itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Nothing new.
    Same,
    /// Its share has just been taken.
    Fresh,
    /// Many connections have come since then.
    Burst,
}

/// One loop's part in the turns. Dropping it, when the loop ends, ends them all.
#[derive(Debug)]
pub struct AcceptBalancer {
    turns: Arc<AcceptTurns>,
    index: Aim,
    /// The connections that it has.
    open: Rc<Cell<usize>>,
    /// Its processor time.
    clock: fn() -> Duration,
    /// When that was last read, what it was, and the connections at that time.
    sample: Cell<(Instant, Duration, usize)>,
}

impl AcceptBalancer {
    /// The part of the loop `index`, on its thread, whose connections are counted in `open`.
    pub fn new(turns: Arc<AcceptTurns>, index: usize, open: Rc<Cell<usize>>, now: Instant) -> Self {
        let index = Aim::try_from(index).unwrap_or(0);
        Self { turns, index, open, clock: thread_time, sample: Cell::new((now, thread_time(), 0)) }
    }

    /// Notes what the loop has to do; to be called from time to time.
    pub fn note(&self, now: Instant) {
        self.look(now);
    }

    fn look(&self, now: Instant) -> Look {
        let (load, open) = (&self.turns.loads[self.index as usize], self.open.get());
        load.open.store(open, Ordering::Relaxed);
        let (at, used, before) = self.sample.get();
        let passed = now.saturating_duration_since(at);
        if passed < WINDOW {
            return if open.saturating_sub(before) >= BURST { Look::Burst } else { Look::Same };
        }
        let time = (self.clock)();
        let share = time.saturating_sub(used).as_nanos() * 1000 / passed.as_nanos();
        load.share.store(u32::try_from(share).unwrap_or(u32::MAX).min(1000), Ordering::Relaxed);
        self.sample.set((now, time, open));
        Look::Fresh
    }
}

impl Drop for AcceptBalancer {
    fn drop(&mut self) {
        self.turns.is_over.store(true, Ordering::Relaxed);
    }
}

/// The listeners of one port, one per loop in the loops' order.
#[derive(Debug)]
pub struct Group {
    state: Mutex<State>,
    /// The same as the state's, for a look without the lock.
    aim: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    /// When the kernel was last told, in milliseconds of the turns.
    told_ms: u64,
    /// A listener is gone, or the kernel refuses: it chooses from now on.
    is_left: bool,
}

impl Default for Group {
    fn default() -> Self {
        Self { state: Mutex::default(), aim: AtomicU32::new(ALL) }
    }
}

impl Group {
    /// Has the kernel follow `aim`, unless it does. `is_astray`: a connection has come to a loop that is not in turn.
    fn follow(&self, listener: &impl AsFd, aim: Aim, is_astray: bool, turns: &AcceptTurns, now: Instant) {
        if self.aim.load(Ordering::Relaxed) == aim && !is_astray {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_told = self.aim.load(Ordering::Relaxed) == aim;
        if state.is_left || is_told && !turns.has_dwelt(state.told_ms, now) {
            return;
        }
        state.told_ms = turns.millis(now);
        self.aim.store(aim, Ordering::Relaxed);
        if let Err(error) = steer(listener, (aim != ALL).then_some(aim)) {
            debug!(%error, "the system spreads connections as it likes");
            state.is_left = true;
        }
    }

    /// One of the listeners goes: no connection must wait at it.
    fn leave(&self, listener: &impl AsFd) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut state.is_left, true) {
            drop(steer(listener, None));
        }
    }
}

/// One of the listeners of a group, on its loop.
#[derive(Debug)]
pub(crate) struct Steered {
    pub(crate) helm: Rc<AcceptBalancer>,
    pub(crate) group: Arc<Group>,
}

impl Steered {
    /// `listener` has accepted a connection.
    pub(crate) fn accepted(&self, listener: &impl AsFd) {
        let AcceptBalancer { turns, index, .. } = &*self.helm;
        let now = crate::rt::now();
        let aim = turns.aim(*index, self.helm.look(now), now);
        let is_astray = aim != ALL && aim != *index;
        self.group.follow(listener, aim, is_astray, turns, now);
    }

    /// `listener` goes.
    pub(crate) fn leave(&self, listener: &impl AsFd) {
        self.group.leave(listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(turns: &AcceptTurns, index: usize, open: usize, share: u32) {
        turns.loads[index].open.store(open, Ordering::Relaxed);
        turns.loads[index].share.store(share, Ordering::Relaxed);
    }

    #[test]
    fn a_loop_passes_its_turn_on_once_it_is_ahead() {
        let now = Instant::now();
        let turns = AcceptTurns::new(3, now);
        load(&turns, 1, 5, 0);
        load(&turns, 2, 3, 0);
        load(&turns, 0, LEAD + 2, BUSY - 1);
        assert_eq!(turns.aim(0, Look::Fresh, now), 0);
        load(&turns, 1, 5 + LEAD, 0);
        assert_eq!(turns.aim(1, Look::Fresh, now), 0, "it has the turn no more, or not yet");
        load(&turns, 0, LEAD + 3, 0);
        assert_eq!(turns.aim(0, Look::Fresh, now), 2);
        assert_eq!((turns.aim(0, Look::Fresh, now), turns.aim(2, Look::Fresh, now)), (2, 2));
    }

    #[test]
    fn busy_loops_share_connections_until_all_are_calm() {
        let now = Instant::now();
        let turns = AcceptTurns::new(2, now);
        load(&turns, 0, 7, BUSY);
        load(&turns, 1, 2, 0);
        assert_eq!(turns.aim(0, Look::Fresh, now), ALL);
        load(&turns, 0, 7, CALM / 2);
        load(&turns, 1, 2, CALM / 2 + 1);
        let later = now + DWELL;
        assert_eq!(turns.aim(0, Look::Fresh, later), ALL, "together they are not calm");
        load(&turns, 1, 2, CALM / 2);
        assert_eq!(turns.aim(0, Look::Fresh, now), ALL, "too soon");
        assert_eq!(turns.aim(0, Look::Same, later), ALL, "by a share of before");
        assert_eq!(turns.aim(0, Look::Fresh, later), 1, "to the one with the fewest");
    }

    #[test]
    fn there_are_no_turns_once_a_loop_has_ended() {
        let now = Instant::now();
        let turns = AcceptTurns::new(2, now);
        assert_eq!(turns.aim(0, Look::Fresh, now), 0);
        drop(AcceptBalancer::new(turns.clone(), 1, Rc::default(), now));
        assert_eq!(turns.aim(0, Look::Fresh, now + DWELL), ALL);
    }

    #[test]
    fn a_share_is_taken_over_a_while() {
        let now = Instant::now();
        let turns = AcceptTurns::new(1, now);
        let mut helm = AcceptBalancer::new(turns.clone(), 0, Rc::new(Cell::new(3)), now);
        helm.clock = || Duration::from_millis(4);
        helm.sample.set((now, Duration::ZERO, 0));
        assert_eq!(helm.look(now + WINDOW / 2), Look::Same);
        assert_eq!(helm.look(now + Duration::from_millis(8)), Look::Fresh);
        assert_eq!(turns.loads[0].share.load(Ordering::Relaxed), 500);
        assert_eq!(turns.loads[0].open.load(Ordering::Relaxed), 3);
        helm.open.set(2 + BURST);
        assert_eq!(helm.look(now + Duration::from_millis(9)), Look::Same);
        helm.open.set(3 + BURST);
        assert_eq!(helm.look(now + Duration::from_millis(9)), Look::Burst);
        assert_eq!(turns.aim(0, Look::Burst, now), ALL);
    }

    #[cfg(target_os = "linux")]
    mod listening {
        use std::future::Future;
        use std::net::{SocketAddr, TcpStream};
        use std::pin::pin;
        use std::task::Poll;

        use super::*;
        use crate::accept::{Accepted, Acceptor};
        use crate::listen::{ListenOptions, listen_many};

        thread_local! {
            static IS_BUSY: Cell<bool> = const { Cell::new(false) };
            static USED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        }

        /// Of loops that work all the time, or never.
        fn clock() -> Duration {
            USED.set(USED.get() + Duration::from_secs(if IS_BUSY.get() { 1 } else { 0 }));
            USED.get()
        }

        /// Several loops in one.
        struct Loops {
            addr: SocketAddr,
            acceptors: Vec<Acceptor>,
            open: Vec<Rc<Cell<usize>>>,
            held: Vec<(TcpStream, Accepted)>,
        }

        fn loops(count: usize) -> Loops {
            let made = listen_many("127.0.0.1:0".parse().unwrap(), &ListenOptions::default(), count).unwrap();
            let now = Instant::now();
            let turns = AcceptTurns::new(count, now);
            let open: Vec<Rc<Cell<usize>>> = (0..count).map(|_| Rc::default()).collect();
            let steered = made.sockets.into_iter().enumerate().map(|(index, socket)| {
                let mut helm = AcceptBalancer::new(turns.clone(), index, open[index].clone(), now);
                helm.clock = clock;
                helm.sample.set((now, Duration::ZERO, 0));
                Acceptor::from_std(socket).unwrap().steered(&Rc::new(helm), made.group.clone())
            });
            let acceptors = steered.collect();
            Loops { addr: made.addr, acceptors, open, held: Vec::new() }
        }

        impl Loops {
            /// Opens so many connections, one after another, and says how many came to each loop.
            async fn connect(&mut self, count: usize, hold: bool) -> Vec<usize> {
                let mut came = vec![0; self.acceptors.len()];
                for number in 0..count {
                    if hold && number % BURST == 0 {
                        tokio::time::sleep(WINDOW).await;
                    }
                    let client = TcpStream::connect(self.addr).unwrap();
                    let (index, accepted) = std::future::poll_fn(|cx| {
                        for (index, acceptor) in self.acceptors.iter_mut().enumerate() {
                            if let Poll::Ready(accepted) = pin!(acceptor.accept()).poll(cx) {
                                return Poll::Ready((index, accepted.unwrap().0));
                            }
                        }
                        Poll::Pending
                    })
                    .await;
                    came[index] += 1;
                    if hold {
                        self.open[index].set(self.open[index].get() + 1);
                        self.held.push((client, accepted));
                    }
                }
                came
            }
        }

        #[tokio::test(flavor = "local")]
        async fn short_connections_come_to_one_loop_and_held_ones_to_all_in_turns() {
            let mut loops = loops(4);
            loops.connect(1, false).await;
            assert_eq!(loops.connect(200, false).await, [200, 0, 0, 0]);
            let held = loops.connect(4 * LEAD + 200, true).await;
            let most = held.iter().max().unwrap() - held.iter().min().unwrap();
            assert!(most <= LEAD + 1, "{held:?}");
        }

        #[tokio::test(flavor = "local")]
        async fn connections_come_to_all_loops_while_one_is_busy() {
            let mut loops = loops(4);
            loops.connect(2, false).await;
            IS_BUSY.set(true);
            // It is busy for a whole window.
            tokio::time::sleep(WINDOW).await;
            loops.connect(1, false).await;
            let came = loops.connect(200, false).await;
            assert!(came.iter().all(|came| *came >= 20), "{came:?}");
            IS_BUSY.set(false);
            loops.open[0].set(1);
            for _ in 0..2 {
                // Each of them looks at how busy it is.
                tokio::time::sleep(DWELL).await;
                loops.connect(100, false).await;
            }
            assert_eq!(loops.connect(50, false).await, [0, 50, 0, 0]);
        }

        #[tokio::test(flavor = "local")]
        async fn no_connection_waits_at_a_listener_that_is_gone() {
            let mut loops = loops(3);
            loops.connect(2, false).await;
            drop(loops.acceptors.remove(0));
            let came = loops.connect(60, false).await;
            assert!(came.iter().all(|came| *came >= 5), "{came:?}");
        }
    }
}
