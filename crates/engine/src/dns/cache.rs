//! Answers that are remembered, in bounded memory. Time is an argument.
//!
//! One entry is about one list of name servers, one name and one record type. When the cache is full, the oldest entry
//! that was not used since it was last looked at makes room (CLOCK).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_net::resolve::ResolveError;

use super::message::Body;

/// The result for a question.
pub(super) type QueryOutcome = Result<Body, ResolveError>;

/// An answer that has expired is given while a new one is fetched for so long. Within this time most answers have not
/// changed, and a changed one costs a failed attempt.
const STALE_AT_ONCE: Duration = Duration::from_secs(300);
/// An answer that has expired is given for so long when no new one can be had (RFC 8767 section 5, "maximum stale").
const STALE_ON_FAILURE: Duration = Duration::from_secs(24 * 3600);
/// A stale answer whose refreshing has failed is given for so long before the next try (RFC 8767 section 5).
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// A failure is remembered for so long (RFC 9520 section 3.2: at least one second).
const FAILED_LIFE: Duration = Duration::from_secs(1);
/// Even an answer that may not be remembered lives this long, so that everybody who waits for it gets it.
const LEAST_LIFE: Duration = Duration::from_secs(1);
/// Bytes of the heap per entry that are allowed on average; most answers hold 17 to 68.
const MEAN_LEN: usize = 512;

/// One question to one list of name servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) name: Arc<str>,
    pub(super) list: u32,
    pub(super) kind: u16,
}

/// Limits on what is remembered.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheLimits {
    pub(super) entries: usize,
    pub(super) min_ttl: Duration,
    pub(super) max_ttl: Duration,
    pub(super) stale: bool,
}

/// An entry that the cache has found.
#[derive(Debug, Clone)]
pub(super) struct Hit {
    pub(super) outcome: QueryOutcome,
    /// Remaining lifetime; zero for a stale answer.
    pub(super) left: Duration,
    /// Whether it has expired and should be fetched again.
    pub(super) is_stale: bool,
}

#[derive(Debug)]
pub(super) struct Cache {
    terms: CacheLimits,
    names: HashMap<Arc<str>, Vec<Entry>>,
    /// Each entry once; the next one that may have to go is in front.
    order: VecDeque<Key>,
    /// Bytes that the answers hold.
    len: usize,
}

#[derive(Debug)]
struct Entry {
    list: u32,
    kind: u16,
    outcome: QueryOutcome,
    expires_at: Instant,
    /// Since a refresh has failed: when the next one may begin.
    retry_at: Option<Instant>,
    is_used: bool,
}

impl Cache {
    pub(super) fn new(terms: CacheLimits) -> Self {
        Self { terms, names: HashMap::new(), order: VecDeque::new(), len: 0 }
    }

    /// Looks up a question. `name` is in lower case.
    pub(super) fn find(&mut self, name: &str, list: u32, kind: u16, now: Instant) -> Option<Hit> {
        let entry = entry(self.names.get_mut(name)?, list, kind)?;
        let left = entry.expires_at.saturating_duration_since(now);
        if !left.is_zero() {
            entry.is_used = true;
            return Some(Hit { outcome: entry.outcome.clone(), left, is_stale: false });
        }
        let waits = entry.retry_at.is_some_and(|at| now < at);
        let age = now.saturating_duration_since(entry.expires_at);
        let is_worth = self.terms.stale && entry.outcome.is_ok() && (waits || age < STALE_AT_ONCE);
        is_worth.then(|| {
            entry.is_used = true;
            Hit { outcome: entry.outcome.clone(), left: Duration::ZERO, is_stale: !waits }
        })
    }

