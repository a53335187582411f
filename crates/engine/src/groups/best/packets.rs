//! Datagrams over a group: each flow over the member that is in use when it begins.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Waker;

use adit_model::Dial;
use adit_net::reach::Reach;
use adit_proto::wire::Target;

use super::{Group, Here};
use crate::datagram::{DropReason, FlowClass, FlowLookup, FlowTick, PacketFlow, PacketOutbound, Witness};
use crate::dns::Scope;
use crate::stream::Outbound as _;

/// The way out for datagrams over a group, on one core.
pub(crate) struct GroupPackets {
    group: Rc<Group>,
    /// For targets whose addresses are judged before a member is chosen.
    names: Scope,
    /// The reach of members that dial targets themselves.
    reach: Reach,
}

impl GroupPackets {
    /// The way out over `group`.
    pub(crate) fn new(group: Rc<Group>) -> Self {
        let names = group.dns().scope(&Dial::default());
        Self { group, names, reach: Reach::Anywhere }
    }
}

impl PacketOutbound for GroupPackets {
    fn begin(
        self: Rc<Self>,
        first: &Target,
        lane: FlowClass,
        now: FlowTick,
    ) -> Result<PacketFlow, DropReason> {
        let (outbound, member) = self.group.pick().ok_or(DropReason::Unresolved)?;
        let outbound = outbound.within(self.reach).unwrap_or(outbound);
        let flow = outbound.begin(first, lane, now)?;
        Ok(PacketFlow { witness: Some(member), ..flow })
    }

    /// Flows ask their member instead.
    fn find(&self, target: &Target, at: Option<IpAddr>, waker: Option<&Waker>, _: FlowTick) -> FlowLookup {
        match at {
            Some(ip) => FlowLookup::Addr(SocketAddr::new(ip, target.port)),
            None => FlowLookup::find(&self.names, target, waker),
        }
    }

    fn within(&self, reach: Reach) -> Option<Rc<dyn PacketOutbound>> {
        let (group, names) = (self.group.clone(), self.names.clone());
        (reach != self.reach).then(|| Rc::new(Self { group, names, reach }) as Rc<dyn PacketOutbound>)
    }

    fn address_of(&self, target: &Target, waker: Option<&Waker>, _: FlowTick) -> Option<FlowLookup> {
        // Servers look names up themselves.
        if self.group.is_tunnel() { None } else { Some(FlowLookup::find(&self.names, target, waker)) }
    }
}

impl Witness for Here {
    fn answered(&self) {
        self.note_datagram();
    }
}
