//! Counters of the search for a client's user among keys, for one inbound on all cores.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use adit_net::rt;
use serde::{Deserialize, Serialize};

use crate::counters::{Counter, Distribution, Gauge, Histogram};

/// Upper ends of the classes of searches by their time, in microseconds.
const ENDS_US: [u64; 8] = [100, 1_000, 10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000];
/// Upper ends of the classes of searches by the number of keys that were tried.
const ENDS_KEYS: [u64; 5] = [1, 10, 100, 1_000, 10_000];

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
    /// Searches that found a user, and those that did not.
    found: Ended,
    lost: Ended,
}

/// Searches that have ended.
#[derive(Debug)]
struct Ended {
    /// By the time that they took.
    times: Histogram,
    /// By the number of keys that were tried.
    keys: Histogram,
}

impl Default for Ended {
    fn default() -> Self {
        Self { times: Histogram::new(&ENDS_US), keys: Histogram::new(&ENDS_KEYS) }
    }
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
    /// Searches that found a user.
    #[serde(default)]
    pub found: EndedSearches,
    /// Searches that did not.
    #[serde(default)]
    pub lost: EndedSearches,
}

/// Searches that have ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndedSearches {
    /// By the time that they took.
    pub times: Distribution,
    /// By the number of keys that were tried.
    pub keys: Distribution,
}

impl EndedSearches {
    fn of(ended: &Ended) -> Self {
        Self { times: Distribution::of([&ended.times]), keys: Distribution::of([&ended.keys]) }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.times.add(&other.times);
        self.keys.add(&other.keys);
    }
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
        let (has_place, is_found, keys) = Default::default();
        Search { searches: self.clone(), since: rt::now(), has_place, is_found, keys }
    }

    /// The counters; `None` as long as there was no client.
    pub(crate) fn status(&self) -> Option<SearchStatus> {
        let status = SearchStatus {
            known: self.known.value(),
            begun: self.begun.value(),
            refused: self.refused.value(),
            waiting: self.waiting.value(),
            found: EndedSearches::of(&self.found),
            lost: EndedSearches::of(&self.lost),
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
    is_found: Cell<bool>,
    keys: Cell<u64>,
}

impl Search {
    /// There is a place for it, or no need for one any more.
    pub(crate) fn take_place(&self) {
        self.has_place.set(true);
    }

    /// So many keys more have been tried.
    pub(crate) fn note_keys(&self, keys: usize) {
        self.keys.set(self.keys.get().saturating_add(keys as u64));
    }

    /// The last of the keys is the one.
    pub(crate) fn note_found(&self) {
        self.is_found.set(true);
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        let Searches { refused, waiting, found, lost, .. } = &*self.searches;
        waiting.add(-1);
        refused.add(u64::from(!self.has_place.get()));
        let Ended { times, keys } = if self.is_found.get() { found } else { lost };
        times.note_time(rt::now().saturating_duration_since(self.since));
        keys.note(self.keys.get());
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
        let (found, gone) = (searches.begin(), searches.begin());
        found.take_place();
        found.note_keys(30);
        found.note_keys(3);
        found.note_found();
        assert_eq!(searches.status().unwrap().waiting, 2);
        drop((found, gone));
        let SearchStatus { known, begun, refused, waiting, found, lost } = searches.status().unwrap();
        assert_eq!((known, begun, refused, waiting), (1, 2, 1, 0));
        assert_eq!((found.times.count(), lost.times.count()), (1, 1));
        assert_eq!((&found.keys.counts[..], found.keys.sum), (&[0, 0, 1, 0, 0, 0][..], 33));
        assert_eq!((lost.keys.counts[0], lost.keys.sum), (1, 0));
    }
}
