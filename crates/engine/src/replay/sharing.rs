//! The replay group: nodes behind one address tell each other which salts have opened a stream.
//!
//! ```text
//!   Salts::insert ── new here, and not told by a sibling ──→ accepted, and queued to be told
//!   thread of the store, once a second:  takes the queue ──→ store ──→ siblings learn
//! ```
//!
//! Nothing here waits for the store. Fingerprints are made with the key of the group, so that all nodes have the same
//! ones. Those of siblings have a memory of their own, in which the oldest give way: a sibling that tells too many cannot
//! have connections refused here. The queue forgets its oldest, too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use adit_net::rt;
use serde::{Deserialize, Serialize};

use super::file::Kind;
use super::fingerprints::Fingerprints;
use super::{Key, LIFE_S, fingerprint};

/// Fingerprints of siblings that are remembered of each kind, at least. With 1,000 connections a second at each of 16 nodes,
/// these are those of a minute.
const LEARNED: usize = 1_000_000;
/// Fingerprints that wait to be told: 4 MiB.
const QUEUED: usize = 1 << 18;

/// Fingerprints of salts, as the nodes of a replay group tell them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupSalts {
    /// Of requests that carry their time: they are good for a minute.
    pub recent: Vec<u64>,
    /// Of protocols without a time: they are good for ever.
    pub lasting: Vec<u64>,
}

/// Counters of a replay group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupCounts {
    /// Salts that wait to be told.
    pub queued: u64,
    /// Salts that were forgotten before they were told.
    pub dropped: u64,
    /// Connections that were refused because a sibling had told of their salt.
    pub refused: u64,
}

/// The siblings of this node, if it has any.
#[derive(Debug, Default)]
pub(crate) struct ReplaySharing(RwLock<Option<Arc<Group>>>);

impl ReplaySharing {
    /// Joins the group with this key, or leaves it. One that stays keeps what it knows.
    pub(crate) fn join(&self, key: Option<Key>) {
        let mut group = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if group.as_ref().map(|group| group.key) != key {
            *group = key.map(|key| Arc::new(Group::new(key)));
        }
    }

    /// Whether no sibling has told of `salt`. It is queued to be told then.
    pub(super) fn admit(&self, kind: Kind, salt: &[u8]) -> bool {
        self.group().is_none_or(|group| group.admit(kind, salt))
    }

    /// Takes up to `most` salts that the siblings have not been told, the oldest first.
    pub(crate) fn take(&self, most: usize) -> GroupSalts {
        self.group().map(|group| group.take(most, rt::unix_time())).unwrap_or_default()
    }

    /// Remembers salts of siblings.
    pub(crate) fn learn(&self, salts: &GroupSalts) {
        let Some(group) = self.group() else { return };
        for (memory, prints) in [(&group.recent, &salts.recent), (&group.lasting, &salts.lasting)] {
            for print in prints {
                // One that is known, or is this node's own, stays.
                let _is_new = memory.insert(*print);
            }
        }
    }

    /// The counters.
    pub(crate) fn counts(&self) -> GroupCounts {
        let Some(group) = self.group() else { return GroupCounts::default() };
        GroupCounts {
            queued: group.queue().len() as u64,
            dropped: group.dropped.load(Ordering::Relaxed),
            refused: group.refused.load(Ordering::Relaxed),
        }
    }

    /// Bytes of memory that the fingerprints of siblings take.
    pub(super) fn memory(&self) -> usize {
        self.group().map_or(0, |group| group.recent.memory() + group.lasting.memory())
    }

