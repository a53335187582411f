//! Signs that a server does not accept this client: connections, or flows of datagrams, without a byte back.
//!
//! Servers do not say what they dislike. They close before any reply or stay silent for minutes, so that the application
//! loses patience. So the answers that stay away are counted, and one that comes ends the doubt.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use adit_model::Tag;
use adit_model::codes::{self, Code};
use adit_model::map::Map;
use adit_net::rt;
use adit_proto::wire::Target;

use super::{ConfigPart, Fault, Faults};

/// A server that has never replied is doubted after so many connections without an answer, and this time in ms.
const UNANSWERED: u32 = 3;
const SILENCE_MS: u64 = 3_000;
/// A server that has replied before is doubted after more of them, to several targets: a target that is down looks the same.
const UNANSWERED_KNOWN: u32 = 6;
const SILENCE_KNOWN_MS: u64 = 10_000;
const TARGETS: usize = 3;

/// The causes that a reply rules out.
const REPLIED: &[Code] = &[codes::AUTH_SERVER, codes::CLOCK_SERVER];

/// Everything that has been begun since the last answer of a server, over all cores.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    is_known: AtomicBool,
    count: AtomicU32,
    /// Milliseconds since the ledger was made, plus 1; 0 for never.
    since: AtomicU64,
    /// Hashes of targets, 0 for none.
    targets: [AtomicU64; TARGETS],
}

/// The doubts about one outbound.
#[derive(Debug, Default)]
pub(super) struct Answers {
    streams: Doubts,
    flows: Doubts,
}

/// The watches over the outbounds of one core, by name.
#[derive(Debug)]
pub(crate) struct Watches {
    faults: Arc<Faults>,
    by_name: RefCell<Map<Tag, Rc<Watch>>>,
    hasher: RandomState,
}

/// The answers of one server, as one core sees them.
#[derive(Debug)]
pub(crate) struct Watch {
    part: ConfigPart,
    faults: Arc<Faults>,
    answers: Arc<Answers>,
}

impl Doubts {
    /// One more begins, or has ended without an answer.
    fn begin(&self, target: u64, now_ms: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        // An error says that it had begun before.
        self.since.compare_exchange(0, now_ms + 1, Ordering::Relaxed, Ordering::Relaxed).ok();
        for place in &self.targets {
            match place.compare_exchange(0, target, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) if other == target => return,
                Err(_) => {}
            }
        }
    }

    /// An answer has come. Whether there was doubt.
    fn answered(&self) -> bool {
        if !self.is_known.load(Ordering::Relaxed) {
            self.is_known.store(true, Ordering::Relaxed);
        }
        self.count.load(Ordering::Relaxed) > 0 && self.clear() > 0
    }

    fn clear(&self) -> u32 {
        self.since.store(0, Ordering::Relaxed);
        self.targets.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        self.count.swap(0, Ordering::Relaxed)
    }

    /// The count, when there is reason for doubt. The next one comes after the same time.
    fn take_due(&self, now_ms: u64) -> Option<u32> {
        let count = self.count.load(Ordering::Relaxed);
        let since = self.since.load(Ordering::Relaxed).checked_sub(1)?;
        let age = now_ms.saturating_sub(since);
        let is_due = if self.is_known.load(Ordering::Relaxed) {
            let targets = self.targets.iter().filter(|place| place.load(Ordering::Relaxed) != 0).count();
            count >= UNANSWERED_KNOWN && age >= SILENCE_KNOWN_MS && targets == TARGETS
        } else {
            count >= UNANSWERED && age >= SILENCE_MS
        };
        is_due.then(|| self.clear())
    }
}

impl Answers {
    /// Begins anew: the server is another one.
    fn forget(&self) {
        for doubts in [&self.streams, &self.flows] {
            doubts.is_known.store(false, Ordering::Relaxed);
            doubts.clear();
        }
    }

    /// The faults of `outbound` that are due.
    pub(super) fn due(&self, now_ms: u64) -> Vec<Fault> {
        let mut found = Vec::new();
        if let Some(count) = self.streams.take_due(now_ms) {
            let text = format!(
                "{count} connections got no byte back: key, method, protocol or clock differ, or a firewall drops replies"
            );
            found.push(Fault::new(codes::AUTH_SERVER, text));
        }
        if let Some(count) = self.flows.take_due(now_ms) {
            let text = format!(
                "{count} UDP flows got no datagram back: UDP is blocked, or the server does not carry it"
            );
            found.push(Fault::new(codes::UDP_SILENT, text));
        }
        found
    }
}

impl Watches {
    /// None yet; their findings go to `faults`.
    pub(crate) fn new(faults: Arc<Faults>) -> Self {
        Self { faults, by_name: RefCell::default(), hasher: RandomState::new() }
    }

    /// The errors of all parts.
    pub(crate) fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// The watch over an outbound.
    pub(crate) fn of(&self, outbound: &Tag) -> Rc<Watch> {
        if let Some(known) = self.by_name.borrow().get(outbound) {
            return known.clone();
        }
        let (part, faults) = (ConfigPart::Outbound(outbound.clone()), self.faults.clone());
        let answers = faults.answers(outbound);
        let watch = Rc::new(Watch { part, faults, answers });
        self.by_name.borrow_mut().insert(outbound.clone(), watch.clone());
        watch
    }

    /// The outbound is another one, or gone: begins anew.
    pub(crate) fn forget(&self, outbound: &str) {
        if let Some(watch) = self.by_name.borrow_mut().remove(outbound) {
            watch.answers.forget();
        }
    }

    /// A number that stands for a target, never 0.
    pub(crate) fn hash(&self, target: &Target) -> u64 {
        self.hasher.hash_one(target).max(1)
    }
}

impl Watch {
    /// A connection has sent something and waits for an answer.
    pub(crate) fn begin(&self, target: u64, now: Instant) {
        self.answers.streams.begin(target, self.faults.milliseconds(now));
    }

    /// Something that only a server with the key sends has come back.
    pub(crate) fn answered(&self) {
        if self.answers.streams.answered() || self.faults.any() {
            self.faults.clear(&self.part, REPLIED, rt::now());
        }
    }

    /// A flow of datagrams has begun.
    pub(crate) fn begin_flow(&self, target: u64, now: Instant) {
        self.answers.flows.begin(target, self.faults.milliseconds(now));
    }

    /// The first answer of a flow has come.
    pub(crate) fn flow_answered(&self) {
        if self.answers.flows.answered() || self.faults.any() {
            self.faults.clear(&self.part, &[codes::UDP_SILENT], rt::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_never_replied_is_doubted_soon() {
        let doubts = Doubts::default();
        doubts.begin(1, 0);
        doubts.begin(1, 0);
        assert_eq!(doubts.take_due(60_000), None, "applications change their mind");
        doubts.begin(1, 0);
        assert_eq!((doubts.take_due(2_999), doubts.take_due(3_000)), (None, Some(3)));
        assert_eq!(doubts.take_due(90_000), None, "it was said");
    }

    #[test]
    fn one_silent_target_does_not_make_a_known_server_doubtful() {
        let doubts = Doubts::default();
        assert!(!doubts.answered());
        (0..50).for_each(|_| doubts.begin(7, 0));
        assert_eq!(doubts.take_due(100_000), None);
        doubts.begin(8, 0);
        doubts.begin(9, 0);
        assert_eq!((doubts.take_due(9_999), doubts.take_due(10_000)), (None, Some(52)));
        doubts.begin(9, 0);
        assert!(doubts.answered() && doubts.take_due(100_000).is_none());
    }
}
