//! Chooses the outbound for the datagrams of a client to one target.
//!
//! The answer is part of the flow's key. It is asked for once per client and target: the engine remembers the latest
//! answers in a small table.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use adit_model::{RuleLine, Tag};
use adit_net::program::Program;
use adit_net::reach::Private;
use adit_proto::wire::Target;

use super::inbound::FlowClient;
use super::outbound::{FlowClass, PacketOutbound};
use super::table::FlowTick;
use crate::dns::Fake;
use crate::errors::Watch;
use crate::users::Account;

/// Answers that an engine remembers, a power of two.
const REMEMBERED: usize = 256;
/// Seconds without a datagram after which an answer is asked for again.
const LIFE: FlowTick = 60;

/// The number of an outbound, as [`DatagramRouter`] counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OutboundId(pub(crate) u32);

/// Identity of one flow of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FlowKey {
    pub(super) client: FlowClient,
    pub(super) via: OutboundId,
    pub(super) lane: FlowClass,
    /// The number of the fake address that the client sends to, 0 for a real one: such a flow has no other target.
    pub(super) alias: u64,
}

/// A question for the router.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteQuery<'a> {
    /// Address of the client.
    pub(crate) source: SocketAddr,
    /// Account of the user, if there are users.
    pub(crate) user: Option<&'a Arc<Account>>,
    /// Target of the datagram.
    pub(crate) target: &'a Target,
    /// The protocol that the flow's first datagram has shown, where [`DatagramRouter::needs_protocol`] asks for it.
    pub(crate) protocol: Option<&'static str>,
    /// The name that its first datagrams have told, where [`DatagramRouter::seeks_name`] asks for it.
    pub(crate) name: Option<&'a str>,
    /// Traffic class of the flow's first datagram; 0 if it is not known.
    pub(crate) class: u8,
    /// The addresses that the client's socket may be connected to: that of this host, and the one that it names.
    pub(crate) to: (Option<SocketAddr>, Option<SocketAddr>),
}

/// Why a flow takes its way, and whose it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RouteReason {
    /// The rule that decided, where control programs may ask.
    pub(crate) rule: Option<Arc<RuleLine>>,
    /// The client's program, if it was sought and found.
    pub(crate) program: Option<Program>,
    /// The name that the first datagrams have told, where the rules judged it.
    pub(crate) sniffed: Option<Box<str>>,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatagramDecision {
    /// Over this outbound.
    Through(OutboundId),
    /// Over this outbound to this address alone, which was judged.
    At(OutboundId, IpAddr),
    /// Nowhere.
    Reject,
    /// Nowhere, and nobody is told.
    Drop,
    /// The decision needs an address of the target's name, and there is none.
    Unresolved,
    /// The decision needs an address of the target's name, or the client's program, which is being looked up.
    Pending,
}

/// Decides.
pub(crate) trait DatagramRouter {
    /// A number that changes when decisions or outbounds may have changed.
    fn changes(&self) -> u32;

    /// The outbound of all datagrams, where there is nothing to decide.
    fn fixed(&self) -> Option<OutboundId>;

    /// The fake addresses that targets may be, if there are any.
    fn fake(&self) -> Option<&Arc<Fake>> {
        None
    }

    /// The target that a named one stands for, if it stands for another one.
    fn renamed(&self, _target: &Target) -> Option<Target> {
        None
    }

    /// Whether datagrams from this address are taken.
    fn accepts(&self, source: IpAddr) -> bool;

    /// Whether decisions ask for the protocol that a flow's first datagram shows.
    fn needs_protocol(&self) -> bool;

    /// Whether decisions ask for the traffic class of a flow's first datagram.
    fn needs_class(&self) -> bool {
        false
    }

    /// Whether a name is sought in the first datagrams of a client for `target`.
    fn seeks_name(&self, source: SocketAddr, target: &Target) -> bool {
        let _ = (source, target);
        false
    }

    /// Decides the way of a datagram. `waker` is woken when a decision that is pending can be asked for again.
    /// `why` takes the reason, if there is one to tell.
    fn decide(
        &self,
        question: &RouteQuery<'_>,
        waker: &Waker,
        now: FlowTick,
        why: &mut Option<Rc<RouteReason>>,
    ) -> DatagramDecision;

