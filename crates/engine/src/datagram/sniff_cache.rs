//! The protocols that clients have shown to their targets with the first datagrams of flows.
//!
//! Only a flow's first datagram tells its protocol, and a decision may be asked for again later, when rules change or
//! others have taken its place. So the protocol is kept, until there has been silence for minutes.
//!
//! Entries lie in a young and an old half. When the young half is full, or old, it becomes the old one, and what has not
//! been used since the last time is gone.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::rc::Rc;

use adit_proto::sniff::{self, Datagrams, Sniffed, SniffedProtocol};

use super::table::FlowTick;

/// Seconds after which the young half becomes the old one.
const TURN: FlowTick = 300;

/// Protocols by client and target. A keyed hash of 64 bits stands for both.
#[derive(Debug)]
pub(crate) struct SniffCache {
    young: HashMap<u64, Flow>,
    old: HashMap<u64, Flow>,
    turned_at: FlowTick,
    half: usize,
    hasher: RandomState,
}

#[derive(Debug)]
enum Flow {
    Seen(SniffedDatagrams),
    /// The name needs further datagrams.
    Part(Box<Datagrams>),
}

/// The first datagrams of a flow, as far as they are understood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SniffedDatagrams {
    /// The protocol.
    pub(crate) protocol: Option<&'static str>,
    /// The host that the client names.
    pub(crate) name: Option<Rc<str>>,
}

impl SniffCache {
    /// Nothing; there will be `half` entries in each half at most.
    pub(crate) fn new(half: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), turned_at: 0, half, hasher: RandomState::new() }
    }

    /// The protocol of the flow of `key`, of which `first` is the first datagram if the flow is not known; with
    /// `wants_name` its name too, which may need further datagrams: `None` then, a few times at most.
    pub(crate) fn look(
        &mut self,
        key: &impl Hash,
        first: &[u8],
        wants_name: bool,
        now: FlowTick,
    ) -> Option<SniffedDatagrams> {
        let mut part = match self.find(key, now) {
            Some(Flow::Seen(seen)) => return Some(seen.clone()),
            Some(Flow::Part(part)) => std::mem::take(part),
            None if wants_name => Box::default(),
            None => {
                let protocol = sniff::first_datagram(first).map(SniffedProtocol::name);
                return Some(self.keep(key, SniffedDatagrams { protocol, name: None }));
            }
        };
        match part.push(first) {
            Sniffed::More => {
                self.young.insert(self.hasher.hash_one(key), Flow::Part(part));
                None
            }
            Sniffed::Found(protocol, name) => {
                let name = name.map(Into::into);
                Some(self.keep(key, SniffedDatagrams { protocol: Some(protocol.name()), name }))
            }
            Sniffed::Unknown => Some(self.keep(key, SniffedDatagrams::default())),
        }
    }

    fn keep(&mut self, key: &impl Hash, seen: SniffedDatagrams) -> SniffedDatagrams {
        self.young.insert(self.hasher.hash_one(key), Flow::Seen(seen.clone()));
        seen
    }

    /// A datagram of the flow of `key` has passed, so that its protocol is kept.
    pub(crate) fn touch(&mut self, key: &impl Hash, now: FlowTick) {
        if !(self.young.is_empty() && self.old.is_empty()) {
            self.find(key, now);
        }
    }

    fn find(&mut self, key: &impl Hash, now: FlowTick) -> Option<&mut Flow> {
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
        if let Some(flow) = self.old.remove(&hash) {
            self.young.entry(hash).or_insert(flow);
        }
        self.young.get_mut(&hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question to a name server (RFC 1035, section 4.1).
    const QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";

    /// A hello for example.com in two datagrams (RFC 9001 appendix A).
    const HELLO: &str = include_str!("../../../../testdata/quic/hello-in-two.hex");

    fn hex(text: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digit).collect()
    }

    fn protocol(shown: &mut SniffCache, key: &u32, first: &[u8], now: FlowTick) -> Option<&'static str> {
        shown.look(key, first, false, now).unwrap().protocol
    }

    /// The name of a hello that lies in two datagrams; one that never comes is not waited for long.
    #[test]
    fn names_over_several_datagrams() {
        let hello: Vec<Vec<u8>> = HELLO.lines().map(hex).collect();
        let mut shown = SniffCache::new(8);
        assert_eq!(shown.look(&1, &hello[0], true, 0), None);
        let seen = SniffedDatagrams { protocol: Some("quic"), name: Some("example.com".into()) };
        assert_eq!(shown.look(&1, &hello[1], true, 0), Some(seen.clone()));
        assert_eq!(shown.look(&1, b"anything", true, 0), Some(seen), "it is kept");
        assert_eq!(shown.look(&2, &hello[0], false, 0).unwrap().protocol, Some("quic"));
        let again = (0..10).take_while(|_| shown.look(&3, &hello[0], true, 0).is_none()).count();
        assert_eq!(again, sniff::MAX_DATAGRAMS - 1);
        assert_eq!(shown.look(&4, QUESTION, true, 0).unwrap().protocol, Some("dns"));
        assert_eq!(shown.look(&5, b"x", true, 0), Some(SniffedDatagrams::default()));
    }

    #[test]
    fn the_first_datagram_counts_for_as_long_as_the_flow_is_used() {
        let mut shown = SniffCache::new(8);
        assert_eq!(protocol(&mut shown, &1, QUESTION, 0), Some("dns"));
        assert_eq!(protocol(&mut shown, &2, b"something else", 0), None);
        assert_eq!(protocol(&mut shown, &1, b"anything", 1), Some("dns"));
        assert_eq!(protocol(&mut shown, &2, QUESTION, 1), None, "decided by the first datagram");
        for now in (1..2000).step_by(200) {
            shown.touch(&1, now);
        }
        assert_eq!(protocol(&mut shown, &1, b"anything", 2000), Some("dns"));
        assert_eq!(
            protocol(&mut shown, &2, QUESTION, 2000),
            Some("dns"),
            "after minutes of silence it is another flow"
        );
        assert_eq!(protocol(&mut shown, &1, b"anything", 2000 + 2 * TURN), None);
    }

    #[test]
    fn a_flood_of_flows_takes_bounded_room() {
        let mut shown = SniffCache::new(8);
        protocol(&mut shown, &u32::MAX, QUESTION, 0);
        for key in 0..1000 {
            protocol(&mut shown, &key, b"x", 0);
            shown.touch(&u32::MAX, 0);
            assert!(shown.young.len() <= 8 + 1 && shown.old.len() <= 8 + 1);
        }
        assert_eq!(protocol(&mut shown, &u32::MAX, b"x", 0), Some("dns"), "it was used");
        assert_eq!(protocol(&mut shown, &3, QUESTION, 0), Some("dns"), "it was not");
    }
}