    fn group(&self) -> Option<Arc<Group>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
struct Group {
    key: Key,
    recent: Fingerprints,
    lasting: Fingerprints,
    queue: Mutex<VecDeque<Queued>>,
    dropped: AtomicU64,
    refused: AtomicU64,
}

/// A salt that the siblings have not been told.
#[derive(Debug, Clone, Copy)]
struct Queued {
    print: u64,
    /// When it came, in seconds since 1970; 0 for one that lasts.
    at_s: u64,
}

impl Group {
    fn new(key: Key) -> Self {
        Self {
            key,
            recent: Fingerprints::new(LEARNED),
            lasting: Fingerprints::new(LEARNED),
            queue: Mutex::default(),
            dropped: AtomicU64::default(),
            refused: AtomicU64::default(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Queued>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, kind: Kind, salt: &[u8]) -> bool {
        let print = fingerprint(&self.key, salt);
        let (learned, at_s) = match kind {
            Kind::Recent => (&self.recent, rt::unix_time()),
            Kind::Lasting => (&self.lasting, 0),
        };
        if learned.contains(print) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let mut queue = self.queue();
        if queue.len() >= QUEUED {
            queue.pop_front();
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        queue.push_back(Queued { print, at_s });
        true
    }

    fn take(&self, most: usize, now_s: u64) -> GroupSalts {
        let mut salts = GroupSalts::default();
        let mut queue = self.queue();
        while salts.recent.len() + salts.lasting.len() < most
            && let Some(Queued { print, at_s }) = queue.pop_front()
        {
            match at_s {
                0 => salts.lasting.push(print),
                // One that came while the store was away, and is refused for its age by now.
                _ if at_s + LIFE_S < now_s => {}
                _ => salts.recent.push(print),
            }
        }
        if queue.is_empty() {
            // Its room was for a flood, or for the time that the store was away.
            *queue = VecDeque::new();
        }
        salts
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ReplayFilter, tests::salt};
    use super::*;

    const KEY: Key = [9; 16];

    fn node() -> (ReplayFilter, Arc<ReplaySharing>) {
        let salts = ReplayFilter::default();
        let siblings = Arc::new(ReplaySharing::default());
        siblings.join(Some(KEY));
        salts.follow(siblings.clone());
        (salts, siblings)
    }

    #[test]
    fn a_salt_that_a_sibling_told_of_is_refused() {
        let (first, second) = (node(), node());
        assert!(first.0.insert(&salt(1)) && first.0.insert_recent(&salt(2)));
        let told = first.1.take(100);
        assert_eq!((told.recent.len(), told.lasting.len()), (1, 1));
        assert_eq!(first.1.take(100), GroupSalts::default(), "told once");
        // Before it has been told, a sibling accepts it: that is the window.
        let early = node();
        assert!(early.0.insert(&salt(1)));
        second.1.learn(&told);
        assert!(!second.0.insert(&salt(1)) && !second.0.insert_recent(&salt(2)));
        assert!(second.0.insert(&salt(3)), "others are served");
        assert_eq!(second.1.counts(), GroupCounts { queued: 1, dropped: 0, refused: 2 });
        // Own salts that come back from the store change nothing.
        first.1.learn(&told);
        assert!(!first.0.insert(&salt(1)));
    }

    #[test]
    fn another_key_and_no_group_share_nothing() {
        let (first, second) = (node(), node());
        assert!(first.0.insert(&salt(1)));
        let told = first.1.take(100);
        second.1.join(Some([8; 16]));
        second.1.learn(&told);
        assert!(second.0.insert(&salt(1)));
        second.1.join(None);
        assert!(second.0.insert(&salt(2)));
        assert_eq!(second.1.take(100), GroupSalts::default());
        // The same key again keeps the memory.
        first.1.learn(&GroupSalts { recent: vec![], lasting: vec![fingerprint(&KEY, &salt(5))] });
        first.1.join(Some(KEY));
        assert!(!first.0.insert(&salt(5)));
    }

    #[test]
    fn a_flood_is_bounded_and_refuses_nobody() {
        let (salts, siblings) = node();
        let flood: Vec<u64> =
            (0..3 * LEARNED as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        siblings.learn(&GroupSalts { recent: flood.clone(), lasting: flood });
        let group = siblings.group().unwrap();
        for learned in [&group.recent, &group.lasting] {
            assert!((LEARNED..LEARNED + 30_000).contains(&learned.len()), "{}", learned.len());
        }
        assert!(salts.insert(&salt(1)) && salts.insert_recent(&salt(2)));
        drop(siblings.take(2));
        let more = 1000;
        for n in 0..u32::try_from(QUEUED).unwrap() + more {
            group.admit(Kind::Lasting, &salt(n));
        }
        assert_eq!(siblings.counts().queued, QUEUED as u64);
        assert_eq!(siblings.counts().dropped, u64::from(more));
        assert_eq!(siblings.take(1).lasting, [fingerprint(&KEY, &salt(more))], "the oldest went");
    }

    #[test]
    fn salts_of_a_time_that_has_passed_are_not_told() {
        let (salts, siblings) = node();
        assert!(salts.insert_recent(&salt(1)) && salts.insert(&salt(2)));
        let group = siblings.group().unwrap();
        let told = group.take(100, rt::unix_time() + LIFE_S + 2);
        assert_eq!((told.recent.len(), told.lasting.len()), (0, 1));
    }
}
