//! The outbounds of one core, by name, and the way that an inbound's requests take among them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Waker;

use adit_config::model::Tag;

use super::Outbound;
use crate::access::Access;
use crate::packet::{Decision, PacketOutbound, Question, Routes, Tick, Via};

/// An outbound as a core has it.
#[derive(Clone)]
pub(crate) struct Leaf {
    /// For streams.
    pub(crate) outbound: Rc<dyn Outbound>,
    /// For datagrams, if it carries them.
    pub(crate) packets: Option<Rc<dyn PacketOutbound>>,
}

/// The outbounds on one core, by name. A request looks its outbound up, so that nobody holds an old one.
pub(crate) struct Outbounds {
    leaves: RefCell<BTreeMap<Tag, Leaf>>,
    nowhere: Leaf,
    /// Grows with each change.
    changes: Cell<u32>,
}

impl Outbounds {
    /// No outbounds; `nowhere` takes the place of one that is not there.
    pub(crate) fn new(nowhere: Leaf) -> Self {
        Self { leaves: RefCell::default(), nowhere, changes: Cell::new(0) }
    }

    /// The outbound of this name; one that refuses all requests if there is none.
    pub(crate) fn find(&self, name: &str) -> Leaf {
        self.leaves.borrow().get(name).unwrap_or(&self.nowhere).clone()
    }

    /// Requests take this one from now on. Open connections over the one before go on.
    pub(crate) fn put(&self, name: Tag, leaf: Leaf) {
        self.leaves.borrow_mut().insert(name, leaf);
        self.changes.set(self.changes.get().wrapping_add(1));
    }

    /// Requests take it no longer. Open connections over it go on.
    pub(crate) fn remove(&self, name: &str) {
        self.leaves.borrow_mut().remove(name);
        self.changes.set(self.changes.get().wrapping_add(1));
    }
}

/// Where an inbound's requests go, and by which rules: the part that may change under open connections.
pub(crate) struct Live {
    outbounds: Rc<Outbounds>,
    outbound: RefCell<Tag>,
    access: RefCell<Option<Rc<Access>>>,
    changes: Cell<u32>,
    /// The outbounds that flows of datagrams go over, with their numbers.
    vias: RefCell<Vec<(Via, Rc<dyn PacketOutbound>)>>,
    next_via: Cell<u32>,
}

impl Live {
    /// Through the outbound of this name among `outbounds`.
    pub(crate) fn new(outbounds: Rc<Outbounds>, outbound: Tag, access: Option<Rc<Access>>) -> Self {
        Self {
            outbounds,
            outbound: RefCell::new(outbound),
            access: RefCell::new(access),
            changes: Cell::new(0),
            vias: RefCell::default(),
            next_via: Cell::new(0),
        }
    }

    /// Requests go there from now on.
    pub(crate) fn set_outbound(&self, outbound: &Tag) {
        self.outbound.replace(outbound.clone());
        self.changes.set(self.changes.get().wrapping_add(1));
    }

    /// Requests follow these rules from now on.
    pub(crate) fn set_access(&self, access: Option<Rc<Access>>) {
        self.access.replace(access);
        self.changes.set(self.changes.get().wrapping_add(1));
    }

    /// The outbound that requests take unless a rule says otherwise.
    pub(crate) fn leaf(&self) -> Leaf {
        self.outbounds.find(&self.outbound.borrow())
    }

    /// The rules at this time.
    pub(crate) fn access(&self) -> Option<Rc<Access>> {
        self.access.borrow().clone()
    }

    /// The number of an outbound: the same for as long as it is the same outbound.
    fn via(&self, packets: &Rc<dyn PacketOutbound>) -> Via {
        let mut vias = self.vias.borrow_mut();
        if let Some((via, _)) = vias.iter().find(|(_, known)| Rc::ptr_eq(known, packets)) {
            return *via;
        }
        // Outbounds that nobody else holds are gone.
        vias.retain(|(_, known)| Rc::strong_count(known) > 1);
        let via = Via(self.next_via.replace(self.next_via.get().wrapping_add(1)));
        vias.push((via, packets.clone()));
        via
    }
}

impl Routes for Live {
    fn changes(&self) -> u32 {
        self.changes.get().wrapping_add(self.outbounds.changes.get())
    }

    fn fixed(&self) -> Option<Via> {
        if self.access.borrow().is_some() {
            return None;
        }
        self.leaf().packets.map(|packets| self.via(&packets))
    }

    fn accepts(&self, source: IpAddr) -> bool {
        self.access.borrow().as_ref().is_none_or(|access| access.accepts(source))
    }

    fn decide(&self, question: &Question<'_>, waker: &Waker, now: Tick) -> Decision {
        let through = self.leaf().packets;
        match &*self.access.borrow() {
            None => through.map_or(Decision::Reject, |packets| Decision::Through(self.via(&packets))),
            Some(access) => access.decide(through, question, (waker, now), |packets| self.via(packets)),
        }
    }

    fn outbound(&self, via: Via) -> Option<Rc<dyn PacketOutbound>> {
        let vias = self.vias.borrow();
        vias.iter().find(|(known, _)| *known == via).map(|(_, packets)| packets.clone())
    }
}
