//! Sources of known users: they make a known user cheap to recognise.

use std::collections::HashMap;
use std::net::IpAddr;

/// Sources of a generation; two are kept.
const SOURCES: usize = 16_384;
/// Users of one source that are remembered: a household, or a small office.
const USERS: usize = 8;

/// Sources (IPv4 address, IPv6 /64) with the users that have come from there, most recent first.
///
/// Two generations stand in for an order of use: when the young one is full it becomes the old one, and what the old one
/// held without being asked for is forgotten.
#[derive(Debug, Default)]
pub(super) struct Cache {
    young: HashMap<IpAddr, Vec<u32>>,
    old: HashMap<IpAddr, Vec<u32>>,
}

impl Cache {
    /// The users that have come from `source`.
    pub(super) fn find(&mut self, source: IpAddr) -> &[u32] {
        if let Some(users) = self.old.remove(&source) {
            self.make_room();
            self.young.insert(source, users);
        }
        self.young.get(&source).map_or(&[], |users| users)
    }

    /// `user` has come from `source`.
    pub(super) fn insert(&mut self, source: IpAddr, user: u32) {
        if self.find(source).first() == Some(&user) {
            return;
        }
        self.make_room();
        let users = self.young.entry(source).or_default();
        users.retain(|other| *other != user);
        users.truncate(USERS - 1);
        users.insert(0, user);
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

    #[test]
    fn the_most_recent_comes_first_and_old_ones_go() {
        let mut cache = Cache::default();
        for user in 0..20 {
            cache.insert(ip(1), user);
        }
        cache.insert(ip(1), 15);
        assert_eq!(cache.find(ip(1)), [15, 19, 18, 17, 16, 14, 13, 12]);
        for n in 0..100_000 {
            cache.insert(ip(100 + n), n);
            assert_eq!(cache.find(ip(1)).first(), Some(&15), "who is asked for stays");
        }
        assert!(cache.young.len() <= SOURCES && cache.old.len() <= SOURCES);
        assert!(cache.find(ip(100)).is_empty());
    }
}
