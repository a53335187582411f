//! Proxies that wait for a client.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use adit_proto::snowflake::Scheme;
use adit_proto::snowflake::messages::{Fingerprint, Nat, ProxyType};

use crate::hand_off::HandOff;

/// An offer on its way to a proxy.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) sdp: String,
    pub(super) nat: Nat,
    pub(super) bridge: Fingerprint,
}

/// A poll of a proxy: it waits for an offer, and then for the proxy's answer.
#[derive(Debug)]
pub(super) struct WaitingProxy {
    pub(super) sid: String,
    pub(super) kind: ProxyType,
    pub(super) nat: Nat,
    pub(super) offer: HandOff<Offer>,
    pub(super) answer: HandOff<String>,
    /// Its place in its pool: fewest clients first, then the oldest.
    place: (i64, u64),
    is_pooled: Cell<bool>,
}

/// A pool of proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolName {
    Open,
    Moderate,
    Strict,
}

impl PoolName {
    pub(super) const ALL: [Self; 3] = [Self::Open, Self::Moderate, Self::Strict];

    /// The pool of a proxy behind `nat`. The old scheme has two: those that anybody can reach, and the others.
    pub(super) fn of(nat: Nat, scheme: Scheme) -> Self {
        match (nat, scheme) {
            (Nat::Unrestricted | Nat::Open, _) => Self::Open,
            (Nat::Moderate, Scheme::Current) => Self::Moderate,
            (Nat::Moderate | Nat::Strict | Nat::Restricted | Nat::Unknown, _) => Self::Strict,
        }
    }

    /// The pools for a client behind `nat`, best first.
    fn for_client(nat: Nat, scheme: Scheme) -> &'static [Self] {
        match (nat, scheme) {
            (Nat::Unrestricted | Nat::Open, Scheme::Current) => &[Self::Strict, Self::Moderate, Self::Open],
            (Nat::Moderate, Scheme::Current) => &[Self::Moderate, Self::Open],
            // It leaves the others to clients that can use no proxy else, and has no way back.
            (Nat::Unrestricted, Scheme::Old) => &[Self::Strict],
            (Nat::Restricted | Nat::Strict | Nat::Unknown | Nat::Open | Nat::Moderate, _) => &[Self::Open],
        }
    }
}

/// All polls: those that wait for a client, and those that have one and have not answered.
#[derive(Debug, Default)]
pub(super) struct Pools {
    scheme: Scheme,
    pools: [BTreeMap<(i64, u64), Rc<WaitingProxy>>; 3],
    by_sid: HashMap<String, Rc<WaitingProxy>>,
    count: u64,
}

impl Pools {
    pub(super) fn new(scheme: Scheme) -> Self {
        Self { scheme, ..Self::default() }
    }

    /// Takes in a poll. One of the same name cannot be answered from now on.
    pub(super) fn enter(&mut self, sid: String, kind: ProxyType, nat: Nat, clients: i64) -> Rc<WaitingProxy> {
        self.count += 1;
        let place = (clients, self.count);
        let (offer, answer, is_pooled) = (HandOff::default(), HandOff::default(), Cell::new(true));
        let waiting = Rc::new(WaitingProxy { sid, kind, nat, offer, answer, place, is_pooled });
        self.pool(&waiting).insert(place, waiting.clone());
        self.by_sid.insert(waiting.sid.clone(), waiting.clone());
        waiting
    }

    fn pool(&mut self, waiting: &WaitingProxy) -> &mut BTreeMap<(i64, u64), Rc<WaitingProxy>> {
        &mut self.pools[PoolName::of(waiting.nat, self.scheme) as usize]
    }

    /// Takes a proxy for a client behind `nat` out of its pool.
    pub(super) fn take(&mut self, nat: Nat) -> Option<Rc<WaitingProxy>> {
        let names = PoolName::for_client(nat, self.scheme);
        let (_, found) = names.iter().find_map(|name| self.pools[*name as usize].pop_first())?;
        found.is_pooled.set(false);
        Some(found)
    }

    /// A poll ends without a client; false if it has one.
    pub(super) fn leave(&mut self, waiting: &Rc<WaitingProxy>) -> bool {
        if !waiting.is_pooled.replace(false) {
            return false;
        }
        self.pool(waiting).remove(&waiting.place);
        self.forget(waiting);
        true
    }

    /// A poll can be answered no more.
    pub(super) fn forget(&mut self, waiting: &Rc<WaitingProxy>) {
        if self.by_sid.get(&waiting.sid).is_some_and(|known| Rc::ptr_eq(known, waiting)) {
            self.by_sid.remove(&waiting.sid);
        }
    }

    /// The poll of this name.
    pub(super) fn find(&self, sid: &str) -> Option<Rc<WaitingProxy>> {
        self.by_sid.get(sid).cloned()
    }

    /// Polls, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Rc<WaitingProxy>> {
        self.by_sid.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sids(pools: &mut Pools, nat: Nat) -> Vec<String> {
        std::iter::from_fn(|| pools.take(nat)).map(|found| found.sid.clone()).collect()
    }

    fn filled(scheme: Scheme) -> Pools {
        let mut pools = Pools::new(scheme);
        for nat in Nat::ALL {
            pools.enter(nat.as_str().into(), ProxyType::Standalone, nat, 0);
        }
        pools
    }

    #[test]
    fn pools_of_both_schemes() {
        for (scheme, client, want) in [
            (Scheme::Current, Nat::Unrestricted, "unknown restricted strict moderate unrestricted open"),
            (Scheme::Current, Nat::Open, "unknown restricted strict moderate unrestricted open"),
            (Scheme::Current, Nat::Moderate, "moderate unrestricted open"),
            (Scheme::Current, Nat::Strict, "unrestricted open"),
            (Scheme::Current, Nat::Restricted, "unrestricted open"),
            (Scheme::Current, Nat::Unknown, "unrestricted open"),
        ] {
            assert_eq!(sids(&mut filled(scheme), client).join(" "), want, "{client:?}");
        }
        let old = || {
            let mut pools = Pools::new(Scheme::Old);
            for nat in [Nat::Unknown, Nat::Restricted, Nat::Unrestricted] {
                pools.enter(nat.as_str().into(), ProxyType::Standalone, nat, 0);
            }
            pools
        };
        assert_eq!(sids(&mut old(), Nat::Unrestricted), ["unknown", "restricted"]);
        assert_eq!(sids(&mut old(), Nat::Unknown), ["unrestricted"]);
        assert_eq!(sids(&mut old(), Nat::Restricted), ["unrestricted"]);
    }

    #[test]
    fn the_least_busy_proxy_is_first_and_no_poll_is_handed_out_twice() {
        let mut pools = Pools::new(Scheme::Current);
        for (sid, clients) in [("a", 8), ("b", 0), ("c", 16), ("d", 0)] {
            pools.enter(sid.into(), ProxyType::Webext, Nat::Open, clients);
        }
        let first = pools.take(Nat::Strict).unwrap();
        assert_eq!(first.sid, "b");
        assert!(!pools.leave(&first), "it has a client");
        assert!(pools.find("b").is_some(), "it may answer");
        let last = pools.find("c").unwrap();
        assert!(pools.leave(&last) && !pools.leave(&last));
        assert!(pools.find("c").is_none());
        assert_eq!(sids(&mut pools, Nat::Strict), ["d", "a"]);
        let again = pools.enter("b".into(), ProxyType::Webext, Nat::Open, 0);
        pools.forget(&first);
        assert!(Rc::ptr_eq(&pools.find("b").unwrap(), &again), "the newer poll of a name stays");
    }
}
