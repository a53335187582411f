//! Targets whose clients have told no name with their first bytes, time and again: nobody waits for them any more.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use adit_proto::wire::Target;

/// Targets that are remembered.
const MAX: usize = 128;
/// Times in a row after which nobody waits.
const TIMES: u8 = 6;
/// Time for which they are remembered after the last time.
const KEPT: Duration = Duration::from_secs(600);

/// The targets, those that were noted last at the end.
#[derive(Debug, Default)]
pub(crate) struct UnsniffableTargets(RefCell<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    target: Target,
    times: u8,
    at: Instant,
}

impl UnsniffableTargets {
    /// Whether it has been in vain often enough.
    pub(crate) fn is_known(&self, target: &Target, now: Instant) -> bool {
        let all = self.0.borrow();
        let mut known = all.iter().filter(|entry| entry.target == *target && entry.times >= TIMES);
        known.any(|entry| now.saturating_duration_since(entry.at) < KEPT)
    }

    /// Once more in vain.
    pub(crate) fn note(&self, target: &Target, now: Instant) {
        let mut all = self.0.borrow_mut();
        all.retain(|entry| now.saturating_duration_since(entry.at) < KEPT);
        let known = all.iter().position(|entry| entry.target == *target);
        let times = known.map_or(0, |place| all.remove(place).times).saturating_add(1);
        if all.len() == MAX {
            all.remove(0);
        }
        all.push(Entry { target: target.clone(), times, at: now });
    }

    /// A name was found.
    pub(crate) fn forget(&self, target: &Target) {
        self.0.borrow_mut().retain(|entry| entry.target != *target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(port: u16) -> Target {
        Target::new(b"192.0.2.1", port).unwrap()
    }

    #[test]
    fn six_times_and_for_ten_minutes() {
        let (all, now) = (UnsniffableTargets::default(), adit_net::rt::now());
        for _ in 0..TIMES {
            assert!(!all.is_known(&target(1), now));
            all.note(&target(1), now);
        }
        assert!(all.is_known(&target(1), now) && !all.is_known(&target(2), now));
        assert!(!all.is_known(&target(1), now + KEPT));
        all.forget(&target(1));
        assert!(!all.is_known(&target(1), now));
    }

    #[test]
    fn a_bounded_number() {
        let (all, now) = (UnsniffableTargets::default(), adit_net::rt::now());
        for port in 0..1000 {
            (0..TIMES).for_each(|_| all.note(&target(port), now));
        }
        assert_eq!(all.0.borrow().len(), MAX);
        assert!(all.is_known(&target(999), now) && !all.is_known(&target(1), now));
    }
}
