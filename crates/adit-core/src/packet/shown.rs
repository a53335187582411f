//! The protocols that clients have shown to their targets with the first datagrams of flows.
//!
//! Only a flow's first datagram tells its protocol, and a decision may be asked for again later, when rules change or
//! others have taken its place. So the protocol is kept, until there has been silence for minutes.
//!
//! Entries lie in a young and an old half. When the young half is full, or old, it becomes the old one, and what has not
//! been used since the last time is gone.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};

use adit_proto::sniff;

use super::table::Tick;

/// Seconds after which the young half becomes the old one.
const TURN: Tick = 300;

/// Protocols by client and target. A keyed hash of 64 bits stands for both.
#[derive(Debug)]
pub(crate) struct Shown {
    young: HashMap<u64, Option<&'static str>>,
    old: HashMap<u64, Option<&'static str>>,
    turned_at: Tick,
    half: usize,
    hasher: RandomState,
}

impl Shown {
    /// Nothing; there will be `half` entries in each half at most.
    pub(crate) fn new(half: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), turned_at: 0, half, hasher: RandomState::new() }
    }

    /// The protocol of the flow of `key`, of which `first` is the first datagram if the flow is not known.
    pub(crate) fn protocol(&mut self, key: &impl Hash, first: &[u8], now: Tick) -> Option<&'static str> {
        if let Some(known) = self.find(key, now) {
            return known;
        }
        let protocol = sniff::first_datagram(first).map(sniff::Protocol::name);
        self.young.insert(self.hasher.hash_one(key), protocol);
        protocol
    }

    /// A datagram of the flow of `key` has passed, so that its protocol is kept.
    pub(crate) fn touch(&mut self, key: &impl Hash, now: Tick) {
        if !(self.young.is_empty() && self.old.is_empty()) {
            self.find(key, now);
        }
    }

    fn find(&mut self, key: &impl Hash, now: Tick) -> Option<Option<&'static str>> {
        match now.wrapping_sub(self.turned_at) {
            0..TURN if self.young.len() < self.half => {}
            age => {
                self.old = std::mem::take(&mut self.young);
                if age >= 2 * TURN {
                    self.old.clear();
                }
                self.turned_at = now;
            }
        }
        let hash = self.hasher.hash_one(key);
        if let Some(protocol) = self.young.get(&hash) {
            return Some(*protocol);
        }
        let protocol = self.old.remove(&hash)?;
        self.young.insert(hash, protocol);
        Some(protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question to a name server (RFC 1035, section 4.1).
    const QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";

    #[test]
    fn the_first_datagram_counts_for_as_long_as_the_flow_is_used() {
        let mut shown = Shown::new(8);
        assert_eq!(shown.protocol(&1, QUESTION, 0), Some("dns"));
        assert_eq!(shown.protocol(&2, b"something else", 0), None);
        assert_eq!(shown.protocol(&1, b"anything", 1), Some("dns"));
        assert_eq!(shown.protocol(&2, QUESTION, 1), None, "decided by the first datagram");
        for now in (1..2000).step_by(200) {
            shown.touch(&1, now);
        }
        assert_eq!(shown.protocol(&1, b"anything", 2000), Some("dns"));
        assert_eq!(
            shown.protocol(&2, QUESTION, 2000),
            Some("dns"),
            "after minutes of silence it is another flow"
        );
        assert_eq!(shown.protocol(&1, b"anything", 2000 + 2 * TURN), None);
    }

    #[test]
    fn a_flood_of_flows_takes_bounded_room() {
        let mut shown = Shown::new(8);
        shown.protocol(&u32::MAX, QUESTION, 0);
        for key in 0..1000 {
            shown.protocol(&key, b"x", 0);
            shown.touch(&u32::MAX, 0);
            assert!(shown.young.len() <= 8 + 1 && shown.old.len() <= 8 + 1);
        }
        assert_eq!(shown.protocol(&u32::MAX, b"x", 0), Some("dns"), "it was used");
        assert_eq!(shown.protocol(&3, QUESTION, 0), Some("dns"), "it was not");
    }
}
