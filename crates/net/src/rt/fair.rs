//! The order in which tasks of a core move bytes: sparse flows before bulk.
//!
//! An event loop looks at its sockets between turns. Every task that runs between two looks delays each new connection,
//! request and datagram. So bulk gets a budget per look; relays that want more wait in line, first in, first out:
//!
//! ```text
//!   look at the sockets ─▶ woken by them: everything but bulk ─▶ the line: bulk, up to the budget ─▶ look ...
//! ```
//!
//! - A relay is bulk once a turn of it moved [`BULK_LEN`] bytes or left bytes unread. A smaller turn ends that, and so
//!   does a pause of `QUIET`.
//! - The budget is `TIME` or [`TURNS`] per look. A turn that has begun is finished.
//! - Bulk that its socket wakes goes behind the bulk that waits, so that bytes gather meanwhile and turns stay big.
//! - A source whose bytes cost much (slow ciphers) reads less per turn, so that one turn fits the budget.
//!
//! Nothing sleeps: while somebody waits in line, looks do not block.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Time that bulk has per look at the sockets. Longer delays others, shorter costs more looks per byte.
const TIME: Duration = Duration::from_micros(200);
/// Turns that bulk has per look, however short they are.
pub const TURNS: u32 = 16;
/// Bytes of one turn, both directions together, from which on a relay is bulk.
pub const BULK_LEN: u64 = 16 * 1024;
/// The least that a read may be cut to: below, calls cost more than they save.
const LEAST_READ: usize = 16 * 1024;
/// The first reads of a relay, whose speed is unknown, in bytes.
const FIRST_READ: usize = 64 * 1024;
/// A relay that had no turn for this long is sparse again.
const QUIET: Duration = Duration::from_millis(100);
/// Nothing is said about speed before a turn moved that much.
const RATED_LEN: u64 = 4 * 1024;

/// The rest of the budget for bulk until the next look, and the tasks that wait for it.
#[derive(Debug, Default)]
struct Budget {
    spent: Duration,
    turns: u32,
    /// Relays in line; `None` for one that is gone.
    line: VecDeque<Option<Waker>>,
    /// Number of the first place in line; all before have been called.
    first: u64,
    /// Wakes the task that refills this budget; `None` until there is one.
    refill: Option<Waker>,
    has_refill: bool,
}

impl Budget {
    fn is_used_up(&self) -> bool {
        self.spent >= TIME || self.turns >= TURNS
    }

    /// The sockets have been looked at.
    fn refill(&mut self) -> Option<Waker> {
        self.spent = Duration::ZERO;
        self.turns = 0;
        self.call()
    }

    /// The next one in line that still exists.
    fn call(&mut self) -> Option<Waker> {
        while let Some(place) = self.line.pop_front() {
            self.first += 1;
            if place.is_some() {
                return place;
            }
        }
        None
    }

    fn join(&mut self, waker: Waker) -> u64 {
        self.line.push_back(Some(waker));
        self.first + self.line.len() as u64 - 1
    }

    /// The place in line with this number; `None` once it has been called.
    fn place(&mut self, number: u64) -> Option<&mut Option<Waker>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.line.get_mut(at)
    }
}

thread_local! {
    static BUDGET: RefCell<Budget> = RefCell::default();
}

/// A relay's place on its core. Dropping it gives the place up.
#[derive(Debug, Default)]
pub struct Place {
    /// Its number in line, plus 1; 0 outside.
    ticket: u64,
    /// Nanoseconds per KiB of its bulk turns; 0: unknown.
    pace: u32,
    /// When its last bulk turn began; `None` while it is sparse.
    bulk: Option<Instant>,
}

