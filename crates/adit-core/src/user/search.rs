//! Counters of the search for a client's user among keys, for one inbound on all cores.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use adit_net::rt;
use serde::{Deserialize, Serialize};

use crate::metrics::{Counter, Gauge};

/// Upper ends of the classes of [`SearchStatus::counts`] but the last, in microseconds.
const ENDS_US: [u64; 8] = [100, 1_000, 10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000];

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct Searches {
    /// Clients whose user had come from the same source before.
    known: Counter,
    /// Clients for whom all keys were to be tried.
    begun: Counter,
    /// Of these, clients that went, or were sent away, before there was a place for them.
    refused: Counter,
    /// Clients whose user is being looked for.
    waiting: Gauge,
    counts: [Counter; ENDS_US.len() + 1],
    sum_us: Counter,
}

/// The counters in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchStatus {
    /// Clients whose user had come from the same source before.
    pub known: u64,
    /// Clients for whom all keys were to be tried.
    pub begun: u64,
    /// Of these, clients that went, or were sent away, before there was a place for them.
    pub refused: u64,
    /// Clients whose user is being looked for.
    pub waiting: i64,
    /// Searches by the time that they took.
    pub counts: Vec<u64>,
    /// Time of all searches together, in microseconds.
    pub sum_us: u64,
}

impl SearchStatus {
    /// Upper ends of the classes of [`Self::counts`] but the last, in microseconds.
    pub const ENDS_US: &[u64] = &ENDS_US;
}

impl Searches {
    /// A client's user was known by its source.
    pub(crate) fn note_known(&self) {
        self.known.add(1);
    }

    /// All keys are to be tried for a client, until the search is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Search {
        self.begun.add(1);
        self.waiting.add(1);
        Search { searches: self.clone(), since: rt::now(), has_place: Cell::new(false) }
    }

    /// The counters; `None` as long as there was no client.
    pub(crate) fn status(&self) -> Option<SearchStatus> {
        let status = SearchStatus {
            known: self.known.value(),
            begun: self.begun.value(),
            refused: self.refused.value(),
            waiting: self.waiting.value(),
            counts: self.counts.iter().map(Counter::value).collect(),
            sum_us: self.sum_us.value(),
        };
        (status.known + status.begun > 0).then_some(status)
    }
}

/// The search for one client's user.
#[derive(Debug)]
pub(crate) struct Search {
    searches: Arc<Searches>,
    since: Instant,
    has_place: Cell<bool>,
}

impl Search {
    /// There is a place for it, or no need for one any more.
    pub(crate) fn take_place(&self) {
        self.has_place.set(true);
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        let Searches { refused, waiting, counts, sum_us, .. } = &*self.searches;
        waiting.add(-1);
        refused.add(u64::from(!self.has_place.get()));
        let took = rt::now().saturating_duration_since(self.since).as_micros();
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        counts[ENDS_US.iter().take_while(|end| took > **end).count()].add(1);
        sum_us.add(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_are_counted_by_their_end() {
        let searches = Arc::<Searches>::default();
        assert_eq!(searches.status(), None);
        searches.note_known();
        let (found, lost) = (searches.begin(), searches.begin());
        found.take_place();
        assert_eq!(searches.status().unwrap().waiting, 2);
        drop((found, lost));
        let status = searches.status().unwrap();
        let SearchStatus { known, begun, refused, waiting, counts, .. } = status;
        assert_eq!((known, begun, refused, waiting, counts.iter().sum::<u64>()), (1, 2, 1, 0, 2));
    }
}