    /// Remembers an answer, which is good for `ttl` seconds by itself, or a failure. Returns what is known now: after a
    /// failure that may be an older answer.
    pub(super) fn insert(
        &mut self,
        key: &Key,
        outcome: Result<(Body, u32), ResolveError>,
        now: Instant,
    ) -> QueryOutcome {
        let old = self.names.get_mut(&key.name).and_then(|entries| entry(entries, key.list, key.kind));
        if let (Err(_), Some(old)) = (&outcome, old)
            && self.terms.stale
            && old.outcome.is_ok()
            && now.saturating_duration_since(old.expires_at) < STALE_ON_FAILURE
        {
            old.retry_at = Some(now + RETRY_AFTER);
            return old.outcome.clone();
        }
        let (outcome, life) = match outcome {
            Ok((body, ttl)) => {
                let ttl = Duration::from_secs(ttl.into()).clamp(self.terms.min_ttl, self.terms.max_ttl);
                (Ok(body), ttl.max(LEAST_LIFE))
            }
            Err(error) => (Err(error), FAILED_LIFE),
        };
        self.put(key, outcome.clone(), now + life);
        outcome
    }

    fn put(&mut self, key: &Key, outcome: QueryOutcome, expires_at: Instant) {
        self.len += outcome.as_ref().map_or(0, Body::len);
        let Key { name, list, kind } = key;
        let entries = self.names.entry(name.clone()).or_default();
        if let Some(entry) = entry(entries, *list, *kind) {
            self.len -= entry.outcome.as_ref().map_or(0, Body::len);
            *entry = Entry { outcome, expires_at, retry_at: None, ..*entry };
        } else {
            let (list, kind) = (*list, *kind);
            entries.push(Entry { list, kind, outcome, expires_at, retry_at: None, is_used: false });
            self.order.push_back(key.clone());
        }
        self.shrink();
    }

    /// From `now` on other limits hold, for what is remembered already too.
    pub(super) fn set_terms(&mut self, terms: CacheLimits, now: Instant) {
        self.terms = terms;
        let latest = now + terms.max_ttl.max(LEAST_LIFE);
        for entry in self.names.values_mut().flatten() {
            entry.expires_at = entry.expires_at.min(latest);
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.order.len() > self.terms.entries || self.len > self.terms.entries.saturating_mul(MEAN_LEN)
        {
            self.evict();
        }
    }

    fn evict(&mut self) {
        while let Some(key) = self.order.pop_front() {
            let Some(entries) = self.names.get_mut(&key.name) else { continue };
            let at = entries.iter().position(|entry| (entry.list, entry.kind) == (key.list, key.kind));
            let Some(at) = at else { continue };
            if std::mem::take(&mut entries[at].is_used) {
                self.order.push_back(key);
                continue;
            }
            self.len -= entries.swap_remove(at).outcome.as_ref().map_or(0, Body::len);
            if entries.is_empty() {
                self.names.remove(&key.name);
            }
            return;
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.terms);
    }

    /// Entries that are remembered.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.order.len()
    }
}