    /// The outbound of this number.
    fn outbound(&self, via: OutboundId) -> Option<Rc<dyn PacketOutbound>>;

    /// A flow over this outbound begins with a datagram for `target`: the watch that is told of its first answer, where a
    /// server carries it.
    fn watch(&self, via: OutboundId, target: &Target) -> Option<Rc<Watch>> {
        let _ = (via, target);
        None
    }

    /// A datagram of `len` bytes was dropped: the path takes no more than `fits`, where that is known.
    fn note_too_big(&self, len: usize, fits: Option<usize>) {
        let _ = (len, fits);
    }

    /// The name of that outbound.
    fn name(&self, via: OutboundId) -> Option<Tag> {
        let _ = via;
        None
    }

    /// A datagram was dropped since its target is private.
    fn note_private(&self, kind: Private);
}

/// The latest decisions of one engine: one for each slot, found by the hash of client and target.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    slots: Vec<Option<Remembered>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Remembered {
    client: FlowClient,
    target: Target,
    decision: DatagramDecision,
    why: Option<Rc<RouteReason>>,
    used_at: FlowTick,
}

impl Decisions {
    /// Forgets all decisions.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }

    /// The decision for `client` and `target`, if it is remembered.
    pub(super) fn find(
        &mut self,
        client: &FlowClient,
        target: &Target,
        now: FlowTick,
    ) -> Option<DatagramDecision> {
        let slot = self.slot(client, target);
        let found = self.slots.get_mut(slot)?.as_mut()?;
        let is_it = found.client == *client && found.target == *target;
        if !is_it || now.wrapping_sub(found.used_at) > LIFE {
            return None;
        }
        found.used_at = now;
        Some(found.decision)
    }

    /// The reason of a decision that is remembered.
    pub(super) fn why(&self, client: &FlowClient, target: &Target) -> Option<Rc<RouteReason>> {
        let found = self.slots.get(self.slot(client, target))?.as_ref()?;
        let is_it = found.client == *client && found.target == *target;
        if is_it { found.why.clone() } else { None }
    }

    /// Remembers a decision in the place of an older one.
    pub(super) fn insert(
        &mut self,
        client: FlowClient,
        target: &Target,
        decision: DatagramDecision,
        why: Option<Rc<RouteReason>>,
        now: FlowTick,
    ) {
        if self.slots.is_empty() {
            self.slots.resize_with(REMEMBERED, || None);
        }
        let slot = self.slot(&client, target);
        self.slots[slot] = Some(Remembered { client, target: target.clone(), decision, why, used_at: now });
    }

    fn slot(&self, client: &FlowClient, target: &Target) -> usize {
        let hash = self.hasher.hash_one((client, target));
        usize::try_from(hash % REMEMBERED as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_remembered_per_client_and_target() {
        let mut decisions = Decisions::default();
        let (one, two) = (FlowClient::Session(1), FlowClient::Session(2));
        let target = |port: u16| Target::from(SocketAddr::from(([192, 0, 2, 1], port)));
        assert_eq!(decisions.find(&one, &target(1), 0), None);
        let why = Some(Rc::new(RouteReason { rule: None, program: None, sniffed: None }));
        decisions.insert(one, &target(1), DatagramDecision::Through(OutboundId(3)), why.clone(), 0);
        assert_eq!((decisions.why(&one, &target(1)), decisions.why(&two, &target(1))), (why, None));
        assert_eq!(decisions.find(&one, &target(1), 60), Some(DatagramDecision::Through(OutboundId(3))));
        assert_eq!(
            (decisions.find(&two, &target(1), 60), decisions.find(&one, &target(2), 60)),
            (None, None)
        );
        assert_eq!(
            decisions.find(&one, &target(1), 120),
            Some(DatagramDecision::Through(OutboundId(3))),
            "it was used"
        );
        assert_eq!(decisions.find(&one, &target(1), 181), None, "a minute of silence");
        for port in 0..10_000 {
            decisions.insert(two, &target(port), DatagramDecision::Reject, None, 181);
        }
        assert_eq!(decisions.slots.len(), REMEMBERED);
        assert_eq!(decisions.find(&two, &target(9_999), 181), Some(DatagramDecision::Reject));
    }
}