impl Place {
    /// Ready when the relay may have a turn. Else it is in line, and woken when it is called.
    pub fn poll_turn(&mut self, cx: &Context<'_>, now: Instant) -> Poll<()> {
        let Some(last) = self.bulk else { return Poll::Ready(()) };
        if self.ticket == 0 && now.saturating_duration_since(last) >= QUIET {
            self.bulk = None;
            return Poll::Ready(());
        }
        BUDGET.with_borrow_mut(|budget| {
            if let Some(number) = self.ticket.checked_sub(1) {
                let Some(place) = budget.place(number) else {
                    self.ticket = 0;
                    return Poll::Ready(());
                };
                if place.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
                    *place = Some(cx.waker().clone());
                }
                return Poll::Pending;
            }
            if budget.line.is_empty() && !budget.is_used_up() {
                return Poll::Ready(());
            }
            self.join(budget, cx);
            Poll::Pending
        })
    }

    /// The most that the next read should bring, in bytes.
    pub fn read_len(&self) -> usize {
        let kib = TIME.as_nanos().checked_div(self.pace.into());
        let len = kib.map(|kib| usize::try_from(kib * 1024).unwrap_or(usize::MAX));
        len.map_or(FIRST_READ, |len| len.max(LEAST_READ))
    }

    /// A turn that began at `begin` has moved `len` bytes. If `more` bytes wait to be read, the relay is in line for its
    /// next turn.
    pub fn end_turn(&mut self, cx: &Context<'_>, begin: Instant, len: u64, more: bool) {
        if more || len >= BULK_LEN {
            self.bulk = Some(begin);
        } else if len > 0 {
            self.bulk = None;
        }
        if self.bulk.is_none() {
            return;
        }
        let time = super::now().saturating_duration_since(begin);
        self.note_pace(time, len);
        let next = BUDGET.with_borrow_mut(|budget| {
            budget.spent += time;
            budget.turns += 1;
            if more && self.ticket == 0 {
                self.join(budget, cx);
            }
            if budget.is_used_up() { None } else { budget.call() }
        });
        if let Some(waker) = next {
            waker.wake();
        }
    }

    /// Fast turns count at once and slow ones by an eighth: a turn may be slow because the system ran something else.
    fn note_pace(&mut self, time: Duration, len: u64) {
        if len < RATED_LEN {
            return;
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let seen = u32::try_from(nanos.saturating_mul(1024) / len).unwrap_or(u32::MAX).max(1);
        self.pace =
            if self.pace == 0 || seen < self.pace { seen } else { self.pace + (seen - self.pace) / 8 };
    }

    fn join(&mut self, budget: &mut Budget, cx: &Context<'_>) {
        self.ticket = budget.join(cx.waker().clone()) + 1;
        if let Some(waker) = budget.refill.take() {
            waker.wake();
        } else if !std::mem::replace(&mut budget.has_refill, true) {
            super::spawn_small(refill());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(number) = self.ticket.checked_sub(1) else { return };
        BUDGET.with_borrow_mut(|budget| {
            if let Some(place) = budget.place(number) {
                *place = None;
            }
        });
    }
}

/// Forgets the line when its event loop ends: the next one of this thread begins anew.
struct Loop;

impl Drop for Loop {
    fn drop(&mut self) {
        // A task in line may be dropped after this, and looks for its place then.
        let line = BUDGET.with_borrow_mut(|budget| {
            budget.first += budget.line.len() as u64;
            (budget.spent, budget.turns, budget.refill, budget.has_refill) = (Duration::ZERO, 0, None, false);
            std::mem::take(&mut budget.line)
        });
        drop(line);
    }
}

/// Refills the budget after every look at the sockets, as long as somebody waits.
async fn refill() {
    let _loop = Loop;
    loop {
        std::future::poll_fn(|cx| {
            BUDGET.with_borrow_mut(|budget| {
                if budget.line.is_empty() {
                    budget.refill = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
        })
        .await;
        // The runtime wakes those that yield behind those that its sockets have woken.
        super::yield_now().await;
        if let Some(waker) = BUDGET.with_borrow_mut(Budget::refill) {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cores, now, yield_now};
    use super::*;

    const BULK: u64 = 256 * 1024;

    fn used_up() -> bool {
        BUDGET.with_borrow(Budget::is_used_up)
    }

    #[test]
    fn bulk_waits_once_the_budget_is_used_up_and_sparse_flows_do_not() {
        Cores::block_on(async {
            let cx = Context::from_waker(Waker::noop());
            let (mut first, mut second, mut sparse) = (Place::default(), Place::default(), Place::default());
            let start = now();
            for place in [&mut first, &mut second] {
                assert!(place.poll_turn(&cx, start).is_ready(), "nothing is known of it");
                place.end_turn(&cx, start, BULK, false);
            }
            for _ in 0..TURNS {
                first.end_turn(&cx, now(), BULK, false);
            }
            assert!(used_up());
            assert!(first.poll_turn(&cx, start).is_pending() && second.poll_turn(&cx, start).is_pending());
            assert!(sparse.poll_turn(&cx, start).is_ready());
            sparse.end_turn(&cx, start, 200, false);
            assert!(sparse.poll_turn(&cx, start).is_ready());
            // One look for the task that refills to begin, one for each turn.
            while first.poll_turn(&cx, start).is_pending() {
                yield_now().await;
            }
            assert!(!used_up());
            while second.poll_turn(&cx, start).is_pending() {
                yield_now().await;
            }
        })
        .unwrap();
    }

    #[test]
    fn a_small_turn_or_a_pause_makes_a_flow_sparse_again() {
        Cores::block_on(async {
            let cx = Context::from_waker(Waker::noop());
            let start = now();
            let mut place = Place::default();
            place.end_turn(&cx, start, BULK, false);
            assert!(place.bulk.is_some());
            place.end_turn(&cx, start, 0, false);
            assert!(place.bulk.is_some(), "a turn that was blocked says nothing");
            place.end_turn(&cx, start, BULK_LEN - 1, false);
            assert!(place.bulk.is_none());
            place.end_turn(&cx, start, BULK_LEN, false);
            assert!(place.poll_turn(&cx, start + QUIET).is_ready() && place.bulk.is_none());
            for _ in 0..TURNS {
                place.end_turn(&cx, start, BULK, false);
            }
            place.end_turn(&cx, start, 1, true);
            assert!(place.bulk.is_some(), "more waits to be read");
            assert!(place.poll_turn(&cx, start + QUIET).is_pending(), "it is in line");
        })
        .unwrap();
    }

    #[test]
    fn a_task_that_leaves_the_line_is_passed_over() {
        let mut budget = Budget::default();
        let places: Vec<u64> = (0..3).map(|_| budget.join(Waker::noop().clone())).collect();
        *budget.place(places[0]).unwrap() = None;
        assert!(budget.refill().is_some());
        assert!(budget.place(places[0]).is_none() && budget.place(places[1]).is_none());
        assert!(budget.place(places[2]).is_some());
        assert!(budget.call().is_some() && budget.call().is_none());
    }

    #[test]
    fn what_costs_much_reads_less() {
        let mut place = Place::default();
        assert_eq!(place.read_len(), FIRST_READ);
        place.note_pace(Duration::from_micros(80), BULK);
        assert!(place.read_len() as u64 > BULK);
        // Camellia: 20 ns per byte.
        let mut slow = Place::default();
        slow.note_pace(Duration::from_millis(5), BULK);
        assert_eq!(slow.read_len(), LEAST_READ);
        let before = place.pace;
        place.note_pace(Duration::from_millis(5), BULK);
        assert!(place.pace > before && place.pace < slow.pace / 4, "one slow turn is not believed");
        slow.note_pace(Duration::from_micros(80), BULK);
        assert_eq!(slow.pace, before, "a fast one is");
    }
}
