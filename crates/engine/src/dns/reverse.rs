//! Names of the real addresses that clients were given, for as long as the answers hold.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Addresses that are remembered, as many as mihomo has.
const MAX: usize = 4096;

/// The names behind addresses.
#[derive(Debug, Default)]
pub(super) struct Reverse {
    names: HashMap<IpAddr, (Arc<str>, Instant, u64)>,
    /// Each entry with the number of its last insertion; older insertions of an address are passed over.
    order: VecDeque<(IpAddr, u64)>,
    count: u64,
}

impl Reverse {
    /// A client was told that `name` has these addresses, for so long. The last name of an address counts.
    pub(super) fn insert(&mut self, name: &str, ips: &[IpAddr], ttl: Duration, now: Instant) {
        let name: Arc<str> = name.into();
        for ip in ips {
            self.count += 1;
            self.names.insert(*ip, (name.clone(), now + ttl, self.count));
            self.order.push_back((*ip, self.count));
        }
        while self.names.len() > MAX || self.order.len() > 2 * MAX {
            let Some((ip, number)) = self.order.pop_front() else { return };
            if self.names.get(&ip).is_some_and(|(.., last)| *last == number) {
                self.names.remove(&ip);
            }
        }
    }

    /// The name of an address.
    pub(super) fn find(&self, ip: IpAddr, now: Instant) -> Option<Arc<str>> {
        let (name, until, _) = self.names.get(&ip)?;
        (now < *until).then(|| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn names_are_known_for_their_time_and_in_bounded_memory() {
        let (mut reverse, now) = (Reverse::default(), adit_net::rt::now());
        let ip = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(n));
        let ttl = Duration::from_secs(60);
        reverse.insert("a.test", &[ip(1), ip(2)], ttl, now);
        reverse.insert("b.test", &[ip(2)], ttl, now + Duration::from_secs(10));
        assert_eq!(reverse.find(ip(1), now + Duration::from_secs(59)).as_deref(), Some("a.test"));
        assert_eq!(reverse.find(ip(1), now + ttl), None);
        assert_eq!(reverse.find(ip(2), now + ttl).as_deref(), Some("b.test"), "the last one counts");
        for n in 0..20_000 {
            reverse.insert("c.test", &[ip(10 + n)], ttl, now);
            reverse.insert("a.test", &[ip(1)], ttl, now);
        }
        assert!(reverse.names.len() <= MAX && reverse.order.len() <= 2 * MAX + 1);
        assert_eq!(reverse.find(ip(1), now).as_deref(), Some("a.test"), "it was answered all the time");
        assert_eq!(reverse.find(ip(10), now), None);
        assert_eq!(reverse.find(ip(10 + 19_999), now).as_deref(), Some("c.test"));
    }
}