fn entry(entries: &mut [Entry], list: u32, kind: u16) -> Option<&mut Entry> {
    entries.iter_mut().find(|entry| (entry.list, entry.kind) == (list, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> CacheLimits {
        let max_ttl = Duration::from_secs(3600);
        CacheLimits { entries: 4, min_ttl: Duration::ZERO, max_ttl, stale: true }
    }

    fn key(name: &str) -> Key {
        Key { name: name.into(), list: 0, kind: 1 }
    }

    fn ip(last: u8) -> Body {
        Body::Addresses([std::net::IpAddr::from([192, 0, 2, last])].into())
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The clock's zero; only distances from it count.
    fn zero() -> Instant {
        adit_net::rt::now()
    }

    #[test]
    fn answers_hold_for_their_time() {
        let (mut cache, zero) = (Cache::new(CacheLimits { stale: false, ..terms() }), zero());
        cache.insert(&key("a"), Ok((ip(1), 10)), zero).unwrap();
        let found = cache.find("a", 0, 1, zero + seconds(9)).unwrap();
        assert_eq!((found.outcome.unwrap(), found.left), (ip(1), seconds(1)));
        assert!(cache.find("a", 0, 1, zero + seconds(10)).is_none());
        assert!(cache.find("a", 0, 28, zero).is_none() && cache.find("a", 1, 1, zero).is_none());
        cache.insert(&key("a"), Ok((Body::NoName, 5)), zero + seconds(10)).unwrap();
        assert_eq!(cache.find("a", 0, 1, zero + seconds(14)).unwrap().outcome.unwrap(), Body::NoName);
        assert!(cache.find("a", 0, 1, zero + seconds(15)).is_none());
    }

    #[test]
    fn times_are_kept_within_limits() {
        let limits = CacheLimits { min_ttl: seconds(60), max_ttl: seconds(600), stale: false, ..terms() };
        let (mut cache, zero) = (Cache::new(limits), zero());
        cache.insert(&key("short"), Ok((ip(1), 1)), zero).unwrap();
        cache.insert(&key("long"), Ok((ip(2), u32::MAX)), zero).unwrap();
        for (name, life) in [("short", 60), ("long", 600)] {
            assert!(cache.find(name, 0, 1, zero + seconds(life - 1)).is_some(), "{name}");
            assert!(cache.find(name, 0, 1, zero + seconds(life)).is_none(), "{name}");
        }
    }

    #[test]
    fn expired_answers_serve_while_refreshed_and_when_that_fails() {
        let (mut cache, zero) = (Cache::new(terms()), zero());
        cache.insert(&key("a"), Ok((ip(1), 10)), zero).unwrap();
        let stale = cache.find("a", 0, 1, zero + seconds(10)).unwrap();
        assert!(stale.is_stale && stale.left.is_zero() && stale.outcome.is_ok());
        assert!(cache.find("a", 0, 1, zero + seconds(10) + STALE_AT_ONCE).is_none(), "too old to begin with");

        let late = zero + seconds(10) + STALE_AT_ONCE;
        let kept = cache.insert(&key("a"), Err(ResolveError::Timeout), late);
        assert_eq!(kept.unwrap(), ip(1));
        assert!(!cache.find("a", 0, 1, late).unwrap().is_stale, "no refresh before its time");
        assert!(cache.find("a", 0, 1, late + RETRY_AFTER).is_none());
        let ages = zero + seconds(10) + STALE_ON_FAILURE;
        assert!(cache.insert(&key("a"), Err(ResolveError::Timeout), ages).is_err());
        assert!(cache.find("a", 0, 1, ages).unwrap().outcome.is_err());
        assert!(cache.find("a", 0, 1, ages + FAILED_LIFE).is_none());
    }

    #[test]
    fn other_limits_hold_for_what_is_remembered() {
        let (mut cache, zero) = (Cache::new(CacheLimits { stale: false, ..terms() }), zero());
        for name in ["a", "b", "c"] {
            cache.insert(&key(name), Ok((ip(1), 600)), zero).unwrap();
        }
        cache.find("b", 0, 1, zero).unwrap();
        let now = zero + seconds(10);
        cache.set_terms(CacheLimits { entries: 1, max_ttl: seconds(60), ..terms() }, now);
        assert_eq!(cache.entries(), 1, "the one that was used");
        assert_eq!(cache.find("b", 0, 1, now).unwrap().left, seconds(60));
        cache.set_terms(CacheLimits { entries: 1, max_ttl: seconds(600), ..terms() }, now);
        assert_eq!(
            cache.find("b", 0, 1, now).unwrap().left,
            seconds(60),
            "nothing lives longer than it was to"
        );
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let (mut cache, zero) = (Cache::new(terms()), zero());
        cache.insert(&key("used"), Ok((ip(1), 600)), zero).unwrap();
        for i in 0..1000 {
            cache.find("used", 0, 1, zero).expect("it is used all the time");
            cache.insert(&key(&format!("n{i}")), Ok((ip(2), 600)), zero).unwrap();
            assert!(cache.entries() <= 4 && cache.names.len() <= 4);
        }
        let big = Body::Message(vec![0; 1800].into());
        for i in 0..100 {
            cache.insert(&key(&format!("b{i}")), Ok((big.clone(), 600)), zero).unwrap();
            assert!(cache.len <= 4 * MEAN_LEN, "{}", cache.len);
            assert_eq!(cache.order.len(), cache.names.values().map(Vec::len).sum::<usize>());
        }
    }
}
