//! The gate: requests are let in by the secret in the path, and only so often.
//!
//! The secret is looked at first, so that nobody who shares an address with its owner can lock the owner out: requests with it
//! and without it are counted apart. With it a source may ask ten times a second after forty at once. Without it, it is told
//! five times that there is nothing, then once each ten seconds; all others end with status 429. A guess costs a connection
//! and a TLS handshake, and the secret has 16 letters or more.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use adit_model::Secret;
use subtle::ConstantTimeEq as _;

/// The time that a request with the secret, or one without it, stands for; and how much of it may be owed.
const ASK: Duration = Duration::from_millis(100);
const ASKS: Duration = Duration::from_secs(4);
const FAULT: Duration = Duration::from_secs(10);
const FAULTS: Duration = Duration::from_secs(40);
/// Sources that are remembered; beyond that, those that owe nothing are forgotten, then all.
const MAX_SOURCES: usize = 4096;

/// The fate of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry<'p> {
    /// It has the secret; the rest of the path follows.
    Known(&'p str),
    /// It does not.
    Unknown,
    /// Its source asks too often.
    TooMany,
}

/// Until when a source owes time.
#[derive(Clone, Copy)]
struct Debt {
    asks: Instant,
    faults: Instant,
}

pub(super) struct Gate {
    secret: Secret,
    sources: RefCell<HashMap<IpAddr, Debt>>,
}

impl Gate {
    pub(super) fn new(secret: Secret) -> Self {
        Self { secret, sources: RefCell::default() }
    }

    /// Looks at a path, `/SECRET/rest`.
    pub(super) fn enter<'p>(&self, path: &'p str, source: IpAddr, now: Instant) -> Entry<'p> {
        let mut sources = self.sources.borrow_mut();
        if sources.len() >= MAX_SOURCES {
            sources.retain(|_, debt| debt.asks > now || debt.faults > now);
            if sources.len() >= MAX_SOURCES {
                sources.clear();
            }
        }
        let debt = sources.entry(network(source)).or_insert(Debt { asks: now, faults: now });
        let path = path.strip_prefix('/').unwrap_or(path);
        let (shown, rest) = path.split_once('/').unwrap_or((path, ""));
        let is_known = bool::from(shown.as_bytes().ct_eq(self.secret.expose().as_bytes()));
        let (owed, cost, most, entry) = match is_known {
            true => (&mut debt.asks, ASK, ASKS, Entry::Known(rest)),
            false => (&mut debt.faults, FAULT, FAULTS, Entry::Unknown),
        };
        *owed = (*owed).max(now);
        if *owed > now + most {
            return Entry::TooMany;
        }
        *owed += cost;
        entry
    }
}

/// An IPv4 address, or the /64 of an IPv6 one.
fn network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

#[cfg(test)]
mod tests {
    use adit_net::rt;

    use super::*;

    #[test]
    fn a_source_that_guesses_is_not_looked_at() {
        let gate = Gate::new(Secret::new("0123456789abcdef"));
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let now = rt::now();
        assert_eq!(gate.enter("/0123456789abcdef/server", one, now), Entry::Known("server"));
        assert_eq!(gate.enter("/0123456789abcdef", one, now), Entry::Known(""));
        for guess in
            ["/", "/0123456789abcdeg/server", "/0123456789abcde/server", "/server", "//0123456789abcdef"]
        {
            assert_eq!(gate.enter(guess, one, now), Entry::Unknown, "{guess}");
        }
        assert_eq!(gate.enter("/", one, now), Entry::TooMany);
        assert_eq!(gate.enter("/", other, now), Entry::Unknown);
        let later = now + Duration::from_secs(11);
        assert_eq!(gate.enter("/", one, later), Entry::Unknown);
        assert_eq!(gate.enter("/", one, later), Entry::TooMany);
    }

    #[test]
    fn guesses_of_others_do_not_lock_the_secret_out() {
        let gate = Gate::new(Secret::new("0123456789abcdef"));
        let (began, source) = (rt::now(), IpAddr::from([192, 0, 2, 1]));
        for second in 0..600 {
            let now = began + Duration::from_secs(second);
            for _ in 0..50 {
                assert_ne!(gate.enter("/0123456789abcdeg/", source, now), Entry::Known(""));
            }
            assert_eq!(gate.enter("/0123456789abcdef/", source, now), Entry::Known(""), "second {second}");
        }
    }

    #[test]
    fn a_source_that_asks_often_waits_and_few_are_remembered() {
        let gate = Gate::new(Secret::new("0123456789abcdef"));
        let (now, source) = (rt::now(), IpAddr::from(Ipv6Addr::LOCALHOST));
        let known = |now| gate.enter("/0123456789abcdef/", source, now) == Entry::Known("");
        assert_eq!((0..100).filter(|_| known(now)).count(), 41);
        assert_eq!((0..100).filter(|_| known(now + Duration::from_secs(1))).count(), 10);
        for n in 0..10_000_u32 {
            gate.enter("/", IpAddr::from(n.to_be_bytes()), now);
        }
        assert!(gate.sources.borrow().len() <= MAX_SOURCES);
    }
}
