//! Sources of known users: they make a known user cheap to recognise. They outlive a restart and a change of the users.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::activity::Activity;
use super::search_counters::Searches;

/// Sources of a generation; two are kept.
const SOURCES: usize = 16_384;
/// Users of one source that are remembered: a household, or a small office.
const USERS: usize = 8;

/// The sources of one inbound's users, shared by its cores.
#[derive(Debug, Default)]
pub(crate) struct KnownSources {
    cache: Mutex<Cache>,
    /// Something has changed since it was saved.
    is_dirty: AtomicBool,
    /// Searches for the users of clients.
    searches: Arc<Searches>,
    /// The users with a key each, of the last configuration with such.
    activity: Mutex<Weak<Activity>>,
}

impl KnownSources {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counters of searches.
    pub(crate) fn searches(&self) -> &Arc<Searches> {
        &self.searches
    }

    /// Users with a key each, in place of those of the last call.
    pub(crate) fn activity(self: &Arc<Self>, names: Vec<Arc<str>>) -> Arc<Activity> {
        let mut latest = self.activity.lock().unwrap_or_else(PoisonError::into_inner);
        let activity = Arc::new(Activity::new(self, names, latest.upgrade().as_deref()));
        *latest = Arc::downgrade(&activity);
        activity
    }

    /// The users that have come from `source`, most recent first.
    pub(crate) fn find(&self, source: IpAddr) -> Vec<Arc<str>> {
        self.cache().find(source).to_vec()
    }

    /// `user` has come from `source`.
    pub(crate) fn note(&self, source: IpAddr, user: &Arc<str>) {
        if self.cache().insert(source, user) {
            self.is_dirty.store(true, Ordering::Relaxed);
        }
    }

    /// All sources with their users, if something has changed since the last call; old ones first.
    pub(super) fn take_changed(&self) -> bool {
        self.is_dirty.swap(false, Ordering::Relaxed)
    }

    /// All sources with their users, old ones first.
    pub(super) fn all(&self) -> Vec<(IpAddr, Vec<Arc<str>>)> {
        let cache = self.cache();
        let mut all = Vec::with_capacity(cache.old.len() + cache.young.len());
        for part in [&cache.old, &cache.young] {
            let mut part: Vec<_> = part.iter().map(|(source, users)| (*source, users.clone())).collect();
            part.sort_unstable_by_key(|(source, _)| *source);
            all.extend(part);
        }
        all
    }

    /// Names of all users that are remembered.
    pub(super) fn users(&self) -> Vec<Arc<str>> {
        self.all().into_iter().rev().flat_map(|(_, users)| users).collect()
    }
}

/// Sources (IPv4 address, IPv6 /64) with the users that have come from there, most recent first.
///
/// Two generations stand in for an order of use: when the young one is full it becomes the old one, and what the old one
/// held without being asked for is forgotten.
#[derive(Debug, Default)]
struct Cache {
    young: HashMap<IpAddr, Vec<Arc<str>>>,
    old: HashMap<IpAddr, Vec<Arc<str>>>,
}

impl Cache {
    /// The users that have come from `source`.
    fn find(&mut self, source: IpAddr) -> &[Arc<str>] {
        if let Some(users) = self.old.remove(&source) {
            self.make_room();
            self.young.insert(source, users);
        }
        self.young.get(&source).map_or(&[], |users| users)
    }

    /// `user` has come from `source`; false if that is no news.
    fn insert(&mut self, source: IpAddr, user: &Arc<str>) -> bool {
        if self.find(source).first() == Some(user) {
            return false;
        }
        self.make_room();
        let users = self.young.entry(source).or_default();
        users.retain(|other| other != user);
        users.truncate(USERS - 1);
        users.insert(0, user.clone());
        true
    }

    fn make_room(&mut self) {
        if self.young.len() >= SOURCES {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    fn user(n: u32) -> Arc<str> {
        n.to_string().into()
    }

    #[test]
    fn the_most_recent_comes_first_and_old_ones_go() {
        let mut cache = Cache::default();
        for n in 0..20 {
            assert!(cache.insert(ip(1), &user(n)));
        }
        cache.insert(ip(1), &user(15));
        assert!(!cache.insert(ip(1), &user(15)));
        let found: Vec<&str> = cache.find(ip(1)).iter().map(|user| &**user).collect();
        assert_eq!(found, ["15", "19", "18", "17", "16", "14", "13", "12"]);
        for n in 0..100_000 {
            cache.insert(ip(100 + n), &user(n));
            assert_eq!(cache.find(ip(1)).first(), Some(&user(15)), "who is asked for stays");
        }
        assert!(cache.young.len() <= SOURCES && cache.old.len() <= SOURCES);
        assert!(cache.find(ip(100)).is_empty());
    }
}
